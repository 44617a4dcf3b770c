//! Attention: the cell, and both kernels' measurement.

use super::clock;
use super::numbers::{floats, on_host, places, random};
use super::oracle::{self, Checked, Exact, Sums, Tolerance};
use super::{Device, Method, ceiling, device};
use crate::bench::{BenchError, BenchResult, BenchSpec, Limits};
use serde::{Deserialize, Serialize};
use zbench_host::machine;
use zbench_kernels::{Attention, Buffer, Category, DType, Kernels, Op, View, footprint};
use zbench_predict::planned::gib;
use zbench_reports::bench::Timing;

/// Queries that are compared with f64, about.
const QUERIES: usize = 16;
/// Multiply-adds of the gradients of one key, at most: a key that a whole long sequence sees costs its square.
const MOST_WORK: usize = 1 << 27;
/// Rows in which the kernels are compared with each other, at most.
const ROWS: usize = 512;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Shape {
    pub batch: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub seq_len: usize,
    /// Tokens that one sees, itself the last; 0 = all before it.
    pub window: usize,
    /// Type of everything but sums.
    pub dtype: DType,
    /// `forward`, `backward`, `both`.
    pub pass: String,
    /// `flash`, `naive`, `both`, `flash-hopper`.
    pub kernel: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttentionCell {
    pub suite: String,
    pub attention: Shape,
    pub hardware: Device,
    pub bench: Method,
}

impl Shape {
    pub fn op(&self) -> Attention {
        Attention {
            batch: self.batch,
            seq: self.seq_len,
            kv_seq: self.seq_len,
            causal: true,
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            scale: 1.0 / (self.head_dim as f64).sqrt(),
            window: (self.window > 0).then_some(self.window),
            alibi: None,
            dtype: self.dtype,
        }
    }

    fn product(&self, factors: &[usize]) -> Option<usize> {
        factors.iter().try_fold(self.batch.checked_mul(self.seq_len)?, |product, factor| product.checked_mul(*factor))
    }

    /// Elements of q, of k, of a number for each row, of all probabilities.
    fn sizes(&self) -> Option<[usize; 4]> {
        let rows = self.product(&[self.heads])?;
        let all = rows.checked_mul(self.seq_len)?;
        Some([rows.checked_mul(self.head_dim)?, self.product(&[self.kv_heads, self.head_dim])?, rows, all])
    }

    /// The kernels that are asked for.
    fn kernels(&self) -> &'static [Kernel] {
        match self.kernel.as_str() {
            "flash" => &[Kernel::Flash],
            "naive" => &[Kernel::Naive],
            "flash-hopper" => &[Kernel::Flash, Kernel::FlashHopper],
            _ => &[Kernel::Flash, Kernel::Naive],
        }
    }

    fn has(&self, pass: &str) -> bool {
        self.pass == pass || self.pass == "both"
    }

    /// Bytes of q, k, v, the output's gradient, and the gradients that come out.
    fn operands(&self) -> Option<u64> {
        let [q, kv, ..] = self.sizes()?;
        let (q, kv) = (footprint(self.dtype, q)?, footprint(self.dtype, kv)?);
        q.checked_mul(3)?.checked_add(kv.checked_mul(4)?)
    }

    /// Bytes that a kernel keeps for backward.
    fn saved(&self, kernel: Kernel) -> Option<u64> {
        let [q, _, rows, all] = self.sizes()?;
        let (dtype, len) = match kernel {
            Kernel::Flash | Kernel::FlashHopper => (DType::F32, rows),
            Kernel::Naive => (self.dtype, all),
        };
        footprint(self.dtype, q)?.checked_add(footprint(dtype, len)?)
    }
}

impl BenchSpec for AttentionCell {
    fn plain(&self) -> serde_json::Value {
        serde_json::to_value(self).unwrap_or_default()
    }

    fn label(&self) -> String {
        let s = &self.attention;
        let window = if s.window > 0 { format!(" window {}", s.window) } else { String::new() };
        format!(
            "{} x {} tokens{window}, {}/{} heads of {}, {} {}, {}",
            s.batch,
            s.seq_len,
            s.heads,
            s.kv_heads,
            s.head_dim,
            s.dtype,
            s.pass,
            self.hardware.label()
        )
    }

