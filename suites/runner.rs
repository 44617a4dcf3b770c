//! Runs the cells of a grid by trials: one trial of every cell in each round, and every record is appended as its trial ends. What
//! the notebook already holds is not repeated. How a cell is executed is behind [`Execute`], so that scheduling is tested without training.

mod between;
pub mod by_turns;
pub mod cell;
pub mod child;
pub mod folders;
pub mod launched;
pub mod loading;
pub mod machine;
pub mod merge;
pub mod mpirun;
pub mod parity;
pub mod plan;
pub mod processes;
pub mod protocol;
pub mod rank;
pub mod record;
pub mod rescue;
pub mod sampling;
pub mod time;
mod traced;
mod turns;
pub mod validity;

use crate::config::Settings;
use folders::Folders;
use plan::{Decision, Planned};
use protocol::{Between, End, Ended, Event, Told};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use traced::Traced;
use turns::{Turn, Turns};
use zbench_engine::config::Cell;
use zbench_engine::trace::StepTrace;
use zbench_reports::gate::random::Random;
use zbench_reports::record::{Outcome, Record, Source, Status, Step, label_flags};
use zbench_reports::{Notebook, StoreError};

/// What became of one execution.
#[derive(Clone, Debug, Default)]
pub struct Execution {
    /// Steps that ended.
    pub steps: Vec<Step>,
    /// What happened between them.
    pub between: Vec<Between>,
    /// How it ended; absent when it was stopped because the user asked.
    pub end: Option<End>,
    /// Nothing can run after it.
    pub last: bool,
    /// What tracing took, where it was traced.
    pub traced: Traced,
}

impl Execution {
    /// Takes in what a cell says of its course, and passes it on.
    pub(crate) fn take(&mut self, event: &Event, tell: &mut dyn FnMut(Told<'_>)) {
        match event {
            Event::Step(step) => {
                tell(Told::Step(step));
                self.steps.push(step.clone());
            }
            Event::Between(between) => {
                tell(Told::Between(between));
                // It grows, and the end has the last of it.
                if !matches!(between, Between::Peak(_)) {
                    self.between.push(between.clone());
                }
            }
            Event::Traced(traced) => {
                self.traced.add(traced);
                tell(Told::Traced(traced));
            }
            Event::Hears | Event::End(_) | Event::Rank(_) => {}
        }
    }

    /// With the end that the cell said; without, where it was stopped before its own.
    fn with(mut self, end: End) -> Execution {
        let is_whole = !end.stopped || end.failure.is_some();
        self.close(end);
        self.end = self.end.filter(|_| is_whole);
        self
    }

    /// Takes in the end, of a run that was stopped too.
    pub(crate) fn close(&mut self, mut end: End) {
        let said = std::mem::take(&mut end.steps);
        if !said.is_empty() {
            self.steps = said;
        }
        self.end = Some(end);
    }

    pub(crate) fn ended(self, failure: Ended) -> Execution {
        self.with(End { failure: Some(failure), ..End::default() })
    }

    pub(crate) fn timed_out(self, limit: Duration) -> Execution {
        let reason = format!(
            "took longer than the time limit of {} s, after {} steps; raise --timeout, or lower train.steps",
            limit.as_secs_f64(),
            self.steps.len()
        );
        self.ended(Ended { status: Status::TimedOut, reason, source: Some(Source::Host) })
    }

    pub(crate) fn failed(reason: String) -> Execution {
        Execution::default().ended(Ended { status: Status::Failed, reason, source: None })
    }

    /// Where it stopped, and what there is to go on from.
    fn stopped(&self, cell: &Cell) -> Stopped {
        let saved = self.between.iter().rev().find_map(|between| match between {
            Between::Saved(saved) => Some(saved.dir.clone()),
            _ => None,
        });
        let before = self.between.iter().find_map(|between| match between {
            Between::Resumed(resumed) => Some(resumed.step),
            _ => None,
        });
        let step = self.steps.last().map(|step| step.step).or(before).unwrap_or(0);
        Stopped { step, of: (cell.train.untimed_steps + cell.train.steps) as u64, saved }
    }
}

/// A trial that was stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stopped {
    /// Steps done.
    pub step: u64,
    /// All its steps.
    pub of: u64,
    /// The newest checkpoint that it wrote.
    pub saved: Option<PathBuf>,
}

