//! Queues that do their work as late as they may: when somebody waits for it. On a GPU work may come as late as that; where an
//! order was left to chance, numbers are wrong here.

// Machines and queues take addresses.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use zbench_kernels::Gemm;
use zbench_kernels::cuda::host::Host;
use zbench_kernels::memory::device::{
    Address, Arguments, Device, DeviceError, DeviceProps, Event, Launch, Result, Stream,
};

/// The processor with queues that do nothing before somebody waits for it: what is not in order by marks goes wrong.
#[derive(Clone)]
pub struct Late(pub Host);

impl Device for Late {
    fn props(&self) -> &DeviceProps {
        self.0.props()
    }

    fn name(&self) -> String {
        self.0.name()
    }

    fn allocate(&self, bytes: usize) -> Result<Address> {
        self.0.allocate(bytes)
    }

    unsafe fn free(&self, address: Address, bytes: usize) {
        // SAFETY: the caller's promise.
        unsafe { self.0.free(address, bytes) }
    }

    fn allocate_pinned(&self, bytes: usize) -> Result<Address> {
        self.0.allocate_pinned(bytes)
    }

    unsafe fn free_pinned(&self, address: Address, bytes: usize) {
        // SAFETY: the caller's promise.
        unsafe { self.0.free_pinned(address, bytes) }
    }

    fn new_stream(&self) -> Result<Box<dyn Stream>> {
        Ok(Box::new(LateQueue { host: self.0.clone(), line: Arc::default() }))
    }

    fn blas_workspace(&self) -> usize {
        self.0.blas_workspace()
    }

    fn load(&self, kernels: &[&'static str]) -> Result<()> {
        self.0.load(kernels)
    }
}

/// A queue of the processor that waits to be waited for.
struct LateQueue {
    host: Host,
    line: Arc<Line>,
}

type Work = Box<dyn FnOnce() -> Result<()> + Send>;

/// What has been asked for and not been done.
#[derive(Default)]
struct Line {
    state: Mutex<State>,
    news: Condvar,
}

#[derive(Default)]
struct State {
    pending: VecDeque<Work>,
    asked: u64,
    done: u64,
    /// Somebody works on the piece that comes next.
    busy: bool,
    failed: Option<DeviceError>,
}

impl Line {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, work: Work) {
        let mut state = self.state();
        state.pending.push_back(work);
        state.asked += 1;
    }

    fn asked(&self) -> u64 {
        self.state().asked
    }

    /// Works until so many pieces have been done, or waits while another does.
    fn reach(&self, wanted: u64) -> Result<()> {
        let mut state = self.state();
        while state.done < wanted {
            if state.busy {
                state = self.news.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let Some(work) = state.pending.pop_front() else { break };
            state.busy = true;
            drop(state);
            // It may wait for other lines, and they for what was done here before it: nobody holds a lock meanwhile.
            let result = work();
            state = self.state();
            (state.busy, state.done) = (false, state.done + 1);
            if let Err(error) = result {
                state.failed.get_or_insert(error);
            }
            self.news.notify_all();
        }
        state.failed.clone().map_or(Ok(()), Err)
    }
}

impl LateQueue {
    fn all(&self) -> Result<()> {
        self.line.reach(self.line.asked())
    }
}

impl Stream for LateQueue {
    unsafe fn launch(&self, launch: &Launch, arguments: Arguments<'_>) -> Result<()> {
        let copy = |(pointer, size): (&*mut c_void, &usize)| {
            let mut words = vec![0u64; size.div_ceil(8)];
            // SAFETY: the parameter holds so many bytes, and the words at least as many.
            unsafe { std::ptr::copy_nonoverlapping(pointer.cast::<u8>(), words.as_mut_ptr().cast(), *size) };
            words
        };
        let values: Vec<Vec<u64>> = arguments.pointers.iter().zip(arguments.sizes).map(copy).collect();
        let (host, launch, sizes) = (self.host.clone(), *launch, arguments.sizes.to_vec());
        self.line.push(Box::new(move || {
            let mut pointers: Vec<*mut c_void> = values.iter().map(|words| words.as_ptr().cast_mut().cast()).collect();
            // SAFETY: the caller's promise, until the work is done.
            unsafe { host.launch(&launch, Arguments { pointers: &mut pointers, sizes: &sizes }) }
        }));
        Ok(())
    }

    unsafe fn copy(&self, from: Address, to: Address, bytes: usize) -> Result<()> {
        let host = self.host.clone();
        // SAFETY: the caller's promise, until the work is done.
        self.line.push(Box::new(move || unsafe { host.copy(from, to, bytes) }));
        Ok(())
    }

    unsafe fn upload(&self, from: &[u8], to: Address) -> Result<()> {
        let (host, from) = (self.host.clone(), from.to_vec());
        // SAFETY: the caller's promise, until the work is done.
        self.line.push(Box::new(move || unsafe { host.upload(&from, to) }));
        Ok(())
    }

    unsafe fn download(&self, from: Address, to: &mut [u8]) -> Result<()> {
        self.all()?;
        // SAFETY: the caller's promise.
        unsafe { self.host.download(from, to) }
    }

    unsafe fn memset(&self, to: Address, value: u8, bytes: usize) -> Result<()> {
        let host = self.host.clone();
        // SAFETY: the caller's promise, until the work is done.
        self.line.push(Box::new(move || unsafe { host.memset(to, value, bytes) }));
        Ok(())
    }

    unsafe fn blas_gemm(&self, _: &Gemm, _: Address, _: Address, _: Address, _: Address, _: usize) -> Result<bool> {
        Ok(false)
    }

    fn synchronize(&self) -> Result<()> {
        self.all()
    }

    fn record_event(&self) -> Result<Box<dyn Event>> {
        Ok(Box::new(Place { line: self.line.clone(), at: self.line.asked() }))
    }

    fn wait_event(&self, mark: &dyn Event) -> Result<()> {
        let Some(place) = mark.as_any().downcast_ref::<Place>() else {
            let (device, call) = ("cuda on the host".into(), "following a mark".into());
            let reason = "it is another machine's".into();
            return Err(DeviceError { device, call, reason, out_of_memory: false });
        };
        let (line, at) = (place.line.clone(), place.at);
        if !Arc::ptr_eq(&line, &self.line) {
            self.line.push(Box::new(move || line.reach(at)));
        }
        Ok(())
    }
}

/// So many pieces of a line.
struct Place {
    line: Arc<Line>,
    at: u64,
}

impl Event for Place {
    fn wait(&self) -> Result<()> {
        self.line.reach(self.at)
    }

    fn query(&self) -> Result<bool> {
        Ok(self.line.state().done >= self.at)
    }

    fn elapsed(&self, _: &dyn Event) -> Result<Duration> {
        Ok(Duration::ZERO)
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}
