//! Integration tests of the `zbench` command: one binary, a module per topic.

mod cli;
mod config;
mod engine;
mod grid;
mod launch;
mod launch_detect;
mod netns;
mod notebook;
mod support;
