//! A grid by turns: all its cells are resident and take turns, generation after generation, and every process leaves a record.

use super::plan::{Decision, Planned};
use super::protocol::{End, Ended};
use super::{Execution, Runner, Summary, machine, parity, record, rescue};
use crate::turns::resident::Program;
use crate::turns::{Conduct, Ending, Experiment, Player, Settings, Taken, TurnsError};
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use zbench_engine::config::{Backend, Cell, DeviceKind};
use zbench_kernels::{DType, peak};
use zbench_reports::StoreError;
use zbench_reports::environment::why_not_the_same;
use zbench_reports::evidence::{Grid, Pair, Rules, Turn, least_difference};
use zbench_reports::record::{Extra, Record, Status, TurnRow, Turns};

/// Seconds of a generation, unless the budget is small.
const GENERATION_SECONDS: f64 = 40.0;
/// Generations at least and at most.
const GENERATIONS: (u32, u32) = (3, 12);
/// All resident cells together may take this share of the memory that is available.
const MOST_MEMORY: f64 = 0.6;
/// What a process takes beside the arena of its rank: program, stacks, text.
const PROCESS_BYTES: u64 = 32 << 20;
/// Seconds of each measurement of the peak.
const PEAK_SECONDS: f64 = 0.1;

/// How a grid is measured by turns.
#[derive(Clone, Debug)]
pub struct ByTurns {
    /// This program.
    pub program: PathBuf,
    /// Wall time of everything.
    pub budget: Duration,
    /// Differences below this share are called equal.
    pub equal: f64,
    /// Decides every order; from the clock unless given.
    pub seed: u64,
    /// Limit of one turn.
    pub timeout: Duration,
    /// Rounds count however much other processes use the cores.
    pub allow_load: bool,
    /// Set when the user wants to stop.
    pub stop: Arc<AtomicBool>,
    /// Whatever the notebook holds, a new experiment begins.
    pub fresh: bool,
}

