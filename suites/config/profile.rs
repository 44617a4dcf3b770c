//! Fits into a machine profile: tables `[collectives.BACKEND.ranks-N.COLLECTIVE]` of a TOML file, whose other keys, order
//! and comments stay as they are. `zbench calibrate` adds its own tables.

pub mod ceilings;
pub mod corrections;
pub mod drives;
pub mod operations;

use std::fmt::Write;
use std::path::{Path, PathBuf};
use zbench_reports::collectives::{Fit, Section, Settings};

/// Why a profile was not written.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// The file is there and cannot be read, or cannot be written.
    #[error("the machine profile {path} cannot be {what}: {source}; name another with --save=FILE", path = path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// `read` or `written`.
        what: &'static str,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The file is not TOML, or would not be after the change.
    #[error("the machine profile {path} is left as it was: {reason}", path = path.display())]
    Toml {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

/// Path of this machine's profile: in configs/machines if there is a folder configs.
pub fn default_path(host: &str) -> PathBuf {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' };
    let name: String = host.chars().map(plain).collect();
    let folder = if Path::new("configs").is_dir() { "configs/machines" } else { "machines" };
    Path::new(folder).join(format!("{name}.toml"))
}

/// Writes the fits of these sections, in the place of earlier ones of the same backend, ranks, collective and type; those
/// of other types stay. How many collectives were written.
///
/// # Errors
/// As [`ProfileError`] says; the file is then as it was.
pub fn save(path: &Path, settings: &Settings, sections: &[Section], measured: &str) -> Result<usize, ProfileError> {
    let (mut text, mut names) = (String::new(), Vec::new());
    for section in sections.iter().filter(|section| !section.fits.is_empty()) {
        let name = format!("[collectives.{}.ranks-{}.{}]", settings.backend, settings.group_ranks, section.collective);
        if !text.is_empty() {
            text.push('\n');
        }
        let kept = other_types(path, settings, section);
        let fits: Vec<Fit> = kept.into_iter().chain(section.fits.iter().cloned()).collect();
        text.push_str(&table(&name, settings, &fits, measured));
        names.push(name);
    }
    let is_ours = |heading: &str| names.iter().any(|name| name == heading);
    let device = if matches!(settings.backend.as_str(), "nccl" | "device") { "cuda" } else { "cpu" };
    merge(path, "zbench allreduce", device, "collectives", &is_ours, &text)?;
    Ok(names.len())
}

/// The fits that a profile has of the section's collective in types that the section has none of.
fn other_types(path: &Path, settings: &Settings, section: &Section) -> Vec<Fit> {
    // `merge` reports a profile that cannot be read or is broken.
    let table = zbench_engine::formats::files::text(path).ok().and_then(|text| text.parse::<toml::Table>().ok());
    let ranks = format!("ranks-{}", settings.group_ranks);
    let fits = || {
        let of = table.as_ref()?.get("collectives")?.get(&settings.backend)?.get(&ranks)?.get(&section.collective)?;
        Some(of.get("fits")?.as_array()?.iter().filter_map(fit_of_value).collect::<Vec<Fit>>())
    };
    let mut fits = fits().unwrap_or_default();
    fits.retain(|fit| !section.fits.iter().any(|new| new.dtype == fit.dtype));
    fits
}

/// A fit as [`save`] writes it.
pub fn fit_of_value(value: &toml::Value) -> Option<Fit> {
    let text = |key: &str| value.get(key).and_then(toml::Value::as_str).map(str::to_string);
    Some(Fit {
        of: text("of")?,
        dtype: text("type")?,
        redop: text("redop")?,
        in_place: value.get("in_place")?.as_bool()?,
        factor: value.get("factor").and_then(crate::kind::number)?,
        segments: value.get("segments")?.clone().try_into().ok()?,
    })
}

/// Adds tables at the end of a profile and removes the tables that they replace. All of them are below the key `own`; the
/// other keys, their order and comments stay as they are. A profile that does not exist is made for `device`.
///
/// # Errors
/// As [`ProfileError`] says; the file is then as it was.
fn merge(
    path: &Path,
    by: &str,
    device: &str,
    own: &str,
    is_replaced: &dyn Fn(&str) -> bool,
    tables: &str,
) -> Result<(), ProfileError> {
    let file = |what, source| ProfileError::File { path: path.into(), what, source };
    let broken = |reason: String| ProfileError::Toml { path: path.into(), reason };
    let before = match zbench_engine::formats::files::text(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            format!("about = \"measured by {by}\"\ndevice = \"{device}\"\n")
        }
        Err(error) => return Err(file("read", error)),
    };
    let old: toml::Table = before.parse().map_err(|error: toml::de::Error| broken(error.to_string()))?;
    let mut text = without(&before, is_replaced);
    if !text.is_empty() && !text.ends_with("\n\n") {
        text.push('\n');
    }
    text.push_str(tables);
    // A table in another TOML notation would now be defined twice, which is not TOML.
    let new: toml::Table = text.parse().map_err(|error: toml::de::Error| {
        broken(format!("its [{own}] is not written as zbench writes it; remove that part ({})", error.message()))
    })?;
    let others = |table: &toml::Table| table.iter().filter(|(key, _)| *key != own).count();
    if old.iter().any(|(key, value)| key != own && new.get(key) != Some(value)) || others(&old) != others(&new) {
        return Err(broken(format!("adding to its [{own}] would change its other keys")));
    }
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder).map_err(|error| file("written", error))?;
    }
    // Whole or not at all.
    let beside = path.with_extension("toml.new");
    std::fs::write(&beside, &text).and_then(|()| std::fs::rename(&beside, path)).map_err(|error| file("written", error))
}

