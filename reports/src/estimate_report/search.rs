//! The result of a search over configurations, for `plan --search`.

use crate::document::{Document, Entry, Table, Tone};
use crate::estimate::Subject;
use crate::label;
use crate::order_report::Order;
use crate::ordered_map::OrderedMap;
use crate::screen::{Room, Screen, fitting};
use crate::units;
use serde::{Deserialize, Serialize};

/// One configuration that was priced.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Candidate {
    /// Its settings, as `--set` takes them.
    pub settings: OrderedMap<String>,
    /// Predicted time of a step.
    pub step_ms: f64,
    /// Tokens per second of all ranks.
    pub tokens_per_second: f64,
    /// Model FLOPs as a share of the device's dense peak.
    pub mfu: f64,
    /// Predicted peak of the largest rank.
    pub memory_bytes: u64,
    /// Milliseconds of the step by span.
    pub time: OrderedMap<f64>,
    /// Ends of the band around `step_ms`.
    #[serde(default)]
    pub step_ms_band: Option<[f64; 2]>,
    /// Ends of the band around `tokens_per_second`.
    #[serde(default)]
    pub tokens_per_second_band: Option<[f64; 2]>,
    /// Ends of the band around `memory_bytes`; `None` where it is known to the byte.
    #[serde(default)]
    pub memory_bytes_band: Option<[u64; 2]>,
}

impl Candidate {
    /// The keys in which another way has other settings.
    pub fn differing(&self, other: &Candidate) -> Vec<String> {
        let names = self.settings.names().chain(other.settings.names());
        names.filter(|key| self.settings.get(key) != other.settings.get(key)).map(str::to_string).collect()
    }
}

/// A way that lost against the fastest.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Alternative {
    /// How it splits the work, in words.
    pub name: String,
    /// How much longer its step takes, as a share of the first one's; below 0 where a recommendation is simpler and not faster.
    pub slower: f64,
    /// Where its step is longer, and where shorter, in words.
    pub why: String,
    /// The same by span, in shares of the fastest one's step; they add up to `slower`.
    pub spans: OrderedMap<f64>,
    /// What it takes.
    pub candidate: Candidate,
}

impl Alternative {
    /// It and why it lost, a sentence.
    pub fn words(&self) -> String {
        let memory = units::memory(self.candidate.memory_bytes as f64);
        let Alternative { name, slower, why, .. } = self;
        let how = if *slower < 0.0 { "faster" } else { "slower" };
        format!("{name}; {} {how}, {memory}: {why}.", units::percent(slower.abs()))
    }
}

/// The result of a search.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Searched {
    /// The cell that was varied.
    pub label: String,
    /// Names of the model, machine and so on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<Subject>,
    /// The memory that a rank has.
    pub capacity_bytes: u64,
    /// Share of the memory that is left free.
    pub headroom: f64,
    /// The memory without the headroom: nothing that takes more is recommended.
    pub limit_bytes: u64,
    /// Number of ranks.
    pub ranks: u64,
    /// Sequences of a step, all ranks together.
    #[serde(default)]
    pub global_batch: u64,
    /// Number of combinations that were priced.
    pub priced: u64,
    /// Number of combinations that fit.
    pub fitting: u64,
    /// Number of impossible combinations, by reason.
    pub impossible: OrderedMap<u64>,
    /// The Pareto set of speed and memory, the fastest first.
    pub pareto: Vec<Candidate>,
    /// The fastest of all that fit, in order; the first is the answer.
    pub best: Vec<Candidate>,
    /// The first of `alternatives`, in words.
    pub runner_up: String,
    /// The fastest that split the work otherwise than the answer and than each other, and why they lost.
    #[serde(default)]
    pub alternatives: Vec<Alternative>,
    /// The predicted order beside the measured one, where ways were trained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<Order>,
    /// The nearest miss where nothing fits.
    pub nearest: Option<Candidate>,
    /// Seconds that the search took.
    pub seconds: f64,
    /// Where the bands come from and what they contain.
    pub band_source: String,
    /// What of the first no published speed has, in a sentence; empty where there is nothing.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub not_compared: String,
    /// What the first leaves open and how it is priced, as sentences without their stops.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub assumed: Vec<String>,
}

