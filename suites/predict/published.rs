//! Published results as cells: grid files whose cells state what others measured (`[published]`), priced as `zbench plan` prices
//! any cell.

use crate::band::Group;
use crate::collectives;
use crate::forecast::{self, Footprint};
use crate::job::job;
use crate::likeness::Traits;
use crate::planned::{self, Planned};
use crate::search::{MOST_CHUNKS, divisors};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use toml::Value;
use zbench_config::files::Files;
use zbench_config::grid::{self, GridCell};
use zbench_config::{ConfigError, Context, Document, Settings};
use zbench_engine::planner::Planner;
use zbench_estimate::convention::Convention;
use zbench_estimate::job::Job;
use zbench_estimate::machine::Machine;
use zbench_reports::estimate_report::{CollectiveRow, PublishedRow};

pub mod calibrate;
pub mod score;
#[cfg(test)]
mod tests;

use score::{Kind, Outcome};

/// Why a folder cannot be validated.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// The folder cannot be read.
    #[error("{path} cannot be read: {source}", path = path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A file is no configuration.
    #[error(transparent)]
    File(#[from] ConfigError),
    /// A row does not say what it has to.
    #[error("{path}: {row}: {reason}", path = path.display())]
    Row {
        /// The file.
        path: PathBuf,
        /// The row, by its name or its number.
        row: String,
        /// What is wrong and what to write.
        reason: String,
    },
    /// No file of the folder has published results.
    #[error(
        "{path} has no grid file with published results: cells that state published.id, published.quantity and published.value \
         (docs/estimator.md)",
        path = path.display()
    )]
    Nothing {
        /// The folder.
        path: PathBuf,
    },
}

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Quantity {
    /// Bytes of a rank.
    Memory,
    /// Tokens per second of a rank.
    #[serde(rename = "tokens_per_s_per_gpu")]
    Tokens,
    /// Seconds of a step.
    #[serde(rename = "step_time_s")]
    Step,
    /// FLOP/s of a rank, in units of 1e12.
    #[serde(rename = "tflops_per_gpu")]
    Flops,
    /// Their share of the peak, in percent.
    #[serde(rename = "mfu_pct")]
    Utilization,
    /// Whether it ran within its memory: 1 or 0.
    Fits,
    /// Bus bandwidth of a collective, GB/s.
    #[serde(rename = "busbw_gbs")]
    BusBandwidth,
    /// Bytes over time of a collective, GB/s.
    #[serde(rename = "algbw_gbs")]
    AlgorithmBandwidth,
    /// Microseconds of a collective.
    #[serde(rename = "time_us")]
    Microseconds,
}

impl Quantity {
    /// Its unit, where it is always the same.
    const fn unit(self) -> &'static str {
        match self {
            Quantity::Memory | Quantity::Fits => "",
            Quantity::Tokens => "tokens/s",
            Quantity::Step => "s",
            Quantity::Flops => "TFLOP/s",
            Quantity::Utilization => "%",
            Quantity::BusBandwidth | Quantity::AlgorithmBandwidth => "GB/s",
            Quantity::Microseconds => "us",
        }
    }

    /// What it is of.
    const fn kind(self) -> Kind {
        match self {
            Quantity::Memory | Quantity::Fits => Kind::Memory,
            Quantity::Tokens | Quantity::Step | Quantity::Flops | Quantity::Utilization => Kind::Speed,
            Quantity::BusBandwidth | Quantity::AlgorithmBandwidth | Quantity::Microseconds => Kind::Collectives,
        }
    }
}

/// Which memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Size {
    /// Peak of what the allocator hands out.
    #[default]
    Allocated,
    /// Peak of what it holds.
    Reserved,
    /// Peak of what the device shows.
    Device,
    /// What is allocated between steps.
    AfterStep,
}

