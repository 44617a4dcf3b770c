//! `zbench run` as a trainer: its lines, evaluations in the record, the end of a run that gets worse, and Ctrl-C, with
//! training checkpoints and without.

use crate::support::{TINY, assert_gone, descendants, losses, records, run, signal, stderr, stdout, write, zbench};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};
use zbench_test_tiers as tiers;

const ONLY: [&str; 2] = ["--only", "parallel.strategy=zero3,memory.checkpointing=none"];

/// A file of `steps` timed steps, with more keys.
fn file(folder: &Path, steps: usize, training: &str, more: &str) -> PathBuf {
    let text = TINY
        .replace("steps = 2\n", &format!("steps = {steps}\n{training}"))
        .replace("[grid]", &format!("{more}\n[grid]"));
    write(folder, &text)
}

#[test]
fn a_run_says_what_it_does() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), 5, "eval_every = 2\neval_batches = 3\n", "");
    let notebook = folder.path().join("nb");
    let output = run(&notebook, &[&["run", path.to_str().unwrap()], &ONLY[..]].concat());
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(!said.chars().any(|c| c.is_control() && c != '\n'), "a log has no control characters: {said:?}");
    let header = said.lines().find(|line| line.starts_with("llama with ")).expect(&said);
    assert!(header.contains("zero3 on 2 ranks (local)") && header.contains("planned peak"), "{header}");
    let steps: Vec<&str> = said.lines().filter(|line| line.starts_with("step ")).collect();
    assert_eq!(steps.len(), 6, "{said}");
    for (line, number) in steps.iter().zip(1..) {
        assert!(line.starts_with(&format!("step    {number}/6  loss ")), "{line}");
        let parts = ["grad_norm ", "lr ", " ms", " tokens/s", "KiB"];
        assert!(parts.iter().all(|part| line.contains(part)), "{line}");
        assert_eq!(line.contains("eta "), number < 6, "{line}");
        assert_eq!(line.contains("(untimed)"), number == 1, "{line}");
    }
    let evaluations: Vec<&str> = said.lines().filter(|line| line.starts_with("eval ")).collect();
    assert_eq!(evaluations.len(), 4, "at the start, after steps 2, 4 and 6: {said}");
    assert!(
        evaluations[1].starts_with("eval    2/6  loss ") && evaluations[1].contains("96 held-out tokens"),
        "{said}"
    );
    // What was said is in the record.
    let record = &records(&notebook)[0];
    let all = record["evaluations"].as_array().unwrap();
    assert_eq!(all.iter().map(|e| e["step"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 2, 4, 6]);
    assert!(all.iter().all(|e| e["tokens"] == 96 && e["ms"].as_f64().unwrap() > 0.0));
    let loss = |e: &Value| e["loss"].as_f64().unwrap();
    let best = all.iter().map(loss).fold(f64::INFINITY, f64::min);
    assert_eq!(record["metrics"]["eval_loss_last"].as_f64(), Some(loss(&all[3])));
    assert_eq!(record["metrics"]["eval_loss_best"].as_f64(), Some(best));
    for (category, bytes) in record["memory"].as_object().unwrap().iter().filter(|(_, bytes)| bytes.is_object()) {
        assert_eq!(bytes["predicted_bytes"], bytes["peak_bytes"], "{category}");
    }
    assert!(stdout(&output).contains("On held-out data"), "{}", stdout(&output));
    // Not a byte of it changes training.
    let plain = file(folder.path(), 5, "", "");
    let output = run(&notebook, &[&["run", plain.to_str().unwrap()], &ONLY[..]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let all = records(&notebook);
    assert_eq!(losses(&all[0]), losses(&all[1]));
    assert!(all[1]["metrics"].get("eval_loss_last").is_none() && all[1].get("evaluations").is_none());
    // The page has both curves.
    let page = run(&notebook, &["show", all[0]["id"].as_str().unwrap(), "--format", "html"]);
    let page = stdout(&page);
    assert!(page.contains("id=\"figure-loss\"") && page.contains("held out"), "{page}");
}

#[test]
fn processes_say_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let mut told = Vec::new();
    for backend in ["local", "shm", "tcp"] {
        let path = file(folder.path(), 2, "eval_every = 2\n", "");
        let notebook = folder.path().join(backend);
        let set = format!("parallel.backend={backend}");
        let output = run(&notebook, &[&["run", path.to_str().unwrap(), "--set", &set], &ONLY[..]].concat());
        assert_eq!(output.status.code(), Some(0), "{backend}: {}", stderr(&output));
        let record = &records(&notebook)[0];
        let of = |e: &Value| (e["step"].as_u64(), e["loss"].to_string(), e["tokens"].as_u64());
        let evaluations: Vec<_> = record["evaluations"].as_array().unwrap().iter().map(of).collect();
        assert_eq!(evaluations.len(), 3, "{backend}");
        told.push((evaluations, losses(record)));
    }
    assert!(told.iter().all(|one| *one == told[0]), "{told:?}");
}

#[test]
fn lines_can_be_fewer_or_none() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), 24, "eval_every = 20\n", "");
    let begin = [&["run", path.to_str().unwrap()], &ONLY[..]].concat();
    let output = run(folder.path(), &[&begin[..], &["--log-every", "10"]].concat());
    let said = stderr(&output);
    let numbers: Vec<&str> =
        said.lines().filter_map(|line| line.strip_prefix("step ")?.trim().split('/').next()).collect();
    assert_eq!(numbers, ["1", "10", "20", "25"], "{said}");
    assert_eq!(said.lines().filter(|line| line.starts_with("eval ")).count(), 3, "{said}");
    let output = run(folder.path(), &[&begin[..], &["-q"]].concat());
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
    let output = run(folder.path(), &[&begin[..], &["--log-every", "0"]].concat());
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
}

