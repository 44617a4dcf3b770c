//! How a tensor lies in a checkpoint that fuses it with others, transposes it, or shifts it.

use super::Tensor;
use crate::config::Model;
use crate::formats::hf::Qkv;
use std::ops::Range;

/// A tensor as a checkpoint has it.
#[derive(Clone, Debug, PartialEq)]
pub struct Stored {
    /// Hugging Face's name of the tensor it is a part of.
    pub name: String,
    /// That tensor's shape.
    pub shape: Vec<usize>,
    /// Which of that tensor's rows (columns, if transposed) are this one's.
    pub rows: Rows,
    /// It is stored `[input, output]`.
    pub transposed: bool,
    /// What is stored is this much less.
    pub less: f32,
}

/// Rows at regular distances: row `r` is stored at `start + r / run * stride + r % run`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    pub start: usize,
    pub run: usize,
    pub stride: usize,
}

/// The rows of a fused tensor that are one projection's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FusedRows {
    /// Rows of the fused tensor.
    pub total: usize,
    pub rows: Rows,
}

/// Where query, key or value projection (0, 1, 2) lies: its module, and its rows there if others are in it too.
pub(super) fn qkv_module(qkv: &Qkv, model: &Model, which: usize) -> (&'static str, Option<FusedRows>) {
    let dim = model.head_dim;
    let (queries, keys) = (model.num_attention_heads * dim, model.num_key_value_heads * dim);
    let total = queries + 2 * keys;
    // Rows of queries and of keys that lie together, and from such a group to the next.
    let (name, queries, keys, stride) = match *qkv {
        Qkv::Separate(names) => return (names[which], None),
        Qkv::Concatenated(name) => (name, queries, keys, total),
        Qkv::Interleaved(name) => {
            let group = model.num_attention_heads / model.num_key_value_heads.max(1) * dim;
            (name, group, dim, group + 2 * dim)
        }
    };
    let (start, run) = ([0, queries, queries + keys][which], [queries, keys, keys][which]);
    (name, Some(FusedRows { total, rows: Rows { start, run, stride } }))
}

impl Stored {
    /// Rows of a fused tensor with `cols` columns (`[]` of a vector), not transposed.
    pub(super) fn part(name: String, FusedRows { total, rows }: FusedRows, cols: &[usize]) -> Stored {
        Stored { name, shape: [&[total], cols].concat(), rows, transposed: false, less: 0.0 }
    }

    /// A linear layer's matrix `[out, input]` under `name`; `None` = as it is.
    pub(super) fn matrix(
        name: String,
        [out, input]: [usize; 2],
        fused: Option<FusedRows>,
        transposed: bool,
    ) -> Option<Stored> {
        if fused.is_none() && !transposed {
            return None;
        }
        let FusedRows { total, rows } =
            fused.unwrap_or(FusedRows { total: out, rows: Rows { start: 0, run: out, stride: out } });
        let shape = if transposed { vec![input, total] } else { vec![total, input] };
        Some(Stored { name, shape, rows, transposed, less: 0.0 })
    }
}

/// Elements that lie together in a checkpoint: element `i` is `ours + i * step` here and `stored + i` there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredRun {
    pub ours: usize,
    pub step: usize,
    pub stored: usize,
    pub len: usize,
}

impl Tensor {
    /// The name under which a checkpoint holds it, or the tensor it is a part of.
    pub fn stored_name(&self) -> &str {
        self.stored.as_ref().map_or(&self.name, |stored| &stored.name)
    }

    /// The shape of what a checkpoint holds under that name.
    pub fn stored_shape(&self) -> &[usize] {
        self.stored.as_ref().map_or(&self.whole, |stored| &stored.shape)
    }

    /// What is added to a stored value to have ours.
    pub fn shift(&self) -> f32 {
        self.stored.as_ref().map_or(0.0, |stored| stored.less)
    }

    /// Where elements `range` of the whole tensor are stored. `ours` counts in the whole tensor, too.
    pub fn runs(&self, range: Range<usize>) -> Vec<StoredRun> {
        let plain = || vec![StoredRun { ours: range.start, step: 1, stored: range.start, len: range.len() }];
        let Some(Stored { shape, rows, transposed, .. }) = &self.stored else { return plain() };
        let input = if self.whole.len() == 2 { self.whole[1] } else { 1 };
        if range.is_empty() || input == 0 {
            return Vec::new();
        }
        // Runs of rows that the range touches.
        let (first, last) = (range.start / input, (range.end - 1) / input);
        let together = |row: usize| row..((row / rows.run + 1) * rows.run).min(last + 1);
        let groups =
            std::iter::successors(Some(together(first)), |before| (before.end <= last).then(|| together(before.end)));
        let place = |row: usize| rows.start + row / rows.run * rows.stride + row % rows.run;
        let mut runs = Vec::new();
        for group in groups {
            if !*transposed {
                let (start, end) = ((group.start * input).max(range.start), (group.end * input).min(range.end));
                let stored = place(group.start) * input + (start - group.start * input);
                runs.push(StoredRun { ours: start, step: 1, stored, len: end - start });
                continue;
            }
            for column in 0..input {
                // Rows of the group whose element in this column is in the range.
                let from = group.start.max(range.start.saturating_sub(column).div_ceil(input));
                let to = group.end.min((range.end - 1).checked_sub(column).map_or(0, |last| last / input + 1));
                if from < to {
                    let stored = column * shape[1] + place(from);
                    runs.push(StoredRun { ours: from * input + column, step: input, stored, len: to - from });
                }
            }
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::layers::{Gradient, TensorSplit};
    use crate::model::{FlatKind, FlatRange, Init};

    fn tensor(shape: &[usize], stored_shape: &[usize], rows: Rows, transposed: bool) -> Tensor {
        let stored = Stored { name: "fused".into(), shape: stored_shape.into(), rows, transposed, less: 0.0 };
        let place = FlatRange { part: FlatKind::Trainable, start: 0, len: shape.iter().product() };
        let (name, init) = ("t".to_string(), Init::Constant(0.0));
        Tensor {
            name,
            shape: shape.into(),
            whole: shape.into(),
            place,
            init,
            in_checkpoint: true,
            stored: Some(stored),
            packed: None,
            cut: TensorSplit::Replicated,
            gradient: Gradient::Complete,
        }
    }

    /// Every range's runs are the elements one by one.
    #[test]
    fn runs_are_the_elements_wherever_a_range_is_cut() {
        let grouped = Rows { start: 2, run: 2, stride: 5 };
        for (shape, stored_shape, transposed) in
            [(&[6, 3][..], &[15, 3][..], false), (&[6, 3], &[3, 15], true), (&[6], &[15], false)]
        {
            let tensor = tensor(shape, stored_shape, grouped, transposed);
            let input = shape.get(1).copied().unwrap_or(1);
            let there = |i: usize| {
                let (row, column) = (i / input, i % input);
                let row = 2 + row / 2 * 5 + row % 2;
                if transposed { column * 15 + row } else { row * input + column }
            };
            let len: usize = shape.iter().product();
            for start in 0..=len {
                for end in start..=len {
                    let mut found = vec![None; len];
                    for run in tensor.runs(start..end) {
                        for i in 0..run.len {
                            assert!(found[run.ours + i * run.step].replace(run.stored + i).is_none());
                        }
                    }
                    let wanted: Vec<_> = (0..len).map(|i| (start..end).contains(&i).then(|| there(i))).collect();
                    assert_eq!(found, wanted, "{start}..{end} of {shape:?}");
                }
            }
        }
    }
}
