//! Folders of adapters that lie, are cut off, or ask for what is not there: errors that name it, never a panic.

use proptest::prelude::*;
use serde_json::{Map, Value, json};
use std::path::PathBuf;
use zbench_engine::checkpoint::weights::Checkpoint;
use zbench_engine::config::{Linear, Lora, Method, Model};
use zbench_engine::formats::hf::default_model;
use zbench_engine::formats::peft::{CONFIG, PeftError, WEIGHTS, parse_config, read_config};
use zbench_test_tiers as tiers;

const FIXTURES: [(&str, &str); 5] = [
    ("rslora-gpt2", "gpt2"),
    ("dora-llama", "llama"),
    ("lora-falcon", "falcon"),
    ("ia3-llama", "llama"),
    ("ia3-bloom", "bloom"),
];

fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(name).join("start")
}

fn text(name: &str) -> String {
    std::fs::read_to_string(folder(name).join(CONFIG)).unwrap()
}

fn parse(text: &str, family: &str) -> Result<Lora, PeftError> {
    parse_config(text, "adapter_config.json", &default_model(family).unwrap())
}

fn object(name: &str) -> Map<String, Value> {
    serde_json::from_str(&text(name)).unwrap()
}

fn with(name: &str, key: &str, value: Value) -> String {
    let mut config = object(name);
    config.insert(key.into(), value);
    Value::Object(config).to_string()
}

#[test]
fn what_peft_writes_is_read() {
    use Linear::*;
    let read = |name: &str, family: &str| parse(&text(name), family).unwrap();
    let gpt2 = read("rslora-gpt2", "gpt2");
    assert_eq!((gpt2.method, gpt2.rank, gpt2.alpha, gpt2.use_rslora), (Method::Lora, 3, 6.0, true));
    assert_eq!(gpt2.targets, [QProj, KProj, VProj, OProj, DownProj]);
    assert_eq!(read("lora-falcon", "falcon").targets, [QProj, KProj, VProj, OProj]);
    let llama = read("ia3-llama", "llama");
    assert_eq!((llama.method, &llama.targets[..]), (Method::Ia3, &[KProj, VProj, DownProj][..]));
    assert_eq!(llama.feedforward, [DownProj]);
    let bloom = read("ia3-bloom", "bloom");
    assert_eq!((&bloom.targets[..], &bloom.feedforward[..]), (&[QProj, KProj, VProj, DownProj][..], &[DownProj][..]));
    // PEFT's own defaults where keys are null, and its short name for all layers.
    assert_eq!(parse(&with("ia3-bloom", "feedforward_modules", Value::Null), "bloom").unwrap(), bloom);
    assert_eq!(parse(&with("ia3-llama", "target_modules", Value::Null), "llama").unwrap(), llama);
    let all = parse(&with("rslora-gpt2", "target_modules", json!("All-Linear")), "gpt2").unwrap();
    assert_eq!(all.targets, [QProj, KProj, VProj, OProj, UpProj, DownProj]);
}

/// PEFT writes whole names for "all-linear" on a small model. A name may also begin at any part.
#[test]
fn whole_names_stand_for_a_layer_where_they_name_it_in_all_blocks() {
    use Linear::*;
    let read = |layers: usize, names: Vec<String>| {
        let model = Model { num_hidden_layers: layers, ..default_model("gpt2").unwrap() };
        parse_config(&with("rslora-gpt2", "target_modules", json!(names)), "adapter_config.json", &model)
    };
    let paths = |layers: usize| (0..layers).map(|block| format!("transformer.h.{block}.attn.c_proj"));
    let mixed = paths(11).chain(["h.11.attn.c_proj".into(), "mlp.c_fc".into()]).collect();
    assert_eq!(read(12, mixed).unwrap().targets, [OProj, UpProj]);
    assert_eq!(read(12, paths(3).chain(["c_proj".into()]).collect()).unwrap().targets, [OProj, DownProj]);
    for (names, fragment) in [
        (paths(3).collect::<Vec<_>>(), "attn.c_proj is named in 3 of 12 blocks"),
        (vec!["transformer.h.12.attn.c_proj".into()], "names no layer"),
        (vec!["transformer.h.01.attn.c_proj".into()], "names no layer"),
        (vec!["layers.1.attn.c_proj".into()], "names no layer"),
        (vec!["x1.attn.c_proj".into()], "names no layer"),
    ] {
        let error = read(12, names).unwrap_err().to_string();
        assert!(error.contains(fragment), "{error}");
    }
}

