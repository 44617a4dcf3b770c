//! A trace says what the report says: times, collectives, memory. And who traces trains as who does not.

use crate::training::accounting::small;
use crate::training::support::*;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use zbench_collectives::CollectiveKind;
use zbench_collectives::GroupName;
use zbench_engine::action::Action;
use zbench_engine::action::span::Span;
use zbench_engine::config::*;
use zbench_engine::observe::outcome::{Failure, Happening, Run};
use zbench_engine::observe::trace::{ClockOrigin, StepTrace, Tracing, What};
use zbench_engine::run::launch_ranks::train_on;
use zbench_engine::run::train_loop::Control;
use zbench_test_tiers as tiers;

fn traced(cell: &Cell, steps: u64) -> (Result<Run, Failure>, Vec<StepTrace>) {
    let traces = Mutex::new(Vec::new());
    let tell = |happening: &Happening| {
        if let Happening::Traced(traced) = happening {
            traces.lock().unwrap().push((**traced).clone());
        }
    };
    let trace = (steps > 0).then(|| Tracing { zero: ClockOrigin::now(), steps });
    let control = Control { stop: &AtomicBool::new(false), tell: &tell, trace, pace: None };
    let run = train_on(cell, &plan(cell), &machine, control);
    (run, traces.into_inner().unwrap())
}

fn cells() -> Vec<(&'static str, Cell)> {
    let mut accumulated = on(small(), Strategy::Zero2, 4, 4);
    accumulated.train.accumulation = 3;
    let mut recomputed = on(small(), Strategy::Fsdp, 2, 2);
    recomputed.memory.checkpointing = Checkpointing::Full;
    let mut evaluated = on(small(), Strategy::Zero3, 4, 4);
    evaluated.watch = Some(Watch {
        evaluation: Some(Evaluation { every: 2, batches: 2, share: 0.1 }),
        ..evaluated.watch.unwrap_or_default()
    });
    let mut cells = vec![
        ("one rank", on(small(), Strategy::Ddp, 1, 1)),
        ("zero3", on(small(), Strategy::Zero3, 4, 4)),
        ("hsdp", on(small(), Strategy::Hsdp, 4, 2)),
        ("accumulated", accumulated),
        ("recomputed", recomputed),
        ("evaluated", evaluated),
    ];
    for (_, cell) in &mut cells {
        (cell.train.untimed_steps, cell.train.steps) = (1, 3);
    }
    cells
}

fn close(a: f64, b: f64, what: &str) {
    assert!((a - b).abs() <= 1e-9 * b.abs() + 1e-9, "{what}: {a} and {b}");
}

#[test]
fn a_trace_says_what_the_report_says() {
    for (name, cell) in cells() {
        let (run, traces) = traced(&cell, u64::MAX);
        let run = run.unwrap();
        for rank in &run.ranks {
            let of_rank: Vec<&StepTrace> = traces.iter().filter(|trace| trace.rank == rank.rank).collect();
            let steps: Vec<&StepTrace> = of_rank.iter().copied().filter(|trace| trace.what == What::Step).collect();
            let numbers: Vec<(u64, bool)> = steps.iter().map(|trace| (trace.step, trace.timed)).collect();
            assert_eq!(numbers, [(1, false), (2, true), (3, true), (4, true)], "{name}");
            for trace in &of_rank {
                let mut at = trace.from;
                for segment in &trace.segments {
                    assert_eq!(segment.from, at, "{name}: segments follow each other");
                    at += segment.ns;
                }
                assert_eq!(at, trace.from + trace.ns, "{name}: and add up");
                for flight in &trace.flights {
                    let moments = [trace.from, flight.from, flight.begun, flight.until, at];
                    assert!(moments.is_sorted(), "{name}: {moments:?}");
                    assert!((flight.from..=flight.until).contains(&flight.awaited), "{name}");
                }
                assert!(trace.memory.is_sorted_by_key(|(at, ..)| *at), "{name}");
                assert!(trace.asked.is_empty() && !trace.broken, "{name}");
            }
            let timed: Vec<&&StepTrace> = steps.iter().filter(|trace| trace.timed).collect();
            let ms: Vec<f64> = timed.iter().map(|trace| trace.ns as f64 / 1e6).collect();
            assert_eq!(ms, rank.step_ms, "{name}");
            for span in Span::ALL {
                let segments = timed.iter().flat_map(|trace| &trace.segments).filter(|segment| segment.span == span);
                let sum: u64 = segments.map(|segment| segment.ns).sum();
                close(sum as f64 / 1e6 / 3.0, rank.spans_ms[span], &format!("{name}: {}", span.name()));
            }
            let mut flights: BTreeMap<(GroupName, CollectiveKind), (u64, u64, u64)> = BTreeMap::new();
            for flight in timed.iter().flat_map(|trace| &trace.flights) {
                let sums = flights.entry((flight.axis, flight.kind)).or_default();
                *sums = (sums.0 + 1, sums.1 + flight.wire_bytes, sums.2 + flight.until - flight.from);
            }
            assert_eq!(flights.len(), rank.traffic.len(), "{name}");
            for row in &rank.traffic {
                let (calls, wire, ns) = flights[&(row.axis, row.kind)];
                let what = format!("{name}: {:?} {:?}", row.axis, row.kind);
                close(calls as f64 / 3.0, row.calls, &what);
                close(wire as f64 / 3.0, row.wire_bytes, &what);
                close(ns as f64 / 1e6 / 3.0, row.ms, &what);
            }
            assert_eq!(peak(&of_rank), rank.memory().total_peak(), "{name}");
        }
    }
}

