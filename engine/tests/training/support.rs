//! Cells small enough to try every strategy on.

use crate::device;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};
use zbench_engine::compute::error::StepError;
use zbench_engine::config::*;
use zbench_engine::formats::hf;
use zbench_engine::observe::outcome::{Estimate, Failure, Step};
use zbench_engine::plan::Plan;
use zbench_engine::run::launch_ranks::with_ranks;
use zbench_engine::run::rank::Rank;
use zbench_engine::state::Update;
use zbench_kernels::Kernels;
use zbench_kernels::memory::device::Device;
use zbench_kernels_testing::Late;

pub fn fixture(file: &str) -> PathBuf {
    device::source("tests/fixtures/llama").join(file)
}

/// The run of tests/fixtures/llama on one rank: 4 sequences of 32 tokens, 20 steps, no clipping.
pub fn llama_fixture() -> Cell {
    let config = std::fs::read_to_string(fixture("config.json")).unwrap();
    let mut model = hf::model_from_hf(&config, "config.json").unwrap();
    model.weights = Some(fixture(""));
    Cell {
        model,
        data: Data::Tokens { path: fixture("tokens.bin"), dtype: TokenType::U32, shuffle: false },
        train: Train {
            seq_len: 32,
            micro_batch: 4,
            accumulation: 1,
            steps: 20,
            untimed_steps: 0,
            seed: 1234,
            optimizer: Optimizer::AdamW,
            lr: 1e-3,
            betas: [0.9, 0.95],
            eps: 1e-8,
            weight_decay: 0.1,
            clip_norm: 0.0,
            lr_schedule: Schedule::Constant,
            lr_warmup_steps: 0,
            lr_min: 0.0,
            lr_steps: CourseSteps::FromOne,
            delayed_update: 0,
        },
        parallel: Parallel {
            ranks: 1,
            ranks_per_node: None,
            strategy: Strategy::Ddp,
            shard: 1,
            degrees: zbench_engine::config::Degrees::default(),
            pipeline_split: Vec::new(),
            tensor_chunks: 1,
            prefetch: 1,
            // Small models have several reductions, too.
            bucket_mb: 0.0,
            backend: Backend::Local,
            stall: STALL,
        },
        precision: Precision::F32,
        memory: Memory::default(),
        lora: Lora { rank: 0, alpha: 16.0, dropout: 0.0, ..Lora::default() },
        hardware: Hardware::cpu(1),
        link: None,
        pace: None,
        read_ahead: zbench_engine::config::READ_AHEAD,
        checkpoint: None,
        watch: None,
        priced: None,
    }
}

/// The same model without files: drawn weights, synthetic tokens.
pub fn synthetic() -> Cell {
    let mut cell = llama_fixture();
    cell.model.weights = None;
    cell.data = Data::Synthetic {};
    cell
}

/// So many documents of a few letters each, packed and shuffled.
pub fn documents(dir: &std::path::Path, count: usize) -> Data {
    let letters = ('a'..='z').enumerate().map(|(id, letter)| format!("\"{letter}\":{id}"));
    let tokenizer = dir.join("letters.json");
    let text = format!(
        r#"{{"version":"1.0","truncation":null,"padding":null,"normalizer":null,"post_processor":null,"decoder":null,
        "added_tokens":[],"pre_tokenizer":null,"model":{{"type":"BPE","dropout":null,"unk_token":null,
        "continuing_subword_prefix":null,"end_of_word_suffix":null,"fuse_unk":false,"byte_fallback":false,
        "vocab":{{{}}},"merges":[]}}}}"#,
        letters.collect::<Vec<_>>().join(",")
    );
    std::fs::write(&tokenizer, text).unwrap();
    let path = dir.join("few.jsonl");
    let line =
        |number: usize| format!("{{\"text\":\"{}\"}}\n", &"abcdefghijklmnop".repeat(3)[number % 7..number % 40 + 8]);
    std::fs::write(&path, (0..count).map(line).collect::<String>()).unwrap();
    Data::Documents(Box::new(Documents {
        files: vec![DocumentFile { path, form: DocumentForm::Jsonl, field: "text".into(), weight: 1.0 }],
        tokenizer,
        packing: DocumentPacking::Packed,
        shuffle: true,
        template: Template::ChatMl,
        answers: Answers::Only,
        end: Some(27),
    }))
}

/// Ranks and shard group of a strategy.
pub fn on(mut cell: Cell, strategy: Strategy, ranks: usize, shard: usize) -> Cell {
    cell.parallel.strategy = strategy;
    cell.parallel.ranks = ranks;
    cell.parallel.shard = shard;
    cell
}

/// CUDA on the processor, in queues that do their work as late as they may; or a GPU.
static MACHINE: LazyLock<Arc<dyn Device>> = LazyLock::new(|| device::machine(|host| Arc::new(Late(host.as_planned()))));

/// The same with queues that have done their work when a call returns: memory that is handed out is then full of NaN.
static PROMPT: LazyLock<Arc<dyn Device>> = LazyLock::new(|| device::machine(|host| Arc::new(host.as_planned())));

