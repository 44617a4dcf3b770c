//! `adapter_config.json`, as PEFT writes it.

use super::targets::{all_linear, default_feedforward, default_targets, find_targets, is_of_experts};
use super::{CONFIG, PeftError};
use crate::config::{Linear, Lora, Method, Model};
use crate::formats::hf::{Restricted, only};
use serde_json::{Map, Value};
use std::path::Path;

/// Largest rank; more is a mistake, and sizes must not wrap.
const MOST_RANK: u64 = 1 << 16;
/// A config that is longer is none.
const MOST_BYTES: u64 = 16 << 20;

/// Reads the config of a folder of adapters for `model`: the adapters that start from this folder.
///
/// # Errors
/// No such file, no JSON object, a key of the wrong type, and whatever zbench does not have (all of it listed).
pub fn read_config(dir: &Path, model: &Model) -> Result<Lora, PeftError> {
    let file = dir.join(CONFIG);
    let io = |reason: String| PeftError::Io { file: file.clone(), reason };
    // Asked before opening: opening a pipe would wait for its writer.
    let found = std::fs::metadata(&file).map_err(|error| io(error.to_string()))?;
    if !found.is_file() || found.len() > MOST_BYTES {
        return Err(io("it is not a regular file of a few kilobytes".into()));
    }
    let text = std::fs::read_to_string(&file).map_err(|error| io(error.to_string()))?;
    Ok(Lora { path: Some(dir.into()), ..parse_config(&text, &file.display().to_string(), model)? })
}

/// Reads the text of an `adapter_config.json`; `what` names it in errors. The adapters have no folders.
///
/// # Errors
/// As [`read_config`].
pub fn parse_config(text: &str, what: &str, model: &Model) -> Result<Lora, PeftError> {
    let bad = |reason: String| PeftError::Json { what: what.into(), reason };
    let value: Value = serde_json::from_str(text).map_err(|error| bad(error.to_string()))?;
    let Value::Object(config) = value else { return Err(bad("it is not an object of keys".into())) };
    let file = File { config: &config, what, model };
    let method = file.method()?;
    file.refuse_unsupported(method)?;
    let targets = file.targets(method)?;
    Ok(match method {
        Method::Lora => Lora {
            rank: file.rank()?,
            alpha: file.number("lora_alpha", 8.0, f64::MIN_POSITIVE, 1e30)?,
            dropout: file.number("lora_dropout", 0.0, 0.0, 0.999)?,
            use_rslora: file.flag("use_rslora")?,
            use_dora: file.flag("use_dora")?,
            targets,
            ..Lora::default()
        },
        Method::Ia3 => Lora { method, feedforward: file.feedforward(&targets)?, targets, ..Lora::default() },
    })
}

/// Keys that do not change the function, or that are read below.
const READ: &[&str] = &[
    "peft_type",
    "auto_mapping",
    "peft_version",
    "base_model_name_or_path",
    "revision",
    "inference_mode",
    "runtime_config",
    "target_modules",
    // Which way round the base's matrices lie is known.
    "fan_in_fan_out",
];
const READ_BY_LORA: &[&str] = &[
    "r",
    "lora_alpha",
    "lora_dropout",
    "use_rslora",
    "use_dora",
    // Of no effect without others that are refused.
    "layers_pattern",
    "megatron_core",
    "qalora_group_size",
    "ensure_weight_tying",
    "eva_config",
];
const READ_BY_IA3: &[&str] = &["feedforward_modules", "init_ia3_weights"];

/// Keys that ask for what zbench does not have unless their value is harmless.
const RESTRICTED: &[Restricted] = &[
    only("task_type", |value| value == "CAUSAL_LM", "\"CAUSAL_LM\""),
    only("bias", |value| value == "none", "\"none\""),
    // PiSSA, OLoRA and others change the base too.
    only(
        "init_lora_weights",
        |value| value.is_boolean() || matches!(value.as_str(), Some("gaussian" | "eva" | "orthogonal")),
        "adapters that leave the base as it is",
    ),
    only("rank_pattern", says_nothing, "one rank for all layers"),
    only("alpha_pattern", says_nothing, "one alpha for all layers"),
    only("modules_to_save", says_nothing, "adapters alone, and no module that trains as a whole"),
    only("layers_to_transform", says_nothing, "adapters on all blocks"),
    only("layer_replication", says_nothing, "every block once"),
    only("exclude_modules", says_nothing, "targets by name"),
    only("target_parameters", says_nothing, "adapters on linear layers"),
    only("trainable_token_indices", says_nothing, "frozen embeddings"),
    only("lora_bias", says_nothing, "adapters without biases"),
    only("loftq_config", says_nothing, "a base that is as its files have it"),
    only("corda_config", says_nothing, "a base that is as its files have it"),
];

struct File<'a> {
    config: &'a Map<String, Value>,
    what: &'a str,
    model: &'a Model,
}

