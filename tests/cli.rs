//! The program itself: real cells in child processes, exit codes, formats, and what survives Ctrl-C, kill -9, a full
//! disk and company.

use crate::support::{TINY, root, run, stderr, stdout, wait_for, write, zbench};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Stdio};

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

fn records(notebook: &Path) -> Vec<Value> {
    lines(&std::fs::read_to_string(notebook.join("records.jsonl")).unwrap_or_default())
}

fn text(value: &Value, path: &str) -> String {
    value.pointer(path).unwrap_or(&Value::Null).as_str().unwrap_or_default().to_string()
}

/// A grid whose trials take long enough to be interrupted.
fn slow() -> String {
    TINY.replace("steps = 2\n", "steps = 400\n")
}

fn start(notebook: &Path, arguments: &[&str]) -> Child {
    let command = &mut zbench(notebook);
    // As many trials as are asked for, however busy the machine is.
    command.args(arguments).arg("--no-repeats").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn pid(child: &Child) -> Pid {
    Pid::from_raw(child.id() as i32).unwrap()
}

/// Processes whose parent is `parent`.
fn children_of(parent: u32) -> Vec<i32> {
    let stat = |pid: &str| std::fs::read_to_string(format!("/proc/{pid}/stat")).ok();
    let parent_of = |pid: &str| stat(pid)?.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse::<u32>().ok();
    let all = std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().into_string().ok());
    all.filter(|name| name.parse::<i32>().is_ok() && parent_of(name) == Some(parent))
        .filter_map(|n| n.parse().ok())
        .collect()
}

#[test]
fn a_grid_trains_records_and_compares() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), TINY);
    let notebook = folder.path().join("nb");
    let output = run(&notebook, &["grid", path.to_str().unwrap(), "--trials", "2"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let said = stdout(&output);
    assert!(said.starts_with("ANSWER") && said.contains("zero3") && said.lines().count() <= 40, "{said}");
    assert_eq!(stderr(&output).lines().filter(|line| line.contains("tokens/s")).count(), 8, "a line for each trial");
    let all = records(&notebook);
    assert_eq!(all.len(), 8);
    for record in &all {
        assert_eq!(text(record, "/outcome/status"), "measured");
        assert!(record["metrics"]["tokens_per_second"].as_f64().unwrap() > 0.0);
        assert_eq!(record["steps"].as_array().unwrap().len(), 3);
        assert_eq!(record["ranks"].as_array().unwrap().len(), 2);
        for (category, bytes) in record["memory"].as_object().unwrap() {
            if bytes.is_object() {
                assert_eq!(bytes["predicted_bytes"], bytes["peak_bytes"], "{category}");
            }
        }
        for entry in record["communication"].as_array().unwrap() {
            assert_eq!(entry["predicted_wire_bytes"].as_f64(), entry["wire_bytes"].as_f64());
        }
        assert!(["reference", "identical"].contains(&text(record, "/parity/verdict").as_str()), "{}", record["parity"]);
        let spans: f64 = record["time"].as_object().unwrap().values().filter_map(Value::as_f64).sum();
        assert!(spans > 0.0);
    }
    // The same command again runs nothing.
    let output = run(&notebook, &["grid", path.to_str().unwrap(), "--trials", "2", "--format", "json"]);
    assert_eq!((output.status.code(), records(&notebook).len()), (Some(0), 8));
    assert_eq!(lines(&stdout(&output)).len(), 8);
}

#[test]
fn the_notebook_is_listed_shown_noted_reported_and_repeated() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), TINY);
    let path = path.to_str().unwrap();
    let notebook = folder.path().join("nb");
    let only = ["--only", "parallel.strategy=zero3,memory.checkpointing=none"];
    let output = run(&notebook, &[&["run", path], &only[..]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stderr(&output).contains("step    3/3  loss"), "{}", stderr(&output));
    let id = text(&records(&notebook)[0], "/id");
    let said = |arguments: &[&str]| {
        let output = run(&notebook, arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", stderr(&output));
        stdout(&output)
    };
    assert!(said(&["list"]).contains(&id[..6]));
    assert!(said(&["list", "--format", "csv"]).contains(&id));
    said(&["note", &id[..8], "on battery"]);
    assert!(said(&["show", &id[..8]]).contains("on battery"));
    assert_eq!(lines(&said(&["show", &id, "--format", "json"]))[0]["id"], id.as_str());
    assert!(said(&["report", "--format", "markdown"]).contains("zero3"));
    assert!(said(&["report", "parallel.strategy=zero3", "--format", "csv"]).contains("zero3"));
    assert_eq!(run(&notebook, &["report", "parallel.strategy=ddp"]).status.code(), Some(4));
    assert!(said(&["repro", &id]).contains("are the same"));
    assert_eq!(records(&notebook).iter().filter(|line| line["trial"] == 2).count(), 1);
    assert_eq!(run(&notebook, &["show", "zzz"]).status.code(), Some(1));
    assert_eq!(run(&folder.path().join("none"), &["list"]).status.code(), Some(1));
}

/// What a record names is found from any directory, and the key does not depend on where one stands.
#[test]
fn a_record_with_files_is_repeated_from_elsewhere() {
    let folder = tempfile::tempdir().unwrap();
    let notebook = folder.path().join("nb");
    std::fs::create_dir(folder.path().join("data")).unwrap();
    let tokens: Vec<u8> = (0..4096u32).flat_map(|i| (i * 7 % 61).to_le_bytes()).collect();
    std::fs::write(folder.path().join("data/tokens.bin"), tokens).unwrap();
    write(folder.path(), &format!("{TINY}[data]\nsource = \"tokens\"\npath = \"./data/tokens.bin\"\n"));
    let only = ["--only", "parallel.strategy=zero3,memory.checkpointing=none"];
    for (directory, file) in [(folder.path().to_path_buf(), "tiny.toml"), (folder.path().join("data"), "../tiny.toml")]
    {
        let output = zbench(&notebook).current_dir(directory).args(["run", file]).args(only).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    }
    let all = records(&notebook);
    assert_eq!(all[0]["key"], all[1]["key"]);
    assert!(Path::new(&text(&all[0], "/cell/data/path")).is_absolute(), "{}", all[0]["cell"]["data"]);
    let output = zbench(&notebook).current_dir("/").args(["repro", &text(&all[0], "/id")]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).contains("are the same"), "{}", stdout(&output));
}

