//! Packing into tiles. A tile is 16 rows (of A) or columns (of B) by 32 terms of the sum, as pairs: a `u32` holds two
//! neighbouring terms, the first in its low half.
//!
//! A panel of A is 16 rows: tile after tile along the sum, in one of three [`Form`]s. A panel of B is 32 columns: `[pairs][32 columns]`. What a shape does not fill is zero.

use crate::cpu::level::Level;

/// Rows of a panel of A.
pub(crate) const ROWS: usize = 16;
/// Columns of a panel of B.
pub(crate) const COLS: usize = 32;
/// Pairs of a tile.
pub(crate) const PAIRS: usize = 16;
/// Terms of a tile.
pub(crate) const TERMS: usize = 2 * PAIRS;

/// One operand of bf16 in memory: a matrix of `outer` (rows of A, columns of B) by terms.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source {
    /// Its first element.
    pub ptr: *const u16,
    /// Elements from one outer index to the next if `terms_adjoin`, else from one term to the next.
    pub stride: usize,
    /// Whether the terms of an outer index lie side by side; else the outer indices of a term do.
    pub terms_adjoin: bool,
}

// SAFETY: an address and strides; whoever reads through it vouches for the memory.
unsafe impl Sync for Source {}
// SAFETY: as above.
unsafe impl Send for Source {}

impl Source {
    /// The matrix from `outer` and `term` on.
    pub fn at(self, outer: usize, term: usize) -> Source {
        let offset = if self.terms_adjoin { outer * self.stride + term } else { term * self.stride + outer };
        Source { ptr: self.ptr.wrapping_add(offset), ..self }
    }

    /// Writes a tile of `outers` by `terms`, at most [16, 32], to `to[outer * stride + pair]`.
    ///
    /// # Safety
    /// The source must hold so much, and `to` 16 rows of `stride`.
    #[inline(always)]
    unsafe fn tile(self, level: Level, outers: usize, terms: usize, to: *mut u32, stride: usize) {
        // SAFETY: the caller's promise; the transposed copy is a whole tile.
        unsafe {
            if self.terms_adjoin {
                self.straight(outers, terms, to, stride);
            } else {
                let mut pairs = [0u32; ROWS * PAIRS];
                self.woven(level, outers, terms, pairs.as_mut_ptr(), ROWS);
                transpose(level, pairs.as_ptr(), to, stride);
            }
        }
    }

    /// As [`Source::tile`] to `to[pair * stride + outer]`.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    unsafe fn turned(self, level: Level, outers: usize, terms: usize, to: *mut u32, stride: usize) {
        // SAFETY: as above.
        unsafe {
            if self.terms_adjoin {
                let mut rows = [0u32; ROWS * PAIRS];
                self.straight(outers, terms, rows.as_mut_ptr(), PAIRS);
                transpose(level, rows.as_ptr(), to, stride);
            } else {
                self.woven(level, outers, terms, to, stride);
            }
        }
    }

    /// Where terms adjoin: copies rows.
    #[inline(always)]
    unsafe fn straight(self, outers: usize, terms: usize, to: *mut u32, stride: usize) {
        for outer in 0..ROWS {
            // SAFETY: the caller's promise: rows below `outers` have `terms` elements.
            unsafe {
                let to = to.add(outer * stride).cast::<[u16; TERMS]>();
                let row = if outer < outers && terms == TERMS {
                    self.ptr.add(outer * self.stride).cast::<[u16; TERMS]>().read_unaligned()
                } else {
                    let mut row = [0; TERMS];
                    if outer < outers {
                        let from = self.ptr.add(outer * self.stride);
                        (0..terms).for_each(|i| row[i] = from.add(i).read_unaligned());
                    }
                    row
                };
                to.write_unaligned(row);
            }
        }
    }

    /// Where outer indices adjoin: weaves two terms into pairs.
    #[inline(always)]
    unsafe fn woven(self, level: Level, outers: usize, terms: usize, to: *mut u32, stride: usize) {
        #[cfg(target_arch = "x86_64")]
        if level == Level::Avx512 && outers == ROWS && terms == TERMS {
            // SAFETY: a whole tile, and the CPU has AVX-512.
            return unsafe { machine::weave(self.ptr, self.stride, to, stride) };
        }
        let _ = level;
        for pair in 0..PAIRS {
            // SAFETY: the caller's promise: terms below `terms` have `outers` elements.
            unsafe {
                let line = |term: usize| {
                    let mut line = [0u16; ROWS];
                    if term < terms {
                        let from = self.ptr.add(term * self.stride);
                        if outers == ROWS {
                            line = from.cast::<[u16; ROWS]>().read_unaligned();
                        } else {
                            (0..outers).for_each(|i| line[i] = from.add(i).read_unaligned());
                        }
                    }
                    line
                };
                let (low, high) = (line(2 * pair), line(2 * pair + 1));
                let mut pairs = [0u32; ROWS];
                for i in 0..ROWS {
                    pairs[i] = u32::from(low[i]) | u32::from(high[i]) << 16;
                }
                to.add(pair * stride).cast::<[u32; ROWS]>().write_unaligned(pairs);
            }
        }
    }
}

