//! Model families. All that is particular to one stands in its file under `families/`; a new one is a file and its line
//! in [`FAMILIES`]. Everything else asks [`of`] and compares no family's name.

/// Models of configs/models with their parameters, in the binary, so that it needs no files beside it.
macro_rules! presets {
    ($($name:literal $parameters:literal),* $(,)?) => {
        &[$($crate::formats::hf::families::Preset {
            name: $name,
            parameters: $parameters,
            text: include_str!(concat!("../../../../../configs/models/", $name, ".toml")),
        }),*]
    };
}

mod bloom;
mod falcon;
mod gemma;
mod gpt2;
mod llama;
mod mistral;
mod mixtral;
mod mpt;
mod qwen2;
mod qwen3;
mod qwen3_moe;
mod tensors;

pub use tensors::{Qkv, TensorNames, fused_in, modules};

use super::reader::{Reader, Restricted};
use super::{HfError, PartialModel, Refused};
use crate::config::{Form, Linear, Model};
use serde_json::Value;

/// All families, in the order in which messages list them.
static FAMILIES: [Family; 11] = [
    llama::FAMILY,
    mistral::FAMILY,
    qwen2::FAMILY,
    qwen3::FAMILY,
    mixtral::FAMILY,
    qwen3_moe::FAMILY,
    gemma::FAMILY,
    gpt2::FAMILY,
    falcon::FAMILY,
    bloom::FAMILY,
    mpt::FAMILY,
];

/// One `model_type`. What a family does not state is as in the one that its file names last, in the end Llama.
pub struct Family {
    pub model_type: &'static str,
    /// The class that transformers opens a model with.
    pub architecture: &'static str,
    /// The class of its blocks in transformers.
    pub block_class: &'static str,
    pub presets: &'static [Preset],
    /// Keys of config.json and ours; of several that stand for one of ours the first that is there counts.
    pub keys: &'static [&'static [(&'static str, &'static str)]],
    /// Keys that change the mathematics unless absent, null or harmless.
    pub restricted: &'static [Restricted],
    pub defaults: fn() -> PartialModel,
    /// The form of a block where the keys say nothing else.
    pub form: fn() -> Form,
    /// Reads the keys that say more than one size or number.
    pub read: fn(&Reader<'_>, &mut PartialModel, &mut Form) -> Result<(), HfError>,
    /// The keys of config.json, but for those that every family has.
    pub write: fn(&Model) -> Value,
    /// Refuses what its experts cannot be, or that there are none, naming the key.
    pub check_experts: fn(&Model) -> Result<(), Refused>,
    /// Whether transformers gives the embedding a `padding_idx`.
    pub has_padding: bool,
    /// Whether there can be fewer key heads than query heads.
    pub has_grouped_heads: bool,
    /// What a checkpoint calls the tensors, given the form of the blocks.
    pub tensors: fn(&Form) -> &'static TensorNames,
    /// Whether a checkpoint has the matrices of blocks `[input, output]`.
    pub transposed: bool,
    /// Whether fresh output projections are drawn narrower by the root of twice the blocks.
    pub narrow_outputs: bool,
    /// Whether weights of experts are rounded to the compute type before they are used.
    pub rounded_weights: bool,
    /// PEFT's targets of LoRA where a config names none.
    pub lora_targets: &'static [Linear],
    /// PEFT's targets of IA3 where a config names none.
    pub ia3_targets: &'static [Linear],
}

impl Family {
    pub fn has_experts(&self) -> bool {
        (self.defaults)().num_experts.is_some()
    }
}

pub struct Preset {
    pub name: &'static str,
    /// Its size, by which lists are ordered.
    pub parameters: u64,
    /// TOML with keys of [`PartialModel`] at its top level.
    pub text: &'static str,
}

pub fn family(model_type: &str) -> Option<&'static Family> {
    FAMILIES.iter().find(|family| family.model_type == model_type)
}

/// A model's family; what is none of them counts as Llama.
pub fn of(model: &Model) -> &'static Family {
    family(&model.family).unwrap_or(&FAMILIES[0])
}

/// The class of a family's blocks in transformers.
pub fn block_class(model_type: &str) -> Option<&'static str> {
    family(model_type).map(|family| family.block_class)
}

/// That a file or section asks for a family that is not there.
pub fn unknown(given: &str, what: &str) -> HfError {
    let missing = vec![format!("model_type {given} (zbench has {})", quoted(|_| true, ", "))];
    HfError::Unsupported { what: what.into(), missing }
}

/// The names of those families that `has` holds for, in quotes and joined, for messages.
pub fn quoted(has: fn(&Family) -> bool, joint: &str) -> String {
    let names: Vec<String> =
        FAMILIES.iter().filter(|family| has(family)).map(|family| format!("{:?}", family.model_type)).collect();
    names.join(joint)
}

/// What a family reads of its config.json.
pub struct ConfigKeys {
    /// Their keys and ours: sizes and numbers.
    pub keys: Vec<(&'static str, &'static str)>,
    /// Keys that must have the value that the engine computes with, or be absent.
    pub fixed: Vec<&'static str>,
}

/// What the family of this `model_type` reads; `None` where there is none.
pub fn config_keys(model_type: &str) -> Option<ConfigKeys> {
    let Family { keys, restricted, .. } = family(model_type)?;
    Some(ConfigKeys { keys: keys.concat(), fixed: restricted.iter().map(|only| only.key).collect() })
}

/// The TOML text of a preset: keys of [`PartialModel`] at its top level.
pub fn preset(name: &str) -> Result<&'static str, HfError> {
    let found = FAMILIES.iter().flat_map(|family| family.presets).find(|preset| preset.name == name);
    found.map(|preset| preset.text).ok_or_else(|| HfError::UnknownPreset { name: name.into() })
}

pub fn preset_names() -> impl Iterator<Item = &'static str> {
    let mut all: Vec<&Preset> = FAMILIES.iter().flat_map(|family| family.presets).collect();
    all.sort_by_key(|preset| preset.parameters);
    all.into_iter().map(|preset| preset.name)
}

/// The last parts of all names that stand for linear layers of some family.
pub fn known_targets() -> Vec<&'static str> {
    let mut known: Vec<&str> = Linear::ALL.map(Linear::name).to_vec();
    for family in &FAMILIES {
        let form = (family.form)();
        for (module, _) in (family.tensors)(&form).modules(&form) {
            let last = module.rsplit('.').next().unwrap_or(module);
            if !known.contains(&last) {
                known.push(last);
            }
        }
    }
    known
}

/// Defaults that are all sizes: hidden, MLP (0: four times the hidden size), blocks, heads, vocabulary, positions.
fn sizes([hidden, wide, layers, heads, vocab, positions]: [usize; 6], eps: f64) -> PartialModel {
    PartialModel {
        hidden_size: Some(hidden),
        intermediate_size: (wide > 0).then_some(wide),
        num_hidden_layers: Some(layers),
        num_attention_heads: Some(heads),
        vocab_size: Some(vocab),
        max_position_embeddings: Some(positions),
        rms_norm_eps: Some(eps),
        ..PartialModel::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::hf::parameter_count;

    #[test]
    fn presets_are_of_the_family_and_size_that_lists_them() {
        for family in &FAMILIES {
            for preset in family.presets {
                let keys: PartialModel = toml::from_str(preset.text).unwrap();
                let model = keys.resolve(preset.name).unwrap();
                assert_eq!((&*model.family, parameter_count(&model)), (family.model_type, preset.parameters));
            }
        }
    }
}
