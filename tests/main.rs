//! Integration tests of the `zbench` command: one binary, a module per topic.

mod allreduce;
mod allreduce_processes;
mod bench;
mod browser;
mod calibrate;
mod ci_files;
mod ci_gate;
mod cli;
mod compare;
mod config;
mod durability;
mod engine;
mod environment;
mod gate;
mod grid;
mod launch;
mod launch_detect;
mod link;
mod netns;
mod notebook;
mod old_records;
mod portable;
mod precision;
mod report;
mod support;
