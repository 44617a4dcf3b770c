//! `search` of `[grid]`: the largest micro-batch or sequence that fits, of every combination of the grid. By plan first: a
//! plan takes a fraction of a millisecond. Then by run: the cell with that value is an ordinary cell of the grid, and so is
//! the one with the next value, whose arena must refuse it.
//!
//! Not to be confused with [`zbench_predict::search`], which looks for ways to split the work of one cell.

mod candidates;
mod run;

pub use candidates::{Candidates, largest};
pub use run::carry_out;

use std::collections::HashMap;
use toml::Value;
use zbench_config::files::Files;
use zbench_config::grid::{self, GridCell};
use zbench_config::{Context, Document, Refusal, Search, Settings, resolve};
use zbench_engine::config::DeviceKind;
use zbench_engine::planner::Planner;
use zbench_predict::planned::{self, Decision, Planned};
use zbench_reports::OrderedMap;
use zbench_reports::max_batch::{self, Next, Of, Role};
use zbench_reports::record::Status;

/// The searches of a grid, one for each of its combinations.
pub struct MaxBatchSearch {
    search: Search,
    planner: Planner,
    context: Context,
    files: Files,
    searches: Vec<LimitSearch>,
}

/// The search of one combination.
struct LimitSearch {
    /// Key of the cell that has the largest value as far as it is known.
    key: String,
    label: String,
    settings: Settings,
    candidates: Candidates,
    /// The place of that value; `None` if no value fits.
    place: Option<usize>,
    /// Largest place that a run has shown to fit.
    ran: Option<usize>,
    /// Smallest place that a run has shown not to fit, and its record.
    refused: Option<(usize, Next)>,
    /// The search as records hold it.
    recorded: max_batch::Search,
}

/// The plan's verdict on one value.
#[derive(Clone, Debug)]
enum Verdict {
    Fits {
        bytes: Option<u64>,
    },
    TooLarge {
        bytes: Option<u64>,
        reason: String,
    },
    /// The value is no valid configuration, or its memory is unknown.
    Refused {
        reason: String,
    },
}

impl MaxBatchSearch {
    /// Finds the largest value of each of `cells`, which have the smallest, by plan; in their order.
    pub fn find(
        document: &Document,
        search: Search,
        cells: Vec<GridCell>,
        context: Context,
        files: Files,
    ) -> (Vec<Planned>, MaxBatchSearch) {
        let mut limits = MaxBatchSearch { search, planner: Planner::default(), context, files, searches: Vec::new() };
        let varying = grid::varying(document);
        let found = cells.into_iter().map(|cell| limits.find_limit(cell, &varying)).collect();
        (found, limits)
    }

