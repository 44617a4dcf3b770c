//! There and back: a file becomes a cell and the cell the same file; what is imported runs; records are exported.

use super::{draft, fixture, options, row, text_of};
use crate::support::{run, stderr, stdout};
use serde_json::Value;
use std::path::Path;
use zbench_config::files::Files;
use zbench_config::{Context, Document, grid};
use zbench_suites::interop::export::{Exported, Target, export};
use zbench_suites::interop::{Draft, Options, Verdict, toml};

/// The cell of a draft, by way of its TOML.
pub fn cell(draft: &Draft) -> Value {
    let written = toml::written(draft, Path::new("out.toml"), 2).unwrap_or_else(|error| panic!("{error}"));
    cell_of(&written.text)
}

pub fn cell_of(text: &str) -> Value {
    let document = Document::parse(Path::new("out.toml"), text, &[]).unwrap_or_else(|error| panic!("{error}: {text}"));
    let cells = grid::expand(&document, &[], 1, &Context::new("".into(), 2), &mut Files::default()).unwrap();
    grid::plain(&cells[0].resolved.as_ref().expect("resolves").cell)
}

fn at<'v>(value: &'v Value, path: &str) -> Option<&'v Value> {
    path.split('.').try_fold(value, |value, name| value.get(name))
}

pub fn same(a: &Value, b: &Value) -> bool {
    match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => a == b,
        _ => a == b,
    }
}

/// Every used key of a file is in what its cell is exported to, with the same value.
fn round(name: &str, set: &[&str], target: Target, least: usize) {
    let imported = draft(&text_of(&fixture(name)), &options(set));
    let exported = export(&cell(&imported), name, target).unwrap();
    let back: Value = match target {
        Target::Accelerate => serde_saphyr::from_str(&exported.text).unwrap(),
        _ => serde_json::from_str(&exported.text).unwrap(),
    };
    let used: Vec<_> = imported.rows.iter().filter(|row| row.verdict == Verdict::Used).collect();
    assert!(used.len() >= least, "{name}: {} keys were used", used.len());
    for row in used {
        let found = at(&back, &row.key);
        assert!(
            found.is_some_and(|found| same(found, &row.value)),
            "{name}: {} is {} and came back as {found:?}",
            row.key,
            row.value
        );
    }
    // And the other way: what was written is read as the same cell.
    let again = draft(&exported.text, &options(set));
    assert_eq!(cell(&again), cell(&imported), "{name}");
}

pub const MODEL: &str = "model.preset=llama-tiny";
pub const LENGTH: &str = "train.seq_len=64";

#[test]
fn stage_2_with_loss_scaling_and_decay_round_trips() {
    round("stage2_fp16.json", &[MODEL, LENGTH], Target::DeepSpeed, 19);
}

#[test]
fn stage_3_with_optimizer_offload_round_trips() {
    round("stage3_offload.json", &[MODEL, LENGTH], Target::DeepSpeed, 15);
}

#[test]
fn a_full_stage_3_file_round_trips() {
    let file = text_of(&fixture("stage3_full.json"));
    for spec in zbench_suites::interop::keys::DEEPSPEED.iter() {
        let (_, name) = spec.parts();
        let is_gone = matches!(spec.fate, zbench_suites::interop::keys::Fate::Gone(_));
        assert!(is_gone || !name.starts_with("stage3_") || file.contains(name), "{} is not in the file", spec.key);
    }
    round("stage3_full.json", &[MODEL, LENGTH], Target::DeepSpeed, 15);
}

fn accelerate(strategy: &str, rest: &str) -> (Exported, Value) {
    let exported = export(&cell_of(&config(strategy, rest)), "here", Target::Accelerate).unwrap();
    let file = serde_saphyr::from_str(&exported.text).unwrap();
    (exported, file)
}

fn verdict_of(exported: &Exported, key: &str) -> Verdict {
    exported.rows.iter().find(|row| row.key == key).unwrap_or_else(|| panic!("no row {key}")).verdict
}

