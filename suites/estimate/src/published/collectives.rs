//! Rows of collectives: bus bandwidth, algorithm bandwidth or microseconds of an operation over devices.

use super::guess::{Guess, machine};
use super::job::Refused;
use super::row::Row;
use super::words::{self, any};
use crate::collective::{Collective, Group, seconds_by};
use crate::machine::Machine;

/// A message that is large where a row names no size.
const LARGE: f64 = 17_179_869_184.0;

/// A message that is small where a row states a time alone.
const SMALL: f64 = 8.0;

fn operation(text: &str) -> Result<Collective, Refused> {
    let has = |words: &[&str]| any(text, words);
    Ok(match () {
        () if has(&["all_reduce", "all-reduce", "allreduce"]) => Collective::AllReduce,
        () if has(&["all_gather", "all-gather", "allgather"]) => Collective::AllGather,
        () if has(&["reduce_scatter", "reduce-scatter", "reducescatter"]) => Collective::ReduceScatter,
        () if has(&["all_to_all", "all-to-all", "alltoall", "a2a"]) => Collective::AllToAll,
        () if has(&["broadcast", "reduce"]) => Collective::Broadcast,
        () if has(&["send", "recv", "p2p"]) => Collective::Send,
        () => return Err(Refused(format!("no collective is called `{text}`"))),
    })
}

/// The device that a link's name implies, where the row names none.
fn implied(gpu: &str, intra: &str, inter: &str) -> Option<&'static str> {
    if !gpu.is_empty() {
        return None;
    }
    let has = |words: &[&str]| any(intra, words);
    Some(match () {
        () if has(&["nvl72", "nvlink5", "nvlink 5"]) => "b200",
        () if has(&["nvlink4", "nvlink 4"]) => "h100-sxm",
        () if has(&["nvlink3", "nvlink 3"]) => "a100-80gb",
        () if has(&["nvlink2", "nvlink 2"]) => "v100-32gb",
        () if has(&["pcie"]) => "a100-80gb-pcie",
        () if !inter.is_empty() => "h100-sxm",
        () => return None,
    })
}

/// Bytes per second one way of 16 lanes of PCIe.
fn pcie(intra: &str) -> Option<f64> {
    let generation = intra.split("gen").nth(1)?.trim().chars().next()?.to_digit(10)?;
    (3..=7).contains(&generation).then(|| 15.75e9 * f64::powi(2.0, generation as i32 - 3))
}

fn machine_of(row: &Row, node: usize) -> Result<Machine, Refused> {
    let (gpu, intra, inter) = (row.words("gpu"), row.words("intra_link"), row.words("inter_link"));
    let name = match implied(&gpu, &intra, &inter) {
        Some(name) => name,
        None => words::machine(&gpu, 0.0).or_else(|why| {
            // A device without a profile that speaks PCIe to its neighbours is priced by that link.
            if pcie(&intra).is_some() { Ok("rtx4090") } else { Err(why) }
        })?,
    };
    let mut machine = machine(name, node, row.number("inter_gbps_per_node"), &inter)?;
    if let Some(bandwidth) = pcie(&intra) {
        machine.intra.kind = "pcie".into();
        machine.intra.bandwidth = bandwidth;
        machine.intra.in_switch = false;
    }
    let algorithm = row.words("algo");
    if any(&algorithm, &["nvls off", "ring", "no nvls", "without nvls"]) && !algorithm.contains("auto") {
        machine.intra.in_switch = false;
    }
    // A slide's row of a link without a switch's sums beside one with them.
    if row.words("algo").contains("large") && intra.starts_with("nvlink") && !any(&intra, &["sharp", "nvls"]) {
        machine.intra.in_switch = false;
    }
    Ok(machine)
}

/// The prediction of a row.
///
/// # Errors
/// What of it cannot be expressed.
pub fn predict(row: &Row) -> Result<Guess, Refused> {
    let what = operation(&row.words("op"))?;
    let of = |column: &str| row.number(column).filter(|n| *n > 0.0);
    let nodes = row.positive("n_nodes");
    let far = !row.text("inter_link").is_empty() && nodes.is_none();
    let ranks = row.positive("n_gpus").unwrap_or(if far { 1024 } else { 8 });
    if ranks < 2 {
        return Err("a device alone has nobody to talk to".into());
    }
    let nodes = nodes.unwrap_or(if far { ranks.div_ceil(8) } else { 1 });
    let per_node = ranks.div_ceil(nodes);
    let mut machine = machine_of(row, if nodes > 1 { per_node } else { 0 })?;
    let rack = machine.node_devices > 16;
    let ranks = if rack && row.positive("n_gpus").is_none() { machine.node_devices } else { ranks };
    if far && row.number("inter_gbps_per_node").is_some_and(|gbps| gbps <= 400.0) && row.text("gpu").is_empty() {
        // A rate of one card, not of a node: each device has one.
        machine.inter.bandwidth *= machine.node_devices as f64;
    }
    let group = Group::new(ranks, if rack { ranks } else { per_node });
    let time_alone = of("busbw_gbs").is_none() && of("algbw_gbs").is_none();
    let size = of("size_bytes").unwrap_or(if time_alone { SMALL } else { LARGE });
    let duplex = any(&row.words("algo"), &["duplex", "bidir"]);
    let algorithm = row.words("algo");
    let trees = !algorithm.contains("ring") || algorithm.contains("auto");
    let took = seconds_by(what, size, group, &machine, trees);
    let algorithm = size / took / 1e9 * if duplex { 2.0 } else { 1.0 };
    let one_sided = !row.text("bound").is_empty();
    let guess = |quantity, stated, predicted| Guess { quantity, stated, predicted, one_sided }.checked();
    match (of("busbw_gbs"), of("algbw_gbs"), of("time_us")) {
        (stated @ Some(_), ..) => {
            let bus = algorithm * what.bus_factor(ranks);
            // What large jobs see of one card: a share of the wire, not of a bus.
            let bus = if far && nodes > 1 && row.text("gpu").is_empty() {
                bus * (nodes as f64 - 1.0) / (ranks as f64 - 1.0)
            } else {
                bus
            };
            guess("busbw_gbs", stated, bus)
        }
        (_, stated @ Some(_), _) => guess("algbw_gbs", stated, algorithm),
        (_, _, stated @ Some(_)) => guess("time_us", stated, took * 1e6),
        _ => Err(Refused("the row states neither a bandwidth nor a time".into())),
    }
}
