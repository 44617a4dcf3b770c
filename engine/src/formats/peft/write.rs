//! `adapter_config.json` as PEFT opens it.

use super::targets::target_names;
use crate::config::{Cell, Linear, Method};
use crate::formats::hf::family_of;
use serde_json::{Value, json};

pub fn config_json(cell: &Cell) -> String {
    let (lora, model) = (&cell.lora, &cell.model);
    // PEFT wants the names of the one list among those of the other, letter by letter.
    let feedforward = target_names(model, &lora.feedforward);
    let others: Vec<Linear> = lora.targets.iter().copied().filter(|layer| !lora.feedforward.contains(layer)).collect();
    let mut targets = [target_names(model, &others), feedforward.clone()].concat();
    targets.sort();
    let mut config = json!({
        "task_type": "CAUSAL_LM",
        "auto_mapping": null,
        "base_model_name_or_path": model.weights,
        "revision": null,
        "inference_mode": true,
        "target_modules": targets,
        "modules_to_save": null,
        "exclude_modules": null,
        "fan_in_fan_out": family_of(model).transposed,
    });
    let own = match lora.method {
        Method::Lora => json!({
            "peft_type": "LORA",
            "r": lora.rank,
            "lora_alpha": whole(lora.alpha),
            "lora_dropout": lora.dropout,
            "use_rslora": lora.use_rslora,
            "use_dora": lora.use_dora,
            "bias": "none",
            "lora_bias": false,
            "init_lora_weights": true,
            "rank_pattern": {},
            "alpha_pattern": {},
            "layers_to_transform": null,
            "layers_pattern": null,
        }),
        Method::Ia3 => json!({
            "peft_type": "IA3",
            "feedforward_modules": feedforward,
            "init_ia3_weights": true,
        }),
    };
    if let (Value::Object(config), Value::Object(own)) = (&mut config, own) {
        config.extend(own);
    }
    format!("{config:#}\n")
}

/// As a whole number where it is one: PEFT's alphas are.
fn whole(number: f64) -> Value {
    if number.fract() == 0.0 && number.abs() < 1e15 { json!(number as i64) } else { json!(number) }
}
