//! Trains adapters on a model that Hugging Face's transformers wrote, on a file of tokens (u16), and writes them so that PEFT
//! opens them, and the model with them merged so that transformers does. tests/interop/adapters.py drives it.
//!
//!     cargo run -p zbench-engine --features examples --example adapters -- MODEL ADAPTERS TOKENS SEQ STEPS OUT MERGED
//!
//! ADAPTERS is a folder that PEFT wrote, or the section `lora` of a cell as JSON. Prints the loss of the step after the last
//! one, taken with the weights that were written.

use std::error::Error;
use zbench_engine::checkpoint::save::SaveOptions;
use zbench_engine::compute::error::StepError;
use zbench_engine::config::*;
use zbench_engine::formats::{hf, peft};
use zbench_engine::plan::Plan;
use zbench_engine::run::launch_ranks as train;
use zbench_engine::run::launch_ranks::with_ranks;
use zbench_kernels::Cpu;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [model, adapters, tokens, seq, steps, out, merged] = args.as_slice() else {
        return Err("usage: adapters MODEL ADAPTERS TOKENS SEQ STEPS OUT MERGED".into());
    };
    let file = std::path::Path::new(model).join("config.json");
    let described = hf::model_from_hf(&std::fs::read_to_string(&file)?, &file.display().to_string())?;
    let lora = if adapters.starts_with('{') {
        serde_json::from_str(adapters)?
    } else {
        peft::read_config(adapters.as_ref(), &described)?
    };
    let steps: usize = steps.parse()?;
    let model = Model { weights: Some(model.into()), ..described };
    let data = Data::Tokens { path: tokens.into(), dtype: TokenType::U16, shuffle: false };
    let cell = Cell { lora, ..cell(model, data, seq.parse()?, steps) };
    let plan = Plan::new(&cell, &Cpu::new(1))?;
    let ran =
        with_ranks(&cell, &plan, train::kernels(&cell, &zbench_engine::compute::hardware::no_machines)?, |rank| {
            for _ in 0..steps {
                rank.step()?;
            }
            let saved = rank.save_adapters(out.as_ref());
            let saved = saved.and_then(|()| rank.save_merged(merged.as_ref(), SaveOptions::default()));
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
            lr: 1e-2,
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
        lora: Lora::default(),
        hardware: Hardware::cpu(1),
        link: None,
        pace: None,
        read_ahead: zbench_engine::config::READ_AHEAD,
        checkpoint: None,
        watch: None,
        priced: None,
    }
}
