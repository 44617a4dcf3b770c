use crate::carried::all;
use crate::harness::*;
use proptest::prelude::*;
use zbench_kernels::{
    BiasAdd, CrossEntropy, DType, Embedding, LayerNorm, RmsNorm, Rope, RowInvNorm, ScaleColumns, View, VocabPart,
};
use zbench_kernels_testing::{ByName, Reference};

fn float() -> impl Strategy<Value = DType> {
    prop::sample::select(&FLOATS[..])
}

fn width() -> impl Strategy<Value = usize> {
    prop::sample::select(vec![1, 2, 3, 31, 32, 33, 64, 100, 511, 512, 513, 1030])
}

proptest! {
    #![proptest_config(cases(64))]

    #[test]
    fn rms_norm(rows in 0usize..70, cols in width(), dtype in float(), gradient in prop::option::of(float())) {
        let size = rows * cols;
        let shape = RmsNorm { rows, cols, eps: 1e-5, dtype, gradient };
        let (x, w) = (Tensor::normal(dtype, size, 1), Tensor::normal(dtype, cols, 2));
        let tensors = [x.clone(), w.clone(), output(dtype, size), output(DType::F32, rows)];
        compare(&format!("{shape:?}"), tensors, &[2, 3], |kernels, of, [x, w, y, rstd]| {
            let op = RmsNorm { dtype: of(dtype), ..shape };
            kernels.rms_norm(&op, x.view(), w.view(), y.view_mut(), rstd.view_mut())
        });
        let mut rstd = Tensor::filled(DType::F32, rows, 0.0);
        let mut y = x.clone();
        CPUS[0].rms_norm(&shape, x.view(), w.view(), y.view_mut(), rstd.view_mut()).unwrap();
        let (dy, dx) = (Tensor::normal(dtype, size, 3), guarded(Tensor::normal(dtype, size, 4)));
        let dw = guarded(Tensor::normal(gradient.unwrap_or(dtype), cols, 5));
        let outs: &[usize] = if gradient.is_some() { &[4, 5] } else { &[4] };
        compare(&format!("{shape:?} backward"), [x, w, rstd, dy, dx, dw], outs, |kernels, of, tensors| {
            let [x, w, rstd, dy, dx, dw] = tensors;
            let op = RmsNorm { dtype: of(dtype), gradient: gradient.map(of), ..shape };
            let dw = gradient.map(|_| dw.view_mut());
            kernels.rms_norm_backward(&op, x.view(), w.view(), rstd.view(), dy.view(), dx.view_mut(), dw)
        });
    }

    #[test]
    fn layer_norm(
        rows in 0usize..70,
        cols in width(),
        offset in -3.0f64..3.0,
        bias: bool,
        dtype in float(),
        gradient in prop::option::of(float()),
    ) {
        let size = rows * cols;
        // Of a single column nothing is left but rounding, which eps must dwarf.
        let shape = LayerNorm { rows, cols, eps: if cols < 3 { 1.0 } else { 1e-5 }, bias, dtype, gradient };
        let moved: Vec<f64> = Tensor::normal(DType::F64, size, 1).values().iter().map(|x| x + offset).collect();
        let (x, w, b) = (Tensor::of(dtype, &moved), Tensor::normal(dtype, cols, 2), Tensor::normal(dtype, cols, 6));
        let tensors = [x.clone(), w.clone(), b.clone(), output(dtype, size), output(DType::F32, 2 * rows)];
        compare(&format!("{shape:?}"), tensors, &[3, 4], |kernels, of, [x, w, b, y, statistics]| {
            let op = LayerNorm { dtype: of(dtype), ..shape };
            let b = bias.then(|| b.view());
            kernels.layer_norm(&op, x.view(), w.view(), b, y.view_mut(), statistics.view_mut())
        });
        let (mut y, mut statistics) = (x.clone(), Tensor::filled(DType::F32, 2 * rows, 0.0));
        let given = bias.then(|| b.view());
        CPUS[0].layer_norm(&shape, x.view(), w.view(), given, y.view_mut(), statistics.view_mut()).unwrap();
        let (dy, dx) = (Tensor::normal(dtype, size, 3), guarded(Tensor::normal(dtype, size, 4)));
        let [dw, db] = [5, 7].map(|seed| guarded(Tensor::normal(gradient.unwrap_or(dtype), cols, seed)));
        let outs: &[usize] = match (gradient, bias) { (None, _) => &[4], (_, false) => &[4, 5], _ => &[4, 5, 6] };
        compare(&format!("{shape:?} backward"), [x, w, statistics, dy, dx, dw, db], outs, |kernels, of, tensors| {
            let [x, w, statistics, dy, dx, dw, db] = tensors;
            let op = LayerNorm { dtype: of(dtype), gradient: gradient.map(of), ..shape };
            let dw = gradient.map(|_| dw.view_mut());
            let db = gradient.filter(|_| bias).map(|_| db.view_mut());
            kernels.layer_norm_backward(&op, x.view(), w.view(), statistics.view(), dy.view(), dx.view_mut(), dw, db)
        });
    }

    #[test]
    fn add_rows(rows in 0usize..200, period in 1usize..40, cols in width(), dtype in float(), table in float()) {
        let shape = BiasAdd { rows, period, cols, dtype };
        let tensors = [Tensor::normal(dtype, period * cols, 1), guarded(Tensor::normal(dtype, rows * cols, 2))];
        compare(&format!("{shape:?}"), tensors, &[1], |kernels, of, [table, x]| {
            kernels.add_rows(&BiasAdd { dtype: of(dtype), ..shape }, table.view(), x.view_mut())
        });
        let tensors = [Tensor::normal(dtype, rows * cols, 1), guarded(Tensor::normal(table, period * cols, 2))];
        compare(&format!("{shape:?} backward into {table}"), tensors, &[1], |kernels, of, [dy, dtable]| {
            kernels.add_rows_backward(&BiasAdd { dtype: of(dtype), ..shape }, dy.view(), dtable.view_mut())
        });
    }

    #[test]
    fn mul_rows(rows in 0usize..200, cols in width(), dtype in float(), gradient in float()) {
        let shape = ScaleColumns { rows, cols, dtype };
        let tensors = [Tensor::normal(dtype, cols, 1), guarded(Tensor::normal(dtype, rows * cols, 2))];
        compare(&format!("{shape:?}"), tensors, &[1], |kernels, of, [w, x]| {
            kernels.mul_rows(&ScaleColumns { dtype: of(dtype), ..shape }, w.view(), x.view_mut())
        });
        let [x, dy] = [3, 4].map(|seed| Tensor::normal(dtype, rows * cols, seed));
        let dw = guarded(Tensor::normal(gradient, cols, 5));
        compare(&format!("{shape:?} backward into {gradient}"), [x, dy, dw], &[2], |kernels, of, [x, dy, dw]| {
            kernels.mul_rows_backward(&ScaleColumns { dtype: of(dtype), ..shape }, x.view(), dy.view(), dw.view_mut())
        });
    }

    #[test]
    fn inverse_norms(rows in 0usize..200, cols in width(), dtype in float()) {
        let shape = RowInvNorm { rows, cols, dtype };
        let tensors = [Tensor::normal(dtype, rows * cols, 1), output(DType::F32, rows)];
        compare(&format!("{shape:?}"), tensors, &[1], |kernels, of, [x, s]| {
            kernels.inverse_norms(&RowInvNorm { dtype: of(dtype), ..shape }, x.view(), s.view_mut())
        });
    }

    #[test]
    fn rope(
        rows in 0usize..60,
        seq in 1usize..40,
        heads in 0usize..4,
        half in prop::sample::select(vec![0, 1, 3, 16, 33, 64, 600]),
        inverse: bool,
        dtype in float(),
    ) {
        let head_dim = 2 * half;
        let shape = Rope { rows, seq, heads, head_dim, inverse, dtype };
        let angles: Vec<f64> = (0..seq * half).map(|i| i as f64 * 0.7).collect();
        let table = |f: fn(f64) -> f64| Tensor::of(DType::F32, &angles.iter().map(|a| f(*a)).collect::<Vec<_>>());
        let x = guarded(Tensor::normal(dtype, rows * heads * head_dim, 1));
        compare(&format!("{shape:?}"), [x, table(f64::cos), table(f64::sin)], &[0], |kernels, of, [x, cos, sin]| {
            kernels.rope(&Rope { dtype: of(dtype), ..shape }, x.view_mut(), cos.view(), sin.view())
        });
    }

    #[test]
    fn embedding(rows in 0usize..50, cols in width(), vocab in 1usize..30, padding in prop::option::of(0u32..30), dtype in float(), table in float()) {
        let shape = Embedding { rows, cols, vocab: VocabPart::whole(vocab), padding, dtype };
        let ids: Vec<u32> = (0..rows).map(|r| (r * r * 7 % vocab) as u32).collect();
        let tensors = [Tensor::ids(&ids), Tensor::normal(dtype, vocab * cols, 1), output(dtype, rows * cols)];
        compare(&format!("{shape:?}"), tensors, &[2], |kernels, of, [ids, table, out]| {
            kernels.embedding(&Embedding { dtype: of(dtype), ..shape }, ids.view(), table.view(), out.view_mut())
        });
        // A table in a narrow type is rounded after every row, which f64 is not: there a token stands once.
        let repeat = table == DType::F32;
        let rows = if repeat { rows } else { rows.min(vocab) };
        let ids: Vec<u32> = (0..rows).map(|r| if repeat { r * r * 7 % vocab } else { vocab - 1 - r } as u32).collect();
        let shape = Embedding { rows, ..shape };
        let tensors = [Tensor::ids(&ids), Tensor::normal(dtype, rows * cols, 1), guarded(Tensor::normal(table, vocab * cols, 2))];
        compare(&format!("{shape:?} backward into {table}"), tensors, &[2], |kernels, of, [ids, dy, dtable]| {
            let op = Embedding { dtype: of(dtype), ..shape };
            kernels.embedding_backward(&op, ids.view(), dy.view(), dtable.view_mut())
        });
    }

    #[test]
    fn cross_entropy(rows in 0usize..40, vocab in prop::sample::select(vec![1usize, 2, 31, 32, 100, 513, 3000]),
            apart in prop::sample::select(vec![0usize, 1, 7, 8]), spread in 0.1f64..30.0) {
        let pitch = (vocab + apart).next_multiple_of(apart.max(1));
        let shape = CrossEntropy { rows, vocab, scale: 0.25, dtype: DType::F32, gradient: DType::F32, pitch };
        let logits: Vec<f64> = Tensor::normal(DType::F64, rows * pitch, 1).values().iter().map(|x| x * spread).collect();
        let targets: Vec<u32> =
            (0..rows).map(|r| if r % 5 == 4 { u32::MAX } else { (r * 37 % vocab) as u32 }).collect();
        let tensors = [guarded(Tensor::of(DType::F32, &logits)), Tensor::ids(&targets), output(DType::F32, rows)];
        compare(&format!("{shape:?}"), tensors, &[0, 2], |kernels, of, [logits, targets, losses]| {
            let op = CrossEntropy { dtype: of(DType::F32), gradient: of(DType::F32), ..shape };
            kernels.cross_entropy(&op, logits.view_mut(), targets.view(), losses.view_mut())
        });
    }
}

