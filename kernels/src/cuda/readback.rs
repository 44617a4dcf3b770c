//! What a stream's kernels tell the host: what they found wrong, and sums, in slots that threads share.

use crate::memory::device::Address;
use std::thread::ThreadId;

/// Room for sums on their way to the host.
pub(super) const SUM_WORDS: usize = 1024;
/// Numbers of sums of one slot until the first comes again.
const ROUNDS: u32 = u32::MAX / SUM_WORDS as u32;

/// Lent to one thread from the first kernel that writes here to the last that reads, or until the host has read it: threads
/// which share a stream do not mix theirs.
pub(super) struct ScalarReadback {
    /// A fault's words. Kernels write them at any time; who reads and clears them holds this.
    pub faults: Address,
    /// [`SUM_WORDS`] of f64: the blocks' shares of one sum.
    pub sums: Address,
    /// As many f64: whole sums that the host will ask for.
    pub slots: Address,
    /// Who asked for the sum in a slot, and its number.
    taken: Box<[Option<(ThreadId, u32)>]>,
    round: u32,
}

impl ScalarReadback {
    pub(super) fn new(faults: Address, sums: Address, slots: Address) -> ScalarReadback {
        ScalarReadback { faults, sums, slots, taken: vec![None; SUM_WORDS].into(), round: 0 }
    }

    /// A slot for this thread, and its sum's number, which no other will have for a long time; none where all are taken.
    pub(super) fn take(&mut self) -> Option<(Address, u32)> {
        let at = self.taken.iter().position(Option::is_none)?;
        self.round = (self.round + 1) % ROUNDS;
        let number = self.round * SUM_WORDS as u32 + at as u32;
        self.taken[at] = Some((std::thread::current().id(), number));
        Some((self.slots + at as Address * 8, number))
    }

    /// In which slot a sum is; none where it is in no slot any more.
    pub(super) fn slot(&self, number: u32) -> Option<usize> {
        let at = number as usize % SUM_WORDS;
        self.taken[at].is_some_and(|(_, taken)| taken == number).then_some(at)
    }

    /// Slots from the first to the last that is taken.
    pub(super) fn len(&self) -> usize {
        self.taken.iter().rposition(Option::is_some).map_or(0, |last| last + 1)
    }

    /// Frees these, and all others of this thread's: what it has not asked for now it never will.
    pub(super) fn free(&mut self, numbers: impl Iterator<Item = u32>) {
        for number in numbers {
            if let Some(at) = self.slot(number) {
                self.taken[at] = None;
            }
        }
        let own = std::thread::current().id();
        for taken in self.taken.iter_mut().filter(|taken| taken.is_some_and(|(thread, _)| thread == own)) {
            *taken = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_one_threads_until_that_has_been_told() {
        let mut readback = ScalarReadback::new(0, 256, 8448);
        let mine: Vec<(Address, u32)> = (0..3).map(|_| readback.take().unwrap()).collect();
        assert_eq!(mine.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [8448, 8456, 8464]);
        let others = std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let others = [readback.take().unwrap(), readback.take().unwrap()];
                // Its own are told, and with them one that was handed over.
                readback.free([others[0].1, mine[1].1].into_iter());
                others
            });
            other.join().unwrap()
        });
        assert_eq!(readback.len(), 3);
        assert!(others.iter().chain([&mine[1]]).all(|(_, number)| readback.slot(*number).is_none()));
        assert_eq!((readback.slot(mine[0].1), readback.slot(mine[2].1)), (Some(0), Some(2)));
        // The slot is used again, and the sum that was in it does not come back.
        let (at, number) = readback.take().unwrap();
        assert_eq!((at, readback.slot(number), readback.slot(mine[1].1)), (8456, Some(1), None));
        readback.free(std::iter::empty());
        assert_eq!(readback.len(), 0);
        for _ in 0..SUM_WORDS {
            readback.take().unwrap();
        }
        assert!(readback.take().is_none() && readback.len() == SUM_WORDS);
    }

    #[test]
    fn numbers_come_again_after_four_million() {
        let mut readback = ScalarReadback::new(0, 0, 0);
        readback.round = ROUNDS - 2;
        let next = |readback: &mut ScalarReadback| {
            let number = readback.take().unwrap().1;
            readback.free([number].into_iter());
            number
        };
        assert_eq!((next(&mut readback), next(&mut readback)), ((ROUNDS - 1) * SUM_WORDS as u32, 0));
    }
}
