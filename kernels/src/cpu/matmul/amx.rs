//! Products of packed panels by AMX: tiles of 16 x 32 bf16 by 32 x 16 into 16 x 16 f32.
//!
//! Rust's intrinsics for these are not stable; assembly is. Registers 0 to 3 hold sums of 32 rows and 32 columns, 4 and 5
//! two tiles of A, 6 and 7 two of B. A streams past B's panel, which stays in the nearest cache: its loads say so
//! (`tileloaddt1`).
//!
//! Where the CPU has none, tests carry these very instructions out (kernels/testing/src/amx).

#![allow(unsafe_code, reason = "AMX instructions, by assembly")]

use super::tiles::{Block, COLS, ROWS, WORDS};
use std::arch::asm;
use std::cell::Cell;
use std::marker::PhantomData;

#[cfg(all(test, target_os = "linux"))]
mod tests;

/// What `ldtilecfg` reads: palette 1, and eight tiles of 16 rows of 64 bytes.
#[repr(C, align(64))]
pub(crate) struct TileConfig {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    bytes_per_row: [u16; 16],
    rows: [u8; 16],
}

pub(crate) static CONFIG: TileConfig = TileConfig {
    palette: 1,
    start_row: 0,
    reserved: [0; 14],
    bytes_per_row: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
};

/// Bytes from one row of a tile of B to the next.
const B_ROW: usize = COLS * 4;
/// Bytes of two tiles of B, side by side.
const B_TILE: usize = WORDS * B_ROW;

thread_local! {
    /// How many [`Tiles`] this thread has.
    static HELD: Cell<u32> = const { Cell::new(0) };
}

/// Tile registers that are ready while it lives. Making them so and giving them back takes some 200 cycles, as long as
/// twelve products of tiles: whoever multiplies many small blocks holds one meanwhile.
pub(super) struct Tiles(PhantomData<*const ()>);

impl Tiles {
    /// # Safety
    /// The CPU has AMX bf16 and the process may use it.
    pub unsafe fn ready() -> Tiles {
        if HELD.replace(HELD.get() + 1) == 0 {
            // SAFETY: reads 64 bytes of a constant.
            unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const CONFIG, options(nostack, readonly, preserves_flags)) };
        }
        Tiles(PhantomData)
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        if HELD.replace(HELD.get() - 1) == 1 {
            // SAFETY: as it was configured by `ready`; a thread that keeps tiles makes every switch of context longer.
            unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) };
        }
    }
}

/// See [`super::path::Path::multiply`].
///
/// # Safety
/// As there, and the CPU has AMX bf16 and the process may use it.
pub(super) unsafe fn multiply(block: Block) {
    // SAFETY: the caller's promise.
    unsafe {
        let _tiles = Tiles::ready();
        for col in 0..block.cols {
            let b = block.b.wrapping_add(col * block.b_panel);
            for row in (0..block.rows).step_by(2) {
                let a = block.a.wrapping_add(row * block.a_panel);
                let c = block.c.wrapping_add(row * ROWS * block.c_row + col * COLS);
                match block.rows - row {
                    1 => one(block, a, b, c),
                    _ => two(block, a, b, c),
                }
            }
        }
    }
}

/// Two panels of A by one of B.
unsafe fn two(block: Block, a: *const u8, b: *const u32, c: *mut f32) {
    // SAFETY: the caller's promise: the panels hold so many tiles, C 32 rows of 32; tiles are configured.
    unsafe {
        asm!(
            "test {add:e}, {add:e}",
            "jz 2f",
            "tileloadd tmm0, [{c} + {c_row}]",
            "tileloadd tmm1, [{c} + {c_row} + 64]",
            "tileloadd tmm2, [{low} + {c_row}]",
            "tileloadd tmm3, [{low} + {c_row} + 64]",
            "jmp 3f",
            "2:",
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "3:",
            "test {tiles}, {tiles}",
            "jz 5f",
            "4:",
            "tileloadd tmm6, [{b} + {b_row}]",
            "tileloaddt1 tmm4, [{a} + {a_row}]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm7, [{b} + {b_row} + 64]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tileloaddt1 tmm5, [{next} + {a_row}]",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "add {a}, {a_tile}",
            "add {next}, {a_tile}",
            "add {b}, {B_TILE}",
            "dec {tiles}",
            "jnz 4b",
            "5:",
            "tilestored [{c} + {c_row}], tmm0",
            "tilestored [{c} + {c_row} + 64], tmm1",
            "tilestored [{low} + {c_row}], tmm2",
            "tilestored [{low} + {c_row} + 64], tmm3",
            add = in(reg) u32::from(block.add),
            a = inout(reg) a => _,
            next = inout(reg) a.wrapping_add(block.a_panel) => _,
            b = inout(reg) b => _,
            c = in(reg) c,
            low = in(reg) c.wrapping_add(ROWS * block.c_row),
            c_row = in(reg) block.c_row * 4,
            a_row = in(reg) block.a_row,
            a_tile = in(reg) block.a_tile,
            b_row = in(reg) B_ROW,
            tiles = inout(reg) block.tiles => _,
            B_TILE = const B_TILE,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}

/// One panel of A by one of B.
unsafe fn one(block: Block, a: *const u8, b: *const u32, c: *mut f32) {
    // SAFETY: as in `two`, with 16 rows.
    unsafe {
        asm!(
            "test {add:e}, {add:e}",
            "jz 2f",
            "tileloadd tmm0, [{c} + {c_row}]",
            "tileloadd tmm1, [{c} + {c_row} + 64]",
            "jmp 3f",
            "2:",
            "tilezero tmm0",
            "tilezero tmm1",
            "3:",
            "test {tiles}, {tiles}",
            "jz 5f",
            "4:",
            "tileloaddt1 tmm4, [{a} + {a_row}]",
            "tileloadd tmm6, [{b} + {b_row}]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm7, [{b} + {b_row} + 64]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "add {a}, {a_tile}",
            "add {b}, {B_TILE}",
            "dec {tiles}",
            "jnz 4b",
            "5:",
            "tilestored [{c} + {c_row}], tmm0",
            "tilestored [{c} + {c_row} + 64], tmm1",
            add = in(reg) u32::from(block.add),
            a = inout(reg) a => _,
            b = inout(reg) b => _,
            c = in(reg) c,
            c_row = in(reg) block.c_row * 4,
            a_row = in(reg) block.a_row,
            a_tile = in(reg) block.a_tile,
            b_row = in(reg) B_ROW,
            tiles = inout(reg) block.tiles => _,
            B_TILE = const B_TILE,
            out("tmm0") _, out("tmm1") _, out("tmm4") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}
