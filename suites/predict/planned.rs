//! Before a cell runs: its plan, whether it can run here, and what would make it fit.

use crate::Timing;
use crate::band::PUBLISHED;
use crate::drive::{self, Drive};
use crate::forecast::{self, Footprint};
use crate::here::{is_launched, ranks_here};
use crate::job::job;
use crate::offload;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use zbench_config::grid::GridCell;
use zbench_config::profile::drives::DriveRates;
use zbench_config::{Resolved, Settings, precision_name};
use zbench_engine::compute::hardware;
use zbench_engine::config::{Backend, Cell, Checkpointing, DeviceKind, Loading, MemoryTier};
use zbench_engine::memory::tiers::pinned_room;
use zbench_engine::observe::outcome::Estimate;
use zbench_engine::planner::Planner;
use zbench_estimate::job::{Number, Peft};
use zbench_host::{devices, machine};
use zbench_kernels::Category;
use zbench_reports::OrderedMap;
use zbench_reports::estimate_report::{EstimateRow, EstimateTraffic, Subject};
use zbench_reports::max_batch::Search;
use zbench_reports::record::{Source, Status};
use zbench_reports::units;

mod changes;

#[cfg(test)]
pub(crate) use changes::cheapest_change;

/// A cell with its plan and the decision what to do with it.
pub struct Planned {
    /// The cell as the grid has it.
    pub grid: GridCell,
    /// What the engine's plan says, when it runs such cells.
    pub estimate: Option<Estimate>,
    /// What a rank takes; by the estimator where the engine does not run such cells.
    pub footprint: Option<Footprint>,
    /// How long a step takes, or why that is not predicted.
    pub timing: Result<Timing, String>,
    /// What travels in a step.
    pub traffic: Vec<EstimateTraffic>,
    /// What to do.
    pub decision: Decision,
    /// The cheapest change that would make it fit; empty when it fits or when nothing known does.
    pub advice: String,
    /// The cell that this one stands in for, under `--proxy`.
    pub proxy_of: Option<String>,
    /// What a search of the grid says of it.
    pub search: Option<Box<Search>>,
    /// What the drive gives on which some of its state lives, or why that is not known.
    pub drive: Result<Arc<Drive>, String>,
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
        Some(self.footprint.as_ref()?.fits(self.capacity()?))
    }

    /// Whether the predicted peak is within the capacity and the upper end of its band is not.
    fn is_uncertain(&self) -> bool {
        let Some((footprint, capacity)) = self.footprint.as_ref().zip(self.capacity()) else { return false };
        let most = footprint.band.map_or(0.0, |band| band.around(footprint.total as f64)[1]);
        footprint.fits(capacity) && most > capacity as f64
    }

    /// What the cell is called; one of a file without a grid by its strategy.
    fn label(&self) -> String {
        match self.grid.label.as_str() {
            "" => self.grid.strategy().unwrap_or_default().to_string(),
            label => label.to_string(),
        }
    }

    /// Finds what the drive gives: by the records of `zbench io` of the same file system, else measured now. Nothing for a cell that does
    /// not run, or has nothing on a disk.
    pub fn find_drive(&mut self, of_records: &[DriveRates]) {
        let Some(cell) = self.cell().filter(|_| self.decision == Decision::Run) else { return };
        let Some(folder) = cell.memory.offload_folder() else { return };
        let ranks = ranks_here(cell);
        self.drive = match drive::of_folder(of_records, &folder) {
            Some(rates) => Drive::shared(rates, ranks).map(Arc::new),
            None => drive::measured(&folder, ranks),
        };
    }

    /// The row of the document of estimates.
    pub fn row(&self) -> EstimateRow {
        let (status, reason) = match &self.decision {
            Decision::Run => ("planned".to_string(), String::new()),
            Decision::Record { status, reason, .. } => (status.name().to_string(), reason.clone()),
        };
        let (timing, footprint) = (self.timing.as_ref().ok(), self.footprint.as_ref());
        let ranks = self.cell().map_or(1, |cell| cell.parallel.ranks).max(1) as f64;
        let rate = |flops: f64, ms: f64| flops / (ms / 1e3);
        let pipeline = timing.and_then(|timing| timing.pipeline);
        let utilised = |flops: fn(&Timing) -> f64| timing.and_then(|t| Some(rate(flops(t), t.step_ms) / t.peak?));
        let wire: f64 = self.traffic.iter().map(|traffic| traffic.wire_bytes).sum();
        let priced_flops = || timing.map(|timing| timing.model_flops_per_rank * ranks);
        let on_device = footprint.filter(|_| self.cell().is_some_and(|cell| cell.hardware.device == DeviceKind::Cuda));
        let bytes = |of: fn(&Footprint) -> u64| footprint.map(of).filter(|bytes| *bytes > 0);
        let resolved = self.grid.resolved.as_ref().ok();
        EstimateRow {
            label: self.label(),
            key: self.grid.key.clone(),
            status,
            reason,
            memory: footprint.map(|footprint| footprint.peaks.clone()).unwrap_or_default(),
            at_peak: footprint.map(|footprint| footprint.at_peak.clone()).unwrap_or_default(),
            total_bytes: footprint.map(|footprint| footprint.total),
            capacity_bytes: self.capacity(),
            fits: self.fits(),
            uncertain: self.is_uncertain(),
            advice: self.advice.clone(),
            wire_bytes: (self.estimate.is_some() || timing.is_some()).then_some(wire),
            model_flops: self.estimate.as_ref().map(|estimate| estimate.flops.model).or_else(priced_flops),
            proxy: self.proxy_of.is_some(),
            step_ms: timing.map(|timing| timing.step_ms),
            time: timing.map(|timing| timing.spans.clone()).unwrap_or_default(),
            pipeline_ms: pipeline.map(|pipeline| pipeline.ms),
            bubble: pipeline.map(|pipeline| pipeline.bubble),
            step_error: timing.and_then(|timing| timing.error),
            time_source: self.timing.as_ref().map_or_else(Clone::clone, |timing| timing.source.clone()),
            tokens_per_second: timing.map(|timing| timing.tokens_per_second),
            tokens_per_second_per_rank: timing.map(|timing| timing.tokens_per_second / ranks),
            tflops_per_rank: timing.map(|t| rate(t.model_flops_per_rank, t.step_ms) / 1e12),
            mfu: utilised(|timing| timing.model_flops_per_rank),
            hfu: utilised(|timing| timing.hardware_flops_per_rank),
            traffic: self.traffic.clone(),
            peak_stage: footprint.and_then(|footprint| footprint.stage),
            host_bytes: bytes(|footprint| footprint.host),
            disk_bytes: bytes(|footprint| footprint.disk),
            host_capacity_bytes: footprint.and_then(|footprint| footprint.host_capacity),
            memory_source: footprint.map(|footprint| footprint.source.to_string()).unwrap_or_default(),
            software: self.grid.resolved.as_ref().map(|of| of.framework.name.clone()).unwrap_or_default(),
            memory_figures: on_device.map(|footprint| footprint.figures[0].named()).unwrap_or_default(),
            memory_last_stage: on_device.map(|footprint| footprint.figures[1].named()).unwrap_or_default(),
            tflops_by_convention: match (on_device.and(self.grid.resolved.as_ref().ok()), timing) {
                (Some(resolved), Some(timing)) => forecast::tflops_by_convention(resolved, timing),
                _ => OrderedMap::default(),
            },
            total_bytes_band: footprint
                .and_then(|of| Some(of.band?.around(of.total as f64).map(|bytes| bytes.round() as u64))),
            step_ms_band: timing.and_then(|timing| Some(timing.band?.around_time(timing.step_ms))),
            tokens_per_second_band: timing.and_then(|timing| Some(timing.band?.around(timing.tokens_per_second))),
            band_source: forecast::of_bands(footprint, timing),
            subject: resolved.map(|resolved| subject(resolved, &self.grid.settings)),
            has_adapter: resolved.is_some_and(|resolved| job(resolved).peft != Peft::None),
            cautions: resolved.filter(|_| timing.is_some()).map(cautions).unwrap_or_default(),
            not_compared: forecast::not_compared(footprint, timing),
            assumed: forecast::assumed(footprint, timing),
            search: self.search.as_deref().cloned(),
        }
    }
}

