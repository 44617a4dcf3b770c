//! The full layout: whole tensors under Hugging Face's names. `model.safetensors` (or several files and their index) and
//! `config.json` are a folder that transformers opens; `optimizer.safetensors` has the moments, `master.safetensors` the
//! weights where the model's files do not hold them to the bit.
//!
//! Units are gathered one after the other, each on all ranks, and of every file a rank writes every so many-th part. No rank
//! holds more than a unit, and all disks and ranks work alike.

use super::blocks::{BlockFile, BlockWriter, Share, Written};
use super::error::{Result, StateError};
use super::folder::sync;
use super::index::{FileSums, RankFiles, Role, write_json};
use super::load::{Resumable, Target, widen};
use super::saver::spawn;
use super::shard::{file_names, padded, stored_name};
use crate::checkpoint::Checkpoint;
use crate::error::StepError;
use crate::export;
use crate::hf;
use crate::mesh::within;
use crate::model::{Layout, Part, Tensor};
use crate::plan;
use crate::rank::Rank;
use serde_json::{Map, Value, json};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread::JoinHandle;
use zbench_kernels::{Arena, DType};

const OPTIMIZER: &str = "optimizer.safetensors";
const MASTER: &str = "master.safetensors";
/// A file of the model is ended before it grows beyond this; a tensor is never divided.
const FILE_BYTES: u64 = 5_000_000_000;

/// A file as it will be: its tensors in order, all of one type.
struct Outline {
    name: String,
    dtype: DType,
    tensors: Vec<(String, Vec<usize>)>,
}

impl Outline {
    fn data_bytes(&self) -> u64 {
        self.tensors.iter().map(|tensor| bytes_of(tensor, self.dtype)).sum()
    }

    fn header(&self) -> Vec<u8> {
        let mut entries = Map::new();
        // transformers refuses files that do not say which framework's layout they follow.
        entries.insert("__metadata__".into(), json!({"format": "pt"}));
        let mut at = 0;
        for tensor in &self.tensors {
            let end = at + bytes_of(tensor, self.dtype);
            let entry = json!({"dtype": stored_name(self.dtype), "shape": tensor.1, "data_offsets": [at, end]});
            entries.insert(tensor.0.clone(), entry);
            at = end;
        }
        padded(entries)
    }
}

fn bytes_of((_, shape): &(String, Vec<usize>), dtype: DType) -> u64 {
    (shape.iter().product::<usize>() * dtype.size()) as u64
}

/// The tensors of a flat as `hand_over` hands them over.
fn handed_over(layout: &Layout, unit: usize, part: Part) -> Vec<(String, Vec<usize>)> {
    let mut tensors: Vec<(String, Vec<usize>)> = Vec::new();
    for tensor in layout.units[unit].tensors_of(part) {
        if tensor.stored.is_none() || tensors.iter().all(|(name, _)| name != tensor.stored_name()) {
            tensors.push((tensor.stored_name().to_string(), tensor.stored_shape().to_vec()));
        }
    }
    tensors
}

/// What the files of a run will be: those of the model, the moments', the master's where there is need of it.
fn outlines(rank: &Rank<'_>) -> (Vec<Outline>, Outline, Option<Outline>) {
    let layout = &rank.inputs.plan.layout;
    let precision = &rank.state.precision;
    let units = 0..layout.units.len();
    let dtype = precision.parameters;
    let mut model = vec![Outline { name: String::new(), dtype, tensors: Vec::new() }];
    for (unit, part) in units.clone().flat_map(|unit| Part::ALL.map(|part| (unit, part))) {
        for tensor in handed_over(layout, unit, part) {
            let last = model.last().map_or(0, Outline::data_bytes);
            if last > 0 && last + bytes_of(&tensor, dtype) > FILE_BYTES {
                model.push(Outline { name: String::new(), dtype, tensors: Vec::new() });
            }
            if let Some(last) = model.last_mut() {
                last.tensors.push(tensor);
            }
        }
    }
    let count = model.len();
    for (number, file) in model.iter_mut().enumerate() {
        file.name = match count {
            1 => "model.safetensors".into(),
            _ => format!("model-{:05}-of-{count:05}.safetensors", number + 1),
        };
    }
    let trainable = || units.clone().flat_map(|unit| handed_over(layout, unit, Part::Trainable));
    let moments = |(name, shape): (String, Vec<usize>)| {
        [Role::ExpAvg, Role::ExpAvgSq].map(|role| (format!("{}.{name}", role.name()), shape.clone()))
    };
    // By unit, the first moments of all its tensors before the second: the order in which they are gathered.
    let of_unit = |unit: usize| {
        let (first, second): (Vec<_>, Vec<_>) =
            handed_over(layout, unit, Part::Trainable).into_iter().map(moments).map(|[a, b]| (a, b)).unzip();
        first.into_iter().chain(second)
    };
    let optimizer = Outline {
        name: OPTIMIZER.into(),
        dtype: precision.optimizer,
        tensors: units.clone().flat_map(of_unit).collect(),
    };
    let shifted = layout.units.iter().flat_map(|unit| unit.tensors_of(Part::Trainable)).any(|t| t.shift() != 0.0);
    let exact = (precision.master.is_some() || shifted).then(|| Outline {
        name: MASTER.into(),
        dtype: precision.master.unwrap_or(precision.parameters),
        tensors: trainable().collect(),
    });
    (model, optimizer, exact)
}

