//! From TOML to cells: what is refused and how it is said, defaults, units, and that nothing panics.

use crate::support::{cells, parse, root, run, stderr};
use proptest::prelude::*;
use zbench_config::grid;
use zbench_engine::config::{
    AttentionKind, Base, Cell, Checkpointing, DynamicScaling, Linear, LossScaling, Method, Strategy as Sharding,
};
use zbench_engine::planner::Planner;
use zbench_kernels::DType;

fn only_cell(text: &str) -> Cell {
    let cells = cells(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    let [cell] = &cells[..] else { panic!("{} cells", cells.len()) };
    cell.resolved.as_ref().expect("resolves").cell.clone()
}

/// Each file's first line says what its message must contain; every one is refused with exit 1 and names itself.
#[test]
fn broken_files_are_refused_with_place_field_and_fix() {
    let folder = tempfile::tempdir().unwrap();
    let mut count = 0;
    for entry in std::fs::read_dir(root().join("tests/bad")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        count += 1;
        let text = std::fs::read_to_string(&path).unwrap();
        let expect = text.lines().next().and_then(|line| line.strip_prefix("# expect: ")).expect("an expectation");
        let output = run(folder.path(), &["grid", path.to_str().unwrap()]);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{}: {said}", path.display());
        let name = path.file_name().unwrap().to_str().unwrap();
        for fragment in expect.split(" | ").chain([name]) {
            assert!(said.contains(fragment), "{name}: no {fragment:?} in {said:?}");
        }
        assert!(!said.contains("panicked"), "{name}: {said}");
    }
    assert!(count >= 60, "{count} files");
    assert!(!folder.path().join("records.jsonl").exists(), "a refused file leaves nothing in the notebook");
}

#[test]
fn files_that_are_none() {
    let folder = tempfile::tempdir().unwrap();
    let latin = folder.path().join("latin.toml");
    std::fs::write(&latin, b"name = \"\xe9\"\n").unwrap();
    for (path, fragment) in [
        ("nowhere.toml", "cannot be read"),
        (folder.path().to_str().unwrap(), "cannot be read"),
        (latin.to_str().unwrap(), "not UTF-8"),
    ] {
        let output = run(folder.path(), &["grid", path]);
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).contains(fragment), "{}", stderr(&output));
    }
}

#[test]
fn set_is_checked_like_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = crate::support::write(folder.path(), crate::support::TINY);
    let cases = [
        ("train.stesp=3", "did you mean train.steps?"),
        ("train.steps", "write --set key=value"),
        ("train.steps=0", "0 is too small"),
        ("parallel.strategy=zero4", "did you mean"),
        ("parallel.shard=3", "parallel.shard"),
    ];
    for (set, fragment) in cases {
        let arguments = ["grid", path.to_str().unwrap(), "--dry-run", "--set", "parallel.strategy=hsdp", "--set", set];
        let output = run(folder.path(), &arguments);
        assert_eq!(output.status.code(), Some(1), "{set}");
        assert!(stderr(&output).contains("--set") && stderr(&output).contains(fragment), "{set}: {}", stderr(&output));
    }
}

#[test]
fn an_empty_file_is_a_cell() {
    let cell = only_cell("");
    assert_eq!((cell.parallel.ranks, cell.parallel.strategy), (1, Sharding::Ddp));
    assert_eq!((cell.model.hidden_size, cell.model.num_hidden_layers), (512, 8));
    assert_eq!(cell.precision.bytes_per_parameter(), 16);
    assert_eq!((cell.memory.checkpointing, cell.memory.attention), (Checkpointing::None, AttentionKind::Flash));
    assert_eq!(cell.lora.rank, 0);
}

