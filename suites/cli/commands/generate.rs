//! `completions` and `man`: made from the definitions that --help is made of, so that they cannot say anything else.

use super::print_bytes;
use crate::{Cli, Global};
use anyhow::{Context, Result};
use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;
use std::path::Path;
use zbench_host::exit;

/// `zbench completions SHELL`.
pub fn completions(shell: Shell) -> Result<u8> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut visible(), "zbench", &mut text);
    print_bytes(&text)?;
    Ok(exit::SUCCESS)
}

/// `zbench man DIR`: zbench.1 and a page for each command.
pub fn man(global: &Global, folder: &Path) -> Result<u8> {
    std::fs::create_dir_all(folder).with_context(|| format!("the folder {} cannot be made", folder.display()))?;
    let pages = pages()?;
    for (name, page) in &pages {
        let path = folder.join(name);
        super::report::write_whole(&path, page.as_bytes())?;
    }
    if global.quiet {
        return Ok(exit::SUCCESS);
    }
    zbench_host::say!(
        "wrote {} pages into {}; read one with: man -l {}/zbench.1",
        pages.len(),
        folder.display(),
        folder.display()
    );
    Ok(exit::SUCCESS)
}

/// The whole definition without the internal commands: generators of completions show hidden ones too.
fn visible() -> clap::Command {
    let whole = Cli::command();
    let shown: Vec<clap::Command> = whole.get_subcommands().filter(|command| !command.is_hide_set()).cloned().collect();
    let mut bare = clap::Command::new("zbench")
        .version(env!("CARGO_PKG_VERSION"))
        .args(whole.get_arguments().cloned())
        .subcommands(shown);
    for (set, text) in [(0, whole.get_about()), (1, whole.get_after_help())] {
        if let Some(text) = text.cloned() {
            bare = if set == 0 { bare.about(text) } else { bare.after_help(text) };
        }
    }
    bare
}

/// Each page by the name of its file.
///
/// # Errors
/// Text that is not UTF-8, which clap does not make.
fn pages() -> Result<Vec<(String, String)>> {
    let mut whole = visible().disable_help_subcommand(true);
    // Hands the options of every command down to each.
    whole.build();
    let mut pages = vec![("zbench.1".to_string(), page(whole.clone(), "zbench")?)];
    for command in whole.get_subcommands() {
        let name = format!("zbench-{}", command.get_name());
        pages.push((format!("{name}.1"), page(command.clone(), &name)?));
        for inner in command.get_subcommands() {
            let name = format!("{name}-{}", inner.get_name());
            pages.push((format!("{name}.1"), page(inner.clone(), &name)?));
        }
    }
    Ok(pages)
}

fn page(command: clap::Command, name: &str) -> Result<String> {
    let examples = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let (is_whole, is_parent) = (name == "zbench", command.has_subcommands());
    let man = Man::new(command.display_name(name));
    // Written here: clap_mangen leaves an empty date out, and what follows it takes its place. A date would make each build another.
    let title = format!(".TH {} 1 \"\" \"zbench {}\" \"zbench\"\n", name.to_uppercase(), env!("CARGO_PKG_VERSION"));
    let mut text = title.into_bytes();
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if is_parent {
        man.render_subcommands_section(&mut text)?;
    }
    let mut text = String::from_utf8(text)?;
    if !examples.is_empty() {
        text.push_str(&as_written(&examples));
    }
    if !is_whole {
        text.push_str(".SH \"SEE ALSO\"\n\\fBzbench\\fR(1)\n");
    }
    Ok(text)
}

/// What stands behind a command's help, line by line: its columns are part of it, so that it must not be filled.
fn as_written(text: &str) -> String {
    let mut page = String::from(".SH EXAMPLES\n.nf\n");
    for line in text.strip_prefix("Examples:").unwrap_or(text).trim_start_matches('\n').lines() {
        let line = line.strip_prefix("  ").unwrap_or(line);
        let line = line.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq").replace('`', "\\(ga");
        // A point at the beginning would be a command of roff's.
        page += if line.starts_with('.') { "\\&" } else { "" };
        page += &line;
        page.push('\n');
    }
    page + ".fi\n"
}

#[cfg(test)]
mod tests;
