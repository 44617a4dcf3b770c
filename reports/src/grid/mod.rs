//! Records gathered into cells: what is used, what is ranked, and why the rest is not.

pub(crate) mod cell;
pub(crate) mod labels;

use std::collections::HashMap;

use serde_json::Value;

use crate::evidence;
use crate::gather::grouped;
use crate::max_batch;
use crate::record::{Record, Verdict};
use crate::stats::{self, Interval, Place};
use crate::turns_analysis::TurnsAnalysis;
pub use cell::Kind;
pub(crate) use cell::{Cell, groups};
use labels::Axes;

/// Why a cell of trials has no rank among cells that took turns.
const NO_TURNS: &str = "measured by trials, and not by turns as others";

/// The cells of a report and the keys in which they differ.
#[derive(Debug)]
pub struct Grid<'a> {
    /// The ranked cells by their medians, the fastest first; then the unranked ones in the order of their records.
    pub cells: Vec<Cell<'a>>,
    /// The keys in which cells differ; their values are in the order of `cells`.
    pub axes: Axes,
    /// The evidence from turns, where cells took some.
    pub turned: Option<TurnsAnalysis<'a>>,
    /// Keys whose values were found by a search and are not needed to distinguish cells.
    pub searched: Vec<String>,
    /// Places of cells by their key and by the ids of their records.
    index: HashMap<&'a str, usize>,
    id_length: usize,
    key_length: usize,
}

impl<'a> Grid<'a> {
    /// Gathers records by key, in the order in which keys first occur, and ranks the cells.
    pub fn new(records: &[&'a Record]) -> Self {
        let trials = grouped(records.iter().map(|&record| (&record.key, record)));
        let mut cells: Vec<Cell> = trials.into_iter().map(|(_, trials)| Cell::new(trials)).collect();
        let turned = turned(records, &cells);
        match &turned {
            Some(turned) => rank_by_turns(&mut cells, turned),
            None => rank_by_trials(&mut cells),
        }

        let first: Vec<&Record> = cells.iter().map(|cell| cell.trials[0]).collect();
        let settings: Vec<&Value> = first.iter().map(|record| &record.cell).collect();
        let mut searched = max_batch::keys(records);
        let axes = labels::axes_but(&first, &searched);
        searched.retain(|key| axes.dependent.iter().any(|axis| axis.path == *key));
        let keys: Vec<&str> = cells.iter().map(|cell| cell.key).collect();
        let fallback = cells.first().map_or("", |cell| labels::fallback(cell.record()));
        let labels = labels::labels(&axes, &settings, &keys, fallback);
        for ((cell, short), label) in cells.iter_mut().zip(labels::short(&axes, &labels)).zip(&labels) {
            cell.label = format!("{label}{}", cell.marks());
            cell.short = short;
        }
        let id_length = labels::telling_length(records.iter().map(|record| record.id.as_str()));
        let key_length = labels::telling_length(keys.iter().copied());
        let mut index: HashMap<&str, usize> = HashMap::new();
        for (place, cell) in cells.iter().enumerate() {
            for trial in cell.trials.iter().chain(&cell.twins) {
                index.entry(&trial.id).or_insert(place);
            }
        }
        // Keys take precedence over ids that are equal to them.
        index.extend(cells.iter().enumerate().map(|(place, cell)| (cell.key, place)));
        Self { cells, axes, turned, searched, index, id_length, key_length }
    }

    /// The beginning of a record's id that is unique here.
    pub fn short_id<'i>(&self, id: &'i str) -> &'i str {
        labels::first_letters(id, self.id_length)
    }

    /// The beginning of a cell's key that is unique here.
    pub fn short_key<'i>(&self, key: &'i str) -> &'i str {
        labels::first_letters(key, self.key_length)
    }

    /// The cells with a rank, the best first.
    pub fn ranked(&self) -> impl Iterator<Item = &Cell<'a>> {
        self.cells.iter().filter(|cell| cell.place.is_some())
    }

    /// The cells with at least one measured trial.
    pub fn measured(&self) -> impl Iterator<Item = &Cell<'a>> {
        self.cells.iter().filter(|cell| !cell.used.is_empty())
    }

    /// The cell whose losses this one was compared with.
    pub fn reference(&self, cell: &Cell) -> Option<&Cell<'a>> {
        let of_record = |record: &&Record| match (&record.parity.reference, record.parity.verdict) {
            (_, Verdict::Reference) => self.index.get(cell.key),
            (Some(id), _) => self.index.get(id.as_str()),
            (None, _) => None,
        };
        cell.used.iter().find_map(of_record).map(|&place| &self.cells[place])
    }

    /// The speed as a multiple of the reference's; `None` where either is not ranked.
    pub fn speed_ratio(&self, cell: &Cell) -> Option<f64> {
        let reference = if self.turned.is_some() { self.base() } else { self.reference(cell) };
        self.ratio(reference?, cell)
    }

    /// The speed of b as a multiple of that of a: over common rounds, or of medians over trials. `None` where either is not
    /// ranked, and where one's speed is another emulation than the other's.
    pub fn ratio(&self, a: &Cell, b: &Cell) -> Option<f64> {
        if a.kind().pace() != b.kind().pace() {
            return None;
        }
        let (speed_a, speed_b) = (a.place.and(a.speed)?.mid, b.place.and(b.speed)?.mid);
        match &self.turned {
            Some(_) if a.key == b.key => Some(1.0),
            Some(turned) if turned.reference == a.key => turned.against_reference(b.key)?.ratio,
            Some(turned) => turned.pair(a.key, b.key)?.ratio,
            None => Some(speed_b / speed_a),
        }
    }

    /// The verdict on b against a: by turns, or by whether the intervals of trials overlap.
    pub fn verdict(&self, a: &Cell, b: &Cell) -> evidence::Verdict {
        use evidence::Verdict::{Faster, Slower, Undecided};
        if a.kind().pace() != b.kind().pace() {
            return Undecided;
        }
        if let Some(turned) = &self.turned {
            return turned.verdict(a.key, b.key);
        }
        match (a.place.and(a.interval()), b.place.and(b.interval())) {
            (Some(of_a), Some(of_b)) if of_b.low > of_a.high => Faster,
            (Some(of_a), Some(of_b)) if of_b.high < of_a.low => Slower,
            _ => Undecided,
        }
    }

    /// The cell with which all are compared: the reference of the turns, or else the reference of most losses.
    pub fn base(&self) -> Option<&Cell<'a>> {
        if let Some(turned) = &self.turned {
            return self.index.get(turned.reference).map(|&place| &self.cells[place]);
        }
        let mut uses: Vec<usize> = vec![0; self.cells.len()];
        for cell in self.ranked() {
            let reference = self.reference(cell).and_then(|reference| self.index.get(reference.key));
            reference.into_iter().for_each(|&place| uses[place] += 1);
        }
        let most = (0..uses.len()).rev().max_by_key(|&place| uses[place]).filter(|&place| uses[place] > 0);
        most.map(|place| &self.cells[place]).filter(|cell| cell.place.is_some())
    }
}

