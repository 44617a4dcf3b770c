//! Which cells are resident together.

use zbench_predict::planned::{Decision, Planned};
use zbench_reports::record::Record;

/// All resident cells together may take this share of the memory that is available.
pub const MOST_MEMORY: f64 = 0.6;
/// What a process takes beside the arena of its rank: program, stacks, text.
const PROCESS_BYTES: u64 = 32 << 20;

/// A cell that runs, and what its processes take while they are resident.
#[derive(Clone, Debug, PartialEq)]
pub struct Size {
    /// Its place among all cells.
    pub index: usize,
    /// All its ranks together.
    pub bytes: u64,
}

/// The cells that run.
pub fn sizes(cells: &[Planned]) -> Vec<Size> {
    let running = (0..cells.len()).filter(|index| cells[*index].decision == Decision::Run);
    running.map(|index| Size { index, bytes: resident_bytes(&cells[index]) }).collect()
}

fn resident_bytes(planned: &Planned) -> u64 {
    let ranks = planned.cell().map_or(1, |cell| cell.parallel.ranks);
    let all = planned.estimate.as_ref().map_or(0, |estimate| estimate.ram_bytes_of(ranks));
    all.saturating_add((ranks as u64 + 1) * PROCESS_BYTES)
}

/// Batches of an experiment that was begun earlier.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Earlier {
    /// The cells of each.
    pub batches: Vec<Vec<usize>>,
    /// The last was stopped before all its cells had a record: it may take more.
    pub is_open: bool,
}

impl Earlier {
    /// The batches that records of one experiment show: whatever memory there is now, cells stay with those that they were compared with.
    pub fn of(records: &[Record], cells: &[Planned], reference: usize) -> Earlier {
        let turns = || records.iter().filter_map(|record| Some((record, record.turns.as_ref()?)));
        let Some(last) = turns().map(|(_, turns)| turns.batch).max() else { return Earlier::default() };
        let has = |index: &usize, batch: u32| {
            turns().any(|(record, turns)| turns.batch == batch && record.key == cells[*index].grid.key)
        };
        let of_batch = |batch: u32| {
            let others = (0..cells.len()).filter(|index| *index != reference && has(index, batch));
            std::iter::once(reference).chain(others).collect()
        };
        let mut of_last = turns().map(|(_, turns)| turns).filter(|turns| turns.batch == last);
        let is_open = of_last.all(|turns| turns.generation == 1 && turns.stopped.as_deref() == Some("interrupted"));
        Earlier { batches: (0..=last).map(of_batch).collect(), is_open }
    }
}

