//! What GPUs do while a cell runs on them: clocks, heat, power, energy, memory, and why they were slowed. NVML tells.

use super::spread;
use crate::devices;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use zbench_kernels::cuda::gpu::{Reading, Throttle};

/// Of one GPU, between the beginning and the end of a cell. Absent is what it does not tell; `missing` says why.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct GpuSampled {
    /// Its number.
    pub gpu: usize,
    /// How often it was read.
    pub samples: u64,
    /// Clock of the multiprocessors: least, median and most of the samples.
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
    /// Energy used, start and measurements of the peak included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub energy_joules: Option<f64>,
    /// The same between the end of the last untimed and of the last timed step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timed_joules: Option<f64>,
    /// Share of the samples in which it was slowed for heat or for the power supply's sake.
    pub slowed_share: f64,
    /// Share of the samples in which it was held at its power limit, as large products do.
    pub power_capped_share: f64,
    /// All reasons for lower clocks that were seen, in words.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub throttle_reasons: Vec<String>,
    /// Most bytes of its memory that processes used, whoever they were.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used_bytes: Option<u64>,
    /// Bytes that the driver keeps for itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reserved_bytes: Option<u64>,
    /// By what is not there: why.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub missing: BTreeMap<&'static str, String>,
}

/// The samples of one GPU.
#[derive(Clone, Debug)]
pub struct GpuWatch {
    gpu: usize,
    read: fn(usize) -> Option<Reading>,
    begin: Option<u64>,
    timed: (Option<u64>, Option<u64>),
    last: Option<u64>,
    readings: Vec<[Option<f64>; 4]>,
    slowed: u64,
    capped: u64,
    reasons: BTreeSet<String>,
    found: GpuSampled,
}

impl GpuWatch {
    /// Begins with a first look; nothing where there is nothing to be read.
    pub fn begin(gpu: usize, read: fn(usize) -> Option<Reading>) -> Option<GpuWatch> {
        let first = read(gpu)?;
        let mut watch = GpuWatch {
            gpu,
            read,
            begin: first.energy_mj.as_ref().ok().copied(),
            timed: (None, None),
            last: None,
            readings: Vec::new(),
            slowed: 0,
            capped: 0,
            reasons: BTreeSet::new(),
            found: GpuSampled::default(),
        };
        watch.take(&first);
        Some(watch)
    }

    /// One look.
    pub fn sample(&mut self) {
        if let Some(reading) = (self.read)(self.gpu) {
            self.take(&reading);
        }
    }

    fn take(&mut self, reading: &Reading) {
        let mut number = |name: &'static str, value: Result<f64, &String>| match value {
            Ok(value) => Some(value),
            Err(why) => {
                self.found.missing.entry(name).or_insert_with(|| why.clone());
                None
            }
        };
        let whole = |value: &Result<u32, String>| value.as_ref().map(|value| f64::from(*value)).map_err(|_| ());
        let of = |value: &'_ Result<u32, String>| {
            whole(value).map_err(|()| value.as_ref().err().cloned().unwrap_or_default())
        };
        let [sm, memory] = [of(&reading.sm_mhz), of(&reading.memory_mhz)];
        let [heat, power] = [of(&reading.celsius), of(&reading.power_mw).map(|mw| mw / 1e3)];
        self.readings.push([
            number("sm_clock_mhz", sm.as_ref().copied()),
            number("memory_clock_mhz", memory.as_ref().copied()),
            number("temperature_c", heat.as_ref().copied()),
            number("power_w", power.as_ref().copied()),
        ]);
        let energy = reading.energy_mj.as_ref().map(|mj| *mj as f64);
        self.last = number("energy_joules", energy).map(|mj| mj as u64).or(self.last);
        let limit = of(&reading.power_limit_mw).map(|mw| mw / 1e3);
        self.found.power_limit_w = number("power_limit_w", limit.as_ref().copied()).or(self.found.power_limit_w);
        let used = number("used_bytes", reading.used_bytes.as_ref().map(|bytes| *bytes as f64));
        self.found.used_bytes = used.map(|bytes| bytes as u64).max(self.found.used_bytes);
        let reserved = number("reserved_bytes", reading.reserved_bytes.as_ref().map(|bytes| *bytes as f64));
        self.found.reserved_bytes = reserved.map(|bytes| bytes as u64).or(self.found.reserved_bytes);
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
        let energy = (self.read)(self.gpu).and_then(|reading| reading.energy_mj.ok());
        if timed {
            self.timed.1 = energy;
        } else {
            self.timed.0 = energy;
        }
    }

    /// The cell has ended.
    pub fn end(mut self) -> GpuSampled {
        self.sample();
        let column = |i: usize| spread(&self.readings.iter().filter_map(|row| row[i]).collect::<Vec<_>>());
        let joules = |from: Option<u64>, to: Option<u64>| Some(to?.saturating_sub(from?) as f64 / 1e3);
        let samples = self.readings.len() as u64;
        GpuSampled {
            gpu: self.gpu,
            samples,
            sm_clock_mhz: column(0),
            memory_clock_mhz: column(1),
            temperature_c: column(2),
            power_w: column(3),
            energy_joules: joules(self.begin, self.last),
            timed_joules: joules(self.timed.0, self.timed.1),
            slowed_share: self.slowed as f64 / samples.max(1) as f64,
            power_capped_share: self.capped as f64 / samples.max(1) as f64,
            throttle_reasons: self.reasons.into_iter().collect(),
            ..self.found
        }
    }
}

/// The GPUs of a cell, where NVML tells of them.
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
