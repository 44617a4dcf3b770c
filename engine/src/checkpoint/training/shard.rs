//! A rank's file of the sharded layout: a safetensors file with its part of every unit, in the order of the model.

use super::error::{Result, StateError};
use super::folder::sync;
use super::index::{FORMAT, FileSums, Piece, RankFiles, StateKind};
use super::json::write_json;
use super::load::{Reading, Resumable, Target};
use super::slice::Slice;
use super::spawn;
use crate::checkpoint::blocks::{ALIGNMENT, BlockWriter, WriteOptions};
use crate::checkpoint::overlap;
use crate::checkpoint::tensor_files::Outline;
use crate::compute::error::StepError;
use crate::config::MemoryTier;
use crate::exec::Executor;
use crate::mesh::{Coords, within};
use crate::model::{FlatKind, Layout, Tensor};
use crate::state::{Moments, State};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;
use zbench_kernels::{DType, Kernels, View, ViewMut};

pub(crate) fn file_names(rank: usize) -> (String, String) {
    (format!("rank-{rank:05}.safetensors"), format!("rank-{rank:05}.json"))
}

/// Elements of a unit's flat that a rank writes: of the world-wide split, so that every element is written once and all
/// ranks write alike, whatever the strategy. Of a copy nothing. Padding, which depends on the number of ranks, is left out, but for
/// one element that makes them even, so that no element of four bytes behind one of two lies across the end of a block.
fn written_range(state: &State, layout: &Layout, unit: usize) -> Option<Range<usize>> {
    let flat_shard = state.trainable(unit).filter(|_| state.copy != Some(unit))?;
    let flat = layout.units[unit].trainable();
    overlap(&flat_shard.norm_shard, &(0..flat.len.next_multiple_of(2).min(flat.padded)))
}

/// What a rank's file will hold, and its header.
struct Contents {
    pieces: Vec<Piece>,
    header: Vec<u8>,
    bytes: u64,
}

impl Contents {
    fn new(state: &State, layout: &Layout, roles: &[StateKind]) -> std::io::Result<Contents> {
        let precision = &state.precision;
        let (mut pieces, mut outline) = (Vec::new(), Outline::default());
        // The position behind the header.
        let mut at = 0u64;
        for (number, unit) in layout.units.iter().enumerate() {
            let numbered = (layout.first_tensors[number]..).zip(unit.tensors_of(FlatKind::Trainable));
            let Some(range) = written_range(state, layout, number) else { continue };
            for role in roles.iter().copied() {
                let dtype = role.dtype(precision);
                for (number, tensor) in numbered.clone().filter(|(_, tensor)| tensor.is_counted(&state.place)) {
                    let place = tensor.place.range();
                    let Some(cut) = overlap(&place, &range) else { continue };
                    for (ours, slice) in slices(tensor, &state.place, within(&cut, &place)) {
                        let at = at + ((place.start + ours - range.start) * dtype.size()) as u64;
                        pieces.push(Piece { tensor: number, role, dtype, slice, at });
                    }
                }
                let name = format!("{}.{}.{}", unit.name, role.name(), range.start);
                outline.tensors.push(((name, vec![range.len()]), dtype));
                at += (range.len() * dtype.size()) as u64;
            }
        }
        let header = outline.header(FORMAT, ALIGNMENT)?;
        pieces.iter_mut().for_each(|piece| piece.at += header.len() as u64);
        Ok(Contents { pieces, bytes: header.len() as u64 + at, header })
    }
}

/// Elements `range` of what a rank has of a tensor as slices of the whole tensor, each with its first element here. Padding is in none.
fn slices(tensor: &Tensor, place: &Coords, range: Range<usize>) -> Vec<(usize, Slice)> {
    if let Some([offsets, sizes]) = tensor.columns(place) {
        return vec![(range.start, Slice::of_region(offsets, sizes, range.start, range.len()))];
    }
    tensor.parts(place, range).map(|part| (part.ours, Slice::whole(part.whole..part.whole + part.len))).collect()
}

/// The state of one unit on its way to the disk.
struct UnitState {
    unit: usize,
    /// The part of the moments and of the master that is written.
    range: Range<usize>,
    /// The moments that the optimizer has lent, until they are given back.
    moments: Option<Moments>,
    /// Copies of what is not lent, by kind: weights of which the optimizer has no master copy, and what it wanted back before it was
    /// written.
    copies: [Vec<u8>; StateKind::COUNT],
}

