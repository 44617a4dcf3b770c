//! Whether the messages between the stages of a pipeline meet. Stages perform their lists message by message, without computing, and
//! all have to come to the end. Within a stage all ranks do the same in the same order, so their collectives meet.

use crate::action::stream::Stream;
use crate::action::{Action, EvaluationActions};
use crate::mesh::Axes;
use crate::plan::{Plan, PlanError, StagePlan};
use std::collections::VecDeque;

/// A send or a receive of a stage, between two virtual stages that follow each other or between the ends of the pipeline.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Message {
    /// Virtual stages.
    from: usize,
    to: usize,
    what: What,
    pub sends: bool,
}

/// What a message holds.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum What {
    /// A stream's values, or their gradient.
    Stream { micro: usize, stream: Stream, gradient: bool },
    /// The gradients of tied embeddings.
    Tied,
}

impl Message {
    /// The message of a stream that stage `stage` of `stages` sends or receives.
    pub fn of(action: &Action, [stage, stages]: [usize; 2]) -> Option<Message> {
        let (micro, chunk, stream, gradient, sends) = match *action {
            Action::Send { micro, chunk, stream, gradient } => (micro, chunk, stream, gradient, true),
            Action::Receive { micro, chunk, stream, gradient } => (micro, chunk, stream, gradient, false),
            _ => return None,
        };
        let own = chunk * stages + stage;
        // Values go on, gradients go back.
        let other = if sends == gradient { own.wrapping_sub(1) } else { own + 1 };
        let (from, to) = if sends { (own, other) } else { (other, own) };
        Some(Message { from, to, what: What::Stream { micro, stream, gradient }, sends })
    }

    /// What an end of the pipeline sends and what it receives in an exchange with the other end.
    pub fn exchanged(action: &Action, [stage, stages]: [usize; 2]) -> Option<[Message; 2]> {
        let Action::ReduceTied { .. } = action else { return None };
        let other = stages - 1 - stage;
        let of = |from, to, sends| Message { from, to, what: What::Tied, sends };
        Some([of(stage, other, true), of(other, stage, false)])
    }

    /// Messages of one number are sent one after the other.
    pub fn way(&self) -> usize {
        match self.what {
            What::Stream { gradient, .. } => usize::from(gradient),
            What::Tied => Message::WAYS,
        }
    }

    /// Ways of streams: forward and backward.
    pub const WAYS: usize = 2;

    /// What the other stage does.
    pub fn other(self) -> Message {
        Message { sends: !self.sends, ..self }
    }
}

/// A stage on its way through its messages.
#[derive(Default)]
struct Stage {
    messages: Vec<Message>,
    at: usize,
    /// Started and not received, the oldest first. At most one with values and one with gradients: the executor waits for the one
    /// before ([`crate::exec`]).
    sent: VecDeque<Message>,
}

impl Plan {
    /// Whether all messages between stages meet, in a step and in an evaluation.
    ///
    /// # Errors
    /// Two ranks that would wait for ever, with the calls in which they wait.
    pub fn check_messages(&self) -> Result<(), PlanError> {
        self.check_lists(|stage_plan| [&stage_plan.actions[..], &[], &[]])?;
        self.check_lists(|stage_plan| {
            let EvaluationActions { first, next, end } = &stage_plan.evaluation;
            [first, next, end]
        })
    }

    fn check_lists<'a>(&'a self, lists: impl Fn(&'a StagePlan) -> [&'a [Action]; 3]) -> Result<(), PlanError> {
        let count = self.stage_plans.len();
        let mut stages: Vec<Stage> = Vec::with_capacity(count);
        for (stage, stage_plan) in self.stage_plans.iter().enumerate() {
            let actions = lists(stage_plan).into_iter().flatten();
            let messages = actions.flat_map(|action| {
                let exchanged = Message::exchanged(action, [stage, count]).into_iter().flatten();
                Message::of(action, [stage, count]).into_iter().chain(exchanged)
            });
            let messages: Vec<Message> = messages.collect();
            let parts = count * stage_plan.layout.chunks.len();
            if let Some(lost) = messages.iter().find(|message| message.from.max(message.to) >= parts) {
                return Err(self.misfit(format!("{} and there is no such stage", self.waits(lost))));
            }
            stages.push(Stage { messages, ..Stage::default() });
        }
        while (0..count).any(|stage| advance(&mut stages, stage)) {}
        // A stage waits in its next message or, at the end, for one that it has sent.
        let next = |stage: usize| stages[stage].messages.get(stages[stage].at).copied();
        let call = |stage: usize| next(stage).or(stages[stage].sent.front().copied());
        let Some(call) = (0..count).find_map(call) else {
            return Ok(());
        };
        let other = if call.sends { call.to } else { call.from } % count;
        let theirs = match next(other) {
            Some(theirs) => self.waits(&theirs),
            None => format!("rank {} has come to the end of its step", self.rank(other)),
        };
        Err(self.misfit(format!("{}, and {theirs}: neither can go on", self.waits(&call))))
    }

    /// The first rank of a stage, or of the stage of a virtual one.
    pub fn rank(&self, stage: usize) -> usize {
        let stages = self.mesh.size(Axes::PIPELINE);
        stage % stages * (self.mesh.world() / stages)
    }

    fn waits(&self, message: &Message) -> String {
        let Message { from, to, what, sends } = *message;
        let what = match what {
            What::Tied => "the gradients of tied embeddings".to_string(),
            What::Stream { micro, stream, gradient } => {
                let kind = if gradient { "gradient" } else { "values" };
                let of = if stream == Stream::Encoder { " of the encoder" } else { "" };
                format!("the {kind}{of} of micro-batch {micro}")
            }
        };
        let (from, to) = (self.rank(from), self.rank(to));
        match sends {
            true => format!("rank {from} waits to send {what} to rank {to}"),
            false => format!("rank {to} waits to receive {what} from rank {from}"),
        }
    }

    fn misfit(&self, reason: String) -> PlanError {
        PlanError {
            key: "parallel.pipeline_schedule",
            reason: format!("makes stages wait for each other for ever: {reason}"),
        }
    }
}

/// Performs the next message of a stage, if it can be. Two ranks give each other messages in one order, whatever they are of.
fn advance(stages: &mut [Stage], stage: usize) -> bool {
    let count = stages.len();
    let Some(message) = stages[stage].messages.get(stages[stage].at).copied() else { return false };
    let sent = &mut stages[message.from % count].sent;
    if message.sends {
        // Before an exchange all messages are waited for.
        if sent.iter().any(|before| before.way() == message.way() || message.what == What::Tied) {
            return false;
        }
        sent.push_back(message);
    } else {
        // The oldest that goes to this stage.
        let oldest = sent.iter().position(|before| before.to % count == stage);
        let Some(oldest) = oldest.filter(|place| sent[*place] == message.other()) else { return false };
        sent.remove(oldest);
    }
    stages[stage].at += 1;
    true
}
