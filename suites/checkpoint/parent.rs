//! A trial from outside: a folder, a process of its own, a time limit. Whatever happens there, the folder goes.

use super::child::Report;
use super::{CheckpointCell, Job};
use crate::bench::{BenchError, BenchResult, BenchSpec, Limits, Scratch, process};
use std::path::Path;
use std::process::Command;
use zbench_host::logging::pass_on;
use zbench_host::machine;
use zbench_reports::record::{Source, Status};
use zbench_runner::child::died;
use zbench_runner::protocol::Ended;

/// Measures a cell. `folder` is used where the cell names none.
///
/// # Errors
/// The folder cannot be written, the process ended without a result, or what it says.
pub fn measure(cell: &CheckpointCell, limits: &Limits<'_>, folder: &Path) -> Result<BenchResult, BenchError> {
    let dir =
        cell.cell.checkpoint.as_deref().map(|saving| saving.dir.as_path()).filter(|dir| !dir.as_os_str().is_empty());
    let advice = "name another with checkpoint.dir or --dir";
    let scratch = Scratch::new(dir.unwrap_or(folder), advice).map_err(process::failed)?;
    let oom_kills = machine::oom_kills();
    let job = Job { cell: cell.plain(), folder: scratch.path().to_path_buf(), cores: machine::cores() };
    let cannot = |error: std::io::Error| process::failed(format!("the trial's process cannot be started: {error}"));
    let job = serde_json::to_vec(&job).map_err(|error| cannot(error.into()))?;
    let mut command = Command::new(std::env::current_exe().map_err(cannot)?);
    pass_on(&mut command).arg("__checkpoint");
    // The process has ended before its folder is removed.
    let parts = limits.parts.cloned();
    let result = move |line: &str| match serde_json::from_str(line).ok()? {
        Report::Part { what, done, all } => {
            parts.iter().for_each(|tell| tell(&what, done, all));
            None
        }
        report => Some(report),
    };
    let trial = process::run(&mut command, &job, limits, result)?;
    match trial.result {
        Some(Report::Measured(measured)) => Ok(super::resolve::result(cell, *measured)),
        Some(Report::Failed { reason, out_of_memory: true }) => {
            Err(Ended { status: Status::OutOfMemory, reason, source: Some(Source::Arena) }.into())
        }
        Some(Report::Failed { reason, .. }) => Err(process::failed(reason)),
        // A part is no result.
        Some(Report::Part { .. }) | None => Err(died(trial.status, oom_kills, &trial.tail).into()),
    }
}
