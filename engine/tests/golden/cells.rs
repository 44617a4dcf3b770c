//! The cells of the golden dump: dimensions with their values, of which a covering array makes the rows.

use super::array::{Array, Place, pairs};
use super::meshes;
use crate::training::accounting::small;
use crate::training::support::*;
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex, Weak};
use tempfile::TempDir;
use zbench_engine::config::*;
use zbench_kernels::DType;

/// How ranks of a cell meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meeting {
    /// Threads and the communicator of threads.
    Threads,
    /// Threads in this process, each with mappings of its own, as processes have them.
    Shm,
    /// Threads in this process with sockets between them.
    Tcp,
}

/// A cell and what it is called.
#[derive(Clone)]
pub struct Case {
    pub name: String,
    pub cell: Cell,
    pub meeting: Meeting,
    /// The number of its value in each dimension; none of a cell that is in no array.
    pub values: Vec<usize>,
}

impl Case {
    /// A cell that is in no array, whose ranks are threads.
    pub fn alone(name: String, cell: Cell) -> Case {
        Case { name, cell, meeting: Meeting::Threads, values: Vec::new() }
    }

    pub fn is_cuda(&self) -> bool {
        self.cell.hardware.device == DeviceKind::Cuda
    }

    /// Its values with their dimensions.
    fn places(&self) -> impl Iterator<Item = Place> + '_ {
        self.values.iter().copied().enumerate()
    }

    /// What it takes next to the others: 0 for the usual.
    fn cost(&self) -> usize {
        let Cell { parallel, train, .. } = &self.cell;
        match parallel.ranks {
            // A minute for some. One rank alone shows little.
            ranks if self.is_cuda() => {
                SLOWEST
                    + ranks.max(2) * train.accumulation
                    + usize::from(ranks == 1)
                    + usize::from(self.cell.watch.is_some())
            }
            8.. => 2,
            _ => usize::from(self.cell.hardware.threads_per_rank > 1),
        }
    }
}

/// The cost from which a cell is chosen only for a value that no cheaper one has.
const SLOWEST: usize = 3;

/// All cells, and the folder with the files that they read.
pub struct Cells {
    /// Of data-parallel ranks with all state on the device.
    pub data: Vec<Case>,
    /// Of the rest: see [`meshes`].
    pub meshes: Vec<Case>,
    _files: TempDir,
}

/// A value of a dimension: its word in a cell's name, and what it makes of a cell.
pub(super) struct Value {
    word: &'static str,
    set: Box<dyn Fn(&mut Case)>,
}

pub(super) fn value(word: &'static str, set: impl Fn(&mut Cell) + 'static) -> Value {
    Value { word, set: Box::new(move |case| set(&mut case.cell)) }
}

/// The values with these words.
pub(super) fn only(values: Vec<Value>, words: &[&str]) -> Vec<Value> {
    let left: Vec<Value> = values.into_iter().filter(|value| words.contains(&value.word)).collect();
    assert_eq!(left.len(), words.len(), "{words:?}");
    left
}

/// The dimensions that exclude values of each other, by their place in a cell's name.
const SUBJECT: usize = 0;
const PRECISION: usize = 1;
const STRATEGY: usize = 3;
const RANKS: usize = 4;
const PREPACK: usize = 11;
const MACHINE: usize = 12;

/// Values are applied in this order.
fn dimensions(files: &Path) -> Vec<Vec<Value>> {
    let mut all = vec![subjects(), precisions(), policies()];
    all.push(strategies());
    all.push(ranks());
    all.push(vec![
        value("acc1", |cell| cell.train.accumulation = 1),
        value("acc3", |cell| cell.train.accumulation = 3),
    ]);
    all.push(vec![
        value("flash", |cell| cell.memory.attention = AttentionKind::Flash),
        value("naive", |cell| cell.memory.attention = AttentionKind::Naive),
    ]);
    all.push(vec![
        value("untied", |cell| cell.model.tie_word_embeddings = false),
        value("tied", |cell| cell.model.tie_word_embeddings = true),
    ]);
    all.push(vec![
        value("prefetch1", |cell| cell.parallel.prefetch = 1),
        value("prefetch0", |cell| cell.parallel.prefetch = 0),
        value("prefetch3", |cell| cell.parallel.prefetch = 3),
    ]);
    all.push(data(files));
    all.push(vec![
        value("no-eval", |_| {}),
        value("eval", |cell| {
            let evaluation = Some(Evaluation { every: 2, batches: 2, share: 0.3 });
            cell.watch = Some(Watch { evaluation, ..Watch::default() });
        }),
    ]);
    all.push(vec![value("unpacked", |_| {}), value("prepack", |cell| cell.memory.prepack = true)]);
    all.push(machines());
    all.push(schedules());
    all
}