    fn find_limit(&mut self, cell: GridCell, varying: &[&'static str]) -> Planned {
        let candidates = self.candidates(&cell);
        let mut verdicts: HashMap<usize, Verdict> = HashMap::new();
        let count = candidates.as_ref().map_or(0, Candidates::len);
        let mut judge = |limits: &mut MaxBatchSearch, place: usize| {
            let value = candidates.as_ref().map_or(0, |candidates| candidates.at(place));
            verdicts.entry(place).or_insert_with(|| limits.verdict(&cell.settings, value)).clone()
        };
        let place = largest(count, &mut |place| matches!(judge(self, place), Verdict::Fits { .. }));
        let here = (count > 0).then(|| judge(self, place.unwrap_or(0)));
        let next_place = place.map(|place| place + 1).filter(|next| *next < count);
        let next = next_place.map(|next| (next, judge(self, next)));
        let candidates = candidates.unwrap_or_else(|_| Candidates::of_divisors(0, 1, 0));
        let recorded = max_batch::Search {
            key: self.search.key.into(),
            value: place.map(|place| candidates.at(place) as u64),
            role: Role::Limit,
            of: Of::Plan,
            bytes: here.as_ref().and_then(Verdict::bytes),
            reason: if place.is_none() {
                here.as_ref().map(Verdict::reason).unwrap_or_default()
            } else {
                String::new()
            },
            next: next.map(|(next, verdict)| Next {
                value: candidates.at(next) as u64,
                bytes: verdict.bytes(),
                // A value that is no valid configuration is not run.
                outcome: verdict.is_refused().then(|| Status::Skipped.name().to_string()),
                reason: if verdict.is_refused() { verdict.reason() } else { String::new() },
            }),
            smallest: self.search.multiple as u64,
            most: candidates.last().unwrap_or(self.search.most) as u64,
            multiple: self.search.multiple as u64,
            combination: self.combination(&cell.settings),
            axes: axes(&cell.settings, varying),
            fixed_batch: self.holds_batch(&cell.settings),
            ..max_batch::Search::default()
        };
        let (label, settings) = (cell.label.clone(), cell.settings.clone());
        let cell = match place {
            Some(place) => self.at(&cell.settings, &cell.label, candidates.at(place)),
            None => cell,
        };
        let mut search = LimitSearch {
            key: cell.key.clone(),
            label,
            settings,
            candidates,
            place,
            ran: None,
            refused: None,
            recorded,
        };
        let planned = planned(&self.planner, &mut search, cell);
        self.searches.push(search);
        planned
    }

    /// The values to try. Where the configuration states the global batch they are what divides a rank's share of it: the
    /// rest is no configuration.
    fn candidates(&mut self, cell: &GridCell) -> Result<Candidates, Refusal> {
        let Search { most, multiple, .. } = self.search;
        if !self.holds_batch(&cell.settings) {
            return Ok(Candidates::of_multiples(multiple, most));
        }
        let one = self.settings_at(&cell.settings, 1);
        let resolved = resolve(&one, &self.context)?;
        Ok(Candidates::of_divisors(resolved.cell.train.accumulation, multiple, most))
    }

    fn holds_batch(&self, settings: &Settings) -> bool {
        self.search.key == "train.micro_batch" && settings.contains_key("train.global_batch")
    }

    fn settings_at(&self, settings: &Settings, value: usize) -> Settings {
        let mut settings = settings.clone();
        settings.insert(self.search.key, grid::searched(&self.search, value));
        settings
    }

    /// The ordinary cell with that value.
    fn at(&mut self, settings: &Settings, label: &str, value: usize) -> GridCell {
        let settings = self.settings_at(settings, value);
        let resolved = grid::resolve_with_files(&settings, &self.context, &mut self.files);
        let key = grid::combination_key(&resolved, &settings, &mut self.files);
        let label = format!("{label} {}={value}", self.search.name()).trim().to_string();
        GridCell { key, label, resolved, settings }
    }

    fn verdict(&mut self, settings: &Settings, value: usize) -> Verdict {
        let settings = self.settings_at(settings, value);
        let resolved = grid::resolve_with_files(&settings, &self.context, &mut self.files);
        let resolved = match resolved {
            Ok(resolved) => resolved,
            Err(refusal) => return Verdict::Refused { reason: refusal.to_string() },
        };
        let weight = planned::weigh(&self.planner, &resolved);
        let bytes = weight.footprint.as_ref().map(|footprint| footprint.total);
        match (weight.decision, resolved.cell.memory.capacity, &weight.footprint) {
            (Decision::Record { status: Status::OutOfMemory, reason, .. }, ..) => Verdict::TooLarge { bytes, reason },
            (_, Some(capacity), Some(footprint)) if footprint.fits(capacity) => Verdict::Fits { bytes },
            (_, Some(capacity), Some(footprint)) => {
                let reason = match footprint.total > capacity {
                    true => {
                        format!(
                            "takes {} of a rank, which has {}",
                            planned::gib(footprint.total),
                            planned::gib(capacity)
                        )
                    }
                    false => format!("takes {} of a node's host memory", planned::gib(footprint.host)),
                };
                Verdict::TooLarge { bytes, reason }
            }
            (Decision::Run, ..) => Verdict::Fits { bytes },
            (Decision::Record { .. }, None, Some(_)) if resolved.cell.hardware.device == DeviceKind::Cuda => {
                let reason = "nothing says how much memory a rank has; state memory.capacity or hardware.profile";
                Verdict::Refused { reason: reason.into() }
            }
            (Decision::Record { reason, .. }, ..) => Verdict::Refused { reason },
        }
    }

    /// A hash of the settings that all cells of one search share.
    fn combination(&self, settings: &Settings) -> String {
        let mut settings = settings.clone();
        settings.remove(self.search.key);
        grid::settings_key(&settings)
    }

    /// For each limit that runs here and has a stated capacity, the cell with the next value: its arena is to refuse it.
    pub fn next(&mut self, limits: &[Planned]) -> Vec<Planned> {
        let mut cells = Vec::new();
        for (place, limit) in limits.iter().enumerate().take(self.searches.len()) {
            let (Decision::Run, Some(capacity), Some(cell)) = (&limit.decision, limit.capacity(), limit.cell()) else {
                continue;
            };
            let search = &self.searches[place];
            let next = search.recorded.next.as_ref().filter(|next| next.outcome.is_none() && search.place.is_some());
            // Up to its capacity every rank takes memory before it is refused more.
            let Some(next) = next.filter(|_| planned::host_holds(cell, capacity)) else { continue };
            let (recorded, value) = (search.recorded.clone(), next.value);
            let (settings, label) = (search.settings.clone(), search.label.clone());
            let bytes = next.bytes;
            let cell = self.at(&settings, &label, value as usize);
            let mut planned = planned::without_advice(&self.planner, cell, None);
            if planned.decision != Decision::Run || limits.iter().any(|other| other.grid.key == planned.grid.key) {
                continue;
            }
            let global_batch = planned.cell().map(|cell| cell.batch_division().sequences());
            let recorded =
                max_batch::Search { value: Some(value), bytes, role: Role::Next, next: None, global_batch, ..recorded };
            planned.search = Some(Box::new(recorded));
            planned.grid.label = format!("{} (must not fit)", planned.grid.label);
            cells.push(planned);
        }
        cells
    }
}

impl Verdict {
    fn bytes(&self) -> Option<u64> {
        match self {
            Verdict::Fits { bytes } | Verdict::TooLarge { bytes, .. } => *bytes,
            Verdict::Refused { .. } => None,
        }
    }

