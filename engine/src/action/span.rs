//! The parts that a step's time is booked under.

use crate::action::Action;
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::ops::{Index, IndexMut};

/// The parts of a step's time; they add up to the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Span {
    /// Layers forward, the head's loss included.
    Forward,
    Backward,
    /// Forward repeated for backward.
    Recompute,
    /// Waiting for weights to be gathered.
    ExposedGather,
    /// Waiting for gradients to be reduced.
    ExposedReduce,
    /// Waiting for a message between stages of a pipeline.
    ExposedPipeline,
    /// Waiting, within a layer, for the ranks that share its matrices or its tokens.
    ExposedTensor,
    /// Waiting for the loss and the norm to be agreed on.
    ExposedAgree,
    Optimizer,
    /// Moving state between device, host and disk.
    Offload,
    Data,
    Other,
}

impl Span {
    pub const COUNT: usize = 12;

    /// All of them, in the order of reports.
    pub const ALL: [Span; Span::COUNT] = [
        Span::Forward,
        Span::Backward,
        Span::Recompute,
        Span::ExposedGather,
        Span::ExposedReduce,
        Span::ExposedPipeline,
        Span::ExposedTensor,
        Span::ExposedAgree,
        Span::Optimizer,
        Span::Offload,
        Span::Data,
        Span::Other,
    ];

    /// Whether a stage works in it on a micro-batch, rather than waiting for another stage.
    pub const fn is_work(self) -> bool {
        matches!(self, Span::Forward | Span::Backward | Span::Recompute | Span::ExposedTensor)
    }

    pub const fn name(self) -> &'static str {
        match self {
            Span::Forward => "forward",
            Span::Backward => "backward",
            Span::Recompute => "recompute",
            Span::ExposedGather => "exposed_gather",
            Span::ExposedReduce => "exposed_reduce",
            Span::ExposedPipeline => "exposed_pipeline",
            Span::ExposedTensor => "exposed_tensor",
            Span::ExposedAgree => "exposed_agree",
            Span::Optimizer => "optimizer",
            Span::Offload => "offload",
            Span::Data => "data",
            Span::Other => "other",
        }
    }
}

/// One value for each span.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BySpan<T>([T; Span::COUNT]);

impl<T: Copy> BySpan<T> {
    pub fn all(value: T) -> BySpan<T> {
        BySpan([value; Span::COUNT])
    }

    pub fn of(value: impl FnMut(Span) -> T) -> BySpan<T> {
        BySpan(Span::ALL.map(value))
    }

    pub fn map<U>(&self, f: impl FnMut(T) -> U) -> BySpan<U> {
        BySpan(self.0.map(f))
    }

    /// In the order of [`Span::ALL`].
    pub fn iter(&self) -> impl Iterator<Item = (Span, T)> + '_ {
        Span::ALL.into_iter().map(|span| (span, self[span]))
    }

    pub fn sum(&self) -> T
    where
        T: std::iter::Sum,
    {
        self.0.into_iter().sum()
    }
}

impl BySpan<f64> {
    /// Those that records and estimates state: a cell without stages has no wait for one, and one without tensor ranks none for those.
    pub fn stated(&self) -> impl Iterator<Item = (Span, f64)> + '_ {
        let is_of_some = |span| matches!(span, Span::ExposedPipeline | Span::ExposedTensor);
        self.iter().filter(move |(span, value)| !is_of_some(*span) || *value != 0.0)
    }
}

impl<T> Index<Span> for BySpan<T> {
    type Output = T;

    fn index(&self, span: Span) -> &T {
        &self.0[span as usize]
    }
}

impl<T> IndexMut<Span> for BySpan<T> {
    fn index_mut(&mut self, span: Span) -> &mut T {
        &mut self.0[span as usize]
    }
}

/// Who is told what the time of a step goes to.
pub trait Spans {
    /// What follows is this.
    fn enter(&mut self, span: Span);

    /// What follows belongs to this action, from the next span on.
    fn during(&mut self, action: Option<Action>);
}

/// Who is told when a layer waits for other ranks in the middle of an action.
pub trait Waits {
    /// The layer waits from now on.
    fn begin(&self);

    /// It goes on.
    fn end(&self);
}

/// An action that is booked under one span, but for what its layers wait.
pub struct Within<'s> {
    spans: RefCell<&'s mut dyn Spans>,
    span: Span,
}

impl<'s> Within<'s> {
    /// The action's span begins now.
    pub fn enter(spans: &'s mut dyn Spans, span: Span) -> Within<'s> {
        spans.enter(span);
        Within { spans: RefCell::new(spans), span }
    }
}

impl Waits for Within<'_> {
    fn begin(&self) {
        self.spans.borrow_mut().enter(Span::ExposedTensor);
    }

    fn end(&self) {
        self.spans.borrow_mut().enter(self.span);
    }
}

/// Nobody: for dry runs.
impl Spans for () {
    fn enter(&mut self, _: Span) {}

    fn during(&mut self, _: Option<Action>) {}
}
