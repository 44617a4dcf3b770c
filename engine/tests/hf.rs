//! Models as Hugging Face describes them: known models, both forms of config.json, refusals, and whatever a broken file
//! may hold.

use proptest::prelude::*;
use serde_json::{Value, json};
use zbench_engine::config::{AttentionKind, Lora, Mlp, Model, Order, Positions, RopeScaling};
use zbench_engine::formats::hf::{
    HfError, MAX_LAYERS, PartialModel, default_model, model_from_hf, model_from_hf_without_dropout, parameter_count,
    preset, preset_names, validate,
};
use zbench_engine::model::{FlatKind, Layout, LayoutKey};

const FIXTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/llama/config.json");

fn preset_model(name: &str) -> Model {
    let partial: PartialModel = toml::from_str(preset(name).expect("a preset")).expect("keys of a model");
    partial.resolve(name).expect("a valid model")
}

/// A model's parameters less the experts that a token does not go to.
fn active_parameters(model: &Model) -> u64 {
    let (lora, attention) = (Lora::default(), AttentionKind::Flash);
    let layout = Layout::on(LayoutKey {
        model,
        lora: &lora,
        attention,
        granule: 16,
        ranks: 1,
        cut: Default::default(),
        decoder_layers: None,
    });
    layout.parameters(FlatKind::Trainable) - layout.inactive_params(FlatKind::Trainable)
}

/// Llama 3.1 8B as transformers 4 writes it.
fn transformers4() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
        "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009], "hidden_act": "silu", "hidden_size": 4096,
        "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 131072, "mlp_bias": false,
        "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "pretraining_tp": 1, "rms_norm_eps": 1e-5,
        "rope_scaling": {
            "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192, "rope_type": "llama3"
        },
        "rope_theta": 500000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
        "transformers_version": "4.42.3", "use_cache": true, "vocab_size": 128256
    })
}

/// The same as transformers 5 writes it.
fn transformers5() -> Value {
    let mut config = transformers4();
    let keys = config.as_object_mut().expect("an object");
    keys.remove("torch_dtype");
    keys.insert("dtype".into(), json!("bfloat16"));
    let mut rope = keys.remove("rope_scaling").expect("a table");
    rope["rope_theta"] = keys.remove("rope_theta").expect("a number");
    keys.insert("rope_parameters".into(), rope);
    config
}

fn read(config: &Value) -> Result<Model, HfError> {
    model_from_hf(&config.to_string(), "m/config.json")
}

fn with(key: &str, value: Value) -> Value {
    let mut config = transformers4();
    config[key] = value;
    config
}

fn with_rope(rope: Value) -> Value {
    with("rope_scaling", rope)
}

/// The error's text must hold all of `parts`.
fn refused(config: &Value, parts: &[&str]) {
    let error = read(config).expect_err("to be refused").to_string();
    for part in [&["m/config.json"], parts].concat() {
        assert!(error.contains(part), "{error:?} does not say {part:?}");
    }
}

