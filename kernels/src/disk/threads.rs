//! Transfers by threads, each of which waits for the system.

use super::queue::{Next, Piece, Queue};
use std::io::Error;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// What is waited before the system is asked again for what it had no room for.
pub const MOMENT: Duration = Duration::from_millis(1);

/// So many threads that transfer pieces until the queue closes. Fewer where the system refuses more than one.
pub fn start(queue: &Arc<Queue>, threads: usize) -> std::io::Result<Vec<JoinHandle<()>>> {
    let mut started = Vec::new();
    for number in 0..threads.max(1) {
        let queue = queue.clone();
        let work = move || {
            let _guard = queue.clone().guarded();
            while let Some(piece) = queue.wait_for_piece() {
                carry(&queue, piece);
            }
        };
        match std::thread::Builder::new().name(format!("disk {number}")).stack_size(128 << 10).spawn(work) {
            Ok(thread) => started.push(thread),
            Err(error) if started.is_empty() => return Err(error),
            Err(_) => break,
        }
    }
    Ok(started)
}

fn carry(queue: &Queue, mut piece: Piece) {
    let error = loop {
        let result = transfer(queue, &piece);
        match piece.advance(result, queue.is_direct) {
            Next::Done => break None,
            Next::Failed(error) => break Some(error),
            Next::Again { after_a_moment: true } => std::thread::sleep(MOMENT),
            Next::Again { .. } => {}
        }
    };
    queue.end(&piece, error);
}

fn transfer(queue: &Queue, piece: &Piece) -> Result<u64, Error> {
    let (fd, span) = (queue.file.as_raw_fd(), piece.span);
    let (ptr, bytes, offset) =
        (span.ptr.as_ptr().cast::<libc::c_void>(), span.bytes as usize, span.offset as libc::off_t);
    // SAFETY: the bytes are in a buffer that belongs to the transfer, which is not over before this piece has ended; a read is
    // the only one to use them.
    let result = unsafe {
        if span.is_write { libc::pwrite(fd, ptr, bytes, offset) } else { libc::pread(fd, ptr, bytes, offset) }
    };
    u64::try_from(result).map_err(|_| Error::last_os_error())
}
