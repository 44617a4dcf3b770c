//! What a block computes beside its matrices: attention, element-wise passes, routing; and what of it backward makes again.

use super::{Context, Phase, Unit};
use crate::framework::Fusion;
use crate::job::{Attention, Kind, Recompute};
use crate::roofline::Heads;
use crate::shape::BlockKind;

impl Context<'_> {
    /// Attention proper, of one or (with cross-attention) two calls.
    pub(super) fn core(&self, kind: &BlockKind, tokens: f64) -> [Phase; 2] {
        let model = self.model;
        let d = &self.job.degrees;
        let (seq, context) = (self.job.batch.seq as f64, d.context.max(1) as f64);
        let own = match model.kind {
            Kind::EncoderDecoder { decoder_seq, .. } if kind.cross => decoder_seq as f64,
            _ => seq,
        };
        let (width, value) = match model.latent {
            Some(latent) => ((latent.qk_dim + latent.rope_dim) as f64, latent.v_dim as f64),
            None => (model.head_dim as f64, model.head_dim as f64),
        };
        let encoder = matches!(model.kind, Kind::EncoderDecoder { .. }) && !kind.cross;
        let keys = if model.window > 0 { own.min(model.window as f64) } else { own };
        let call = Heads {
            batch: self.job.batch.micro as f64,
            heads: (model.heads as f64 / self.tensor()).max(1.0),
            width,
            value_width: value,
            queries: own / context,
            keys,
            causal: model.causal && !encoder && (model.window == 0 || model.window as f64 >= own),
            dropout: model.dropout,
            fused_softmax: self.drive.fusion != Fusion::Eager,
        };
        let kernel = self.job.attention;
        let mut phases = [Phase::default(); 2];
        let mut put = |call: Heads| {
            let (forward, backward) = self.roof.attention(call, kernel, self.job.precision.compute);
            let slow = if kernel == Attention::Flash(1) { self.drive.flash1_rate } else { 1.0 };
            // The last of c ranks computes c - 1/2 blocks of scores, the mean rank c/2.
            let slow =
                if call.causal && !self.drive.balanced_ring { slow * context / (2.0 * context - 1.0) } else { slow };
            // Autocast takes softmax in f32.
            let slow = if kernel == Attention::Naive { slow / self.wide() } else { slow };
            let (forward, backward) = (forward / slow, backward / slow);
            let kernels = if kernel == Attention::Naive { 5.0 } else { 1.0 };
            phases[0].add(Phase { busy: forward, kernels, flops: call.flops(), ..Phase::default() }, 1.0);
            let back = 2.0 * call.flops();
            phases[1].add(Phase { busy: backward, kernels: 2.0 * kernels, flops: back, ..Phase::default() }, 1.0);
        };
        put(call);
        if kind.cross {
            put(Heads { keys: seq, causal: false, ..call });
        }
        // Queries, keys and values are turned and laid out anew before attention, its result after it.
        let heads = (model.query_width() + 2 * model.kv_width() + model.value_width()) as f64 / self.tensor();
        let times = if self.drive.fusion == Fusion::Eager { 4.0 } else { 2.0 };
        let turned = if model.positions == 0 { times } else { 0.5 * times };
        let seconds = self.roof.pass(tokens * heads * self.bytes() * turned);
        for phase in &mut phases {
            phase.kernel(seconds);
            phase.kernels += turned;
        }
        phases
    }

    /// Element-wise work: norms, residuals, dropout, activations.
    pub(super) fn passes(&self, kind: &BlockKind, tokens: f64) -> [Phase; 2] {
        let model = self.model;
        let fusion = self.drive.fusion;
        let norms = if kind.cross { 3.0 } else { 2.0 };
        let hidden = model.hidden as f64 / self.between();
        // Elements read and written per element of the residual stream, by norm and residual: a norm without mean is a
        // chain of kernels in f32 where nobody fused it.
        let (norm, norm_back, norm_kernels) = match (fusion, model.norm_bias) {
            (Fusion::Eager, false) => (9.0, 12.0, 7.0),
            (Fusion::Eager, true) | (Fusion::Fused, _) => (2.0, 4.0, 1.0),
            (Fusion::Compiled, _) => (1.5, 3.0, 1.0),
        };
        let drop = match (model.dropout, fusion) {
            (false, _) => 0.0,
            (true, Fusion::Eager) => 2.5,
            (true, _) => 0.5,
        };
        let residual = if fusion == Fusion::Compiled { 2.0 } else { 3.0 };
        let wide = self.active_width(kind) / self.tensor();
        let (act, act_back, act_kernels) = match (model.gated, fusion) {
            (true, Fusion::Eager) => (5.0, 8.0, 2.0),
            (true, _) => (3.0, 5.0, 1.0),
            // GELU by its formula is a chain of kernels in trainers that fuse nothing.
            (false, Fusion::Eager) if !self.drive.fused_gelu => (15.0, 18.0, 8.0),
            (false, _) => (2.0, 3.0, 1.0),
        };
        let bytes = self.bytes() * tokens * self.wide();
        let forward = norms * (norm + residual + drop) * hidden + act * wide;
        let backward = norms * (norm_back + 2.0 + drop) * hidden + act_back * wide;
        let kernels = norms * (norm_kernels + 1.0 + if drop > 0.0 { 1.0 } else { 0.0 }) + act_kernels;
        let phase =
            |elements: f64, kernels: f64| Phase { busy: self.roof.pass(elements * bytes), kernels, ..Phase::default() };
        [phase(forward, kernels), phase(backward, 1.5 * kernels)]
    }

    /// Elements of a token between the MLP's matrices, over all experts that it goes to.
    pub(super) fn active_width(&self, kind: &BlockKind) -> f64 {
        match (&self.model.experts, kind.sparse) {
            (Some(experts), true) => {
                // Experts hold tokens / tensor x etp rows of ffn / etp: as if split over tensor.
                (experts.ffn * experts.top + experts.shared_ffn) as f64
            }
            _ => self.model.ffn as f64,
        }
    }

    /// Routing: probabilities, permutations, the weighted sum.
    pub(super) fn router(&self, kind: &BlockKind, tokens: f64) -> [Phase; 2] {
        let Some(experts) = self.model.experts.as_ref().filter(|_| kind.sparse) else { return Default::default() };
        let rows = tokens / self.tensor() * experts.top as f64;
        let moved = rows * self.model.hidden as f64 * self.bytes() * self.tuning.router_passes;
        let seconds = self.roof.pass(moved) + self.tuning.router_wait;
        let kernels = self.tuning.router_kernels;
        let forward = Phase { busy: seconds, kernels, ..Phase::default() };
        [forward, Phase { kernels: 1.5 * kernels, ..forward }]
    }

    /// What backward makes again: parts are attention's products, the MLP's, attention, passes, routing.
    pub(super) fn again(&self, unit: &Unit, parts: [Phase; 5]) -> Phase {
        let [attention, mlp, core, passes, router] = parts;
        let mut again = Phase::default();
        match &self.job.recompute {
            Recompute::None => {}
            Recompute::Full { .. } => again = unit.forward,
            Recompute::SomeBlocks { of } => again.add(unit.forward, 1.0 / (*of).max(1) as f64),
            Recompute::Core => again.add(core, 1.0),
            Recompute::PerOp => {
                again.add(attention, 0.5);
                again.add(mlp, 0.5);
                again.add(passes, 1.0);
            }
            Recompute::Modules(names) => {
                let is_sparse = router.busy > 0.0 || router.kernels > 0.0;
                // Of the products in place of the MLP, those of the expert that every token goes to.
                let shared = self.model.experts.as_ref().map_or(0.0, |experts| {
                    let all = experts.shared_ffn + experts.top * experts.ffn;
                    experts.shared_ffn as f64 / all.max(1) as f64
                });
                for name in names {
                    match name.as_str() {
                        "core_attn" => again.add(core, 1.0),
                        "mlp" if !is_sparse => again.add(mlp, 1.0),
                        "shared_experts" if is_sparse => again.add(mlp, shared),
                        "moe" if is_sparse => {
                            again.add(mlp, 1.0);
                            again.add(router, 1.0);
                            again.expert += unit.forward.expert;
                        }
                        "moe_act" if is_sparse => again.add(passes, 0.3),
                        "mlp_act" if !is_sparse => again.add(passes, 0.3),
                        "layernorm" => again.add(passes, 0.3),
                        "mla_up_proj" if self.model.latent.is_some() => again.add(attention, 0.4),
                        _ => {}
                    }
                }
            }
        }
        again
    }
}
