//! Vectors of sixteen f32, for the passes between the products of attention: what they leave goes straight into tiles.

#![allow(unsafe_code, reason = "vector instructions that the CPU was asked for, by address")]
#![allow(clippy::needless_range_loop, reason = "vectors in registers are taken by number, several arrays at once")]

#[cfg(target_arch = "x86_64")]
use crate::cpu::level::Level;
use crate::cpu::matmul::path::Path;
use crate::cpu::matmul::tiles::{COLS, Element, ROWS, WORDS};

pub(super) const LANES: usize = 16;

/// Sixteen f32. Methods are for the inside of [`run`], which compiles them for the instructions they need.
pub(super) trait Lanes: Copy {
    fn splat(x: f32) -> Self;
    /// # Safety
    /// Sixteen elements are there.
    unsafe fn load(from: *const f32) -> Self;
    /// # Safety
    /// There is room for sixteen elements.
    unsafe fn store(self, to: *mut f32);
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    /// `self * b + c`.
    fn fma(self, b: Self, c: Self) -> Self;
    /// The larger; `other` where either is NaN.
    fn max(self, other: Self) -> Self;
    /// Its bits, 23 to the left: a small integer in the low bits becomes an exponent.
    fn exponent(self) -> Self;
    /// Itself where `first <= key <= last`, else zero.
    ///
    /// # Safety
    /// Sixteen elements are at both.
    unsafe fn within(self, key: i32, first: *const i32, last: *const i32) -> Self;
    fn largest(self) -> f32;
    fn total(self) -> f32;
    /// Rounds 32 terms to bf16 and writes them side by side.
    ///
    /// # Safety
    /// There is room for 16 pairs.
    unsafe fn pairs(low: Self, high: Self, to: *mut u32);
    /// Rounds to bf16 and writes pairs of one element of each.
    ///
    /// # Safety
    /// There is room for 16 pairs.
    unsafe fn weave(even: Self, odd: Self, to: *mut u32);
}

/// `2^x` for x up to 127, within 2^-22 of the value: zero below -126.5, of a NaN a NaN.
///
/// `x = n + r` with an integer n, a polynomial of degree 5 in r for `|r| <= 1/2` (the best in the relative sense, error
/// 9e-8), and a factor `2^n` made of bits.
#[inline(always)]
#[allow(clippy::approx_constant, reason = "a fitted coefficient that happens to lie near ln 2")]
pub(super) fn exp2<L: Lanes>(x: L) -> L {
    // Adding 1.5 * 2^23 leaves the integer nearest to the addend in the low bits; 127 is the bias of exponents.
    let magic = L::splat(12_582_912.0 + 127.0);
    let x = L::splat(-127.0).max(x);
    let shifted = x.add(magic);
    let r = x.sub(shifted.sub(magic));
    let mut p = L::splat(0.001_326_472_7);
    for c in [0.009_671_513, 0.055_507_336, 0.240_222_42, 0.693_147, 1.0] {
        p = p.fma(r, L::splat(c));
    }
    p.mul(shifted.exponent())
}

/// How what a pass leaves lies in tiles: 32 terms of a row of A, and two rows of B.
pub(super) trait Terms {
    /// f32 elements from one row of a tile of A to the next.
    const LINE: usize;
    /// f32 elements from 32 terms of a panel of A to the next 32.
    const GROUP: usize;

    /// Writes 32 terms of a row.
    ///
    /// # Safety
    /// `to` is where the row begins in these terms' tiles.
    unsafe fn row<L: Lanes>(low: L, high: L, to: *mut f32);

    /// Writes 16 columns of the rows `term` and `term + 1` of B; `term` is even.
    ///
    /// # Safety
    /// `to` is where these columns begin in the panel of B.
    unsafe fn columns<L: Lanes>(even: L, odd: L, term: usize, to: *mut f32);
}

/// Pairs of bf16 on both sides.
pub(super) struct Pairs;

impl Terms for Pairs {
    const LINE: usize = WORDS;
    const GROUP: usize = ROWS * WORDS;

    #[inline(always)]
    unsafe fn row<L: Lanes>(low: L, high: L, to: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { L::pairs(low, high, to.cast()) }
    }

