//! Cells that take turns: comparisons and grids measured by them, what they leave behind, and what goes wrong.

use crate::support::{
    TINY, cells, is_full_tier, json_lines, records, run, signal, stderr, stdout, wait_for, write, zbench,
};
use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use zbench_reports::gate::random::Random;
use zbench_runner::Execution;
use zbench_runner::turns::load::descendants;
use zbench_runner::turns::resident::{ExternalCommand, Program, Residents, Turn};
use zbench_runner::turns::{Ending, Experiment, Participant, Settings, TurnPolicy, TurnSample};
use zbench_test_tiers as tiers;

/// One cell.
const CELL: &str = r#"
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
"#;

/// The ways in which ranks reach each other here.
fn transports() -> impl Iterator<Item = &'static str> {
    ["local", "shm", "tcp"].into_iter().chain(cfg!(feature = "mpi").then_some("mpi"))
}

/// The cell over one of them, as this program takes it.
fn cell(backend: &str) -> Program {
    let text = format!("{CELL}backend = \"{backend}\"\n");
    let mut cells = cells(&text).unwrap();
    Program::Cell(Box::new(cells.remove(0).resolved.unwrap().cell))
}

fn command(script: &str) -> Program {
    let command = ["sh", "-c", script].map(Into::into).to_vec();
    Program::Command(ExternalCommand { command, tokens: 32, word: "step".into() })
}

fn residents() -> Residents {
    Residents::new(env!("CARGO_BIN_EXE_zbench").into(), Arc::default(), Duration::from_secs(60))
}

/// Seconds of the cores that a process and all that it started have used.
fn used(root: u32) -> f64 {
    let ticks = |pid: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
        fields.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<f64>().ok()).sum::<f64>()
    };
    descendants(root).into_iter().map(ticks).sum::<f64>() / 100.0
}

fn compared(output: &Output) -> Value {
    serde_json::from_str(&stdout(output))
        .unwrap_or_else(|error| panic!("{error}: {}{}", stdout(output), stderr(output)))
}

/// What `compare` says of a B that is far slower, within a budget in seconds. A machine that others use needs more time.
fn decided(notebook: &Path, arguments: &[&str], budget: u32) -> Value {
    let of = |seconds: u32| {
        let budget = format!("{seconds}s");
        run(notebook, &[arguments, &["--allow-load", "--seed", "3", "--budget", &budget]].concat())
    };
    let (mut output, mut allowed) = (of(budget), budget);
    if stderr(&output).contains("is too small") || compared(&output)["verdict"] == "undecided" {
        (output, allowed) = (of(90), 90);
    }
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", stderr(&output));
    let said = compared(&output);
    assert!(said["seconds"].as_f64().unwrap() < f64::from(allowed), "{said}");
    said
}

#[test]
fn two_cells_are_compared_by_turns_over_every_transport() {
    let folder = tempfile::tempdir().unwrap();
    let file = write(folder.path(), CELL);
    let file = file.to_str().unwrap();
    // Four times the layers are far more work, so that no noise turns it round.
    for backend in tiers::some("turns::two_cells_are_compared_by_turns_over_every_transport", transports(), [1, 1]) {
        let set = format!("parallel.backend={backend}");
        let arguments =
            ["--format", "json", "compare", "--measure", file, "--set", &set, "--set-b", "model.num_hidden_layers=8"];
        // Ranks of MPI poll while they wait for each other: on a machine that others use, processes differ by a factor.
        let said = decided(folder.path(), &arguments, if backend == "mpi" { 40 } else { 20 });
        assert_eq!(said["verdict"], "slower", "{backend}: {said}");
        let number = |key: &str| said[key].as_f64().unwrap_or_else(|| panic!("{key}: {said}"));
        assert!(number("low") < number("ratio") && number("ratio") < number("high") && number("high") < 1.0, "{said}");
        assert!(number("rounds") >= 5.0, "{said}");
        assert_eq!(said["seed"], 3);
        assert_eq!(said["ended"], "decided");
    }
}

