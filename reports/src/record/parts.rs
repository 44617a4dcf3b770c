//! The parts of a record that hold numbers: steps, memory, ranks, communication, operations, parity.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use super::Extra;

/// One optimizer step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Counted from 1 over untimed and timed steps.
    pub step: u64,
    /// Whether its time counts; false for warm-up steps.
    #[serde(default)]
    pub timed: bool,
    /// Mean cross-entropy over the tokens of the global batch before the update, nats.
    #[serde(default = "nan", deserialize_with = "null_is_nan")]
    pub loss: f64,
    /// Global L2 norm of the gradients before clipping.
    #[serde(default = "nan", deserialize_with = "null_is_nan")]
    pub grad_norm: f64,
    /// Learning rate of the update.
    #[serde(default = "nan", deserialize_with = "null_is_nan")]
    pub lr: f64,
    /// Wall time of the slowest rank, milliseconds.
    #[serde(default = "nan", deserialize_with = "null_is_nan")]
    pub ms: f64,
    /// Tokens of the global batch.
    #[serde(default)]
    pub tokens: u64,
    /// Unknown keys.
    #[serde(flatten)]
    pub extra: Extra,
}

impl Step {
    /// The factor on the loss, where it was scaled.
    pub fn loss_scale(&self) -> Option<f64> {
        self.extra.get("loss_scale").and_then(Value::as_f64)
    }

    /// Gradients overflowed at the loss scale, and nothing was updated.
    pub fn is_skipped(&self) -> bool {
        self.extra.get("skipped").and_then(Value::as_bool).unwrap_or(false)
    }
}

/// The memory categories, in the order of every table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Category {
    /// Weights; gathered copies of sharded weights are communication.
    Parameters,
    /// Gradient accumulators and shards.
    Gradients,
    /// Optimizer state, master weights included.
    Optimizer,
    /// Tensors that are kept for the backward pass.
    Activations,
    /// Buffers of collectives.
    Communication,
    /// Scratch memory of kernels.
    Workspace,
}

impl Category {
    /// All six, in table order.
    pub const ALL: [Self; 6] =
        [Self::Parameters, Self::Gradients, Self::Optimizer, Self::Activations, Self::Communication, Self::Workspace];

    /// The name in a record.
    pub fn name(self) -> &'static str {
        match self {
            Self::Parameters => "parameters",
            Self::Gradients => "gradients",
            Self::Optimizer => "optimizer",
            Self::Activations => "activations",
            Self::Communication => "communication",
            Self::Workspace => "workspace",
        }
    }
}

/// Bytes by category of the largest rank.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    /// See [`Category::Parameters`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<Bytes>,
    /// See [`Category::Gradients`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gradients: Option<Bytes>,
    /// See [`Category::Optimizer`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub optimizer: Option<Bytes>,
    /// See [`Category::Activations`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activations: Option<Bytes>,
    /// See [`Category::Communication`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub communication: Option<Bytes>,
    /// See [`Category::Workspace`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<Bytes>,
    /// All categories together. Its peak is at most the sum of the categories' peaks, which need not coincide in time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<Bytes>,
    /// Other keys beside the categories.
    #[serde(flatten)]
    pub extra: Extra,
}

impl Memory {
    /// The bytes of a category.
    pub fn get(&self, category: Category) -> Option<&Bytes> {
        match category {
            Category::Parameters => self.parameters.as_ref(),
            Category::Gradients => self.gradients.as_ref(),
            Category::Optimizer => self.optimizer.as_ref(),
            Category::Activations => self.activations.as_ref(),
            Category::Communication => self.communication.as_ref(),
            Category::Workspace => self.workspace.as_ref(),
        }
    }

    /// Sets the bytes of a category.
    pub fn set(&mut self, category: Category, bytes: Bytes) {
        let slot = match category {
            Category::Parameters => &mut self.parameters,
            Category::Gradients => &mut self.gradients,
            Category::Optimizer => &mut self.optimizer,
            Category::Activations => &mut self.activations,
            Category::Communication => &mut self.communication,
            Category::Workspace => &mut self.workspace,
        };
        *slot = Some(bytes);
    }
}

/// Predicted and measured bytes of one category.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Bytes {
    /// What the plan says `peak_bytes` will be.
    #[serde(default)]
    pub predicted_bytes: Option<u64>,
    /// The category's own peak; `None` when nothing ran.
    #[serde(default)]
    pub peak_bytes: Option<u64>,
    /// The category's share at the moment the rank's total peaks.
    #[serde(default)]
    pub at_peak_bytes: Option<u64>,
    /// Unknown keys.
    #[serde(flatten)]
    pub extra: Extra,
}

