//! Weights and gradients as whole tensors, for tests and for saving.

use crate::checkpoint::training::StateKind;
use crate::compute::error::{Result, StepError};
use crate::exec::Executor;
use crate::mesh::{Axes, Axis};
use crate::model::layers::TensorSplit;
use crate::model::{FlatKind, Part, Tensor, Unit};
use crate::plan;
use crate::plan::placement::share;
use crate::state::FlatShard;
use std::borrow::Cow;
use zbench_collectives::Communicator;
use zbench_kernels::{Arena, Buffer, Category, DType, Op, Unpack, View, ViewMut, no_scratch};

/// Takes a tensor: its name, its shape, its elements.
pub(crate) type Take<'a> = &'a mut dyn FnMut(&str, &[usize], &[f32]);

impl Executor<'_> {
    /// Every weight under Hugging Face's name, whole and in f32; a quantised matrix is dequantised. A collective call: units
    /// are gathered one by one, and each tensor is handed over before the next unit is gathered. Of a pipeline the ranks of the first
    /// stage are told.
    pub fn export_weights(&mut self, mut take: impl FnMut(&str, &[usize], &[f32])) -> Result<()> {
        let (arena, plan) = (self.context.arena().clone(), self.context.plan);
        for (unit, spec) in plan.layout.units.iter().enumerate() {
            for part in FlatKind::ALL {
                if let Some(whole) = self.gather_of_model(&arena, unit, part, StateKind::Weights)? {
                    self.hand_over(spec, part, &whole, true, &mut take)?;
                }
            }
        }
        Ok(())
    }

    /// As [`Executor::gather`] of a unit of the whole model, with the flats of all ranks that share its tensors one behind the other,
    /// for the ranks of the first stage. The others get none. A collective call of all ranks.
    pub(crate) fn gather_of_model(
        &mut self,
        arena: &Arena,
        unit: usize,
        part: FlatKind,
        role: StateKind,
    ) -> Result<Option<Buffer>> {
        let found =
            |(stage, role): (usize, &plan::StagePlan)| Some((stage, role.layout.numbers.binary_search(&unit).ok()?));
        let (owner, number) = self.context.plan.stage_plans.iter().enumerate().find_map(found).unwrap_or((0, unit));
        let own = self.state.place.at(Axis::Pipeline);
        let whole = if own == owner { self.gather(arena, number, part, role)? } else { None };
        let whole = whole.map(|whole| self.of_tensor_ranks(arena, whole)).transpose()?;
        if owner == 0 || own != owner && own != 0 {
            return Ok(whole);
        }
        let none = || StepError::Bug("stages without a pipeline");
        let stages = self.context.comms.over(Axes::PIPELINE).ok_or_else(none)?.unmetered();
        if own == owner {
            whole.map_or(Ok(()), |whole| stages.send(whole.view(), 0))?;
            return Ok(None);
        }
        let flat = self.context.plan.layout.units[unit].flat(part);
        if flat.len == 0 {
            return Ok(None);
        }
        let dtype = if part == FlatKind::Quantised { DType::I8 } else { DType::F32 };
        let ranks = self.state.mesh().size(Axes::TENSOR);
        let mut whole = arena.alloc(Category::Workspace, dtype, ranks * flat.padded)?;
        stages.recv(whole.view_mut(), owner)?;
        Ok(Some(whole))
    }

    /// Gathers the weights or a moment of one flat, in f32 or, of a quantised flat, as it is kept; `None` where there is
    /// none. A collective call.
    fn gather(&mut self, arena: &Arena, unit: usize, part: FlatKind, role: StateKind) -> Result<Option<Buffer>> {
        let Executor { context, state, params, optimizer, .. } = self;
        if state.shards[unit][part as usize].is_none() {
            return Ok(None);
        }
        let (kernels, res) = (&*context.kernels, context.resources());
        params.open(res, unit)?;
        optimizer.open(res, unit)?;
        let Some((_, own)) = role.held(state, params, optimizer, unit, part) else { return Ok(None) };
        let dtype = if part == FlatKind::Quantised { own.dtype() } else { DType::F32 };
        let mut copy = arena.alloc(Category::Workspace, dtype, own.len())?;
        match part {
            FlatKind::Quantised => kernels.copy(own, copy.view_mut())?,
            _ => kernels.cast(own, copy.view_mut())?,
        }
        params.close(res, unit, false)?;
        optimizer.close(res, unit, false)?;
        let Some(flat_shard) = &self.state.shards[unit][part as usize] else { return Ok(None) };
        self.whole(arena, copy, share(&self.state.sharding, part), flat_shard).map(Some)
    }

    /// The mean gradient of every trainable weight, as `export_weights`. To be called between `gradients` and `update`.
    pub fn export_gradients(&mut self, mut take: impl FnMut(&str, &[usize], &[f32])) -> Result<()> {
        let mean = 1.0
            / (self.state.gradient_ranks() * self.context.cell.train.accumulation) as f64
            / self.step_state.loss_scale;
        for unit in 0..self.state.shards.len() {
            let Some(flat_shard) = self.state.trainable(unit).cloned() else { continue };
            let Some(own) = self.gradients.view(&self.state, unit, &flat_shard.owned) else { continue };
            let mut wide = self.context.arena().alloc(Category::Workspace, DType::F32, own.len())?;
            self.context.kernels.cast(own, wide.view_mut())?;
            self.context.kernels.scale(mean, wide.view_mut())?;
            let whole = self.whole(self.context.arena(), wide, self.state.sharding.optimizer, &flat_shard)?;
            let whole = self.of_tensor_ranks(self.context.arena(), whole)?;
            let spec = &self.context.stage_plan.layout.units[unit];
            self.hand_over(spec, FlatKind::Trainable, &whole, false, &mut take)?;
        }
        Ok(())
    }

    /// Hands the tensors of a gathered flat over as a checkpoint holds them. Weights may be stored shifted; gradients are not.
    pub(crate) fn hand_over(
        &self,
        unit: &Unit,
        part: FlatKind,
        whole: &Buffer,
        shifted: bool,
        take: Take<'_>,
    ) -> Result<()> {
        as_stored(unit.tensors_of(part), shifted, |tensor| self.values(tensor, whole), take)
    }

    /// A whole tensor's values from the gathered flats of the ranks that share it.
    fn values<'w>(&self, tensor: &Tensor, flats: &'w Buffer) -> Result<Cow<'w, [f32]>> {
        let ranks = self.state.place.group(Axes::TENSOR);
        let flat = flats.len() / ranks.len();
        let place = tensor.place.range();
        if tensor.cut == TensorSplit::Replicated {
            return self.own_values(tensor, flats.slice(place));
        }
        let mut values = vec![0f32; tensor.whole_elements()];
        for (number, rank) in ranks.into_iter().enumerate() {
            let own = self.own_values(tensor, flats.slice(number * flat + place.start..number * flat + place.end))?;
            for Part { ours, whole, len } in tensor.parts(&self.state.mesh().place(rank), 0..own.len()) {
                values[whole..whole + len].copy_from_slice(&own[ours..ours + len]);
            }
        }
        Ok(Cow::Owned(values))
    }

    /// The values of what a rank has of a tensor.
    fn own_values<'w>(&self, tensor: &Tensor, kept: View<'w>) -> Result<Cow<'w, [f32]>> {
        let Some(matrix) = tensor.packed else {
            if kept.is_on_host() {
                return Ok(Cow::Borrowed(kept.as_slice()?));
            }
            let mut values = vec![0f32; kept.len()];
            self.context.kernels.download(kept, ViewMut::of(&mut values))?;
            return Ok(Cow::Owned(values));
        };
        let mut values = vec![0f32; matrix.len()];
        let op = Op::Unpack(Unpack { matrix, dtype: DType::F32 });
        self.context.kernels.run(&op, &[kept], &mut [ViewMut::of(&mut values)], no_scratch())?;
        Ok(Cow::Owned(values))
    }

    /// A flat of each of the ranks that share the unit's tensors, one behind the other.
    fn of_tensor_ranks(&self, arena: &Arena, own: Buffer) -> Result<Buffer> {
        let Some(group) = self.context.comms.over(Axes::TENSOR) else { return Ok(own) };
        let mut all = arena.alloc(Category::Workspace, own.dtype(), own.len() * group.size())?;
        group.unmetered().all_gather(own.view(), all.view_mut())?;
        Ok(all)
    }

    /// Gathers a flat whose parts are split as `split` says.
    fn whole(&self, arena: &Arena, own: Buffer, split: Axes, of: &FlatShard) -> Result<Buffer> {
        let dtype = own.dtype();
        let alloc = |len| arena.alloc(Category::Workspace, dtype, len);
        let comms = &self.context.comms;
        let shard = match (split, comms.over(of.copies)) {
            (Axes::NONE, _) => return Ok(own),
            (Axes::DATA, Some(replicas)) => {
                let mut shard = alloc(of.group_shard.len())?;
                replicas.unmetered().all_gather(own.view(), shard.view_mut())?;
                shard
            }
            _ => own,
        };
        let mut whole = alloc(of.padded)?;
        comms.group(of.group).unmetered().all_gather(shard.view(), whole.view_mut())?;
        Ok(whole)
    }
}

