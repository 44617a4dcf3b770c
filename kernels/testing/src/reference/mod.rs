//! The slow, plain version of every operation: each element is read as f64, computed in f64 by simple loops and
//! rounded once. It is the oracle of every kernel test, and runs whole layers in f64 for finite differences.

mod activation;
mod attention;
mod experts;
mod loss;
mod packed;
mod quantize;
mod reduce;
mod rows;
mod values;

use attention::Kept;
use values::{drawn, read, write};
use zbench_kernels::internals::check;
use zbench_kernels::internals::operands::{self, DeviceTypes};
use zbench_kernels::numerics::philox;
use zbench_kernels::numerics::philox::RandomStream;
use zbench_kernels::*;

/// Kernels in f64, one loop each.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reference;

/// Floats only: an operation on token ids or other integers is refused by name.
const DEVICE: DeviceTypes = DeviceTypes { name: "reference", computes: DType::is_float };

impl Kernels for Reference {
    fn name(&self) -> String {
        "reference".into()
    }

    fn threads(&self) -> usize {
        1
    }

    fn workspace(&self, _: &Op) -> usize {
        0
    }

    fn prepacked_len(&self, _: &Gemm) -> Option<usize> {
        None
    }

    fn run(&self, op: &Op, reads: &[View<'_>], writes: &mut [ViewMut<'_>], _: ViewMut<'_>) -> Result<()> {
        operands::check(DEVICE, op, reads, writes)?;
        let name = op.name();
        match (op, reads, writes) {
            (Op::Gemm(op), [a, b], [c]) => gemm(op, a, b, c),
            (Op::RmsNorm(op), [x, w], [y, rstd]) => rows::rms_norm(op, *x, *w, y.reborrow(), rstd.reborrow()),
            (Op::RmsNormBackward(op), [x, w, rstd, dy], [dx, dw @ ..]) => {
                let dw = dw.first_mut().map(ViewMut::reborrow);
                rows::rms_norm_backward(op, *x, *w, *rstd, *dy, dx.reborrow(), dw)
            }
            (Op::LayerNorm(op), [x, w, b @ ..], [y, statistics]) => {
                rows::layer_norm(op, *x, *w, b.first().copied(), y.reborrow(), statistics.reborrow())
            }
            (Op::LayerNormBackward(op), [x, w, statistics, dy], [dx, gradients @ ..]) => {
                let mut gradients = gradients.iter_mut().map(ViewMut::reborrow);
                let (dw, db) = (gradients.next(), gradients.next());
                rows::layer_norm_backward(op, [*x, *w, *statistics, *dy], dx.reborrow(), [dw, db])
            }
            (Op::BiasAdd(op), [table], [x]) => rows::add_rows(op, *table, x.reborrow()),
            (Op::BiasAddBackward(op), [dy], [dtable]) => rows::add_rows_backward(op, *dy, dtable.reborrow()),
            (Op::ScaleColumns(op), [w], [x]) => rows::mul_rows(op, *w, x.reborrow()),
            (Op::ScaleColumnsBackward(op), [x, dy], [dw]) => rows::mul_rows_backward(op, *x, *dy, dw.reborrow()),
            (Op::RowInvNorm(op), [x], [s]) => rows::inverse_norms(op, *x, s.reborrow()),
            (Op::Rope(op), [cos, sin], [x]) => rows::rope(op, x.reborrow(), *cos, *sin),
            (Op::Attention(op), [q, k, v, starts @ ..], [out, lse]) => {
                let starts = check::documents(name, op, starts.first())?;
                attention::forward(op, starts, [*q, *k, *v], out, Some(lse), None)
            }
            (Op::NaiveAttention(op), [q, k, v, starts @ ..], [out, probs]) => {
                let starts = check::documents(name, op, starts.first())?;
                attention::forward(op, starts, [*q, *k, *v], out, None, Some(probs))
            }
            (Op::AttentionBackward(op), [q, k, v, out, lse, dout, starts @ ..], [dq, dk, dv]) => {
                let starts = check::documents(name, op, starts.first())?;
                attention::backward(op, starts, [*q, *k, *v], Kept::Out(*out, *lse), *dout, [dq, dk, dv])
            }
            (Op::NaiveAttentionBackward(op), [q, k, v, probs, dout], [dq, dk, dv]) => {
                attention::backward(op, None, [*q, *k, *v], Kept::Probs(*probs), *dout, [dq, dk, dv])
            }
            (Op::GatedActivation(op), [gate, up], [act]) => {
                let (gate, up) = (read(gate, op.len), read(up, op.len));
                let out: Vec<f64> = gate.iter().zip(&up).map(|(g, u)| g * activation::share(op.act, *g) * u).collect();
                write(act, &out)
            }
            (Op::GatedActivationBackward(op), [gate, up, dact], [dgate, dup]) => {
                let (gate, up, dact) = (read(gate, op.len), read(up, op.len), read(dact, op.len));
                let (mut gates, mut ups) = (vec![0.0; op.len], vec![0.0; op.len]);
                for i in 0..op.len {
                    gates[i] = dact[i] * up[i] * activation::slope(op.act, gate[i]);
                    ups[i] = dact[i] * gate[i] * activation::share(op.act, gate[i]);
                }
                write(dgate, &gates)?;
                write(dup, &ups)
            }
            (Op::PointwiseActivation(op), [x], [y]) => {
                let values: Vec<f64> = read(x, op.len).iter().map(|x| x * activation::share(op.act, *x)).collect();
                write(y, &values)
            }
            (Op::PointwiseActivationBackward(op), [x, dy], [dx]) => {
                let (x, dy) = (read(x, op.len), read(dy, op.len));
                let values: Vec<f64> = x.iter().zip(&dy).map(|(x, dy)| dy * activation::slope(op.act, *x)).collect();
                write(dx, &values)
            }
            (Op::Embedding(op), [ids, table], [out]) => {
                let (ids, table) = (check::ids(name, op, ids)?, read(table, op.vocab.len * op.cols));
                let zeros = vec![0.0; op.cols];
                let row = |id: &u32| op.vocab.find(*id).map_or(&zeros[..], |at| &table[at * op.cols..][..op.cols]);
                write(out, &ids.iter().flat_map(row).copied().collect::<Vec<f64>>())
            }
            (Op::EmbeddingBackward(op), [ids, dy], [dtable]) => {
                embedding_backward(op, check::ids(name, op, ids)?, &read(dy, op.rows * op.cols), dtable)
            }
            (Op::CrossEntropy(op), [targets], [logits, losses]) => {
                let targets = check::targets(name, op.rows, op.vocab, targets)?;
                loss::cross_entropy(op, logits.reborrow(), targets, losses.reborrow())
            }
            (Op::VocabParallelStats(op), [targets, logits], [statistics]) => {
                loss::parts(op, check::targets(name, op.rows, op.vocab.vocab_size, targets)?, logits, statistics)
            }
            (Op::VocabParallelCrossEntropy(op), [targets, statistics], [logits, losses]) => {
                let targets = check::targets(name, op.part.rows, op.part.vocab.vocab_size, targets)?;
                loss::of_parts(op, targets, statistics, logits.reborrow(), losses)
            }
            (Op::AdamW(op), [g], [p, m, v, copy @ ..]) => adamw(op, g, [p, m, v], copy.first_mut()),
            (Op::Dropout(op), [x], [y]) => {
                let (mut values, threshold) = (read(x, op.len), philox::threshold(op.p));
                let words = |block| philox::words(op.seed, RandomStream::Dropout, block);
                let kept = |x: f64, word| if u64::from(word) < threshold { 0.0 } else { x / (1.0 - op.p) };
                philox::each(op.first, op.len, words, |i, word| values[i] = kept(values[i], word));
                write(y, &values)
            }
            (Op::Normal(op), [], [dst]) => {
                let mut values = vec![0.0; op.len];
                // Drawn in f32, so that every type starts from the same numbers.
                let draw = |block| philox::normals(op.seed, block);
                philox::each(op.first, op.len, draw, |i, x| values[i] = f64::from(op.std as f32 * x));
                write(dst, &values)
            }
            (Op::Fill(m, value), [], [dst]) => write(dst, &vec![*value; m.len]),
            (Op::Cast(m), [src], [dst]) => write(dst, &read(src, m.len)),
            (Op::Add(m), [a, b], [dst]) => {
                let sums: Vec<f64> = read(a, m.len).iter().zip(read(b, m.len)).map(|(a, b)| a + b).collect();
                write(dst, &sums)
            }
            (Op::Accumulate(m, alpha), [src], [dst]) => {
                let (old, src) = (read(&dst.as_view(), m.len), read(src, m.len));
                write(dst, &old.iter().zip(&src).map(|(d, s)| d + alpha * s).collect::<Vec<f64>>())
            }
            (Op::Scale(m, alpha), [], [dst]) => {
                let products: Vec<f64> = read(&dst.as_view(), m.len).iter().map(|d| d * alpha).collect();
                write(dst, &products)
            }
            (Op::Reduce(op), sources, [dst]) if op.to.is_float() => {
                reduce::floats(op.op, sources, op.accumulate, dst.reborrow())
            }
            (Op::Reduce(op), sources, [dst]) => reduce::integers(op.op, sources, dst.reborrow()),
            (Op::Quantize(op), [src], [values, scales]) => {
                quantize::quantize(&op.by, *src, values.reborrow(), scales.reborrow())
            }
            (Op::Dequantize(op), [values, scales], [dst]) => {
                quantize::dequantize(&op.by, *values, *scales, dst.reborrow(), op.accumulate)
            }
            (Op::Pack(op), [src], [codes, scales]) => {
                packed::pack(&op.matrix, *src, codes.reborrow(), scales.reborrow())
            }
            (Op::Unpack(op), [record], [dst]) => packed::unpack(op, *record, dst.reborrow()),
            (op, reads, writes) => experts::run(op, reads, writes),
        }
    }

