//! Whether a machine was quiet enough for its numbers to be kept. The limits stand here, with their reasons, before any
//! number is seen, and there is no way around them: a ceiling that is too low makes everything measured against it too good.

use zbench_config::profile::operations::Operations;
use zbench_host::sampling::sampled::Sampled;
use zbench_reports::bench::{Ceilings, DeviceCeilings};
use zbench_reports::units;

/// Highest less lowest round over the median, above which a rate on registers is not kept. It is the best stretch of half
/// a millisecond in each round and follows the clock alone: a quiet machine repeats it within 1 to 2 %.
pub const MATRIX_SPREAD: f64 = 0.05;
/// The same of memory: the best of five passes in each round. Memory is shared with the neighbours of a virtual machine,
/// and pages lie elsewhere in each round.
pub const MEMORY_SPREAD: f64 = 0.15;
/// The same of a disk, whose own caches and neighbours come and go; beyond this a median says nothing.
pub const DISK_SPREAD: f64 = 0.5;
/// Others' share of the cores that this process may use: ceilings are of all of them, so stricter than for a cell.
pub const OTHERS_SHARE: f64 = zbench_reports::record::others::MOST_OTHERS;

/// The same of the times of operations, as the median of all points: shares of milliseconds among neighbours in a step.
pub const OPERATION_SPREAD: f64 = 0.25;

/// Why times of operations are not to be kept; nothing where they may be. Whether others ran beside shows in the spread:
/// a time is the middle of many.
pub fn why_not_operations(of: &Operations) -> Option<String> {
    noisy(&format!("operations with {}", of.layout), of.spread, OPERATION_SPREAD)
}

fn noisy(what: &str, spread: f64, limit: f64) -> Option<String> {
    // A spread that is not a number is too large.
    (spread.is_nan() || spread > limit)
        .then(|| format!("{what}: the rounds spread by {} (limit {})", units::percent(spread), units::percent(limit)))
}

/// Why the numbers are not to be kept; nothing where they may be.
pub fn why_not(ceilings: &Ceilings, sampled: &Sampled) -> Vec<String> {
    let mut reasons = Vec::new();
    for of in &ceilings.threads {
        for (name, rate) in of.rates() {
            let limit = match name.split_once('.') {
                Some(("matrix", _)) => MATRIX_SPREAD,
                Some(("memory", _)) => MEMORY_SPREAD,
                _ => DISK_SPREAD,
            };
            let Some(rate) = rate else { continue };
            let threads = units::plural(of.threads as usize, "thread", "threads");
            reasons.extend(noisy(&format!("{name} with {threads}"), rate.spread(), limit));
        }
    }
    if !ceilings.threads.iter().flat_map(|of| of.rates()).any(|(_, rate)| rate.is_some()) {
        reasons.push("no rate was measured".into());
    }
    if let Some(share) = sampled.others_share.filter(|share| *share > OTHERS_SHARE) {
        reasons.push(format!(
            "other processes used {} of the cores (limit {})",
            units::percent(share),
            units::percent(OTHERS_SHARE)
        ));
    }
    reasons.extend(spoilt(sampled));
    reasons
}

/// Heat, stolen time, swapping, a quota: what spoils a cell spoils a ceiling.
fn spoilt(sampled: &Sampled) -> impl Iterator<Item = String> {
    let others = sampled.flags().into_iter().filter(|(flag, _)| *flag != "contended");
    others.map(|(flag, words)| format!("{flag}: {}", words.trim_end_matches('.')))
}

