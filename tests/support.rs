//! What both test programs use: the program, its output, and cells that train in a moment.

#![allow(dead_code)] // each of the two test programs uses a part

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;
use std::time::{Duration, Instant};
use zbench_config::files::Files;
use zbench_config::grid::{self, GridCell};
use zbench_config::{ConfigError, Context, Document};

/// A grid of four cells of a model so small that a trial takes a moment.
pub const TINY: &str = r#"
name = "tiny"
question = "does it work?"
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
[hardware]
threads_per_rank = 1
[grid]
"parallel.strategy" = ["ddp", "zero3"]
"memory.checkpointing" = ["none", "full"]
"#;

/// The program under test, told where its notebook is.
pub fn zbench(notebook: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zbench"));
    command.arg("--notebook").arg(notebook).env("COLUMNS", "140").env("NO_COLOR", "1");
    command
}

/// Where the program finds CUDA's kernels compiled for the processor. All test programs of the workspace share its folder `kernels`.
pub fn cache() -> PathBuf {
    let own = std::env::current_exe().expect("a test program has a path");
    own.with_file_name("cache")
}

/// Runs it with these arguments. A grid measures as many trials as it is asked for, however busy the machine is.
pub fn run(notebook: &Path, arguments: &[&str]) -> Output {
    let once = arguments.contains(&"grid").then_some("--no-repeats");
    zbench(notebook).args(arguments).args(once).output().expect("the program starts")
}

/// Runs it with the arguments of this line.
pub fn test(notebook: &Path, line: &str) -> Output {
    run(notebook, &line.split_whitespace().collect::<Vec<_>>())
}

/// What it prints with the arguments of this line, which must succeed.
pub fn succeeds(notebook: &Path, line: &str) -> String {
    let output = test(notebook, line);
    assert_eq!(output.status.code(), Some(0), "{line}: {}{}", stdout(&output), stderr(&output));
    stdout(&output)
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Objects of a text that has one in each line.
pub fn json_lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

/// Records of a notebook; none where there is no notebook.
pub fn records(notebook: &Path) -> Vec<Value> {
    json_lines(&std::fs::read_to_string(notebook.join("records.jsonl")).unwrap_or_default())
}

/// Records of a notebook that is being written: its last line may be torn.
pub fn records_so_far(notebook: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(notebook.join("records.jsonl")).unwrap_or_default();
    json_lines(&text[..text.rfind('\n').map_or(0, |end| end + 1)])
}

/// Text at a JSON pointer; empty where there is none.
pub fn text<'v>(value: &'v Value, path: &str) -> &'v str {
    value.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

/// Losses of a record as they are written, so that equal texts are equal bits.
pub fn losses(record: &Value) -> Vec<String> {
    record["steps"].as_array().expect("steps").iter().map(|step| step["loss"].to_string()).collect()
}

pub fn signal(process: u32, signal: Signal) {
    kill_process(Pid::from_raw(process as i32).expect("a process"), signal).expect("it runs");
}

