//! Several buffers into one, element by element as a balanced tree.
//!
//! Four neighbours at a time are read once and joined in registers: the lower two levels of the tree. What is above is
//! joined in the nearest cache, as soon as two subtrees of one height are there, like carries of a binary counter.

#![allow(unsafe_code, reason = "threads write parts of one buffer that do not overlap")]

use super::Cpu;
use super::level::Level;
use super::stream::{CHUNK, Shared, chunks, narrow, widen};
use crate::round::{Float32, to_odd};
use crate::{DType, Element, ReduceOp, View, ViewMut};
use half::{bf16, f16};
use std::ops::Range;

/// Sources whose elements are joined in registers.
const GROUP: usize = 4;

/// As many sources need no more than one subtree kept aside; more than `GROUP << DEEP` cannot be named in memory.
const FEW: usize = 3 * GROUP;
const DEEP: usize = 20;

/// What elements are joined in. `share` is an average's last step.
trait Number: Copy + Send + Sync {
    const ZERO: Self;
    fn add(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn least(self, other: Self) -> Self;
    fn most(self, other: Self) -> Self;
    fn share(self, count: usize) -> Self;
}

macro_rules! floats {
    ($($t:ty),*) => { $(impl Number for $t {
        const ZERO: $t = 0.0;
        #[inline(always)]
        fn add(self, other: $t) -> $t { self + other }
        #[inline(always)]
        fn mul(self, other: $t) -> $t { self * other }
        // As f32::min and max, spelled so that a lane and a scalar treat a NaN and two zeros alike.
        #[inline(always)]
        fn least(self, other: $t) -> $t { if self < other || other.is_nan() { self } else { other } }
        #[inline(always)]
        fn most(self, other: $t) -> $t { if self > other || other.is_nan() { self } else { other } }
        #[inline(always)]
        fn share(self, count: usize) -> $t { self * (1.0 / count as $t) }
    })* };
}
floats!(f32, f64);

macro_rules! integers {
    ($($t:ty),*) => { $(impl Number for $t {
        const ZERO: $t = 0;
        #[inline(always)]
        fn add(self, other: $t) -> $t { self.wrapping_add(other) }
        #[inline(always)]
        fn mul(self, other: $t) -> $t { self.wrapping_mul(other) }
        #[inline(always)]
        fn least(self, other: $t) -> $t { self.min(other) }
        #[inline(always)]
        fn most(self, other: $t) -> $t { self.max(other) }
        #[inline(always)]
        fn share(self, count: usize) -> $t { quotient(self.into(), count) as $t }
    })* };
}
integers!(i64, i32, i8, u32);

/// `sum / count`, cut off towards zero, where `sum` is that of `count` integers of at most 32 bits. Such sums stay below
/// 2^53, so f64 holds them, and their quotient is cut off where the exact one would be; unlike i64, it divides in vectors.
#[inline(always)]
fn quotient(sum: i64, count: usize) -> i64 {
    let quotient = sum as f64 / count.max(1) as f64;
    // SAFETY: finite, and by far inside the range of i64, whose ends no sum of 32-bit integers in memory comes near.
    unsafe { quotient.to_int_unchecked() }
}

/// A reduction as a type, so that a loop is compiled for each.
trait Join<A> {
    fn join(a: A, b: A) -> A;
}

macro_rules! joins {
    ($($name:ident: $method:ident),*) => { $(
        struct $name;
        impl<A: Number> Join<A> for $name {
            #[inline(always)]
            fn join(a: A, b: A) -> A { a.$method(b) }
        })* };
}
joins!(Add: add, Mul: mul, Least: least, Most: most);

/// An element that is joined as an A.
trait Stored<A>: Copy + Send + Sync {
    fn up(self) -> A;
}

macro_rules! stored {
    ($($t:ty => $a:ty: $up:expr;)*) => { $(impl Stored<$a> for $t {
        #[inline(always)]
        fn up(self) -> $a { $up(self) }
    })* };
}
stored! {
    f32 => f32: |x| x;
    bf16 => f32: Float32::widen;
    f64 => f64: |x| x;
    f32 => f64: f64::from;
    bf16 => f64: |x: bf16| f64::from(x.widen());
    f16 => f64: |x: f16| f64::from(x.widen());
    i32 => i32: |x| x;
    i8 => i8: |x| x;
    u32 => u32: |x| x;
    i64 => i64: |x| x;
    i32 => i64: i64::from;
    i8 => i64: i64::from;
    u32 => i64: i64::from;
}

/// What the tree is kept in, and the buffers it goes with.
trait Accumulator: Number + Stored<Self> {
    /// Whether there is a loop that reads this type. Others are converted first.
    fn compiled(dtype: DType) -> bool;
    /// Joins `range` of one to four sources, if they are of one type and there is a loop for it: else `false`.
    fn joined<J: Join<Self>>(level: Level, sources: &[View], range: &Range<usize>, out: &mut [Self]) -> bool;
    /// All elements of a view.
    fn read(level: Level, view: View, out: &mut [Self]);
    /// Rounds once into the view.
    fn write(level: Level, from: &[Self], view: &mut ViewMut);
    /// The elements themselves, where the view holds this type.
    fn own<'a>(view: &'a mut ViewMut) -> Option<&'a mut [Self]>;
}

