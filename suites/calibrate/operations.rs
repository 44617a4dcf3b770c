//! What operations take where they are really called: small training cells ([`probes`]) run in this process with a
//! stopwatch in front of the kernels. So every operation has the buffers, caches and neighbours that it has in training,
//! and what is in no operation is what remains of the step.

use super::probes::Probe;
use super::replay;
use crate::bench::Limits;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use zbench_collectives::GroupName;
use zbench_collectives::{Collective, CollectiveKind};
use zbench_config::profile::operations::{Operations, RankLayout};
use zbench_engine::action::Action;
use zbench_engine::action::span::Span;
use zbench_engine::compute::hardware;
use zbench_engine::compute::recorder::Recorded;
use zbench_engine::config::Cell;
use zbench_engine::memory::moves::{Move, MoveEvent};
use zbench_engine::observe::outcome::{BySpan, RankReport};
use zbench_engine::plan::Plan;
use zbench_engine::planner::RecordedAction;
use zbench_engine::planner::clock::{Clock, DiskTime, Machine, Overheads};
use zbench_engine::planner::curves::{COPY, Class, Curves, Point};
use zbench_engine::run::launch_ranks::{kernels, slowest, with_ranks};
use zbench_kernels::{DType, Kernels, Op, Stopwatch, Timed, TimedCopy};
use zbench_reports::stats;

/// Why operations were not measured.
#[derive(Debug, thiserror::Error)]
pub enum OperationsError {
    /// Somebody wants it to end.
    #[error("stopped")]
    Stopped,
    /// A probe could not run.
    #[error("the probe \"{probe}\" with {layout} did not run: {reason}")]
    Probe {
        /// Which.
        probe: String,
        /// With which ranks and threads.
        layout: RankLayout,
        /// Why.
        reason: String,
    },
}

/// Operations of the same class and sizes are timed together.
type Key = (String, Vec<u64>);

fn key(op: &Op) -> Key {
    let class = Class::of(op);
    (class.name, class.sizes.iter().map(|size| *size as u64).collect())
}

/// The samples of one rank layout.
#[derive(Default)]
struct Samples {
    /// One time per round.
    operations: BTreeMap<Key, Vec<f64>>,
    beside: Vec<Overheads>,
    split: Vec<SplitStep>,
}

/// Blocks of the probes in which waiting is measured; the others have fewer.
const WAITING_BLOCKS: usize = 4;

/// A step of a probe with many collectives.
struct SplitStep {
    stated: Vec<RecordedAction>,
    reduce: DType,
    /// Seconds of the shortest step.
    step: f64,
    /// Seconds of its collectives alone.
    alone: f64,
}

/// Measures all probes in rounds, each of which goes over all of them with every rank layout.
///
/// # Errors
/// As [`OperationsError`] says.
pub fn measure(
    rank_layouts: &[(RankLayout, Vec<Probe>)],
    rounds: usize,
    cores: usize,
    limits: &Limits<'_>,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Vec<Operations>, OperationsError> {
    let mut all: Vec<Samples> = rank_layouts.iter().map(|_| Samples::default()).collect();
    let runs = rounds * rank_layouts.iter().map(|(_, probes)| probes.len()).sum::<usize>();
    let mut done = 0;
    for _ in 0..rounds {
        for ((layout, probes), samples) in rank_layouts.iter().zip(&mut all) {
            let mut round: BTreeMap<Key, Vec<f64>> = BTreeMap::new();
            for probe in probes {
                let failed = |reason| OperationsError::Probe { probe: probe.label.clone(), layout: *layout, reason };
                let run = run(&probe.cell).map_err(failed)?;
                samples.beside.extend(run.beside);
                samples.split.extend(run.split);
                for timed in run.timed {
                    round.entry(key(&timed.op)).or_default().push(timed.ns as f64 * 1e-9);
                }
                for copy in run.copies {
                    round.entry((COPY.into(), vec![copy.bytes])).or_default().push(copy.ns as f64 * 1e-9);
                }
                done += 1;
                progress(done, runs);
                limits.check().map_err(|_| OperationsError::Stopped)?;
            }
            for (class, times) in round {
                samples.operations.entry(class).or_default().push(middle(times));
            }
        }
    }
    let mut measured: Vec<Operations> =
        rank_layouts.iter().zip(&all).map(|((layout, _), samples)| summarize(*layout, samples)).collect();
    complete(&mut measured);
    for (of, samples) in measured.iter_mut().zip(&all) {
        of.overheads.call = waiting(of, &samples.split, cores, Calls::Others);
        of.overheads.all_reduce = waiting(of, &samples.split, cores, Calls::AllReduces).max(of.overheads.call);
        of.overheads.tensor = waiting(of, &samples.split, cores, Calls::OfTensorRanks);
    }
    Ok(measured)
}

/// Collectives that cost nothing.
struct Free;

impl Machine for Free {
    fn collective(&self, _: &Collective, _: DType) -> Result<f64, String> {
        Ok(0.0)
    }

