//! Whether the messages between the stages of a pipeline meet. Stages perform their lists message by message, without computing, and
//! all have to come to the end. Within a stage all ranks do the same in the same order, so their collectives meet.

use crate::actions::{Action, EvaluationActions};
use crate::mesh::Axes;
use crate::model::Stream;
use crate::plan::{Plan, PlanError, Role};

/// A send or a receive of a stage.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Message {
    pub from: usize,
    to: usize,
    micro: usize,
    stream: Stream,
    pub gradient: bool,
}

impl Message {
    pub fn of(action: &Action, stage: usize) -> Option<Message> {
        match *action {
            Action::Send { micro, stream, gradient } => {
                let to = if gradient { stage.wrapping_sub(1) } else { stage + 1 };
                Some(Message { from: stage, to, micro, stream, gradient })
            }
            Action::Receive { micro, stream, gradient } => {
                let from = if gradient { stage + 1 } else { stage.wrapping_sub(1) };
                Some(Message { from, to: stage, micro, stream, gradient })
            }
            _ => None,
        }
    }
}

/// A stage on its way through its messages.
#[derive(Default)]
struct Stage {
    messages: Vec<Message>,
    at: usize,
    /// Started and not received, by direction: values, gradients. At most one each: the executor waits for the one before
    /// ([`crate::executor`]).
    sent: [Option<Message>; 2],
}

impl Plan {
    /// Whether all messages between stages meet, in a step and in an evaluation.
    ///
    /// # Errors
    /// Two ranks that would wait for ever, with the calls in which they wait.
    pub fn check_messages(&self) -> Result<(), PlanError> {
        self.check_lists(|role| [&role.actions[..], &[], &[]])?;
        self.check_lists(|role| {
            let EvaluationActions { first, next, end } = &role.evaluation;
            [first, next, end]
        })
    }

    fn check_lists<'a>(&'a self, lists: impl Fn(&'a Role) -> [&'a [Action]; 3]) -> Result<(), PlanError> {
        let mut stages: Vec<Stage> = Vec::with_capacity(self.roles.len());
        for (stage, role) in self.roles.iter().enumerate() {
            let actions = lists(role).into_iter().flatten();
            let messages: Vec<Message> = actions.filter_map(|action| Message::of(action, stage)).collect();
            if let Some(lost) = messages.iter().find(|message| message.from.max(message.to) >= self.roles.len()) {
                return Err(self.misfit(format!("{} and there is no such stage", self.waits(stage, lost))));
            }
            stages.push(Stage { messages, ..Stage::default() });
        }
        while (0..stages.len()).any(|stage| advance(&mut stages, stage)) {}
        // A stage waits in its next message or, at the end, for the last one that it has sent.
        let next = |stage: usize| stages[stage].messages.get(stages[stage].at).copied();
        let call = |stage: usize| next(stage).or(stages[stage].sent.into_iter().flatten().next());
        let Some((stuck, call)) = (0..stages.len()).find_map(|stage| Some((stage, call(stage)?))) else {
            return Ok(());
        };
        let other = if call.from == stuck { call.to } else { call.from };
        let theirs = match next(other) {
            Some(theirs) => self.waits(other, &theirs),
            None => format!("rank {} has come to the end of its step", self.rank(other)),
        };
        Err(self.misfit(format!("{}, and {theirs}: neither can go on", self.waits(stuck, &call))))
    }

    /// The first rank of a stage.
    pub fn rank(&self, stage: usize) -> usize {
        stage * (self.mesh.world() / self.mesh.size(Axes::PIPELINE))
    }

    fn waits(&self, stage: usize, message: &Message) -> String {
        let Message { from, to, micro, stream, gradient } = *message;
        let (kind, of) = (
            if gradient { "gradient" } else { "values" },
            match stream {
                Stream::Decoder => "",
                Stream::Encoder => " of the encoder",
            },
        );
        let what = format!("the {kind}{of} of micro-batch {micro}");
        let rank = self.rank(stage);
        match from == stage {
            true => format!("rank {rank} waits to send {what} to rank {}", self.rank(to)),
            false => format!("rank {rank} waits to receive {what} from rank {}", self.rank(from)),
        }
    }

    fn misfit(&self, reason: String) -> PlanError {
        PlanError {
            key: "parallel.pipeline_schedule",
            reason: format!("makes stages wait for each other for ever: {reason}"),
        }
    }
}

/// Performs the next message of a stage, if it can be.
fn advance(stages: &mut [Stage], stage: usize) -> bool {
    let Some(message) = stages[stage].messages.get(stages[stage].at).copied() else { return false };
    let slot = &mut stages[message.from].sent[usize::from(message.gradient)];
    let can = match message.from == stage {
        true => slot.is_none(),
        false => *slot == Some(message),
    };
    if can {
        *slot = (message.from == stage).then_some(message);
        stages[stage].at += 1;
    }
    can
}
