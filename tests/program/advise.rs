//! `zbench advise`: one recommendation with its alternatives, its cost and its file, and what it says where nothing fits.

use crate::support::{run, stderr, stdout};
use serde_json::Value;
use std::path::Path;
use zbench_config::files::Files;
use zbench_config::{Context, Document, grid};

/// A question that is answered quickly.
const SMALL: [&str; 10] =
    ["--model", "llama2-7b", "--gpus", "16", "--profile", "a100-80gb", "--global-batch", "64", "--seq-len", "2048"];

/// `zbench advise` with these arguments as JSON, which must end with this code.
fn advise(code: i32, arguments: &[&str]) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let output = run(folder.path(), &[&["advise", "--format", "json"], arguments].concat());
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", stderr(&output));
    serde_json::from_str(&stdout(&output)).unwrap()
}

/// The error of `zbench advise`, which is one of usage.
fn refused(arguments: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let output = run(folder.path(), &[&["advise"], arguments].concat());
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {}", stdout(&output));
    stderr(&output)
}

fn number(value: &Value, path: &str) -> f64 {
    value.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("{path} of {value}"))
}

fn close(one: f64, other: f64) -> bool {
    (one - other).abs() <= 1e-9 * one.abs().max(other.abs())
}

#[test]
fn advice_is_the_best_way_with_its_cost_and_why_two_others_lost() {
    let advice = advise(0, &[&SMALL[..], &["--price", "2"]].concat());
    assert_eq!(advice["recommended"], advice["search"]["best"][0]);
    assert!(number(&advice, "/recommended/memory_bytes") <= number(&advice, "/search/limit_bytes"));
    // Sixteen devices at 2 an hour, for as long as a million tokens take.
    let speed = number(&advice, "/recommended/tokens_per_second");
    assert!(close(number(&advice, "/cost/per_million_tokens"), 1e6 / speed * 16.0 * 2.0 / 3600.0));
    let [low, high] = [0, 1].map(|end| number(&advice, &format!("/cost/per_million_tokens_band/{end}")));
    assert!(low < number(&advice, "/cost/per_million_tokens") && number(&advice, "/cost/per_million_tokens") < high);
    let alternatives = advice["search"]["alternatives"].as_array().unwrap();
    assert_eq!(alternatives.len(), 2);
    for one in alternatives {
        let slower = number(one, "/slower");
        let spans: f64 = one["spans"].as_object().unwrap().values().map(|share| share.as_f64().unwrap()).sum();
        assert!(slower >= 0.0 && (spans - slower).abs() < 1e-9, "{one}");
        assert!(!one["why"].as_str().unwrap().is_empty());
        // Each splits the work otherwise.
        let of = |way: &Value, key: &str| way["settings"][key].as_str().unwrap().to_string();
        let differs = ["strategy", "tensor", "pipeline", "context"].iter().any(|axis| {
            let key = format!("parallel.{axis}");
            of(&one["candidate"], &key) != of(&advice["recommended"], &key)
        }) || one["candidate"]["settings"]["memory.offload_optimizer"] != "none"
            || one["candidate"]["settings"]["memory.offload_parameters"] != "none"
            || one["candidate"]["settings"]["memory.offload_activations"] != "none";
        assert!(differs, "{one}");
    }
    assert!(advise(0, &SMALL)["cost"].is_null(), "without a price there is no cost");
}

#[test]
fn advice_is_one_screen_that_begins_with_the_answer() {
    let folder = tempfile::tempdir().unwrap();
    for price in [&[][..], &["--price", "2.5"]] {
        let output = run(folder.path(), &[&["advise"], &SMALL[..], price].concat());
        let text = stdout(&output);
        assert!(text.starts_with("ANSWER   ") && text.lines().count() <= 24, "{text}");
        assert_eq!(text.contains("cost of a million tokens"), !price.is_empty(), "{text}");
        assert!(text.contains("memory of the fullest rank") && text.contains("INSTEAD"), "{text}");
    }
    assert!(!folder.path().join("notebook").exists(), "advice makes no notebook");
}

