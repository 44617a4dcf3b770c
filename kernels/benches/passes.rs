//! Every pass over rows and elements at the shapes of the preset llama-32m (2,048 tokens, hidden 512, MLP 1,376, vocabulary
//! 8,192): time, and bytes a second beside the rate of a triad, which is printed first. A line is named after what is to be
//! done, so that one kernel in the place of two is compared with both.
//!
//! `cargo bench -p zbench-kernels --bench passes`; docs/cpu-kernels.md has the results and how they were made.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use zbench_kernels::*;
use zbench_kernels_testing::ByName;

const TOKENS: usize = 2048;
const SEQ: usize = 512;
const HIDDEN: usize = 512;
const WIDE: usize = 1376;
const VOCAB: usize = 8192;
const HEADS: [usize; 2] = [8, 4];
const HEAD_DIM: usize = 64;
/// Rows of logits at a time.
const LOGIT_ROWS: usize = 1024;
/// Parameters of an update, several times the last cache.
const PARAMETERS: usize = 8 << 20;

/// Kernels on all threads of the machine, and their memory.
struct Bench {
    cpu: Cpu,
    arena: Arena,
}

impl Bench {
    fn new() -> Bench {
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
        Bench { cpu: Cpu::new(threads), arena: Arena::host(None).expect("address space") }
    }

    fn normal(&self, dtype: DType, len: usize, seed: u64) -> Buffer {
        let mut buffer = self.arena.alloc(Category::Workspace, dtype, len).expect("memory for a benchmark");
        let op = Normal { len, std: 1.0, seed, first: 0, dtype };
        self.cpu.normal(&op, buffer.view_mut()).expect("a float type");
        buffer
    }

    fn several<const N: usize>(&self, dtype: DType, len: usize) -> [Buffer; N] {
        std::array::from_fn(|i| self.normal(dtype, len, i as u64))
    }
}

fn line(c: &mut Criterion, name: &str, of: impl std::fmt::Display, bytes: u64, mut call: impl FnMut() -> Result<()>) {
    let mut group = c.benchmark_group("passes");
    group.throughput(Throughput::Bytes(bytes));
    group.bench_function(BenchmarkId::new(name, of), |b| b.iter(|| call().expect("operands that fit")));
    group.finish();
}

fn ceiling(_: &mut Criterion) {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    if let Some(rates) = zbench_kernels::cpu::peak::memory(threads, 64 << 20) {
        println!(
            "passes/triad {:.2} GB/s, copy {:.2}, read {:.2}",
            rates.triad / 1e9,
            rates.copy / 1e9,
            rates.read / 1e9
        );
    }
}

fn norms(c: &mut Criterion) {
    let b = Bench::new();
    let cpu = &b.cpu;
    for dtype in [DType::F32, DType::Bf16] {
        let [x, dy, mut y] = b.several(dtype, TOKENS * HIDDEN);
        let (w, bias) = (b.normal(dtype, HIDDEN, 7), b.normal(dtype, HIDDEN, 8));
        let [mut dw, mut db] = b.several(DType::F32, HIDDEN);
        let mut saved = b.normal(DType::F32, 2 * TOKENS, 9);
        let op = RmsNorm { rows: TOKENS, cols: HIDDEN, eps: 1e-5, dtype, gradient: Some(DType::F32) };
        line(c, "rms_norm", dtype, Op::RmsNorm(op).bytes(), || {
            cpu.rms_norm(&op, x.view(), w.view(), y.view_mut(), saved.view_mut())
        });
        for (name, op) in [("rms_norm_backward", op), ("rms_norm_backward_frozen", RmsNorm { gradient: None, ..op })] {
            line(c, name, dtype, Op::RmsNormBackward(op).bytes(), || {
                let dw = op.gradient.map(|_| dw.view_mut());
                cpu.rms_norm_backward(&op, x.view(), w.view(), saved.view(), dy.view(), y.view_mut(), dw)
            });
        }
        let op = LayerNorm { rows: TOKENS, cols: HIDDEN, eps: 1e-5, bias: true, dtype, gradient: Some(DType::F32) };
        line(c, "layer_norm", dtype, Op::LayerNorm(op).bytes(), || {
            cpu.layer_norm(&op, x.view(), w.view(), Some(bias.view()), y.view_mut(), saved.view_mut())
        });
        line(c, "layer_norm_backward", dtype, Op::LayerNormBackward(op).bytes(), || {
            let (dw, db) = (Some(dw.view_mut()), Some(db.view_mut()));
            cpu.layer_norm_backward(&op, x.view(), w.view(), saved.view(), dy.view(), y.view_mut(), dw, db)
        });
        let op = RowInvNorm { rows: TOKENS, cols: HIDDEN, dtype };
        line(c, "inverse_norms", dtype, Op::RowInvNorm(op).bytes(), || {
            cpu.inverse_norms(&op, x.view(), saved.view_mut())
        });
        let op = BiasAdd { rows: TOKENS, period: 1, cols: HIDDEN, dtype };
        line(c, "add_rows", dtype, Op::BiasAdd(op).bytes(), || cpu.add_rows(&op, w.view(), y.view_mut()));
        line(c, "add_rows_backward", dtype, Op::BiasAddBackward(op).bytes(), || {
            cpu.add_rows_backward(&op, dy.view(), dw.view_mut())
        });
        let op = ScaleColumns { rows: TOKENS, cols: HIDDEN, dtype };
        line(c, "mul_rows_backward", dtype, Op::ScaleColumnsBackward(op).bytes(), || {
            cpu.mul_rows_backward(&op, x.view(), dy.view(), dw.view_mut())
        });
    }
}

