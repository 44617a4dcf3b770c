//! Hugging Face's config.json: `zbench_config::foreign` says what keys of [model] it becomes, and this what became of each key.

use super::draft::{Draft, Options};
use super::node::Node;
use super::yaml::last_of_each;
use super::{Format, Row, Verdict};
use zbench_config::foreign::{self, Described};
use zbench_config::{ConfigError, Problem};
use zbench_engine::config::Model;
use zbench_engine::formats::hf;
use zbench_engine::formats::hf::{HfError, PartialModel};

/// Every key of a file, and the keys of [model] that come of them.
///
/// # Errors
/// As [`described`].
pub fn import(source: &str, root: &Node, options: &Options) -> Result<Draft, ConfigError> {
    let mut draft = Draft::new(Format::HuggingFace, source);
    if options.model.is_some() {
        let message = "is a model already; leave --model out".to_string();
        draft.problem(None, "", message);
        return draft.finish(options);
    }
    rows(&mut draft, root, described(source, root)?);
    if let Some(ranks) = options.ranks {
        draft.flagged("parallel.ranks", super::draft::whole(ranks), "--ranks");
    }
    draft.finish(options)
}

/// The keys of [model], and what they assume.
///
/// # Errors
/// A family or parts of a model that no keys of [model] describe, and keys of the wrong type, each with its place.
pub fn described(source: &str, root: &Node) -> Result<Described, ConfigError> {
    let mut root = root.clone();
    let mut notes = Vec::new();
    last_of_each(&mut root, &mut notes);
    let serde_json::Value::Object(config) = root.json() else {
        return Err(ConfigError::about(source, format!("holds {} and no keys; name a config.json", root.what())));
    };
    let mut described = foreign::describe(&config, source).map_err(|error| refusal(source, &root, &error))?;
    described.assumed.extend(notes);
    Ok(described)
}

/// The engine's error with the place of the key that it names.
fn refusal(source: &str, root: &Node, error: &HfError) -> ConfigError {
    let inner = root.get("text_config").unwrap_or(root);
    let place = |key: &str| {
        let first = key.split('.').next().unwrap_or(key);
        let of = |table: &Node| Some(table.table()?.iter().find(|(found, _)| found.name == first)?.0.place);
        of(inner).or_else(|| of(root))
    };
    let problem =
        |key: &str, message: String| Problem { source: source.into(), place: place(key), key: key.into(), message };
    ConfigError(match error {
        HfError::Field { field, reason, .. } => vec![problem(field, format!("{reason}; change it in the file"))],
        HfError::Unsupported { missing, .. } => {
            let each = |missing: &String| {
                let key = missing.split([' ', ',']).next().unwrap_or_default();
                let rest = missing.strip_prefix(key).unwrap_or(missing).trim_start_matches([',', ' ']);
                // A remark about the key alone needs no brackets.
                let rest = rest.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')).unwrap_or(rest);
                problem(key, format!("{rest}; no keys of [model] describe that"))
            };
            missing.iter().map(each).collect()
        }
        other => vec![problem("", format!("{other}"))],
    })
}

/// Keys that families read beside those of their tables, with what they become.
const READ: [(&str, &str); 21] = [
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
    ("hidden_act", ""),
    ("activation_function", ""),
    ("activation", ""),
    ("architectures", ""),
    ("scale_attn_weights", ""),
];

fn rows(draft: &mut Draft, root: &Node, described: Described) {
    let Described { settings, model, read, left_out, assumed, table } = described;
    let known = model.as_ref().and_then(|model| hf::config_keys(&model.family));
    let family = model.as_ref().map_or("custom", |model| model.family.as_str());
    let inner = table.and_then(|table| Some((table, root.get(table)?.table()?)));
    let outer = root.table().unwrap_or_default().iter().map(|entry| (String::new(), entry));
    let outer = outer.filter(|(_, (key, _))| inner.is_none_or(|(table, _)| table != key.name));
    let inner = inner.into_iter().flat_map(|(table, keys)| keys.iter().map(move |entry| (format!("{table}."), entry)));
    for (prefix, (key, node)) in outer.chain(inner) {
        let name = key.name.as_str();
        let of_file = read.iter().find(|(theirs, _)| *theirs == name).map(|(_, ours)| ours.as_str());
        let ours = of_file.or_else(|| READ.iter().find(|(theirs, _)| *theirs == name).map(|(_, ours)| *ours));
        // The other keys of a file with a table for the model are of other parts.
        let ours = ours.filter(|_| table.is_none() || !prefix.is_empty());
        let made = ours.and_then(|ours| settings.iter().find(|(key, _)| key.strip_prefix("model.") == Some(ours)));
        // One table holds two of our keys.
        let theta = settings.iter().find(|(key, _)| {
            *key == "model.rope_theta" && name == "rope_parameters" && node.get("rope_theta").is_some()
        });
        let is_fixed = known.as_ref().is_some_and(|known| known.fixed.contains(&name));
        let is_left_out = left_out.iter().any(|key| key.split('.').next() == Some(name));
        let (verdict, becomes, reason) = match (ours, made) {
            _ if foreign::has_dropout(family, name, &node.json()) => {
                let reason = "zbench drops nothing out but in adapters: sizes and speed are near, losses differ.";
                (Verdict::NoEquivalent, Vec::new(), reason.to_string())
            }
            _ if is_left_out => {
                let reason = "It changes no size; with it the model is priced and not run.";
                (Verdict::NoEquivalent, Vec::new(), reason.to_string())
            }
            (_, made) if made.or(theta).is_some() => (
                Verdict::Used,
                made.into_iter().chain(theta).map(|(ours, value)| (ours.to_string(), value.to_string())).collect(),
                "A key of [model] by another name or the same.".to_string(),
            ),
            _ if name == "quantization_config" => {
                let made = settings.iter().filter(|(key, _)| key.starts_with("lora."));
                let becomes: Vec<_> = made.map(|(key, value)| (key.to_string(), value.to_string())).collect();
                let verdict = if becomes.is_empty() { Verdict::Ignored } else { Verdict::Used };
                (verdict, becomes, "How the weights are stored.".to_string())
            }
            (Some(_), _) => (Verdict::Default, Vec::new(), format!("It is what the family {family:?} has anyway.")),
            (None, _) if is_fixed => (Verdict::Default, Vec::new(), "zbench computes just that.".to_string()),
            (None, _) => (Verdict::Ignored, Vec::new(), ignored(name).to_string()),
        };
        let (key, place) = (format!("{prefix}{name}"), Some(key.place));
        draft.row(Row { key, value: node.json(), verdict, becomes, reason, place });
    }
    for (key, value) in settings {
        draft.flagged(key, value, "config.json");
    }
    draft.notes.extend(assumed);
    if let Some(preset) = model.as_ref().and_then(preset_of) {
        draft.notes.push(format!("it is the preset {preset}: model.preset = \"{preset}\" says the same"));
    }
    draft.notes.push(
        "a config.json says nothing of training: strategy, batch, precision and the rest have zbench's defaults".into(),
    );
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
