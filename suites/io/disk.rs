//! One file, written and read as a rank's offloaded state is: tensors in pages, several under way.

use super::{DiskLink, fio, result};
use crate::bench::{BenchError, BenchResult, Limits, Scratch, process};
use crate::kernels::device::fits_now;
use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};
use zbench_host::machine;
use zbench_kernels::disk::{self, DiskError, Engine, File, Options, Transfer};
use zbench_kernels::numerics::philox;
use zbench_kernels::{Arena, Buffer, Category, Cpu, DType, Kernels, Normal, Op, PAGE_BYTES, no_scratch};
use zbench_reports::bench::io::{Measured, Pass};
use zbench_reports::record::{Source, Status};
use zbench_runner::protocol::Ended;

/// What a disk refuses of a cell is no failure: there is another way, which is another cell.
fn error(error: DiskError) -> BenchError {
    match error {
        DiskError::Engine { .. } | DiskError::Direct { .. } => {
            Ended { status: Status::Skipped, reason: error.to_string(), source: Some(Source::Host) }.into()
        }
        error => process::failed(error.to_string()),
    }
}

/// Measures a cell. `folder` is used where the cell names none.
pub fn measure(cell: &DiskLink, limits: &Limits<'_>, folder: &Path) -> Result<BenchResult, BenchError> {
    let folder = if cell.dir.as_os_str().is_empty() { folder } else { &cell.dir };
    let scratch = Scratch::new(folder, "name another with io.dir or --dir").map_err(process::failed)?;
    let engine = match cell.engine.as_str() {
        "io_uring" => Some(Engine::IoUring),
        "threads" => Some(Engine::Threads),
        _ => None,
    };
    let options = Options { engine, direct: cell.direct, depth: cell.depth };
    let file = File::create(scratch.path(), &options).map_err(error)?;
    file.reserve(cell.file).map_err(error)?;
    let mut measured = Measured {
        folder: folder.display().to_string(),
        engine: file.engine().name().into(),
        direct: file.is_direct(),
        is_memory: disk::is_memory(scratch.path()).unwrap_or(false),
        why: file.why().iter().map(|why| format!("with {why}")).collect(),
        ..Measured::default()
    };
    fio::find(cell, &mut measured);
    let mut flow = Flow::new(cell, &file, limits)?;
    let mut in_order = 0..cell.slots();
    flow.pass(true, |_| in_order.next())?;
    let wrong = flow.check()?;
    for (pattern, direction) in cell.passes() {
        let order = if pattern == "random" { shuffled(cell.slots()) } else { (0..cell.slots()).collect() };
        let (begin, time, mut next) = (Instant::now(), Duration::from_secs_f64(cell.seconds), 0);
        let slot = |count: u64| {
            // Once at least, so that there is a rate.
            let goes_on = count == 0 || begin.elapsed() < time;
            next += 1;
            goes_on.then(|| order[(next - 1) % order.len()])
        };
        let (bytes, seconds) = flow.pass(direction == "write", slot)?;
        let (pattern, direction) = (pattern.into(), direction.into());
        let mut pass = Pass { pattern, direction, bytes, seconds, fio_gb_s: None };
        fio::beside(cell, &mut measured, &mut pass, scratch.path(), limits)?;
        measured.passes.push(pass);
    }
    Ok(BenchResult { wrong, ..result(&measured) })
}

/// Slots in an order without a pattern: each once, so that no two transfers under way are of the same.
fn shuffled(slots: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..slots).collect();
    for place in (1..slots).rev() {
        let [a, b, ..] = philox::words(28, philox::RandomStream::Dropout, place as u64);
        let below = ((u128::from(a) << 32 | u128::from(b)) * (place as u128 + 1)) >> 64;
        order.swap(place, below as usize);
    }
    order
}

/// Buffers between the memory and the file.
struct Flow<'a> {
    cell: &'a DiskLink,
    file: &'a File,
    limits: &'a Limits<'a>,
    free: Vec<Buffer>,
    flying: VecDeque<Transfer>,
    /// Tensors written so far.
    written: u64,
}

/// Gives every page of a tensor a number of its own, so that no disk finds a block that it has already.
fn stamp(buffer: &mut Buffer, tensor: u64) -> Result<(), BenchError> {
    for (page, bytes) in buffer.view_mut().into_bytes_mut()?.chunks_mut(PAGE_BYTES as usize).enumerate() {
        bytes[..8].copy_from_slice(&(tensor << 24 | page as u64).to_le_bytes());
    }
    Ok(())
}

