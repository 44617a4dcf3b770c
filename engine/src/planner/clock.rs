//! The time of a step: the plan's actions walked with a clock in place of a device.
//!
//! On the CPU the cores that compute also move the bytes of collectives, so nothing overlaps and a step is the sum of what a rank
//! does: operations by measured curves, collectives by fits, and what is in neither (memory that is asked for, calls) by a
//! measured time per operation. Where threads outnumber cores they take turns: operations last as many times longer. A
//! fit was measured among so many ranks as it is for, so it holds their turns already.
//!
//! Moves between device and host are copies by the rank's thread. Transfers of a disk go on beside it, one after the other: what
//! is left of one when it is waited for is in the step. Stages of a pipeline wait for each other ([`stages`]).

mod stages;

use super::RecordedAction;
use super::curves::{COPY, Class, Curves, NoCurve};
use crate::action::Action;
use crate::action::span::{BySpan, Span};
use crate::memory::moves::Move;
use crate::observe::outcome::PipelineTime;
use stages::{Stages, Tell, Window};
use std::borrow::Borrow;
use std::collections::HashMap;
use zbench_collectives::{Collective, CollectiveKind};
use zbench_kernels::DType;

/// What the clock asks of a machine.
pub trait Machine {
    /// Seconds of a collective between ranks that are there already; reductions are of `dtype`. Of a message
    /// ([`CollectiveKind::Recv`]) likewise.
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
    /// The same of a collective of tensor ranks. Layers wait for one after the other, so ranks are never far apart.
    pub tensor: f64,
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
    /// Where there are stages.
    pub pipeline: Option<PipelineTime>,
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

/// Whether a call is a message from one rank to another.
pub fn is_message(kind: CollectiveKind) -> bool {
    matches!(kind, CollectiveKind::Send | CollectiveKind::Recv | CollectiveKind::SendRecv)
}

impl Clock<'_> {
    /// The time of a step, of the actions of one rank of each stage. The spans are those of the stage whose step is the longest, as records
    /// have those of the slowest rank.
    ///
    /// # Errors
    /// The first operation or collective that was not measured.
    pub fn time<I>(&self, stages: impl IntoIterator<Item = I>) -> Result<StepTime, NoTime>
    where
        I: IntoIterator<Item: Borrow<RecordedAction>>,
    {
        let mut seconds: Vec<BySpan<f64>> = Vec::new();
        let windows = self.walk(stages, &mut |stage, _, span, time| {
            seconds.resize(seconds.len().max(stage + 1), BySpan::all(0.0));
            seconds[stage][span] += time;
        })?;
        let of_stage = |seconds: BySpan<f64>| BySpan::of(|span| seconds[span] * 1e3 * self.corrections[span]);
        let longest = seconds.into_iter().map(of_stage).max_by(|a, b| a.sum().total_cmp(&b.sum()));
        let pipeline = windows.iter().map(|window| [window.seconds() * 1e3, window.busy * 1e3]);
        let pipeline = if windows.len() > 1 { PipelineTime::of(pipeline) } else { None };
        Ok(StepTime { spans_ms: longest.unwrap_or_default(), pipeline })
    }

    /// The same one after the other, for each stage: what a rank does when, as far as the clock knows. Stretches of an action under one
    /// span are one.
    ///
    /// # Errors
    /// As [`Clock::time`].
    pub fn timelines<I>(&self, stages: impl IntoIterator<Item = I>) -> Result<Vec<Vec<Stretch>>, NoTime>
    where
        I: IntoIterator<Item: Borrow<RecordedAction>>,
    {
        let mut lines: Vec<Vec<Stretch>> = Vec::new();
        self.walk(stages, &mut |stage, action, span, seconds| {
            lines.resize(lines.len().max(stage + 1), Vec::new());
            let ms = seconds * 1e3 * self.corrections[span];
            match lines[stage].last_mut() {
                Some(last) if last.action == action && last.span == span => last.ms += ms,
                _ => lines[stage].push(Stretch { action, span, ms }),
            }
        })?;
        Ok(lines)
    }

    fn walk<I>(&self, stages: impl IntoIterator<Item = I>, tell: Tell<'_>) -> Result<Vec<Window>, NoTime>
    where
        I: IntoIterator<Item: Borrow<RecordedAction>>,
    {
        Stages::new(self, stages.into_iter().map(I::into_iter), tell).run()
    }
}

#[cfg(test)]
mod tests;
