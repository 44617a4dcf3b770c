//! The update: each rank's part of master weights and moments, the global norm, AdamW.

use super::offloaded_tensor::{Flight, OffloadedTensor};
use super::{Gradients, Params, Resources, State};
use crate::compute::error::{Result, StepError};
use crate::config::{Cell, MemoryTier, Train, WeightRounding};
use crate::memory::moves::Move;
use crate::mesh::{Axes, within};
use crate::model::{FlatKind, Layout};
use crate::plan::Squares;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use zbench_collectives::{Communicator, Metered};
use zbench_kernels::{AdamW, Buffer, Category, DType, Op, Rounding, Sum, View, ViewMut};

/// Master weights and moments of a rank, by unit; `None` where nothing trains.
pub struct Optimizer {
    units: Vec<Option<Moments>>,
    /// By unit: this rank's gradients on their way to where the update is computed, or there.
    gradients: Vec<Option<Flight>>,
    /// What is away, and where it comes back.
    lent: Option<Lent>,
    scratch: NormScratch,
}

/// Where the agreement on a step gathers its numbers, used again from step to step.
#[derive(Default)]
struct NormScratch {
    asked: Vec<Sum>,
    known: Vec<f64>,
    own: Vec<f64>,
    all: Vec<f64>,
}

/// Master weights and moments of a unit, this rank's part.
pub struct Moments {
    /// The optimizer's own copy of the weights, where it has one.
    pub master: Option<OffloadedTensor>,
    pub first: OffloadedTensor,
    pub second: OffloadedTensor,
    /// The gradients of the last step, where updates are delayed. They lie where the update is computed.
    pub delayed: Option<Buffer>,
}

impl Moments {
    fn each(&mut self) -> impl Iterator<Item = &mut OffloadedTensor> {
        self.master.as_mut().into_iter().chain([&mut self.first, &mut self.second])
    }

    /// Brings them into host memory where they live on a disk, outside of a step.
    pub fn open(&mut self, res: Resources<'_>) -> Result<()> {
        self.each().try_for_each(|offloaded| offloaded.open(res))
    }

    /// Frees that memory; with `writes`, when the disk has what was changed.
    pub fn close(&mut self, res: Resources<'_>, writes: bool) -> Result<()> {
        self.each().try_for_each(|offloaded| offloaded.close(res, writes))
    }
}

struct Lent {
    left: usize,
    back: Receiver<(usize, Moments)>,
    wanted: Arc<AtomicBool>,
}

/// Moments on loan: they are taken unit by unit, and what is not taken stays.
pub struct StateLease<'a> {
    optimizer: &'a mut Optimizer,
    taken: usize,
}

impl StateLease<'_> {
    pub fn take(&mut self, unit: usize) -> Option<Moments> {
        let moments = self.optimizer.units[unit].take();
        self.taken += usize::from(moments.is_some());
        moments
    }

    /// Where they are to be sent back, and what is set when they are waited for.
    pub fn finish(self) -> (Sender<(usize, Moments)>, Arc<AtomicBool>) {
        let (give, back) = channel();
        let wanted = Arc::new(AtomicBool::new(false));
        self.optimizer.lent = Some(Lent { left: self.taken, back, wanted: wanted.clone() });
        (give, wanted)
    }
}

/// What the norm says about a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GlobalStats {
    /// Mean of the ranks' losses.
    pub loss: f64,
    /// Global L2 norm of the mean gradient, the loss scale taken out.
    pub norm: f64,
    /// Factor on the gradients, rounded once to f32.
    pub factor: f64,
    /// The loss scale that the gradients carry, 1 without.
    pub loss_scale: f64,
    /// The flags of all ranks together.
    pub flags: Flags,
}

/// What ranks tell each other with the loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// The run is to stop: wanted by this rank, or after the update by any rank.
    pub stop: bool,
    /// The checkpoint is written: this rank's part, or after the update those of all ranks.
    pub written: bool,
}

/// The losses of micro-batches, which a device may not have told yet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Losses {
    /// Of each micro-batch the sums of its tokens' losses, in parts.
    pub sums: Vec<Sum>,
    /// By micro-batch: where its parts end, and what their sum is multiplied by.
    ends: Vec<(usize, f64)>,
}

