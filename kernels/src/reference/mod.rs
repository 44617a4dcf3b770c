//! The slow, plain version of every operation: each element is read as f64, computed in f64 by simple loops and
//! rounded once. It is the oracle of every kernel test, and runs whole layers in f64 for finite differences.

mod activation;
mod attention;
mod experts;
mod packed;
mod quantize;
mod reduce;
mod rows;
mod values;

use crate::op::*;
use crate::packed::{self as packing, Packed};
use crate::philox::{self, Stream};
use crate::{DType, KernelError, Kernels, ReduceOp, Result, View, ViewMut, check};
use attention::Kept;
use values::{drawn, read, write};

/// Kernels in f64, one loop each.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reference;

/// Floats only: an operation on token ids or other integers is refused by name.
fn floats(op: &'static str, dtypes: &[DType]) -> Result<()> {
    match dtypes.iter().find(|dtype| !dtype.is_float()) {
        Some(&dtype) => Err(KernelError::Unsupported { device: "reference", op, dtype }),
        None => Ok(()),
    }
}

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

    fn gemm(&self, op: &Gemm, a: View<'_>, b: View<'_>, mut c: ViewMut<'_>, _: ViewMut<'_>) -> Result<()> {
        floats("gemm", &[op.a, op.b, op.c])?;
        check::gemm(op, &a, &b, &c)?;
        let Gemm { m, n, k, .. } = *op;
        if m == 0 || n == 0 {
            return Ok(());
        }
        let (a, b, mut out) = (read(&a, m * k), read(&b, k * n), read(&c.as_view(), m * n));
        for i in 0..m {
            for j in 0..n {
                let left = |p: usize| if op.trans_a { a[p * m + i] } else { a[i * k + p] };
                let right = |p: usize| if op.trans_b { b[j * k + p] } else { b[p * n + j] };
                let product = f64::from(op.alpha) * (0..k).map(|p| left(p) * right(p)).sum::<f64>();
                out[i * n + j] = product + if op.accumulate { out[i * n + j] } else { 0.0 };
            }
        }
        write(&mut c, &out)
    }

    fn prepacked_len(&self, _: &Gemm) -> Option<usize> {
        None
    }

    fn prepack(&self, op: &Gemm, _: View<'_>, _: ViewMut<'_>) -> Result<()> {
        Err(KernelError::Unsupported { device: "reference", op: "prepack", dtype: op.b })
    }

    fn gemm_prepacked(&self, op: &Gemm, _: View<'_>, _: View<'_>, _: ViewMut<'_>, _: ViewMut<'_>) -> Result<()> {
        Err(KernelError::Unsupported { device: "reference", op: "gemm_prepacked", dtype: op.b })
    }

    fn rms_norm(&self, op: &RmsNorm, x: View<'_>, w: View<'_>, y: ViewMut<'_>, rstd: ViewMut<'_>) -> Result<()> {
        floats("rms_norm", &[op.dtype])?;
        check::rms_norm(op, &x, &w, &y, &rstd)?;
        rows::rms_norm(op, x, w, y, rstd)
    }

    fn rms_norm_backward(
        &self,
        op: &RmsNorm,
        x: View<'_>,
        w: View<'_>,
        rstd: View<'_>,
        dy: View<'_>,
        dx: ViewMut<'_>,
        dw: Option<ViewMut<'_>>,
    ) -> Result<()> {
        floats("rms_norm_backward", &[op.dtype, op.gradient.unwrap_or(op.dtype)])?;
        check::rms_norm_backward(op, &x, &w, &rstd, &dy, &dx, dw.as_ref())?;
        rows::rms_norm_backward(op, x, w, rstd, dy, dx, dw)
    }

    fn layer_norm(
        &self,
        op: &LayerNorm,
        x: View<'_>,
        w: View<'_>,
        b: Option<View<'_>>,
        y: ViewMut<'_>,
        statistics: ViewMut<'_>,
    ) -> Result<()> {
        floats("layer_norm", &[op.dtype])?;
        check::layer_norm(op, &x, &w, b.as_ref(), &y, &statistics)?;
        rows::layer_norm(op, x, w, b, y, statistics)
    }

    fn layer_norm_backward(
        &self,
        op: &LayerNorm,
        x: View<'_>,
        w: View<'_>,
        statistics: View<'_>,
        dy: View<'_>,
        dx: ViewMut<'_>,
        dw: Option<ViewMut<'_>>,
        db: Option<ViewMut<'_>>,
    ) -> Result<()> {
        floats("layer_norm_backward", &[op.dtype, op.gradient.unwrap_or(op.dtype)])?;
        check::layer_norm_backward(op, &x, &w, &statistics, &dy, &dx, dw.as_ref(), db.as_ref())?;
        rows::layer_norm_backward(op, x, w, statistics, dy, dx, dw, db)
    }

    fn add_rows(&self, op: &AddRows, table: View<'_>, x: ViewMut<'_>) -> Result<()> {
        floats("add_rows", &[op.dtype])?;
        check::add_rows(op, &table, &x)?;
        rows::add_rows(op, table, x)
    }

    fn add_rows_backward(&self, op: &AddRows, dy: View<'_>, dtable: ViewMut<'_>) -> Result<()> {
        floats("add_rows_backward", &[op.dtype, dtable.dtype()])?;
        check::add_rows_backward(op, &dy, &dtable)?;
        rows::add_rows_backward(op, dy, dtable)
    }

    fn mul_rows(&self, op: &MulRows, w: View<'_>, x: ViewMut<'_>) -> Result<()> {
        floats("mul_rows", &[op.dtype])?;
        check::mul_rows(op, &w, &x)?;
        rows::mul_rows(op, w, x)
    }

    fn mul_rows_backward(&self, op: &MulRows, x: View<'_>, dy: View<'_>, dw: ViewMut<'_>) -> Result<()> {
        floats("mul_rows_backward", &[op.dtype, dw.dtype()])?;
        check::mul_rows_backward(op, &x, &dy, &dw)?;
        rows::mul_rows_backward(op, x, dy, dw)
    }

    fn inverse_norms(&self, op: &InverseNorms, x: View<'_>, s: ViewMut<'_>) -> Result<()> {
        floats("inverse_norms", &[op.dtype])?;
        check::inverse_norms(op, &x, &s)?;
        rows::inverse_norms(op, x, s)
    }

    fn rope(&self, op: &Rope, x: ViewMut<'_>, cos: View<'_>, sin: View<'_>) -> Result<()> {
        floats("rope", &[op.dtype])?;
        check::rope(op, &x, &cos, &sin)?;
        rows::rope(op, x, cos, sin)
    }

    fn attention(
        &self,
        op: &Attention,
        q: View<'_>,
        k: View<'_>,
        v: View<'_>,
        out: ViewMut<'_>,
        lse: ViewMut<'_>,
        _: ViewMut<'_>,
    ) -> Result<()> {
        let name = "attention";
        floats(name, &[op.dtype])?;
        let sizes = check::attention(name, op)?;
        check::operand(name, "lse", &lse, op.dtype.accumulator(), sizes.lse)?;
        check::operand(name, "out", &out, op.dtype, sizes.q)?;
        attention::forward(name, op, None, q, k, v, out, Some(lse), None)
    }

    fn attention_backward(
        &self,
        op: &Attention,
        q: View<'_>,
        k: View<'_>,
        v: View<'_>,
        out: View<'_>,
        lse: View<'_>,
        dout: View<'_>,
        dq: ViewMut<'_>,
        dk: ViewMut<'_>,
        dv: ViewMut<'_>,
        _: ViewMut<'_>,
    ) -> Result<()> {
        let name = "attention_backward";
        floats(name, &[op.dtype])?;
        let sizes = check::attention(name, op)?;
        check::operand(name, "out", &out, op.dtype, sizes.q)?;
        check::operand(name, "lse", &lse, op.dtype.accumulator(), sizes.lse)?;
        attention::backward(name, op, None, q, k, v, Kept::Out(out, lse), dout, dq, dk, dv)
    }

    fn naive_attention(
        &self,
        op: &Attention,
        q: View<'_>,
        k: View<'_>,
        v: View<'_>,
        out: ViewMut<'_>,
        probs: ViewMut<'_>,
        _: ViewMut<'_>,
    ) -> Result<()> {
        let name = "naive_attention";
        floats(name, &[op.dtype])?;
        let sizes = check::attention(name, op)?;
        check::operand(name, "probs", &probs, op.dtype, sizes.probs)?;
        check::operand(name, "out", &out, op.dtype, sizes.q)?;
        attention::forward(name, op, None, q, k, v, out, None, Some(probs))
    }

    fn naive_attention_backward(
        &self,
        op: &Attention,
        q: View<'_>,
        k: View<'_>,
        v: View<'_>,
        probs: View<'_>,
        dout: View<'_>,
        dq: ViewMut<'_>,
        dk: ViewMut<'_>,
        dv: ViewMut<'_>,
        _: ViewMut<'_>,
    ) -> Result<()> {
        let name = "naive_attention_backward";
        floats(name, &[op.dtype])?;
        let sizes = check::attention(name, op)?;
        check::operand(name, "probs", &probs, op.dtype, sizes.probs)?;
        attention::backward(name, op, None, q, k, v, Kept::Probs(probs), dout, dq, dk, dv)
    }

    fn swiglu(&self, op: &Swiglu, gate: View<'_>, up: View<'_>, mut act: ViewMut<'_>) -> Result<()> {
        floats("swiglu", &[op.dtype])?;
        check::swiglu(op, &gate, &up, &act)?;
        let (gate, up) = (read(&gate, op.len), read(&up, op.len));
        let out: Vec<f64> = gate.iter().zip(&up).map(|(g, u)| g * activation::share(op.act, *g) * u).collect();
        write(&mut act, &out)
    }

    fn swiglu_backward(
        &self,
        op: &Swiglu,
        gate: View<'_>,
        up: View<'_>,
        dact: View<'_>,
        mut dgate: ViewMut<'_>,
        mut dup: ViewMut<'_>,
    ) -> Result<()> {
        floats("swiglu_backward", &[op.dtype])?;
        check::swiglu_backward(op, &gate, &up, &dact, &dgate, &dup)?;
        let (gate, up, dact) = (read(&gate, op.len), read(&up, op.len), read(&dact, op.len));
        let (mut gates, mut ups) = (vec![0.0; op.len], vec![0.0; op.len]);
        for i in 0..op.len {
            gates[i] = dact[i] * up[i] * activation::slope(op.act, gate[i]);
            ups[i] = dact[i] * gate[i] * activation::share(op.act, gate[i]);
        }
        write(&mut dgate, &gates)?;
        write(&mut dup, &ups)
    }

    fn activate(&self, op: &Activate, x: View<'_>, mut y: ViewMut<'_>) -> Result<()> {
        floats("activate", &[op.dtype])?;
        check::activate(op, &x, &y)?;
        let values: Vec<f64> = read(&x, op.len).iter().map(|x| x * activation::share(op.act, *x)).collect();
        write(&mut y, &values)
    }

    fn activate_backward(&self, op: &Activate, x: View<'_>, dy: View<'_>, mut dx: ViewMut<'_>) -> Result<()> {
        floats("activate_backward", &[op.dtype])?;
        check::activate_backward(op, &x, &dy, &dx)?;
        let (x, dy) = (read(&x, op.len), read(&dy, op.len));
        let values: Vec<f64> = x.iter().zip(&dy).map(|(x, dy)| dy * activation::slope(op.act, *x)).collect();
        write(&mut dx, &values)
    }

    fn embedding(&self, op: &Embedding, ids: View<'_>, table: View<'_>, mut out: ViewMut<'_>) -> Result<()> {
        floats("embedding", &[op.dtype])?;
        let ids = check::embedding(op, &ids, &table, &out)?;
        let table = read(&table, op.vocab * op.cols);
        let rows: Vec<f64> = ids.iter().flat_map(|id| &table[*id as usize * op.cols..][..op.cols]).copied().collect();
        write(&mut out, &rows)
    }

    fn embedding_backward(&self, op: &Embedding, ids: View<'_>, dy: View<'_>, mut dtable: ViewMut<'_>) -> Result<()> {
        floats("embedding_backward", &[op.dtype, dtable.dtype()])?;
        let ids = check::embedding_backward(op, &ids, &dy, &dtable)?;
        let dy = read(&dy, op.rows * op.cols);
        for (row, id) in ids.iter().enumerate().filter(|(_, id)| op.padding != Some(**id)) {
            let start = *id as usize * op.cols;
            let mut target = dtable.slice_mut(start..start + op.cols);
            let sums: Vec<f64> =
                read(&target.as_view(), op.cols).iter().zip(&dy[row * op.cols..]).map(|(t, d)| t + d).collect();
            write(&mut target, &sums)?;
        }
        Ok(())
    }

    fn cross_entropy(
        &self,
        op: &CrossEntropy,
        logits: ViewMut<'_>,
        targets: View<'_>,
        losses: ViewMut<'_>,
    ) -> Result<()> {
        floats("cross_entropy", &[op.dtype, op.gradient])?;
        let targets = check::cross_entropy(op, &logits, &targets, &losses)?;
        rows::cross_entropy(op, logits, targets, losses)
    }

    fn adamw(
        &self,
        op: &AdamW,
        mut p: ViewMut<'_>,
        mut m: ViewMut<'_>,
        mut v: ViewMut<'_>,
        g: View<'_>,
        copy: Option<ViewMut<'_>>,
    ) -> Result<()> {
        floats("adamw", &[op.parameters, op.gradients, op.moments, op.copy.unwrap_or(op.parameters)])?;
        check::adamw(op, &p, &m, &v, &g, copy.as_ref())?;
        let (mut ps, mut ms) = (read(&p.as_view(), op.len), read(&m.as_view(), op.len));
        let (mut vs, gs) = (read(&v.as_view(), op.len), read(&g, op.len));
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
            Rounding::Nearest => write(&mut p, &ps)?,
            Rounding::Stochastic { seed, first } => {
                let mut draws = vec![0; op.len];
                let block = |block| philox::words_of_step(seed, Stream::Rounding, op.step, block);
                philox::each(first, op.len, block, |i, word| draws[i] = word);
                ps.iter_mut().zip(draws).for_each(|(p, word)| *p = drawn(op.parameters, *p, word));
                write(&mut p, &ps)?;
            }
        }
        write(&mut m, &ms)?;
        write(&mut v, &vs)?;
        // The parameters as they are stored, not as they were before they were rounded.
        copy.map_or(Ok(()), |mut copy| write(&mut copy, &read(&p.as_view(), op.len)))
    }

    fn dropout(&self, op: &Dropout, x: View<'_>, mut y: ViewMut<'_>) -> Result<()> {
        floats("dropout", &[op.dtype])?;
        check::dropout(op, &x, &y)?;
        let mut values = read(&x, op.len);
        let threshold = philox::threshold(op.p);
        philox::each(
            op.first,
            op.len,
            |block| philox::words(op.seed, Stream::Dropout, block),
            |i, word| values[i] = if u64::from(word) < threshold { 0.0 } else { values[i] / (1.0 - op.p) },
        );
        write(&mut y, &values)
    }

    fn normal(&self, op: &Normal, mut dst: ViewMut<'_>) -> Result<()> {
        floats("normal", &[op.dtype])?;
        check::operand("normal", "dst", &dst, op.dtype, op.len)?;
        let mut values = vec![0.0; op.len];
        // Drawn in f32, so that every type starts from the same numbers.
        let draw = |block| philox::normals(op.seed, block);
        philox::each(op.first, op.len, draw, |i, x| values[i] = f64::from(op.std as f32 * x));
        write(&mut dst, &values)
    }

    fn fill(&self, mut dst: ViewMut<'_>, value: f64) -> Result<()> {
        floats("fill", &[dst.dtype()])?;
        let values = vec![value; dst.len()];
        write(&mut dst, &values)
    }

    fn cast(&self, src: View<'_>, mut dst: ViewMut<'_>) -> Result<()> {
        floats("cast", &[src.dtype(), dst.dtype()])?;
        check::same_length("cast", "src", &src, dst.len())?;
        write(&mut dst, &read(&src, src.len()))
    }

    fn add(&self, a: View<'_>, b: View<'_>, mut dst: ViewMut<'_>) -> Result<()> {
        floats("add", &[dst.dtype()])?;
        check::add(&a, &b, &dst)?;
        let sums: Vec<f64> = read(&a, a.len()).iter().zip(read(&b, b.len())).map(|(a, b)| a + b).collect();
        write(&mut dst, &sums)
    }

    fn accumulate(&self, alpha: f64, src: View<'_>, mut dst: ViewMut<'_>) -> Result<()> {
        floats("accumulate", &[src.dtype(), dst.dtype()])?;
        check::same_length("accumulate", "src", &src, dst.len())?;
        let (old, src) = (read(&dst.as_view(), dst.len()), read(&src, src.len()));
        let sums: Vec<f64> = old.iter().zip(&src).map(|(d, s)| d + alpha * s).collect();
        write(&mut dst, &sums)
    }

    fn scale(&self, alpha: f64, mut dst: ViewMut<'_>) -> Result<()> {
        floats("scale", &[dst.dtype()])?;
        let products: Vec<f64> = read(&dst.as_view(), dst.len()).iter().map(|d| d * alpha).collect();
        write(&mut dst, &products)
    }

    fn sum(&self, x: View<'_>) -> Result<f64> {
        floats("sum", &[x.dtype()])?;
        Ok(read(&x, x.len()).iter().sum())
    }

    fn sum_squares(&self, x: View<'_>) -> Result<f64> {
        floats("sum_squares", &[x.dtype()])?;
        Ok(read(&x, x.len()).iter().map(|x| x * x).sum())
    }

    fn reduce(&self, op: ReduceOp, sources: &[View<'_>], accumulate: bool, dst: ViewMut<'_>) -> Result<()> {
        check::reduce(op, sources, accumulate, &dst)?;
        if dst.dtype().is_float() {
            reduce::floats(op, sources, accumulate, dst)
        } else {
            reduce::integers(op, sources, dst)
        }
    }

    fn quantize(&self, op: &Quantize, src: View<'_>, values: ViewMut<'_>, scales: ViewMut<'_>) -> Result<()> {
        check::quantize("reference", "quantize", op, &src, &values, &scales)?;
        quantize::quantize(op, src, values, scales)
    }

    fn dequantize(
        &self,
        op: &Quantize,
        values: View<'_>,
        scales: View<'_>,
        dst: ViewMut<'_>,
        accumulate: bool,
    ) -> Result<()> {
        check::quantize("reference", "dequantize", op, &dst, &values, &scales)?;
        quantize::dequantize(op, values, scales, dst, accumulate)
    }

    fn pack(&self, matrix: &Packed, src: View<'_>, codes: ViewMut<'_>, scales: ViewMut<'_>) -> Result<()> {
        packing::check_pack("reference", matrix, &src, &codes, &scales)?;
        packed::pack(matrix, src, codes, scales)
    }

    fn unpack(&self, op: &Unpack, record: View<'_>, dst: ViewMut<'_>) -> Result<()> {
        packing::check_unpack("reference", op, &record, &dst)?;
        packed::unpack(op, record, dst)
    }
}