/// A published result.
#[derive(Clone, Debug)]
pub struct Published {
    /// Its name.
    pub id: String,
    /// Results that one source published together.
    pub family: String,
    /// What was measured.
    pub quantity: Quantity,
    /// The quantity's name, of memory with its size: `memory_reserved`.
    pub quantity_name: String,
    /// The measured value, in `unit`.
    pub value: Option<f64>,
    /// Its unit.
    pub unit: String,
    /// How it bounds the result; empty = it is the value itself.
    pub bound: String,
    /// Which memory.
    pub size: Size,
    /// Whether it is of the last pipeline stage, and not of the largest.
    pub is_of_last_stage: bool,
    /// How FLOPs are counted.
    pub convention: Convention,
    /// FLOP/s of which a utilization is a share, in units of 1e12; `None` = the profile's.
    pub peak: Option<f64>,
    /// Whether the run is known to have been within its memory, or out of it.
    pub fits: Option<bool>,
    /// Keys that the source does not state and the result depends on.
    pub unknown: Vec<String>,
    /// Why it is not scored whatever is predicted; else empty.
    pub excluded: String,
    /// The cell.
    pub cell: Cell,
}

/// A published result's cell.
#[derive(Clone, Debug)]
pub enum Cell {
    /// It trains.
    Train(Box<GridCell>),
    /// It is one size of a collective.
    Collective(Result<CollectiveRow, String>),
}

/// All published results of a folder's grid files, in the order of the files' names.
///
/// # Errors
/// The folder or a file cannot be read, a row lacks what it must state, or there is no row.
pub fn read(folder: &Path) -> Result<Vec<Published>, FolderError> {
    let read = |source| FolderError::Read { path: folder.into(), source };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(read)? {
        let file = entry.map_err(read)?.path();
        // A pipe would be waited for.
        if file.is_file() && file.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("toml")) {
            files.push(file);
        }
    }
    files.sort();
    let mut all: Vec<Published> = Vec::new();
    for file in files {
        let document = Document::read(&file, &[])?;
        let context = Context::new(document.folder().into(), 1);
        let mut contents = Files::default();
        for (number, (_, settings)) in
            grid::combinations(&document, &[], grid::MOST_CELLS_EVER)?.into_iter().enumerate()
        {
            let Some(row) = of_settings(&file, number, settings, &context, &mut contents)? else { continue };
            if all.iter().any(|other| other.id == row.id) {
                let reason = "is the name of two results; give each its own published.id".into();
                return Err(FolderError::Row { path: file, row: row.id, reason });
            }
            all.push(row);
        }
    }
    if all.is_empty() { Err(FolderError::Nothing { path: folder.into() }) } else { Ok(all) }
}

