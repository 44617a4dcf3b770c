//! A drive as ranks use it: each has a file of its own, and starts the tensors of a unit's state together before it waits for them,
//! or waits for each.

use super::Drive;
use std::path::Path;
use std::time::{Duration, Instant};
use zbench_engine::planner::curves::{Curves, DISK_READ, DISK_READ_ALONE, DISK_WRITE, DISK_WRITE_ALONE, Point};
use zbench_kernels::disk::{self, DiskError, File, Options, Transfer};
use zbench_kernels::{Arena, Buffer, Category, DType};
use zbench_reports::{stats, units};

/// Bytes of a transfer, in rising order: a slow drive is measured at the first ones alone.
const SIZES: [u64; 3] = [64 << 10, 1 << 20, 8 << 20];
/// Transfers that a rank starts together: of a unit's master weights and both moments.
const TOGETHER: usize = 3;
/// Time of a pass: transfers of one size in one direction.
const PASS: Duration = Duration::from_millis(50);
/// Rounds of a pass at least, so that one in which the drive served others does not count; fewer where they take longer than this.
const LEAST_ROUNDS: usize = 5;
const LONGEST_PASS: Duration = Duration::from_millis(500);
/// What all passes may take on a drive that is not slow. A size of which this would be exceeded is left out.
const ALL: Duration = Duration::from_millis(900);
/// Files at most; more ranks are taken to share what these reach.
const MOST_FILES: usize = 8;

/// One rank's file, and the memory that it is read into.
struct Lane {
    file: File,
    buffers: Vec<Buffer>,
}

/// Measures a folder's drive.
pub(super) fn measure(folder: &Path, ranks: usize) -> Result<Drive, String> {
    let words = |error: DiskError| error.to_string();
    let (begin, files) = (Instant::now(), ranks.clamp(1, MOST_FILES));
    let arena = Arena::host(None).map_err(|error| error.to_string())?;
    let mut lanes = Vec::with_capacity(files);
    for _ in 0..files {
        let file = File::create(folder, &Options::default()).map_err(words)?;
        file.reserve(TOGETHER as u64 * SIZES[SIZES.len() - 1]).map_err(words)?;
        lanes.push(Lane { file, buffers: Vec::new() });
    }
    let share = ranks as f64 / files as f64;
    let (mut curves, mut rates, mut left_out) = (Curves::default(), [0.0; 2], false);
    for (at, bytes) in SIZES.into_iter().enumerate() {
        // What small transfers take says little of large ones: the second size is worth more time.
        let most = if at < 2 { 4 * ALL } else { ALL };
        // By the rates so far: once to fill the place, and one round of each pass at least.
        let round = (files * TOGETHER) as f64 * bytes as f64;
        let takes = if rates[0] > 0.0 { round * (3.0 / rates[0] + 2.0 / rates[1]) } else { 0.0 };
        if begin.elapsed().as_secs_f64() + takes.max(4.0 * PASS.as_secs_f64()) > most.as_secs_f64() {
            left_out = true;
            break;
        }
        for (seed, lane) in lanes.iter_mut().enumerate() {
            lane.buffers = buffers(&arena, bytes, seed as u64).map_err(|error| error.to_string())?;
        }
        // What is measured is written over, as a rank's state is.
        pass(&mut lanes, (bytes, TOGETHER), true, Duration::ZERO)?;
        let directions = [(true, DISK_WRITE, DISK_WRITE_ALONE), (false, DISK_READ, DISK_READ_ALONE)];
        for (place, (writes, class, class_alone)) in directions.into_iter().enumerate() {
            let mut point = |class, together| -> Result<f64, String> {
                let seconds = pass(&mut lanes, (bytes, together), writes, PASS)?;
                curves.add(class, Point { sizes: vec![bytes as f64], seconds: share * seconds });
                Ok(seconds)
            };
            rates[place] = files as f64 * bytes as f64 / point(class, TOGETHER)?;
            point(class_alone, 1)?;
        }
    }
    let file = &lanes[0].file;
    let direct = if file.is_direct() { ", O_DIRECT" } else { ", through the page cache" };
    let memory = if disk::is_memory(folder).unwrap_or(false) { "; it is in memory (tmpfs) and no disk" } else { "" };
    let short = if left_out { "; larger transfers were left out, since the drive is slow" } else { "" };
    let [write, read] = rates.map(|rate| units::number(rate / 1e9));
    let source = format!(
        "the drive of {} measured now with {} ({}{direct}): {read} GB/s read, {write} GB/s written{memory}{short}",
        folder.display(),
        units::plural(files, "file", "files"),
        file.engine()
    );
    Drive { curves, ranks, source }.checked()
}

