//! Experiments in which cells take turns: all are resident processes, one runs a few steps while the others sleep, in an order drawn
//! anew for every round. What is compared are neighbours in time, so that a machine whose speed wanders does not decide.
//! docs/statistics.md has the design, reports/src/evidence what is concluded.

pub mod load;
pub mod resident;
pub mod token;

use crate::Execution;
use load::{Load, Seen, Shares, Watch};
use resident::{Program, Residents};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use token::StepTime;
use zbench_reports::gate::random::Random;
use zbench_reports::stats;

/// Blocks of rounds, over which foreign load is measured, last at least so long: the system counts in hundredths of a second.
const BLOCK_SECONDS: f64 = 0.8;
/// While processes start, others are looked at as often as this: often enough to name them soon.
const LOOK_SECONDS: f64 = 2.0;
/// A turn has as many steps as fill this time, and at least one.
const TURN_MS: f64 = 60.0;
/// How long a process has to end after its turn.
const GRACE: Duration = Duration::from_secs(10);

/// One that takes turns.
#[derive(Clone, Debug)]
pub struct Participant {
    /// What runs.
    pub program: Program,
    /// Steps that are not timed, which it runs before the first round.
    pub warmup: usize,
    /// Steps that the run has by its configuration: the first generation runs all of them, however short it is.
    pub steps: usize,
}

/// How an experiment is done.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Wall time of everything, starts included.
    pub budget: Duration,
    /// So many times all processes are started anew.
    pub generations: u32,
    /// Decides every order.
    pub seed: u64,
    /// Steps at the beginning of each turn that count for nothing.
    pub discard: usize,
    /// Limit of one turn.
    pub timeout: Duration,
    /// Rounds count however much other processes use the cores.
    pub allow_load: bool,
    /// The time in which other processes use the cores prolongs the budget, by this at most.
    pub extra: Duration,
}

/// A turn that was taken.
#[derive(Clone, Debug, PartialEq)]
pub struct TurnSample {
    /// Whose, by place among the players.
    pub player: usize,
    /// Generation of processes, from 1.
    pub generation: u32,
    /// Round, from 1 over the whole experiment.
    pub round: u32,
    /// Place in the round, from 1.
    pub order: u32,
    /// Seconds since the experiment began.
    pub at: f64,
    /// Its steps; the first `discarded` count for nothing.
    pub steps: Vec<StepTime>,
    /// See `steps`.
    pub discarded: usize,
    /// What others used of the machine in the block of the round.
    pub load: Shares,
    /// Whether it counts: not in a round under which others used too much, and not in one that the user stopped.
    pub counted: bool,
}

impl TurnSample {
    /// Seconds per step of what counts.
    pub fn seconds_per_step(&self) -> f64 {
        let counts = self.steps.get(self.discarded..).unwrap_or_default();
        counts.iter().map(|step| step.ms).sum::<f64>() / 1e3 / counts.len() as f64
    }

    /// Seconds per token of what counts.
    pub fn seconds_per_token(&self) -> f64 {
        let counts = self.steps.get(self.discarded..).unwrap_or_default();
        let (ms, tokens) = counts.iter().fold((0.0, 0), |(ms, tokens), step| (ms + step.ms, tokens + step.tokens));
        ms / 1e3 / tokens as f64
    }
}

/// Who is told of an experiment and steers it.
pub trait TurnPolicy {
    /// Who takes part in the first round: all, unless earlier turns have decided something.
    fn first(&mut self, players: usize) -> Vec<bool> {
        vec![true; players]
    }
    /// A generation's processes are being started: so many of all.
    fn starting(&mut self, _generation: u32, _done: usize, _all: usize) {}
    /// A block of rounds has ended, the last of which may be cut short by the user; who still takes part, or nobody when all is decided.
    fn rounds(&mut self, turns: &[TurnSample]) -> Vec<bool>;
    /// Other processes use more of the cores than rounds bear, while processes start or over rounds that are discarded for it.
    /// `prolonged`: the time by which they have prolonged the budget so far.
    fn busy(&mut self, _seen: &Seen, _prolonged: Duration) {}
    /// A generation has ended, and how if it was the last by that, with what each player said; of those that did not take part
    /// nothing.
    fn ended(&mut self, _generation: u32, _ending: Option<Ending>, _said: Vec<Option<Execution>>) {}
}

/// How an experiment ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// There was no more to decide.
    Decided,
    /// The time was over.
    Budget,
    /// The user wanted to stop.
    Interrupted,
    /// Fewer than two players were left.
    Alone,
}