#[test]
fn every_turn_is_kept_in_the_file_of_turns() {
    let folder = tempfile::tempdir().unwrap();
    let file = write(folder.path(), CELL);
    let turns = folder.path().join("turns.jsonl");
    let arguments = ["compare", "--measure", file.to_str().unwrap(), "--set-b", "train.seed=7", "--decide", "0.1%"];
    let more = ["--allow-load", "--budget", "5s", "--turns", turns.to_str().unwrap()];
    let output = run(folder.path(), &[&arguments[..], &more].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).lines().count() <= 40, "{}", stdout(&output));
    let rows = json_lines(&std::fs::read_to_string(&turns).unwrap());
    assert!(rows.len() >= 2, "{}", rows.len());
    for pair in rows.chunks_exact(2) {
        assert_eq!(pair[0]["round"], pair[1]["round"]);
        assert_ne!(pair[0]["player"], pair[1]["player"]);
        assert_eq!((&pair[0]["order"], &pair[1]["order"]), (&Value::from(1), &Value::from(2)));
    }
    for row in &rows {
        let ms = row["ms"].as_array().unwrap();
        assert!(!ms.is_empty() && ms.iter().all(|ms| ms.as_f64().unwrap() > 0.0), "{row}");
        assert_eq!(row["tokens"].as_u64().unwrap(), 32 * ms.len() as u64, "two ranks, 16 tokens a step");
    }
}

#[test]
fn any_program_that_prints_its_steps_takes_turns() {
    let folder = tempfile::tempdir().unwrap();
    let file = write(folder.path(), CELL);
    let file = file.to_str().unwrap();
    // It works between its lines, in a process of its own as launchers have it.
    let command = "sh -c 'while :; do i=0; while [ $i -lt 40000 ]; do i=$((i+1)); done; echo step; done'";
    let arguments = ["--format", "json", "compare", "--measure", file, "--command", command, "--tokens", "32"];
    let said = decided(folder.path(), &arguments, 12);
    assert_eq!(said["verdict"], "slower", "{said}");
    if !is_full_tier() {
        return;
    }
    // The same program as another one: its public command, stopped and continued.
    let own = env!("CARGO_BIN_EXE_zbench");
    let arguments =
        ["--format", "json", "compare", "--measure", file, "--binary", own, "--set-b", "model.num_hidden_layers=8"];
    let said = decided(folder.path(), &arguments, 20);
    assert_eq!(said["verdict"], "slower", "{said}");
}

