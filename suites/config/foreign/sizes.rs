//! Families that the engine does not have, as sizes of the families `custom` and `t5`. The keys of a file say most of what a model
//! is; the table has what they do not say.

use super::Described;
use crate::keys;
use serde_json::{Map, Value as Json};
use toml::{Table, Value};
use zbench_engine::formats::hf::HfError;

/// What the blocks of a family are made of.
#[derive(Clone, Copy)]
struct Blocks {
    /// The MLP has three matrices, else two.
    gated: bool,
    /// Layer norms, else RMS norms.
    layer_norm: bool,
    /// The key that says whether matrices have biases, true by default.
    bias: Option<&'static str>,
    /// A table of learned positions with so many rows beyond max_position_embeddings.
    learned: Option<i64>,
}

/// A family: its `model_type`, its blocks, and whether the head is the embedding's matrix unless the file says otherwise.
pub(super) struct Kind {
    name: &'static str,
    blocks: Blocks,
    tied: bool,
}

const fn kind(name: &'static str, blocks: Blocks, tied: bool) -> Kind {
    Kind { name, blocks, tied }
}

const GATED: Blocks = Blocks { gated: true, layer_norm: false, bias: None, learned: None };
const GATED_LAYER: Blocks = Blocks { layer_norm: true, ..GATED };
const PLAIN: Blocks = Blocks { gated: false, layer_norm: true, bias: Some("use_bias"), learned: None };
const LEARNED: Blocks = Blocks { learned: Some(0), ..PLAIN };

/// Their parameters are those of transformers 5.23 within 0.1 % (tests/import/models.rs).
const KINDS: &[Kind] = &[
    kind("cohere", GATED_LAYER, true),
    kind("cohere2", GATED_LAYER, true),
    kind("deepseek_v2", GATED, false),
    kind("deepseek_v3", GATED, false),
    kind("dots1", GATED, false),
    kind("ernie4_5", GATED, true),
    kind("exaone4", GATED, false),
    kind("gemma2", GATED, true),
    kind("gemma3", GATED, true),
    kind("glm", GATED, false),
    kind("glm4", GATED, false),
    kind("glm4_moe", GATED, false),
    kind("gpt_bigcode", LEARNED, true),
    kind("gpt_neox", PLAIN, false),
    kind("gpt_oss", GATED, false),
    kind("gptj", PLAIN, false),
    kind("granite", GATED, false),
    kind("granitemoe", GATED, false),
    kind("helium", GATED, false),
    kind("hunyuan_v1_dense", GATED, false),
    kind("kimi_k2", GATED, false),
    kind("llama4", GATED, false),
    kind("mimo", GATED, false),
    kind("ministral", GATED, false),
    kind("ministral3", GATED, false),
    kind("mt5", GATED, true),
    kind("nemotron", Blocks { bias: None, ..PLAIN }, false),
    kind("olmo", GATED, false),
    kind("olmo2", GATED, false),
    kind("olmo3", GATED, false),
    kind("olmoe", GATED, false),
    kind("opt", Blocks { learned: Some(2), ..PLAIN }, true),
    kind("phi", PLAIN, false),
    kind("phi3", GATED, false),
    kind("qwen2_5_vl", GATED, false),
    kind("qwen2_moe", GATED, false),
    kind("qwen2_vl", GATED, false),
    kind("qwen3_vl", GATED, false),
    kind("qwen3_vl_moe", GATED, false),
    kind("seed_oss", GATED, false),
    kind("smollm3", GATED, true),
    kind("stablelm", GATED_LAYER, false),
    kind("starcoder2", PLAIN, true),
    kind("t5", GATED, true),
];

/// The family of a `model_type`. The text tower of a model has the model's name and an ending.
pub(super) fn of(name: &str) -> Option<&'static Kind> {
    let name = name.strip_suffix("_text").unwrap_or(name);
    KINDS.iter().find(|kind| kind.name == name)
}

