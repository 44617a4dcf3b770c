//! The fixed vocabulary of the golden dump. Every word is written here and nowhere else, so that the dump stays as it is when
//! an item or a name of the program changes. A value without a word fails the test.

use zbench_collectives::CollectiveKind;
use zbench_collectives::GroupName;
use zbench_engine::action::stream::Stream;
use zbench_engine::action::{Action, Kept, Moved};
use zbench_engine::compute::recorder::{Phase, Recorded};
use zbench_engine::config::{MemoryTier, SavedTensor};
use zbench_kernels::*;

/// Layers have the word unit, which is what they were called. The micro-batch is named where it is not the one that was loaded last.
pub fn action(action: &Action) -> String {
    match *action {
        Action::Load { micro } => format!("load micro={micro}"),
        Action::Gather { unit, refresh, slot } => format!("gather unit={unit} refresh={refresh} slot={slot}"),
        Action::Receive { chunk, stream: of, gradient, .. } => {
            format!("receive chunk={chunk} {} gradient={gradient}", stream(of))
        }
        Action::Forward { layer, .. } => format!("forward unit={layer}"),
        Action::Evict { layer, tensor, .. } => format!("evict unit={layer} tensor={}", saved(tensor)),
        Action::Recompute { layer, output, .. } => format!("recompute unit={layer} output={output}"),
        Action::Backward { layer, .. } => format!("backward unit={layer}"),
        Action::BackwardInput { layer, .. } => format!("backward-of-input unit={layer}"),
        Action::BackwardWeight { layer, .. } => format!("backward-of-weights unit={layer}"),
        Action::Send { chunk, stream: of, gradient, .. } => {
            format!("send chunk={chunk} {} gradient={gradient}", stream(of))
        }
        Action::Release { unit } => format!("release unit={unit}"),
        Action::Reduce { unit, first, last } => format!("reduce unit={unit} first={first} last={last}"),
        Action::ReduceTied { unit } => format!("reduce tied unit={unit}"),
        Action::Update => "update".into(),
        Action::Fetch { unit, what } => {
            let what = match what {
                Moved::Weights => "weights",
                Moved::State => "state",
            };
            format!("fetch unit={unit} {what}")
        }
        Action::StoreSaved { layer, what, .. } => {
            let what = match what {
                Kept::All => "all",
                Kept::Input => saved(None),
                Kept::Tensor(tensor) => saved(Some(tensor)),
            };
            format!("store-saved unit={layer} {what}")
        }
        Action::WaitStoreSaved { layer, .. } => format!("settle-saved unit={layer}"),
        Action::FetchSaved { layer, .. } => format!("fetch-saved unit={layer}"),
        Action::UpdateUnit { unit } => format!("update unit={unit}"),
        Action::Store { unit } => format!("store unit={unit}"),
        Action::WaitStore { unit } => format!("settle unit={unit}"),
    }
}

fn stream(stream: Stream) -> &'static str {
    match stream {
        Stream::Decoder => "decoder",
        Stream::Encoder => "encoder",
    }
}

/// What forward keeps of a block: a tensor, or its input.
fn saved(tensor: Option<SavedTensor>) -> &'static str {
    match tensor {
        None => "input",
        Some(SavedTensor::AttentionNorm) => "attention-norm",
        Some(SavedTensor::Qkv) => "qkv",
        Some(SavedTensor::Attention) => "attention",
        Some(SavedTensor::Residual) => "residual",
        Some(SavedTensor::MlpNorm) => "mlp-norm",
        Some(SavedTensor::GateUp) => "gate-up",
        Some(SavedTensor::Activation) => "activation",
    }
}

pub fn home(home: MemoryTier) -> &'static str {
    match home {
        MemoryTier::Device => "device",
        MemoryTier::Host => "host",
        MemoryTier::Disk => "disk",
    }
}

pub fn category(category: Category) -> &'static str {
    CATEGORIES.iter().find(|(known, _)| *known == category).map(|(_, word)| *word).unwrap()
}

pub const CATEGORIES: [(Category, &str); 6] = [
    (Category::Parameters, "parameters"),
    (Category::Gradients, "gradients"),
    (Category::Optimizer, "optimizer"),
    (Category::Activations, "activations"),
    (Category::Communication, "communication"),
    (Category::Workspace, "workspace"),
];

