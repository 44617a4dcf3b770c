//! A disk's rates past the page cache: one file, written and read in place with O_DIRECT, several threads with a part each.
//!
//! The file has no name: it is unlinked as soon as it is open, so that nothing is left over however this process ends.

use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};
use zbench_kernels::numerics::philox;

/// Bytes of one read or write: large enough that a disk is not asked for too little at a time.
const BLOCK: usize = 4 << 20;
/// O_DIRECT wants memory, place and length to be multiples of the disk's blocks; none has larger ones.
const ALIGNMENT: usize = 4096;
/// tmpfs, in /usr/include/linux/magic.h.
const TMPFS: u64 = 0x0102_1994;

/// An open file without a name.
#[derive(Debug)]
pub struct Disk {
    file: File,
    block: usize,
    blocks: usize,
}

/// Memory that O_DIRECT takes.
struct Aligned {
    memory: Vec<u8>,
    from: usize,
    len: usize,
}

impl Aligned {
    fn new(len: usize, seed: u64) -> Aligned {
        let mut memory = vec![0; len + ALIGNMENT];
        // A disk may leave out zeros, and blocks that it knows.
        for (place, chunk) in memory.chunks_mut(16).enumerate() {
            let words = philox::words(seed, philox::RandomStream::Dropout, place as u64).map(u32::to_le_bytes);
            chunk.iter_mut().zip(words.as_flattened()).for_each(|(byte, random)| *byte = *random);
        }
        let from = memory.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
        Aligned { memory, from, len }
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.from..self.from + self.len]
    }
}

impl Disk {
    /// Makes the file and fills it, so that what is measured later finds its place on the disk.
    ///
    /// # Errors
    /// Why this folder's disk cannot be measured, in words.
    pub fn open(folder: &Path, bytes: u64) -> Result<Disk, String> {
        let shown = folder.display();
        std::fs::create_dir_all(folder).map_err(|error| format!("the folder {shown} cannot be made: {error}"))?;
        let path = folder.join(format!(".zbench-calibrate-{}", std::process::id()));
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::DIRECT | OFlags::CLOEXEC;
        let opened = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR);
        // Some file systems make the file and refuse the flag then.
        let _ = std::fs::remove_file(&path);
        let file = match opened {
            Ok(file) => File::from(file),
            Err(rustix::io::Errno::INVAL) => return Err(format!("the file system of {shown} refuses O_DIRECT")),
            Err(error) => return Err(format!("no file can be made in {shown}: {error}")),
        };
        if rustix::fs::fstatfs(&file).is_ok_and(|system| system.f_type as u64 == TMPFS) {
            return Err(format!("{shown} is in memory (tmpfs) and on no disk; name another folder with --disk"));
        }
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX).max(ALIGNMENT);
        let block = BLOCK.min(bytes / ALIGNMENT * ALIGNMENT);
        let disk = Disk { file, block, blocks: bytes / block };
        let mut memory = Aligned::new(block, 1);
        for place in 0..disk.blocks {
            disk.file.write_all_at(memory.bytes(), disk.offset(place)).map_err(|error| match error.raw_os_error() {
                Some(22) => format!("the file system of {shown} refuses writes with O_DIRECT"),
                _ => {
                    format!("{} bytes cannot be written in {shown}: {error}; see --disk-size", disk.block * disk.blocks)
                }
            })?;
        }
        disk.file.sync_data().map_err(|error| format!("{shown} cannot be synced: {error}"))?;
        Ok(disk)
    }

    fn offset(&self, place: usize) -> u64 {
        (place * self.block) as u64
    }

    /// Bytes per second written, the sync at the end included.
    ///
    /// # Errors
    /// The system's, in words.
    pub fn write(&self, threads: usize, seconds: f64) -> Result<f64, String> {
        self.pass(threads, seconds, true)
    }

    /// Bytes per second read.
    ///
    /// # Errors
    /// The system's, in words.
    pub fn read(&self, threads: usize, seconds: f64) -> Result<f64, String> {
        self.pass(threads, seconds, false)
    }

    fn pass(&self, threads: usize, seconds: f64, writes: bool) -> Result<f64, String> {
        // Made before the clock starts.
        let mut memories: Vec<Aligned> = (0..threads).map(|thread| Aligned::new(self.block, thread as u64)).collect();
        let time = Duration::from_secs_f64(seconds);
        let start = Instant::now();
        let moved = on_threads(memories.iter_mut().enumerate(), |(thread, memory)| {
            let part = thread * self.blocks / threads..((thread + 1) * self.blocks / threads);
            // With more threads than blocks some share a block.
            let part = if part.is_empty() { part.start..part.start + 1 } else { part };
            part.cycle_while(|| start.elapsed() < time).map(|place| self.transfer(memory, place, writes)).sum()
        });
        let moved = moved.and_then(|moved| if writes { self.file.sync_data().map(|()| moved) } else { Ok(moved) });
        let elapsed = start.elapsed().as_secs_f64();
        moved.map(|bytes| bytes as f64 / elapsed).map_err(|error| refused(error, writes))
    }

    /// Writes or reads one block: its bytes.
    fn transfer(&self, memory: &mut Aligned, place: usize, writes: bool) -> std::io::Result<usize> {
        let memory = memory.bytes();
        match writes {
            true => self.file.write_all_at(memory, self.offset(place))?,
            false => self.file.read_exact_at(memory, self.offset(place))?,
        }
        Ok(memory.len())
    }
}