proptest! {
    #![proptest_config(cases(48))]

    /// A narrow gradient lies in front of the logits' buffer and has the bits of the wide one, rounded; losses stay.
    #[test]
    fn a_narrow_gradient_is_the_wide_one_rounded(
        rows in 0usize..75,
        vocab in prop::sample::select(vec![1usize, 2, 3, 31, 33, 511, 513, 1025, 3000]),
        gradient in prop::sample::select(vec![DType::Bf16, DType::F16]),
        apart in prop::sample::select(vec![0usize, 1, 8]),
        spread in 0.1f64..30.0,
    ) {
        use zbench_kernels::{Kernels};
        let pitch = (vocab + apart).next_multiple_of(apart.max(1));
        let wide = CrossEntropy { rows, vocab, scale: 0.25, dtype: DType::F32, gradient: DType::F32, pitch };
        let narrow = CrossEntropy { gradient, ..wide };
        let logits: Vec<f64> = Tensor::normal(DType::F64, rows * pitch, 1).values().iter().map(|x| x * spread).collect();
        let targets: Vec<u32> =
            (0..rows).map(|r| if r % 5 == 4 { u32::MAX } else { (r * 37 % vocab) as u32 }).collect();
        let targets = Tensor::ids(&targets);
        let mut firsts = std::collections::HashMap::new();
        for cpu in all() {
            let run = |op: &CrossEntropy| {
                let (mut logits, mut losses) = (guarded(Tensor::of(DType::F32, &logits)), output(DType::F32, rows));
                cpu.cross_entropy(op, logits.view_mut(), targets.view(), losses.view_mut()).unwrap();
                (logits, losses)
            };
            let ((gradients, losses), (front, same)) = (run(&wide), run(&narrow));
            prop_assert_eq!(losses.bits(), same.bits());
            prop_assert_eq!(&front.bits()[rows * pitch..], &gradients.bits()[rows * pitch..], "wrote past the logits");
            let mut rounded = Tensor::filled(gradient, rows * pitch, 0.0);
            CPUS[0].cast(gradients.view().slice(0..rows * pitch), rounded.view_mut()).unwrap();
            let front = front.view().reinterpret(gradient).unwrap().slice(0..rows * pitch);
            let mut found = Tensor::filled(gradient, rows * pitch, 0.0);
            CPUS[0].cast(front, found.view_mut()).unwrap();
            prop_assert_eq!(found.bits(), rounded.bits(), "{} {:?}", cpu.name(), narrow);
            let first = firsts.entry(cpu.name()).or_insert_with(|| found.bits());
            prop_assert_eq!(first, &found.bits(), "depends on the threads");
        }
        // The reference: in f64, rounded once.
        let mut exact = Tensor::of(DType::F64, &logits);
        let (mut losses, all) = (Tensor::filled(DType::F64, rows, 0.0), DType::F64);
        let op = CrossEntropy { dtype: all, gradient: all, ..wide };
        Reference.cross_entropy(&op, exact.view_mut(), targets.view(), losses.view_mut()).unwrap();
        let (mut own, mut losses) = (Tensor::of(DType::F32, &logits), Tensor::filled(DType::F32, rows, 0.0));
        Reference.cross_entropy(&narrow, own.view_mut(), targets.view(), losses.view_mut()).unwrap();
        let mut found = Tensor::filled(gradient, rows * pitch, 0.0);
        Reference.cast(own.view().reinterpret(gradient).unwrap().slice(0..rows * pitch), found.view_mut()).unwrap();
        // Logits of f32 are not those of f64, so the softmax differs by their rounding.
        assert_close("reference", &found, &exact.values());
    }
}

