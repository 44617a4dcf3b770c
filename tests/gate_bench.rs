//! Notebooks, rules and runs for tests of `zbench gate`.

#![allow(dead_code)] // each of the two test programs uses a part

use crate::support::{stderr, stdout, write, zbench};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Output;

pub const RULES: &str =
    "[metrics.tokens_per_second]\n[metrics.peak_memory_bytes]\n[metrics.wire_bytes]\n[metrics.loss]\n";

/// A record of a cell: ten steps that each take this long.
pub fn record(key: &str, trial: u32, ms: f64) -> Value {
    let steps: Vec<Value> = (1..=10u32)
        .map(|step| {
            // Trials differ a little, in a way that is written here.
            let ms = ms * (1.0 + f64::from((trial * 7 + step * 3) % 11) / 2000.0);
            json!({ "step": step, "timed": true, "loss": 5.0 / f64::from(step), "ms": ms, "tokens": 100 })
        })
        .collect();
    json!({
        "schema": 1, "id": format!("{key}-{trial}-{ms}"), "key": key, "name": "hand", "trial": trial,
        "cell": { "parallel": { "strategy": "zero3", "ranks": 4 } },
        "environment": { "cpu": "a made-up one", "cores": 2, "commit": "abc" },
        "command": "by hand", "started": "2026-01-01T00:00:00Z",
        "outcome": { "status": "measured" },
        "metrics": { "tokens_per_second": 1e5 / ms, "peak_memory_bytes": 4096.0 },
        "steps": steps,
        "communication": [{ "axis": "data", "kind": "all_gather", "calls": 2, "payload_bytes": 64, "wire_bytes": 32, "ms": 1.0, "exposed_ms": 1.0 }],
    })
}

/// Twelve trials, each changed before it is written.
pub fn records(ms: f64, change: impl Fn(&mut Value)) -> Vec<Value> {
    let one = |trial| {
        let mut record = record("abcd", trial, ms);
        change(&mut record);
        record
    };
    (1..=12).map(one).collect()
}

pub fn notebook(folder: &Path, name: &str, records: &[Value]) -> PathBuf {
    let path = folder.join(name);
    std::fs::create_dir_all(&path).unwrap();
    let lines: String = records.iter().map(|record| format!("{record}\n")).collect();
    std::fs::write(path.join("records.jsonl"), lines).unwrap();
    path
}

pub struct Bench {
    pub folder: tempfile::TempDir,
}

impl Bench {
    pub fn new() -> Bench {
        Bench { folder: tempfile::tempdir().unwrap() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn rules(&self, text: &str) -> PathBuf {
        let path = self.path("rules.toml");
        std::fs::write(&path, text).unwrap();
        path
    }

    /// `gate RULES --baseline A --candidate B …`.
    pub fn compare(&self, rules: &str, a: &[Value], b: &[Value], more: &[&str]) -> Output {
        let rules = self.rules(rules);
        let (a, b) = (notebook(self.folder.path(), "a", a), notebook(self.folder.path(), "b", b));
        let mut command = zbench(&self.path("nb"));
        // Tests may themselves run under GitHub.
        command.env_remove("GITHUB_ACTIONS").env_remove("GITHUB_STEP_SUMMARY");
        command.arg("gate").arg(rules).arg("--baseline").arg(a).arg("--candidate").arg(b).args(more);
        command.output().unwrap()
    }
}

pub fn code(output: &Output) -> i32 {
    output.status.code().unwrap_or(-1)
}

/// The rows of `--format json`, and the whole.
pub fn rows(output: &Output) -> (Vec<Value>, Value) {
    let mut lines: Vec<Value> = stdout(output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let whole = lines.pop().unwrap_or_else(|| panic!("no output; {}", stderr(output)));
    (lines, whole)
}

/// The tiny cell of the other tests; bytes and losses alone, so that no speed decides.
pub fn real(bench: &Bench, more: &str) -> PathBuf {
    let cell = write(bench.folder.path(), crate::support::TINY);
    let name = cell.file_name().unwrap().to_str().unwrap().to_string();
    bench.rules(&format!(
        "config = \"{name}\"\nonly = \"parallel.strategy=ddp,memory.checkpointing=none\"\n{more}\
         [metrics.peak_memory_bytes]\n[metrics.wire_bytes]\n[metrics.loss]\n"
    ))
}
