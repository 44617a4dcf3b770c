//! The full layout: whole tensors under Hugging Face's names. `model.safetensors` (or several files and their index) and
//! `config.json` are a folder that transformers opens; `optimizer.safetensors` has the moments, `master.safetensors` the
//! weights where the model's files do not hold them to the bit, `delayed_gradient.safetensors` gradients whose update is delayed.
//!
//! Units are gathered one after the other, each on all ranks, and of every file a rank writes every so many-th part. No rank
//! holds more than a unit, and all disks and ranks work alike.

use super::error::{Result, StateError};
use super::folder::sync;
use super::index::{FileSums, Piece, RankFiles, StateKind, trainable};
use super::json::write_json;
use super::load::{Reading, Resumable, Target, Wanted};
use super::shard::file_names;
use super::slice::Slice;
use super::spawn;
use crate::checkpoint::blocks::{Share, WriteOptions, Written};
use crate::checkpoint::overlap;
use crate::checkpoint::tensor_files::{Outline, TensorFiles, index_text, model_tensors};
use crate::checkpoint::weights::{Checkpoint, stored_type};
use crate::compute::error::StepError;
use crate::exec::Executor;
use crate::formats::hf::config_text;
use crate::mesh::{Axes, Axis, within};
use crate::model::{FlatKind, stored_tensors};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread::JoinHandle;
use zbench_kernels::{Arena, DType};

const MASTER: &str = "master.safetensors";
/// The files behind the model's, and what they hold.
const STATE_FILES: [(&str, &[StateKind]); 3] = [
    ("optimizer.safetensors", &[StateKind::ExpAvg, StateKind::ExpAvgSq]),
    (MASTER, &[StateKind::Weights]),
    ("delayed_gradient.safetensors", &[StateKind::Delayed]),
];
/// A file of the model is ended before it grows beyond this; a tensor is never divided.
const FILE_BYTES: u64 = 5_000_000_000;

/// The name of a tensor in a file that holds these kinds of state.
fn name_in(kinds: &[StateKind], kind: StateKind, tensor: &str) -> String {
    if kinds.len() > 1 { format!("{}.{tensor}", kind.name()) } else { tensor.into() }
}

/// Files that hold these parts of every unit, and these kinds of state of each part.
struct Group {
    parts: &'static [FlatKind],
    kinds: &'static [StateKind],
    /// Whether weights are stored shifted, as transformers reads them.
    is_shifted: bool,
    files: TensorFiles,
}

/// The files of a run: those of the model first.
fn groups(executor: &Executor<'_>, create: impl Fn(Vec<Outline>) -> Result<TensorFiles>) -> Result<Vec<Group>> {
    let (layout, precision) = (&executor.context.plan.layout, &executor.state.precision);
    let trainable = || layout.units.iter().map(|unit| unit.tensors_of(FlatKind::Trainable));
    let model = Outline::of_model(model_tensors(layout), precision.parameters, FILE_BYTES);
    let (parts, kinds) = (&FlatKind::ALL, &[StateKind::Weights]);
    let mut groups = vec![Group { parts, kinds, is_shifted: true, files: create(model)? }];
    for (name, kinds) in STATE_FILES {
        let is_written = match kinds[0] {
            StateKind::Weights => {
                precision.master.is_some() || trainable().flatten().any(|tensor| tensor.shift() != 0.0)
            }
            StateKind::Delayed => executor.delayed.is_some(),
            StateKind::ExpAvg | StateKind::ExpAvgSq => true,
        };
        if !is_written {
            continue;
        }
        let mut tensors = Vec::new();
        for unit in trainable().map(stored_tensors) {
            // The first moments of all of a unit's tensors before the second: the order in which they are gathered.
            for kind in kinds {
                tensors.extend(unit.iter().map(|(name, shape)| (name_in(kinds, *kind, name), shape.clone())));
            }
        }
        let files = create(vec![Outline::new(name, tensors, kinds[0].dtype(precision))])?;
        groups.push(Group { parts: &[FlatKind::Trainable], kinds, is_shifted: false, files });
    }
    Ok(groups)
}

