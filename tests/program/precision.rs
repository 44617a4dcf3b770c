//! Precision through the real program: loss scaling and narrow wires over processes, what records and reports say of them.

use crate::support::{root, stderr, stdout, write, zbench};
use serde_json::Value;
use std::path::Path;
use zbench_reports::Record;
use zbench_reports::grid_report::comparison;
use zbench_test_tiers as tiers;

/// A cell of four ranks, so small that a step takes a moment.
const CELL: &str = r#"
name = "precision"
[model]
family = "llama"
hidden_size = 32
intermediate_size = 64
num_hidden_layers = 2
num_attention_heads = 2
vocab_size = 64
max_position_embeddings = 64
[train]
seq_len = 16
steps = 11
untimed_steps = 1
clip_norm = 0.5
lr = 1e-2
[parallel]
ranks = 4
[hardware]
threads_per_rank = 1
[precision]
"#;

fn run(folder: &Path, precision: &str, set: &[&str]) -> (Option<i32>, Value) {
    let file = write(folder, &format!("{CELL}{precision}"));
    let mut command = zbench(&folder.join("nb"));
    command.arg("run").arg(file).args(["--format", "json"]);
    for term in set {
        command.args(["--set", term]);
    }
    let output = command.output().unwrap();
    let text = stdout(&output);
    let line = text.lines().next().unwrap_or_else(|| panic!("no record; {}", stderr(&output)));
    (output.status.code(), serde_json::from_str(line).unwrap())
}

fn measured(folder: &Path, precision: &str, set: &[&str]) -> Value {
    let (code, record) = run(folder, precision, set);
    assert_eq!(code, Some(0), "{precision} {set:?}: {}", record["outcome"]);
    record
}

/// What all backends must agree on, bit for bit; JSON keeps every bit of a number.
fn course(record: &Value) -> Vec<Value> {
    let of = |step: &Value| {
        let keys = ["step", "loss", "grad_norm", "lr", "loss_scale", "skipped"];
        Value::Array(keys.iter().map(|key| step[key].clone()).collect())
    };
    record["steps"].as_array().unwrap().iter().map(of).collect()
}

#[test]
fn processes_skip_and_round_as_threads_do() {
    let folder = tempfile::tempdir().unwrap();
    let policies = [
        // Above what f16 holds: the first steps are skipped.
        "preset = \"f16-mixed\"\ninitial_scale_power = 24",
        "preset = \"bf16-mixed\"\nreduce = \"bf16\"",
        "preset = \"bf16\"\nrounding = \"stochastic\"",
    ];
    // In the ci tier each policy under another strategy.
    let all = (0..9).map(|at| (at / 3, ["ddp", "zero3", "hsdp"][(at / 3 + at) % 3]));
    for (place, strategy) in tiers::some("precision::processes_skip_and_round_as_threads_do", all, [3, 3]) {
        let policy = policies[place];
        let strategy = format!("parallel.strategy={strategy}");
        let threads = measured(folder.path(), policy, &[&strategy]);
        for backend in ["shm", "tcp"] {
            let set = [&*strategy, &format!("parallel.backend={backend}")];
            let processes = measured(folder.path(), policy, &set);
            assert_eq!(course(&processes), course(&threads), "{policy} {set:?}");
        }
        let steps = threads["steps"].as_array().unwrap();
        if place > 0 {
            assert!(steps.iter().all(|step| step.get("skipped").is_none() && step.get("loss_scale").is_none()));
            assert!(threads["metrics"].get("skipped_steps").is_none());
            continue;
        }
        let skipped = steps.iter().filter(|step| step["skipped"] == true).count();
        assert!(skipped > 0 && skipped < steps.len(), "{skipped} of {} steps were skipped", steps.len());
        assert!(steps.iter().all(|step| step["grad_norm"].is_null() == (step["skipped"] == true)));
        assert_eq!(threads["metrics"]["skipped_steps"].as_f64(), Some(skipped as f64));
        assert_eq!(threads["metrics"]["loss_scale_last"], steps[steps.len() - 1]["loss_scale"]);
        let notes = threads["notes"].as_array().unwrap();
        let says = |note: &Value| note.as_str().is_some_and(|note| note.contains("overflowed at the loss scale"));
        assert!(notes.iter().any(says), "{notes:?}");
    }
}

