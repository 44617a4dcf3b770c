//! Gradients: where a unit's are written, how they are summed over ranks, where they accumulate.

use super::tally::Tally;
use super::{Desk, Holding, OUTER, State};
use crate::comm::{Communicator, Metered};
use crate::layers::{Piece, Sketch, StepError, exec};
use crate::mesh::{Split, within};
use crate::model::Grads;
use std::ops::Range;
use zbench_kernels::{Buffer, Category, DType, View, ViewMut};

type Result<T> = std::result::Result<T, StepError>;

/// The gradients of a rank, by unit; `None` where nothing trains.
pub struct Gradients {
    units: Vec<Option<Unit>>,
}

struct Unit {
    /// This rank's accumulated gradients.
    home: Buffer,
    /// A micro-batch's gradients of the whole unit, where the home is only a part.
    scratch: Option<Buffer>,
    /// Whole homes: zeroed in this step.
    opened: bool,
}

impl Unit {
    /// What a micro-batch's gradients are added to; empty where nothing trains.
    fn target(unit: &mut Option<Unit>) -> ViewMut<'_> {
        match unit {
            Some(Unit { scratch: Some(scratch), .. }) => scratch.view_mut(),
            Some(Unit { home, .. }) => home.view_mut(),
            None => ViewMut::of::<f32>(&mut []),
        }
    }
}

impl Gradients {
    /// Homes with unspecified contents.
    pub fn new(state: &State, desk: Desk<'_>) -> Result<Gradients> {
        let mut units = Vec::with_capacity(state.holdings.len());
        for unit in 0..state.holdings.len() {
            let home = |h: &Holding| -> Result<Unit> {
                let home = desk.arena.alloc(Category::Gradients, state.precision.gradients, h.gradients.len())?;
                Ok(Unit { home, scratch: None, opened: false })
            };
            units.push(state.trainable(unit).map(home).transpose()?);
        }
        Ok(Gradients { units })
    }

    /// States `new`.
    pub fn new_stated(state: &State, s: &mut Sketch<'_>) -> Vec<Piece> {
        let holdings = (0..state.holdings.len()).filter_map(|unit| state.trainable(unit));
        holdings.map(|h| s.alloc(Category::Gradients, state.precision.gradients, h.gradients.len())).collect()
    }

    /// A unit's gradients will be written: zeroes what they are added to.
    pub fn open(&mut self, state: &State, desk: Desk<'_>, unit: usize) -> Result<()> {
        let (Some(grads), Some(holding)) = (&mut self.units[unit], state.trainable(unit)) else { return Ok(()) };
        if state.sharding.gradients == Split::Whole {
            if !grads.opened {
                desk.kernels.fill(grads.home.view_mut(), 0.0)?;
                grads.opened = true;
            }
        } else if grads.scratch.is_none() {
            let mut scratch = desk.arena.alloc(Category::Communication, state.precision.gradients, holding.padded)?;
            desk.kernels.fill(scratch.view_mut(), 0.0)?;
            grads.scratch = Some(scratch);
        }
        Ok(())
    }

    /// States `open`; `opened` is the scratch of a unit that is open already, or marks a whole home as zeroed.
    pub fn open_stated(state: &State, s: &mut Sketch<'_>, opened: &mut [Option<Option<Piece>>], unit: usize) {
        let Some(holding) = state.trainable(unit) else { return };
        if opened[unit].is_some() {
            return;
        }
        let dtype = state.precision.gradients;
        let split = state.sharding.gradients != Split::Whole;
        opened[unit] = Some(split.then(|| s.alloc(Category::Communication, dtype, holding.padded)));
        s.op("gradients", exec::fill(holding.padded, dtype));
    }