impl Losses {
    pub fn clear(&mut self) {
        self.sums.clear();
        self.ends.clear();
    }

    /// A micro-batch has no more parts.
    pub fn close(&mut self, factor: f64) {
        self.ends.push((self.sums.len(), factor));
    }

    /// The sum over micro-batches of the known values of their parts, times their factors.
    pub fn value(&self, known: &[f64]) -> f64 {
        let (mut all, mut start) = (0.0, 0);
        for (end, factor) in &self.ends {
            all += known[start..*end].iter().fold(0.0, |sum, part| sum + part) * factor;
            start = *end;
        }
        all
    }
}

/// What the ranks agree on in a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Update {
    pub stats: GlobalStats,
    /// The learning rate of the update with the step's gradients.
    pub lr: f64,
    /// Gradients overflowed, so nothing is updated with them.
    pub skipped: bool,
}

/// Factors of gradients whose update is delayed. They hold whichever ranks go on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Delayed {
    /// The factor of clipping.
    pub clip: f64,
    /// Turns sums over ranks and micro-batches into means, the loss scale taken out.
    pub grad_scale: f64,
}

/// An update that is to be made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Due {
    pub lr: f64,
    /// The update's number, 1 for the first: AdamW corrects its bias by it.
    pub number: u64,
    pub factors: Delayed,
}

impl Optimizer {
    /// Moments are zero, master weights unspecified.
    pub fn new(state: &State, res: Resources<'_>) -> Result<Optimizer> {
        let p = state.precision;
        let alloc = |dtype, len| OffloadedTensor::new(res, state.tiers.optimizer, Category::Optimizer, dtype, len);
        let mut units = Vec::with_capacity(state.shards.len());
        for unit in 0..state.shards.len() {
            let Some(flat_shard) = state.trainable(unit) else {
                units.push(None);
                continue;
            };
            let len = flat_shard.owned.len();
            let master = p.master.map(|dtype| alloc(dtype, len)).transpose()?;
            let (mut first, mut second) = (alloc(p.optimizer, len)?, alloc(p.optimizer, len)?);
            // A dry run has nothing to fill, and a new file holds zeros.
            if res.recorder.is_none() {
                for moment in [&mut first, &mut second] {
                    if let Some(buffer) = moment.buffer_mut() {
                        res.kernels.fill(buffer.view_mut(), 0.0)?;
                    }
                }
            }
            let delays = |len| res.alloc_at(state.tiers.update(), Category::Gradients, p.gradients, len);
            let delayed = state.delayed.then(|| delays(len)).transpose()?;
            units.push(Some(Moments { master, first, second, delayed }));
        }
        let gradients = units.iter().map(|_| None).collect();
        Ok(Optimizer { units, gradients, lent: None, scratch: NormScratch::default() })
    }

