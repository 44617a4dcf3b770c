//! `zbench gate`: verdicts, exit codes and refusals on hand-written records, and short real runs. No test depends on how fast the
//! machine is.

use crate::gate_bench::{Bench, RULES, code, real, records, rows};
use crate::support::{run, stderr, stdout};
use serde_json::{Value, json};

/// What it is, the candidate's records, more arguments, the exit code, the metric and its verdict.
type Case<'a> = (&'a str, Vec<Value>, &'a [&'a str], i32, &'a str, &'a str);

/// What it is, what is changed in a record, what the refusal says.
type Refused<'a> = (&'a str, Box<dyn Fn(&mut Value)>, &'a [&'a str]);

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
fn trials_beside_other_processes_count_where_that_is_allowed() {
    let bench = Bench::new();
    let flags = |flags: Value| move |record: &mut Value| record["validity"] = flags.clone();
    let busy = records(10.0, flags(json!(["busy_machine", "unsteady_peak"])));
    let hot = records(10.0, flags(json!(["busy_machine", "throttled"])));
    let speed = |base: &[Value], now: &[Value], more: &[&str]| {
        let output = bench.compare(RULES, base, now, &[more, &["--format", "json"]].concat());
        let (rows, _) = rows(&output);
        (code(&output), rows.into_iter().find(|row| row["metric"] == "tokens_per_second").unwrap()["verdict"].clone())
    };
    assert_eq!(speed(&busy, &busy, &[]), (4, json!("not_measured")));
    assert_eq!(speed(&busy, &busy, &["--allow-load"]), (0, json!("pass")));
    assert_eq!(speed(&busy, &hot, &["--allow-load"]), (4, json!("not_measured")), "heat is no load of others");
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