#[test]
fn precision_presets_and_overrides() {
    let bytes = |text: &str| only_cell(&format!("[precision]\n{text}")).precision.bytes_per_parameter();
    assert_eq!(bytes("preset = \"f32\""), 16);
    assert_eq!(bytes("preset = \"bf16-mixed\""), 18);
    assert_eq!(bytes("preset = \"f16-mixed\""), 18);
    assert_eq!(bytes("preset = \"bf16-mixed\"\ngradients = \"bf16\""), 16);
    assert_eq!(bytes("preset = \"bf16\""), 8);
    assert_eq!(bytes("preset = \"bf16-mixed\"\nmaster = \"none\""), 14);
    assert_eq!(bytes("preset = \"fsdp-memory-constrained\""), 8);
    assert_eq!(bytes("preset = \"fsdp-mixed\""), 16);
    assert_eq!(bytes("preset = \"deepspeed\""), 16);
}

#[test]
fn loss_scaling_is_of_f16_alone_with_the_defaults_of_deepspeed() {
    let scaling = |text: &str| only_cell(&format!("[precision]\n{text}")).precision.scaling;
    let f16 = |text: &str| scaling(&format!("preset = \"f16-mixed\"\n{text}"));
    let rules = DynamicScaling {
        initial_scale_power: 16,
        loss_scale_window: 1000,
        hysteresis: 2,
        consecutive_hysteresis: false,
        min_loss_scale: 1.0,
    };
    assert_eq!(f16(""), Some(LossScaling::Dynamic(rules)));
    let text = "initial_scale_power = 40\nloss_scale_window = 5\nhysteresis = 1\nconsecutive_hysteresis = true\n\
                min_loss_scale = 4";
    let other = DynamicScaling {
        initial_scale_power: 40,
        loss_scale_window: 5,
        hysteresis: 1,
        consecutive_hysteresis: true,
        min_loss_scale: 4.0,
    };
    assert_eq!(f16(text), Some(LossScaling::Dynamic(other)));
    assert_eq!(f16("loss_scale = 128"), Some(LossScaling::Static(128.0)));
    assert_eq!(scaling("compute = \"f16\""), Some(LossScaling::Dynamic(rules)));
    assert_eq!((scaling("preset = \"bf16-mixed\"\nloss_scale = 128"), scaling("")), (None, None));
}

/// What is not asked for is not in a cell's text, so that the keys of older cells stay.
#[test]
fn a_cell_without_scaling_load_and_rounding_reads_as_it_did() {
    let text =
        zbench_config::grid::canonical(&zbench_config::grid::plain(&only_cell("[precision]\npreset = \"bf16-mixed\"")));
    assert!(
        text.contains(
            r#""precision":{"compute":"bf16","gradients":"f32","master":"f32","optimizer":"f32","parameters":"bf16","reduce":"f32"}"#
        ),
        "{text}"
    );
}

#[test]
fn shard_follows_nodes_then_half() {
    let shard = |text: &str| only_cell(&format!("[parallel]\nstrategy = \"hsdp\"\n{text}")).parallel.shard;
    assert_eq!(shard("ranks = 8"), 4);
    assert_eq!(shard("ranks = 8\nranks_per_node = 2"), 2);
    assert_eq!(shard("ranks = 9\nshard = 3"), 3);
    assert_eq!(only_cell("[parallel]\nranks = 6\nshard = 2").parallel.shard, 6, "ddp does not read it");
}

#[test]
fn batches_lora_checkpointing_sizes() {
    let cell = only_cell("[train]\nglobal_batch = 24\nmicro_batch = 2\n[parallel]\nranks = 4");
    assert_eq!(cell.train.accumulation, 3);
    let lora = only_cell("[lora]\nrank = 4").lora;
    assert_eq!((lora.targets, lora.alpha), (vec![Linear::QProj, Linear::VProj], 8.0));
    let lora = only_cell("[lora]\nrank = 4\nbase = \"bf16\"\ntargets = \"all-linear\"").lora;
    assert_eq!((lora.targets, lora.base), (Linear::ALL.to_vec(), Some(Base::Bf16)));
    let base = |text: &str| only_cell(&format!("[lora]\nrank = 4\n{text}")).lora.base;
    assert_eq!((base(""), base("base = \"nf4\""), base("base = \"int8\"")), (None, Some(Base::Nf4), Some(Base::Int8)));
    assert_eq!(base("base = \"nf4\"\ndouble_quant = false"), Some(Base::Nf4Single));
    assert_eq!(base("base = \"f32\"\ndouble_quant = false"), Some(Base::F32), "others do not read it");
    let ordered = only_cell("[lora]\nrank = 4\ntargets = [\"up_proj\", \"q_proj\"]").lora.targets;
    assert_eq!(ordered, [Linear::QProj, Linear::UpProj], "the order of writing does not matter");
    assert_eq!(only_cell("[memory]\ncheckpointing = { every = 3 }").memory.checkpointing, Checkpointing::Every(3));
    assert_eq!(only_cell("[memory]\ncapacity = \"80GiB\"").memory.capacity, Some(80 << 30));
    assert_eq!(only_cell("[memory]\ncapacity = 1000").memory.capacity, Some(1000));
}