/// A machine is a shard group or it is not; there are never machines that the cell does not have.
#[test]
fn shard_groups_that_are_no_machines_are_a_mesh() {
    let sizes = |file: &Value| {
        let of = |name: &str| file["parallelism_config"][format!("parallelism_config_{name}_size")].as_u64();
        ["dp_replicate", "dp_shard", "tp"].map(of)
    };
    let cases = [
        ("ranks = 16\nranks_per_node = 8\nshard = 4", 2, [Some(4), Some(4), Some(1)]),
        ("ranks = 16\nranks_per_node = 4\nshard = 8", 4, [Some(2), Some(8), Some(1)]),
        ("ranks = 16\nranks_per_node = 8\nshard = 2\ntensor = 2", 2, [Some(4), Some(2), Some(2)]),
        ("ranks = 16\nranks_per_node = 8\nshard = 8", 2, [None; 3]),
    ];
    for (parallel, machines, mesh) in cases {
        let (exported, file) = accelerate("hsdp", parallel);
        assert_eq!(file["num_machines"], machines, "{parallel}");
        assert_eq!(sizes(&file), mesh, "{parallel}");
        assert_eq!(file["fsdp_config"]["fsdp_version"], if mesh[0].is_some() { 2 } else { 1 }, "{parallel}");
        assert_eq!(verdict_of(&exported, "parallel.shard"), Verdict::Used);
        let again = cell(&draft(&exported.text, &options(&[MODEL, "train.seq_len=32"])));
        let cell = cell_of(&config("hsdp", parallel));
        for key in ["strategy", "ranks", "ranks_per_node", "shard", "tensor"] {
            assert_eq!(again["parallel"][key], cell["parallel"][key], "{parallel}: {key}");
        }
    }
}

#[test]
fn a_norm_of_0_is_lost_on_the_way_through_accelerate_and_that_is_said() {
    for (norm, verdict) in [("0.0", Verdict::NoEquivalent), ("0.5", Verdict::Used)] {
        let text = config("zero2", "ranks = 8").replace("micro_batch", &format!("clip_norm = {norm}\nmicro_batch"));
        let exported = export(&cell_of(&text), "here", Target::Accelerate).unwrap();
        assert_eq!(verdict_of(&exported, "train.clip_norm"), verdict, "{norm}");
        assert_eq!(exported.text.contains("gradient_clipping"), verdict == Verdict::Used, "{}", exported.text);
        assert_eq!(exported.notes.iter().any(|note| note.contains("clips at 1.0")), verdict != Verdict::Used);
    }
}

#[test]
fn types_that_mixed_precision_does_not_have_are_no_default() {
    let cases = [
        ("preset = \"f32\"", "no", Verdict::Default),
        ("preset = \"f32\"\nreduce = \"bf16\"", "no", Verdict::NoEquivalent),
        ("preset = \"fsdp-mixed\"", "bf16", Verdict::Default),
        ("preset = \"fsdp-mixed\"\nreduce = \"f32\"", "bf16", Verdict::NoEquivalent),
    ];
    for (precision, word, verdict) in cases {
        let (exported, file) = accelerate("fsdp", &format!("ranks = 8\n[precision]\n{precision}\n"));
        assert_eq!(file["mixed_precision"], word, "{precision}");
        assert_eq!(verdict_of(&exported, "precision.reduce"), verdict, "{precision}");
    }
}

#[test]
fn a_full_shard_file_of_accelerate_round_trips() {
    round("fsdp_full_shard.yaml", &[MODEL, LENGTH, "checkpoint.dir=out"], Target::Accelerate, 8);
}

/// A configuration without grid of these strategy and settings.
pub fn config(strategy: &str, rest: &str) -> String {
    format!(
        "[model]\npreset = \"llama-tiny\"\n[train]\nseq_len = 32\nmicro_batch = 2\n[parallel]\nstrategy = \"{strategy}\"\n{rest}"
    )
}

