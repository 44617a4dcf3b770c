//! A pre-norm decoder block: attention and gated MLP, each behind an RMSNorm and around a residual.
//!
//! Forward is seven stages, each making one of the tensors that may be kept ([`Kept`]), and the output. What a
//! checkpointing policy does not keep, `restore` makes again by running the same stages before backward.

use super::exec::{self, Exec, Result};
use super::linear::LinearSpec;
use super::sketch::{Piece, Sketch};
use crate::config::AttentionKind;
pub use crate::config::Kept;
use crate::model::{Grads, Part, Place, Weights};
use zbench_kernels::{Attention, Buffer, DType, Op, RmsNorm, Rope, Swiglu, View};

/// The sizes of a block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dims {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of the MLP.
    pub intermediate: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Of both norms.
    pub eps: f64,
    /// The attention kernel.
    pub attention: AttentionKind,
}

/// A block: its sizes and its tensors.
#[derive(Clone, Debug, PartialEq)]
pub struct Block {
    /// Number in the model, from 0.
    pub index: usize,
    /// Sizes.
    pub dims: Dims,
    /// Weight of the norm before attention.
    pub attention_norm: Place,
    /// Query projection.
    pub q: LinearSpec,
    /// Key projection.
    pub k: LinearSpec,
    /// Value projection.
    pub v: LinearSpec,
    /// Attention output projection.
    pub o: LinearSpec,
    /// Weight of the norm before the MLP.
    pub mlp_norm: Place,
    /// Gate projection.
    pub gate: LinearSpec,
    /// Up projection.
    pub up: LinearSpec,
    /// Down projection.
    pub down: LinearSpec,
}

/// What forward keeps for backward. `T` is a buffer in a run, a stated piece in a plan.
#[derive(Debug)]
pub struct Saved<T> {
    /// The residual stream at the block's entrance.
    pub input: Option<T>,
    /// Normalised input of attention and its reciprocal deviations.
    pub attention_norm: Option<[T; 2]>,
    /// Queries, keys, values after the rotation.
    pub qkv: Option<[T; 3]>,
    /// Attention's output; log-sum-exp (flash) or probabilities (naive).
    pub attention: Option<[T; 2]>,
    /// The residual stream between attention and MLP.
    pub residual: Option<T>,
    /// Normalised input of the MLP and its reciprocal deviations.
    pub mlp_norm: Option<[T; 2]>,
    /// Gate and up projections.
    pub gate_up: Option<[T; 2]>,
    /// Their gated product; not there where `down` is frozen and has no adapter.
    pub activation: Option<T>,
}

impl<T> Default for Saved<T> {
    fn default() -> Self {
        Saved {
            input: None,
            attention_norm: None,
            qkv: None,
            attention: None,
            residual: None,
            mlp_norm: None,
            gate_up: None,
            activation: None,
        }
    }
}

/// The gradient of the residual stream, between blocks.
pub type BlockGrad = Buffer;

const CORE: &str = "attention core";
const NORM: &str = "norms";
const POINTWISE: &str = "element-wise";

/// Takes what is there. Only called on tensors that `restore` has made sure of.
fn take<T>(slot: &mut Option<T>) -> T {
    slot.take().expect("restore fills every tensor before backward takes it")
}

impl Block {
    /// The block's output; what `keep` names is kept, and the input if `keep_input`.
    pub fn forward(
        &self,
        ex: &Exec<'_>,
        w: &Weights<'_>,
        input: Buffer,
        keep_input: bool,
        keep: &[Kept],
    ) -> Result<(Buffer, Saved<Buffer>)> {
        let kept = |what: Kept| keep.contains(&what);
        let mut saved = Saved::default();
        let norm = self.norm(ex, w, &self.attention_norm, &input)?;
        let qkv = self.qkv(ex, w, &norm[0])?;
        saved.attention_norm = kept(Kept::AttentionNorm).then_some(norm);
        let attention = self.attend(ex, &qkv)?;
        saved.qkv = kept(Kept::Qkv).then_some(qkv);
        let residual = self.residual(ex, w, &input, &attention[0])?;
        saved.attention = kept(Kept::Attention).then_some(attention);
        saved.input = keep_input.then_some(input);
        let norm = self.norm(ex, w, &self.mlp_norm, &residual)?;
        let gate_up = self.gate_up(ex, w, &norm[0])?;
        saved.mlp_norm = kept(Kept::MlpNorm).then_some(norm);
        let activation = self.activation(ex, &gate_up)?;
        saved.gate_up = kept(Kept::GateUp).then_some(gate_up);
        let output = self.output(ex, w, &residual, &activation)?;
        saved.residual = kept(Kept::Residual).then_some(residual);
        saved.activation = (kept(Kept::Activation) && self.down.reads_input()).then_some(activation);
        Ok((output, saved))
    }