    /// Bytes that the leanest kernel that was asked for needs; absent for a shape that cannot be.
    fn needs(&self) -> Option<u64> {
        let s = &self.attention;
        let possible = s.heads > 0 && s.kv_heads > 0 && s.heads.is_multiple_of(s.kv_heads) && s.head_dim > 0;
        if !possible || !s.dtype.is_float() || s.dtype == DType::F64 {
            return None;
        }
        let operands = s.operands().filter(|bytes| *bytes < 1 << 56)?;
        let saved = s.kernels().iter().filter_map(|kernel| s.saved(*kernel)).min()?;
        operands.checked_add(saved)
    }

    fn asks_for_gpu(&self) -> Option<String> {
        (self.hardware.device == "cuda").then(|| "hardware.device = \"cuda\"".into())
    }

    fn measure(&self, limits: &Limits<'_>, _folder: &std::path::Path) -> Result<BenchResult, BenchError> {
        measure(self, limits)
    }
}

/// The specification that a record's cell holds.
pub fn of_plain(cell: &serde_json::Value) -> Option<Box<dyn BenchSpec>> {
    serde_json::from_value::<AttentionCell>(cell.clone()).ok().map(|cell| -> Box<dyn BenchSpec> { Box::new(cell) })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kernel {
    Flash,
    Naive,
    /// Forward by the kernel for Hopper's own instructions, backward as flash.
    FlashHopper,
}

impl Kernel {
    fn name(self) -> &'static str {
        match self {
            Kernel::Flash => "flash",
            Kernel::Naive => "naive",
            Kernel::FlashHopper => "flash-hopper",
        }
    }

    fn forward(self, op: Attention) -> Op {
        match self {
            Kernel::Flash | Kernel::FlashHopper => Op::Attention(op),
            Kernel::Naive => Op::NaiveAttention(op),
        }
    }

    fn backward(self, op: Attention) -> Op {
        match self {
            Kernel::Flash | Kernel::FlashHopper => Op::AttentionBackward(op),
            Kernel::Naive => Op::NaiveAttentionBackward(op),
        }
    }
}

/// What both kernels read.
struct Operands {
    q: Buffer,
    k: Buffer,
    v: Buffer,
    dout: Buffer,
}

/// What a kernel made: the output, and the gradients of q, k and v.
struct Results {
    kernel: Kernel,
    out: Buffer,
    gradients: Option<[Buffer; 3]>,
    /// The places of its timings.
    timings: Vec<usize>,
}