#[test]
fn a_run_that_gets_worse_ends_as_diverged_and_keeps_its_steps() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), 400, "lr = 3.0\ndivergence_factor = 1.5\ndivergence_steps = 3\n", "");
    let output = run(folder.path(), &[&["run", path.to_str().unwrap()], &ONLY[..]].concat());
    assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
    let record = &records(folder.path())[0];
    assert_eq!(record["outcome"]["status"], "diverged");
    let reason = record["outcome"]["reason"].as_str().unwrap();
    for part in ["for 3 steps", "1.5 times its smallest", "train.lr", "train.divergence_factor"] {
        assert!(reason.contains(part), "{reason}");
    }
    let steps = record["steps"].as_array().unwrap();
    assert!((4..401).contains(&steps.len()), "{}", steps.len());
    assert!(reason.starts_with(&format!("step {}:", steps.len())), "{reason}");
    // A factor that every step reaches is a mistake, and is said to be.
    let output =
        run(folder.path(), &["run", path.to_str().unwrap(), ONLY[0], ONLY[1], "--set", "train.divergence_factor=1"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("train.divergence_factor"), "{}", stderr(&output));
}

/// A run under way.
struct Running {
    child: Child,
    stderr: BufReader<std::process::ChildStderr>,
    said: String,
}