/// Files under way: each is filled tensor by tensor, the next beginning where the last ends.
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
            let header = outline.header();
            let bytes = header.len() as u64 + outline.data_bytes();
            let mut writer = BlockWriter::create(&dir.join(&outline.name), bytes, share, direct, grows)?;
            writer.push(&header)?;
            writers.push((outline.name.clone(), writer, outline.tensors.len()));
        }
        let dtype = outlines.first().map_or(DType::F32, |outline| outline.dtype);
        Ok(Files { dtype, writers, at: 0 })
    }

    /// The next tensor.
    fn take(&mut self, values: &[f32]) -> Result<()> {
        while self.writers.get(self.at).is_some_and(|(.., left)| *left == 0) {
            self.at += 1;
        }
        let Some((_, writer, left)) = self.writers.get_mut(self.at) else { return Ok(()) };
        *left -= 1;
        let (dtype, width) = (self.dtype, self.dtype.size() as u64);
        writer.append(values.len() as u64 * width, |range, to| {
            narrow(dtype, &values[(range.start / width) as usize..(range.end / width) as usize], to);
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

/// Elements in the type of a file, rounded to nearest even.
fn narrow(dtype: DType, values: &[f32], to: &mut [u8]) {
    match dtype {
        DType::Bf16 => {
            let to = to.as_chunks_mut().0.iter_mut().zip(values);
            to.for_each(|(to, value)| *to = half::bf16::from_f32(*value).to_le_bytes());
        }
        DType::F16 => {
            let to = to.as_chunks_mut().0.iter_mut().zip(values);
            to.for_each(|(to, value)| *to = half::f16::from_f32(*value).to_le_bytes());
        }
        _ => to.as_chunks_mut().0.iter_mut().zip(values).for_each(|(to, value)| *to = value.to_le_bytes()),
    }
}

/// Gathers all units and gives them to the writers of this rank's share; what is left is the disk's work, on a thread. Where
/// training goes on meanwhile the share is kept in memory. A collective call.
pub(super) fn start(
    rank: &mut Rank<'_>,
    (dir, number, direct): (PathBuf, usize, bool),
) -> Result<(Arc<AtomicU64>, JoinHandle<Result<u64>>)> {
    std::fs::create_dir_all(&dir).map_err(|source| StateError::io("write", &dir, source))?;
    let share = Share { first: number, every: rank.state.mesh().world() };
    let grows = rank.inputs.cell.checkpoint.as_ref().is_some_and(|saving| saving.asynchronous);
    let (model_outlines, optimizer, exact) = outlines(rank);
    let create = |outlines: &[Outline]| Files::create(outlines, &dir, share, direct, grows);
    let mut model = create(&model_outlines)?;
    let mut optimizer = create(&[optimizer])?;
    let mut exact = exact.map(|exact| create(&[exact])).transpose()?;
    // On the host an arena of its own: what is written is no part of training's memory. A device has no other.
    let arena = match rank.kernels.is_host() {
        true => Arena::host(None).map_err(|error| StepError::Input(error.to_string()))?,
        false => rank.arena.clone(),
    };
    for unit in 0..rank.state.holdings.len() {
        for part in Part::ALL {
            rank.stream(&arena, unit, part, Some(Role::Weights), true, &mut |values| model.take(values))?;
        }
        if let Some(exact) = &mut exact {
            let role = Some(Role::Weights);
            rank.stream(&arena, unit, Part::Trainable, role, false, &mut |values| exact.take(values))?;
        }
        for role in [Role::ExpAvg, Role::ExpAvgSq] {
            let role = Some(role);
            rank.stream(&arena, unit, Part::Trainable, role, false, &mut |values| optimizer.take(values))?;
        }
    }
    let memory = model.memory() + optimizer.memory() + exact.as_ref().map_or(0, Files::memory);
    let texts = (number == 0).then(|| texts(rank, &model_outlines));
    let finish = move || {
        let mut files = Vec::new();
        for of in [Some(model), Some(optimizer), exact].into_iter().flatten() {
            of.finish(share, &mut files)?;
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
fn texts(rank: &Rank<'_>, model: &[Outline]) -> Vec<(&'static str, String)> {
    let of = &rank.inputs.cell.model;
    // Without a source there is nothing to hand on.
    let source = of.weights.as_ref().and_then(|dir| crate::files::text(&dir.join("config.json")).ok());
    let mut texts = vec![("config.json", hf::config_json(of, rank.state.precision.parameters, source.as_deref()))];
    if model.len() > 1 {
        let names = model.iter().flat_map(|file| file.tensors.iter().map(|(name, _)| (name.clone(), json!(file.name))));
        let map: Map<String, Value> = names.collect();
        let total: u64 = model.iter().map(Outline::data_bytes).sum();
        let index = json!({"metadata": {"total_size": total}, "weight_map": map});
        texts.push(("model.safetensors.index.json", format!("{index:#}\n")));
    }
    texts
}

impl Rank<'_> {
    /// Gathers one flat and hands its tensors over as files hold them.
    fn stream(
        &mut self,
        arena: &Arena,
        unit: usize,
        part: Part,
        role: Option<Role>,
        shifted: bool,
        take: &mut dyn FnMut(&[f32]) -> Result<()>,
    ) -> Result<()> {
        let Some(holding) = self.state.holdings[unit][part as usize].clone() else { return Ok(()) };
        let moments = self.executor.optimizer.moments_mut(unit).filter(|_| part == Part::Trainable);
        let own = match (role, moments) {
            (Some(Role::ExpAvg), Some(moments)) => Some(moments.first.view()),
            (Some(Role::ExpAvgSq), Some(moments)) => Some(moments.second.view()),
            (_, Some(crate::shard::Moments { master: Some(master), .. })) => Some(master.view()),
            _ => {
                let home = self.executor.params.home_mut(unit, part);
                home.map(|home| home.slice(within(&holding.owned, &holding.home)))
            }
        };
        let Some(own) = own else { return Ok(()) };
        let own = match part {
            Part::Quantised => export::copied(&*self.executor.context.kernels, arena, own)?,
            _ => export::widen(&*self.executor.context.kernels, arena, own)?,
        };
        let whole = self.whole(arena, own, plan::share(&self.state.sharding, part), holding.padded)?;
        let mut result = Ok(());
        self.hand_over(unit, part, &whole, shifted, &mut |_, _, values| {
            if result.is_ok() {
                result = take(values);
            }
        })?;
        result
    }
}

/// A tensor of the model in a file: what is read of it, and where it goes.
struct Wanted<'a> {
    unit: usize,
    role: Role,
    tensor: &'a Tensor,
    /// Elements of the tensor that this rank owns.
    elements: Range<usize>,
    dtype: DType,
    bytes: Range<u64>,
}

/// Fills what a rank owns from the files of this layout. Returns the bytes read.
pub(super) fn load(from: &Resumable, target: &mut Target<'_>) -> Result<u64> {
    let Some(first) = from.ranks.first() else { return Ok(0) };
    let names: Vec<&str> = first.files.iter().map(|file| &*file.name).collect();
    let exact = names.contains(&MASTER);
    let mut bytes = 0;
    for (number, name) in names.iter().enumerate() {
        let roles: &[Role] = match *name {
            OPTIMIZER => &[Role::ExpAvg, Role::ExpAvgSq],
            MASTER => &[Role::Weights],
            _ if exact => continue,
            _ => &[Role::Weights],
        };
        let path = from.dir.join(name);
        let open =
            || Checkpoint::single(&from.dir, name).map_err(|error| StateError::damaged(&path, error.to_string()));
        bytes += read(&blocks_of(from, number, &path)?, from.direct, &open()?, roles, *name == OPTIMIZER, target)?;
    }
    Ok(bytes)
}

/// A file with the checksums of all that wrote it.
fn blocks_of(from: &Resumable, number: usize, path: &Path) -> Result<BlockFile> {
    let files = || from.ranks.iter().filter_map(|rank| rank.files.get(number));
    let bytes = files().next().map_or(0, |file| file.bytes);
    let mut sums = vec![0; bytes.div_ceil(super::blocks::BLOCK as u64) as usize];
    for file in files() {
        let blocks = Share { first: file.first, every: file.every }.blocks(bytes);
        for (block, sum) in blocks.zip(&file.crc32) {
            sums[block] = *sum;
        }
    }
    BlockFile::new(path, Written { bytes, sums })
}

fn read(
    blocks: &BlockFile,
    direct: bool,
    file: &Checkpoint,
    roles: &[Role],
    of_role: bool,
    target: &mut Target<'_>,
) -> Result<u64> {
    let layout = target.layout;
    let mut wanted = Vec::new();
    for (unit, role) in (0..layout.units.len()).flat_map(|unit| roles.iter().map(move |role| (unit, *role))) {
        let Some(owned) = target.owned(unit) else { continue };
        for tensor in layout.units[unit].tensors_of(Part::Trainable) {
            let place = tensor.place.range();
            let cut = place.start.max(owned.start)..place.end.min(owned.end);
            let name =
                if of_role { format!("{}.{}", role.name(), tensor.stored_name()) } else { tensor.stored_name().into() };
            let (false, Some(info)) = (cut.is_empty(), file.tensor(&name)) else { continue };
            if info.shape != tensor.stored_shape() {
                let reason = format!("{name} has the shape {:?} there", info.shape);
                return Err(StateError::damaged(&info.file, reason));
            }
            let elements = within(&cut, &place);
            let dtype = match info.dtype {
                crate::checkpoint::StoredType::BF16 => DType::Bf16,
                crate::checkpoint::StoredType::F16 => DType::F16,
                _ => DType::F32,
            };
            // Of a tensor that lies otherwise in the file all is read: it is a part of a block's matrix at most.
            let stored = if tensor.stored.is_some() { 0..info.elements() } else { elements.clone() };
            let at = |element: usize| info.begin + (element * dtype.size()) as u64;
            let bytes = at(stored.start)..at(stored.end);
            wanted.push(Wanted { unit, role, tensor, elements, dtype, bytes });
        }
    }
    wanted.sort_by_key(|wanted| wanted.bytes.start);
    // The header is read with its checksums, too.
    let header = 0..wanted.iter().map(|wanted| wanted.bytes.start).min().unwrap_or(0);
    let ranges: Vec<Range<u64>> = std::iter::once(header).chain(wanted.iter().map(|w| w.bytes.clone())).collect();
    let (mut values, mut together) = (Vec::new(), vec![Vec::new(); ranges.len()]);
    blocks.read(&ranges, direct, |number, at, bytes| {
        let Some(wanted) = number.checked_sub(1).map(|number| &wanted[number]) else { return Ok(()) };
        widen(wanted.dtype, bytes, &mut values);
        let first = wanted.tensor.place.start + wanted.elements.start;
        if wanted.tensor.stored.is_none() {
            return target.put(wanted.unit, wanted.role, first + at as usize / wanted.dtype.size(), &values);
        }
        together[number].extend_from_slice(&values);
        if at + (bytes.len() as u64) < wanted.bytes.end - wanted.bytes.start {
            return Ok(());
        }
        let stored = std::mem::take(&mut together[number]);
        let mut ours = vec![0f32; wanted.elements.len()];
        for run in wanted.tensor.runs(wanted.elements.clone()) {
            let to = ours[run.ours - wanted.elements.start..].iter_mut().step_by(run.step);
            to.zip(&stored[run.stored..run.stored + run.len]).for_each(|(to, from)| *to = *from);
        }
        target.put(wanted.unit, wanted.role, first, &ours)
    })
}