    fn disk_move(&self, _: &Move) -> Result<DiskTime, String> {
        Ok(DiskTime::default())
    }
}

/// Collectives whose waits are measured together.
#[derive(Clone, Copy, PartialEq)]
enum Calls {
    /// Of data ranks, but all-reduces.
    Others,
    /// All-reduces of data ranks.
    AllReduces,
    /// Of tensor ranks.
    OfTensorRanks,
}

/// What remains of a step, for each collective, when its operations and its collectives alone are taken away: of all-reduces
/// from steps that have them (and whose others are known), or of the others from steps that have none; of those of tensor ranks from
/// steps in which all ranks are tensor ranks.
fn waiting(of: &Operations, split: &[SplitStep], cores: usize, which: Calls) -> f64 {
    let crowd = ((of.layout.ranks * of.layout.threads) as f64 / cores.max(1) as f64).max(1.0);
    let one = |split: &SplitStep| {
        let (curves, overheads, reduce) = (&of.curves, of.overheads, split.reduce);
        let bare = Overheads { call: 0.0, all_reduce: 0.0, tensor: 0.0, ..overheads };
        let clock = Clock { curves, overheads: bare, machine: &Free, crowd, reduce, corrections: BySpan::all(1.0) };
        let computes = clock.time([&split.stated]).ok()?.step_ms() * 1e-3;
        let calls = || split.stated.iter().flat_map(|stated| &stated.collectives).filter(|call| call.ranks > 1);
        let sums = calls().filter(|call| call.kind == CollectiveKind::AllReduce).count();
        let others = calls().count() - sums;
        let left = split.step - computes - split.alone;
        let of_tensor_ranks = calls().any(|call| call.axis == GroupName::Tensor);
        match (which, sums, others) {
            (Calls::OfTensorRanks, ..) if of_tensor_ranks => Some(left / (sums + others) as f64),
            (Calls::AllReduces, 1.., _) if !of_tensor_ranks => {
                Some((left - others as f64 * overheads.call) / sums as f64)
            }
            (Calls::Others, 0, 1..) if !of_tensor_ranks => Some(left / others as f64),
            _ => None,
        }
    };
    // Whatever else a machine did made ranks wait longer: the least is theirs.
    split.iter().filter_map(one).min_by(f64::total_cmp).unwrap_or(0.0).max(0.0)
}

/// The mean of the middle half: neither a first call nor one that another process interrupted.
fn middle(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    let cut = times.len() / 4;
    let kept = &times[cut..times.len() - cut];
    kept.iter().sum::<f64>() / kept.len() as f64
}

fn summarize(layout: RankLayout, samples: &Samples) -> Operations {
    let mut curves = Curves::default();
    let mut spreads = Vec::new();
    for ((class, sizes), rounds) in &samples.operations {
        let Some(seconds) = stats::median(rounds) else { continue };
        let (low, high) = rounds.iter().fold((f64::MAX, 0.0f64), |(low, high), t| (low.min(*t), high.max(*t)));
        spreads.push((high - low) / seconds);
        curves.add(class, Point { sizes: sizes.iter().map(|size| *size as f64).collect(), seconds });
    }
    let beside = |of: fn(&Overheads) -> f64| {
        stats::median(&samples.beside.iter().map(of).collect::<Vec<_>>()).unwrap_or(0.0).max(0.0)
    };
    let operation = beside(|o| o.operation);
    let overheads = Overheads { operation, load: beside(|o| o.load), step: beside(|o| o.step), ..Overheads::default() };
    Operations { layout, curves, overheads, spread: stats::median(&spreads).unwrap_or(0.0) }
}

/// Crowded layouts measure only small operations, since a long one is interrupted, and count their own waiting as time beside
/// operations. Both are taken from the layout with a core for each thread.
fn complete(measured: &mut [Operations]) {
    for index in 0..measured.len() {
        let RankLayout { threads, crowded, .. } = measured[index].layout;
        let fits = |other: &&Operations| other.layout.threads == threads && !other.layout.crowded;
        let Some(other) = measured.iter().find(fits).filter(|_| crowded).cloned() else { continue };
        let own = &mut measured[index];
        own.overheads = other.overheads;
        let product = |point: &Point| point.sizes.iter().product::<f64>();
        for (class, points) in other.curves.classes() {
            let ours = own.curves.classes().find(|(name, _)| *name == class).map(|(_, points)| points);
            let largest = ours.into_iter().flatten().map(product).fold(0.0, f64::max);
            let beyond: Vec<Point> = points.iter().filter(|point| product(point) > 1.5 * largest).cloned().collect();
            beyond.into_iter().for_each(|point| own.curves.add(class, point));
        }
    }
}

/// What one run of a probe gave.
struct Run {
    timed: Vec<Timed>,
    /// Moves between device and host.
    copies: Vec<TimedCopy>,
    /// By rank.
    beside: Vec<Overheads>,
    split: Option<SplitStep>,
}

