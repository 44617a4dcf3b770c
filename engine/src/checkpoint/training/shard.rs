//! A rank's file of the sharded layout: a safetensors file with its part of every unit, in the order of the model.

use super::blocks::{ALIGNMENT, BlockWriter, Share};
use super::error::{Result, StateError};
use super::folder::sync;
use super::index::{FileSums, Piece, RankFiles, StateKind};
use super::json::write_json;
use super::slice::Slice;
use crate::checkpoint::weights::header_bytes;
use crate::compute::error::StepError;
use crate::config::MemoryTier;
use crate::mesh::{Coords, within};
use crate::model::{FlatKind, Layout, Tensor};
use crate::state::{Moments, Optimizer, Params, Resources, State};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use zbench_kernels::{DType, Kernels, View, ViewMut};

pub(crate) fn file_names(rank: usize) -> (String, String) {
    (format!("rank-{rank:05}.safetensors"), format!("rank-{rank:05}.json"))
}

/// Elements of a unit's flat that a rank writes: of the world-wide split, so that every element is written once and all
/// ranks write alike, whatever the strategy; without the padding, which depends on the number of ranks. Of a copy nothing.
fn written_range(state: &State, layout: &Layout, unit: usize) -> Option<Range<usize>> {
    let flat_shard = state.trainable(unit).filter(|_| state.copy != Some(unit))?;
    let end = flat_shard.norm_shard.end.min(in_use(layout, unit));
    (flat_shard.norm_shard.start < end).then_some(flat_shard.norm_shard.start..end)
}

/// Elements of a unit's flat that a file holds: without padding, but for one element that makes them even, so that no element
/// of four bytes behind one of two lies across the end of a block.
fn in_use(layout: &Layout, unit: usize) -> usize {
    let flat = layout.units[unit].trainable();
    flat.len.next_multiple_of(2).min(flat.padded)
}

/// What a rank's file will hold, and its header.
struct Contents {
    pieces: Vec<Piece>,
    header: Vec<u8>,
    bytes: u64,
}

impl Contents {
    fn new(state: &State, layout: &Layout, roles: &[StateKind]) -> Contents {
        let precision = &state.precision;
        let (mut pieces, mut parts) = (Vec::new(), Vec::new());
        // The position behind the header.
        let mut at = 0u64;
        for (number, unit) in layout.units.iter().enumerate() {
            let numbered = (layout.first_tensors[number]..).zip(unit.tensors_of(FlatKind::Trainable));
            let Some(range) = written_range(state, layout, number) else { continue };
            for role in roles.iter().copied() {
                let dtype = role.dtype(precision);
                for (number, tensor) in numbered.clone().filter(|(_, tensor)| tensor.is_counted(&state.place)) {
                    let place = tensor.place.range();
                    let cut = place.start.max(range.start)..place.end.min(range.end);
                    if cut.is_empty() {
                        continue;
                    }
                    for (ours, slice) in slices(tensor, &state.place, within(&cut, &place)) {
                        let at = at + ((place.start + ours - range.start) * dtype.size()) as u64;
                        pieces.push(Piece { tensor: number, role, dtype, slice, at });
                    }
                }
                parts.push((format!("{}.{}.{}", unit.name, role.name(), range.start), [range.len()], dtype));
                at += (range.len() * dtype.size()) as u64;
            }
        }
        let parts = parts.iter().map(|(name, shape, dtype)| (name.clone(), &shape[..], *dtype));
        let header = header_bytes("zbench-training-checkpoint", parts, ALIGNMENT);
        pieces.iter_mut().for_each(|piece| piece.at += header.len() as u64);
        Contents { pieces, bytes: header.len() as u64 + at, header }
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
    /// The shard's weights, where the optimizer has none of its own.
    weights: Option<Vec<u8>>,
    /// The moments that the optimizer has lent, until they are given back.
    moments: Option<Moments>,
    /// Copies of the moments that the optimizer wanted back before they were written, by role.
    copies: [Vec<u8>; StateKind::COUNT],
}

impl UnitState {
    fn lent(&self, role: StateKind) -> Option<View<'_>> {
        let buffer = role.of(self.moments.as_ref()?)?;
        Some(buffer.slice(self.range.clone()))
    }

    fn bytes(&self, role: StateKind) -> &[u8] {
        match (role, &self.weights, self.lent(role)) {
            (StateKind::Weights, Some(weights), _) => weights,
            // State on a device was copied when it was taken.
            (_, _, Some(view)) => view.as_bytes().unwrap_or_default(),
            _ => &self.copies[role as usize],
        }
    }

    /// Copies what will be written. Returns the bytes copied.
    fn copy(&mut self, kernels: &dyn Kernels, roles: &[StateKind]) -> Result<u64> {
        for role in roles {
            self.copies[*role as usize] =
                self.lent(*role).map(|view| bytes_of(kernels, view)).transpose()?.unwrap_or_default();
        }
        Ok(self.copies.iter().map(|copy| copy.len() as u64).sum())
    }

