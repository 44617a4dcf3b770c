//! How much of the machine others use while an experiment runs: what all cores worked, less what the experiment's own
//! processes did. Foreign work on the same cores biases a comparison towards no difference, so rounds under it are discarded.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// Clock ticks per second of /proc; fixed at 100 in Linux's interface to user space.
const TICKS: f64 = 100.0;

/// Watches the processes of an experiment, and all others.
pub struct Load {
    cores: usize,
    own: BTreeSet<u32>,
    since: Option<Sample>,
}

struct Sample {
    at: Instant,
    idle: f64,
    stolen: f64,
    own: f64,
}

/// What others used since the last look, as shares of all cores.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Shares {
    /// Other processes of this system.
    pub others: f64,
    /// Other guests of this machine, where the system can tell.
    pub stolen: f64,
}

impl Load {
    /// Begins to watch. Where the system shows more cores than this process may use, the work of others is not in the way, and no share is told.
    pub fn begin() -> Load {
        let mut load = Load { cores: shown_cores(), own: BTreeSet::new(), since: None };
        load.since = load.sample();
        load
    }

    /// Seconds since the last look.
    pub fn seconds(&self) -> f64 {
        self.since.as_ref().map_or(f64::INFINITY, |since| since.at.elapsed().as_secs_f64())
    }

    /// What others used since the last look; nothing where it cannot be told.
    pub fn look(&mut self) -> Option<Shares> {
        if self.cores != zbench_host::machine::cores() {
            return None;
        }
        let now = self.sample()?;
        let before = self.since.replace(now)?;
        let now = self.since.as_ref()?;
        let all = (now.at - before.at).as_secs_f64() * self.cores as f64;
        let stolen = now.stolen - before.stolen;
        let others = all - (now.idle - before.idle) - stolen - (now.own - before.own);
        Some(Shares { others: (others / all).max(0.0), stolen: (stolen / all).max(0.0) })
    }

    /// All processes that descend from this one are its own, also those that began since the last look.
    fn sample(&mut self) -> Option<Sample> {
        self.own = descendants(std::process::id());
        let stat = std::fs::read_to_string("/proc/stat").ok()?;
        let at = Instant::now();
        let fields: Vec<f64> =
            stat.lines().next()?.split_whitespace().skip(1).filter_map(|number| number.parse().ok()).collect();
        // user, nice, system, idle, iowait, irq, softirq, steal.
        let idle = fields.get(3)? + fields.get(4)?;
        let stolen = fields.get(7).copied().unwrap_or(0.0);
        let own: f64 = self.own.iter().filter_map(|pid| Some(process(*pid)?.ticks)).sum();
        Some(Sample { at, idle: idle / TICKS, stolen: stolen / TICKS, own: own / TICKS })
    }
}

fn shown_cores() -> usize {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    stat.lines().filter(|line| line.starts_with("cpu")).count().saturating_sub(1)
}

struct Process {
    parent: u32,
    /// User and system time of all its threads, and of children that it has waited for.
    ticks: f64,
}

fn process(pid: u32) -> Option<Process> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name of the program may hold spaces; it ends with the last bracket.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |place: usize| fields.get(place).and_then(|field| field.parse::<f64>().ok());
    Some(Process { parent: fields.get(1)?.parse().ok()?, ticks: [11, 12, 13, 14].into_iter().filter_map(number).sum() })
}

/// A process and all that it and those that it started have started.
pub fn descendants(root: u32) -> BTreeSet<u32> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        if let Some(process) = process(pid) {
            children.entry(process.parent).or_default().push(pid);
        }
    }
    let (mut all, mut open) = (BTreeSet::new(), vec![root]);
    while let Some(pid) = open.pop() {
        if all.insert(pid) {
            open.extend(children.get(&pid).into_iter().flatten());
        }
    }
    all
}