/// The names of `forms()`, `expert_cells()` and `adapters()` in the dump, in their order.
const FORMS: [&str; 9] = [
    "qwen2-window",
    "qwen3",
    "qwen3-bias-layernorm-window",
    "gpt2",
    "falcon",
    "falcon-gated",
    "falcon-new",
    "bloom",
    "gemma-everything",
];
const EXPERTS: [&str; 3] = ["mixtral", "qwen3-moe-dense-block", "qwen3-moe-all"];
const ADAPTERS: [&str; 8] = [
    "rslora-gpt2",
    "lora-falcon-new",
    "lora-falcon",
    "ia3-llama",
    "ia3-outputs",
    "ia3-inputs",
    "ia3-bloom",
    "ia3-fused",
];
/// Subjects with a frozen base of a type of its own.
const BASES: [(&str, Base); 5] = [
    ("lora-base-f32", Base::F32),
    ("lora-base-bf16", Base::Bf16),
    ("qlora-nf4", Base::Nf4),
    ("qlora-nf4-single", Base::Nf4Single),
    ("qlora-int8", Base::Int8),
];

pub(super) fn subjects() -> Vec<Value> {
    let mut all = vec![value("llama", |_| {})];
    assert_eq!(FORMS.len(), forms().len(), "every form has a name in the golden dump");
    for (word, form) in FORMS.into_iter().zip(forms()) {
        all.push(value(word, move |cell| *cell = formed(cell.clone(), form)));
    }
    assert_eq!(EXPERTS.len(), expert_cells(small()).len(), "every cell with experts has a name in the golden dump");
    for (number, word) in EXPERTS.into_iter().enumerate() {
        all.push(value(word, move |cell| *cell = expert_cells(cell.clone()).swap_remove(number).1));
    }
    let lora = |base: Option<Base>| Lora {
        rank: 3,
        alpha: 6.0,
        dropout: 0.1,
        targets: Linear::ALL.to_vec(),
        base,
        ..Lora::default()
    };
    all.push(value("lora", move |cell| cell.lora = lora(None)));
    assert_eq!(ADAPTERS.len(), adapters().len(), "every adapter has a name in the golden dump");
    for (word, (_, adapt)) in ADAPTERS.into_iter().zip(adapters()) {
        all.push(value(word, adapt));
    }
    all.push(value("dora", dora().1));
    for (word, base) in BASES {
        all.push(value(word, move |cell| cell.lora = lora(Some(base))));
    }
    all
}

pub(super) fn precisions() -> Vec<Value> {
    let (f32, bf16, f16) = (DType::F32, DType::Bf16, DType::F16);
    let mixed = Precision::mixed(bf16);
    let dynamic = |initial_scale_power| {
        let rules = DynamicScaling { initial_scale_power, loss_scale_window: 2, ..DynamicScaling::DEFAULT };
        Precision { scaling: Some(LossScaling::Dynamic(rules)), ..Precision::mixed(f16) }
    };
    let fixed = Precision { scaling: Some(LossScaling::Static(128.0)), ..Precision::mixed(f16) };
    let stochastic = Precision { rounding: WeightRounding::Stochastic, ..Precision::all(bf16) };
    let all = [
        ("f32", Precision::F32),
        ("f32-bf16-reduce", Precision { reduce: bf16, ..Precision::F32 }),
        ("bf16-mixed", mixed),
        ("bf16-mixed-bf16-reduce", Precision { reduce: bf16, ..mixed }),
        ("bf16-mixed-bf16-gradients", Precision { gradients: bf16, ..mixed }),
        ("bf16-mixed-bf16-gradients-and-reduce", Precision { gradients: bf16, reduce: bf16, ..mixed }),
        ("bf16-compute", Precision { parameters: f32, master: None, ..mixed }),
        ("bf16-pure", Precision::all(bf16)),
        ("bf16-stochastic", stochastic),
        ("bf16-stochastic-loaded", Precision { load: Some(bf16), ..stochastic }),
        ("f16-mixed", Precision::mixed(f16)),
        ("f16-scaled", dynamic(10)),
        ("f16-overflow", dynamic(40)),
        ("f16-static-scale", fixed),
    ];
    all.into_iter().map(|(word, precision)| value(word, move |cell| cell.precision = precision)).collect()
}