/// That a file's family is unknown, or what of it no key of [model] has.
pub(super) fn unknown(name: &str, config: &Map<String, Json>, file: &str) -> HfError {
    let missing = without_sizes(config).unwrap_or_else(|| {
        let all: Vec<&str> = KINDS.iter().map(|kind| kind.name).collect();
        format!(
            "model_type {name:?} (zbench trains those of docs/families.md, and prices the sizes of {}; family = \"custom\" takes sizes of \
             one's own)",
            all.join(", ")
        )
    });
    HfError::Unsupported { what: file.into(), missing: vec![missing] }
}

/// What keeps a model's sizes from being those of blocks that are alike.
pub(super) fn without_sizes(config: &Map<String, Json>) -> Option<String> {
    let list = |key: &str| config.get(key).and_then(Json::as_array);
    if let Some(blocks) = list("block_configs") {
        let is_none = |block: &&Json| block.pointer("/attention/no_op") == Some(&Json::Bool(true));
        let none = blocks.iter().filter(is_none).count();
        return Some(format!(
            "block_configs ({none} of {} blocks have no attention, and zbench's blocks are alike)",
            blocks.len()
        ));
    }
    if let Some(kinds) = list("layer_types") {
        let is_other = |kind: &&str| !["full_attention", "sliding_attention", "chunked_attention"].contains(kind);
        let others: Vec<&str> = kinds.iter().filter_map(Json::as_str).filter(is_other).collect();
        if let Some(first) = others.first() {
            let (others, all) = (others.len(), kinds.len());
            return Some(format!("layer_types ({others} of {all} blocks have {first}, which zbench does not price)"));
        }
    }
    if let (Some(wide), Some(narrow)) = (config.get("hidden_size"), config.get("word_embed_proj_dim"))
        && !narrow.is_null()
        && narrow != wide
    {
        return Some(format!(
            "word_embed_proj_dim {narrow} beside hidden_size {wide} (embeddings of another width than the blocks, with projections \
             between them; zbench has one width)"
        ));
    }
    let (head, global) = (config.get("head_dim")?, config.get("global_head_dim").filter(|size| !size.is_null())?);
    (head != global).then(|| {
        format!("global_head_dim {global} beside head_dim {head} (blocks with heads of two sizes; zbench has one size)")
    })
}

/// Keys of config.json and ours. Of several that stand for one of ours the first that is there counts.
const NAMES: &[(&str, &str)] = &[
    ("hidden_size", "hidden_size"),
    ("d_model", "hidden_size"),
    ("n_embd", "hidden_size"),
    ("intermediate_size_mlp", "intermediate_size"),
    ("intermediate_size", "intermediate_size"),
    ("ffn_dim", "intermediate_size"),
    ("d_ff", "intermediate_size"),
    ("n_inner", "intermediate_size"),
    ("num_hidden_layers", "num_hidden_layers"),
    ("num_layers", "num_hidden_layers"),
    ("n_layer", "num_hidden_layers"),
    ("num_attention_heads", "num_attention_heads"),
    ("num_heads", "num_attention_heads"),
    ("n_head", "num_attention_heads"),
    ("num_key_value_heads", "num_key_value_heads"),
    ("head_dim", "head_dim"),
    ("d_kv", "head_dim"),
    ("vocab_size", "vocab_size"),
    ("max_position_embeddings", "max_position_embeddings"),
    ("n_positions", "max_position_embeddings"),
    ("num_decoder_layers", "num_decoder_layers"),
];

/// The same of experts.
const EXPERTS: &[(&str, &str)] = &[
    ("num_experts", "num_experts"),
    ("num_local_experts", "num_experts"),
    ("n_routed_experts", "num_experts"),
    ("num_experts_per_tok", "num_experts_per_tok"),
    ("moe_intermediate_size", "moe_intermediate_size"),
    ("intermediate_size", "moe_intermediate_size"),
    ("shared_expert_intermediate_size", "shared_expert_intermediate_size"),
    ("first_k_dense_replace", "first_k_dense_replace"),
    ("decoder_sparse_step", "decoder_sparse_step"),
    ("interleave_moe_layer_step", "decoder_sparse_step"),
];

