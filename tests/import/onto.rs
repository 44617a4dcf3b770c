//! `export --base`: a cell onto the file that it came of, or onto another.

use super::round::{LENGTH, MODEL, cell, cell_of, config, same};
use super::{draft, fixture, options, text_of};
use serde_json::Value;
use std::collections::BTreeMap;
use zbench_suites::interop::Verdict;
use zbench_suites::interop::export::{Base, Target, onto};

fn leaves(value: &Value, prefix: &str, into: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(table) if !table.is_empty() => {
            for (name, inner) in table {
                leaves(inner, format!("{prefix}.{name}").trim_start_matches('.'), into);
            }
        }
        _ => drop(into.insert(prefix.to_string(), value.clone())),
    }
}

fn keys_of(target: Target, text: &str) -> BTreeMap<String, Value> {
    let value: Value = match target {
        Target::Accelerate => serde_saphyr::from_str(text).unwrap(),
        _ => serde_json::from_str(text).unwrap(),
    };
    let mut keys = BTreeMap::new();
    leaves(&value, "", &mut keys);
    keys
}

/// Onto the file that the cell came of: the very keys and values of that file, and nothing that makes another cell.
#[test]
fn onto_its_own_file_every_key_comes_back() {
    for (name, target) in [
        ("stage2_fp16.json", Target::DeepSpeed),
        ("stage3_offload.json", Target::DeepSpeed),
        ("stage3_full.json", Target::DeepSpeed),
        ("fsdp_full_shard.yaml", Target::Accelerate),
    ] {
        let text = text_of(&fixture(name));
        let cell = cell(&draft(&text, &options(&[MODEL, LENGTH])));
        let base = Base { source: name, bytes: text.as_bytes() };
        let made = onto(&cell, name, target, &base).unwrap_or_else(|error| panic!("{name}: {error}"));
        let back = keys_of(target, &made.text);
        for (key, value) in keys_of(target, &text) {
            let found = back.get(&key);
            assert!(
                found.is_some_and(|found| same(found, &value)),
                "{name}: {key} is {value} and came back as {found:?}"
            );
        }
        let again = draft(&made.text, &options(&[MODEL, LENGTH]));
        assert_eq!(self::cell(&again), cell, "{name}");
    }
}

#[test]
fn onto_a_file_of_another_cell_the_cell_has_the_last_word() {
    let file = r#"{"train_batch_size": "auto", "zero_optimization": {"stage": 3, "stage3_max_live_parameters": 1e8, "overlap_comm": true,
        "offload_param": {"device": "cpu", "pin_memory": false, "buffer_count": 9}}, "steps_per_print": 7, "fp16": {"enabled": "auto"},
        "optimizer": {"type": "Lamb", "params": {"lr": 0.5, "max_coeff": 0.3}}}"#;
    let cell = cell_of(&config("zero2", "ranks = 4\n[precision]\npreset = \"deepspeed\"\n"));
    let put = |target, file: &str| onto(&cell, "here", target, &Base { source: "base.json", bytes: file.as_bytes() });
    let made = put(Target::DeepSpeed, file).unwrap();
    let back = keys_of(Target::DeepSpeed, &made.text);
    for (key, value) in [
        // It is the launcher's ranks that this follows from.
        ("train_batch_size", serde_json::json!("auto")),
        ("train_micro_batch_size_per_gpu", serde_json::json!(2)),
        ("zero_optimization.stage", serde_json::json!(2)),
        ("zero_optimization.stage3_max_live_parameters", serde_json::json!(1e8)),
        ("steps_per_print", serde_json::json!(7)),
        ("bf16.enabled", serde_json::json!(true)),
        // What zbench has the nearest of alone, and the cell has just that.
        ("optimizer.type", serde_json::json!("Lamb")),
        ("optimizer.params.max_coeff", serde_json::json!(0.3)),
    ] {
        assert!(back.get(key).is_some_and(|found| same(found, &value)), "{key}: {:?}", back.get(key));
    }
    assert_eq!(back.get("zero_optimization.offload_param.device"), None, "{}", made.text);
    let note = made.notes.iter().find(|note| note.starts_with("of base.json")).unwrap();
    assert!(made.notes.iter().any(|note| note.contains("optimizer.type = \"Lamb\"")), "{:?}", made.notes);
    assert!(
        note.contains("gone: ") && note.contains("offload_param.device") && !note.contains("steps_per_print"),
        "{note}"
    );
    assert!(
        made.text.find("train_batch_size") < made.text.find("steps_per_print"),
        "in the order of the file: {}",
        made.text
    );

    for (target, file, fragments) in [
        (Target::DeepSpeed, "distributed_type: FSDP\n", ["is no DeepSpeed", "accelerate"]),
        (Target::Accelerate, file, ["is no accelerate", "DeepSpeed"]),
        (Target::Torchtitan, file, ["accelerate", "--base"]),
        (Target::DeepSpeed, "{\"zero_optimization\": {\"stage\": 9}}", ["zero_optimization.stage", "base.json"]),
    ] {
        let said = put(target, file).unwrap_err().to_string();
        assert!(fragments.iter().all(|fragment| said.contains(fragment)), "{said}");
    }
}

