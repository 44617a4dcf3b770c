//! From a profile's text to [`Framework`]. Every figure is a plain value, or `{ value = …, source = "…" }`; without a source of
//! its own it has that of the table it stands in.

use super::{
    Activation, Drive, FRAMEWORKS, Framework, Fusion, Gathered, Loading, Logit, Memory, Norm, ProfileError, Update,
};
use crate::units;
use std::collections::BTreeMap;
use toml::{Table, Value};

/// Every figure's place in a profile, and what belongs there.
pub const KEYS: &[(&str, &str)] = &[
    ("strategies", "a list of names of parallel.strategy, as [\"ddp\", \"fsdp\"]"),
    ("stages_inside", "true or false"),
    ("zero_bubble", "true or false"),
    ("attention", "a list of \"naive\", \"flash1\", \"flash2\" or \"flash3\", the one that is priced first"),
    ("bf16", "a text that says what is kept in which type"),
    ("flops", "the name of a rule for FLOPs (docs/estimator.md), as \"megatron\""),
    ("memory.workspace", "bytes, as \"100MiB\""),
    ("memory.grouped_workspace", "bytes, as \"128MiB\""),
    ("memory.slack", "a share of what is not state, as 0.06"),
    ("memory.context", "bytes, as \"1500MiB\""),
    ("memory.late_gradients", "true or false"),
    ("memory.gradient_copies", "a number of copies, as 1.0"),
    ("memory.pipeline_tensors", "a number of tensors, as 3.0"),
    ("memory.buckets", "bytes, as \"2GB\""),
    ("memory.quantised_inputs", "true or false"),
    ("memory.quantised_experts", "true or false"),
    ("memory.loading", "\"sliced\", \"broadcast\" or \"everywhere\""),
    ("memory.logit.whole", "bytes per logit, as 14.0"),
    ("memory.logit.fused", "bytes per logit, as 4.0"),
    ("memory.logit.tensor_parallel", "bytes per logit, as 18.0"),
    ("memory.logit.compute_copies", "a number of tensors in the compute type, as 2.0"),
    ("memory.norm.rms", "bytes per element, as 6.0"),
    ("memory.norm.layer", "bytes per element, as 2.0"),
    ("memory.norm.fused_loss", "bytes per element, as 2.0"),
    ("memory.activation.gated", "a number of copies of the MLP's width, as 1.0"),
    ("memory.activation.gelu", "a number of copies of the MLP's width, as 3.0"),
    ("memory.activation.relu", "a number of copies of the MLP's width, as 0.0"),
    ("memory.activation.fused_loss", "a number of copies of the MLP's width, as 0.0"),
    ("memory.gathered.ends", "true or false"),
    ("memory.gathered.units", "a number of blocks, as 2.0"),
    ("memory.gathered.live_parameters", "a number of parameters, as 1e9; 0 = whole blocks are gathered"),
    ("memory.gathered.stages", "true or false"),
    ("memory.update.whole", "bytes per parameter, as 4.0"),
    ("memory.update.sharded", "bytes per parameter, as 4.0"),
    ("memory.update.group", "a number of parameters, as 1e9; 0 = all at once"),
    ("drive.fusion", "\"eager\", \"fused\" or \"compiled\""),
    ("drive.fused_gelu", "true or false"),
    ("drive.autocast", "true or false"),
    ("drive.fused_accumulation", "true or false"),
    ("drive.optimizer_passes", "a number of passes above 0, as 1.0"),
    ("drive.copy_bytes", "bytes per parameter, as 6.0"),
    ("drive.flash1_rate", "a factor above 0, as 1.0"),
    ("drive.balanced_ring", "true or false"),
    ("drive.fused_adapters", "true or false"),
    ("drive.grouped_experts", "true or false"),
    ("drive.gather_wait", "seconds, as 0.0011 or \"1.1ms\""),
    ("drive.host_core", "bytes per second, as \"2.6GB/s\"; 0 = no limit of one core"),
    ("drive.host_bytes", "bytes per parameter, as 14.0"),
    ("drive.prefetch", "true or false"),
    ("drive.exposed", "a share from 0 to 1, as 0.0"),
    ("drive.network", "a share above 0 and at most 1, as 1.0"),
    ("drive.replicas_once", "true or false"),
    ("drive.overlap.data", "true or false"),
    ("drive.overlap.reduce", "true or false"),
    ("drive.overlap.gather", "true or false"),
    ("drive.overlap.sends", "true or false"),
    ("drive.overlap.tensor", "a share from 0 to 1, as 0.7"),
];

