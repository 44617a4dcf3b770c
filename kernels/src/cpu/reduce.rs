//! Several buffers into one, element by element as a balanced tree.
//!
//! Four neighbours at a time are read once and joined in registers: the lower two levels of the tree. What is above is
//! joined in the nearest cache, as soon as two subtrees of one height are there, like carries of a binary counter.

#![allow(unsafe_code, reason = "threads write parts of one buffer that do not overlap")]

use super::Cpu;
use super::level::Level;
use super::stream::{CHUNK, Shared, chunks, narrow, widen};
use crate::numerics::round::{Float32, to_odd};
use crate::{DType, Element, ReduceOp, View, ViewMut};
use half::{bf16, f16};
use std::convert::identity;
use std::marker::PhantomData;
use std::ops::Range;

/// Sources whose elements are joined in registers.
const GROUP: usize = 4;

/// As many sources need no more than one subtree kept aside; more than `GROUP << DEEP` cannot be named in memory.
const FEW: usize = 3 * GROUP;
const DEEP: usize = 20;

/// What joins two elements: compiled into every loop.
trait Join<A>: Fn(A, A) -> A + Copy + Sync {}
impl<A, J: Fn(A, A) -> A + Copy + Sync> Join<A> for J {}

/// What elements are joined in, and the buffers it goes with.
trait Number: Element + Send + Sync {
    fn add(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn least(self, other: Self) -> Self;
    fn most(self, other: Self) -> Self;

    /// Joins `range` of one to four sources, if they are of one type and there is a loop that reads it: else `false`.
    fn joined(level: Level, sources: &[View], range: &Range<usize>, out: &mut [Self], join: impl Join<Self>) -> bool {
        join_views(level, sources, range, out, identity::<Self>, join)
    }

    /// All elements of a view.
    fn read(level: Level, view: View, out: &mut [Self]) {
        let read = Self::joined(level, &[view], &(0..view.len()), out, Self::add);
        assert!(read, "refused before any kernel starts");
    }

    /// Rounds once into the view.
    fn write(level: Level, from: &[Self], view: &mut ViewMut) {
        assert!(put(level, from, view, identity::<Self>), "refused before any kernel starts");
    }
}

macro_rules! floats {
    () => {
        #[inline(always)]
        fn add(self, other: Self) -> Self {
            self + other
        }
        #[inline(always)]
        fn mul(self, other: Self) -> Self {
            self * other
        }
        // As f32::min and max, spelled so that a lane and a scalar treat a NaN and two zeros alike.
        #[inline(always)]
        fn least(self, other: Self) -> Self {
            if self < other || other.is_nan() { self } else { other }
        }
        #[inline(always)]
        fn most(self, other: Self) -> Self {
            if self > other || other.is_nan() { self } else { other }
        }
    };
}

impl Number for f32 {
    floats!();

    /// f16 is not read here: instructions that no compiler finds for itself convert it, in `read`.
    fn joined(level: Level, sources: &[View], range: &Range<usize>, out: &mut [f32], join: impl Join<f32>) -> bool {
        join_views(level, sources, range, out, identity::<f32>, join)
            || join_views(level, sources, range, out, bf16::widen, join)
    }

    fn read(level: Level, view: View, out: &mut [f32]) {
        widen(level, view, out);
    }

    fn write(level: Level, from: &[f32], view: &mut ViewMut) {
        narrow(level, from, view);
    }
}

/// Averages of integers too: a sum of integers of at most 32 bits stays below 2^53, so f64 holds it, and its quotient is
/// cut off where the exact one would be; unlike i64, f64 divides in vectors.
impl Number for f64 {
    floats!();

    fn joined(level: Level, sources: &[View], range: &Range<usize>, out: &mut [f64], join: impl Join<f64>) -> bool {
        join_views(level, sources, range, out, identity::<f64>, join)
            || join_views(level, sources, range, out, double::<f32>, join)
            || join_views(level, sources, range, out, double::<bf16>, join)
            || join_views(level, sources, range, out, double::<f16>, join)
            || join_views::<i32, _>(level, sources, range, out, f64::from, join)
            || join_views::<i8, _>(level, sources, range, out, f64::from, join)
            || join_views::<u32, _>(level, sources, range, out, f64::from, join)
    }