/// Something that can run a cell.
pub trait Execute {
    /// Runs it to its end, telling of each step and of what happens between them.
    fn execute(&mut self, cell: &Cell, tell: &mut dyn FnMut(Told<'_>)) -> Execution;
    /// Whether the user wants to stop, asked while nothing is executed.
    fn is_stopped(&self) -> bool {
        false
    }
}

/// Someone who wants to know how far it is.
pub trait Observe {
    /// Records of these cells do not count, for this reason.
    fn set_aside(&mut self, _count: usize, _reason: &str) {}
    /// Other processes on the notebook have what is left; it is looked again in a moment.
    fn wait(&mut self) {}
    /// A trial begins: the `done`-th of `all`.
    fn begin(&mut self, _cell: &Planned, _trial: u32, _done: usize, _all: usize) {}
    /// A step of it has ended.
    fn step(&mut self, _step: &Step) {}
    /// Something has happened between steps.
    fn between(&mut self, _between: &Between) {}
    /// What a rank did in a step of it.
    fn traced(&mut self, _traced: &StepTrace) {}
    /// Cells take turns: how far the experiment is, in words and as a share.
    fn turns(&mut self, _words: &str, _share: f64) {}
    /// The user wants to stop; it goes on to the end of its step, for a checkpoint.
    fn stopping(&mut self) {}
    /// Its record is on disk.
    fn end(&mut self, _record: &Record) {}
}

/// Which trials are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trials {
    /// Trials 1 to this of every cell that the notebook does not hold yet.
    UpTo(u32),
    /// As before, whatever the notebook holds.
    Fresh(u32),
    /// One more of every cell, whatever the notebook holds.
    OneMore,
}

/// What all records of a run have in common.
#[derive(Clone, Debug, Default)]
pub struct Header {
    /// Title of the notebook entry.
    pub name: String,
    /// What it is to find out.
    pub question: String,
    /// The command.
    pub command: String,
    /// Machine and program.
    pub environment: Map<String, Value>,
    /// Records of another machine, profile or build count as done too.
    pub any_environment: bool,
    /// Flagged trials are not repeated.
    pub no_repeats: bool,
    /// Why cells are measured by trials and not by turns, where that is not the user's wish. Their order is then random.
    pub why_not_turns: Option<String>,
    /// Seed of the order of trials, where that is random.
    pub seed: u64,
    /// No trial of a cell that has a record begins after this time. Absent: there is no limit.
    pub budget: Option<Duration>,
    /// Where training checkpoints go.
    pub folders: Folders,
}

/// How often the notebook is looked at while others have what is left.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// What a run left behind.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// The newest record of each wanted trial of each cell, in the order of the cells.
    pub records: Vec<Record>,
    /// How many of them are new.
    pub appended: usize,
    /// Wanted trials that the budget left no time for.
    pub left_out: usize,
    /// Whether it was stopped before its end.
    pub interrupted: bool,
    /// The trial that was under way then, if one was.
    pub stopped: Option<Stopped>,
    /// What else there is to say of it.
    pub said: Vec<String>,
}

/// Runs cells into a notebook.
pub struct Runner<'a> {
    /// Where records go.
    pub notebook: &'a Notebook,
    /// Runs a cell.
    pub execute: &'a mut dyn Execute,
    /// Is told of progress.
    pub observe: &'a mut dyn Observe,
    /// Into every record.
    pub header: Header,
}

