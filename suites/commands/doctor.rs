//! `zbench doctor`: what this machine has, what is missing for which feature, and how to get it.

use super::{print_document, print_lines};
use crate::cli::{Format, Global, exit};
use crate::environment::root::kib_line;
use crate::environment::{Root, container, cpu};
use crate::runner::plan::gib;
use crate::runner::{machine, sampling};
use anyhow::Result;
use std::path::Path;
use zbench_engine::comm::nccl::{self, Api, NcclError};
use zbench_kernels::cuda::gpu::Absent;
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
        "Everything but cells with hardware.device = \"cuda\" runs on the CPU alone. CUDA's libraries are looked for in the folders \
         of ZBENCH_CUDA_LIBS (a folder into which pip has installed them will do), CUDA_HOME and VIRTUAL_ENV, then where the \
         system looks.",
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
            yes(simd.contains(&"amx-bf16")),
            "Xeon of the 4th generation or later has it, and Linux 5.16 or later grants it",
        ),
        finding("products of bf16 run by", simd.last().map(|name| (*name).into()), ""),
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
    findings.extend(steadiness(&Root::system()));
    let mpirun = std::process::Command::new("mpirun").arg("--version").output().ok();
    let mpirun = mpirun.and_then(|output| Some(String::from_utf8_lossy(&output.stdout).lines().next()?.to_string()));
    findings.push(finding(
        "mpirun",
        mpirun,
        "parallel.backend = \"mpi\" starts its ranks with it; install Open MPI or MPICH, or use shm and tcp, which need nothing",
    ));
    findings.push(finding("backend mpi in this build", yes(cfg!(feature = "mpi")), crate::launch::HOW_TO_HAVE_MPI));
    findings.extend(cuda());
    findings
}

/// Why a library was not taken: what the user named, or what was found and is none, and nothing of where the system looks.
fn why_absent(absent: &Absent) -> String {
    let Absent::NotFound { tried, .. } = absent else { return absent.to_string() };
    let named = tried.iter().filter(|attempt| attempt.place.components().count() > 1);
    let reasons: Vec<String> = named.map(ToString::to_string).collect();
    if reasons.is_empty() { "no".into() } else { format!("no: {}", reasons.join("; ")) }
}

/// The same of NCCL, which is tried by every name in every folder.
fn why_no_nccl(error: &NcclError) -> String {
    let NcclError::NotFound { tried } = error else { return error.to_string() };
    let found: Vec<String> = tried.iter().filter(|attempt| attempt.place.is_file()).map(ToString::to_string).collect();
    if found.is_empty() { "no".into() } else { format!("no: {}", found.join("; ")) }
}

/// The parts that a cell on a GPU needs, as they were loaded.
fn cuda() -> Vec<Finding> {
    use zbench_kernels::cuda::gpu::{Nvml, Search, dotted};
    let probe = crate::devices::probe();
    let row = |what, found: Result<String, String>, advice| Finding {
        what,
        is_there: found.is_ok(),
        found: found.unwrap_or_else(|why| why),
        advice,
    };
    let driver = probe.driver.as_ref().map_err(why_absent);
    let driver = driver.map(|driver| format!("CUDA {}, {}", dotted(driver.version()), driver.path().display()));
    let nvrtc = probe.nvrtc.as_ref().map_err(why_absent);
    let nvrtc = nvrtc.map(|nvrtc| format!("{}, {}", dotted(nvrtc.version()), nvrtc.path().display()));
    let cublaslt = probe.cublaslt.as_ref().map_err(why_absent);
    let cublaslt = cublaslt.map(|library| format!("{}, {}", library.dotted(), library.path().display()));
    let nvtx = probe.nvtx.as_ref().map_err(why_absent).map(|nvtx| nvtx.path().display().to_string());
    let nvml = Nvml::load(&Search::new(|name| std::env::var_os(name)));
    let nvml = nvml.as_ref().map_err(why_absent).map(|nvml| nvml.path().display().to_string());
    let nccl = Api::load(&nccl::Search::new(|name| std::env::var_os(name)));
    let nccl = nccl.map(|api| format!("{}, {}", nccl::dotted(api.version()), api.path().display()));
    let mut rows = vec![
        row("CUDA driver", driver, "no GPU can be used; install NVIDIA's driver for your distribution"),
        row(
            "NVRTC",
            nvrtc,
            "compiles the kernels of GPUs; pip install nvidia-cuda-nvrtc, and name the folder in ZBENCH_CUDA_LIBS",
        ),
        row(
            "cuBLASLt",
            cublaslt,
            "without it products on GPUs are our own, and slower; pip install nvidia-cublas, as above",
        ),
        row(
            "NCCL",
            nccl.map_err(|error| why_no_nccl(&error)),
            "for parallel.backend = \"nccl\"; pip install nvidia-nccl-cu13, as above, or install NVIDIA's package libnccl2",
        ),
        row("NVML", nvml, "clocks, power and energy of GPUs; it comes with the driver"),
        row("NVTX", nvtx, "names of spans for profilers, which nothing else needs; pip install nvidia-nvtx, as above"),
    ];
    if crate::devices::on_host() {
        let found = format!("{}=1: cells for GPUs run on this processor", crate::devices::ON_HOST);
        rows.push(row("CUDA on the host", Ok(found), ""));
    }
    match &probe.devices {
        Ok(devices) => rows.extend(devices.iter().map(|device| row("GPU", Ok(device.to_string()), ""))),
        Err(absent) if probe.driver.is_ok() => rows.push(Finding {
            what: "GPU",
            found: absent.to_string(),
            is_there: false,
            advice: "see what nvidia-smi says, and CUDA_VISIBLE_DEVICES",
        }),
        Err(_) => {}
    }
    rows
}

