//! What commands print fits one screen of the terminal, on wide and on narrow ones.

use crate::support::{TINY, root, stderr, stdout, write, zbench};

/// Prints it at 80 and at 120 columns, and checks lines and columns.
fn screens(arguments: &[&str]) -> [String; 2] {
    let folder = tempfile::tempdir().unwrap();
    [80, 120].map(|width: usize| {
        let mut command = zbench(&folder.path().join("nb"));
        let output = command.args(arguments).env("COLUMNS", width.to_string()).current_dir(root()).output().unwrap();
        assert!(matches!(output.status.code(), Some(0 | 4)), "{arguments:?}: {}", stderr(&output));
        let text = stdout(&output);
        assert!(text.lines().count() <= 40, "{arguments:?} at {width}: {} lines:\n{text}", text.lines().count());
        assert!(text.lines().all(|line| line.chars().count() <= width), "{arguments:?} at {width}:\n{text}");
        // One table, of which no row is split and no two are alike.
        let mut rows: Vec<String> = Vec::new();
        for line in text.lines().filter(|line| line.starts_with(' ') && !line.starts_with("  ")) {
            // A name that is wrapped goes on in a line of its own.
            match rows.last_mut().filter(|_| !line.trim().contains("  ")) {
                Some(row) => row.push_str(line),
                None => rows.push(line.to_string()),
            }
        }
        let mut unique = rows.clone();
        unique.sort_unstable();
        unique.dedup();
        assert_eq!(unique.len(), rows.len(), "{text}");
        assert!(rows.iter().filter(|row| row.starts_with(" cell ")).count() <= 1, "{text}");
        text
    })
}

#[test]
fn plans_fit_at_any_width_and_end_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let steps: Vec<String> = (1..=50).map(|steps| steps.to_string()).collect();
    let many = write(folder.path(), &format!("{TINY}\"train.steps\" = [{}]\n", steps.join(", ")));
    for [narrow, wide] in [
        screens(&["plan", "configs/quickstart.toml"]),
        screens(&["plan", "configs/llama70b.toml"]),
        screens(&["plan", many.to_str().unwrap()]),
    ] {
        for text in [narrow, wide] {
            let has_table = ["\n cell ", "\n full fine-tune "].iter().any(|head| text.contains(head));
            assert!(text.starts_with("ANSWER   ") && has_table, "{text}");
            let end = text.lines().rev().take(4).collect::<Vec<_>>().join(" ");
            assert!(end.contains("NEXT     zbench "), "{text}");
        }
    }
}

#[test]
fn searches_and_the_doctor_fit_at_any_width() {
    for text in screens(&["plan", "configs/search70b.toml", "--search"]) {
        assert!(text.starts_with("ANSWER   llama3-70b on h100-sxm, ") && text.contains("RUNNER-UP"), "{text}");
        assert!(
            text.contains("NEXT     zbench plan configs/search70b.toml --set") && text.contains(" free "),
            "{text}"
        );
        assert!(!text.contains("offload_optimizer=none"), "what the file has already is not set again: {text}");
    }
    for text in screens(&["doctor"]) {
        assert!(text.starts_with("ANSWER   ") && text.ends_with("everything that was looked for.\n"), "{text}");
    }
    for text in screens(&["plan", "configs/llama70b.toml", "--what-if", "network.rate=800Gb/s"]) {
        assert!(text.starts_with("WHAT IF  ") && text.contains("+14 %"), "{text}");
    }
}
