//! The profile of this machine, which predicted times and shares of ceilings rest on: is it there, how old is it, is it of this
//! processor and version?

use super::Finding;
use std::path::Path;
use toml::{Table, Value};

/// Older than this, heat, neighbours and the system's updates have changed what it says.
const OLD_DAYS: i64 = 90;

/// Findings about the ceilings and the fits of the profile.
pub(super) fn findings(path: &Path, cpu: Option<&str>, now: jiff::Timestamp) -> Vec<Finding> {
    let table = match zbench_engine::formats::files::text(path) {
        Ok(text) => text.parse::<Table>().map_err(|_| format!("{} is no TOML", path.display())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(format!("no: {} is not there", path.display()))
        }
        Err(error) => Err(format!("{} cannot be read: {error}", path.display())),
    };
    let ceilings = table.as_ref().map_err(Clone::clone).and_then(|table| ceilings(table, cpu, now));
    let links = table.and_then(|table| {
        let backends: Vec<String> = table
            .get("collectives")
            .and_then(Value::as_table)
            .into_iter()
            .flatten()
            .map(|(name, _)| name.clone())
            .collect();
        if backends.is_empty() {
            Err(format!("no: {} has none", path.display()))
        } else {
            Ok(format!("of {}", backends.join(", ")))
        }
    });
    vec![
        Finding::result(
            "profile: ceilings of this machine",
            ceilings,
            "shares of ceilings and predicted times need them: zbench calibrate, on a quiet machine",
        ),
        Finding::result(
            "profile: fits of collectives",
            links,
            "predicted times of several ranks need them: zbench allreduce --save --collective all -d all",
        ),
    ]
}

fn ceilings(table: &Table, cpu: Option<&str>, now: jiff::Timestamp) -> Result<String, String> {
    let of = table.get("ceilings").and_then(Value::as_table).ok_or("no: the profile has none")?;
    let text = |key: &str| of.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
    let version = text("zbench").unwrap_or("an unknown version");
    let days = text("measured")
        .and_then(|when| when.parse::<jiff::Timestamp>().ok())
        .map(|when| (now.as_second() - when.as_second()) / 86_400);
    let age = days.map_or("of an unknown day".to_string(), |days| match days {
        ..=0 => "of today".into(),
        1 => "1 day old".into(),
        days => format!("{days} days old"),
    });
    let words = format!("{age}, by zbench {version}");
    match (text("cpu"), cpu) {
        (Some(then), Some(now)) if then != now => Err(format!("of another processor: {then}")),
        _ if days.is_some_and(|days| days > OLD_DAYS) => Err(words),
        _ if version != env!("CARGO_PKG_VERSION") => Err(format!("{words}; this is {}", env!("CARGO_PKG_VERSION"))),
        _ => Ok(words),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: Option<&str>) -> Vec<(bool, String)> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.toml");
        if let Some(text) = text {
            std::fs::write(&path, text).unwrap();
        }
        let now = "2026-11-22T12:00:00Z".parse().unwrap();
        findings(&path, Some("Xeon"), now).into_iter().map(|finding| (finding.is_there, finding.found)).collect()
    }

    #[test]
    fn it_is_of_this_machine_and_not_old() {
        let version = env!("CARGO_PKG_VERSION");
        let profile = |cpu: &str, when: &str, version: &str| {
            format!("[ceilings]\nmeasured = \"{when}\"\nzbench = \"{version}\"\ncpu = \"{cpu}\"\n")
        };
        let first = |text: &str| found(Some(text)).remove(0);
        assert_eq!(
            first(&profile("Xeon", "2026-11-20T11:00:00Z", version)),
            (true, format!("2 days old, by zbench {version}"))
        );
        assert_eq!(
            first(&profile("Xeon", "2026-11-22T11:00:00Z", version)).1,
            format!("of today, by zbench {version}")
        );
        assert!(!first(&profile("Xeon", "2026-01-20T11:00:00Z", version)).0, "old");
        assert_eq!(
            first(&profile("EPYC", "2026-11-20T11:00:00Z", version)),
            (false, "of another processor: EPYC".into())
        );
        let (is_there, words) = first(&profile("Xeon", "2026-11-20T11:00:00Z", "0.0.1"));
        assert!(!is_there && words.contains("by zbench 0.0.1; this is"), "{words}");
        assert_eq!(
            first(&profile("Xeon", "yesterday", version)),
            (true, format!("of an unknown day, by zbench {version}"))
        );
    }

    #[test]
    fn what_is_absent_or_broken_says_so() {
        assert!(found(None).iter().all(|(is_there, words)| !is_there && words.contains("is not there")));
        assert!(found(Some("= x")).iter().all(|(is_there, words)| !is_there && words.contains("is no TOML")));
        assert!(found(Some("device = \"cpu\"")).iter().all(|(is_there, _)| !is_there));
        let both = found(Some("[collectives.local.ranks-2.all_reduce]\nfits = []\n[collectives.shm]\n"));
        assert_eq!(both[1], (true, "of local, shm".into()));
    }
}
