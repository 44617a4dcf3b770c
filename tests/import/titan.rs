//! torchtitan's TOML, both ways.

use super::{draft, options, row};
use std::path::Path;
use zbench_suites::interop::export::{Target, export};
use zbench_suites::interop::{self, Draft, Format, Options, Verdict, toml};

fn read(text: &str, ranks: Option<u64>) -> Draft {
    draft(text, &Options { ranks, ..options(&[]) })
}

fn has(draft: &Draft, setting: &str) {
    let (key, value) = setting.split_once('=').unwrap();
    assert_eq!(draft.setting(key), Some(&zbench_config::bare(value)), "{setting}");
}

/// Sections of a published file of 2025, which 0.2.2 refuses for its former names, and one that 0.2.2 reads.
#[test]
fn a_file_becomes_degrees_types_and_tokens() {
    let published = r#"
        [job]
        description = "Llama 3 405B"
        [model]
        name = "llama3"
        flavor = "405B"
        converters = "float8"
        [training]
        batch_size = 2
        seq_len = 8192
        compile = true
        [parallelism]
        data_parallel_shard_degree = -1
        tensor_parallel_degree = 8
        enable_async_tensor_parallel = true
        [activation_checkpoint]
        mode = 'full'
        [float8]
        filter_fqns = "output"
    "#;
    let made = read(published, Some(64));
    for setting in [
        "model.preset=llama3.1-405b",
        "train.micro_batch=2",
        "train.seq_len=8192",
        "parallel.ranks=64",
        "parallel.tensor=8",
        "parallel.sequence=8",
        "parallel.tensor_overlap=true",
        "parallel.strategy=fsdp",
        "memory.checkpointing=full",
        "precision.preset=fsdp-mixed",
        "precision.reduce=f32",
        "precision.products=fp8",
        "hardware.software=fsdp2-compiled",
    ] {
        has(&made, setting);
    }
    assert!(made.notes[0].contains("0.2.2 refuses training.batch_size, training.compile, float8"), "{:?}", made.notes);
    let small = "[model]\nname = \"llama3\"\nflavor = \"8B\"\n[training]\nlocal_batch_size = 1\n[parallelism]\ndata_parallel_shard_degree = 8\n";
    let made = read(small, None);
    has(&made, "parallel.ranks=8");
    has(&made, "train.seq_len=2048");
    has(&made, "train.lr_warmup_steps=200");
    has(&made, "memory.recompute={ one_in = 2 }");
    assert!(made.notes[0].contains("torchtitan 0.2.2 reads such a file; 0.3.0 is configured in Python"));
    let error = interop::parse("file", format!("{small}tensor_degree = 2\n").as_bytes(), &options(&[]))
        .unwrap_err()
        .to_string();
    assert!(error.contains("file:8:1: parallelism.tensor_degree: unknown key"), "{error}");
    for (change, ranks, words) in [
        ("", Some(12), "are 8 ranks, and --ranks is 12"),
        ("tensor_parallel_degree = 3\ndata_parallel_shard_degree = -1", Some(8), "do not divide --ranks 8"),
    ] {
        let text =
            if change.is_empty() { small.to_string() } else { small.replace("data_parallel_shard_degree = 8", change) };
        let error =
            interop::parse("file", text.as_bytes(), &Options { ranks, ..options(&[]) }).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

/// Sections, a key of them, its verdict, and a setting.
#[test]
fn keys_become_what_torchtitan_makes_of_them() {
    const HYBRID: &str = "[parallelism]\ndata_parallel_replicate_degree = 2\ndata_parallel_shard_degree = 1\ncontext_parallel_degree = 4\n";
    const STAGES: &str = "[parallelism]\ndata_parallel_shard_degree = 1\npipeline_parallel_degree = 2\n[training]\nlocal_batch_size = 4\n";
    let two_passes = format!("{STAGES}global_batch_size = 8\n");
    let one_pass = format!("{STAGES}global_batch_size = 4\n");
    let cases = [
        (HYBRID, "parallelism.data_parallel_replicate_degree", Verdict::Used, "parallel.strategy=hsdp"),
        (HYBRID, "parallelism.data_parallel_shard_degree", Verdict::Used, "parallel.shard=1"),
        (&two_passes, "training.global_batch_size", Verdict::NoEquivalent, "train.accumulation=8"),
        (&one_pass, "training.global_batch_size", Verdict::Used, "train.accumulation=4"),
        (
            "[parallelism]\n[lr_scheduler]\nwarmup_steps = 9\n[training]\nsteps = 5\n",
            "lr_scheduler.warmup_steps",
            Verdict::Used,
            "train.lr_warmup_steps=5",
        ),
        (
            "[parallelism]\n[lr_scheduler]\nmin_lr_factor = 0.5\n",
            "lr_scheduler.min_lr_factor",
            Verdict::Used,
            "train.lr_min=0.0004",
        ),
        (
            "[parallelism]\n[lr_scheduler]\nlr_min = 0.5\n[optimizer]\nlr = 0.5\n",
            "lr_scheduler.lr_min",
            Verdict::Used,
            "train.lr_min=0.25",
        ),
        (
            "[parallelism]\npipeline_parallel_split_points = [\"layers.4\"]\n",
            "parallelism.pipeline_parallel_split_points",
            Verdict::NoEquivalent,
            "",
        ),
        (
            "[parallelism]\nenable_compiled_autograd = true\n",
            "parallelism.enable_compiled_autograd",
            Verdict::Ignored,
            "",
        ),
    ];
    for (text, key, verdict, setting) in cases {
        let made = read(text, None);
        assert_eq!(row(&made, key).verdict, verdict, "{text}");
        if !setting.is_empty() {
            has(&made, setting);
        }
        let is_told = made.notes.iter().any(|note| note.starts_with("training.steps is absent, which is 10000"));
        assert_ne!(is_told, text.contains("\nsteps ="), "{:?}", made.notes);
    }
}

/// What `export` writes, `import` reads as the same cell. torchtitan 0.2.2 has read these files.
#[test]
fn what_is_exported_comes_back() {
    const TRAIN: &str = "train.micro_batch = 2\ntrain.accumulation = 4\ntrain.seq_len = 64\ntrain.clip_norm = 1.0\nprecision.preset = \"fsdp-mixed\"\nprecision.reduce = \"f32\"\nmodel.preset = \"llama3.1-8b\"\n";
    let ways = [
        "parallel.ranks = 8\nparallel.strategy = \"fsdp\"\nmemory.checkpointing = \"full\"",
        "parallel.ranks = 8\nparallel.strategy = \"fsdp-grad-op\"\nmemory.recompute = \"op\"",
        "parallel.ranks = 8\nparallel.strategy = \"hsdp\"\nparallel.shard = 4\nmemory.recompute = { one_in = 3 }",
        "parallel.ranks = 16\nparallel.strategy = \"fsdp\"\nparallel.tensor = 2\nparallel.sequence = 2\nparallel.pipeline = 2\nparallel.context = 2",
        "parallel.ranks = 8\nparallel.strategy = \"hsdp\"\nparallel.shard = 1\nparallel.context = 4",
        "parallel.ranks = 8\nparallel.strategy = \"fsdp\"\nparallel.tensor = 4\nparallel.sequence = 4\nprecision.products = \"fp8\"\nparallel.tensor_overlap = true",
    ];
    for (way, software) in ways.into_iter().flat_map(|way| [(way, "fsdp2"), (way, "fsdp2-compiled")]) {
        // torchtitan compiles what overlaps tensor ranks' collectives.
        if way.contains("tensor_overlap") && software == "fsdp2" {
            continue;
        }
        let cell_of = |text: &str| {
            let document = zbench_config::Document::parse(Path::new("file.toml"), text, &[]).unwrap();
            let resolved = zbench_config::resolve(&document.base, &zbench_config::Context::new("".into(), 1)).unwrap();
            zbench_config::grid::plain(&resolved.cell)
        };
        let cell = cell_of(&format!("{TRAIN}hardware.software = \"{software}\"\n{way}"));
        let written = export(&cell, "a cell", Target::Torchtitan).unwrap();
        let told = written.rows.iter().find(|row| row.key == "hardware.software").unwrap();
        assert_ne!(told.verdict, Verdict::Ignored, "{told:?}");
        let made = read(&written.text, None);
        assert_eq!(made.format, Format::Torchtitan);
        let back = cell_of(&toml::text(&made));
        let unlike = |place: &str| (cell.pointer(place) != back.pointer(place)).then(|| place.to_string());
        let places = [
            "/model",
            "/parallel",
            "/precision",
            "/memory",
            "/hardware/software",
            "/train/micro_batch",
            "/train/accumulation",
            "/train/seq_len",
            "/train/clip_norm",
        ];
        let unlike: Vec<String> = places.into_iter().filter_map(unlike).collect();
        assert!(
            unlike.is_empty(),
            "{way}: {unlike:?}\n{}\n{:#}\n{:#}",
            written.text,
            cell["parallel"],
            back["parallel"]
        );
        assert!(made.rows.iter().all(|row| row.verdict != Verdict::NoEquivalent), "{:?}", made.rows);
    }
    assert_eq!(row(&read("[parallelism]\n[training]\nseq_len = 8\n", None), "training.seq_len").verdict, Verdict::Used);
}
