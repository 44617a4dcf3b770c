//! The tiles and what instructions do to them.
//!
//! Rules of Intel's manual, volume 2, with the section each is from:
//! - LDTILECFG: 64 bytes. Byte 0 is the palette, byte 1 the row to start at, 2 to 15 reserved, words from 16 on the bytes of a
//!   row of tiles 0 to 7, 32 to 47 reserved, bytes from 48 on their rows, 56 to 63 reserved. #GP if the palette is above 1, a
//!   reserved byte is not zero, a row has more than 64 bytes, a tile more than 16 rows, or only one of the two is zero. All
//!   tiles become zero; palette 0 leaves them unconfigured.
//! - STTILECFG: writes the same 64 bytes, zeros where nothing is configured.
//! - TILERELEASE: as LDTILECFG of palette 0.
//! - TILELOADD, TILELOADDT1, TILESTORED: row `r` is at base + displacement + r * (index << scale), no index is a stride of zero.
//!   Rows begin at the start row. A load clears the rest of the row and the rows past the tile's. #UD if tiles are not
//!   configured, the tile has no size, its rows are no whole dwords, or the start row is not below its rows.
//! - TILEZERO: all 16 rows of 64 bytes.
//! - TDPBF16PS c, a, b: for every row m, sums of even and of odd terms apart, each by fused multiply-adds over the k pairs of
//!   a's row and b's rows from zero on; then c += even + odd. Round to nearest even, denormals are zero, going in and coming
//!   out. #UD if two of the tiles are one, or a.rows, a.dwords, b.rows, b.dwords do not match c's.
//! - All of these set the start row to zero.
//!
//! One difference is left: the CPU flushes what would round up to the least normal number from below, this does not.

pub(super) const TILES: usize = 8;
pub(super) const MOST_ROWS: usize = 16;
pub(super) const ROW_BYTES: usize = 64;

/// Where a tile lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lines {
    pub at: u64,
    /// Bytes from one row to the next.
    pub stride: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Instruction {
    LoadConfig { at: u64 },
    StoreConfig { at: u64 },
    Release,
    Zero { tile: usize },
    Load { tile: usize, from: Lines },
    Store { tile: usize, to: Lines },
    Dot { c: usize, a: usize, b: usize },
}

