//! A machine that is made up: noise of several shapes, a clock that moves by trials alone.

use zbench_reports::gate::random::Random;
use zbench_reports::gate::{Bench, Opponent, Question, Rules, Side, Trial, metric};
use zbench_reports::record::Status;

/// Shapes of noise, of about the same width in the middle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noise {
    Normal,
    /// One draw in ten is ten times as wide.
    HeavyTails,
    /// Waits add up and nothing takes away.
    Skewed,
    /// Student's with two degrees of freedom: no variance.
    Wild,
}

impl Noise {
    pub const ALL: [Noise; 4] = [Noise::Normal, Noise::HeavyTails, Noise::Skewed, Noise::Wild];

    /// One draw.
    pub fn draw(self, random: &mut Random) -> f64 {
        match self {
            Noise::Normal => normal(random),
            Noise::HeavyTails => normal(random) * if random.uniform() < 0.1 { 10.0 } else { 1.0 },
            Noise::Skewed => -(1.0 - random.uniform()).ln(),
            Noise::Wild => normal(random) / (-(1.0 - random.uniform()).ln()).sqrt(),
        }
    }
}

/// Box and Muller's.
pub fn normal(random: &mut Random) -> f64 {
    (-2.0 * (1.0 - random.uniform()).ln()).sqrt() * (2.0 * std::f64::consts::PI * random.uniform()).cos()
}

/// A made-up machine.
pub struct Machine {
    pub random: Random,
    pub noise: Noise,
    /// Width of the noise of one trial, as a share.
    pub width: f64,
    /// How much of a disturbance is left in the next trial.
    pub memory: f64,
    /// Share by which it gets slower every second.
    pub drift: f64,
    /// The candidate's time to the baseline's.
    pub factor: f64,
    /// Seconds of a trial.
    pub trial_seconds: f64,
    pub clock: f64,
    pub disturbance: f64,
    /// Trials of each side.
    pub count: [usize; 2],
    /// Changes a trial before it is handed out.
    #[allow(clippy::type_complexity)]
    pub then: Box<dyn FnMut(Side, usize, Trial) -> Option<Trial>>,
}

impl Machine {
    pub fn new(seed: u64, noise: Noise, width: f64) -> Machine {
        Machine {
            random: Random::new(seed),
            noise,
            width,
            memory: 0.0,
            drift: 0.0,
            factor: 1.0,
            trial_seconds: 0.5,
            clock: 0.0,
            disturbance: 0.0,
            count: [0, 0],
            then: Box::new(|_, _, trial| Some(trial)),
        }
    }
}

/// A trial of ten steps that each take this long.
pub fn trial(ms: f64) -> Trial {
    let mut trial = Trial::ended(Status::Measured, "", 0.5);
    trial.step_ms = vec![ms; 10];
    trial.step_tokens = 256.0;
    trial.losses = vec![Some(5.5), Some(5.25)];
    for (name, value) in [
        ("tokens_per_second", 256.0 / ms * 1e3),
        ("step_ms_p50", ms),
        ("peak_memory_bytes", 4096.0),
        ("wire_bytes", 1024.0),
    ] {
        trial.values.set(name, value);
    }
    trial
}

impl Bench for Machine {
    fn trial(&mut self, side: Side) -> Option<Trial> {
        self.disturbance = self.memory * self.disturbance + self.width * self.noise.draw(&mut self.random);
        let factor = if side == Side::Candidate { self.factor } else { 1.0 };
        let ms = 10.0 * factor * (self.disturbance + self.drift * self.clock).exp();
        self.clock += self.trial_seconds;
        let place = usize::from(side == Side::Candidate);
        self.count[place] += 1;
        (self.then)(side, self.count[place], trial(ms))
    }

    fn seconds(&mut self) -> f64 {
        self.clock
    }
}

/// The rules of these tests: defaults with one noisy metric.
pub fn rules() -> Rules {
    Rules::default()
}

/// A question about a live opponent.
pub fn question(rules: &Rules, opponent: Opponent, seed: u64) -> Question<'_> {
    Question {
        rules,
        cell: "cell".into(),
        key: "key".into(),
        opponent,
        noisy_rows: rules.noisy(),
        seconds: rules.time_budget,
        seed,
    }
}

/// A rule by name with its default bound.
pub fn rule(name: &str) -> zbench_reports::gate::Rule {
    let metric = metric::find(name).expect("a known metric");
    zbench_reports::gate::Rule { metric, bound: zbench_reports::gate::Bound::default_of(metric.kind) }
}