/// Names of `parallel.strategy`, which a profile may list.
pub const STRATEGIES: [&str; 9] =
    ["ddp", "zero1", "zero2", "zero3", "fsdp", "fsdp-grad-op", "hsdp", "hsdp-full-optimizer", "zero++"];

/// Words for the attention kernel.
const KERNELS: [&str; 4] = ["naive", "flash1", "flash2", "flash3"];

/// Keys at the top of a profile that are no figures.
const WORDS: [&str; 2] = ["about", "base"];

/// A figure as it is written, and where it comes from.
#[derive(Clone)]
struct Figure {
    value: Value,
    source: String,
}

/// What a file and its bases state, by place.
#[derive(Default)]
struct Stated {
    about: String,
    figures: BTreeMap<String, Figure>,
}

impl Framework {
    /// Reads a profile's text. Its `base` is one of those that are compiled in.
    ///
    /// # Errors
    /// What is wrong with it, by key.
    pub fn read(name: &str, text: &str) -> Result<Framework, ProfileError> {
        let stated = whole(name, text, 0)?;
        let reader = Reader { profile: name, figures: &stated.figures };
        let sources = stated.figures.iter().map(|(place, figure)| (place.clone(), figure.source.clone())).collect();
        Ok(Framework {
            name: name.into(),
            about: stated.about,
            strategies: reader.words("strategies", &STRATEGIES)?,
            stages_inside: reader.flag("stages_inside")?,
            zero_bubble: reader.flag("zero_bubble")?,
            attention: reader.words("attention", &KERNELS)?,
            bf16: reader.text("bf16")?.ok_or_else(|| reader.missing("bf16"))?,
            flops: reader.text("flops")?,
            memory: memory(&reader)?,
            drive: drive(&reader)?,
            sources,
        })
    }
}

/// What a profile's text states, over what its base does.
fn whole(name: &str, text: &str, depth: usize) -> Result<Stated, ProfileError> {
    let own = FRAMEWORKS.table(name, text)?;
    let mut stated = match FRAMEWORKS.base(name, &own, depth)? {
        None => Stated::default(),
        Some((base, text)) => whole(base, text, depth + 1)?,
    };
    stated.about = match own.get("about") {
        None => String::new(),
        Some(Value::String(text)) if !text.trim().is_empty() => text.clone(),
        Some(other) => return Err(FRAMEWORKS.value(name, "about", other, "a sentence")),
    };
    let unsourced = format!("stated by the profile {name}");
    figures(name, "", &own, &unsourced, &mut stated.figures)?;
    Ok(stated)
}

/// Puts the figures of a table and of those in it over what is there. A figure has its own source, else its table's, else
/// that of the table around it.
fn figures(
    profile: &str,
    place: &str,
    table: &Table,
    source: &str,
    into: &mut BTreeMap<String, Figure>,
) -> Result<(), ProfileError> {
    let of = |place: &str, table: &Table, outer: &str| match table.get("source") {
        None => Ok(outer.to_string()),
        Some(Value::String(text)) if !text.trim().is_empty() => Ok(text.clone()),
        Some(other) => {
            Err(FRAMEWORKS.value(profile, &format!("{place}.source"), other, "a text that says where it comes from"))
        }
    };
    let source = if place.is_empty() { source.to_string() } else { of(place, table, source)? };
    for (key, written) in table {
        let path = if place.is_empty() { key.clone() } else { format!("{place}.{key}") };
        if (place.is_empty() && WORDS.contains(&key.as_str())) || (key == "source" && !place.is_empty()) {
            continue;
        }
        let is_figure = KEYS.iter().any(|(known, _)| *known == path);
        let is_table = KEYS.iter().any(|(known, _)| known.starts_with(&format!("{path}.")));
        match written {
            Value::Table(inner) if is_figure => {
                if let Some(odd) = inner.keys().find(|key| !["value", "source"].contains(&key.as_str())) {
                    return Err(FRAMEWORKS.key(profile, format!("{path}.{odd}"), &["value", "source"]));
                }
                let Some(value) = inner.get("value") else { return Err(missing(profile, &path)) };
                let source = of(&path, inner, &source)?;
                into.insert(path, Figure { value: value.clone(), source });
            }
            value if is_figure => {
                into.insert(path, Figure { value: value.clone(), source: source.clone() });
            }
            Value::Table(inner) if is_table => figures(profile, &path, inner, &source, into)?,
            other if is_table => return Err(FRAMEWORKS.value(profile, &path, other, "a table")),
            _ => return Err(FRAMEWORKS.key(profile, path, &siblings(place))),
        }
    }
    Ok(())
}

