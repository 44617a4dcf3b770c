//! Commands that are not like the others: a record repeated from elsewhere, plans that run nothing, hardware that is absent, limits.

use crate::support::{TINY, json_lines, records, root, run, stderr, stdout, text, write, zbench};
use serde_json::Value;
use std::path::Path;

/// What a record names is found from any directory, and the key does not depend on where one stands.
#[test]
fn a_record_with_files_is_repeated_from_elsewhere() {
    let folder = tempfile::tempdir().unwrap();
    let notebook = folder.path().join("nb");
    std::fs::create_dir(folder.path().join("data")).unwrap();
    let tokens: Vec<u8> = (0..4096u32).flat_map(|i| (i * 7 % 61).to_le_bytes()).collect();
    std::fs::write(folder.path().join("data/tokens.bin"), tokens).unwrap();
    write(folder.path(), &format!("{TINY}[data]\nsource = \"tokens\"\npath = \"./data/tokens.bin\"\n"));
    let only = ["--only", "parallel.strategy=zero3,memory.checkpointing=none"];
    for (directory, file) in [(folder.path().to_path_buf(), "tiny.toml"), (folder.path().join("data"), "../tiny.toml")]
    {
        let output = zbench(&notebook).current_dir(directory).args(["run", file]).args(only).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    }
    let all = records(&notebook);
    assert_eq!(all[0]["key"], all[1]["key"]);
    assert!(Path::new(text(&all[0], "/cell/data/path")).is_absolute(), "{}", all[0]["cell"]["data"]);
    let output = zbench(&notebook).current_dir("/").args(["repro", text(&all[0], "/id")]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).contains("are the same"), "{}", stdout(&output));
}

#[test]
fn estimates_run_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), TINY);
    let notebook = folder.path().join("nb");
    for arguments in [&["grid", path.to_str().unwrap(), "--dry-run"][..], &["plan", path.to_str().unwrap()]] {
        let output = run(&notebook, arguments);
        assert_eq!(output.status.code(), Some(0));
        assert!(stdout(&output).contains("Nothing was run"));
    }
    assert!(!notebook.exists());
}

#[test]
fn run_wants_one_cell_that_can_be() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), TINY);
    let several = run(folder.path(), &["run", path.to_str().unwrap()]);
    assert_eq!(several.status.code(), Some(1));
    assert!(
        stderr(&several).contains("the file has 4 cells, and `run` runs one; add the option that selects one of them")
    );
    let with_include = format!("{TINY}[[grid.include]]\n\"lora.rank\" = 2\n");
    let path = write(folder.path(), &with_include);
    let narrow = ["--set", "parallel.strategy=zero3", "--set", "memory.checkpointing=none"];
    let two = run(folder.path(), &[&["run", path.to_str().unwrap()], &narrow[..]].concat());
    assert_eq!(two.status.code(), Some(1));
    for fragment in ["the file has 2 cells", "--only lora.rank=0", "--only lora.rank=2"] {
        assert!(stderr(&two).contains(fragment), "{fragment}: {}", stderr(&two));
    }
    let notebook = folder.path().join("nb");
    let one = run(&notebook, &[&["run", path.to_str().unwrap(), "--only", "lora.rank=0"], &narrow[..]].concat());
    assert_eq!(one.status.code(), Some(0), "{}", stderr(&one));
    assert_eq!(records(&notebook)[0]["cell"]["lora"]["rank"], 0, "the cell of the product, not the include's");
    let none = run(folder.path(), &["run", path.to_str().unwrap(), "--only", "lora.rank=3"]);
    assert_eq!(none.status.code(), Some(1));
    let said = stderr(&none);
    assert!(said.contains("no cell is left") && said.contains("cells have lora.rank = 0, 2"), "{said}");
    let one = ["--set", "parallel.strategy=hsdp", "--set", "parallel.ranks=3", "--set", "memory.checkpointing=none"];
    let none = run(folder.path(), &[&["run", path.to_str().unwrap()], &one[..]].concat());
    assert_eq!(none.status.code(), Some(1), "{}", stderr(&none));
    assert!(stderr(&none).contains("parallel.shard"));
}

#[test]
fn absent_hardware_is_skipped_with_exit_4_and_stood_in_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = root().join("configs/llama70b.toml");
    let path = path.to_str().unwrap();
    let notebook = folder.path().join("nb");
    let output = run(&notebook, &["grid", path]);
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    let all = records(&notebook);
    assert_eq!(all.len(), 20);
    for record in &all {
        assert_eq!(text(record, "/outcome/status"), "skipped");
        assert!(text(record, "/outcome/reason").contains("16 CUDA devices (a100-80gb)"));
        let of_adapters = record["cell"]["lora"]["rank"].as_u64().is_some_and(|rank| rank > 0);
        let optimizer = record["memory"]["optimizer"]["predicted_bytes"].as_u64().unwrap();
        assert!(of_adapters || optimizer > 1 << 30, "{optimizer}");
    }
    let find = |strategy: &str, checkpointing: &str, gradients: &str| {
        let is = |record: &&Value| {
            text(record, "/cell/parallel/strategy") == strategy
                && text(record, "/cell/memory/checkpointing") == checkpointing
                && text(record, "/cell/precision/gradients") == gradients
        };
        all.iter().find(is).unwrap()
    };
    assert!(text(find("fsdp", "full", "bf16"), "/outcome/reason").contains("it would fit"));
    let hybrid = find("hsdp", "full", "bf16");
    assert!(text(hybrid, "/outcome/reason").contains("it would not fit"));
    assert!(hybrid["notes"].to_string().contains("parallel.strategy = \\\"fsdp\\\""), "{}", hybrid["notes"]);
    // One cell of the stand-in is enough here.
    let proxy = [
        "grid",
        path,
        "--proxy",
        "--trials",
        "1",
        "--only",
        "parallel.strategy=hsdp,memory.checkpointing=full,precision.gradients=bf16",
    ];
    let output = run(&notebook, &proxy);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).contains("PROXY"), "{}", stdout(&output));
    let last = records(&notebook).pop().unwrap();
    assert_eq!((text(&last, "/outcome/status"), text(&last, "/name")), ("measured", "llama70b (proxy)"));
    assert_eq!(text(&last, "/proxy/of"), text(find("hsdp", "full", "bf16"), "/key"));
    assert_eq!(last["validity"].as_array().unwrap().iter().filter(|flag| *flag == "proxy").count(), 1);
}

#[test]
fn a_time_limit_is_an_outcome_and_exit_5() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), &TINY.replace("steps = 2\n", "steps = 1000000\n"));
    let only = ["--only", "parallel.strategy=ddp,memory.checkpointing=none", "--timeout", "5s"];
    let output = run(folder.path(), &[&["grid", path.to_str().unwrap()], &only[..]].concat());
    assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
    let all = records(folder.path());
    assert_eq!((all.len(), text(&all[0], "/outcome/status")), (1, "timed_out"));
    assert!(text(&all[0], "/outcome/reason").contains("--timeout"));
    assert!(!all[0]["steps"].as_array().unwrap().is_empty(), "the steps before are kept");
}

#[test]
fn what_the_doctor_finds_wrong_has_advice() {
    let folder = tempfile::tempdir().unwrap();
    let rows = json_lines(&stdout(&run(folder.path(), &["doctor", "--format", "json"])));
    assert!(rows.len() > 20, "{}", rows.len());
    for row in rows {
        assert!(row["ok"] == true || !row["advice"].as_str().unwrap().is_empty(), "{row}");
    }
}
