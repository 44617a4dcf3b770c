//! What lived elsewhere than on the device: bytes by home, moves between homes, the disk.

use crate::protocol::{End, RankEnd};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use zbench_engine::config::Home;
use zbench_engine::outcome::{Estimate, Transfer};
use zbench_predict::drive::Drive;
use zbench_reports::record::Record;

/// `offload` of a record: of the largest rank, beside what the plan says. Nothing where all lived on the device.
pub(super) fn add(record: &mut Record, end: &End, estimate: &Estimate) {
    let mut offload = Map::new();
    for home in [Home::Host, Home::Disk] {
        let of = |rank: &RankEnd| rank.homes.iter().find(|of| of.home == home).cloned();
        let Some(largest) = end.ranks.iter().filter_map(of).max_by_key(|of| of.total_peak) else { continue };
        let planned = &estimate.ledgers[home];
        let by_category = largest.peak.iter().filter(|(_, bytes)| **bytes > 0).map(|(category, bytes)| {
            (category.name().to_string(), json!({"peak_bytes": bytes, "predicted_bytes": planned.peak(*category)}))
        });
        let mut bytes: Map<String, Value> = by_category.collect();
        let total = json!({"peak_bytes": largest.total_peak, "predicted_bytes": planned.total_peak()});
        bytes.insert("total".into(), total);
        offload.insert(name(home).into(), bytes.into());
    }
    let moves = moves(&end.ranks, &estimate.moves);
    if !moves.is_empty() {
        offload.insert("moves".into(), moves.into());
    }
    if let Some(drive) = drive(&end.ranks) {
        offload.insert("drive".into(), drive);
    }
    if !offload.is_empty() {
        record.extra.insert("offload".into(), offload.into());
    }
}

/// What the drive gives for the plan's mix of reads and writes, and the share of it that the run had; or why neither is known. The
/// drive is that of `host`, which says nothing of others.
pub fn ceiling(record: &mut Record, drive: &Result<Arc<Drive>, String>, planned: &[Transfer], host: &str) {
    let Some(offload) = record.extra.get_mut("offload") else { return };
    let Some(of) = offload.get_mut("drive").and_then(Value::as_object_mut) else { return };
    let on = of.get("host").and_then(Value::as_str).unwrap_or(host);
    let known = match (drive, of.get("gb_s").and_then(Value::as_f64)) {
        _ if on != host => Err(format!("the ranks were on {on}, whose drive is not known here")),
        (_, None) => Err("the drive was not busy in the timed steps".to_string()),
        (Err(why), _) => Err(why.clone()),
        (Ok(drive), Some(rate)) => {
            let ceiling = drive.ceiling(planned).ok_or_else(|| "the plan moves nothing from a disk or to it".into());
            ceiling.map(|ceiling| (ceiling / 1e9, rate, drive.source().to_string()))
        }
    };
    match known {
        Ok((ceiling, rate, source)) => {
            of.insert("ceiling_gb_s".into(), ceiling.into());
            of.insert("share".into(), (rate / ceiling).into());
            of.insert("ceiling_from".into(), source.into());
        }
        Err(why) => drop(of.insert("no_ceiling".into(), why.into())),
    }
}

/// The rank whose disk was busy longest, and the rate of its host's disk, which that host's ranks share at the same time.
fn drive(ranks: &[RankEnd]) -> Option<Value> {
    let of = |rank: &RankEnd| Some((rank.host.clone(), rank.disk.clone()?));
    let drives: Vec<_> = ranks.iter().filter_map(of).collect();
    let (host, disk) = drives.iter().max_by(|a, b| a.1.busy_ms.total_cmp(&b.1.busy_ms))?;
    let mut drive = serde_json::to_value(disk).unwrap_or_default();
    if !host.is_empty() {
        drive["host"] = host.clone().into();
    }
    let beside = drives.iter().filter(|(other, _)| other == host).map(|(_, disk)| disk.read_bytes + disk.written_bytes);
    if disk.busy_ms > 0.0 {
        drive["gb_s"] = (beside.sum::<f64>() / disk.busy_ms / 1e6).into();
    }
    Some(drive)
}

/// Per step, of the rank that moved most.
fn moves(ranks: &[RankEnd], planned: &[Transfer]) -> Vec<Value> {
    let like = |a: &Transfer, b: &Transfer| (a.what, a.from, a.to) == (b.what, b.from, b.to);
    let mut all: Vec<Transfer> = Vec::new();
    for row in ranks.iter().flat_map(|rank| &rank.moves) {
        match all.iter_mut().find(|known| like(known, row)) {
            Some(known) => (known.moves, known.bytes) = (known.moves.max(row.moves), known.bytes.max(row.bytes)),
            None => all.push(row.clone()),
        }
    }
    let row = |of: &Transfer| {
        let predicted = planned.iter().find(|planned| like(planned, of)).map(|planned| planned.bytes);
        json!({"what": of.what.name(), "from": name(of.from), "to": name(of.to), "moves": of.moves, "bytes": of.bytes,
               "predicted_bytes": predicted})
    };
    all.iter().map(row).collect()
}

fn name(home: Home) -> &'static str {
    match home {
        Home::Device => "device",
        Home::Host => "host",
        Home::Disk => "disk",
    }
}
