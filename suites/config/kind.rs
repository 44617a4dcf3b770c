//! What a key may hold, and the check of one value. Everything a single value can get wrong is found here, whether it
//! stands in the file, in an axis, or in `--set`.

use crate::units;
use std::fmt;
use std::ops::RangeInclusive;
use toml::Value;
use zbench_engine::config::{Form, SavedTensor};
use zbench_engine::formats::hf::known_targets;
use zbench_estimate::spelling::nearest;

/// What a key may hold.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// A whole number in a range.
    Count {
        /// Smallest.
        min: i64,
        /// Largest.
        max: i64,
    },
    /// A whole number of 63 bits.
    Seed,
    /// A finite number in a range.
    Real {
        /// Smallest.
        min: f64,
        /// Largest.
        max: f64,
        /// Whether `min` itself is out.
        positive: bool,
    },
    /// true or false.
    Bool,
    /// Any text.
    Text,
    /// A path; relative ones start at the configuration's folder.
    Path,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// Bytes.
    Bytes,
    /// Bytes per second.
    Bandwidth,
    /// Seconds of a link's latency.
    Latency,
    /// Seconds that a micro-batch lasts at least.
    Pace,
    /// Seconds of a timeout.
    Patience,
    /// Two numbers in [0, 1).
    Betas,
    /// A checkpointing policy.
    Checkpointing,
    /// Names of linear layers.
    Targets,
    /// Names of linear layers, or none.
    SomeTargets,
    /// A table of rotary scaling.
    RopeScaling,
    /// A model's kind of blocks.
    Form,
    /// A list of texts.
    Texts,
    /// A list of whole numbers.
    Counts,
    /// `MxNxK` of a matrix product.
    Shape,
    /// A list of files of documents.
    Files,
    /// A list of strategies with their ranks.
    ShardSpecs,
    /// What backward recomputes.
    Recompute,
    /// A list of changes of a machine's profile.
    Changes,
    /// A list of names that a function checks.
    Names(fn(&str) -> Result<(), String>),
}

/// Modules of a block that can be recomputed by themselves, by Megatron-Core's names (`--recompute-modules`).
const MODULES: &[&str] =
    &["core_attn", "mlp", "mlp_act", "moe", "moe_act", "layernorm", "mla_up_proj", "shared_experts"];

const CHECKPOINTING: &[&str] = &["none", "full", "selective", "sqrt", "evict"];
const ROPE: &[&str] =
    &["rope_type", "rope_theta", "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"];

impl fmt::Display for Kind {
    /// As docs/configuration.md shows it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Count { min, .. } => write!(f, "whole number from {min}"),
            Kind::Seed => f.write_str("whole number from 0"),
            Kind::Real { min, max, positive } => {
                let from = if *positive { "above" } else { "from" };
                write!(f, "number {from} {min}")?;
                if *max < 1e30 { write!(f, " to {max}") } else { Ok(()) }
            }
            Kind::Bool => f.write_str("true or false"),
            Kind::Text => f.write_str("text"),
            Kind::Path => f.write_str("path"),
            Kind::Choice(words) => {
                let quoted: Vec<String> = words.iter().map(|word| format!("`\"{word}\"`")).collect();
                f.write_str(&quoted.join(", "))
            }
            Kind::Bytes => f.write_str("bytes, as `\"80GiB\"`"),
            Kind::Bandwidth => f.write_str("bytes per second, as `\"12.5GB/s\"`"),
            Kind::Latency => f.write_str("seconds, as `\"20us\"`"),
            Kind::Pace => f.write_str("seconds, as `\"4ms\"`"),
            Kind::Patience => f.write_str("seconds, as `\"300s\"`"),
            Kind::Betas => f.write_str("two numbers from 0, below 1"),
            Kind::Checkpointing => f.write_str("word, table or list"),
            Kind::Targets => f.write_str("list of linear layers, or `\"all-linear\"`"),
            Kind::SomeTargets => f.write_str("list of linear layers, which may be empty, or `\"all-linear\"`"),
            Kind::RopeScaling | Kind::Form => f.write_str("table"),
            Kind::Texts => f.write_str("list of texts"),
            Kind::Counts => f.write_str("list of whole numbers from 0"),
            Kind::Shape => f.write_str("`\"MxNxK\"`"),
            Kind::Files => f.write_str("list of tables"),
            Kind::ShardSpecs => f.write_str("list of `\"STRATEGY:RANKS\"`"),
            Kind::Recompute => f.write_str("word, table or list"),
            Kind::Changes => f.write_str("list of `\"KEY=VALUE\"`"),
            Kind::Names(_) => f.write_str("list of keys"),
        }
    }
}

/// A value as errors show it, shortened.
pub fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