/// Names of a cell's model, machine, precision and program, and its tokens per step.
pub fn subject(resolved: &Resolved, settings: &Settings) -> Subject {
    let Resolved { cell, profile, framework, .. } = resolved;
    let text = |key: &str| settings.get(key).and_then(|setting| setting.value.as_str());
    let folder = || Path::new(text("model.path")?).file_name()?.to_str();
    let unnamed = || {
        let parameters = job(resolved).model.parameters() as f64;
        let family = text("model.family").unwrap_or(&cell.model.family);
        format!("{family} of {} M parameters", units::quantity((parameters / 1e6).round()))
    };
    let replicas = cell.parallel.ranks / cell.parallel.degrees.ranks_per_replica().max(1);
    let sequences = cell.train.micro_batch.saturating_mul(cell.train.accumulation).saturating_mul(replicas);
    let precision = precision_name(settings);
    Subject {
        model: text("model.preset").or_else(folder).map_or_else(unnamed, str::to_string),
        machine: profile.as_ref().map_or("this machine", |profile| &profile.name).to_string(),
        step_tokens: sequences.saturating_mul(cell.train.seq_len) as u64,
        // A sentence has its own commas.
        precision: match precision.split_once(", ") {
            Some((preset, stated)) => format!("{preset} ({stated})"),
            // A program and its preset may share a name.
            None if precision == framework.name => format!("{precision} precision"),
            None => precision,
        },
        software: framework.name.clone(),
    }
}

