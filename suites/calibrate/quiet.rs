//! A look at the machine before minutes of measuring: how much of the cores other processes use, and which ones. The limit is
//! that of [`judge`](super::judge), which looks again at the end.

use super::judge::OTHERS_SHARE;
use crate::bench::watched;
use crate::bench::{Limits, Stopped};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use zbench_host::environment::Root;
use zbench_reports::units;

/// How long the look takes; ticks of a hundredth of a second resolve the limit in it.
const LOOK: Duration = Duration::from_secs(2);
/// So often it asks whether to stop.
const NAP: Duration = Duration::from_millis(50);
/// So many processes are named.
const NAMED: usize = 3;
/// Clock ticks per second of /proc; fixed at 100 in Linux's interface to user space.
const TICKS: f64 = 100.0;

/// Looks, and says why measuring now would be of no use; nothing where the machine is quiet, or does not tell.
///
/// # Errors
/// It was stopped.
pub fn why_not(limits: &Limits<'_>) -> Result<Option<String>, Stopped> {
    let root = Root::system();
    let before = processes(&root);
    let (looked, sampled) = watched(0, || {
        let begun = Instant::now();
        while begun.elapsed() < LOOK {
            limits.check()?;
            std::thread::sleep(NAP);
        }
        Ok(())
    });
    looked?;
    let own = std::process::id();
    Ok(reason(sampled.others_share, sampled.seconds, &busiest(&before, &processes(&root), own)))
}

/// What is said of a share of the cores, and of the processes' ticks.
fn reason(others_share: Option<f64>, seconds: f64, busiest: &[(u32, String, u64)]) -> Option<String> {
    let share = others_share.filter(|share| *share > OTHERS_SHARE)?;
    let name = |(process, name, ticks): &(u32, String, u64)| {
        let cores = *ticks as f64 / TICKS / seconds.max(1e-3);
        format!("{name} (process {process}, {} of a core)", units::percent(cores))
    };
    let names: Vec<String> = busiest.iter().take(NAMED).map(name).collect();
    let who = if names.is_empty() { "processes that have ended since".into() } else { units::list(&names) };
    Some(format!(
        "other processes used {} of the cores during {} (limit {}); most of it {who}",
        units::percent(share),
        units::duration(seconds),
        units::percent(OTHERS_SHARE)
    ))
}

/// Names and processor ticks of all processes that can be seen.
fn processes(root: &Root) -> BTreeMap<u32, (String, u64)> {
    let of = |process: u32| {
        let stat = root.text(&format!("proc/{process}/stat"))?;
        // The name may hold spaces and brackets; it stands between the first and the last one.
        let (name, rest) = stat.split_once('(')?.1.rsplit_once(')')?;
        // The state, then numbers: ticks in user space are the 11th behind it, those in the kernel the 12th.
        let ticks: u64 = rest.split_whitespace().skip(11).take(2).filter_map(|n| n.parse::<u64>().ok()).sum();
        Some((process, (name.to_string(), ticks)))
    };
    root.numbered("proc", "").into_iter().filter_map(of).collect()
}

/// Other processes with the ticks that they used in between, the busiest first.
fn busiest(
    before: &BTreeMap<u32, (String, u64)>,
    after: &BTreeMap<u32, (String, u64)>,
    own: u32,
) -> Vec<(u32, String, u64)> {
    let used = |(process, (name, ticks)): (&u32, &(String, u64))| {
        let since = before.get(process).map_or(0, |(_, ticks)| *ticks);
        (*process, name.clone(), ticks.saturating_sub(since))
    };
    let mut list: Vec<_> =
        after.iter().filter(|(process, _)| **process != own).map(used).filter(|(.., ticks)| *ticks > 0).collect();
    list.sort_by_key(|(process, _, ticks)| (std::cmp::Reverse(*ticks), *process));
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(folder: &tempfile::TempDir, processes: &[(u32, &str, u64)]) -> Root {
        for (process, name, ticks) in processes {
            let path = folder.path().join(format!("proc/{process}"));
            std::fs::create_dir_all(&path).unwrap();
            let (user, system) = (ticks / 2, ticks - ticks / 2);
            let stat =
                format!("{process} ({name}) R 1 1 1 0 -1 4194304 100 0 0 0 {user} {system} 0 0 20 0 1 0 5 1 1\n");
            std::fs::write(path.join("stat"), stat).unwrap();
        }
        Root::at(folder.path())
    }

    #[test]
    fn who_is_busy_is_named_and_zbench_itself_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let before = processes(&root(&folder, &[(7, "python3 (a) b", 100), (8, "idle", 50), (9, "zbench", 0)]));
        let after = processes(&root(&folder, &[(7, "python3 (a) b", 301), (9, "zbench", 90), (30, "cc1", 40)]));
        let busy = busiest(&before, &after, 9);
        assert_eq!(busy, [(7, "python3 (a) b".to_string(), 201), (30, "cc1".to_string(), 40)]);
        let said = reason(Some(0.6), 2.0, &busy).unwrap();
        assert!(said.contains("60.0 % of the cores") && said.contains("limit 5.0 %"), "{said}");
        assert!(said.contains("python3 (a) b (process 7, 100.5 % of a core) and cc1 (process 30, 20.0 %"), "{said}");
    }

    #[test]
    fn a_quiet_machine_and_one_that_does_not_tell_are_measured() {
        let busy = [(7, "python3".to_string(), 9)];
        assert_eq!(reason(Some(OTHERS_SHARE), 2.0, &busy), None);
        assert_eq!(reason(None, 2.0, &busy), None);
        assert!(reason(Some(0.06), 2.0, &[]).unwrap().contains("that have ended"));
    }
}
