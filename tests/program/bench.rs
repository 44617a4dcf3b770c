//! `zbench gemm` and `zbench attention`, the program itself: flags, models, grid files, records, reports, faults.

use crate::support::{is_full_tier, records, run, signal, stderr, stdout, succeeds, test, zbench};
use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use zbench_test_tiers as tiers;

/// Short: what is measured is no matter here.
const QUICK: &str = "--seconds 0.001 --iters 3 --warmup 0";

fn file(folder: &Path, text: &str) -> PathBuf {
    let path = folder.join("kernels.toml");
    std::fs::write(&path, text).unwrap();
    path
}

/// A record's only timing, or that of a kernel and pass.
fn timing<'r>(record: &'r Value, kernel: &str, pass: &str) -> &'r Value {
    let all = record["timings"].as_array().unwrap();
    all.iter().find(|timing| timing["kernel"] == kernel && timing["pass"] == pass).unwrap_or_else(|| {
        panic!("no {kernel} {pass} in {all:?}");
    })
}

/// What every timing must hold, whatever the times are.
fn check_numbers(record: &Value, timing: &Value, flops: f64) {
    let number = |key: &str| timing[key].as_f64().unwrap_or_else(|| panic!("{key} of {timing}"));
    assert_eq!(number("flops"), flops, "{timing}");
    assert!(number("samples") >= 3.0 && number("calls_per_sample") >= 1.0);
    let [p10, median, p90] = ["p10_us", "median_us", "p90_us"].map(number);
    assert!(0.0 < p10 && p10 <= median && median <= p90, "{timing}");
    assert!((number("gflops") - flops / median / 1e3).abs() <= 1e-9 * number("gflops"));
    assert!(number("worst") <= 1.0 && number("checked") >= 1.0, "{timing}");
    match record["ceiling"]["gflops"].as_f64() {
        Some(ceiling) => assert!((number("share") - number("gflops") / ceiling).abs() <= 1e-9 * number("share")),
        None => {
            assert!(timing["share"].is_null() && record["metrics"]["ceiling_gflops"].is_null());
            assert!(!record["unstated"]["ceiling_gflops"].as_str().unwrap().is_empty());
        }
    }
}

#[test]
fn every_layout_type_and_number_of_threads_is_measured_checked_and_kept() {
    let folder = tempfile::tempdir().unwrap();
    let shapes = tiers::some(
        "bench::every_layout_type_and_number_of_threads_is_measured_checked_and_kept",
        ["33x47x65", "1x1x1", "2x300x7"],
        [1, 1],
    );
    let words = format!(
        "gemm --shape {} --layout nn,nt,tn,tt --dtype f32,bf16,f16 --threads 1,2 {QUICK} --buffers hot -q",
        shapes.join(",")
    );
    let text = succeeds(folder.path(), &format!("{words} --format json"));
    let all = records(folder.path());
    let count = shapes.len() * 4 * 3 * 2;
    assert_eq!(all.len(), count);
    assert_eq!(text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()).collect::<Vec<_>>(), all);
    let mut keys = std::collections::BTreeSet::new();
    for record in &all {
        assert_eq!(record["outcome"]["status"], "measured", "{record}");
        let product = &record["cell"]["gemm"];
        let size = |key: &str| product[key].as_f64().unwrap();
        check_numbers(record, timing(record, "gemm", ""), 2.0 * size("m") * size("n") * size("k"));
        assert_eq!((&record["cell"]["suite"], &product["buffers"]), (&"gemm".into(), &"hot".into()));
        assert_eq!(record["metrics"]["median_us"], timing(record, "gemm", "")["median_us"]);
        assert!(record["command"].as_str().unwrap().starts_with("zbench") && record["environment"]["cpu"].is_string());
        assert!(keys.insert(record["key"].to_string()), "each cell has a key of its own");
    }
    // More calls of one question are more trials of one cell.
    succeeds(folder.path(), &words);
    let again = records(folder.path());
    assert_eq!((again.len(), &again[count]["key"], &again[count]["trial"]), (2 * count, &all[0]["key"], &2.into()));
}

