//! `plan --search`: every way to split a cell's work over its ranks, priced, for the best speed under the memory limit.

use crate::Timing;
use crate::forecast;
use crate::planned;
use std::collections::BTreeMap;
use std::time::Instant;
use zbench_config::{Resolved, grid, keys};
use zbench_engine::config::{Cell, Checkpointing, Degrees, Home, PipelineSchedule, Strategy};
use zbench_engine::planner::Planner;
use zbench_estimate::band::Band;
use zbench_reports::OrderedMap;
use zbench_reports::estimate_report::{Candidate, Searched};
use zbench_reports::{label, units};

/// More combinations than this are not listed.
const SHOWN: usize = 10;
/// Micro-batches that are tried: more than this keeps no device busier.
const MICRO_BATCHES: [usize; 6] = [1, 2, 4, 8, 16, 32];

/// The software of a search around a cell that names none.
const SOFTWARE: &str = "megatron-core";

/// What a search cannot be made of.
#[derive(Debug, thiserror::Error)]
pub enum SearchError {
    /// The cell has no machine, or the machine no rates.
    #[error("a search needs the machine's speed: {0}")]
    Machine(String),
    /// Nothing limits memory.
    #[error("a search needs a limit of memory; state memory.capacity, or a hardware.profile that has one")]
    Capacity,
}

/// One way: the cell changed, and the settings that say how.
struct ParallelLayout {
    cell: Cell,
    settings: OrderedMap<String>,
}

/// What a way takes.
struct Outcome {
    settings: OrderedMap<String>,
    bytes: u64,
    band: Option<Band>,
    timing: Timing,
}

/// A cell without what a search varies: what stays the same in all its ways.
pub fn question(resolved: &Resolved) -> Cell {
    let mut cell = resolved.cell.clone();
    let replicas = cell.parallel.ranks / cell.parallel.degrees.ranks_per_replica().max(1);
    cell.parallel.degrees = Degrees { expert_tensor: cell.parallel.degrees.expert_tensor, ..Degrees::default() };
    cell.train.accumulation *= cell.train.micro_batch * replicas;
    cell.train.micro_batch = 1;
    cell.parallel.strategy = Strategy::Ddp;
    cell.parallel.shard = cell.parallel.ranks;
    cell.memory.checkpointing = Checkpointing::None;
    (cell.memory.offload_optimizer, cell.memory.offload_parameters) = (Home::Device, Home::Device);
    cell
}

/// Share of a rank's memory that a recommendation leaves free where nothing else is asked for: predictions are off by a few
/// percent, and a run that is out of memory costs more than the last of its speed.
pub const HEADROOM: f64 = 0.05;

