//! A trial from outside: a folder, a process of its own, a time limit. Whatever happens there, the folder goes.

use super::child::Said;
use super::{CheckpointCell, Job};
use crate::bench::{BenchError, BenchResult, Limits, Scratch, Stopped};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;
use zbench_engine::threads::{self, not_started};
use zbench_host::logging::pass_on;
use zbench_host::machine;
use zbench_reports::record::{Source, Status};
use zbench_runner::child::died;
use zbench_runner::processes::tail_of;
use zbench_runner::protocol::Ended;

/// How often the time limit and the wish to stop are looked at.
const TICK: Duration = Duration::from_millis(50);

/// Measures a cell. `folder` is used where the cell names none.
///
/// # Errors
/// The folder cannot be written, the process ended without a result, or what it says.
pub fn measure(cell: &CheckpointCell, limits: &Limits<'_>, folder: &Path) -> Result<BenchResult, BenchError> {
    let dir =
        cell.cell.checkpoint.as_deref().map(|saving| saving.dir.as_path()).filter(|dir| !dir.as_os_str().is_empty());
    let broken = |reason: String| Ended { status: Status::Failed, reason, source: None };
    let scratch = Scratch::new(dir.unwrap_or(folder), "name another with checkpoint.dir or --dir").map_err(broken)?;
    let oom_kills = machine::oom_kills();
    let job = Job { cell: cell.plain(), folder: scratch.path().to_path_buf(), cores: machine::cores() };
    let cannot = |error| broken(format!("the trial's process cannot be started: {}", not_started(error)));
    let mut child = start(&job).map_err(cannot)?;
    let heard = tail_of(child.stderr.take()).and_then(|tail| Ok((tail, lines_of(&mut child)?)));
    let (tail, lines) = match heard {
        Ok(heard) => heard,
        Err(error) => {
            let _ = child.kill();
            let _ = child.wait();
            return Err(broken(format!("what the trial says cannot be heard: {error}")).into());
        }
    };
    let heard = listen(&lines, limits);
    // Killing fails only when it has ended already. It has ended before its folder is removed.
    if heard.is_err() {
        let _ = child.kill();
    }
    let status = child.wait().map_err(|error| broken(format!("the trial's process was lost: {error}")))?;
    let tail = tail.join().unwrap_or_default();
    let said = heard?.and_then(|line| serde_json::from_str(&line).ok());
    match said {
        Some(Said::Measured(measured)) => Ok(super::resolve::result(cell, *measured)),
        Some(Said::Failed { reason, out_of_memory: true }) => {
            Err(Ended { status: Status::OutOfMemory, reason, source: Some(Source::Arena) }.into())
        }
        Some(Said::Failed { reason, .. }) => Err(broken(reason).into()),
        None => Err(died(status, oom_kills, &tail).into()),
    }
}

fn start(job: &Job) -> std::io::Result<Child> {
    let program = std::env::current_exe()?;
    let job = serde_json::to_vec(job)?;
    // A group of its own, so that Ctrl-C reaches this process alone, which then decides.
    let mut child = pass_on(&mut Command::new(program))
        .arg("__checkpoint")
        .env("ZBENCH_PARENT", std::process::id().to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        // A child that dies before it has read its job shows in its exit status.
        let _ = stdin.write_all(&job);
    }
    Ok(child)
}

fn lines_of(child: &mut Child) -> std::io::Result<Receiver<String>> {
    let (sender, receiver) = channel();
    let stdout = child.stdout.take();
    threads::start("trial's lines", move || {
        let Some(stdout) = stdout else { return };
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    })?;
    Ok(receiver)
}

/// Its line; nothing where it ended without one.
fn listen(lines: &Receiver<String>, limits: &Limits<'_>) -> Result<Option<String>, Stopped> {
    loop {
        limits.check()?;
        match lines.recv_timeout(TICK) {
            Ok(line) => return Ok(Some(line)),
            Err(RecvTimeoutError::Disconnected) => return Ok(None),
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}
