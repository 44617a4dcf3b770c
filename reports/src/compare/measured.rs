//! Two that took turns, as a document: the answer first, what it rests on, and what to do next.

use crate::document::Document;
use crate::evidence::{Comparison, Verdict};
use crate::units;

/// A comparison by turns and how it was made.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// A and B in words.
    pub names: [String; 2],
    /// What the turns say of B against A.
    pub comparison: Comparison,
    /// Wall time of everything.
    pub seconds: f64,
    /// Rounds that were discarded, as others used the cores.
    pub discarded: usize,
    /// What others used of the cores then, with the names of the busiest; empty where nothing was seen.
    pub others: String,
    /// Decided the order of turns.
    pub seed: u64,
    /// Differences below this share are called equal.
    pub equal: f64,
    /// Wall time that could be spent.
    pub budget: f64,
    /// Why a side ended early.
    pub failures: Vec<String>,
}

impl Measured {
    /// The document.
    pub fn document(&self) -> Document {
        let mut document = Document::new(self.answer());
        let [a, b] = &self.names;
        document.list(vec![format!("A: {a}"), format!("B: {b}"), self.basis()]);
        if !self.failures.is_empty() {
            document.list(self.failures.iter().map(|reason| format!("Ended early: {reason}")).collect());
        }
        if let Some(next) = self.next() {
            document.paragraph(next);
        }
        document
    }

    fn answer(&self) -> String {
        let Comparison { verdict, ratio, low, high, .. } = self.comparison;
        if self.comparison.rounds == 0 && self.discarded > 0 {
            return format!("NOTHING WAS MEASURED: {}", self.others);
        }
        let (Some(ratio), Some(low), Some(high)) = (ratio, low, high) else {
            return "UNDECIDED: too few rounds to compare A and B".into();
        };
        let change = |ratio: f64| units::change(ratio - 1.0);
        let interval = format!("98 % interval {} to {}", change(low), change(high));
        match verdict {
            Verdict::Faster => format!("B IS FASTER than A: {} ({interval})", change(ratio)),
            Verdict::Slower => format!("B IS SLOWER than A: {} ({interval})", change(ratio)),
            Verdict::Equal => {
                format!("A AND B ARE EQUAL within {}: {} ({interval})", units::percent(self.equal), change(ratio))
            }
            Verdict::Undecided => format!("UNDECIDED: B against A {} ({interval})", change(ratio)),
        }
    }

    fn basis(&self) -> String {
        let Comparison { rounds, generations, .. } = self.comparison;
        let discarded = match self.discarded {
            0 => String::new(),
            count => {
                format!("; {} discarded, since other processes used the cores", units::plural(count, "round", "rounds"))
            }
        };
        format!(
            "{} in {} of processes, {:.0} s{discarded}; seed {}",
            units::plural(rounds, "round", "rounds"),
            units::plural(generations, "generation", "generations"),
            self.seconds,
            self.seed
        )
    }

    fn next(&self) -> Option<String> {
        if self.discarded > self.comparison.rounds {
            return Some(format!(
                "Rounds beside other processes do not count ({}): wait until these have ended, or count all rounds with --allow-load.",
                self.others
            ));
        }
        let is_open = self.comparison.verdict == Verdict::Undecided;
        is_open.then(|| {
            format!("To decide more: --budget {:.0}s, or a larger difference with --decide.", self.budget * 4.0)
        })
    }
}
