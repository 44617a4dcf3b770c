//! Tests of the `zbench` program that start it as a process. `cargo test --test program`; `.ci/run` runs them in the tier `ci`.
//! A witness for each property is in tests/main.rs, which `cargo test` runs.

mod advise;
mod allreduce;
mod allreduce_device;
mod allreduce_processes;
mod bench;
mod book;
mod bounded;
mod browser;
mod calibrate;
mod checkpoint;
mod ci_gate;
mod claims;
mod cli;
mod collectives_grid;
mod compare;
mod containers;
mod cuda;
mod documents;
mod durability;
mod engine;
mod escapes;
mod gate;
#[path = "../gate_bench.rs"]
mod gate_bench;
mod gate_self_test;
mod gpu_check;
mod hardware;
mod hostile;
mod io;
mod labels;
mod launch;
#[path = "../launched.rs"]
mod launched;
mod launchers;
mod limits;
mod link;
mod loading;
mod logging;
mod manners;
mod netns;
mod nodes;
mod offload;
mod offload_times;
mod old_records;
mod pace;
mod peers;
mod perfetto;
mod plan;
mod portable;
mod precision;
mod release;
mod report;
mod rule;
mod screens;
#[path = "../support.rs"]
mod support;
mod survival;
#[path = "../timeline.rs"]
mod timeline;
mod trace;
mod trainer;
mod turns;
mod turns_resumed;
mod validate;
mod ways;
