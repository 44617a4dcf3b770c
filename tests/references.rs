//! What comments, pages and configurations cite is in the tree: files by the ends of their paths, items of code by their names.

use crate::support::root;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Names that are nobody's mistake: what a program writes, what stands for a reader's own file, files of other projects.
const ELSEWHERE: [&str; 18] = [
    "cell.toml",
    "configs/machines/mine.toml",
    "configs/synthetic.toml",
    "file.toml",
    "mine.toml",
    "models.toml",
    "network/README.md",
    "network/benchmarks/README.md",
    "node7-h100-sxm.toml",
    "out/gate.md",
    "pace.md",
    "report.md",
    "rules.toml",
    "run.toml",
    "step.toml",
    "target/gate/gate.md",
    "tree/Cargo.toml",
    "try/configs/quickstart.toml",
];

/// Folders that are not of the tree.
const SKIPPED: [&str; 4] = ["target", ".git", "notebook", "shared"];

/// Folders of texts that are data of tests: they can be cited, and cite nothing.
const DATA: [&str; 3] = ["/fixtures/", "/bad/", "/expected/"];

/// Files below a folder, as paths of the repository.
fn walk(folder: &Path, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !SKIPPED.contains(&path.file_name().unwrap().to_str().unwrap()) {
            walk(&path, found);
        } else if path.is_file() {
            found.push(path.strip_prefix(root()).unwrap().to_str().unwrap().to_string());
        }
    }
}

/// Whether a file of this name can cite others: text that people write.
fn cites(file: &str) -> bool {
    let endings = ["rs", "md", "toml", "py", "cu", "h", "cpp", "yml", "sbatch", "def"];
    let ending = Path::new(file).extension().and_then(|ending| ending.to_str());
    // The changelog tells of files that went, and this file names those that are nowhere.
    let is_told =
        file == "CHANGELOG.md" || file == "tests/references.rs" || DATA.iter().any(|data| file.contains(data));
    !is_told && (ending.is_some_and(|ending| endings.contains(&ending)) || file.starts_with("ci/") || file == ".ci/run")
}

/// What a line says of files: the words that end as a page, a configuration or a source does. Of code only comments count, and
/// what begins with one of the tree's folders: the others are names that the code gives.
fn citations(file: &str, line: &str, folders: &BTreeSet<String>) -> Vec<String> {
    let is_code = [".rs", ".cu", ".h", ".cpp"].iter().any(|ending| file.ends_with(ending));
    let comment = line.find("//").filter(|at| !line[..*at].ends_with(':')).unwrap_or(line.len());
    let is_part = |c: char| c.is_ascii_alphanumeric() || "_./+-".contains(c);
    let mut found = Vec::new();
    let mut rest = 0;
    for word in line.split(|c: char| !is_part(c)) {
        let at = rest;
        rest += word.len() + line[at + word.len()..].chars().next().map_or(0, char::len_utf8);
        let word = word.trim_end_matches('.').trim_start_matches('-');
        let Some((stem, ending)) = word.rsplit('/').next().unwrap_or(word).rsplit_once('.') else { continue };
        let is_file = ["md", "toml", "rs"].contains(&ending) && !stem.is_empty() && !word.starts_with('/');
        // In capitals they stand for what a reader puts there.
        let pages = ["README", "ARCHITECTURE", "CHANGELOG", "SUMMARY", "RESULTS"];
        let is_placeholder = stem.chars().all(|c| c.is_ascii_uppercase() || c == '-') && !pages.contains(&stem);
        let top = word.split_once('/').is_some_and(|(top, _)| folders.contains(top));
        if is_file && !is_placeholder && (!is_code || at >= comment || top) {
            found.push(word.to_string());
        }
    }
    found
}

/// Whether a citation leads to a file: by the end of its path, or beside the file that cites it.
fn leads(files: &BTreeSet<String>, from: &str, cited: &str) -> bool {
    let end = format!("/{cited}");
    let mut beside = PathBuf::from(from);
    beside.pop();
    for part in cited.split('/') {
        match part {
            ".." => drop(beside.pop()),
            "." => {}
            name => beside.push(name),
        }
    }
    files.contains(cited) || files.iter().any(|file| file.ends_with(&end)) || files.contains(beside.to_str().unwrap())
}

