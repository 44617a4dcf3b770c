//! Ceilings in a machine profile: the tables `[ceilings]` and `[ceilings.threads-N]` of the TOML file that
//! `zbench allreduce --save` writes its fits into. docs/kernels.md describes every field.

use super::{ProfileError, merge};
use std::fmt::Write;
use std::path::Path;
use toml::{Table, Value};
use zbench_reports::bench::{Ceilings, DiskRates, Rate, Threads};

/// Metadata of the rates.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct About {
    /// When.
    pub measured: String,
    /// The processor's name, where the system says it.
    pub cpu: String,
    /// Instruction sets that the loops could choose from.
    pub instructions: Vec<String>,
}

/// Writes ceilings into a profile, in the place of all earlier ones. Other keys, their order and comments stay.
///
/// # Errors
/// As [`ProfileError`] says; the file is then as it was.
pub fn save(path: &Path, ceilings: &Ceilings, about: &About) -> Result<(), ProfileError> {
    let is_ours = |heading: &str| heading == "[ceilings]" || heading.starts_with("[ceilings.");
    merge(path, "zbench calibrate", "cpu", "ceilings", &is_ours, &text(ceilings, about))
}

fn text(ceilings: &Ceilings, about: &About) -> String {
    let quoted = |text: &str| Value::from(text).to_string();
    let list = |words: &[String]| words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(", ");
    let mut text = format!(
        "[ceilings]\nmeasured = {}\nzbench = {}\ncpu = {}\ninstructions = [{}]\n",
        quoted(&about.measured),
        quoted(env!("CARGO_PKG_VERSION")),
        quoted(&about.cpu),
        list(&about.instructions)
    );
    text.push_str("unstated = [\n");
    for (name, reason) in &ceilings.unstated {
        let _ = writeln!(text, "    {{ rate = {}, reason = {} }},", quoted(name), quoted(reason));
    }
    text.push_str("]\n");
    for of in &ceilings.threads {
        let _ = write!(text, "\n[ceilings.threads-{}]\n", of.threads);
        for (name, rate) in of.rates() {
            // TOML has no null: a rate that is not stated is absent, and [ceilings] says why.
            let Some(Rate { median, low, high, rounds }) = rate else { continue };
            let _ =
                writeln!(text, "{name} = {{ median = {median:?}, low = {low:?}, high = {high:?}, rounds = {rounds} }}");
        }
    }
    text
}

/// The ceilings of a profile; `None` if it has none or does not exist.
///
/// # Errors
/// It cannot be read, or differs from the form that [`save`] writes.
pub fn read(path: &Path) -> Result<Option<Ceilings>, ProfileError> {
    let text = match zbench_engine::formats::files::text(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(ProfileError::File { path: path.into(), what: "read", source }),
    };
    let broken = |reason: String| ProfileError::Toml { path: path.into(), reason };
    let table: Table = text.parse().map_err(|error: toml::de::Error| broken(error.to_string()))?;
    table.get("ceilings").map(|value| of_value(value).map_err(broken)).transpose()
}

/// The ceilings of a profile's `ceilings`.
///
/// # Errors
/// What is not as [`save`] writes it, in words.
pub fn of_value(value: &Value) -> Result<Ceilings, String> {
    let wrong = |what: &str| format!("{what}, as zbench calibrate writes it");
    let table = value.as_table().ok_or_else(|| wrong("ceilings must be a table"))?;
    let mut ceilings = Ceilings::default();
    for entry in table.get("unstated").and_then(Value::as_array).into_iter().flatten() {
        let word = |key: &str| entry.get(key).and_then(Value::as_str).map(str::to_string);
        let pair = word("rate").zip(word("reason"));
        ceilings.unstated.push(pair.ok_or_else(|| wrong("ceilings.unstated must be a list of rate and reason"))?);
    }
    for (name, value) in table {
        let Some(threads) = name.strip_prefix("threads-") else { continue };
        let count = threads.parse().map_err(|_| wrong(&format!("ceilings.{name} must end in a number")))?;
        let mut of = Threads { threads: count, ..Threads::default() };
        let groups = value.as_table().ok_or_else(|| wrong(&format!("ceilings.{name} must be a table")))?;
        for (group, rates) in groups {
            for (rate, value) in rates.as_table().into_iter().flatten() {
                let place = format!("ceilings.{name}.{group}.{rate}");
                let found = rate_of(value).ok_or_else(|| wrong(&format!("{place} must have median, low and high")))?;
                put(&mut of, &format!("{group}.{rate}"), Some(found));
            }
        }
        ceilings.threads.push(of);
    }
    ceilings.threads.sort_by_key(|of| of.threads);
    Ok(ceilings)
}

