//! Records of the suite: one for each collective of a run.

use super::plan::Plan;
use super::setup;
use serde_json::{Value, json};
use zbench_host::{devices, machine};
use zbench_reports::collectives::{Device, Pairs, Row, Run, Section, Side, document::SUITE};
use zbench_reports::record::{Outcome, Rank, Record, Status, label_flags};
use zbench_reports::stats;
use zbench_runner::Header;
use zbench_runner::record::emulated_device;

/// What ended a run early.
#[derive(Clone, Debug, PartialEq)]
pub enum End {
    /// Nothing did.
    Whole,
    /// Ctrl-C.
    Interrupted,
    /// A collective failed.
    Failed(String),
}

/// The record of one section.
pub fn of_section(
    run: &Run,
    section: &Section,
    plan: &Plan,
    end: &End,
    started: jiff::Timestamp,
    command: &str,
) -> Record {
    let outcome = match (section.out_of_bounds(), end) {
        (0, End::Whole) => Outcome::measured(),
        (0, End::Interrupted) => {
            Outcome::ended(Status::Failed, "stopped by Ctrl-C; the rows measured before are kept", None)
        }
        (0, End::Failed(reason)) => Outcome::ended(Status::Failed, reason.clone(), None),
        (_, _) => Outcome::ended(Status::Failed, first_wrong(section), None),
    };
    let mut record = blank(run, &section.collective, cell_of(run, section, plan), outcome, started, command);
    metrics(&mut record, section);
    record.notes.extend(section.notes.iter().cloned());
    if let Ok(value) = serde_json::to_value(section) {
        record.extra.insert("section".into(), value);
    }
    record
}

/// The record of the bandwidth between all pairs.
pub fn of_pairs(run: &Run, pairs: &Pairs, plan: &Plan, started: jiff::Timestamp, command: &str) -> Record {
    let section = Section { collective: "pairs".into(), ..Section::default() };
    let mut record = blank(run, "pairs", cell_of(run, &section, plan), Outcome::measured(), started, command);
    let upper = pairs.gb_s.iter().enumerate().flat_map(|(a, line)| line.iter().skip(a + 1).flatten().copied());
    let rates: Vec<f64> = upper.collect();
    for (name, percent) in [("pairs_least_gb_s", 0.0), ("pairs_median_gb_s", 50.0), ("pairs_largest_gb_s", 100.0)] {
        match stats::percentile(&rates, percent) {
            Some(rate) => record.state(name, rate),
            None => record.leave_unstated(name, "no pair was measured"),
        }
    }
    record.state("largest_bytes", pairs.bytes as f64);
    record.notes.extend(pairs.findings());
    if let Ok(value) = serde_json::to_value(pairs) {
        record.extra.insert("pairs".into(), value);
    }
    record
}

/// What all records of a run have in common.
fn blank(run: &Run, name: &str, cell: Value, outcome: Outcome, started: jiff::Timestamp, command: &str) -> Record {
    let key = key(&cell);
    let header = Header {
        name: format!("{name} over {}", run.settings.backend),
        command: command.into(),
        environment: machine::environment(),
        ..Header::default()
    };
    let mut record = Record { outcome, ..header.blank(&key, cell, 1, started) };
    let rank = |device: &Device| Rank {
        rank: device.rank as u64,
        host: device.hostname.clone(),
        step_ms_p50: None,
        peak_bytes: None,
        extra: Default::default(),
    };
    record.ranks = run.devices.iter().map(rank).collect();
    on_gpus(&mut record, run);
    if run.settings.link.is_some() {
        record.validity.push(label_flags::EMULATED_LINK.into());
    }
    if let Ok(value) = serde_json::to_value(&run.settings) {
        record.extra.insert("settings".into(), value);
    }
    record
}

/// The ranks' GPUs: rank 0's name, and every one of them by its place.
fn on_gpus(record: &mut Record, run: &Run) {
    let gpus = || run.devices.iter().filter(|device| device.device_hex != setup::CORES);
    let Some(first) = gpus().next() else { return };
    let all: Vec<Value> = gpus()
        .map(|gpu| json!({ "rank": gpu.rank, "number": gpu.device, "bus": gpu.device_hex, "name": gpu.device_info }))
        .collect();
    record.extra.insert("gpu".into(), json!({ "name": first.device_info, "ranks": all }));
    if let Some(version) = run.nccl_version {
        record.extra.insert("nccl_version".into(), version.into());
    }
    if devices::on_host() {
        record.environment.insert("kernels".into(), first.device_info.clone().into());
        emulated_device(record);
    }
}

/// Where the data was wrong, in words.
pub fn first_wrong(section: &Section) -> String {
    let sides = || section.rows.iter().flat_map(|row| row.sides().map(move |side| (row, side)));
    let all: u64 = sides().filter_map(|(_, side)| side.wrong).sum();
    match sides().find_map(|(row, side)| side.first_wrong.as_ref().map(|wrong| (row, wrong))) {
        None => format!("{}: {all} wrong elements", section.collective),
        Some((row, wrong)) => {
            let found = wrong.found.map_or_else(|| "no finite number".into(), |found| found.to_string());
            format!(
                "{}: {all} wrong elements; the first at {} bytes of {} {}: rank {} on {}, offset {}: {found} instead of {}",
                section.collective,
                row.size,
                row.dtype,
                row.redop,
                wrong.rank,
                wrong.host,
                wrong.offset,
                wrong.expected
            )
        }
    }
}

