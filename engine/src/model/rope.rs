//! Rotary tables.

use crate::config::{Model, Positions, RopeScaling};

/// Frequency of each pair of elements, in radians per position (Hugging Face's `inv_freq`), after scaling.
pub fn frequencies(model: &Model) -> Vec<f64> {
    let half = model.head_dim / 2;
    let plain = (0..half).map(|i| model.rope_theta.powf(-(2.0 * i as f64) / model.head_dim as f64));
    match model.rope_scaling {
        None => plain.collect(),
        Some(RopeScaling::Linear { factor }) => plain.map(|f| f / factor).collect(),
        Some(RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position_embeddings }) => {
            let original = original_max_position_embeddings as f64;
            plain
                .map(|f| {
                    let turns = original * f / std::f64::consts::TAU;
                    if turns < low_freq_factor {
                        f / factor
                    } else if turns > high_freq_factor {
                        f
                    } else {
                        let smooth = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor);
                        (1.0 - smooth) * f / factor + smooth * f
                    }
                })
                .collect()
        }
    }
}

/// Elements of a table; 0 where nothing is rotated.
pub fn table_len(model: &Model, seq: usize) -> usize {
    if model.form.positions == Positions::Rotary { seq * (model.head_dim / 2) } else { 0 }
}

/// Angles of `[seq, head_dim/2]`, in radians: their cosines and sines are the rotary tables.
pub fn angles(model: &Model, seq: usize) -> impl Iterator<Item = f64> {
    let frequencies = frequencies(model);
    let width = frequencies.len();
    (0..seq * width).map(move |i| (i / width) as f64 * frequencies[i % width])
}