/// A way as people name it: its strategy, the degrees above 1, and of the rest what is not usual. Beside another one also what differs
/// from that.
pub fn name(candidate: &Candidate, beside: Option<&Candidate>) -> String {
    let value = |of: &Candidate, key: &str| of.settings.get(key).cloned().unwrap_or_default();
    let own = |key: &str| value(candidate, key);
    let differs = |key: &str| beside.is_some_and(|other| value(other, key) != own(key));
    let mut degrees = Vec::new();
    for (axis, called) in [("tensor", "tensor"), ("pipeline", "pipeline"), ("context", "context"), ("expert", "expert")]
    {
        let count = own(&format!("parallel.{axis}"));
        if !matches!(count.as_str(), "" | "1") {
            degrees.push(format!("{called} {count}"));
        }
    }
    let mut words = vec![own(label::STRATEGY)];
    if !degrees.is_empty() {
        words.push(degrees.join(" x "));
    }
    let tensor = own("parallel.tensor");
    if !matches!(tensor.as_str(), "" | "1") && own("parallel.sequence") == "1" {
        words.push("without sequence parallelism".into());
    }
    let chunks = own("parallel.virtual_stages");
    if !matches!(chunks.as_str(), "" | "1") {
        words.push(format!("{chunks} virtual stages"));
    }
    if own("parallel.pipeline_schedule") == "zb-h1" {
        words.push("zb-h1".into());
    }
    if own("parallel.placement") == "pipeline-inside" {
        words.push("stages inside a node".into());
    }
    if differs("train.micro_batch") || beside.is_none() {
        words.push(format!("micro-batch {} x {}", own("train.micro_batch"), own("train.accumulation")));
    }
    let kept = own("memory.checkpointing");
    if differs("memory.checkpointing") || (beside.is_none() && kept != "none") {
        words.push(match kept.as_str() {
            "none" => "nothing recomputed".into(),
            _ => format!("checkpointing {}", kept.trim_matches(['{', '}', ' ']).replace(" = ", " ")),
        });
    }
    for (key, called) in [("optimizer", "optimizer"), ("parameters", "weights"), ("activations", "activations")] {
        let home = own(&format!("memory.offload_{key}"));
        if matches!(home.as_str(), "host" | "disk") {
            words.push(format!("{called} on the {home}"));
        }
    }
    words.join(", ")
}

/// The document of a search: a screen for this room, then all details. The screen ends with `next`: labels and what to do next.
pub fn searched(found: &Searched, room: Room, next: &[(&str, String)]) -> Document {
    let of = if found.label.is_empty() { String::new() } else { format!(": {}", found.label) };
    let mut document = document(found, format!("Search{of}"));
    document.screen = Some(screen(found, room, next));
    document
}

