//! Which trial is next, when the notebook may already hold it and other processes may be at work on the same one.
//!
//! A trial is claimed before it is measured, and the notebook is read again once it is: so two commands on one notebook
//! share the work, and no trial is measured twice. What another process has claimed is waited for, as that process may
//! end without a record.

use crate::parity::Reference;
use crate::suite::{Suite, SuiteCell};
use crate::validity;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use zbench_predict::planned::Decision;
use zbench_reports::gate::random::Random;
use zbench_reports::record::{Record, Source, Status};
use zbench_reports::store::{Claim, Tail};
use zbench_reports::{IndexEntry, Notebook, StoreError};

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

/// What is to be done.
pub(super) enum Next {
    /// This trial of this cell, which is ours.
    Run { index: usize, trial: u32, claim: Option<Claim> },
    /// Others have what is left.
    Wait,
    /// Nothing.
    Over,
}

/// The trials of a run, and what the notebook says of them.
pub(super) struct TrialQueue<'a, C> {
    notebook: &'a Notebook,
    cells: &'a [C],
    trials: Trials,
    tail: Tail,
    /// The environment that records must have been made in; absent when any will do.
    here: Option<Map<String, Value>>,
    index_of: HashMap<&'a str, usize>,
    pending: Vec<(usize, u32)>,
    /// Trials that a record settles.
    done: HashSet<(usize, u32)>,
    /// Whether flagged trials are repeated.
    repeats: bool,
    /// Trials whose newest record is flagged for what the machine did, so that another is wanted.
    flagged: HashSet<(usize, u32)>,
    /// Cells that get no further trials in this run.
    over: BTreeSet<usize>,
    /// The largest number of a trial of each cell, whoever made it.
    largest: HashMap<usize, u32>,
    /// Records of the cells that count, oldest first; of those that were there before only what [`TrialQueue::needed`] says.
    pub(super) counted: Vec<Record>,
    /// Trials of each cell that were asked for, and those that repeat flagged ones.
    wanted: Vec<Vec<u32>>,
    /// How many trials of each cell were asked for.
    asked: Vec<usize>,
    /// How many trials are wanted in all.
    pub(super) all: usize,
    /// Why records that are there do not count, and how many.
    pub(super) set_aside: BTreeMap<String, usize>,
    /// Measured ddp cells, whoever made them.
    pub(super) references: Vec<Reference>,
    /// The cell with whose losses each one's are compared.
    reference_of: Vec<Option<usize>>,
}

impl<'a, C: SuiteCell> TrialQueue<'a, C> {
    /// Reads the notebook. `here` is the environment that records must have been made in. `repeats`: flagged trials are
    /// repeated. `seed`: the order of trials is random.
    pub(super) fn new<S: Suite<Cell = C>>(
        suite: &S,
        notebook: &'a Notebook,
        cells: &'a [C],
        trials: Trials,
        here: Option<Map<String, Value>>,
        repeats: bool,
        seed: Option<u64>,
    ) -> Result<Self, StoreError> {
        let index = notebook.index()?;
        let wanted: Vec<Vec<u32>> = cells.iter().map(|cell| wanted(cell, trials, &index.records)).collect();
        let pending = schedule(cells, &wanted, seed);
        let mut queue = TrialQueue {
            notebook,
            cells,
            trials,
            tail: notebook.tail(&index),
            here,
            index_of: cells.iter().enumerate().map(|(index, cell)| (cell.key(), index)).collect(),
            all: pending.len(),
            asked: wanted.iter().map(Vec::len).collect(),
            pending,
            done: HashSet::new(),
            repeats,
            flagged: HashSet::new(),
            over: BTreeSet::new(),
            largest: HashMap::new(),
            counted: Vec::new(),
            wanted,
            set_aside: BTreeMap::new(),
            references: suite.references(&index),
            reference_of: suite.references_of(cells),
        };
        // Many records were made in the same environment.
        let mut reasons: HashMap<(*const Value, bool), Option<String>> = HashMap::new();
        let mut counted: Vec<(usize, &IndexEntry)> = Vec::new();
        for record in &index.records {
            let Some(&cell) = queue.index_of.get(record.key.as_str()) else { continue };
            queue.note_trial(&record.key, record.trial);
            let environment = (Arc::as_ptr(&record.environment), record.status == Status::Skipped);
            match reasons.entry(environment).or_insert_with(|| queue.why_not(record)) {
                None => {
                    queue.count(record);
                    counted.push((cell, record));
                }
                Some(reason) if queue.wanted[cell].contains(&record.trial) && is_final(record, &cells[cell]) => {
                    *queue.set_aside.entry(reason.clone()).or_default() += 1;
                }
                Some(_) => {}
            }
        }
        queue.counted = notebook.whole(queue.needed(&counted))?;
        Ok(queue)
    }

