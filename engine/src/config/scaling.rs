//! What mixed precision does beside choosing types: loss scaling and rounding.

use serde::{Deserialize, Serialize};

/// The factor on the loss that keeps small gradients of f16 above its smallest numbers. Names and meaning are DeepSpeed's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum LossScaling {
    /// Always this factor.
    Static(f64),
    /// A power of two that follows the overflows.
    Dynamic(DynamicScaling),
}

/// How a dynamic loss scale moves.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DynamicScaling {
    /// The first scale is 2 to this.
    pub initial_scale_power: u32,
    /// Steps without overflow after which the scale doubles.
    pub loss_scale_window: u64,
    /// Overflows that are needed to halve the scale.
    pub hysteresis: u32,
    /// Every step without overflow restores the hysteresis; else only a doubling does.
    pub consecutive_hysteresis: bool,
    /// The scale falls no lower; one more overflow ends the run.
    pub min_loss_scale: f64,
}

impl DynamicScaling {
    /// DeepSpeed's defaults.
    pub const DEFAULT: DynamicScaling = DynamicScaling {
        initial_scale_power: 16,
        loss_scale_window: 1000,
        hysteresis: 2,
        consecutive_hysteresis: false,
        min_loss_scale: 1.0,
    };
}

impl LossScaling {
    /// The scale of the first step.
    pub fn initial(&self) -> f64 {
        match self {
            LossScaling::Static(scale) => *scale,
            LossScaling::Dynamic(dynamic) => 2f64.powi(dynamic.initial_scale_power as i32),
        }
    }
}

/// How the optimizer rounds the weights it writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WeightRounding {
    /// To the nearest, ties to even.
    #[default]
    Nearest,
    /// To one of the two neighbours, by chance, so that the mean is right.
    Stochastic,
}
