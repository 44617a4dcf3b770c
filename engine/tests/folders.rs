//! The engine's files use the folders above their own in the table of its lib.rs, so that imports have no cycle.

use std::path::{Path, PathBuf};

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, found);
        } else if path.file_name().is_some_and(|name| name != "tests.rs") {
            found.push(path);
        }
    }
}

/// Uses of a folder below, as `file: folder`.
fn uses_of_lower_folders(src: &Path) -> Vec<String> {
    let lib = std::fs::read_to_string(src.join("lib.rs")).unwrap();
    let name = |line| Some(str::strip_prefix(line, "//! | [`")?.split_once('`')?.0);
    let order: Vec<&str> = lib.lines().filter_map(name).collect();
    assert!(order.len() > 5, "{} has no table of folders", src.display());
    let (mut all, mut wrong) = (Vec::new(), Vec::new());
    files(src, &mut all);
    for path in all {
        let name = path.strip_prefix(src).unwrap();
        let folder = name.components().next().unwrap().as_os_str();
        let Some(own) = order.iter().position(|known| folder == *known) else {
            assert_eq!(name, Path::new("lib.rs"), "lies in no folder of the table");
            continue;
        };
        let text = std::fs::read_to_string(&path).unwrap();
        let code =
            text.split("#[cfg(test)]").next().unwrap().lines().filter(|line| !line.trim_start().starts_with("//"));
        for line in code {
            for used in line.split("crate::").skip(1) {
                let end = used.find(|c: char| c != '_' && !c.is_ascii_alphanumeric()).unwrap_or(used.len());
                // A group of imports could name any folder.
                if end == 0 || order.iter().position(|known| used[..end] == **known).is_some_and(|place| place > own) {
                    wrong.push(format!("{}: {}", name.display(), &used[..end]));
                }
            }
        }
    }
    wrong
}

#[test]
fn folders_use_those_above_them_alone() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("../src");
    assert_eq!(uses_of_lower_folders(&src), Vec::<String>::new());
}
