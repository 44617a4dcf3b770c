//! Memory from first principles: published formulas, conservation, and what must not depend on what.

use zbench_estimate::framework::framework;
use zbench_estimate::job::{
    Attention, Batch, Degrees, Experts, Job, Latent, Loss, Number, Offload, Order, Peft, Place, Precision, Recompute,
    Shape, Sharding, Targets,
};
use zbench_estimate::memory::{Category, Memory, formula_bytes, memory};

const CATEGORIES: [Category; 6] = [
    Category::Parameters,
    Category::Gradients,
    Category::Optimizer,
    Category::Activations,
    Category::Communication,
    Category::Workspace,
];

pub fn gpt(layers: usize, hidden: usize, heads: usize) -> Shape {
    Shape {
        layers,
        hidden,
        heads,
        kv_heads: heads,
        head_dim: hidden / heads,
        ffn: 4 * hidden,
        vocab: 51200,
        bias: true,
        norm_bias: true,
        causal: true,
        dropout: true,
        ..Shape::default()
    }
}

pub fn job(model: Shape) -> Job {
    Job {
        model,
        batch: Batch { seq: 2048, micro: 1, accumulation: 64 },
        degrees: Degrees::default(),
        sharding: Sharding::whole(),
        precision: Precision::MIXED16,
        recompute: Recompute::None,
        attention: Attention::Naive,
        offload: Offload::default(),
        peft: Peft::None,
        loss: Loss::Logits,
        framework: framework("megatron-core").unwrap(),
        overlap: Default::default(),
        split: Vec::new(),
    }
}

fn close(a: f64, b: f64, share: f64) {
    assert!((a - b).abs() <= share * b.abs().max(1.0), "{a} is not {b}");
}

/// 16 bytes per parameter: 4 + 12/N, 2 + 14/N and 16/N of ZeRO's stages (arXiv 1910.02054, table 1).
#[test]
fn model_states_are_those_of_the_stages() {
    for (stage, whole, split) in [(0, 16.0, 0.0), (1, 4.0, 12.0), (2, 2.0, 14.0), (3, 0.0, 16.0)] {
        for ranks in [1, 4, 64, 1024] {
            let mut job = job(gpt(24, 2048, 16));
            job.framework = framework("torch").unwrap();
            job.degrees.data = ranks;
            job.sharding = Sharding::zero(stage, ranks);
            let parameters = job.model.parameters() as f64;
            let expected = parameters * (whole + split / ranks as f64);
            close(memory(&job).worst().states, expected, 1e-6);
        }
    }
}

/// sbh(34 + 5as/h), and its forms under tensor and sequence parallelism and recompute (arXiv 2205.05198), against the sum
/// of the tensors that a block keeps.
#[test]
fn a_block_keeps_what_the_formula_says() {
    for (tensor, sequence) in [(1, false), (8, false), (8, true)] {
        for recompute in [Recompute::None, Recompute::Core, Recompute::Full { every: 1, partitioned: false }] {
            let mut job = job(gpt(96, 12288, 96));
            (job.degrees.tensor, job.degrees.sequence) = (tensor, sequence);
            job.recompute = recompute;
            let kept = memory(&job).worst().kept / 96.0;
            let split = if sequence && matches!(job.recompute, Recompute::Full { .. }) { 8.0 } else { 1.0 };
            close(kept, formula_bytes(&job) / split, 1e-9);
        }
    }
}

fn activations(job: &Job, stage: usize) -> f64 {
    let of = memory(job);
    let found = of.stages.iter().find(|s| s.index == stage).expect("the stage");
    found.terms.iter().find(|t| t.name.starts_with("block tensors")).map_or(0.0, |t| t.bytes)
}

