//! What NVML says of GPUs while a cell runs on them: clocks, heat, power, energy, memory, and why they were slowed.

use super::energy::TimedEnergy;
use super::spread;
use crate::devices;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use zbench_kernels::cuda::gpu::{Reading, Throttle};

/// What was sampled of one GPU. A field is absent where the GPU does not state its value; `missing` says why.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct GpuSampled {
    /// Its number.
    pub gpu: usize,
    /// How often it was read.
    pub samples: u64,
    /// Clock of the multiprocessors: minimum, median and maximum of the samples.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sm_clock_mhz: Option<[f64; 3]>,
    /// Clock of the memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_clock_mhz: Option<[f64; 3]>,
    /// Temperature.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature_c: Option<[f64; 3]>,
    /// Power drawn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_w: Option<[f64; 3]>,
    /// Power that it may draw.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_limit_w: Option<f64>,
    /// Energy used, including the start and the measurements of the peak.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub energy_joules: Option<f64>,
    /// Energy between the end of the last untimed and of the last timed step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timed_joules: Option<f64>,
    /// Share of the samples in which it was slowed for heat or by the power supply.
    pub slowed_share: f64,
    /// Share of the samples in which it was held at its power limit, as large products do.
    pub power_capped_share: f64,
    /// All reasons for lower clocks that were seen, in words.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub throttle_reasons: Vec<String>,
    /// Most bytes of its memory that all processes together used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used_bytes: Option<u64>,
    /// Bytes that the driver keeps for itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reserved_bytes: Option<u64>,
    /// Why a field is absent, by the field's name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub missing: BTreeMap<&'static str, String>,
}

/// The samples of one GPU.
#[derive(Clone, Debug)]
pub struct GpuWatch {
    gpu: usize,
    read: fn(usize) -> Option<Reading>,
    /// Energy at the beginning and in the newest sample, millijoules.
    begin: Option<u64>,
    last: Option<u64>,
    timed: TimedEnergy,
    readings: Vec<[Option<f64>; 4]>,
    slowed: u64,
    capped: u64,
    reasons: BTreeSet<String>,
    found: GpuSampled,
}

impl GpuWatch {
    /// Begins with a first sample; nothing where NVML does not know the GPU.
    pub fn begin(gpu: usize, read: fn(usize) -> Option<Reading>) -> Option<GpuWatch> {
        let first = read(gpu)?;
        let mut watch = GpuWatch {
            gpu,
            read,
            begin: first.energy_mj.as_ref().ok().copied(),
            last: None,
            timed: TimedEnergy::default(),
            readings: Vec::new(),
            slowed: 0,
            capped: 0,
            reasons: BTreeSet::new(),
            found: GpuSampled::default(),
        };
        watch.take(&first);
        Some(watch)
    }

    /// Takes one sample.
    pub fn sample(&mut self) {
        if let Some(reading) = (self.read)(self.gpu) {
            self.take(&reading);
        }
    }

    fn take(&mut self, reading: &Reading) {
        let found = &mut self.found;
        let watts = |milliwatts: u32| f64::from(milliwatts) / 1e3;
        let mut known = |name, value: &_| known(&mut found.missing, name, value);
        self.readings.push([
            known("sm_clock_mhz", &reading.sm_mhz).map(f64::from),
            known("memory_clock_mhz", &reading.memory_mhz).map(f64::from),
            known("temperature_c", &reading.celsius).map(f64::from),
            known("power_w", &reading.power_mw).map(watts),
        ]);
        found.power_limit_w = known("power_limit_w", &reading.power_limit_mw).map(watts).or(found.power_limit_w);
        let missing = &mut found.missing;
        self.last = self::known(missing, "energy_joules", &reading.energy_mj).or(self.last);
        found.used_bytes = self::known(missing, "used_bytes", &reading.used_bytes).max(found.used_bytes);
        let reserved = self::known(missing, "reserved_bytes", &reading.reserved_bytes);
        found.reserved_bytes = reserved.or(found.reserved_bytes);
        let why = reading.throttle.as_deref().unwrap_or_default();
        let slows = |why: &Throttle| {
            matches!(
                why,
                Throttle::SoftwareThermal
                    | Throttle::HardwareThermal
                    | Throttle::HardwareSlowdown
                    | Throttle::PowerBrake
            )
        };
        self.slowed += u64::from(why.iter().any(slows));
        self.capped += u64::from(why.contains(&Throttle::PowerCap));
        self.reasons.extend(why.iter().filter(|why| **why != Throttle::Idle).map(Throttle::to_string));
    }

