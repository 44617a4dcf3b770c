//! An emulated speed of blocks: what computes one lasts at least its share of a stated time, by sleeping. So schedules of a pipeline can
//! be compared where ranks outnumber cores: who sleeps needs none.

use crate::action::Action;
use crate::config::Pace;
use crate::model::Layout;
use zbench_collectives::link::{now, ns, sleep_until};

impl Pace {
    /// Seconds that an action of a rank with this layout lasts at least. A micro-batch's forward (backward) over all blocks of the
    /// rank lasts the stated time; every block has the same part of it, and so has each part of a backward in two. Other layers and
    /// recomputation have none.
    pub fn share(&self, layout: &Layout, action: Action) -> Option<f64> {
        let (all, layer) = match action {
            Action::Forward { layer, .. } => (self.forward, layer),
            Action::Backward { layer, .. } => (self.backward, layer),
            Action::BackwardInput { layer, .. } | Action::BackwardWeight { layer, .. } => (self.backward / 2.0, layer),
            _ => return None,
        };
        layout.layers[layer].block()?;
        Some(all / layout.blocks().count() as f64)
    }
}

/// A share that has begun.
#[must_use = "nothing sleeps"]
pub(crate) struct Paced(Option<u64>);

impl Paced {
    /// Begins now; without seconds there is nothing to wait for.
    pub fn begin(seconds: Option<f64>) -> Paced {
        Paced(seconds.map(|seconds| now().saturating_add(ns(seconds))))
    }

    /// Returns when the share is over.
    pub fn end(self) {
        if let Paced(Some(end)) = self {
            sleep_until(end);
        }
    }
}