/// What is exported for zbench is planned as it was advised, whatever the file said of the split.
#[test]
fn advice_as_a_file_is_planned_as_it_was_advised() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("advice.toml");
    let path = path.to_str().unwrap();
    let stated = folder.path().join("stated.toml");
    let text = "[model]\npreset = \"llama2-7b\"\n[train]\nseq_len = 2048\nmicro_batch = 2\naccumulation = 4\n[parallel]\nranks = 16\n\
                tensor = 2\nstrategy = \"zero1\"\n[precision]\npreset = \"bf16-mixed\"\n[hardware]\nprofile = \"a100-80gb\"\n\
                gpu_hour_price = 3\n";
    std::fs::write(&stated, text).unwrap();
    let of_file = advise(0, &[stated.to_str().unwrap(), "--export", "zbench", "-o", path]);
    let of_options = advise(0, &SMALL);
    assert_eq!(of_file["recommended"], of_options["recommended"], "the same question has the same answer");
    assert_eq!(of_file["asked"]["gpu_hour_price"], 3.0);
    let output = run(folder.path(), &["plan", path, "--format", "json"]);
    let row: Value = serde_json::from_str(&stdout(&output)).unwrap_or_else(|_| panic!("{}", stderr(&output)));
    assert!(close(number(&row, "/step_ms"), number(&of_file, "/recommended/step_ms")), "{row}");
    assert_eq!(row["total_bytes"], of_file["recommended"]["memory_bytes"]);
    assert!(refused(&[stated.to_str().unwrap(), "--export", "zbench", "-o", path]).contains("add --force"));
}

/// The resolved cell of a configuration.
fn cell(path: &Path) -> Value {
    let document = Document::read(path, &[]).unwrap();
    let context = Context::new(path.parent().unwrap().to_path_buf(), 1);
    let cells = grid::expand(&document, &[], 2, &context, &mut Files::default()).unwrap();
    grid::plain(&cells[0].resolved.as_ref().unwrap().cell)
}

/// What another program's file can say of the advice comes back from it.
#[test]
fn advice_for_other_programs_comes_back_by_import() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for (program, file) in [("deepspeed", "ds.json"), ("accelerate", "fsdp.yaml")] {
        let own = at("own.toml");
        let exported = at(file);
        let keep = ["--keep", "memory.checkpointing=none", "--keep", "memory.offload_activations=none"];
        let asked = |target: &'static str, to: &Path| {
            let to = to.to_str().unwrap().to_string();
            let software = if program == "deepspeed" { "deepspeed" } else { "fsdp2" };
            let rest = ["--software", software, "--export", target, "--force", "-o"];
            let fixed =
                ["--keep", "parallel.pipeline=1", "--keep", "parallel.context=1", "--keep", "parallel.sequence=1"];
            advise(0, &[&SMALL[..], &keep, &fixed, &rest, &[&to]].concat())
        };
        let advice = asked("zbench", &own);
        let other = asked(if program == "deepspeed" { "deepspeed" } else { "accelerate" }, &exported);
        assert_eq!(advice["recommended"], other["recommended"], "{program}");
        let back = at("back.toml");
        let arguments = [
            "import",
            exported.to_str().unwrap(),
            "--model",
            "llama2-7b",
            "--ranks",
            "16",
            "--set",
            "train.seq_len=2048",
            "--force",
            "-o",
            back.to_str().unwrap(),
        ];
        // accelerate's file does not state the batch.
        let batch =
            format!("train.micro_batch={}", advice["recommended"]["settings"]["train.micro_batch"].as_str().unwrap());
        let steps =
            format!("train.accumulation={}", advice["recommended"]["settings"]["train.accumulation"].as_str().unwrap());
        let more: &[&str] = if program == "accelerate" { &["--set", &batch, "--set", &steps] } else { &[] };
        let output = run(folder.path(), &[&arguments[..], more].concat());
        assert_eq!(output.status.code(), Some(0), "{program}: {}", stderr(&output));
        let (own, back) = (cell(&own), cell(&back));
        for key in [
            "/parallel/ranks",
            "/parallel/strategy",
            "/train/micro_batch",
            "/train/accumulation",
            "/memory/checkpointing",
        ] {
            assert_eq!(own.pointer(key), back.pointer(key), "{program}: {key}");
        }
        let tensor = |cell: &Value| cell.pointer("/parallel/tensor").cloned().unwrap_or(1.into());
        assert_eq!(tensor(&own), tensor(&back), "{program}");
    }
}

/// Where nothing fits, the nearest miss is named, and what would fit does.
#[test]
fn where_nothing_fits_it_says_what_would() {
    let question = |gpus: &'static str| {
        ["--model", "llama3-70b", "--gpus", gpus, "--profile", "a100-40gb", "--global-batch", "64", "--seq-len", "4096"]
    };
    let advice = advise(4, &question("4"));
    assert!(advice["recommended"].is_null() && advice["search"]["fitting"] == 0);
    assert!(number(&advice, "/search/nearest/memory_bytes") > number(&advice, "/search/limit_bytes"));
    let changes = advice["changes"].as_array().unwrap();
    let words = changes[0].as_str().unwrap();
    let (devices, _) = words.split_once(" devices hold it").unwrap_or_else(|| panic!("{words}"));
    let devices: &'static str = devices.to_string().leak();
    assert!(!advise(0, &question(devices))["recommended"].is_null());
    let folder = tempfile::tempdir().unwrap();
    let output = run(folder.path(), &[&["advise"], &question("4")[..]].concat());
    let text = stdout(&output);
    assert!(text.starts_with("ANSWER   Nothing fits") && text.contains("too much"), "{text}");
}

