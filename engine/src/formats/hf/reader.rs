//! The keys of `config.json` one by one: those that families read in their own way, and those that must have one value.

use super::{HfError, PartialModel};
use crate::config::Form;
use serde_json::{Map, Value};

/// A key that changes the mathematics unless its value is harmless.
pub struct Restricted {
    pub key: &'static str,
    pub harmless: fn(&Value) -> bool,
    /// What zbench has instead.
    pub have: &'static str,
}

pub const fn only(key: &'static str, harmless: fn(&Value) -> bool, have: &'static str) -> Restricted {
    Restricted { key, harmless, have }
}

pub fn is_gelu_tanh(value: &Value) -> bool {
    matches!(value.as_str(), Some("gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" | "gelu_accurate"))
}

pub fn is_gelu_of_either_form(value: &Value) -> bool {
    value == "gelu" || is_gelu_tanh(value)
}

pub fn is_false(value: &Value) -> bool {
    value == false
}

pub fn is_true(value: &Value) -> bool {
    value == true
}

pub fn is_number(value: &Value, number: f64) -> bool {
    value.as_f64() == Some(number)
}

pub fn is_zero(value: &Value) -> bool {
    is_number(value, 0.0)
}

pub const NO_DROPOUT: &str = "no dropout outside adapters; model.dropout = 0.0 trains without it";
pub const CAUSAL: Restricted = only("is_causal", is_true, "causal attention");
pub const PLAIN_WEIGHTS: Restricted = only("quantization_config", Value::is_null, "plain f32, bf16 and f16 weights");
pub const DROPOUT: Restricted = only("attention_dropout", is_zero, NO_DROPOUT);
pub const HIDDEN_DROPOUT: Restricted = only("hidden_dropout", is_zero, NO_DROPOUT);
/// Transformers knows one function under both names.
pub const SILU: Restricted = only("hidden_act", |value| matches!(value.as_str(), Some("silu" | "swish")), "\"silu\"");
pub const WHOLE_HEADS: Restricted =
    only("partial_rotary_factor", |value| is_number(value, 1.0), "rotation of the whole head");
pub const NO_ROUTER_LOSS: Restricted =
    only("output_router_logits", is_false, "training without the router's auxiliary loss");

pub struct Reader<'a> {
    pub config: &'a Map<String, Value>,
    pub file: &'a str,
    /// Dropout that the file states is left out.
    pub without_dropout: bool,
}

impl Reader<'_> {
    pub fn given(&self, key: &str) -> Option<&Value> {
        self.config.get(key).filter(|value| !value.is_null())
    }

    pub fn refuse(&self, key: &str, reason: impl Into<String>) -> HfError {
        HfError::field(self.file, key, reason)
    }

    pub fn unsupported(&self, missing: Vec<String>) -> HfError {
        HfError::Unsupported { what: self.file.into(), missing }
    }

    /// What a table of the file asks for and is not there, in words.
    pub fn missing(&self, table: &Map<String, Value>, prefix: &str, rules: &[Restricted]) -> Vec<String> {
        let rules = rules.iter().filter(|rule| !(self.without_dropout && rule.have == NO_DROPOUT));
        rules
            .filter_map(|Restricted { key, harmless, have }| {
                let value = table.get(*key).filter(|value| !value.is_null() && !harmless(value))?;
                Some(format!("{prefix}{key} {value} (zbench has {have})"))
            })
            .collect()
    }

    pub fn flag(&self, key: &str, default: bool) -> Result<bool, HfError> {
        let Some(value) = self.given(key) else { return Ok(default) };
        value.as_bool().ok_or_else(|| self.refuse(key, format!("is {value}; it must be true or false")))
    }

    pub fn count(&self, key: &str) -> Result<Option<usize>, HfError> {
        let Some(value) = self.given(key) else { return Ok(None) };
        let count = value.as_u64().and_then(|count| usize::try_from(count).ok());
        count.map(Some).ok_or_else(|| self.refuse(key, format!("is {value}; it must be a whole number from 0")))
    }

    /// Of all four of attention's projections.
    pub fn attention_bias(&self, form: &mut Form) -> Result<(), HfError> {
        form.qkv_bias = self.flag("attention_bias", false)?;
        form.output_bias = form.qkv_bias;
        Ok(())
    }

    /// A sliding window: 0 stands for none here as in a TOML section, absent for the default.
    pub fn window(&self, key: &str) -> Result<Option<usize>, HfError> {
        match self.config.get(key) {
            None => Ok(None),
            Some(Value::Null) => Ok(Some(0)),
            Some(_) => match self.count(key)? {
                Some(0) => Err(self.refuse(key, "is 0; a token sees at least itself, null is the whole sequence")),
                window => Ok(window),
            },
        }
    }

    /// First block with a window by `layer_types`; `None` without that key. `layers` and `window` are from the file's other keys.
    pub fn first_windowed(&self, layers: usize, window: Option<usize>) -> Result<Option<usize>, HfError> {
        let key = "layer_types";
        let Some(types) = self.given(key) else { return Ok(None) };
        let types = types.as_array().ok_or_else(|| self.refuse(key, "is not a list"))?;
        let sliding = |kind: &Value| kind == "sliding_attention";
        if let Some(other) = types.iter().find(|kind| !sliding(kind) && *kind != "full_attention") {
            let missing = format!("layer_types {other} (zbench has \"full_attention\", \"sliding_attention\")");
            return Err(self.unsupported(vec![missing]));
        }
        if types.len() != layers {
            return Err(self.refuse(key, format!("is a list of length {}; num_hidden_layers is {layers}", types.len())));
        }
        let from = types.iter().take_while(|kind| !sliding(kind)).count();
        if !types[from..].iter().all(sliding) {
            let have = "windows in all blocks from one on; here they alternate with full attention";
            return Err(self.unsupported(vec![format!("layer_types (zbench has {have})")]));
        }
        if from < types.len() && window.is_none() {
            return Err(
                self.refuse(key, "has \"sliding_attention\", and the file's other keys say that there is no window")
            );
        }
        Ok(Some(from))
    }

    /// The token whose embedding is torch's `padding_idx`. Null is none; absent is the family's default; a negative one counts
    /// from the end, as torch does.
    pub fn padding(&self, model: &mut PartialModel) -> Result<(), HfError> {
        let key = "pad_token_id";
        let Some(value) = self.config.get(key) else { return Ok(()) };
        if value.is_null() {
            model.pad_token_id = Some(-1);
            return Ok(());
        }
        let vocab = model.vocab_size.and_then(|vocab| i64::try_from(vocab).ok());
        let token =
            value.as_i64().ok_or_else(|| self.refuse(key, format!("is {value}; it must be a token or null")))?;
        model.pad_token_id = Some(match vocab {
            Some(vocab) if token < 0 && token >= -vocab => vocab + token,
            _ if token < 0 => return Err(self.refuse(key, format!("is {token}; that is before the vocabulary"))),
            _ => token,
        });
        Ok(())
    }

    /// Transformers 4 and 5 have two names for the number of experts; a file with both must mean one.
    pub fn one_number_of_experts(&self) -> Result<(), HfError> {
        match (self.count("num_experts")?, self.count("num_local_experts")?) {
            (Some(one), Some(other)) if one != other => {
                Err(self.refuse("num_experts", format!("is {one}, and num_local_experts is {other}; keep one of them")))
            }
            _ => Ok(()),
        }
    }
}
