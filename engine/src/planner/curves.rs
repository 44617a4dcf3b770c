//! What operations take on a machine: points that were measured, and what lies between them.

use std::collections::BTreeMap;
use zbench_kernels::{Activation, Attention, DType, Gemm, Grouped, Op, Rounding};

/// Operations whose times follow one curve: same kernel, same types; and the sizes that the curve goes over.
#[derive(Clone, Debug, PartialEq)]
pub struct Class {
    /// `gemm nt f32`, `adamw f32`, …: the kernel, its form, its types.
    pub name: String,
    /// The sizes. Where the machine were ideal, time would follow their product.
    pub sizes: Vec<f64>,
}

/// Types of operands, the repeated ones once.
fn types(all: &[DType]) -> String {
    let one = all.iter().all(|dtype| *dtype == all[0]);
    let names: Vec<&str> = all.iter().map(|dtype| dtype.name()).collect();
    if one { names[0].to_string() } else { names.join("-") }
}

fn form(g: &Gemm) -> String {
    let letter = |transposed| if transposed { 't' } else { 'n' };
    format!("{}{}", letter(g.trans_a), letter(g.trans_b))
}

fn act(act: Activation) -> &'static str {
    match act {
        Activation::Silu => "silu",
        Activation::Gelu => "gelu",
        Activation::GeluTanh => "gelu_tanh",
    }
}

impl Class {
    /// Of an operation.
    pub fn of(op: &Op) -> Class {
        let kernel = op.name();
        let class = |form: &str, types: String, sizes: &[usize]| {
            let form = if form.is_empty() { String::new() } else { format!(" {form}") };
            Class { name: format!("{kernel}{form} {types}"), sizes: sizes.iter().map(|size| *size as f64).collect() }
        };
        // Scores per head: what a causal mask, or a band of it, leaves of the square; twice as many where nothing is masked.
        let attention = |a: &Attention| {
            let keys = if a.causal { a.window.unwrap_or(a.seq).min(a.seq) } else { 2 * a.kv_seq };
            let scores = a.seq * keys;
            class("", types(&[a.dtype]), &[a.batch * a.heads, scores, a.head_dim])
        };
        match op {
            Op::Gemm(g) | Op::GemmPrepacked(g) => class(&form(g), types(&[g.a, g.b, g.c]), &[g.m, g.n, g.k]),
            Op::Prepack(g) => class(&form(g), types(&[g.b]), &[g.n * g.k]),
            Op::RmsNorm(n) => class("", types(&[n.dtype]), &[n.rows * n.cols]),
            Op::RmsNormBackward(n) => class("", types(&[n.dtype, n.gradient.unwrap_or(n.dtype)]), &[n.rows * n.cols]),
            Op::LayerNorm(n) => class("", types(&[n.dtype]), &[n.rows * n.cols]),
            Op::LayerNormBackward(n) => class("", types(&[n.dtype, n.gradient.unwrap_or(n.dtype)]), &[n.rows * n.cols]),
            Op::BiasAdd(a) | Op::BiasAddBackward(a) => class("", types(&[a.dtype]), &[a.rows * a.cols]),
            Op::ScaleColumns(m) | Op::ScaleColumnsBackward(m) => class("", types(&[m.dtype]), &[m.rows * m.cols]),
            Op::RowInvNorm(n) => class("", types(&[n.dtype]), &[n.rows * n.cols]),
            Op::Rope(r) => class("", types(&[r.dtype]), &[r.rows * r.heads * r.head_dim]),
            Op::Attention(a) | Op::AttentionBackward(a) | Op::NaiveAttention(a) | Op::NaiveAttentionBackward(a) => {
                attention(a)
            }
            Op::GatedActivation(s) | Op::GatedActivationBackward(s) => class(act(s.act), types(&[s.dtype]), &[s.len]),
            Op::PointwiseActivation(a) | Op::PointwiseActivationBackward(a) => {
                class(act(a.act), types(&[a.dtype]), &[a.len])
            }
            Op::Embedding(e) | Op::EmbeddingBackward(e) => class("", types(&[e.dtype]), &[e.rows * e.cols]),
            Op::CrossEntropy(c) => class("", types(&[c.dtype, c.gradient]), &[c.rows * c.vocab]),
            Op::VocabParallelStats(l) => class("", types(&[l.dtype]), &[l.rows * l.vocab.valid()]),
            Op::VocabParallelCrossEntropy(l) => {
                class("", types(&[l.part.dtype, l.gradient]), &[l.part.rows * l.part.vocab.len])
            }
            Op::AdamW(a) => {
                let rounding = if a.rounding == Rounding::Nearest { "" } else { "stochastic" };
                let copy = a.copy.unwrap_or(a.parameters);
                class(rounding, types(&[a.parameters, a.gradients, a.moments, copy]), &[a.len])
            }
            Op::Dropout(d) => class("", types(&[d.dtype]), &[d.len]),
            Op::Normal(n) => class("", types(&[n.dtype]), &[n.len]),
            Op::Sum(m) | Op::SumSquares(m) => class("", types(&[m.from]), &[m.len]),
            Op::Fill(m, _) | Op::Cast(m) | Op::Add(m) | Op::Accumulate(m, _) | Op::Scale(m, _) => {
                class("", types(&[m.from, m.to]), &[m.len])
            }
            // Communicators and initialisation ask for these; no plan has them.
            Op::Reduce(r) => class(r.op.name(), types(&[r.from, r.to]), &[r.len * r.sources]),
            Op::Quantize(q) | Op::Dequantize(q) => class(q.by.format.name(), types(&[q.dtype]), &[q.len]),
            Op::Pack(p) => class("", types(&[p.dtype]), &[p.len]),
            Op::Unpack(u) => {
                class(&format!("{:?}", u.matrix.packing).to_lowercase(), types(&[u.dtype]), &[u.matrix.len()])
            }
            Op::Route(r) | Op::RouteBackward(r) => class("", types(&[r.dtype]), &[r.rows * r.experts]),
            Op::Dispatch(s) | Op::RouterWeightBackward(s) => class("", types(&[s.dtype]), &[s.slots() * s.cols]),
            Op::Combine(c) => class("", types(&[c.slots.dtype]), &[c.slots.slots() * c.slots.cols]),
            Op::GroupedGemm(g) => {
                let form = match g.form {
                    Grouped::Forward => "forward",
                    Grouped::Input => "input",
                    Grouped::Weight => "weight",
                };
                class(form, types(&[g.a, g.b, g.c]), &[g.rows, g.out, g.input])
            }
        }
    }
}

