//! Reading the state of a run: by any number of ranks, under any strategy and precision, whatever wrote it. A rank reads
//! the pieces that overlap what it owns, and nothing else.

use super::error::{Result, StateError};
use super::folder::newest;
use super::full;
use super::index::{FileSums, Identity, Index, Piece, RankFiles, StateKind, differences, trainable};
use super::json::{plain_names, read_index, read_json};
use super::shard;
use crate::checkpoint::blocks::{BLOCK, BlockFile, Share, Written, check_length};
use crate::checkpoint::overlap;
use crate::checkpoint::weights::{decoder, stored_type};
use crate::compute::error::StepError;
use crate::config::{Cell, Resume, SaveLayout, Train};
use crate::mesh::within;
use crate::model::{FlatKind, Layout, Tensor};
use crate::observe::outcome::History;
use crate::state::{Optimizer, Params, Resources, State};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use zbench_kernels::{DType, View};

/// A checkpoint that was opened: its index is whole, its files are there and as long as they were, and it is of this model.
#[derive(Debug)]
pub struct Resumable {
    pub dir: PathBuf,
    pub index: Index,
    /// By number of the rank that wrote.
    pub(super) ranks: Vec<RankFiles>,
    pub history: History,
    pub(super) direct: bool,
}

impl Resumable {
    /// The checkpoint that a cell resumes from, by its `checkpoint.resume`.
    ///
    /// # Errors
    /// A checkpoint that was asked for, or is the newest, and is damaged, incomplete or of another model.
    pub fn find(cell: &Cell, layout: &Layout) -> Result<Option<Resumable>> {
        let Some(saving) = &cell.checkpoint else { return Ok(None) };
        let dir = match &saving.resume {
            Resume::Never => None,
            Resume::Auto => newest(&saving.dir)?.map(|(_, dir)| dir),
            Resume::From(dir) => Some(dir.clone()),
        };
        dir.map(|dir| Resumable::open(&dir, cell, layout, saving.direct)).transpose()
    }

    /// Opens a checkpoint for a cell.
    ///
    /// # Errors
    /// It is none, damaged, incomplete or of another model.
    pub fn open(dir: &Path, cell: &Cell, layout: &Layout, direct: bool) -> Result<Resumable> {
        let index = read_index(dir)?;
        let names = index.ranks.iter().map(|(name, _)| name).chain(index.history.as_ref().map(|(name, _)| name));
        let mut absent: Vec<String> = names.filter(|name| !dir.join(name).is_file()).cloned().collect();
        let mut ranks = Vec::new();
        for (name, sum) in index.ranks.iter().filter(|(name, _)| !absent.contains(name)) {
            let rank: RankFiles = checked(dir, name, *sum)?;
            plain_names(&dir.join(name), rank.files.iter().map(|file| file.name.as_str()))?;
            ranks.push(rank);
        }
        let files = ranks.iter().flat_map(|rank| &rank.files).map(|file| &file.name);
        let missing: Vec<String> = files.filter(|name| !dir.join(name).is_file()).cloned().collect();
        absent.extend(missing);
        if !absent.is_empty() {
            absent.dedup();
            return Err(StateError::Absent { dir: dir.into(), absent });
        }
        let ours = Identity::new(cell, layout);
        if let Some(reason) = ours.difference(&index.identity) {
            return Err(StateError::OtherModel { dir: dir.into(), reason });
        }
        for ((name, _), rank) in index.ranks.iter().zip(&ranks) {
            if let Some(reason) = rank.refused(&index.identity.tensors) {
                return Err(StateError::damaged(&dir.join(name), reason));
            }
        }
        if index.position.delayed.is_some() && !cell.train.is_delayed() {
            return Err(StateError::Delayed { dir: dir.into() });
        }
        // What was trained by versions before this setting has its default in the cell, which configurations do not default to.
        let was = index.cell.get("train").and_then(|train| Train::deserialize(train).ok());
        if let Some(was) = was.filter(|was| was.is_rate_varied() && cell.train.is_rate_varied())
            && was.lr_steps != cell.train.lr_steps
        {
            return Err(StateError::CourseSteps { dir: dir.into(), was: was.lr_steps.name() });
        }
        let history = match &index.history {
            Some((name, sum)) => checked(dir, name, *sum)?,
            None => History::default(),
        };
        // Lengths are checked before any rank allocates.
        ranks
            .iter()
            .flat_map(|rank| &rank.files)
            .try_for_each(|file| check_length(&dir.join(&file.name), file.bytes))?;
        Ok(Resumable { dir: dir.into(), index, ranks, history, direct })
    }

