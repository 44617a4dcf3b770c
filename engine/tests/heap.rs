//! What a step takes from the heap. No block over 64 KiB is made outside the arena; and after two steps that warm it up, a
//! step takes no block at all, of whatever size, on any thread of any rank.
//!
//! `ZBENCH_SHOW_BLOCKS=1 cargo test -p zbench-engine-tests --test heap -- --nocapture` says where they are made.

#[path = "device/mod.rs"]
mod device;
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
use zbench_engine::run::launch_ranks::with_ranks;
use zbench_kernels::DType;
use zbench_test_tiers as tiers;

/// Bytes above which a block is large.
const LARGE: usize = 64 << 10;

struct Counting;

static WATCHING: AtomicBool = AtomicBool::new(false);
static SHOWING: AtomicBool = AtomicBool::new(false);
/// Blocks of any size, and those that are large.
static BLOCKS: AtomicUsize = AtomicUsize::new(0);
static LARGE_BLOCKS: AtomicUsize = AtomicUsize::new(0);
static LARGEST: AtomicUsize = AtomicUsize::new(0);
/// Where blocks were made, and how many.
static PLACES: Mutex<BTreeMap<String, usize>> = Mutex::new(BTreeMap::new());

thread_local! {
    /// Whether this thread is writing a place down, which takes blocks too.
    static INSIDE: Flag<bool> = const { Flag::new(false) };
}

fn note(bytes: usize) {
    if !WATCHING.load(Ordering::Relaxed) || INSIDE.try_with(Flag::get).unwrap_or(true) {
        return;
    }
    BLOCKS.fetch_add(1, Ordering::Relaxed);
    LARGE_BLOCKS.fetch_add(usize::from(bytes > LARGE), Ordering::Relaxed);
    LARGEST.fetch_max(bytes, Ordering::Relaxed);
    if SHOWING.load(Ordering::Relaxed) {
        INSIDE.set(true);
        let trace = Backtrace::force_capture().to_string();
        let ours = trace.lines().filter(|line| line.contains("at ") && !line.contains("/rustc/"));
        let place: Vec<&str> = ours.filter(|line| !line.contains("tests/heap.rs")).take(5).map(str::trim).collect();
        *PLACES.lock().unwrap_or_else(PoisonError::into_inner).entry(place.join(" < ")).or_default() += 1;
        INSIDE.set(false);
    }
}

/// Both counts look at the whole process: one after the other, in one test.
#[test]
fn a_step_takes_its_memory_from_the_arena() {
    no_large_block_is_made_in_a_step_outside_the_arena();
    a_step_takes_nothing_from_the_heap_after_warm_up();
}

#[allow(unsafe_code, reason = "an allocator is unsafe by its nature")]
// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: the caller's promise is handed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: the caller's promise is handed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note(size);
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

/// A model whose every activation is far above the limit.
fn wide() -> Cell {
    let mut cell = synthetic();
    let model = &mut cell.model;
    (model.hidden_size, model.intermediate_size, model.vocab_size) = (256, 512, 1024);
    (model.num_attention_heads, model.num_key_value_heads, model.head_dim) = (4, 2, 64);
    (cell.train.seq_len, cell.train.micro_batch) = (64, 2);
    cell
}

