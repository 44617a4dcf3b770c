//! Gradients: where a unit's are written, how they are summed over ranks, where they accumulate.

use super::offloaded_tensor::Copying;
use super::{Resources, State};
use crate::action::span::{Span, Spans};
use crate::compute::error::{Result, StepError};
use crate::config::MemoryTier;
use crate::mesh::{Axes, within};
use crate::model::Grads;
use std::ops::Range;
use zbench_collectives::{Call, Communicator, Kind, Metered, OwnedCall, Ticket};
use zbench_kernels::{Buffer, Category, DType, View, ViewMut};

/// In the FLOP ledger.
const TERM: &str = "reduce";

/// The gradients of a rank.
pub struct Gradients {
    /// By unit; `None` where nothing trains.
    units: Vec<Option<Unit>>,
    buckets: Vec<Bucket>,
    reducing: Option<Reducing>,
    going: Option<Going>,
}

/// Accumulated gradients of one or several units, which are reduced in one call.
struct Bucket {
    units: Range<usize>,
    /// Away while a reduction writes it.
    accumulated: Option<Buffer>,
    /// Units of it that train.
    count: usize,
    /// How many of them have no complete gradients of this step yet.
    missing: usize,
}

/// A bucket's reduction over the shard group, which goes on while the gradients of other units are computed.
struct Reducing {
    bucket: usize,
    /// The ranks that it is among.
    group: Axes,
    ticket: Ticket,
    /// It is the step's last one, so that other axes may follow.
    last: bool,
}

/// A bucket's sum on its way to the accumulated gradients in the host's memory, which goes on while the gradients of another unit are computed.
struct Going {
    bucket: usize,
    copying: Copying,
    /// On the device until the copy is over.
    sum: Buffer,
}

struct Unit {
    bucket: usize,
    /// Its part of the bucket's accumulated gradients.
    place: Range<usize>,
    /// A micro-batch's gradients of the whole unit, where only a part is accumulated here.
    scratch: Option<Buffer>,
    /// Accumulated whole: zeroed in this step.
    opened: bool,
}

impl Bucket {
    fn accumulated(&mut self) -> Result<&mut Buffer> {
        self.accumulated.as_mut().ok_or_else(away)
    }

    fn take(&mut self) -> Result<Buffer> {
        self.accumulated.take().ok_or_else(away)
    }

    /// A buffer on the device for the sum of gradients that live elsewhere; with what they are so far, if it is added to that.
    fn staged(&mut self, state: &State, res: Resources<'_>, first: bool) -> Result<Buffer> {
        let accumulated = self.accumulated()?;
        let len = accumulated.len();
        let mut sum = res.alloc(Category::Communication, state.precision.gradients, len)?;
        if !first {
            res.upload(Category::Gradients, accumulated, 0..len, sum.view_mut())?.before_device(res)?;
        }
        Ok(sum)
    }
}

fn away() -> StepError {
    StepError::Bug("gradients are used while they are being reduced")
}

impl Gradients {
    /// MemoryTiers with unspecified contents.
    pub fn new(state: &State, res: Resources<'_>) -> Result<Gradients> {
        let mut units: Vec<_> = state.shards.iter().map(|_| None).collect();
        let mut buckets = Vec::new();
        for range in &state.buckets {
            let (mut len, mut count) = (0, 0);
            for unit in range.clone() {
                let Some(flat_shard) = state.trainable(unit) else { continue };
                let place = len..len + flat_shard.gradients.len();
                (len, count) = (place.end, count + 1);
                units[unit] = Some(Unit { bucket: buckets.len(), place, scratch: None, opened: false });
            }
            if count > 0 {
                let (at, dtype) = (state.tiers.gradients, state.precision.gradients);
                let accumulated = Some(res.alloc_at(at, Category::Gradients, dtype, len)?);
                buckets.push(Bucket { units: range.clone(), accumulated, count, missing: count });
            }
        }
        Ok(Gradients { units, buckets, reducing: None, going: None })
    }

