//! `zbench checkpoint` and grids with suite = "checkpoint", the program itself: metrics, equal tensors, going on, folders.

use crate::support::{records, signal, stderr, stdout, succeeds, test, zbench};
use rustix::process::Signal;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Two cells of a model so small that a trial takes a moment.
const TINY: &str = r#"
suite = "checkpoint"
name = "tiny"
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
steps = 2
untimed_steps = 1
[parallel]
ranks = 2
strategy = "zero3"
[hardware]
threads_per_rank = 1
[checkpoint]
async = true
repeats = 2
[grid]
"checkpoint.layout" = ["sharded", "full"]
"#;

/// 32 * 64 twice, and two blocks of 4 * 32 * 32 + 3 * 32 * 64 and two norms each, and a norm.
const PARAMETERS: f64 = 2.0 * 2048.0 + 2.0 * (4096.0 + 6144.0 + 64.0) + 32.0;

fn file(folder: &Path, text: &str) -> PathBuf {
    let path = folder.join("tiny.toml");
    std::fs::write(&path, text).unwrap();
    path
}

/// What a trial may leave behind and does not.
fn left(folder: &Path) -> Vec<String> {
    let names =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with(".zbench")).collect()
}

#[test]
fn a_grid_is_measured_goes_on_and_leaves_nothing() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = file(folder.path(), TINY);
    let notebook = folder.path().join("notebook");
    let grid = format!("grid {} --trials 1 -q", path.display());
    let text = succeeds(&notebook, &grid);
    assert!(text.contains("Training checkpoints") && text.contains("Fastest save"), "{text}");
    let all = records(&notebook);
    assert_eq!(all.len(), 2, "{text}");
    for record in &all {
        assert_eq!(record["outcome"]["status"], "measured", "{record}");
        let metric = |name: &str| record["metrics"][name].as_f64();
        let number = |name: &str| metric(name).unwrap_or_else(|| panic!("{name}: {}", record["metrics"]));
        for name in [
            "save_ms",
            "save_gb_s",
            "async_ms",
            "async_stall_ms",
            "async_stall_share",
            "load_ms",
            "load_gb_s",
            "reshard_ms",
            "step_ms",
            "checkpoint_bytes",
        ] {
            assert!(number(name) > 0.0, "{name}: {record}");
        }
        assert!(number("async_excess_ms").is_finite() && number("save_spread") >= 0.0);
        // Weights and two moments in f32, and headers.
        assert!((12.0 * PARAMETERS..12.0 * PARAMETERS + 40_000.0).contains(&number("checkpoint_bytes")));
        assert!((12.0..14.0).contains(&number("checkpoint_bytes_per_parameter")));
        let found = &record["checkpoint"];
        for (rate, share) in [("disk_write_gb_s", "save_share_of_disk"), ("disk_read_gb_s", "load_share_of_disk")] {
            match found["no_disk"].as_str() {
                Some("") => assert!(number(rate) > 0.0 && number(share) > 0.0),
                _ => assert!(metric(rate).is_none() && !record["unstated"][share].as_str().unwrap().is_empty()),
            }
        }
        let repeats = found["repeats"].as_array().unwrap();
        assert_eq!((repeats.len(), found["parameters"].as_f64()), (2, Some(PARAMETERS)));
        for repeat in repeats {
            let loads: Vec<&Value> =
                std::iter::once(&repeat["load"]).chain(repeat["reshard"].as_array().unwrap()).collect();
            let by: Vec<&str> = loads.iter().map(|load| load["by"].as_str().unwrap()).collect();
            assert_eq!(by, ["zero3:2", "ddp:1", "hsdp:2/1", "zero3:2 again"]);
            assert!(loads.iter().all(|load| load["equal"] == true && load["bytes"].as_f64().unwrap() > 0.0));
            assert!(repeat["async"]["steps"].as_u64().unwrap() >= 1);
        }
        assert_eq!(
            (&record["cell"]["suite"], &record["cell"]["checkpoint"]["repeats"]),
            (&"checkpoint".into(), &2.into())
        );
    }
    assert_eq!(left(&notebook), [""; 0]);
    // What is there is not measured again; one more trial is.
    succeeds(&notebook, &grid);
    assert_eq!(records(&notebook).len(), 2);
    succeeds(&notebook, &format!("checkpoint {} --trials 2 --only checkpoint.layout=full -q", path.display()));
    let again = records(&notebook);
    assert_eq!((again.len(), &again[2]["trial"], &again[2]["key"]), (3, &2.into(), &all[1]["key"]));
    let id = all[0]["id"].as_str().unwrap();
    for (command, told) in [
        ("list suite=checkpoint".to_string(), "zero3:2, sharded, async"),
        (format!("show {id}"), "save_ms"),
        ("report --format csv".into(), "zero3:2 again"),
        ("report --format markdown".into(), "| zero3:2"),
        ("report --format html".into(), "Training checkpoints"),
        ("report --format json".into(), "save_share_of_disk"),
        (format!("repro {id}"), "Before and again"),
    ] {
        let text = succeeds(&notebook, &command);
        assert!(text.contains(told), "{command}: {text}");
    }
    assert_eq!(left(&notebook), [""; 0]);
}

