//! Random step times with known truth, by a generator that shares nothing with the code under test.

/// A counter that is hashed.
pub struct Dice(pub u64);

impl Dice {
    /// Uniform in (0, 1).
    pub fn uniform(&mut self) -> f64 {
        self.0 += 1;
        let mut bits = self.0.wrapping_mul(0xd6e8_feb8_6659_fd93);
        for _ in 0..3 {
            bits ^= bits >> 32;
            bits = bits.wrapping_mul(0xd6e8_feb8_6659_fd93);
        }
        ((bits >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    /// Normal with mean 0 and variance 1, by Box and Muller.
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * self.uniform().ln()).sqrt();
        radius * (2.0 * std::f64::consts::PI * self.uniform()).cos()
    }

    fn happens(&mut self, share: f64) -> bool {
        self.uniform() < share
    }
}

/// What step times look like. All spreads are of logarithms, so about relative.
#[derive(Clone, Copy, Debug)]
pub enum World {
    /// Lognormal: trials spread by the first, steps within a trial by the second number.
    Plain(f64, f64),
    /// Trials spread by 2 %, one in ten is 15 % slower; steps have tails (lognormal, 10 %), one in twenty takes half as
    /// long again to three times as long.
    Heavy,
}

impl World {
    /// One trial around `centre` ms.
    pub fn trial(self, dice: &mut Dice, centre: f64, steps: usize) -> Vec<f64> {
        match self {
            World::Plain(between, within) => {
                let own = centre * (between * dice.normal()).exp();
                (0..steps).map(|_| own * (within * dice.normal()).exp()).collect()
            }
            World::Heavy => {
                let slow = if dice.happens(0.1) { 1.15 } else { 1.0 };
                let own = centre * slow * (0.02 * dice.normal()).exp();
                let step = |dice: &mut Dice| {
                    let spike = if dice.happens(0.05) { 1.5 + 1.5 * dice.uniform() } else { 1.0 };
                    own * spike * (0.1 * dice.normal()).exp()
                };
                (0..steps).map(|_| step(dice)).collect()
            }
        }
    }

    /// A side of some trials.
    pub fn side(self, dice: &mut Dice, centre: f64, trials: usize, steps: usize) -> Vec<Vec<f64>> {
        (0..trials).map(|_| self.trial(dice, centre, steps)).collect()
    }
}

/// Three standard errors of a share `p` found in `experiments`.
pub fn three_errors(p: f64, experiments: usize) -> f64 {
    3.0 * (p * (1.0 - p) / experiments as f64).sqrt()
}
