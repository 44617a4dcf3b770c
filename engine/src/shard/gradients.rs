//! Gradients: where a unit's are written, how they are summed over ranks, where they accumulate.

use super::{Holding, Resources, State};
use crate::comm::{Communicator, Metered};
use crate::error::Result;
use crate::mesh::{Axes, within};
use crate::model::Grads;
use std::ops::Range;
use zbench_kernels::{Buffer, Category, DType, View, ViewMut};

/// In the FLOP ledger.
const TERM: &str = "reduce";

/// The gradients of a rank, by unit; `None` where nothing trains.
pub struct Gradients {
    units: Vec<Option<Unit>>,
}

struct Unit {
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
    pub fn new(state: &State, res: Resources<'_>) -> Result<Gradients> {
        let mut units = Vec::with_capacity(state.holdings.len());
        for unit in 0..state.holdings.len() {
            let home = |h: &Holding| -> Result<Unit> {
                let (at, dtype) = (state.homes.gradients, state.precision.gradients);
                let home = res.alloc_at(at, Category::Gradients, dtype, h.gradients.len())?;
                Ok(Unit { home, scratch: None, opened: false })
            };
            units.push(state.trainable(unit).map(home).transpose()?);
        }
        Ok(Gradients { units })
    }

    /// A unit's gradients will be written: zeroes what they are added to.
    pub fn open(&mut self, state: &State, res: Resources<'_>, unit: usize) -> Result<()> {
        let (Some(grads), Some(holding)) = (&mut self.units[unit], state.trainable(unit)) else { return Ok(()) };
        if state.sharding.gradients == Axes::NONE {
            if !grads.opened {
                res.fill("gradients", grads.home.view_mut(), 0.0)?;
                grads.opened = true;
            }
        } else if grads.scratch.is_none() {
            let mut scratch = res.alloc(Category::Communication, state.precision.gradients, holding.padded)?;
            res.fill("gradients", scratch.view_mut(), 0.0)?;
            grads.scratch = Some(scratch);
        }
        Ok(())
    }

    /// Where the layers add a unit's gradients.
    pub fn grads(&mut self, unit: usize) -> Grads<'_> {
        Grads::of(Unit::target(&mut self.units[unit]))
    }

    /// The same of two different units at once.
    pub fn grads_of_two(&mut self, low: usize, high: usize) -> (Grads<'_>, Grads<'_>) {
        let (before, from) = self.units.split_at_mut(high);
        (Grads::of(Unit::target(&mut before[low])), Grads::of(Unit::target(&mut from[0])))
    }

    /// A micro-batch's gradients of a unit are complete: bring them home, summed over the axes that are due.
    pub fn reduce(&mut self, state: &State, res: Resources<'_>, unit: usize, first: bool, last: bool) -> Result<()> {
        let (Some(grads), Some(holding)) = (&mut self.units[unit], state.trainable(unit)) else { return Ok(()) };
        let shard_group = res.comms.shard();
        let wire = state.precision.reduce;
        if let Some(scratch) = grads.scratch.take() {
            let home = grads.home.view_mut();
            if scratch.dtype() == wire {
                shard_group.reduce_scatter(scratch.view(), home, !first)?;
            } else {
                let copy = wire_copy(res, wire, scratch.view())?;
                shard_group.reduce_scatter(copy.view(), home, !first)?;
            }
        } else if last {
            grads.opened = false;
            let owned = state.place.range(Axes::SHARD, holding.padded);
            match state.sharding.optimizer {
                Axes::NONE if holding.replicas != Axes::DATA => {
                    let group = res.comms.over(holding.replicas);
                    return group.map_or(Ok(()), |group| all_reduce(res, group, wire, grads.home.view_mut()));
                }
                Axes::NONE => all_reduce(res, shard_group, wire, grads.home.view_mut())?,
                _ => reduce_to_part(res, shard_group, wire, grads.home.view_mut(), &owned)?,
            }
        }
        let (true, Some(replicas)) = (last, res.comms.over(Axes::REPLICA)) else { return Ok(()) };
        let shard = within(&state.place.range(Axes::SHARD, holding.padded), &holding.gradients);
        match state.sharding.optimizer {
            Axes::NONE => all_reduce(res, replicas, wire, grads.home.view_mut()),
            Axes::SHARD => all_reduce(res, replicas, wire, grads.home.slice_mut(shard)),
            _ => {
                let part = within(&within(&holding.chunk, &holding.gradients), &shard);
                reduce_to_part(res, replicas, wire, grads.home.slice_mut(shard), &part)
            }
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
fn all_reduce(res: Resources<'_>, group: &Metered, wire: DType, view: ViewMut<'_>) -> Result<()> {
    if view.dtype() == wire {
        return Ok(group.all_reduce(view)?);
    }
    let mut copy = wire_copy(res, wire, view.as_view())?;
    group.all_reduce(copy.view_mut())?;
    res.cast(TERM, copy.view(), view)
}

/// Reduce-scatter of `view` into `part` of it. What travels is of type `wire`; the sum keeps the view's own.
fn reduce_to_part(
    res: Resources<'_>,
    group: &Metered,
    wire: DType,
    mut view: ViewMut<'_>,
    part: &Range<usize>,
) -> Result<()> {
    if view.dtype() == wire {
        return Ok(group.reduce_scatter_in_place(view)?);
    }
    let copy = wire_copy(res, wire, view.as_view())?;
    Ok(group.reduce_scatter(copy.view(), view.slice_mut(part.clone()), false)?)
}

fn wire_copy(res: Resources<'_>, wire: DType, view: View<'_>) -> Result<Buffer> {
    let mut copy = res.alloc(Category::Communication, wire, view.len())?;
    res.cast(TERM, view, copy.view_mut())?;
    Ok(copy)
}
