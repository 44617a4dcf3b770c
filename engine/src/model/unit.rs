//! Units: what is gathered, reduced and updated as a whole. Each has one flat buffer of trainable weights, one of
//! frozen ones, one of frozen matrices in few bits; a tensor is a place in one of them.

use super::Stored;
use crate::mesh::{Axes, Axis};
use crate::model::layers::{FlatKind, FlatRange, Gradient, TensorSplit};
use std::ops::Range;
use zbench_kernels::{GRANULE_BYTES, Packed};

/// How a fresh tensor is filled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// Normal with this standard deviation.
    Normal(f64),
    Constant(f64),
    /// The norms of the rows of the same unit's tensor that lies there.
    NormsOf(FlatRange),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Hugging Face's name; of a part of a fused tensor, that with the part's own name behind it.
    pub name: String,
    /// Of what this rank has.
    pub shape: Vec<usize>,
    /// Of the whole tensor.
    pub whole: Vec<usize>,
    pub place: FlatRange,
    pub init: Init,
    /// Whether a checkpoint holds it (adapters start fresh).
    pub in_checkpoint: bool,
    /// How a checkpoint holds it, where that is not as it lies here.
    pub stored: Option<Stored>,
    /// How its place holds it, where that is in few bits.
    pub packed: Option<Packed>,
    /// What this rank has of it.
    pub cut: TensorSplit,
    /// What backward finds of its gradient.
    pub gradient: Gradient,
}

/// Whether a tensor of that name is an adapter's.
pub fn is_adapter(name: &str) -> bool {
    name.contains(".lora_") || name.ends_with(".ia3_l")
}

/// The stream of random numbers of what has this name in a model: the first eight bytes of the name's BLAKE3 hash, little
/// endian. It depends on nothing else in the model, so a cell with adapters or with a base in few bits draws the same base
/// as the full cell.
pub fn stream_of(name: &str) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = *blake3::hash(name.as_bytes()).as_bytes();
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

impl Tensor {
    pub fn stream(&self) -> u64 {
        stream_of(&self.name)
    }

    /// Elements of what this rank has, however many its place takes for them.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Elements of the whole tensor.
    pub fn whole_elements(&self) -> usize {
        self.whole.iter().product()
    }

