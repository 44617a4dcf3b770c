//! Kernels' results against f64, on a sample: what rounding explains, and what it does not.

use super::numbers::{float, floats, half_ulp};
use zbench_kernels::{Attention, DType, Gemm, View};

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Checked {
    pub count: u64,
    /// The largest distance as a share of what is allowed; above 1 is wrong.
    pub worst: f64,
    pub first_wrong: Option<String>,
}

impl Checked {
    /// One more element. What is no number is infinitely far away.
    pub fn see(&mut self, got: f64, want: f64, bound: f64, place: impl Fn() -> String) {
        self.count += 1;
        let distance = (got - want).abs();
        let share = if distance == 0.0 { 0.0 } else { distance / bound };
        let share = if share.is_finite() { share } else { f64::MAX };
        if share > 1.0 && self.first_wrong.is_none() {
            self.first_wrong = Some(format!("{} is {got}, and {want} within {bound:.2e} in f64", place()));
        }
        self.worst = self.worst.max(share);
    }

    pub fn add(&mut self, other: Checked) {
        self.count += other.count;
        self.worst = self.worst.max(other.worst);
        self.first_wrong = self.first_wrong.take().or(other.first_wrong);
    }
}

/// The elements of C at these places.
pub fn elements(op: &Gemm, c: View<'_>, places: &[(usize, usize)]) -> Vec<f64> {
    places.iter().map(|(i, j)| float(c, i * op.n + j)).collect()
}

