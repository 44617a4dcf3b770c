//! What ranks give each other, and whether they got it. A value is a function of (seed, rank, index) alone, so that every
//! rank knows what every other one gives.
//!
//! What is only moved is random in all its bits, and compared bit for bit. What is reduced is random within limits that
//! make the result exact in every order of summation and every precision of the sums, in the manner of nccl-tests: so a
//! wrong sum is told from a rounded one, and the comparison is exact too.
//!
//! | reduction | inputs | tolerance |
//! | --- | --- | --- |
//! | min, max | as for moves | none |
//! | sum | multiples of one power of two, few enough that every partial sum fits the type | none; above 2^p ranks (p bits of precision) `n u sum of |x|` |
//! | prod | one rank, another for each element, gives a random number, the others 1 or -1 | none |
//! | avg | as sum | integers none (cut off towards zero); floats `(n + 2) u mean of |x|`, which covers dividing before or after the sum |
//!
//! What travels quantised (`--algorithm q8`, `q4`) is compared with the tolerance of [`Pattern::quantised`].
//!
//! `u` is half a unit in the last place of the type: 2^-53, 2^-24, 2^-11, 2^-8 for f64, f32, f16, bf16.

use half::{bf16, f16};
use std::ops::Range;
use zbench_kernels::{DType, Element, KernelError, ReduceOp, View, ViewMut};

/// The types of the test by nccl-tests' names, in its order.
pub const DTYPES: [(DType, &str); 6] = [
    (DType::I8, "int8"),
    (DType::I32, "int32"),
    (DType::F16, "half"),
    (DType::F32, "float"),
    (DType::F64, "double"),
    (DType::Bf16, "bfloat16"),
];

/// The reductions in nccl-tests' order.
pub const OPS: [ReduceOp; 5] = [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min, ReduceOp::Avg];

/// What is written where something is to be received.
const POISON: u8 = 0x5a;

/// How inputs are drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pattern {
    pub dtype: DType,
    pub op: Option<ReduceOp>,
    pub ranks: usize,
    pub seed: u64,
}

/// What a result element must be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expected {
    pub value: f64,
    pub tolerance: f64,
}

/// Elements that are not as they should be.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Mismatch {
    pub count: u64,
    /// The first: index, what it should be, what it is.
    pub first: Option<(u64, f64, f64)>,
}

impl Mismatch {
    /// Adds what was found in a part that begins `offset` elements behind the start.
    pub fn join(&mut self, part: Mismatch, offset: u64) {
        self.count += part.count;
        self.first = self.first.or(part.first.map(|(index, wanted, found)| (index + offset, wanted, found)));
    }
}

/// A finaliser of 64 bits in which every input bit moves every output bit (Stafford's thirteenth, as in SplitMix64).
fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// Bits of precision of a float, of magnitude of an integer.
fn precision(dtype: DType) -> u32 {
    match dtype {
        DType::F64 => 53,
        DType::F32 => 24,
        DType::F16 => 11,
        DType::Bf16 => 8,
        DType::I32 | DType::U32 => 31,
        DType::I8 => 7,
    }
}