/// The precision whose parameters and computations are of two types, so that weights are read from slots.
const APART: &str = "bf16-compute";

pub(super) fn policies() -> Vec<Value> {
    let all = [
        ("keep-all", Checkpointing::None),
        ("full", Checkpointing::Full),
        ("selective", Checkpointing::Selective),
        ("sqrt", Checkpointing::Sqrt),
        ("every2", Checkpointing::Every(2)),
        ("keep-qkv", Checkpointing::Keep(vec![SavedTensor::Qkv])),
        ("keep-attention-mlp-norm", Checkpointing::Keep(vec![SavedTensor::Attention, SavedTensor::MlpNorm])),
        (
            "keep-activation-attention-norm",
            Checkpointing::Keep(vec![SavedTensor::Activation, SavedTensor::AttentionNorm]),
        ),
        ("keep-gate-up-residual", Checkpointing::Keep(vec![SavedTensor::GateUp, SavedTensor::Residual])),
    ];
    all.into_iter().map(|(word, policy)| value(word, move |cell| cell.memory.checkpointing = policy.clone())).collect()
}

const STRATEGIES: [(&str, Strategy); 8] = [
    ("ddp", Strategy::Ddp),
    ("zero1", Strategy::Zero1),
    ("zero2", Strategy::Zero2),
    ("zero3", Strategy::Zero3),
    ("fsdp", Strategy::Fsdp),
    ("fsdp-grad-op", Strategy::FsdpGradOp),
    ("hsdp", Strategy::Hsdp),
    ("hsdp-full-optimizer", Strategy::HsdpFullOptimizer),
];

pub(super) fn strategies() -> Vec<Value> {
    STRATEGIES.into_iter().map(|(word, strategy)| value(word, move |cell| cell.parallel.strategy = strategy)).collect()
}

/// Ranks, and ranks of a shard group.
const RANK_COUNTS: [(&str, usize, usize); 6] = [
    ("1rank", 1, 1),
    ("2ranks", 2, 2),
    ("2ranks-by1", 2, 1),
    ("4ranks", 4, 4),
    ("4ranks-by2", 4, 2),
    ("4ranks-by1", 4, 1),
];

fn ranks() -> Vec<Value> {
    let set =
        |(word, ranks, shard)| value(word, move |cell| (cell.parallel.ranks, cell.parallel.shard) = (ranks, shard));
    RANK_COUNTS.into_iter().map(set).collect()
}

pub(super) fn data(files: &Path) -> Vec<Value> {
    let tokens = files.join("tokens.bin");
    let token = |place: usize| ((place * place * 7 + place * 11 + place / 5) % 61) as u16;
    std::fs::write(&tokens, (0..14 * 50).flat_map(|place| token(place).to_le_bytes()).collect::<Vec<u8>>()).unwrap();
    let written = documents(files, 90);
    let packed = move |packing: DocumentPacking| {
        let mut data = written.clone();
        let Data::Documents(documents) = &mut data else { unreachable!("documents() makes documents") };
        documents.packing = packing;
        move |cell: &mut Cell| cell.data = data.clone()
    };
    vec![
        value("synthetic", |_| {}),
        value("tokens", move |cell| {
            cell.data = Data::Tokens { path: tokens.clone(), dtype: TokenType::U16, shuffle: true };
        }),
        value("documents-packed", packed(DocumentPacking::Packed)),
        value("documents-padded", packed(DocumentPacking::Padded)),
        value("documents-stream", packed(DocumentPacking::Stream)),
    ]
}

