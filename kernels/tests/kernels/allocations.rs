//! No kernel takes more than a little from the heap.

use crate::harness::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use zbench_kernels::*;
use zbench_kernels_testing::ByName;

/// The largest block that a kernel may take outside the arena.
const MOST: usize = 64 << 10;

thread_local! {
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

/// Notes the largest block that this thread took.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: every call is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = LARGEST.try_with(|largest| largest.set(largest.get().max(layout.size())));
        // SAFETY: as asked.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as asked.
        unsafe { System.dealloc(ptr, layout) }
    }
}

/// The largest block `call` takes on this thread.
fn largest(call: impl FnOnce()) -> usize {
    LARGEST.set(0);
    call();
    LARGEST.get()
}

#[test]
fn no_kernel_takes_a_large_block_from_the_heap() {
    // The calling thread does a share of everything, so it would be seen; workers run the same code.
    let cpu = &CPUS[1];
    for dtype in FLOATS {
        let n = 512;
        let square = |seed| Tensor::normal(dtype, n * n, seed);
        let (a, b, mut c, mut d) = (square(1), square(2), square(3), square(4));
        let gemm = Gemm {
            m: n,
            n,
            k: n,
            trans_a: true,
            trans_b: false,
            alpha: 1.0,
            accumulate: true,
            a: dtype,
            b: dtype,
            c: dtype,
            ..Gemm::DENSE
        };
        let attention = Attention {
            batch: 1,
            seq: n,
            kv_seq: n,
            causal: true,
            heads: 8,
            kv_heads: 8,
            head_dim: 64,
            scale: 0.1,
            window: None,
            alibi: None,
            dtype,
        };
        let ops = [Op::Gemm(gemm), Op::Attention(attention), Op::AttentionBackward(attention)];
        let [mut w0, mut w1, mut w2] = ops.each_ref().map(|op| Tensor::workspace(cpu, op));
        let mut lse = Tensor::filled(DType::F32, n * n, 0.0);
        let (mut e, mut f) = (square(5), square(6));
        let norm = RmsNorm { rows: n, cols: n, eps: 1e-5, dtype, gradient: Some(dtype) };
        let ids = Tensor::ids(&vec![3; n]);
        let table = Embedding { rows: n, cols: n, vocab: VocabPart::whole(n), padding: None, dtype };
        let mut used = 0;
        let mut note = |call: &mut dyn FnMut() -> Result<()>| used = used.max(largest(|| call().unwrap()));
        note(&mut || cpu.gemm(&gemm, a.view(), b.view(), c.view_mut(), w0.view_mut()));
        note(&mut || {
            let (out, ws) = (c.view_mut(), w1.view_mut());
            cpu.attention(&attention, a.view(), b.view(), a.view(), out, lse.view_mut(), ws)
        });
        note(&mut || {
            let (q, k, v, out, l) = (a.view(), b.view(), a.view(), c.view(), lse.view());
            let (dq, dk, dv, ws) = (d.view_mut(), e.view_mut(), f.view_mut(), w2.view_mut());
            cpu.attention_backward(&attention, q, k, v, out, l, b.view(), dq, dk, dv, ws)
        });
        note(&mut || cpu.rms_norm(&norm, a.view(), b.view(), c.view_mut(), lse.view_mut()));
        note(&mut || {
            let dw = Some(e.view_mut());
            cpu.rms_norm_backward(&norm, a.view(), b.view(), lse.view(), c.view(), d.view_mut(), dw)
        });
        note(&mut || cpu.embedding(&table, ids.view(), a.view(), c.view_mut()));
        note(&mut || cpu.embedding_backward(&table, ids.view(), a.view(), c.view_mut()));
        note(&mut || {
            cpu.swiglu(&GatedActivation { len: n * n, act: Activation::Silu, dtype }, a.view(), b.view(), c.view_mut())
        });
        note(&mut || cpu.reduce(ReduceOp::Sum, &[a.view(), b.view(), a.view()], true, c.view_mut()));
        note(&mut || cpu.sum_squares(a.view()).map(drop));
        let route = Route { rows: n, experts: n, top: 8, normalised: false, rounded: true, dtype };
        let slots = Slots { rows: n, top: 8, experts: n, cols: n / 8, dtype };
        let mut indices = Tensor::ids(&vec![0; route.indices_len()]);
        let [mut weights, mut dweights] = [1, 2].map(|seed| Tensor::normal(DType::F32, route.slots(), seed));
        note(&mut || cpu.route(&route, a.view(), weights.view_mut(), indices.view_mut()));
        note(&mut || {
            cpu.route_backward(&route, a.view(), indices.view(), dweights.view(), c.view_mut())?;
            cpu.dispatch(&slots, indices.view(), a.view(), c.view_mut())?;
            cpu.combine(
                &Combine { slots, weighted: true, accumulate: true },
                indices.view(),
                a.view(),
                Some(weights.view()),
                c.view_mut(),
            )?;
            let (x, dx) = (d.view_mut(), e.view_mut());
            cpu.weigh(&slots, indices.view(), weights.view(), x, dx, dweights.view_mut())
        });
        let (form, groups) = (Grouped::Forward, 2);
        let gemm = GroupedGemm {
            rows: n,
            groups,
            out: n,
            input: n / 2,
            form,
            accumulate: false,
            a: dtype,
            b: dtype,
            c: dtype,
        };
        let mut scratch = Tensor::workspace(cpu, &Op::GroupedGemm(gemm));
        let offsets = Tensor::ids(&[0, 100, n as u32]);
        note(&mut || {
            let (a, b, c, ws) = (a.view(), b.view(), c.view_mut(), scratch.view_mut());
            cpu.grouped_gemm(&gemm, offsets.view(), a, b, c, ws)
        });
        note(&mut || cpu.cast(a.view(), c.view_mut()));
        assert!(used <= MOST, "{dtype}: {used} bytes");
    }
}

