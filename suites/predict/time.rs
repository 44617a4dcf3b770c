//! The predicted time of a cell on this machine, from its profile: operations as `zbench calibrate` timed them, collectives
//! as `zbench allreduce --save` did. Without both there is none, and a reason.

use crate::Timing;
use crate::drive::{self, Drive};
use crate::here::ranks_here;
use std::cell::OnceCell;
use std::path::Path;
use std::sync::{Arc, LazyLock};
use toml::{Table, Value};
use zbench_collectives::{Collective, CollectiveKind};
use zbench_config::Resolved;
use zbench_config::profile::corrections::{self, Corrections};
use zbench_config::profile::drives::{self, DriveRates};
use zbench_config::profile::operations::{self, Operations, RankLayout};
use zbench_config::profile::{default_path, fit_of_value};
use zbench_engine::config::{Cell, DeviceKind};
use zbench_engine::memory::moves::Move;
use zbench_engine::observe::outcome::{BySpan, Flops};
use zbench_engine::planner::clock::{Clock, DiskTime, Machine, NoTime, Stretch, is_message};
use zbench_engine::planner::{Planner, RecordedAction};
use zbench_host::machine;
use zbench_kernels::DType;
use zbench_reports::collectives::{Fit, Segment};

/// The actions of one rank of a stage.
type StageActions<'a> = Box<dyn Iterator<Item = RecordedAction> + 'a>;

/// The time of a cell on the machine of its profile, by default on this one, whose profile is read once.
///
/// # Errors
/// Why there is none, in words.
pub fn of(planner: &Planner, resolved: &Resolved) -> Result<Timing, String> {
    with_profile(resolved, |profile| profile.time(planner, &resolved.cell))
}

/// The same stretch by stretch, by stage of the pipeline.
///
/// # Errors
/// Why there is none, in words.
pub fn timelines(planner: &Planner, resolved: &Resolved) -> Result<Vec<Vec<Stretch>>, String> {
    with_profile(resolved, |profile| profile.timelines(planner, &resolved.cell))
}

fn with_profile<T>(resolved: &Resolved, of: impl Fn(&TimeProfile) -> Result<T, String>) -> Result<T, String> {
    static HERE: LazyLock<Result<TimeProfile, String>> = LazyLock::new(TimeProfile::of_this_machine);
    if resolved.cell.link.is_some() {
        return Err("times over emulated links are not predicted".into());
    }
    match &resolved.profile {
        Some(profile) if profile.name == machine::host_name() => of(&TimeProfile::read(&default_path(&profile.name))?),
        // What a drive gives here says nothing of another machine's.
        Some(profile) => of(&TimeProfile::read(&default_path(&profile.name))?.without_measuring()),
        None => of(HERE.as_ref().map_err(String::clone)?),
    }
}

/// A profile, as far as time is made of it.
#[derive(Debug, Default)]
pub struct TimeProfile {
    name: String,
    cores: usize,
    operations: Vec<Operations>,
    /// `collectives`, as `zbench allreduce --save` writes it.
    fits: Table,
    corrections: Option<Corrections>,
    /// `drives`, as `zbench calibrate --from-notebook` writes it.
    drives: Vec<DriveRates>,
    /// A drive of which it has no rates is not measured now.
    measures_nothing: bool,
}

impl TimeProfile {
    /// The profile of this machine.
    ///
    /// # Errors
    /// Why there is none, in words.
    pub fn of_this_machine() -> Result<TimeProfile, String> {
        TimeProfile::read(&default_path(&machine::host_name()))
    }

