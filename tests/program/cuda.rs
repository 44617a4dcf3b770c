//! Cells on CUDA through the real program: on the processor, which says what is computed and not how fast.

use crate::support::{root, stderr, stdout, write, zbench};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::Permissions;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Output};

/// The program with CUDA's kernels on the processor, compiled once for all tests.
fn on_host(notebook: &Path) -> Command {
    let mut command = zbench(notebook);
    command.env("ZBENCH_CUDA_ON_HOST", "1").env("ZBENCH_CACHE", crate::support::cache());
    command
}

fn records(output: &Output) -> Vec<Value> {
    let lines = stdout(output);
    let parse = |line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    let records: Vec<Value> = lines.lines().map(parse).collect();
    assert!(!records.is_empty(), "{}", stderr(output));
    records
}

fn losses(record: &Value) -> Vec<f64> {
    record["steps"].as_array().unwrap().iter().map(|step| step["loss"].as_f64().unwrap()).collect()
}

fn is_emulated(record: &Value) -> bool {
    let flags = record["validity"].as_array().unwrap();
    flags.iter().any(|flag| flag == "emulated_device")
}

#[test]
fn a_grid_of_ranks_that_share_a_device_computes_what_the_processor_does() {
    let folder = tempfile::tempdir().unwrap();
    let config = root().join("tests/configs/cuda-tiny.toml");
    let common = ["--trials", "1", "--no-repeats", "--format", "json"];
    let device = on_host(&folder.path().join("device")).arg("grid").arg(&config).args(common).output().unwrap();
    let cpu = ["--set", "hardware.device=cpu", "--set", "parallel.backend=local"];
    let cpu = zbench(&folder.path().join("cpu")).arg("grid").arg(&config).args(common).args(cpu).output().unwrap();
    assert_eq!((device.status.code(), cpu.status.code()), (Some(0), Some(0)), "{}", stderr(&device));
    let (device, cpu) = (records(&device), records(&cpu));
    assert_eq!((device.len(), cpu.len()), (4, 4));
    for (device, cpu) in device.iter().zip(&cpu) {
        let what = [&device["cell"]["parallel"]["strategy"], &device["cell"]["precision"]["parameters"]];
        let share = if what[1] == "f32" { 1e-4 } else { 1e-2 };
        let (ours, theirs) = (losses(device), losses(cpu));
        assert!(ours.len() == theirs.len() && ours.len() >= 3, "{what:?}");
        for (x, y) in ours.iter().zip(&theirs) {
            assert!((x - y).abs() <= share * y, "{what:?}: {ours:?} and {theirs:?}");
        }
        // What was planned for a GPU is what the device's memory held.
        let peak = &device["memory"]["total"];
        assert!(peak["peak_bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{what:?}: {peak}");
        assert_eq!(peak["peak_bytes"], peak["predicted_bytes"], "{what:?}");
        // Nobody takes the processor's speed for a GPU's.
        assert!(is_emulated(device) && !is_emulated(cpu), "{what:?}: {}", device["validity"]);
        assert!(device["metrics"]["mfu"].is_null(), "{what:?}: {}", device["metrics"]["mfu"]);
    }
    // ZeRO-3 gives the bits of DDP: the order of the grid is strategies, then precisions.
    for (ddp, zero3) in device[..2].iter().zip(&device[2..]) {
        assert_eq!(losses(ddp), losses(zero3));
    }
}

/// What is offloaded lives where the plan says, and losses are those of the same cell without offload, to the bit.
#[test]
fn offloaded_cells_run_on_cuda_as_they_are_planned() {
    let folder = tempfile::tempdir().unwrap();
    let tiny = std::fs::read_to_string(root().join("tests/configs/cuda-tiny.toml")).unwrap();
    let grid = tiny.find("[grid]").unwrap();
    let include = |home: &str| {
        let kinds = ["optimizer", "parameters", "activations"];
        let keys: String = kinds.map(|kind| format!("\"memory.offload_{kind}\" = \"{home}\"\n")).concat();
        format!("[[grid.include]]\n{keys}")
    };
    let zero3 = tiny[..grid].replace("ranks = 2", "ranks = 2\nstrategy = \"zero3\"");
    let axes = "[grid]\n\"memory.offload_optimizer\" = [\"none\"]\n";
    let file = write(folder.path(), &format!("{zero3}{axes}{}{}", include("host"), include("disk")));
    let common = ["--trials", "1", "--no-repeats", "--format", "json"];
    let output = on_host(&folder.path().join("nb")).arg("grid").arg(&file).args(common).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let all = records(&output);
    assert_eq!(all.len(), 3);
    for record in &all {
        assert_eq!(record["outcome"]["status"], "measured", "{}", record["outcome"]);
        assert_eq!(losses(record), losses(&all[0]));
        let homes =
            [&record["memory"]["total"], &record["offload"]["host"]["total"], &record["offload"]["disk"]["total"]];
        homes.iter().for_each(|home| assert_eq!(home["peak_bytes"], home["predicted_bytes"], "{}", record["offload"]));
    }
    let there = |record: &Value| record["memory"]["total"]["peak_bytes"].as_u64().unwrap();
    assert!(there(&all[1]) < there(&all[0]), "offload gives the device's memory back");
    // A link is emulated on the processor alone.
    let link =
        "[memory]\noffload_optimizer = \"host\"\n[link]\nhost = { bandwidth = \"25GB/s\", latency = \"10us\" }\n";
    let file = write(folder.path(), &format!("{}{link}", &tiny[..grid]));
    let linked = on_host(&folder.path().join("link")).arg("grid").arg(&file).args(common).output().unwrap();
    let reason = records(&linked)[0]["outcome"]["reason"].as_str().unwrap().to_string();
    assert!(reason.contains("links cannot be emulated there"), "{reason}");
}

#[test]
fn kernels_are_asked_one_by_one() {
    let folder = tempfile::tempdir().unwrap();
    let gemm = ["gemm", "--device", "cuda", "--shape", "48x40x72", "--dtype", "f32,bf16", "--format", "json"];
    let attention =
        "attention --device cuda --dtype bf16 --heads 4 --kv-heads 2 --head-dim 64 --seq-len 72 --format json";
    for (arguments, count) in [(gemm.to_vec(), 2), (attention.split(' ').collect(), 1)] {
        let output = on_host(folder.path()).args(&arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", stderr(&output));
        let records = records(&output);
        assert_eq!(records.len(), count);
        for record in &records {
            assert_eq!(record["outcome"]["status"], "measured", "{}", record["outcome"]);
            assert!(is_emulated(record), "{}", record["validity"]);
            let timings = record["timings"].as_array().unwrap();
            // The distance from f64 was looked at, and is within the bound.
            let worst = |timing: &Value| timing["worst"].as_f64().unwrap();
            assert!(!timings.is_empty() && timings.iter().all(|timing| (0.0..=1.0).contains(&worst(timing))));
        }
    }
}

#[test]
fn without_a_gpu_cells_are_skipped_with_the_reason() {
    if zbench_host::devices::count().is_ok() {
        println!("NOT RUN: this machine has a GPU");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let config = root().join("tests/configs/cuda-tiny.toml");
    let output = zbench(&folder.path().join("nb")).arg("grid").arg(config).args(["--format", "json"]).output().unwrap();
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    for record in records(&output) {
        let reason = record["outcome"]["reason"].as_str().unwrap();
        assert_eq!(record["outcome"]["status"], "skipped");
        assert!(reason.contains("needs 1 CUDA device") && reason.contains("zbench doctor"), "{reason}");
    }
}

/// A file that says `text` instead of the tiny configuration's ranks.
fn changed(folder: &Path, from: &str, to: &str) -> std::path::PathBuf {
    let text = std::fs::read_to_string(root().join("tests/configs/cuda-tiny.toml")).unwrap();
    assert!(text.contains(from));
    write(folder, &text.replace(from, to))
}

#[test]
fn backends_and_devices_that_do_not_fit_say_what_would() {
    let folder = tempfile::tempdir().unwrap();
    let reason = |backend: &str| {
        let file = changed(folder.path(), "\"device\"", &format!("\"{backend}\""));
        let output = on_host(&folder.path().join(backend)).arg("grid").arg(file).args(["--format", "json"]).output();
        let output = output.unwrap();
        assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
        records(&output)[0]["outcome"]["reason"].as_str().unwrap().to_string()
    };
    assert!(reason("nccl").contains("needs 2 CUDA devices, and this machine has 1"));
    for backend in ["local", "shm", "tcp"] {
        let reason = reason(backend);
        assert!(reason.contains("\"device\"") && reason.contains("\"nccl\""), "{reason}");
    }
    for backend in ["device", "nccl"] {
        let file = changed(folder.path(), "device = \"cuda\"", "device = \"cpu\"");
        let set = format!("parallel.backend={backend}");
        let output = on_host(folder.path()).arg("grid").arg(file).args(["--set", &set]).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).contains("hardware.device = \"cuda\""), "{}", stderr(&output));
    }
}

#[test]
fn what_no_gpu_can_do_is_said_before_anything_starts() {
    let folder = tempfile::tempdir().unwrap();
    let config = root().join("tests/configs/cuda-tiny.toml");
    let outcome = |set: &[&str]| {
        let mut command = on_host(&folder.path().join("nb"));
        command.arg("grid").arg(&config).args(["--format", "json", "--only", "parallel.strategy=ddp"]);
        for term in set {
            command.args(["--set", term]);
        }
        records(&command.output().unwrap())[0]["outcome"].clone()
    };
    let link = outcome(&["parallel.ranks_per_node=1", "link.node.bandwidth=1MB/s"]);
    assert_eq!(link["status"], "skipped");
    assert!(link["reason"].as_str().unwrap().contains("links cannot be emulated there"), "{link}");
    let pace = outcome(&["pace.forward=4ms", "pace.backward=8ms"]);
    assert_eq!(pace["status"], "skipped");
    assert!(pace["reason"].as_str().unwrap().contains("a pace cannot be emulated there"), "{pace}");
    let capacity = outcome(&["memory.capacity=100KiB"]);
    assert_eq!((&capacity["status"], &capacity["source"]), (&"out_of_memory".into(), &"plan".into()), "{capacity}");
    let expect = ["allreduce", "--backend", "device", "--expect", "H200-SXM"];
    let output = on_host(folder.path()).args(expect).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("--expect: ranks of --backend device share one GPU"), "{}", stderr(&output));
}

