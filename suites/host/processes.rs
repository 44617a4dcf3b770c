//! The processes of this system: their names, parents and processor time, from /proc. Whatever cannot be read is absent.

use crate::environment::Root;
use crate::machine::TICKS;
use std::collections::{BTreeMap, BTreeSet};
use zbench_reports::record::others::OtherProgram;

/// Programs that are kept of a list.
const KEPT: usize = 8;

/// The processes at one moment.
pub struct Processes(BTreeMap<u32, Process>);

struct Process {
    name: String,
    parent: u32,
    /// Seconds of the cores that it used, and that children used which it has waited for.
    own: f64,
    of_children: f64,
}

/// Seconds of the cores that a process used between two moments.
#[derive(Clone, Debug, PartialEq)]
pub struct Used {
    /// Its number.
    pub process: u32,
    /// Name of its program.
    pub name: String,
    /// Seconds of one core.
    pub seconds: f64,
}

impl Processes {
    /// Reads all that can be seen.
    pub fn read(root: &Root) -> Processes {
        let entries = std::fs::read_dir(root.path("proc")).into_iter().flatten().flatten();
        let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        Processes(numbers.filter_map(|number: u32| Some((number, process(root, number)?))).collect())
    }

    /// A process and all its descendants.
    pub fn descendants(&self, of: u32) -> BTreeSet<u32> {
        let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for (number, process) in &self.0 {
            children.entry(process.parent).or_default().push(*number);
        }
        let (mut all, mut open) = (BTreeSet::new(), vec![of]);
        while let Some(number) = open.pop() {
            if all.insert(number) {
                open.extend(children.get(&number).into_iter().flatten());
            }
        }
        all
    }

    /// Seconds of the cores that these have used, and children that they have waited for.
    pub fn seconds(&self, of: &BTreeSet<u32>) -> f64 {
        of.iter().filter_map(|number| self.0.get(number)).map(|process| process.own + process.of_children).sum()
    }

    /// What processes other than `own` used since `before`, in the order of their numbers.
    pub fn others(&self, before: &Processes, own: &BTreeSet<u32>) -> Vec<Used> {
        let used = |(number, process): (&u32, &Process)| {
            // Threads of the kernel change their names.
            let seconds = process.own - before.0.get(number).map_or(0.0, |before| before.own);
            Used { process: *number, name: process.name.clone(), seconds }
        };
        self.0.iter().filter(|(number, _)| !own.contains(number)).map(used).filter(|used| used.seconds > 0.0).collect()
    }
}

fn process(root: &Root, number: u32) -> Option<Process> {
    let stat = root.text(&format!("proc/{number}/stat"))?;
    // The name may hold spaces and brackets; it stands between the first and the last one.
    let (name, rest) = stat.split_once('(')?.1.rsplit_once(')')?;
    // The state, the parent, then numbers.
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let seconds = |place: usize| fields.get(place).and_then(|ticks| ticks.parse::<f64>().ok()).unwrap_or(0.0) / TICKS;
    Some(Process {
        name: name.to_string(),
        parent: fields.get(1)?.parse().ok()?,
        own: seconds(11) + seconds(12),
        of_children: seconds(13) + seconds(14),
    })
}

/// The programs of what processes used in so many seconds, the busiest first; those that used least are left out of a long list.
pub fn programs<'u>(used: impl IntoIterator<Item = &'u Used>, seconds: f64) -> Vec<OtherProgram> {
    let mut by_name: BTreeMap<&str, Vec<&Used>> = BTreeMap::new();
    for one in used {
        by_name.entry(&one.name).or_default().push(one);
    }
    let program = |(name, all): (&str, Vec<&Used>)| {
        let busiest = all.iter().max_by(|one, other| one.seconds.total_cmp(&other.seconds))?;
        let cores = all.iter().map(|used| used.seconds).sum::<f64>() / seconds.max(1e-3);
        Some(OtherProgram { name: name.to_string(), process: busiest.process, processes: all.len(), cores })
    };
    let mut programs: Vec<OtherProgram> = by_name.into_iter().filter_map(program).collect();
    programs.sort_by(|one, other| other.cores.total_cmp(&one.cores));
    programs.truncate(KEPT);
    programs
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbench_reports::record::others::{names, sentence};

    /// Processes with their parents, and the ticks that they and their ended children used.
    fn at(processes: &[(u32, &str, u32, u64, u64)]) -> Processes {
        let folder = tempfile::tempdir().unwrap();
        for (number, name, parent, ticks, of_children) in processes {
            let path = folder.path().join(format!("proc/{number}"));
            std::fs::create_dir_all(&path).unwrap();
            let (user, system) = (ticks / 2, ticks - ticks / 2);
            let stat = format!(
                "{number} ({name}) R {parent} 1 1 0 -1 4194304 100 0 0 0 {user} {system} {of_children} 0 20 0 1 0 5 1 1\n"
            );
            std::fs::write(path.join("stat"), stat).unwrap();
        }
        Processes::read(&Root::at(folder.path()))
    }

    #[test]
    fn others_are_named_and_descendants_are_none_of_them() {
        let before = at(&[(7, "python3 before", 1, 100, 0), (8, "idle", 1, 50, 0), (9, "zbench", 1, 0, 0)]);
        let after = at(&[
            (7, "python3 (a) b", 1, 301, 0),
            (9, "zbench", 1, 90, 30),
            (20, "zbench", 9, 70, 0),
            (30, "cc1", 1, 40, 0),
            (31, "cc1", 30, 20, 0),
        ]);
        let own = after.descendants(9);
        assert_eq!((own.clone(), after.seconds(&own)), (BTreeSet::from([9, 20]), 1.9));
        let others = programs(&after.others(&before, &own), 2.0);
        let said = sentence(0.6, 0.0, &others);
        let expected = "python3 (a) b (process 7, 100.5 % of a core) and cc1 (process 30 and 1 more, 30.0 % of a core)";
        assert_eq!(names(&others), expected);
        assert_eq!(said, format!("other processes used 60.0 % of the cores (limit 5.0 %), among them {expected}"));
        assert!(sentence(0.06, 0.0, &[]).contains("that have ended"));
        assert_eq!(
            sentence(0.01, 0.2, &others),
            "the hypervisor gave 20.0 % of the cores to other guests (limit 5.0 %)"
        );
    }
}
