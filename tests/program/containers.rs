//! Runs the batch script of ci/slurm under an imitated srun, and parses every command line of zbench in the documentation, --help
//! and the recipes of ci/.

use crate::support::{is_full_tier, root, stderr, stdout};
use clap::Parser;
use clap::error::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

fn text(file: &str) -> String {
    std::fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// The batch script itself, with a stand-in of srun that starts each task with SLURM's variables.
#[test]
fn the_batch_script_measures_and_trains() {
    // Its interconnect test fills buffers larger than the caches, which takes most of a minute in a program that is not optimised.
    if !is_full_tier() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("bin");
    std::fs::create_dir(&program).unwrap();
    let srun = r#"#!/usr/bin/env bash
set -euo pipefail
while [[ $1 == --* ]]; do shift; done
step=$((RANDOM % 20000 + 1))
tasks=()
for ((rank = 0; rank < SLURM_NTASKS; rank++)); do
    SLURM_PROCID=$rank SLURM_LOCALID=$rank SLURM_NODEID=0 SLURM_NNODES=1 SLURM_STEP_ID=$step SLURM_STEP_NUM_TASKS=$SLURM_NTASKS \
        SLURM_STEP_TASKS_PER_NODE=$SLURM_NTASKS SLURM_STEP_NODELIST=localhost "$@" &
    tasks+=($!)
done
code=0
for task in "${tasks[@]}"; do wait "$task" || code=$?; done
exit "$code"
"#;
    std::fs::write(program.join("srun"), srun).unwrap();
    let permissions: std::fs::Permissions = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(program.join("srun"), permissions).unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_zbench"), program.join("zbench")).unwrap();
    let grid = folder.path().join("tiny.toml");
    std::fs::write(&grid, crate::support::TINY).unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    let script = |image: &str| {
        let mut command = Command::new("bash");
        command.arg(root().join("ci/slurm/grid.sbatch")).env("PATH", &path).env("IMAGE", image).env("GRID", &grid);
        command.env("SLURM_SUBMIT_DIR", folder.path()).env("SLURM_NTASKS", "2").env("SLURM_JOB_ID", "4711");
        command.env("TRIALS", "1").env("LARGEST", "64K");
        command.output().unwrap()
    };
    let output = script("");
    assert!(output.status.success(), "{}\n{}", stdout(&output), stderr(&output));
    let notebook = std::fs::read_to_string(folder.path().join("notebook/records.jsonl")).unwrap();
    let suites = |suite: &str| notebook.lines().filter(|line| line.contains(&format!("\"suite\":\"{suite}\""))).count();
    assert_eq!(suites("collectives"), 3, "{}", stderr(&output));
    assert!(notebook.lines().all(|line| line.contains("\"backend\":\"shm\"")), "one host, and no backend was named");
    // A flagged trial is repeated, so cells are counted, not records.
    let cells: std::collections::BTreeSet<String> = notebook
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .filter(|record| record["cell"]["suite"] != "collectives")
        .map(|record| record["key"].as_str().unwrap().to_string())
        .collect();
    assert_eq!(cells.len(), 4, "four cells of TINY: {}", stderr(&output));
    assert!(folder.path().join("notebook/report-4711.html").is_file());
    let output = script("no.sif");
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("there is no image no.sif"), "{}", stderr(&output));
}

/// Words of a shell's line up to what is no longer this command.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for letter in line.chars() {
        match (quote, letter) {
            (Some(open), _) if letter == open => quote = None,
            (None, '\'' | '"') => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (None, _) if letter.is_whitespace() => words.extend(word.take()),
            _ => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    words
}

/// Why a command line in a text is none of zbench's; nothing where it is, or where the text is no command line.
pub fn fault(line: &str) -> Option<String> {
    // Columns: what stands far to the right says what the command does. So does what follows a comma.
    let line = line.trim();
    let line = line.split("  ").next().unwrap_or(line).split(", ").next().unwrap_or(line);
    let words = words(line);
    // What a screen says behind its heading, as `ANSWER` or `OPTIONAL`, is a sentence.
    if words.first().is_some_and(|word| word.len() > 3 && word.chars().all(|c| c.is_ascii_uppercase())) {
        return None;
    }
    let start =
        words.iter().position(|word| word == "zbench" || word.ends_with("/zbench") && !word.starts_with('/'))?;
    let ends = |word: &str| {
        ["#", "-->", "&&", "||", "|", ";", "\\", "…", "…`"].contains(&word)
            || word.starts_with(['>', '[', '<'])
            || word == "2>"
    };
    let arguments: Vec<&String> = words[start + 1..].iter().take_while(|word| !ends(word)).collect();
    let first = arguments.first()?;
    let is_command = first.starts_with("--") || first.chars().all(|c| c.is_ascii_lowercase() || c == '-');
    if !is_command || first.starts_with("__") {
        return None;
    }
    let parsed =
        zbench_cli::Cli::try_parse_from(std::iter::once(&"zbench".to_string()).chain(arguments.iter().copied()));
    let error = parsed.err()?;
    // Values in capitals stand for what a reader puts there, and prose leaves out what is not its point.
    let is_wrong = match error.kind() {
        ErrorKind::UnknownArgument
        | ErrorKind::InvalidSubcommand
        | ErrorKind::ArgumentConflict
        | ErrorKind::TooManyValues => true,
        ErrorKind::InvalidValue => !arguments.iter().any(|word| word.chars().any(char::is_uppercase)),
        _ => false,
    };
    is_wrong.then(|| error.to_string())
}

