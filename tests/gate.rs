//! `zbench gate`: verdicts and exit codes on hand-written records, refusals, its documents, its rules' file, and short real
//! runs. No test here depends on how fast the machine is.

use crate::support::{run, stderr, stdout, write, zbench};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Output;

const RULES: &str = "[metrics.tokens_per_second]\n[metrics.peak_memory_bytes]\n[metrics.wire_bytes]\n[metrics.loss]\n";

/// What it is, the candidate's records, more arguments, the exit code, the metric and its verdict.
type Case<'a> = (&'a str, Vec<Value>, &'a [&'a str], i32, &'a str, &'a str);
/// What it is, what is changed in a record, what the refusal says.
type Refused<'a> = (&'a str, Box<dyn Fn(&mut Value)>, &'a [&'a str]);

/// A record of a cell: ten steps that each take this long.
fn record(key: &str, trial: u32, ms: f64) -> Value {
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
fn records(ms: f64, change: impl Fn(&mut Value)) -> Vec<Value> {
    let one = |trial| {
        let mut record = record("abcd", trial, ms);
        change(&mut record);
        record
    };
    (1..=12).map(one).collect()
}

fn notebook(folder: &Path, name: &str, records: &[Value]) -> PathBuf {
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
    fn compare(&self, rules: &str, a: &[Value], b: &[Value], more: &[&str]) -> Output {
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
fn rows(output: &Output) -> (Vec<Value>, Value) {
    let mut lines: Vec<Value> = stdout(output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let whole = lines.pop().unwrap_or_else(|| panic!("no output; {}", stderr(output)));
    (lines, whole)
}

#[test]
fn every_verdict_has_its_exit_code() {
    let bench = Bench::new();
    let same = |_: &mut Value| {};
    let base = records(10.0, same);
    let flagged = |record: &mut Value| record["validity"] = json!(["throttled"]);
    let out = |record: &mut Value| {
        record["outcome"] = json!({ "status": "out_of_memory", "reason": "no room", "source": "arena" })
    };
    let failed = |record: &mut Value| record["outcome"] = json!({ "status": "failed", "reason": "a panic" });
    let cases: [Case; 11] = [
        ("the same", records(10.0, same), &[], 0, "tokens_per_second", "pass"),
        ("slower", records(10.8, same), &[], 2, "tokens_per_second", "regression"),
        ("faster", records(9.0, same), &[], 0, "tokens_per_second", "improvement"),
        (
            "faster, and that fails",
            records(9.0, same),
            &["--fail-on", "improvement"],
            2,
            "tokens_per_second",
            "improvement",
        ),
        ("on the edge", records(10.25, same), &[], 3, "tokens_per_second", "inconclusive"),
        ("all flagged", records(10.0, flagged), &[], 4, "tokens_per_second", "not_measured"),
        ("two trials", records(10.0, same)[..2].to_vec(), &[], 4, "tokens_per_second", "not_measured"),
        ("out of memory now", records(10.0, out), &[], 2, "fit", "regression"),
        ("failed", records(10.0, failed), &[], 5, "run", "failed"),
        (
            "more bytes",
            records(10.0, |r| r["metrics"]["peak_memory_bytes"] = json!(4097.0)),
            &[],
            2,
            "peak_memory_bytes",
            "regression",
        ),
        ("another loss", records(10.0, |r| r["steps"][3]["loss"] = json!(1.2500001)), &[], 2, "loss", "regression"),
    ];
    for (name, now, more, expected, metric, verdict) in cases {
        let output = bench.compare(RULES, &base, &now, &[more, &["--format", "json"]].concat());
        assert_eq!(code(&output), expected, "{name}: {}{}", stdout(&output), stderr(&output));
        let (rows, whole) = rows(&output);
        let row = rows.iter().find(|row| row["metric"] == metric).unwrap_or_else(|| panic!("{name}: no {metric}"));
        assert_eq!(row["verdict"], verdict, "{name}: {row}");
        assert_eq!(whole["exit_code"], expected, "{name}");
    }
    // The baseline was out of memory, and it fits now.
    let output = bench.compare(RULES, &records(10.0, out), &records(10.0, same), &["--format", "json"]);
    assert_eq!(code(&output), 0);
    assert_eq!((&rows(&output).0[0]["class"], &rows(&output).0[0]["verdict"]), (&json!("fit"), &json!("improvement")));
}

#[test]
fn policy_and_missing_metrics() {
    let bench = Bench::new();
    let base = records(10.0, |_| {});
    let edge = records(10.25, |_| {});
    let lenient = format!("[policy]\nfail_on = [\"regression\"]\n{RULES}");
    assert_eq!(code(&bench.compare(&lenient, &base, &edge, &[])), 0);
    assert_eq!(code(&bench.compare(&lenient, &base, &edge, &["--fail-on", "inconclusive"])), 3);
    // A metric that no record has is not measured, and says why; nothing measured at all never passes.
    let absent = "[policy]\nfail_on = []\n[metrics.all_reduce_busbw_gb_s]\n";
    let unstated =
        |record: &mut Value| record["unstated"] = json!({ "all_reduce_busbw_gb_s": "one rank moves nothing" });
    let output = bench.compare(absent, &records(10.0, unstated), &records(10.0, unstated), &[]);
    assert_eq!(code(&output), 4);
    assert!(stdout(&output).contains("one rank moves nothing"), "{}", stdout(&output));
}

#[test]
fn what_may_not_be_compared_is_refused_with_the_difference() {
    let bench = Bench::new();
    let base = records(10.0, |_| {});
    let cases: [Refused; 3] = [
        (
            "machine",
            Box::new(|r| r["environment"]["cpu"] = json!("another")),
            &["machines differ", "cpu: a made-up one, then another"],
        ),
        (
            "configuration",
            Box::new(|r| {
                r["key"] = json!("ef01");
                r["cell"]["parallel"]["ranks"] = json!(8);
            }),
            &["configurations differ", "parallel.ranks: 8, then 4", "ef01|abcd"],
        ),
        ("schema", Box::new(|r| r["schema"] = json!(99)), &["schema 99", "schemas differ"]),
    ];
    for (name, change, words) in cases {
        let output = bench.compare(RULES, &base, &records(10.0, change), &[]);
        assert_eq!((code(&output), stdout(&output)), (1, String::new()), "{name}: {}", stderr(&output));
        for word in words {
            let has = word.split('|').any(|word| stderr(&output).contains(word));
            assert!(has, "{name}: {word} is not in {}", stderr(&output));
        }
    }
    // What is software is told and does not refuse.
    let output = bench.compare(RULES, &base, &records(10.0, |r| r["environment"]["commit"] = json!("def")), &[]);
    assert_eq!(code(&output), 0);
    assert!(stdout(&output).contains("commit: abc, then def"), "{}", stdout(&output));
}

#[test]
fn every_document_is_written() {
    let bench = Bench::new();
    let (xml, md, summary) = (bench.path("gate.xml"), bench.path("gate.md"), bench.path("summary.md"));
    std::fs::write(&summary, "before\n").unwrap();
    let rules = bench.rules(RULES);
    let a = notebook(bench.folder.path(), "a", &records(10.0, |_| {}));
    let b = notebook(bench.folder.path(), "b", &records(11.0, |_| {}));
    let mut command = zbench(&bench.path("nb"));
    command.env("GITHUB_ACTIONS", "true").env("GITHUB_STEP_SUMMARY", &summary);
    command.arg("gate").arg(&rules).arg("--full").arg("--baseline").arg(&a).arg("--candidate").arg(&b);
    let output = command.arg("--junit").arg(&xml).arg("--markdown").arg(&md).output().unwrap();
    assert_eq!(code(&output), 2, "{}", stderr(&output));
    let xml = std::fs::read_to_string(xml).unwrap();
    assert!(xml.starts_with("<?xml") && xml.contains("<failure") && xml.contains("tokens_per_second"), "{xml}");
    assert_eq!(xml.matches("<testcase ").count(), 4);
    let md = std::fs::read_to_string(md).unwrap();
    assert!(md.contains("| tokens_per_second | regression |"), "{md}");
    assert_eq!(std::fs::read_to_string(summary).unwrap(), format!("before\n{md}\n"));
    let errors = stderr(&output);
    assert!(errors.contains("::error title=gate%3A tokens_per_second::"), "{errors}");
    for words in ["notebook ", "records", "--candidate", "Repeat it", "NEXT    tokens_per_second: `zbench compare "] {
        assert!(stdout(&output).contains(words), "{words}: {}", stdout(&output));
    }
    // CSV and JSON are whole.
    let output = bench.compare(RULES, &records(10.0, |_| {}), &records(11.0, |_| {}), &["--format", "csv"]);
    assert!(stdout(&output).contains("tokens_per_second,regression,"), "{}", stdout(&output));
}

#[test]
fn rules_are_refused_with_place_and_nearest_name() {
    let bench = Bench::new();
    let base = records(10.0, |_| {});
    for (text, words) in [
        ("[metrics.tokens_per_secnd]\n", &["rules.toml:1:10", "did you mean tokens_per_second?"][..]),
        ("[metrics.tokens_per_second]\nslwer = \"3 %\"\n", &[":2:1", "did you mean slower?"]),
        ("[metrics.tokens_per_second]\nslower = \"3 apples\"\n", &[":2:1", "2.5 %"]),
        ("[metrics.peak_memory_bytes]\nslower = 0.1\n", &["unknown key", "more, less"]),
        ("[decide]\nconfidence = 1.5\n[metrics.loss]\n", &["decide.confidence", "0.98"]),
        ("[decide]\nmin_pairs = 9\nmax_pairs = 3\n", &["decide.max_pairs", "raise it"]),
        ("[decide]\nfigure = \"mode\"\n", &["median, lower_quartile, mean"]),
        ("[decide]\ntime_budget = \"0s\"\n", &["decide.time_budget", "2min"]),
        ("[policy]\nfail_on = [\"everything\"]\n", &["everything", "improvement"]),
        ("[metrics]\n", &["names no metric"]),
        ("set = [\"train.steps=3\"]\n", &["config", "absent"]),
        ("decide = 3\n", &["is a section"]),
        ("[decide\n", &["not TOML"]),
    ] {
        let output = bench.compare(text, &base, &base, &[]);
        assert_eq!(code(&output), 1, "{text}");
        for word in words {
            assert!(stderr(&output).contains(word), "{text}: {word} is not in {}", stderr(&output));
        }
    }
    // Arguments that lead nowhere.
    let rules = bench.rules(RULES);
    let rules = rules.to_str().unwrap();
    for (arguments, words) in [
        (&["gate", rules][..], "nothing to compare with"),
        (&["gate", rules, "--baseline", "/nowhere"], "does not exist"),
        (&["gate", rules, "--against", "/nowhere/zbench"], "no such program"),
        (&["gate", "/nowhere.toml"], "cannot be read"),
        (&["gate", rules, "--self-test"], "config is absent"),
        (&["gate", rules, "--update", "--baseline", "x.json"], "config is absent"),
    ] {
        let output = run(&bench.path("nb"), arguments);
        assert_eq!(code(&output), 1, "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(words), "{arguments:?}: {}", stderr(&output));
    }
}

/// The tiny cell of the other tests; bytes and losses alone, so that no speed decides.
fn real(bench: &Bench, more: &str) -> PathBuf {
    let cell = write(bench.folder.path(), crate::support::TINY);
    let name = cell.file_name().unwrap().to_str().unwrap().to_string();
    bench.rules(&format!(
        "config = \"{name}\"\nonly = \"parallel.strategy=ddp,memory.checkpointing=none\"\n{more}\
         [metrics.peak_memory_bytes]\n[metrics.wire_bytes]\n[metrics.loss]\n"
    ))
}

#[test]
fn two_programs_and_two_configurations_really_run() {
    let bench = Bench::new();
    let rules = real(&bench, "");
    let rules = rules.to_str().unwrap();
    let program = env!("CARGO_BIN_EXE_zbench");
    let output = run(&bench.path("nb"), &["gate", rules, "--against", program, "--format", "json", "-q"]);
    assert_eq!(code(&output), 0, "{}{}", stdout(&output), stderr(&output));
    let (found, whole) = rows(&output);
    assert!(
        found.len() == 3 && found.iter().all(|row| row["verdict"] == "pass" && row["used"].as_u64() >= Some(2)),
        "{found:?}"
    );
    assert!(found[0]["baseline"].as_f64().unwrap() > 0.0);
    // Where the machine is busy, more pairs are measured until two count.
    let pairs = whole["cells"][0]["baseline_trials"].as_u64().unwrap() as usize;
    assert!(pairs >= 2, "{pairs}");
    // The row of each metric says how it was measured, and the whole what to do next: nothing.
    assert_eq!(whole["how"], "pairs of trials of both programs in one job, in random order");
    assert_eq!(whole.get("next"), None);
    // Raw samples are kept in the notebook's folder; the notebook has no record of the gate.
    let folder: Vec<_> = std::fs::read_dir(bench.path("nb").join("gate")).unwrap().collect();
    let samples = std::fs::read_to_string(folder[0].as_ref().unwrap().path()).unwrap();
    assert_eq!(samples.lines().count(), 2 + 2 * pairs, "a first trial of each side, and the pairs");
    // Checkpointing saves memory and changes no loss.
    let set = ["--candidate-set", "memory.checkpointing=full"];
    let output = run(&bench.path("nb"), &[&["gate", rules], &set[..], &["--format", "json", "-q"]].concat());
    assert_eq!(code(&output), 0, "{}{}", stdout(&output), stderr(&output));
    let verdicts: Vec<Value> = rows(&output).0.iter().map(|row| row["verdict"].clone()).collect();
    assert_eq!(verdicts[0], "improvement");
    assert_eq!(verdicts[2], "pass");
    // A capacity that it cannot have: out of memory is a class of its own.
    let explained = |whole: &Value| whole["next"].as_str().unwrap_or_default().to_string();
    let set = ["--candidate-set", "memory.capacity=20KiB"];
    let output = run(&bench.path("nb"), &[&["gate", rules], &set[..], &["--format", "json", "-q"]].concat());
    assert_eq!(code(&output), 2, "{}{}", stdout(&output), stderr(&output));
    assert_eq!((&rows(&output).0[0]["class"], &rows(&output).0[0]["verdict"]), (&json!("fit"), &json!("regression")));
    let next = explained(&rows(&output).1);
    for words in ["--set memory.capacity=20KiB --notebook after", "zbench compare before after", "raw samples are in"] {
        assert!(next.contains(words), "{words} is not in {next}");
    }
    // A change that changes nothing.
    let output = run(&bench.path("nb"), &["gate", rules, "--candidate-set", "train.steps=2"]);
    assert!(code(&output) == 1 && stderr(&output).contains("changes nothing"), "{}", stderr(&output));
}

#[test]
fn a_baseline_is_written_whole_compared_with_and_refused_when_it_does_not_fit() {
    let bench = Bench::new();
    let rules = real(&bench, "[decide]\nmin_pairs = 2\ntime_budget = 2\n");
    let rules = rules.to_str().unwrap();
    let file = bench.path("deep/baseline.json");
    let file = file.to_str().unwrap();
    // Whether the machine was busy is not for this test: bytes and losses count in any case.
    let output = run(&bench.path("nb"), &["gate", rules, "--update", "--baseline", file, "-q"]);
    if code(&output) == 1 && stderr(&output).contains("trials count") {
        eprintln!("a baseline that is written whole: NOT TESTED, since the machine is so busy that no trial counts");
        return;
    }
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let text = std::fs::read_to_string(file).unwrap();
    let written: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(written["gate_baseline"], 1);
    for key in ["written", "command", "program", "rules"] {
        assert!(
            written["provenance"][key].as_str().is_some_and(|text| !text.is_empty()),
            "{key}: {}",
            written["provenance"]
        );
    }
    assert!(written["cells"][0]["trials"].as_array().unwrap().len() >= 2);
    assert!(written["cells"][0]["environment"]["cores"].as_u64().is_some());
    assert_eq!(std::fs::read_dir(bench.path("deep")).unwrap().count(), 1, "nothing is left beside it");
    let output = run(&bench.path("nb"), &["gate", rules, "--baseline", file, "--format", "json", "-q"]);
    assert_eq!(code(&output), 0, "{}{}", stdout(&output), stderr(&output));
    assert!(rows(&output).1["notes"].to_string().contains("--against PROGRAM"));
    // Without a configuration the baseline's own cell runs again.
    let bare = bench.path("bare.toml");
    std::fs::write(&bare, "[metrics.wire_bytes]\n[metrics.loss]\n").unwrap();
    let output =
        run(&bench.path("nb"), &["gate", bare.to_str().unwrap(), "--baseline", file, "--format", "json", "-q"]);
    assert_eq!(code(&output), 0, "{}{}", stdout(&output), stderr(&output));
    // Another machine, another schema, another configuration.
    let changed = |change: &dyn Fn(&mut Value)| {
        let mut copy = written.clone();
        change(&mut copy);
        let path = bench.path("changed.json");
        std::fs::write(&path, copy.to_string()).unwrap();
        let output = run(&bench.path("nb"), &["gate", rules, "--baseline", path.to_str().unwrap(), "-q"]);
        (code(&output), stderr(&output))
    };
    let (code, words) = changed(&|file| file["cells"][0]["environment"]["cores"] = json!(4096));
    assert!(code == 1 && words.contains("cores: 4096"), "{words}");
    let (code, words) = changed(&|file| file["gate_baseline"] = json!(7));
    assert!(code == 1 && words.contains("schemas differ"), "{words}");
    let (code, words) = changed(&|file| {
        file["cells"][0]["key"] = json!("0123");
        file["cells"][0]["cell"]["train"]["seed"] = json!(77);
    });
    assert!(code == 1 && words.contains("train.seed: 77"), "{words}");
    let (code, words) = changed(&|file| *file = json!({ "something": "else" }));
    assert!(code == 1 && words.contains("no baseline"), "{words}");
    // An update that cannot be one leaves the file as it is.
    let broken = format!(
        "{}\n",
        std::fs::read_to_string(rules).unwrap().replace("config =", "set = [\"memory.capacity=20KiB\"]\nconfig =")
    );
    std::fs::write(rules, broken).unwrap();
    let output = run(&bench.path("nb"), &["gate", rules, "--update", "--baseline", file, "-q"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("out of memory"), "{}", stderr(&output));
    assert_eq!(std::fs::read_to_string(file).unwrap(), text);
}

#[test]
fn ctrl_c_keeps_and_prints_what_was_measured() {
    use std::io::Read;
    let bench = Bench::new();
    let cell = write(bench.folder.path(), crate::support::TINY);
    let name = cell.file_name().unwrap().to_str().unwrap().to_string();
    let rules = bench.rules(&format!(
        "config = \"{name}\"\nonly = \"parallel.strategy=ddp,memory.checkpointing=none\"\n[decide]\nmin_pairs = 900\n\
         max_pairs = 900\ntime_budget = \"1h\"\n[metrics.tokens_per_second]\n"
    ));
    let samples = bench.path("samples.jsonl");
    let mut command = zbench(&bench.path("nb"));
    command.arg("gate").arg(&rules).args([
        "--against",
        env!("CARGO_BIN_EXE_zbench"),
        "--format",
        "json",
        "-q",
        "--samples",
    ]);
    let mut child = command.arg(&samples).stdout(std::process::Stdio::piped()).spawn().unwrap();
    let lines = || std::fs::read_to_string(&samples).unwrap_or_default().lines().count();
    let begun = std::time::Instant::now();
    while lines() < 4 && begun.elapsed().as_secs() < 120 {
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let pid = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{text}");
    let whole: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!(whole["interrupted"], true);
    assert!(lines() >= 4);
}

/// However a gate is aborted, nothing of it stays in the folder for temporary files and no process of it is left.
#[test]
fn an_aborted_gate_leaves_no_temporary_files() {
    use rustix::process::{Pid, Signal, kill_process};
    use std::os::unix::fs::PermissionsExt;
    use std::time::{Duration, Instant};
    let until = |what: &str, done: &mut dyn FnMut() -> bool| {
        let begun = Instant::now();
        while !done() {
            assert!(begun.elapsed() < Duration::from_secs(60), "{what}: waited a minute");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let sent: [&[Signal]; 5] =
        [&[Signal::INT], &[Signal::TERM], &[Signal::HUP], &[Signal::INT, Signal::INT], &[Signal::HUP, Signal::TERM]];
    for signals in sent {
        let bench = Bench::new();
        let cell = write(bench.folder.path(), crate::support::TINY);
        let name = cell.file_name().unwrap().to_str().unwrap().to_string();
        let rules = bench.rules(&format!(
            "config = \"{name}\"\nonly = \"parallel.strategy=ddp,memory.checkpointing=none\"\n[metrics.tokens_per_second]\n"
        ));
        // A program that does not end when it is asked to: a second signal comes while the gate waits for it.
        let (program, id, temporary) = (bench.path("stubborn"), bench.path("id"), bench.path("tmp"));
        let trap = if signals.len() > 1 { "trap '' TERM\n" } else { "" };
        let script = format!("#!/bin/sh\n{trap}echo $$ > {}.new && mv {0}.new {0}\nexec sleep 600\n", id.display());
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::create_dir(&temporary).unwrap();
        let left = || temporary.read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>();
        let mut command = zbench(&bench.path("nb"));
        command.env("TMPDIR", &temporary).arg("gate").arg(&rules).arg("--against").arg(&program);
        let mut child = command.stdout(std::process::Stdio::null()).spawn().unwrap();
        until("the first trial", &mut || id.exists());
        assert_eq!(left().len(), 1, "the trial's notebook is in the folder for temporary files");
        for (place, signal) in signals.iter().enumerate() {
            if place > 0 {
                std::thread::sleep(Duration::from_millis(500));
            }
            kill_process(Pid::from_raw(child.id() as i32).unwrap(), *signal).unwrap();
        }
        let code = child.wait().unwrap().code();
        assert_eq!(left(), Vec::<std::ffi::OsString>::new(), "{signals:?}, exit code {code:?}");
        assert_eq!(code, Some(130), "{signals:?}");
        let started: i32 = std::fs::read_to_string(&id).unwrap().trim().parse().unwrap();
        let stat = || std::fs::read_to_string(format!("/proc/{started}/stat")).unwrap_or_default();
        until("the end of the program", &mut || {
            stat().rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with('Z'))
        });
    }
}
