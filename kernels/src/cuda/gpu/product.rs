//! Matrix products by cuBLASLt: how each shape is done is decided once, and kept.

#![allow(unsafe_code, reason = "functions of cuBLASLt")]

use super::cublaslt::CublasLt;
use super::plan::{Chosen, Key, Plan, Products, alignment, data_type, shape};
use super::{Gpu, GpuEvent, Inner};
use crate::DType;
use crate::memory::device::{Address, Device, Event, Result};
use crate::op::Gemm;
use cudarc::cublaslt::sys::*;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Algorithms that are timed, of those that the library proposes.
const CANDIDATES: usize = 8;
/// Products of each that are timed, after one that is not.
const ROUNDS: u32 = 3;
/// The library wants its scratch at multiples of so many bytes; arenas place buffers at multiples of fewer.
const SCRATCH_ALIGNMENT: usize = 256;

/// The scratch for the library out of what is given. How much that is does not depend on where it lies, and so neither does what is
/// chosen.
fn aligned(at: Address, bytes: usize) -> (Address, usize) {
    let whole = bytes.saturating_sub(SCRATCH_ALIGNMENT - 1) / SCRATCH_ALIGNMENT * SCRATCH_ALIGNMENT;
    (at.next_multiple_of(SCRATCH_ALIGNMENT as Address), whole)
}

/// A product that a kernel of our own did where the vendor's library was wanted.
#[derive(Debug, Clone, PartialEq)]
pub struct Fallback {
    pub op: Gemm,
    pub why: String,
}

impl Inner {
    /// Notes that a kernel of our own does this product. Called for each of them, so that a reason is only asked for once.
    pub(super) fn fell_back(&self, op: &Gemm, why: impl FnOnce() -> String) {
        let mut all = self.fallbacks.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(shape(op)).or_insert_with(|| Fallback { op: *op, why: why() });
    }
}

/// Where the operands of a product and its scratch lie.
#[derive(Clone, Copy)]
struct Operands {
    a: Address,
    b: Address,
    c: Address,
    /// The result; as `c`, but while candidates are timed.
    d: Address,
    workspace: Address,
    workspace_bytes: usize,
}

impl Products {
    /// The device is the calling thread's.
    pub(super) fn new(library: Arc<CublasLt>, inner: &Inner) -> Result<Products> {
        inner.enter()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: a live output.
        let code = unsafe { (library.table.create)(&mut handle) };
        let failed =
            |words| inner.error("cublasLtCreate", format!("{words}; its file is {}", library.path().display()));
        library.failure(code).map_or(Ok(()), |words| Err(failed(words)))?;
        Ok(Products { library, handle, plans: Mutex::default() })
    }

    pub(super) fn chosen(&self) -> Vec<Chosen> {
        let plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<Chosen> =
            plans.values().flatten().filter_map(|plan: &Arc<Plan>| plan.chosen.clone()).collect();
        all.sort_by_key(|chosen| (chosen.op.m, chosen.op.n, chosen.op.k, chosen.op.trans_a, chosen.op.trans_b));
        all
    }

    /// Puts a product into a stream, if the library can do it.
    ///
    /// # Safety
    /// Addresses are those of operands that `op` describes, and of the workspace; the stream is the device's, which is the
    /// calling thread's.
    pub(super) unsafe fn product(
        &self,
        gpu: &Gpu,
        stream: cudaStream_t,
        op: &Gemm,
        [a, b, c]: [Address; 3],
        (workspace, workspace_bytes): (Address, usize),
    ) -> Result<bool> {
        // Sums of nothing are left to our own kernels.
        if op.m == 0 || op.n == 0 || op.k == 0 {
            return Ok(false);
        }
        if data_type(op.a).is_none() || op.a != op.b || (op.c != op.a && op.c != DType::F32) {
            gpu.0.fell_back(op, || format!("cuBLASLt is not asked to multiply {} by {} into {}", op.a, op.b, op.c));
            return Ok(false);
        }
        let (workspace, workspace_bytes) = aligned(workspace, workspace_bytes.min(gpu.blas_workspace()));
        let operands = Operands { a, b, c, d: c, workspace, workspace_bytes };
        let key = Key { shape: shape(op), alignment: [a, b, c].map(alignment), workspace_bytes };
        let plan = {
            // Held while a plan is made: ranks that share a device take the same one, and do not time side by side.
            let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
            match plans.get(&key) {
                Some(plan) => plan.clone(),
                None => {
                    // SAFETY: the caller's promise.
                    let plan = unsafe { self.plan(gpu, stream, op, &key, operands)? }.map(Arc::new);
                    plans.insert(key, plan.clone());
                    plan
                }
            }
        };
        let plan = match plan {
            Ok(plan) => plan,
            Err(why) => {
                gpu.0.fell_back(op, || why);
                return Ok(false);
            }
        };
        // SAFETY: the caller's promise.
        let code = unsafe { self.run(&plan, op, operands, stream) };
        self.check(gpu, "cublasLtMatmul", code)?;
        Ok(true)
    }