/// The elements of `range` of up to four views that are known to hold T.
fn join_views<T: Element + Stored<A>, A: Number, J: Join<A>>(
    level: Level,
    sources: &[View],
    range: &Range<usize>,
    out: &mut [A],
) {
    let mut slices: [&[T]; GROUP] = [&[]; GROUP];
    for (slice, source) in slices.iter_mut().zip(sources) {
        // The caller matched on the type.
        *slice = source.slice(range.clone()).as_slice().unwrap_or_default();
    }
    join::<T, A, J>(level, &slices[..sources.len()], out);
}

/// The tree of one to four slices, each as long as `out`.
fn join<T: Stored<A>, A: Number, J: Join<A>>(level: Level, slices: &[&[T]], out: &mut [A]) {
    match *slices {
        [a] => level.run(
            #[inline(always)]
            |_| out.iter_mut().zip(a).for_each(|(out, a)| *out = a.up()),
        ),
        [a, b] => level.run(
            #[inline(always)]
            |_| out.iter_mut().zip(a).zip(b).for_each(|((out, a), b)| *out = J::join(a.up(), b.up())),
        ),
        [a, b, c] => level.run(
            #[inline(always)]
            |_| {
                let all = out.iter_mut().zip(a).zip(b).zip(c);
                all.for_each(|(((out, a), b), c)| *out = J::join(J::join(a.up(), b.up()), c.up()))
            },
        ),
        [a, b, c, d] => level.run(
            #[inline(always)]
            |_| {
                let all = out.iter_mut().zip(a).zip(b).zip(c).zip(d);
                all.for_each(|((((out, a), b), c), d)| *out = J::join(J::join(a.up(), b.up()), J::join(c.up(), d.up())))
            },
        ),
        _ => unreachable!("one to four sources"),
    }
}

/// Two subtrees, the left one in place.
fn merge<A: Number, J: Join<A>>(level: Level, into: &mut [A], from: &[A]) {
    level.run(
        #[inline(always)]
        |_| into.iter_mut().zip(from).for_each(|(into, from)| *into = J::join(*into, *from)),
    );
}

macro_rules! accumulators {
    ($($a:ty, compiled [$($c:ident $ct:ty),*], read [$($r:ident $rt:ty),*], write [$($w:ident $down:expr),*], own $own:expr;)*) => {
        $(impl Accumulator for $a {
            fn compiled(dtype: DType) -> bool {
                matches!(dtype, $(DType::$c)|*)
            }

            fn joined<J: Join<$a>>(level: Level, sources: &[View], range: &Range<usize>, out: &mut [$a]) -> bool {
                let dtype = sources[0].dtype();
                if sources.iter().any(|source| source.dtype() != dtype) {
                    return false;
                }
                match dtype {
                    $(DType::$c => join_views::<$ct, $a, J>(level, sources, range, out),)*
                    _ => return false,
                }
                true
            }

            fn read(level: Level, view: View, out: &mut [$a]) {
                match view.dtype() {
                    $(DType::$r => join_views::<$rt, $a, Add>(level, &[view], &(0..view.len()), out),)*
                    _ => unreachable!("refused before any kernel starts"),
                }
            }

            fn write(level: Level, from: &[$a], view: &mut ViewMut) {
                match view.dtype() {
                    $(DType::$w => put(level, from, view, #[inline(always)] $down),)*
                    _ => unreachable!("refused before any kernel starts"),
                }
            }

            fn own<'a>(view: &'a mut ViewMut) -> Option<&'a mut [$a]> {
                let own: fn(&'a mut ViewMut) -> Option<&'a mut [$a]> = $own;
                own(view)
            }
        })*
    };
}

/// Each element by `down` into a view that is known to hold T.
fn put<A: Copy, T: Element>(level: Level, from: &[A], view: &mut ViewMut, down: impl Fn(A) -> T) {
    let slots = view.as_slice_mut::<T>().unwrap_or_default();
    level.run(
        #[inline(always)]
        |_| slots.iter_mut().zip(from).for_each(|(slot, value)| *slot = down(*value)),
    );
}

fn same<'a, A: Element>(view: &'a mut ViewMut) -> Option<&'a mut [A]> {
    view.as_slice_mut().ok()
}

