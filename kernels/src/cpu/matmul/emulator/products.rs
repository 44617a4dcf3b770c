//! Matrix products by AMX: whole ones against f64 and other instructions, and blocks of packed panels to the bit.

use super::super::amx;
use super::super::micro::Block;
use super::super::tiles::{self, Element, Form, Source};
use super::support::harness::{Tensor, guarded};
use super::support::{devices, hold};
use crate::ByName;
use crate::cpu::level::Level;
use crate::{DType, Gemm, Kernels, Op, philox};

const BF16: DType = DType::Bf16;

fn check(m: usize, n: usize, k: usize, trans: (bool, bool), accumulate: bool, alpha: f32, c: DType) {
    let tensors =
        [Tensor::normal(BF16, m * k, 1), Tensor::normal(BF16, k * n, 2), guarded(Tensor::normal(c, m * n, 3))];
    let case = format!("{m} x {n} x {k}, {trans:?}, accumulate {accumulate}, alpha {alpha}, {c}");
    hold(&case, tensors, &[2], |kernels, of, [ta, tb, tc]| {
        let (trans_a, trans_b) = trans;
        let op = Gemm { m, n, k, trans_a, trans_b, alpha, accumulate, a: of(BF16), b: of(BF16), c: of(c) };
        let mut workspace = Tensor::workspace(kernels, &Op::Gemm(op));
        kernels.gemm(&op, ta.view(), tb.view(), tc.view_mut(), workspace.view_mut())
    });
}

/// All layouts of a shape; what else varies takes turns.
fn check_all(m: usize, n: usize, k: usize) {
    for (i, trans) in [(false, false), (false, true), (true, false), (true, true)].into_iter().enumerate() {
        let turn = m + n + k + i;
        let alpha = [1.0, 0.5, -2.0][turn % 3];
        let c = [DType::F32, BF16][(turn / 3 + i) % 2];
        check(m, n, k, trans, (turn / 2 + i) % 2 == 1, alpha, c);
    }
}

#[test]
fn any_edge_of_a_tile() {
    // One panel of A, two, three: the last is alone. Columns in one half of a panel of B, in both, in the next.
    for m in [1, 16, 17, 33, 48, 65] {
        for n in [1, 16, 31, 33, 64] {
            for k in [1, 31, 32, 33, 100] {
                check_all(m, n, k);
            }
        }
    }
}

#[test]
fn sums_of_several_depths() {
    for k in [511, 512, 513, 1024, 1100, 1537] {
        check_all(40, 37, k);
        check_all(16, 70, k);
    }
    // Longer than is packed at a time.
    check(33, 20, 16_384 + 77, (false, true), true, -2.0, DType::F32);
    check(20, 33, 2 * 16_384 + 5, (true, false), false, 0.5, BF16);
}

#[test]
fn several_blocks_for_every_thread() {
    check_all(300, 290, 70);
    check(530, 33, 40, (false, false), true, 1.0, BF16);
    check(17, 700, 40, (false, true), false, 1.0, DType::F32);
}

#[test]
fn nothing_to_multiply() {
    for accumulate in [false, true] {
        check(20, 20, 0, (false, false), accumulate, 1.0, DType::F32);
        check(0, 20, 5, (false, false), accumulate, 1.0, BF16);
    }
}

/// Products of small integers are exact, so that a single element in a wrong place shows.
#[test]
fn integers_are_exact() {
    let Some(devices) = devices() else { return };
    for (m, n, k) in [(16, 32, 32), (32, 32, 64), (47, 63, 1055), (17, 1, 513), (1, 33, 31)] {
        let [a, b] = [(1, m * k), (2, k * n)].map(|(seed, len)| integers(seed, len));
        let op = Gemm {
            m,
            n,
            k,
            trans_a: false,
            trans_b: false,
            alpha: 1.0,
            accumulate: false,
            a: BF16,
            b: BF16,
            c: DType::F32,
        };
        let want = product(&a, &b, [m, n, k]);
        let [a, b] = [a, b].map(|x| Tensor::of(BF16, &x));
        for device in devices {
            let mut c = Tensor::filled(DType::F32, m * n, f64::NAN);
            let mut workspace = Tensor::workspace(device, &Op::Gemm(op));
            device.gemm(&op, a.view(), b.view(), c.view_mut(), workspace.view_mut()).unwrap();
            assert_eq!(c.values(), want, "{m} x {n} x {k}, {} threads", device.threads());
        }
    }
}

