//! One micro-batch on a compute queue and a communication queue: gathers ahead of the units that need them, reductions
//! behind those that made them.

/// A run of equal units.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Unit {
    /// How many follow each other.
    pub count: usize,
    /// Seconds of forward.
    pub forward: f64,
    /// Seconds of backward, with what it makes again.
    pub backward: f64,
    /// Seconds of gathering its weights before forward.
    pub gather_forward: f64,
    /// The same before backward.
    pub gather_backward: f64,
    /// Seconds of reducing its gradients.
    pub reduce: f64,
}

/// What a micro-batch waited for and what ran beside compute.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Waited {
    /// Seconds that compute stood still.
    pub exposed: f64,
    /// Seconds of communication beside compute.
    pub hidden: f64,
}

/// Compute and communication from the start of forward to the end of the last reduction. `ahead` units are gathered before
/// they are needed; gathers go before reductions that wait.
pub fn run(units: &[Unit], ahead: usize) -> Waited {
    let total = |f: fn(&Unit) -> f64| units.iter().map(|u| f(u) * u.count as f64).sum::<f64>();
    let communication = total(|u| u.gather_forward + u.gather_backward + u.reduce);
    let compute = total(|u| u.forward + u.backward);
    if communication <= 0.0 {
        return Waited::default();
    }
    let mut clock = Clock::default();
    let forward = units.iter().flat_map(|u| std::iter::repeat_n((u.forward, u.gather_forward, 0.0), u.count));
    clock.pass(forward, ahead);
    let backward =
        units.iter().rev().flat_map(|u| std::iter::repeat_n((u.backward, u.gather_backward, u.reduce), u.count));
    clock.pass(backward, ahead);
    let end = clock.compute.max(clock.wire);
    let exposed = (end - compute).max(0.0);
    Waited { exposed, hidden: (communication - exposed).max(0.0) }
}

#[derive(Default)]
struct Clock {
    /// When compute is free.
    compute: f64,
    /// When the wire is free.
    wire: f64,
}

impl Clock {
    /// Units one after another: (compute, gather before, reduce after).
    fn pass(&mut self, units: impl Iterator<Item = (f64, f64, f64)>, ahead: usize) {
        const SLOTS: usize = 8;
        let ahead = ahead.clamp(0, SLOTS - 1);
        // When each of the last units began: the gather of a unit may start when the one `ahead` before it begins.
        let mut began = [self.compute; SLOTS];
        // Reductions let the next gather go first: (when ready, seconds).
        let mut waiting = [(0.0, 0.0); 2];
        for (index, (compute, gather, reduce)) in units.enumerate() {
            let mut ready = self.compute;
            if gather > 0.0 {
                let issued = if ahead == 0 { self.compute } else { began[(index + SLOTS - ahead) % SLOTS] };
                self.wire = self.wire.max(issued) + gather;
                ready = ready.max(self.wire);
            }
            began[index % SLOTS] = ready;
            self.compute = ready + compute;
            self.send(waiting[0]);
            waiting = [waiting[1], (self.compute, reduce)];
        }
        self.send(waiting[0]);
        self.send(waiting[1]);
    }

    fn send(&mut self, (ready, seconds): (f64, f64)) {
        if seconds > 0.0 {
            self.wire = self.wire.max(ready) + seconds;
        }
    }
}
