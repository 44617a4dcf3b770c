//! What the turns of a grid's cells say, read from their records.

use std::collections::BTreeMap;

use serde_json::Value;

use super::cells::{Cell, Grid};
use crate::evidence::{self, Claims, Comparison, Pair, Rules, Turn, Verdict, least_difference};
use crate::record::Record;
use crate::stats;

/// The key of a record's turns.
const TURNS: &str = "turns";

/// What a record says of its turns.
pub fn turns(record: &Record) -> Option<&Value> {
    record.extra.get(TURNS).filter(|turns| turns["rows"].is_array())
}

/// Whether it is of the twin of a reference: a second set of its processes, which takes no part in the comparison.
pub fn is_twin(record: &Record) -> bool {
    record.extra.get(TURNS).is_some_and(|turns| turns["twin"] == true)
}

/// Why cells were measured by trials, where they could not take turns.
pub fn why_not(record: &Record) -> Option<&str> {
    record.extra.get(TURNS)?["why_not"].as_str()
}

/// Tokens and milliseconds of the turns that count.
pub fn counted(record: &Record) -> Vec<(f64, f64)> {
    let rows = turns(record).and_then(|turns| turns["rows"].as_array());
    rows.into_iter().flatten().filter(|row| row["counted"] != false).map(tokens_and_ms).collect()
}

fn tokens_and_ms(row: &Value) -> (f64, f64) {
    let ms = row["ms"].as_array().into_iter().flatten().filter_map(Value::as_f64).sum();
    (row["tokens"].as_f64().unwrap_or(f64::NAN), ms)
}

/// Cells that took turns in one experiment.
pub struct Experiment {
    /// Places of the cells in the grid, in the order of the evidence.
    pub cells: Vec<usize>,
    /// What their turns say.
    pub evidence: evidence::Grid,
    /// What may be claimed of all of them together.
    pub claims: Claims,
    /// The reference against its twin.
    pub twin: Option<Comparison>,
    /// Place in `cells` of the cell that others are compared with.
    pub reference: usize,
    /// Rounds that count, and those that were discarded because others used the cores.
    pub rounds: usize,
    /// See `rounds`.
    pub discarded: usize,
    /// Generations of processes.
    pub generations: usize,
    /// Seconds of the rounds.
    pub seconds: f64,
    /// The slowest and the fastest that the machine was in a round, against its median.
    pub wander: Option<(f64, f64)>,
    /// Decided every order.
    pub seed: u64,
    /// How it ended: `decided`, `budget`, `interrupted`.
    pub stopped: String,
    /// Median speed of each cell in tokens per second.
    pub rates: Vec<f64>,
}

impl Experiment {
    /// The newest experiment of these records, over the cells that `takes` lets through; nothing where fewer than two took turns.
    pub fn of(grid: &Grid, records: &[&Record], takes: impl Fn(&Cell) -> bool) -> Option<Experiment> {
        let newest = records.iter().rev().find_map(|record| turns(record))?;
        let of_it = |record: &&&Record| turns(record).is_some_and(|turns| turns["experiment"] == newest["experiment"]);
        let records: Vec<&Record> = records.iter().filter(of_it).copied().collect();
        let cells: Vec<usize> = (0..grid.cells.len())
            .filter(|place| takes(&grid.cells[*place]))
            .filter(|place| records.iter().any(|record| record.key == grid.cells[*place].key && !is_twin(record)))
            .collect();
        let reference_key = records
            .iter()
            .find(|record| turns(record).is_some_and(|turns| turns["reference"] == true))
            .map(|record| record.key.as_str());
        let place_of = |key: &str| cells.iter().position(|place| grid.cells[*place].key == key);
        let reference = reference_key.and_then(place_of).unwrap_or(0);
        let rounds = rounds(&records, cells.len(), place_of);
        if cells.len() < 2 {
            return None;
        }
        let mut experiment = Experiment {
            evidence: evidence::Grid::new(cells.len(), Rules::default()),
            claims: Claims::new(0, Rules::default().alpha, |_, _| f64::NEG_INFINITY),
            twin: None,
            reference,
            rounds: 0,
            discarded: 0,
            generations: 0,
            seconds: 0.0,
            wander: None,
            seed: newest["seed"].as_u64().unwrap_or(0),
            stopped: newest["stopped"].as_str().unwrap_or_default().to_string(),
            rates: rates(&records, grid, &cells),
            cells,
        };
        experiment.learn(&rounds);
        Some(experiment)
    }