/// The text without the tables of these headings.
fn without(text: &str, is_replaced: &dyn Fn(&str) -> bool) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut inside = false;
    for line in text.split_inclusive('\n') {
        let trimmed = line.trim();
        if trimmed.starts_with('[') {
            inside = is_replaced(trimmed);
        }
        if !inside {
            kept.push_str(line);
        }
    }
    kept
}

fn table(name: &str, settings: &Settings, fits: &[Fit], measured: &str) -> String {
    let quoted = |text: &str| toml::Value::from(text).to_string();
    let mut text = format!(
        "{name}\nmeasured = {}\ntiming = {}\nbuffers = {}\nfits = [\n",
        quoted(measured),
        quoted(&settings.timing),
        quoted(&settings.buffers)
    );
    for fit in fits {
        let _ = writeln!(
            text,
            "    {{ of = {}, type = {}, redop = {}, in_place = {}, factor = {:?}, segments = [",
            quoted(&fit.of),
            quoted(&fit.dtype),
            quoted(&fit.redop),
            fit.in_place,
            fit.factor
        );
        for s in &fit.segments {
            let rate = s.bandwidth_gb_s.map_or(String::new(), |rate| format!("bandwidth_gb_s = {rate:?}, "));
            let _ = writeln!(
                text,
                "        {{ from_bytes = {}, to_bytes = {}, latency_us = {:?}, {rate}points = {}, median_error = {:?}, worst_error = {:?} }},",
                s.from_bytes, s.to_bytes, s.latency_us, s.points, s.median_error, s.worst_error
            );
        }
        text.push_str("    ] },\n");
    }
    text.push_str("]\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbench_reports::collectives::Segment;

    fn section(latency_us: f64) -> Section {
        let segment = Segment {
            from_bytes: 8,
            to_bytes: 1 << 20,
            latency_us,
            bandwidth_gb_s: Some(12.5),
            points: 18,
            median_error: 0.01,
            worst_error: 0.2,
        };
        let fit = Fit { of: "float \"sum\"".into(), factor: 1.0, segments: vec![segment], ..Fit::default() };
        Section { collective: "all_reduce".into(), fits: vec![fit], ..Section::default() }
    }

    fn settings(ranks: usize) -> Settings {
        Settings { backend: "local".into(), group_ranks: ranks, ..Settings::default() }
    }

    fn latency(path: &Path, ranks: usize) -> f64 {
        let table: toml::Table = std::fs::read_to_string(path).unwrap().parse().unwrap();
        let ranks = format!("ranks-{ranks}");
        table["collectives"]["local"][ranks.as_str()]["all_reduce"]["fits"][0]["segments"][0]["latency_us"]
            .as_float()
            .unwrap()
    }

    #[test]
    fn fits_are_added_and_replaced_and_nothing_else_changes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("machines/m.toml");
        assert_eq!(save(&path, &settings(2), &[section(5.0)], "today").unwrap(), 1);
        assert_eq!(latency(&path, 2), 5.0);
        let text = "# mine\nabout = \"x\" # keep\ndevice = \"cpu\"\nmemory = \"1GiB\"\n\n[other]\na = [1]\n";
        std::fs::write(&path, text).unwrap();
        save(&path, &settings(2), &[section(5.0)], "today").unwrap();
        save(&path, &settings(4), &[section(9.0)], "today").unwrap();
        save(&path, &settings(2), &[section(6.0)], "tomorrow").unwrap();
        assert_eq!((latency(&path, 2), latency(&path, 4)), (6.0, 9.0));
        let after = std::fs::read_to_string(&path).unwrap();
        assert!(after.starts_with(text) && after.matches("ranks-2").count() == 1, "{after}");
    }

    #[test]
    fn fits_of_other_types_stay() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.toml");
        let of_type = |dtype: &str, latency_us: f64| {
            let mut section = section(latency_us);
            section.fits[0].dtype = dtype.into();
            section
        };
        for (dtype, latency_us) in [("float", 5.0), ("bfloat16", 7.0), ("float", 6.0)] {
            save(&path, &settings(2), &[of_type(dtype, latency_us)], "today").unwrap();
        }
        let table: toml::Table = std::fs::read_to_string(&path).unwrap().parse().unwrap();
        let fits = table["collectives"]["local"]["ranks-2"]["all_reduce"]["fits"].as_array().unwrap();
        let found: Vec<Fit> = fits.iter().filter_map(fit_of_value).collect();
        assert_eq!(found, [&of_type("bfloat16", 7.0).fits[0], &of_type("float", 6.0).fits[0]].map(Clone::clone));
    }

    #[test]
    fn what_cannot_be_merged_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.toml");
        for text in ["device = ", "device = \"cpu\"\ncollectives = { local = { ranks-2 = { all_reduce = 1 } } }\n"] {
            std::fs::write(&path, text).unwrap();
            assert!(save(&path, &settings(2), &[section(5.0)], "today").is_err());
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
    }
}