/// Why the experiment could not be done.
#[derive(Debug, thiserror::Error)]
pub enum ByTurnsError {
    /// The notebook cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The budget is too small.
    #[error(transparent)]
    Turns(#[from] TurnsError),
}

/// Why these cells cannot take turns, if they cannot.
pub fn why_not(cells: &[Planned]) -> Option<String> {
    let running: Vec<&Cell> = running(cells).filter_map(|index| cells[index].cell()).collect();
    if running.len() < 2 {
        return Some("fewer than two cells run here, so there is nothing to compare".into());
    }
    running.iter().find_map(|cell| match cell {
        cell if cell.hardware.device == DeviceKind::Cuda || cell.parallel.backend == Backend::Nccl => {
            Some("cells on a GPU do not share its memory".into())
        }
        cell if cell.checkpoint.is_some()
            || cell.model.save.is_some()
            || cell.lora.save.is_some()
            || cell.lora.merge.is_some() =>
        {
            Some("cells that write checkpoints or weights do not train on behind their last step".into())
        }
        _ => None,
    })
}

fn running(cells: &[Planned]) -> impl Iterator<Item = usize> {
    (0..cells.len()).filter(|index| cells[*index].decision == Decision::Run)
}

/// What a cell takes while it is resident.
fn resident_bytes(planned: &Planned) -> u64 {
    let ranks = planned.cell().map_or(1, |cell| cell.parallel.ranks as u64);
    let peak = planned.footprint.as_ref().map_or(0, |footprint| footprint.total);
    ranks.saturating_mul(peak).saturating_add((ranks + 1) * PROCESS_BYTES)
}

/// Cells that fit into memory together; each batch begins with the reference.
fn batches(cells: &[Planned], reference: usize, available: u64) -> Vec<Vec<usize>> {
    let most = (available as f64 * MOST_MEMORY) as u64;
    // The reference and its twin are in every batch.
    let always = 2 * resident_bytes(&cells[reference]);
    let mut batches: Vec<(u64, Vec<usize>)> = Vec::new();
    for index in running(cells).filter(|index| *index != reference) {
        let bytes = resident_bytes(&cells[index]);
        match batches.last_mut().filter(|(used, _)| used.saturating_add(bytes) <= most) {
            Some((used, batch)) => {
                *used += bytes;
                batch.push(index);
            }
            None => batches.push((always.saturating_add(bytes), vec![reference, index])),
        }
    }
    batches.into_iter().map(|(_, batch)| batch).collect()
}

/// The cell that all others are compared with, of the cells that run: the first ddp cell, or the first.
pub fn reference_of(cells: &[Planned]) -> Option<usize> {
    let is_reference = |index: &usize| cells[*index].cell().is_some_and(parity::is_reference);
    running(cells).find(is_reference).or_else(|| running(cells).next())
}

/// Names the experiment of these cells: the same command finds it again.
fn name_of(cells: &[Planned]) -> String {
    let keys: Vec<&str> = running(cells).map(|index| cells[index].grid.key.as_str()).collect();
    blake3::hash(keys.join(" ").as_bytes()).to_hex()[..12].to_string()
}

impl Runner<'_> {
    /// Measures a grid by turns, going on where an earlier command on the same notebook was stopped.
    ///
    /// # Errors
    /// The notebook cannot be read or written, or the budget is too small; what was appended before stays.
    pub fn take_turns(&mut self, cells: &[Planned], how: &ByTurns) -> Result<Summary, ByTurnsError> {
        let Some(reference) = reference_of(cells) else { return Ok(Summary::default()) };
        let name = name_of(cells);
        let _claim = loop {
            if let Some(claim) = self.notebook.claim(&name, 0)? {
                break claim;
            }
            if how.stop.load(Ordering::Relaxed) {
                return Ok(Summary { interrupted: true, ..Summary::default() });
            }
            self.observe.wait();
            std::thread::sleep(super::LOOK_AGAIN);
        };
        self.notebook.check_writable()?;
        let known = self.notebook.tail().news()?;
        let skipped = self.record_skipped(cells, &known)?;
        let here = (!self.header.any_environment).then(|| self.header.environment.clone());
        let is_ours = |record: &&Record| {
            turns_of(record).is_some_and(|turns| turns.experiment.starts_with(&name))
                && here.as_ref().is_none_or(|here| why_not_the_same(&record.environment, here).is_none())
        };
        let newest = known.iter().rfind(is_ours).filter(|_| !how.fresh);
        let experiment = match newest.and_then(turns_of) {
            Some(turns) => turns.experiment.clone(),
            None => format!("{name}-{}", jiff::Timestamp::now().as_millisecond()),
        };
        let of_experiment = |record: &&Record| turns_of(record).is_some_and(|turns| turns.experiment == experiment);
        let earlier: Vec<Record> = known.iter().filter(is_ours).filter(of_experiment).cloned().collect();
        let summary = self.go_on(cells, reference, how, experiment, earlier)?;
        Ok(Summary { records: in_order(cells, [skipped, summary.records].concat()), ..summary })
    }

    /// Records of cells that do not run; those that the notebook has already, where nothing has changed.
    fn record_skipped(&mut self, cells: &[Planned], known: &[Record]) -> Result<Vec<Record>, StoreError> {
        let mut records = Vec::new();
        for planned in cells {
            let Decision::Record { status, reason, .. } = &planned.decision else { continue };
            let is_it = |record: &&Record| {
                record.key == planned.grid.key && record.outcome.status == *status && record.outcome.reason == *reason
            };
            if let Some(record) = known.iter().rev().find(is_it) {
                records.push(record.clone());
                continue;
            }
            self.observe.begin(planned, 1, 0, cells.len());
            // What is not executed cannot be stopped.
            let Ok((record, _)) = self.trial(planned, 1, cells, known, &[]) else { continue };
            self.notebook.append(&record)?;
            self.observe.end(&record);
            records.push(record);
        }
        Ok(records)
    }

