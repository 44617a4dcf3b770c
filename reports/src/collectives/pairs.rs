//! Bandwidth between every two ranks, and which ranks or links are outliers.

use crate::document::{Document, Entry, Table, Tone};
use crate::units;
use serde::{Deserialize, Serialize};
use std::fmt::Write;

/// The measured bandwidths and their outliers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Pairs {
    /// Bytes that each rank of a pair sends to the other.
    pub bytes: u64,
    /// Host of each rank.
    pub hosts: Vec<String>,
    /// GB/s each way while both directions are in use; absent on the diagonal.
    pub gb_s: Vec<Vec<Option<f64>>>,
    /// What makes an outlier, in words.
    pub rule: String,
    /// The rates of each kind of pair (on one host, between hosts) with the thresholds; older records have none.
    #[serde(default)]
    pub kinds: Vec<PairKind>,
    /// Pairs that were measured again before they were judged.
    pub suspects: Vec<Suspect>,
    /// How often a suspect was measured again.
    pub retries: usize,
    /// Ranks that are slow with every other rank.
    pub bad_ranks: Vec<usize>,
    /// Pairs that are slow although neither rank is slow with others.
    pub bad_links: Vec<[usize; 2]>,
    /// The results of halving the ranks, step by step; empty where it was not requested.
    pub halves: Vec<String>,
}

/// The rates of pairs of one kind, and the thresholds for outliers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PairKind {
    /// Whether both ranks are on one host.
    pub same_host: bool,
    /// Number of pairs.
    pub pairs: usize,
    /// The slowest pair.
    pub lowest_gb_s: f64,
    /// The median pair.
    pub median_gb_s: f64,
    /// The fastest pair.
    pub highest_gb_s: f64,
    /// A rank whose best pair is below this is an outlier; absent where there are fewer than three ranks to compare.
    pub rank_threshold_gb_s: Option<f64>,
    /// A link below this is an outlier; absent where there are fewer than three links to compare.
    pub link_threshold_gb_s: Option<f64>,
}

impl PairKind {
    /// `pairs on one host: 1.64 to 5.85 GB/s, median 3.55; a link stands out below 0.9, a rank whose best pair is below 2.1`.
    fn words(&self) -> String {
        let mut text = format!(
            "{} {}: {} to {} GB/s, median {}",
            units::plural(self.pairs, "pair", "pairs"),
            if self.same_host { "on one host" } else { "between hosts" },
            units::number(self.lowest_gb_s),
            units::number(self.highest_gb_s),
            units::number(self.median_gb_s)
        );
        if let Some(rate) = self.link_threshold_gb_s {
            text += &format!("; a link stands out below {} GB/s", units::number(rate));
        }
        if let Some(rate) = self.rank_threshold_gb_s {
            text += &format!("; a rank stands out if its best pair is below {} GB/s", units::number(rate));
        }
        text
    }
}

/// A pair that was an outlier at first.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Suspect {
    /// The two ranks.
    pub ranks: [usize; 2],
    /// The first measurement.
    pub first_gb_s: f64,
    /// The repeated measurements.
    pub again_gb_s: Vec<f64>,
    /// Whether the median of the repetitions is still an outlier.
    pub confirmed: bool,
}

impl Pairs {
    /// Whether there are no outliers.
    pub fn is_clean(&self) -> bool {
        self.bad_ranks.is_empty() && self.bad_links.is_empty()
    }

    fn place(&self, rank: usize) -> String {
        format!("rank {rank} on {}", self.hosts.get(rank).map_or("an unknown host", String::as_str))
    }

    fn rate(&self, a: usize, b: usize) -> Option<f64> {
        self.gb_s.get(a)?.get(b).copied().flatten()
    }

    fn kind(&self, a: usize, b: usize) -> Option<&PairKind> {
        let same_host = self.hosts.get(a)? == self.hosts.get(b)?;
        self.kinds.iter().find(|kind| kind.same_host == same_host)
    }

    /// `1.2 GB/s, the median of such pairs is 3.9, the threshold 2.1` for a link, or a rank's best pair, below its threshold.
    /// `None` for others, which were found by halving.
    fn below_threshold(&self, (a, b): (usize, usize), threshold: fn(&PairKind) -> Option<f64>) -> Option<String> {
        let (rate, kind) = (self.rate(a, b)?, self.kind(a, b)?);
        let limit = threshold(kind).filter(|limit| rate < *limit)?;
        let [rate, median, limit] = [rate, kind.median_gb_s, limit].map(units::number);
        Some(format!("{rate} GB/s, the median of such pairs is {median}, the threshold {limit}"))
    }

    /// The fastest pair of a rank, relative to the median of its kind.
    fn best(&self, rank: usize) -> Option<(usize, usize)> {
        let share = |other: &usize| {
            let median = self.kind(rank, *other).map_or(1.0, |kind| kind.median_gb_s);
            self.rate(rank, *other).map_or(f64::NEG_INFINITY, |rate| rate / median)
        };
        let others = (0..self.gb_s.len()).filter(|other| *other != rank);
        others.max_by(|a, b| share(a).total_cmp(&share(b))).map(|other| (rank, other))
    }

    /// A sentence for each finding: the outliers and their rates, then the rates and thresholds of each kind of pairs.
    pub fn findings(&self) -> Vec<String> {
        let mut findings = Vec::new();
        for rank in &self.bad_ranks {
            let best = self.best(*rank).and_then(|pair| self.below_threshold(pair, |kind| kind.rank_threshold_gb_s));
            let best = best.map_or(String::new(), |rate| format!(" (its best pair: {rate})"));
            findings.push(format!("{} is slow with every other rank{best}", self.place(*rank)));
        }
        for [a, b] in &self.bad_links {
            let rate = self.below_threshold((*a, *b), |kind| kind.link_threshold_gb_s);
            let rate = rate.map_or(String::new(), |rate| format!(" ({rate})"));
            let (a, b) = (self.place(*a), self.place(*b));
            findings.push(format!("the link between {a} and {b} is slow, neither is with others{rate}"));
        }
        if findings.is_empty() {
            findings.push(match self.gb_s.len() {
                0..=2 => "a single pair has nothing to be compared with".into(),
                _ => "no rank and no link is below its threshold".into(),
            });
        }
        findings.extend(self.kinds.iter().map(PairKind::words));
        findings
    }