/// The turns of the cells that may be ranked.
fn turned<'a>(records: &[&'a Record], cells: &[Cell]) -> Option<TurnsAnalysis<'a>> {
    let failed: Vec<&str> = cells.iter().filter(|cell| cell.verdict == Verdict::Failed).map(|cell| cell.key).collect();
    let counts = |record: &Record| record.excluding_flags().next().is_none() && !failed.contains(&record.key.as_str());
    let groups = groups(cells.iter().filter(|cell| !cell.used.is_empty()));
    let group = |key: &str| {
        let cell = cells.iter().find(|cell| cell.key == key);
        cell.and_then(|cell| groups.iter().position(|kind| *kind == cell.kind())).unwrap_or(groups.len())
    };
    TurnsAnalysis::new(records, counts, group)
}

/// Ranks cells by their turns, the fastest first; then come the cells without a rank.
fn rank_by_turns(cells: &mut [Cell], turned: &TurnsAnalysis) {
    for cell in cells.iter_mut() {
        match turned.rank(cell.key).filter(|_| cell.verdict != Verdict::Failed) {
            Some((best, worst)) => {
                cell.place = Some(Place { rank: best, tied: best < worst });
                let mid = turned.speed(cell.key).unwrap_or(f64::NAN);
                cell.speed = Some(Interval { low: 0.0, mid, high: f64::INFINITY });
                cell.unranked = None;
            }
            None if cell.unranked.is_none() => {
                let has_turns = cell.used.iter().any(|record| record.taken_turns().is_some());
                let why = if has_turns { cell::NO_TURN_COUNTS } else { NO_TURNS };
                cell.unranked = Some(why.to_string());
            }
            None => {}
        }
    }
    let order: HashMap<&str, usize> = turned.in_order().enumerate().map(|(place, key)| (key, place)).collect();
    let place = |cell: &Cell| cell.place.and_then(|_| order.get(cell.key).copied()).unwrap_or(usize::MAX);
    cells.sort_by_key(place);
}

fn rank_by_trials(cells: &mut [Cell]) {
    let pace = |cell: &Cell| cell.kind().pace;
    let ranked: Vec<usize> = (0..cells.len()).filter(|&cell| cells[cell].unranked.is_none()).collect();
    // Emulated speeds say nothing beside measured ones.
    for (_, ranked) in grouped(ranked.into_iter().map(|cell| (pace(&cells[cell]), cell))) {
        let speeds: Vec<Interval> = ranked.iter().filter_map(|&cell| cells[cell].speed).collect();
        for (&cell, place) in ranked.iter().zip(stats::places(&speeds)) {
            cells[cell].place = Some(place);
        }
    }
    // By median and not by rank: a cell of a wide interval may share the rank of cells far above it.
    let median = |cell: &Cell| cell.place.and(cell.speed).map_or(f64::NEG_INFINITY, |speed| speed.mid);
    let group = |cell: &Cell| (cell.place.is_none(), cell.place.and_then(|_| pace(cell)));
    cells.sort_by(|a, b| group(a).cmp(&group(b)).then(median(b).total_cmp(&median(a))));
}