    #[inline(always)]
    unsafe fn columns<L: Lanes>(even: L, odd: L, term: usize, to: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { L::weave(even, odd, to.add(term / 2 * COLS).cast()) }
    }
}

/// A of bf16 made f32, B of pairs.
pub(super) struct Wide;

impl Terms for Wide {
    const LINE: usize = 2 * WORDS;
    const GROUP: usize = ROWS * 2 * WORDS;

    #[inline(always)]
    unsafe fn row<L: Lanes>(low: L, high: L, to: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe {
            low.store(to);
            high.store(to.add(LANES));
        }
    }

    #[inline(always)]
    unsafe fn columns<L: Lanes>(even: L, odd: L, term: usize, to: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { Pairs::columns(even, odd, term, to) }
    }
}

/// f32 on both sides: 32 terms are two tiles.
pub(super) struct Singles;

impl Terms for Singles {
    const LINE: usize = WORDS;
    const GROUP: usize = 2 * ROWS * WORDS;

    #[inline(always)]
    unsafe fn row<L: Lanes>(low: L, high: L, to: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe {
            low.store(to);
            high.store(to.add(ROWS * WORDS));
        }
    }

    #[inline(always)]
    unsafe fn columns<L: Lanes>(even: L, odd: L, term: usize, to: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe {
            even.store(to.add(term * COLS));
            odd.store(to.add((term + 1) * COLS));
        }
    }
}

/// A pass that is written for any vectors and any form of its results.
pub(super) trait Pass {
    /// # Safety
    /// As the pass says.
    unsafe fn run<L: Lanes, T: Terms>(self);
}

/// Runs a pass with a path's instructions.
///
/// # Safety
/// As the pass says.
pub(super) unsafe fn run(path: Path, element: Element, pass: impl Pass) {
    /// With the form that bf16 has on this path, or that of f32.
    #[inline(always)]
    unsafe fn with<L: Lanes, T: Terms>(element: Element, pass: impl Pass) {
        // SAFETY: the caller's promise.
        unsafe {
            match element {
                Element::Pair => pass.run::<L, T>(),
                Element::Single => pass.run::<L, Singles>(),
            }
        }
    }
    // SAFETY: the caller's promise; a path is only there where the CPU has its instructions.
    unsafe {
        match path {
            Path::Portable => {
                with::<Plain<{ cfg!(any(target_feature = "fma", target_arch = "aarch64")) }>, Wide>(element, pass);
            }
            #[cfg(target_arch = "x86_64")]
            Path::Avx2 => Level::Avx2.run(
                #[inline(always)]
                |_| with::<Plain<true>, Wide>(element, pass),
            ),
            #[cfg(target_arch = "x86_64")]
            Path::Avx512 => Level::Avx512.run(
                #[inline(always)]
                |_| with::<machine::Register<false>, Wide>(element, pass),
            ),
            #[cfg(target_arch = "x86_64")]
            Path::Amx if !std::arch::is_x86_feature_detected!("avx512bf16") => Level::Avx512.run(
                #[inline(always)]
                |_| with::<machine::Register<false>, Pairs>(element, pass),
            ),
            #[cfg(target_arch = "x86_64")]
            Path::Avx512Bf16 | Path::Amx => machine::avx512_bf16(
                #[inline(always)]
                || with::<machine::Register<true>, Pairs>(element, pass),
            ),
        }
    }
}

/// The bits of `x` rounded to bf16, in the upper half; what is below is not zero.
#[inline(always)]
fn rounded(x: f32) -> u32 {
    let bits = x.to_bits();
    // Half a unit, to even; a NaN stays one.
    let up = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    if x.is_nan() { bits | 0x0040_0000 } else { up }
}

/// In plain loops.
#[derive(Clone, Copy)]
pub(super) struct Plain<const FUSED: bool>([f32; LANES]);

impl<const FUSED: bool> Plain<FUSED> {
    #[inline(always)]
    fn zip(self, other: Self, each: impl Fn(f32, f32) -> f32) -> Self {
        let mut all = self.0;
        for i in 0..LANES {
            all[i] = each(self.0[i], other.0[i]);
        }
        Plain(all)
    }

