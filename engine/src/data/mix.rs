//! Which file the next sequence is of, where there are several: by weight, as evenly as whole sequences can be.
//!
//! Weights become shares of [`PERIOD`] sequences by largest remainders, one at least for each file. Within a period the
//! next sequence is of the file that is furthest behind its share (the first of them, where several are), which keeps
//! every beginning of it near the shares. Periods repeat, so the file of a sequence follows from its number alone.

/// Sequences of a period: shares are whole ten-thousandths.
pub(super) const PERIOD: usize = 10_000;

#[derive(Clone, Debug)]
pub(super) struct Mix {
    /// By place in the period: the file, and how many of it come before in the period.
    turns: Vec<(u32, u32)>,
    /// By file: its sequences in a period.
    shares: Vec<u32>,
}

impl Mix {
    /// Of weights, which are positive numbers; at most [`PERIOD`] of them. One has a period of one.
    pub fn new(weights: &[f64]) -> Mix {
        if weights.len() < 2 {
            return Mix { turns: vec![(0, 0)], shares: vec![1] };
        }
        let shares = shares(weights);
        let mut given = vec![0u32; shares.len()];
        let mut turns = Vec::with_capacity(PERIOD);
        for place in 1..=PERIOD as u64 {
            let lack = |file: usize| (place * u64::from(shares[file])) as i64 - i64::from(given[file]) * PERIOD as i64;
            let open = (0..shares.len()).filter(|file| given[*file] < shares[*file]);
            // The first of those that lack most.
            let next = open.max_by_key(|file| (lack(*file), std::cmp::Reverse(*file))).unwrap_or(0);
            turns.push((next as u32, given[next]));
            given[next] += 1;
        }
        Mix { turns, shares }
    }

    /// The file of a sequence, and which of that file's sequences it is, counted without end.
    pub fn turn(&self, sequence: u64) -> (usize, u64) {
        let period = self.turns.len() as u64;
        let (file, before) = self.turns[(sequence % period) as usize];
        let file = file as usize;
        (file, (sequence / period).wrapping_mul(u64::from(self.shares[file])).wrapping_add(u64::from(before)))
    }
}

/// Whole shares of the period, by largest remainders, one at least for each.
fn shares(weights: &[f64]) -> Vec<u32> {
    // Scaled by the largest first: their sum may be more than a number holds.
    let largest = weights.iter().copied().fold(0.0, f64::max);
    let scaled: Vec<f64> = weights.iter().map(|weight| weight / largest).collect();
    let sum: f64 = scaled.iter().sum();
    let exact = |file: usize| scaled[file] / sum * PERIOD as f64;
    let mut shares: Vec<u32> = (0..weights.len()).map(|file| (exact(file) as u32).max(1)).collect();
    let given = |shares: &[u32]| shares.iter().map(|share| *share as usize).sum::<usize>();
    while given(&shares) != PERIOD {
        let lacks = |file: usize| exact(file) - f64::from(shares[file]);
        let files = 0..shares.len();
        if given(&shares) < PERIOD {
            let Some(most) = files.max_by(|a, b| lacks(*a).total_cmp(&lacks(*b)).then(b.cmp(a))) else { break };
            shares[most] += 1;
        } else {
            let Some(least) = files.filter(|file| shares[*file] > 1).min_by(|a, b| lacks(*a).total_cmp(&lacks(*b)))
            else {
                break;
            };
            shares[least] -= 1;
        }
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn shares_are_those_of_the_weights() {
        assert_eq!(shares(&[0.7, 0.3]), [7000, 3000]);
        assert_eq!(shares(&[1.0, 1.0, 1.0]), [3334, 3333, 3333]);
        assert_eq!(shares(&[1e30, 1.0]), [9999, 1]);
        let mix = Mix::new(&[3.0, 1.0]);
        let files: Vec<usize> = (0..8).map(|sequence| mix.turn(sequence).0).collect();
        assert_eq!(files, [0, 0, 1, 0, 0, 0, 1, 0]);
        assert_eq!(Mix::new(&[5.0]).turn(123), (0, 123));
    }

    proptest! {
        #[test]
        fn every_beginning_is_near_the_shares_and_no_sequence_is_left_out(
            weights in proptest::collection::vec(0.01f64..10.0, 2..8),
        ) {
            let mix = Mix::new(&weights);
            let sum: f64 = weights.iter().sum();
            let mut given = vec![0u64; weights.len()];
            for sequence in 0..2 * PERIOD as u64 + 7 {
                let (file, which) = mix.turn(sequence);
                prop_assert_eq!(which, given[file], "sequence {} of file {}", sequence, file);
                given[file] += 1;
                for (file, weight) in weights.iter().enumerate() {
                    let due = (sequence + 1) as f64 * weight / sum;
                    // A file is at most so many turns early or late as there are files, and shares are rounded to 1 in 10,000.
                    prop_assert!((given[file] as f64 - due).abs() < weights.len() as f64 + 2.0);
                }
            }
        }
    }
}