/// The most that was ever in use, by the changes that were told.
fn peak(traces: &[&StepTrace]) -> u64 {
    let (mut live, mut most) = ([0u64; 6], 0);
    for trace in traces {
        for (place, (_, category, bytes)) in trace.memory.iter().enumerate() {
            live[*category as usize] = *bytes;
            // A step begins with all of what is in use, category by category.
            if place >= 5 {
                most = most.max(live.iter().sum());
            }
        }
    }
    most
}

#[test]
fn every_action_of_the_plan_that_takes_time_is_there_in_its_order() {
    let (_, cell) = cells().swap_remove(3);
    let plan = plan(&cell);
    let (run, traces) = traced(&cell, 2);
    run.unwrap();
    assert_eq!(traces.len(), 8, "two steps of four ranks");
    let wanted: Vec<Action> = plan
        .stage_plan_of(0)
        .actions
        .iter()
        .copied()
        .filter(|action| !matches!(action, Action::Release { .. }))
        .collect();
    for trace in &traces {
        let mut found: Vec<Action> = trace.segments.iter().filter_map(|segment| segment.action).collect();
        found.dedup();
        let mut found = found.into_iter();
        let missing: Vec<&Action> = wanted.iter().filter(|action| found.next().as_ref() != Some(*action)).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}

#[test]
fn who_traces_trains_as_who_does_not() {
    for (name, cell) in tiers::some("training::trace::who_traces_trains_as_who_does_not", cells(), [3, 6]) {
        let bits = |run: &Run| -> Vec<(u64, u64)> {
            run.steps.iter().map(|step| (step.loss.to_bits(), step.grad_norm.to_bits())).collect()
        };
        let (plain, none) = traced(&cell, 0);
        let (seen, traces) = traced(&cell, 2);
        assert!(none.is_empty());
        assert!(traces.iter().all(|trace| trace.step <= 2), "{name}");
        let (plain, seen) = (plain.unwrap(), seen.unwrap());
        assert_eq!(bits(&plain), bits(&seen), "{name}");
        for (a, b) in plain.ranks.iter().zip(&seen.ranks) {
            assert_eq!(a.ledgers, b.ledgers, "{name}");
        }
    }
}

/// What a rank did until its step failed is told, too.
#[test]
fn a_step_that_fails_is_traced_until_then() {
    let mut cell = on(small(), Strategy::Zero3, 2, 2);
    cell.train.lr = 1e30;
    cell.train.steps = 20;
    let (run, traces) = traced(&cell, u64::MAX);
    assert!(run.is_err());
    for rank in 0..2 {
        let of_rank: Vec<&StepTrace> = traces.iter().filter(|trace| trace.rank == rank).collect();
        let last = of_rank.last().unwrap();
        assert!(last.broken && of_rank.iter().rev().skip(1).all(|trace| !trace.broken));
        assert!(last.segments.iter().any(|segment| segment.span == Span::ExposedAgree), "that is where it was seen");
    }
}

/// On a device the segments are by its own clock, and add up as well; beside them stands when the host asked.
#[test]
fn on_a_device_both_clocks_are_told() {
    let mut cell = on(small(), Strategy::Zero3, 2, 2);
    cell.hardware.device = DeviceKind::Cuda;
    cell.parallel.backend = Backend::Device;
    cell.train.steps = 2;
    let (run, traces) = traced(&cell, u64::MAX);
    let run = run.unwrap();
    assert!(!traces.is_empty());
    for trace in &traces {
        assert_eq!(trace.segments.iter().map(|segment| segment.ns).sum::<u64>(), trace.ns);
        assert!(!trace.asked.is_empty());
        let spans = |segments: &[zbench_engine::observe::trace::Segment]| -> Vec<Option<Action>> {
            let mut actions: Vec<_> = segments.iter().map(|s| s.action).filter(Option::is_some).collect();
            actions.dedup();
            actions
        };
        let asked = spans(&trace.asked);
        assert!(spans(&trace.segments).iter().all(|action| asked.contains(action)));
    }
    for rank in &run.ranks {
        let timed = traces.iter().filter(|trace| trace.rank == rank.rank && trace.timed);
        let ms: Vec<f64> = timed.map(|trace| trace.ns as f64 / 1e6).collect();
        assert_eq!(ms, rank.step_ms);
    }
}
