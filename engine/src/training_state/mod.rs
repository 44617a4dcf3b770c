//! Training checkpoints: the state of a run on disk, from which any number of ranks goes on under any strategy.
//!
//! A checkpoint is a folder `step-00000010` with an `index.json`. In the sharded layout every rank has written one file: its
//! part of the world-wide split of every unit's weights and moments, so that all ranks write alike and nothing is written
//! twice, whatever the strategy. Every block of a file has a checksum, which is looked at whenever it is read. The folder has
//! another name until all of it is on the disk: a run that is killed, at whatever moment, leaves the checkpoints it had.
//!
//! What does not train is not in it: it is read or drawn again as it was, and a checksum says whether it is the same.

mod blocks;
mod digest;
mod error;
mod folder;
mod full;
mod index;
mod load;
mod saver;
mod shard;

pub use digest::Digest;
pub use error::StateError;
pub use folder::{checkpoints, newest, position_in, step_dir};
pub use index::{Identity, Index, Position};
pub use load::Resumable;
pub use saver::Saver;
