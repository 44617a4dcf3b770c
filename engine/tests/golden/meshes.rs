//! The cells of tensor parallelism, pipelines, offload, eviction and delayed updates: a second covering array, of a model of four blocks.
//! Their names begin with "mesh".

use super::array::{Array, Place};
use super::cells::{
    Case, Value, data, finished, machines, only, policies, precisions, rows, strategies, subjects, value,
};
use crate::training::offload::{offloaded, with_activations};
use crate::training::support::{on, plan};
use crate::training::tensors::base;
use std::path::Path;
use zbench_engine::config::*;

const MESH: usize = 0;
const CUT: usize = 1;
const SCHEDULE: usize = 2;
const STRATEGY: usize = 3;
const SUBJECT: usize = 4;
const POLICY: usize = 6;
const STATE: usize = 7;
const ACCUMULATION: usize = 11;
const MACHINE: usize = 16;

/// Rows of the array, which hold 98 of 100 pairs.
const MOST: usize = 85;

/// All of them. Their files are in `files`.
pub fn cases(files: &Path) -> Vec<Case> {
    let mut base = base();
    (base.model.num_hidden_layers, base.train.micro_batch) = (4, 1);
    (base.train.lr, base.train.clip_norm) = (1e-3, 0.05);
    let of_array = rows(base.clone(), dimensions(files), |words| Array { words, excludes, is_slow, most: MOST });
    of_array.into_iter().chain(on_cuda(&base)).map(with_capacity).collect()
}

fn dimensions(files: &Path) -> Vec<Vec<Value>> {
    vec![
        MESHES.into_iter().map(mesh).collect(),
        cuts(),
        schedules(),
        only(strategies(), &["ddp", "zero1", "zero2", "zero3", "fsdp-grad-op", "hsdp", "hsdp-full-optimizer"]),
        only(subjects(), &["llama", "gpt2", "falcon-new", "bloom", "mixtral", "lora"]),
        only(
            precisions(),
            &["f32", "bf16-mixed", "bf16-mixed-bf16-gradients-and-reduce", "bf16-stochastic", "f16-scaled"],
        ),
        only(policies(), &["keep-all", "full", "selective", "every2"])
            .into_iter()
            .chain([value("evict", |cell| cell.memory.checkpointing = Checkpointing::Evict)])
            .collect(),
        states(),
        [
            ("activations-device", MemoryTier::Device),
            ("activations-host", MemoryTier::Host),
            ("activations-disk", MemoryTier::Disk),
        ]
        .map(|(word, home)| value(word, move |cell| cell.memory.offload_activations = home))
        .into(),
        vec![value("in-time", |_| {}), value("delayed", |cell| cell.train.delayed_update = 1)],
        vec![value("untied", |_| {}), value("tied", |cell| cell.model.tie_word_embeddings = true)],
        [("acc1", 1), ("acc3", 3), ("acc4", 4)]
            .map(|(word, count)| value(word, move |cell| cell.train.accumulation = count))
            .into(),
        [("ahead1", 1), ("ahead0", 0), ("ahead2", 2)]
            .map(|(word, ahead)| {
                value(word, move |cell| (cell.parallel.prefetch, cell.memory.offload_prefetch) = (ahead, ahead))
            })
            .into(),
        vec![value("flash", |_| {}), value("naive", |cell| cell.memory.attention = AttentionKind::Naive)],
        only(data(files), &["synthetic", "documents-packed"]),
        vec![
            value("no-eval", |_| {}),
            value("eval", |cell| {
                let evaluation = Some(Evaluation { every: 2, batches: 2, share: 0.3 });
                cell.watch = Some(Watch { evaluation, ..Watch::default() });
            }),
        ],
        only(machines(), &["local", "shm", "tcp"]),
    ]
}

/// Ranks by tensor, stage, data and shard group.
const MESHES: [(&str, [usize; 4]); 13] = [
    ("mesh 1rank", [1, 1, 1, 1]),
    ("mesh 2ranks", [1, 1, 2, 2]),
    ("mesh 4ranks-by2", [1, 1, 4, 2]),
    ("mesh tensor2", [2, 1, 1, 1]),
    ("mesh tensor4", [4, 1, 1, 1]),
    ("mesh tensor2-data2", [2, 1, 2, 2]),
    ("mesh tensor2-data2-by1", [2, 1, 2, 1]),
    ("mesh stages2", [1, 2, 1, 1]),
    ("mesh stages4", [1, 4, 1, 1]),
    ("mesh stages2-data2", [1, 2, 2, 2]),
    ("mesh stages2-data2-by1", [1, 2, 2, 1]),
    ("mesh tensor2-stages2", [2, 2, 1, 1]),
    (EIGHT, [2, 2, 2, 2]),
];
const EIGHT: &str = "mesh tensor2-stages2-data2";

