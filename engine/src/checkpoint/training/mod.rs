//! Training checkpoints: the state of a run on disk, from which any number of ranks goes on under any strategy.
//!
//! A checkpoint is a folder `step-00000010` with an `index.json`. In the sharded layout every rank has written one file: its
//! part of the world-wide split of every unit's weights and moments, so that all ranks write alike and nothing is written
//! twice, whatever the strategy. Every block of a file has a checksum, which is looked at whenever it is read. The folder has
//! another name until all of it is on the disk: a run that is killed, at whatever moment, leaves the checkpoints it had.
//!
//! What does not train is not in it: it is read or drawn again as it was, and a checksum says whether it is the same.

mod digest;
mod error;
mod folder;
pub(crate) mod full;
mod index;
mod json;
mod load;
pub(crate) mod shard;
mod slice;

pub use digest::Digest;
pub(crate) use error::Result;
pub use error::StateError;
pub(crate) use folder::{Folder, part_dir};
pub use folder::{checkpoints, newest, position_in, step_dir};
pub use index::{Identity, Index, Position};
pub(crate) use index::{RankFiles, StateKind};
pub(crate) use json::{read_json, write_json};
pub use load::Resumable;
pub(crate) use shard::file_names;

use crate::compute::error::StepError;
use std::thread::JoinHandle;

pub(crate) fn spawn<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<JoinHandle<Result<T>>> {
    let failed = |error| StateError::Step(StepError::Input(format!("a thread could not be started: {error}")));
    zbench_kernels::threads::spawn::start("checkpoint", work).map_err(failed)
}