/// 1F1B holds p - i micro-batches on stage i; with m chunks the first holds 1 + (p - 1)/(p m) times as much; GPipe holds
/// all of them everywhere.
#[test]
fn micro_batches_in_flight() {
    let one = memory(&job(gpt(96, 1024, 16))).worst().kept / 96.0;
    let mut job = job(gpt(96, 1024, 16));
    job.degrees.pipeline = 8;
    close(activations(&job, 0), 96.0 * one, 1e-9);
    close(activations(&job, 7), 12.0 * one, 1e-9);
    job.degrees.chunks = 3;
    close(activations(&job, 0), 96.0 * one * (1.0 + 7.0 / 24.0), 1e-9);
    job.degrees.chunks = 1;
    job.degrees.schedule = Order::GPipe;
    close(activations(&job, 7), 12.0 * 64.0 * one, 1e-9);
    // Fewer micro-batches than stages: no more than there are.
    job.degrees.schedule = Order::OneFOneB;
    job.batch.accumulation = 2;
    close(activations(&job, 0), 24.0 * one, 1e-9);
}

/// Stated stages have their own blocks, and an even cut is as if none were stated.
#[test]
fn a_stated_cut_is_followed() {
    for schedule in [Order::OneFOneB, Order::ZeroBubble] {
        let mut job = job(gpt(24, 1024, 16));
        (job.degrees.pipeline, job.degrees.schedule) = (4, schedule);
        let even = memory(&job);
        job.split = vec![0, 6, 12, 18];
        let stated = memory(&job);
        for stage in &even.stages {
            let same = stated.stages.iter().find(|other| other.index == stage.index).expect("every stage is there");
            close(same.peak(), stage.peak(), 1e-12);
        }
        job.split = vec![0, 2, 10, 20];
        let blocks: Vec<usize> = memory(&job).stages.iter().map(|stage| stage.blocks).collect();
        assert_eq!(blocks, [2, 8, 10, 4]);
        // Two chunks on a stage are two runs of blocks.
        (job.degrees.chunks, job.split) = (2, vec![0, 1, 3, 6, 10, 15, 18, 20]);
        let blocks: Vec<usize> = memory(&job).stages.iter().map(|stage| stage.blocks).collect();
        assert_eq!(blocks, [6, 5, 5, 8]);
    }
}

/// All stages' parameters are the model's; a tied matrix stands on both ends.
#[test]
fn stages_share_the_model() {
    for tied in [false, true] {
        let mut job = job(gpt(24, 1024, 16));
        job.model.tied = tied;
        job.degrees.pipeline = 4;
        let of = memory(&job);
        let sum = of.stages[0].parameters + 2.0 * of.stages[1].parameters + of.stages[2].parameters;
        let twice = if tied { (job.model.vocab * job.model.hidden) as f64 } else { 0.0 };
        close(sum, job.model.parameters() as f64 + twice, 1e-9);
    }
}

/// Categories add up to the peak, and nothing is negative.
#[test]
fn terms_add_up() {
    for stack in ["megatron-core", "megatron-deepspeed", "fsdp2", "torch", "deepspeed"] {
        let mut job = job(gpt(24, 1024, 16));
        job.framework = framework(stack).unwrap();
        job.degrees.data = 8;
        job.sharding = Sharding::zero(3, 8);
        for stage in &memory(&job).stages {
            let sum: f64 = CATEGORIES.iter().map(|category| stage.by(*category)).sum();
            close(sum, stage.peak(), 1e-12);
            assert!(stage.terms.iter().all(|term| term.bytes > 0.0));
            assert!(stage.by(Category::Parameters) > 0.0);
        }
    }
}

/// What is offloaded leaves the device and arrives on the host or on disk, byte for byte.
#[test]
fn offload_moves_bytes() {
    let mut job = job(gpt(24, 1024, 16));
    job.degrees.data = 8;
    job.sharding = Sharding::zero(3, 8);
    let (before, own) = (memory(&job), job.model.parameters() as f64 / 8.0);
    for place in [Place::Host, Place::Disk] {
        job.offload = Offload { optimizer: place, parameters: place, activations: Place::Device };
        let after = memory(&job);
        close(before.worst().states - after.worst().states, 16.0 * own, 1e-6);
        let there = if place == Place::Host { after.host } else { after.disk };
        close(there, 16.0 * own, 1e-6);
    }
}