/// Least ratio of the rates in 16 bits and in f32 at which f32 gets a caution.
const MUCH_FASTER: f64 = 4.0;

/// Cautions about a cell's speed, as sentences without their stops.
fn cautions(resolved: &Resolved) -> Vec<String> {
    let Some((job, machine)) = forecast::job_and_machine(resolved) else { return Vec::new() };
    let rate = |number: Number| machine.device.compute.get(&number).map(|rate| rate.peak);
    let times = rate(Number::Bf16).or(rate(Number::F16)).zip(rate(Number::F32)).map(|(low, f32)| low / f32);
    let in_f32 = times.filter(|times| job.precision.products == Number::F32 && *times >= MUCH_FASTER).map(|times| {
        format!(
            "Matrix products are in f32, and {} is rated {times:.0} times as fast in 16 bits: precision.preset = \"bf16-mixed\"",
            machine.name
        )
    });
    let of_adapters = (job.peft != Peft::None).then(|| {
        format!("Predicted speeds of adapter runs were up to {:.1} times as high as published ones", PUBLISHED.adapters)
    });
    in_f32.into_iter().chain(of_adapters).collect()
}

fn traffic(estimate: &Estimate) -> Vec<EstimateTraffic> {
    let entry = |t: &zbench_collectives::Traffic| EstimateTraffic {
        axis: t.axis.name().into(),
        kind: t.kind.name().into(),
        calls: t.calls,
        payload_bytes: t.payload_bytes,
        wire_bytes: t.wire_bytes,
    };
    estimate.traffic.iter().map(entry).collect()
}

/// Plans a cell for this machine.
pub fn plan(planner: &Planner, grid: GridCell, proxy_of: Option<String>) -> Planned {
    let mut planned = without_advice(planner, grid, proxy_of);
    advise(planner, std::slice::from_mut(&mut planned), 1);
    planned
}

/// Looks for what would make the first cells fit that do not, at most so many.
pub fn advise(planner: &Planner, cells: &mut [Planned], most: usize) {
    for planned in cells.iter_mut().filter(|planned| planned.fits() == Some(false)).take(most) {
        let (Some(capacity), Ok(resolved)) = (planned.capacity(), &planned.grid.resolved) else { continue };
        planned.advice = changes::cheapest_change(planner, resolved, capacity)
            .unwrap_or_else(|| "none of the changes tried (up to 64 times the ranks) makes it fit".into());
    }
}