/// All keys that a table may have.
fn siblings(place: &str) -> Vec<&'static str> {
    let mut list: Vec<&str> = if place.is_empty() { WORDS.to_vec() } else { vec!["source"] };
    for (known, _) in KEYS {
        let inside =
            if place.is_empty() { Some(*known) } else { known.strip_prefix(place).and_then(|k| k.strip_prefix('.')) };
        let Some(key) = inside.and_then(|inside| inside.split('.').next()) else { continue };
        if !list.contains(&key) {
            list.push(key);
        }
    }
    list
}

fn missing(profile: &str, key: &str) -> ProfileError {
    FRAMEWORKS.missing(profile, key, &format!("{}, or a base that says it", wanted(key)))
}

/// What belongs at a place.
fn wanted(key: &str) -> &'static str {
    KEYS.iter().find(|(known, _)| *known == key).map_or("a value", |(_, wanted)| wanted)
}

/// The figures of a profile and its bases.
struct Reader<'a> {
    profile: &'a str,
    figures: &'a BTreeMap<String, Figure>,
}

impl Reader<'_> {
    fn get(&self, key: &str) -> Option<&Value> {
        self.figures.get(key).map(|figure| &figure.value)
    }

    fn missing(&self, key: &str) -> ProfileError {
        missing(self.profile, key)
    }

    fn wrong(&self, key: &str, found: &Value) -> ProfileError {
        FRAMEWORKS.value(self.profile, key, found, wanted(key))
    }

    fn need<T>(&self, key: &str, read: impl Fn(&Value) -> Option<T>) -> Result<T, ProfileError> {
        let value = self.get(key).ok_or_else(|| self.missing(key))?;
        read(value).ok_or_else(|| self.wrong(key, value))
    }

    /// A number from 0.
    fn number(&self, key: &str) -> Result<f64, ProfileError> {
        self.need(key, number)
    }

    /// The same of a figure that may be left out.
    fn optional(&self, key: &str) -> Result<Option<f64>, ProfileError> {
        self.get(key).map(|_| self.number(key)).transpose()
    }

    fn above_zero(&self, key: &str) -> Result<f64, ProfileError> {
        self.need(key, |value| number(value).filter(|number| *number > 0.0))
    }

    fn share(&self, key: &str) -> Result<f64, ProfileError> {
        self.need(key, |value| number(value).filter(|share| *share <= 1.0))
    }

    fn quantity(&self, key: &str, read: fn(&str) -> Option<f64>) -> Result<f64, ProfileError> {
        self.need(key, |value| match value {
            Value::String(text) => read(text).filter(|number| (0.0..=MOST).contains(number)),
            other => number(other),
        })
    }

    fn bytes(&self, key: &str) -> Result<f64, ProfileError> {
        self.quantity(key, |text| units::bytes(text).map(|bytes| bytes as f64))
    }

    fn flag(&self, key: &str) -> Result<bool, ProfileError> {
        self.need(key, Value::as_bool)
    }

    /// The number of a word in a list.
    fn word(&self, key: &str, words: &[&str]) -> Result<usize, ProfileError> {
        self.need(key, |value| words.iter().position(|word| value.as_str() == Some(word)))
    }

    fn text(&self, key: &str) -> Result<Option<String>, ProfileError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(text)) if !text.trim().is_empty() => Ok(Some(text.clone())),
            Some(other) => Err(self.wrong(key, other)),
        }
    }

    /// Words of a list, one at least.
    fn words(&self, key: &str, words: &[&str]) -> Result<Vec<String>, ProfileError> {
        let known = |value: &Value| Some(value.as_str().filter(|word| words.contains(word))?.to_string());
        self.need(key, |value| {
            value.as_array()?.iter().map(known).collect::<Option<Vec<_>>>().filter(|list| !list.is_empty())
        })
    }
}