/// Searches around a cell: its model, ranks, sequence length and global batch stay. What is recommended leaves the share
/// `headroom` of a rank's memory free.
///
/// # Errors
/// There is no machine or no limit to search under.
pub fn search(planner: &Planner, resolved: &Resolved, label: &str, headroom: f64) -> Result<Searched, SearchError> {
    let begun = Instant::now();
    // One software for all ways: else two programs would be compared where two ways of splitting are asked about.
    let mut resolved = resolved.clone();
    resolved.cell.hardware.software.get_or_insert_with(|| SOFTWARE.into());
    let resolved = &resolved;
    forecast::timing(planner, resolved, None).map_err(SearchError::Machine)?;
    let capacity = resolved.cell.memory.capacity.ok_or(SearchError::Capacity)?;
    let limit = (capacity as f64 * (1.0 - headroom)) as u64;
    let mut found = Searched {
        label: label.to_string(),
        capacity_bytes: capacity,
        headroom,
        limit_bytes: limit,
        ranks: resolved.cell.parallel.ranks as u64,
        ..Searched::default()
    };
    let mut impossible: BTreeMap<&'static str, u64> = BTreeMap::new();
    let (mut fitting, mut nearest): (Vec<Outcome>, Option<(u64, ParallelLayout)>) = (Vec::new(), None);
    for way in ways(resolved, &mut impossible) {
        found.priced += 1;
        let one = Resolved { cell: way.cell.clone(), profile: resolved.profile.clone() };
        // Where the engine's own habits are asked for, cells that it runs have its own bytes, as `plan` prints them.
        let ours = one.cell.hardware.software.as_deref() == Some("zbench") && !one.cell.is_priced();
        let estimate = if ours { planned::estimate(planner, &one.cell).ok() } else { None };
        let footprint = forecast::footprint(&one, estimate.as_ref());
        let bytes = footprint.total;
        if !footprint.fits(limit) {
            if bytes <= limit {
                *impossible.entry("what is offloaded is more than the host's memory").or_default() += 1;
            } else if nearest.as_ref().is_none_or(|(least, _)| bytes < *least) {
                nearest = Some((bytes, way));
            }
            continue;
        }
        let Ok((timing, _)) = forecast::timing(planner, &one, estimate.as_ref()) else { continue };
        if found.band_source.is_empty() {
            found.band_source = forecast::of_bands(&one.cell, Some(&footprint), Some(&timing));
        }
        fitting.push(Outcome { settings: way.settings, bytes, band: footprint.band, timing });
    }
    found.fitting = fitting.len() as u64;
    found.impossible = impossible.into_iter().map(|(reason, count)| (reason.to_string(), count)).collect();
    fitting
        .sort_by(|a, b| b.timing.tokens_per_second.total_cmp(&a.timing.tokens_per_second).then(a.bytes.cmp(&b.bytes)));
    found.runner_up = runner_up(&fitting);
    found.pareto = pareto(&fitting);
    found.best = fitting.iter().take(SHOWN).map(candidate).collect();
    if let (true, Some((bytes, way))) = (fitting.is_empty(), nearest) {
        let one = Resolved { cell: way.cell, profile: resolved.profile.clone() };
        let timing = forecast::timing(planner, &one, None).map(|(timing, _)| timing).unwrap_or_default();
        found.nearest = Some(candidate(&Outcome { settings: way.settings, bytes, band: None, timing }));
    }
    found.seconds = begun.elapsed().as_secs_f64();
    Ok(found)
}

/// The settings of a candidate that the cell does not have already, nor any cell by default.
pub fn changes<'c>(resolved: &Resolved, candidate: &'c Candidate) -> Vec<(&'c str, &'c str)> {
    let cell = grid::plain(&resolved.cell);
    let is_new = |(key, value): &(&str, &String)| {
        let stated = cell.pointer(&format!("/{}", key.replace('.', "/"))).filter(|value| !value.is_null()).cloned();
        let default = || keys::default_of(key).and_then(|value| serde_json::to_value(value).ok());
        !stated.or_else(default).is_some_and(|stated| label::is_value(key, &stated, value))
    };
    candidate.settings.iter().filter(is_new).map(|(key, value)| (key, value.as_str())).collect()
}

/// Divisors of a number, ascending, up to a limit.
fn divisors(of: usize, most: usize) -> Vec<usize> {
    (1..=of.min(most)).filter(|d| of.is_multiple_of(*d)).collect()
}

fn ways(resolved: &Resolved, impossible: &mut BTreeMap<&'static str, u64>) -> Vec<ParallelLayout> {
    let cell = &resolved.cell;
    let (ranks, model) = (cell.parallel.ranks, &cell.model);
    let per_node = forecast::ranks_per_node(resolved).min(ranks);
    let replicas = ranks / cell.parallel.degrees.ranks_per_replica().max(1);
    let global = cell.train.micro_batch.saturating_mul(cell.train.accumulation).saturating_mul(replicas);
    let experts = if model.sparse_blocks() > 0 { model.experts.as_ref().map_or(1, |e| e.num_experts) } else { 1 };
    let mut list = Vec::new();
    let mut refuse = |reason: &'static str| *impossible.entry(reason).or_default() += 1;
    for tensor in divisors(ranks, per_node) {
        if !model.num_attention_heads.is_multiple_of(tensor) || !model.num_key_value_heads.is_multiple_of(tensor) {
            refuse("tensor does not divide the heads");
            continue;
        }
        for pipeline in divisors(ranks / tensor, model.num_hidden_layers.max(1)) {
            if !model.num_hidden_layers.is_multiple_of(pipeline) {
                refuse("pipeline does not divide the blocks");
                continue;
            }
            for context in divisors(ranks / tensor / pipeline, 16) {
                if !cell.train.seq_len.is_multiple_of(2 * context) && context > 1 {
                    refuse("context does not halve and divide the sequence");
                    continue;
                }
                let data = ranks / tensor / pipeline / context;
                if !global.is_multiple_of(data) {
                    refuse("the global batch is not a multiple of the data-parallel ranks");
                    continue;
                }
                for expert in divisors(experts, data * context) {
                    if !(data * context).is_multiple_of(expert) {
                        refuse("expert does not divide the ranks of a stage");
                        continue;
                    }
                    let degrees = Degrees {
                        tensor,
                        sequence: tensor,
                        pipeline,
                        context,
                        expert,
                        virtual_stages: 1,
                        pipeline_schedule: PipelineSchedule::OneFOneB,
                        ..cell.parallel.degrees
                    };
                    splits(cell, &degrees, data, global / data, per_node, &mut list);
                }
            }
        }
    }
    list
}

