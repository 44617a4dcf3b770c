//! NCCL's functions, found at run time.

use super::loader::{Attempt, Search, symbol};
use libloading::Library;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::path::PathBuf;
use std::sync::Arc;
use zbench_kernels::{DType, ReduceOp};

/// The oldest version that can split groups and be configured: 2.18.
pub const OLDEST: i32 = 21800;

/// Why NCCL cannot be used, or what it says.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NcclError {
    /// No library was found.
    #[error(
        "NCCL was not found. Tried:{}\nInstall it (`pip install nvidia-nccl-cu13`, or a system package that has libnccl.so.2) and \
         set ZBENCH_NCCL_LIB to the file, or ZBENCH_CUDA_LIBS to the folder of the Python packages",
        list(tried)
    )]
    NotFound {
        /// All places, in order.
        tried: Vec<Attempt>,
    },
    /// A library was found that is not NCCL, or not all of it.
    #[error("{} has no function {symbol}, so it is not an NCCL that zbench can use: {reason}", path.display())]
    MissingSymbol {
        /// The function.
        symbol: &'static str,
        /// The library.
        path: PathBuf,
        /// What the loader says.
        reason: String,
    },
    /// An NCCL from before groups could be split.
    #[error("{} is NCCL {}; {} or newer is needed", path.display(), dotted(*found), dotted(OLDEST))]
    TooOld {
        /// Its version code.
        found: i32,
        /// The library.
        path: PathBuf,
    },
    /// A call failed.
    #[error("{call}: {text} (code {code}){}", if last.is_empty() { String::new() } else { format!(": {last}") })]
    Call {
        /// The function.
        call: &'static str,
        /// ncclResult_t.
        code: i32,
        /// What ncclGetErrorString says.
        text: String,
        /// What ncclGetLastError says.
        last: String,
    },
    /// A number that NCCL has no room for.
    #[error("{what} {number} is more than NCCL's 31 bits")]
    TooLarge {
        /// Which number.
        what: &'static str,
        /// The number.
        number: usize,
    },
}

fn list(tried: &[Attempt]) -> String {
    tried.iter().map(|attempt| format!("\n  {attempt}")).collect()
}

/// NCCL's version code as people write it; the code has had two forms.
pub fn dotted(code: i32) -> String {
    let (major, rest) = if code < 10_000 { (code / 1000, code % 1000) } else { (code / 10_000, code % 10_000) };
    format!("{major}.{}.{}", rest / 100, rest % 100)
}

/// ncclComm_t.
pub(super) type RawComm = *mut c_void;
/// cudaStream_t, which is the driver's CUstream.
pub(super) type RawStream = *mut c_void;
type Code = c_int;

/// ncclSuccess.
pub(super) const SUCCESS: Code = 0;
/// ncclInProgress: a nonblocking call goes on.
pub(super) const IN_PROGRESS: Code = 7;

/// What the ranks of a new group have to have in common.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct UniqueId(pub [u8; 128]);

impl std::fmt::Debug for UniqueId {
    /// Not the bytes: who has them can join the group.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("UniqueId")
    }
}

/// ncclConfig_t as of 2.18. The library reads `size` and `version` and takes its own defaults for what came later.
#[repr(C)]
pub(super) struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
    split_share: c_int,
}

impl Config {
    /// Calls return at once and are polled; everything else is the library's choice.
    pub(super) fn nonblocking() -> Config {
        const UNDEFINED: c_int = c_int::MIN;
        Config {
            size: size_of::<Config>(),
            magic: 0xcafe_beef,
            version: OLDEST as u32,
            blocking: 0,
            cga_cluster_size: UNDEFINED,
            min_ctas: UNDEFINED,
            max_ctas: UNDEFINED,
            net_name: std::ptr::null(),
            split_share: UNDEFINED,
        }
    }
}

/// ncclDataType_t.
pub(super) const fn type_code(dtype: DType) -> c_int {
    match dtype {
        DType::I8 => 0,
        DType::I32 => 2,
        DType::U32 => 3,
        DType::F16 => 6,
        DType::F32 => 7,
        DType::F64 => 8,
        DType::Bf16 => 9,
    }
}

/// ncclRedOp_t.
pub(super) const fn op_code(op: ReduceOp) -> c_int {
    match op {
        ReduceOp::Sum => 0,
        ReduceOp::Prod => 1,
        ReduceOp::Max => 2,
        ReduceOp::Min => 3,
        ReduceOp::Avg => 4,
    }
}