impl File<'_> {
    fn given(&self, key: &str) -> Option<&Value> {
        self.config.get(key).filter(|value| !value.is_null())
    }

    fn refuse(&self, field: &str, reason: String) -> PeftError {
        PeftError::Field { what: self.what.into(), field: field.into(), reason }
    }

    fn unsupported(&self, missing: Vec<String>) -> PeftError {
        PeftError::Unsupported { what: self.what.into(), missing }
    }

    fn method(&self) -> Result<Method, PeftError> {
        match self.given("peft_type") {
            None => Err(self.refuse("peft_type", "is missing; \"LORA\" and \"IA3\" can be read".into())),
            Some(name) if name == "LORA" => Ok(Method::Lora),
            Some(name) if name == "IA3" => Ok(Method::Ia3),
            Some(other) => Err(self.unsupported(vec![format!("peft_type {other} (zbench has \"LORA\" and \"IA3\")")])),
        }
    }

    /// Whatever would change the function, by name.
    fn refuse_unsupported(&self, method: Method) -> Result<(), PeftError> {
        let own = if method == Method::Lora { READ_BY_LORA } else { READ_BY_IA3 };
        let mut missing = Vec::new();
        for (key, value) in self.config.iter().filter(|(_, value)| !value.is_null()) {
            let rule = RESTRICTED.iter().find(|rule| rule.key == key);
            let harmless = match rule {
                Some(rule) => (rule.harmless)(value),
                None => READ.contains(&&**key) || own.contains(&&**key) || says_nothing(value),
            };
            if !harmless {
                let have = rule.map_or("no such key", |rule| rule.have);
                missing.push(format!("{key} {} (zbench has {have})", shortened(value)));
            }
        }
        if missing.is_empty() { Ok(()) } else { Err(self.unsupported(missing)) }
    }

    fn flag(&self, key: &str) -> Result<bool, PeftError> {
        let Some(value) = self.given(key) else { return Ok(false) };
        value.as_bool().ok_or_else(|| self.refuse(key, format!("is {}; it must be true or false", shortened(value))))
    }

    fn number(&self, key: &str, default: f64, least: f64, most: f64) -> Result<f64, PeftError> {
        let Some(value) = self.given(key) else { return Ok(default) };
        let number = value.as_f64().filter(|number| (least..=most).contains(number));
        number.ok_or_else(|| {
            let least = if least > 0.0 { "above 0".to_string() } else { format!("from {least}") };
            self.refuse(key, format!("is {}; it must be a number {least} to {most}", shortened(value)))
        })
    }

    fn rank(&self) -> Result<usize, PeftError> {
        let Some(value) = self.given("r") else { return Ok(8) };
        let rank = value.as_u64().filter(|rank| (1..=MOST_RANK).contains(rank));
        rank.map(|rank| rank as usize).ok_or_else(|| {
            self.refuse("r", format!("is {}; it must be a whole number from 1 to {MOST_RANK}", shortened(value)))
        })
    }

    /// The texts of a list; PEFT takes a single text for a regular expression.
    fn names(&self, key: &str) -> Result<Option<Vec<&str>>, PeftError> {
        let Some(value) = self.given(key) else { return Ok(None) };
        if let Value::String(text) = value {
            let missing = format!("{key} {text:?}, a regular expression (zbench has lists of names)");
            return Err(self.unsupported(vec![missing]));
        }
        let names = value.as_array().and_then(|list| list.iter().map(Value::as_str).collect());
        let reason = || format!("is {}; it must be a list of names", shortened(value));
        names.map(Some).ok_or_else(|| self.refuse(key, reason()))
    }

    fn targets(&self, method: Method) -> Result<Vec<Linear>, PeftError> {
        let key = "target_modules";
        if self.given(key).and_then(Value::as_str).is_some_and(|text| text.eq_ignore_ascii_case("all-linear")) {
            return Ok(all_linear(self.model));
        }
        let Some(mut names) = self.names(key)? else { return Ok(default_targets(self.model, method)) };
        if method == Method::Ia3 {
            names.retain(|name| !is_of_experts(self.model, name));
        }
        if names.is_empty() {
            return Err(self.refuse(key, "names no module".into()));
        }
        find_targets(self.model, &names).map_err(|reason| self.unsupported(vec![format!("{key}: {reason}")]))
    }

    fn feedforward(&self, targets: &[Linear]) -> Result<Vec<Linear>, PeftError> {
        let key = "feedforward_modules";
        let Some(mut names) = self.names(key)? else { return Ok(default_feedforward(targets)) };
        names.retain(|name| !is_of_experts(self.model, name));
        let found =
            find_targets(self.model, &names).map_err(|reason| self.unsupported(vec![format!("{key}: {reason}")]))?;
        if let Some(other) = found.iter().find(|layer| !targets.contains(layer)) {
            return Err(self.refuse(key, format!("names {}, which target_modules does not", other.name())));
        }
        Ok(found)
    }
}

/// Values with which a key that is not known cannot ask for anything.
fn says_nothing(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Bool(true) => false,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
    }
}

/// A value as an error shows it.
fn shortened(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