impl Pattern {
    fn bits(&self, rank: usize, index: u64) -> u64 {
        let key = mix(self.seed.wrapping_add((rank as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        mix(key.wrapping_add(index.wrapping_mul(0xd134_2543_de82_ef95)))
    }

    /// What `rank` gives at `index`; exact in the type.
    pub fn input(&self, rank: usize, index: u64) -> f64 {
        let bits = self.bits(rank, index);
        let p = precision(self.dtype);
        let sign = if bits & 1 == 0 { 1.0 } else { -1.0 };
        match self.op {
            Some(ReduceOp::Prod) if self.bits(usize::MAX - 1, index) % self.ranks as u64 == rank as u64 => {
                sign * magnitude(self.dtype, p, bits)
            }
            Some(ReduceOp::Prod) => sign,
            Some(ReduceOp::Sum | ReduceOp::Avg) => {
                let limit = self.sum_limit();
                let k = ((u128::from(bits) * u128::from(2 * limit + 1)) >> 64) as i64 - limit as i64;
                k as f64 * self.sum_unit()
            }
            None | Some(ReduceOp::Min | ReduceOp::Max) => match self.dtype.is_float() {
                true => sign * magnitude(self.dtype, p, bits) * 0.5,
                false => ((bits as i64) >> (63 - p)) as f64,
            },
        }
    }

    /// Inputs of a sum are whole multiples of the unit, at most this many.
    fn sum_limit(&self) -> u64 {
        let all = if self.dtype.is_float() { 1u64 << precision(self.dtype) } else { (1 << precision(self.dtype)) - 1 };
        (all / self.ranks as u64).max(1)
    }

    fn sum_unit(&self) -> f64 {
        if self.dtype.is_float() { 2f64.powi(1 - precision(self.dtype) as i32) } else { 1.0 }
    }

    /// The reduction of all inputs at `index`, and how far from it a correct backend may be.
    pub fn reduced(&self, op: ReduceOp, index: u64) -> Expected {
        let inputs = (0..self.ranks).map(|rank| self.input(rank, index));
        let n = self.ranks as f64;
        let half_unit = 2f64.powi(-(precision(self.dtype) as i32));
        let exact = |value: f64| Expected { value, tolerance: 0.0 };
        match op {
            ReduceOp::Min => exact(inputs.fold(f64::INFINITY, f64::min)),
            ReduceOp::Max => exact(inputs.fold(f64::NEG_INFINITY, f64::max)),
            ReduceOp::Prod => exact(inputs.product()),
            ReduceOp::Sum | ReduceOp::Avg if !self.dtype.is_float() => {
                let sum: i64 = inputs.map(|x| x as i64).sum();
                exact(wrapped(self.dtype, if op == ReduceOp::Sum { sum } else { sum / self.ranks as i64 }))
            }
            ReduceOp::Sum | ReduceOp::Avg => {
                let (mut sum, mut size) = (0.0, 0.0);
                inputs.for_each(|x| (sum, size) = (sum + x, size + x.abs()));
                if op == ReduceOp::Avg {
                    return Expected { value: sum / n, tolerance: (n + 2.0) * half_unit * size / n };
                }
                let fits = self.ranks as u64 * self.sum_limit() <= 1 << precision(self.dtype);
                Expected { value: sum, tolerance: if fits { 0.0 } else { n * half_unit * size } }
            }
        }
    }
}

impl Pattern {
    /// How far from the exact result values may be that travelled as integers of `-levels..=levels` with a scale per block:
    /// half a step for each input, for each node's sum (which is as large as its inputs), and for what is gathered.
    pub fn quantised(&self, levels: f64) -> f64 {
        let n = self.ranks as f64;
        let (largest, hops) = match self.op {
            Some(ReduceOp::Sum) => (n * self.sum_limit() as f64 * self.sum_unit(), 3.0),
            Some(_) => (self.sum_limit() as f64 * self.sum_unit(), 3.0),
            None => (1.0, 1.0),
        };
        let half_unit = 2f64.powi(-(precision(self.dtype) as i32));
        largest * (hops * 0.5 / levels + 4.0 * half_unit)
    }
}

/// A random float in [1, 2) of all the bits the type has; an integer whose product with 1 or -1 fits.
fn magnitude(dtype: DType, precision: u32, bits: u64) -> f64 {
    let fraction = bits >> 1;
    if dtype.is_float() {
        let steps = 2f64.powi(precision as i32 - 1);
        return 1.0 + (fraction >> (64 - precision)) as f64 / steps;
    }
    (1 + fraction % ((1 << precision) - 1)) as f64
}

/// Integers wrap around as sums in the type do.
fn wrapped(dtype: DType, value: i64) -> f64 {
    match dtype {
        DType::I8 => f64::from(value as i8),
        _ => f64::from(value as i32),
    }
}

/// A type of elements, made from and turned into f64 without loss for the values of a [`Pattern`].
trait Value: Element + PartialEq {
    fn of(value: f64) -> Self;
    fn f64(self) -> f64;
}

macro_rules! values {
    ($($t:ty: $of:expr, $to:expr;)*) => { $(
        impl Value for $t {
            fn of(value: f64) -> Self { ($of)(value) }
            fn f64(self) -> f64 { ($to)(self) }
        } )* };
}
values! {
    f64: |x: f64| x, |x: f64| x;
    f32: |x: f64| x as f32, f64::from;
    f16: f16::from_f64, f16::to_f64;
    bf16: bf16::from_f64, bf16::to_f64;
    i32: |x: f64| x as i32, f64::from;
    i8: |x: f64| x as i8, f64::from;
}

macro_rules! by_type {
    ($dtype:expr, $f:ident($($argument:expr),*)) => {
        match $dtype {
            DType::F64 => $f::<f64>($($argument),*),
            DType::F32 => $f::<f32>($($argument),*),
            DType::F16 => $f::<f16>($($argument),*),
            DType::Bf16 => $f::<bf16>($($argument),*),
            DType::I32 => $f::<i32>($($argument),*),
            DType::I8 => $f::<i8>($($argument),*),
            given => Err(KernelError::DType { wanted: DType::I32, given }),
        }
    };
}

/// Writes a rank's inputs, the first of them that of `first`.
pub fn fill(into: &mut ViewMut<'_>, pattern: Pattern, rank: usize, first: u64) -> Result<(), KernelError> {
    fn typed<T: Value>(into: &mut ViewMut<'_>, pattern: Pattern, rank: usize, first: u64) -> Result<(), KernelError> {
        let slots = into.as_slice_mut::<T>()?.iter_mut();
        slots.zip(first..).for_each(|(slot, index)| *slot = T::of(pattern.input(rank, index)));
        Ok(())
    }
    by_type!(into.dtype(), typed(into, pattern, rank, first))
}

/// Makes sure that nothing looks received before it is.
pub fn poison(into: &mut ViewMut<'_>) -> Result<(), KernelError> {
    fn typed<T: Value>(into: &mut ViewMut<'_>) -> Result<(), KernelError> {
        into.as_slice_mut::<T>()?.fill(bytemuck::pod_read_unaligned(&vec![POISON; size_of::<T>()]));
        Ok(())
    }
    by_type!(into.dtype(), typed(into))
}

/// Compares `range` of what was received with what it should be (by index from the start of the range), and sees to it
/// that `guard` is as [`poison`] left it.
pub fn compare(
    found: View<'_>,
    range: Range<usize>,
    guard: Range<usize>,
    expected: impl Fn(u64) -> Expected,
) -> Result<Mismatch, KernelError> {
    fn typed<T: Value>(
        found: View<'_>,
        range: Range<usize>,
        guard: Range<usize>,
        expected: &dyn Fn(u64) -> Expected,
    ) -> Result<Mismatch, KernelError> {
        let all = found.as_slice::<T>()?;
        let mut mismatch = Mismatch::default();
        let mut tell = |index: u64, wanted: f64, found: f64| {
            mismatch.count += 1;
            mismatch.first.get_or_insert((index, wanted, found));
        };
        for (index, element) in all[range.clone()].iter().enumerate() {
            let Expected { value, tolerance } = expected(index as u64);
            let found = element.f64();
            // Written so that a NaN is wrong.
            let is_right = if tolerance == 0.0 {
                bytemuck::bytes_of(element) == bytemuck::bytes_of(&T::of(value)) || found == 0.0 && value == 0.0
            } else {
                (found - value).abs() <= tolerance
            };
            if !is_right {
                tell(index as u64, value, found);
            }
        }
        let untouched: T = bytemuck::pod_read_unaligned(&vec![POISON; size_of::<T>()]);
        for index in guard {
            if bytemuck::bytes_of(&all[index]) != bytemuck::bytes_of(&untouched) {
                tell((index - range.start) as u64, untouched.f64(), all[index].f64());
            }
        }
        Ok(mismatch)
    }
    by_type!(found.dtype(), typed(found, range, guard, &expected))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(dtype: DType, op: Option<ReduceOp>, ranks: usize) -> Pattern {
        Pattern { dtype, op, ranks, seed: 7 }
    }

    /// The promise behind the comparison: whatever the order of the sums and whatever they are kept in, the result has
    /// the same bits.
    #[test]
    fn reductions_are_exact_in_every_order() {
        fn joined<T: Value>(values: &[f64], op: ReduceOp) -> f64 {
            let join = |a: f64, b: f64| {
                T::of(match op {
                    ReduceOp::Prod => a * b,
                    _ => a + b,
                })
                .f64()
            };
            values.iter().copied().reduce(join).unwrap_or_default()
        }
        for (dtype, name) in DTYPES {
            for (op, ranks) in
                [ReduceOp::Sum, ReduceOp::Prod].into_iter().flat_map(|op| [1, 2, 3, 8, 100].map(|n| (op, n)))
            {
                let pattern = pattern(dtype, Some(op), ranks);
                for index in 0..200 {
                    let mut inputs: Vec<f64> = (0..ranks).map(|rank| pattern.input(rank, index)).collect();
                    let wanted = pattern.reduced(op, index);
                    assert_eq!(wanted.tolerance, 0.0, "{name} {op} {ranks}");
                    for _ in 0..2 {
                        let found = match dtype {
                            DType::F64 => joined::<f64>(&inputs, op),
                            DType::F32 => joined::<f32>(&inputs, op),
                            DType::F16 => joined::<f16>(&inputs, op),
                            DType::Bf16 => joined::<bf16>(&inputs, op),
                            DType::I32 => joined::<i32>(&inputs, op),
                            _ => joined::<i8>(&inputs, op),
                        };
                        assert_eq!(found, wanted.value, "{name} {op} {ranks} at {index}: {inputs:?}");
                        inputs.reverse();
                    }
                }
            }
        }
    }

    #[test]
    fn inputs_differ_between_ranks_and_places_and_are_hardly_ever_zero() {
        for (dtype, name) in DTYPES {
            for op in [None, Some(ReduceOp::Sum), Some(ReduceOp::Max)] {
                let pattern = pattern(dtype, op, 4);
                let zeros = (0..1000).filter(|index| pattern.input(1, *index) == 0.0).count();
                let same = (0..1000).filter(|index| pattern.input(1, *index) == pattern.input(2, *index)).count();
                let moved = (0..1000).filter(|index| pattern.input(1, *index) == pattern.input(1, index + 1)).count();
                // Sums of four in int8 have 63 values, so that chance alone gives 16 of a thousand.
                assert!(zeros < 60 && same < 60 && moved < 60, "{name} {op:?}: {zeros} {same} {moved}");
            }
        }
    }

    #[test]
    fn one_wrong_bit_a_missing_write_and_a_write_beyond_the_end_are_found() {
        let pattern = pattern(DType::F32, Some(ReduceOp::Sum), 3);
        let expected = |index: u64| pattern.reduced(ReduceOp::Sum, index);
        let right: Vec<f32> = (0..100).map(|index| expected(index).value as f32).collect();
        let mut memory = vec![0f32; 110];
        poison(&mut ViewMut::of(&mut memory)).unwrap();
        let check = |memory: &[f32]| compare(View::of(memory), 5..105, 105..110, expected).unwrap();
        assert_eq!(check(&memory).count, 100);
        memory[5..105].copy_from_slice(&right);
        assert_eq!(check(&memory), Mismatch::default());
        memory[12] = f32::from_bits(memory[12].to_bits() ^ 1);
        let found = check(&memory);
        assert_eq!((found.count, found.first.map(|f| f.0)), (1, Some(7)));
        memory[12] = f32::NAN;
        memory[107] = 1.0;
        let found = check(&memory);
        assert_eq!((found.count, found.first.map(|f| f.0)), (2, Some(7)));
    }

    #[test]
    fn averages_have_the_stated_tolerance_and_no_more() {
        let pattern = pattern(DType::F32, Some(ReduceOp::Avg), 3);
        for index in 0..100 {
            let Expected { value, tolerance } = pattern.reduced(ReduceOp::Avg, index);
            let inputs = [0, 1, 2].map(|rank| pattern.input(rank, index) as f32);
            let (after, before) =
                (inputs.iter().sum::<f32>() / 3.0, inputs.iter().map(|x| x * (1.0 / 3.0)).sum::<f32>());
            assert!((f64::from(after) - value).abs() <= tolerance && (f64::from(before) - value).abs() <= tolerance);
            assert!(tolerance < 1e-6);
        }
        let whole = Pattern { dtype: DType::I32, ..pattern };
        let sum: i64 = (0..3).map(|rank| whole.input(rank, 9) as i64).sum();
        assert_eq!(whole.reduced(ReduceOp::Avg, 9), Expected { value: (sum / 3) as f64, tolerance: 0.0 });
    }
}
