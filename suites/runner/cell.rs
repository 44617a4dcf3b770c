//! Inside a cell's process: reads the job, trains, says what was measured.

use super::machine;
use super::protocol::{self, End, Ended, Event, Job, RankEnd};
use std::io::{Read, Write};
use std::sync::Mutex;
use zbench_engine::outcome::{Cause, Failure};
use zbench_engine::plan::Plan;
use zbench_engine::train::train;
use zbench_kernels::{Cpu, peak};
use zbench_reports::record::{Source, Status};

/// Exit status of a cell's process that could not even begin.
const BROKEN: u8 = 70;

/// The whole life of a cell's process; its exit status.
pub fn main() -> u8 {
    let mut text = String::new();
    let job: Job = match std::io::stdin().read_to_string(&mut text).map_err(serde_json::Error::io) {
        Ok(_) => match serde_json::from_str(&text) {
            Ok(job) => job,
            Err(error) => return broken(&format!("the job cannot be read: {error}")),
        },
        Err(error) => return broken(&format!("the job cannot be read: {error}")),
    };
    if !die_with(job.parent) {
        return broken("the process that started this cell is gone");
    }
    let stdout = Mutex::new(std::io::stdout());
    let say = |event: &Event| {
        // A parent that does not listen any more has ended; the death signal ends this process too.
        if let (Ok(mut out), Ok(line)) = (stdout.lock(), serde_json::to_string(event)) {
            let _ = writeln!(out, "{line}").and_then(|()| out.flush());
        }
    };
    let end = run(&job, &say);
    say(&Event::End(Box::new(end)));
    0
}

fn broken(reason: &str) -> u8 {
    crate::say!("{reason}");
    BROKEN
}

/// Asks the system to end this process when its parent ends; false when that has happened already.
fn die_with(parent: u32) -> bool {
    use rustix::process::{Signal, getppid, set_parent_process_death_signal};
    let asked = set_parent_process_death_signal(Some(Signal::KILL)).is_ok();
    asked && getppid().is_some_and(|pid| pid.as_raw_nonzero().get() as u32 == parent)
}

fn run(job: &Job, say: &(dyn Fn(&Event) + Sync)) -> End {
    let cell = &job.cell;
    let plan = match Plan::new(cell, &Cpu::new(cell.hardware.threads_per_rank)) {
        Ok(plan) => plan,
        Err(error) => {
            let failure = Ended { status: Status::Failed, reason: error.to_string(), source: None };
            return End { failure: Some(failure), ..End::default() };
        }
    };
    let threads = cell.parallel.ranks.saturating_mul(cell.hardware.threads_per_rank).min(job.cores).max(1);
    let peak = || peak::measure(threads, cell.precision.compute, job.peak_seconds);
    let before = peak();
    let busy = machine::Busy::start();
    let result = train(cell, &plan, &|step| say(&Event::Step(protocol::step(step))));
    let others_share = busy.and_then(machine::Busy::others_share);
    let mut end = match result {
        Ok(run) => End {
            steps: run.steps.iter().map(protocol::step).collect(),
            kernels: run.kernels,
            ranks: run.ranks.iter().map(RankEnd::from).collect(),
            ..End::default()
        },
        Err(failure) => ended(&failure),
    };
    end.peak_flops = vec![before, peak()];
    end.peak_threads = threads;
    end.others_share = others_share;
    end.peak_rss_bytes = machine::status_bytes("VmHWM");
    end.swap_bytes = machine::status_bytes("VmSwap");
    end
}

fn ended(failure: &Failure) -> End {
    let (status, source) = match &failure.cause {
        Cause::OutOfMemory { .. } => (Status::OutOfMemory, Some(Source::Arena)),
        Cause::Diverged { .. } => (Status::Diverged, None),
        Cause::Failed { .. } => (Status::Failed, None),
    };
    let ranks = failure.ledgers.iter().enumerate().map(|(rank, ledger)| RankEnd::of_ledger(rank, ledger)).collect();
    let steps = failure.steps.iter().map(protocol::step).collect();
    End { failure: Some(Ended { status, reason: failure.cause.to_string(), source }), steps, ranks, ..End::default() }
}
