//! `ci/gpu-check` end to end with stand-ins: a driver's nvidia-smi, the packed programs, PyTorch and compute-sanitizer. What runs
//! in which order, what is there when the time is up or the call is killed, what comes back.

use crate::containers::fault;
use crate::support::{self, is_full_tier, root, stderr, stdout};
use serde_json::Value;
use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// What a call may bring back: files, and bytes of each.
const BACK: (usize, u64) = (8, 16 << 20);

/// Stands for every packed program: writes its command line down, and does what IMITATED says of a word in it.
const PROGRAM: &str = r#"#!/usr/bin/env bash
# Under the stand-in of a sanitizer, too. Whoever warms up has to be gone when something is measured.
line="$(basename "$0") $*"
echo "$line" >>"$TREE/calls"
case " $line " in
    *" 4096x4096x4096,"*) [ ! -e "$TREE/warm" ] || ! kill -0 "$(cat "$TREE/warm")" || exit 77 ;;
esac
while [ $# -gt 0 ]; do
    if [ "$1" = --notebook ]; then mkdir -p "$2" && echo '{"name":"imitated","cell":{},"outcome":{"status":"measured"},"metrics":{"mfu":0.5}}' >>"$2/records.jsonl"; fi
    shift
done
for rule in $IMITATED; do
    word=${rule%%=*} what=${rule#*=}
    case " $line " in
        *"$word"*) case $what in
            hang)
                # With a child, as programs have, and deaf to polite words.
                trap '' TERM; echo "before it hangs"
                (while :; do sleep 1; done) & echo "$! $$" | tr ' ' '\n' >>"$TREE/hung"
                while :; do sleep 1; done ;;
            unknown) echo "error: --kernel: \"flash-hopper\" is none of flash, naive, both" >&2; exit 1 ;;
            large) head -c 40000000 /dev/urandom ;;
            *) echo "said before it ended with $what"; exit "$what" ;;
        esac ;;
    esac
done
"#;

const NVIDIA_SMI: &str = r#"#!/usr/bin/env bash
case "$IMITATED" in *no-gpu*) echo "No devices were found"; exit 6 ;; esac
case "$*" in --query-gpu=*) echo "Imitated GPU 1, 999.1, 1000 MiB, 900 MiB, 1 MHz, 2 MHz, 3 W, Disabled" ;; *) echo "imitated" ;; esac
"#;

const YARDSTICK: &str = r#"
import json, os, sys, time
if "--warm-up" in sys.argv:
    open(os.environ["TREE"] + "/warm", "w").write(str(os.getpid()))
    print("ready", flush=True)
    time.sleep(600)
with open(sys.argv[sys.argv.index("--out") + 1], "w") as file:
    json.dump({"rows": [{"what": "imitated step", "unit": "tokens/s", "median": 7.0, "samples": [7.0]}]}, file)
"#;

/// A tree with the script and the stand-ins.
struct Tree {
    folder: tempfile::TempDir,
}

fn program(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
}

impl Tree {
    fn new() -> Tree {
        let tree = Tree { folder: tempfile::tempdir().unwrap() };
        for file in ["ci/gpu-check", "ci/gpu/parts.py", "ci/gpu/results.py"] {
            program(&tree.at(file), &std::fs::read_to_string(root().join(file)).unwrap());
        }
        program(&tree.at("ci/gpu/yardstick.py"), YARDSTICK);
        program(&tree.at("bin/nvidia-smi"), NVIDIA_SMI);
        // Its options have a value each, but for --version.
        let sanitizer = "#!/usr/bin/env bash\n[ \"$1\" != --version ] || exit 0\n\
                         while [ \"${1#--}\" != \"$1\" ]; do shift 2; done\nexec \"$@\"\n";
        program(&tree.at("bin/compute-sanitizer"), sanitizer);
        program(&tree.at("bin/c++"), "#!/bin/sh\n");
        program(&tree.at("modules/torch.py"), "");
        tree
    }

    /// One whose pack is there.
    fn packed() -> Tree {
        let tree = Tree::new();
        for name in ["zbench", "kernels", "engine"] {
            program(&tree.at("target/gpu-pack").join(name), PROGRAM);
        }
        std::fs::write(tree.at("target/gpu-pack/commit"), "abc\n").unwrap();
        tree
    }

