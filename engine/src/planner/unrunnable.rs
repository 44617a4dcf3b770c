//! What of the cells that the engine does not run yet can be planned.

use crate::config::{Cell, Degrees, Positions, Priced, PricedModel, Strategy};
use crate::plan::{self, PlanError};

/// Refuses what the layers do not know how to do.
pub fn check(cell: &Cell) -> Result<(), PlanError> {
    let fail = |key, reason: String| Err(PlanError { key, reason });
    let Degrees { tensor, context, expert, expert_tensor, pipeline, .. } = cell.parallel.degrees;
    for (key, degree) in [("parallel.context", context), ("parallel.expert_tensor", expert_tensor)] {
        if degree > 1 {
            return fail(key, format!("is {degree}, and the engine plans 1; `zbench plan` prices it"));
        }
    }
    if let Some(priced) = &cell.priced {
        // What the plan knows of them: an encoder.
        let known = Priced { model: None, expert_imbalance: 1.0, ..(**priced).clone() };
        if let Some((key, word)) = known.first_key() {
            return fail(key, format!("is {word}, which no plan knows; `zbench plan` prices it"));
        }
        if let Some(PricedModel::Count { .. }) = priced.model {
            return fail("model.family", "states a count of parameters alone, and a plan has layers".into());
        }
    }
    let model = &cell.model;
    if plan::has_encoder(cell) {
        let has_window = model.sliding_window.is_some() || model.form.positions == Positions::Alibi;
        let is_alone = [tensor, pipeline, expert] == [1; 3];
        if !is_alone || has_window || cell.data.within_documents() || model.sparse_blocks() > 0 {
            let reason = "has an encoder, which is planned beside no model parallelism, without experts, windows, ALiBi \
                          and packed documents";
            return fail("model.family", reason.into());
        }
    }
    let rows =
        cell.train.micro_batch * cell.train.seq_len * model.experts.as_ref().map_or(1, |of| of.num_experts_per_tok);
    if expert > 1 && !rows.is_multiple_of(expert) {
        let reason = format!(
            "{expert} does not divide the {rows} rows that a micro-batch's tokens have at their experts; write a divisor of them"
        );
        return fail("parallel.expert", reason);
    }
    if expert > 1 && (tensor > 1 || pipeline > 1 || cell.parallel.strategy != Strategy::Ddp || cell.lora.on()) {
        let reason = "is planned under ddp, without adapters and beside no other model parallelism";
        return fail("parallel.expert", reason.into());
    }
    Ok(())
}