    fn sum_async(&self, op: &Op, x: View<'_>) -> Result<Sum> {
        operands::check(DEVICE, op, &[x], &[])?;
        let square = matches!(op, Op::SumSquares(_));
        Ok(Sum::Known(read(&x, x.len()).iter().map(|x| if square { x * x } else { *x }).sum()))
    }
}

fn gemm(op: &Gemm, a: &View, b: &View, c: &mut ViewMut) -> Result<()> {
    let Gemm { m, n, k, .. } = *op;
    if m == 0 || n == 0 {
        return Ok(());
    }
    let ([_, _, pitch_a], [_, _, pitch_c]) = (op.stored_a(), op.stored_c());
    let extent = |[rows, columns, pitch]: [usize; 3]| if rows == 0 { 0 } else { (rows - 1) * pitch + columns };
    let (a, b, len) = (read(a, extent(op.stored_a())), read(b, k * n), extent(op.stored_c()));
    let mut out = read(&c.as_view(), len);
    for i in 0..m {
        for j in 0..n {
            let left = |p: usize| if op.trans_a { a[p * pitch_a + i] } else { a[i * pitch_a + p] };
            let right = |p: usize| if op.trans_b { b[j * k + p] } else { b[p * n + j] };
            let product = f64::from(op.alpha) * (0..k).map(|p| left(p) * right(p)).sum::<f64>();
            let to = &mut out[i * pitch_c + j];
            *to = product + if op.accumulate { *to } else { 0.0 };
        }
    }
    write(c, &out)
}

