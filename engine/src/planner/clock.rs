//! The time of a step: the plan's actions walked with a clock in place of a device.
//!
//! On the CPU the cores that compute also move the bytes of collectives, so nothing overlaps and a step is the sum of what a rank
//! does: operations by measured curves, collectives by fits, and what is in neither (memory that is asked for, calls) by a
//! measured time per operation. Where threads outnumber cores they take turns: operations last as many times longer. A
//! fit was measured among so many ranks as it is for, so it holds their turns already.
//!
//! Moves between device and host are copies by the rank's thread. Transfers of a disk go on beside it, one after the other: what
//! is left of one when it is waited for is in the step.

use super::RecordedAction;
use super::curves::{COPY, Class, Curves, NoCurve};
use crate::actions::Action;
use crate::comm::{Collective, CollectiveKind};
use crate::moves::{Move, MoveEvent};
use crate::span::{BySpan, Span};
use std::borrow::Borrow;
use std::cell::Cell;
use std::collections::HashMap;
use zbench_kernels::DType;

/// What the clock asks of a machine.
pub trait Machine {
    /// Seconds of a collective between ranks that are there already; reductions are of `dtype`.
    ///
    /// # Errors
    /// What was not measured, in words.
    fn collective(&self, call: &Collective, dtype: DType) -> Result<f64, String>;

    /// The time of a transfer from a disk or to it, while all ranks of the host use the drive.
    ///
    /// # Errors
    /// What was not measured, in words.
    fn disk_move(&self, of: &Move) -> Result<DiskTime, String>;
}

/// What a transfer takes of a rank's share of a drive.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DiskTime {
    /// Seconds for which it keeps the rank's next one waiting.
    pub busy: f64,
    /// Seconds from its beginning to its end at least, where no other transfer is under way: requests that several transfers make at
    /// the same time overlap.
    pub alone: f64,
}

/// What was measured beside the operations themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Overheads {
    /// Seconds of an operation that are not in its kernel.
    pub operation: f64,
    /// Seconds to fetch a micro-batch's tokens.
    pub load: f64,
    /// Seconds of a step that are in no action.
    pub step: f64,
    /// Seconds by which a collective in a step lasts longer than one of many in a row: ranks come at different times, and
    /// who has slept must wake.
    pub call: f64,
    /// The same of an all-reduce, in which ranks meet once more between sum and copy.
    pub all_reduce: f64,
}

/// What a clock needs beside the actions.
#[derive(Clone, Copy)]
pub struct Clock<'a> {
    /// Times of operations, measured as the cell's ranks run.
    pub curves: &'a Curves,
    /// What was measured beside them.
    pub overheads: Overheads,
    /// Times of collectives.
    pub machine: &'a dyn Machine,
    /// Threads of all ranks on the machine for each core they may use, 1 at least.
    pub crowd: f64,
    /// Type in which gradients travel.
    pub reduce: DType,
    /// Factors on spans, from what was measured of runs; 1 unless corrected.
    pub corrections: BySpan<f64>,
}

/// Why there is no time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoTime {
    /// An operation was not measured.
    #[error(transparent)]
    Operation(#[from] NoCurve),
    /// A collective was not measured.
    #[error("{0}")]
    Collective(String),
    /// A transfer of a disk was not measured.
    #[error("{0}")]
    Disk(String),
}

/// The time of a step by span.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepTime {
    pub spans_ms: BySpan<f64>,
}

/// A stretch of a predicted step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stretch {
    /// In which action; none for what is in none.
    pub action: Option<Action>,
    /// Booked as.
    pub span: Span,
    pub ms: f64,
}

impl StepTime {
    /// The step: the sum of its spans.
    pub fn step_ms(&self) -> f64 {
        self.spans_ms.sum()
    }
}

/// Under which span an action's operations are booked, as the rank's meter does.
fn span(action: Action) -> Span {
    match action {
        Action::Load { .. } => Span::Data,
        Action::Gather { .. } => Span::ExposedGather,
        Action::Forward { .. } => Span::Forward,
        Action::Recompute { .. } => Span::Recompute,
        Action::Backward { .. } => Span::Backward,
        Action::Reduce { .. } => Span::ExposedReduce,
        Action::Update | Action::UpdateUnit { .. } => Span::Optimizer,
        Action::Fetch { .. }
        | Action::Store { .. }
        | Action::Settle { .. }
        | Action::StoreSaved { .. }
        | Action::SettleSaved { .. }
        | Action::FetchSaved { .. } => Span::Offload,
        Action::Receive { .. } | Action::Send { .. } => Span::ExposedPipeline,
        Action::Release { .. } | Action::Evict { .. } => Span::Other,
    }
}

