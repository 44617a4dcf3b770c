//! Processors: caches, sockets, cores, NUMA nodes, clocks' policy, microcode and mitigations.

use super::root::{Root, cpu_list, line_of};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};

const CPUS: &str = "sys/devices/system/cpu";

/// The processor's name. ARM has none in /proc/cpuinfo; there its part number stands for it.
pub fn model(root: &Root) -> Option<String> {
    let text = root.text("proc/cpuinfo")?;
    let named = line_of(&text, "model name").filter(|name| !name.is_empty()).map(str::to_string);
    named.or_else(|| Some(format!("{} part {}", line_of(&text, "CPU implementer")?, line_of(&text, "CPU part")?)))
}

/// Whether the processor has a feature, by its name in /proc/cpuinfo.
pub fn has_flag(root: &Root, flag: &str) -> bool {
    let text = root.text("proc/cpuinfo").unwrap_or_default();
    let flags = line_of(&text, "flags").or_else(|| line_of(&text, "Features")).unwrap_or_default();
    flags.split_whitespace().any(|other| other == flag)
}

/// Bytes of each cache of the first core by level, and how many threads share the last one.
pub fn caches(root: &Root) -> Map<String, Value> {
    let mut caches = BTreeMap::new();
    let folder = format!("{CPUS}/cpu0/cache");
    for index in root.numbered(&folder, "index") {
        let text = |name: &str| root.text(&format!("{folder}/index{index}/{name}"));
        let (Some(level), Some(size)) = (text("level").and_then(|l| l.parse::<u32>().ok()), text("size")) else {
            continue;
        };
        let kind = match text("type").as_deref() {
            Some("Data") => "d",
            Some("Instruction") => "i",
            _ => "",
        };
        let Some(bytes) = size_of_cache(&size) else { continue };
        caches.insert(format!("l{level}{kind}"), json!(bytes));
        if let Some(shared) = text("shared_cpu_list").as_deref().and_then(cpu_list).filter(|_| level >= 3) {
            caches.insert(format!("l{level}_shared_by_threads"), json!(shared.len()));
        }
    }
    caches.into_iter().collect()
}

/// `32K`, `1M`, or bytes.
pub fn size_of_cache(text: &str) -> Option<u64> {
    let (digits, factor) = match text.strip_suffix('K') {
        Some(digits) => (digits, 1 << 10),
        None => text.strip_suffix('M').map_or((text, 1), |digits| (digits, 1 << 20)),
    };
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

/// Sockets, cores and threads that are online, and NUMA nodes with their memory.
pub fn topology(root: &Root) -> Map<String, Value> {
    let online = root.text(&format!("{CPUS}/online")).as_deref().and_then(cpu_list);
    let mut topology = Map::new();
    if let Some(online) = &online {
        let place = |cpu: &u32| {
            let text = |name: &str| root.number(&format!("{CPUS}/cpu{cpu}/topology/{name}"));
            Some((text("physical_package_id")?, text("core_id")?))
        };
        let places: Option<BTreeSet<(i64, i64)>> = online.iter().map(place).collect();
        if let Some(places) = places {
            let sockets: BTreeSet<i64> = places.iter().map(|(socket, _)| *socket).collect();
            topology.insert("sockets".into(), sockets.len().into());
            topology.insert("cores".into(), places.len().into());
        }
        topology.insert("threads".into(), online.len().into());
    }
    topology
}

/// CPUs and memory of each NUMA node.
pub fn numa(root: &Root) -> Map<String, Value> {
    let mut numa = Map::new();
    let nodes = root.numbered("sys/devices/system/node", "node");
    if !nodes.is_empty() {
        numa.insert("nodes".into(), nodes.len().into());
    }
    for node in nodes {
        if let Some(cpus) = root.text(&format!("sys/devices/system/node/node{node}/cpulist")) {
            numa.insert(format!("node{node}_cpus"), cpus.into());
        }
    }
    numa
}

/// How clocks are governed just now: words that the system gives, where it lets them be seen.
pub fn clocks(root: &Root) -> Map<String, Value> {
    let mut state = Map::new();
    let frequency = format!("{CPUS}/cpu0/cpufreq");
    for (name, file) in [
        ("governor", "scaling_governor"),
        ("driver", "scaling_driver"),
        ("energy_preference", "energy_performance_preference"),
    ] {
        if let Some(word) = root.text(&format!("{frequency}/{file}")) {
            state.insert(name.into(), word.into());
        }
    }
    for (name, file) in [("least_mhz", "scaling_min_freq"), ("most_mhz", "scaling_max_freq")] {
        if let Some(khz) = root.count(&format!("{frequency}/{file}")) {
            state.insert(name.into(), (khz / 1000).into());
        }
    }
    if let Some(turbo) = turbo(root) {
        state.insert("turbo".into(), turbo.into());
    }
    state
}

/// Whether clocks may go above the rated one.
pub fn turbo(root: &Root) -> Option<bool> {
    let flag = |path: &str| match root.text(path)?.as_str() {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    };
    let intel = flag(&format!("{CPUS}/intel_pstate/no_turbo")).map(|no| !no);
    intel.or_else(|| flag(&format!("{CPUS}/cpufreq/boost")))
}

/// The microcode's revision.
pub fn microcode(root: &Root) -> Option<String> {
    let text = root.text("proc/cpuinfo")?;
    line_of(&text, "microcode").filter(|word| !word.is_empty()).map(str::to_string)
}

/// What the kernel does about each vulnerability that the processor has, up to the first semicolon.
pub fn mitigations(root: &Root) -> Map<String, Value> {
    let folder = format!("{CPUS}/vulnerabilities");
    let words = |name: &String| {
        let text = root.text(&format!("{folder}/{name}"))?;
        let first = text.split([';', '\n']).next()?.trim().to_string();
        (first != "Not affected").then(|| (name.clone(), Value::from(first)))
    };
    root.names(&folder).iter().filter_map(words).collect()
}