    fn go_on(
        &mut self,
        cells: &[Planned],
        reference: usize,
        how: &ByTurns,
        experiment: String,
        earlier: Vec<Record>,
    ) -> Result<Summary, ByTurnsError> {
        let available = machine::memory_bytes("MemAvailable").unwrap_or(u64::MAX);
        let batches = batches(cells, reference, available);
        let generations = ((how.budget.as_secs_f64() / GENERATION_SECONDS) as u32).clamp(GENERATIONS.0, GENERATIONS.1);
        let mut records = earlier;
        let mut summary = Summary::default();
        for (number, batch) in batches.iter().enumerate() {
            let of_batch = |record: &&Record| turns_of(record).is_some_and(|turns| turns.batch as usize == number);
            let done = records.iter().filter(of_batch);
            let is_decided = done
                .clone()
                .any(|record| turns_of(record).is_some_and(|turns| turns.stopped.as_deref() == Some("decided")));
            let before = done.clone().filter_map(|record| Some(turns_of(record)?.generation)).max().unwrap_or(0);
            if is_decided || before >= generations {
                continue;
            }
            let mut conduct = OfGrid::new(self, cells, batch, how, &experiment, number, before, &records);
            let share = f64::from(generations - before) / f64::from(generations) / batches.len() as f64;
            let players: Vec<Player> =
                conduct.players.iter().filter_map(|player| cells[*player].cell()).map(player_of).collect();
            let settings = Settings {
                budget: how.budget.mul_f64(share),
                generations: generations - before,
                seed: how.seed.wrapping_add(number as u64),
                discard: 0,
                timeout: how.timeout,
                allow_load: how.allow_load,
            };
            conduct.budget = settings.budget;
            let run = Experiment { program: how.program.clone(), players: &players, settings, stop: how.stop.clone() };
            let ended = run.run(&mut conduct);
            let (made, failed) = (std::mem::take(&mut conduct.records), conduct.failed.take());
            summary.appended += made.len();
            records.extend(made);
            if let Some(error) = failed {
                return Err(error.into());
            }
            if ended? == Ending::Interrupted {
                summary.interrupted = true;
                break;
            }
        }
        summary.records = records;
        Ok(summary)
    }
}

fn player_of(cell: &Cell) -> Player {
    let (warmup, steps) = (cell.train.untimed_steps, cell.train.untimed_steps + cell.train.steps);
    Player { program: Program::Cell(Box::new(cell.clone())), warmup, steps }
}

fn in_order(cells: &[Planned], mut records: Vec<Record>) -> Vec<Record> {
    let place = |record: &Record| cells.iter().position(|cell| cell.grid.key == record.key).unwrap_or(usize::MAX);
    records.sort_by_key(|record| (place(record), record.trial));
    records
}

/// What a record says of its turns.
fn turns_of(record: &Record) -> Option<&Turns> {
    record.turns.as_ref()
}

/// Steers the turns of a grid's cells, and keeps what they leave behind.
struct OfGrid<'a, 'r> {
    runner: &'a mut Runner<'r>,
    cells: &'a [Planned],
    /// Which cell each player is; the last is the twin of the first, the reference.
    players: Vec<usize>,
    experiment: &'a str,
    batch: usize,
    seed: u64,
    /// Generations and rounds that were measured before.
    before: u32,
    rounds_before: u32,
    evidence: Grid,
    twin: Pair,
    budget: Duration,
    /// Differences below the first are called equal; the second is the wall time of everything, seconds.
    stated: (f64, f64),
    began: Instant,
    started: jiff::Timestamp,
    /// When the generation under way began.
    generation_at: f64,
    rows: Vec<Vec<TurnRow>>,
    peaks: HashMap<(usize, DType), Vec<Option<f64>>>,
    records: Vec<Record>,
    /// Records of earlier commands and of this one, with which losses are compared.
    whole: Vec<Record>,
    failed: Option<StoreError>,
    ending: &'static str,
}

impl<'a, 'r> OfGrid<'a, 'r> {
    fn new(
        runner: &'a mut Runner<'r>,
        cells: &'a [Planned],
        batch: &[usize],
        how: &ByTurns,
        experiment: &'a str,
        number: usize,
        before: u32,
        earlier: &[Record],
    ) -> OfGrid<'a, 'r> {
        let rules = Rules { equal: (1.0 + how.equal).ln(), ..Rules::default() };
        let mut players = batch.to_vec();
        players.extend(batch.first());
        let mut conduct = OfGrid {
            runner,
            cells,
            experiment,
            batch: number,
            seed: how.seed,
            before,
            rounds_before: 0,
            evidence: Grid::new(batch.len(), rules),
            twin: Pair::new(rules),
            budget: how.budget,
            stated: (how.equal, how.budget.as_secs_f64()),
            began: Instant::now(),
            started: jiff::Timestamp::now(),
            generation_at: 0.0,
            rows: vec![Vec::new(); players.len()],
            peaks: HashMap::new(),
            records: Vec::new(),
            whole: earlier.iter().filter(|record| record.is_measured()).cloned().collect(),
            failed: None,
            ending: "budget",
            players,
        };
        conduct.take_in(earlier);
        conduct
    }

