//! What every device checks before it computes: element types, lengths and shapes that can be.

mod experts;

pub(crate) use experts::{
    Routing, combine, combine_shapes, dispatch, dispatch_shapes, grouped_gemm, grouped_gemm_shapes, route,
    route_backward, route_backward_shapes, weigh, weigh_shapes,
};

use crate::op::*;
use crate::{DType, KernelError, ReduceOp, Result, View, ViewMut};

/// Anything with elements and their type.
pub(crate) trait Operand {
    fn shape(&self) -> (usize, DType);
}

impl Operand for View<'_> {
    fn shape(&self) -> (usize, DType) {
        (self.len(), self.dtype())
    }
}

impl Operand for ViewMut<'_> {
    fn shape(&self) -> (usize, DType) {
        (self.len(), self.dtype())
    }
}

/// The product of a shape; one that overflows is longer than any buffer.
pub(crate) fn elements(shape: &[usize]) -> usize {
    if shape.contains(&0) { 0 } else { shape.iter().fold(1, |n, d| usize::saturating_mul(n, *d)) }
}

/// `view` holds `wanted` elements or more, of type `dtype`.
pub(crate) fn operand(
    op: &'static str,
    operand: &'static str,
    view: &dyn Operand,
    dtype: DType,
    wanted: usize,
) -> Result<()> {
    let (given, have) = view.shape();
    if have != dtype {
        return Err(KernelError::DType { wanted: dtype, given: have });
    }
    if given < wanted { Err(KernelError::Shape { op, operand, wanted, given }) } else { Ok(()) }
}

/// Two operands of an element-wise move have one length.
pub(crate) fn same_length(op: &'static str, name: &'static str, view: &dyn Operand, wanted: usize) -> Result<()> {
    let given = view.shape().0;
    if given == wanted { Ok(()) } else { Err(KernelError::Shape { op, operand: name, wanted, given }) }
}

fn invalid(op: &'static str, reason: String) -> Result<()> {
    Err(KernelError::Invalid { op, reason })
}

pub(crate) fn gemm(op: &Gemm, a: &View, b: &View, c: &ViewMut) -> Result<()> {
    operand("gemm", "a", a, op.a, elements(&[op.m, op.k]))?;
    operand("gemm", "b", b, op.b, elements(&[op.k, op.n]))?;
    operand("gemm", "c", c, op.c, elements(&[op.m, op.n]))
}

pub(crate) fn rms_norm(op: &RmsNorm, x: &View, w: &View, y: &ViewMut, rstd: &ViewMut) -> Result<()> {
    let name = "rms_norm";
    let all = elements(&[op.rows, op.cols]);
    operand(name, "x", x, op.dtype, all)?;
    operand(name, "w", w, op.dtype, op.cols)?;
    operand(name, "y", y, op.dtype, all)?;
    operand(name, "rstd", rstd, op.dtype.accumulator(), op.rows)
}

pub(crate) fn rms_norm_backward(
    op: &RmsNorm,
    x: &View,
    w: &View,
    rstd: &View,
    dy: &View,
    dx: &ViewMut,
    dw: Option<&ViewMut>,
) -> Result<()> {
    let name = "rms_norm_backward";
    let all = elements(&[op.rows, op.cols]);
    operand(name, "x", x, op.dtype, all)?;
    operand(name, "w", w, op.dtype, op.cols)?;
    operand(name, "rstd", rstd, op.dtype.accumulator(), op.rows)?;
    operand(name, "dy", dy, op.dtype, all)?;
    operand(name, "dx", dx, op.dtype, all)?;
    match (op.gradient, dw) {
        (Some(dtype), Some(dw)) => operand(name, "dw", dw, dtype, op.cols),
        (None, None) => Ok(()),
        (Some(_), None) => invalid(name, "a weight that trains needs dw".into()),
        (None, Some(_)) => invalid(name, "a frozen weight has no dw; leave it out or name its type".into()),
    }
}

