//! What forward has kept of a micro-batch's blocks, and which of it is worth least: the heuristic of dynamic tensor
//! rematerialisation.

use crate::model::layers::eviction::{INPUT, OUTPUT};

/// The input of a block and what it keeps; and the same without the input.
pub const ALL: u16 = (1 << OUTPUT) - 1;
pub const TENSORS: u16 = ALL & !(1 << INPUT);

/// Of blocks of one kind.
#[derive(Clone, Debug)]
pub struct Kind {
    /// By place: bytes of what forward keeps.
    pub bytes: [u64; OUTPUT],
    /// By place: operations to make it from what it is made from; of the input none, which another block makes.
    pub flops: [u128; OUTPUT + 1],
    /// As [`crate::model::layers::Block::sources`].
    pub sources: [u16; OUTPUT + 1],
}

/// A block of a micro-batch. Places are bits.
#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// The number of its kind, from its forward to its backward.
    kind: Option<usize>,
    /// What forward has kept.
    kept: u16,
    /// What of it is there.
    there: u16,
    /// What of it lives elsewhere.
    away: u16,
    /// By place: which action made or read it last.
    used: [usize; OUTPUT],
}

impl State {
    /// What need not be made again.
    fn held(&self) -> u16 {
        self.there | self.away
    }
}

/// What is dropped next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    pub layer: usize,
    pub place: usize,
    /// `cost / (bytes * staleness)`.
    pub score: f64,
    /// `bytes * staleness`.
    weight: u128,
}

impl Candidate {
    /// Whether it is dropped before another one. Of those that cost nothing the larger and older one is.
    pub fn is_before(&self, other: &Candidate) -> bool {
        self.score.total_cmp(&other.score).then(other.weight.cmp(&self.weight)).is_lt()
    }
}

/// What is held of a micro-batch, by layer.
#[derive(Clone, Debug)]
pub struct Held(Vec<State>);

impl Held {
    /// Nothing, of so many layers.
    pub fn new(layers: usize) -> Held {
        Held(vec![State::default(); layers])
    }

    /// Action number `at` was a block's forward, which kept this.
    pub fn forward(&mut self, layer: usize, kind: usize, kept: u16, at: usize) {
        self.0[layer] = State { kind: Some(kind), kept, there: kept, away: 0, used: [at; OUTPUT] };
    }

    /// Action number `at` made a block's tensors again: this is there.
    pub fn recompute(&mut self, layer: usize, there: u16, at: usize) {
        let state = &mut self.0[layer];
        (state.there, state.used) = (there, [at; OUTPUT]);
    }

    /// Action number `at` made a block's input again.
    pub fn input(&mut self, layer: usize, at: usize) {
        let state = &mut self.0[layer];
        state.there |= 1 << INPUT;
        state.used[INPUT] = at;
    }

    pub fn evict(&mut self, layer: usize, place: usize) {
        self.0[layer].there &= !(1 << place);
    }

    /// A tensor was moved to where it is kept for the time being.
    pub fn offload(&mut self, layer: usize, place: usize) {
        self.evict(layer, place);
        self.0[layer].away |= 1 << place;
    }

    /// Action number `at` brought back what was away.
    pub fn fetch(&mut self, layer: usize, at: usize) {
        let state = &mut self.0[layer];
        for place in (INPUT..OUTPUT).filter(|place| state.away & 1 << place != 0) {
            state.used[place] = at;
        }
        state.there |= std::mem::take(&mut state.away);
    }

    /// Whether something of a block is away.
    pub fn is_away(&self, layer: usize) -> bool {
        self.0[layer].away != 0
    }

    /// A block's backward has taken what was there.
    pub fn backward(&mut self, layer: usize) {
        self.0[layer] = State::default();
    }

    /// Whether a block's input is there or away, and need not be made again.
    pub fn has_input(&self, layer: usize) -> bool {
        self.0[layer].held() & 1 << INPUT != 0
    }

    /// What is there of a block, as bits.
    pub fn there(&self, layer: usize) -> u16 {
        self.0[layer].there
    }

    /// Whether something that forward kept must be made again.
    pub fn lacks(&self, layer: usize) -> bool {
        let state = &self.0[layer];
        state.kept & !state.held() != 0
    }

