//! Steers the turns of a grid's cells, and keeps what they leave behind.

use super::{ByTurns, Past};
use crate::protocol::{End, Ended};
use crate::train::{compare, fill};
use crate::turns::load::{Others, Seen};
use crate::turns::{Ending, TurnPolicy, TurnSample};
use crate::{Execution, Runner, Train, logged, rescue};
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};
use tracing::info;
use zbench_engine::config::Cell;
use zbench_host::machine;
use zbench_kernels::DType;
use zbench_predict::planned::Planned;
use zbench_reports::StoreError;
use zbench_reports::evidence::{Grid, Pair, Rules, Turn, least_difference};
use zbench_reports::grid_report::Kind;
use zbench_reports::record::{Extra, Record, Status, TurnRow, Turns};
use zbench_reports::stats;
use zbench_reports::store::Unfinished;
use zbench_reports::units;

/// One batch of one experiment.
pub(super) struct Batch<'a> {
    /// All cells of the grid.
    pub cells: &'a [Planned],
    /// Those of the batch, the reference first.
    pub batch: &'a [usize],
    /// Its number.
    pub number: usize,
    /// The experiment.
    pub experiment: &'a str,
    /// Its share of the budget.
    pub share: Duration,
    /// What is left of it.
    pub left: Duration,
}

/// Steers the turns of a grid's cells, and keeps what they leave behind.
pub(super) struct GridPolicy<'a, 'r, 't> {
    runner: &'a mut Runner<'r, Train<'t>>,
    batch: Batch<'a>,
    /// Which cell each player is; the last is the twin of the first, the reference.
    pub players: Vec<usize>,
    seed: u64,
    /// Generations and rounds that were measured before.
    before: u32,
    rounds_before: u32,
    evidence: Grid,
    twin: Pair,
    /// Differences below the first are called equal; the second is the wall time of everything, seconds.
    stated: (f64, f64),
    began: Instant,
    started: jiff::Timestamp,
    /// When the generation under way began.
    generation_at: f64,
    rows: Vec<Vec<TurnRow>>,
    /// What others used in the generation under way, while processes started and in discarded rounds.
    others: Others,
    /// The time by which others have prolonged the budget, and seconds of the generation under way that they took.
    prolonged: Duration,
    lost: f64,
    /// How many rounds were discarded since others used the cores.
    discarded: u32,
    /// Whether the user was told of others.
    is_told: bool,
    /// Tokens per second of each player's turns, of earlier commands too.
    rates: Vec<Vec<f64>>,
    /// The file of turns of the generation under way, from its first block on, and the ids of the players' records.
    unfinished: Option<(Unfinished, Vec<(usize, String)>)>,
    /// That file cannot be written.
    pub unkept: Option<StoreError>,
    /// Whether turns of the generation under way are put on disk.
    is_keeping: bool,
    peaks: HashMap<(usize, DType), Vec<Option<f64>>>,
    /// What this command measured.
    pub records: Vec<Record>,
    /// Records of earlier commands and of this one, with which losses are compared.
    whole: Vec<Record>,
    /// The notebook could not be written.
    pub failed: Option<StoreError>,
    ending: &'static str,
}

