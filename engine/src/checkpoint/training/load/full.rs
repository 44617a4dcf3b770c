//! Loading of the full layout.

use super::{Reading, Resumable, Target, Wanted};
use crate::checkpoint::training::blocks::BlockFile;
use crate::checkpoint::training::error::{Result, StateError};
use crate::checkpoint::training::full::{DELAYED, MASTER, OPTIMIZER};
use crate::checkpoint::training::index::StateKind;
use crate::checkpoint::weights::{Checkpoint, stored_type};
use crate::mesh::within;
use crate::model::layers::TensorSplit;
use crate::model::{FlatKind, Part};
use zbench_kernels::DType;

/// What a rank needs of the files of this layout.
pub(super) fn readings<'a>(from: &Resumable, target: &Target<'a>) -> Result<Vec<Reading<'a>>> {
    let Some(first) = from.ranks.first() else { return Ok(Vec::new()) };
    let names: Vec<&str> = first.files.iter().map(|file| &*file.name).collect();
    let exact = names.contains(&MASTER);
    let mut readings = Vec::new();
    for (number, name) in names.iter().enumerate() {
        let roles: &[StateKind] = match *name {
            OPTIMIZER => &[StateKind::ExpAvg, StateKind::ExpAvgSq],
            MASTER => &[StateKind::Weights],
            DELAYED => &[StateKind::Delayed],
            _ if exact => continue,
            _ => &[StateKind::Weights],
        };
        let path = from.dir.join(name);
        let open =
            || Checkpoint::single(&from.dir, name).map_err(|error| StateError::damaged(&path, error.to_string()));
        let blocks = from.blocks(name, from.ranks.iter().filter_map(|rank| rank.files.get(number)))?;
        readings.push(reading(blocks, &open()?, roles, *name == OPTIMIZER, target)?);
    }
    Ok(readings)
}

fn reading<'a>(
    blocks: BlockFile,
    file: &Checkpoint,
    roles: &[StateKind],
    of_role: bool,
    target: &Target<'a>,
) -> Result<Reading<'a>> {
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
            let at = |element: usize| info.begin + (element * dtype.size()) as u64;
            // Of a tensor that lies otherwise in the file all is read: it is a part of a block's matrix at most.
            let is_otherwise = tensor.stored.is_some() || matches!(tensor.cut, TensorSplit::RowParallel(_));
            if is_otherwise {
                let (bytes, stored) = (at(0)..at(info.elements()), Some((tensor, elements)));
                wanted.push(Wanted { unit, role, elements: cut, dtype, bytes, stored });
                continue;
            }
            for Part { ours, whole, len } in tensor.parts(&target.state.place, elements) {
                let elements = place.start + ours..place.start + ours + len;
                wanted.push(Wanted { unit, role, elements, dtype, bytes: at(whole)..at(whole + len), stored: None });
            }
        }
    }
    // The header is checked against its checksums, too.
    let header = 0..wanted.iter().map(|wanted| wanted.bytes.start).min().unwrap_or(0);
    Ok(Reading { blocks, header: Some(header), wanted })
}
