//! One real run of the program for each property that needs a process. tests/program/ has the other cases.

use crate::launched::{self, ENDLESS, course, record_of, under_way};
use crate::support::*;
use crate::timeline;
use rustix::process::Signal;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};
use std::time::Duration;
use zbench_runner::turns::resident::{ExternalCommand, Program};
use zbench_runner::turns::{Ending, Experiment, Participant, Settings, TurnPolicy, TurnSample};
use zbench_test_tiers as tiers;

/// What a command prints that must succeed.
fn said(notebook: &Path, arguments: &[&str]) -> String {
    let output = run(notebook, arguments);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", stderr(&output));
    stdout(&output)
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

fn ids(notebook: &Path) -> Vec<String> {
    records(notebook).iter().map(|record| text(record, "/id").to_string()).collect()
}

#[test]
fn a_grid_trains_records_compares_and_resumes() {
    let (printed, told) = (&MEASURED.stdout, &MEASURED.stderr);
    assert!(printed.starts_with("ANSWER") && printed.contains("zero3") && printed.lines().count() <= 40, "{printed}");
    assert_eq!(told.lines().filter(|line| line.contains("tokens/s")).count(), 8, "a line for each trial");
    let folder = tempfile::tempdir().unwrap();
    let notebook = measured(folder.path());
    let all = records(&notebook);
    let trials: BTreeSet<(&str, u64)> =
        all.iter().map(|record| (text(record, "/key"), record["trial"].as_u64().unwrap())).collect();
    assert_eq!((all.len(), trials.len()), (8, 8));
    for record in &all {
        assert_eq!(text(record, "/outcome/status"), "measured");
        assert!(record["metrics"]["tokens_per_second"].as_f64().unwrap() > 0.0);
        assert!(record["metrics"]["peak_rss_bytes"].as_f64().unwrap() > 0.0);
        assert_eq!(record["steps"].as_array().unwrap().len(), 3);
        assert_eq!(record["ranks"].as_array().unwrap().len(), 2);
        let total = &record["memory"]["total"];
        assert!(total["peak_bytes"].as_u64() > Some(0), "{total}");
        assert_eq!(record["metrics"]["peak_memory_bytes"].as_f64(), total["peak_bytes"].as_f64());
        for (category, bytes) in record["memory"].as_object().unwrap() {
            if bytes.is_object() {
                assert_eq!(bytes["predicted_bytes"], bytes["peak_bytes"], "{category}");
            }
        }
        for entry in record["communication"].as_array().unwrap() {
            assert_eq!(entry["predicted_wire_bytes"].as_f64(), entry["wire_bytes"].as_f64());
        }
        assert!(["reference", "identical"].contains(&text(record, "/parity/verdict")), "{}", record["parity"]);
        assert_eq!(losses(record), losses(&all[0]), "all strategies train the same");
        let spans: f64 = record["time"].as_object().unwrap().values().filter_map(Value::as_f64).sum();
        assert!(spans > 0.0);
    }
    // Of a notebook that lacks two records, the same command measures these two; and then nothing.
    let path = folder.path().join("tiny.toml");
    let grid = ["grid", path.to_str().unwrap(), "--trials", "2", "--format", "json"];
    let lines: Vec<String> =
        all.iter().enumerate().filter(|(at, _)| ![2, 5].contains(at)).map(|(_, r)| format!("{r}\n")).collect();
    std::fs::write(notebook.join("records.jsonl"), lines.concat()).unwrap();
    for appended in [2, 0] {
        let before = records(&notebook).len();
        assert_eq!(json_lines(&said(&notebook, &grid)).len(), 8);
        assert_eq!(records(&notebook).len() - before, appended);
    }
    let again: BTreeSet<(String, u64)> = records(&notebook)
        .iter()
        .map(|record| (text(record, "/key").into(), record["trial"].as_u64().unwrap()))
        .collect();
    assert_eq!(again, trials.iter().map(|(key, trial)| (key.to_string(), *trial)).collect());
    // `--only` measures the cells that it names and no other.
    let one = folder.path().join("one");
    let only = "parallel.strategy=zero3,memory.checkpointing=full";
    said(&one, &["grid", path.to_str().unwrap(), "--trials", "1", "--only", only]);
    let cells: Vec<(String, String)> = records(&one)
        .iter()
        .map(|r| (text(r, "/cell/parallel/strategy").into(), text(r, "/cell/memory/checkpointing").into()))
        .collect();
    assert_eq!(cells, [("zero3".into(), "full".into())]);
}

#[test]
fn the_notebook_is_listed_shown_noted_reported_and_repeated() {
    let folder = tempfile::tempdir().unwrap();
    let notebook = measured(folder.path());
    let id = ids(&notebook).remove(0);
    let said = |arguments: &[&str]| said(&notebook, arguments);
    assert!(said(&["list", "--format", "csv"]).contains(&id));
    said(&["note", &id[..8], "on battery"]);
    said(&["tag", &id[..8], "paper"]);
    assert_eq!(json_lines(&said(&["list", "tag=paper", "--format", "json"]))[0]["id"], id.as_str());
    assert!(said(&["show", &id[..8]]).contains("on battery"));
    for (name, start) in [
        ("r.html", "<!DOCTYPE html>"),
        ("r.md", "# tiny"),
        ("r.csv", "table,"),
        ("r.json", "{\"schema\""),
        ("r.txt", "ANSWER "),
    ] {
        let path = folder.path().join(name);
        said(&["report", "-o", path.to_str().unwrap()]);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.starts_with(start) && text.contains("zero3"), "{name}: {text:.80}");
    }
    assert!(said(&["repro", &id]).contains("are the same"));
    let all = records(&notebook);
    let repeated: Vec<&Value> = all.iter().filter(|line| line["trial"] == 3).collect();
    assert_eq!((repeated.len(), &repeated[0]["key"]), (1, &all[0]["key"]));
    for (arguments, code) in [
        (&["report", "parallel.strategy=zero2"][..], 4),
        (&["show", "zzz"], 1),
        (&["compare", "zzz", &id], 1),
        (&["report", "-o", "r.xyz"], 1),
    ] {
        assert_eq!(run(&notebook, arguments).status.code(), Some(code), "{arguments:?}");
    }
    let nowhere = folder.path().join("none");
    assert!(run(&nowhere, &["list"]).status.code() == Some(1) && !nowhere.exists());
}