    fn at(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.at("ci/gpu-check"));
        let path = format!("{}:{}", self.at("bin").display(), std::env::var("PATH").unwrap());
        // Stand-ins take a moment, also on a busy machine: no limit of time is met by chance.
        command
            .args(arguments)
            .env("ZBENCH_GPU_CHECK_SCALE", "20")
            .env("PATH", path)
            .env("TREE", self.folder.path())
            .env("IMITATED", "");
        command.env("OUT", self.at("out")).env("PYTHONPATH", self.at("modules")).stdin(Stdio::null());
        command
    }

    fn run(&self, imitated: &str) -> Output {
        self.command(&["run"]).env("IMITATED", imitated).output().unwrap()
    }

    /// Starts a run that hangs in what has this word, and waits until it does.
    fn hanging(&self, word: &str) -> Child {
        let mut command = self.command(&["run"]);
        command.env("IMITATED", format!("{word}=hang")).stdout(Stdio::null());
        let child = command.spawn().unwrap();
        let begun = Instant::now();
        while !self.at("hung").exists() {
            assert!(begun.elapsed() < Duration::from_secs(120), "nothing hangs");
            std::thread::sleep(Duration::from_millis(20));
        }
        child
    }

    /// The command lines of the packed programs that were called.
    fn calls(&self) -> Vec<String> {
        let calls = std::fs::read_to_string(self.at("calls")).unwrap_or_default();
        calls.lines().map(str::to_string).collect()
    }

    /// What came back: few and small files, the archive unpacked; its facts, which are those beside it.
    fn back(&self) -> (Value, PathBuf) {
        let files: Vec<_> = std::fs::read_dir(self.at("out")).unwrap().map(|file| file.unwrap()).collect();
        assert!(files.len() <= BACK.0, "{files:?}");
        for file in &files {
            let size = file.metadata().unwrap().len();
            assert!(file.metadata().unwrap().is_file() && size < BACK.1, "{file:?} has {size} bytes");
        }
        let unpacked = self.at("unpacked");
        let _ = std::fs::remove_dir_all(&unpacked);
        std::fs::create_dir(&unpacked).unwrap();
        let tar = Command::new("tar").arg("-xzf").arg(self.at("out/results.tar.gz")).arg("-C").arg(&unpacked).output();
        let tar = tar.unwrap();
        assert!(tar.status.success(), "{}", stderr(&tar));
        let facts = std::fs::read_to_string(self.at("out/facts.json")).unwrap();
        (serde_json::from_str(&facts).unwrap(), unpacked.join("results"))
    }
}

/// Names and outcomes of the parts that ended.
fn ended(facts: &Value) -> Vec<(String, String)> {
    let word = |row: &Value, key: &str| row[key].as_str().unwrap().to_string();
    facts["parts"].as_array().unwrap().iter().map(|row| (word(row, "part"), word(row, "outcome"))).collect()
}

fn outcome(facts: &Value, part: &str) -> String {
    let row = facts["parts"].as_array().unwrap().iter().find(|row| row["part"] == part);
    let row = row.unwrap_or_else(|| panic!("no {part} in {facts}"));
    format!("{}: {}", row["outcome"].as_str().unwrap(), row["said"].as_str().unwrap())
}

/// Parts in the order of `list`, with their stage's heading and command.
fn listed() -> Vec<(String, String)> {
    let output = Command::new(root().join("ci/gpu-check")).arg("list").output().expect("python3 runs");
    assert!(output.status.success(), "{}", stderr(&output));
    let text = stdout(&output);
    let parts = text.lines().filter(|line| !line.starts_with('#'));
    let mut words = parts.map(|line| line.splitn(3, ' ').map(str::to_string).collect::<Vec<_>>());
    let mut listed = Vec::new();
    while let Some([name, seconds, command]) = words.next().as_deref() {
        assert!(seconds.parse::<f64>().is_ok_and(|seconds| seconds > 0.0), "{name}");
        listed.push((name.clone(), command.clone()));
    }
    listed
}

