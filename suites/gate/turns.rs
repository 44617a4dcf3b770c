//! Turns of the two sides of a gate: both run by their public command, whatever version they are, stopped and continued.

use super::measure::{Arm, Programs};
use std::ffi::OsString;
use std::time::Duration;
use zbench_reports::gate::turns::Round;
use zbench_runner::turns::load::{Others, Seen};
use zbench_runner::turns::resident::{ENDLESS, ExternalCommand, Program};
use zbench_runner::turns::{Ending, Experiment, Participant, Settings, TurnPolicy, TurnSample, TurnsError};

impl Programs<'_> {
    /// A side as it takes turns.
    fn player(&self, arm: &Arm, side: usize) -> Participant {
        let notebook = self.scratch.join(format!("turns-{side}"));
        let mut command = vec![arm.program.clone().into_os_string()];
        // A line for every step, on standard error, is what tells the time.
        command.extend(arm.arguments.iter().filter(|argument| *argument != "--quiet").cloned());
        command.extend(["--log-every", "1", "--set", ENDLESS, "--notebook"].map(OsString::from));
        command.push(notebook.into_os_string());
        let foreign = ExternalCommand { command, tokens: self.tokens[side], word: "step".into() };
        Participant { program: Program::Command(foreign), warmup: 1, steps: 0 }
    }

    /// Takes turns for so many seconds, in so many generations of processes. `hear` is told of the rounds, a block at a time, and
    /// says whether they go on; `others` is told of other processes whose load discards rounds.
    ///
    /// # Errors
    /// The time is too short for one round.
    pub fn take_turns(
        &self,
        seconds: f64,
        generations: u32,
        others: &mut Others,
        hear: &mut dyn FnMut(&[Round]) -> bool,
    ) -> Result<Ending, TurnsError> {
        let players = [self.player(&self.baseline, 0), self.player(&self.candidate, 1)];
        let experiment = Experiment {
            program: self.candidate.program.clone(),
            players: &players,
            settings: Settings {
                // The time is at most that of a budget, which is a duration.
                budget: Duration::try_from_secs_f64(seconds).unwrap_or_default(),
                generations,
                seed: self.seed,
                discard: 0,
                timeout: self.timeout,
                allow_load: self.allow_load,
                // A gate keeps to its time.
                extra: Duration::ZERO,
            },
            stop: self.stop.clone(),
        };
        experiment.run(&mut Listener { ended: 0.0, others, hear })
    }
}

/// Makes rounds of turns.
struct Listener<'a> {
    /// When the last round ended, in seconds since the beginning.
    ended: f64,
    others: &'a mut Others,
    hear: &'a mut dyn FnMut(&[Round]) -> bool,
}

impl TurnPolicy for Listener<'_> {
    fn rounds(&mut self, turns: &[TurnSample]) -> Vec<bool> {
        let mut rounds = Vec::new();
        for round in turns.chunk_by(|a, b| a.round == b.round) {
            let of = |player: usize| round.iter().find(|turn| turn.player == player);
            let (Some(base), Some(now)) = (of(0), of(1)) else { continue };
            let end = |turn: &TurnSample| turn.at + turn.steps.iter().map(|step| step.ms).sum::<f64>() / 1e3;
            let ended = end(base).max(end(now)).max(self.ended);
            let (baseline, candidate) = (base.seconds_per_token(), now.seconds_per_token());
            // Without a step or a token there is no time per token.
            if [baseline, candidate].iter().all(|time| time.is_finite() && *time > 0.0) {
                rounds.push(Round {
                    round: base.round,
                    generation: base.generation,
                    counted: base.counted,
                    baseline_first: base.order < now.order,
                    baseline_seconds_per_token: short(baseline),
                    candidate_seconds_per_token: short(candidate),
                    others: (1e4 * base.load.others).round() / 1e4,
                    seconds: (1e4 * (ended - self.ended)).round() / 1e4,
                    looked: false,
                });
                self.ended = ended;
            }
        }
        if let Some(last) = rounds.last_mut() {
            last.looked = true;
        }
        vec![(self.hear)(&rounds); 2]
    }

    fn busy(&mut self, seen: &Seen, _prolonged: Duration) {
        self.others.add(seen);
    }
}

/// Digits that a clock has.
fn short(value: f64) -> f64 {
    format!("{value:.6e}").parse().unwrap_or(value)
}
