//! `zbench doctor`: what this machine has, what is missing for which feature, and how to get it.

mod cuda;
mod launch;
mod limits;
mod machine;
mod network;
mod profile;
mod runs;

use super::{open, print_document, print_lines, print_screen, room};
use crate::{Format, Global};
use anyhow::Result;
use serde::{Deserialize, Serialize};
use zbench_host::environment::Root;
use zbench_host::exit;
use zbench_reports::document::{Column, Document, Entry, Table, Tone};
use zbench_reports::screen::{Screen, fitting};

/// A row: what was looked for, what was found, whether that is good, and what to do if it is not.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Finding {
    what: String,
    found: String,
    is_there: bool,
    /// Whether commands fail without it. Other things only cost speed, a metric, or one of several backends.
    is_needed: bool,
    advice: String,
}

impl Finding {
    /// Something that is there or not.
    fn there(what: &str, found: Option<String>, advice: &str) -> Finding {
        Finding::judged(what, Some(found.clone().unwrap_or_else(|| "no".into())), found.is_some(), advice)
    }

    /// Something that is there or says why not.
    fn result(what: &str, found: Result<String, String>, advice: &str) -> Finding {
        let is_there = found.is_ok();
        Finding::judged(what, Some(found.unwrap_or_else(|why| why)), is_there, advice)
    }

    /// Something that is fine as it is, or not.
    fn judged(what: &str, found: Option<String>, is_fine: bool, advice: &str) -> Finding {
        let found = found.unwrap_or_else(|| "not stated".into());
        Finding { what: what.into(), found, is_there: is_fine, is_needed: false, advice: advice.into() }
    }

    /// Marks something without which commands fail.
    fn needed(self, is_needed: bool) -> Finding {
        Finding { is_needed, ..self }
    }

    /// What to do; empty if all is well.
    fn advice(&self) -> &str {
        if self.is_there { "" } else { &self.advice }
    }
}

/// The summary of all rows, and the exit code.
fn summary<'f>(findings: impl Iterator<Item = &'f Finding>) -> (String, u8) {
    let (needed, optional): (Vec<&Finding>, Vec<&Finding>) =
        findings.filter(|finding| !finding.is_there).partition(|finding| finding.is_needed);
    let names: Vec<&str> = needed.iter().map(|finding| finding.what.as_str()).collect();
    let rest = match optional.len() {
        0 => "Nothing optional is missing.".to_string(),
        1 => "1 optional thing is missing or hinders.".to_string(),
        count => format!("{count} optional things are missing or hinder."),
    };
    match needed.len() {
        0 => (format!("Nothing that zbench needs is missing. {rest}"), exit::SUCCESS),
        _ => (format!("Needed and not in order: {}. {rest}", names.join(", ")), exit::NOT_MEASURED),
    }
}

