//! Files as blocks with checksums, written and read past the page cache where the file system can. A thread moves bytes
//! to or from the disk while another fills or uses the next ones.

use super::training::{Result, StateError};
use rustix::fs::{FallocateFlags, OFlags, fallocate, fcntl_getfl, fcntl_setfl};
use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// Bytes that one checksum covers; the last block of a file may be shorter.
pub(super) const BLOCK: usize = 1 << 20;
/// Bytes of one transfer to the disk.
const TRANSFER: usize = 4 * BLOCK;
/// Buffers that travel between the two threads.
const BUFFERS: usize = 3;
/// Direct transfers are multiples of this: their address in memory, their position in the file and their length.
pub(super) const ALIGNMENT: usize = 4096;

struct Aligned {
    memory: Vec<u8>,
    start: usize,
}

impl Aligned {
    fn new() -> Aligned {
        let memory = vec![0; TRANSFER + ALIGNMENT];
        // The offset that the pointer states is below the alignment; where it states none, direct transfers are refused
        // by the system and the plain ones do.
        let start = memory.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
        Aligned { memory, start }
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + TRANSFER]
    }
}

/// Checksums of the blocks in `bytes`, which begins at the start of one.
fn sums(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes.chunks(BLOCK).map(crc32fast::hash)
}

/// Opens a file for direct transfers where it can be; the flag says whether.
fn open(path: &Path, write: bool, direct: bool) -> std::io::Result<(File, bool)> {
    let mut options = OpenOptions::new();
    options.read(!write).write(write).create(write).truncate(false);
    if direct {
        match options.clone().custom_flags(OFlags::DIRECT.bits() as i32).open(path) {
            Ok(file) => return Ok((file, true)),
            Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => {}
            Err(error) => return Err(error),
        }
    }
    Ok((options.open(path)?, false))
}

/// A transfer that the file system refuses as direct is made through the page cache, and so are those behind it.
fn or_plain<T>(file: &File, direct: &mut bool, mut transfer: impl FnMut() -> std::io::Result<T>) -> std::io::Result<T> {
    match transfer() {
        Err(error) if *direct && error.kind() == std::io::ErrorKind::InvalidInput => {
            *direct = false;
            fcntl_setfl(file, fcntl_getfl(file)?.difference(OFlags::DIRECT))?;
            transfer()
        }
        other => other,
    }
}

/// A file that is complete and on the disk.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Written {
    pub bytes: u64,
    pub sums: Vec<u32>,
}

/// The part of a file that a writer has: transfers `first`, `first + every`, ….
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Share {
    pub first: usize,
    pub every: usize,
}

/// How a file is written: by default whole, through the page cache, with few buffers.
#[derive(Clone, Copy, Debug)]
pub(super) struct WriteOptions {
    pub share: Share,
    pub direct: bool,
    /// Whether a buffer is made where all are under way, rather than waited for: no call waits for the disk before
    /// [`BlockWriter::finish`], at the cost of memory.
    pub grows: bool,
}

impl Default for WriteOptions {
    fn default() -> WriteOptions {
        WriteOptions { share: Share { first: 0, every: 1 }, direct: false, grows: false }
    }
}

impl Share {
    fn has(&self, transfer: u64) -> bool {
        transfer % self.every as u64 == self.first as u64
    }

    /// The numbers of its blocks in a file of so many bytes.
    pub fn blocks(self, bytes: u64) -> impl Iterator<Item = usize> {
        const PER_TRANSFER: usize = TRANSFER / BLOCK;
        let all = bytes.div_ceil(BLOCK as u64) as usize;
        let transfers = (self.first..all.div_ceil(PER_TRANSFER)).step_by(self.every.max(1));
        transfers.flat_map(move |transfer| transfer * PER_TRANSFER..((transfer + 1) * PER_TRANSFER).min(all))
    }
}

/// Writes a file, or a share of it that others write too, front to back.
pub(super) struct BlockWriter {
    options: WriteOptions,
    total: u64,
    position: u64,
    made: usize,
    filled: Option<Aligned>,
    sums: Vec<u32>,
    full: Option<Sender<(u64, Aligned, usize)>>,
    empty: Receiver<Aligned>,
    disk: Option<JoinHandle<std::io::Result<()>>>,
}

