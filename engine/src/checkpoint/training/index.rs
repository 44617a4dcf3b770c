//! The metadata of a checkpoint: what `index.json` says, and the `rank-00000.json` of every rank that wrote.

use super::slice::Slice;
use crate::checkpoint::tensor_files::Named;
use crate::config::{Cell, Precision, SaveLayout};
use crate::mesh::within;
use crate::model::{FlatKind, Layout, Tensor};
use crate::state::loss_scale::ScalerState;
use crate::state::{Delayed, Moments, Optimizer, Params, State};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use std::collections::BTreeSet;
use std::ops::Range;
use zbench_kernels::{Buffer, DType, View};

pub(super) const FORMAT: &str = "zbench-training-checkpoint";
pub(super) const VERSION: u64 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Position {
    /// Steps done, skipped ones included.
    pub steps: u64,
    /// Updates of the weights.
    pub updates: u64,
    /// Sequences that have been trained on: the position in the data, and in the streams of random numbers.
    pub samples: u64,
    pub scaler: Option<ScalerState>,
    /// Of the last step's gradients, which the files hold, if their update comes in the next step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delayed: Option<Delayed>,
}

/// Which values of a unit's trainable flat are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StateKind {
    /// The weights, in the widest type there is of them: the master's, else the shard's.
    Weights,
    ExpAvg,
    ExpAvgSq,
    /// Gradients whose update is delayed: sums over ranks and micro-batches.
    Delayed,
}

impl StateKind {
    pub const COUNT: usize = 4;

    /// The roles of a checkpoint with or without a delayed update, in the order of files.
    pub const fn all(delayed: bool) -> &'static [StateKind] {
        const WITHOUT: &[StateKind] = &[StateKind::Weights, StateKind::ExpAvg, StateKind::ExpAvgSq];
        const WITH: &[StateKind; StateKind::COUNT] =
            &[StateKind::Weights, StateKind::ExpAvg, StateKind::ExpAvgSq, StateKind::Delayed];
        if delayed { WITH } else { WITHOUT }
    }

    /// The type that files have.
    pub fn dtype(self, precision: &Precision) -> DType {
        match self {
            StateKind::Weights => precision.master.unwrap_or(precision.parameters),
            StateKind::ExpAvg | StateKind::ExpAvgSq => precision.optimizer,
            StateKind::Delayed => precision.gradients,
        }
    }

    /// The optimizer's buffer for this role, if it has one.
    pub(super) fn of_mut(self, moments: &mut Moments) -> Option<&mut Buffer> {
        match self {
            StateKind::Weights => moments.master.as_mut()?.buffer_mut(),
            StateKind::ExpAvg => moments.first.buffer_mut(),
            StateKind::ExpAvgSq => moments.second.buffer_mut(),
            StateKind::Delayed => moments.delayed.as_mut(),
        }
    }

    pub const fn name(self) -> &'static str {
        match self {
            StateKind::Weights => "weights",
            StateKind::ExpAvg => "exp_avg",
            StateKind::ExpAvgSq => "exp_avg_sq",
            StateKind::Delayed => "delayed_gradient",
        }
    }

    /// The optimizer's buffer for this role; `None` for weights of which it has no master copy.
    pub(super) fn of(self, moments: &Moments) -> Option<&Buffer> {
        match self {
            StateKind::Weights => moments.master.as_ref()?.buffer(),
            StateKind::ExpAvg => moments.first.buffer(),
            StateKind::ExpAvgSq => moments.second.buffer(),
            StateKind::Delayed => moments.delayed.as_ref(),
        }
    }

    /// What a rank owns of a unit's flat in this role, and which elements of the flat these are. Weights are the master copy
    /// where there is one, else the shard's.
    pub(crate) fn held<'a>(
        self,
        state: &State,
        params: &'a mut Params,
        optimizer: &'a mut Optimizer,
        unit: usize,
        part: FlatKind,
    ) -> Option<(Range<usize>, View<'a>)> {
        let flat_shard = state.shards[unit][part as usize].as_ref()?;
        let moments = optimizer.moments_mut(unit).filter(|_| part == FlatKind::Trainable);
        let view = match moments {
            // What is not in memory has no view, and nothing stands in for it.
            Some(moments) if self != StateKind::Weights || moments.master.is_some() => self.of(moments)?.view(),
            _ => params.shard_mut(unit, part)?.slice(within(&flat_shard.owned, &flat_shard.shard)),
        };
        Some((flat_shard.owned.clone(), view))
    }
}

/// The trainable tensors of a model: what makes a checkpoint one of this model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Identity {
    /// The configuration's `[model]`, without where its files are.
    pub model: Value,
    /// In the order of [`trainable`]. A [`Piece`] names a tensor by its number in this list.
    pub tensors: Vec<Named>,
}

/// The trainable tensors of a model or of a stage, in the order of units and of their flats: the number in the whole model, the
/// unit, the tensor.
pub(super) fn trainable(layout: &Layout) -> impl Iterator<Item = (usize, usize, &Tensor)> {
    let units = layout.units.iter().zip(&layout.first_tensors).enumerate();
    units.flat_map(|(unit, (of, first))| {
        (*first..).zip(of.tensors_of(FlatKind::Trainable)).map(move |(number, tensor)| (number, unit, tensor))
    })
}