    fn is_outlier(&self, a: usize, b: usize) -> bool {
        self.bad_ranks.iter().any(|rank| [a, b].contains(rank))
            || self.bad_links.iter().any(|link| *link == [a.min(b), a.max(b)])
    }

    /// As lines that begin with `#`; a star marks outliers.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let n = self.gb_s.len();
        let _ = writeln!(
            text,
            "#\n# Pairs: GB/s each way of {} both ways at once, best of the iterations; all pairs of a round at the same time, {} rounds",
            units::memory(self.bytes as f64),
            if n.is_multiple_of(2) { n.saturating_sub(1) } else { n }
        );
        let _ = writeln!(text, "# Outliers (*): {}", self.rule);
        let heads: String = (0..n).map(|rank| format!("{rank:>9}")).collect();
        let _ = writeln!(text, "# {:>6}{heads}", "rank");
        for a in 0..n {
            let _ = write!(text, "# {a:>6}");
            for b in 0..n {
                let star = if a != b && self.is_outlier(a, b) { "*" } else { " " };
                let value = self.gb_s[a][b].map_or_else(|| "-".to_string(), |rate| super::table::fitting(rate, 7));
                let _ = write!(text, "{value:>8}{star}");
            }
            text.push('\n');
        }
        for suspect in &self.suspects {
            let again: Vec<String> = suspect.again_gb_s.iter().map(|rate| units::number(*rate)).collect();
            let [a, b] = suspect.ranks;
            let verdict = if suspect.confirmed { "confirmed" } else { "not confirmed" };
            let _ = writeln!(
                text,
                "# Pair {a}-{b} measured again {}: {} GB/s, then {}: {verdict}",
                units::plural(suspect.again_gb_s.len(), "time", "times"),
                units::number(suspect.first_gb_s),
                again.join(", ")
            );
        }
        for step in &self.halves {
            let _ = writeln!(text, "# Halves: {step}");
        }
        for finding in self.findings() {
            let _ = writeln!(text, "# Verdict: {finding}");
        }
        text
    }

    /// Adds a section to a document.
    pub fn add_to(&self, document: &mut Document) {
        let ranks: Vec<usize> = (0..self.gb_s.len()).collect();
        let mut table = Table::of("pairs", &ranks);
        table.numbers("rank", "", |rank| *rank);
        for &b in &ranks {
            table.numbers(b.to_string(), "GB/s", |&a| {
                let tone = if self.is_outlier(a, b) { Tone::Warning } else { Tone::Plain };
                Entry::maybe(self.rate(a, b), units::number).toned(tone)
            });
        }
        document.heading("pairs");
        document.table(table.build().caption(format!(
            "GB/s each way of {} both ways at once. Outliers: {}",
            units::memory(self.bytes as f64),
            self.rule
        )));
        document.list([self.halves.clone(), self.findings()].concat());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four ranks on one host whose pairs have from 1.64 to 5.85 GB/s.
    fn pairs() -> Pairs {
        let mut gb_s = vec![vec![None; 4]; 4];
        let ranks = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)];
        for ((a, b), rate) in ranks.into_iter().zip([1.64, 5.85, 2.2, 4.9, 3.1, 4.0]) {
            (gb_s[a][b], gb_s[b][a]) = (Some(rate), Some(rate));
        }
        let kind = PairKind {
            same_host: true,
            pairs: 6,
            lowest_gb_s: 1.64,
            median_gb_s: 3.55,
            highest_gb_s: 5.85,
            rank_threshold_gb_s: Some(2.9),
            link_threshold_gb_s: Some(1.1),
        };
        Pairs { hosts: vec!["node".into(); 4], gb_s, kinds: vec![kind], ..Pairs::default() }
    }

    #[test]
    fn the_verdict_states_the_median_and_the_thresholds() {
        assert_eq!(
            pairs().findings(),
            [
                "no rank and no link is below its threshold",
                "6 pairs on one host: 1.64 to 5.85 GB/s, median 3.55; a link stands out below 1.10 GB/s; a rank stands out if \
                 its best pair is below 2.90 GB/s"
            ]
        );
    }

    #[test]
    fn what_is_beyond_a_threshold_is_said_with_it() {
        let mut found = Pairs { bad_ranks: vec![3], bad_links: vec![[0, 1]], ..pairs() };
        found.kinds[0].link_threshold_gb_s = Some(1.7);
        found.kinds[0].rank_threshold_gb_s = Some(4.5);
        let said = found.findings();
        assert_eq!(
            said[0],
            "rank 3 on node is slow with every other rank (its best pair: 4.00 GB/s, the median of such pairs is 3.55, the \
             threshold 4.50)"
        );
        assert!(said[1].ends_with("(1.64 GB/s, the median of such pairs is 3.55, the threshold 1.70)"), "{}", said[1]);
        assert!(said[2].starts_with("6 pairs on one host"), "{said:?}");
        // What halving alone found is below no threshold, and a record of an older version has none.
        found.kinds[0].rank_threshold_gb_s = Some(2.9);
        assert_eq!(found.findings()[0], "rank 3 on node is slow with every other rank");
        found.kinds.clear();
        assert_eq!(found.findings().len(), 2);
    }
}
