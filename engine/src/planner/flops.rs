//! Floating-point operations of a step, from the operations of a dry run.

use crate::compute::recorder::Phase;
use crate::config::Cell;
use crate::model::{FlatKind, Layout};
use crate::observe::outcome::Flops;
use std::collections::BTreeMap;

/// Operations of one rank by phase and term: (the model's, executed).
pub type Terms = BTreeMap<(Phase, &'static str), (f64, f64)>;

/// Operations of all ranks of a stage, in every convention.
///
/// `model` is Megatron-LM's: the exact matrix products of forward and backward, attention with its causal half, nothing
/// that is computed again. `hardware` adds what the checkpointing policy, the adapters' backward and flash attention's
/// backward repeat. `palm` is 6N + 12 L H Q T per token (PaLM, appendix B); a frozen weight has no weight gradient, so with
/// adapters it counts 4 instead of 6. Of a mixture of experts N are the parameters that a token passes through. N and L are those
/// of the stage.
pub fn flops(cell: &Cell, layout: &Layout, terms: &Terms) -> Flops {
    let ranks = (cell.parallel.ranks / cell.parallel.degrees.pipeline) as f64;
    let tokens = cell.batch_division().sequences() * cell.train.seq_len as u64;
    let model = &cell.model;
    let width = (model.num_attention_heads * model.head_dim) as f64;
    let attention = 12.0 * layout.blocks().count() as f64 * width * cell.train.seq_len as f64;
    // Of experts only those count that a token goes to.
    let frozen = layout.frozen_parameters() - layout.inactive_params(FlatKind::Frozen);
    let trained = layout.parameters(FlatKind::Trainable) - layout.inactive_params(FlatKind::Trainable);
    let weights = 6.0 * trained as f64 + 4.0 * frozen as f64;
    let sum = |pick: fn(&(f64, f64)) -> f64, again: bool| -> f64 {
        terms.iter().filter(|((phase, _), _)| again || *phase != Phase::Recompute).map(|(_, v)| pick(v)).sum()
    };
    Flops {
        model: ranks * sum(|v| v.0, false),
        palm: tokens as f64 * (weights + attention),
        hardware: ranks * sum(|v| v.1, true),
        ledger: ledger_terms(terms).into_iter().map(|(name, v)| (name, v * ranks)).collect(),
        tokens,
    }
}

/// The terms of `model`, forward and backward apart, and what is executed beyond it.
pub fn ledger_terms(terms: &Terms) -> Vec<(String, f64)> {
    let mut list = Vec::new();
    let mut beyond = 0.0;
    for ((phase, term), (model, executed)) in terms {
        let name = match phase {
            Phase::Forward => "forward",
            Phase::Backward => "backward",
            Phase::Recompute => {
                list.push((["recompute ", term, " (hardware only)"].concat(), *executed));
                continue;
            }
            Phase::Update => "update",
        };
        list.push(([name, " ", term].concat(), *model));
        beyond += executed - model;
    }
    if beyond > 0.0 {
        list.push(("attention scores again in backward (hardware only)".into(), beyond));
    }
    list
}
