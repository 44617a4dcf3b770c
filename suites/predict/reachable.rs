//! Every variant of a job can be stated in a configuration. A new variant does not compile until it has a place here.

use crate::job;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use zbench_config::{Context, Document};
use zbench_estimate::job::*;

/// Cells that differ in what they state, one after the other.
const CELLS: &[&str] = &[
    "",
    "model.preset = \"llama-tiny\"\nprecision.products = \"fp8\"\nprecision.main_gradients = true\nprecision.preset = \"bf16-mixed\"",
    "precision.products = \"tf32\"\ntrain.optimizer = \"adamw-8bit\"\nmemory.recompute = \"core\"",
    "precision.preset = \"f16-mixed\"\ntrain.optimizer = \"adamw-4bit\"\nmemory.recompute = \"op\"",
    "precision.compute = \"bf16\"\nprecision.products = \"f16\"\ntrain.optimizer = \"muon\"\nmemory.recompute = { one_in = 2 }",
    "train.optimizer = \"sgd\"\nmemory.recompute = [\"core_attn\", \"mlp\"]\nmemory.attention = \"flash1\"\nmemory.loss = \"logits\"",
    "memory.checkpointing = \"full\"\nmemory.attention = \"flash3\"\nmemory.loss = \"chunked\"\ntrain.optimizer_in_backward = true",
    "memory.checkpointing = { every = 3 }\nmemory.attention = \"naive\"\ntrain.optimizer = \"momentum\"\nmodel.dropout = 0.1",
    "parallel.ranks = 8\nparallel.tensor = 2\nparallel.sequence = 2\nparallel.pipeline = 2\nparallel.tensor_overlap = true\n\
     memory.checkpointing = \"full\"\nmemory.partition_activations = true\nparallel.pipeline_schedule = \"gpipe\"",
    "parallel.ranks = 8\nparallel.pipeline = 2\nparallel.pipeline_schedule = \"zb-h1\"\nparallel.strategy = \"zero1\"\nparallel.optimizer_shard = 2",
    "parallel.ranks = 8\nparallel.pipeline = 2\nparallel.pipeline_schedule = \"naive\"\nparallel.placement = \"pipeline-inside\"\nparallel.strategy = \"fsdp-grad-op\"",
    "parallel.ranks = 8\nparallel.context = 2\nparallel.strategy = \"hsdp\"\nparallel.shard = 2",
    "parallel.ranks = 8\nparallel.strategy = \"zero++\"\nparallel.shard = 4",
    "parallel.ranks = 4\nparallel.strategy = \"zero3\"\nmemory.offload_optimizer = \"disk\"\nmemory.offload_parameters = \"host\"\n\
     memory.offload_activations = \"host\"",
    "lora.rank = 8\nlora.base = \"nf4\"\nlora.trainable = 1000\nlora.adapter_dtype = \"f32\"\nprecision.preset = \"bf16\"",
    "lora.rank = 8\nlora.base = \"int8\"\nlora.targets = \"all-linear\"",
    "model.family = \"count\"\nmodel.parameters = 1000000\nmodel.largest_layer = 1000",
    "model.family = \"t5\"\nmodel.num_decoder_layers = 2\nmodel.hidden_size = 64\nmodel.intermediate_size = 128\n\
     model.num_hidden_layers = 2\nmodel.num_attention_heads = 2\nmodel.vocab_size = 100",
    "model.family = \"custom\"\nmodel.mlp = \"plain\"\nmodel.bias = true\nmodel.norm = \"layer\"\nmodel.learned_positions = 128\n\
     model.causal = false\nmodel.kv_lora_rank = 8\nmodel.qk_nope_head_dim = 8\nmodel.qk_rope_head_dim = 4\nmodel.v_head_dim = 8\n\
     model.num_experts = 4\nmodel.num_experts_per_tok = 2\nmodel.moe_intermediate_size = 32\n\
     model.shared_expert_intermediate_size = 32\nmodel.first_k_dense_replace = 1\nmodel.num_nextn_predict_layers = 1\n\
     model.hidden_size = 64\nmodel.intermediate_size = 128\nmodel.num_hidden_layers = 2\nmodel.num_attention_heads = 2\n\
     model.num_key_value_heads = 2\nmodel.vocab_size = 100\nparallel.ranks = 4\nparallel.expert = 2\nparallel.expert_overlap = true\n\
     parallel.expert_imbalance = 1.5",
];

fn jobs() -> Vec<Job> {
    let job_of = |text: &&str| {
        let text = format!("train.seq_len = 128\nhardware.device = \"cuda\"\n{text}");
        let document =
            Document::parse(Path::new("t.toml"), &text, &[]).unwrap_or_else(|error| panic!("{text}: {error}"));
        let resolved = zbench_config::resolve(&document.base, &Context::new(PathBuf::new(), 1));
        job(&resolved.unwrap_or_else(|error| panic!("{text}: {error}")))
    };
    CELLS.iter().map(job_of).collect()
}

fn of_number(number: Number) -> usize {
    match number {
        Number::F32 => 0,
        Number::Tf32 => 1,
        Number::Bf16 => 2,
        Number::F16 => 3,
        Number::Fp8 => 4,
        Number::Int8 => 5,
        Number::Nf4 => 6,
    }
}