    /// Merges pairwise.
    #[inline(always)]
    fn merge(mut self, each: impl Fn(f32, f32) -> f32) -> f32 {
        for width in [8, 4, 2, 1] {
            for i in 0..width {
                self.0[i] = each(self.0[i], self.0[i + width]);
            }
        }
        self.0[0]
    }
}

impl<const FUSED: bool> Lanes for Plain<FUSED> {
    #[inline(always)]
    fn splat(x: f32) -> Self {
        Plain([x; LANES])
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller's promise.
        Plain(unsafe { from.cast::<[f32; LANES]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { to.cast::<[f32; LANES]>().write_unaligned(self.0) }
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self.zip(other, |a, b| a + b)
    }

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        self.zip(other, |a, b| a - b)
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        self.zip(other, |a, b| a * b)
    }

    #[inline(always)]
    fn fma(self, b: Self, c: Self) -> Self {
        let mut all = self.0;
        for i in 0..LANES {
            all[i] = crate::cpu::level::fma(FUSED, self.0[i], b.0[i], c.0[i]);
        }
        Plain(all)
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        self.zip(other, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn exponent(self) -> Self {
        self.zip(self, |a, _| f32::from_bits(a.to_bits() << 23))
    }

    #[inline(always)]
    unsafe fn within(self, key: i32, first: *const i32, last: *const i32) -> Self {
        let mut all = self.0;
        // SAFETY: the caller's promise.
        let (first, last) =
            unsafe { (first.cast::<[i32; LANES]>().read_unaligned(), last.cast::<[i32; LANES]>().read_unaligned()) };
        for i in 0..LANES {
            all[i] = if first[i] <= key && key <= last[i] { all[i] } else { 0.0 };
        }
        Plain(all)
    }

    #[inline(always)]
    fn largest(self) -> f32 {
        self.merge(|a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn total(self) -> f32 {
        self.merge(|a, b| a + b)
    }

    #[inline(always)]
    unsafe fn pairs(low: Self, high: Self, to: *mut u32) {
        let mut all = [0u16; 2 * LANES];
        for i in 0..LANES {
            all[i] = (rounded(low.0[i]) >> 16) as u16;
            all[LANES + i] = (rounded(high.0[i]) >> 16) as u16;
        }
        // SAFETY: the caller's promise.
        unsafe { to.cast::<[u16; 2 * LANES]>().write_unaligned(all) }
    }

    #[inline(always)]
    unsafe fn weave(even: Self, odd: Self, to: *mut u32) {
        let mut all = [0u32; LANES];
        for i in 0..LANES {
            all[i] = rounded(even.0[i]) >> 16 | rounded(odd.0[i]) & 0xffff_0000;
        }
        // SAFETY: the caller's promise.
        unsafe { to.cast::<[u32; LANES]>().write_unaligned(all) }
    }
}

#[cfg(target_arch = "x86_64")]
mod machine {
    use super::Lanes;
    use std::arch::x86_64::*;

    #[target_feature(enable = "avx512bf16,avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,bmi2")]
    pub(super) fn avx512_bf16<R>(body: impl FnOnce() -> R) -> R {
        body()
    }

    /// A register. `BF16`: the CPU rounds to bf16 by itself. Only [`super::run`] names this type, where the features are.
    #[derive(Clone, Copy)]
    pub(in crate::cpu::attention) struct Register<const BF16: bool>(__m512);

    /// As [`super::rounded`].
    #[inline(always)]
    unsafe fn rounded(x: __m512) -> __m512i {
        // SAFETY: the caller runs where AVX-512 is.
        unsafe {
            let bits = _mm512_castps_si512(x);
            let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
            let up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
            let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x);
            _mm512_mask_or_epi32(up, nan, bits, _mm512_set1_epi32(0x0040_0000))
        }
    }

    // SAFETY of every block below: the type is only used by code that `super::run` compiled for these features; addresses
    // are the caller's promise.
    #[allow(clippy::undocumented_unsafe_blocks, reason = "one reason for all, above")]
    impl<const BF16: bool> Lanes for Register<BF16> {
        #[inline(always)]
        fn splat(x: f32) -> Self {
            Register(unsafe { _mm512_set1_ps(x) })
        }

        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self {
            Register(unsafe { _mm512_loadu_ps(from) })
        }

        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            unsafe { _mm512_storeu_ps(to, self.0) }
        }

        #[inline(always)]
        fn add(self, other: Self) -> Self {
            Register(unsafe { _mm512_add_ps(self.0, other.0) })
        }

        #[inline(always)]
        fn sub(self, other: Self) -> Self {
            Register(unsafe { _mm512_sub_ps(self.0, other.0) })
        }

        #[inline(always)]
        fn mul(self, other: Self) -> Self {
            Register(unsafe { _mm512_mul_ps(self.0, other.0) })
        }

        #[inline(always)]
        fn fma(self, b: Self, c: Self) -> Self {
            Register(unsafe { _mm512_fmadd_ps(self.0, b.0, c.0) })
        }

        #[inline(always)]
        fn max(self, other: Self) -> Self {
            Register(unsafe { _mm512_max_ps(self.0, other.0) })
        }

        #[inline(always)]
        fn exponent(self) -> Self {
            Register(unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<23>(_mm512_castps_si512(self.0))) })
        }

        #[inline(always)]
        unsafe fn within(self, key: i32, first: *const i32, last: *const i32) -> Self {
            unsafe {
                let key = _mm512_set1_epi32(key);
                let after = _mm512_cmple_epi32_mask(_mm512_loadu_si512(first.cast()), key);
                let seen = _mm512_mask_cmple_epi32_mask(after, key, _mm512_loadu_si512(last.cast()));
                Register(_mm512_maskz_mov_ps(seen, self.0))
            }
        }

        #[inline(always)]
        fn largest(self) -> f32 {
            unsafe { _mm512_reduce_max_ps(self.0) }
        }

        #[inline(always)]
        fn total(self) -> f32 {
            unsafe { _mm512_reduce_add_ps(self.0) }
        }

        #[inline(always)]
        unsafe fn pairs(low: Self, high: Self, to: *mut u32) {
            unsafe {
                if BF16 {
                    let all = _mm512_cvtne2ps_pbh(high.0, low.0);
                    _mm512_storeu_si512(to.cast(), std::mem::transmute::<__m512bh, __m512i>(all));
                } else {
                    for (i, half) in [low.0, high.0].into_iter().enumerate() {
                        let half = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(rounded(half)));
                        _mm256_storeu_si256(to.add(8 * i).cast(), half);
                    }
                }
            }
        }

        #[inline(always)]
        unsafe fn weave(even: Self, odd: Self, to: *mut u32) {
            unsafe {
                let all = if BF16 {
                    let all = std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(odd.0, even.0));
                    // Pair i is words i and 16 + i.
                    const ORDER: [u16; 32] = {
                        let mut order = [0; 32];
                        let mut i = 0;
                        while i < 16 {
                            order[2 * i] = i as u16;
                            order[2 * i + 1] = 16 + i as u16;
                            i += 1;
                        }
                        order
                    };
                    _mm512_permutexvar_epi16(_mm512_loadu_si512(ORDER.as_ptr().cast()), all)
                } else {
                    let upper = _mm512_and_si512(rounded(odd.0), _mm512_set1_epi32(0xffff_0000u32 as i32));
                    _mm512_or_si512(_mm512_srli_epi32::<16>(rounded(even.0)), upper)
                };
                _mm512_storeu_si512(to.cast(), all);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every operation on the inputs, by one path's vectors.
    struct All<'a> {
        inputs: &'a [f32],
        powers: &'a mut [f32],
        pairs: &'a mut [u32],
        woven: &'a mut [u32],
    }

    impl Pass for All<'_> {
        unsafe fn run<L: Lanes, T: Terms>(self) {
            for (i, x) in self.inputs.chunks_exact(2 * LANES).enumerate() {
                let at = 2 * LANES * i;
                // SAFETY: all slices are as long as the inputs.
                unsafe {
                    let (low, high) = (L::load(x.as_ptr()), L::load(x.as_ptr().add(LANES)));
                    exp2(low).store(self.powers.as_mut_ptr().add(at));
                    exp2(high).store(self.powers.as_mut_ptr().add(at + LANES));
                    L::pairs(low, high, self.pairs.as_mut_ptr().add(at / 2));
                    L::weave(low, high, self.woven.as_mut_ptr().add(at / 2));
                }
                // SAFETY: as above.
                let x = unsafe { L::load(x.as_ptr()) }.max(L::splat(-1e3));
                let (total, largest) = (x.total(), x.largest());
                let mut all = [0.0; LANES];
                // SAFETY: sixteen elements.
                unsafe { x.store(all.as_mut_ptr()) };
                if all.iter().all(|x| x.abs() <= 1e3) {
                    let exact: f64 = all.iter().map(|x| f64::from(*x)).sum();
                    assert!((f64::from(total) - exact).abs() <= 16.0 * 1e3 * 1e-6, "{all:?}");
                    assert_eq!(largest, all.iter().copied().fold(f32::NEG_INFINITY, f32::max));
                }
            }
        }
    }

