//! `plan --search`: every way to split a cell's work over its ranks, priced, for the best speed under the memory limit.

mod lost;
mod ways;

use crate::forecast::{self, Footprint};
use crate::{Timing, planned};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;
pub(crate) use ways::{MOST_CHUNKS, divisors};
use ways::{Space, Way};
use zbench_config::{Resolved, grid, keys};
use zbench_engine::config::{Cell, Checkpointing, Degrees, DeviceKind, MemoryTier, Placement, Priced, Strategy};
use zbench_engine::observe::outcome::Estimate;
use zbench_engine::planner::Planner;
use zbench_estimate::framework::{self, Framework};
use zbench_host::machine;
use zbench_reports::estimate_report::{Alternative, Candidate, Searched, name};
use zbench_reports::{OrderedMap, label};

/// More ways than this are not listed, unless more are asked for.
pub const SHOWN: usize = 10;
/// Alternatives of another split that are named beside the fastest way.
const ALTERNATIVES: usize = 2;

/// The software of a search around a cell that names none.
pub const SOFTWARE: &str = "megatron-core";

/// What a search cannot be made of.
#[derive(Debug, thiserror::Error)]
pub enum SearchError {
    /// The cell has no machine, or the machine no rates.
    #[error("a search needs the machine's speed: {0}")]
    Machine(String),
    /// The model is meant for shorter sequences.
    #[error("train.seq_len = {seq_len} exceeds the model's max_position_embeddings = {most}; write at most that")]
    Sequence {
        /// Tokens of a sequence.
        seq_len: usize,
        /// The most that the model is meant for.
        most: usize,
    },
    /// Nothing limits memory.
    #[error("a search needs a limit of memory; state memory.capacity, or a hardware.profile that has one")]
    Capacity,
    /// A key that ways are to keep is none that a search varies, or no way has the value.
    #[error("{key} = {value} cannot be kept: {why}")]
    Keep {
        /// The key.
        key: String,
        /// The value.
        value: String,
        /// What there is instead.
        why: String,
    },
    /// No split of the ranks divides the sequences of a step.
    #[error(
        "a step of {global_batch} sequences cannot be divided among {ranks} ranks: no split has a number of data-parallel ranks \
         that divides it; the nearest that can be have {nearest}"
    )]
    Batch {
        /// Sequences of a step.
        global_batch: usize,
        /// Ranks.
        ranks: usize,
        /// The nearest numbers of sequences.
        nearest: String,
    },
}

/// A way that fits, and what it takes.
struct Fitting {
    way: Way,
    bytes: u64,
    step_ms: f64,
}

/// What a way takes, whole.
struct Outcome {
    estimate: Option<Estimate>,
    footprint: Footprint,
    timing: Result<Timing, String>,
}

/// What is asked of a search.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Share of a rank's memory that what is recommended leaves free.
    pub headroom: f64,
    /// Ways that are listed at least.
    pub listed: usize,
    /// Sequences of a step, all ranks together, where they are others than the cell's.
    pub global_batch: Option<usize>,
    /// Keys that ways keep at a value, as settings write it.
    pub keep: Vec<(String, String)>,
    /// Share by which the simplest way may be slower than the fastest and comes first all the same.
    pub tie: f64,
}

impl Default for Wanted {
    fn default() -> Wanted {
        Wanted { headroom: HEADROOM, listed: SHOWN, global_batch: None, keep: Vec::new(), tie: 0.0 }
    }
}

/// Share of a rank's memory that a recommendation leaves free where nothing else is asked for: predictions are off by a few
/// percent, and a run that is out of memory costs more than the last of its speed.
pub const HEADROOM: f64 = 0.05;

/// The tie of a recommendation: about half of the median error of predicted speeds (docs/estimator.md).
pub const TIE: f64 = 0.02;

