//! The engine as a whole: against PyTorch, against itself under every strategy, and against its own plan.

mod accounting;
mod families;
mod failures;
mod identity;
mod layers;
mod parity;
mod recording;
mod support;
