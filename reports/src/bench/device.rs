//! The ceilings of a GPU: what `zbench calibrate --device cuda` measures, keeps in records and writes into machine profiles.

use serde::{Deserialize, Serialize};

use super::Rate;
use crate::document::{Column, Document, Entry, Table, Tone};
use crate::record::Record;
use crate::units;

/// A rate of a GPU, or a time of one call.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DeviceRate {
    /// `matrix.bf16`, `memory.copy`, `link.upload` and so on per second; `time.launch` and so on in seconds.
    pub name: String,
    /// Over the rounds; absent with a reason.
    pub rate: Option<Rate>,
    /// What the GPU's data sheet has.
    pub data_sheet: Option<f64>,
}

impl DeviceRate {
    /// Of the data sheet.
    pub fn share(&self) -> Option<f64> {
        Some(self.rate.as_ref()?.median / self.data_sheet?)
    }

    /// A value of it with its unit.
    pub fn in_words(&self, value: f64) -> String {
        match self.name.split_once('.') {
            Some(("matrix", _)) => format!("{}/s", units::flops(value)),
            Some(("time", _)) => units::duration(value),
            _ => format!("{}/s", units::traffic(value)),
        }
    }

    /// The metric's name in a record, and what a value is multiplied by for its unit.
    pub fn metric(&self) -> (String, f64) {
        let name = self.name.replace('.', "_");
        match self.name.split_once('.') {
            Some(("matrix", _)) => (format!("{name}_flops"), 1.0),
            Some(("time", _)) => (format!("{name}_us"), 1e6),
            _ => (format!("{name}_gb_s"), 1e-9),
        }
    }
}

/// Everything that was measured of a GPU: a part of a record, under `device_ceilings`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DeviceCeilings {
    /// As the driver calls it.
    pub device: String,
    /// Its number.
    pub gpu: u64,
    /// The machine profile that has its data sheet.
    pub profile: Option<String>,
    /// Rows and columns of the products.
    pub side: u64,
    /// The rates.
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

/// What a record has of a GPU's ceilings; nothing where it is of a processor's.
pub fn device_ceilings(record: &Record) -> Option<DeviceCeilings> {
    serde_json::from_value(record.extra.get("device_ceilings")?.clone()).ok()
}

/// The section of these records.
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
        let profile = match &ceilings.profile {
            Some(profile) => format!(", data sheet as in the profile {profile}"),
            None => String::new(),
        };
        let DeviceCeilings { device, gpu, side, .. } = ceilings;
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
    let columns = vec![
        Column::words("record").for_machines(),
        Column::words("ceiling"),
        Column::numbers("median", ""),
        Column::numbers("lowest", ""),
        Column::numbers("highest", ""),
        Column::numbers("spread", "fraction"),
        Column::numbers("data sheet", ""),
        Column::numbers("share", "fraction"),
        Column::numbers("rounds", "").for_machines(),
    ];
    let mut table = Table::new("ceilings of GPUs", columns);
    let tone = if record.validity.is_empty() { Tone::Plain } else { Tone::Warning };
    for of in &ceilings.rates {
        let number = |value: Option<f64>| Entry::maybe(value, |value| of.in_words(value));
        let rate = of.rate.as_ref();
        table.row(vec![
            Entry::words(&record.id),
            Entry::words(&of.name),
            number(rate.map(|rate| rate.median)).toned(tone),
            number(rate.map(|rate| rate.low)),
            number(rate.map(|rate| rate.high)),
            Entry::maybe(rate.map(Rate::spread), units::percent),
            number(of.data_sheet),
            Entry::maybe(of.share(), units::percent),
            Entry::maybe(rate.map(|rate| rate.rounds as f64), units::quantity),
        ]);
    }
    table
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
