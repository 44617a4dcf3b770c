//! The machine that zbench runs on: its environment, devices and load, and how zbench speaks to whoever started it.

/// Writes a line on standard error. A standard error that is closed or full is no reason to end: the measurement matters more.
#[macro_export]
macro_rules! say {
    ($($text:tt)*) => {{
        $crate::terminal::say(format!($($text)*));
    }};
}

pub mod devices;
pub mod environment;
pub mod exit;
pub mod machine;
pub mod sampling;
pub mod terminal;