pub fn axis(axis: GroupName) -> &'static str {
    match axis {
        GroupName::Data => "data",
        GroupName::Inner => "shard",
        GroupName::Outer => "replicate",
        GroupName::Tensor => "tensor",
        GroupName::Pipeline => "pipeline",
        GroupName::World => "world",
        other => panic!("the group {other:?} has no word in the golden dump; add it to {}", file!()),
    }
}

pub fn kind(kind: CollectiveKind) -> &'static str {
    match kind {
        CollectiveKind::AllReduce => "all-reduce",
        CollectiveKind::AllGather => "all-gather",
        CollectiveKind::ReduceScatter => "reduce-scatter",
        CollectiveKind::Broadcast => "broadcast",
        CollectiveKind::Barrier => "barrier",
        CollectiveKind::Send => "send",
        CollectiveKind::Recv => "receive",
        CollectiveKind::SendRecv => "exchange",
        other => panic!("the collective {other:?} has no word in the golden dump; add it to {}", file!()),
    }
}

fn phase(phase: Phase) -> &'static str {
    match phase {
        Phase::Forward => "forward",
        Phase::Backward => "backward",
        Phase::Recompute => "recompute",
        Phase::Update => "update",
    }
}

fn term(term: &str) -> &'static str {
    match term {
        "q_proj" => "q",
        "k_proj" => "k",
        "v_proj" => "v",
        "o_proj" => "o",
        "gate_proj" => "gate",
        "up_proj" => "up",
        "down_proj" => "down",
        "expert gate_proj" => "expert-gate",
        "expert up_proj" => "expert-up",
        "expert down_proj" => "expert-down",
        "router" => "router",
        "routing" => "routing",
        "lm_head" => "head",
        "loss" => "loss",
        "embedding" => "embedding",
        "norms" => "norms",
        "attention core" => "attention",
        "element-wise" => "pointwise",
        "adapters" => "adapters",
        "unpack" => "unpack",
        "gather" => "gather",
        "reduce" => "reduce",
        "gradients" => "gradients",
        "norm" => "gradient-norm",
        "adamw" => "adamw",
        other => panic!("the FLOP term {other:?} has no word in the golden dump; add it to {}", file!()),
    }
}

/// A line of the FLOP ledger.
pub fn flop_term(name: &str) -> String {
    if name == "attention scores again in backward (hardware only)" {
        return "beyond-the-model attention".into();
    }
    let (when, what) = name.split_once(' ').unwrap_or((name, ""));
    let (when, what) = match when {
        "forward" => ("forward", what),
        "backward" => ("backward", what),
        "update" => ("update", what),
        "recompute" => ("recompute", what.strip_suffix(" (hardware only)").unwrap_or(what)),
        other => panic!("the FLOP phase {other:?} has no word in the golden dump; add it to {}", file!()),
    };
    format!("{when} {}", term(what))
}

pub fn dtype(dtype: DType) -> &'static str {
    match dtype {
        DType::F64 => "f64",
        DType::F32 => "f32",
        DType::Bf16 => "bf16",
        DType::F16 => "f16",
        DType::U32 => "u32",
        DType::I32 => "i32",
        DType::I8 => "i8",
    }
}

/// Phase, term, kind and shape of an operation. What depends on the step or on where a rank's part begins (learning rate, step,
/// clipping, scale of the loss, first element of random numbers) is left out.
pub fn operation(stated: &Recorded) -> String {
    let Recorded { phase: when, term: what, op } = stated;
    format!("{} {} {}", phase(*when), term(what), kind_and_shape(op))
}

fn maybe(dtype_of: Option<DType>) -> &'static str {
    dtype_of.map_or("none", dtype)
}

