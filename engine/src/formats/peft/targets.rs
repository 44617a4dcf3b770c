//! Which layers a list of names stands for. PEFT compares with the ends of modules' names, so `c_proj` is two layers of
//! GPT-2's blocks, and `mlp.c_proj` one. For "all-linear" on a small model it writes whole names, block by block.

use crate::config::{Linear, Method, Model};
use crate::formats::hf::{family_of, modules};
use std::collections::{BTreeMap, BTreeSet};

/// Whether `name` is the end of a module's name, of whole parts of it.
fn ends(module: &str, name: &str) -> bool {
    module.strip_suffix(name).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

/// Index of the module and number of the block in a name such as `model.layers.3.mlp.up_proj` or `3.mlp.up_proj`.
fn of_block(model: &Model, name: &str) -> Option<(usize, usize)> {
    let blocks = (family_of(model).tensors)(&model.form).blocks;
    modules(model).iter().enumerate().find_map(|(which, (module, _))| {
        let rest = name.strip_suffix(module)?.strip_suffix('.')?;
        let block = rest.rsplit('.').next()?.parse().ok().filter(|block| *block < model.num_hidden_layers)?;
        ends(&format!("{blocks}.{block}"), rest).then_some((which, block))
    })
}

/// Returns whether `name` is a projection of experts in a model whose blocks all have experts. Transformers 5 stores these as
/// stacked tensors, not as modules, and PEFT's IA3 skips such a name.
pub(super) fn is_of_experts(model: &Model, name: &str) -> bool {
    let names = (family_of(model).tensors)(&model.form);
    let all = model.sparse_blocks() == model.num_hidden_layers;
    all && [names.expert_gate, names.expert_up, names.expert_down].contains(&name)
}

/// The layers that `names` stand for, in the order of a block: names of the family's modules, or Llama's names of layers
/// that have a module of their own.
///
/// # Errors
/// A name that stands for none, with those that do.
pub fn find_targets<S: AsRef<str>>(model: &Model, names: &[S]) -> Result<Vec<Linear>, String> {
    let modules = modules(model);
    let mut found = Vec::new();
    let mut by_block: BTreeMap<usize, (BTreeSet<usize>, &str)> = BTreeMap::new();
    for name in names.iter().map(AsRef::as_ref) {
        if let Some((module, block)) = of_block(model, name) {
            by_block.entry(module).or_insert((BTreeSet::new(), name)).0.insert(block);
            continue;
        }
        let mut layers: Vec<Linear> =
            modules.iter().filter(|(module, _)| ends(module, name)).flat_map(|(_, layers)| layers.clone()).collect();
        if layers.is_empty() {
            let alone = |layer: &Linear| modules.iter().any(|(_, layers)| layers == &[*layer]);
            layers.extend(Linear::ALL.into_iter().filter(|layer| layer.name() == name && alone(layer)));
        }
        if layers.is_empty() {
            let mut known: Vec<String> = Vec::new();
            for (module, _) in &modules {
                let last = module.rsplit('.').next().unwrap_or(module).to_string();
                if !known.contains(&last) {
                    known.push(last);
                }
            }
            let fused = modules.iter().find(|(_, layers)| layers.len() > 1).map(|(module, _)| *module);
            let inside = match fused.filter(|_| Linear::QKV.iter().any(|part| part.name() == name)) {
                Some(fused) => format!(", which has it inside {fused}"),
                None => String::new(),
            };
            return Err(format!(
                "{name:?} names no layer of the family {:?}{inside}; it has {}",
                model.family,
                known.join(", ")
            ));
        }
        found.extend(layers);
    }
    for (module, (blocks, name)) in by_block {
        let (module, layers) = &modules[module];
        let all = model.num_hidden_layers;
        if blocks.len() < all && !layers.iter().all(|layer| found.contains(layer)) {
            return Err(format!(
                "{module} is named in {} of {all} blocks, as {name:?}; zbench adapts a layer in all blocks or in none: name it in \
                 every block, or as {module:?}",
                blocks.len()
            ));
        }
        found.extend(layers);
    }
    Ok(Linear::ALL.into_iter().filter(|layer| found.contains(layer)).collect())
}

/// All linear layers of a block, which is what "all-linear" stands for.
pub fn all_linear(model: &Model) -> Vec<Linear> {
    let modules = modules(model);
    Linear::ALL.into_iter().filter(|layer| modules.iter().any(|(_, own)| own.contains(layer))).collect()
}

/// Names that stand for just these layers: the last part of a module's name where it is not another's too.
pub fn target_names(model: &Model, layers: &[Linear]) -> Vec<String> {
    let modules = modules(model);
    let wanted = |own: &[Linear]| own.iter().any(|layer| layers.contains(layer));
    let mut names: Vec<String> = Vec::new();
    for (module, _) in modules.iter().filter(|(_, own)| wanted(own)) {
        let last = module.rsplit('.').next().unwrap_or(module);
        let clear = modules.iter().all(|(other, own)| wanted(own) || !ends(other, last));
        let name = if clear { last } else { module };
        if !names.iter().any(|known| known == name) {
            names.push(name.into());
        }
    }
    names.sort();
    names
}

/// PEFT's choice for the family where nothing is said.
pub fn default_targets(model: &Model, method: Method) -> Vec<Linear> {
    let family = family_of(model);
    let targets = if method == Method::Lora { family.lora_targets } else { family.ia3_targets };
    targets.to_vec()
}

/// Those of IA3's targets whose factors PEFT puts on what they read, where nothing is said: the MLP's last layer.
pub fn default_feedforward(targets: &[Linear]) -> Vec<Linear> {
    targets.iter().copied().filter(|layer| *layer == Linear::DownProj).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::hf::default_model;

    fn found(family: &str, names: &[&str]) -> Result<Vec<Linear>, String> {
        find_targets(&default_model(family).unwrap(), names)
    }

    #[test]
    fn names_are_the_ends_of_modules() {
        use Linear::*;
        assert_eq!(found("gpt2", &["c_proj"]).unwrap(), [OProj, DownProj]);
        assert_eq!(found("gpt2", &["mlp.c_proj", "c_attn"]).unwrap(), [QProj, KProj, VProj, DownProj]);
        assert_eq!(found("bloom", &["dense"]).unwrap(), [OProj]);
        assert_eq!(found("falcon", &["dense_h_to_4h", "query_key_value"]).unwrap(), [QProj, KProj, VProj, UpProj]);
        assert_eq!(found("mpt", &["up_proj", "out_proj", "Wqkv"]).unwrap(), [QProj, KProj, VProj, OProj, UpProj]);
        assert_eq!(found("llama", &["v_proj", "self_attn.q_proj"]).unwrap(), [QProj, VProj]);
        assert_eq!(found("bloom", &["down_proj"]).unwrap(), [DownProj]);
        assert!(found("gpt2", &["q_proj"]).unwrap_err().contains("inside attn.c_attn"));
        assert!(found("gpt2", &["gate_proj"]).is_err() && found("llama", &["proj"]).is_err());
        assert!(found("llama", &["c_attn"]).unwrap_err().contains("q_proj, k_proj, v_proj, o_proj"));
        assert!(found("llama", &[""]).is_err() && found("llama", &["."]).is_err());
    }

    #[test]
    fn names_lead_back_to_their_layers() {
        for family in ["llama", "gemma", "gpt2", "falcon", "bloom", "mpt"] {
            let model = default_model(family).unwrap();
            let modules = modules(&model);
            for chosen in 1u32..1 << modules.len() {
                let layers: Vec<Linear> = Linear::ALL
                    .into_iter()
                    .filter(|layer| {
                        modules.iter().enumerate().any(|(i, (_, own))| chosen >> i & 1 == 1 && own.contains(layer))
                    })
                    .collect();
                let names = target_names(&model, &layers);
                assert_eq!(find_targets(&model, &names).unwrap(), layers, "{family}: {names:?}");
            }
        }
        let gpt2 = default_model("gpt2").unwrap();
        assert_eq!(target_names(&gpt2, &[Linear::DownProj]), ["mlp.c_proj"]);
        assert_eq!(target_names(&gpt2, &[Linear::OProj, Linear::DownProj]), ["c_proj"]);
    }

    #[test]
    fn every_known_name_is_of_some_family() {
        let families = ["llama", "gpt2", "falcon", "mpt"].map(|family| default_model(family).unwrap());
        for name in crate::formats::hf::known_targets() {
            assert!(families.iter().any(|model| find_targets(model, &[name]).is_ok()), "{name}");
        }
    }
}
