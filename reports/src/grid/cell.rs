//! One cell: the records of its configuration, which of them are used, and its numbers.

use serde_json::Value;

use super::labels;
use crate::gather::distinct;
use crate::record::{Category, Communication, Record, Verdict, label_flags};
use crate::stats::{self, Interval, Place};
use crate::units;

/// Why a cell of one valid trial has no rank.
const ONE_TRIAL: &str = "one valid trial only: how trials differ is unknown";

/// Why a cell that took turns has no rank.
pub(super) const NO_TURN_COUNTS: &str = "no turn that counts";

/// All trials of one configuration.
#[derive(Debug)]
pub struct Cell<'a> {
    /// Hash of the configuration.
    pub key: &'a str,
    /// Label made from the keys in which the cells differ.
    pub label: String,
    /// The label without settings that are off, for sentences.
    pub short: String,
    /// Every trial; every generation of a cell that took turns.
    pub trials: Vec<&'a Record>,
    /// Records of a second set of processes, with which the reference alone is compared.
    pub twins: Vec<&'a Record>,
    /// The trials whose numbers are used: measured and, if there are such, without validity flags.
    pub used: Vec<&'a Record>,
    /// Tokens per second of all ranks: median over trials with its interval, which one trial leaves without an upper limit. Of a
    /// cell that took turns the median over them, without limits: those of its ratio to others say how sure it is.
    pub speed: Option<Interval>,
    /// The worst verdict of the used trials.
    pub verdict: Verdict,
    /// Rank among the ranked cells.
    pub place: Option<Place>,
    /// Why there is no rank.
    pub unranked: Option<String>,
}

/// Cells are ranked among those of the same kind: the same kind of work, a core for each thread or not, and the same emulated pace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Kind {
    /// Adapters are trained beside frozen weights.
    pub has_adapter: bool,
    /// A host has more threads of ranks than cores.
    pub is_crowded: bool,
    /// The emulated pace, as bits, whose order is that of the numbers.
    pub(super) pace: Option<[u64; 2]>,
}

impl Kind {
    /// The kind of a record's cell on the machine of the record.
    pub fn of(record: &Record) -> Self {
        let pace = emulated_pace(record).map(|pace| pace.map(f64::to_bits));
        Self { has_adapter: labels::has_adapter(&record.cell), is_crowded: crowding(record).is_some(), pace }
    }

    /// The seconds of the emulated pace, forward and backward.
    pub fn pace(&self) -> Option<[f64; 2]> {
        self.pace.map(|pace| pace.map(f64::from_bits))
    }
}

/// The kinds of these cells: those without an emulated pace before the others, then those with a core for each thread, then full
/// fine-tunes before adapter runs.
pub fn groups<'c, 'a: 'c>(cells: impl Iterator<Item = &'c Cell<'a>>) -> Vec<Kind> {
    let mut kinds = distinct(cells.map(Cell::kind));
    kinds.sort_by_key(|kind| (kind.pace, kind.is_crowded, kind.has_adapter));
    kinds
}

impl<'a> Cell<'a> {
    pub(super) fn new(trials: Vec<&'a Record>) -> Self {
        let key = trials[0].key.as_str();
        let (twins, own): (Vec<&Record>, Vec<&Record>) = trials.iter().partition(|record| record.is_twin());
        // If only the second set of a cell is left, it is the cell's own.
        let (twins, trials) = if own.is_empty() { (Vec::new(), twins) } else { (twins, own) };
        let measured: Vec<&Record> = trials.iter().copied().filter(|record| record.is_measured()).collect();
        // Trials of a cell that took turns belong to another experiment and say less.
        let turned: Vec<&Record> = measured.iter().copied().filter(|record| record.taken_turns().is_some()).collect();
        let measured = if turned.is_empty() { measured } else { turned };
        let clean: Vec<&Record> =
            measured.iter().copied().filter(|record| record.excluding_flags().next().is_none()).collect();
        let has_clean = !clean.is_empty();
        let used = if has_clean { clean } else { measured };
        let of_turns = || used.iter().filter_map(|record| record.taken_turns());
        let is_of_turns = of_turns().next().is_some();
        let has_no_turn = is_of_turns && !of_turns().flat_map(|turns| &turns.rows).any(|row| row.counted);
        let speed = if has_no_turn { None } else { speed(&used) };
        // A generation that was stopped before its last step has no losses to compare; the others have.
        let verdicts = || used.iter().map(|record| record.parity.verdict);
        let skips_none = is_of_turns && verdicts().any(|verdict| verdict != Verdict::None);
        let compared = verdicts().filter(|&verdict| !(skips_none && verdict == Verdict::None));
        let verdict = compared.max_by_key(|&verdict| severity(verdict)).unwrap_or_default();

        let unranked = if used.is_empty() {
            Some(trials.last().map_or("not measured", |record| record.outcome.status.words()).to_string())
        } else if verdict == Verdict::Failed {
            Some("loss parity failed".to_string())
        } else if !has_clean {
            let mut flags: Vec<&str> = used.iter().flat_map(|record| record.excluding_flags()).collect();
            flags.sort_unstable();
            flags.dedup();
            Some(flags.join(", "))
        } else if has_no_turn {
            Some(NO_TURN_COUNTS.to_string())
        } else if speed.is_none() {
            Some("no timed steps with tokens".to_string())
        } else if speed.is_some_and(|speed| !speed.is_bounded()) {
            Some(ONE_TRIAL.to_string())
        } else {
            None
        };
        Self {
            key,
            label: String::new(),
            short: String::new(),
            trials,
            twins,
            used,
            speed,
            verdict,
            place: None,
            unranked,
        }
    }

