use crate::harness::*;
use proptest::prelude::*;
use zbench_kernels::{DType, Gemm, Kernels, Op};
use zbench_kernels_testing::{ByName, Reference};
use zbench_test_tiers as tiers;

fn check(m: usize, n: usize, k: usize, trans: (bool, bool), accumulate: bool, alpha: f32, types: [DType; 3]) {
    let [a, b, c] = types;
    let tensors = [Tensor::normal(a, m * k, 1), Tensor::normal(b, k * n, 2), guarded(Tensor::normal(c, m * n, 3))];
    let case = format!("{m} x {n} x {k}, {trans:?}, {accumulate}, {types:?}");
    compare(&case, tensors, &[2], |kernels, of, [ta, tb, tc]| {
        let (trans_a, trans_b) = trans;
        let op = Gemm { m, n, k, trans_a, trans_b, alpha, accumulate, a: of(a), b: of(b), c: of(c), ..Gemm::DENSE };
        let mut workspace = Tensor::workspace(kernels, &Op::Gemm(op));
        kernels.gemm(&op, ta.view(), tb.view(), tc.view_mut(), workspace.view_mut())
    });
}

/// Rows of A and of C that lie apart, as those of logits do on GPUs. No processor's kernels take them, so CUDA's stand beside the reference.
#[test]
fn rows_may_lie_apart() {
    let sizes = [[5, 17, 9], [130, 64, 40], [64, 136, 129], [3, 1, 1], [2, 2, 0], [33, 200, 64]];
    for (case, [m, n, k]) in sizes.into_iter().enumerate() {
        for trans in [(false, false), (false, true), (true, false), (true, true)] {
            for (dtype, c) in [(DType::F32, DType::F32), (DType::Bf16, DType::F32), (DType::F16, DType::F16)] {
                let (trans_a, trans_b) = trans;
                let accumulate = case % 2 == 1;
                let plain =
                    Gemm { m, n, k, trans_a, trans_b, alpha: 0.5, accumulate, a: dtype, b: dtype, c, ..Gemm::DENSE };
                let [_, columns, _] = plain.stored_a();
                let op =
                    Gemm { pitch_a: columns.next_multiple_of(8) + 8 * case, pitch_c: n + 3 + 5 * (case % 3), ..plain };
                let [rows, _, pitch] = op.stored_a();
                let tensors = [
                    Tensor::normal(dtype, rows * pitch, 1),
                    Tensor::normal(dtype, k * n, 2),
                    guarded(Tensor::normal(c, m * op.pitch_c, 3)),
                ];
                let run = |kernels: &dyn Kernels, op: Gemm, [a, b, c]: &mut [Tensor; 3]| {
                    let mut workspace = Tensor::workspace(kernels, &Op::Gemm(op));
                    kernels.gemm(&op, a.view(), b.view(), c.view_mut(), workspace.view_mut())
                };
                let f64s = Gemm { a: DType::F64, b: DType::F64, c: DType::F64, ..op };
                let mut exact = tensors.each_ref().map(Tensor::exact);
                run(&Reference, f64s, &mut exact).unwrap();
                assert!(run(&CPUS[0], op, &mut tensors.clone()).is_err(), "a processor has no such kernel");
                for cuda in CUDAS.iter().chain(gpus()) {
                    let mut got = tensors.clone();
                    on_device_of(cuda, || run(cuda, op, &mut got)).unwrap();
                    cuda.synchronize().unwrap();
                    // What lies between the rows and behind them is as it was, too.
                    assert_close(&format!("{op:?} on {}", cuda.name()), &got[2], &exact[2].values());
                }
            }
        }
    }
}

fn float() -> impl Strategy<Value = DType> {
    prop::sample::select(&FLOATS[..])
}

proptest! {
    #![proptest_config(cases(96))]

    #[test]
    fn any_shape_layout_and_type(
        m in prop::sample::select(vec![0, 1, 2, 3, 7, 16, 31, 65, 97, 130]),
        n in prop::sample::select(vec![0, 1, 2, 5, 13, 17, 48, 64, 101, 200]),
        k in prop::sample::select(vec![0, 1, 2, 3, 11, 64, 127, 300]),
        trans: (bool, bool),
        accumulate: bool,
        alpha in prop::sample::select(vec![1.0, 0.5, -2.0]),
        types in [float(), float(), float()],
    ) {
        check(m, n, k, trans, accumulate, alpha, types);
    }
}