#[test]
fn every_strategy_is_written_for_every_program() {
    let strategies = [
        ("ddp", "ranks = 8"),
        ("zero1", "ranks = 8"),
        ("zero2", "ranks = 8"),
        ("zero3", "ranks = 8\ntensor = 2"),
        ("fsdp", "ranks = 8"),
        ("fsdp-grad-op", "ranks = 8"),
        ("hsdp", "ranks = 8\nshard = 4"),
        ("hsdp-full-optimizer", "ranks = 8\nshard = 4"),
        ("zero++", "ranks = 8\nshard = 4"),
    ];
    for (strategy, rest) in strategies {
        let cell = cell_of(&config(strategy, rest));
        for target in [Target::DeepSpeed, Target::Accelerate, Target::Torchtitan] {
            let exported = match export(&cell, "here", target) {
                Ok(exported) => exported,
                Err(error) => {
                    assert!(strategy == "zero++" && target == Target::Accelerate, "{strategy}: {error}");
                    assert!(error.to_string().contains("--to deepspeed"), "{error}");
                    continue;
                }
            };
            reads(&exported, target);
            let row = exported.rows.iter().find(|row| row.key == "parallel.strategy").expect("a row for the strategy");
            assert!(!row.becomes.is_empty(), "{strategy} for {}", target.name());
            for row in &exported.rows {
                assert!(row.reason.ends_with('.'), "{strategy}: {}: {:?}", row.key, row.reason);
            }
        }
        // What DeepSpeed has as well comes back as it was.
        if !matches!(strategy, "fsdp-grad-op" | "hsdp-full-optimizer") {
            let exported = export(&cell, "here", Target::DeepSpeed).unwrap();
            let ranks = Options { ranks: Some(8), ..options(&[MODEL, "train.seq_len=32"]) };
            let made = draft(&exported.text, &ranks);
            let wanted = if strategy == "fsdp" { "zero3" } else { strategy };
            assert_eq!(made.setting("parallel.strategy").and_then(|value| value.as_str()), Some(wanted));
        }
    }
}

/// The text is one of its language.
fn reads(exported: &Exported, target: Target) {
    match target {
        Target::DeepSpeed => drop(serde_json::from_str::<Value>(&exported.text).unwrap()),
        Target::Accelerate => drop(serde_saphyr::from_str::<Value>(&exported.text).unwrap()),
        Target::Torchtitan => {
            drop(exported.text.parse::<::toml::Table>().unwrap_or_else(|e| panic!("{e}: {}", exported.text)))
        }
    }
}

#[test]
fn torchtitan_has_its_flavors_degrees_and_course() {
    let text = "[model]\npreset = \"llama3-8b\"\n[train]\nseq_len = 4096\nmicro_batch = 2\naccumulation = 4\nlr_schedule = \"cosine\"\nlr = 4e-4\n\
                lr_min = 4e-5\nlr_warmup_steps = 10\nsteps = 98\nuntimed_steps = 2\nclip_norm = 1.0\n[parallel]\nstrategy = \"hsdp\"\nranks = 16\nshard = 8\n\
                [precision]\npreset = \"f32\"\ncompute = \"bf16\"\n[memory]\ncheckpointing = \"full\"\n[hardware]\nprofile = \"a100-80gb-sxm\"\n";
    let text = if zbench_estimate::profile::profile("a100-80gb-sxm").is_ok() {
        text.to_string()
    } else {
        text.replace("[hardware]\nprofile = \"a100-80gb-sxm\"\n", "")
    };
    let exported = export(&cell_of(&text), "here", Target::Torchtitan).unwrap();
    let table: ::toml::Table = exported.text.parse().unwrap();
    let get = |section: &str, key: &str| table[section][key].to_string();
    let wanted = [
        ("model", "name", "\"llama3\""),
        ("model", "flavor", "\"8B\""),
        ("training", "local_batch_size", "2"),
        ("training", "global_batch_size", "128"),
        ("training", "steps", "100"),
        ("training", "mixed_precision_param", "\"bfloat16\""),
        ("parallelism", "data_parallel_replicate_degree", "2"),
        ("parallelism", "data_parallel_shard_degree", "8"),
        ("parallelism", "fsdp_reshard_after_forward", "\"always\""),
        ("lr_scheduler", "decay_type", "\"cosine\""),
        ("activation_checkpoint", "mode", "\"full\""),
    ];
    for (section, key, value) in wanted {
        assert_eq!(get(section, key), value, "{section}.{key}");
    }
    let factor: f64 = get("lr_scheduler", "min_lr_factor").parse().unwrap();
    assert!((factor - 0.1).abs() < 1e-12, "{factor}");
}