#[test]
fn products_are_added_to_what_is_there_and_rounded_into_another_type() {
    let folder = tempfile::tempdir().unwrap();
    let words =
        format!("gemm --shape 70x33x129 --layout tn --dtype bf16 --output f32 --accumulate {QUICK} --threads 2 -q");
    let text = succeeds(folder.path(), &words);
    assert!(text.contains("f32 +="), "{text}");
    let all = records(folder.path());
    let product = &all[0]["cell"]["gemm"];
    assert_eq!((&product["output"], &product["accumulate"]), (&"f32".into(), &true.into()));
    let note = all[0]["notes"][0].as_str().unwrap();
    assert!(note.contains("sets of buffers"), "the default rotates: {note}");
}

#[test]
fn records_are_listed_shown_reported_and_repeated() {
    let folder = tempfile::tempdir().unwrap();
    succeeds(folder.path(), &format!("gemm --shape 16x16x16,64x64x64,128x64x32 --dtype f32 --threads 1 {QUICK} -q"));
    succeeds(
        folder.path(),
        &format!("attention --seq-len 24 --heads 2 --head-dim 8 --dtype f32 --threads 1 {QUICK} -q"),
    );
    let all = records(folder.path());
    assert_eq!(all.len(), 4);
    for (command, told) in [
        ("list", "16x16x16 nt f32"),
        ("list suite=attention --format csv", "1 x 24 tokens, 2/2 heads of 8"),
        ("report --full", "Matrix products"),
        ("report --full", "Attention"),
        ("report --format csv", "128"),
        ("report --format markdown", "| m |"),
        ("report suite=gemm --format html", "<svg"),
        ("report gemm.layout=nt --format json", "16x16x16"),
    ] {
        let text = succeeds(folder.path(), command);
        assert!(text.contains(told), "{command}: no {told:?} in {text}");
    }
    for record in &all {
        let id = record["id"].as_str().unwrap();
        let text = succeeds(folder.path(), &format!("show {id}"));
        assert!(text.contains("share_of_ceiling") || text.contains("flash_forward"), "{text}");
        let again = succeeds(folder.path(), &format!("repro {id} -q"));
        assert!(again.contains("Before and again") && again.contains(id), "{again}");
    }
    let repeated = records(folder.path());
    assert_eq!(repeated.len(), 8);
    for (old, new) in repeated[..4].iter().zip(&repeated[4..]) {
        assert_eq!((&old["cell"], &old["key"], &new["trial"]), (&new["cell"], &new["key"], &2.into()));
    }
    // Training cells stand beside them, each in its part.
    let tiny = crate::support::write(folder.path(), crate::support::TINY);
    let grid = run(folder.path(), &["grid", tiny.to_str().unwrap(), "--trials", "1", "-q"]);
    assert_eq!(grid.status.code(), Some(0), "{}", stderr(&grid));
    let text = succeeds(folder.path(), "report --full");
    assert!(text.contains("does it work?") && text.contains("Matrix products"), "{text}");
}

