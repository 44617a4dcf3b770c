//! Intervals that hold whatever the shape of the noise: Wilcoxon's signed-rank and rank-sum tests, inverted.
//!
//! A test of "the shift is d" that is valid for every distribution gives an interval: all d that it does not reject. For
//! both tests that interval ends at two order statistics of a list (Hodges and Lehmann), so nothing is simulated. The
//! probabilities are exact up to [`EXACT`] values; above, they are those of the normal approximation.

/// Up to this many values (of the signed-rank test), or this many of both sides together (of the rank-sum test), the probabilities are exact.
pub const EXACT: usize = 100;

/// A shift between two sides with its confidence limits. Limits are infinite where the values are
/// too few for the confidence asked.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shift {
    /// Lower limit.
    pub low: f64,
    /// The Hodges-Lehmann estimate.
    pub mid: f64,
    /// Upper limit.
    pub high: f64,
}

impl Shift {
    /// The same with both limits moved outwards.
    pub fn widened(self, by: f64) -> Self {
        Self { low: self.low - by, high: self.high + by, ..self }
    }

    /// How far zero lies outside of it; 0 when it holds zero.
    pub fn distance_of_zero(&self) -> f64 {
        self.low.max(-self.high).max(0.0)
    }
}

/// The centre of differences that are symmetric about it: pairs measured in random order are. The chance that it lies
/// outside is at most `alpha`. `None` of nothing. Differences must be finite.
pub fn paired(differences: &[f64], alpha: f64) -> Option<Shift> {
    let count = differences.len();
    let mut averages = Vec::with_capacity(count * (count + 1) / 2);
    for (place, a) in differences.iter().enumerate() {
        averages.extend(differences[place..].iter().map(|b| (a + b) / 2.0));
    }
    ends(averages, signed_rank_cut(count, alpha))
}

/// The shift of `b` against `a`, two samples that have nothing to do with each other. As [`paired`] otherwise.
pub fn unpaired(a: &[f64], b: &[f64], alpha: f64) -> Option<Shift> {
    let differences = a.iter().flat_map(|a| b.iter().map(move |b| b - a)).collect();
    ends(differences, rank_sum_cut(a.len(), b.len(), alpha))
}

/// The median of a list, and what is left when `cut` values are taken off at either end.
fn ends(mut list: Vec<f64>, cut: Option<usize>) -> Option<Shift> {
    let last = list.len().checked_sub(1)?;
    list.sort_by(f64::total_cmp);
    let mid = (list[last / 2] + list[last.div_ceil(2)]) / 2.0;
    Some(match cut {
        Some(cut) if cut * 2 <= last => Shift { low: list[cut], mid, high: list[last - cut] },
        _ => Shift { low: f64::NEG_INFINITY, mid, high: f64::INFINITY },
    })
}

/// The most Walsh averages that may be taken off at either end: the largest c with P(T <= c) <= alpha / 2, T the rank sum
/// of the positive among `count` differences that are symmetric about zero. Absent where even P(T = 0) is above.
pub fn signed_rank_cut(count: usize, alpha: f64) -> Option<usize> {
    if count == 0 {
        return None;
    }
    let n = count as f64;
    if count > EXACT {
        let mean = n * (n + 1.0) / 4.0;
        return normal_cut(mean, (mean * (2.0 * n + 1.0) / 6.0).sqrt(), alpha / 2.0);
    }
    // Rank r is among the positive with chance one half, independently of the others.
    let most = count * (count + 1) / 2;
    let mut chances = vec![0.0f64; most + 1];
    chances[0] = 1.0;
    for rank in 1..=count {
        for sum in (0..=rank * (rank + 1) / 2).rev() {
            let with = if sum >= rank { chances[sum - rank] } else { 0.0 };
            chances[sum] = (chances[sum] + with) / 2.0;
        }
    }
    exact_cut(&chances, alpha / 2.0)
}