fn words(list: &[&str]) -> String {
    list.iter().map(|word| format!("\"{word}\"")).collect::<Vec<_>>().join(", ")
}

/// `; did you mean "…"?`, where one of the words is near.
pub fn hint(given: &str, list: &[&str]) -> String {
    let near = nearest(given, list.iter().copied());
    near.map(|word| format!("; did you mean \"{word}\"?")).unwrap_or_default()
}

fn choice(given: &str, list: &[&str]) -> Result<(), String> {
    if list.contains(&given) {
        return Ok(());
    }
    Err(format!("\"{given}\" is none of {}{}", words(list), hint(given, list)))
}

/// The number in an integer or float.
pub fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Integer(n) => Some(*n as f64),
        Value::Float(x) => Some(*x),
        _ => None,
    }
}

fn wrong_type(wanted: &str, value: &Value) -> String {
    format!("{} is {}; write {wanted}", shown(value), article(value.type_str()))
}

fn article(kind: &str) -> String {
    match kind.chars().next() {
        Some('a' | 'e' | 'i' | 'o' | 'u') => format!("an {kind}"),
        _ => format!("a {kind}"),
    }
}

impl Kind {
    /// The number of a quantity that is written with its unit: bytes, bytes per second or seconds. `None` for other kinds.
    pub fn quantity(&self, text: &str) -> Option<f64> {
        match self {
            Kind::Bytes => units::bytes(text).map(|bytes| bytes as f64),
            Kind::Bandwidth => units::rate(text),
            Kind::Latency | Kind::Pace | Kind::Patience => units::seconds(text),
            _ => None,
        }
    }

    /// Whether a value can stand here; `Err` says what is wrong with it and what would be right.
    pub fn check(&self, value: &Value) -> Result<(), String> {
        match *self {
            Kind::Count { min, max } => check_count(min, max, value),
            Kind::Seed => check_count(0, i64::MAX, value),
            Kind::Real { min, max, positive } => check_real(min, max, positive, value),
            Kind::Bool => value.as_bool().map(|_| ()).ok_or_else(|| wrong_type("true or false", value)),
            Kind::Text | Kind::Path => match value.as_str() {
                Some("") if matches!(self, Kind::Path) => {
                    Err("the path is empty; name a file or leave the key out".into())
                }
                Some(_) => Ok(()),
                None => Err(wrong_type("a text in quotes", value)),
            },
            Kind::Choice(list) => match value.as_str() {
                Some(text) => choice(text, list),
                None => Err(wrong_type(&format!("one of {}", words(list)), value)),
            },
            Kind::Bytes => self.check_quantity(value, 1.0..=f64::MAX, "a size such as \"80GiB\" or a number of bytes"),
            Kind::Bandwidth => {
                self.check_quantity(value, 1e3..=1e15, "a bandwidth such as \"12.5GB/s\", from 1KB/s to 1000TB/s")
            }
            Kind::Latency => self.check_quantity(value, 0.0..=10.0, "a latency such as \"20us\", at most 10s"),
            Kind::Pace => self.check_quantity(value, 1e-6..=10.0, "a time such as \"4ms\", from 1us to 10s"),
            Kind::Patience => self.check_quantity(value, 0.1..=3.6e6, "a time such as \"300s\", from 100ms to 1000h"),
            Kind::Betas => check_betas(value),
            Kind::Checkpointing => check_checkpointing(value),
            Kind::Targets => check_targets(value),
            Kind::SomeTargets if value.as_array().is_some_and(Vec::is_empty) => Ok(()),
            Kind::SomeTargets => check_targets(value),
            Kind::RopeScaling => check_rope(value),
            Kind::Form => match value {
                Value::Table(_) => {
                    value.clone().try_into::<Form>().map(|_| ()).map_err(|error| error.message().to_string())
                }
                _ => Err(wrong_type("a table, as { mlp_bias = true }", value)),
            },
            Kind::Texts => check_texts(value, "a list of texts", |_| Ok(())),
            Kind::Counts => match value.as_array() {
                Some(list) => list.iter().try_for_each(|item| check_count(0, i64::MAX, item)),
                None => Err(wrong_type("a list of whole numbers, as [0, 1]", value)),
            },
            Kind::Shape => match value.as_str() {
                Some(text) => crate::kind::gemm_shape(text).map(|_| ()),
                None => Err(wrong_type("a shape in quotes, as \"2048x2048x512\"", value)),
            },
            Kind::Files => check_files(value),
            Kind::ShardSpecs => match value.as_array() {
                Some(list) => list.iter().try_for_each(|item| match item.as_str() {
                    Some(text) => crate::shard_spec::ShardSpec::parse(text).map(|_| ()),
                    None => Err(wrong_type("a strategy and its ranks, as \"ddp:1\"", item)),
                }),
                None => Err(wrong_type("a list of strategies and ranks, as [\"ddp:1\", \"hsdp:4/2\"]", value)),
            },
            Kind::Recompute => check_recompute(value),
            Kind::Changes => check_texts(value, "a list of changes, as [\"network.rate=400Gb/s\"]", |text| {
                change(text).map(|_| ()).ok_or_else(|| {
                    format!("\"{text}\" is no change; write a key of the machine's profile and its value, as network.rate=400Gb/s")
                })
            }),
            Kind::Names(check) => check_texts(value, "a list of keys, as [\"train.micro_batch\"]", check),
        }
    }