#[test]
fn records_are_explained_by_a_comparison() {
    let folder = tempfile::tempdir().unwrap();
    let notebook = measured(folder.path());
    let sides = ["parallel.strategy=ddp", "parallel.strategy=zero3"];
    let pairs = json_lines(&said(&notebook, &["compare", sides[0], sides[1], "--format", "json", "--include-flagged"]));
    assert_eq!(pairs.len(), 2, "one for each checkpointing");
    for pair in &pairs {
        let metric =
            |name: &str| pair["metrics"].as_array().unwrap().iter().find(|metric| metric["name"] == name).unwrap();
        // What is counted is exact: zero3 moves half as much again as ddp, and shards what ddp repeats.
        assert_eq!(metric("wire_bytes")["interval"], "counted");
        assert_eq!(
            (&metric("wire_bytes")["verdict"], &metric("peak_memory_bytes")["verdict"]),
            (&json!("b_worse"), &json!("b_better"))
        );
        assert_eq!(pair["losses"]["identical"], true);
        let explanation = &pair["explanation"];
        let spans = explanation["spans"].as_array().unwrap();
        let spans: f64 = spans.iter().map(|span| span["change_ms"].as_f64().unwrap()).sum();
        let step = explanation["step"]["change_ms"].as_f64().unwrap();
        assert!((spans - step).abs() < 1e-6 * explanation["step"]["a_ms"].as_f64().unwrap(), "{spans} {step}");
        let entries = explanation["communication"].as_array().unwrap();
        let kinds: Vec<&str> = entries.iter().filter_map(|entry| entry["kind"].as_str()).collect();
        assert!(kinds.contains(&"all_gather") && kinds.contains(&"reduce_scatter"), "{kinds:?}");
        assert!(!explanation["memory"].as_array().unwrap().is_empty());
    }
}

#[test]
fn a_bundle_goes_from_notebook_to_notebook() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (measured(folder.path()), folder.path().join("to"));
    let ids = ids(&from);
    said(&from, &["tag", &ids[0], "paper"]);
    said(&from, &["note", &ids[1], "http://me:secret@wiki says so"]);
    let file = folder.path().join("all.jsonl");
    let file = file.to_str().unwrap();
    said(&from, &["export", "--bundle", file]);
    let whole = std::fs::read_to_string(file).unwrap();
    assert_eq!(whole.lines().count(), 1 + 8 + 2);
    assert!(!whole.contains("me:secret"), "{whole}");
    // One that is cut off changes nothing.
    let cut = folder.path().join("cut.jsonl");
    std::fs::write(&cut, &whole[..whole.len() - 100]).unwrap();
    let output = run(&to, &["import", "--bundle", cut.to_str().unwrap()]);
    assert!(output.status.code() == Some(1) && !to.join("records.jsonl").exists(), "{}", stderr(&output));
    said(&to, &["import", "--bundle", file]);
    let listed = json_lines(&said(&to, &["list", "--format", "json"]));
    assert_eq!(listed.iter().map(|record| text(record, "/id")).collect::<Vec<_>>(), ids);
    assert!(said(&to, &["show", &ids[1]]).contains("says so"));
    // Again, and back: nothing twice.
    for notebook in [&to, &from] {
        let before = std::fs::read(notebook.join("records.jsonl")).unwrap();
        said(notebook, &["import", "--bundle", file]);
        assert_eq!(std::fs::read(notebook.join("records.jsonl")).unwrap(), before);
    }
}

