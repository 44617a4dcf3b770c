//! Predicted times of cells whose state lives elsewhere, and what a record says of the drive. No test looks at a speed.

use crate::support::{TINY, cells, stderr, stdout, write, zbench};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use zbench_config::profile::default_path;
use zbench_config::profile::operations::{self, Operations, RankLayout};
use zbench_engine::config::Cell;
use zbench_engine::plan::Plan;
use zbench_engine::planner::clock::Overheads;
use zbench_engine::planner::curves::{COPY, Class, Curves, Point};
use zbench_host::machine;
use zbench_kernels::Cpu;

/// One cell of two ranks with its weights and optimizer state in a folder.
fn cell(disk: &Path) -> String {
    let grid = TINY.find("[grid]").unwrap();
    let memory = format!(
        "[memory]\noffload_optimizer = \"disk\"\noffload_parameters = \"disk\"\noffload_path = \"{}\"\n",
        disk.display()
    );
    TINY[..grid].replace("ranks = 2", "ranks = 2\nstrategy = \"zero3\"") + &memory
}

/// A profile of this host in which everything but the drive was measured for a cell.
fn profile(folder: &Path, cell: &Cell) -> PathBuf {
    let kernels = Cpu::new(1);
    let operations = Plan::new(cell, &kernels).unwrap().operations(cell, &kernels, 0);
    let classes: BTreeMap<String, usize> = operations
        .iter()
        .map(|stated| Class::of(&stated.op))
        .map(|class| (class.name, class.sizes.len()))
        .chain([(COPY.to_string(), 1)])
        .collect();
    let mut curves = Curves::default();
    for (name, sizes) in classes {
        curves.add(&name, Point { sizes: vec![1.0; sizes], seconds: 1e-10 });
    }
    let layout = RankLayout { ranks: 2, threads: 1, crowded: false };
    let overheads = Overheads { operation: 1e-6, load: 1e-6, step: 1e-6, call: 1e-6, all_reduce: 1e-6, tensor: 1e-6 };
    let file = default_path(&machine::host_name());
    let path = folder.join("machines").join(file.file_name().unwrap());
    operations::save(&path, &[Operations { layout, curves, overheads, spread: 0.0 }], "today", 2).unwrap();
    let mut text = std::fs::read_to_string(&path).unwrap();
    for kind in ["all_gather", "all_reduce", "reduce_scatter"] {
        text += &format!(
            "\n[collectives.local.ranks-2.{kind}]\nfits = [{{ of = \"x\", type = \"float\", redop = \"sum\", factor = 1.0, in_place = true, \
             segments = [{{ from_bytes = 8, to_bytes = 1024, latency_us = 5.0, points = 4, median_error = 0.0, worst_error = 0.0 }}] }}]\n"
        );
    }
    std::fs::write(&path, text).unwrap();
    path
}

/// The program in a folder, whose profile it reads.
fn said(folder: &Path, words: &[&str]) -> (String, String) {
    let output = zbench(&folder.join("nb")).current_dir(folder).args(words).output().unwrap();
    let (text, error) = (stdout(&output), stderr(&output));
    assert_eq!(output.status.code(), Some(0), "{words:?}: {text}{error}");
    (text, error)
}

fn planned(folder: &Path, file: &Path) -> Value {
    let (text, _) = said(folder, &["plan", file.to_str().unwrap(), "--format", "json"]);
    serde_json::from_str(text.lines().next().unwrap()).unwrap()
}

fn newest(folder: &Path) -> Value {
    let file = std::fs::read_to_string(folder.join("nb/records.jsonl")).unwrap();
    serde_json::from_str(file.lines().last().unwrap()).unwrap()
}

#[test]
fn cells_with_state_on_a_disk_have_a_time_and_records_the_drives_ceiling() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (folder, disk) = (folder.path(), folder.path().join("disk"));
    std::fs::create_dir(&disk).unwrap();
    let file = write(folder, &cell(&disk));
    let without = planned(folder, &file);
    assert!(
        without["step_ms"].is_null() && without["time_source"].as_str().unwrap().contains("no profile"),
        "{without}"
    );
    let resolved = cells(&cell(&disk)).unwrap().remove(0).resolved.unwrap();
    let path = profile(folder, &resolved.cell);

    let row = planned(folder, &file);
    let source = row["time_source"].as_str().unwrap();
    assert!(source.contains("measured now with 2 files") && source.contains("GB/s read"), "{source}");
    let spans = row["time"].as_object().unwrap();
    let (step, sum) = (row["step_ms"].as_f64().unwrap(), spans.values().map(|ms| ms.as_f64().unwrap()).sum::<f64>());
    assert!((step - sum).abs() < 1e-9 * step && row["time"]["offload"].as_f64().unwrap() > 0.0, "{row}");
    let (explained, _) = said(folder, &["plan", file.to_str().unwrap(), "--explain", "--format", "json"]);
    assert!(explained.contains("measured now"), "{explained}");

    // A folder that is not there has no drive to measure.
    let missing = folder.join("missing.toml");
    std::fs::write(&missing, cell(&folder.join("nowhere"))).unwrap();
    let row = planned(folder, &missing);
    let source = row["time_source"].as_str().unwrap();
    assert!(row["step_ms"].is_null() && source.contains("memory.offload_path") && source.contains("nowhere"), "{row}");

    let grid = ["grid", file.to_str().unwrap(), "--trials", "1", "--no-repeats", "--fresh"];
    let ceiling = |from: &str| {
        said(folder, &grid);
        let record = newest(folder);
        assert!(record["estimate"]["step_ms"].as_f64().unwrap() > 0.0, "{}", record["estimate"]);
        let drive = &record["offload"]["drive"];
        let of = |key: &str| drive[key].as_f64().unwrap_or_else(|| panic!("{key} of {drive}"));
        assert!((of("share") / (of("gb_s") / of("ceiling_gb_s")) - 1.0).abs() < 1e-9, "{drive}");
        assert!(drive["ceiling_from"].as_str().unwrap().contains(from) && drive.get("no_ceiling").is_none(), "{drive}");
    };
    ceiling("measured now");
    let (report, _) = said(folder, &["report", "--full"]);
    assert!(report.contains("Drive of offloaded state") && report.contains("ceiling"), "{report}");

    // What `zbench io` has measured of the folder takes the place of that.
    let io = "io --link disk --size 64KiB --file-size 2MiB --seconds 0.01 --depth 8 --engine auto --direct false --no-fio --dir";
    said(folder, &io.split(' ').chain([disk.to_str().unwrap()]).collect::<Vec<_>>());
    ceiling("records of zbench io");
    assert!(!std::fs::read_to_string(&path).unwrap().contains("[drives]"));
    let (_, told) = said(folder, &["calibrate", "--from-notebook"]);
    assert!(told.contains("the drive of") && told.contains("saved the rates of drives"), "{told}");
    assert!(std::fs::read_to_string(&path).unwrap().contains("[drives]"));
    let row = planned(folder, &file);
    let source = row["time_source"].as_str().unwrap();
    assert!(row["step_ms"].as_f64().unwrap() > 0.0 && source.contains("records of zbench io"), "{source}");
}
