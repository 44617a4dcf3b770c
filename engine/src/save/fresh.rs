//! A model with fresh weights, written without training: one tensor at a time, so that it may be larger than memory.

use super::{Files, SaveError, SaveOptions, put};
use crate::config::{AttentionKind, Lora, Model};
use crate::error::StepError;
use crate::hf;
use crate::init;
use crate::model::{Layout, LayoutKey};
use std::path::Path;
use zbench_kernels::{Kernels, ViewMut};

/// Writes the weights that a run of `model` with this `train.seed` starts from without a checkpoint, as [`crate::rank::Rank::save_model`] would before the
/// first step. What is held is a file of `options.shard_bytes` (in f32) and a tensor.
///
/// # Errors
/// The folder takes no files, or an operation is refused.
pub fn save_fresh(
    model: &Model,
    seed: u64,
    kernels: &dyn Kernels,
    dir: &Path,
    options: SaveOptions,
) -> Result<(), SaveError> {
    std::fs::create_dir_all(dir).map_err(|source| SaveError::Io { path: dir.into(), source })?;
    // No adapters, and no rank to pad for: a tensor's random numbers follow from its name alone, so they are those of any run.
    let lora = Lora { rank: 0, ..Lora::default() };
    let layout = Layout::on(LayoutKey { model, lora: &lora, attention: AttentionKind::Flash, granule: 1, ranks: 1 });
    let mut files = Files { dir, options, held: Vec::new(), bytes: 0, parts: Vec::new(), failed: None };
    for unit in &layout.units {
        let mut left: Vec<_> = unit.tensors.iter().filter(|tensor| tensor.in_checkpoint).collect();
        while let Some(first) = left.first() {
            let (name, shape) = (first.stored_name().to_string(), first.stored_shape().to_vec());
            // The parts of a fused tensor are written as the one that a checkpoint holds.
            let mut stored = vec![0f32; shape.iter().product()];
            let (parts, others): (Vec<_>, Vec<_>) = left.into_iter().partition(|tensor| tensor.stored_name() == name);
            for tensor in parts {
                let mut values = vec![0f32; tensor.elements()];
                let drawn = init::draw(kernels, seed, tensor, 0..values.len(), ViewMut::of(&mut values));
                drawn.map_err(StepError::from)?;
                for run in tensor.runs(0..values.len()) {
                    let ours = values[run.ours..].iter().step_by(run.step);
                    let theirs = &mut stored[run.stored..run.stored + run.len];
                    theirs.iter_mut().zip(ours).for_each(|(to, from)| *to = *from - tensor.shift());
                }
            }
            files.take(&name, &shape, &stored);
            left = others;
        }
    }
    files.finish()?;
    put(&dir.join("config.json"), hf::config_json(model, options.dtype, None).as_bytes())
}
