//! The runner: one trial of every cell in each round, a record appended as each trial ends. What the notebook already holds
//! is not repeated, and several commands on one notebook share the work.

use crate::execution::Stopped;
use crate::header::Header;
use crate::parity::Reference;
use crate::suite::{Observe, Suite, SuiteCell, Trial};
use crate::trial_queue::{Next, TrialQueue, Trials};
use crate::{logged, rescue};
use std::time::{Duration, Instant};
use zbench_predict::planned::Decision;
use zbench_reports::record::{Outcome, Record, Status};
use zbench_reports::{Notebook, StoreError};

/// How often the notebook is looked at while others have what is left.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(200);

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

impl Summary {
    /// The exit code of what a run left behind.
    pub fn exit_code(&self) -> u8 {
        let failed = |record: &Record| {
            let Outcome { status, .. } = &record.outcome;
            let has_capacity = record.setting("memory.capacity").is_some_and(|capacity| !capacity.is_null());
            matches!(status, Status::Failed | Status::TimedOut | Status::Diverged)
                // Of a search it is what was to be found out.
                || *status == Status::OutOfMemory && !has_capacity && !record.extra.contains_key(zbench_reports::max_batch::KEY)
        };
        // Of turns nothing is measured as long as none counts.
        let is_empty = |record: &Record| match record.taken_turns() {
            Some(turns) => record.excluding_flags().next().is_some() || !turns.rows.iter().any(|row| row.counted),
            None => record.outcome.status == Status::Skipped,
        };
        if self.interrupted {
            zbench_host::exit::INTERRUPTED
        } else if self.records.iter().any(failed) {
            zbench_host::exit::FAILED
        } else if self.records.iter().all(is_empty) {
            zbench_host::exit::NOT_MEASURED
        } else {
            zbench_host::exit::SUCCESS
        }
    }
}

/// Runs cells of a suite into a notebook.
pub struct Runner<'a, S: Suite> {
    /// Where records go.
    pub notebook: &'a Notebook,
    /// Measures a cell.
    pub suite: S,
    /// Is told of progress.
    pub observe: &'a mut dyn Observe<S::Cell>,
    /// Into every record.
    pub header: Header,
}

impl<S: Suite> Runner<'_, S> {
    /// Runs what is wanted and not there yet.
    ///
    /// # Errors
    /// The notebook cannot be read or written; what was appended before stays.
    pub fn run(&mut self, cells: &[S::Cell], trials: Trials) -> Result<Summary, StoreError> {
        let here = (!self.header.any_environment).then(|| self.header.environment.clone());
        let seed = self.header.why_not_turns.as_ref().map(|_| self.header.seed);
        let mut queue =
            TrialQueue::new(&self.suite, self.notebook, cells, trials, here, !self.header.no_repeats, seed)?;
        let began = Instant::now();
        logged::grid_begins(&self.header, cells.len(), "trials");
        if matches!(trials, Trials::UpTo(_)) {
            queue.set_aside.iter().for_each(|(reason, count)| self.observe.set_aside(*count, reason));
        }
        let mut summary = Summary::default();
        let mut is_checked = false;
        loop {
            if self.header.budget.is_some_and(|budget| began.elapsed() >= budget) {
                summary.left_out += queue.leave_out_further_trials();
            }
            let (index, trial, claim) = match queue.next()? {
                Next::Over => break,
                Next::Run { index, trial, claim } => (index, trial, claim),
                Next::Wait if self.suite.is_stopped() => {
                    summary.interrupted = true;
                    break;
                }
                Next::Wait => {
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
            let _span = logged::trial(cell, trial);
            logged::trial_begins();
            self.observe.begin(cell, trial, queue.done().saturating_sub(1), queue.all);
            let (record, last) = match self.trial(cell, trial, cells, &queue.counted, &queue.references) {
                Ok(ended) => ended,
                Err(stopped) => {
                    (summary.interrupted, summary.stopped) = (true, stopped);
                    break;
                }
            };
            if let Err(error) = self.notebook.append(&record) {
                rescue::keep_and_say(&record);
                return Err(error);
            }
            drop(claim);
            logged::trial_ends(&record);
            self.observe.end(&record);
            summary.appended += 1;
            queue.add(index, record);
            if last {
                break;
            }
        }
        summary.records = queue.into_records();
        logged::grid_ends(&summary);
        Ok(summary)
    }

    /// One trial, as a record, and whether nothing can run after it.
    ///
    /// # Errors
    /// It was stopped: it is not settled, and has no record.
    pub(crate) fn trial(
        &mut self,
        cell: &S::Cell,
        number: u32,
        cells: &[S::Cell],
        known: &[Record],
        references: &[Reference],
    ) -> Result<(Record, bool), Option<Stopped>> {
        let mut record = self.blank(cell, number, jiff::Timestamp::now());
        let last = match cell.decision() {
            Decision::Record { status, reason, source } => {
                record.outcome = Outcome::ended(*status, reason.clone(), Some(*source));
                self.suite.skipped(&mut record);
                false
            }
            Decision::Run => {
                let trial =
                    Trial { cell, number, cells, known, references, notebook: self.notebook, header: &self.header };
                self.suite.measure(&trial, &mut record, self.observe)?
            }
        };
        Ok((record, last))
    }

    /// A record of this run with nothing measured yet.
    pub(crate) fn blank(&self, cell: &S::Cell, trial: u32, started: jiff::Timestamp) -> Record {
        let mut record = self.header.blank(cell.key(), cell.plain(), trial, started);
        self.suite.describe(cell, &mut record);
        record
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbench_host::exit;
    use zbench_reports::record::{TurnRow, Turns};

    #[test]
    fn turns_of_which_none_counts_are_no_measurement() {
        let mut record = Record::new("id", "key", "name", Outcome::measured());
        let row = serde_json::json!({"round": 1, "tokens": 1, "ms": [1.0], "counted": false});
        let row: TurnRow = serde_json::from_value(row).unwrap();
        record.turns = Some(Turns { rows: vec![row.clone()], ..Turns::default() });
        let skipped = Record::new("id", "key", "name", Outcome::ended(Status::Skipped, "", None));
        let code = |records: &[&Record]| {
            Summary { records: records.iter().map(|record| (*record).clone()).collect(), ..Summary::default() }
                .exit_code()
        };
        assert_eq!(code(&[&record, &skipped]), exit::NOT_MEASURED);
        let mut counted = record.clone();
        counted.turns.as_mut().unwrap().rows.push(TurnRow { counted: true, ..row });
        assert_eq!(code(&[&record, &counted]), exit::SUCCESS);
        counted.validity.push("throttled".into());
        assert_eq!(code(&[&counted]), exit::NOT_MEASURED, "its turns do not count, either");
        counted.turns = None;
        assert_eq!(code(&[&counted]), exit::SUCCESS, "a trial states losses and memory, though its times do not count");
    }
}
