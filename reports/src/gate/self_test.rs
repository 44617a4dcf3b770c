//! The result of a self-test, as data and as a document.

use super::replay::{Promise, Rate, Rates};
use super::report::Ratio;
use crate::document::{Column, Document, Entry, Table};
use crate::units;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The form of a pool of turns.
pub const TURNS: &str = "turns";
/// The form of a pool of trials.
pub const TRIALS: &str = "trials";

/// How the gate judges samples whose truth is known.
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
    /// What the pool holds: `turns` or `trials`.
    pub form: String,
    /// Pairs of the same program, of turns or of trials.
    pub pairs: usize,
    /// Of them, those that do not count: under foreign load, or with a trial that has a validity flag.
    pub flagged: usize,
    /// Generations of processes that the pairs of turns are of; 0 of trials.
    pub generations: usize,
    /// Machine time of the pool in seconds, both arms.
    pub machine_seconds: f64,
    /// Noisy metrics of the rules of which the pool says nothing.
    pub untested: Vec<String>,
    /// The middle of the ratio of the same program to itself, by the whole pool, with 99 % limits.
    pub same: Option<Ratio>,
    /// What made the other arm slower, and pairs of it.
    pub slow_set: Vec<String>,
    /// See above.
    pub slow_pairs: usize,
    /// The results of the replays.
    pub rates: Vec<Rates>,
    /// The promises of the gate.
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
    /// Whether no promise is contradicted by the shares that were seen.
    pub fn is_kept(&self) -> bool {
        !self.promises.is_empty() && self.promises.iter().all(|promise| promise.kept)
    }

    /// The document.
    pub fn document(&self) -> Document {
        let mut document = Document::new("Self-test of the gate");
        let kept = if self.is_kept() { "No promise is contradicted." } else { "A promise is CONTRADICTED." };
        let generations = match self.generations {
            0 => String::new(),
            count => format!(" in {} of processes", units::plural(count, "generation", "generations")),
        };
        document.paragraph(format!(
            "{kept} {} of {}{generations}, {} on this cell: {} ({}). Machine time of the pool: {} minutes.",
            units::plural(self.pairs, "pair", "pairs"),
            self.form,
            self.pool,
            self.cell,
            self.key,
            units::number(self.machine_seconds / 60.0)
        ));
        document.paragraph(self.independence());
        document.table(self.table());
        let line = |p: &Promise| {
            let kept = if p.kept { "not contradicted" } else { "CONTRADICTED" };
            format!("{}: {} (limit {}), {kept}", p.what, units::number(p.seen), units::number(p.limit))
        };
        document.heading("What the gate promises");
        document.list(self.promises.iter().map(line).collect());
        document.heading("What was replayed");
        let mut items = vec![
            format!("settings: {}", self.settings),
            format!("pairs that do not count: {} of {}", self.flagged, self.pairs),
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
        if !self.untested.is_empty() {
            document.paragraph(format!(
                "Not tested: {}, which the gate compares by trials; `--pairs N` measures a pool of them.",
                units::list(&self.untested)
            ));
        }
        document.paragraph("Repeat it:");
        document.code(&self.command);
        document
    }

    /// How many independent gates the pool holds, and what follows.
    fn independence(&self) -> String {
        let Some(same) = self.rates.first() else { return String::new() };
        let all = same.independent.floor().max(1.0) as usize;
        let (_, most) = super::ranks::binomial_limits(0, all, 0.95);
        let unit = if self.form == TURNS { "generations of processes" } else { "pairs" };
        let wrapped: usize = self.rates.iter().map(|rates| rates.wrapped).sum();
        let wrapped = match (wrapped, self.form == TURNS) {
            (0, _) => String::new(),
            (count, true) => format!(" {count} replays came to the end of the pool and ended there, undecided or not."),
            (count, false) => format!(" {count} replays came to the end of the pool and went on at its beginning."),
        };
        format!(
            "Replays share the {unit} of one pool. It holds {} of the same program that have nothing in common, so that no alarm at all \
             bounds the rate of false alarms by {}, however many replays there are: a promise that is not contradicted is not shown to hold beyond that. The limits below are those of so many gates.{wrapped}",
            units::plural(all, "gate", "gates"),
            units::percent(most)
        )
    }

    fn table(&self) -> Table {
        let mut columns = vec![
            Column::words("replayed"),
            Column::numbers("slower", "factor"),
            Column::words("how"),
            Column::numbers("runs", ""),
        ];
        // Failures do not occur in samples.
        let verdicts = self.rates.first().into_iter().flat_map(|rates| &rates.verdicts);
        let shown: Vec<&str> = verdicts.map(|rate| rate.what.as_str()).filter(|name| *name != "failed").collect();
        columns.extend(shown.iter().map(|name| Column::numbers(name.replace('_', " "), "share")));
        columns.extend([
            Column::numbers("alarms", "share"),
            Column::numbers("pairs", "mean"),
            Column::numbers("time", "s"),
            Column::numbers("longest", "s"),
            Column::numbers("independent", "gates"),
            Column::numbers("decided", "1/min"),
            Column::numbers("wrong", "1/min"),
        ]);
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
                    rates.verdicts.iter().find(|rate| rate.what == **name).map_or_else(Entry::nothing, share)
                }),
            );
            let number = |value: f64| Entry::number(value, units::number(value));
            let rounded = |value: f64, decimals: usize| Entry::number(value, format!("{value:.decimals$}"));
            row.extend([
                share(&rates.alarms),
                number(rates.mean_pairs),
                number(rates.mean_seconds),
                number(rates.most_seconds),
                rounded(rates.independent, 1),
                rounded(rates.decided_per_minute, 2),
                rounded(rates.wrong_per_minute, 2),
            ]);
            table.row(row);
        }
        table.caption(
            "Shares of replays, with the 95 % limits (Clopper and Pearson) of as many gates as are independent. Per minute of machine \
             time: decided is all but inconclusive; wrong is alarms where both sides are the same, else all that is no regression.",
        )
    }
}

fn share(rate: &Rate) -> Entry {
    let text = format!("{} [{}, {}]", units::percent(rate.share), units::percent(rate.low), units::percent(rate.high));
    Entry::number(rate.share, text)
}