    /// What an earlier command measured of this batch.
    fn take_in(&mut self, earlier: &[Record]) {
        let mut rounds: BTreeMap<u32, Vec<Turn>> = BTreeMap::new();
        for record in earlier {
            let Some(turns) = turns_of(record).filter(|turns| turns.batch as usize == self.batch) else { continue };
            let of_player = |player: &usize| self.cells[*player].grid.key == record.key;
            let place = match turns.twin {
                true => Some(self.players.len() - 1),
                false => self.players.iter().position(of_player),
            };
            let Some(cell) = place else { continue };
            for row in &turns.rows {
                let turn = Turn {
                    cell,
                    generation: turns.generation,
                    round: row.round,
                    order: row.order,
                    seconds_per_token: row.seconds_per_token(),
                    counted: row.counted,
                };
                rounds.entry(turn.round).or_default().push(turn);
            }
        }
        self.rounds_before = rounds.keys().next_back().copied().unwrap_or(0);
        rounds.values_mut().for_each(|turns| {
            turns.sort_by_key(|turn| turn.order);
            self.learn(turns);
        });
    }

    /// One round.
    fn learn(&mut self, turns: &[Turn]) {
        let twin = self.players.len() - 1;
        let of = |cell: usize| turns.iter().find(|turn| turn.cell == cell && turn.counted);
        if let (Some(reference), Some(other)) = (of(0), of(twin)) {
            self.twin.push(reference.generation, other.seconds_per_token.ln() - reference.seconds_per_token.ln());
        }
        let of_cells: Vec<Turn> = turns.iter().filter(|turn| turn.cell != twin).copied().collect();
        self.evidence.round(&of_cells);
    }

    /// Who goes on.
    fn wanted(&mut self) -> Vec<bool> {
        let least = least_difference(&Rules::default(), &self.twin.comparison());
        self.evidence.set_least(least);
        let all = vec![true; self.players.len()];
        if self.began.elapsed() < self.budget / 2 {
            return all;
        }
        let open = self.evidence.undecided();
        if open.is_empty() {
            self.ending = "decided";
            return vec![false; self.players.len()];
        }
        let first = self.evidence.active();
        let races = |cell: usize| match first.len() {
            0 | 1 => open.iter().any(|(a, b)| *a == cell || *b == cell),
            _ => first.contains(&cell),
        };
        // The reference and its twin take part to the end.
        let twin = self.players.len() - 1;
        (0..self.players.len()).map(|player| player == 0 || player == twin || races(player)).collect()
    }

    fn tell(&mut self, what: &str) {
        let pairs = self.evidence.cells() * (self.evidence.cells() - 1) / 2;
        let decided = pairs - self.evidence.undecided().len();
        let (spent, budget) = (self.began.elapsed().as_secs_f64(), self.budget.as_secs_f64());
        let words = format!("{what}; {decided} of {pairs} pairs decided, {:.0} s left", (budget - spent).max(0.0));
        self.runner.observe.turns(&words, (spent / budget).min(1.0));
    }

