//! Parts of tensors as Hopper's copies want them described.

use crate::gpu::fakes::Fakes;
use std::sync::Arc;
use zbench_kernels::memory::device::{Device, TensorBox};
use zbench_kernels::{Attention, Category, Cuda, DType, Kernels, Op};
use zbench_kernels_testing::ByName;

/// As the driver's header numbers them: no interleaving, a swizzle of 128 bytes, 128 or 256 bytes at once into L2, zeros
/// outside.
const INTERLEAVE_NONE: u64 = 0;
const SWIZZLE_128B: u64 = 3;
const L2_128B: u64 = 2;
const L2_256B: u64 = 3;
const FILL_NONE: u64 = 0;

fn part() -> TensorBox {
    TensorBox {
        address: 0x7f12_3456_7890,
        dtype: DType::Bf16,
        sizes: [512, 1000, 3],
        strides: [1040, 1040 * 1001],
        part: [64, 128, 1],
    }
}

#[test]
fn the_driver_gets_what_the_machine_was_given() {
    let fakes = Fakes::all();
    let gpu = fakes.gpu();
    let words = |part: &TensorBox| gpu.tensor_map(part).unwrap_or_else(|error| panic!("{error}")).0;
    let expected = |number: u64, part: &TensorBox, promotion: u64| {
        let [x, y, z] = part.part.map(u64::from);
        let ([a, b, c], [second, third]) = (part.sizes, part.strides);
        let (how, mark) = ([1, INTERLEAVE_NONE, SWIZZLE_128B, promotion, FILL_NONE], 0x7a7a);
        [&[number, part.address, a, b, c, second, third, x, y, z][..], &how, &[mark]].concat()
    };
    assert_eq!(words(&part())[..], expected(9, &part(), L2_256B));
    // Rows of one part alone: there is nothing beside it.
    let narrow = TensorBox { sizes: [64, 1000, 3], ..part() };
    assert_eq!(words(&narrow)[..], expected(9, &narrow, L2_128B));
    for (dtype, number) in
        [(DType::F64, 8), (DType::F32, 7), (DType::F16, 6), (DType::U32, 2), (DType::I32, 3), (DType::I8, 0)]
    {
        let own = TensorBox { dtype, sizes: [130, 7, 1], part: [128 / dtype.size() as u32, 256, 1], ..part() };
        assert_eq!(words(&own)[..], expected(number, &own, L2_256B));
    }
    // The largest that there may be.
    let most = TensorBox {
        dtype: DType::I8,
        sizes: [1 << 32; 3],
        strides: [1 << 32, 1 << 39],
        part: [128, 256, 256],
        ..part()
    };
    assert_eq!(words(&most)[..], expected(0, &most, L2_256B));
}

#[test]
fn what_the_driver_would_refuse_is_refused_with_a_reason() {
    let fakes = Fakes::all();
    let gpu = fakes.gpu();
    let good = part();
    for (wrong, words) in [
        (TensorBox { address: 0, ..good }, "address 0x0 is no multiple of 16"),
        (TensorBox { address: good.address + 8, ..good }, "is no multiple of 16"),
        (TensorBox { sizes: [512, 0, 3], ..good }, "0 elements along a dimension"),
        (TensorBox { sizes: [512, 1000, (1 << 32) + 1], ..good }, "1 to 2^32"),
        (TensorBox { strides: [1048, 1048 * 1000], ..good }, "a stride of 1048 bytes is no multiple of 16"),
        (TensorBox { strides: [1040, 1040 << 31], ..good }, "below 2^40"),
        (TensorBox { strides: [1008, 1008 * 1000], ..good }, "rows of 1024 bytes overlap at a stride of 1008"),
        (TensorBox { strides: [1040, 1040 * 1000 + 16], ..good }, "is no multiple of the one before it, 1040"),
        (TensorBox { part: [64, 257, 1], ..good }, "1 to 256 along each dimension"),
        (TensorBox { part: [64, 128, 0], ..good }, "1 to 256 along each dimension"),
        (TensorBox { part: [32, 128, 1], ..good }, "a row of a part has 64 bytes"),
        (TensorBox { part: [128, 128, 1], ..good }, "a row of a part has 256 bytes"),
    ] {
        let error = gpu.tensor_map(&wrong).unwrap_err();
        assert!(error.call == "cuTensorMapEncodeTiled" && error.reason.contains(words), "{wrong:?}: {error}");
    }
    // What only the driver knows comes out with its words.
    fakes.fail("cuTensorMapEncodeTiled", 1);
    let error = gpu.tensor_map(&good).unwrap_err();
    assert!(error.call == "cuTensorMapEncodeTiled" && error.reason.contains("(1)"), "{error}");
    fakes.fail("cuTensorMapEncodeTiled", 0);
    gpu.tensor_map(&good).unwrap();
}

