//! Gradients: where a unit's are written, how they are summed over ranks, where they accumulate.

use super::{Holding, Resources, State};
use crate::comm::{Communicator, Metered, OwnedCall, Ticket};
use crate::error::{Result, StepError};
use crate::mesh::{Axes, within};
use crate::model::Grads;
use std::ops::Range;
use zbench_kernels::{Buffer, Category, DType, View, ViewMut};

/// In the FLOP ledger.
const TERM: &str = "reduce";

/// The gradients of a rank, by unit; `None` where nothing trains.
pub struct Gradients {
    units: Vec<Option<Unit>>,
    reducing: Option<Reducing>,
}

/// A unit's reduction over the shard group, which goes on while the next unit's gradients are computed.
struct Reducing {
    unit: usize,
    ticket: Ticket,
    /// It is the step's last one, so that other axes may follow.
    last: bool,
}

struct Unit {
    /// Away while a reduction writes it.
    home: Option<Buffer>,
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
            Some(Unit { home: Some(home), .. }) => home.view_mut(),
            _ => ViewMut::of::<f32>(&mut []),
        }
    }

    fn home(&mut self) -> Result<&mut Buffer> {
        self.home.as_mut().ok_or_else(away)
    }
}

fn away() -> StepError {
    StepError::Input("gradients are used while they are being reduced; this is a bug".into())
}

impl Gradients {
    /// Homes with unspecified contents.
    pub fn new(state: &State, res: Resources<'_>) -> Result<Gradients> {
        let mut units = Vec::with_capacity(state.holdings.len());
        for unit in 0..state.holdings.len() {
            let home = |h: &Holding| -> Result<Unit> {
                let (at, dtype) = (state.homes.gradients, state.precision.gradients);
                let home = res.alloc_at(at, Category::Gradients, dtype, h.gradients.len())?;
                Ok(Unit { home: Some(home), scratch: None, opened: false })
            };
            units.push(state.trainable(unit).map(home).transpose()?);
        }
        Ok(Gradients { units, reducing: None })
    }

    /// A unit's gradients will be written: zeroes what they are added to.
    pub fn open(&mut self, state: &State, res: Resources<'_>, unit: usize) -> Result<()> {
        let (Some(grads), Some(holding)) = (&mut self.units[unit], state.trainable(unit)) else { return Ok(()) };
        if state.sharding.gradients == Axes::NONE {
            if !grads.opened {
                res.fill("gradients", grads.home()?.view_mut(), 0.0)?;
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

    /// A micro-batch's gradients of a unit are complete: bring them home, summed over the axes that are due. The sum over the shard
    /// group goes on while the next unit's gradients are computed, in a second scratch where they need one; it is complete when the
    /// next reduction begins, or after [`Gradients::settle`].
    pub fn reduce(&mut self, state: &State, res: Resources<'_>, unit: usize, first: bool, last: bool) -> Result<()> {
        if self.units[unit].is_none() {
            return Ok(());
        }
        // What went before may be on its way to this unit's home, and holds the second scratch.
        self.settle(state, res)?;
        let (Some(grads), Some(holding)) = (&mut self.units[unit], state.trainable(unit)) else { return Ok(()) };
        let (wire, whole) = (state.precision.reduce, state.sharding.optimizer == Axes::NONE);
        let mut home = || grads.home.take().ok_or_else(away);
        let call = if let Some(scratch) = grads.scratch.take() {
            let send = if scratch.dtype() == wire { scratch } else { wire_copy(res, wire, scratch.view())? };
            OwnedCall::reduce_scatter(send, home()?, !first)
        } else if !last {
            return Ok(());
        } else if whole && holding.replicas != Axes::DATA {
            grads.opened = false;
            let (group, home) = (res.comms.over(holding.replicas), grads.home()?.view_mut());
            return group.map_or(Ok(()), |group| all_reduce(res, group, wire, home));
        } else if state.precision.gradients != wire {
            grads.opened = false;
            let home = grads.home()?;
            if !whole {
                // The sum goes to a part of the home, which no started call can own.
                let owned = state.place.range(Axes::SHARD, holding.padded);
                reduce_to_part(res, res.comms.shard(), wire, home.view_mut(), &owned)?;
                return self.reduce_over_replicas(state, res, unit);
            }
            OwnedCall::all_reduce(wire_copy(res, wire, home.view())?)
        } else {
            grads.opened = false;
            if whole { OwnedCall::all_reduce(home()?) } else { OwnedCall::reduce_scatter_in_place(home()?) }
        };
        let group = res.comms.shard();
        self.reducing = Some(Reducing { unit, ticket: group.start(call)?, last });
        // One rank has nobody to wait for, and needs no second scratch.
        if group.size() == 1 { self.settle(state, res) } else { Ok(()) }
    }

    /// Waits for the reduction that is under way.
    pub fn settle(&mut self, state: &State, res: Resources<'_>) -> Result<()> {
        let Some(Reducing { unit, ticket, last }) = self.reducing.take() else { return Ok(()) };
        let done = res.comms.shard().wait(ticket)?;
        let Some(grads) = &mut self.units[unit] else { return Ok(()) };
        match (&mut grads.home, done.recv) {
            // It was a copy that travelled.
            (Some(home), Some(sum)) => res.cast(TERM, sum.view(), home.view_mut())?,
            (home, sum) => *home = sum,
        }
        drop(done.send);
        if last { self.reduce_over_replicas(state, res, unit) } else { Ok(()) }
    }

    /// After the last reduction over the shard group: the sum over replicas, where there are some.
    fn reduce_over_replicas(&mut self, state: &State, res: Resources<'_>, unit: usize) -> Result<()> {
        let (Some(grads), Some(holding)) = (&mut self.units[unit], state.trainable(unit)) else { return Ok(()) };
        let Some(replicas) = res.comms.over(Axes::REPLICA) else { return Ok(()) };
        let (wire, home) = (state.precision.reduce, grads.home()?);
        let shard = within(&state.place.range(Axes::SHARD, holding.padded), &holding.gradients);
        match state.sharding.optimizer {
            Axes::NONE => all_reduce(res, replicas, wire, home.view_mut()),
            Axes::SHARD => all_reduce(res, replicas, wire, home.slice_mut(shard)),
            _ => {
                let part = within(&within(&holding.chunk, &holding.gradients), &shard);
                reduce_to_part(res, replicas, wire, home.slice_mut(shard), &part)
            }
        }
    }

    /// Accumulated and reduced gradients of `range` of a unit's flat; the range is one this rank has. All reductions are settled.
    pub fn view(&self, state: &State, unit: usize, range: &Range<usize>) -> Option<View<'_>> {
        let (grads, holding) = (self.units[unit].as_ref()?, state.trainable(unit)?);
        Some(grads.home.as_ref()?.slice(within(range, &holding.gradients)))
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