/// An element's bits are the same wherever it lies and whatever lies around it.
#[test]
fn an_element_is_its_row_and_its_column() {
    let Some(devices) = devices() else { return };
    let (m, n, k) = (83, 101, 1200);
    let (a, b) = (Tensor::normal(BF16, m * k, 1), Tensor::normal(BF16, n * k, 2));
    let run = |device: &crate::Cpu, rows: std::ops::Range<usize>, cols: std::ops::Range<usize>| {
        let (m, n) = (rows.len(), cols.len());
        let op = Gemm {
            m,
            n,
            k,
            trans_a: false,
            trans_b: true,
            alpha: 1.0,
            accumulate: false,
            a: BF16,
            b: BF16,
            c: DType::F32,
        };
        let mut c = Tensor::filled(DType::F32, m * n, f64::NAN);
        let mut workspace = Tensor::workspace(device, &Op::Gemm(op));
        let (a, b) = (a.view().slice(rows.start * k..rows.end * k), b.view().slice(cols.start * k..cols.end * k));
        device.gemm(&op, a, b, c.view_mut(), workspace.view_mut()).unwrap();
        c.bits()
    };
    let whole = run(&devices[0], 0..m, 0..n);
    for (rows, cols) in [(0..1, 0..n), (82..83, 0..n), (5..40, 3..4), (16..80, 40..101), (1..83, 31..64)] {
        let part = run(&devices[1], rows.clone(), cols.clone());
        for (i, row) in rows.clone().enumerate() {
            let want = &whole[row * n + cols.start..row * n + cols.end];
            assert_eq!(&part[i * cols.len()..(i + 1) * cols.len()], want, "row {row} of {rows:?} x {cols:?}");
        }
    }
}

#[test]
fn what_is_not_finite_stays_in_its_row() {
    let Some(devices) = devices() else { return };
    let (m, n, k) = (40, 35, 70);
    let mut a = vec![1.0; m * k];
    (a[3 * k + 69], a[20 * k]) = (f64::INFINITY, f64::NAN);
    let (a, b) = (Tensor::of(BF16, &a), Tensor::filled(BF16, k * n, 0.5));
    let op = Gemm {
        m,
        n,
        k,
        trans_a: false,
        trans_b: false,
        alpha: 1.0,
        accumulate: false,
        a: BF16,
        b: BF16,
        c: DType::F32,
    };
    let mut c = Tensor::filled(DType::F32, m * n, 0.0);
    let mut workspace = Tensor::workspace(&devices[2], &Op::Gemm(op));
    devices[2].gemm(&op, a.view(), b.view(), c.view_mut(), workspace.view_mut()).unwrap();
    for (row, sums) in c.values().chunks(n).enumerate() {
        let right = |x: f64| match row {
            3 => x == f64::INFINITY,
            20 => x.is_nan(),
            _ => x == 35.0,
        };
        assert!(sums.iter().all(|x| right(*x)), "row {row}: {sums:?}");
    }
}

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
    if devices().is_none() {
        return;
    }
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
        let [a16, b16] = [(&a, m * k), (&b, k * n)].map(|(x, len)| {
            let mut bits = Tensor::of(BF16, x).bits();
            bits.truncate(len);
            bits.into_iter().map(|bits| bits as u16).collect::<Vec<u16>>()
        });
        // SAFETY: all as large as the panels say.
        unsafe {
            for row in 0..rows {
                let ptr = a16.as_ptr().wrapping_add(16 * row * k).cast();
                let source = Source { ptr, element: Element::Pair, stride: k, terms_adjoin: true };
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
                let source = Source { ptr, element: Element::Pair, stride: n, terms_adjoin: false };
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
            amx::multiply(Block {
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
