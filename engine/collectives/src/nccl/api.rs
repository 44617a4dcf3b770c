//! NCCL as a library: its version, its errors, ids of groups.

// Calls of NCCL's.
#![allow(unsafe_code)]

use super::loader::Search;
use cudarc::nccl::sys::{ncclComm_t, ncclConfig_t, ncclDataType_t, ncclRedOp_t, ncclUniqueId};
use std::ffi::{c_char, c_int};
use std::path::PathBuf;
use std::sync::Arc;
use zbench_kernels::cuda::gpu::{Absent, Library, NcclTable, string};
use zbench_kernels::{DType, ReduceOp};

/// The oldest version that can split groups and be configured: 2.18.
pub const OLDEST: i32 = 21800;

/// Why NCCL cannot be used, or what it says.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NcclError {
    /// There is no library, or what was found is not NCCL.
    #[error(transparent)]
    Absent(#[from] Absent),
    /// An NCCL from before groups could be split.
    #[error("{} is NCCL {}; {} or newer is needed", path.display(), dotted(*found), dotted(OLDEST))]
    TooOld { found: i32, path: PathBuf },
    #[error("{call}: {text} (code {code}){}", if last.is_empty() { String::new() } else { format!(": {last}") })]
    Call {
        call: &'static str,
        code: i32,
        /// What ncclGetErrorString says.
        text: String,
        /// What ncclGetLastError says.
        last: String,
    },
    /// A number that NCCL has no room for.
    #[error("{what} {number} is more than NCCL's 31 bits")]
    TooLarge { what: &'static str, number: usize },
}

/// NCCL's version code as people write it; the code has had two forms.
pub fn dotted(code: i32) -> String {
    let (major, rest) = if code < 10_000 { (code / 1000, code % 1000) } else { (code / 10_000, code % 10_000) };
    format!("{major}.{}.{}", rest / 100, rest % 100)
}

pub(super) const SUCCESS: c_int = 0;
/// ncclInProgress: a nonblocking call goes on.
pub(super) const IN_PROGRESS: c_int = 7;

/// What the ranks of a new group have to have in common.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct UniqueId(pub [u8; 128]);

impl UniqueId {
    pub(super) fn raw(self) -> ncclUniqueId {
        ncclUniqueId { internal: self.0.map(|byte| byte as c_char) }
    }
}

impl std::fmt::Debug for UniqueId {
    /// Not the bytes: who has them can join the group.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("UniqueId")
    }
}

/// Calls return at once and are polled; everything else is the library's choice. The structure is that of 2.18: the library
/// reads `size` and `version`, and takes its own defaults for what came later.
pub(super) fn nonblocking() -> ncclConfig_t {
    const UNDEFINED: c_int = c_int::MIN;
    ncclConfig_t {
        size: size_of::<ncclConfig_t>(),
        magic: 0xcafe_beef,
        version: OLDEST as u32,
        blocking: 0,
        cgaClusterSize: UNDEFINED,
        minCTAs: UNDEFINED,
        maxCTAs: UNDEFINED,
        netName: std::ptr::null(),
        splitShare: UNDEFINED,
    }
}

pub(super) const fn data_type(dtype: DType) -> ncclDataType_t {
    match dtype {
        DType::I8 => ncclDataType_t::ncclInt8,
        DType::I32 => ncclDataType_t::ncclInt32,
        DType::U32 => ncclDataType_t::ncclUint32,
        DType::F16 => ncclDataType_t::ncclFloat16,
        DType::F32 => ncclDataType_t::ncclFloat32,
        DType::F64 => ncclDataType_t::ncclFloat64,
        DType::Bf16 => ncclDataType_t::ncclBfloat16,
    }
}

pub(super) const fn reduction(op: ReduceOp) -> ncclRedOp_t {
    match op {
        ReduceOp::Sum => ncclRedOp_t::ncclSum,
        ReduceOp::Prod => ncclRedOp_t::ncclProd,
        ReduceOp::Max => ncclRedOp_t::ncclMax,
        ReduceOp::Min => ncclRedOp_t::ncclMin,
        ReduceOp::Avg => ncclRedOp_t::ncclAvg,
    }
}

/// A loaded NCCL. It is never closed: the library has threads of its own.
pub struct Api {
    pub(super) table: NcclTable,
    path: PathBuf,
    version: i32,
}

impl std::fmt::Debug for Api {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NCCL {} of {}", dotted(self.version), self.path.display())
    }
}

impl Api {
    /// Finds the library and all of its functions.
    ///
    /// # Errors
    /// [`NcclError`] says what was tried, or what is missing.
    pub fn load(search: &Search) -> Result<Arc<Api>, NcclError> {
        let found = search.open(Library::Nccl)?;
        let table = NcclTable::resolve(&found)?;
        let mut version = 0;
        // SAFETY: a live output.
        let code = unsafe { (table.get_version)(&mut version) };
        let api = Api { table, path: found.path, version };
        api.check("ncclGetVersion", code, std::ptr::null_mut())?;
        if api.version < OLDEST {
            return Err(NcclError::TooOld { found: api.version, path: api.path });
        }
        Ok(Arc::new(api))
    }

    /// NCCL's version code: 22809 is 2.28.9.
    pub fn version(&self) -> i32 {
        self.version
    }

    /// The file, or the name under which the system found it.
    pub fn path(&self) -> &std::path::Path {
        &self.path
    }

    /// Makes what rank 0 gives to all ranks of a new group. Opens a port, and needs no GPU.
    ///
    /// # Errors
    /// [`NcclError::Call`], as when no network interface can be used.
    pub fn unique_id(&self) -> Result<UniqueId, NcclError> {
        let mut id = ncclUniqueId { internal: [0; 128] };
        // SAFETY: a live output.
        let code = unsafe { (self.table.get_unique_id)(&mut id) };
        self.check("ncclGetUniqueId", code, std::ptr::null_mut())?;
        Ok(UniqueId(id.internal.map(|byte| byte as u8)))
    }

    /// A code in words; `comm` may be null. In progress is an error here.
    pub(super) fn check(&self, call: &'static str, code: c_int, comm: ncclComm_t) -> Result<(), NcclError> {
        if code == SUCCESS {
            return Ok(());
        }
        // SAFETY: both give strings of the library's own, or null; `comm` is null or live.
        let [text, last] =
            unsafe { [string((self.table.error_string)(code)), string((self.table.get_last_error)(comm))] };
        Err(NcclError::Call { call, code, text: text.unwrap_or_default(), last: last.unwrap_or_default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_written_as_people_do() {
        assert_eq!([2708, 21805, 22809, 23203].map(dotted), ["2.7.8", "2.18.5", "2.28.9", "2.32.3"]);
    }

    #[test]
    fn the_configuration_is_that_of_2_18() {
        // size, magic, version, four ints, a pointer at its alignment, an int, and the end at the structure's alignment.
        assert_eq!((size_of::<ncclConfig_t>(), std::mem::offset_of!(ncclConfig_t, netName)), (48, 32));
    }
}
