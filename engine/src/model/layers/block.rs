//! A pre-norm decoder block: attention and MLP, each behind a norm and around a residual, one after the other or side by
//! side on the same input.
//!
//! Forward is seven stages, each making one of the tensors that may be kept ([`SavedTensor`]), and the output. What a
//! checkpointing policy does not keep, `recompute` makes again by running the same stages before backward.

mod backward;
mod buffers;
mod cross;
pub(crate) mod eviction;
mod experts;
mod partition;
mod stages;

use super::adapter::AdapterSpec;
use super::context::{LayerContext, POINTWISE};
use super::experts::{Experts, Routing};
use super::linear::LinearSpec;
use super::norm::Norm;
use crate::compute::error::Result;
pub use crate::config::SavedTensor;
use crate::config::{AttentionKind, Positions};
use crate::model::layers::Weights;
pub use cross::{Cross, CrossSaved};
use zbench_kernels::{Activation, Buffer};

/// The sizes of a block, and what of its mathematics is not seen in its tensors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dims {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of the MLP, or of one expert.
    pub intermediate: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub attention: AttentionKind,
    /// Tokens that one sees, itself the last; `None` = all before it.
    pub window: Option<usize>,
    pub positions: Positions,
    pub act: Activation,
    /// The MLP reads the block's input, not what attention made of it.
    pub parallel: bool,
    /// Tokens see those before them alone; an encoder's see all.
    pub causal: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Block {
    /// Number in the model, from 0.
    pub index: usize,
    pub dims: Dims,
    pub attention_norm: Norm,
    pub q: LinearSpec,
    pub k: LinearSpec,
    pub v: LinearSpec,
    /// The low-rank adapter of all three, where a checkpoint has them in one tensor.
    pub qkv_adapter: Option<AdapterSpec<3>>,
    /// Norm of each query head, if there is one; then there is one of the keys too.
    pub q_norm: Option<Norm>,
    pub k_norm: Option<Norm>,
    pub o: LinearSpec,
    /// Between attention and the MLP, of blocks in which these follow each other: attention over an encoder's output.
    pub cross: Option<Box<Cross>>,
    /// The norm before the MLP; absent where the MLP reads attention's.
    pub mlp_norm: Option<Norm>,
    /// Where the MLP is a mixture of experts: how tokens come to them. `gate`, `up` and `down` are then stacks of all experts.
    pub experts: Option<Experts>,
    /// Gate projection; absent where the MLP has none.
    pub gate: Option<LinearSpec>,
    pub up: LinearSpec,
    pub down: LinearSpec,
}

impl Block {
    /// The block without what tells it from others of its kind: its number, and the streams of its random numbers.
    pub fn kind(&self) -> Block {
        let mut kind = self.clone();
        kind.index = 0;
        let linears = [&mut kind.q, &mut kind.k, &mut kind.v, &mut kind.o, &mut kind.up, &mut kind.down];
        for adapter in linears.into_iter().chain(&mut kind.gate).filter_map(|linear| linear.adapter.as_mut()) {
            adapter.stream = 0;
        }
        if let Some(adapter) = &mut kind.qkv_adapter {
            adapter.stream = 0;
        }
        kind
    }
}

/// What forward keeps for backward.
#[derive(Debug, Default)]
pub struct Saved {
    /// The residual stream at the block's entrance.
    pub input: Option<Buffer>,
    /// Normalised input of attention and its statistics.
    pub attention_norm: Option<[Buffer; 2]>,
    pub qkv: Option<Qkv>,
    /// Attention's output; log-sum-exp (flash) or probabilities (naive).
    pub attention: Option<[Buffer; 2]>,
    /// The residual stream before cross-attention, and what that keeps; kept with attention's own.
    pub cross: Option<(Buffer, CrossSaved)>,
    /// The residual stream before the MLP; only where it follows attention.
    pub residual: Option<Buffer>,
    /// Normalised input of the MLP and its statistics; not there where the MLP reads attention's.
    pub mlp_norm: Option<[Buffer; 2]>,
    pub gate_up: Option<GateUp>,
    /// What `down` reads; not there where `down` is frozen and has no adapter, but always there for experts.
    pub activation: Option<Buffer>,
}

#[derive(Debug)]
pub struct Qkv {
    pub q: Buffer,
    pub k: Buffer,
    pub v: Buffer,
    /// Where heads are normalised: queries before it and their statistics, keys before it and theirs.
    pub raw: Option<[[Buffer; 2]; 2]>,
}

/// Gate and up projections of the MLP; with experts, of every slot.
#[derive(Debug)]
pub struct GateUp {
    pub gate: Option<Buffer>,
    pub up: Buffer,
    /// Where tokens went, if to experts.
    pub routing: Option<Routing>,
}

/// The gradient of the residual stream, between blocks.
pub type BlockGrad = Buffer;

const CORE: &str = "attention core";

/// Takes what is there. Only called on tensors that `recompute` has made sure of.
fn take<T>(slot: &mut Option<T>) -> T {
    slot.take().expect("recompute fills every tensor before backward takes it")
}

/// Keeps what backward will find, frees the rest.
fn keep_if<T>(kept: bool, made: Option<T>) -> Option<T> {
    made.filter(|_| kept)
}

