//! Ends a run whose loss has long been far above its smallest.

use crate::config::Divergence;
use crate::observe::outcome::{Step, Worse};

/// Looks at every step's loss. All ranks have the same losses, so all come to the same end.
#[derive(Debug, Default)]
pub struct Guard {
    limits: Option<Divergence>,
    /// The smallest loss, and the step that had it.
    smallest: Option<(f64, u64)>,
    /// Steps one after the other that were far above it.
    above: u64,
}

impl Guard {
    /// A guard that has seen these steps, and let them pass.
    pub fn new(limits: Option<Divergence>, seen: &[Step]) -> Guard {
        let mut guard = Guard { limits, ..Guard::default() };
        for step in seen {
            // What it says now it has said before the checkpoint was written.
            let _ = guard.see(step);
        }
        guard
    }

    /// Takes in a step; why the run is to end, if it is.
    pub fn see(&mut self, step: &Step) -> Option<Worse> {
        let Divergence { factor, steps } = self.limits?;
        let (smallest, at) = *self.smallest.get_or_insert((step.loss, step.step));
        if step.loss < smallest {
            self.smallest = Some((step.loss, step.step));
        }
        self.above = if step.step != at && step.loss >= factor * smallest { self.above + 1 } else { 0 };
        (self.above >= steps).then_some(Worse { step: step.step, loss: step.loss, smallest, at, factor, steps })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(losses: &[f64]) -> Vec<Step> {
        let step = |(at, loss): (usize, &f64)| Step {
            step: at as u64 + 1,
            timed: true,
            loss: *loss,
            grad_norm: 1.0,
            lr: 0.1,
            ms: 1.0,
            tokens: 1,
            counts: None,
            loss_scale: None,
            skipped: false,
        };
        losses.iter().enumerate().map(step).collect()
    }

    /// The step at which a run of these losses ends.
    fn ends(factor: f64, count: u64, losses: &[f64]) -> Option<Worse> {
        let mut guard = Guard::new(Some(Divergence { factor, steps: count }), &[]);
        steps(losses).iter().find_map(|step| guard.see(step))
    }

    #[test]
    fn a_run_ends_after_so_many_steps_in_a_row() {
        let worse = ends(2.0, 3, &[4.0, 3.0, 6.0, 7.0, 5.9, 6.0, 6.1, 9.0, 1.0]).unwrap();
        assert_eq!((worse.step, worse.loss, worse.smallest, worse.at), (8, 9.0, 3.0, 2));
        let said = worse.to_string();
        assert!(said.contains("9.0000") && said.contains("3.0000 in step 2") && said.contains("train.lr"), "{said}");
        assert_eq!(ends(2.0, 3, &[4.0, 3.0, 6.0, 7.0, 5.9, 6.0, 6.1, 5.0, 9.0]), None);
        assert_eq!(ends(2.0, 1, &[3.0, 6.0]).map(|worse| worse.step), Some(2));
        assert_eq!(ends(1.5, 2, &[3.0, 2.0, 2.9, 1.0, 1.4, 1.5, 1.5]).map(|worse| worse.step), Some(7));
        let mut none = Guard::new(None, &[]);
        assert!(steps(&[1.0, 100.0, 1e9]).iter().all(|step| none.see(step).is_none()));
    }

    #[test]
    fn a_run_that_goes_on_knows_what_was_before() {
        let limits = Some(Divergence { factor: 2.0, steps: 3 });
        let before = steps(&[2.0, 5.0, 5.0]);
        let mut guard = Guard::new(limits, &before[..2]);
        assert_eq!(guard.see(&before[2]), None);
        let next = Step { step: 4, ..before[2].clone() };
        assert_eq!(guard.see(&next).map(|worse| (worse.step, worse.at)), Some((4, 1)));
    }
}