/// The same of latent attention.
const LATENT: &[(&str, &str)] = &[
    ("kv_lora_rank", "kv_lora_rank"),
    ("q_lora_rank", "q_lora_rank"),
    ("qk_nope_head_dim", "qk_nope_head_dim"),
    ("qk_rope_head_dim", "qk_rope_head_dim"),
    ("v_head_dim", "v_head_dim"),
];

/// The largest size that a file may state.
const MOST: i64 = 1 << 31;

/// Reads the sizes of a file.
struct Sizes<'a> {
    config: &'a Map<String, Json>,
    file: &'a str,
    made: Table,
    read: Vec<(String, String)>,
}

impl Sizes<'_> {
    fn given(&self, key: &str) -> Option<&Json> {
        self.config.get(key).filter(|value| !value.is_null())
    }

    fn refuse(&self, key: &str, reason: String) -> HfError {
        HfError::Field { what: self.file.into(), field: key.into(), reason }
    }

    fn count(&self, key: &str) -> Result<Option<i64>, HfError> {
        let Some(value) = self.given(key) else { return Ok(None) };
        let count = value.as_i64().filter(|count| (0..=MOST).contains(count));
        count
            .map(Some)
            .ok_or_else(|| self.refuse(key, format!("is {value}; it must be a whole number from 0 to {MOST}")))
    }

    fn is(&self, key: &str, default: bool) -> bool {
        self.given(key).and_then(Json::as_bool).unwrap_or(default)
    }

    fn set(&mut self, theirs: &str, ours: &str, value: impl Into<Value>) {
        self.made.insert(ours.into(), value.into());
        self.read.push((theirs.into(), ours.into()));
    }

    fn sizes(&mut self, names: &[(&str, &str)]) -> Result<(), HfError> {
        for (theirs, ours) in names {
            if let Some(count) = self.count(theirs)?.filter(|_| !self.made.contains_key(*ours)) {
                self.set(theirs, ours, count);
            }
        }
        Ok(())
    }

    fn made(&self, key: &str) -> Option<i64> {
        self.made.get(key).and_then(Value::as_integer)
    }
}

/// A model of such a family.
pub(super) fn describe(kind: &Kind, config: &Map<String, Json>, file: &str) -> Result<Described, HfError> {
    if let Some(missing) = without_sizes(config) {
        return Err(HfError::Unsupported { what: file.into(), missing: vec![missing] });
    }
    let Kind { name, blocks, tied } = kind;
    let mut sizes = Sizes { config, file, made: Table::new(), read: Vec::new() };
    let mut assumed = Vec::new();
    sizes.sizes(NAMES)?;
    for key in ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"] {
        if sizes.made(key).is_none() {
            return Err(sizes.refuse(key, format!("is missing, and the sizes of {name} are read from its file alone")));
        }
    }
    let family = if name.ends_with("t5") { "t5" } else { "custom" };
    sizes.made.insert("family".into(), family.into());
    if sizes.is("tie_word_embeddings", *tied) {
        sizes.set("tie_word_embeddings", "tie_word_embeddings", true);
    }
    if family == "t5" {
        let proj = sizes.given("feed_forward_proj").and_then(Json::as_str).unwrap_or("relu");
        if proj.starts_with("gated") {
            sizes.set("feed_forward_proj", "feed_forward_proj", "gated-gelu");
        }
    } else {
        let stated = sizes.made("intermediate_size");
        let wide = stated.or_else(|| (!blocks.gated).then(|| sizes.made("hidden_size").map(|wide| 4 * wide))?);
        let wide = wide.ok_or_else(|| sizes.refuse("intermediate_size", "is missing".into()))?;
        sizes.made.insert("intermediate_size".into(), wide.into());
        block(&mut sizes, blocks)?;
        experts(&mut sizes, name)?;
        attention(&mut sizes, &mut assumed)?;
        assumed.push(format!(
            "{name} is priced by its sizes, as family \"custom\", and not run; small parts of its own (norms of queries and keys, single \
             biases) are not counted, under 0.1 % of its parameters"
        ));
    }
    let Sizes { made, read, .. } = sizes;
    let key = |name: &str| keys::find(&format!("model.{name}")).map(|key| key.name);
    let settings = made.into_iter().filter_map(|(name, value)| Some((key(&name)?, value))).collect();
    Ok(Described { settings, model: None, read, left_out: Vec::new(), assumed, table: None })
}