    fn write(level: Level, from: &[f64], view: &mut ViewMut) {
        let written = put(level, from, view, identity::<f64>)
            || put(level, from, view, |x| x as f32)
            || put(level, from, view, rounded::<bf16>)
            || put(level, from, view, rounded::<f16>)
            || put(level, from, view, |x| x as i32)
            || put(level, from, view, |x| x as i8)
            || put(level, from, view, |x| x as u32);
        assert!(written, "refused before any kernel starts");
    }
}

#[inline(always)]
fn double<T: Float32>(x: T) -> f64 {
    f64::from(x.widen())
}

#[inline(always)]
fn rounded<T: Float32>(x: f64) -> T {
    T::narrow(to_odd(x))
}

macro_rules! integers {
    ($($t:ty),*) => { $(impl Number for $t {
        #[inline(always)]
        fn add(self, other: $t) -> $t { self.wrapping_add(other) }
        #[inline(always)]
        fn mul(self, other: $t) -> $t { self.wrapping_mul(other) }
        #[inline(always)]
        fn least(self, other: $t) -> $t { self.min(other) }
        #[inline(always)]
        fn most(self, other: $t) -> $t { self.max(other) }
    })* };
}
integers!(i32, i8, u32);

/// The tree of `range` of one to four views, each element turned into an A by `up`; `false` where a view does not hold T.
fn join_views<T: Element, A: Number>(
    level: Level,
    sources: &[View],
    range: &Range<usize>,
    out: &mut [A],
    up: impl Fn(T) -> A + Copy,
    join: impl Join<A>,
) -> bool {
    let mut slices: [&[T]; GROUP] = [&[]; GROUP];
    for (slice, source) in slices.iter_mut().zip(sources) {
        let Ok(elements) = source.slice(range.clone()).as_slice() else { return false };
        *slice = elements;
    }
    level.run(
        #[inline(always)]
        |_| match slices[..sources.len()] {
            [a] => out.iter_mut().zip(a).for_each(|(out, a)| *out = up(*a)),
            [a, b] => out.iter_mut().zip(a).zip(b).for_each(|((out, a), b)| *out = join(up(*a), up(*b))),
            [a, b, c] => {
                let all = out.iter_mut().zip(a).zip(b).zip(c);
                all.for_each(|(((out, a), b), c)| *out = join(join(up(*a), up(*b)), up(*c)))
            }
            [a, b, c, d] => {
                let all = out.iter_mut().zip(a).zip(b).zip(c).zip(d);
                all.for_each(|((((out, a), b), c), d)| *out = join(join(up(*a), up(*b)), join(up(*c), up(*d))))
            }
            _ => unreachable!("one to four sources"),
        },
    );
    true
}

/// Two subtrees, the left one in place.
fn merge<A: Copy>(level: Level, into: &mut [A], from: &[A], join: impl Join<A>) {
    level.run(
        #[inline(always)]
        |_| into.iter_mut().zip(from).for_each(|(into, from)| *into = join(*into, *from)),
    );
}

/// Each element by `down` into a view; `false` where it does not hold T.
fn put<A: Copy, T: Element>(level: Level, from: &[A], view: &mut ViewMut, down: impl Fn(A) -> T) -> bool {
    let Ok(slots) = view.as_slice_mut::<T>() else { return false };
    level.run(
        #[inline(always)]
        |_| slots.iter_mut().zip(from).for_each(|(slot, value)| *slot = down(*value)),
    );
    true
}

/// A reduction of elements that are joined as an A.
struct Task<'a, A, J, F> {
    level: Level,
    sources: &'a [View<'a>],
    accumulate: bool,
    dst: Shared<'a>,
    join: J,
    /// An average's last step.
    finish: Option<F>,
    number: PhantomData<A>,
}

impl Cpu {
    pub(super) fn run_reduce(&self, op: ReduceOp, sources: &[View], accumulate: bool, dst: ViewMut) {
        let double = dst.dtype() == DType::F64 || sources.iter().any(|source| source.dtype() == DType::F64);
        let count = sources.len();
        let (share, share_of_double) = (1.0 / count as f32, 1.0 / count as f64);
        match (dst.dtype(), op) {
            (DType::I32 | DType::I8 | DType::U32, ReduceOp::Avg) => {
                let finish = move |x| x / count as f64;
                self.reduce_by(sources, accumulate, dst, f64::add, Some(finish))
            }
            (DType::I32, _) => self.reduce_in::<i32>(op, sources, accumulate, dst),
            (DType::I8, _) => self.reduce_in::<i8>(op, sources, accumulate, dst),
            (DType::U32, _) => self.reduce_in::<u32>(op, sources, accumulate, dst),
            (_, ReduceOp::Avg) if double => {
                self.reduce_by(sources, accumulate, dst, f64::add, Some(move |x| x * share_of_double))
            }
            (_, ReduceOp::Avg) => self.reduce_by(sources, accumulate, dst, f32::add, Some(move |x| x * share)),
            _ if double => self.reduce_in::<f64>(op, sources, accumulate, dst),
            _ => self.reduce_in::<f32>(op, sources, accumulate, dst),
        }
    }

    /// All but averages.
    fn reduce_in<A: Number>(&self, op: ReduceOp, sources: &[View], accumulate: bool, dst: ViewMut) {
        let finish = None::<fn(A) -> A>;
        match op {
            ReduceOp::Sum | ReduceOp::Avg => self.reduce_by(sources, accumulate, dst, A::add, finish),
            ReduceOp::Prod => self.reduce_by(sources, accumulate, dst, A::mul, finish),
            ReduceOp::Min => self.reduce_by(sources, accumulate, dst, A::least, finish),
            ReduceOp::Max => self.reduce_by(sources, accumulate, dst, A::most, finish),
        }
    }

