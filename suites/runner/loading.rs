//! Host memory of a process while its rank loads weights, as the system sees it: what Hugging Face's scripts for FSDP print as
//! memory before entering, consumed at the end and at its peak.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use zbench_engine::observe::outcome::LoadPhase;
use zbench_host::machine;

/// Makes VmHWM begin anew at VmRSS (proc(5)).
const RESET: (&str, &str) = ("/proc/self/clear_refs", "5");
/// How often resident memory is looked at where the peak cannot be reset.
const LOOK: Duration = Duration::from_millis(2);

/// Bytes that were resident around and during loading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resident {
    /// When it began.
    pub before: u64,
    /// When it had ended.
    pub after: u64,
    /// At their most in between.
    pub peak: u64,
    /// The process's peak before it began, which the system has forgotten.
    pub earlier: u64,
}

/// Watches the process of a rank.
#[derive(Default)]
pub struct Watch(Mutex<Seen>);

#[derive(Default)]
struct Seen {
    begun: Option<Begun>,
    resident: Option<Resident>,
}

struct Begun {
    before: u64,
    earlier: u64,
    /// Samples resident memory, where the system's own peak does not begin anew.
    sampler: Option<PeakSampler>,
}

impl Watch {
    /// Notes what is resident now. Where the system does not say, nothing is measured.
    pub fn tell(&self, moment: LoadPhase) {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match moment {
            LoadPhase::LoadingBegins => seen.begun = begin(),
            LoadPhase::StepEnds { .. } => {}
            LoadPhase::LoadingEnds => seen.resident = seen.begun.take().and_then(Begun::end),
        }
    }

    /// What was seen, if loading has ended.
    pub fn resident(&self) -> Option<Resident> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).resident
    }
}

fn begin() -> Option<Begun> {
    let (before, earlier) = (machine::status_bytes("VmRSS")?, machine::status_bytes("VmHWM")?);
    let reset = std::fs::write(RESET.0, RESET.1).is_ok();
    Some(Begun { before, earlier, sampler: if reset { None } else { PeakSampler::start() } })
}

impl Begun {
    fn end(self) -> Option<Resident> {
        let after = machine::status_bytes("VmRSS")?;
        let peak = match self.sampler {
            Some(sampler) => sampler.end(),
            None => machine::status_bytes("VmHWM")?,
        };
        // The system counts resident pages by processor and adds up late: a peak may lag behind by some pages.
        Some(Resident { before: self.before, after, peak: peak.max(self.before).max(after), earlier: self.earlier })
    }
}

/// A thread that samples resident memory.
struct PeakSampler {
    stop: Arc<AtomicBool>,
    most: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

impl PeakSampler {
    fn start() -> Option<PeakSampler> {
        let (stop, most) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, seen) = (stop.clone(), most.clone());
        let look = move || {
            while !stopped.load(Ordering::Relaxed) {
                seen.fetch_max(machine::status_bytes("VmRSS").unwrap_or(0), Ordering::Relaxed);
                std::thread::sleep(LOOK);
            }
        };
        let thread = std::thread::Builder::new().name("loading".into()).spawn(look).ok()?;
        Some(PeakSampler { stop, most, thread })
    }

    fn end(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.join();
        self.most.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 64 << 20;

    /// Pages that are touched and given back show in the peak and not in what stays, however the peak is found.
    #[test]
    fn a_peak_that_has_passed_is_seen() {
        for resets in [true, false] {
            let mut begun = begin().unwrap();
            if !resets {
                begun.sampler = PeakSampler::start();
            }
            let pages = std::hint::black_box(vec![1u8; BYTES]);
            if !resets {
                std::thread::sleep(20 * LOOK);
            }
            drop(pages);
            let resident = begun.end().unwrap();
            // Other tests of this process take and give memory meanwhile.
            let grown = resident.peak - resident.before;
            assert!(grown as usize > BYTES / 2, "resets: {resets}, {resident:?}");
            assert!(resident.after <= resident.peak, "{resident:?}");
        }
    }

    #[test]
    fn a_watch_has_nothing_until_loading_has_ended() {
        let watch = Watch::default();
        assert_eq!(watch.resident(), None);
        watch.tell(LoadPhase::LoadingEnds);
        assert_eq!(watch.resident(), None);
        watch.tell(LoadPhase::LoadingBegins);
        assert_eq!(watch.resident(), None);
        watch.tell(LoadPhase::LoadingEnds);
        let resident = watch.resident().unwrap();
        assert!(resident.before > 0 && resident.peak >= resident.after.max(resident.before));
    }
}