/// A row gets the same bits wherever it lies and whoever computes it: kernels on some rows equal the kernel on all.
#[test]
fn rows_do_not_depend_on_where_they_lie() {
    use zbench_kernels::Kernels;
    const ROWS: usize = 37;
    for (dtype, cols) in FLOATS.into_iter().flat_map(|dtype| [1, 34, 514].map(|cols| (dtype, cols))) {
        let [x, dy, dx] = [1, 2, 3].map(|seed| Tensor::normal(dtype, ROWS * cols, seed));
        let [w, b] = [4, 5].map(|seed| Tensor::normal(dtype, cols, seed));
        let logits = Tensor::normal(DType::F32, ROWS * cols, 6);
        let targets: Vec<u32> = (0..ROWS).map(|row| (row * 7 % cols) as u32).collect();
        let call = |k: &dyn Kernels, rows: std::ops::Range<usize>| {
            let all = rows.start * cols..rows.end * cols;
            let own = |from: &Tensor| {
                let mut out = Tensor::filled(from.dtype, all.len(), 0.0);
                CPUS[0].cast(from.view().slice(all.clone()), out.view_mut()).unwrap();
                out
            };
            let (x_at, dy_at, w, b) = (x.view().slice(all.clone()), dy.view().slice(all.clone()), w.view(), b.view());
            let rows = rows.len();
            let norm = RmsNorm { rows, cols, eps: 1e-5, dtype, gradient: None };
            let layer = LayerNorm { rows, cols, eps: 1e-5, bias: true, dtype, gradient: None };
            let (mut y, mut z, mut dx_rms, mut dx_layer) = (own(&dx), own(&dx), own(&dx), own(&dx));
            let mut rstd = Tensor::filled(DType::F32, rows, 0.0);
            k.rms_norm(&norm, x_at, w, y.view_mut(), rstd.view_mut()).unwrap();
            k.rms_norm_backward(&norm, x_at, w, rstd.view(), dy_at, dx_rms.view_mut(), None).unwrap();
            let mut statistics = Tensor::filled(DType::F32, 2 * rows, 0.0);
            k.layer_norm(&layer, x_at, w, Some(b), z.view_mut(), statistics.view_mut()).unwrap();
            let of = statistics.view();
            k.layer_norm_backward(&layer, x_at, w, of, dy_at, dx_layer.view_mut(), None, None).unwrap();
            let (mut moved, mut turned) = (own(&dx), own(&dx));
            k.add_rows(&BiasAdd { rows, period: 1, cols, dtype }, b, moved.view_mut()).unwrap();
            k.mul_rows(&ScaleColumns { rows, cols, dtype }, w, moved.view_mut()).unwrap();
            if cols % 2 == 0 {
                let angles: Vec<f32> = (0..cols / 2).map(|i| (i as f32 * 0.7).sin()).collect();
                let rope = Rope { rows, seq: 1, heads: 1, head_dim: cols, inverse: true, dtype };
                k.rope(&rope, turned.view_mut(), View::of(&angles), View::of(&angles)).unwrap();
            }
            let mut gradient = own(&logits);
            let mut losses = Tensor::filled(DType::F32, rows, 0.0);
            let op = CrossEntropy { rows, vocab: cols, scale: 0.5, dtype: DType::F32, gradient: DType::F32, pitch: 0 };
            let wanted = Tensor::ids(&targets[all.start / cols..all.end / cols]);
            k.cross_entropy(&op, gradient.view_mut(), wanted.view(), losses.view_mut()).unwrap();
            [y, z, dx_rms, dx_layer, moved, turned, gradient, rstd, losses].map(|tensor| tensor.bits())
        };
        let cores = CPUS.iter().map(|cpu| (&CPUS[0] as &dyn Kernels, cpu as &dyn Kernels));
        let cudas = CUDAS.iter().map(|cuda| (&CUDAS[0] as &dyn Kernels, cuda as &dyn Kernels));
        for (first, kernels) in cores.chain(cudas) {
            let whole = call(first, 0..ROWS);
            for rows in [0..ROWS, 1..ROWS, 5..6, 36..37, 11..30] {
                for (number, (part, whole)) in call(kernels, rows.clone()).iter().zip(&whole).enumerate() {
                    let width = whole.len() / ROWS;
                    let expected = &whole[rows.start * width..rows.end * width];
                    assert_eq!(part, expected, "result {number} of {dtype}, {cols} columns, rows {rows:?}");
                }
            }
        }
    }
}

