//! `zbench allreduce` over the backends of GPUs, the program itself. Kernels run on the processor here (ZBENCH_CUDA_ON_HOST=1):
//! nothing of this has run on a GPU.

use crate::support::{is_full_tier, records, stderr, stdout, zbench};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Once;

/// Kernels are compiled by the first who wants them, and not by all at once.
static COMPILED: Once = Once::new();

fn on_host(notebook: &Path, words: &str) -> Command {
    COMPILED.call_once(|| {
        let mut command = zbench(notebook);
        command.env("ZBENCH_CUDA_ON_HOST", "1").args(["allreduce", "--backend", "nccl", "--ranks", "2"]);
        assert_eq!(command.output().unwrap().status.code(), Some(4), "it asks how many devices there are");
    });
    let mut command = zbench(notebook);
    command.env("ZBENCH_CUDA_ON_HOST", "1").arg("allreduce").args(words.split_whitespace());
    command
}

fn test(notebook: &Path, words: &str) -> Output {
    on_host(notebook, words).output().unwrap()
}

fn succeeds(notebook: &Path, words: &str) -> String {
    let output = test(notebook, words);
    assert_eq!(output.status.code(), Some(0), "{words}: {}{}", stdout(&output), stderr(&output));
    stdout(&output)
}

fn rows(text: &str) -> Vec<Vec<&str>> {
    text.lines().filter(|line| !line.starts_with('#')).map(|line| line.split_whitespace().collect()).collect()
}

#[test]
fn ranks_that_share_a_device_measure_every_collective() {
    let folder = tempfile::tempdir().unwrap();
    for (ranks, dtype) in [(1, "float"), (2, "bfloat16"), (3, "int8"), (2, "double")] {
        let words = format!(
            "--backend device --ranks {ranks} --collective all -d {dtype} -b 512 -e 8K -f 4 -n 2 --buffers hot"
        );
        let text = succeeds(folder.path(), &words);
        let plural = if ranks == 1 { "rank" } else { "ranks" };
        let first =
            format!("backend device, {ranks} {plural} on 1 host (threads of one process that share the processor");
        assert!(text.lines().next().unwrap().contains(&first), "{text}");
        assert_eq!(text.matches("device  0 [0] cuda on the host").count(), ranks * 9, "{text}");
        let rows = rows(&text);
        assert_eq!(rows.len(), 3 * 9);
        for row in rows {
            let alone = ranks == 1 && row[8] == "N/A" && row[12] == "N/A";
            let right = row[8] == "0" && (row[12] == "0" || row[12] == "N/A");
            assert!(alone || right, "{row:?}");
        }
    }
    let all = records(folder.path());
    assert_eq!(all.len(), 4 * 9);
    for record in &all {
        assert_eq!(
            (&record["cell"]["backend"], &record["cell"]["hardware"]["device"]),
            (&"device".into(), &"cuda".into())
        );
        assert_eq!(record["environment"]["kernels"], "cuda on the host");
        assert_eq!(record["validity"], serde_json::json!(["emulated_device"]));
        let ranks = record["cell"]["parallel"]["ranks"].as_u64().unwrap();
        assert_eq!(record["gpu"]["ranks"].as_array().unwrap().len() as u64, ranks);
        let says_so = |note: &Value| note.as_str().unwrap().contains("ran on the processor");
        assert!(record["notes"].as_array().unwrap().iter().any(says_so), "{record}");
    }
}

#[test]
fn compositions_and_rotating_buffers_work_on_a_device() {
    let folder = tempfile::tempdir().unwrap();
    for algorithm in ["hierarchical", "q8", "q4"] {
        let words = format!(
            "--backend device --ranks 4 --ranks-per-node 2 --algorithm {algorithm} -b 4K -e 4K -n 2 --buffers hot --collective \
             all_reduce,all_gather,reduce_scatter,broadcast"
        );
        let text = succeeds(folder.path(), &words);
        assert!(rows(&text).iter().all(|row| row[8] == "0" && row[12] == "0"), "{text}");
    }
    // Buffers that rotate take half a minute to fill in a program that is not optimised.
    let buffers = if is_full_tier() { "rotate" } else { "hot" };
    let text = succeeds(folder.path(), &format!("--backend device -b 4K -e 4K -n 2 --format json --buffers {buffers}"));
    let document: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(document["devices"][1]["device"], 0);
    assert_eq!(document["devices"][1]["device_hex"], "0");
    assert_eq!(document["nccl_version"], Value::Null);
    assert_eq!(document["results"][0]["out_of_place"]["nwrong"], 0);
    assert!(document["zbench"]["settings"]["buffers"].as_str().unwrap().starts_with(buffers), "{document}");
}

/// What cannot run on this machine is no failure and no mistake of the command line.
#[test]
fn what_cannot_run_here_is_refused_before_anything_starts() {
    let folder = tempfile::tempdir().unwrap();
    for (words, told) in [
        ("--backend nccl --ranks 2", "2 ranks of this host need a GPU each, and it shows 1 GPU; give --ranks 1"),
        ("--backend nccl -t 2 -g 2", "4 ranks of this host need a GPU each"),
        ("--backend nccl --ranks 2 --processes", "2 ranks of this host need a GPU each"),
        ("--backend nccl --ranks 1", "NCCL needs a GPU"),
    ] {
        let output = test(folder.path(), words);
        assert_eq!(output.status.code(), Some(4), "{words}: {}", stderr(&output));
        assert!(stderr(&output).contains(told) && stdout(&output).is_empty(), "{words}: {}", stderr(&output));
    }
    // Whichever of driver, compiler and library is missing first is named; a library that is not there is, in any case.
    let mut command = zbench(folder.path());
    command.env_remove("ZBENCH_CUDA_ON_HOST").env("ZBENCH_NCCL_LIB", "/nowhere/libnccl.so.2");
    let output = command.args(["allreduce", "--backend", "nccl", "--ranks", "1"]).output().unwrap();
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    assert!(stderr(&output).contains("--backend nccl: ") && stderr(&output).contains("Tried:"), "{}", stderr(&output));
    let mut rank = on_host(folder.path(), "--backend nccl");
    rank.env("RANK", "1").env("WORLD_SIZE", "2").env("LOCAL_RANK", "1").env("LOCAL_WORLD_SIZE", "2");
    rank.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", "9");
    let output = rank.output().unwrap();
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    // A launcher may show each process a GPU of its own, so two ranks and one GPU in sight are no reason; kernels on the processor are.
    assert!(stderr(&output).contains("NCCL needs a GPU"), "{}", stderr(&output));
    assert!(records(folder.path()).is_empty());
}

#[test]
fn what_has_no_meaning_on_a_gpu_is_refused_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    for (words, told) in [
        ("--backend device --processes", "exclude each other"),
        ("--backend device --collective all,pairs", "share one GPU, so there are no links"),
        ("--backend device --bisect", "use --backend nccl"),
        ("--backend nccl --threads 2", "--threads"),
        ("--backend device --link-bandwidth 1GB/s --ranks-per-node 1", "emulate links over local, shm or tcp"),
        ("--backend device --save", "say nothing of a GPU"),
    ] {
        let output = test(folder.path(), words);
        assert_eq!(output.status.code(), Some(1), "{words}: {}", stderr(&output));
        assert!(stderr(&output).contains(told), "{words}: {}", stderr(&output));
    }
    let mut rank = on_host(folder.path(), "--backend device");
    rank.env("RANK", "0").env("WORLD_SIZE", "2").env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", "9");
    let output = rank.output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("each would measure alone. Use --backend nccl"), "{}", stderr(&output));
}
