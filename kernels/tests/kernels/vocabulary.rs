//! A vocabulary that ranks share: what the ranks compute of their parts makes what one rank computes of the whole.

use crate::carried::all;
use crate::harness::*;
use proptest::prelude::*;
use zbench_kernels::{
    CrossEntropy, DType, Embedding, Kernels, View, ViewMut, VocabParallelCrossEntropy, VocabParallelStats, VocabPart,
};
use zbench_kernels_testing::{ByName, Reference};

const F: DType = DType::F32;
const SCALE: f64 = 0.25;

/// Units in the last place that a sum of exponentials may be off. They stay in its logarithm, the loss, where that is near 0, and
/// where the softmax of a target, near 1, loses 1.
const UNITS: f64 = 8.0;

/// The parts that ranks have of a vocabulary: of one length, a multiple of `multiple`, so that the last ones may have padding.
fn parts(words: usize, ranks: usize, multiple: usize) -> Vec<VocabPart> {
    let len = words.div_ceil(ranks).next_multiple_of(multiple);
    (0..ranks).map(|rank| VocabPart { first: rank * len, len, vocab_size: words }).collect()
}

/// Rows of logits, a target for each, and how they are cut.
#[derive(Clone, Debug)]
struct Case {
    rows: usize,
    words: usize,
    ranks: usize,
    multiple: usize,
    /// Elements between rows of a part.
    apart: usize,
    /// What normal deviates are multiplied by, and what is added to all.
    spread: f64,
    offset: f64,
    gradient: DType,
}

fn case() -> impl Strategy<Value = Case> {
    let words = prop::sample::select(vec![1usize, 2, 5, 31, 32, 100, 513, 3000]);
    let magnitudes = prop::sample::select(vec![(1.0, 0.0), (30.0, 0.0), (1.0, 1e4), (1.0, -1e4), (1e4, 0.0)]);
    let apart = prop::sample::select(vec![0usize, 1, 8]);
    let multiple = prop::sample::select(vec![1usize, 8]);
    let gradient = prop::sample::select(&FLOATS[..]);
    (0usize..20, words, 1usize..5, multiple, apart, magnitudes, gradient).prop_map(
        |(rows, words, ranks, multiple, apart, (spread, offset), gradient)| Case {
            rows,
            words,
            ranks,
            multiple,
            apart,
            spread,
            offset,
            gradient,
        },
    )
}

impl Case {
    fn logits(&self) -> Vec<f64> {
        let normal = Tensor::normal(DType::F64, self.rows * self.words, 1).values();
        // As f32 has them.
        Tensor::of(F, &normal.iter().map(|x| x * self.spread + self.offset).collect::<Vec<_>>()).values()
    }

    /// Words of all parts, and rows without one.
    fn targets(&self) -> Vec<u32> {
        let target = |r: usize| if r % 5 == 4 { u32::MAX } else { (r * 1237 % self.words) as u32 };
        (0..self.rows).map(target).collect()
    }

    fn parts(&self) -> Vec<VocabParallelStats> {
        let part =
            |vocab: VocabPart| VocabParallelStats { rows: self.rows, vocab, dtype: F, pitch: vocab.len + self.apart };
        parts(self.words, self.ranks, self.multiple).into_iter().map(part).collect()
    }

    /// A rank's logits; numbers that no sum may have stand where no words are.
    fn cut(&self, part: &VocabParallelStats) -> Vec<f64> {
        let logits = self.logits();
        let at = |row: usize, column: usize| match column < part.vocab.valid() {
            true => logits[row * self.words + part.vocab.first + column],
            false => f64::NAN,
        };
        (0..self.rows).flat_map(|row| (0..part.pitch).map(move |column| (row, column))).map(|(r, c)| at(r, c)).collect()
    }

    /// The size of what cancels in each element of a gradient: at targets alone.
    fn cancelled(&self, part: &VocabPart, pitch: usize) -> Vec<f64> {
        let mut sizes = vec![0.0; self.rows * pitch];
        for (row, target) in self.targets().into_iter().enumerate() {
            if let Some(at) = part.find(target) {
                sizes[row * pitch + at] = UNITS * SCALE;
            }
        }
        sizes
    }

    fn loss_of(&self, part: VocabParallelStats, gradient: DType) -> VocabParallelCrossEntropy {
        VocabParallelCrossEntropy { part, ranks: self.ranks, scale: SCALE, gradient }
    }
}