    /// States `forward`; takes the input's piece, returns the output's.
    pub fn forward_stated(
        &self,
        s: &mut Sketch<'_>,
        input: Piece,
        keep_input: bool,
        keep: &[Kept],
    ) -> (Piece, Saved<Piece>) {
        let mut saved = Saved::default();
        fn settle<T: IntoIterator<Item = Piece>>(s: &mut Sketch<'_>, kept: bool, pieces: T) -> Option<T> {
            if kept {
                return Some(pieces);
            }
            s.free_all(pieces);
            None
        }
        let kept = |what: Kept| keep.contains(&what);
        let norm = self.norm_stated(s);
        let qkv = self.qkv_stated(s);
        saved.attention_norm = settle(s, kept(Kept::AttentionNorm), norm);
        let attention = self.attend_stated(s);
        saved.qkv = settle(s, kept(Kept::Qkv), qkv);
        let residual = self.residual_stated(s);
        saved.attention = settle(s, kept(Kept::Attention), attention);
        saved.input = settle(s, keep_input, [input]).map(|[p]| p);
        let norm = self.norm_stated(s);
        let gate_up = self.gate_up_stated(s);
        saved.mlp_norm = settle(s, kept(Kept::MlpNorm), norm);
        let activation = self.activation_stated(s);
        saved.gate_up = settle(s, kept(Kept::GateUp), gate_up);
        let output = self.output_stated(s);
        saved.residual = settle(s, kept(Kept::Residual), [residual]).map(|[p]| p);
        let activation_kept = kept(Kept::Activation) && self.down.reads_input();
        saved.activation = settle(s, activation_kept, [activation]).map(|[p]| p);
        (output, saved)
    }

    /// Makes again what was not kept and backward reads. `saved.input` must be there. With `output`, the block's output too.
    pub fn restore(
        &self,
        ex: &Exec<'_>,
        w: &Weights<'_>,
        saved: &mut Saved<Buffer>,
        output: bool,
    ) -> Result<Option<Buffer>> {
        let input = saved.input.as_ref().expect("a plan restores a block only after its input");
        if saved.attention_norm.is_none() {
            saved.attention_norm = Some(self.norm(ex, w, &self.attention_norm, input)?);
        }
        if let (None, Some(norm)) = (&saved.qkv, &saved.attention_norm) {
            saved.qkv = Some(self.qkv(ex, w, &norm[0])?);
        }
        if let (None, Some(qkv)) = (&saved.attention, &saved.qkv) {
            saved.attention = Some(self.attend(ex, qkv)?);
        }
        if let (None, Some(attention)) = (&saved.residual, &saved.attention) {
            saved.residual = Some(self.residual(ex, w, input, &attention[0])?);
        }
        if let (None, Some(residual)) = (&saved.mlp_norm, &saved.residual) {
            saved.mlp_norm = Some(self.norm(ex, w, &self.mlp_norm, residual)?);
        }
        if let (None, Some(norm)) = (&saved.gate_up, &saved.mlp_norm) {
            saved.gate_up = Some(self.gate_up(ex, w, &norm[0])?);
        }
        if let (None, Some(gate_up), true) = (&saved.activation, &saved.gate_up, output || self.down.reads_input()) {
            saved.activation = Some(self.activation(ex, gate_up)?);
        }
        match (output, &saved.residual, &saved.activation) {
            (true, Some(residual), Some(activation)) => Ok(Some(self.output(ex, w, residual, activation)?)),
            _ => Ok(None),
        }
    }