fn rate_of(value: &Value) -> Option<Rate> {
    let number = |key: &str| value.get(key).and_then(crate::kind::number).filter(|rate| *rate > 0.0);
    let rounds = value.get("rounds").and_then(Value::as_integer).and_then(|rounds| u64::try_from(rounds).ok());
    Some(Rate { median: number("median")?, low: number("low")?, high: number("high")?, rounds: rounds.unwrap_or(0) })
}

/// Stores a rate by its name.
pub fn put(of: &mut Threads, name: &str, rate: Option<Rate>) {
    match name.split_once('.') {
        Some(("matrix", dtype)) => of.matrix.push((dtype.into(), rate)),
        Some(("memory", what)) => of.memory.push((what.into(), rate)),
        Some(("disk", "read")) => of.disk = DiskRates { read: rate, ..std::mem::take(&mut of.disk) },
        Some(("disk", "write")) => of.disk = DiskRates { write: rate, ..std::mem::take(&mut of.disk) },
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ceilings(threads: &[usize], factor: f64) -> Ceilings {
        let of = |threads: usize| {
            let mut of = Threads { threads: threads as u64, ..Threads::default() };
            for name in ["matrix.f32", "matrix.bf16", "memory.read", "memory.triad", "disk.read"] {
                let rounds = [1.0, 2.0, 3.0].map(|round| factor * round * threads as f64);
                put(&mut of, name, Rate::of(&rounds));
            }
            of
        };
        Ceilings {
            threads: threads.iter().map(|threads| of(*threads)).collect(),
            unstated: vec![("disk.write".into(), "a \"reason\"".into())],
        }
    }

    /// As read back: tables have no order of their own, and absent rates are absent.
    fn rates(ceilings: &Ceilings) -> Vec<(u64, String, Rate)> {
        let of = |of: &Threads| -> Vec<(u64, String, Rate)> {
            of.rates().into_iter().filter_map(|(name, rate)| Some((of.threads, name, rate?.clone()))).collect()
        };
        let mut all: Vec<_> = ceilings.threads.iter().flat_map(of).collect();
        all.sort_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
        all
    }

    #[test]
    fn what_is_saved_is_read_back_and_replaces_what_was_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("machines/m.toml");
        assert_eq!(read(&path).unwrap(), None);
        let about = About { measured: "today".into(), cpu: "x \"y\"".into(), instructions: vec!["avx2".into()] };
        let first = ceilings(&[1, 2, 4], 1.5e11);
        save(&path, &first, &about).unwrap();
        let found = read(&path).unwrap().unwrap();
        assert_eq!((rates(&found), &found.unstated), (rates(&first), &first.unstated));
        assert_eq!(rates(&found).len(), 3 * 5);
        // Beside what others keep in the file; numbers of threads that are not measured again go.
        let text = std::fs::read_to_string(&path).unwrap();
        let mine = "# mine\nabout = \"x\" # keep\ndevice = \"cpu\"\nmemory = \"1GiB\"\n\n[collectives.a]\nb = 1\n";
        let ours = &text[text.find("[ceilings]").unwrap()..];
        std::fs::write(&path, format!("{mine}\n{ours}")).unwrap();
        let second = ceilings(&[2], 2e11);
        save(&path, &second, &about).unwrap();
        let after = std::fs::read_to_string(&path).unwrap();
        assert!(after.starts_with(mine) && !after.contains("threads-1") && after.matches("threads-2]").count() == 1);
        assert_eq!(rates(&read(&path).unwrap().unwrap()), rates(&second));
    }

    #[test]
    fn what_is_written_otherwise_is_left_alone_and_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.toml");
        for (text, saves) in [
            ("device = ", false),
            ("device = \"cpu\"\nceilings = 3\n", false),
            ("device = \"cpu\"\n[ceilings.threads-2]\nmatrix = { f32 = { median = \"fast\" } }\n", true),
            ("device = \"cpu\"\n[ceilings.threads-many]\n", true),
        ] {
            std::fs::write(&path, text).unwrap();
            assert!(read(&path).is_err(), "{text}");
            assert_eq!(save(&path, &ceilings(&[1], 1e9), &About::default()).is_ok(), saves, "{text}");
            assert_eq!(std::fs::read_to_string(&path).unwrap() == text, !saves, "{text}");
        }
    }
}
