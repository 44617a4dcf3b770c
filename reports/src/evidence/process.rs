//! Products of bets on the sign of differences: e-processes, and the limits that follow from them.

/// One difference with the scale that was fixed before it was seen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scored {
    /// y(B) - y(A).
    pub difference: f64,
    /// What counts as one unit of it.
    pub scale: f64,
}

/// Differences are taken to lie within these limits (factors of e^100), so that nothing overflows.
pub const LARGEST: f64 = 100.0;

/// The bets (lambda) and their weights on differences whose sign is a fair coin.
const BETS: [(f64, f64); 3] = [(0.15, 0.4), (0.35, 0.35), (0.8, 0.25)];
/// The same in grids.
const GRID_BETS: [(f64, f64); 4] = [(0.15, 0.3), (0.35, 0.3), (0.8, 0.25), (1.6, 0.15)];
/// Assumed variance of a difference of unit scale in grids: more than 1, since the scale is an estimate.
const PROXY: f64 = 1.15;

/// How evidence is gathered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// From signs, softened: each factor is exp(lambda z) / cosh(lambda z), z within 1. Valid whenever z and -z are equally
    /// likely given the past.
    Signs,
    /// Half from signs and half from exp(lambda z - 1.15 lambda^2 / 2), z within 2.5. Approximate, and much faster where
    /// rounds are few.
    Grid,
}

/// The logarithm of the evidence that the differences lie above `limit`.
pub fn above(method: Method, rounds: &[Scored], limit: f64) -> f64 {
    match method {
        Method::Signs => mixture(&BETS, |lambda| signs(rounds, limit, lambda)),
        Method::Grid => {
            let by_signs = mixture(&GRID_BETS, |lambda| signs(rounds, limit, lambda));
            let by_size = mixture(&GRID_BETS, |lambda| sizes(rounds, limit, lambda));
            log_sum(&[by_signs, by_size]) - std::f64::consts::LN_2
        }
    }
}

/// The largest limit that the differences are shown to lie above, with evidence of at least `needed` (a logarithm).
/// None if no limit is.
pub fn lower_limit(method: Method, rounds: &[Scored], needed: f64) -> Option<f64> {
    // Farther out every difference is clipped, and the evidence no longer changes.
    let reach = |round: &Scored| 3.0 * round.scale;
    let mut low = rounds.iter().map(|round| round.difference - reach(round)).fold(f64::INFINITY, f64::min);
    let mut high = rounds.iter().map(|round| round.difference + reach(round)).fold(f64::NEG_INFINITY, f64::max);
    if rounds.is_empty() || above(method, rounds, low) < needed {
        return None;
    }
    // The evidence falls as the limit rises.
    for _ in 0..60 {
        let middle = low + (high - low) / 2.0;
        if middle <= low || middle >= high {
            break;
        }
        if above(method, rounds, middle) >= needed {
            low = middle;
        } else {
            high = middle;
        }
    }
    Some(low)
}

fn signs(rounds: &[Scored], limit: f64, lambda: f64) -> f64 {
    // exp(x) / cosh(x) = 2 / (1 + exp(-2x)). Factors are multiplied before the logarithm: eight are at most 256.
    let factor = |round: &Scored| {
        let z = ((round.difference - limit) / round.scale).clamp(-1.0, 1.0);
        2.0 / (1.0 + (-2.0 * lambda * z).exp())
    };
    rounds.chunks(8).map(|some| some.iter().map(factor).product::<f64>().ln()).sum()
}

fn sizes(rounds: &[Scored], limit: f64, lambda: f64) -> f64 {
    let term = |round: &Scored| {
        let z = ((round.difference - limit) / round.scale).clamp(-2.5, 2.5);
        lambda * z - PROXY * lambda * lambda / 2.0
    };
    rounds.iter().map(term).sum()
}

/// The logarithm of the weighted mean of e-values, whose logarithms are `of` each bet.
fn mixture<const N: usize>(bets: &[(f64, f64); N], of: impl Fn(f64) -> f64) -> f64 {
    log_sum(&bets.map(|(lambda, weight)| of(lambda) + weight.ln()))
}

/// ln of the sum of exponentials.
fn log_sum(values: &[f64]) -> f64 {
    let largest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    largest + values.iter().map(|value| (value - largest).exp()).sum::<f64>().ln()
}
