//! `zbench calibrate`, the program itself. Whether this machine is quiet enough is not ours to say: both ends are tested
//! for what they must leave behind, and the decision itself beside its code.

use crate::support::{TINY, records, run, stderr, stdout, write};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// The ceilings alone: operations are timed in suites/calibrate's own tests.
const QUICK: [&str; 10] =
    ["calibrate", "--rounds", "3", "--seconds", "0.002", "--memory", "1MiB", "--disk-size", "1MiB", "--no-operations"];

/// A machine on which every core is taken is refused after two seconds and not after the measurements, with who takes it; what
/// writes no profile measures all the same.
#[test]
fn a_busy_machine_is_refused_before_anything_is_measured() {
    let folder = tempfile::tempdir().unwrap();
    let profile = folder.path().join("mine.toml");
    let cores = std::thread::available_parallelism().unwrap().get();
    let spin = || Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
    let mut spinners: Vec<_> = (0..cores).map(|_| spin()).collect();
    let output = run(folder.path(), &[&QUICK[..], &["--threads", "1", "--save", profile.to_str().unwrap()]].concat());
    spinners.iter_mut().for_each(|spinner| {
        spinner.kill().unwrap();
        spinner.wait().unwrap();
    });
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("nothing was measured: other processes used") && said.contains("(limit 5.0 %)"), "{said}");
    assert!(said.contains("(process ") && said.contains("of a core") && said.contains("--no-save"), "{said}");
    assert!(records(folder.path()).is_empty() && !profile.exists() && stdout(&output).is_empty(), "{said}");
}