    /// Lends moments to a thread that only reads them, until the next [`Optimizer::recall`].
    pub fn lend(&mut self) -> StateLease<'_> {
        StateLease { optimizer: self, taken: 0 }
    }

    /// Waits for what was lent.
    ///
    /// # Errors
    /// Whoever had it is gone, and it with him.
    pub fn recall(&mut self) -> Result<()> {
        let Some(Lent { left, back, wanted }) = self.lent.take() else { return Ok(()) };
        wanted.store(true, Ordering::Release);
        for _ in 0..left {
            let lost = |_| StepError::Bug("the thread that writes checkpoints has panicked");
            let (unit, moments) = back.recv().map_err(lost)?;
            self.units[unit] = Some(moments);
        }
        Ok(())
    }

    /// This rank's moments of a unit.
    pub fn moments_mut(&mut self, unit: usize) -> Option<&mut Moments> {
        self.units[unit].as_mut()
    }

    /// The copy of the weights that is updated: the master's, else `None`.
    pub fn master_mut(&mut self, unit: usize) -> Option<&mut Buffer> {
        self.units[unit].as_mut()?.master.as_mut()?.buffer_mut()
    }

    /// Agrees with all ranks on the loss, the global norm and the flags. `losses` and `flags` are this rank's, `loss_scale` is the
    /// scale that the gradients carry, and `stages` says where the stages of a pipeline have their sums. Every rank sums the
    /// squares of its world-wide chunk of every unit; the chunks are then added in the order in which they stand in the model, whatever
    /// the strategy and the stages.
    pub fn reduce_loss_and_norm(
        &mut self,
        state: &State,
        res: Resources<'_>,
        gradients: &Gradients,
        train: &Train,
        (losses, loss_scale): (&Losses, f64),
        (flags, stages): (Flags, &Squares),
    ) -> Result<GlobalStats> {
        let world = res.comms.data().size();
        let counted = |unit: usize| state.trainable(unit).map(|flat_shard| (unit, &flat_shard.counted));
        let parts = || (0..state.shards.len()).filter(|unit| state.copy != Some(*unit)).filter_map(counted);
        let words = words(state);
        let width = words + parts().count() + state.omitted;
        let mut send = res.alloc(Category::Communication, DType::F64, width)?;
        // One wait for all that a device has to tell.
        let NormScratch { asked, known, own, all } = &mut self.scratch;
        asked.clone_from(&losses.sums);
        for (unit, ranges) in parts() {
            for part in ranges.iter().filter_map(|range| gradients.view(state, unit, range)) {
                asked.push(res.sum_squares("norm", part)?);
            }
        }
        known.resize(asked.len(), 0.0);
        res.kernels.read_scalars(asked, known)?;
        own.clear();
        own.push(losses.value(known) / train.accumulation as f64);
        own.resize(words, f64::from(u8::from(flags.stop) + 2 * u8::from(flags.written)));
        let mut squares = known[losses.sums.len()..].iter();
        own.extend(parts().map(|(_, ranges)| squares.by_ref().take(ranges.len()).sum::<f64>()));
        own.resize(width, 0.0);
        res.kernels.upload(View::of(own), send.view_mut())?;
        let mut recv = res.alloc(Category::Communication, DType::F64, width * world)?;
        res.comms.data().all_gather(send.view(), recv.view_mut())?;
        let tensor = res.comms.over(Axes::TENSOR);
        if res.recorder.is_some() {
            if let Some(group) = tensor {
                Agreed::default().of_tensor_ranks(group, res, world * (width - words))?;
            }
            if let Some(group) = res.comms.over(Axes::PIPELINE) {
                Agreed::default().of_stages(group, res, (world, stages))?;
            }
            // Of a dry run all numbers are 0, and there may be a million ranks.
            return Ok(GlobalStats { loss: 0.0, norm: 0.0, factor: 1.0, loss_scale, flags: Flags::default() });
        }
        all.resize(width * world, 0.0);
        res.kernels.download(recv.view(), ViewMut::of(all))?;
        let loss = (0..world).map(|rank| all[rank * width]).sum::<f64>() / world as f64;
        let word = |rank: usize| if words > 1 { all[rank * width + 1] as u8 } else { 0 };
        let flags = Flags {
            stop: (0..world).any(|rank| word(rank) & 1 != 0),
            written: (0..world).all(|rank| word(rank) & 2 != 0),
        };
        let squares = (words..width).flat_map(|i| (0..world).map(move |position| (i, position)));
        let squares = squares.map(|(i, position)| all[state.place.owner(position) * width + i]);
        let pipeline = res.comms.over(Axes::PIPELINE);
        let (loss, squares, flags) = if tensor.is_none() && pipeline.is_none() {
            // Added as they come: a step takes nothing from the heap.
            (loss, squares.sum::<f64>(), flags)
        } else {
            let mut agreed = Agreed { loss, squares: squares.collect(), flags };
            if let Some(group) = tensor {
                agreed = agreed.of_tensor_ranks(group, res, world * (width - words))?;
            }
            if let Some(group) = pipeline {
                agreed = agreed.of_stages(group, res, (world, stages))?;
            }
            (agreed.loss, agreed.squares.iter().sum(), agreed.flags)
        };
        let norm = squares.sqrt() * mean_scale(train, state.gradient_ranks()) / loss_scale;
        let factor = if train.clip_norm > 0.0 { (train.clip_norm / (norm + 1e-6)).min(1.0) } else { 1.0 };
        Ok(GlobalStats { loss, norm, factor: factor as f32 as f64, loss_scale, flags })
    }

    /// Begins to bring what the update of a unit reads to where it is computed.
    pub fn fetch(
        &mut self,
        state: &State,
        res: Resources<'_>,
        params: &mut Params,
        gradients: &Gradients,
        unit: usize,
    ) -> Result<()> {
        let (Some(moments), Some(flat_shard)) = (&mut self.units[unit], state.trainable(unit)) else { return Ok(()) };
        let at = state.tiers.update();
        let owned = &flat_shard.owned;
        // With a master copy, the weights that layers read are written alone.
        let reads = moments.master.is_none();
        for moment in moments.each() {
            moment.fetch(res, at, 0..owned.len(), true)?;
        }
        if let Some(shard) = params.tensor_mut(unit, FlatKind::Trainable) {
            shard.fetch(res, at, within(owned, &flat_shard.shard), reads)?;
        }
        if state.tiers.gradients != at
            && !state.delayed
            && let Some(own) = gradients.view(state, unit, owned)
        {
            // They are whole on the device, and updated on the host.
            let (mut copy, all) = (res.alloc_at(at, Category::Communication, own.dtype(), own.len())?, 0..own.len());
            let copying = res.download(Category::Gradients, own, &mut copy, all)?;
            self.gradients[unit] = Some(Flight::Copying(copy, copying));
        }
        Ok(())
    }

    /// Begins to take what an update has changed of a unit back to where it lives.
    pub fn store(&mut self, state: &State, res: Resources<'_>, params: &mut Params, unit: usize) -> Result<()> {
        let Some(moments) = &mut self.units[unit] else { return Ok(()) };
        let from = state.tiers.update();
        self.gradients[unit] = None;
        let shard = params.tensor_mut(unit, FlatKind::Trainable);
        moments.each().chain(shard).try_for_each(|offloaded| offloaded.store(res, from))
    }

    /// Waits until it is there.
    pub fn wait_store(&mut self, res: Resources<'_>, params: &mut Params, unit: usize) -> Result<()> {
        let Some(moments) = &mut self.units[unit] else { return Ok(()) };
        let shard = params.tensor_mut(unit, FlatKind::Trainable);
        moments.each().chain(shard).try_for_each(|offloaded| offloaded.wait_store(res))
    }

    /// Waits for what the update of a unit reads.
    pub fn land(&mut self, state: &State, res: Resources<'_>, params: &mut Params, unit: usize) -> Result<()> {
        let Some(moments) = &mut self.units[unit] else { return Ok(()) };
        let (at, shard) = (state.tiers.update(), params.tensor_mut(unit, FlatKind::Trainable));
        if let Some(coming) = self.gradients[unit].take() {
            self.gradients[unit] = Some(Flight::Here(coming.land(res, at, Category::Gradients)?));
        }
        moments.each().chain(shard).try_for_each(|offloaded| offloaded.land(res, at))
    }

    /// As [`Moments::open`] of a unit.
    pub fn open(&mut self, res: Resources<'_>, unit: usize) -> Result<()> {
        self.units[unit].as_mut().map_or(Ok(()), |moments| moments.open(res))
    }

    /// As [`Moments::close`] of a unit.
    pub fn close(&mut self, res: Resources<'_>, unit: usize, writes: bool) -> Result<()> {
        self.units[unit].as_mut().map_or(Ok(()), |moments| moments.close(res, writes))
    }

    /// One AdamW step on this rank's part of every unit.
    pub fn update(
        &mut self,
        model: (&Cell, &Layout),
        state: &State,
        res: Resources<'_>,
        params: &mut Params,
        gradients: &Gradients,
        due: Due,
    ) -> Result<()> {
        (0..self.units.len()).try_for_each(|unit| self.update_unit(model, state, res, params, gradients, (unit, due)))
    }

    /// Keeps this rank's part of the step's gradients for the next step's update.
    pub fn delay(&mut self, state: &State, res: Resources<'_>, gradients: &Gradients) -> Result<()> {
        let (from, to) = (state.tiers.gradients, state.tiers.update());
        for unit in 0..self.units.len() {
            let (Some(moments), Some(flat_shard)) = (&mut self.units[unit], state.trainable(unit)) else { continue };
            if let (Some(kept), Some(own)) = (&mut moments.delayed, gradients.view(state, unit, &flat_shard.owned)) {
                let bytes = (own.len() * own.dtype().size()) as u64;
                match (from, to) {
                    (MemoryTier::Device, MemoryTier::Host) => {
                        res.download(Category::Gradients, own, kept, 0..own.len())?.wait()?
                    }
                    _ => {
                        res.tiers.moves().note_copy(Move { what: Category::Gradients, from, to, bytes });
                        res.kernels.copy(own, kept.view_mut())?;
                    }
                }
            }
        }
        Ok(())
    }

    /// One AdamW step on this rank's part of a unit, whose state is where the update is computed.
    pub fn update_unit(
        &mut self,
        (cell, layout): (&Cell, &Layout),
        state: &State,
        res: Resources<'_>,
        params: &mut Params,
        gradients: &Gradients,
        (unit, Due { lr, number, factors }): (usize, Due),
    ) -> Result<()> {
        let (Some(moments), Some(flat_shard)) = (&mut self.units[unit], state.trainable(unit)) else { return Ok(()) };
        let (owned, at) = (flat_shard.owned.clone(), state.tiers.update());
        let grads = match (&moments.delayed, &self.gradients[unit]) {
            (Some(kept), _) => Some(kept.view()),
            (None, Some(Flight::Here(copy))) => Some(copy.view()),
            _ => gradients.view(state, unit, &owned),
        };
        let (Some(shard), Some(grads)) = (params.tensor_mut(unit, FlatKind::Trainable), grads) else { return Ok(()) };
        let at_shard = within(&owned, &flat_shard.shard);
        for (run, decays) in layout.units[unit].decay_runs(owned.clone()) {
            let op = AdamW {
                lr,
                step: number,
                clip: factors.clip,
                grad_scale: factors.grad_scale,
                ..adamw(cell, state, unit, &run, decays)
            };
            let run = within(&run, &owned);
            let weights = shard.part_mut(at, shift(&run, at_shard.start))?;
            // The weights that layers read are written in the same pass as the master's.
            let (p, copy) = match &mut moments.master {
                Some(master) => (master.part_mut(at, run.clone())?, Some(weights)),
                None => (weights, None),
            };
            let (m, v) = (moments.first.part_mut(at, run.clone())?, moments.second.part_mut(at, run.clone())?);
            let (op, reads) = (Op::AdamW(op), [grads.slice(run)]);
            match copy {
                Some(copy) => res.run("adamw", &op, &reads, &mut [p, m, v, copy])?,
                None => res.run("adamw", &op, &reads, &mut [p, m, v])?,
            }
        }
        Ok(())
    }
}