fn mesh((word, [tensor, stages, data, shard]): (&'static str, [usize; 4])) -> Value {
    value(word, move |cell| {
        (cell.parallel.ranks, cell.parallel.shard) = (tensor * stages * data, shard);
        (cell.parallel.degrees.tensor, cell.parallel.degrees.pipeline) = (tensor, stages);
    })
}

/// How tensor ranks share what lies between the matrices, and when they sum.
fn cuts() -> Vec<Value> {
    fn sequence(cell: &mut Cell) {
        cell.parallel.degrees.sequence = cell.parallel.degrees.tensor;
    }
    vec![
        value(UNCUT, |_| {}),
        value("whole", |_| {}),
        value("sequence", sequence),
        value("partitioned", |cell| cell.memory.partition_activations = true),
        value("chunks3", |cell| cell.parallel.tensor_chunks = 3),
        value("sequence-chunks3", |cell| {
            sequence(cell);
            cell.parallel.tensor_chunks = 3;
        }),
    ]
}
const UNCUT: &str = "uncut";

fn schedules() -> Vec<Value> {
    let of = |(word, schedule, chunks)| {
        value(word, move |cell| {
            let degrees = &mut cell.parallel.degrees;
            (degrees.pipeline_schedule, degrees.virtual_stages) = (schedule, chunks);
        })
    };
    let all = [
        ("naive", PipelineSchedule::Naive, 1),
        ("gpipe", PipelineSchedule::GPipe, 1),
        ("1f1b", PipelineSchedule::OneFOneB, 1),
        ("interleaved", PipelineSchedule::Interleaved, 2),
        ("zb-h1", PipelineSchedule::ZbH1, 1),
    ];
    [value(NO_STAGES, |_| {})].into_iter().chain(all.map(of)).collect()
}
const NO_STAGES: &str = "no-stages";

/// Where the optimizer's state and the weights live.
fn states() -> Vec<Value> {
    [
        ("state-device", [MemoryTier::Device, MemoryTier::Device]),
        ("optimizer-host", [MemoryTier::Host, MemoryTier::Device]),
        ("optimizer-disk", [MemoryTier::Disk, MemoryTier::Device]),
        ("weights-host", [MemoryTier::Device, MemoryTier::Host]),
        ("weights-disk-optimizer-host", [MemoryTier::Host, MemoryTier::Disk]),
        ("weights-host-optimizer-disk", [MemoryTier::Disk, MemoryTier::Host]),
    ]
    .map(|(word, [optimizer, parameters])| {
        value(word, move |cell| {
            (cell.memory.offload_optimizer, cell.memory.offload_parameters) = (optimizer, parameters);
        })
    })
    .into()
}

fn is_slow(dimension: usize, word: &str) -> bool {
    dimension == MESH && word == EIGHT
}

fn excludes(words: &[Vec<&'static str>], first: Place, second: Place) -> bool {
    let (one, other) = (words[first.0][first.1], words[second.0][second.1]);
    match (first.0, second.0) {
        (MESH, CUT) => one.contains("tensor") == (other == UNCUT),
        // Four blocks are not eight chunks.
        (MESH, SCHEDULE) => {
            one.contains("stages") == (other == NO_STAGES) || one.contains("stages4") && other == "interleaved"
        }
        (MESH, STRATEGY) => {
            one.contains("-by") != other.starts_with("hsdp") || one == EIGHT && !["zero1", "zero3"].contains(&other)
        }
        (MESH, SUBJECT) => one == EIGHT && other != "llama",
        (MESH, MACHINE) => other != "local" && (one == EIGHT || one.ends_with("1rank") || one.ends_with('4')),
        // Evictions are decided by what inputs take whole.
        (CUT, POLICY) => one == "partitioned" && other == "evict",
        // Neither the backward of experts nor one that computes no gradients of matrices is split.
        (SCHEDULE, SUBJECT) => one == "zb-h1" && ["mixtral", "lora"].contains(&other),
        (SCHEDULE, ACCUMULATION) => one == "interleaved" && other != "acc4",
        (STRATEGY, STATE) => other.starts_with("weights") && !["zero3", "fsdp-grad-op", "hsdp"].contains(&one),
        // What meets in another way tells of its weights by the model that it saves, which only whole families do.
        (SUBJECT, MACHINE) => other != "local" && !["llama", "mixtral"].contains(&one),
        _ => false,
    }
}

/// Some on CUDA, which has neither tensor ranks nor stages yet.
fn on_cuda(base: &Cell) -> Vec<Case> {
    let state = offloaded(on(base.clone(), Strategy::Zero3, 2, 2), [MemoryTier::Host, MemoryTier::Disk], 1);
    let mut late = offloaded(on(base.clone(), Strategy::Zero2, 2, 2), [MemoryTier::Host, MemoryTier::Device], 1);
    late.train.delayed_update = 1;
    let mut evicting = with_activations(on(base.clone(), Strategy::Ddp, 1, 1), MemoryTier::Host, 1);
    (evicting.memory.checkpointing, evicting.train.accumulation) = (Checkpointing::Evict, 2);
    let all = [
        ("2ranks zero3 weights-disk-optimizer-host", state),
        ("2ranks zero2 optimizer-host delayed", late),
        ("1rank ddp evict activations-host acc2", evicting),
    ];
    all.map(|(word, mut cell)| {
        cell.hardware.device = DeviceKind::Cuda;
        finished(Case::alone(format!("mesh cuda {word}"), cell))
    })
    .into()
}

/// A cell that evicts gets half of the way from what `full` takes to what everything takes, the same on every machine.
fn with_capacity(mut case: Case) -> Case {
    if case.cell.memory.checkpointing != Checkpointing::Evict {
        return case;
    }
    let peak = |policy: Checkpointing| {
        let mut cell = case.cell.clone();
        cell.memory = Memory { checkpointing: policy, offload_activations: MemoryTier::Device, ..cell.memory };
        cell.hardware.instructions = (cell.hardware.device == DeviceKind::Cpu).then(|| "portable".into());
        plan(&cell).stage_plans.iter().map(|stage_plan| stage_plan.estimate.memory().total_peak()).max().unwrap()
    };
    case.cell.memory.capacity = Some((peak(Checkpointing::None) + peak(Checkpointing::Full)) / 2);
    case
}
