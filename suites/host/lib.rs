//! The machine that zbench runs on: its environment, devices and load; and the terminal, log and exit codes of zbench.

/// Writes a line on standard error. Where standard error is closed or full the program goes on: the measurement matters more.
#[macro_export]
macro_rules! say {
    ($($text:tt)*) => {{
        $crate::terminal::say(format!($($text)*));
    }};
}

pub mod devices;
pub mod environment;
pub mod exit;
pub mod logging;
pub mod machine;
pub mod processes;
pub mod sampling;
pub mod terminal;
