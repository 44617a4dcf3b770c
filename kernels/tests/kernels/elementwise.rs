use crate::carried::{all, on_gpu};
use crate::harness::*;
use proptest::prelude::*;
use zbench_kernels::{
    Activation, AdamW, DType, Dropout, GatedActivation, Kernels, Normal, PointwiseActivation, ReduceOp, Rounding,
};
use zbench_kernels_testing::{ByName, Reference};

fn float() -> impl Strategy<Value = DType> {
    prop::sample::select(&FLOATS[..])
}

fn act() -> impl Strategy<Value = Activation> {
    prop::sample::select(vec![Activation::Silu, Activation::Gelu, Activation::GeluTanh])
}

/// Around vectors, chunks, and what is worth a second and third thread.
fn length() -> impl Strategy<Value = usize> {
    prop::sample::select(vec![0, 1, 15, 17, 511, 512, 513, 1000, 8191, 8193, 16_385, 20_001])
}

/// The cores and the CUDA kernels.
fn devices() -> impl Iterator<Item = &'static dyn Kernels> {
    let cuda = CUDAS.iter().map(|cuda| cuda as &dyn Kernels);
    CPUS.iter().map(|cpu| cpu as &dyn Kernels).chain(cuda).chain(on_gpu())
}

/// With the plainer sets of instructions and the reference.
fn everything() -> impl Iterator<Item = &'static dyn Kernels> {
    all().chain([&Reference as &dyn Kernels])
}

fn adamw(len: usize, types: [DType; 3]) -> AdamW {
    let [parameters, gradients, moments] = types;
    AdamW {
        len,
        lr: 1e-2,
        beta1: 0.9,
        beta2: 0.95,
        eps: 1e-8,
        weight_decay: 0.1,
        step: 3,
        grad_scale: 0.25,
        clip: 0.7,
        parameters,
        gradients,
        moments,
        rounding: Rounding::Nearest,
        copy: None,
    }
}

