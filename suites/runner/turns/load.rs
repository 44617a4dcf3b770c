//! How much of the machine others use while an experiment runs: the work of all cores, less that of the experiment's own
//! processes. Foreign work on the same cores biases a comparison towards no difference, so rounds under it are discarded.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;
use zbench_host::machine::{TICKS, cores, cpu_ticks, shows_own_cores_only};

/// Compares the work of an experiment's processes with that of all processes.
pub struct Load {
    /// Whether the system shows the cores of this process alone. Else the work of others need not be in the way, and no share is told.
    is_known: bool,
    since: Option<Sample>,
}

struct Sample {
    at: Instant,
    idle: f64,
    stolen: f64,
    own: f64,
}

/// What others used since the last sample, as shares of all cores.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Shares {
    /// Other processes of this system.
    pub others: f64,
    /// Other guests of this machine, where the system states it.
    pub stolen: f64,
}

impl Load {
    /// Takes the first sample.
    pub fn begin() -> Load {
        Load { is_known: shows_own_cores_only(), since: Sample::now() }
    }

    /// Seconds since the last sample.
    pub fn seconds(&self) -> f64 {
        self.since.as_ref().map_or(f64::INFINITY, |since| since.at.elapsed().as_secs_f64())
    }

    /// Takes a sample: what others used since the last one; nothing where that is not known.
    pub fn look(&mut self) -> Option<Shares> {
        let now = Sample::now().filter(|_| self.is_known)?;
        let before = self.since.as_ref();
        let shares = before.map(|before| {
            let all = (now.at - before.at).as_secs_f64() * cores() as f64;
            let stolen = now.stolen - before.stolen;
            let others = all - (now.idle - before.idle) - stolen - (now.own - before.own);
            Shares { others: (others / all).max(0.0), stolen: (stolen / all).max(0.0) }
        });
        self.since = Some(now);
        shares
    }
}

impl Sample {
    /// All processes that descend from this one are its own, also those that began since the last sample.
    fn now() -> Option<Sample> {
        let own = descendants(std::process::id());
        let stat = std::fs::read_to_string("/proc/stat").ok()?;
        let at = Instant::now();
        let fields = cpu_ticks(&stat, "cpu")?;
        let idle = fields.get(3)? + fields.get(4)?;
        let stolen = fields.get(7).copied().unwrap_or(0.0);
        let own: f64 = own.iter().filter_map(|pid| Some(process(*pid)?.ticks)).sum();
        Some(Sample { at, idle: idle / TICKS, stolen: stolen / TICKS, own: own / TICKS })
    }
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

/// A process and all its descendants.
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
