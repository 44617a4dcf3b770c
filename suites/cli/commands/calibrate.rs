//! `calibrate`: looks whether the machine is quiet, measures, prints and records whatever came out, and writes the profile only
//! where the machine was quiet throughout.

mod device;

use super::signals::stop_flag;
use super::train::drive_rates;
use super::{append, header_named, print_document, print_lines};
use crate::{Format, Global};
use anyhow::{Result, bail};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use zbench_config::profile::ceilings::About;
use zbench_config::profile::operations::RankLayout;
use zbench_config::profile::{self, corrections, default_path, drives};
use zbench_host::{exit, machine};
use zbench_predict::residuals::{self, Residuals};
use zbench_predict::time::TimeProfile;
use zbench_reports::bench::{self, Ceilings, Rate};
use zbench_reports::record::Record;
use zbench_reports::{Notebook, units};
use zbench_suites::bench::Limits;
use zbench_suites::bench::{seen, watched};
use zbench_suites::calibrate::args::{CalibrateArgs, DISK_SIZE, OPERATION_ROUNDS, SECONDS};
use zbench_suites::calibrate::disk::Disk;
use zbench_suites::calibrate::operations::{self, OperationsError};
use zbench_suites::calibrate::probes::{self, Probe};
use zbench_suites::calibrate::{Wanted, judge, measure, quiet};

/// Arrays are this many times the last cache.
const CACHES: u64 = 4;
/// And not smaller than this.
const LEAST_ARRAY: u64 = 64 << 20;
/// Three arrays take at most this share of the memory that is free.
const FREE_SHARE: u64 = 4;
/// A limit that is never reached in practice; Ctrl-C stops earlier.
const LIMIT: Duration = Duration::from_secs(24 * 3600);

/// `zbench calibrate`.
pub fn calibrate(global: &Global, arguments: &CalibrateArgs) -> Result<u8> {
    if let Some(flag) = arguments.of_another_device() {
        let right = if arguments.device == "cuda" { "cpu" } else { "cuda" };
        bail!("{flag} says nothing of --device {}; leave it out, or measure --device {right}", arguments.device);
    }
    if arguments.device == "cuda" {
        return device::calibrate(global, arguments);
    }
    if arguments.from_notebook {
        return from_notebook(global, arguments);
    }
    let wanted = wanted(arguments)?;
    let path = arguments.save.clone().unwrap_or_else(|| default_path(&machine::host_name()));
    // Checked now, as it would only fail after the measurement.
    let before = profile::ceilings::read(&path)?;
    let notebook = Notebook::open(&global.notebook)?;
    notebook.check_writable()?;
    let stop = stop_flag()?;
    let folder = arguments.disk.clone().unwrap_or_else(|| global.notebook.clone());
    let disk = match arguments.no_disk {
        true => Err("left out with --no-disk".to_string()),
        false => Disk::open(&folder, arguments.disk_size.unwrap_or(DISK_SIZE)),
    };
    if let (Err(why), false) = (&disk, arguments.no_disk) {
        zbench_host::say!("the disk is not measured: {why}");
    }
    let limits = Limits { stop: &stop, deadline: Instant::now() + LIMIT, parts: None };
    let stopped = || {
        zbench_host::say!("stopped; nothing is kept of unfinished rounds");
        Ok(exit::INTERRUPTED)
    };
    // A busy machine would be refused at the end anyway. Without a profile to write nothing is refused.
    if !arguments.no_save {
        let Ok(busy) = quiet::why_not(&limits) else { return stopped() };
        if let Some(reason) = busy {
            zbench_host::say!("nothing was measured: {reason}");
            zbench_host::say!("end other programs and try again, or measure without writing a profile: --no-save");
            return Ok(exit::INCONCLUSIVE);
        }
    }
    let mut progress = teller(global);
    let rank_layouts = if arguments.no_operations { Vec::new() } else { rank_layouts(&wanted, arguments)? };
    let rounds = arguments.operation_rounds.unwrap_or(OPERATION_ROUNDS) as usize;
    let (measured, sampled) = watched(0, || {
        let ceilings = measure(&wanted, &disk, &limits, &mut progress).ok()?;
        Some((ceilings, operations::measure(&rank_layouts, rounds, machine::cores(), &limits, &mut progress)))
    });
    let Some((ceilings, operations)) = measured else { return stopped() };
    let operations = match operations {
        Ok(operations) => operations,
        Err(OperationsError::Stopped) => return stopped(),
        Err(error) => return Err(error.into()),
    };
    let reasons = judge::why_not(&ceilings, &sampled);
    let unsteady: Vec<String> = operations.iter().filter_map(judge::why_not_operations).collect();
    let mut steady = operations;
    steady.retain(|of| judge::why_not_operations(of).is_none());
    let mut record = record(&wanted, &folder, arguments, &ceilings);
    seen(&mut record, &sampled);
    keep(global, &notebook, &mut record, &reasons.iter().chain(&unsteady).collect::<Vec<_>>())?;
    say_changes(before.as_ref(), &ceilings);
    reasons.iter().chain(&unsteady).for_each(|reason| zbench_host::say!("too noisy: {reason}"));
    let about = About {
        measured: record.started.clone(),
        cpu: machine::cpu_model().unwrap_or_default(),
        instructions: zbench_kernels::cpu::peak::describe().into_iter().map(String::from).collect(),
    };
    // Ceilings and operations are judged separately: an unsteady ceiling does not affect medians of many calls.
    let saves = !arguments.no_save;
    if saves && reasons.is_empty() {
        profile::ceilings::save(&path, &ceilings, &about)?;
        zbench_host::say!("saved the ceilings into {}", path.display());
    }
    if saves && !steady.is_empty() {
        profile::operations::save(&path, &steady, &record.started, machine::cores())?;
        let layout: Vec<String> = steady.iter().map(|of| of.layout.to_string()).collect();
        zbench_host::say!("saved the times of operations with {} into {}", layout.join(", "), path.display());
    }
    if reasons.is_empty() && unsteady.is_empty() {
        return Ok(exit::SUCCESS);
    }
    let advice = "end other programs and try again, or measure more rounds";
    zbench_host::say!("what is too noisy is left as it was in {}; {advice}", path.display());
    Ok(exit::INCONCLUSIVE)
}

