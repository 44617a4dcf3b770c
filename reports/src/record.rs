//! The record: all data about one trial of one cell, or about one generation of a cell that took turns. Names are those of docs/contract.md.
//!
//! Reading is forgiving where that is safe: absent parts are empty, unknown keys are kept in `extra` and written back.
//! Numbers that are not finite are null in JSON and come back as NaN (in steps and communication) or `None` (in maps).

pub mod others;
mod parts;
mod stages;
mod turns;

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub(crate) use self::parts::null_is_nan;
pub use self::parts::{Bytes, Category, Communication, Flops, LedgerTerm, Memory, Parity, Rank, Step, Verdict};
pub use self::stages::{PassKind, Stage, StagePass};
pub use self::turns::{TurnRow, Turns};
use crate::ordered_map::{NumberMap, OrderedMap};
use crate::units;

/// Version of the record's schema that this crate writes, and the newest that it reads.
pub const SCHEMA: u32 = 2;

/// Keys that this version does not know; kept through a round trip.
pub type Extra = Map<String, Value>;

/// One trial of one cell, or one generation of its processes where cells took turns.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Version of the schema, see [`SCHEMA`].
    pub schema: u32,
    /// Names this record, unique in a notebook.
    pub id: String,
    /// Hash of the resolved configuration: equal for all trials of a cell.
    pub key: String,
    /// Title of the notebook entry.
    #[serde(default)]
    pub name: String,
    /// Which trial of the cell this is, 1 for the first.
    #[serde(default)]
    pub trial: u32,
    /// The resolved configuration as plain data.
    #[serde(default)]
    pub cell: Value,
    /// Machine, operating system, toolchain, commit.
    #[serde(default)]
    pub environment: Map<String, Value>,
    /// The command that produced the record.
    #[serde(default)]
    pub command: String,
    /// When the trial began, RFC 3339.
    #[serde(default)]
    pub started: String,
    /// How it ended.
    pub outcome: Outcome,
    /// Flat numbers by name; null when a number cannot be stated, with its reason in `unstated`.
    #[serde(default)]
    pub metrics: NumberMap,
    /// Why a metric is null.
    #[serde(default)]
    pub unstated: OrderedMap<String>,
    /// Every step that ran, warm-up included.
    #[serde(default)]
    pub steps: Vec<Step>,
    /// Bytes by category, of the largest rank.
    #[serde(default)]
    pub memory: Memory,
    /// One entry for each rank.
    #[serde(default)]
    pub ranks: Vec<Rank>,
    /// The stages of a pipeline; empty without one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<Stage>,
    /// Communication of one step, by mesh axis and collective.
    #[serde(default)]
    pub communication: Vec<Communication>,
    /// Milliseconds of the slowest rank by span; they add up to the step.
    #[serde(default)]
    pub time: NumberMap,
    /// Floating-point operations by convention, and the ledger behind them.
    #[serde(default)]
    pub flops: Flops,
    /// Comparison of the losses with the reference cell's.
    #[serde(default)]
    pub parity: Parity,
    /// The estimate made before the run.
    #[serde(default)]
    pub estimate: Value,
    /// Why timings of this trial must not be ranked or gated (throttled, swap used); see [`label_flags`].
    #[serde(default)]
    pub validity: Vec<String>,
    /// Remarks of the runner for the reader.
    #[serde(default)]
    pub notes: Vec<String>,
    /// The turns that the cell took, or why it took none; absent in records of schema 1 and of single runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turns: Option<Turns>,
    /// Unknown keys.
    #[serde(flatten)]
    pub extra: Extra,
}

/// The flag of a record whose peak of the cores moved between its beginning and its end.
pub const UNSTEADY_PEAK: &str = "unsteady_peak";
/// Flags that other processes and other guests of the machine cause; --allow-load counts trials that have no others.
pub const LOAD_FLAGS: [&str; 4] = ["busy_machine", "contended", "stolen", UNSTEADY_PEAK];

/// Validity flags that label a record instead of keeping it out of the ranking: every cell of a proxy grid has them.
pub mod label_flags {
    /// The cell is a scaled-down stand-in of the target.
    pub const PROXY: &str = "proxy";
    /// A link's bandwidth and latency were emulated.
    pub const EMULATED_LINK: &str = "emulated_link";
    /// Blocks lasted at least a stated time.
    pub const EMULATED_PACE: &str = "emulated_pace";
    /// Products on a GPU were computed by kernels of zbench's own where the vendor's library was wanted.
    pub const PRODUCT_FALLBACK: &str = "product_fallback";
    /// All of them.
    pub const ALL: [&str; 4] = [PROXY, EMULATED_LINK, EMULATED_PACE, PRODUCT_FALLBACK];
}