/// A file of another program that gives updates other rates than the cell has says so: of each steps of the course, whether with a
/// warm-up alone, a decay alone and both.
#[test]
fn an_export_tells_whether_every_update_keeps_its_rate() {
    let courses = ["lr_warmup_steps = 3", "lr_schedule = \"linear\"", "lr_schedule = \"cosine\"\nlr_warmup_steps = 3"];
    for (target, steps, kept) in [
        (Target::DeepSpeed, "deepspeed", [true, true, true]),
        (Target::DeepSpeed, "transformers", [false, false, false]),
        (Target::DeepSpeed, "from-one", [false, false, false]),
        (Target::Torchtitan, "deepspeed", [false, false, false]),
        (Target::Torchtitan, "transformers", [false, true, false]),
        (Target::Torchtitan, "from-one", [true, false, false]),
    ] {
        for (course, kept) in courses.into_iter().zip(kept) {
            let text = config("ddp", "ranks = 2")
                .replace("[parallel]", &format!("{course}\nlr_steps = \"{steps}\"\n[parallel]"));
            let exported = export(&cell_of(&text), "here", target).unwrap();
            let expected = if kept { Verdict::Default } else { Verdict::NoEquivalent };
            assert_eq!(verdict_of(&exported, "train.lr_steps"), expected, "{}: {steps}: {course}", target.name());
        }
    }
}

#[test]
fn a_hugging_face_config_becomes_its_model() {
    let llama = r#"{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256, "rms_norm_eps": 1e-5, "torch_dtype": "bfloat16", "use_cache": true, "hidden_act": "silu"}"#;
    let made = draft(llama, &options(&["train.seq_len=32"]));
    let cell = cell(&made);
    let read = zbench_engine::formats::hf::model_from_hf(llama, "here").unwrap();
    assert_eq!(cell["model"], serde_json::to_value(&read).unwrap());
    assert_eq!(row(&made, "hidden_size").verdict, Verdict::Used);
    assert_eq!(row(&made, "hidden_act").verdict, Verdict::Default);
    assert_eq!(row(&made, "torch_dtype").verdict, Verdict::Ignored);
    // Every preset's own file is read as that model, and keys that say nothing are left out.
    for name in ["gpt2", "qwen3-0.6b", "mixtral-8x7b", "falcon-7b"] {
        let preset = format!("[model]\npreset = \"{name}\"\n[train]\nseq_len = 16\n");
        let document = Document::parse(Path::new("out.toml"), &preset, &[]).unwrap();
        let cells = grid::expand(&document, &[], 1, &Context::new("".into(), 2), &mut Files::default()).unwrap();
        let model = &cells[0].resolved.as_ref().unwrap().cell.model;
        let config = zbench_engine::formats::hf::config_json(model, zbench_kernels::DType::F32, None);
        let made = draft(&config, &options(&["train.seq_len=16"]));
        assert_eq!(self::cell(&made)["model"], serde_json::to_value(model).unwrap(), "{name}");
    }
}

/// GPT-2 as transformers publishes it trains with dropout, which zbench has in adapters alone.
#[test]
fn dropout_of_a_model_is_told_and_not_refused() {
    let gpt2 = r#"{"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 64, "vocab_size": 256, "attn_pdrop": 0.1,
        "embd_pdrop": 0.1, "resid_pdrop": 0.0, "summary_first_dropout": 0.1, "activation_function": "gelu_new"}"#;
    let made = draft(gpt2, &options(&["train.seq_len=16"]));
    let without = zbench_engine::formats::hf::model_from_hf_without_dropout(gpt2, "here").unwrap();
    assert_eq!(cell(&made)["model"], serde_json::to_value(&without).unwrap());
    for (key, verdict) in [
        ("attn_pdrop", Verdict::NoEquivalent),
        ("embd_pdrop", Verdict::NoEquivalent),
        ("resid_pdrop", Verdict::Default),
        ("summary_first_dropout", Verdict::Ignored),
    ] {
        assert_eq!(row(&made, key).verdict, verdict, "{key}");
    }
    let mpt = r#"{"model_type": "mpt", "d_model": 64, "n_heads": 4, "n_layers": 2, "vocab_size": 256, "attn_config": {"attn_pdrop": 0.2, "alibi": true}}"#;
    assert_eq!(row(&draft(mpt, &options(&["train.seq_len=16"])), "attn_config").verdict, Verdict::NoEquivalent);
}