/// Saves the rates of drives that this machine's records hold into its profile; prints the residuals of its records, and saves
/// corrections.
fn from_notebook(global: &Global, arguments: &CalibrateArgs) -> Result<u8> {
    let path = arguments.save.clone().unwrap_or_else(|| default_path(&machine::host_name()));
    let notebook = Notebook::open(&global.notebook)?;
    let drives = drive_rates(&notebook)?;
    drives.iter().for_each(|of| zbench_host::say!("{of}"));
    if !drives.is_empty() && !arguments.no_save {
        drives::save(&path, &drives)?;
        zbench_host::say!("saved the rates of drives into {}; remove its [drives] to be rid of them", path.display());
    }
    let profile = match TimeProfile::read(&path) {
        Ok(profile) => profile.uncorrected().without_measuring(),
        // The drives alone are something.
        Err(reason) if !drives.is_empty() => {
            zbench_host::say!("times are not corrected: {reason}");
            return Ok(exit::SUCCESS);
        }
        Err(reason) => return Err(anyhow::Error::msg(reason)),
    };
    let (host, index) = (residuals::this_host(), notebook.index()?);
    let mut failed = Ok(());
    let records = notebook.each(residuals::of_host(&index, &host));
    let records = records.map_while(|record| record.map_err(|error| failed = Err(error)).ok());
    let residuals = Residuals::of(records, &host, &profile);
    failed?;
    print_document(global, &residuals.document())?;
    let corrections = residuals.corrections(&jiff::Timestamp::now().to_string());
    if corrections.spans.is_empty() {
        let few = residuals::FEWEST;
        zbench_host::say!(
            "nothing is corrected: no span has {few} records of this machine in {}",
            global.notebook.display()
        );
        return Ok(if drives.is_empty() { exit::INCONCLUSIVE } else { exit::SUCCESS });
    }
    zbench_host::say!("{corrections}");
    if !arguments.no_save {
        corrections::save(&path, &corrections)?;
        zbench_host::say!("saved into {}; remove its [corrections] to be rid of them", path.display());
    }
    Ok(exit::SUCCESS)
}

/// The layouts in which operations are timed: one thread and all cores, or the requested numbers of threads.
fn rank_layouts(wanted: &Wanted, arguments: &CalibrateArgs) -> Result<Vec<(RankLayout, Vec<Probe>)>> {
    let ends = |threads: &&usize| !arguments.threads.is_empty() || **threads == 1 || **threads == machine::cores();
    let threads: Vec<usize> = wanted.threads.iter().filter(ends).copied().collect();
    let with_probes = |layout| Ok((layout, probes::probes(layout)?));
    probes::rank_layouts(&threads, machine::cores()).into_iter().map(with_probes).collect()
}

