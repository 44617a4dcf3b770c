//! Where the part of a tensor that a rank has lies in the whole tensor.

use super::Tensor;
use crate::mesh::{Axis, Coords};
use crate::model::layers::TensorSplit;
use std::ops::Range;

/// Elements that lie together both in what a rank has and in the whole tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The first of them, in what the rank has.
    pub ours: usize,
    /// The same in the whole tensor.
    pub whole: usize,
    pub len: usize,
}

/// The rectangle that a rank has of a matrix; a vector has one column.
struct Rectangle {
    /// Columns of the whole matrix.
    whole_cols: usize,
    /// Columns that the rank keeps, padding included.
    cols: usize,
    /// The first row and the first column, in the whole matrix.
    first: [usize; 2],
    /// Rows and columns that are no padding.
    used: [usize; 2],
}

impl Tensor {
    fn rectangle(&self, place: &Coords) -> Rectangle {
        let size = |shape: &[usize], dimension: usize| shape.get(dimension).copied().unwrap_or(1);
        let (own, whole) = ([0, 1].map(|d| size(&self.shape, d)), [0, 1].map(|d| size(&self.whole, d)));
        let mut first = [0; 2];
        match self.cut {
            TensorSplit::Replicated => {}
            TensorSplit::ColumnParallel(axis) => first[0] = own[0] * place.at(axis),
            TensorSplit::RowParallel(axis) => first[1] = own[1] * place.at(axis),
        }
        let used = [0, 1].map(|d| own[d].min(whole[d].saturating_sub(first[d])));
        Rectangle { whole_cols: whole[1], cols: own[1], first, used }
    }

    /// Of elements `range` of what the rank at `place` has: where they are in the whole tensor, in order. Padding is nowhere.
    pub fn parts(&self, place: &Coords, range: Range<usize>) -> impl Iterator<Item = Part> + use<> {
        let Rectangle { whole_cols, cols, first, used } = self.rectangle(place);
        // Whole rows lie together.
        let is_whole_rows = !matches!(self.cut, TensorSplit::RowParallel(_));
        let (height, width) = if is_whole_rows { (1, used[0] * cols) } else { (used[0], used[1]) };
        let rows = range.start / cols.max(1)..range.end.div_ceil(cols.max(1)).min(height);
        let rows = if is_whole_rows { 0..1 } else { rows };
        rows.filter_map(move |row| {
            let (begin, end) = ((row * cols).max(range.start), (row * cols + width).min(range.end));
            let whole = (first[0] + row) * whole_cols + first[1] + begin.saturating_sub(row * cols);
            (begin < end).then(|| Part { ours: begin, whole, len: end - begin })
        })
    }

    /// Of elements `range` of the whole tensor: those that the rank at `place` has, in order.
    pub fn parts_of_whole(&self, place: &Coords, range: Range<usize>) -> impl Iterator<Item = Part> + use<> {
        let Rectangle { whole_cols, cols, first, used } = self.rectangle(place);
        let is_whole_rows = !matches!(self.cut, TensorSplit::RowParallel(_));
        // In the whole tensor, the rows of the rectangle, or all of them together.
        let (height, width) = if is_whole_rows { (1, used[0] * cols) } else { (used[0], used[1]) };
        let row_of = |element: usize| (element / whole_cols.max(1)).saturating_sub(first[0]);
        let rows = if is_whole_rows { 0..1 } else { row_of(range.start)..(row_of(range.end) + 1).min(height) };
        rows.filter_map(move |row| {
            let origin = (first[0] + row) * whole_cols + first[1];
            let (begin, end) = (origin.max(range.start), (origin + width).min(range.end));
            (begin < end).then(|| Part { ours: row * cols + begin - origin, whole: begin, len: end - begin })
        })
    }

    /// Of a tensor of which the rank at `place` has some columns, none of them padding: offsets and sizes by dimension.
    pub fn columns(&self, place: &Coords) -> Option<[Vec<usize>; 2]> {
        let Rectangle { cols, first, used, .. } = self.rectangle(place);
        let is_cut = matches!(self.cut, TensorSplit::RowParallel(_)) && used[1] == cols;
        is_cut.then(|| [first.to_vec(), used.to_vec()])
    }

    /// Of a tensor that a checkpoint holds transposed and of which the rank at `place` has some columns: which, without padding.
    pub fn columns_of_transposed(&self, place: &Coords) -> Option<Range<usize>> {
        let Rectangle { first, used, .. } = self.rectangle(place);
        let is_transposed = self.stored.as_ref().is_some_and(|stored| stored.transposed);
        let is_cut = matches!(self.cut, TensorSplit::RowParallel(_));
        (is_transposed && is_cut).then(|| first[1]..first[1] + used[1])
    }