impl BlockWriter {
    /// A new file of `bytes`, for which the disk's room is taken at once.
    pub fn create(path: &Path, bytes: u64, options: WriteOptions) -> std::io::Result<BlockWriter> {
        let (file, mut direct) = open(path, true, options.direct)?;
        match fallocate(&file, FallocateFlags::empty(), 0, bytes.max(1)) {
            // If room cannot be reserved, a later write reports the error.
            Ok(()) | Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS | rustix::io::Errno::INVAL) => {}
            Err(error) => return Err(error.into()),
        }
        let (full, to_write) = channel::<(u64, Aligned, usize)>();
        let (give_back, empty) = channel();
        let write = move || -> std::io::Result<()> {
            while let Ok((position, mut buffer, len)) = to_write.recv() {
                // The file's last transfer is filled up with what is cut off again below.
                let padded = len.next_multiple_of(ALIGNMENT);
                buffer.bytes()[len..padded].fill(0);
                let bytes = &buffer.bytes()[..padded];
                or_plain(&file, &mut direct, || file.write_all_at(bytes, position))?;
                // The filling thread may have ended.
                let _ = give_back.send(buffer);
            }
            file.set_len(bytes)?;
            file.sync_all()
        };
        let disk = zbench_kernels::threads::spawn::start("checkpoint disk", write)?;
        Ok(BlockWriter {
            options,
            total: bytes,
            position: 0,
            made: 0,
            filled: None,
            sums: Vec::new(),
            full: Some(full),
            empty,
            disk: Some(disk),
        })
    }

    pub fn push(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.append(bytes.len() as u64, |range, to| {
            to.copy_from_slice(&bytes[range.start as usize..range.end as usize]);
        })
    }

    /// Appends `len` bytes, of which `encode` writes those ranges that are in this writer's share.
    pub fn append(&mut self, len: u64, mut encode: impl FnMut(Range<u64>, &mut [u8])) -> std::io::Result<()> {
        let mut done = 0;
        while done < len {
            let transfer = self.position / TRANSFER as u64;
            let begin = (self.position % TRANSFER as u64) as usize;
            let now = (len - done).min((TRANSFER - begin) as u64);
            if self.options.share.has(transfer) {
                let mut buffer = self.buffer()?;
                encode(done..done + now, &mut buffer.bytes()[begin..begin + now as usize]);
                self.filled = Some(buffer);
            }
            (done, self.position) = (done + now, self.position + now);
            if self.position == self.total || self.position.is_multiple_of(TRANSFER as u64) {
                self.flush(transfer)?;
            }
        }
        Ok(())
    }

    /// The buffer that is being filled, or a free one.
    fn buffer(&mut self) -> std::io::Result<Aligned> {
        if let Some(buffer) = self.filled.take() {
            return Ok(buffer);
        }
        if let Ok(buffer) = self.empty.try_recv() {
            return Ok(buffer);
        }
        if self.options.grows || self.made < BUFFERS {
            self.made += 1;
            return Ok(Aligned::new());
        }
        self.empty.recv().map_err(|_| self.stopped())
    }

    pub fn memory(&self) -> u64 {
        (self.made * (TRANSFER + ALIGNMENT)) as u64
    }

    fn flush(&mut self, transfer: u64) -> std::io::Result<()> {
        let Some(mut buffer) = self.filled.take() else { return Ok(()) };
        let start = transfer * TRANSFER as u64;
        let len = (self.position - start) as usize;
        self.sums.extend(sums(&buffer.bytes()[..len]));
        match self.full.as_ref().map(|full| full.send((start, buffer, len))) {
            Some(Ok(())) => Ok(()),
            _ => Err(self.stopped()),
        }
    }

    /// Waits for the disk's thread, which ends when it has written all that it was given.
    fn join(&mut self) -> std::io::Result<()> {
        self.close();
        let panicked = || Err(std::io::Error::other("the thread that writes has panicked"));
        self.disk.take().and_then(|disk| disk.join().ok()).unwrap_or_else(panicked)
    }

    /// Why the disk's thread takes or returns no more buffers.
    fn stopped(&mut self) -> std::io::Error {
        self.join().err().unwrap_or_else(|| std::io::Error::other("the thread that writes has ended"))
    }

    /// Ends the input: the disk's thread stops after it has written what it holds.
    pub fn close(&mut self) {
        self.full = None;
    }

    /// The checksums of the blocks so far.
    pub fn sums(&self) -> &[u32] {
        &self.sums
    }

    /// Returns when the whole file is on the disk.
    pub fn finish(mut self) -> std::io::Result<Written> {
        if self.position != self.total {
            let reason = format!("{} of {} bytes came; a bug", self.position, self.total);
            return Err(std::io::Error::other(reason));
        }
        self.join()?;
        Ok(Written { bytes: self.total, sums: std::mem::take(&mut self.sums) })
    }
}

impl Drop for BlockWriter {
    fn drop(&mut self) {
        // The file is being abandoned, so its error does not matter.
        let _ = self.join();
    }
}