impl<'a> Flow<'a> {
    fn new(cell: &'a DiskLink, file: &'a File, limits: &'a Limits<'a>) -> Result<Flow<'a>, BenchError> {
        let kernels = Cpu::new(machine::cores());
        fits_now(&kernels, cell.size.saturating_mul(cell.at_a_time() as u64))?;
        let arena = Arena::host(None)?;
        let mut free = Vec::new();
        for seed in 0..cell.at_a_time() as u64 {
            let len = usize::try_from(cell.size / DType::F32.size() as u64).unwrap_or(usize::MAX);
            let mut buffer = arena.alloc_pages(Category::Optimizer, DType::F32, len)?;
            // A disk may leave out zeros; what it knows already is prevented by `stamp`.
            let normal = Normal { len, std: 1.0, seed, first: 0, dtype: DType::F32 };
            kernels.run(&Op::Normal(normal), &[], &mut [buffer.view_mut()], no_scratch())?;
            free.push(buffer);
            limits.check()?;
        }
        Ok(Flow { cell, file, limits, free, flying: VecDeque::new(), written: 0 })
    }

    /// Transfers to or from those slots that `next` gives, told how many there were; bytes and seconds. Of writes the sync at
    /// the end is included.
    fn pass(&mut self, writes: bool, mut next: impl FnMut(u64) -> Option<usize>) -> Result<(u64, f64), BenchError> {
        let (begin, mut count) = (Instant::now(), 0);
        while let Some(slot) = next(count) {
            self.limits.check()?;
            let mut buffer = match (self.free.pop(), self.flying.pop_front()) {
                (Some(buffer), Some(first)) => {
                    self.flying.push_front(first);
                    buffer
                }
                (Some(buffer), None) => buffer,
                (None, Some(first)) => first.wait().map_err(error)?,
                (None, None) => return Err(process::failed("a buffer was lost; a bug".into())),
            };
            let offset = slot as u64 * self.cell.size;
            if writes {
                self.written += 1;
                stamp(&mut buffer, self.written)?;
            }
            let start = if writes { File::start_write } else { File::start_read };
            self.flying.push_back(start(self.file, offset, buffer).map_err(error)?);
            count += 1;
        }
        while let Some(transfer) = self.flying.pop_front() {
            self.free.push(transfer.wait().map_err(error)?);
        }
        if writes {
            self.file.sync().map_err(error)?;
        }
        Ok((count * self.cell.size, begin.elapsed().as_secs_f64()))
    }

    /// Writes each buffer to a slot and reads it into another: what is wrong with that, if something is.
    fn check(&mut self) -> Result<Option<String>, BenchError> {
        let digest = |buffer: &Buffer| buffer.view().as_bytes().map(blake3::hash);
        let mut written = Vec::new();
        for (slot, buffer) in std::mem::take(&mut self.free).into_iter().enumerate() {
            written.push(digest(&buffer)?);
            let buffer = self.file.start_write(slot as u64 * self.cell.size, buffer).map_err(error)?.wait();
            self.free.push(buffer.map_err(error)?);
            self.limits.check()?;
        }
        self.free.rotate_left(1);
        for (slot, mut buffer) in std::mem::take(&mut self.free).into_iter().enumerate() {
            buffer.view_mut().into_bytes_mut()?.fill(0);
            let read = self.file.start_read(slot as u64 * self.cell.size, buffer).map_err(error)?.wait();
            let read = read.map_err(error)?;
            if digest(&read)? != written[slot] {
                let at = slot as u64 * self.cell.size;
                return Ok(Some(format!("what was written at byte {at} of the file was not read again")));
            }
            self.free.push(read);
            self.limits.check()?;
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_without_a_pattern_has_every_slot_once() {
        for slots in [0, 1, 2, 3, 64, 1000] {
            let order = shuffled(slots);
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..slots).collect::<Vec<_>>());
            let in_order = order.windows(2).filter(|pair| pair[1] == pair[0] + 1).count();
            assert!(slots < 64 || in_order < slots / 8, "{in_order} of {slots} follow each other");
        }
    }
}
