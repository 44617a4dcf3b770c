//! An emulated link between a rank's device and the host's memory, where the two are one memory: moves take the time that they would
//! take over a link of so many bytes per second, each way.
//!
//! A move begins when it is asked for or when the one before it in its direction is through, whichever is later. It is over when its
//! bytes have passed and the latency is over. Meanwhile the rank goes on, and it sleeps where it waits for a move that is not over, as
//! it would for a device that copies by itself. The bytes themselves are copied when the move begins, by the rank's own thread: where
//! that takes longer than the link, the time is the machine's, and is counted as such.

use crate::config::LinkRate;
use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use zbench_collectives::link::{LinkUse, SLACK, now, ns, sleep_until};
use zbench_kernels::memory::device::{DeviceError, Event};

/// A direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    ToDevice,
    ToHost,
}

/// The link of one rank.
#[derive(Debug)]
pub struct HostLink {
    rate: LinkRate,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// By direction: from when on the link is free, in ns of the monotonic clock.
    free: [u64; 2],
    usage: LinkUse,
}

/// A move that was announced and whose bytes are to be copied.
#[derive(Clone, Copy, Debug)]
#[must_use = "its bytes are not copied yet"]
pub struct Begun {
    start: u64,
    end: u64,
}

/// The moment at which a move is over.
struct Arrival(u64);

impl HostLink {
    pub fn new(rate: LinkRate) -> HostLink {
        HostLink { rate, state: Mutex::default() }
    }

    /// Takes the link for a move of so many bytes.
    pub fn begin(&self, way: Way, bytes: u64) -> Begun {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let free = &mut state.free[way as usize];
        let start = now().max(*free);
        // A link is never faster than stated.
        *free = start.saturating_add(ns(bytes as f64 / self.rate.bandwidth));
        let end = free.saturating_add(ns(self.rate.latency));
        state.usage.calls += 1;
        state.usage.crossing_bytes += bytes;
        Begun { start, end }
    }

    /// The bytes of a move have been copied: what is to be waited for.
    pub fn carried(&self, Begun { start, end }: Begun) -> Arc<dyn Event> {
        let late = now().saturating_sub(end);
        if late as f64 > SLACK * end.saturating_sub(start) as f64 {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.usage.over_budget += 1;
            state.usage.late_ns += late;
        }
        Arc::new(Arrival(end))
    }

    /// How its moves fared so far, both ways together.
    pub fn usage(&self) -> LinkUse {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).usage
    }
}

impl Event for Arrival {
    fn wait(&self) -> Result<(), DeviceError> {
        sleep_until(self.0);
        Ok(())
    }

    fn query(&self) -> Result<bool, DeviceError> {
        Ok(now() >= self.0)
    }

    fn elapsed(&self, earlier: &dyn Event) -> Result<Duration, DeviceError> {
        let earlier = earlier.as_any().downcast_ref::<Arrival>().map_or(self.0, |earlier| earlier.0);
        Ok(Duration::from_nanos(self.0.saturating_sub(earlier)))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: LinkRate = LinkRate { bandwidth: 1e9, latency: 2e-3 };

    fn link() -> HostLink {
        HostLink::new(RATE)
    }

    #[test]
    fn moves_of_a_direction_take_turns_and_directions_do_not() {
        let (link, before) = (link(), now());
        let [first, second] = [5_000_000, 1_000_000].map(|bytes| link.begin(Way::ToDevice, bytes));
        let back = link.begin(Way::ToHost, 3_000_000);
        assert!(first.start >= before);
        assert_eq!(first.end - first.start, 5_000_000 + 2_000_000);
        // The latencies of two moves overlap, as on a wire.
        assert_eq!((second.start, second.end), (first.start + 5_000_000, first.start + 6_000_000 + 2_000_000));
        assert!(back.start < second.start, "the other way was free");
        assert_eq!(back.end - back.start, 3_000_000 + 2_000_000);
        let LinkUse { calls, crossing_bytes, .. } = link.usage();
        assert_eq!((calls, crossing_bytes), (3, 9_000_000));
    }

    #[test]
    fn waiting_ends_no_earlier_than_the_move() {
        let link = link();
        let begun = link.begin(Way::ToHost, 4_000_000);
        let arrival = link.carried(begun);
        arrival.wait().unwrap();
        assert!(now() >= begun.end && arrival.query().unwrap());
    }

    #[test]
    fn a_copy_that_is_slower_than_the_link_is_counted() {
        let link = link();
        let begun = link.begin(Way::ToHost, 1000);
        sleep_until(begun.end + 1_000_000);
        link.carried(begun).wait().unwrap();
        let usage = link.usage();
        assert!((usage.over_budget, usage.late_ns >= 1_000_000) == (1, true), "{usage:?}");
    }
}
