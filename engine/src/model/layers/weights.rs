//! Weights and gradients as layers read them: flat buffers, and where each tensor lies in which.

use super::prepacked::Prepacked;
use std::ops::Range;
use zbench_kernels::{Buffer, View, ViewMut};

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
    /// Those of the layer's second unit, where it has one.
    pub second: Option<&'a Weights<'a>>,
}

impl<'a> Weights<'a> {
    /// Of the unit of what may be in a second one.
    pub fn of_second(&self) -> &Weights<'a> {
        self.second.unwrap_or(self)
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
    /// Those of the layer's second unit, where it has one.
    second: Option<ViewMut<'a>>,
    /// What is kept for them, where they are computed later.
    deferred: Option<&'a mut Deferred>,
}

/// What the gradients of a block's weights are computed from, where they are computed later than the gradient of its input.
#[derive(Debug, Default)]
pub struct Deferred {
    /// What products have read.
    pub activation: Option<Buffer>,
    pub mlp_norm: Option<Buffer>,
    pub attention: Option<Buffer>,
    pub attention_norm: Option<Buffer>,
    /// The gradients of what they have made.
    pub doutput: Option<Buffer>,
    pub dgate: Option<Buffer>,
    pub dup: Option<Buffer>,
    /// Of the residual stream between attention and the MLP, where these follow each other.
    pub dresidual: Option<Buffer>,
    pub dq: Option<Buffer>,
    pub dk: Option<Buffer>,
    pub dv: Option<Buffer>,
    /// Gradients of norms' weights, complete, in the accumulator type: their sums over tokens come out of the same pass as the
    /// gradient of the input.
    pub sums: Vec<(FlatRange, Buffer)>,
}

impl<'a> Grads<'a> {
    pub fn of(own: ViewMut<'a>) -> Grads<'a> {
        Grads { own, second: None, deferred: None }
    }

    /// None: what they are computed from is kept.
    pub fn later(deferred: &'a mut Deferred) -> Grads<'a> {
        Grads { deferred: Some(deferred), ..Grads::of(ViewMut::of::<f32>(&mut [])) }
    }

    /// The same with those of the layer's second unit beside them.
    #[must_use]
    pub fn beside(self, second: Grads<'a>) -> Grads<'a> {
        Grads { second: Some(second.own), ..self }
    }
}

impl Grads<'_> {
    /// Where what they are computed from is kept, if they are computed later.
    pub fn deferred(&mut self) -> Option<&mut Deferred> {
        self.deferred.as_deref_mut()
    }

    /// Keeps what they are computed from, where that is done later; else frees it.
    pub fn keep(&mut self, buffer: Buffer, place: fn(&mut Deferred) -> &mut Option<Buffer>) {
        if let Some(deferred) = self.deferred() {
            *place(deferred) = Some(buffer);
        }
    }
    /// Of the unit of what may be in a second one.
    pub fn of_second(&mut self) -> Grads<'_> {
        Grads::of(self.second.as_mut().unwrap_or(&mut self.own).reborrow())
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
        Grads {
            own: self.own.reborrow(),
            second: self.second.as_mut().map(ViewMut::reborrow),
            deferred: self.deferred.as_deref_mut(),
        }
    }
}
