//! Before a cell runs: its plan, whether it can run here, and what would make it fit.

use super::machine;
use super::time::EstimateTime;
use crate::config::Resolved;
use crate::grid::GridCell;
use crate::launch;
use zbench_engine::config::{Backend, Cell, Checkpointing, DeviceKind, Strategy};
use zbench_engine::hardware;
use zbench_engine::outcome::Estimate;
use zbench_engine::plan::Plan;
use zbench_kernels::{Category, Cpu, DType};
use zbench_reports::estimate_report::{EstimateRow, EstimateTraffic};
use zbench_reports::record::{Source, Status};

/// A cell with its plan and the decision what to do with it.
pub struct Planned {
    /// The cell as the grid has it.
    pub grid: GridCell,
    /// What the plan says, when there is one.
    pub estimate: Option<Estimate>,
    /// What to do.
    pub decision: Decision,
    /// The cheapest change that would make it fit; empty when it fits or when nothing known does.
    pub advice: String,
    /// The cell that this one stands in for, under `--proxy`.
    pub proxy_of: Option<String>,
    /// The predicted time of a step, or why there is none.
    pub time: Result<EstimateTime, String>,
}

/// What to do with a cell.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// Run it.
    Run,
    /// Record this without running it.
    Record {
        /// skipped or out_of_memory.
        status: Status,
        /// Why.
        reason: String,
        /// Who says so.
        source: Source,
    },
}

impl Planned {
    /// The configuration, when the combination is one.
    pub fn cell(&self) -> Option<&Cell> {
        self.grid.resolved.as_ref().ok().map(|resolved| &resolved.cell)
    }

    /// What a rank may use, when that is stated.
    pub fn capacity(&self) -> Option<u64> {
        self.cell()?.memory.capacity
    }

    /// Whether a rank's predicted peak is within its capacity.
    pub fn fits(&self) -> Option<bool> {
        Some(self.estimate.as_ref()?.memory.total_peak() <= self.capacity()?)
    }

    /// The row of the document of estimates.
    pub fn row(&self) -> EstimateRow {
        let (status, reason) = match &self.decision {
            Decision::Run => ("planned".to_string(), String::new()),
            Decision::Record { status, reason, .. } => (status.name().to_string(), reason.clone()),
        };
        let estimate = self.estimate.as_ref();
        let mut row = EstimateRow {
            label: self.grid.label.clone(),
            key: self.grid.key.clone(),
            status,
            reason,
            memory: estimate.map(by_category).unwrap_or_default(),
            total_bytes: estimate.map(|estimate| estimate.memory.total_peak()),
            capacity_bytes: self.capacity(),
            fits: self.fits(),
            advice: self.advice.clone(),
            wire_bytes: estimate.map(|estimate| estimate.traffic.iter().map(|traffic| traffic.wire_bytes).sum()),
            model_flops: estimate.map(|estimate| estimate.flops.model),
            proxy: self.proxy_of.is_some(),
            traffic: estimate.map(traffic).unwrap_or_default(),
            memory_source: if estimate.is_some() { "plan".into() } else { String::new() },
            ..EstimateRow::default()
        };
        super::time::fill(self, &mut row);
        row
    }
}

fn by_category(estimate: &Estimate) -> zbench_reports::Named<u64> {
    Category::ALL.iter().map(|category| (category.name(), estimate.peak(*category))).collect()
}

fn traffic(estimate: &Estimate) -> Vec<EstimateTraffic> {
    let entry = |t: &zbench_engine::outcome::Traffic| EstimateTraffic {
        axis: t.axis.into(),
        kind: t.kind.into(),
        calls: t.calls,
        payload_bytes: t.payload_bytes,
        wire_bytes: t.wire_bytes,
    };
    estimate.traffic.iter().map(entry).collect()
}