/// A kernel that does not fit where the other does is no error.
fn measure(cell: &AttentionCell, limits: &Limits<'_>) -> Result<BenchResult, BenchError> {
    let shape = &cell.attention;
    let kernels = device::kernels(&cell.hardware)?;
    let kernels = &*kernels;
    let op = shape.op();
    let hopper = match shape.kernels().contains(&Kernel::FlashHopper) {
        true => Some(device::hopper_kernels(&cell.hardware, &op)?),
        false => None,
    };
    device::fits_now(kernels, cell.needs().unwrap_or(u64::MAX))?;
    // Of a device a third for operands, a third for a kernel, a third for results.
    let arena = kernels.arena(None, 3)?;
    let [q, kv, ..] = shape.sizes().unwrap_or_default();
    let buffer = |len, seed| random(&arena, kernels, Category::Workspace, shape.dtype, len, seed);
    let operands = Operands { q: buffer(q, 1)?, k: buffer(kv, 2)?, v: buffer(kv, 3)?, dout: buffer(q, 4)? };
    // Other kernels have a queue of their own, which does not wait for this one.
    kernels.synchronize()?;
    let mut timings = Vec::new();
    let (results, ceiling) = ceiling::beside(&cell.hardware, shape.dtype, || -> Result<_, BenchError> {
        let mut results = Vec::new();
        let memory = machine::memory_bytes("MemTotal").filter(|_| kernels.is_host());
        for kernel in shape.kernels() {
            let needs = shape.saved(*kernel).and_then(|saved| saved.checked_add(shape.operands()?));
            if let Some(memory) = memory.filter(|memory| needs.is_none_or(|needs| needs > *memory)) {
                let needs = needs.map_or("more than an address holds".into(), gib);
                let why = format!("needs {needs} of memory, and this machine has {}", gib(memory));
                left_out(shape, *kernel, &mut timings, why);
                continue;
            }
            let on = hopper.as_deref().filter(|_| *kernel == Kernel::FlashHopper).unwrap_or(kernels);
            match one(cell, *kernel, on, &operands, limits, &mut timings) {
                Ok(result) => results.push(result),
                Err(BenchError::Memory(error)) => left_out(shape, *kernel, &mut timings, error.to_string()),
                Err(error @ BenchError::Busy { .. }) => left_out(shape, *kernel, &mut timings, error.to_string()),
                Err(error) => return Err(error),
            }
        }
        Ok(results)
    })?;
    if results.is_empty() {
        let available = gib(machine::memory_bytes("MemAvailable").unwrap_or(0));
        let needed = shape.kernels().iter().filter_map(|kernel| shape.saved(*kernel)).min().unwrap_or(u64::MAX);
        return Err(BenchError::Busy { needed: gib(needed), available });
    }
    for timing in &mut timings {
        timing.share = ceiling.gflops.filter(|_| timing.samples > 0).map(|ceiling| timing.gflops / ceiling);
    }
    let Operands { q, k, v, dout } = operands;
    let [q, k, v, dout] = [on_host(kernels, q)?, on_host(kernels, k)?, on_host(kernels, v)?, on_host(kernels, dout)?];
    let operands = Operands { q, k, v, dout };
    let wrong = check(op, &operands, &results, &mut timings, limits)?;
    let mut notes = vec!["The same buffers in every call.".to_string()];
    if hopper.is_some() {
        let words = parity(&timings, wrong.as_deref());
        zbench_host::say!("{words}");
        notes.push(words);
    }
    Ok(BenchResult { timings, ceiling, notes, wrong, ..BenchResult::default() })
}

/// What the comparison of Hopper's kernel with flash and with f64 gave, in words: nobody is to trust its speed before.
fn parity(timings: &[Timing], wrong: Option<&str>) -> String {
    let forward = timings.iter().find(|timing| timing.kernel == Kernel::FlashHopper.name() && timing.pass == "forward");
    match (wrong, forward) {
        (Some(wrong), _) => format!("The check of flash-hopper beside flash failed: {wrong}."),
        (None, Some(forward)) if forward.checked > 0 => format!(
            "flash-hopper's output was compared with f64 and with flash's in {} numbers: the largest difference is {:.2} of what is \
             allowed. Backward is flash's.",
            forward.checked, forward.worst
        ),
        (None, _) => {
            "flash-hopper's forward was not compared with flash's: time it with --pass forward or both.".into()
        }
    }
}

/// Rows without times for a kernel that does not fit.
fn left_out(shape: &Shape, kernel: Kernel, timings: &mut Vec<Timing>, why: String) {
    timings.retain(|timing| timing.kernel != kernel.name());
    for pass in ["forward", "backward"].into_iter().filter(|pass| shape.has(pass)) {
        let trouble = format!("left out: {why}");
        timings.push(Timing { kernel: kernel.name().into(), pass: pass.into(), trouble, ..Timing::default() });
    }
}