    /// Settings of the run so far that are others in `cell`, as `train.lr was 0.001`: those that its losses follow from, and not
    /// how it is split, saved or computed.
    pub fn changed(&self, cell: &Cell) -> Vec<String> {
        let now = serde_json::to_value(cell).unwrap_or_default();
        let sections = ["data", "train", "precision", "lora"];
        let mut changed = Vec::new();
        for section in sections {
            for (key, was, _) in differences(self.index.cell.get(section), now.get(section)) {
                if (section, key.as_str()) != ("train", "steps") {
                    changed.push(format!("{section}.{key} was {was}"));
                }
            }
        }
        changed
    }

    /// A number that tells this checkpoint from others.
    pub(crate) fn mark(&self) -> u32 {
        let sums = self.index.ranks.iter().flat_map(|(_, sum)| sum.to_le_bytes());
        let bytes: Vec<u8> = self.index.position.steps.to_le_bytes().into_iter().chain(sums).collect();
        crc32fast::hash(&bytes).max(1)
    }

    /// Fills this rank's trainable weights and moments. Returns the bytes read.
    pub(crate) fn load(
        &self,
        layout: &Layout,
        state: &State,
        res: Resources<'_>,
        params: &mut Params,
        optimizer: &mut Optimizer,
    ) -> Result<u64> {
        let roles = StateKind::all(self.index.position.delayed.is_some());
        let mut target = Target { layout, state, roles, res, params, optimizer, open: None };
        let readings = match self.index.layout {
            SaveLayout::Sharded => shard::readings(self, &target)?,
            SaveLayout::Full => full::readings(self, &target)?,
        };
        target.check_complete(&self.dir, readings.iter().flat_map(|reading| &reading.wanted))?;
        target.clear()?;
        let mut bytes = 0;
        for reading in readings {
            bytes += target.read(reading, self.direct)?;
        }
        target.update_homes()?;
        target.turn_to(None)?;
        Ok(bytes)
    }

    /// A file with the checksums of all ranks that wrote it.
    pub(super) fn blocks<'a>(
        &self,
        name: &str,
        parts: impl Iterator<Item = &'a FileSums> + Clone,
    ) -> Result<BlockFile> {
        let path = self.dir.join(name);
        let bytes = parts.clone().next().map_or(0, |part| part.bytes);
        let mut sums = vec![0; bytes.div_ceil(BLOCK as u64) as usize];
        let found: usize = parts.clone().map(|part| part.crc32.len()).sum();
        if found != sums.len() {
            return Err(StateError::damaged(&path, format!("{bytes} bytes have {found} checksums")));
        }
        for part in parts {
            let blocks = Share { first: part.first, every: part.every }.blocks(bytes);
            for (block, sum) in blocks.zip(&part.crc32) {
                sums[block] = *sum;
            }
        }
        BlockFile::new(&path, Written { bytes, sums })
    }
}

/// What a rank needs of a file.
pub(super) struct Reading<'a> {
    pub blocks: BlockFile,
    /// The file's header, where its checksums are to be checked, too.
    pub header: Option<Range<u64>>,
    pub wanted: Vec<Wanted<'a>>,
}

/// Elements of a file that a rank needs.
pub(super) struct Wanted<'a> {
    pub unit: usize,
    pub role: StateKind,
    /// Of the unit's flat.
    pub elements: Range<usize>,
    pub dtype: DType,
    pub bytes: Range<u64>,
    /// The tensor and this rank's elements that are needed, where the file holds them in another order: then all of it is read.
    pub stored: Option<(&'a Tensor, Range<usize>)>,
}

fn checked<T: serde::de::DeserializeOwned>(dir: &Path, name: &str, sum: u32) -> Result<T> {
    let path = dir.join(name);
    let (value, found) = read_json(&path)?;
    if found != sum {
        let reason = "it is not the one that the index names; files of two checkpoints are mixed";
        return Err(StateError::damaged(&path, reason));
    }
    Ok(value)
}

/// Elements as f32, which holds every value of the types that are stored.
fn widen(dtype: DType, bytes: &[u8], values: &mut Vec<f32>) {
    values.resize(bytes.len() / dtype.size(), 0.0);
    if let Some(decode) = decoder(stored_type(dtype)) {
        decode(bytes, values);
    }
}

pub(super) struct Target<'a> {
    pub layout: &'a Layout,
    pub state: &'a State,
    /// What the checkpoint holds.
    roles: &'static [StateKind],
    res: Resources<'a>,
    params: &'a mut Params,
    optimizer: &'a mut Optimizer,
    /// The unit whose state is in memory, where it lives on a disk.
    open: Option<usize>,
}

