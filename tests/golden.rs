//! Golden outputs: what each command prints over a fixed notebook and fixed configurations, compared with committed files.
//! The cases are the lines of tests/golden/cases.txt. ZBENCH_BLESS=1 writes what is expected anew. ZBENCH_GOLDEN_BINARY names
//! another program to test.

use crate::support::root;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

/// One line of the list: `name [options]: arguments && arguments`.
struct Case {
    name: String,
    options: Vec<String>,
    commands: Vec<Vec<String>>,
}

impl Case {
    fn parse(line: &str) -> Case {
        let (head, arguments) = line.split_once(": ").unwrap_or_else(|| panic!("no arguments: {line}"));
        let (name, options) = head.split_once(' ').unwrap_or((head, ""));
        let options: Vec<String> = options.split_whitespace().map(str::to_string).collect();
        for option in &options {
            let known = ["hash", "empty", "headings", "keys", "records"];
            let valued = ["columns=", "folder=", "show=", "env="];
            let is_known = known.contains(&option.as_str()) || valued.iter().any(|name| option.starts_with(name));
            assert!(is_known, "{name}: unknown option {option}");
        }
        Case { name: name.to_string(), options, commands: arguments.split(" && ").map(words).collect() }
    }

    fn has(&self, option: &str) -> bool {
        self.options.iter().any(|known| known == option)
    }

    fn value(&self, option: &str) -> Option<&str> {
        self.options.iter().find_map(|known| known.strip_prefix(option)?.strip_prefix('='))
    }

    /// Runs the case in a folder of its own and returns the text that is compared.
    fn output(&self, binary: &Path) -> String {
        let folder = tempfile::tempdir().unwrap();
        for shared in ["ci", "configs", "tests"] {
            std::os::unix::fs::symlink(root().join(shared), folder.path().join(shared)).unwrap();
        }
        if !self.has("empty") {
            let notebook = folder.path().join("notebook");
            std::fs::create_dir(&notebook).unwrap();
            std::fs::copy(root().join("tests/golden/notebook/records.jsonl"), notebook.join("records.jsonl")).unwrap();
        }
        let mut text = String::new();
        for arguments in &self.commands {
            // Headings are wide enough that no value wraps them.
            let columns = self.value("columns").unwrap_or(if self.has("headings") { "500" } else { "120" });
            let mut command = Command::new(binary);
            command.arg0("zbench").args(arguments).current_dir(folder.path()).env_clear();
            command.envs([("COLUMNS", columns), ("LANG", "C"), ("NO_COLOR", "1"), ("PATH", "/usr/bin:/bin")]);
            command.env("HOME", folder.path()).stdin(std::process::Stdio::null());
            command.envs(self.value("env").and_then(|pair| pair.split_once('=')));
            let output = command.output().expect("the program starts");
            let [stdout, stderr] =
                [&output.stdout, &output.stderr].map(|bytes| mask(&String::from_utf8_lossy(bytes), folder.path()));
            let stdout = match () {
                () if self.has("hash") => summary(&stdout),
                () if self.has("headings") => headings(&stdout),
                () if self.has("keys") => keys(&stdout),
                () => stdout,
            };
            let code = output.status.code().map_or("a signal".to_string(), |code| code.to_string());
            text += &format!("$ zbench {}\nexit code {code}\n--- stdout\n{stdout}", arguments.join(" "));
            let is_measured = self.has("headings") || self.has("keys");
            text += &format!("--- stderr\n{}", if is_measured { String::new() } else { stderr });
        }
        if let Some(name) = self.value("folder") {
            let entries = std::fs::read_dir(folder.path().join(name)).into_iter().flatten();
            let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
            files.sort();
            for file in files {
                let content = mask(&std::fs::read_to_string(&file).unwrap(), folder.path());
                text += &format!("--- {}\n{}", file.file_name().unwrap().to_string_lossy(), summary(&content));
            }
        }
        if let Some(name) = self.value("show") {
            let content = std::fs::read_to_string(folder.path().join(name)).unwrap_or("absent\n".to_string());
            text += &format!("--- {name}\n{}", mask(&content, folder.path()));
        }
        if self.has("records") {
            let records = std::fs::read_to_string(folder.path().join("notebook/records.jsonl")).unwrap_or_default();
            text += &format!("--- records\n{}", keys(&records));
        }
        text
    }
}