    /// States `restore`.
    pub fn restore_stated(&self, s: &mut Sketch<'_>, saved: &mut Saved<Piece>, output: bool) -> Option<Piece> {
        if saved.attention_norm.is_none() {
            saved.attention_norm = Some(self.norm_stated(s));
        }
        if saved.qkv.is_none() {
            saved.qkv = Some(self.qkv_stated(s));
        }
        if saved.attention.is_none() {
            saved.attention = Some(self.attend_stated(s));
        }
        if saved.residual.is_none() {
            saved.residual = Some(self.residual_stated(s));
        }
        if saved.mlp_norm.is_none() {
            saved.mlp_norm = Some(self.norm_stated(s));
        }
        if saved.gate_up.is_none() {
            saved.gate_up = Some(self.gate_up_stated(s));
        }
        if saved.activation.is_none() && (output || self.down.reads_input()) {
            saved.activation = Some(self.activation_stated(s));
        }
        output.then(|| self.output_stated(s))
    }

    /// The gradient of the input from that of the output; adds the gradients of the weights. Every saved tensor is
    /// freed at its last use.
    pub fn backward(
        &self,
        ex: &Exec<'_>,
        w: &Weights<'_>,
        g: &mut Grads<'_>,
        mut saved: Saved<Buffer>,
        mut dy: Buffer,
    ) -> Result<Buffer> {
        let (n, d, k) = (ex.batch.tokens(), &self.dims, ex.kernels);
        let mut dact = ex.activation(n * d.intermediate)?;
        let activation = saved.activation.take();
        let input = activation.as_ref().map_or(View::of::<f32>(&[]), Buffer::view);
        self.down.backward(ex, w, g, input, dy.view(), false, dact.view_mut())?;
        drop(activation);
        let mut dgate = ex.activation(n * d.intermediate)?;
        let mut dup = ex.activation(n * d.intermediate)?;
        let [gate, up] = take(&mut saved.gate_up);
        let op = self.swiglu(n, ex.compute);
        k.swiglu_backward(&op, gate.view(), up.view(), dact.view(), dgate.view_mut(), dup.view_mut())?;
        drop((dact, gate, up));
        let mut dnorm = ex.activation(n * d.hidden)?;
        let [norm, rstd] = take(&mut saved.mlp_norm);
        self.gate.backward(ex, w, g, norm.view(), dgate.view(), false, dnorm.view_mut())?;
        self.up.backward(ex, w, g, norm.view(), dup.view(), true, dnorm.view_mut())?;
        drop((dgate, dup, norm));
        let residual = take(&mut saved.residual);
        self.norm_backward(ex, w, g, &self.mlp_norm, &residual, &rstd, &dnorm, &mut dy)?;
        drop((residual, rstd, dnorm));

        let mut dout = ex.activation(n * d.heads * d.head_dim)?;
        let [out, statistics] = take(&mut saved.attention);
        self.o.backward(ex, w, g, out.view(), dy.view(), false, dout.view_mut())?;
        let mut dq = ex.activation(n * d.heads * d.head_dim)?;
        let mut dk = ex.activation(n * d.kv_heads * d.head_dim)?;
        let mut dv = ex.activation(n * d.kv_heads * d.head_dim)?;
        let qkv = take(&mut saved.qkv);
        self.attend_backward(ex, &qkv, &out, &statistics, &dout, [&mut dq, &mut dk, &mut dv])?;
        drop((qkv, out, statistics, dout));
        k.rope(&self.rope(n, ex.batch.seq, d.heads, true, ex.compute), dq.view_mut(), ex.cos, ex.sin)?;
        k.rope(&self.rope(n, ex.batch.seq, d.kv_heads, true, ex.compute), dk.view_mut(), ex.cos, ex.sin)?;
        let mut dnorm = ex.activation(n * d.hidden)?;
        let [norm, rstd] = take(&mut saved.attention_norm);
        self.q.backward(ex, w, g, norm.view(), dq.view(), false, dnorm.view_mut())?;
        self.k.backward(ex, w, g, norm.view(), dk.view(), true, dnorm.view_mut())?;
        self.v.backward(ex, w, g, norm.view(), dv.view(), true, dnorm.view_mut())?;
        drop((dq, dk, dv, norm));
        let input = take(&mut saved.input);
        self.norm_backward(ex, w, g, &self.attention_norm, &input, &rstd, &dnorm, &mut dy)?;
        Ok(dy)
    }

