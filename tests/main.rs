//! Integration tests of the `zbench` command: one binary, a module per topic.

mod allreduce;
mod allreduce_processes;
mod bench;
mod browser;
mod calibrate;
mod ci_files;
mod ci_gate;
mod claims;
mod cli;
mod compare;
mod config;
mod durability;
mod engine;
mod environment;
mod gate;
mod grid;
mod hardware;
mod launch;
mod launch_detect;
mod link;
mod netns;
mod notebook;
mod old_records;
mod peers;
<<<<<<< HEAD
mod plan;
=======
mod planner;
>>>>>>> h-fast
mod portable;
mod precision;
mod report;
mod support;
