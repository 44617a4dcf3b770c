//! Products of packed panels, the innermost loops: `C (+)= A B` of 16 rows and 32 columns at a time.

#![allow(unsafe_code, reason = "vector instructions that the CPU was asked for, on packed panels by address")]
#![allow(clippy::needless_range_loop, reason = "vectors in registers are taken by number, several arrays at once")]

use super::path::Path;
pub(crate) use super::tiles::Block;
use super::tiles::{COLS, Element, Form, ROWS, WORDS};

pub(crate) struct Held {
    #[cfg(target_arch = "x86_64")]
    _tiles: Option<super::amx::Tiles>,
}

impl Path {
    /// Bytes of a packed tile of A.
    pub const fn tile_bytes(self, element: Element) -> usize {
        match self.widens(element) {
            true => ROWS * WORDS * 8,
            false => ROWS * WORDS * 4,
        }
    }

    /// How a matrix A is packed whose terms adjoin, or not.
    pub const fn form(self, element: Element, terms_adjoin: bool) -> Form {
        match self {
            _ if self.widens(element) => Form::Wide,
            // Tiles of AMX have rows only.
            #[cfg(target_arch = "x86_64")]
            Path::Amx if matches!(element, Element::Pair) => Form::Rows,
            _ if terms_adjoin => Form::Rows,
            _ => Form::Turned,
        }
    }

    /// Whether A is packed as f32 though it is bf16.
    pub const fn widens(self, element: Element) -> bool {
        match self {
            _ if matches!(element, Element::Single) => false,
            Path::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Path::Avx2 | Path::Avx512 => true,
            #[cfg(target_arch = "x86_64")]
            Path::Avx512Bf16 | Path::Amx => false,
        }
    }

    /// Tiles along the sum that are multiplied in one go. AMX must find a panel of B in the nearest cache (32 KiB of 48), and
    /// what widens should. The others need 8 to 16 bytes of it a cycle, which the second cache gives as well; the fewer
    /// times sums are put down and taken up again the better.
    pub const fn depth(self, element: Element) -> usize {
        match self {
            #[cfg(target_arch = "x86_64")]
            Path::Amx if matches!(element, Element::Pair) => 16,
            _ if self.widens(element) => 8,
            _ => 64,
        }
    }

    /// Whether [`Path::multiply`] adds what is there to complete sums. AMX begins with it.
    pub const fn adds_last(self, element: Element) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Path::Amx => matches!(element, Element::Single),
            _ => true,
        }
    }

    /// What [`Path::multiply`] needs to be ready, for a thread that calls it many times: while the result lives, no call takes
    /// the time for it.
    pub fn hold(self) -> Held {
        Held {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: this path is only there where the CPU has AMX and the process may use it.
            _tiles: (self == Path::Amx).then(|| unsafe { super::amx::Tiles::ready() }),
        }
    }

    /// # Safety
    /// The panels must hold so many tiles of this path's form, C `16 rows` x `32 cols` elements in rows of `c_row`, apart
    /// from both and used here alone.
    pub unsafe fn multiply(self, block: Block) {
        // SAFETY: the caller's promise; a path is only there where the CPU has its instructions.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            {
                use Element::{Pair, Single};
                let turned = block.form == Form::Turned;
                match (self, block.element) {
                    (Path::Portable, _) => portable(block),
                    (Path::Avx2, Pair) => machine::avx2(block),
                    (Path::Avx2, Single) if turned => machine::avx2_singles::<true>(block),
                    (Path::Avx2, Single) => machine::avx2_singles::<false>(block),
                    (Path::Avx512, Pair) => machine::avx512(block),
                    (Path::Avx512Bf16, Pair) if turned => machine::avx512_pairs::<true>(block),
                    (Path::Avx512Bf16, Pair) => machine::avx512_pairs::<false>(block),
                    (Path::Amx, Pair) => super::amx::multiply(block),
                    (_, Single) if turned => machine::avx512_singles::<true>(block),
                    (_, Single) => machine::avx512_singles::<false>(block),
                }
            }
            #[cfg(not(target_arch = "x86_64"))]
            portable(block)
        }
    }
}