fn run(cell: &Cell) -> Result<Run, String> {
    let planner = hardware::planner(cell).map_err(|error| error.to_string())?;
    let plan = Plan::new(cell, &*planner).map_err(|error| error.to_string())?;
    let inner = kernels(cell, &zbench_host::devices::machine).map_err(|error| error.to_string())?;
    let watches: Vec<Arc<Stopwatch>> = inner.into_iter().map(|kernels| Arc::new(Stopwatch::new(kernels))).collect();
    let shown = watches.iter().map(|watch| watch.clone() as Arc<dyn Kernels>).collect();
    let ran = with_ranks(cell, &plan, shown, |rank| {
        for step in 0..cell.train.untimed_steps + cell.train.steps {
            if step == cell.train.untimed_steps {
                watches[rank.number()].take();
                watches[rank.number()].take_copies();
            }
            rank.step()?;
        }
        Ok((rank.report(), watches[rank.number()].take()))
    });
    let ran = ran.map_err(|failure| failure.cause.to_string())?;
    let stated: Vec<RecordedAction> = plan.recorded_actions(cell, &*planner, 0).collect();
    let copies = copies(&stated, watches.iter().flat_map(|watch| watch.take_copies()));
    let beside = |(report, timed): &(RankReport, Vec<Timed>)| {
        let stated: Vec<RecordedAction> = plan.recorded_actions(cell, &*planner, report.rank).collect();
        let layers = stated.iter().filter(|stated| {
            matches!(
                stated.action,
                Action::Forward { .. }
                    | Action::Backward { .. }
                    | Action::BackwardInput { .. }
                    | Action::BackwardWeight { .. }
                    | Action::Recompute { .. }
            )
        });
        let operations: Vec<&Recorded> = layers.flat_map(|stated| &stated.operations).collect();
        beside(cell, &operations, report, timed)
    };
    let beside = ran.iter().map(beside).collect();
    // The probes that are there for it: long enough that a step's waits are many, small enough that they show.
    let is_one_group = [1, cell.parallel.ranks].contains(&cell.parallel.degrees.tensor);
    let splits = cell.model.num_hidden_layers == WAITING_BLOCKS && cell.parallel.ranks > 1 && is_one_group;
    let split = splits.then(|| split_step(cell, stated, &ran)).transpose()?;
    Ok(Run { split, timed: ran.into_iter().flat_map(|(_, timed)| timed).collect(), copies, beside })
}

/// The copies that are moves of a step, by their sizes; the others are those of tokens and of what ranks agree on.
fn copies(stated: &[RecordedAction], timed: impl Iterator<Item = TimedCopy>) -> Vec<TimedCopy> {
    let size = |event: &MoveEvent| match event {
        MoveEvent::Copy(of) => Some(of.bytes),
        MoveEvent::Start { .. } | MoveEvent::Wait { .. } => None,
    };
    let sizes: BTreeSet<u64> = stated.iter().flat_map(|stated| &stated.moves).filter_map(size).collect();
    timed.filter(|copy| sizes.contains(&copy.bytes)).collect()
}

fn split_step(cell: &Cell, stated: Vec<RecordedAction>, ran: &[(RankReport, Vec<Timed>)]) -> Result<SplitStep, String> {
    // A rank alone sends nothing.
    let between = |call: &&Collective| call.ranks > 1;
    let calls: Vec<Collective> = stated.iter().flat_map(|of| of.collectives.iter().filter(between).copied()).collect();
    let steps = slowest(ran.iter().map(|(report, _)| &report.step_ms[..]));
    let step = steps.into_iter().min_by(f64::total_cmp).unwrap_or(0.0) * 1e-3;
    Ok(SplitStep { stated, reduce: cell.precision.reduce, step, alone: replay::seconds(cell, &calls)? })
}

/// What remains of the spans of layers when the times of their operations are taken away, for each of them.
fn beside(cell: &Cell, operations: &[&Recorded], report: &RankReport, timed: &[Timed]) -> Overheads {
    let ms = |span: Span| report.spans_ms[span];
    let spans = 1e-3 * (ms(Span::Forward) + ms(Span::Backward) + ms(Span::Recompute));
    // A run's operations are the stated ones: by class and sizes, whatever their order.
    let mut of_class: BTreeMap<Key, (f64, f64)> = BTreeMap::new();
    for timed in timed {
        let sum = of_class.entry(key(&timed.op)).or_default();
        *sum = (sum.0 + timed.ns as f64 * 1e-9, sum.1 + 1.0);
    }
    let mean = |stated: &&Recorded| of_class.get(&key(&stated.op)).map_or(0.0, |(sum, count)| sum / count);
    let known: f64 = operations.iter().map(mean).sum();
    Overheads {
        operation: (spans - known) / operations.len().max(1) as f64,
        load: 1e-3 * ms(Span::Data) / cell.train.accumulation as f64,
        step: 1e-3 * ms(Span::Other),
        ..Overheads::default()
    }
}

#[cfg(test)]
#[path = "operations/tests.rs"]
mod tests;