    /// Where the layers add a unit's gradients.
    pub fn grads(&mut self, unit: usize) -> Grads<'_> {
        Grads(Unit::target(&mut self.units[unit]))
    }

    /// The same of two different units at once.
    pub fn grads_of_two(&mut self, low: usize, high: usize) -> (Grads<'_>, Grads<'_>) {
        let (before, from) = self.units.split_at_mut(high);
        (Grads(Unit::target(&mut before[low])), Grads(Unit::target(&mut from[0])))
    }

    /// A micro-batch's gradients of a unit are complete: bring them home, summed over the axes that are due.
    pub fn reduce(&mut self, state: &State, desk: Desk<'_>, unit: usize, first: bool, last: bool) -> Result<()> {
        let (Some(grads), Some(holding)) = (&mut self.units[unit], state.trainable(unit)) else { return Ok(()) };
        let inner = &desk.comms.inner;
        let wire = state.precision.reduce;
        if let Some(scratch) = grads.scratch.take() {
            let home = grads.home.view_mut();
            if scratch.dtype() == wire {
                inner.reduce_scatter(scratch.view(), home, !first)?;
            } else {
                let copy = wire_copy(desk, wire, scratch.view())?;
                inner.reduce_scatter(copy.view(), home, !first)?;
            }
        } else if last {
            grads.opened = false;
            let owned = state.place.range(Split::Shard, holding.padded);
            match state.sharding.optimizer {
                Split::Whole => all_reduce(desk, inner, wire, grads.home.view_mut())?,
                _ => reduce_to_part(desk, inner, wire, grads.home.view_mut(), &owned)?,
            }
        }
        let (true, Some(outer)) = (last, desk.comms.outer()) else { return Ok(()) };
        let shard = within(&state.place.range(Split::Shard, holding.padded), &holding.gradients);
        match state.sharding.optimizer {
            Split::Whole => all_reduce(desk, outer, wire, grads.home.view_mut()),
            Split::Shard => all_reduce(desk, outer, wire, grads.home.slice_mut(shard)),
            Split::World => {
                let part = within(&within(&holding.chunk, &holding.gradients), &shard);
                reduce_to_part(desk, outer, wire, grads.home.slice_mut(shard), &part)
            }
        }
    }

    /// States `reduce`.
    pub fn reduce_stated(
        state: &State,
        s: &mut Sketch<'_>,
        tally: &mut Tally,
        opened: &mut [Option<Option<Piece>>],
        unit: usize,
        last: bool,
    ) {
        let Some(holding) = state.trainable(unit) else { return };
        let (mesh, p) = (state.mesh(), state.precision);
        let bytes = |len: usize| (len * p.reduce.size()) as u64;
        let axis = state.inner_axis();
        if state.sharding.gradients != Split::Whole {
            let scratch = opened[unit].take().flatten();
            if p.gradients != p.reduce {
                let copy = s.alloc(Category::Communication, p.reduce, holding.padded);
                s.op("reduce", exec::cast(holding.padded, p.gradients, p.reduce));
                s.free(copy);
            }
            tally.reduce_scatter(axis, mesh.inner, bytes(holding.padded));
            s.free_all(scratch);
        } else if last {
            opened[unit] = None;
            let whole = state.sharding.optimizer == Split::Whole;
            on_wire_stated(s, p.gradients, p.reduce, holding.padded, whole);
            match whole {
                true => tally.all_reduce(axis, mesh.inner, bytes(holding.padded)),
                false => to_part_stated(tally, axis, mesh.inner, bytes(holding.padded), p.gradients == p.reduce),
            }
        }
        if !last || !mesh.hybrid {
            return;
        }
        let len = if state.sharding.optimizer == Split::Whole { holding.padded } else { holding.padded / mesh.inner };
        if state.sharding.optimizer == Split::World {
            on_wire_stated(s, p.gradients, p.reduce, len, false);
            to_part_stated(tally, OUTER, mesh.outer, bytes(len), p.gradients == p.reduce);
        } else {
            on_wire_stated(s, p.gradients, p.reduce, len, true);
            tally.all_reduce(OUTER, mesh.outer, bytes(len));
        }
    }

    /// Accumulated and reduced gradients of `range` of a unit's flat; the range is one this rank has.
    pub fn view(&self, state: &State, unit: usize, range: &Range<usize>) -> Option<View<'_>> {
        let (grads, holding) = (self.units[unit].as_ref()?, state.trainable(unit)?);
        Some(grads.home.slice(within(range, &holding.gradients)))
    }
}

/// All-reduce of `view`, through a copy of type `wire` where that differs: then the sum is rounded to that type, since it
/// travels back.
fn all_reduce(desk: Desk<'_>, group: &Metered, wire: DType, view: ViewMut<'_>) -> Result<()> {
    if view.dtype() == wire {
        return Ok(group.all_reduce(view)?);
    }
    let mut copy = wire_copy(desk, wire, view.as_view())?;
    group.all_reduce(copy.view_mut())?;
    Ok(desk.kernels.cast(copy.view(), view)?)
}

/// Reduce-scatter of `view` into `part` of it. What travels is of type `wire`; the sum keeps the view's own.
fn reduce_to_part(
    desk: Desk<'_>,
    group: &Metered,
    wire: DType,
    mut view: ViewMut<'_>,
    part: &Range<usize>,
) -> Result<()> {
    if view.dtype() == wire {
        return Ok(group.reduce_scatter_in_place(view)?);
    }
    let copy = wire_copy(desk, wire, view.as_view())?;
    Ok(group.reduce_scatter(copy.view(), view.slice_mut(part.clone()), false)?)
}

/// States the call of `reduce_to_part`: without a copy for the wire there is one buffer.
fn to_part_stated(tally: &mut Tally, axis: &'static str, ranks: usize, bytes: u64, in_place: bool) {
    tally.reduce_scatter(axis, ranks, bytes);
    if in_place {
        tally.in_place();
    }
}

fn wire_copy(desk: Desk<'_>, wire: DType, view: View<'_>) -> Result<Buffer> {
    let mut copy = desk.arena.alloc(Category::Communication, wire, view.len())?;
    desk.kernels.cast(view, copy.view_mut())?;
    Ok(copy)
}

fn on_wire_stated(s: &mut Sketch<'_>, from: DType, wire: DType, len: usize, back: bool) {
    if from == wire {
        return;
    }
    let copy = s.alloc(Category::Communication, wire, len);
    s.op("reduce", exec::cast(len, from, wire));
    if back {
        s.op("reduce", exec::cast(len, wire, from));
    }
    s.free(copy);
}