#[test]
fn adapters_by_the_names_of_a_family() {
    use Linear::*;
    let family = |name: &str, lora: &str| {
        only_cell(&format!("[model]\nfamily = \"{name}\"\nnum_hidden_layers = 2\n[lora]\n{lora}")).lora
    };
    assert_eq!(family("gpt2", "rank = 2").targets, [QProj, KProj, VProj], "PEFT's default is c_attn");
    assert_eq!(family("gpt2", "rank = 2\ntargets = [\"c_proj\"]").targets, [OProj, DownProj]);
    assert_eq!(family("gpt2", "rank = 2\ntargets = [\"mlp.c_proj\", \"o_proj\"]").targets, [OProj, DownProj]);
    let all = family("bloom", "rank = 2\ntargets = \"all-linear\"").targets;
    assert_eq!(all, [QProj, KProj, VProj, OProj, UpProj, DownProj]);
    let rooted = family("mpt", "rank = 4\nalpha = 6.0\nuse_rslora = true\ntargets = [\"Wqkv\"]");
    assert_eq!((rooted.scale(), rooted.targets), (3.0, vec![QProj, KProj, VProj]));
    let ia3 = family("llama", "method = \"ia3\"\nrank = 8\nalpha = 3.0");
    assert_eq!((ia3.method, ia3.rank, ia3.alpha, ia3.on()), (Method::Ia3, 0, 0.0, true), "IA3 has no rank");
    assert_eq!((ia3.targets, ia3.feedforward), (vec![KProj, VProj, DownProj], vec![DownProj]));
    assert_eq!(family("qwen2", "method = \"ia3\"").targets, [QProj, VProj, DownProj]);
    let sided = family("bloom", "method = \"ia3\"\ntargets = [\"dense\"]\nfeedforward = [\"dense\"]");
    assert_eq!((sided.targets, sided.feedforward), (vec![OProj], vec![OProj]));
    assert_eq!(family("bloom", "method = \"ia3\"\ntargets = [\"dense\"]").feedforward, []);
    assert_eq!(family("llama", "method = \"ia3\"\nfeedforward = []").feedforward, []);
}

