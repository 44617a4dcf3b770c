//! The section lora: the file's keys of adapters, compared with the configuration of a folder of adapters.

use super::sources::absolute;
use super::{Context, Refusal, Values, choice};
use crate::kind::number;
use serde::Serialize;
use toml::Value;
use zbench_engine::config::{Linear, Lora, Method, Model};
use zbench_engine::formats::peft;

/// A cell's adapters, but for the type of the base. Without any the other keys of [lora] mean nothing, and the cell says so
/// by holding none of them.
pub(super) fn adapters(values: &Values, context: &Context, model: &Model) -> Result<Lora, Refusal> {
    let folder = |key: &str| values.given_text(key).map(|path| absolute(&context.folder.join(path)));
    let path = folder("lora.path");
    let stored = path.as_ref().map(|dir| peft::read_config(dir, model)).transpose();
    let stored = stored.map_err(|error| values.refuse("lora.path", &["model.family"], error.to_string()))?;
    let merged = Merged { values, stored: stored.as_ref() };
    let method = merged.one("lora.method", values.given("lora.method").and_then(choice), |s| s.method, Method::Lora)?;
    let rank = match method {
        Method::Ia3 => 0,
        Method::Lora => merged.one("lora.rank", values.given_count("lora.rank"), |s| s.rank, 0)?,
    };
    if method == Method::Lora && rank == 0 {
        return without(values);
    }
    let given = targets(values, "lora.targets", model)?;
    let targets = merged.one("lora.targets", given, |s| s.targets.clone(), peft::default_targets(model, method))?;
    let mut lora =
        Lora { method, rank, targets, path, save: folder("lora.save"), merge: folder("lora.merge"), ..Lora::default() };
    if method == Method::Ia3 {
        let usual = peft::default_feedforward(&lora.targets);
        let given = self::targets(values, "lora.feedforward", model)?;
        lora.feedforward = merged.one("lora.feedforward", given, |s| s.feedforward.clone(), usual)?;
        if let Some(other) = lora.feedforward.iter().find(|layer| !lora.targets.contains(layer)) {
            let message = format!("has {}, which lora.targets has not; add it there", other.name());
            return Err(values.refuse("lora.feedforward", &["lora.targets"], message));
        }
        return Ok(lora);
    }
    let real = |key: &str| values.given(key).and_then(number);
    lora.alpha = merged.one("lora.alpha", real("lora.alpha"), |s| s.alpha, 8.0)?;
    lora.dropout = merged.one("lora.dropout", real("lora.dropout"), |s| s.dropout, 0.0)?;
    let root = values.given("lora.use_rslora").and_then(Value::as_bool);
    lora.use_rslora = merged.one("lora.use_rslora", root, |s| s.use_rslora, false)?;
    let magnitudes = values.given("lora.use_dora").and_then(Value::as_bool);
    lora.use_dora = merged.one("lora.use_dora", magnitudes, |s| s.use_dora, false)?;
    Ok(lora)
}

/// No adapters. An output folder is then a mistake, unless the grid varies the rank.
fn without(values: &Values) -> Result<Lora, Refusal> {
    let varies = values.settings.get("lora.rank").is_some_and(|rank| rank.from_grid);
    let written = ["lora.save", "lora.merge"].into_iter().find(|key| values.given(key).is_some());
    match written.filter(|_| !varies) {
        Some(key) => {
            let message = "stands without adapters; state lora.rank, or write the model with model.save";
            Err(values.refuse(key, &["lora.rank"], message))
        }
        None => Ok(Lora::default()),
    }
}

/// The layers that a key names.
fn targets(values: &Values, key: &str, model: &Model) -> Result<Option<Vec<Linear>>, Refusal> {
    match values.given(key) {
        None => Ok(None),
        Some(Value::Array(list)) => {
            let names: Vec<&str> = list.iter().filter_map(Value::as_str).collect();
            let found = peft::find_targets(model, &names);
            found.map(Some).map_err(|reason| values.refuse(key, &["model.family", "model.path"], reason))
        }
        Some(_) => Ok(Some(peft::all_linear(model))),
    }
}

/// The keys of the file, and the configuration of a folder of adapters.
struct Merged<'a> {
    values: &'a Values<'a>,
    stored: Option<&'a Lora>,
}

impl Merged<'_> {
    /// The file's value, else the folder's, else the default. If both state one, they must agree.
    fn one<T: PartialEq + Serialize>(
        &self,
        key: &str,
        given: Option<T>,
        of: impl Fn(&Lora) -> T,
        default: T,
    ) -> Result<T, Refusal> {
        match (given, self.stored.map(of)) {
            (Some(given), Some(stored)) if given != stored => {
                let word = |value: &T| serde_json::to_string(value).unwrap_or_default();
                let (ours, theirs) = (word(&given), word(&stored));
                let message = format!("is {ours}, and the adapters of lora.path have {theirs}; leave the key out");
                Err(self.values.refuse(key, &["lora.path"], message))
            }
            (given, stored) => Ok(given.or(stored).unwrap_or(default)),
        }
    }
}