/// The disk of a rank's host: transfers are done one after the other, in the order in which they begin.
#[derive(Default)]
struct Drive {
    /// When it has done all that it was given, in seconds of the step.
    free: f64,
    /// When each transfer ends that was not waited for.
    ends: HashMap<u64, f64>,
}

impl Drive {
    fn start(&mut self, transfer: u64, now: f64, time: DiskTime) {
        self.free = self.free.max(now) + time.busy;
        self.ends.insert(transfer, self.free.max(now + time.alone));
    }

    /// Seconds until a transfer ends that is waited for now.
    fn left(&mut self, transfer: u64, now: f64) -> f64 {
        self.ends.remove(&transfer).map_or(0.0, |end| (end - now).max(0.0))
    }
}

/// The term under which the norm's operations are recorded; the meter books them as agreeing.
const NORM: &str = "norm";

impl Clock<'_> {
    /// The time of a step.
    ///
    /// # Errors
    /// The first operation or collective that was not measured.
    pub fn time(&self, actions: impl IntoIterator<Item = impl Borrow<RecordedAction>>) -> Result<StepTime, NoTime> {
        let mut seconds = BySpan::all(0.0);
        self.walk(actions, &mut |_, span, time| seconds[span] += time)?;
        Ok(StepTime { spans_ms: BySpan::of(|span| seconds[span] * 1e3 * self.corrections[span]) })
    }

    /// The same one after the other: what a rank does when, as far as the clock knows. Stretches of an action under one span
    /// are one.
    ///
    /// # Errors
    /// As [`Clock::time`].
    pub fn timeline(
        &self,
        actions: impl IntoIterator<Item = impl Borrow<RecordedAction>>,
    ) -> Result<Vec<Stretch>, NoTime> {
        let mut line: Vec<Stretch> = Vec::new();
        self.walk(actions, &mut |action, span, seconds| {
            let ms = seconds * 1e3 * self.corrections[span];
            match line.last_mut() {
                Some(last) if last.action == action && last.span == span => last.ms += ms,
                _ => line.push(Stretch { action, span, ms }),
            }
        })?;
        Ok(line)
    }

    /// Tells the seconds of everything that a step consists of, in its order, before corrections.
    fn walk(
        &self,
        actions: impl IntoIterator<Item = impl Borrow<RecordedAction>>,
        tell: &mut dyn FnMut(Option<Action>, Span, f64),
    ) -> Result<(), NoTime> {
        // Blocks and micro-batches repeat each other: most operations were seen before.
        let mut known: HashMap<(String, Vec<u64>), f64> = HashMap::new();
        let (now, mut drive) = (Cell::new(0.0), Drive::default());
        let mut tell = |action, span, seconds: f64| {
            now.set(now.get() + seconds);
            tell(action, span, seconds);
        };
        tell(None, Span::Other, self.crowd * self.overheads.step);
        for recorded in actions {
            let recorded = recorded.borrow();
            let (action, place) = (Some(recorded.action), span(recorded.action));
            for event in &recorded.moves {
                let seconds = match event {
                    MoveEvent::Copy(of) => {
                        let copy = self.crowd * self.curves.seconds_of_bytes(COPY, of.bytes)?;
                        copy + self.crowd * self.overheads.operation
                    }
                    MoveEvent::Start { transfer, of } => {
                        drive.start(*transfer, now.get(), self.machine.disk_move(of).map_err(NoTime::Disk)?);
                        self.crowd * self.overheads.operation
                    }
                    MoveEvent::Wait { transfer } => drive.left(*transfer, now.get()),
                };
                tell(action, Span::Offload, seconds);
            }
            if place == Span::Data {
                tell(action, place, self.crowd * self.overheads.load);
            }
            for operation in &recorded.operations {
                let agrees = recorded.action == Action::Update && operation.term == NORM;
                let place = if agrees { Span::ExposedAgree } else { place };
                let class = Class::of(&operation.op);
                let key = (class.name, class.sizes.iter().map(|size| size.to_bits()).collect());
                let time = match known.get(&key) {
                    Some(time) => *time,
                    None => *known.entry(key).or_insert(self.curves.seconds(&operation.op)?),
                };
                tell(action, place, self.crowd * (time + self.overheads.operation));
            }
            for call in &recorded.collectives {
                let place = if recorded.action == Action::Update { Span::ExposedAgree } else { place };
                let time = self.machine.collective(call, self.reduce).map_err(NoTime::Collective)?;
                let waits = match call.kind {
                    _ if call.ranks == 1 => 0.0,
                    CollectiveKind::AllReduce => self.overheads.all_reduce,
                    _ => self.overheads.call,
                };
                tell(action, place, time + waits);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
