//! Processors: caches, sockets, cores, NUMA nodes, policy of the clocks, microcode and mitigations.

use super::root::{Root, cpu_list, line_of};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Cores that this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

const CPUS: &str = "sys/devices/system/cpu";

/// The processor's name. ARM has none in /proc/cpuinfo; there its part number is used.
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
        let level = text("level").and_then(|level| level.parse::<u32>().ok());
        let (Some(level), Some(bytes)) = (level, text("size").as_deref().and_then(size_of_cache)) else { continue };
        let kind = match text("type").as_deref() {
            Some("Data") => "d",
            Some("Instruction") => "i",
            _ => "",
        };
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

/// Sockets, cores and threads that are online.
pub fn topology(root: &Root) -> Map<String, Value> {
    let mut topology = Map::new();
    let Some(online) = root.text(&format!("{CPUS}/online")).as_deref().and_then(cpu_list) else { return topology };
    let place = |cpu: &u32| {
        let number = |name: &str| root.number(&format!("{CPUS}/cpu{cpu}/topology/{name}"));
        Some((number("physical_package_id")?, number("core_id")?))
    };
    if let Some(places) = online.iter().map(place).collect::<Option<BTreeSet<(i64, i64)>>>() {
        let sockets: BTreeSet<i64> = places.iter().map(|(socket, _)| *socket).collect();
        topology.insert("sockets".into(), sockets.len().into());
        topology.insert("cores".into(), places.len().into());
    }
    topology.insert("threads".into(), online.len().into());
    topology
}

/// CPUs of each NUMA node.
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

/// The policy of the clocks at this moment, as far as the system shows it.
pub fn clocks(root: &Root) -> Map<String, Value> {
    let word = |file: &str| root.text(&format!("{CPUS}/cpu0/cpufreq/{file}")).map(Value::from);
    let mhz = |file: &str| root.count(&format!("{CPUS}/cpu0/cpufreq/{file}")).map(|khz| Value::from(khz / 1000));
    let state = [
        ("governor", word("scaling_governor")),
        ("driver", word("scaling_driver")),
        ("energy_preference", word("energy_performance_preference")),
        ("least_mhz", mhz("scaling_min_freq")),
        ("most_mhz", mhz("scaling_max_freq")),
        ("turbo", turbo(root).map(Value::from)),
    ];
    state.into_iter().filter_map(|(name, value)| Some((name.to_string(), value?))).collect()
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

/// The kernel's mitigation of each vulnerability that the processor has, up to the first semicolon.
pub fn mitigations(root: &Root) -> Map<String, Value> {
    let folder = format!("{CPUS}/vulnerabilities");
    let words = |name: &String| {
        let text = root.text(&format!("{folder}/{name}"))?;
        let first = text.split([';', '\n']).next()?.trim().to_string();
        (first != "Not affected").then(|| (name.clone(), Value::from(first)))
    };
    root.names(&folder).iter().filter_map(words).collect()
}