/// The same without looking for what would make it fit, which is most of the work where it does not.
pub fn without_advice(planner: &Planner, grid: GridCell, proxy_of: Option<String>) -> Planned {
    let mut planned = Planned {
        estimate: None,
        footprint: None,
        timing: Err(String::new()),
        traffic: Vec::new(),
        decision: Decision::Run,
        advice: String::new(),
        proxy_of,
        search: None,
        drive: Err("its drive was not measured".into()),
        grid,
    };
    let Ok(resolved) = planned.grid.resolved.clone() else {
        let refusal = planned.grid.resolved.as_ref().err().map(ToString::to_string).unwrap_or_default();
        planned.decision = skipped(refusal, Source::Plan);
        return planned;
    };
    let Weight { estimate, footprint, decision } = weigh(planner, &resolved);
    (planned.estimate, planned.footprint, planned.decision) = (estimate, footprint, decision);
    if planned.footprint.is_none() {
        return planned;
    }
    planned.traffic = planned.estimate.as_ref().map(traffic).unwrap_or_default();
    planned.timing = match forecast::timing(planner, &resolved, planned.estimate.as_ref()) {
        Ok((timing, traffic)) => {
            if planned.estimate.is_none() {
                planned.traffic = traffic;
            }
            Ok(timing)
        }
        Err(reason) => Err(reason),
    };
    planned
}

/// What a cell takes, and what follows from it.
pub struct Weight {
    /// What the engine plans, where it runs such cells.
    pub estimate: Option<Estimate>,
    /// Bytes of a rank.
    pub footprint: Option<Footprint>,
    /// Whether it runs here.
    pub decision: Decision,
}

/// Plans a cell's memory alone.
pub fn weigh(planner: &Planner, resolved: &Resolved) -> Weight {
    match estimate(planner, &resolved.cell) {
        Ok(estimate) => {
            let footprint = forecast::footprint(resolved, Some(&estimate));
            let decision = decide(planner, resolved, &estimate, &footprint);
            Weight { estimate: Some(estimate), footprint: Some(footprint), decision }
        }
        Err(reason) => {
            let footprint = resolved.cell.is_priced().then(|| forecast::footprint(resolved, None));
            Weight { estimate: None, footprint, decision: skipped(reason, Source::Plan) }
        }
    }
}

fn skipped(reason: String, source: Source) -> Decision {
    Decision::Record { status: Status::Skipped, reason, source }
}

/// The estimate of a cell, from the plan that a run would carry out.
pub fn estimate(planner: &Planner, cell: &Cell) -> Result<Estimate, String> {
    Ok(planner.plan(cell).map_err(|error| error.to_string())?.estimate())
}

/// What this machine has; asked once, as a grid has thousands of cells.
fn host_memory() -> Option<u64> {
    static MEMORY: OnceLock<Option<u64>> = OnceLock::new();
    *MEMORY.get_or_init(|| machine::memory_bytes("MemTotal"))
}

fn decide(planner: &Planner, resolved: &Resolved, estimate: &Estimate, footprint: &Footprint) -> Decision {
    let cell = &resolved.cell;
    let total = estimate.memory().total_peak();
    let record = |status, reason, source| Decision::Record { status, reason, source };
    if cell.hardware.device == DeviceKind::Cuda {
        return on_device(resolved, estimate, footprint);
    }
    if let Some(reason) = above_capacity(cell, estimate) {
        return record(Status::OutOfMemory, reason, Source::Plan);
    }
    let here = ranks_here(cell);
    if let Err(error) = planner.kernels(cell).and_then(|_| hardware::enough_cores(cell, here, &machine::core_numbers()))
    {
        return record(Status::Skipped, error.to_string(), Source::Host);
    }
    if let Some(reason) = offload::folder_refused(cell, estimate, here as u64) {
        return record(Status::Skipped, reason, Source::Host);
    }
    let all = estimate.ram_bytes_of(here);
    match host_memory() {
        Some(memory) if all > memory && cell.memory.capacity.is_none_or(|capacity| total <= capacity) => {
            let reason = format!("{here} ranks take {} together, this machine has {}", gib(all), gib(memory));
            record(Status::OutOfMemory, reason, Source::Plan)
        }
        Some(memory) => match too_large_to_load(cell, estimate, here as u64, memory) {
            Some(reason) => record(Status::OutOfMemory, reason, Source::Plan),
            None => Decision::Run,
        },
        None => Decision::Run,
    }
}