/// One kernel, forward and backward.
fn one(
    cell: &AttentionCell,
    kernel: Kernel,
    kernels: &dyn Kernels,
    operands: &Operands,
    limits: &Limits<'_>,
    timings: &mut Vec<Timing>,
) -> Result<Results, BenchError> {
    let shape = &cell.attention;
    let (op, dtype) = (shape.op(), shape.dtype);
    device::fits_now(kernels, shape.saved(kernel).unwrap_or(u64::MAX))?;
    let [q_len, kv_len, rows, all] = shape.sizes().unwrap_or_default();
    // An arena of its own: what it counts is this kernel's alone.
    let own = kernels.arena(None, 3)?;
    let results = kernels.arena(None, 3)?;
    let mut out = own.alloc(Category::Activations, dtype, q_len)?;
    let mut statistics = match kernel {
        Kernel::Flash | Kernel::FlashHopper => own.alloc(Category::Activations, DType::F32, rows)?,
        Kernel::Naive => own.alloc(Category::Activations, dtype, all)?,
    };
    let saved_bytes = Some(own.ledger().live(Category::Activations));
    let Operands { q, k, v, dout } = operands;
    let mut places = Vec::new();
    let mut note = |timing: Timing, pass: &str, workspace_bytes: u64| {
        let (kernel, workspace_bytes) = (kernel.name().to_string(), Some(workspace_bytes));
        places.push(timings.len());
        timings.push(Timing { kernel, pass: pass.into(), saved_bytes, workspace_bytes, ..timing });
    };

    let forward = kernel.forward(op);
    let mut scratch = own.alloc(Category::Workspace, DType::F32, kernels.workspace(&forward))?;
    let workspace = own.ledger().live(Category::Workspace);
    let mut call = || -> Result<(), BenchError> {
        let (reads, writes) = ([q.view(), k.view(), v.view()], &mut [out.view_mut(), statistics.view_mut()]);
        Ok(kernels.run(&forward, &reads, writes, scratch.view_mut())?)
    };
    if shape.has("forward") {
        let samples = clock::time(&cell.bench, limits, kernels, &mut call)?;
        note(device::timing(&samples, forward.flops(), None), "forward", workspace);
    } else {
        call()?;
    }
    drop(scratch);
    if !shape.has("backward") {
        return Ok(Results { kernel, out: on_host(kernels, out)?, gradients: None, timings: places });
    }

    let backward = kernel.backward(op);
    let mut scratch = own.alloc(Category::Workspace, DType::F32, kernels.workspace(&backward))?;
    let workspace = own.ledger().live(Category::Workspace);
    let gradient = |len| results.alloc(Category::Workspace, dtype, len);
    let mut gradients = [gradient(q_len)?, gradient(kv_len)?, gradient(kv_len)?];
    let (out_view, kept) = (out.view(), statistics.view());
    let mut call = || -> Result<(), BenchError> {
        let mut reads = vec![q.view(), k.view(), v.view()];
        match kernel {
            Kernel::Flash | Kernel::FlashHopper => reads.extend([out_view, kept, dout.view()]),
            Kernel::Naive => reads.extend([kept, dout.view()]),
        }
        let writes = &mut gradients.each_mut().map(|buffer| buffer.view_mut());
        Ok(kernels.run(&backward, &reads, writes, scratch.view_mut())?)
    };
    let samples = clock::time(&cell.bench, limits, kernels, &mut call)?;
    note(device::timing(&samples, backward.flops(), None), "backward", workspace);
    let [dq, dk, dv] = gradients;
    let gradients = [on_host(kernels, dq)?, on_host(kernels, dk)?, on_host(kernels, dv)?];
    Ok(Results { kernel, out: on_host(kernels, out)?, gradients: Some(gradients), timings: places })
}

/// Every kernel against f64 on a sample, and the kernels against each other.
fn check(
    op: Attention,
    operands: &Operands,
    results: &[Results],
    timings: &mut [Timing],
    limits: &Limits<'_>,
) -> Result<Option<String>, BenchError> {
    let tolerance = oracle::tolerance(op.dtype, op.seq);
    let views = [operands.q.view(), operands.k.view(), operands.v.view(), operands.dout.view()];
    let exact = Exact { op, operands: views };
    let sample = Sample::of(&exact, results.iter().any(|result| result.gradients.is_some()), limits)?;
    let mut wrong = None;
    for result in results {
        let name = result.kernel.name();
        let mut forward = sample.compare(&format!("{name}'s {}", NAMES[0]), 0, result.out.view(), tolerance);
        let mut backward = Checked::default();
        if let Some(gradients) = &result.gradients {
            for (place, buffer) in (1..).zip(gradients) {
                backward.add(sample.compare(&format!("{name}'s {}", NAMES[place]), place, buffer.view(), tolerance));
            }
        }
        // Both are within the tolerance of f64, so within twice it of each other.
        if let Some(first) = results.first().filter(|first| first.kernel != result.kernel) {
            forward.add(sample.beside(result.kernel, 0, &result.out, &first.out, tolerance));
            if let (Some(own), Some(other)) = (&result.gradients, &first.gradients) {
                for (place, (own, other)) in (1..).zip(own.iter().zip(other)) {
                    backward.add(sample.beside(result.kernel, place, own, other, tolerance));
                }
            }
        }
        wrong = wrong.or(forward.first_wrong.clone()).or(backward.first_wrong.clone());
        for place in &result.timings {
            let timing = &mut timings[*place];
            let checked = if timing.pass == "forward" { &forward } else { &backward };
            (timing.checked, timing.worst) = (checked.count, checked.worst);
            timing.trouble = checked.first_wrong.clone().unwrap_or_default();
        }
    }
    Ok(wrong)
}