/// Strategies, micro-batches, chunks, checkpointing and offload of one set of degrees.
fn splits(
    cell: &Cell,
    degrees: &Degrees,
    data: usize,
    per_replica: usize,
    per_node: usize,
    list: &mut Vec<ParallelLayout>,
) {
    let shared = data * degrees.context;
    let mut strategies = vec![Strategy::Ddp];
    if shared > 1 {
        strategies.push(Strategy::Zero1);
        // A pipeline would gather weights and scatter gradients for every micro-batch.
        if degrees.pipeline == 1 {
            strategies.extend([Strategy::Zero2, Strategy::Fsdp, Strategy::FsdpGradOp]);
            // The ranks of a sequence are in one group, so groups keep to a node where sequences do.
            let is_in_node = per_node.is_multiple_of(degrees.context);
            if shared > per_node && shared.is_multiple_of(per_node) && per_node > 1 && is_in_node {
                strategies.push(Strategy::Hsdp);
            }
        }
    }
    // Nor is one recommended that the software has not.
    let software = cell.hardware.software.as_deref().unwrap_or(SOFTWARE);
    strategies.retain(|strategy| zbench_config::software::no_such_pair(software, *strategy).is_none());
    let layers = cell.model.num_hidden_layers / degrees.pipeline;
    let adapters = cell.lora.on();
    for strategy in strategies {
        for micro in MICRO_BATCHES.into_iter().filter(|micro| per_replica.is_multiple_of(*micro)) {
            let accumulation = per_replica / micro;
            let interleaves = degrees.pipeline > 1 && accumulation.is_multiple_of(degrees.pipeline);
            for chunks in divisors(layers, if interleaves { 8 } else { 1 }) {
                for checkpointing in [Checkpointing::None, Checkpointing::Selective, Checkpointing::Full] {
                    for (optimizer, parameters) in offloads(strategy, adapters) {
                        let degrees = Degrees { virtual_stages: chunks, ..*degrees };
                        let batch = (micro, accumulation);
                        let mut way = way(cell, degrees, strategy, batch, checkpointing.clone(), per_node);
                        way.offload(optimizer, parameters);
                        list.push(way);
                    }
                }
            }
        }
    }
}

/// Homes of optimizer state and weights that are tried.
fn offloads(strategy: Strategy, adapters: bool) -> Vec<(Home, Home)> {
    let mut list = vec![(Home::Device, Home::Device)];
    if !adapters && matches!(strategy, Strategy::Zero2 | Strategy::Fsdp) {
        list.push((Home::Host, Home::Device));
    }
    if strategy == Strategy::Fsdp {
        list.push((Home::Host, Home::Host));
    }
    list
}

