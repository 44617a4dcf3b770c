//! A file that holds what a rank keeps outside of memory: ZeRO-Infinity's third place beside device and host.
//!
//! The file has no name, so that nothing is left of it however the process ends. [`Arena::file`](crate::Arena::file) gives places in
//! it; a transfer moves a [`Buffer`] in whole pages to such a place or from it, beside the caller's work. It takes the
//! buffer in and gives it back when the system is done with it, so that nobody changes the bytes meanwhile.
//!
//! Transfers go by io_uring and around the page cache where the system allows, else by threads and through it.
//! [`File::why`] says what was not to be had.

#![allow(unsafe_code, reason = "the kernel reads and writes buffers by their addresses")]

mod error;
mod place;
mod queue;
mod ring;
mod threads;

pub use error::DiskError;
pub use place::is_memory;
pub use queue::PIECE as PIECE_BYTES;

use crate::{Buffer, PAGE_BYTES};
use queue::{Queue, Span, Waited};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Who carries transfers out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Engine {
    /// The kernel, asked for several at a time by one thread.
    IoUring,
    /// Threads, each of which waits for one (`pread`, `pwrite`).
    Threads,
}

impl Engine {
    /// The name used in configurations and records.
    pub const fn name(self) -> &'static str {
        match self {
            Engine::IoUring => "io_uring",
            Engine::Threads => "threads",
        }
    }
}

impl std::fmt::Display for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// How a file is transferred.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// By whom; absent = io_uring where the system allows it, else threads.
    pub engine: Option<Engine>,
    /// Whether around the page cache; absent = where the file system can.
    pub direct: Option<bool>,
    /// Pieces that the system has at a time, from 1 to [`MOST_DEPTH`]; a large transfer is several, of [`PIECE_BYTES`].
    pub depth: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options { engine: None, direct: None, depth: 8 }
    }
}

/// The most pieces that a file gives the system at a time.
pub const MOST_DEPTH: usize = 256;

/// What a file has transferred.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes of the reads that are over.
    pub read_bytes: u64,
    /// Bytes of the writes that are over.
    pub written_bytes: u64,
    /// Time in which at least one transfer was under way.
    pub busy: Duration,
}

/// A file of a rank's state.
///
/// Dropping it waits until nothing is under way.
#[derive(Debug)]
pub struct File {
    queue: Arc<Queue>,
    engine: Engine,
    why: Vec<String>,
    depth: usize,
    bell: Option<Arc<ring::Bell>>,
    threads: Vec<JoinHandle<()>>,
}

impl File {
    /// An empty file in the folder, which must be there.
    ///
    /// # Errors
    /// None can be made there, or it cannot be transferred as asked.
    pub fn create(folder: &Path, options: &Options) -> Result<File, DiskError> {
        let create = |source| DiskError::Create { folder: folder.into(), help: error::create_help(&source), source };
        let refused = |engine, reason| DiskError::Engine { folder: folder.into(), engine, reason };
        let depth = options.depth.clamp(1, MOST_DEPTH);
        let file = place::nameless(folder).map_err(create)?;
        let mut why = Vec::new();
        let direct = if options.direct == Some(false) { None } else { Some(place::go_direct(&file)) };
        match &direct {
            Some(Err(reason)) if options.direct == Some(true) => {
                return Err(DiskError::Direct { folder: folder.into(), reason: reason.clone() });
            }
            Some(Err(reason)) => why.push(format!("no O_DIRECT: {reason}")),
            _ => {}
        }
        let queue = Arc::new(Queue::new(file, folder.into(), matches!(direct, Some(Ok(())))));
        let ring = match options.engine {
            Some(Engine::Threads) => None,
            wanted => match ring::open(depth) {
                Ok(ring) => Some(ring),
                Err(reason) if wanted.is_some() => return Err(refused(Engine::IoUring, reason)),
                Err(reason) => {
                    why.push(format!("no io_uring: {reason}"));
                    None
                }
            },
        };
        let engine = if ring.is_some() { Engine::IoUring } else { Engine::Threads };
        let mut file = File { queue, engine, why, depth, bell: None, threads: Vec::new() };
        let no_thread = |error: std::io::Error| refused(engine, format!("no thread could be started ({error})"));
        if let Some(ring) = ring {
            let (thread, bell) = ring::start(&file.queue, ring, depth).map_err(no_thread)?;
            (file.bell, file.threads) = (Some(bell), vec![thread]);
        } else {
            file.threads = threads::start(&file.queue, depth).map_err(no_thread)?;
            file.depth = file.threads.len();
        }
        Ok(file)
    }

    /// Who carries transfers out.
    pub fn engine(&self) -> Engine {
        self.engine
    }

    /// Whether transfers go around the page cache.
    pub fn is_direct(&self) -> bool {
        self.queue.is_direct
    }

