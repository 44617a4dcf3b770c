//! What is known of the GPUs that a cell ran on.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use zbench_engine::config::Cell;
use zbench_host::devices;

/// What is known of a GPU when a cell has ended on it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct GpuInfo {
    /// As its vendor calls it.
    pub name: String,
    /// Dense operations a second at the compute type, as the vendor's data sheet has them.
    pub data_sheet_flops: Option<f64>,
    /// Why they are not known.
    pub why_no_data_sheet: String,
    /// Bytes of its memory that were in use when the cell had ended and given its own back.
    pub used_bytes: Option<u64>,
    /// The algorithms that the vendor's library computed products with.
    pub products: Vec<String>,
    /// Products that zbench's own kernels computed where the vendor's library was wanted, each with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fallbacks: Vec<String>,
    /// Energy between the end of the last untimed and of the last timed step, where the rank's process read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timed_joules: Option<f64>,
}

impl GpuInfo {
    /// What is known of the GPU with this number, on which a cell ran.
    pub fn of_cell(cell: &Cell, number: usize) -> GpuInfo {
        let sheet = devices::data_sheet_flops(number, cell.precision.compute);
        let machine = devices::machine(number).ok();
        let opened = devices::gpu(number);
        let memory = opened.as_ref().and_then(|gpu| gpu.memory_info().ok());
        GpuInfo {
            name: machine.map(|machine| machine.props().name.clone()).unwrap_or_default(),
            data_sheet_flops: sheet.as_ref().ok().copied(),
            why_no_data_sheet: sheet.err().unwrap_or_default(),
            used_bytes: memory.map(|memory| memory.used_bytes()),
            products: opened
                .as_ref()
                .map(|gpu| gpu.products().iter().map(|chosen| format!("{chosen:?}")).collect())
                .unwrap_or_default(),
            fallbacks: opened
                .map(|gpu| gpu.take_fallbacks().iter().map(devices::fallback).collect())
                .unwrap_or_default(),
            timed_joules: None,
        }
    }

    /// Of the GPUs of all ranks: the mean rate of their data sheets, the most memory, the sum of their energy. A number that one of
    /// them does not know is not known of all.
    pub fn of_all(all: &[&GpuInfo]) -> Option<GpuInfo> {
        let first = all.first()?;
        let sum = |of: fn(&GpuInfo) -> Option<f64>| all.iter().map(|gpu| of(gpu)).sum::<Option<f64>>();
        let distinct = |texts: Vec<&String>| {
            let texts: BTreeSet<&String> = texts.into_iter().collect();
            texts.into_iter().cloned().collect::<Vec<String>>()
        };
        let why = all.iter().map(|gpu| &gpu.why_no_data_sheet).find(|why| !why.is_empty());
        Some(GpuInfo {
            name: distinct(all.iter().map(|gpu| &gpu.name).collect()).join(" and "),
            data_sheet_flops: sum(|gpu| gpu.data_sheet_flops).map(|sum| sum / all.len() as f64),
            why_no_data_sheet: why.unwrap_or(&first.why_no_data_sheet).clone(),
            used_bytes: all.iter().filter_map(|gpu| gpu.used_bytes).max(),
            products: distinct(all.iter().flat_map(|gpu| &gpu.products).collect()),
            fallbacks: distinct(all.iter().flat_map(|gpu| &gpu.fallbacks).collect()),
            timed_joules: sum(|gpu| gpu.timed_joules),
        })
    }
}