/// What computes and how ranks meet.
pub(super) fn machines() -> Vec<Value> {
    let met = |word, backend: Backend, meeting: Meeting| Value {
        word,
        set: Box::new(move |case| (case.cell.parallel.backend, case.meeting) = (backend, meeting)),
    };
    vec![
        value("local", |_| {}),
        value("local-2threads", |cell| cell.hardware.threads_per_rank = 2),
        met("shm", Backend::Shm, Meeting::Shm),
        met("tcp", Backend::Tcp, Meeting::Tcp),
        value("cuda", |cell| cell.hardware.device = DeviceKind::Cuda),
        value("cuda-device-backend", |cell| {
            (cell.hardware.device, cell.parallel.backend) = (DeviceKind::Cuda, Backend::Device);
        }),
    ]
}

fn schedules() -> Vec<Value> {
    vec![
        value("constant", |cell| cell.train.lr = 1e-3),
        value("linear-clipped", |cell| {
            (cell.train.lr_schedule, cell.train.lr_warmup_steps, cell.train.lr_min) = (Schedule::Linear, 2, 1e-5);
            (cell.train.lr, cell.train.clip_norm) = (1e-3, 0.5);
        }),
        value("cosine-clipped-hard", |cell| {
            (cell.train.lr_schedule, cell.train.lr) = (Schedule::Cosine, 1e-2);
            (cell.train.clip_norm, cell.train.weight_decay) = (0.01, 0.0);
        }),
    ]
}

/// Machines on which a cell takes some times as long as on the others.
const SLOW: [&str; 3] = ["local-2threads", "cuda", "cuda-device-backend"];

/// What is slow comes in with a pair that needs it, and does not fill rows up.
fn is_slow(dimension: usize, word: &str) -> bool {
    dimension == MACHINE && SLOW.contains(&word)
}