fn kind_and_shape(op: &Op) -> String {
    match *op {
        Op::Gemm(op) => format!("matmul {}", gemm(op)),
        Op::Prepack(op) => format!("prepack {}", gemm(op)),
        Op::GemmPrepacked(op) => format!("matmul-prepacked {}", gemm(op)),
        Op::RmsNorm(op) => format!("rmsnorm {}", rms_norm(op)),
        Op::RmsNormBackward(op) => format!("rmsnorm-backward {}", rms_norm(op)),
        Op::LayerNorm(op) => format!("layernorm {}", layer_norm(op)),
        Op::LayerNormBackward(op) => format!("layernorm-backward {}", layer_norm(op)),
        Op::BiasAdd(op) => format!("add-rows {}", add_rows(op)),
        Op::BiasAddBackward(op) => format!("add-rows-backward {}", add_rows(op)),
        Op::ScaleColumns(op) => format!("scale-columns {}", mul_rows(op)),
        Op::ScaleColumnsBackward(op) => format!("scale-columns-backward {}", mul_rows(op)),
        Op::RowInvNorm(RowInvNorm { rows, cols, dtype: of }) => {
            format!("inverse-norms rows={rows} cols={cols} {}", dtype(of))
        }
        Op::Rope(Rope { rows, seq, heads, head_dim, inverse, dtype: of }) => {
            let of = dtype(of);
            format!("rope rows={rows} seq={seq} heads={heads} head-dim={head_dim} inverse={inverse} {of}")
        }
        Op::Attention(op) => format!("attention {}", attention(op)),
        Op::AttentionBackward(op) => format!("attention-backward {}", attention(op)),
        Op::NaiveAttention(op) => format!("naive-attention {}", attention(op)),
        Op::NaiveAttentionBackward(op) => format!("naive-attention-backward {}", attention(op)),
        Op::GatedActivation(op) => format!("gated {}", gated(op)),
        Op::GatedActivationBackward(op) => format!("gated-backward {}", gated(op)),
        Op::PointwiseActivation(op) => format!("activation {}", activate(op)),
        Op::PointwiseActivationBackward(op) => format!("activation-backward {}", activate(op)),
        Op::Embedding(op) => format!("embedding {}", embedding(op)),
        Op::EmbeddingBackward(op) => format!("embedding-backward {}", embedding(op)),
        Op::CrossEntropy(CrossEntropy { rows, vocab, scale: _, dtype: of, gradient, .. }) => {
            format!("cross-entropy rows={rows} vocab={vocab} {} gradient={}", dtype(of), dtype(gradient))
        }
        Op::VocabParallelStats(op) => format!("loss-parts {}", loss_parts(op)),
        Op::VocabParallelCrossEntropy(VocabParallelCrossEntropy { part, ranks, scale: _, gradient }) => {
            format!("loss-of-parts {} ranks={ranks} gradient={}", loss_parts(part), dtype(gradient))
        }
        Op::AdamW(op) => adamw(op),
        Op::Dropout(Dropout { len, p, seed: _, first: _, dtype: of }) => {
            format!("dropout len={len} p={p} {}", dtype(of))
        }
        Op::Normal(Normal { len, std, seed: _, first: _, dtype: of }) => {
            format!("normal len={len} std={std} {}", dtype(of))
        }
        Op::Fill(op, _) => format!("fill {}", elementwise(op)),
        Op::Cast(op) => format!("cast {}", elementwise(op)),
        Op::Add(op) => format!("add {}", elementwise(op)),
        Op::Accumulate(op, _) => format!("accumulate {}", elementwise(op)),
        Op::Scale(op, _) => format!("scale {}", elementwise(op)),
        Op::Sum(op) => format!("sum {}", elementwise(op)),
        Op::SumSquares(op) => format!("sum-of-squares {}", elementwise(op)),
        Op::Reduce(_) | Op::Quantize(_) | Op::Dequantize(_) | Op::Pack(_) => {
            panic!("no step has a {}: communicators and initialisation ask for it", op.name())
        }
        Op::Unpack(Unpack { matrix: Packed { packing, rows, cols }, dtype: of }) => {
            let packing = match packing {
                Packing::Nf4 => "nf4",
                Packing::Nf4Double => "nf4-double",
                Packing::Int8 => "int8",
            };
            format!("dequantize {packing} rows={rows} cols={cols} {}", dtype(of))
        }
        Op::Route(op) => format!("route {}", route(op)),
        Op::RouteBackward(op) => format!("route-backward {}", route(op)),
        Op::Dispatch(op) => format!("dispatch {}", slots(op)),
        Op::Combine(Combine { slots: op, weighted, accumulate }) => {
            format!("combine {} weighted={weighted} accumulate={accumulate}", slots(op))
        }
        Op::RouterWeightBackward(op) => format!("router-weight-backward {}", slots(op)),
        Op::GroupedGemm(GroupedGemm { rows, groups, out, input, form, accumulate, a, b, c }) => {
            let form = match form {
                Grouped::Forward => "forward",
                Grouped::Input => "input-gradient",
                Grouped::Weight => "weight-gradient",
            };
            let [a, b, c] = [a, b, c].map(dtype);
            let shape = format!("rows={rows} groups={groups} out={out} in={input}");
            format!("grouped-matmul {form} {shape} accumulate={accumulate} {a} {b} {c}")
        }
    }
}