/// Refuses a file that is not as long as it was written.
pub(super) fn check_length(path: &Path, bytes: u64) -> Result<()> {
    let found = std::fs::metadata(path).map_err(|source| StateError::io("read", path, source))?.len();
    if found == bytes {
        return Ok(());
    }
    Err(StateError::damaged(path, format!("it has {found} bytes and was written with {bytes}")))
}

/// A file to be read, with the checksums it must have.
#[derive(Debug)]
pub(super) struct BlockFile {
    path: PathBuf,
    bytes: u64,
    sums: Vec<u32>,
}

impl BlockFile {
    /// Checks the file's length against what was written.
    pub fn new(path: &Path, written: Written) -> Result<BlockFile> {
        let Written { bytes, sums } = written;
        check_length(path, bytes)?;
        Ok(BlockFile { path: path.into(), bytes, sums })
    }

    /// Hands the bytes of each range to `take`, in order and piece by piece: the number of the range, the position in it,
    /// the bytes. Every block that is touched is checked; ranges are in the order of the file. Returns the bytes read.
    pub fn read(
        &self,
        ranges: &[Range<u64>],
        direct: bool,
        mut take: impl FnMut(usize, u64, &[u8]) -> Result<()>,
    ) -> Result<u64> {
        let runs = self.runs(ranges)?;
        let failed = |source| StateError::io("read", &self.path, source);
        let (file, mut direct) = open(&self.path, false, direct).map_err(failed)?;
        let (give, full) = channel::<std::io::Result<(u64, Aligned, usize)>>();
        let (give_back, empty) = channel();
        (0..BUFFERS).for_each(|_| drop(give_back.send(Aligned::new())));
        let mut fetch = move |runs: &[Range<u64>]| {
            for position in runs.iter().flat_map(|run| run.clone().step_by(TRANSFER).map(|at| at..run.end)) {
                let Ok(mut buffer) = empty.recv() else { return };
                let len = (position.end - position.start).min(TRANSFER as u64) as usize;
                let result = fetch_one(&file, &mut direct, &mut buffer, position.start, len);
                if give.send(result.map(|()| (position.start, buffer, len))).is_err() {
                    return;
                }
            }
        };
        // The ends of both channels go with this closure, so that the thread ends when it does.
        std::thread::scope(move |scope| {
            let (mut read, mut first) = (0, 0);
            zbench_kernels::threads::spawn::start_scoped(scope, "checkpoint fetch", move || fetch(&runs))
                .map_err(failed)?;
            while let Ok(result) = full.recv() {
                let (at, mut buffer, len) = result.map_err(failed)?;
                self.check(at, &buffer.bytes()[..len])?;
                read += len as u64;
                while ranges.get(first).is_some_and(|range| range.end <= at) {
                    first += 1;
                }
                for (number, range) in ranges.iter().enumerate().skip(first) {
                    if range.start >= at + len as u64 {
                        break;
                    }
                    let (begin, end) = (range.start.max(at), range.end.min(at + len as u64));
                    take(number, begin - range.start, &buffer.bytes()[(begin - at) as usize..(end - at) as usize])?;
                }
                // The reading thread may have ended.
                let _ = give_back.send(buffer);
            }
            Ok(read)
        })
    }

    /// Whole blocks that cover the ranges, none twice.
    fn runs(&self, ranges: &[Range<u64>]) -> Result<Vec<Range<u64>>> {
        let block = BLOCK as u64;
        let mut runs: Vec<Range<u64>> = Vec::new();
        for range in ranges.iter().filter(|range| !range.is_empty()) {
            if range.end > self.bytes {
                let reason = format!("bytes {range:?} are looked for in {}", self.bytes);
                return Err(StateError::damaged(&self.path, reason));
            }
            let cover = range.start / block * block..range.end.next_multiple_of(block).min(self.bytes);
            match runs.last_mut() {
                Some(last) if cover.start <= last.end => last.end = last.end.max(cover.end),
                _ => runs.push(cover),
            }
        }
        Ok(runs)
    }

    fn check(&self, at: u64, bytes: &[u8]) -> Result<()> {
        let first = (at / BLOCK as u64) as usize;
        for (block, sum) in (first..).zip(sums(bytes)) {
            if self.sums.get(block) != Some(&sum) {
                let end = ((block + 1) as u64 * BLOCK as u64).min(self.bytes);
                let reason = format!("its bytes {} to {end} are not those that were written", block * BLOCK);
                return Err(StateError::damaged(&self.path, reason));
            }
        }
        Ok(())
    }
}

