//! Products by a library whose matrices lie by columns.

use crate::gpu::fakes::Fakes;
use std::time::Duration;
use zbench_kernels::cuda::gpu::{Gpu, Options};
use zbench_kernels::memory::device::{BLAS_WORKSPACE, Device, Stream};
use zbench_kernels::{DType, Gemm, Kernels, View, ViewMut};
use zbench_kernels_testing::{ByName, Reference};
use zbench_test_tiers as tiers;

const LIBRARY: &str = "libcublasLt.so.13";

fn gemm(m: usize, n: usize, k: usize) -> Gemm {
    let (alpha, accumulate) = (1.0, false);
    Gemm {
        m,
        n,
        k,
        trans_a: false,
        trans_b: false,
        alpha,
        accumulate,
        a: DType::F32,
        b: DType::F32,
        c: DType::F32,
        ..Gemm::DENSE
    }
}

/// Small whole numbers, which every type holds exactly, and so does every sum of their products here.
fn numbers(count: usize, seed: usize) -> Vec<f64> {
    (0..count).map(|i| ((i * 7 + seed * 3) % 5) as f64 - 2.0).collect()
}

fn stored(dtype: DType, values: &[f64]) -> Vec<u8> {
    let mut words = vec![0u64; (values.len() * dtype.size()).div_ceil(8)];
    let at = std::ptr::NonNull::new(words.as_mut_ptr()).unwrap().cast();
    // SAFETY: room for as many elements.
    Reference.cast(View::of(values), unsafe { ViewMut::from_raw(at, dtype, values.len()) }).unwrap();
    bytemuck::cast_slice(&words)[..values.len() * dtype.size()].to_vec()
}

/// A, B and C with what lies between their rows.
fn operands(op: &Gemm) -> [Vec<f64>; 3] {
    let len = |[rows, _, pitch]: [usize; 3]| rows * pitch;
    [numbers(len(op.stored_a()), 1), numbers(op.k * op.n, 2), numbers(len(op.stored_c()), 3)]
}

struct Case {
    gpu: Gpu,
    queue: Box<dyn Stream>,
    workspace: u64,
    workspace_bytes: usize,
}

impl Case {
    fn new(gpu: Gpu) -> Case {
        let workspace_bytes = gpu.blas_workspace();
        let (queue, workspace) = (gpu.new_stream().unwrap(), gpu.allocate(workspace_bytes).unwrap());
        Case { gpu, queue, workspace, workspace_bytes }
    }

    /// The product on the device, `shift` bytes behind what is aligned; `None` where the library has none.
    fn run(&self, op: &Gemm, shift: u64) -> Option<Vec<u8>> {
        let [a, b, c] = operands(op);
        let (a, b, mut c) = (stored(op.a, &a), stored(op.b, &b), stored(op.c, &c));
        let place = |bytes: &[u8]| {
            let at = self.gpu.allocate(bytes.len() + shift as usize).unwrap();
            // SAFETY: memory just made, of as many bytes.
            unsafe { self.queue.upload(bytes, at + shift).unwrap() };
            at
        };
        let at = [&a, &b, &c].map(|bytes| place(bytes));
        let [to_a, to_b, to_c] = at.map(|at| at + shift);
        let Case { queue, workspace, workspace_bytes, .. } = self;
        // SAFETY: operands as `op` describes them.
        let done = unsafe {
            let done = queue.blas_gemm(op, to_a, to_b, to_c, *workspace, *workspace_bytes);
            let done = done.unwrap_or_else(|error| panic!("{op:?}: {error}"));
            queue.download(to_c, &mut c).unwrap();
            at.into_iter().for_each(|at| self.gpu.free(at, 0));
            done
        };
        done.then_some(c)
    }
}

/// The same on the reference.
fn expected(op: &Gemm) -> Vec<u8> {
    let exact = Gemm { a: DType::F64, b: DType::F64, c: DType::F64, ..*op };
    let [a, b, mut c] = operands(op);
    Reference.gemm(&exact, View::of(&a), View::of(&b), ViewMut::of(&mut c), ViewMut::of::<f32>(&mut [])).unwrap();
    stored(op.c, &c)
}

