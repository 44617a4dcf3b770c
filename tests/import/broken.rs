//! Files that are wrong: each is answered by exit 1 and an error that names file, key and what to write instead.

use crate::support::{run, stderr};
use std::path::Path;

/// What it is, the text, and what the error has beside the file's name: place, key, fix.
const BROKEN: &[(&str, &str, &[&str])] = &[
    ("empty", "", &["is empty", "name one of those"]),
    ("blank", " \n\t\n", &["is empty"]),
    ("a_number", "42", &["no keys", "zero_optimization"]),
    ("a_text", "\"train_batch_size\"", &["no keys"]),
    ("a_list", "[1, 2]", &["no keys"]),
    (
        "nothing_known",
        "{\"colour\": \"red\"}",
        &["no configuration that zbench reads", "distributed_type", "model_type"],
    ),
    ("nothing_known_yaml", "colour: red\n", &["no configuration that zbench reads"]),
    ("toml", "[train]\nsteps = 3\n", &["is TOML", "zbench run"]),
    ("cut_off", "{\"train_batch_size\": 8", &[":1:23", "end of the file", "comma or `}`"]),
    ("comma_at_the_end", "{\"model_type\": \"llama\",\n}", &[":2:1", "comma in front of `}`", "take it out"]),
    ("no_comma", "{\"train_batch_size\": 8 \"seed\": 1}", &[":1:24", "where a comma or `}` belongs"]),
    ("no_comma_in_json", "{\"model_type\": \"llama\"\n\"hidden_size\": 64}", &[":2:1", "where a comma or `}` belongs"]),
    ("comment_in_json", "{ // of mine\n\"model_type\": \"llama\"}", &[":1:3", "no comments"]),
    ("two_commas", "{\"train_batch_size\": 8,, \"seed\": 1}", &[":1:24", "where a key"]),
    ("bare_text", "{zero_optimization: {stage: two}}", &["zero_optimization.stage", "double quotes"]),
    ("several_lines", "{\"optimizer\": {\"type\": '''AdamW'''}}", &["optimizer.type", "several lines"]),
    ("comment_without_end", "{\n  /* eight\n  \"train_batch_size\": 8}", &[":3:25", "end of the file"]),
    ("single_quotes", "{'model_type': 'llama'}", &[":1:2", "double quotes"]),
    ("single_quote_open", "{'train_batch_size: 8}", &["ends inside a text", "single quote"]),
    ("python_true", "{\"fp16\": {\"enabled\": True}}", &["fp16.enabled", "Python's", "write true"]),
    ("python_none", "{\"seed\": None}", &["seed", "write null"]),
    ("nan", "{\"gradient_clipping\": NaN}", &["gradient_clipping", "finite"]),
    ("infinity", "{\"gradient_clipping\": -Infinity}", &["gradient_clipping", "finite"]),
    ("too_large", "{\"gradient_clipping\": 1e999}", &["gradient_clipping", "too large", "finite"]),
    ("leading_zero", "{\"seed\": 007}", &["seed", "is no number"]),
    ("bare_word", "{\"optimizer\": {\"type\": AdamW}}", &["optimizer.type", "double quotes"]),
    ("twice", "{\n \"seed\": 1,\n \"seed\": 2}", &[":3:2", "seed", "twice, first in line 2", "keep one"]),
    ("twice_within", "{\"fp16\": {\"enabled\": true,\n\"enabled\": false}}", &[":2:1", "fp16.enabled", "twice"]),
    ("more_behind", "{\"seed\": 1} {\"seed\": 2}", &["goes on after", "write one value"]),
    ("line_in_text", "{\"optimizer\": {\"type\": \"Adam\nW\"}}", &["optimizer.type", "end of its line"]),
    ("escape", "{\"optimizer\": {\"type\": \"Adam\\q\"}}", &["optimizer.type", "escape"]),
    (
        "zero_typo",
        "{\"zero_optimisation\": {\"stage\": 2}}",
        &[":1:2", "zero_optimisation", "did you mean zero_optimization?"],
    ),
    (
        "stage_typo",
        "{\n  \"zero_optimization\": {\n    \"stge\": 2\n  }\n}",
        &[":3:5", "zero_optimization.stge", "did you mean stage?"],
    ),
    (
        "key_in_wrong_section",
        "{\"fp16\": {\"enabled\": true, \"gradient_clipping\": 1.0}}",
        &["fp16.gradient_clipping", "or write it as gradient_clipping"],
    ),
    (
        "stage_four",
        "{\"zero_optimization\": {\"stage\": 4}}",
        &["zero_optimization.stage", "4 is no stage", "0, 1, 2 or 3"],
    ),
    ("stage_half", "{\"zero_optimization\": {\"stage\": 1.5}}", &["zero_optimization.stage", "a number (1.5)"]),
    ("zero_true", "{\"zero_optimization\": true}", &["zero_optimization", "deprecated", "\"stage\": 1"]),
    ("zero_number", "{\"zero_optimization\": 3}", &["zero_optimization", "write a table"]),
    ("section_auto", "{\"optimizer\": \"auto\"}", &["optimizer", "write a table"]),
    ("flag_number", "{\"fp16\": {\"enabled\": 1}}", &["fp16.enabled", "write true or false"]),
    (
        "negative_batch",
        "{\"train_micro_batch_size_per_gpu\": -1}",
        &["train_micro_batch_size_per_gpu", "-1 is too small"],
    ),
    ("zero_batch", "{\"train_batch_size\": 0}", &["train_batch_size", "0 is too small"]),
    ("batch_text", "{\"train_batch_size\": \"many\"}", &["train_batch_size", "write a whole number"]),
    (
        "one_beta",
        "{\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"betas\": [0.9]}}}",
        &["optimizer.params.betas", "two numbers"],
    ),
    (
        "beta_of_one",
        "{\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"betas\": [0.9, 1.0]}}}",
        &["optimizer.params.betas", "train.betas", "outside [0, 1)"],
    ),
    (
        "device_typo",
        "{\"zero_optimization\": {\"stage\": 3, \"offload_param\": {\"device\": \"gpu\"}}}",
        &["offload_param.device", "\"cpu\"", "did you mean"],
    ),
    ("optimizer_typo", "{\"optimizer\": {\"type\": \"AdmaW\"}}", &["optimizer.type", "did you mean \"AdamW\"?"]),
    ("scheduler_typo", "{\"scheduler\": {\"type\": \"WarmupDecay\"}}", &["scheduler.type", "did you mean"]),
    ("no_optimizer", "{\"optimizer\": {\"params\": {\"lr\": 0.1}}}", &["optimizer.params.lr", "optimizer.type"]),
    (
        "no_scheduler",
        "{\"scheduler\": {\"params\": {\"warmup_num_steps\": 3}}}",
        &["scheduler.params.warmup_num_steps", "scheduler.type"],
    ),
    (
        "no_total",
        "{\"scheduler\": {\"type\": \"WarmupDecayLR\"}}",
        &["scheduler.type", "total_num_steps", "write a number"],
    ),
    ("both_halves", "{\"fp16\": {\"enabled\": true}, \"bf16\": {\"enabled\": true}}", &["bf16.enabled", "keep one"]),
    (
        "product",
        "{\"train_batch_size\": 10, \"train_micro_batch_size_per_gpu\": 4, \"gradient_accumulation_steps\": 2}",
        &["train_batch_size", "train_micro_batch_size_per_gpu 4", "gradient_accumulation_steps 2", "--ranks"],
    ),
    (
        "product_of_two",
        "{\"train_batch_size\": 10, \"train_micro_batch_size_per_gpu\": 4}",
        &["train_batch_size", "multiple", "change one of them"],
    ),
    (
        "cpu_offload",
        "{\"zero_optimization\": {\"stage\": 2, \"cpu_offload\": true}}",
        &["cpu_offload", "deprecated", "offload_optimizer"],
    ),
    (
        "cpu_offload_param",
        "{\"zero_optimization\": {\"stage\": 3, \"cpu_offload_param\": true}}",
        &["cpu_offload_param", "deprecated", "offload_param"],
    ),
    (
        "pin_memory",
        "{\"zero_optimization\": {\"stage\": 3, \"cpu_offload_use_pin_memory\": true}}",
        &["cpu_offload_use_pin_memory", "deprecated", "pin_memory"],
    ),
    ("bfloat16", "{\"bfloat16\": {\"enabled\": true}, \"seed\": 1}", &["bfloat16", "deprecated", "write bf16"]),
    (
        "max_grad_norm",
        "{\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"max_grad_norm\": 1}}}",
        &["max_grad_norm", "deprecated", "gradient_clipping"],
    ),
    (
        "nvme_without_path",
        "{\"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": {\"device\": \"nvme\"}}}",
        &["offload_optimizer.device", "nvme_path"],
    ),
    (
        "states_alone",
        "{\"bf16\": {\"enabled\": true, \"bf16_optimizer_states\": true}}",
        &["bf16_optimizer_states", "bf16_master_weights_and_grads"],
    ),
    (
        "one_bit_with_zero",
        "{\"zero_optimization\": {\"stage\": 1}, \"optimizer\": {\"type\": \"OneBitAdam\"}}",
        &["optimizer.type", "ZeRO", "stage 0"],
    ),
    (
        "amp_with_zero",
        "{\"zero_optimization\": {\"stage\": 1}, \"amp\": {\"enabled\": true}}",
        &["amp.enabled", "stage 0"],
    ),
    (
        "sequence_beside_ranks",
        "{\"train_batch_size\": 8, \"train_micro_batch_size_per_gpu\": 3, \"sequence_parallel_size\": 2}",
        &["train_batch_size", "not a multiple"],
    ),
    (
        "master_alone",
        "{\"zero_optimization\": {\"stage\": 2}, \"fp16\": {\"enabled\": true, \"fp16_master_weights_and_grads\": true}}",
        &["fp16.fp16_master_weights_and_grads", "offload_optimizer"],
    ),
    (
        "master_of_bf16_alone",
        "{\"zero_optimization\": {\"stage\": 2}, \"bf16\": {\"enabled\": true, \"bf16_master_weights_and_grads\": true}}",
        &["bf16.bf16_master_weights_and_grads", "offload_optimizer", "bf16_optimizer_states"],
    ),
    (
        "master_without_zero",
        "{\"bf16\": {\"enabled\": true, \"bf16_master_weights_and_grads\": true, \"bf16_optimizer_states\": true}}",
        &["bf16.bf16_master_weights_and_grads", "zero_optimization.stage"],
    ),
    (
        "hpz_and_mics",
        "{\"zero_optimization\": {\"stage\": 3, \"mics_shard_size\": 4, \"zero_hpz_partition_size\": 4}}",
        &["mics_shard_size", "keep one"],
    ),
    ("yaml_indent", "distributed_type: FSDP\n  num_processes: 8\n", &["not YAML"]),
    ("yaml_tab", "distributed_type: FSDP\nfsdp_config:\n\tfsdp_version: 1\n", &["not YAML"]),
    ("yaml_nan", "distributed_type: FSDP\nnum_processes: .nan\n", &["finite"]),
    ("yaml_no_type", "compute_environment: LOCAL_MACHINE\nnum_processes: 8\n", &["distributed_type", "is missing"]),
    ("yaml_type", "distributed_type: FSDB\n", &[":1:19", "distributed_type", "did you mean \"FSDP\"?"]),
    ("yaml_tpu", "distributed_type: TPU\n", &["distributed_type", "does not read", "MEGATRON_LM"]),
    (
        "neox",
        "{\"pipe_parallel_size\": 1, \"bf16\": {\"enabled\": True}}",
        &["GPT-NeoX's own file", "parallel.pipeline"],
    ),
    (
        "axolotl",
        "base_model: org/model\nsequence_len: 4096\nfsdp_config:\n  reshard_after_forward: true\n",
        &["axolotl's own file", "distributed_type: FSDP"],
    ),
    (
        "yaml_sagemaker",
        "compute_environment: AMAZON_SAGEMAKER\ndistributed_type: FSDP\n",
        &["compute_environment", "LOCAL_MACHINE"],
    ),
    (
        "yaml_strategy",
        "distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: FULL_SHRAD\n",
        &[":3:27", "fsdp_config.fsdp_sharding_strategy", "did you mean \"FULL_SHARD\"?"],
    ),
    (
        "yaml_key",
        "distributed_type: FSDP\nfsdp_config:\n  fsdp_shardin_strategy: FULL_SHARD\n",
        &[":3:3", "fsdp_config.fsdp_shardin_strategy", "did you mean fsdp_sharding_strategy?"],
    ),
    (
        "yaml_top_key",
        "distributed_type: FSDP\nnum_proceses: 8\n",
        &[":2:1", "num_proceses", "did you mean num_processes?"],
    ),
    (
        "yaml_flag",
        "distributed_type: FSDP\nfsdp_config:\n  fsdp_offload_params: sometimes\n",
        &["fsdp_config.fsdp_offload_params", "write true or false"],
    ),
    (
        "yaml_both_names",
        "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 1\n  version: 2\n",
        &["fsdp_config.version", "keep one"],
    ),
    (
        "yaml_version",
        "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 3\n",
        &["fsdp_config.fsdp_version", "write 1 or 2"],
    ),
    (
        "yaml_reshard_word",
        "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n  fsdp_reshard_after_forward: FULL_SHARD\n",
        &["fsdp_config.fsdp_reshard_after_forward", "write true or false"],
    ),
    (
        "yaml_forward_prefetch",
        "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n  fsdp_forward_prefetch: true\n",
        &["fsdp_config.fsdp_forward_prefetch", "fsdp_version: 1"],
    ),
    (
        "yaml_machines",
        "distributed_type: FSDP\nnum_processes: 9\nnum_machines: 2\n",
        &["num_machines", "do not divide", "--ranks"],
    ),
    (
        "yaml_deepspeed_file",
        "distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_config_file: ds.json\n",
        &["deepspeed_config_file", "zbench import ds.json"],
    ),
    (
        "yaml_deepspeed_stage",
        "distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 5\n",
        &["deepspeed_config.zero_stage", "0, 1, 2 or 3"],
    ),
    (
        "yaml_offload_no_shard",
        "distributed_type: FSDP\nnum_processes: 4\nfsdp_config:\n  fsdp_sharding_strategy: NO_SHARD\n  fsdp_offload_params: true\n",
        &["fsdp_config.fsdp_offload_params", "memory.offload_parameters", "zero3"],
    ),
    (
        "yaml_nvme_without_path",
        "distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 3\n  offload_param_device: nvme\n  offload_param_nvme_path: none\n",
        &["deepspeed_config.offload_param_device", "without offload_param_nvme_path", "write the folder"],
    ),
    (
        "yaml_clipping_word",
        "distributed_type: DEEPSPEED\ndeepspeed_config:\n  gradient_clipping: much\n",
        &[":3:22", "deepspeed_config.gradient_clipping", "a number from 0, or \"none\""],
    ),
    (
        "yaml_stage_auto",
        "distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: auto\n",
        &["deepspeed_config.zero_stage", "write a whole number"],
    ),
    ("axolotl", "base_model: some/model\nadapter: qlora\n", &["axolotl", "fsdp_config"]),
    (
        "template",
        "{\"zero_optimization\": {\"stage\": ${stage}}, \"a\": {{ b }}}",
        &["template with 2 placeholders", "${stage}"],
    ),
    (
        "two_at_once",
        "{\"curriculum_learning\": {\"enabled\": true}, \"optimizer\": {\"type\": \"Adam\", \"params\": {\"max_grad_norm\": 1.0}}}",
        &["optimizer.params.max_grad_norm", ":1:2: curriculum_learning: is refused by DeepSpeed 0.19.8"],
    ),
    ("hf_family", "{\"model_type\": \"whisper\"}", &["model_type", "docs/families.md", "family = \"custom\""]),
    ("hf_no_family", "{\"architectures\": [\"LlamaForCausalLM\"]}", &["model_type", "is missing"]),
    ("hf_size", "{\"model_type\": \"llama\", \"hidden_size\": \"wide\"}", &["hidden_size", "whole number"]),
    (
        "hf_heads",
        "{\"model_type\": \"llama\", \"hidden_size\": 30, \"num_attention_heads\": 4}",
        &["num_attention_heads", "does not divide"],
    ),
    (
        "hf_method",
        "{\"model_type\": \"llama\", \"quantization_config\": {\"quant_method\": \"gptq\"}}",
        &[":1:25: quantization_config.quant_method: \"gptq\" (zbench has bitsandbytes"],
    ),
    (
        "hf_blocks",
        "{\"model_type\": \"lfm2\", \"num_hidden_layers\": 2, \"layer_types\": [\"conv\", \"full_attention\"]}",
        &["layer_types: 1 of 2 blocks have conv, which zbench does not price; no keys of [model] describe that"],
    ),
    (
        "titan_moved",
        "[parallelism]\ntensor_parallel_degree = 2\n[experimental]\npipeline_parallel_degree = 2\n",
        &[":4:1", "experimental.pipeline_parallel_degree", "write it as parallelism.pipeline_parallel_degree"],
    ),
    (
        "titan_two_floors",
        "[parallelism]\n[lr_scheduler]\nmin_lr_factor = 0.1\nlr_min = 0.1\n",
        &[":4:1", "lr_scheduler.lr_min", "keep one of them"],
    ),
    ("hf_quantised", "{\"model_type\": \"llama\", \"quantization_config\": {\"bits\": 4}}", &["quantization_config"]),
];

fn refused(folder: &Path, file: &Path, fragments: &[&str]) {
    let output = run(folder, &["import", file.to_str().unwrap()]);
    let said = stderr(&output);
    let name = file.file_name().unwrap().to_str().unwrap();
    assert_eq!(output.status.code(), Some(1), "{name}: {said}");
    assert!(output.stdout.is_empty(), "{name}: something was printed");
    assert!(!said.contains("panicked"), "{name}: {said}");
    for fragment in fragments.iter().chain(&[name]) {
        assert!(said.contains(fragment), "{name}: no {fragment:?} in {said:?}");
    }
}

#[test]
fn broken_files_are_refused_with_file_key_and_fix() {
    let folder = tempfile::tempdir().unwrap();
    assert!(BROKEN.len() >= 50, "{}", BROKEN.len());
    for (name, text, fragments) in BROKEN {
        // The ending is wrong on purpose: contents decide.
        let file = folder.path().join(format!("{name}.conf"));
        std::fs::write(&file, text).unwrap();
        refused(folder.path(), &file, fragments);
    }
}

#[test]
fn files_that_are_none() {
    let folder = tempfile::tempdir().unwrap();
    let made = |name: &str, bytes: &[u8]| {
        let file = folder.path().join(name);
        std::fs::write(&file, bytes).unwrap();
        file
    };
    let deep = format!("{{\"seed\": {}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
    let cases: [(std::path::PathBuf, &[&str]); 9] = [
        (made("utf16.json", b"\xff\xfe{\0\"\0"), &["UTF-16", "save it as UTF-8"]),
        (made("latin.json", b"{\"seed\": \"\xe9\"}"), &["not UTF-8", "byte 10"]),
        (made("binary", b"\x7fELF\x02\x01\0\0\0"), &["binary", "name a text file"]),
        (made("deep.json", deep.as_bytes()), &["nested deeper"]),
        (made("deep.yaml", format!("distributed_type: {}", "[".repeat(100_000)).as_bytes()), &["YAML"]),
        (made("long.json", &vec![b' '; 5 << 20]), &["bytes"]),
        (made("aliases.yaml", b"a: &a [x]\nb: &b [*a, *a]\nc: [*b, *b]\n"), &["no configuration"]),
        (folder.path().to_path_buf(), &["folder"]),
        (folder.path().join("nowhere.json"), &["cannot be read"]),
    ];
    for (file, fragments) in cases {
        refused(folder.path(), &file, fragments);
    }
}

/// A minified file is one line: columns count characters, also behind values of every kind, and problems have an end.
#[test]
fn a_minified_file_has_true_columns_and_fifty_problems() {
    let mut text = String::from("{\"optimizer\":{\"type\":\"Ädam\"},\"zero_optimization\":{\"stage\":2");
    for (at, value) in
        ["1.5e3", "true", "null", "\"ü€\"", "[1,\"ß\"]", "{\"ö\":-2}"].iter().cycle().take(120).enumerate()
    {
        text += &format!(",\"wholly_strange_{at}\":{value}");
    }
    text.push_str("}}");
    let error = zbench_suites::interop::parse("file", text.as_bytes(), &super::options(&[])).unwrap_err();
    // Fifty of the 120 strange keys; the last line counts the others.
    assert_eq!(error.0.len(), 51);
    let last = error.0.last().unwrap();
    assert_eq!(last.to_string(), "file: and 70 more");
    for (at, problem) in error.0[..50].iter().enumerate() {
        let key = format!("\"wholly_strange_{at}\"");
        let column = text[..text.find(&key).unwrap()].chars().count() + 1;
        let place = problem.place.unwrap();
        assert_eq!((place.line, place.column), (1, column), "{problem}");
    }
}

/// DeepSpeed reads Hjson, and people write its comments, commas and quotes.
#[test]
fn hjson_is_read_as_deepspeed_reads_it() {
    let plain = "{\"train_batch_size\": 8, \"zero_optimization\": {\"stage\": 2}}";
    let told = "// of mine\n# of yours\n{ /* eight\n sequences */ \"train_batch_size\": 8, // a step\n \"zero_optimization\": # ZeRO\n {\"stage\": 2}} # end";
    let read = |text: &str| zbench_suites::interop::parse("file", text.as_bytes(), &super::options(&[])).unwrap();
    let settings =
        |text: &str| format!("{:?}", read(text).rows.iter().map(|row| (&row.key, &row.value)).collect::<Vec<_>>());
    assert_eq!(settings(told), settings(plain));
    for told in [
        "{\"train_batch_size\": 8, \"zero_optimization\": {\"stage\": 2,},\n}",
        "{\"train_batch_size\": 8\n\"zero_optimization\": {\"stage\": 2\n}\n}",
        "{train_batch_size: 8, zero_optimization: {stage: 2}}",
        "{'train_batch_size': 8, 'zero_\\u006fptimization': {stage: 2}}",
    ] {
        assert_eq!(settings(told), settings(plain), "{told}");
    }
    let quoted = read("{'optimizer': {'type': 'AdamW', params: {betas: [0.9, 0.95,], lr: 1e-3,}}}");
    assert!(quoted.rows.iter().any(|row| row.value == serde_json::json!([0.9, 0.95])), "{:?}", quoted.rows);
    let wrong = "{\n // one\n \"seed\": // two\n true}";
    let error = zbench_suites::interop::parse("file", wrong.as_bytes(), &super::options(&[])).unwrap_err();
    let place = error.0[0].place.unwrap();
    assert_eq!((error.0[0].key.as_str(), place.line), ("seed", 4), "comments move no place");
}

#[test]
fn a_mark_of_byte_order_is_no_obstacle() {
    let bytes = b"\xef\xbb\xbf{\"zero_optimization\": {\"stage\": 2}}";
    assert!(zbench_suites::interop::parse("file", bytes, &super::options(&[])).is_ok());
}

#[test]
fn flags_are_checked_like_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ds.json");
    std::fs::write(&file, "{\"train_batch_size\": 12, \"zero_optimization\": {\"stage\": 3}}").unwrap();
    let file = file.to_str().unwrap();
    let cases: [(&[&str], &[&str]); 9] = [
        (&["--set", "train.stesp=3"], &["--set train.stesp=3", "did you mean train.steps?"]),
        (&["--set", "train.steps"], &["write --set key=value"]),
        (&["--set", "train.steps=0"], &["--set train.steps=0", "0 is too small"]),
        (&["--ranks", "5"], &["train_batch_size", "5 data-parallel ranks"]),
        (&["--ranks", "0"], &["--ranks"]),
        (&["--ranks-per-node", "5"], &["--ranks-per-node", "does not divide"]),
        (&["--model", "llama-999b"], &["--model llama-999b", "no such preset", "llama-tiny"]),
        (&["-o", "/nowhere/at/all.toml"], &["no folder", "make it first"]),
        (&["--bundle", "x.jsonl"], &["cannot be used with"]),
    ];
    for (flags, fragments) in cases {
        let output = run(folder.path(), &[&["import", file][..], flags].concat());
        assert_eq!(output.status.code(), Some(1), "{flags:?}: {}", stderr(&output));
        for fragment in fragments {
            assert!(stderr(&output).contains(fragment), "{flags:?}: no {fragment:?} in {}", stderr(&output));
        }
    }
}
