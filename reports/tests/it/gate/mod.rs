//! The gate: its statistics by hand and by simulation, its procedure on a fake bench with a fake clock.

mod fake;
mod next;
mod procedure;
mod ranks;
mod simulation;
mod turns;