/// Words of a command line; double quotes hold blanks together.
fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (index, part) in text.split('"').enumerate() {
        match index % 2 {
            0 => words.extend(part.split_whitespace().map(str::to_string)),
            _ => words.push(part.to_string()),
        }
    }
    words
}

/// Removes what differs between machines, runs and versions.
fn mask(text: &str, folder: &Path) -> String {
    let folder = folder.to_string_lossy();
    let repository = root().to_string_lossy();
    let mut text = text
        .replace(&*folder, "FOLDER")
        .replace(&*repository, "REPOSITORY")
        .replace(concat!("zbench ", env!("CARGO_PKG_VERSION")), "zbench VERSION");
    // Durations and moments: the number after each of these words becomes 0.
    for before in
        ["pass, in ", "ranks in ", "\"begins_unix_ns\":\"", "\"seconds\":", "\"started\":\"", "errors=\"35\" time=\""]
    {
        let parts: Vec<&str> = text.split(before).collect();
        let rest =
            parts[1..].iter().map(|part| part.trim_start_matches(|c: char| c.is_ascii_digit() || ".-:TZ".contains(c)));
        text = rest.fold(parts[0].to_string(), |all, part| format!("{all}{before}0{part}"));
    }
    // What took long on a busy machine has another unit.
    for words in ["pass, in 0", "ranks in 0"] {
        text = text.replace(&format!("{words} s;"), &format!("{words} ms;"));
    }
    // A gate's documents describe this machine.
    let is_machine =
        |line: &&str| line.trim_start_matches("- ").starts_with("machine: ") || line.contains("name=\"machine\"");
    text.split_inclusive('\n').filter(|line| !is_machine(line)).collect()
}

/// A long text as its length, its hash (64-bit FNV-1a) and its first line.
fn summary(text: &str) -> String {
    let hash = text
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    let first: String = text.lines().next().unwrap_or("").chars().take(120).collect();
    format!("{} bytes, hash {hash:016x}, {first}\n", text.len())
}

/// Labels that are printed or not by what was measured.
const DECIDED: [&str; 6] = ["EFFECTS", "OPEN", "NOTES", "CAUTION", "MACHINE", "FLAGGED"];

/// The headings of columns, titles of sections and labels of lines of a printed table.
fn headings(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = String::new();
    // The columns of the table whose head is being read; a heading that is wrapped goes on in the next line.
    let mut head: Option<Vec<String>> = None;
    for (index, line) in lines.iter().enumerate() {
        let is_blank = |at: Option<usize>| at.and_then(|at| lines.get(at)).is_none_or(|line| line.trim().is_empty());
        let is_alone = is_blank(index.checked_sub(1)) && is_blank(Some(index + 1)) && !line.trim().is_empty();
        let label = line.split("  ").next().unwrap_or("");
        if line.starts_with('┌') {
            head = Some(Vec::new());
        } else if line.starts_with('╞') {
            found += &format!("{}\n", head.take().unwrap_or_default().join(" | "));
        } else if let Some(columns) = &mut head {
            for (at, part) in line.trim_matches('│').split('┆').map(str::trim).enumerate() {
                match columns.get_mut(at) {
                    Some(column) if !part.is_empty() => *column = format!("{column} {part}"),
                    Some(_) => {}
                    None => columns.push(part.to_string()),
                }
            }
        } else if is_alone && !line.contains(|c: char| c.is_ascii_digit()) && line.chars().count() < 40 {
            found += &format!("{line}\n");
        } else if label.len() > 3
            && !DECIDED.contains(&label)
            && label.chars().all(|c| c.is_ascii_uppercase() || c == ' ')
        {
            found += &format!("{label}\n");
        }
    }
    found
}

/// The keys of objects, one a line, with the types of their values.
fn keys(text: &str) -> String {
    let mut types = BTreeMap::new();
    for line in text.lines() {
        match serde_json::from_str(line) {
            Ok(value) => collect("", &value, &mut types),
            Err(_) => {
                let whole = serde_json::from_str(text).unwrap_or_else(|error| panic!("not JSON: {error}: {text}"));
                collect("", &whole, &mut types);
                break;
            }
        }
    }
    types
        .iter()
        .map(|(path, types): (&String, &BTreeSet<&str>)| {
            format!("{path}: {}\n", types.iter().copied().collect::<Vec<_>>().join(" or "))
        })
        .collect()
}