    /// Tokens per second with an interval, which needs two trials or more.
    pub fn interval(&self) -> Option<Interval> {
        self.speed.filter(Interval::is_bounded)
    }

    /// The record that represents the cell: its last used trial, or else its last trial.
    pub fn record(&self) -> &'a Record {
        self.used.last().or(self.trials.last()).expect("a cell is made from at least one record")
    }

    /// The strategy; empty where there is none.
    pub fn strategy(&self) -> &'a str {
        self.record().setting(labels::STRATEGY).and_then(Value::as_str).unwrap_or_default()
    }

    /// The schedule of its pipeline; empty without stages.
    pub fn schedule(&self) -> &'a str {
        self.record().setting("parallel.pipeline_schedule").and_then(Value::as_str).unwrap_or_default()
    }

    /// Whether it trains adapters beside frozen weights.
    pub fn has_adapter(&self) -> bool {
        labels::has_adapter(&self.record().cell)
    }

    /// Which cells it is ranked with.
    pub fn kind(&self) -> Kind {
        Kind::of(self.record())
    }

    /// The share of the parameters that train.
    pub fn trainable_share(&self) -> Option<f64> {
        let number = |name: &str| self.record().extra.get(name).and_then(Value::as_f64);
        number("parameters").filter(|all| *all > 0.0).and_then(|all| Some(number("trainable_parameters")? / all))
    }

    /// Measured trials whose numbers are not used, for their validity flags.
    pub fn set_aside(&self) -> impl Iterator<Item = &'a Record> {
        // Where a trial without flags is used, all of these are used, and none with flags.
        let uses_clean = self.used.first().is_some_and(|used| used.excluding_flags().next().is_none());
        let is_flagged = |record: &&Record| record.is_measured() && record.excluding_flags().next().is_some();
        self.trials.iter().copied().filter(move |record| uses_clean && is_flagged(record))
    }

    /// How often it was measured and used, out of all trials: `3`, `2 of 3`.
    pub fn trial_count(&self) -> String {
        match (self.used.len(), self.trials.len()) {
            (used, all) if used == all => all.to_string(),
            (used, all) => format!("{used} of {all}"),
        }
    }

    /// Marks that follow the label of the cell everywhere.
    pub(super) fn marks(&self) -> String {
        let record = self.record();
        let all = [
            (is_proxy(record), "proxy"),
            (emulated_link(record).is_some(), "emulated link"),
            (emulated_pace(record).is_some(), "emulated pace"),
        ];
        let marks: Vec<&str> = all.into_iter().filter(|(is_so, _)| *is_so).map(|(_, mark)| mark).collect();
        if marks.is_empty() { String::new() } else { format!(" [{}]", marks.join(", ")) }
    }

    /// Median over the used trials of a metric.
    pub fn metric(&self, name: &str) -> Option<f64> {
        self.median_of(|record| record.metrics.number(name))
    }

    fn median_of(&self, value: impl Fn(&Record) -> Option<f64>) -> Option<f64> {
        stats::median(&self.used.iter().filter_map(|record| value(record)).collect::<Vec<_>>())
    }

    /// Measured peak of the largest rank over all categories, of the trial that needed most.
    pub fn peak_bytes(&self) -> Option<u64> {
        let peak = |record: &&Record| {
            let total = record.memory.total.as_ref().and_then(|total| total.peak_bytes);
            total.or(record.metrics.number("peak_memory_bytes").map(|bytes| bytes as u64))
        };
        self.used.iter().filter_map(peak).max()
    }

    /// Predicted peak over all categories.
    pub fn predicted_peak_bytes(&self) -> Option<u64> {
        let record = self.record();
        let total = record.memory.total.as_ref().and_then(|total| total.predicted_bytes);
        total.or_else(|| {
            let estimate = record.estimate.get("peak_memory_bytes").or(record.estimate.get("total_bytes"));
            estimate.and_then(Value::as_u64)
        })
    }

    /// Measured peak of a category, of the trial that needed most.
    pub fn category_peak(&self, category: Category) -> Option<u64> {
        self.used.iter().filter_map(|record| record.memory.get(category)?.peak_bytes).max()
    }

    /// Predicted peak of a category.
    pub fn category_prediction(&self, category: Category) -> Option<u64> {
        self.record().memory.get(category)?.predicted_bytes
    }

    /// Bytes on the wire in one step, of the largest rank.
    pub fn wire_bytes(&self) -> Option<f64> {
        self.median_of(|record| Some(record.wire_bytes()).filter(|bytes| bytes.is_finite()))
    }

    /// Exposed communication as a share of the step.
    pub fn exposed_share(&self) -> Option<f64> {
        let step = self.metric("step_ms_mean").or(self.metric("step_ms_p50")).filter(|&ms| ms > 0.0)?;
        Some(self.metric("exposed_communication_ms")? / step)
    }

    /// Mean over the used trials of a span of the step, so that the spans still add up.
    pub fn span_ms(&self, span: &str) -> Option<f64> {
        stats::mean(&self.used.iter().filter_map(|record| record.time.number(span)).collect::<Vec<_>>())
    }

    /// Mean over the used trials of a number of the collective with this axis and kind.
    pub fn communication(&self, axis: &str, kind: &str, value: impl Fn(&Communication) -> Option<f64>) -> Option<f64> {
        let entries = self.used.iter().flat_map(|record| &record.communication);
        let same = entries.filter(|entry| entry.axis == axis && entry.kind == kind);
        stats::mean(&same.filter_map(value).filter(|value| value.is_finite()).collect::<Vec<_>>())
    }
}