#[test]
fn odd_flags_are_refused_with_the_flag_and_what_to_write() {
    let folder = tempfile::tempdir().unwrap();
    for (words, told) in [
        ("gemm --shape 0x1x1", "size of 0"),
        ("gemm --shape 16x16", "write MxNxK"),
        ("gemm --shape 1x2x3x4", "write MxNxK"),
        ("gemm --shape axbxc", "write MxNxK"),
        ("gemm --shape -1x1x1", "unexpected argument"),
        ("gemm --shape 1x1x99999999999999999999999", "above 2147483648"),
        ("gemm --shape 1x1x1 --dtype fp8", "--dtype: \"fp8\" is none of"),
        ("gemm --shape 1x1x1 --dtype f64", "--dtype"),
        ("gemm --shape 1x1x1 --layout tx", "--layout: \"tx\" is none of"),
        ("gemm --shape 1x1x1 --threads 0", "--threads: 0 is too small"),
        ("gemm --shape 1x1x1 --threads many", "--threads"),
        ("gemm --shape 1x1x1 --threads 99999999", "--threads: 99999999 is too large"),
        ("gemm --shape 1x1x1 --seconds -1", "unexpected argument"),
        ("gemm --shape 1x1x1 --seconds nan", "--seconds"),
        ("gemm --shape 1x1x1 --iters 0", "--iters: 0 is too small"),
        ("gemm --shape 1x1x1 --buffers cold", "--buffers"),
        ("gemm --shape 1x1x1 --model llama-tiny", "cannot be used with"),
        ("gemm --seq-len 5", "--model"),
        ("gemm --model no-such-model", "there are"),
        ("gemm --model gpt2 --seq-len 999999999", "--seq-len: train.seq_len: 999999999 exceeds"),
        ("gemm --shape 1x1x1 --set gemm.layuot=nn", "gemm.layout"),
        ("gemm --shape 1x1x1 --set model.hidden_size=5", "--set: model.hidden_size: has no effect"),
        ("gemm nowhere.toml", "cannot be read"),
        ("attention --heads 6 --kv-heads 4", "--kv-heads: attention.kv_heads: 4 does not divide"),
        ("attention --seq-len 0", "--seq-len: 0 is too small"),
        ("attention --head-dim 0", "--head-dim"),
        ("attention --pass sideways", "--pass: \"sideways\" is none of"),
        ("attention --kernel slow", "--kernel"),
        ("attention --dtype i8", "--dtype"),
    ] {
        let output = test(folder.path(), words);
        assert_eq!(output.status.code(), Some(1), "{words}: {}{}", stdout(&output), stderr(&output));
        assert!(stderr(&output).contains(told), "{words}: no {told:?} in {}", stderr(&output));
    }
    assert_eq!(records(folder.path()).len(), 0);
}

#[test]
fn what_no_memory_holds_is_skipped_with_its_reason() {
    let folder = tempfile::tempdir().unwrap();
    // 2^31 x 2^31 elements are more than any machine has, and their bytes more than an address.
    let shapes = "1000000x1000000x1000,2147483648x2147483648x2147483648";
    let output = test(folder.path(), &format!("gemm --shape {shapes} --dtype f32 {QUICK}"));
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    let all = records(folder.path());
    assert_eq!(all.len(), 2);
    assert!(all.iter().all(|record| record["outcome"]["status"] == "skipped"));
    let reason = |record: &Value| record["outcome"]["reason"].as_str().unwrap().to_string();
    assert!(
        reason(&all[0]).contains("needs 3732.7") && reason(&all[0]).contains("this machine has"),
        "{}",
        reason(&all[0])
    );
    assert!(reason(&all[1]).contains("more bytes than a machine addresses"), "{}", reason(&all[1]));
    assert!(stdout(&output).contains("skipped: needs"), "{}", stdout(&output));
    // Beside one that fits they are a result.
    let output = test(folder.path(), &format!("gemm --shape 8x8x8,{shapes} --dtype f32 {QUICK} --threads 1"));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    if !is_full_tier() {
        return;
    }
    // Naive attention alone does not fit: flash is measured, and the other's place says why.
    let words = format!(
        "attention --seq-len 65536 --window 2 --heads 64 --head-dim 1 --dtype f32 --pass forward --threads 2 {QUICK}"
    );
    let text = succeeds(folder.path(), &words);
    assert!(text.contains("left out: "), "{text}");
    let record = records(folder.path()).pop().unwrap();
    assert!(timing(&record, "flash", "forward")["samples"].as_u64().unwrap() >= 1);
    assert_eq!(timing(&record, "naive", "forward")["samples"], 0);
    assert!(record["unstated"]["naive_forward_median_us"].as_str().unwrap().contains("left out"));
}

