//! Packing into tiles. A tile is 16 rows (of A) or columns (of B) by 16 words along the sum. A word is a term of f32, or two
//! neighbouring terms of bf16, the first in its low half. What is stored in another type becomes f32.
//!
//! A panel of A is 16 rows: tile after tile along the sum, in one of three [`Form`]s. A panel of B is 32 columns:
//! `[words][32 columns]`. What a shape does not fill is zero.

#![allow(unsafe_code, reason = "matrices are packed by address")]

use crate::DType;
use crate::cpu::halves;
use crate::cpu::level::Level;
use crate::numerics::round::Float32;
use half::{bf16, f16};
use std::iter::StepBy;
use std::ops::Range;

/// Rows of a panel of A.
pub(crate) const ROWS: usize = 16;
/// Columns of a panel of B.
pub(crate) const COLS: usize = 32;
/// Words of a tile along the sum.
pub(crate) const WORDS: usize = 16;

/// What the words of tiles hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    /// bf16, two terms to a word.
    Pair,
    Single,
}

impl Element {
    /// Terms of a word.
    pub const fn terms(self) -> usize {
        match self {
            Element::Pair => 2,
            Element::Single => 1,
        }
    }

    /// Terms of a tile.
    pub const fn tile(self) -> usize {
        WORDS * self.terms()
    }

    /// Tiles that `terms` take.
    pub const fn tiles(self, terms: usize) -> usize {
        terms.div_ceil(self.tile())
    }
}

/// A run of tiles of neighbouring panels of A and B, and where their product goes.
#[derive(Clone, Copy)]
pub(crate) struct Block {
    /// The first tile of the first panel of A.
    pub a: *const u8,
    pub element: Element,
    /// How the tiles of A lie.
    pub form: Form,
    /// Bytes from one row of a tile of A to the next, where that is not turned: packed, or where the matrix itself lies
    /// right.
    pub a_row: usize,
    /// Bytes from one tile of A to the next along the sum.
    pub a_tile: usize,
    /// Bytes from one panel of A to the next.
    pub a_panel: usize,
    /// Panels of A.
    pub rows: usize,
    /// The first tile of the first panel of B.
    pub b: *const u32,
    /// Words from one panel of B to the next.
    pub b_panel: usize,
    /// Panels of B.
    pub cols: usize,
    /// Tiles along the sum.
    pub tiles: usize,
    pub c: *mut f32,
    /// Elements from one row of sums to the next.
    pub c_row: usize,
    /// Add to what is there.
    pub add: bool,
    /// Sums of earlier terms, which are added first, in rows of `kept_row`; null where there are none. Not for AMX.
    pub kept: *const f32,
    pub kept_row: usize,
}

/// One operand in memory: a matrix of `outer` (rows of A, columns of B) by terms.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source {
    pub ptr: *const u8,
    /// bf16, f16 or f32; only bf16 becomes pairs.
    pub stored: DType,
    pub element: Element,
    /// Elements from one outer index to the next if `terms_adjoin`, else from one term to the next.
    pub stride: usize,
    /// Whether the terms of an outer index lie side by side; else the outer indices of a term do.
    pub terms_adjoin: bool,
}

// SAFETY: an address and strides; whoever reads through it vouches for the memory.
unsafe impl Sync for Source {}

impl Source {
    /// The matrix from `outer` and `term` on.
    pub fn at(self, outer: usize, term: usize) -> Source {
        let offset = if self.terms_adjoin { outer * self.stride + term } else { term * self.stride + outer };
        Source { ptr: self.ptr.wrapping_add(offset * self.stored.size()), ..self }
    }

    /// Whether its elements become f32 on the way.
    #[inline(always)]
    pub fn widens(self) -> bool {
        self.element == Element::Single && self.stored != DType::F32
    }

