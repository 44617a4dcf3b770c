//! The full layout: whole tensors under Hugging Face's names. `model.safetensors` (or several files and their index) and
//! `config.json` are a folder that transformers opens; `optimizer.safetensors` has the moments, `master.safetensors` the
//! weights where the model's files do not hold them to the bit, `delayed_gradient.safetensors` gradients whose update is delayed.
//!
//! Units are gathered one after the other, each on all ranks, and of every file a rank writes every so many-th part. No rank
//! holds more than a unit, and all disks and ranks work alike.

use super::blocks::{ALIGNMENT, BlockWriter, Share, Written};
use super::error::{Result, StateError};
use super::folder::sync;
use super::index::{FileSums, RankFiles, StateKind};
use super::json::write_json;
use super::shard::file_names;
use super::spawn;
use crate::checkpoint::weights::{encode, header_bytes};
use crate::compute::error::StepError;
use crate::exec::Executor;
use crate::formats::hf::{config_text, weights_file, weights_index};
use crate::mesh::{Axes, Axis};
use crate::model::{FlatKind, stored_tensors};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread::JoinHandle;
use zbench_kernels::{Arena, DType};

pub(super) const OPTIMIZER: &str = "optimizer.safetensors";
pub(super) const MASTER: &str = "master.safetensors";
pub(super) const DELAYED: &str = "delayed_gradient.safetensors";
/// A file of the model is ended before it grows beyond this; a tensor is never divided.
const FILE_BYTES: u64 = 5_000_000_000;

/// A planned file: its tensors in order, all of one type.
struct Outline {
    name: String,
    dtype: DType,
    tensors: Vec<(String, Vec<usize>)>,
}

impl Outline {
    fn data_bytes(&self) -> u64 {
        self.tensors.iter().map(|tensor| bytes_of(tensor, self.dtype)).sum()
    }
}

fn bytes_of((_, shape): &(String, Vec<usize>), dtype: DType) -> u64 {
    (shape.iter().product::<usize>() * dtype.size()) as u64
}

/// The planned files of a run: those of the model, of the moments, and of the master weights and of delayed gradients if there
/// are any.
fn outlines(executor: &Executor<'_>) -> (Vec<Outline>, Outline, Option<Outline>, Option<Outline>) {
    let layout = &executor.context.plan.layout;
    let precision = &executor.state.precision;
    let units = 0..layout.units.len();
    let file = |name: &str, dtype| Outline { name: name.into(), dtype, tensors: Vec::new() };
    let dtype = precision.parameters;
    let (mut model, mut bytes) = (vec![file("", dtype)], 0);
    for (unit, part) in units.clone().flat_map(|unit| FlatKind::ALL.map(|part| (unit, part))) {
        for tensor in stored_tensors(layout.units[unit].tensors_of(part)) {
            let more = bytes_of(&tensor, dtype);
            if bytes > 0 && bytes + more > FILE_BYTES {
                model.push(file("", dtype));
                bytes = 0;
            }
            bytes += more;
            if let Some(last) = model.last_mut() {
                last.tensors.push(tensor);
            }
        }
    }
    let count = model.len();
    for (number, file) in model.iter_mut().enumerate() {
        file.name = weights_file(number, count);
    }
    let mut optimizer = file(OPTIMIZER, precision.optimizer);
    let mut exact = file(MASTER, StateKind::Weights.dtype(precision));
    let mut delayed = file(DELAYED, StateKind::Delayed.dtype(precision));
    for unit in units {
        let tensors = stored_tensors(layout.units[unit].tensors_of(FlatKind::Trainable));
        // By unit, the first moments of all its tensors before the second: the order in which they are gathered.
        for role in [StateKind::ExpAvg, StateKind::ExpAvgSq] {
            let named = |(name, shape): &(String, Vec<usize>)| (format!("{}.{name}", role.name()), shape.clone());
            optimizer.tensors.extend(tensors.iter().map(named));
        }
        delayed.tensors.extend(tensors.iter().cloned());
        exact.tensors.extend(tensors);
    }
    let shifted = layout.units.iter().flat_map(|unit| unit.tensors_of(FlatKind::Trainable)).any(|t| t.shift() != 0.0);
    let is_exact = precision.master.is_some() || shifted;
    (model, optimizer, is_exact.then_some(exact), executor.delayed.map(|_| delayed))
}

/// Files that are being written. Each is filled tensor by tensor; the next one begins where the last one ends.
struct Files {
    dtype: DType,
    /// The writer, and how many tensors are still to come into it.
    writers: Vec<(String, BlockWriter, usize)>,
    at: usize,
}

impl Files {
    fn create(outlines: &[Outline], dir: &Path, share: Share, direct: bool, grows: bool) -> Result<Files> {
        let mut writers = Vec::new();
        for outline in outlines {
            let tensors = outline.tensors.iter().map(|(name, shape)| (name.clone(), &shape[..], outline.dtype));
            // transformers refuses files that do not say which framework's layout they follow.
            let header = header_bytes("pt", tensors, ALIGNMENT);
            let bytes = header.len() as u64 + outline.data_bytes();
            let mut writer = BlockWriter::create(&dir.join(&outline.name), bytes, share, direct, grows)?;
            writer.push(&header)?;
            writers.push((outline.name.clone(), writer, outline.tensors.len()));
        }
        let dtype = outlines.first().map_or(DType::F32, |outline| outline.dtype);
        Ok(Files { dtype, writers, at: 0 })
    }

