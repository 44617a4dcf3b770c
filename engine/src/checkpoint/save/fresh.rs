//! A model with fresh weights, written without training: one tensor at a time, so that it may be larger than memory.

use super::{SaveError, SaveOptions, create_model, finish_model};
use crate::checkpoint::export::as_stored;
use crate::checkpoint::init;
use crate::checkpoint::weights::CheckpointError;
use crate::config::{AttentionKind, Degrees, Lora, Model};
use crate::formats::hf;
use crate::model::{Layout, LayoutKey, Tensor};
use std::borrow::Cow;
use std::path::Path;
use zbench_kernels::{Kernels, ViewMut};

/// Writes the weights that a run of `model` with this `train.seed` starts from without a checkpoint, as [`crate::exec::Executor::save_model`] would before the
/// first step. One tensor is held in f32.
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
    // No adapters, and no rank to pad for: a tensor's random numbers follow from its name alone, so they are those of any run.
    let lora = Lora { rank: 0, ..Lora::default() };
    let layout = Layout::on(LayoutKey {
        model,
        lora: &lora,
        attention: AttentionKind::Flash,
        granule: 1,
        ranks: 1,
        cut: Degrees::default(),
        decoder_layers: None,
    });
    let mut files = create_model(dir, layout.checkpoint_tensors(), options)?;
    for unit in &layout.units {
        let drawn = |tensor: &Tensor| {
            let mut values = vec![0f32; tensor.elements()];
            init::draw(kernels, seed, tensor, 0..values.len(), ViewMut::of(&mut values))?;
            Ok(Cow::Owned(values))
        };
        let tensors = unit.tensors.iter().filter(|tensor| tensor.in_checkpoint);
        let mut result = Ok(());
        as_stored(tensors, true, drawn, &mut |_, _, values| {
            if result.is_ok() {
                result = files.take(values);
            }
        })?;
        result.map_err(CheckpointError::from)?;
    }
    finish_model(files, dir, &hf::config_json(model, options.dtype, None))
}