#[test]
fn questions_that_cannot_be_asked_are_refused_by_name() {
    let with = |flag: &'static str, value: &'static str| {
        let mut arguments = SMALL.to_vec();
        let place = arguments.iter().position(|word| *word == flag).unwrap();
        arguments[place + 1] = value;
        arguments
    };
    assert!(refused(&with("--model", "llama2-7")).contains("did you mean \"llama2-7b\""));
    assert!(refused(&with("--profile", "a100-80g")).contains("a100-80gb"));
    assert!(refused(&with("--gpus", "0")).contains("--gpus"));
    // Thirteen ranks are data-parallel ones, as no head count is a multiple of 13, or share a sequence.
    let error = refused(&with("--gpus", "61"));
    assert!(error.contains("a step of 64 sequences cannot be divided among 61 ranks"), "{error}");
    let nearest = error.split("have ").last().unwrap().trim().to_string();
    assert!(nearest.contains("61") && nearest.contains("122"), "{nearest}");
    for (keep, said) in [
        ("parallel.pipelines=1", "--keep parallel.pipelines=1: write a key that is searched"),
        ("train.lr=1", "a search does not vary this key; it varies parallel.strategy"),
        ("parallel.pipeline=7", "no way has it; ways have 1, 16, 2, 4, 8"),
        ("parallel.pipeline", "--keep parallel.pipeline: write a key"),
    ] {
        let error = refused(&[&SMALL[..], &["--keep", keep]].concat());
        assert!(error.contains(said), "{keep}: {error}");
    }
    assert!(refused(&["--model", "llama2-7b", "--gpus", "8"]).contains("--global-batch"));
    for price in ["0", "-1", "nan"] {
        assert!(refused(&[&SMALL[..], &["--price", price]].concat()).contains("gpu_hour_price"), "{price}");
    }
}

/// A way that the program's file cannot say is neither recommended nor kept, and what is lost of the question is named.
#[test]
fn an_export_keeps_to_what_its_program_can_say() {
    fn with<'a>(more: &[&'a str]) -> Vec<&'a str> {
        [&SMALL[..], more].concat()
    }
    let file = |advice: &Value| advice["export"]["text"].as_str().unwrap().to_string();
    let accelerate = advise(0, &with(&["--export", "accelerate"]));
    let settings = &accelerate["recommended"]["settings"];
    assert!(["none", "full"].contains(&settings["memory.checkpointing"].as_str().unwrap()), "{settings}");
    assert_eq!(settings["memory.offload_parameters"], settings["memory.offload_optimizer"]);
    let text = file(&accelerate);
    assert!(text.contains("num_machines: 2") && text.contains("fsdp_version: 2"), "{text}");
    let torchtitan = advise(0, &with(&["--export", "torchtitan", "--keep", "parallel.pipeline=2"]));
    assert_eq!(
        torchtitan["recommended"]["settings"]["parallel.sequence"],
        torchtitan["recommended"]["settings"]["parallel.tensor"]
    );
    assert!(file(&torchtitan).contains("fsdp_reshard_after_forward = \"default\""), "{torchtitan}");
    let error = refused(&with(&["--export", "deepspeed", "--keep", "parallel.pipeline=2"]));
    assert!(error.contains("--keep parallel.pipeline=2: DeepSpeed's file cannot say that; it has 1"), "{error}");
    let adapters = advise(0, &with(&["--export", "torchtitan", "--set", "lora.rank=8"]));
    assert!(adapters["export"]["notes"].to_string().contains("lora.rank"), "{}", adapters["export"]["notes"]);
    assert!(
        adapters["search"]["not_compared"].as_str().unwrap().contains("fsdp2 with adapters"),
        "{}",
        adapters["search"]["not_compared"]
    );
}

/// The fastest keeps the optimizer on the host and is 1 % faster: the recommended way is the fastest that keeps nothing there.
#[test]
fn of_ways_as_fast_the_simplest_is_recommended() {
    let question = [
        "--model",
        "llama3-70b",
        "--gpus",
        "64",
        "--profile",
        "h100-sxm",
        "--global-batch",
        "512",
        "--seq-len",
        "8192",
    ];
    let advice = advise(0, &question);
    let best = &advice["recommended"];
    assert_eq!(best["settings"]["memory.offload_optimizer"], "none");
    let fastest = advice["search"]["pareto"].as_array().unwrap();
    let least = fastest.iter().map(|way| number(way, "/step_ms")).fold(f64::INFINITY, f64::min);
    let ratio = number(best, "/step_ms") / least;
    assert!(ratio > 1.0 && ratio <= 1.02, "{ratio}");
    assert!(number(&advice["search"]["alternatives"][0], "/slower") < 0.0, "{}", advice["search"]["alternatives"][0]);
}
