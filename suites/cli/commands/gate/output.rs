//! Where a gate's report goes: standard output, files, GitHub.

use crate::commands::progress::style;
use crate::commands::{print_json, print_screen};
use crate::{Format, GateArgs, Global};
use anyhow::{Context, Result};
use indicatif::ProgressBar;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};
use zbench_host::terminal::Stream;
use zbench_reports::gate::{Report, annotations, document, junit};
use zbench_reports::render::{markdown, printable};

/// Writes the requested files, then prints the report. Files come first, so that they exist even if standard output is closed.
pub fn write(global: &Global, arguments: &GateArgs, report: &Report) -> Result<()> {
    if let Some(path) = &arguments.junit {
        save(path, &junit::junit(report)?)?;
    }
    let text = markdown::render(&document::document(report));
    if let Some(path) = &arguments.markdown {
        save(path, &text)?;
    }
    let on_github = std::env::var("GITHUB_ACTIONS").is_ok_and(|value| value == "true");
    if let Some(path) = std::env::var_os("GITHUB_STEP_SUMMARY").filter(|path| !path.is_empty()) {
        let opened = std::fs::OpenOptions::new().append(true).create(true).open(&path);
        let written = opened.and_then(|mut file| file.write_all(format!("{text}\n").as_bytes()));
        if let Err(error) = written {
            zbench_host::say!("warning: the step summary {} cannot be written: {error}", Path::new(&path).display());
        }
    }
    if arguments.annotations || on_github {
        // Standard error: standard output may be for machines, and GitHub reads both.
        let _ = write!(std::io::stderr(), "{}", printable(&annotations::annotations(report)));
    }
    match global.format {
        Format::Json => print_json(&document::json_lines(report)?),
        _ => print_screen(global, &document::document(report)),
    }
}

fn save(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("{} cannot be written", path.display()))
}

/// Progress on standard error: a spinner on a terminal, a line now and then elsewhere.
pub struct Progress {
    bar: Option<ProgressBar>,
    quiet: bool,
    last: std::cell::Cell<Option<Instant>>,
}

/// Time between lines where there is no terminal.
const BETWEEN: Duration = Duration::from_secs(10);

impl Progress {
    pub fn new(global: &Global) -> Progress {
        let spinner = || ProgressBar::new_spinner().with_style(style("[{elapsed_precise}] {wide_msg}"));
        let bar = (!global.quiet && Stream::Err.is_live()).then(spinner);
        Progress { bar, quiet: global.quiet, last: std::cell::Cell::new(None) }
    }

    pub fn tell(&self, words: &str) {
        match &self.bar {
            Some(bar) => {
                bar.set_message(printable(words).into_owned());
                bar.tick();
            }
            None if self.quiet || self.last.get().is_some_and(|last| last.elapsed() < BETWEEN) => {}
            None => {
                self.last.set(Some(Instant::now()));
                zbench_host::say!("{words}");
            }
        }
    }

    pub fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
