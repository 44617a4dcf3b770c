//! Dynamic loss scaling: which factor the loss has in which step. The rules are those of DeepSpeed's `DynamicLossScaler`
//! (deepspeed/runtime/fp16/loss_scaler.py at 03365187), its error at the smallest scale included.

use crate::config::LossScaling;
use serde::{Deserialize, Serialize};

/// The scale of the next step, and what decides about the one after it.
#[derive(Clone, Debug, PartialEq)]
pub struct LossScaler {
    rules: LossScaling,
    state: ScalerState,
}

/// The state of a scaler, from which another can continue.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScalerState {
    /// The scale, as the bits of its f64: text would round.
    pub scale_bits: u64,
    /// Steps seen, skipped ones included.
    pub steps: i64,
    /// The step of the last overflow, counted from 0; -1 before the first.
    pub last_overflow: i64,
    /// Overflows left before the scale is halved.
    pub hysteresis_left: u32,
}

/// The gradients overflow though the scale is as small as it may be.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("gradients overflow at the smallest loss scale, {scale}")]
pub struct AtMinimum {
    pub scale: f64,
}

impl LossScaler {
    pub fn new(rules: LossScaling) -> LossScaler {
        let hysteresis_left = match rules {
            LossScaling::Static(_) => 1,
            LossScaling::Dynamic(dynamic) => dynamic.hysteresis,
        };
        let scale_bits = rules.initial().to_bits();
        LossScaler { rules, state: ScalerState { scale_bits, steps: 0, last_overflow: -1, hysteresis_left } }
    }

    pub fn state(&self) -> ScalerState {
        self.state
    }

    /// Continues from the state of another scaler. A static scale stays what the rules say, and so does any scale where the
    /// other's is not a positive number.
    pub fn go_on(&mut self, from: &ScalerState) {
        let scale = f64::from_bits(from.scale_bits);
        if let (LossScaling::Dynamic(_), true) = (self.rules, scale.is_finite() && scale > 0.0) {
            self.state = ScalerState { hysteresis_left: from.hysteresis_left.max(1), ..*from };
        }
    }

    /// The factor on the loss of the next step.
    pub fn scale(&self) -> f64 {
        f64::from_bits(self.state.scale_bits)
    }

    /// A step has ended, with an overflow of its gradients or without. A static scale stays whatever happens.
    ///
    /// # Errors
    /// An overflow that would halve the scale below its minimum.
    pub fn update(&mut self, overflow: bool) -> Result<(), AtMinimum> {
        let LossScaling::Dynamic(rules) = self.rules else { return Ok(()) };
        let scale = self.scale();
        let state = &mut self.state;
        if overflow {
            if state.hysteresis_left > 1 {
                state.hysteresis_left -= 1;
            } else if scale <= rules.min_loss_scale {
                return Err(AtMinimum { scale });
            } else {
                state.scale_bits = (scale / 2.0).max(rules.min_loss_scale).to_bits();
            }
            state.last_overflow = state.steps;
        } else {
            let doubles = (state.steps - state.last_overflow) % rules.loss_scale_window as i64 == 0;
            if rules.consecutive_hysteresis || doubles {
                state.hysteresis_left = rules.hysteresis;
            }
            if doubles {
                state.scale_bits = (scale * 2.0).to_bits();
            }
        }
        state.steps += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::DynamicScaling;

    /// Derived by hand from DeepSpeed's rules: the steps (`!` an overflow, `.` none), and the scale after each; `E` is the
    /// end at the minimum. Columns: window, hysteresis, consecutive, minimum, power of the first scale.
    const VECTORS: &[(u64, u32, bool, f64, u32, &str, &str)] = &[
        // The first window counts from before the first step: three clean steps double.
        (3, 1, false, 1.0, 4, "......", "16 16 32 32 32 64"),
        // Windows follow the last overflow, not the last change of the scale.
        (3, 1, false, 1.0, 4, "..!...", "16 16 8 8 8 16"),
        (4, 1, false, 1.0, 4, ".....!....", "16 16 16 32 32 16 16 16 16 32"),
        // One overflow is forgiven; only a doubling forgives another.
        (4, 2, false, 1.0, 4, "!!.!!....!", "16 8 8 4 2 2 2 2 4 4"),
        (4, 2, false, 1.0, 4, "!.!.!!", "16 16 8 8 4 2"),
        // A clean step forgives all before it.
        (4, 2, true, 1.0, 4, "!.!.!!", "16 16 16 16 16 8"),
        (4, 3, true, 1.0, 4, "!!.!!!!.!", "16 16 16 16 16 8 4 4 4"),
        (4, 3, false, 1.0, 4, "!!.!!!!.!", "16 16 16 8 4 2 1 1 E"),
        // The minimum is reached, not passed, and one more overflow there is the end.
        (4, 1, false, 4.0, 3, "!!", "4 E"),
        (4, 2, false, 4.0, 3, "!!!", "8 4 E"),
        (1, 1, false, 3.0, 2, "!.!!", "3 6 3 E"),
        // At the minimum the hysteresis is used up before the end.
        (2, 2, true, 1.0, 0, "!.!!", "1 1 1 E"),
        // A window of one doubles in every clean step.
        (1, 2, false, 1.0, 0, "..!.!!!", "2 4 4 8 8 4 2"),
    ];

    #[test]
    fn scales_follow_the_rules_derived_by_hand() {
        for &(window, hysteresis, consecutive, minimum, power, steps, wanted) in VECTORS {
            let mut scaler = LossScaler::new(LossScaling::Dynamic(DynamicScaling {
                initial_scale_power: power,
                loss_scale_window: window,
                hysteresis,
                consecutive_hysteresis: consecutive,
                min_loss_scale: minimum,
            }));
            assert_eq!(scaler.scale(), 2f64.powi(power as i32));
            let mut seen = Vec::new();
            for step in steps.chars() {
                match scaler.update(step == '!') {
                    Ok(()) => seen.push(scaler.scale().to_string()),
                    Err(error) => {
                        assert_eq!(error.scale, minimum);
                        seen.push("E".into());
                    }
                }
            }
            let case = format!("{steps}, window {window}, hysteresis {hysteresis}, consecutive {consecutive}");
            assert_eq!(seen.join(" "), wanted, "{case}");
        }
    }

    #[test]
    fn a_static_scale_stays() {
        let mut scaler = LossScaler::new(LossScaling::Static(100.0));
        for overflow in [true, false, true, true, true] {
            assert_eq!((scaler.scale(), scaler.update(overflow)), (100.0, Ok(())));
        }
    }

    #[test]
    fn the_defaults_are_those_of_deepspeed() {
        let scaler = LossScaler::new(LossScaling::Dynamic(DynamicScaling::DEFAULT));
        assert_eq!((scaler.scale(), scaler.state.hysteresis_left), (65536.0, 2));
    }
}
