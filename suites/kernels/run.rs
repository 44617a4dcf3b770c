//! Asks the questions that the notebook has no answer to: trials round robin, a record each as it ends, so that a stop
//! takes nothing away. Several commands on one notebook share the work by claims, as the runner of training cells does.

use super::clock::{Limits, Stopped};
use super::resolve::BenchCell;
use super::{BenchError, Question, record};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use zbench_reports::environment::why_not_the_same;
use zbench_reports::record::{Outcome, Record, Source, Status};
use zbench_reports::store::{Claim, Tail};
use zbench_reports::{Notebook, StoreError};
use zbench_runner::record::{emulated_device, fallbacks};
use zbench_runner::{Header, Summary, Trials, rescue};

/// How often the notebook is looked at while others have what is left.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// A run into a notebook.
pub struct Run<'a> {
    /// Where records go.
    pub notebook: &'a Notebook,
    /// Set by Ctrl-C.
    pub stop: &'a AtomicBool,
    /// Time limit of a trial.
    pub timeout: Duration,
    /// Into every record.
    pub header: Header,
    /// Told of each record, how many are done and how many there are.
    pub told: &'a mut dyn FnMut(&Record, &BenchCell, usize, usize),
}

/// What the notebook says of the cells.
struct Known<'a> {
    tail: Tail,
    cells: &'a [BenchCell],
    /// The newest record that settles a trial.
    settled: BTreeMap<(usize, u32), Record>,
    /// The largest number of a trial of each cell.
    largest: Vec<u32>,
}

impl Known<'_> {
    fn read(&mut self, counts: impl Fn(&Record) -> bool) -> Result<(), StoreError> {
        for record in self.tail.news()? {
            let Some(index) = self.cells.iter().position(|cell| cell.key == record.key) else { continue };
            self.largest[index] = self.largest[index].max(record.trial);
            if counts(&record) && is_final(&record, &self.cells[index]) {
                self.settled.insert((index, record.trial), record);
            }
        }
        Ok(())
    }
}

/// Whether a record settles its trial: what failed is tried again, and a cell that can now be asked is not settled by an
/// earlier skip.
fn is_final(record: &Record, cell: &BenchCell) -> bool {
    match &cell.question {
        Ok(_) => record.is_measured(),
        Err((reason, _)) => record.outcome.status == Status::Skipped && record.outcome.reason == *reason,
    }
}

