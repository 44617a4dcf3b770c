//! Models of a config.json: what a plan takes of them, and that a run refuses what it cannot train.

use super::{draft, options, row};
use std::path::Path;
use zbench_config::{Context, Document, Resolved};
use zbench_engine::formats::hf::parameter_count;
use zbench_engine::planner::Planner;
use zbench_predict::job;
use zbench_suites::interop::{self, Draft, Verdict, toml};

fn read(text: &str) -> Draft {
    draft(text, &options(&[]))
}

fn resolved(draft: &Draft) -> Resolved {
    let document = Document::parse(Path::new("file.toml"), &toml::text(draft), &[]).unwrap();
    zbench_config::resolve(&document.base, &Context::new("".into(), 1)).unwrap_or_else(|error| panic!("{error}"))
}

/// Published sizes, and what transformers 5.23 counts on the device "meta" of them: of several towers the language model's, of t5 and
/// mt5 with the head of their own that the files state (transformers 5 ties it).
const MODELS: &[(u64, &str)] = &[
    (
        41_303_293_952,
        r#"{"model_type":"falcon","hidden_size":8192,"num_hidden_layers":60,"num_attention_heads":128,"num_kv_heads":8,"new_decoder_architecture":true,"vocab_size":65024}"#,
    ),
    (
        2_108_672,
        r#"{"model_type":"llama","hidden_size":256,"intermediate_size":688,"num_hidden_layers":2,"num_attention_heads":4,"vocab_size":1024,"attention_bias":true}"#,
    ),
    (
        1_557_611_200,
        r#"{"attn_pdrop":0.1,"model_type":"gpt2","n_embd":1600,"n_head":25,"n_layer":48,"n_positions":1024,"vocab_size":50257}"#,
    ),
    (
        1_976_576,
        r#"{"model_type":"qwen2","hidden_size":256,"intermediate_size":688,"num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,"vocab_size":1024,"tie_word_embeddings":false,"rope_scaling":{"type":"yarn","factor":4.0,"original_max_position_embeddings":32768}}"#,
    ),
    (
        8_030_261_248,
        r#"{"attention_bias":false,"head_dim":128,"hidden_size":4096,"intermediate_size":14336,"model_type":"llama","num_attention_heads":32,"num_hidden_layers":32,"num_key_value_heads":8,"quantization_config":{"bnb_4bit_quant_type":"nf4","bnb_4bit_use_double_quant":true,"load_in_4bit":true,"quant_method":"bitsandbytes"},"tie_word_embeddings":false,"vocab_size":128256}"#,
    ),
    (
        107_769_861_120,
        r#"{"model_type":"llama4","text_config":{"attention_bias":false,"head_dim":128,"hidden_size":5120,"interleave_moe_layer_step":1,"intermediate_size":8192,"intermediate_size_mlp":16384,"model_type":"llama4_text","num_attention_heads":40,"num_experts_per_tok":1,"num_hidden_layers":48,"num_key_value_heads":8,"num_local_experts":16,"vocab_size":202048}}"#,
    ),
    (
        14_659_507_200,
        r#"{"attention_bias":false,"hidden_size":5120,"intermediate_size":17920,"model_type":"phi3","num_attention_heads":40,"num_hidden_layers":40,"num_key_value_heads":10,"tie_word_embeddings":false,"vocab_size":100352}"#,
    ),
    (
        20_554_567_680,
        r#"{"hidden_size":6144,"intermediate_size":24576,"model_type":"gpt_neox","num_attention_heads":64,"num_hidden_layers":44,"tie_word_embeddings":false,"vocab_size":50432}"#,
    ),
    (
        2_849_757_184,
        r#"{"d_ff":5120,"d_kv":64,"d_model":2048,"feed_forward_proj":"gated-gelu","model_type":"t5","n_positions":512,"num_decoder_layers":24,"num_heads":32,"num_layers":24,"tie_word_embeddings":false,"vocab_size":32128}"#,
    ),
    (
        671_026_404_352,
        r#"{"attention_bias":false,"first_k_dense_replace":3,"hidden_size":7168,"intermediate_size":18432,"kv_lora_rank":512,"model_type":"deepseek_v3","moe_intermediate_size":2048,"n_routed_experts":256,"n_shared_experts":1,"num_attention_heads":128,"num_experts_per_tok":8,"num_hidden_layers":61,"num_key_value_heads":128,"q_lora_rank":1536,"qk_nope_head_dim":128,"qk_rope_head_dim":64,"quantization_config":{"quant_method":"fp8"},"tie_word_embeddings":false,"v_head_dim":128,"vocab_size":129280}"#,
    ),
    (
        14_315_784_192,
        r#"{"hidden_size":2048,"intermediate_size":5632,"model_type":"qwen2_moe","moe_intermediate_size":1408,"num_attention_heads":16,"num_experts":60,"num_experts_per_tok":4,"num_hidden_layers":24,"num_key_value_heads":16,"shared_expert_intermediate_size":5632,"tie_word_embeddings":false,"vocab_size":151936}"#,
    ),
    (
        20_914_757_184,
        r#"{"attention_bias":true,"head_dim":64,"hidden_size":2880,"intermediate_size":2880,"model_type":"gpt_oss","num_attention_heads":64,"num_experts_per_tok":4,"num_hidden_layers":24,"num_key_value_heads":8,"num_local_experts":32,"quantization_config":{"quant_method":"mxfp4"},"tie_word_embeddings":false,"vocab_size":201088}"#,
    ),
    (
        7_173_923_840,
        r#"{"hidden_size":4608,"intermediate_size":18432,"model_type":"starcoder2","num_attention_heads":36,"num_hidden_layers":32,"num_key_value_heads":4,"use_bias":true,"vocab_size":49152}"#,
    ),
    (
        999_885_952,
        r#"{"attention_bias":false,"head_dim":256,"hidden_size":1152,"intermediate_size":6912,"model_type":"gemma3_text","num_attention_heads":4,"num_hidden_layers":26,"num_key_value_heads":1,"vocab_size":262144}"#,
    ),
    (
        7_298_617_344,
        r#"{"hidden_size":4096,"intermediate_size":11008,"model_type":"olmo2","num_attention_heads":32,"num_hidden_layers":32,"num_key_value_heads":32,"tie_word_embeddings":false,"vocab_size":100352}"#,
    ),
    (
        32_233_522_176,
        r#"{"attention_bias":false,"hidden_size":5120,"intermediate_size":27648,"model_type":"olmo3","num_attention_heads":40,"num_hidden_layers":64,"num_key_value_heads":8,"tie_word_embeddings":false,"vocab_size":100278}"#,
    ),
    (
        3_075_098_624,
        r#"{"attention_bias":false,"hidden_size":2048,"intermediate_size":11008,"model_type":"smollm3","num_attention_heads":16,"num_hidden_layers":36,"num_key_value_heads":4,"tie_word_embeddings":true,"vocab_size":128256}"#,
    ),
    (
        7_622_619_136,
        r#"{"attention_bias":true,"head_dim":128,"hidden_size":4096,"intermediate_size":11008,"model_type":"mimo","num_attention_heads":32,"num_hidden_layers":36,"num_key_value_heads":8,"tie_word_embeddings":false,"vocab_size":151680}"#,
    ),
    (
        6_649_286_656,
        r#"{"attn_config":{"alibi":true,"alibi_bias_max":16,"clip_qkv":6},"d_model":4096,"max_seq_len":65536,"model_type":"mpt","n_heads":32,"n_layers":32,"no_bias":true,"vocab_size":50432}"#,
    ),
    (
        34_980_831_232,
        r#"{"model_type":"cohere","hidden_size":8192,"intermediate_size":22528,"num_hidden_layers":40,"num_attention_heads":64,"num_key_value_heads":64,"vocab_size":256000}"#,
    ),
    (
        8_028_033_024,
        r#"{"model_type":"cohere2","hidden_size":4096,"intermediate_size":14336,"num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":8,"vocab_size":256000,"head_dim":128}"#,
    ),
    (
        15_706_484_224,
        r#"{"model_type":"deepseek_v2","hidden_size":2048,"intermediate_size":10944,"num_hidden_layers":27,"num_attention_heads":16,"num_key_value_heads":16,"vocab_size":102400,"n_routed_experts":64,"n_shared_experts":2,"num_experts_per_tok":6,"moe_intermediate_size":1408,"first_k_dense_replace":1,"kv_lora_rank":512,"qk_nope_head_dim":128,"qk_rope_head_dim":64,"v_head_dim":128}"#,
    ),
    (
        142_774_373_888,
        r#"{"model_type":"dots1","hidden_size":4096,"intermediate_size":10944,"num_hidden_layers":62,"num_attention_heads":32,"num_key_value_heads":32,"vocab_size":152064,"n_routed_experts":128,"n_shared_experts":2,"num_experts_per_tok":6,"moe_intermediate_size":1408,"first_k_dense_replace":1}"#,
    ),
    (
        360_748_032,
        r#"{"model_type":"ernie4_5","hidden_size":1024,"intermediate_size":3072,"num_hidden_layers":18,"num_attention_heads":16,"num_key_value_heads":2,"vocab_size":103424,"head_dim":128}"#,
    ),
    (
        32_003_216_384,
        r#"{"model_type":"exaone4","hidden_size":5120,"intermediate_size":27392,"num_hidden_layers":64,"num_attention_heads":40,"num_key_value_heads":8,"vocab_size":102400,"head_dim":128}"#,
    ),
    (
        9_241_705_984,
        r#"{"model_type":"gemma2","hidden_size":3584,"intermediate_size":14336,"num_hidden_layers":42,"num_attention_heads":16,"num_key_value_heads":8,"vocab_size":256000,"head_dim":256}"#,
    ),
    (
        3_880_263_168,
        r#"{"model_type":"gemma3","text_config":{"model_type":"gemma3_text","hidden_size":2560,"intermediate_size":10240,"num_hidden_layers":34,"num_attention_heads":8,"num_key_value_heads":4,"vocab_size":262208,"head_dim":256}}"#,
    ),
    (
        9_399_951_360,
        r#"{"model_type":"glm","hidden_size":4096,"intermediate_size":13696,"num_hidden_layers":40,"num_attention_heads":32,"num_key_value_heads":2,"vocab_size":151552,"head_dim":128}"#,
    ),
    (
        9_400_279_040,
        r#"{"model_type":"glm4","hidden_size":4096,"intermediate_size":13696,"num_hidden_layers":40,"num_attention_heads":32,"num_key_value_heads":2,"vocab_size":151552,"head_dim":128}"#,
    ),
    (
        106_851_586_048,
        r#"{"model_type":"glm4_moe","hidden_size":4096,"intermediate_size":10944,"num_hidden_layers":46,"num_attention_heads":96,"num_key_value_heads":8,"vocab_size":151552,"head_dim":128,"n_routed_experts":128,"n_shared_experts":1,"num_experts_per_tok":8,"moe_intermediate_size":1408,"first_k_dense_replace":1}"#,
    ),
    (
        15_517_456_384,
        r#"{"model_type":"gpt_bigcode","n_embd":6144,"n_inner":24576,"n_layer":40,"n_head":48,"n_positions":8192,"vocab_size":49152,"multi_query":true}"#,
    ),
    (
        6_050_882_784,
        r#"{"model_type":"gptj","n_embd":4096,"n_layer":28,"n_head":16,"n_positions":2048,"vocab_size":50400}"#,
    ),
    (
        8_170_864_640,
        r#"{"model_type":"granite","hidden_size":4096,"intermediate_size":12800,"num_hidden_layers":40,"num_attention_heads":32,"num_key_value_heads":8,"vocab_size":49159,"tie_word_embeddings":true}"#,
    ),
    (
        3_298_793_472,
        r#"{"model_type":"granitemoe","hidden_size":1536,"intermediate_size":512,"num_hidden_layers":32,"num_attention_heads":24,"num_key_value_heads":8,"vocab_size":49155,"num_local_experts":40,"num_experts_per_tok":8,"tie_word_embeddings":true}"#,
    ),
    (
        2_172_643_840,
        r#"{"model_type":"helium","hidden_size":2560,"intermediate_size":7040,"num_hidden_layers":24,"num_attention_heads":20,"num_key_value_heads":20,"vocab_size":48000,"head_dim":128}"#,
    ),
    (
        8_029_540_352,
        r#"{"model_type":"hunyuan_v1_dense","hidden_size":4096,"intermediate_size":14336,"num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":8,"vocab_size":128167,"head_dim":128}"#,
    ),
    (
        8_019_808_256,
        r#"{"model_type":"ministral","hidden_size":4096,"intermediate_size":12288,"num_hidden_layers":36,"num_attention_heads":32,"num_key_value_heads":8,"vocab_size":131072,"head_dim":128}"#,
    ),
    (
        3_429_006_336,
        r#"{"model_type":"ministral3","hidden_size":3072,"intermediate_size":9216,"num_hidden_layers":26,"num_attention_heads":32,"num_key_value_heads":8,"vocab_size":131072,"head_dim":128,"tie_word_embeddings":true}"#,
    ),
    (
        1_229_581_312,
        r#"{"model_type":"mt5","d_model":1024,"d_ff":2816,"d_kv":64,"num_layers":24,"num_decoder_layers":24,"num_heads":16,"feed_forward_proj":"gated-gelu","vocab_size":250112,"tie_word_embeddings":false}"#,
    ),
    (
        15_628_775_424,
        r#"{"model_type":"nemotron","hidden_size":6144,"intermediate_size":24576,"num_hidden_layers":32,"num_attention_heads":48,"num_key_value_heads":8,"vocab_size":256000,"head_dim":128}"#,
    ),
    (
        6_888_095_744,
        r#"{"model_type":"olmo","hidden_size":4096,"intermediate_size":11008,"num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":32,"vocab_size":50304}"#,
    ),
    (
        6_919_161_856,
        r#"{"model_type":"olmoe","hidden_size":2048,"intermediate_size":1024,"num_hidden_layers":16,"num_attention_heads":16,"num_key_value_heads":16,"vocab_size":50304,"num_experts":64,"num_experts_per_tok":8}"#,
    ),
    (
        6_658_473_984,
        r#"{"model_type":"opt","hidden_size":4096,"ffn_dim":16384,"num_hidden_layers":32,"num_attention_heads":32,"max_position_embeddings":2048,"vocab_size":50272,"word_embed_proj_dim":4096}"#,
    ),
    (
        2_779_683_840,
        r#"{"model_type":"phi","hidden_size":2560,"intermediate_size":10240,"num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":32,"vocab_size":51200}"#,
    ),
    (
        7_615_616_512,
        r#"{"model_type":"qwen2_vl","text_config":{"model_type":"qwen2_vl_text","hidden_size":3584,"intermediate_size":18944,"num_hidden_layers":28,"num_attention_heads":28,"num_key_value_heads":4,"vocab_size":152064}}"#,
    ),
    (
        7_615_616_512,
        r#"{"model_type":"qwen2_5_vl","text_config":{"model_type":"qwen2_5_vl_text","hidden_size":3584,"intermediate_size":18944,"num_hidden_layers":28,"num_attention_heads":28,"num_key_value_heads":4,"vocab_size":152064}}"#,
    ),
    (
        8_190_735_360,
        r#"{"model_type":"qwen3_vl","text_config":{"model_type":"qwen3_vl_text","hidden_size":4096,"intermediate_size":12288,"num_hidden_layers":36,"num_attention_heads":32,"num_key_value_heads":8,"vocab_size":151936,"head_dim":128}}"#,
    ),
    (
        30_532_122_624,
        r#"{"model_type":"qwen3_vl_moe","text_config":{"model_type":"qwen3_vl_moe_text","hidden_size":2048,"intermediate_size":6144,"num_hidden_layers":48,"num_attention_heads":32,"num_key_value_heads":4,"vocab_size":151936,"head_dim":128,"num_experts":128,"num_experts_per_tok":8,"moe_intermediate_size":768}}"#,
    ),
    (
        36_151_104_512,
        r#"{"model_type":"seed_oss","hidden_size":5120,"intermediate_size":27648,"num_hidden_layers":64,"num_attention_heads":80,"num_key_value_heads":8,"vocab_size":155136,"head_dim":128}"#,
    ),
    (
        2_795_443_200,
        r#"{"model_type":"stablelm","hidden_size":2560,"intermediate_size":6912,"num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":32,"vocab_size":50304}"#,
    ),
];