impl GlobalStats {
    /// The factors of the step's gradients.
    pub fn factors(&self, train: &Train, gradient_ranks: usize) -> Delayed {
        Delayed { clip: self.factor, grad_scale: mean_scale(train, gradient_ranks) / self.loss_scale }
    }
}

/// What ranks know of a step, and agree on group by group.
#[derive(Default)]
struct Agreed {
    /// Of the last stage; the others have none.
    loss: f64,
    /// The squares of the gradients of a stage, summed by chunk, in the order of the model; of all stages at last.
    squares: Vec<f64>,
    flags: Flags,
}

impl Agreed {
    /// Numbers in front of the squares.
    const WORDS: usize = 3;

    /// The numbers of all ranks of a group, `width` of each; none in a dry run.
    fn gathered(&self, group: &Metered, res: Resources<'_>, width: usize) -> Result<Option<Vec<f64>>> {
        let alloc = |len| res.alloc(Category::Communication, DType::F64, len);
        let (mut send, mut recv) = (alloc(width)?, alloc(width * group.size())?);
        let is_dry = res.recorder.is_some();
        if !is_dry {
            let Flags { stop, written } = self.flags;
            let mut own = vec![self.loss, f64::from(u8::from(stop)), f64::from(u8::from(written))];
            own.extend(&self.squares);
            own.resize(width, 0.0);
            res.kernels.upload(View::of(&own), send.view_mut())?;
        }
        group.all_gather(send.view(), recv.view_mut())?;
        if is_dry {
            return Ok(None);
        }
        let mut all = vec![0.0; recv.len()];
        res.kernels.download(recv.view(), ViewMut::of(&mut all))?;
        Ok(Some(all))
    }