fn way(
    base: &Cell,
    degrees: Degrees,
    strategy: Strategy,
    (micro, accumulation): (usize, usize),
    checkpointing: Checkpointing,
    per_node: usize,
) -> ParallelLayout {
    let mut cell = base.clone();
    (cell.parallel.strategy, cell.parallel.degrees) = (strategy, degrees);
    let ranks = cell.parallel.ranks;
    let data = ranks / degrees.ranks_per_replica().max(1);
    cell.parallel.shard = if strategy.is_hybrid() { degrees.shard_in_node(per_node, data) } else { ranks };
    (cell.train.micro_batch, cell.train.accumulation) = (micro, accumulation);
    let mut settings = OrderedMap::new();
    settings.insert("hardware.software", cell.hardware.software.clone().unwrap_or_default());
    settings.insert("parallel.strategy", strategy.name().to_string());
    for (key, degree) in [
        ("parallel.tensor", degrees.tensor),
        ("parallel.sequence", degrees.sequence),
        ("parallel.pipeline", degrees.pipeline),
        ("parallel.virtual_stages", degrees.virtual_stages),
        ("parallel.context", degrees.context),
        ("parallel.expert", degrees.expert),
        ("train.micro_batch", micro),
        ("train.accumulation", accumulation),
    ] {
        settings.insert(key, degree.to_string());
    }
    let word = match checkpointing {
        Checkpointing::None => "none",
        Checkpointing::Selective => "selective",
        _ => "full",
    };
    settings.insert("memory.checkpointing", word.to_string());
    cell.memory.checkpointing = checkpointing;
    ParallelLayout { cell, settings }
}

impl ParallelLayout {
    fn offload(&mut self, optimizer: Home, parameters: Home) {
        let place = |home: Home| if home == Home::Host { "host" } else { "none" }.to_string();
        self.settings.insert("memory.offload_optimizer", place(optimizer));
        self.settings.insert("memory.offload_parameters", place(parameters));
        (self.cell.memory.offload_optimizer, self.cell.memory.offload_parameters) = (optimizer, parameters);
    }
}

/// Those that no other beats in speed and memory both; they come sorted by speed.
fn pareto(fitting: &[Outcome]) -> Vec<Candidate> {
    let (mut least, mut list) = (u64::MAX, Vec::new());
    for one in fitting {
        if one.bytes < least {
            least = one.bytes;
            list.push(candidate(one));
        }
    }
    list
}

fn candidate(one: &Outcome) -> Candidate {
    let seconds = one.timing.step_ms / 1e3;
    let peak = one.timing.peak.unwrap_or(f64::NAN);
    Candidate {
        settings: one.settings.clone(),
        step_ms: one.timing.step_ms,
        tokens_per_second: one.timing.tokens_per_second,
        mfu: one.timing.model_flops_per_rank / seconds / peak,
        memory_bytes: one.bytes,
        time: one.timing.spans.clone(),
        tokens_per_second_band: one.timing.band.map(|band| band.around(one.timing.tokens_per_second)),
        memory_bytes_band: one.band.map(|band| band.around(one.bytes as f64).map(|bytes| bytes.round() as u64)),
    }
}

/// Why the second is slower than the first: where its step is longer.
fn runner_up(fitting: &[Outcome]) -> String {
    let [first, second, ..] = fitting else { return String::new() };
    let differences: Vec<String> = first
        .settings
        .iter()
        .filter(|(key, value)| second.settings.get(key) != Some(*value))
        .map(|(key, value)| {
            let other = second.settings.get(key).cloned().unwrap_or_default();
            format!("{key} {other} instead of {value}")
        })
        .collect();
    let names: Vec<&str> = first.timing.spans.names().chain(second.timing.spans.names()).collect();
    let of = |one: &Outcome, name: &str| one.timing.spans.get(name).copied().unwrap_or(0.0);
    let mut spans: Vec<(&str, f64)> =
        names.into_iter().map(|name| (name, of(second, name) - of(first, name))).collect();
    spans.sort_by(|a, b| b.1.abs().total_cmp(&a.1.abs()).then(a.0.cmp(b.0)));
    spans.dedup_by(|a, b| a.0 == b.0);
    let words: Vec<String> = spans
        .iter()
        .take(3)
        .filter(|(_, ms)| ms.abs() > 1e-3)
        .map(|(name, ms)| {
            let sign = if *ms > 0.0 { "+" } else { "-" };
            format!("{} {sign}{}", name.replace('_', " "), units::duration(ms.abs() / 1e3))
        })
        .collect();
    let slower = second.timing.step_ms / first.timing.step_ms - 1.0;
    let why = if words.is_empty() { "in no span by more than a microsecond".to_string() } else { words.join(", ") };
    format!(
        "The runner-up ({}) is {} slower, with {} of memory: {why}.",
        differences.join(", "),
        units::percent(slower),
        units::memory(second.bytes as f64)
    )
}
