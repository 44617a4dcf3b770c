//! Events of the form, and the names that readers see.

use serde_json::{Value, json};
use std::time::{SystemTime, UNIX_EPOCH};
use zbench_engine::actions::{Action, Moved};
use zbench_predict::planned::Planned;

/// The lane of what a rank does.
pub const COMPUTE: u64 = 1;
/// On a device, the lane of what its host asks for.
pub const HOST: u64 = 2;
/// The first lane of collectives; each axis has some, as many as are under way at a time.
pub const COLLECTIVES: u64 = 10;

/// This moment, in nanoseconds since 1970.
pub fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// A process with a name, in the order of its number.
pub fn process(pid: u64, name: &str, sort: u64) -> [Value; 2] {
    [
        json!({ "ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": { "name": name } }),
        json!({ "ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": { "sort_index": sort } }),
    ]
}

/// A lane with a name.
pub fn thread(pid: u64, tid: u64, name: &str) -> Value {
    json!({ "ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": { "name": name } })
}

/// Something that took time.
pub fn slice(pid: u64, tid: u64, category: &str, name: &str, at: u64, lasts: u64, args: Value) -> Value {
    json!({ "ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "at": at, "lasts": lasts, "args": args })
}

/// What the actions of a cell are called.
#[derive(Clone, Copy, Debug)]
pub struct Names {
    blocks: usize,
}

impl Names {
    /// Of this cell's model.
    pub fn of(planned: &Planned) -> Names {
        Names { blocks: planned.cell().map_or(0, |cell| cell.model.num_hidden_layers) }
    }

    fn unit(&self, unit: usize) -> String {
        match unit {
            0 => "embed_tokens".into(),
            unit if unit <= self.blocks => format!("layers.{}", unit - 1),
            _ => "lm_head".into(),
        }
    }

    /// What is done, and with what.
    pub fn action(&self, action: Action) -> String {
        let what = |gradient| if gradient { "gradients" } else { "activations" };
        match action {
            Action::Load { micro } => format!("load micro-batch {micro}"),
            Action::Gather { unit, refresh: true, slot: false } => format!("refresh {}", self.unit(unit)),
            Action::Gather { unit, .. } => format!("gather {}", self.unit(unit)),
            Action::Forward { layer, .. } => format!("forward {}", self.unit(layer)),
            Action::Evict { layer, .. } => format!("evict {}", self.unit(layer)),
            Action::Recompute { layer, .. } => format!("recompute {}", self.unit(layer)),
            Action::Backward { layer, .. } => format!("backward {}", self.unit(layer)),
            Action::BackwardInput { layer, .. } => format!("backward of the input of {}", self.unit(layer)),
            Action::BackwardWeight { layer, .. } => format!("backward of the weights of {}", self.unit(layer)),
            Action::Receive { gradient, .. } => format!("receive {}", what(gradient)),
            Action::Send { gradient, .. } => format!("send {}", what(gradient)),
            Action::Release { unit } => format!("release {}", self.unit(unit)),
            Action::Reduce { unit, .. } => format!("reduce {}", self.unit(unit)),
            Action::Update => "update".into(),
            Action::Fetch { unit, what: Moved::Weights } => format!("fetch weights of {}", self.unit(unit)),
            Action::Fetch { unit, what: Moved::State } => format!("fetch state of {}", self.unit(unit)),
            Action::StoreSaved { layer, .. } => format!("store activations of {}", self.unit(layer)),
            Action::SettleSaved { layer, .. } => format!("wait for the activations of {}", self.unit(layer)),
            Action::FetchSaved { layer, .. } => format!("fetch activations of {}", self.unit(layer)),
            Action::UpdateUnit { unit } => format!("update {}", self.unit(unit)),
            Action::Store { unit } => format!("store {}", self.unit(unit)),
            Action::Settle { unit } => format!("wait for the store of {}", self.unit(unit)),
        }
    }
}
