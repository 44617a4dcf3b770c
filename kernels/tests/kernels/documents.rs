//! Attention where sequences hold several documents.

use crate::attention::sizes_of_sums;
use crate::harness::*;
use proptest::prelude::*;
use std::sync::Arc;
use zbench_kernels::cuda::host::Order;
use zbench_kernels::{AlibiHeads, Attention, Cuda, DType, KernelError, Kernels, Op, Result, View};
use zbench_kernels_testing::{ByName, Reference};

/// A device that knows documents.
trait Device: Kernels + ByName {}
impl<T: Kernels + ByName> Device for T {}

/// Runs `call` on the reference in f64 and on all cores and the CUDA kernels in the tensors' own types: all must agree, and
/// those of a kind with one another to the bit. The last `outs` tensors are written; they have guards. `sizes` as for
/// [`assert_sum_close`].
fn agree<const N: usize>(
    case: &str,
    op: Attention,
    tensors: &[Tensor; N],
    outs: usize,
    sizes: &[Vec<f64>],
    call: impl Fn(&dyn Device, &Attention, &mut [Tensor; N]) -> Result<()>,
) -> [Tensor; N] {
    let mut exact = tensors.each_ref().map(Tensor::exact);
    call(&Reference, &Attention { dtype: DType::F64, ..op }, &mut exact).unwrap();
    let on = |device: &dyn Device| {
        let mut got = tensors.clone();
        call(device, &op, &mut got).unwrap();
        device.synchronize().unwrap();
        for i in N - outs..N {
            let case = format!("{case}, {}, {} threads, tensor {i}", device.name(), device.threads());
            let sizes = sizes.get(i + outs - N).map_or(&[][..], Vec::as_slice);
            assert_sum_close(&case, &got[i], &exact[i].values(), sizes);
        }
        got
    };
    let [first, rest @ ..] = CPUS.each_ref().map(|cpu| on(cpu));
    for (got, i) in rest.iter().flat_map(|got| (0..N).map(move |i| (got, i))) {
        assert_eq!(got[i].bits(), first[i].bits(), "{case}: tensor {i} depends on the threads");
    }
    PLAINER.iter().for_each(|cpu| drop(on(cpu)));
    let [forward, backward] = CUDAS.each_ref().map(|cuda| on(cuda));
    for i in 0..N {
        assert_eq!(forward[i].bits(), backward[i].bits(), "{case}: tensor {i} depends on the order of threads");
        if i < N - outs {
            assert_eq!(forward[i].bits(), tensors[i].bits(), "{case}: tensor {i} is no output");
        } else {
            let guard = forward[i].len - GUARD;
            assert!(forward[i].values()[guard..].iter().all(|x| *x == SENTINEL), "{case}: wrote past tensor {i}");
        }
    }
    first
}

/// All kernels.
fn check(op: Attention, starts: &[u32]) {
    let Attention { batch, seq, heads, kv_heads, head_dim, dtype, .. } = op;
    let (q, kv) = (batch * seq * heads * head_dim, batch * seq * kv_heads * head_dim);
    let (lines, squares) = (batch * heads * seq, batch * heads * seq * seq);
    let case = format!("{op:?} {starts:?}");
    let [qs, ks, vs, dout] = [(q, 1), (kv, 2), (kv, 3), (q, 4)].map(|(len, seed)| Tensor::normal(dtype, len, seed));
    let sizes = sizes_of_sums(&op, Some(starts), [&qs, &ks, &vs, &dout]);
    let starts = Tensor::ids(starts);

    let tensors = [qs.clone(), ks.clone(), vs.clone(), output(dtype, q), output(DType::F32, lines)];
    let left = agree(&case, op, &tensors, 2, &[], |device, op, [q, k, v, out, lse]| {
        let mut work = Tensor::workspace(device, &Op::Attention(*op));
        let (q, k, v, out, lse) = (q.view(), k.view(), v.view(), out.view_mut(), lse.view_mut());
        device.attention_in_documents(op, starts.view(), q, k, v, out, lse, work.view_mut())
    });
    let [.., out, lse] = left;
    let [dq, dk, dv] = [q, kv, kv].map(|len| output(dtype, len));
    let tensors = [qs.clone(), ks.clone(), vs.clone(), out, lse, dout.clone(), dq, dk, dv];
    agree(&format!("{case} backward"), op, &tensors, 3, &sizes, |device, op, [q, k, v, out, lse, dout, dq, dk, dv]| {
        let mut work = Tensor::workspace(device, &Op::AttentionBackward(*op));
        let (q, k, v, out, lse, dout) = (q.view(), k.view(), v.view(), out.view(), lse.view(), dout.view());
        let (dq, dk, dv, work) = (dq.view_mut(), dk.view_mut(), dv.view_mut(), work.view_mut());
        device.attention_in_documents_backward(op, starts.view(), q, k, v, out, lse, dout, dq, dk, dv, work)
    });

    let tensors = [qs.clone(), ks.clone(), vs.clone(), output(dtype, q), output(dtype, squares)];
    let left = agree(&format!("{case} naive"), op, &tensors, 2, &[], |device, op, [q, k, v, out, probs]| {
        let mut work = Tensor::workspace(device, &Op::NaiveAttention(*op));
        let (q, k, v, out, probs) = (q.view(), k.view(), v.view(), out.view_mut(), probs.view_mut());
        device.naive_attention_in_documents(op, starts.view(), q, k, v, out, probs, work.view_mut())
    });
    // The stored zeros are all that the other backward needs.
    let [.., probs] = left;
    let [dq, dk, dv] = [q, kv, kv].map(|len| output(dtype, len));
    let tensors = [qs, ks, vs, probs, dout, dq, dk, dv];
    agree(
        &format!("{case} naive backward"),
        op,
        &tensors,
        3,
        &sizes,
        |device, op, [q, k, v, probs, dout, dq, dk, dv]| {
            let mut work = Tensor::workspace(device, &Op::NaiveAttentionBackward(*op));
            let (q, k, v, probs, dout) = (q.view(), k.view(), v.view(), probs.view(), dout.view());
            let (dq, dk, dv, work) = (dq.view_mut(), dk.view_mut(), dv.view_mut(), work.view_mut());
            device.naive_attention_backward(op, q, k, v, probs, dout, dq, dk, dv, work)
        },
    );
}