#[test]
fn an_overflow_at_the_smallest_scale_is_divergence() {
    let folder = tempfile::tempdir().unwrap();
    let policy = "preset = \"f16-mixed\"\ninitial_scale_power = 40\nmin_loss_scale = 549755813888\nhysteresis = 1";
    let (code, record) = run(folder.path(), policy, &[]);
    assert_eq!((code, record["outcome"]["status"].as_str()), (Some(5), Some("diverged")), "{}", record["outcome"]);
    let reason = record["outcome"]["reason"].as_str().unwrap();
    assert!(reason.contains("step 2") && reason.contains("smallest loss scale"), "{reason}");
    assert_eq!(record["steps"].as_array().map(Vec::len), Some(1));
}

/// The policies of the field, few steps of each: what the report says of them.
#[test]
fn the_precision_table_states_bytes_and_loss_differences() {
    let folder = tempfile::tempdir().unwrap();
    let notebook = folder.path().join("nb");
    let mut grid = zbench(&notebook);
    grid.arg("grid").arg(root().join("configs/precision-table.toml")).arg("--no-repeats");
    let output = grid.args(["--trials", "1", "--set", "train.steps=6"]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let output = zbench(&notebook).args(["report", "--format", "json"]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let records: Vec<Record> = stdout(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let document = comparison(&records, None);
    let table = document.tables().find(|table| table.name == "precision").expect("a table of policies");
    let at = |title: &str| table.columns.iter().position(|column| column.title == title).expect(title);
    let rows = &table.rows;
    assert_eq!(rows.len(), 6);
    let wanted = [
        ("f32", ["as it comes", "none", "f32", "f32", "f32"], 16.0),
        ("fsdp-memory-constrained", ["bf16", "none", "bf16", "bf16", "bf16"], 8.0),
        ("fsdp-mixed", ["bf16", "bf16", "f32", "bf16", "f32"], 16.0),
        ("deepspeed", ["bf16", "bf16", "f32", "bf16", "f32"], 16.0),
        ("f16-mixed", ["as it comes", "f16", "f32", "f16, reduction f32", "f32"], 18.0),
        ("fsdp-memory-constrained, rounding stochastic", ["bf16", "none", "bf16, stochastic", "bf16", "bf16"], 8.0),
    ];
    for (policy, types, bytes) in wanted {
        let row = rows.iter().find(|row| row[at("policy")].text == policy).unwrap_or_else(|| panic!("{policy}"));
        for (title, wanted) in
            ["loading", "mixed precision", "preparation", "training", "optimizer"].into_iter().zip(types)
        {
            assert_eq!(row[at(title)].text, wanted, "{policy}: {title}");
        }
        let number = |title: &str| row[at(title)].value.as_f64();
        assert_eq!(number("bytes per parameter"), Some(bytes), "{policy}");
        // zero3 copies no weights into `parameters`: what is beyond the types is padding, below 1 %.
        let measured = number("measured").unwrap();
        assert!((bytes..bytes * 1.01).contains(&measured), "{policy}: {measured} bytes measured");
        let within = row[at("within")].text.as_str();
        if policy == "f32" {
            assert_eq!((within, number("largest loss difference")), ("the reference", None));
        } else {
            let [largest, last, band] = ["largest loss difference", "last", "band"].map(|title| number(title).unwrap());
            assert!(within == "yes" && largest <= band && last <= largest, "{policy}: {largest} for {band}");
            assert!(largest > 0.0, "{policy}: rounds nothing");
        }
        assert_eq!(number("skipped steps").is_some(), policy == "f16-mixed", "{policy}");
    }
}
