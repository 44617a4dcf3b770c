//! Settings as a configuration of zbench: written down in the order of docs/configuration.md, and read back by zbench's own reader.

use super::draft::{Draft, Made, shown};
use super::{Format, one_line};
use std::path::Path;
use zbench_config::files::Files;
use zbench_config::keys::KEYS;
use zbench_config::{ConfigError, Context, Document, Problem, grid};
use zbench_engine::planner::Planner;
use zbench_predict::planned::{self, Decision, Planned};

/// A configuration that was read back, and whether zbench runs it.
pub struct Written {
    /// The text.
    pub text: String,
    /// Whether this machine and this version run it.
    pub runs: bool,
    /// Why not.
    pub reasons: Vec<String>,
}

/// Writes the settings of a draft, reads them back and plans the cell. `path` is where the file will stand.
///
/// # Errors
/// zbench refuses what the keys of the file say together: the error names the key there and the key here.
pub fn written(draft: &Draft, path: &Path, cores: usize) -> Result<Written, ConfigError> {
    let text = text(draft);
    let context = Context::new(path.parent().unwrap_or(Path::new("")).to_path_buf(), cores);
    let cells = Document::parse(path, &text, &[])
        .and_then(|document| grid::expand(&document, &[], 1, &context, &mut Files::default()))
        .map_err(|error| refused(draft, error))?;
    let planner = Planner::default();
    let planned: Vec<Planned> = cells.into_iter().map(|cell| planned::plan(&planner, cell, None)).collect();
    let reasons: Vec<String> = planned
        .iter()
        .filter_map(|cell| match &cell.decision {
            Decision::Run => None,
            Decision::Record { reason, .. } => Some(reason.clone()),
        })
        .collect();
    Ok(Written { runs: reasons.is_empty(), text, reasons })
}

/// The cell of a draft, as records have it.
///
/// # Errors
/// As [`written`].
pub fn cell(draft: &Draft) -> Result<serde_json::Value, ConfigError> {
    let cells = Document::parse(Path::new("file.toml"), &text(draft), &[])
        .and_then(|document| grid::expand(&document, &[], 1, &Context::new("".into(), 1), &mut Files::default()))
        .map_err(|error| refused(draft, error))?;
    let cell = cells.first().and_then(|cell| cell.resolved.as_ref().ok());
    cell.map(|resolved| grid::plain(&resolved.cell)).ok_or_else(|| ConfigError::about(&draft.source, "makes no cell"))
}

/// zbench's errors about the keys that were imported, with the keys that they came of.
fn refused(draft: &Draft, error: ConfigError) -> ConfigError {
    let told = |problem: Problem| {
        let origin = draft.made.iter().find(|made| made.key == problem.key);
        let row = origin.and_then(|made| draft.rows.iter().find(|row| row.key == made.from));
        let (source, place, key) = match (origin, row) {
            (_, Some(row)) => (draft.source.clone(), row.place, row.key.clone()),
            (Some(made), None) if made.from.starts_with("--") => (made.from.clone(), None, String::new()),
            _ => (draft.source.clone(), None, String::new()),
        };
        let message = match key.is_empty() && problem.key.is_empty() {
            true => problem.message,
            false => {
                format!("as {} here: {} (--set {}=… states another value)", problem.key, problem.message, problem.key)
            }
        };
        Problem { source, place, key, message }
    };
    ConfigError(error.0.into_iter().map(told).collect())
}

/// The file: its sections and keys in the order of the documentation, with what each follows from.
pub fn text(draft: &Draft) -> String {
    let mut text = format!("# Made by `zbench import` from {} ({}).\n", one_line(&draft.source), draft.format.name());
    let states_model = draft.made.iter().any(|made| made.key.starts_with("model."));
    if !states_model {
        text += "# It names no model: the default llama-32m trains. `zbench import --model PRESET` states another, or [model] below.\n";
    }
    for note in &draft.notes {
        text += &format!("# Note: {}.\n", one_line(note));
    }
    let mut section = "";
    let plain = ["name", "question", "suite"];
    if draft.setting("name").is_none() {
        text += &format!("\nname = {}\n", toml::Value::String(name(draft)));
    }
    // Keys of a section may stand apart in the documentation, and do not in a file.
    let section_of = |key: &'static str| key.split_once('.').map_or("", |(section, _)| section);
    let place = |made: &&Made| {
        let first = KEYS.iter().position(|key| section_of(key.name) == section_of(made.key));
        (first, KEYS.iter().position(|key| key.name == made.key))
    };
    let mut all: Vec<&Made> = draft.made.iter().collect();
    all.sort_by_cached_key(place);
    for made in all {
        let (here, name) = made.key.split_once('.').unwrap_or(("", made.key));
        if here != section && !plain.contains(&made.key) {
            text += &format!("\n[{here}]\n");
            section = here;
        }
        text += &line(name, made);
    }
    text
}

fn line(name: &str, made: &Made) -> String {
    let comment = one_line(&made.comment);
    let setting = format!("{name} = {}", shown(&made.value));
    match setting.chars().count() + comment.chars().count() {
        _ if comment.is_empty() => format!("{setting}\n"),
        length if length <= 110 => format!("{setting:<34} # {comment}\n"),
        _ => format!("# {comment}\n{setting}\n"),
    }
}

/// The title of the notebook's entry: the file's name.
fn name(draft: &Draft) -> String {
    let stem = Path::new(&draft.source).file_stem().map(|stem| stem.to_string_lossy().into_owned());
    let stem = stem
        .filter(|stem| draft.format != Format::HuggingFace || stem != "config")
        .unwrap_or_else(|| "imported".into());
    stem.chars().filter(|c| !c.is_control()).collect()
}
