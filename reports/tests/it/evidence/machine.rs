//! A machine whose speed wanders, on which cells take turns.

use zbench_reports::gate::random::Random;

/// Normal with mean 0 and variance 1, by Box and Muller.
pub fn normal(chance: &mut Random) -> f64 {
    let radius = (-2.0 * (1.0 - chance.uniform()).ln()).sqrt();
    radius * (2.0 * std::f64::consts::PI * chance.uniform()).cos()
}

/// How the machine behaves. All spreads are of logarithms.
#[derive(Debug, Clone, Copy)]
pub struct Weather {
    /// Standard deviation of the machine's speed.
    pub wander: f64,
    /// In which time it forgets, in seconds.
    pub memory: f64,
    /// Standard deviation of a step.
    pub noise: f64,
    /// Whether one step in twenty takes much longer: by an exponential variable of mean 40 %.
    pub tails: bool,
    /// Standard deviation of the speed of a process, for its whole life.
    pub instance: f64,
}

/// What was measured on the quickstart: 25 % in 15 s, steps of 6 %, heavy tails.
pub const USUAL: Weather = Weather { wander: 0.25, memory: 15.0, noise: 0.06, tails: true, instance: 0.0 };

/// Seconds of a step.
pub const STEP: f64 = 0.1;

/// A machine in some weather: an Ornstein-Uhlenbeck process of slowness, and noise on each step.
pub struct Machine {
    pub chance: Random,
    pub seconds: f64,
    weather: Weather,
    slowness: f64,
}

impl Machine {
    pub fn new(seed: u64, weather: Weather) -> Self {
        let mut chance = Random::new(seed);
        let slowness = weather.wander * normal(&mut chance);
        Self { chance, seconds: 0.0, weather, slowness }
    }

    /// How slow a new process is against its program.
    pub fn start(&mut self) -> f64 {
        self.weather.instance * normal(&mut self.chance)
    }

    /// Lets time pass.
    pub fn wait(&mut self, seconds: f64) {
        let kept = (-seconds / self.weather.memory).exp();
        self.slowness =
            kept * self.slowness + self.weather.wander * (1.0 - kept * kept).sqrt() * normal(&mut self.chance);
        self.seconds += seconds;
    }

    /// The logarithm of a step's time per token, of a process that is slow by `own`.
    pub fn step(&mut self, own: f64) -> f64 {
        let mut noise = self.weather.noise * normal(&mut self.chance);
        if self.weather.tails && self.chance.uniform() < 0.05 {
            noise -= 0.4 * (1.0 - self.chance.uniform()).ln();
        }
        let time = self.slowness + noise + own;
        self.wait(STEP);
        time
    }
}