#[test]
fn flags_name_the_folder_and_the_loads() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (notebook, disk) = (folder.path().join("notebook"), folder.path().join("deep/disk"));
    let small = "--set model.hidden_size=32 --set model.intermediate_size=64 --set model.num_hidden_layers=1 \
                 --set model.num_attention_heads=2 --set model.vocab_size=64 --set train.seq_len=8 --set hardware.threads_per_rank=1";
    let words = format!(
        "checkpoint {small} --strategy ddp --ranks 1 --load-as zero3:2,hsdp:4/2 --repeats 1 --no-async --dir {} -q",
        disk.display()
    );
    let text = succeeds(&notebook, &words);
    assert!(text.contains("hsdp:4/2") && text.contains("ddp:1 again"), "{text}");
    let all = records(&notebook);
    assert!(all[0]["metrics"].get("async_stall_ms").is_none(), "{}", all[0]["metrics"]);
    assert!(all[0]["checkpoint"]["folder"].as_str().unwrap().starts_with(disk.to_str().unwrap()));
    // The folder was not there before.
    assert!(!folder.path().join("deep").exists());
    let plan = succeeds(&notebook, &format!("{words} --dry-run"));
    assert!(plan.contains("to be measured"), "{plan}");
    for (words, told) in [
        ("checkpoint --load-as ddp", "--load-as: \"ddp\" has no ranks"),
        ("checkpoint --strategy zero7", "--strategy"),
        ("checkpoint --set checkpoint.every=3", "has no effect where suite is \"checkpoint\""),
        ("checkpoint --set parallel.backend=tcp", "whose ranks are threads"),
        ("checkpoint --ranks 3 --strategy hsdp", "parallel.shard"),
    ] {
        let output = test(&notebook, words);
        assert_eq!(output.status.code(), Some(1), "{words}: {}", stderr(&output));
        assert!(stderr(&output).contains(told), "{words}: {}", stderr(&output));
    }
}

#[test]
fn a_folder_that_cannot_be_written_is_a_failed_record_with_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let text = TINY.replace("[checkpoint]", "[checkpoint]\ndir = \"no-folder/in-it\"");
    let path = file(folder.path(), &text);
    std::fs::write(folder.path().join("no-folder"), "a file").unwrap();
    let notebook = folder.path().join("notebook");
    let output = test(&notebook, &format!("checkpoint {} -q", path.display()));
    assert_eq!(output.status.code(), Some(5), "{}{}", stdout(&output), stderr(&output));
    for record in records(&notebook) {
        let reason = record["outcome"]["reason"].as_str().unwrap();
        assert_eq!(record["outcome"]["status"], "failed");
        assert!(reason.contains("no-folder/in-it") && reason.contains("checkpoint.dir"), "{reason}");
    }
    assert_eq!(std::fs::read(folder.path().join("no-folder")).unwrap(), b"a file");
}

#[test]
fn a_stop_leaves_neither_folder_nor_record() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = file(folder.path(), &TINY.replace("repeats = 2", "repeats = 1000"));
    let notebook = folder.path().join("notebook");
    let mut child = zbench(&notebook)
        .args(["checkpoint", path.to_str().unwrap(), "-q"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let begin = Instant::now();
    while !notebook.is_dir() || left(&notebook).is_empty() {
        assert!(begin.elapsed() < Duration::from_secs(120), "the trial has begun");
        std::thread::sleep(Duration::from_millis(20));
    }
    signal(child.id(), Signal::INT);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(left(&notebook), [""; 0]);
    assert_eq!(records(&notebook), Vec::<Value>::new());
}