/// Why an instruction cannot be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// No AMX instruction.
    Foreign,
    /// The CPU would raise #UD, which arrives as SIGILL.
    Undefined(&'static str),
    /// The CPU would raise #GP, which arrives as SIGSEGV.
    Protection(&'static str),
}

/// One tile: rows of dwords.
pub type Tile = [[u32; ROW_BYTES / 4]; MOST_ROWS];

/// A thread's tiles.
#[derive(Clone, Debug)]
pub struct Machine {
    pub configured: bool,
    start_row: u8,
    pub row_bytes: [u16; TILES],
    pub rows: [u8; TILES],
    pub tiles: [Tile; TILES],
    /// Products done, ever.
    pub dots: u64,
}

impl Machine {
    pub(super) const fn new() -> Machine {
        Machine {
            configured: false,
            start_row: 0,
            row_bytes: [0; TILES],
            rows: [0; TILES],
            tiles: [[[0; ROW_BYTES / 4]; MOST_ROWS]; TILES],
            dots: 0,
        }
    }

    /// # Safety
    /// Memory operands are valid where the instruction's semantics touch them.
    pub(super) unsafe fn execute(&mut self, instruction: Instruction) -> Result<(), Fault> {
        match instruction {
            Instruction::LoadConfig { at } => {
                // SAFETY: the caller's promise.
                let bytes = unsafe { (at as *const [u8; 64]).read_unaligned() };
                return self.configure(&bytes);
            }
            // SAFETY: as above.
            Instruction::StoreConfig { at } => unsafe { (at as *mut [u8; 64]).write_unaligned(self.config()) },
            Instruction::Release => self.clear(),
            Instruction::Zero { tile } => {
                self.known(tile)?;
                self.tiles[tile] = [[0; ROW_BYTES / 4]; MOST_ROWS];
                self.start_row = 0;
            }
            Instruction::Load { tile, from } => {
                let (first, rows, bytes) = self.lines(tile)?;
                for row in first..rows {
                    let mut line = [0u32; ROW_BYTES / 4];
                    let from = from.at.wrapping_add(from.stride.wrapping_mul(row as u64)) as *const u8;
                    // SAFETY: the caller's promise; a row has 64 bytes at most.
                    unsafe { from.copy_to_nonoverlapping(line.as_mut_ptr().cast(), bytes) };
                    self.tiles[tile][row] = line;
                }
                self.tiles[tile][rows..].fill([0; ROW_BYTES / 4]);
                self.start_row = 0;
            }
            Instruction::Store { tile, to } => {
                let (first, rows, bytes) = self.lines(tile)?;
                for row in first..rows {
                    let to = to.at.wrapping_add(to.stride.wrapping_mul(row as u64)) as *mut u8;
                    // SAFETY: as above.
                    unsafe { to.copy_from_nonoverlapping(self.tiles[tile][row].as_ptr().cast(), bytes) };
                }
                self.start_row = 0;
            }
            Instruction::Dot { c, a, b } => return self.dot(c, a, b),
        }
        Ok(())
    }

    fn clear(&mut self) {
        *self = Machine { dots: self.dots, ..Machine::new() };
    }

    fn configure(&mut self, bytes: &[u8; 64]) -> Result<(), Fault> {
        let palette = bytes[0];
        if palette > 1 {
            return Err(Fault::Protection("ldtilecfg: the palette is above 1"));
        }
        if palette == 0 {
            self.clear();
            return Ok(());
        }
        let reserved = [&bytes[2..16], &bytes[32..48], &bytes[56..64]];
        if reserved.iter().any(|bytes| bytes.iter().any(|byte| *byte != 0)) {
            return Err(Fault::Protection("ldtilecfg: a reserved byte is not zero"));
        }
        let mut next = Machine { configured: true, start_row: bytes[1], dots: self.dots, ..Machine::new() };
        for tile in 0..TILES {
            let row_bytes = u16::from_le_bytes([bytes[16 + 2 * tile], bytes[17 + 2 * tile]]);
            let rows = bytes[48 + tile];
            if usize::from(row_bytes) > ROW_BYTES {
                return Err(Fault::Protection("ldtilecfg: a tile's rows have more than 64 bytes"));
            }
            if usize::from(rows) > MOST_ROWS {
                return Err(Fault::Protection("ldtilecfg: a tile has more than 16 rows"));
            }
            if (rows == 0) != (row_bytes == 0) {
                return Err(Fault::Protection("ldtilecfg: a tile has rows without bytes, or bytes without rows"));
            }
            (next.row_bytes[tile], next.rows[tile]) = (row_bytes, rows);
        }
        *self = next;
        Ok(())
    }

    fn config(&self) -> [u8; 64] {
        let mut bytes = [0; 64];
        bytes[0] = u8::from(self.configured);
        bytes[1] = self.start_row;
        for tile in 0..TILES {
            bytes[16 + 2 * tile..18 + 2 * tile].copy_from_slice(&self.row_bytes[tile].to_le_bytes());
            bytes[48 + tile] = self.rows[tile];
        }
        bytes
    }

    fn known(&self, tile: usize) -> Result<(), Fault> {
        if !self.configured {
            return Err(Fault::Undefined("tiles are not configured"));
        }
        if tile >= TILES {
            return Err(Fault::Undefined("there are eight tiles"));
        }
        if self.rows[tile] == 0 {
            return Err(Fault::Undefined("the tile has no size"));
        }
        Ok(())
    }

    fn whole(&self, tile: usize) -> Result<(), Fault> {
        self.known(tile)?;
        match self.row_bytes[tile] % 4 {
            0 => Ok(()),
            _ => Err(Fault::Undefined("the tile's rows are no whole dwords")),
        }
    }

    /// The first row to move, the tile's rows, and their bytes.
    fn lines(&self, tile: usize) -> Result<(usize, usize, usize), Fault> {
        self.whole(tile)?;
        let [first, rows] = [self.start_row, self.rows[tile]].map(usize::from);
        if first >= rows {
            return Err(Fault::Undefined("the start row is not in the tile"));
        }
        Ok((first, rows, usize::from(self.row_bytes[tile])))
    }

    fn dot(&mut self, c: usize, a: usize, b: usize) -> Result<(), Fault> {
        if c == a || c == b || a == b {
            return Err(Fault::Undefined("tdpbf16ps: two of the tiles are one"));
        }
        [c, a, b].into_iter().try_for_each(|tile| self.whole(tile))?;
        let rows = |tile: usize| usize::from(self.rows[tile]);
        let dwords = |tile: usize| usize::from(self.row_bytes[tile]) / 4;
        let (m, n, k) = (rows(c), dwords(c), dwords(a));
        if rows(a) != m || dwords(b) != n || rows(b) != k {
            return Err(Fault::Undefined("tdpbf16ps: the tiles' shapes do not match"));
        }
        // Rows of b past k and dwords past n are zero, and so is what they add; sums past n are cleared below.
        let (own, other) = (self.tiles[a], self.tiles[b]);
        for (row, sums) in self.tiles[c].iter_mut().enumerate() {
            if row >= m {
                sums.fill(0);
                continue;
            }
            match std::arch::is_x86_feature_detected!("fma") && std::arch::is_x86_feature_detected!("avx512f") {
                // SAFETY: the CPU has both.
                true => unsafe { fast(sums, &own[row][..k], &other) },
                false => pairs(sums, &own[row][..k], &other),
            }
            sums[n..].fill(0);
        }
        self.start_row = 0;
        self.dots += 1;
        Ok(())
    }
}

/// [`pairs`] compiled so that `mul_add` is an instruction.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")]
fn fast(sums: &mut [u32; 16], a: &[u32], b: &Tile) {
    pairs(sums, a, b);
}

/// A row of sums, as `tdpbf16ps` adds to it.
#[inline(always)]
fn pairs(sums: &mut [u32; 16], a: &[u32], b: &Tile) {
    let (mut even, mut odd) = ([0f32; 16], [0f32; 16]);
    for (a, b) in a.iter().zip(b) {
        let [low, high] = halves(*a);
        for n in 0..16 {
            let [b_low, b_high] = halves(b[n]);
            even[n] = flush(low.mul_add(b_low, even[n]));
            odd[n] = flush(high.mul_add(b_high, odd[n]));
        }
    }
    for n in 0..16 {
        let both = flush(even[n] + odd[n]);
        sums[n] = flush(flush(f32::from_bits(sums[n])) + both).to_bits();
    }
}

/// Two bf16 as f32.
#[inline(always)]
fn halves(pair: u32) -> [f32; 2] {
    [flush(f32::from_bits(pair << 16)), flush(f32::from_bits(pair & 0xffff_0000))]
}

/// Denormals become zeros of their sign.
#[inline(always)]
fn flush(x: f32) -> f32 {
    let bits = x.to_bits();
    f32::from_bits(if bits & 0x7f80_0000 == 0 { bits & 0x8000_0000 } else { bits })
}
