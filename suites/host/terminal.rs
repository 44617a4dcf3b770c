//! Colour and width of what is printed: by the stream, the environment and the command line. The two streams are judged separately,
//! since one of them is often a file.

use clap::ValueEnum;
use std::io::{IsTerminal, Write};
use std::sync::OnceLock;
use zbench_reports::render::printable;

/// When what is printed has colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ColorWhen {
    /// On a terminal, unless NO_COLOR is set or TERM is dumb
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// Looks up a variable of the environment.
pub type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

/// A standard stream of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

impl Stream {
    /// Whether it is a terminal.
    pub fn is_terminal(self) -> bool {
        match self {
            Stream::Out => std::io::stdout().is_terminal(),
            Stream::Err => std::io::stderr().is_terminal(),
        }
    }

    /// Columns, where it is a terminal that states them.
    fn columns(self) -> Option<u16> {
        let size = match self {
            Stream::Out => rustix::termios::tcgetwinsize(std::io::stdout()),
            Stream::Err => rustix::termios::tcgetwinsize(std::io::stderr()),
        };
        size.ok().map(|size| size.ws_col).filter(|columns| *columns > 0)
    }

    /// Whether it may have colour. A terminal of no columns is seen by nobody: Open MPI gives ranks one as standard output, and
    /// passes their text on to its own, often a file.
    pub fn color(self, when: ColorWhen) -> bool {
        has_color(when, &|name| std::env::var(name).ok(), self.columns().is_some())
    }

    /// Columns to wrap to: what `COLUMNS` says, else the terminal's, else 120.
    pub fn width(self) -> u16 {
        width(&|name| std::env::var(name).ok(), self.columns())
    }

    /// Whether it is a terminal on which a line can be overwritten, by TERM. indicatif draws nothing on others.
    pub fn is_live(self) -> bool {
        self.is_terminal() && std::env::var_os("TERM").is_some_and(|term| !term.is_empty() && term != "dumb")
    }
}

/// The first of these rules that applies decides: the command line; NO_COLOR (no-color.org); CLICOLOR_FORCE; TERM=dumb and
/// CLICOLOR=0; a terminal with columns has colour and nothing else does.
fn has_color(when: ColorWhen, env: Env<'_>, has_columns: bool) -> bool {
    let is_set = |name: &str| env(name).filter(|value| !value.is_empty());
    match when {
        ColorWhen::Always => true,
        ColorWhen::Never => false,
        ColorWhen::Auto if is_set("NO_COLOR").is_some() => false,
        ColorWhen::Auto if is_set("CLICOLOR_FORCE").is_some_and(|value| value != "0") => true,
        ColorWhen::Auto if env("TERM").is_some_and(|term| term == "dumb") => false,
        ColorWhen::Auto if env("CLICOLOR").is_some_and(|value| value == "0") => false,
        ColorWhen::Auto => has_columns,
    }
}

fn width(env: Env<'_>, terminal: Option<u16>) -> u16 {
    let stated = env("COLUMNS").and_then(|columns| columns.trim().parse().ok()).filter(|columns| *columns > 0);
    stated.or(terminal).unwrap_or(120)
}

/// The value of `--color` on a command line that is not parsed yet: help and usage errors have colour, too.
pub fn color_of(arguments: impl Iterator<Item = std::ffi::OsString>) -> ColorWhen {
    let mut found = ColorWhen::Auto;
    let mut arguments = arguments.filter_map(|word| word.into_string().ok()).peekable();
    while let Some(word) = arguments.next() {
        let value = match word.as_str() {
            "--" => break,
            "--color" => arguments.peek().cloned(),
            _ => word.strip_prefix("--color=").map(str::to_string),
        };
        let value = value.and_then(|value| ColorWhen::from_str(&value, false).ok());
        found = value.unwrap_or(found);
    }
    found
}

/// The value of `--color`, for messages on standard error.
static ASKED: OnceLock<ColorWhen> = OnceLock::new();

/// Stores the value of `--color`, once, before any message.
pub fn remember(when: ColorWhen) {
    // The first value stays: the command line does not change.
    let _ = ASKED.set(when);
}

/// Writes a line on standard error, with `error:` and `warning:` in colour, as clap does. The text may contain names and values from
/// files and variables: control characters are taken out.
pub fn say(text: String) {
    let asked = ASKED.get().copied().unwrap_or(ColorWhen::Auto);
    let text = printable(&text);
    say_rendered(if Stream::Err.color(asked) { accented(&text) } else { text.into_owned() });
}

