//! Files that are none: a pipe in a folder is refused and not waited for, a device without an end is not read to its end. A pipe that the
//! user names is read.

use crate::support::{TINY, measured, run, stderr, stdout, write, zbench};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Longer than any of these takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

/// Runs it with nothing on its standard input; one that waits for a pipe is ended, and told.
fn ends(notebook: &Path, arguments: &[&str]) -> Output {
    let mut command = zbench(notebook);
    let mut child =
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > LIMIT {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("{arguments:?} hangs");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    child.wait_with_output().unwrap()
}

fn pipe(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// It ends with exit 1 and says so.
fn refuses(notebook: &Path, arguments: &[&str], words: &str) {
    let output = ends(notebook, arguments);
    let said = format!("{}{}", stdout(&output), stderr(&output));
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
    assert!(said.contains(words), "{arguments:?}: {said}");
}

const NOT_A_FILE: &str = "it is not a regular file";

#[test]
fn a_notebook_that_is_a_pipe_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let notebook = folder.path().join("nb");
    std::fs::create_dir(&notebook).unwrap();
    pipe(&notebook.join("records.jsonl"));
    let file = write(folder.path(), TINY.split("[grid]").next().unwrap());
    let file = file.to_str().unwrap();
    let collective = ["allreduce", "--ranks", "2", "-b", "1K", "-e", "1K", "--buffers", "hot"];
    let bundle = folder.path().join("x.jsonl");
    for arguments in [
        &["list"][..],
        &["show", "ab"],
        &["note", "ab", "x"],
        &["report"],
        &["repro", "ab"],
        &["compare", "name=a", "name=b"],
        &["export", "--bundle", bundle.to_str().unwrap()],
        &["run", file],
        &["grid", file],
        &collective,
    ] {
        refuses(&notebook, arguments, NOT_A_FILE);
    }
}

#[test]
fn pipes_in_folders_of_models_and_checkpoints_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let notebook = path("nb");
    let file = write(folder.path(), TINY.split("[grid]").next().unwrap());
    let file = file.to_str().unwrap();
    for name in ["config", "index", "checkpoint", "machines"] {
        std::fs::create_dir(path(name)).unwrap();
    }
    pipe(&path("config/config.json"));
    std::fs::write(path("index/config.json"), MODEL).unwrap();
    pipe(&path("index/model.safetensors.index.json"));
    pipe(&path("checkpoint/index.json"));
    pipe(&path("machines/mine.toml"));
    std::fs::write(path("loads.toml"), "[model]\npath = \"config\"\n[train]\nseq_len = 16\n").unwrap();
    let loads = path("loads.toml");
    let loads = loads.to_str().unwrap();
    for command in ["run", "plan"] {
        refuses(&notebook, &[command, loads], NOT_A_FILE);
    }
    refuses(&notebook, &["run", loads, "--set", "model.path=index"], NOT_A_FILE);
    refuses(&notebook, &["plan", file, "--set", "hardware.profile=mine"], NOT_A_FILE);
    let resume = ["run", file, "--set", "checkpoint.dir=c", "--set", "checkpoint.resume=checkpoint"];
    refuses(&notebook, &resume, NOT_A_FILE);
}

const MODEL: &str = r#"{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 32,
"intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 64,
"max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false,
"hidden_act": "silu"}"#;

#[test]
fn a_device_without_an_end_is_not_read_to_its_end() {
    let folder = tempfile::tempdir().unwrap();
    refuses(folder.path(), &["plan", "/dev/zero"], "it has more than 256 MiB");
    refuses(folder.path(), &["gate", "/dev/zero"], "it has more than 256 MiB");
}

#[test]
fn a_pipe_that_is_named_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = zbench(folder.path());
    command.args(["plan", "/dev/stdin", "--format", "json"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(TINY.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(stdout(&output).lines().count(), 4);
}

/// A notebook may come from somebody else: a link in it has nothing created, changed or removed elsewhere.
#[test]
fn links_in_a_notebook_are_named_and_what_they_point_to_stays() {
    use std::os::unix::fs::symlink;
    for (name, code) in [("claims", 1), ("records.jsonl", 1), ("records.torn", 1), ("logs", 0)] {
        let folder = tempfile::tempdir().unwrap();
        let (notebook, target) = (measured(folder.path()), folder.path().join("target"));
        std::fs::create_dir(&target).unwrap();
        let records = notebook.join("records.jsonl");
        let whole = std::fs::read_to_string(&records).unwrap();
        std::fs::write(target.join("file.jsonl"), &whole).unwrap();
        let link = notebook.join(name);
        match name {
            "records.jsonl" => std::fs::remove_file(&records).unwrap(),
            "records.torn" => std::fs::write(&records, whole.clone() + "{\"id\": \"to").unwrap(),
            _ => {}
        }
        let to = if name.starts_with("records") { target.join("file.jsonl") } else { target.clone() };
        symlink(to, &link).unwrap();
        let file = folder.path().join("tiny.toml");
        let output = run(&notebook, &["grid", file.to_str().unwrap(), "--trials", "3"]);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{name}: {said}");
        assert!(said.contains(&format!("{} is a link", link.display())), "{name}: {said}");
        let there: Vec<_> = std::fs::read_dir(&target).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(there, ["file.jsonl"], "{name}");
        assert_eq!(std::fs::read_to_string(target.join("file.jsonl")).unwrap(), whole, "{name}");
    }
}