#[test]
fn a_grid_over_suites_is_skipped_and_says_where_the_suite_stands() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), "[grid]\nsuite = [\"gemm\", \"attention\"]\n");
    let output = run(folder.path(), &["grid", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    let all = records(folder.path());
    assert!(
        all.len() == 2 && all.iter().all(|of| of["outcome"]["reason"].as_str().unwrap().contains("outside [grid]"))
    );
}

/// Hidden 32, MLP 64, 2 layers, 2 heads of 16, vocabulary 64; 1 sequence of 16 tokens.
const MODEL: &str = "[model]\nfamily = \"llama\"\nhidden_size = 32\nintermediate_size = 64\nnum_hidden_layers = 2\n\
                     num_attention_heads = 2\nvocab_size = 64\nmax_position_embeddings = 64\n[train]\nseq_len = 16\n";

/// Products of a step by shape and layout.
fn counts(all: &[Value]) -> BTreeMap<(String, String), u64> {
    let mut counts = BTreeMap::new();
    for record in all {
        let product = &record["cell"]["gemm"];
        let word = |key: &str| product[key].as_str().unwrap().to_string();
        let count: u64 =
            record["cell"]["uses"].as_array().unwrap().iter().map(|of| of["count"].as_u64().unwrap()).sum();
        *counts.entry((word("shape"), word("layout"))).or_default() += count;
    }
    counts
}

#[test]
fn a_models_products_are_those_of_a_count_by_hand() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(
        folder.path(),
        &format!(
            "suite = \"gemm\"\n[gemm]\nbuffers = \"hot\"\n[bench]\nseconds = 0.0\niterations = 1\nwarmup = 0.0\n{MODEL}"
        ),
    );
    let text = succeeds(folder.path(), &format!("gemm {} --trials 1 -q", path.display()));
    let all = records(folder.path());
    // Of each of 2 layers q, k, v, o (32 to 32), gate and up (32 to 64), down (64 to 32); and the head (32 to 64), once.
    let expected: BTreeMap<(String, String), u64> = [
        ("16x32x32", "nt", 8),
        ("16x64x32", "nt", 2 * 2 + 1),
        ("16x32x64", "nt", 2),
        // Gradients of inputs: the sizes of out and input change places.
        ("16x32x32", "nn", 8),
        ("16x32x64", "nn", 2 * 2 + 1),
        ("16x64x32", "nn", 2),
        // Gradients of weights: sums over the 16 tokens.
        ("32x32x16", "tn", 8),
        ("64x32x16", "tn", 2 * 2 + 1),
        ("32x64x16", "tn", 2),
    ]
    .map(|(shape, layout, count)| ((shape.to_string(), layout.to_string()), count))
    .into();
    assert_eq!(counts(&all), expected);
    for record in &all {
        let product = &record["cell"]["gemm"];
        assert!(product["accumulate"].as_bool().unwrap() || product["layout"] != "tn", "dW is added: {product}");
        assert_eq!(record["cell"]["model"], "llama");
    }
    let flops: f64 = all
        .iter()
        .map(|record| {
            let count = record["cell"]["uses"].as_array().unwrap().iter().map(|of| of["count"].as_f64().unwrap());
            timing(record, "gemm", "")["flops"].as_f64().unwrap() * count.sum::<f64>()
        })
        .sum();
    // 6 operations per matrix parameter and token.
    assert_eq!(flops, 6.0 * 16.0 * (2.0 * (4.0 * 32.0 * 32.0 + 3.0 * 32.0 * 64.0) + 32.0 * 64.0));
    assert!(text.contains("All matrix products of one training step") && text.contains("lm_head"), "{text}");
}