    fn reason(&self) -> String {
        match self {
            Verdict::Fits { .. } => String::new(),
            Verdict::TooLarge { reason, .. } | Verdict::Refused { reason } => reason.clone(),
        }
    }

    fn is_refused(&self) -> bool {
        matches!(self, Verdict::Refused { .. })
    }
}

/// The plan of the limit, with its search.
fn planned(planner: &Planner, search: &mut LimitSearch, cell: GridCell) -> Planned {
    search.key.clone_from(&cell.key);
    let mut planned = planned::plan(planner, cell, None);
    search.recorded.capacity = planned.capacity();
    search.recorded.global_batch = planned.cell().map(|cell| cell.batch_division().sequences());
    // The reason that the search found is more specific than that the cell does not run here.
    if let Decision::Record { reason, .. } = &planned.decision
        && search.recorded.value.is_none()
        && search.recorded.reason.is_empty()
    {
        search.recorded.reason.clone_from(reason);
    }
    planned.search = Some(Box::new(search.recorded.clone()));
    planned
}

/// What tells a combination from the others, as text.
fn axes(settings: &Settings, varying: &[&'static str]) -> OrderedMap<String> {
    let text = |key: &&'static str| {
        let value = match &settings.get(key)?.value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        Some((*key, value))
    };
    varying.iter().filter_map(text).collect()
}
