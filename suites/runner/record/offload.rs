//! What lived elsewhere than on the device: bytes by home, moves between homes, the disk.

use crate::protocol::{End, RankEnd};
use serde_json::{Map, Value, json};
use zbench_engine::config::Home;
use zbench_engine::outcome::{Estimate, Transfer};
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

/// The rank whose disk was busy longest, and the rate of its host's disk, which that host's ranks share at the same time.
fn drive(ranks: &[RankEnd]) -> Option<Value> {
    let of = |rank: &RankEnd| Some((rank.host.clone(), rank.disk.clone()?));
    let drives: Vec<_> = ranks.iter().filter_map(of).collect();
    let (host, disk) = drives.iter().max_by(|a, b| a.1.busy_ms.total_cmp(&b.1.busy_ms))?;
    let mut drive = serde_json::to_value(disk).unwrap_or_default();
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