#[test]
fn models_come_by_preset_folder_and_file_and_checkpointing_repeats() {
    let folder = tempfile::tempdir().unwrap();
    let dry = |words: &str| -> Vec<Value> {
        let text = succeeds(folder.path(), &format!("gemm {words} --dry-run --format json"));
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let preset = dry("--model llama-tiny --seq-len 64 --micro-batch 2 --dtype bf16");
    assert!(preset.iter().all(|cell| cell["cell"]["gemm"]["dtype"] == "bf16" && cell["cell"]["model"] == "llama-tiny"));
    let rows = |cells: &[Value]| -> Vec<u64> {
        cells.iter().map(|cell| cell["cell"]["gemm"]["m"].as_u64().unwrap()).collect()
    };
    assert!(rows(&preset).contains(&128), "2 sequences of 64 tokens");
    // Gradients of weights are kept in f32.
    assert!(
        preset.iter().any(|cell| cell["cell"]["gemm"]["output"] == "f32" && cell["cell"]["gemm"]["layout"] == "tn")
    );
    let config = serde_json::json!({
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 32, "intermediate_size": 64,
        "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 64, "max_position_embeddings": 64
    });
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let of_folder = dry(&format!("--model {} --seq-len 16 --dtype f32", folder.path().display()));
    let of_file = dry(&format!("--model {}/config.json --seq-len 16 --dtype f32", folder.path().display()));
    assert_eq!(of_folder, of_file);
    assert_eq!(counts(&of_folder).values().sum::<u64>(), 45);
    let again =
        dry(&format!("--model {} --seq-len 16 --dtype f32 --set memory.checkpointing=full", folder.path().display()));
    let repeated: u64 = again
        .iter()
        .flat_map(|cell| cell["cell"]["uses"].as_array().unwrap())
        .filter(|of| of["pass"] == "again")
        .map(|of| of["count"].as_u64().unwrap())
        .sum();
    // All but the head's, and but what each layer's last product gives, which backward does not need.
    assert!((2 * 6..=2 * 7).contains(&repeated), "{repeated}");
    assert_eq!(records(folder.path()).len(), 0);
}

#[test]
fn the_configuration_that_comes_with_it_states_a_whole_step() {
    let folder = tempfile::tempdir().unwrap();
    let path = crate::support::root().join("configs/products.toml");
    let text = succeeds(folder.path(), &format!("grid {} --dry-run --format json", path.display()));
    let all: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let types: std::collections::BTreeSet<String> =
        all.iter().map(|cell| cell["cell"]["gemm"]["dtype"].as_str().unwrap().to_string()).collect();
    assert_eq!(types.into_iter().collect::<Vec<_>>(), ["bf16", "f32"]);
    assert!(all.iter().all(|cell| cell["skipped"].is_null() && cell["cell"]["step"]["micro_batch"] == 4), "{text}");
}

#[test]
fn a_file_of_the_suite_goes_on_where_it_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let text = "name = \"products\"\nquestion = \"how fast?\"\nsuite = \"gemm\"\n[bench]\nseconds = 0.0\niterations = 2\nwarmup = 0.0\n\
                [gemm]\nbuffers = \"hot\"\n[grid]\n\"gemm.shape\" = [\"8x8x8\", \"17x3x5\", \"9000000x9000000x9\"]\n\
                \"gemm.dtype\" = [\"f32\", \"bf16\"]\n\"hardware.threads_per_rank\" = [1, 2]\n\
                [[grid.exclude]]\n\"gemm.dtype\" = \"bf16\"\n\"hardware.threads_per_rank\" = 2\n";
    let path = file(folder.path(), text);
    let path = path.to_str().unwrap();
    let only = run(folder.path(), &["gemm", path, "--only", "gemm.shape=8x8x8,gemm.dtype=f32", "--trials", "2", "-q"]);
    assert_eq!(only.status.code(), Some(0), "{}", stderr(&only));
    assert_eq!(records(folder.path()).len(), 2 * 2, "two numbers of threads, two trials");
    let whole = run(folder.path(), &["grid", path, "--trials", "2"]);
    assert_eq!(whole.status.code(), Some(0), "{}", stderr(&whole));
    assert!(stdout(&whole).contains("how fast?") && stdout(&whole).contains("skipped: needs"), "{}", stdout(&whole));
    let all = records(folder.path());
    // 3 shapes, 3 of 4 combinations; what cannot be has one record.
    assert_eq!(all.len(), 2 * 3 * 2 + 3);
    assert!(all.iter().all(|record| record["name"] == "products" && record["question"] == "how fast?"));
    let mut trials: Vec<(String, u64)> =
        all.iter().map(|record| (record["key"].to_string(), record["trial"].as_u64().unwrap())).collect();
    trials.sort();
    trials.dedup();
    assert_eq!(trials.len(), all.len(), "no trial twice");
    let again = run(folder.path(), &["gemm", path, "--trials", "2", "-q", "--format", "json"]);
    assert_eq!(again.status.code(), Some(0), "{}", stderr(&again));
    assert_eq!((records(folder.path()).len(), stdout(&again).lines().count()), (15, 15));
    let fresh = run(folder.path(), &["gemm", path, "--fresh", "--trials", "1", "-q", "--only", "gemm.shape=17x3x5"]);
    assert_eq!((fresh.status.code(), records(folder.path()).len()), (Some(0), 18));
    let dry = run(folder.path(), &["grid", path, "--dry-run"]);
    assert!(dry.status.success() && stdout(&dry).contains("to be measured") && stdout(&dry).contains("skipped"));
    assert_eq!(records(folder.path()).len(), 18);
    for (command, told) in
        [("run", "zbench grid FILE"), ("plan", "zbench grid FILE"), ("attention", "its suite is \"gemm\"")]
    {
        let output = run(folder.path(), &[command, path]);
        assert_eq!(output.status.code(), Some(1), "{command}");
        assert!(stderr(&output).contains(told), "{command}: {}", stderr(&output));
    }
}

