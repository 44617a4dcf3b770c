//! What collectives take on a machine that is not at hand: cells of suite `collectives` that name a `hardware.profile`.

use crate::band::{Group as Banded, PUBLISHED};
use crate::forecast;
use crate::likeness::Traits;
use toml::Value;
use zbench_config::kind::quantity;
use zbench_config::{Context, Settings, Values, machine_profile, units};
use zbench_estimate::collective::{BLOCKING, Collective, Group, ring_seconds, seconds};
use zbench_reports::estimate_report::CollectiveRow;

/// Most sizes of one cell.
const MOST_SIZES: usize = 64;

/// The predicted times of a cell's sizes.
///
/// # Errors
/// In words, which key is missing or wrong.
pub fn prices(settings: &Settings, context: &Context) -> Result<Vec<CollectiveRow>, String> {
    let values = Values { settings };
    let profile = machine_profile(settings, context).map_err(|refusal| refusal.to_string())?;
    let profile = profile.ok_or(
        "collectives are predicted for a machine: state hardware.profile, for example \"dgx-h100\"; `zbench grid FILE` \
         measures them on this one",
    )?;
    let mut machine = profile.machine().map_err(|error| error.to_string())?.clone();
    let ranks = values.given_count("parallel.ranks").unwrap_or(2);
    if ranks < 2 {
        return Err("parallel.ranks: one rank exchanges nothing; state 2 or more".into());
    }
    let devices = machine.node_devices;
    let per_node = values.given_count("parallel.ranks_per_node").unwrap_or(devices.clamp(1, ranks.max(1)));
    let is_stated = values.given("parallel.ranks_per_node").is_some();
    if is_stated && (per_node > devices || !ranks.is_multiple_of(per_node)) {
        return Err(format!(
            "parallel.ranks_per_node: {per_node} has to divide parallel.ranks = {ranks} and be at most the {devices} devices of a \
             node of {}; hardware.changes = [\"node.devices=N\"] changes these",
            profile.name
        ));
    }
    if is_stated {
        machine = machine.with_ranks_of_node(per_node);
    }
    if let Some(key) = ["hardware.software", "hardware.device"].into_iter().find(|key| values.given(key).is_some()) {
        return Err(format!("{key} says nothing of a collective that is predicted; leave it out"));
    }
    let name = values.text("collectives.collective");
    let collective =
        named(&name).ok_or_else(|| format!("collectives.collective: {name} is measured and not predicted"))?;
    let algorithm = values.text("collectives.algorithm");
    if !["auto", "ring"].contains(&algorithm.as_str()) {
        return Err(format!(
            "collectives.algorithm: {algorithm} is measured and not predicted; write \"auto\" or \"ring\""
        ));
    }
    forecast::refuse_without_links(&machine, ranks, &profile.name)?;
    let group = Group::new(ranks, per_node);
    // Of others nothing was published that could be compared.
    let is_compared = matches!(collective, Collective::AllReduce | Collective::AllGather | Collective::ReduceScatter);
    let waits = if values.count("collectives.blocking") > 0 { BLOCKING } else { 0.0 };
    let row = |bytes: f64| {
        let by = if algorithm == "ring" { ring_seconds } else { seconds };
        let seconds = waits + by(collective, bytes, group, &machine);
        let algorithm_bandwidth = bytes / seconds;
        let bus_bandwidth = algorithm_bandwidth * collective.bus_factor(ranks);
        let mut row = CollectiveRow {
            collective: name.clone(),
            algorithm: algorithm.clone(),
            ranks: ranks as u64,
            nodes: ranks.div_ceil(per_node.max(1)) as u64,
            bytes: bytes as u64,
            microseconds: 1e6 * seconds,
            algorithm_bandwidth,
            bus_bandwidth,
            bus_bandwidth_band: None,
            band_source: String::new(),
            not_compared: String::new(),
            machine: profile.name.clone(),
        };
        if is_compared {
            let (band, lacks) = PUBLISHED.of(Banded::Collectives, &traits(&row));
            row.bus_bandwidth_band = Some(band.around(bus_bandwidth));
            row.band_source = band.source();
            if !lacks.is_empty() {
                row.not_compared = format!("no published bandwidth is {lacks}, so its band is wider");
            }
        }
        row
    };
    Ok(sizes(&values).into_iter().map(row).collect())
}

/// Traits of a row, by which it is compared with published bandwidths.
pub(crate) fn traits(row: &CollectiveRow) -> Traits {
    Traits::of_collective(&row.collective, row.nodes, &row.machine)
}

fn named(name: &str) -> Option<Collective> {
    Some(match name {
        "all_reduce" => Collective::AllReduce,
        "all_gather" => Collective::AllGather,
        "reduce_scatter" => Collective::ReduceScatter,
        "all_to_all" => Collective::AllToAll,
        "broadcast" | "reduce" => Collective::Broadcast,
        "sendrecv" => Collective::Send,
        _ => return None,
    })
}

/// The sizes as `zbench allreduce` goes through them.
fn sizes(values: &Values) -> Vec<f64> {
    let bytes =
        |key: &str| values.given(key).and_then(|value: &Value| quantity(value, units::bytes)).map(|bytes| bytes as f64);
    let least = bytes("collectives.min_bytes").unwrap_or(8.0);
    let most = bytes("collectives.max_bytes").unwrap_or(f64::max(134_217_728.0, least));
    let factor = values.count("collectives.step_factor").max(2) as f64;
    std::iter::successors(Some(least), |size| Some(size * factor).filter(|size| *size <= most))
        .take(MOST_SIZES)
        .collect()
}