    /// A unit's gradients will be written: zeroes what they are added to.
    pub fn open(&mut self, state: &State, res: Resources<'_>, unit: usize) -> Result<()> {
        let (Some(grads), Some(flat_shard)) = (&mut self.units[unit], state.trainable(unit)) else { return Ok(()) };
        if state.sharding.gradients == Axes::NONE {
            if !grads.opened {
                let accumulated = self.buckets[grads.bucket].accumulated()?;
                res.fill("gradients", accumulated.slice_mut(grads.place.clone()), 0.0)?;
                grads.opened = true;
            }
        } else if grads.scratch.is_none() {
            let mut scratch = res.alloc(Category::Communication, state.precision.gradients, flat_shard.padded)?;
            res.fill("gradients", scratch.view_mut(), 0.0)?;
            grads.scratch = Some(scratch);
        }
        Ok(())
    }

    /// Where the layers add a unit's gradients.
    pub fn grads(&mut self, unit: usize) -> Grads<'_> {
        let unit = self.units[unit].as_mut();
        let bucket = unit.as_ref().map(|unit| &mut self.buckets[unit.bucket]);
        Grads::of(target(unit, bucket))
    }

    /// The same of two different units at once, the first of which has the lower number.
    pub fn grads_of_two(&mut self, low: usize, high: usize) -> (Grads<'_>, Grads<'_>) {
        let (before, from) = self.units.split_at_mut(high);
        let (low, high) = (before[low].as_mut(), from[0].as_mut());
        let [of_low, of_high] = [&low, &high].map(|unit| unit.as_ref().map(|unit| unit.bucket));
        if let (Some(low), Some(high)) = (&low, &high)
            && low.bucket == high.bucket
        {
            let Some(accumulated) = &mut self.buckets[low.bucket].accumulated else {
                return (Grads::of(nothing()), Grads::of(nothing()));
            };
            let (before, from) = accumulated.view_mut().split_at(high.place.start);
            return (Grads::of(before.into_slice(low.place.clone())), Grads::of(from.into_slice(0..high.place.len())));
        }
        let (mut bucket_of_low, mut bucket_of_high) = (None, None);
        for (number, bucket) in self.buckets.iter_mut().enumerate() {
            if Some(number) == of_low {
                bucket_of_low = Some(bucket);
            } else if Some(number) == of_high {
                bucket_of_high = Some(bucket);
            }
        }
        (Grads::of(target(low, bucket_of_low)), Grads::of(target(high, bucket_of_high)))
    }

    /// A micro-batch's gradients of a unit are complete: add them to the accumulated ones, summed over the axes that are due. The sum over the shard
    /// group begins when all units of the bucket are complete, and goes on while the gradients of other units are computed, in a second
    /// scratch where they need one. It is complete when the next one begins, or after [`Gradients::wait_reduction`].
    pub fn reduce(
        &mut self,
        state: &State,
        res: Resources<'_>,
        (unit, first, last): (usize, bool, bool),
        spans: &mut dyn Spans,
    ) -> Result<()> {
        self.sum_partial(state, res, unit, last)?;
        let (Some(grads), Some(flat_shard)) = (&mut self.units[unit], state.trainable(unit)) else { return Ok(()) };
        let (wire, whole) = (state.precision.reduce, state.sharding.optimizer == Axes::NONE);
        let (number, scratch) = (grads.bucket, grads.scratch.take());
        if last {
            grads.opened = false;
            let bucket = &mut self.buckets[number];
            bucket.missing -= 1;
            if bucket.missing > 0 {
                return Ok(());
            }
            bucket.missing = bucket.count;
        } else if scratch.is_none() {
            return Ok(());
        }
        // What went before may be on its way there, and holds the second scratch.
        self.wait_reduction(state, res, spans)?;
        if self.going.as_ref().is_some_and(|going| going.bucket == number) {
            self.arrive(res, spans)?;
        }
        let bucket = &mut self.buckets[number];
        let call = if let Some(scratch) = scratch {
            let send = if scratch.dtype() == wire { scratch } else { wire_copy(res, wire, scratch.view())? };
            let sum = match state.tiers.gradients {
                MemoryTier::Device => bucket.take()?,
                _ => {
                    spans.enter(Span::Offload);
                    let sum = bucket.staged(state, res, first)?;
                    spans.enter(Span::ExposedReduce);
                    sum
                }
            };
            OwnedCall::reduce_scatter(send, sum, !first)
        } else if whole && flat_shard.group != Axes::SHARD {
            let (group, accumulated) = (res.comms.over(flat_shard.group), bucket.accumulated()?.view_mut());
            return group.map_or(Ok(()), |group| all_reduce(res, group, wire, accumulated));
        } else if state.precision.gradients != wire {
            let accumulated = bucket.accumulated()?;
            if !whole {
                // The sum goes to a part of the accumulated gradients, which no started call can own.
                let (group, owned) = (res.comms.group(flat_shard.group), &flat_shard.group_shard);
                reduce_to_part(res, group, wire, accumulated.view_mut(), owned)?;
                return reduce_over_replicas(state, res, bucket);
            }
            OwnedCall::all_reduce(wire_copy(res, wire, accumulated.view())?)
        } else if whole {
            OwnedCall::all_reduce(bucket.take()?)
        } else {
            OwnedCall::reduce_scatter_in_place(bucket.take()?)
        };
        let group = res.comms.group(flat_shard.group);
        self.reducing = Some(Reducing { bucket: number, group: flat_shard.group, ticket: group.start(call)?, last });
        // One rank has nobody to wait for, and needs no second scratch.
        if group.size() == 1 { self.wait_reduction(state, res, spans) } else { Ok(()) }
    }

    /// Completes the gradients of which each tensor rank has found its own term: a micro-batch's, or the step's where they accumulate
    /// whole.
    fn sum_partial(&mut self, state: &State, res: Resources<'_>, unit: usize, last: bool) -> Result<()> {
        let (Some(grads), Some(flat_shard)) = (&mut self.units[unit], state.trainable(unit)) else { return Ok(()) };
        let Some(group) = res.comms.over(Axes::TENSOR).filter(|_| !flat_shard.partial.is_empty()) else {
            return Ok(());
        };
        if grads.scratch.is_none() && !last {
            return Ok(());
        }
        let bucket = &mut self.buckets[grads.bucket];
        let mut all = target(Some(grads), Some(bucket));
        let sum = |range: &Range<usize>| all_reduce(res, group, state.precision.reduce, all.slice_mut(range.clone()));
        flat_shard.partial.iter().try_for_each(sum)
    }

    /// Waits for the reduction that is under way. Where its sum lives elsewhere, it goes there from now on, and what went before has
    /// arrived.
    pub fn wait_reduction(&mut self, state: &State, res: Resources<'_>, spans: &mut dyn Spans) -> Result<()> {
        self.arrive(res, spans)?;
        let Some(Reducing { bucket: number, group, ticket, last }) = self.reducing.take() else { return Ok(()) };
        let done = res.comms.group(group).wait(ticket)?;
        let bucket = &mut self.buckets[number];
        if state.tiers.gradients != MemoryTier::Device {
            // The sum takes the place of the accumulated gradients until it is complete on the device.
            let accumulated = std::mem::replace(&mut bucket.accumulated, done.recv);
            drop(done.send);
            if last {
                reduce_over_replicas(state, res, bucket)?;
            }
            spans.enter(Span::Offload);
            let sum = std::mem::replace(&mut bucket.accumulated, accumulated);
            if let (Some(sum), Some(accumulated)) = (sum, &mut bucket.accumulated) {
                let copying = res.download(Category::Gradients, sum.view(), accumulated, 0..sum.len())?;
                self.going = Some(Going { bucket: number, copying, sum });
            }
            spans.enter(Span::ExposedReduce);
            return Ok(());
        }
        match (&mut bucket.accumulated, done.recv) {
            // It was a copy that travelled.
            (Some(accumulated), Some(sum)) => res.cast(TERM, sum.view(), accumulated.view_mut())?,
            (accumulated, sum) => *accumulated = sum,
        }
        drop(done.send);
        if last { reduce_over_replicas(state, res, bucket) } else { Ok(()) }
    }

    /// Adds to a unit's gradients those that the other end of the pipeline has of the same unit. A sum of two numbers is the same in both
    /// orders, so both ends have the same bits. No reduction is under way. What travels is of the gradients' own type: were it rounded
    /// on its way, each end would add its own exact sum to the other's rounded one.
    pub fn reduce_tied(&mut self, state: &State, res: Resources<'_>, unit: usize) -> Result<()> {
        let (Some(grads), Some(flat_shard)) = (&self.units[unit], state.trainable(unit)) else { return Ok(()) };
        let Some(stages) = res.comms.over(Axes::PIPELINE) else { return Ok(()) };
        let (to, from) = [stages.size() - 1 - stages.rank(); 2].into();
        let own = within(&flat_shard.owned, &flat_shard.gradients);
        let accumulated = self.buckets[grads.bucket].accumulated()?.slice_mut(grads.place.clone());
        let own = accumulated.into_slice(own);
        let mut theirs = res.alloc_at(state.tiers.gradients, Category::Communication, own.dtype(), own.len())?;
        stages.call(Call::new(Kind::SendRecv { to, from }, own.as_view(), theirs.view_mut()))?;
        res.accumulate(TERM, theirs.view(), own)
    }

    /// Waits for all that is under way: then all gradients are accumulated.
    pub fn finish(&mut self, state: &State, res: Resources<'_>, spans: &mut dyn Spans) -> Result<()> {
        self.wait_reduction(state, res, spans)?;
        self.arrive(res, spans)
    }

    /// Waits for the sum that is on its way to the host's memory.
    fn arrive(&mut self, res: Resources<'_>, spans: &mut dyn Spans) -> Result<()> {
        let Some(Going { copying, sum, .. }) = self.going.take() else { return Ok(()) };
        spans.enter(Span::Offload);
        copying.before_device(res)?;
        drop(sum);
        spans.enter(Span::ExposedReduce);
        Ok(())
    }

    /// At the end of a step: an error where some units of a bucket are complete and others are not, since it was not reduced then.
    pub fn check_reduced(&self) -> Result<()> {
        match self.buckets.iter().find(|bucket| bucket.missing != bucket.count) {
            None => Ok(()),
            Some(_) => Err(StepError::Bug("some units of a bucket have complete gradients and others have not")),
        }
    }

    /// Accumulated and reduced gradients of `range` of a unit's flat; the range is one this rank has. No reduction is under way.
    pub fn view(&self, state: &State, unit: usize, range: &Range<usize>) -> Option<View<'_>> {
        let (grads, flat_shard) = (self.units[unit].as_ref()?, state.trainable(unit)?);
        let accumulated = self.buckets[grads.bucket].accumulated.as_ref()?;
        Some(accumulated.slice(grads.place.clone()).slice(within(range, &flat_shard.gradients)))
    }
}