#[test]
fn kernels_that_were_damaged_are_made_again() {
    let folder = tempfile::tempdir().unwrap();
    let ask = |cache: Option<&Path>| {
        let mut command = on_host(folder.path());
        if let Some(cache) = cache {
            command.env("ZBENCH_CACHE", cache);
        }
        let gemm = ["gemm", "--device", "cuda", "--shape", "16x16x16", "--format", "json", "--fresh"];
        let output = command.args(gemm).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    };
    ask(None);
    let copy = folder.path().join("cache");
    std::fs::create_dir_all(copy.join("kernels")).unwrap();
    // The last of each source: the folder may have those of earlier versions.
    let mut last = BTreeMap::new();
    for file in std::fs::read_dir(crate::support::cache().join("kernels")).unwrap() {
        let from = file.unwrap().path();
        let name = from.file_name().unwrap().to_str().unwrap().to_string();
        let Some((source, _)) = name.strip_suffix(".so").and_then(|name| name.rsplit_once('-')) else { continue };
        let made = from.metadata().unwrap().modified().unwrap();
        let known = last.entry(source.to_string()).or_insert((made, from.clone()));
        *known = known.clone().max((made, from));
    }
    let mut libraries = Vec::new();
    for (_, from) in last.values() {
        let to = copy.join("kernels").join(from.file_name().unwrap());
        libraries.push((std::fs::copy(from, &to).unwrap(), to));
    }
    // The smallest take the least time to make.
    libraries.sort();
    let whole = |path: &Path| std::fs::read(path).unwrap();
    let (cut, garbage) = (&libraries[0].1, &libraries[1].1);
    std::fs::write(cut, &whole(cut)[..libraries[0].0 as usize / 2]).unwrap();
    std::fs::write(garbage, "garbage").unwrap();
    ask(Some(&copy));
    assert!(whole(cut).len() as u64 > libraries[0].0 / 2 && whole(garbage).len() > 7, "they were made again");
    let left = std::fs::read_dir(copy.join("kernels")).unwrap().count();
    assert_eq!(left, libraries.len(), "nothing else is left");
}

