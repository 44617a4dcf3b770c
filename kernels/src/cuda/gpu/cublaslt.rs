//! cuBLASLt's functions.

#![allow(unsafe_code, reason = "functions of cuBLASLt")]

use super::library::{Absent, Found, Library, Returned, Search, string, table};
use cudarc::cublaslt::sys::*;
use std::ffi::{c_char, c_int, c_void};
use std::path::{Path, PathBuf};

impl Returned for cublasStatus_t {
    type As = c_int;
}

table! {
    Table;
    cudarc {
        version = cublasLtGetVersion() -> usize;
        create = cublasLtCreate(*mut cublasLtHandle_t) -> cublasStatus_t;
        destroy = cublasLtDestroy(cublasLtHandle_t) -> cublasStatus_t;
        layout_create = cublasLtMatrixLayoutCreate(*mut cublasLtMatrixLayout_t, cudaDataType, u64, u64, i64) -> cublasStatus_t;
        layout_destroy = cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t) -> cublasStatus_t;
        product_create = cublasLtMatmulDescCreate(*mut cublasLtMatmulDesc_t, cublasComputeType_t, cudaDataType_t) -> cublasStatus_t;
        product_destroy = cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t) -> cublasStatus_t;
        product_set = cublasLtMatmulDescSetAttribute(
            cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t, *const c_void, usize
        ) -> cublasStatus_t;
        preference_create = cublasLtMatmulPreferenceCreate(*mut cublasLtMatmulPreference_t) -> cublasStatus_t;
        preference_destroy = cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t) -> cublasStatus_t;
        preference_set = cublasLtMatmulPreferenceSetAttribute(
            cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t, *const c_void, usize
        ) -> cublasStatus_t;
        heuristic = cublasLtMatmulAlgoGetHeuristic(
            cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
            cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, c_int, *mut cublasLtMatmulHeuristicResult_t, *mut c_int
        ) -> cublasStatus_t;
        algorithm_get = cublasLtMatmulAlgoConfigGetAttribute(
            *const cublasLtMatmulAlgo_t, cublasLtMatmulAlgoConfigAttributes_t, *mut c_void, usize, *mut usize
        ) -> cublasStatus_t;
        multiply = cublasLtMatmul(
            cublasLtHandle_t, cublasLtMatmulDesc_t, *const c_void, *const c_void, cublasLtMatrixLayout_t, *const c_void,
            cublasLtMatrixLayout_t, *const c_void, *const c_void, cublasLtMatrixLayout_t, *mut c_void, cublasLtMatrixLayout_t,
            *const cublasLtMatmulAlgo_t, *mut c_void, usize, cudaStream_t
        ) -> cublasStatus_t;
    }
    own {
        status_string = "cublasLtGetStatusString"(c_int) -> *const c_char;
    }
}

/// What the library refuses, which is no fault: another way has to be taken.
pub(super) const NOT_SUPPORTED: c_int = cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED as c_int;
pub(super) const INVALID_VALUE: c_int = cublasStatus_t::CUBLAS_STATUS_INVALID_VALUE as c_int;
/// No memory for what it needs itself.
pub(super) const ALLOC_FAILED: c_int = cublasStatus_t::CUBLAS_STATUS_ALLOC_FAILED as c_int;

#[derive(Debug)]
pub struct CublasLt {
    pub(super) table: Table,
    path: PathBuf,
    version: usize,
}

impl CublasLt {
    /// Finds the library and all of its functions: one that works with a driver of this version of CUDA, where one is
    /// given. It needs no GPU for that.
    ///
    /// # Errors
    /// [`Absent`] says what was tried, or what is missing, or that all there is is too new for the driver.
    pub fn load(search: &Search, driver: Option<i32>) -> Result<CublasLt, Absent> {
        let major = |found: &Found| CublasLt::of(found).ok().map(|library| (library.version / 10_000) as i32);
        CublasLt::of(&search.open_for(Library::CublasLt, driver, major)?)
    }

    fn of(found: &Found) -> Result<CublasLt, Absent> {
        let table = Table::resolve(found)?;
        // SAFETY: a function without arguments.
        let version = unsafe { (table.version)() };
        Ok(CublasLt { table, path: found.path.clone(), version })
    }

    /// Its version as people write it: 130100 is 13.1.0.
    pub fn dotted(&self) -> String {
        format!("{}.{}.{}", self.version / 10_000, self.version / 100 % 100, self.version % 100)
    }

    /// The file, or the name under which the system found it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A status in words, or nothing for success.
    pub(super) fn failure(&self, code: c_int) -> Option<String> {
        if code == cublasStatus_t::CUBLAS_STATUS_SUCCESS as c_int {
            return None;
        }
        // SAFETY: the library's own string, or null.
        let text = unsafe { string((self.table.status_string)(code)) };
        Some(format!("{} (status {code})", text.as_deref().unwrap_or("cuBLASLt has no words for it")))
    }
}
