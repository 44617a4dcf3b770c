//! The suite `checkpoint`: what writing, reading and re-reading the state of a run takes, beside what the disk can do. Its
//! cells are training cells; each trial is a process of its own ([`child`]) on a folder of its own.

pub mod args;
pub mod child;
pub mod flags;
mod memory;
mod parent;
mod raw;
pub(crate) mod resolve;
mod sessions;

use crate::bench::{BenchError, BenchResult, BenchSpec, Limits};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use zbench_config::grid;
use zbench_config::shard_spec::ShardSpec;
use zbench_engine::config::{Backend, Cell, DeviceKind};
use zbench_engine::planner::Planner;
use zbench_predict::planned::estimate;

/// What is measured: a training cell's checkpoints.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CheckpointCell {
    /// What trains and how it saves; its folder is empty where the notebook's is used.
    pub cell: Cell,
    pub load_as: Vec<ShardSpec>,
    pub repeats: usize,
}

/// What a trial's process is told.
#[derive(Debug, Serialize, Deserialize)]
struct Job {
    pub cell: Value,
    /// A folder that is its own and is removed afterwards.
    pub folder: PathBuf,
    /// Cores that it may use.
    pub cores: usize,
}

impl BenchSpec for CheckpointCell {
    fn plain(&self) -> Value {
        let mut value = grid::plain(&self.cell);
        if let Some(cell) = value.as_object_mut() {
            cell.insert("suite".into(), "checkpoint".into());
            if let Some(saving) = cell.get_mut("checkpoint").and_then(Value::as_object_mut) {
                saving.insert("load_as".into(), self.load_as.iter().map(ShardSpec::to_string).collect());
                saving.insert("repeats".into(), json!(self.repeats));
            }
        }
        value
    }

    fn label(&self) -> String {
        let Some(saving) = self.cell.checkpoint.as_deref() else { return ShardSpec::of(&self.cell).to_string() };
        let layout = serde_json::to_value(saving.layout).unwrap_or_default();
        let how = if saving.asynchronous { "async" } else { "sync" };
        format!("{}, {}, {how}", ShardSpec::of(&self.cell), layout.as_str().unwrap_or_default())
    }

    /// Memory of the ranks that need most of it; absent where the engine has no plan for it.
    fn needs(&self) -> Option<u64> {
        let planner = Planner::default();
        let mut most = 0;
        for spec in std::iter::once(ShardSpec::of(&self.cell)).chain(self.load_as.iter().copied()) {
            let total = estimate(&planner, &spec.apply(&self.cell, 1)).ok()?.ram_bytes_of(spec.ranks);
            most = most.max(total);
        }
        Some(most)
    }

    fn measure(&self, limits: &Limits<'_>, folder: &Path) -> Result<BenchResult, BenchError> {
        parent::measure(self, limits, folder)
    }
}

/// The specification that a record's cell holds.
pub(crate) fn of_plain(cell: &Value) -> Option<Box<dyn BenchSpec>> {
    CheckpointCell::of_plain(cell).map(|cell| -> Box<dyn BenchSpec> { Box::new(cell) })
}

impl CheckpointCell {
    /// From plain data; absent where it is none, or nothing that can be measured here.
    pub fn of_plain(value: &Value) -> Option<CheckpointCell> {
        let mut value = value.clone();
        let cell = value.as_object_mut()?;
        if cell.remove("suite")?.as_str() != Some("checkpoint") {
            return None;
        }
        let saving = cell.get_mut("checkpoint")?.as_object_mut()?;
        let texts: Vec<String> = serde_json::from_value(saving.remove("load_as")?).ok()?;
        let load_as = texts.iter().map(|text| ShardSpec::parse(text).ok()).collect::<Option<Vec<_>>>()?;
        let repeats = serde_json::from_value(saving.remove("repeats")?).ok().filter(|repeats| *repeats > 0)?;
        let cell = zbench_config::grid::of_plain(&value).ok()?;
        let is_possible = cell.checkpoint.is_some()
            && cell.parallel.backend == Backend::Local
            && cell.hardware.device == DeviceKind::Cpu
            && cell.train.steps > 0;
        is_possible.then_some(CheckpointCell { cell, load_as, repeats })
    }
}
