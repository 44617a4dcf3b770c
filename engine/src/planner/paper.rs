//! What of the cells that the engine does not run yet can be planned.

use crate::config::{Cell, Degrees, PricedModel};
use crate::plan::{self, PlanError};

/// Refuses what the layers do not know how to do.
pub fn check(cell: &Cell) -> Result<(), PlanError> {
    let fail = |key, reason: String| Err(PlanError { key, reason });
    let Degrees { tensor, sequence, context, expert_tensor, .. } = cell.parallel.degrees;
    for (key, degree) in
        [("parallel.sequence", sequence), ("parallel.context", context), ("parallel.expert_tensor", expert_tensor)]
    {
        if degree > 1 {
            return fail(key, format!("is {degree}, and the engine plans 1; `zbench plan` prices it"));
        }
    }
    if plan::has_encoder(cell) && (cell.parallel.degrees.pipeline > 1 || cell.data.within_documents()) {
        let reason = "is a family with an encoder, which is planned on one stage and without packed documents";
        return fail("model.family", reason.into());
    }
    if let Some(PricedModel::Count { .. }) = cell.priced.as_ref().and_then(|priced| priced.model.as_ref()) {
        return fail("model.family", "states a count of parameters alone, and a plan has layers".into());
    }
    if tensor == 1 {
        return Ok(());
    }
    let model = &cell.model;
    let (kv, wide) = (model.num_key_value_heads, model.intermediate_size);
    if !kv.is_multiple_of(tensor) {
        let reason = format!("{tensor} does not divide model.num_key_value_heads = {kv}, whose copies are not planned");
        return fail("parallel.tensor", reason);
    }
    if !wide.is_multiple_of(tensor) {
        let reason = format!("{tensor} does not divide model.intermediate_size = {wide}, whose padding is not planned");
        return fail("parallel.tensor", reason);
    }
    if cell.lora.on() {
        return fail("lora.method", "stands beside parallel.tensor, and adapters are not cut in this version".into());
    }
    if model.form.qk_norm {
        let reason = "cuts heads whose norms have partial gradients, which are not summed in this version";
        return fail("parallel.tensor", reason.into());
    }
    Ok(())
}
