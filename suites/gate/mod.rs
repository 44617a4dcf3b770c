//! The regression gate's hands: reads rules and baselines, measures trials of two programs or two configurations side by
//! side, stores pools of samples. What follows from the samples is decided in `zbench_reports::gate`.

pub mod baseline;
pub mod cells;
pub mod measure;
pub mod pool;
pub mod refuse;
pub mod rules;
pub mod scratch;
pub mod turns;
