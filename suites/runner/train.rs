//! The suite `train`: training cells, executed in processes of their own.

use crate::execution::{Execute, Stopped};
use crate::protocol::{End, ProgressEvent};
use crate::suite::{Observe, Suite, SuiteCell, Trial};
use crate::{lifecycle, parity, record, validity};
use serde_json::{Map, Value};
use zbench_config::{Settings, grid};
use zbench_engine::config::Cell;
use zbench_engine::observe::outcome::Estimate;
use zbench_host::{machine, sampling};
use zbench_predict::planned::{self, Decision, Planned};
use zbench_predict::proxy;
use zbench_reports::record::{Outcome, Record, Status, Step, label_flags};
use zbench_reports::{Index, IndexEntry, Notebook};

/// Runs training cells. How one is executed is behind [`Execute`], so that scheduling is tested without training.
pub struct Train<'a> {
    /// Runs a cell.
    pub execute: &'a mut dyn Execute,
}

impl SuiteCell for Planned {
    fn key(&self) -> &str {
        &self.grid.key
    }

    fn label(&self) -> &str {
        &self.grid.label
    }

    fn plain(&self) -> Value {
        self.cell().map_or_else(|| written(&self.grid.settings), grid::plain)
    }

    fn decision(&self) -> &Decision {
        &self.decision
    }

    fn runs_once(&self) -> bool {
        self.decision != Decision::Run || is_next(self)
    }

    fn comes_first(&self) -> bool {
        self.cell().is_some_and(parity::is_reference)
    }
}

impl Suite for Train<'_> {
    type Cell = Planned;

    fn describe(&self, planned: &Planned, record: &mut Record) {
        describe(planned, record);
        record::predicted(record, planned);
    }

    fn skipped(&self, record: &mut Record) {
        let words = record.outcome.status.words();
        record::unmeasured(record, &format!("the cell was {words}: it did not run"));
    }

    fn measure(
        &mut self,
        trial: &Trial<'_, Planned>,
        record: &mut Record,
        observe: &mut dyn Observe,
    ) -> Result<bool, Option<Stopped>> {
        let planned = trial.cell;
        let (Some(cell), Some(estimate)) = (planned.cell(), &planned.estimate) else {
            // Run is only decided for a cell that has a plan.
            record.outcome = Outcome::ended(Status::Failed, "the cell has no plan", None);
            return Ok(false);
        };
        if let Some(load) = machine::load_average() {
            record.environment.insert("load_average".into(), load.into());
        }
        let sampler = sampling::Sampler::start(planned::gpus_here(cell));
        let folders = &trial.header.folders;
        let placed = folders.placed(cell, &planned.grid.key, trial.number);
        self.execute.begin(record);
        let execution = self.execute.execute(&placed, &mut |told| match told {
            ProgressEvent::Step(step) => {
                sampler.step(step.timed);
                observe.step(step);
            }
            ProgressEvent::LifecycleEvent(event) => observe.lifecycle(event),
            ProgressEvent::Traced(traced) => observe.traced(traced),
            ProgressEvent::Stopping => observe.stopping(),
        });
        sampler.add_peers(execution.peers_seconds);
        let sampled = sampler.finish();
        folders.clear();
        let stopped = execution.stopped(&placed);
        let end = execution.end.ok_or(stopped)?;
        fill(record, execution.steps, &end, (cell, estimate), planned);
        execution.traced.note(record);
        lifecycle::add(record, execution.lifecycle);
        validity::add(record, &sampled, &end);
        compare(record, cell, trial.cells, trial.known, (trial.notebook, trial.references));
        Ok(execution.last)
    }

    fn is_stopped(&self) -> bool {
        self.execute.is_stopped()
    }

    fn references_of(&self, cells: &[Planned]) -> Vec<Option<usize>> {
        parity::references_of(cells)
    }

    fn references(&self, index: &Index) -> Vec<parity::Reference> {
        parity::references(index)
    }
}

/// What a record says of a training cell beside its configuration.
fn describe(planned: &Planned, record: &mut Record) {
    if let Some(policy) = zbench_config::policy(&planned.grid.settings) {
        record.extra.insert("precision_policy".into(), policy.into());
    }
    if !planned.advice.is_empty() {
        record.notes.push(format!("Cheapest change that makes it fit: {}.", planned.advice));
    }
    if let Some(of) = &planned.proxy_of {
        record.extra.insert("proxy".into(), serde_json::json!({ "of": of, "rule": proxy::RULE }));
        record.validity.push(label_flags::PROXY.into());
        record.notes.push(format!("PROXY of cell {of}: {}", proxy::RULE));
    }
}

/// What a cell measured, or how it ended.
pub(crate) fn fill(
    record: &mut Record,
    steps: Vec<Step>,
    end: &End,
    (cell, estimate): (&Cell, &Estimate),
    planned: &Planned,
) {
    let host = record.environment.get("host").and_then(Value::as_str).unwrap_or_default().to_string();
    if let Some(failure) = &end.failure {
        record.outcome = Outcome::ended(failure.status, failure.reason.clone(), failure.source);
    }
    record::measured(record, steps, end, cell, estimate, &host);
    record::ceiling(record, end, &planned.drive, &estimate.moves, &host);
    record.extra.insert("seeds".into(), serde_json::json!({ "train": cell.train.seed }));
}

/// What was written for a combination that is no cell, as nested data.
pub fn written(settings: &Settings) -> Value {
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

/// Whether it stands for the value after the largest of a search: that this does not fit is shown once.
pub fn is_next(cell: &Planned) -> bool {
    cell.search.as_deref().is_some_and(|search| search.role == zbench_reports::max_batch::Role::Next)
}

/// Fills in parity with the reference of the cell's class, and checks that equal trials have equal losses. The reference
/// is a cell of this command; where that has none, or none that was measured, it is a record of the notebook.
pub(crate) fn compare(
    record: &mut Record,
    cell: &Cell,
    cells: &[Planned],
    known: &[Record],
    (notebook, references): (&Notebook, &[parity::Reference]),
) {
    let reference_key = parity::reference_of(cell, cells).map(|index| cells[index].grid.key.clone());
    if record.is_measured() {
        let own = (reference_key.as_ref() == Some(&record.key)).then_some(&*record);
        let of_command = || {
            let key = reference_key.as_ref()?;
            known.iter().rev().find(|other| other.key == *key && other.is_measured())
        };
        let of_notebook = || {
            // Another build may draw other weights or sum in another order: its losses are no reference.
            let commit = record.environment.get("commit");
            let fits = |other: &IndexEntry| other.steps == record.steps.len() && other.stated("commit") == commit;
            // One that cannot be read any more is none.
            notebook.record(parity::reference_in_notebook(cell, references, fits)?).ok()
        };
        let of_command = own.or_else(of_command);
        let of_notebook = if of_command.is_none() { of_notebook() } else { None };
        let reference = of_command.or(of_notebook.as_ref());
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
