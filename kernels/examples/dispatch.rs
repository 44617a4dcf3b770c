//! What it costs to start an operation on several threads: time of the smallest one that two threads share, back to back
//! (nobody sleeps in between) and after a pause (everybody does).
//!
//! `cargo run --release -p zbench-kernels --features examples --example dispatch -- [threads] [pause in microseconds]`

use std::time::{Duration, Instant};
use zbench_kernels::{Cpu, Kernels, ViewMut};

/// Elements that one thread takes at least.
const GRAIN: usize = 8192;

fn main() {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<u64>().expect("a whole number"));
    let threads = numbers.next().unwrap_or(2) as usize;
    let pause = Duration::from_micros(numbers.next().unwrap_or(1000));
    let cpu = Cpu::new(threads);
    // One smallest part for each thread; it stays in the first cache.
    let mut y = vec![0.0f32; GRAIN * threads];
    let mut once = |cpu: &Cpu| {
        let begin = Instant::now();
        cpu.fill(ViewMut::of(&mut y), 1.5).expect("fills");
        begin.elapsed().as_secs_f64() * 1e6
    };
    let alone = Cpu::new(1);
    for (name, cpu, pause) in
        [("one thread", &alone, Duration::ZERO), ("back to back", &cpu, Duration::ZERO), ("after a pause", &cpu, pause)]
    {
        let count = if pause.is_zero() { 20_000 } else { 500 };
        let mut times: Vec<f64> = (0..count)
            .map(|_| {
                if !pause.is_zero() {
                    std::thread::sleep(pause);
                }
                once(cpu)
            })
            .collect();
        times.sort_by(f64::total_cmp);
        let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
        println!("{name}: median {:.2} us, tenth {:.2}, ninth tenth {:.2}", at(0.5), at(0.1), at(0.9));
    }
}
