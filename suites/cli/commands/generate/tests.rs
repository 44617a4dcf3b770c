//! Pages and completions have every command that --help shows, every option of it, and no other.

use super::*;

fn shown() -> Vec<clap::Command> {
    let mut whole = Cli::command();
    whole.build();
    whole.get_subcommands().filter(|command| !command.is_hide_set() && command.get_name() != "help").cloned().collect()
}

/// Each command that has a page, and the page's name: those of a command stand behind it.
fn paged() -> Vec<(String, clap::Command)> {
    let of = |command: clap::Command| {
        let name = format!("zbench-{}", command.get_name());
        let inner: Vec<(String, clap::Command)> =
            command.get_subcommands().map(|inner| (format!("{name}-{}", inner.get_name()), inner.clone())).collect();
        std::iter::once((name, command)).chain(inner)
    };
    shown().into_iter().flat_map(of).collect()
}

#[test]
fn every_command_has_a_page_with_every_option() {
    let pages = pages().unwrap();
    let commands = paged();
    assert!(commands.len() >= 20, "{}", commands.len());
    assert_eq!(pages.len(), commands.len() + 1);
    for (name, command) in commands {
        let file = format!("{name}.1");
        let (_, page) = pages.iter().find(|(name, _)| *name == file).unwrap_or_else(|| panic!("{file}"));
        let mut options = 0;
        for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
            let word = match argument.get_long() {
                Some(long) => format!("\\-\\-{}", long.replace('-', "\\-")),
                None => argument
                    .get_value_names()
                    .map_or_else(|| argument.get_id().to_string(), |names| names[0].to_string()),
            };
            assert!(page.contains(&word), "{file} says nothing of {word}:\n{page}");
            options += 1;
        }
        assert!(options >= 5, "{file}: the options of every command too");
        if command.get_after_help().is_some() {
            assert!(page.contains(".SH EXAMPLES\n.nf\n") && page.contains(".fi\n"), "{file}");
        }
    }
    let (_, whole) = &pages[0];
    assert!(shown().iter().all(|command| whole.contains(&format!("zbench\\-{}(1)", command.get_name()))), "{whole}");
}

#[test]
fn what_is_hidden_is_nowhere() {
    for (name, page) in pages().unwrap() {
        assert!(!page.contains("__") && !name.contains("__"), "{name}");
    }
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish, Shell::Elvish, Shell::PowerShell] {
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut visible(), "zbench", &mut text);
        let text = String::from_utf8(text).unwrap();
        for hidden in ["__cell", "__rank", "__checkpoint", "__follow"] {
            // zbench__checkpoint is the function of a command that is shown.
            let mut places = text.match_indices(hidden).map(|(place, _)| text[..place].chars().next_back());
            assert!(places.all(|before| before.is_some_and(char::is_alphanumeric)), "{shell}: {hidden}");
        }
        for command in shown() {
            assert!(text.contains(command.get_name()), "{shell}: {}", command.get_name());
        }
        assert!(text.contains("--what-if") || text.contains("what-if"), "{shell}");
    }
}

#[test]
fn examples_are_no_commands_of_roff() {
    let page = as_written("Examples:\n  .hidden 'quoted' \\n --all\nplain");
    assert_eq!(page, ".SH EXAMPLES\n.nf\n\\&.hidden \\(aqquoted\\(aq \\en \\-\\-all\nplain\n.fi\n");
}
