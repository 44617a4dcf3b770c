//! Events of the form, and the names that readers see.

use serde_json::{Value, json};
use std::time::{SystemTime, UNIX_EPOCH};
use zbench_engine::action::{Action, Moved};
use zbench_engine::model::{LayerKind, Layout};
use zbench_engine::planner::Planner;
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
#[derive(Clone, Debug, Default)]
pub struct Names {
    /// By stage of the pipeline; empty where there is no plan.
    stages: Vec<OfStage>,
    ranks_per_stage: usize,
}

/// The layers of a stage, and its units of weights.
#[derive(Clone, Debug, Default)]
struct OfStage {
    layers: Vec<String>,
    units: Vec<String>,
}

impl OfStage {
    fn of(layout: &Layout) -> OfStage {
        let mut names = OfStage { layers: Vec::new(), units: vec![String::new(); layout.units.len()] };
        for layer in &layout.layers {
            let name = match &layer.kind {
                LayerKind::Embedding(_) => "embed_tokens".to_string(),
                LayerKind::Block(block) => format!("layers.{}", block.index),
                LayerKind::Norm(_) => "norm".to_string(),
                LayerKind::Head(_) => "lm_head".to_string(),
            };
            if let Some(second) = layer.second {
                let what = if layer.block().is_some() { "experts" } else { "positions and norm" };
                names.units[second] = format!("{what} of {name}");
            }
            // Of a copy.
            if let Some(table) = layer.shares {
                names.units[table] = "embed_tokens".into();
            }
            names.units[layer.unit].clone_from(&name);
            names.layers.push(name);
        }
        names
    }
}

impl Names {
    /// Of this cell's model.
    pub fn of(planned: &Planned) -> Names {
        let plan = planned.cell().and_then(|cell| Planner::default().plan(cell).ok());
        let Some(plan) = plan else { return Names::default() };
        let stages: Vec<OfStage> = plan.stage_plans.iter().map(|role| OfStage::of(&role.layout)).collect();
        Names { ranks_per_stage: plan.mesh.world() / stages.len().max(1), stages }
    }

    /// The stage of a rank.
    pub fn stage_of(&self, rank: usize) -> usize {
        rank / self.ranks_per_stage.max(1)
    }

    /// The stage of a rank in words behind its number; nothing where there is one.
    pub fn stage_in_title(&self, rank: usize) -> String {
        if self.stages.len() > 1 { format!(", stage {}", self.stage_of(rank)) } else { String::new() }
    }

    /// What is done, and with what.
    pub fn action(&self, stage: usize, action: Action) -> String {
        let of_stage = self.stages.get(stage);
        let name = |names: Option<&Vec<String>>, kind: &str, number: usize| {
            names.and_then(|names| names.get(number)).cloned().unwrap_or_else(|| format!("{kind} {number}"))
        };
        let layer_name = |layer| name(of_stage.map(|stage| &stage.layers), "layer", layer);
        let unit_name = |unit| name(of_stage.map(|stage| &stage.units), "unit", unit);
        let what = |gradient| if gradient { "gradients" } else { "activations" };
        match action {
            Action::Load { micro } => format!("load micro-batch {micro}"),
            Action::Gather { unit, refresh: true, slot: false } => format!("refresh {}", unit_name(unit)),
            Action::Gather { unit, .. } => format!("gather {}", unit_name(unit)),
            Action::Forward { layer, .. } => format!("forward {}", layer_name(layer)),
            Action::Evict { layer, .. } => format!("evict {}", layer_name(layer)),
            Action::Recompute { layer, .. } => format!("recompute {}", layer_name(layer)),
            Action::Backward { layer, .. } => format!("backward {}", layer_name(layer)),
            Action::BackwardInput { layer, .. } => format!("backward of the input of {}", layer_name(layer)),
            Action::BackwardWeight { layer, .. } => format!("backward of the weights of {}", layer_name(layer)),
            Action::Receive { gradient, .. } => format!("receive {}", what(gradient)),
            Action::Send { gradient, .. } => format!("send {}", what(gradient)),
            Action::Release { unit } => format!("release {}", unit_name(unit)),
            Action::Reduce { unit, .. } => format!("reduce {}", unit_name(unit)),
            Action::ReduceTied { .. } => "reduce tied embeddings".into(),
            Action::Update => "update".into(),
            Action::Fetch { unit, what: Moved::Weights } => format!("fetch weights of {}", unit_name(unit)),
            Action::Fetch { unit, what: Moved::State } => format!("fetch state of {}", unit_name(unit)),
            Action::StoreSaved { layer, .. } => format!("store activations of {}", layer_name(layer)),
            Action::WaitStoreSaved { layer, .. } => format!("wait for the activations of {}", layer_name(layer)),
            Action::FetchSaved { layer, .. } => format!("fetch activations of {}", layer_name(layer)),
            Action::UpdateUnit { unit } => format!("update {}", unit_name(unit)),
            Action::Store { unit } => format!("store {}", unit_name(unit)),
            Action::WaitStore { unit } => format!("wait for the store of {}", unit_name(unit)),
        }
    }
}
