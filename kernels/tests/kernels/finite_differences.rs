//! The reference's own backwards, against central differences of its forwards in f64.

use crate::harness::Tensor;
use zbench_kernels::*;
use zbench_kernels_testing::{ByName, Reference};

const F: DType = DType::F64;

/// Compares `gradient` with the slope of `loss` in every element of `x`. A central difference in f64 with this step is
/// good to about 1e-9 of values of size 1.
fn check(name: &str, x: &[f64], gradient: &[f64], loss: impl Fn(&[f64]) -> f64) {
    const STEP: f64 = 1e-5;
    assert_eq!(x.len(), gradient.len(), "{name}");
    let mut moved = x.to_vec();
    for i in 0..x.len() {
        moved[i] = x[i] + STEP;
        let up = loss(&moved);
        moved[i] = x[i] - STEP;
        let slope = (up - loss(&moved)) / (2.0 * STEP);
        moved[i] = x[i];
        assert!((slope - gradient[i]).abs() <= 1e-7 * (1.0 + slope.abs()), "{name} {i}: {slope} {}", gradient[i]);
    }
}

fn normal(len: usize, seed: u64) -> Vec<f64> {
    Tensor::normal(F, len, seed).values()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[test]
fn rms_norm() {
    let (rows, cols) = (3, 7);
    let op = RmsNorm { rows, cols, eps: 1e-3, dtype: F, gradient: Some(F) };
    let (x, w, dy) = (normal(21, 1), normal(7, 2), normal(21, 3));
    let forward = |x: &[f64], w: &[f64]| {
        let (mut y, mut rstd) = (vec![0.0; 21], vec![0.0; 3]);
        let (y_, r_) = (ViewMut::of(&mut y), ViewMut::of(&mut rstd));
        Reference.rms_norm(&op, View::of(x), View::of(w), y_, r_).unwrap();
        (dot(&y, &dy), rstd)
    };
    let rstd = forward(&x, &w).1;
    let (mut dx, mut dw) = (vec![1.0; 21], vec![2.0; 7]);
    let (dx_, dw_) = (ViewMut::of(&mut dx), Some(ViewMut::of(&mut dw)));
    Reference.rms_norm_backward(&op, View::of(&x), View::of(&w), View::of(&rstd), View::of(&dy), dx_, dw_).unwrap();
    // They were added to what was there.
    dx.iter_mut().for_each(|d| *d -= 1.0);
    dw.iter_mut().for_each(|d| *d -= 2.0);
    check("x", &x, &dx, |x| forward(x, &w).0);
    check("w", &w, &dw, |w| forward(&x, w).0);
}

#[test]
fn swiglu_of_every_activation() {
    for act in [Activation::Silu, Activation::Gelu, Activation::GeluTanh] {
        gated(GatedActivation { len: 9, act, dtype: F });
    }
}

fn gated(op: GatedActivation) {
    let (gate, up, dact) = (normal(9, 1), normal(9, 2), normal(9, 3));
    let forward = |gate: &[f64], up: &[f64]| {
        let mut act = vec![0.0; 9];
        Reference.swiglu(&op, View::of(gate), View::of(up), ViewMut::of(&mut act)).unwrap();
        dot(&act, &dact)
    };
    let (mut dgate, mut dup) = (vec![0.0; 9], vec![0.0; 9]);
    let (g, u) = (ViewMut::of(&mut dgate), ViewMut::of(&mut dup));
    Reference.swiglu_backward(&op, View::of(&gate), View::of(&up), View::of(&dact), g, u).unwrap();
    check("gate", &gate, &dgate, |gate| forward(gate, &up));
    check("up", &up, &dup, |up| forward(&gate, up));
}

#[test]
fn layer_norm() {
    for bias in [false, true] {
        let (rows, cols) = (3, 7);
        let op = LayerNorm { rows, cols, eps: 1e-3, bias, dtype: F, gradient: Some(F) };
        let (x, w, b, dy) = (normal(21, 1), normal(7, 2), normal(7, 4), normal(21, 3));
        let forward = |x: &[f64], w: &[f64], b: &[f64]| {
            let (mut y, mut statistics) = (vec![0.0; 21], vec![0.0; 6]);
            let (y_, s_) = (ViewMut::of(&mut y), ViewMut::of(&mut statistics));
            Reference.layer_norm(&op, View::of(x), View::of(w), bias.then_some(View::of(b)), y_, s_).unwrap();
            (dot(&y, &dy), statistics)
        };
        let statistics = forward(&x, &w, &b).1;
        let (mut dx, mut dw, mut db) = (vec![1.0; 21], vec![2.0; 7], vec![3.0; 7]);
        let (dx_, dw_) = (ViewMut::of(&mut dx), Some(ViewMut::of(&mut dw)));
        let db_ = bias.then_some(ViewMut::of(&mut db));
        let (xv, wv, dyv) = (View::of(&x), View::of(&w), View::of(&dy));
        Reference.layer_norm_backward(&op, xv, wv, View::of(&statistics), dyv, dx_, dw_, db_).unwrap();
        // They were added to what was there.
        dx.iter_mut().for_each(|d| *d -= 1.0);
        dw.iter_mut().for_each(|d| *d -= 2.0);
        db.iter_mut().for_each(|d| *d -= 3.0);
        check("x", &x, &dx, |x| forward(x, &w, &b).0);
        check("w", &w, &dw, |w| forward(&x, w, &b).0);
        if bias {
            check("b", &b, &db, |b| forward(&x, &w, b).0);
        }
    }
}

#[test]
fn activate() {
    for act in [Activation::Silu, Activation::Gelu, Activation::GeluTanh] {
        let op = PointwiseActivation { len: 60, act, dtype: F };
        // Both branches of the error function.
        let x: Vec<f64> = normal(60, 1).iter().map(|x| 3.0 * x).collect();
        let dy = normal(60, 2);
        let forward = |x: &[f64]| {
            let mut y = vec![0.0; 60];
            Reference.activate(&op, View::of(x), ViewMut::of(&mut y)).unwrap();
            dot(&y, &dy)
        };
        let mut dx = vec![0.0; 60];
        Reference.activate_backward(&op, View::of(&x), View::of(&dy), ViewMut::of(&mut dx)).unwrap();
        check(&format!("{act:?}"), &x, &dx, forward);
    }
}

#[test]
fn add_rows() {
    let op = BiasAdd { rows: 7, period: 3, cols: 2, dtype: F };
    let (x, table, dy) = (normal(14, 1), normal(6, 2), normal(14, 3));
    let forward = |table: &[f64]| {
        let mut y = x.clone();
        Reference.add_rows(&op, View::of(table), ViewMut::of(&mut y)).unwrap();
        dot(&y, &dy)
    };
    let mut dtable = vec![1.0; 6];
    Reference.add_rows_backward(&op, View::of(&dy), ViewMut::of(&mut dtable)).unwrap();
    dtable.iter_mut().for_each(|d| *d -= 1.0);
    check("table", &table, &dtable, forward);
}

#[test]
fn mul_rows() {
    let op = ScaleColumns { rows: 5, cols: 3, dtype: F };
    let (x, w, dy) = (normal(15, 1), normal(3, 2), normal(15, 3));
    let forward = |x: &[f64], w: &[f64]| {
        let mut y = x.to_vec();
        Reference.mul_rows(&op, View::of(w), ViewMut::of(&mut y)).unwrap();
        dot(&y, &dy)
    };
    let (mut dw, mut dx) = (vec![1.0; 3], dy.clone());
    Reference.mul_rows_backward(&op, View::of(&x), View::of(&dy), ViewMut::of(&mut dw)).unwrap();
    dw.iter_mut().for_each(|d| *d -= 1.0);
    check("w", &w, &dw, |w| forward(&x, w));
    Reference.mul_rows(&op, View::of(&w), ViewMut::of(&mut dx)).unwrap();
    check("x", &x, &dx, |x| forward(x, &w));
}

#[test]
fn rope_backward_is_the_inverse_rotation() {
    let op = Rope { rows: 5, seq: 3, heads: 2, head_dim: 4, inverse: false, dtype: F };
    let (x, dy) = (normal(40, 1), normal(40, 2));
    let angles = normal(6, 3);
    let table = |f: fn(f64) -> f64| angles.iter().map(|a| f(*a)).collect::<Vec<f64>>();
    let (cos, sin) = (table(f64::cos), table(f64::sin));
    let rotate = |x: &[f64], inverse: bool| {
        let mut y = x.to_vec();
        let op = Rope { inverse, ..op };
        Reference.rope(&op, ViewMut::of(&mut y), View::of(&cos), View::of(&sin)).unwrap();
        y
    };
    check("x", &x, &rotate(&dy, true), |x| dot(&rotate(x, false), &dy));
    // Hugging Face's half-split pairing: element 0 of a head turns with element 2.
    let mut unit = vec![0.0; 40];
    unit[8] = 1.0;
    let turned = rotate(&unit, false);
    assert_eq!((turned[8], turned[10]), (cos[2], sin[2]));
}

#[test]
fn cross_entropy() {
    let op = CrossEntropy { rows: 3, vocab: 5, scale: 0.7, dtype: F, gradient: F, pitch: 0 };
    let logits = normal(15, 1);
    let targets = [2u32, u32::MAX, 4];
    let run = |logits: &[f64]| {
        let (mut gradient, mut losses) = (logits.to_vec(), vec![0.0; 3]);
        let (g, l) = (ViewMut::of(&mut gradient), ViewMut::of(&mut losses));
        Reference.cross_entropy(&op, g, View::of(&targets), l).unwrap();
        (losses, gradient)
    };
    check("logits", &logits, &run(&logits).1, |logits| 0.7 * run(logits).0.iter().sum::<f64>());
}

#[test]
fn attention_of_both_kinds() {
    let sizes = Attention {
        batch: 2,
        seq: 5,
        kv_seq: 5,
        causal: true,
        heads: 4,
        kv_heads: 2,
        head_dim: 3,
        scale: 0.6,
        window: None,
        alibi: None,
        dtype: F,
    };
    attention(sizes);
    attention(Attention { window: Some(2), ..sizes });
    attention(Attention { window: Some(3), alibi: Some(AlibiHeads { first: 2, heads: 8 }), ..sizes });
    for kv_seq in [3, 5, 8] {
        attention(Attention { kv_seq, causal: false, ..sizes });
    }
}

fn attention(op: Attention) {
    let (nq, nkv) = (2 * 5 * 12, 2 * op.kv_seq * 6);
    let (q, k, v, dout) = (normal(nq, 1), normal(nkv, 2), normal(nkv, 3), normal(nq, 4));
    let none = || ViewMut::of::<f32>(&mut []);
    let flash = |q: &[f64], k: &[f64], v: &[f64]| {
        let (mut out, mut lse) = (vec![0f64; nq], vec![0f64; 2 * 4 * 5]);
        let (o, l) = (ViewMut::of(&mut out), ViewMut::of(&mut lse));
        Reference.attention(&op, View::of(q), View::of(k), View::of(v), o, l, none()).unwrap();
        (out, lse)
    };
    let naive = |q: &[f64], k: &[f64], v: &[f64]| {
        let (mut out, mut probs) = (vec![0f64; nq], vec![0.0; 2 * 4 * 5 * op.kv_seq]);
        let (o, p) = (ViewMut::of(&mut out), ViewMut::of(&mut probs));
        Reference.naive_attention(&op, View::of(q), View::of(k), View::of(v), o, p, none()).unwrap();
        (out, probs)
    };
    let (out, lse) = flash(&q, &k, &v);
    let (same, probs) = naive(&q, &k, &v);
    assert!(out.iter().zip(&same).all(|(a, b)| (a - b).abs() < 1e-12));
    let mut grads = [vec![0.0; nq], vec![0.0; nkv], vec![0.0; nkv], vec![0.0; nq], vec![0.0; nkv], vec![0.0; nkv]];
    let [dq, dk, dv, nq_, nk, nv] = grads.each_mut().map(|g| ViewMut::of(g.as_mut_slice()));
    let (qv, kv, vv, dv_) = (View::of(&q), View::of(&k), View::of(&v), View::of(&dout));
    Reference.attention_backward(&op, qv, kv, vv, View::of(&out), View::of(&lse), dv_, dq, dk, dv, none()).unwrap();
    Reference.naive_attention_backward(&op, qv, kv, vv, View::of(&probs), dv_, nq_, nk, nv, none()).unwrap();
    for half in 0..2 {
        check("q", &q, &grads[half * 3], |q| dot(&flash(q, &k, &v).0, &dout));
        check("k", &k, &grads[half * 3 + 1], |k| dot(&flash(&q, k, &v).0, &dout));
        check("v", &v, &grads[half * 3 + 2], |v| dot(&flash(&q, &k, v).0, &dout));
    }
}
