//! What a cell may ask for that this version of the engine prices and does not run. A cell with any of it is planned by
//! `zbench-estimate` and skipped by a grid; what the engine learns moves out of here.

use serde::{Deserialize, Serialize};

/// Everything that is priced and not run. The default is none of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Priced {
    /// Ranks that share each matrix.
    pub tensor: usize,
    /// Ranks that share what lies between the matrices: 1 or `tensor`.
    pub sequence: usize,
    /// Stages of the pipeline.
    pub pipeline: usize,
    /// Chunks of the model on each stage.
    pub virtual_stages: usize,
    /// Order of micro-batches in the pipeline.
    pub pipeline_schedule: PipelineSchedule,
    /// Ranks that share each sequence.
    pub context: usize,
    /// Ranks that share the experts.
    pub expert: usize,
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
    /// Where optimizer state lives.
    pub offload_optimizer: Home,
    /// Where weights live.
    pub offload_parameters: Home,
    /// Where what forward keeps lives.
    pub offload_activations: Home,
    /// The folder of what lives on a disk; no price depends on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offload_path: Option<String>,
    /// Whether the inputs that checkpointing keeps are split over `tensor` (ZeRO-R).
    pub partition_activations: bool,
    /// Ranks that share each expert's matrices.
    pub expert_tensor: usize,
    /// How the loss is made.
    pub loss: PricedLoss,
    /// A model that the engine has not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<PricedModel>,
}

impl Default for Priced {
    fn default() -> Priced {
        Priced {
            tensor: 1,
            sequence: 1,
            pipeline: 1,
            virtual_stages: 1,
            pipeline_schedule: PipelineSchedule::OneFOneB,
            context: 1,
            expert: 1,
            expert_imbalance: 1.0,
            gather_wire: None,
            reduce_wire: None,
            parked: 1,
            offload_optimizer: Home::Device,
            offload_parameters: Home::Device,
            offload_activations: Home::Device,
            offload_path: None,
            partition_activations: false,
            expert_tensor: 1,
            loss: PricedLoss::Fused,
            model: None,
        }
    }
}

impl Priced {
    /// The first key that the engine would have to know, and what it says; `None` where there is nothing to know.
    pub fn first_key(&self) -> Option<(&'static str, String)> {
        fn unless<T: PartialEq + Serialize>(usual: T, value: T) -> Option<String> {
            (value != usual).then(|| serde_json::json!(value).to_string())
        }
        let degree = |ranks: usize| unless(1, ranks.max(1));
        let quoted = |word: &str| Some(format!("{word:?}"));
        let loss = match self.loss {
            PricedLoss::Fused => None,
            PricedLoss::Logits => quoted("logits"),
            PricedLoss::Chunked(_) => quoted("chunked"),
        };
        let keys = [
            ("parallel.tensor", degree(self.tensor)),
            ("parallel.sequence", degree(self.sequence)),
            ("parallel.pipeline", degree(self.pipeline)),
            ("parallel.context", degree(self.context)),
            ("parallel.expert", degree(self.expert)),
            ("parallel.expert_tensor", degree(self.expert_tensor)),
            ("parallel.gather_wire", unless(None, self.gather_wire)),
            ("parallel.reduce_wire", unless(None, self.reduce_wire)),
            ("memory.offload_optimizer", unless(Home::Device, self.offload_optimizer)),
            ("memory.offload_parameters", unless(Home::Device, self.offload_parameters)),
            ("memory.offload_activations", unless(Home::Device, self.offload_activations)),
            ("memory.loss", loss),
            ("model.family", self.model.as_ref().and_then(|model| quoted(model.name()))),
            ("memory.partition_activations", unless(false, self.partition_activations)),
            ("parallel.strategy", if self.parked > 1 { quoted("zero++") } else { None }),
        ];
        keys.into_iter().find_map(|(key, word)| Some((key, word?)))
    }

    /// Ranks that hold one replica of the model's work: all but the data axes.
    pub fn ranks_per_replica(&self) -> usize {
        [self.tensor, self.pipeline, self.context].into_iter().fold(1, usize::saturating_mul)
    }
}

/// Order of micro-batches in a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PipelineSchedule {
    /// One forward, one backward; interleaved where there are virtual stages.
    #[serde(rename = "1f1b")]
    OneFOneB,
    /// All forward, then all backward.
    #[serde(rename = "gpipe")]
    GPipe,
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
