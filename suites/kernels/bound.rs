//! The kernels of a model's training step against their bounds. Steps run in this process with a stopwatch around every
//! operation; the bound of an operation is the longer of its arithmetic at the measured peak and its bytes at the measured triad.

use super::{device, resolve};
use crate::bench::{BenchError, Limits};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;
use zbench_config::{Axis, ConfigError, Context, Document, Values, grid};
use zbench_engine::compute::hardware;
use zbench_engine::config::Cell;
use zbench_engine::plan::Plan;
use zbench_engine::planner::curves::Class;
use zbench_engine::run::launch_ranks::{kernels, with_ranks};
use zbench_host::machine;
use zbench_kernels::cpu::peak;
use zbench_kernels::{DType, Kernels, Op, Stopwatch, Timed};
use zbench_reports::{stats, units};

/// Steps that are timed, and steps before them.
const STEPS: usize = 7;
const UNTIMED: usize = 2;
/// Seconds of each measurement of the peak.
const PEAK_SECONDS: f64 = 0.1;
/// Bytes of each array of the triad: several times the last cache, and this where the cache is not known.
const CACHES: u64 = 4;
const USUAL_ARRAY: u64 = 128 << 20;

/// A kernel with its sizes, over one step.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelTime {
    /// As [`Class::name`]: the kernel, its form, its types.
    pub kernel: String,
    /// As [`Class::sizes`].
    pub sizes: Vec<u64>,
    /// Calls of a step.
    pub calls: u64,
    /// Milliseconds of a step: the median of steps.
    pub ms: f64,
    /// The least that they can take.
    pub bound_ms: f64,
    /// Whether arithmetic bounds it, and not memory.
    pub by_arithmetic: bool,
}

/// A step's kernels, those that lose most first.
#[derive(Clone, Debug, PartialEq)]
pub struct StepKernels {
    /// The model and the type that its products are in.
    pub label: String,
    /// Every kernel of the step.
    pub kernels: Vec<KernelTime>,
    /// Milliseconds of a step by the clock, a median; with the stopwatch in it.
    pub step_ms: f64,
    /// Threads that share an operation.
    pub threads: usize,
    /// Peaks in GFLOP/s, by type.
    pub peaks: Vec<(DType, f64)>,
    /// The triad in GB/s.
    pub triad: f64,
}

/// The cells whose steps are measured: those of a document with `suite = "gemm"` and a model.
///
/// # Errors
/// What keeps a combination from being a cell, with its key.
pub fn cells(document: &Document, only: &[Axis], context: &Context) -> Result<Vec<(String, Cell)>, ConfigError> {
    let mut cells = Vec::new();
    for (_, settings) in grid::combinations(document, only, grid::MOST_CELLS_EVER)? {
        let values = Values { settings: &settings };
        if values.text("hardware.device") == "cuda" {
            return Err(ConfigError::about("--bound", "measures steps on cores; leave --device out"));
        }
        let cell = resolve::model_cell(&values, context)
            .map_err(|refusal| ConfigError::about("--bound", refusal.to_string()))?;
        if cell.parallel.ranks != 1 {
            let message = format!("parallel.ranks = {}: --bound runs one rank; leave it out", cell.parallel.ranks);
            return Err(ConfigError::about("--set", message));
        }
        let threads = cell.hardware.threads_per_rank;
        let threads = units::plural(threads, "thread", "threads");
        cells.push((format!("{}, {}, {threads}", resolve::model_name(&values), cell.precision.compute), cell));
    }
    Ok(cells)
}

/// Runs a few steps of the cell on one rank.
///
/// # Errors
/// [`BenchError`]: no room, a kernel's error, or that it was stopped.
pub fn measure(label: &str, cell: &Cell, limits: &Limits<'_>) -> Result<StepKernels, BenchError> {
    let other = |error: &dyn std::fmt::Display| BenchError::Step(error.to_string());
    let planner = hardware::planner(cell).map_err(|error| other(&error))?;
    let plan = Plan::new(cell, &*planner).map_err(|error| other(&error))?;
    let inner = kernels(cell, &zbench_host::devices::machine).map_err(|error| other(&error))?;
    let threads = inner.first().map_or(1, |kernels| kernels.threads());
    let watch = Arc::new(Stopwatch::new(inner.into_iter().next().ok_or_else(|| other(&"there is no rank"))?));
    let types = [DType::F32, DType::Bf16, DType::F16];
    let ceilings = || types.map(|dtype| peak::measure(threads, dtype, PEAK_SECONDS));
    let array = machine::last_level_cache_bytes().map_or(USUAL_ARRAY, |bytes| CACHES * bytes);
    let triad = || peak::memory(threads, array as usize).map_or(0.0, |rates| rates.triad);
    let needed = plan.stage_plan_of(0).estimate.memory().total_peak();
    device::fits_now(&*watch, needed.max(3 * array))?;
    let before = (ceilings(), triad());
    let ran = with_ranks(cell, &plan, vec![watch.clone() as Arc<dyn Kernels>], |rank| {
        let (mut steps, mut step_ms) = (Vec::new(), Vec::new());
        for step in 0..UNTIMED + STEPS {
            let begin = Instant::now();
            rank.step()?;
            let ms = begin.elapsed().as_secs_f64() * 1e3;
            let timed = watch.take();
            if step >= UNTIMED {
                steps.push(timed);
                step_ms.push(ms);
            }
            if limits.check().is_err() {
                break;
            }
        }
        Ok((steps, step_ms))
    });
    limits.check()?;
    let (steps, step_ms) = ran.map_err(|failure| other(&failure.cause))?.pop().unwrap_or_default();
    let after = (ceilings(), triad());
    let peaks: Vec<(DType, f64)> =
        types.into_iter().enumerate().filter_map(|(i, dtype)| Some((dtype, before.0[i]?.max(after.0[i]?)))).collect();
    let triad = before.1.max(after.1);
    Ok(StepKernels {
        label: label.into(),
        kernels: by_kernel(&steps, &peaks, triad),
        step_ms: stats::median(&step_ms).unwrap_or(0.0),
        threads,
        peaks: peaks.into_iter().map(|(dtype, rate)| (dtype, rate / 1e9)).collect(),
        triad: triad / 1e9,
    })
}