    /// Selects the records that this run may ask for later: the last of each cell, its first and last measured ones, and the last of
    /// each wanted trial. Keeps their order.
    fn needed<'s>(&self, counted: &[(usize, &'s IndexEntry)]) -> Vec<&'s IndexEntry> {
        let mut first: HashMap<usize, usize> = HashMap::new();
        let mut last: HashMap<(usize, bool, Option<u32>), usize> = HashMap::new();
        for (place, (cell, record)) in counted.iter().enumerate() {
            last.insert((*cell, false, None), place);
            if record.is_measured() {
                first.entry(*cell).or_insert(place);
                last.insert((*cell, true, None), place);
            }
            if self.wanted[*cell].contains(&record.trial) {
                last.insert((*cell, false, Some(record.trial)), place);
            }
        }
        let places: BTreeSet<usize> = first.into_values().chain(last.into_values()).collect();
        places.into_iter().map(|place| counted[place].1).collect()
    }

    /// Trials that are no more to be done.
    pub(super) fn done(&self) -> usize {
        self.all - self.pending.len()
    }

    /// Drops the trials of cells that have a record, and returns how many.
    pub(super) fn leave_out_further_trials(&mut self) -> usize {
        let before = self.pending.len();
        let (cells, counted) = (self.cells, &self.counted);
        let has_record = |index: usize| counted.iter().any(|record| record.key == cells[index].key());
        self.pending.retain(|(index, _)| !has_record(*index));
        let left_out = before - self.pending.len();
        self.all -= left_out;
        left_out
    }

    /// The next trial that is neither done nor somebody else's.
    pub(super) fn next(&mut self) -> Result<Next, StoreError> {
        self.catch_up()?;
        self.forget_done();
        let mut place = 0;
        while let Some(&(index, trial)) = self.pending.get(place) {
            if !self.reference_is_under_way(index) {
                match self.take(index, trial)? {
                    Claimed::Ours(trial, claim) => {
                        self.pending.remove(place);
                        return Ok(Next::Run { index, trial, claim });
                    }
                    Claimed::Done => {
                        self.pending.remove(place);
                        continue;
                    }
                    Claimed::Others => {}
                }
            }
            place += 1;
        }
        Ok(if self.pending.is_empty() { Next::Over } else { Next::Wait })
    }

    /// A record of this run.
    pub(super) fn add(&mut self, index: usize, record: Record) {
        if !record.is_measured() {
            self.over.insert(index);
        }
        self.done.insert((index, record.trial));
        self.note_trial(&record.key, record.trial);
        self.repeat_flagged(index, &IndexEntry::of(&record));
        self.counted.push(record);
    }

    /// The newest record of each wanted trial, in the order of cells and trials.
    pub(super) fn into_records(self) -> Vec<Record> {
        let mut by_trial: BTreeMap<(String, u32), Record> = BTreeMap::new();
        for record in self.counted {
            by_trial.insert((record.key.clone(), record.trial), record);
        }
        let wanted = self.cells.iter().zip(&self.wanted);
        let pairs = wanted.flat_map(|(cell, trials)| trials.iter().map(|trial| (cell.key().to_string(), *trial)));
        pairs.filter_map(|pair| by_trial.remove(&pair)).collect()
    }

    fn take(&mut self, index: usize, trial: u32) -> Result<Claimed, StoreError> {
        let key = self.cells[index].key();
        match self.trials {
            // Every one of several such runs measures everything.
            Trials::Fresh(_) => Ok(Claimed::Ours(trial, None)),
            Trials::UpTo(_) => {
                let Some(claim) = self.notebook.claim(key, trial)? else { return Ok(Claimed::Others) };
                // Its last owner may have made the record between our look and our claim.
                self.catch_up()?;
                let is_done = self.done.contains(&(index, trial)) || self.over.contains(&index);
                Ok(if is_done { Claimed::Done } else { Claimed::Ours(trial, Some(claim)) })
            }
            Trials::OneMore => {
                let mut trial = trial;
                loop {
                    let claim = self.notebook.claim(key, trial)?;
                    self.catch_up()?;
                    let largest = self.largest.get(&index).copied().unwrap_or(0);
                    if claim.is_some() && trial > largest {
                        self.wanted[index] = vec![trial];
                        return Ok(Claimed::Ours(trial, claim));
                    }
                    // Others run it too, and have this number.
                    trial = trial.saturating_add(1).max(largest.saturating_add(1));
                }
            }
        }
    }

    /// Takes in what others have added.
    fn catch_up(&mut self) -> Result<(), StoreError> {
        for record in self.tail.news()? {
            let Some(&index) = self.index_of.get(record.key.as_str()) else { continue };
            self.note_trial(&record.key, record.trial);
            let is_ours = self.counted.iter().rev().any(|known| known.id == record.id);
            let summary = IndexEntry::of(&record);
            if is_ours || self.why_not(&summary).is_some() {
                continue;
            }
            if !record.is_measured() && *self.cells[index].decision() == Decision::Run {
                // As for our own: the next run tries it again, and not this one.
                self.over.insert(index);
            }
            self.count(&summary);
            self.counted.push(record);
        }
        Ok(())
    }

    fn count(&mut self, record: &IndexEntry) {
        if let Some(&index) = self.index_of.get(record.key.as_str()) {
            if is_final(record, &self.cells[index]) {
                self.done.insert((index, record.trial));
            }
            self.repeat_flagged(index, record);
        }
    }

    /// For each wanted trial whose newest record is flagged one more is wanted, until as many are valid as were asked for, and
    /// at most twice as many trials as were asked for.
    fn repeat_flagged(&mut self, index: usize, newest: &IndexEntry) {
        match validity::is_worth_repeating(newest) {
            true => self.flagged.insert((index, newest.trial)),
            false => self.flagged.remove(&(index, newest.trial)),
        };
        // What is asked for once shows that it does not fit, or is one more by the user's wish.
        let cell = &self.cells[index];
        if !self.repeats || self.trials == Trials::OneMore || cell.runs_once() {
            return;
        }
        let asked = self.asked[index];
        while self.wanted[index].len() < 2 * asked {
            let flagged = self.wanted[index].iter().filter(|trial| self.flagged.contains(&(index, **trial))).count();
            if self.wanted[index].len() >= asked + flagged {
                return;
            }
            // Trials are numbered from 1, without gaps.
            let trial = self.wanted[index].len() as u32 + 1;
            self.wanted[index].push(trial);
            self.pending.push((index, trial));
            self.all += 1;
        }
    }

    fn note_trial(&mut self, key: &str, trial: u32) {
        if let Some(&index) = self.index_of.get(key) {
            let largest = self.largest.entry(index).or_default();
            *largest = trial.max(*largest);
        }
    }

    /// Why a record settles nothing here.
    fn why_not(&self, record: &IndexEntry) -> Option<String> {
        if !matches!(self.trials, Trials::UpTo(_)) {
            return Some("every trial is measured again".into());
        }
        // What was not run depends on no machine that it was not run on, but on its reason, which is compared.
        let was_run = !matches!(record.status, Status::Skipped);
        self.here.as_ref().filter(|_| was_run).and_then(|here| record.why_not_the_same(here))
    }

    fn forget_done(&mut self) {
        let (done, over) = (&self.done, &self.over);
        self.pending.retain(|(index, trial)| !done.contains(&(*index, *trial)) && !over.contains(index));
    }

    /// Whether the cell that this one's losses are compared with is just being measured by another process: it comes
    /// earlier in the schedule, so it would be ours otherwise.
    fn reference_is_under_way(&self, index: usize) -> bool {
        let Some(reference) = self.reference_of[index].filter(|reference| *reference != index) else { return false };
        let key = self.cells[reference].key();
        self.pending.iter().any(|(other, _)| *other == reference)
            && !self.counted.iter().any(|record| record.key == key && record.is_measured())
    }
}