/// Copies within memory, over their bytes. No plan lists one as an operation: they are moves between tiers.
pub const COPY: &str = "copy";
/// Transfers from a disk, over their bytes: one among several under way.
pub const DISK_READ: &str = "disk read";
/// The same to a disk.
pub const DISK_WRITE: &str = "disk write";
/// Transfers from a disk, each of which begins when the one before is over.
pub const DISK_READ_ALONE: &str = "disk read alone";
/// The same to a disk.
pub const DISK_WRITE_ALONE: &str = "disk write alone";

/// An operation of a class that was measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// As [`Class::sizes`].
    pub sizes: Vec<f64>,
    pub seconds: f64,
}

/// There is no curve for an operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no curve was measured for the operation \"{0}\"")]
pub struct NoCurve(pub String);

/// What was measured of every class.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Curves(BTreeMap<String, Vec<Point>>);

/// Sizes count as no nearer than this, in powers of two: a point does not drown its neighbours.
const NEAR: f64 = 0.25;
/// Weight against slopes that few points would make steep, as a share of the points' weight.
const RIDGE: f64 = 0.5;

impl Curves {
    /// Adds a point. One with a size or time that is no positive number is not added.
    pub fn add(&mut self, class: &str, point: Point) {
        let positive = |number: &f64| number.is_finite() && *number > 0.0;
        if !point.sizes.is_empty() && point.sizes.iter().chain([&point.seconds]).all(positive) {
            let points = self.0.entry(class.to_string()).or_default();
            points.push(point);
            points.sort_by(|a, b| a.sizes.partial_cmp(&b.sizes).unwrap_or(std::cmp::Ordering::Equal));
        }
    }