/// Why a GPU's numbers are not to be kept; nothing where they may be. Products have the limit of rates on registers: both
/// follow a clock. Copies from and to the host have that of memory, whose other users they meet; times of single calls that of
/// operations. Other processes on the host's cores are none of a GPU's business as long as rounds agree.
pub fn why_not_device(ceilings: &DeviceCeilings, sampled: &Sampled) -> Vec<String> {
    let mut reasons = Vec::new();
    for of in &ceilings.rates {
        let limit = match of.name.split_once('.') {
            Some(("matrix", _)) => MATRIX_SPREAD,
            Some(("time", _)) => OPERATION_SPREAD,
            _ => MEMORY_SPREAD,
        };
        let Some(rate) = &of.rate else { continue };
        reasons.extend(noisy(&of.name, rate.spread(), limit));
    }
    if ceilings.rates.iter().all(|of| of.rate.is_none()) {
        reasons.push("no rate was measured".into());
    }
    reasons.extend(spoilt(sampled));
    reasons
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calibrate::{Values, summarize};
    use zbench_host::sampling::gpu::GpuSampled;
    use zbench_reports::bench::{DeviceRate, Rate};

    /// Five rounds of everything, all of them steady, with the last round of one rate times `factor`.
    fn measured(name: &str, factor: f64) -> Ceilings {
        let mut values = Values::default();
        for round in 0..5 {
            for (other, rate) in [("matrix.f32", 2e11), ("memory.read", 3e10), ("disk.write", 1e9)] {
                let jitter = 1.0 + 0.002 * f64::from(round);
                let noise = if round == 4 && other == name { factor } else { 1.0 };
                values.add(2, other.into(), Ok(rate * jitter * noise));
            }
            values.add(2, "disk.read".into(), Err("the file system refuses O_DIRECT".into()));
        }
        summarize(&values)
    }

    #[test]
    fn steady_operations_are_kept_and_others_are_named() {
        let with = |spread| why_not_operations(&Operations { spread, ..Operations::default() });
        assert_eq!((with(0.1), with(0.25)), (None, None));
        for spread in [0.3, f64::NAN] {
            assert!(with(spread).unwrap().contains("limit 25.0 %"), "{:?}", with(spread));
        }
    }

    #[test]
    fn a_quiet_machine_is_kept_and_what_is_absent_has_its_reason() {
        let ceilings = measured("", 1.0);
        assert_eq!(why_not(&ceilings, &Sampled::default()), [""; 0]);
        let of = &ceilings.threads[0];
        assert_eq!((ceilings.threads.len(), of.threads, of.disk.read.is_none()), (1, 2, true));
        let rate = of.matrix[0].1.as_ref().unwrap();
        assert_eq!((rate.low, rate.rounds), (2e11, 5));
        assert!((rate.median / 2e11 - 1.004).abs() < 1e-12 && (rate.high / 2e11 - 1.008).abs() < 1e-12);
        assert_eq!(ceilings.unstated, [("disk.read".to_string(), "the file system refuses O_DIRECT".to_string())]);
    }

    #[test]
    fn one_noisy_round_is_enough_to_refuse() {
        for (name, small, large) in
            [("matrix.f32", 0.98, 0.9), ("memory.read", 0.92, 0.8), ("disk.write", 0.7, 0.4), ("memory.read", 1.1, 1.2)]
        {
            assert_eq!(why_not(&measured(name, small), &Sampled::default()), [""; 0], "{name} {small}");
            let reasons = why_not(&measured(name, large), &Sampled::default());
            assert!(reasons.len() == 1 && reasons[0].starts_with(name), "{reasons:?}");
            assert!(reasons[0].contains("2 threads") && reasons[0].contains("limit"), "{reasons:?}");
        }
    }

    #[test]
    fn load_of_others_stolen_time_and_heat_refuse() {
        let ceilings = measured("", 1.0);
        let with = |sampled: Sampled| why_not(&ceilings, &Sampled { seconds: 10.0, ..sampled });
        assert_eq!(with(Sampled { others_share: Some(0.04), ..Sampled::default() }), [""; 0]);
        let busy = with(Sampled { others_share: Some(0.06), ..Sampled::default() });
        assert!(busy.len() == 1 && busy[0].contains("other processes used 6.0 %"), "{busy:?}");
        let stolen = with(Sampled { stolen_share: Some(0.2), ..Sampled::default() });
        assert!(stolen.len() == 1 && stolen[0].starts_with("stolen: "), "{stolen:?}");
        let heat = with(Sampled { throttle_ms: Some(500), throttle_events: Some(3), ..Sampled::default() });
        assert!(heat.len() == 1 && heat[0].starts_with("throttled: "), "{heat:?}");
    }

    #[test]
    fn a_gpu_has_limits_of_its_own() {
        let of = |name: &str, values: &[f64]| {
            let rate = Rate::of(values);
            DeviceCeilings {
                rates: vec![DeviceRate { name: name.into(), rate, data_sheet: None }],
                ..DeviceCeilings::default()
            }
        };
        let why = |name, high| why_not_device(&of(name, &[1.0, 1.0, high]), &Sampled::default());
        for (name, small, large) in [
            ("matrix.bf16", 1.04, 1.06),
            ("memory.copy", 1.14, 1.16),
            ("link.upload", 1.14, 1.16),
            ("time.launch", 1.24, 1.26),
        ] {
            assert_eq!(why(name, small), [""; 0], "{name}");
            let reasons = why(name, large);
            assert!(reasons.len() == 1 && reasons[0].starts_with(name) && reasons[0].contains("limit"), "{reasons:?}");
        }
        let none = DeviceCeilings { rates: vec![DeviceRate::default()], ..DeviceCeilings::default() };
        assert_eq!(why_not_device(&none, &Sampled::default()), ["no rate was measured"]);
        // The host's cores are busy, which a GPU does not feel; its clocks are lowered, which it does.
        let busy = Sampled { seconds: 10.0, others_share: Some(0.9), ..Sampled::default() };
        assert_eq!(why_not_device(&of("matrix.bf16", &[1.0; 3]), &busy), [""; 0]);
        let gpu = GpuSampled { samples: 100, slowed_share: 0.5, ..GpuSampled::default() };
        let hot = why_not_device(&of("matrix.bf16", &[1.0; 3]), &Sampled { gpus: vec![gpu], ..busy });
        assert!(hot.len() == 1 && hot[0].starts_with("throttled: "), "{hot:?}");
    }

    #[test]
    fn nothing_is_not_kept() {
        let mut values = Values::default();
        values.add(1, "matrix.f32".into(), Err("no loop".into()));
        values.add(1, "memory.read".into(), Ok(f64::NAN));
        let ceilings = summarize(&values);
        assert_eq!(why_not(&ceilings, &Sampled::default()), ["no rate was measured"]);
        assert_eq!(ceilings.unstated.len(), 2);
    }
}
