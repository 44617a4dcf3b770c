//! How the command behaves: without arguments, on terminals wide and narrow, in logs; completions and manual pages as shells and
//! man read them; a report that opens itself.

use crate::support::{TINY, json_lines, run, stderr, stdout, write, zbench};
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};
use zbench_test_tiers as tiers;

const PROGRAM: &str = env!("CARGO_BIN_EXE_zbench");

/// A shell's line on a terminal of so many columns, by `script` of util-linux; the two streams come as one, as there.
fn on_terminal(folder: &Path, columns: u16, variables: &[(&str, &str)], line: &str) -> String {
    let mut command = Command::new("script");
    let line = format!("stty cols {columns} && {line}");
    command.args(["--quiet", "--return", "--command", &line, "/dev/null"]).current_dir(folder);
    for unwanted in ["CI", "COLUMNS", "NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE"] {
        command.env_remove(unwanted);
    }
    command.env("TERM", "xterm-256color").env("ZB", PROGRAM).envs(variables.iter().copied());
    stdout(&command.output().expect("script of util-linux"))
}

/// The widest line, as a terminal shows it.
fn widest(text: &str) -> usize {
    text.lines().map(|line| line.trim_end_matches('\r').chars().count()).max().unwrap_or(0)
}

#[test]
fn without_arguments_it_says_where_to_begin() {
    let folder = tempfile::tempdir().unwrap();
    let notebook = folder.path().join("nb");
    let output = zbench(&notebook).current_dir(folder.path()).output().unwrap();
    assert_eq!((output.status.code(), stdout(&output)), (Some(1), String::new()));
    assert!(
        stderr(&output).contains("zbench doctor") && stderr(&output).contains("zbench allreduce"),
        "{}",
        stderr(&output)
    );
    assert!(!notebook.exists(), "asking makes no notebook");
    // In the repository the example is there.
    let output = run(&notebook, &[]);
    assert!(stderr(&output).contains("zbench grid configs/quickstart.toml"), "{}", stderr(&output));
    let file = write(folder.path(), TINY);
    let only = ["--only", "parallel.strategy=ddp,memory.checkpointing=none"];
    assert!(run(&notebook, &[&["grid", file.to_str().unwrap(), "--trials", "1"], &only[..]].concat()).status.success());
    let output = run(&notebook, &[]);
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("holds 1 record of 1 cell") && said.contains("zbench report --open --notebook"), "{said}");
}

#[test]
fn colour_is_for_terminals_that_want_it() {
    let folder = tempfile::tempdir().unwrap();
    for line in ["$ZB doctor", "$ZB --help", "$ZB grid none.toml", "$ZB grdi"] {
        let coloured = on_terminal(folder.path(), 100, &[], line);
        assert!(coloured.contains("\x1b["), "{line}: {coloured}");
        for variables in [&[("NO_COLOR", "1")][..], &[("TERM", "dumb")], &[("TERM", "dumb"), ("CI", "true")]] {
            let plain = on_terminal(folder.path(), 100, variables, line);
            assert!(!plain.contains('\x1b') && plain.len() > 40, "{line} {variables:?}: {plain}");
        }
        let never = on_terminal(folder.path(), 100, &[], &format!("{line} --color never"));
        assert!(!never.contains('\x1b'), "{line}: {never}");
        // Open MPI gives ranks a terminal of no columns, and what it passes on lands in a file.
        let unseen = on_terminal(folder.path(), 0, &[], line);
        assert!(!unseen.contains('\x1b') && unseen.len() > 40, "{line}: {unseen}");
        let asked = on_terminal(folder.path(), 0, &[], &format!("{line} --color always"));
        assert!(asked.contains("\x1b["), "{line}: {asked}");
        // A file has none, whatever the other stream is.
        let file = on_terminal(folder.path(), 100, &[], &format!("{line} >out.txt 2>err.txt; cat out.txt err.txt"));
        assert!(!file.contains('\x1b') && file.len() > 40, "{line}: {file}");
        let forced = on_terminal(folder.path(), 100, &[("NO_COLOR", "1")], &format!("{line} --color always"));
        assert!(forced.contains("\x1b["), "{line}: {forced}");
    }
    let error = on_terminal(folder.path(), 100, &[], "$ZB show 12 --notebook none");
    assert!(error.contains("\x1b[1m\x1b[31merror:\x1b[0m there is no notebook"), "{error:?}");
}