/// Whether two values of two dimensions cannot stand in one cell.
fn excluded(words: &[Vec<&'static str>], first: Place, second: Place) -> bool {
    let (one, other) = (words[first.0][first.1], words[second.0][second.1]);
    match (first.0, second.0) {
        // Only hybrids have shard groups that are smaller than the world.
        (STRATEGY, RANKS) => !one.starts_with("hsdp") && other.contains("-by"),
        // Forms that products read are kept of weights that are whole at home and of the type of computations.
        (STRATEGY, PREPACK) => other == "prepack" && !["ddp", "zero1", "zero2"].contains(&one),
        (PRECISION, PREPACK) => other == "prepack" && one == APART,
        (RANKS, PREPACK) => other == "prepack" && one.contains("-by"),
        (SUBJECT, PREPACK) => other == "prepack" && BASES.iter().any(|(word, _)| *word == one),
        // What meets in another way tells of its weights by the model that it saves, which only whole families do.
        (SUBJECT, MACHINE) => match other {
            "shm" | "tcp" => !["llama", "mixtral"].contains(&one),
            "cuda-device-backend" => !["llama", "gpt2", "mixtral"].contains(&one),
            _ => false,
        },
        // Kernels of a GPU on the processor take their time, as do more threads than cores.
        (RANKS, MACHINE) => match other {
            "shm" | "tcp" => one == "1rank",
            "local-2threads" => one.starts_with('4'),
            "cuda" | "cuda-device-backend" => one.starts_with('4') && one != "4ranks-by2",
            _ => false,
        },
        _ => false,
    }
}

impl Cells {
    /// All of them, which tests that run at the same time share.
    pub fn get() -> Arc<Cells> {
        static KEPT: Mutex<Weak<Cells>> = Mutex::new(Weak::new());
        let mut kept = KEPT.lock().unwrap();
        kept.upgrade().unwrap_or_else(|| {
            let cells = Arc::new(Cells::new());
            *kept = Arc::downgrade(&cells);
            cells
        })
    }

    /// The rows of both arrays, and runs from the checkpoints of tests/fixtures.
    fn new() -> Cells {
        let files = tempfile::tempdir().unwrap();
        let mut data = rows(small(), dimensions(files.path()), |words| Array {
            words,
            excludes: excluded,
            is_slow,
            most: usize::MAX,
        });
        data.extend(from_checkpoints());
        let meshes = meshes::cases(files.path());
        Cells { data, meshes, _files: files }
    }

    pub fn all(&self) -> impl Iterator<Item = &Case> {
        self.data.iter().chain(&self.meshes)
    }

    /// A choice that has every value of every dimension and every way of loading, and of each array so many more that have as many new
    /// pairs as they can.
    pub fn some(&self, more: [usize; 2]) -> Vec<Case> {
        // One for each way of loading weights.
        let mut loaded: Vec<Case> = self.data.iter().filter(|case| case.values.is_empty()).cloned().collect();
        loaded.truncate(LOADINGS.len());
        [some(&self.data, more[0]), some(&self.meshes, more[1]), loaded].concat()
    }
}

/// The covering rows of some dimensions as changes of a cell.
pub(super) fn rows(base: Cell, dimensions: Vec<Vec<Value>>, array: fn(Vec<Vec<&'static str>>) -> Array) -> Vec<Case> {
    let words = dimensions.iter().map(|values| values.iter().map(|value| value.word).collect()).collect();
    let array = array(words);
    let made = |row: Vec<usize>| {
        let mut case =
            Case { name: array.name(&row), cell: base.clone(), meeting: Meeting::Threads, values: row.clone() };
        row.iter().zip(&dimensions).for_each(|(value, values)| (values[*value].set)(&mut case));
        finished(case)
    };
    array.covering().into_iter().map(made).collect()
}

/// Cases of an array in which every value is, and so many more; cheap ones rather than others.
fn some(cases: &[Case], more: usize) -> Vec<Case> {
    let mut left: Vec<&Case> = cases.iter().filter(|case| !case.values.is_empty()).collect();
    let all: BTreeSet<Place> = left.iter().flat_map(|case| case.places()).collect();
    let (mut values, mut seen, mut chosen) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
    let mut further = 0;
    while further < more && !left.is_empty() || values.len() < all.len() {
        further += usize::from(values.len() == all.len());
        let gain = |case: &Case| {
            let new = case.places().filter(|place| !values.contains(place)).count();
            let new = if case.cost() >= SLOWEST { new.min(1) } else { new };
            (new, Reverse(case.cost()), pairs(&case.values).filter(|pair| !seen.contains(pair)).count())
        };
        let best = (0..left.len()).max_by_key(|at| gain(left[*at])).expect("a value that is left is in a case");
        let case = left.remove(best);
        values.extend(case.places());
        seen.extend(pairs(&case.values));
        chosen.push(case.clone());
    }
    chosen
}

/// Four steps, the first of which is not timed.
pub(super) fn finished(mut case: Case) -> Case {
    (case.cell.train.untimed_steps, case.cell.train.steps) = (1, 3);
    case
}

const LOADINGS: [(&str, Loading); 3] =
    [("sliced", Loading::Sliced), ("broadcast", Loading::Broadcast), ("everywhere", Loading::Everywhere)];

/// Fixtures whose weights are read, under the three ways of reading them and changing strategies.
fn from_checkpoints() -> Vec<Case> {
    const NAMES: [&str; 12] = [
        "llama",
        "llama3-rope",
        "linear-rope",
        "bf16-sharded",
        "gpt2-exact",
        "falcon-new",
        "falcon-bias",
        "bloom",
        "gemma",
        "mpt",
        "qwen2-window",
        "mixtral",
    ];
    let make = |(number, fixture): (usize, &str)| {
        let ((strategy_word, strategy), (loading_word, loading)) = (STRATEGIES[number % 8], LOADINGS[number % 3]);
        let mut cell = crate::training::families::Oracle::open(fixture).cell();
        (cell.train.seq_len, cell.train.micro_batch) = (13, 1);
        cell = on(cell, strategy, 2, 2);
        cell.model.loading = loading;
        let name = format!("checkpoint {fixture} {loading_word} {strategy_word} 2ranks");
        finished(Case::alone(name, cell))
    };
    NAMES.into_iter().enumerate().map(make).collect()
}
