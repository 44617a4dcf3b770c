//! MPT: LayerNorm without biases, ALiBi, and what attention does in a table of its own.

use super::{Family, Qkv, TensorNames, bloom, gpt2, llama, sizes};
use crate::config::{Form, Mlp, NormKind, Positions};
use crate::formats::hf::PartialModel;
use crate::formats::hf::reader::{CAUSAL, NO_DROPOUT, PLAIN_WEIGHTS, Restricted, is_zero, only};
use serde_json::{Value, json};

pub(super) const FAMILY: Family = Family {
    model_type: "mpt",
    architecture: "MptForCausalLM",
    block_class: "MptBlock",
    presets: presets!["mpt-7b" 6_649_286_656, "mpt-30b" 29_957_200_896],
    keys: &[
        &[
            ("d_model", "hidden_size"),
            ("hidden_size", "hidden_size"),
            ("n_layers", "num_hidden_layers"),
            ("num_hidden_layers", "num_hidden_layers"),
            ("n_heads", "num_attention_heads"),
            ("num_attention_heads", "num_attention_heads"),
            ("max_seq_len", "max_position_embeddings"),
        ],
        gpt2::COMMON_KEYS,
    ],
    restricted: &[CAUSAL, PLAIN_WEIGHTS],
    defaults: || PartialModel { tie_word_embeddings: Some(true), ..sizes([2048, 0, 24, 16, 50368, 2048], 1e-5) },
    form: || Form { norm: NormKind::Layer, positions: Positions::Alibi, mlp: Mlp::Gelu, ..Form::default() },
    read: |read, _, _| {
        let missing = match read.given("attn_config") {
            None => return Ok(()),
            Some(Value::Object(table)) => read.missing(table, "attn_config.", ATTENTION),
            Some(_) => return Err(read.refuse("attn_config", "is not a table of keys; write null or a table")),
        };
        if missing.is_empty() { Ok(()) } else { Err(read.unsupported(missing)) }
    },
    write: |model| {
        json!({
            "d_model": model.hidden_size,
            "n_layers": model.num_hidden_layers,
            "n_heads": model.num_attention_heads,
            "max_seq_len": model.max_position_embeddings,
            "layer_norm_epsilon": model.rms_norm_eps,
            "expansion_ratio": 4,
            "no_bias": true,
            "attn_config": {"alibi": true, "alibi_bias_max": 8, "attn_pdrop": 0, "attn_type": "multihead_attention"},
            "emb_pdrop": 0.0,
            "resid_pdrop": 0.0,
        })
    },
    tensors: |_| &TENSORS,
    // PEFT has no default for IA3 on MPT; that of BLOOM stands here.
    ..bloom::FAMILY
};

/// Restricted keys of `attn_config`. Transformers' model reads no others: it always has ALiBi, with slopes down to 2^-8, and
/// ignores MosaicML's other switches.
const ATTENTION: &[Restricted] = &[
    only("attn_pdrop", is_zero, NO_DROPOUT),
    only("clip_qkv", is_zero, "no clipping of queries, keys and values"),
    only("softmax_scale", Value::is_null, "scores divided by the root of the head's size"),
];

const TENSORS: TensorNames = TensorNames {
    embedding: "transformer.wte",
    blocks: "transformer.blocks",
    attention_norm: "norm_1",
    qkv: Qkv::Concatenated("attn.Wqkv"),
    o: "attn.out_proj",
    mlp_norm: "norm_2",
    up: "ffn.up_proj",
    down: "ffn.down_proj",
    norm: "transformer.norm_f",
    ..llama::TENSORS
};
