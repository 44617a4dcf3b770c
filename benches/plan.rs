//! Planning: `cargo bench --bench plan`.
//!
//! `cells` is the plan of data-parallel cells of a model of 32 blocks, `commands` the whole way of `zbench plan` from a
//! configuration's text to rows, both in cells per second; `search` is a whole `plan --search` of a 70B model on 512 GPUs. `stages` is
//! the dry executor's plan of a 70B model on 16,384 GPUs in 4 stages.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use std::path::Path;
use zbench_config::files::Files;
use zbench_config::grid::{self, GridCell};
use zbench_config::{Context, Document};
use zbench_engine::plan::Plan;
use zbench_engine::planner::Planner;
use zbench_predict::planned;
use zbench_predict::search::{Wanted, search};

const GRID: &str = r#"
[model]
preset = "llama2-7b"
[train]
seq_len = 2048
[parallel]
ranks = 64
ranks_per_node = 8
[hardware]
profile = "h100-sxm"
[memory]
capacity = "8000GiB"
[grid]
"parallel.strategy" = ["ddp", "zero1", "zero2", "zero3", "fsdp"]
"train.micro_batch" = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20]
"memory.checkpointing" = ["full", "none", "selective"]
"#;

const SEARCH: &str = r#"
[model]
preset = "llama3-70b"
[train]
seq_len = 8192
global_batch = 512
[parallel]
ranks = 512
ranks_per_node = 8
[precision]
preset = "bf16-mixed"
[hardware]
profile = "h100-sxm"
"#;

const STAGES: &str = r#"
[model]
preset = "llama3-70b"
[train]
seq_len = 8192
accumulation = 32
[parallel]
ranks = 16384
ranks_per_node = 8
strategy = "zero1"
tensor = 8
pipeline = 4
[precision]
preset = "bf16-mixed"
[memory]
checkpointing = "selective"
[hardware]
profile = "h100-sxm"
"#;

fn expanded(text: &str) -> Vec<GridCell> {
    let document = Document::parse(Path::new("bench.toml"), text, &[]).expect("a configuration");
    let context = Context::new(document.folder().to_path_buf(), 1);
    grid::expand(&document, &[], 1000, &context, &mut Files::default()).expect("a grid")
}

fn planning(c: &mut Criterion) {
    let cells = expanded(GRID);
    let mut group = c.benchmark_group("plan");
    group.sample_size(10).throughput(Throughput::Elements(cells.len() as u64));
    group.bench_function("cells", |b| {
        b.iter(|| {
            let planner = Planner::default();
            for cell in &cells {
                let cell = &cell.resolved.as_ref().expect("a cell").cell;
                black_box(planned::estimate(&planner, cell).expect("an estimate"));
            }
        });
    });
    group.bench_function("commands", |b| {
        b.iter(|| {
            let planner = Planner::default();
            let rows = expanded(GRID).into_iter().map(|cell| planned::plan(&planner, cell, None).row());
            rows.for_each(|row| drop(black_box(serde_json::to_string(&row).expect("a row"))));
        });
    });
    group.finish();
    let cells = expanded(SEARCH);
    let resolved = cells[0].resolved.as_ref().expect("a cell");
    let mut group = c.benchmark_group("plan");
    group.sample_size(10);
    group.bench_function("search", |b| {
        b.iter(|| {
            black_box(search(&Planner::default(), resolved, "", &Wanted::default()).expect("a machine and a capacity"))
        });
    });
    let cells = expanded(STAGES);
    let cell = &cells[0].resolved.as_ref().expect("a cell").cell;
    let kernels = Planner::default().kernels_here(cell);
    group.bench_function("stages", |b| {
        b.iter(|| black_box(Plan::unrunnable(cell, &*kernels).expect("a plan")));
    });
    group.finish();
}

criterion_group!(benches, planning);
criterion_main!(benches);
