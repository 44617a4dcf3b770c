//! Operations by name, for callers that have their operands at hand: tests and benchmarks.

use zbench_kernels::*;

#[allow(clippy::too_many_arguments)]
pub trait ByName: Kernels {
    fn gemm(&self, op: &Gemm, a: View<'_>, b: View<'_>, c: ViewMut<'_>, workspace: ViewMut<'_>) -> Result<()> {
        self.run(&Op::Gemm(*op), &[a, b], &mut [c], workspace)
    }

    fn prepack(&self, op: &Gemm, b: View<'_>, to: ViewMut<'_>) -> Result<()> {
        self.run(&Op::Prepack(*op), &[b], &mut [to], no_scratch())
    }

    fn gemm_prepacked(
        &self,
        op: &Gemm,
        a: View<'_>,
        b: View<'_>,
        c: ViewMut<'_>,
        workspace: ViewMut<'_>,
    ) -> Result<()> {
        self.run(&Op::GemmPrepacked(*op), &[a, b], &mut [c], workspace)
    }

    fn rms_norm(&self, op: &RmsNorm, x: View<'_>, w: View<'_>, y: ViewMut<'_>, rstd: ViewMut<'_>) -> Result<()> {
        self.run(&Op::RmsNorm(*op), &[x, w], &mut [y, rstd], no_scratch())
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
        let mut writes = vec![dx];
        writes.extend(dw);
        self.run(&Op::RmsNormBackward(*op), &[x, w, rstd, dy], &mut writes, no_scratch())
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
        let mut reads = vec![x, w];
        reads.extend(b);
        self.run(&Op::LayerNorm(*op), &reads, &mut [y, statistics], no_scratch())
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
        let mut writes = vec![dx];
        writes.extend(dw);
        writes.extend(db);
        self.run(&Op::LayerNormBackward(*op), &[x, w, statistics, dy], &mut writes, no_scratch())
    }

    fn add_rows(&self, op: &BiasAdd, table: View<'_>, x: ViewMut<'_>) -> Result<()> {
        self.run(&Op::BiasAdd(*op), &[table], &mut [x], no_scratch())
    }

    fn add_rows_backward(&self, op: &BiasAdd, dy: View<'_>, dtable: ViewMut<'_>) -> Result<()> {
        self.run(&Op::BiasAddBackward(*op), &[dy], &mut [dtable], no_scratch())
    }

    fn mul_rows(&self, op: &ScaleColumns, w: View<'_>, x: ViewMut<'_>) -> Result<()> {
        self.run(&Op::ScaleColumns(*op), &[w], &mut [x], no_scratch())
    }

    fn mul_rows_backward(&self, op: &ScaleColumns, x: View<'_>, dy: View<'_>, dw: ViewMut<'_>) -> Result<()> {
        self.run(&Op::ScaleColumnsBackward(*op), &[x, dy], &mut [dw], no_scratch())
    }

    fn inverse_norms(&self, op: &RowInvNorm, x: View<'_>, s: ViewMut<'_>) -> Result<()> {
        self.run(&Op::RowInvNorm(*op), &[x], &mut [s], no_scratch())
    }

    fn rope(&self, op: &Rope, x: ViewMut<'_>, cos: View<'_>, sin: View<'_>) -> Result<()> {
        self.run(&Op::Rope(*op), &[cos, sin], &mut [x], no_scratch())
    }

    fn attention(
        &self,
        op: &Attention,
        q: View<'_>,
        k: View<'_>,
        v: View<'_>,
        out: ViewMut<'_>,
        lse: ViewMut<'_>,
        workspace: ViewMut<'_>,
    ) -> Result<()> {
        self.run(&Op::Attention(*op), &[q, k, v], &mut [out, lse], workspace)
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
        workspace: ViewMut<'_>,
    ) -> Result<()> {
        self.run(&Op::AttentionBackward(*op), &[q, k, v, out, lse, dout], &mut [dq, dk, dv], workspace)
    }

    fn naive_attention(
        &self,
        op: &Attention,
        q: View<'_>,
        k: View<'_>,
        v: View<'_>,
        out: ViewMut<'_>,
        probs: ViewMut<'_>,
        workspace: ViewMut<'_>,
    ) -> Result<()> {
        self.run(&Op::NaiveAttention(*op), &[q, k, v], &mut [out, probs], workspace)
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
        workspace: ViewMut<'_>,
    ) -> Result<()> {
        self.run(&Op::NaiveAttentionBackward(*op), &[q, k, v, probs, dout], &mut [dq, dk, dv], workspace)
    }

