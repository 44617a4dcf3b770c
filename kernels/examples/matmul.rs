use std::time::Instant;
use zbench_kernels::*;
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let threads: usize = args[1].parse().unwrap();
    let paths: Vec<&str> = args[2].split(',').collect();
    let arena = Arena::host(None).unwrap();
    let peak = peak::measure(threads, DType::Bf16, 0.2).unwrap() / 1e9;
    println!("peak bf16 {peak:.0} f32 {:.0}", peak::measure(threads, DType::F32, 0.2).unwrap() / 1e9);
    for (m, n, k) in [
        (2048, 2048, 2048),
        (2048, 512, 512),
        (2048, 1376, 512),
        (2048, 512, 1376),
        (512, 1376, 2048),
        (1376, 512, 2048),
        (256, 512, 2048),
        (1024, 8192, 512),
        (8192, 512, 1024),
    ] {
        for (name, trans_a, trans_b) in [("nn", false, false), ("nt", false, true), ("tn", true, false)] {
            print!("{m:5} {n:5} {k:5} {name}");
            for path in &paths {
                let cpu = Cpu::with_instructions(threads, path).unwrap();
                let op = Gemm {
                    m,
                    n,
                    k,
                    trans_a,
                    trans_b,
                    alpha: 1.0,
                    accumulate: false,
                    a: dtype(),
                    b: dtype(),
                    c: dtype(),
                };
                let mut fill = |len| {
                    let mut b = arena.alloc(Category::Workspace, dtype(), len).unwrap();
                    cpu.normal(&Normal { len, std: 1.0, seed: 1, first: 0, dtype: dtype() }, b.view_mut()).unwrap();
                    b
                };
                let (a, b, mut c) = (fill(m * k), fill(k * n), fill(m * n));
                let mut w = arena.alloc(Category::Workspace, DType::F32, cpu.workspace(&Op::Gemm(op))).unwrap();
                let mut times = vec![];
                let begin = Instant::now();
                while times.len() < 5 || begin.elapsed().as_secs_f64() < 0.15 {
                    let t = Instant::now();
                    cpu.gemm(&op, a.view(), b.view(), c.view_mut(), w.view_mut()).unwrap();
                    times.push(t.elapsed().as_secs_f64());
                }
                times.sort_by(f64::total_cmp);
                print!("  {:7.1}", 2.0 * (m * n * k) as f64 / times[times.len() / 2] / 1e9);
            }
            println!();
        }
    }
}
fn dtype() -> DType {
    if std::env::var("F32").is_ok() { DType::F32 } else { DType::Bf16 }
}