/// Queries and keys of a block.
fn rope(c: &mut Criterion) {
    let b = Bench::new();
    for dtype in [DType::F32, DType::Bf16] {
        let [mut q, mut k] = HEADS.map(|heads| b.normal(dtype, TOKENS * heads * HEAD_DIM, 1));
        let [mut cos, mut sin] = [(); 2].map(|()| b.normal(DType::F32, SEQ * HEAD_DIM / 2, 1));
        for (i, (c, s)) in cos
            .view_mut()
            .as_slice_mut::<f32>()
            .unwrap()
            .iter_mut()
            .zip(sin.view_mut().as_slice_mut::<f32>().unwrap())
            .enumerate()
        {
            (*s, *c) = (i as f32 * 0.7).sin_cos();
        }
        let [of_q, of_k] =
            HEADS.map(|heads| Rope { rows: TOKENS, seq: SEQ, heads, head_dim: HEAD_DIM, inverse: false, dtype });
        line(c, "rope", dtype, Op::Rope(of_q).bytes() + Op::Rope(of_k).bytes(), || {
            b.cpu.rope(&of_q, q.view_mut(), cos.view(), sin.view())?;
            b.cpu.rope(&of_k, k.view_mut(), cos.view(), sin.view())
        });
    }
}

fn activations(c: &mut Criterion) {
    let b = Bench::new();
    let (cpu, len) = (&b.cpu, TOKENS * WIDE);
    for dtype in [DType::F32, DType::Bf16] {
        let [gate, up, dact, mut y, mut dup] = b.several(dtype, len);
        for (name, act) in [("silu", Activation::Silu), ("gelu", Activation::Gelu), ("gelu_tanh", Activation::GeluTanh)]
        {
            let op = GatedActivation { len, act, dtype };
            line(c, &format!("gated_{name}"), dtype, Op::GatedActivation(op).bytes(), || {
                cpu.swiglu(&op, gate.view(), up.view(), y.view_mut())
            });
            line(c, &format!("gated_{name}_backward"), dtype, Op::GatedActivationBackward(op).bytes(), || {
                cpu.swiglu_backward(&op, gate.view(), up.view(), dact.view(), y.view_mut(), dup.view_mut())
            });
        }
        let op = PointwiseActivation { len, act: Activation::Gelu, dtype };
        line(c, "activate", dtype, Op::PointwiseActivation(op).bytes(), || {
            cpu.activate(&op, gate.view(), y.view_mut())
        });
        line(c, "activate_backward", dtype, Op::PointwiseActivationBackward(op).bytes(), || {
            cpu.activate_backward(&op, gate.view(), dact.view(), y.view_mut())
        });
        let op = Dropout { len, p: 0.1, seed: 1, first: 0, dtype };
        line(c, "dropout", dtype, Op::Dropout(op).bytes(), || cpu.dropout(&op, gate.view(), y.view_mut()));
    }
}

fn tables(c: &mut Criterion) {
    let b = Bench::new();
    let ids: Vec<u32> = (0..TOKENS).map(|i| (i * i * 2654435761 % VOCAB) as u32).collect();
    for dtype in [DType::F32, DType::Bf16] {
        let (table, mut dtable) = (b.normal(dtype, VOCAB * HIDDEN, 1), b.normal(DType::F32, VOCAB * HIDDEN, 2));
        let mut x = b.normal(dtype, TOKENS * HIDDEN, 3);
        let op = Embedding { rows: TOKENS, cols: HIDDEN, vocab: VocabPart::whole(VOCAB), padding: None, dtype };
        line(c, "embedding", dtype, Op::Embedding(op).bytes(), || {
            b.cpu.embedding(&op, View::of(&ids), table.view(), x.view_mut())
        });
        line(c, "embedding_backward", dtype, Op::EmbeddingBackward(op).bytes(), || {
            b.cpu.embedding_backward(&op, View::of(&ids), x.view(), dtable.view_mut())
        });
    }
}

/// From logits to their gradient in the compute type. The logits' values drift to zero from call to call; the work does not.
fn loss(c: &mut Criterion) {
    let b = Bench::new();
    let len = LOGIT_ROWS * VOCAB;
    let targets: Vec<u32> = (0..LOGIT_ROWS).map(|i| (i * 37 % VOCAB) as u32).collect();
    let mut logits = b.normal(DType::F32, len, 1);
    let mut losses = b.normal(DType::F32, LOGIT_ROWS, 1);
    for (gradient, bytes) in [(DType::F32, 8 * len as u64), (DType::Bf16, 6 * len as u64)] {
        let op = CrossEntropy { rows: LOGIT_ROWS, vocab: VOCAB, scale: 1.0, dtype: DType::F32, gradient, pitch: 0 };
        line(c, "loss", gradient, bytes, || {
            b.cpu.cross_entropy(&op, logits.view_mut(), View::of(&targets), losses.view_mut())
        });
    }
}