/// Where a collective was or will be measured.
pub struct Placement<'a> {
    /// What moves the bytes.
    pub backend: &'a str,
    /// Emulated links, in words.
    pub link: Option<&'a str>,
    /// All ranks.
    pub ranks: usize,
    /// Ranks of a group that measures by itself.
    pub group_ranks: usize,
    /// Hosts.
    pub hosts: usize,
    /// Threads of a rank's kernels.
    pub threads_per_rank: usize,
    /// The largest size, which memory may limit.
    pub maximum_bytes: u64,
    /// Whether buffers lie in the memory of GPUs.
    pub on_gpus: bool,
}

/// What was asked for, as plain data: equal for equal measurements.
pub fn cell(plan: &Plan, collective: &str, reduces: bool, place: &Placement<'_>) -> Value {
    let ops: Vec<&str> = plan.ops.iter().map(|op| op.name()).collect();
    let types: Vec<&str> = plan.dtypes.iter().map(|dtype| super::plan::type_name(*dtype)).collect();
    let mut cell = json!({
        "suite": SUITE,
        "collective": collective,
        "backend": place.backend,
        "algorithm": plan.algorithm,
        "link": place.link,
        "parallel": {
            "ranks": place.group_ranks, "world": place.ranks, "hosts": place.hosts, "threads_per_rank": place.threads_per_rank,
        },
        "type": types.join(","),
        "redop": if reduces { ops.join(",") } else { "none".into() },
        "root": plan.root.map_or(json!(-1), |root| json!(root)),
        "minimum_bytes": plan.nccl.min_bytes.min(place.maximum_bytes),
        "maximum_bytes": place.maximum_bytes,
        "step_factor": plan.step_factor,
        "step_bytes": plan.step_bytes,
        "iterations": plan.nccl.iters,
        "warmup_iterations": plan.nccl.warmup_iters,
        "aggregated_iterations": plan.nccl.agg_iters,
        "check": plan.nccl.check,
        "blocking": plan.nccl.blocking,
        "timing": if plan.per_iteration { "per_iteration" } else { "back_to_back" },
        "average": format!("{:?}", plan.average),
        "buffers": if plan.hot { "hot" } else { "rotate" },
        "unalign": plan.nccl.unalign,
        "seed": plan.seed,
    });
    // What is not composed has the key that it had before nodes stood in cells.
    if let Some(ranks) = plan.ranks_per_node {
        cell["parallel"]["ranks_per_node"] = json!(ranks);
    }
    // What was asked of cores has the key that it had before there were GPUs.
    if place.on_gpus {
        cell["hardware"] = json!({ "device": "cuda" });
    }
    cell
}

/// The key of a cell.
pub fn key(cell: &Value) -> String {
    zbench_config::grid::hash(&cell.to_string())
}

/// The cell of a part of a run.
fn cell_of(run: &Run, section: &Section, plan: &Plan) -> Value {
    let s = &run.settings;
    let reduces = section.rows.iter().any(|row| row.redop != "none");
    let place = Placement {
        backend: &s.backend,
        link: s.link.as_deref(),
        ranks: s.ranks,
        group_ranks: s.group_ranks,
        hosts: s.hosts,
        threads_per_rank: s.threads_per_rank,
        maximum_bytes: s.maximum_bytes,
        on_gpus: run.devices.iter().any(|device| device.device_hex != setup::CORES),
    };
    cell(plan, &section.collective, reduces, &place)
}

/// Flat numbers: bandwidth at the largest size, latency at the smallest, in place where there is such a call.
fn metrics(record: &mut Record, section: &Section) {
    let side = |row: &Row| row.in_place.clone().or_else(|| row.out_of_place.clone());
    let sized =
        || section.rows.iter().filter(|row| row.size > 0).filter_map(|row| side(row).map(|side| (row.size, side)));
    let largest: Option<(u64, Side)> = sized().max_by_key(|(size, _)| *size);
    let smallest: Option<(u64, Side)> = sized().min_by_key(|(size, _)| *size);
    let busbw = format!("{}_busbw_gb_s", section.collective);
    let reason = "no row was measured";
    let mut state = |name: &str, value: Option<f64>| match value {
        Some(value) => record.state(name, value),
        None => record.leave_unstated(name, reason),
    };
    state(&busbw, largest.as_ref().map(|(_, side)| side.busbw));
    state("algbw_gb_s", largest.as_ref().map(|(_, side)| side.algbw));
    state("largest_bytes", largest.as_ref().map(|(size, _)| *size as f64));
    state("largest_us", largest.as_ref().map(|(_, side)| side.time_us));
    state("latency_us", smallest.as_ref().map(|(_, side)| side.time_us));
    state("smallest_bytes", smallest.as_ref().map(|(size, _)| *size as f64));
    state("average_busbw_gb_s", section.average_busbw());
    let fit = section.fits.iter().find(|fit| fit.in_place).or(section.fits.first());
    let fitted = fit.and_then(|fit| Some((fit.segments.first()?, fit.segments.last()?)));
    match fitted {
        Some((first, last)) => {
            record.state("fit_latency_us", first.latency_us);
            match last.bandwidth_gb_s {
                Some(rate) => record.state("fit_bandwidth_gb_s", rate),
                None => record.leave_unstated("fit_bandwidth_gb_s", "time does not grow with size"),
            }
        }
        None => {
            for name in ["fit_latency_us", "fit_bandwidth_gb_s"] {
                record.leave_unstated(name, "a fit needs four sizes");
            }
        }
    }
    let wrong: Vec<u64> = section.rows.iter().filter_map(Row::wrong).collect();
    match wrong.is_empty() {
        false => record.state("wrong_elements", wrong.iter().sum::<u64>() as f64),
        true => record.leave_unstated("wrong_elements", "the data was not checked (-c 0)"),
    }
}