    fn reduce_by<A: Number>(
        &self,
        sources: &[View],
        accumulate: bool,
        dst: ViewMut<'_>,
        join: impl Join<A>,
        finish: Option<impl Fn(A) -> A + Copy + Sync>,
    ) {
        let (level, len, dst) = (self.level, dst.len(), Shared::new(dst));
        let task = Task { level, sources, accumulate, dst, join, finish, number: PhantomData };
        let one_type = sources.windows(2).all(|pair| pair[0].dtype() == pair[1].dtype());
        let convert = !(one_type && A::joined(level, &sources[..1], &(0..0), &mut [], join));
        self.pool.split(len, 16 * CHUNK, |_, range| match (sources.len() <= FEW, convert) {
            _ if task.at_once(&range) => {}
            (true, false) => task.in_chunks::<1, 0>(range),
            (true, true) => task.in_chunks::<1, GROUP>(range),
            (false, _) => task.in_chunks::<DEEP, GROUP>(range),
        });
    }
}

impl<A: Number, J: Join<A>, F: Fn(A) -> A + Copy + Sync> Task<'_, A, J, F> {
    /// A few sources of the type that they are joined in, and nothing to do after: one pass, straight into `dst`.
    fn at_once(&self, range: &Range<usize>) -> bool {
        if self.sources.len() > GROUP || self.accumulate || self.finish.is_some() {
            return false;
        }
        // SAFETY: ranges of all threads are disjoint, and this part is given up before another is taken.
        let mut target = unsafe { self.dst.part(range.clone()) };
        let own = target.as_slice_mut();
        own.is_ok_and(|out| A::joined(self.level, self.sources, range, out, self.join))
    }

    /// A chunk at a time, `SPARE` subtrees kept aside, and `CONVERTED` sources that no loop reads.
    fn in_chunks<const SPARE: usize, const CONVERTED: usize>(&self, range: Range<usize>) {
        let (mut spare, mut converted) = ([[A::zeroed(); CHUNK]; SPARE], [[A::zeroed(); CHUNK]; CONVERTED]);
        let mut total = [A::zeroed(); CHUNK];
        for chunk in chunks(range) {
            // SAFETY: chunks of all threads are disjoint.
            let mut target = unsafe { self.dst.part(chunk.clone()) };
            if let (Ok(out), false) = (target.as_slice_mut(), self.accumulate) {
                self.tree(&chunk, out, &mut spare, &mut converted);
                continue;
            }
            let total = &mut total[..chunk.len()];
            self.tree(&chunk, total, &mut spare, &mut converted);
            if self.accumulate {
                let old = &mut spare[0][..chunk.len()];
                A::read(self.level, target.as_view(), old);
                merge(self.level, old, total, A::add);
                A::write(self.level, old, &mut target);
            } else {
                A::write(self.level, total, &mut target);
            }
        }
    }

    /// The tree over `chunk` of all sources. Subtrees that wait for their right neighbour lie in `out` and `spare`.
    fn tree(&self, chunk: &Range<usize>, out: &mut [A], spare: &mut [[A; CHUNK]], converted: &mut [[A; CHUNK]]) {
        let size = chunk.len();
        let mut waiting = 0;
        for (number, group) in self.sources.chunks(GROUP).enumerate() {
            let subtree = if waiting == 0 { &mut *out } else { &mut spare[waiting - 1][..size] };
            if !A::joined(self.level, group, chunk, subtree, self.join) {
                self.convert(group, chunk, subtree, converted);
            }
            for _ in 0..(number + 1).trailing_zeros() {
                self.merge_last(waiting, out, spare);
                waiting -= 1;
            }
            waiting += 1;
        }
        while waiting > 1 {
            waiting -= 1;
            self.merge_last(waiting, out, spare);
        }
        if let Some(finish) = self.finish {
            self.level.run(
                #[inline(always)]
                |_| {
                    let own = finish;
                    out.iter_mut().for_each(|x| *x = own(*x));
                },
            );
        }
    }

    /// Joins subtree `last`, counted from 0, to the one on its left.
    fn merge_last(&self, last: usize, out: &mut [A], spare: &mut [[A; CHUNK]]) {
        let (left, right) = spare.split_at_mut(last - 1);
        match left.last_mut() {
            Some(left) => merge(self.level, &mut left[..out.len()], &right[0], self.join),
            None => merge(self.level, out, &right[0], self.join),
        }
    }

    /// The tree of one to four sources, each converted first.
    fn convert(&self, group: &[View], chunk: &Range<usize>, out: &mut [A], converted: &mut [[A; CHUNK]]) {
        let mut views = [View::of::<A>(&[]); GROUP];
        for ((view, buffer), source) in views.iter_mut().zip(converted).zip(group) {
            let buffer = &mut buffer[..chunk.len()];
            A::read(self.level, source.slice(chunk.clone()), buffer);
            *view = View::of(buffer);
        }
        join_views(self.level, &views[..group.len()], &(0..chunk.len()), out, identity::<A>, self.join);
    }
}
