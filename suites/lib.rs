//! The `zbench` command: configurations become grids of cells, a runner runs each cell in a child process and appends
//! its record to the notebook, and reports are made of records. The main path is [`cli`] to [`commands`] to [`runner`]
//! to `zbench_engine::train`.

/// Says something on stderr. A stderr that is closed or full is no reason to end: what is measured matters more.
#[macro_export]
macro_rules! say {
    ($($text:tt)*) => {{
        $crate::cli::look::say(format!($($text)*));
    }};
}

pub mod allreduce;
pub mod bench;
pub mod calibrate;
pub mod checkpoint;
pub mod cli;
pub mod commands;
pub mod config;
pub mod devices;
pub mod environment;
pub mod foreign;
pub mod gate;
pub mod grid;
pub mod launch;
pub mod limits;
pub mod plan;
pub mod png;
pub mod proxy;
pub mod runner;
#[cfg(test)]
#[path = "../tests/scope.rs"]
mod scope;
pub mod trace;
pub mod turns;