    /// Calls `visit(panel, tile)` for all panels, given by their first rows or columns, and all tiles along the sum, in the
    /// order in which they lie in memory.
    pub fn along(self, panels: StepBy<Range<usize>>, tiles: Range<usize>, visit: impl Fn(usize, usize)) {
        match self.terms_adjoin {
            true => panels.for_each(|panel| tiles.clone().for_each(|tile| visit(panel, tile))),
            false => tiles.for_each(|tile| panels.clone().for_each(|panel| visit(panel, tile))),
        }
    }

    /// Writes a tile of `outers` by `terms`, at most all of one, to `to[outer * stride + word]`.
    ///
    /// # Safety
    /// The source must hold so much, and `to` 16 rows of `stride`.
    #[inline(always)]
    unsafe fn tile(self, level: Level, outers: usize, terms: usize, to: *mut u32, stride: usize) {
        // SAFETY: the caller's promise; the transposed copy is a whole tile.
        unsafe {
            if self.terms_adjoin {
                self.straight(level, outers, terms, to, stride);
            } else {
                let mut pairs = [0u32; ROWS * WORDS];
                self.woven(level, outers, terms, pairs.as_mut_ptr(), ROWS);
                transpose(level, pairs.as_ptr(), to, stride);
            }
        }
    }

    /// As [`Source::tile`] to `to[word * stride + outer]`.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    unsafe fn turned(self, level: Level, outers: usize, terms: usize, to: *mut u32, stride: usize) {
        // SAFETY: as above.
        unsafe {
            if self.terms_adjoin {
                #[cfg(target_arch = "x86_64")]
                if self.is_whole(level, outers, terms) {
                    return machine::turn(self.ptr, self.stride * self.stored.size(), to, stride);
                }
                let mut rows = [0u32; ROWS * WORDS];
                self.straight(level, outers, terms, rows.as_mut_ptr(), WORDS);
                transpose(level, rows.as_ptr(), to, stride);
            } else {
                self.woven(level, outers, terms, to, stride);
            }
        }
    }

    /// Whether this is a whole tile, which AVX-512 moves vector by vector.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn is_whole(self, level: Level, outers: usize, terms: usize) -> bool {
        level == Level::Avx512 && !self.widens() && outers == ROWS && terms == self.element.tile()
    }

    /// Where terms adjoin: copies rows.
    #[inline(always)]
    unsafe fn straight(self, level: Level, outers: usize, terms: usize, to: *mut u32, stride: usize) {
        const BYTES: usize = WORDS * 4;
        let (line, size) = (self.stride * self.stored.size(), terms * self.stored.size());
        #[cfg(target_arch = "x86_64")]
        if self.is_whole(level, outers, terms) {
            // SAFETY: a whole tile, and the CPU has AVX-512.
            return unsafe { machine::lines(self.ptr, line, to, stride) };
        }
        if self.widens() {
            for outer in 0..ROWS {
                fetch(self.ptr.wrapping_add((AHEAD + outer) * line));
                let mut row = [0u16; WORDS];
                // SAFETY: the caller's promise: rows below `outers` have `terms` elements, of two bytes.
                unsafe {
                    if outer < outers {
                        let from = self.ptr.wrapping_add(outer * line).cast::<u16>();
                        (0..terms).for_each(|i| row[i] = from.add(i).read_unaligned());
                    }
                    to.add(outer * stride).cast::<[u32; WORDS]>().write_unaligned(self.widened(level, row));
                }
            }
            return;
        }
        for outer in 0..ROWS {
            fetch(self.ptr.wrapping_add((AHEAD + outer) * line));
            // SAFETY: the caller's promise: rows below `outers` have `terms` elements.
            unsafe {
                let from = self.ptr.wrapping_add(outer * line);
                let to = to.add(outer * stride).cast::<[u8; BYTES]>();
                let row = if outer < outers && size == BYTES {
                    from.cast::<[u8; BYTES]>().read_unaligned()
                } else {
                    let mut row = [0; BYTES];
                    if outer < outers {
                        (0..size).for_each(|i| row[i] = from.add(i).read());
                    }
                    row
                };
                to.write_unaligned(row);
            }
        }
    }

    /// Where outer indices adjoin: copies lines of f32, weaves two lines of bf16 into one of pairs.
    #[inline(always)]
    unsafe fn woven(self, level: Level, outers: usize, terms: usize, to: *mut u32, stride: usize) {
        #[cfg(target_arch = "x86_64")]
        if self.is_whole(level, outers, terms) {
            // SAFETY: a whole tile, and the CPU has AVX-512.
            return unsafe {
                match self.element {
                    Element::Pair => machine::weave(self.ptr.cast(), self.stride, to, stride),
                    Element::Single => machine::lines(self.ptr, self.stride * 4, to, stride),
                }
            };
        }
        for word in 0..WORDS {
            // SAFETY: the caller's promise: terms below `terms` have `outers` elements.
            unsafe {
                let words = match self.element {
                    Element::Single if self.widens() => self.widened(level, self.line::<u16>(word, outers, terms)),
                    Element::Single => self.line::<u32>(word, outers, terms),
                    Element::Pair => {
                        let low = self.line::<u16>(2 * word, outers, terms);
                        let high = self.line::<u16>(2 * word + 1, outers, terms);
                        std::array::from_fn(|i| u32::from(low[i]) | u32::from(high[i]) << 16)
                    }
                };
                to.add(word * stride).cast::<[u32; ROWS]>().write_unaligned(words);
            }
        }
    }

    /// Sixteen elements of two bytes as f32.
    #[inline(always)]
    fn widened(self, level: Level, line: [u16; ROWS]) -> [u32; ROWS] {
        let mut wide = [0f32; ROWS];
        match self.stored {
            DType::F16 => halves::widen(level, &line.map(f16::from_bits), &mut wide),
            _ => wide = line.map(|bits| bf16::from_bits(bits).widen()),
        }
        wide.map(f32::to_bits)
    }

    /// The elements of one term, zero beyond `outers` and `terms`.
    #[inline(always)]
    unsafe fn line<T: Copy + Default>(self, term: usize, outers: usize, terms: usize) -> [T; ROWS] {
        let mut line = [T::default(); ROWS];
        if term < terms {
            let from = self.ptr.cast::<T>().wrapping_add(term * self.stride);
            fetch(from.wrapping_add(AHEAD * self.stride).cast());
            // SAFETY: promised by the caller.
            unsafe {
                if outers == ROWS {
                    line = from.cast::<[T; ROWS]>().read_unaligned();
                } else {
                    (0..outers).for_each(|i| line[i] = from.add(i).read_unaligned());
                }
            }
        }
        line
    }
}

