//! Transfers by io_uring: one thread asks the kernel for several at a time and sleeps until one is done.

use super::queue::{Next, Piece, Queue};
use super::threads::MOMENT;
use io_uring::{IoUring, Probe, opcode, squeue, types};
use std::io::{Error, ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;

/// Wakes the thread, which waits for the kernel or for this.
#[derive(Debug)]
pub struct Bell(std::fs::File);

impl Bell {
    fn new() -> Result<Bell, Error> {
        // SAFETY: the call makes a new descriptor and touches nothing else.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(Error::last_os_error());
        }
        // SAFETY: the descriptor is new, and nobody else's.
        Ok(Bell(unsafe { OwnedFd::from_raw_fd(fd) }.into()))
    }

    pub fn ring(&self) {
        // It fails only where it has been rung 2^64 times.
        let _ = (&self.0).write_all(&1u64.to_ne_bytes());
    }

    /// Sleeps until it is rung.
    fn wait(&self) -> Result<(), Error> {
        let mut fd = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one struct, which is written; a call on a descriptor of ours.
        match unsafe { libc::poll(&raw mut fd, 1, -1) } {
            0.. => Ok(()),
            _ => match Error::last_os_error() {
                error if error.kind() == ErrorKind::Interrupted => Ok(()),
                error => Err(error),
            },
        }
    }

    fn hush(&self) {
        let _ = (&self.0).read_exact(&mut [0; 8]);
    }
}

/// What the bell's answers are known by; others are numbers of pieces.
const BELL: u64 = u64::MAX;

/// A ring whose kernel has all that is needed, or why there is none.
pub fn open(depth: usize) -> Result<IoUring, String> {
    let refused = |error: Error| match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            format!("this process may not use it ({error}): a container's seccomp profile, or kernel.io_uring_disabled")
        }
        Some(libc::ENOSYS) => format!("this kernel or container has none ({error})"),
        Some(libc::ENOMEM) => format!("{error}: locked memory is limited (ulimit -l)"),
        _ => error.to_string(),
    };
    let ring = IoUring::new(depth as u32 + 1).map_err(refused)?;
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe).map_err(|error| format!("this kernel's is too old ({error})"))?;
    let codes = [opcode::Read::CODE, opcode::Write::CODE, opcode::PollAdd::CODE];
    match codes.iter().all(|code| probe.is_supported(*code)) {
        true => Ok(ring),
        false => Err("this kernel's is too old for reads and writes: Linux 5.6 has them".into()),
    }
}

/// The thread that carries pieces out until the queue closes.
pub fn start(queue: &Arc<Queue>, ring: IoUring, depth: usize) -> Result<(JoinHandle<()>, Arc<Bell>), Error> {
    let bell = Arc::new(Bell::new()?);
    let mut driver =
        Driver { queue: queue.clone(), ring, bell: bell.clone(), flying: vec![None; depth], is_listening: false };
    let work = move || {
        let _guard = driver.queue.clone().guarded();
        if let Err(error) = driver.run() {
            driver.queue.break_down(error.to_string());
        }
    };
    let thread = std::thread::Builder::new().name("disk ring".into()).stack_size(128 << 10).spawn(work)?;
    Ok((thread, bell))
}

struct Driver {
    queue: Arc<Queue>,
    ring: IoUring,
    bell: Arc<Bell>,
    /// What the kernel has, by number.
    flying: Vec<Option<Piece>>,
    /// Whether the kernel will say that the bell was rung.
    is_listening: bool,
}

impl Driver {
    /// # Errors
    /// The ring has failed; the kernel may still transfer what is under way.
    fn run(&mut self) -> Result<(), Error> {
        loop {
            self.bell.hush();
            // After the bell was silenced: who pushes first and rings then is not missed.
            while let Some(number) = self.flying.iter().position(Option::is_none) {
                let Some(piece) = self.queue.take() else { break };
                self.flying[number] = Some(piece);
                self.ask_for(number)?;
            }
            if self.flying.iter().all(Option::is_none) {
                if self.queue.is_closing() {
                    return Ok(());
                }
                // Not in the ring: the kernel would count an idle thread as one that waits for a disk.
                self.bell.wait()?;
                continue;
            }
            if !self.is_listening {
                let poll = opcode::PollAdd::new(types::Fd(self.bell.0.as_raw_fd()), libc::POLLIN as u32);
                self.ask(&poll.build().user_data(BELL))?;
                self.is_listening = true;
            }
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // The kernel is short of memory, or has more answers than it can keep: they are read below.
                Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY)) => {
                    std::thread::sleep(MOMENT);
                }
                Err(error) => return Err(error),
            }
            loop {
                let Some(entry) = self.ring.completion().next() else { break };
                match entry.user_data() {
                    BELL => self.is_listening = false,
                    number => self.answered(number as usize, entry.result())?,
                }
            }
        }
    }

    fn answered(&mut self, number: usize, result: i32) -> Result<(), Error> {
        let Some(mut piece) = self.flying.get_mut(number).and_then(Option::take) else { return Ok(()) };
        let result = u64::try_from(result).map_err(|_| Error::from_raw_os_error(-result));
        match piece.advance(result, self.queue.is_direct) {
            Next::Done => self.queue.end(&piece, None),
            Next::Failed(error) => self.queue.end(&piece, Some(error)),
            Next::Again { after_a_moment } => {
                if after_a_moment {
                    std::thread::sleep(MOMENT);
                }
                self.flying[number] = Some(piece);
                self.ask_for(number)?;
            }
        }
        Ok(())
    }

    fn ask_for(&mut self, number: usize) -> Result<(), Error> {
        let Some(span) = self.flying[number].map(|piece| piece.span) else { return Ok(()) };
        let (fd, ptr, bytes) = (types::Fd(self.queue.file.as_raw_fd()), span.ptr.as_ptr(), span.bytes as u32);
        let entry = match span.is_write {
            true => opcode::Write::new(fd, ptr, bytes).offset(span.offset).build(),
            false => opcode::Read::new(fd, ptr, bytes).offset(span.offset).build(),
        };
        self.ask(&entry.user_data(number as u64))
    }

    fn ask(&mut self, entry: &squeue::Entry) -> Result<(), Error> {
        for _ in 0..2 {
            // SAFETY: the bytes are in a buffer that belongs to the transfer, which is not over before the kernel has answered;
            // a read is the only one to use them. The bell's descriptor is open as long as the ring.
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                return Ok(());
            }
            self.ring.submit()?;
        }
        Err(Error::other("the ring takes no more entries"))
    }
}
