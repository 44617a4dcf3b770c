//! The stages of a pipeline, each with a clock of its own that messages and the agreement of the update hold back. A plan without a pipeline
//! is one stage, which waits for nobody.
//!
//! A message begins when its sender comes to it. Its bytes are moved by the receiver when both have come, so a receiver waits for the sender
//! and then pays for the message. A sender goes on, and waits for its message before when it sends the next one the same way.

use super::{Class, Clock, Drive, NORM, NoTime, is_message};
use crate::action::Action;
use crate::action::span::Span;
use crate::compute::recorder::{Overlap, Recorded};
use crate::memory::moves::MoveEvent;
use crate::planner::RecordedAction;
use crate::planner::deadlock::Message;
use std::borrow::Borrow;
use std::collections::{HashMap, VecDeque};
use zbench_collectives::GroupName;
use zbench_collectives::{Collective, CollectiveKind};

/// Who is told what a stage spends time on: the stage, the action, and seconds before corrections.
pub type Tell<'t> = &'t mut dyn FnMut(usize, Option<Action>, Span, f64);

/// What a stage did between its first forward and its last backward, in seconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Window {
    first: Option<f64>,
    last: f64,
    /// In forward, backward and recomputation, with what their layers wait for tensor ranks.
    pub busy: f64,
}

impl Window {
    pub fn seconds(&self) -> f64 {
        (self.last - self.first.unwrap_or(self.last)).max(0.0)
    }
}

/// A stage on its way through its step.
struct Stage<I: Iterator> {
    actions: I,
    /// Where it waits for another stage.
    current: Option<I::Item>,
    /// Seconds since the step began.
    now: f64,
    /// The same before corrections.
    uncorrected: f64,
    drive: Drive,
    /// The last message each way.
    sent: [Option<Message>; Message::WAYS],
    /// It has come to the agreement.
    has_met: bool,
    window: Window,
}

/// When a message was sent, or received.
#[derive(Clone, Copy)]
enum Moment {
    Sent(f64),
    Received(f64),
}

/// Under which span an action's collectives are booked: those of layers apart from what layers compute.
fn of_collectives(action: Action) -> Span {
    match action.span() {
        _ if action == Action::Update => Span::ExposedAgree,
        Span::Forward | Span::Backward | Span::Recompute => Span::ExposedTensor,
        other => other,
    }
}

const UNLISTED: &str = "a collective that was started is not listed; this is a bug";

/// The stages of a step.
pub struct Stages<'c, 't, I: Iterator> {
    clock: &'c Clock<'c>,
    tell: Tell<'t>,
    stages: Vec<Stage<I>>,
    messages: HashMap<Message, Moment>,
    /// Stages that have come to the agreement, and when the last of them did.
    met: (usize, f64),
    /// Blocks and micro-batches repeat each other: most operations were seen before.
    known: HashMap<(String, Vec<u64>), f64>,
}