impl Runner<'_> {
    /// Runs what is wanted and not there yet.
    ///
    /// # Errors
    /// The notebook cannot be read or written; what was appended before stays.
    pub fn run(&mut self, cells: &[Planned], trials: Trials) -> Result<Summary, StoreError> {
        let here = (!self.header.any_environment).then(|| self.header.environment.clone());
        let seed = self.header.why_not_turns.as_ref().map(|_| self.header.seed);
        let mut turns = Turns::new(self.notebook, cells, trials, here, !self.header.no_repeats, seed)?;
        let began = Instant::now();
        if matches!(trials, Trials::UpTo(_)) {
            turns.set_aside.iter().for_each(|(reason, count)| self.observe.set_aside(*count, reason));
        }
        let mut summary = Summary::default();
        let mut is_checked = false;
        loop {
            if self.header.budget.is_some_and(|budget| began.elapsed() >= budget) {
                summary.left_out += turns.leave_out_further_trials();
            }
            let (index, trial, claim) = match turns.next()? {
                Turn::Over => break,
                Turn::Run { index, trial, claim } => (index, trial, claim),
                Turn::Wait if self.execute.is_stopped() => {
                    summary.interrupted = true;
                    break;
                }
                Turn::Wait => {
                    self.observe.wait();
                    std::thread::sleep(LOOK_AGAIN);
                    continue;
                }
            };
            if !is_checked {
                self.notebook.check_writable()?;
                is_checked = true;
            }
            let cell = &cells[index];
            self.observe.begin(cell, trial, turns.done().saturating_sub(1), turns.all);
            let (record, last) = match self.trial(cell, trial, cells, &turns.counted, &turns.references) {
                Ok(ended) => ended,
                Err(stopped) => {
                    (summary.interrupted, summary.stopped) = (true, Some(stopped));
                    break;
                }
            };
            if let Err(error) = self.notebook.append(&record) {
                rescue::keep_and_say(&record);
                return Err(error);
            }
            drop(claim);
            self.observe.end(&record);
            summary.appended += 1;
            turns.add(index, record);
            if last {
                break;
            }
        }
        summary.records = newest(cells, &turns.wanted, turns.counted);
        Ok(summary)
    }

    /// One trial, as a record, and whether nothing can run after it.
    ///
    /// # Errors
    /// It was stopped: it is not settled, and has no record.
    fn trial(
        &mut self,
        planned: &Planned,
        trial: u32,
        cells: &[Planned],
        known: &[Record],
        references: &[(String, Record)],
    ) -> Result<(Record, bool), Stopped> {
        let mut last = false;
        let started = jiff::Timestamp::now();
        let mut record = self.blank(planned, trial, started);
        record::predicted(&mut record, planned);
        match (&planned.decision, planned.cell(), &planned.estimate) {
            (Decision::Record { status, reason, source }, ..) => {
                record.outcome = Outcome::ended(*status, reason.clone(), Some(*source));
                record::unmeasured(&mut record, &format!("the cell was {}: it did not run", status.words()));
            }
            (Decision::Run, Some(cell), Some(estimate)) => {
                if let Some(load) = machine::load_average() {
                    record.environment.insert("load_average".into(), load.into());
                }
                let observe = &mut *self.observe;
                let sampler = sampling::Sampler::start(plan::gpus_here(cell));
                let placed = self.header.folders.placed(cell, &planned.grid.key, trial);
                let execution = self.execute.execute(&placed, &mut |told| match told {
                    Told::Step(step) => {
                        sampler.step(step.timed);
                        observe.step(step);
                    }
                    Told::Between(between) => observe.between(between),
                    Told::Traced(traced) => observe.traced(traced),
                    Told::Stopping => observe.stopping(),
                });
                let sampled = sampler.finish();
                self.header.folders.clear();
                let stopped = execution.stopped(&placed);
                let end = execution.end.ok_or(stopped)?;
                last = execution.last;
                fill(&mut record, execution.steps, &end, cell, estimate);
                execution.traced.note(&mut record);
                between::add(&mut record, execution.between);
                validity::add(&mut record, &sampled, &end);
                compare(&mut record, cell, cells, known, references);
            }
            // Run is only decided for a cell that has a plan.
            (Decision::Run, ..) => record.outcome = Outcome::ended(Status::Failed, "the cell has no plan", None),
        }
        Ok((record, last))
    }

    fn blank(&self, planned: &Planned, trial: u32, started: jiff::Timestamp) -> Record {
        self.header.blank(planned, trial, started)
    }
}