accumulators! {
    f64, compiled [F64 f64], read [F64 f64, F32 f32, Bf16 bf16, F16 f16],
        write [F64 |x| x, F32 |x: f64| x as f32, Bf16 |x| bf16::narrow(to_odd(x)), F16 |x| f16::narrow(to_odd(x))], own same;
    i64, compiled [I32 i32, I8 i8, U32 u32], read [I32 i32, I8 i8, U32 u32],
        write [I32 |x: i64| x as i32, I8 |x: i64| x as i8, U32 |x: i64| x as u32], own |_| None;
    i32, compiled [I32 i32], read [I32 i32], write [I32 |x: i32| x], own same;
    i8, compiled [I8 i8], read [I8 i8], write [I8 |x: i8| x], own same;
    u32, compiled [U32 u32], read [U32 u32], write [U32 |x: u32| x], own same;
}

impl Accumulator for f32 {
    fn compiled(dtype: DType) -> bool {
        // Halves are converted by instructions that no compiler finds for itself.
        matches!(dtype, DType::F32 | DType::Bf16)
    }

    fn joined<J: Join<f32>>(level: Level, sources: &[View], range: &Range<usize>, out: &mut [f32]) -> bool {
        let dtype = sources[0].dtype();
        if sources.iter().any(|source| source.dtype() != dtype) {
            return false;
        }
        match dtype {
            DType::F32 => join_views::<f32, f32, J>(level, sources, range, out),
            DType::Bf16 => join_views::<bf16, f32, J>(level, sources, range, out),
            _ => return false,
        }
        true
    }

    fn read(level: Level, view: View, out: &mut [f32]) {
        widen(level, view, out);
    }

    fn write(level: Level, from: &[f32], view: &mut ViewMut) {
        narrow(level, from, view);
    }

    fn own<'a>(view: &'a mut ViewMut) -> Option<&'a mut [f32]> {
        same(view)
    }
}

struct Task<'a> {
    level: Level,
    op: ReduceOp,
    sources: &'a [View<'a>],
    accumulate: bool,
    dst: Shared<'a>,
}

impl Cpu {
    pub(super) fn run_reduce(&self, op: ReduceOp, sources: &[View], accumulate: bool, dst: ViewMut) {
        let double = || dst.dtype() == DType::F64 || sources.iter().any(|source| source.dtype() == DType::F64);
        match (dst.dtype(), op) {
            // Sums, products and extremes of integers are the same in a wider type, cut off; a quotient is not.
            (DType::I32 | DType::I8 | DType::U32, ReduceOp::Avg) => {
                self.reduce_by::<i64, Add>(op, sources, accumulate, dst)
            }
            (DType::I32, _) => self.reduce_in::<i32>(op, sources, accumulate, dst),
            (DType::I8, _) => self.reduce_in::<i8>(op, sources, accumulate, dst),
            (DType::U32, _) => self.reduce_in::<u32>(op, sources, accumulate, dst),
            _ if double() => self.reduce_in::<f64>(op, sources, accumulate, dst),
            _ => self.reduce_in::<f32>(op, sources, accumulate, dst),
        }
    }

    fn reduce_in<A: Accumulator>(&self, op: ReduceOp, sources: &[View], accumulate: bool, dst: ViewMut) {
        match op {
            ReduceOp::Sum | ReduceOp::Avg => self.reduce_by::<A, Add>(op, sources, accumulate, dst),
            ReduceOp::Prod => self.reduce_by::<A, Mul>(op, sources, accumulate, dst),
            ReduceOp::Min => self.reduce_by::<A, Least>(op, sources, accumulate, dst),
            ReduceOp::Max => self.reduce_by::<A, Most>(op, sources, accumulate, dst),
        }
    }

    fn reduce_by<A: Accumulator, J: Join<A>>(
        &self,
        op: ReduceOp,
        sources: &[View],
        accumulate: bool,
        dst: ViewMut<'_>,
    ) {
        let len = dst.len();
        let task = Task { level: self.level, op, sources, accumulate, dst: Shared::new(dst) };
        let one_type = sources.windows(2).all(|pair| pair[0].dtype() == pair[1].dtype());
        let convert = !(one_type && A::compiled(sources[0].dtype()));
        self.pool.split(len, 16 * CHUNK, |_, range| match (sources.len() <= FEW, convert) {
            _ if task.at_once::<A, J>(&range) => {}
            (true, false) => task.in_chunks::<A, J, 1, 0>(range),
            (true, true) => task.in_chunks::<A, J, 1, GROUP>(range),
            (false, _) => task.in_chunks::<A, J, DEEP, GROUP>(range),
        });
    }
}