fn of_settings(
    file: &Path,
    number: usize,
    settings: Settings,
    context: &Context,
    files: &mut Files,
) -> Result<Option<Published>, FolderError> {
    let stated = |key: &str| settings.get(key).map(|setting| &setting.value);
    let text = |key: &str| stated(key).and_then(Value::as_str).unwrap_or_default().to_string();
    let number_of = |key: &str| match stated(key)? {
        Value::Integer(whole) => Some(*whole as f64),
        other => other.as_float(),
    };
    let id = text("published.id");
    let refuse = |row: String, reason: &str| Err(FolderError::Row { path: file.into(), row, reason: reason.into() });
    if id.is_empty() {
        // A file of other cells, or one result without a name.
        let is_result = stated("published.quantity").is_some() || stated("published.value").is_some();
        let row = || format!("cell {}", number + 1);
        return if is_result { refuse(row(), "has no published.id; write its name") } else { Ok(None) };
    }
    let quantity_name = text("published.quantity");
    let Some(quantity) = named::<Quantity>(stated("published.quantity")) else {
        return refuse(id, "has no published.quantity; write what was measured, as \"memory\" or \"step_time_s\"");
    };
    let family = match text("published.family") {
        none if none.is_empty() => file.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
        family => family,
    };
    let unit = match (quantity, text("published.unit")) {
        (Quantity::Memory, none) if none.is_empty() => "GB".to_string(),
        (Quantity::Memory, unit) => unit,
        (other, _) => other.unit().to_string(),
    };
    let unknown = stated("published.unknown").and_then(Value::as_array);
    let unknown = unknown.into_iter().flatten().filter_map(|key| key.as_str().map(str::to_string)).collect();
    Ok(Some(Published {
        quantity_name: match (quantity, stated("published.size").and_then(Value::as_str)) {
            (Quantity::Memory, size) => format!("memory_{}", size.unwrap_or("allocated")),
            _ => quantity_name,
        },
        quantity,
        value: number_of("published.value"),
        unit,
        bound: text("published.bound"),
        size: named(stated("published.size")).unwrap_or_default(),
        is_of_last_stage: text("published.stage") == "last",
        convention: Convention::named(&text("published.convention")).unwrap_or_default(),
        peak: number_of("published.peak"),
        fits: match (quantity, number_of("published.value")) {
            (Quantity::Fits, Some(value)) => Some(value > 0.0),
            _ => stated("published.fits").and_then(Value::as_bool),
        },
        unknown,
        excluded: text("published.excluded"),
        cell: if text("suite") == "collectives" {
            Cell::Collective(collectives::prices(&settings, context).and_then(|rows| {
                let one = <[CollectiveRow; 1]>::try_from(rows);
                one.map(|[row]| row)
                    .map_err(|_| "a published collective has one size: write collectives.max_bytes = min_bytes".into())
            }))
        } else {
            let resolved = grid::resolve_with_files(&settings, context, files);
            Cell::Train(Box::new(GridCell { key: String::new(), label: id.clone(), resolved, settings }))
        },
        id,
        family,
    }))
}

/// Keys whose best value is searched for where a source of a speed does not state them.
const SEARCHED: [&str; 2] = ["train.micro_batch", "parallel.virtual_stages"];
/// Most sequences of a micro-batch that are tried.
const MOST_MICRO_BATCH: usize = 64;

/// A value's name as the value of that name.
fn named<'a, T: Deserialize<'a>>(value: Option<&Value>) -> Option<T> {
    value.and_then(|value| value.clone().try_into().ok())
}

/// Bytes of a unit.
fn bytes(unit: &str) -> f64 {
    match unit {
        "MB" => 1e6,
        "MiB" => 1_048_576.0,
        "GB" => 1e9,
        "GiB" => 1_073_741_824.0,
        _ => 1.0,
    }
}

impl Published {
    /// What is predicted, in the unit of the result, and whether the run is predicted to be within its memory: what `zbench plan`
    /// says of the cell.
    ///
    /// # Errors
    /// Why nothing is.
    pub fn predicted(&self, planner: &Planner) -> (Result<f64, String>, Option<bool>) {
        let (value, fits) = match &self.cell {
            Cell::Train(cell) => {
                let planned = match self.is_search() {
                    true => self.best(planner, cell),
                    false => planned::without_advice(planner, (**cell).clone(), None),
                };
                (self.of_training(&planned), planned.fits())
            }
            Cell::Collective(row) => (row.clone().and_then(|row| self.of_collective(&row)), None),
        };
        let is_number = |value: &f64| value.is_finite() && *value >= 0.0;
        (
            value.and_then(|value| Some(value).filter(is_number).ok_or_else(|| "the prediction is no number".into())),
            fits,
        )
    }

    /// Whether what the source does not state is searched for: the fastest micro-batch and interleaving that fit, since who publishes a
    /// speed has looked for them.
    fn is_search(&self) -> bool {
        let is_speed = self.quantity.kind() == Kind::Speed && self.value.is_some();
        is_speed && !self.unknown.is_empty() && self.unknown.iter().all(|key| SEARCHED.contains(&key.as_str()))
    }