impl Block {
    /// Nothing, whose A is packed row by row as this path wants it.
    pub fn empty(path: Path, element: Element) -> Block {
        let a_tile = path.tile_bytes(element);
        Block {
            a: std::ptr::null(),
            element,
            form: path.form(element, true),
            a_row: a_tile / ROWS,
            a_tile,
            a_panel: 0,
            rows: 0,
            b: std::ptr::null(),
            b_panel: 0,
            cols: 0,
            tiles: 0,
            c: std::ptr::null_mut(),
            c_row: 0,
            add: false,
            kept: std::ptr::null(),
            kept_row: 0,
        }
    }

    /// Calls `each(a, b, row, col)` for every pair of panels, those of A in the inner loop: B's stays in the nearest cache. The row and
    /// column are those of the product.
    #[inline(always)]
    fn each(self, mut each: impl FnMut(*const u8, *const u32, usize, usize)) {
        for col in 0..self.cols {
            for row in 0..self.rows {
                let (a, b) = (self.a.wrapping_add(row * self.a_panel), self.b.wrapping_add(col * self.b_panel));
                each(a, b, row * ROWS, col * COLS);
            }
        }
    }

    /// Where sums of a row and column go, and where the earlier ones lie, if there are any.
    #[inline(always)]
    fn place(&self, row: usize, col: usize) -> (*mut f32, Option<*const f32>) {
        let kept = self.kept.wrapping_add(row * self.kept_row + col);
        (self.c.wrapping_add(row * self.c_row + col), (!self.kept.is_null()).then_some(kept))
    }
}

/// Four rows and eight columns at a time.
///
/// # Safety
/// As [`Path::multiply`].
unsafe fn portable(block: Block) {
    const R: usize = 4;
    const C: usize = 8;
    block.each(|a, b, top, left| {
        for (row, col) in (0..ROWS).step_by(R).flat_map(|row| (0..COLS).step_by(C).map(move |col| (row, col))) {
            let mut sums = [[0f32; C]; R];
            for (tile, word) in (0..block.tiles).flat_map(|tile| (0..WORDS).map(move |word| (tile, word))) {
                let a = a.wrapping_add(tile * block.a_tile);
                // SAFETY: inside the panels, as the caller says.
                let (words, factor) = unsafe {
                    let words = b.add((tile * WORDS + word) * COLS + col).cast::<[u32; C]>().read_unaligned();
                    let float = |at: usize| a.add(at).cast::<f32>().read_unaligned();
                    (words, move |r: usize, half: usize| match block.form {
                        Form::Wide => float((row + r) * WORDS * 8 + word * 8 + half * 4),
                        Form::Rows => float((row + r) * block.a_row + word * 4),
                        Form::Turned => float(word * ROWS * 4 + (row + r) * 4),
                    })
                };
                let mut add = |half: usize, b: [f32; C]| {
                    for (r, sums) in sums.iter_mut().enumerate() {
                        let x = factor(r, half);
                        (0..C).for_each(|i| sums[i] += x * b[i]);
                    }
                };
                match block.element {
                    Element::Single => add(0, words.map(f32::from_bits)),
                    Element::Pair => {
                        add(0, words.map(|word| f32::from_bits(word << 16)));
                        add(1, words.map(|word| f32::from_bits(word & 0xffff_0000)));
                    }
                }
            }
            for (r, sums) in sums.iter().enumerate() {
                // SAFETY: inside C, as the caller says.
                unsafe {
                    let (to, kept) = block.place(top + row + r, left + col);
                    let to = to.cast::<[f32; C]>();
                    let kept = kept.map_or([0.0; C], |kept| kept.cast::<[f32; C]>().read_unaligned());
                    let old = if block.add { to.read_unaligned() } else { [0.0; C] };
                    to.write_unaligned(std::array::from_fn(|i| old[i] + (kept[i] + sums[i])));
                }
            }
        }
    });
}

#[cfg(target_arch = "x86_64")]
mod machine {
    use super::{Block, COLS, ROWS, WORDS};

    /// Terms of a row of a tile that was made f32.
    const TERMS: usize = 2 * WORDS;
    use std::arch::x86_64::*;