    /// States `backward`; the gradient's piece goes through.
    pub fn backward_stated(&self, s: &mut Sketch<'_>, mut saved: Saved<Piece>, dy: Piece) -> Piece {
        let (n, d) = (s.batch.tokens(), self.dims);
        let dact = s.activation(n * d.intermediate);
        self.down.backward_stated(s, false);
        s.free_all(saved.activation.take());
        let dgate = s.activation(n * d.intermediate);
        let dup = s.activation(n * d.intermediate);
        s.op(POINTWISE, Op::SwigluBackward(self.swiglu(n, s.compute)));
        s.free_all([dact].into_iter().chain(take(&mut saved.gate_up)));
        let dnorm = s.activation(n * d.hidden);
        self.gate.backward_stated(s, false);
        self.up.backward_stated(s, true);
        let [norm, rstd] = take(&mut saved.mlp_norm);
        s.free_all([dgate, dup, norm]);
        self.norm_backward_stated(s, &self.mlp_norm);
        s.free_all([take(&mut saved.residual), rstd, dnorm]);

        let dout = s.activation(n * d.heads * d.head_dim);
        self.o.backward_stated(s, false);
        let dq = s.activation(n * d.heads * d.head_dim);
        let dk = s.activation(n * d.kv_heads * d.head_dim);
        let dv = s.activation(n * d.kv_heads * d.head_dim);
        let op = self.attention(&s.batch, s.compute);
        s.op(CORE, if self.flash() { Op::AttentionBackward(op) } else { Op::NaiveAttentionBackward(op) });
        s.free_all(take(&mut saved.qkv).into_iter().chain(take(&mut saved.attention)).chain([dout]));
        for heads in [d.heads, d.kv_heads] {
            s.op(POINTWISE, Op::Rope(self.rope(n, s.batch.seq, heads, true, s.compute)));
        }
        let dnorm = s.activation(n * d.hidden);
        self.q.backward_stated(s, false);
        self.k.backward_stated(s, true);
        self.v.backward_stated(s, true);
        let [norm, rstd] = take(&mut saved.attention_norm);
        s.free_all([dq, dk, dv, norm]);
        self.norm_backward_stated(s, &self.attention_norm);
        s.free_all([take(&mut saved.input), rstd, dnorm]);
        dy
    }

    fn flash(&self) -> bool {
        self.dims.attention == AttentionKind::Flash
    }

    fn rms(&self, n: usize, dtype: DType, gradient: Option<DType>) -> RmsNorm {
        RmsNorm { rows: n, cols: self.dims.hidden, eps: self.dims.eps, dtype, gradient }
    }

    fn rope(&self, rows: usize, seq: usize, heads: usize, inverse: bool, dtype: DType) -> Rope {
        Rope { rows, seq, heads, head_dim: self.dims.head_dim, inverse, dtype }
    }

    fn swiglu(&self, n: usize, dtype: DType) -> Swiglu {
        Swiglu { len: n * self.dims.intermediate, dtype }
    }

    fn attention(&self, batch: &super::Batch, dtype: DType) -> Attention {
        exec::attention(batch, self.dims.heads, self.dims.kv_heads, self.dims.head_dim, dtype)
    }

    /// Elements of the log-sum-exp, or of the probabilities.
    fn attention_statistics(&self, batch: &super::Batch) -> usize {
        let rows = batch.rows * self.dims.heads * batch.seq;
        if self.flash() { rows } else { rows * batch.seq }
    }

    fn norm(&self, ex: &Exec<'_>, w: &Weights<'_>, weight: &Place, x: &Buffer) -> Result<[Buffer; 2]> {
        let n = ex.batch.tokens();
        let mut y = ex.activation(n * self.dims.hidden)?;
        let mut rstd = ex.statistic(n)?;
        let op = self.rms(n, ex.compute, None);
        ex.kernels.rms_norm(&op, x.view(), w.get(weight), y.view_mut(), rstd.view_mut())?;
        Ok([y, rstd])
    }

    fn norm_stated(&self, s: &mut Sketch<'_>) -> [Piece; 2] {
        let n = s.batch.tokens();
        let y = s.activation(n * self.dims.hidden);
        let rstd = s.statistic(n);
        s.op(NORM, Op::RmsNorm(self.rms(n, s.compute, None)));
        [y, rstd]
    }

