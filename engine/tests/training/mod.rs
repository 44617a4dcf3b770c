//! The engine as a whole: against PyTorch, against itself under every strategy, and against its own plan.

pub mod accounting;
mod adapters;
mod cuda;
mod documents;
mod evaluation;
mod failures;
pub mod families;
mod formulas;
mod identity;
mod initialization;
mod kinds;
mod layers;
mod link;
mod loading;
mod old_checkpoints;
mod pace;
mod parity;
mod parity_bounds;
mod precision;
mod prepack;
mod quantised;
mod recording;
mod repeats;
mod resume;
pub mod support;
mod tcp;
mod trace;