#[test]
fn ignored_targets_have_no_loss_and_no_gradient() {
    let op = CrossEntropy { rows: 2, vocab: 5, scale: 1.0, dtype: DType::F32, gradient: DType::F32, pitch: 0 };
    for kernels in all() {
        let mut logits = Tensor::normal(DType::F32, 10, 1);
        let mut losses = Tensor::filled(DType::F32, 2, 9.0);
        kernels.cross_entropy(&op, logits.view_mut(), Tensor::ids(&[u32::MAX, 2]).view(), losses.view_mut()).unwrap();
        kernels.synchronize().unwrap();
        assert_eq!(losses.values()[0], 0.0);
        assert!(logits.values()[..5].iter().all(|x| *x == 0.0));
        assert!(losses.values()[1] > 0.0 && logits.values()[7] < 0.0);
    }
}

#[test]
fn an_infinite_logit_below_is_no_trouble() {
    for (kernels, vocab) in all().flat_map(|kernels| [3, 256, 3000].map(|vocab| (kernels, vocab))) {
        let op = CrossEntropy { rows: 1, vocab, scale: 1.0, dtype: DType::F32, gradient: DType::F32, pitch: 0 };
        let mut values = vec![f64::NEG_INFINITY; vocab];
        values[1..3].fill(1000.0);
        let mut logits = Tensor::of(DType::F32, &values);
        let mut losses = Tensor::filled(DType::F32, 1, 0.0);
        kernels.cross_entropy(&op, logits.view_mut(), Tensor::ids(&[2]).view(), losses.view_mut()).unwrap();
        assert!((losses.values()[0] - 2f64.ln()).abs() < 1e-4);
        assert_eq!(logits.values()[..3], [0.0, 0.5, -0.5]);
        assert!(logits.values()[3..].iter().all(|x| *x == 0.0));
    }
}

