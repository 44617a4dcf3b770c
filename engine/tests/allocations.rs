//! A step takes no block from the heap after two that warm it up, of whatever size, on any thread of any rank. A library's
//! own (the `gemm` crate packs into blocks of its own where we call it) is told apart by the marker of its calls.
//!
//! `ZBENCH_SHOW_BLOCKS=1 cargo test -p zbench-engine --test allocations -- --nocapture` says where they are made.

#[path = "training/support.rs"]
#[allow(dead_code, reason = "the support serves several test binaries")]
mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::cell::Cell as Flag;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use support::*;
use zbench_engine::config::*;
use zbench_engine::train::with_ranks;
use zbench_kernels::{DType, scratch};

struct Counting;

static WATCHING: AtomicBool = AtomicBool::new(false);
static SHOWING: AtomicBool = AtomicBool::new(false);
static BLOCKS: AtomicUsize = AtomicUsize::new(0);
/// Where blocks were made, and how many.
static PLACES: Mutex<BTreeMap<String, usize>> = Mutex::new(BTreeMap::new());

thread_local! {
    /// Whether this thread is writing a place down, which takes blocks too.
    static INSIDE: Flag<bool> = const { Flag::new(false) };
}

fn note() {
    if !WATCHING.load(Ordering::Relaxed) || scratch::in_library() || INSIDE.try_with(Flag::get).unwrap_or(true) {
        return;
    }
    BLOCKS.fetch_add(1, Ordering::Relaxed);
    if SHOWING.load(Ordering::Relaxed) {
        INSIDE.set(true);
        let trace = Backtrace::force_capture().to_string();
        let ours = trace.lines().filter(|line| line.contains("at ") && !line.contains("/rustc/"));
        let place: Vec<&str> = ours.filter(|line| !line.contains("allocations.rs")).take(5).map(str::trim).collect();
        *PLACES.lock().unwrap_or_else(PoisonError::into_inner).entry(place.join(" < ")).or_default() += 1;
        INSIDE.set(false);
    }
}

#[allow(unsafe_code, reason = "an allocator is unsafe by its nature")]
// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note();
        // SAFETY: the caller's promise is handed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note();
        // SAFETY: the caller's promise is handed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note();
        // SAFETY: the caller's promise is handed on.
        unsafe { System.realloc(ptr, layout, size) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is handed on.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Steps that are watched, one by one.
const WATCHED: usize = 5;

/// Blocks that all ranks together take in each of the watched steps, after two.
fn blocks(cell: &Cell) -> [usize; WATCHED] {
    let plan = plan(cell);
    let barrier = std::sync::Barrier::new(cell.parallel.ranks);
    let counts = Mutex::new([0; WATCHED]);
    with_ranks(cell, &plan, cpus(cell), |rank| {
        (0..2).try_for_each(|_| rank.step().map(drop))?;
        for step in 0..WATCHED {
            if barrier.wait().is_leader() {
                BLOCKS.store(0, Ordering::SeqCst);
                WATCHING.store(true, Ordering::SeqCst);
            }
            barrier.wait();
            let done = rank.step().map(drop);
            barrier.wait();
            WATCHING.store(false, Ordering::SeqCst);
            counts.lock().unwrap_or_else(PoisonError::into_inner)[step] = BLOCKS.load(Ordering::SeqCst);
            done?;
        }
        Ok(())
    })
    .unwrap();
    counts.into_inner().unwrap()
}

#[test]
fn a_step_takes_nothing_from_the_heap_after_warm_up() {
    // The watch itself works.
    WATCHING.store(true, Ordering::SeqCst);
    drop(std::hint::black_box(vec![1u8; 3]));
    WATCHING.store(false, Ordering::SeqCst);
    assert_eq!(BLOCKS.load(Ordering::SeqCst), 1);

    SHOWING.store(std::env::var_os("ZBENCH_SHOW_BLOCKS").is_some(), Ordering::SeqCst);
    let strategies = [(Strategy::Ddp, 1), (Strategy::Ddp, 2), (Strategy::Zero1, 2), (Strategy::Fsdp, 2)];
    let mut found = Vec::new();
    for precision in [Precision::F32, Precision::mixed(DType::Bf16)] {
        for (threads, (strategy, ranks)) in [1, 2].into_iter().flat_map(|t| strategies.map(|s| (t, s))) {
            let mut cell = on(synthetic(), strategy, ranks, ranks);
            cell.precision = precision;
            cell.hardware.threads_per_rank = threads;
            cell.train.clip_norm = 1.0;
            let blocks = blocks(&cell);
            let what = format!("{} x {ranks}, {threads} threads, {:?}", strategy.name(), precision.compute);
            if blocks != [0; WATCHED] {
                found.push(format!("{what}: {blocks:?} blocks in successive steps"));
            }
        }
    }
    // Documents, packed and read ahead by a thread of each rank.
    let dir = tempfile::tempdir().unwrap();
    for ranks in [1, 2] {
        let mut cell = on(synthetic(), Strategy::Ddp, ranks, ranks);
        (cell.data, cell.read_ahead) = (documents(dir.path(), 40), 2);
        let blocks = blocks(&cell);
        if blocks != [0; WATCHED] {
            found.push(format!("documents x {ranks}: {blocks:?} blocks in successive steps"));
        }
    }
    let places = PLACES.lock().unwrap_or_else(PoisonError::into_inner);
    places.iter().for_each(|(place, count)| println!("{count:6} {place}"));
    assert!(found.is_empty(), "{found:#?}");
}