/// All details of a search.
pub(super) fn document(found: &Searched, title: String) -> Document {
    let mut document = Document::new(title);
    let answer = found.best.first().map(|best| ("All settings of the answer", best));
    let nearest = || found.nearest.as_ref().map(|nearest| ("All settings of the nearest miss", nearest));
    if let Some((title, candidate)) = answer.or_else(nearest) {
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
    let bands = [&found.band_source, &found.not_compared].into_iter().filter(|words| !words.is_empty());
    document.headed_list("Bands", bands.cloned().collect());
    document.headed_list("Why others lost", found.alternatives.iter().map(Alternative::words).collect());
    document.headed_list("Left out", left_out(found));
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
            "The fastest: {}, {} tokens/s, a step of {},{} {} of memory. {priced}",
            labels(&rows)[0],
            units::quantity(best.tokens_per_second),
            units::duration(best.step_ms / 1e3),
            if best.mfu.is_finite() { format!(" MFU {},", units::percent(best.mfu)) } else { String::new() },
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
    let subject = Subject::words(found.subject.iter(), usize::from(!found.not_compared.is_empty()), 1);
    let answer = subject.into_iter().chain([answer]).collect::<Vec<_>>().join(" ");
    let compose = |count: usize| {
        let mut screen = Screen::default();
        screen.said("ANSWER", &answer, 6);
        screen.said("RUNNER-UP", &found.runner_up, 3);
        screen.table(table("screen", &rows[..count.min(rows.len())], found.limit_bytes));
        let more = (found.fitting as usize).saturating_sub(count.min(rows.len()));
        if more > 0 {
            let more = units::count(more as u64);
            screen.said("", format!("{more} more fit; the table has the fastest and the smallest."), 1);
        }
        screen.said("LEFT OUT", left_out(found).join("; "), 2);
        screen.said("NOT COMPARED", &found.not_compared, 2);
        for text in &found.assumed {
            screen.said("ASSUMED", text, 2);
        }
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

/// The settings as they are typed.
fn settings(candidate: &Candidate) -> String {
    let one = |(key, value): (&str, &String)| format!("--set {key}={value}");
    candidate.settings.iter().map(one).collect::<Vec<_>>().join(" ")
}

/// The labels of candidates: what differs between them, without settings that are off or 1 if labels are unique without these.
fn labels(candidates: &[&Candidate]) -> Vec<String> {
    let keys: Vec<&str> = candidates.first().map(|first| first.settings.names().collect()).unwrap_or_default();
    let value = |candidate: &Candidate, key: &str| candidate.settings.get(key).cloned().unwrap_or_default();
    let differs = |key: &str| candidates.windows(2).any(|pair| value(pair[0], key) != value(pair[1], key));
    let of = |candidate: &Candidate, all: bool| {
        let is_named = |key: &&&str| {
            let value = value(candidate, key);
            let says = value != "1" && !label::is_usual(key, &value);
            **key == label::STRATEGY || if all { differs(key) } else { says && (differs(key) || candidates.len() == 1) }
        };
        let term = |key: &&str| label::term(key, label::name(key, false), &value(candidate, key));
        label::of_terms(keys.iter().filter(is_named).map(term))
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
    let rows: Vec<(&Candidate, String)> = candidates.iter().copied().zip(labels(candidates)).collect();
    let free = |candidate: &Candidate| units::memory(limit.saturating_sub(candidate.memory_bytes) as f64);
    let band = |[low, high]: [f64; 2]| format!("{} to {}", units::quantity(low), units::quantity(high));
    let tone = |candidate: &Candidate| match std::ptr::eq(candidate, candidates[0]) {
        true => Tone::Good,
        false => Tone::Plain,
    };
    let mut table = Table::of(name, &rows);
    table.words("cell", |(_, label)| label);
    table.words("fits", |(candidate, _)| format!("{} free", free(candidate)));
    table.memory("peak", |(candidate, _)| Some(candidate.memory_bytes));
    table.numbers("step", "ms", |(candidate, _)| {
        Entry::number(candidate.step_ms, units::duration(candidate.step_ms / 1e3))
    });
    table.numbers("tokens/s", "tokens/s", |(candidate, _)| {
        Entry::number(candidate.tokens_per_second, units::quantity(candidate.tokens_per_second)).toned(tone(candidate))
    });
    table.numbers("MFU", "fraction", |(candidate, _)| Entry::number(candidate.mfu, units::percent(candidate.mfu)));
    let has_band = candidates.iter().any(|candidate| candidate.tokens_per_second_band.is_some());
    let bands = table.words("80 % band of tokens/s", |(candidate, _)| {
        candidate.tokens_per_second_band.map(band).unwrap_or_default()
    });
    bands.for_machines = !has_band;
    table.build()
}