    fn norm_backward(
        &self,
        ex: &Exec<'_>,
        w: &Weights<'_>,
        g: &mut Grads<'_>,
        weight: &Place,
        x: &Buffer,
        rstd: &Buffer,
        dnorm: &Buffer,
        dx: &mut Buffer,
    ) -> Result<()> {
        let dw = g.get(weight);
        let op = self.rms(ex.batch.tokens(), ex.compute, dw.is_some().then_some(ex.gradients));
        let (w, dx) = (w.get(weight), dx.view_mut());
        Ok(ex.kernels.rms_norm_backward(&op, x.view(), w, rstd.view(), dnorm.view(), dx, dw)?)
    }

    fn norm_backward_stated(&self, s: &mut Sketch<'_>, weight: &Place) {
        let gradient = (weight.part == Part::Trainable).then_some(s.gradients);
        s.op(NORM, Op::RmsNormBackward(self.rms(s.batch.tokens(), s.compute, gradient)));
    }

    fn qkv(&self, ex: &Exec<'_>, w: &Weights<'_>, norm: &Buffer) -> Result<[Buffer; 3]> {
        let (n, d) = (ex.batch.tokens(), &self.dims);
        let mut q = ex.activation(n * d.heads * d.head_dim)?;
        self.q.forward(ex, w, norm.view(), false, q.view_mut())?;
        let mut k = ex.activation(n * d.kv_heads * d.head_dim)?;
        self.k.forward(ex, w, norm.view(), false, k.view_mut())?;
        let mut v = ex.activation(n * d.kv_heads * d.head_dim)?;
        self.v.forward(ex, w, norm.view(), false, v.view_mut())?;
        let seq = ex.batch.seq;
        ex.kernels.rope(&self.rope(n, seq, d.heads, false, ex.compute), q.view_mut(), ex.cos, ex.sin)?;
        ex.kernels.rope(&self.rope(n, seq, d.kv_heads, false, ex.compute), k.view_mut(), ex.cos, ex.sin)?;
        Ok([q, k, v])
    }

    fn qkv_stated(&self, s: &mut Sketch<'_>) -> [Piece; 3] {
        let (n, d) = (s.batch.tokens(), self.dims);
        let q = s.activation(n * d.heads * d.head_dim);
        self.q.forward_stated(s, false);
        let k = s.activation(n * d.kv_heads * d.head_dim);
        self.k.forward_stated(s, false);
        let v = s.activation(n * d.kv_heads * d.head_dim);
        self.v.forward_stated(s, false);
        for heads in [d.heads, d.kv_heads] {
            s.op(POINTWISE, Op::Rope(self.rope(n, s.batch.seq, heads, false, s.compute)));
        }
        [q, k, v]
    }

    fn attend(&self, ex: &Exec<'_>, [q, k, v]: &[Buffer; 3]) -> Result<[Buffer; 2]> {
        let op = self.attention(&ex.batch, ex.compute);
        let mut out = ex.activation(ex.batch.tokens() * self.dims.heads * self.dims.head_dim)?;
        let statistics = self.attention_statistics(&ex.batch);
        let (q, k, v) = (q.view(), k.view(), v.view());
        if self.flash() {
            let mut lse = ex.statistic(statistics)?;
            let mut scratch = ex.scratch(&Op::Attention(op))?;
            ex.kernels.attention(&op, q, k, v, out.view_mut(), lse.view_mut(), scratch.view_mut())?;
            return Ok([out, lse]);
        }
        let mut probs = ex.activation(statistics)?;
        let mut scratch = ex.scratch(&Op::NaiveAttention(op))?;
        ex.kernels.naive_attention(&op, q, k, v, out.view_mut(), probs.view_mut(), scratch.view_mut())?;
        Ok([out, probs])
    }

    fn attend_stated(&self, s: &mut Sketch<'_>) -> [Piece; 2] {
        let op = self.attention(&s.batch, s.compute);
        let out = s.activation(s.batch.tokens() * self.dims.heads * self.dims.head_dim);
        let statistics = self.attention_statistics(&s.batch);
        if self.flash() {
            let lse = s.statistic(statistics);
            s.op(CORE, Op::Attention(op));
            return [out, lse];
        }
        let probs = s.activation(statistics);
        s.op(CORE, Op::NaiveAttention(op));
        [out, probs]
    }