/// What every rank ends with: the statistics of all ranks, then of each rank its gradients and its losses.
fn on_ranks(kernels: &dyn Kernels, case: &Case, gradient: DType) -> (Tensor, Vec<[Tensor; 2]>) {
    let (parts, targets) = (case.parts(), Tensor::ids(&case.targets()));
    let of_rank = case.rows * VocabParallelStats::NUMBERS;
    let mut statistics = Tensor::filled(F, case.ranks * of_rank, f64::NAN);
    for (rank, part) in parts.iter().enumerate() {
        let logits = Tensor::of(F, &case.cut(part));
        let to = statistics.view_mut().into_slice(rank * of_rank..(rank + 1) * of_rank);
        kernels.loss_parts(part, targets.view(), logits.view(), to).unwrap();
    }
    kernels.synchronize().unwrap();
    let gradients = parts.iter().map(|part| {
        let (mut logits, mut losses) = (guarded(Tensor::of(F, &case.cut(part))), output(F, case.rows));
        let op = case.loss_of(*part, gradient);
        let views = (logits.view_mut(), losses.view_mut());
        kernels.loss_of_parts(&op, targets.view(), statistics.view(), views.0, views.1).unwrap();
        kernels.synchronize().unwrap();
        for tensor in [&logits, &losses] {
            assert!(tensor.values()[tensor.len - GUARD..].iter().all(|x| *x == SENTINEL), "wrote behind a tensor");
        }
        let len = case.rows * part.pitch;
        let mut front = Tensor::filled(gradient, len, f64::NAN);
        CPUS[0].cast(logits.view().reinterpret(gradient).unwrap().slice(0..len), front.view_mut()).unwrap();
        let mut own = Tensor::filled(F, case.rows, f64::NAN);
        CPUS[0].cast(losses.view().slice(0..case.rows), own.view_mut()).unwrap();
        [front, own]
    });
    let gradients = gradients.collect();
    (statistics, gradients)
}

/// The gradients of all ranks beside each other, as one rank has them; what stands where no words are is 0.
fn joined(case: &Case, ranks: &[[Tensor; 2]]) -> Tensor {
    let mut all = vec![0.0; case.rows * case.words];
    for (part, [gradient, _]) in case.parts().iter().zip(ranks) {
        for (row, values) in gradient.values().chunks(part.pitch.max(1)).enumerate() {
            let (own, padding) = values.split_at(part.vocab.valid());
            let to = all[row * case.words..].iter_mut().skip(part.vocab.first);
            to.zip(own).for_each(|(to, own)| *to = *own);
            assert!(padding.iter().all(|x| x.to_bits() == 0), "padding has a gradient: {padding:?}");
        }
    }
    Tensor::of(ranks[0][0].dtype, &all)
}

