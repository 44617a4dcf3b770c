//! Reads a screen as a test needs it.

/// The text after a label of a screen, with the label, in one line: where the text wraps depends on the numbers in it.
pub fn part(screen: &str, label: &str) -> String {
    let mut lines = screen.lines().skip_while(|line| !line.starts_with(label));
    let first = lines.next().unwrap_or_else(|| panic!("no {label} in\n{screen}"));
    let rest = lines.take_while(|line| line.starts_with("         "));
    std::iter::once(first).chain(rest).map(str::trim).collect::<Vec<_>>().join(" ")
}
