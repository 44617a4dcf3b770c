//! What a self-test found, as data and as a document.

use super::replay::{Promise, Rate, Rates};
use super::report::Ratio;
use crate::document::{Column, Document, Entry, Table, Tone};
use crate::units;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// What the gate does on samples whose truth is known.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SelfTest {
    /// Version of this object.
    pub gate_self_test: u32,
    /// The cell, in words.
    pub cell: String,
    /// Its key.
    pub key: String,
    /// The rules' file.
    pub rules: String,
    /// The settings that were replayed, in words.
    pub settings: String,
    /// The pool's file.
    pub pool: String,
    /// Pairs of the same program.
    pub pairs: usize,
    /// Of them, those in which a trial had a validity flag.
    pub flagged: usize,
    /// The middle of the ratio of the same program to itself, by the whole pool, with 99 % limits.
    pub same: Option<Ratio>,
    /// What made the other arm slower, and pairs of it.
    pub slow_set: Vec<String>,
    /// See above.
    pub slow_pairs: usize,
    /// What was seen.
    pub rates: Vec<Rates>,
    /// What the gate promises.
    pub promises: Vec<Promise>,
    /// When the pool was begun, and by which command.
    pub measured: String,
    /// See above.
    pub pool_command: String,
    /// Machine and program of the pool.
    pub environment: Map<String, Value>,
    /// The command that replayed it.
    pub command: String,
}

impl SelfTest {
    /// Whether every promise was kept.
    pub fn is_kept(&self) -> bool {
        !self.promises.is_empty() && self.promises.iter().all(|promise| promise.kept)
    }

    /// The document.
    pub fn document(&self) -> Document {
        let mut document = Document::new("Self-test of the gate");
        let kept = if self.is_kept() { "Every promise was kept." } else { "NOT every promise was kept." };
        document.paragraph(format!(
            "{kept} {} of {} on this cell: {} ({}).",
            units::plural(self.pairs, "pair", "pairs"),
            self.pool,
            self.cell,
            self.key
        ));
        document.table(self.table());
        let line = |p: &Promise| {
            let kept = if p.kept { "kept" } else { "NOT kept" };
            format!("{}: {} (limit {}), {kept}", p.what, units::number(p.seen), units::number(p.limit))
        };
        document.heading("What the gate promises");
        document.list(self.promises.iter().map(line).collect());
        document.heading("What was replayed");
        let mut items = vec![
            format!("settings: {}", self.settings),
            format!("pairs with a validity flag: {} of {}", self.flagged, self.pairs),
            format!("measured: {} by {}", self.measured, self.pool_command),
        ];
        if let Some(same) = &self.same {
            items.push(format!(
                "the same program against itself, over the whole pool: {}",
                super::words::interval(same)
            ));
        }
        if self.slow_pairs > 0 {
            let slow = self.slow_set.join(" ");
            items.push(format!(
                "really slower: {} of a cell with {slow}",
                units::plural(self.slow_pairs, "pair", "pairs")
            ));
        }
        document.list(items);
        document.paragraph(
            "Comparisons are drawn from one pool and overlap, so the limits, which take them as independent, are somewhat \
             too narrow. A comparison that reaches the end of the pool goes on at its beginning.",
        );
        document.paragraph("Repeat it:");
        document.code(&self.command);
        document
    }

    fn table(&self) -> Table {
        let mut columns = vec![
            Column::words("replayed"),
            Column::numbers("slower", "factor"),
            Column::words("how"),
            Column::numbers("runs", ""),
        ];
        let names = self
            .rates
            .first()
            .map_or(Vec::new(), |rates| rates.verdicts.iter().map(|rate| rate.what.clone()).collect());
        // Failures do not occur in samples.
        let shown: Vec<String> = names.into_iter().filter(|name| name != "failed").collect();
        columns.extend(shown.iter().map(|name| Column::numbers(name.replace('_', " "), "share")));
        for (title, unit) in [("alarms", "share"), ("pairs", "mean"), ("time", "s"), ("longest", "s")] {
            columns.push(Column::numbers(title, unit));
        }
        let mut table = Table::new("self_test", columns);
        for rates in &self.rates {
            let how = if rates.measured { "measured" } else { "multiplied" };
            let mut row = vec![
                Entry::words(&rates.what),
                Entry::number(rates.factor, format!("{:.3}", rates.factor)),
                Entry::words(if rates.factor == 1.0 { "as measured" } else { how }),
                Entry::whole(rates.runs as u64, rates.runs.to_string()),
            ];
            row.extend(
                shown.iter().map(|name| {
                    rates.verdicts.iter().find(|rate| rate.what == *name).map_or_else(Entry::nothing, share)
                }),
            );
            row.push(share(&rates.alarms));
            row.push(Entry::number(rates.mean_pairs, units::number(rates.mean_pairs)));
            row.push(Entry::number(rates.mean_seconds, units::number(rates.mean_seconds)));
            row.push(Entry::number(rates.most_seconds, units::number(rates.most_seconds)));
            table.row(row);
        }
        table.caption("Shares with 95 % limits (Clopper and Pearson).")
    }
}

fn share(rate: &Rate) -> Entry {
    let text = format!("{} [{}, {}]", units::percent(rate.share), units::percent(rate.low), units::percent(rate.high));
    Entry { tone: Tone::Plain, ..Entry::number(rate.share, text) }
}
