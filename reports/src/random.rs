//! Chance that can be repeated: which side goes first, where a replay begins.

/// Steele, Lea and Flood's SplitMix64.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The same seed, the same numbers.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// Heads or tails.
    pub fn coin(&mut self) -> bool {
        self.bits() >> 63 == 1
    }

    /// A place in `0..count`; 0 when there is none.
    pub fn below(&mut self, count: usize) -> usize {
        ((u128::from(self.bits()) * count as u128) >> 64) as usize
    }

    /// Puts them in an order of which all are equally likely (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for end in (1..items.len()).rev() {
            items.swap(end, self.below(end + 1));
        }
    }

    /// A number in 0..1.
    pub fn uniform(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }
}
