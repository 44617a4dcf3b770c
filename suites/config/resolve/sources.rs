//! The sections that name other files: machine profiles, models, data.

use super::{Context, Refusal, Settings, Values, choice, priced};
use crate::document::Setting;
use crate::kind::{change, hint, number};
use crate::{foreign, keys};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use toml::Value;
use zbench_engine::checkpoint::weights::{Checkpoint, CheckpointError};
use zbench_engine::config::{
    Answers, Data, DocumentFile, DocumentForm, DocumentPacking, Documents, Model, Template, TokenType,
};
use zbench_engine::formats::hf;
use zbench_engine::formats::hf::{HfError, PartialModel};
use zbench_estimate::profile::{self, Profile as MachineProfile};
use zbench_kernels::DType;

/// Reads machines/NAME.toml beside the configuration, or the machine of that name that is compiled in.
pub(super) fn profile(values: &Values, context: &Context) -> Result<Option<Arc<MachineProfile>>, Refusal> {
    let Some(name) = values.given_text("hardware.profile") else {
        if values.given("hardware.changes").is_some() {
            let message = "changes a machine's profile, and none is named; write hardware.profile, or leave it out";
            return Err(values.refuse("hardware.changes", &["hardware.profile"], message));
        }
        return Ok(None);
    };
    let refuse = |message: String| values.refuse("hardware.profile", &[], message);
    let path = file_of_name(values, context, "hardware.profile", "machines", &name)?;
    // A thread that panicked while it held the lock has left no incomplete entry.
    let mut known = context.profiles.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let changes: Vec<(String, Value)> = match values.value("hardware.changes") {
        Value::Array(list) => list.iter().filter_map(|item| change(item.as_str()?)).collect(),
        _ => Vec::new(),
    };
    let entry = format!("{name} {changes:?}");
    if let Some(profile) = known.get(&entry) {
        return Ok(Some(profile.clone()));
    }
    let mut read = match text_if_there(&path).map_err(&refuse)? {
        Some(text) => {
            MachineProfile::read(&name, &text).map_err(|error| refuse(format!("{}: {error}", path.display())))?
        }
        None => profile::profile(&name)
            .cloned()
            .map_err(|error| refuse(format!("{} is not there, and {error}", path.display())))?,
    };
    if !changes.is_empty() {
        let refuse = |error| values.refuse("hardware.changes", &["hardware.profile"], format!("{error}"));
        read = read.changed(&changes).map_err(refuse)?;
        // Cells that differ in this alone are different cells.
        let changes: Vec<String> = changes.iter().map(|(place, value)| format!("{place} = {value}")).collect();
        read.name = format!("{name} with {}", changes.join(", "));
    }
    if !context.what_if.is_empty() {
        read = read.changed(&context.what_if).map_err(|error| refuse(format!("--what-if: {error}")))?;
    }
    if !read.ceilings.is_empty() {
        crate::profile::ceilings::of_value(&Value::Table(read.ceilings.clone()))
            .map_err(|wrong| refuse(format!("\"{name}\": {}: {wrong}", path.display())))?;
    }
    let read = Arc::new(read);
    known.insert(entry, read.clone());
    Ok(Some(read))
}

/// Where a machine or framework of this name may stand beside the configuration: it takes precedence over the compiled-in one.
pub(super) fn file_of_name(
    values: &Values,
    context: &Context,
    key: &'static str,
    folder: &str,
    name: &str,
) -> Result<PathBuf, Refusal> {
    if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)) {
        let message = format!("\"{name}\" is not a valid name; write letters, digits, dashes, underscores and dots");
        return Err(values.refuse(key, &[], message));
    }
    Ok(context.folder.join(folder).join(format!("{name}.toml")))
}

/// A file's text; nothing where there is no such file, and a message where there is one that cannot be read.
pub(super) fn text_if_there(path: &Path) -> Result<Option<String>, String> {
    match zbench_engine::formats::files::text(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("{} cannot be read: {error}", path.display())),
    }
}

