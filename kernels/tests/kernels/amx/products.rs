//! Matrix products by AMX against f64 and other instructions. Blocks of packed panels are tested where they are:
//! kernels/src/cpu/matmul/amx/tests.rs.

use super::{devices, hold};
use crate::harness::{Tensor, guarded};
use zbench_kernels::numerics::philox;
use zbench_kernels::{Cpu, DType, Gemm, Kernels, Op};
use zbench_kernels_testing::ByName;
use zbench_test_tiers as tiers;

const BF16: DType = DType::Bf16;

fn check(m: usize, n: usize, k: usize, trans: (bool, bool), accumulate: bool, alpha: f32, c: DType) {
    let tensors =
        [Tensor::normal(BF16, m * k, 1), Tensor::normal(BF16, k * n, 2), guarded(Tensor::normal(c, m * n, 3))];
    let case = format!("{m} x {n} x {k}, {trans:?}, accumulate {accumulate}, alpha {alpha}, {c}");
    hold(&case, tensors, &[2], |kernels, of, [ta, tb, tc]| {
        let (trans_a, trans_b) = trans;
        let op =
            Gemm { m, n, k, trans_a, trans_b, alpha, accumulate, a: of(BF16), b: of(BF16), c: of(c), ..Gemm::DENSE };
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
    for k in tiers::some("amx::products::sums_of_several_depths", [512, 511, 513, 1537, 1100, 1024], [3, 6]) {
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
            ..Gemm::DENSE
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
    let run = |device: &Cpu, rows: std::ops::Range<usize>, cols: std::ops::Range<usize>| {
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
            ..Gemm::DENSE
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
        ..Gemm::DENSE
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