#[test]
fn estimates_run_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), TINY);
    let notebook = folder.path().join("nb");
    for arguments in [&["grid", path.to_str().unwrap(), "--dry-run"][..], &["plan", path.to_str().unwrap()]] {
        let output = run(&notebook, arguments);
        assert_eq!(output.status.code(), Some(0));
        assert!(stdout(&output).contains("Nothing was run"));
    }
    assert!(!notebook.exists());
}

#[test]
fn run_wants_one_cell_that_can_be() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), TINY);
    let several = run(folder.path(), &["run", path.to_str().unwrap()]);
    assert_eq!(several.status.code(), Some(1));
    assert!(
        stderr(&several).contains("the file has 4 cells, and `run` runs one; add the option that selects one of them")
    );
    let with_include = format!("{TINY}[[grid.include]]\n\"lora.rank\" = 2\n");
    let path = write(folder.path(), &with_include);
    let narrow = ["--set", "parallel.strategy=zero3", "--set", "memory.checkpointing=none"];
    let two = run(folder.path(), &[&["run", path.to_str().unwrap()], &narrow[..]].concat());
    assert_eq!(two.status.code(), Some(1));
    for fragment in ["the file has 2 cells", "--only lora.rank=0", "--only lora.rank=2"] {
        assert!(stderr(&two).contains(fragment), "{fragment}: {}", stderr(&two));
    }
    let notebook = folder.path().join("nb");
    let one = run(&notebook, &[&["run", path.to_str().unwrap(), "--only", "lora.rank=0"], &narrow[..]].concat());
    assert_eq!(one.status.code(), Some(0), "{}", stderr(&one));
    assert_eq!(records(&notebook)[0]["cell"]["lora"]["rank"], 0, "the cell of the product, not the include's");
    let none = run(folder.path(), &["run", path.to_str().unwrap(), "--only", "lora.rank=3"]);
    assert_eq!(none.status.code(), Some(1));
    let said = stderr(&none);
    assert!(said.contains("no cell is left") && said.contains("cells have lora.rank = 0, 2"), "{said}");
    let one = ["--set", "parallel.strategy=hsdp", "--set", "parallel.ranks=3", "--set", "memory.checkpointing=none"];
    let none = run(folder.path(), &[&["run", path.to_str().unwrap()], &one[..]].concat());
    assert_eq!(none.status.code(), Some(1), "{}", stderr(&none));
    assert!(stderr(&none).contains("parallel.shard"));
}