    fn run_all(path: Path, inputs: &[f32]) -> (Vec<f32>, Vec<u32>, Vec<u32>) {
        let n = inputs.len();
        let (mut powers, mut pairs, mut woven) = (vec![0.0; n], vec![0; n / 2], vec![0; n / 2]);
        let all = All { inputs, powers: &mut powers, pairs: &mut pairs, woven: &mut woven };
        // SAFETY: the pass keeps to its slices.
        unsafe { run(path, Element::Pair, all) };
        (powers, pairs, woven)
    }

    #[test]
    fn powers_of_two_are_close_and_end_well() {
        let inputs: Vec<f32> = (0..1 << 16).map(|i| -126.0 + 0.003_845_7 * i as f32).filter(|x| *x < 126.0).collect();
        let inputs = &inputs[..inputs.len() / 32 * 32];
        let ends = [-126.6, -1e30, f32::NEG_INFINITY, f32::NAN, -0.0, 0.0, 1.0, -1.0];
        let padded: Vec<f32> = ends.into_iter().chain([0.0; 24]).collect();
        for path in Path::available() {
            let (powers, ..) = run_all(path, inputs);
            for (x, power) in inputs.iter().zip(powers) {
                let exact = f64::from(*x).exp2();
                assert!((f64::from(power) - exact).abs() <= 2f64.powi(-22) * exact, "{path:?}: 2^{x} is not {power}");
            }
            let (powers, ..) = run_all(path, &padded);
            assert_eq!(powers[..3], [0.0; 3], "{path:?}");
            assert!(powers[3].is_nan(), "{path:?}");
            assert_eq!(powers[4..8], [1.0, 1.0, 2.0, 0.5], "{path:?}");
        }
    }

    #[test]
    fn rounding_is_to_the_nearest_even() {
        let draws = (0..4096u32).map(|i| f32::from_bits(i.wrapping_mul(0x9e37_79b9)));
        // The machine's own conversion takes subnormals for zero.
        let inputs: Vec<f32> = draws.map(|x| if x.is_subnormal() { 1.0 + f32::EPSILON } else { x }).collect();
        let want = |x: f32| half::bf16::from_f32(x);
        let same = |bits: u32, x: f32, path| {
            let got = half::bf16::from_bits(bits as u16);
            assert!(got == want(x) || got.is_nan() && x.is_nan(), "{path:?}: {x:e} is not {got:e}");
        };
        for path in Path::available() {
            let (_, pairs, woven) = run_all(path, &inputs);
            for (i, x) in inputs.chunks_exact(32).enumerate() {
                for j in 0..16 {
                    let (pair, weave) = (pairs[16 * i + j], woven[16 * i + j]);
                    same(pair & 0xffff, x[2 * j], path);
                    same(pair >> 16, x[2 * j + 1], path);
                    same(weave & 0xffff, x[j], path);
                    same(weave >> 16, x[16 + j], path);
                }
            }
        }
    }
}
