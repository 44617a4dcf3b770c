//! The keys of `config.json` that say more than a size: flags, windows, and what Falcon and MPT write of their blocks.

use super::family::{FALCON, MPT, NO_DROPOUT, Restricted, is_false, is_true, is_zero, only};
use super::{HfError, PartialModel};
use crate::config::{Form, Order};
use serde_json::{Map, Value};

/// `config.json`, read key by key.
pub(super) struct Reader<'a> {
    pub config: &'a Map<String, Value>,
    pub file: &'a str,
    /// Dropout that the file states is left out.
    pub without_dropout: bool,
}

impl Reader<'_> {
    fn given(&self, key: &str) -> Option<&Value> {
        self.config.get(key).filter(|value| !value.is_null())
    }

    fn refuse(&self, key: &str, reason: impl Into<String>) -> HfError {
        HfError::field(self.file, key, reason)
    }

    fn unsupported(&self, missing: String) -> HfError {
        HfError::Unsupported { what: self.file.into(), missing: vec![missing] }
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

    /// The window of a family that has it in all blocks or in none.
    pub fn window_in_every_block(&self, model: &mut PartialModel) -> Result<(), HfError> {
        let used = self.flag("use_sliding_window", false)?;
        let window = if used { self.window("sliding_window")?.or(Some(4096)) } else { None };
        model.sliding_window = Some(window.unwrap_or(0));
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

    /// Qwen's windows: from block `max_window_layers` on, if they are used at all.
    pub fn some_windows(&self, model: &mut PartialModel) -> Result<(), HfError> {
        let (mut window, mut from) = (None, self.count("max_window_layers")?.unwrap_or(28));
        if self.flag("use_sliding_window", false)? {
            window = self.window("sliding_window")?.or(Some(4096)).filter(|window| *window > 0);
        }
        let types = match self.given("layer_types") {
            None => None,
            Some(value) => Some(value.as_array().ok_or_else(|| self.refuse("layer_types", "is not a list"))?),
        };
        if let Some(types) = types {
            let sliding = |kind: &Value| kind == "sliding_attention";
            if let Some(other) = types.iter().find(|kind| !sliding(kind) && *kind != "full_attention") {
                let missing = format!("layer_types {other} (zbench has \"full_attention\", \"sliding_attention\")");
                return Err(self.unsupported(missing));
            }
            from = types.iter().take_while(|kind| !sliding(kind)).count();
            if !types[from..].iter().all(sliding) {
                let have = "windows in all blocks from one on; here they alternate with full attention";
                return Err(self.unsupported(format!("layer_types (zbench has {have})")));
            }
            if from < types.len() && window.is_none() {
                let reason = "has \"sliding_attention\", and use_sliding_window or sliding_window says there is none";
                return Err(self.refuse("layer_types", reason));
            }
        }
        model.sliding_window = Some(window.unwrap_or(0));
        model.max_window_layers = window.map(|_| from);
        Ok(())
    }
}

/// Falcon: old and new decoders, one norm or two, one key head, some, or as many as there are queries.
pub(super) fn falcon(read: &Reader<'_>, model: &mut PartialModel) -> Result<Form, HfError> {
    let new = read.flag("new_decoder_architecture", false)?;
    let parallel = read.flag("parallel_attn", true)?;
    let bias = read.flag("bias", false)?;
    let norms = read.count("num_ln_in_parallel_attn")?.unwrap_or(if new { 2 } else { 1 });
    let order = match (parallel, norms) {
        (false, _) if new => {
            return Err(read.unsupported("parallel_attn false (zbench has the new decoder with it true)".into()));
        }
        (false, _) => Order::Sequential,
        (true, 1) => Order::Parallel,
        (true, 2) if new => Order::ParallelTwoNorms,
        (true, other) => {
            let have = "1 norm, or 2 in the new decoder";
            return Err(read.unsupported(format!("num_ln_in_parallel_attn {other} (zbench has {have})")));
        }
    };
    let (heads, stated) = (model.num_attention_heads.unwrap_or(71), read.count("num_kv_heads")?);
    model.num_key_value_heads = Some(match read.flag("multi_query", true)? {
        _ if new => stated.unwrap_or(heads),
        true => 1,
        false => heads,
    });
    Ok(Form { order, qkv_bias: bias, output_bias: bias, mlp_bias: bias, ..FALCON })
}

/// MPT: what attention does is in a table of its own.
pub(super) fn mpt(read: &Reader<'_>, _: &mut PartialModel) -> Result<Form, HfError> {
    let attention = match read.given("attn_config") {
        None => return Ok(MPT),
        Some(Value::Object(table)) => table,
        Some(_) => return Err(read.refuse("attn_config", "is not a table of keys; write null or a table")),
    };
    fn eight(value: &Value) -> bool {
        value.as_f64() == Some(8.0)
    }
    fn multihead(value: &Value) -> bool {
        value == "multihead_attention"
    }
    let rules = [
        only("alibi", is_true, "MPT with ALiBi"),
        only("alibi_bias_max", eight, "slopes down to 2^-8"),
        only("attn_pdrop", is_zero, NO_DROPOUT),
        only("attn_type", multihead, "\"multihead_attention\""),
        only("clip_qkv", Value::is_null, "no clipping of queries, keys and values"),
        only("qk_ln", is_false, "no norm of queries and keys here"),
        only("prefix_lm", is_false, "causal attention"),
        only("attn_uses_sequence_id", is_false, "one text to a sequence"),
        only("softmax_scale", Value::is_null, "scores divided by the root of the head's size"),
    ];
    let missing: Vec<String> = rules
        .iter()
        .filter(|rule| !(read.without_dropout && rule.have == NO_DROPOUT))
        .filter_map(|Restricted { key, harmless, have }| {
            let value = attention.get(*key).filter(|value| !value.is_null() && !harmless(value))?;
            Some(format!("attn_config.{key} {value} (zbench has {have})"))
        })
        .collect();
    if missing.is_empty() { Ok(MPT) } else { Err(HfError::Unsupported { what: read.file.into(), missing }) }
}