fn updates(c: &mut Criterion) {
    let b = Bench::new();
    let len = PARAMETERS;
    let op = |parameters, gradients, moments| AdamW {
        len,
        lr: 1e-3,
        beta1: 0.9,
        beta2: 0.95,
        eps: 1e-8,
        weight_decay: 0.1,
        step: 1,
        grad_scale: 1.0,
        clip: 1.0,
        parameters,
        gradients,
        moments,
        rounding: Rounding::Nearest,
        copy: None,
    };
    let (f32, bf16) = (DType::F32, DType::Bf16);
    let [mut p, mut m, mut v, g] = b.several(f32, len);
    b.cpu.fill(v.view_mut(), 1.0).expect("f32");
    let mut home = b.normal(bf16, len, 1);
    let all = op(f32, f32, f32);
    line(c, "adamw", "f32", Op::AdamW(all).bytes(), || {
        b.cpu.adamw(&all, p.view_mut(), m.view_mut(), v.view_mut(), g.view(), None)
    });
    let copied = AdamW { copy: Some(bf16), ..all };
    line(c, "adamw", "f32 to bf16", Op::AdamW(copied).bytes(), || {
        b.cpu.adamw(&copied, p.view_mut(), m.view_mut(), v.view_mut(), g.view(), Some(home.view_mut()))
    });
    let [mut p, mut m, mut v, g] = b.several(bf16, len);
    b.cpu.fill(v.view_mut(), 1.0).expect("bf16");
    let all = op(bf16, bf16, bf16);
    line(c, "adamw", "bf16", Op::AdamW(all).bytes(), || {
        b.cpu.adamw(&all, p.view_mut(), m.view_mut(), v.view_mut(), g.view(), None)
    });
}

fn moves(c: &mut Criterion) {
    let b = Bench::new();
    let (cpu, f32, bf16) = (&b.cpu, DType::F32, DType::Bf16);
    for (size, len) in [("large", PARAMETERS), ("small", TOKENS * HIDDEN)] {
        let [wide, mut to_wide] = b.several(f32, len);
        let [narrow, mut to_narrow] = b.several(bf16, len);
        let bytes = |per: usize| (per * len) as u64;
        line(c, "fill", format!("f32 {size}"), bytes(4), || cpu.fill(to_wide.view_mut(), 0.0));
        line(c, "fill", format!("bf16 {size}"), bytes(2), || cpu.fill(to_narrow.view_mut(), 0.0));
        line(c, "cast", format!("f32 to f32 {size}"), bytes(8), || cpu.cast(wide.view(), to_wide.view_mut()));
        line(c, "cast", format!("bf16 to bf16 {size}"), bytes(4), || cpu.cast(narrow.view(), to_narrow.view_mut()));
        line(c, "cast", format!("f32 to bf16 {size}"), bytes(6), || cpu.cast(wide.view(), to_narrow.view_mut()));
        line(c, "cast", format!("bf16 to f32 {size}"), bytes(6), || cpu.cast(narrow.view(), to_wide.view_mut()));
        line(c, "accumulate", format!("f32 to f32 {size}"), bytes(12), || {
            cpu.accumulate(0.5, wide.view(), to_wide.view_mut())
        });
        line(c, "accumulate", format!("bf16 to f32 {size}"), bytes(10), || {
            cpu.accumulate(0.5, narrow.view(), to_wide.view_mut())
        });
        line(c, "accumulate", format!("bf16 to bf16 {size}"), bytes(6), || {
            cpu.accumulate(0.5, narrow.view(), to_narrow.view_mut())
        });
        line(c, "add", format!("bf16 {size}"), bytes(6), || {
            cpu.add(narrow.view(), narrow.view(), to_narrow.view_mut())
        });
        line(c, "scale", format!("bf16 {size}"), bytes(4), || cpu.scale(1.0, to_narrow.view_mut()));
        line(c, "sum_squares", format!("f32 {size}"), bytes(4), || cpu.sum_squares(wide.view()).map(drop));
        line(c, "sum_squares", format!("bf16 {size}"), bytes(2), || cpu.sum_squares(narrow.view()).map(drop));
        line(c, "reduce", format!("f32 {size}"), bytes(12), || {
            cpu.reduce(ReduceOp::Sum, &[wide.view(), wide.view()], false, to_wide.view_mut())
        });
        line(c, "reduce", format!("bf16 to f32 add {size}"), bytes(10), || {
            cpu.reduce(ReduceOp::Sum, &[narrow.view()], true, to_wide.view_mut())
        });
    }
}

criterion_group!(benches, ceiling, norms, rope, activations, tables, loss, updates, moves);
criterion_main!(benches);