macro_rules! table {
    ($($field:ident = $symbol:literal ( $($argument:ty),* ) -> $result:ty;)*) => {
        /// The functions, by their names without "nccl".
        pub(super) struct Table {
            $(pub $field: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl Table {
            fn resolve(library: &Library, path: &std::path::Path) -> Result<Table, NcclError> {
                let missing = |symbol, attempt: Attempt| {
                    NcclError::MissingSymbol { symbol, path: attempt.place, reason: attempt.reason }
                };
                // SAFETY: the types are those of nccl.h, which have not changed since 2.18.
                Ok(unsafe { Table { $($field: symbol(library, path, $symbol).map_err(|error| missing($symbol, error))?,)* } })
            }
        }
    };
}

table! {
    get_version = "ncclGetVersion" (*mut c_int) -> Code;
    get_unique_id = "ncclGetUniqueId" (*mut UniqueId) -> Code;
    get_error_string = "ncclGetErrorString" (Code) -> *const c_char;
    get_last_error = "ncclGetLastError" (RawComm) -> *const c_char;
    comm_init_rank_config = "ncclCommInitRankConfig" (*mut RawComm, c_int, UniqueId, c_int, *mut Config) -> Code;
    comm_split = "ncclCommSplit" (RawComm, c_int, c_int, *mut RawComm, *mut Config) -> Code;
    comm_get_async_error = "ncclCommGetAsyncError" (RawComm, *mut Code) -> Code;
    comm_finalize = "ncclCommFinalize" (RawComm) -> Code;
    comm_destroy = "ncclCommDestroy" (RawComm) -> Code;
    comm_abort = "ncclCommAbort" (RawComm) -> Code;
    comm_count = "ncclCommCount" (RawComm, *mut c_int) -> Code;
    comm_user_rank = "ncclCommUserRank" (RawComm, *mut c_int) -> Code;
    comm_cu_device = "ncclCommCuDevice" (RawComm, *mut c_int) -> Code;
    group_start = "ncclGroupStart" () -> Code;
    group_end = "ncclGroupEnd" () -> Code;
    all_reduce = "ncclAllReduce" (*const c_void, *mut c_void, usize, c_int, c_int, RawComm, RawStream) -> Code;
    reduce = "ncclReduce" (*const c_void, *mut c_void, usize, c_int, c_int, c_int, RawComm, RawStream) -> Code;
    reduce_scatter = "ncclReduceScatter" (*const c_void, *mut c_void, usize, c_int, c_int, RawComm, RawStream) -> Code;
    all_gather = "ncclAllGather" (*const c_void, *mut c_void, usize, c_int, RawComm, RawStream) -> Code;
    broadcast = "ncclBroadcast" (*const c_void, *mut c_void, usize, c_int, c_int, RawComm, RawStream) -> Code;
    send = "ncclSend" (*const c_void, usize, c_int, c_int, RawComm, RawStream) -> Code;
    recv = "ncclRecv" (*mut c_void, usize, c_int, c_int, RawComm, RawStream) -> Code;
}

/// A loaded NCCL. It is never closed: the library has threads of its own.
pub struct Api {
    pub(super) table: Table,
    path: PathBuf,
    version: i32,
    _library: ManuallyDrop<Library>,
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
        let found = search.open(&["libnccl.so.2", "libnccl.so"]);
        let (library, path) = found.map_err(|tried| NcclError::NotFound { tried })?;
        let library = ManuallyDrop::new(library);
        let table = Table::resolve(&library, &path)?;
        let mut version = 0;
        // SAFETY: a live output.
        let code = unsafe { (table.get_version)(&mut version) };
        let api = Api { table, path, version, _library: library };
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
        let mut id = UniqueId([0; 128]);
        // SAFETY: a live output of the size that nccl.h says.
        let code = unsafe { (self.table.get_unique_id)(&mut id) };
        self.check("ncclGetUniqueId", code, std::ptr::null_mut())?;
        Ok(id)
    }

    /// A code in words; `comm` may be null. In progress is an error here.
    pub(super) fn check(&self, call: &'static str, code: Code, comm: RawComm) -> Result<(), NcclError> {
        if code == SUCCESS {
            return Ok(());
        }
        // SAFETY: both give strings of the library's own, or null; `comm` is null or live.
        let (text, last) =
            unsafe { (string((self.table.get_error_string)(code)), string((self.table.get_last_error)(comm))) };
        Err(NcclError::Call { call, code, text, last })
    }
}

/// # Safety
/// Null, or a string that ends in a zero and is not changed meanwhile.
unsafe fn string(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_written_as_people_do() {
        assert_eq!([2708, 21805, 22809, 23203].map(dotted), ["2.7.8", "2.18.5", "2.28.9", "2.32.3"]);
    }

    #[test]
    fn the_configuration_is_laid_out_as_in_2_18() {
        // size, magic, version, four ints, a pointer at its alignment, an int, and the end at the structure's alignment.
        assert_eq!((size_of::<Config>(), std::mem::offset_of!(Config, net_name)), (48, 32));
        assert_eq!(size_of::<UniqueId>(), 128);
    }
}