proptest! {
    #![proptest_config(cases(48))]

    /// A matrix that was packed before gives the bits that it gives as it is; one packing serves products of any height.
    #[test]
    fn prepacked_is_the_same(
        m in prop::sample::select(vec![0, 1, 16, 31, 130]),
        n in prop::sample::select(vec![0, 1, 32, 33, 101, 300]),
        k in prop::sample::select(vec![0, 1, 3, 32, 127, 300]),
        trans: (bool, bool),
        accumulate: bool,
        dtype in prop::sample::select(vec![DType::F32, DType::Bf16]),
        c in float(),
    ) {
        let [ta, tb] = [(m * k, 1), (k * n, 2)].map(|(len, seed)| Tensor::normal(dtype, len, seed));
        for cpu in CPUS.iter().chain(PLAINER.iter()) {
            let (trans_a, trans_b) = trans;
            let op = |m| Gemm { m, n, k, trans_a, trans_b, alpha: 0.5, accumulate, a: dtype, b: dtype, c, ..Gemm::DENSE };
            let mut packed = guarded(Tensor::filled(DType::F32, cpu.prepacked_len(&op(m)).unwrap(), f64::NAN));
            cpu.prepack(&op(7), tb.view(), packed.view_mut()).unwrap();
            let [mut plain, mut kept] = [(); 2].map(|()| guarded(Tensor::normal(c, m * n, 3)));
            let mut workspace = Tensor::workspace(cpu, &Op::Gemm(op(m)));
            cpu.gemm(&op(m), ta.view(), tb.view(), plain.view_mut(), workspace.view_mut()).unwrap();
            let mut workspace = Tensor::workspace(cpu, &Op::GemmPrepacked(op(m)));
            cpu.gemm_prepacked(&op(m), ta.view(), packed.view(), kept.view_mut(), workspace.view_mut()).unwrap();
            prop_assert_eq!(plain.bits(), kept.bits(), "{}", cpu.name());
        }
    }
}

proptest! {
    #![proptest_config(cases(32))]

    /// Shapes that tensor cores take: several tiles, their edges, and slices along k fewer and more than are on their way at once.
    #[test]
    fn rows_of_whole_words(
        m in prop::sample::select(vec![1usize, 8, 15, 64, 130, 264]),
        n in prop::sample::select(vec![1usize, 8, 72, 128, 250, 264]),
        k in prop::sample::select(vec![8usize, 16, 33, 96, 136, 300]),
        trans: (bool, bool),
        accumulate: bool,
        dtype in prop::sample::select(vec![DType::Bf16, DType::F16]),
        c in float(),
    ) {
        // What is stored side by side is a multiple of eight.
        let whole = |wanted: bool, size: usize| if wanted { size.next_multiple_of(8) } else { size };
        let (m, n) = (whole(trans.0, m), whole(!trans.1, n));
        let k = whole(!trans.0 || trans.1, k);
        check(m, n, k, trans, accumulate, 0.5, [dtype, dtype, c]);
    }
}

#[test]
fn tensor_cores_multiply_what_is_aligned() {
    use std::sync::Arc;
    use zbench_kernels::{Cuda, cuda::host::Order};
    let machine = super::harness::host(Order::Forward);
    let cuda = Cuda::new(Arc::new(machine.clone())).unwrap();
    let (m, n, k) = (40, 48, 64);
    let run = |dtype: DType, other: DType, at: usize, trans: (bool, bool)| {
        let op = Gemm {
            m,
            n,
            k,
            trans_a: trans.0,
            trans_b: trans.1,
            alpha: 1.0,
            accumulate: false,
            a: dtype,
            b: other,
            c: dtype,
            ..Gemm::DENSE
        };
        let [a, b] = [(dtype, m * k + at), (other, k * n)].map(|(dtype, len)| Tensor::normal(dtype, len, 1));
        let (mut c, mut none) = (output(dtype, m * n), Tensor::workspace(&cuda, &Op::Gemm(op)));
        cuda.gemm(&op, a.view().slice(at..a.len), b.view(), c.view_mut(), none.view_mut()).unwrap();
        let exact = [a.view(), b.view()].map(|view| {
            let mut values = Tensor::filled(DType::F64, view.len(), 0.0);
            zbench_kernels_testing::Reference.cast(view, values.view_mut()).unwrap();
            values
        });
        let mut want = Tensor::filled(DType::F64, m * n, 0.0);
        let f64s = Gemm { a: DType::F64, b: DType::F64, c: DType::F64, ..op };
        let [a, b] = [exact[0].view().slice(at..exact[0].len), exact[1].view()];
        zbench_kernels_testing::Reference.gemm(&f64s, a, b, want.view_mut(), none.view_mut()).unwrap();
        let got = Tensor::of(dtype, &c.values()[..m * n]);
        assert_close(&format!("{dtype} {other} {at}"), &got, &want.values());
    };
    let (bf16, f16, f32) = (DType::Bf16, DType::F16, DType::F32);
    for trans in [(false, false), (false, true), (true, false), (true, true)] {
        for (dtype, other, at) in [
            (bf16, bf16, 0),
            (bf16, bf16, 1),
            (bf16, bf16, 8),
            (f16, f16, 0),
            (bf16, f16, 0),
            (f32, f32, 0),
            (f32, bf16, 3),
        ] {
            run(dtype, other, at, trans);
        }
    }
    let count = |kernel| machine.launches().get(kernel).copied().unwrap_or(0);
    assert_eq!([count("gemm_bf16"), count("gemm_f16"), count("gemm_any")], [8, 4, 16]);
}

