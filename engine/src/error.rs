//! Why a step ended early.

use crate::comm::CommError;
use crate::outcome::Worse;
use zbench_kernels::{KernelError, OutOfMemory};

#[derive(Debug, Clone, thiserror::Error)]
pub enum StepError {
    #[error(transparent)]
    OutOfMemory(#[from] OutOfMemory),
    #[error(transparent)]
    Kernel(#[from] KernelError),
    #[error(transparent)]
    Comm(#[from] CommError),
    /// Tokens or weights could not be read.
    #[error("{0}")]
    Input(String),
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

pub type Result<T, E = StepError> = std::result::Result<T, E>;
