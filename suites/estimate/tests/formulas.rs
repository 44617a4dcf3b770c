//! Tables that papers computed by formula: the estimator's own sums are the same to the printed digits.

use crate::memory::{gpt, job};
use zbench_estimate::job::{Batch, Degrees, Job, Kind, Recompute, Shape, Sharding};
use zbench_estimate::memory::{formula_bytes, memory};

/// Rajbhandari et al. 2020, table 1: parameters, ZeRO's stage, ranks, decimal gigabytes of weights, gradients and optimizer state.
const ZERO: &[(f64, u8, usize, &str)] = &[
    (7.5e9, 1, 1, "120"),
    (7.5e9, 1, 4, "52.5"),
    (7.5e9, 1, 1024, "30.1"),
    (7.5e9, 2, 1, "120"),
    (7.5e9, 2, 4, "41.3"),
    (7.5e9, 2, 1024, "15.1"),
    (7.5e9, 3, 1, "120"),
    (7.5e9, 3, 4, "30"),
    (7.5e9, 3, 16, "7.5"),
    (7.5e9, 3, 256, "0.47"),
    (7.5e9, 3, 1024, "0.12"),
    (128.0e9, 1, 1, "2048"),
    (128.0e9, 1, 4, "896"),
    (128.0e9, 1, 256, "518"),
    (128.0e9, 2, 4, "704"),
    (128.0e9, 2, 16, "368"),
    (128.0e9, 2, 64, "284"),
    (128.0e9, 3, 4, "512"),
    (128.0e9, 3, 16, "128"),
    (128.0e9, 3, 256, "8"),
    (1000.0e9, 1, 16, "4750"),
    (1000.0e9, 1, 256, "4046"),
    (1000.0e9, 1, 1024, "4011"),
    (1000.0e9, 2, 1, "16000"),
    (1000.0e9, 2, 256, "2054"),
    (1000.0e9, 3, 4, "4000"),
    (1000.0e9, 3, 64, "250"),
];

#[test]
fn model_state_is_that_of_the_zero_paper() {
    for (parameters, stage, ranks, gigabytes) in ZERO {
        let (kind, stated_parameters) = (Kind::Count { largest_layer: 0 }, *parameters as u64);
        let plain = job(Shape { kind, stated_parameters, ..gpt(0, 0, 1) });
        let degrees = Degrees { data: *ranks, ..plain.degrees };
        let of = Job { degrees, sharding: Sharding::zero(*stage, *ranks), ..plain };
        let states = memory(&of).stages.iter().map(|stage| stage.states).fold(0.0, f64::max) / 1e9;
        // Papers cut digits off as often as they round: a whole unit of the last one.
        let digits = gigabytes.split_once('.').map_or(0, |(_, behind)| behind.len());
        let unit = 10f64.powi(-(digits as i32));
        let stated: f64 = gigabytes.parse().unwrap();
        assert!((states - stated).abs() <= unit * (1.0 + 1e-9), "{parameters} {stage} {ranks}: {states} and {stated}");
    }
}

/// Korthikanti et al. 2022, equations 1 to 6 with sequences of 2,048 tokens: layers, hidden, heads, sequences, tensor ranks,
/// sequence parallelism, recomputation, bytes of a block and micro-batch.
const KORTHIKANTI: &[([usize; 5], bool, Recompute, f64)] = &[
    ([48, 6144, 64, 4, 8], false, Recompute::Full { every: 1, partitioned: false }, 100663296.0),
    ([96, 12288, 96, 1, 8], true, Recompute::None, 358612992.0),
    ([96, 12288, 96, 1, 8], false, Recompute::Core, 327155712.0),
    ([96, 12288, 96, 1, 8], true, Recompute::Core, 106954752.0),
    ([105, 20480, 128, 1, 1], false, Recompute::None, 4110417920.0),
    ([105, 20480, 128, 1, 8], false, Recompute::None, 880803840.0),
    ([105, 20480, 128, 1, 8], true, Recompute::None, 513802240.0),
    ([105, 20480, 128, 1, 8], true, Recompute::Core, 178257920.0),
    ([105, 20480, 128, 1, 8], false, Recompute::Full { every: 1, partitioned: false }, 83886080.0),
    ([128, 25600, 160, 1, 1], false, Recompute::None, 5138022400.0),
    ([128, 25600, 160, 1, 8], false, Recompute::None, 1101004800.0),
    ([128, 25600, 160, 1, 8], true, Recompute::None, 642252800.0),
    ([128, 25600, 160, 1, 8], false, Recompute::Full { every: 1, partitioned: false }, 104857600.0),
];

#[test]
fn activations_are_those_of_korthikanti() {
    for ([layers, hidden, heads, micro, tensor], sequence, recompute, bytes) in KORTHIKANTI {
        let plain = job(gpt(*layers, *hidden, *heads));
        let of = Job {
            batch: Batch { micro: *micro, ..plain.batch },
            degrees: Degrees { tensor: *tensor, sequence: *sequence, ..plain.degrees },
            recompute: recompute.clone(),
            ..plain
        };
        assert_eq!(formula_bytes(&of), *bytes, "{layers} {tensor} {sequence} {recompute:?}");
    }
}
