//! What the first touch of an arena's memory costs, private and shared, with huge pages and without: time and page faults.
//!
//! `cargo run --release -p zbench-kernels --features examples --example first_touch -- [MiB]`

// Two calls of the system that no safe library of this crate has.
#![allow(unsafe_code)]

use std::time::Instant;
use zbench_kernels::{Arena, Category, DType};

fn main() {
    let mib = std::env::args().nth(1).map_or(256, |text| text.parse::<usize>().expect("a number of MiB"));
    for huge in [true, false] {
        // SAFETY: changes how this process's memory is backed, nothing else.
        unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, libc::c_ulong::from(!huge), 0, 0, 0) };
        for (name, make) in [("private", Arena::host as fn(_) -> _), ("shared", Arena::shared)] {
            let mut times = Vec::new();
            let before = faults();
            for _ in 0..5 {
                let arena = make(None).expect("address space");
                let mut buffer = arena.alloc(Category::Workspace, DType::F32, mib << 18).expect("memory");
                let begin = Instant::now();
                buffer.view_mut().as_slice_mut::<f32>().expect("f32").fill(1.5);
                times.push(begin.elapsed().as_secs_f64() * 1e3);
            }
            times.sort_by(f64::total_cmp);
            let (median, pages) = (times[2], (faults() - before) / 5);
            println!("{name}, huge pages {}: {median:.1} ms, {pages} page faults", if huge { "wished" } else { "off" });
        }
    }
}

/// Page faults of this process so far.
fn faults() -> i64 {
    // SAFETY: all zeros is a value of this plain struct, which the call fills in.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: there is room for the answer.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    usage.ru_minflt
}