#[test]
fn absent_hardware_is_skipped_with_exit_4_and_stood_in_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = root().join("configs/llama70b.toml");
    let path = path.to_str().unwrap();
    let notebook = folder.path().join("nb");
    let output = run(&notebook, &["grid", path]);
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    let all = records(&notebook);
    assert_eq!(all.len(), 20);
    for record in &all {
        assert_eq!(text(record, "/outcome/status"), "skipped");
        assert!(text(record, "/outcome/reason").contains("16 CUDA devices (a100-80gb)"));
        let of_adapters = record["cell"]["lora"]["rank"].as_u64().is_some_and(|rank| rank > 0);
        let optimizer = record["memory"]["optimizer"]["predicted_bytes"].as_u64().unwrap();
        assert!(of_adapters || optimizer > 1 << 30, "{optimizer}");
    }
    let find = |strategy: &str, checkpointing: &str, gradients: &str| {
        let is = |record: &&Value| {
            text(record, "/cell/parallel/strategy") == strategy
                && text(record, "/cell/memory/checkpointing") == checkpointing
                && text(record, "/cell/precision/gradients") == gradients
        };
        all.iter().find(is).unwrap()
    };
    assert!(text(find("fsdp", "full", "bf16"), "/outcome/reason").contains("it would fit"));
    let hybrid = find("hsdp", "full", "bf16");
    assert!(text(hybrid, "/outcome/reason").contains("it would not fit"));
    assert!(hybrid["notes"].to_string().contains("parallel.strategy = \\\"fsdp\\\""), "{}", hybrid["notes"]);
    // One cell of the stand-in is enough here.
    let proxy = [
        "grid",
        path,
        "--proxy",
        "--trials",
        "1",
        "--only",
        "parallel.strategy=hsdp,memory.checkpointing=full,precision.gradients=bf16",
    ];
    let output = run(&notebook, &proxy);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).contains("PROXY"), "{}", stdout(&output));
    let last = records(&notebook).pop().unwrap();
    assert_eq!(
        (text(&last, "/outcome/status").as_str(), text(&last, "/name").as_str()),
        ("measured", "llama70b (proxy)")
    );
    assert_eq!(text(&last, "/proxy/of"), text(find("hsdp", "full", "bf16"), "/key"));
    assert_eq!(last["validity"].as_array().unwrap().iter().filter(|flag| *flag == "proxy").count(), 1);
}

#[test]
fn a_capacity_stops_ddp_and_not_zero3() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), TINY);
    let estimate = run(folder.path(), &["plan", path.to_str().unwrap(), "--format", "json"]);
    let totals: Vec<u64> = lines(&stdout(&estimate)).iter().map(|row| row["total_bytes"].as_u64().unwrap()).collect();
    let (ddp, zero3) = (totals[0], totals[2]);
    assert!(zero3 < ddp);
    let capacity = format!("memory.capacity={}", ddp - 64);
    let only = ["--only", "memory.checkpointing=none", "--trials", "1", "--set", &capacity];
    let output = run(folder.path(), &[&["grid", path.to_str().unwrap()], &only[..]].concat());
    assert_eq!(output.status.code(), Some(0), "a stated capacity is no failure: {}", stderr(&output));
    let all = records(folder.path());
    assert_eq!(text(&all[0], "/outcome/status"), "out_of_memory");
    assert_eq!(text(&all[0], "/outcome/source"), "arena");
    assert!(
        zbench_kernels::Category::ALL.iter().any(|c| text(&all[0], "/outcome/reason").contains(c.name())),
        "{}",
        all[0]["outcome"]
    );
    assert_eq!(text(&all[1], "/outcome/status"), "measured");
}

#[test]
fn a_time_limit_is_an_outcome_and_exit_5() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), &slow().replace("steps = 400\n", "steps = 1000000\n"));
    let only = ["--only", "parallel.strategy=ddp,memory.checkpointing=none", "--timeout", "10s"];
    let output = run(folder.path(), &[&["grid", path.to_str().unwrap()], &only[..]].concat());
    assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
    let all = records(folder.path());
    assert_eq!((all.len(), text(&all[0], "/outcome/status").as_str()), (1, "timed_out"));
    assert!(text(&all[0], "/outcome/reason").contains("--timeout"));
    assert!(!all[0]["steps"].as_array().unwrap().is_empty(), "the steps before are kept");
}

#[test]
fn divergence_is_an_outcome_and_exit_5() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), &TINY.replace("steps = 2\n", "steps = 60\nlr = 1e30\n"));
    let only = ["--only", "parallel.strategy=zero3,memory.checkpointing=none"];
    let output = run(folder.path(), &[&["grid", path.to_str().unwrap()], &only[..]].concat());
    assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
    assert_eq!(text(&records(folder.path())[0], "/outcome/status"), "diverged");
}

