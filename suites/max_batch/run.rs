//! A search by run: the limits and what comes after them are run, and where a limit does not fit in spite of its plan
//! smaller values are run until one does.

use super::{LimitSearch, MaxBatchSearch};
use anyhow::Result;
use std::collections::HashMap;
use zbench_predict::planned::{self, Planned};
use zbench_reports::max_batch::{Next, Of, Role, Search};
use zbench_reports::record::{Record, Status};
use zbench_runner::Summary;

/// Runs the cells of searches, the limits first, by `run`, and smaller ones as long as a limit is out of memory.
///
/// # Errors
/// Those of `run`.
pub fn carry_out(
    limits: &mut MaxBatchSearch,
    cells: &[Planned],
    run: &mut dyn FnMut(&[Planned]) -> Result<Summary>,
) -> Result<Summary> {
    let mut summary = run(cells)?;
    let mut recorded: HashMap<String, Search> = HashMap::new();
    let mut remember = |cells: &[Planned]| {
        let of = |cell: &Planned| Some((cell.grid.key.clone(), cell.search.as_deref()?.clone()));
        recorded.extend(cells.iter().filter_map(of));
    };
    remember(cells);
    while !summary.interrupted {
        let lower = limits.lower(&summary.records);
        if lower.is_empty() {
            break;
        }
        remember(&lower);
        let more = run(&lower)?;
        summary.records.extend(more.records);
        summary.appended += more.appended;
        summary.interrupted = more.interrupted;
    }
    complete(&mut summary.records, &recorded);
    Ok(summary)
}

impl MaxBatchSearch {
    /// Cells between what has run and what was out of memory, one for each search whose limit did not fit.
    fn lower(&mut self, records: &[Record]) -> Vec<Planned> {
        let mut cells = Vec::new();
        for index in 0..self.searches.len() {
            let Some((place, next)) = self.searches[index].step(records) else { continue };
            let (settings, label) = (self.searches[index].settings.clone(), self.searches[index].label.clone());
            let value = self.searches[index].candidates.at(place);
            let cell = self.at(&settings, &label, value);
            let weight = cell.resolved.as_ref().ok().map(|resolved| planned::weigh(&self.planner, resolved));
            let search = &mut self.searches[index];
            search.place = Some(place);
            search.recorded.value = Some(value as u64);
            search.recorded.of = Of::Run;
            search.recorded.bytes = weight.and_then(|weight| Some(weight.footprint?.total));
            search.recorded.next = Some(next);
            cells.push(super::planned(&self.planner, search, cell));
        }
        cells
    }
}

impl LimitSearch {
    /// The next place to run, and the value above it that did not fit; nothing when the largest is known.
    fn step(&mut self, records: &[Record]) -> Option<(usize, Next)> {
        let place = self.place?;
        let record = records.iter().rev().find(|record| record.key == self.key)?;
        match record.outcome.status {
            Status::Measured => self.ran = Some(place),
            Status::OutOfMemory => {
                let next = Next {
                    value: self.candidates.at(place) as u64,
                    bytes: self.recorded.bytes,
                    outcome: Some(Status::OutOfMemory.name().into()),
                    reason: record.outcome.reason.clone(),
                };
                self.refused = Some((place, next));
            }
            // Other outcomes tell nothing about memory.
            _ => return None,
        }
        let (above, next) = self.refused.clone()?;
        let below = self.ran.map_or(0, |ran| ran + 1);
        (below < above).then(|| (below + (above - below) / 2, next))
    }
}

/// Adds searches to records that were made before them, and the outcome of the next value to its limit.
fn complete(records: &mut [Record], recorded: &HashMap<String, Search>) {
    for record in records.iter_mut() {
        if let (None, Some(search)) = (Search::of(record), recorded.get(&record.key)) {
            search.put(record);
        }
    }
    let next: HashMap<String, (String, String)> = records
        .iter()
        .filter_map(|record| Some((Search::of(record)?, record)))
        .filter(|(search, _)| search.role == Role::Next)
        .map(|(search, record)| {
            (search.combination, (record.outcome.status.name().to_string(), record.outcome.reason.clone()))
        })
        .collect();
    for record in records.iter_mut() {
        let Some(mut search) = Search::of(record).filter(|search| search.role == Role::Limit) else { continue };
        if let (Some(next), Some((outcome, reason))) = (&mut search.next, next.get(&search.combination))
            && next.outcome.is_none()
        {
            (next.outcome, next.reason) = (Some(outcome.clone()), reason.clone());
            search.put(record);
        }
    }
}
