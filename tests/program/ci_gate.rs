//! ci/run-gate, as the workflows start it: a baseline is made and held to, and what goes wrong is told.

use std::path::Path;
use std::process::{Command, Output};

const RULES: &str = r#"
config = "cell.toml"
[metrics.peak_memory_bytes]
[metrics.wire_bytes]
[metrics.loss]
"#;

const CELL: &str = r#"
[model]
family = "llama"
hidden_size = 32
intermediate_size = 48
num_hidden_layers = 1
num_attention_heads = 2
num_key_value_heads = 1
vocab_size = 64
max_position_embeddings = 32
[train]
seq_len = 16
micro_batch = 1
steps = 2
untimed_steps = 1
[parallel]
ranks = 2
strategy = "zero2"
"#;

fn run_gate(folder: &Path, arguments: &[&str]) -> Output {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    Command::new(root.join("ci/run-gate"))
        .args(arguments)
        .env("RULES", folder.join("rules.toml"))
        .env("OUT", folder.join("out"))
        .env("ZBENCH", env!("CARGO_BIN_EXE_zbench"))
        .env_remove("GITHUB_ACTIONS")
        .env_remove("GITHUB_STEP_SUMMARY")
        .output()
        .unwrap()
}

fn says(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn a_baseline_is_made_and_held_to() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("rules.toml"), RULES).unwrap();
    std::fs::write(folder.path().join("cell.toml"), CELL).unwrap();
    let baseline = folder.path().join("baselines/here.json");
    let baseline = baseline.to_str().unwrap();

    let absent = run_gate(folder.path(), &["baseline", baseline]);
    assert_eq!(absent.status.code(), Some(1), "{}", says(&absent));
    assert!(says(&absent).contains("ci/run-gate refresh"), "{}", says(&absent));

    let made = run_gate(folder.path(), &["refresh", baseline]);
    assert_eq!(made.status.code(), Some(0), "{}", says(&made));
    let held = run_gate(folder.path(), &["baseline", baseline]);
    assert_eq!(held.status.code(), Some(0), "{}", says(&held));
    assert!(says(&held).to_lowercase().contains("pass"), "{}", says(&held));
    for file in ["gate.json", "gate.xml", "gate.md", "doctor.json"] {
        let size = std::fs::metadata(folder.path().join("out").join(file)).unwrap().len();
        assert!(size > 0, "{file}");
    }

    // Another model is another question, and no verdict of the run before is left behind.
    std::fs::write(folder.path().join("cell.toml"), CELL.replace("micro_batch = 1", "micro_batch = 2")).unwrap();
    let other = run_gate(folder.path(), &["baseline", baseline]);
    assert_eq!(other.status.code(), Some(1), "{}", says(&other));
    assert!(!folder.path().join("out/gate.md").exists());
}

#[test]
fn what_cannot_be_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let usage = run_gate(folder.path(), &["measure"]);
    assert_eq!(usage.status.code(), Some(1));
    assert!(says(&usage).contains("ci/run-gate against REF"), "{}", says(&usage));
    let rules = run_gate(folder.path(), &["baseline", "x"]);
    assert_eq!(rules.status.code(), Some(1));
    assert!(says(&rules).contains("RULES=FILE"), "{}", says(&rules));
    std::fs::write(folder.path().join("rules.toml"), RULES).unwrap();
    let commit = run_gate(folder.path(), &["against", "no-such-commit"]);
    assert_eq!(commit.status.code(), Some(1));
    assert!(says(&commit).contains("git knows no commit no-such-commit"), "{}", says(&commit));
}