/// Transformers 5 stores experts as stacked tensors. PEFT still writes the names of their projections, and skips them.
#[test]
fn ia3_skips_the_projections_of_experts() {
    use Linear::*;
    for (family, names, expected) in [
        ("mixtral", json!(["k_proj", "w2", "v_proj"]), &[KProj, VProj][..]),
        ("mixtral", Value::Null, &[KProj, VProj]),
        ("qwen3_moe", json!(["down_proj", "q_proj"]), &[QProj]),
        ("qwen3_moe", Value::Null, &[QProj, VProj]),
    ] {
        let mut config = object("ia3-llama");
        let last = if family == "mixtral" { "w2" } else { "down_proj" };
        config.extend([("target_modules".into(), names), ("feedforward_modules".into(), json!([last]))]);
        let read = parse(&Value::Object(config).to_string(), family).unwrap();
        assert_eq!((&read.targets[..], &read.feedforward[..]), (expected, &[][..]), "{family}");
    }
    let error = parse(&with("ia3-llama", "target_modules", json!(["w2"])), "mixtral").unwrap_err();
    assert!(error.to_string().contains("names no module"), "{error}");
    // LoRA adapts them by target_parameters.
    assert!(parse(&with("rslora-gpt2", "target_modules", json!(["q_proj", "w2"])), "mixtral").is_err());
}

#[test]
fn what_is_not_there_is_refused_by_name() {
    let cases = [
        ("rank_pattern", json!({"c_attn": 4}), "one rank for all layers"),
        ("alpha_pattern", json!({"c_attn": 4}), "one alpha"),
        ("modules_to_save", json!(["lm_head"]), "no module that trains as a whole"),
        ("bias", json!("all"), "\"none\""),
        ("bias", json!("lora_only"), "\"none\""),
        ("layers_to_transform", json!([0]), "adapters on all blocks"),
        ("layers_to_transform", json!(1), "adapters on all blocks"),
        ("layer_replication", json!([[0, 1]]), "every block once"),
        ("exclude_modules", json!(["c_attn"]), "targets by name"),
        ("target_parameters", json!(["w"]), "linear layers"),
        ("trainable_token_indices", json!([1]), "frozen embeddings"),
        ("lora_bias", json!(true), "without biases"),
        ("loftq_config", json!({"loftq_bits": 4}), "loftq_config"),
        ("init_lora_weights", json!("pissa"), "leave the base as it is"),
        ("use_qalora", json!(true), "use_qalora true"),
        ("some_new_key", json!({"a": 1}), "some_new_key"),
        ("task_type", json!("SEQ_CLS"), "CAUSAL_LM"),
        ("peft_type", json!("LOHA"), "\"LORA\" and \"IA3\""),
        ("target_modules", json!(".*attn.*"), "regular expression"),
        ("target_modules", json!(["c_attn", "lm_head"]), "lm_head"),
        ("target_modules", json!(["h.0.attn.c_attn"]), "h.0.attn.c_attn"),
    ];
    for (key, value, fragment) in cases {
        let error = parse(&with("rslora-gpt2", key, value.clone()), "gpt2").unwrap_err();
        assert!(matches!(error, PeftError::Unsupported { .. }), "{key} {value}: {error:?}");
        assert!(error.to_string().contains(fragment), "{key} {value}: {error}");
    }
    let several = Value::Object(
        object("rslora-gpt2")
            .into_iter()
            .chain([("lora_bias".into(), json!(true)), ("modules_to_save".into(), json!(["wte"]))])
            .collect(),
    );
    let said = parse(&several.to_string(), "gpt2").unwrap_err().to_string();
    assert!(said.contains("lora_bias") && said.contains("modules_to_save"), "{said}");
    for (key, value) in [
        ("r", json!(0)),
        ("r", json!(-1)),
        ("r", json!(1.5)),
        ("r", json!(1u64 << 40)),
        ("r", json!("8")),
        ("lora_alpha", json!(0)),
        ("lora_alpha", json!([1])),
        ("lora_dropout", json!(1.0)),
        ("lora_dropout", json!(-0.1)),
        ("use_rslora", json!("yes")),
        ("use_dora", json!(1)),
        ("target_modules", json!([])),
        ("target_modules", json!([1])),
        ("target_modules", json!({"a": 1})),
    ] {
        let error = parse(&with("rslora-gpt2", key, value.clone()), "gpt2").unwrap_err();
        assert!(matches!(&error, PeftError::Field { field, .. } if field == key), "{key} {value}: {error:?}");
    }
    let error = parse(&with("ia3-bloom", "feedforward_modules", json!(["dense"])), "bloom").unwrap_err();
    assert!(error.to_string().contains("feedforward_modules"), "{error}");
    assert!(matches!(parse("{}", "gpt2").unwrap_err(), PeftError::Field { field, .. } if field == "peft_type"));
    assert!(matches!(parse("[]", "gpt2").unwrap_err(), PeftError::Json { .. }));
    // Of another family.
    assert!(parse(&text("rslora-gpt2"), "llama").unwrap_err().to_string().contains("c_attn"));
}

