//! Weights and gradients as whole tensors, for tests and for saving.

use crate::error::StepError;
use crate::executor::Executor;
use crate::mesh::{Split, within};
use crate::model::{FlatKind, Tensor};
use crate::shard;
use std::borrow::Cow;
use zbench_kernels::{Arena, Buffer, Category, DType, Op, Unpack, View, ViewMut, no_scratch};

type Result<T> = std::result::Result<T, StepError>;

impl Executor<'_> {
    /// Every weight by Hugging Face's name, whole and in f32: of matrices in few bits what they stand for. A collective call: units are gathered one by one, and each
    /// tensor is handed over before the next unit is.
    pub fn export_weights(&mut self, mut take: impl FnMut(&str, &[usize], &[f32])) -> Result<()> {
        for unit in 0..self.state.holdings.len() {
            for part in FlatKind::ALL {
                let Some(holding) = self.state.holdings[unit][part as usize].clone() else { continue };
                let own = match (part, self.optimizer.master_mut(unit)) {
                    (FlatKind::Trainable, Some(master)) => Some(master.view()),
                    _ => {
                        let home = self.params.home_mut(unit, part);
                        home.map(|home| home.slice(within(&holding.owned, &holding.home)))
                    }
                };
                let Some(own) = own else { continue };
                let own = match part {
                    FlatKind::Quantised => copied(&*self.context.kernels, &self.context.arena, own)?,
                    _ => widen(&*self.context.kernels, &self.context.arena, own)?,
                };
                let whole =
                    self.whole(&self.context.arena, own, shard::share(&self.state.sharding, part), holding.padded)?;
                self.hand_over(unit, part, &whole, true, &mut take)?;
            }
        }
        Ok(())
    }

    /// The mean gradient of every trainable weight, as `export_weights`. To be called between `gradients` and `update`.
    pub fn export_gradients(&mut self, mut take: impl FnMut(&str, &[usize], &[f32])) -> Result<()> {
        let mean = 1.0 / (self.state.mesh().world() * self.cell.train.accumulation) as f64 / self.flow.loss_scale;
        for unit in 0..self.state.holdings.len() {
            let Some(holding) = self.state.trainable(unit).cloned() else { continue };
            let Some(own) = self.gradients.view(&self.state, unit, &holding.owned) else { continue };
            let mut own = widen(&*self.context.kernels, &self.context.arena, own)?;
            self.kernels.scale(mean, own.view_mut())?;
            let whole = self.whole(&self.context.arena, own, self.state.sharding.optimizer, holding.padded)?;
            self.hand_over(unit, FlatKind::Trainable, &whole, false, &mut take)?;
        }
        Ok(())
    }

    /// Hands the tensors of a flat over as a checkpoint holds them. Weights may be stored shifted; gradients are not.
    pub(crate) fn hand_over(
        &self,
        unit: usize,
        part: FlatKind,
        whole: &Buffer,
        shifted: bool,
        take: &mut impl FnMut(&str, &[usize], &[f32]),
    ) -> Result<()> {
        let mut tensors = self.plan.layout.units[unit].tensors_of(part).collect::<Vec<_>>();
        while !tensors.is_empty() {
            let (name, shape) = (tensors[0].stored_name().to_string(), tensors[0].stored_shape());
            if tensors[0].stored.is_none() {
                let tensor = tensors.remove(0);
                take(&name, shape, &self.values(tensor, whole)?);
                continue;
            }
            // The parts of a fused tensor are handed over as the one that a checkpoint holds.
            let mut fused = vec![0f32; shape.iter().product()];
            for tensor in tensors.iter().filter(|tensor| tensor.stored_name() == name) {
                let values = self.values(tensor, whole)?;
                for run in tensor.runs(0..values.len()) {
                    let ours = values[run.ours..].iter().step_by(run.step);
                    fused[run.stored..run.stored + run.len].iter_mut().zip(ours).for_each(|(to, from)| *to = *from);
                }
                if shifted && tensor.shift() != 0.0 {
                    fused.iter_mut().for_each(|value| *value -= tensor.shift());
                }
            }
            take(&name, shape, &fused);
            tensors.retain(|tensor| tensor.stored_name() != name);
        }
        Ok(())
    }

    /// A tensor's values out of its whole flat.
    fn values<'w>(&self, tensor: &Tensor, whole: &'w Buffer) -> Result<Cow<'w, [f32]>> {
        let kept = whole.slice(tensor.place.range());
        let Some(matrix) = tensor.packed else {
            if kept.is_on_host() {
                return Ok(Cow::Borrowed(kept.as_slice()?));
            }
            let mut values = vec![0f32; kept.len()];
            self.kernels.download(kept, ViewMut::of(&mut values))?;
            return Ok(Cow::Owned(values));
        };
        let mut values = vec![0f32; matrix.len()];
        let op = Op::Unpack(Unpack { matrix, dtype: DType::F32 });
        self.kernels.run(&op, &[kept], &mut [ViewMut::of(&mut values)], no_scratch())?;
        Ok(Cow::Owned(values))
    }

    /// Gathers parts that are split as `split` says.
    pub(crate) fn whole(&self, arena: &Arena, own: Buffer, split: Split, padded: usize) -> Result<Buffer> {
        let dtype = own.dtype();
        let alloc = |len| arena.alloc(Category::Workspace, dtype, len);
        let shard = match (split, self.comms.outer()) {
            (Split::Whole, _) => return Ok(own),
            (Split::World, Some(outer)) => {
                let mut shard = alloc(padded / self.state.mesh().inner)?;
                outer.unmetered().all_gather(own.view(), shard.view_mut())?;
                shard
            }
            _ => own,
        };
        let mut whole = alloc(padded)?;
        self.comms.inner.unmetered().all_gather(shard.view(), whole.view_mut())?;
        Ok(whole)
    }
}

pub(crate) fn widen(kernels: &dyn zbench_kernels::Kernels, arena: &Arena, view: View<'_>) -> Result<Buffer> {
    let mut wide = arena.alloc(Category::Workspace, DType::F32, view.len())?;
    kernels.cast(view, wide.view_mut())?;
    Ok(wide)
}

pub(crate) fn copied(kernels: &dyn zbench_kernels::Kernels, arena: &Arena, view: View<'_>) -> Result<Buffer> {
    let mut copy = arena.alloc(Category::Workspace, view.dtype(), view.len())?;
    kernels.copy(view, copy.view_mut())?;
    Ok(copy)
}
