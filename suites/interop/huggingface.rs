//! Hugging Face's config.json: the engine reads it and says whether it can be; here its keys become those of [model].

use super::draft::{Draft, Options};
use super::node::Node;
use super::{Format, Row, Verdict};
use std::path::Path;
use toml::Value as Toml;
use zbench_config::kind::hint;
use zbench_config::{ConfigError, Problem, keys as ours};
use zbench_engine::config::Model;
use zbench_engine::hf::{self, HfError, PartialModel};

/// Every key of a file, and the keys of [model] that come of them.
///
/// # Errors
/// What the engine's reader refuses, and blocks that keys of [model] cannot describe.
pub fn import(source: &str, root: &Node, options: &Options) -> Result<Draft, ConfigError> {
    let mut draft = Draft::new(Format::HuggingFace, source);
    if options.model.is_some() {
        let message = "is a model already; leave --model out".to_string();
        draft.problem(None, "", message);
        return draft.finish(options);
    }
    let json = root.json().to_string();
    // Dropout that the file states has a row of its own, which says that it is not there.
    let model = match hf::model_from_hf_without_dropout(&json, source) {
        Ok(model) => model,
        Err(error) => return Err(refusal(source, root, &error)),
    };
    match settings(&model) {
        Ok(settings) => rows(&mut draft, root, &model, settings),
        Err(message) => draft.problem(None, "model_type", message),
    }
    if let Some(ranks) = options.ranks {
        draft.flagged("parallel.ranks", super::draft::whole(ranks), "--ranks");
    }
    draft.finish(options)
}

/// The engine's error with the place of the key that it names.
fn refusal(source: &str, root: &Node, error: &HfError) -> ConfigError {
    let place = |key: &str| {
        let first = key.split('.').next().unwrap_or(key);
        root.table()?.iter().find(|(found, _)| found.name == first).map(|(found, _)| found.place)
    };
    let problem =
        |key: &str, message: String| Problem { source: source.into(), place: place(key), key: key.into(), message };
    ConfigError(match error {
        HfError::Field { field, reason, .. } => vec![problem(field, format!("{reason}; change it in the file"))],
        HfError::Unsupported { missing, .. } => {
            let each = |missing: &String| {
                let key = missing.split([' ', ',']).next().unwrap_or_default();
                problem(key, format!("{missing}; the model cannot be trained here as the file has it"))
            };
            missing.iter().map(each).collect()
        }
        other => vec![problem("", format!("{other}"))],
    })
}

