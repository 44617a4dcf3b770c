//! The kernels compiled for GPUs, which needs a compiler and no GPU: NVRTC, found through ZBENCH_CUDA_LIBS.
//!
//! ZBENCH_BLESS=1 writes what each kernel takes to `cuda/usage.csv`; ZBENCH_REQUIRE_NVRTC=1 fails where there is no NVRTC;
//! ZBENCH_KEEP_KERNELS=FOLDER keeps the compiled kernels there, for a machine with a GPU that need not compile them then.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use zbench_kernels::cuda::gpu::{Nvrtc, Probe, Search, Target, Usage, dotted, obtain, options};
use zbench_kernels::cuda::host::Order;
use zbench_kernels::cuda::sources::{SOURCES, Source};
use zbench_kernels::memory::device::Device;
use zbench_test_tiers as tiers;

/// Capabilities of Ampere and Hopper: the oldest that the kernels are for, and the one that has sources of its own.
const CAPABILITIES: [(u32, u32); 2] = [(8, 0), (9, 0)];

fn set(variable: &str) -> bool {
    std::env::var_os(variable).is_some_and(|value| value == "1")
}

/// The compiler; none where there is none and none is asked for.
fn nvrtc() -> Option<Nvrtc> {
    match Nvrtc::load(&Search::new(|name| std::env::var_os(name)), None) {
        Ok(nvrtc) => Some(nvrtc),
        Err(absent) if set("ZBENCH_REQUIRE_NVRTC") => panic!("ZBENCH_REQUIRE_NVRTC is set: {absent}"),
        Err(absent) => {
            println!("NOT RUN: {absent}");
            None
        }
    }
}

fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    folder
}

/// What a source's kernels take.
fn usage(nvrtc: &Nvrtc, source: &Source, target: &Target) -> Vec<Usage> {
    let folder = std::env::var_os("ZBENCH_KEEP_KERNELS").map(PathBuf::from);
    let obtained = obtain(nvrtc, folder.as_deref(), source, target).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(obtained.not_kept, None);
    let compiled = obtained.compiled;
    assert_eq!(&compiled.cubin[..4], b"\x7fELF", "{}", source.name);
    compiled.usage()
}

