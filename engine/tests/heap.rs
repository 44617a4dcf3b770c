//! A step asks the arena for its memory, not the heap: no block over 64 KiB is made outside it. Scratch that a library makes
//! for itself (the packing buffers of the `gemm` crate) is told apart by the marker that every call into it carries.

#[path = "training/support.rs"]
#[allow(dead_code, reason = "the support serves several test binaries")]
mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use support::*;
use zbench_engine::config::*;
use zbench_engine::train::with_ranks;
use zbench_kernels::{DType, scratch};

/// Bytes from which a block counts.
const LARGE: usize = 64 << 10;

struct Counting;

static WATCHING: AtomicBool = AtomicBool::new(false);
static LARGEST: AtomicUsize = AtomicUsize::new(0);
static BLOCKS: AtomicUsize = AtomicUsize::new(0);
static LIBRARY: AtomicUsize = AtomicUsize::new(0);

fn note(bytes: usize) {
    if bytes <= LARGE || !WATCHING.load(Ordering::Relaxed) {
        return;
    }
    if scratch::in_library() {
        LIBRARY.fetch_add(1, Ordering::Relaxed);
    } else {
        LARGEST.fetch_max(bytes, Ordering::Relaxed);
        BLOCKS.fetch_add(1, Ordering::Relaxed);
    }
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

#[test]
fn no_large_block_is_made_in_a_step_outside_the_arena() {
    // The watch itself works.
    WATCHING.store(true, Ordering::SeqCst);
    drop(std::hint::black_box(vec![1u8; LARGE + 1]));
    WATCHING.store(false, Ordering::SeqCst);
    assert_eq!((BLOCKS.swap(0, Ordering::SeqCst), LARGEST.swap(0, Ordering::SeqCst)), (1, LARGE + 1));

    for (strategy, ranks) in [(Strategy::Ddp, 1), (Strategy::Zero3, 2), (Strategy::Hsdp, 4)] {
        for precision in [Precision::F32, Precision::mixed(DType::Bf16)] {
            for threads in [1, 2] {
                let (flash, naive) = (AttentionKind::Flash, AttentionKind::Naive);
                for (attention, base) in [(flash, None), (naive, None), (flash, Some(Base::Nf4))] {
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
                    let found = (BLOCKS.load(Ordering::SeqCst), LARGEST.load(Ordering::SeqCst));
                    let what = format!("{} {precision:?} {threads} threads {attention:?} {base:?}", strategy.name());
                    assert_eq!(found, (0, 0), "{what}: blocks over 64 KiB, and the largest");
                }
            }
        }
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
        let found = (BLOCKS.load(Ordering::SeqCst), LARGEST.load(Ordering::SeqCst));
        assert_eq!(found, (0, 0), "documents: {}: blocks over 64 KiB, and the largest", strategy.name());
    }
    assert!(LIBRARY.load(Ordering::SeqCst) > 0, "the gemm crate packs somewhere; its marker was never seen");
}
