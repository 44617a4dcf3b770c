//! `zbench plan --search` with placements, and with the best ways trained.

use crate::support::{LARGE, is_full_tier, json_lines, large, number, run, stderr, stdout, write};
use serde_json::Value;

/// Stages inside a node are priced and not run, and a search tries them where Megatron-Core is the software.
#[test]
fn placements_are_searched_where_the_software_has_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), LARGE);
    let kept = |software: &str| {
        let software = format!("hardware.software={software}");
        let keep = ["--search", "--keep", "parallel.placement=pipeline-inside"];
        let arguments = [&["plan", "--format", "json", path.to_str().unwrap(), "--set", &software], &keep[..]].concat();
        run(folder.path(), &arguments)
    };
    let found: Value = serde_json::from_str(&stdout(&kept("megatron-core"))).unwrap();
    assert!(found["best"].as_array().unwrap().iter().all(|way| way["settings"]["parallel.pipeline"] != "1"), "{found}");
    let refused = kept("fsdp2");
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("parallel.placement = pipeline-inside cannot be kept"), "{}", stderr(&refused));
    let row = large(&["parallel.pipeline=2", "parallel.strategy=zero1", "parallel.placement=pipeline-inside"]);
    assert_eq!(row["status"], "skipped", "{row}");
}

/// Weights are split beside stages where the software keeps them gathered from micro-batch to micro-batch, and there alone; and
/// micro-batches are any divisor of a replica's sequences.
#[test]
fn stages_split_weights_where_the_software_keeps_them_gathered() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), LARGE);
    let kept = |software: &str| {
        let sets = [format!("hardware.software={software}"), "train.global_batch=192".to_string()];
        let sets = sets.iter().flat_map(|set| ["--set", set.as_str()]);
        let keep = ["parallel.pipeline=2", "parallel.strategy=fsdp", "train.micro_batch=3"].into_iter();
        let options = sets.chain(keep.flat_map(|keep| ["--keep", keep]));
        let arguments: Vec<&str> =
            ["plan", "--format", "json", path.to_str().unwrap(), "--search"].into_iter().chain(options).collect();
        run(folder.path(), &arguments)
    };
    let output = kept("fsdp2");
    let found: Value = serde_json::from_str(&stdout(&output)).unwrap_or_else(|_| panic!("{}", stderr(&output)));
    let nearest = || vec![found["nearest"].clone()];
    let ways = found["best"].as_array().filter(|best| !best.is_empty()).cloned().unwrap_or_else(nearest);
    assert!(ways.iter().all(|way| way["settings"]["train.micro_batch"] == "3"), "{found}");
    let refused = kept("megatron-core");
    assert!(stderr(&refused).contains("cannot be kept"), "{}", stderr(&refused));
}

/// Ways of GPUs that are not there have stand-ins, whose records are in the notebook; the report says so and claims no ratio.
#[test]
fn the_best_ways_are_trained_as_stand_ins_where_they_do_not_run() {
    if !is_full_tier() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), LARGE);
    let arguments = [
        "plan",
        "--format",
        "json",
        path.to_str().unwrap(),
        "--search",
        "--measure",
        "2",
        "--budget",
        "5s",
        "--allow-load",
        "-q",
    ];
    let output = run(folder.path(), &arguments);
    let found: Value = serde_json::from_str(&stdout(&output)).unwrap_or_else(|_| panic!("{}", stderr(&output)));
    let order = &found["measured"];
    assert!(order["stand_ins"].as_str().unwrap().starts_with("PROXY"), "{order}");
    let ways = order["ways"].as_array().unwrap();
    assert_eq!((ways.len(), order["pairs"].as_array().unwrap().len()), (2, 1), "{order}");
    for way in ways {
        assert!(way["step_ratio"].is_null() && number(way, "measured_step_ms") > 0.0, "{way}");
    }
    let records = run(folder.path(), &["list", "--format", "json"]);
    let records: Vec<Value> = json_lines(&stdout(&records));
    assert!(ways.iter().all(|way| records.iter().any(|record| record["key"] == way["key"])), "{ways:?}");
    assert!(records.iter().all(|record| record["proxy"]["of"].is_string()), "{:?}", records[0]["proxy"]);
}
