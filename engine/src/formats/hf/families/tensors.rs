//! Names of tensors, and the linear layers that are behind them.

use super::of;
use crate::config::{Form, Linear, Mlp, Model};

/// Names of one family. A block's names follow `blocks.{index}.`; `.weight` and `.bias` follow them all.
pub struct TensorNames {
    pub embedding: &'static str,
    pub positions: &'static str,
    pub embedding_norm: &'static str,
    pub blocks: &'static str,
    pub attention_norm: &'static str,
    pub qkv: Qkv,
    pub o: &'static str,
    pub q_norm: &'static str,
    pub k_norm: &'static str,
    pub mlp_norm: &'static str,
    pub gate: &'static str,
    pub up: &'static str,
    pub down: &'static str,
    pub router: &'static str,
    /// Its experts; their number and one of the next three follow.
    pub experts: &'static str,
    pub expert_gate: &'static str,
    pub expert_up: &'static str,
    pub expert_down: &'static str,
    pub norm: &'static str,
    pub head: &'static str,
}

/// How queries, keys and values are stored.
pub enum Qkv {
    Separate([&'static str; 3]),
    /// One tensor: all queries, all keys, all values.
    Concatenated(&'static str),
    /// One tensor: for each key head its queries, its key, its value.
    Interleaved(&'static str),
}

impl TensorNames {
    /// The modules of a block that are linear layers, named as behind the block's own name, and the layers in each: three
    /// in one that fuses queries, keys and values.
    pub fn modules(&self, form: &Form) -> Vec<(&'static str, Vec<Linear>)> {
        let mut modules = match self.qkv {
            Qkv::Separate(own) => own.into_iter().zip(Linear::QKV).map(|(name, layer)| (name, vec![layer])).collect(),
            Qkv::Concatenated(name) | Qkv::Interleaved(name) => vec![(name, Linear::QKV.to_vec())],
        };
        modules.push((self.o, vec![Linear::OProj]));
        if matches!(form.mlp, Mlp::Swiglu | Mlp::GegluTanh) {
            modules.push((self.gate, vec![Linear::GateProj]));
        }
        modules.extend([(self.up, vec![Linear::UpProj]), (self.down, vec![Linear::DownProj])]);
        modules
    }
}

/// [`TensorNames::modules`] of a model.
pub fn modules(model: &Model) -> Vec<(&'static str, Vec<Linear>)> {
    (of(model).tensors)(&model.form).modules(&model.form)
}

/// The fused tensor that a family's checkpoints keep a layer in, by the last part of its name. It has one adapter.
pub fn fused_in(model: &Model, linear: Linear) -> Option<&'static str> {
    match (of(model).tensors)(&model.form).qkv {
        Qkv::Concatenated(name) | Qkv::Interleaved(name) if Linear::QKV.contains(&linear) => name.rsplit('.').next(),
        _ => None,
    }
}