/// Rows too wide for a block to keep sums of: the gradients of the weights take a pass of their own.
#[test]
fn norms_of_very_wide_rows() {
    for (dtype, cols) in [(DType::F32, 25_000), (DType::Bf16, 24_601)] {
        let (rows, eps, gradient) = (5, 1e-5, Some(DType::F32));
        let [x, w, dy] =
            [(rows * cols, 1), (cols, 2), (rows * cols, 3)].map(|(len, seed)| Tensor::normal(dtype, len, seed));
        let rstd = Tensor::filled(DType::F32, rows, 1.01);
        let statistics = Tensor::of(DType::F32, &[0.1, 0.0, -0.1, 0.2, 0.0, 1.0, 1.1, 0.9, 1.0, 1.0]);
        let dx = guarded(Tensor::normal(dtype, rows * cols, 4));
        let [dw, db] = [5, 6].map(|seed| guarded(Tensor::normal(DType::F32, cols, seed)));
        let tensors = [x.clone(), w.clone(), rstd, dy.clone(), dx.clone(), dw.clone()];
        compare(&format!("{cols} columns of {dtype}"), tensors, &[4, 5], |kernels, of, [x, w, rstd, dy, dx, dw]| {
            let op = RmsNorm { rows, cols, eps, dtype: of(dtype), gradient: gradient.map(of) };
            let dw = Some(dw.view_mut());
            kernels.rms_norm_backward(&op, x.view(), w.view(), rstd.view(), dy.view(), dx.view_mut(), dw)
        });
        let tensors = [x, w, statistics, dy, dx, dw, db];
        compare(
            &format!("{cols} columns of {dtype}"),
            tensors,
            &[4, 5, 6],
            |kernels, of, [x, w, s, dy, dx, dw, db]| {
                let op = LayerNorm { rows, cols, eps, bias: true, dtype: of(dtype), gradient: gradient.map(of) };
                let (dw, db) = (Some(dw.view_mut()), Some(db.view_mut()));
                kernels.layer_norm_backward(&op, x.view(), w.view(), s.view(), dy.view(), dx.view_mut(), dw, db)
            },
        );
    }
}

