//! The table of docs/activation-checkpointing.md: what eviction makes again and the largest micro-batch that it fits, beside the policies
//! that do not look at the capacity. Plans alone, in a few seconds: `cargo run -p zbench-engine --example eviction`.

use zbench_engine::config::*;
use zbench_engine::formats::hf::model_from_hf;
use zbench_engine::planner::Planner;
use zbench_kernels::DType;

/// Llama 3 8B.
const MODEL: &str = r#"{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 8192, "rope_theta": 500000.0, "tie_word_embeddings": false, "hidden_act": "silu"}"#;
const CAPACITIES_GIB: [u64; 5] = [24, 32, 40, 64, 80];
/// At which what is made again is compared.
const MICRO_BATCH: usize = 4;

fn cell(checkpointing: Checkpointing, capacity: u64, micro_batch: usize) -> Cell {
    Cell {
        model: model_from_hf(MODEL, "the model of this example").expect("a configuration as Hugging Face has it"),
        data: Data::Synthetic {},
        train: Train {
            seq_len: 4096,
            micro_batch,
            accumulation: 1,
            steps: 1,
            untimed_steps: 0,
            seed: 1,
            optimizer: Optimizer::AdamW,
            lr: 1e-3,
            betas: [0.9, 0.95],
            eps: 1e-8,
            weight_decay: 0.1,
            clip_norm: 1.0,
            lr_schedule: Schedule::Constant,
            lr_warmup_steps: 0,
            lr_min: 0.0,
            lr_steps: CourseSteps::FromOne,
            delayed_update: 0,
        },
        parallel: Parallel {
            ranks: 8,
            ranks_per_node: None,
            strategy: Strategy::Zero3,
            shard: 8,
            degrees: Degrees::default(),
            pipeline_split: Vec::new(),
            tensor_chunks: 1,
            prefetch: 1,
            bucket_mb: 0.0,
            backend: Backend::Local,
            stall: STALL,
        },
        precision: Precision::mixed(DType::Bf16),
        memory: Memory { checkpointing, capacity: Some(capacity), ..Memory::default() },
        lora: Lora::default(),
        hardware: Hardware::cpu(1),
        link: None,
        pace: None,
        read_ahead: READ_AHEAD,
        checkpoint: None,
        watch: None,
        priced: None,
    }
}

fn main() {
    let planner = Planner::default();
    // What a step makes again, in percent of the model's operations; nothing where it does not fit.
    let fits = |checkpointing: &Checkpointing, capacity: u64, micro_batch: usize| -> Option<f64> {
        let plan = planner.plan(&cell(checkpointing.clone(), capacity, micro_batch)).ok()?;
        let estimate = &plan.stage_plan_of(0).estimate;
        let again = estimate.flops.ledger.iter().filter(|(name, _)| name.starts_with("recompute"));
        let share = again.fold(0.0, |sum, (_, flops)| sum + flops) / estimate.flops.model;
        (estimate.memory().total_peak() <= capacity).then_some(100.0 * share)
    };
    println!("| capacity | evict | none | selective | full | sqrt |\n| --- | --- | --- | --- | --- | --- |");
    for gib in CAPACITIES_GIB {
        use Checkpointing::{Evict, Full, Selective, Sqrt};
        let policies = [Evict, Checkpointing::None, Selective, Full, Sqrt];
        let columns = policies.map(|policy| {
            let again = |micro_batch| fits(&policy, gib << 30, micro_batch);
            let here = again(MICRO_BATCH).map_or("-".into(), |share| format!("{share:.1} %"));
            let largest = (1..).map_while(|micro_batch| Some((micro_batch, again(micro_batch)?))).last();
            format!("{here}; {}", largest.map_or("0".into(), |(largest, share)| format!("{largest} ({share:.0} %)")))
        });
        println!("| {gib} GiB | {} |", columns.join(" | "));
    }
}