impl<'a, 'r, 't> GridPolicy<'a, 'r, 't> {
    pub fn new(
        runner: &'a mut Runner<'r, Train<'t>>,
        batch: Batch<'a>,
        how: &ByTurns,
        past: &Past,
        earlier: &[Record],
    ) -> GridPolicy<'a, 'r, 't> {
        let rules = Rules { equal: (1.0 + how.equal).ln(), ..Rules::default() };
        let mut players = batch.batch.to_vec();
        let kinds: Vec<Kind> = players.iter().map(|player| Kind::of(&blank(runner, &batch.cells[*player]))).collect();
        let group = |kind: &Kind| kinds.iter().position(|other| other == kind).unwrap_or(0);
        players.extend(batch.batch.first());
        let mut conduct = GridPolicy {
            runner,
            seed: how.seed,
            before: past.generations,
            rounds_before: 0,
            evidence: Grid::of_groups(kinds.iter().map(group).collect(), rules),
            twin: Pair::new(rules),
            stated: (how.equal, how.budget.as_secs_f64()),
            began: Instant::now(),
            started: jiff::Timestamp::now(),
            generation_at: 0.0,
            rows: vec![Vec::new(); players.len()],
            others: Others::default(),
            prolonged: Duration::ZERO,
            lost: 0.0,
            discarded: 0,
            is_told: false,
            rates: vec![Vec::new(); players.len()],
            unfinished: None,
            unkept: None,
            is_keeping: true,
            peaks: HashMap::new(),
            records: Vec::new(),
            whole: earlier.iter().filter(|record| record.is_measured()).cloned().collect(),
            failed: None,
            ending: "budget",
            batch,
            players,
        };
        conduct.take_in(earlier);
        conduct.began = Instant::now();
        conduct
    }

    /// What an earlier command measured of this batch.
    fn take_in(&mut self, earlier: &[Record]) {
        let mut rounds: BTreeMap<u32, Vec<Turn>> = BTreeMap::new();
        for record in earlier {
            let Some(turns) = record.turns.as_ref().filter(|turns| turns.batch as usize == self.batch.number) else {
                continue;
            };
            let of_player = |player: &usize| self.batch.cells[*player].grid.key == record.key;
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
            self.machine(turns);
            self.learn(turns);
        });
    }

    /// How fast the machine was in a round, against the rounds so far.
    fn machine(&mut self, round: &[Turn]) -> Option<f64> {
        let mut speeds = Vec::new();
        for turn in round.iter().filter(|turn| turn.seconds_per_token.is_finite() && turn.seconds_per_token > 0.0) {
            let (rate, rates) = (1.0 / turn.seconds_per_token, &mut self.rates[turn.cell]);
            rates.push(rate);
            speeds.extend(stats::median(rates).map(|median| rate / median));
        }
        stats::median(&speeds).map(|speed| (1e4 * speed).round() / 1e4)
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

    /// The time that counts against the budget.
    fn spent(&self) -> Duration {
        self.began.elapsed().saturating_sub(self.prolonged)
    }

    /// Who goes on: all in the first half of the batch's time, then those whose place is open. Nobody when all is decided.
    pub fn wanted(&mut self) -> Vec<bool> {
        let least = least_difference(&Rules::default(), &self.twin.comparison());
        self.evidence.set_least(least);
        let all = vec![true; self.players.len()];
        if self.batch.left.saturating_sub(self.spent()) > self.batch.share / 2 {
            return all;
        }
        let mut racing = self.evidence.racing();
        if !racing.contains(&true) {
            self.ending = "decided";
            return vec![false; self.players.len()];
        }
        // The reference and its twin take part to the end.
        racing.push(true);
        racing[0] = true;
        racing
    }

    fn tell(&mut self, what: &str) {
        let pairs = self.evidence.pairs();
        let decided = pairs - self.evidence.open().len();
        let (spent, budget) = (self.spent().as_secs_f64(), self.batch.left.as_secs_f64());
        let mut words = format!("{what}; {decided} of {pairs} pairs decided, {:.0} s left", (budget - spent).max(0.0));
        if self.discarded > 0 {
            words += &format!("; {}", units::plural(self.discarded as usize, "round discarded", "rounds discarded"));
        }
        self.runner.observe.turns(&words, (spent / budget).min(1.0));
    }

    fn row(&self, turn: &TurnSample, machine: Option<f64>) -> TurnRow {
        let steps = turn.steps.get(turn.discarded..).unwrap_or_default();
        TurnRow {
            round: self.rounds_before + turn.round,
            order: turn.order,
            at: (1e3 * (turn.at - self.generation_at)).round() / 1e3,
            tokens: steps.iter().map(|step| step.tokens).sum(),
            ms: steps.iter().map(|step| step.ms).collect(),
            others: (1e4 * turn.load.others).round() / 1e4,
            stolen: (1e4 * turn.load.stolen).round() / 1e4,
            machine,
            counted: turn.counted,
            extra: Extra::new(),
        }
    }

    /// The record of a player's process as it stands before its first turn.
    fn begun(&self, player: usize, generation: u32) -> Option<Record> {
        let planned = &self.batch.cells[self.players[player]];
        planned.cell()?;
        let is_twin = player + 1 == self.players.len();
        let mut record = self.runner.blank(planned, generation, self.started);
        record.id = blake3::hash(format!("{} {is_twin}", record.id).as_bytes()).to_hex()[..12].to_string();
        record.turns = Some(Turns {
            experiment: self.batch.experiment.to_string(),
            batch: self.batch.number as u32,
            seed: self.seed,
            generation,
            twin: is_twin,
            reference: player == 0,
            stopped: Some("interrupted".into()),
            equal: Some(self.stated.0),
            budget: Some(self.stated.1),
            ..Turns::default()
        });
        Some(record)
    }

    /// Puts turns of the generation under way on disk. The records of its processes are made when they end, and until then a power
    /// failure would take them.
    fn save(&mut self, generation: u32, turns: &[(usize, TurnRow)]) -> Result<(), StoreError> {
        let (file, ids) = match &mut self.unfinished {
            Some(begun) => begun,
            None => {
                let records =
                    (0..self.players.len()).filter_map(|player| Some((player, self.unmeasured(player, generation)?)));
                let (players, records): (Vec<usize>, Vec<Record>) = records.unzip();
                let ids = players.into_iter().zip(records.iter().map(|record| record.id.clone())).collect();
                let name = format!("{}-{}-{generation}", self.batch.experiment, self.batch.number);
                self.unfinished.insert((self.runner.notebook.unfinished(&name, &records)?, ids))
            }
        };
        let of = |id: &(usize, String)| turns.iter().filter(|turn| turn.0 == id.0).map(|turn| turn.1.clone()).collect();
        file.add(ids.iter().map(|id| (id.1.as_str(), of(id))))
    }

    /// The record of a process that was killed, and could say nothing but its turns.
    fn unmeasured(&self, player: usize, generation: u32) -> Option<Record> {
        let mut record = self.begun(player, generation)?;
        let planned = &self.batch.cells[self.players[player]];
        let of = (planned.cell()?, planned.estimate.as_ref()?);
        fill(&mut record, Vec::new(), &End::default(), of, planned);
        record
            .notes
            .push("zbench was killed while the cell ran: its turns are here, its losses and memory are not.".into());
        Some(record)
    }

    /// The record of a player's process, which has ended.
    fn keep(&mut self, player: usize, generation: u32, said: Execution, seconds: f64) {
        let planned = &self.batch.cells[self.players[player]];
        let (Some(cell), Some(estimate)) = (planned.cell(), &planned.estimate) else { return };
        let Some(mut record) = self.begun(player, generation) else { return };
        let rows = std::mem::take(&mut self.rows[player]);
        let Execution { steps, lifecycle, end, .. } = said;
        if rows.is_empty() && end.is_none() && self.ending == "interrupted" {
            // The user stopped it while it started.
            return;
        }
        let mut end = end.unwrap_or_else(|| {
            let reason = "its process did not end in time when it was told to".to_string();
            End { failure: Some(Ended { status: Status::Failed, reason, source: None }), ..End::default() }
        });
        if rows.is_empty() && end.failure.is_none() {
            // It had no turn in this generation: there is nothing to keep.
            return;
        }
        end.peak_flops = self.peaks.get(&peak_of(cell)).cloned().unwrap_or_default();
        fill(&mut record, steps, &end, (cell, estimate), planned);
        crate::lifecycle::add(&mut record, lifecycle);
        if let Some(turns) = &mut record.turns {
            let seconds = Some((1e3 * seconds).round() / 1e3);
            let (busy, lost) =
                (self.others.programs(), Some((1e3 * self.lost).round() / 1e3).filter(|lost| *lost > 0.0));
            let stopped = Some(self.ending.to_string());
            *turns = Turns { stopped, seconds, lost, busy, rows, ..std::mem::take(turns) };
        }
        record.flag_discarded_turns();
        if record.steps.len() == cell.train.untimed_steps + cell.train.steps {
            compare(&mut record, cell, self.batch.cells, &self.whole, (self.runner.notebook, &[]));
            self.whole.push(record.clone());
        }
        let _span = logged::trial(planned, generation);
        match self.runner.notebook.append(&record) {
            Ok(()) => logged::trial_ends(&record),
            Err(error) => {
                rescue::keep_and_say(&record);
                self.failed.get_or_insert(error);
            }
        }
        self.records.push(record);
    }

    fn measure_peaks(&mut self) {
        for player in &self.players {
            if let Some(cell) = self.batch.cells[*player].cell() {
                self.peaks.entry(peak_of(cell)).or_default();
            }
        }
        for ((threads, compute), peaks) in &mut self.peaks {
            peaks.push(machine::peak_flops(&[], *threads, *compute, crate::PEAK_SECONDS));
        }
    }
}