#[test]
fn doctor_says_why_a_library_is_not_taken() {
    let folder = tempfile::tempdir().unwrap();
    let said = |name: &str, bytes: &[u8], row: &str| {
        std::fs::write(folder.path().join(name), bytes).unwrap();
        let mut command = zbench(folder.path());
        let output = command.args(["doctor", "--format", "json"]).env("ZBENCH_CUDA_LIBS", folder.path()).output();
        let output = output.unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let found = records(&output).into_iter().find(|found| found["what"] == row).unwrap();
        assert_eq!(found["ok"], false);
        found["found"].as_str().unwrap().to_string()
    };
    let own = std::fs::read(env!("CARGO_BIN_EXE_zbench")).unwrap();
    let cut = said("libcuda.so.1", &own[..5000], "CUDA driver");
    assert!(cut.contains("has 5000 bytes") && cut.contains("cut off"), "{cut}");
    let garbage = said("libnvrtc.so.13", b"garbage", "NVRTC");
    assert!(garbage.contains("libnvrtc.so.13: file too short"), "{garbage}");
    let other =
        said("libnvidia-ml.so.1", &std::fs::read("/lib/x86_64-linux-gnu/libm.so.6").unwrap_or_default(), "NVML");
    assert!(other.contains("nvmlInit_v2") || other.contains("file too short"), "{other}");
}

