//! Slices of tensors, as files of checkpoints name them.

use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Elements of a tensor that lie one behind the other in a file: a range of a rectangular region, in row-major order. Tensor
/// parallelism makes the region, and sharding over data-parallel ranks makes the range in it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Slice {
    /// The region; absent = the whole tensor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    region: Option<Region>,
    /// The first element, counted within the region.
    start: usize,
    /// Elements.
    len: usize,
}

/// By dimension of the tensor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Region {
    offsets: Vec<usize>,
    sizes: Vec<usize>,
}

/// Consecutive elements both of a tensor and of a slice.
#[derive(Clone, Debug, PartialEq)]
pub struct SliceRun {
    /// Elements of the tensor.
    pub elements: Range<usize>,
    /// The first of them, counted within the slice.
    pub at: usize,
}

impl Slice {
    /// What lies one behind the other in a region that a rank has of a tensor: as many elements as `len` from `start` on, counted within
    /// the region.
    pub fn of_region(offsets: Vec<usize>, sizes: Vec<usize>, start: usize, len: usize) -> Slice {
        Slice { region: Some(Region { offsets, sizes }), start, len }
    }

    /// A range of the elements of a whole tensor.
    pub fn whole(elements: Range<usize>) -> Slice {
        Slice { region: None, start: elements.start, len: elements.len() }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Why this is no slice of a tensor of that shape; `None` if it is one.
    pub fn refused(&self, shape: &[usize]) -> Option<String> {
        let sizes = match &self.region {
            None => shape,
            Some(Region { offsets, sizes }) => {
                let fits = |(dimension, size): (usize, &usize)| {
                    let end = offsets.get(dimension).and_then(|offset| offset.checked_add(*size));
                    end.is_some_and(|end| end <= shape[dimension])
                };
                if [offsets.len(), sizes.len()] != [shape.len(); 2] || !sizes.iter().enumerate().all(fits) {
                    return Some(format!("the region of {sizes:?} at {offsets:?} is not inside of {shape:?}"));
                }
                sizes
            }
        };
        let elements = sizes.iter().try_fold(1usize, |product, size| product.checked_mul(*size));
        let end = self.start.checked_add(self.len);
        match (elements, end) {
            (Some(elements), Some(end)) if end <= elements => None,
            _ => Some(format!("{} elements from {} on are not inside of {sizes:?}", self.len, self.start)),
        }
    }

    /// The runs of a slice of a tensor of this shape, which is one that [`Slice::refused`] does not refuse.
    pub fn runs(&self, shape: &[usize]) -> impl Iterator<Item = SliceRun> {
        let whole = || (vec![0; shape.len()], shape.to_vec());
        let (offsets, sizes) =
            self.region.as_ref().map_or_else(whole, |Region { offsets, sizes }| (offsets.clone(), sizes.clone()));
        let shape = shape.to_vec();
        // All dimensions behind this one are whole, so that rows of it lie together.
        let cut = (0..shape.len()).rev().find(|d| sizes[*d] < shape[*d]).unwrap_or(0);
        let row = sizes[cut.min(sizes.len())..].iter().product::<usize>().max(1);
        let (first, end) = (self.start, self.start + self.len);
        let begins = std::iter::successors(Some(first), move |at| Some((at / row + 1) * row));
        begins.take_while(move |at| *at < end).map(move |at| {
            // The element's index by dimension in the region, and from that its place in the tensor.
            let (mut rest, mut place, mut stride) = (at, 0, 1);
            for dimension in (0..shape.len()).rev() {
                place += (rest % sizes[dimension] + offsets[dimension]) * stride;
                rest /= sizes[dimension];
                stride *= shape[dimension];
            }
            let len = ((at / row + 1) * row).min(end) - at;
            SliceRun { elements: place..place + len, at: at - first }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every slice of every region of small tensors, against the elements one by one.
    #[test]
    #[allow(clippy::single_range_in_vec_init, reason = "a list of one run")]
    fn runs_are_the_elements_of_the_slice_in_order() {
        let within = |size: usize| (0..size).flat_map(move |offset| (1..=size - offset).map(move |len| (offset, len)));
        for shape in [vec![3, 2, 4], vec![1, 4, 3], vec![4, 1, 1]] {
            for (a, b, c) in within(shape[0])
                .flat_map(|a| within(shape[1]).map(move |b| (a, b)))
                .flat_map(|(a, b)| within(shape[2]).map(move |c| (a, b, c)))
            {
                let region = Region { offsets: vec![a.0, b.0, c.0], sizes: vec![a.1, b.1, c.1] };
                let mut elements = Vec::new();
                for x in a.0..a.0 + a.1 {
                    for y in b.0..b.0 + b.1 {
                        elements.extend((c.0..c.0 + c.1).map(|z| (x * shape[1] + y) * shape[2] + z));
                    }
                }
                for start in 0..elements.len() {
                    for len in 0..=elements.len() - start {
                        let slice = Slice { region: Some(region.clone()), start, len };
                        assert_eq!(slice.refused(&shape), None);
                        let runs: Vec<SliceRun> = slice.runs(&shape).collect();
                        let found: Vec<usize> = runs.iter().flat_map(|run| run.elements.clone()).collect();
                        assert_eq!(found, elements[start..start + len], "{slice:?} of {shape:?}");
                        let mut before = 0;
                        for run in &runs {
                            assert_eq!(run.at, before, "{slice:?} of {shape:?}");
                            before += run.elements.len();
                        }
                    }
                }
            }
            let elements = shape.iter().product::<usize>();
            assert_eq!(
                Slice::whole(1..elements).runs(&shape).map(|run| run.elements).collect::<Vec<_>>(),
                [1..elements]
            );
        }
        assert_eq!(Slice::whole(0..1).runs(&[]).map(|run| run.elements).collect::<Vec<_>>(), [0..1]);
    }

    #[test]
    fn what_is_no_slice_of_the_tensor_is_refused() {
        let of = |offsets: &[usize], sizes: &[usize], start, len| {
            let region = Region { offsets: offsets.into(), sizes: sizes.into() };
            Slice { region: Some(region), start, len }.refused(&[4, 6])
        };
        assert_eq!(of(&[1, 2], &[3, 4], 0, 12), None);
        for refused in [
            of(&[1, 2], &[3, 4], 0, 13),
            of(&[1, 2], &[3, 4], usize::MAX, 2),
            of(&[2, 2], &[3, 4], 0, 1),
            of(&[usize::MAX, 0], &[3, 4], 0, 1),
            of(&[0], &[3], 0, 1),
            of(&[0, 0, 0], &[1, 1, 1], 0, 1),
            of(&[0, 0], &[1], 0, 1),
            Slice::whole(3..25).refused(&[4, 6]),
            Slice::whole(0..1).refused(&[usize::MAX, 3]),
        ] {
            assert!(refused.is_some());
        }
    }
}
