//! Kernels on cores: f32 arithmetic on f32, bf16 and f16 buffers, several threads to an operation.
pub(crate) mod adamw;
mod attention;
mod elementwise;
mod experts;
mod halves;
mod layer_norm;
pub(crate) mod level;
mod loss;
mod map;
pub(crate) mod matmul;
mod naive;
mod packed;
pub mod peak;
mod quantize;
mod reduce;
mod rms_norm;
mod rows;
pub(crate) mod setup;
mod stream;

use crate::backend::check;
use crate::backend::operands;
use crate::backend::operands::DeviceTypes;
use crate::numerics::packed as packing;
use crate::op::*;
use crate::threads::affinity::Pinned;
use crate::threads::pool::Pool;
use crate::{DType, KernelError, Kernels, Result, Sum, View, ViewMut};
use attention::{Inputs, Kept};
use level::Level;
use matmul::Right;
use matmul::path::Path;

/// Kernels on the cores of this machine. Storage in f32, bf16 or f16, arithmetic in f32; f64 is for
/// the reference in kernels/testing, except that [`Kernels::reduce`] takes every type. The best vector instructions of the CPU are chosen when it is made.
pub struct Cpu {
    pool: Pool,
    level: Level,
    path: Path,
}

impl std::fmt::Debug for Cpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cpu({}, {} threads)", self.path.name(), self.pool.threads())
    }
}

impl Cpu {
    /// Kernels that share each operation among `threads` threads, the caller included; 0 counts as 1. When the system
    /// refuses more threads there are fewer: ask [`Kernels::threads`].
    pub fn new(threads: usize) -> Cpu {
        Cpu { pool: Pool::new(threads.max(1)), level: Level::detect(), path: Path::detect() }
    }

    /// As [`Cpu::new`] with these instructions and none better: a name of [`peak::describe`](crate::cpu::peak::describe).
    /// `None` when this CPU lacks them.
    pub fn with_instructions(threads: usize, instructions: &str) -> Option<Cpu> {
        let path = Path::available().into_iter().find(|path| path.name() == instructions)?;
        Some(Cpu { pool: Pool::new(threads.max(1)), level: path.level(), path })
    }

    /// As [`Cpu::new`] with products of bf16 by AMX, whatever this CPU has. `None` without AVX-512.
    ///
    /// # Safety
    /// AMX instructions work in this process, if only because a handler of SIGILL carries them out.
    #[doc(hidden)]
    #[cfg(target_arch = "x86_64")]
    #[allow(unsafe_code, reason = "whoever calls it vouches for AMX")]
    pub unsafe fn with_amx(threads: usize) -> Option<Cpu> {
        let level = Level::detect();
        (level == Level::Avx512).then(|| Cpu { pool: Pool::new(threads.max(1)), level, path: Path::Amx })
    }

    /// The same kernels on other threads.
    pub(crate) fn with_pool(self, pool: Pool) -> Cpu {
        Cpu { pool, ..self }
    }

    /// The cores that each thread may use.
    #[cfg(test)]
    pub(crate) fn cores_of_threads(&self) -> Vec<Vec<usize>> {
        let cores: Vec<_> = (0..self.pool.threads()).map(|_| std::sync::Mutex::default()).collect();
        self.pool.run(|index| *cores[index].lock().unwrap() = crate::threads::affinity::available());
        cores.into_iter().map(|cores| cores.into_inner().unwrap()).collect()
    }
}

/// These kernels know f32 and what widens to it.
const DEVICE: DeviceTypes =
    DeviceTypes { name: "cpu", computes: |dtype| matches!(dtype, DType::F32 | DType::Bf16 | DType::F16) };

/// An error unless an operand holds so many elements, which this device alone knows.
fn holds(op: &'static str, operand: &'static str, wanted: usize, given: usize) -> Result<()> {
    if given >= wanted { Ok(()) } else { Err(KernelError::Shape { op, operand, wanted, given }) }
}

/// Elements of B prepacked.
fn prepacked(op: &Gemm) -> Result<usize> {
    let dtype = if op.a == op.b { op.a } else { op.b };
    matmul::prepacked_len(op).ok_or(KernelError::Unsupported { device: "cpu", op: "prepack", dtype })
}