/// How a tile of A is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// `[16 rows][16 words]`.
    Rows,
    /// `[16 words][16 rows]`, as a matrix whose rows adjoin comes.
    Turned,
    /// `[16 rows][32 terms]` of bf16 made f32.
    Wide,
}

/// Packs a tile of A: `rows` of at most 16 by `terms` of at most a tile from `source` on.
///
/// # Safety
/// The source must hold so much; `to` has room for 16 x 16 words, twice as many for [`Form::Wide`].
pub(crate) unsafe fn pack_rows(level: Level, form: Form, source: Source, rows: usize, terms: usize, to: *mut u32) {
    level.run(
        #[inline(always)]
        |_| {
            // SAFETY: the caller's promise.
            unsafe {
                match form {
                    Form::Rows => source.tile(level, rows, terms, to, WORDS),
                    Form::Turned => source.turned(level, rows, terms, to, ROWS),
                    Form::Wide => {
                        let mut pairs = [0u32; ROWS * WORDS];
                        source.tile(level, rows, terms, pairs.as_mut_ptr(), WORDS);
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

/// Packs a tile of B: `cols` of at most 32 by `terms` of at most a tile from `source` on.
///
/// # Safety
/// The source must hold so much; `to` has room for 16 x 32 words.
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

/// How many lines ahead packing asks for memory: lines lie apart, so nothing else fetches those of the next tiles.
const AHEAD: usize = 2 * ROWS;

/// Asks for the memory at an address, which need not be there.
#[inline(always)]
fn fetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 CPU has the instruction, and it faults nowhere.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T1>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
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
        for pair in 0..super::WORDS {
            // SAFETY: the caller's promise.
            unsafe {
                let line = |term: usize| {
                    super::fetch(from.wrapping_add((super::AHEAD + term) * stride).cast());
                    _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.add(term * stride).cast()))
                };
                let pairs = _mm512_or_si512(line(2 * pair), _mm512_slli_epi32::<16>(line(2 * pair + 1)));
                _mm512_storeu_si512(to.add(pair * to_stride).cast(), pairs);
            }
        }
    }

    /// A line of 64 bytes, `number` lines of a tile on.
    ///
    /// # Safety
    /// The line is there, and the CPU has AVX-512.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,bmi2")]
    unsafe fn line(from: *const u8, stride: usize, number: usize) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe {
            super::fetch(from.wrapping_add((super::AHEAD + number) * stride));
            _mm512_loadu_si512(from.add(number * stride).cast())
        }
    }

    /// A tile out of 16 lines of 64 bytes, `stride` bytes apart.
    ///
    /// # Safety
    /// `from` has these lines, `to` 16 rows of `to_stride`, and the CPU has AVX-512.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,bmi2")]
    pub(super) unsafe fn lines(from: *const u8, stride: usize, to: *mut u32, to_stride: usize) {
        for number in 0..super::WORDS {
            // SAFETY: the caller's promise.
            unsafe { _mm512_storeu_si512(to.add(number * to_stride).cast(), line(from, stride, number)) };
        }
    }

    /// As [`lines`], with words of a line as rows.
    ///
    /// # Safety
    /// As there.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,bmi2")]
    pub(super) unsafe fn turn(from: *const u8, stride: usize, to: *mut u32, to_stride: usize) {
        // SAFETY: the caller's promise.
        unsafe { store_turned(std::array::from_fn(|i| line(from, stride, i)), to, to_stride) };
    }

    /// As [`super::transpose`].
    ///
    /// # Safety
    /// As there, and the CPU has AVX-512.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,bmi2")]
    pub(super) unsafe fn transpose(from: *const u32, to: *mut u32, stride: usize) {
        // SAFETY: 16 rows of 16 are there to read.
        unsafe { store_turned(std::array::from_fn(|i| _mm512_loadu_si512(from.add(16 * i).cast())), to, stride) };
    }

    /// Four rounds, each swapping blocks of half the size: pairs of 32 bits, of 64, of 128, and of 256.
    ///
    /// # Safety
    /// There are 16 rows of `stride` to write, and the CPU has AVX-512.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,bmi2")]
    unsafe fn store_turned(mut r: [__m512i; 16], to: *mut u32, stride: usize) {
        // SAFETY: the caller's promise.
        unsafe {
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

    /// A matrix of `outers` x `terms`, stored either way with a stride larger than needed, and what its words are.
    struct Given {
        bytes: Vec<u8>,
        source: Source,
        outers: usize,
        terms: usize,
    }

    impl Given {
        fn new(stored: DType, element: Element, outers: usize, terms: usize, terms_adjoin: bool) -> Given {
            let (slow, fast) = if terms_adjoin { (outers, terms) } else { (terms, outers) };
            let (stride, size) = (fast + 3, stored.size());
            let mut bytes = vec![0xee; slow * stride * size];
            for s in 0..slow {
                for f in 0..fast {
                    let (outer, term) = if terms_adjoin { (s, f) } else { (f, s) };
                    bytes[(s * stride + f) * size..][..size]
                        .copy_from_slice(&Given::term(outer, term).to_le_bytes()[..size]);
                }
            }
            let source = Source { ptr: bytes.as_ptr(), stored, element, stride, terms_adjoin };
            Given { bytes, source, outers, terms }
        }

        fn term(outer: usize, term: usize) -> u32 {
            (outer * 131 + term * 7 + 1) as u32 * 65_537 % 0xffff_fff1
        }

        fn word(&self, outer: usize, word: usize) -> u32 {
            let of = |term| if outer < self.outers && term < self.terms { Given::term(outer, term) } else { 0 };
            match self.source.element {
                Element::Single if self.source.stored == DType::F16 => {
                    f16::from_bits(of(word) as u16).to_f32().to_bits()
                }
                Element::Single if self.source.stored == DType::Bf16 => of(word) << 16,
                Element::Single => of(word),
                Element::Pair => of(2 * word) & 0xffff | of(2 * word + 1) << 16,
            }
        }

        /// From tile `tile` on, and the terms that it has.
        fn tile(&self, tile: usize) -> (Source, usize) {
            let width = self.source.element.tile();
            (self.source.at(0, tile * width), width.min(self.terms - tile * width))
        }
    }

    fn each(outers: &[usize], terms: &[usize], check: impl Fn(Level, &Given, usize)) {
        for level in Level::available() {
            let (bf16, single) = (DType::Bf16, Element::Single);
            for (stored, element) in [(bf16, Element::Pair), (DType::F32, single), (bf16, single), (DType::F16, single)]
            {
                for terms_adjoin in [true, false] {
                    for (outers, terms) in outers.iter().flat_map(|o| terms.iter().map(move |t| (*o, *t))) {
                        let given = Given::new(stored, element, outers, terms, terms_adjoin);
                        assert!(!given.bytes.is_empty());
                        check(level, &given, element.tiles(terms));
                    }
                }
            }
        }
    }

    #[test]
    fn panels_of_rows_hold_every_element_and_zeros() {
        each(&[16, 1, 5, 13], &[32, 1, 33, 31, 100, 16], |level, given, tiles| {
            for tile in 0..tiles {
                let (source, terms) = given.tile(tile);
                let pack = |form| {
                    let mut to = [9u32; 512];
                    // SAFETY: as large as stated.
                    unsafe { pack_rows(level, form, source, given.outers, terms, to.as_mut_ptr()) };
                    to
                };
                let (rows, turned) = (pack(Form::Rows), pack(Form::Turned));
                for (outer, word) in (0..256).map(|i| (i / 16, i % 16)) {
                    let wanted = given.word(outer, tile * 16 + word);
                    assert_eq!((rows[outer * 16 + word], turned[word * 16 + outer]), (wanted, wanted));
                }
                assert_eq!((rows[256], turned[256]), (9, 9));
                if given.source.element == Element::Pair {
                    let wide = pack(Form::Wide);
                    for (outer, word) in (0..256).map(|i| (i / 16, i % 16)) {
                        let wanted = given.word(outer, tile * 16 + word);
                        let at = outer * 32 + 2 * word;
                        assert_eq!((wide[at], wide[at + 1]), (wanted << 16, wanted & 0xffff_0000));
                    }
                }
            }
        });
    }

    #[test]
    fn panels_of_columns_hold_every_element_and_zeros() {
        each(&[32, 31, 16, 17, 1], &[32, 65, 5, 64, 1], |level, given, tiles| {
            for tile in 0..tiles {
                let (source, terms) = given.tile(tile);
                let mut to = [9u32; 513];
                // SAFETY: as large as stated.
                unsafe { pack_cols(level, source, given.outers, terms, to.as_mut_ptr()) };
                for (word, outer) in (0..512).map(|i| (i / 32, i % 32)) {
                    assert_eq!(to[word * 32 + outer], given.word(outer, tile * 16 + word));
                }
                assert_eq!(to[512], 9);
            }
        });
    }
}