proptest! {
    #![proptest_config(cases(64))]

    #[test]
    fn swiglu(len in length(), dtype in float(), function in act()) {
        let op = GatedActivation { len, act: function, dtype };
        let [gate, up, dact] = [1, 2, 3].map(|seed| Tensor::normal(dtype, len, seed));
        let tensors = [gate.clone(), up.clone(), output(dtype, len)];
        compare(&format!("{op:?}"), tensors, &[2], |kernels, of, [gate, up, act]| {
            kernels.swiglu(&GatedActivation { dtype: of(dtype), ..op }, gate.view(), up.view(), act.view_mut())
        });
        let tensors = [gate, up, dact, output(dtype, len), output(dtype, len)];
        compare(&format!("{op:?} backward"), tensors, &[3, 4], |kernels, of, [gate, up, dact, dgate, dup]| {
            let op = GatedActivation { dtype: of(dtype), ..op };
            kernels.swiglu_backward(&op, gate.view(), up.view(), dact.view(), dgate.view_mut(), dup.view_mut())
        });
    }

    #[test]
    fn activate(len in length(), dtype in float(), act in act(), spread in 0.1f64..9.0) {
        let op = PointwiseActivation { len, act, dtype };
        let wide: Vec<f64> = Tensor::normal(DType::F64, len, 1).values().iter().map(|x| x * spread).collect();
        let (x, dy) = (Tensor::of(dtype, &wide), Tensor::normal(dtype, len, 2));
        compare(&format!("{op:?}"), [x.clone(), output(dtype, len)], &[1], |kernels, of, [x, y]| {
            kernels.activate(&PointwiseActivation { dtype: of(dtype), ..op }, x.view(), y.view_mut())
        });
        compare(&format!("{op:?} backward"), [x, dy, output(dtype, len)], &[2], |kernels, of, [x, dy, dx]| {
            kernels.activate_backward(&PointwiseActivation { dtype: of(dtype), ..op }, x.view(), dy.view(), dx.view_mut())
        });
    }

    #[test]
    fn adamw_step(len in length(), types in [float(), float(), float()]) {
        let [parameters, gradients, moments] = types;
        let second: Vec<f64> = Tensor::normal(DType::F64, len, 3).values().iter().map(|x| x * x).collect();
        let tensors = [
            guarded(Tensor::normal(parameters, len, 1)),
            guarded(Tensor::normal(moments, len, 2)),
            guarded(Tensor::of(moments, &second)),
            Tensor::normal(gradients, len, 4),
        ];
        compare(&format!("{len} {types:?}"), tensors, &[0, 1, 2], |kernels, of, [p, m, v, g]| {
            kernels.adamw(&adamw(len, types.map(of)), p.view_mut(), m.view_mut(), v.view_mut(), g.view(), None)
        });
    }

    #[test]
    fn adamw_copies_what_it_stored(len in length(), types in [float(), float(), float()], copy in float()) {
        let op = AdamW { copy: Some(copy), ..adamw(len, types) };
        let squares: Vec<f64> = Tensor::normal(DType::F64, len, 3).values().iter().map(|x| x * x).collect();
        for kernels in everything() {
            let [mut p, mut m, g] = [(0, 1), (2, 2), (1, 4)].map(|(i, seed)| Tensor::normal(types[i], len, seed));
            let (mut v, mut copied) = (Tensor::of(types[2], &squares), output(copy, len));
            let (mut alone, before) = ([p.clone(), m.clone(), v.clone()], p.clone());
            let to = Some(copied.view_mut());
            kernels.adamw(&op, p.view_mut(), m.view_mut(), v.view_mut(), g.view(), to).unwrap();
            let [p_alone, m_alone, v_alone] = &mut alone;
            let plain = AdamW { copy: None, ..op };
            kernels.adamw(&plain, p_alone.view_mut(), m_alone.view_mut(), v_alone.view_mut(), g.view(), None).unwrap();
            for (with, without) in [&p, &m, &v].into_iter().zip(&alone) {
                prop_assert_eq!(with.bits(), without.bits(), "{} {:?}: the copy changes the step", kernels.name(), op);
            }
            prop_assert!(len == 0 || p.bits() != before.bits(), "nothing was updated");
            let mut cast = output(copy, len);
            kernels.cast(p.view(), cast.view_mut().into_slice(0..len)).unwrap();
            prop_assert_eq!(copied.bits(), cast.bits(), "{} {:?}", kernels.name(), op);
        }
    }

    #[test]
    fn dropout_and_normal(len in length(), p in 0.0f64..0.99, first in any::<u64>(), dtype in float()) {
        let shape = Dropout { len, p, seed: 5, first, dtype };
        compare(&format!("{shape:?}"), [Tensor::normal(dtype, len, 1), output(dtype, len)], &[1], |kernels, of, [x, y]| {
            kernels.dropout(&Dropout { dtype: of(dtype), ..shape }, x.view(), y.view_mut())
        });
        let shape = Normal { len, std: 0.02, seed: 5, first, dtype };
        compare(&format!("{shape:?}"), [output(dtype, len)], &[0], |kernels, of, [dst]| {
            kernels.normal(&Normal { dtype: of(dtype), ..shape }, dst.view_mut())
        });
    }

    #[test]
    fn moves(len in length(), from in float(), to in float()) {
        // Moves write whole buffers: the guard is part of what they are given, so it is compared with the reference.
        let run = |case: &str, tensors: [Tensor; 3], call: &dyn Fn(&dyn Kernels, &mut [Tensor; 3])| {
            let mut exact = tensors.each_ref().map(Tensor::exact);
            call(&Reference, &mut exact);
            for kernels in devices() {
                let mut got = tensors.clone();
                call(kernels, &mut got);
                let case = format!("{case} {from} to {to}, {len}, {}", kernels.name());
                assert_close(&case, &got[2], &exact[2].values());
            }
        };
        let mixed = [Tensor::normal(from, len, 1), Tensor::normal(from, len, 2), Tensor::normal(to, len, 3)];
        let same = [Tensor::normal(to, len, 1), Tensor::normal(to, len, 2), Tensor::filled(to, len, f64::NAN)];
        run("cast", mixed.clone(), &|k, [a, _, dst]| k.cast(a.view(), dst.view_mut()).unwrap());
        run("accumulate", mixed.clone(), &|k, [a, _, dst]| k.accumulate(-0.3, a.view(), dst.view_mut()).unwrap());
        run("scale", mixed.clone(), &|k, [_, _, dst]| k.scale(0.3, dst.view_mut()).unwrap());
        run("fill", same.clone(), &|k, [_, _, dst]| k.fill(dst.view_mut(), 1.25).unwrap());
        run("add", same, &|k, [a, b, dst]| k.add(a.view(), b.view(), dst.view_mut()).unwrap());
    }

    #[test]
    fn sums_depend_on_the_length_alone(len in prop::sample::select(vec![0, 1, 16, 513, 8193, 600_001]), dtype in float()) {
        let x = Tensor::normal(dtype, len, 1);
        let (sum, squares) = (Reference.sum(x.view()).unwrap(), Reference.sum_squares(x.view()).unwrap());
        let results: Vec<(f64, f64)> =
            devices().map(|k| (k.sum(x.view()).unwrap(), k.sum_squares(x.view()).unwrap())).collect();
        for (number, got) in results.iter().enumerate() {
            // Those of one kind add in one order.
            let first = &results[if number < CPUS.len() { 0 } else { CPUS.len() }];
            prop_assert_eq!((got.0.to_bits(), got.1.to_bits()), (first.0.to_bits(), first.1.to_bits()));
            // Wherever the elements begin.
            let mut shifted = Tensor::filled(dtype, len + 1, 0.0);
            Reference.cast(x.view(), shifted.view_mut().into_slice(1..len + 1)).unwrap();
            let again = CUDAS[0].sum_squares(shifted.view().slice(1..len + 1)).unwrap();
            prop_assert_eq!(again.to_bits(), results[CPUS.len()].1.to_bits());
            // f64 sums of that many numbers of size 1.
            prop_assert!((got.0 - sum).abs() <= 1e-9 && (got.1 - squares).abs() <= 1e-9 * (1.0 + squares));
        }
    }
}