impl Kernels for Cpu {
    fn name(&self) -> String {
        format!("cpu {}", self.path.name())
    }

    fn threads(&self) -> usize {
        self.pool.threads()
    }

    fn pin_thread(&self) -> Option<Pinned> {
        self.pool.pin_thread()
    }

    fn workspace(&self, op: &Op) -> usize {
        let threads = self.pool.threads();
        match op {
            Op::Gemm(op) => matmul::workspace(op, self.path, self.pool.threads(), false),
            Op::GemmPrepacked(op) => matmul::workspace(op, self.path, threads, true),
            // All rows may fall to one expert.
            Op::GroupedGemm(op) => matmul::workspace_of_parts(&op.product(op.rows), self.path, self.pool.threads()),
            Op::Attention(op) => attention::forward_workspace(op, self.path, threads),
            Op::AttentionBackward(op) => attention::backward_workspace(op, self.path, threads),
            Op::NaiveAttention(op) => threads.saturating_mul(naive::forward_scratch(op)),
            Op::NaiveAttentionBackward(op) => threads.saturating_mul(naive::backward_scratch(op)),
            _ => 0,
        }
    }

    fn prepacked_len(&self, op: &Gemm) -> Option<usize> {
        matmul::prepacked_len(op)
    }

    fn run(&self, op: &Op, reads: &[View<'_>], writes: &mut [ViewMut<'_>], scratch: ViewMut<'_>) -> Result<()> {
        operands::check(DEVICE, op, reads, writes)?;
        reads.iter().try_for_each(|view| view.expect_on_host())?;
        writes.iter().try_for_each(|view| view.expect_on_host())?;
        operands::check_scratch(op, &scratch, self.workspace(op))?;
        scratch.expect_on_host()?;
        let name = op.name();
        match (op, reads, writes) {
            (Op::Gemm(op), [a, b], [c]) if op.is_dense() => {
                self.run_matmul(op, *a, Right::Plain(*b), c.reborrow(), scratch)
            }
            (Op::Prepack(op), [b], [to]) => {
                holds(name, "to", prepacked(op)?, to.len())?;
                self.run_prepack(op, *b, to.reborrow());
            }
            (Op::GemmPrepacked(op), [a, b], [c]) => {
                holds(name, "b", prepacked(op)?, b.len())?;
                self.run_matmul(op, *a, Right::Prepacked(*b), c.reborrow(), scratch);
            }
            (Op::RmsNorm(op), [x, w], [y, rstd]) => self.run_rms_norm(op, *x, *w, y.reborrow(), rstd.reborrow()),
            (Op::RmsNormBackward(op), [x, w, rstd, dy], [dx, dw @ ..]) => {
                let dw = dw.first_mut().map(ViewMut::reborrow);
                self.run_rms_norm_backward(op, [*x, *w, *dy], rstd.as_slice()?, dx.reborrow(), dw);
            }
            (Op::LayerNorm(op), [x, w, b @ ..], [y, statistics]) => {
                self.run_layer_norm(op, *x, *w, b.first().copied(), y.reborrow(), statistics.reborrow());
            }
            (Op::LayerNormBackward(op), [x, w, statistics, dy], [dx, gradients @ ..]) => {
                let mut gradients = gradients.iter_mut().map(ViewMut::reborrow);
                let gradients = [gradients.next(), gradients.next()];
                self.run_layer_norm_backward(op, [*x, *w, *dy], statistics.as_slice()?, dx.reborrow(), gradients);
            }
            (Op::BiasAdd(op), [table], [x]) => self.run_bias_add(op, *table, x.reborrow()),
            (Op::BiasAddBackward(op), [dy], [dtable]) => self.run_bias_add_backward(op, *dy, dtable.reborrow()),
            (Op::ScaleColumns(op), [w], [x]) => self.run_scale_columns(op, *w, x.reborrow()),
            (Op::ScaleColumnsBackward(op), [x, dy], [dw]) => {
                self.run_scale_columns_backward(op, *x, *dy, dw.reborrow())
            }
            (Op::RowInvNorm(op), [x], [s]) => self.run_row_inv_norm(op, *x, s.reborrow()),
            (Op::Rope(op), [cos, sin], [x]) => self.run_rope(op, x.reborrow(), cos.as_slice()?, sin.as_slice()?),
            (Op::Attention(op), [q, k, v, starts @ ..], [out, lse]) => {
                let inputs = Inputs { q: *q, k: *k, v: *v, starts: check::documents(name, op, starts.first())? };
                self.run_attention(op, inputs, [out.reborrow(), lse.reborrow()], scratch);
            }
            (Op::AttentionBackward(op), [q, k, v, out, lse, dout, starts @ ..], [dq, dk, dv]) => {
                let inputs = Inputs { q: *q, k: *k, v: *v, starts: check::documents(name, op, starts.first())? };
                let kept = Kept { out: *out, lse: lse.as_slice()?, dout: *dout };
                let gradients = [dq, dk, dv].map(|gradient| gradient.reborrow());
                self.run_attention_backward(op, inputs, kept, gradients, scratch);
            }
            (Op::NaiveAttention(op), [q, k, v, starts @ ..], [out, probs]) => {
                let inputs = Inputs { q: *q, k: *k, v: *v, starts: check::documents(name, op, starts.first())? };
                self.run_naive_attention(op, inputs, [out.reborrow(), probs.reborrow()], scratch);
            }
            (Op::NaiveAttentionBackward(op), [q, k, v, probs, dout], [dq, dk, dv]) => {
                let gradients = [dq, dk, dv].map(|gradient| gradient.reborrow());
                self.run_naive_attention_backward(op, [*q, *k, *v], [*probs, *dout], gradients, scratch);
            }
            (Op::GatedActivation(op), [gate, up], [act]) => self.run_gated_activation(op, *gate, *up, act.reborrow()),
            (Op::GatedActivationBackward(op), [gate, up, dact], [dgate, dup]) => {
                self.run_gated_activation_backward(op, [*gate, *up, *dact], [dgate.reborrow(), dup.reborrow()]);
            }
            (Op::PointwiseActivation(op), [x], [y]) => self.run_pointwise_activation(op, *x, y.reborrow()),
            (Op::PointwiseActivationBackward(op), [x, dy], [dx]) => {
                self.run_pointwise_activation_backward(op, *x, *dy, dx.reborrow())
            }
            (Op::Embedding(op), [ids, table], [out]) => {
                self.run_embedding(op, check::ids(name, op, ids)?, *table, out.reborrow());
            }
            (Op::EmbeddingBackward(op), [ids, dy], [dtable]) => {
                self.run_embedding_backward(op, check::ids(name, op, ids)?, *dy, dtable.reborrow());
            }
            // A loss in half precision says nothing; these are defined for f32 and f64 alone.
            (Op::CrossEntropy(op), [targets], [logits, losses]) if op.dtype == DType::F32 => {
                let targets = check::targets(name, op.rows, op.vocab, targets)?;
                self.run_cross_entropy(op, logits.reborrow(), targets, losses.reborrow());
            }
            (Op::VocabParallelStats(op), [targets, logits], [statistics]) if op.dtype == DType::F32 => {
                let targets = check::targets(name, op.rows, op.vocab.vocab_size, targets)?;
                self.run_loss_parts(op, *logits, targets, statistics.reborrow());
            }
            (Op::VocabParallelCrossEntropy(op), [targets, statistics], [logits, losses])
                if op.part.dtype == DType::F32 =>
            {
                let targets = check::targets(name, op.part.rows, op.part.vocab.vocab_size, targets)?;
                self.run_loss_of_parts(op, logits.reborrow(), targets, statistics.as_slice()?, losses.reborrow());
            }
            (Op::CrossEntropy(CrossEntropy { dtype, .. }), ..)
            | (
                Op::VocabParallelStats(VocabParallelStats { dtype, .. })
                | Op::VocabParallelCrossEntropy(VocabParallelCrossEntropy {
                    part: VocabParallelStats { dtype, .. }, ..
                }),
                ..,
            ) => {
                return Err(KernelError::Unsupported { device: DEVICE.name, op: name, dtype: *dtype });
            }
            (Op::AdamW(op), [g], [p, m, v, copy @ ..]) => {
                let copy = copy.first_mut().map(ViewMut::reborrow);
                self.run_adamw(op, p.reborrow(), m.reborrow(), v.reborrow(), *g, copy);
            }
            (Op::Dropout(op), [x], [y]) => self.run_dropout(op, *x, y.reborrow()),
            (Op::Normal(op), [], [dst]) => self.run_normal(op, dst.reborrow()),
            (Op::Fill(_, value), [], [dst]) => self.run_fill(dst.reborrow(), *value),
            (Op::Cast(_), [src], [dst]) => self.run_cast(*src, dst.reborrow()),
            (Op::Add(_), [a, b], [dst]) => self.run_add(*a, *b, dst.reborrow()),
            (Op::Accumulate(_, alpha), [src], [dst]) => self.run_accumulate(*alpha, *src, dst.reborrow()),
            (Op::Scale(_, alpha), [], [dst]) => self.run_scale(*alpha, dst.reborrow()),
            (Op::Reduce(op), sources, [dst]) => self.run_reduce(op.op, sources, op.accumulate, dst.reborrow()),
            (Op::Quantize(op), [src], [values, scales]) => {
                self.run_quantize(&op.by, *src, values.reborrow(), scales.reborrow());
            }
            (Op::Dequantize(op), [values, scales], [dst]) => {
                let (values, scales) = (values.as_slice()?, scales.as_slice()?);
                self.run_dequantize(&op.by, values, scales, dst.reborrow(), op.accumulate);
            }
            (Op::Pack(op), [src], [codes, scales]) => {
                self.run_pack(&op.matrix, *src, codes.reborrow(), scales.reborrow());
            }
            (Op::Unpack(op), [record], [dst]) => {
                let (codes, scales) = packing::open(&op.matrix, record)?;
                self.run_unpack(op, codes, scales, dst.slice_mut(0..op.matrix.len()));
            }
            (Op::Route(op), [logits], [weights, indices]) => {
                self.run_route(op, *logits, weights.reborrow(), indices.as_slice_mut()?);
            }
            (Op::RouteBackward(op), [logits, indices, dweights], [dlogits]) => {
                let routing = check::indices(name, [op.rows, op.top, op.experts], indices)?;
                self.run_route_backward(op, *logits, routing, dweights.as_slice()?, dlogits.reborrow());
            }
            (Op::Dispatch(op), [indices, x], [y]) => {
                let routing = check::indices(name, [op.rows, op.top, op.experts], indices)?;
                self.run_dispatch(op, routing, *x, y.reborrow());
            }
            (Op::Combine(op), [indices, x, weights @ ..], [y]) => {
                let Slots { rows, top, experts, .. } = op.slots;
                let routing = check::indices(name, [rows, top, experts], indices)?;
                let weights = weights.first().map(|weights| weights.as_slice()).transpose()?;
                self.run_combine(op, routing, *x, weights, y.reborrow());
            }
            (Op::RouterWeightBackward(op), [indices, weights], [x, dx, dweights]) => {
                let routing = check::indices(name, [op.rows, op.top, op.experts], indices)?;
                let weights = weights.as_slice()?;
                self.run_router_weight_backward(op, routing, weights, x.reborrow(), dx.reborrow(), dweights.reborrow());
            }
            (Op::GroupedGemm(op), [offsets, a, b], [c]) => {
                let bounds = check::groups(op, offsets)?;
                self.run_grouped_gemm(op, bounds, [*a, *b], c.reborrow(), scratch);
            }
            (op, ..) => return Err(operands::not_run(DEVICE, op)),
        }
        Ok(())
    }

    fn sum_async(&self, op: &Op, x: View<'_>) -> Result<Sum> {
        operands::check(DEVICE, op, &[x], &[])?;
        Ok(Sum::Known(match op {
            Op::Sum(_) => self.run_sum(x, std::convert::identity),
            Op::SumSquares(_) => self.run_sum(
                x,
                #[inline(always)]
                |x| x * x,
            ),
            _ => return Err(operands::not_run(DEVICE, op)),
        }))
    }
}
