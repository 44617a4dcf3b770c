//! The kernels of the cores, at the shapes of the preset llama-32m and at round sizes.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use zbench_kernels::*;
use zbench_kernels_testing::ByName;

/// All threads of the machine.
fn cpu() -> Cpu {
    Cpu::new(std::thread::available_parallelism().map_or(1, |n| n.get()))
}

fn buffer(arena: &Arena, cpu: &Cpu, dtype: DType, len: usize) -> Buffer {
    let mut buffer = arena.alloc(Category::Workspace, dtype, len).expect("the machine's memory holds a benchmark");
    let op = Normal { len, std: 1.0, seed: 1, first: 0, dtype };
    cpu.normal(&op, buffer.view_mut()).expect("a float type");
    buffer
}

fn gemm(c: &mut Criterion) {
    let (cpu, arena) = (cpu(), Arena::host(None).expect("address space"));
    let mut group = c.benchmark_group("gemm");
    for (m, n, k) in [(1024, 1024, 1024), (2048, 512, 512), (2048, 1376, 512), (2048, 512, 1376), (512, 1376, 2048)] {
        for dtype in [DType::F32, DType::Bf16] {
            let op = Gemm {
                m,
                n,
                k,
                trans_a: false,
                trans_b: true,
                alpha: 1.0,
                accumulate: false,
                a: dtype,
                b: dtype,
                c: dtype,
                ..Gemm::DENSE
            };
            let [a, b, mut out] = [m * k, n * k, m * n].map(|len| buffer(&arena, &cpu, dtype, len));
            let mut scratch = buffer(&arena, &cpu, DType::F32, cpu.workspace(&Op::Gemm(op)));
            group.throughput(Throughput::Elements(Op::Gemm(op).flops()));
            group.bench_function(BenchmarkId::new(dtype.name(), format!("{m}x{n}x{k}")), |bench| {
                bench.iter(|| cpu.gemm(&op, a.view(), b.view(), out.view_mut(), scratch.view_mut()))
            });
        }
    }
    group.finish();
}

/// The shape of llama-32m, and long sequences as published figures have them.
fn attention(c: &mut Criterion) {
    let (cpu, arena) = (cpu(), Arena::host(None).expect("address space"));
    let mut group = c.benchmark_group("attention");
    for (batch, seq, heads, kv_heads, head_dim) in [(4, 512, 8, 4, 64), (1, 4096, 8, 8, 64), (1, 4096, 8, 8, 128)] {
        for dtype in [DType::F32, DType::Bf16] {
            let scale = 1.0 / (head_dim as f64).sqrt();
            let op = Attention {
                batch,
                seq,
                kv_seq: seq,
                causal: true,
                heads,
                kv_heads,
                head_dim,
                scale,
                window: None,
                alibi: None,
                dtype,
            };
            let (q, kv) = (batch * seq * heads * head_dim, batch * seq * kv_heads * head_dim);
            let [qs, mut out, dout, mut dq] = [(); 4].map(|()| buffer(&arena, &cpu, dtype, q));
            let [ks, vs, mut dk, mut dv] = [(); 4].map(|()| buffer(&arena, &cpu, dtype, kv));
            let mut lse = buffer(&arena, &cpu, DType::F32, batch * heads * seq);
            let (forward, backward) = (Op::Attention(op), Op::AttentionBackward(op));
            let mut scratch = buffer(&arena, &cpu, DType::F32, cpu.workspace(&forward).max(cpu.workspace(&backward)));
            let shape = format!("{batch}x{seq}, {heads} of {kv_heads} heads of {head_dim}, {dtype}");
            group.throughput(Throughput::Elements(forward.flops()));
            group.bench_function(BenchmarkId::new("forward", &shape), |bench| {
                bench.iter(|| {
                    let (o, l) = (out.view_mut(), lse.view_mut());
                    cpu.attention(&op, qs.view(), ks.view(), vs.view(), o, l, scratch.view_mut())
                })
            });
            group.throughput(Throughput::Elements(backward.flops()));
            group.bench_function(BenchmarkId::new("backward", &shape), |bench| {
                bench.iter(|| {
                    let (q, k, v, o, l) = (qs.view(), ks.view(), vs.view(), out.view(), lse.view());
                    let (dq, dk, dv) = (dq.view_mut(), dk.view_mut(), dv.view_mut());
                    cpu.attention_backward(&op, q, k, v, o, l, dout.view(), dq, dk, dv, scratch.view_mut())
                })
            });
        }
    }
    group.finish();
}