    /// Operations to make a tensor again, with everything that it is made from and that was dropped, through as many blocks before it as
    /// that takes.
    pub fn cost(&self, kinds: &[Kind], layer: usize, place: usize) -> u128 {
        let (mut layer, mut wanted) = (layer, 1u16 << place);
        let mut sum = 0u128;
        loop {
            let state = &self.0[layer];
            let Some(kind) = state.kind.and_then(|kind| kinds.get(kind)) else { return sum };
            // What is made from others stands behind them.
            for place in (INPUT + 1..=OUTPUT).rev() {
                if wanted & 1 << place != 0 {
                    sum = sum.saturating_add(kind.flops[place]);
                    wanted |= kind.sources[place] & !state.held();
                }
            }
            match (wanted & 1 << INPUT != 0, layer.checked_sub(1)) {
                (true, Some(before)) => (layer, wanted) = (before, 1 << OUTPUT),
                _ => return sum,
            }
        }
    }

    /// What is worth least before action number `at`, of what `may_go` in a layer. Inputs only of blocks behind a block, which makes
    /// them again.
    pub fn least(&self, kinds: &[Kind], at: usize, may_go: impl Fn(usize) -> u16) -> Option<Candidate> {
        let mut least: Option<Candidate> = None;
        for (layer, state) in self.0.iter().enumerate() {
            let Some(kind) = state.kind.and_then(|kind| kinds.get(kind)) else { continue };
            let follows_block = layer.checked_sub(1).is_some_and(|before| self.0[before].kind.is_some());
            let places = state.there & may_go(layer) & if follows_block { ALL } else { TENSORS };
            for place in (INPUT..OUTPUT).filter(|place| places & 1 << place != 0 && kind.bytes[*place] > 0) {
                let staleness = at.saturating_sub(state.used[place]).max(1);
                let weight = u128::from(kind.bytes[place]) * staleness as u128;
                let score = self.cost(kinds, layer, place) as f64 / weight as f64;
                let candidate = Candidate { layer, place, score, weight };
                if least.is_none_or(|least| candidate.is_before(&least)) {
                    least = Some(candidate);
                }
            }
        }
        least
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::SavedTensor;
    use crate::model::layers::eviction::tensor_at;

    fn place(tensor: SavedTensor) -> usize {
        (0..OUTPUT).find(|place| tensor_at(*place) == Some(tensor)).unwrap()
    }

    /// A block of one after the other, in numbers that are easy to follow: norms and the activation cost nothing.
    fn kind() -> Kind {
        let bits = |places: &[usize]| places.iter().map(|place| 1u16 << place).sum();
        Kind {
            //      input, norm, qkv, attention, residual, norm, gate_up, activation
            bytes: [10, 10, 30, 10, 10, 10, 80, 40],
            flops: [0, 0, 600, 50, 200, 0, 1600, 0, 800],
            sources: [
                0,
                bits(&[0]),
                bits(&[1]),
                bits(&[2]),
                bits(&[0, 3]),
                bits(&[4]),
                bits(&[5]),
                bits(&[6]),
                bits(&[4, 7]),
            ],
        }
    }

    #[test]
    fn the_cost_is_that_of_the_tensor_and_of_evicted_ancestors() {
        use SavedTensor::*;
        let (kinds, mut held) = ([kind()], Held::new(3));
        (0..3).for_each(|layer| held.forward(layer, 0, ALL, layer));
        let cost = |held: &Held, layer, tensor| held.cost(&kinds, layer, place(tensor));
        assert_eq!(cost(&held, 1, Residual), 200);
        held.evict(1, place(Attention));
        assert_eq!(cost(&held, 1, Residual), 250);
        assert_eq!(cost(&held, 1, MlpNorm), 0, "its own source is there");
        held.evict(1, place(Qkv));
        held.evict(1, place(AttentionNorm));
        assert_eq!(cost(&held, 1, Residual), 850);
        assert_eq!(cost(&held, 1, Activation), 0);
        held.evict(1, place(MlpNorm));
        assert_eq!(cost(&held, 1, GateUp), 1600);
        held.evict(1, place(Residual));
        // gate_up from mlp_norm from residual from attention from qkv from attention_norm from the input.
        assert_eq!(cost(&held, 1, GateUp), 1600 + 200 + 50 + 600);
        // Another block's tensors do not count, but for the input, which the block before makes as its output.
        assert_eq!(cost(&held, 2, GateUp), 1600);
        assert_eq!(held.cost(&kinds, 2, INPUT), 800 + 850);
        held.evict(1, INPUT);
        assert_eq!(held.cost(&kinds, 2, INPUT), 800 + 850 + 800);
        assert_eq!(held.cost(&kinds, 1, INPUT), 800);
        held.backward(0);
        assert_eq!(held.cost(&kinds, 1, INPUT), 0, "nothing is known of what is not a block in flight");
    }

    #[test]
    fn the_smallest_cost_over_bytes_times_staleness_goes_first() {
        use SavedTensor::*;
        let (kinds, mut held) = ([kind()], Held::new(3));
        let but_2 = |layer| if layer == 2 { 0 } else { TENSORS };
        // Forward of three blocks, with an action between two of them; a fourth action begins.
        [0, 2, 4].into_iter().enumerate().for_each(|(layer, at)| held.forward(layer, 0, ALL, at));
        let mut dropped = Vec::new();
        for _ in 0..8 {
            let least = held.least(&kinds, 6, but_2).unwrap();
            held.evict(least.layer, least.place);
            dropped.push((least.layer, tensor_at(least.place).unwrap()));
        }
        // What costs nothing, by bytes times staleness: 40 * 6, 40 * 4, then the norms: 10 * 6, twice, 10 * 4, twice. Then attention at
        // 50 / (10 * 6) = 0.83 and 50 / (10 * 4) = 1.25, before what costs 200 / 60 or more; layer 2 is in work.
        let free =
            [(0, Activation), (1, Activation), (0, AttentionNorm), (0, MlpNorm), (1, AttentionNorm), (1, MlpNorm)];
        assert_eq!(dropped[..6], free);
        assert_eq!(dropped[6..], [(0, Attention), (1, Attention)]);
        // residual with its evicted attention: 250 / (10 * 6) = 4.17; qkv 600 / (30 * 6) = 3.33; gate_up 1600 / (80 * 6) = 3.33 is the
        // larger of equals.
        let next = held.least(&kinds, 6, but_2).unwrap();
        assert_eq!((next.layer, tensor_at(next.place)), (0, Some(GateUp)));
        assert_eq!(next.score, 1600.0 / 480.0);
        // With time the younger block's come into reach; at action 1,000 both are as old.
        held.evict(0, place(GateUp));
        let scores = |at| held.least(&kinds, at, but_2).unwrap();
        assert_eq!((scores(6).layer, tensor_at(scores(6).place)), (0, Some(Qkv)));
        // The input of the first block stays: nothing makes it again. The second's costs 800 and the first block's gate_up.
        assert_eq!(held.cost(&kinds, 1, INPUT), 800 + 1600);
        assert_ne!(held.least(&kinds, 1 << 20, |_| ALL).unwrap().place, INPUT);
    }

    #[test]
    fn inputs_are_dropped_where_they_are_asked_for_and_another_block_makes_them() {
        let (kinds, mut held) = ([kind()], Held::new(3));
        // Layer 0 is no block.
        (1..3).for_each(|layer| held.forward(layer, 0, 1 << INPUT, layer));
        assert_eq!(held.least(&kinds, 9, |_| TENSORS), None);
        let least = held.least(&kinds, 9, |_| ALL).unwrap();
        assert_eq!((least.layer, least.place), (2, INPUT));
        held.evict(2, INPUT);
        assert_eq!(held.least(&kinds, 9, |_| ALL), None);
        assert!(held.lacks(2) && !held.has_input(2) && !held.lacks(1));
        held.input(2, 9);
        assert!(!held.lacks(2) && held.has_input(2));
    }

    #[test]
    fn what_is_read_is_young_again() {
        let (kinds, mut held) = ([kind()], Held::new(2));
        (0..2).for_each(|layer| held.forward(layer, 0, ALL, layer));
        held.recompute(0, ALL, 10);
        let least = held.least(&kinds, 12, |_| TENSORS).unwrap();
        assert_eq!(least.layer, 1);
    }
}
