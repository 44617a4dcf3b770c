//! What a run of requests does to a ledger, as one thing that can be done again.

use super::{Category, Ledger};

/// The changes that a run of requests and releases makes, whatever was in use before it: how far each category and all
/// together go up and where they end, from where they began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryDelta {
    live: [i128; 6],
    total: i128,
    peak: [i128; 6],
    total_peak: i128,
    at_peak: [i128; 6],
}

impl MemoryDelta {
    pub fn add(&mut self, category: Category, bytes: u64) {
        let i = category as usize;
        self.live[i] += i128::from(bytes);
        self.total += i128::from(bytes);
        self.peak[i] = self.peak[i].max(self.live[i]);
        if self.total > self.total_peak {
            self.total_peak = self.total;
            self.at_peak = self.live;
        }
    }

    /// Counts a release, be it of what was allocated before the run.
    pub fn sub(&mut self, category: Category, bytes: u64) {
        self.live[category as usize] -= i128::from(bytes);
        self.total -= i128::from(bytes);
    }
}

impl MemoryDelta {
    /// How far all categories together go above where they began.
    pub fn rise(&self) -> u64 {
        u64::try_from(self.total_peak).unwrap_or(u64::MAX)
    }

    /// The same run so many times, one after the other.
    pub fn repeated(&self, times: usize) -> MemoryDelta {
        if times == 0 {
            return MemoryDelta::default();
        }
        let (times, before_last) = (times as i128, times as i128 - 1);
        // A run begins where the one before it ended. So the last one goes highest where runs leave more in use, else the first.
        let peak_of = |peak: i128, live: i128| peak + before_last * live.max(0);
        let to_the_last = if self.total > 0 { before_last } else { 0 };
        MemoryDelta {
            live: self.live.map(|live| times * live),
            total: times * self.total,
            peak: std::array::from_fn(|i| peak_of(self.peak[i], self.live[i])),
            total_peak: peak_of(self.total_peak, self.total),
            at_peak: std::array::from_fn(|i| self.at_peak[i] + to_the_last * self.live[i]),
        }
    }
}

impl Ledger {
    /// Counts a whole run: the same as each of its allocations and releases in turn.
    pub fn swing(&mut self, swing: &MemoryDelta) {
        let moved = |from: u64, by: i128| u64::try_from((i128::from(from) + by).max(0)).unwrap_or(u64::MAX);
        // A run that stays below where it began changes no peak: what is in use is never above its peak.
        let total = moved(self.live_total(), swing.total_peak);
        if total > self.total_peak {
            self.total_peak = total;
            self.at_peak = std::array::from_fn(|i| moved(self.live[i], swing.at_peak[i]));
        }
        for i in 0..self.live.len() {
            self.peak[i] = self.peak[i].max(moved(self.live[i], swing.peak[i]));
            self.live[i] = moved(self.live[i], swing.live[i]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Runs of requests, each once by itself and once as a swing, over whatever was in use before.
        #[test]
        fn a_swing_is_its_requests(
            before in prop::collection::vec((0usize..6, 0u64..1000), 0..20),
            runs in prop::collection::vec(prop::collection::vec((0usize..6, 0u64..1000, any::<bool>()), 0..30), 1..6),
        ) {
            let mut one_by_one = Ledger::default();
            before.iter().for_each(|(category, bytes)| one_by_one.add(Category::ALL[*category], *bytes));
            let mut in_swings = one_by_one.clone();
            for run in runs {
                let mut swing = MemoryDelta::default();
                for (category, bytes, gives) in run {
                    let category = Category::ALL[category];
                    if gives {
                        let bytes = bytes.min(one_by_one.live(category));
                        one_by_one.sub(category, bytes);
                        swing.sub(category, bytes);
                    } else {
                        one_by_one.add(category, bytes);
                        swing.add(category, bytes);
                    }
                }
                in_swings.swing(&swing);
                prop_assert_eq!(&in_swings, &one_by_one);
            }
        }

        /// The same run many times, one by one and at once, over as much as all of them can give back.
        #[test]
        fn a_repeated_swing_is_as_many_swings(
            run in prop::collection::vec((0usize..6, 0u64..1000, any::<bool>()), 0..30),
            times in 0usize..5,
        ) {
            let (mut one_by_one, mut swing) = (Ledger::default(), MemoryDelta::default());
            Category::ALL.iter().for_each(|category| one_by_one.add(*category, 200_000));
            for (category, bytes, gives) in run {
                let category = Category::ALL[category];
                if gives { swing.sub(category, bytes) } else { swing.add(category, bytes) }
            }
            let mut at_once = one_by_one.clone();
            (0..times).for_each(|_| one_by_one.swing(&swing));
            at_once.swing(&swing.repeated(times));
            prop_assert_eq!(at_once, one_by_one);
        }
    }
}