/// A cell without what a search varies: what stays the same in all its ways.
pub fn question(resolved: &Resolved) -> Cell {
    let mut cell = resolved.cell.clone();
    let replicas = cell.parallel.ranks / cell.parallel.degrees.ranks_per_replica().max(1);
    cell.parallel.degrees = Degrees::default();
    cell.train.accumulation *= cell.train.micro_batch * replicas;
    cell.train.micro_batch = 1;
    cell.parallel.strategy = Strategy::Ddp;
    cell.parallel.shard = cell.parallel.ranks;
    cell.memory.checkpointing = Checkpointing::None;
    if let Some(priced) = &mut cell.priced {
        priced.placement = Placement::default();
    }
    cell.priced = cell.priced.filter(|priced| **priced != Priced::default());
    let memory = &mut cell.memory;
    for home in [&mut memory.offload_optimizer, &mut memory.offload_parameters, &mut memory.offload_activations] {
        *home = MemoryTier::Device;
    }
    cell
}

/// The software of a search around a cell on a GPU that names none. It is the same for all ways, so that the search compares ways of
/// splitting and not programs.
pub fn software(resolved: &Resolved) -> Option<Arc<Framework>> {
    let hardware = &resolved.cell.hardware;
    let names_none = hardware.device == DeviceKind::Cuda && hardware.software.is_none();
    names_none.then(|| framework::framework(SOFTWARE).ok()).flatten()
}

/// Searches around a cell: its model, ranks, sequence length and global batch stay.
///
/// # Errors
/// There is no machine or no limit to search under.
pub fn search(planner: &Planner, resolved: &Resolved, label: &str, wanted: &Wanted) -> Result<Searched, SearchError> {
    let begun = Instant::now();
    let mut resolved = resolved.clone();
    if let Some(framework) = software(&resolved) {
        resolved = resolved.with_framework(framework);
    }
    let (seq_len, model) = (resolved.cell.train.seq_len, &resolved.cell.model);
    // Families that the engine has not state no such limit.
    let is_of_engine = resolved.cell.priced.as_ref().is_none_or(|priced| priced.model.is_none());
    if let Some(most) = model.most_tokens().filter(|most| is_of_engine && seq_len > *most) {
        return Err(SearchError::Sequence { seq_len, most });
    }
    let stated = price(planner, &resolved);
    stated.timing.map_err(SearchError::Machine)?;
    let capacity = capacity(&resolved.cell).ok_or(SearchError::Capacity)?;
    let limit = (capacity as f64 * (1.0 - wanted.headroom)) as u64;
    let space = Space::of(&resolved, wanted)?;
    if space.ways.is_empty() {
        return Err(space.none());
    }
    let of = |way: &Way| resolved.with_cell(space.cell(way));
    let mut impossible: BTreeMap<String, u64> =
        space.impossible.iter().map(|(reason, count)| (reason.to_string(), *count)).collect();
    let mut fitting: Vec<Fitting> = Vec::new();
    let mut nearest: Option<(u64, Way)> = None;
    for way in &space.ways {
        let one = of(way);
        let outcome = match price_within(planner, &one, limit) {
            Ok(outcome) => outcome,
            Err(reason) => {
                *impossible.entry(reason).or_default() += 1;
                continue;
            }
        };
        match outcome.timing {
            Some(timing) => fitting.push(Fitting { way: *way, bytes: outcome.bytes, step_ms: timing.step_ms }),
            None if outcome.bytes <= limit => {
                *impossible.entry("what is offloaded is more than the host's memory".into()).or_default() += 1;
            }
            None if nearest.is_none_or(|(least, _)| outcome.bytes < least) => nearest = Some((outcome.bytes, *way)),
            None => {}
        }
    }
    // Of ways that are as fast, what moves nothing is simpler.
    let tie = |one: &Fitting| (one.way.offloads(), one.bytes);
    fitting.sort_by(|a, b| a.step_ms.total_cmp(&b.step_ms).then_with(|| tie(a).cmp(&tie(b))));
    let pareto: Vec<Way> = pareto(&fitting).into_iter().map(|one| one.way).collect();
    if let Some(best) = fitting.first().map(|best| best.step_ms * (1.0 + wanted.tie)) {
        let within = fitting.iter().take_while(|one| one.step_ms <= best).enumerate();
        let simplest = within.min_by_key(|(place, one)| (one.way.offloads(), one.way.axes(), *place));
        let place = simplest.map_or(0, |(place, _)| place);
        fitting[..=place].rotate_right(1);
    }
    let whole = |way: &Way| price(planner, &of(way));
    let candidate = |way: &Way| candidate(&whole(way), space.settings(way));
    let first = fitting.first().map(|best| whole(&best.way));
    let alternatives = alternatives(&fitting, |way| (whole(way), space.settings(way)));
    Ok(Searched {
        label: label.to_string(),
        subject: None,
        capacity_bytes: capacity,
        headroom: wanted.headroom,
        limit_bytes: limit,
        ranks: resolved.cell.parallel.ranks as u64,
        global_batch: space.global_batch as u64,
        priced: space.ways.len() as u64,
        fitting: fitting.len() as u64,
        impossible: impossible.iter().map(|(reason, count)| (reason.as_str(), *count)).collect(),
        band_source: first.as_ref().map(bands).unwrap_or_default(),
        not_compared: first
            .as_ref()
            .map(|of| forecast::not_compared(Some(&of.footprint), of.timing.as_ref().ok()))
            .unwrap_or_default(),
        assumed: first
            .as_ref()
            .map(|of| forecast::assumed(Some(&of.footprint), of.timing.as_ref().ok()))
            .unwrap_or_default(),
        runner_up: alternatives.first().map(|one| format!("The runner-up: {}", one.words())).unwrap_or_default(),
        alternatives,
        measured: None,
        pareto: pareto.iter().map(candidate).collect(),
        best: listed(&fitting, wanted.listed.max(SHOWN)).into_iter().map(|one| candidate(&one.way)).collect(),
        nearest: nearest.filter(|_| fitting.is_empty()).map(|(_, way)| candidate(&way)),
        seconds: begun.elapsed().as_secs_f64(),
    })
}

