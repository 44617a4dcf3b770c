//! Parts of tensors as Hopper's copies want them described.

#![allow(unsafe_code, reason = "functions of the CUDA driver")]

use super::Inner;
use crate::DType;
use crate::memory::device::{Result, TensorBox, TensorMap};
use cudarc::driver::sys::*;

const CALL: &str = "cuTensorMapEncodeTiled";
/// Bytes of a row of a part: as many as the swizzle goes through.
const ROW_BYTES: u64 = 128;

/// What the driver calls a type. It moves bits: signs do not matter to it.
fn number(dtype: DType) -> CUtensorMapDataType {
    match dtype {
        DType::F64 => CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT64,
        DType::F32 => CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
        DType::Bf16 => CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        DType::F16 => CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        DType::U32 => CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_UINT32,
        DType::I32 => CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_INT32,
        DType::I8 => CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_UINT8,
    }
}

/// What the driver would refuse without saying why, or what a copy would do wrong.
fn objection(of: &TensorBox) -> Option<String> {
    let size = of.dtype.size() as u64;
    let row = u64::from(of.part[0]) * size;
    if of.address == 0 || !of.address.is_multiple_of(16) {
        return Some(format!("address {:#x} is no multiple of 16", of.address));
    }
    if let Some(count) = of.sizes.iter().find(|count| !(1..=1 << 32).contains(*count)) {
        return Some(format!("{count} elements along a dimension; it takes 1 to 2^32"));
    }
    if let Some(stride) = of.strides.iter().find(|stride| !stride.is_multiple_of(16) || **stride >= 1 << 40) {
        return Some(format!("a stride of {stride} bytes is no multiple of 16 below 2^40"));
    }
    if of.strides[0] < of.sizes[0] * size {
        return Some(format!("rows of {} bytes overlap at a stride of {}", of.sizes[0] * size, of.strides[0]));
    }
    if !of.strides[1].is_multiple_of(of.strides[0]) {
        return Some(format!("the stride {} is no multiple of the one before it, {}", of.strides[1], of.strides[0]));
    }
    if of.part.iter().any(|count| !(1..=256).contains(count)) {
        return Some(format!("a part of {:?} elements; it takes 1 to 256 along each dimension", of.part));
    }
    if row != ROW_BYTES {
        return Some(format!("a row of a part has {row} bytes; chunks change places within {ROW_BYTES}"));
    }
    None
}

impl Inner {
    pub(super) fn tensor_map(&self, of: &TensorBox) -> Result<TensorMap> {
        if self.facts.capability < (9, 0) {
            let (major, minor) = self.facts.capability;
            let reason = format!("compute capability {major}.{minor} has no such copies; 9.0 has them");
            return Err(self.error(CALL, reason));
        }
        if let Some(objection) = objection(of) {
            return Err(self.error(CALL, objection));
        }
        let Some(encode) = self.driver.table.tensor_map else {
            let (version, path) = (super::dotted(self.driver.version()), self.driver.path().display());
            let driver = format!("CUDA driver {version} of {path}");
            let reason = format!("{driver} has no such function, which came with CUDA 12.0: update the driver");
            return Err(self.error(CALL, reason));
        };
        // Copies of parts that lie beside each other follow soon: where rows have more than one part, L2 reads two at once.
        let promotion = if of.sizes[0] * of.dtype.size() as u64 > ROW_BYTES {
            CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B
        } else {
            CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_128B
        };
        self.enter()?;
        let mut map = CUtensorMap { opaque: [0; 16] };
        // SAFETY: a live output, aligned as the driver has it; as many sizes, strides and steps as the rank wants. The address
        // is not read here.
        let code = unsafe {
            encode(
                &mut map,
                number(of.dtype),
                3,
                of.address as *mut std::ffi::c_void,
                of.sizes.as_ptr(),
                of.strides.as_ptr(),
                of.part.as_ptr(),
                [1; 3].as_ptr(),
                CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
                promotion,
                // Zeros outside of the tensor.
                CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        };
        self.check(CALL, code)?;
        Ok(TensorMap(map.opaque))
    }
}