/// What a block is made of, beside its sizes.
fn block(sizes: &mut Sizes<'_>, blocks: &Blocks) -> Result<(), HfError> {
    if !blocks.gated {
        sizes.made.insert("mlp".into(), "plain".into());
    }
    if blocks.layer_norm {
        sizes.made.insert("norm".into(), "layer".into());
    }
    if let Some(key) = blocks.bias.filter(|key| sizes.is(key, true)) {
        sizes.set(key, "bias", true);
    }
    if let Some(more) = blocks.learned {
        sizes
            .made
            .insert("learned_positions".into(), (sizes.made("max_position_embeddings").unwrap_or(2048) + more).into());
    }
    if sizes.made("num_key_value_heads").is_none() && sizes.is("multi_query", false) {
        sizes.set("multi_query", "num_key_value_heads", 1);
    }
    Ok(())
}

fn experts(sizes: &mut Sizes<'_>, name: &str) -> Result<(), HfError> {
    const COUNTS: [&str; 3] = ["num_experts", "num_local_experts", "n_routed_experts"];
    let has_some = COUNTS.iter().map(|key| sizes.count(key)).collect::<Result<Vec<_>, _>>()?;
    if has_some.into_iter().flatten().max().unwrap_or(0) == 0 {
        return Ok(());
    }
    sizes.sizes(EXPERTS)?;
    let wide = sizes.made("moe_intermediate_size").unwrap_or(0);
    if let Some(count) = sizes.count("n_shared_experts")? {
        sizes.set("n_shared_experts", "shared_expert_intermediate_size", count * wide);
    }
    // Beside its experts, each as wide as an MLP, a Llama 4 has one that every token goes to.
    if name == "llama4" {
        sizes.made.insert("shared_expert_intermediate_size".into(), wide.into());
    }
    if let Some(list) = sizes.given("mlp_only_layers").and_then(Json::as_array).filter(|list| !list.is_empty()) {
        let blocks = list.iter().filter_map(Json::as_i64).map(Value::Integer).collect::<Vec<_>>();
        sizes.set("mlp_only_layers", "mlp_only_layers", blocks);
    }
    Ok(())
}

fn attention(sizes: &mut Sizes<'_>, assumed: &mut Vec<String>) -> Result<(), HfError> {
    if sizes.count("kv_lora_rank")?.is_some_and(|rank| rank > 0) {
        sizes.sizes(LATENT)?;
        sizes.made.remove("head_dim");
    }
    let kinds = sizes.given("layer_types").and_then(Json::as_array);
    let differ = kinds.is_some_and(|kinds| kinds.iter().any(|kind| Some(kind) != kinds.first()))
        || ["sliding_window_pattern", "no_rope_layers", "attention_chunk_size"]
            .iter()
            .any(|key| sizes.given(key).is_some());
    let window = sizes.count("sliding_window")?.filter(|window| *window > 0 && sizes.is("use_sliding_window", true));
    match window {
        Some(window) if !differ => sizes.set("sliding_window", "sliding_window", window),
        Some(window) => assumed.push(format!(
            "attention is priced over the whole sequence in every block, where some of its blocks see {window} tokens"
        )),
        None => {}
    }
    if let Some(ahead) = sizes.count("num_nextn_predict_layers")?.filter(|ahead| *ahead > 0) {
        assumed.push(format!(
            "num_nextn_predict_layers = {ahead} is left out, as transformers leaves it out; --set model.num_nextn_predict_layers={ahead} \
             prices it"
        ));
    }
    Ok(())
}
