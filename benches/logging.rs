//! What an event of the log costs where nobody asked for it: nanoseconds of the check in front of a collective's event, without a
//! subscriber and under one at level info (the file of a grid). `cargo bench --bench logging`.

use std::hint::black_box;
use std::time::Instant;
use tracing::{Level, enabled, trace};
use zbench_host::logging::{Filter, start};

const CALLS: u64 = 20_000_000;
const ROUNDS: usize = 7;

/// What `Metered` does in front of every collective.
fn event(bytes: u64) {
    if enabled!(target: "zbench::comm", Level::TRACE) {
        trace!(target: "zbench::comm", kind = "all-reduce", axis = "data", bytes, "collective starts");
    }
}

/// Nanoseconds of a call: the median of the rounds, and their limits.
fn measure(name: &str) {
    let round = |call: &dyn Fn(u64)| {
        let begin = Instant::now();
        (0..CALLS).for_each(|bytes| call(black_box(bytes)));
        begin.elapsed().as_secs_f64() / CALLS as f64 * 1e9
    };
    let mut differences: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let empty = round(&|bytes| {
                black_box(bytes);
            });
            round(&|bytes| event(black_box(bytes))) - empty
        })
        .collect();
    differences.sort_by(f64::total_cmp);
    println!(
        "{name}: {:.2} ns a call ({:.2} to {:.2})",
        differences[ROUNDS / 2],
        differences[0],
        differences[ROUNDS - 1]
    );
}

fn main() {
    measure("no subscriber");
    start(Filter::of_verbosity(0), false, true);
    measure("log file of a grid, level info");
}