    /// Pieces that the system has at a time.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Why transfers are not made in the better way, one reason each; empty where they are, or another was asked for.
    pub fn why(&self) -> &[String] {
        &self.why
    }

    /// What it has transferred.
    pub fn traffic(&self) -> Traffic {
        self.queue.traffic()
    }

    /// Takes the disk's room for places up to `bytes`, so that no later write finds it full.
    ///
    /// # Errors
    /// There is too little, or no file may be so long.
    pub fn reserve(&self, bytes: u64) -> Result<(), DiskError> {
        // Transfers are of whole pages.
        let bytes = bytes.checked_next_multiple_of(PAGE_BYTES).unwrap_or(bytes);
        place::reserve(&self.queue.file, &self.queue.folder, bytes)
    }

    /// Waits until what was written is on the disk, and not in a cache of the system or of the disk.
    ///
    /// # Errors
    /// The disk is full or failed.
    pub fn sync(&self) -> Result<(), DiskError> {
        let (folder, bytes) = (self.queue.folder.clone(), self.queue.traffic().written_bytes);
        let failed = |source| DiskError::Transfer { folder, is_write: true, offset: 0, bytes, source };
        self.queue.file.sync_data().map_err(failed)
    }

    /// Starts to write a buffer's pages to the file, from `offset` on: what [`Buffer::offset`] says of a place. Bytes behind the
    /// buffer's last element, up to the page's end, are written as they are.
    ///
    /// # Errors
    /// The buffer is not in host memory, or buffer or place are not in whole pages.
    pub fn start_write(&self, offset: u64, buffer: Buffer) -> Result<Transfer, DiskError> {
        place::within_limit(&self.queue.folder, offset.saturating_add(buffer.footprint()))?;
        self.start(offset, buffer, true)
    }

    /// Starts to fill a buffer from the file, as [`File::start_write`] has written it. What was never written is zeros in a file
    /// that is long enough, else the transfer fails.
    ///
    /// # Errors
    /// As there.
    pub fn start_read(&self, offset: u64, buffer: Buffer) -> Result<Transfer, DiskError> {
        self.start(offset, buffer, false)
    }

    fn start(&self, offset: u64, mut buffer: Buffer, is_write: bool) -> Result<Transfer, DiskError> {
        // A device's copies of these bytes come first.
        buffer.copies.end();
        if !buffer.is_on_host() {
            return Err(DiskError::NotOnHost);
        }
        let (at, bytes) = (buffer.ptr().as_ptr() as u64, buffer.footprint());
        for (what, value) in [("a place in the file", offset), ("a buffer's address", at), ("a buffer's size", bytes)] {
            if !value.is_multiple_of(PAGE_BYTES) {
                return Err(DiskError::Unaligned { what, value });
            }
        }
        let span = Span { ptr: buffer.ptr(), offset, bytes, is_write };
        let number = self.queue.push(span).map_err(|reason| self.broken(reason))?;
        if let Some(bell) = &self.bell {
            bell.ring();
        }
        Ok(Transfer { queue: self.queue.clone(), engine: self.engine, number, buffer: Some(buffer) })
    }

    fn broken(&self, reason: String) -> DiskError {
        DiskError::Broken { folder: self.queue.folder.clone(), engine: self.engine, reason }
    }
}

impl Drop for File {
    fn drop(&mut self) {
        self.queue.close();
        if let Some(bell) = &self.bell {
            bell.ring();
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// A buffer on its way to a file or from it.
///
/// Dropping it waits until the system is done with the buffer; an error is lost then.
#[derive(Debug)]
#[must_use = "dropping it waits for the disk"]
pub struct Transfer {
    queue: Arc<Queue>,
    engine: Engine,
    number: usize,
    /// Whose memory the system uses until the transfer is over.
    buffer: Option<Buffer>,
}

impl Transfer {
    /// Whether [`Transfer::wait`] returns at once.
    pub fn is_done(&self) -> bool {
        self.queue.is_done(self.number)
    }

    /// Waits until the system is done with the buffer, and gives it back.
    ///
    /// # Errors
    /// The disk is full or failed; the buffer is given back to its arena.
    pub fn wait(mut self) -> Result<Buffer, DiskError> {
        let lost = |reason| DiskError::Broken { folder: self.queue.folder.clone(), engine: self.engine, reason };
        match (self.queue.wait(self.number), self.buffer.take()) {
            (Waited::Over(result), Some(buffer)) => result.map(|()| buffer),
            (Waited::Lost(reason), buffer) => {
                // The kernel may still write there.
                std::mem::forget(buffer);
                Err(lost(reason))
            }
            (Waited::Over(_), None) => Err(lost("the transfer was waited for before".into())),
        }
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        let Some(buffer) = self.buffer.take() else { return };
        if let Waited::Lost(_) = self.queue.wait(self.number) {
            // The kernel may still write there.
            std::mem::forget(buffer);
        }
    }
}