proptest! {
    #![proptest_config(cases(32))]

    #[test]
    fn the_halves_of_the_loss_are_the_references(case in case()) {
        for (rank, part) in case.parts().into_iter().enumerate() {
            if part.vocab.valid() == 0 {
                // Infinities have no distance from each other; the whole loss below has such parts.
                continue;
            }
            // Padding is not read, so that the reference may have numbers there.
            let logits: Vec<f64> = case.cut(&part).iter().map(|x| if x.is_nan() { 1e5 } else { *x }).collect();
            let targets = Tensor::ids(&case.targets());
            let tensors = [targets.clone(), Tensor::of(F, &logits), output(F, case.rows * VocabParallelStats::NUMBERS)];
            let name = format!("rank {rank} of {case:?}");
            compare(&name, tensors, &[2], |kernels, of, [targets, logits, statistics]| {
                let op = VocabParallelStats { dtype: of(F), ..part };
                kernels.loss_parts(&op, targets.view(), logits.view(), statistics.view_mut())
            });
            let (statistics, _) = on_ranks(&CPUS[0], &case, F);
            if statistics.values().iter().any(|x| x.is_infinite()) {
                continue;
            }
            let tensors = [targets, statistics, guarded(Tensor::of(F, &logits)), output(F, case.rows)];
            let sizes = [case.cancelled(&part.vocab, part.pitch), vec![UNITS; case.rows]];
            compare_sums(&name, tensors, &[2, 3], &sizes, |kernels, of, [targets, statistics, logits, losses]| {
                let op = case.loss_of(VocabParallelStats { dtype: of(F), ..part }, of(F));
                kernels.loss_of_parts(&op, targets.view(), statistics.view(), logits.view_mut(), losses.view_mut())
            });
        }
    }

    #[test]
    fn the_loss_of_parts_is_that_of_the_whole_vocabulary(case in case()) {
        let Case { rows, words, gradient, .. } = case;
        let whole = CrossEntropy { rows, vocab: words, scale: SCALE, dtype: F, gradient: F, pitch: 0 };
        let targets = Tensor::ids(&case.targets());
        let (mut exact, mut losses) = (case.logits(), vec![0.0; rows]);
        let op = CrossEntropy { dtype: DType::F64, gradient: DType::F64, ..whole };
        let writes = (ViewMut::of(&mut exact), ViewMut::of(&mut losses));
        Reference.cross_entropy(&op, writes.0, targets.view(), writes.1).unwrap();
        for kernels in all() {
            let name = format!("{case:?} on {}", kernels.name());
            let (_, ranks) = on_ranks(kernels, &case, F);
            for [_, own] in &ranks {
                assert_sum_close(&format!("losses of {name}"), own, &losses, &vec![UNITS; rows]);
                prop_assert_eq!(own.bits(), ranks[0][1].bits(), "the ranks' losses differ: {}", name);
            }
            let wide = joined(&case, &ranks);
            let cancelled = case.cancelled(&VocabPart::whole(words), words);
            assert_sum_close(&format!("gradient of {name}"), &wide, &exact, &cancelled);
            // Another type of the gradient rounds it, and changes nothing else.
            let (_, narrow) = on_ranks(kernels, &case, gradient);
            let mut rounded = Tensor::filled(gradient, wide.len, f64::NAN);
            CPUS[0].cast(wide.view(), rounded.view_mut()).unwrap();
            prop_assert_eq!(joined(&case, &narrow).bits(), rounded.bits(), "gradient of {}", name);
            prop_assert_eq!(narrow[0][1].bits(), ranks[0][1].bits());
            if case.ranks == 1 {
                // One part is the whole, and has its bits where rows are cut into the same columns.
                let pitch = case.parts()[0].pitch;
                let op = CrossEntropy { pitch, ..whole };
                let (mut logits, mut own) = (Tensor::of(F, &case.cut(&case.parts()[0])), output(F, rows));
                kernels.cross_entropy(&op, logits.view_mut(), targets.view(), own.view_mut()).unwrap();
                kernels.synchronize().unwrap();
                prop_assert_eq!(logits.bits(), ranks[0][0].bits(), "one rank's gradient of {}", name);
                prop_assert_eq!(&own.bits()[..rows], &ranks[0][1].bits()[..], "one rank's losses of {}", name);
            }
        }
    }

    #[test]
    fn look_ups_of_parts_are_those_of_the_whole_table(
        rows in 0usize..700, cols in prop::sample::select(vec![1usize, 3, 8, 40]), words in 1usize..300, ranks in 1usize..5,
        multiple in prop::sample::select(vec![1usize, 8]), padding in prop::option::of(0u32..300),
        dtype in prop::sample::select(&FLOATS[..]), gradient in prop::sample::select(&FLOATS[..]),
    ) {
        let ids: Vec<u32> = (0..rows).map(|r| (if r % 3 == 0 { 5 } else { r * r * 7 + r / 11 } % words) as u32).collect();
        let (table, given) = (Tensor::normal(dtype, words * cols, 1), Tensor::ids(&ids));
        let (dy, before) = (Tensor::normal(dtype, rows * cols, 2), Tensor::normal(gradient, words * cols, 3));
        // A rank's rows of a table; padding holds what no look-up may give.
        let cut = |from: &Tensor, part: &VocabPart| {
            let (values, own) = (from.values(), part.first * cols..(part.first + part.valid()) * cols);
            let own = if own.is_empty() { &[] } else { &values[own] };
            let padding = vec![SENTINEL; (part.len - part.valid()) * cols];
            Tensor::of(from.dtype, &[own, &padding].concat())
        };
        let look_up = |kernels: &dyn Kernels, vocab: VocabPart, table: &Tensor, before: &Tensor| {
            let op = Embedding { rows, cols, vocab, padding, dtype };
            let (mut out, mut dtable) = (Tensor::filled(dtype, rows * cols, f64::NAN), before.clone());
            kernels.embedding(&op, given.view(), table.view(), out.view_mut()).unwrap();
            kernels.embedding_backward(&op, given.view(), dy.view(), dtable.view_mut()).unwrap();
            kernels.synchronize().unwrap();
            (out, dtable)
        };
        let parts = parts(words, ranks, multiple);
        let compared: Vec<&dyn Kernels> = all().chain([&Reference as &dyn Kernels]).collect();
        for kernels in compared {
            let (whole, whole_gradient) = look_up(kernels, VocabPart::whole(words), &table, &before);
            let mut sum = vec![0.0; rows * cols];
            for part in &parts {
                let (out, dtable) = look_up(kernels, *part, &cut(&table, part), &cut(&before, part));
                let (zero, bits) = (|id: &u32| part.find(*id).is_none(), out.bits());
                for (row, _) in ids.iter().enumerate().filter(|(_, id)| zero(id)) {
                    prop_assert!(bits[row * cols..(row + 1) * cols].iter().all(|bits| *bits == 0));
                }
                sum.iter_mut().zip(out.values()).for_each(|(sum, x)| *sum += x);
                prop_assert_eq!(dtable.bits(), cut(&whole_gradient, part).bits(), "{:?} on {}", part, kernels.name());
            }
            prop_assert_eq!(Tensor::of(dtype, &sum).bits(), whole.bits(), "{}", kernels.name());
        }
    }
}

