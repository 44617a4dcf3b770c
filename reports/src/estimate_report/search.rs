//! What a search over configurations found: `plan --search`.

use super::band_column;
use crate::document::{Column, Document, Entry, Table, Tone};
use crate::label;
use crate::named::Named;
use crate::screen::{Room, Screen, fitting};
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

/// The document of a search: a screen for this room, and everything behind it. `next` are words in capitals and what to do then.
pub fn searched(found: &Searched, room: Room, next: &[(&str, String)]) -> Document {
    let of = if found.label.is_empty() { String::new() } else { format!(": {}", found.label) };
    let mut document = Document::new(format!("Search{of}"));
    document.screen = Some(screen(found, room, next));
    let answers = found.best.first().map(|best| ("All settings of the fastest", best));
    let answers = answers.or(found.nearest.as_ref().map(|nearest| ("All settings of the nearest miss", nearest)));
    if let Some((title, candidate)) = answers {
        document.heading(title);
        document.code(settings(candidate));
    }
    if !found.best.is_empty() {
        document.heading("The fastest that fit");
        document.table(table("fastest", &found.best.iter().collect::<Vec<_>>(), found.limit_bytes));
        document.heading("Pareto set of speed and memory");
        document.paragraph("None of them is beaten in both by another that fits.");
        document.table(table("pareto", &found.pareto.iter().collect::<Vec<_>>(), found.limit_bytes));
    }
    if found.impossible.iter().next().is_some() {
        document.heading("Left out");
        document.list(left_out(found));
    }
    document
}

/// Rows of the table at most, and at least.
const ROWS: (usize, usize) = (16, 3);

fn screen(found: &Searched, room: Room, next: &[(&str, String)]) -> Screen {
    let of = if found.label.is_empty() { String::new() } else { format!(" for {}", found.label) };
    let priced = format!(
        "{} combinations priced{of} on {} in {}; {} fit into {} a rank: {} less {} of headroom (--headroom).",
        units::count(found.priced),
        units::plural(found.ranks as usize, "rank", "ranks"),
        units::duration(found.seconds),
        units::count(found.fitting),
        units::memory(found.limit_bytes as f64),
        units::memory(found.capacity_bytes as f64),
        units::percent(found.headroom)
    );
    // The fastest, and those that are smaller than all that are faster.
    let mut rows: Vec<&Candidate> = found.best.iter().collect();
    rows.extend(found.pareto.iter().filter(|one| !found.best.iter().any(|best| best.settings == one.settings)));
    rows.sort_by(|a, b| b.tokens_per_second.total_cmp(&a.tokens_per_second));
    let answer = match (rows.first(), &found.nearest) {
        (Some(best), _) => format!(
            "The fastest: {}, {} tokens/s, a step of {}, MFU {}, {} of memory. {priced}",
            labels(&rows)[0],
            units::quantity(best.tokens_per_second),
            units::duration(best.step_ms / 1e3),
            units::percent(best.mfu),
            units::memory(best.memory_bytes as f64)
        ),
        (None, Some(nearest)) => format!(
            "Nothing fits. The nearest miss takes {}, {} too much: {}. {priced}",
            units::memory(nearest.memory_bytes as f64),
            units::memory(nearest.memory_bytes.saturating_sub(found.limit_bytes) as f64),
            labels(&[nearest])[0]
        ),
        (None, None) => format!("Nothing fits. {priced}"),
    };
    let compose = |count: usize| {
        let mut screen = Screen::default();
        screen.said("ANSWER", &answer, 5);
        screen.said("RUNNER-UP", &found.runner_up, 3);
        screen.table(table("screen", &rows[..count.min(rows.len())], found.limit_bytes));
        let more = (found.fitting as usize).saturating_sub(count.min(rows.len()));
        if more > 0 {
            screen.said(
                "",
                format!("{} more fit; the table has the fastest and the smallest.", units::count(more as u64)),
                1,
            );
        }
        screen.said("LEFT OUT", left_out(found).join("; "), 2);
        screen.said("BANDS", &found.band_source, 2);
        for (label, text) in next {
            screen.said(label, text, 3);
        }
        screen
    };
    fitting(room, rows.len().min(ROWS.0), rows.len().min(ROWS.1), compose)
}

fn left_out(found: &Searched) -> Vec<String> {
    let line = |(reason, count): (&str, &u64)| format!("{}: {reason}", units::count(*count));
    found.impossible.iter().map(line).collect()
}

/// As they are typed.
fn settings(candidate: &Candidate) -> String {
    let one = |(key, value): (&str, &String)| format!("--set {key}={value}");
    candidate.settings.iter().map(one).collect::<Vec<_>>().join(" ")
}

/// The labels of candidates: what differs between them, but for what is off or one where they stay apart without it.
fn labels(candidates: &[&Candidate]) -> Vec<String> {
    let keys: Vec<&str> = candidates.first().map(|first| first.settings.names().collect()).unwrap_or_default();
    let value = |candidate: &Candidate, key: &str| candidate.settings.get(key).cloned().unwrap_or_default();
    let differs = |key: &str| candidates.windows(2).any(|pair| value(pair[0], key) != value(pair[1], key));
    let of = |candidate: &Candidate, all: bool| {
        let is_told = |key: &&&str| {
            let value = value(candidate, key);
            let says = value != "1" && !label::is_off(&value);
            **key == label::STRATEGY || if all { differs(key) } else { says && (differs(key) || candidates.len() == 1) }
        };
        let term = |key: &&str| label::term(key, label::name(key, false), &value(candidate, key));
        label::of_terms(keys.iter().filter(is_told).map(term))
    };
    let short: Vec<String> = candidates.iter().map(|candidate| of(candidate, false)).collect();
    let is_unique = |label: &String| short.iter().filter(|other| *other == label).count() == 1;
    let longer = |(candidate, label): (&&Candidate, &String)| match is_unique(label) {
        true => label.clone(),
        false => of(candidate, true),
    };
    candidates.iter().zip(&short).map(longer).collect()
}

fn table(name: &str, candidates: &[&Candidate], limit: u64) -> Table {
    let has_band = candidates.iter().any(|candidate| candidate.tokens_per_second_band.is_some());
    let columns = vec![
        Column::words("cell"),
        Column::words("fits"),
        Column::numbers("peak", "bytes"),
        Column::numbers("step", "ms"),
        Column::numbers("tokens/s", "tokens/s"),
        Column::numbers("MFU", "fraction"),
        band_column("80 % band of tokens/s", has_band),
    ];
    let mut table = Table::new(name, columns);
    for (place, (candidate, label)) in candidates.iter().zip(labels(candidates)).enumerate() {
        let tone = if place == 0 { Tone::Good } else { Tone::Plain };
        let band = candidate.tokens_per_second_band;
        let band = band.map(|[low, high]| format!("{} to {}", units::quantity(low), units::quantity(high)));
        table.row(vec![
            Entry::words(label),
            Entry::words(format!("{} free", units::memory(limit.saturating_sub(candidate.memory_bytes) as f64))),
            Entry::memory(Some(candidate.memory_bytes)),
            Entry::number(candidate.step_ms, units::duration(candidate.step_ms / 1e3)),
            Entry::number(candidate.tokens_per_second, units::quantity(candidate.tokens_per_second)).toned(tone),
            Entry::number(candidate.mfu, units::percent(candidate.mfu)),
            Entry::words(band.unwrap_or_default()),
        ]);
    }
    table
}