impl Run<'_> {
    /// Runs what is wanted and not there yet.
    ///
    /// # Errors
    /// The notebook cannot be read or written; what was appended before stays.
    pub fn run(&mut self, cells: &[BenchCell], trials: Trials) -> Result<Summary, StoreError> {
        let here = (!self.header.any_environment).then(|| self.header.environment.clone());
        let counts = move |record: &Record| {
            // What was not run depends on no machine but through its reason, which is compared.
            let was_run = record.outcome.status != Status::Skipped;
            let same = here.as_ref().filter(|_| was_run).and_then(|here| why_not_the_same(&record.environment, here));
            matches!(trials, Trials::UpTo(_)) && same.is_none()
        };
        let largest = vec![0; cells.len()];
        let mut known = Known { tail: self.notebook.tail(), cells, settled: BTreeMap::new(), largest };
        known.read(&counts)?;
        let mut pending = schedule(cells, trials, &known.largest);
        let (all, mut summary) = (pending.len(), Summary::default());
        let mut made: BTreeMap<(usize, u32), Record> = BTreeMap::new();
        // A cell that failed gets no further trials in this run.
        let mut over = BTreeSet::new();
        let (mut finished, mut is_checked) = (0, false);
        while !pending.is_empty() {
            let mut others = Vec::new();
            let before = pending.len();
            for (index, trial) in pending {
                if self.stop.load(Ordering::Relaxed) {
                    summary.interrupted = true;
                    break;
                }
                let Some((trial, claim)) = self.claim(&mut known, &counts, trials, index, trial)? else {
                    others.push((index, trial));
                    continue;
                };
                if known.settled.contains_key(&(index, trial)) || over.contains(&index) {
                    finished += 1;
                    continue;
                }
                if !is_checked {
                    self.notebook.check_writable()?;
                    is_checked = true;
                }
                let Some(record) = self.trial(&cells[index], trial) else {
                    summary.interrupted = true;
                    break;
                };
                if let Err(error) = self.notebook.append(&record) {
                    rescue::keep_and_say(&record);
                    return Err(error);
                }
                drop(claim);
                summary.appended += 1;
                finished += 1;
                (self.told)(&record, &cells[index], finished, all);
                if !record.is_measured() {
                    over.insert(index);
                }
                made.insert((index, trial), record);
            }
            if summary.interrupted {
                break;
            }
            // Others may end without a record: what they had is looked at again.
            if others.len() == before {
                std::thread::sleep(LOOK_AGAIN);
            }
            pending = others;
        }
        known.settled.extend(made);
        summary.records = in_order(known.settled, trials);
        Ok(summary)
    }

    /// Whose turn a trial is: nothing where others have it; the number it has, which others may have changed.
    fn claim(
        &self,
        known: &mut Known<'_>,
        counts: &impl Fn(&Record) -> bool,
        trials: Trials,
        index: usize,
        trial: u32,
    ) -> Result<Option<(u32, Option<Claim>)>, StoreError> {
        let key = &known.cells[index].key;
        match trials {
            Trials::Fresh(_) => Ok(Some((trial, None))),
            Trials::UpTo(_) => {
                known.read(counts)?;
                if known.settled.contains_key(&(index, trial)) {
                    return Ok(Some((trial, None)));
                }
                let Some(claim) = self.notebook.claim(key, trial)? else { return Ok(None) };
                // Its last owner may have made the record between our look and our claim.
                known.read(counts)?;
                Ok(Some((trial, Some(claim))))
            }
            Trials::OneMore => {
                let mut trial = trial;
                loop {
                    let claim = self.notebook.claim(key, trial)?;
                    known.read(counts)?;
                    let largest = known.largest[index];
                    if claim.is_some() && trial > largest {
                        return Ok(Some((trial, claim)));
                    }
                    trial = trial.saturating_add(1).max(largest.saturating_add(1));
                }
            }
        }
    }

    /// One trial as a record; nothing when it was stopped.
    fn trial(&self, cell: &BenchCell, trial: u32) -> Option<Record> {
        let blank = |outcome| record::blank(&self.header, &cell.key, cell.cell.clone(), trial, outcome);
        match &cell.question {
            Err((reason, source)) => Some(blank(Outcome::ended(Status::Skipped, reason.clone(), Some(*source)))),
            Ok(question) => {
                let mut record = blank(Outcome::measured());
                self.ask(question, &mut record)?;
                Some(record)
            }
        }
    }

    fn ask(&self, question: &Question, record: &mut Record) -> Option<()> {
        let limits = Limits { stop: self.stop, deadline: Instant::now() + self.timeout };
        // A kernel that panics fails its cell, not the others.
        let asked = || {
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| question.ask(&limits, self.notebook.directory())))
        };
        let (answer, sampled) =
            record::watched(usize::from(question.is_on_cuda() && !zbench_host::devices::on_host()), asked);
        let answer = answer.unwrap_or_else(|panic| {
            let words = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
            Err(BenchError::Panicked(words.unwrap_or("without words").into()))
        });
        let (status, source) = match &answer {
            Err(BenchError::Stopped(Stopped::Asked)) => return None,
            Err(BenchError::Stopped(Stopped::Late)) => (Status::TimedOut, Some(Source::Host)),
            Err(BenchError::Memory(_)) => (Status::OutOfMemory, Some(Source::Arena)),
            Err(BenchError::Busy { .. }) => (Status::OutOfMemory, Some(Source::Host)),
            Err(BenchError::Ended(ended)) => (ended.status, ended.source),
            _ => (Status::Failed, None),
        };
        match answer {
            Ok(answer) => record::answered(record, &answer),
            Err(error) => record.outcome = Outcome::ended(status, error.to_string(), source),
        }
        record::seen(record, &sampled);
        if let (true, Some(gpu)) = (question.is_on_cuda(), zbench_host::devices::gpu(0)) {
            let all: Vec<String> = gpu.take_fallbacks().iter().map(zbench_host::devices::fallback).collect();
            if !all.is_empty() {
                record.extra.insert("gpu".into(), serde_json::json!({ "fallbacks": all }));
            }
            fallbacks(record, &all);
        }
        if question.is_on_cuda() && zbench_host::devices::on_host() {
            emulated_device(record);
        }
        Some(())
    }
}

/// All cells' first trial, then the second, and so on. What cannot be asked needs one record.
fn schedule(cells: &[BenchCell], trials: Trials, largest: &[u32]) -> Vec<(usize, u32)> {
    let wanted = |index: usize| -> Vec<u32> {
        match (trials, &cells[index].question) {
            (Trials::UpTo(count) | Trials::Fresh(count), Ok(_)) => (1..=count).collect(),
            (Trials::UpTo(_) | Trials::Fresh(_), Err(_)) => vec![1],
            (Trials::OneMore, _) => vec![largest[index].saturating_add(1)],
        }
    };
    let wanted: Vec<Vec<u32>> = (0..cells.len()).map(wanted).collect();
    let rounds = wanted.iter().map(Vec::len).max().unwrap_or(0);
    let round = |round: usize| {
        let wanted = &wanted;
        (0..cells.len()).filter_map(move |index| Some((index, *wanted[index].get(round)?)))
    };
    (0..rounds).flat_map(round).collect()
}

/// The wanted trials of each cell, in the order of the cells.
fn in_order(records: BTreeMap<(usize, u32), Record>, trials: Trials) -> Vec<Record> {
    let is_wanted = |trial: u32| match trials {
        Trials::UpTo(count) | Trials::Fresh(count) => trial <= count,
        Trials::OneMore => true,
    };
    records.into_iter().filter(|((_, trial), _)| is_wanted(*trial)).map(|(_, record)| record).collect()
}