/// More tokens than are sorted together, some of them in hundreds of rows, and padding among them.
#[test]
fn embedding_gradients_of_many_tokens() {
    for (rows, cols, vocab) in [(2047, 40, 7), (5000, 9, 300), (4100, 8, 100_000), (70_000, 1, 900)] {
        for padding in [None, Some(3)] {
            let shape = Embedding { rows, cols, vocab: VocabPart::whole(vocab), padding, dtype: DType::Bf16 };
            // A third are the same token, as in text.
            let id = |r: usize| if r.is_multiple_of(3) { 5 } else { r.wrapping_mul(0x9e37_79b9) >> 7 };
            let ids: Vec<u32> = (0..rows).map(|r| (id(r) % vocab) as u32).collect();
            let dtable = guarded(Tensor::normal(DType::F32, vocab * cols, 2));
            let tensors = [Tensor::ids(&ids), Tensor::normal(DType::Bf16, rows * cols, 1), dtable];
            compare(&format!("{shape:?}"), tensors, &[2], |kernels, of, [ids, dy, dtable]| {
                let op = Embedding { dtype: of(shape.dtype), ..shape };
                kernels.embedding_backward(&op, ids.view(), dy.view(), dtable.view_mut())
            });
        }
    }
}

/// What is moved in words of 16 bytes where it can be has the same bits where it cannot.
#[test]
fn rows_that_are_not_aligned_have_the_same_bits() {
    use zbench_kernels::Kernels;
    const ROWS: usize = 6;
    for (dtype, cols) in FLOATS.into_iter().flat_map(|dtype| [64, 1032].map(|cols| (dtype, cols))) {
        let all = ROWS * cols;
        let call = |cuda: &zbench_kernels::Cuda, at: usize| {
            let moved = |from: Tensor| {
                let zeros = vec![0.0; at];
                Tensor::of(from.dtype, &zeros.into_iter().chain(from.values()).collect::<Vec<_>>())
            };
            let [x, dy] = [1, 2].map(|seed| moved(Tensor::normal(dtype, all, seed)));
            let [w, b] = [3, 4].map(|seed| moved(Tensor::normal(dtype, cols, seed)));
            let [mut y, mut z, mut dx, mut dz, mut sum, mut turned, mut looked] =
                [5, 6, 7, 8, 9, 10, 11].map(|seed| moved(Tensor::normal(dtype, all, seed)));
            let [mut dw, mut db, mut dv, mut dt] =
                [12, 13, 14, 15].map(|seed| moved(Tensor::normal(dtype, cols, seed)));
            let [mut rstd, mut statistics] = [ROWS, 2 * ROWS].map(|len| moved(Tensor::filled(DType::F32, len, 0.0)));
            let angles = moved(Tensor::normal(DType::F32, cols / 2, 16));
            let (mut logits, mut losses) =
                (moved(Tensor::normal(DType::F32, all, 17)), Tensor::filled(DType::F32, ROWS, 0.0));
            let ids = Tensor::ids(&[5, 0, 3, 3, 1, 5]);
            let (gradient, eps, rows) = (Some(dtype), 1e-5, ROWS);
            macro_rules! v {
                ($t:expr) => {
                    $t.view().slice(at..$t.len)
                };
            }
            macro_rules! m {
                ($t:expr) => {{
                    let len = $t.len;
                    $t.view_mut().into_slice(at..len)
                }};
            }
            let norm = RmsNorm { rows, cols, eps, dtype, gradient };
            cuda.rms_norm(&norm, v!(x), v!(w), m!(y), m!(rstd)).unwrap();
            cuda.rms_norm_backward(&norm, v!(x), v!(w), v!(rstd), v!(dy), m!(dx), Some(m!(dv))).unwrap();
            let norm = LayerNorm { rows, cols, eps, bias: true, dtype, gradient };
            cuda.layer_norm(&norm, v!(x), v!(w), Some(v!(b)), m!(z), m!(statistics)).unwrap();
            let (dw_at, db_at) = (Some(m!(dw)), Some(m!(db)));
            cuda.layer_norm_backward(&norm, v!(x), v!(w), v!(statistics), v!(dy), m!(dz), dw_at, db_at).unwrap();
            cuda.add_rows(&BiasAdd { rows, period: 1, cols, dtype }, v!(b), m!(sum)).unwrap();
            cuda.mul_rows(&ScaleColumns { rows, cols, dtype }, v!(w), m!(sum)).unwrap();
            cuda.mul_rows_backward(&ScaleColumns { rows, cols, dtype }, v!(x), v!(dy), m!(dt)).unwrap();
            let rope = Rope { rows, seq: 1, heads: 1, head_dim: cols, inverse: true, dtype };
            cuda.rope(&rope, m!(turned), v!(angles), v!(angles)).unwrap();
            let op = Embedding { rows, cols, vocab: VocabPart::whole(ROWS), padding: None, dtype };
            cuda.embedding(&op, ids.view(), v!(dy), m!(looked)).unwrap();
            cuda.embedding_backward(&op, ids.view(), v!(x), m!(looked)).unwrap();
            let op = CrossEntropy { rows, vocab: cols, scale: 0.5, dtype: DType::F32, gradient: DType::F32, pitch: 0 };
            cuda.cross_entropy(&op, m!(logits), ids.view(), losses.view_mut()).unwrap();
            cuda.synchronize().unwrap();
            [y, z, dx, dz, sum, turned, looked, dw, db, dv, dt, rstd, statistics, logits]
                .map(|tensor| tensor.bits()[at..].to_vec())
        };
        for cuda in CUDAS.iter() {
            let aligned = call(cuda, 0);
            for at in [1, 2, 4] {
                for (number, (moved, aligned)) in call(cuda, at).iter().zip(&aligned).enumerate() {
                    assert_eq!(moved, aligned, "result {number} of {dtype}, {cols} columns, {at} elements on");
                }
            }
        }
    }
}