/// Pages of numbers that no drive can leave out.
fn buffers(arena: &Arena, bytes: u64, seed: u64) -> Result<Vec<Buffer>, Box<dyn std::error::Error>> {
    let len = usize::try_from(bytes)? / DType::F32.size();
    let mut word = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let one = |_| {
        let mut buffer = arena.alloc_pages(Category::Optimizer, DType::F32, len)?;
        for chunk in buffer.view_mut().into_bytes_mut()?.as_chunks_mut::<8>().0 {
            // Marsaglia's xorshift.
            word ^= word << 13;
            word ^= word >> 7;
            word ^= word << 17;
            *chunk = word.to_le_bytes();
        }
        Ok(buffer)
    };
    (0..TOGETHER).map(one).collect()
}

/// All lanes at once for so long, with so many transfers of so many bytes together: seconds of a lane for one of its transfers, as the
/// median of its rounds, so that a moment in which the drive served others does not count. One round where that is no time.
fn pass(lanes: &mut [Lane], size: (u64, usize), writes: bool, time: Duration) -> Result<f64, String> {
    let begin = Instant::now();
    let seconds: Result<Vec<f64>, String> = std::thread::scope(|scope| {
        let one =
            |lane| std::thread::Builder::new().spawn_scoped(scope, move || lane_pass(lane, size, writes, begin, time));
        let threads: Vec<_> = lanes.iter_mut().map(one).collect();
        let ended = |thread: std::io::Result<std::thread::ScopedJoinHandle<'_, Result<f64, String>>>| match thread {
            Ok(thread) => thread.join().unwrap_or_else(|_| Err("a thread of the measurement panicked; a bug".into())),
            Err(error) => Err(format!("no thread can be started: {error}")),
        };
        threads.into_iter().map(ended).collect()
    });
    let seconds = seconds?;
    Ok(seconds.iter().sum::<f64>() / seconds.len() as f64)
}

fn lane_pass(
    lane: &mut Lane,
    (bytes, together): (u64, usize),
    writes: bool,
    begin: Instant,
    time: Duration,
) -> Result<f64, String> {
    let words = |error: DiskError| error.to_string();
    let start = if writes { File::start_write } else { File::start_read };
    let (mut rounds, mut since) = (Vec::new(), begin);
    let least = if time.is_zero() { 1 } else { LEAST_ROUNDS };
    while rounds.is_empty() || begin.elapsed() < time || rounds.len() < least && begin.elapsed() < LONGEST_PASS {
        let offsets = (0..).map(|place| place * bytes);
        let flying: Result<Vec<Transfer>, DiskError> = lane
            .buffers
            .drain(..together)
            .zip(offsets)
            .map(|(buffer, offset)| start(&lane.file, offset, buffer))
            .collect();
        for transfer in flying.map_err(words)? {
            lane.buffers.push(transfer.wait().map_err(words)?);
        }
        let now = Instant::now();
        rounds.push(now.duration_since(std::mem::replace(&mut since, now)).as_secs_f64());
    }
    Ok(stats::median(&rounds).unwrap_or(0.0) / together as f64)
}
