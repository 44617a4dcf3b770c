//! A mixture of experts: routing, rows to experts and back, a product per expert.

use crate::harness::*;
use proptest::prelude::*;
use zbench_kernels::{Combine, Cpu, DType, Grouped, GroupedGemm, Kernels, Op, Route, Slots, View, ViewMut};
use zbench_kernels_testing::{ByName, Reference};
use zbench_test_tiers as tiers;

fn float() -> impl Strategy<Value = DType> {
    prop::sample::select(&FLOATS[..])
}

fn width() -> impl Strategy<Value = usize> {
    prop::sample::select(vec![1, 2, 3, 31, 33, 64, 511, 513, 1030])
}

/// Rows, experts and how many of them a row goes to.
fn routes() -> impl Strategy<Value = (usize, usize, usize)> {
    (0usize..60, prop::sample::select(vec![1usize, 2, 3, 5, 8, 40, 130, 515])).prop_flat_map(|(rows, experts)| {
        let top = prop_oneof![Just(1usize), Just(2), Just(experts), 1..=experts.min(9)];
        (Just(rows), Just(experts), top.prop_map(move |top| top.min(experts)))
    })
}

/// Numbers that all devices must agree on to the bit, without a guard.
fn no_ids(len: usize) -> Tensor {
    let mut ids = vec![u32::MAX; len];
    ids.extend([77; GUARD]);
    Tensor::ids(&ids)
}

/// Where rows go, as the cores say.
fn routing(op: &Route, logits: &Tensor) -> (Tensor, Tensor) {
    let (mut weights, mut indices) =
        (Tensor::filled(DType::F32, op.slots(), f64::NAN), Tensor::ids(&vec![u32::MAX; op.indices_len()]));
    CPUS[0].route(op, logits.view(), weights.view_mut(), indices.view_mut()).unwrap();
    (weights, indices)
}

/// Logits with which some experts get nobody, or the last gets everybody first.
fn logits(dtype: DType, rows: usize, experts: usize, lean: f64) -> Tensor {
    let mut values = Tensor::normal(DType::F64, rows * experts, 1).values();
    values.iter_mut().enumerate().for_each(|(i, value)| *value += lean * (i % experts) as f64);
    Tensor::of(dtype, &values)
}