pub(crate) fn layer_norm(
    op: &LayerNorm,
    x: &View,
    w: &View,
    b: Option<&View>,
    y: &ViewMut,
    statistics: &ViewMut,
) -> Result<()> {
    let name = "layer_norm";
    let all = elements(&[op.rows, op.cols]);
    operand(name, "x", x, op.dtype, all)?;
    operand(name, "w", w, op.dtype, op.cols)?;
    operand(name, "y", y, op.dtype, all)?;
    operand(name, "statistics", statistics, op.dtype.accumulator(), elements(&[2, op.rows]))?;
    match (op.bias, b) {
        (true, Some(b)) => operand(name, "b", b, op.dtype, op.cols),
        (false, None) => Ok(()),
        (true, None) => invalid(name, "a norm with bias needs b".into()),
        (false, Some(_)) => invalid(name, "a norm without bias has no b; leave it out or set bias".into()),
    }
}

pub(crate) fn layer_norm_backward(
    op: &LayerNorm,
    x: &View,
    w: &View,
    statistics: &View,
    dy: &View,
    dx: &ViewMut,
    dw: Option<&ViewMut>,
    db: Option<&ViewMut>,
) -> Result<()> {
    let name = "layer_norm_backward";
    let all = elements(&[op.rows, op.cols]);
    operand(name, "x", x, op.dtype, all)?;
    operand(name, "w", w, op.dtype, op.cols)?;
    operand(name, "statistics", statistics, op.dtype.accumulator(), elements(&[2, op.rows]))?;
    operand(name, "dy", dy, op.dtype, all)?;
    operand(name, "dx", dx, op.dtype, all)?;
    for (operand_name, given, wanted) in [("dw", dw, true), ("db", db, op.bias)] {
        match (op.gradient.filter(|_| wanted), given) {
            (Some(dtype), Some(given)) => operand(name, operand_name, given, dtype, op.cols)?,
            (None, None) => {}
            (Some(_), None) => invalid(name, format!("weights that train need {operand_name}"))?,
            (None, Some(_)) => invalid(name, format!("there is no gradient for {operand_name}; leave it out"))?,
        }
    }
    Ok(())
}

fn period(name: &'static str, op: &AddRows) -> Result<()> {
    if op.period == 0 && op.rows > 0 {
        return invalid(name, format!("{} rows read a table of 0", op.rows));
    }
    Ok(())
}

pub(crate) fn add_rows(op: &AddRows, table: &View, x: &ViewMut) -> Result<()> {
    let name = "add_rows";
    period(name, op)?;
    operand(name, "table", table, op.dtype, elements(&[op.period.min(op.rows), op.cols]))?;
    operand(name, "x", x, op.dtype, elements(&[op.rows, op.cols]))
}

pub(crate) fn add_rows_backward(op: &AddRows, dy: &View, dtable: &ViewMut) -> Result<()> {
    let name = "add_rows_backward";
    period(name, op)?;
    operand(name, "dy", dy, op.dtype, elements(&[op.rows, op.cols]))?;
    operand(name, "dtable", dtable, dtable.dtype(), elements(&[op.period.min(op.rows), op.cols]))
}

pub(crate) fn mul_rows(op: &MulRows, w: &View, x: &ViewMut) -> Result<()> {
    operand("mul_rows", "w", w, op.dtype, op.cols)?;
    operand("mul_rows", "x", x, op.dtype, elements(&[op.rows, op.cols]))
}

pub(crate) fn mul_rows_backward(op: &MulRows, x: &View, dy: &View, dw: &ViewMut) -> Result<()> {
    let name = "mul_rows_backward";
    operand(name, "x", x, op.dtype, elements(&[op.rows, op.cols]))?;
    operand(name, "dy", dy, op.dtype, elements(&[op.rows, op.cols]))?;
    operand(name, "dw", dw, dw.dtype(), op.cols)
}