thread_local! {
    static IS_PROMPT: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// `work`, in which CUDA does what it is asked for at once.
pub fn promptly<T>(work: impl FnOnce() -> T) -> T {
    IS_PROMPT.set(true);
    let result = work();
    IS_PROMPT.set(false);
    result
}

/// The only machine that runs CUDA.
pub fn machine(_: usize) -> Result<Arc<dyn Device>, String> {
    Ok(if IS_PROMPT.get() { PROMPT.clone() } else { MACHINE.clone() })
}

pub fn cpus(cell: &Cell) -> Vec<Arc<dyn Kernels>> {
    zbench_engine::run::launch_ranks::kernels(cell, &machine).unwrap()
}

/// What a rank of a cell takes, of one stage.
pub fn estimate(cell: &Cell) -> Estimate {
    plan(cell).stage_plan_of(0).estimate.clone()
}

pub fn plan(cell: &Cell) -> Plan {
    let kernels = zbench_engine::compute::hardware::planner(cell).unwrap();
    Plan::new(cell, &*kernels).unwrap()
}

pub type Tensors = Vec<(String, Vec<f32>)>;

/// What a run gives: steps, the mean gradients of one step (the first), the last weights.
pub struct Ran {
    pub steps: Vec<Step>,
    pub gradients: Tensors,
    pub weights: Tensors,
}

/// Norm of the difference over norm of the reference.
pub fn distance(ours: &[f32], theirs: &[f32]) -> f64 {
    assert_eq!(ours.len(), theirs.len());
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    let difference = norm(&mut ours.iter().zip(theirs).map(|(a, b)| *a as f64 - *b as f64));
    if difference == 0.0 { 0.0 } else { difference / norm(&mut theirs.iter().map(|b| *b as f64)) }
}

pub fn try_run(cell: &Cell) -> Result<Ran, Failure> {
    try_run_seeing(cell, 0)
}

/// As `try_run`, with the gradients of step `seen` (0 for the first).
pub fn try_run_seeing(cell: &Cell, seen: usize) -> Result<Ran, Failure> {
    let plan = plan(cell);
    let ranks = with_ranks(cell, &plan, cpus(cell), |rank| {
        let (mut steps, mut gradients) = (Vec::new(), Vec::new());
        for i in 0..cell.train.untimed_steps + cell.train.steps {
            steps.push(if i == seen { step_seeing(rank, i, &mut gradients)? } else { rank.step()? });
        }
        let mut weights = Vec::new();
        rank.executor.export_weights(|name, _, values| weights.push((name.to_string(), values.to_vec())))?;
        Ok((steps, gradients, weights))
    })?;
    let (steps, gradients, weights) = ranks.into_iter().next().unwrap();
    Ok(Ran { steps, gradients, weights })
}

pub fn run(cell: &Cell) -> Ran {
    try_run(cell).unwrap_or_else(|failure| panic!("{}", failure.cause))
}

fn step_seeing(rank: &mut Rank<'_>, done: usize, gradients: &mut Tensors) -> Result<Step, StepError> {
    let mut meter = zbench_engine::observe::meter::Meter::start(rank.kernels().clone());
    rank.gradients(&mut meter)?;
    rank.executor.export_gradients(|name, _, values| gradients.push((name.to_string(), values.to_vec())))?;
    let Update { stats, lr, skipped, .. } = rank.update(&mut meter)?;
    let (step, loss_scale) = (done as u64 + 1, rank.executor.scaler.is_some().then_some(stats.loss_scale));
    let (loss, grad_norm) = (stats.loss, stats.norm);
    Ok(Step { step, timed: true, loss, grad_norm, lr, ms: 0.0, tokens: 0, counts: None, loss_scale, skipped })
}

/// Forms of blocks, so that each part is in one at least, in combinations that no family has too; with a window or none.
pub fn forms() -> Vec<(&'static str, Form, Option<usize>)> {
    let llama = Form::default();
    let layer = Form { norm: NormKind::Layer, norm_bias: true, ..llama };
    let biased = Form { qkv_bias: true, output_bias: true, mlp_bias: true, ..layer };
    vec![
        ("qwen2 with a window", Form { qkv_bias: true, ..llama }, Some(2)),
        ("qwen3", Form { qk_norm: true, ..llama }, None),
        ("qwen3 with biases, LayerNorm and a window", Form { qk_norm: true, ..biased }, Some(3)),
        ("gpt2", Form { positions: Positions::Learned, mlp: Mlp::GeluTanh, ..biased }, None),
        ("falcon", Form { norm_bias: false, mlp: Mlp::Gelu, order: Order::Parallel, ..layer }, None),
        ("falcon with gates", Form { order: Order::Parallel, qk_norm: true, ..biased }, Some(1)),
        ("new falcon", Form { mlp: Mlp::Gelu, order: Order::ParallelTwoNorms, ..layer }, None),
        ("bloom", Form { positions: Positions::Alibi, mlp: Mlp::GeluTanh, embedding_norm: true, ..biased }, None),
        (
            "gemma with everything at the bottom",
            Form {
                mlp: Mlp::GegluTanh,
                norm_less_one: true,
                embedding_scale: true,
                embedding_norm: true,
                positions: Positions::Learned,
                ..llama
            },
            Some(4),
        ),
    ]
}

/// A cell with blocks of another form.
pub fn formed(mut cell: Cell, (_, form, window): (&str, Form, Option<usize>)) -> Cell {
    (cell.model.form, cell.model.sliding_window) = (form, window);
    cell
}

/// What it is, and how a cell gets it.
pub type Adapters = (&'static str, fn(&mut Cell));

/// Adapters of every kind on families that fuse queries, keys and values and on those that do not.
pub fn adapters() -> Vec<Adapters> {
    fn of_family(cell: &mut Cell, family: &str, form: &str) {
        let all = forms();
        *cell = formed(cell.clone(), *all.iter().find(|(name, ..)| *name == form).unwrap());
        cell.model.family = family.into();
    }
    fn low_rank(cell: &mut Cell, dropout: f64, use_rslora: bool) {
        let targets = Linear::ALL.to_vec();
        cell.lora = Lora { rank: 2, alpha: 3.0, dropout, use_rslora, targets, ..Lora::default() };
    }
    fn ia3(cell: &mut Cell, targets: &[Linear], feedforward: &[Linear]) {
        let (targets, feedforward) = (targets.to_vec(), feedforward.to_vec());
        cell.lora = Lora { method: Method::Ia3, targets, feedforward, ..Lora::default() };
    }
    const QKV: [Linear; 3] = [Linear::QProj, Linear::KProj, Linear::VProj];
    vec![
        ("rsLoRA on GPT-2, dropout", |cell| {
            of_family(cell, "gpt2", "gpt2");
            low_rank(cell, 0.25, true);
        }),
        ("LoRA on the new Falcon", |cell| {
            of_family(cell, "falcon", "new falcon");
            low_rank(cell, 0.0, false);
        }),
        ("LoRA on the old Falcon, dropout", |cell| {
            of_family(cell, "falcon", "falcon");
            low_rank(cell, 0.25, false);
        }),
        ("IA3 as PEFT has it for Llama", |cell| {
            ia3(cell, &[Linear::KProj, Linear::VProj, Linear::DownProj], &[Linear::DownProj]);
        }),
        ("IA3 on what every layer gives", |cell| {
            of_family(cell, "llama", "qwen3 with biases, LayerNorm and a window");
            ia3(cell, &Linear::ALL, &[]);
        }),
        ("IA3 on what every layer reads", |cell| {
            of_family(cell, "llama", "falcon with gates");
            ia3(cell, &Linear::ALL, &Linear::ALL);
        }),
        ("IA3 as PEFT has it for BLOOM", |cell| {
            of_family(cell, "bloom", "bloom");
            ia3(cell, &[QKV[0], QKV[1], QKV[2], Linear::DownProj], &[Linear::DownProj]);
        }),
        ("IA3 on what a fused tensor reads", |cell| {
            of_family(cell, "mpt", "gpt2");
            ia3(cell, &Linear::ALL, &QKV);
        }),
    ]
}

/// Experts in place of the MLP: two of five with shares that add up to one; one of three, in every second block, where
/// shares are as they are and some experts get nobody; all of four.
pub fn expert_cells(cell: Cell) -> Vec<(&'static str, Cell)> {
    let with = |family: &str, form: Form, experts: Experts| {
        let mut cell = cell.clone();
        (cell.model.family, cell.model.form, cell.model.experts) = (family.into(), form, Some(experts));
        cell
    };
    let experts = |num_experts, num_experts_per_tok, norm_topk_prob, decoder_sparse_step| Experts {
        num_experts,
        num_experts_per_tok,
        moe_intermediate_size: 14,
        norm_topk_prob,
        decoder_sparse_step,
        mlp_only_layers: Vec::new(),
    };
    let qwen = Form { qk_norm: true, qkv_bias: true, ..Form::default() };
    let mut some = with("qwen3_moe", qwen, experts(30, 1, false, 1));
    some.model.experts.as_mut().unwrap().mlp_only_layers = vec![1];
    vec![
        ("mixtral", with("mixtral", Form::default(), experts(5, 2, true, 1))),
        ("qwen3-moe with few tokens and a dense block", some),
        ("qwen3-moe with all experts", with("qwen3_moe", qwen, experts(4, 4, false, 1))),
    ]
}

/// DoRA on every linear layer of a block with biases and gates. Its norms are constants to the gradient, so that backward is
/// not the derivative of forward.
pub fn dora() -> Adapters {
    ("DoRA", |cell| {
        let all = forms();
        let form = *all.iter().find(|(name, ..)| name.starts_with("qwen3 with biases")).unwrap();
        *cell = formed(cell.clone(), form);
        let targets = Linear::ALL.to_vec();
        cell.lora = Lora { rank: 2, alpha: 3.0, use_dora: true, use_rslora: true, targets, ..Lora::default() };
    })
}