/// A model with the keys of [model] that it was read from.
pub(super) type ReadModel = (Vec<(&'static str, Value)>, Model);

/// Most models that a [`Context`] remembers.
const MOST_MODELS: usize = 256;

/// As [`model`], which depends on the keys of [model] alone: most cells of a grid have the same, and a file is read once.
pub(super) fn known_model(values: &Values, context: &Context) -> Result<Model, Refusal> {
    let given = || values.settings.iter().filter(|(key, _)| key.starts_with("model."));
    let same = |known: &ReadModel| {
        known.0.iter().map(|(key, value)| (key, value)).eq(given().map(|(key, setting)| (key, &setting.value)))
    };
    // A thread that panicked while it held the lock has left no incomplete entry.
    let mut models = context.models.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some((_, model)) = models.iter().rev().find(|known| same(known)) {
        return Ok(model.clone());
    }
    let read = model(values, context)?;
    if models.len() == MOST_MODELS {
        models.remove(0);
    }
    models.push((given().map(|(key, setting)| (*key, setting.value.clone())).collect(), read.clone()));
    Ok(read)
}

/// A model that `model.path` names and the engine cannot train.
pub(super) struct DescribedFolder {
    /// The settings with the model's sizes, and without `model.path`.
    pub settings: Settings,
    /// What was assumed of the model, in sentences without their points.
    pub assumed: Vec<String>,
}

/// The settings with the sizes of a model in the place of `model.path`, where the engine cannot train what its config.json describes;
/// `model.left_out` then keeps it from being run. A model that cannot be priced either is left to [`model`], which refuses it.
pub(super) fn described(settings: &Settings, context: &Context) -> Option<DescribedFolder> {
    let path = settings.get("model.path")?;
    let file = absolute(&context.folder.join(path.value.as_str()?)).join("config.json");
    let name = file.display().to_string();
    let json = zbench_engine::formats::files::text(&file).ok()?;
    let is_without = settings.contains_key("model.dropout");
    let read = if is_without { hf::model_from_hf_without_dropout } else { hf::model_from_hf };
    let Err(HfError::Unsupported { missing, .. }) = read(&json, &name) else { return None };
    let mut described =
        foreign::describe(serde_json::from_str::<serde_json::Value>(&json).ok()?.as_object()?, &name).ok()?;
    let (place, from_grid) = (path.place, path.from_grid);
    let mut settings = settings.clone();
    settings.remove("model.path");
    // What a file states of it adds to what the model has, and takes none of that away.
    let stated = settings.remove(foreign::LEFT_OUT).map(|setting| setting.value);
    let (of_model, others): (Vec<_>, Vec<_>) =
        described.settings.into_iter().partition(|(key, _)| *key == foreign::LEFT_OUT);
    let further = of_model.into_iter().map(|(_, value)| value).chain(stated);
    let further = further.filter_map(|value| value.try_into::<Vec<String>>().ok()).flatten();
    let mut parts: Vec<String> = Vec::new();
    for text in missing.into_iter().chain(further) {
        let part = part_of(&text);
        if !parts.iter().any(|known| known == part) {
            parts.push(part.to_string());
        }
    }
    if settings.contains_key("lora.rank") {
        described.assumed.retain(|text| !foreign::is_of_rank(text));
    }
    for (key, value) in [(foreign::LEFT_OUT, parts.into())].into_iter().chain(others) {
        settings.entry(key).or_insert(Setting { value, place, from_grid });
    }
    if settings.get("hardware.software").is_none_or(|software| software.value.as_str() == Some("zbench")) {
        settings.remove("model.loading");
    }
    Some(DescribedFolder { settings, assumed: described.assumed })
}

/// The part of a model that a text names, without what zbench has instead and without the contents of a table.
fn part_of(text: &str) -> &str {
    let part = text.split(" (zbench has").next().unwrap_or(text);
    part.split(" {").next().unwrap_or(part)
}

/// The model of a preset or a folder, with the keys of [model] over it.
fn model(values: &Values, context: &Context) -> Result<Model, Refusal> {
    let keys: Vec<&'static str> = values.settings.keys().copied().filter(|key| key.starts_with("model.")).collect();
    let refused = |key: &str, error: HfError| {
        let (key, message) = match error {
            HfError::Field { what, field, reason } if what == "model" => (format!("model.{field}"), reason),
            other => (key.to_string(), other.to_string()),
        };
        // The field may be a default; the nearest key that the file has is then the place to look.
        let known = keys::find(&key).map_or("model.rope_scaling", |key| key.name);
        Refusal { key: key.clone(), ..values.refuse(known, &keys, message) }
    };
    let (preset, path) = (values.given_text("model.preset"), values.given_text("model.path"));
    let preset =
        if keys.iter().all(|key| ["model.save", "model.dropout", "model.loading", foreign::LEFT_OUT].contains(key)) {
            Some("llama-32m".into())
        } else {
            preset
        };
    let (mut base, mut weights) = (PartialModel::default(), None);
    match (preset, path) {
        (Some(_), Some(_)) => {
            let message = "stands beside model.preset; keep one of them";
            return Err(values.refuse("model.path", &keys, message));
        }
        (Some(name), None) => {
            let text = hf::preset(&name).map_err(|error| {
                let HfError::UnknownPreset { .. } = &error else { return refused("model.preset", error) };
                let names: Vec<&str> = hf::preset_names().collect();
                values.refuse(
                    "model.preset",
                    &[],
                    format!("there is no preset \"{name}\"{}; there are {}", hint(&name, &names), names.join(", ")),
                )
            })?;
            base = toml::from_str(text).map_err(|error| values.refuse("model.preset", &[], error.to_string()))?;
        }
        (None, Some(path)) => {
            let folder = absolute(&context.folder.join(path));
            let file = folder.join("config.json");
            let json = zbench_engine::formats::files::text(&file).map_err(|error| {
                let message = format!(
                    "{} cannot be read: {error}; name a folder with config.json, or make a model with fresh weights \
                     (docs/loading.md)",
                    file.display()
                );
                values.refuse("model.path", &[], message)
            })?;
            let read = match values.given("model.dropout") {
                Some(_) => hf::model_from_hf_without_dropout,
                None => hf::model_from_hf,
            };
            let mut model = read(&json, &file.display().to_string()).map_err(|e| refused("model.path", e))?;
            if model.tie_word_embeddings && values.given("model.tie_word_embeddings").is_none() {
                model.tie_word_embeddings = match Checkpoint::has_own_head(&folder, &model) {
                    Ok(own) => !own,
                    // The check of the files says so where weights are needed.
                    Err(CheckpointError::NoWeights { .. }) => true,
                    Err(error) => return Err(values.refuse("model.path", &[], error.to_string())),
                };
            }
            base = PartialModel::from(&model);
            weights = Some(folder);
        }
        (None, None) => {}
    }
    let mut stated = toml::Table::new();
    let own = |key: &str| {
        ["model.preset", "model.path", "model.save", "model.dropout", "model.loading", foreign::LEFT_OUT].contains(&key)
    };
    let family = values.given_text("model.family");
    let own = |key: &str| own(key) || priced::is_own_key(key, family.as_deref());
    for key in keys.iter().filter(|key| !own(key)) {
        if let Some(value) = values.given(key) {
            stated.insert(key.trim_start_matches("model.").into(), value.clone());
        }
    }
    let family = family.filter(|family| priced::FAMILIES.contains(&family.as_str()));
    match family.as_deref() {
        // The engine's families name the sizes that they share, and what is not stated.
        Some("t5" | "custom") => drop(stated.insert("family".into(), "llama".into())),
        Some(_) => stated = unit_sizes(),
        None => {}
    }
    let stated: PartialModel = Value::Table(stated)
        .try_into()
        .map_err(|e: toml::de::Error| values.refuse("model.rope_scaling", &keys, e.message()))?;
    let mut model = stated.or(base).resolve("model").map_err(|error| refused("model.family", error))?;
    if values.given("model.form").is_some() {
        let read = hf::model_from_hf(&hf::config_json(&model, DType::F32, None), "model.form");
        if family.is_some() || read.map(|read| read.form) != Ok(model.form) {
            let name = family.as_deref().unwrap_or(&model.family);
            let message = format!("has what no {name} of transformers has; change it, or write another model.family");
            return Err(values.refuse("model.form", &["model.family"], message));
        }
    }
    if let Some(family) = family {
        if family == "custom" {
            model.experts = priced::experts(values)?;
        }
        model.family = family;
    }
    model.weights = weights;
    let is_of_others = values.given_text("hardware.software").is_some_and(|name| name != "zbench");
    if model.weights.is_none() && values.given("model.loading").is_some() && !is_of_others {
        let message = "has no effect without model.path or another hardware.software: fresh weights are drawn where they are \
                       kept; leave it out";
        return Err(values.refuse("model.loading", &["model.path"], message));
    }
    model.loading = values.choice("model.loading").unwrap_or_default();
    model.save = values.given_text("model.save").map(|path| absolute(&context.folder.join(path)));
    Ok(model)
}

/// The smallest valid sizes, for a model of which only the number of parameters is known.
fn unit_sizes() -> toml::Table {
    let mut table = toml::Table::new();
    table.insert("family".into(), "llama".into());
    let names = ["hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "vocab_size"];
    for name in names.into_iter().chain(["num_hidden_layers"]) {
        table.insert(name.into(), Value::Integer(1));
    }
    table.insert("head_dim".into(), Value::Integer(2));
    table.insert("max_position_embeddings".into(), Value::Integer(1 << 31));
    table
}

/// Where tokens come from; a key that has no effect is refused.
pub(super) fn data(values: &Values, context: &Context) -> Result<Data, Refusal> {
    let source = values.text("data.source");
    let unused = |key: &str| {
        let message = format!("has no effect when data.source is \"{source}\"; leave it out, or change data.source");
        values.refuse(key, &["data.source"], message)
    };
    let path = |key: &str| -> Result<PathBuf, Refusal> {
        let given = values.given_text(key);
        let text = given.ok_or_else(|| {
            values.refuse(key, &["data.source"], format!("is missing; data.source = \"{source}\" needs a file"))
        })?;
        Ok(absolute(&context.folder.join(text)))
    };
    let given = |key: &str| values.given(key).is_some();
    // A grid over sources must state the keys of the other sources somewhere.
    let varies = values.settings.get("data.source").is_some_and(|source| source.from_grid);
    let useless: &[&str] = match source.as_str() {
        "text" => &["data.dtype", FILES, FIELD, PACKING, TEMPLATE, LOSS_ON, END],
        "tokens" => &["data.tokenizer", FILES, FIELD, PACKING, TEMPLATE, LOSS_ON, END],
        "jsonl" => &["data.dtype", FILES, TEMPLATE, LOSS_ON],
        "chat" => &["data.dtype", FILES, FIELD],
        "mix" => &["data.dtype", "data.path", FIELD],
        _ => &["data.path", "data.dtype", "data.tokenizer", SHUFFLE, FILES, FIELD, PACKING, TEMPLATE, LOSS_ON, END],
    };
    let shuffle = values.is(SHUFFLE);
    if let Some(key) = useless.iter().find(|key| given(key)).filter(|_| !varies) {
        return Err(unused(key));
    }
    Ok(match source.as_str() {
        "text" => Data::Text { path: path("data.path")?, tokenizer: path("data.tokenizer")?, shuffle },
        "jsonl" | "chat" | "mix" => documents(values, context, &path)?,
        "tokens" => {
            let dtype = values.choice("data.dtype").unwrap_or(TokenType::U32);
            Data::Tokens { path: path("data.path")?, dtype, shuffle }
        }
        _ => Data::Synthetic {},
    })
}

const SHUFFLE: &str = "data.shuffle";
const FILES: &str = "data.files";
const FIELD: &str = "data.field";
const PACKING: &str = "data.packing";
const TEMPLATE: &str = "data.template";
const LOSS_ON: &str = "data.loss_on";
const END: &str = "data.document_end";

/// Documents of one or several files.
fn documents(
    values: &Values,
    context: &Context,
    path: &dyn Fn(&str) -> Result<PathBuf, Refusal>,
) -> Result<Data, Refusal> {
    let files = if values.text("data.source") == "mix" {
        let listed = values.given(FILES).and_then(Value::as_array).ok_or_else(|| {
            values.refuse(FILES, &["data.source"], "is missing; data.source = \"mix\" needs a list of files")
        })?;
        // The kind of the key has checked names and types.
        let text = |item: &Value, name: &str| item.get(name).and_then(Value::as_str).unwrap_or_default().to_string();
        let file = |item: &Value| DocumentFile {
            path: absolute(&context.folder.join(text(item, "path"))),
            form: item.get("form").and_then(choice).unwrap_or(DocumentForm::Jsonl),
            field: Some(text(item, "field")).filter(|field| !field.is_empty()).unwrap_or_else(|| "text".into()),
            weight: item.get("weight").and_then(number).unwrap_or(1.0),
        };
        listed.iter().map(file).collect()
    } else {
        let form = values.choice("data.source").unwrap_or(DocumentForm::Jsonl);
        vec![DocumentFile { path: path("data.path")?, form, field: values.text(FIELD), weight: 1.0 }]
    };
    Ok(Data::Documents(Box::new(Documents {
        files,
        tokenizer: path("data.tokenizer")?,
        packing: values.choice(PACKING).unwrap_or(DocumentPacking::Packed),
        shuffle: values.is(SHUFFLE),
        template: values.choice(TEMPLATE).unwrap_or(Template::ChatMl),
        answers: if values.text(LOSS_ON) == "all" { Answers::All } else { Answers::Only },
        end: values.given_count(END).and_then(|token| u32::try_from(token).ok()),
    })))
}

/// From the root and without `.` parts: one name for a file, which a record can be repeated with from any directory. A
/// record is text, so where the current directory's name is none the path stays relative.
pub(super) fn absolute(path: &Path) -> PathBuf {
    let tidy = || path.components().filter(|part| !matches!(part, std::path::Component::CurDir)).collect();
    std::path::absolute(path).ok().filter(|path| path.to_str().is_some()).unwrap_or_else(tidy)
}