    /// The fastest of the cells that the source may have measured, among those that fit; the cell as it is written where none does.
    fn best(&self, planner: &Planner, cell: &GridCell) -> Planned {
        let as_written = || planned::without_advice(planner, cell.clone(), None);
        let Ok(resolved) = &cell.resolved else { return as_written() };
        let (train, cut) = (&resolved.cell.train, &resolved.cell.parallel.degrees);
        let sequences = train.micro_batch * train.accumulation;
        let is_unknown = |key: &str| self.unknown.iter().any(|unknown| unknown == key);
        let micro = match is_unknown("train.micro_batch") {
            true => divisors(sequences, MOST_MICRO_BATCH),
            false => vec![train.micro_batch],
        };
        let a_stage = resolved.cell.model.num_hidden_layers / cut.pipeline.max(1);
        let chunks = match is_unknown("parallel.virtual_stages") && cut.pipeline > 1 {
            true => divisors(a_stage, MOST_CHUNKS),
            false => vec![cut.virtual_stages],
        };
        // Chunks take turns in groups of as many micro-batches as there are stages.
        let is_possible = |micro: usize, chunks: usize| chunks == 1 || (sequences / micro).is_multiple_of(cut.pipeline);
        let of = |micro: usize, chunks: usize| {
            let mut cell = cell.clone();
            if let Ok(resolved) = &mut cell.resolved {
                resolved.cell.train.micro_batch = micro;
                resolved.cell.train.accumulation = sequences / micro;
                resolved.cell.parallel.degrees.virtual_stages = chunks;
            }
            planned::without_advice(planner, cell, None)
        };
        let speed = |planned: &Planned| planned.timing.as_ref().map_or(0.0, |timing| timing.tokens_per_second);
        let pairs = micro.iter().flat_map(|micro| chunks.iter().map(|chunks| (*micro, *chunks)));
        let all = pairs.filter(|(micro, chunks)| is_possible(*micro, *chunks)).map(|(micro, chunks)| of(micro, chunks));
        let fitting = all.filter(|planned| planned.fits() != Some(false));
        fitting.max_by(|a, b| speed(a).total_cmp(&speed(b))).unwrap_or_else(as_written)
    }

    fn of_collective(&self, row: &CollectiveRow) -> Result<f64, String> {
        match self.quantity {
            Quantity::BusBandwidth => Ok(row.bus_bandwidth / 1e9),
            Quantity::AlgorithmBandwidth => Ok(row.algorithm_bandwidth / 1e9),
            Quantity::Microseconds => Ok(row.microseconds),
            _ => Err(format!("{} is not measured of a collective", self.quantity_name)),
        }
    }

    fn of_training(&self, planned: &Planned) -> Result<f64, String> {
        let resolved = planned.grid.resolved.as_ref().map_err(ToString::to_string)?;
        let memory = || planned.footprint.as_ref().ok_or("no memory is predicted");
        let timing = || planned.timing.as_ref().map_err(Clone::clone);
        Ok(match self.quantity {
            Quantity::Memory => self.memory(memory()?) / bytes(&self.unit),
            Quantity::Fits => {
                let fits = planned.fits().ok_or("the cell states no device and no memory.capacity")?;
                f64::from(u8::from(fits))
            }
            Quantity::Tokens => timing()?.tokens_per_second / resolved.cell.parallel.ranks as f64,
            Quantity::Step => timing()?.step_ms / 1e3,
            Quantity::Flops => self.tera_flops(resolved, timing()?),
            Quantity::Utilization => {
                let peak = self.peak.map(|tera| 1e12 * tera).or(timing()?.peak);
                let peak = peak.ok_or("neither published.peak nor the profile says what is 100 %")?;
                100.0 * 1e12 * self.tera_flops(resolved, timing()?) / peak
            }
            _ => return Err(format!("{} is measured of a collective, and the cell trains", self.quantity_name)),
        })
    }

