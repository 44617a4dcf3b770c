//! Qwen3-MoE: Qwen3 with experts in every so many blocks, of a width of their own, and its window in all blocks or none.

use super::{Family, llama, mixtral, qwen3, sizes};
use crate::config::Linear;
use crate::formats::hf::PartialModel;
use crate::formats::hf::reader::{CAUSAL, DROPOUT, NO_ROUTER_LOSS, PLAIN_WEIGHTS, SILU};
use serde_json::json;

pub(super) const FAMILY: Family = Family {
    model_type: "qwen3_moe",
    architecture: "Qwen3MoeForCausalLM",
    block_class: "Qwen3MoeDecoderLayer",
    presets: presets!["qwen3-30b-a3b" 30_532_122_624, "qwen3-235b-a22b" 235_093_634_560],
    keys: &[
        llama::KEYS,
        mixtral::EXPERT_KEYS,
        &[
            ("moe_intermediate_size", "moe_intermediate_size"),
            ("norm_topk_prob", "norm_topk_prob"),
            ("decoder_sparse_step", "decoder_sparse_step"),
            ("mlp_only_layers", "mlp_only_layers"),
        ],
    ],
    restricted: &[SILU, DROPOUT, CAUSAL, PLAIN_WEIGHTS, NO_ROUTER_LOSS],
    defaults: || PartialModel {
        num_key_value_heads: Some(4),
        num_experts: Some(128),
        num_experts_per_tok: Some(8),
        moe_intermediate_size: Some(768),
        norm_topk_prob: Some(false),
        ..sizes([2048, 6144, 24, 32, 151_936, 32768], 1e-6)
    },
    read: |read, model, form| {
        read.one_number_of_experts()?;
        let used = read.flag("use_sliding_window", false)?;
        let window = if used { read.window("sliding_window")?.or(Some(4096)) } else { None };
        model.sliding_window = Some(window.unwrap_or(0));
        read.attention_bias(form)
    },
    write: |model| {
        let experts = model.experts.as_ref();
        let mut own = json!({
            "sliding_window": model.sliding_window,
            "output_router_logits": false,
            "num_experts_per_tok": experts.map_or(1, |experts| experts.num_experts_per_tok),
            "num_experts": experts.map_or(0, |experts| experts.num_experts),
            "use_sliding_window": model.sliding_window.is_some(),
            "attention_bias": model.form.qkv_bias,
        });
        if let Some(experts) = experts {
            own["moe_intermediate_size"] = json!(experts.moe_intermediate_size);
            own["norm_topk_prob"] = json!(experts.norm_topk_prob);
            own["decoder_sparse_step"] = json!(experts.decoder_sparse_step);
            own["mlp_only_layers"] = json!(experts.mlp_only_layers);
        }
        llama::with(model, own)
    },
    // PEFT has no default for IA3 here; Qwen3's stands without the MLP.
    ia3_targets: &[Linear::QProj, Linear::VProj],
    ..qwen3::FAMILY
};
