//! The documentation as a site: every page is in its contents, and no link leads nowhere, in the sources and in what mdBook makes.

use crate::support::{root, stderr, stdout, zbench};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Files below a folder with an ending, as paths below the top.
fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path, ending));
        } else if path.extension().is_some_and(|of| of == ending) {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Prose: what is neither indented, nor fenced, nor between backticks.
fn prose(markdown: &str) -> String {
    let mut text = String::new();
    let mut is_fenced = false;
    for line in markdown.lines() {
        if line.trim_start().starts_with("```") {
            is_fenced = !is_fenced;
        } else if !is_fenced && !line.starts_with("    ") {
            text += &line.split('`').step_by(2).collect::<Vec<_>>().join("");
            text.push('\n');
        }
    }
    text
}

/// Where the links of a text lead.
fn targets(markdown: &str) -> Vec<String> {
    let text = prose(markdown);
    let mut targets = Vec::new();
    for part in text.split("](").skip(1) {
        let end = part.find(')').unwrap_or_else(|| panic!("a link without end: {part:.60}"));
        targets.push(part[..end].to_string());
    }
    targets
}

/// The names by which one can point at headings of a page, as GitHub and mdBook make them.
fn anchors(markdown: &str) -> BTreeSet<String> {
    let headings =
        markdown.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
    let name = |heading: &str| -> String {
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
    };
    headings.map(name).collect()
}

#[test]
fn every_page_is_in_the_contents_once() {
    let docs = root().join("docs");
    let contents = std::fs::read_to_string(docs.join("SUMMARY.md")).unwrap();
    let mut listed = targets(&contents);
    let count = listed.len();
    listed.sort();
    listed.dedup();
    assert_eq!(listed.len(), count, "a page stands twice in docs/SUMMARY.md");
    let pages: Vec<String> = files(&docs, "md")
        .iter()
        .map(|path| path.strip_prefix(&docs).unwrap().display().to_string())
        .filter(|path| path != "SUMMARY.md")
        .collect();
    assert!(pages.len() > 40, "{pages:?}");
    assert_eq!(listed, pages, "docs/SUMMARY.md lists the pages of docs/");
}

#[test]
fn no_link_leads_nowhere() {
    let mut pages = files(&root().join("docs"), "md");
    pages.extend(files(&root().join("ci"), "md"));
    pages.extend(files(&root().join("configs"), "md"));
    pages.extend(["README.md", "ARCHITECTURE.md", "CHANGELOG.md"].map(|name| root().join(name)));
    let mut dead = Vec::new();
    let mut count = 0;
    for page in &pages {
        let text = std::fs::read_to_string(page).unwrap();
        for target in targets(&text) {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            count += 1;
            let (path, anchor) =
                target.split_once('#').map_or((target.as_str(), None), |(path, name)| (path, Some(name)));
            let file = if path.is_empty() { page.clone() } else { page.parent().unwrap().join(path) };
            let has_anchor =
                |name: &str| std::fs::read_to_string(&file).is_ok_and(|text| anchors(&text).contains(name));
            // What a job makes when it runs need not be there before.
            let is_made = path.contains("ci/baselines") || path.starts_with("baselines");
            if !(file.exists() || is_made) || !anchor.is_none_or(has_anchor) {
                dead.push(format!("{}: {target}", page.strip_prefix(root()).unwrap().display()));
            }
        }
    }
    assert!(count > 100, "{count} links");
    assert!(dead.is_empty(), "links that lead nowhere:\n{}", dead.join("\n"));
}

#[test]
fn links_are_seen_and_code_is_no_link() {
    let text = "a [b](c.md#d) `[x](y)`\n\n    [in](code)\n\n```\n[in](fence)\n```\n![p](q.svg)\n";
    assert_eq!(targets(text), ["c.md#d", "q.svg"]);
    assert_eq!(anchors("# One: `two`, 3\ntext\n## A b\n").into_iter().collect::<Vec<_>>(), ["a-b", "one-two-3"]);
}

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

/// What mdBook makes of it, where it is; `ZBENCH_REQUIRE_MDBOOK=1` makes its absence fail. Without MDBOOK or one in PATH nothing
/// is fetched here.
#[test]
fn the_site_is_whole() {
    let is_program = |name: &str| Command::new(name).arg("--version").output().is_ok();
    let program = std::env::var("MDBOOK").unwrap_or_else(|_| "mdbook".into());
    if !is_program(&program) {
        assert!(std::env::var_os("ZBENCH_REQUIRE_MDBOOK").is_none(), "{program} does not run");
        eprintln!("the site: NOT BUILT, since mdbook is missing; ci/book fetches it");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let built = |repository: &str| {
        let mut command = Command::new(root().join("ci/book"));
        command.arg(folder.path().join("book")).env("MDBOOK", &program).env("REPOSITORY_URL", repository);
        let output = command.output().unwrap();
        assert!(output.status.success() && stdout(&output).contains("pages"), "{}", stderr(&output));
        let ci = std::fs::read_to_string(folder.path().join("book/ci.html")).unwrap();
        (files(&folder.path().join("book"), "html"), ci)
    };
    let (_, ci) = built("https://example.org/z/blob/main");
    assert!(ci.contains("href=\"https://example.org/z/blob/main/ci/run-gate\""));
    let (pages, ci) = built("");
    assert!(ci.contains("ci/run-gate") && !ci.contains("example.org") && !ci.contains("../ci/run-gate\""));
    assert!(pages.len() >= files(&root().join("docs"), "md").len(), "{} pages", pages.len());
    let texts: BTreeMap<PathBuf, String> =
        pages.iter().map(|path| (path.clone(), std::fs::read_to_string(path).unwrap())).collect();
    let mut dead = Vec::new();
    for (page, text) in &texts {
        // 404.html is shown in the place of any page, so its links are from the top of a site.
        if page.ends_with("404.html") {
            continue;
        }
        for part in text.split(" href=\"").skip(1).chain(text.split(" src=\"").skip(1)) {
            let target = part.split('"').next().unwrap();
            if target.contains("://") || target.starts_with("data:") || target.starts_with("mailto:") {
                continue;
            }
            let (path, anchor) = target.split_once('#').map_or((target, ""), |(path, name)| (path, name));
            let file = if path.is_empty() { page.clone() } else { page.parent().unwrap().join(path) };
            let file = file.canonicalize().unwrap_or(file);
            let of = texts.get(&file).or_else(|| (file == *page).then_some(text));
            let has_anchor = anchor.is_empty() || of.is_none_or(|text| text.contains(&format!("id=\"{anchor}\"")));
            if !file.exists() || !has_anchor {
                dead.push(format!("{}: {target}", page.file_name().unwrap().to_string_lossy()));
            }
        }
    }
    assert!(dead.is_empty(), "{} links of the site lead nowhere:\n{}", dead.len(), dead.join("\n"));
}
