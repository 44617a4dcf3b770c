//! Which cores this process may use, and threads that keep to one.

#![allow(unsafe_code, reason = "system calls that read and set a thread's cores")]

use std::io;

/// Words of a set of cores: 16,384 cores, more than any kernel is built for.
const WORDS: usize = 256;

/// A set of cores, as the system writes it.
#[derive(Clone, Debug)]
pub struct Cores([u64; WORDS]);

impl Cores {
    /// Those that the calling thread may use.
    ///
    /// # Errors
    /// The system does not say.
    #[cfg(target_os = "linux")]
    pub fn of_this_thread() -> io::Result<Cores> {
        let mut cores = Cores([0; WORDS]);
        // SAFETY: the set has as many bytes as stated; 0 is the calling thread.
        match unsafe { libc::sched_getaffinity(0, WORDS * 8, cores.0.as_mut_ptr().cast()) } {
            0 => Ok(cores),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Keeps the calling thread on these cores.
    ///
    /// # Errors
    /// The system refuses.
    #[cfg(target_os = "linux")]
    pub fn keep(&self) -> io::Result<()> {
        // SAFETY: as above; the set is only read.
        match unsafe { libc::sched_setaffinity(0, WORDS * 8, self.0.as_ptr().cast()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    #[cfg(not(target_os = "linux"))]
    pub fn of_this_thread() -> io::Result<Cores> {
        Err(io::ErrorKind::Unsupported.into())
    }

    #[cfg(not(target_os = "linux"))]
    pub fn keep(&self) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// The cores that the calling thread may use, in the system's order. Empty where the system does not say.
pub fn available() -> Vec<usize> {
    let has = |cores: &Cores, core: usize| cores.0[core / 64] >> (core % 64) & 1 == 1;
    let list = |cores: Cores| (0..WORDS * 64).filter(|core| has(&cores, *core)).collect();
    Cores::of_this_thread().map(list).unwrap_or_default()
}

/// Keeps the calling thread on one core for good.
pub(crate) fn keep_to(core: usize) -> io::Result<()> {
    let mut cores = Cores([0; WORDS]);
    *cores.0.get_mut(core / 64).ok_or(io::ErrorKind::InvalidInput)? |= 1 << (core % 64);
    cores.keep()
}

/// Keeps a thread on its core until dropped; then it has those cores again that it had before. Stays on its thread.
#[derive(Debug)]
pub struct Pinned {
    before: Cores,
    /// Not Send: another thread's cores would be changed.
    _here: std::marker::PhantomData<*const ()>,
}

impl Pinned {
    /// Keeps the calling thread on `core`.
    ///
    /// # Errors
    /// The system refuses, as where the process may not use that core.
    pub fn to(core: usize) -> io::Result<Pinned> {
        let before = Cores::of_this_thread()?;
        keep_to(core)?;
        Ok(Pinned { before, _here: std::marker::PhantomData })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // Where that is refused now, the thread stays where it is.
        let _ = self.before.keep();
    }
}

#[cfg(target_os = "linux")]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_kept_on_a_core_while_the_guard_lives() {
        std::thread::spawn(|| {
            let before = available();
            assert!(!before.is_empty() && before.is_sorted());
            for core in &before {
                let pinned = Pinned::to(*core).unwrap();
                assert_eq!(available(), [*core]);
                assert_eq!(std::thread::spawn(available).join().unwrap(), [*core], "threads it starts stay there too");
                drop(pinned);
                assert_eq!(available(), before);
            }
            assert!(Pinned::to(WORDS * 64 - 1).is_err());
            assert!(Pinned::to(usize::MAX).is_err());
            assert_eq!(available(), before);
        })
        .join()
        .unwrap();
    }
}
