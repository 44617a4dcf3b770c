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

/// Files of this repository that a script names.
fn named(script: &str) -> Vec<PathBuf> {
    let words = script.split(|c: char| c.is_whitespace() || "\"':;()".contains(c));
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