    /// The flags of all ranks together.
    fn flags(all: &[f64], width: usize) -> Flags {
        let of = |place: usize| all.iter().skip(place).step_by(width);
        Flags { stop: of(1).any(|word| *word != 0.0), written: of(2).all(|word| *word != 0.0) }
    }

    /// The same of the ranks that share each matrix: each has `count` sums of squares, of its own parts. They have the same loss.
    fn of_tensor_ranks(self, group: &Metered, res: Resources<'_>, count: usize) -> Result<Agreed> {
        let width = Agreed::WORDS + count;
        let Some(all) = self.gathered(group, res, width)? else { return Ok(self) };
        let mut squares = vec![0.0; count];
        for of_rank in all.chunks_exact(width) {
            squares.iter_mut().zip(&of_rank[Agreed::WORDS..]).for_each(|(sum, square)| *sum += square);
        }
        Ok(Agreed { loss: all[0], squares, flags: Agreed::flags(&all, width) })
    }

    /// The same of the whole pipeline, in the order of the model: norms do not depend on the stages to the bit. Each unit has
    /// one sum for each of the `world` ranks of a stage that have the same weights.
    fn of_stages(self, stages: &Metered, res: Resources<'_>, (world, squares): (usize, &Squares)) -> Result<Agreed> {
        let width = Agreed::WORDS + world * squares.most;
        let Some(all) = self.gathered(stages, res, width)? else { return Ok(self) };
        let loss = all.iter().step_by(width).sum();
        let of_unit = |[stage, place]: &[usize; 2]| &all[stage * width + Agreed::WORDS + place * world..][..world];
        let in_order = squares.order.iter().flat_map(of_unit).copied().collect();
        Ok(Agreed { loss, squares: in_order, flags: Agreed::flags(&all, width) })
    }
}

