//! Format version 1, which zbench wrote until November 2026: pieces are ranges of the flats of units, padding included. The
//! index says which tensors a flat holds, so pieces convert to slices of tensors without reading any data.

use super::index::{Named, Piece, RankFiles, StateKind, stored_dtype};
use super::slice::Slice;
use serde::Deserialize;
use serde_json::{Value, json};
use zbench_kernels::DType;

#[derive(Deserialize)]
struct Unit {
    tensors: Vec<Named>,
}

/// By unit: the number of its first tensor, and the elements of each of its tensors, one behind the other in the flat.
pub(super) struct Units(Vec<(usize, Vec<usize>)>);

#[derive(Debug, Deserialize)]
pub(super) struct FlatPiece {
    unit: usize,
    role: StateKind,
    #[serde(deserialize_with = "stored_dtype")]
    dtype: DType,
    /// Elements of the unit's flat.
    start: usize,
    len: usize,
    at: u64,
}

impl Units {
    /// Converts the identity of an index to that of the current version.
    pub fn take(index: &mut Value) -> serde_json::Result<Units> {
        let units: Vec<Unit> = Deserialize::deserialize(&index["identity"]["units"])?;
        let (mut tensors, mut of_units) = (Vec::new(), Vec::new());
        for unit in units {
            let elements = unit.tensors.iter().map(|(_, shape)| elements(shape)).collect();
            of_units.push((tensors.len(), elements));
            tensors.extend(unit.tensors);
        }
        index["identity"] = json!({ "model": index["identity"]["model"], "tensors": tensors });
        Ok(Units(of_units))
    }

    /// A rank's file with pieces of flats as one with slices of tensors; `None` if a piece cannot be.
    pub fn convert(&self, rank: RankFiles<FlatPiece>) -> Option<RankFiles> {
        let slices: Option<Vec<_>> = rank.pieces.iter().map(|piece| self.slices(piece)).collect();
        Some(RankFiles { files: rank.files, pieces: slices?.concat() })
    }

    fn slices(&self, piece: &FlatPiece) -> Option<Vec<Piece>> {
        let (first, tensors) = self.0.get(piece.unit)?;
        let (end, mut begin) = (piece.start.checked_add(piece.len)?, 0usize);
        let mut slices = Vec::new();
        for (tensor, elements) in (*first..).zip(tensors) {
            let (from, to) = (piece.start.max(begin), end.min(begin.checked_add(*elements)?));
            if from < to {
                let before = u64::try_from((from - piece.start).checked_mul(piece.dtype.size())?).ok()?;
                let slice = Slice::whole(from - begin..to - begin);
                let at = piece.at.checked_add(before)?;
                slices.push(Piece { tensor, role: piece.role, dtype: piece.dtype, slice, at });
            }
            begin += elements;
        }
        Some(slices)
    }
}

/// Saturates: no piece reaches so far, and the model's tensors do not.
fn elements(shape: &[usize]) -> usize {
    shape.iter().fold(1, |product, size| product.saturating_mul(*size))
}