/// Experts are split over the expert axis, and their state over what of the data axes that leaves.
#[test]
fn experts_are_split_by_their_own_axes() {
    use zbench_estimate::job::Experts;
    let mut job = job(gpt(8, 512, 8));
    // Scores would outweigh what goes to experts.
    job.attention = Attention::Flash(2);
    job.model.bias = false;
    job.model.experts = Some(Experts { count: 8, top: 2, ffn: 1024, shared_ffn: 0, dense_layers: 0, imbalance: 1.0 });
    job.degrees.data = 8;
    job.degrees.expert = 8;
    job.sharding = Sharding::zero(1, 8);
    let experts = (8 * 2 * 512 * 1024) as f64;
    let rest = job.model.parameters() as f64 - 8.0 * experts;
    // One expert of eight per rank, which no other rank has: 16 bytes; the rest by ZeRO-1's 4 + 12/8.
    close(memory(&job).worst().states, 16.0 * experts + rest * 5.5, 1e-6);
    let balanced = memory(&job).worst().kept;
    if let Some(experts) = &mut job.model.experts {
        experts.imbalance = 1.5;
    }
    assert!(memory(&job).worst().kept > 1.1 * balanced);
}

/// More recompute never keeps more; flash attention never keeps more than scores; longer sequences keep more.
#[test]
fn directions() {
    let base = job(gpt(24, 2048, 16));
    let kept = |job: &Job| memory(job).worst().kept;
    let with = |recompute| kept(&Job { recompute, ..base.clone() });
    assert!(with(Recompute::None) > with(Recompute::Core));
    assert!(with(Recompute::Core) > with(Recompute::Full { every: 1, partitioned: false }));
    assert!(with(Recompute::None) > with(Recompute::SomeBlocks { of: 2 }));
    assert!(with(Recompute::None) > with(Recompute::Modules(vec!["layernorm".into()])));
    assert!(kept(&base) > kept(&Job { attention: Attention::Flash(2), ..base.clone() }));
    let mut longer = base.clone();
    longer.batch.seq *= 2;
    assert!(kept(&longer) > 2.0 * kept(&base));
}

/// Memory is a formula of the degrees: if it walked over the ranks, this would not end.
#[test]
fn a_trillion_replicas_are_planned_at_once() {
    let mut job = job(gpt(126, 16384, 128));
    job.degrees.pipeline = 16;
    job.degrees.tensor = 8;
    job.degrees.data = 1 << 40;
    let bytes = memory(&job).allocated();
    assert!(bytes.is_finite() && bytes > 0.0, "{bytes}");
}

/// PyTorch's stages keep weights gathered and gradients whole from a step's first micro-batch to its last.
#[test]
fn stages_of_fsdp2_hold_weights_and_gradients_whole() {
    let of = |software: &str| {
        let mut one =
            Job { framework: framework(software).unwrap(), sharding: Sharding::zero(3, 8), ..job(gpt(32, 4096, 32)) };
        (one.degrees.data, one.degrees.pipeline) = (8, 4);
        memory(&one)
    };
    let (fsdp, other) = (of("fsdp2"), of("megatron-core"));
    let bytes = |memory: &Memory, name: &str| {
        let terms = &memory.worst().terms;
        terms.iter().filter(|term| term.name == name).map(|term| term.bytes).sum::<f64>()
    };
    let names = ["gathered weights", "whole gradients of all micro-batches"];
    let parameters = fsdp.worst().parameters;
    let reduce = Precision::MIXED16.reduce;
    assert_eq!(names.map(|name| bytes(&fsdp, name)), [2.0 * parameters, reduce * parameters]);
    assert_eq!(names.map(|name| bytes(&other, name)), [0.0, 0.0]);
}