fn is_alive(process: &str) -> bool {
    let state = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    state.rsplit(')').next().is_some_and(|rest| !rest.trim().is_empty() && !rest.trim().starts_with('Z'))
}

#[test]
fn a_whole_run_has_its_order_and_three_files() {
    let tree = Tree::packed();
    let output = tree.run("");
    assert_eq!(output.status.code(), Some(0), "{}{}", stdout(&output), stderr(&output));
    let (facts, results) = tree.back();
    // Without what is not done when the measurements begin, everything passed, in the order of the list.
    let mut names: Vec<String> = listed().into_iter().map(|(name, _)| name).collect();
    names.dedup();
    let parts = ended(&facts);
    assert!(parts.iter().all(|(name, how)| how == if name == "pytorch-warm-up" { "stopped" } else { "passed" }));
    let without_warm_up = |name: &&String| *name != "pytorch-warm-up";
    let ended: Vec<&String> = parts.iter().map(|(name, _)| name).filter(without_warm_up).collect();
    assert_eq!(ended, names.iter().filter(without_warm_up).collect::<Vec<_>>());
    let begins =
        "environment smoke-products smoke-attention smoke-attention-hopper smoke-training smoke-parity products";
    assert_eq!(ended[..7].iter().map(|name| name.as_str()).collect::<Vec<_>>().join(" "), begins);
    let place = |name: &str| ended.iter().position(|other| *other == name).unwrap_or_else(|| panic!("no {name}"));
    let order = ["products", "gpt2-124m", "llama-3b", "llama-8b-lora", "pytorch", "racecheck", "synccheck", "nccl"];
    assert!(order.windows(2).all(|pair| place(pair[0]) < place(pair[1])), "{ended:?}");
    let files: BTreeSet<String> = std::fs::read_dir(tree.at("out"))
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(files, ["facts.json", "results.tar.gz", "table.md"].map(String::from).into());
    assert_eq!(
        (&facts["waiting"], &facts["left_out"]),
        (&Value::from(Vec::<u8>::new()), &Value::from(Vec::<u8>::new()))
    );
    assert_eq!((&facts["commit"], &facts["gpus"][0]["name"]), (&"abc".into(), &"Imitated GPU 1".into()));
    // The archive has every log, the records, and what PyTorch gave.
    for name in ended {
        assert!(results.join(format!("{name}.log")).is_file(), "{name}");
    }
    let records = std::fs::read_to_string(results.join("notebook/records.jsonl")).unwrap();
    assert!(records.lines().count() > 10, "{records}");
    let table = std::fs::read_to_string(tree.at("out/table.md")).unwrap();
    for words in ["| gpt2-124m | passed |", "| imitated mfu | 0.5 |", "| imitated step | 7 | tokens/s |"] {
        assert!(table.contains(words), "{words} is missing:\n{table}");
    }
    let again = tree.command(&["table", tree.at("out/results.tar.gz").to_str().unwrap()]).output().unwrap();
    assert_eq!(stdout(&again).trim(), table.trim());
    // What warmed up is gone.
    assert!(!is_alive(&std::fs::read_to_string(tree.at("warm")).unwrap()));
}