    fn swiglu(&self, op: &GatedActivation, gate: View<'_>, up: View<'_>, act: ViewMut<'_>) -> Result<()> {
        self.run(&Op::GatedActivation(*op), &[gate, up], &mut [act], no_scratch())
    }

    fn swiglu_backward(
        &self,
        op: &GatedActivation,
        gate: View<'_>,
        up: View<'_>,
        dact: View<'_>,
        dgate: ViewMut<'_>,
        dup: ViewMut<'_>,
    ) -> Result<()> {
        self.run(&Op::GatedActivationBackward(*op), &[gate, up, dact], &mut [dgate, dup], no_scratch())
    }

    fn activate(&self, op: &PointwiseActivation, x: View<'_>, y: ViewMut<'_>) -> Result<()> {
        self.run(&Op::PointwiseActivation(*op), &[x], &mut [y], no_scratch())
    }

    fn activate_backward(&self, op: &PointwiseActivation, x: View<'_>, dy: View<'_>, dx: ViewMut<'_>) -> Result<()> {
        self.run(&Op::PointwiseActivationBackward(*op), &[x, dy], &mut [dx], no_scratch())
    }

    fn embedding(&self, op: &Embedding, ids: View<'_>, table: View<'_>, out: ViewMut<'_>) -> Result<()> {
        self.run(&Op::Embedding(*op), &[ids, table], &mut [out], no_scratch())
    }

    fn embedding_backward(&self, op: &Embedding, ids: View<'_>, dy: View<'_>, dtable: ViewMut<'_>) -> Result<()> {
        self.run(&Op::EmbeddingBackward(*op), &[ids, dy], &mut [dtable], no_scratch())
    }

    fn cross_entropy(
        &self,
        op: &CrossEntropy,
        logits: ViewMut<'_>,
        targets: View<'_>,
        losses: ViewMut<'_>,
    ) -> Result<()> {
        self.run(&Op::CrossEntropy(*op), &[targets], &mut [logits, losses], no_scratch())
    }

    fn loss_parts(
        &self,
        op: &VocabParallelStats,
        targets: View<'_>,
        logits: View<'_>,
        statistics: ViewMut<'_>,
    ) -> Result<()> {
        self.run(&Op::VocabParallelStats(*op), &[targets, logits], &mut [statistics], no_scratch())
    }

    fn loss_of_parts(
        &self,
        op: &VocabParallelCrossEntropy,
        targets: View<'_>,
        statistics: View<'_>,
        logits: ViewMut<'_>,
        losses: ViewMut<'_>,
    ) -> Result<()> {
        self.run(&Op::VocabParallelCrossEntropy(*op), &[targets, statistics], &mut [logits, losses], no_scratch())
    }

    fn adamw(
        &self,
        op: &AdamW,
        p: ViewMut<'_>,
        m: ViewMut<'_>,
        v: ViewMut<'_>,
        g: View<'_>,
        copy: Option<ViewMut<'_>>,
    ) -> Result<()> {
        let mut writes = vec![p, m, v];
        writes.extend(copy);
        self.run(&Op::AdamW(*op), &[g], &mut writes, no_scratch())
    }

    fn dropout(&self, op: &Dropout, x: View<'_>, y: ViewMut<'_>) -> Result<()> {
        self.run(&Op::Dropout(*op), &[x], &mut [y], no_scratch())
    }

    fn normal(&self, op: &Normal, dst: ViewMut<'_>) -> Result<()> {
        self.run(&Op::Normal(*op), &[], &mut [dst], no_scratch())
    }

    fn unpack(&self, op: &Unpack, record: View<'_>, dst: ViewMut<'_>) -> Result<()> {
        self.run(&Op::Unpack(*op), &[record], &mut [dst], no_scratch())
    }

    fn attention_in_documents(
        &self,
        op: &Attention,
        starts: View<'_>,
        q: View<'_>,
        k: View<'_>,
        v: View<'_>,
        out: ViewMut<'_>,
        lse: ViewMut<'_>,
        workspace: ViewMut<'_>,
    ) -> Result<()> {
        self.run(&Op::Attention(*op), &[q, k, v, starts], &mut [out, lse], workspace)
    }

    fn attention_in_documents_backward(
        &self,
        op: &Attention,
        starts: View<'_>,
        q: View<'_>,
        k: View<'_>,
        v: View<'_>,
        out: View<'_>,
        lse: View<'_>,
        dout: View<'_>,
        dq: ViewMut<'_>,
        dk: ViewMut<'_>,
        dv: ViewMut<'_>,
        workspace: ViewMut<'_>,
    ) -> Result<()> {
        self.run(&Op::AttentionBackward(*op), &[q, k, v, out, lse, dout, starts], &mut [dq, dk, dv], workspace)
    }