#[test]
fn what_is_imported_runs_and_its_record_is_exported() {
    let folder = tempfile::tempdir().unwrap();
    let notebook = folder.path().join("notebook");
    let out = folder.path().join("run.toml");
    let out = out.to_str().unwrap();
    let file = fixture("stage2_fp16.json");
    let import = [
        "import",
        file.to_str().unwrap(),
        "--model",
        "llama-tiny",
        "--set",
        "train.seq_len=16",
        "--set",
        "train.steps=2",
        "--set",
        "hardware.threads_per_rank=1",
        "-o",
        out,
    ];
    let made = run(&notebook, &import);
    assert_eq!(made.status.code(), Some(0), "{}", stderr(&made));
    assert!(
        stdout(&made).contains("no equivalent") && stderr(&made).contains(&format!("zbench run {out}")),
        "{}",
        stderr(&made)
    );
    assert!(!notebook.exists(), "an import leaves nothing in the notebook");
    // A file that is there stays as it is.
    let again = run(&notebook, &import);
    assert_eq!(again.status.code(), Some(1));
    assert!(stderr(&again).contains("--force"), "{}", stderr(&again));
    assert_eq!(run(&notebook, &[&import[..], &["--force"]].concat()).status.code(), Some(0));

    let ran = run(&notebook, &["run", out, "--format", "json"]);
    assert_eq!(ran.status.code(), Some(0), "{}", stderr(&ran));
    let record: Value = serde_json::from_str(stdout(&ran).trim()).unwrap();
    let settings = [
        ("parallel.strategy", "\"zero2\""),
        ("parallel.ranks", "4"),
        ("train.micro_batch", "2"),
        ("train.accumulation", "4"),
        ("train.lr", "5e-5"),
        ("train.betas", "[0.9,0.98]"),
        ("train.clip_norm", "1.0"),
        ("train.lr_schedule", "\"linear\""),
        ("precision.compute", "\"f16\""),
        ("precision.gradients", "\"f16\""),
        ("precision.master", "\"f32\""),
        ("precision.scaling.dynamic.initial_scale_power", "12"),
        ("precision.scaling.dynamic.hysteresis", "3"),
    ];
    for (key, value) in settings {
        let wanted: Value = serde_json::from_str(value).unwrap();
        assert_eq!(at(&record["cell"], key), Some(&wanted), "{key}");
    }
    let id = record["id"].as_str().unwrap();
    let exported = run(&notebook, &["export", &id[..8], "--to", "deepspeed"]);
    assert_eq!(exported.status.code(), Some(0), "{}", stderr(&exported));
    let file: Value = serde_json::from_str(&stdout(&exported)).unwrap();
    assert_eq!((&file["zero_optimization"]["stage"], &file["train_batch_size"]), (&Value::from(2), &Value::from(32)));
    assert!(stderr(&exported).contains("parallel.strategy"), "the table is on standard error");
    the_best_is_fast_valid_and_right(folder.path(), &record);
    let both = run(&notebook, &["export", "best", "--to", "deepspeed", "--bundle", "x.jsonl"]);
    assert_eq!(both.status.code(), Some(1), "{}", stderr(&both));
    let unnamed = run(&notebook, &["export", "--to", "deepspeed"]);
    assert_eq!(unnamed.status.code(), Some(1), "{}", stderr(&unnamed));
}

