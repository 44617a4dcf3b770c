//! Speed of attention: `attention_speed THREADS SEQ DTYPE HEADS KV DIM...`
use std::time::Instant;
use zbench_kernels::{Arena, Attention, Cpu, DType, Kernels, Op};
use zbench_kernels_testing::ByName;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let n = |i: usize| args[i].parse::<usize>().unwrap();
    let (threads, seq) = (n(0), n(1));
    let dtype = if args[2] == "bf16" { DType::Bf16 } else { DType::F32 };
    let batch = std::env::var("BATCH").map_or(1, |b| b.parse().unwrap());
    let cpu = match std::env::var("PATHNAME") {
        Ok(name) => Cpu::with_instructions(threads, &name).unwrap(),
        Err(_) => Cpu::new(threads),
    };
    for dim in (5..args.len()).map(n) {
        let (heads, kv_heads) = (n(3), n(4));
        let op = Attention {
            batch,
            seq,
            kv_seq: seq,
            causal: true,
            heads,
            kv_heads,
            head_dim: dim,
            scale: 1.0 / (dim as f64).sqrt(),
            window: None,
            alibi: None,
            dtype,
        };
        let arena = Arena::host(None).unwrap();
        let buffer = |dtype, len: usize, seed| {
            let mut b = arena.alloc(zbench_kernels::Category::Workspace, dtype, len).unwrap();
            let normal = zbench_kernels::Normal { len, std: 1.0, seed, first: 0, dtype };
            cpu.normal(&normal, b.view_mut()).unwrap();
            b
        };
        let (q, kv) = (batch * seq * heads * dim, batch * seq * kv_heads * dim);
        let (qs, ks, vs, dout) = (buffer(dtype, q, 1), buffer(dtype, kv, 2), buffer(dtype, kv, 3), buffer(dtype, q, 4));
        let (mut out, mut dq, mut dk, mut dv) =
            (buffer(dtype, q, 5), buffer(dtype, q, 5), buffer(dtype, kv, 5), buffer(dtype, kv, 5));
        let mut lse = buffer(DType::F32, batch * heads * seq, 5);
        let (f, b) = (Op::Attention(op), Op::AttentionBackward(op));
        let mut scratch = buffer(DType::F32, cpu.workspace(&f).max(cpu.workspace(&b)), 6);
        let mib = |op: &Op| cpu.workspace(op) as f64 * 4.0 / (1 << 20) as f64;
        let (mut forward, mut both) = (vec![], vec![]);
        let start = Instant::now();
        let seconds: f64 = std::env::var("SECONDS_EACH").map_or(2.0, |s| s.parse().unwrap());
        while forward.len() < 3 || start.elapsed().as_secs_f64() < seconds {
            let t = Instant::now();
            cpu.attention(&op, qs.view(), ks.view(), vs.view(), out.view_mut(), lse.view_mut(), scratch.view_mut())
                .unwrap();
            forward.push(t.elapsed().as_secs_f64());
            if std::env::var("ONLY").is_ok() {
                continue;
            }
            let (o, l, d) = (out.view(), lse.view(), dout.view());
            let (dq, dk, dv) = (dq.view_mut(), dk.view_mut(), dv.view_mut());
            cpu.attention_backward(&op, qs.view(), ks.view(), vs.view(), o, l, d, dq, dk, dv, scratch.view_mut())
                .unwrap();
            both.push(t.elapsed().as_secs_f64());
        }
        let median = |v: &mut Vec<f64>| {
            v.sort_by(f64::total_cmp);
            v[v.len() / 2]
        };
        both.push(f64::NAN);
        let (tf, tb) = (median(&mut forward), median(&mut both));
        println!(
            "{} {threads}t {dtype} T{seq} {heads}/{kv_heads} D{dim}: forward {:.1} ms {:.1} GFLOP/s, both {:.1} ms {:.1} GFLOP/s; workspace {:.1} {:.1} MiB",
            cpu.name(),
            tf * 1e3,
            f.flops() as f64 / tf / 1e9,
            tb * 1e3,
            (f.flops() + b.flops()) as f64 / tb / 1e9,
            mib(&f),
            mib(&b)
        );
    }
}