impl UnitState {
    fn lent(&self, kind: StateKind) -> Option<View<'_>> {
        let buffer = kind.of(self.moments.as_ref()?)?;
        Some(buffer.slice(self.range.clone()))
    }

    fn bytes(&self, kind: StateKind) -> &[u8] {
        match self.lent(kind) {
            // State on a device was copied when it was taken.
            Some(view) => view.as_bytes().unwrap_or_default(),
            None => &self.copies[kind as usize],
        }
    }

    /// Copies what is lent. Returns the bytes copied.
    fn copy(&mut self, kinds: &[StateKind], bytes_of: impl Fn(View<'_>) -> Result<Vec<u8>>) -> Result<u64> {
        let mut copied = 0;
        for kind in kinds {
            let Some(copy) = self.lent(*kind).map(&bytes_of).transpose()? else { continue };
            copied += copy.len() as u64;
            self.copies[*kind as usize] = copy;
        }
        Ok(copied)
    }

    /// Returns what the optimizer has lent and does not have back.
    fn give_back(&mut self, back: &Sender<(usize, Moments)>) {
        if let Some(moments) = self.moments.take() {
            // The rank may have failed in the meantime.
            let _ = back.send((self.unit, moments));
        }
    }
}

/// Elements as bytes on the host, wherever they lie.
fn bytes_of(kernels: &dyn Kernels, view: View<'_>) -> Result<Vec<u8>> {
    if let Ok(bytes) = view.as_bytes() {
        return Ok(bytes.to_vec());
    }
    let mut copy = vec![0i8; view.len() * view.dtype().size()];
    let bytes = view.reinterpret(DType::I8).map_err(StepError::from)?;
    kernels.download(bytes, ViewMut::of(&mut copy)).map_err(StepError::from)?;
    Ok(copy.into_iter().map(|byte| byte as u8).collect())
}

/// A rank's state on its way to the disk, which a thread may carry.
struct Shard {
    dir: PathBuf,
    rank: usize,
    direct: bool,
    roles: &'static [StateKind],
    contents: Contents,
    units: Vec<UnitState>,
    back: Sender<(usize, Moments)>,
    wanted: Arc<AtomicBool>,
    /// Host memory taken for copies so far, all of them together; it grows when the optimizer wants its memory back.
    copied: Arc<AtomicU64>,
}

/// Takes what is to be written: master and moments are lent by the optimizer, weights that layers read are copied. The rest is a
/// thread's work.
pub(crate) fn start(
    executor: &mut Executor<'_>,
    place: (PathBuf, usize, bool),
) -> Result<(Arc<AtomicU64>, JoinHandle<Result<u64>>)> {
    let shard = Shard::take(executor, place)?;
    Ok((shard.copied.clone(), spawn(move || shard.write())?))
}

impl Shard {
    fn take(executor: &mut Executor<'_>, (dir, rank, direct): (PathBuf, usize, bool)) -> Result<Shard> {
        let Executor { context, state, params, optimizer, delayed, .. } = executor;
        let (layout, res) = (&context.stage_plan.layout, context.resources());
        let roles = StateKind::all(delayed.is_some());
        let kernels = res.kernels;
        let contents = Contents::new(state, layout, roles).map_err(|source| StateError::io("write", &dir, source))?;
        // A thread cannot read a device's memory, and what lives on a disk passes through memory: all of it is copied now.
        let is_reachable = match state.tiers.optimizer {
            MemoryTier::Device => kernels.is_host(),
            MemoryTier::Host => true,
            MemoryTier::Disk => false,
        };
        let mut loan = optimizer.lend();
        let mut units = Vec::new();
        let mut copied = 0;
        for unit in 0..state.shards.len() {
            let (Some(range), Some(flat_shard)) = (written_range(state, layout, unit), state.trainable(unit)) else {
                continue;
            };
            let Some(mut moments) = loan.take(unit) else { continue };
            params.open(res, unit)?;
            moments.open(res)?;
            let mut copies: [Vec<u8>; StateKind::COUNT] = Default::default();
            if let (None, Some(shard)) = (&moments.master, params.shard_mut(unit, FlatKind::Trainable)) {
                let weights = bytes_of(kernels, shard.slice(within(&range, &flat_shard.shard)))?;
                copied += weights.len() as u64;
                copies[StateKind::Weights as usize] = weights;
            }
            params.close(res, unit, false)?;
            let range = within(&range, &flat_shard.owned);
            let mut of = UnitState { unit, range, moments: Some(moments), copies };
            if !is_reachable {
                copied += of.copy(roles, |view| bytes_of(kernels, view))?;
            }
            if let Some(moments) = &mut of.moments {
                moments.close(res, false)?;
            }
            units.push(of);
        }
        let (back, wanted) = loan.finish();
        if !is_reachable {
            units.iter_mut().for_each(|unit| unit.give_back(&back));
        }
        Ok(Shard { dir, rank, direct, roles, contents, units, back, wanted, copied: Arc::new(AtomicU64::new(copied)) })
    }

