//! What a search over configurations found: `plan --search`.

use crate::document::{Column, Document, Entry, Table, Tone};
use crate::named::Named;
use crate::units;
use serde::{Deserialize, Serialize};

/// One configuration that was priced.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Candidate {
    /// The keys that make it, as `--set` takes them.
    pub settings: Named<String>,
    /// Predicted time of a step.
    pub step_ms: f64,
    /// Tokens per second of all ranks.
    pub tokens_per_second: f64,
    /// Share of the dense peak.
    pub mfu: f64,
    /// Predicted peak of the largest rank.
    pub memory_bytes: u64,
    /// Milliseconds of the step by span.
    pub time: Named<f64>,
    /// Ends of the band around `tokens_per_second`.
    #[serde(default)]
    pub tokens_per_second_band: Option<[f64; 2]>,
    /// Ends of the band around `memory_bytes`; `None` where it is known to the byte.
    #[serde(default)]
    pub memory_bytes_band: Option<[u64; 2]>,
}

/// What a search found.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Searched {
    /// The cell that was varied.
    pub label: String,
    /// The memory that a rank has.
    pub capacity_bytes: u64,
    /// Share of it that is left free.
    pub headroom: f64,
    /// What is left: nothing that takes more is recommended.
    pub limit_bytes: u64,
    /// Ranks.
    pub ranks: u64,
    /// Combinations that were priced.
    pub priced: u64,
    /// Those that fit.
    pub fitting: u64,
    /// Those that cannot be, by reason.
    pub impossible: Named<u64>,
    /// None faster takes as little memory, none smaller is as fast: the fastest first.
    pub pareto: Vec<Candidate>,
    /// The fastest of all that fit, in order; the first is the answer.
    pub best: Vec<Candidate>,
    /// Why the second lost, in words.
    pub runner_up: String,
    /// The nearest miss where nothing fits.
    pub nearest: Option<Candidate>,
    /// Seconds that the search took.
    pub seconds: f64,
    /// Where the bands come from and what they hold.
    pub band_source: String,
}

/// The document of a search.
pub fn searched(found: &Searched) -> Document {
    let of = if found.label.is_empty() { String::new() } else { format!(": {}", found.label) };
    let mut document = Document::new(format!("Search{of}"));
    document.paragraph(format!(
        "{} combinations priced on {} in {}; {} fit into {} a rank: {} less {} of headroom (--headroom).",
        units::count(found.priced),
        units::plural(found.ranks as usize, "rank", "ranks"),
        units::duration(found.seconds),
        units::count(found.fitting),
        units::memory(found.limit_bytes as f64),
        units::memory(found.capacity_bytes as f64),
        units::percent(found.headroom)
    ));
    let Some(best) = found.best.first() else {
        document.paragraph("Nothing fits.");
        if let Some(nearest) = &found.nearest {
            document.paragraph(format!(
                "The nearest miss takes {}, {} too much:",
                units::memory(nearest.memory_bytes as f64),
                units::memory(nearest.memory_bytes.saturating_sub(found.limit_bytes) as f64)
            ));
            document.code(settings(nearest));
        }
        return document;
    };
    document.paragraph(format!(
        "The fastest: {} tokens/s, a step of {}, MFU {}, {} of memory:",
        units::quantity(best.tokens_per_second),
        units::duration(best.step_ms / 1e3),
        units::percent(best.mfu),
        units::memory(best.memory_bytes as f64)
    ));
    document.code(settings(best));
    if !found.band_source.is_empty() {
        let range = |[low, high]: [f64; 2], of: fn(f64) -> String| format!("{} to {}", of(low), of(high));
        let bytes = best.memory_bytes_band.map(|band| range(band.map(|bytes| bytes as f64), units::memory));
        let speed = best.tokens_per_second_band.map(|band| format!("{} tokens/s", range(band, units::quantity)));
        let ends: Vec<String> = speed.into_iter().chain(bytes.map(|bytes| format!("{bytes} of memory"))).collect();
        document.paragraph(format!("80 % bands: {} ({}).", ends.join(", "), found.band_source));
    }
    if !found.runner_up.is_empty() {
        document.paragraph(found.runner_up.clone());
    }
    document.heading("The fastest that fit");
    document.table(table("fastest", &found.best));
    document.heading("Pareto set of speed and memory");
    document.paragraph("None of them is beaten in both by another that fits.");
    document.table(table("pareto", &found.pareto));
    if found.impossible.iter().next().is_some() {
        document.heading("Left out");
        let line = |(reason, count): (&str, &u64)| format!("{reason}: {}", units::count(*count));
        document.list(found.impossible.iter().map(line).collect());
    }
    document
}

/// As they are typed.
fn settings(candidate: &Candidate) -> String {
    let one = |(key, value): (&str, &String)| format!("--set {key}={value}");
    candidate.settings.iter().map(one).collect::<Vec<_>>().join(" ")
}

fn table(name: &str, candidates: &[Candidate]) -> Table {
    // What all of them share stands above already, where the first one is spelled out.
    let keys = candidates.first().map(|c| c.settings.names().collect::<Vec<_>>()).unwrap_or_default();
    let differs = |key: &&str| candidates.windows(2).any(|pair| pair[0].settings.get(key) != pair[1].settings.get(key));
    let keys: Vec<&str> = keys.into_iter().filter(differs).collect();
    let mut columns: Vec<Column> =
        keys.iter().map(|key| Column::words(key.rsplit('.').next().unwrap_or(key))).collect();
    columns.extend([
        Column::numbers("tokens/s", "tokens/s"),
        Column::numbers("step", "ms"),
        Column::numbers("MFU", "fraction"),
        Column::numbers("memory", "bytes"),
    ]);
    let mut table = Table::new(name, columns);
    for (place, candidate) in candidates.iter().enumerate() {
        let tone = if place == 0 { Tone::Good } else { Tone::Plain };
        let mut entries: Vec<Entry> =
            keys.iter().map(|key| Entry::words(candidate.settings.get(key).cloned().unwrap_or_default())).collect();
        entries.extend([
            Entry::number(candidate.tokens_per_second, units::quantity(candidate.tokens_per_second)).toned(tone),
            Entry::number(candidate.step_ms, units::duration(candidate.step_ms / 1e3)),
            Entry::number(candidate.mfu, units::percent(candidate.mfu)),
            Entry::memory(Some(candidate.memory_bytes)),
        ]);
        table.row(entries);
    }
    table
}
