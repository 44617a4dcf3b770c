//! Hugging Face's config.json: the engine reads it and says whether it can be; here its keys become those of [model].

use super::draft::{Draft, Options};
use super::model::settings;
use super::node::Node;
use super::{Format, Row, Verdict};
use toml::Value as Toml;
use zbench_config::{ConfigError, Problem};
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
            _ if (is_fixed || name == "attn_config") && has_dropout(name, &node.json()) => {
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
    const KEYS: [&str; 6] =
        ["attention_dropout", "hidden_dropout", "attn_pdrop", "embd_pdrop", "resid_pdrop", "attn_config"];
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