    fn check_quantity(&self, value: &Value, range: RangeInclusive<f64>, wanted: &str) -> Result<(), String> {
        if !matches!(value, Value::String(_) | Value::Integer(_) | Value::Float(_)) {
            return Err(wrong_type(wanted, value));
        }
        let found = quantity(value, |text| self.quantity(text)).filter(|number| range.contains(number));
        found.map(|_| ()).ok_or_else(|| format!("{} cannot be read; write {wanted}", shown(value)))
    }
}

fn check_count(min: i64, max: i64, value: &Value) -> Result<(), String> {
    match value.as_integer() {
        None => Err(wrong_type(&format!("a whole number from {min}"), value)),
        Some(n) if n < min => Err(format!("{n} is too small; write {min} or more")),
        Some(n) if n > max => Err(format!("{n} is too large; write {max} or less")),
        Some(_) => Ok(()),
    }
}

fn check_real(min: f64, max: f64, positive: bool, value: &Value) -> Result<(), String> {
    let Some(x) = number(value) else { return Err(wrong_type("a number", value)) };
    let least = if positive { format!("a number above {min}") } else { format!("{min} or more") };
    if !x.is_finite() {
        Err(format!("{x} is not a finite number; write {least}"))
    } else if x < min || (positive && x <= min) {
        Err(format!("{x} is too small; write {least}"))
    } else if x > max {
        Err(format!("{x} is too large; write {max} or less"))
    } else {
        Ok(())
    }
}

/// A quantity with a unit, or a plain number.
pub fn quantity<T>(value: &Value, read: impl Fn(&str) -> Option<T>) -> Option<T> {
    match value {
        Value::String(text) => read(text),
        other => number(other).and_then(|number| read(&number.to_string())),
    }
}

fn check_betas(value: &Value) -> Result<(), String> {
    let list = value.as_array().ok_or_else(|| wrong_type("two numbers, as [0.9, 0.999]", value))?;
    if list.len() != 2 {
        return Err(format!("{} numbers; write two, as [0.9, 0.999]", list.len()));
    }
    for beta in list {
        let x = number(beta).ok_or_else(|| wrong_type("a number", beta))?;
        if !(0.0..1.0).contains(&x) {
            return Err(format!("{x} is outside [0, 1); write two numbers, as [0.9, 0.999]"));
        }
    }
    Ok(())
}

fn check_checkpointing(value: &Value) -> Result<(), String> {
    match value {
        Value::String(text) => {
            choice(text, CHECKPOINTING).map_err(|error| format!("{error}, {{ every = k }} or a list"))
        }
        Value::Table(table) => match (table.len(), table.get("every")) {
            (1, Some(every)) => check_count(1, 1 << 20, every).map_err(|error| format!("every: {error}")),
            _ => Err(format!("{} is no policy; write {{ every = k }} with k from 1", shown(value))),
        },
        Value::Array(list) => {
            let name = |kept: SavedTensor| Some(serde_json::to_value(kept).ok()?.as_str()?.to_string());
            let names: Vec<String> = SavedTensor::ALL.into_iter().filter_map(name).collect();
            check_names(list, &names.iter().map(String::as_str).collect::<Vec<_>>())
        }
        _ => {
            let words = "\"none\", \"full\", \"selective\", \"sqrt\", \"evict\", { every = k } or a list of tensors";
            Err(wrong_type(words, value))
        }
    }
}

fn check_recompute(value: &Value) -> Result<(), String> {
    match value {
        Value::String(text) => {
            choice(text, &["core", "op"]).map_err(|error| format!("{error}, {{ one_in = k }} or a list of modules"))
        }
        Value::Table(table) => match (table.len(), table.get("one_in")) {
            (1, Some(blocks)) => check_count(1, 1 << 20, blocks).map_err(|error| format!("one_in: {error}")),
            _ => Err(format!("{} is no choice of blocks; write {{ one_in = k }} with k from 1", shown(value))),
        },
        Value::Array(list) if list.is_empty() => Err("the list is empty; leave it out, or name a module".into()),
        Value::Array(list) => {
            check_names(list, MODULES)?;
            let twice = list.iter().enumerate().find(|(at, item)| list[..*at].contains(item));
            twice.map_or(Ok(()), |(_, item)| Err(format!("{item} stands twice; keep one of them")))
        }
        _ => Err(wrong_type("\"core\", \"op\", { one_in = k } or a list of modules", value)),
    }
}