impl Block {
    /// The block's output; what `keep` names is kept, and the input if `keep_input`.
    pub fn forward(
        &self,
        ex: &LayerContext<'_>,
        w: &Weights<'_>,
        input: Buffer,
        keep_input: bool,
        keep: &[SavedTensor],
    ) -> Result<(Buffer, Saved)> {
        let (n, parallel) = (ex.own_tokens().len(), self.dims.parallel);
        let kept = |what: SavedTensor| keep.contains(&what);
        let mut saved = Saved::default();
        let mut norm = Some(self.attention_norm.forward(ex, w, n, input.view())?);
        let qkv = self.qkv(ex, w, &first(&norm)[0])?;
        if self.mlp_norm.is_some() {
            saved.attention_norm = keep_if(kept(SavedTensor::AttentionNorm), norm.take());
        }
        let attention = self.attend(ex, &qkv)?;
        saved.qkv = keep_if(kept(SavedTensor::Qkv), Some(qkv));
        let residual = self.residual(ex, w, &input, &attention[0])?;
        saved.attention = keep_if(kept(SavedTensor::Attention), Some(attention));
        let residual = match self.over_memory(ex)? {
            Some((cross, memory)) => {
                let (output, made) = self.cross(cross, ex, w, memory, &residual)?;
                saved.cross = keep_if(kept(SavedTensor::Attention), Some((residual, made)));
                output
            }
            None => residual,
        };
        let mut input = Some(input);
        if !parallel {
            saved.input = keep_if(keep_input, input.take());
        }
        let mut mlp_norm = None;
        if let Some(spec) = &self.mlp_norm {
            // Side by side with attention the input is still here; after it, it has been kept or dropped.
            mlp_norm = Some(spec.forward(ex, w, n, input.as_ref().unwrap_or(&residual).view())?);
        }
        if parallel && !self.has_one_sum() {
            saved.input = keep_if(keep_input, input.take());
        }
        let mut gate_up = self.gate_up(ex, w, &first(if mlp_norm.is_some() { &mlp_norm } else { &norm })[0])?;
        saved.mlp_norm = keep_if(kept(SavedTensor::MlpNorm), mlp_norm);
        if let Some(shared) = norm {
            saved.attention_norm = keep_if(kept(SavedTensor::AttentionNorm), Some(shared));
        }
        let activation = self.activation(ex, &gate_up)?;
        // Who has computed a row must be known until the rows are back.
        let routing = gate_up.routing.take();
        saved.gate_up = keep_if(kept(SavedTensor::GateUp), Some(gate_up));
        let output = self.output(ex, w, routing.as_ref(), [input.as_ref(), Some(&residual)], &activation)?;
        if input.is_some() {
            saved.input = keep_if(keep_input, input);
        }
        if let Some(kept) = &mut saved.gate_up {
            kept.routing = routing;
        }
        saved.residual = keep_if(kept(SavedTensor::Residual) && !parallel, Some(residual));
        saved.activation = keep_if(kept(SavedTensor::Activation) && self.reads_activation(), Some(activation));
        Ok((output, saved))
    }

    /// Makes again what was not kept and backward reads. `saved.input` must be there. With `output`, the block's output too.
    pub fn recompute(
        &self,
        ex: &LayerContext<'_>,
        w: &Weights<'_>,
        saved: &mut Saved,
        output: bool,
    ) -> Result<Option<Buffer>> {
        let (n, parallel) = (ex.own_tokens().len(), self.dims.parallel);
        let input = saved.input.as_ref().expect("a plan restores a block only after its input");
        if saved.attention_norm.is_none() {
            saved.attention_norm = Some(self.attention_norm.forward(ex, w, n, input.view())?);
        }
        if let (None, Some(norm)) = (&saved.qkv, &saved.attention_norm) {
            saved.qkv = Some(self.qkv(ex, w, &norm[0])?);
        }
        if let (None, Some(qkv)) = (&saved.attention, &saved.qkv) {
            saved.attention = Some(self.attend(ex, qkv)?);
        }
        if let Some((cross, memory)) = self.over_memory(ex)? {
            if let (None, Some(attention)) = (&saved.cross, &saved.attention) {
                let residual = self.residual(ex, w, input, &attention[0])?;
                let made = self.cross_saved(cross, ex, w, memory, &residual)?;
                saved.cross = Some((residual, made));
            }
            if let (None, Some((residual, made))) = (&saved.residual, &saved.cross) {
                saved.residual = Some(cross.o.forward_onto(ex, w, made.output(), residual)?);
            }
        }
        if let (None, Some(attention), true) = (&saved.residual, &saved.attention, output || !parallel) {
            saved.residual = Some(self.residual(ex, w, input, &attention[0])?);
        }
        if let (None, Some(spec)) = (&saved.mlp_norm, &self.mlp_norm) {
            let from = if parallel { Some(input) } else { saved.residual.as_ref() };
            if let Some(from) = from {
                saved.mlp_norm = Some(spec.forward(ex, w, n, from.view())?);
            }
        }
        let norm = if self.mlp_norm.is_some() { &saved.mlp_norm } else { &saved.attention_norm };
        if let (None, Some(norm)) = (&saved.gate_up, norm) {
            saved.gate_up = Some(self.gate_up(ex, w, &norm[0])?);
        }
        if let (None, Some(gate_up), true) = (&saved.activation, &saved.gate_up, output || self.reads_activation()) {
            saved.activation = Some(self.activation(ex, gate_up)?);
        }
        let made = match (output, &saved.residual, &saved.activation) {
            (true, Some(residual), Some(activation)) => {
                let routing = saved.gate_up.as_ref().and_then(|gate_up| gate_up.routing.as_ref());
                Some(self.output(ex, w, routing, [Some(input), Some(residual)], activation)?)
            }
            _ => None,
        };
        if parallel {
            saved.residual = None;
        }
        Ok(made)
    }
}

/// What a stage before has made.
fn first<T>(made: &Option<T>) -> &T {
    made.as_ref().expect("a stage reads what an earlier one made")
}