fn passes(c: &mut Criterion) {
    let (cpu, arena) = (cpu(), Arena::host(None).expect("address space"));
    let mut group = c.benchmark_group("passes");
    let len = 8 << 20;
    let op = AdamW {
        len,
        lr: 1e-3,
        beta1: 0.9,
        beta2: 0.95,
        eps: 1e-8,
        weight_decay: 0.1,
        step: 1,
        grad_scale: 1.0,
        clip: 1.0,
        parameters: DType::F32,
        gradients: DType::F32,
        moments: DType::F32,
        rounding: Rounding::Nearest,
        copy: None,
    };
    let [mut p, mut m, mut v, g] = [(); 4].map(|()| buffer(&arena, &cpu, DType::F32, len));
    cpu.fill(v.view_mut(), 1.0).expect("f32");
    group.throughput(Throughput::Bytes(Op::AdamW(op).bytes()));
    group.bench_function("adamw", |b| {
        b.iter(|| cpu.adamw(&op, p.view_mut(), m.view_mut(), v.view_mut(), g.view(), None))
    });
    for dtype in [DType::F32, DType::Bf16] {
        let norm = RmsNorm { rows: 2048, cols: 512, eps: 1e-5, dtype, gradient: Some(DType::F32) };
        let [x, dy, mut y] = [(); 3].map(|()| buffer(&arena, &cpu, dtype, 2048 * 512));
        let (w, mut dw) = (buffer(&arena, &cpu, dtype, 512), buffer(&arena, &cpu, DType::F32, 512));
        let mut rstd = buffer(&arena, &cpu, DType::F32, 2048);
        group.throughput(Throughput::Bytes(Op::RmsNorm(norm).bytes()));
        group.bench_function(BenchmarkId::new("rms_norm", dtype), |b| {
            b.iter(|| cpu.rms_norm(&norm, x.view(), w.view(), y.view_mut(), rstd.view_mut()))
        });
        group.throughput(Throughput::Bytes(Op::RmsNormBackward(norm).bytes()));
        group.bench_function(BenchmarkId::new("rms_norm_backward", dtype), |b| {
            b.iter(|| {
                let (dx, dw) = (y.view_mut(), Some(dw.view_mut()));
                cpu.rms_norm_backward(&norm, x.view(), w.view(), rstd.view(), dy.view(), dx, dw)
            })
        });
        let swiglu = GatedActivation { len: 2048 * 512, act: Activation::Silu, dtype };
        group.throughput(Throughput::Bytes(Op::GatedActivation(swiglu).bytes()));
        group.bench_function(BenchmarkId::new("swiglu", dtype), |b| {
            b.iter(|| cpu.swiglu(&swiglu, x.view(), dy.view(), y.view_mut()))
        });
    }
    let loss = CrossEntropy { rows: 512, vocab: 8192, scale: 1.0, dtype: DType::F32, gradient: DType::F32, pitch: 0 };
    let mut losses = buffer(&arena, &cpu, DType::F32, 512);
    let targets = vec![7u32; 512];
    group.throughput(Throughput::Bytes(Op::CrossEntropy(loss).bytes()));
    group.bench_function("cross_entropy", |b| {
        b.iter(|| cpu.cross_entropy(&loss, p.view_mut(), View::of(&targets), losses.view_mut()))
    });
    group.throughput(Throughput::Bytes(4 * len as u64));
    group.bench_function("sum_squares", |b| b.iter(|| cpu.sum_squares(g.view())));
    group.finish();
}

criterion_group!(benches, gemm, attention, passes);
criterion_main!(benches);