impl Task<'_> {
    /// A few sources of the type that they are joined in, and nothing to do after: one pass, straight into `dst`.
    fn at_once<A: Accumulator, J: Join<A>>(&self, range: &Range<usize>) -> bool {
        if self.sources.len() > GROUP || self.accumulate || self.op == ReduceOp::Avg {
            return false;
        }
        // SAFETY: ranges of all threads are disjoint, and this part is given up before another is taken.
        let mut target = unsafe { self.dst.part(range.clone()) };
        A::own(&mut target).is_some_and(|out| A::joined::<J>(self.level, self.sources, range, out))
    }

    /// A chunk at a time, `SPARE` subtrees kept aside, and `CONVERTED` sources that no loop reads.
    fn in_chunks<A: Accumulator, J: Join<A>, const SPARE: usize, const CONVERTED: usize>(&self, range: Range<usize>) {
        let (mut spare, mut converted) = ([[A::ZERO; CHUNK]; SPARE], [[A::ZERO; CHUNK]; CONVERTED]);
        let mut total = [A::ZERO; CHUNK];
        for chunk in chunks(range) {
            // SAFETY: chunks of all threads are disjoint.
            let mut target = unsafe { self.dst.part(chunk.clone()) };
            if let (Some(out), false) = (A::own(&mut target), self.accumulate) {
                self.tree::<A, J>(&chunk, out, &mut spare, &mut converted);
                continue;
            }
            let total = &mut total[..chunk.len()];
            self.tree::<A, J>(&chunk, total, &mut spare, &mut converted);
            if self.accumulate {
                let old = &mut spare[0][..chunk.len()];
                A::read(self.level, target.as_view(), old);
                merge::<A, Add>(self.level, old, total);
                A::write(self.level, old, &mut target);
            } else {
                A::write(self.level, total, &mut target);
            }
        }
    }

    /// The tree over `chunk` of all sources. Subtrees that wait for their right neighbour lie in `out` and `spare`.
    fn tree<A: Accumulator, J: Join<A>>(
        &self,
        chunk: &Range<usize>,
        out: &mut [A],
        spare: &mut [[A; CHUNK]],
        converted: &mut [[A; CHUNK]],
    ) {
        let size = chunk.len();
        let mut waiting = 0;
        for (number, group) in self.sources.chunks(GROUP).enumerate() {
            let subtree = if waiting == 0 { &mut *out } else { &mut spare[waiting - 1][..size] };
            if !A::joined::<J>(self.level, group, chunk, subtree) {
                self.convert::<A, J>(group, chunk, subtree, converted);
            }
            for _ in 0..(number + 1).trailing_zeros() {
                self.merge_last::<A, J>(waiting, out, spare);
                waiting -= 1;
            }
            waiting += 1;
        }
        while waiting > 1 {
            waiting -= 1;
            self.merge_last::<A, J>(waiting, out, spare);
        }
        if self.op == ReduceOp::Avg {
            let count = self.sources.len();
            self.level.run(
                #[inline(always)]
                |_| out.iter_mut().for_each(|x| *x = x.share(count)),
            );
        }
    }

    /// Joins subtree `last`, counted from 0, to the one on its left.
    fn merge_last<A: Accumulator, J: Join<A>>(&self, last: usize, out: &mut [A], spare: &mut [[A; CHUNK]]) {
        let (left, right) = spare.split_at_mut(last - 1);
        match left.last_mut() {
            Some(left) => merge::<A, J>(self.level, &mut left[..out.len()], &right[0]),
            None => merge::<A, J>(self.level, out, &right[0]),
        }
    }

    /// The tree of one to four sources, each converted first.
    fn convert<A: Accumulator, J: Join<A>>(
        &self,
        group: &[View],
        chunk: &Range<usize>,
        out: &mut [A],
        converted: &mut [[A; CHUNK]],
    ) {
        let mut slices: [&[A]; GROUP] = [&[]; GROUP];
        for ((slice, buffer), source) in slices.iter_mut().zip(converted).zip(group) {
            let buffer = &mut buffer[..chunk.len()];
            A::read(self.level, source.slice(chunk.clone()), buffer);
            *slice = buffer;
        }
        join::<A, A, J>(self.level, &slices[..group.len()], out);
    }
}