/// An experiment that cannot be done.
#[derive(Clone, Debug, thiserror::Error, PartialEq)]
pub enum TurnsError {
    /// Not one round fits.
    #[error(
        "the budget of {budget:.3} s is too small: starting the cells took {start:.2} s and one round takes {round:.2} s; use --budget {advice:.0}s or more"
    )]
    TooShort {
        /// Seconds that were to be had.
        budget: f64,
        /// Seconds that starting took.
        start: f64,
        /// Seconds of a round.
        round: f64,
        /// Seconds that would do.
        advice: f64,
    },
}

/// Cells that take turns.
pub struct Experiment<'a> {
    /// This program, which trains cells.
    pub program: PathBuf,
    /// Who takes turns.
    pub players: &'a [Participant],
    /// How.
    pub settings: Settings,
    /// Set when the user wants to stop.
    pub stop: Arc<AtomicBool>,
}

/// A generation under way.
struct Stage {
    residents: Residents,
    /// Number of each player among the residents.
    places: Vec<Option<usize>>,
    /// Steps of a turn of each player.
    steps: Vec<usize>,
    /// Steps that each has run.
    done: Vec<usize>,
}

impl Experiment<'_> {
    /// Does it.
    ///
    /// # Errors
    /// The budget is too small for one round.
    pub fn run(&self, conduct: &mut dyn TurnPolicy) -> Result<Ending, TurnsError> {
        self.run_beside(&mut Load::begin(), conduct)
    }

    /// Does it beside others whose load `watch` observes.
    ///
    /// # Errors
    /// As [`Experiment::run`].
    pub fn run_beside(&self, watch: &mut dyn Watch, conduct: &mut dyn TurnPolicy) -> Result<Ending, TurnsError> {
        let begin = Instant::now();
        let generations = self.settings.generations.max(1);
        let mut time = Time { settings: &self.settings, lost: Duration::ZERO };
        let mut random = Random::new(self.settings.seed);
        // A player takes part while its program runs and the conduct wants it. One that is wanted again later returns, with the next
        // generation where it has no process in this one.
        let mut wanted = conduct.first(self.players.len());
        let mut alive = vec![true; self.players.len()];
        let mut round = 0;
        for generation in 1..=generations {
            if generation > 1 && time.is_over(generations, begin.elapsed()) {
                return Ok(Ending::Budget);
            }
            let started = Instant::now();
            let mut start = Start { watch, conduct, time: &mut time };
            let mut stage = self.start(generation, &both(&alive, &wanted), &mut random, &mut start);
            let warm = Instant::now();
            let mut ending = match self.is_stopped() {
                true => Some(Ending::Interrupted),
                false => self.warm_up(&mut stage, &mut alive, &mut random, &mut start),
            };
            // What others did while processes started is no part of the first block.
            start.take_look();
            let start = (warm - started).as_secs_f64();
            let first = warm.elapsed().as_secs_f64();
            let spent = begin.elapsed().saturating_sub(time.prolonged());
            if generation == 1 && ending.is_none() && spent + warm.elapsed() > self.settings.budget {
                let budget = self.settings.budget.as_secs_f64();
                let advice = (f64::from(generations) * (start + 20.0 * first)).ceil();
                // Nothing was measured, so no process has to come to the end of its configuration.
                self.close(stage, generation, Some(Ending::Interrupted), conduct);
                return Err(TurnsError::TooShort { budget, start, round: first, advice });
            }
            let mut block = Vec::new();
            while ending.is_none() {
                let mut order = places_of(&both(&alive, &wanted));
                order.retain(|player| stage.places[*player].is_some());
                if order.len() < 2 {
                    ending = Some(Ending::Alone);
                    break;
                }
                random.shuffle(&mut order);
                round += 1;
                block.extend(self.round(&mut stage, &order, (generation, round, begin), &mut alive, &mut ending));
                let is_over = time.is_over(generation, begin.elapsed());
                if ending.is_some() || is_over || watch.seconds() >= BLOCK_SECONDS {
                    let seen = watch.look().unwrap_or_default();
                    let counted = !time.is_lost(&seen);
                    if !counted {
                        time.lose(&seen);
                        conduct.busy(&seen, time.prolonged());
                    }
                    if let Some(now) = deliver(&mut block, seen.shares, counted, conduct) {
                        wanted = now;
                        if ending.is_none() && !wanted.contains(&true) {
                            ending = Some(Ending::Decided);
                        }
                    }
                }
                // What was delivered may have prolonged the time; what is not delivered yet needs another round.
                if is_over && time.is_over(generation, begin.elapsed()) {
                    break;
                }
            }
            self.close(stage, generation, ending, conduct);
            if let Some(ending) = ending.or(self.is_stopped().then_some(Ending::Interrupted)) {
                return Ok(ending);
            }
        }
        Ok(Ending::Budget)
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Starts all that are active, in random order, and as many at a time as there are cores.
    fn start(&self, generation: u32, active: &[bool], random: &mut Random, start: &mut Start) -> Stage {
        let mut order = places_of(active);
        random.shuffle(&mut order);
        let mut residents = Residents::new(self.program.clone(), self.stop.clone(), self.settings.timeout);
        let mut places = vec![None; active.len()];
        let at_once = zbench_host::machine::cores();
        for (done, player) in order.iter().enumerate() {
            if self.is_stopped() {
                break;
            }
            start.conduct.starting(generation, done, order.len());
            places[*player] = Some(residents.start(&self.players[*player].program));
            if let Some(earlier) = (done + 1).checked_sub(at_once) {
                residents.ready_while(earlier, &mut || start.look());
            }
        }
        start.conduct.starting(generation, order.len(), order.len());
        Stage { residents, places, steps: vec![1; active.len()], done: vec![0; active.len()] }
    }

    /// Steps that are not timed, and one turn as long as those that follow, which tells how many steps a turn should have.
    fn warm_up(&self, stage: &mut Stage, alive: &mut [bool], random: &mut Random, start: &mut Start) -> Option<Ending> {
        let mut order: Vec<usize> = (0..alive.len()).filter(|player| stage.places[*player].is_some()).collect();
        random.shuffle(&mut order);
        for player in order {
            let Some(place) = stage.places[player] else { continue };
            stage.residents.ready_while(place, &mut || start.look());
            let mut count = self.players[player].warmup.max(1) + 1;
            // The last step of the first turn may be an odd one; where steps are short, the median of a whole turn is none.
            for is_second in [false, true] {
                if is_second && count == 1 {
                    break;
                }
                match stage.residents.turn_while(place, count, &mut || start.look()) {
                    resident::Turn::Done(steps) => {
                        stage.done[player] += steps.len();
                        let ms: Vec<f64> = steps.iter().skip(1).map(|step| step.ms).collect();
                        let step = stats::median(&ms).unwrap_or(TURN_MS);
                        count = (TURN_MS / step).ceil().clamp(1.0, 1000.0) as usize;
                    }
                    resident::Turn::Ended => {
                        alive[player] = false;
                        break;
                    }
                    resident::Turn::Stopped => return Some(Ending::Interrupted),
                }
            }
            stage.steps[player] = self.settings.discard + count;
        }
        None
    }

    /// One round. Where the user stops in it, the turns until then are kept and do not count: cells that had none would be left out.
    fn round(
        &self,
        stage: &mut Stage,
        order: &[usize],
        (generation, round, begin): (u32, u32, Instant),
        alive: &mut [bool],
        ending: &mut Option<Ending>,
    ) -> Vec<TurnSample> {
        let mut turns = Vec::with_capacity(order.len());
        for (place, player) in order.iter().copied().enumerate() {
            let at = begin.elapsed().as_secs_f64();
            let turn = match stage.places[player] {
                Some(number) => stage.residents.turn(number, stage.steps[player]),
                None => resident::Turn::Ended,
            };
            if let resident::Turn::Done(steps) = &turn {
                stage.done[player] += steps.len();
            }
            match turn {
                resident::Turn::Done(steps) => turns.push(TurnSample {
                    player,
                    generation,
                    round,
                    order: place as u32 + 1,
                    at,
                    steps,
                    discarded: self.settings.discard,
                    load: Shares::default(),
                    counted: true,
                }),
                resident::Turn::Ended => alive[player] = false,
                resident::Turn::Stopped => {
                    *ending = Some(Ending::Interrupted);
                    turns.iter_mut().for_each(|turn: &mut TurnSample| turn.counted = false);
                    break;
                }
            }
        }
        turns
    }

    /// Ends all processes. Those of the first generation come to the end of their configuration before, so that their losses can be
    /// compared.
    fn close(&self, mut stage: Stage, generation: u32, ending: Option<Ending>, conduct: &mut dyn TurnPolicy) {
        for (player, place) in stage.places.iter().enumerate() {
            let missing = self.players[player].steps.saturating_sub(stage.done[player]);
            let is_whole = missing == 0 || generation > 1 || ending == Some(Ending::Interrupted);
            if let Some(place) = place.filter(|_| !is_whole) {
                stage.residents.turn(place, missing);
            }
        }
        let Stage { residents, places, .. } = stage;
        let mut said: Vec<Option<Execution>> = residents.end(GRACE).into_iter().map(Some).collect();
        let of_player = |place: &Option<usize>| place.and_then(|place| said.get_mut(place)?.take());
        conduct.ended(generation, ending, places.iter().map(of_player).collect());
    }
}

