//! Weights and gradients as layers read them: flat buffers, and where each tensor lies in which.

use super::prepacked::Prepacked;
use std::ops::Range;
use zbench_kernels::{View, ViewMut};

/// Which flat buffer of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlatKind {
    /// With gradients and optimizer state.
    Trainable,
    Frozen,
    /// Frozen matrices in few bits; its elements are bytes.
    Quantised,
}

impl FlatKind {
    pub const COUNT: usize = 3;

    /// All of them, in the order in which they are gathered.
    pub const ALL: [FlatKind; FlatKind::COUNT] = [FlatKind::Trainable, FlatKind::Frozen, FlatKind::Quantised];
}

/// Where a tensor lies in its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlatRange {
    pub part: FlatKind,
    pub start: usize,
    pub len: usize,
}

impl FlatRange {
    pub fn range(&self) -> Range<usize> {
        self.start..self.start + self.len
    }
}

/// A unit's weights, gathered.
#[derive(Clone, Copy, Debug)]
pub struct Weights<'a> {
    pub trainable: View<'a>,
    pub frozen: View<'a>,
    /// The flat of frozen matrices in few bits.
    pub quantised: View<'a>,
    /// Forms of its matrices that products read, where they are kept.
    pub prepacked: Option<&'a Prepacked>,
    /// Those of the block's experts, where they are a unit of their own.
    pub experts: Option<&'a Weights<'a>>,
}

impl<'a> Weights<'a> {
    /// Of the unit in which the block's experts are.
    pub fn of_experts(&self) -> &Weights<'a> {
        self.experts.unwrap_or(self)
    }

    /// One tensor; of a matrix in few bits its record.
    pub fn get(&self, place: &FlatRange) -> View<'a> {
        match place.part {
            FlatKind::Trainable => self.trainable.slice(place.range()),
            FlatKind::Frozen => self.frozen.slice(place.range()),
            FlatKind::Quantised => self.quantised.slice(place.range()),
        }
    }
}

/// The gradients of a unit's trainable flat, whole.
#[derive(Debug)]
pub struct Grads<'a> {
    own: ViewMut<'a>,
    /// Those of the block's experts, where they are a unit of their own.
    experts: Option<ViewMut<'a>>,
}

impl<'a> Grads<'a> {
    pub fn of(own: ViewMut<'a>) -> Grads<'a> {
        Grads { own, experts: None }
    }

    /// The same with those of the unit of experts beside them.
    #[must_use]
    pub fn beside(self, experts: Grads<'a>) -> Grads<'a> {
        Grads { experts: Some(experts.own), ..self }
    }
}

impl Grads<'_> {
    /// Of the unit in which the block's experts are.
    pub fn of_experts(&mut self) -> Grads<'_> {
        Grads::of(self.experts.as_mut().unwrap_or(&mut self.own).reborrow())
    }

    /// One tensor's gradient; `None` when it is frozen.
    pub fn get(&mut self, place: &FlatRange) -> Option<ViewMut<'_>> {
        (place.part == FlatKind::Trainable).then(|| self.own.slice_mut(place.range()))
    }

    /// The gradients of a weight and of the bias that lies behind it; `None` when they are frozen or there is none.
    pub fn pair(&mut self, weight: &FlatRange, bias: Option<&FlatRange>) -> (Option<ViewMut<'_>>, Option<ViewMut<'_>>) {
        let Some(bias) =
            bias.filter(|bias| bias.part == FlatKind::Trainable && bias.start == weight.start + weight.len)
        else {
            return (self.get(weight), None);
        };
        let both = self.own.reborrow().into_slice(weight.start..bias.start + bias.len);
        let (weight, bias) = both.split_at(weight.len);
        (Some(weight), Some(bias))
    }

    /// The same gradients, lent for a shorter time.
    pub fn reborrow(&mut self) -> Grads<'_> {
        Grads { own: self.own.reborrow(), experts: self.experts.as_mut().map(ViewMut::reborrow) }
    }
}
