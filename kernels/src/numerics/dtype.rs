#![allow(unsafe_code, reason = "the layout of an element's type is promised here")]

use half::{bf16, f16};
use serde::{Deserialize, Serialize};

/// The type of the elements of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// IEEE double precision; only the reference kernels compute in it.
    F64,
    /// IEEE single precision.
    F32,
    /// The upper half of a single: 8 bits of exponent, 7 of fraction.
    Bf16,
    /// IEEE half precision.
    F16,
    /// Token ids.
    U32,
    /// Signed integers that collectives move and reduce; no training kernel computes in them.
    I32,
    /// As [`DType::I32`], and what block quantisation stores.
    I8,
}

impl DType {
    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            DType::F64 => 8,
            DType::F32 | DType::U32 | DType::I32 => 4,
            DType::Bf16 | DType::F16 => 2,
            DType::I8 => 1,
        }
    }

    /// The name used in configurations and records.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F64 => "f64",
            DType::F32 => "f32",
            DType::Bf16 => "bf16",
            DType::F16 => "f16",
            DType::U32 => "u32",
            DType::I32 => "i32",
            DType::I8 => "i8",
        }
    }

    /// Whether elements are floating-point numbers; the kernels of training know nothing else.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F64 | DType::F32 | DType::Bf16 | DType::F16)
    }

    /// The type in which sums of this type are kept: f64 for f64, else f32.
    pub const fn accumulator(self) -> DType {
        match self {
            DType::F64 => DType::F64,
            _ => DType::F32,
        }
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// A Rust type that stands for a [`DType`].
///
/// # Safety
/// The type must have the size of its `DTYPE` and an alignment of at most that: views turn into slices of it.
pub unsafe trait Element: bytemuck::Pod {
    /// The tag of this type.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($t:ty => $d:ident),*) => { $(
        // SAFETY: the tag is that of the type itself.
        unsafe impl Element for $t { const DTYPE: DType = DType::$d; })* };
}
elements!(f64 => F64, f32 => F32, bf16 => Bf16, f16 => F16, u32 => U32, i32 => I32, i8 => I8);
