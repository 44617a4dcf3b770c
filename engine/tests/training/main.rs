//! The engine as a whole: against PyTorch, against itself under every strategy, and against its own plan.

mod parity;
mod support;
