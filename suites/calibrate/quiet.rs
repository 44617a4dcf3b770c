//! A look at the machine before minutes of measuring: how much of the cores other processes use, and which ones. The limit is
//! that of [`judge`](super::judge), which looks again at the end.

use super::judge::OTHERS_SHARE;
use crate::bench::watched;
use crate::bench::{Limits, Stopped};
use std::time::{Duration, Instant};
use zbench_host::environment::Root;
use zbench_host::processes::{Processes, Used, programs};
use zbench_reports::record::others::sentence;

/// How long the look takes; ticks of a hundredth of a second resolve the limit in it.
const LOOK: Duration = Duration::from_secs(2);
/// So often it asks whether to stop.
const NAP: Duration = Duration::from_millis(50);

/// Looks, and says why measuring now would be of no use; nothing where the machine is quiet, or does not tell.
///
/// # Errors
/// It was stopped.
pub fn why_not(limits: &Limits<'_>) -> Result<Option<String>, Stopped> {
    let root = Root::system();
    let before = Processes::read(&root);
    let (looked, sampled) = watched(0, || {
        let begun = Instant::now();
        while begun.elapsed() < LOOK {
            limits.check()?;
            std::thread::sleep(NAP);
        }
        Ok(())
    });
    looked?;
    let after = Processes::read(&root);
    let used = after.others(&before, &after.descendants(std::process::id()));
    Ok(reason(sampled.others_share, sampled.seconds, &used))
}

/// Why others are in the way, by their share of the cores and what they used in so many seconds.
fn reason(others_share: Option<f64>, seconds: f64, used: &[Used]) -> Option<String> {
    let share = others_share.filter(|share| *share > OTHERS_SHARE)?;
    Some(sentence(share, 0.0, &programs(used, seconds)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quiet_machine_and_one_that_does_not_tell_are_measured() {
        let used = [Used { process: 7, name: "python3".into(), seconds: 2.0 }];
        assert_eq!(reason(Some(OTHERS_SHARE), 2.0, &used), None);
        assert_eq!(reason(None, 2.0, &used), None);
        let said = reason(Some(0.6), 2.0, &used).unwrap();
        assert!(
            said.contains("60.0 % of the cores") && said.contains("python3 (process 7, 100.0 % of a core)"),
            "{said}"
        );
    }
}