#[test]
fn machines_without_such_copies_say_so() {
    // A driver that has all other functions still does all other work.
    let fakes = Fakes::of_old();
    let gpu = fakes.gpu();
    let error = gpu.tensor_map(&part()).unwrap_err().to_string();
    assert!(error.contains("CUDA driver 13.0 of ") && error.contains("libcuda.so.1"), "{error}");
    assert!(error.contains("came with CUDA 12.0: update the driver"), "{error}");
    gpu.load(&["fill"]).unwrap();

    let fakes = Fakes::all();
    fakes.set("major", 8);
    let error = fakes.gpu().tensor_map(&part()).unwrap_err().to_string();
    assert!(error.contains("compute capability 8.0 has no such copies"), "{error}");
}

#[test]
fn attention_for_hopper_starts_with_maps_of_its_operands() {
    let fakes = Fakes::all();
    let cuda = Cuda::new(Arc::new(fakes.gpu())).unwrap().prefer_hopper_attention(true);
    let (batch, seq, heads, kv_heads, head_dim, dtype) = (2, 200, 4, 2, 64, DType::Bf16);
    let op = Attention {
        batch,
        seq,
        kv_seq: seq,
        causal: true,
        heads,
        kv_heads,
        head_dim,
        scale: 0.125,
        window: None,
        alibi: None,
        dtype,
    };
    let arena = cuda.arena(Some(16 << 20), 1).unwrap();
    let of = |dtype, len| arena.alloc(Category::Workspace, dtype, len).unwrap();
    let [q, mut out] = [0; 2].map(|_| of(dtype, batch * seq * heads * head_dim));
    let [k, v] = [0; 2].map(|_| of(dtype, batch * seq * kv_heads * head_dim));
    let mut lse = of(DType::F32, batch * heads * seq);
    let mut workspace = of(DType::F32, cuda.workspace(&Op::Attention(op)).max(1));
    cuda.attention(&op, q.view(), k.view(), v.view(), out.view_mut(), lse.view_mut(), workspace.view_mut()).unwrap();
    let at = |view: zbench_kernels::View<'_>| view.ptr().as_ptr() as usize;
    let log = fakes.log();
    assert!(log[0].starts_with("flash_hopper_64 16,1,1 x 384, "), "{log:?}");
    let maps = [(q.view(), 64), (k.view(), 128), (v.view(), 128)];
    assert_eq!(log[1..], maps.map(|(view, rows)| format!("map {:x}, {rows} rows", at(view))));

    // Where the driver cannot describe them the operation says so, and nothing is started.
    fakes.fail("cuTensorMapEncodeTiled", 1);
    let asked = cuda.attention(&op, q.view(), k.view(), v.view(), out.view_mut(), lse.view_mut(), workspace.view_mut());
    assert!(asked.unwrap_err().to_string().contains("cuTensorMapEncodeTiled"));
    assert_eq!(fakes.log().len(), log.len());
}
