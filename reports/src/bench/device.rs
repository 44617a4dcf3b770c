//! The ceilings of a GPU, which `zbench calibrate --device cuda` measures and writes into records and machine profiles.

use serde::{Deserialize, Serialize};

use super::{Rate, quantity};
use crate::document::{Document, Entry, Table, Tone};
use crate::record::Record;
use crate::units;

/// A rate of a GPU, or a time of one call.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DeviceRate {
    /// `matrix.bf16`, `memory.copy`, `link.upload` and so on per second; `time.launch` and so on in seconds.
    pub name: String,
    /// The rate over the rounds; absent with a reason.
    pub rate: Option<Rate>,
    /// The value in the GPU's data sheet.
    pub data_sheet: Option<f64>,
}

impl DeviceRate {
    /// The median as a share of the data sheet's value.
    pub fn share(&self) -> Option<f64> {
        Some(self.rate.as_ref()?.median / self.data_sheet?)
    }

    /// A value of this rate with its unit.
    pub fn in_words(&self, value: f64) -> String {
        match self.name.split_once('.') {
            Some(("matrix", _)) => format!("{}/s", units::flops(value)),
            Some(("time", _)) => units::duration(value),
            _ => format!("{}/s", units::traffic(value)),
        }
    }

    /// The metric's name in a record, and the factor from a value to its unit.
    pub fn metric(&self) -> (String, f64) {
        let name = self.name.replace('.', "_");
        match self.name.split_once('.') {
            Some(("matrix", _)) => (format!("{name}_flops"), 1.0),
            Some(("time", _)) => (format!("{name}_us"), 1e6),
            _ => (format!("{name}_gb_s"), 1e-9),
        }
    }
}

/// All that was measured of a GPU: a part of a record, under `device_ceilings`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DeviceCeilings {
    /// Its name, as the driver states it.
    pub device: String,
    /// Its number.
    pub gpu: u64,
    /// The machine profile that has its data sheet.
    pub profile: Option<String>,
    /// Rows and columns of the products.
    pub side: u64,
    /// Its rates.
    pub rates: Vec<DeviceRate>,
    /// Why a rate is absent, by its name.
    pub unstated: Vec<(String, String)>,
}

impl DeviceCeilings {
    /// The median of a rate, where it is stated.
    pub fn median(&self, name: &str) -> Option<f64> {
        self.rates.iter().find(|of| of.name == name)?.rate.as_ref().map(|rate| rate.median)
    }
}

/// The ceilings of a GPU in a record; `None` where they are those of a processor.
pub fn device_ceilings(record: &Record) -> Option<DeviceCeilings> {
    super::part(record, "device_ceilings")
}

/// Adds the section of these records.
pub(super) fn report(document: &mut Document, records: &[(&Record, DeviceCeilings)]) {
    if records.is_empty() {
        return;
    }
    document.heading("Ceilings of GPUs");
    document.paragraph(
        "By the device's own clock. matrix: a large product of random numbers, the fastest of each round; memory: copy counts \
         what is read and written; link: copies between the host and the device through pinned memory; time: from one small \
         kernel to the next in a full queue (launch), to ask for one (call), to have one number on the host (wait). Spread: \
         highest less lowest round, as a share of the median.",
    );
    for (record, ceilings) in records {
        let DeviceCeilings { device, gpu, side, profile, .. } = ceilings;
        let profile = profile.as_ref().map_or(String::new(), |name| format!(", data sheet as in the profile {name}"));
        document.paragraph(format!(
            "Record {} of {}: GPU {gpu}, {device}{profile}, products of {side} x {side}.",
            record.id, record.started
        ));
        document.table(table(record, ceilings));
        document.list(ceilings.unstated.iter().map(|(name, why)| format!("{name} is not stated: {why}.")).collect());
        document.list(record.notes.clone());
    }
}

fn table(record: &Record, ceilings: &DeviceCeilings) -> Table {
    let tone = if record.validity.is_empty() { Tone::Plain } else { Tone::Warning };
    let number = |of: &DeviceRate, value: Option<f64>| Entry::maybe(value, |value| of.in_words(value));
    let rate = |of: &DeviceRate, value: fn(&Rate) -> f64| number(of, of.rate.as_ref().map(value));
    let mut table = Table::of("ceilings of GPUs", &ceilings.rates);
    table.words("record", |_| &record.id).for_machines = true;
    table.words("ceiling", |of| &of.name);
    table.numbers("median", "", |of| rate(of, |rate| rate.median).toned(tone));
    table.numbers("lowest", "", |of| rate(of, |rate| rate.low));
    table.numbers("highest", "", |of| rate(of, |rate| rate.high));
    table.numbers("spread", "fraction", |of| Entry::maybe(of.rate.as_ref().map(Rate::spread), units::percent));
    table.numbers("data sheet", "", |of| number(of, of.data_sheet));
    table.numbers("share", "fraction", |of| Entry::maybe(of.share(), units::percent));
    table.numbers("rounds", "", |of| quantity(of.rate.as_ref().map(|rate| rate.rounds))).for_machines = true;
    table.build()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Outcome;

    #[test]
    fn rates_times_and_shares_are_shown_in_their_units() {
        let of = |name: &str, values: &[f64], data_sheet| DeviceRate {
            name: name.into(),
            rate: Rate::of(values),
            data_sheet,
        };
        let ceilings = DeviceCeilings {
            device: "NVIDIA H100 80GB HBM3".into(),
            profile: Some("h100-sxm".into()),
            side: 8192,
            rates: vec![
                of("matrix.bf16", &[7e14, 7.1e14, 7.2e14], Some(1e15)),
                of("link.upload", &[4e10, 5e10, 6e10], Some(6.3e10)),
                of("time.launch", &[2e-6, 2.5e-6, 3e-6], None),
                of("memory.read", &[], Some(3e12)),
            ],
            unstated: vec![("memory.read".into(), "no room".into())],
            ..DeviceCeilings::default()
        };
        let mut record = Record::new("0123456789ab", "key", "calibrate", Outcome::measured());
        record.extra.insert("device_ceilings".into(), serde_json::to_value(&ceilings).unwrap());
        assert_eq!(device_ceilings(&record).as_ref(), Some(&ceilings));
        let mut document = Document::new("calibrate");
        report(&mut document, &[(&record, ceilings.clone())]);
        let text = crate::render::markdown::render(&document);
        for part in ["710 TFLOP/s", "71.0 %", "50.0 GB/s", "2.50 us", "memory.read is not stated: no room", "h100-sxm"]
        {
            assert!(text.contains(part), "no {part} in {text}");
        }
        assert_eq!(
            ceilings.rates.iter().map(DeviceRate::metric).collect::<Vec<_>>()[2],
            ("time_launch_us".into(), 1e6)
        );
        assert_eq!((ceilings.median("time.launch"), ceilings.median("memory.read")), (Some(2.5e-6), None));
    }
}