/// The file with one thing changed, and what of it changes: key, value; none where it is gone.
#[test]
fn onto_a_file_no_more_is_changed_than_the_cell_needs() {
    type Change<'a> = (&'a str, Option<Value>);
    let set = |value: Value| Some(value);
    let cases: &[(&str, &str, &[&str], &[Change])] = &[
        // Nothing differs: to the last "auto".
        (
            "auto.json",
            r#"{"gradient_clipping": "auto", "train_batch_size": "auto", "zero_optimization": {"stage": 3}, "fp16": {"enabled": "auto", "loss_scale": 0},
                "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": "auto", "total_num_steps": "auto"}}}"#,
            &[],
            &[],
        ),
        (
            "rate.json",
            r#"{"gradient_clipping": "auto", "train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 3},
                "optimizer": {"type": "Adam", "params": {"lr": "auto", "betas": "auto"}}}"#,
            &["train.lr=0.002"],
            &[("optimizer.params.lr", set(0.002.into()))],
        ),
        // The section begins; the rest of the file stays.
        (
            "no_optimizer.json",
            r#"{"gradient_clipping": "auto", "zero_optimization": {"stage": 3}, "steps_per_print": 5}"#,
            &["train.lr=0.002"],
            &[
                ("optimizer.type", set("AdamW".into())),
                ("optimizer.params.lr", set(0.002.into())),
                ("optimizer.params.betas", set(serde_json::json!([0.9, 0.999]))),
                ("optimizer.params.eps", set(1e-8.into())),
                ("optimizer.params.weight_decay", set(0.01.into())),
            ],
        ),
        // Decay that would be added to the gradient is no AdamW's.
        (
            "l2.json",
            r#"{"optimizer": {"type": "Adam", "params": {"adam_w_mode": false, "weight_decay": 0, "lr": 0.5}}}"#,
            &["train.weight_decay=0.3"],
            &[
                ("optimizer.type", set("AdamW".into())),
                ("optimizer.params.adam_w_mode", None),
                ("optimizer.params.weight_decay", set(0.3.into())),
            ],
        ),
        // What was idle in stage 2 would be an offload in stage 3.
        (
            "idle.json",
            r#"{"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu", "pin_memory": true}}}"#,
            &["parallel.strategy=zero3"],
            &[("zero_optimization.stage", set(3.into())), ("zero_optimization.offload_param.device", None)],
        ),
        (
            "empty.json",
            r#"{"zero_optimization": null, "optimizer": {"type": "AdamW", "params": null}, "gradient_clipping": 0.5}"#,
            &["parallel.strategy=zero1", "train.lr=0.25"],
            &[
                ("zero_optimization", None),
                ("zero_optimization.stage", set(1.into())),
                ("optimizer.params", None),
                ("optimizer.params.lr", set(0.25.into())),
            ],
        ),
        (
            "disk.json",
            r#"{"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "nvme", "nvme_path": "/n", "buffer_count": 7}}}"#,
            &["parallel.strategy=zero3", "memory.offload_parameters=none"],
            &[("zero_optimization.stage", set(3.into()))],
        ),
        (
            "second.yaml",
            "distributed_type: FSDP\nnum_processes: 4\nfsdp_config:\n  fsdp_version: 2\n  fsdp_reshard_after_forward: true\n  \
             fsdp_transformer_layer_cls_to_wrap: MyLayer\nrdzv_backend: static\n",
            &["parallel.strategy=fsdp-grad-op"],
            &[("fsdp_config.fsdp_reshard_after_forward", set(false.into()))],
        ),
        (
            "small.yaml",
            "distributed_type: DEEPSPEED\nnum_processes: 2\ndeepspeed_config:\n  zero_stage: 2\n  gradient_clipping: 1.0e-07\n",
            &["parallel.strategy=zero3"],
            &[("deepspeed_config.zero_stage", set(3.into()))],
        ),
        (
            "kind.yaml",
            "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nnum_processes: 2\nfsdp_config:\n  \
             fsdp_sharding_strategy: FULL_SHARD\n  fsdp_backward_prefetch: BACKWARD_PRE\nrdzv_backend: c10d\n",
            &["parallel.strategy=zero1"],
            &[
                ("distributed_type", set("DEEPSPEED".into())),
                ("fsdp_config.fsdp_sharding_strategy", None),
                ("fsdp_config.fsdp_backward_prefetch", None),
                ("deepspeed_config.zero_stage", set(1.into())),
                ("deepspeed_config.gradient_accumulation_steps", set(1.into())),
                ("deepspeed_config.offload_optimizer_device", set("none".into())),
                ("deepspeed_config.offload_param_device", set("none".into())),
                ("deepspeed_config.zero3_init_flag", set(false.into())),
            ],
        ),
        // A scheduler takes the parameters of its own type alone.
        (
            "course.json",
            r#"{"optimizer": {"type": "AdamW", "params": {"lr": "auto"}}, "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": "auto",
                "warmup_max_lr": "auto", "warmup_num_steps": "auto", "total_num_steps": "auto"}}, "steps_per_print": 5}"#,
            &["train.lr_schedule=cosine", "train.lr_warmup_steps=3", "train.lr=0.5", "train.steps=18"],
            &[
                ("optimizer.params.lr", set(0.5.into())),
                ("scheduler.type", set("WarmupCosineLR".into())),
                ("scheduler.params.warmup_min_lr", None),
                ("scheduler.params.warmup_max_lr", None),
                ("scheduler.params.warmup_min_ratio", set(0.0.into())),
                ("scheduler.params.cos_min_ratio", set(0.0.into())),
                ("scheduler.params.warmup_num_steps", set(3.into())),
                ("scheduler.params.warmup_type", set("linear".into())),
                ("scheduler.params.total_num_steps", set(20.into())),
            ],
        ),
        (
            "lamb.json",
            r#"{"optimizer": {"type": "Lamb", "params": {"lr": 0.5, "max_coeff": 0.3}}, "seed": 3}"#,
            &["train.eps=0.25", "train.weight_decay=0.5"],
            &[
                ("optimizer.type", set("AdamW".into())),
                ("optimizer.params.max_coeff", None),
                ("optimizer.params.betas", set(serde_json::json!([0.9, 0.999]))),
                ("optimizer.params.eps", set(0.25.into())),
                ("optimizer.params.weight_decay", set(0.5.into())),
            ],
        ),
        // What overlaps stays as it is.
        (
            "overlap.json",
            r#"{"zero_optimization": {"stage": 3, "overlap_comm": true}, "seed": 3}"#,
            &["parallel.strategy=zero2"],
            &[("zero_optimization.stage", set(2.into()))],
        ),
        (
            "mesh.yaml",
            "distributed_type: FSDP\nnum_processes: 8\nfsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n  fsdp_backward_prefetch: \
             BACKWARD_PRE\n  fsdp_forward_prefetch: true\n  fsdp_transformer_layer_cls_to_wrap: MyLayer\n",
            &["parallel.tensor=2"],
            &[
                ("fsdp_config.fsdp_sharding_strategy", None),
                ("fsdp_config.fsdp_backward_prefetch", None),
                ("fsdp_config.fsdp_forward_prefetch", None),
                ("fsdp_config.fsdp_version", set(2.into())),
                ("fsdp_config.fsdp_reshard_after_forward", set(true.into())),
                ("parallelism_config.parallelism_config_tp_size", set(2.into())),
                ("parallelism_config.parallelism_config_cp_size", set(1.into())),
                ("parallelism_config.parallelism_config_dp_shard_size", set(4.into())),
                ("parallelism_config.parallelism_config_dp_replicate_size", set(1.into())),
            ],
        ),
        (
            "short.yaml",
            "distributed_type: FSDP\nnum_processes: 2\nfsdp_config:\n  sharding_strategy: FULL_SHARD\n  backward_prefetch: BACKWARD_PRE\n",
            &["parallel.strategy=fsdp-grad-op"],
            &[("fsdp_config.sharding_strategy", set("SHARD_GRAD_OP".into()))],
        ),
        (
            "odd.yaml",
            "distributed_type: MULTI_GPU\nnum_processes: 1\nmegatron_lm_config:\n  \"a: b\": 1\n  \"#x\": 2\n  \"\": 3\n  \"12\": 4\n",
            &[],
            &[],
        ),
        (
            "accelerate.json",
            r#"{"distributed_type": "FSDP", "num_processes": 4, "mixed_precision": "bf16", "fsdp_config": {"fsdp_sharding_strategy": "FULL_SHARD"}}"#,
            &["parallel.strategy=fsdp-grad-op"],
            &[("fsdp_config.fsdp_sharding_strategy", set("SHARD_GRAD_OP".into()))],
        ),
    ];
    for (name, file, changes, expected) in cases {
        let target = if file.contains("distributed_type") { Target::Accelerate } else { Target::DeepSpeed };
        let imported = cell(&draft(file, &options(&[MODEL, LENGTH])));
        let mut set = vec![MODEL, LENGTH];
        set.extend(*changes);
        let cell = cell(&draft(file, &options(&set)));
        let base = Base { source: name, bytes: file.as_bytes() };
        let made = onto(&cell, "here", target, &base).unwrap_or_else(|error| panic!("{name}: {error}"));
        let (mut before, mut after) = (keys_of(Target::Accelerate, file), keys_of(Target::Accelerate, &made.text));
        if name.ends_with(".json") {
            (before, after) = (keys_of(Target::DeepSpeed, file), keys_of(Target::DeepSpeed, &made.text));
        }
        for (key, value) in *expected {
            match value {
                Some(value) => drop(before.insert(key.to_string(), value.clone())),
                None => drop(before.remove(*key)),
            }
        }
        assert_eq!(after, before, "{name}: {}", made.text);
        assert_eq!(made.rows.is_empty(), imported == cell, "{name}: rows of what was changed: {:?}", made.rows);
        assert!(!made.text.contains(": 1e-7"), "a number to YAML 1.1, too: {}", made.text);
    }
    // What such a file has no key for is told.
    let file = r#"{"zero_optimization": {"stage": 2}, "gradient_clipping": 0.5}"#;
    let base = Base { source: "base.json", bytes: file.as_bytes() };
    let selective = cell_of(&config("zero2", "ranks = 4\n[memory]\ncheckpointing = \"selective\""));
    let made = onto(&selective, "here", Target::DeepSpeed, &base).unwrap();
    let row = made.rows.iter().find(|row| row.key == "memory.checkpointing");
    assert!(row.is_some_and(|row| row.verdict == Verdict::NoEquivalent), "{:?}", made.rows);

    let said = onto(
        &cell_of(&config("zero3", "ranks = 4")),
        "here",
        Target::DeepSpeed,
        &Base { source: "points.json", bytes: br#"{"zero_optimization": {"stage": 3}, "_a.b": 1}"# },
    );
    assert!(said.unwrap_err().to_string().contains("\"_a.b\""));
}