proptest! {
    #![proptest_config(cases(64))]

    #[test]
    fn route((rows, experts, top) in routes(), normalised: bool, lean in prop::sample::select(vec![0.0, 0.5, 9.0]), dtype in float()) {
        let shape = Route { rows, experts, top, normalised, rounded: false, dtype };
        let logits = logits(dtype, rows, experts, lean);
        let tensors = [logits.clone(), output(DType::F32, rows * top), no_ids(shape.indices_len())];
        compare(&format!("{shape:?}"), tensors, &[1, 2], |kernels, of, [logits, weights, indices]| {
            let op = Route { dtype: of(dtype), ..shape };
            kernels.route(&op, logits.view(), weights.view_mut(), indices.view_mut())
        });
        let (_, indices) = routing(&shape, &logits);
        let dweights = Tensor::normal(DType::F32, rows * top, 3);
        let tensors = [logits, indices, dweights, output(dtype, rows * experts)];
        compare(&format!("{shape:?} backward"), tensors, &[3], |kernels, of, [logits, indices, dweights, dlogits]| {
            let op = Route { dtype: of(dtype), ..shape };
            kernels.route_backward(&op, logits.view(), indices.view(), dweights.view(), dlogits.view_mut())
        });
    }

    #[test]
    fn rows_to_experts_and_back(
        (rows, experts, top) in routes(),
        cols in width(),
        weighted: bool,
        accumulate: bool,
        dtype in float(),
    ) {
        let (rows, top) = (rows.min(20), top.min(12));
        let route = Route { rows, experts, top, normalised: true, rounded: false, dtype };
        let (weights, indices) = routing(&route, &logits(dtype, rows, experts, 0.3));
        let shape = Slots { rows, top, experts, cols, dtype };
        let x = Tensor::normal(dtype, rows * cols, 2);
        let tensors = [indices.clone(), x, output(dtype, rows * top * cols)];
        compare(&format!("{shape:?}"), tensors, &[2], |kernels, of, [indices, x, y]| {
            kernels.dispatch(&Slots { dtype: of(dtype), ..shape }, indices.view(), x.view(), y.view_mut())
        });
        let [x, dx] = [3, 4].map(|seed| Tensor::normal(dtype, rows * top * cols, seed));
        let y = guarded(Tensor::normal(dtype, rows * cols, 5));
        let y = if accumulate { y } else { output(dtype, rows * cols) };
        let tensors = [indices.clone(), x.clone(), weights.clone(), y];
        compare(&format!("{shape:?} {weighted} {accumulate}"), tensors, &[3], |kernels, of, [indices, x, weights, y]| {
            let op = Combine { slots: Slots { dtype: of(dtype), ..shape }, weighted, accumulate };
            let weights = weighted.then(|| weights.view());
            kernels.combine(&op, indices.view(), x.view(), weights, y.view_mut())
        });
        let tensors = [indices, weights, guarded(x), guarded(dx), output(DType::F32, rows * top)];
        compare(&format!("{shape:?} weigh"), tensors, &[2, 3, 4], |kernels, of, [indices, weights, x, dx, dweights]| {
            let op = Slots { dtype: of(dtype), ..shape };
            kernels.weigh(&op, indices.view(), weights.view(), x.view_mut(), dx.view_mut(), dweights.view_mut())
        });
    }

    #[test]
    fn grouped_gemm(
        sizes in prop::collection::vec(prop::sample::select(vec![0usize, 0, 1, 2, 3, 7, 40, 130]), 1..6),
        out in prop::sample::select(vec![1usize, 3, 17, 64, 130]),
        input in prop::sample::select(vec![1usize, 2, 33, 96]),
        form in prop::sample::select(vec![Grouped::Forward, Grouped::Input, Grouped::Weight]),
        accumulate: bool,
        dtype in float(),
        c in float(),
    ) {
        check_groups(&sizes, out, input, form, accumulate, dtype, c);
    }
}

fn check_groups(sizes: &[usize], out: usize, input: usize, form: Grouped, accumulate: bool, dtype: DType, c: DType) {
    let (rows, groups) = (sizes.iter().sum::<usize>(), sizes.len());
    let c = if form == Grouped::Weight { c } else { dtype };
    let shape = GroupedGemm { rows, groups, out, input, form, accumulate, a: dtype, b: dtype, c };
    let ends = sizes.iter().scan(0, |end, size| {
        *end += *size as u32;
        Some(*end)
    });
    let offsets = Tensor::ids(&[0].into_iter().chain(ends).collect::<Vec<_>>());
    let (of_out, of_input, matrices) = (rows * out, rows * input, groups * out * input);
    let [a, b, into] = match form {
        Grouped::Forward => [of_input, matrices, of_out],
        Grouped::Input => [of_out, matrices, of_input],
        Grouped::Weight => [of_out, of_input, matrices],
    };
    let result = if accumulate { guarded(Tensor::normal(c, into, 3)) } else { output(c, into) };
    let tensors = [offsets, Tensor::normal(dtype, a, 1), Tensor::normal(dtype, b, 2), result];
    compare(&format!("{sizes:?} {shape:?}"), tensors, &[3], |kernels, of, [offsets, a, b, result]| {
        let op = GroupedGemm { a: of(dtype), b: of(dtype), c: of(c), ..shape };
        let mut workspace = Tensor::workspace(kernels, &Op::GroupedGemm(op));
        kernels.grouped_gemm(&op, offsets.view(), a.view(), b.view(), result.view_mut(), workspace.view_mut())
    });
}

/// One expert takes all, whichever it is; sizes past the blocks that narrow types are converted in.
#[test]
fn one_expert_takes_all() {
    let forms = [Grouped::Forward, Grouped::Input, Grouped::Weight];
    for [form, expert, dtype] in tiers::combinations("experts::one_expert_takes_all", [3; 3]) {
        let mut sizes = [0; 3];
        sizes[expert] = 300;
        check_groups(&sizes, 130, 70, forms[form], false, FLOATS[dtype], DType::F32);
    }
    check_groups(&[1100, 0, 3], 40, 2100, Grouped::Forward, true, DType::Bf16, DType::Bf16);
}