pub(crate) fn inverse_norms(op: &InverseNorms, x: &View, s: &ViewMut) -> Result<()> {
    operand("inverse_norms", "x", x, op.dtype, elements(&[op.rows, op.cols]))?;
    operand("inverse_norms", "s", s, op.dtype.accumulator(), op.rows)
}

pub(crate) fn rope(op: &Rope, x: &ViewMut, cos: &View, sin: &View) -> Result<()> {
    let name = "rope";
    if !op.head_dim.is_multiple_of(2) {
        return invalid(
            name,
            format!("head_dim is {}, but elements are rotated in pairs: it must be even", op.head_dim),
        );
    }
    if op.seq == 0 && op.rows > 0 {
        return invalid(name, format!("{} tokens in sequences of length 0", op.rows));
    }
    let table = elements(&[op.seq.min(op.rows), op.head_dim / 2]);
    operand(name, "x", x, op.dtype, elements(&[op.rows, op.heads, op.head_dim]))?;
    operand(name, "cos", cos, op.dtype.accumulator(), table)?;
    operand(name, "sin", sin, op.dtype.accumulator(), table)
}

/// The lengths an attention's operands have.
pub(crate) struct AttentionSizes {
    pub q: usize,
    pub kv: usize,
    pub lse: usize,
    pub probs: usize,
}

pub(crate) fn attention(name: &'static str, op: &Attention) -> Result<AttentionSizes> {
    let Attention { batch, seq, heads, kv_heads, head_dim, .. } = *op;
    if heads > 0 && (kv_heads == 0 || !heads.is_multiple_of(kv_heads)) {
        invalid(name, format!("{heads} query heads cannot share {kv_heads} key heads evenly"))?;
    }
    if op.window == Some(0) {
        invalid(name, "a window of 0 keys leaves a query nothing to see; 1 is its own".into())?;
    }
    Ok(AttentionSizes {
        q: elements(&[batch, seq, heads, head_dim]),
        kv: elements(&[batch, seq, kv_heads, head_dim]),
        lse: elements(&[batch, heads, seq]),
        probs: elements(&[batch, heads, seq, seq]),
    })
}

/// As [`documents`], of what lies where the host cannot read it.
pub(crate) fn documents_shape(name: &'static str, op: &Attention, starts: Option<&View>) -> Result<()> {
    starts.map_or(Ok(()), |starts| operand(name, "starts", starts, DType::U32, elements(&[op.batch, op.seq])))
}

/// Where documents start, one place for every token: at or before it, and not before that of the token before it.
pub(crate) fn documents<'a>(name: &'static str, op: &Attention, starts: Option<View<'a>>) -> Result<Option<&'a [u32]>> {
    documents_shape(name, op, starts.as_ref())?;
    let Some(starts) = starts else { return Ok(None) };
    let starts = &starts.as_slice::<u32>()?[..elements(&[op.batch, op.seq])];
    for (batch, starts) in starts.chunks(op.seq.max(1)).enumerate() {
        let mut least = 0;
        for (row, &start) in starts.iter().enumerate() {
            if start < least || start as usize > row {
                let reason = format!(
                    "token {row} of sequence {batch} is said to be in a document that starts at {start}, which must be from \
                     {least} (where the one before it starts) to {row}"
                );
                return Err(KernelError::Invalid { op: name, reason });
            }
            least = start;
        }
    }
    Ok(Some(starts))
}

pub(crate) fn swiglu(op: &Swiglu, gate: &View, up: &View, act: &ViewMut) -> Result<()> {
    operand("swiglu", "gate", gate, op.dtype, op.len)?;
    operand("swiglu", "up", up, op.dtype, op.len)?;
    operand("swiglu", "act", act, op.dtype, op.len)
}

pub(crate) fn swiglu_backward(
    op: &Swiglu,
    gate: &View,
    up: &View,
    dact: &View,
    dgate: &ViewMut,
    dup: &ViewMut,
) -> Result<()> {
    let name = "swiglu_backward";
    operand(name, "gate", gate, op.dtype, op.len)?;
    operand(name, "up", up, op.dtype, op.len)?;
    operand(name, "dact", dact, op.dtype, op.len)?;
    operand(name, "dgate", dgate, op.dtype, op.len)?;
    operand(name, "dup", dup, op.dtype, op.len)
}

