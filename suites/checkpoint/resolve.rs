//! Settings with `suite = "checkpoint"` become cells, measurements become answers.

use super::CheckpointCell;
use crate::bench::{BenchResult, BenchSpec, Specs};
use std::collections::BTreeMap;
use std::path::PathBuf;
use toml::Value;
use zbench_config::shard_spec::ShardSpec;
use zbench_config::{Context, Refusal, Setting, Values};
use zbench_engine::config::{Backend, Resume};
use zbench_engine::planner::Planner;
use zbench_predict::planned::{Decision, weigh};
use zbench_reports::bench::checkpoint::{Measured, spread};
use zbench_reports::stats;

/// Keys of training that say something of what this suite does not do.
const WITHOUT_EFFECT: [&str; 12] = [
    "checkpoint.every",
    "checkpoint.keep",
    "checkpoint.resume",
    "model.save",
    "lora.save",
    "lora.merge",
    "train.eval_every",
    "train.eval_batches",
    "train.eval_share",
    "train.divergence_factor",
    "train.divergence_steps",
    "memory.offload_path",
];

/// The checkpoints of one combination.
pub fn specs(values: &Values, context: &Context) -> Result<Specs, Refusal> {
    if values.text("hardware.device") == "cuda" {
        let message = "\"cuda\" is not in this version of suite checkpoint; write \"cpu\", or leave it out";
        return Err(values.refuse("hardware.device", &[], message));
    }
    Ok((vec![Box::new(cell(values, context)?)], None))
}

/// The cell of one combination.
///
/// # Errors
/// A training cell that is refused, keys without effect, a cell that cannot be run here.
fn cell(values: &Values, context: &Context) -> Result<CheckpointCell, Refusal> {
    let foreign = |key: &&&'static str| {
        WITHOUT_EFFECT.contains(key)
            || ["gemm.", "attention.", "bench.", "io."].iter().any(|section| key.starts_with(section))
    };
    if let Some(key) = values.settings.keys().find(foreign) {
        let message = "has no effect where suite is \"checkpoint\"; leave it out";
        return Err(values.refuse(key, &["suite"], message));
    }
    let mut settings = values.settings.clone();
    settings.retain(|key, _| !["suite", "checkpoint.load_as", "checkpoint.repeats"].contains(key));
    let is_stated = settings.contains_key("checkpoint.dir");
    let here = Setting { value: Value::from("."), place: None, from_grid: false };
    settings.entry("checkpoint.dir").or_insert(here);
    // Many steps would say nothing more of a save.
    let steps = Setting { value: Value::Integer(4), place: None, from_grid: false };
    settings.entry("train.steps").or_insert(steps);
    let resolved = zbench_config::resolve(&settings, context)?;
    let decision = weigh(&Planner::default(), &resolved).decision;
    let mut cell = resolved.cell;
    if cell.parallel.backend != Backend::Local {
        let message = format!(
            "\"{}\" is not in this version of suite checkpoint, whose ranks are threads on the processor; write \"local\"",
            cell.parallel.backend.name()
        );
        return Err(values.refuse("parallel.backend", &[], message));
    }
    let keys: Vec<&str> = values.settings.keys().copied().collect();
    if let Decision::Record { reason, .. } = decision {
        return Err(values.refuse("parallel.ranks", &keys, reason));
    }
    if let Some(saving) = &mut cell.checkpoint {
        saving.resume = Resume::Never;
        if !is_stated {
            saving.dir = PathBuf::new();
        }
    }
    let own = ShardSpec::of(&cell);
    let load_as = match values.given("checkpoint.load_as").and_then(Value::as_array) {
        None => own.usual(),
        Some(list) => {
            let specs = list.iter().filter_map(Value::as_str).map(ShardSpec::parse).collect::<Result<Vec<_>, _>>();
            specs.map_err(|message| values.refuse("checkpoint.load_as", &[], message))?
        }
    };
    let found = CheckpointCell { cell, load_as, repeats: values.count("checkpoint.repeats") };
    if found.needs().is_none() {
        let message = "has a strategy and ranks that this cell cannot be run as; `zbench run` with them says why";
        return Err(values.refuse("checkpoint.load_as", &keys, message));
    }
    Ok(found)
}

/// What was measured, as metrics: medians, and how far the measurements of times lie apart.
pub(super) fn result(cell: &CheckpointCell, measured: Measured) -> BenchResult {
    let mut result = BenchResult::default();
    let mut all: BTreeMap<&'static str, Vec<f64>> = BTreeMap::new();
    for (name, value) in measured.repeats.iter().flat_map(|repeat| repeat.numbers()) {
        all.entry(name).or_default().extend(value.filter(|value| value.is_finite()));
    }
    let is_async = cell.cell.checkpoint.as_deref().is_some_and(|saving| saving.asynchronous);
    for (name, values) in &all {
        match stats::median(values) {
            Some(median) => result.metrics.push((name.to_string(), Ok(median))),
            None if name.starts_with("async") && !is_async => {}
            None if name.starts_with("reshard") => {}
            None if name.contains("disk") => result.metrics.push((name.to_string(), Err(measured.no_disk.clone()))),
            None => result.metrics.push((name.to_string(), Err("the system does not say".into()))),
        }
        if let ("save_ms" | "load_ms" | "async_stall_ms", Some(spread)) = (*name, spread(values)) {
            result.metrics.push((name.replace("_ms", "_spread"), Ok(spread)));
        }
    }
    if let Some(bytes) = all.get("checkpoint_bytes").and_then(|bytes| stats::median(bytes)) {
        let per = bytes / measured.parameters.max(1) as f64;
        result.metrics.push(("checkpoint_bytes_per_parameter".into(), Ok(per)));
    }
    let unequal: Vec<&str> = measured.repeats.iter().flat_map(|repeat| repeat.unequal()).collect();
    if let Some(by) = unequal.first() {
        result.wrong = Some(format!(
            "loaded as {by} the tensors are not those that were written ({} loads); this is a bug",
            unequal.len()
        ));
    }
    if !measured.no_disk.is_empty() {
        result.notes.push(format!(
            "The disk's own rate is not known: {}. Files may have been read from memory.",
            measured.no_disk
        ));
    } else if !measured.direct {
        result
            .notes
            .push("checkpoint.direct is false: files go through the page cache and may be read from it.".into());
    }
    result.section = serde_json::to_value(&measured).ok().map(|section| ("checkpoint".into(), section));
    result
}