#[test]
fn routing_sorts_by_expert_and_then_by_token() {
    // Of equal logits the lower number comes first; the largest expert of a token comes first.
    let logits = [1.0f32, 2.0, 2.0, 0.5, 0.5, 0.5, -1.0, 4.0, 3.0];
    let op = Route { rows: 3, experts: 3, top: 2, normalised: true, rounded: false, dtype: DType::F32 };
    for kernels in [&CPUS[1] as &dyn Kernels, &CUDAS[0], &CUDAS[1], &Reference] {
        let (mut weights, mut indices) = ([0f32; 6], vec![0u32; op.indices_len()]);
        kernels.route(&op, View::of(&logits), ViewMut::of(&mut weights), ViewMut::of(&mut indices)).unwrap();
        assert_eq!(indices[..6], [1, 2, 0, 1, 1, 2]);
        assert_eq!(indices[6..12], [2, 0, 3, 4, 1, 5]);
        assert_eq!(indices[12..18], [1, 4, 0, 2, 3, 5]);
        assert_eq!(indices[18..], [0, 1, 4, 6]);
        let larger = 1.0 / (1.0 + (-1.0f32).exp());
        let wanted = [0.5, 0.5, 0.5, 0.5, larger, 1.0 - larger];
        assert!(weights.iter().zip(wanted).all(|(got, want)| (got - want).abs() < 1e-6), "{weights:?}");
    }
}

#[test]
fn weights_are_rounded_where_that_is_asked_for() {
    for dtype in [DType::Bf16, DType::F16] {
        let logits = logits(dtype, 40, 9, 0.2);
        let op = Route { rows: 40, experts: 9, top: 3, normalised: false, rounded: true, dtype };
        let (narrow, indices) = routing(&op, &logits);
        let (wide, same) = routing(&Route { rounded: false, ..op }, &logits);
        assert_eq!(indices.bits(), same.bits());
        assert_eq!(narrow.values(), Tensor::of(dtype, &wide.values()).values());
        assert_ne!(narrow.values(), wide.values());
        for kernels in [&Reference as &dyn Kernels, &CUDAS[0]] {
            let mut again = (Tensor::filled(DType::F32, 120, 0.0), indices.clone());
            kernels.route(&op, logits.view(), again.0.view_mut(), again.1.view_mut()).unwrap();
            assert_eq!(again.0.values(), Tensor::of(dtype, &again.0.values()).values());
        }
    }
}

/// Logits that are no numbers end in a loss that is none, and nowhere else.
#[test]
fn logits_that_are_no_numbers_stay_inside() {
    for kernels in [&CPUS[1] as &dyn Kernels, &CUDAS[0], &CUDAS[1], &Reference] {
        for bad in [f32::NAN, f32::INFINITY] {
            let logits = [bad; 12];
            let op = Route { rows: 3, experts: 4, top: 3, normalised: false, rounded: false, dtype: DType::F32 };
            let (mut weights, mut indices) = ([0f32; 9], vec![0u32; op.indices_len()]);
            kernels.route(&op, View::of(&logits), ViewMut::of(&mut weights), ViewMut::of(&mut indices)).unwrap();
            assert_eq!(indices[..9], [0, 1, 2, 0, 1, 2, 0, 1, 2]);
            assert!(weights.iter().all(|weight| weight.is_nan()));
        }
    }
}