#[test]
fn a_capacity_stops_ddp_and_not_zero3() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), TINY);
    let totals: Vec<u64> =
        plan(&[path.to_str().unwrap()]).iter().map(|row| row["total_bytes"].as_u64().unwrap()).collect();
    let (ddp, zero3) = (totals[0], totals[2]);
    assert!(zero3 < ddp);
    let capacity = format!("memory.capacity={}", ddp - 64);
    let only = ["--only", "memory.checkpointing=none", "--trials", "1", "--set", &capacity];
    // A stated capacity is no failure.
    said(folder.path(), &[&["grid", path.to_str().unwrap()], &only[..]].concat());
    let all = records(folder.path());
    assert_eq!(text(&all[0], "/outcome/status"), "out_of_memory");
    assert_eq!(text(&all[0], "/outcome/source"), "arena");
    let reason = text(&all[0], "/outcome/reason");
    assert!(zbench_kernels::Category::ALL.iter().any(|category| reason.contains(category.name())), "{reason}");
    assert_eq!(text(&all[1], "/outcome/status"), "measured");
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
fn a_killed_cell_is_an_outcome_and_the_grid_continues() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), &slow());
    let only = ["--only", "memory.checkpointing=none", "--trials", "1"];
    let mut grid = start(folder.path(), &[&["grid", path.to_str().unwrap()], &only[..]].concat());
    let mut cell = Vec::new();
    wait_for("a cell", || {
        cell = descendants(grid.id());
        !cell.is_empty()
    });
    signal(cell[0], Signal::KILL);
    assert_eq!(grid.wait().unwrap().code(), Some(5));
    let all = records(folder.path());
    assert_eq!(all.len(), 2);
    assert_eq!(text(&all[0], "/outcome/status"), "failed");
    assert!(text(&all[0], "/outcome/reason").contains("signal 9"));
    assert_eq!(text(&all[1], "/outcome/status"), "measured");
}

#[test]
fn ctrl_c_and_kill_9_lose_nothing_and_the_same_command_continues() {
    for sent in [Signal::INT, Signal::KILL] {
        let folder = tempfile::tempdir().unwrap();
        let path = write(folder.path(), &slow());
        let arguments = ["grid", path.to_str().unwrap(), "--trials", "1"];
        let mut grid = start(folder.path(), &arguments);
        let mut cells = Vec::new();
        wait_for("a record and a running cell", || {
            cells = descendants(grid.id());
            !records_so_far(folder.path()).is_empty() && !cells.is_empty()
        });
        signal(grid.id(), sent);
        let status = grid.wait().unwrap();
        assert_gone(&cells);
        let before = ids(folder.path());
        assert!((1..4).contains(&before.len()), "{}", before.len());
        let mut printed = String::new();
        grid.stdout.take().unwrap().read_to_string(&mut printed).unwrap();
        if sent == Signal::KILL {
            assert_eq!(status.signal(), Some(9));
        } else {
            // It says so and how to continue, and prints no report that would read as one of the whole grid.
            assert_eq!(status.code(), Some(130));
            assert!(printed.starts_with(&format!("interrupted: {} of 4 cells measured\n", before.len())), "{printed}");
            assert_eq!(printed.lines().count(), 3, "{printed}");
            assert!(said(folder.path(), &["report"]).contains("tokens/s"));
        }
        said(folder.path(), &arguments);
        let all = records(folder.path());
        assert_eq!(ids(folder.path())[..before.len()], before);
        let keys: BTreeSet<&str> = all.iter().map(|record| text(record, "/key")).collect();
        assert_eq!((keys.len(), all.len()), (4, 4));
    }
}