/// The type whose peak bounds an operation with arithmetic.
fn arithmetic(op: &Op) -> DType {
    match op {
        Op::Gemm(g) | Op::GemmPrepacked(g) => g.a,
        Op::GroupedGemm(g) => g.a,
        Op::Attention(a) | Op::AttentionBackward(a) | Op::NaiveAttention(a) | Op::NaiveAttentionBackward(a) => a.dtype,
        _ => DType::F32,
    }
}

/// Milliseconds that the operation takes at least, and whether arithmetic is why.
fn bound_ms(op: &Op, peaks: &[(DType, f64)], triad: f64) -> (f64, bool) {
    let peak = peaks.iter().find(|(dtype, _)| *dtype == arithmetic(op)).map_or(f64::INFINITY, |(_, rate)| *rate);
    let computes = op.flops() as f64 / peak * 1e3;
    let moves = if triad > 0.0 { op.bytes() as f64 / triad * 1e3 } else { 0.0 };
    (computes.max(moves), computes >= moves)
}

/// What is summed of a kernel: milliseconds by step, and of all steps the calls and their bounds.
struct Sum {
    ms: Vec<f64>,
    calls: u64,
    bound_ms: f64,
    by_arithmetic: bool,
}

fn by_kernel(steps: &[Vec<Timed>], peaks: &[(DType, f64)], triad: f64) -> Vec<KernelTime> {
    let mut all: BTreeMap<(String, Vec<u64>), Sum> = BTreeMap::new();
    for (number, step) in steps.iter().enumerate() {
        for timed in step {
            let class = Class::of(&timed.op);
            let key = (class.name, class.sizes.iter().map(|size| *size as u64).collect());
            let (bound_ms, by_arithmetic) = bound_ms(&timed.op, peaks, triad);
            let blank = || Sum { ms: vec![0.0; steps.len()], calls: 0, bound_ms: 0.0, by_arithmetic };
            let sum = all.entry(key).or_insert_with(blank);
            sum.ms[number] += timed.ns as f64 * 1e-6;
            sum.calls += 1;
            sum.bound_ms += bound_ms;
        }
    }
    let mut kernels = Vec::with_capacity(all.len());
    for ((kernel, sizes), Sum { ms, calls, bound_ms, by_arithmetic }) in all {
        let calls = calls.div_ceil(steps.len() as u64);
        let (ms, bound_ms) = (stats::median(&ms).unwrap_or(0.0), bound_ms / steps.len() as f64);
        kernels.push(KernelTime { kernel, sizes, calls, ms, bound_ms, by_arithmetic });
    }
    kernels.sort_by(|a, b| (b.ms - b.bound_ms).total_cmp(&(a.ms - a.bound_ms)));
    kernels
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbench_kernels::{Elementwise, Gemm};

    #[test]
    fn kernels_are_summed_by_step_and_bounded_by_the_longer_of_arithmetic_and_memory() {
        let f = DType::F32;
        let gemm = Op::Gemm(Gemm {
            m: 10,
            n: 10,
            k: 1000,
            trans_a: false,
            trans_b: true,
            alpha: 1.0,
            accumulate: false,
            a: f,
            b: f,
            c: f,
            ..Gemm::DENSE
        });
        let cast = Op::Cast(Elementwise { len: 1000, sources: 1, from: f, to: f });
        let timed = |op, ns| Timed { op, ns };
        let steps = [
            vec![timed(gemm, 3_000_000), timed(cast, 1_000_000), timed(gemm, 5_000_000)],
            vec![timed(gemm, 2_000_000), timed(cast, 3_000_000), timed(gemm, 2_000_000)],
            vec![timed(gemm, 3_000_000), timed(cast, 2_000_000), timed(gemm, 3_000_000)],
        ];
        // 200,000 operations at 1e8 a second take 2 ms, and 8,000 bytes at 8e7 a second 0.1 ms.
        let kernels = by_kernel(&steps, &[(f, 1e8)], 8e7);
        let brief: Vec<_> = kernels.iter().map(|k| (k.kernel.as_str(), k.calls, k.ms, k.by_arithmetic)).collect();
        assert_eq!(brief, [("gemm nt f32", 2, 6.0, true), ("cast f32", 1, 2.0, false)]);
        assert!((kernels[0].bound_ms - 4.0).abs() < 1e-9 && (kernels[1].bound_ms - 0.1).abs() < 1e-9, "{kernels:?}");
    }
}