/// More than any figure is: bytes of a rank, bytes per second, parameters.
const MOST: f64 = 1e15;

/// A number from 0 without a unit.
fn number(value: &Value) -> Option<f64> {
    let number = match value {
        Value::Integer(whole) => Some(*whole as f64),
        Value::Float(real) => Some(*real),
        _ => None,
    };
    number.filter(|number| (0.0..=MOST).contains(number))
}

fn memory(reader: &Reader<'_>) -> Result<Memory, ProfileError> {
    Ok(Memory {
        workspace: reader.bytes("memory.workspace")?,
        grouped_workspace: reader.bytes("memory.grouped_workspace")?,
        slack: reader.number("memory.slack")?,
        context: reader.bytes("memory.context")?,
        late_gradients: reader.flag("memory.late_gradients")?,
        gradient_copies: reader.number("memory.gradient_copies")?,
        pipeline_tensors: reader.number("memory.pipeline_tensors")?,
        buckets: reader.bytes("memory.buckets")?,
        quantised_inputs: reader.flag("memory.quantised_inputs")?,
        quantised_experts: reader.flag("memory.quantised_experts")?,
        loading: [Loading::Sliced, Loading::Broadcast, Loading::Everywhere]
            [reader.word("memory.loading", &["sliced", "broadcast", "everywhere"])?],
        logit: Logit {
            whole: reader.number("memory.logit.whole")?,
            fused: reader.number("memory.logit.fused")?,
            tensor_parallel: reader.optional("memory.logit.tensor_parallel")?,
            compute_copies: reader.number("memory.logit.compute_copies")?,
        },
        norm: Norm {
            rms: reader.number("memory.norm.rms")?,
            layer: reader.number("memory.norm.layer")?,
            fused_loss: reader.optional("memory.norm.fused_loss")?,
        },
        activation: Activation {
            gated: reader.number("memory.activation.gated")?,
            gelu: reader.number("memory.activation.gelu")?,
            relu: reader.number("memory.activation.relu")?,
            fused_loss: reader.optional("memory.activation.fused_loss")?,
        },
        gathered: Gathered {
            ends: reader.flag("memory.gathered.ends")?,
            units: reader.number("memory.gathered.units")?,
            live_parameters: reader.number("memory.gathered.live_parameters")?,
            stages: reader.flag("memory.gathered.stages")?,
        },
        update: Update {
            whole: reader.number("memory.update.whole")?,
            sharded: reader.number("memory.update.sharded")?,
            group: reader.number("memory.update.group")?,
        },
    })
}

fn drive(reader: &Reader<'_>) -> Result<Drive, ProfileError> {
    Ok(Drive {
        fusion: [Fusion::Eager, Fusion::Fused, Fusion::Compiled]
            [reader.word("drive.fusion", &["eager", "fused", "compiled"])?],
        fused_gelu: reader.flag("drive.fused_gelu")?,
        autocast: reader.flag("drive.autocast")?,
        fused_accumulation: reader.flag("drive.fused_accumulation")?,
        optimizer_passes: reader.above_zero("drive.optimizer_passes")?,
        copy_bytes: reader.number("drive.copy_bytes")?,
        flash1_rate: reader.above_zero("drive.flash1_rate")?,
        balanced_ring: reader.flag("drive.balanced_ring")?,
        fused_adapters: reader.flag("drive.fused_adapters")?,
        grouped_experts: reader.flag("drive.grouped_experts")?,
        gather_wait: reader.quantity("drive.gather_wait", units::seconds)?,
        host_core: reader.quantity("drive.host_core", units::rate)?,
        host_bytes: reader.number("drive.host_bytes")?,
        overlap_data: reader.flag("drive.overlap.data")?,
        overlap_reduce: reader.flag("drive.overlap.reduce")?,
        overlap_gather: reader.flag("drive.overlap.gather")?,
        overlap_sends: reader.flag("drive.overlap.sends")?,
        overlap_tensor: reader.share("drive.overlap.tensor")?,
        prefetch: reader.flag("drive.prefetch")?,
        exposed: reader.share("drive.exposed")?,
        network: reader.need("drive.network", |value| number(value).filter(|share| *share > 0.0 && *share <= 1.0))?,
        replicas_once: reader.flag("drive.replicas_once")?,
    })
}