/// Everywhere is each rank's whole copy on its host, and what is sliced is nowhere but at home.
#[test]
fn what_weights_take_while_they_are_read_is_who_reads_them() {
    let of = |software: &str| {
        let sharding = Sharding::zero(3, 8);
        let one = Job { framework: framework(software).unwrap(), sharding, ..job(gpt(32, 4096, 32)) };
        (memory(&one).load, one.model.parameters() as f64)
    };
    let (everywhere, parameters) = of("fsdp1");
    assert_eq!(everywhere.host(8), 8.0 * 2.0 * parameters);
    assert!(everywhere.device > 2.0 * parameters / 8.0 && everywhere.device < 2.0 * parameters / 4.0);
    assert_eq!(of("fsdp2").0.host(8), 0.0);
}

/// What PEFT prints as trainable for Llama 2 7B, whose queries and keys are as wide as its hidden state, and for Llama 3 8B.
#[test]
fn adapters_are_counted_on_their_targets() {
    let llama = |kv_heads, ffn| Shape { kv_heads, ffn, gated: true, bias: false, ..gpt(32, 4096, 32) };
    let count = |shape: Shape, rank, targets| {
        let peft = Peft::Adapters { trainable: 0, rank, base: Number::Bf16, weight_bytes: 1.0, targets };
        let memory = memory(&Job { peft, ..job(shape) });
        memory.worst().terms.iter().find(|term| term.name == "adapters").map_or(0.0, |term| term.bytes)
    };
    let usual = Targets { query: true, value: true, ..Targets::default() };
    assert_eq!(count(llama(32, 11008), 8, usual), 4_194_304.0);
    assert_eq!(count(llama(8, 14336), 8, usual), 3_407_872.0);
    assert_eq!(count(llama(32, 11008), 64, Targets::ALL), 159_907_840.0);
    // One tensor has one A of rank 8 for all of its outputs; an MLP without a gate has no adapter there.
    let fused = Targets { fused: true, ..usual };
    assert_eq!(count(llama(8, 14336), 8, fused), 32.0 * 8.0 * (4096.0 + 6144.0));
    let plain = Shape { gated: false, ..llama(32, 11008) };
    assert_eq!(count(plain, 8, Targets { gate: true, ..Targets::default() }), 0.0);
    // Two projections of latent attention: queries by themselves, keys and values together.
    let latent = Latent { q_rank: 1536, kv_rank: 512, qk_dim: 128, rope_dim: 64, v_dim: 128 };
    let latent = Shape { latent: Some(latent), ..llama(32, 11008) };
    let query = Targets { query: true, ..Targets::default() };
    let value = Targets { value: true, ..Targets::default() };
    assert_eq!(count(latent.clone(), 8, query), 32.0 * 8.0 * (1536.0 + 32.0 * 192.0));
    assert_eq!(count(latent, 8, value), 32.0 * 8.0 * (512.0 + 32.0 * 256.0));
    let alike = Latent { q_rank: 1536, kv_rank: 512, qk_dim: 128, rope_dim: 64, v_dim: 64 };
    let alike = Shape { latent: Some(alike), ..llama(32, 11008) };
    assert_eq!(count(alike, 8, query), 32.0 * 8.0 * (1536.0 + 32.0 * 192.0));
    let experts = Experts { count: 8, top: 2, ffn: 14336, ..Experts::default() };
    let sparse = Shape { experts: Some(experts), ..llama(8, 14336) };
    assert_eq!(count(sparse, 8, Targets { down: true, ..Targets::default() }), 32.0 * 8.0 * 8.0 * (14336.0 + 4096.0));
    let factors = Targets { key: true, value: true, down: true, ..Targets::default() };
    assert_eq!(count(llama(32, 11008), 0, factors), 614_400.0);
}