/// The time of an experiment: its budget, and what others add to it.
struct Time<'s> {
    settings: &'s Settings,
    /// The time in which other processes used the cores.
    lost: Duration,
}

impl Time<'_> {
    /// Whether rounds beside these others are discarded.
    fn is_lost(&self, seen: &Seen) -> bool {
        !self.settings.allow_load && seen.shares.is_busy()
    }

    /// Adds time in which others used the cores.
    fn lose(&mut self, seen: &Seen) {
        let seconds = Duration::try_from_secs_f64(seen.seconds).unwrap_or_default();
        self.lost = self.lost.saturating_add(seconds);
    }

    /// By how much that prolongs the budget.
    fn prolonged(&self) -> Duration {
        self.lost.min(self.settings.extra)
    }

    /// Whether the time of this generation, or of the last, is over after so long.
    fn is_over(&self, generation: u32, elapsed: Duration) -> bool {
        let share = f64::from(generation) / f64::from(self.settings.generations.max(1));
        elapsed.saturating_sub(self.prolonged()) >= self.settings.budget.mul_f64(share)
    }
}

/// Observes others while the processes of a generation start, and tells of them.
struct Start<'s, 't> {
    watch: &'s mut dyn Watch,
    conduct: &'s mut dyn TurnPolicy,
    time: &'s mut Time<'t>,
}