#[test]
fn adapters_of_a_folder_fill_in_what_is_not_stated() {
    use Linear::*;
    let fixtures = root().join("tests/fixtures");
    let text = |base: &str, adapters: &str, more: &str| {
        let (base, start) = (fixtures.join(base), fixtures.join(adapters).join("start"));
        format!("[model]\npath = {base:?}\n[train]\nseq_len = 16\n[lora]\npath = {start:?}\n{more}")
    };
    let lora = only_cell(&text("gpt2-exact", "rslora-gpt2", "")).lora;
    assert_eq!((lora.rank, lora.alpha, lora.use_rslora), (3, 6.0, true));
    assert_eq!(lora.targets, [QProj, KProj, VProj, OProj, DownProj]);
    assert_eq!(lora.path.as_deref(), Some(&*fixtures.join("rslora-gpt2/start")));
    let same =
        only_cell(&text("gpt2-exact", "rslora-gpt2", "rank = 3\nalpha = 6\ntargets = [\"c_proj\", \"c_attn\"]")).lora;
    assert_eq!(same, lora);
    let ia3 = only_cell(&text("bloom", "ia3-bloom", "")).lora;
    assert_eq!((ia3.method, ia3.feedforward), (Method::Ia3, vec![DownProj]));
    for (adapters, base, more, key, fragment) in [
        ("rslora-gpt2", "gpt2-exact", "rank = 4", "lora.rank", "is 4, and the adapters of lora.path have 3"),
        ("rslora-gpt2", "gpt2-exact", "rank = 0", "lora.rank", "is 0"),
        ("rslora-gpt2", "gpt2-exact", "alpha = 3.0", "lora.alpha", "6.0"),
        ("rslora-gpt2", "gpt2-exact", "dropout = 0.5", "lora.dropout", "0.5"),
        ("rslora-gpt2", "gpt2-exact", "use_rslora = false", "lora.use_rslora", "true"),
        ("rslora-gpt2", "gpt2-exact", "method = \"ia3\"", "lora.method", "have \"lora\""),
        ("rslora-gpt2", "gpt2-exact", "targets = [\"c_attn\"]", "lora.targets", "\"down_proj\""),
        ("ia3-bloom", "bloom", "feedforward = [\"query_key_value\"]", "lora.feedforward", "\"down_proj\""),
        ("rslora-gpt2", "bloom", "", "lora.path", "c_attn"),
        ("bloom", "bloom", "", "lora.path", "adapter_config.json"),
    ] {
        let error = cells(&text(base, adapters, more)).unwrap_err().to_string();
        assert!(error.contains(key) && error.contains(fragment), "{more}: {error}");
    }
}

#[test]
fn model_keys_override_a_preset_and_a_folder() {
    let cell = only_cell("[model]\npreset = \"llama-tiny\"\nnum_hidden_layers = 3");
    assert_eq!((cell.model.num_hidden_layers, cell.model.hidden_size), (3, 128));
    let folder = root().join("tests/fixtures/llama");
    let cell = only_cell(&format!("[model]\npath = {:?}", folder.to_str().unwrap()));
    assert_eq!((cell.model.hidden_size, cell.model.vocab_size), (64, 256));
    assert_eq!(cell.model.weights.as_deref(), Some(folder.as_path()));
}

/// A short label that cells without a configuration share names none of them; a whole label names its cell.
#[test]
fn labels_count_cells_that_cannot_be() {
    let grid = "\"parallel.strategy\" = [\"fsdp\", \"zero++\"]\n\"memory.attention\" = [\"flash\", \"naive\"]\n";
    let cells = cells(&format!("[model]\npreset = \"llama-tiny\"\n[parallel]\nranks = 4\n[grid]\n{grid}")).unwrap();
    assert_eq!(cells.iter().map(|cell| cell.resolved.is_ok()).collect::<Vec<_>>(), [true, true, false, false]);
    assert_eq!(grid::called(&cells, "attention=flash"), None);
    assert_eq!(grid::called(&cells, "fsdp, attention=flash").as_ref(), Some(&cells[0].key));
}

/// A note says so of sequences beyond max_position_embeddings, unless model.rope_scaling covers them or nothing stated that length.
#[test]
fn sequences_beyond_the_positions_are_noted() {
    let folder = tempfile::tempdir().unwrap();
    let tiny = "preset = \"llama-tiny\"\nmax_position_embeddings = 64";
    let custom = "family = \"custom\"\nhidden_size = 64\nintermediate_size = 96\nnum_hidden_layers = 2\n\
                  num_attention_heads = 4\nvocab_size = 128";
    for (model, seq_len, expected) in [
        (tiny.to_string(), 128, "go on; model.rope_scaling stretches them"),
        (format!("{tiny}\nrope_scaling = {{ rope_type = \"linear\", factor = 1.5 }}"), 128, "; a larger factor of"),
        (format!("{tiny}\nrope_scaling = {{ rope_type = \"linear\", factor = 2.0 }}"), 128, ""),
        (custom.to_string(), 4096, ""),
        (format!("{custom}\nmax_position_embeddings = 2048"), 4096, "= 2048 of the model"),
    ] {
        let path = crate::support::write(folder.path(), &format!("[model]\n{model}\n[train]\nseq_len = {seq_len}\n"));
        let output = run(folder.path(), &["plan", path.to_str().unwrap(), "--format", "json"]);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(0), "{model}: {said}");
        assert!(said.contains(expected) && said.contains("train.seq_len") != expected.is_empty(), "{model}: {said}");
    }
}