#[test]
fn indices_that_lead_nowhere_are_refused() {
    let op = Slots { rows: 2, top: 2, experts: 3, cols: 1, dtype: DType::F32 };
    let good = [0u32, 2, 1, 2, 0, 2, 1, 3, 0, 2, 1, 3, 0, 1, 2, 4];
    let (x, mut y) = ([1f32; 2], [0f32; 4]);
    for kernels in [&CPUS[1] as &dyn Kernels, &Reference] {
        let mut dispatch = |indices: &[u32]| {
            kernels.dispatch(&op, View::of(indices), View::of(&x), ViewMut::of(&mut y)).map_err(|e| e.to_string())
        };
        dispatch(&good).unwrap();
        for (at, value, word) in [(1, 3, "expert 3 of 3"), (8, 4, "slot 4"), (9, 3, "slot 3"), (5, 1, "choice")] {
            let mut bad = good;
            bad[at] = value;
            let error = dispatch(&bad).expect_err("to be refused");
            assert!(error.contains("dispatch") && error.contains(word), "{error}");
        }
        assert!(dispatch(&good[..15]).unwrap_err().contains("indices has 15 elements, 16 needed"));
        let gemm = GroupedGemm {
            rows: 4,
            groups: 3,
            out: 1,
            input: 1,
            form: Grouped::Forward,
            accumulate: false,
            a: DType::F32,
            b: DType::F32,
            c: DType::F32,
        };
        for offsets in [[0u32, 3, 2, 4], [1, 2, 3, 4], [0, 1, 2, 3], [0, 1, 2, 5]] {
            let (a, b, mut c) = ([1f32; 4], [1f32; 3], [0f32; 4]);
            let mut scratch = vec![0f32; kernels.workspace(&Op::GroupedGemm(gemm))];
            let (a, b, c) = (View::of(&a), View::of(&b), ViewMut::of(&mut c));
            let scratch = ViewMut::of(&mut scratch);
            let error = kernels.grouped_gemm(&gemm, View::of(&offsets), a, b, c, scratch).unwrap_err().to_string();
            assert!(error.contains("4 rows into 3 parts"), "{error}");
        }
        let many = Route { rows: 1, experts: 2, top: 3, normalised: true, rounded: false, dtype: DType::F32 };
        let (mut weights, mut indices) = ([0f32; 3], [0u32; 12]);
        let (weights, indices) = (ViewMut::of(&mut weights), ViewMut::of(&mut indices));
        let error = kernels.route(&many, View::of(&[0f32; 2]), weights, indices).unwrap_err().to_string();
        assert!(error.contains("3 of 2 experts"), "{error}");
    }
}

/// The router's gradient in f64, through all experts or those chosen.
#[test]
fn the_router_s_gradient_is_the_slope_of_its_weights() {
    const STEP: f64 = 1e-5;
    for (normalised, top) in [(true, 2), (false, 2), (false, 1), (true, 5)] {
        let op = Route { rows: 4, experts: 5, top, normalised, rounded: false, dtype: DType::F64 };
        let (x, r) = (Tensor::normal(DType::F64, 20, 8).values(), Tensor::normal(DType::F64, 4 * top, 9).values());
        let run = |x: &[f64]| {
            let (mut weights, mut indices) = (vec![0.0; op.slots()], vec![0u32; op.indices_len()]);
            Reference.route(&op, View::of(x), ViewMut::of(&mut weights), ViewMut::of(&mut indices)).unwrap();
            (weights.iter().zip(&r).map(|(w, r)| w * r).sum::<f64>(), indices)
        };
        let indices = run(&x).1;
        let mut dx = vec![0.0; 20];
        let (i, g) = (View::of(&indices), View::of(&r));
        Reference.route_backward(&op, View::of(&x), i, g, ViewMut::of(&mut dx)).unwrap();
        let mut moved = x.clone();
        for i in 0..x.len() {
            moved[i] = x[i] + STEP;
            let up = run(&moved).0;
            moved[i] = x[i] - STEP;
            let slope = (up - run(&moved).0) / (2.0 * STEP);
            moved[i] = x[i];
            assert!((slope - dx[i]).abs() <= 1e-8 * (1.0 + slope.abs()), "{normalised} {top}: {slope} {}", dx[i]);
        }
    }
}

#[test]
fn the_cores_refuse_f64() {
    let op = Slots { rows: 1, top: 1, experts: 1, cols: 1, dtype: DType::F64 };
    let (x, mut y) = ([1f64], [0f64]);
    let error =
        Cpu::new(1).dispatch(&op, View::of(&[0u32, 0, 0, 0, 1]), View::of(&x), ViewMut::of(&mut y)).unwrap_err();
    assert!(error.to_string().contains("cpu kernels cannot do dispatch in f64"), "{error}");
}