/// Why no run can be within the capacity: what never leaves memory is above it, or what is left where all is evicted that can be.
fn above_capacity(cell: &Cell, estimate: &Estimate) -> Option<String> {
    let (capacity, total) = (cell.memory.capacity?, estimate.memory().total_peak());
    let state = estimate.state_bytes();
    if state > capacity {
        let (state, capacity) = (gib(state), gib(capacity));
        return Some(format!(
            "weights, gradients and optimizer state alone take {state} of a rank, memory.capacity is {capacity}"
        ));
    }
    (cell.memory.checkpointing == Checkpointing::Evict && total > capacity).then(|| {
        let (least, capacity, above) = (gib(total), gib(capacity), gib(total - capacity));
        format!(
            "the smallest peak that memory.checkpointing = \"evict\" reaches is {least} of a rank, {above} above memory.capacity = \
             {capacity}"
        )
    })
}

/// Whether a cell for CUDA runs here: on how many GPUs, and whether their memory holds it.
fn on_device(resolved: &Resolved, estimate: &Estimate, footprint: &Footprint) -> Decision {
    let total = estimate.memory().total_peak();
    let Resolved { cell, profile, .. } = resolved;
    let (ranks, backend) = (cell.parallel.ranks, cell.parallel.backend);
    let skip = |why: String| {
        let machine = profile.as_ref().map(|profile| format!(" ({})", profile.name)).unwrap_or_default();
        let fits = match cell.memory.capacity {
            Some(capacity) => {
                let would = if footprint.fits(capacity) { "would" } else { "would not" };
                format!("; it {would} fit there: a rank needs {} and has {}", gib(footprint.total), gib(capacity))
            }
            None => String::new(),
        };
        let devices = if backend == Backend::Device { 1 } else { ranks };
        let plural = if devices == 1 { "" } else { "s" };
        let reason = format!("needs {devices} CUDA device{plural}{machine}, and {why}{fits}");
        Decision::Record { status: Status::Skipped, reason, source: Source::Host }
    };
    let found = match devices::count() {
        Ok(found) => found,
        Err(reason) => return skip(reason),
    };
    let sharers = match backend {
        Backend::Device => ranks,
        Backend::Local if ranks == 1 => 1,
        Backend::Nccl => match devices::enough(ranks_here(cell), found, is_launched()) {
            Ok(()) => 1,
            Err(why) if found == 1 && ranks > 1 => {
                return skip(format!("{why}; ranks share one with parallel.backend = \"device\""));
            }
            Err(why) => return skip(why),
        },
        Backend::Local => {
            return skip(
                "parallel.backend = \"local\" puts one rank on a GPU; leave it out for \"nccl\", or write \"device\" (ranks share one GPU)".into(),
            );
        }
        Backend::Shm | Backend::Tcp | Backend::Mpi => {
            let name = backend.name();
            return skip(format!(
                "parallel.backend = \"{name}\" moves what lies on hosts; leave it out for \"nccl\", or write \"device\" (ranks share one GPU)"
            ));
        }
    };
    if cell.link.is_some() {
        return skip(
            "links cannot be emulated there: a call returns before a GPU has done it; leave [link] out".into(),
        );
    }
    if cell.pace.is_some() {
        let reason =
            "a pace cannot be emulated there: a rank that sleeps does not hold a GPU's queue back; leave [pace] out";
        return skip(reason.into());
    }
    if let Some(reason) = above_capacity(cell, estimate) {
        return Decision::Record { status: Status::OutOfMemory, reason, source: Source::Plan };
    }
    let memory = match devices::machine(0) {
        Ok(machine) => machine.props().memory_bytes,
        Err(reason) => return skip(reason),
    };
    let all = total.saturating_mul(sharers as u64);
    if all > memory && cell.memory.capacity.is_none_or(|capacity| total <= capacity) {
        let reason = format!("{sharers} ranks take {} of a GPU, which has {} free", gib(all), gib(memory));
        return Decision::Record { status: Status::OutOfMemory, reason, source: Source::Plan };
    }
    let here = ranks_here(cell) as u64;
    if let Some(reason) = offload::folder_refused(cell, estimate, here) {
        return Decision::Record { status: Status::Skipped, reason, source: Source::Host };
    }
    if let Some(reason) = offload::host_refused(pinned_room(&estimate.ledgers[MemoryTier::Host]), here, host_memory()) {
        return Decision::Record { status: Status::OutOfMemory, reason, source: Source::Plan };
    }
    Decision::Run
}