/// Plans a cell for this machine.
pub fn plan(grid: GridCell, proxy_of: Option<String>) -> Planned {
    let skip = |reason: String, source| Decision::Record { status: Status::Skipped, reason, source };
    let (estimate, decision) = match &grid.resolved {
        Err(refusal) => (None, skip(refusal.to_string(), Source::Plan)),
        Ok(resolved) => match estimate(&resolved.cell) {
            Err(reason) => (None, skip(reason, Source::Plan)),
            Ok(estimate) => {
                let decision = decide(resolved, &estimate);
                (Some(estimate), decision)
            }
        },
    };
    let time = super::time::of(&grid);
    let mut planned = Planned { grid, estimate, decision, advice: String::new(), proxy_of, time };
    if planned.fits() == Some(false)
        && let (Some(cell), Some(capacity)) = (planned.cell(), planned.capacity())
    {
        planned.advice = cheapest_change(cell, capacity)
            .unwrap_or_else(|| "none of the changes tried (up to 64 times the ranks) makes it fit".into());
    }
    planned
}

/// The estimate of a cell, from the plan that a run would carry out.
pub fn estimate(cell: &Cell) -> Result<Estimate, String> {
    // The kernels are asked for their scratch sizes, which depend on the threads of a rank; nothing runs on them.
    // Where the cell's instructions are not those of this CPU it is estimated with what is here, and does not run.
    let kernels = hardware::planner(cell).unwrap_or_else(|_| Cpu::new(cell.hardware.threads_per_rank));
    let plan = Plan::new(cell, &kernels).map_err(|error| error.to_string())?;
    Ok(plan.estimate)
}

fn decide(resolved: &Resolved, estimate: &Estimate) -> Decision {
    let cell = &resolved.cell;
    let total = estimate.memory.total_peak();
    let record = |status, reason, source| Decision::Record { status, reason, source };
    if cell.hardware.device == DeviceKind::Cuda {
        let machine = resolved.profile.as_ref().map(|name| format!(" ({name})")).unwrap_or_default();
        let fits = match cell.memory.capacity {
            Some(capacity) if total <= capacity => {
                format!("; it would fit there: {} of {} a rank", gib(total), gib(capacity))
            }
            Some(capacity) => format!("; it would not fit there: {} of {} a rank", gib(total), gib(capacity)),
            None => String::new(),
        };
        let reason = format!(
            "needs {} CUDA device{}{machine}, and this version of zbench runs on the CPU{fits}",
            cell.parallel.ranks,
            if cell.parallel.ranks == 1 { "" } else { "s" }
        );
        return record(Status::Skipped, reason, Source::Host);
    }
    let state: u64 =
        [Category::Parameters, Category::Gradients, Category::Optimizer].map(|c| estimate.peak(c)).iter().sum();
    if let Some(capacity) = cell.memory.capacity.filter(|capacity| state > *capacity) {
        let reason = format!(
            "weights, gradients and optimizer state alone take {} of a rank, memory.capacity is {}",
            gib(state),
            gib(capacity)
        );
        return record(Status::OutOfMemory, reason, Source::Plan);
    }
    let here = ranks_here(cell);
    if let Err(error) = hardware::planner(cell).and_then(|_| hardware::enough_cores(cell, here)) {
        return record(Status::Skipped, error.to_string(), Source::Host);
    }
    let all = total.saturating_mul(here as u64);
    match machine::memory_bytes("MemTotal") {
        Some(memory) if all > memory && cell.memory.capacity.is_none_or(|capacity| total <= capacity) => {
            let reason = format!("{here} ranks take {} together, this machine has {}", gib(all), gib(memory));
            record(Status::OutOfMemory, reason, Source::Plan)
        }
        _ => Decision::Run,
    }
}

/// Ranks of a cell that share this machine's memory, as far as it is known before they have met.
fn ranks_here(cell: &Cell) -> usize {
    let launched =
        || launch::detect(&|name| std::env::var(name).ok()).ok().flatten().and_then(|world| world.local_size);
    match cell.parallel.backend {
        Backend::Local | Backend::Shm => cell.parallel.ranks,
        Backend::Tcp => launched().unwrap_or(cell.parallel.ranks).min(cell.parallel.ranks),
        // mpirun knows the hosts; what one rank takes this machine must have in any case.
        Backend::Mpi => 1,
    }
}

