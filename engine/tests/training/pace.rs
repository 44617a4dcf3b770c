//! Runs that take turns: what is trained does not depend on it, and steps behind the last are for their times alone.

use crate::training::accounting::small;
use crate::training::support::*;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use zbench_engine::compute::hardware::no_machines;
use zbench_engine::config::*;
use zbench_engine::observe::outcome::{Run, Step};
use zbench_engine::run::launch_ranks::train_on;
use zbench_engine::run::train_loop::{Control, Pace};

/// Lets every rank run so many steps.
struct Count {
    left: Vec<Mutex<usize>>,
    ended: Mutex<Vec<(usize, u64)>>,
}

impl Count {
    fn new(ranks: usize, steps: usize) -> Count {
        Count { left: (0..ranks).map(|_| Mutex::new(steps)).collect(), ended: Mutex::default() }
    }
}

impl Pace for Count {
    fn may_begin(&self, rank: usize) -> bool {
        let mut left = self.left[rank].lock().unwrap();
        let may = *left > 0;
        *left = left.saturating_sub(1);
        may
    }

    fn ended(&self, rank: usize, step: &Step) {
        assert!(step.ms > 0.0 && step.tokens > 0);
        self.ended.lock().unwrap().push((rank, step.step));
    }

    fn abandon(&self) {}
}

fn paced(cell: &Cell, steps: usize) -> (Run, Vec<(usize, u64)>) {
    let pace = Count::new(cell.parallel.ranks, steps);
    let control = Control { stop: &AtomicBool::new(false), tell: &|_| {}, trace: None, pace: Some(&pace) };
    let run = train_on(cell, &plan(cell), &no_machines, control).unwrap_or_else(|failure| panic!("{}", failure.cause));
    (run, pace.ended.into_inner().unwrap())
}

#[test]
fn a_run_that_takes_turns_reports_its_own_steps_and_trains_on() {
    for (strategy, ranks) in [(Strategy::Ddp, 1), (Strategy::Ddp, 2), (Strategy::Zero3, 2)] {
        let cell = on(small(), strategy, ranks, 1);
        let last = cell.train.untimed_steps + cell.train.steps;
        let control = Control { stop: &AtomicBool::new(false), tell: &|_| {}, trace: None, pace: None };
        let plain =
            train_on(&cell, &plan(&cell), &no_machines, control).unwrap_or_else(|failure| panic!("{}", failure.cause));
        let (longer, ended) = paced(&cell, last + 5);
        // To the bit, and no byte, call or step more.
        let figures = |run: &Run| {
            let steps: Vec<_> =
                run.steps.iter().map(|s| (s.step, s.timed, s.loss.to_bits(), s.grad_norm.to_bits())).collect();
            let ranks: Vec<_> = run
                .ranks
                .iter()
                .map(|rank| {
                    let traffic: Vec<_> =
                        rank.traffic.iter().map(|t| (t.axis, t.kind, t.calls, t.wire_bytes)).collect();
                    (rank.step_ms.len(), rank.memory().total_peak(), traffic, rank.stopped)
                })
                .collect();
            (steps, ranks)
        };
        assert_eq!(figures(&plain), figures(&longer), "{strategy:?} on {ranks}");
        for rank in 0..ranks {
            let steps: Vec<u64> = ended.iter().filter(|(of, _)| *of == rank).map(|(_, step)| *step).collect();
            assert_eq!(steps, (1..=(last + 5) as u64).collect::<Vec<u64>>());
        }
    }
}

#[test]
fn a_run_that_gets_no_more_turns_ends_before_its_last_step() {
    let cell = on(small(), Strategy::Zero2, 2, 1);
    let (run, ended) = paced(&cell, 1);
    assert_eq!((run.steps.len(), ended.len()), (1, 2));
    assert!(run.ranks.iter().all(|rank| rank.stopped));
}