#[test]
fn nothing_is_loaded_from_a_folder_that_others_write_to() {
    let folder = tempfile::tempdir().unwrap();
    let gemm = ["gemm", "--device", "cuda", "--shape", "16x16x16", "--format", "json", "--fresh"];
    let good = on_host(folder.path()).args(gemm).output().unwrap();
    assert_eq!(good.status.code(), Some(0), "{}", stderr(&good));
    assert!(!stderr(&good).contains("ZBENCH_CACHE"), "{}", stderr(&good));
    // A library that says when it is loaded, with the sum that a cache's files end in.
    let (marker, planted) = (folder.path().join("loaded"), folder.path().join("planted.so"));
    let code = format!(
        "#include <fcntl.h>\n__attribute__((constructor)) static void f() {{ creat({:?}, 0600); }}\n",
        marker.to_str().unwrap()
    );
    std::fs::write(folder.path().join("planted.c"), code).unwrap();
    let mut compile = Command::new("c++");
    compile.args(["-x", "c++", "-shared", "-fPIC", "-o"]).arg(&planted).arg(folder.path().join("planted.c"));
    assert!(compile.status().unwrap().success());
    let mut bytes = std::fs::read(&planted).unwrap();
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    bytes.extend(hasher.finish().to_le_bytes());
    // A compiler that only refuses: what is not loaded would have to be compiled.
    let (bin, temporary) = (folder.path().join("bin"), folder.path().join("tmp"));
    std::fs::create_dir(&bin).unwrap();
    std::fs::write(bin.join("c++"), "#!/bin/sh\necho asked to compile >&2\nexit 1\n").unwrap();
    std::fs::set_permissions(bin.join("c++"), Permissions::from_mode(0o755)).unwrap();
    let user = std::fs::metadata(folder.path()).unwrap().uid();
    let caches = ["zbench-cache".to_string(), format!("zbench-cache-{user}")].map(|name| temporary.join(name));
    let names = crate::support::cache().join("kernels");
    let names: Vec<_> = std::fs::read_dir(names).unwrap().map(|file| file.unwrap().file_name()).collect();
    let ask = |home: Option<&Path>| {
        let mut command = on_host(folder.path());
        for name in ["ZBENCH_CACHE", "XDG_CACHE_HOME", "HOME"] {
            command.env_remove(name);
        }
        if let Some(home) = home {
            command.env("HOME", home);
        }
        command.env("PATH", &bin).env("TMPDIR", &temporary).args(gemm);
        stderr(&command.output().unwrap())
    };
    let home = folder.path().join("home");
    let of_home = home.join(".cache/zbench");
    let is_bad = |said: &str| said.contains("others may write to") && said.contains("Set ZBENCH_CACHE");
    for (cache, home) in [(&caches[0], None), (&caches[1], None), (&of_home, Some(&*home))] {
        let kernels = cache.join("kernels");
        std::fs::create_dir_all(&kernels).unwrap();
        for name in names.iter().filter(|name| name.to_string_lossy().ends_with(".so")) {
            std::fs::write(kernels.join(name), &bytes).unwrap();
        }
        std::fs::set_permissions(cache, Permissions::from_mode(0o777)).unwrap();
        let said = ask(home);
        assert!(!marker.exists(), "a library of {} was loaded: {said}", cache.display());
        assert!(said.contains("asked to compile"), "{said}");
        assert!(is_bad(&said) || *cache == caches[0], "{said}");
    }
}