/// Tiles that `terms` take.
pub(crate) fn tiles(terms: usize) -> usize {
    terms.div_ceil(TERMS)
}

/// How a tile of A is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// `[16 rows][16 pairs]`.
    Rows,
    /// `[16 pairs][16 rows]`, as a matrix whose rows adjoin comes.
    Turned,
    /// `[16 rows][32 terms]` of f32.
    Wide,
}

/// Packs a tile of A: `rows` of at most 16 by `terms` of at most 32 from `source` on.
///
/// # Safety
/// The source must hold so much; `to` has room for 16 x 32 elements of bf16, or of f32 for [`Form::Wide`].
pub(crate) unsafe fn pack_rows(level: Level, form: Form, source: Source, rows: usize, terms: usize, to: *mut u32) {
    level.run(
        #[inline(always)]
        |_| {
            // SAFETY: the caller's promise.
            unsafe {
                match form {
                    Form::Rows => source.tile(level, rows, terms, to, PAIRS),
                    Form::Turned => source.turned(level, rows, terms, to, ROWS),
                    Form::Wide => {
                        let mut pairs = [0u32; ROWS * PAIRS];
                        source.tile(level, rows, terms, pairs.as_mut_ptr(), PAIRS);
                        for (i, pair) in pairs.iter().enumerate() {
                            to.add(2 * i).write(pair << 16);
                            to.add(2 * i + 1).write(pair & 0xffff_0000);
                        }
                    }
                }
            }
        },
    );
}

/// Packs a tile of B: `cols` of at most 32 by `terms` of at most 32 from `source` on.
///
/// # Safety
/// The source must hold so much; `to` has room for 16 x 32 pairs.
pub(crate) unsafe fn pack_cols(level: Level, source: Source, cols: usize, terms: usize, to: *mut u32) {
    level.run(
        #[inline(always)]
        |_| {
            for first in [0, ROWS] {
                // SAFETY: the caller's promise; a half that no column falls into reads nothing.
                unsafe {
                    let outers = cols.saturating_sub(first).min(ROWS);
                    source.at(first, 0).turned(level, outers, terms, to.add(first), COLS);
                }
            }
        },
    );
}