/// Lines of code in Markdown: indented, fenced or between backticks.
fn code(markdown: &str) -> Vec<String> {
    let mut code = Vec::new();
    let mut is_fenced = false;
    for line in markdown.lines() {
        if line.trim_start().starts_with("```") {
            is_fenced = !is_fenced;
        } else if is_fenced || line.starts_with("    ") {
            code.push(line.to_string());
        } else {
            code.extend(
                line.split('`').skip(1).step_by(2).filter(|part| part.starts_with("zbench ")).map(str::to_string),
            );
        }
    }
    code
}

#[test]
fn command_lines_are_what_zbench_takes() {
    let mut faults = Vec::new();
    let mut seen = 0;
    let mut check = |place: String, line: &str| {
        seen += usize::from(line.contains("zbench "));
        faults.extend(fault(line).map(|why| format!("{place}: {}\n{why}", line.trim())));
    };
    let mut pages =
        vec![PathBuf::from("README.md"), "ARCHITECTURE.md".into(), "CHANGELOG.md".into(), "ci/README.md".into()];
    for folder in ["docs", "docs/decisions"] {
        let entries = std::fs::read_dir(root().join(folder)).unwrap();
        let names = entries.map(|entry| Path::new(folder).join(entry.unwrap().file_name()));
        pages.extend(names.filter(|path| path.extension().is_some_and(|ending| ending == "md")));
    }
    for page in pages {
        for line in code(&text(page.to_str().unwrap())) {
            check(page.display().to_string(), &line);
        }
    }
    for file in
        ["ci/slurm/zbench.def", "ci/docker/Dockerfile", "ci/slurm/grid.sbatch", "ci/release", "ci/github/release.yml"]
    {
        // In comments a command stands apart: the others are sentences.
        for line in text(file).lines().filter(|line| !line.starts_with('#') || line.starts_with("#   ")) {
            check(file.into(), line);
        }
    }
    for command in <zbench_cli::Cli as clap::CommandFactory>::command().get_subcommands() {
        let examples = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        for line in examples.lines().filter(|line| line.starts_with("  ")) {
            check(format!("{} --help", command.get_name()), line);
        }
    }
    assert!(seen > 200, "{seen} lines were found");
    assert!(faults.is_empty(), "{} command lines are wrong:\n{}", faults.len(), faults.join("\n"));
}

/// A task of srun has one core unless it is given more, and torchrun's ranks share those of its task.
#[test]
fn a_recipe_of_torchrun_in_srun_states_cores() {
    let page = text("docs/launch.md");
    let recipes = page.lines().filter(|line| line.contains("srun ") && line.contains(" torchrun "));
    let recipes: Vec<&str> = recipes.filter(|line| line.contains("--ntasks-per-node")).collect();
    assert!(!recipes.is_empty() && recipes.iter().all(|line| line.contains("--cpus-per-task")), "{recipes:?}");
}

#[test]
fn a_wrong_command_line_would_be_seen() {
    for line in [
        "zbench grdi x.toml",
        "    target/release/zbench report --opne",
        "zbench list --format yaml   a list",
        "srun zbench grid a b",
    ] {
        assert!(fault(line).is_some(), "{line}");
    }
    for line in [
        "zbench show ID",
        "docker build -t zbench .",
        "zbench list [FILTER], show ID",
        "zbench grid 'a b.toml' | head",
        "zbench report --format FORM",
    ] {
        assert!(fault(line).is_none(), "{line}: {:?}", fault(line));
    }
    assert_eq!(code("a `zbench x` b `c`\n\n    zbench y\n```\nz\n```\n"), ["zbench x", "    zbench y", "z"]);
}