/// Writes and syncs, or reads, all of several files once, each by a thread: bytes and seconds.
///
/// # Errors
/// The system's, in words.
pub fn once(disks: &[Disk], writes: bool) -> Result<(u64, f64), String> {
    let mut memories: Vec<Aligned> = disks.iter().zip(0..).map(|(disk, seed)| Aligned::new(disk.block, seed)).collect();
    let start = Instant::now();
    let moved = on_threads(disks.iter().zip(&mut memories), |(disk, memory)| {
        let moved =
            (0..disk.blocks).map(|place| disk.transfer(memory, place, writes)).sum::<std::io::Result<usize>>()?;
        if writes {
            disk.file.sync_data()?;
        }
        Ok(moved)
    });
    let elapsed = start.elapsed().as_secs_f64();
    moved.map(|bytes| (bytes as u64, elapsed)).map_err(|error| refused(error, writes))
}

fn refused(error: std::io::Error, writes: bool) -> String {
    format!("not {}: {error}", if writes { "written" } else { "read" })
}

/// Does `work` for each job on a thread of its own: the bytes of all.
fn on_threads<J: Send>(
    jobs: impl Iterator<Item = J>,
    work: impl Fn(J) -> std::io::Result<usize> + Sync,
) -> std::io::Result<usize> {
    // A thread that panicked has moved nothing that counts.
    let panicked = |_| Err(std::io::Error::other("a thread of the measurement has panicked; a bug"));
    std::thread::scope(|scope| {
        let work = &work;
        let handles: Vec<_> =
            jobs.map(|job| std::thread::Builder::new().spawn_scoped(scope, move || work(job))).collect();
        handles.into_iter().map(|handle| handle?.join().unwrap_or_else(panicked)).sum()
    })
}

/// Over and over, at least once through the first element, while a condition holds.
trait CycleWhile {
    fn cycle_while(self, goes_on: impl Fn() -> bool) -> impl Iterator<Item = usize>;
}

impl CycleWhile for std::ops::Range<usize> {
    fn cycle_while(self, goes_on: impl Fn() -> bool) -> impl Iterator<Item = usize> {
        self.cycle().enumerate().take_while(move |(count, _)| *count == 0 || goes_on()).map(|(_, place)| place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_aligned_and_random() {
        for len in [4096, 3 * 4096] {
            let mut aligned = Aligned::new(len, 7);
            let bytes = aligned.bytes();
            assert_eq!((bytes.len(), bytes.as_ptr().addr() % ALIGNMENT), (len, 0));
            assert!(bytes.chunks(256).all(|chunk| chunk.iter().any(|byte| *byte != chunk[0])));
        }
    }

    #[test]
    fn a_pass_goes_over_its_part_at_least_once_and_ends_with_its_time() {
        assert_eq!((4..6).cycle_while(|| false).collect::<Vec<_>>(), [4]);
        let count = std::cell::Cell::new(0);
        let goes_on = || {
            count.set(count.get() + 1);
            count.get() < 4
        };
        assert_eq!((4..6).cycle_while(goes_on).collect::<Vec<_>>(), [4, 5, 4, 5]);
    }

    /// Whatever this machine's file systems say: a rate above nothing, or a reason; and no file stays.
    #[test]
    fn a_disk_has_a_rate_or_a_reason() {
        let here = tempfile::tempdir_in(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).unwrap();
        match Disk::open(here.path(), 3 << 20) {
            Ok(disk) => {
                for threads in [1, 2, 5] {
                    assert!(disk.write(threads, 0.01).unwrap() > 0.0);
                    assert!(disk.read(threads, 0.01).unwrap() > 0.0);
                }
                let disks = [disk, Disk::open(here.path(), 5 << 20).unwrap()];
                for writes in [true, false] {
                    let (bytes, seconds) = once(&disks, writes).unwrap();
                    assert!(bytes == (3 << 20) + (4 << 20) && seconds > 0.0);
                }
            }
            Err(why) => assert!(why.contains("O_DIRECT") || why.contains("tmpfs"), "{why}"),
        }
        assert_eq!(std::fs::read_dir(here.path()).unwrap().count(), 0);
        let file = here.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(Disk::open(&file, 1 << 20).unwrap_err().contains("cannot be made"));
    }
}
