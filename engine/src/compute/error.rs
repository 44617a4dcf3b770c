//! Why a step ended early.

use crate::memory::tiers::MemoryTiersError;
use crate::observe::outcome::Worse;
use std::sync::Arc;
use zbench_collectives::CommError;
use zbench_kernels::disk::DiskError;
use zbench_kernels::{KernelError, OutOfMemory};

#[derive(Debug, Clone, thiserror::Error)]
pub enum StepError {
    #[error(transparent)]
    OutOfMemory(#[from] OutOfMemory),
    #[error(transparent)]
    Kernel(#[from] KernelError),
    #[error(transparent)]
    Comm(#[from] CommError),
    /// What is offloaded to a disk could not be written or read.
    #[error(transparent)]
    Disk(Arc<DiskError>),
    /// Tokens or weights could not be read.
    #[error("{0}")]
    Input(String),
    /// The plan or the program contradicts itself.
    #[error("{0}; this is a bug in zbench: please report it")]
    Bug(&'static str),
    /// Loss or norm is not finite, or gradients overflow at the smallest loss scale.
    #[error("step {step}: {what} is {value}")]
    Diverged {
        step: u64,
        /// `loss`, `grad_norm` or `loss_scale`.
        what: &'static str,
        value: f64,
    },
    /// The loss has long been far above its smallest.
    #[error("{0}")]
    Worse(Worse),
}

impl From<DiskError> for StepError {
    fn from(error: DiskError) -> StepError {
        StepError::Disk(Arc::new(error))
    }
}

impl From<MemoryTiersError> for StepError {
    fn from(error: MemoryTiersError) -> StepError {
        match error {
            MemoryTiersError::Arena(error) => StepError::Input(error.to_string()),
            MemoryTiersError::Disk(error) => error.into(),
            MemoryTiersError::Device(error) => error.into(),
        }
    }
}

pub type Result<T, E = StepError> = std::result::Result<T, E>;