    fn memory(&self, footprint: &Footprint) -> f64 {
        let figures = footprint.figures[usize::from(self.is_of_last_stage)];
        match self.size {
            Size::Allocated => figures.allocated,
            Size::Reserved => figures.reserved,
            Size::Device => figures.device,
            Size::AfterStep => figures.after_step,
        }
    }

    fn tera_flops(&self, resolved: &zbench_config::Resolved, timing: &crate::Timing) -> f64 {
        forecast::tflops_by_convention(resolved, timing).get(self.convention.name()).copied().unwrap_or_default()
    }

    /// The job and the machine that the estimator prices; `None` of collectives and of cells that cannot be. For fits of constants.
    pub fn job_and_machine(&self) -> Option<(Job, Machine)> {
        let Cell::Train(cell) = &self.cell else { return None };
        forecast::job_and_machine(cell.resolved.as_ref().ok()?)
    }

    /// Whether 20 bytes for each parameter that a rank holds are within its memory.
    fn fits_twenty_bytes(&self) -> Option<bool> {
        let Cell::Train(cell) = &self.cell else { return None };
        let resolved = cell.resolved.as_ref().ok()?;
        let job = job(resolved);
        let ranks = job.degrees.tensor * job.degrees.pipeline * job.sharding.parameters;
        Some(20.0 * job.model.parameters() as f64 / ranks.max(1) as f64 <= resolved.cell.memory.capacity? as f64)
    }

    /// Group and traits that decide the band of the prediction; `None` if it has no band.
    fn banded(&self) -> Option<(Group, Traits)> {
        let cell = match &self.cell {
            Cell::Train(cell) => cell.resolved.as_ref().ok()?,
            Cell::Collective(row) => return Some((Group::Collectives, collectives::traits(row.as_ref().ok()?))),
        };
        let machine = forecast::job_and_machine(cell).map(|(_, machine)| machine);
        let group = match (self.quantity, self.size) {
            // Tensors between steps are counted, and no peak.
            (Quantity::Fits, _) | (Quantity::Memory, Size::AfterStep) => return None,
            (Quantity::Memory, _) => Group::Memory,
            _ => Group::of_speeds(machine.as_ref()?),
        };
        Some((group, Traits::of_job(&job(cell), machine.as_ref())))
    }

    /// The result beside what is predicted.
    pub fn outcome(&self, planner: &Planner) -> Outcome {
        let (predicted, fits) = self.predicted(planner);
        let (predicted, mut reason) = match predicted {
            Ok(value) => (Some(value), String::new()),
            Err(reason) => (None, reason),
        };
        if predicted.is_some() {
            reason = self.not_scored().unwrap_or_default();
        }
        let scored = predicted.is_some() && reason.is_empty() && self.quantity != Quantity::Fits;
        Outcome {
            row: PublishedRow {
                id: self.id.clone(),
                family: self.family.clone(),
                quantity: self.quantity_name.clone(),
                unit: self.unit.clone(),
                bound: self.bound.clone(),
                published: self.value,
                predicted,
                scored,
                reason,
            },
            kind: self.quantity.kind(),
            banded: self.banded(),
            fits: self.fits.filter(|_| self.unknown.is_empty() && self.excluded.is_empty()).zip(fits),
            fits_twenty_bytes: self.fits_twenty_bytes(),
        }
    }

    /// Why the result is predicted and not scored.
    fn not_scored(&self) -> Option<String> {
        if !self.excluded.is_empty() {
            Some(self.excluded.clone())
        } else if !self.unknown.is_empty() && !self.is_search() {
            Some(format!("the source does not state {}", self.unknown.join(", ")))
        } else if !self.bound.is_empty() {
            Some(format!("one-sided: {}", self.bound))
        } else if self.quantity == Quantity::Fits {
            Some("counts as a decision, and not as a number".into())
        } else if self.value.is_none_or(|value| value <= 0.0) {
            Some("no number is stated".into())
        } else {
            None
        }
    }
}