#[test]
fn the_allocator_would_see_a_large_block() {
    assert!(largest(|| drop(std::hint::black_box(vec![1u8; 2 * MOST]))) >= 2 * MOST);
}

#[test]
fn what_collectives_call_takes_nothing_from_the_heap() {
    let (cpu, len) = (&CPUS[1], 20_000);
    let op = Quantize { format: QuantFormat::Int4, block: 333 };
    let (mut values, mut scales) = (vec![0i8; op.values_len(len)], vec![0f32; op.scales_len(len)]);
    for dtype in [DType::F32, DType::Bf16, DType::F16, DType::I32, DType::I8] {
        let made = |seed| match dtype {
            DType::I32 => Tensor::exactly(&vec![seed as i32 * 31; len]),
            DType::I8 => Tensor::exactly(&vec![seed as i8 * 9; len]),
            _ => Tensor::normal(dtype, len, seed),
        };
        let (sources, mut dst) = ((1..=13).map(made).collect::<Vec<_>>(), made(0));
        let views: Vec<View> = sources.iter().map(Tensor::view).collect();
        for (op, count) in ReduceOp::ALL.into_iter().flat_map(|op| [2, 5, 13].map(|count| (op, count))) {
            let took = largest(|| cpu.reduce(op, &views[..count], false, dst.view_mut()).unwrap());
            assert_eq!(took, 0, "{op} of {count} {dtype}");
        }
        if dtype.is_float() {
            let (v, s) = (ViewMut::of(&mut values), ViewMut::of(&mut scales));
            assert_eq!(largest(|| cpu.quantize(&op, views[0], v, s).unwrap()), 0, "quantize {dtype}");
            let (v, s) = (View::of(&values), View::of(&scales));
            assert_eq!(largest(|| cpu.dequantize(&op, v, s, dst.view_mut(), true).unwrap()), 0, "dequantize {dtype}");
        }
    }
}
