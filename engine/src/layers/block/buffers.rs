//! All buffers that forward keeps of a block, in one order.

use super::{GateUp, Qkv, Saved};
use crate::error::Result;
use crate::layers::experts::{Arrived, Routing};
use zbench_kernels::Buffer;

impl Saved {
    /// Calls `work` with every buffer; the order depends on which there are alone.
    ///
    /// # Errors
    /// The first of `work`.
    pub fn each_buffer(&mut self, work: &mut dyn FnMut(&mut Buffer) -> Result<()>) -> Result<()> {
        let Saved { input, attention_norm, qkv, attention, cross, residual, mlp_norm, gate_up, activation } = self;
        let mut pairs = [attention_norm, attention, mlp_norm];
        let of_cross = cross.iter_mut().flat_map(|(residual, saved)| std::iter::once(residual).chain(saved.buffers()));
        let single = [input, residual, activation].into_iter().flatten();
        let all = single.chain(pairs.iter_mut().flat_map(|pair| pair.iter_mut().flatten())).chain(of_cross);
        all.chain(qkv.iter_mut().flat_map(Qkv::buffers))
            .chain(gate_up.iter_mut().flat_map(GateUp::buffers))
            .try_for_each(work)
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