impl<'c, 't, I> Stages<'c, 't, I>
where
    I: Iterator<Item: Borrow<RecordedAction>>,
{
    pub fn new(clock: &'c Clock<'c>, stages: impl IntoIterator<Item = I>, tell: Tell<'t>) -> Stages<'c, 't, I> {
        let stage = |actions| Stage {
            actions,
            current: None,
            now: 0.0,
            uncorrected: 0.0,
            drive: Drive::default(),
            sent: [None; Message::WAYS],
            has_met: false,
            window: Window::default(),
        };
        let stages = stages.into_iter().map(stage).collect();
        Stages { clock, tell, stages, messages: HashMap::new(), met: (0, 0.0), known: HashMap::new() }
    }

    /// Performs all stages to their ends.
    ///
    /// # Errors
    /// The first operation, collective or move that was not measured.
    pub fn run(mut self) -> Result<Vec<Window>, NoTime> {
        for at in 0..self.stages.len() {
            self.spend(at, None, Span::Other, self.clock.crowd * self.clock.overheads.step);
        }
        loop {
            let mut goes_on = false;
            for at in 0..self.stages.len() {
                goes_on |= self.advance(at)?;
            }
            if !goes_on {
                break;
            }
        }
        match self.stages.iter().any(|stage| stage.current.is_some()) {
            // [`crate::plan::Plan::check_messages`] has refused such plans.
            true => Err(NoTime::Collective("the stages' messages do not meet; this is a bug".into())),
            false => Ok(self.stages.into_iter().map(|stage| stage.window).collect()),
        }
    }

    /// Performs a stage's actions as far as no other stage is waited for: whether it has come further.
    fn advance(&mut self, at: usize) -> Result<bool, NoTime> {
        let mut goes_on = false;
        loop {
            let stage = &mut self.stages[at];
            let Some(action) = stage.current.take().or_else(|| stage.actions.next()) else { return Ok(goes_on) };
            let had_met = stage.has_met;
            let is_done = self.act(at, action.borrow())?;
            goes_on |= is_done || had_met != self.stages[at].has_met;
            if !is_done {
                self.stages[at].current = Some(action);
                return Ok(goes_on);
            }
        }
    }

    /// Performs an action, or comes as far as it can without another stage: whether it is done.
    fn act(&mut self, at: usize, recorded: &RecordedAction) -> Result<bool, NoTime> {
        let action = recorded.action;
        if let Some([own, theirs]) = Message::exchanged(&action, [at, self.stages.len()]) {
            if !self.messages.contains_key(&own) {
                if !self.wait_for_sent(at, action, 0..Message::WAYS) {
                    return Ok(false);
                }
                self.messages.insert(own, Moment::Sent(self.stages[at].now));
            }
            let Some(Moment::Sent(sent)) = self.messages.get(&theirs.other()).copied() else { return Ok(false) };
            self.wait(at, action, Span::ExposedPipeline, sent);
            self.perform(at, recorded)?;
            return Ok(true);
        }
        match Message::of(&action, [at, self.stages.len()]) {
            Some(message) if message.sends => {
                let way = message.way();
                if !self.wait_for_sent(at, action, way..way + 1) {
                    return Ok(false);
                }
                self.stages[at].sent[way] = Some(message);
                self.perform(at, recorded)?;
                self.messages.insert(message, Moment::Sent(self.stages[at].now));
            }
            Some(message) => {
                let message = message.other();
                let Some(Moment::Sent(sent)) = self.messages.get(&message).copied() else { return Ok(false) };
                self.wait(at, action, Span::ExposedPipeline, sent);
                self.perform(at, recorded)?;
                self.messages.insert(message, Moment::Received(self.stages[at].now));
            }
            None if action == Action::Update => return self.update(at, recorded),
            None => self.perform(at, recorded)?,
        }
        Ok(true)
    }

    /// The update: its norm, the agreement for which all stages meet, and the rest.
    fn update(&mut self, at: usize, recorded: &RecordedAction) -> Result<bool, NoTime> {
        let of_norm = recorded.operations.iter().take_while(|operation| operation.term == NORM).count();
        let (norm, rest) = recorded.operations.split_at(of_norm);
        if !self.stages[at].has_met {
            if !self.wait_for_sent(at, recorded.action, 0..Message::WAYS) {
                return Ok(false);
            }
            self.moves(at, recorded)?;
            self.operations(at, recorded.action, norm)?;
            self.stages[at].has_met = true;
            self.met = (self.met.0 + 1, self.met.1.max(self.stages[at].now));
        }
        if self.met.0 < self.stages.len() {
            return Ok(false);
        }
        self.wait(at, recorded.action, Span::ExposedAgree, self.met.1);
        self.operations(at, recorded.action, rest)?;
        self.collectives(at, recorded)?;
        Ok(true)
    }

    /// Waits for the messages before, these ways: whether all have been received.
    fn wait_for_sent(&mut self, at: usize, action: Action, ways: std::ops::Range<usize>) -> bool {
        for way in ways {
            match self.stages[at].sent[way].map(|message| self.messages.get(&message).copied()) {
                None => {}
                Some(Some(Moment::Received(received))) => self.wait(at, action, Span::ExposedPipeline, received),
                Some(_) => return false,
            }
        }
        true
    }

    fn perform(&mut self, at: usize, recorded: &RecordedAction) -> Result<(), NoTime> {
        self.moves(at, recorded)?;
        let (action, begun) = (recorded.action, self.stages[at].now);
        if action.span() == Span::Data {
            self.spend(at, Some(action), Span::Data, self.clock.crowd * self.clock.overheads.load);
        }
        self.overlapped(at, recorded)?;
        self.collectives(at, recorded)?;
        self.wait(at, action, action.span(), begun + recorded.least);
        Ok(())
    }

    /// An action's operations, and the collectives that travel beside them one after the other: of each, what is left when it is waited for.
    fn overlapped(&mut self, at: usize, recorded: &RecordedAction) -> Result<(), NoTime> {
        let (action, span) = (recorded.action, of_collectives(recorded.action));
        let mut started = recorded.collectives.iter().filter(|call| call.is_started);
        let (mut done, mut free, mut ends) = (0, 0.0f64, VecDeque::new());
        for (behind, overlap) in &recorded.overlaps {
            self.operations(at, action, &recorded.operations[done..*behind])?;
            done = *behind;
            match overlap {
                Overlap::Starts => {
                    let call = started.next().ok_or_else(|| NoTime::Collective(UNLISTED.into()))?;
                    free = free.max(self.stages[at].now) + self.seconds(call)? * self.clock.corrections[span];
                    ends.push_back(free);
                }
                Overlap::Waits => ends.pop_front().into_iter().for_each(|end| self.wait(at, action, span, end)),
            }
        }
        self.operations(at, action, &recorded.operations[done..])
    }

    fn moves(&mut self, at: usize, recorded: &RecordedAction) -> Result<(), NoTime> {
        let Clock { crowd, overheads, curves, machine, .. } = *self.clock;
        for event in &recorded.moves {
            let Stage { drive, uncorrected, .. } = &mut self.stages[at];
            let seconds = match event {
                MoveEvent::Copy(of) => {
                    let copy = crowd * curves.seconds_of_bytes(super::COPY, of.bytes)?;
                    copy + crowd * overheads.operation
                }
                MoveEvent::Start { transfer, of } => {
                    drive.start(*transfer, *uncorrected, machine.disk_move(of).map_err(NoTime::Disk)?);
                    crowd * overheads.operation
                }
                MoveEvent::Wait { transfer } => drive.left(*transfer, *uncorrected),
            };
            self.spend(at, Some(recorded.action), Span::Offload, seconds);
        }
        Ok(())
    }

    fn operations(&mut self, at: usize, action: Action, operations: &[Recorded]) -> Result<(), NoTime> {
        let Clock { crowd, overheads, curves, .. } = *self.clock;
        for operation in operations {
            let agrees = action == Action::Update && operation.term == NORM;
            let span = if agrees { Span::ExposedAgree } else { action.span() };
            let class = Class::of(&operation.op);
            let key = (class.name, class.sizes.iter().map(|size| size.to_bits()).collect());
            let time = match self.known.get(&key) {
                Some(time) => *time,
                None => *self.known.entry(key).or_insert(curves.seconds(&operation.op)?),
            };
            self.spend(at, Some(action), span, crowd * (time + overheads.operation));
        }
        Ok(())
    }

    fn collectives(&mut self, at: usize, recorded: &RecordedAction) -> Result<(), NoTime> {
        // The receiver moves a message. What has travelled beside operations is over.
        let is_over = |call: &Collective| call.is_started && !recorded.overlaps.is_empty();
        let blocking = |call: &&Collective| call.kind != CollectiveKind::Send && !is_over(call);
        for call in recorded.collectives.iter().filter(blocking) {
            let seconds = self.seconds(call)?;
            self.spend(at, Some(recorded.action), of_collectives(recorded.action), seconds);
        }
        Ok(())
    }

    /// Of a collective, from when its rank calls it.
    fn seconds(&self, call: &Collective) -> Result<f64, NoTime> {
        let Clock { overheads, machine, reduce, .. } = *self.clock;
        let time = machine.collective(call, reduce).map_err(NoTime::Collective)?;
        let waits = match call.kind {
            _ if call.ranks == 1 || is_message(call.kind) => 0.0,
            _ if call.axis == GroupName::Tensor => overheads.tensor,
            CollectiveKind::AllReduce => overheads.all_reduce,
            _ => overheads.call,
        };
        Ok(time + waits)
    }

    /// Waits until a moment of the step.
    fn wait(&mut self, at: usize, action: Action, span: Span, until: f64) {
        let left = until - self.stages[at].now;
        if left > 0.0 {
            // A wait is what it is: no correction lengthens it.
            self.spend(at, Some(action), span, left / self.clock.corrections[span]);
            self.stages[at].now = until;
        }
    }

    fn spend(&mut self, at: usize, action: Option<Action>, span: Span, seconds: f64) {
        let Stage { now, uncorrected, window, .. } = &mut self.stages[at];
        let corrected = seconds * self.clock.corrections[span];
        if span == Span::Forward {
            window.first.get_or_insert(*now);
        }
        *now += corrected;
        *uncorrected += seconds;
        if span == Span::Backward {
            window.last = *now;
        }
        if span.is_work() {
            window.busy += corrected;
        }
        (self.tell)(at, action, span, seconds);
    }
}
