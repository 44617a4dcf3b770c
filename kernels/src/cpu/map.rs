//! Passes whose elements are read, computed and written in registers: a loop compiled for each type of the buffers, so
//! that a narrow type costs no pass of its own. What is computed is a function of single elements, which gets the same bits
//! in a vector and behind its end.
//!
//! Loops are written as loops: a closure that an iterator calls may be compiled for the portable instructions and stay
//! apart, and then nothing is vectorised. Functions given to these passes are `#[inline(always)]` for the same reason, and
//! `move`: each thread has its own copy of what they hold, since a constant behind a reference might be changed by a store
//! for all that the compiler knows, and is then loaded for every element.

#![allow(unsafe_code, reason = "threads write parts of one buffer that do not overlap")]
#![allow(clippy::needless_range_loop, reason = "an element of several buffers is taken by number")]

use super::Cpu;
use super::stream::{GRAIN, Shared, elements};
use crate::numerics::round::Float32;
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
    /// `outs = f(ins)` over the first `len` elements of buffers of one type.
    #[inline]
    pub(super) fn map<const I: usize, const O: usize>(
        &self,
        len: usize,
        ins: [View; I],
        outs: [ViewMut; O],
        f: impl Fn(bool, [f32; I]) -> [f32; O] + Sync + Copy,
    ) {
        typed!(outs[0].dtype(), T => {
            let (ins, outs) = (ins.each_ref().map(elements::<T>), outs.map(Shared::new));
            self.pool.split(len, GRAIN, |_, range| {
                let ins = ins.map(|all| &all[range.clone()]);
                // SAFETY: ranges of all threads are disjoint.
                let outs = outs.each_ref().map(|all| unsafe { all.elements::<T>(range.clone()) });
                self.level.run(
                    #[inline(always)]
                    |fused| {
                        let own = f;
                        // Cut to one length where the loop is compiled, which needs no checks then.
                        let (ins, outs) = (ins.map(|all| &all[..range.len()]), outs.map(|all| &mut all[..range.len()]));
                        for at in 0..range.len() {
                            let mut values = [0.0; I];
                            for i in 0..I {
                                values[i] = ins[i][at].widen();
                            }
                            let made = own(fused, values);
                            for i in 0..O {
                                outs[i][at] = T::narrow(made[i]);
                            }
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
