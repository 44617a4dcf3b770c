//! What a reduction has to give.

use super::Options;
use super::sample::{Sample, value};
use std::ops::Range;
use zbench_collectives::ReduceOp;
use zbench_kernels::DType;

/// One element of the result, and how far from it another one may be; 0 means the same bits.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<T> {
    pub value: T,
    pub tolerance: f64,
}

impl<T: Sample> Wanted<T> {
    /// Whether `got` will do.
    pub fn accepts(&self, got: T) -> bool {
        if self.tolerance == 0.0 {
            return got.bits() == self.value.bits();
        }
        (got.get() - self.value.get()).abs() <= self.tolerance
    }
}

/// The elements of `range` of `op` over what all `size` ranks give of type T, as type U; `onto` is what is there before, if it
/// is added to.
pub fn reduced<T: Sample, U: Sample>(
    options: &Options,
    op: ReduceOp,
    seed: u64,
    size: usize,
    range: Range<usize>,
    onto: Option<&[U]>,
) -> Vec<Wanted<U>> {
    if !options.moves {
        return Vec::new(); // nothing will be looked at
    }
    let mut terms = vec![0.0; size];
    let element = |i: usize| {
        (0..size).for_each(|rank| terms[rank] = value::<T>(seed, rank, i, Some(op)).get());
        let old = onto.map(|old| old[i - range.start].get());
        if T::INTEGER {
            return Wanted { value: U::wrap(integer(op, &terms)), tolerance: 0.0 };
        }
        let double = T::DTYPE == DType::F64 || U::DTYPE == DType::F64;
        if (options.exact_order)(T::DTYPE) || matches!(op, ReduceOp::Min | ReduceOp::Max) {
            return Wanted { value: U::of(tree(op, &mut terms, old, double)), tolerance: 0.0 };
        }
        near::<T, U>(options, op, &terms, old, double)
    };
    range.clone().map(element).collect()
}

fn integer(op: ReduceOp, terms: &[f64]) -> i64 {
    let terms = terms.iter().map(|term| *term as i64);
    let count = terms.len() as i64;
    let joined = match op {
        ReduceOp::Sum | ReduceOp::Avg => terms.reduce(i64::wrapping_add),
        ReduceOp::Prod => terms.reduce(i64::wrapping_mul),
        ReduceOp::Min => terms.reduce(i64::min),
        ReduceOp::Max => terms.reduce(i64::max),
    };
    let joined = joined.expect("a group has a rank");
    if op == ReduceOp::Avg { joined / count } else { joined }
}

/// Pairs, pairs of pairs, the odd one carried up; every step rounded to f32, or f64.
fn tree(op: ReduceOp, terms: &mut [f64], old: Option<f64>, double: bool) -> f64 {
    let narrow = |x: f64| if double { x } else { f64::from(x as f32) };
    // Sums and products of two f32 are rounded once here: a product is exact in f64, and f64 is wide enough for a sum's
    // second rounding to be harmless.
    let join = |a: f64, b: f64| match op {
        ReduceOp::Sum | ReduceOp::Avg => narrow(a + b),
        ReduceOp::Prod => narrow(a * b),
        ReduceOp::Min => a.min(b),
        ReduceOp::Max => a.max(b),
    };
    let count = terms.len();
    let mut live = count;
    while live > 1 {
        for pair in 0..live / 2 {
            terms[pair] = join(terms[2 * pair], terms[2 * pair + 1]);
        }
        if live % 2 == 1 {
            terms[live / 2] = terms[live - 1];
        }
        live = live.div_ceil(2);
    }
    let mut total = terms[0];
    if op == ReduceOp::Avg {
        total = narrow(total * narrow(1.0 / count as f64));
    }
    old.map_or(total, |old| narrow(old + total))
}

/// The tolerance is the one in the module's head.
fn near<T: Sample, U: Sample>(
    options: &Options,
    op: ReduceOp,
    terms: &[f64],
    old: Option<f64>,
    double: bool,
) -> Wanted<U> {
    let count = terms.len() as f64;
    let sum: f64 = terms.iter().sum();
    let sizes: f64 = terms.iter().map(|term| term.abs()).sum();
    let product: f64 = terms.iter().product();
    let (total, size, steps) = match op {
        ReduceOp::Avg => (sum / count, sizes / count, count + 1.0),
        ReduceOp::Prod => (product, product.abs(), count),
        _ => (sum, sizes, count),
    };
    let accumulator = match double {
        _ if options.narrow_sums => T::EPSILON,
        true => f64::EPSILON,
        false => f32::EPSILON.into(),
    };
    let (total, size, steps) = old.map_or((total, size, steps), |old| (total + old, size + old.abs(), steps + 1.0));
    let tolerance = steps * accumulator * size + U::EPSILON * total.abs() + U::TINY;
    Wanted { value: U::of(total), tolerance: tolerance + (U::of(total).get() - total).abs() }
}

#[cfg(test)]
mod tests {
    use super::super::{EXACT, NEAR};
    use super::*;

    #[test]
    fn the_oracle_tells_orders_and_operations_apart() {
        // Otherwise "bit for bit" would say nothing about the order, and the tolerance nothing at all.
        let range = || 0..1000;
        let tree = reduced::<f32, f32>(&EXACT, ReduceOp::Sum, 7, 4, range(), None);
        let row = |i: usize| (0..4).map(|rank| value::<f32>(7, rank, i, None)).fold(0f32, |sum, term| sum + term);
        assert!((0..1000).any(|i| !tree[i].accepts(row(i))));
        let near = reduced::<f32, f32>(&NEAR, ReduceOp::Sum, 7, 4, range(), None);
        assert!((0..1000).all(|i| near[i].accepts(row(i)) && near[i].accepts(tree[i].value)));
        let missing = |i: usize| (0..3).map(|rank| value::<f32>(7, rank, i, None)).fold(0f32, |sum, term| sum + term);
        assert!((0..1000).all(|i| !near[i].accepts(missing(i))), "a rank that is left out is seen at every index");
    }

    #[test]
    fn averages_and_integers_follow_their_rules() {
        assert_eq!(integer(ReduceOp::Avg, &[-7.0, 0.0]), -3, "cut off towards zero");
        assert_eq!(i8::wrap(integer(ReduceOp::Sum, &[100.0, 100.0])), -56, "wraps");
        assert_eq!(tree(ReduceOp::Avg, &mut [1.0, 2.0, 4.0], Some(10.0), false) as f32, 10.0 + 7.0 * (1.0f32 / 3.0));
        assert_eq!(tree(ReduceOp::Sum, &mut [1.0, 1e9, 2.0, -1e9], None, false), 0.0, "pairs first");
    }
}