/// Results in the order in which samples have them.
const NAMES: [&str; 4] = ["output", "dq", "dk", "dv"];

/// Where exact results were computed, and what they are.
struct Sample {
    head_dim: usize,
    starts: [Vec<usize>; 4],
    exact: [Sums; 4],
    /// What sums are made of where they are largest in the whole tensor, about.
    largest: [f64; 4],
}

impl Sample {
    fn of(exact: &Exact<'_>, backward: bool, limits: &Limits<'_>) -> Result<Sample, BenchError> {
        let op = &exact.op;
        let nothing = || Sums { values: Vec::new(), sizes: Vec::new() };
        let empty = [(); 4].map(|()| nothing());
        let mut sample = Sample { head_dim: op.head_dim, starts: Default::default(), exact: empty, largest: [0.0; 4] };
        // Of keys that few queries see sums are small; in the mean they grow as keys are read.
        let mut weights = 0.0;
        let mut put = |place: usize, start: usize, sums: Sums| {
            sample.starts[place].push(start);
            sample.exact[place].values.extend(sums.values);
            sample.exact[place].sizes.extend(sums.sizes);
        };
        for place in places(op.batch * op.heads * op.seq, QUERIES, 5) {
            limits.check()?;
            let (batch, head, row) = (place / (op.heads * op.seq), place / op.seq % op.heads, place % op.seq);
            let [out, dq] = exact.of_query(batch, head, row);
            let start = exact.query(batch, head, row);
            put(0, start, out);
            put(1, start, dq);
        }
        // Keys of the end are seen by few queries; those of the middle are looked at where that is no long work.
        let rows = [op.seq - 1, op.seq - op.seq.min(9), op.seq - op.seq.min(64), op.seq / 2, op.seq / 3, 0];
        for (number, row) in rows.into_iter().enumerate().filter(|_| backward) {
            limits.check()?;
            if exact.work_of_key(row) > MOST_WORK {
                continue;
            }
            let (batch, head) = (number % op.batch, number % op.kv_heads);
            let [dk, dv] = exact.of_key(batch, head, row);
            let start = exact.key(batch, head, row);
            put(2, start, dk);
            put(3, start, dv);
            weights += exact.weight_of_key(row) * op.head_dim as f64;
        }
        for (place, (largest, sums)) in sample.largest.iter_mut().zip(&sample.exact).enumerate() {
            *largest = sums.sizes.iter().copied().fold(0.0, f64::max);
            if place >= 2 && weights > 0.0 {
                let sum: f64 = sums.sizes.iter().sum();
                *largest = largest.max(sum / weights * exact.weight_of_key(0));
            }
        }
        Ok(sample)
    }

    fn compare(&self, name: &str, place: usize, got: View<'_>, tolerance: Tolerance) -> Checked {
        let got: Vec<f64> =
            self.starts[place].iter().flat_map(|start| floats(got.slice(*start..start + self.head_dim))).collect();
        oracle::compare(name, &got, &self.exact[place], tolerance)
    }

    /// Two kernels' results in rows spread over the tensor.
    fn beside(&self, kernel: Kernel, place: usize, own: &Buffer, other: &Buffer, tolerance: Tolerance) -> Checked {
        let chosen = places(own.len() / self.head_dim, ROWS, 17);
        let row = |buffer: &Buffer, row: usize| floats(buffer.slice(row * self.head_dim..(row + 1) * self.head_dim));
        let all = |buffer: &Buffer| -> Vec<f64> { chosen.iter().flat_map(|place| row(buffer, *place)).collect() };
        let values = all(other);
        let want = Sums { sizes: vec![self.largest[place]; values.len()], values };
        let name = format!("{}'s {} beside flash's", kernel.name(), NAMES[place]);
        oracle::compare(&name, &all(own), &want, tolerance.twice())
    }
}
