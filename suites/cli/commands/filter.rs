//! Filters on tags, time, commit and validity, which are not fields of a record or need more than equality.

use super::select;
use anyhow::{Result, bail};
use jiff::{SignedDuration, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use zbench_config::units;
use zbench_reports::label;
use zbench_reports::{Index, IndexEntry, Notebook};

/// The records of a notebook that `what` stands for, in the order of the notebook. Terms: those of [`select::select`], and
/// `tag`, `since`, `commit`, `valid`.
///
/// # Errors
/// An id that no record has, or a value that a term does not take.
pub fn choose<'i>(
    notebook: &Notebook,
    index: &'i Index,
    what: &[String],
    now: Timestamp,
) -> Result<Vec<&'i IndexEntry>> {
    let mut rest = Vec::new();
    let mut own = Vec::new();
    for word in what {
        let mut others = Vec::new();
        for term in label::split(word) {
            match term.split_once('=').map(|(key, value)| Term::of(key.trim(), value.trim(), now)) {
                Some(Some(term)) => own.push(term?),
                _ => others.push(term),
            }
        }
        if !others.is_empty() {
            rest.push(label::of_terms(others));
        }
    }
    let tags = index.tags();
    let records = index.records.iter().filter(|record| own.iter().all(|term| term.holds(record, &tags)));
    select::select(notebook, index, records.collect(), &rest)
}

/// A term that this module handles.
#[derive(Debug)]
enum Term {
    Tag(String),
    Since(Timestamp),
    Commit(String),
    Valid(bool),
}

impl Term {
    /// The term, if this module handles its key.
    fn of(key: &str, value: &str, now: Timestamp) -> Option<Result<Term>> {
        Some(match key {
            "tag" => Ok(Term::Tag(value.into())),
            "commit" => Ok(Term::Commit(value.into())),
            "since" => since(value, now).map(Term::Since),
            "valid" => match value {
                "yes" => Ok(Term::Valid(true)),
                "no" => Ok(Term::Valid(false)),
                _ => Err(anyhow::anyhow!("valid={value}: write valid=yes or valid=no")),
            },
            _ => return None,
        })
    }

    fn holds(&self, record: &IndexEntry, tags: &BTreeMap<&str, BTreeSet<&str>>) -> bool {
        match self {
            Term::Tag(tag) => tags.get(record.id.as_str()).is_some_and(|of| of.contains(tag.as_str())),
            Term::Since(moment) => record.started.parse::<Timestamp>().is_ok_and(|started| started >= *moment),
            Term::Commit(wanted) => {
                let commit = record.stated("commit").and_then(serde_json::Value::as_str).unwrap_or_default();
                !commit.is_empty() && commit.starts_with(wanted.as_str())
            }
            Term::Valid(wanted) => is_valid(record) == *wanted,
        }
    }
}

/// Measured, and without a flag that keeps it out of the ranking.
pub fn is_valid(record: &IndexEntry) -> bool {
    record.is_measured() && record.excluding_flags().next().is_none()
}

/// `7d`, `12h`, `30min`, `2w`: that long ago; a date, which begins at midnight here; or a moment as records state it.
fn since(text: &str, now: Timestamp) -> Result<Timestamp> {
    // Digits alone are a date.
    let span = units::seconds(text).filter(|_| text.ends_with(char::is_alphabetic));
    let ago = span.and_then(|seconds| now.checked_sub(SignedDuration::try_from_secs_f64(seconds).ok()?).ok());
    if let Some(moment) = ago.or_else(|| text.parse().ok()) {
        return Ok(moment);
    }
    let midnight =
        text.parse::<jiff::civil::Date>().ok().and_then(|date| date.to_zoned(jiff::tz::TimeZone::system()).ok());
    match midnight {
        Some(moment) => Ok(moment.timestamp()),
        None => bail!(
            "since={text}: write a time back from now as 7d, 12h, 30min, a date as 2026-11-21, or a whole timestamp"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments() {
        let now: Timestamp = "2026-11-21T12:00:00Z".parse().unwrap();
        let of = |text| since(text, now).map(|moment| moment.to_string()).map_err(|error| error.to_string());
        assert_eq!(of("7d").unwrap(), "2026-11-14T12:00:00Z");
        assert_eq!(of("90min").unwrap(), "2026-11-21T10:30:00Z");
        assert_eq!(of("2026-11-20T01:02:03Z").unwrap(), "2026-11-20T01:02:03Z");
        assert!(of("2026-11-20").unwrap().starts_with("2026-11-"));
        for wrong in ["", "d", "-1d", "soon", "99999999999999999w", "2026-13-01", "7 years"] {
            assert!(of(wrong).unwrap_err().contains("write a time back"), "{wrong}");
        }
    }
}