/// Bytes for a reader.
pub fn gib(bytes: u64) -> String {
    let bytes = bytes as f64;
    match bytes {
        b if b >= 1073741824.0 => format!("{:.2} GiB", b / 1073741824.0),
        b if b >= 1048576.0 => format!("{:.2} MiB", b / 1048576.0),
        b if b >= 1024.0 => format!("{:.1} KiB", b / 1024.0),
        b => format!("{b} B"),
    }
}

/// One thing that can be changed, and how it is written.
struct Change {
    text: &'static str,
    apply: fn(&mut Cell) -> bool,
}

/// From what costs least (time, then numerics, then machines). Each says false where it changes nothing.
const CHANGES: &[Change] = &[
    Change {
        text: "memory.checkpointing = \"selective\"",
        apply: |cell| set_checkpointing(cell, Checkpointing::Selective),
    },
    Change { text: "memory.checkpointing = \"full\"", apply: |cell| set_checkpointing(cell, Checkpointing::Full) },
    Change { text: "half train.micro_batch and twice train.accumulation", apply: halve_micro_batch },
    Change { text: "parallel.strategy = \"fsdp\"", apply: full_shard },
    Change { text: "precision.gradients = \"bf16\"", apply: low_gradients },
];

fn set_checkpointing(cell: &mut Cell, to: Checkpointing) -> bool {
    let keeps_more = match cell.memory.checkpointing {
        Checkpointing::None => true,
        Checkpointing::Keep(_) => to == Checkpointing::Full,
        _ => false,
    };
    if keeps_more {
        cell.memory.checkpointing = to;
    }
    keeps_more
}

fn halve_micro_batch(cell: &mut Cell) -> bool {
    let even = cell.train.micro_batch.is_multiple_of(2);
    if even {
        cell.train.micro_batch /= 2;
        cell.train.accumulation *= 2;
    }
    even
}

fn full_shard(cell: &mut Cell) -> bool {
    let partial = !matches!(cell.parallel.strategy, Strategy::Fsdp | Strategy::Zero3);
    cell.parallel.strategy = Strategy::Fsdp;
    cell.parallel.shard = cell.parallel.ranks;
    partial
}

fn low_gradients(cell: &mut Cell) -> bool {
    let wide = cell.precision.gradients == DType::F32 && cell.precision.compute != DType::F32;
    if wide {
        cell.precision.gradients = DType::Bf16;
    }
    wide
}

/// The cheapest change that makes a cell fit, found by planning: one change, then several together, then more
/// ranks beside as few changes as do.
pub fn cheapest_change(cell: &Cell, capacity: u64) -> Option<String> {
    let peak = |cell: &Cell| estimate(cell).ok().map(|estimate| estimate.memory.total_peak());
    let say = |what: &str, bytes: u64| format!("{what} (predicted {} of {})", gib(bytes), gib(capacity));
    let attempt = |changes: &[&Change], times: usize| -> Option<String> {
        let mut changed = cell.clone();
        if !changes.iter().all(|change| (change.apply)(&mut changed)) {
            return None;
        }
        let mut words: Vec<String> = changes.iter().map(|change| change.text.to_string()).collect();
        if times > 1 {
            let whole_group = changed.parallel.shard == changed.parallel.ranks;
            changed.parallel.ranks = changed.parallel.ranks.checked_mul(times)?;
            if whole_group {
                changed.parallel.shard = changed.parallel.ranks;
            }
            words.push(format!("parallel.ranks = {}", changed.parallel.ranks));
        }
        let bytes = peak(&changed).filter(|bytes| *bytes <= capacity)?;
        Some(say(&words.join(" and "), bytes))
    };
    // Every set of changes, few changes first, cheap ones first among as many.
    let mut sets: Vec<Vec<&Change>> = (1usize..1 << CHANGES.len())
        .map(|bits| CHANGES.iter().enumerate().filter(|(i, _)| bits >> i & 1 == 1).map(|(_, change)| change).collect())
        .collect();
    sets.sort_by_key(Vec::len);
    if let Some(found) = sets.iter().find_map(|set| attempt(set, 1)) {
        return Some(found);
    }
    let with_more = std::iter::once(Vec::new()).chain(sets).collect::<Vec<_>>();
    [2, 4, 8, 16, 32, 64].into_iter().find_map(|times| with_more.iter().find_map(|set| attempt(set, times)))
}
