//! Reads a model that Hugging Face's transformers wrote, trains it for some steps on a file of tokens, and writes it so that
//! transformers opens it. tests/interop/families.py drives it.
//!
//!     cargo run --release -p zbench-engine --features examples --example export -- MODEL TOKENS u16|u32 SEQ STEPS OUT SHARD_BYTES
//!
//! Prints the loss of the step after the last one, taken with the weights that were written.

use std::error::Error;
use zbench_engine::checkpoint::save::SaveOptions;
use zbench_engine::compute::error::StepError;
use zbench_engine::config::*;
use zbench_engine::formats::hf;
use zbench_engine::plan::Plan;
use zbench_engine::run::launch_ranks as train;
use zbench_engine::run::launch_ranks::with_ranks;
use zbench_kernels::{Cpu, DType};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [model, tokens, dtype, seq, steps, out, shard_bytes] = args.as_slice() else {
        return Err("usage: export MODEL TOKENS u16|u32 SEQ STEPS OUT SHARD_BYTES".into());
    };
    let file = std::path::Path::new(model).join("config.json");
    let text = std::fs::read_to_string(&file)?;
    let described = hf::model_from_hf(&text, &file.display().to_string())?;
    let dtype = if dtype == "u16" { TokenType::U16 } else { TokenType::U32 };
    let steps: usize = steps.parse()?;
    let cell = cell(
        Model { weights: Some(model.into()), ..described },
        Data::Tokens { path: tokens.into(), dtype, shuffle: false },
        seq.parse()?,
        steps,
    );
    let plan = Plan::new(&cell, &Cpu::new(1))?;
    let options = SaveOptions { dtype: DType::F32, shard_bytes: shard_bytes.parse()? };
    let ran =
        with_ranks(&cell, &plan, train::kernels(&cell, &zbench_engine::compute::hardware::no_machines)?, |rank| {
            for _ in 0..steps {
                rank.step()?;
            }
            let saved = rank.save_model(out.as_ref(), options);
            saved.map_err(|error| StepError::Input(error.to_string()))?;
            rank.step()
        });
    let after = ran.map_err(|failure| failure.cause.to_string())?;
    println!("{}", after[0].loss);
    Ok(())
}

/// Two ranks under ZeRO-3, two sequences each: what is written has been gathered.
fn cell(model: Model, data: Data, seq_len: usize, steps: usize) -> Cell {
    Cell {
        model,
        data,
        train: Train {
            seq_len,
            micro_batch: 2,
            accumulation: 1,
            steps: steps + 1,
            untimed_steps: 0,
            seed: 1,
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
            ranks: 2,
            ranks_per_node: None,
            strategy: Strategy::Zero3,
            shard: 2,
            degrees: zbench_engine::config::Degrees::default(),
            pipeline_split: Vec::new(),
            tensor_chunks: 1,
            prefetch: 1,
            bucket_mb: BUCKET_MB,
            backend: Backend::Local,
            stall: STALL,
        },
        precision: Precision::F32,
        memory: Memory::default(),
        lora: Lora { rank: 0, alpha: 1.0, dropout: 0.0, ..Lora::default() },
        hardware: Hardware::cpu(1),
        link: None,
        pace: None,
        read_ahead: zbench_engine::config::READ_AHEAD,
        checkpoint: None,
        watch: None,
        priced: None,
    }
}
