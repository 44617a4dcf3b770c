//! What it would save to multiply by matrices that lie side by side at once: the projections of a block of llama-32m, 2,048
//! tokens, apart and joined, forward, gradient of the input and of the weights. `joined [THREADS]`; medians in microseconds
//! of calls in turn.

use std::time::Instant;
use zbench_kernels::*;
use zbench_kernels_testing::ByName;

const TOKENS: usize = 2048;
const HIDDEN: usize = 512;

struct Bench {
    cpu: Cpu,
    arena: Arena,
}

impl Bench {
    fn normal(&self, dtype: DType, len: usize) -> Buffer {
        let mut buffer = self.arena.alloc(Category::Workspace, dtype, len).expect("memory");
        self.cpu.normal(&Normal { len, std: 0.02, seed: 1, first: 0, dtype }, buffer.view_mut()).expect("floats");
        buffer
    }

    /// The time of products one behind the other.
    fn time(&self, ops: &[Gemm], a: &Buffer, b: &Buffer, c: &mut Buffer, work: &mut Buffer) -> f64 {
        let start = Instant::now();
        for op in ops {
            self.cpu.gemm(op, a.view(), b.view(), c.view_mut(), work.view_mut()).expect("operands that fit");
        }
        start.elapsed().as_secs_f64() * 1e6
    }
}

fn main() {
    let threads = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(2);
    let bench = Bench { cpu: Cpu::new(threads), arena: Arena::host(None).expect("address space") };
    for dtype in [DType::Bf16, DType::F32] {
        for (name, outs) in [("q, k, v", &[512, 256, 256][..]), ("gate, up", &[1376, 1376])] {
            let forward = |out| gemm([TOKENS, out, HIDDEN], [false, true], false, [dtype, dtype]);
            let input = |out, more| gemm([TOKENS, HIDDEN, out], [false, false], more, [dtype, dtype]);
            let weight = |out| gemm([out, HIDDEN, TOKENS], [true, false], true, [dtype, DType::F32]);
            let all: usize = outs.iter().sum();
            let apart = [
                outs.iter().map(|out| forward(*out)).collect::<Vec<_>>(),
                outs.iter().enumerate().map(|(i, out)| input(*out, i > 0)).collect(),
                outs.iter().map(|out| weight(*out)).collect(),
            ];
            let joined = [vec![forward(all)], vec![input(all, false)], vec![weight(all)]];
            for ((step, apart), joined) in ["forward", "input", "weight"].iter().zip(&apart).zip(&joined) {
                let [a, b] = [(); 2].map(|()| bench.normal(dtype, TOKENS * all.max(HIDDEN)));
                let mut c = bench.normal(joined[0].c, TOKENS * all.max(HIDDEN));
                let workspace = apart.iter().chain(joined).map(|op| bench.cpu.workspace(&Op::Gemm(*op))).max();
                let mut work = bench.normal(DType::F32, workspace.unwrap_or(0));
                let mut times = [Vec::new(), Vec::new()];
                for _ in 0..15 {
                    times[0].push(bench.time(apart, &a, &b, &mut c, &mut work));
                    times[1].push(bench.time(joined, &a, &b, &mut c, &mut work));
                }
                times.iter_mut().for_each(|times| times.sort_by(f64::total_cmp));
                let [apart, joined] = times.map(|times| times[times.len() / 2]);
                println!("{dtype:5} {name:9} {step:8} apart {apart:8.0} joined {joined:8.0}  x{:.3}", apart / joined);
            }
        }
    }
}

fn gemm([m, n, k]: [usize; 3], [trans_a, trans_b]: [bool; 2], accumulate: bool, [from, c]: [DType; 2]) -> Gemm {
    Gemm { m, n, k, trans_a, trans_b, alpha: 1.0, accumulate, a: from, b: from, c, ..Gemm::DENSE }
}
