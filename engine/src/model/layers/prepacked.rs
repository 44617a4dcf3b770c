//! Weights in the form that products read, made once a step: `memory.prepack = "step"`.
//!
//! A layer multiplies by a matrix of weights twice: `x W^T` forward, `dy W` backward, each reading W in an order of its own. Where
//! the device says that bringing W into that order costs time ([`Kernels::prepacked_len`]), both forms can be kept. They are
//! made when first read in a step, and again after the update.

use super::context::LayerContext;
use crate::compute::context::ComputeContext;
use crate::compute::error::Result;
use crate::model::layers::{FlatRange, Weights};
use std::cell::RefCell;
use zbench_kernels::{Buffer, Category, DType, Gemm, Op, View, ViewMut};

/// A form of a matrix: where the matrix lies, and a product that reads it so.
pub type Form = (FlatRange, Gemm);

/// A unit's weights in the forms that products read.
#[derive(Debug, Default)]
pub struct Prepacked(RefCell<Vec<Entry>>);

#[derive(Debug)]
struct Entry {
    place: FlatRange,
    trans: bool,
    buffer: Buffer,
    /// Whether it holds the weights of this step.
    fresh: bool,
}

impl Prepacked {
    /// Room for these forms.
    pub fn new(device: ComputeContext<'_>, forms: &[Form]) -> Result<Prepacked> {
        let entry = |(place, op): &Form| -> Result<Entry> {
            let len = device.kernels.prepacked_len(op).unwrap_or(0);
            let buffer = device.alloc(Category::Parameters, DType::F32, len)?;
            Ok(Entry { place: *place, trans: op.trans_b, buffer, fresh: false })
        };
        Ok(Prepacked(RefCell::new(forms.iter().map(entry).collect::<Result<_>>()?)))
    }

    /// The weights change.
    pub fn forget(&mut self) {
        self.0.get_mut().iter_mut().for_each(|entry| entry.fresh = false);
    }
}

/// `C (+)= A B` where B is the matrix that lies at `place`: by the form that is kept of it, if one is.
pub(super) fn product(
    ex: &LayerContext<'_>,
    term: &'static str,
    weights: &Weights<'_>,
    place: &FlatRange,
    op: Gemm,
    [a, matrix]: [View<'_>; 2],
    c: ViewMut<'_>,
) -> Result<()> {
    let mut entries = weights.prepacked.map(|kept| kept.0.borrow_mut());
    let found = entries
        .as_mut()
        .and_then(|entries| entries.iter_mut().find(|entry| entry.place == *place && entry.trans == op.trans_b));
    let Some(entry) = found else { return ex.gemm(term, op, a, matrix, c) };
    if !entry.fresh {
        ex.run(term, &Op::Prepack(op), &[matrix], &mut [entry.buffer.view_mut()])?;
        entry.fresh = true;
    }
    ex.run(term, &Op::GemmPrepacked(op), &[a, entry.buffer.view()], &mut [c])
}