fn of_recompute(recompute: &Recompute) -> usize {
    match recompute {
        Recompute::None => 0,
        Recompute::Full { every: 1, partitioned: false } => 1,
        Recompute::Full { every: 1, partitioned: true } => 2,
        Recompute::Full { .. } => 3,
        Recompute::SomeBlocks { .. } => 4,
        Recompute::Core => 5,
        Recompute::PerOp => 6,
        Recompute::Modules(_) => 7,
    }
}

fn of_attention(attention: Attention) -> usize {
    match attention {
        Attention::Naive => 0,
        Attention::Flash(generation) => generation.into(),
    }
}

fn of_order(order: Order) -> usize {
    match order {
        Order::OneFOneB => 0,
        Order::GPipe => 1,
        Order::Naive => 2,
        Order::ZeroBubble => 3,
    }
}

fn of_placement(placement: Placement) -> usize {
    match placement {
        Placement::DataInside => 0,
        Placement::PipelineInside => 1,
    }
}

fn of_loss(loss: Loss) -> usize {
    match loss {
        Loss::Fused => 0,
        Loss::Logits => 1,
        Loss::Chunked(_) => 2,
    }
}

fn of_place(place: Place) -> usize {
    match place {
        Place::Device => 0,
        Place::Host => 1,
        Place::Disk => 2,
    }
}

fn of_kind(kind: Kind) -> usize {
    match kind {
        Kind::Decoder => 0,
        Kind::EncoderDecoder { .. } => 1,
        Kind::Count { .. } => 2,
    }
}

/// All of 0 to `many`, less one, are among the values.
#[track_caller]
fn all(what: &str, many: usize, found: impl Iterator<Item = usize>) {
    let found: BTreeSet<usize> = found.collect();
    assert_eq!(found, (0..many).collect(), "{what}");
}

#[test]
fn every_variant_of_a_job_can_be_stated() {
    let jobs = jobs();
    let base = |job: &Job| match job.peft {
        Peft::Adapters { base, .. } => Some(base),
        Peft::None => None,
    };
    let numbers = jobs.iter().flat_map(|job| [Some(job.precision.products), base(job)]).flatten();
    all("numbers", 7, numbers.map(of_number));
    all("recompute", 8, jobs.iter().map(|job| of_recompute(&job.recompute)));
    all("attention", 4, jobs.iter().map(|job| of_attention(job.attention)));
    all("schedules", 4, jobs.iter().map(|job| of_order(job.degrees.schedule)));
    all("placements", 2, jobs.iter().map(|job| of_placement(job.degrees.placement)));
    all("losses", 3, jobs.iter().map(|job| of_loss(job.loss)));
    all("kinds", 3, jobs.iter().map(|job| of_kind(job.model.kind)));
    let places = |job: &Job| [job.offload.optimizer, job.offload.parameters, job.offload.activations];
    all("places", 3, jobs.iter().flat_map(places).map(of_place));
}

#[test]
fn every_part_of_a_precision_a_model_and_a_sharding_can_be_stated() {
    let jobs = jobs();
    let has = |what: &str, is: &dyn Fn(&Job) -> bool| assert!(jobs.iter().any(is), "no cell has {what}");
    has("gradients of 2 + 4 bytes", &|job| job.precision.gradients == 4.0 + 4.0);
    has("gradients that are freed", &|job| job.precision.gradients == 0.0);
    for moments in [0.0, 1.0, 2.0, 4.0, 8.0] {
        has(&format!("moments of {moments} bytes"), &|job| job.precision.moments == moments);
    }
    has(
        "adapters of another type",
        &|job| matches!(job.peft, Peft::Adapters { trainable: 1000, weight_bytes, .. } if weight_bytes > job.precision.weights.bytes()),
    );
    for on_mlp in [false, true] {
        has("adapters on the MLP", &|job| matches!(job.peft, Peft::Adapters { targets, .. } if targets.down == on_mlp));
    }
    has("dropout", &|job| job.model.dropout);
    has("an encoder alone", &|job| !job.model.causal && job.model.latent.is_some() && job.model.ahead == 1);
    has("a shared expert behind dense blocks", &|job| {
        job.model.experts.as_ref().is_some_and(|of| of.shared_ffn > 0 && of.dense_layers == 1 && of.imbalance > 1.0)
    });
    has("a plain MLP with biases and grouped heads", &|job| !job.model.gated && job.model.bias && job.model.norm_bias);
    has("asynchronous tensor parallelism", &|job| job.overlap.tensor && job.degrees.sequence);
    has("experts beside another micro-batch", &|job| job.overlap.expert && job.degrees.expert == 2);
    has("an optimizer over fewer ranks", &|job| job.sharding.optimizer == 2 && job.sharding.gradients == 1);
    has("weights that stay gathered", &|job| job.sharding.parameters > 1 && !job.sharding.reshard_after_forward);
    has("a second copy", &|job| {
        job.sharding.parked == 4 && job.sharding.gather_bytes == 1.0 && job.sharding.reduce_bytes == 0.5
    });
}