#[test]
fn known_models_have_their_published_parameter_counts() {
    for (name, published) in [
        ("llama2-7b", 6_738_415_616),
        ("llama2-13b", 13_015_864_320),
        ("llama2-70b", 68_976_648_192),
        ("llama3-8b", 8_030_261_248),
        ("llama3-70b", 70_553_706_496),
        ("llama3.1-8b", 8_030_261_248),
        ("llama3.1-70b", 70_553_706_496),
        ("llama3.1-405b", 405_853_388_800),
        ("llama3.2-1b", 1_235_814_400),
        ("llama3.2-3b", 3_212_749_824),
        ("mistral-7b", 7_241_732_096),
        ("mistral-7b-v0.3", 7_248_023_552),
        ("qwen2-0.5b", 494_032_768),
        ("qwen2-1.5b", 1_543_714_304),
        ("qwen2-7b", 7_615_616_512),
        ("qwen2-72b", 72_706_203_648),
        ("qwen2.5-0.5b", 494_032_768),
        ("qwen2.5-1.5b", 1_543_714_304),
        ("qwen2.5-3b", 3_085_938_688),
        ("qwen2.5-7b", 7_615_616_512),
        ("qwen2.5-14b", 14_770_033_664),
        ("qwen2.5-32b", 32_763_876_352),
        ("qwen2.5-72b", 72_706_203_648),
        ("qwen3-0.6b", 596_049_920),
        ("qwen3-1.7b", 1_720_574_976),
        ("qwen3-4b", 4_022_468_096),
        ("qwen3-8b", 8_190_735_360),
        ("qwen3-14b", 14_768_307_200),
        ("qwen3-32b", 32_762_123_264),
        ("gemma-2b", 2_506_172_416),
        ("gemma-7b", 8_537_680_896),
        ("gpt2", 124_439_808),
        ("gpt2-medium", 354_823_168),
        ("gpt2-large", 774_030_080),
        ("gpt2-xl", 1_557_611_200),
        ("falcon-7b", 6_921_720_704),
        ("falcon-40b", 41_303_293_952),
        ("bloom-560m", 559_214_592),
        ("bloom-7b1", 7_069_016_064),
        ("bloom-176b", 176_247_271_424),
        ("mpt-7b", 6_649_286_656),
    ] {
        assert_eq!(parameter_count(&preset_model(name)), published, "{name}");
    }
    // Mistral AI says 46.7B with 12.9B active, and 141B with 39B; Qwen 30.5B with 3.3B, and 235B with 22B. To the parameter
    // they are those of transformers' models of these configurations.
    for (name, published, active) in [
        ("mixtral-8x7b", 46_702_792_704, 12_879_925_248),
        ("mixtral-8x22b", 140_620_634_112, 39_152_031_744),
        ("qwen3-30b-a3b", 30_532_122_624, 3_353_032_704),
        ("qwen3-235b-a22b", 235_093_634_560, 22_190_763_520),
    ] {
        assert_eq!(parameter_count(&preset_model(name)), published, "{name}");
        assert_eq!(active_parameters(&preset_model(name)), active, "{name}");
    }
    // 65024 x 14848 + 2 x 14848 + 80 x ((232 + 16) x 64 x 14848 + 9 x 14848^2 + 4 x 14848)
    assert_eq!(parameter_count(&preset_model("falcon-180b")), 178_557_088_768);
    // 50432 x 7168 + 7168 + 48 x (12 x 7168^2 + 2 x 7168)
    assert_eq!(parameter_count(&preset_model("mpt-30b")), 29_957_200_896);
    // 2 x 8192 x 512 + 512 + 8 x (2 x 512 + 2 x 512 x 64 x (8 + 4) + 3 x 512 x 1376)
    assert_eq!(parameter_count(&preset_model("llama-32m")), 31_597_056);
    assert_eq!(parameter_count(&preset_model("llama-50m")), 49_003_008);
    let fixture = model_from_hf(&std::fs::read_to_string(FIXTURE).expect("the fixture"), FIXTURE).expect("a model");
    assert_eq!(parameter_count(&fixture), 125_248);
}

#[test]
fn every_preset_resolves_and_an_unknown_one_lists_them() {
    for name in preset_names() {
        validate(&preset_model(name)).expect("a valid model");
    }
    let error = preset("llama-33m").expect_err("no such preset").to_string();
    assert!(error.contains("llama-33m") && error.contains("llama-32m") && error.contains("llama3.2-1b"), "{error}");
}

#[test]
fn both_forms_of_transformers_read_the_same() {
    let model = read(&transformers4()).expect("transformers 4");
    assert_eq!(model, read(&transformers5()).expect("transformers 5"));
    assert_eq!(model, preset_model("llama3.1-8b"));
    assert_eq!(
        model.rope_scaling,
        Some(RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: 8192
        })
    );
    assert_eq!((model.rope_theta, model.head_dim), (500_000.0, 128));
}

#[test]
fn the_fixture_reads_as_it_was_trained() {
    let model = model_from_hf(&std::fs::read_to_string(FIXTURE).expect("the fixture"), FIXTURE).expect("a model");
    let mut expected = default_model("llama").expect("defaults");
    expected.hidden_size = 64;
    expected.intermediate_size = 176;
    expected.num_hidden_layers = 2;
    expected.num_attention_heads = 4;
    expected.num_key_value_heads = 2;
    expected.head_dim = 16;
    expected.vocab_size = 256;
    expected.max_position_embeddings = 128;
    assert_eq!(model, expected);
}