/// A plan of a folder without weights names why no run can be, and does not offer one.
#[test]
fn a_plan_of_a_folder_without_weights_offers_no_run() {
    let folder = tempfile::tempdir().unwrap();
    let path = crate::support::write(folder.path(), "[model]\npath = \".\"\n");
    let config = r#"{"model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "vocab_size": 128}"#;
    std::fs::write(folder.path().join("config.json"), config).unwrap();
    let output = run(folder.path(), &["plan", path.to_str().unwrap()]);
    let words = crate::support::stdout(&output).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("NOT HERE") && words.contains("has no weights to load"), "{words}");
    assert!(!words.contains("measures them"), "{words}");
}

#[test]
fn names_of_presets_and_machines_that_are_nearly_right_are_suggested() {
    for (text, near) in [
        ("[model]\npreset = \"llama-7b\"", "there is no preset \"llama-7b\"; did you mean \"llama2-7b\"?"),
        ("[model]\npreset = \"qwen-0.5b\"", "did you mean \"qwen2-0.5b\"?"),
        ("[hardware]\nprofile = \"h1000\"", "there is no machine \"h1000\" (did you mean h100-sxm?)"),
        ("[hardware]\nprofile = \"H200\"", "(did you mean h200?)"),
    ] {
        let error = cells(text).unwrap_err().to_string();
        assert!(error.contains(near), "{text}: {error}");
    }
    let far = cells("[model]\npreset = \"my-own-model\"").unwrap_err().to_string();
    assert!(far.contains("there is no preset \"my-own-model\"; there are") && !far.contains("mean"), "{far}");
}

#[test]
fn several_problems_are_told_at_once() {
    let error = parse("[train]\nsteps = 0\nseq_length = 3\n[parallel]\nranks = \"four\"\n").unwrap_err();
    assert_eq!(error.0.len(), 3, "{error}");
}

/// Without steps of the course, a cell is one of a version before them: it keeps its key, and the rates that it was trained with.
#[test]
fn a_cell_has_the_steps_of_its_course_where_rates_vary() {
    let steps = |train: &str| {
        let cell = only_cell(&format!("[model]\npreset = \"llama-tiny\"\n[train]\n{train}"));
        let plain = grid::plain(&cell);
        assert_eq!(grid::of_plain(&plain).unwrap().train, cell.train);
        plain["train"].get("lr_steps").map(|steps| steps.as_str().unwrap().to_string())
    };
    for (train, expected) in [
        ("lr_schedule = \"cosine\"", Some("transformers")),
        ("lr_warmup_steps = 1", Some("transformers")),
        ("lr_schedule = \"linear\"\nlr_steps = \"deepspeed\"", Some("deepspeed")),
        ("lr_schedule = \"cosine\"\nlr_steps = \"from-one\"", None),
        ("lr = 1e-3", None),
        ("lr_steps = \"deepspeed\"", None),
    ] {
        assert_eq!(steps(train).as_deref(), expected, "{train}");
    }
}

/// The documentation of the keys is generated; this keeps it true.
#[test]
fn documentation_is_in_step() {
    let path = root().join("docs/configuration.md");
    let written = std::fs::read_to_string(&path).unwrap();
    assert_eq!(written, zbench_config::keys::document(), "run `zbench doctor --keys > docs/configuration.md`");
}