#[test]
fn a_record_without_room_is_rescued_and_taken_in_later() {
    let folder = tempfile::tempdir().unwrap();
    let (path, temporary) = (write(folder.path(), TINY), folder.path().join("tmp"));
    let notebook = measured(folder.path());
    std::fs::create_dir(&temporary).unwrap();
    let before = std::fs::read(notebook.join("records.jsonl")).unwrap();
    // Files of this shell may not grow beyond what is there: the next record finds no room.
    let script = format!("trap '' XFSZ; ulimit -f {}; exec \"$0\" \"$@\"", before.len() / 1024 + 1);
    let mut command = std::process::Command::new("bash");
    command.args(["-c", &script, env!("CARGO_BIN_EXE_zbench"), "--notebook"]).arg(&notebook).arg("grid").arg(&path);
    let output = command.args(["--trials", "3", "--no-repeats"]).env("TMPDIR", &temporary).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert_eq!(std::fs::read(notebook.join("records.jsonl")).unwrap(), before, "what was there is there");
    let files: Vec<PathBuf> = std::fs::read_dir(&temporary).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.len(), 1, "{}", stderr(&output));
    said(&notebook, &["import", "--bundle", files[0].to_str().unwrap()]);
    let rescued = ids(&notebook);
    assert_eq!(rescued.len(), 9);
    said(&notebook, &["grid", path.to_str().unwrap(), "--trials", "3"]);
    let after = ids(&notebook);
    assert_eq!((after.len(), &after[..9]), (12, &rescued[..]), "the rescued trial is not measured again");
}

/// tests/fixtures/llama through TOML, child process and record: each loss within 1e-4 of PyTorch's, each norm within 1e-3.
#[test]
fn the_command_matches_pytorch() {
    let fixture = root().join("tests/fixtures/llama");
    let folder = tempfile::tempdir().unwrap();
    let path = fixture.display();
    let data = format!("[model]\npath = \"{path}\"\n[data]\nsource = \"tokens\"\npath = \"{path}/tokens.bin\"\n");
    let train = "[train]\nseq_len = 32\nmicro_batch = 2\nsteps = 18\nuntimed_steps = 2\nlr = 1e-3\nbetas = [0.9, 0.95]\neps = 1e-8\n\
                 weight_decay = 0.1\n[parallel]\nranks = 2\n";
    let file = write(folder.path(), &(data + train));
    let reference = std::fs::read_to_string(fixture.join("reference.json")).unwrap();
    let reference: Value = serde_json::from_str(&reference).unwrap();
    for (strategy, checkpointing) in [("ddp", "none"), ("zero3", "full")] {
        let [strategy, checkpointing] =
            [format!("parallel.strategy={strategy}"), format!("memory.checkpointing={checkpointing}")];
        let arguments =
            ["run", file.to_str().unwrap(), "--format", "json", "--set", &strategy, "--set", &checkpointing];
        let record = json_lines(&said(&folder.path().join("nb"), &arguments)).remove(0);
        for step in 0..20 {
            for (key, tolerance) in [("loss", 1e-4), ("grad_norm", 1e-3)] {
                let ours = record["steps"][step][key].as_f64().unwrap();
                let theirs = reference[key][step].as_f64().unwrap();
                assert!(
                    (ours - theirs).abs() <= tolerance * theirs,
                    "{strategy}: step {step}: {key} {ours} for {theirs}"
                );
            }
        }
    }
}

#[test]
fn processes_train_as_threads_do() {
    let folder = tempfile::tempdir().unwrap();
    let file = launched::cell(folder.path());
    for strategy in tiers::some("witnesses::processes_train_as_threads_do", ["zero3", "ddp", "hsdp"], [1, 3]) {
        let strategy = format!("parallel.strategy={strategy}");
        let threads = launched::run(folder.path(), &file, &[&strategy]);
        assert_eq!(course(&threads).len(), 5);
        for backend in ["shm", "tcp"] {
            let set = format!("parallel.backend={backend}");
            let processes = launched::run(folder.path(), &file, &[&strategy, &set]);
            assert_eq!(course(&processes), course(&threads), "{strategy} over {backend}");
            assert_eq!(processes.pointer("/memory/total/peak_bytes"), threads.pointer("/memory/total/peak_bytes"));
            let calls = |record: &Value| {
                let rows = record["communication"].as_array().unwrap().iter();
                rows.map(|row| (row["kind"].clone(), row["calls"].clone(), row["payload_bytes"].clone()))
                    .collect::<Vec<_>>()
            };
            assert_eq!(calls(&processes), calls(&threads));
            let pids: BTreeSet<u64> = (0..4).map(|rank| processes["ranks"][rank]["pid"].as_u64().unwrap()).collect();
            assert_eq!(pids.len(), 4, "each rank is a process");
            assert_eq!(processes["ranks"][3]["host"], processes["environment"]["host"]);
            assert_eq!(text(&processes, "/cell/parallel/backend"), backend);
        }
    }
}