    /// Writes the rank's files; on the disk when this returns. The optimizer gets all of its memory back, whatever happens.
    fn write(mut self) -> Result<u64> {
        let result = self.write_files();
        self.units.iter_mut().for_each(|unit| unit.give_back(&self.back));
        result
    }

    fn write_files(&mut self) -> Result<u64> {
        std::fs::create_dir_all(&self.dir).map_err(|source| StateError::io("write", &self.dir, source))?;
        let (name, sums) = file_names(self.rank);
        let (path, bytes) = (self.dir.join(&name), self.contents.bytes);
        let failed = |source| StateError::io("write", &path, source);
        let write = || {
            let writer = self.hand_over(&path).map_err(failed)?;
            let files = vec![FileSums { name, bytes, first: 0, every: 1, crc32: writer.sums().to_vec() }];
            let pieces = std::mem::take(&mut self.contents.pieces);
            // Beside the last transfers: a disk takes as long for two syncs at a time as for one. Nobody reads these files
            // before the index is written, which waits for all of them.
            write_json(&self.dir.join(sums), &RankFiles { files, pieces })?;
            writer.finish().map_err(failed)
        };
        write().inspect_err(|_| {
            // This frees page cache for others; an error here has no consequence.
            let _ = std::fs::remove_file(&path);
        })?;
        sync(&self.dir)?;
        Ok(bytes)
    }

    /// Gives all of the rank's data to the thread that writes.
    fn hand_over(&mut self, path: &Path) -> std::io::Result<BlockWriter> {
        const AT_ONCE: usize = 4 << 20;
        let options = WriteOptions { direct: self.direct, ..WriteOptions::default() };
        let mut writer = BlockWriter::create(path, self.contents.bytes, options)?;
        writer.push(&self.contents.header)?;
        for at in 0..self.units.len() {
            for role in self.roles.iter().copied() {
                let len = self.units[at].bytes(role).len();
                for start in (0..len).step_by(AT_ONCE) {
                    if self.wanted.load(Ordering::Acquire) {
                        self.return_all(at);
                    }
                    writer.push(&self.units[at].bytes(role)[start..len.min(start + AT_ONCE)])?;
                }
            }
            let unit = &mut self.units[at];
            unit.give_back(&self.back);
            unit.copies = Default::default();
        }
        writer.close();
        Ok(writer)
    }

    /// Copies what is not written yet, from unit `at` on, and gives the optimizer its memory back.
    fn return_all(&mut self, at: usize) {
        for unit in &mut self.units[at..] {
            let on_host = |view: View<'_>| Ok(view.as_bytes().unwrap_or_default().to_vec());
            let copied = unit.copy(self.roles, on_host).unwrap_or_default();
            self.copied.fetch_add(copied, Ordering::Relaxed);
            unit.give_back(&self.back);
        }
    }
}

/// What a rank needs of the files of this layout.
pub(super) fn readings<'a>(from: &Resumable, target: &Target<'_>) -> Result<Vec<Reading<'a>>> {
    let mut readings = Vec::new();
    for RankFiles { files, pieces } in &from.ranks {
        let Some(file) = files.first() else { continue };
        let wanted = target.wanted(pieces);
        if !wanted.is_empty() {
            let blocks = from.blocks(&file.name, [file].into_iter())?;
            readings.push(Reading { blocks, header: None, wanted });
        }
    }
    Ok(readings)
}
