//! What every device checks of a mixture of experts: above all the indices, which are data.

use super::{elements, invalid, operand};
use crate::op::*;
use crate::{DType, KernelError, Result, View, ViewMut};

/// Indices that have been looked at.
#[derive(Clone, Copy)]
pub(crate) struct Routing<'a> {
    /// Of each choice, its expert.
    pub ids: &'a [u32],
    /// Of each slot, its choice.
    pub order: &'a [u32],
    /// Of each choice, its slot.
    pub places: &'a [u32],
}

/// Shapes that can be: choices are counted in 32 bits, and a token does not go to one expert twice.
fn shape(name: &'static str, rows: usize, top: usize, experts: usize) -> Result<()> {
    if top > experts {
        return invalid(name, format!("a token cannot go to {top} of {experts} experts"));
    }
    let slots = elements(&[rows, top]);
    if slots > u32::MAX as usize || experts >= u32::MAX as usize {
        return invalid(name, format!("{slots} choices among {experts} experts are more than 32 bits count"));
    }
    Ok(())
}

/// As [`indices`], of what lies where the host cannot read it.
fn indices_shape(name: &'static str, [rows, top, experts]: [usize; 3], view: &View) -> Result<()> {
    shape(name, rows, top, experts)?;
    operand(name, "indices", view, DType::U32, 3 * (rows * top) + experts + 1)
}

/// The indices of `rows x top` choices: every expert is one, and slots and choices name each other.
fn indices<'a>(name: &'static str, [rows, top, experts]: [usize; 3], view: &View<'a>) -> Result<Routing<'a>> {
    indices_shape(name, [rows, top, experts], view)?;
    let slots = rows * top;
    let all = view.as_slice::<u32>()?;
    let (ids, rest) = all.split_at(slots);
    let (order, rest) = rest.split_at(slots);
    let places = &rest[..slots];
    if let Some((choice, id)) = ids.iter().enumerate().find(|(_, id)| **id as usize >= experts) {
        let reason = format!("choice {choice} is expert {id} of {experts}");
        return Err(KernelError::Invalid { op: name, reason });
    }
    let lost = |(choice, place): (usize, &u32)| order.get(*place as usize).is_none_or(|back| *back as usize != choice);
    if let Some(choice) = places.iter().enumerate().position(lost) {
        let reason = format!("choice {choice} is not in the slot {} that it names", places[choice]);
        return Err(KernelError::Invalid { op: name, reason });
    }
    Ok(Routing { ids, order, places })
}

fn accumulators(
    name: &'static str,
    of: &'static str,
    view: &dyn super::Operand,
    dtype: DType,
    len: usize,
) -> Result<()> {
    operand(name, of, view, dtype.accumulator(), len)
}

pub(crate) fn route(op: &Route, logits: &View, weights: &ViewMut, indices: &ViewMut) -> Result<()> {
    let name = "route";
    shape(name, op.rows, op.top, op.experts)?;
    operand(name, "logits", logits, op.dtype, elements(&[op.rows, op.experts]))?;
    accumulators(name, "weights", weights, op.dtype, op.slots())?;
    operand(name, "indices", indices, DType::U32, op.indices_len())
}

pub(crate) fn route_backward<'a>(
    op: &Route,
    logits: &View,
    given: &View<'a>,
    dweights: &View,
    dlogits: &ViewMut,
) -> Result<Routing<'a>> {
    route_backward_shapes(op, logits, given, dweights, dlogits)?;
    indices("route_backward", [op.rows, op.top, op.experts], given)
}

/// As [`route_backward`], of indices that lie where the host cannot read them.
pub(crate) fn route_backward_shapes(
    op: &Route,
    logits: &View,
    given: &View,
    dweights: &View,
    dlogits: &ViewMut,
) -> Result<()> {
    let name = "route_backward";
    let all = elements(&[op.rows, op.experts]);
    operand(name, "logits", logits, op.dtype, all)?;
    operand(name, "dlogits", dlogits, op.dtype, all)?;
    accumulators(name, "dweights", dweights, op.dtype, op.slots())?;
    indices_shape(name, [op.rows, op.top, op.experts], given)
}

pub(crate) fn dispatch<'a>(op: &Slots, given: &View<'a>, x: &View, y: &ViewMut) -> Result<Routing<'a>> {
    dispatch_shapes(op, given, x, y)?;
    indices("dispatch", [op.rows, op.top, op.experts], given)
}