/// Threads and type of a cell's peak.
fn peak_of(cell: &Cell) -> (usize, DType) {
    let threads = cell.parallel.ranks.saturating_mul(cell.hardware.threads_per_rank);
    (threads.min(machine::core_numbers().len()).max(1), cell.precision.compute)
}

/// A record of a cell that says what it is and where it would run.
fn blank(runner: &Runner<'_, Train<'_>>, planned: &Planned) -> Record {
    runner.blank(planned, 0, jiff::Timestamp::UNIX_EPOCH)
}

impl TurnPolicy for GridPolicy<'_, '_, '_> {
    fn first(&mut self, _players: usize) -> Vec<bool> {
        self.wanted()
    }

    fn starting(&mut self, generation: u32, done: usize, all: usize) {
        if done == 0 {
            self.is_keeping = true;
            (self.others, self.lost) = (Others::default(), 0.0);
            self.generation_at = self.began.elapsed().as_secs_f64();
            self.started = jiff::Timestamp::now();
            info!(target: "zbench::runner", generation = self.before + generation, processes = all, "generation begins");
            self.peaks.clear();
            self.measure_peaks();
        }
        self.tell(&format!("generation {}: {done} of {all} cells started", self.before + generation));
    }

    fn rounds(&mut self, turns: &[TurnSample]) -> Vec<bool> {
        let of_taken = |turn: &TurnSample| Turn {
            cell: turn.player,
            generation: self.before + turn.generation,
            round: self.rounds_before + turn.round,
            order: turn.order,
            seconds_per_token: turn.seconds_per_token(),
            counted: turn.counted,
        };
        let rounds: Vec<Vec<Turn>> =
            turns.chunk_by(|a, b| a.round == b.round).map(|round| round.iter().map(of_taken).collect()).collect();
        let mut rows: Vec<(usize, TurnRow)> = Vec::with_capacity(turns.len());
        for (round, taken) in rounds.iter().zip(turns.chunk_by(|a, b| a.round == b.round)) {
            let machine = self.machine(round);
            rows.extend(taken.iter().map(|turn| (turn.player, self.row(turn, machine))));
        }
        if let Some(first) = turns.first().filter(|_| self.is_keeping)
            && let Err(error) = self.save(self.before + first.generation, &rows)
        {
            // The file would lack these turns; the next generation begins another.
            self.is_keeping = false;
            self.unkept = Some(error);
        }
        rows.into_iter().for_each(|(player, row)| self.rows[player].push(row));
        rounds.iter().for_each(|round| self.learn(round));
        let is_discarded = |round: &&[TurnSample]| round[0].load.is_busy() && !round[0].counted;
        self.discarded += turns.chunk_by(|a, b| a.round == b.round).filter(is_discarded).count() as u32;
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

    fn busy(&mut self, seen: &Seen, prolonged: Duration) {
        self.prolonged = prolonged;
        self.lost += seen.seconds;
        self.others.add(seen);
        if !std::mem::replace(&mut self.is_told, true) {
            self.runner.observe.warn(&format!(
                "warning: {}: rounds beside them are discarded and measured again, which at most doubles the time ({:.0} s); --allow-load \
                 counts them",
                self.others.words(),
                self.batch.left.as_secs_f64()
            ));
        }
    }

    fn ended(&mut self, generation: u32, ending: Option<Ending>, mut said: Vec<Option<Execution>>) {
        self.measure_peaks();
        match ending {
            Some(Ending::Interrupted) => self.ending = "interrupted",
            Some(Ending::Alone) => self.ending = "alone",
            _ => {}
        }
        let seconds = self.began.elapsed().as_secs_f64() - self.generation_at;
        // The reference comes first: the losses of others are compared with its own.
        for player in 0..said.len() {
            if let Some(said) = said[player].take() {
                self.keep(player, self.before + generation, said, seconds);
            }
        }
        if let Some((file, _)) = self.unfinished.take() {
            file.remove();
        }
    }
}
