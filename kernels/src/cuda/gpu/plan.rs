//! A product in cuBLASLt's words, and the ways that it proposes.

#![allow(unsafe_code, reason = "functions of cuBLASLt")]

use super::Gpu;
use super::cublaslt::{ALLOC_FAILED, CublasLt, INVALID_VALUE, NOT_SUPPORTED};
use crate::DType;
use crate::memory::device::{Address, DeviceError, Result};
use crate::op::Gemm;
use cudarc::cublaslt::sys::*;
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// All of a product but its factor, which no algorithm depends on.
pub(super) type Shape = ([usize; 5], [bool; 3], [DType; 3]);

pub(super) fn shape(op: &Gemm) -> Shape {
    (
        [op.m, op.n, op.k, op.stored_a()[2], op.stored_c()[2]],
        [op.trans_a, op.trans_b, op.accumulate],
        [op.a, op.b, op.c],
    )
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub shape: Shape,
    pub alignment: [u32; 3],
    pub workspace_bytes: usize,
}

/// What the library proposes, or why it proposes nothing.
pub(super) type Proposed = std::result::Result<Vec<cublasLtMatmulHeuristicResult_t>, String>;

/// The library's descriptions of a product's operands, and how it is done.
pub(super) struct Plan {
    library: Arc<CublasLt>,
    pub product: cublasLtMatmulDesc_t,
    /// Of what the library calls A, B and C: ours are B, A and C.
    pub layouts: [cublasLtMatrixLayout_t; 3],
    pub algorithm: cublasLtMatmulAlgo_t,
    /// None until an algorithm is chosen.
    pub chosen: Option<Chosen>,
}

impl Drop for Plan {
    fn drop(&mut self) {
        // SAFETY: this value's own; those that were not made are null.
        unsafe {
            for layout in self.layouts.into_iter().filter(|layout| !layout.is_null()) {
                (self.library.table.layout_destroy)(layout);
            }
            if !self.product.is_null() {
                (self.library.table.product_destroy)(self.product);
            }
        }
    }
}

/// How products of one shape are done.
#[derive(Debug, Clone, PartialEq)]
pub struct Chosen {
    pub op: Gemm,
    /// Multiples of so many bytes are the addresses of A, B and C.
    pub alignment: [u32; 3],
    /// The library's number of the algorithm.
    pub algorithm: i32,
    /// Its number of the tile's size.
    pub tile: u32,
    /// Its number of the pipeline's depth.
    pub stages: u32,
    /// Parts that the sums are split into.
    pub split: u32,
    /// Bytes of scratch that it uses.
    pub workspace_bytes: usize,
    pub candidates: usize,
    /// Time of one product, if candidates were timed.
    pub time: Option<Duration>,
}

pub(super) struct Products {
    pub(super) library: Arc<CublasLt>,
    pub(super) handle: cublasLtHandle_t,
    /// Why there is no plan where the library has none.
    pub(super) plans: Mutex<HashMap<Key, Planned>>,
}

type Planned = std::result::Result<Arc<Plan>, String>;

impl Products {
    pub(super) fn check(&self, gpu: &Gpu, call: &str, code: c_int) -> Result<()> {
        let failed = |words| DeviceError { out_of_memory: code == ALLOC_FAILED, ..gpu.0.error(call, words) };
        self.library.failure(code).map_or(Ok(()), |words| Err(failed(words)))
    }

    /// The library's words for a product, whose matrices lie by columns: what we store by rows is to it the transposed matrix,
    /// so it is asked for `C^T = op(B)^T op(A)^T`.
    pub(super) fn described(&self, gpu: &Gpu, op: &Gemm) -> Result<Plan> {
        let table = &self.library.table;
        let mut plan = Plan {
            library: self.library.clone(),
            product: std::ptr::null_mut(),
            layouts: [std::ptr::null_mut(); 3],
            algorithm: cublasLtMatmulAlgo_t { data: [0; 8] },
            chosen: None,
        };
        // Sums in f32; those of f32 not by TF32, which would keep ten bits of each factor.
        let (compute, scale) = (cublasComputeType_t::CUBLAS_COMPUTE_32F, cudaDataType_t::CUDA_R_32F);
        // SAFETY: a live output.
        let code = unsafe { (table.product_create)(&mut plan.product, compute, scale) };
        self.check(gpu, "cublasLtMatmulDescCreate", code)?;
        let sides = [
            (cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSA, op.trans_b),
            (cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSB, op.trans_a),
        ];
        for (attribute, transposed) in sides {
            // CUBLAS_OP_T and CUBLAS_OP_N.
            let how = u32::from(transposed);
            // SAFETY: a live description, and a value of the size that is said.
            let code =
                unsafe { (table.product_set)(plan.product, attribute, (&raw const how).cast(), size_of_val(&how)) };
            self.check(gpu, "cublasLtMatmulDescSetAttribute", code)?;
        }
        // Rows and columns as stored.
        let b = if op.trans_b { [op.n, op.k, op.k] } else { [op.k, op.n, op.n] };
        let matrices = [(op.b, b), (op.a, op.stored_a()), (op.c, op.stored_c())];
        for (layout, (dtype, [rows, columns, pitch])) in plan.layouts.iter_mut().zip(matrices) {
            let Some(dtype) = data_type(dtype) else { continue };
            // SAFETY: a live output.
            let code = unsafe { (table.layout_create)(layout, dtype, columns as u64, rows as u64, pitch as i64) };
            self.check(gpu, "cublasLtMatrixLayoutCreate", code)?;
        }
        Ok(plan)
    }

