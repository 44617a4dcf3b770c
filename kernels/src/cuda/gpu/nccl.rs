//! NCCL's functions, beside the driver's. What they are used for is the engine's matter (engine/collectives/src/nccl).

#![allow(unsafe_code, reason = "functions of NCCL")]

use super::library::{Returned, table};
use cudarc::nccl::sys::*;
use std::ffi::{c_char, c_int, c_void};

impl Returned for ncclResult_t {
    type As = c_int;
}

table! {
    NcclTable;
    cudarc {
        get_version = ncclGetVersion(*mut c_int) -> ncclResult_t;
        get_unique_id = ncclGetUniqueId(*mut ncclUniqueId) -> ncclResult_t;
        get_last_error = ncclGetLastError(ncclComm_t) -> *const c_char;
        comm_init_rank_config = ncclCommInitRankConfig(
            *mut ncclComm_t, c_int, ncclUniqueId, c_int, *mut ncclConfig_t
        ) -> ncclResult_t;
        comm_split = ncclCommSplit(ncclComm_t, c_int, c_int, *mut ncclComm_t, *mut ncclConfig_t) -> ncclResult_t;
        comm_finalize = ncclCommFinalize(ncclComm_t) -> ncclResult_t;
        comm_destroy = ncclCommDestroy(ncclComm_t) -> ncclResult_t;
        comm_abort = ncclCommAbort(ncclComm_t) -> ncclResult_t;
        comm_count = ncclCommCount(ncclComm_t, *mut c_int) -> ncclResult_t;
        comm_user_rank = ncclCommUserRank(ncclComm_t, *mut c_int) -> ncclResult_t;
        comm_cu_device = ncclCommCuDevice(ncclComm_t, *mut c_int) -> ncclResult_t;
        group_start = ncclGroupStart() -> ncclResult_t;
        group_end = ncclGroupEnd() -> ncclResult_t;
        all_reduce = ncclAllReduce(
            *const c_void, *mut c_void, usize, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t
        ) -> ncclResult_t;
        reduce = ncclReduce(
            *const c_void, *mut c_void, usize, ncclDataType_t, ncclRedOp_t, c_int, ncclComm_t, cudaStream_t
        ) -> ncclResult_t;
        reduce_scatter = ncclReduceScatter(
            *const c_void, *mut c_void, usize, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t
        ) -> ncclResult_t;
        all_gather = ncclAllGather(
            *const c_void, *mut c_void, usize, ncclDataType_t, ncclComm_t, cudaStream_t
        ) -> ncclResult_t;
        broadcast = ncclBroadcast(
            *const c_void, *mut c_void, usize, ncclDataType_t, c_int, ncclComm_t, cudaStream_t
        ) -> ncclResult_t;
        send = ncclSend(*const c_void, usize, ncclDataType_t, c_int, ncclComm_t, cudaStream_t) -> ncclResult_t;
        recv = ncclRecv(*mut c_void, usize, ncclDataType_t, c_int, ncclComm_t, cudaStream_t) -> ncclResult_t;
    }
    own {
        error_string = "ncclGetErrorString"(c_int) -> *const c_char;
        comm_get_async_error = "ncclCommGetAsyncError"(ncclComm_t, *mut c_int) -> c_int;
    }
}