#[test]
fn a_killed_rank_is_named_and_the_record_kept() {
    for backend in tiers::some("witnesses::a_killed_rank_is_named_and_the_record_kept", ["shm", "tcp"], [1, 2]) {
        let folder = tempfile::tempdir().unwrap();
        let file = launched::cell(folder.path());
        let set = format!("parallel.backend={backend}");
        let (child, ranks) = under_way(launched::command(folder.path(), &file, &[&set, ENDLESS]));
        assert_eq!(ranks.len(), 4);
        let victim = ranks.iter().find(|(rank, _)| *rank == 2).unwrap().1;
        signal(victim, Signal::KILL);
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(5), "{backend}");
        let record = record_of(&output);
        let reason = text(&record, "/outcome/reason");
        for word in [&format!("rank 2 (process {victim} on "), "signal 9 (SIGKILL)", " number "] {
            assert!(reason.contains(word), "{backend}: {reason} lacks {word}");
        }
        assert!(record["steps"].as_array().unwrap().len() >= 3, "steps done before are kept");
        assert_gone(&launched::processes(&ranks));
        assert_eq!(records(&folder.path().join("nb")).len(), 1);
    }
}

#[test]
fn torchrun_makes_one_record_with_the_losses_of_threads() {
    let folder = tempfile::tempdir().unwrap();
    let file = launched::cell(folder.path());
    let threads = launched::run(folder.path(), &file, &["parallel.strategy=zero3"]);
    let backends =
        tiers::some("witnesses::torchrun_makes_one_record_with_the_losses_of_threads", ["tcp", "shm"], [1, 2]);
    for (trial, backend) in backends.into_iter().enumerate() {
        let set = ["parallel.strategy=zero3", &format!("parallel.backend={backend}")];
        let children = launched::launch(folder.path(), &file, 4, &set);
        let outputs: Vec<Output> = children.into_iter().map(|child| child.wait_with_output().unwrap()).collect();
        let record = record_of(&outputs[0]);
        assert_eq!(text(&record, "/outcome/status"), "measured", "{}", text(&record, "/outcome/reason"));
        assert_eq!(course(&record), course(&threads), "{backend}");
        assert_eq!(record["ranks"].as_array().unwrap().len(), 4);
        assert!(outputs.iter().all(|output| output.status.code() == Some(0)));
        for other in &outputs[1..] {
            assert_eq!((stdout(other), stderr(other)), (String::new(), String::new()), "rank 0 alone prints");
        }
        assert_eq!(records(&folder.path().join("nb")).len(), 2 + trial);
    }
}

/// Rank 0 shows all ranks and what is wrong on any of them; a rank that cannot meet the others says so itself.
#[test]
fn doctor_shows_a_launch_on_one_screen() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let port = zbench_launch::free_port().unwrap();
    // A notebook cannot be made below a file.
    let notebooks = [folder.path().join("nb"), file.join("nb")].into_iter().enumerate();
    let ranks = notebooks.map(|(rank, notebook)| {
        let mut command = launched::unlaunched(&notebook);
        launched::torchrun(command.arg("doctor"), rank, 2, port);
        command.spawn().unwrap()
    });
    let ranks: Vec<_> = ranks.collect();
    let outputs: Vec<Output> = ranks.into_iter().map(|child| child.wait_with_output().unwrap()).collect();
    let (said, host) = (stdout(&outputs[0]), zbench_host::machine::host_name());
    let answer =
        format!("ANSWER   2 ranks on 1 host, launched by torchrun, met at 127.0.0.1:{port}. Needed and not in order: ");
    for words in [&answer, "NEEDED   rank 1 on ", "notebook can be written: no: ", "TOKEN    public: ", "THREADS  "] {
        assert!(said.contains(words), "{words} is not in:\n{said}{}", stderr(&outputs[0]));
    }
    assert!(
        said.lines().any(|line| line.contains(" 0-1 ") && line.contains(&host)) && said.lines().count() <= 40,
        "{said}"
    );
    assert_eq!(stdout(&outputs[1]), "", "rank 0 alone prints");
    assert!(outputs.iter().all(|output| output.status.code() == Some(4)));
    let mut alone = launched::unlaunched(&folder.path().join("nb"));
    let alone = alone.arg("doctor").env("MV2_COMM_WORLD_RANK", "1").env("MV2_COMM_WORLD_SIZE", "2").output().unwrap();
    let said = stdout(&alone);
    assert!(said.contains("MVAPICH): rank 1 of 2, no meeting place named. Needed and not in order: meeting"), "{said}");
    assert!(said.contains("MASTER_ADDR") && alone.status.code() == Some(4), "{said}");
}