/// Hands tensors over as a checkpoint holds them: the parts of a fused tensor together, as that one.
pub(crate) fn as_stored<'t, 'v>(
    tensors: impl Iterator<Item = &'t Tensor>,
    shifted: bool,
    values: impl Fn(&Tensor) -> Result<Cow<'v, [f32]>>,
    take: Take<'_>,
) -> Result<()> {
    let mut left: Vec<&Tensor> = tensors.collect();
    while let Some(first) = left.first().copied() {
        let (name, shape) = (first.stored_name(), first.stored_shape());
        if first.stored.is_none() {
            take(name, shape, &values(first)?);
            left.remove(0);
            continue;
        }
        let mut fused = vec![0f32; shape.iter().product()];
        let (parts, others): (Vec<_>, Vec<_>) = left.into_iter().partition(|tensor| tensor.stored_name() == name);
        for tensor in parts {
            let (values, less) = (values(tensor)?, if shifted { tensor.shift() } else { 0.0 });
            for run in tensor.runs(0..values.len()) {
                let ours = values[run.ours..].iter().step_by(run.step);
                fused[run.stored..run.stored + run.len].iter_mut().zip(ours).for_each(|(to, from)| *to = *from - less);
            }
        }
        take(name, shape, &fused);
        left = others;
    }
    Ok(())
}