/// `list` prints what a cell measures. `--only` takes that label and the beginning of a key, and selects no other cell.
#[test]
fn labels_of_records_and_beginnings_of_keys_select_their_cell() {
    let folder = tempfile::tempdir().unwrap();
    let bench = "[bench]\nseconds = 0.0\niterations = 2\nwarmup = 0.0\n";
    let products = "suite = \"gemm\"\n[gemm]\nbuffers = \"hot\"\n[grid]\n\"gemm.shape\" = [\"8x8x8\", \"17x3x5\"]\n\
                    \"gemm.accumulate\" = [false, true]\n";
    let attention = "suite = \"attention\"\n[attention]\nheads = 1\nhead_dim = 8\nseq_len = 16\n[grid]\n\
                     \"attention.pass\" = [\"forward\", \"both\"]\n";
    for (text, cells) in [(products, 4), (attention, 2)] {
        let folder = tempfile::tempdir_in(folder.path()).unwrap();
        let path = file(folder.path(), &text.replacen('[', &format!("{bench}["), 1));
        let path = path.to_str().unwrap();
        // The budget ends the measuring once every cell has a trial.
        let grid = run(folder.path(), &["grid", path, "--budget", "1ms", "-q"]);
        assert_eq!(grid.status.code(), Some(0), "{}", stderr(&grid));
        assert!(stderr(&grid).contains("the budget left no time for"), "{}", stderr(&grid));
        assert_eq!(records(folder.path()).len(), cells, "one trial of each cell");
        let list = run(folder.path(), &["list", "--format", "csv"]);
        let mut labels = std::collections::BTreeSet::new();
        for record in records(folder.path()) {
            let key = record["key"].as_str().unwrap();
            let row = stdout(&list).lines().find(|line| line.contains(key)).map(str::to_string).unwrap();
            let label = row.split('"').nth(1).unwrap().to_string();
            for only in [label.as_str(), &key[..8]] {
                let dry = run(folder.path(), &["grid", path, "--dry-run", "--only", only, "--format", "csv"]);
                let rows: Vec<String> = stdout(&dry).lines().skip(1).map(str::to_string).collect();
                assert!(rows.len() == 1 && rows[0].contains(key), "{only}: {rows:?} {}", stderr(&dry));
            }
            labels.insert(label);
        }
        assert_eq!(labels.len(), cells, "{labels:?}");
        let none = run(folder.path(), &["grid", path, "--dry-run", "--only", "ffff0000ffff"]);
        assert!(stderr(&none).contains("no key does"), "{}{}", stdout(&none), stderr(&none));
        let wrong = run(folder.path(), &["grid", path, "--dry-run", "--only", "dtyp=f32", "--max-cells", "1"]);
        assert!(stderr(&wrong).contains("unknown key dtyp"), "{}", stderr(&wrong));
    }
}