/// Tokens per second: the tokens of the timed steps over their time ([`stats::rate`]). A record without steps
/// counts as one step of the rate that its metric states.
fn speed(used: &[&Record]) -> Option<Interval> {
    let trial = |record: &&Record| {
        let steps: Vec<(f64, f64)> = record.timed_steps().map(|step| (step.tokens as f64 * 1e3, step.ms)).collect();
        match record.metrics.number("tokens_per_second") {
            Some(rate) if steps.is_empty() => vec![(rate, 1.0)],
            _ => steps,
        }
    };
    stats::rate(&used.iter().map(trial).collect::<Vec<_>>())
}

fn severity(verdict: Verdict) -> u8 {
    match verdict {
        Verdict::Reference => 0,
        Verdict::Identical => 1,
        Verdict::WithinTolerance => 2,
        Verdict::None => 3,
        Verdict::Failed => 4,
    }
}

/// Whether a record is a scaled-down stand-in, by its configuration, a key of the record, a flag or the beginning of a note.
pub fn is_proxy(record: &Record) -> bool {
    let is_set = |value: Option<&Value>| !matches!(value, None | Some(Value::Null | Value::Bool(false)));
    is_set(record.setting("proxy"))
        || is_set(record.extra.get("proxy"))
        || is_labelled(record, label_flags::PROXY, "proxy")
}

/// The emulated link of a record, described.
pub fn emulated_link(record: &Record) -> Option<String> {
    let is_empty =
        |link: &Value| link.is_null() || link.as_object().is_some_and(|link| link.values().all(Value::is_null));
    let number = |key: &str| record.setting(key).and_then(Value::as_f64);
    match record.setting("link").filter(|link| !is_empty(link)) {
        Some(link) => {
            let rate = |of: &str| {
                let bandwidth = number(&format!("link.{of}.bandwidth"))?;
                Some(units::link(bandwidth, number(&format!("link.{of}.latency")).unwrap_or(0.0)))
            };
            let nodes = rate("node").zip(number("parallel.ranks_per_node")).map(|(link, ranks)| {
                format!("{link} between nodes of {}", units::plural(ranks as usize, "rank", "ranks"))
            });
            let hosts = rate("host").map(|link| format!("{link} between device and host"));
            let said: Vec<String> = nodes.into_iter().chain(hosts).collect();
            Some(if said.is_empty() { link.to_string() } else { said.join(", ") })
        }
        None if is_labelled(record, label_flags::EMULATED_LINK, "emulated link") => Some("see the notes".to_string()),
        None => None,
    }
}

/// The seconds that a micro-batch's forward and backward last at least, where that is emulated.
pub fn emulated_pace(record: &Record) -> Option<[f64; 2]> {
    let seconds = |key: &str| record.setting(key).and_then(Value::as_f64);
    Some([seconds("pace.forward")?, seconds("pace.backward")?])
}

fn is_labelled(record: &Record, flag: &str, note: &str) -> bool {
    let begins = |text: &String| text.get(..note.len()).is_some_and(|start| start.eq_ignore_ascii_case(note));
    record.validity.iter().any(|other| other == flag) || record.notes.iter().any(begins)
}

/// Ranks of the fullest host, threads of each and cores, where there are too few cores.
pub fn crowding(record: &Record) -> Option<(u64, u64, u64)> {
    if record.setting("hardware.device").is_some_and(|device| device != "cpu") {
        return None;
    }
    let on_host = |host: &str| record.ranks.iter().filter(|rank| rank.host == host).count() as u64;
    let fullest = record.ranks.iter().map(|rank| on_host(&rank.host)).max();
    let ranks = fullest.or(record.setting("parallel.ranks").and_then(Value::as_u64))?;
    let threads = record.setting("hardware.threads_per_rank").and_then(Value::as_u64).unwrap_or(1);
    let cores = record.environment.get("cores").and_then(Value::as_u64).filter(|&cores| cores > 0)?;
    (ranks.saturating_mul(threads) > cores).then_some((ranks, threads, cores))
}
