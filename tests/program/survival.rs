//! Training state survives: a run that is killed at any moment goes on as if it had not been; a full disk, a folder that may
//! not be written and damaged files are told and harm nothing that was there.

use crate::support::{json_lines, run, stderr, stdout, zbench};
use serde_json::Value;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use zbench_test_tiers as tiers;

/// A run of so many steps with a checkpoint after every second.
fn config(folder: &Path, steps: usize, saving: &str) -> PathBuf {
    let text = format!(
        r#"
name = "survival"
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
steps = {steps}
untimed_steps = 0
lr = 3e-3
lr_schedule = "cosine"
clip_norm = 0.5
[parallel]
ranks = 2
strategy = "zero3"
[precision]
preset = "bf16-mixed"
[hardware]
threads_per_rank = 1
[checkpoint]
{saving}
"#
    );
    let path = folder.join("run.toml");
    std::fs::write(&path, text).unwrap();
    path
}

/// Step, loss and norm of all steps of a record.
fn curve(record: &Value) -> Vec<(u64, u64, u64)> {
    let number = |step: &Value, key: &str| step[key].as_f64().unwrap().to_bits();
    let steps = record["steps"].as_array().unwrap().iter();
    steps.map(|s| (s["step"].as_u64().unwrap(), number(s, "loss"), number(s, "grad_norm"))).collect()
}

fn assert_same_curve(found: &Value, wanted: &[(u64, u64, u64)], what: &str) {
    let found = curve(found);
    let differs = (0..found.len().max(wanted.len())).find(|i| found.get(*i) != wanted.get(*i));
    if let Some(at) = differs {
        panic!("{what}: at {at} of {} steps: {:?}, not {:?}", wanted.len(), found.get(at), wanted.get(at));
    }
}

fn record_of(output: &std::process::Output) -> Value {
    assert!(output.status.success(), "{}", stderr(output));
    serde_json::from_str(stdout(output).lines().last().unwrap()).unwrap()
}

fn steps_in(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(dir)
        .map(|entries| entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect())
        .unwrap_or_default();
    names.retain(|name| name.starts_with("step-"));
    names.sort();
    names
}

/// Killed 50 times at moments of any phase: while it starts, computes, writes and names its checkpoints.
#[test]
fn a_run_killed_fifty_times_has_the_curve_of_one_that_never_was() {
    let most = tiers::cases("survival::a_run_killed_fifty_times_has_the_curve_of_one_that_never_was", [6, 6, 50]);
    let folder = tempfile::tempdir().unwrap();
    let whole = config(folder.path(), 160, "dir = \"whole\"\nevery = 2");
    let whole = record_of(&run(&folder.path().join("a"), &["run", whole.to_str().unwrap(), "--format", "json"]));
    let wanted = curve(&whole);
    assert_eq!(wanted.len(), 160);
    let mut random = 0x2545_F491_4F6C_DD1Du64;
    for asynchronous in [false, true] {
        let (mut kills, mut tries) = (0, 0);
        let dir = folder.path().join(format!("killed-{asynchronous}"));
        let saving = format!("dir = \"killed-{asynchronous}\"\nevery = 2\nasync = {asynchronous}");
        let file = config(folder.path(), 160, &saving);
        let notebook = folder.path().join(format!("b-{asynchronous}"));
        while kills < most / 2 && tries < 4 * most {
            tries += 1;
            let before = steps_in(&dir);
            let mut child = zbench(&notebook)
                .args(["run", file.to_str().unwrap(), "-q"])
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            std::thread::sleep(Duration::from_millis(5 + (random >> 33) % 700));
            // The parent alone: its children end with it, in the middle of whatever they do.
            child.kill().unwrap();
            let ended = child.wait().unwrap();
            let after = steps_in(&dir);
            assert!(after >= before, "a checkpoint was lost: {before:?}, then {after:?}");
            if ended.signal() == Some(9) {
                kills += 1;
            } else {
                assert!(ended.success(), "{ended}");
            }
            // Until the children are gone they may hold the folder's lock.
            if let Ok(lock) = std::fs::File::open(dir.join(".lock")) {
                lock.lock().unwrap();
            }
            if steps_in(&dir).last().is_some_and(|last| last == "step-00000160") {
                // It had come to its end, or was killed behind it: the next begins anew.
                std::fs::rename(&dir, folder.path().join(format!("done-{asynchronous}-{tries}"))).unwrap();
            }
        }
        assert_eq!(kills, most / 2, "killed {kills} times in {tries} runs");
        let output = run(&notebook, &["run", file.to_str().unwrap(), "--format", "json"]);
        let last = record_of(&output);
        assert_same_curve(&last, &wanted, &format!("async {asynchronous}"));
    }
}

/// Runs a script as root of a mount namespace of its own; nothing where that is not allowed.
fn in_namespace(script: &str, arguments: &[&str]) -> Option<std::process::Output> {
    let output = std::process::Command::new("unshare")
        .args(["--mount", "--map-root-user", "--user", "sh", "-c", script, env!("CARGO_BIN_EXE_zbench")])
        .args(arguments)
        .env("NO_COLOR", "1")
        .output()
        .ok()?;
    if output.status.code() == Some(77) || stderr(&output).starts_with("unshare:") {
        eprintln!("NOT TESTED: no mount namespace here: {}", stderr(&output));
        return None;
    }
    Some(output)
}

