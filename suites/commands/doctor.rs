//! `zbench doctor`: what this machine has, what is missing for which feature, and how to get it.

mod cuda;
mod limits;
mod machine;
mod network;
mod profile;
mod runs;

use super::{open, print_document, print_lines};
use crate::cli::{Format, Global, exit};
use crate::environment::Root;
use anyhow::Result;
use zbench_reports::document::{Column, Document, Entry, Table, Tone};

/// A row: what was looked for, what is there, whether that is good, and what to do where it is not.
#[derive(Debug)]
struct Finding {
    what: String,
    found: String,
    is_there: bool,
    advice: String,
}

impl Finding {
    /// Something that is there or not.
    fn there(what: &str, found: Option<String>, advice: &str) -> Finding {
        let is_there = found.is_some();
        Finding { what: what.into(), found: found.unwrap_or_else(|| "no".into()), is_there, advice: advice.into() }
    }

    /// Something that is there or says why not.
    fn result(what: &str, found: Result<String, String>, advice: &str) -> Finding {
        let is_there = found.is_ok();
        Finding { what: what.into(), found: found.unwrap_or_else(|why| why), is_there, advice: advice.into() }
    }

    /// Something that is fine as it is, or not.
    fn judged(what: &str, found: Option<String>, is_fine: bool, advice: &str) -> Finding {
        let found = found.unwrap_or_else(|| "not stated".into());
        Finding { what: what.into(), found, is_there: is_fine, advice: advice.into() }
    }
}

/// Looks, and prints what it finds.
pub fn doctor(global: &Global) -> Result<u8> {
    let groups = groups(global);
    if global.format == Format::Json {
        let objects: Vec<_> = groups
            .iter()
            .flat_map(|(_, findings)| findings)
            .map(|f| serde_json::json!({ "what": f.what, "found": f.found, "ok": f.is_there, "advice": f.advice }))
            .collect();
        print_lines(&objects)?;
        return Ok(exit::SUCCESS);
    }
    let mut document = Document::new("What this machine has");
    for (name, findings) in groups {
        let has_advice = findings.iter().any(|finding| !finding.is_there);
        let columns = [name, "found", "what to do"].into_iter().take(if has_advice { 3 } else { 2 });
        let mut table = Table::new(name, columns.map(Column::words).collect());
        for finding in findings {
            let tone = if finding.is_there { Tone::Plain } else { Tone::Warning };
            let what = finding.what.strip_prefix(runs::HERE).unwrap_or(&finding.what);
            let mut row = vec![Entry::words(what), Entry::words(finding.found).toned(tone)];
            row.extend(has_advice.then(|| Entry::words(if finding.is_there { String::new() } else { finding.advice })));
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
    Ok(exit::SUCCESS)
}

/// The rows, by what they are about.
fn groups(global: &Global) -> Vec<(&'static str, Vec<Finding>)> {
    let root = Root::system();
    let env = |name: &str| std::env::var(name).ok();
    let host = crate::runner::machine::host_name();
    let cpu = crate::runner::machine::cpu_model();
    let profile = crate::allreduce::profile::default_path(&host);
    let mut here = machine::findings();
    here.extend(limits::places(&global.notebook));
    let mut ranks = network::launchers(&env);
    ranks.push(mpirun());
    ranks.push(Finding::there(
        "backend mpi in this build",
        cfg!(feature = "mpi").then(|| "yes".into()),
        crate::launch::HOW_TO_HAVE_MPI,
    ));
    ranks.extend(network::devices(&root));
    let mut tools = profile::findings(&profile, cpu.as_deref(), jiff::Timestamp::now());
    tools.extend(helpers());
    vec![
        ("machine", here),
        ("steadiness", machine::steadiness(&root)),
        ("limits", limits::findings(&root)),
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

/// Programs that some commands use where they are.
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