    /// How products like this are done; why the library has no way.
    ///
    /// # Safety
    /// As for `product`.
    unsafe fn plan(
        &self,
        gpu: &Gpu,
        stream: cudaStream_t,
        op: &Gemm,
        key: &Key,
        operands: Operands,
    ) -> Result<std::result::Result<Plan, String>> {
        use cublasLtMatmulAlgoConfigAttributes_t::*;
        let mut plan = self.described(gpu, op)?;
        let most = if gpu.0.options.tune { CANDIDATES } else { 1 };
        let proposed = match self.proposed(gpu, &plan, key, most)? {
            Ok(proposed) => proposed,
            Err(why) => return Ok(Err(why)),
        };
        let mut best = (proposed[0], None);
        if proposed.len() > 1 {
            // SAFETY: the caller's promise.
            best = unsafe { self.fastest(gpu, &mut plan, op, operands, &proposed, stream)? };
        }
        let (proposal, time) = best;
        plan.algorithm = proposal.algo;
        plan.chosen = Some(Chosen {
            op: *op,
            alignment: key.alignment,
            algorithm: self.number(&plan, CUBLASLT_ALGO_CONFIG_ID) as i32,
            tile: self.number(&plan, CUBLASLT_ALGO_CONFIG_TILE_ID),
            stages: self.number(&plan, CUBLASLT_ALGO_CONFIG_STAGES_ID),
            split: self.number(&plan, CUBLASLT_ALGO_CONFIG_SPLITK_NUM),
            workspace_bytes: proposal.workspaceSize,
            candidates: proposed.len(),
            time,
        });
        Ok(Ok(plan))
    }

    /// The fastest of the proposals, on these very operands, and its time.
    ///
    /// # Safety
    /// As for `product`.
    unsafe fn fastest(
        &self,
        gpu: &Gpu,
        plan: &mut Plan,
        op: &Gemm,
        mut operands: Operands,
        proposed: &[cublasLtMatmulHeuristicResult_t],
        stream: cudaStream_t,
    ) -> Result<(cublasLtMatmulHeuristicResult_t, Option<Duration>)> {
        // A product that adds must not add many times: its results go elsewhere meanwhile.
        let aside_bytes = op.m * op.stored_c()[2] * op.c.size();
        let aside = if op.accumulate { gpu.allocate(aside_bytes) } else { Ok(0) };
        let Ok(aside) = aside else { return Ok((proposed[0], None)) };
        if op.accumulate {
            operands.d = aside;
        }
        let mut time = |proposal: &cublasLtMatmulHeuristicResult_t| -> Result<Option<Duration>> {
            plan.algorithm = proposal.algo;
            // SAFETY: the caller's promise; `d` holds as much as `c`.
            let run = || unsafe { self.run(plan, op, operands, stream) };
            // What the library proposes and then refuses is out of question.
            if self.library.failure(run()).is_some() {
                return Ok(None);
            }
            let (begin, end) = (GpuEvent::timed(gpu)?, GpuEvent::timed(gpu)?);
            // SAFETY: a live stream of this device's.
            unsafe { begin.record(stream.cast())? };
            for _ in 0..ROUNDS {
                self.check(gpu, "cublasLtMatmul", run())?;
            }
            // SAFETY: a live stream of this device's.
            unsafe { end.record(stream.cast())? };
            end.wait()?;
            Ok(Some(end.elapsed(&begin)? / ROUNDS))
        };
        let times: Result<Vec<Option<Duration>>> = proposed.iter().map(&mut time).collect();
        if op.accumulate {
            // SAFETY: made above; `free` waits for what still writes to it.
            unsafe { gpu.free(aside, aside_bytes) };
        }
        let times = times?;
        let fastest = (0..proposed.len()).filter(|i| times[*i].is_some()).min_by_key(|i| times[*i]).unwrap_or(0);
        Ok((proposed[fastest], times[fastest]))
    }

    /// Puts a product into the stream; the library's status.
    ///
    /// # Safety
    /// As for `product`.
    unsafe fn run(&self, plan: &Plan, op: &Gemm, operands: Operands, stream: cudaStream_t) -> c_int {
        let (alpha, beta) = (op.alpha, if op.accumulate { 1f32 } else { 0.0 });
        let Operands { a, b, c, d, workspace, workspace_bytes } = operands;
        let [side_a, side_b, side_c] = plan.layouts;
        // SAFETY: the caller's promise; the factors are read before the call returns.
        unsafe {
            (self.library.table.multiply)(
                self.handle,
                plan.product,
                (&raw const alpha).cast(),
                b as *const c_void,
                side_a,
                a as *const c_void,
                side_b,
                (&raw const beta).cast(),
                c as *const c_void,
                side_c,
                d as *mut c_void,
                side_c,
                &plan.algorithm,
                workspace as *mut c_void,
                workspace_bytes,
                stream,
            )
        }
    }
}
