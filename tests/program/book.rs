//! Output that pages of the documentation quote.

use crate::support::{root, stderr, stdout, zbench};

/// The examples of a page: the arguments behind `$ zbench`, and the parts of the output that are quoted, between lines of `…`.
fn examples(markdown: &str) -> Vec<(Vec<&str>, Vec<String>)> {
    let mut found: Vec<(Vec<&str>, Vec<String>)> = Vec::new();
    let mut is_open = false;
    for line in markdown.lines() {
        let indented = line.strip_prefix("    ");
        if let Some(command) = indented.and_then(|line| line.strip_prefix("$ zbench ")) {
            found.push((command.split_whitespace().collect(), vec![String::new()]));
            is_open = true;
        } else if let Some((_, parts)) = found.last_mut().filter(|_| is_open) {
            match indented {
                Some("…") => parts.push(String::new()),
                Some(quoted) => *parts.last_mut().unwrap() += &format!("{quoted}\n"),
                None => is_open = line.is_empty(),
            }
        }
    }
    found
}

/// Words with one space between them, since widths of columns depend on the rows that are shown. How long a search took is left out.
fn words(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    // How long a search took is of the machine, and so is its unit.
    let is_unit = |at: usize| words.get(at).is_some_and(|unit| ["us;", "ms;", "s;"].contains(unit));
    let shown = |(at, word): (usize, &&str)| match (is_unit(at), is_unit(at + 1)) {
        (true, _) => "UNIT;".to_string(),
        (_, true) => "TIME".to_string(),
        _ => word.to_string(),
    };
    words.iter().enumerate().map(shown).collect::<Vec<_>>().join(" ")
}

/// Runs the examples of `plan`, which need no measurement; what they say is of the machine that the configuration names.
#[test]
fn plans_print_what_pages_quote() {
    let folder = tempfile::tempdir().unwrap();
    let (mut commands, mut parts) = (0, 0);
    for page in ["walk-strategy.md", "walk-cluster.md", "walk-ci.md", "tutorial.md"] {
        let text = std::fs::read_to_string(root().join("docs").join(page)).unwrap();
        for (arguments, quoted) in examples(&text).into_iter().filter(|(arguments, _)| arguments[0] == "plan") {
            let mut command = zbench(folder.path());
            let output = command.args(&arguments).env("COLUMNS", "120").current_dir(root()).output().unwrap();
            assert!(output.status.success(), "{page}: {arguments:?}: {}", stderr(&output));
            let printed = words(&stdout(&output));
            commands += 1;
            for part in quoted.iter().map(|part| words(part)).filter(|part| !part.is_empty()) {
                assert!(printed.contains(&part), "{page}: {arguments:?} does not print\n{part}\nbut\n{printed}");
                parts += 1;
            }
        }
    }
    assert!(commands >= 5 && parts >= 9, "{commands} commands, {parts} parts");
}