/// Whether a process runs; one that has ended may stay as a zombie until its parent asks for its status.
pub fn is_alive(process: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

/// Processes that a process has started, and those that they have started.
pub fn descendants(process: u32) -> Vec<u32> {
    zbench_runner::turns::load::descendants(process).into_iter().filter(|found| *found != process).collect()
}

/// Waits until none of these processes runs.
pub fn assert_gone(processes: &[u32]) {
    wait_for("the end of all processes", || !processes.iter().any(|process| is_alive(*process)));
}

/// Whether a test that only the full tier has runs now; where it does not, that is said.
pub fn is_full_tier() -> bool {
    let thread = std::thread::current();
    zbench_test_tiers::cases(thread.name().unwrap_or("a test"), [0, 0, 1]) == 1
}

/// Waits until something has happened, with a limit that only a fault reaches.
pub fn wait_for(what: &str, mut has_happened: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !has_happened() {
        assert!(begin.elapsed() < Duration::from_secs(120), "{what}: waited two minutes");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Writes a configuration into a folder.
pub fn write(folder: &Path, text: &str) -> PathBuf {
    let path = folder.join("tiny.toml");
    std::fs::write(&path, text).expect("the folder can be written");
    path
}

pub fn parse(text: &str) -> Result<Document, ConfigError> {
    Document::parse(Path::new("test.toml"), text, &[])
}

/// A grid of TINY that was measured twice: the lines of its notebook, and what the command printed.
pub struct Measured {
    pub records: String,
    pub stdout: String,
    pub stderr: String,
}

/// Measured by the first test that needs it.
pub static MEASURED: LazyLock<Measured> = LazyLock::new(|| {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, notebook) = (write(folder.path(), TINY), folder.path().join("nb"));
    let output = run(&notebook, &["grid", path.to_str().expect("a path"), "--trials", "2"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let records = std::fs::read_to_string(notebook.join("records.jsonl")).expect("a notebook");
    Measured { records, stdout: stdout(&output), stderr: stderr(&output) }
});

/// A notebook with these records in a folder, beside the configuration tiny.toml.
pub fn measured(folder: &Path) -> PathBuf {
    let notebook = folder.join("nb");
    write(folder, TINY);
    std::fs::create_dir(&notebook).expect("no notebook is there");
    std::fs::write(notebook.join("records.jsonl"), &MEASURED.records).expect("the folder can be written");
    notebook
}

/// The cells of a text.
pub fn cells(text: &str) -> Result<Vec<GridCell>, ConfigError> {
    cells_of(&parse(text)?, "")
}

/// The cells of a document that have these values.
pub fn cells_of(document: &Document, only: &str) -> Result<Vec<GridCell>, ConfigError> {
    let only = if only.is_empty() { Vec::new() } else { grid::parse_only(only, document)? };
    let context = Context::new(PathBuf::new(), 2);
    grid::expand(document, &only, 1000, &context, &mut Files::default())
}

/// The repository's own folder.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A PNG file's width and its pixels, as red, green and blue.
pub fn pixels(path: &Path) -> (u32, Vec<[u8; 3]>) {
    let file = BufReader::new(std::fs::File::open(path).expect("the picture is there"));
    let mut reader = png::Decoder::new(file).read_info().expect("a PNG");
    let mut bytes = vec![0; reader.output_buffer_size().expect("a picture that fits into memory")];
    let info = reader.next_frame(&mut bytes).expect("a whole picture");
    let samples = info.color_type.samples();
    assert!(samples >= 3 && info.bit_depth == png::BitDepth::Eight, "{info:?}");
    (info.width, bytes[..info.buffer_size()].chunks_exact(samples).map(|p| [p[0], p[1], p[2]]).collect())
}

/// A cell of 16 GPUs, which is planned and not run.
pub const LARGE: &str = r#"
name = "large"
[model]
preset = "llama2-7b"
[train]
seq_len = 2048
global_batch = 64
[parallel]
ranks = 16
ranks_per_node = 8
strategy = "fsdp"
[precision]
preset = "bf16-mixed"
[memory]
checkpointing = "full"
[hardware]
profile = "a100-80gb"
"#;

/// The JSON lines of `zbench plan` with these arguments, which must succeed.
pub fn plan(arguments: &[&str]) -> Vec<Value> {
    let folder = tempfile::tempdir().unwrap();
    let output = run(folder.path(), &[&["plan", "--format", "json"], arguments].concat());
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", stderr(&output));
    json_lines(&stdout(&output))
}

/// The plan of LARGE with these settings.
pub fn large(settings: &[&str]) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), LARGE);
    let mut arguments = vec![path.to_str().unwrap()];
    for setting in settings {
        arguments.extend(["--set", setting]);
    }
    plan(&arguments).remove(0)
}

pub fn number(value: &Value, name: &str) -> f64 {
    value[name].as_f64().unwrap_or_else(|| panic!("{name} of {value}"))
}

pub fn close(a: f64, b: f64, share: f64) -> bool {
    (a - b).abs() <= share * a.abs().max(b.abs())
}