/// Every row is right, and each rank is a process.
#[test]
fn collectives_are_measured_over_shared_memory_and_over_sockets() {
    let folder = tempfile::tempdir().unwrap();
    for (words, rows, made) in [
        ("--ranks 3 -b 0 -e 606 -i 303 -n 1 -w 0 --collective all -d half --buffers hot", 3 * 13, 9),
        ("--backend shm --ranks 3 -b 1K -e 1K -n 1 -w 0 --collective all --buffers hot", 13, 9),
        ("--backend tcp --ranks 2 -b 1K -e 32K -f 32 -n 2 -d int8 -o max --buffers hot", 2, 1),
    ] {
        let before = records(folder.path()).len();
        let words: Vec<&str> = ["allreduce", "--format", "json"].into_iter().chain(words.split(' ')).collect();
        let document = json_lines(&said(folder.path(), &words)).remove(0);
        let results = document["results"].as_array().unwrap();
        for result in results {
            assert_eq!(result["out_of_place"]["nwrong"], 0, "{words:?}: {result}");
            assert!(result["in_place"].is_null() || result["in_place"]["nwrong"] == 0, "{words:?}: {result}");
        }
        assert!(results.len() >= rows.min(9), "{words:?}: {}", results.len());
        let all = records(folder.path());
        assert_eq!(all.len() - before, made, "rank 0 alone records");
        assert!(all.iter().all(|record| record["outcome"]["status"] == "measured"));
    }
}

#[test]
fn a_trace_is_its_record() {
    let backends = tiers::some("witnesses::a_trace_is_its_record", ["local", "shm", "tcp"], [1, 3]);
    for backend in backends {
        let folder = tempfile::tempdir().unwrap();
        let file = write(folder.path(), timeline::ZERO3);
        let set = format!("parallel.backend={backend}");
        let arguments = ["run", file.to_str().unwrap(), "--set", &set, "--format", "json"];
        let (output, trace) = timeline::traced(folder.path(), &arguments);
        assert_eq!(output.status.code(), Some(0), "{backend}: {}", stderr(&output));
        let record = timeline::record(&output);
        timeline::check(&trace);
        timeline::compare(&trace, &record);
        assert_eq!(record["trace"]["steps"], 5, "{backend}");
        // Gathers are started ahead and waited for where they are used.
        let arrows = timeline::events(&trace).iter().filter(|event| event["ph"] == "s").count();
        let started = timeline::events(&trace).iter().filter(|event| event["args"]["is_started"] == true).count();
        assert!(arrows > 0 && arrows == started, "{backend}");
        let summary = &trace["otherData"]["cells"][0];
        assert_eq!((&summary["record"], &summary["status"]), (&record["id"], &"measured".into()));
    }
}

/// One cell of two ranks.
fn zero3(more: &str) -> String {
    let grid = TINY.find("[grid]").unwrap();
    TINY[..grid].replace("ranks = 2", "ranks = 2\nstrategy = \"zero3\"") + more
}

#[test]
fn a_killed_run_leaves_nothing_on_the_disk_and_its_checkpoint_continues_to_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let [disk, saved] = ["disk", "saved"].map(|name| folder.path().join(name));
    std::fs::create_dir(&disk).unwrap();
    let text = zero3(&format!(
        "[memory]\noffload_optimizer = \"disk\"\noffload_parameters = \"disk\"\noffload_path = \"{}\"\n[checkpoint]\ndir = \"{}\"\nevery = 5\n",
        disk.display(),
        saved.display()
    ));
    let file = write(folder.path(), &text.replace("steps = 2", "steps = 4000"));
    let mut command = zbench(&folder.path().join("nb"));
    let mut killed = command.arg("run").arg(&file).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let newest = || {
        let names = std::fs::read_dir(&saved).into_iter().flatten().map(|entry| entry.unwrap().file_name());
        names.filter_map(|name| name.to_str()?.strip_prefix("step-")?.parse::<u64>().ok()).max()
    };
    wait_for("a checkpoint", || newest().is_some());
    // The cell is a child of the program, and ends with it.
    let cell = descendants(killed.id());
    signal(killed.id(), Signal::KILL);
    killed.wait().unwrap();
    assert_gone(&cell);
    assert_eq!(std::fs::read_dir(&disk).unwrap().count(), 0, "the file has no name");
    let newest = newest().unwrap();
    // One step is untimed.
    let steps = format!("steps = {}", newest + 2);
    let trained = |text: &str, name: &str| {
        let file = write(folder.path(), &text.replace("steps = 2", &steps));
        let notebook = folder.path().join(name);
        said(&notebook, &["run", file.to_str().unwrap()]);
        records(&notebook).remove(0)
    };
    let (resumed, whole) = (trained(&text, "resumed"), trained(&zero3(""), "whole"));
    assert_eq!(resumed["resumed"]["step"], newest);
    assert_eq!(losses(&resumed), losses(&whole));
    assert_eq!(losses(&resumed).len() as u64, newest + 3);
    assert_eq!(std::fs::read_dir(&disk).unwrap().count(), 0);
}