/// As [`dispatch`], of indices that lie where the host cannot read them.
pub(crate) fn dispatch_shapes(op: &Slots, given: &View, x: &View, y: &ViewMut) -> Result<()> {
    let name = "dispatch";
    operand(name, "x", x, op.dtype, elements(&[op.rows, op.cols]))?;
    operand(name, "y", y, op.dtype, elements(&[op.rows, op.top, op.cols]))?;
    indices_shape(name, [op.rows, op.top, op.experts], given)
}

pub(crate) fn combine<'a>(
    op: &Combine,
    given: &View<'a>,
    x: &View,
    weights: Option<&View>,
    y: &ViewMut,
) -> Result<Routing<'a>> {
    combine_shapes(op, given, x, weights, y)?;
    let s = &op.slots;
    indices("combine", [s.rows, s.top, s.experts], given)
}

/// As [`combine`], of indices that lie where the host cannot read them.
pub(crate) fn combine_shapes(op: &Combine, given: &View, x: &View, weights: Option<&View>, y: &ViewMut) -> Result<()> {
    let (name, s) = ("combine", &op.slots);
    operand(name, "x", x, s.dtype, elements(&[s.rows, s.top, s.cols]))?;
    operand(name, "y", y, s.dtype, elements(&[s.rows, s.cols]))?;
    match (op.weighted, weights) {
        (true, Some(weights)) => accumulators(name, "weights", weights, s.dtype, s.slots())?,
        (false, None) => {}
        (true, None) => invalid(name, "weighted rows need weights".into())?,
        (false, Some(_)) => invalid(name, "rows that count as they are have no weights; leave them out".into())?,
    }
    indices_shape(name, [s.rows, s.top, s.experts], given)
}

pub(crate) fn weigh<'a>(
    op: &Slots,
    given: &View<'a>,
    weights: &View,
    x: &ViewMut,
    dx: &ViewMut,
    dweights: &ViewMut,
) -> Result<Routing<'a>> {
    weigh_shapes(op, given, weights, x, dx, dweights)?;
    indices("weigh", [op.rows, op.top, op.experts], given)
}

/// As [`weigh`], of indices that lie where the host cannot read them.
pub(crate) fn weigh_shapes(
    op: &Slots,
    given: &View,
    weights: &View,
    x: &ViewMut,
    dx: &ViewMut,
    dweights: &ViewMut,
) -> Result<()> {
    let name = "weigh";
    let all = elements(&[op.rows, op.top, op.cols]);
    operand(name, "x", x, op.dtype, all)?;
    operand(name, "dx", dx, op.dtype, all)?;
    accumulators(name, "weights", weights, op.dtype, op.slots())?;
    accumulators(name, "dweights", dweights, op.dtype, op.slots())?;
    indices_shape(name, [op.rows, op.top, op.experts], given)
}

/// The bounds of the groups: from 0, never back, to the number of rows.
pub(crate) fn grouped_gemm<'a>(
    op: &GroupedGemm,
    offsets: &View<'a>,
    a: &View,
    b: &View,
    c: &ViewMut,
) -> Result<&'a [u32]> {
    let name = "grouped_gemm";
    grouped_gemm_shapes(op, offsets, a, b, c)?;
    let bounds = &offsets.as_slice::<u32>()?[..op.groups + 1];
    let whole = bounds[0] == 0 && bounds[op.groups] as usize == op.rows;
    if !whole || bounds.windows(2).any(|pair| pair[0] > pair[1]) {
        let reason = format!("the groups do not cut {} rows into {} parts in order", op.rows, op.groups);
        return Err(KernelError::Invalid { op: name, reason });
    }
    Ok(bounds)
}

/// As [`grouped_gemm`], of bounds that lie where the host cannot read them.
pub(crate) fn grouped_gemm_shapes(op: &GroupedGemm, offsets: &View, a: &View, b: &View, c: &ViewMut) -> Result<()> {
    let name = "grouped_gemm";
    let [of_a, of_b, of_c] = op.sizes();
    operand(name, "a", a, op.a, of_a)?;
    operand(name, "b", b, op.b, of_b)?;
    operand(name, "c", c, op.c, of_c)?;
    operand(name, "offsets", offsets, DType::U32, op.groups.saturating_add(1))
}
