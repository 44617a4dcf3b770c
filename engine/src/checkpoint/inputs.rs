//! What all ranks of a run read.

use crate::checkpoint::training::Resumable;
use crate::checkpoint::weights::Checkpoint;
use crate::config::Cell;
use crate::data::Source;
use crate::observe::outcome::Probe;
use crate::plan::Plan;

pub struct Inputs<'a> {
    pub cell: &'a Cell,
    pub plan: &'a Plan,
    pub source: &'a Source,
    /// Weights to start from; without, they are drawn.
    pub checkpoint: Option<&'a Checkpoint>,
    /// Adapters to start from; without, they are fresh.
    pub adapters: Option<&'a Checkpoint>,
    /// The training checkpoint to go on from; without, the run is at its beginning.
    pub resume: Option<&'a Resumable>,
    /// Who measures this process while weights are loaded.
    pub probe: Probe<'a>,
}
