//! Loading of the full layout.

use super::{Resumable, Target, widen};
use crate::checkpoint::{Checkpoint, stored_type};
use crate::mesh::within;
use crate::model::{FlatKind, Tensor};
use crate::training_state::blocks::{BLOCK, BlockFile, Share, Written};
use crate::training_state::error::{Result, StateError};
use crate::training_state::full::{MASTER, OPTIMIZER};
use crate::training_state::index::Role;
use std::ops::Range;
use std::path::Path;
use zbench_kernels::DType;

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
    let mut sums = vec![0; bytes.div_ceil(BLOCK as u64) as usize];
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
        for tensor in layout.units[unit].tensors_of(FlatKind::Trainable) {
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
            let known =
                [DType::F32, DType::Bf16, DType::F16].into_iter().find(|dtype| stored_type(*dtype) == info.dtype);
            let Some(dtype) = known else {
                return Err(StateError::damaged(&info.file, format!("{name} is stored as {:?}", info.dtype)));
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