/// Reads `len` bytes at `position`; direct reads ask for whole sectors and stop at the file's end.
fn fetch_one(file: &File, direct: &mut bool, buffer: &mut Aligned, position: u64, len: usize) -> std::io::Result<()> {
    let mut done = 0;
    while done < len {
        // What came back short of a sector's end is asked for again from the sector's start.
        let from = done / ALIGNMENT * ALIGNMENT;
        let target = &mut buffer.bytes()[from..len.next_multiple_of(ALIGNMENT)];
        let count = or_plain(file, direct, || file.read_at(target, position + from as u64))?;
        if from + count <= done {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        done = from + count;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random(len: usize) -> Vec<u8> {
        let mut x = 0x9E37_79B9_7F4A_7C15u64 ^ len as u64;
        let mut next = || {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            x as u8
        };
        (0..len).map(|_| next()).collect()
    }

    #[test]
    fn what_is_written_is_read_in_any_ranges() {
        let dir = tempfile::tempdir().expect("a folder");
        for len in [0, 1, 4095, 4096, BLOCK, BLOCK + 1, TRANSFER, 3 * TRANSFER + 12345] {
            for direct in [true, false] {
                let (path, bytes) = (dir.path().join(format!("{len} {direct}")), random(len));
                let mut writer =
                    BlockWriter::create(&path, len as u64, WriteOptions { direct, ..WriteOptions::default() })
                        .expect("a file");
                bytes.chunks(777_777).for_each(|part| writer.push(part).expect("room"));
                let written = writer.finish().expect("room");
                assert_eq!(std::fs::read(&path).expect("the file"), bytes);
                let file = BlockFile::new(&path, written).expect("its length");
                let cuts = [0, len / 5, len / 3, len / 3, len / 2 + len / 4, len].map(|at| at as u64);
                let ranges: Vec<_> = cuts.windows(2).map(|pair| pair[0]..pair[1]).collect();
                for kept in [&ranges[..], &ranges[1..2], &ranges[3..]] {
                    let mut found = vec![Vec::new(); kept.len()];
                    let take = |number: usize, at: u64, bytes: &[u8]| {
                        assert_eq!(found[number].len() as u64, at);
                        found[number].extend_from_slice(bytes);
                        Ok(())
                    };
                    file.read(kept, direct, take).expect("the bytes");
                    for (range, found) in kept.iter().zip(&found) {
                        assert!(*found == bytes[range.start as usize..range.end as usize], "{len} {range:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn shares_of_several_writers_make_one_file() {
        let dir = tempfile::tempdir().expect("a folder");
        let bytes = random(5 * TRANSFER + 12345);
        let path = dir.path().join("f");
        let mut sums = vec![0; bytes.len().div_ceil(BLOCK)];
        let shares = (0..3).map(|first| Share { first, every: 3 });
        let writers: Vec<_> = shares
            .map(|share| {
                let create =
                    BlockWriter::create(&path, bytes.len() as u64, WriteOptions { share, direct: true, grows: true });
                let mut writer = create.expect("a file");
                bytes.chunks(1_234_567).for_each(|part| writer.push(part).expect("room"));
                (share, writer)
            })
            .collect();
        for (share, writer) in writers {
            let written = writer.finish().expect("room").sums;
            share.blocks(bytes.len() as u64).zip(written).for_each(|(block, sum)| sums[block] = sum);
        }
        assert!(std::fs::read(&path).expect("the file") == bytes);
        let file = BlockFile::new(&path, Written { bytes: bytes.len() as u64, sums }).expect("its length");
        let whole = 0..bytes.len() as u64;
        assert_eq!(file.read(std::slice::from_ref(&whole), true, |_, _, _| Ok(())).expect("sums"), bytes.len() as u64);
    }

    #[test]
    fn a_flipped_bit_is_found_in_its_block_alone() {
        let dir = tempfile::tempdir().expect("a folder");
        let (path, mut bytes) = (dir.path().join("f"), random(3 * BLOCK));
        let options = WriteOptions { direct: true, ..WriteOptions::default() };
        let mut writer = BlockWriter::create(&path, bytes.len() as u64, options).expect("a file");
        writer.push(&bytes).expect("room");
        let written = writer.finish().expect("room");
        bytes[BLOCK + 17] ^= 4;
        std::fs::write(&path, &bytes).expect("room");
        let file = BlockFile::new(&path, written).expect("its length");
        let read = |range: Range<u64>| file.read(&[range], false, |_, _, _| Ok(()));
        assert!(read(0..BLOCK as u64).is_ok() && read(2 * BLOCK as u64..3 * BLOCK as u64).is_ok());
        let error = read(0..BLOCK as u64 + 1).expect_err("a flipped bit").to_string();
        assert!(error.contains("its bytes 1048576 to 2097152 are not those that were written"), "{error}");
        bytes.pop();
        std::fs::write(&path, &bytes).expect("room");
        assert!(read(2 * BLOCK as u64..3 * BLOCK as u64).is_err());
    }
}
