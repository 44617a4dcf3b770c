//! Forced instructions and pinned threads through the real program: every launcher obeys them, records state them, and what
//! this machine lacks is skipped.

use crate::support::{TINY, cells, cells_of, root, run, stderr, stdout, write};
use serde_json::Value;
use std::path::Path;
use zbench_config::Document;
use zbench_engine::config::Backend;
use zbench_kernels::cpu::peak;
use zbench_kernels::threads::affinity;
use zbench_kernels::{Cpu, INSTRUCTIONS, Kernels};

/// TINY's first cell with these settings, on so many ranks; its record.
fn record(folder: &Path, set: &[&str]) -> Value {
    let file = write(folder, TINY.split("[grid]").next().unwrap());
    let (notebook, file) = (folder.join("nb"), file.to_string_lossy().into_owned());
    let mut arguments = vec!["run", &file, "--format", "json"];
    set.iter().for_each(|term| arguments.extend(["--set", term]));
    let output = run(&notebook, &arguments);
    let text = stdout(&output);
    let line = text.lines().next().unwrap_or_else(|| panic!("no record; {}", stderr(&output)));
    serde_json::from_str(line).unwrap()
}

fn status(record: &Value) -> (&str, &str) {
    let of = |key: &str| record["outcome"][key].as_str().unwrap_or_default();
    (of("status"), of("reason"))
}

fn losses(record: &Value) -> Vec<&Value> {
    record["steps"].as_array().unwrap().iter().map(|step| &step["loss"]).collect()
}

#[test]
fn forced_instructions_are_what_every_launcher_computes_with() {
    let folder = tempfile::tempdir().unwrap();
    let best = record(folder.path(), &[]);
    assert!(best["cell"]["hardware"].get("instructions").is_none(), "auto is no part of a cell's key");
    for backend in ["local", "shm", "tcp"] {
        let backend = format!("parallel.backend=\"{backend}\"");
        let forced = record(folder.path(), &["hardware.instructions=\"portable\"", &backend]);
        assert_eq!(status(&forced).0, "measured", "{}", status(&forced).1);
        assert_eq!(forced["cell"]["hardware"]["instructions"], "portable");
        assert_eq!(forced["environment"]["kernels"], "cpu portable", "{backend}");
        assert_ne!(forced["key"], best["key"]);
    }
    assert_eq!(best["environment"]["kernels"], Cpu::new(1).name());
}

#[test]
fn instructions_that_this_cpu_lacks_are_skipped_and_unknown_ones_refused() {
    let folder = tempfile::tempdir().unwrap();
    if let Some(missing) = INSTRUCTIONS.into_iter().find(|name| Cpu::with_instructions(1, name).is_none()) {
        let record = record(folder.path(), &[&format!("hardware.instructions=\"{missing}\"")]);
        let (status, reason) = status(&record);
        assert_eq!(status, "skipped");
        assert!(reason.contains(missing) && peak::describe().iter().all(|name| reason.contains(name)), "{reason}");
    }
    let error = cells("[hardware]\ninstructions = \"avx3\"\n").unwrap_err().to_string();
    assert!(error.contains("test.toml:2:1") && INSTRUCTIONS.iter().all(|name| error.contains(name)), "{error}");
}

#[test]
fn pinned_ranks_train_to_the_same_losses_and_too_few_cores_skip_the_cell() {
    let folder = tempfile::tempdir().unwrap();
    let cores = affinity::available().len();
    let pin = "hardware.pin=\"cores\"";
    let free = record(folder.path(), &["parallel.ranks=1"]);
    for backend in ["local", "shm"] {
        let backend = format!("parallel.backend=\"{backend}\"");
        let pinned = record(folder.path(), &["parallel.ranks=1", pin, &backend]);
        assert_eq!(status(&pinned).0, "measured", "{}", status(&pinned).1);
        assert_eq!(pinned["cell"]["hardware"]["pin"], "cores");
        assert_eq!(losses(&pinned), losses(&free));
    }
    let threads = format!("hardware.threads_per_rank={}", cores + 1);
    let crowded = record(folder.path(), &["parallel.ranks=1", pin, &threads]);
    let (status, reason) = status(&crowded);
    assert_eq!(status, "skipped");
    assert!(reason.contains(&format!("need {} cores", cores + 1)) && reason.contains("hardware.pin"), "{reason}");
}

/// The flagship's cells are for the machine that their profile names.
#[test]
fn cells_of_several_gpus_are_moved_by_nccl() {
    for (name, count) in [("llama70b", 20), ("qlora70b", 18)] {
        let path = root().join(format!("configs/{name}.toml"));
        let document = Document::read(&path, &[]).unwrap();
        let cells = cells_of(&document, "").unwrap();
        assert_eq!(cells.len(), count, "{name}");
        for cell in cells {
            let parallel = &cell.resolved.as_ref().unwrap().cell.parallel;
            let expected = if parallel.ranks == 1 { Backend::Local } else { Backend::Nccl };
            assert_eq!(parallel.backend, expected, "{name}: {}", cell.label);
        }
    }
    // What is on the processor stays as it was, and with it the keys of cells.
    let unstated = cells(TINY).unwrap();
    let stated = cells(&TINY.replace("ranks = 2", "ranks = 2\nbackend = \"local\"")).unwrap();
    let keys = |cells: &[zbench_config::grid::GridCell]| cells.iter().map(|cell| cell.key.clone()).collect::<Vec<_>>();
    assert_eq!(keys(&unstated), keys(&stated));
}