#[test]
fn a_killed_cell_is_an_outcome_and_the_grid_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), &slow());
    let only = ["--only", "memory.checkpointing=none", "--trials", "1"];
    let mut grid = start(folder.path(), &[&["grid", path.to_str().unwrap()], &only[..]].concat());
    let mut cell = Vec::new();
    wait_for("a cell", || {
        cell = children_of(grid.id());
        !cell.is_empty()
    });
    kill_process(Pid::from_raw(cell[0]).unwrap(), Signal::KILL).unwrap();
    let status = grid.wait().unwrap();
    assert_eq!(status.code(), Some(5));
    let all = records(folder.path());
    assert_eq!(all.len(), 2);
    assert_eq!(text(&all[0], "/outcome/status"), "failed");
    assert!(text(&all[0], "/outcome/reason").contains("signal 9"));
    assert_eq!(text(&all[1], "/outcome/status"), "measured");
}

#[test]
fn ctrl_c_loses_nothing_and_resume_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), &slow());
    let arguments = ["grid", path.to_str().unwrap(), "--trials", "1"];
    let mut grid = start(folder.path(), &arguments);
    wait_for("the first record", || !records_or_torn(folder.path()).is_empty());
    kill_process(pid(&grid), Signal::INT).unwrap();
    let status = grid.wait().unwrap();
    let mut said = String::new();
    grid.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(status.code(), Some(130), "{said}");
    assert!(said.contains("goes on from here"), "{said}");
    assert!(children_of(grid.id()).is_empty());
    let before: Vec<String> = records(folder.path()).iter().map(|record| text(record, "/id")).collect();
    assert!((1..4).contains(&before.len()), "{}", before.len());
    // Standard output says so first, then how to go on, and has no report that would read as one of the whole grid.
    let mut shown = String::new();
    grid.stdout.take().unwrap().read_to_string(&mut shown).unwrap();
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!(lines.len(), 3, "{shown}");
    assert_eq!(lines[0], format!("interrupted: {} of 4 cells measured", before.len()));
    let command = lines[1].strip_prefix("To go on, run the same command again: zbench --notebook").expect(lines[1]);
    assert!(command.contains(" grid ") && command.ends_with(" --trials 1 --no-repeats"), "{shown}");
    assert!(lines[2].ends_with(" report"), "{shown}");
    // `zbench report`, which it names, has a report of what there is.
    let asked = run(folder.path(), &["report"]);
    assert!(asked.status.success() && stdout(&asked).contains("tokens/s"), "{}", stdout(&asked));
    resume(folder.path(), &arguments, &before);
}

#[test]
fn kill_9_loses_nothing_and_ends_the_cell() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), &slow());
    let arguments = ["grid", path.to_str().unwrap(), "--trials", "1"];
    let mut grid = start(folder.path(), &arguments);
    let mut cells = Vec::new();
    wait_for("a record and a running cell", || {
        cells = children_of(grid.id());
        !records_or_torn(folder.path()).is_empty() && !cells.is_empty()
    });
    grid.kill().unwrap();
    assert_eq!(grid.wait().unwrap().signal(), Some(9));
    // A process that has ended may still stand there as a zombie, waiting for its new parent.
    let alive = |pid: &i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
    };
    wait_for("the cell's end", || !cells.iter().any(alive));
    let before: Vec<String> = records(folder.path()).iter().map(|record| text(record, "/id")).collect();
    resume(folder.path(), &arguments, &before);
}