fn shape(batch: usize, seq: usize, heads: usize, kv_heads: usize, head_dim: usize, dtype: DType) -> Attention {
    let scale = 1.0 / (head_dim as f64).sqrt();
    Attention {
        batch,
        seq,
        kv_seq: seq,
        causal: true,
        heads,
        kv_heads,
        head_dim,
        scale,
        window: None,
        alibi: None,
        dtype,
    }
}

/// Where the documents of a sequence start that has one wherever `cuts` says.
fn starts(seq: usize, cuts: &[usize]) -> Vec<u32> {
    (0..seq).map(|row| cuts.iter().copied().filter(|cut| *cut <= row).max().unwrap_or(0) as u32).collect()
}

proptest! {
    #![proptest_config(cases(20))]

    #[test]
    fn documents_of_any_length(
        seq in prop::sample::select(vec![1, 3, 31, 64, 128, 129, 260, 300]),
        cuts in prop::collection::vec(prop::collection::vec(0usize..300, 0..6), 2),
        window in prop::option::of(prop::sample::select(vec![1, 40, 200])),
        alibi: bool,
        (heads, kv_heads) in prop::sample::select(vec![(1, 1), (2, 1), (4, 2)]),
        head_dim in prop::sample::select(vec![7, 16, 40]),
        dtype in prop::sample::select(&FLOATS[..]),
    ) {
        let all: Vec<u32> = cuts.iter().flat_map(|cuts| starts(seq, cuts)).collect();
        let alibi = alibi.then_some(AlibiHeads::whole(heads));
        check(Attention { window, alibi, ..shape(2, seq, heads, kv_heads, head_dim, dtype) }, &all);
    }
}

/// Head sizes that the tensor cores take, with documents that end within tiles and fill several.
#[test]
fn documents_on_tensor_cores() {
    let cuts = [0, 5, 70, 71, 200];
    let all = |seq: usize| [starts(seq, &cuts), starts(seq, &[130])].concat();
    check(shape(2, 260, 1, 1, 64, DType::Bf16), &all(260));
    check(shape(2, 133, 2, 1, 96, DType::F16), &all(133));
    check(
        Attention { window: Some(40), alibi: Some(AlibiHeads::whole(2)), ..shape(2, 150, 2, 1, 128, DType::Bf16) },
        &all(150),
    );
}

/// Packed documents give what each gives as a sequence of its own: the reference's notion of a document is the right one.
#[test]
fn a_document_is_as_good_as_a_sequence() {
    let (lens, heads, kv_heads, dim) = ([5usize, 130, 1, 97], 2, 1, 16);
    let seq = lens.iter().sum();
    let mut cuts = vec![0];
    lens.iter().for_each(|len| cuts.push(cuts.last().unwrap() + len));
    let all = Tensor::ids(&starts(seq, &cuts));
    let whole = shape(1, seq, heads, kv_heads, dim, DType::F64);
    let [q, k, v] = [(heads, 1), (kv_heads, 2), (kv_heads, 3)]
        .map(|(heads, seed)| Tensor::normal(DType::F64, seq * heads * dim, seed).values());
    let run = |op: &Attention, starts: Option<&Tensor>, q: &[f64], k: &[f64], v: &[f64]| {
        let mut out = Tensor::filled(DType::F64, q.len(), f64::NAN);
        let mut lse = Tensor::filled(DType::F64, op.seq * op.heads, f64::NAN);
        let mut none = Tensor::filled(DType::F32, 0, 0.0);
        let (q, k, v) = (View::of(q), View::of(k), View::of(v));
        let (o, l, w) = (out.view_mut(), lse.view_mut(), none.view_mut());
        match starts {
            Some(starts) => Reference.attention_in_documents(op, starts.view(), q, k, v, o, l, w),
            None => Reference.attention(op, q, k, v, o, l, w),
        }
        .unwrap();
        out.values()
    };
    let packed = run(&whole, Some(&all), &q, &k, &v);
    for (len, start) in lens.into_iter().zip(cuts) {
        let part = |x: &[f64], heads: usize| x[start * heads * dim..(start + len) * heads * dim].to_vec();
        let op = Attention { seq: len, kv_seq: len, ..whole };
        let alone = run(&op, None, &part(&q, heads), &part(&k, kv_heads), &part(&v, kv_heads));
        assert_eq!(alone, part(&packed, heads), "document at {start}");
    }
}