    /// Whether the rank at `place` speaks for what it has of the tensor where each element is counted once: of ranks that share it
    /// whole, the first one does.
    pub fn is_counted(&self, place: &Coords) -> bool {
        self.cut != TensorSplit::Replicated || place.at(Axis::Tensor) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mesh::Mesh;
    use crate::model::layers::{FlatKind, Gradient};
    use crate::model::{FlatRange, Init};

    /// All ranks' parts of all ranges, against the elements one by one. Sizes that the ranks do not divide are padded.
    #[test]
    fn parts_are_the_elements_and_cover_the_tensor_once() {
        for ranks in 1..=3 {
            let mesh = Mesh::data(1).with([ranks, 1, 1], [1, 1]);
            for (whole, cut) in [
                (vec![5, 3], TensorSplit::ColumnParallel(Axis::Tensor)),
                (vec![3, 5], TensorSplit::RowParallel(Axis::Tensor)),
                (vec![7], TensorSplit::ColumnParallel(Axis::Tensor)),
                (vec![1, 4], TensorSplit::RowParallel(Axis::Tensor)),
                (vec![3, 1], TensorSplit::RowParallel(Axis::Tensor)),
                (vec![1, 3], TensorSplit::ColumnParallel(Axis::Tensor)),
                (vec![2, 3], TensorSplit::Replicated),
            ] {
                let mut shape: Vec<usize> = whole.clone();
                match cut {
                    TensorSplit::ColumnParallel(_) => shape[0] = shape[0].div_ceil(ranks),
                    TensorSplit::RowParallel(_) => shape[1] = shape[1].div_ceil(ranks),
                    TensorSplit::Replicated => {}
                }
                let cols = |shape: &[usize]| shape.get(1).copied().unwrap_or(1);
                let (len, all) = (shape.iter().product::<usize>(), whole.iter().product::<usize>());
                let tensor = Tensor {
                    name: "t".into(),
                    shape: shape.clone(),
                    whole: whole.clone(),
                    place: FlatRange { part: FlatKind::Trainable, start: 0, len },
                    init: Init::Constant(0.0),
                    in_checkpoint: true,
                    stored: None,
                    packed: None,
                    cut,
                    gradient: Gradient::Complete,
                };
                let mut counted = vec![0; all];
                for rank in 0..ranks {
                    let place = mesh.place(rank);
                    // By element of the rank's: its place in the whole tensor.
                    let there: Vec<Option<usize>> = (0..len)
                        .map(|i| {
                            let [mut row, mut col] = [i / cols(&shape), i % cols(&shape)];
                            match cut {
                                TensorSplit::ColumnParallel(_) => row += rank * shape[0],
                                TensorSplit::RowParallel(_) => col += rank * shape[1],
                                TensorSplit::Replicated => {}
                            }
                            (row < whole[0] && col < cols(&whole)).then(|| row * cols(&whole) + col)
                        })
                        .collect();
                    there.iter().flatten().filter(|_| tensor.is_counted(&place)).for_each(|at| counted[*at] += 1);
                    for (start, end) in (0..=len).flat_map(|start| (start..=len).map(move |end| (start, end))) {
                        let mut found = vec![None; len];
                        for part in tensor.parts(&place, start..end) {
                            (0..part.len).for_each(|i| found[part.ours + i] = Some(part.whole + i));
                        }
                        let wanted: Vec<_> = (0..len).map(|i| there[i].filter(|_| (start..end).contains(&i))).collect();
                        assert_eq!(found, wanted, "{start}..{end} of rank {rank} of {ranks} of {whole:?} {cut:?}");
                    }
                    for (start, end) in (0..=all).flat_map(|start| (start..=all).map(move |end| (start, end))) {
                        let mut found = vec![None; len];
                        for part in tensor.parts_of_whole(&place, start..end) {
                            (0..part.len).for_each(|i| found[part.ours + i] = Some(part.whole + i));
                        }
                        let wanted: Vec<_> = there.iter().map(|at| at.filter(|at| (start..end).contains(at))).collect();
                        assert_eq!(found, wanted, "{start}..{end} of {whole:?} {cut:?} at rank {rank} of {ranks}");
                    }
                }
                assert_eq!(counted, vec![1; all], "{whole:?} {cut:?} over {ranks}");
            }
        }
    }
}
