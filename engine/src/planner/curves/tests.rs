use super::*;
use zbench_kernels::{Elementwise, GatedActivation};

fn point(sizes: &[f64], seconds: f64) -> Point {
    Point { sizes: sizes.to_vec(), seconds }
}

fn fill(len: usize) -> Op {
    Op::Fill(Elementwise { len, sources: 0, from: DType::F32, to: DType::F32 }, 0.0)
}

fn gemm(m: usize, n: usize, k: usize) -> Op {
    let f = DType::F32;
    Op::Gemm(Gemm {
        m,
        n,
        k,
        trans_a: false,
        trans_b: true,
        alpha: 1.0,
        accumulate: true,
        a: f,
        b: f,
        c: f,
        ..Gemm::DENSE
    })
}

fn near(found: f64, wanted: f64, relative: f64) -> bool {
    (found / wanted - 1.0).abs() <= relative
}

#[test]
fn passes_lie_on_lines_between_their_neighbours() {
    let mut curves = Curves::default();
    for (size, seconds) in [(4000.0, 4e-6), (1000.0, 2e-6), (64000.0, 64e-6)] {
        curves.add("fill f32", point(&[size], seconds));
    }
    // Half way in logarithms: the geometric mean; measured points themselves; beyond the ends as documented.
    let found = |len| curves.seconds(&fill(len)).unwrap();
    assert!(near(found(2000), 8f64.sqrt() * 1e-6, 1e-12) && near(found(4000), 4e-6, 1e-12));
    assert!(near(found(16000), 16e-6, 1e-12) && near(found(128_000), 128e-6, 1e-12) && near(found(10), 2e-6, 1e-12));
    assert_eq!(found(0), 0.0);
}

#[test]
fn one_point_is_a_line() {
    let mut curves = Curves::default();
    curves.add("fill f32", point(&[1000.0], 2e-6));
    assert!(near(curves.seconds(&fill(3000)).unwrap(), 6e-6, 1e-12));
    curves.add("gemm nt f32", point(&[64.0, 64.0, 64.0], 5e-6));
    assert!(near(curves.seconds(&gemm(128, 64, 32)).unwrap(), 5e-6, 1e-12));
    assert!(near(curves.seconds(&gemm(128, 128, 64)).unwrap(), 20e-6, 1e-12));
}

#[test]
fn products_of_one_rate_have_it_everywhere() {
    let mut curves = Curves::default();
    for (m, n, k) in [(64, 64, 64), (128, 512, 96), (1024, 1024, 1024), (300, 77, 5)] {
        let sizes = [m as f64, n as f64, k as f64];
        curves.add("gemm nt f32", point(&sizes, 2.0 * sizes.iter().product::<f64>() / 1e11));
    }
    for (m, n, k) in [(64, 64, 64), (200, 300, 50), (4096, 4096, 4096)] {
        let seconds = curves.seconds(&gemm(m, n, k)).unwrap();
        assert!(near(seconds, 2e-11 * (m * n * k) as f64, 1e-9), "{m} {n} {k}: {seconds}");
    }
}

/// A rate that falls with short sums: points on a grid of doubled sizes, asked for half way between.
#[test]
fn products_follow_a_rate_that_changes_with_their_form() {
    let time = |m: f64, n: f64, k: f64| 2.0 * m * n * k / 1e11 * (1.0 + 40.0 / k + 20.0 / m) + 1e-6;
    let mut curves = Curves::default();
    let sizes = [32.0, 64.0, 128.0, 256.0, 512.0];
    for m in sizes {
        for n in sizes {
            sizes.iter().for_each(|k| curves.add("gemm nt f32", point(&[m, n, *k], time(m, n, *k))));
        }
    }
    for (m, n, k) in [(90, 90, 90), (181, 90, 362), (64, 128, 128), (362, 362, 45)] {
        let (found, wanted) = (curves.seconds(&gemm(m, n, k)).unwrap(), time(m as f64, n as f64, k as f64));
        assert!(near(found, wanted, 0.05), "{m} {n} {k}: {found} for {wanted}");
    }
}

#[test]
fn what_was_not_measured_is_named_and_what_is_no_number_is_not_taken() {
    let mut curves = Curves::default();
    curves.add("fill f32", point(&[1000.0], f64::NAN));
    curves.add("fill f32", point(&[0.0], 1e-6));
    curves.add("fill f32", point(&[], 1e-6));
    let reason = curves.seconds(&fill(8)).unwrap_err().to_string();
    assert!(reason.contains("\"fill f32\""), "{reason}");
    // A curve over other sizes is none.
    curves.add("fill f32", point(&[8.0, 8.0], 1e-6));
    assert!(curves.seconds(&fill(8)).is_err());
}

#[test]
fn classes_tell_kernels_forms_and_types_apart() {
    let name = |op: &Op| Class::of(op).name;
    let (b, f) = (DType::Bf16, DType::F32);
    let tn = Gemm {
        m: 2,
        n: 3,
        k: 4,
        trans_a: true,
        trans_b: false,
        alpha: 1.0,
        accumulate: false,
        a: b,
        b,
        c: f,
        ..Gemm::DENSE
    };
    assert_eq!(Class::of(&Op::Gemm(tn)), Class { name: "gemm tn bf16-bf16-f32".into(), sizes: vec![2.0, 3.0, 4.0] });
    assert_eq!(name(&Op::Prepack(tn)), "prepack tn bf16");
    let swiglu = GatedActivation { len: 5, act: Activation::GeluTanh, dtype: b };
    assert_eq!(
        (name(&Op::GatedActivation(swiglu)).as_str(), Class::of(&Op::GatedActivationBackward(swiglu)).sizes),
        ("swiglu gelu_tanh bf16", vec![5.0])
    );
    let cast = Elementwise { len: 7, sources: 1, from: f, to: b };
    assert_eq!(name(&Op::Cast(cast)), "cast f32-bf16");
}