/// One document is what there is without documents, to the bit.
#[test]
fn one_document_changes_nothing() {
    let devices = [&CPUS[1] as &dyn Device, &CUDAS[0]];
    for (dtype, device) in FLOATS.into_iter().flat_map(|dtype| devices.map(|device| (dtype, device))) {
        let op = shape(2, 150, 2, 2, 64, dtype);
        let len = 2 * 150 * 128;
        let [q, k, v] = [1, 2, 3].map(|seed| Tensor::normal(dtype, len, seed));
        let none = Tensor::ids(&[0; 300]);
        let run = |starts: Option<&Tensor>| {
            let (mut out, mut lse) = (output(dtype, len), output(DType::F32, 600));
            let mut work = Tensor::workspace(device, &Op::Attention(op));
            let (o, l, w) = (out.view_mut(), lse.view_mut(), work.view_mut());
            match starts {
                Some(starts) => {
                    device.attention_in_documents(&op, starts.view(), q.view(), k.view(), v.view(), o, l, w)
                }
                None => device.attention(&op, q.view(), k.view(), v.view(), o, l, w),
            }
            .unwrap();
            (out.bits(), lse.bits())
        };
        assert_eq!(run(Some(&none)), run(None), "{dtype}");
    }
}

#[test]
fn starts_that_cannot_be_are_refused() {
    let op = shape(2, 4, 1, 1, 8, DType::F32);
    let x = Tensor::normal(DType::F32, 64, 1);
    for device in [&CPUS[1] as &dyn Device, &Reference] {
        let run = |starts: &Tensor| {
            let (mut out, mut lse) = (output(DType::F32, 64), output(DType::F32, 8));
            let mut work = Tensor::workspace(device, &Op::Attention(op));
            let (o, l, w) = (out.view_mut(), lse.view_mut(), work.view_mut());
            device.attention_in_documents(&op, starts.view(), x.view(), x.view(), x.view(), o, l, w)
        };
        run(&Tensor::ids(&[0, 0, 2, 2, 0, 1, 2, 3])).unwrap();
        for (wrong, says) in
            [([0, 2, 2, 2, 0, 0, 0, 0], "token 1 of sequence 0"), ([0, 0, 0, 0, 0, 1, 0, 0], "token 2 of sequence 1")]
        {
            let error = run(&Tensor::ids(&wrong)).unwrap_err();
            assert!(matches!(&error, KernelError::Invalid { op: "attention", .. }), "{error}");
            assert!(error.to_string().contains(says), "{error}");
        }
        assert!(matches!(run(&Tensor::ids(&[0; 7])), Err(KernelError::Shape { operand: "starts", wanted: 8, .. })));
        assert!(matches!(run(&Tensor::filled(DType::F32, 8, 0.0)), Err(KernelError::DType { wanted: DType::U32, .. })));
    }
}

/// The host cannot read what lies on a device: there the fault comes out when somebody waits, and of calls after it no more.
#[test]
fn starts_that_cannot_be_come_out_later() {
    let cuda = Cuda::new(Arc::new(host(Order::Forward))).unwrap();
    for (dim, dtype) in [(8, DType::F32), (64, DType::Bf16)] {
        let op = shape(2, 4, 1, 1, dim, dtype);
        let x = Tensor::normal(dtype, 8 * dim, 1);
        let run = |starts: &[u32]| {
            let (starts, mut out, mut lse) = (Tensor::ids(starts), output(dtype, 8 * dim), output(DType::F32, 8));
            let mut work = Tensor::workspace(&cuda, &Op::Attention(op));
            let (o, l, w) = (out.view_mut(), lse.view_mut(), work.view_mut());
            cuda.attention_in_documents(&op, starts.view(), x.view(), x.view(), x.view(), o, l, w)?;
            cuda.synchronize()
        };
        run(&[0, 0, 2, 2, 0, 1, 2, 3]).unwrap();
        for (wrong, says) in [([0, 2, 2, 2, 0, 0, 0, 0], "token 1 "), ([0, 0, 0, 0, 0, 1, 0, 0], "token 2 ")] {
            let error = run(&wrong).unwrap_err();
            assert!(matches!(&error, KernelError::Invalid { op: "attention", .. }), "{error}");
            assert!(error.to_string().contains(says), "{error}");
        }
        run(&[0, 0, 2, 2, 0, 1, 2, 3]).unwrap();
        assert!(matches!(run(&[0; 7]), Err(KernelError::Shape { operand: "starts", wanted: 8, .. })));
    }
}