    /// All of them, by class.
    pub fn classes(&self) -> impl Iterator<Item = (&str, &[Point])> {
        self.0.iter().map(|(name, points)| (name.as_str(), points.as_slice()))
    }

    /// Seconds of an operation; 0 of one that has nothing to do.
    ///
    /// # Errors
    /// Nothing of its class was measured.
    pub fn seconds(&self, op: &Op) -> Result<f64, NoCurve> {
        self.seconds_of(Class::of(op))
    }

    /// Seconds of a class over bytes, as [`COPY`].
    ///
    /// # Errors
    /// Nothing of it was measured.
    pub fn seconds_of_bytes(&self, class: &str, bytes: u64) -> Result<f64, NoCurve> {
        self.seconds_of(Class { name: class.into(), sizes: vec![bytes as f64] })
    }

    fn seconds_of(&self, class: Class) -> Result<f64, NoCurve> {
        if class.sizes.contains(&0.0) {
            return Ok(0.0);
        }
        let fits = |point: &&Point| point.sizes.len() == class.sizes.len();
        let points: Vec<&Point> = self.0.get(&class.name).into_iter().flatten().filter(fits).collect();
        match (points.is_empty(), &class.sizes[..]) {
            (true, _) => Err(NoCurve(class.name)),
            (false, [size]) => Ok(along(&points, *size)),
            (false, sizes) => Ok(around(&points, sizes)),
        }
    }
}

/// On lines between the neighbours, both axes logarithmic. Beyond the largest size time grows with it; below the smallest
/// it stays, since there it is the call that counts.
fn along(points: &[&Point], size: f64) -> f64 {
    let (first, last) = (points[0], points[points.len() - 1]);
    if size <= first.sizes[0] {
        return first.seconds;
    }
    if size >= last.sizes[0] {
        return last.seconds * size / last.sizes[0];
    }
    let above = points.iter().position(|point| point.sizes[0] >= size).unwrap_or(points.len() - 1).max(1);
    let (low, high) = (points[above - 1], points[above]);
    let share = (size / low.sizes[0]).ln() / (high.sizes[0] / low.sizes[0]).ln();
    low.seconds * (high.seconds / low.seconds).powf(share)
}

/// The time per product of sizes, as a plane through the points around, near ones counting more: locally weighted
/// regression in logarithms, with slopes held back where points do not say much about them.
fn around(points: &[&Point], sizes: &[f64]) -> f64 {
    let dims = sizes.len();
    let log_product = |sizes: &[f64]| sizes.iter().map(|size| size.log2()).sum::<f64>();
    let mut normal = vec![vec![0.0; dims + 2]; dims + 1];
    let mut total = 0.0;
    for point in points {
        let apart: Vec<f64> = point.sizes.iter().zip(sizes).map(|(there, here)| (there / here).log2()).collect();
        let squared: f64 = apart.iter().map(|d| d * d).sum();
        let weight = (squared + NEAR * NEAR).powi(-2);
        let rate = point.seconds.log2() - log_product(&point.sizes);
        let row: Vec<f64> = std::iter::once(1.0).chain(apart).chain([rate]).collect();
        for (i, line) in normal.iter_mut().enumerate() {
            line.iter_mut().zip(&row).for_each(|(sum, value)| *sum += weight * row[i] * value);
        }
        total += weight;
    }
    for (i, line) in normal.iter_mut().enumerate().skip(1) {
        line[i] += RIDGE * total;
    }
    (solved(normal) + log_product(sizes)).exp2()
}

/// The first unknown of a positive definite system whose last column is the right side.
fn solved(mut system: Vec<Vec<f64>>) -> f64 {
    let n = system.len();
    // From the last unknown up, so that the first is what remains.
    for pivot in (1..n).rev() {
        let line = system[pivot].clone();
        for above in system.iter_mut().take(pivot) {
            let factor = above[pivot] / line[pivot];
            above.iter_mut().zip(&line).for_each(|(value, below)| *value -= factor * below);
        }
    }
    system[0][n] / system[0][0]
}

#[cfg(test)]
#[path = "curves/tests.rs"]
mod tests;