/// The memory of a rank that ways must leave room in: as stated, else a rank's share of this machine's.
fn capacity(cell: &Cell) -> Option<u64> {
    let here = || machine::memory_bytes("MemTotal").map(|bytes| bytes / cell.parallel.ranks.max(1) as u64);
    cell.memory.capacity.or_else(|| if cell.hardware.device == DeviceKind::Cpu { here() } else { None })
}

/// What a way takes, as far as a search needs it.
struct Quick {
    bytes: u64,
    /// Nothing of a way that does not fit.
    timing: Option<Timing>,
}

/// Prices a way if it fits into so many bytes.
fn price_within(planner: &Planner, one: &Resolved, limit: u64) -> Result<Quick, String> {
    // The key alone, as its values are others in each way.
    let refused = |reason: String| format!("the engine refuses {}", reason.split(": ").next().unwrap_or_default());
    let estimate = estimate(planner, one).map_err(refused)?;
    let footprint = forecast::footprint(one, estimate.as_ref());
    let bytes = footprint.total;
    if !footprint.fits(limit) {
        return Ok(Quick { bytes, timing: None });
    }
    let (timing, _) = forecast::timing(planner, one, estimate.as_ref())?;
    Ok(Quick { bytes, timing: Some(timing) })
}

/// The engine's plan of a cell whose own bytes are asked for, as `plan` prints them: one on a CPU, or of zbench's own habits.
fn estimate(planner: &Planner, one: &Resolved) -> Result<Option<Estimate>, String> {
    let cell = &one.cell;
    match cell.hardware.device {
        DeviceKind::Cpu => planned::estimate(planner, cell).map(Some),
        DeviceKind::Cuda if cell.hardware.software.as_deref() == Some("zbench") && !cell.is_priced() => {
            Ok(planned::estimate(planner, cell).ok())
        }
        DeviceKind::Cuda => Ok(None),
    }
}

/// Prices a way whole.
fn price(planner: &Planner, one: &Resolved) -> Outcome {
    let estimate = estimate(planner, one).unwrap_or_default();
    let footprint = forecast::footprint(one, estimate.as_ref());
    let timing = forecast::timing(planner, one, estimate.as_ref()).map(|(timing, _)| timing);
    Outcome { estimate, footprint, timing }
}