/// What every kernel of every source takes, by architecture and name.
fn compiled(nvrtc: &Nvrtc) -> BTreeMap<(String, String), Usage> {
    let test = "compile::every_kernel_compiles_without_spills_and_takes_what_is_noted (architectures)";
    let count = if set("ZBENCH_BLESS") { 2 } else { tiers::cases(test, [1, 1, 2]) };
    let targets: Vec<Target> =
        CAPABILITIES.iter().rev().take(count as usize).map(|capability| Target::of(*capability).unwrap()).collect();
    let work: Vec<(&Target, &Source)> =
        targets.iter().flat_map(|target| SOURCES.iter().map(move |source| (target, source))).collect();
    let work: Vec<_> = work.into_iter().filter(|(target, source)| target.takes(source)).collect();
    // As many at a time as there are cores: each takes some hundred MB.
    let (next, workers) = (AtomicUsize::new(0), std::thread::available_parallelism().map_or(2, usize::from));
    let done: Vec<(usize, Vec<Usage>)> = std::thread::scope(|scope| {
        let worker = || {
            let take = || Some(next.fetch_add(1, Ordering::Relaxed)).filter(|i| *i < work.len());
            std::iter::from_fn(take).map(|i| (i, usage(nvrtc, work[i].1, work[i].0))).collect::<Vec<_>>()
        };
        let threads: Vec<_> = (0..workers).map(|_| scope.spawn(worker)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let mut all = BTreeMap::new();
    for (i, usage) in done {
        let (target, source) = work[i];
        let names: Vec<&str> = usage.iter().map(|usage| usage.kernel.as_str()).collect();
        let mut exported: Vec<&str> = source.kernels().collect();
        exported.sort_unstable();
        assert_eq!(names, exported, "{}.cu for {}: what was compiled is what is exported", source.name, target.name());
        all.extend(usage.into_iter().map(|usage| ((target.name().to_owned(), usage.kernel.clone()), usage)));
    }
    for target in &targets {
        let count = all.keys().filter(|(name, _)| name == target.name()).count();
        println!("{count} kernels compiled for {} by NVRTC {}", target.name(), dotted(nvrtc.version()));
    }
    all
}

const HEADER: &str = "architecture,kernel,registers,shared bytes,stack bytes";

fn table(nvrtc: &Nvrtc, all: &BTreeMap<(String, String), Usage>) -> String {
    let mut text = format!("# NVRTC {}\n{HEADER}\n", dotted(nvrtc.version()));
    for ((target, kernel), Usage { registers, shared, stack, .. }) in all {
        writeln!(text, "{target},{kernel},{registers},{shared},{stack}").unwrap();
    }
    text
}

#[test]
fn every_kernel_compiles_without_spills_and_takes_what_is_noted() {
    let Some(nvrtc) = nvrtc() else { return };
    let all = compiled(&nvrtc);
    let spilling: Vec<_> = all.iter().filter(|(_, usage)| usage.spills()).collect();
    assert!(spilling.is_empty(), "registers do not suffice: {spilling:#?}");

    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../cuda/usage.csv");
    let now = table(&nvrtc, &all);
    if set("ZBENCH_BLESS") {
        std::fs::write(&path, now).unwrap();
        return;
    }
    let noted = std::fs::read_to_string(&path).unwrap_or_default();
    // Without the architectures that the short form does not compile.
    let is_compiled = |line: &str| {
        let row = line.split_once(',').map(|(architecture, _)| architecture);
        row.is_none_or(|architecture| all.keys().any(|(compiled, _)| compiled == architecture))
    };
    let mut lines: Vec<&str> = noted.lines().collect();
    lines.retain(|line| *line == HEADER || is_compiled(line));
    let noted = lines.join("\n") + "\n";
    let (version, mine) = (noted.lines().next().unwrap_or_default(), now.lines().next().unwrap_or_default());
    if version != mine {
        println!("usage.csv is of {version:?}, this is {mine:?}: only errors and spills count");
        return;
    }
    let differing = |a: &str, b: &str| {
        a.lines().filter(|line| !b.lines().any(|other| other == *line)).collect::<Vec<_>>().join("\n")
    };
    let (gone, new) = (differing(&noted, &now), differing(&now, &noted));
    assert!(noted == now, "what kernels take has changed; ZBENCH_BLESS=1 notes it.\nnoted:\n{gone}\nnow:\n{new}");
}

#[test]
fn the_probe_tells_the_compiler_and_what_is_missing_beside_it() {
    let Some(nvrtc) = nvrtc() else { return };
    let probe = Probe::new(&Search::new(|name| std::env::var_os(name)));
    let said = probe.to_string();
    println!("{said}");
    assert!(said.contains(&format!("NVRTC: {}, {}", dotted(nvrtc.version()), nvrtc.path().display())), "{said}");
    assert_eq!(probe.driver.is_err(), said.contains("the CUDA driver was not found. Tried:"));
    assert!(probe.driver.is_ok() || probe.devices.is_err());
}

#[test]
fn the_host_runs_all_kernels_but_hoppers() {
    let host = crate::harness::host(Order::Forward);
    let of = |hopper: bool| -> Vec<&str> {
        SOURCES.iter().filter(|source| source.hopper == hopper).flat_map(Source::kernels).collect()
    };
    let (plain, hopper) = (of(false), of(true));
    host.load(&plain).unwrap();
    for kernel in &hopper {
        assert!(host.load(&[kernel]).is_err(), "{kernel} uses instructions that nothing imitates on a processor");
    }
    println!("{} kernels in all sources", plain.len() + hopper.len());
    println!("{} kernels run on the host", plain.len());
    println!("{} kernels of Hopper's own: {hopper:?}", hopper.len());
}

#[test]
fn code_is_kept_on_disk_and_compiled_again_where_that_is_damaged() {
    let Some(nvrtc) = nvrtc() else { return };
    let folder = scratch("cubins");
    let source = Source { name: "tiny", text: TINY, hopper: false };
    let target = Target::of((9, 0)).unwrap();
    let first = obtain(&nvrtc, Some(&folder), &source, &target).unwrap();
    assert!(!first.cached && first.not_kept.is_none());
    let again = || obtain(&nvrtc, Some(&folder), &source, &target).unwrap();
    assert!(again().cached && again().compiled == first.compiled);

    let file = std::fs::read_dir(&folder).unwrap().next().unwrap().unwrap().path();
    let whole = std::fs::read(&file).unwrap();
    let mut flipped = whole.clone();
    *flipped.last_mut().unwrap() ^= 1;
    for damaged in [&whole[..whole.len() / 2], &flipped, b""] {
        std::fs::write(&file, damaged).unwrap();
        let made = again();
        assert!(!made.cached && made.compiled.usage() == first.compiled.usage());
        assert!(again().cached, "it was written again");
    }
    // Another architecture, and another text, are other code.
    assert!(!obtain(&nvrtc, Some(&folder), &source, &Target::of((8, 0)).unwrap()).unwrap().cached);
    let other = Source {
        text: concat!(
            "// another\n#include \"prelude.h\"\n",
            "extern \"C\" __global__ void __launch_bounds__(32) tiny() {}\nEXPORT(tiny)\n"
        ),
        ..source
    };
    assert!(!obtain(&nvrtc, Some(&folder), &other, &target).unwrap().cached);
    // Without a folder, and with one that cannot be, it is compiled all the same.
    assert!(obtain(&nvrtc, None, &source, &target).unwrap().not_kept.is_none());
    let nowhere = obtain(&nvrtc, Some(Path::new("/proc/self/nowhere")), &source, &target).unwrap();
    assert!(nowhere.not_kept.unwrap().contains("/proc/self/nowhere"));
    std::fs::remove_dir_all(&folder).unwrap();
}

const TINY: &str = "#include \"prelude.h\"\n\
    extern \"C\" __global__ void __launch_bounds__(32) tiny(Run x) { store(x, threadIdx.x, 1); }\nEXPORT(tiny)\n";

#[test]
fn starts_at_the_same_time_share_a_folder() {
    let Some(nvrtc) = nvrtc() else { return };
    let (folder, nvrtc) = (scratch("shared-cubins"), Arc::new(nvrtc));
    let source = Source { name: "tiny", text: TINY, hopper: false };
    let target = Target::of((8, 9)).unwrap();
    let threads: Vec<_> = (0..6)
        .map(|_| {
            let (folder, nvrtc, target) = (folder.clone(), nvrtc.clone(), target.clone());
            std::thread::spawn(move || obtain(&nvrtc, Some(&folder), &source, &target).unwrap())
        })
        .collect();
    for thread in threads {
        let obtained = thread.join().unwrap();
        assert_eq!((obtained.not_kept, obtained.compiled.usage()[0].kernel.as_str()), (None, "tiny"));
    }
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1, "one file, and nothing half written");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn the_compilers_words_come_out() {
    let Some(nvrtc) = nvrtc() else { return };
    let target = Target::of((8, 0)).unwrap();
    let refused = |text| {
        let error = nvrtc.compile(&Source { name: "wrong", text, hopper: false }, &target).unwrap_err();
        (error.to_string(), error)
    };
    let (words, error) =
        refused("#include \"prelude.h\"\nextern \"C\" __global__ void __launch_bounds__(32) wrong() { nonsense(); }\n");
    assert!(words.contains("wrong.cu(2)") && words.contains("\"nonsense\" is undefined"), "{words}");
    assert_eq!((error.source_name.as_str(), error.target.as_str()), ("wrong.cu", "sm_80"));
    let (words, _) = refused("#include <cuda_bf16.h>\n");
    assert!(words.contains("cuda_bf16.h"), "kernels are given the prelude and nothing else: {words}");
    let (words, _) = refused("text with\0a zero");
    assert!(words.contains("nul byte"), "{words}");
    let hopper = Source { name: "hopper", text: TINY, hopper: true };
    assert!(nvrtc.compile(&hopper, &target).unwrap_err().to_string().contains("only sm_90a"));
    // Instructions of Hopper's own are refused for others by the compiler itself.
    let text = "extern \"C\" __global__ void w() { asm volatile(\"wgmma.fence.sync.aligned;\"); }";
    assert!(refused(text).0.contains("sm_80"));
    let source = Source { name: "w", text, hopper: true };
    nvrtc.compile(&source, &Target::of((9, 0)).unwrap()).unwrap();
}

#[test]
fn spills_and_shared_memory_are_read_from_the_compilers_log() {
    let Some(nvrtc) = nvrtc() else { return };
    // 300 values that all live across a barrier, in blocks of which registers allow 64 a thread.
    let text = "#include \"prelude.h\"\n\
        extern \"C\" __global__ void __launch_bounds__(1024) spills(float *x) {\n\
            SHARED(float, aside, 96);\n\
            float v[300];\n\
            UNROLL for (int i = 0; i < 300; i++) v[i] = x[i * 1024 + threadIdx.x];\n\
            aside[threadIdx.x % 96] = v[0];\n\
            __syncthreads();\n\
            UNROLL for (int i = 0; i < 300; i++) x[i * 1024 + threadIdx.x] = v[i] * v[299 - i] + aside[i % 96];\n\
        }\n";
    for capability in CAPABILITIES {
        let target = Target::of(capability).unwrap();
        let compiled = nvrtc.compile(&Source { name: "spills", text, hopper: false }, &target).unwrap();
        let usage = compiled.usage();
        assert_eq!(usage.len(), 1, "{}", compiled.log);
        assert!(usage[0].spills() && usage[0].shared == 384 && usage[0].registers == 64, "{usage:?}\n{}", compiled.log);
    }
}

#[test]
fn devices_that_are_not_here_can_be_compiled_for() {
    let Some(nvrtc) = nvrtc() else { return };
    let source = Source { name: "tiny", text: TINY, hopper: false };
    for capability in [(8, 6), (8, 9), (10, 0), (10, 3), (12, 0)] {
        let target = Target::of(capability).unwrap();
        let usage = nvrtc.compile(&source, &target).unwrap_or_else(|error| panic!("{error}")).usage();
        assert_eq!(usage.len(), 1, "{:?}", options(&target));
    }
}