/// After the last reduction over the shard group: the sum over replicas, where there are some.
fn reduce_over_replicas(state: &State, res: Resources<'_>, bucket: &mut Bucket) -> Result<()> {
    // Where there are replicas, gradients are split, and a bucket is one unit.
    let Some(flat_shard) = state.trainable(bucket.units.start) else { return Ok(()) };
    let Some(replicas) = res.comms.over(flat_shard.copies) else { return Ok(()) };
    let (wire, accumulated) = (state.precision.reduce, bucket.accumulated()?);
    let shard = within(&flat_shard.group_shard, &flat_shard.gradients);
    match state.sharding.optimizer {
        Axes::NONE => all_reduce(res, replicas, wire, accumulated.view_mut()),
        Axes::SHARD => all_reduce(res, replicas, wire, accumulated.slice_mut(shard)),
        _ => {
            let part = within(&within(&flat_shard.norm_shard, &flat_shard.gradients), &shard);
            reduce_to_part(res, replicas, wire, accumulated.slice_mut(shard), &part)
        }
    }
}

/// What a micro-batch's gradients of a unit are added to; empty where nothing trains.
fn target<'a>(unit: Option<&'a mut Unit>, bucket: Option<&'a mut Bucket>) -> ViewMut<'a> {
    match (unit, bucket) {
        (Some(Unit { scratch: Some(scratch), .. }), _) => scratch.view_mut(),
        (Some(unit), Some(Bucket { accumulated: Some(accumulated), .. })) => accumulated.slice_mut(unit.place.clone()),
        _ => nothing(),
    }
}

fn nothing<'a>() -> ViewMut<'a> {
    ViewMut::of::<f32>(&mut [])
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