/// Whether this machine has the memory for ranks of so many bytes each.
pub fn host_holds(cell: &Cell, bytes: u64) -> bool {
    let all = bytes.saturating_mul(ranks_here(cell) as u64);
    host_memory().is_none_or(|memory| all <= memory)
}

/// Why this machine cannot hold what ranks read into its memory before they take their parts of it.
fn too_large_to_load(cell: &Cell, estimate: &Estimate, here: u64, memory: u64) -> Option<String> {
    if cell.model.loading == Loading::Sliced {
        return None;
    }
    let stored = stored_bytes(cell.model.weights.as_deref()?)?;
    let state = [Category::Parameters, Category::Optimizer].map(|category| estimate.peak(category)).iter().sum::<u64>();
    too_large(cell.model.loading, stored, state, here, memory)
}

/// The same of a checkpoint's bytes and those of a rank's state.
fn too_large(loading: Loading, stored: u64, state: u64, here: u64, memory: u64) -> Option<String> {
    let readers = match loading {
        Loading::Sliced => return None,
        Loading::Broadcast => 1,
        Loading::Everywhere => here,
    };
    let (read, held) = (stored.saturating_mul(readers), state.saturating_mul(here));
    (read.saturating_add(held) > memory).then(|| {
        format!(
            "model.loading = \"{}\" reads {} into this machine's memory, beside {} of weights and optimizer state of its ranks; \
             it has {}: set model.loading = \"sliced\"",
            loading.name(),
            gib(read),
            gib(held),
            gib(memory)
        )
    })
}

/// Bytes of a folder's files of weights; absent where it cannot be read, of which the run will tell.
fn stored_bytes(dir: &Path) -> Option<u64> {
    let files = std::fs::read_dir(dir).ok()?.filter_map(Result::ok);
    let weights = files.filter(|file| file.path().extension().is_some_and(|end| end == "safetensors"));
    Some(weights.filter_map(|file| Some(file.metadata().ok()?.len())).sum())
}

/// GPUs of this machine that a cell runs on.
pub fn gpus_here(cell: &Cell) -> usize {
    match cell.parallel.backend {
        _ if cell.hardware.device != DeviceKind::Cuda || devices::on_host() => 0,
        Backend::Nccl => ranks_here(cell),
        _ => 1,
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The post's figures: 70 billion weights of 4 bytes, 8 ranks to a node of 1 TB.
    #[test]
    fn what_a_node_cannot_hold_while_it_loads_is_known() {
        let (stored, state, memory) = (280_000_000_000, 1_000_000_000, 1_000_000_000_000);
        let of = |loading, memory| too_large(loading, stored, state, 8, memory);
        let refusal = of(Loading::Everywhere, memory).unwrap();
        assert!(refusal.contains("everywhere") && refusal.contains("2086.16 GiB"), "{refusal}");
        assert!(refusal.ends_with("set model.loading = \"sliced\""), "{refusal}");
        assert_eq!([of(Loading::Broadcast, memory), of(Loading::Sliced, 1)], [None, None]);
        assert_eq!(of(Loading::Broadcast, stored + 8 * state), None, "to the byte");
        assert!(of(Loading::Broadcast, stored + 8 * state - 1).is_some());
    }

    /// Files of weights count, and nothing else in their folder.
    #[test]
    fn the_bytes_of_a_folder_are_those_of_its_weights() {
        let folder = tempfile::tempdir().unwrap();
        for (name, bytes) in [("a.safetensors", 100), ("b.safetensors", 20), ("config.json", 7)] {
            std::fs::write(folder.path().join(name), vec![0u8; bytes]).unwrap();
        }
        assert_eq!(stored_bytes(folder.path()), Some(120));
        assert_eq!(stored_bytes(&folder.path().join("absent")), None);
    }
}