pub(crate) fn activate(op: &Activate, x: &View, y: &ViewMut) -> Result<()> {
    operand("activate", "x", x, op.dtype, op.len)?;
    operand("activate", "y", y, op.dtype, op.len)
}

pub(crate) fn activate_backward(op: &Activate, x: &View, dy: &View, dx: &ViewMut) -> Result<()> {
    let name = "activate_backward";
    operand(name, "x", x, op.dtype, op.len)?;
    operand(name, "dy", dy, op.dtype, op.len)?;
    operand(name, "dx", dx, op.dtype, op.len)
}

/// Every one of the first `rows` ids is inside the vocabulary.
fn ids<'a>(name: &'static str, op: &Embedding, ids: &View<'a>) -> Result<&'a [u32]> {
    let ids = &ids.as_slice::<u32>()?[..op.rows];
    if let Some((row, id)) = ids.iter().enumerate().find(|(_, id)| **id as usize >= op.vocab) {
        let reason = format!("token id {id} in row {row} is outside the vocabulary of {}", op.vocab);
        return Err(KernelError::Invalid { op: name, reason });
    }
    Ok(ids)
}

pub(crate) fn embedding<'a>(op: &Embedding, tokens: &View<'a>, table: &View, out: &ViewMut) -> Result<&'a [u32]> {
    embedding_shapes(op, tokens, table, out)?;
    ids("embedding", op, tokens)
}

/// As [`embedding`], of ids that lie where the host cannot read them.
pub(crate) fn embedding_shapes(op: &Embedding, tokens: &View, table: &View, out: &ViewMut) -> Result<()> {
    operand("embedding", "table", table, op.dtype, elements(&[op.vocab, op.cols]))?;
    operand("embedding", "out", out, op.dtype, elements(&[op.rows, op.cols]))?;
    operand("embedding", "ids", tokens, DType::U32, op.rows)
}

pub(crate) fn embedding_backward<'a>(
    op: &Embedding,
    tokens: &View<'a>,
    dy: &View,
    dtable: &ViewMut,
) -> Result<&'a [u32]> {
    embedding_backward_shapes(op, tokens, dy, dtable)?;
    ids("embedding_backward", op, tokens)
}

/// As [`embedding_backward`], of ids that lie where the host cannot read them.
pub(crate) fn embedding_backward_shapes(op: &Embedding, tokens: &View, dy: &View, dtable: &ViewMut) -> Result<()> {
    let name = "embedding_backward";
    operand(name, "dy", dy, op.dtype, elements(&[op.rows, op.cols]))?;
    operand(name, "dtable", dtable, dtable.dtype(), elements(&[op.vocab, op.cols]))?;
    operand(name, "ids", tokens, DType::U32, op.rows)
}

pub(crate) fn cross_entropy<'a>(
    op: &CrossEntropy,
    logits: &ViewMut,
    targets: &View<'a>,
    losses: &ViewMut,
) -> Result<&'a [u32]> {
    let name = "cross_entropy";
    cross_entropy_shapes(op, logits, targets, losses)?;
    let targets = &targets.as_slice::<u32>()?[..op.rows];
    let outside = |t: u32| t != u32::MAX && t as usize >= op.vocab;
    if let Some((row, target)) = targets.iter().enumerate().find(|(_, t)| outside(**t)) {
        let reason = format!("target {target} in row {row} is outside the vocabulary of {}", op.vocab);
        return Err(KernelError::Invalid { op: name, reason });
    }
    Ok(targets)
}