    fn attend_backward(
        &self,
        ex: &Exec<'_>,
        [q, k, v]: &[Buffer; 3],
        out: &Buffer,
        statistics: &Buffer,
        dout: &Buffer,
        [dq, dk, dv]: [&mut Buffer; 3],
    ) -> Result<()> {
        let op = self.attention(&ex.batch, ex.compute);
        let (q, k, v, dout) = (q.view(), k.view(), v.view(), dout.view());
        let (dq, dk, dv) = (dq.view_mut(), dk.view_mut(), dv.view_mut());
        if self.flash() {
            let mut scratch = ex.scratch(&Op::AttentionBackward(op))?;
            let (out, lse, scratch) = (out.view(), statistics.view(), scratch.view_mut());
            return Ok(ex.kernels.attention_backward(&op, q, k, v, out, lse, dout, dq, dk, dv, scratch)?);
        }
        let mut scratch = ex.scratch(&Op::NaiveAttentionBackward(op))?;
        let (probs, scratch) = (statistics.view(), scratch.view_mut());
        Ok(ex.kernels.naive_attention_backward(&op, q, k, v, probs, dout, dq, dk, dv, scratch)?)
    }

    fn residual(&self, ex: &Exec<'_>, w: &Weights<'_>, input: &Buffer, attention: &Buffer) -> Result<Buffer> {
        let mut residual = ex.activation(ex.batch.tokens() * self.dims.hidden)?;
        ex.kernels.cast(input.view(), residual.view_mut())?;
        self.o.forward(ex, w, attention.view(), true, residual.view_mut())?;
        Ok(residual)
    }

    fn residual_stated(&self, s: &mut Sketch<'_>) -> Piece {
        let len = s.batch.tokens() * self.dims.hidden;
        let residual = s.activation(len);
        s.op(POINTWISE, exec::cast(len, s.compute, s.compute));
        self.o.forward_stated(s, true);
        residual
    }

    fn gate_up(&self, ex: &Exec<'_>, w: &Weights<'_>, norm: &Buffer) -> Result<[Buffer; 2]> {
        let len = ex.batch.tokens() * self.dims.intermediate;
        let mut gate = ex.activation(len)?;
        self.gate.forward(ex, w, norm.view(), false, gate.view_mut())?;
        let mut up = ex.activation(len)?;
        self.up.forward(ex, w, norm.view(), false, up.view_mut())?;
        Ok([gate, up])
    }

    fn gate_up_stated(&self, s: &mut Sketch<'_>) -> [Piece; 2] {
        let len = s.batch.tokens() * self.dims.intermediate;
        let gate = s.activation(len);
        self.gate.forward_stated(s, false);
        let up = s.activation(len);
        self.up.forward_stated(s, false);
        [gate, up]
    }

    fn activation(&self, ex: &Exec<'_>, [gate, up]: &[Buffer; 2]) -> Result<Buffer> {
        let n = ex.batch.tokens();
        let mut activation = ex.activation(n * self.dims.intermediate)?;
        let op = self.swiglu(n, ex.compute);
        ex.kernels.swiglu(&op, gate.view(), up.view(), activation.view_mut())?;
        Ok(activation)
    }

    fn activation_stated(&self, s: &mut Sketch<'_>) -> Piece {
        let n = s.batch.tokens();
        let activation = s.activation(n * self.dims.intermediate);
        s.op(POINTWISE, Op::Swiglu(self.swiglu(n, s.compute)));
        activation
    }

    fn output(&self, ex: &Exec<'_>, w: &Weights<'_>, residual: &Buffer, activation: &Buffer) -> Result<Buffer> {
        let mut output = ex.activation(ex.batch.tokens() * self.dims.hidden)?;
        ex.kernels.cast(residual.view(), output.view_mut())?;
        self.down.forward(ex, w, activation.view(), true, output.view_mut())?;
        Ok(output)
    }

    fn output_stated(&self, s: &mut Sketch<'_>) -> Piece {
        let len = s.batch.tokens() * self.dims.hidden;
        let output = s.activation(len);
        s.op(POINTWISE, exec::cast(len, s.compute, s.compute));
        self.down.forward_stated(s, true);
        output
    }
}
