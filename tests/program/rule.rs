//! `zbench rule`: one-line answers, in every format, and what is refused.

use crate::support::{run, stderr, stdout};
use serde_json::Value;

/// The answer as an object.
fn json(arguments: &str) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let words: Vec<&str> = ["rule"].into_iter().chain(arguments.split(' ')).chain(["--format", "json"]).collect();
    let output = run(folder.path(), &words);
    assert_eq!(output.status.code(), Some(0), "{arguments}: {}", stderr(&output));
    serde_json::from_str(&stdout(&output)).expect("one object")
}

fn value(answer: &Value, name: &str) -> f64 {
    let values = answer["values"].as_array().unwrap();
    values.iter().find(|value| value["name"] == name).unwrap_or_else(|| panic!("{name}: {answer}"))["value"]
        .as_f64()
        .unwrap()
}

/// The figures of docs/claims.md, by other sums than the program's. Tolerance: rounding of f64.
#[test]
fn answers_are_the_claims_worked_out() {
    let near = |found: f64, wanted: f64| assert!((found / wanted - 1.0).abs() < 1e-12, "{found} instead of {wanted}");
    // 120 GB for two nodes, 225 GB for 16, and nothing for one.
    for (nodes, gigabytes) in [(1, 0.0), (2, 120.0), (16, 225.0)] {
        let answer = json(&format!("network --parameters 40B --nodes {nodes} --step 10s --network 400Gb/s"));
        let bits = value(&answer, "bits_per_node_and_step");
        assert!((bits - gigabytes * 8e9).abs() < 1.0, "{answer}");
        assert!((value(&answer, "needed_bits_per_second_and_node") - bits / 10.0).abs() < 1.0);
        assert!((value(&answer, "least_seconds_of_a_step") - bits / 400e9).abs() < 1e-9);
    }
    // The ZeRO paper's table: 120, 31.4, 16.6 and 1.9 GB.
    for (stage, gigabytes) in [(0, 120.0), (1, 31.40625), (2, 16.640625), (3, 1.875)] {
        near(
            value(&json(&format!("states --parameters 7.5B --ranks 64 --stage {stage}")), "bytes_per_rank"),
            gigabytes * 1e9,
        );
    }
    near(value(&json("states --parameters 40B --stage 0 --gradients 4"), "bytes_per_rank"), 720e9);
    // t5-3b on eight GPUs.
    let p = 2_851_598_336.0;
    let zero2 = "zero2 --parameters 2851598336 --gpus-per-node 8";
    near(value(&json(zero2), "bytes_per_gpu"), p * 4.25);
    near(value(&json(&format!("{zero2} --formula documented")), "bytes_per_gpu"), p * 6.0);
    near(value(&json(&format!("{zero2} --offload")), "host_bytes_per_node"), p * 48.0);
    let zero3 = "zero3 --parameters 2851598336 --largest-layer 32899072 --gpus-per-node 8";
    near(value(&json(&format!("{zero3} --offload all")), "bytes_per_gpu"), 32_899_072.0 * 4.0);
    near(value(&json(&format!("{zero3} --offload all --no-zero-init")), "host_bytes_per_node"), p * 48.0);
    near(value(&json(&format!("{zero3} --offload optimizer")), "host_bytes_per_node"), p * 24.0);
    let answer = json(zero3);
    near(value(&answer, "bytes_per_gpu"), 32_899_072.0 * 4.0 + p * 2.25);
    assert_eq!(answer["inputs"]["largest_layer"], 32_899_072.0);
    assert_eq!(answer["inputs"]["zero_init"], true);
}

#[test]
fn what_is_no_rule_is_refused_with_its_key() {
    let folder = tempfile::tempdir().unwrap();
    for (arguments, wanted) in [
        ("network --parameters many --nodes 2", "`many` is no number of parameters"),
        ("network --parameters 7e9 --nodes 0", "--nodes"),
        ("network --parameters 7e9 --nodes 2 --network 400", "needs its unit"),
        ("network --parameters 7e9 --nodes 2 --network fast", "`fast` is no rate"),
        ("network --parameters 7e9 --nodes 2 --step 0s", "--step"),
        ("network --parameters 7e9", "--nodes"),
        ("states --parameters 7e9 --stage 4", "--stage"),
        ("states --parameters 7e9 --stage 3 --gradients 3", "--gradients"),
        ("zero2 --parameters 0 --gpus-per-node 8", "from 1 to 1e18"),
        ("zero3 --parameters 7e9 --gpus-per-node 8", "--largest-layer"),
        ("zero3 --parameters 7e9 --largest-layer 8e9 --gpus-per-node 8", "more than the model"),
        ("zero3 --parameters 7e9 --largest-layer 1e8 --gpus-per-node 8 --offload disk", "disk"),
    ] {
        let words: Vec<&str> = ["rule"].into_iter().chain(arguments.split(' ')).collect();
        let output = run(folder.path(), &words);
        assert_eq!(output.status.code(), Some(1), "{arguments}");
        assert!(stderr(&output).contains(wanted), "{arguments}: {}", stderr(&output));
    }
}