    fn naive_attention_in_documents(
        &self,
        op: &Attention,
        starts: View<'_>,
        q: View<'_>,
        k: View<'_>,
        v: View<'_>,
        out: ViewMut<'_>,
        probs: ViewMut<'_>,
        workspace: ViewMut<'_>,
    ) -> Result<()> {
        self.run(&Op::NaiveAttention(*op), &[q, k, v, starts], &mut [out, probs], workspace)
    }

    fn route(&self, op: &Route, logits: View<'_>, weights: ViewMut<'_>, indices: ViewMut<'_>) -> Result<()> {
        self.run(&Op::Route(*op), &[logits], &mut [weights, indices], no_scratch())
    }

    fn route_backward(
        &self,
        op: &Route,
        logits: View<'_>,
        indices: View<'_>,
        dweights: View<'_>,
        dlogits: ViewMut<'_>,
    ) -> Result<()> {
        self.run(&Op::RouteBackward(*op), &[logits, indices, dweights], &mut [dlogits], no_scratch())
    }

    fn dispatch(&self, op: &Slots, indices: View<'_>, x: View<'_>, y: ViewMut<'_>) -> Result<()> {
        self.run(&Op::Dispatch(*op), &[indices, x], &mut [y], no_scratch())
    }

    fn combine(
        &self,
        op: &Combine,
        indices: View<'_>,
        x: View<'_>,
        weights: Option<View<'_>>,
        y: ViewMut<'_>,
    ) -> Result<()> {
        let mut reads = vec![indices, x];
        reads.extend(weights);
        self.run(&Op::Combine(*op), &reads, &mut [y], no_scratch())
    }

    fn weigh(
        &self,
        op: &Slots,
        indices: View<'_>,
        weights: View<'_>,
        x: ViewMut<'_>,
        dx: ViewMut<'_>,
        dweights: ViewMut<'_>,
    ) -> Result<()> {
        self.run(&Op::RouterWeightBackward(*op), &[indices, weights], &mut [x, dx, dweights], no_scratch())
    }

    fn grouped_gemm(
        &self,
        op: &GroupedGemm,
        offsets: View<'_>,
        a: View<'_>,
        b: View<'_>,
        c: ViewMut<'_>,
        workspace: ViewMut<'_>,
    ) -> Result<()> {
        self.run(&Op::GroupedGemm(*op), &[offsets, a, b], &mut [c], workspace)
    }

    fn quantize(&self, op: &Quantize, src: View<'_>, values: ViewMut<'_>, scales: ViewMut<'_>) -> Result<()> {
        let op = QuantizeBlocks { by: *op, len: src.len(), dtype: src.dtype(), accumulate: false };
        self.run(&Op::Quantize(op), &[src], &mut [values, scales], no_scratch())
    }

    fn dequantize(
        &self,
        op: &Quantize,
        values: View<'_>,
        scales: View<'_>,
        dst: ViewMut<'_>,
        accumulate: bool,
    ) -> Result<()> {
        let op = QuantizeBlocks { by: *op, len: dst.len(), dtype: dst.dtype(), accumulate };
        self.run(&Op::Dequantize(op), &[values, scales], &mut [dst], no_scratch())
    }

    fn pack(&self, matrix: &Packed, src: View<'_>, codes: ViewMut<'_>, scales: ViewMut<'_>) -> Result<()> {
        let op = Pack { matrix: *matrix, len: src.len(), dtype: src.dtype() };
        self.run(&Op::Pack(op), &[src], &mut [codes, scales], no_scratch())
    }

    fn sum(&self, x: View<'_>) -> Result<f64> {
        self.summed(Op::Sum, x)
    }

    fn sum_squares(&self, x: View<'_>) -> Result<f64> {
        self.summed(Op::SumSquares, x)
    }

    fn summed(&self, op: fn(Elementwise) -> Op, x: View<'_>) -> Result<f64> {
        let shape = Elementwise { len: x.len(), sources: 1, from: x.dtype(), to: DType::F64 };
        let (sum, mut value) = (self.sum_async(&op(shape), x)?, [0.0]);
        self.read_scalars(&[sum], &mut value)?;
        Ok(value[0])
    }
}

impl<K: Kernels + ?Sized> ByName for K {}