impl Running {
    fn start(notebook: &Path, arguments: &[&str]) -> Running {
        let mut child = zbench(notebook).args(arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        Running { child, stderr, said: String::new() }
    }

    fn wait_for(&mut self, part: &str) {
        let from = self.said.len();
        while !self.said[from..].contains(part) {
            let read = self.stderr.read_line(&mut self.said).unwrap();
            assert!(read > 0, "it ended before it said {part:?}: {}", self.said);
        }
    }

    fn interrupt(&self, sent: Signal) {
        signal(self.child.id(), sent);
    }

    /// Its exit code, when it and all it has started have ended.
    fn end(mut self) -> (Option<i32>, String) {
        self.stderr.read_to_string(&mut self.said).unwrap();
        let status = self.child.wait().unwrap();
        (status.code(), self.said)
    }
}

#[test]
fn ctrl_c_without_checkpoints_ends_at_once_and_says_what_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), 100_000, "", "");
    let mut run = Running::start(folder.path(), &[&["run", path.to_str().unwrap()], &ONLY[..]].concat());
    run.wait_for("step    2/");
    let started = descendants(run.child.id());
    run.interrupt(Signal::INT);
    let (code, said) = run.end();
    assert_eq!(code, Some(130), "{said}");
    assert!(said.contains("stopped after step") && said.contains("State checkpoint.dir"), "{said}");
    assert!(records(folder.path()).is_empty());
    assert!(!started.is_empty());
    assert_gone(&started);
}

/// The run that goes on has the losses of the run that was never stopped, all of them, under every way to start ranks.
#[test]
fn ctrl_c_with_checkpoints_saves_and_the_same_command_goes_on() {
    let name = "trainer::ctrl_c_with_checkpoints_saves_and_the_same_command_goes_on";
    for backend in tiers::some(name, ["local", "shm", "tcp"], [2, 2]) {
        let folder = tempfile::tempdir().unwrap();
        let kept = folder.path().join("kept");
        let keys = format!("[checkpoint]\ndir = {:?}\n", kept.to_str().unwrap());
        let path = file(folder.path(), 1200, "eval_every = 500\neval_batches = 1\n", &keys);
        let set = format!("parallel.backend={backend}");
        let arguments = [&["run", path.to_str().unwrap(), "--set", &set], &ONLY[..]].concat();
        let notebook = folder.path().join("nb");
        let mut run = Running::start(&notebook, &arguments);
        run.wait_for("step    3/");
        let started = descendants(run.child.id());
        run.interrupt(if backend == "shm" { Signal::TERM } else { Signal::INT });
        let (code, said) = run.end();
        assert_eq!(code, Some(130), "{backend}: {said}");
        assert!(said.contains("stops after this step"), "{backend}: {said}");
        assert!(said.contains("its checkpoint is") && said.contains("goes on from here"), "{backend}: {said}");
        assert!(records(&notebook).is_empty(), "{backend}: a run that was stopped is not settled");
        assert_gone(&started);
        let output = crate::support::run(&notebook, &arguments);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(0), "{backend}: {said}");
        assert!(said.contains("goes on from step"), "{backend}: {said}");
        let record = records(&notebook).remove(0);
        let from = record["resumed"]["step"].as_u64().unwrap();
        assert!(from >= 3, "{backend}: {record}");
        assert!(record["notes"].to_string().contains(&format!("Continued from step {from}")), "{backend}");
        assert!(!record["checkpoints"].as_array().unwrap().is_empty(), "{backend}");
        let steps = record["steps"].as_array().unwrap();
        let numbers: Vec<u64> = steps.iter().map(|step| step["step"].as_u64().unwrap()).collect();
        assert_eq!(numbers, (1..=1201).collect::<Vec<_>>(), "{backend}: the whole curve");
        assert!(steps.iter().all(|step| step["timed"] == (step["step"].as_u64().unwrap() > from)), "{backend}");
        let evaluated: Vec<u64> =
            record["evaluations"].as_array().unwrap().iter().map(|e| e["step"].as_u64().unwrap()).collect();
        assert_eq!(evaluated, [0, 500, 1000, 1201], "{backend}");
        if backend == "local" {
            let plain = file(folder.path(), 1200, "", "");
            let whole = folder.path().join("whole");
            let output = crate::support::run(&whole, &[&["run", plain.to_str().unwrap(), "-q"], &ONLY[..]].concat());
            assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
            assert_eq!(losses(&records(&whole)[0]), losses(&record), "to the bit");
        }
    }
}