    fn take(&mut self, values: &[f32]) -> Result<()> {
        while self.writers.get(self.at).is_some_and(|(.., left)| *left == 0) {
            self.at += 1;
        }
        let Some((_, writer, left)) = self.writers.get_mut(self.at) else { return Ok(()) };
        *left -= 1;
        let (dtype, width) = (self.dtype, self.dtype.size() as u64);
        writer.append(values.len() as u64 * width, |range, to| {
            encode(dtype, &values[(range.start / width) as usize..(range.end / width) as usize], to);
        })
    }

    fn memory(&self) -> u64 {
        self.writers.iter().map(|(_, writer, _)| writer.memory()).sum()
    }

    fn finish(self, share: Share, into: &mut Vec<FileSums>) -> Result<()> {
        for (name, writer, _) in self.writers {
            let Written { bytes, sums } = writer.finish()?;
            into.push(FileSums { name, bytes, first: share.first, every: share.every, crc32: sums });
        }
        Ok(())
    }
}

/// Gathers all units and gives them to the writers of this rank's share; what is left is the disk's work, on a thread. Where
/// training goes on meanwhile the share is kept in memory. A collective call.
pub(crate) fn start(
    executor: &mut Executor<'_>,
    (dir, number, direct): (PathBuf, usize, bool),
) -> Result<(Arc<AtomicU64>, JoinHandle<Result<u64>>)> {
    std::fs::create_dir_all(&dir).map_err(|source| StateError::io("write", &dir, source))?;
    // The ranks of the first stage have all of the model unit by unit, and write.
    let writes = executor.state.place.at(Axis::Pipeline) == 0;
    let share = Share { first: number, every: executor.state.mesh().size(Axes::DATA | Axes::TENSOR) };
    let grows = executor.context.cell.checkpoint.as_ref().is_some_and(|saving| saving.asynchronous);
    let (model_outlines, optimizer, exact, delayed) = outlines(executor);
    let create = |outlines: &[Outline]| Files::create(if writes { outlines } else { &[] }, &dir, share, direct, grows);
    let mut model = create(&model_outlines)?;
    let mut optimizer = create(&[optimizer])?;
    let mut exact = exact.map(|exact| create(&[exact])).transpose()?;
    let mut delayed = delayed.map(|delayed| create(&[delayed])).transpose()?;
    // On the host an arena of its own: what is written is no part of training's memory. A device has no other.
    let arena = match executor.context.kernels.is_host() {
        true => Arena::host(None).map_err(|error| StepError::Input(error.to_string()))?,
        false => executor.context.arena().clone(),
    };
    let units = executor.context.plan.layout.units.len();
    for unit in 0..units {
        for part in FlatKind::ALL {
            executor.stream(&arena, (unit, part, StateKind::Weights), true, |values| model.take(values))?;
        }
        let trainable = |role| (unit, FlatKind::Trainable, role);
        if let Some(exact) = &mut exact {
            executor.stream(&arena, trainable(StateKind::Weights), false, |values| exact.take(values))?;
        }
        for role in [StateKind::ExpAvg, StateKind::ExpAvgSq] {
            executor.stream(&arena, trainable(role), false, |values| optimizer.take(values))?;
        }
        if let Some(delayed) = &mut delayed {
            executor.stream(&arena, trainable(StateKind::Delayed), false, |values| delayed.take(values))?;
        }
    }
    let optional = [exact.as_ref(), delayed.as_ref()].into_iter().flatten().map(Files::memory).sum::<u64>();
    let memory = model.memory() + optimizer.memory() + optional;
    let texts = (number == 0).then(|| texts(executor, &model_outlines));
    let finish = move || {
        let mut files = Vec::new();
        for of in [Some(model), Some(optimizer), exact, delayed].into_iter().flatten() {
            of.finish(share, &mut files)?;
        }
        for (name, text) in texts.into_iter().flatten() {
            let path = dir.join(name);
            let put = std::fs::write(&path, text).and_then(|()| std::fs::File::open(&path)?.sync_all());
            put.map_err(|source| StateError::io("write", &path, source))?;
        }
        let bytes = files.iter().map(|file| file.bytes).sum();
        let files = RankFiles { files, pieces: Vec::new() };
        write_json(&dir.join(file_names(number).1), &files)?;
        sync(&dir)?;
        Ok(bytes)
    };
    Ok((Arc::new(AtomicU64::new(memory)), spawn(finish)?))
}

/// config.json, and the index where the model has several files.
fn texts(executor: &Executor<'_>, model: &[Outline]) -> Vec<(&'static str, String)> {
    let mut texts =
        vec![("config.json", config_text(&executor.context.cell.model, executor.state.precision.parameters))];
    if model.len() > 1 {
        let names = model.iter().flat_map(|file| file.tensors.iter().map(|(name, _)| (name.clone(), json!(file.name))));
        let total = model.iter().map(Outline::data_bytes).sum();
        texts.push(("model.safetensors.index.json", weights_index(total, names.collect())));
    }
    texts
}

impl Executor<'_> {
    /// Gathers one flat and passes its tensors on as files hold them.
    fn stream(
        &mut self,
        arena: &Arena,
        (unit, part, role): (usize, FlatKind, StateKind),
        shifted: bool,
        mut take: impl FnMut(&[f32]) -> Result<()>,
    ) -> Result<()> {
        let Some(whole) = self.gather_of_model(arena, unit, part, role)? else { return Ok(()) };
        let (mut result, plan) = (Ok(()), self.context.plan);
        self.hand_over_of(&plan.layout.units[unit], part, &whole, shifted, &mut |_, _, values| {
            if result.is_ok() {
                result = take(values);
            }
        })?;
        result
    }
}
