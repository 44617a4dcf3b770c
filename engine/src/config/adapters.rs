//! Kinds of adapters, and what follows from their settings.

use super::Lora;
use serde::{Deserialize, Serialize};
use zbench_kernels::{DType, Packing};

impl Lora {
    /// Whether there are adapters, and so a frozen base.
    pub fn on(&self) -> bool {
        self.method == Method::Ia3 || self.rank > 0
    }

    /// The factor on a low-rank adapter's output.
    pub fn scale(&self) -> f64 {
        let rank = self.rank as f64;
        self.alpha / if self.use_rslora { rank.sqrt() } else { rank }
    }
}

/// What kind of adapters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Method {
    /// Low-rank products beside a layer.
    #[default]
    Lora,
    /// Factors on what a layer gives or reads.
    Ia3,
}

/// What the frozen weights of an adapter run are kept as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Base {
    /// All of them in f32.
    F32,
    /// All of them in bf16.
    Bf16,
    /// All of them in f16.
    F16,
    /// The blocks' matrices in NF4, its scales in 8 bits; the rest in the parameters' type.
    Nf4,
    /// The blocks' matrices in NF4, its scales in f32; the rest in the parameters' type.
    Nf4Single,
    /// The blocks' matrices in 8 bits with a scale for each row; the rest in the parameters' type.
    Int8,
}

impl Base {
    /// The type of all frozen weights, where they have one.
    pub const fn float(self) -> Option<DType> {
        match self {
            Base::F32 => Some(DType::F32),
            Base::Bf16 => Some(DType::Bf16),
            Base::F16 => Some(DType::F16),
            Base::Nf4 | Base::Nf4Single | Base::Int8 => None,
        }
    }

    /// How the blocks' matrices are kept, where that is in few bits.
    pub const fn packing(self) -> Option<Packing> {
        match self {
            Base::F32 | Base::Bf16 | Base::F16 => None,
            Base::Nf4 => Some(Packing::Nf4Double),
            Base::Nf4Single => Some(Packing::Nf4),
            Base::Int8 => Some(Packing::Int8),
        }
    }
}
