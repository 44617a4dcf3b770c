//! The process of a launcher above this one. It tells launches on one host apart where no variable does, as under Hydra.

use zbench_host::environment::Root;

/// Processes that start the ranks of one launch on a host, as /proc names them: Hydra's (MPICH, Intel MPI, MVAPICH) and
/// that of mpirun_rsh.
const NAMES: [&str; 3] = ["hydra_pmi_proxy", "pmi_proxy", "mpispawn"];
/// More processes than stand above one another.
const MOST_ABOVE: usize = 256;

/// What tells a launch from others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launcher {
    /// In words that are the same for all ranks of the launch on this host.
    pub words: String,
    /// They are the same on all hosts of the launch.
    pub is_of_all_hosts: bool,
}

/// A process as /proc/PID/stat has it.
pub struct Stat {
    /// The program's name, at most 15 bytes.
    pub name: String,
    /// Its parent; 0 where this process does not see it.
    pub parent: u32,
    /// Clock ticks from the start of the system to its own.
    pub started: u64,
}

/// Reads a process.
pub fn stat(root: &Root, process: u32) -> Option<Stat> {
    let stat = root.text(&format!("proc/{process}/stat"))?;
    // The name may hold spaces and brackets.
    let (name, rest) = stat.split_once('(')?.1.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    Some(Stat { name: name.into(), parent: fields.get(1)?.parse().ok()?, started: fields.get(19)?.parse().ok()? })
}

/// The nearest launcher above a process.
pub fn above(root: &Root, process: u32) -> Option<Launcher> {
    let next = |process: &u32| stat(root, *process).map(|stat| stat.parent).filter(|parent| *parent > 0);
    let (process, stat) = std::iter::successors(Some(process), next)
        .take(MOST_ABOVE)
        .find_map(|process| Some((process, stat(root, process)?)).filter(|(_, stat)| NAMES.contains(&&*stat.name)))?;
    // Hydra tells its process on every host where the mpiexec of the launch listens.
    let words = root.text(&format!("proc/{process}/cmdline")).unwrap_or_default();
    let mut words = words.split('\0').skip_while(|word| *word != "--control-port").skip(1);
    let control = words.next().filter(|place| !place.is_empty() && !place.contains(char::is_control));
    Some(match control {
        Some(place) => Launcher { words: format!("the mpiexec at {place}"), is_of_all_hosts: true },
        None => Launcher {
            words: format!("{} (process {process}, started {} ticks after the system)", stat.name, stat.started),
            is_of_all_hosts: false,
        },
    })
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A system on which process 90 stands below a shell, and that below a process with this command line.
    pub fn below(name: &str, command: &str, process: u32, started: u64) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (number, name, parent, command) in [
            (own(), "zbench", 89, ""),
            (89, "a (shell) b", process, ""),
            (process, name, 1, command),
            (1, "init", 0, ""),
        ] {
            let path = folder.path().join(format!("proc/{number}"));
            std::fs::create_dir_all(&path).unwrap();
            let zeros = "0 ".repeat(17);
            std::fs::write(path.join("stat"), format!("{number} ({name}) S {parent} {zeros}{started} 1 1\n")).unwrap();
            std::fs::write(path.join("cmdline"), command.replace(' ', "\0")).unwrap();
        }
        folder
    }

    pub fn own() -> u32 {
        std::process::id()
    }

    #[test]
    fn the_nearest_launcher_is_named() {
        let find = |name: &str, command: &str| above(&Root::at(below(name, command, 50, 777).path()), own());
        let proxy = "hydra_pmi_proxy";
        let control = find(proxy, "/usr/bin/hydra_pmi_proxy --control-port n1:38291 --rmk user").unwrap();
        assert_eq!(control, Launcher { words: "the mpiexec at n1:38291".into(), is_of_all_hosts: true });
        let words = "hydra_pmi_proxy (process 50, started 777 ticks after the system)";
        let without = Launcher { words: words.into(), is_of_all_hosts: false };
        assert_eq!(find(proxy, "hydra_pmi_proxy --usize -1"), Some(without.clone()));
        assert_eq!(find(proxy, "hydra_pmi_proxy --control-port"), Some(without));
        assert_eq!(find("slurmstepd", "slurmstepd: [4711.0]"), None);
    }
}
