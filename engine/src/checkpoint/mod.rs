//! Weights and training state on disk.

pub(crate) mod export;
pub(crate) mod init;
pub mod inputs;
pub mod save;
pub mod training;
pub mod weights;