/// The keys of [model] that make this model, fewest first: those whose absence changes nothing are left out.
///
/// # Errors
/// Its blocks differ from the family's, and only `model.path` reads such.
pub fn settings(model: &Model) -> Result<Vec<(&'static str, Toml)>, String> {
    let plain = Model { weights: None, save: None, ..model.clone() };
    let mut partial = PartialModel::from(&plain);
    partial.form = None;
    let table = toml::Table::try_from(&partial).map_err(|error| format!("cannot be written as TOML: {error}"))?;
    let made = |table: &toml::Table| {
        Toml::Table(table.clone()).try_into::<PartialModel>().ok().and_then(|partial| partial.resolve("model").ok())
    };
    if made(&table).is_none_or(|made| made != plain) {
        return Err(format!(
            "{:?} has blocks here that differ from the family's usual ones (biases, norms or their order), which [model] has no keys \
             for; name the folder instead, with weights in it: --set model.path=FOLDER",
            model.family
        ));
    }
    const CORE: [&str; 6] =
        ["family", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size"];
    let mut kept = table.clone();
    for name in table.keys().filter(|name| !CORE.contains(&name.as_str())) {
        let value = kept.remove(name);
        if made(&kept).is_none_or(|made| made != plain)
            && let Some(value) = value
        {
            kept.insert(name.clone(), value);
        }
    }
    let key = |name: &str| ours::find(&format!("model.{name}")).map(|key| key.name);
    Ok(kept.into_iter().filter_map(|(name, value)| Some((key(&name)?, value))).collect())
}

/// Keys that families read beside those of their tables, with what they become.
const READ: [(&str, &str); 22] = [
    ("model_type", "family"),
    ("rope_scaling", "rope_scaling"),
    ("rope_parameters", "rope_scaling"),
    ("pad_token_id", "pad_token_id"),
    ("sliding_window", "sliding_window"),
    ("use_sliding_window", "sliding_window"),
    ("max_window_layers", "max_window_layers"),
    ("layer_types", "max_window_layers"),
    ("attention_bias", ""),
    ("mlp_bias", ""),
    ("new_decoder_architecture", ""),
    ("parallel_attn", ""),
    ("bias", ""),
    ("num_ln_in_parallel_attn", ""),
    ("num_kv_heads", "num_key_value_heads"),
    ("multi_query", "num_key_value_heads"),
    ("attn_config", ""),
    ("hidden_act", ""),
    ("activation_function", ""),
    ("activation", ""),
    ("architectures", ""),
    ("scale_attn_weights", ""),
];

fn rows(draft: &mut Draft, root: &Node, model: &Model, settings: Vec<(&'static str, Toml)>) {
    let known = hf::config_keys(&model.family);
    for (key, node) in root.table().unwrap_or_default() {
        let name = key.name.as_str();
        let of_table = known.as_ref().and_then(|known| known.keys.iter().find(|(theirs, _)| *theirs == name));
        let of_reader = READ.iter().find(|(theirs, _)| *theirs == name);
        let ours = of_table.or(of_reader).map(|(_, ours)| *ours);
        let made = ours.and_then(|ours| settings.iter().find(|(key, _)| key.strip_prefix("model.") == Some(ours)));
        // One table holds two of our keys.
        let theta = settings.iter().find(|(key, _)| {
            *key == "model.rope_theta" && name == "rope_parameters" && node.get("rope_theta").is_some()
        });
        let is_fixed = known.as_ref().is_some_and(|known| known.fixed.contains(&name));
        let (verdict, becomes, reason) = match (ours, made) {
            _ if has_dropout(name, &node.json()) => {
                let reason = "zbench drops nothing out but in adapters: sizes and speed are near, losses differ.";
                (Verdict::NoEquivalent, Vec::new(), reason.to_string())
            }
            (_, made) if made.or(theta).is_some() => (
                Verdict::Used,
                made.into_iter().chain(theta).map(|(ours, value)| (ours.to_string(), value.to_string())).collect(),
                "A key of [model] by another name or the same.".to_string(),
            ),
            (Some(_), _) => {
                (Verdict::Default, Vec::new(), format!("It is what the family {:?} has anyway.", model.family))
            }
            (None, _) if is_fixed => (Verdict::Default, Vec::new(), "zbench computes just that.".to_string()),
            (None, _) => (Verdict::Ignored, Vec::new(), ignored(name).to_string()),
        };
        draft.row(Row { key: name.into(), value: node.json(), verdict, becomes, reason, place: Some(key.place) });
    }
    for (key, value) in settings {
        draft.flagged(key, value, "config.json");
    }
    if let Some(preset) = preset_of(model) {
        draft.notes.push(format!("it is the preset {preset}: model.preset = \"{preset}\" says the same"));
    }
    draft.notes.push(
        "a config.json says nothing of training: strategy, batch, precision and the rest have zbench's defaults".into(),
    );
}

/// Keys of dropout that causal language models read; `summary_first_dropout` and `classifier_dropout` are of other heads.
fn has_dropout(name: &str, value: &serde_json::Value) -> bool {
    const KEYS: [&str; 7] =
        ["attention_dropout", "hidden_dropout", "attn_pdrop", "embd_pdrop", "resid_pdrop", "emb_pdrop", "attn_config"];
    let value = if name == "attn_config" { value.get("attn_pdrop") } else { Some(value) };
    KEYS.contains(&name) && value.is_some_and(|value| !value.is_null() && value.as_f64() != Some(0.0))
}

fn ignored(name: &str) -> &'static str {
    match name {
        "torch_dtype" | "dtype" => "It is what the file's weights are kept as; [precision] says what trains.",
        "use_cache" => "It concerns generation.",
        name if name.ends_with("_token_id") => "It concerns generation and texts; tokens are data here.",
        "transformers_version" | "_name_or_path" | "auto_map" => "It says where the file is from.",
        _ => "It does not change a training step of this family.",
    }
}

/// The preset that is this model.
fn preset_of(model: &Model) -> Option<&'static str> {
    let plain = Model { weights: None, save: None, ..model.clone() };
    hf::preset_names().find(|name| {
        let text = hf::preset(name).unwrap_or_default();
        toml::from_str::<PartialModel>(text)
            .ok()
            .and_then(|partial| partial.resolve("model").ok())
            .is_some_and(|made| made == plain)
    })
}

/// `--model`: a preset, or a folder; one without weights is read for its sizes.
///
/// # Errors
/// There is neither such a preset nor such a folder, or its config.json is refused.
pub fn model(draft: &mut Draft, given: &str, folder: &Path) -> Result<(), ConfigError> {
    if hf::preset(given).is_ok() {
        draft.flagged("model.preset", Toml::String(given.into()), "--model");
        return Ok(());
    }
    let about = |message: String| ConfigError::about(format!("--model {given}"), message);
    let path = Path::new(given);
    let file = if path.is_dir() { path.join("config.json") } else { path.to_path_buf() };
    let text = zbench_engine::files::named_text(&file).map_err(|error| {
        let names: Vec<&str> = hf::preset_names().collect();
        about(format!(
            "there is no such preset{}, and {} cannot be read: {error}; name a folder with config.json, or one of {}",
            hint(given, &names),
            file.display(),
            names.join(", ")
        ))
    })?;
    let has_weights = path.is_dir()
        && std::fs::read_dir(path).is_ok_and(|entries| {
            entries.flatten().any(|entry| entry.path().extension().is_some_and(|ending| ending == "safetensors"))
        });
    if has_weights {
        // The configuration's paths start at its own folder.
        let here = folder.as_os_str().is_empty() || folder == Path::new(".");
        let path =
            if here { path.to_path_buf() } else { std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf()) };
        draft.flagged("model.path", Toml::String(path.display().to_string()), "--model");
        return Ok(());
    }
    let model = hf::model_from_hf(&text, &file.display().to_string()).map_err(|error| about(error.to_string()))?;
    for (key, value) in settings(&model).map_err(about)? {
        draft.flagged(key, value, "--model");
    }
    Ok(())
}
