//! `zbench gate --self-test`: pools of turns and of trials are measured, kept and replayed. No test here depends on how fast the
//! machine is.

use crate::gate_bench::{Bench, code};
use crate::support::{is_full_tier, run, signal, stderr, stdout, write, zbench};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::{Duration, Instant};
use zbench_reports::gate::random::Random;

/// Rules of the tiny cell's speed.
fn rules(bench: &Bench, more: &str) -> PathBuf {
    let cell = write(bench.folder.path(), crate::support::TINY);
    let name = cell.file_name().unwrap().to_str().unwrap().to_string();
    bench.rules(&format!(
        "config = \"{name}\"\nonly = \"parallel.strategy=ddp,memory.checkpointing=none\"\n{more}[metrics.tokens_per_second]\n\
         [self_test]\npairs = 4\nslow_pairs = 2\nslow_set = [\"train.micro_batch=2\"]\n"
    ))
}

fn self_test(bench: &Bench, rules: &Path, more: &[&str]) -> Output {
    let rules = rules.to_str().unwrap();
    run(&bench.path("nb"), &[&["gate", rules, "--self-test", "--runs", "3"], more].concat())
}

fn lines(pool: &Path) -> Vec<Value> {
    std::fs::read_to_string(pool).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// What is in the folder of a self-test; the same pool, replayed, has the same rates.
fn result(bench: &Bench, rules: &Path, into: &Path, seed: &str) -> Value {
    let result: Value = serde_json::from_str(&std::fs::read_to_string(into.join("result.json")).unwrap()).unwrap();
    let pool = into.join("pool.jsonl");
    let output = self_test(bench, rules, &["--pool", pool.to_str().unwrap(), "--format", "json", "--seed", seed]);
    let replayed: Value =
        serde_json::from_str(&stdout(&output)).unwrap_or_else(|error| panic!("{error}: {}", stderr(&output)));
    assert_eq!(replayed["rates"], result["rates"]);
    result
}

#[test]
fn pairs_of_trials_are_in_an_order_that_a_coin_decides() {
    let bench = Bench::new();
    let (rules, into) = (rules(&bench, ""), bench.path("into"));
    // Four heads in a row: with an order that is drawn for two pairs at a time there are none.
    let more = ["--into", into.to_str().unwrap(), "--pairs", "4", "--seed", "2", "-q"];
    let output = self_test(&bench, &rules, &more);
    // Four pairs are too few for most verdicts, but a lucky machine may make them agree: what it says and how it exits go
    // together.
    let kept = stdout(&output).contains("No promise is contradicted");
    assert_eq!(code(&output), if kept { 0 } else { 3 }, "{}{}", stdout(&output), stderr(&output));
    assert!(kept || stdout(&output).contains("A promise is CONTRADICTED"), "{}", stdout(&output));
    let pool = into.join("pool.jsonl");
    let lines = lines(&pool);
    assert_eq!((&lines[0]["gate_pool"], lines.len()), (&json!(1), 1 + 4 + 2));
    let mut coin = Random::new(2);
    assert!(lines[1..5].iter().all(|line| line["a_first"] == coin.coin()), "{lines:?}");
    assert!(lines[1..5].iter().all(|line| line["a_first"] == true), "{lines:?}");
    let result = result(&bench, &rules, &into, "2");
    assert_eq!((&result["form"], &result["pairs"], &result["slow_pairs"]), (&json!("trials"), &json!(4), &json!(2)));
    assert_eq!(result["rates"].as_array().unwrap().len(), 5);
    // A pool that is none, and one of a version that is not known.
    for (text, words) in [
        ("{}\n".to_string(), "is no pool"),
        (lines[0].to_string().replace("\"gate_pool\":1", "\"gate_pool\":9"), "reads 1 and 2"),
        (format!("{}\n{}\n", lines[0], with_seconds(&lines[1], -1.0)), "line 2: seconds is -1"),
        (format!("{}\n{}\n{}\n", lines[0], lines[1], with_seconds(&lines[2], 0.0)), "line 3: seconds is 0"),
    ] {
        std::fs::write(&pool, text).unwrap();
        let output = self_test(&bench, &rules, &["--pool", pool.to_str().unwrap()]);
        assert!(code(&output) == 1 && stderr(&output).contains(words), "{}", stderr(&output));
    }
    // A file of bytes, and a folder: both are named.
    std::fs::write(&pool, b"\xff\xfe\n").unwrap();
    for path in [&pool, &into] {
        let output = self_test(&bench, &rules, &["--pool", path.to_str().unwrap()]);
        assert!(code(&output) == 1 && stderr(&output).contains(path.to_str().unwrap()), "{}", stderr(&output));
    }
}

fn with_seconds(pair: &Value, seconds: f64) -> Value {
    let mut pair = pair.clone();
    pair["b"]["seconds"] = seconds.into();
    pair
}

#[test]
fn a_self_test_that_measures_nothing_leaves_the_pool_that_is_there() {
    let bench = Bench::new();
    let (rules, into) = (rules(&bench, ""), bench.path("into"));
    std::fs::create_dir_all(&into).unwrap();
    std::fs::write(into.join("pool.jsonl"), "a pool").unwrap();
    let more = ["--into", into.to_str().unwrap(), "--minutes", "0.0001", "--allow-load", "-q"];
    let output = self_test(&bench, &rules, &more);
    let said = stderr(&output);
    assert!(code(&output) == 1 && said.contains("--minutes") && !said.contains("--budget"), "{said}");
    assert_eq!(std::fs::read_to_string(into.join("pool.jsonl")).unwrap(), "a pool");
    assert_eq!(std::fs::read_dir(&into).unwrap().count(), 1);
}

#[test]
fn turns_are_measured_kept_and_replayed() {
    if !is_full_tier() {
        return;
    }
    let bench = Bench::new();
    // A generation takes four seconds.
    let (rules, into) = (rules(&bench, "[decide]\ntime_budget = \"8s\"\n"), bench.path("into"));
    let of = |minutes: &str| {
        self_test(&bench, &rules, &["--into", into.to_str().unwrap(), "--minutes", minutes, "--allow-load", "-q"])
    };
    let mut output = of("0.4");
    // A machine that others use needs more time. The program says how much where no round fits; two rounds are too few for this test.
    if let Some((_, advice)) = stderr(&output).split_once("use --minutes ") {
        output = of(advice.split_whitespace().next().unwrap());
    } else if code(&output) != 1
        && lines(&into.join("pool.jsonl")).iter().filter(|line| line["arm"] == "slow").count() <= 1 + 2
    {
        output = of("2");
    }
    assert!([0, 3].contains(&code(&output)), "{}{}", stdout(&output), stderr(&output));
    assert!(stdout(&output).contains("generations of processes of one pool"), "{}", stdout(&output));
    let lines = lines(&into.join("pool.jsonl"));
    assert_eq!(lines[0]["gate_pool"], 2);
    for arm in ["aa", "slow"] {
        let of_arm: Vec<&Value> = lines[1..].iter().filter(|line| line["arm"] == arm).collect();
        assert_eq!(of_arm[0]["trials"].as_array().map(Vec::len), Some(2), "{arm}: {}", of_arm[0]);
        let rounds = &of_arm[1..];
        assert!(rounds.len() > 2 && rounds.iter().any(|round| round["looked"] == true), "{arm}: {rounds:?}");
        for round in rounds {
            for time in ["baseline_seconds_per_token", "candidate_seconds_per_token", "seconds"] {
                assert!(round[time].as_f64().is_some_and(|time| time > 0.0), "{arm}: {time}: {round}");
            }
        }
        // With the starts of its processes a generation is at least as long as a gate's but for its last round; the machine decides how much longer.
        let seconds: f64 = rounds.iter().filter_map(|round| round["seconds"].as_f64()).sum();
        assert!(seconds > if arm == "aa" { 8.0 } else { 4.0 }, "{arm}: {seconds} s");
    }
    let result = result(&bench, &rules, &into, "1");
    assert_eq!(result["form"], "turns");
    assert!(result["generations"].as_u64() >= Some(1) && result["machine_seconds"].as_f64() > Some(12.0), "{result}");
    assert_eq!(result["rates"].as_array().unwrap().len(), 5);
    let first = &result["rates"][0];
    assert!(first["independent"].as_f64() >= Some(1.0) && first["alarms"]["high"].as_f64() > Some(0.1), "{first}");
    // Minutes are of turns and pairs of trials.
    let output = self_test(&bench, &rules, &["--minutes", "1", "--pairs", "4"]);
    assert!(code(&output) == 1 && stderr(&output).contains("cannot be used with"), "{}", stderr(&output));
    let output = self_test(&bench, &rules, &["--minutes", "0"]);
    assert!(code(&output) == 1 && stderr(&output).contains("--minutes"), "{}", stderr(&output));
}

#[test]
fn ctrl_c_keeps_the_turns_measured_so_far() {
    let bench = Bench::new();
    let (rules, into) = (rules(&bench, ""), bench.path("into"));
    let mut command = zbench(&bench.path("nb"));
    command.arg("gate").arg(&rules).args(["--self-test", "--runs", "3", "--allow-load", "-q", "--into"]).arg(&into);
    let mut child = command.stdout(std::process::Stdio::null()).spawn().unwrap();
    let pool = into.join("pool.jsonl");
    let begun_as = into.join("pool.jsonl.new");
    let read = |path: &Path| std::fs::read_to_string(path).ok();
    let count = || read(&begun_as).or_else(|| read(&pool)).unwrap_or_default().lines().count();
    let begun = Instant::now();
    while count() < 6 && begun.elapsed() < Duration::from_secs(120) {
        std::thread::sleep(Duration::from_millis(50));
    }
    let before = count();
    signal(child.id(), rustix::process::Signal::INT);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(before >= 6 && count() >= before, "{before}, then {}", count());
    let result = result(&bench, &rules, &into, "1");
    assert_eq!(
        (&result["form"], &result["pairs"], &result["slow_pairs"]),
        (&json!("turns"), &json!(count() - 2), &json!(0))
    );
}