    fn learn(&mut self, rounds: &[Vec<Turn>]) {
        let twin_number = self.cells.len();
        let mut twin = Pair::new(Rules::default());
        let mut speeds = Vec::new();
        let mut generations: Vec<u32> = Vec::new();
        for round in rounds {
            let Some(first) = round.first() else { continue };
            if !generations.contains(&first.generation) {
                generations.push(first.generation);
            }
            self.seconds += round.iter().map(|turn| turn.seconds_per_token).filter(|s| s.is_finite()).sum::<f64>();
            if !first.counted {
                self.discarded += 1;
                continue;
            }
            self.rounds += 1;
            let of = |cell: usize| round.iter().find(|turn| turn.cell == cell);
            if let (Some(a), Some(b)) = (of(self.reference), of(twin_number)) {
                twin.push(a.generation, b.seconds_per_token.ln() - a.seconds_per_token.ln());
            }
            let of_cells: Vec<Turn> = round.iter().filter(|turn| turn.cell < twin_number).copied().collect();
            let relative: Vec<f64> =
                of_cells.iter().map(|turn| self.rates[turn.cell] * turn.seconds_per_token).collect();
            speeds.extend(stats::median(&relative).map(f64::recip));
            self.evidence.round(&of_cells);
        }
        self.generations = generations.len();
        let slowest = speeds.iter().copied().fold(f64::INFINITY, f64::min);
        let fastest = speeds.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        self.wander = (slowest.is_finite() && fastest.is_finite()).then_some((slowest, fastest));
        self.twin = Some(twin.comparison()).filter(|twin| twin.rounds > 0);
        if let Some(twin) = &self.twin {
            self.evidence.set_least(least_difference(&Rules::default(), twin));
        }
        self.claims = self.evidence.claims();
    }

    /// The cells by what is claimed of them, the fastest first; where nothing is claimed by their ratio to the reference.
    pub fn order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.cells.len()).collect();
        let ratio = |cell: usize| self.against_reference(cell).and_then(|c| c.ratio).unwrap_or(1.0);
        order.sort_by(|a, b| ratio(*b).total_cmp(&ratio(*a)));
        order
    }

    /// A cell against the reference; nothing for the reference itself.
    pub fn against_reference(&self, cell: usize) -> Option<Comparison> {
        (cell != self.reference).then(|| self.evidence.pair(self.reference, cell))
    }

    /// What is known of b against a: of all claims together, or that the two are equal.
    pub fn verdict(&self, a: usize, b: usize) -> Verdict {
        match (self.claims.is_faster(a, b), self.claims.is_faster(b, a)) {
            (true, _) => Verdict::Faster,
            (_, true) => Verdict::Slower,
            _ if self.evidence.pair(a, b).verdict == Verdict::Equal => Verdict::Equal,
            _ => Verdict::Undecided,
        }
    }
}

/// Turns by round, in their order. The twin's cell has the number behind the last.
fn rounds(records: &[&Record], cells: usize, place_of: impl Fn(&str) -> Option<usize>) -> Vec<Vec<Turn>> {
    let mut rounds: BTreeMap<(u64, u64), Vec<Turn>> = BTreeMap::new();
    for record in records {
        let Some(turns) = turns(record) else { continue };
        let cell = if is_twin(record) { Some(cells) } else { place_of(&record.key) };
        let (Some(cell), Some(rows)) = (cell, turns["rows"].as_array()) else { continue };
        for row in rows {
            let (tokens, ms) = tokens_and_ms(row);
            let round = row["round"].as_u64().unwrap_or(0);
            rounds.entry((turns["batch"].as_u64().unwrap_or(0), round)).or_default().push(Turn {
                cell,
                generation: turns["generation"].as_u64().unwrap_or(0) as u32,
                round: round as u32,
                order: row["order"].as_u64().unwrap_or(0) as u32,
                seconds_per_token: ms / 1e3 / tokens,
                counted: row["counted"] != false,
            });
        }
    }
    let mut rounds: Vec<Vec<Turn>> = rounds.into_values().collect();
    rounds.iter_mut().for_each(|round| round.sort_by_key(|turn| turn.order));
    rounds
}

fn rates(records: &[&Record], grid: &Grid, cells: &[usize]) -> Vec<f64> {
    let of = |place: &usize| {
        let own = records.iter().filter(|record| record.key == grid.cells[*place].key && !is_twin(record));
        let rates: Vec<f64> = own
            .flat_map(|record| counted(record))
            .map(|(tokens, ms)| tokens / ms * 1e3)
            .filter(|r| r.is_finite())
            .collect();
        stats::median(&rates).unwrap_or(f64::NAN)
    };
    cells.iter().map(of).collect()
}
