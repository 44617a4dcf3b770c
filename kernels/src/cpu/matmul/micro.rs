//! Products of packed panels, the innermost loops: `C (+)= A B` of 16 rows and 32 columns at a time.

use super::path::Path;
use super::tiles::{COLS, Form, PAIRS, ROWS, TERMS};

/// A run of tiles of neighbouring panels of A and B, and where their product goes.
#[derive(Clone, Copy)]
pub(crate) struct Block {
    /// The first tile of the first panel of A.
    pub a: *const u8,
    /// How its tiles lie.
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
    /// Pairs from one panel of B to the next.
    pub b_panel: usize,
    /// Panels of B.
    pub cols: usize,
    /// Tiles along the sum.
    pub tiles: usize,
    /// The first sum.
    pub c: *mut f32,
    /// Elements from one row of sums to the next.
    pub c_row: usize,
    /// Add to what is there.
    pub add: bool,
}

impl Path {
    /// Bytes of a packed tile of A.
    pub const fn tile_bytes(self) -> usize {
        match self.widens() {
            true => ROWS * TERMS * 4,
            false => ROWS * PAIRS * 4,
        }
    }

    /// How a matrix A is packed whose terms adjoin, or not.
    pub const fn form(self, terms_adjoin: bool) -> Form {
        match self {
            #[cfg(target_arch = "x86_64")]
            Path::Avx512Bf16 if !terms_adjoin => Form::Turned,
            _ if self.widens() => Form::Wide,
            _ => Form::Rows,
        }
    }

    /// Whether A is packed as f32.
    pub const fn widens(self) -> bool {
        match self {
            Path::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Path::Avx2 | Path::Avx512 => true,
            #[cfg(target_arch = "x86_64")]
            Path::Avx512Bf16 | Path::Amx => false,
        }
    }

    /// Tiles along the sum that are multiplied in one go. AMX must find a panel of B in the nearest cache (32 KiB of 48), and
    /// what widens should. Dot products of pairs need 8 bytes of it a cycle, which the second cache gives as well; the
    /// fewer times sums are put down and taken up again the better.
    pub const fn depth(self) -> usize {
        match self {
            #[cfg(target_arch = "x86_64")]
            Path::Amx => 16,
            #[cfg(target_arch = "x86_64")]
            Path::Avx512Bf16 => 64,
            _ => 8,
        }
    }

    /// Multiplies.
    ///
    /// # Safety
    /// The panels must hold so many tiles of this path's form, C `16 rows` x `32 cols` elements in rows of `c_row`, apart
    /// from both and used here alone.
    pub unsafe fn multiply(self, block: Block) {
        // SAFETY: the caller's promise; a path is only there where the CPU has its instructions.
        unsafe {
            match self {
                Path::Portable => portable(block),
                #[cfg(target_arch = "x86_64")]
                Path::Avx2 => machine::avx2(block),
                #[cfg(target_arch = "x86_64")]
                Path::Avx512 => machine::avx512(block),
                #[cfg(target_arch = "x86_64")]
                Path::Avx512Bf16 if block.form == Form::Turned => machine::avx512_bf16::<true>(block),
                #[cfg(target_arch = "x86_64")]
                Path::Avx512Bf16 => machine::avx512_bf16::<false>(block),
                #[cfg(target_arch = "x86_64")]
                Path::Amx => super::amx::multiply(block),
            }
        }
    }
}

impl Block {
    /// Calls `each(a, b, c)` for every pair of panels, those of A in the inner loop: B's stays in the nearest cache.
    #[inline(always)]
    fn each(self, mut each: impl FnMut(*const u8, *const u32, *mut f32)) {
        for col in 0..self.cols {
            for row in 0..self.rows {
                let c = self.c.wrapping_add(row * ROWS * self.c_row + col * COLS);
                each(self.a.wrapping_add(row * self.a_panel), self.b.wrapping_add(col * self.b_panel), c);
            }
        }
    }
}

