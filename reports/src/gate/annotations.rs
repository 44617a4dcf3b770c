//! The gate as GitHub's workflow commands: `::error`, `::warning` and `::notice` lines that show up at the commit.

use super::report::{Report, Row};
use super::verdict::Verdict;
use super::words;

/// A line for each row that fails, that improved, or that is let pass by the policy alone; and one for the whole.
pub fn annotations(report: &Report) -> String {
    let mut lines = String::new();
    for row in report.rows() {
        if let Some(level) = level(report, row) {
            lines.push_str(&command(level, &format!("gate: {}", row.metric), &words::sentence(row)));
        }
    }
    let level = if report.exit_code == 0 { "notice" } else { "error" };
    lines.push_str(&command(level, &format!("gate: {}", report.headline()), &words::answer(report)));
    lines
}

fn level(report: &Report, row: &Row) -> Option<&'static str> {
    match row.verdict {
        Verdict::Pass => None,
        verdict if verdict == Verdict::Failed || report.fail_on.contains(&verdict) => Some("error"),
        Verdict::Improvement => Some("notice"),
        _ => Some("warning"),
    }
}

fn command(level: &str, title: &str, message: &str) -> String {
    format!("::{level} title={}::{}\n", property(title), data(message))
}

/// A message: percent and line ends would end or change it.
fn data(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

/// A property: also what separates properties.
fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}
