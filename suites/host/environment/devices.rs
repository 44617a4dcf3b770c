//! GPUs, their driver and libraries, and network devices: kinds and speeds, no addresses. No library is loaded for this:
//! the names of their files have the versions.

use super::root::{Root, line_of};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use zbench_kernels::cuda::gpu::Search;

/// Folders where the system's loader looks.
const SYSTEM_FOLDERS: [&str; 6] = [
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "usr/local/cuda/lib64",
    "usr/local/lib",
];

/// Each GPU's model, by NVIDIA's driver.
pub fn gpus(root: &Root) -> Vec<Value> {
    const FOLDER: &str = "proc/driver/nvidia/gpus";
    let model = |name: &String| {
        let text = root.text(&format!("{FOLDER}/{name}/information"))?;
        Some(Value::from(line_of(&text, "Model")?.to_string()))
    };
    root.names(FOLDER).iter().filter_map(model).collect()
}

/// The version of NVIDIA's kernel module.
pub fn driver(root: &Root) -> Option<String> {
    let text = root.text("proc/driver/nvidia/version")?;
    let line = text.lines().next()?;
    let is_version = |word: &&str| word.contains('.') && word.split('.').all(|part| part.parse::<u32>().is_ok());
    line.split_whitespace().find(is_version).map(str::to_string)
}

/// The folders in and below a given one that may hold libraries, also where pip installs them, in a virtual environment too.
pub fn below(root: &Root, folder: &str) -> Vec<String> {
    let found = Search::inside(&root.path(folder)).into_iter();
    let top = root.path("");
    found.filter_map(|path| Some(path.strip_prefix(&top).ok()?.to_str()?.to_string())).collect()
}

/// A library by the beginning of its file's name: its folder and the longest name found there, as that says most about the
/// version. `folders` are looked into before the system's.
pub fn find_library(root: &Root, folders: &[String], name: &str) -> Option<(String, String)> {
    folders.iter().map(String::as_str).chain(SYSTEM_FOLDERS).find_map(|folder| {
        let is_it =
            |file: &String| file.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
        let file = root.names(folder).into_iter().filter(is_it).max_by_key(String::len)?;
        Some((folder.to_string(), file))
    })
}

/// Versions of the libraries that a GPU needs, by the names of their files.
pub fn libraries(root: &Root, folders: &[String]) -> Map<String, Value> {
    const LIBRARIES: [(&str, &str); 5] = [
        ("cuda", "libcuda.so"),
        ("cudart", "libcudart.so"),
        ("nvrtc", "libnvrtc.so"),
        ("cublaslt", "libcublasLt.so"),
        ("nccl", "libnccl.so"),
    ];
    let found = |(key, name): (&str, &str)| {
        let (_, file) = find_library(root, folders, name)?;
        let version = file.strip_prefix(name)?.trim_start_matches('.');
        let version = if version.is_empty() { "there, its file states no version" } else { version };
        Some((key.to_string(), Value::from(version)))
    };
    LIBRARIES.into_iter().filter_map(found).collect()
}

/// Network devices of hardware, as `2 x ethernet 25000 Mb/s`; not bridges, tunnels and loopback.
pub fn nics(root: &Root) -> Vec<Value> {
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    for name in root.names("sys/class/net") {
        let folder = format!("sys/class/net/{name}");
        if !root.has(&format!("{folder}/device")) {
            continue;
        }
        let kind = match root.number(&format!("{folder}/type")) {
            Some(1) if root.has(&format!("{folder}/wireless")) => "wireless",
            Some(1) => "ethernet",
            Some(32) => "infiniband",
            _ => "other",
        };
        // A device that is down, or virtual, states -1 or nothing.
        let speed = root.number(&format!("{folder}/speed")).filter(|speed| *speed > 0);
        let words = speed.map_or_else(|| kind.to_string(), |speed| format!("{kind} {speed} Mb/s"));
        *kinds.entry(words).or_default() += 1;
    }
    for device in root.names("sys/class/infiniband") {
        let ports = format!("sys/class/infiniband/{device}/ports");
        for port in root.names(&ports) {
            if let Some(rate) = root.text(&format!("{ports}/{port}/rate")) {
                *kinds.entry(format!("rdma port {rate}")).or_default() += 1;
            }
        }
    }
    kinds.into_iter().map(|(words, count)| json!(format!("{count} x {words}"))).collect()
}
