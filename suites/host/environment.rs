//! Where a record was made: the machine, its system, this program. Everything is read from files below a [`Root`], so
//! that tests can describe a machine of their own. What cannot be read is absent, never guessed.
//!
//! `zbench_reports::environment` sorts the outermost names into hardware, software and state.

pub mod container;
pub mod cpu;
pub mod devices;
pub mod root;
pub mod variables;

pub use root::Root;

use serde_json::{Map, Value, json};
use std::sync::OnceLock;
use zbench_reports::redact::host_hash;

/// What is not in files. The caller states it, so that [`capture`] depends on its arguments alone.
#[derive(Clone, Debug, Default)]
pub struct Process {
    /// Cores that this process, or its launch on this host, may use.
    pub cores: usize,
    /// Vector instructions that the kernels can use.
    pub simd: Vec<&'static str>,
    /// Environment variables.
    pub variables: Vec<(String, String)>,
    /// Hash of the program's file.
    pub binary: Option<String>,
    /// What the program was built from.
    pub build: BuildInfo,
}

/// This process's environment, read once: a thread that is bound to a core later sees fewer cores.
pub fn of_this_process() -> Map<String, Value> {
    static CAPTURED: OnceLock<Map<String, Value>> = OnceLock::new();
    let capture_now = || {
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned())
        };
        let process = Process {
            cores: crate::machine::cores(),
            simd: zbench_kernels::cpu::peak::describe(),
            variables: std::env::vars_os().map(text).collect(),
            binary: binary_hash(std::path::Path::new("/proc/self/exe")),
            build: BUILD.get().copied().unwrap_or_default(),
        };
        capture(&Root::system(), &process)
    };
    CAPTURED.get_or_init(capture_now).clone()
}

/// The first 16 hexadecimal digits of a file's blake3 hash.
pub fn binary_hash(path: &std::path::Path) -> Option<String> {
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(std::fs::File::open(path).ok()?).ok()?;
    Some(hasher.finalize().to_hex()[..16].to_string())
}

/// The machine and the program, as records state them. The host's name is recorded as a hash.
pub fn capture(root: &Root, process: &Process) -> Map<String, Value> {
    let host = host_name(root);
    let library_folders: Vec<String> = process
        .variables
        .iter()
        .filter(|(name, _)| ["ZBENCH_CUDA_LIBS", "LD_LIBRARY_PATH"].contains(&name.as_str()))
        .flat_map(|(_, value)| value.split(':').filter(|folder| !folder.is_empty()))
        .flat_map(|folder| devices::below(root, folder))
        .collect();
    let mut state = cpu::clocks(root);
    if let Some(bytes) = root.text("proc/meminfo").and_then(|text| root::kib_line(&text, "SwapTotal")) {
        state.insert("swap_total_bytes".into(), bytes.into());
    }
    let driver = devices::driver(root).map(|version| json!({ "nvidia": version }));
    let entries = [
        ("cpu", json!(cpu::model(root))),
        ("architecture", json!(std::env::consts::ARCH)),
        ("cores", json!(process.cores)),
        ("simd", json!(process.simd)),
        ("topology", Value::Object(cpu::topology(root))),
        ("caches", Value::Object(cpu::caches(root))),
        ("numa", Value::Object(cpu::numa(root))),
        ("memory_bytes", json!(memory_bytes(root, "MemTotal"))),
        ("limits", Value::Object(container::limits(root))),
        ("virtualisation", json!(container::virtualisation(root))),
        ("gpus", Value::Array(devices::gpus(root))),
        ("nics", Value::Array(devices::nics(root))),
        ("os", json!(os(root))),
        ("kernel", json!(root.text("proc/sys/kernel/osrelease"))),
        ("container", json!(container::container(root))),
        ("microcode", json!(cpu::microcode(root))),
        ("mitigations", Value::Object(cpu::mitigations(root))),
        ("transparent_huge_pages", json!(transparent_huge_pages(root))),
        ("driver", json!(driver)),
        ("libraries", Value::Object(devices::libraries(root, &library_folders))),
        ("host", json!(host_hash(&host))),
        ("zbench", json!(env!("CARGO_PKG_VERSION"))),
        ("commit", json!(process.build.commit)),
        ("features", json!(features())),
        ("rustc", json!(process.build.rustc)),
        ("profile", json!(if cfg!(debug_assertions) { "debug" } else { "release" })),
        ("binary", json!(process.binary)),
        ("variables", Value::Object(variables::recorded(process.variables.iter().cloned(), &host))),
        ("state", Value::Object(state)),
    ];
    let is_stated = |value: &Value| match value {
        Value::Null => false,
        Value::Array(list) => !list.is_empty(),
        Value::Object(map) => !map.is_empty(),
        _ => true,
    };
    entries.into_iter().filter(|(_, value)| is_stated(value)).map(|(name, value)| (name.to_string(), value)).collect()
}

/// What the program was built from. The program's own crate states it, so that a new commit recompiles that crate alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct BuildInfo {
    /// The commit, with a mark where the tree differed from it; none without git.
    pub commit: Option<&'static str>,
    /// The output of `rustc --version`.
    pub rustc: Option<&'static str>,
}

static BUILD: OnceLock<BuildInfo> = OnceLock::new();

/// States what this program was built from; only the first call counts.
pub fn set_build(build: BuildInfo) {
    let _ = BUILD.set(build);
}

/// Features that this program was built with.
fn features() -> Vec<&'static str> {
    let all = [("mpi", cfg!(feature = "mpi")), ("png", cfg!(feature = "png"))];
    all.into_iter().filter_map(|(name, is_on)| is_on.then_some(name)).collect()
}

/// This host's name.
pub fn host_name(root: &Root) -> String {
    root.text("proc/sys/kernel/hostname").unwrap_or_else(|| "localhost".into())
}

/// `MemTotal` or `MemAvailable`; the control group's limit where that is lower.
pub fn memory_bytes(root: &Root, name: &str) -> Option<u64> {
    let machine = root::kib_line(&root.text("proc/meminfo")?, name)?;
    Some(container::memory_limit(root).map_or(machine, |limit| limit.min(machine)))
}

/// The chosen word of a line as `[always] madvise never`.
pub fn transparent_huge_pages(root: &Root) -> Option<String> {
    let text = root.text("sys/kernel/mm/transparent_hugepage/enabled")?;
    Some(text.split_once('[')?.1.split_once(']')?.0.to_string())
}

fn os(root: &Root) -> Option<String> {
    let text = root.text("etc/os-release").or_else(|| root.text("usr/lib/os-release"))?;
    Some(root::line_of(&text, "PRETTY_NAME")?.trim_matches('"').to_string())
}