/// Ctrl-C ends between calls; the cells before it are recorded, standard output says how many there are, and the same command
/// goes on.
#[test]
fn an_interrupted_grid_keeps_its_cells() {
    let folder = tempfile::tempdir().unwrap();
    let text = "suite = \"gemm\"\n[bench]\nseconds = 0.2\niterations = 2\n[gemm]\nbuffers = \"hot\"\n[hardware]\nthreads_per_rank = 1\n\
                [grid]\n\"gemm.shape\" = [\"8x8x8\", \"9x9x9\", \"10x10x10\", \"11x11x11\", \"12x12x12\"]\n";
    let path = file(folder.path(), text);
    let mut command = zbench(folder.path());
    command.args(["grid", path.to_str().unwrap(), "--trials", "1"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut seen = 0;
    while seen < 2 {
        seen += usize::from(lines.next().expect("a line for each cell").unwrap().contains("GFLOP/s"));
    }
    signal(child.id(), Signal::INT);
    let rest: Vec<String> = lines.map(Result::unwrap).collect();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{rest:?}");
    let kept = records(folder.path()).len();
    assert!((2..5).contains(&kept), "{kept}");
    assert!(stdout(&output).starts_with(&format!("interrupted: {kept} of 5 cells measured\nTo go on, ")));
    assert!(!stdout(&output).contains("Matrix products"), "{}", stdout(&output));
    let again = run(folder.path(), &["grid", path.to_str().unwrap(), "--trials", "1", "-q"]);
    assert_eq!((again.status.code(), records(folder.path()).len()), (Some(0), 5));
}

/// Multiples of 64 bytes, as the arena counts.
fn footprint(elements: u64, size: u64) -> u64 {
    (elements * size).next_multiple_of(64)
}

#[test]
fn both_attention_kernels_are_right_and_take_the_memory_that_follows_from_the_shape() {
    let folder = tempfile::tempdir().unwrap();
    let lengths = tiers::some("bench::both_attention_kernels_are_right", ["37", "130"], [1, 1]);
    let words = format!(
        "attention --batch 2 --seq-len {} --heads 6 --kv-heads 2 --head-dim 24 --window 0,11,1 --dtype f32,bf16,f16 \
         --threads 1,2 {QUICK} -q",
        lengths.join(",")
    );
    let text = succeeds(folder.path(), &words);
    assert!(text.contains("flash") && text.contains("naive") && text.contains("Megatron"), "{text}");
    let all = records(folder.path());
    assert_eq!(all.len(), lengths.len() * 3 * 3 * 2);
    for record in &all {
        assert_eq!(record["outcome"]["status"], "measured", "{record}");
        let shape = &record["cell"]["attention"];
        let size = |key: &str| shape[key].as_u64().unwrap();
        let (rows, seq, dim) = (size("batch") * size("heads") * size("seq_len"), size("seq_len"), size("head_dim"));
        let window = if size("window") == 0 { seq } else { size("window") };
        let forward = (2 * size("batch") * size("heads") * dim * window * (2 * seq - window)) as f64;
        check_numbers(record, timing(record, "flash", "forward"), forward);
        check_numbers(record, timing(record, "naive", "forward"), forward);
        check_numbers(record, timing(record, "flash", "backward"), 2.5 * forward);
        check_numbers(record, timing(record, "naive", "backward"), 2.0 * forward);
        let element = if shape["dtype"] == "f32" { 4 } else { 2 };
        let out = footprint(rows * dim, element);
        for pass in ["forward", "backward"] {
            let saved = |kernel: &str| timing(record, kernel, pass)["saved_bytes"].as_u64().unwrap();
            assert_eq!(saved("flash"), out + footprint(rows, 4));
            assert_eq!(saved("naive"), out + footprint(rows * seq, element));
        }
        assert_eq!(record["metrics"]["flash_forward_median_us"], timing(record, "flash", "forward")["median_us"]);
    }
}

#[test]
fn one_pass_and_one_kernel_can_be_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let words = format!("attention --seq-len 40 --heads 2 --head-dim 16 --dtype f32 --threads 1 {QUICK} -q");
    succeeds(folder.path(), &format!("{words} --pass backward --kernel flash"));
    succeeds(folder.path(), &format!("{words} --pass forward --kernel naive"));
    let kinds = |record: &Value| -> Vec<String> {
        let all = record["timings"].as_array().unwrap();
        all.iter().map(|of| format!("{} {}", of["kernel"].as_str().unwrap(), of["pass"].as_str().unwrap())).collect()
    };
    // Long enough that the keys which most queries read are not among the sample: the kernels still agree there.
    succeeds(
        folder.path(),
        &format!(
            "attention --seq-len 1100 --heads 4 --kv-heads 2 --dtype bf16,f16 --pass backward --threads 2 {QUICK} -q"
        ),
    );
    let all = records(folder.path());
    assert_eq!((kinds(&all[0]), kinds(&all[1])), (vec!["flash backward".into()], vec!["naive forward".to_string()]));
}
