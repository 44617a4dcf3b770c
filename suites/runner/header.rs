//! What all records of a run have in common.

use crate::folders::Folders;
use serde_json::{Map, Value};
use std::time::Duration;
use zbench_reports::record::{Outcome, Record};

/// What all records of a run have in common.
#[derive(Clone, Debug, Default)]
pub struct Header {
    /// Title of the notebook entry.
    pub name: String,
    /// What it is to find out.
    pub question: String,
    /// The command.
    pub command: String,
    /// Machine and program.
    pub environment: Map<String, Value>,
    /// Records of another machine, profile or build count as done too.
    pub any_environment: bool,
    /// Flagged trials are not repeated.
    pub no_repeats: bool,
    /// Why cells are measured by trials and not by turns, where that is not the user's wish. Their order is then random.
    pub why_not_turns: Option<String>,
    /// Seed of the order of trials, where that is random.
    pub seed: u64,
    /// No trial of a cell that has a record begins after this time. Absent: there is no limit.
    pub budget: Option<Duration>,
    /// Where training checkpoints go.
    pub folders: Folders,
    /// Remarks of every record.
    pub notes: Vec<String>,
}

impl Header {
    /// A record with what is known before anything is measured: the only place that makes one.
    pub fn blank(&self, key: &str, cell: Value, trial: u32, started: jiff::Timestamp) -> Record {
        let unique = format!("{key} {trial} {started} {}", std::process::id());
        let id = blake3::hash(unique.as_bytes()).to_hex()[..12].to_string();
        let mut record = Record::new(id, key, &self.name, Outcome::measured());
        record.trial = trial;
        record.cell = cell;
        record.environment = self.environment.clone();
        record.command = self.command.clone();
        record.started = started.to_string();
        record.notes.clone_from(&self.notes);
        if !self.question.is_empty() {
            record.extra.insert("question".into(), self.question.clone().into());
        }
        if let Some(why) = &self.why_not_turns {
            let why_not = Some(why.clone());
            record.turns = Some(zbench_reports::record::Turns { why_not, seed: self.seed, ..Default::default() });
        }
        record
    }
}
