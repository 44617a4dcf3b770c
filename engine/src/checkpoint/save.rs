//! A model written as transformers opens it: `config.json`, and `model.safetensors` or several files with an index.

mod adapters;
mod fresh;

pub use fresh::save_fresh;

use crate::checkpoint::export::Take;
use crate::checkpoint::weights::{CheckpointError, write_safetensors};
use crate::compute::error::StepError;
use crate::exec::Executor;
use crate::formats::hf::{config_text, weights_file, weights_index};
use serde_json::{Map, json};
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
        self.write_model(dir, options, |name, shape, values, give| give(name, shape, values))
    }

    /// Writes what `change` makes of the weights.
    fn write_model(
        &mut self,
        dir: &Path,
        options: SaveOptions,
        mut change: impl FnMut(&str, &[usize], &[f32], Take<'_>),
    ) -> Result<(), SaveError> {
        let mut files = (self.context.number == 0).then(|| Files::create(dir, options)).transpose()?;
        // Every rank goes through all units, whatever the disk of rank 0 says.
        self.export_weights(|name, shape, values| {
            if let Some(files) = &mut files {
                change(name, shape, values, &mut |name, shape, values| files.take(name, shape, values));
            }
        })?;
        let Some(files) = files else { return Ok(()) };
        files.finish()?;
        put(&dir.join("config.json"), config_text(&self.context.cell.model, options.dtype).as_bytes())
    }
}

/// The files as they fill. What is complete is written under a passing name: how many there are is known at the end.
struct Files<'a> {
    dir: &'a Path,
    options: SaveOptions,
    held: Vec<(String, Vec<usize>, Vec<f32>)>,
    bytes: u64,
    /// Names of the tensors in each file that is complete.
    parts: Vec<Vec<String>>,
    failed: Option<SaveError>,
}

impl Files<'_> {
    /// The files of a model in `dir`, which is made if it is not there.
    fn create(dir: &Path, options: SaveOptions) -> Result<Files<'_>, SaveError> {
        std::fs::create_dir_all(dir).map_err(|source| SaveError::Io { path: dir.into(), source })?;
        Ok(Files { dir, options, held: Vec::new(), bytes: 0, parts: Vec::new(), failed: None })
    }

    fn take(&mut self, name: &str, shape: &[usize], values: &[f32]) {
        let bytes = (values.len() * self.options.dtype.size()) as u64;
        if self.bytes + bytes > self.options.shard_bytes && !self.held.is_empty() {
            self.flush();
        }
        if self.failed.is_none() {
            self.held.push((name.into(), shape.into(), values.into()));
            self.bytes += bytes;
        }
    }

    fn passing(&self, part: usize) -> PathBuf {
        self.dir.join(format!("model-{:05}.safetensors.part", part + 1))
    }

    fn flush(&mut self) {
        let held = std::mem::take(&mut self.held);
        self.bytes = 0;
        if self.failed.is_some() {
            return;
        }
        let tensors: Vec<_> =
            held.iter().map(|(name, shape, values)| (name.clone(), shape.clone(), &values[..])).collect();
        match write_safetensors(&self.passing(self.parts.len()), &tensors, self.options.dtype) {
            Ok(()) => self.parts.push(held.into_iter().map(|(name, ..)| name).collect()),
            Err(error) => self.failed = Some(error.into()),
        }
    }

    /// Gives the files their names, and writes the index where there are several.
    fn finish(mut self) -> Result<(), SaveError> {
        self.flush();
        if let Some(error) = self.failed.take() {
            (0..self.parts.len()).for_each(|part| drop(std::fs::remove_file(self.passing(part))));
            return Err(error);
        }
        let count = self.parts.len();
        let (single, index) = (self.dir.join("model.safetensors"), self.dir.join("model.safetensors.index.json"));
        // What an earlier run left would be opened in place of this one's.
        let stale = if count == 1 { &index } else { &single };
        if stale.exists() {
            std::fs::remove_file(stale).map_err(|source| SaveError::Io { path: stale.clone(), source })?;
        }
        let (mut map, mut total) = (Map::new(), 0);
        for (part, names) in self.parts.iter().enumerate() {
            let file = weights_file(part, count);
            let path = self.dir.join(&file);
            std::fs::rename(self.passing(part), &path)
                .map_err(|source| SaveError::Io { path: path.clone(), source })?;
            total += std::fs::metadata(&path).map_or(0, |data| data.len());
            map.extend(names.iter().map(|name| (name.clone(), json!(file))));
        }
        if count == 1 {
            return Ok(());
        }
        put(&index, weights_index(total, map).as_bytes())
    }
}

fn put(path: &Path, bytes: &[u8]) -> Result<(), SaveError> {
    // A pipe that lies there would be waited for.
    let is_free = if path.exists() { crate::formats::files::regular(path) } else { Ok(()) };
    is_free.and_then(|()| std::fs::write(path, bytes)).map_err(|source| SaveError::Io { path: path.into(), source })
}