/// Other users may write where temporary folders lie: those of this command are the user's alone, have names that nobody can know
/// beforehand, and go with it.
#[test]
fn folders_of_a_comparison_of_programs_are_the_users_alone() {
    use std::os::unix::fs::PermissionsExt;
    let (folder, temporary) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let file = write(folder.path(), CELL);
    let own = env!("CARGO_BIN_EXE_zbench");
    let mut command = zbench(folder.path());
    command.args(["compare", "--measure", file.to_str().unwrap(), "--binary", own, "--budget", "2s"]);
    let mut child =
        command.env("TMPDIR", temporary.path()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let predictable = format!("zbench-compare-{}", child.id());
    let mut seen = BTreeSet::new();
    while child.try_wait().unwrap().is_none() {
        for entry in std::fs::read_dir(temporary.path()).unwrap().flatten() {
            let Ok(data) = entry.metadata() else { continue };
            seen.insert((entry.file_name().into_string().unwrap(), data.permissions().mode() & 0o777));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(seen.len() == 2 && seen.iter().all(|(name, mode)| *mode == 0o700 && *name != predictable), "{seen:?}");
    assert_eq!(std::fs::read_dir(temporary.path()).unwrap().count(), 0);
}

#[test]
fn what_cannot_be_compared_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let file = write(folder.path(), CELL);
    let file = file.to_str().unwrap();
    let grid = folder.path().join("grid.toml");
    std::fs::write(&grid, TINY).unwrap();
    let grid = grid.to_str().unwrap();
    let ends = "sh -c 'echo step; echo step; exit 3'";
    for (arguments, code, words) in [
        (&["--measure", file][..], 1, "needs a B"),
        (&["--measure", file, grid], 1, "it has 4 cells"),
        (&["--measure", file, "--set-b", "model.layers=3"], 1, "unknown key"),
        (
            &["--measure", file, "--set-b", "train.seed=2", "--budget", "1ms"],
            1,
            "is too small: starting the cells took",
        ),
        (&["--measure", file, "--command", ends, "--budget", "5s"], 5, "exit status 3"),
        (&["--measure", file, "--command", "/no/such/program", "--budget", "5s"], 5, "exit status 127"),
    ] {
        let output = run(folder.path(), &[&["compare"], arguments].concat());
        let said = format!("{}{}", stdout(&output), stderr(&output));
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(words), "{arguments:?}: {said}");
    }
}

#[test]
fn ctrl_c_keeps_the_turns_and_a_dead_cell_is_its_own_outcome() {
    let folder = tempfile::tempdir().unwrap();
    let notebook = folder.path().join("nb");
    let file = write(folder.path(), TINY);
    let mut grid = zbench(&notebook)
        .args(["grid", file.to_str().unwrap(), "--budget", "60s", "--decide", "0.01%"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    let mut stderr = grid.stderr.take().unwrap();
    let begin = Instant::now();
    // Rounds are being measured as soon as one is told of.
    let mut byte = [0];
    while !said.contains(", round ") {
        assert!(begin.elapsed() < Duration::from_secs(50), "{said}");
        assert_eq!(stderr.read(&mut byte).unwrap(), 1, "{said}");
        said.push(char::from(byte[0]));
    }
    let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", grid.id())).unwrap();
    let cells: Vec<u32> = children.split_whitespace().map(|pid| pid.parse().unwrap()).collect();
    assert_eq!(cells.len(), 5, "four cells and a twin are resident");
    signal(cells[2], Signal::KILL);
    std::thread::sleep(Duration::from_secs(2));
    signal(grid.id(), Signal::INT);
    assert_eq!(grid.wait().unwrap().code(), Some(130));
    let all = records(&notebook);
    assert_eq!(all.len(), 5, "{all:?}");
    let failed: Vec<&Value> = all.iter().filter(|record| record["outcome"]["status"] == "failed").collect();
    assert_eq!(failed.len(), 1);
    assert!(failed[0]["outcome"]["reason"].as_str().unwrap().contains("signal 9"), "{}", failed[0]["outcome"]);
    for record in &all {
        assert!(!record["turns"]["rows"].as_array().unwrap().is_empty(), "its turns are kept: {record}");
        assert_eq!(record["turns"]["stopped"], "interrupted");
    }
}

/// Waits until the program handles Ctrl-C: before that, the signal would end the process. The handler of the termination is
/// installed after all that Ctrl-C does.
fn until_it_handles_ctrl_c(child: &Child) {
    let handles = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap().trim();
        u64::from_str_radix(mask, 16).unwrap() >> (Signal::TERM.as_raw() - 1) & 1 == 1
    };
    wait_for("the handler of Ctrl-C", handles);
}

#[test]
fn a_grid_that_is_stopped_while_its_cells_start_has_no_failures_and_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let notebook = folder.path().join("nb");
    let file = write(folder.path(), TINY);
    let arguments = ["grid", file.to_str().unwrap(), "--budget", "5s", "--allow-load"];
    let name = "turns::a_grid_that_is_stopped_while_its_cells_start_has_no_failures_and_goes_on";
    for wait in tiers::some(name, [0, 50, 200, 400], [2, 2]) {
        let mut grid = zbench(&notebook);
        let mut grid = grid.args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        until_it_handles_ctrl_c(&grid);
        std::thread::sleep(Duration::from_millis(wait));
        signal(grid.id(), Signal::INT);
        assert_eq!(grid.wait().unwrap().code(), Some(130), "{wait} ms");
    }
    assert!(records(&notebook).iter().all(|record| record["outcome"]["status"] == "measured"));
    let output = zbench(&notebook).args(arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(records(&notebook).len() >= 5, "{}", stderr(&output));
}

#[test]
fn a_budget_too_small_for_a_round_leaves_no_record() {
    let folder = tempfile::tempdir().unwrap();
    let notebook = folder.path().join("nb");
    let file = write(folder.path(), TINY);
    for _ in 0..2 {
        let output = run(&notebook, &["grid", file.to_str().unwrap(), "--budget", "1ms"]);
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        assert!(stderr(&output).contains("too small") && stderr(&output).contains("--budget"), "{}", stderr(&output));
        assert!(records(&notebook).is_empty());
    }
}

/// The share of one core that all ranks of a waiting cell together may use; a single rank that polls uses all of it.
const WAITING: f64 = 0.1;

#[test]
fn ranks_that_wait_for_their_turn_use_no_core() {
    for backend in tiers::some("turns::ranks_that_wait_for_their_turn_use_no_core", transports(), [1, 1]) {
        let mut residents = residents();
        let numbers = [cell(backend), cell("local")].map(|program| residents.start(&program));
        for number in numbers {
            assert_eq!(residents.ready(number), Turn::Done(Vec::new()), "{backend}");
            assert!(matches!(residents.turn(number, 2), Turn::Done(steps) if steps.len() == 2), "{backend}");
        }
        let waiting = residents.pid(numbers[0]).unwrap();
        let working = residents.pid(numbers[1]).unwrap();
        let (begin, of_waiting, of_working) = (Instant::now(), used(waiting), used(working));
        while begin.elapsed() < Duration::from_millis(1500) {
            assert!(matches!(residents.turn(numbers[1], 20), Turn::Done(_)), "{backend}");
        }
        let wall = begin.elapsed().as_secs_f64();
        let (of_waiting, of_working) = (used(waiting) - of_waiting, used(working) - of_working);
        assert!(of_waiting < WAITING * wall, "{backend}: {of_waiting} s of the cores in {wall} s");
        // On a machine with no core left for it, the other may have had few.
        assert!(of_working > of_waiting, "{backend}: the other has its turns, {of_working} s");
        // And it goes on from where it waited.
        assert!(matches!(residents.turn(numbers[0], 1), Turn::Done(steps) if steps.len() == 1), "{backend}");
    }
}

#[test]
fn what_a_command_starts_later_is_stopped_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let pid = folder.path().join("pid");
    // As a data loader's workers are: started in a later turn than the first, and in a session of its own.
    let worker = format!("setsid sh -c 'echo $$ > {}; while :; do :; done' &", pid.display());
    let script = format!("i=0; while :; do sleep 0.02; echo step; i=$((i+1)); if [ $i = 6 ]; then {worker} fi; done");
    let mut residents = residents();
    let number = residents.start(&command(&script));
    assert_eq!(residents.ready(number), Turn::Done(Vec::new()));
    let begin = Instant::now();
    let worker = loop {
        assert!(matches!(residents.turn(number, 3), Turn::Done(_)));
        if let Ok(pid) = std::fs::read_to_string(&pid).unwrap_or_default().trim().parse::<u32>() {
            break pid;
        }
        assert!(begin.elapsed() < Duration::from_secs(20), "it starts no worker");
    };
    // One more turn in which the worker runs, and then it stands still.
    assert!(matches!(residents.turn(number, 3), Turn::Done(_)));
    let state = || {
        let stat = std::fs::read_to_string(format!("/proc/{worker}/stat")).unwrap_or_default();
        let state = stat.rsplit_once(')').and_then(|(_, fields)| fields.split_whitespace().next());
        // What has ended stays as a zombie until its parent looks at it.
        state.filter(|state| *state != "Z").unwrap_or("gone").to_string()
    };
    // A stopped process stands still as soon as the machine gives it the core on which it notices.
    let becomes = |wanted: &str| {
        let begin = Instant::now();
        while state() != wanted {
            assert!(begin.elapsed() < Duration::from_secs(60), "{} and not {wanted}", state());
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    becomes("T");
    assert!(matches!(residents.turn(number, 3), Turn::Done(_)), "it goes on in the next turn");
    becomes("T");
    drop(residents);
    becomes("gone");
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

#[test]
fn a_round_that_is_stopped_in_the_middle_keeps_its_turns() {
    // It must not be stopped before both have been warmed up, which takes as long as the machine decides.
    if !is_full_tier() {
        return;
    }
    let quick = "while :; do echo step; sleep 0.01; done";
    // Its steps behind the warm-up take longer than anybody waits.
    let slow = "for i in 1 2 3 4 5; do echo step; sleep 0.1; done; sleep 100; echo step";
    let players = [command(quick), command(slow)].map(|program| Participant { program, warmup: 1, steps: 0 });
    // The quick one is first in the first round: the third order that is drawn.
    let is_first = |seed: &u64| {
        let mut random = Random::new(*seed);
        let orders = [0; 3].map(|_| {
            let mut order = [0, 1];
            random.shuffle(&mut order);
            order
        });
        orders[2] == [0, 1]
    };
    let settings = Settings {
        budget: Duration::from_secs(300),
        generations: 1,
        seed: (0..).find(is_first).unwrap(),
        discard: 0,
        timeout: Duration::from_secs(200),
        allow_load: true,
        extra: Duration::ZERO,
    };
    let stop = Arc::new(AtomicBool::new(false));
    let run = Experiment { program: "zbench".into(), players: &players, settings, stop: stop.clone() };
    let stopper = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(5));
        stop.store(true, Ordering::Relaxed);
    });
    let mut all = All::default();
    assert_eq!(run.run(&mut all), Ok(Ending::Interrupted));
    stopper.join().unwrap();
    let [turn] = &all.0[..] else { panic!("one turn had ended: {:?}", all.0) };
    assert_eq!((turn.player, turn.round, turn.order), (0, 1, 1));
    assert!(!turn.steps.is_empty() && !turn.counted, "kept, and not compared with anything: {turn:?}");
}

/// Stops an experiment some time after its last process was started, and keeps what they said.
struct StopsAtStart {
    stop: Arc<AtomicBool>,
    wait: Duration,
    said: Vec<Option<Execution>>,
}

impl TurnPolicy for StopsAtStart {
    fn starting(&mut self, _: u32, done: usize, all: usize) {
        let (stop, wait) = (self.stop.clone(), self.wait);
        if done == all {
            std::thread::spawn(move || {
                std::thread::sleep(wait);
                stop.store(true, Ordering::Relaxed);
            });
        }
    }
    fn rounds(&mut self, _: &[TurnSample]) -> Vec<bool> {
        vec![true; 2]
    }
    fn ended(&mut self, _: u32, _: Option<Ending>, said: Vec<Option<Execution>>) {
        self.said = said;
    }
}

#[test]
fn a_stop_while_cells_start_is_no_failure_of_theirs() {
    // Ranks that are processes come to their first step one after another, and the stop falls between two of them.
    let cell =
        cells(&CELL.replace("ranks = 2", "ranks = 4\nbackend = \"shm\"")).unwrap().remove(0).resolved.unwrap().cell;
    let participant = || Participant { program: Program::Cell(Box::new(cell.clone())), warmup: 1, steps: 3 };
    let players = [0; 5].map(|_| participant());
    let name = "turns::a_stop_while_cells_start_is_no_failure_of_theirs";
    for wait in tiers::some(name, (0..40).step_by(2), [3, 3]) {
        let settings = Settings {
            budget: Duration::from_secs(300),
            generations: 1,
            seed: wait,
            discard: 0,
            timeout: Duration::from_secs(200),
            allow_load: true,
            extra: Duration::ZERO,
        };
        let stop = Arc::new(AtomicBool::new(false));
        let program = env!("CARGO_BIN_EXE_zbench").into();
        let run = Experiment { program, players: &players, settings, stop: stop.clone() };
        let mut policy = StopsAtStart { stop, wait: Duration::from_millis(wait), said: Vec::new() };
        assert_eq!(run.run(&mut policy), Ok(Ending::Interrupted));
        assert!(!policy.said.is_empty());
        for end in policy.said.into_iter().flatten().filter_map(|said| said.end) {
            assert!(end.failure.is_none(), "stopped after {wait} ms: {:?}", end.failure);
        }
    }
}
