//! Exit codes of the program (docs/contract.md).

/// Done.
pub const SUCCESS: u8 = 0;
/// Usage or configuration.
pub const USAGE: u8 = 1;
/// Worse than it may be.
pub const REGRESSION: u8 = 2;
/// The data do not say.
pub const INCONCLUSIVE: u8 = 3;
/// Nothing was measured, though asked.
pub const NOT_MEASURED: u8 = 4;
/// At least one cell failed, timed out or diverged.
pub const FAILED: u8 = 5;
/// Stopped by Ctrl-C, or another signal that means the same.
pub const INTERRUPTED: u8 = 130;
