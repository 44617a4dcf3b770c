//! Passes whose elements are read, computed and written in registers: a loop compiled for each type of the buffers, so
//! that a narrow type costs no pass of its own. What is computed is a function of single elements, which gets the same bits
//! in a vector and behind its end.
//!
//! Loops are written as loops: a closure that an iterator calls may be compiled for the portable instructions and stay
//! apart, and then nothing is vectorised. Functions given to these passes are `#[inline(always)]` for the same reason, and
//! `move`: each thread has its own copy of what they hold, since a constant behind a reference might be changed by a store
//! for all that the compiler knows, and is then loaded for every element.

#![allow(unsafe_code, reason = "threads write parts of one buffer that do not overlap")]

use super::Cpu;
use super::stream::{GRAIN, Shared, elements};
use crate::round::Float32;
use crate::{View, ViewMut};

/// `$body` with `$t` standing for the type of the elements, which is one of those that widen to f32.
macro_rules! typed {
    ($dtype:expr, $t:ident => $body:expr) => {
        match $dtype {
            $crate::DType::F32 => {
                type $t = f32;
                $body
            }
            $crate::DType::Bf16 => {
                type $t = half::bf16;
                $body
            }
            $crate::DType::F16 => {
                type $t = half::f16;
                $body
            }
            _ => unreachable!("refused before any kernel starts"),
        }
    };
}
pub(super) use typed;

impl Cpu {
    /// `out = f(a)` over the first `len` elements of buffers of one type.
    #[inline]
    pub(super) fn map1(&self, len: usize, a: View, out: ViewMut, f: impl Fn(bool, f32) -> f32 + Sync + Copy) {
        typed!(out.dtype(), T => {
            let (a, out) = (elements::<T>(&a), Shared::new(out));
            self.pool.split(len, GRAIN, |_, range| {
                // SAFETY: ranges of all threads are disjoint.
                let (a, out) = (&a[range.clone()], unsafe { out.elements::<T>(range) });
                self.level.run(
                    #[inline(always)]
                    |fused| {
                        let own = f;
                        for (out, a) in out.iter_mut().zip(a) {
                            *out = T::narrow(own(fused, a.widen()));
                        }
                    },
                );
            });
        })
    }

    /// `out = f(a, b)`.
    #[inline]
    pub(super) fn map2(
        &self,
        len: usize,
        [a, b]: [View; 2],
        out: ViewMut,
        f: impl Fn(bool, f32, f32) -> f32 + Sync + Copy,
    ) {
        typed!(out.dtype(), T => {
            let (a, b, out) = (elements::<T>(&a), elements::<T>(&b), Shared::new(out));
            self.pool.split(len, GRAIN, |_, range| {
                // SAFETY: ranges of all threads are disjoint.
                let (a, b, out) = (&a[range.clone()], &b[range.clone()], unsafe { out.elements::<T>(range) });
                self.level.run(
                    #[inline(always)]
                    |fused| {
                        let own = f;
                        for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
                            *out = T::narrow(own(fused, a.widen(), b.widen()));
                        }
                    },
                );
            });
        })
    }

    /// `(first, second) = f(a, b, c)`.
    #[inline]
    pub(super) fn map3(
        &self,
        len: usize,
        [a, b, c]: [View; 3],
        [first, second]: [ViewMut; 2],
        f: impl Fn(bool, [f32; 3]) -> [f32; 2] + Sync + Copy,
    ) {
        typed!(first.dtype(), T => {
            let (a, b, c) = (elements::<T>(&a), elements::<T>(&b), elements::<T>(&c));
            let (first, second) = (Shared::new(first), Shared::new(second));
            self.pool.split(len, GRAIN, |_, range| {
                let (a, b, c) = (&a[range.clone()], &b[range.clone()], &c[range.clone()]);
                // SAFETY: ranges of all threads are disjoint.
                let (first, second) = unsafe { (first.elements::<T>(range.clone()), second.elements::<T>(range)) };
                self.level.run(
                    #[inline(always)]
                    |fused| {
                        let own = f;
                        for ((((first, second), a), b), c) in first.iter_mut().zip(second).zip(a).zip(b).zip(c) {
                            let made = own(fused, [a.widen(), b.widen(), c.widen()]);
                            (*first, *second) = (T::narrow(made[0]), T::narrow(made[1]));
                        }
                    },
                );
            });
        })
    }

    /// `dst = f(dst)`, all of it.
    #[inline]
    pub(super) fn update(&self, dst: ViewMut, f: impl Fn(f32) -> f32 + Sync + Copy) {
        let len = dst.len();
        typed!(dst.dtype(), T => {
            let dst = Shared::new(dst);
            self.pool.split(len, GRAIN, |_, range| {
                // SAFETY: ranges of all threads are disjoint.
                let dst = unsafe { dst.elements::<T>(range) };
                self.level.run(
                    #[inline(always)]
                    |_| {
                        let own = f;
                        for dst in dst {
                            *dst = T::narrow(own(dst.widen()));
                        }
                    },
                );
            });
        })
    }

    /// `dst = f(dst, src)`, all of it; the types may differ.
    #[inline]
    pub(super) fn update_from(&self, src: View, dst: ViewMut, f: impl Fn(bool, f32, f32) -> f32 + Sync + Copy) {
        let len = dst.len();
        typed!(src.dtype(), S => typed!(dst.dtype(), T => {
            let (src, dst) = (elements::<S>(&src), Shared::new(dst));
            self.pool.split(len, GRAIN, |_, range| {
                // SAFETY: ranges of all threads are disjoint.
                let (src, dst) = (&src[range.clone()], unsafe { dst.elements::<T>(range) });
                self.level.run(
                    #[inline(always)]
                    |fused| {
                        let own = f;
                        for (dst, src) in dst.iter_mut().zip(src) {
                            *dst = T::narrow(own(fused, dst.widen(), src.widen()));
                        }
                    },
                );
            });
        }))
    }
}