/// Cells that fit into memory together. Each batch begins with the reference and has room for its twin. Batches of earlier stay, and
/// cells that are in none of them follow.
///
/// # Errors
/// The index and the bytes of a cell that does not fit beside the reference and its twin, with what these three take.
pub fn batches(
    sizes: &[Size],
    reference: usize,
    available: u64,
    earlier: Earlier,
) -> Result<Vec<Vec<usize>>, (usize, u64)> {
    let most = (available as f64 * MOST_MEMORY) as u64;
    let bytes = |index: &usize| sizes.iter().find(|cell| cell.index == *index).map_or(0, |cell| cell.bytes);
    // The reference and its twin are in every batch.
    let always = bytes(&reference).saturating_mul(2);
    let Earlier { mut batches, is_open } = earlier;
    let last = batches.last().filter(|_| is_open);
    let taken = |batch: &Vec<usize>| batch.iter().filter(|index| **index != reference).map(bytes).sum();
    let mut used = last.map_or(u64::MAX, |batch| always.saturating_add(taken(batch)));
    let is_new = |index: usize| index != reference && !batches.iter().flatten().any(|other| *other == index);
    let new: Vec<&Size> = sizes.iter().filter(|cell| is_new(cell.index)).collect();
    for Size { index, bytes } in new {
        let alone = always.saturating_add(*bytes);
        if alone > most {
            return Err((*index, alone));
        }
        match batches.last_mut().filter(|_| used.saturating_add(*bytes) <= most) {
            Some(batch) => {
                used += bytes;
                batch.push(*index);
            }
            None => {
                used = alone;
                batches.push(vec![reference, *index]);
            }
        }
    }
    Ok(batches)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn cells(gib: &[u64]) -> Vec<Size> {
        gib.iter().enumerate().map(|(index, gib)| Size { index, bytes: gib * GIB }).collect()
    }

    fn in_batches(gib: &[u64], available: u64) -> Result<Vec<Vec<usize>>, (usize, u64)> {
        batches(&cells(gib), 0, available * GIB, Earlier::default())
    }

    #[test]
    fn a_batch_takes_sixty_percent_of_the_memory_and_no_more() {
        // Reference and twin take 2, the others 3: five of 10 are 50 %.
        assert_eq!(in_batches(&[1, 1, 1, 1], 10), Ok(vec![vec![0, 1, 2, 3]]));
        assert_eq!(in_batches(&[1, 1, 1, 1, 1], 10), Ok(vec![vec![0, 1, 2, 3, 4]]), "six of 10 are 60 %");
        assert_eq!(in_batches(&[1, 1, 1, 1, 1, 1], 10), Ok(vec![vec![0, 1, 2, 3, 4], vec![0, 5]]));
        assert_eq!(in_batches(&[1, 1, 1, 1], 5), Ok(vec![vec![0, 1], vec![0, 2], vec![0, 3]]));
        // A large cell ends a batch, and small ones behind it stay in order.
        assert_eq!(in_batches(&[1, 4, 1, 4], 10), Ok(vec![vec![0, 1], vec![0, 2], vec![0, 3]]));
        assert_eq!(in_batches(&[1, 1], u64::MAX / GIB), Ok(vec![vec![0, 1]]));
    }

    #[test]
    fn every_cell_is_in_one_batch_and_the_reference_in_all() {
        for available in 1..60 {
            for reference in [0, 2] {
                let cells = cells(&[2, 1, 3, 2, 5, 1, 1, 4]);
                let Ok(batches) = batches(&cells, reference, available * GIB, Earlier::default()) else {
                    // Twice the reference and the largest, above 60 %.
                    let most = available * 6 / 10;
                    assert!(2 * cells[reference].bytes / GIB + 5 > most, "{available}");
                    continue;
                };
                let mut all: Vec<usize> = batches.iter().flat_map(|batch| &batch[1..]).copied().collect();
                all.sort_unstable();
                let others: Vec<usize> = (0..8).filter(|index| *index != reference).collect();
                assert_eq!(all, others);
                for batch in &batches {
                    assert_eq!(batch[0], reference);
                    let bytes: u64 = batch.iter().map(|index| cells[*index].bytes).sum();
                    assert!(10 * (bytes + cells[reference].bytes) <= 6 * available * GIB, "{available}: {batch:?}");
                }
            }
        }
    }

    #[test]
    fn a_cell_that_does_not_fit_beside_reference_and_twin_is_told() {
        assert_eq!(in_batches(&[1, 1, 5], 10), Err((2, 7 * GIB)));
        assert_eq!(in_batches(&[4, 1], 10), Err((1, 9 * GIB)));
    }

    #[test]
    fn earlier_batches_stay_whatever_memory_there_is_now() {
        let earlier = Earlier { batches: vec![vec![0, 1], vec![0, 2]], is_open: false };
        let of = |available: u64, is_open: bool| {
            batches(&cells(&[1, 1, 1, 1, 1]), 0, available * GIB, Earlier { is_open, ..earlier.clone() })
        };
        assert_eq!(of(100, false), Ok(vec![vec![0, 1], vec![0, 2], vec![0, 3, 4]]));
        assert_eq!(of(100, true), Ok(vec![vec![0, 1], vec![0, 2, 3, 4]]));
        assert_eq!(of(5, true), Ok(vec![vec![0, 1], vec![0, 2], vec![0, 3], vec![0, 4]]));
    }
}
