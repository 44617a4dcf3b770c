//! What lies between this process and the machine: control groups with their limits, a container, a hypervisor.

use super::cpu;
use super::root::{Root, line_of};
use serde_json::{Map, Value};
use std::path::Path;

/// Where the kernel shows control groups.
const GROUPS: &str = "sys/fs/cgroup";

/// Folders of this process's control group for a controller, innermost first, up to the topmost that is shown. Inside a
/// container the path of the group is often not shown, and the topmost folder is the container's own.
pub fn folders(root: &Root, controller: &str) -> Vec<String> {
    let text = root.text("proc/self/cgroup").unwrap_or_default();
    let mut folders = Vec::new();
    for line in text.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else { continue };
        let base = match controllers {
            "" if root.has(&format!("{GROUPS}/cgroup.controllers")) => GROUPS.to_string(),
            "" => format!("{GROUPS}/unified"),
            list if list.split(',').any(|name| name == controller) => {
                // The folder has the list's name, and there is a link for each controller.
                let places = [list, controller].map(|name| format!("{GROUPS}/{name}"));
                places.into_iter().find(|path| root.has(path)).unwrap_or_default()
            }
            _ => continue,
        };
        if base.is_empty() || path.split('/').any(|part| part == "..") {
            continue;
        }
        for parent in Path::new(path.trim_matches('/')).ancestors() {
            let folder = format!("{base}/{}", parent.display());
            let folder = folder.trim_end_matches('/').to_string();
            if root.has(&folder) && !folders.contains(&folder) {
                folders.push(folder);
            }
        }
    }
    folders
}

/// Cores' worth of time that this process may use, where a control group limits it.
pub fn cpu_quota(root: &Root) -> Option<f64> {
    let quota_of = |folder: &String| {
        let version2 = || {
            let text = root.text(&format!("{folder}/cpu.max"))?;
            let (quota, period) = text.split_once(' ')?;
            Some((quota.parse::<f64>().ok()?, period.parse::<f64>().ok()?))
        };
        let version1 = || {
            let number = |name: &str| root.number(&format!("{folder}/{name}"));
            Some((number("cpu.cfs_quota_us")? as f64, number("cpu.cfs_period_us")? as f64))
        };
        let (quota, period) = version2().or_else(version1)?;
        // -1 is no limit.
        (quota > 0.0 && period > 0.0).then(|| quota / period)
    };
    folders(root, "cpu").iter().filter_map(quota_of).reduce(f64::min)
}

/// Bytes that this process and its control group may use, where a group limits them.
pub fn memory_limit(root: &Root) -> Option<u64> {
    // Version 1 writes no limit as the largest number of pages.
    const NO_LIMIT: u64 = 1 << 60;
    let limit_of = |folder: &String| {
        let number = |name: &str| root.count(&format!("{folder}/{name}"));
        number("memory.max").or_else(|| number("memory.limit_in_bytes")).filter(|bytes| *bytes < NO_LIMIT)
    };
    folders(root, "memory").iter().filter_map(limit_of).min()
}

/// The limits that are set, by name.
pub fn limits(root: &Root) -> Map<String, Value> {
    let limits =
        [("cpu_quota_cores", cpu_quota(root).map(Value::from)), ("memory_bytes", memory_limit(root).map(Value::from))];
    limits.into_iter().filter_map(|(name, limit)| Some((name.to_string(), limit?))).collect()
}

/// The container software that runs this process, by the files that it leaves and the names of its control groups.
pub fn container(root: &Root) -> Option<String> {
    const FILES: [(&str, &str); 2] = [(".dockerenv", "docker"), ("run/.containerenv", "podman")];
    if let Some((_, name)) = FILES.iter().find(|(file, _)| root.has(file)) {
        return Some((*name).to_string());
    }
    if let Some(word) = root.text("run/systemd/container").filter(|word| word.len() < 64 && !word.contains('\n')) {
        return Some(word);
    }
    const WORDS: [(&str, &str); 6] = [
        ("kubepods", "kubernetes"),
        ("docker", "docker"),
        ("libpod", "podman"),
        ("containerd", "containerd"),
        ("lxc", "lxc"),
        ("garden", "garden"),
    ];
    let groups = root.text("proc/1/cgroup").unwrap_or_default();
    WORDS.iter().find(|(word, _)| groups.contains(word)).map(|(_, name)| (*name).to_string())
}

/// The hypervisor under this machine, by the names that it gives its hardware; `yes` where only a flag of the processor shows
/// that there is one.
pub fn virtualisation(root: &Root) -> Option<String> {
    const NAMES: [(&str, &str); 10] = [
        ("firecracker", "firecracker"),
        ("kvm", "kvm"),
        ("qemu", "qemu"),
        ("vmware", "vmware"),
        ("virtualbox", "virtualbox"),
        ("xen", "xen"),
        ("amazon ec2", "amazon"),
        ("google", "google"),
        ("microsoft corporation", "hyper-v"),
        ("virtual machine", "virtual machine"),
    ];
    if let Some(kind) = root.text("sys/hypervisor/type") {
        return Some(kind);
    }
    // Vendors of clouds sell machines without a hypervisor too: there the flag is missing.
    if !cpu::has_flag(root, "hypervisor") {
        return None;
    }
    let dmi = ["sys_vendor", "product_name", "board_vendor"]
        .map(|file| root.text(&format!("sys/class/dmi/id/{file}")).unwrap_or_default().to_lowercase());
    let dmi = dmi.join(" ");
    let named = NAMES.iter().find(|(word, _)| dmi.contains(word));
    Some(named.map_or("yes", |(_, name)| name).to_string())
}

/// A number in a file of this process's control groups: the sum over all groups that have it, as each may hold tasks back.
pub fn group_number(root: &Root, controller: &str, file: &str, line: &str) -> Option<u64> {
    folders(root, controller)
        .iter()
        .filter_map(|folder| line_of(&root.text(&format!("{folder}/{file}"))?, line)?.parse().ok())
        .reduce(u64::saturating_add)
}
