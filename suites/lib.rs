//! The `zbench` command: configurations become grids of cells, a runner runs each cell in a child process and appends
//! its record to the notebook, and reports are made of records. The main path is [`cli`] to [`commands`] to [`runner`]
//! to `zbench_engine::train`.

pub mod cli;
pub mod commands;
pub mod config;
pub mod grid;
pub mod proxy;
pub mod runner;