    /// The record of a player's process.
    fn keep(&mut self, player: usize, generation: u32, said: Execution) {
        let planned = &self.cells[self.players[player]];
        let (Some(cell), Some(estimate)) = (planned.cell(), &planned.estimate) else { return };
        let rows = std::mem::take(&mut self.rows[player]);
        let is_twin = player + 1 == self.players.len();
        let mut record = self.runner.header.blank(planned, generation, self.started);
        record.id = blake3::hash(format!("{} {is_twin}", record.id).as_bytes()).to_hex()[..12].to_string();
        record::predicted(&mut record, planned);
        let Execution { steps, between, end, .. } = said;
        let mut end = end.unwrap_or_else(|| {
            let reason = "its process did not end in time when it was told to".to_string();
            End { failure: Some(Ended { status: Status::Failed, reason, source: None }), ..End::default() }
        });
        if rows.is_empty() && end.failure.is_none() && end.stopped {
            // It had no turn in this generation: there is nothing to keep.
            return;
        }
        end.peak_flops = self.peaks.get(&peak_of(cell)).cloned().unwrap_or_default();
        super::fill(&mut record, steps, &end, cell, estimate);
        super::between::add(&mut record, between);
        record.turns = Some(Turns {
            experiment: self.experiment.to_string(),
            batch: self.batch as u32,
            seed: self.seed,
            generation,
            twin: is_twin,
            reference: player == 0,
            stopped: Some(self.ending.to_string()),
            equal: Some(self.stated.0),
            budget: Some(self.stated.1),
            rows,
            ..Turns::default()
        });
        if record.steps.len() == cell.train.untimed_steps + cell.train.steps {
            super::compare(&mut record, cell, self.cells, &self.whole, &[]);
            self.whole.push(record.clone());
        }
        if let Err(error) = self.runner.notebook.append(&record) {
            rescue::keep_and_say(&record);
            self.failed.get_or_insert(error);
        }
        self.records.push(record);
    }

    fn measure_peaks(&mut self) {
        for player in &self.players {
            if let Some(cell) = self.cells[*player].cell() {
                self.peaks.entry(peak_of(cell)).or_default();
            }
        }
        for ((threads, compute), peaks) in &mut self.peaks {
            peaks.push(peak::measure(*threads, *compute, PEAK_SECONDS));
        }
    }
}

/// Threads and type of a cell's peak.
fn peak_of(cell: &Cell) -> (usize, DType) {
    let threads = cell.parallel.ranks.saturating_mul(cell.hardware.threads_per_rank);
    (threads.min(machine::cores()).max(1), cell.precision.compute)
}

impl Conduct for OfGrid<'_, '_> {
    fn starting(&mut self, generation: u32, done: usize, all: usize) {
        if done == 0 {
            self.generation_at = self.began.elapsed().as_secs_f64();
            self.started = jiff::Timestamp::now();
            self.peaks.clear();
            self.measure_peaks();
        }
        self.tell(&format!("generation {}: {done} of {all} cells started", self.before + generation));
    }

    fn rounds(&mut self, turns: &[Taken]) -> Vec<bool> {
        for turn in turns {
            let steps = turn.steps.get(turn.discarded..).unwrap_or_default();
            self.rows[turn.player].push(TurnRow {
                round: self.rounds_before + turn.round,
                order: turn.order,
                at: (1e3 * (turn.at - self.generation_at)).round() / 1e3,
                tokens: steps.iter().map(|step| step.tokens).sum(),
                ms: steps.iter().map(|step| step.ms).collect(),
                others: (1e4 * turn.load.others).round() / 1e4,
                stolen: (1e4 * turn.load.stolen).round() / 1e4,
                counted: turn.counted,
                extra: Extra::new(),
            });
        }
        for round in turns.chunk_by(|a, b| a.round == b.round) {
            let of_taken = |turn: &Taken| Turn {
                cell: turn.player,
                generation: self.before + turn.generation,
                round: self.rounds_before + turn.round,
                order: turn.order,
                seconds_per_token: turn.seconds_per_token(),
                counted: turn.counted,
            };
            let round: Vec<Turn> = round.iter().map(of_taken).collect();
            self.learn(&round);
        }
        let wanted = self.wanted();
        if let Some(last) = turns.last() {
            self.tell(&format!(
                "generation {}, round {}",
                self.before + last.generation,
                self.rounds_before + last.round
            ));
        }
        wanted
    }

    fn ended(&mut self, generation: u32, ending: Option<Ending>, mut said: Vec<Option<Execution>>) {
        self.measure_peaks();
        match ending {
            Some(Ending::Interrupted) => self.ending = "interrupted",
            Some(Ending::Alone) => self.ending = "alone",
            _ => {}
        }
        // The reference comes first: the losses of others are compared with its own.
        for player in 0..said.len() {
            if let Some(said) = said[player].take() {
                self.keep(player, self.before + generation, said);
            }
        }
    }
}