/// Backward needs what an adapter reads, and nothing for a frozen matrix without one.
#[test]
fn what_adapters_read_is_kept() {
    let kept = |targets| {
        let peft = Peft::Adapters { trainable: 1, rank: 8, base: Number::Bf16, weight_bytes: 2.0, targets };
        let one = Shape { gated: true, bias: false, dropout: false, ..gpt(1, 1024, 8) };
        memory(&Job { peft, ..job(one) }).worst().peak()
    };
    let tokens = 2048.0;
    let nothing = kept(Targets { output: true, ..Targets::default() });
    for (targets, width) in [
        (Targets { query: true, ..Targets::default() }, 1024.0),
        (Targets { key: true, value: true, ..Targets::default() }, 1024.0),
        (Targets { up: true, ..Targets::default() }, 1024.0),
        (Targets { down: true, ..Targets::default() }, 4096.0),
        (Targets::ALL, 6144.0),
    ] {
        close(kept(targets) - nothing, 2.0 * tokens * width, 1e-9);
    }
}

/// bitsandbytes writes a matrix in 4 bits out in the compute type for each product: the largest one, of gate, up and down.
#[test]
fn a_base_in_few_bits_is_written_out_matrix_by_matrix() {
    let written = |base| {
        let peft = Peft::Adapters { trainable: 1, rank: 8, base, weight_bytes: 2.0, targets: Targets::ALL };
        let one = Shape { gated: true, bias: false, vocab: 0, ..gpt(2, 1024, 8) };
        let memory = memory(&Job { peft, framework: framework("fsdp1").unwrap(), ..job(one) });
        memory.worst().by(Category::Workspace)
    };
    close(written(Number::Nf4) - written(Number::Bf16), 2.0 * 1024.0 * 4096.0, 1e-9);
}

/// Frozen experts without adapters keep neither what they read nor what goes into their last product.
#[test]
fn experts_keep_what_their_adapters_read() {
    let kept = |targets| {
        let peft = Peft::Adapters { trainable: 1, rank: 8, base: Number::Bf16, weight_bytes: 2.0, targets };
        let experts = Experts { count: 4, top: 2, ffn: 4096, ..Experts::default() };
        let one = Shape { gated: true, bias: false, dropout: false, experts: Some(experts), ..gpt(1, 1024, 8) };
        memory(&Job { peft, ..job(one) }).worst().peak()
    };
    let (nothing, sent) = (kept(Targets { output: true, ..Targets::default() }), 2048.0 * 2.0);
    close(kept(Targets { down: true, ..Targets::default() }) - nothing, 2.0 * sent * 4096.0, 1e-9);
    close(kept(Targets { up: true, ..Targets::default() }) - nothing, 2.0 * (sent + 2048.0) * 1024.0, 1e-9);
}

/// A frozen base of experts is split over the expert ranks as trained experts are, and has the base's type unless that is in few
/// bits and the software leaves experts out.
#[test]
fn frozen_experts_are_split_as_trained_ones() {
    let base = |software: &str, base, expert| {
        let experts = Experts { count: 8, top: 2, ffn: 4096, ..Experts::default() };
        let one = Shape { gated: true, bias: false, dropout: false, experts: Some(experts), ..gpt(4, 1024, 8) };
        let mut job = job(one);
        job.framework = framework(software).unwrap();
        (job.degrees.data, job.degrees.expert, job.sharding) = (8, expert, Sharding::zero(3, 8));
        job.peft = Peft::Adapters { trainable: 1, rank: 8, base, weight_bytes: 2.0, targets: Targets::ALL };
        memory(&job).worst().terms.iter().find(|term| term.name == "frozen base").unwrap().bytes
    };
    // 4 blocks of 8 experts of 3 x 1024 x 4096 elements, over 8 ranks in any case.
    close(base("fsdp2", Number::Bf16, 8), base("fsdp2", Number::Bf16, 1), 1e-9);
    let experts = 4.0 * 8.0 * 3.0 * 1024.0 * 4096.0 / 8.0;
    let saved = |software: &str| base(software, Number::Bf16, 1) - base(software, Number::Nf4, 1);
    close(saved("fsdp2") - saved("zbench"), experts * (2.0 - Number::Nf4.bytes()), 1e-9);
    assert!(base("zbench", Number::F32, 1) > 1.9 * base("zbench", Number::Bf16, 1));
}