#[test]
fn rows_are_columns_of_what_is_transposed() {
    let fakes = Fakes::all();
    let (f32, bf16, f16) = (DType::F32, DType::Bf16, DType::F16);
    let types = [(f32, f32), (bf16, bf16), (bf16, f32), (f16, f16), (f16, f32)];
    for tune in [false, true] {
        let case = Case::new(fakes.open(Options { tune, ..Options::default() }));
        let types = tiers::some("gpu::product::rows_are_columns_of_what_is_transposed (types)", types, [2, 5]);
        for (m, n, k) in tiers::some(
            "gpu::product::rows_are_columns_of_what_is_transposed",
            [(5, 7, 3), (1, 8, 4), (6, 1, 2), (4, 4, 9)],
            [2, 2],
        ) {
            for bits in 0..8 {
                let (trans_a, trans_b, accumulate) = (bits & 1 == 1, bits & 2 == 2, bits & 4 == 4);
                for (ab, c) in types.iter().copied() {
                    let alpha = if bits == 5 { 2.0 } else { 1.0 };
                    let op = Gemm { trans_a, trans_b, accumulate, alpha, a: ab, b: ab, c, ..gemm(m, n, k) };
                    let apart = Gemm { pitch_a: op.stored_a()[1] + 3, pitch_c: n + 2, ..op };
                    for op in [op, apart] {
                        let got = case.run(&op, 0);
                        assert!(got == Some(expected(&op)), "{op:?}, tune {tune}");
                        let again = case.run(&op, 0);
                        assert!(again == got, "{op:?}, tune {tune}, again");
                    }
                }
            }
        }
    }
}

#[test]
fn what_the_library_does_not_multiply_is_left_alone() {
    let fakes = Fakes::all();
    let case = Case::new(fakes.gpu());
    let all = [DType::F32, DType::Bf16, DType::F16, DType::F64, DType::I8];
    for i in 0..all.len().pow(3) {
        let [a, b, c] = [all[i % 5], all[i / 5 % 5], all[i / 25]];
        let known = matches!(a, DType::F32 | DType::Bf16 | DType::F16) && a == b && (c == a || c == DType::F32);
        let op = Gemm { a, b, c, ..gemm(2, 2, 2) };
        // SAFETY: nothing is touched, or operands that hold more than enough.
        let done = unsafe {
            let at = case.gpu.allocate(64).unwrap();
            let done = case.queue.blas_gemm(&op, at, at + 16, at + 32, case.workspace, case.workspace_bytes).unwrap();
            case.queue.synchronize().unwrap();
            case.gpu.free(at, 64);
            done
        };
        assert_eq!(done, known, "{op:?}");
    }
    for (m, n, k) in [(0, 2, 2), (2, 0, 2), (2, 2, 0)] {
        // SAFETY: nothing is touched.
        assert!(!unsafe { case.queue.blas_gemm(&gemm(m, n, k), 0, 0, 0, 0, 0) }.unwrap());
    }
    // What the library says it cannot do is asked once.
    let asked = || fakes.number(LIBRARY, "fake_asked");
    fakes.tell(LIBRARY, "fake_unsupported", 1);
    let before = asked();
    for _ in 0..3 {
        assert!(case.run(&gemm(3, 3, 3), 0).is_none());
    }
    assert_eq!(asked(), before + 1);
    assert!(case.gpu.products().iter().all(|chosen| chosen.op.m == 2), "what is not done is not listed");
}

