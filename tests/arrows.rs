//! No circular imports among sibling modules, at any depth, of a crate in CRATES. The test reads `crate::`, `super::`
//! and `self::` paths out of the sources and names the files that close a circle. Between crates the compiler keeps the arrows.

use crate::support::root;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Sibling modules, the siblings each refers to, and the files that do.
type Graph = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;
/// The graph of the children of each module; the crate itself is the empty path.
type Graphs = BTreeMap<Vec<String>, Graph>;

/// The folders of crates, with the folders in them that are crates of their own.
const CRATES: [(&str, &[&str]); 11] = [
    ("engine/src", &[]),
    ("suites/estimate/src", &[]),
    ("kernels/src", &[]),
    ("reports/src", &[]),
    ("suites/host", &[]),
    ("suites/config", &[]),
    ("suites/launch", &[]),
    ("suites/predict", &[]),
    ("suites/runner", &[]),
    ("suites/cli", &[]),
    ("suites", &["cli", "config", "estimate", "host", "launch", "predict", "runner"]),
];

#[test]
fn no_modules_import_each_other_in_a_circle() {
    let mut found = Vec::new();
    for (folder, others) in CRATES {
        let graphs = graphs(&root().join(folder), others);
        assert!(graphs[&vec![]].len() > 2, "{folder}: the modules are not found");
        found.extend(graphs.values().flat_map(circles).map(|circle| format!("{folder}: {circle}")));
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn a_planted_circle_is_found_and_none_elsewhere() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    let found = || graphs(folder.path(), &[]).values().flat_map(circles).collect::<Vec<String>>();
    write("lib.rs", "pub mod a; pub mod b; pub mod c;");
    write("a.rs", "use crate::{b::{One, two::Three}, c};\n// use crate::a;\n");
    write("b/mod.rs", "fn f() -> &'static str { \"crate::a::x\" }");
    write("b/two.rs", "use super::three::Three;\npub fn g() { crate::c::h() }");
    write("b/three.rs", "use super::One;\n");
    write("c.rs", "#[cfg(test)]\nmod tests { use crate::a::One; }");
    assert_eq!(found(), [""; 0]);
    write("c.rs", "fn h() { crate::a::run() }");
    let top = found();
    assert_eq!(top.len(), 1, "{top:?}");
    assert!(top[0].contains("a -> b (a.rs)") && top[0].contains("c -> a (c.rs)"), "{top:?}");
    write("c.rs", "");
    for back in ["use super::{One, two::{Four}};", "use crate::b::{self, two};"] {
        write("b/three.rs", back);
        let deep = found();
        assert_eq!(deep, ["three -> two (b/three.rs); two -> three (b/two.rs)"]);
    }
}

/// The module path of a file: a `mod.rs` stands for its folder, `lib.rs` and `main.rs` for the crate.
fn module_path(within: &Path) -> Vec<String> {
    let mut path: Vec<String> =
        within.with_extension("").iter().map(|part| part.to_string_lossy().into_owned()).collect();
    let is_parent =
        path.last().is_some_and(|last| last == "mod") || path.len() == 1 && ["lib", "main"].contains(&&*path[0]);
    if is_parent {
        path.pop();
    }
    path
}

fn graphs(folder: &Path, others: &[&str]) -> Graphs {
    let mut files: Vec<(Vec<String>, String, String)> = Vec::new();
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
            let within = path.strip_prefix(folder).unwrap();
            let is_test = name == "tests.rs" || within.iter().any(|part| part == "tests");
            if name.ends_with(".rs") && !is_test {
                let text = code(&std::fs::read_to_string(&path).unwrap());
                files.push((module_path(within), within.display().to_string(), text));
            }
        }
    }
    let mut graphs = Graphs::from([(Vec::new(), Graph::new())]);
    for (path, ..) in &files {
        for depth in 0..path.len() {
            graphs.entry(path[..depth].to_vec()).or_default().entry(path[depth].clone()).or_default();
        }
    }
    for (path, file, text) in &files {
        for reference in references(text, path) {
            let common = path.iter().zip(&reference).take_while(|(own, other)| own == other).count();
            let (Some(own), Some(other)) = (path.get(common), reference.get(common)) else { continue };
            // What is no module is an item of the parent.
            if let Some(graph) = graphs.get_mut(&path[..common]).filter(|graph| graph.contains_key(other)) {
                graph.get_mut(own).unwrap().entry(other.clone()).or_default().insert(file.clone());
            }
        }
    }
    graphs
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

/// The absolute paths of all that `code`, which stands in the module `own`, names from `crate`, `super` or `self`.
fn references(code: &str, own: &[String]) -> Vec<Vec<String>> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let mut found = Vec::new();
    for start in ["crate::", "super::", "self::"] {
        for (at, _) in code.match_indices(start) {
            // Not the end of a longer path or name: what stands in front was read with it.
            if code[..at].ends_with(|c: char| is_part(c) || c == ':') {
                continue;
            }
            let mut base = if start == "crate::" { Vec::new() } else { own.to_vec() };
            let mut rest = &code[at..];
            while let Some(after) = ["crate::", "super::", "self::"].iter().find_map(|word| rest.strip_prefix(word)) {
                if rest.starts_with("super") {
                    base.pop();
                }
                rest = after;
            }
            expand(rest, &base, &mut found);
        }
    }
    found
}

/// Adds the paths of a use tree, `a::{b, c::d}`, to `found`, each behind `base`. Returns what follows the tree.
fn expand<'a>(tree: &'a str, base: &[String], found: &mut Vec<Vec<String>>) -> &'a str {
    let mut path = base.to_vec();
    let mut rest = tree.trim_start();
    loop {
        if let Some(list) = rest.strip_prefix('{') {
            rest = list.trim_start();
            while !rest.is_empty() && !rest.starts_with('}') {
                let before = rest.len();
                rest = expand(rest, &path, found).trim_start();
                // `as name` and the comma.
                let end = rest.find([',', '}']).unwrap_or(rest.len());
                rest = rest[end..].trim_start_matches(',').trim_start();
                assert!(rest.len() < before, "a use tree is not read");
            }
            return rest.strip_prefix('}').unwrap_or(rest);
        }
        let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
        if end > 0 && &rest[..end] != "self" {
            path.push(rest[..end].to_string());
        }
        rest = &rest[end..];
        match rest.strip_prefix("::") {
            Some(after) if end > 0 => rest = after,
            _ => break,
        }
    }
    found.push(path);
    rest
}

/// Every circle of siblings once, in words. A module is on a circle if it is reached from itself.
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