#[test]
fn the_configs_that_come_with_zbench_are_right() {
    let folder = tempfile::tempdir().unwrap();
    for (name, count) in
        [("quickstart", 29), ("llama70b", 20), ("zero-memory", 32), ("precision-table", 6), ("packing", 5)]
    {
        let path = root().join(format!("configs/{name}.toml"));
        let output = run(folder.path(), &["plan", path.to_str().unwrap(), "--format", "json"]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert_eq!(crate::support::stdout(&output).lines().count(), count, "{name}");
    }
}

/// Pieces that mutations are made of: right and wrong, whole and torn.
fn piece() -> impl Strategy<Value = String> {
    let words = [
        "[train]",
        "[grid]",
        "[[grid.exclude]]",
        "[[grid.include]]",
        "[model]",
        "[lora]",
        "[parallel]",
        "[data]",
        "micro_batch",
        "\"train.steps\"",
        "strategy",
        "ranks",
        "=",
        "=",
        "=",
        "[",
        "]",
        "{",
        "}",
        ",",
        "\"",
        "'''",
        "0",
        "-1",
        "1e400",
        "nan",
        "inf",
        "9223372036854775807",
        "0x7fffffffffffffff",
        "1979-05-27",
        "true",
        "\"zero3\"",
        "\"80GiB\"",
        "checkpointing",
        "{ every = 0 }",
        "betas",
        "seq_len",
        "hidden_size",
        "num_attention_heads",
        "head_dim",
        "preset",
        "\"llama-tiny\"",
        "path",
        "\"..\"",
        "rope_scaling",
        "global_batch",
        "capacity",
        "\n",
        "\n",
        "\n",
        ".",
        "#",
        "\u{feff}",
        "é",
        "\0",
        "\r",
    ];
    prop_oneof![
        prop::sample::select(words.to_vec()).prop_map(String::from),
        "[ -~]{0,6}",
        any::<i64>().prop_map(|n| n.to_string())
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(zbench_test_tiers::cases("a property of tests/config.rs", [300, 1500, 1500])))]

    #[test]
    fn no_text_panics(pieces in prop::collection::vec(piece(), 0..40)) {
        let _ = cells(&pieces.join(" "));
    }

    /// A valid file with a slice replaced by pieces.
    #[test]
    fn no_mutation_panics(at in 0usize..2000, length in 0usize..30, pieces in prop::collection::vec(piece(), 0..4)) {
        let valid: Vec<char> = crate::support::TINY.chars().collect();
        let start = at % valid.len();
        let end = (start + length).min(valid.len());
        let text: String = valid[..start].iter().chain(pieces.concat().chars().collect::<Vec<_>>().iter()).chain(&valid[end..]).collect();
        let _ = cells(&text);
    }

    #[test]
    fn no_argument_panics(text in "\\PC{0,40}", key in prop::sample::select(zbench_config::keys::KEYS.iter().map(|k| k.name).collect::<Vec<_>>())) {
        let path = std::path::Path::new("test.toml");
        let _ = zbench_config::Document::parse(path, "", &[format!("{key}={text}"), text.clone()]);
        let document = crate::support::parse(crate::support::TINY).unwrap();
        let _ = zbench_config::grid::parse_only(&text, &document);
        let _ = zbench_config::units::bytes(&text);
        let _ = zbench_config::units::rate(&text);
        let _ = zbench_config::units::seconds(&text);
    }

    /// Whatever numbers a model has: a cell, or an error; and a plan of it is a plan, or an error.
    #[test]
    fn absurd_sizes_are_refused(exponents in prop::array::uniform8(0u32..34), naive in any::<bool>()) {
        let [h, i, l, a, v, s, m, r] = exponents.map(|e| 1u64 << e);
        let attention = if naive { "naive" } else { "flash" };
        let text = format!(
            "[model]\nhidden_size = {h}\nintermediate_size = {i}\nnum_hidden_layers = {l}\nnum_attention_heads = {a}\nvocab_size = {v}\n\
             max_position_embeddings = {s}\n[train]\nseq_len = {s}\nmicro_batch = {m}\n[parallel]\nranks = {r}\n[memory]\nattention = \"{attention}\"\n"
        );
        if let Ok(cells) = cells(&text) {
            for cell in &cells {
                // A plan has as many parts as layers; those of a thousand say no more than those of a hundred.
                if let Some(resolved) = cell.resolved.as_ref().ok().filter(|r| r.cell.model.num_hidden_layers <= 128) {
                    let _ = zbench_predict::planned::estimate(&Planner::default(), &resolved.cell);
                }
            }
        }
    }
}