    /// A profile.
    ///
    /// # Errors
    /// It is not there, is broken or has no times.
    pub fn read(path: &Path) -> Result<TimeProfile, String> {
        let shown = path.display();
        let text = zbench_engine::formats::files::text(path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => {
                format!("this machine has no profile ({shown}); run `zbench calibrate` and `zbench allreduce --save`")
            }
            _ => format!("the profile {shown} cannot be read: {error}"),
        })?;
        TimeProfile::parse(&text, &shown.to_string())
    }

    fn parse(text: &str, name: &str) -> Result<TimeProfile, String> {
        let broken = |reason: String| format!("the profile {name}: {reason}");
        let table: Table = text.parse().map_err(|error: toml::de::Error| broken(error.message().to_string()))?;
        let operations = operations::of_text(text).map_err(broken)?;
        if operations.is_empty() {
            return Err(format!("the profile {name} has no times of operations; run `zbench calibrate`"));
        }
        let of = table.get("operations").and_then(|of| of.get("cores")).and_then(Value::as_integer);
        let cores = of.and_then(|cores| usize::try_from(cores).ok()).filter(|cores| *cores > 0);
        let corrections = table.get("corrections").map(corrections::of_value).transpose().map_err(broken)?;
        Ok(TimeProfile {
            name: name.to_string(),
            cores: cores.ok_or_else(|| broken("operations.cores must be a number".into()))?,
            operations,
            fits: table.get("collectives").and_then(Value::as_table).cloned().unwrap_or_default(),
            corrections,
            drives: table.get("drives").map(drives::of_value).transpose().map_err(broken)?.unwrap_or_default(),
            measures_nothing: false,
        })
    }

    /// Whether a cell has more threads than the machine has cores.
    pub fn is_crowded(&self, cell: &Cell) -> bool {
        cell.parallel.ranks.saturating_mul(cell.hardware.threads_per_rank) > self.cores
    }

    /// The same for predictions that have no time to measure a drive.
    #[must_use]
    pub fn without_measuring(self) -> TimeProfile {
        TimeProfile { measures_nothing: true, ..self }
    }

    /// The profile without its corrections.
    #[must_use]
    pub fn uncorrected(self) -> TimeProfile {
        TimeProfile { corrections: None, ..self }
    }

    /// The time of a cell.
    ///
    /// # Errors
    /// What of it was not measured, in words.
    pub fn time(&self, planner: &Planner, cell: &Cell) -> Result<Timing, String> {
        let (time, flops, note) = self.clocked(planner, cell, |clock, stages| clock.time(stages))?;
        let step_ms = time.step_ms();
        let ranks = cell.parallel.ranks.max(1) as f64;
        let mut source = format!("operations and collectives measured on this machine ({}){note}", self.name);
        if let Some(corrections) = &self.corrections {
            source.push_str(&format!("; {corrections}"));
        }
        Ok(Timing {
            step_ms,
            spans: time.spans_ms.stated().map(|(span, ms)| (span.name(), ms)).collect(),
            pipeline: time.pipeline,
            tokens_per_second: if step_ms > 0.0 { flops.tokens as f64 / step_ms * 1e3 } else { 0.0 },
            model_flops_per_rank: flops.model / ranks,
            hardware_flops_per_rank: flops.hardware / ranks,
            source,
            ..Timing::default()
        })
    }

    /// The same stretch by stretch, by stage of the pipeline.
    ///
    /// # Errors
    /// As [`TimeProfile::time`].
    pub fn timelines(&self, planner: &Planner, cell: &Cell) -> Result<Vec<Vec<Stretch>>, String> {
        self.clocked(planner, cell, |clock, stages| clock.timelines(stages)).map(|(lines, ..)| lines)
    }

    /// What a clock makes of a cell's actions, the FLOPs of a step, and in what the times differ from the cell's own.
    fn clocked<T>(
        &self,
        planner: &Planner,
        cell: &Cell,
        make: impl FnOnce(&Clock<'_>, Vec<StageActions<'_>>) -> Result<T, NoTime>,
    ) -> Result<(T, Flops, String), String> {
        if cell.hardware.device != DeviceKind::Cpu {
            return Err("times are predicted for cells on the CPU alone, by what was measured on one".into());
        }
        let (kernels, plan) = (planner.kernels_here(cell), planner.plan(cell).map_err(|error| error.to_string())?);
        let (operations, note) = self.operations(cell)?;
        let threads = cell.parallel.ranks.saturating_mul(cell.hardware.threads_per_rank);
        let fits = Fits { profile: self, cell, drive: OnceCell::new() };
        let corrections = self.corrections.as_ref().map_or(BySpan::all(1.0), Corrections::factors);
        let clock = Clock {
            curves: &operations.curves,
            overheads: operations.overheads,
            machine: &fits,
            crowd: (threads as f64 / self.cores as f64).max(1.0),
            reduce: cell.precision.reduce,
            corrections,
        };
        let stages = plan.recorded_stages(cell, &*kernels).map(|actions| Box::new(actions) as StageActions<'_>);
        let made = make(&clock, stages.collect()).map_err(|reason| match reason {
            NoTime::Operation(unknown) => {
                format!("{unknown} in {}; run `zbench calibrate` of this version of zbench", self.name)
            }
            NoTime::Collective(unknown) | NoTime::Disk(unknown) => unknown,
        })?;
        let drive = fits.drive.get().and_then(|drive| drive.as_ref().ok());
        let note = note + &drive.map_or(String::new(), |drive| format!("; transfers are those of {}", drive.source()));
        Ok((made, plan.estimate().flops, note))
    }

    /// The times that were measured most like the cell's ranks run, and in what they differ.
    fn operations(&self, cell: &Cell) -> Result<(&Operations, String), String> {
        let (ranks, threads) = (cell.parallel.ranks, cell.hardware.threads_per_rank);
        let crowded = self.is_crowded(cell);
        let of_threads = || self.operations.iter().filter(|of| of.layout.threads == threads);
        let apart = |of: &&Operations| (of.layout.crowded != crowded, of.layout.ranks.abs_diff(ranks));
        let Some(nearest) = of_threads().min_by_key(apart) else {
            let there: Vec<String> = self.operations.iter().map(|of| of.layout.to_string()).collect();
            return Err(format!(
                "the profile {} has times of {}, and this cell's ranks have {threads} threads each; run `zbench calibrate \
                 --threads {threads}`",
                self.name,
                there.join(", ")
            ));
        };
        let layout = RankLayout { ranks, threads, crowded };
        let same = nearest.layout == layout;
        let note = if same { String::new() } else { format!("; operations are those of {}", nearest.layout) };
        Ok((nearest, note))
    }
}