    /// A step has ended.
    pub fn step(&mut self, timed: bool) {
        self.timed.step(timed, (self.read)(self.gpu).and_then(|reading| reading.energy_mj.ok()));
    }

    /// The cell has ended.
    pub fn end(mut self) -> GpuSampled {
        self.sample();
        let column = |i: usize| spread(&self.readings.iter().filter_map(|row| row[i]).collect::<Vec<_>>());
        let samples = self.readings.len() as u64;
        GpuSampled {
            gpu: self.gpu,
            samples,
            sm_clock_mhz: column(0),
            memory_clock_mhz: column(1),
            temperature_c: column(2),
            power_w: column(3),
            energy_joules: self.last.zip(self.begin).map(|(last, begin)| last.saturating_sub(begin) as f64 / 1e3),
            timed_joules: self.timed.joules(),
            slowed_share: self.slowed as f64 / samples.max(1) as f64,
            power_capped_share: self.capped as f64 / samples.max(1) as f64,
            throttle_reasons: self.reasons.into_iter().collect(),
            ..self.found
        }
    }
}

/// A value of a reading; the reason where there is none goes into `missing`.
fn known<T: Copy>(
    missing: &mut BTreeMap<&'static str, String>,
    name: &'static str,
    value: &Result<T, String>,
) -> Option<T> {
    if let Err(why) = value {
        missing.entry(name).or_insert_with(|| why.clone());
    }
    value.as_ref().ok().copied()
}

/// Watches the first GPUs of this machine, those that NVML knows.
pub fn watches(gpus: usize) -> Vec<GpuWatch> {
    (0..gpus).filter_map(|gpu| GpuWatch::begin(gpu, devices::reading)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    fn reading(at: u64) -> Reading {
        Reading {
            sm_mhz: Ok(1980 - 10 * at as u32),
            memory_mhz: Err("not supported".into()),
            celsius: Ok(40 + at as u32),
            power_mw: Ok(500_000),
            power_limit_mw: Ok(700_000),
            energy_mj: Ok(1_000_000 + 500_000 * at),
            throttle: Ok(if at == 2 {
                vec![Throttle::HardwareThermal, Throttle::PowerCap]
            } else {
                vec![Throttle::Idle]
            }),
            used_bytes: Ok(1 << (30 + at % 3)),
            reserved_bytes: Ok(600 << 20),
        }
    }

    #[test]
    fn numbers_are_those_of_the_samples() {
        static AT: AtomicU64 = AtomicU64::new(0);
        let read = |_: usize| Some(reading(AT.fetch_add(1, Ordering::Relaxed)));
        let mut watch = GpuWatch::begin(3, read).unwrap();
        watch.sample();
        watch.step(false); // reads at 2, for its energy alone
        AT.store(2, Ordering::Relaxed);
        watch.sample();
        watch.step(true); // at 3
        let found = watch.end(); // at 4
        assert_eq!((found.gpu, found.samples), (3, 4));
        assert_eq!(
            (found.sm_clock_mhz, found.temperature_c),
            (Some([1940.0, 1970.0, 1980.0]), Some([40.0, 42.0, 44.0]))
        );
        assert_eq!((found.energy_joules, found.timed_joules), (Some(2000.0), Some(500.0)));
        assert_eq!((found.slowed_share, found.power_capped_share), (0.25, 0.25));
        assert_eq!(found.throttle_reasons, ["power at its limit", "too hot"]);
        assert_eq!((found.used_bytes, found.power_limit_w), (Some(1 << 32), Some(700.0)));
        assert_eq!(found.missing, BTreeMap::from([("memory_clock_mhz", "not supported".to_string())]));
        assert_eq!(GpuWatch::begin(0, |_| None).map(|watch| watch.gpu), None);
    }
}