impl Record {
    /// A record with these names and outcome, and nothing else yet.
    pub fn new(id: impl Into<String>, key: impl Into<String>, name: impl Into<String>, outcome: Outcome) -> Self {
        Self { schema: SCHEMA, id: id.into(), key: key.into(), name: name.into(), outcome, ..Self::default() }
    }

    /// States a metric. A number that is not finite cannot be stated: it becomes null with that as its reason.
    pub fn state(&mut self, metric: &str, value: f64) {
        self.metrics.set(metric, value);
        if !value.is_finite() {
            self.unstated.insert(metric, format!("the value is not finite ({value})"));
        }
    }

    /// Says why a metric cannot be stated.
    pub fn leave_unstated(&mut self, metric: &str, reason: impl Into<String>) {
        self.metrics.insert(metric, None);
        self.unstated.insert(metric, reason.into());
    }

    /// Whether the cell ran to its end.
    pub fn is_measured(&self) -> bool {
        self.outcome.status == Status::Measured
    }

    /// The turns that can be compared with those of other cells: of a measured record, if it took some.
    pub fn taken_turns(&self) -> Option<&Turns> {
        self.turns.as_ref().filter(|turns| self.is_measured() && !turns.rows.is_empty())
    }

    /// Flags a record of whose turns none counts, since others used the cores. Turns that the user interrupted say nothing of others.
    pub fn flag_discarded_turns(&mut self) {
        let Some(Turns { rows, stopped, .. }) = self.taken_turns() else { return };
        let last = rows.iter().map(|row| row.round).max();
        let is_interrupted = |row: &TurnRow| stopped.as_deref() == Some("interrupted") && Some(row.round) == last;
        if rows.iter().any(|row| row.counted) || rows.iter().all(is_interrupted) {
            return;
        }
        let sum = |share: fn(&TurnRow) -> f64| rows.iter().map(share).filter(|share| share.is_finite()).sum::<f64>();
        let flag = if sum(|row| row.stolen) > sum(|row| row.others) { "stolen" } else { "busy_machine" };
        let turns = units::plural(rows.len(), "turn was", "turns were");
        self.validity.push(flag.into());
        self.notes.push(format!("Its {turns} discarded, since others used the cores: no time of it counts."));
    }

    /// Whether it is of the second set of processes of a reference: its numbers are compared with the reference alone.
    pub fn is_twin(&self) -> bool {
        self.turns.as_ref().is_some_and(|turns| turns.twin)
    }

    /// Validity flags that keep it out of rankings and comparisons; those that only label are not among them. Turns are compared
    /// within rounds, so that a peak of the cores that moved over minutes does not keep them out.
    pub fn excluding_flags(&self) -> impl Iterator<Item = &str> {
        excluding(&self.validity, self.taken_turns().is_some())
    }

    /// The value at a dotted path of the resolved configuration, as `parallel.strategy`.
    pub fn setting(&self, path: &str) -> Option<&Value> {
        path.split('.').try_fold(&self.cell, |value, part| value.get(part))
    }

    /// Steps whose time counts, with a positive finite duration.
    pub fn timed_steps(&self) -> impl Iterator<Item = &Step> {
        self.steps.iter().filter(|step| step.timed && step.ms.is_finite() && step.ms > 0.0)
    }

    /// Whether bytes on the wire are planned and not measured: MPI and NCCL do not tell what they move. Records that earlier
    /// versions wrote have a number there that was worked out.
    pub fn wire_is_planned(&self) -> bool {
        self.setting("parallel.backend").and_then(Value::as_str).is_some_and(wire_is_planned)
    }

    /// Bytes on the wire in one step, of the largest rank, as they were counted where they moved; NaN where nothing counts them.
    pub fn wire_bytes(&self) -> f64 {
        if self.wire_is_planned() {
            return f64::NAN;
        }
        self.communication.iter().map(|entry| entry.wire_bytes).sum()
    }

    /// The predicted bytes on the wire, when every entry has a prediction.
    pub fn predicted_wire_bytes(&self) -> Option<f64> {
        self.communication.iter().map(|entry| entry.predicted_wire_bytes).sum()
    }
}

