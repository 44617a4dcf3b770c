//! Which ranks and links stand out of a matrix of bandwidths, by robust statistics.
//!
//! A pair within a host and a pair between hosts are not alike, so each is taken relative to the 75th percentile of its
//! kind. A rank is judged by its *best* pair: one slow rank makes 2/n of all pairs slow, half of them at four ranks, where
//! a median over pairs would see nothing; but it leaves a good pair to every other rank. A link is judged among the links
//! whose ranks are both above suspicion.

use zbench_reports::collectives::PairKind;
use zbench_reports::stats;

/// Scales a median absolute deviation to the standard deviation of a normal distribution.
const MAD_TO_SIGMA: f64 = 1.4826;
/// As Iglewicz and Hoaglin advise for outliers by median and MAD.
const SIGMAS: f64 = 3.5;
/// What is closer than this to the median is no outlier, however still the others are.
const LEAST: f64 = 0.2;

pub const RULE: &str = "below the median by more than the larger of 20 % and 3.5 deviations (1.4826 MAD of the logarithms), pairs relative \
                        to the 75th percentile of their kind (same host or not); ranks by their best pair, then links \
                        between other ranks; measured again before the verdict";

/// What stands out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outliers {
    /// Slow with everybody.
    pub ranks: Vec<usize>,
    /// Slow together, though neither is slow with everybody; the lower number first.
    pub links: Vec<(usize, usize)>,
    /// The rates of each kind of pair, and the rates below which a rank or a link of that kind stands out.
    pub kinds: Vec<PairKind>,
}

/// The level below which a value stands out; `None` of fewer than three, which say nothing of each other. Rates spread in
/// proportion, so the statistics are those of their logarithms.
fn limit(values: &[f64]) -> Option<f64> {
    if values.len() < 3 {
        return None;
    }
    let logs: Vec<f64> = values.iter().map(|value| value.max(f64::MIN_POSITIVE).ln()).collect();
    let median = stats::median(&logs)?;
    let deviations: Vec<f64> = logs.iter().map(|log| (log - median).abs()).collect();
    let sigma = MAD_TO_SIGMA * stats::median(&deviations)?;
    Some((median - (SIGMAS * sigma).max(-(1.0 - LEAST).ln())).exp())
}

/// Judges a symmetric matrix of bandwidths; the diagonal is not looked at.
pub fn outliers(bandwidth: &[Vec<f64>], hosts: &[String]) -> Outliers {
    let n = bandwidth.len();
    let pairs = || (0..n).flat_map(|a| (a + 1..n).map(move |b| (a, b)));
    let is_local = |(a, b): (usize, usize)| hosts[a] == hosts[b];
    let typical = |local: bool| {
        let values: Vec<f64> = pairs().filter(|pair| is_local(*pair) == local).map(|(a, b)| bandwidth[a][b]).collect();
        stats::percentile(&values, 75.0)
    };
    let typical = [typical(false), typical(true)];
    let relative = |(a, b): (usize, usize)| {
        let of_kind = typical[usize::from(is_local((a, b)))].filter(|value| *value > 0.0);
        of_kind.map_or(1.0, |of_kind| bandwidth[a][b] / of_kind)
    };
    let best = |rank: usize| {
        let own = pairs().filter(|(a, b)| *a == rank || *b == rank);
        own.map(relative).fold(0.0, f64::max)
    };
    let best: Vec<f64> = (0..n).map(best).collect();
    let mut found = Outliers::default();
    let of_ranks = limit(&best);
    if let Some(limit) = of_ranks {
        found.ranks = (0..n).filter(|rank| best[*rank] < limit).collect();
    }
    let others: Vec<(usize, usize)> =
        pairs().filter(|(a, b)| !found.ranks.contains(a) && !found.ranks.contains(b)).collect();
    let values: Vec<f64> = others.iter().map(|pair| relative(*pair)).collect();
    let of_links = limit(&values);
    if let Some(limit) = of_links {
        found.links = others.into_iter().filter(|pair| relative(*pair) < limit).collect();
    }
    for same_host in [true, false] {
        let rates: Vec<f64> =
            pairs().filter(|pair| is_local(*pair) == same_host).map(|(a, b)| bandwidth[a][b]).collect();
        let Some(median_gb_s) = stats::median(&rates) else { continue };
        let gb_s = |limit: Option<f64>| Some(limit? * typical[usize::from(same_host)]?);
        found.kinds.push(PairKind {
            same_host,
            pairs: rates.len(),
            lowest_gb_s: rates.iter().copied().fold(f64::INFINITY, f64::min),
            median_gb_s,
            highest_gb_s: rates.iter().copied().fold(0.0, f64::max),
            rank_threshold_gb_s: gb_s(of_ranks),
            link_threshold_gb_s: gb_s(of_links),
        });
    }
    found
}