/// A list of texts, each of which passes a check.
fn check_texts(value: &Value, wanted: &str, check: impl Fn(&str) -> Result<(), String>) -> Result<(), String> {
    let list = value.as_array().ok_or_else(|| wrong_type(wanted, value))?;
    list.iter().try_for_each(|item| check(item.as_str().ok_or_else(|| wrong_type(wanted, item))?))
}

/// A change of the machine, `network.rate=400Gb/s`: a place in its profile and a value, with a unit or plain.
pub fn change(text: &str) -> Option<(String, Value)> {
    let (place, value) = text.split_once('=')?;
    let (place, value) = (place.trim(), value.trim());
    (!place.is_empty() && !value.is_empty()).then(|| (place.to_string(), crate::plain::bare(value)))
}

fn check_targets(value: &Value) -> Result<(), String> {
    match value {
        Value::String(text) if text == "all-linear" => Ok(()),
        Value::Array(list) if list.is_empty() => {
            Err("the list is empty; name at least one linear layer, or set lora.rank = 0".into())
        }
        Value::Array(list) => {
            // Which of them a family has is known with the family. In front of the last part others may stand.
            let last = |item: &Value| match item.as_str().and_then(|name| name.rsplit_once('.')) {
                Some((_, last)) => Value::from(last),
                None => item.clone(),
            };
            check_names(&list.iter().map(last).collect::<Vec<_>>(), &known_targets())
        }
        _ => Err(wrong_type("a list such as [\"q_proj\", \"v_proj\"], or \"all-linear\"", value)),
    }
}

fn check_names(list: &[Value], known: &[&str]) -> Result<(), String> {
    for item in list {
        let name = item.as_str().ok_or_else(|| wrong_type(&format!("one of {}", words(known)), item))?;
        choice(name, known)?;
    }
    Ok(())
}

fn check_rope(value: &Value) -> Result<(), String> {
    let table =
        value.as_table().ok_or_else(|| wrong_type("a table, as { rope_type = \"linear\", factor = 2.0 }", value))?;
    for (name, item) in table {
        choice(name, ROPE)?;
        let right = match name.as_str() {
            "rope_type" => choice(item.as_str().unwrap_or_default(), &["default", "linear", "llama3"]),
            "original_max_position_embeddings" => check_count(1, 1 << 31, item),
            _ => check_real(0.0, 1e30, true, item),
        };
        right.map_err(|error| format!("{name}: {error}"))?;
    }
    Ok(())
}

/// `MxNxK`: three whole numbers from 1.
pub fn gemm_shape(text: &str) -> Result<[usize; 3], String> {
    const MOST: usize = 1 << 31;
    let wrong = || format!("\"{text}\" is no shape; write MxNxK, as \"2048x2048x512\"");
    let parts: Vec<&str> = text.split(['x', 'X']).map(str::trim).collect();
    let [m, n, k] = parts[..] else { return Err(wrong()) };
    let one = |part: &str| -> Result<usize, String> {
        if part.is_empty() || !part.chars().all(|c| c.is_ascii_digit()) {
            return Err(wrong());
        }
        match part.parse::<usize>() {
            Ok(0) => Err(format!("\"{text}\" has a size of 0; write 1 or more")),
            Ok(size) if size <= MOST => Ok(size),
            _ => Err(format!("\"{text}\" has a size above {MOST}; write a smaller one")),
        }
    };
    Ok([one(m)?, one(n)?, one(k)?])
}

/// Files of documents: at least one, each with a path.
fn check_files(value: &Value) -> Result<(), String> {
    const EXAMPLE: &str = "a list of tables, as [{ path = \"a.jsonl\", weight = 2.0 }]";
    let list = value.as_array().filter(|list| !list.is_empty()).ok_or_else(|| wrong_type(EXAMPLE, value))?;
    for item in list {
        let table = item.as_table().ok_or_else(|| wrong_type(EXAMPLE, item))?;
        if !table.contains_key("path") {
            return Err(format!("{} has no path; write {EXAMPLE}", shown(item)));
        }
        for (name, item) in table {
            choice(name, &["path", "form", "weight", "field"])?;
            let right = match name.as_str() {
                "path" | "field" => Kind::Path.check(item),
                "form" => Kind::Choice(&["jsonl", "chat"]).check(item),
                _ => check_real(0.0, 1e30, true, item),
            };
            right.map_err(|error| format!("{name}: {error}"))?;
        }
    }
    Ok(())
}