/// No product silently becomes our own: which, and why, is told. Sums of nothing are nobody's.
#[test]
fn what_falls_back_to_our_own_kernels_is_told() {
    let fakes = Fakes::all();
    let case = Case::new(fakes.gpu());
    case.run(&gemm(4, 4, 4), 0).unwrap();
    // SAFETY: nothing is touched.
    assert!(!unsafe { case.queue.blas_gemm(&gemm(0, 2, 2), 0, 0, 0, 0, 0) }.unwrap());
    assert_eq!(case.gpu.take_fallbacks(), []);
    for (n, status, words) in [(3, 15, "not supported"), (5, 7, "invalid value")] {
        fakes.tell(LIBRARY, "fake_unsupported", status);
        for _ in 0..2 {
            assert!(case.run(&gemm(3, n, 3), 0).is_none());
        }
        let [fallback] = &case.gpu.take_fallbacks()[..] else { panic!("one product, twice") };
        assert_eq!(fallback.op, gemm(3, n, 3));
        // Decided once, and told again whoever asks next.
        case.run(&gemm(3, n, 3), 0);
        assert_eq!(case.gpu.take_fallbacks(), std::slice::from_ref(fallback));
        assert!(fallback.why.contains(words) && fallback.why.contains(&format!("status {status}")), "{}", fallback.why);
    }
    let op = Gemm { b: DType::Bf16, ..gemm(9, 9, 9) };
    // SAFETY: nothing is touched.
    assert!(!unsafe { case.queue.blas_gemm(&op, 0, 0, 0, 0, 0) }.unwrap());
    let told = case.gpu.take_fallbacks();
    assert!(told.len() == 1 && told[0].op == op && told[0].why.contains("f32 by bf16 into f32"), "{told:?}");
    assert_eq!(case.gpu.products().len(), 1);
}

#[test]
fn a_choice_is_made_once_for_each_shape_and_alignment() {
    let fakes = Fakes::all();
    let case = Case::new(fakes.gpu());
    let asked = || fakes.number(LIBRARY, "fake_asked");
    let preferences = || fakes.text(LIBRARY, "fake_preferences");
    case.run(&gemm(4, 4, 4), 0).unwrap();
    // 32 MiB of scratch, sums put together in f32, and all operands at multiples of 16 bytes.
    assert_eq!((asked(), preferences().as_str()), (1, "33554432 2 16 16 16 16"));
    case.run(&Gemm { alpha: 3.0, ..gemm(4, 4, 4) }, 0).unwrap();
    assert_eq!(asked(), 1, "a factor makes no difference");
    for shift in [16, 64, 128] {
        case.run(&gemm(4, 4, 4), shift).unwrap();
        assert_eq!(asked(), 1, "nor does what whole words begin at: {shift}");
    }
    case.run(&gemm(4, 4, 4), 8).unwrap();
    assert_eq!((asked(), preferences().as_str()), (2, "33554432 2 8 8 8 8"));
    case.run(&Gemm { trans_a: true, ..gemm(4, 4, 4) }, 0).unwrap();
    assert_eq!(asked(), 3);
    let small = Case { workspace_bytes: 1 << 20, ..Case::new(case.gpu.clone()) };
    small.run(&gemm(4, 4, 4), 0).unwrap();
    assert_eq!((asked(), preferences().as_str()), (4, "1048320 2 16 16 16 16"));
    let products = case.gpu.products();
    assert_eq!(products.len(), 4);
    let first = &products[0];
    assert_eq!((first.algorithm, first.tile, first.split, first.candidates), (100, 1001, 1002, 1));
    assert_eq!(first.time, None, "nothing is timed where nobody asks for it");
}