    /// Weight decay is for matrices, embeddings included.
    pub fn decays(&self) -> bool {
        self.shape.len() >= 2
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Flat {
    /// Elements in use.
    pub len: usize,
    /// Elements with padding: a multiple of ranks times the granule.
    pub padded: usize,
}

/// What is gathered, reduced and updated as a whole.
#[derive(Clone, Debug, PartialEq)]
pub struct Unit {
    /// `embed_tokens`, `layers.0`, `head`.
    pub name: String,
    /// Its tensors, in the order of the flats.
    pub tensors: Vec<Tensor>,
    /// The ranks that have the same: those of its gradients' sums.
    pub replicas: Axes,
    /// By [`FlatKind`].
    flats: [Flat; FlatKind::COUNT],
}

impl Unit {
    pub fn new(name: impl Into<String>) -> Unit {
        Unit { name: name.into(), tensors: Vec::new(), replicas: Axes::DATA, flats: Default::default() }
    }

    /// A unit of experts that ranks share.
    pub fn of_experts(name: impl Into<String>) -> Unit {
        Unit { replicas: Axes::EXPERT_DATA, ..Unit::new(name) }
    }

    /// Appends a tensor to one of the flats and says where it lies.
    pub fn push(&mut self, part: FlatKind, name: String, shape: &[usize], init: Init) -> FlatRange {
        let place = self.take(part, shape.iter().product());
        let in_checkpoint = !is_adapter(&name);
        let (shape, whole, stored, packed) = (shape.to_vec(), shape.to_vec(), None, None);
        let (cut, gradient) = (TensorSplit::Replicated, Gradient::Complete);
        self.tensors.push(Tensor { name, shape, whole, place, init, in_checkpoint, stored, packed, cut, gradient });
        place
    }

    /// Appends a matrix in few bits and says where its record lies.
    pub fn push_packed(&mut self, packed: Packed, name: String, init: Init) -> FlatRange {
        let place = self.take(FlatKind::Quantised, packed.fields().bytes);
        let (shape, packed) = (vec![packed.rows, packed.cols], Some(packed));
        let whole = shape.clone();
        let (cut, gradient, stored) = (TensorSplit::Replicated, Gradient::Complete, None);
        self.tensors.push(Tensor {
            name,
            shape,
            whole,
            place,
            init,
            in_checkpoint: true,
            stored,
            packed,
            cut,
            gradient,
        });
        place
    }

    fn take(&mut self, part: FlatKind, len: usize) -> FlatRange {
        let flat = &mut self.flats[part as usize];
        let place = FlatRange { part, start: flat.len, len };
        flat.len += len;
        place
    }

    /// Says how a checkpoint holds the tensor that was appended last.
    pub fn store_last(&mut self, stored: Option<Stored>) {
        if let Some(last) = self.tensors.last_mut() {
            last.stored = stored;
        }
    }

    /// Says that ranks share the tensor that was appended last, and how many rows or columns they have together.
    pub fn cut_last(&mut self, cut: TensorSplit, whole: usize) {
        let Some(last) = self.tensors.last_mut() else { return };
        last.cut = cut;
        match cut {
            TensorSplit::Replicated => {}
            TensorSplit::ColumnParallel(_) => last.whole[0] = whole,
            TensorSplit::RowParallel(_) => last.whole[1] = whole,
        }
    }

    /// Says that each rank of an axis finds its own term of the gradient of the tensor that was appended last.
    pub fn partial_last(&mut self, axis: Axis) {
        if let Some(last) = self.tensors.last_mut() {
            last.gradient = Gradient::Partial(axis);
        }
    }

    /// Pads flats to a multiple of `ranks` times `granule` elements, that of bytes to `ranks` times 64.
    pub fn pad(&mut self, ranks: usize, granule: usize) {
        for part in FlatKind::ALL {
            let multiple = ranks * if part == FlatKind::Quantised { GRANULE_BYTES as usize } else { granule };
            let flat = &mut self.flats[part as usize];
            flat.padded = flat.len.next_multiple_of(multiple);
        }
    }

    pub fn flat(&self, part: FlatKind) -> &Flat {
        &self.flats[part as usize]
    }

    pub fn trainable(&self) -> &Flat {
        self.flat(FlatKind::Trainable)
    }

    pub fn tensors_of(&self, part: FlatKind) -> impl Iterator<Item = &Tensor> + Clone {
        self.tensors.iter().filter(move |t| t.place.part == part)
    }

    /// The runs of the trainable flat's `range` with one weight decay each, in order; padding does not decay.
    pub fn decay_runs(&self, range: Range<usize>) -> impl Iterator<Item = (Range<usize>, bool)> {
        let padding = (self.trainable().len..self.trainable().padded, false);
        let tensors = self.tensors_of(FlatKind::Trainable).map(|t| (t.place.range(), t.decays()));
        let cut =
            move |(span, decays): (Range<usize>, bool)| (span.start.max(range.start)..span.end.min(range.end), decays);
        let mut spans = tensors.chain([padding]).map(cut).filter(|(span, _)| !span.is_empty()).peekable();
        std::iter::from_fn(move || {
            let (mut run, decays) = spans.next()?;
            while let Some((next, _)) = spans.next_if(|(next, same)| *same == decays && next.start == run.end) {
                run.end = next.end;
            }
            Some((run, decays))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decay_runs_cover_a_range_once() {
        let mut unit = Unit::new("u");
        for (i, shape) in [&[3usize, 4][..], &[5], &[7], &[2, 2]].iter().enumerate() {
            unit.push(FlatKind::Trainable, format!("t{i}"), shape, Init::Constant(0.0));
        }
        unit.push(FlatKind::Frozen, "f".into(), &[9, 9], Init::Constant(0.0));
        unit.pad(1, 16);
        assert_eq!((unit.trainable().padded, unit.flat(FlatKind::Frozen).padded), (32, 96));
        let runs = |range| unit.decay_runs(range).collect::<Vec<_>>();
        assert_eq!(runs(0..32), [(0..12, true), (12..24, false), (24..28, true), (28..32, false)]);
        assert_eq!(runs(10..13), [(10..12, true), (12..13, false)]);
        assert_eq!(runs(28..32), [(28..32, false)]);
    }
}
