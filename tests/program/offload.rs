//! Offload to folders that cannot be used, and to memory that is called a disk.

use crate::support::{TINY, run, stderr, stdout, write};
use std::process::Command;

/// One cell of two ranks.
fn cell(more: &str) -> String {
    let grid = TINY.find("[grid]").unwrap();
    TINY[..grid].replace("ranks = 2", "ranks = 2\nstrategy = \"zero3\"") + more
}

#[test]
fn folders_that_cannot_be_used_are_told_before_training() {
    let folder = tempfile::tempdir().unwrap();
    let is_file = folder.path().join("file");
    std::fs::write(&is_file, "").unwrap();
    let missing = folder.path().join("missing");
    let disk = "[memory]\noffload_optimizer = \"disk\"\noffload_path = ";
    for (path, words) in [(&missing, "No such file"), (&is_file, "is no folder")] {
        let file = write(folder.path(), &cell(&format!("{disk}\"{}\"\n", path.display())));
        let output = run(&folder.path().join("nb"), &["run", file.to_str().unwrap()]);
        let said = format!("{}{}", stdout(&output), stderr(&output));
        assert_eq!(output.status.code(), Some(4), "{said}");
        assert!(said.contains(words) && said.contains("memory.offload_path"), "{said}");
    }
    // A disk that is too small: a limit on the length of files stands for it.
    let file = write(folder.path(), &cell(&format!("{disk}\"{}\"\n", folder.path().display())));
    let program = env!("CARGO_BIN_EXE_zbench");
    let notebook = folder.path().join("nb");
    let script = format!("ulimit -f 40; exec {program} --notebook {} run {}", notebook.display(), file.display());
    let output = Command::new("bash").args(["-c", &script]).output().unwrap();
    let said = format!("{}{}", stdout(&output), stderr(&output));
    assert_eq!(output.status.code(), Some(5), "{said}");
    assert!(said.contains("bytes") && !said.contains("step 1 "), "{said}");
    // A grid may state one folder for the cells that use it: one with nothing on a disk does not look at it.
    let file = write(folder.path(), &cell("[memory]\noffload_path = \"/nowhere\"\n"));
    let output = run(&notebook, &["run", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

#[test]
fn memory_that_is_called_a_disk_is_warned_of() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let disk = format!("[memory]\noffload_optimizer = \"disk\"\noffload_path = \"{}\"\n", folder.path().display());
    let file = write(folder.path(), &cell(&disk));
    let output = run(&folder.path().join("nb"), &["run", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stderr(&output).contains("tmpfs"), "{}", stderr(&output));
}