impl Header {
    /// A record of this run with nothing measured yet.
    fn blank(&self, planned: &Planned, trial: u32, started: jiff::Timestamp) -> Record {
        let unique = format!("{} {trial} {started} {}", planned.grid.key, std::process::id());
        let id = blake3::hash(unique.as_bytes()).to_hex()[..12].to_string();
        let mut record = Record::new(id, &planned.grid.key, &self.name, Outcome::measured());
        record.trial = trial;
        record.cell = match planned.cell() {
            Some(cell) => crate::grid::plain(cell),
            None => written(&planned.grid.settings),
        };
        if let Some(policy) = crate::config::policy(&planned.grid.settings) {
            record.extra.insert("precision_policy".into(), policy.into());
        }
        record.environment = self.environment.clone();
        record.command = self.command.clone();
        record.started = started.to_string();
        if !self.question.is_empty() {
            record.extra.insert("question".into(), self.question.clone().into());
        }
        if let Some(why) = &self.why_not_turns {
            let why_not = Some(why.clone());
            record.turns = Some(zbench_reports::record::Turns { why_not, seed: self.seed, ..Default::default() });
        }
        if !planned.advice.is_empty() {
            record.notes.push(format!("Cheapest change that makes it fit: {}.", planned.advice));
        }
        if let Some(of) = &planned.proxy_of {
            record.extra.insert("proxy".into(), serde_json::json!({ "of": of, "rule": crate::proxy::RULE }));
            record.validity.push(label_flags::PROXY.into());
            record.notes.push(format!("PROXY of cell {of}: {}", crate::proxy::RULE));
        }
        record
    }
}

/// What a cell measured, or how it ended.
fn fill(record: &mut Record, steps: Vec<Step>, end: &End, cell: &Cell, estimate: &zbench_engine::outcome::Estimate) {
    let host = record.environment.get("host").and_then(Value::as_str).unwrap_or_default().to_string();
    if let Some(failure) = &end.failure {
        record.outcome = Outcome::ended(failure.status, failure.reason.clone(), failure.source);
    }
    record::measured(record, steps, end, cell, estimate, &host);
    record.extra.insert("seeds".into(), serde_json::json!({ "train": cell.train.seed }));
}

/// What was written for a combination that is no cell, as nested data.
pub(crate) fn written(settings: &Settings) -> Value {
    let mut root = Map::new();
    for (key, setting) in settings {
        let value = serde_json::to_value(&setting.value).unwrap_or_default();
        match key.split_once('.') {
            None => drop(root.insert(key.to_string(), value)),
            Some((section, name)) => {
                let section = root.entry(section).or_insert_with(|| Value::Object(Map::new()));
                if let Value::Object(section) = section {
                    section.insert(name.to_string(), value);
                }
            }
        }
    }
    Value::Object(root)
}

/// The trials of a cell that are wanted. What does not run needs one record.
fn wanted(cell: &Planned, trials: Trials, known: &[Record]) -> Vec<u32> {
    let runs = cell.decision == Decision::Run && !is_next(cell);
    match trials {
        Trials::UpTo(count) | Trials::Fresh(count) => (1..=if runs { count } else { 1 }).collect(),
        Trials::OneMore => {
            let last = known.iter().filter(|record| record.key == cell.grid.key).map(|record| record.trial).max();
            vec![last.unwrap_or(0).saturating_add(1)]
        }
    }
}

