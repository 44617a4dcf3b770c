//! Emulated links through the command: what `allreduce` shows of them, and cells in the notebook.

use crate::support::{self, TINY};
use serde_json::Value;
use std::path::Path;

fn records(notebook: &Path, arguments: &[&str]) -> Vec<Value> {
    let output = support::run(notebook, arguments);
    assert!(output.status.success(), "{}", support::stderr(&output));
    let said = support::stdout(&output);
    said.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

/// Two nodes of two ranks: 1 MiB at 40 MB/s and 5 ms. A ring all-reduce of 4 ranks puts 1.5 times the buffer on each link, and two
/// latencies: 49.3 ms.
#[test]
fn allreduce_shows_the_stated_link_within_five_percent() {
    let folder = tempfile::tempdir().unwrap();
    let words = "--format json allreduce --ranks 4 --ranks-per-node 2 --link-bandwidth 40MB/s --link-latency 5ms -b 1M -e 1M \
                 -n 3 -w 1 -c 0 --buffers hot";
    let words: Vec<&str> = words.split_whitespace().collect();
    let price = 1.5 * f64::from(1 << 20) / 40e6 * 1e6 + 2.0 * 5e3;
    let mut best = f64::INFINITY;
    // On a machine that others use, few calls are undisturbed.
    for _ in 0..60 {
        let document = records(folder.path(), &words).remove(0);
        let row = &document["results"][0];
        for side in ["in_place", "out_of_place"] {
            let us = row[side]["time"].as_f64().unwrap_or_else(|| panic!("{row}"));
            assert!(us >= price, "{us} us, the link takes {price} us");
            best = best.min(us);
        }
        if best <= 1.05 * price {
            return;
        }
    }
    panic!("{best} us at best, the link takes {price} us");
}

const LINKED: &str = r#"
[[grid.include]]
"parallel.strategy" = ["ddp", "hsdp"]
"link.node.bandwidth" = "100MB/s"
"link.node.latency" = "10us"
"#;

#[test]
fn linked_cells_are_labelled_and_compared_with_their_like() {
    let folder = tempfile::tempdir().unwrap();
    let tiny =
        TINY.replace("ranks = 2\n", "ranks = 4\nranks_per_node = 2\n").replace("[\"none\", \"full\"]", "[\"none\"]");
    let file = support::write(folder.path(), &format!("{tiny}{LINKED}"));
    let cells = records(folder.path(), &["--format", "json", "grid", file.to_str().unwrap(), "--trials", "1"]);
    assert_eq!(cells.len(), 4);
    let is_linked = |record: &&Value| !record["cell"]["link"].is_null();
    let (linked, bare): (Vec<&Value>, Vec<&Value>) = cells.iter().partition(is_linked);
    assert_eq!((linked.len(), bare.len()), (2, 2));
    let text = |value: &Value| value.as_array().map(|list| Value::from(list.clone()).to_string()).unwrap_or_default();
    for record in &linked {
        assert_eq!(record["cell"]["link"]["node"]["bandwidth"], 100e6);
        assert!(text(&record["validity"]).contains("emulated_link"), "{record}");
        let note = "Emulated links between nodes: 2 nodes of 2 ranks, 100 MB/s and 10.0 us each way.";
        assert!(text(&record["notes"]).contains(note), "{}", record["notes"]);
    }
    for record in &bare {
        assert!(!text(&record["validity"]).contains("emulated_link"), "{record}");
    }
    // ddp with a link is the reference of what has the link, and of nothing else.
    let reference =
        |records: &[&Value]| records.iter().find(|r| r["cell"]["parallel"]["strategy"] == "ddp").unwrap()["id"].clone();
    assert!(linked.iter().all(|record| record["parity"]["reference"] == reference(&linked)), "{linked:?}");
    assert!(bare.iter().all(|record| record["parity"]["reference"] == reference(&bare)), "{bare:?}");
    let losses = |records: &[&Value]| {
        records[0]["steps"].as_array().unwrap().iter().map(|s| s["loss"].to_string()).collect::<Vec<_>>()
    };
    assert_eq!(losses(&linked), losses(&bare), "a link changes no loss");
    // What crosses: hsdp's outer axis, and nothing of its inner one.
    let hybrid = linked.iter().find(|record| record["cell"]["parallel"]["strategy"] == "hsdp").unwrap();
    let rows = hybrid["communication"].as_array().unwrap();
    let crossing = |axis: &str| -> f64 {
        rows.iter().filter(|row| row["axis"] == axis).filter_map(|row| row["crossing_bytes"].as_f64()).sum()
    };
    assert!(crossing("outer") > 0.0 && crossing("inner") == 0.0, "{rows:?}");
    let report = support::run(folder.path(), &["report", "--full"]);
    let said = support::stdout(&report);
    assert!(said.contains("EMULATED LINK: 2 of 4 cells") && said.contains("100 MB/s and 10.0 us each way"), "{said}");
    assert!(said.contains("bandwidth=100 MB/s"), "{said}");
}

/// A link between device and host: the same losses, said to be emulated, and refused where it has nothing to carry.
#[test]
fn moves_over_a_link_to_the_host_are_labelled() {
    let folder = tempfile::tempdir().unwrap();
    let file = support::write(folder.path(), TINY);
    let words = |sets: &[&str]| -> Vec<String> {
        let sets = sets.iter().flat_map(|set| ["--set", set]);
        let fixed = ["--format", "json", "run", file.to_str().unwrap(), "--set", "memory.checkpointing=none"];
        fixed.into_iter().chain(["--set", "parallel.strategy=zero3"]).chain(sets).map(String::from).collect()
    };
    let run = |sets: &[&str]| {
        let words = words(sets);
        records(folder.path(), &words.iter().map(String::as_str).collect::<Vec<_>>()).remove(0)
    };
    let offload = ["memory.offload_optimizer=host", "memory.offload_parameters=host"];
    let link = ["link.host.bandwidth=200MB/s", "link.host.latency=50us"];
    let (bare, linked) = (run(&offload), run(&[offload, link].concat()));
    let losses =
        |record: &Value| record["steps"].as_array().unwrap().iter().map(|s| s["loss"].to_string()).collect::<Vec<_>>();
    assert_eq!(losses(&bare), losses(&linked), "a link changes no loss");
    let stated = &linked["cell"]["link"];
    assert!(stated["node"].is_null() && stated["host"]["bandwidth"] == 200e6, "{stated}");
    assert!((stated["host"]["latency"].as_f64().unwrap() - 50e-6).abs() < 1e-12, "{stated}");
    assert!(bare["cell"]["link"].is_null());
    let text = |record: &Value, key: &str| record[key].to_string();
    assert!(text(&linked, "validity").contains("emulated_link") && !text(&bare, "validity").contains("emulated_link"));
    let note = "Emulated link between device and host: one for each rank, 200 MB/s and 50.0 us each way.";
    assert!(text(&linked, "notes").contains(note), "{}", linked["notes"]);
    let report = support::run(folder.path(), &["report", "--full"]);
    let said = support::stdout(&report);
    assert!(said.contains("200 MB/s and 50.0 us each way between device and host"), "{said}");
    for (sets, key) in [
        (&link[..], "link.host.bandwidth"),
        (&["memory.offload_optimizer=host", "link.host.latency=1us"][..], "link.host.bandwidth"),
    ] {
        let words = words(sets);
        let refused = support::run(folder.path(), &words.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(refused.status.code(), Some(1));
        assert!(support::stderr(&refused).contains(key), "{}", support::stderr(&refused));
    }
}

#[test]
fn processes_share_a_link_as_threads_do() {
    let folder = tempfile::tempdir().unwrap();
    let file = support::write(folder.path(), TINY);
    let run = |sets: &[&str]| {
        let sets = sets.iter().flat_map(|set| ["--set", set]);
        let words: Vec<&str> = ["--format", "json", "run", file.to_str().unwrap()].into_iter().chain(sets).collect();
        records(folder.path(), &words).remove(0)
    };
    let cell = ["parallel.strategy=hsdp", "memory.checkpointing=none", "parallel.ranks=4", "parallel.ranks_per_node=2"];
    let link = ["link.node.bandwidth=50MB/s", "link.node.latency=1ms"];
    let bare = run(&cell);
    for backend in ["parallel.backend=shm", "parallel.backend=tcp", "parallel.backend=local"] {
        let linked = run(&[&cell[..], &link[..], &[backend]].concat());
        assert_eq!(linked["outcome"]["status"], "measured", "{linked}");
        assert_eq!(linked["steps"].as_array().unwrap().len(), 3);
        let losses = |record: &Value| {
            record["steps"].as_array().unwrap().iter().map(|s| s["loss"].to_string()).collect::<Vec<_>>()
        };
        assert_eq!(losses(&linked), losses(&bare), "{backend}");
        // Each step has several calls across nodes, each with two latencies of a millisecond.
        let outer = linked["communication"].as_array().unwrap().iter().filter(|row| row["axis"] == "outer");
        for row in outer {
            let (ms, calls) = (row["ms"].as_f64().unwrap(), row["calls"].as_f64().unwrap());
            assert!(calls > 0.0 && ms >= 2.0 * calls, "{backend}: {row}");
        }
    }
}