/// The rounds of a tournament in which every two meet once, and nobody is in two pairs of a round: `n - 1` rounds for even
/// `n`, else `n` with one rank left out of each. (One stays, the others move on around a circle.)
pub fn tournament(n: usize) -> Vec<Vec<(usize, usize)>> {
    let seats = n + n % 2;
    let round = |round: usize| {
        let at = |seat: usize| if seat == 0 { 0 } else { 1 + (seat - 1 + round) % (seats - 1) };
        let pairs = (0..seats / 2).map(|seat| (at(seat), at(seats - 1 - seat)));
        pairs.map(|(a, b)| (a.min(b), a.max(b))).filter(|(_, b)| *b < n).collect()
    };
    (0..seats.saturating_sub(1)).map(round).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bandwidths of 10 GB/s within 5 %, by a fixed pseudo-random rule.
    fn noisy(n: usize, change: impl Fn(usize, usize) -> f64) -> Vec<Vec<f64>> {
        let noise = |a: usize, b: usize| 1.0 + ((a.min(b) * 31 + a.max(b) * 17) % 11) as f64 / 110.0 - 0.05;
        (0..n).map(|a| (0..n).map(|b| 10.0 * noise(a, b) * change(a, b)).collect()).collect()
    }

    /// The ranks and links that stand out.
    fn named(bandwidth: &[Vec<f64>], hosts: &[String]) -> (Vec<usize>, Vec<(usize, usize)>) {
        let found = outliers(bandwidth, hosts);
        (found.ranks, found.links)
    }

    fn one_host(n: usize) -> Vec<String> {
        vec!["host".to_string(); n]
    }

    #[test]
    fn a_tournament_has_every_pair_once_and_nobody_twice_in_a_round() {
        for n in 1..20 {
            let rounds = tournament(n);
            assert_eq!(
                rounds.len(),
                if n % 2 == 0 {
                    n - 1
                } else if n == 1 {
                    1
                } else {
                    n
                }
            );
            let mut all: Vec<(usize, usize)> = rounds.concat();
            all.sort_unstable();
            let expected: Vec<(usize, usize)> = (0..n).flat_map(|a| (a + 1..n).map(move |b| (a, b))).collect();
            assert_eq!(all, expected, "{n}");
            for round in rounds {
                let mut ranks: Vec<usize> = round.iter().flat_map(|(a, b)| [*a, *b]).collect();
                ranks.sort_unstable();
                ranks.dedup();
                assert_eq!(ranks.len(), 2 * round.len());
            }
        }
    }

    #[test]
    fn noise_alone_is_no_outlier() {
        for n in 2..12 {
            assert_eq!(named(&noisy(n, |_, _| 1.0), &one_host(n)), (vec![], vec![]), "{n}");
        }
    }

    #[test]
    fn one_slow_rank_is_named_however_few_there_are() {
        for n in 3..12 {
            for slow in 0..n {
                let found = named(&noisy(n, |a, b| if a == slow || b == slow { 0.5 } else { 1.0 }), &one_host(n));
                assert_eq!(found, (vec![slow], vec![]), "{slow} of {n}");
            }
        }
    }

    #[test]
    fn one_slow_link_is_named_and_its_ranks_are_not_blamed() {
        for n in 3..10 {
            let found = named(&noisy(n, |a, b| if (a.min(b), a.max(b)) == (1, 2) { 0.4 } else { 1.0 }), &one_host(n));
            assert_eq!(found, (vec![], vec![(1, 2)]), "{n}");
        }
    }

    #[test]
    fn links_between_hosts_are_compared_with_their_like() {
        let hosts: Vec<String> = (0..8).map(|rank| format!("node{}", rank / 4)).collect();
        let between = |a: usize, b: usize| if a / 4 == b / 4 { 1.0 } else { 0.1 };
        assert_eq!(named(&noisy(8, between), &hosts), (vec![], vec![]));
        let found = outliers(
            &noisy(8, |a, b| {
                between(a, b) * if a.max(b) == 6 && a.min(b) < 4 || a.min(b) == 6 || a.max(b) == 6 { 0.3 } else { 1.0 }
            }),
            &hosts,
        );
        assert_eq!(found.ranks, [6]);
    }

    /// Rates from 1.64 to 5.85 GB/s, as a busy machine gave them: nothing stands out, and the thresholds say why.
    #[test]
    fn the_thresholds_are_those_that_decide() {
        let rates = [1.64, 5.85, 2.2, 4.9, 3.1, 4.0];
        let mut matrix = vec![vec![f64::NAN; 4]; 4];
        let pairs = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)];
        for ((a, b), rate) in pairs.into_iter().zip(rates) {
            (matrix[a][b], matrix[b][a]) = (rate, rate);
        }
        let found = outliers(&matrix, &one_host(4));
        let [kind] = &found.kinds[..] else { panic!("one host has one kind of pair: {:?}", found.kinds) };
        assert_eq!((kind.same_host, kind.pairs, kind.lowest_gb_s, kind.highest_gb_s), (true, 6, 1.64, 5.85));
        assert_eq!(kind.median_gb_s, 3.55);
        let below = kind.link_threshold_gb_s.unwrap();
        assert!(found.links.is_empty() && below < 1.64 && kind.rank_threshold_gb_s.unwrap() < 4.0, "{kind:?}");
        let hosts: Vec<String> = (0..6).map(|rank| format!("node{}", rank / 3)).collect();
        let slow = outliers(&noisy(6, |a, b| if a / 3 == b / 3 { 1.0 } else { 0.1 }), &hosts);
        assert_eq!(
            slow.kinds.iter().map(|kind| (kind.same_host, kind.pairs)).collect::<Vec<_>>(),
            [(true, 6), (false, 9)]
        );
        assert!(slow.kinds[1].link_threshold_gb_s.unwrap() < 1.0 && slow.kinds[0].link_threshold_gb_s.unwrap() > 5.0);
    }
}