impl Identity {
    pub fn new(cell: &Cell, layout: &Layout) -> Identity {
        let mut model = serde_json::to_value(&cell.model).unwrap_or_default();
        if let Value::Object(model) = &mut model {
            ["weights", "loading", "save"].iter().for_each(|key| drop(model.remove(*key)));
        }
        let tensors = trainable(layout).map(|(.., tensor)| (tensor.name.clone(), tensor.whole.clone()));
        Identity { model, tensors: tensors.collect() }
    }

    /// How a checkpoint of `other` differs from this one; `None` if it does not.
    pub fn difference(&self, other: &Identity) -> Option<String> {
        if let Some((key, theirs, ours)) = differences(Some(&other.model), Some(&self.model)).next() {
            return Some(format!("model.{key} is {theirs} there and {ours} here"));
        }
        let (ours, theirs) = (&self.tensors, &other.tensors);
        let at = (0..ours.len().max(theirs.len())).find(|i| ours.get(*i) != theirs.get(*i))?;
        let shown =
            |tensor: Option<&Named>| tensor.map_or("nothing more".into(), |(name, shape)| format!("{name} {shape:?}"));
        Some(format!(
            "it trains {} where this run trains {}; do [model] and [lora] agree?",
            shown(theirs.get(at)),
            shown(ours.get(at))
        ))
    }
}

/// Keys in which two tables differ, each with its value in both as JSON.
pub(super) fn differences<'a>(
    one: Option<&'a Value>,
    other: Option<&'a Value>,
) -> impl Iterator<Item = (String, String, String)> {
    let keys = one.into_iter().chain(other).filter_map(Value::as_object).flat_map(|table| table.keys());
    let shown = |table: Option<&Value>, key| {
        table.and_then(|table| table.get(key)).map_or("absent".to_string(), Value::to_string)
    };
    let both = move |key: &'a String| (key.clone(), shown(one, key), shown(other, key));
    keys.collect::<BTreeSet<_>>().into_iter().map(both).filter(|(_, one, other)| one != other)
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Index {
    format: String,
    version: u64,
    pub position: Position,
    pub layout: SaveLayout,
    pub identity: Identity,
    /// A checksum over all elements of the frozen tensors; absent if every tensor trains.
    pub frozen: Option<u64>,
    /// The file of each rank that wrote, with its checksum.
    pub ranks: Vec<(String, u32)>,
    /// The file of the steps so far, with its checksum.
    pub history: Option<(String, u32)>,
    pub cell: Value,
}

impl Index {
    pub fn new(cell: &Cell, position: Position, identity: Identity, frozen: Option<u64>) -> Index {
        Index {
            format: FORMAT.into(),
            version: VERSION,
            position,
            layout: cell.checkpoint.as_ref().map_or(SaveLayout::Sharded, |saving| saving.layout),
            identity,
            frozen,
            ranks: Vec::new(),
            history: None,
            cell: serde_json::to_value(cell).unwrap_or_default(),
        }
    }
}

/// The metadata of the files that one rank wrote.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankFiles {
    pub files: Vec<FileSums>,
    /// What the first of them holds; none in the full layout.
    pub pieces: Vec<Piece>,
}

impl RankFiles {
    /// Why the pieces are none of these tensors in the rank's file; `None` if they are.
    pub(super) fn refused(&self, tensors: &[Named]) -> Option<String> {
        let bytes = self.files.first().map_or(0, |file| file.bytes);
        self.pieces.iter().find_map(|piece| {
            let Some((name, shape)) = tensors.get(piece.tensor) else {
                return Some(format!("it names the tensor {} of {}", piece.tensor, tensors.len()));
            };
            if let Some(reason) = piece.slice.refused(shape) {
                return Some(format!("{name}: {reason}"));
            }
            let width = piece.dtype.size() as u64;
            let end = (piece.slice.len() as u64).checked_mul(width).and_then(|len| len.checked_add(piece.at));
            let inside = end.is_some_and(|end| end <= bytes) && piece.at.is_multiple_of(width);
            (!inside).then(|| format!("{name}: {} elements at byte {} of {bytes}", piece.slice.len(), piece.at))
        })
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FileSums {
    pub name: String,
    pub bytes: u64,
    /// The first transfer of several blocks that this rank wrote.
    pub first: usize,
    /// The distance in transfers to the next that it wrote.
    pub every: usize,
    /// CRC-32 of each of its blocks.
    pub crc32: Vec<u32>,
}

/// A slice of a tensor in a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Piece {
    /// The tensor's number in the [`Identity`].
    pub tensor: usize,
    pub role: StateKind,
    #[serde(deserialize_with = "stored_dtype")]
    pub dtype: DType,
    #[serde(flatten)]
    pub slice: Slice,
    /// The position of its first byte in the file.
    pub at: u64,
}

fn stored_dtype<'de, D: Deserializer<'de>>(from: D) -> Result<DType, D::Error> {
    match DType::deserialize(from)? {
        dtype @ (DType::F32 | DType::Bf16 | DType::F16) => Ok(dtype),
        other => Err(D::Error::custom(format!("{other} is none of f32, bf16, f16"))),
    }
}
