//! The gate as JUnit XML: a suite for each cell, a case for each metric.

use super::report::{Report, Row};
use super::verdict::Verdict;
use super::words;
use quick_junit::{NonSuccessKind, TestCase, TestCaseStatus, TestSuite};
use std::time::Duration;

/// The XML. What the policy lets pass succeeds, with its verdict in a property; what was not measured is an error, as
/// nothing was tested, or skipped where the policy lets that pass.
///
/// # Errors
/// Only if writing to memory fails.
pub fn junit(report: &Report) -> Result<String, quick_junit::SerializeError> {
    let mut document = quick_junit::Report::new("zbench gate");
    document.set_time(seconds(report.seconds));
    for cell in &report.cells {
        let mut suite = TestSuite::new(format!("zbench.gate.{}", cell.cell));
        suite.set_time(seconds(cell.seconds));
        suite.add_property(("key", cell.key.as_str()));
        suite.add_property(("verdict", super::verdict::worst(cell.rows.iter().map(|row| row.verdict)).name()));
        for (name, value) in words::facts(report) {
            suite.add_property((name, value.as_str()));
        }
        // All metrics of a cell are of the same trials. Tools that add the cases up find the time of the cell.
        let share = seconds(cell.seconds / cell.rows.len() as f64);
        for row in &cell.rows {
            suite.add_test_case(case(report, row, share));
        }
        document.add_test_suite(suite);
    }
    document.to_string()
}

/// A time that is a number; the XML has no others.
fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

fn case(report: &Report, row: &Row, time: Duration) -> TestCase {
    let fails = row.verdict == Verdict::Failed || report.fail_on.contains(&row.verdict);
    let mut status = match row.verdict {
        Verdict::NotMeasured if !fails => TestCaseStatus::skipped(),
        Verdict::NotMeasured | Verdict::Failed => TestCaseStatus::non_success(NonSuccessKind::Error),
        _ if fails => TestCaseStatus::non_success(NonSuccessKind::Failure),
        _ => TestCaseStatus::success(),
    };
    let sentence = words::sentence(row);
    if !matches!(status, TestCaseStatus::Success { .. }) {
        status.set_message(sentence.as_str());
        status.set_type(row.verdict.name());
        status.set_description(words::details(report, row).join("\n"));
    }
    let mut case = TestCase::new(row.metric.clone(), status);
    case.set_time(time);
    case.set_classname(format!("zbench.gate.{}", row.cell));
    case.add_property(("verdict", row.verdict.name()));
    case.set_system_out(sentence);
    case
}