#[test]
fn a_part_without_words_adds_nothing() {
    let (rows, words, ranks) = (2, 3, 4);
    let case = Case { rows, words, ranks, multiple: 2, apart: 1, spread: 1.0, offset: 0.0, gradient: F };
    assert_eq!(case.parts().iter().map(|part| part.vocab.valid()).collect::<Vec<_>>(), [2, 1, 0, 0]);
    for kernels in all().chain([&Reference as &dyn Kernels]) {
        let (statistics, _) = on_ranks(kernels, &case, F);
        for row in statistics.values()[2 * rows * VocabParallelStats::NUMBERS..].chunks(VocabParallelStats::NUMBERS) {
            assert_eq!(row, [f64::NEG_INFINITY, 0.0, 0.0], "{}", kernels.name());
        }
    }
}

/// Logits of -infinity are words of the probability 0, also where a part has no others.
#[test]
fn a_part_of_infinite_logits_adds_nothing() {
    for kernels in all() {
        let part = |first| VocabParallelStats {
            rows: 1,
            vocab: VocabPart { first, len: 2, vocab_size: 4 },
            dtype: F,
            pitch: 0,
        };
        let (targets, low) = (Tensor::ids(&[3]), Tensor::filled(F, 2, f64::NEG_INFINITY));
        let mut statistics = Tensor::filled(F, 6, f64::NAN);
        kernels.loss_parts(&part(0), targets.view(), low.view(), statistics.view_mut()).unwrap();
        let (values, to) = (Tensor::filled(F, 2, 1000.0), statistics.view_mut().into_slice(3..6));
        kernels.loss_parts(&part(2), targets.view(), values.view(), to).unwrap();
        kernels.synchronize().unwrap();
        assert_eq!(statistics.values(), [f64::NEG_INFINITY, 0.0, 0.0, 1000.0, 2.0, 1000.0], "{}", kernels.name());
        for (first, mut logits, gradient) in [(0, low, [0.0, 0.0]), (2, values, [0.5, -0.5])] {
            let op = VocabParallelCrossEntropy { part: part(first), ranks: 2, scale: 1.0, gradient: F };
            let mut losses = Tensor::filled(F, 1, f64::NAN);
            let views = (logits.view_mut(), losses.view_mut());
            kernels.loss_of_parts(&op, targets.view(), statistics.view(), views.0, views.1).unwrap();
            kernels.synchronize().unwrap();
            assert_eq!(logits.values(), gradient, "{}", kernels.name());
            assert!((losses.values()[0] - 2f64.ln()).abs() < 1e-4);
        }
    }
}

/// The gradient of the reference is the slope of its loss.
#[test]
fn the_references_gradient_is_the_slope_of_its_loss() {
    let (rows, words, ranks) = (3, 5, 2);
    let targets = [2u32, u32::MAX, 4];
    let parts: Vec<VocabParallelStats> = parts(words, ranks, 1)
        .into_iter()
        .map(|vocab| VocabParallelStats { rows, vocab, dtype: DType::F64, pitch: 0 })
        .collect();
    let run = |logits: &[Vec<f64>]| {
        let mut statistics = vec![0.0; ranks * rows * VocabParallelStats::NUMBERS];
        for ((part, logits), to) in
            parts.iter().zip(logits).zip(statistics.chunks_mut(rows * VocabParallelStats::NUMBERS))
        {
            let to = ViewMut::of(to);
            Reference.loss_parts(part, View::of(&targets), View::of(logits), to).unwrap();
        }
        let (mut gradients, mut losses) = (logits.to_vec(), vec![0.0; rows]);
        for (part, gradient) in parts.iter().zip(&mut gradients) {
            let op = VocabParallelCrossEntropy { part: *part, ranks, scale: 0.7, gradient: DType::F64 };
            let writes = (ViewMut::of(gradient), ViewMut::of(&mut losses));
            Reference.loss_of_parts(&op, View::of(&targets), View::of(&statistics), writes.0, writes.1).unwrap();
        }
        (gradients, 0.7 * losses.iter().sum::<f64>())
    };
    let logits: Vec<Vec<f64>> =
        (0..ranks).map(|rank| Tensor::normal(DType::F64, rows * 3, rank as u64).values()).collect();
    let (gradients, _) = run(&logits);
    for (rank, part) in parts.iter().enumerate() {
        for at in 0..rows * part.vocab.len {
            let moved = |by: f64| {
                let mut logits = logits.clone();
                logits[rank][at] += by;
                run(&logits).1
            };
            let slope = (moved(1e-5) - moved(-1e-5)) / 2e-5;
            assert!((slope - gradients[rank][at]).abs() < 1e-8, "logit {at} of rank {rank}: {slope}");
        }
    }
}