#[test]
fn records_say_what_lived_where_and_losses_are_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let notebook = folder.path().join("nb");
    let homes = [
        ["none", "none", "none"],
        ["disk", "disk", "host"],
        ["host", "none", "none"],
        ["none", "disk", "none"],
        ["disk", "none", "host"],
        ["host", "disk", "host"],
    ];
    for [optimizer, parameters, activations] in
        tiers::some("witnesses::records_say_what_lived_where_and_losses_are_the_same", homes, [2, 6])
    {
        let memory = format!(
            "[memory]\noffload_optimizer = \"{optimizer}\"\noffload_parameters = \"{parameters}\"\noffload_activations = \"{activations}\"\n"
        );
        said(&notebook, &["run", write(folder.path(), &zero3(&memory)).to_str().unwrap()]);
    }
    let all = records(&notebook);
    for record in &all {
        assert_eq!(losses(record), losses(&all[0]));
        let total = &record["memory"]["total"];
        assert_eq!(total["predicted_bytes"], total["peak_bytes"]);
        let home = |key: &str| record["cell"]["memory"][key].as_str().unwrap_or("device").to_string();
        let homes = ["offload_optimizer", "offload_parameters", "offload_activations"].map(home);
        let offload = &record["offload"];
        if homes.iter().all(|home| home == "device") {
            assert!(offload.is_null(), "{offload}");
            continue;
        }
        assert!(record["time"]["offload"].as_f64().unwrap() > 0.0);
        for (category, home) in ["optimizer", "parameters", "activations"].iter().zip(&homes) {
            let there = &offload[home][category];
            assert_eq!(there["peak_bytes"], there["predicted_bytes"], "{offload}");
            assert_eq!(there["peak_bytes"].as_u64().unwrap_or(0) > 0, home != "device", "{category}: {offload}");
        }
        for row in offload["moves"].as_array().unwrap() {
            assert!(row["bytes"].as_f64().unwrap() > 0.0 && row["bytes"] == row["predicted_bytes"], "{row}");
        }
        let drive = &offload["drive"];
        assert_eq!(drive.is_object(), homes.iter().any(|home| home == "disk"));
        if drive.is_object() {
            assert!(["io_uring", "threads"].contains(&drive["engine"].as_str().unwrap()));
            assert!(drive["read_bytes"].as_f64().unwrap() > 0.0 && drive["gb_s"].as_f64().unwrap() > 0.0, "{drive}");
        }
    }
}

/// Of configurations that a grid can state one by one, a search finds the fastest that leaves the headroom free.
#[test]
fn a_search_finds_the_fastest_of_a_grid_of_the_same_configurations() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), &LARGE.replace("[hardware]", "[hardware]\nsoftware = \"megatron-core\""));
    let mut arguments = vec![path.to_str().unwrap(), "--search"];
    for kept in [
        "parallel.tensor=1",
        "parallel.pipeline=1",
        "parallel.context=1",
        "memory.offload_optimizer=none",
        "memory.offload_parameters=none",
        "memory.offload_activations=none",
    ] {
        arguments.extend(["--keep", kept]);
    }
    let found = plan(&arguments).remove(0);
    let text = LARGE
        .replace("strategy = \"fsdp\"\n", "")
        .replace("[memory]\ncheckpointing = \"full\"\n", "")
        .replace("[hardware]", "[hardware]\nsoftware = \"megatron-core\"");
    let axes = "[grid]\n\"parallel.strategy\" = [\"ddp\", \"zero1\", \"zero2\", \"fsdp\", \"hsdp\"]\n\
                \"train.micro_batch\" = [1, 2, 4]\n\
                \"memory.checkpointing\" = [\"none\", \"selective\", \"full\", { every = 2 }, { every = 4 }]\n";
    let grid = write(folder.path(), &format!("{text}{axes}"));
    let rows = plan(&[grid.to_str().unwrap()]);
    assert_eq!(number(&found, "priced"), rows.len() as f64, "the same configurations");
    let limit = number(&found, "limit_bytes");
    let fitting: Vec<&Value> = rows.iter().filter(|row| number(row, "total_bytes") <= limit).collect();
    assert_eq!(number(&found, "fitting"), fitting.len() as f64);
    let fastest = fitting.iter().map(|row| number(row, "step_ms")).fold(f64::INFINITY, f64::min);
    assert!(close(number(&found["best"][0], "step_ms"), fastest, 1e-12), "{fastest} {}", found["best"][0]);
}