    /// Copies what is not written yet and gives the optimizer its memory back. Returns the bytes copied.
    fn give_back_if_written(&mut self, back: &Sender<(usize, Moments)>, roles: &[StateKind]) -> u64 {
        if self.moments.is_none() {
            return 0;
        }
        let on_host = |role| self.lent(role).and_then(|view| view.as_bytes().ok());
        let mut copies: [Vec<u8>; StateKind::COUNT] = Default::default();
        for role in roles {
            copies[*role as usize] = on_host(*role).map_or(Vec::new(), <[u8]>::to_vec);
        }
        self.copies = copies;
        self.give_back(back);
        self.copies.iter().map(|copy| copy.len() as u64).sum()
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
pub(crate) struct Shard {
    dir: PathBuf,
    rank: usize,
    direct: bool,
    roles: &'static [StateKind],
    contents: Contents,
    units: Vec<UnitState>,
    back: Sender<(usize, Moments)>,
    wanted: Arc<AtomicBool>,
    copied: Arc<AtomicU64>,
}

impl Shard {
    /// Takes what is to be written: master and moments are lent by the optimizer; weights that layers read are copied.
    pub fn take(
        state: &State,
        layout: &Layout,
        res: Resources<'_>,
        params: &mut Params,
        optimizer: &mut Optimizer,
        roles: &'static [StateKind],
        (dir, rank, direct): (PathBuf, usize, bool),
    ) -> Result<Shard> {
        let (contents, kernels) = (Contents::new(state, layout, roles), res.kernels);
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
            let weights = match (&moments.master, params.shard_mut(unit, FlatKind::Trainable)) {
                (None, Some(shard)) => Some(bytes_of(kernels, shard.slice(within(&range, &flat_shard.shard)))?),
                _ => None,
            };
            params.close(res, unit, false)?;
            copied += weights.as_ref().map_or(0, |weights| weights.len() as u64);
            let range = within(&range, &flat_shard.owned);
            let mut of = UnitState { unit, range, weights, moments: Some(moments), copies: Default::default() };
            if !is_reachable {
                copied += of.copy(kernels, roles)?;
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

    /// Host memory taken for copies so far, all of them together; it grows when the optimizer wants its memory back.
    pub fn copied(&self) -> Arc<AtomicU64> {
        self.copied.clone()
    }

    /// Writes the rank's files; on the disk when this returns. The optimizer gets all of its memory back, whatever happens.
    pub fn write(mut self) -> Result<u64> {
        let result = self.write_files();
        self.units.iter_mut().for_each(|unit| unit.give_back(&self.back));
        result
    }

    fn write_files(&mut self) -> Result<u64> {
        std::fs::create_dir_all(&self.dir).map_err(|source| StateError::io("write", &self.dir, source))?;
        let (name, sums) = file_names(self.rank);
        let path = self.dir.join(&name);
        let (name, bytes) = (&name, self.contents.bytes);
        let write = || {
            let writer = self.hand_over(&path)?;
            let files = vec![FileSums { name: name.clone(), bytes, first: 0, every: 1, crc32: writer.sums().to_vec() }];
            let pieces = std::mem::take(&mut self.contents.pieces);
            // Beside the last transfers: a disk takes as long for two syncs at a time as for one. Nobody reads these files
            // before the index is written, which waits for all of them.
            write_json(&self.dir.join(sums), &RankFiles { files, pieces })?;
            writer.finish()
        };
        write().inspect_err(|_| {
            // This frees page cache for others; an error here has no consequence.
            let _ = std::fs::remove_file(&path);
        })?;
        sync(&self.dir)?;
        Ok(bytes)
    }

    /// Gives all of the rank's data to the thread that writes.
    fn hand_over(&mut self, path: &Path) -> Result<BlockWriter> {
        const AT_ONCE: usize = 4 << 20;
        let mut writer = BlockWriter::create(path, self.contents.bytes, Share::WHOLE, self.direct, false)?;
        writer.push(&self.contents.header)?;
        for at in 0..self.units.len() {
            for role in self.roles.iter().copied() {
                let len = self.units[at].bytes(role).len();
                for start in (0..len).step_by(AT_ONCE) {
                    if self.wanted.load(Ordering::Acquire) {
                        let copied: u64 = self.units[at..]
                            .iter_mut()
                            .map(|unit| unit.give_back_if_written(&self.back, self.roles))
                            .sum();
                        self.copied.fetch_add(copied, Ordering::Relaxed);
                    }
                    writer.push(&self.units[at].bytes(role)[start..len.min(start + AT_ONCE)])?;
                }
            }
            let unit = &mut self.units[at];
            unit.give_back(&self.back);
            (unit.weights, unit.copies) = Default::default();
        }
        writer.close();
        Ok(writer)
    }
}
