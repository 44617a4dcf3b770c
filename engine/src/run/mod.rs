//! A run of a cell: its ranks, their training loop, and what happens between steps.

mod evaluate;
mod guard;
pub mod launch_ranks;
pub mod rank;
pub mod saver;
pub mod train_loop;