#[test]
fn a_full_disk_is_told_and_the_last_good_checkpoint_is_whole() {
    let cases = [("sharded", true), ("full", false), ("sharded", false)];
    let name = "survival::a_full_disk_is_told_and_the_last_good_checkpoint_is_whole";
    for (layout, asynchronous) in tiers::some(name, cases, [2, 2]) {
        let folder = tempfile::tempdir().unwrap();
        let (notebook, disk) = (folder.path().join("notebook"), folder.path().join("disk"));
        std::fs::create_dir(&disk).unwrap();
        let saving = format!("dir = \"disk/c\"\nevery = 2\nkeep = 0\nlayout = \"{layout}\"\nasync = {asynchronous}");
        let file = config(folder.path(), 12, &saving);
        // Room for two checkpoints and a half.
        let script = "mount -t tmpfs -o size=1600k none \"$1\" || exit 77; \"$0\" --notebook \"$2\" run \"$3\"; code=$?; \
                      ls -a \"$1/c\"; cp -r \"$1/c\" \"$2/kept\"; exit $code";
        let arguments = [disk.to_str().unwrap(), notebook.to_str().unwrap(), file.to_str().unwrap()];
        let Some(output) = in_namespace(script, &arguments) else { return };
        let said = format!("{}{}", stdout(&output), stderr(&output));
        assert_eq!(output.status.code(), Some(5), "{layout}: {said}");
        assert!(said.contains("make room, lower checkpoint.keep, or name another checkpoint.dir"), "{said}");
        let kept = steps_in(&notebook.join("kept"));
        assert!(!kept.is_empty() && kept.len() < 6, "{kept:?}");
        // The steps that were made are in the record, and the last checkpoint is gone on from.
        let records = run(&notebook, &["list", "--format", "json"]);
        let record: Value = serde_json::from_str(stdout(&records).lines().last().unwrap()).unwrap();
        assert_eq!(record["outcome"]["status"], "failed");
        assert!(record["steps"].as_array().unwrap().len() >= 2);
        let saving = format!("dir = \"notebook/kept\"\nlayout = \"{layout}\"");
        let rest = run(&notebook, &["run", config(folder.path(), 12, &saving).to_str().unwrap(), "--format", "json"]);
        let whole = config(folder.path(), 12, "dir = \"elsewhere\"");
        let whole =
            record_of(&run(&folder.path().join("other"), &["run", whole.to_str().unwrap(), "--format", "json"]));
        assert_same_curve(&record_of(&rest), &curve(&whole), layout);
    }
}

#[test]
fn a_folder_that_may_not_be_written_is_told_before_the_first_step() {
    let folder = tempfile::tempdir().unwrap();
    let (notebook, disk) = (folder.path().join("notebook"), folder.path().join("disk"));
    std::fs::create_dir(&disk).unwrap();
    let file = config(folder.path(), 4, "dir = \"disk/c\"\nevery = 2");
    let script = "mount -t tmpfs -o ro none \"$1\" || exit 77; exec \"$0\" --notebook \"$2\" run \"$3\"";
    let arguments = [disk.to_str().unwrap(), notebook.to_str().unwrap(), file.to_str().unwrap()];
    let Some(output) = in_namespace(script, &arguments) else { return };
    let said = format!("{}{}", stdout(&output), stderr(&output));
    assert_eq!(output.status.code(), Some(5), "{said}");
    assert!(
        said.contains("Read-only file system") && said.contains("name a checkpoint.dir that may be written"),
        "{said}"
    );
    let file = config(folder.path(), 4, "dir = \"run.toml\"");
    let output = run(&notebook, &["run", file.to_str().unwrap()]);
    let said = format!("{}{}", stdout(&output), stderr(&output));
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("checkpoint.dir") && said.contains("run.toml is a file; name a folder"), "{said}");
    for resume in ["", "nothing/there", "run.toml"] {
        let resume = format!("checkpoint.resume={resume:?}");
        let output =
            run(&notebook, &["run", config(folder.path(), 4, "dir = \"c\"").to_str().unwrap(), "--set", &resume]);
        let said = format!("{}{}", stdout(&output), stderr(&output));
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("checkpoint.resume"), "{said}");
    }
}

#[test]
fn trials_of_a_grid_have_folders_of_their_own_and_a_repetition_has_none() {
    let folder = tempfile::tempdir().unwrap();
    let notebook = folder.path().join("notebook");
    let file = config(folder.path(), 4, "dir = \"c\"\nevery = 2");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, format!("{text}[grid]\n\"parallel.strategy\" = [\"ddp\", \"zero3\"]\n")).unwrap();
    let grid = || run(&notebook, &["grid", file.to_str().unwrap(), "--trials", "2", "--format", "json"]);
    let output = grid();
    assert!(output.status.success(), "{}", stderr(&output));
    let records: Vec<Value> = json_lines(&stdout(&output));
    assert_eq!(records.len(), 4);
    for record in &records {
        assert_eq!(record["outcome"]["status"], "measured");
        let name = format!("{}-trial{}", record["key"].as_str().unwrap(), record["trial"]);
        assert_eq!(steps_in(&folder.path().join("c").join(name)), ["step-00000002", "step-00000004"]);
    }
    // Nothing is left to do, and what is run anew does not go on from an end.
    assert!(grid().status.success());
    let fresh = ["grid", file.to_str().unwrap(), "--trials", "1", "--fresh", "--format", "json"];
    let fresh = run(&notebook, &fresh);
    assert!(fresh.status.success(), "{}", stderr(&fresh));
    let first: Value = serde_json::from_str(stdout(&fresh).lines().next().unwrap()).unwrap();
    assert_same_curve(&first, &curve(&records[0]), "fresh");
    let id = records[0]["id"].as_str().unwrap();
    let again = run(&notebook, &["repro", id]);
    assert!(again.status.success(), "{}{}", stdout(&again), stderr(&again));
    let left: Vec<_> = std::fs::read_dir(&notebook).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_str().unwrap().starts_with("repro-")), "{left:?}");
}