fn no_large_block_is_made_in_a_step_outside_the_arena() {
    // The watch itself works.
    WATCHING.store(true, Ordering::SeqCst);
    drop(std::hint::black_box(vec![1u8; LARGE + 1]));
    WATCHING.store(false, Ordering::SeqCst);
    assert_eq!((LARGE_BLOCKS.swap(0, Ordering::SeqCst), LARGEST.swap(0, Ordering::SeqCst)), (1, LARGE + 1));

    let ways = [(Strategy::Ddp, 1), (Strategy::Zero3, 2), (Strategy::Hsdp, 4)];
    let precisions = [Precision::F32, Precision::mixed(DType::Bf16)];
    let (flash, naive) = (AttentionKind::Flash, AttentionKind::Naive);
    let kinds = [(flash, None), (naive, None), (flash, Some(Base::Nf4))];
    let sizes = [ways.len(), precisions.len(), 2, kinds.len()];
    for [way, precision, threads, kind] in tiers::combinations("heap::no_large_block", sizes) {
        let ((strategy, ranks), precision, threads) = (ways[way], precisions[precision], threads + 1);
        let (attention, base) = kinds[kind];
        let mut cell = on(wide(), strategy, ranks, 2.min(ranks));
        cell.precision = precision;
        cell.hardware.threads_per_rank = threads;
        cell.memory.attention = attention;
        cell.memory.checkpointing = Checkpointing::Full;
        cell.train.accumulation = 2;
        if base.is_some() {
            (cell.lora.rank, cell.lora.targets, cell.lora.base) = (4, Linear::ALL.to_vec(), base);
        }
        let plan = plan(&cell);
        let barrier = std::sync::Barrier::new(ranks);
        with_ranks(&cell, &plan, cpus(&cell), |rank| {
            barrier.wait();
            WATCHING.store(true, Ordering::SeqCst);
            let steps = (0..2).try_for_each(|_| rank.step().map(|_| ()));
            barrier.wait();
            WATCHING.store(false, Ordering::SeqCst);
            steps
        })
        .unwrap();
        let found = (LARGE_BLOCKS.load(Ordering::SeqCst), LARGEST.load(Ordering::SeqCst));
        let what = format!("{} {precision:?} {threads} threads {attention:?} {base:?}", strategy.name());
        assert_eq!(found.0, 0, "{what}: blocks over 64 KiB; the largest has {} bytes", found.1);
    }
    // Documents, packed and read ahead by a thread of each rank: micro-batches of 96 KiB.
    let dir = tempfile::tempdir().unwrap();
    for (strategy, ranks) in [(Strategy::Ddp, 1), (Strategy::Zero3, 2)] {
        let mut cell = on(synthetic(), strategy, ranks, ranks);
        (cell.model.hidden_size, cell.model.intermediate_size, cell.model.vocab_size) = (16, 16, 32);
        (cell.model.num_hidden_layers, cell.train.seq_len, cell.train.micro_batch) = (1, 64, 384);
        cell.data = documents(dir.path(), 4000);
        let plan = plan(&cell);
        let barrier = std::sync::Barrier::new(ranks);
        with_ranks(&cell, &plan, cpus(&cell), |rank| {
            let first = rank.step().map(|_| ());
            barrier.wait();
            WATCHING.store(true, Ordering::SeqCst);
            let steps = first.and_then(|()| rank.step().map(|_| ()));
            barrier.wait();
            WATCHING.store(false, Ordering::SeqCst);
            steps
        })
        .unwrap();
        let found = (LARGE_BLOCKS.load(Ordering::SeqCst), LARGEST.load(Ordering::SeqCst));
        assert_eq!(found.0, 0, "documents: {}: blocks over 64 KiB; the largest has {} bytes", strategy.name(), found.1);
    }
}

/// Steps that are watched, one by one.
const WATCHED: usize = 5;

/// Blocks that all ranks together take in each of the watched steps, after two.
fn blocks(cell: &Cell) -> [usize; WATCHED] {
    let plan = plan(cell);
    let barrier = std::sync::Barrier::new(cell.parallel.ranks);
    let counts = Mutex::new([0; WATCHED]);
    with_ranks(cell, &plan, cpus(cell), |rank| {
        (0..2).try_for_each(|_| rank.step().map(drop))?;
        // A thread that these steps have started takes a block when it first runs, which ranks that are busy on all cores put off.
        std::thread::sleep(std::time::Duration::from_millis(50));
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

fn a_step_takes_nothing_from_the_heap_after_warm_up() {
    // The watch itself works.
    BLOCKS.store(0, Ordering::SeqCst);
    WATCHING.store(true, Ordering::SeqCst);
    drop(std::hint::black_box(vec![1u8; 3]));
    WATCHING.store(false, Ordering::SeqCst);
    assert_eq!(BLOCKS.load(Ordering::SeqCst), 1);

    SHOWING.store(std::env::var_os("ZBENCH_SHOW_BLOCKS").is_some(), Ordering::SeqCst);
    let strategies = [(Strategy::Ddp, 1), (Strategy::Ddp, 2), (Strategy::Zero1, 2), (Strategy::Fsdp, 2)];
    let mut found = Vec::new();
    let precisions = [Precision::F32, Precision::mixed(DType::Bf16)];
    for [precision, threads, way] in tiers::combinations("heap::nothing_after_warm_up", [2, 2, strategies.len()]) {
        let (precision, threads, (strategy, ranks)) = (precisions[precision], threads + 1, strategies[way]);
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
