//! Bandwidth between every two ranks, and which ranks or links stand out.

use crate::document::{Column, Document, Entry, Table, Tone};
use crate::units;
use serde::{Deserialize, Serialize};
use std::fmt::Write;

/// What was measured and what follows.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Pairs {
    /// Bytes that each rank of a pair gives the other.
    pub bytes: u64,
    /// Host of each rank.
    pub hosts: Vec<String>,
    /// GB/s each way while both directions are in use; absent on the diagonal.
    pub gb_s: Vec<Vec<Option<f64>>>,
    /// What makes an outlier, in words.
    pub rule: String,
    /// Pairs that were measured again before anything was said of them.
    pub suspects: Vec<Suspect>,
    /// How often a suspect was measured again.
    pub retries: usize,
    /// Ranks that are slow with everybody.
    pub bad_ranks: Vec<usize>,
    /// Pairs that are slow though both ranks are not.
    pub bad_links: Vec<[usize; 2]>,
    /// What halving found, step by step; empty where it was not asked for.
    pub halves: Vec<String>,
}

/// A pair that stood out at first.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Suspect {
    /// The two.
    pub ranks: [usize; 2],
    /// What was measured at first.
    pub first_gb_s: f64,
    /// What was measured again.
    pub again_gb_s: Vec<f64>,
    /// Whether it still stands out by the median of the repetitions.
    pub confirmed: bool,
}

impl Pairs {
    /// Whether nothing stands out.
    pub fn is_clean(&self) -> bool {
        self.bad_ranks.is_empty() && self.bad_links.is_empty()
    }

    fn place(&self, rank: usize) -> String {
        format!("rank {rank} on {}", self.hosts.get(rank).map_or("an unknown host", String::as_str))
    }

    /// What to make of it, a sentence for each finding.
    pub fn findings(&self) -> Vec<String> {
        let mut findings = Vec::new();
        for rank in &self.bad_ranks {
            findings.push(format!("{} is slow with every other rank", self.place(*rank)));
        }
        for [a, b] in &self.bad_links {
            findings.push(format!(
                "the link between {} and {} is slow, neither is with others",
                self.place(*a),
                self.place(*b)
            ));
        }
        if findings.is_empty() {
            findings.push(match self.gb_s.len() {
                0..=2 => "a single pair has nothing to be compared with".into(),
                _ => "no rank and no link stands out".into(),
            });
        }
        findings
    }

    fn is_marked(&self, a: usize, b: usize) -> bool {
        self.bad_ranks.iter().any(|rank| [a, b].contains(rank))
            || self.bad_links.iter().any(|link| *link == [a.min(b), a.max(b)])
    }

    /// As lines that begin with `#`; a star marks what stands out.
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
                let star = if a != b && self.is_marked(a, b) { "*" } else { " " };
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

    /// As a part of a document.
    pub fn add_to(&self, document: &mut Document) {
        document.heading("pairs");
        let ranks = (0..self.gb_s.len()).map(|rank| Column::numbers(rank.to_string(), "GB/s"));
        let columns = std::iter::once(Column::numbers("rank", "")).chain(ranks).collect();
        let mut table = Table::new("pairs", columns).caption(format!(
            "GB/s each way of {} both ways at once. Outliers: {}",
            units::memory(self.bytes as f64),
            self.rule
        ));
        for (a, line) in self.gb_s.iter().enumerate() {
            let entry = |(b, rate): (usize, &Option<f64>)| {
                let tone = if self.is_marked(a, b) { Tone::Warning } else { Tone::Plain };
                Entry::maybe(*rate, units::number).toned(tone)
            };
            let entries = std::iter::once(Entry::whole(a as u64, a.to_string()));
            table.row(entries.chain(line.iter().enumerate().map(entry)).collect());
        }
        document.table(table);
        document.list([self.halves.clone(), self.findings()].concat());
    }
}
