use serde::{Deserialize, Serialize};

/// Times of single iterations, each that of the slowest rank, and their summary. Percentiles are those of nccl-tests: always a measured
/// value (nearest rank), never one between two. The standard deviation is that of the population.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Iterations {
    /// Leading iterations that are not in the summary.
    pub skipped: usize,
    /// The shortest.
    pub min_us: f64,
    /// The longest.
    pub max_us: f64,
    /// The mean.
    pub mean_us: f64,
    /// The median.
    pub p50_us: f64,
    /// 95th percentile.
    pub p95_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// Standard deviation.
    pub stdev_us: f64,
    /// Standard deviation in percent of the mean.
    pub cv_percent: f64,
    /// The times of all iterations in order, skipped ones included.
    pub times_us: Vec<f64>,
    /// The same for every rank.
    pub per_rank_us: Vec<Vec<f64>>,
}

impl Iterations {
    /// From the times of every rank, without `skip` leading iterations in the summary. `None` if none is left.
    pub fn new(per_rank_us: Vec<Vec<f64>>, skip: usize) -> Option<Iterations> {
        let count = per_rank_us.iter().map(Vec::len).min()?;
        let slowest = |i: usize| per_rank_us.iter().map(|times| times[i]).fold(0.0, f64::max);
        let times_us: Vec<f64> = (0..count).map(slowest).collect();
        let mut sorted = times_us.get(skip..)?.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min_us, max_us) = (*sorted.first()?, *sorted.last()?);
        let mean_us = sorted.iter().sum::<f64>() / sorted.len() as f64;
        let variance = sorted.iter().map(|time| (time - mean_us).powi(2)).sum::<f64>() / sorted.len() as f64;
        let stdev_us = variance.sqrt();
        let nearest = |percent: usize| sorted[((sorted.len() * percent).div_ceil(100) - 1).min(sorted.len() - 1)];
        Some(Iterations {
            skipped: skip,
            min_us,
            max_us,
            mean_us,
            p50_us: sorted[sorted.len() / 2],
            p95_us: nearest(95),
            p99_us: nearest(99),
            stdev_us,
            cv_percent: if mean_us > 0.0 { stdev_us / mean_us * 100.0 } else { 0.0 },
            times_us,
            per_rank_us,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_rank_makes_the_time_of_an_iteration() {
        let all = Iterations::new(vec![vec![9.0, 1.0, 2.0, 3.0, 4.0], vec![1.0, 2.0, 1.0, 5.0, 1.0]], 1).unwrap();
        assert_eq!(all.times_us, [9.0, 2.0, 2.0, 5.0, 4.0]);
        assert_eq!((all.min_us, all.max_us, all.mean_us, all.p50_us, all.p99_us), (2.0, 5.0, 3.25, 4.0, 5.0));
        assert!((all.stdev_us - 1.299_038_105_676_658).abs() < 1e-12 && (all.cv_percent - 39.9704).abs() < 1e-3);
        assert!(Iterations::new(vec![vec![1.0]], 1).is_none() && Iterations::new(vec![], 0).is_none());
        let hundred = Iterations::new(vec![(1..=200).map(f64::from).collect()], 0).unwrap();
        assert_eq!((hundred.p50_us, hundred.p95_us, hundred.p99_us), (101.0, 190.0, 198.0));
    }
}
