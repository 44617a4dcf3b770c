//! The seeded generator. All arithmetic is on u64 and wraps:
//!
//! ```text
//! mix(x):   z = x + 9E3779B97F4A7C15
//!           z = (z ^ z >> 30) * BF58476D1CE4E5B9
//!           z = (z ^ z >> 27) * 94D049BB133111EB
//!           mix = z ^ z >> 31                            (splitmix64)
//! h(g, t) = mix(seed << 48 ^ g << 20 ^ t)
//! A       = min(vocab_size, 256), the tokens in use
//! x[g][0] = h(g, 0) mod A
//! x[g][t] = (5 x[g][t-1] + 17 + h(g, t) mod 4) mod A     for t = 1 ..= seq_len
//! ```
//!
//! Every token but the first follows from the one before it and one of four equally likely steps, so a model can learn
//! the rule, and no model's expected loss is below ln 4 = 1.386 (where A is at least 4).

use super::order::mix;

/// At most so many tokens are in use, so that small models learn something within a short run.
pub const MOST_TOKENS: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Synthetic {
    seed: u64,
    tokens: u64,
}

impl Synthetic {
    /// The generator for a vocabulary; one of 0 tokens counts as one of 1.
    pub fn new(vocab_size: usize, seed: u64) -> Synthetic {
        Synthetic { seed, tokens: vocab_size.clamp(1, MOST_TOKENS) as u64 }
    }

    /// Writes sample `g`: `targets[t]` is the token after `inputs[t]`; both have the same length.
    pub fn fill(&self, g: u64, inputs: &mut [u32], targets: &mut [u32]) {
        let key = (self.seed << 48) ^ (g << 20);
        let mut token = mix(key) % self.tokens;
        for (t, (input, target)) in (1u64..).zip(inputs.iter_mut().zip(targets)) {
            *input = token as u32;
            token = (5 * token + 17 + mix(key ^ t) % 4) % self.tokens;
            *target = token as u32;
        }
    }
}