#[test]
fn width_follows_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let plain = &[("NO_COLOR", "1")];
    for line in ["$ZB doctor", "$ZB grid --help", "$ZB --help"] {
        let narrow = on_terminal(folder.path(), 60, plain, line);
        assert!(widest(&narrow) <= 60, "{line}: {}\n{narrow}", widest(&narrow));
        let wide = on_terminal(folder.path(), 110, plain, line);
        assert!((61..=110).contains(&widest(&wide)), "{line}: {}\n{wide}", widest(&wide));
        let stated = on_terminal(folder.path(), 110, &[("NO_COLOR", "1"), ("COLUMNS", "60")], line);
        assert!(widest(&stated) <= 60, "{line}: COLUMNS is what is stated\n{stated}");
    }
}

/// The bar writes over its line on a terminal; a terminal that cannot, and a file, get whole lines and nothing else.
#[test]
fn progress_is_a_bar_on_a_terminal_and_lines_elsewhere() {
    let folder = tempfile::tempdir().unwrap();
    let file = write(folder.path(), TINY);
    let grid = |notebook: &str| format!("$ZB grid {} --trials 1 --no-repeats --notebook {notebook}", file.display());
    let live = on_terminal(folder.path(), 100, &[], &format!("{} >out.txt", grid("a")));
    assert!(live.contains("/4") && live.contains('\x1b') && live.contains("tokens/s"), "{live}");
    let dumb = on_terminal(folder.path(), 100, &[("TERM", "dumb")], &format!("{} >out.txt", grid("b")));
    let file = on_terminal(folder.path(), 100, &[], &format!("{} >out.txt 2>err.txt; cat err.txt", grid("c")));
    for text in [&dumb, &file] {
        let lines: Vec<&str> = text.lines().map(|line| line.trim_end_matches('\r')).collect();
        assert_eq!(lines.iter().filter(|line| line.contains("tokens/s")).count(), 4, "{text}");
        assert!(!text.contains('\x1b') && lines.iter().all(|line| !line.contains('\r')), "{text:?}");
    }
    let quiet = on_terminal(folder.path(), 100, &[], &format!("{} -q >out.txt", grid("d")));
    assert_eq!(quiet.trim(), "", "-q says nothing");
}

#[test]
fn a_report_opens_itself() {
    let folder = tempfile::tempdir().unwrap();
    let config = write(folder.path(), TINY);
    let notebook = folder.path().join("nb");
    let only = ["--only", "parallel.strategy=ddp"];
    assert!(
        run(&notebook, &[&["grid", config.to_str().unwrap(), "--trials", "1"], &only[..]].concat()).status.success()
    );
    let browser = folder.path().join("browser");
    let seen = folder.path().join("seen");
    // Under another name first: who looks must not find half of it.
    let script = format!("#!/bin/sh\necho \"$@\" > '{0}.new' && mv '{0}.new' '{0}'\n", seen.display());
    std::fs::write(&browser, script).unwrap();
    let permissions: std::fs::Permissions = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&browser, permissions).unwrap();
    let temporary = folder.path().join("tmp");
    std::fs::create_dir(&temporary).unwrap();
    let report = |browser: &str, arguments: &[&str]| -> Output {
        let mut command = zbench(&notebook);
        command.args(["report", "--open"]).args(arguments).env("TMPDIR", &temporary).env("BROWSER", browser);
        for desktop in ["DISPLAY", "WAYLAND_DISPLAY", "WSL_DISTRO_NAME"] {
            command.env_remove(desktop);
        }
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert_eq!(stdout(&output), "", "the page is a file");
        output
    };
    let opened = || {
        let begin = Instant::now();
        while !seen.exists() {
            assert!(begin.elapsed() < Duration::from_secs(120), "nothing was opened");
            std::thread::sleep(Duration::from_millis(10));
        }
        let text = std::fs::read_to_string(&seen).unwrap();
        std::fs::remove_file(&seen).unwrap();
        text.trim().to_string()
    };
    report(browser.to_str().unwrap(), &[]);
    let address = opened();
    let page = address.strip_prefix("file://").unwrap();
    assert!(page.starts_with(temporary.to_str().unwrap()) && page.ends_with(".html"), "{address}");
    assert!(std::fs::read_to_string(page).unwrap().starts_with("<!DOCTYPE html>"));
    let named = folder.path().join("mine.md");
    report(&format!("{} --new=%s", browser.display()), &["-o", named.to_str().unwrap()]);
    assert_eq!(opened(), format!("--new=file://{}", named.display()));
    assert!(std::fs::read_to_string(&named).unwrap().starts_with("# tiny"), "the ending is the form");
    // One that fails, and none at all: where it is, and how to look at it.
    for (browser, reason) in
        [("/bin/false", "/bin/false ended with"), ("/none", "cannot be started"), ("", "no display")]
    {
        let output = report(browser, &["-o", named.to_str().unwrap()]);
        let said = stderr(&output);
        assert!(said.contains(reason) && said.contains("scp ") && said.contains("mine.md"), "{said}");
    }
}

