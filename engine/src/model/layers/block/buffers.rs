//! All buffers that forward keeps of a block, in one order.

use super::eviction::{INPUT, of};
use super::{GateUp, Qkv, Saved, SavedTensor};
use crate::compute::error::Result;
use crate::model::layers::experts::{Arrived, Routing};
use zbench_kernels::Buffer;

impl Saved {
    /// Calls `work` with every buffer of these places, a set of bits; the order depends on which there are alone.
    ///
    /// # Errors
    /// The first of `work`.
    pub fn each_buffer(&mut self, places: u16, work: &mut dyn FnMut(&mut Buffer) -> Result<()>) -> Result<()> {
        let wanted = |place: usize| places & 1 << place != 0;
        let is = |tensor: SavedTensor| wanted(of(tensor));
        let Saved { input, attention_norm, qkv, attention, cross, residual, mlp_norm, gate_up, activation } = self;
        let single =
            [(wanted(INPUT), input), (is(SavedTensor::Residual), residual), (is(SavedTensor::Activation), activation)];
        let mut pairs = [
            (is(SavedTensor::AttentionNorm), attention_norm),
            (is(SavedTensor::Attention), attention),
            (is(SavedTensor::MlpNorm), mlp_norm),
        ];
        let single = single.into_iter().filter(|(wanted, _)| *wanted).filter_map(|(_, buffer)| buffer.as_mut());
        let pairs = pairs.iter_mut().filter(|(wanted, _)| *wanted).flat_map(|(_, pair)| pair.iter_mut().flatten());
        let cross = cross.iter_mut().filter(|_| is(SavedTensor::Attention));
        let of_cross = cross.flat_map(|(residual, saved)| std::iter::once(residual).chain(saved.buffers()));
        let qkv = qkv.iter_mut().filter(|_| is(SavedTensor::Qkv)).flat_map(Qkv::buffers);
        let gate_up = gate_up.iter_mut().filter(|_| is(SavedTensor::GateUp)).flat_map(GateUp::buffers);
        single.chain(pairs).chain(of_cross).chain(qkv).chain(gate_up).try_for_each(work)
    }
}

impl Qkv {
    fn buffers(&mut self) -> impl Iterator<Item = &mut Buffer> {
        let Qkv { q, k, v, raw } = self;
        [q, k, v].into_iter().chain(raw.iter_mut().flatten().flatten())
    }
}

impl GateUp {
    fn buffers(&mut self) -> impl Iterator<Item = &mut Buffer> {
        let GateUp { gate, up, routing } = self;
        gate.iter_mut().chain([up]).chain(routing.iter_mut().flat_map(Routing::buffers))
    }
}

impl Routing {
    fn buffers(&mut self) -> impl Iterator<Item = &mut Buffer> {
        let Routing { logits, weights, indices, arrived } = self;
        let of_arrived = arrived.iter_mut().flat_map(|Arrived { indices, weights }| [indices, weights]);
        [logits, weights, indices].into_iter().chain(of_arrived)
    }
}
