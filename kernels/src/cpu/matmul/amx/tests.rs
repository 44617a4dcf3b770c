//! Blocks of packed panels to the bit, by the CPU's AMX or by what stands for it.

use super::*;
use crate::DType;
use crate::cpu::level::Level;
use crate::cpu::matmul::tiles;
use crate::cpu::matmul::tiles::{Element, Form, Source};
use crate::numerics::philox;
use zbench_kernels_testing::amx;

fn integers(seed: u64, len: usize) -> Vec<f64> {
    let draws = (0..len.div_ceil(4) as u64).flat_map(|block| philox::normals(seed, block));
    draws.take(len).map(|x| (3.0 * f64::from(x)).round().clamp(-9.0, 9.0)).collect()
}

fn product(a: &[f64], b: &[f64], [m, n, k]: [usize; 3]) -> Vec<f64> {
    let element = |i: usize| (0..k).map(|t| a[i / n * k + t] * b[t * n + i % n]).sum();
    (0..m * n).map(element).collect()
}

/// Memory of whole pages, the last of which must not be touched: what is put at the end of the rest is not passed.
struct Fenced {
    start: *mut u8,
    len: usize,
}

const PAGE: usize = 4096;

impl Fenced {
    fn new(bytes: usize) -> Fenced {
        let len = bytes.next_multiple_of(PAGE);
        // SAFETY: memory of our own; its last page is taken away.
        unsafe {
            let (kind, access) = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, libc::PROT_READ | libc::PROT_WRITE);
            let start = libc::mmap(std::ptr::null_mut(), len + PAGE, access, kind, -1, 0);
            assert_ne!(start, libc::MAP_FAILED);
            let start = start.cast::<u8>();
            assert_eq!(libc::mprotect(start.add(len).cast(), PAGE, libc::PROT_NONE), 0);
            Fenced { start, len }
        }
    }

    /// The last `bytes`.
    fn last(&self, bytes: usize) -> *mut u8 {
        self.start.wrapping_add(self.len - bytes)
    }
}

impl Drop for Fenced {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`.
        unsafe { libc::munmap(self.start.cast(), self.len + PAGE) };
    }
}

/// Panels farther apart than they must be, rows of C longer than they must be, nothing read or written past either.
#[test]
fn blocks_of_panels() {
    amx::install();
    for (rows, cols, tiles, add, direct) in [
        (1, 1, 1, false, false),
        (2, 1, 3, true, false),
        (3, 2, 2, false, true),
        (3, 2, 2, false, false),
        (5, 3, 16, true, false),
        (4, 1, 5, true, true),
        (2, 2, 0, false, false),
        (1, 1, 0, true, true),
    ] {
        let case = format!("{rows} x {cols} panels of {tiles} tiles, add {add}, direct {direct}");
        let (m, n, k) = (16 * rows, 32 * cols, 32 * tiles);
        let [a, b] = [(3, m * k), (4, k * n)].map(|(seed, len)| integers(seed, len));
        let old = integers(5, m * n);
        let (a_gap, b_gap, c_row) = (192, 80, n + 13);
        // Packed tiles, or rows of the matrix where it lies, with a gap behind each.
        let (a_row, a_tile) = if direct { (tiles * 64 + a_gap, 64) } else { (64, 1024) };
        let (a_panel, b_panel) = (if direct { 16 * a_row } else { tiles * 1024 + a_gap }, tiles * 512 + b_gap);
        // The last panel has no gap behind it, and the last row ends with its last column.
        let a_bytes = rows * a_panel - a_gap;
        let b_bytes = (cols * b_panel - b_gap) * 4;
        let c_len = (m - 1) * c_row + n;
        let memory = [a_bytes, b_bytes, c_len * 4].map(Fenced::new);
        let (to_a, to_b) = (memory[0].last(a_bytes), memory[1].last(b_bytes).cast::<u32>());
        let c = memory[2].last(c_len * 4).cast::<f32>();
        let [a16, b16] = [&a, &b].map(|x| x.iter().map(|x| half::bf16::from_f64(*x).to_bits()).collect::<Vec<u16>>());
        // SAFETY: all as large as the panels say.
        unsafe {
            for row in 0..rows {
                let ptr = a16.as_ptr().wrapping_add(16 * row * k).cast();
                let source = Source { ptr, stored: DType::Bf16, element: Element::Pair, stride: k, terms_adjoin: true };
                for tile in 0..tiles {
                    let to = to_a.wrapping_add(row * a_panel + tile * a_tile);
                    if direct {
                        let line = |i: usize| source.at(i, tile * 32).ptr;
                        (0..16).for_each(|i| to.add(i * a_row).copy_from_nonoverlapping(line(i), 64));
                    } else {
                        tiles::pack_rows(Level::Portable, Form::Rows, source.at(0, tile * 32), 16, 32, to.cast());
                    }
                }
            }
            for col in 0..cols {
                let ptr = b16.as_ptr().wrapping_add(32 * col).cast();
                let source =
                    Source { ptr, stored: DType::Bf16, element: Element::Pair, stride: n, terms_adjoin: false };
                for tile in 0..tiles {
                    let to = to_b.wrapping_add(col * b_panel + tile * 512);
                    tiles::pack_cols(Level::Portable, source.at(0, tile * 32), 32, 32, to);
                }
            }
            for i in 0..c_len {
                let (row, col) = (i / c_row, i % c_row);
                c.add(i).write(if col < n { old[row * n + col] as f32 } else { 77.0 });
            }
            let (a, b) = (to_a.cast_const(), to_b.cast_const());
            let (element, form) = (Element::Pair, Form::Rows);
            multiply(Block {
                a,
                element,
                form,
                a_row,
                a_tile,
                a_panel,
                rows,
                b,
                b_panel,
                cols,
                tiles,
                c,
                c_row,
                add,
                kept: std::ptr::null(),
                kept_row: 0,
            });
        }
        let sums = product(&a, &b, [m, n, k]);
        for i in 0..c_len {
            let (row, col) = (i / c_row, i % c_row);
            let want = match col < n {
                true => sums[row * n + col] + if add { old[row * n + col] } else { 0.0 },
                false => 77.0,
            };
            // SAFETY: as above.
            let got = f64::from(unsafe { c.add(i).read() });
            assert_eq!(got, want, "{case}: row {row}, column {col}");
        }
    }
}
