//! Degrees of model parallelism: how many ranks share a matrix, a sequence, the layers, the experts.

use serde::{Deserialize, Serialize};

/// How many ranks share what; the default is that every rank has all of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Degrees {
    /// Ranks that share each matrix.
    pub tensor: usize,
    /// Ranks that share what lies between the matrices: 1 or `tensor`.
    pub sequence: usize,
    /// Stages of the pipeline.
    pub pipeline: usize,
    /// Parts of the model on each stage.
    pub virtual_stages: usize,
    /// Order of micro-batches in the pipeline.
    pub pipeline_schedule: PipelineSchedule,
    /// Ranks that share each sequence.
    pub context: usize,
    /// Ranks that share the experts.
    pub expert: usize,
    /// Ranks that share each expert's matrices.
    pub expert_tensor: usize,
}

impl Default for Degrees {
    fn default() -> Degrees {
        Degrees {
            tensor: 1,
            sequence: 1,
            pipeline: 1,
            virtual_stages: 1,
            pipeline_schedule: PipelineSchedule::OneFOneB,
            context: 1,
            expert: 1,
            expert_tensor: 1,
        }
    }
}

impl PipelineSchedule {
    /// Its name in a configuration.
    pub const fn name(self) -> &'static str {
        match self {
            PipelineSchedule::OneFOneB => "1f1b",
            PipelineSchedule::Interleaved => "interleaved",
            PipelineSchedule::ZbH1 => "zb-h1",
            PipelineSchedule::GPipe => "gpipe",
            PipelineSchedule::Naive => "naive",
        }
    }
}

impl Degrees {
    /// The schedule: 1F1B over several chunks of layers is interleaved, as it is in Megatron-LM.
    pub fn schedule(&self) -> PipelineSchedule {
        match self.pipeline_schedule {
            PipelineSchedule::OneFOneB if self.virtual_stages > 1 => PipelineSchedule::Interleaved,
            schedule => schedule,
        }
    }

    /// Ranks that hold one replica of the model's work: all but the data axes.
    pub fn ranks_per_replica(&self) -> usize {
        [self.tensor, self.pipeline, self.context].into_iter().fold(1, usize::saturating_mul)
    }

    /// Data-parallel ranks of a shard group of at most `per_node` ranks, those that share its sequences included: the most that
    /// make whole groups of the `data` there are. Without tensor parallelism such a group keeps to a node.
    pub fn shard_in_node(&self, per_node: usize, data: usize) -> usize {
        (1..=per_node / self.context.max(1)).rev().find(|shard| data.is_multiple_of(*shard)).unwrap_or(1)
    }
}

/// Order of micro-batches in a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PipelineSchedule {
    /// One forward, one backward; [`PipelineSchedule::Interleaved`] where there are virtual stages.
    #[serde(rename = "1f1b")]
    OneFOneB,
    /// One forward, one backward of stages that have several chunks of layers each.
    #[serde(rename = "interleaved")]
    Interleaved,
    /// One forward, one backward, with gradients of weights computed where a stage would wait (zero bubble).
    #[serde(rename = "zb-h1")]
    ZbH1,
    /// All forward, then all backward.
    #[serde(rename = "gpipe")]
    GPipe,
    /// One micro-batch goes through all stages, forward and backward, before the next one comes.
    #[serde(rename = "naive")]
    Naive,
}
