//! What a cell may ask for that this version of the engine prices and does not run. A cell with any of it is planned by
//! `zbench-estimate` and skipped by a grid. What the engine learns moves out of here, together with its tests.

use super::{Cell, Degrees, DeviceKind};
use serde::{Deserialize, Serialize};

/// Everything that is priced and not run. The default is none of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Priced {
    /// Tokens of the busiest expert rank over the mean.
    pub expert_imbalance: f64,
    /// What gathered weights travel as; absent = as they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gather_wire: Option<Wire>,
    /// What reduced gradients travel as; absent = precision.reduce.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reduce_wire: Option<Wire>,
    /// Ranks over which a second copy of the weights waits for backward (hpZ); 1 = none.
    pub parked: usize,
    /// How the loss is made.
    pub loss: PricedLoss,
    /// Which axis lies within a node, beside those of tensor and context.
    #[serde(skip_serializing_if = "Placement::is_usual")]
    pub placement: Placement,
    /// A model that the engine has not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<PricedModel>,
}

impl Default for Priced {
    fn default() -> Priced {
        Priced {
            expert_imbalance: 1.0,
            gather_wire: None,
            reduce_wire: None,
            parked: 1,
            loss: PricedLoss::Fused,
            placement: Placement::DataInside,
            model: None,
        }
    }
}

/// A key's value, where it is not the usual one.
fn unless<T: PartialEq + Serialize>(usual: T, value: T) -> Option<String> {
    (value != usual).then(|| serde_json::json!(value).to_string())
}

impl Cell {
    /// The first key that the engine would have to know, and what it says; `None` of a cell that the engine runs. Nothing else
    /// decides which cells are priced and not run: what the engine learns leaves this list.
    pub fn first_priced_key(&self) -> Option<(&'static str, String)> {
        let Degrees { tensor, pipeline, context, expert, expert_tensor, .. } = self.parallel.degrees;
        let degrees =
            [("parallel.context", context), ("parallel.expert", expert), ("parallel.expert_tensor", expert_tensor)];
        let degree = degrees.into_iter().find_map(|(key, ranks)| Some((key, unless(1, ranks)?)));
        // No such run has been seen on GPUs.
        let is_on_gpus = self.hardware.device == DeviceKind::Cuda;
        let unseen = [("parallel.tensor", tensor), ("parallel.pipeline", pipeline)];
        let unseen = unseen.into_iter().find(|(_, ranks)| is_on_gpus && *ranks > 1);
        let unseen = unseen.map(|(key, ranks)| (key, format!("{ranks} on GPUs")));
        degree.or(unseen).or_else(|| self.priced.as_ref()?.first_key())
    }

    /// Whether it is priced alone; see [`Cell::first_priced_key`].
    pub fn is_priced(&self) -> bool {
        self.first_priced_key().is_some()
    }
}

impl Priced {
    /// The first of its keys that is not as usual, and what it says.
    pub fn first_key(&self) -> Option<(&'static str, String)> {
        let quoted = |word: &str| Some(format!("{word:?}"));
        let loss = match self.loss {
            PricedLoss::Fused => None,
            PricedLoss::Logits => quoted("logits"),
            PricedLoss::Chunked(_) => quoted("chunked"),
        };
        let keys = [
            ("parallel.gather_wire", unless(None, self.gather_wire)),
            ("parallel.reduce_wire", unless(None, self.reduce_wire)),
            ("memory.loss", loss),
            ("parallel.placement", unless(Placement::DataInside, self.placement)),
            ("model.family", self.model.as_ref().and_then(|model| quoted(model.name()))),
            ("parallel.strategy", if self.parked > 1 { quoted("zero++") } else { None }),
        ];
        keys.into_iter().find_map(|(key, word)| Some((key, word?)))
    }
}

/// What travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wire {
    /// Two bytes.
    Bf16,
    /// One byte, and a scale per block.
    Int8,
    /// Half a byte, and a scale per block.
    Int4,
}

/// How ranks are numbered, from the innermost axis on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// Tensor, context, data, pipeline: the engine's own order.
    #[default]
    DataInside,
    /// Tensor, context, pipeline, data.
    PipelineInside,
}

impl Placement {
    /// Its name in configurations.
    pub const fn name(self) -> &'static str {
        match self {
            Placement::DataInside => "data-inside",
            Placement::PipelineInside => "pipeline-inside",
        }
    }

    fn is_usual(&self) -> bool {
        *self == Placement::DataInside
    }
}

/// Where bytes live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Home {
    /// On the device.
    #[default]
    Device,
    /// In the host's memory.
    Host,
    /// On disk.
    Disk,
}

impl Home {
    /// All of them.
    pub const ALL: [Home; 3] = [Home::Device, Home::Host, Home::Disk];
}

/// How the loss over the vocabulary is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PricedLoss {
    /// As the engine does: one kernel that writes the gradient over the logits.
    #[default]
    Fused,
    /// Logits whole, and f32 copies of them.
    Logits,
    /// So many tokens at a time.
    Chunked(usize),
}

/// A model that the engine has not.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum PricedModel {
    /// T5 and its like; the sizes that both stacks share stand in `Cell::model`.
    EncoderDecoder {
        /// Blocks of the decoder.
        num_decoder_layers: usize,
        /// Tokens of its sequence.
        decoder_seq_len: usize,
        /// A gated MLP (T5 1.1).
        gated: bool,
    },
    /// A number of parameters and that of the largest layer.
    Count {
        /// All parameters.
        parameters: u64,
        /// Those of the largest layer.
        largest_layer: u64,
    },
}

impl PricedModel {
    /// The family in configurations.
    pub const fn name(&self) -> &'static str {
        match self {
            PricedModel::EncoderDecoder { .. } => "t5",
            PricedModel::Count { .. } => "count",
        }
    }
}
