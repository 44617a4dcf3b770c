//! [precision]: presets and what overrides them, loss scaling, rounding.

use super::{Refusal, Values, choice};
use crate::document::Settings;
use zbench_engine::config::{DynamicScaling, LossScaling, Precision, WeightRounding};
use zbench_kernels::DType;

/// The types of a preset. The last three are the rows of the table "Data precision" in accelerate's concept guide "FSDP vs
/// DeepSpeed": what is loaded in bf16 is trained as FSDP does without and with mixed precision, and as DeepSpeed does.
fn preset(name: &str) -> Precision {
    let (f32, bf16) = (DType::F32, DType::Bf16);
    let loaded = |precision| Precision { load: Some(bf16), ..precision };
    match name {
        "bf16-mixed" => Precision::mixed(bf16),
        "f16-mixed" => Precision::mixed(DType::F16),
        "bf16" => Precision::all(bf16),
        "fsdp-memory-constrained" => loaded(Precision::all(bf16)),
        "fsdp-mixed" => loaded(Precision { compute: bf16, reduce: bf16, ..Precision::all(f32) }),
        "deepspeed" => loaded(Precision { gradients: bf16, reduce: bf16, ..Precision::mixed(bf16) }),
        _ => Precision::F32,
    }
}

pub(super) fn precision(values: &Values) -> Result<Precision, Refusal> {
    let mut precision = preset(&values.text("precision.preset"));
    let stated = |key: &str, slot: &mut DType| {
        if let Some(dtype) = values.given(key).and_then(choice) {
            *slot = dtype;
        }
    };
    stated("precision.parameters", &mut precision.parameters);
    stated("precision.compute", &mut precision.compute);
    stated("precision.gradients", &mut precision.gradients);
    stated("precision.reduce", &mut precision.reduce);
    stated("precision.optimizer", &mut precision.optimizer);
    if let Some(master) = values.given("precision.master") {
        precision.master = choice(master);
    }
    if let Some(load) = values.given("precision.load") {
        precision.load = choice(load);
    }
    if values.text("precision.rounding") == "stochastic" {
        precision.rounding = stochastic(values, &precision)?;
    }
    precision.scaling = scaling(values, precision.compute)?;
    Ok(precision)
}

fn stochastic(values: &Values, precision: &Precision) -> Result<WeightRounding, Refusal> {
    let updated = precision.master.unwrap_or(precision.parameters);
    if updated.size() == 2 {
        return Ok(WeightRounding::Stochastic);
    }
    let (what, key, instead) = match precision.master {
        Some(_) => ("updates go to the master copy, which is", "precision.master", "\"none\""),
        None => ("the weights that are updated are", "precision.parameters", "\"bf16\" or \"f16\""),
    };
    let message =
        format!("\"stochastic\" would round nothing: {what} {updated}; write \"nearest\", or {key} = {instead}");
    Err(values.refuse("precision.rounding", &[key, "precision.preset"], message))
}

/// Only f16 has so few exponents that the loss needs a scale; elsewhere the keys are not read.
fn scaling(values: &Values, compute: DType) -> Result<Option<LossScaling>, Refusal> {
    if compute != DType::F16 {
        return Ok(None);
    }
    let scale = values.real("precision.loss_scale");
    if scale > 0.0 {
        return Ok(Some(LossScaling::Static(scale)));
    }
    // The keys' kinds admit only values that fit.
    let count = |key| values.count(key) as u64;
    let rules = DynamicScaling {
        initial_scale_power: count("precision.initial_scale_power") as u32,
        loss_scale_window: count("precision.loss_scale_window"),
        hysteresis: count("precision.hysteresis") as u32,
        consecutive_hysteresis: values.is("precision.consecutive_hysteresis"),
        min_loss_scale: values.real("precision.min_loss_scale"),
    };
    let scaling = LossScaling::Dynamic(rules);
    if rules.min_loss_scale > scaling.initial() {
        let message = format!(
            "{} is above the first scale, 2^precision.initial_scale_power = {}; write at most that",
            rules.min_loss_scale,
            scaling.initial()
        );
        let others = ["precision.initial_scale_power", "precision.preset", "precision.compute"];
        return Err(values.refuse("precision.min_loss_scale", &others, message));
    }
    Ok(Some(scaling))
}

/// Name of the policy: the stated preset and the keys that override it. `None` without a preset.
pub fn policy(settings: &Settings) -> Option<String> {
    settings.contains_key("precision.preset").then(|| precision_name(settings))
}

/// Name of the policy, with the default preset if none is stated.
pub fn precision_name(settings: &Settings) -> String {
    let text = |key: &str| {
        settings.get(key).map(|setting| match setting.value.as_str() {
            Some(text) => text.to_string(),
            None => setting.value.to_string(),
        })
    };
    let preset = text("precision.preset").unwrap_or_else(|| "f32".into());
    let written = settings.keys().filter(|key| **key != "precision.preset");
    let over = written.filter_map(|key| Some(format!("{} {}", key.strip_prefix("precision.")?, text(key)?)));
    std::iter::once(preset).chain(over).collect::<Vec<_>>().join(", ")
}
