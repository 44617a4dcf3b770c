//! A communicator of NCCL, and what can be asked of it. Every call may return while it is still in progress.

// Calls of NCCL's.
#![allow(unsafe_code)]

use super::api::{Api, IN_PROGRESS, NcclError, SUCCESS, UniqueId, nonblocking};
use cudarc::nccl::sys::{ncclComm, ncclComm_t};
use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

/// An ncclComm_t. NCCL wants one thread at a time to use it; whoever owns this sees to that.
pub(super) struct Handle {
    api: Arc<Api>,
    /// NCCL writes it when the communicator has come to be, which may be later: so it stays in its place. Null before, and after
    /// an abort.
    raw: Box<AtomicPtr<ncclComm>>,
}

fn narrow(what: &'static str, number: usize) -> Result<c_int, NcclError> {
    c_int::try_from(number).map_err(|_| NcclError::TooLarge { what, number })
}

impl Handle {
    /// Begins to make rank `rank` of `size` on the current device.
    pub(super) fn init(api: &Arc<Api>, id: UniqueId, rank: usize, size: usize) -> Result<Handle, NcclError> {
        let (rank, size) = (narrow("rank", rank)?, narrow("size", size)?);
        let handle = Handle { api: api.clone(), raw: Box::default() };
        let mut config = nonblocking();
        // SAFETY: the output stays in its place as long as the handle, the configuration is read before this returns.
        let code = unsafe { (api.table.comm_init_rank_config)(handle.raw.as_ptr(), size, id.raw(), rank, &mut config) };
        handle.begun("ncclCommInitRankConfig", code)?;
        Ok(handle)
    }

    /// Begins to split the group; all ranks call it.
    pub(super) fn split(&self, color: usize, key: usize) -> Result<Handle, NcclError> {
        let (color, key) = (narrow("color", color)?, narrow("key", key)?);
        let child = Handle { api: self.api.clone(), raw: Box::default() };
        let mut config = nonblocking();
        // SAFETY: as in `init`; this communicator is live.
        let code = unsafe { (self.api.table.comm_split)(self.raw(), color, key, child.raw.as_ptr(), &mut config) };
        self.begun("ncclCommSplit", code)?;
        Ok(child)
    }

    pub(super) fn api(&self) -> &Arc<Api> {
        &self.api
    }

    pub(super) fn raw(&self) -> ncclComm_t {
        self.raw.load(Ordering::Acquire)
    }

    /// Success, or in progress.
    pub(super) fn begun(&self, call: &'static str, code: c_int) -> Result<(), NcclError> {
        if code == IN_PROGRESS { Ok(()) } else { self.api.check(call, code, self.raw()) }
    }

    /// Whether what was begun is done; an error when anything went wrong, on any rank, as far as NCCL knows.
    pub(super) fn is_settled(&self) -> Result<bool, NcclError> {
        let raw = self.raw();
        if raw.is_null() {
            return Ok(false);
        }
        let mut state = SUCCESS;
        // SAFETY: a live communicator and a live output.
        let code = unsafe { (self.api.table.comm_get_async_error)(raw, &mut state) };
        self.api.check("ncclCommGetAsyncError", code, raw)?;
        if state == IN_PROGRESS {
            return Ok(false);
        }
        self.api.check("ncclCommGetAsyncError", state, raw).map(|()| true)
    }

    fn number(
        &self,
        call: &'static str,
        ask: unsafe extern "C" fn(ncclComm_t, *mut c_int) -> c_int,
    ) -> Result<usize, NcclError> {
        let mut number = 0;
        // SAFETY: a live, settled communicator and a live output.
        self.api.check(call, unsafe { ask(self.raw(), &mut number) }, self.raw())?;
        Ok(number.max(0) as usize)
    }

    pub(super) fn rank(&self) -> Result<usize, NcclError> {
        self.number("ncclCommUserRank", self.api.table.comm_user_rank)
    }

    pub(super) fn size(&self) -> Result<usize, NcclError> {
        self.number("ncclCommCount", self.api.table.comm_count)
    }

    pub(super) fn grouped(&self, calls: impl FnOnce() -> Result<(), NcclError>) -> Result<(), NcclError> {
        // SAFETY: no arguments.
        self.api.check("ncclGroupStart", unsafe { (self.api.table.group_start)() }, self.raw())?;
        let result = calls();
        // SAFETY: ends what was started, whatever came of it.
        let code = unsafe { (self.api.table.group_end)() };
        result.and_then(|()| self.begun("ncclGroupEnd", code))
    }

    /// Ends everything at once; its kernels return.
    pub(super) fn abort(&self) {
        let raw = self.raw.swap(null_mut(), Ordering::AcqRel);
        if !raw.is_null() {
            // SAFETY: a live communicator, which nobody will find again. There is nobody left to hear of an error.
            unsafe { (self.api.table.comm_abort)(raw) };
        }
    }

    /// Begins to end in good order.
    pub(super) fn finalize(&self) -> Result<(), NcclError> {
        // SAFETY: a live communicator.
        self.begun("ncclCommFinalize", unsafe { (self.api.table.comm_finalize)(self.raw()) })
    }

    pub(super) fn destroy(&self) {
        let raw = self.raw.swap(null_mut(), Ordering::AcqRel);
        if !raw.is_null() {
            // SAFETY: a finalized communicator, which nobody will find again.
            unsafe { (self.api.table.comm_destroy)(raw) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nccl::{Search, load_driver};
    use std::time::{Duration, Instant};

    #[test]
    fn a_group_without_a_driver_is_a_typed_error() {
        let search = Search::new(|name| std::env::var_os(name));
        let api = match Api::load(&search) {
            Ok(api) => api,
            Err(error) if search == Search::default() => return println!("NOT RUN: {error}"),
            Err(error) => panic!("{error}"),
        };
        if load_driver().is_ok() {
            return println!("NOT RUN: there is a driver");
        }
        // The library has to like the configuration, and then find that there is no GPU: at once, or when it is polled.
        let begun = api.unique_id().and_then(|id| Handle::init(&api, id, 0, 1));
        let error = begun.and_then(|handle| {
            let begin = Instant::now();
            while !handle.is_settled()? {
                assert!(begin.elapsed() < Duration::from_secs(60), "no answer");
            }
            Ok(())
        });
        let Err(NcclError::Call { text, .. }) = &error else { panic!("a group without a GPU: {error:?}") };
        println!("{}", error.as_ref().unwrap_err());
        assert!(text.contains("cuda"), "{text}");
    }
}