/// The rows of ZeRO's table: 2 + 2 + 12 bytes with bf16 gradients, 18 with f32; zero3 splits all of it.
#[test]
fn zero_memory_is_of_16_and_18_bytes() {
    use zbench_kernels::Category;
    let text = std::fs::read_to_string(root().join("configs/zero-memory.toml")).unwrap();
    let cells = cells(&text).unwrap();
    assert_eq!(cells.len(), 32);
    for cell in cells {
        let cell = cell.resolved.unwrap().cell;
        let estimate = zbench_predict::planned::estimate(&Planner::default(), &cell).unwrap();
        let per_parameter = |category| estimate.peak(category) as f64 / estimate.parameters as f64;
        let [parameters, gradients, optimizer] =
            [Category::Parameters, Category::Gradients, Category::Optimizer].map(per_parameter);
        let width = if cell.precision.gradients == DType::Bf16 { 2.0 } else { 4.0 };
        let split = match cell.parallel.strategy {
            Sharding::Ddp => [1.0, 1.0, 1.0],
            Sharding::Zero1 => [1.0, 1.0, cell.parallel.ranks as f64],
            Sharding::Zero2 => [1.0, cell.parallel.ranks as f64, cell.parallel.ranks as f64],
            _ => [cell.parallel.ranks as f64; 3],
        };
        // Above the formula there is only padding: far less than a byte in a hundred.
        for (found, formula) in [parameters, gradients, optimizer]
            .into_iter()
            .zip([2.0, width, 12.0])
            .zip(split)
            .map(|((found, bytes), split)| (found, bytes / split))
        {
            assert!((formula..formula * 1.01).contains(&found), "{:?}: {found} for {formula}", cell.parallel);
        }
    }
}

/// Llama 2 70B with adapters on 80 GB: a base in NF4 trains on one card, in bf16 only split over several.
#[test]
fn a_base_in_nf4_fits_one_card_of_80_gb() {
    use zbench_kernels::Category;
    let text = std::fs::read_to_string(root().join("configs/qlora70b.toml")).unwrap();
    let folder = root().join("configs");
    let document = zbench_config::Document::parse(&folder.join("qlora70b.toml"), &text, &[]).unwrap();
    let context = zbench_config::Context::new(folder, 2);
    let cells = zbench_config::grid::expand(&document, &[], 100, &context, &mut Default::default());
    let mut fits = Vec::new();
    for cell in cells.unwrap() {
        let cell = cell.resolved.unwrap().cell;
        let estimate = zbench_predict::planned::estimate(&Planner::default(), &cell).unwrap();
        let (base, strategy, ranks) = (cell.lora.base.unwrap(), cell.parallel.strategy, cell.parallel.ranks);
        // 68,451,041,280 parameters in the blocks' matrices, 525,606,912 in embedding, head and norms, each in bf16.
        let (matrices, rest, trainable) = (68_451_041_280.0, 525_606_912.0, estimate.trainable_parameters as f64);
        assert_eq!(estimate.parameters as f64, matrices + rest + trainable);
        let each = match base {
            Base::Nf4 => 0.5 + 1.0 / 64.0 + 4.0 / (64.0 * 256.0),
            Base::Int8 => 1.0 + 4.0 / 8192.0,
            _ => 2.0,
        };
        let split = if strategy == Sharding::Fsdp { ranks as f64 } else { 1.0 };
        let (found, formula) =
            (estimate.peak(Category::Parameters) as f64, (matrices * each + 2.0 * (rest + trainable)) / split);
        assert!((found / formula - 1.0).abs() < 1e-3, "{base:?} {strategy:?} on {ranks}: {found} for {formula}");
        if estimate.memory().total_peak() <= cell.memory.capacity.unwrap() {
            fits.push((base, strategy, ranks));
        }
    }
    let has = |base, strategy, ranks| fits.contains(&(base, strategy, ranks));
    assert!(
        has(Base::Nf4, Sharding::Ddp, 1) && has(Base::Nf4, Sharding::Fsdp, 8) && has(Base::Bf16, Sharding::Fsdp, 8)
    );
    assert!(!has(Base::Bf16, Sharding::Ddp, 8) && !has(Base::Bf16, Sharding::Fsdp, 1), "{fits:?}");
}