/// Whether it stands for the value after the largest of a search: that this does not fit is shown once.
pub(crate) fn is_next(cell: &Planned) -> bool {
    cell.search.as_deref().is_some_and(|search| search.role == zbench_reports::max_batch::Role::Next)
}

/// Rounds of trials, each with one trial of every cell. References come first, because the losses of other cells are compared with
/// theirs. With a seed, the order is random in every round, and references come first in the first round only.
fn schedule(cells: &[Planned], wanted: &[Vec<u32>], seed: Option<u64>) -> Vec<(usize, u32)> {
    let rounds = wanted.iter().map(Vec::len).max().unwrap_or(0);
    let is_reference = |index: &usize| cells[*index].cell().is_some_and(parity::is_reference);
    let mut order: Vec<usize> = (0..cells.len()).collect();
    // The sort is stable.
    order.sort_by_key(|index| !is_reference(index));
    let mut random = seed.map(Random::new);
    let mut schedule = Vec::new();
    for round in 0..rounds {
        if let Some(random) = &mut random {
            random.shuffle(&mut order);
            if round == 0 {
                order.sort_by_key(|index| !is_reference(index));
            }
        }
        schedule.extend(order.iter().filter_map(|index| Some((*index, *wanted[*index].get(round)?))));
    }
    schedule
}

/// Fills in parity with the reference of the cell's class, and checks that equal trials have equal losses. The reference
/// is a cell of this command; where that has none, or none that was measured, it is a record of the notebook.
fn compare(record: &mut Record, cell: &Cell, cells: &[Planned], known: &[Record], references: &[(String, Record)]) {
    let class = parity::class(cell);
    let reference_key = parity::reference_of(cell, cells).map(|index| cells[index].grid.key.clone());
    if record.is_measured() {
        let own = (reference_key.as_ref() == Some(&record.key)).then_some(&*record);
        let of_command = || {
            let key = reference_key.as_ref()?;
            known.iter().rev().find(|other| other.key == *key && other.is_measured())
        };
        let of_notebook = || {
            // Another build may draw other weights or sum in another order: its losses are no reference.
            let commit = |of: &Record| of.environment.get("commit").cloned();
            let fits = |other: &&Record| other.steps.len() == record.steps.len() && commit(other) == commit(record);
            references.iter().rev().filter(|(of, _)| *of == class).map(|(_, other)| other).find(fits)
        };
        let of_command = own.or_else(of_command);
        let reference = of_command.or_else(of_notebook);
        let mut parity = parity::compare(record, reference, &cell.precision);
        if let (None, Some(reference)) = (of_command, reference) {
            parity.extra.insert("reference_from".into(), "notebook".into());
            let Record { id, trial, started, .. } = reference;
            let note =
                format!("Its losses are compared with those of {id}, trial {trial} of {started} in the notebook.");
            record.notes.push(note);
        }
        record.parity = parity;
    }
    let earlier = known.iter().find(|other| other.key == record.key && other.is_measured());
    if record.is_measured()
        && let Some(earlier) = earlier
        && parity::difference(&record.steps, &earlier.steps, |step| step.loss) != Some(0.0)
    {
        record.validity.push("not_reproducible".into());
        record
            .notes
            .push(format!("Its losses are not those of trial {} ({}), with the same seed.", earlier.trial, earlier.id));
    }
}

/// The newest record of each wanted trial, in the order of cells and trials.
fn newest(cells: &[Planned], wanted: &[Vec<u32>], records: Vec<Record>) -> Vec<Record> {
    let mut by_trial: BTreeMap<(String, u32), Record> = BTreeMap::new();
    for record in records {
        by_trial.insert((record.key.clone(), record.trial), record);
    }
    let pairs =
        cells.iter().zip(wanted).flat_map(|(cell, trials)| trials.iter().map(move |t| (cell.grid.key.clone(), *t)));
    pairs.filter_map(|pair| by_trial.remove(&pair)).collect()
}