/// As [`cross_entropy`], of targets that lie where the host cannot read them.
pub(crate) fn cross_entropy_shapes(
    op: &CrossEntropy,
    logits: &ViewMut,
    targets: &View,
    losses: &ViewMut,
) -> Result<()> {
    let name = "cross_entropy";
    if op.gradient.size() > op.dtype.size() || !op.gradient.is_float() {
        let reason = format!("a gradient of {} has no room where logits of {} lie", op.gradient, op.dtype);
        return Err(KernelError::Invalid { op: name, reason });
    }
    operand(name, "logits", logits, op.dtype, elements(&[op.rows, op.vocab]))?;
    operand(name, "losses", losses, op.dtype, op.rows)?;
    operand(name, "targets", targets, DType::U32, op.rows)
}

pub(crate) fn adamw(op: &AdamW, p: &ViewMut, m: &ViewMut, v: &ViewMut, g: &View, copy: Option<&ViewMut>) -> Result<()> {
    let name = "adamw";
    if op.step == 0 {
        return invalid(name, "step counts from 1 for the first update, 0 given".into());
    }
    if op.rounding != Rounding::Nearest && !matches!(op.parameters, DType::Bf16 | DType::F16) {
        return invalid(name, format!("stochastic rounding to {} rounds nothing; it takes bf16 or f16", op.parameters));
    }
    operand(name, "p", p, op.parameters, op.len)?;
    operand(name, "m", m, op.moments, op.len)?;
    operand(name, "v", v, op.moments, op.len)?;
    operand(name, "g", g, op.gradients, op.len)?;
    match (op.copy, copy) {
        (Some(dtype), Some(copy)) => operand(name, "copy", copy, dtype, op.len),
        (None, None) => Ok(()),
        (Some(dtype), None) => invalid(name, format!("parameters are to be copied as {dtype}, but there is no copy")),
        (None, Some(_)) => invalid(name, "there is a copy that is not asked for; leave it out or name its type".into()),
    }
}

pub(crate) fn dropout(op: &Dropout, x: &View, y: &ViewMut) -> Result<()> {
    if !(0.0..1.0).contains(&op.p) {
        return invalid("dropout", format!("p is {}, but a chance of a zero lies in [0, 1)", op.p));
    }
    operand("dropout", "x", x, op.dtype, op.len)?;
    operand("dropout", "y", y, op.dtype, op.len)
}

pub(crate) fn add(a: &View, b: &View, dst: &ViewMut) -> Result<()> {
    operand("add", "a", a, dst.dtype(), dst.len())?;
    operand("add", "b", b, dst.dtype(), dst.len())?;
    same_length("add", "a", a, dst.len())?;
    same_length("add", "b", b, dst.len())
}

/// `len` elements of `floats`, their values and their scales.
pub(crate) fn quantize(
    device: &'static str,
    name: &'static str,
    op: &Quantize,
    floats: &dyn Operand,
    values: &dyn Operand,
    scales: &dyn Operand,
) -> Result<()> {
    let (len, dtype) = floats.shape();
    if !matches!(dtype, DType::F32 | DType::Bf16 | DType::F16) {
        return Err(KernelError::Unsupported { device, op: name, dtype });
    }
    if op.block == 0 {
        return invalid(name, "a block has 0 elements, 1 at least is needed".into());
    }
    operand(name, "values", values, DType::I8, op.values_len(len))?;
    operand(name, "scales", scales, DType::F32, op.scales_len(len))
}

pub(crate) fn reduce(op: ReduceOp, sources: &[View], accumulate: bool, dst: &ViewMut) -> Result<()> {
    let name = "reduce";
    if sources.is_empty() {
        return invalid(name, "there is nothing to reduce: no sources".into());
    }
    let wanted = dst.dtype();
    for source in sources {
        let given = source.dtype();
        if given != wanted && !(given.is_float() && wanted.is_float()) {
            return Err(KernelError::DType { wanted, given });
        }
        same_length(name, "source", source, dst.len())?;
    }
    if accumulate && !(wanted.is_float() && matches!(op, ReduceOp::Sum | ReduceOp::Avg)) {
        return invalid(name, format!("{op} of {wanted} cannot be accumulated; sum and avg of floats can"));
    }
    Ok(())
}
