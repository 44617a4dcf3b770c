//! What Hugging Face calls the tensors of each family, and how a checkpoint stores those that it fuses or turns.

use super::{Rows, Stored};
use crate::config::{Model, Order};

/// Names of one family. A block's names follow `blocks.{index}.`; `.weight` and `.bias` follow them all.
#[derive(Clone, Copy, Debug)]
pub(super) struct Names {
    pub embedding: &'static str,
    pub positions: &'static str,
    pub embedding_norm: &'static str,
    pub blocks: &'static str,
    pub attention_norm: &'static str,
    pub qkv: Fused,
    pub o: &'static str,
    pub q_norm: &'static str,
    pub k_norm: &'static str,
    pub mlp_norm: &'static str,
    pub gate: &'static str,
    pub up: &'static str,
    pub down: &'static str,
    /// The router of a block with experts.
    pub router: &'static str,
    /// Its experts; their number and one of the next three follow.
    pub experts: &'static str,
    pub expert_gate: &'static str,
    pub expert_up: &'static str,
    pub expert_down: &'static str,
    pub norm: &'static str,
    pub head: &'static str,
    /// Matrices of blocks are stored `[input, output]` (GPT-2's Conv1D).
    pub turned: bool,
    /// Fresh output projections are drawn narrower by the root of twice the blocks (GPT-2).
    pub narrow_outputs: bool,
    /// Weights of experts are rounded to the compute type before they are used (Qwen3-MoE).
    pub rounded_weights: bool,
}

/// How queries, keys and values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fused {
    /// Each in a tensor of its own.
    Apart([&'static str; 3]),
    /// One tensor: all queries, all keys, all values.
    Stacked(&'static str),
    /// One tensor: for each key head its queries, its key, its value.
    ByGroup(&'static str),
}

const LLAMA: Names = Names {
    embedding: "model.embed_tokens",
    positions: "model.embed_positions",
    embedding_norm: "model.embed_layernorm",
    blocks: "model.layers",
    attention_norm: "input_layernorm",
    qkv: Fused::Apart(["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]),
    o: "self_attn.o_proj",
    q_norm: "self_attn.q_norm",
    k_norm: "self_attn.k_norm",
    mlp_norm: "post_attention_layernorm",
    gate: "mlp.gate_proj",
    up: "mlp.up_proj",
    down: "mlp.down_proj",
    router: "mlp.gate",
    experts: "mlp.experts",
    expert_gate: "gate_proj",
    expert_up: "up_proj",
    expert_down: "down_proj",
    norm: "model.norm",
    head: "lm_head",
    turned: false,
    narrow_outputs: false,
    rounded_weights: true,
};

const MIXTRAL: Names = Names {
    router: "block_sparse_moe.gate",
    experts: "block_sparse_moe.experts",
    expert_gate: "w1",
    expert_up: "w3",
    expert_down: "w2",
    rounded_weights: false,
    ..LLAMA
};

const GPT2: Names = Names {
    embedding: "transformer.wte",
    positions: "transformer.wpe",
    blocks: "transformer.h",
    attention_norm: "ln_1",
    qkv: Fused::Stacked("attn.c_attn"),
    o: "attn.c_proj",
    mlp_norm: "ln_2",
    up: "mlp.c_fc",
    down: "mlp.c_proj",
    norm: "transformer.ln_f",
    turned: true,
    narrow_outputs: true,
    ..LLAMA
};

const BLOOM: Names = Names {
    embedding: "transformer.word_embeddings",
    embedding_norm: "transformer.word_embeddings_layernorm",
    blocks: "transformer.h",
    qkv: Fused::ByGroup("self_attention.query_key_value"),
    o: "self_attention.dense",
    up: "mlp.dense_h_to_4h",
    down: "mlp.dense_4h_to_h",
    norm: "transformer.ln_f",
    ..LLAMA
};

const FALCON_TWO_NORMS: Names = Names { attention_norm: "ln_attn", mlp_norm: "ln_mlp", ..BLOOM };

const MPT: Names = Names {
    embedding: "transformer.wte",
    blocks: "transformer.blocks",
    attention_norm: "norm_1",
    qkv: Fused::Stacked("attn.Wqkv"),
    o: "attn.out_proj",
    mlp_norm: "norm_2",
    up: "ffn.up_proj",
    down: "ffn.down_proj",
    norm: "transformer.norm_f",
    ..LLAMA
};

impl Names {
    /// Of a model's family; what is none of the others is named as Llama is.
    pub fn of(model: &Model) -> &'static Names {
        match model.family.as_str() {
            "gpt2" => &GPT2,
            "falcon" if model.form.order == Order::ParallelTwoNorms => &FALCON_TWO_NORMS,
            "falcon" | "bloom" => &BLOOM,
            "mpt" => &MPT,
            "mixtral" => &MIXTRAL,
            _ => &LLAMA,
        }
    }

    /// The last part of the fused tensor's name, if there is one.
    pub fn fused(&self) -> Option<&'static str> {
        match self.qkv {
            Fused::Apart(_) => None,
            Fused::Stacked(name) | Fused::ByGroup(name) => name.rsplit('.').next(),
        }
    }

    /// Where query, key or value projection (0, 1, 2) lies: the name of its module, and its place if that is fused.
    pub fn projection(&self, model: &Model, which: usize) -> (&'static str, Option<Fusion>) {
        let (queries, keys) = (model.num_attention_heads * model.head_dim, model.num_key_value_heads * model.head_dim);
        let total = queries + 2 * keys;
        match self.qkv {
            Fused::Apart(names) => (names[which], None),
            Fused::Stacked(name) => {
                let start = [0, queries, queries + keys][which];
                let run = [queries, keys, keys][which];
                (name, Some(Fusion { total, rows: Rows { start, run, stride: total } }))
            }
            Fused::ByGroup(name) => {
                let group = model.num_attention_heads / model.num_key_value_heads.max(1) * model.head_dim;
                let start = [0, group, group + model.head_dim][which];
                let run = [group, model.head_dim, model.head_dim][which];
                (name, Some(Fusion { total, rows: Rows { start, run, stride: group + 2 * model.head_dim } }))
            }
        }
    }
}

/// The rows of a fused tensor that are one projection's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fusion {
    /// Rows of the fused tensor.
    pub total: usize,
    /// Which are this projection's.
    pub rows: Rows,
}

/// How a linear layer's matrix `[out, input]` is stored under `name`; `None` = as it is.
pub(super) fn stored_matrix(
    name: &str,
    [out, input]: [usize; 2],
    fusion: Option<Fusion>,
    turned: bool,
) -> Option<Stored> {
    let whole = Fusion { total: out, rows: Rows { start: 0, run: out, stride: out } };
    if fusion.is_none() && !turned {
        return None;
    }
    let Fusion { total, rows } = fusion.unwrap_or(whole);
    let shape = if turned { vec![input, total] } else { vec![total, input] };
    Some(Stored { name: format!("{name}.weight"), shape, rows, turned, less: 0.0 })
}

/// How a linear layer's bias is stored.
pub(super) fn stored_bias(name: &str, fusion: Option<Fusion>) -> Option<Stored> {
    fusion.map(|Fusion { total, rows }| Stored {
        name: format!("{name}.bias"),
        shape: vec![total],
        rows,
        turned: false,
        less: 0.0,
    })
}

/// How a part's rows of an adapter's tensor `[total, cols]` are stored; adapters are never turned.
pub(super) fn stored_part(name: String, Fusion { total, rows }: Fusion, cols: usize) -> Stored {
    Stored { name, shape: vec![total, cols], rows, turned: false, less: 0.0 }
}