/// The fits that fit a cell.
struct Fits<'a> {
    profile: &'a TimeProfile,
    cell: &'a Cell,
    /// Where the cell's offloaded state lives on a disk; looked for when the first transfer asks.
    drive: OnceCell<Result<Arc<Drive>, String>>,
}

impl Fits<'_> {
    fn find_drive(&self) -> Result<Arc<Drive>, String> {
        let Some(folder) = self.cell.memory.offload_folder() else {
            return Err("a cell with nothing on a disk has a transfer of one; this is a bug".into());
        };
        let ranks = ranks_here(self.cell);
        match drive::of_folder(&self.profile.drives, &folder) {
            Some(rates) => Drive::shared(rates, ranks).map(Arc::new),
            None if self.profile.measures_nothing => drive::known(&folder, ranks),
            None => drive::measured(&folder, ranks),
        }
    }
}

/// nccl-tests' name of a type.
fn type_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "float",
        DType::F64 => "double",
        DType::Bf16 => "bfloat16",
        DType::F16 => "half",
        _ => "int8",
    }
}

impl Machine for Fits<'_> {
    fn collective(&self, call: &Collective, dtype: DType) -> Result<f64, String> {
        // One rank has nobody to wait for; its call copies nothing that a curve would not hold.
        if call.ranks <= 1 {
            return Ok(0.0);
        }
        // A message is one of a sendrecv's two, which go at the same time; only that is measured.
        let kind = if is_message(call.kind) { CollectiveKind::SendRecv } else { call.kind };
        let (backend, ranks, kind, reduces) = (
            self.cell.parallel.backend.name(),
            call.ranks,
            kind.name(),
            !matches!(kind, CollectiveKind::AllGather | CollectiveKind::SendRecv),
        );
        let wanted = type_name(dtype);
        let of = |table: &Table| -> Option<Vec<Fit>> {
            let fits = table.get(backend)?.get(format!("ranks-{ranks}"))?.get(kind)?.get("fits")?.as_array()?;
            let mut fits: Vec<Fit> = fits.iter().filter_map(fit_of_value).collect();
            // What only copies takes bytes of any type; what adds is as fast as its type.
            fits.retain(|fit| !reduces || (fit.dtype == wanted && fit.redop == "sum"));
            Some(fits)
        };
        let fits = of(&self.profile.fits).unwrap_or_default();
        let fit = fits.iter().find(|fit| fit.in_place == call.in_place).or(fits.first());
        let Some(us) = fit.and_then(|fit| time_us(&fit.segments, call.bytes as f64)) else {
            let of_type = if reduces { format!(" -d {wanted}") } else { String::new() };
            return Err(format!(
                "{} has no fit of {kind} among {ranks} ranks of {backend}; run `zbench allreduce --backend {backend} --ranks \
                 {ranks} --collective {kind}{of_type} --save`",
                self.profile.name
            ));
        };
        // Groups that talk at the same time share the cores, which a group alone had to itself.
        let threads = |ranks: usize| (ranks * self.cell.hardware.threads_per_rank) as f64 / self.profile.cores as f64;
        let crowd = threads(self.cell.parallel.ranks).max(1.0) / threads(ranks).max(1.0);
        Ok(us * 1e-6 * crowd)
    }

    fn disk_move(&self, of: &Move) -> Result<DiskTime, String> {
        let drive = self.drive.get_or_init(|| self.find_drive()).as_ref().map_err(String::clone)?;
        drive.time(of.to, of.bytes).map_err(|unknown| format!("{unknown} of {}", drive.source()))
    }
}

/// Of the line whose range holds the size; beyond the ranges of the nearest.
fn time_us(segments: &[Segment], bytes: f64) -> Option<f64> {
    let apart = |segment: &&Segment| {
        let (from, to) = (segment.from_bytes as f64, segment.to_bytes as f64);
        // Between two ranges in the middle, in logarithms.
        let ratio = if bytes < from { from / bytes.max(1.0) } else { bytes / to.max(1.0) };
        if (from..=to).contains(&bytes) { 0.0 } else { ratio.ln() }
    };
    let nearest = segments.iter().min_by(|a, b| apart(a).total_cmp(&apart(b)))?;
    Some(nearest.time_us(bytes)).filter(|us| us.is_finite() && *us >= 0.0)
}

#[cfg(test)]
#[path = "time/tests.rs"]
mod tests;