fn embedding_backward(op: &Embedding, ids: &[u32], dy: &[f64], dtable: &mut ViewMut) -> Result<()> {
    for (row, id) in ids.iter().enumerate().filter(|(_, id)| op.padding != Some(**id)) {
        let Some(at) = op.vocab.find(*id) else { continue };
        let start = at * op.cols;
        let mut target = dtable.slice_mut(start..start + op.cols);
        let old = read(&target.as_view(), op.cols);
        let sums: Vec<f64> = old.iter().zip(&dy[row * op.cols..]).map(|(t, d)| t + d).collect();
        write(&mut target, &sums)?;
    }
    Ok(())
}

fn adamw(op: &AdamW, g: &View, [p, m, v]: [&mut ViewMut; 3], copy: Option<&mut ViewMut>) -> Result<()> {
    let (mut ps, mut ms) = (read(&p.as_view(), op.len), read(&m.as_view(), op.len));
    let (mut vs, gs) = (read(&v.as_view(), op.len), read(g, op.len));
    let bias1 = 1.0 - op.beta1.powf(op.step as f64);
    let bias2 = 1.0 - op.beta2.powf(op.step as f64);
    for i in 0..op.len {
        let g = gs[i] * op.grad_scale * op.clip;
        ps[i] -= op.lr * op.weight_decay * ps[i];
        ms[i] += (1.0 - op.beta1) * (g - ms[i]);
        vs[i] = op.beta2 * vs[i] + (1.0 - op.beta2) * g * g;
        ps[i] -= op.lr / bias1 * ms[i] / (vs[i].sqrt() / bias2.sqrt() + op.eps);
    }
    match op.rounding {
        Rounding::Nearest => write(p, &ps)?,
        Rounding::Stochastic { seed, first } => {
            let mut draws = vec![0; op.len];
            let block = |block| philox::words_of_step(seed, RandomStream::Rounding, op.step, block);
            philox::each(first, op.len, block, |i, word| draws[i] = word);
            ps.iter_mut().zip(draws).for_each(|(p, word)| *p = drawn(op.parameters, *p, word));
            write(p, &ps)?;
        }
    }
    write(m, &ms)?;
    write(v, &vs)?;
    // The parameters as they are stored, not as they were before they were rounded.
    copy.map_or(Ok(()), |copy| write(copy, &read(&p.as_view(), op.len)))
}