enum Claimed {
    Ours(u32, Option<Claim>),
    Others,
    Done,
}

/// Whether a record settles its trial: failures and time-outs are tried again by the next run, and a cell that now runs
/// is not settled by an earlier skip.
fn is_final<C: SuiteCell>(record: &IndexEntry, cell: &C) -> bool {
    match (cell.decision(), record.status) {
        (Decision::Run, Status::Measured | Status::Diverged) => true,
        (Decision::Run, Status::OutOfMemory) => record.source == Some(Source::Arena),
        (Decision::Run, _) => false,
        (Decision::Record { status, reason, .. }, found) => *status == found && *reason == record.reason,
    }
}

/// The trials of a cell that are wanted. What does not run needs one record.
fn wanted<C: SuiteCell>(cell: &C, trials: Trials, known: &[IndexEntry]) -> Vec<u32> {
    match trials {
        Trials::UpTo(count) | Trials::Fresh(count) => (1..=if cell.runs_once() { 1 } else { count }).collect(),
        Trials::OneMore => {
            let last = known.iter().filter(|record| record.key == cell.key()).map(|record| record.trial).max();
            vec![last.unwrap_or(0).saturating_add(1)]
        }
    }
}

/// Rounds of trials, each with one trial of every cell. References come first, because the losses of other cells are compared with
/// theirs. With a seed, the order is random in every round, and references come first in the first round only.
fn schedule<C: SuiteCell>(cells: &[C], wanted: &[Vec<u32>], seed: Option<u64>) -> Vec<(usize, u32)> {
    let rounds = wanted.iter().map(Vec::len).max().unwrap_or(0);
    let is_reference = |index: &usize| cells[*index].comes_first();
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
