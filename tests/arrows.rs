//! No circular imports among the top-level modules of a crate under suites/ and of reports/: `crate::` paths are read out of the sources,
//! and a circle is told with the files that close it. Between crates the compiler keeps the arrows.

use crate::support::root;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Modules of a crate, the modules each refers to, and the files that do.
type Graph = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

/// The folders of crates, with the folders in them that are crates of their own.
const CRATES: [(&str, &[&str]); 8] = [
    ("reports/src", &[]),
    ("suites/host", &[]),
    ("suites/config", &[]),
    ("suites/launch", &[]),
    ("suites/predict", &[]),
    ("suites/runner", &[]),
    ("suites/cli", &[]),
    ("suites", &["cli", "config", "host", "launch", "predict", "runner"]),
];

#[test]
fn no_modules_import_each_other_in_a_circle() {
    for (folder, others) in CRATES {
        let graph = graph(&root().join(folder), others);
        assert!(graph.len() > 2, "{folder}: the modules are not found");
        let circles = circles(&graph);
        assert!(circles.is_empty(), "{folder}: {}", circles.join("\n"));
    }
}

#[test]
fn a_planted_circle_is_found_and_none_elsewhere() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write("lib.rs", "pub mod a; pub mod b; pub mod c;");
    write("a.rs", "use crate::{b::{One, two::Three}, c};\n// use crate::a;\n");
    write("b/mod.rs", "fn f() -> &'static str { \"crate::a::x\" }");
    write("b/two.rs", "pub fn g() { crate::c::h() }");
    write("c.rs", "#[cfg(test)]\nmod tests { use crate::a::One; }");
    assert_eq!(circles(&graph(folder.path(), &[])), [""; 0]);
    write("c.rs", "fn h() { crate::a::run() }");
    let found = circles(&graph(folder.path(), &[]));
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("a -> b (a.rs)") && found[0].contains("c -> a (c.rs)"), "{found:?}");
}

fn graph(folder: &Path, others: &[&str]) -> Graph {
    let mut graph = Graph::new();
    let mut pending = vec![folder.to_path_buf()];
    while let Some(dir) = pending.pop() {
        for entry in std::fs::read_dir(&dir).unwrap().map(Result::unwrap) {
            let path = entry.path();
            let name = entry.file_name().to_string_lossy().into_owned();
            if path.is_dir() {
                if !(dir == folder && others.contains(&name.as_str())) {
                    pending.push(path);
                }
                continue;
            }
            let within = path.strip_prefix(folder).unwrap().to_string_lossy().into_owned();
            let is_test = name == "tests.rs" || within.contains("tests/");
            if !name.ends_with(".rs") || is_test || ["lib.rs", "main.rs"].contains(&within.as_str()) {
                continue;
            }
            let module = within.split('/').next().unwrap().trim_end_matches(".rs").to_string();
            let text = code(&std::fs::read_to_string(&path).unwrap());
            let uses = graph.entry(module.clone()).or_default();
            for other in references(&text).into_iter().filter(|other| *other != module) {
                uses.entry(other).or_default().insert(within.clone());
            }
        }
    }
    // What is no module of the crate is an item of its root.
    let modules: BTreeSet<String> = graph.keys().cloned().collect();
    graph.values_mut().for_each(|uses| uses.retain(|other, _| modules.contains(other)));
    graph
}

/// The source without comments, texts and the modules of tests.
fn code(source: &str) -> String {
    let mut code = String::with_capacity(source.len());
    let mut rest = source.split("#[cfg(test)]\nmod ").next().unwrap();
    while let Some(at) = rest.find(['/', '"']) {
        code.push_str(&rest[..at]);
        rest = &rest[at..];
        if rest.starts_with("//") {
            rest = &rest[rest.find('\n').unwrap_or(rest.len())..];
        } else if rest.starts_with('"') && !code.ends_with('\'') {
            let mut escaped = false;
            let end = rest[1..].find(|c| {
                let ends = c == '"' && !escaped;
                escaped = c == '\\' && !escaped;
                ends
            });
            rest = &rest[end.map_or(rest.len(), |end| end + 2)..];
        } else {
            code.push_str(&rest[..1]);
            rest = &rest[1..];
        }
    }
    code + rest
}

/// The first name behind every `crate::`, in braces too.
fn references(code: &str) -> BTreeSet<String> {
    let name = |text: &str| text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    let mut found = BTreeSet::new();
    for (at, _) in code.match_indices("crate::") {
        let path = &code[at + "crate::".len()..];
        let Some(list) = path.strip_prefix('{') else {
            found.insert(name(path));
            continue;
        };
        let (mut depth, mut item) = (1, String::new());
        for c in list.chars() {
            depth += i32::from(c == '{') - i32::from(c == '}');
            if depth == 0 || depth == 1 && c == ',' {
                found.insert(name(item.trim()));
                item.clear();
            } else {
                item.push(c);
            }
            if depth == 0 {
                break;
            }
        }
    }
    found
}

/// Every circle once, in words. A module is on a circle if it is reached from itself.
fn circles(graph: &Graph) -> Vec<String> {
    let reached = |from: &str| {
        let (mut seen, mut pending) = (BTreeSet::new(), vec![from.to_string()]);
        while let Some(module) = pending.pop() {
            for other in graph.get(&module).into_iter().flat_map(BTreeMap::keys) {
                if seen.insert(other.clone()) {
                    pending.push(other.clone());
                }
            }
        }
        seen
    };
    let reach: BTreeMap<&String, BTreeSet<String>> = graph.keys().map(|module| (module, reached(module))).collect();
    let mut told: BTreeSet<&String> = BTreeSet::new();
    let mut circles = Vec::new();
    for module in graph.keys().filter(|module| reach[module].contains(*module)) {
        if told.contains(module) {
            continue;
        }
        let on: Vec<&String> =
            graph.keys().filter(|other| reach[module].contains(*other) && reach[other].contains(module)).collect();
        told.extend(&on);
        let files = |files: &BTreeSet<String>| files.iter().cloned().collect::<Vec<_>>().join(", ");
        let steps = on.iter().flat_map(|from| graph[*from].iter().map(move |(to, of)| (from, to, of)));
        let steps =
            steps.filter(|(_, to, _)| on.contains(to)).map(|(from, to, of)| format!("{from} -> {to} ({})", files(of)));
        circles.push(steps.collect::<Vec<_>>().join("; "));
    }
    circles
}