/// Numbers in front of the sums of squares: the loss, and the wish to stop where runs can be.
fn words(state: &State) -> usize {
    1 + usize::from(state.stoppable)
}

/// The update of elements `run` of a unit's flat; the values that change with the step are those before the first.
fn adamw(cell: &Cell, state: &State, unit: usize, run: &Range<usize>, decays: bool) -> AdamW {
    let (train, p) = (&cell.train, state.precision);
    AdamW {
        len: run.len(),
        lr: 0.0,
        beta1: train.betas[0],
        beta2: train.betas[1],
        eps: train.eps,
        weight_decay: if decays { train.weight_decay } else { 0.0 },
        step: 0,
        grad_scale: mean_scale(train, state.gradient_ranks()) / p.scaling.map_or(1.0, |s| s.initial()),
        clip: 0.0,
        parameters: p.master.unwrap_or(p.parameters),
        gradients: p.gradients,
        moments: p.optimizer,
        rounding: match p.rounding {
            WeightRounding::Nearest => Rounding::Nearest,
            // By the place in the model, so that the draw is the same whichever rank updates the element.
            WeightRounding::Stochastic => Rounding::Stochastic {
                seed: train.seed ^ (state.numbers[unit] as u64).rotate_left(40),
                first: run.start as u64,
            },
        },
        copy: p.master.and_then(|_| Some(state.trainable(unit)?.dtype)),
    }
}

/// Turns the sum over gradient ranks and micro-batches into the mean.
fn mean_scale(train: &Train, gradient_ranks: usize) -> f64 {
    1.0 / (gradient_ranks * train.accumulation) as f64
}

fn shift(range: &Range<usize>, by: usize) -> Range<usize> {
    range.start + by..range.end + by
}