/// Parts of a record that depend on the machine or on what else runs on it; only their own types are held.
const VARIABLE: [&str; 5] = ["environment", "notes", "validity", "flags", "unstated"];

fn collect(path: &str, value: &Value, types: &mut BTreeMap<String, BTreeSet<&'static str>>) {
    let name = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    types.entry(path.to_string()).or_default().insert(name);
    if path.rsplit('.').next().is_some_and(|last| VARIABLE.contains(&last)) {
        return;
    }
    match value {
        Value::Array(items) => items.iter().for_each(|item| collect(&format!("{path}[]"), item, types)),
        Value::Object(fields) => {
            fields.iter().for_each(|(key, value)| collect(&format!("{path}.{key}"), value, types));
        }
        _ => {}
    }
}

/// The cases of the list, and one for each broken configuration.
fn cases() -> Vec<Case> {
    let list = std::fs::read_to_string(root().join("tests/golden/cases.txt")).unwrap();
    let mut cases: Vec<Case> =
        list.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).map(Case::parse).collect();
    for entry in std::fs::read_dir(root().join("tests/bad")).unwrap() {
        let file = entry.unwrap().file_name().into_string().unwrap();
        if let Some(stem) = file.strip_suffix(".toml") {
            cases.push(Case::parse(&format!("bad-{stem} empty: grid tests/bad/{file}")));
        }
    }
    let names: BTreeSet<&str> = cases.iter().map(|case| case.name.as_str()).collect();
    assert_eq!(names.len(), cases.len(), "two cases of one name");
    cases
}

/// What differs, for a person: the case and the first line that differs.
fn difference(name: &str, expected: &str, found: &str) -> String {
    let (mut old, mut new) = (expected.lines(), found.lines());
    for number in 1.. {
        let (expected, found) = (old.next(), new.next());
        if expected != found || expected.is_none() {
            let [expected, found] = [expected, found].map(|line| line.unwrap_or("(the end)"));
            return format!("{name}, line {number}:\n  expected: {expected}\n  found:    {found}");
        }
    }
    unreachable!("lines end")
}

#[test]
fn outputs_are_those_that_are_committed() {
    let folder = root().join("tests/golden/expected");
    let bless = std::env::var_os("ZBENCH_BLESS").is_some();
    let binary = std::env::var_os("ZBENCH_GOLDEN_BINARY").map_or(env!("CARGO_BIN_EXE_zbench").into(), PathBuf::from);
    let cases = cases();
    let waiting = Mutex::new(cases.iter());
    let failures = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(2, usize::from).clamp(2, 8);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let Some(case) = waiting.lock().unwrap().next() else { break };
                    let found = case.output(&binary);
                    let path = folder.join(format!("{}.txt", case.name));
                    if bless {
                        std::fs::write(&path, found).unwrap();
                        continue;
                    }
                    match std::fs::read_to_string(&path) {
                        Ok(expected) if expected == found => {}
                        Ok(expected) => failures.lock().unwrap().push(difference(&case.name, &expected, &found)),
                        Err(_) => failures.lock().unwrap().push(format!("{}: no expected output", case.name)),
                    }
                }
            });
        }
    });
    let names: BTreeSet<String> = cases.iter().map(|case| format!("{}.txt", case.name)).collect();
    let mut failures = failures.into_inner().unwrap();
    for entry in std::fs::read_dir(&folder).unwrap() {
        let entry = entry.unwrap();
        let file = entry.file_name().into_string().unwrap();
        if !names.contains(&file) {
            match bless {
                true => std::fs::remove_file(entry.path()).unwrap(),
                false => failures.push(format!("{file}: an expected output without a case")),
            }
        }
    }
    assert!(
        failures.is_empty(),
        "{} of {} outputs differ:\n{}\nWhere this is meant: ZBENCH_BLESS=1 cargo test --test main golden::",
        failures.len(),
        cases.len(),
        failures.join("\n")
    );
}