#[test]
fn parts_that_are_named_run_alone() {
    let tree = Tree::packed();
    let output = tree.command(&["run", "--only", "nccl,products"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}{}", stdout(&output), stderr(&output));
    let (facts, _) = tree.back();
    let passed = |name: &str| (name.to_string(), "passed".to_string());
    assert_eq!(ended(&facts), [passed("products"), passed("nccl")], "in the order of the list");
    assert!(facts["waiting"].as_array().unwrap().contains(&"kernels".into()));
    let output = tree.command(&["run", "--only", "nccl,prodcts"]).output().unwrap();
    let why = stderr(&output);
    assert!(output.status.code() == Some(2) && why.contains("no part prodcts; ci/gpu-check list prints them"), "{why}");
}

#[test]
fn parts_that_hang_are_cut_and_the_call_ends_in_time() {
    if !is_full_tier() {
        return;
    }
    let tree = Tree::packed();
    let begun = Instant::now();
    // A fiftieth of the time: everything has 11.2 s.
    let mut command = tree.command(&["run"]);
    command.env("IMITATED", "zbench=hang kernels=hang engine=hang").env("ZBENCH_GPU_CHECK_SCALE", "0.02");
    let output = command.output().unwrap();
    let took = begun.elapsed();
    assert!(took >= Duration::from_millis(11_200) && took < Duration::from_secs(120), "{took:?}");
    assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));
    let (facts, results) = tree.back();
    let count = ended(&facts).len();
    let names: BTreeSet<String> = listed().into_iter().map(|(name, _)| name).collect();
    assert_eq!((count, facts["waiting"].as_array().unwrap().len()), (names.len(), 0), "every part is accounted for");
    let products = outcome(&facts, "smoke-products");
    assert!(
        products.starts_with("FAILED: over its time: cut after 0.") && products.contains("before it hangs"),
        "{products}"
    );
    let last = outcome(&facts, "memcheck");
    assert!(last.starts_with("NOT RUN: the time of the whole call was over"), "{last}");
    assert!(ended(&facts).iter().any(|(_, how)| how == "NOT FINISHED"), "{}", facts["parts"]);
    assert!(std::fs::read_to_string(results.join("products.log")).unwrap().contains("before it hangs"));
    let hung = std::fs::read_to_string(tree.at("hung")).unwrap();
    assert!(hung.lines().count() > 5 && !hung.lines().any(is_alive), "no process is left: {hung}");
}

#[test]
fn what_ended_before_a_kill_is_there_and_a_second_call_goes_on() {
    let tree = Tree::packed();
    let mut child = tree.hanging("ci/gpu/llama-3b.toml");
    child.kill().unwrap();
    child.wait().unwrap();
    let (facts, results) = tree.back();
    let before = ended(&facts);
    assert_eq!(before.last().unwrap().0, "gpt2-124m", "{before:?}");
    assert!(before.len() >= 11 && facts["waiting"].as_array().unwrap()[0] == "llama-3b", "{facts}");
    for (name, how) in before.iter().filter(|(name, _)| name != "pytorch-warm-up") {
        assert!(how == "passed" && results.join(format!("{name}.log")).is_file(), "{name}: {how}");
    }
    let hung = std::fs::read_to_string(tree.at("hung")).unwrap();
    let begun = Instant::now();
    while hung.lines().any(is_alive) {
        assert!(begun.elapsed() < Duration::from_secs(20), "the part outlives the call");
        std::thread::sleep(Duration::from_millis(20));
    }
    // The folder that came back is empty at the next call; the rest is run there, and nothing twice.
    std::fs::remove_dir_all(tree.at("out")).unwrap();
    std::fs::remove_file(tree.at("calls")).unwrap();
    let output = tree.run("");
    assert_eq!(output.status.code(), Some(0), "{}", stdout(&output));
    let (facts, _) = tree.back();
    assert!(outcome(&facts, "gpt2-124m").starts_with("passed before") && ended(&facts).len() > before.len());
    let calls = tree.calls();
    assert!(!calls.iter().any(|call| call.contains("gpt2-124m")) && calls[0].contains("llama-3b"), "{calls:?}");
    let mut command = tree.command(&["run", "--again"]);
    assert_eq!(command.output().unwrap().status.code(), Some(0));
    assert!(tree.calls().iter().any(|call| call.contains("gpt2-124m")), "--again runs all of them");
}

