//! Whole training steps: `cargo bench -p zbench-engine`.
//!
//! llama-tiny and llama-32m, sequence 512, micro-batch 4, on one rank with all cores; f32 and bf16-mixed. Reported as tokens
//! per second. `-- llama-tiny/f32` chooses.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use std::time::{Duration, Instant};
use zbench_engine::config::*;
use zbench_engine::formats::hf;
use zbench_engine::plan::Plan;
use zbench_engine::run::launch_ranks::{kernels, with_ranks};
use zbench_kernels::DType;

fn cell(preset: &str, precision: Precision) -> Cell {
    let text = hf::preset(preset).expect("a preset of ours");
    let partial: hf::PartialModel = toml::from_str(text).expect("presets parse");
    let model = partial.resolve(preset).expect("presets resolve");
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    Cell {
        model,
        data: Data::Synthetic {},
        train: Train {
            seq_len: 512,
            micro_batch: 4,
            accumulation: 1,
            steps: 1,
            untimed_steps: 0,
            seed: 1,
            optimizer: Optimizer::AdamW,
            lr: 1e-4,
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
            ranks: 1,
            ranks_per_node: None,
            strategy: Strategy::Ddp,
            shard: 1,
            degrees: zbench_engine::config::Degrees::default(),
            pipeline_split: Vec::new(),
            tensor_chunks: 1,
            prefetch: 1,
            bucket_mb: BUCKET_MB,
            backend: Backend::Local,
            stall: Duration::from_secs(60),
        },
        precision,
        memory: Memory::default(),
        lora: Lora { rank: 0, alpha: 16.0, dropout: 0.0, ..Lora::default() },
        hardware: Hardware::cpu(threads),
        link: None,
        pace: None,
        read_ahead: zbench_engine::config::READ_AHEAD,
        checkpoint: None,
        watch: None,
        priced: None,
    }
}

fn steps(c: &mut Criterion) {
    for preset in ["llama-tiny", "llama-32m"] {
        let mut group = c.benchmark_group(preset);
        group.sample_size(10).throughput(Throughput::Elements(4 * 512));
        for (name, precision) in [("f32", Precision::F32), ("bf16-mixed", Precision::mixed(DType::Bf16))] {
            let cell = cell(preset, precision);
            group.bench_function(name, |b| b.iter_custom(|iterations| time(&cell, iterations)));
        }
        group.finish();
    }
}

/// The time of so many steps after the first; what they spent it on goes to standard error.
fn time(cell: &Cell, iterations: u64) -> Duration {
    let kernels = kernels(cell, &zbench_engine::compute::hardware::no_machines).expect("a CPU");
    let plan = Plan::new(cell, &*kernels[0]).expect("a plan");
    let ran = with_ranks(cell, &plan, kernels, |rank| {
        rank.step()?;
        let start = Instant::now();
        for _ in 0..iterations {
            rank.step()?;
        }
        Ok((start.elapsed(), rank.report()))
    });
    let (elapsed, report) = ran.expect("a run").remove(0);
    for (span, ms) in report.spans_ms.iter() {
        eprintln!("    {:15} {ms:8.1} ms", span.name());
    }
    elapsed
}

criterion_group!(benches, steps);
criterion_main!(benches);