/// What doctor says of launchers is what a launch would decide.
#[test]
fn doctor_tells_the_launcher() {
    let folder = tempfile::tempdir().unwrap();
    let launcher = |variables: &[(&str, &str)]| {
        let mut command = zbench(folder.path());
        command.args(["doctor", "--format", "json"]);
        for name in ["RANK", "WORLD_SIZE", "SLURM_PROCID", "MASTER_ADDR"] {
            command.env_remove(name);
        }
        let output = command.envs(variables.iter().copied()).output().unwrap();
        let rows: Vec<serde_json::Value> = json_lines(&stdout(&output));
        let is_fine = rows.last().unwrap()["ok"] == true;
        assert_eq!(output.status.code(), Some(if is_fine { 0 } else { 4 }), "{}", stderr(&output));
        rows.into_iter().find(|row| row["what"] == "launcher of this process").unwrap()
    };
    let none = launcher(&[]);
    assert!(none["ok"] == true && none["found"].as_str().unwrap().contains("starts its ranks itself"), "{none}");
    let ranks = launcher(&[("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "node1")]);
    assert!(ranks["ok"] == true && ranks["found"].as_str().unwrap().contains("torchrun: rank 1 of 2"), "{ranks}");
    let half = launcher(&[("RANK", "1")]);
    assert!(half["ok"] == false && half["found"].as_str().unwrap().contains("WORLD_SIZE is not"), "{half}");
    assert_eq!(half["needed"], true, "no command starts with such variables");
}

/// The summary, the exit code and the rows say the same: what is needed and missing is exit 4, and no row that is fine has advice.
#[test]
fn doctor_sums_up_and_fails_where_something_needed_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let doctor = |notebook: &Path| {
        let mut command = zbench(notebook);
        command.args(["doctor", "--format", "json"]);
        for name in ["RANK", "WORLD_SIZE", "SLURM_PROCID", "MASTER_ADDR"] {
            command.env_remove(name);
        }
        let output = command.output().unwrap();
        let rows: Vec<serde_json::Value> = json_lines(&stdout(&output));
        for row in &rows {
            assert_eq!(row["ok"] == true, row["advice"] == "", "advice stands where something is wrong: {row}");
            assert!(row["host"].as_str().is_some_and(|host| !host.is_empty()), "{row}");
        }
        (output.status.code(), rows.last().unwrap().clone(), rows)
    };
    let (code, summary, rows) = doctor(folder.path());
    assert_eq!((code, &summary["what"], &summary["ok"]), (Some(0), &"summary".into(), &true.into()), "{summary}");
    let locked = rows.iter().find(|row| row["what"] == "locked memory (ulimit -l)").unwrap();
    let judged = ["unlimited", "no RDMA device"].iter().any(|word| locked["found"].as_str().unwrap().contains(word));
    assert!(judged || locked["ok"] == false, "a limit is said to be enough, or not: {locked}");
    // A notebook cannot be made below a file.
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let (code, summary, _) = doctor(&file.join("notebook"));
    assert_eq!((code, &summary["ok"]), (Some(4), &false.into()), "{summary}");
    let found = summary["found"].as_str().unwrap();
    assert!(found.starts_with("Needed and not in order: notebook can be written."), "{found}");
}

/// What bash offers behind a line, by the script that it would read.
fn offered(script: &Path, words: &[&str]) -> Vec<String> {
    let line = r#"source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
        _zbench zbench "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"; printf '%s\n' "${COMPREPLY[@]}""#;
    let output = Command::new("bash").args(["--norc", "-c", line, "bash"]).arg(script).args(words).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{words:?}: {}", stderr(&output));
    let mut words: Vec<String> = stdout(&output).lines().map(str::to_string).collect();
    words.sort();
    words
}

#[test]
fn completions_complete() {
    let folder = tempfile::tempdir().unwrap();
    let notebook = folder.path().join("nb");
    let all_shells = tiers::cases("manners::completions_complete (shells)", [1, 1, 3]) == 3;
    for (shell, file, check) in [
        ("bash", "zbench.bash", "bash"),
        ("zsh", "_zbench", "zsh"),
        ("fish", "zbench.fish", "fish"),
        ("elvish", "z.elv", ""),
        ("powershell", "z.ps1", ""),
    ] {
        let output = run(&notebook, &["completions", shell]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let path = folder.path().join(file);
        std::fs::write(&path, &output.stdout).unwrap();
        assert!(stdout(&output).contains("allreduce"), "{shell}");
        // Its own shell reads it; bash is everywhere.
        if check == "bash" || all_shells && !check.is_empty() {
            let read = Command::new(check).arg("-n").arg(&path).output();
            let read = read.unwrap_or_else(|error| panic!("{check}: {error}; apt-get install {check}"));
            assert!(read.status.success(), "{shell}: {}", stderr(&read));
        }
    }
    let bash = folder.path().join("zbench.bash");
    assert_eq!(offered(&bash, &["zbench", "rep"]), ["report", "repro"]);
    assert_eq!(offered(&bash, &["zbench", "plan", "--what"]), ["--what-if"]);
    let shells = offered(&bash, &["zbench", "completions", ""]);
    assert!(["bash", "zsh", "fish"].iter().all(|shell| shells.iter().any(|word| word == shell)), "{shells:?}");
    assert_eq!(offered(&bash, &["zbench", "list", "--format", "m"]), ["markdown"]);
    assert!(offered(&bash, &["zbench", "__"]).iter().all(|word| !word.contains("cell")), "hidden commands stay hidden");
}

/// Pages as man shows them, in the full run: no complaint of groff's, nothing wider than the page but examples.
#[test]
fn manual_pages_are_sound() {
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("man1");
    let output = run(&folder.path().join("nb"), &["man", pages.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let mut names: Vec<_> = std::fs::read_dir(&pages).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.sort();
    assert!(names.len() >= 22, "{names:?}");
    let is_read = tiers::cases("manners::manual_pages_are_sound (man and mandoc)", [0, 0, 2]) == 2;
    for page in names {
        let source = std::fs::read_to_string(&page).unwrap();
        assert!(source.starts_with(".TH ") && source.contains(".SH SYNOPSIS"), "{}: {source}", page.display());
        if !is_read {
            continue;
        }
        let mut man = Command::new("man");
        man.args(["--warnings", "-E", "UTF-8", "-l"]).arg(&page).env("MANWIDTH", "130").env("LC_ALL", "C.UTF-8");
        man.env("MANROFFSEQ", "").env("GROFF_NO_SGR", "1");
        let shown = man.output().unwrap_or_else(|error| panic!("man: {error}; apt-get install man-db"));
        assert!(shown.status.success() && shown.stderr.is_empty(), "{}: {}", page.display(), stderr(&shown));
        let text = stdout(&shown);
        assert!(text.contains("SYNOPSIS") && text.contains("OPTIONS"), "{}: {text}", page.display());
        let lint = Command::new("mandoc").args(["-Tlint", "-Werror"]).arg(&page).output();
        let lint = lint.unwrap_or_else(|error| panic!("mandoc: {error}; apt-get install mandoc"));
        assert!(lint.status.success(), "{}: {}", page.display(), stdout(&lint));
    }
    let blocked = folder.path().join("file");
    std::fs::write(&blocked, "").unwrap();
    let output = run(&folder.path().join("nb"), &["man", blocked.join("x").to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("cannot be made"), "{}", stderr(&output));
}