#[test]
fn a_kill_at_any_moment_leaves_files_that_can_be_read() {
    if !is_full_tier() {
        return;
    }
    for wait in [0.15, 0.3, 0.5, 0.8, 1.2, 1.7, 2.3] {
        let tree = Tree::packed();
        let mut child = tree.command(&["run"]).stdout(Stdio::null()).spawn().unwrap();
        // Counted from the moment when there is something to read.
        let begun = Instant::now();
        while !tree.at("out/facts.json").exists() {
            assert!(begun.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(Duration::from_secs_f64(wait));
        child.kill().unwrap();
        child.wait().unwrap();
        let (facts, results) = tree.back();
        for (name, _) in ended(&facts) {
            assert!(results.join(format!("{name}.log")).is_file(), "{wait}: {name}");
        }
    }
}

#[test]
fn a_polite_end_keeps_the_results_too() {
    let tree = Tree::packed();
    let mut child = tree.hanging("smoke-none 8192x14336x4096");
    let ended_by = Command::new("kill").arg(child.id().to_string()).status().unwrap();
    assert!(ended_by.success());
    assert_eq!(child.wait().unwrap().code(), Some(128 + 15));
    let (facts, _) = tree.back();
    assert_eq!(facts["waiting"].as_array().unwrap()[0], "products", "{facts}");
    let hung = std::fs::read_to_string(tree.at("hung")).unwrap();
    assert!(!hung.lines().any(is_alive));
}

#[test]
fn exit_statuses_say_what_happened() {
    let tree = Tree::packed();
    let output = tree.run("flash-hopper=unknown gpt2-124m=4 kernels=101");
    assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));
    let (facts, _) = tree.back();
    for part in ["smoke-attention-hopper", "attention-hopper"] {
        let hopper = outcome(&facts, part);
        assert!(hopper.starts_with("FAILED with 1: error: --kernel: \"flash-hopper\" is none of"), "{hopper}");
    }
    assert_eq!(outcome(&facts, "kernels"), "FAILED with 101: said before it ended with 101");
    // zbench ends with 4 where it could measure nothing of what was asked.
    assert_eq!(outcome(&facts, "gpt2-124m"), "NOT RUN: said before it ended with 4");
    assert_eq!(outcome(&facts, "llama-3b"), "passed: ");
    let table = std::fs::read_to_string(tree.at("out/table.md")).unwrap();
    assert!(table.contains("| attention-hopper | FAILED with 1 |"), "{table}");
    // What failed is run again, what passed is not; then nothing failed, and one part could not run.
    let output = tree.run("gpt2-124m=4");
    assert_eq!(output.status.code(), Some(3), "{}", stdout(&output));
    assert_eq!(tree.run("").status.code(), Some(0));
    // Nothing can be compared where PyTorch is missing.
    std::fs::remove_file(tree.at("modules/torch.py")).unwrap();
    let output = tree.command(&["run", "--again"]).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", stdout(&output));
    assert!(outcome(&tree.back().0, "pytorch").starts_with("NOT RUN: PyTorch is not installed"));
}

#[test]
fn nothing_starts_where_nothing_can() {
    let tree = Tree::new();
    for wrong in [&["run", "--agian"][..], &["run", "--only"], &["run", "a", "b"], &["bake"], &[], &["pack", "now"]] {
        let output = tree.command(wrong).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
        assert!(
            stdout(&output).contains("ci/gpu-check run [--again] [--only PART,...] [FOLDER]"),
            "{}",
            stdout(&output)
        );
    }
    let said = |output: Output| (output.status.code(), stderr(&output));
    let (code, why) = said(tree.run(""));
    assert!(code == Some(2) && why.contains("there is no target/gpu-pack.tar.xz"), "{why}");
    std::fs::create_dir_all(tree.at("target")).unwrap();
    std::fs::write(tree.at("target/gpu-pack.tar.xz"), "damaged").unwrap();
    let (code, why) = said(tree.run(""));
    assert!(code == Some(2) && why.contains("cannot be unpacked"), "{why}");
    let (code, why) = said(tree.run("no-gpu"));
    assert!(code == Some(3) && why.contains("No devices were found"), "{why}");
    std::fs::remove_file(tree.at("bin/nvidia-smi")).unwrap();
    if Command::new("nvidia-smi").output().is_err() {
        let (code, why) = said(tree.run(""));
        assert!(code == Some(3) && why.contains("nvidia-smi is missing"), "{why}");
    }
}

