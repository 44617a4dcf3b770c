//! Integration tests of the `zbench` command: one binary, a module per topic.

mod allreduce;
mod allreduce_processes;
mod cli;
mod config;
mod engine;
mod gate;
mod grid;
mod launch;
mod launch_detect;
mod link;
mod netns;
mod notebook;
mod support;
