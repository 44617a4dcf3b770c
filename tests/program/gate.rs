//! `zbench gate`: its documents, its rules, stored baselines, and gates that are stopped.

use crate::gate_bench::*;
use crate::support::{run, signal, stderr, stdout, write, zbench};
use serde_json::{Value, json};

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
        "config = \"{name}\"\nonly = \"parallel.strategy=ddp\"\n[decide]\nmin_pairs = 900\n\
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
    signal(child.id(), rustix::process::Signal::INT);
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{text}");
    let whole: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!((&whole["interrupted"], &whole["exit_code"]), (&true.into(), &130.into()), "{text}");
    assert!(lines() >= 4);
    assert!(text.contains("it was stopped before this cell began"), "the second cell has a row: {text}");
}

/// However a gate is aborted, nothing of it stays in the folder for temporary files and no process of it is left.
#[test]
fn an_aborted_gate_leaves_no_temporary_files() {
    use rustix::process::Signal;
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
        for (place, sent) in signals.iter().enumerate() {
            if place > 0 {
                std::thread::sleep(Duration::from_millis(500));
            }
            signal(child.id(), *sent);
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