#[test]
fn what_is_too_large_is_left_out_by_name() {
    if !is_full_tier() {
        return;
    }
    let tree = Tree::packed();
    // Forty megabytes that no compression makes smaller, of a test's output and of records.
    let notebook = tree.at("target/gpu-check/abc-Imitated_GPU_1/notebook/large.bin");
    let output = tree.run("engine=large");
    assert_eq!(output.status.code(), Some(0), "{}", stdout(&output));
    let (facts, results) = tree.back();
    let log = std::fs::read(results.join("training.log")).unwrap();
    assert!(log.len() < 2 << 20 && String::from_utf8_lossy(&log).contains("bytes are left out"), "{}", log.len());
    assert_eq!(facts["left_out"], Value::from(Vec::<u8>::new()));
    let mut noise = vec![0u8; 20 << 20];
    std::io::Read::read_exact(&mut std::fs::File::open("/dev/urandom").unwrap(), &mut noise).unwrap();
    std::fs::write(&notebook, noise).unwrap();
    assert_eq!(tree.run("").status.code(), Some(0));
    let (facts, results) = tree.back();
    assert_eq!(facts["left_out"], Value::from(vec!["notebook/large.bin"]));
    assert!(results.join("notebook/records.jsonl").is_file());
}

/// The pack of a stand-in of cargo; `limit` bytes are allowed.
fn pack(tree: &Tree, limit: Option<u64>) -> Output {
    let cargo = r#"#!/usr/bin/env bash
set -euo pipefail
mkdir -p target/release
case $1 in
    build) head -c 1500000 /dev/urandom >target/release/noise; cp "$TREE/program" target/release/zbench; { echo; echo "exit 0"; cat target/release/noise; } >>target/release/zbench ;;
    test) name=$(sed 's/.*--test \([a-z_]*\).*/\1/' <<<"$*"); cp "$TREE/program" "target/$name-0123"
        echo '{"reason":"compiler-artifact","executable":null,"target":{"name":"other"}}'
        echo "{\"executable\":\"$PWD/target/$name-0123\",\"target\":{\"name\":\"$name\"}}" ;;
esac
"#;
    program(&tree.at("bin/cargo"), cargo);
    program(&tree.at("bin/strip"), "#!/bin/sh\n");
    program(&tree.at("program"), PROGRAM);
    let mut command = tree.command(&["pack"]);
    command.env_remove("CARGO_TARGET_DIR");
    if let Some(limit) = limit {
        command.env("ZBENCH_GPU_CHECK_PACK_LIMIT", limit.to_string());
    }
    command.current_dir(tree.folder.path()).output().unwrap()
}

#[test]
fn a_pack_is_what_the_other_machine_runs_and_stays_below_its_limit() {
    if !is_full_tier() {
        return;
    }
    let tree = Tree::new();
    let output = pack(&tree, None);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let limit = std::fs::read_to_string(root().join("ci/gpu-check")).unwrap();
    assert!(limit.contains("\"ZBENCH_GPU_CHECK_PACK_LIMIT\", 64 << 20"), "64 MiB where nothing else is said");
    // The other machine has the archive alone.
    std::fs::remove_dir_all(tree.at("target/gpu-pack")).unwrap();
    std::fs::remove_file(tree.at("calls")).unwrap();
    let ran = tree.run("");
    assert_eq!(ran.status.code(), Some(0), "{}{}", stdout(&ran), stderr(&ran));
    assert!(tree.calls().iter().any(|call| call.starts_with("engine comm_nccl::")), "{:?}", tree.calls());
    // Its programs are random numbers for the most part: no archive of them is below a megabyte.
    let output = pack(&tree, Some(1 << 20));
    assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));
    assert!(stderr(&output).contains("more than the 1.0 MiB that travel together"), "{}", stderr(&output));
    assert!(!tree.at("target/gpu-pack.tar.xz").exists(), "what is too large is no archive");
}

#[test]
fn every_part_is_a_command_line_that_its_program_takes() {
    let listed = listed();
    let lines: Vec<&String> =
        listed.iter().map(|(_, line)| line).filter(|line| line.contains("PACK/zbench ")).collect();
    assert!(lines.len() > 15, "{listed:?}");
    for line in &lines {
        let own = &line[line.find("PACK/zbench").unwrap()..];
        assert_eq!(fault(own), None, "{line}");
    }
    for (name, line) in &listed {
        for file in line.split(' ').filter(|word| word.ends_with(".toml") && !word.starts_with("STATE")) {
            let text = std::fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
            assert!(!support::cells(&text).unwrap().is_empty(), "{name}: {file}");
        }
    }
}
