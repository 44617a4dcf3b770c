//! The flags that the commands of these suites share.

use clap::Args;
use std::time::Duration;
use zbench_config::units::duration;

/// Which cells are measured, and how often.
#[derive(Args, Clone, Debug)]
pub struct RunFlags {
    /// Change a key of the configuration; a bare word is a string. Narrows an axis to this value
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Only cells with these values: key=value terms joined by commas
    #[arg(long, value_name = "EXPR")]
    pub only: Option<String>,
    /// Trials of each cell, round robin over the cells [default: 3 of a file's, else 1 more; of checkpoints 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub trials: Option<u32>,
    /// Measure a file's cells again, whatever the notebook holds
    #[arg(long)]
    pub fresh: bool,
    /// Count records of another machine, build profile or commit as done
    #[arg(long, conflicts_with = "fresh")]
    pub any_environment: bool,
    /// Time limit of a trial
    #[arg(long, value_parser = duration, default_value = "10min", value_name = "TIME")]
    pub timeout: Duration,
    /// Refuse more cells
    #[arg(long, default_value_t = 1000, value_name = "N", value_parser = zbench_config::grid::max_cells)]
    pub max_cells: usize,
    /// Print the cells and what memory they need, and run nothing
    #[arg(long)]
    pub dry_run: bool,
}
