//! Times of a call: warm-up, then samples until the time is over and there are enough of them.

use super::Method;
use crate::bench::{Limits, Stopped};
use std::time::{Duration, Instant};
use zbench_kernels::{KernelError, Kernels};

/// A sample takes this long at least, so that reading the clock is a thousandth of it; calls that are shorter are timed
/// several together.
const SAMPLE: Duration = Duration::from_micros(50);
/// Calls of one sample at most: an empty product takes some tens of nanoseconds.
const MOST_CALLS: u64 = 4096;
/// Samples at most, however short they are.
const MOST_SAMPLES: usize = 200_000;

#[derive(Clone, Debug, PartialEq)]
pub struct Samples {
    /// Seconds of a call, one for each sample.
    pub seconds: Vec<f64>,
    pub calls: u64,
}

/// The same on a device, whose work is waited for at the end of each sample: that wait takes some microseconds.
const DEVICE_SAMPLE: Duration = Duration::from_millis(2);

pub fn time<E: From<Stopped> + From<KernelError>>(
    method: &Method,
    limits: &Limits<'_>,
    kernels: &dyn Kernels,
    call: &mut dyn FnMut() -> Result<(), E>,
) -> Result<Samples, E> {
    let begin = Instant::now();
    let mut shortest = Duration::MAX;
    loop {
        limits.check()?;
        let start = Instant::now();
        call()?;
        kernels.synchronize()?;
        shortest = shortest.min(start.elapsed());
        if begin.elapsed().as_secs_f64() >= method.warmup {
            break;
        }
    }
    let calls = calls_of(shortest, if kernels.is_host() { SAMPLE } else { DEVICE_SAMPLE });
    let (begin, mut seconds) = (Instant::now(), Vec::new());
    while seconds.len() < MOST_SAMPLES {
        limits.check()?;
        let (start, first) = (Instant::now(), kernels.record_event()?);
        for _ in 0..calls {
            call()?;
        }
        let last = kernels.record_event()?;
        kernels.synchronize()?;
        // By the device's own clock where it has one: what the host takes to ask and to wait is not the kernel's time.
        let took = match (first, last) {
            (Some(first), Some(last)) => last.elapsed(&*first).map_err(KernelError::from)?,
            _ => start.elapsed(),
        };
        seconds.push(took.as_secs_f64() / calls as f64);
        let enough = u64::try_from(seconds.len()).is_ok_and(|count| count >= method.iterations);
        if enough && begin.elapsed().as_secs_f64() >= method.seconds {
            break;
        }
    }
    Ok(Samples { seconds, calls })
}

/// Calls of a sample, of the time of one.
fn calls_of(one: Duration, sample: Duration) -> u64 {
    let one = one.as_nanos().max(1);
    u64::try_from(sample.as_nanos().div_ceil(one)).unwrap_or(MOST_CALLS).clamp(1, MOST_CALLS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::BenchError;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use zbench_kernels::cuda::host::{Host, Order};
    use zbench_kernels::{Cpu, Cuda};
    use zbench_kernels_testing::Late;

    fn limits(stop: &AtomicBool, seconds: u64) -> Limits<'_> {
        Limits { stop, deadline: Instant::now() + Duration::from_secs(seconds), parts: None }
    }

    #[test]
    fn there_are_as_many_samples_as_asked_for_and_each_is_of_whole_calls() {
        let stop = AtomicBool::new(false);
        let mut count = 0u64;
        let method = Method { seconds: 0.0, iterations: 7, warmup: 0.0 };
        let samples = time::<BenchError>(&method, &limits(&stop, 60), &Cpu::new(1), &mut || {
            count += 1;
            Ok(())
        });
        let samples = samples.unwrap();
        assert_eq!((samples.seconds.len(), count), (7, 1 + 7 * samples.calls));
        assert!((1..=MOST_CALLS).contains(&samples.calls), "{}", samples.calls);
        assert_eq!(
            [1, 50_000, 50_001, 10_000_000].map(|ns| calls_of(Duration::from_nanos(ns), SAMPLE)),
            [4096, 1, 1, 1]
        );
    }

    /// The clock of this device stands still, so whoever reads the host's would tell more than nothing.
    #[test]
    fn a_device_is_timed_by_its_own_clock() {
        let kept = std::env::current_exe().unwrap().with_file_name("cache/kernels");
        let host = Host::new(&kept, "c++", &[], Order::Forward).unwrap();
        let kernels = Cuda::new(Arc::new(Late(host))).unwrap();
        let (stop, method) = (AtomicBool::new(false), Method { seconds: 0.0, iterations: 5, warmup: 0.0 });
        let samples = time::<BenchError>(&method, &limits(&stop, 60), &kernels, &mut || {
            std::thread::sleep(Duration::from_millis(3));
            Ok(())
        });
        assert_eq!(samples.unwrap(), Samples { seconds: vec![0.0; 5], calls: 1 });
    }

    #[test]
    fn a_stop_and_a_deadline_end_it() {
        let stop = AtomicBool::new(false);
        let method = Method { seconds: 3600.0, iterations: 1, warmup: 0.0 };
        let mut calls = 0;
        let asked = time::<BenchError>(&method, &limits(&stop, 60), &Cpu::new(1), &mut || {
            calls += 1;
            if calls == 5 {
                stop.store(true, Ordering::Relaxed);
            }
            Ok(())
        });
        assert!(matches!(asked, Err(BenchError::Stopped(Stopped::Interrupted))));
        let stop = AtomicBool::new(false);
        let late = time::<BenchError>(&method, &limits(&stop, 0), &Cpu::new(1), &mut || Ok(()));
        assert!(matches!(late, Err(BenchError::Stopped(Stopped::TimedOut))));
    }
}