fn wanted(arguments: &CalibrateArgs) -> Result<Wanted> {
    let cores = machine::cores();
    let mut threads: Vec<usize> = match arguments.threads.is_empty() {
        true => std::iter::successors(Some(1), |count| Some(count * 2))
            .take_while(|count| *count < cores)
            .chain([cores])
            .collect(),
        false => arguments.threads.iter().map(|count| *count as usize).collect(),
    };
    threads.sort_unstable();
    threads.dedup();
    if let Some(many) = threads.iter().find(|count| **count > cores) {
        bail!(
            "--threads {many}: this process may use {cores} cores, and more threads than cores have no ceiling of their own"
        );
    }
    let room = machine::memory_bytes("MemAvailable").unwrap_or(u64::MAX) / FREE_SHARE / 3;
    let cache = machine::last_level_cache_bytes().unwrap_or(LEAST_ARRAY);
    let bytes = arguments.memory.unwrap_or_else(|| (CACHES * cache).max(LEAST_ARRAY).min(room));
    if arguments.memory.is_some() && bytes > room {
        bail!(
            "--memory {}: three such arrays are more than a quarter of the memory that is free; write {} or less",
            units::memory(bytes as f64),
            units::memory(room as f64)
        );
    }
    Ok(Wanted {
        threads,
        rounds: arguments.rounds as usize,
        seconds: arguments.seconds.unwrap_or(SECONDS),
        memory_bytes: usize::try_from(bytes)?,
    })
}

fn record(wanted: &Wanted, folder: &Path, arguments: &CalibrateArgs, ceilings: &Ceilings) -> Record {
    let absolute = std::path::absolute(folder).unwrap_or_else(|_| PathBuf::from(folder));
    let cell = json!({
        "suite": "calibrate",
        "threads": wanted.threads,
        "rounds": wanted.rounds,
        "seconds": wanted.seconds,
        "memory_bytes": wanted.memory_bytes,
        "disk": if arguments.no_disk { None } else { Some(absolute) },
        "disk_bytes": if arguments.no_disk { None } else { Some(arguments.disk_size.unwrap_or(DISK_SIZE)) },
    });
    let mut record = empty(cell);
    for of in &ceilings.threads {
        for (name, rate) in of.rates() {
            let unit = if name.starts_with("matrix") { "flops" } else { "gb_s" };
            let metric = format!("threads_{}_{}_{unit}", of.threads, name.replace('.', "_"));
            let scale = if unit == "flops" { 1.0 } else { 1e-9 };
            state(&mut record, &metric, scale, rate, &name, &ceilings.unstated);
        }
    }
    if let Ok(value) = serde_json::to_value(ceilings) {
        record.extra.insert("ceilings".into(), value);
    }
    record
}

/// Records a rate's median as a metric, or why there is none.
fn state(
    record: &mut Record,
    metric: &str,
    scale: f64,
    rate: Option<&Rate>,
    name: &str,
    unstated: &[(String, String)],
) {
    match rate {
        Some(rate) => record.state(metric, rate.median * scale),
        None => {
            let why = unstated.iter().find(|(other, _)| other == name).map(|(_, why)| why.clone());
            record.leave_unstated(metric, why.unwrap_or_default());
        }
    }
}

/// A record of this cell without its numbers.
fn empty(cell: Value) -> Record {
    let key = zbench_config::grid::plain_key(&cell);
    header_named("calibrate").blank(&key, cell, 1, jiff::Timestamp::now())
}

/// Marks the record as noisy for these reasons, writes it to the notebook and prints it.
fn keep(global: &Global, notebook: &Notebook, record: &mut Record, reasons: &[&String]) -> Result<()> {
    if !reasons.is_empty() {
        record.validity.push("too_noisy".into());
        record.notes.extend(reasons.iter().map(|reason| format!("Too noisy to be kept: {reason}.")));
    }
    append(notebook, record)?;
    match global.format {
        Format::Json => print_lines(&[record]),
        _ => print_document(global, &bench::document(&[record])),
    }
}

/// Prints a line for each tenth of the measurements.
fn teller(global: &Global) -> impl FnMut(usize, usize) {
    let quiet = global.quiet;
    move |done, all| {
        if !quiet && done * 10 / all != (done - 1) * 10 / all {
            zbench_host::say!("{done} of {all} measurements");
        }
    }
}

/// Prints the changes since the ceilings that the profile holds.
fn say_changes(before: Option<&Ceilings>, now: &Ceilings) {
    let Some(before) = before else { return };
    for of in &now.threads {
        let Some(then) = before.threads.iter().find(|then| then.threads == of.threads) else { continue };
        for (name, rate) in of.rates() {
            let old = then.rates().into_iter().find(|(other, _)| *other == name).and_then(|(_, rate)| rate.cloned());
            if let (Some(Rate { median, low, high, .. }), Some(old)) = (rate, old)
                && (*high < old.low || *low > old.high)
            {
                let change = units::change(median / old.median - 1.0);
                let threads = units::plural(of.threads as usize, "thread", "threads");
                zbench_host::say!("{name} with {threads} was another in the profile: {change}");
            }
        }
    }
}