    /// Four rows and two vectors of columns at a time: eight sums.
    ///
    /// # Safety
    /// As [`super::Path::multiply`], and the CPU has these features.
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn avx2(block: Block) {
        const R: usize = 4;
        for col in 0..block.cols {
            for row in 0..block.rows {
                let a = block.a.wrapping_add(row * block.a_panel).cast::<f32>();
                let b = block.b.wrapping_add(col * block.b_panel);
                for part in 0..ROWS / R * 2 {
                    let (first, half) = (part / 2 * R, part % 2 * 16);
                    let mut sums = [[_mm256_setzero_ps(); 2]; R];
                    // SAFETY: inside the panels, as the caller says.
                    unsafe {
                        for tile in 0..block.tiles {
                            let a = a.add(tile * ROWS * TERMS + first * TERMS);
                            let b = b.add(tile * WORDS * COLS + half);
                            for pair in 0..WORDS {
                                let b: [__m256i; 2] =
                                    std::array::from_fn(|v| _mm256_loadu_si256(b.add(pair * COLS + 8 * v).cast()));
                                let low = b.map(|b| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(b)));
                                let mask = _mm256_set1_epi32(0xffff_0000u32 as i32);
                                let high = b.map(|b| _mm256_castsi256_ps(_mm256_and_si256(b, mask)));
                                for r in 0..R {
                                    let x = _mm256_set1_ps(*a.add(r * TERMS + 2 * pair));
                                    let y = _mm256_set1_ps(*a.add(r * TERMS + 2 * pair + 1));
                                    for v in 0..2 {
                                        sums[r][v] = _mm256_fmadd_ps(x, low[v], sums[r][v]);
                                        sums[r][v] = _mm256_fmadd_ps(y, high[v], sums[r][v]);
                                    }
                                }
                            }
                        }
                        write_back_half(&sums, block, row * ROWS + first, col * COLS + half);
                    }
                }
            }
        }
    }

    /// Eight rows and two vectors of columns at a time: sixteen sums.
    ///
    /// # Safety
    /// As [`super::Path::multiply`], and the CPU has these features.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")]
    pub(super) unsafe fn avx512(block: Block) {
        const R: usize = 8;
        let mask = _mm512_set1_epi32(0xffff_0000u32 as i32);
        for col in 0..block.cols {
            for part in 0..block.rows * 2 {
                let (row, first) = (part / 2, part % 2 * R);
                let a = block.a.wrapping_add(row * block.a_panel).cast::<f32>();
                let b = block.b.wrapping_add(col * block.b_panel);
                let mut sums = [[_mm512_setzero_ps(); 2]; R];
                // SAFETY: inside the panels, as the caller says.
                unsafe {
                    for tile in 0..block.tiles {
                        let a = a.add(tile * ROWS * TERMS + first * TERMS);
                        let b = b.add(tile * WORDS * COLS);
                        for pair in 0..WORDS {
                            let b: [__m512i; 2] =
                                std::array::from_fn(|v| _mm512_loadu_si512(b.add(pair * COLS + 16 * v).cast()));
                            let low = b.map(|b| _mm512_castsi512_ps(_mm512_slli_epi32::<16>(b)));
                            let high = b.map(|b| _mm512_castsi512_ps(_mm512_and_si512(b, mask)));
                            for r in 0..R {
                                let x = _mm512_set1_ps(*a.add(r * TERMS + 2 * pair));
                                let y = _mm512_set1_ps(*a.add(r * TERMS + 2 * pair + 1));
                                for v in 0..2 {
                                    sums[r][v] = _mm512_fmadd_ps(x, low[v], sums[r][v]);
                                    sums[r][v] = _mm512_fmadd_ps(y, high[v], sums[r][v]);
                                }
                            }
                        }
                    }
                    write_back(&sums, block, row * ROWS + first, col * COLS);
                }
            }
        }
    }

    /// A kernel of eight rows and two vectors of columns that takes words as they are, of a turned A where `TURNED`. A macro,
    /// since each has features of its own.
    macro_rules! words {
        ($name:ident, $features:literal, |$sum:ident, $x:ident, $b:ident| $step:expr) => {
            /// # Safety
            /// As [`super::Path::multiply`], and the CPU has these features.
            #[target_feature(enable = $features)]
            pub(super) unsafe fn $name<const TURNED: bool>(block: Block) {
                const R: usize = 8;
                let a_row = if TURNED { 4 } else { block.a_row };
                let step = if TURNED { ROWS } else { 1 };
                // The lines of the next rows, eight to a tile: of a turned panel half of its lines.
                let a_line = if TURNED { ROWS * 4 } else { a_row };
                for col in 0..block.cols {
                    for part in 0..block.rows * 2 {
                        let (row, first) = (part / 2, part % 2 * R);
                        let a = block.a.wrapping_add(row * block.a_panel + first * a_row);
                        let ahead = match (TURNED, first) {
                            (true, _) => block.a_panel + first * (a_line - a_row),
                            (false, 0) => R * a_row,
                            (false, _) => block.a_panel.wrapping_sub(R * a_row),
                        };
                        let b = block.b.wrapping_add(col * block.b_panel);
                        let mut sums = [[_mm512_setzero_ps(); 2]; R];
                        // SAFETY: inside the panels, as the caller says; vectors of one size hold any bits.
                        unsafe {
                            for tile in 0..block.tiles {
                                let rows: [*const i32; R] =
                                    std::array::from_fn(|r| a.wrapping_add(tile * block.a_tile + r * a_row).cast());
                                let b = b.add(tile * WORDS * COLS);
                                for line in 0..R {
                                    _mm_prefetch::<_MM_HINT_T0>(
                                        a.wrapping_add(tile * block.a_tile + ahead + line * a_line).cast(),
                                    );
                                }
                                for word in 0..WORDS {
                                    let b: [__m512i; 2] =
                                        std::array::from_fn(|v| _mm512_loadu_si512(b.add(word * COLS + 16 * v).cast()));
                                    for r in 0..R {
                                        let $x = _mm512_set1_epi32(rows[r].add(word * step).read_unaligned());
                                        for v in 0..2 {
                                            let ($sum, $b) = (sums[r][v], b[v]);
                                            sums[r][v] = $step;
                                        }
                                    }
                                }
                            }
                            write_back(&sums, block, row * ROWS + first, col * COLS);
                        }
                    }
                }
            }
        };
    }

    words!(avx512_pairs, "avx512bf16,avx512f,avx512bw,avx512vl,avx512dq,avx2,fma", |sum, x, b| _mm512_dpbf16_ps(
        sum,
        std::mem::transmute::<__m512i, __m512bh>(x),
        std::mem::transmute::<__m512i, __m512bh>(b)
    ));
    words!(avx512_singles, "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma", |sum, x, b| _mm512_fmadd_ps(
        _mm512_castsi512_ps(x),
        _mm512_castsi512_ps(b),
        sum
    ));

    /// Six rows and two vectors of columns of f32 at a time, of a turned A where `TURNED`: twelve sums, as many as sixteen
    /// registers leave room for.
    ///
    /// # Safety
    /// As [`super::Path::multiply`], and the CPU has these features.
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn avx2_singles<const TURNED: bool>(block: Block) {
        let rows = block.rows * ROWS;
        for col in (0..block.cols * COLS).step_by(COLS) {
            let mut row = 0;
            while row < rows {
                for col in [col, col + COLS / 2] {
                    // SAFETY: the caller's promise.
                    unsafe {
                        match rows - row {
                            2 => avx2_rows::<2, TURNED>(block, row, col),
                            4 => avx2_rows::<4, TURNED>(block, row, col),
                            _ => avx2_rows::<6, TURNED>(block, row, col),
                        }
                    }
                }
                row += 6;
            }
        }
    }

    /// `R` rows, from a row on, and 16 columns.
    ///
    /// # Safety
    /// As [`avx2_singles`].
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn avx2_rows<const R: usize, const TURNED: bool>(block: Block, row: usize, col: usize) {
        let (a_row, step) = if TURNED { (4, ROWS) } else { (block.a_row, 1) };
        let b = block.b.wrapping_add(col / COLS * block.b_panel + col % COLS);
        let rows: [*const u8; R] =
            std::array::from_fn(|r| block.a.wrapping_add((row + r) / ROWS * block.a_panel + (row + r) % ROWS * a_row));
        let mut sums = [[_mm256_setzero_ps(); 2]; R];
        // SAFETY: inside the panels, as the caller says.
        unsafe {
            for tile in 0..block.tiles {
                let rows: [*const f32; R] = rows.map(|row| row.wrapping_add(tile * block.a_tile).cast());
                let b = b.add(tile * WORDS * COLS).cast::<f32>();
                for word in 0..WORDS {
                    let b: [__m256; 2] = std::array::from_fn(|v| _mm256_loadu_ps(b.add(word * COLS + 8 * v)));
                    for r in 0..R {
                        let x = _mm256_set1_ps(rows[r].add(word * step).read_unaligned());
                        for v in 0..2 {
                            sums[r][v] = _mm256_fmadd_ps(x, b[v], sums[r][v]);
                        }
                    }
                }
            }
            write_back_half(&sums, block, row, col);
        }
    }

    /// Writes sums, or adds them to what is there, from a row and a column on.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")]
    unsafe fn write_back(sums: &[[__m512; 2]; 8], block: Block, row: usize, col: usize) {
        if !block.kept.is_null() {
            // SAFETY: the caller's promise.
            return unsafe { write_back_onto(*sums, block, row, col) };
        }
        let c = block.c.wrapping_add(row * block.c_row + col);
        for (r, sums) in sums.iter().enumerate() {
            for (v, sum) in sums.iter().enumerate() {
                // SAFETY: inside C, as the caller says.
                unsafe {
                    let to = c.add(r * block.c_row + 16 * v);
                    let old = if block.add { _mm512_loadu_ps(to) } else { _mm512_setzero_ps() };
                    _mm512_storeu_ps(to, _mm512_add_ps(old, *sum));
                }
            }
        }
    }

    /// As [`write_back`] where sums of earlier terms are kept: they come first. By value and apart: what is lent to a call would lie in
    /// memory all along.
    #[inline(never)]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")]
    unsafe fn write_back_onto(sums: [[__m512; 2]; 8], block: Block, row: usize, col: usize) {
        let c = block.c.wrapping_add(row * block.c_row + col);
        let kept = block.kept.wrapping_add(row * block.kept_row + col);
        for (r, sums) in sums.iter().enumerate() {
            for (v, sum) in sums.iter().enumerate() {
                // SAFETY: inside C and the kept sums, as the caller says.
                unsafe {
                    let (to, kept) = (c.add(r * block.c_row + 16 * v), kept.add(r * block.kept_row + 16 * v));
                    let old = if block.add { _mm512_loadu_ps(to) } else { _mm512_setzero_ps() };
                    _mm512_storeu_ps(to, _mm512_add_ps(old, _mm512_add_ps(_mm512_loadu_ps(kept), *sum)));
                }
            }
        }
    }

    /// As [`write_back`] of half the width.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn write_back_half<const R: usize>(sums: &[[__m256; 2]; R], block: Block, row: usize, col: usize) {
        if !block.kept.is_null() {
            // SAFETY: the caller's promise.
            return unsafe { write_back_half_onto(*sums, block, row, col) };
        }
        let c = block.c.wrapping_add(row * block.c_row + col);
        for (r, sums) in sums.iter().enumerate() {
            for (v, sum) in sums.iter().enumerate() {
                // SAFETY: inside C, as the caller says.
                unsafe {
                    let to = c.add(r * block.c_row + 8 * v);
                    let old = if block.add { _mm256_loadu_ps(to) } else { _mm256_setzero_ps() };
                    _mm256_storeu_ps(to, _mm256_add_ps(old, *sum));
                }
            }
        }
    }

    /// As [`write_back_half`] where sums of earlier terms are kept: they come first. By value and apart: what is lent to a call would
    /// lie in memory all along.
    #[inline(never)]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn write_back_half_onto<const R: usize>(sums: [[__m256; 2]; R], block: Block, row: usize, col: usize) {
        let c = block.c.wrapping_add(row * block.c_row + col);
        let kept = block.kept.wrapping_add(row * block.kept_row + col);
        for (r, sums) in sums.iter().enumerate() {
            for (v, sum) in sums.iter().enumerate() {
                // SAFETY: inside C and the kept sums, as the caller says.
                unsafe {
                    let (to, kept) = (c.add(r * block.c_row + 8 * v), kept.add(r * block.kept_row + 8 * v));
                    let old = if block.add { _mm256_loadu_ps(to) } else { _mm256_setzero_ps() };
                    _mm256_storeu_ps(to, _mm256_add_ps(old, _mm256_add_ps(_mm256_loadu_ps(kept), *sum)));
                }
            }
        }
    }
}
