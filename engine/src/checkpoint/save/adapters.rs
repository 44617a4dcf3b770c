//! Adapters written as PEFT opens them, and models with adapters merged into them.

use super::{SaveError, SaveOptions, put};
use crate::checkpoint::weights::write_safetensors;
use crate::config::{Cell, Linear, Lora, Method};
use crate::exec::Executor;
use crate::formats::hf::{family_of, modules};
use crate::formats::peft;
use crate::model::is_adapter;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;
use zbench_kernels::DType;

impl Executor<'_> {
    /// Writes the adapters into `dir`, which is made if it is not there, in PEFT's layout and in f32. A collective call:
    /// every rank takes part, rank 0 writes.
    pub fn save_adapters(&mut self, dir: &Path) -> Result<(), SaveError> {
        let writes = self.context.number == 0;
        let mut held = Vec::new();
        // Every rank goes through all units, whatever the disk of rank 0 says.
        self.export_weights(|name, shape, values| {
            if writes && is_adapter(name) {
                held.push((peft::tensor_name(name), shape.to_vec(), values.to_vec()));
            }
        })?;
        if !writes {
            return Ok(());
        }
        std::fs::create_dir_all(dir).map_err(|source| SaveError::Io { path: dir.into(), source })?;
        let tensors: Vec<_> =
            held.iter().map(|(name, shape, values)| (name.clone(), shape.clone(), &values[..])).collect();
        write_safetensors(&dir.join(peft::WEIGHTS), &tensors, DType::F32)?;
        put(&dir.join(peft::CONFIG), peft::config_json(self.context.cell).as_bytes())
    }

    /// As [`Executor::save_model`], with the adapters merged into the weights they are on.
    pub fn save_merged(&mut self, dir: &Path, options: SaveOptions) -> Result<(), SaveError> {
        let Cell { lora, model, .. } = self.context.cell;
        let on_input = |layers: &[Linear]| layers.iter().any(|layer| lora.feedforward.contains(layer));
        let feedforward =
            modules(model).into_iter().filter(|(_, layers)| on_input(layers)).map(|(name, _)| name).collect();
        let merger = Merger { lora, transposed: family_of(model).transposed, feedforward, held: BTreeMap::new() };
        self.write_model(dir, options, Some(merger))
    }
}

/// Holds adapters until the weights come that they belong to: a unit's adapters are exported before its frozen weights.
pub(super) struct Merger<'a> {
    lora: &'a Lora,
    /// Matrices come `[input, out]`.
    transposed: bool,
    /// Ends of the names of modules whose factors are on what they read.
    feedforward: Vec<&'static str>,
    held: BTreeMap<String, Parts>,
}

/// What a module's adapter has: A and B, or factors.
#[derive(Default)]
struct Parts {
    a: Vec<f32>,
    b: Vec<f32>,
    /// Magnitudes, one for each row of B.
    m: Vec<f32>,
    l: Vec<f32>,
    feedforward: bool,
}

impl Merger<'_> {
    /// The values of a tensor with the adapters merged; `None` for those of an adapter, which are kept until then.
    pub fn take<'v>(&mut self, name: &str, shape: &[usize], values: &'v [f32]) -> Option<Cow<'v, [f32]>> {
        if let Some((module, part)) = ["lora_A.weight", "lora_B.weight", "lora_magnitude_vector", "ia3_l"]
            .iter()
            .find_map(|part| Some((name.strip_suffix(part)?.strip_suffix('.')?, *part)))
        {
            let parts = self.held.entry(module.into()).or_default();
            let held = match part {
                "lora_A.weight" => &mut parts.a,
                "lora_B.weight" => &mut parts.b,
                "lora_magnitude_vector" => &mut parts.m,
                _ => &mut parts.l,
            };
            *held = values.to_vec();
            parts.feedforward = self.feedforward.iter().any(|end| module.ends_with(end));
            return None;
        }
        let split = |end: &str| self.held.get(name.strip_suffix(end)?);
        if let Some(parts) = split(".weight") {
            let mut merged = values.to_vec();
            let [rows, cols] = [shape[0], values.len() / shape[0].max(1)];
            match self.lora.method {
                Method::Lora => {
                    self.add_product(parts, [rows, cols], &mut merged);
                    self.set_magnitudes(parts, cols, &mut merged);
                }
                Method::Ia3 => {
                    // Factors of rows where they are on what the layer gives, unless it lies the other way round.
                    let by_row = parts.feedforward == self.transposed;
                    let factor = |at: usize| parts.l[if by_row { at / cols } else { at % cols }];
                    merged.iter_mut().enumerate().for_each(|(at, value)| *value *= factor(at));
                }
            }
            return Some(merged.into());
        }
        let factors = split(".bias").filter(|parts| !parts.l.is_empty() && !parts.feedforward);
        Some(factors.map_or(values.into(), |parts| values.iter().zip(&parts.l).map(|(value, by)| value * by).collect()))
    }

    /// `W += scale B A`, each element summed in f64 and rounded once.
    fn add_product(&self, parts: &Parts, [rows, cols]: [usize; 2], merged: &mut [f32]) {
        let (rank, scale) = (self.lora.rank, self.lora.scale());
        let mut sums = vec![0f64; cols];
        for (row, line) in merged.chunks_exact_mut(cols).enumerate() {
            sums.fill(0.0);
            for r in 0..rank {
                if self.transposed {
                    let a = f64::from(parts.a[r * rows + row]);
                    sums.iter_mut()
                        .zip(parts.b[r..].iter().step_by(rank))
                        .for_each(|(sum, b)| *sum += a * f64::from(*b));
                } else {
                    let b = f64::from(parts.b[row * rank + r]);
                    let a = &parts.a[r * cols..(r + 1) * cols];
                    sums.iter_mut().zip(a).for_each(|(sum, a)| *sum += b * f64::from(*a));
                }
            }
            line.iter_mut().zip(&sums).for_each(|(value, sum)| *value = (f64::from(*value) + scale * sum) as f32);
        }
    }

    /// Gives what belongs to each row of B the norm that DoRA has learned.
    fn set_magnitudes(&self, parts: &Parts, cols: usize, merged: &mut [f32]) {
        let of = |at: usize| if self.transposed { at % cols } else { at / cols };
        let mut squares = vec![0f64; parts.m.len()];
        if squares.is_empty() {
            return;
        }
        merged.iter().enumerate().for_each(|(at, value)| squares[of(at)] += f64::from(*value).powi(2));
        let factors: Vec<f64> =
            squares.iter().zip(&parts.m).map(|(squares, m)| f64::from(*m) / squares.sqrt()).collect();
        merged.iter_mut().enumerate().for_each(|(at, value)| *value = (f64::from(*value) * factors[of(at)]) as f32);
    }
}