/// The same for the differences between `m` and `n` values: U counts the pairs in which the first is the larger.
pub fn rank_sum_cut(m: usize, n: usize, alpha: f64) -> Option<usize> {
    if m == 0 || n == 0 {
        return None;
    }
    if m + n > EXACT {
        let (m, n) = (m as f64, n as f64);
        return normal_cut(m * n / 2.0, (m * n * (m + n + 1.0) / 12.0).sqrt(), alpha / 2.0);
    }
    // chances[j][u] of i and j values: the largest of them is one of the i with chance i / (i + j), and then it lies
    // above all j others.
    let mut row: Vec<Vec<f64>> = (0..=n).map(|_| vec![1.0]).collect();
    for i in 1..=m {
        let mut next: Vec<Vec<f64>> = vec![vec![1.0]];
        for j in 1..=n {
            let share = i as f64 / (i + j) as f64;
            let chance = |of: &[f64], u: usize| of.get(u).copied().unwrap_or(0.0);
            let of_sum = |u: usize| {
                let above = if u >= j { chance(&row[j], u - j) } else { 0.0 };
                share * above + (1.0 - share) * chance(&next[j - 1], u)
            };
            let chances = (0..=i * j).map(of_sum).collect();
            next.push(chances);
        }
        row = next;
    }
    exact_cut(&row[n], alpha / 2.0)
}

fn exact_cut(chances: &[f64], tail: f64) -> Option<usize> {
    let mut sum = 0.0;
    let within = chances.iter().take_while(|chance| {
        sum += **chance;
        // Sums of chances that are powers of two are exact; others may be one rounding above a limit they equal.
        sum <= tail * (1.0 + 1e-12)
    });
    within.count().checked_sub(1)
}

/// The largest whole c with P(X <= c) <= tail for X about normal, with the correction for whole numbers.
fn normal_cut(mean: f64, deviation: f64, tail: f64) -> Option<usize> {
    let cut = (mean - 0.5 - normal_quantile(1.0 - tail) * deviation).floor();
    (cut >= 0.0).then_some(cut as usize)
}

/// The value below which a standard normal number lies with this chance; by bisection, as it is asked for rarely.
pub fn normal_quantile(chance: f64) -> f64 {
    bisect(-40.0, 40.0, |x| normal_chance(x) < chance)
}

/// The end of the numbers from `low` on for which `holds`, at most `high`.
fn bisect(mut low: f64, mut high: f64, holds: impl Fn(f64) -> bool) -> f64 {
    for _ in 0..200 {
        let mid = (low + high) / 2.0;
        if holds(mid) { low = mid } else { high = mid }
    }
    (low + high) / 2.0
}

/// The chance that a standard normal number lies below `x`: a series near zero, a continued fraction in the tails.
fn normal_chance(x: f64) -> f64 {
    let size = x.abs();
    let density = (-size * size / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
    let below = if size < 3.0 {
        let (mut term, mut sum) = (size, size);
        for k in 1..200 {
            term *= size * size / (2 * k + 1) as f64;
            sum += term;
        }
        0.5 + density * sum
    } else {
        let fraction = (1..=60).rev().fold(size, |fraction, k| size + k as f64 / fraction);
        1.0 - density / fraction
    };
    if x < 0.0 { 1.0 - below } else { below }
}

/// The interval in which a share lies when `hits` of `count` were seen, with at least this confidence (Clopper and Pearson).
pub fn binomial_limits(hits: usize, count: usize, confidence: f64) -> (f64, f64) {
    let tail = (1.0 - confidence) / 2.0;
    // Both chances grow or fall with the share, so bisection finds where they are the tail.
    let at_most = |hits: usize, share: f64| (0..=hits).map(|k| binomial_chance(k, count, share)).sum::<f64>();
    let low = if hits == 0 { 0.0 } else { bisect(0.0, 1.0, |share| 1.0 - at_most(hits - 1, share) < tail) };
    let high = if hits >= count { 1.0 } else { bisect(0.0, 1.0, |share| at_most(hits, share) > tail) };
    (low, high)
}

fn binomial_chance(hits: usize, count: usize, share: f64) -> f64 {
    if share <= 0.0 || share >= 1.0 {
        let certain = if share <= 0.0 { 0 } else { count };
        return if hits == certain { 1.0 } else { 0.0 };
    }
    let ways: f64 = (0..hits).map(|k| ((count - k) as f64 / (k + 1) as f64).ln()).sum();
    (ways + hits as f64 * share.ln() + (count - hits) as f64 * (1.0 - share).ln()).exp()
}