fn bands(of: &Outcome) -> String {
    forecast::of_bands(Some(&of.footprint).filter(|_| of.estimate.is_none()), of.timing.as_ref().ok())
}

/// The settings of a candidate that the cell does not have already, nor any cell by default.
pub fn changes<'c>(resolved: &Resolved, candidate: &'c Candidate) -> Vec<(&'c str, &'c str)> {
    let cell = grid::plain(&resolved.cell);
    let is_new = |(key, value): &(&str, &String)| {
        let stated = cell.pointer(&format!("/{}", key.replace('.', "/"))).filter(|value| !value.is_null()).cloned();
        let default = || keys::default_of(key).and_then(|value| serde_json::to_value(value).ok());
        match stated.or_else(default) {
            Some(stated) => !label::is_value(key, &stated, value),
            None => !label::is_usual(key, value),
        }
    };
    candidate.settings.iter().filter(is_new).map(|(key, value)| (key, value.as_str())).collect()
}

/// The fastest, without those that differ from a faster one in nothing but where stages lie.
fn listed(fitting: &[Fitting], count: usize) -> Vec<&Fitting> {
    let mut list: Vec<&Fitting> = Vec::new();
    for one in fitting {
        if list.len() == count {
            break;
        }
        if !list.iter().any(|faster| one.way.is_but_for_placement(&faster.way)) {
            list.push(one);
        }
    }
    list
}

/// Those that no other beats in speed and memory both; they come sorted by speed.
fn pareto(fitting: &[Fitting]) -> Vec<&Fitting> {
    let (mut least, mut list) = (u64::MAX, Vec::new());
    for one in fitting {
        if one.bytes < least {
            least = one.bytes;
            list.push(one);
        }
    }
    list
}

fn candidate(one: &Outcome, settings: OrderedMap<String>) -> Candidate {
    let timing = one.timing.clone().unwrap_or_default();
    let bytes = one.footprint.total;
    Candidate {
        settings,
        step_ms: timing.step_ms,
        tokens_per_second: timing.tokens_per_second,
        mfu: timing.model_flops_per_rank / (timing.step_ms / 1e3) / timing.peak.unwrap_or(f64::NAN),
        memory_bytes: bytes,
        time: timing.spans.clone(),
        step_ms_band: timing.band.map(|band| band.around_time(timing.step_ms)),
        tokens_per_second_band: timing.band.map(|band| band.around(timing.tokens_per_second)),
        memory_bytes_band: one.footprint.band.map(|band| band.around(bytes as f64).map(|bytes| bytes.round() as u64)),
    }
}

/// The fastest ways that split the work otherwise than the best and than each other, and why they lost. Where all split it alike, the
/// second of all.
fn alternatives(fitting: &[Fitting], whole: impl Fn(&Way) -> (Outcome, OrderedMap<String>)) -> Vec<Alternative> {
    let Some((best, others)) = fitting.split_first() else { return Vec::new() };
    let mut chosen = vec![best];
    for one in others {
        if chosen.len() <= ALTERNATIVES && !chosen.iter().any(|other| other.way.splits_like(&one.way)) {
            chosen.push(one);
        }
    }
    if chosen.len() == 1 {
        chosen.extend(others.first());
    }
    let (first, settings) = whole(&best.way);
    let Ok(timing) = &first.timing else { return Vec::new() };
    let best = candidate(&first, settings);
    let of = |one: &&Fitting| {
        let (other, settings) = whole(&one.way);
        let differences = lost::differences(timing, other.timing.as_ref().ok()?);
        let candidate = candidate(&other, settings);
        Some(Alternative {
            name: name(&candidate, Some(&best)),
            slower: candidate.step_ms / best.step_ms - 1.0,
            why: lost::words(&differences),
            spans: differences.iter().map(|(name, share)| (name.as_str(), *share)).collect(),
            candidate,
        })
    };
    chosen.iter().skip(1).filter_map(of).collect()
}