/// Larger than what is packed at a time, in columns and in terms.
#[test]
fn prepacked_in_one_piece_is_read_in_several() {
    let (m, n, k) = (3, 600, 16_500);
    for [dtype, trans_b] in tiers::combinations("gemm::prepacked_in_one_piece_is_read_in_several", [2, 2]) {
        let (dtype, trans_b) = ([DType::Bf16, DType::F32][dtype], trans_b == 1);
        let cpu = &CPUS[1];
        let op = Gemm {
            m,
            n,
            k,
            trans_a: false,
            trans_b,
            alpha: 1.0,
            accumulate: false,
            a: dtype,
            b: dtype,
            c: dtype,
            ..Gemm::DENSE
        };
        let [ta, tb] = [(m * k, 1), (k * n, 2)].map(|(len, seed)| Tensor::normal(dtype, len, seed));
        let mut packed = Tensor::filled(DType::F32, cpu.prepacked_len(&op).unwrap(), f64::NAN);
        cpu.prepack(&op, tb.view(), packed.view_mut()).unwrap();
        let [mut plain, mut kept] = [(); 2].map(|()| Tensor::filled(dtype, m * n, f64::NAN));
        let mut workspace = Tensor::workspace(cpu, &Op::Gemm(op));
        cpu.gemm(&op, ta.view(), tb.view(), plain.view_mut(), workspace.view_mut()).unwrap();
        let mut workspace = Tensor::workspace(cpu, &Op::GemmPrepacked(op));
        cpu.gemm_prepacked(&op, ta.view(), packed.view(), kept.view_mut(), workspace.view_mut()).unwrap();
        assert_eq!(plain.bits(), kept.bits());
    }
    let deep = [(300, 3, 8300, (true, false), false, DType::F32), (3, 600, 16_500, (false, true), true, DType::Bf16)];
    for (m, n, k, trans, accumulate, dtype) in tiers::some("gemm::deep_sums", deep, [1, 2]) {
        check(m, n, k, trans, accumulate, 1.0, [dtype; 3]);
    }
}

#[test]
fn shapes_that_threads_divide_unevenly() {
    // Tall and wide, small on the other side, and a sum longer than one packing.
    const SHAPES: [[usize; 3]; 6] =
        [[1100, 1, 40], [1, 2100, 40], [2111, 3, 1500], [5, 700, 1500], [300, 64, 1300], [193, 191, 777]];
    for [shape, a, b] in tiers::combinations("gemm::shapes_that_threads_divide_unevenly", [SHAPES.len(), 2, 2]) {
        let [m, n, k] = SHAPES[shape];
        check(m, n, k, (a == 1, b == 1), false, 1.0, [DType::F32; 3]);
    }
}

#[test]
fn shapes_that_take_several_blocks_and_packings() {
    let (bf16, f16, f32) = (DType::Bf16, DType::F16, DType::F32);
    let all = [
        (160, 96, 512, (false, true), false, 1.0, [f32, f16, f32]),
        (160, 96, 512, (true, false), false, 1.0, [bf16, f32, bf16]),
        (20, 2060, 2100, (true, false), true, 0.5, [bf16; 3]),
        (70, 300, 2100, (true, false), true, 1.0, [f16, f16, f32]),
        (20, 2060, 2100, (false, true), true, 0.5, [f16; 3]),
        (3, 600, 8300, (true, true), false, 1.0, [f16; 3]),
        (1040, 20, 2100, (false, true), false, 1.0, [bf16; 3]),
        (1040, 2060, 9, (false, false), true, 1.0, [bf16, bf16, DType::F32]),
    ];
    for (m, n, k, trans, accumulate, alpha, types) in
        tiers::some("gemm::shapes_that_take_several_blocks_and_packings", all, [2, 4])
    {
        check(m, n, k, trans, accumulate, alpha, types);
    }
}

#[test]
fn the_workspace_of_a_large_product_is_bounded() {
    let bf16 = DType::Bf16;
    let bytes = |c, trans_a| {
        let (m, n, k) = (16_384, 100_000, 8192);
        let op =
            Gemm { m, n, k, trans_a, trans_b: true, alpha: 1.0, accumulate: false, a: bf16, b: bf16, c, ..Gemm::DENSE };
        CPUS[1].workspace(&Op::Gemm(op)) * 4
    };
    for c in FLOATS {
        assert!([false, true].into_iter().all(|trans_a| bytes(c, trans_a) <= 32 << 20));
    }
}