#[test]
fn folders_without_the_files_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    let model: Model = default_model("gpt2").unwrap();
    for place in [dir.path().join("none"), dir.path().into()] {
        assert!(matches!(read_config(&place, &model).unwrap_err(), PeftError::Io { .. }));
        assert!(Checkpoint::open_adapters(&place).is_err());
    }
    std::fs::create_dir(dir.path().join(CONFIG)).unwrap();
    std::fs::create_dir(dir.path().join(WEIGHTS)).unwrap();
    assert!(read_config(dir.path(), &model).unwrap_err().to_string().contains("regular file"));
    assert!(Checkpoint::open_adapters(dir.path()).unwrap_err().to_string().contains("regular file"));
}

#[test]
fn every_truncation_is_an_error() {
    for (name, family) in FIXTURES {
        let text = text(name);
        let whole = text.trim_end().len();
        for end in 0..whole {
            assert!(parse(&text[..end], family).is_err(), "{name} cut at {end}");
        }
        let (dir, bytes) = (tempfile::tempdir().unwrap(), std::fs::read(folder(name).join(WEIGHTS)).unwrap());
        let ends = (0..bytes.len()).step_by(7).chain([bytes.len() - 1]);
        for end in tiers::some("peft::every_truncation_is_an_error", ends, [200, 1000]) {
            std::fs::write(dir.path().join(WEIGHTS), &bytes[..end]).unwrap();
            assert!(Checkpoint::open_adapters(dir.path()).is_err(), "{name} cut at {end}");
        }
    }
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
        prop::sample::select(vec!["c_attn", "all-linear", "k_proj", "LORA", "IA3", "none", "."]).prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 8, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(".{0,6}", inner, 0..4).prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(tiers::cases("peft::any_value", [100, 400, 400])))]

    /// Whatever keys hold: an error, or a config within its bounds.
    #[test]
    fn any_config_is_read_or_refused(
        which in 0usize..FIXTURES.len(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any_value()), 1..4),
        family in prop::sample::select(vec!["llama", "gpt2", "falcon", "bloom", "mpt", "gemma"]),
    ) {
        let mut config = object(FIXTURES[which].0);
        let keys: Vec<String> = config.keys().cloned().chain(["new".into()]).collect();
        for (at, value) in changes {
            config.insert(at.get(&keys).clone(), value);
        }
        if let Ok(read) = parse(&Value::Object(config).to_string(), family) {
            prop_assert!(!read.targets.is_empty() && read.rank <= 1 << 16);
            prop_assert!((0.0..1.0).contains(&read.dropout) && read.alpha.is_finite() && read.alpha >= 0.0);
            prop_assert!((read.method == Method::Lora) == (read.rank > 0));
            prop_assert!(read.feedforward.iter().all(|layer| read.targets.contains(layer)));
        }
    }

    /// Whatever bytes a file of tensors has.
    #[test]
    fn any_file_of_tensors_is_read_or_refused(
        which in 0usize..FIXTURES.len(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut bytes = std::fs::read(folder(FIXTURES[which].0).join(WEIGHTS)).unwrap();
        for (at, byte) in changes {
            // Most of what can lie is in the header.
            let at = at.index(bytes.len().min(600));
            bytes[at] = byte;
        }
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(WEIGHTS), &bytes).unwrap();
        if let Ok(read) = Checkpoint::open_adapters(dir.path()) {
            for name in read.names().map(String::from).collect::<Vec<_>>() {
                let mut values = vec![0f32; read.tensor(&name).unwrap().elements()];
                let _ = read.read(&name, 0..values.len(), &mut values, &mut Vec::new());
            }
        }
    }
}