/// An element gets the same bits wherever it sits: kernels on parts of a buffer equal the kernel on the whole.
#[test]
fn an_element_has_the_same_bits_at_any_offset() {
    let len = 1400;
    let parts = [(0, 1400), (1, 1399), (3, 600), (17, 31), (511, 514), (700, 1), (1023, 377)];
    for dtype in FLOATS {
        let inputs: Vec<Tensor> = (0..4).map(|seed| Tensor::normal(dtype, len, seed)).collect();
        type Call<'a> = &'a dyn Fn(&dyn Kernels, std::ops::Range<usize>) -> Vec<Tensor>;
        let fresh = |range: &std::ops::Range<usize>, n: usize| {
            let mut copy = Tensor::filled(dtype, range.len(), 0.0);
            Reference.cast(inputs[n].view().slice(range.clone()), copy.view_mut()).unwrap();
            copy
        };
        let at = |range: &std::ops::Range<usize>, n: usize| inputs[n].view().slice(range.clone());
        let swiglu: Call = &|k, r| {
            let mut act = fresh(&r, 0);
            k.swiglu(
                &GatedActivation { len: r.len(), act: Activation::Silu, dtype },
                at(&r, 0),
                at(&r, 1),
                act.view_mut(),
            )
            .unwrap();
            vec![act]
        };
        let swiglu_backward: Call = &|k, r| {
            let (mut dgate, mut dup) = (fresh(&r, 0), fresh(&r, 0));
            let op = GatedActivation { len: r.len(), act: Activation::Silu, dtype };
            k.swiglu_backward(&op, at(&r, 0), at(&r, 1), at(&r, 2), dgate.view_mut(), dup.view_mut()).unwrap();
            vec![dgate, dup]
        };
        let activate: Call = &|k, r| {
            let (mut y, mut dx) = (fresh(&r, 0), fresh(&r, 0));
            let op = PointwiseActivation { len: r.len(), act: Activation::Gelu, dtype };
            k.activate(&op, at(&r, 0), y.view_mut()).unwrap();
            k.activate_backward(&op, at(&r, 0), at(&r, 1), dx.view_mut()).unwrap();
            vec![y, dx]
        };
        let adam: Call = &|k, r| {
            let (mut p, mut m, mut v) = (fresh(&r, 0), fresh(&r, 1), fresh(&r, 2));
            k.accumulate(1.0, p.clone().view(), v.view_mut()).unwrap();
            let op = adamw(r.len(), [dtype; 3]);
            k.adamw(&op, p.view_mut(), m.view_mut(), v.view_mut(), at(&r, 3), None).unwrap();
            vec![p, m, v]
        };
        let dropout: Call = &|k, r| {
            let mut y = fresh(&r, 0);
            let op = Dropout { len: r.len(), p: 0.3, seed: 1, first: 1 << 40 | r.start as u64, dtype };
            k.dropout(&op, at(&r, 0), y.view_mut()).unwrap();
            vec![y]
        };
        let normal: Call = &|k, r| {
            let mut y = fresh(&r, 0);
            let op = Normal { len: r.len(), std: 2.0, seed: 1, first: 1 << 40 | r.start as u64, dtype };
            k.normal(&op, y.view_mut()).unwrap();
            vec![y]
        };
        let moves: Call = &|k, r| {
            let mut y = fresh(&r, 0);
            k.scale(0.7, y.view_mut()).unwrap();
            k.accumulate(0.3, at(&r, 1), y.view_mut()).unwrap();
            k.reduce(ReduceOp::Sum, &[at(&r, 2), at(&r, 3), at(&r, 1)], true, y.view_mut()).unwrap();
            let mut sum = fresh(&r, 0);
            k.add(y.view(), at(&r, 1), sum.view_mut()).unwrap();
            let mut cast = Tensor::filled(DType::Bf16, r.len(), 0.0);
            k.cast(sum.view(), cast.view_mut()).unwrap();
            vec![y, sum, cast]
        };
        for (name, call) in [
            ("swiglu", swiglu),
            ("swiglu_backward", swiglu_backward),
            ("activate", activate),
            ("adamw", adam),
            ("dropout", dropout),
            ("normal", normal),
            ("moves", moves),
        ] {
            let (by_cores, by_cuda) = (call(&CPUS[0], 0..len), call(&CUDAS[0], 0..len));
            if ["dropout", "normal"].contains(&name) {
                assert_eq!(by_cores[0].bits(), by_cuda[0].bits(), "{name} {dtype}: one draw and one product");
            }
            let cores = CPUS.iter().map(|cpu| (cpu as &dyn Kernels, &by_cores));
            for (kernels, whole) in cores.chain(CUDAS.iter().map(|cuda| (cuda as &dyn Kernels, &by_cuda))) {
                for (start, size) in parts {
                    for (part, whole) in call(kernels, start..start + size).iter().zip(whole) {
                        // NaN of a square root of a negative moment compares by bits too.
                        let case = format!("{name} {dtype} at {start}, {}", kernels.name());
                        assert_eq!(part.bits(), whole.bits()[start..start + size], "{case}");
                    }
                }
            }
        }
    }
}

#[test]
fn dropout_drops_its_share_and_is_the_same_backward() {
    let (len, p) = (40_000, 0.25);
    let op = Dropout { len, p, seed: 3, first: 0, dtype: DType::F32 };
    let ones = Tensor::filled(DType::F32, len, 1.0);
    let (mut y, mut again) = (ones.clone(), ones.clone());
    CPUS[0].dropout(&op, ones.view(), y.view_mut()).unwrap();
    for kernels in devices() {
        kernels.dropout(&op, ones.view(), again.view_mut()).unwrap();
        assert_eq!(y, again, "{}", kernels.name());
    }
    let dropped = y.values().iter().filter(|y| **y == 0.0).count() as f64 / len as f64;
    // Five standard errors.
    assert!((dropped - p).abs() < 5.0 * (p * (1.0 - p) / len as f64).sqrt(), "{dropped}");
    assert!(y.values().iter().all(|y| *y == 0.0 || (*y - 4.0 / 3.0).abs() < 1e-6));
}