/// `to[j * stride + i] = from[i * 16 + j]` for 16 x 16.
///
/// # Safety
/// `from` holds 256 elements and `to` 16 rows of `stride`; both are apart.
#[inline(always)]
pub(crate) unsafe fn transpose(level: Level, from: *const u32, to: *mut u32, stride: usize) {
    // SAFETY: the caller's promise, and the level says that the CPU has AVX-512.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        if level == Level::Avx512 {
            return machine::transpose(from, to, stride);
        }
        let _ = level;
        for i in 0..ROWS {
            for j in 0..ROWS {
                to.add(j * stride + i).write(from.add(i * ROWS + j).read());
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod machine {
    use std::arch::x86_64::*;

    /// A tile of pairs out of 32 lines of 16 elements.
    ///
    /// # Safety
    /// `from` has these lines, `stride` elements apart, `to` 16 rows of `to_stride`, and the CPU has AVX-512.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,bmi2")]
    pub(super) unsafe fn weave(from: *const u16, stride: usize, to: *mut u32, to_stride: usize) {
        for pair in 0..super::PAIRS {
            // SAFETY: the caller's promise.
            unsafe {
                let line = |term: usize| _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.add(term * stride).cast()));
                let pairs = _mm512_or_si512(line(2 * pair), _mm512_slli_epi32::<16>(line(2 * pair + 1)));
                _mm512_storeu_si512(to.add(pair * to_stride).cast(), pairs);
            }
        }
    }

    /// Four rounds, each swapping blocks of half the size: pairs of 32 bits, of 64, of 128, and of 256.
    ///
    /// # Safety
    /// As [`super::transpose`], and the CPU has AVX-512 F.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,bmi2")]
    pub(super) unsafe fn transpose(from: *const u32, to: *mut u32, stride: usize) {
        // SAFETY: 16 rows of 16 are there to read, and rows of `stride` to write.
        unsafe {
            let mut r: [__m512i; 16] = std::array::from_fn(|i| _mm512_loadu_si512(from.add(16 * i).cast()));
            let mut t = r;
            for i in (0..16).step_by(2) {
                t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
                t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
            }
            // r[4g + c]: column c of every group of four, of rows 4g..4g+4.
            for g in (0..16).step_by(4) {
                r[g] = _mm512_unpacklo_epi64(t[g], t[g + 2]);
                r[g + 1] = _mm512_unpackhi_epi64(t[g], t[g + 2]);
                r[g + 2] = _mm512_unpacklo_epi64(t[g + 1], t[g + 3]);
                r[g + 3] = _mm512_unpackhi_epi64(t[g + 1], t[g + 3]);
            }
            for c in 0..4 {
                // Groups of columns 0 and 2, then 1 and 3, of rows 0..8 and 8..16.
                let even_top = _mm512_shuffle_i32x4::<0x88>(r[c], r[c + 4]);
                let odd_top = _mm512_shuffle_i32x4::<0xdd>(r[c], r[c + 4]);
                let even_low = _mm512_shuffle_i32x4::<0x88>(r[c + 8], r[c + 12]);
                let odd_low = _mm512_shuffle_i32x4::<0xdd>(r[c + 8], r[c + 12]);
                let rows = [
                    _mm512_shuffle_i32x4::<0x88>(even_top, even_low),
                    _mm512_shuffle_i32x4::<0x88>(odd_top, odd_low),
                    _mm512_shuffle_i32x4::<0xdd>(even_top, even_low),
                    _mm512_shuffle_i32x4::<0xdd>(odd_top, odd_low),
                ];
                for (group, row) in rows.into_iter().enumerate() {
                    _mm512_storeu_si512(to.add((4 * group + c) * stride).cast(), row);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn term(outer: usize, term: usize) -> u16 {
        (outer * 131 + term * 7 + 1) as u16
    }

    /// A matrix of `outers` x `terms`, stored either way with a stride larger than needed.
    fn stored(outers: usize, terms: usize, terms_adjoin: bool) -> (Vec<u16>, usize) {
        let (slow, fast) = if terms_adjoin { (outers, terms) } else { (terms, outers) };
        let stride = fast + 3;
        let mut all = vec![0xdead; slow * stride];
        for s in 0..slow {
            for f in 0..fast {
                all[s * stride + f] = if terms_adjoin { term(s, f) } else { term(f, s) };
            }
        }
        (all, stride)
    }

    #[test]
    fn panels_hold_every_element_and_zeros() {
        for level in Level::available() {
            for terms_adjoin in [true, false] {
                for (outers, terms) in [(16, 32), (16, 64), (1, 1), (5, 33), (16, 31), (13, 100), (7, 2)] {
                    let (all, stride) = stored(outers, terms, terms_adjoin);
                    let source = Source { ptr: all.as_ptr(), stride, terms_adjoin };
                    let count = tiles(terms);
                    let [mut a, mut turned, mut wide] = [256, 256, 512].map(|size| vec![9u32; count * size]);
                    for tile in 0..count {
                        let (source, terms) = (source.at(0, tile * 32), 32.min(terms - tile * 32));
                        let pack = |form, to: &mut [u32], size| {
                            let to = to[tile * size..][..size].as_mut_ptr();
                            // SAFETY: as large as stated.
                            unsafe { pack_rows(level, form, source, outers, terms, to) };
                        };
                        pack(Form::Rows, &mut a, 256);
                        pack(Form::Turned, &mut turned, 256);
                        pack(Form::Wide, &mut wide, 512);
                    }
                    let of = |outer: usize, t: usize| if outer < outers && t < terms { term(outer, t) } else { 0 };
                    for tile in 0..count {
                        for outer in 0..16 {
                            for pair in 0..16 {
                                let t = tile * 32 + 2 * pair;
                                let (low, high) = (u32::from(of(outer, t)), u32::from(of(outer, t + 1)));
                                assert_eq!(a[tile * 256 + outer * 16 + pair], low | high << 16);
                                assert_eq!(turned[tile * 256 + pair * 16 + outer], low | high << 16);
                                assert_eq!(wide[tile * 512 + outer * 32 + 2 * pair], low << 16);
                                assert_eq!(wide[tile * 512 + outer * 32 + 2 * pair + 1], high << 16);
                            }
                        }
                    }
                }
                for (outers, terms) in [(32, 32), (31, 65), (16, 5), (17, 64), (1, 1), (32, 200)] {
                    let (all, stride) = stored(outers, terms, terms_adjoin);
                    let source = Source { ptr: all.as_ptr(), stride, terms_adjoin };
                    let mut b = vec![9u32; tiles(terms) * 512];
                    for (tile, to) in b.chunks_exact_mut(512).enumerate() {
                        let (source, terms) = (source.at(0, tile * 32), 32.min(terms - tile * 32));
                        // SAFETY: as large as stated.
                        unsafe { pack_cols(level, source, outers, terms, to.as_mut_ptr()) };
                    }
                    let of = |outer: usize, t: usize| if outer < outers && t < terms { term(outer, t) } else { 0 };
                    for (i, pair) in b.iter().enumerate() {
                        let (p, outer) = (i / 32, i % 32);
                        assert_eq!(*pair, u32::from(of(outer, 2 * p)) | u32::from(of(outer, 2 * p + 1)) << 16);
                    }
                }
            }
        }
    }
}
