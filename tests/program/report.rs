//! `zbench report`: files in every form, plots as files, and errors that say what to do.

use crate::support::{self, measured, pixels, run, stderr, stdout};
use std::path::Path;
use std::process::Command;
use zbench_test_tiers as tiers;

/// The command that draws the README's picture, with a notebook in place of two minutes of measuring.
#[test]
fn the_picture_of_the_readme_is_the_report_of_a_notebook() {
    let folder = tempfile::tempdir().unwrap();
    let notebook = measured(folder.path());
    let picture = folder.path().join("picture.svg");
    let draw = |notebook: &Path| {
        let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/images/make"));
        command.arg(env!("CARGO_BIN_EXE_zbench")).arg(notebook).arg(&picture).output().unwrap()
    };
    let output = draw(&notebook);
    assert!(output.status.success(), "{}", stderr(&output));
    let shown = stdout(&support::zbench(&notebook).env("COLUMNS", "120").arg("report").output().unwrap());
    let svg = std::fs::read_to_string(&picture).unwrap();
    let lines = shown.lines().filter(|line| !line.is_empty()).count();
    assert!(lines > 5 && svg.starts_with("<svg") && svg.matches("<text ").count() == lines, "{shown}{svg}");
    assert!(svg.contains(">ANSWER\u{a0}") && svg.trim_end().ends_with("</svg>"), "{svg}");
    // Without a record there is no answer to draw, and the picture stays.
    assert!(!draw(folder.path()).status.success());
    assert_eq!(std::fs::read_to_string(&picture).unwrap(), svg);
}

#[test]
fn plots_are_written_as_files() {
    let folder = tempfile::tempdir().unwrap();
    let notebook = measured(folder.path());
    let (plots, page) = (folder.path().join("a/plots"), folder.path().join("report.md"));
    let arguments = ["report", "--figures", plots.to_str().unwrap(), "-o", page.to_str().unwrap()];
    let output = run(&notebook, &arguments);
    assert!(output.status.success(), "{}", stderr(&output));
    let mut names: Vec<String> =
        plots.read_dir().unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert!(names.contains(&"speed.svg".into()) && names.contains(&"waterfall.svg".into()), "{names:?}");
    assert!(names.iter().all(|name| name.ends_with(".svg")), "nothing half-written stays: {names:?}");
    assert!(std::fs::read_to_string(plots.join("speed.svg")).unwrap().starts_with("<svg xmlns="));
    let text = std::fs::read_to_string(&page).unwrap();
    assert!(text.contains("![Tokens per second](<a/plots/speed.svg>)"), "links lead from the page to its plots");

    let output = run(&notebook, &[&arguments[..], &["--png"]].concat());
    if cfg!(not(feature = "png")) {
        assert!(tiers::cases("report::plots (PNG)", [0, 0, 1]) == 0, "the full run is built with --features png");
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        assert!(stderr(&output).contains("--features png"), "{}", stderr(&output));
        return;
    }
    assert!(output.status.success(), "{}", stderr(&output));
    for name in names {
        let (width, pixels) = pixels(&plots.join(name).with_extension("png"));
        assert!(width == 1520 && pixels.iter().any(|[red, _, _]| *red < 100), "{width}");
    }
}

#[test]
fn a_file_is_written_whole_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let notebook = measured(folder.path());
    let failing = |arguments: &[&str], words: &[&str]| {
        let output = run(&notebook, &[&["report"], arguments].concat());
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        for word in words {
            assert!(stderr(&output).contains(word), "{word} in {}", stderr(&output));
        }
    };
    failing(&["-o", "/dev/full", "--format", "html"], &["/dev/full cannot be written", "No space left"]);
    let absent = folder.path().join("absent/r.html");
    failing(&["-o", absent.to_str().unwrap()], &["there is no folder", "make it first"]);
    failing(&["-o", folder.path().to_str().unwrap(), "--format", "html"], &["is no name of a file"]);
    let file = folder.path().join("tiny.toml");
    failing(&["--figures", file.to_str().unwrap()], &["the folder", "for plots cannot be made"]);
    failing(&["--png"], &["--figures"]);

    // A file that may not grow beyond 4 KiB stands for a disk that is full: what stood there stays.
    let page = folder.path().join("r.html");
    std::fs::write(&page, "before").unwrap();
    let program = env!("CARGO_BIN_EXE_zbench");
    let command = format!("ulimit -f 4; exec {program} --notebook {} report -o {}", notebook.display(), page.display());
    let output = std::process::Command::new("bash").args(["-c", &command]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("cannot be written"), "{}", stderr(&output));
    assert_eq!(std::fs::read_to_string(&page).unwrap(), "before");
    let left: Vec<_> = folder.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().starts_with(".r.html")), "{left:?}");
}

/// A mistaken `--set hardware.device=cuda` on a machine without a GPU: its skips do not relabel what was measured.
#[test]
fn skips_of_other_hardware_enter_a_report_only_if_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let notebook = measured(folder.path());
    let before = stdout(&run(&notebook, &["report", "--format", "markdown"]));
    let file = folder.path().join("tiny.toml");
    // CUDA_VISIBLE_DEVICES empty: no GPU, also on a machine that has some.
    let mistaken = support::zbench(&notebook)
        .env("CUDA_VISIBLE_DEVICES", "")
        .args(["grid", file.to_str().unwrap(), "-q", "--set", "hardware.device=cuda"])
        .output()
        .unwrap();
    assert_eq!(mistaken.status.code(), Some(4), "{}", stderr(&mistaken));

    let output = run(&notebook, &["report", "--format", "markdown"]);
    let said = "4 skipped records of other hardware (hardware.device = \"cuda\") are left out";
    assert!(stderr(&output).contains(said) && stderr(&output).contains("--other-hardware"), "{}", stderr(&output));
    let shown = stdout(&output);
    assert!(shown.contains(said), "the report says so, too: {shown}");
    assert!(
        !shown.contains("device=") && shown.contains("Every cell of these records was measured; none was skipped."),
        "{shown}"
    );
    let without = |text: &str| text.lines().filter(|line| !line.contains("left out")).collect::<Vec<_>>().join("\n");
    assert_eq!(without(&shown).replace("\n\n\n", "\n\n"), without(&before).replace("\n\n\n", "\n\n"));

    // Asked for by the flag, by a filter that leaves nothing measured, and by their ids.
    let all = stdout(&run(&notebook, &["report", "--format", "markdown", "--other-hardware"]));
    assert!(all.contains("4 of 8 cells were not measured: 4 skipped") && all.contains("device=cuda"), "{all}");
    let records = std::fs::read_to_string(notebook.join("records.jsonl")).unwrap();
    let last: serde_json::Value = serde_json::from_str(records.lines().last().unwrap()).unwrap();
    let first: serde_json::Value = serde_json::from_str(records.lines().next().unwrap()).unwrap();
    let (id, other) = (last["id"].as_str().unwrap(), first["id"].as_str().unwrap());
    for (asked, skipped) in [(&["status=skipped"][..], 4), (&["hardware.device=cuda"], 4), (&[id, other], 1)] {
        let output = run(&notebook, &[&["report", "--format", "json"], asked].concat());
        let lines = stdout(&output);
        let count = lines.lines().filter(|line| line.contains("\"status\":\"skipped\"")).count();
        assert_eq!(count, skipped, "{asked:?}: {}", stderr(&output));
    }
}
