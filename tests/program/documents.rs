//! Documents through the real program: what records and the comparison say of packing, and which broken files are refused
//! before anything runs.

use crate::support::{json_lines, root, run, stderr, stdout, write};
use serde_json::Value;
use std::path::Path;

const CELL: &str = r#"
name = "documents"
question = "what does packing gain?"
[model]
preset = "llama-tiny"
num_hidden_layers = 1
[data]
source = "jsonl"
path = "notes.jsonl"
tokenizer = "tokenizer.json"
shuffle = true
document_end = 188
[train]
seq_len = 96
micro_batch = 2
steps = 2
untimed_steps = 1
[hardware]
threads_per_rank = 1
"#;

/// The cell beside its files.
fn prepared(folder: &Path, rest: &str) -> std::path::PathBuf {
    for name in ["notes.jsonl", "talks.jsonl", "tokenizer.json"] {
        std::fs::copy(root().join("configs/data").join(name), folder.join(name)).unwrap();
    }
    write(folder, &format!("{CELL}{rest}"))
}

fn records(folder: &Path, file: &Path) -> Vec<Value> {
    let output = run(&folder.join("nb"), &["grid", file.to_str().unwrap(), "--trials", "1", "--format", "json"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    json_lines(&stdout(&output))
}

#[test]
fn records_count_padding_and_targets_apart_and_the_comparison_says_what_packing_gains() {
    let folder = tempfile::tempdir().unwrap();
    let grid = "[grid]\n\"data.packing\" = [\"packed\", \"padded\", \"stream\"]\n\"parallel.ranks\" = [1, 2]\n";
    let file = prepared(folder.path(), grid);
    let all = records(folder.path(), &file);
    assert_eq!(all.len(), 6);
    for record in &all {
        let packing = record["cell"]["data"]["packing"].as_str().unwrap();
        let ranks = record["cell"]["parallel"]["ranks"].as_u64().unwrap();
        let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{packing}: {value}"));
        let metric = |name: &str| number(&record["metrics"][name]);
        for step in record["steps"].as_array().unwrap() {
            let (tokens, padding) = (number(&step["tokens"]), number(&step["padding_tokens"]));
            assert_eq!(tokens + padding, (ranks * 2 * 96) as f64, "{packing}");
            assert!(number(&step["target_tokens"]) <= tokens);
        }
        let (real, places) = (metric("tokens_per_second"), metric("places_per_second"));
        assert!((real / places - (1.0 - metric("padding_share"))).abs() < 1e-9);
        assert!(metric("target_tokens_per_second") <= real);
        match packing {
            "packed" => assert!(metric("padding_share") < 0.1, "{}", metric("padding_share")),
            "padded" => assert!(metric("padding_share") > 0.0, "{}", metric("padding_share")),
            _ => assert_eq!(metric("padding_share"), 0.0),
        }
        let found = &record["documents"];
        // Of the whole file; a few steps see a few sequences of it.
        let density = number(&found["real_tokens"]) / (number(&found["sequences"]) * 96.0);
        match packing {
            "packed" => assert!(density > 0.95, "{density}"),
            "padded" => assert!(density < 0.8, "{density}"),
            _ => assert_eq!(density, 1.0),
        }
        assert_eq!((number(&found["documents"]), number(&found["without_loss"])), (400.0, 0.0));
        let cut = record["notes"].to_string().contains("cut into pieces");
        assert_eq!(cut, packing != "stream", "{}", record["notes"]);
    }
    let report = stdout(&run(&folder.path().join("nb"), &["report", "--full"]));
    for part in ["Packing", "against padded", "padded", "tokens with a loss"] {
        assert!(report.contains(part), "no {part:?} in {report}");
    }
}

#[test]
fn answers_mixtures_and_held_out_data_run_and_plan() {
    let folder = tempfile::tempdir().unwrap();
    let file = prepared(folder.path(), "");
    let mix = "data.files=[{ path = \"notes.jsonl\", weight = 3.0 }, { path = \"talks.jsonl\", form = \"chat\" }]";
    let run = |command: &str, set: &[&str]| {
        let mut program = crate::support::zbench(&folder.path().join("nb"));
        program.arg(command).arg(&file).args(["--format", "json"]);
        for term in set {
            program.args(["--set", term]);
        }
        let output = program.output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{set:?}: {}", stderr(&output));
        serde_json::from_str::<Value>(stdout(&output).lines().next().unwrap()).unwrap()
    };
    let chat = ["data.source=chat", "data.path=talks.jsonl", "data.packing=packed"];
    let record = run("run", &chat);
    let step = &record["steps"][0];
    let (targets, tokens) = (step["target_tokens"].as_u64().unwrap(), step["tokens"].as_u64().unwrap());
    assert!(targets > 0 && targets * 2 < tokens, "answers are less than half of {tokens}: {targets}");
    let all = run("run", &[&chat[..], &["data.loss_on=all"]].concat());
    assert!(all["steps"][0]["target_tokens"].as_u64() > Some(targets));
    assert!(run("plan", &chat)["key"].is_string());
    // A mixture takes the place of the file.
    let text = std::fs::read_to_string(&file).unwrap();
    let text = text.replace("source = \"jsonl\"\npath = \"notes.jsonl\"", "source = \"mix\"");
    std::fs::write(&file, text).unwrap();
    let record = run("run", &[mix]);
    assert_eq!(record["documents"]["documents"].as_u64(), Some(600));
    assert_eq!(record["outcome"]["status"], "measured");
}