#[test]
fn every_file_that_is_cited_is_there() {
    let mut listed = Vec::new();
    walk(root(), &mut listed);
    let files: BTreeSet<String> = listed.into_iter().collect();
    let folders: BTreeSet<String> = files.iter().filter_map(|file| Some(file.split_once('/')?.0.to_string())).collect();
    let (mut missing, mut count, mut unused) = (Vec::new(), 0, BTreeSet::from(ELSEWHERE));
    for file in files.iter().filter(|file| cites(file)) {
        let Ok(text) = std::fs::read_to_string(root().join(file)) else { continue };
        for (number, line) in text.lines().enumerate() {
            for cited in citations(file, line, &folders) {
                count += 1;
                if leads(&files, file, &cited) || unused.remove(cited.as_str()) || ELSEWHERE.contains(&cited.as_str()) {
                    continue;
                }
                missing.push(format!("{file}:{}: {cited}", number + 1));
            }
        }
    }
    assert!(count > 1000, "{count} citations");
    assert!(missing.is_empty(), "files that are cited and not there:\n{}", missing.join("\n"));
    assert!(unused.is_empty(), "no longer cited: {unused:?}");
}

/// Names of code between backticks, as `module::function` and `file.rs: name`, in pages that describe how zbench is built.
#[test]
fn every_item_that_architecture_names_is_there() {
    let mut listed = Vec::new();
    walk(root(), &mut listed);
    let sources: String = listed
        .iter()
        .filter(|file| file.ends_with(".rs") && *file != "tests/references.rs")
        .map(|file| std::fs::read_to_string(root().join(file)).unwrap())
        .collect();
    let words: BTreeSet<&str> = sources.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).collect();
    // A star stands for any letters.
    let is_known = |name: &str| match name.trim_matches('*') {
        all if all == name => words.contains(name),
        part => words.iter().any(|word| word.contains(part)),
    };
    let (mut missing, mut count) = (Vec::new(), 0);
    for page in
        listed.iter().filter(|file| file.ends_with(".md") && (file.starts_with("docs/") || *file == "ARCHITECTURE.md"))
    {
        let text = std::fs::read_to_string(root().join(page)).unwrap();
        let spans = text.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
        for span in spans.filter(|span| span.contains("::") && !span.contains([' ', '/', '.'])) {
            count += 1;
            // `a::b_*` and `a::{b, c}`; a module of its own name is a file.
            let names = span.split("::").map(|name| name.split(['(', '<']).next().unwrap());
            let is_file = |name: &str| listed.iter().any(|file| file.ends_with(&format!("/{name}.rs")));
            missing.extend(
                names
                    .filter(|name| !name.is_empty() && *name != "*" && !is_known(name) && !is_file(name))
                    .map(|name| format!("{page}: {name} in `{span}`")),
            );
        }
    }
    assert!(count > 60, "{count} names");
    assert!(missing.is_empty(), "names of code that are nowhere:\n{}", missing.join("\n"));
}

#[test]
fn a_wrong_citation_would_be_seen() {
    let folders = BTreeSet::from(["docs".to_string(), "suites".to_string()]);
    let files: BTreeSet<String> = ["docs/a.md", "suites/x/y.rs", "README.md"].map(String::from).into();
    let lost = |file: &str, line: &str| -> Vec<String> {
        let mut cited = citations(file, line, &folders);
        cited.retain(|cited| !leads(&files, file, cited));
        cited
    };
    assert_eq!(lost("suites/x/z.rs", "let a = 1; // as conventions.md 4 says, x/y.rs, docs/a.md"), ["conventions.md"]);
    assert_eq!(lost("suites/x/z.rs", "say(\"see docs/b.md and b.md\"); // y.rs"), ["docs/b.md"]);
    assert_eq!(
        lost("docs/a.md", "see [b](b.md), ../README.md, FILE.toml, *.rs and published/README.md."),
        ["b.md", "published/README.md"]
    );
    assert_eq!(lost("configs/a.toml", "source = \"gpu.md section 0\""), ["gpu.md"]);
}