/// Writes text on standard error that was rendered for a terminal, with its own colours.
pub fn say_rendered(mut line: String) {
    line.push('\n');
    // One write, so that the lines of several ranks stay whole. A stderr that is closed or full is no reason to end.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Prints panics with [`say`], as their messages may contain anything. The backtrace follows where `RUST_BACKTRACE` asks for it.
pub fn say_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        say(format!("thread '{}' {panic}", thread.name().unwrap_or("<unnamed>")));
        let trace = std::backtrace::Backtrace::capture();
        if trace.status() == std::backtrace::BacktraceStatus::Captured {
            say(trace.to_string());
        }
    }));
}

/// Prints help, version or a usage error, coloured by the same rules as all other output: clap's own rules let a terminal of
/// `TERM=dumb` have colour where `CI` is set.
pub fn print_clap(error: &clap::Error, stream: Stream, when: ColorWhen) {
    let text = error.render();
    let text = if stream.color(when) { text.ansi().to_string() } else { printable(&text.to_string()).into_owned() };
    // A reader that has gone away, as `| head` does, is no error.
    let _ = match stream {
        Stream::Out => std::io::stdout().write_all(text.as_bytes()),
        Stream::Err => std::io::stderr().write_all(text.as_bytes()),
    };
}

fn accented(text: &str) -> String {
    for (word, code) in [("error:", "31"), ("warning:", "33")] {
        if let Some(rest) = text.strip_prefix(word) {
            return format!("\x1b[1m\x1b[{code}m{word}\x1b[0m{rest}");
        }
    }
    text.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colour_is_what_is_asked_for_by_the_nearest() {
        use ColorWhen::{Always, Auto, Never};
        for (when, variables, has_columns, expected) in [
            (Auto, "", true, true),
            (Auto, "", false, false),
            (Auto, "NO_COLOR=1", true, false),
            (Auto, "NO_COLOR=", true, true),
            (Auto, "NO_COLOR=0", true, false),
            (Auto, "CLICOLOR_FORCE=1", false, true),
            (Auto, "CLICOLOR_FORCE=0", false, false),
            (Auto, "CLICOLOR_FORCE=1 NO_COLOR=1", true, false),
            (Auto, "CLICOLOR=0", true, false),
            (Auto, "CLICOLOR=1", false, false),
            (Auto, "TERM=dumb", true, false),
            (Auto, "TERM=dumb CLICOLOR_FORCE=1", true, true),
            (Auto, "TERM=xterm", true, true),
            (Always, "NO_COLOR=1 TERM=dumb", false, true),
            (Never, "CLICOLOR_FORCE=1", true, false),
        ] {
            let env = |name: &str| {
                let pairs = variables.split_whitespace().filter_map(|pair| pair.split_once('='));
                pairs.into_iter().find(|(of, _)| *of == name).map(|(_, value)| value.to_string())
            };
            assert_eq!(has_color(when, &env, has_columns), expected, "{when:?} {variables:?} {has_columns}");
        }
    }

    #[test]
    fn only_the_word_has_colour() {
        assert_eq!(accented("error: no error: here"), "\x1b[1m\x1b[31merror:\x1b[0m no error: here");
        assert_eq!(accented("warning: x"), "\x1b[1m\x1b[33mwarning:\x1b[0m x");
        assert_eq!(accented("an error: x"), "an error: x");
    }

    #[test]
    fn width_is_stated_or_the_terminals() {
        for (columns, terminal, expected) in [
            (Some("40"), Some(80), 40),
            (None, Some(80), 80),
            (None, None, 120),
            (Some("0"), Some(80), 80),
            (Some("wide"), None, 120),
            (Some("99999999"), Some(70), 70),
        ] {
            let env = |name: &str| (name == "COLUMNS").then(|| columns.map(str::to_string)).flatten();
            assert_eq!(width(&env, terminal), expected, "{columns:?} {terminal:?}");
        }
    }

    #[test]
    fn the_command_line_is_read_before_it_is_parsed() {
        for (line, expected) in [
            ("list --color never", ColorWhen::Never),
            ("--color=always nonsense", ColorWhen::Always),
            ("list --color", ColorWhen::Auto),
            ("list --color purple", ColorWhen::Auto),
            ("note x -- --color=never", ColorWhen::Auto),
            ("", ColorWhen::Auto),
        ] {
            assert_eq!(color_of(line.split_whitespace().map(Into::into)), expected, "{line}");
        }
    }
}