/// The engine's families come out to a parameter, the others within 0.1 %.
#[test]
fn sizes_of_a_config_make_the_parameters_that_transformers_counts() {
    for (parameters, text) in MODELS {
        let cell = resolved(&read(text));
        let is_engines = cell.cell.priced.as_ref().is_none_or(|priced| priced.model.is_none());
        let found = match is_engines {
            true => parameter_count(&cell.cell.model),
            false => job(&cell).model.parameters(),
        };
        let most = if is_engines { 0 } else { parameters / 1000 };
        assert!(found.abs_diff(*parameters) <= most, "{found} instead of {parameters}: {text}");
    }
}

/// What the engine lacks of a model is no size: plans take it, and a run refuses it by its reason.
#[test]
fn what_is_left_out_keeps_a_model_from_a_run_alone() {
    let llama = r#""hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 1024"#;
    let yarn = r#""rope_scaling": {"type": "yarn", "factor": 4.0}"#;
    for (text, key, reason) in [
        (format!(r#"{{"model_type": "qwen2", {llama}, {yarn}}}"#), "rope_scaling", r#"rope_type "yarn""#),
        (
            format!(
                r#"{{"model_type": "llava", "text_config": {{"model_type": "llama", {llama}}}, "vision_config": {{}}}}"#
            ),
            "vision_config",
            "vision_config",
        ),
        (format!(r#"{{"model_type": "qwen2_vl", {llama}, "vision_config": {{}}}}"#), "vision_config", "custom"),
        (
            r#"{"model_type": "mpt", "d_model": 64, "n_heads": 4, "n_layers": 2, "attn_config": {"clip_qkv": 6}}"#
                .into(),
            "attn_config",
            "attn_config.clip_qkv 6",
        ),
    ] {
        let draft = read(&text);
        assert_eq!(row(&draft, key).verdict, Verdict::NoEquivalent, "{text}");
        let written = toml::written(&draft, Path::new("file.toml"), 1).unwrap();
        assert!(!written.runs && written.reasons[0].contains(&reason.replace('"', "\\\"")), "{:?}", written.reasons);
    }
    // Blocks of a form of their own run, and dropout is left out of them as by model.dropout = 0.0.
    for text in [
        format!(r#"{{"model_type": "llama", {llama}, "attention_bias": true}}"#),
        r#"{"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "attn_pdrop": 0.1}"#.into(),
    ] {
        assert!(toml::written(&read(&text), Path::new("file.toml"), 1).unwrap().runs, "{text}");
    }
}

/// Parts that no key describes are named, in one line.
#[test]
fn parts_without_sizes_are_named() {
    let sizes = r#""hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 96"#;
    for (rest, words) in [
        (
            r#""model_type": "qwen3_5_text", "layer_types": ["linear_attention", "full_attention"]"#,
            "1 of 2 blocks have linear_attention",
        ),
        (r#""model_type": "gemma4_text", "head_dim": 16, "global_head_dim": 32"#, "32 beside head_dim 16"),
        (
            r#""model_type": "nemotron-nas", "block_configs": [{"attention": {"no_op": true}}, {"attention": {"no_op": false}}]"#,
            "1 of 2 blocks have no attention",
        ),
        (r#""model_type": "llama", "quantization_config": {"quant_method": "gptq", "bits": 4}"#, "\"gptq\""),
        (r#""model_type": "whisper""#, "family = \"custom\""),
        (
            r#""model_type": "qwen2_moe", "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 2000000000, "n_shared_experts": 2000000000"#,
            "model.shared_expert_intermediate_size: 4000000000000000000 is too large",
        ),
        (r#""model_type": "phi3", "num_attention_heads": "many""#, "num_attention_heads"),
        (
            r#""model_type": "phi3", "max_position_embeddings": 999999999999"#,
            "it must be a whole number from 0 to 2147483648",
        ),
        (
            r#""model_type": "qwen3", "layer_types": ["linear_attention", "full_attention"]"#,
            "1 of 2 blocks have linear_attention",
        ),
        (r#""model_type": "opt", "word_embed_proj_dim": 32"#, "32 beside hidden_size 64"),
    ] {
        let text = format!("{{{sizes}, {rest}}}").replacen(
            r#""num_attention_heads": 4, "#,
            if rest.contains("many") { "" } else { r#""num_attention_heads": 4, "# },
            1,
        );
        let error = interop::parse("file", text.as_bytes(), &options(&[])).unwrap_err().to_string();
        assert!(error.contains(words) && error.lines().count() == 1, "{error}");
    }
}

/// Quantised weights are frozen, so adapters train, of PEFT's rank unless a flag states another.
#[test]
fn a_quantised_model_trains_adapters() {
    let (_, text) = MODELS.iter().find(|(_, text)| text.contains("nf4")).unwrap();
    let lora = |set: &[&str]| resolved(&draft(text, &options(set))).cell.lora;
    assert_eq!((lora(&[]).rank, lora(&["lora.rank=32"]).rank), (8, 32));
    assert_eq!(lora(&[]).base, Some(zbench_engine::config::Base::Nf4));
}

/// One path: `--model FILE` says of a model what importing the file says.
#[test]
fn a_model_is_read_alike_wherever_it_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.json");
    for (_, text) in MODELS.iter().filter(|(_, text)| text.len() < 250) {
        std::fs::write(&file, text).unwrap();
        let named = interop::Options { model: Some(file.display().to_string()), ..options(&["model.dropout=0.0"]) };
        let of_file = draft(r#"{"train_micro_batch_size_per_gpu": 1}"#, &named);
        assert_eq!(resolved(&of_file).cell.model, resolved(&read(text)).cell.model, "{text}");
    }
    std::fs::write(&file, r#"{"model_type": "llama", "vocab_size": 10, "vocab_size": 20}"#).unwrap();
    let named = interop::Options { model: Some(file.display().to_string()), ..options(&[]) };
    let error = interop::parse("file", br#"{"seed": 1}"#, &named).unwrap_err().to_string();
    assert!(error.contains("vocab_size: is given twice"), "{error}");
    let yaml = "model_type: llama\nvocab_size: 10\nvocab_size: 20\n";
    assert!(read(yaml).notes.iter().any(|note| note.contains("vocab_size stands in lines 2 and 3")));
}

/// A plan reads sizes alone: of a folder without weights, and of one whose model no run trains.
#[test]
fn a_plan_needs_no_weights() {
    let folder = tempfile::tempdir().unwrap();
    let sizes = r#""hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 128"#;
    let document = Document::parse(&folder.path().join("file.toml"), "model.path = \".\"", &[]).unwrap();
    let context = || Context::new(folder.path().into(), 1);
    let expand =
        |context| zbench_config::grid::expand(&document, &[], 1, &context, &mut zbench_config::files::Files::default());
    std::fs::write(folder.path().join("config.json"), format!(r#"{{"model_type": "llama", {sizes}}}"#)).unwrap();
    assert!(expand(context()).is_err_and(|error| error.to_string().contains("no weights to load")));
    assert!(expand(context().priced()).unwrap()[0].resolved.is_ok());
    // What a file states of model.left_out takes nothing of the model's away.
    let emptied = Document::parse(Path::new("file.toml"), "model.path = \".\"\nmodel.left_out = []", &[]).unwrap();
    for (rest, reason, remedy, assumed) in [
        (
            r#""model_type": "llama", "attention_dropout": 0.1"#,
            "attention_dropout 0.1",
            "model.dropout = 0.0",
            "dropout",
        ),
        (r#""model_type": "phi3""#, "model_type \"phi3\"", "", "phi3 is priced by its sizes"),
        (
            r#""model_type": "llama", "rope_scaling": {"type": "yarn", "factor": 4.0}"#,
            "rope_type \"yarn\"",
            "",
            "no size depends on it",
        ),
        (
            r#""model_type": "llama", "quantization_config": {"load_in_4bit": true, "bnb_4bit_quant_type": "nf4"}"#,
            "quantization_config",
            "lora.base",
            "adapters of lora.rank = 8",
        ),
    ] {
        std::fs::write(folder.path().join("config.json"), format!("{{{sizes}, {rest}}}")).unwrap();
        let cell = expand(context()).unwrap().remove(0).resolved.unwrap().cell;
        assert_eq!(cell.model.vocab_size, 128);
        let of_emptied = zbench_config::resolve(&emptied.base, &context()).unwrap().cell;
        for cell in [&cell, &of_emptied] {
            let priced = cell.priced.clone().unwrap_or_default();
            assert!(priced.left_out[0].contains(reason), "{:?}", priced.left_out);
            let refusal = zbench_predict::planned::estimate(&Planner::default(), cell).unwrap_err();
            assert!(refusal.starts_with("model.path: ") && refusal.contains(reason), "{refusal}");
            assert!((remedy.is_empty() || refusal.matches(remedy).count() == 1) && !refusal.contains(';'), "{refusal}");
        }
        let said = zbench_config::resolve::assumed(&document.base, &context());
        assert!(said.iter().any(|text| text.contains(assumed)), "{said:?}");
    }
}
