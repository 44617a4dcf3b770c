//! What this machine is and how busy it is, read from /proc. Whatever cannot be read is absent, never guessed.

use super::protocol::BusySeconds;
use serde_json::{Map, Value, json};
use std::time::Instant;

/// Cores that this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// A line of /proc/self/status or /proc/meminfo, in bytes.
fn kib_line(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// `VmHWM` and its kin of this process.
pub fn status_bytes(name: &str) -> Option<u64> {
    kib_line(&read("/proc/self/status")?, name)
}

/// `MemTotal`, `MemAvailable`; the container's limit where there is one and it is lower.
pub fn memory_bytes(name: &str) -> Option<u64> {
    let machine = kib_line(&read("/proc/meminfo")?, name)?;
    let limit = read("/sys/fs/cgroup/memory.max").and_then(|text| text.trim().parse::<u64>().ok());
    Some(limit.map_or(machine, |limit| limit.min(machine)))
}

/// How often the system has ended a process for lack of memory.
pub fn oom_kills() -> u64 {
    let count = |path: &str| -> u64 {
        let text = read(path).unwrap_or_default();
        text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok()).unwrap_or(0)
    };
    count("/proc/vmstat") + count("/sys/fs/cgroup/memory.events")
}

/// The largest cache of the first core, in bytes.
pub fn last_level_cache_bytes() -> Option<u64> {
    let folder = std::fs::read_dir("/sys/devices/system/cpu/cpu0/cache").ok()?;
    let size = |folder: std::path::PathBuf| {
        let text = std::fs::read_to_string(folder.join("size")).ok()?;
        let text = text.trim();
        let (digits, factor) = match text.strip_suffix('K') {
            Some(digits) => (digits, 1 << 10),
            None => text.strip_suffix('M').map_or((text, 1), |digits| (digits, 1 << 20)),
        };
        digits.parse::<u64>().ok()?.checked_mul(factor)
    };
    folder.flatten().filter_map(|entry| size(entry.path())).max()
}

/// This host's name.
pub fn host_name() -> String {
    let name = read("/proc/sys/kernel/hostname").unwrap_or_default();
    if name.trim().is_empty() { "localhost".into() } else { name.trim().into() }
}

/// The processor's name.
pub fn cpu_model() -> Option<String> {
    let text = read("/proc/cpuinfo")?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_string())
}

/// One feature of the processor, by its name in /proc/cpuinfo.
pub fn cpu_has(flag: &str) -> bool {
    let text = read("/proc/cpuinfo").unwrap_or_default();
    text.lines().find(|line| line.starts_with("flags")).is_some_and(|line| line.split_whitespace().any(|f| f == flag))
}

/// `[always] madvise never`, the chosen word.
pub fn transparent_huge_pages() -> Option<String> {
    let text = read("/sys/kernel/mm/transparent_hugepage/enabled")?;
    Some(text.split_once('[')?.1.split_once(']')?.0.to_string())
}

/// Mean number of processes that wanted to run, over the last minute.
pub fn load_average() -> Option<f64> {
    read("/proc/loadavg")?.split_whitespace().next()?.parse().ok()
}

/// A host's name as records state it.
pub fn host_hash(name: &str) -> String {
    blake3::hash(name.as_bytes()).to_hex()[..8].to_string()
}

/// The machine and the program, as records state it. The host's name stands as a hash.
pub fn environment() -> Map<String, Value> {
    let system = read("/etc/os-release").and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
        Some(line.trim_matches('"').to_string())
    });
    let value = json!({
        "cpu": cpu_model(),
        "cores": cores(),
        "simd": zbench_kernels::peak::describe(),
        "memory_bytes": memory_bytes("MemTotal"),
        "os": system,
        "kernel": read("/proc/sys/kernel/osrelease").map(|text| text.trim().to_string()),
        "transparent_huge_pages": transparent_huge_pages(),
        "host": host_hash(&host_name()),
        "zbench": env!("CARGO_PKG_VERSION"),
        "commit": option_env!("ZBENCH_COMMIT"),
        "rustc": option_env!("ZBENCH_RUSTC"),
        "profile": if cfg!(debug_assertions) { "debug" } else { "release" },
    });
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

/// What other processes take while something is measured.
pub struct Busy {
    since: Instant,
    all: f64,
    own: f64,
    cores: usize,
}

/// Clock ticks per second of /proc; fixed at 100 in Linux's interface to user space.
const TICKS: f64 = 100.0;

impl Busy {
    /// Begins; absent where the system shows more cores than this process may use, as their work is not in our way.
    pub fn start() -> Option<Busy> {
        let shown = read("/proc/stat")?.lines().filter(|line| line.starts_with("cpu")).count().checked_sub(1)?;
        if shown != cores() {
            return None;
        }
        let (all, own) = busy_seconds()?;
        Some(Busy { since: Instant::now(), all, own, cores: shown })
    }

    /// Seconds of work since.
    pub fn seconds(self) -> Option<BusySeconds> {
        let wall = self.since.elapsed().as_secs_f64();
        let (all, own) = busy_seconds()?;
        Some(BusySeconds { wall, all: all - self.all, own: own - self.own, cores: self.cores })
    }
}

impl BusySeconds {
    /// Share of all cores that others used than those who used `own` seconds; absent for less than half a second, which
    /// ticks cannot resolve.
    pub fn others_share(&self, own: f64) -> Option<f64> {
        (self.wall >= 0.5).then(|| ((self.all - own) / (self.wall * self.cores as f64)).max(0.0))
    }
}

/// Seconds that all processes have run, and this one.
fn busy_seconds() -> Option<(f64, f64)> {
    let stat = read("/proc/stat")?;
    let fields: Vec<f64> = stat.lines().next()?.split_whitespace().skip(1).filter_map(|n| n.parse().ok()).collect();
    // user, nice, system, then idle and iowait, irq, softirq, steal.
    let all =
        fields.iter().enumerate().filter(|(i, _)| ![3, 4].contains(i) && *i < 8).map(|(_, ticks)| ticks).sum::<f64>();
    let own = read("/proc/self/stat")?;
    // The name of the program may hold spaces; it ends with the last bracket.
    let own: Vec<f64> = own.rsplit_once(')')?.1.split_whitespace().filter_map(|n| n.parse().ok()).collect();
    // state is no number and drops out, so utime and stime are the 11th and 12th of what is left.
    Some((all / TICKS, (own.get(10)? + own.get(11)?) / TICKS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_in_kib() {
        let text = "VmHWM:\t  1024 kB\nVmSwap:\t0 kB\nBad: x kB\n";
        assert_eq!(kib_line(text, "VmHWM"), Some(1 << 20));
        assert_eq!(kib_line(text, "VmSwap"), Some(0));
        assert_eq!(kib_line(text, "Bad"), None);
        assert_eq!(kib_line(text, "Vm"), None);
    }

    #[test]
    fn own_work_is_not_others() {
        let Some(busy) = Busy::start() else { return };
        let start = Instant::now();
        while start.elapsed().as_secs_f64() < 0.6 {
            std::hint::spin_loop();
        }
        let (all, own) = busy_seconds().unwrap();
        // Ticks are a hundredth of a second; this thread alone has spun for 0.6 s, if the machine let it.
        assert!(all - busy.all >= own - busy.own - 0.05);
        assert!(own > busy.own);
    }
}