fn gemm(op: Gemm) -> String {
    let Gemm { m, n, k, trans_a, trans_b, alpha, accumulate, a, b, c, .. } = op;
    let [a, b, c] = [a, b, c].map(dtype);
    format!("m={m} n={n} k={k} ta={trans_a} tb={trans_b} alpha={alpha} accumulate={accumulate} {a} {b} {c}")
}

fn rms_norm(op: RmsNorm) -> String {
    let RmsNorm { rows, cols, eps, dtype: of, gradient } = op;
    format!("rows={rows} cols={cols} eps={eps} {} gradient={}", dtype(of), maybe(gradient))
}

fn layer_norm(op: LayerNorm) -> String {
    let LayerNorm { rows, cols, eps, bias, dtype: of, gradient } = op;
    format!("rows={rows} cols={cols} eps={eps} bias={bias} {} gradient={}", dtype(of), maybe(gradient))
}

fn add_rows(op: BiasAdd) -> String {
    let BiasAdd { rows, period, cols, dtype: of } = op;
    format!("rows={rows} period={period} cols={cols} {}", dtype(of))
}

fn mul_rows(op: ScaleColumns) -> String {
    let ScaleColumns { rows, cols, dtype: of } = op;
    format!("rows={rows} cols={cols} {}", dtype(of))
}

fn attention(op: Attention) -> String {
    let Attention { batch, seq, kv_seq, causal, heads, kv_heads, head_dim, scale, window, alibi, dtype: of } = op;
    // Every operation of these plans is causal, so no word says it.
    assert!(causal && kv_seq == seq, "{op:?}");
    let window = window.map_or("none".into(), |window| window.to_string());
    let alibi = match alibi {
        Some(part) if part != AlibiHeads::whole(heads) => format!("from-{}-of-{}", part.first, part.heads),
        whole_or_none => whole_or_none.is_some().to_string(),
    };
    let shape = format!("batch={batch} seq={seq} heads={heads} kv-heads={kv_heads} head-dim={head_dim}");
    format!("{shape} scale={scale} window={window} alibi={alibi} {}", dtype(of))
}

fn act(act: Activation) -> &'static str {
    match act {
        Activation::Silu => "silu",
        Activation::Gelu => "gelu",
        Activation::GeluTanh => "gelu-tanh",
    }
}

fn gated(op: GatedActivation) -> String {
    let GatedActivation { len, act: function, dtype: of } = op;
    format!("len={len} {} {}", act(function), dtype(of))
}

fn activate(op: PointwiseActivation) -> String {
    let PointwiseActivation { len, act: function, dtype: of } = op;
    format!("len={len} {} {}", act(function), dtype(of))
}

fn embedding(op: Embedding) -> String {
    let Embedding { rows, cols, vocab, padding, dtype: of } = op;
    let padding = padding.map_or("none".into(), |token| token.to_string());
    format!("rows={rows} cols={cols} vocab={} padding={padding} {}", words_of(vocab), dtype(of))
}

fn words_of(part: VocabPart) -> String {
    let VocabPart { first, len, vocab_size } = part;
    if part == VocabPart::whole(vocab_size) { len.to_string() } else { format!("{len}-from-{first}-of-{vocab_size}") }
}

fn loss_parts(VocabParallelStats { rows, vocab, dtype: of, .. }: VocabParallelStats) -> String {
    format!("rows={rows} vocab={} {}", words_of(vocab), dtype(of))
}

fn adamw(op: AdamW) -> String {
    let AdamW { len, beta1, beta2, eps, weight_decay, parameters, gradients, moments, rounding, copy, .. } = op;
    let rounding = match rounding {
        Rounding::Nearest => "nearest",
        Rounding::Stochastic { seed: _, first: _ } => "stochastic",
    };
    let types = [parameters, gradients, moments].map(dtype).join(" ");
    let rates = format!("beta1={beta1} beta2={beta2} eps={eps} weight-decay={weight_decay}");
    format!("adamw len={len} {rates} {types} {rounding} copy={}", maybe(copy))
}

fn elementwise(op: Elementwise) -> String {
    let Elementwise { len, sources, from, to } = op;
    format!("len={len} sources={sources} {} {}", dtype(from), dtype(to))
}

fn route(op: Route) -> String {
    let Route { rows, experts, top, normalised, rounded, dtype: of } = op;
    let of = dtype(of);
    format!("rows={rows} experts={experts} top={top} normalised={normalised} rounded={rounded} {of}")
}

fn slots(op: Slots) -> String {
    let Slots { rows, top, experts, cols, dtype: of } = op;
    format!("rows={rows} top={top} experts={experts} cols={cols} {}", dtype(of))
}
