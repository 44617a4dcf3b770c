//! A model written as transformers opens it: `config.json`, and `model.safetensors` or several files with an index.

mod adapters;
mod fresh;

pub use fresh::save_fresh;

use crate::checkpoint::tensor_files::{Named, Outline, TensorFiles, index_text, model_tensors};
use crate::checkpoint::weights::CheckpointError;
use crate::compute::error::StepError;
use crate::exec::Executor;
use crate::formats::hf::config_text;
use crate::model::is_adapter;
use adapters::Merger;
use std::path::{Path, PathBuf};
use zbench_kernels::DType;

#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    #[error(transparent)]
    Step(#[from] StepError),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error("{}: cannot be written: {source}; make room or name another folder", .path.display())]
    Io { path: PathBuf, source: std::io::Error },
}

/// Makes a folder and tries whether files can be made in it: what is trained for hours should not end before a wall that
/// was there at the start.
///
/// # Errors
/// The folder cannot be made, is a file, or takes no file.
pub fn try_folder(dir: &Path) -> Result<(), SaveError> {
    let failed = |source| SaveError::Io { path: dir.into(), source };
    std::fs::create_dir_all(dir).map_err(failed)?;
    let trial = dir.join(format!(".zbench-{}.part", std::process::id()));
    std::fs::write(&trial, b"zbench").and_then(|()| std::fs::remove_file(&trial)).map_err(failed)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SaveOptions {
    /// f32, bf16 or f16.
    pub dtype: DType,
    /// A file is ended before its elements take more bytes than this; a tensor is never divided.
    pub shard_bytes: u64,
}

impl Default for SaveOptions {
    fn default() -> SaveOptions {
        SaveOptions { dtype: DType::F32, shard_bytes: 5_000_000_000 }
    }
}

impl Executor<'_> {
    /// Writes the weights into `dir`, which is made if it is not there. A collective call: every rank takes part, rank 0
    /// writes. Adapters have their own names in the files; [`Executor::save_merged`] writes a model without any.
    pub fn save_model(&mut self, dir: &Path, options: SaveOptions) -> Result<(), SaveError> {
        self.write_model(dir, options, None)
    }

    /// Writes the weights, into which the adapters are merged if there is a merger.
    fn write_model(
        &mut self,
        dir: &Path,
        options: SaveOptions,
        mut merger: Option<Merger<'_>>,
    ) -> Result<(), SaveError> {
        let mut tensors = model_tensors(&self.context.plan.layout);
        tensors.retain(|(name, _)| merger.is_none() || !is_adapter(name));
        let created = (self.context.number == 0).then(|| create_model(dir, tensors, options)).transpose();
        let (mut files, mut result) = created.map_or_else(|error| (None, Err(error)), |files| (files, Ok(())));
        // Every rank goes through all units, whatever the disk of rank 0 says.
        self.export_weights(|name, shape, values| {
            let Some(files) = files.as_mut().filter(|_| result.is_ok()) else { return };
            let values = match &mut merger {
                Some(merger) => merger.take(name, shape, values),
                None => Some(values.into()),
            };
            let taken = values.map_or(Ok(()), |values| files.take(&values));
            result = taken.map_err(|error| CheckpointError::from(error).into());
        })?;
        result?;
        let config = || config_text(&self.context.cell.model, options.dtype);
        files.map_or(Ok(()), |files| finish_model(files, dir, &config()))
    }
}

/// Creates the files of a model's weights in `dir`, which is made if it is not there.
fn create_model(dir: &Path, tensors: Vec<Named>, options: SaveOptions) -> Result<TensorFiles, SaveError> {
    std::fs::create_dir_all(dir).map_err(|source| SaveError::Io { path: dir.into(), source })?;
    let outlines = Outline::of_model(tensors, options.dtype, options.shard_bytes);
    Ok(TensorFiles::create_hidden(dir, outlines).map_err(CheckpointError::from)?)
}

/// Gives the files their names, and writes the index where there are several, and `config.json`.
fn finish_model(files: TensorFiles, dir: &Path, config: &str) -> Result<(), SaveError> {
    let written = files.finish().map_err(CheckpointError::from)?;
    let (single, index) = (dir.join("model.safetensors"), dir.join("model.safetensors.index.json"));
    // What an earlier run left would be opened in place of this one's.
    let stale = if written.len() == 1 { &index } else { &single };
    if stale.exists() {
        std::fs::remove_file(stale).map_err(|source| SaveError::Io { path: stale.clone(), source })?;
    }
    if written.len() > 1 {
        let total = written.iter().map(|(_, written)| written.bytes).sum();
        put(&index, index_text(total, written.iter().map(|(outline, _)| outline)).as_bytes())?;
    }
    put(&dir.join("config.json"), config.as_bytes())
}

fn put(path: &Path, bytes: &[u8]) -> Result<(), SaveError> {
    // A pipe that lies there would be waited for.
    let is_free = if path.exists() { crate::formats::files::regular(path) } else { Ok(()) };
    is_free.and_then(|()| std::fs::write(path, bytes)).map_err(|source| SaveError::Io { path: path.into(), source })
}