/// What decides whether two measurements here can be compared, and what of it can be seen.
fn steadiness(root: &Root) -> Vec<Finding> {
    let row = |what, found: Option<String>, is_fine: bool, advice| Finding {
        what,
        found: found.unwrap_or_else(|| "not stated".into()),
        is_there: is_fine,
        advice,
    };
    let state = cpu::clocks(root);
    let governor = state.get("governor").and_then(|word| word.as_str()).map(str::to_string);
    let turbo = cpu::turbo(root);
    let quota = container::cpu_quota(root);
    let container = container::container(root);
    let virtualisation = container::virtualisation(root);
    let swap = root.text("proc/meminfo").and_then(|text| kib_line(&text, "SwapTotal"));
    let [clock, throttling, temperature, energy] = sampling::what_can_be_read(root).map(|(_, found)| found);
    let with = |found: Option<String>, none: &str| Some(found.unwrap_or_else(|| none.into()));
    let pressure = root.text("proc/pressure/memory").map(|_| "readable".to_string());
    vec![
        row(
            "frequency governor",
            governor.clone(),
            governor.as_deref().is_none_or(|word| word == "performance"),
            "clocks follow the load: cpupower frequency-set -g performance, as root, for steadier times",
        ),
        row(
            "turbo",
            turbo.map(|on| if on { "on" } else { "off" }.to_string()),
            turbo != Some(true),
            "clocks depend on heat and neighbours: echo 1 > /sys/devices/system/cpu/intel_pstate/no_turbo, or 0 > \
             /sys/devices/system/cpu/cpufreq/boost, as root, for steadier times",
        ),
        row("clock", clock.clone(), clock.is_some(), "records will not state clocks"),
        row(
            "throttling counters",
            throttling.clone(),
            throttling.is_some(),
            "heat cannot be told from other causes here (usual in virtual machines): no trial is flagged `throttled`",
        ),
        row(
            "temperature",
            temperature.clone(),
            temperature.is_some(),
            "load coretemp or k10temp; virtual machines have none",
        ),
        row(
            "energy counters",
            energy.clone(),
            energy.is_some(),
            "joules_per_token is not stated: chmod o+r /sys/class/powercap/intel-rapl*/energy_uj, as root; virtual machines \
             have none",
        ),
        row("memory pressure", pressure.clone(), pressure.is_some(), "boot with psi=1 to have it in records"),
        row(
            "swap",
            swap.map(|bytes| if bytes == 0 { "none".into() } else { gib(bytes) }),
            swap.is_none_or(|bytes| bytes == 0),
            "trials that swap are flagged; swapoff -a, as root, makes lack of memory an outcome instead",
        ),
        row(
            "processor quota",
            with(quota.map(|cores| format!("{cores} cores")), "none"),
            quota.is_none(),
            "the control group stops all threads when it is used up: give as many whole cores as threads (cpuset) instead",
        ),
        row("container", with(container, "none seen"), true, ""),
        row(
            "hypervisor",
            with(virtualisation.clone(), "none seen"),
            virtualisation.is_none(),
            "neighbours may take the cores: trials that lose over 5 % of them are flagged `stolen`",
        ),
    ]
}

/// Free bytes where the notebook is or will be.
fn disk_space(notebook: &Path) -> Option<u64> {
    let absolute = std::path::absolute(notebook).ok()?;
    let existing = absolute.ancestors().find(|path| path.exists())?;
    let stat = rustix::fs::statvfs(existing).ok()?;
    stat.f_bavail.checked_mul(stat.f_frsize)
}
