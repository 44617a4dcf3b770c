//! Queues that do their work as late as they may: when somebody waits for it. On a GPU work may come as late as that; where an
//! order was left to chance, numbers are wrong here.

use super::host::Host;
use super::machine::{Address, Arguments, Launch, MachineError, Mark, Queue, Result};
use crate::op::Gemm;
use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A queue of the processor that waits to be waited for.
pub(super) struct Late {
    host: Host,
    line: Arc<Line>,
}

type Work = Box<dyn FnOnce() -> Result<()> + Send>;

/// What has been asked for and not been done.
#[derive(Default)]
struct Line {
    /// Held by whoever works on it.
    pending: Mutex<VecDeque<Work>>,
    asked: AtomicU64,
    done: AtomicU64,
    failed: Mutex<Option<MachineError>>,
}

impl Line {
    fn push(&self, work: Work) {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner).push_back(work);
        self.asked.fetch_add(1, Ordering::AcqRel);
    }

    /// Works until so many pieces have been done.
    fn reach(&self, wanted: u64) -> Result<()> {
        while self.done.load(Ordering::Acquire) < wanted {
            let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
            if self.done.load(Ordering::Acquire) >= wanted {
                break;
            }
            // Work on another line, which this piece may wait for, never waits for a piece that comes after it here: whoever
            // else works there finds what it needs of this line done.
            let Some(work) = pending.pop_front() else { break };
            if let Err(error) = work() {
                self.failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            }
            self.done.fetch_add(1, Ordering::AcqRel);
        }
        match self.failed.lock().unwrap_or_else(PoisonError::into_inner).clone() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}

impl Late {
    pub(super) fn new(host: Host) -> Late {
        Late { host, line: Arc::default() }
    }

    fn all(&self) -> Result<()> {
        self.line.reach(self.line.asked.load(Ordering::Acquire))
    }
}

impl Queue for Late {
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

    unsafe fn set(&self, to: Address, value: u8, bytes: usize) -> Result<()> {
        let host = self.host.clone();
        // SAFETY: the caller's promise, until the work is done.
        self.line.push(Box::new(move || unsafe { host.set(to, value, bytes) }));
        Ok(())
    }

    unsafe fn product(&self, _: &Gemm, _: Address, _: Address, _: Address, _: Address, _: usize) -> Result<bool> {
        Ok(false)
    }

    fn synchronize(&self) -> Result<()> {
        self.all()
    }

    fn mark(&self) -> Result<Box<dyn Mark>> {
        Ok(Box::new(Place { line: self.line.clone(), at: self.line.asked.load(Ordering::Acquire) }))
    }

    fn follow(&self, mark: &dyn Mark) -> Result<()> {
        let Some(place) = mark.as_any().downcast_ref::<Place>() else {
            let (machine, call) = ("cuda on the host".into(), "following a mark".into());
            let reason = "it is another machine's".into();
            return Err(MachineError { machine, call, reason, out_of_memory: false });
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

impl Mark for Place {
    fn wait(&self) -> Result<()> {
        self.line.reach(self.at)
    }

    fn is_reached(&self) -> Result<bool> {
        Ok(self.line.done.load(Ordering::Acquire) >= self.at)
    }

    fn since(&self, _: &dyn Mark) -> Result<Duration> {
        Ok(Duration::ZERO)
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}