impl Target<'_> {
    /// Brings a unit's state into memory, in place of the last one's.
    fn turn_to(&mut self, unit: Option<usize>) -> Result<()> {
        if self.open == unit {
            return Ok(());
        }
        if let Some(last) = std::mem::replace(&mut self.open, unit) {
            self.params.close(self.res, last, true)?;
            self.optimizer.close(self.res, last, true)?;
        }
        if let Some(next) = unit {
            self.params.open(self.res, next)?;
            self.optimizer.open(self.res, next)?;
        }
        Ok(())
    }

    /// What this rank needs of a unit: what it owns, without padding.
    pub fn owned(&self, unit: usize) -> Option<Range<usize>> {
        let flat_shard = self.state.shards.get(unit)?.first()?.as_ref()?;
        overlap(&flat_shard.owned, &(0..self.layout.units[unit].trainable().len))
    }

    /// What this rank needs of the pieces in a file.
    pub fn wanted(&self, pieces: &[Piece]) -> Vec<Wanted<'static>> {
        // A stage reads its own.
        let tensors: Vec<(usize, usize, &Tensor)> = trainable(self.layout).collect();
        let mut wanted: Vec<Wanted<'_>> = Vec::new();
        for Piece { tensor, role, dtype, slice, at } in pieces {
            let (role, dtype) = (*role, *dtype);
            let Ok(found) = tensors.binary_search_by_key(tensor, |(number, ..)| *number) else { continue };
            let (_, unit, tensor) = tensors[found];
            let Some(owned) = self.owned(unit) else { continue };
            for run in slice.runs(&tensor.whole) {
                for part in tensor.parts_of_whole(&self.state.place, run.elements.clone()) {
                    let start = tensor.place.start + part.ours;
                    let Some(elements) = overlap(&(start..start + part.len), &owned) else { continue };
                    let skipped = run.at + part.whole - run.elements.start + elements.start - start;
                    let begin = at + (skipped * dtype.size()) as u64;
                    let bytes = begin..begin + (elements.len() * dtype.size()) as u64;
                    match wanted.last_mut() {
                        // It continues the last one in file and flat.
                        Some(last)
                            if (last.unit, last.role, last.dtype) == (unit, role, dtype)
                                && (last.elements.end, last.bytes.end) == (elements.start, bytes.start) =>
                        {
                            (last.elements.end, last.bytes.end) = (elements.end, bytes.end);
                        }
                        _ => wanted.push(Wanted { unit, role, elements, dtype, bytes, stored: None }),
                    }
                }
            }
        }
        wanted
    }

    /// Checks that every element that this rank needs is in the files, and once.
    fn check_complete<'a>(&self, dir: &Path, wanted: impl Iterator<Item = &'a Wanted<'a>>) -> Result<()> {
        let mut found: BTreeMap<(usize, StateKind), Vec<Range<usize>>> = BTreeMap::new();
        for Wanted { unit, role, elements, .. } in wanted {
            found.entry((*unit, *role)).or_default().push(elements.clone());
        }
        for unit in 0..self.state.shards.len() {
            let Some(owned) = self.owned(unit) else { continue };
            for role in self.roles {
                let mut ranges = found.remove(&(unit, *role)).unwrap_or_default();
                ranges.sort_by_key(|range| range.start);
                let refused = |element, how| {
                    let which = self.element(unit, element);
                    Err(StateError::damaged(dir, format!("the {} of {which} {how}", role.name())))
                };
                let (none, twice) = ("is in none of its files", "is in its files twice");
                let (needed, mut next) = (self.needed(unit, &owned), owned.start);
                for range in ranges.into_iter().chain(std::iter::once(owned.end..owned.end)) {
                    if range.start < next {
                        return refused(range.start, twice);
                    }
                    // What lies in between is padding, or is missing.
                    let first = needed.partition_point(|needed| needed.end <= next);
                    let missing = needed.get(first).map_or(range.start, |needed| needed.start.max(next));
                    if missing < range.start {
                        return refused(missing, none);
                    }
                    next = range.end;
                }
            }
        }
        Ok(())
    }

    /// Of these elements of a unit's flat: those that are in a checkpoint. The padding of tensors that ranks share is in none.
    fn needed(&self, unit: usize, owned: &Range<usize>) -> Vec<Range<usize>> {
        let mut needed: Vec<Range<usize>> = Vec::new();
        for tensor in self.layout.units[unit].tensors_of(FlatKind::Trainable) {
            let place = tensor.place.range();
            let Some(cut) = overlap(&place, owned) else { continue };
            for part in tensor.parts(&self.state.place, within(&cut, &place)) {
                let (start, end) = (place.start + part.ours, place.start + part.ours + part.len);
                match needed.last_mut() {
                    Some(last) if last.end == start => last.end = end,
                    _ => needed.push(start..end),
                }
            }
        }
        needed
    }

    /// In words: an element of a unit's flat.
    fn element(&self, unit: usize, element: usize) -> String {
        let mut tensors = self.layout.units[unit].tensors_of(FlatKind::Trainable);
        let found = tensors.find(|tensor| tensor.place.range().contains(&element));
        found.map_or_else(String::new, |tensor| format!("{}, element {}", tensor.name, element - tensor.place.start))
    }

    /// Padding is zero.
    fn clear(&mut self) -> Result<()> {
        for unit in 0..self.state.shards.len() {
            for role in self.roles {
                let Some(flat_shard) = self.state.trainable(unit) else { continue };
                let owned = flat_shard.owned.clone();
                self.write(unit, *role, owned, None)?;
            }
        }
        Ok(())
    }

    fn write(&mut self, unit: usize, role: StateKind, range: Range<usize>, values: Option<&[f32]>) -> Result<()> {
        self.turn_to(Some(unit))?;
        let Some(flat_shard) = self.state.trainable(unit) else { return Ok(()) };
        let of_owned = within(&range, &flat_shard.owned);
        let Some(moments) = self.optimizer.moments_mut(unit) else { return Ok(()) };
        let view = match (role.of_mut(moments), self.params.shard_mut(unit, FlatKind::Trainable)) {
            (Some(own), _) => own.slice_mut(of_owned),
            (None, Some(shard)) => shard.slice_mut(within(&range, &flat_shard.shard)),
            (None, None) => return Ok(()),
        };
        let done = match values {
            Some(values) => self.res.kernels.cast(View::of(values), view),
            None => self.res.kernels.fill(view, 0.0),
        };
        Ok(done.map_err(StepError::from)?)
    }

    /// Reads what is wanted of a file into its place. Returns the bytes read.
    fn read(&mut self, Reading { blocks, header, mut wanted }: Reading<'_>, direct: bool) -> Result<u64> {
        wanted.sort_by_key(|wanted| wanted.bytes.start);
        let before = header.iter().count();
        let ranges: Vec<Range<u64>> = header.into_iter().chain(wanted.iter().map(|w| w.bytes.clone())).collect();
        let (mut values, mut together) = (Vec::new(), Vec::new());
        blocks.read(&ranges, direct, |number, at, bytes| {
            let Some(number) = number.checked_sub(before) else { return Ok(()) };
            let Wanted { unit, role, elements, dtype, bytes: all, stored } = &wanted[number];
            widen(*dtype, bytes, &mut values);
            let Some((tensor, part)) = stored else {
                let first = elements.start + at as usize / dtype.size();
                return self.write(*unit, *role, first..first + values.len(), Some(&values));
            };
            together.extend_from_slice(&values);
            if at + (bytes.len() as u64) < all.end - all.start {
                return Ok(());
            }
            let mut ours = vec![0f32; part.len()];
            for of in tensor.parts(&self.state.place, part.clone()) {
                for run in tensor.runs(of.whole..of.whole + of.len) {
                    let to = ours[of.ours - part.start + run.ours - of.whole..].iter_mut().step_by(run.step);
                    to.zip(&together[run.stored..run.stored + run.len]).for_each(|(to, from)| *to = *from);
                }
            }
            together.clear();
            self.write(*unit, *role, elements.clone(), Some(&ours))
        })
    }

    /// Makes the weights that layers read from the master weights.
    fn update_homes(&mut self) -> Result<()> {
        for unit in 0..self.state.shards.len() {
            self.turn_to(Some(unit))?;
            let Some(flat_shard) = self.state.trainable(unit) else { continue };
            let master = self.optimizer.moments_mut(unit).and_then(|moments| moments.master.as_ref()?.buffer());
            let shard = self.params.shard_mut(unit, FlatKind::Trainable);
            if let (Some(master), Some(shard)) = (master, shard) {
                let at_shard = within(&flat_shard.owned, &flat_shard.shard);
                self.res.kernels.cast(master.view(), shard.slice_mut(at_shard)).map_err(StepError::from)?;
            }
        }
        Ok(())
    }
}