/// Arenas place buffers at multiples of 64 bytes, and cuBLASLt refuses scratch that is at no multiple of 256.
#[test]
fn scratch_may_begin_anywhere() {
    let fakes = Fakes::all();
    let case = Case::new(fakes.gpu());
    let room = case.workspace_bytes + 192;
    let base = case.gpu.allocate(room + 256).unwrap();
    let asked = || fakes.number(LIBRARY, "fake_asked");
    for shift in [0, 64, 128, 192] {
        // What lies before the scratch and behind it is somebody else's.
        let (before, behind) = (vec![7u8; shift + 64], vec![7u8; 256]);
        let workspace = base + 64 + shift as u64;
        // SAFETY: memory just made, of more bytes.
        unsafe {
            case.queue.upload(&before, base).unwrap();
            case.queue.upload(&behind[shift..], workspace + case.workspace_bytes as u64).unwrap();
        }
        case.queue.synchronize().unwrap();
        let shifted = Case { workspace, queue: case.gpu.new_stream().unwrap(), gpu: case.gpu.clone(), ..case };
        assert!(shifted.run(&gemm(4, 4, 4), 0) == Some(expected(&gemm(4, 4, 4))), "{shift}");
        assert_eq!(asked(), 1, "where the scratch lies makes no difference");
        let (mut left, mut right) = (vec![0u8; before.len()], vec![0u8; behind.len() - shift]);
        // SAFETY: as above.
        unsafe {
            case.queue.download(base, &mut left).unwrap();
            case.queue.download(workspace + case.workspace_bytes as u64, &mut right).unwrap();
        }
        assert!(
            left == before && right.iter().all(|byte| *byte == 7),
            "{shift}: bytes beside the scratch have changed"
        );
    }
    // SAFETY: made above.
    unsafe { case.gpu.free(base, room + 256) };
}

#[test]
fn candidates_are_timed_and_the_fastest_taken() {
    let fakes = Fakes::all();
    let case = Case::new(fakes.open(Options { tune: true, ..Options::default() }));
    for (i, accumulate) in [false, true].into_iter().enumerate() {
        let op = Gemm { accumulate, ..gemm(4, 6 + i, 4) };
        assert!(case.run(&op, 0) == Some(expected(&op)), "timing leaves no trace");
        let chosen = &case.gpu.products()[i];
        // The third of four proposals refuses to run, the fourth is the fastest and uses scratch.
        assert_eq!((chosen.algorithm, chosen.candidates, chosen.workspace_bytes), (103, 4, 3 << 20));
        assert_eq!(chosen.time, Some(Duration::from_millis(2)));
    }
    // Without scratch only the first is left, and is not timed.
    let bare = Case { workspace_bytes: 0, ..case };
    bare.run(&gemm(9, 9, 9), 0).unwrap();
    let chosen = bare.gpu.products().pop().unwrap();
    assert_eq!((chosen.algorithm, chosen.candidates, chosen.time), (100, 1, None));
}

#[test]
fn a_product_without_room_to_time_is_done_all_the_same() {
    let fakes = Fakes::all();
    let case = Case::new(fakes.open(Options { tune: true, ..Options::default() }));
    let op = Gemm { accumulate: true, ..gemm(4, 4, 4) };
    let at = case.gpu.allocate(64).unwrap();
    fakes.fail("cuMemAlloc_v2", 2);
    // SAFETY: operands as `op` describes them.
    assert!(unsafe { case.queue.blas_gemm(&op, at, at, at, case.workspace, case.workspace_bytes) }.unwrap());
    assert_eq!((case.gpu.products()[0].algorithm, case.gpu.products()[0].time), (100, None));
    fakes.fail("cuMemAlloc_v2", 0);
    case.queue.synchronize().unwrap();
    // SAFETY: made above.
    unsafe { case.gpu.free(at, 64) };
}

#[test]
fn scratch_is_the_same_for_all_machines() {
    let fakes = Fakes::all();
    assert_eq!(fakes.gpu().blas_workspace(), BLAS_WORKSPACE);
    fakes.set("major", 8);
    assert_eq!(fakes.gpu().blas_workspace(), BLAS_WORKSPACE);
    let without = Fakes::without(&[LIBRARY]);
    if without.probe().cublaslt.is_ok() {
        println!("the system's cuBLASLt stands in");
        return;
    }
    let gpu = without.gpu();
    assert_eq!((gpu.blas_workspace(), gpu.products().len()), (BLAS_WORKSPACE, 0));
    let queue = gpu.new_stream().unwrap();
    // SAFETY: nothing is touched.
    assert!(!unsafe { queue.blas_gemm(&gemm(2, 2, 2), 0, 0, 0, 0, 0) }.unwrap());
    assert_eq!(gpu.take_fallbacks()[0].why, "there is no cuBLASLt");
}
