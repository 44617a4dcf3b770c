//! What the ranks that share a block exchange within it.

use super::{Context, Phase, Unit};
use crate::collective::{Collective, Group, seconds};
use crate::job::{Place, Recompute};
use crate::layout::expert_tensor;
use crate::shape::BlockKind;

impl Context<'_> {
    /// What a block's ranks exchange.
    pub(super) fn communicate(&self, kind: &BlockKind, tokens: f64, unit: &mut Unit) {
        let d = &self.job.degrees;
        let bytes = self.bytes();
        let stream = tokens * self.model.hidden as f64 * bytes;
        if d.tensor > 1 {
            let sparse_alone = kind.sparse && expert_tensor(d) <= 1;
            let places = if kind.cross {
                3.0
            } else if sparse_alone {
                1.0
            } else {
                2.0
            };
            let price = |what| seconds(what, stream, self.layout.tensor, self.machine);
            let once = if d.sequence {
                price(Collective::AllGather) + price(Collective::ReduceScatter)
            } else {
                price(Collective::AllReduce)
            };
            let asked = if self.job.overlap.tensor { self.tuning.tensor_asked } else { 0.0 };
            let hidden = self.drive.overlap_tensor.max(asked);
            let exposed = places * once * (1.0 - hidden);
            unit.forward.tensor += exposed;
            // Backward gathers the input once more for the weights' gradient under sequence parallelism; it hides.
            unit.backward.tensor += exposed;
            unit.collectives.tensor = 2.0 * places;
            unit.collectives.tensor_bytes = stream;
        }
        if let Some(experts) = self.model.experts.as_ref().filter(|_| kind.sparse && d.expert > 1) {
            let rows = tokens / self.tensor() * experts.top as f64 * experts.imbalance.max(1.0);
            let group = self.layout.expert;
            let payload = rows * self.model.hidden as f64 * bytes;
            // A token goes to a node once, whatever the number of its experts there.
            let (m, top) = (group.nodes() as f64, experts.top as f64);
            let once_a_node = (m - 1.0) * (1.0 - (1.0 - 1.0 / m).powf(top));
            let distinct = if m > 1.0 { (once_a_node / (top * (1.0 - 1.0 / m))).min(1.0) } else { 1.0 };
            let once = seconds(Collective::AllToAll, payload * distinct, group, self.machine);
            let hidden = if self.job.overlap.expert { self.tuning.expert_asked } else { 0.0 };
            let exposed = 2.0 * once * (1.0 - hidden);
            unit.forward.expert += exposed;
            unit.backward.expert += exposed;
            unit.collectives.expert = 4.0;
            unit.collectives.expert_bytes = payload * distinct;
        }
        if d.context > 1 {
            // Keys and values go round the ring beside attention; backward sends their gradients, too.
            let kv = 2.0 * tokens * self.model.kv_width() as f64 / self.tensor() * bytes;
            let all = self.layout.context;
            let ring =
                if all.nodes() > 1 { Group { ranks: all.nodes(), per_node: 1, ..all } } else { Group::new(2, 2) };
            let steps = (d.context - 1) as f64;
            let once = steps * seconds(Collective::Send, kv, ring, self.machine);
            // What attention of the same time does not hide, nor the host, where the device waits for it.
            let core = self.core(kind, tokens);
            let idle = |phase: &Phase, backward| self.busy(phase, backward) - self.device(phase);
            let forward = core[0].busy + idle(&unit.forward, false);
            let backward = core[1].busy + idle(&unit.backward, true);
            unit.forward.context += (once - forward).max(0.0) + 0.1 * once.min(forward);
            unit.backward.context += (2.0 * once - backward).max(0.0) + 0.1 * (2.0 * once).min(backward);
            unit.collectives.context = 3.0 * steps;
            unit.collectives.context_bytes = kv;
        }
    }

    /// Activations that go to the host and come back beside compute: what compute does not cover.
    pub(super) fn park(&self, tokens: f64, unit: &mut Unit) {
        if self.job.offload.activations == Place::Device {
            return;
        }
        // Elements kept of a token: a block's input alone where it is made again from that, else about what a block
        // without scores keeps (34 bytes of 16-bit numbers per element of the stream).
        let kept = if matches!(self.job.recompute, Recompute::Full { .. }) { 1.0 } else { 17.0 };
        let bytes = kept * tokens * self.model.hidden as f64 * self.bytes() / self.between();
        let once = bytes / (self.machine.host.bandwidth * self.machine.host.reached).max(1.0);
        // Compute lasts as long as its kernels take to start, and what it waits for hides copies, too.
        let beside = |phase: &Phase, backward| self.busy(phase, backward) + phase.waits();
        unit.forward.host += (once - beside(&unit.forward, false)).max(0.0);
        unit.backward.host += (once - beside(&unit.backward, true)).max(0.0);
    }
}