/// Gathers all units and gives them to the writers of this rank's share; what is left is the disk's work, on a thread. Where
/// training goes on meanwhile the share is kept in memory. A collective call.
pub(crate) fn start(
    executor: &mut Executor<'_>,
    (dir, number, direct): (PathBuf, usize, bool),
) -> Result<(Arc<AtomicU64>, JoinHandle<Result<u64>>)> {
    std::fs::create_dir_all(&dir).map_err(|source| StateError::io("write", &dir, source))?;
    let share = Share { first: number, every: executor.state.mesh().size(Axes::DATA | Axes::TENSOR) };
    let grows = executor.context.cell.checkpoint.as_ref().is_some_and(|saving| saving.asynchronous);
    // The ranks of the first stage have all of the model unit by unit, and write.
    let writes = executor.state.place.at(Axis::Pipeline) == 0;
    let mut groups = groups(executor, |outlines| {
        let outlines = if writes { outlines } else { Vec::new() };
        Ok(TensorFiles::create(&dir, outlines, WriteOptions { share, direct, grows })?)
    })?;
    // On the host an arena of its own: what is written is no part of training's memory. A device has no other.
    let arena = match executor.context.kernels.is_host() {
        true => Arena::host(None).map_err(|error| StepError::Input(error.to_string()))?,
        false => executor.context.arena().clone(),
    };
    let plan = executor.context.plan;
    for (number, unit) in plan.layout.units.iter().enumerate() {
        for group in &mut groups {
            for (part, kind) in group.parts.iter().flat_map(|part| group.kinds.iter().map(|kind| (*part, *kind))) {
                let Some(whole) = executor.gather_of_model(&arena, number, part, kind)? else { continue };
                let mut result = Ok(());
                executor.hand_over(unit, part, &whole, group.is_shifted, &mut |_, _, values| {
                    if result.is_ok() {
                        result = group.files.take(values);
                    }
                })?;
                result?;
            }
        }
    }
    let memory = groups.iter().map(|group| group.files.memory()).sum();
    let texts = (number == 0).then(|| texts(executor, &groups[0].files));
    let finish = move || {
        let mut files = Vec::new();
        for group in groups {
            let sums = |(Outline { name, .. }, Written { bytes, sums })| FileSums {
                name,
                bytes,
                first: share.first,
                every: share.every,
                crc32: sums,
            };
            files.extend(group.files.finish()?.into_iter().map(sums));
        }
        for (name, text) in texts.into_iter().flatten() {
            let path = dir.join(name);
            let put = std::fs::write(&path, text).and_then(|()| std::fs::File::open(&path)?.sync_all());
            put.map_err(|source| StateError::io("write", &path, source))?;
        }
        let bytes = files.iter().map(|file| file.bytes).sum();
        write_json(&dir.join(file_names(number).1), &RankFiles { files, pieces: Vec::new() })?;
        sync(&dir)?;
        Ok(bytes)
    };
    Ok((Arc::new(AtomicU64::new(memory)), spawn(finish)?))
}

/// config.json, and the index where the model has several files.
fn texts(executor: &Executor<'_>, model: &TensorFiles) -> Vec<(&'static str, String)> {
    let config = config_text(&executor.context.cell.model, executor.state.precision.parameters);
    let mut texts = vec![("config.json", config)];
    if model.outlines().count() > 1 {
        let total = model.outlines().map(Outline::data_bytes).sum();
        texts.push(("model.safetensors.index.json", index_text(total, model.outlines())));
    }
    texts
}

/// What a rank needs of the files of this layout.
pub(super) fn readings<'a>(from: &Resumable, target: &Target<'a>) -> Result<Vec<Reading<'a>>> {
    let Some(first) = from.ranks.first() else { return Ok(Vec::new()) };
    let is_exact = first.files.iter().any(|file| file.name == MASTER);
    let mut readings = Vec::new();
    for (number, FileSums { name, .. }) in first.files.iter().enumerate() {
        let state = STATE_FILES.iter().find(|(of_state, _)| of_state == name);
        if state.is_none() && is_exact {
            continue;
        }
        let kinds = state.map_or(&[StateKind::Weights][..], |(_, kinds)| kinds);
        let blocks = from.blocks(name, from.ranks.iter().filter_map(|rank| rank.files.get(number)))?;
        let file = Checkpoint::single(&from.dir, name)
            .map_err(|error| StateError::damaged(&from.dir.join(name), error.to_string()))?;
        let wanted = wanted(&file, kinds, target)?;
        // The header is checked against its checksums, too.
        let header = 0..wanted.iter().map(|wanted| wanted.bytes.start).min().unwrap_or(0);
        readings.push(Reading { blocks, header: Some(header), wanted });
    }
    Ok(readings)
}

/// What a rank needs of a file that holds these kinds of state.
fn wanted<'a>(file: &Checkpoint, kinds: &[StateKind], target: &Target<'a>) -> Result<Vec<Wanted<'a>>> {
    let (mut wanted, mut pieces) = (Vec::new(), Vec::new());
    for (number, unit, tensor) in trainable(target.layout) {
        let place = tensor.place.range();
        let Some(cut) = target.owned(unit).and_then(|owned| overlap(&place, &owned)) else { continue };
        for role in kinds.iter().copied() {
            let name = name_in(kinds, role, tensor.stored_name());
            let Some(info) = file.tensor(&name) else { continue };
            if info.shape != tensor.stored_shape() {
                let reason = format!("{name} has the shape {:?} there", info.shape);
                return Err(StateError::damaged(&info.file, reason));
            }
            let known =
                [DType::F32, DType::Bf16, DType::F16].into_iter().find(|dtype| stored_type(*dtype) == info.dtype);
            let Some(dtype) = known else {
                return Err(StateError::damaged(&info.file, format!("{name} is stored as {:?}", info.dtype)));
            };
            if tensor.stored.is_none() {
                let slice = Slice::whole(0..info.elements());
                pieces.push(Piece { tensor: number, role, dtype, slice, at: info.begin });
                continue;
            }
            // Of a tensor that lies otherwise in the file all is read: it is a part of a block's matrix at most.
            let bytes = info.begin..info.begin + info.bytes() as u64;
            let stored = Some((tensor, within(&cut, &place)));
            wanted.push(Wanted { unit, role, elements: cut.clone(), dtype, bytes, stored });
        }
    }
    wanted.extend(target.wanted(&pieces));
    Ok(wanted)
}
