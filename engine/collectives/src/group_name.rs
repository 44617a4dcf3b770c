use serde::{Deserialize, Serialize};

/// The ranks that a collective runs among, as records and reports name them. The declaration order is the order of their rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GroupName {
    /// All ranks that have the same weights.
    Data,
    /// The ranks of one shard group of a hybrid mesh.
    Inner,
    /// The ranks with the same place in every shard group of a hybrid mesh.
    Outer,
    Tensor,
    Context,
    Expert,
    /// The ranks that have the same experts, where ranks share them.
    ExpertData,
    Pipeline,
    World,
}

impl GroupName {
    /// The name in records, reports and logs.
    pub const fn name(self) -> &'static str {
        match self {
            GroupName::Data => "data",
            GroupName::Inner => "inner",
            GroupName::Outer => "outer",
            GroupName::Tensor => "tensor",
            GroupName::Context => "context",
            GroupName::Expert => "expert",
            GroupName::ExpertData => "expert_data",
            GroupName::Pipeline => "pipeline",
            GroupName::World => "world",
        }
    }
}