/// Four records made of one: the fastest is flagged, the next trained otherwise, the third is slower and right.
fn the_best_is_fast_valid_and_right(folder: &Path, record: &Value) {
    let notebook = folder.join("four");
    std::fs::create_dir(&notebook).unwrap();
    let mut lines = String::new();
    for (at, (speed, flags, verdict)) in
        [(400.0, "throttled", "identical"), (300.0, "", "failed"), (200.0, "", "identical"), (100.0, "", "none")]
            .into_iter()
            .enumerate()
    {
        let mut one = record.clone();
        one["id"] = format!("{at}{}", &record["id"].as_str().unwrap()[1..]).into();
        one["trial"] = (at + 1).into();
        one["metrics"]["tokens_per_second"] = speed.into();
        one["validity"] = if flags.is_empty() { serde_json::json!([]) } else { serde_json::json!([flags]) };
        one["parity"]["verdict"] = verdict.into();
        one["cell"]["train"]["seed"] = (at + 7).into();
        lines += &format!("{one}\n");
    }
    std::fs::write(notebook.join("records.jsonl"), lines).unwrap();
    for what in [&["best"][..], &["best", "parallel.strategy=zero2"]] {
        let exported = run(&notebook, &[&["export"][..], what, &["--to", "deepspeed"]].concat());
        assert_eq!(exported.status.code(), Some(0), "{what:?}: {}", stderr(&exported));
        let file: Value = serde_json::from_str(&stdout(&exported)).unwrap();
        assert_eq!(file["seed"], 9, "the third");
    }
    let none = run(&notebook, &["export", "best", "parallel.strategy=ddp", "--to", "deepspeed"]);
    assert_eq!(none.status.code(), Some(4), "{}", stderr(&none));
}

#[test]
fn what_cannot_run_is_a_plan_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("plan.toml");
    let (out, file) = (out.to_str().unwrap(), fixture("stage3_offload.json"));
    let gpu = ["--set", "hardware.profile=a100-80gb", "--set", "memory.loss=logits"];
    let made = run(
        folder.path(),
        &[
            &["import", file.to_str().unwrap(), "--model", "llama-tiny", "--set", "train.seq_len=32", "-o", out],
            &gpu[..],
        ]
        .concat(),
    );
    assert_eq!(made.status.code(), Some(0), "{}", stderr(&made));
    let said = stderr(&made);
    for fragment in ["it can be priced and not run", "memory.loss", &format!("zbench plan {out}")] {
        assert!(said.contains(fragment), "no {fragment:?} in {said}");
    }
    let plan = run(folder.path(), &["plan", out, "--format", "json"]);
    assert_eq!(plan.status.code(), Some(0), "{}", stderr(&plan));
    let import = ["import", file.to_str().unwrap(), "--model", "llama-tiny", "--format", "json", "-q"];
    let lines = run(folder.path(), &[&import[..], &gpu].concat());
    let lines: Vec<Value> =
        stdout(&lines).lines().map(|line| serde_json::from_str(line).expect("an object a line")).collect();
    let (last, keys) = lines.split_last().unwrap();
    assert_eq!(last["runs"], false);
    assert!(last["reasons"][0].as_str().unwrap().contains("priced"));
    assert!(last["toml"].as_str().unwrap().contains("offload_optimizer = \"host\""));
    assert!(keys.iter().all(|key| key["verdict"].is_string() && key["line"].is_u64() && key["reason"].is_string()));
    // The priced cell is exported like any other.
    let back = run(folder.path(), &["export", out, "--to", "deepspeed"]);
    assert_eq!(back.status.code(), Some(0), "{}", stderr(&back));
    assert!(stdout(&back).contains("\"device\": \"cpu\""), "{}", stdout(&back));
}

#[test]
fn a_folder_is_a_model_with_its_weights_or_its_sizes() {
    let folder = tempfile::tempdir().unwrap();
    let config = r#"{"model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 64}"#;
    std::fs::write(folder.path().join("config.json"), config).unwrap();
    let of = |folder: &Path| Options { model: Some(folder.display().to_string()), ..options(&["train.seq_len=16"]) };
    let made = draft("{\"zero_optimization\": {\"stage\": 3}}", &of(folder.path()));
    assert_eq!(made.setting("model.hidden_size").and_then(|value| value.as_integer()), Some(32));
    assert_eq!(cell(&made)["model"]["num_hidden_layers"], 1);
    std::fs::write(folder.path().join("model.safetensors"), b"").unwrap();
    let made = draft("{\"zero_optimization\": {\"stage\": 3}}", &of(folder.path()));
    assert!(made.setting("model.path").is_some());
}