/// Before training has begun an order is kept until it can be followed; a second one ends at once.
#[test]
fn an_early_order_is_followed_and_a_second_one_ends_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let keys = format!("[checkpoint]\ndir = {:?}\n", folder.path().join("kept").to_str().unwrap());
    let path = file(folder.path(), 100_000, "", &keys);
    let arguments = [&["run", path.to_str().unwrap(), "--set", "parallel.backend=shm"], &ONLY[..]].concat();
    let mut run = Running::start(folder.path(), &arguments);
    run.wait_for("llama with ");
    // Before its process starts there would be nothing to stop.
    crate::support::wait_for("the process of the cell", || !descendants(run.child.id()).is_empty());
    run.interrupt(Signal::INT);
    let (code, said) = run.end();
    assert_eq!(code, Some(130), "{said}");
    assert!(said.contains("stopped after step") && said.contains("its checkpoint is"), "{said}");
    let mut run = Running::start(folder.path(), &arguments);
    run.wait_for("goes on from step");
    let started = descendants(run.child.id());
    // Ranks that stand still cannot follow the first order: only the second ends the command.
    for pid in &started {
        signal(*pid, Signal::STOP);
    }
    run.interrupt(Signal::INT);
    run.wait_for("stops after this step");
    run.interrupt(Signal::INT);
    let begin = Instant::now();
    while run.child.try_wait().unwrap().is_none() {
        if begin.elapsed() > Duration::from_secs(60) {
            run.interrupt(Signal::KILL);
            panic!("the second order does not end it: {}", run.end().1);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let (code, said) = run.end();
    assert_eq!(code, Some(130), "{said}");
    assert!(!said.contains("its checkpoint is"), "{said}");
    assert_gone(&started);
}

/// A lost terminal and the warnings of batch systems save as Ctrl-C does, also where they come twice and to every process.
#[test]
fn a_lost_terminal_and_warnings_of_a_batch_system_save() {
    for signal in [Signal::HUP, Signal::USR1, Signal::USR2] {
        let folder = tempfile::tempdir().unwrap();
        let keys = format!("[checkpoint]\ndir = {:?}\n", folder.path().join("kept").to_str().unwrap());
        let path = file(folder.path(), 100_000, "", &keys);
        let mut run = Running::start(folder.path(), &[&["run", path.to_str().unwrap()], &ONLY[..]].concat());
        run.wait_for("step    2/");
        for pid in descendants(run.child.id()) {
            // One that has ended meanwhile does not hear it.
            let _ = kill_process(Pid::from_raw(pid as i32).unwrap(), signal);
        }
        run.interrupt(signal);
        run.interrupt(signal);
        let (code, said) = run.end();
        assert_eq!(code, Some(130), "{signal:?}: {said}");
        assert!(said.contains("its checkpoint is") && said.contains("goes on from here"), "{signal:?}: {said}");
        assert!(records(folder.path()).is_empty(), "{signal:?}");
    }
}

/// nohup has a process ignore the signal of a lost terminal, and so it stays.
#[test]
fn what_nohup_has_started_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), 100_000, "", "");
    let program = zbench(folder.path());
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", "trap '' HUP; exec \"$@\"", "sh"]).arg(program.get_program()).args(program.get_args());
    shell.arg("run").arg(&path).args(ONLY).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = shell.spawn().unwrap();
    let stderr = BufReader::new(child.stderr.take().unwrap());
    let mut run = Running { child, stderr, said: String::new() };
    run.wait_for("step    2/");
    let ranks = descendants(run.child.id());
    for pid in ranks.iter().chain([&run.child.id()]) {
        signal(*pid, Signal::HUP);
    }
    run.wait_for("step    9/");
    run.interrupt(Signal::INT);
    let (code, said) = run.end();
    assert_eq!(code, Some(130), "{said}");
    assert!(!said.contains("stops after this step"), "{said}");
}