/// Four rows and eight columns at a time.
///
/// # Safety
/// As [`Path::multiply`].
unsafe fn portable(block: Block) {
    const R: usize = 4;
    const C: usize = 8;
    block.each(|a, b, c| {
        let a = a.cast::<f32>();
        for (row, col) in (0..ROWS).step_by(R).flat_map(|row| (0..COLS).step_by(C).map(move |col| (row, col))) {
            let mut sums = [[0f32; C]; R];
            for tile in 0..block.tiles {
                for pair in 0..PAIRS {
                    // SAFETY: inside the panels, as the caller says.
                    let b = unsafe { b.add((tile * PAIRS + pair) * COLS + col).cast::<[u32; C]>().read_unaligned() };
                    let (low, high) = (b.map(|b| f32::from_bits(b << 16)), b.map(|b| f32::from_bits(b & 0xffff_0000)));
                    for (r, sums) in sums.iter_mut().enumerate() {
                        // SAFETY: as above.
                        let [x, y] = unsafe {
                            a.add(tile * ROWS * TERMS + (row + r) * TERMS + 2 * pair).cast::<[f32; 2]>().read()
                        };
                        for i in 0..C {
                            sums[i] += x * low[i];
                            sums[i] += y * high[i];
                        }
                    }
                }
            }
            for (r, sums) in sums.iter().enumerate() {
                // SAFETY: inside C, as the caller says.
                unsafe {
                    let to = c.add((row + r) * block.c_row + col).cast::<[f32; C]>();
                    let old = if block.add { to.read_unaligned() } else { [0.0; C] };
                    to.write_unaligned(std::array::from_fn(|i| old[i] + sums[i]));
                }
            }
        }
    });
}

#[cfg(target_arch = "x86_64")]
mod machine {
    use super::{Block, COLS, PAIRS, ROWS, TERMS};
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
                let c = block.c.wrapping_add(row * ROWS * block.c_row + col * COLS);
                for part in 0..ROWS / R * 2 {
                    let (first, half) = (part / 2 * R, part % 2 * 16);
                    let mut sums = [[_mm256_setzero_ps(); 2]; R];
                    // SAFETY: inside the panels, as the caller says.
                    unsafe {
                        for tile in 0..block.tiles {
                            let a = a.add(tile * ROWS * TERMS + first * TERMS);
                            let b = b.add(tile * PAIRS * COLS + half);
                            for pair in 0..PAIRS {
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
                        for (r, sums) in sums.iter().enumerate() {
                            for (v, sum) in sums.iter().enumerate() {
                                let to = c.add((first + r) * block.c_row + half + 8 * v);
                                let old = if block.add { _mm256_loadu_ps(to) } else { _mm256_setzero_ps() };
                                _mm256_storeu_ps(to, _mm256_add_ps(old, *sum));
                            }
                        }
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
                let c = block.c.wrapping_add((row * ROWS + first) * block.c_row + col * COLS);
                let mut sums = [[_mm512_setzero_ps(); 2]; R];
                // SAFETY: inside the panels, as the caller says.
                unsafe {
                    for tile in 0..block.tiles {
                        let a = a.add(tile * ROWS * TERMS + first * TERMS);
                        let b = b.add(tile * PAIRS * COLS);
                        for pair in 0..PAIRS {
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
                    settle(&sums, block, c);
                }
            }
        }
    }

    /// As [`avx512`] with dot products of pairs; of a turned A where `TURNED`.
    ///
    /// # Safety
    /// As [`super::Path::multiply`], and the CPU has these features.
    #[target_feature(enable = "avx512bf16,avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")]
    pub(super) unsafe fn avx512_bf16<const TURNED: bool>(block: Block) {
        const R: usize = 8;
        let a_row = if TURNED { 4 } else { block.a_row };
        let step = if TURNED { ROWS } else { 1 };
        for col in 0..block.cols {
            for part in 0..block.rows * 2 {
                let (row, first) = (part / 2, part % 2 * R);
                let a = block.a.wrapping_add(row * block.a_panel + first * a_row);
                let b = block.b.wrapping_add(col * block.b_panel);
                let c = block.c.wrapping_add((row * ROWS + first) * block.c_row + col * COLS);
                let mut sums = [[_mm512_setzero_ps(); 2]; R];
                // SAFETY: inside the panels, as the caller says; the two vector types have one size and any bits.
                unsafe {
                    for tile in 0..block.tiles {
                        let rows: [*const i32; R] =
                            std::array::from_fn(|r| a.wrapping_add(tile * block.a_tile + r * a_row).cast());
                        let b = b.add(tile * PAIRS * COLS);
                        for pair in 0..PAIRS {
                            let b: [__m512bh; 2] = std::array::from_fn(|v| {
                                std::mem::transmute(_mm512_loadu_si512(b.add(pair * COLS + 16 * v).cast()))
                            });
                            for r in 0..R {
                                let x = _mm512_set1_epi32(rows[r].add(pair * step).read_unaligned());
                                let x: __m512bh = std::mem::transmute(x);
                                for v in 0..2 {
                                    sums[r][v] = _mm512_dpbf16_ps(sums[r][v], x, b[v]);
                                }
                            }
                        }
                    }
                    settle(&sums, block, c);
                }
            }
        }
    }

    /// Writes sums, or adds them to what is there.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")]
    unsafe fn settle(sums: &[[__m512; 2]; 8], block: Block, c: *mut f32) {
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
}
