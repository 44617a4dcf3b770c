//! `zbench doctor`: what this machine has, what is missing for which feature, and how to get it.

use super::{print_document, print_lines};
use crate::cli::{Format, Global, exit};
use crate::runner::machine;
use crate::runner::plan::gib;
use anyhow::Result;
use std::path::{Path, PathBuf};
use zbench_reports::document::{Column, Document, Entry, Table, Tone};

struct Finding {
    what: &'static str,
    found: String,
    is_there: bool,
    advice: &'static str,
}

/// Looks, and prints what it finds.
pub fn doctor(global: &Global) -> Result<u8> {
    let findings = findings(&global.notebook);
    if global.format == Format::Json {
        let objects: Vec<_> = findings
            .iter()
            .map(|f| serde_json::json!({ "what": f.what, "found": f.found, "ok": f.is_there, "advice": f.advice }))
            .collect();
        print_lines(&objects)?;
        return Ok(exit::SUCCESS);
    }
    let columns = ["what", "found", "what to do"].map(Column::words);
    let mut table = Table::new("doctor", columns.to_vec());
    for finding in findings {
        let tone = if finding.is_there { Tone::Plain } else { Tone::Warning };
        let advice = if finding.is_there { "" } else { finding.advice };
        table.row(vec![Entry::words(finding.what), Entry::words(finding.found).toned(tone), Entry::words(advice)]);
    }
    let mut document = Document::new("What this machine has");
    document.table(table);
    document.paragraph(
        "Everything of this version runs on the CPU alone; CUDA is looked for because plans for it can be made here.",
    );
    print_document(global, &document)?;
    Ok(exit::SUCCESS)
}

fn findings(notebook: &Path) -> Vec<Finding> {
    let finding = |what, found: Option<String>, advice| {
        let is_there = found.is_some();
        Finding { what, found: found.unwrap_or_else(|| "no".into()), is_there, advice }
    };
    let yes = |there: bool| there.then(|| "yes".to_string());
    let memory = |name| machine::memory_bytes(name).map(gib);
    let simd = zbench_kernels::peak::describe();
    let huge = machine::transparent_huge_pages();
    let mut findings = vec![
        finding("processor", machine::cpu_model(), "/proc/cpuinfo cannot be read; records will not name the processor"),
        finding("cores this process may use", Some(machine::cores().to_string()), ""),
        finding("vector instructions", Some(simd.join(", ")), ""),
        finding(
            "AVX-512",
            yes(simd.contains(&"avx512")),
            "f32 runs on AVX2 or portable code; a server processor of 2017 or later has it",
        ),
        finding(
            "AMX bf16",
            yes(machine::cpu_has("amx_bf16")),
            "bf16 runs by widening to f32; Xeon of the 4th generation or later has it",
        ),
        finding("memory", memory("MemTotal"), "/proc/meminfo cannot be read"),
        finding("memory available", memory("MemAvailable"), "/proc/meminfo cannot be read"),
        Finding {
            what: "transparent huge pages",
            is_there: huge.as_deref().is_some_and(|word| word != "never"),
            found: huge.unwrap_or_else(|| "not stated".into()),
            advice: "large arenas are faster with them: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled, as root",
        },
        finding(
            "disk space for the notebook",
            disk_space(notebook).map(gib),
            "the folder cannot be looked at; name another with --notebook DIR",
        ),
    ];
    let gpu = std::fs::read_to_string("/proc/driver/nvidia/version").ok();
    let driver = gpu.and_then(|text| text.lines().next().map(|line| line.trim().to_string()));
    let mpirun = std::process::Command::new("mpirun").arg("--version").output().ok();
    let mpirun = mpirun.and_then(|output| Some(String::from_utf8_lossy(&output.stdout).lines().next()?.to_string()));
    findings.push(finding(
        "mpirun",
        mpirun,
        "parallel.backend = \"mpi\" starts its ranks with it; install Open MPI or MPICH, or use shm and tcp, which need nothing",
    ));
    findings.push(finding("backend mpi in this build", yes(cfg!(feature = "mpi")), crate::launch::HOW_TO_HAVE_MPI));
    findings.push(finding(
        "NVIDIA driver",
        driver,
        "no GPU can be used; install NVIDIA's driver for your distribution",
    ));
    let libraries = [
        ("libcuda.so.1", "comes with NVIDIA's driver"),
        ("libnvrtc.so", "comes with the CUDA toolkit (package cuda-nvrtc)"),
        ("libcublasLt.so", "comes with the CUDA toolkit (package libcublas)"),
        ("libnccl.so", "install NVIDIA's package libnccl2"),
    ];
    for (library, advice) in libraries {
        findings.push(finding(library, find_library(library).map(|path| path.display().to_string()), advice));
    }
    findings
}

/// Free bytes where the notebook is or will be.
fn disk_space(notebook: &Path) -> Option<u64> {
    let absolute = std::path::absolute(notebook).ok()?;
    let existing = absolute.ancestors().find(|path| path.exists())?;
    let stat = rustix::fs::statvfs(existing).ok()?;
    stat.f_bavail.checked_mul(stat.f_frsize)
}

/// A library by the beginning of its file's name, where loaders look.
fn find_library(name: &str) -> Option<PathBuf> {
    let named = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
    let usual =
        ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/cuda/lib64"];
    let folders = named.split(':').filter(|folder| !folder.is_empty()).chain(usual);
    folders
        .filter_map(|folder| std::fs::read_dir(folder).ok())
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.file_name().is_some_and(|file| file.to_string_lossy().starts_with(name)))
}
