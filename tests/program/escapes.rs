//! Nothing in a file, a variable or an argument acts on the terminal that an error, a warning or a table is read on.

use crate::support::*;
use std::path::Path;
use std::process::Output;

/// A title, a bell, a return to the line's start, colour by a C1 control, and text that is written backwards.
const HOSTILE: &str = "x\u{1b}]0;title\u{7}\r\u{9b}31m\u{202e}y\u{2066}";
/// The same in a TOML or JSON string.
const WRITTEN: &str = "x\\u001b]0;title\\u0007\\r\\u009b31m\\u202ey\\u2066";
/// As it is shown.
const SHOWN: &str = "x\\u{1b}]0;title\\u{7}\\u{d}\\u{9b}31m\\u{202e}y\\u{2066}";

fn acts(symbol: char) -> bool {
    let turns = matches!(symbol, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    turns || symbol.is_control() && !matches!(symbol, '\n' | '\t')
}

/// Both streams; neither has a character that acts.
fn clean(output: &Output) -> String {
    let text = stdout(output) + &stderr(output);
    assert!(!text.contains(acts), "{text:?}");
    text
}

/// The error of a command names what is hostile, and does not repeat it.
fn told(output: &Output) -> String {
    let text = clean(output);
    assert!(text.contains(SHOWN), "{text}");
    text
}

fn plan(folder: &Path, text: &str) -> Output {
    let file = write(folder, text);
    run(folder, &["plan", file.to_str().unwrap()])
}

#[test]
fn values_and_keys_of_a_configuration_are_shown() {
    let folder = tempfile::tempdir().unwrap();
    for text in [
        TINY.replace("family = \"llama\"", &format!("preset = \"{WRITTEN}\"")),
        TINY.replace("ranks = 2", &format!("ranks = 2\nbackend = \"{WRITTEN}\"")),
        format!("{TINY}\"{WRITTEN}\" = 1\n"),
    ] {
        let output = plan(folder.path(), &text);
        assert_eq!(output.status.code(), Some(1));
        told(&output);
    }
    // TOML takes these two as they are, and its errors quote lines.
    clean(&plan(folder.path(), "name = \"\u{9b}31m\u{202e}\n"));
    let file = write(folder.path(), &TINY.replace("ranks = 2", &format!("ranks = 2\nbackend = \"{WRITTEN}\"")));
    let mut command = zbench(folder.path());
    let said = stderr(&command.args(["plan", "--color", "always"]).arg(file).env_remove("NO_COLOR").output().unwrap());
    let rest = said.strip_prefix("\u{1b}[1m\u{1b}[31merror:\u{1b}[0m").unwrap_or_else(|| panic!("no colour: {said:?}"));
    assert!(rest.contains(SHOWN) && !rest.contains(acts), "{rest:?}");
}

#[test]
fn names_of_tensors_are_shown() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    std::fs::create_dir(&model).unwrap();
    let from = root().join("tests/fixtures/llama/config.json");
    std::fs::copy(from, model.join("config.json")).unwrap();
    let header = format!("{{\"{WRITTEN}\":{{\"dtype\":\"{WRITTEN}\",\"shape\":[1],\"data_offsets\":[0,4]}}}}");
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend([0; 4]);
    std::fs::write(model.join("model.safetensors"), file).unwrap();
    let output = plan(folder.path(), "[model]\npath = \"model\"\n[train]\nseq_len = 16\n");
    assert_eq!(output.status.code(), Some(1));
    told(&output);
}

#[test]
fn variables_of_a_launcher_are_shown() {
    let folder = tempfile::tempdir().unwrap();
    let file = write(folder.path(), TINY);
    let mut command = zbench(folder.path());
    let output = command.arg("run").arg(file).env("RANK", HOSTILE).env("WORLD_SIZE", "2").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    told(&output);
    clean(&zbench(folder.path()).arg("doctor").env("RANK", HOSTILE).env("WORLD_SIZE", "2").output().unwrap());
}

#[test]
fn a_profile_is_shown() {
    let folder = tempfile::tempdir().unwrap();
    for profile in
        [format!("device = \"{WRITTEN}\"\n"), format!("\"{WRITTEN}\" = [1, 2\n"), "a = \u{9b}31m\u{202e}\n".into()]
    {
        std::fs::write(folder.path().join("odd.toml"), profile).unwrap();
        let text = format!("{TINY}[hardware]\nprofile = \"./odd.toml\"\n").replacen(
            "[hardware]\nthreads_per_rank = 1\n",
            "",
            1,
        );
        let output = plan(folder.path(), &text);
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        clean(&output);
    }
}

#[test]
fn arguments_in_usage_errors_are_shown() {
    let folder = tempfile::tempdir().unwrap();
    let option = format!("--{HOSTILE}");
    for line in [&[HOSTILE][..], &["plan", &option], &["grid", "x.toml", "--timeout", HOSTILE], &["show", HOSTILE]] {
        let output = zbench(folder.path()).args(line).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{line:?}");
        told(&output);
        let coloured = zbench(folder.path()).env_remove("NO_COLOR").args(line).args(["--color", "always"]).output();
        let said = stderr(&coloured.unwrap());
        assert!(!said.contains(HOSTILE) && !said.contains(['\u{7}', '\u{9b}', '\r', '\u{202e}']), "{said:?}");
    }
}

#[test]
fn tables_of_every_format_show_what_a_record_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let notebook = folder.path().join("notebook");
    let file = write(folder.path(), &TINY.replace("name = \"tiny\"", &format!("name = \"{WRITTEN}\"")));
    let only = "parallel.strategy=ddp,memory.checkpointing=none";
    let ran = run(&notebook, &["run", file.to_str().unwrap(), "--only", only]);
    assert!(ran.status.success(), "{}", stderr(&ran));
    clean(&ran);
    for format in ["table", "markdown", "csv", "json", "html"] {
        for command in ["list", "report"] {
            let output = run(&notebook, &[command, "--format", format]);
            assert!(output.status.success(), "{command} {format}: {}", stderr(&output));
            clean(&output);
            let Ok(value) = serde_json::from_str::<serde_json::Value>(&stdout(&output)) else { continue };
            let holds = |name: &serde_json::Value| name.as_str().is_some_and(|name| name.contains('\u{9b}'));
            assert!(format != "json" || command != "list" || holds(&value["name"]), "the value stays: {value}");
        }
    }
    assert!(stdout(&run(&notebook, &["list", "--format", "csv"])).contains("\\u{1b}]0;title"));
}