    /// Algorithms that the library proposes, the best first by its own judgement, at least one; why there is none where it cannot do the
    /// product.
    pub(super) fn proposed(&self, gpu: &Gpu, plan: &Plan, key: &Key, most: usize) -> Result<Proposed> {
        use cublasLtMatmulPreferenceAttributes_t::*;
        let table = &self.library.table;
        let mut preference = std::ptr::null_mut();
        // SAFETY: a live output.
        let code = unsafe { (table.preference_create)(&mut preference) };
        self.check(gpu, "cublasLtMatmulPreferenceCreate", code)?;
        let set = |attribute, value: *const c_void, bytes| {
            // SAFETY: a live preference, and a value of the size that is said.
            let code = unsafe { (table.preference_set)(preference, attribute, value, bytes) };
            self.check(gpu, "cublasLtMatmulPreferenceSetAttribute", code)
        };
        let limits = || {
            let workspace = key.workspace_bytes as u64;
            set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, (&raw const workspace).cast(), 8)?;
            // Split sums are put together in f32, never in the narrow type of C.
            let schemes = cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;
            set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, (&raw const schemes).cast(), 4)?;
            let [a, b, c] = key.alignment;
            let sides = [
                (CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, b),
                (CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, a),
                (CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, c),
                (CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, c),
            ];
            sides.into_iter().try_for_each(|(side, bytes)| set(side, (&raw const bytes).cast(), 4))
        };
        let limited = limits();
        let mut results: Vec<MaybeUninit<cublasLtMatmulHeuristicResult_t>> = vec![MaybeUninit::zeroed(); most];
        let mut count: c_int = 0;
        // SAFETY: live descriptions, and room for as many results as is said.
        let code = unsafe {
            let [a, b, c] = plan.layouts;
            let at = results.as_mut_ptr().cast();
            (table.heuristic)(self.handle, plan.product, a, b, c, c, preference, most as c_int, at, &mut count)
        };
        // SAFETY: made above.
        unsafe { (table.preference_destroy)(preference) };
        limited?;
        if [NOT_SUPPORTED, INVALID_VALUE].contains(&code) {
            let words = self.library.failure(code).unwrap_or_default();
            let name = if code == NOT_SUPPORTED { "not supported" } else { "invalid value" };
            return Ok(Err(format!("cuBLASLt refuses it: {name}, {words}")));
        }
        self.check(gpu, "cublasLtMatmulAlgoGetHeuristic", code)?;
        results.truncate(count.max(0) as usize);
        // SAFETY: the library has written so many, and zeros are valid too.
        let results = results.into_iter().map(|result| unsafe { result.assume_init() });
        let usable: Vec<_> = results.filter(|result| result.state == cublasStatus_t::CUBLAS_STATUS_SUCCESS).collect();
        Ok(if usable.is_empty() { Err("cuBLASLt proposes no algorithm".into()) } else { Ok(usable) })
    }

    /// A number of a plan's algorithm; 0 where the library does not say.
    pub(super) fn number(&self, plan: &Plan, which: cublasLtMatmulAlgoConfigAttributes_t) -> u32 {
        let (mut value, mut written) = (0u32, 0);
        let at = (&raw mut value).cast();
        // SAFETY: a live algorithm, and an output of the size that is said.
        let code = unsafe { (self.library.table.algorithm_get)(&plan.algorithm, which, at, 4, &mut written) };
        if self.library.failure(code).is_none() { value } else { 0 }
    }
}

impl Drop for Products {
    fn drop(&mut self) {
        self.plans.get_mut().unwrap_or_else(PoisonError::into_inner).clear();
        // SAFETY: made by `new`, and destroyed once.
        unsafe { (self.library.table.destroy)(self.handle) };
    }
}

/// The library's type, of those that it multiplies here.
pub(super) fn data_type(dtype: DType) -> Option<cudaDataType_t> {
    match dtype {
        DType::F32 => Some(cudaDataType_t::CUDA_R_32F),
        DType::Bf16 => Some(cudaDataType_t::CUDA_R_16BF),
        DType::F16 => Some(cudaDataType_t::CUDA_R_16F),
        _ => None,
    }
}

/// Bytes of which an address is a multiple: a power of two, up to what makes a difference. That is a word of 16 bytes, which the
/// library's kernels and Hopper's copies move; where a buffer lies beyond that must not choose an algorithm, and with it bits.
pub(super) fn alignment(address: Address) -> u32 {
    1 << address.trailing_zeros().min(4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_aligned_as_they_are() {
        assert_eq!([0, 256, 4096, 64, 48, 24, 2, 7].map(alignment), [16, 16, 16, 16, 16, 8, 2, 1]);
    }
}
