//! What the CUDA kernels of a mixture of experts do otherwise than the cores: sorting in chunks, indices that only the device
//! looks at, rows in wide words or not.

use crate::harness::*;
use std::sync::Arc;
use zbench_kernels::cuda::host::Order;
use zbench_kernels::{Combine, Cuda, DType, Kernels, Route, Slots, View, ViewMut};
use zbench_kernels_testing::{ByName, Reference};

fn logits(dtype: DType, rows: usize, experts: usize) -> Tensor {
    let mut values = Tensor::normal(DType::F64, rows * experts, 1).values();
    values.iter_mut().enumerate().for_each(|(i, value)| *value += 0.05 * (i % experts) as f64);
    Tensor::of(dtype, &values)
}

fn routing(kernels: &dyn Kernels, op: &Route, logits: &Tensor) -> (Tensor, Tensor) {
    let mut weights = output(DType::F32, op.slots());
    let mut indices = Tensor::ids(&vec![77; op.indices_len() + GUARD]);
    kernels.route(op, logits.view(), weights.view_mut(), indices.view_mut()).unwrap();
    (weights, indices)
}

/// Choices in many chunks, each sorted by another warp: what the cores say to the bit, for few experts and for many.
#[test]
fn many_choices_are_sorted_as_the_cores_sort_them() {
    for (rows, experts, top) in [(5000, 8, 2), (1025, 2, 2), (2049, 300, 3), (700, 1100, 7)] {
        let op = Route { rows, experts, top, normalised: true, rounded: false, dtype: DType::Bf16 };
        let logits = logits(DType::Bf16, rows, experts);
        let (weights, indices) = routing(&CPUS[1], &op, &logits);
        for cuda in CUDAS.iter() {
            let (own, same) = routing(cuda, &op, &logits);
            assert_eq!(same.bits(), indices.bits(), "{op:?}");
            assert_close(&format!("{op:?}"), &own, &weights.values());
        }
    }
}

/// More experts than a block has counters for.
#[test]
fn too_many_experts_are_refused() {
    let op = Route { rows: 1, experts: 60_000, top: 1, normalised: true, rounded: false, dtype: DType::F32 };
    let (mut weights, mut indices) = ([0f32], vec![0u32; op.indices_len()]);
    let logits = vec![0f32; op.experts];
    let (weights, indices) = (ViewMut::of(&mut weights), ViewMut::of(&mut indices));
    let error = CUDAS[0].route(&op, View::of(&logits), weights, indices).unwrap_err().to_string();
    assert!(error.contains("route") && error.contains("60000 experts"), "{error}");
}

const GOOD: [u32; 16] = [0, 2, 1, 2, 0, 2, 1, 3, 0, 2, 1, 3, 0, 1, 2, 4];
const SHAPE: Slots = Slots { rows: 2, top: 2, experts: 3, cols: 1, dtype: DType::F32 };

/// What a device finds wrong with indices comes out where the host waits for it, once, and nothing outside is touched.
#[test]
fn indices_that_lead_nowhere_come_out_of_the_next_wait() {
    let own = Cuda::new(Arc::new(host(Order::Forward))).unwrap();
    let caught = |result: zbench_kernels::Result<()>, words: &str| {
        result.unwrap();
        let error = own.synchronize().expect_err("to be found").to_string();
        assert!(error.contains("experts") && error.contains(words), "{error}");
        own.synchronize().expect("said once");
    };
    let far = u32::MAX - 1;
    for (at, value, words) in [
        (1, 3, "choice 1 names 3,"),
        (1, far, "choice 1 names"),
        (8, 4, "choice 0 names 4,"),
        (9, far, "choice 1 names"),
        (5, 1, "choice"),
        (5, far, "names 1,"),
    ] {
        let mut bad = GOOD;
        bad[at] = value;
        let indices = View::of(&bad);
        let (ones, mut y) = ([1f32; 4], [0f32; 4]);
        let x = View::of(&ones);
        caught(own.dispatch(&SHAPE, indices, x, ViewMut::of(&mut y)), words);
        let (mut a, mut b) = (ones, ones);
        let (a, b) = (ViewMut::of(&mut a), ViewMut::of(&mut b));
        caught(own.weigh(&SHAPE, indices, x, a, b, ViewMut::of(&mut y)), words);
        let combine = Combine { slots: SHAPE, weighted: false, accumulate: false };
        // A sum goes by the slots of choices; their order is looked at as well.
        let words = if at == 5 { "choice 2 names 1," } else { words };
        caught(own.combine(&combine, indices, x, None, ViewMut::of(&mut y)), words);
        if at == 1 {
            let route = Route { rows: 2, experts: 3, top: 2, normalised: true, rounded: false, dtype: DType::F32 };
            let (logits, mut dlogits) = ([0.5f32; 6], [0f32; 6]);
            let done = own.route_backward(&route, View::of(&logits), indices, x, ViewMut::of(&mut dlogits));
            caught(done, words);
        }
    }
}