/// The summary and everything that is missing or hinders, needed things first.
fn screen(summary: &str, groups: &[(&'static str, Vec<Finding>)]) -> Screen {
    let mut screen = Screen::default();
    screen.said("ANSWER", summary, 3);
    listed(&mut screen, groups.iter().flat_map(|(_, findings)| findings));
    screen.said("MORE", "zbench doctor --full shows everything that was looked for.", 1);
    screen
}

/// Adds what is missing or hinders, needed things first.
fn listed<'f>(screen: &mut Screen, findings: impl Iterator<Item = &'f Finding> + Clone) {
    for needed in [true, false] {
        for finding in findings.clone().filter(|finding| !finding.is_there && finding.is_needed == needed) {
            let what = finding.what.strip_prefix(runs::HERE).unwrap_or(&finding.what);
            let label = if needed { "NEEDED" } else { "OPTIONAL" };
            screen.said(label, format!("{what}: {}. {}.", finding.found.trim_end_matches('.'), finding.advice()), 2);
        }
    }
}

/// Looks, and prints what it finds.
pub fn doctor(global: &Global) -> Result<u8> {
    let groups = groups(global);
    let (summary, code) = summary(groups.iter().flat_map(|(_, findings)| findings));
    if global.format == Format::Json {
        let host = zbench_host::machine::host_name();
        let object = |what: &str, found: &str, ok: bool, needed: bool, advice: &str| serde_json::json!({ "host": host, "what": what, "found": found, "ok": ok, "needed": needed, "advice": advice });
        let rows = groups.iter().flat_map(|(_, findings)| findings);
        let mut objects: Vec<_> =
            rows.map(|f| object(&f.what, &f.found, f.is_there, f.is_needed, f.advice())).collect();
        let is_fine = code == exit::SUCCESS;
        let advice = if is_fine { "" } else { "do what the rows advise that are needed and not ok" };
        objects.push(object("summary", &summary, is_fine, true, advice));
        print_lines(&objects)?;
        return Ok(code);
    }
    let mut document = Document::new("What this machine has");
    if global.format == Format::Table && !global.full {
        let env = |name: &str| std::env::var(name).ok();
        if let Some(world) = zbench_launch::detect(&env).ok().flatten().filter(|world| world.size > 1) {
            let needed = groups.into_iter().flat_map(|(_, findings)| findings).filter(|finding| finding.is_needed);
            let network = network::launchers(&env).into_iter().chain(network::devices(&Root::system()));
            let optional = network.filter(|finding| !finding.is_needed);
            let faults = needed.chain(optional).filter(|finding| !finding.is_there);
            return launch::doctor(global, &world, faults.collect());
        }
        document.screen = Some(fitting(room(global), 0, 0, |_| screen(&summary, &groups)));
        return print_screen(global, &document).map(|()| code);
    }
    document.paragraph(summary);
    for (name, findings) in groups {
        let has_advice = findings.iter().any(|finding| !finding.is_there);
        let columns = [name, "found", "what to do"].into_iter().take(if has_advice { 3 } else { 2 });
        let mut table = Table::new(name, columns.map(Column::words).collect());
        for finding in findings {
            let tone = if finding.is_there { Tone::Plain } else { Tone::Warning };
            let what = finding.what.strip_prefix(runs::HERE).unwrap_or(&finding.what);
            let mut row = vec![Entry::words(what), Entry::words(&finding.found).toned(tone)];
            let mark = if finding.is_needed && !finding.is_there { "needed: " } else { "" };
            row.extend(has_advice.then(|| Entry::words(format!("{mark}{}", finding.advice()))));
            table.row(row);
        }
        document.table(table);
    }
    document.paragraph(
        "Everything but cells with hardware.device = \"cuda\" runs on the CPU alone. CUDA's libraries are looked for in the folders \
         of ZBENCH_CUDA_LIBS (a folder into which pip has installed them will do), CUDA_HOME and VIRTUAL_ENV, then where the \
         system looks.",
    );
    print_document(global, &document)?;
    Ok(code)
}

/// The rows, grouped by topic.
fn groups(global: &Global) -> Vec<(&'static str, Vec<Finding>)> {
    let root = Root::system();
    let env = |name: &str| std::env::var(name).ok();
    let host = zbench_host::machine::host_name();
    let cpu = zbench_host::machine::cpu_model();
    let profile = zbench_config::profile::default_path(&host);
    let mut here = machine::findings();
    here.extend(limits::places(&global.notebook));
    let mut ranks = network::launchers(&env);
    ranks.push(mpirun());
    ranks.push(Finding::there(
        "backend mpi in this build",
        cfg!(feature = "mpi").then(|| "yes".into()),
        zbench_launch::HOW_TO_HAVE_MPI,
    ));
    ranks.extend(network::devices(&root));
    let mut tools = profile::findings(&profile, cpu.as_deref(), jiff::Timestamp::now());
    tools.extend(helpers());
    vec![
        ("machine", here),
        ("steadiness", machine::steadiness(&root)),
        ("limits", limits::findings(&root, cuda::has_gpus())),
        ("ranks as processes", ranks),
        ("GPUs", cuda::findings()),
        ("profile and tools", tools),
        ("what runs here", runs::findings()),
    ]
}

fn mpirun() -> Finding {
    let mpirun = std::process::Command::new("mpirun").arg("--version").output().ok();
    let mpirun = mpirun.and_then(|output| Some(String::from_utf8_lossy(&output.stdout).lines().next()?.to_string()));
    Finding::there(
        "mpirun",
        mpirun,
        "parallel.backend = \"mpi\" starts its ranks with it; install Open MPI or MPICH, or use shm and tcp, which need nothing",
    )
}

/// Programs that some commands use if they exist.
fn helpers() -> Vec<Finding> {
    let env = |name: &str| std::env::var(name).ok();
    let ways = open::ways(&env, &open::is_program, cfg!(target_os = "macos"));
    let compiler = open::is_program("c++").then(|| "yes".to_string());
    vec![
        Finding::there(
            "browser for report --open",
            ways.first().map(|words| words.join(" ")),
            "the page is written and its place printed; name a browser in BROWSER to have it opened",
        ),
        Finding::there(
            "C++ compiler (c++)",
            compiler,
            "only checks of the GPU kernels on this processor want it (ZBENCH_CUDA_ON_HOST=1)",
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_needed_and_missing_changes_the_exit_code() {
        let row = |what: &str, is_there: bool, is_needed: bool| {
            Finding::judged(what, Some("x".into()), is_there, "mend it").needed(is_needed)
        };
        let of = |rows: &[Finding]| summary(rows.iter());
        let fine = [row("a", true, true), row("b", true, false)];
        assert_eq!(of(&fine), ("Nothing that zbench needs is missing. Nothing optional is missing.".into(), 0));
        let optional = [row("a", true, true), row("b", false, false)];
        let words = "Nothing that zbench needs is missing. 1 optional thing is missing or hinders.";
        assert_eq!(of(&optional), (words.into(), 0));
        let missing = [row("a", false, true), row("b", false, false), row("c", false, false), row("d", false, true)];
        let words = "Needed and not in order: a, d. 2 optional things are missing or hinder.";
        assert_eq!(of(&missing), (words.into(), exit::NOT_MEASURED));
        assert_eq!((missing[0].advice(), fine[0].advice()), ("mend it", ""));
    }
}
