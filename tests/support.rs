//! What the tests share: the program, and cells that train in a moment.

use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
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

pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
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