impl Start<'_, '_> {
    /// Looks when it is time to.
    fn look(&mut self) {
        if self.watch.seconds() >= LOOK_SECONDS {
            self.take_look();
        }
    }

    fn take_look(&mut self) {
        if let Some(seen) = self.watch.look().filter(|seen| self.time.is_lost(seen)) {
            self.time.lose(&seen);
            self.conduct.busy(&seen, self.time.prolonged());
        }
    }
}

/// Where both are true.
fn both(a: &[bool], b: &[bool]) -> Vec<bool> {
    a.iter().zip(b).map(|(a, b)| *a && *b).collect()
}

/// The places of those that are true.
fn places_of(all: &[bool]) -> Vec<usize> {
    (0..all.len()).filter(|place| all[*place]).collect()
}

/// Tells of a block of rounds, with what others used of the machine meanwhile.
fn deliver(
    block: &mut Vec<TurnSample>,
    load: Shares,
    counted: bool,
    conduct: &mut dyn TurnPolicy,
) -> Option<Vec<bool>> {
    if block.is_empty() {
        return None;
    }
    block.iter_mut().for_each(|turn| (turn.load, turn.counted) = (load, turn.counted && counted));
    Some(conduct.rounds(&std::mem::take(block)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbench_host::processes::Used;

    fn settings(allow_load: bool) -> Settings {
        let seconds = Duration::from_secs;
        let (budget, extra) = (seconds(30), seconds(20));
        Settings { budget, generations: 3, seed: 1, discard: 0, timeout: seconds(9), allow_load, extra }
    }

    fn seen(others: f64, seconds: f64) -> Seen {
        let used = vec![Used { process: 7, name: "cc1".into(), seconds }];
        Seen { shares: Shares { others, stolen: 0.0 }, seconds, used }
    }

    #[test]
    fn discarded_rounds_prolong_the_budget_up_to_its_bound() {
        let settings = settings(false);
        let mut time = Time { settings: &settings, lost: Duration::ZERO };
        let is_over = |time: &Time, generation, seconds| time.is_over(generation, Duration::from_secs(seconds));
        assert!(is_over(&time, 1, 10) && !is_over(&time, 1, 9) && is_over(&time, 3, 30));
        time.lose(&seen(0.9, 15.0));
        assert!(!is_over(&time, 1, 24) && is_over(&time, 1, 25) && !is_over(&time, 3, 44), "15 s more");
        time.lose(&seen(0.9, 15.0));
        assert!(!is_over(&time, 3, 49) && is_over(&time, 3, 50), "20 s more at most");
    }

    /// Others that are always there.
    struct Busy(f64);

    impl Watch for Busy {
        fn seconds(&self) -> f64 {
            self.0
        }
        fn look(&mut self) -> Option<Seen> {
            Some(seen(0.9, self.0))
        }
    }

    #[derive(Default)]
    struct Told(Vec<String>);

    impl TurnPolicy for Told {
        fn rounds(&mut self, _: &[TurnSample]) -> Vec<bool> {
            Vec::new()
        }
        fn busy(&mut self, seen: &Seen, _: Duration) {
            self.0.extend(seen.used.iter().map(|used| used.name.clone()));
        }
    }

    #[test]
    fn others_are_told_of_while_processes_start() {
        for (seconds, allow_load, expected) in [(2.0, false, 1), (1.9, false, 0), (2.0, true, 0)] {
            let (settings, mut told) = (settings(allow_load), Told::default());
            let mut time = Time { settings: &settings, lost: Duration::ZERO };
            Start { watch: &mut Busy(seconds), conduct: &mut told, time: &mut time }.look();
            assert_eq!(told.0, vec!["cc1"; expected], "{seconds} s, {allow_load}");
        }
    }
}