/// The validity flags that keep a record, which has turns or not, out of rankings.
pub(crate) fn excluding(flags: &[String], has_turns: bool) -> impl Iterator<Item = &str> {
    let labels = move |flag: &str| label_flags::ALL.contains(&flag) || has_turns && flag == UNSTEADY_PEAK;
    flags.iter().map(String::as_str).filter(move |flag| !labels(flag))
}

/// Whether a backend leaves moving to a library that does not tell its bytes.
pub fn wire_is_planned(backend: &str) -> bool {
    matches!(backend, "mpi" | "nccl")
}

/// What stands as `source` beside numbers that were planned, where others are measured.
pub const PLANNED: &str = "planned";

/// How a trial ended.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// What happened.
    pub status: Status,
    /// Why, for a reader; empty when measured.
    #[serde(default)]
    pub reason: String,
    /// Who said so, where that matters (out of memory, skipped).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
}

impl Outcome {
    /// The trial ran to its end.
    pub fn measured() -> Self {
        Self { status: Status::Measured, reason: String::new(), source: None }
    }

    /// The trial ended otherwise, with a reason.
    pub fn ended(status: Status, reason: impl Into<String>, source: Option<Source>) -> Self {
        Self { status, reason: reason.into(), source }
    }
}

/// The six ways a cell can end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Ran to its end.
    Measured,
    /// Cannot be run here or at all; the reason says which.
    Skipped,
    /// Needs more memory than there is or than `memory.capacity` allows.
    OutOfMemory,
    /// Took longer than its time limit.
    TimedOut,
    /// A loss or gradient norm was not finite.
    Diverged,
    /// Anything else that kept it from ending.
    #[default]
    Failed,
}

impl Status {
    /// The name in a record.
    pub fn name(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::Skipped => "skipped",
            Self::OutOfMemory => "out_of_memory",
            Self::TimedOut => "timed_out",
            Self::Diverged => "diverged",
            Self::Failed => "failed",
        }
    }

    /// The words in a sentence.
    pub fn words(self) -> &'static str {
        match self {
            Self::OutOfMemory => "out of memory",
            Self::TimedOut => "timed out",
            other => other.name(),
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Who found the outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The plan proved it before the run.
    Plan,
    /// The arena refused a request during the run.
    Arena,
    /// The host ended the process or lacks the hardware.
    Host,
}

impl Source {
    /// The name in a record.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plan => "plan",
            Self::Arena => "arena",
            Self::Host => "host",
        }
    }
}

/// Key of a remark with the tags that it adds to its record. Older versions show the remark's text, which names them.
pub const ADDED: &str = "tags_added";
/// Key of a remark with the tags that it removes.
pub const REMOVED: &str = "tags_removed";

/// A remark on a record, made later by a person.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Remark {
    /// Version of the schema.
    pub schema: u32,
    /// Id of the record.
    pub note_for: String,
    /// The text.
    pub text: String,
    /// When, RFC 3339.
    #[serde(default)]
    pub when: String,
    /// Unknown keys.
    #[serde(flatten)]
    pub extra: Extra,
}

impl Remark {
    /// A remark made at `when` (RFC 3339) on the record with that id.
    pub fn new(note_for: impl Into<String>, text: impl Into<String>, when: impl Into<String>) -> Self {
        Self { schema: SCHEMA, note_for: note_for.into(), text: text.into(), when: when.into(), extra: Extra::new() }
    }

    /// A remark that adds and removes tags.
    pub fn tagging(note_for: impl Into<String>, added: &[String], removed: &[String], when: impl Into<String>) -> Self {
        let signed = |sign: char, tags: &[String]| tags.iter().map(|tag| format!("{sign}{tag}")).collect::<Vec<_>>();
        let text = format!("tags: {}", [signed('+', added), signed('-', removed)].concat().join(" "));
        let mut remark = Self::new(note_for, text, when);
        for (key, tags) in [(ADDED, added), (REMOVED, removed)] {
            if !tags.is_empty() {
                remark.extra.insert(key.into(), tags.into());
            }
        }
        remark
    }

    /// The tags under [`ADDED`] or [`REMOVED`].
    pub fn tags(&self, key: &str) -> impl Iterator<Item = &str> {
        self.extra.get(key).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
    }

    /// Whether it only adds or removes tags.
    pub fn is_tagging(&self) -> bool {
        [ADDED, REMOVED].iter().any(|key| self.extra.contains_key(*key))
    }
}