/// Four cells and the twin of the reference take turns; every process leaves a record with its turns.
#[test]
fn a_grid_by_turns_leaves_a_record_of_every_process() {
    let folder = tempfile::tempdir().unwrap();
    let notebook = folder.path().join("nb");
    let file = write(folder.path(), TINY);
    let grid = ["grid", file.to_str().unwrap(), "--seed", "1", "--allow-load", "--decide", "0.01%", "--budget"];
    // A busy machine may need more than three seconds for a round.
    let output = zbench(&notebook).args(grid).arg("3s").output().unwrap();
    if output.status.code() != Some(0) {
        assert!(stderr(&output).contains("is too small"), "{}", stderr(&output));
        assert!(records(&notebook).is_empty());
        let output = zbench(&notebook).args(grid).arg("30s").output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    }
    let all = records(&notebook);
    let of_first: Vec<&Value> = all.iter().filter(|record| record["turns"]["generation"] == 1).collect();
    assert_eq!(of_first.len(), 5);
    assert_eq!(of_first.iter().filter(|record| record["turns"]["twin"] == true).count(), 1);
    for record in &all {
        assert_eq!(record["outcome"]["status"], "measured", "{}", record["outcome"]);
        assert_eq!(record["turns"]["experiment"], all[0]["turns"]["experiment"]);
        assert_eq!(record["turns"]["generation"], record["trial"]);
        let rows = record["turns"]["rows"].as_array().unwrap();
        assert!(!rows.is_empty());
        assert!(record["turns"]["seconds"].as_f64().unwrap() > rows[rows.len() - 1]["at"].as_f64().unwrap());
        assert_eq!(record["memory"]["total"]["predicted_bytes"], record["memory"]["total"]["peak_bytes"]);
        assert!(losses(of_first[0]).starts_with(&losses(record)), "all strategies train the same");
    }
    assert!(of_first.iter().all(|record| record["steps"].as_array().unwrap().len() == 3));
    assert!(all.iter().any(|record| record["parity"]["verdict"] == "identical"));
}

/// Keeps all turns.
#[derive(Default)]
struct All(Vec<TurnSample>);

impl TurnPolicy for All {
    fn rounds(&mut self, turns: &[TurnSample]) -> Vec<bool> {
        self.0.extend_from_slice(turns);
        vec![true; 2]
    }
}

/// Two programs that sleep take the place of cells, so that the turns need no quiet machine.
#[test]
fn turns_are_taken_in_the_order_of_the_seed() {
    let command = ["sh", "-c", "while :; do echo step; sleep 0.005; done"].map(Into::into).to_vec();
    let program = Program::Command(ExternalCommand { command, tokens: 32, word: "step".into() });
    let players = [0; 2].map(|_| Participant { program: program.clone(), warmup: 1, steps: 0 });
    let first = |seed: u64| {
        let settings = Settings {
            budget: Duration::from_secs(3),
            generations: 2,
            seed,
            discard: 0,
            timeout: Duration::from_secs(60),
            allow_load: true,
            extra: Duration::ZERO,
        };
        let experiment = Experiment { program: "zbench".into(), players: &players, settings, stop: Default::default() };
        let mut all = All::default();
        assert_eq!(experiment.run(&mut all), Ok(Ending::Budget));
        assert!(all.0.iter().any(|turn| turn.generation == 2), "processes are started anew");
        for pair in all.0.chunks_exact(2) {
            assert_eq!((pair[0].round, pair[0].order, pair[1].order), (pair[1].round, 1, 2));
            assert_ne!(pair[0].player, pair[1].player);
            assert!(
                pair.iter()
                    .all(|turn| turn.counted && turn.steps.iter().all(|step| step.ms > 0.0 && step.tokens == 32))
            );
        }
        let of_first = all.0.iter().filter(|turn| turn.generation == 1 && turn.order == 1);
        of_first.map(|turn| turn.player).take(3).collect::<Vec<usize>>()
    };
    let [one, same, other] = std::thread::scope(|scope| {
        [5, 5, 6].map(|seed| scope.spawn(move || first(seed))).map(|thread| thread.join().unwrap())
    });
    assert_eq!((one.len(), &one), (3, &same));
    assert_ne!(one, other);
}

/// A program that this one starts may be a wrapper, as `timeout` or a script, around another zbench.
#[test]
fn a_wrapper_may_stand_between_a_process_and_its_starter() {
    let under = |starter: String| {
        let mut wrapper = std::process::Command::new("timeout");
        let command = wrapper.args(["60", env!("CARGO_BIN_EXE_zbench"), "--version"]).env("ZBENCH_PARENT", starter);
        command.output().unwrap().status.code()
    };
    assert_eq!(under(std::process::id().to_string()), Some(0));
    assert_eq!(under(i32::MAX.to_string()), Some(1), "the starter is gone");
}
