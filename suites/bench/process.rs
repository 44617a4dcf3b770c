//! A trial in a process of its own, watched until it has a result, has ended, or must end.

use super::{BenchError, Limits};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;
use zbench_kernels::threads::spawn;
use zbench_kernels::threads::spawn::not_started;
use zbench_reports::record::Status;
use zbench_runner::processes::tail_of;
use zbench_runner::protocol::Ended;

/// How often the time limit and Ctrl-C are checked.
const TICK: Duration = Duration::from_millis(20);

/// What came of a trial's process.
pub struct TrialProcess<T> {
    /// The first line of its output that is a result.
    pub result: Option<T>,
    /// How the process ended; by SIGKILL where it had a result and lived on.
    pub status: ExitStatus,
    /// The end of its standard error.
    pub tail: String,
}

/// A failed trial with this reason.
pub fn failed(reason: String) -> BenchError {
    Ended { status: Status::Failed, reason, source: None }.into()
}

/// Runs `command`, with `input` as its standard input, until `parse` takes a line of its output as the result, or it has ended. It
/// is never left running.
///
/// # Errors
/// The process cannot be started or watched, the time limit has passed, or the user stopped the measurement.
pub fn run<T: Send + 'static>(
    command: &mut Command,
    input: &[u8],
    limits: &Limits<'_>,
    parse: impl FnMut(&str) -> Option<T> + Send + 'static,
) -> Result<TrialProcess<T>, BenchError> {
    // A group of its own, so that Ctrl-C reaches this process alone, which then decides. It ends when this process does.
    let mut child = command
        .env("ZBENCH_PARENT", std::process::id().to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(|error| failed(format!("the trial's process cannot be started: {}", not_started(error))))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A child that dies before it has read its input shows in its exit status.
        let _ = stdin.write_all(input);
    }
    let streams = tail_of(child.stderr.take()).and_then(|tail| Ok((tail, results_of(child.stdout.take(), parse)?)));
    let watched = match &streams {
        Ok((_, results)) => watch(&mut child, results, limits),
        Err(error) => Err(failed(format!("the trial's output cannot be read: {error}"))),
    };
    // A result counts although its process may hang. Killing fails only when it has ended already.
    let _ = child.kill();
    let status = child.wait().map_err(lost)?;
    let tail = streams.map(|(tail, _)| tail.join().unwrap_or_default()).unwrap_or_default();
    Ok(TrialProcess { result: watched?, status, tail })
}

fn lost(error: std::io::Error) -> BenchError {
    failed(format!("the trial's process was lost: {error}"))
}

/// Waits for the result; `None` where the process ended without one.
fn watch<T>(child: &mut Child, results: &Receiver<T>, limits: &Limits<'_>) -> Result<Option<T>, BenchError> {
    loop {
        limits.check()?;
        match results.recv_timeout(TICK) {
            Ok(result) => return Ok(Some(result)),
            Err(RecvTimeoutError::Timeout) => {}
            // Its output has ended, and it may still live.
            Err(RecvTimeoutError::Disconnected) => match child.try_wait().map_err(lost)? {
                Some(_) => return Ok(None),
                None => std::thread::sleep(TICK),
            },
        }
    }
}

/// Reads lines on a thread to their end; those that are no result are passed over.
fn results_of<T: Send + 'static>(
    stdout: Option<impl Read + Send + 'static>,
    mut parse: impl FnMut(&str) -> Option<T> + Send + 'static,
) -> std::io::Result<Receiver<T>> {
    let (sender, receiver) = channel();
    spawn::start("trial's lines", move || {
        let lines = stdout.into_iter().flat_map(|stdout| BufReader::new(stdout).lines().map_while(Result::ok));
        for result in lines.filter_map(|line| parse(&line)) {
            if sender.send(result).is_err() {
                return;
            }
        }
    })?;
    Ok(receiver)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::Stopped;
    use std::sync::atomic::AtomicBool;
    use std::time::Instant;

    fn shell(script: &str, limit: Duration) -> Result<TrialProcess<u32>, BenchError> {
        let stop = AtomicBool::new(false);
        let limits = Limits { stop: &stop, deadline: Instant::now() + limit, parts: None };
        run(Command::new("sh").args(["-c", script]), b"5\n", &limits, |line| line.parse().ok())
    }

    #[test]
    fn a_process_that_hangs_after_its_result_or_without_one_is_ended() {
        let start = Instant::now();
        let hangs = shell("echo words; read number; echo $number; exec sleep 600", Duration::from_secs(60)).unwrap();
        assert_eq!(hangs.result, Some(5));
        for script in ["exec sleep 600", "exec >&-; exec sleep 600"] {
            let late = shell(script, Duration::from_millis(200));
            assert!(matches!(late, Err(BenchError::Stopped(Stopped::TimedOut))), "{script}");
        }
        assert!(start.elapsed() < Duration::from_secs(60));
    }

    #[test]
    fn a_process_without_a_result_leaves_its_status_and_its_last_words() {
        let ended = shell("echo words; echo why >&2; exit 3", Duration::from_secs(60)).unwrap();
        assert_eq!((ended.result, ended.status.code(), ended.tail.as_str()), (None, Some(3), "why"));
    }
}