/// A product's elements at these places, from its operands `[a, b, c]` and what C held before.
///
/// Allowed are: the rounding of the result, half a unit in the last place of its type; and the rounding of sums of `k`
/// products in f32 one after the other. The error of such a sum is about 0.4 `k` 2^-24 times the root mean square of the
/// products (each of the `k` partial sums, which grow as their root, is rounded once); 8 in place of 0.4 is twenty
/// standard deviations, and sums by blocks err less. A wrong element is off by about a product, some 10^5 times that for
/// a `k` of 1000.
pub fn gemm(op: &Gemm, [a, b, c]: [View<'_>; 3], before: &[f64], places: &[(usize, usize)]) -> Checked {
    let mut checked = Checked::default();
    let unit = half_ulp(op.c);
    for ((i, j), before) in places.iter().zip(before) {
        let (mut sum, mut squares) = (0.0, 0.0);
        for k in 0..op.k {
            let of_a = float(a, if op.trans_a { k * op.m + i } else { i * op.k + k });
            let of_b = float(b, if op.trans_b { j * op.k + k } else { k * op.n + j });
            sum += of_a * of_b;
            squares += (of_a * of_b).powi(2);
        }
        let before = if op.accumulate { *before } else { 0.0 };
        let want = before + f64::from(op.alpha) * sum;
        let root_mean_square = (squares / op.k.max(1) as f64).sqrt();
        let sums = 8.0 * op.k as f64 * 2f64.powi(-24) * root_mean_square;
        // The smallest halves are apart by 2^-24.
        let tiny = if op.c == DType::F16 { 2f64.powi(-25) } else { f64::MIN_POSITIVE };
        let bound = unit * want.abs() + sums + 2f64.powi(-23) * (before.abs() + sum.abs()) + tiny;
        let got = float(c, i * op.n + j);
        checked.see(got, want, bound, || format!("element [{i}, {j}] of C"));
    }
    checked
}

/// Attention in f64 on the elements that the kernels read.
pub struct Exact<'a> {
    pub op: Attention,
    /// q, k, v and the gradient of the output.
    pub operands: [View<'a>; 4],
}

/// What one query makes of what it sees.
struct Row {
    /// Number of the first key that it sees.
    first: usize,
    /// Probabilities of the keys from there on.
    probabilities: Vec<f64>,
    /// Gradients of the scores, before the scale.
    dscores: Vec<f64>,
    /// What those are made of before it cancels: `p |dp - mean|`, and `p` times what the mean is a sum of.
    uncancelled: Vec<f64>,
}

/// Sums, and of how much they are sums: the same with every term's absolute value. Rounding is a share of the latter.
#[derive(Clone, Debug, PartialEq)]
pub struct Sums {
    pub values: Vec<f64>,
    pub sizes: Vec<f64>,
}

impl Sums {
    fn zeros(len: usize) -> Sums {
        Sums { values: vec![0.0; len], sizes: vec![0.0; len] }
    }

    /// Adds `factor x`, where `factor` has come of terms as large as `size`.
    fn add(&mut self, factor: f64, size: f64, x: &[f64]) {
        for ((value, of), x) in self.values.iter_mut().zip(&mut self.sizes).zip(x) {
            *value += factor * x;
            *of += size * x.abs();
        }
    }
}

impl Exact<'_> {
    /// What a factor of a sum counts as at least: kernels keep it in the type, whose smallest numbers are apart by as much.
    fn least(&self) -> f64 {
        let tolerance = tolerance(self.op.dtype, self.op.seq);
        tolerance.tiny / tolerance.share
    }

    fn group(&self) -> usize {
        self.op.heads / self.op.kv_heads
    }

    /// Where a head of a token begins in q and what is like it.
    pub fn query(&self, batch: usize, head: usize, row: usize) -> usize {
        ((batch * self.op.seq + row) * self.op.heads + head) * self.op.head_dim
    }

    /// The same in k and v.
    pub fn key(&self, batch: usize, kv_head: usize, row: usize) -> usize {
        ((batch * self.op.seq + row) * self.op.kv_heads + kv_head) * self.op.head_dim
    }

    fn head_of(&self, operand: usize, from: usize) -> Vec<f64> {
        floats(self.operands[operand].slice(from..from + self.op.head_dim))
    }

    fn row(&self, batch: usize, head: usize, row: usize) -> Row {
        let at = self.query(batch, head, row);
        let (q, dout) = (self.head_of(0, at), self.head_of(3, at));
        let seen = self.op.seen(row);
        let key = |operand: usize, j: usize| self.head_of(operand, self.key(batch, head / self.group(), j));
        let scores: Vec<f64> = seen.clone().map(|j| self.op.scale * dot(&q, &key(1, j))).collect();
        let highest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let powers: Vec<f64> = scores.iter().map(|score| (score - highest).exp()).collect();
        let sum: f64 = powers.iter().sum();
        let p: Vec<f64> = powers.iter().map(|power| power / sum).collect();
        let dp: Vec<f64> = seen.clone().map(|j| dot(&dout, &key(2, j))).collect();
        let mean = dot(&p, &dp);
        // Kernels make the mean of the rounded output, or of rounded probabilities: the larger of the two sums.
        let of_output: f64 = {
            let mut out = vec![0.0; dout.len()];
            p.iter().zip(seen.clone()).for_each(|(p, j)| add(&mut out, *p, &key(2, j)));
            out.iter().zip(&dout).map(|(out, dout)| (out * dout).abs()).sum()
        };
        let of_mean = of_output.max(p.iter().zip(&dp).map(|(p, dp)| p * dp.abs()).sum());
        let dscores: Vec<f64> = p.iter().zip(&dp).map(|(p, dp)| p * (dp - mean)).collect();
        let uncancelled = p.iter().zip(&dscores).map(|(p, ds)| ds.abs() + p * of_mean).collect();
        Row { first: seen.start, probabilities: p, dscores, uncancelled }
    }

    /// The output and the gradient of q of one query.
    pub fn of_query(&self, batch: usize, head: usize, row: usize) -> [Sums; 2] {
        let of = self.row(batch, head, row);
        let (mut out, mut dq) = (Sums::zeros(self.op.head_dim), Sums::zeros(self.op.head_dim));
        let scale = self.op.scale;
        for (place, p) in of.probabilities.iter().enumerate() {
            let at = self.key(batch, head / self.group(), of.first + place);
            out.add(*p, *p + self.least(), &self.head_of(2, at));
            let size = scale * of.uncancelled[place] + self.least();
            dq.add(scale * of.dscores[place], size, &self.head_of(1, at));
        }
        [out, dq]
    }

    /// The gradients of k and v of one key: every query that sees it has a part in them.
    pub fn of_key(&self, batch: usize, kv_head: usize, row: usize) -> [Sums; 2] {
        let (mut dk, mut dv) = (Sums::zeros(self.op.head_dim), Sums::zeros(self.op.head_dim));
        let scale = self.op.scale;
        for head in kv_head * self.group()..(kv_head + 1) * self.group() {
            for query in self.queries(row) {
                let of = self.row(batch, head, query);
                let (at, place) = (self.query(batch, head, query), row - of.first);
                let (p, least) = (of.probabilities[place], self.least());
                dk.add(scale * of.dscores[place], scale * of.uncancelled[place] + least, &self.head_of(0, at));
                dv.add(p, p + least, &self.head_of(3, at));
            }
        }
        [dk, dv]
    }

    /// The queries that see a key.
    fn queries(&self, row: usize) -> std::ops::Range<usize> {
        let window = self.op.window.unwrap_or(self.op.seq);
        row..row.saturating_add(window).min(self.op.seq)
    }

    /// How much a key would be read if every query looked at all that it sees alike. The first key is read most.
    pub fn weight_of_key(&self, row: usize) -> f64 {
        self.queries(row).map(|query| 1.0 / self.op.seen(query).len() as f64).sum()
    }

    /// Multiply-adds of [`Exact::of_key`], about.
    pub fn work_of_key(&self, row: usize) -> usize {
        let seen: usize = self.queries(row).map(|query| self.op.seen(query).len()).sum();
        seen.saturating_mul(4 * self.group() * self.op.head_dim)
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add(sum: &mut [f64], factor: f64, x: &[f64]) {
    sum.iter_mut().zip(x).for_each(|(sum, x)| *sum += factor * x);
}

/// How far a result may be from the exact one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// This share of it and of what its sum is made of.
    pub share: f64,
    /// And this much however small it is.
    pub tiny: f64,
}

impl Tolerance {
    /// Of two results that are both within it.
    pub fn twice(self) -> Tolerance {
        Tolerance { share: 2.0 * self.share, tiny: 2.0 * self.tiny }
    }
}

/// How far attention may be from f64: a share of the element, for the rounding of the result, and of what its sum is made
/// of, for what is rounded on the way: probabilities, gradients of scores and the output that backward reads. Twice half a
/// unit in the last place for types of 16 bits, since some of these are rounded both when they are made and when they are
/// used; for f32 the kernels' tests' 1e-5, which is sums of some hundred terms, and more of longer ones. The smallest
/// numbers of f16 are apart by 2^-24, and probabilities of long sequences are among them.
pub fn tolerance(dtype: DType, seq: usize) -> Tolerance {
    match dtype {
        DType::F16 => Tolerance { share: 2.0 * half_ulp(dtype), tiny: 2f64.powi(-24) },
        DType::Bf16 => Tolerance { share: 2.0 * half_ulp(dtype), tiny: 0.0 },
        _ => Tolerance { share: 1e-5 * (seq as f64 / 512.0).sqrt().max(1.0), tiny: 0.0 },
    }
}

/// Elements beside the exact ones.
pub fn compare(name: &str, got: &[f64], want: &Sums, tolerance: Tolerance) -> Checked {
    let mut checked = Checked::default();
    for (place, ((got, value), size)) in got.iter().zip(&want.values).zip(&want.sizes).enumerate() {
        let bound = tolerance.share * (value.abs() + size) + tolerance.tiny;
        checked.see(*got, *value, bound, || format!("sampled element {place} of {name}"));
    }
    checked
}
