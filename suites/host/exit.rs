//! Exit codes of the program (docs/contract.md).

/// Done.
pub const SUCCESS: u8 = 0;
/// Wrong usage or configuration.
pub const USAGE: u8 = 1;
/// The gate found a regression.
pub const REGRESSION: u8 = 2;
/// The data do not decide.
pub const INCONCLUSIVE: u8 = 3;
/// Nothing was measured, although a measurement was asked for.
pub const NOT_MEASURED: u8 = 4;
/// At least one cell failed, timed out or diverged.
pub const FAILED: u8 = 5;
/// Stopped by Ctrl-C or another signal with the same meaning.
pub const INTERRUPTED: u8 = 130;