/// Whole lines of a notebook that is being written.
fn records_or_torn(notebook: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(notebook.join("records.jsonl")).unwrap_or_default();
    text.split_inclusive('\n')
        .filter(|line| line.ends_with('\n'))
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// The same command ends the grid: what was there stays, nothing is measured twice.
fn resume(notebook: &Path, arguments: &[&str], before: &[String]) {
    let output = run(notebook, arguments);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let all = records(notebook);
    let ids: Vec<String> = all.iter().map(|record| text(record, "/id")).collect();
    assert_eq!(&ids[..before.len()], before);
    let mut keys: Vec<String> = all.iter().map(|record| text(record, "/key")).collect();
    keys.sort();
    keys.dedup();
    assert_eq!((keys.len(), all.len()), (4, 4));
}

#[test]
fn a_full_disk_loses_nothing_measured() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), TINY);
    let notebook = folder.path().join("nb");
    let first = run(&notebook, &["grid", path.to_str().unwrap(), "--trials", "1", "--only", "parallel.strategy=ddp"]);
    assert_eq!(first.status.code(), Some(0));
    let before = std::fs::read(notebook.join("records.jsonl")).unwrap();
    // Files of this shell may not grow beyond what is there: the system refuses the next record as a full disk would.
    let blocks = before.len() / 1024 + 1;
    let command = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" \"$@\"");
    let program = env!("CARGO_BIN_EXE_zbench");
    let output = std::process::Command::new("bash")
        .args([
            "-c",
            &command,
            program,
            "--notebook",
            notebook.to_str().unwrap(),
            "grid",
            path.to_str().unwrap(),
            "--trials",
            "1",
        ])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("free some space"), "{}", stderr(&output));
    assert_eq!(std::fs::read(notebook.join("records.jsonl")).unwrap(), before);
    let output = run(&notebook, &["grid", path.to_str().unwrap(), "--trials", "1"]);
    assert_eq!((output.status.code(), records(&notebook).len()), (Some(0), 4));
}

#[test]
fn two_at_once_share_a_notebook() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), TINY);
    let ddp = ["grid", path.to_str().unwrap(), "--trials", "2", "--only", "parallel.strategy=ddp"];
    let zero3 = ["grid", path.to_str().unwrap(), "--trials", "2", "--only", "parallel.strategy=zero3"];
    let processes: Vec<Child> = [ddp, zero3].iter().map(|arguments| start(folder.path(), arguments)).collect();
    for process in processes {
        let output = process.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    }
    assert_eq!(records(folder.path()).len(), 8);
}

#[test]
fn usage_errors_are_exit_1_and_help_is_0() {
    let folder = tempfile::tempdir().unwrap();
    for arguments in
        [&["grdi"][..], &["grid"], &["grid", "x.toml", "--trials", "0"], &["grid", "x.toml", "--timeout", "0s"], &[]]
    {
        assert_eq!(run(folder.path(), arguments).status.code(), Some(1), "{arguments:?}");
    }
    for command in [
        "grid",
        "run",
        "plan",
        "rule",
        "list",
        "show",
        "note",
        "tag",
        "export",
        "import",
        "report",
        "repro",
        "doctor",
        "completions",
        "man",
    ] {
        let output = run(folder.path(), &[command, "--help"]);
        assert_eq!(output.status.code(), Some(0));
        assert!(stdout(&output).contains("Examples:"), "{command}");
    }
    assert!(!stdout(&run(folder.path(), &["--help"])).contains("__cell"));
    let doctor = run(folder.path(), &["doctor", "--format", "json"]);
    let rows = lines(&stdout(&doctor));
    for what in [
        "memory",
        "frequency governor",
        "turbo",
        "processor quota",
        "energy counters",
        "temperature",
        "swap",
        "container",
        "hypervisor",
        "notebook can be written",
        "open files (ulimit -n)",
        "locked memory (ulimit -l)",
        "/dev/shm",
        "launcher of this process",
        "network interfaces that are up",
        "profile: ceilings of this machine",
        "browser for report --open",
        "NCCL",
        "NVML",
        "runs here: strategy zero3",
        "runs here: backend nccl",
        "runs here: suite checkpoint",
    ] {
        let row = rows.iter().find(|row| row["what"] == what).unwrap_or_else(|| panic!("{what}"));
        assert!(row["ok"] == true || !row["advice"].as_str().unwrap().is_empty(), "{row}: what is wrong has advice");
    }
}

/// Whatever is put into a cell's process, it ends with a status and no panic.
#[test]
fn a_cell_that_cannot_be_read_ends() {
    let folder = tempfile::tempdir().unwrap();
    for text in ["", "{}", "[1]", "\u{0}", "{\"cell\": 3}"] {
        let mut child =
            zbench(folder.path()).arg("__cell").stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), text.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(70));
        assert!(!stderr(&output).contains("panicked"), "{}", stderr(&output));
    }
}

#[test]
fn an_error_says_its_cause_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = write(folder.path(), TINY);
    // A notebook where there is a file: refused by the notebook, whose words have the system's in them.
    for command in [&["grid", file.to_str().unwrap()][..], &["allreduce", "-b", "8", "-e", "8", "-n", "1"]] {
        let output = run(&file, command);
        assert_eq!(output.status.code(), Some(1));
        let said = stderr(&output);
        assert_eq!(said.matches("File exists (os error 17)").count(), 1, "{said}");
        assert!(said.contains("--notebook DIR"), "{said}");
    }
}