/// One rank's own numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rank {
    /// Global rank.
    pub rank: u64,
    /// Host it ran on.
    #[serde(default)]
    pub host: String,
    /// Median step of this rank, milliseconds.
    #[serde(default)]
    pub step_ms_p50: Option<f64>,
    /// Peak of this rank over all categories.
    #[serde(default)]
    pub peak_bytes: Option<u64>,
    /// Unknown keys.
    #[serde(flatten)]
    pub extra: Extra,
}

/// One collective on one mesh axis: per step, bytes of the largest rank, times of the slowest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Communication {
    /// Mesh axis: outer, inner, tensor, and so on.
    pub axis: String,
    /// Collective: all_reduce, all_gather, and so on.
    pub kind: String,
    /// Calls in a step: a mean over the timed steps, as are the bytes, so it need not be whole.
    #[serde(default, deserialize_with = "null_is_nan", serialize_with = "whole_as_integer")]
    pub calls: f64,
    /// Payload of the collective: the whole buffer, for all-reduce twice the buffer.
    #[serde(default, deserialize_with = "null_is_nan", serialize_with = "whole_as_integer")]
    pub payload_bytes: f64,
    /// Bytes that this rank read from or wrote to its peers; NaN, with `source: planned` beside it, where the backend does not
    /// report them.
    #[serde(default, deserialize_with = "null_is_nan", serialize_with = "whole_as_integer")]
    pub wire_bytes: f64,
    /// What the plan says `wire_bytes` will be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted_wire_bytes: Option<f64>,
    /// Time inside the collective, ms.
    #[serde(default = "nan", deserialize_with = "null_is_nan")]
    pub ms: f64,
    /// The part of it that does not overlap with computation, ms.
    #[serde(default = "nan", deserialize_with = "null_is_nan")]
    pub exposed_ms: f64,
    /// Payload over time, GB/s (10^9 bytes per second).
    #[serde(default)]
    pub algbw_gb_s: Option<f64>,
    /// algbw times nccl-tests' factor of the collective, GB/s.
    #[serde(default)]
    pub busbw_gb_s: Option<f64>,
    /// Unknown keys.
    #[serde(flatten)]
    pub extra: Extra,
}

/// Floating-point operations of a step: counted in the plan's operations, which tests hold against those that are issued. No
/// hardware counted them, so that `source` is `planned`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Flops {
    /// The terms of the default convention.
    #[serde(default)]
    pub ledger: Vec<LedgerTerm>,
    /// Value by convention, and anything else the producer adds.
    #[serde(flatten)]
    pub conventions: Map<String, Value>,
}

impl Flops {
    /// Sets the value of a convention; null when it is not finite.
    pub fn set(&mut self, convention: impl Into<String>, value: f64) {
        self.conventions.insert(convention.into(), Value::from(value));
    }

    /// The value of a convention.
    pub fn get(&self, convention: &str) -> Option<f64> {
        self.conventions.get(convention).and_then(Value::as_f64)
    }
}

/// One term of the ledger.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LedgerTerm {
    /// What is computed, as "attention scores, forward".
    pub term: String,
    /// Operations.
    #[serde(default = "nan", deserialize_with = "null_is_nan")]
    pub flops: f64,
    /// The formula of the number.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub formula: String,
    /// Unknown keys.
    #[serde(flatten)]
    pub extra: Extra,
}

/// Comparison of a cell's losses with its reference's.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Parity {
    /// Id of the reference record.
    #[serde(default)]
    pub reference: Option<String>,
    /// Largest relative difference of a step's loss.
    #[serde(default)]
    pub max_loss_difference: Option<f64>,
    /// The verdict.
    #[serde(default)]
    pub verdict: Verdict,
    /// Unknown keys.
    #[serde(flatten)]
    pub extra: Extra,
}

/// Whether the losses are those of the reference.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// This cell is the reference of others.
    Reference,
    /// Bitwise equal.
    Identical,
    /// Within the stated tolerance.
    WithinTolerance,
    /// Outside the tolerance: its speed is not ranked.
    Failed,
    /// Not compared.
    #[default]
    None,
}

impl Verdict {
    /// The words in a table.
    pub fn words(self) -> &'static str {
        match self {
            Self::Reference => "reference",
            Self::Identical => "identical",
            Self::WithinTolerance => "within tolerance",
            Self::Failed => "FAILED",
            Self::None => "not compared",
        }
    }
}

pub(crate) fn nan() -> f64 {
    f64::NAN
}

pub(crate) fn null_is_nan<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::<f64>::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

/// Counts are written without a fraction when they have none, so that other readers see integers.
fn whole_as_integer<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    // Below 2^53 every whole f64 is exactly an i64.
    if value.fract() == 0.0 && value.abs() < (1u64 << 53) as f64 && !(*value == 0.0 && value.is_sign_negative()) {
        serializer.serialize_i64(*value as i64)
    } else {
        serializer.serialize_f64(*value)
    }
}