#[test]
fn absent_keys_take_the_defaults_of_transformers() {
    let model = model_from_hf(r#"{"model_type": "llama"}"#, "config.json").expect("defaults");
    assert_eq!(model, default_model("llama").expect("defaults"));
    let sizes = [
        model.hidden_size,
        model.intermediate_size,
        model.num_hidden_layers,
        model.num_attention_heads,
        model.num_key_value_heads,
        model.head_dim,
        model.vocab_size,
        model.max_position_embeddings,
    ];
    assert_eq!(sizes, [4096, 11008, 32, 32, 32, 128, 32000, 2048]);
    assert_eq!((model.rms_norm_eps, model.rope_theta, model.initializer_range), (1e-6, 10000.0, 0.02));
    assert!(!model.tie_word_embeddings && model.rope_scaling.is_none() && model.weights.is_none());
    // null is how transformers writes "the default".
    let nulls = json!({"model_type": "llama", "num_key_value_heads": null, "head_dim": null, "rope_scaling": null});
    assert_eq!(read(&nulls).expect("defaults"), model);
}

#[test]
fn rope_spellings() {
    let linear = Some(RopeScaling::Linear { factor: 2.0 });
    for rope in [
        json!({"type": "linear", "factor": 2}),
        json!({"rope_type": "linear", "factor": 2.0}),
        json!({"rope_type": "linear", "type": "linear", "factor": 2.0, "beta_fast": null, "some_note": "x"}),
    ] {
        assert_eq!(read(&with_rope(rope)).expect("linear").rope_scaling, linear);
    }
    for rope in [json!(null), json!({}), json!({"rope_type": "default"}), json!({"type": "default"})] {
        assert_eq!(read(&with_rope(rope)).expect("none").rope_scaling, None);
    }
    let partial: PartialModel =
        toml::from_str("rope_theta = 1e6\nrope_parameters = { type = \"linear\", factor = 2 }").expect("TOML");
    let model = partial.resolve("x.toml").expect("a model");
    assert_eq!((model.rope_scaling, model.rope_theta), (linear, 1e6));
}

#[test]
fn whatever_would_change_the_mathematics_is_refused_by_name() {
    refused(&with("model_type", json!("phi3")), &["model_type", "phi3", "llama", "gpt2"]);
    refused(&with("model_type", json!("mistral")), &["architectures", "LlamaForCausalLM", "MistralForCausalLM"]);
    refused(&with("model_type", json!(7)), &["model_type", "7"]);
    refused(&with("hidden_act", json!("gelu")), &["hidden_act", "gelu", "silu"]);
    refused(&with("attention_dropout", json!(0.1)), &["attention_dropout", "0.1"]);
    let mut part = with_rope(json!({"rope_type": "linear", "factor": 2.0}));
    part["partial_rotary_factor"] = json!(0.5);
    refused(&part, &["partial_rotary_factor", "0.5"]);
    refused(&with("is_causal", json!(false)), &["is_causal"]);
    refused(&with("quantization_config", json!({"bits": 4})), &["quantization_config"]);
    refused(&with("architectures", json!(["LlamaForSequenceClassification"])), &["architectures"]);
    for kind in ["yarn", "dynamic", "longrope", "su", "mrope"] {
        refused(&with_rope(json!({"rope_type": kind, "factor": 2.0})), &["rope_type", kind]);
        refused(&with_rope(json!({"type": kind, "factor": 2.0})), &["rope_type", kind]);
    }
    let part = json!({"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.25});
    refused(&with_rope(part), &["rope_scaling.partial_rotary_factor"]);
    refused(&with_rope(json!({"full_attention": {"rope_type": "default"}})), &["full_attention"]);
    // All of it in one message.
    let mut config = with("is_causal", json!(false));
    config["hidden_act"] = json!("relu");
    refused(&config, &["is_causal", "hidden_act"]);
    assert!(matches!(read(&config), Err(HfError::Unsupported { missing, .. }) if missing.len() == 2));
    assert!(default_model("phi3").is_err());
}

#[test]
fn harmless_keys_and_values_are_not() {
    let as_is = read(&transformers4()).expect("a model");
    let part = json!({"rope_type": "default", "partial_rotary_factor": 0.25});
    assert_eq!(read(&with_rope(part)).expect("whole heads"), read(&with_rope(json!(null))).expect("no scaling"));
    let mut part = with_rope(json!(null));
    part["partial_rotary_factor"] = json!(0.5);
    assert_eq!(read(&part).expect("whole heads"), read(&with_rope(json!(null))).expect("no scaling"));
    for (key, value) in [
        ("hidden_act", json!("swish")),
        ("pretraining_tp", json!(4)),
        ("attention_dropout", json!(0)),
        ("partial_rotary_factor", json!(1.0)),
        ("attention_bias", json!(null)),
        ("architectures", json!(["LLaMAForCausalLM"])),
        ("architectures", json!(["LlamaModel"])),
        ("torch_dtype", json!("float16")),
        ("nobody_knows_this", json!({"a": [1, 2, {"b": null}]})),
    ] {
        assert_eq!(read(&with(key, value)).expect(key), as_is, "{key}");
    }
}

#[test]
fn broken_files_and_values_name_the_place() {
    for text in ["", "{", "[]", "3", "null", "{\"model_type\": \"llama\",}", "{\"hidden_size\": NaN}", "\u{0}"] {
        let error = model_from_hf(text, "m/config.json").expect_err("no config").to_string();
        assert!(error.contains("m/config.json"), "{error}");
    }
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(model_from_hf(&deep, "deep").is_err());
    refused(&json!({"hidden_size": 64}), &["model_type", "missing"]);
    refused(&with("hidden_size", json!("4096")), &["hidden_size", "string"]);
    refused(&with("hidden_size", json!(-1)), &["hidden_size", "-1"]);
    refused(&with("hidden_size", json!(4096.5)), &["hidden_size", "4096.5"]);
    refused(&with("tie_word_embeddings", json!(1)), &["tie_word_embeddings"]);
    refused(&with("rope_scaling", json!("llama3")), &["rope_scaling"]);
    refused(&with_rope(json!({"factor": 2.0})), &["rope_scaling.rope_type", "missing"]);
    refused(&with_rope(json!({"rope_type": "linear"})), &["rope_scaling.factor", "missing"]);
    refused(&with_rope(json!({"rope_type": "linear", "factor": "2"})), &["rope_scaling.factor"]);
    refused(&with_rope(json!({"rope_type": "linear", "factor": 0.5})), &["rope_scaling.factor", "0.5"]);
    let equal = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192});
    refused(&with_rope(equal), &["high_freq_factor", "low_freq_factor"]);
    let mut both = transformers4();
    both["rope_parameters"] = json!({"rope_type": "default"});
    refused(&both, &["rope_parameters", "differs"]);
    let mut thetas = transformers5();
    thetas["rope_theta"] = json!(10000.0);
    refused(&thetas, &["rope_theta", "10000", "500000"]);
}

#[test]
fn impossible_sizes_are_refused_and_the_field_named() {
    refused(&with("num_attention_heads", json!(0)), &["num_attention_heads", "0"]);
    refused(&with("num_attention_heads", json!(33)), &["num_attention_heads", "hidden_size"]);
    refused(&with("num_key_value_heads", json!(5)), &["num_key_value_heads", "32"]);
    refused(&with("head_dim", json!(127)), &["head_dim", "even"]);
    refused(&with("num_hidden_layers", json!(MAX_LAYERS + 1)), &["num_hidden_layers"]);
    refused(&with("vocab_size", json!(u64::from(u32::MAX) + 1)), &["vocab_size"]);
    for field in ["hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size", "head_dim"] {
        refused(&with(field, json!(0)), &[field]);
        refused(&with(field, json!(u64::MAX - 1)), &[field]);
        refused(&with(field, json!(1u64 << 62)), &[field]);
    }
    refused(&with("max_position_embeddings", json!(u64::MAX)), &["max_position_embeddings"]);
    for field in ["rms_norm_eps", "rope_theta", "initializer_range"] {
        refused(&with(field, json!(-1.0)), &[field, "-1"]);
    }
    let mut model = default_model("llama").expect("defaults");
    model.rope_theta = f64::INFINITY;
    assert!(validate(&model).expect_err("infinite").to_string().contains("model: rope_theta"));
}

#[test]
fn a_toml_section_knows_its_keys_and_overrides_a_preset() {
    assert!(toml::from_str::<PartialModel>("hiden_size = 64").is_err());
    assert!(toml::from_str::<PartialModel>("hidden_size = -64").is_err());
    let base: PartialModel = toml::from_str(preset("llama3.1-8b").expect("a preset")).expect("keys");
    let over: PartialModel = toml::from_str("num_hidden_layers = 2\nrope_scaling = { type = \"default\" }").expect("");
    let model = over.or(base).resolve("x.toml").expect("a model");
    let mut expected = preset_model("llama3-8b");
    expected.num_hidden_layers = 2;
    expected.max_position_embeddings = 131_072;
    assert_eq!(model, expected);
    for name in preset_names() {
        let model = preset_model(name);
        assert_eq!(PartialModel::from(&model).resolve(name).expect("the same"), model);
    }
}

fn family(model_type: &str, keys: Value) -> Value {
    let mut config = keys;
    config["model_type"] = json!(model_type);
    config
}

#[test]
fn each_family_is_read_as_transformers_means_it() {
    let model = |name, keys| read(&family(name, keys)).expect(name);
    // Null is no window; absent is Mistral's 4,096; Qwen has one only where it is asked for.
    assert_eq!(model("mistral", json!({})).sliding_window, Some(4096));
    assert_eq!(model("mistral", json!({"sliding_window": null})).sliding_window, None);
    assert_eq!(model("qwen2", json!({"sliding_window": 4096, "max_window_layers": 28})).sliding_window, None);
    let windows = |keys: Value| {
        let model = model("qwen2", keys);
        (0..4).map(|block| model.window(block)).collect::<Vec<_>>()
    };
    let used = json!({"use_sliding_window": true, "sliding_window": 5, "max_window_layers": 3, "num_hidden_layers": 4});
    assert_eq!(windows(used.clone()), [None, None, None, Some(5)]);
    let mut listed = used;
    listed["layer_types"] = json!(["full_attention", "sliding_attention", "sliding_attention", "sliding_attention"]);
    assert_eq!(windows(listed.clone()), [None, Some(5), Some(5), Some(5)]);
    // Transformers opens a Mistral with such a list as Ministral; what is written says the same again.
    let ministral = model("mistral", listed);
    assert_eq!([ministral.window(0), ministral.window(1)], [None, Some(5)]);
    let written = zbench_engine::formats::hf::config_json(&ministral, zbench_kernels::DType::F32, None);
    assert_eq!(model_from_hf(&written, "written").expect("what was written"), ministral);
    let full = json!({"num_hidden_layers": 1, "layer_types": ["full_attention"]});
    assert_eq!(model("mistral", full).window(0), None);
    // Padding: Gemma's default is token 0, null is none, a negative token counts from the end; GPT-2's embedding has none.
    let padding = |name, keys| model(name, keys).pad_token_id;
    assert_eq!(padding("gemma", json!({})), Some(0));
    assert_eq!(padding("gemma", json!({"pad_token_id": null})), None);
    assert_eq!(padding("qwen3", json!({"pad_token_id": 7})), Some(7));
    assert_eq!(padding("llama", json!({"pad_token_id": -1, "vocab_size": 90})), Some(89));
    assert_eq!((padding("llama", json!({})), padding("gpt2", json!({"pad_token_id": 4}))), (None, None));
    for token in [json!(90), json!(-91), json!("0"), json!(1.5)] {
        let error = read(&family("llama", json!({"vocab_size": 90, "pad_token_id": token}))).unwrap_err().to_string();
        assert!(error.contains("pad_token_id"), "{token}: {error}");
    }
    let llama = model("llama", json!({"attention_bias": true, "mlp_bias": true})).form;
    assert!(llama.qkv_bias && llama.output_bias && llama.mlp_bias);
    let gpt2 = model("gpt2", json!({"n_embd": 60, "n_head": 5, "n_layer": 3, "activation_function": "gelu"}));
    assert_eq!((gpt2.hidden_size, gpt2.intermediate_size, gpt2.head_dim, gpt2.num_hidden_layers), (60, 240, 12, 3));
    assert_eq!((gpt2.form.mlp, gpt2.form.positions, gpt2.tie_word_embeddings), (Mlp::Gelu, Positions::Learned, true));
    let falcon = model("falcon", json!({"hidden_size": 64, "num_attention_heads": 8, "multi_query": false}));
    assert_eq!((falcon.num_key_value_heads, falcon.form.order), (8, Order::Parallel));
    let new = json!({"hidden_size": 64, "num_attention_heads": 8, "num_kv_heads": 2, "new_decoder_architecture": true});
    let falcon = model("falcon", new);
    assert_eq!((falcon.num_key_value_heads, falcon.form.order), (2, Order::ParallelTwoNorms));
    // Both names of the width that BLOOM's files have.
    assert_eq!(model("bloom", json!({"n_embed": 48, "num_attention_heads": 6})).head_dim, 8);
    assert!(!model("mpt", json!({})).form.norm_bias);
    for name in
        ["llama", "mistral", "qwen2", "qwen3", "gemma", "gpt2", "falcon", "bloom", "mpt", "mixtral", "qwen3_moe"]
    {
        assert_eq!(model(name, json!({})), default_model(name).expect(name));
    }
}

#[test]
fn each_family_refuses_what_is_not_there_by_name() {
    let no = |name, keys, parts: &[&str]| refused(&family(name, keys), parts);
    let gpt2 = json!({"attn_pdrop": 0.1, "resid_pdrop": 0.1});
    no("gpt2", gpt2.clone(), &["attn_pdrop 0.1", "resid_pdrop 0.1", "model.dropout = 0.0"]);
    let without = |name, keys| model_from_hf_without_dropout(&family(name, keys).to_string(), "config.json");
    assert_eq!(without("gpt2", gpt2).expect("no dropout"), read(&family("gpt2", json!({}))).expect("none stated"));
    without("mpt", json!({"attn_config": {"attn_pdrop": 0.1}})).expect("no dropout");
    let error = without("gpt2", json!({"resid_pdrop": 0.1, "add_cross_attention": true})).unwrap_err().to_string();
    assert!(error.contains("add_cross_attention") && !error.contains("resid_pdrop"), "{error}");
    no("gpt2", json!({"scale_attn_by_inverse_layer_idx": true}), &["scale_attn_by_inverse_layer_idx"]);
    no("gpt2", json!({"activation_function": "relu"}), &["activation_function", "relu", "gelu_new"]);
    no("gpt2", json!({"n_embd": 60, "n_head": 7}), &["num_attention_heads", "60 / 7"]);
    no("falcon", json!({"alibi": true}), &["alibi", "rotary"]);
    no("falcon", json!({"new_decoder_architecture": true, "parallel_attn": false}), &["parallel_attn"]);
    no("falcon", json!({"num_ln_in_parallel_attn": 2}), &["num_ln_in_parallel_attn", "2"]);
    no("falcon", json!({"bias": "yes"}), &["bias", "true or false"]);
    no("bloom", json!({"apply_residual_connection_post_layernorm": true}), &["apply_residual_connection"]);
    let both = json!({"attn_config": {"softmax_scale": 2.0, "clip_qkv": 8}});
    no("mpt", both, &["attn_config.softmax_scale", "attn_config.clip_qkv"]);
    no("mpt", json!({"attn_config": 3}), &["attn_config"]);
    // What MosaicML's own model reads and transformers' does not.
    let table = json!({"alibi": false, "alibi_bias_max": 16, "attn_type": "multiquery_attention", "qk_ln": true,
        "prefix_lm": true, "attn_uses_sequence_id": true, "clip_qkv": 0.0});
    let ignored = json!({"attn_config": table, "no_bias": false, "expansion_ratio": 2, "logit_scale": 0.5,
        "emb_pdrop": 0.1, "resid_pdrop": 0.1});
    assert_eq!(read(&family("mpt", ignored)).expect("MPT"), read(&family("mpt", json!({}))).expect("MPT"));
    let types = json!({"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]});
    no("qwen3", types, &["layer_types", "alternate"]);
    no("qwen2", json!({"layer_types": ["chunked_attention"]}), &["layer_types", "chunked_attention"]);
    let types = |kinds: [&str; 2]| json!({"num_hidden_layers": 2, "layer_types": kinds});
    no("mistral", types(["sliding_attention", "full_attention"]), &["layer_types", "alternate"]);
    no("mistral", json!({"num_hidden_layers": 3, "layer_types": ["full_attention"]}), &["layer_types", "length 1"]);
    let mut none = types(["full_attention", "sliding_attention"]);
    none["sliding_window"] = json!(null);
    no("mistral", none, &["layer_types", "no window"]);
    no("mistral", json!({"sliding_window": 0}), &["sliding_window", "0"]);
    no("mistral", json!({"sliding_window": -3}), &["sliding_window", "-3"]);
    no("gemma", json!({"hidden_act": "silu"}), &["hidden_act", "gelu_pytorch_tanh"]);
    // The released files say so and mean the tanh form.
    let released = json!({"hidden_act": "gelu"});
    assert_eq!(read(&family("gemma", released)).expect("Gemma"), read(&family("gemma", json!({}))).expect("Gemma"));
    no("mixtral", json!({"output_router_logits": true}), &["output_router_logits true", "auxiliary loss"]);
    no("qwen3_moe", json!({"output_router_logits": true}), &["output_router_logits true", "auxiliary loss"]);
    no("mixtral", json!({"router_jitter_noise": 0.1}), &["router_jitter_noise 0.1", "write 0"]);
    no("mixtral", json!({"num_local_experts": 0}), &["num_experts", "mistral"]);
    no(
        "mixtral",
        json!({"num_local_experts": 2, "num_experts_per_tok": 3}),
        &["num_experts_per_tok", "is 3", "2 experts"],
    );
    no("mixtral", json!({"num_experts_per_tok": 0}), &["num_experts_per_tok", "is 0"]);
    no("mixtral", json!({"num_local_experts": "8"}), &["num_local_experts"]);
    no("mixtral", json!({"num_local_experts": 8, "num_experts": 4}), &["num_experts", "is 4", "is 8"]);
    no("qwen3_moe", json!({"decoder_sparse_step": 0}), &["decoder_sparse_step", "is 0"]);
    no("qwen3_moe", json!({"moe_intermediate_size": 0}), &["moe_intermediate_size", "is 0"]);
    no("qwen3_moe", json!({"mlp_only_layers": [1, -2]}), &["mlp_only_layers"]);
    no("qwen3_moe", json!({"norm_topk_prob": 1}), &["norm_topk_prob"]);
    no("qwen3_moe", json!({"num_experts": 1u64 << 40, "num_experts_per_tok": 1}), &["num_experts"]);
    no("qwen3_moe", json!({"hidden_act": "relu"}), &["hidden_act", "relu"]);
}

#[test]
fn experts_are_read_as_transformers_means_them() {
    let model = |name, keys| read(&family(name, keys)).expect(name);
    let mixtral = model("mixtral", json!({"num_local_experts": 6, "intermediate_size": 40, "norm_topk_prob": false}));
    let experts = mixtral.experts.as_ref().expect("experts");
    // Transformers' Mixtral does not know the key and divides weights by their sum.
    assert_eq!((experts.num_experts, experts.num_experts_per_tok, experts.norm_topk_prob), (6, 2, true));
    assert_eq!((experts.moe_intermediate_size, mixtral.sparse_blocks(), mixtral.rope_theta), (40, 32, 1e6));
    // Both spellings of the base frequency stand above the family's own default.
    assert_eq!(model("mixtral", json!({"rope_theta": 5e5})).rope_theta, 5e5);
    let in_table = json!({"rope_parameters": {"rope_type": "default", "rope_theta": 2e4}});
    assert_eq!(model("mixtral", in_table).rope_theta, 2e4);
    let sparse = |keys: Value| {
        let model = model("qwen3_moe", keys);
        (0..6).filter(|block| model.experts_of(*block).is_some()).collect::<Vec<_>>()
    };
    assert_eq!(sparse(json!({"num_hidden_layers": 6, "decoder_sparse_step": 2})), [1, 3, 5]);
    let some = json!({"num_hidden_layers": 6, "decoder_sparse_step": 2, "mlp_only_layers": [3, 3, 99, 0]});
    assert_eq!(sparse(some), [1, 5]);
    assert_eq!(sparse(json!({"num_hidden_layers": 6, "num_experts": 0})), [0; 0]);
    // Transformers 5 writes the name of Mixtral's key.
    let five = model("qwen3_moe", json!({"num_local_experts": 12, "head_dim": null, "use_sliding_window": true}));
    assert_eq!((five.experts.as_ref().expect("experts").num_experts, five.head_dim), (12, 64));
    assert_eq!((five.window(0), five.max_window_layers), (Some(4096), 0));
    // The same from keys of a section; the experts of one family are not those of another.
    let preset: PartialModel = toml::from_str(preset("mixtral-8x7b").expect("a preset")).expect("keys");
    let over: PartialModel = toml::from_str("num_experts = 4\nintermediate_size = 512").expect("keys");
    let small = over.or(preset.clone()).resolve("model").expect("a model").experts.expect("experts");
    assert_eq!((small.num_experts, small.moe_intermediate_size), (4, 512));
    let over: PartialModel = toml::from_str("family = \"mistral\"").expect("keys");
    assert_eq!(over.or(preset).resolve("model").expect("a model").experts, None);
    for keys in ["num_experts = 4", "num_experts_per_tok = 1", "family = \"mixtral\"\ndecoder_sparse_step = 2"] {
        let partial: PartialModel = toml::from_str(keys).expect("keys");
        assert!(partial.resolve("model").is_err(), "{keys}");
    }
    for keys in [json!({"num_experts": 0}), json!({"mlp_only_layers": [2, 5], "norm_topk_prob": true}), json!({})] {
        let read_model = model("qwen3_moe", keys);
        let text = zbench_engine::formats::hf::config_json(&read_model, zbench_kernels::DType::F32, None);
        assert_eq!(model_from_hf(&text, "written").expect("what was written"), read_model);
        assert_eq!(PartialModel::from(&read_model).resolve("again").expect("the same"), read_model);
        let text = toml::to_string(&read_model).expect("a model can be recorded");
        assert_eq!(toml::from_str::<Model>(&text).expect("and read back"), read_model);
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        (0u64..70).prop_map(|shift| json!(1u64.checked_shl(shift as u32).unwrap_or(u64::MAX))),
        any::<f64>().prop_map(Value::from),
        "[a-z0-9]{0,8}".prop_map(Value::from),
        prop_oneof![Just("llama3"), Just("linear"), Just("default"), Just("yarn")].prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 8, 4, |inner| {
        let key = prop_oneof![Just("rope_type".to_string()), Just("factor".to_string()), "[a-z_]{1,8}"];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::hash_map(key, inner, 0..4).prop_map(Value::from_iter),
        ]
    })
}

/// What a model that was let through must keep.
fn assert_sound(model: &Model) {
    validate(model).expect("what was read is valid");
    assert!(model.num_attention_heads.is_multiple_of(model.num_key_value_heads) && model.head_dim.is_multiple_of(2));
    let bytes = parameter_count(model).checked_mul(18).expect("bytes fit");
    assert!(bytes > 0 && bytes <= i64::MAX as u64);
    let text = toml::to_string(model).expect("a model can be recorded");
    assert_eq!(toml::from_str::<Model>(&text).expect("and read back"), *model);
}

proptest! {
    #[test]
    fn any_value_under_any_key_is_an_error_or_a_sound_model(
        five in any::<bool>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), prop::option::of(any_json())), 1..4),
    ) {
        let mut config = if five { transformers5() } else { transformers4() };
        let mut keys: Vec<String> = config.as_object().expect("an object").keys().cloned().collect();
        keys.extend(["head_dim".into(), "rope_parameters".into(), "partial_rotary_factor".into()]);
        for (key, value) in changes {
            let key = key.get(&keys);
            match value {
                Some(value) => config[key.as_str()] = value,
                None => { config.as_object_mut().expect("an object").remove(key); }
            }
        }
        if let Ok(model) = read(&config) {
            assert_sound(&model);
        }
    }

    #[test]
    fn damaged_text_is_an_error_or_a_sound_model(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..5),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = serde_json::to_vec_pretty(&transformers5()).expect("JSON");
        for (place, byte) in damage {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Ok(model) = model_from_hf(&String::from_utf8_lossy(&bytes), "damaged") {
            assert_sound(&model);
        }
    }
}