#[test]
fn it_saves_what_plans_can_read_or_says_why_not() {
    let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    std::fs::create_dir(folder.path().join("machines")).unwrap();
    let profile = folder.path().join("machines/mine.toml");
    let before = "about = \"mine\" # a remark\ndevice = \"cpu\"\n";
    std::fs::write(&profile, before).unwrap();
    let save = [&QUICK[..], &["--threads", "1", "--save", profile.to_str().unwrap()]].concat();
    let mut output = run(folder.path(), &save);
    if stderr(&output).contains("nothing was measured") {
        // Others use this machine: nothing is touched, and without a profile to write all is measured and judged.
        assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
        assert_eq!(std::fs::read_to_string(&profile).unwrap(), before, "a refused profile is left as it was");
        assert!(records(folder.path()).is_empty());
        output = run(folder.path(), &[&QUICK[..], &["--threads", "1", "--no-save"]].concat());
    }
    let (text, said) = (stdout(&output), stderr(&output));
    for name in ["matrix.f32", "matrix.f64", "memory.read", "memory.write", "memory.triad", "disk.read", "disk.write"] {
        assert!(text.contains(name), "no {name} in {text}");
    }
    let all = records(folder.path());
    assert_eq!(all.len(), 1, "{said}");
    let record = &all[0];
    assert_eq!((&record["cell"]["suite"], &record["outcome"]["status"]), (&"calibrate".into(), &"measured".into()));
    let of = &record["ceilings"]["threads"][0];
    let triad = of["memory"].as_array().unwrap().iter().find(|pair| pair[0] == "triad").unwrap();
    assert!(triad[1]["median"].as_f64().unwrap() > 0.0 && triad[1]["rounds"] == 3);
    // No loop is in f64: null with its reason.
    assert!(record["metrics"]["threads_1_matrix_f64_flops"].is_null());
    assert!(record["unstated"]["threads_1_matrix_f64_flops"].as_str().unwrap().contains("no loop for f64"));
    let after = std::fs::read_to_string(&profile).unwrap();
    let flags: Vec<&str> = record["validity"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    match output.status.code() {
        Some(0) if said.contains("saved") => {
            assert!(after.starts_with(before) && after.contains("[ceilings.threads-1]"), "{after}");
            assert!(!flags.contains(&"too_noisy") && said.contains("saved the ceilings into"), "{said}");
        }
        Some(3) => {
            assert_eq!(after, before, "a refused profile is left as it was");
            assert!(flags.contains(&"too_noisy") && said.contains("too noisy: ") && said.contains("limit"), "{said}");
        }
        // Measured with --no-save, in a quiet moment after a busy one.
        Some(0) => assert!(after == before && !flags.contains(&"too_noisy"), "{said}"),
        other => panic!("{other:?}: {said}"),
    }
    assert_eq!(
        std::fs::read_dir(folder.path()).unwrap().count(),
        2,
        "machines and records.jsonl: no file of the disk's"
    );
    for command in
        [&["list"][..], &["report"], &["show", record["id"].as_str().unwrap()], &["report", "--format", "html"]]
    {
        let output = run(folder.path(), command);
        assert!(output.status.success() && stdout(&output).contains("calibrate"), "{command:?}: {}", stderr(&output));
    }
    // Either way a plan reads the profile.
    let exclude = "[[grid.exclude]]\n\"parallel.strategy\" = \"ddp\"\n";
    let path =
        write(folder.path(), &format!("{TINY}{exclude}").replace("[hardware]", "[hardware]\nprofile = \"mine\""));
    let output = run(folder.path(), &["plan", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

#[test]
fn a_disk_can_be_left_out_or_refuse() {
    let folder = tempfile::tempdir().unwrap();
    let without = [
        "calibrate",
        "--rounds",
        "3",
        "--seconds",
        "0.001",
        "--memory",
        "64KiB",
        "--no-disk",
        "--no-save",
        "--no-operations",
    ];
    let output = run(folder.path(), &[&without[..], &["--threads", "1", "-q"]].concat());
    assert!(matches!(output.status.code(), Some(0 | 3)), "{}", stderr(&output));
    let record = records(folder.path()).pop().unwrap();
    assert!(record["metrics"]["threads_1_disk_read_gb_s"].is_null());
    assert!(record["unstated"]["threads_1_disk_read_gb_s"].as_str().unwrap().contains("--no-disk"));
    if Path::new("/dev/shm").is_dir() {
        let words = [&QUICK[..], &["--threads", "1", "--no-save", "--disk", "/dev/shm"]].concat();
        let output = run(folder.path(), &words);
        assert!(stderr(&output).contains("/dev/shm"), "{}", stderr(&output));
        let record = records(folder.path()).pop().unwrap();
        let why = record["unstated"]["threads_1_disk_write_gb_s"].as_str().unwrap();
        assert!(why.contains("tmpfs") || why.contains("O_DIRECT"), "{why}");
    }
}

#[test]
fn what_is_wrong_is_refused_before_anything_is_measured() {
    let folder = tempfile::tempdir().unwrap();
    let broken = folder.path().join("broken.toml");
    std::fs::write(&broken, "ceilings = 3\n").unwrap();
    for (words, told) in [
        (&["--rounds", "2"][..], "2 is not in 3"),
        (&["--threads", "0"], "0 is not in 1"),
        (&["--threads", "4096"], "this process may use"),
        (&["--seconds", "0"], "no time above 0"),
        (&["--seconds", "nan"], "no time"),
        (&["--memory", "1"], "no size from 4KiB"),
        (&["--memory", "900TiB"], "three such arrays"),
        (&["--disk-size", "much"], "no size"),
        (&["--force"], "unexpected argument"),
        (&["--save", broken.to_str().unwrap()], "ceilings must be a table"),
    ] {
        let output = run(folder.path(), &[&["calibrate"], words].concat());
        assert_eq!(output.status.code(), Some(1), "{words:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(told), "{words:?}: {}", stderr(&output));
    }
    assert_eq!(records(folder.path()).len(), 0);
}

#[test]
fn corrections_are_made_on_request_and_only_of_records() {
    let folder = tempfile::tempdir().unwrap();
    let profile = folder.path().join("mine.toml");
    let words = ["calibrate", "--from-notebook", "--save", profile.to_str().unwrap()];
    let output = run(folder.path(), &words);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("mine.toml") && stderr(&output).contains("zbench calibrate"),
        "{}",
        stderr(&output)
    );
    let before = "device = \"cpu\"\n\n[operations]\ncores = 1\n\n[operations.ranks-1.threads-1]\ncrowded = false\n\
                  spread = 0.0\noperation_us = 1.0\nload_us = 1.0\nstep_us = 1.0\ncall_us = 1.0\nall_reduce_us = 1.0\ncurves = []\n";
    std::fs::write(&profile, before).unwrap();
    // A notebook without records corrects nothing.
    let output = run(folder.path(), &words);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert!(stderr(&output).contains("nothing is corrected"), "{}", stderr(&output));
    assert_eq!(std::fs::read_to_string(&profile).unwrap(), before);
}

/// The program with the kernels of GPUs on the processor, compiled once for all tests.
fn on_host(notebook: &Path) -> std::process::Command {
    let mut command = crate::support::zbench(notebook);
    command.env("ZBENCH_CUDA_ON_HOST", "1").env("ZBENCH_CACHE", crate::support::cache());
    command
}

#[test]
fn a_gpu_is_measured_and_a_processor_in_its_place_saves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let profile = folder.path().join("mine.toml");
    let words = ["calibrate", "--device", "cuda", "--rounds", "3", "--side", "32", "--memory", "16KiB", "--save"];
    let output = on_host(&folder.path().join("nb")).args(words).arg(&profile).output().unwrap();
    let (text, said) = (stdout(&output), stderr(&output));
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("nothing is saved: the kernels ran on the processor") && !profile.exists(), "{said}");
    let record = records(&folder.path().join("nb")).pop().unwrap();
    let flags: Vec<&str> = record["validity"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(flags.contains(&"emulated_device"), "{flags:?}");
    assert_eq!((&record["cell"]["device"], &record["cell"]["side"]), (&"cuda".into(), &32.into()));
    let rates = record["device_ceilings"]["rates"].as_array().unwrap();
    let names: Vec<&str> = rates.iter().map(|rate| rate["name"].as_str().unwrap()).collect();
    assert_eq!(names.len(), 11, "{names:?}");
    for rate in rates {
        let name = rate["name"].as_str().unwrap();
        assert!(text.contains(name), "no {name} in {text}");
        let of = &rate["rate"];
        let [low, median, high] = ["low", "median", "high"].map(|key| of[key].as_f64().unwrap_or(f64::NAN));
        assert!(0.0 < low && low <= median && median <= high && of["rounds"] == 3, "{rate}");
        // No data sheet is a processor's.
        assert!(rate["data_sheet"].is_null(), "{rate}");
    }
    let metrics = ["matrix_bf16_flops", "memory_copy_gb_s", "link_download_gb_s", "time_launch_us"];
    assert!(metrics.iter().all(|name| record["metrics"][name].as_f64().is_some_and(|value| value > 0.0)), "{record}");
    for command in [&["list"][..], &["report"], &["show", record["id"].as_str().unwrap()]] {
        let output = run(&folder.path().join("nb"), command);
        assert!(output.status.success() && stdout(&output).contains("calibrate"), "{command:?}: {}", stderr(&output));
    }
    let output = on_host(folder.path()).args(["calibrate", "--device", "cuda", "--gpu", "1"]).output().unwrap();
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    assert!(stderr(&output).contains("--gpu 1: there is 1 GPU"), "{}", stderr(&output));
}

#[test]
fn without_a_gpu_the_reason_is_told_and_nothing_kept() {
    if zbench_host::devices::count().is_ok() {
        println!("NOT RUN: this machine has a GPU");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let output = run(folder.path(), &["calibrate", "--device", "cuda"]);
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    let said = stderr(&output);
    assert!(said.contains("nothing is measured: cuda: opening GPU 0") && said.contains("zbench doctor"), "{said}");
    assert_eq!(records(folder.path()).len(), 0);
}

#[test]
fn flags_of_another_device_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for words in [
        "--device cuda --threads 1",
        "--device cuda --seconds 0.1",
        "--device cuda --disk .",
        "--device cuda --disk-size 1MiB",
        "--device cuda --no-disk",
        "--device cuda --operation-rounds 2",
        "--device cuda --no-operations",
        "--device cuda --from-notebook",
        "--gpu 0",
        "--device cpu --side 64",
    ] {
        let words: Vec<&str> = words.split(' ').collect();
        let output = on_host(folder.path()).arg("calibrate").args(&words).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{words:?}: {}", stderr(&output));
        let flag = words.iter().rev().find(|word| word.starts_with("--")).unwrap();
        assert!(stderr(&output).contains(&format!("{flag} says nothing of --device")), "{}", stderr(&output));
    }
    for (words, told) in [
        (["--device=gpu", "--rounds=3"], "possible values: cpu, cuda"),
        (["--device=cuda", "--side=8"], "8 is not in 16"),
        (["--device=cuda", "--memory=900TiB"], "two such buffers"),
    ] {
        let output = on_host(folder.path()).arg("calibrate").args(words).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{words:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(told), "{words:?}: {}", stderr(&output));
    }
    assert_eq!(records(folder.path()).len(), 0);
}

/// A cell on eight H100 whose products take most of its time.
const LARGE: &str = "[model]\npreset = \"llama2-7b\"\n[train]\nseq_len = 2048\nmicro_batch = 4\n[parallel]\nranks = 8\n\
                     ranks_per_node = 8\nstrategy = \"zero3\"\n[precision]\npreset = \"bf16-mixed\"\n[hardware]\n";

#[test]
fn predictions_follow_what_was_saved() {
    use zbench_reports::bench::{DeviceCeilings, DeviceRate, Rate};
    use zbench_suites::calibrate::device::profile::Target;
    let folder = tempfile::tempdir().unwrap();
    let builtin = zbench_estimate::profile::machine("h100-sxm").unwrap();
    let bf16 = builtin.device.compute[&zbench_estimate::job::Number::Bf16];
    // The invented GPU multiplies at this share of what the built-in profile takes for reached, and copies as that does.
    let save = |name: &str, factor: f64| {
        let path = folder.path().join(format!("machines/{name}.toml"));
        let rates =
            [("matrix.bf16", bf16.peak * bf16.reached * factor), ("memory.copy", 0.9 * builtin.device.bandwidth)];
        let of =
            |(name, rate): (&str, f64)| DeviceRate { name: name.into(), rate: Rate::of(&[rate]), data_sheet: None };
        let ceilings = DeviceCeilings { rates: rates.map(of).to_vec(), ..DeviceCeilings::default() };
        let target = Target::open(&path, Some("h100-sxm"), "NVIDIA H100 80GB HBM3").unwrap().unwrap();
        target.save(&ceilings, "invented").unwrap();
    };
    save("same", 1.0);
    save("half", 0.5);
    let time = |profile: &str| {
        let path = write(folder.path(), &format!("{LARGE}profile = \"{profile}\"\n"));
        let output = run(folder.path(), &["plan", path.to_str().unwrap(), "--format", "json"]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let row: Value = serde_json::from_str(stdout(&output).lines().next().unwrap()).unwrap();
        let span = |name: &str| row["time"][name].as_f64().unwrap_or_else(|| panic!("{name} of {row}"));
        [row["step_ms"].as_f64().unwrap(), span("forward") + span("backward"), span("optimizer")]
    };
    let [as_built_in, same, half] = ["h100-sxm", "same", "half"].map(time);
    // Figures are written to four digits.
    assert!(same.iter().zip(as_built_in).all(|(x, y)| (x - y).abs() <= 1e-3 * y), "{same:?} {as_built_in:?}");
    // Products take twice the time; copies between them, attention's other parts and launches do not.
    let ratio = half[1] / same[1];
    assert!((1.4..=2.0).contains(&ratio) && half[0] > same[0], "{ratio}: {half:?} {same:?}");
    assert!((half[2] - same[2]).abs() <= 1e-9 * same[2], "{half:?} {same:?}");
}