#[test]
fn sums_and_downloads_say_it_as_well() {
    let own = Cuda::new(Arc::new(host(Order::Forward))).unwrap();
    let mut bad = GOOD;
    bad[1] = 3;
    let (x, mut y) = ([1f32; 9], [0f32; 4]);
    own.dispatch(&SHAPE, View::of(&bad), View::of(&x), ViewMut::of(&mut y)).unwrap();
    let error = own.sum(View::of(&x)).unwrap_err().to_string();
    assert!(error.contains("choice 1 names 3"), "{error}");
    assert_eq!(own.sum(View::of(&x)).unwrap(), 9.0);
    own.dispatch(&SHAPE, View::of(&bad), View::of(&x), ViewMut::of(&mut y)).unwrap();
    own.download(View::of(&[1f32]), ViewMut::of(&mut [0f32])).unwrap_err();
    own.dispatch(&SHAPE, View::of(&GOOD), View::of(&x), ViewMut::of(&mut y)).unwrap();
    own.synchronize().unwrap();
}

/// Rows that begin anywhere, whose length is a multiple of wide words or not.
#[test]
fn rows_are_the_same_wherever_they_begin() {
    for (cols, dtype) in [8, 40, 300, 1032].into_iter().flat_map(|cols| FLOATS.map(|dtype| (cols, dtype))) {
        let route = Route { rows: 9, experts: 5, top: 3, normalised: true, rounded: false, dtype };
        let (weights, indices) = routing(&CPUS[0], &route, &logits(dtype, 9, 5));
        let slots = Slots { rows: 9, top: 3, experts: 5, cols, dtype };
        let op = Combine { slots, weighted: true, accumulate: true };
        let [x, dx] = [1, 2].map(|seed| Tensor::normal(dtype, 27 * cols, seed));
        let run = |kernels: &dyn Kernels, shift: usize| {
            let place = |tensor: &Tensor| {
                let mut placed = Tensor::filled(dtype, tensor.len + shift, 0.0);
                Reference.cast(tensor.view(), placed.view_mut().into_slice(shift..shift + tensor.len)).unwrap();
                placed
            };
            let (mut own_x, mut own_dx) = (place(&x), place(&dx));
            let (mut y, mut back) = (place(&x), place(&Tensor::filled(dtype, 9 * cols, 0.5)));
            let (few, all) = (shift..shift + 9 * cols, shift..shift + 27 * cols);
            let to = y.view_mut().into_slice(all.clone());
            kernels.dispatch(&slots, indices.view(), own_x.view().slice(few.clone()), to).unwrap();
            let (from, to) = (own_x.view().slice(all.clone()), back.view_mut().into_slice(few));
            kernels.combine(&op, indices.view(), from, Some(weights.view()), to).unwrap();
            let mut dweights = Tensor::filled(DType::F32, 27, f64::NAN);
            let (a, b) = (own_x.view_mut().into_slice(all.clone()), own_dx.view_mut().into_slice(all));
            kernels.weigh(&slots, indices.view(), weights.view(), a, b, dweights.view_mut()).unwrap();
            let bits = [&own_x, &own_dx, &y, &back].map(|tensor| tensor.bits()[shift..].to_vec());
            (bits, dweights.bits())
        };
        for cuda in CUDAS.iter() {
            let whole = run(cuda, 0);
            assert_eq!(whole.0[2], run(&CPUS[0], 0).0[2], "{cols} of {dtype}: rows are copied");
            for shift in [1, 4, 8] {
                assert_eq!(run(cuda, shift), whole, "{cols} of {dtype} from {shift}");
            }
        }
    }
}
