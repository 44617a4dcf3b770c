//! What lived elsewhere than on the device: bytes by tier, moves between tiers, the disk.

use crate::protocol::{End, RankEnd};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use zbench_engine::config::{Cell, MemoryTier};
use zbench_engine::observe::outcome::{DiskReport, Estimate, Transfer};
use zbench_predict::drive::Drive;
use zbench_reports::record::Record;

/// `offload` of a record: of the largest rank, beside what the plan says. Nothing where all lived on the device.
pub(super) fn add(record: &mut Record, end: &End, estimate: &Estimate) {
    let mut offload = Map::new();
    for home in [MemoryTier::Host, MemoryTier::Disk] {
        let of = |rank: &RankEnd| rank.tiers.iter().find(|of| of.home == home).cloned();
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
pub fn ceiling(record: &mut Record, end: &End, drive: &Result<Arc<Drive>, String>, planned: &[Transfer], host: &str) {
    let Some(offload) = record.extra.get_mut("offload") else { return };
    let Some(of) = offload.get_mut("drive").and_then(Value::as_object_mut) else { return };
    // Of ranks that are threads no host is told.
    let on = busiest(&end.ranks).map(|(host, _)| host).filter(|host| !host.is_empty()).unwrap_or(host);
    let known = match (drive, of.get("gb_s").and_then(Value::as_f64)) {
        _ if on != host => Err("the ranks were on another host, whose drive is not known here".to_string()),
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

/// That a timed step had no update, where updates are delayed and no step goes before.
pub(super) fn first_step(record: &mut Record, cell: &Cell) {
    if cell.train.is_delayed() && cell.train.untimed_steps == 0 {
        record.notes.push(
            "The first timed step updates nothing, since updates are one step late and no untimed step goes before \
             (train.untimed_steps = 0): times and moves of a step are less than planned."
                .into(),
        );
    }
}

/// The rank whose disk was busy longest: its host, and how that was used.
fn busiest(ranks: &[RankEnd]) -> Option<(&str, &DiskReport)> {
    let disks = ranks.iter().filter_map(|rank| Some((rank.host.as_str(), rank.disk.as_ref()?)));
    disks.max_by(|a, b| a.1.busy_ms.total_cmp(&b.1.busy_ms))
}

/// Its disk, and the rate of its host's disk, which that host's ranks share at the same time.
fn drive(ranks: &[RankEnd]) -> Option<Value> {
    let (host, disk) = busiest(ranks)?;
    let mut drive = serde_json::to_value(disk).unwrap_or_default();
    let beside = ranks.iter().filter(|rank| rank.host == host).filter_map(|rank| rank.disk.as_ref());
    if disk.busy_ms > 0.0 {
        let bytes: f64 = beside.map(|disk| disk.read_bytes + disk.written_bytes).sum();
        drive["gb_s"] = (bytes / disk.busy_ms / 1e6).into();
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

fn name(home: MemoryTier) -> &'static str {
    match home {
        MemoryTier::Device => "device",
        MemoryTier::Host => "host",
        MemoryTier::Disk => "disk",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbench_config::profile::drives::{DriveRate, DriveRates};
    use zbench_kernels::Category;
    use zbench_reports::record::Outcome;

    /// Two ranks of a host, each of which read 2 MB and wrote 1 MB in 4 ms of a step.
    fn end(host: &str) -> End {
        let disk = DiskReport { read_bytes: 2e6, written_bytes: 1e6, busy_ms: 4.0, ..DiskReport::default() };
        let rank = RankEnd { host: host.into(), disk: Some(disk), ..RankEnd::default() };
        End { ranks: vec![rank.clone(), rank], ..End::default() }
    }

    #[test]
    fn a_drive_has_a_ceiling_and_a_share_or_a_reason() {
        let rate = DriveRate { bytes: 1_000_000, read: 2e9, write: 4e9 };
        let rates = DriveRates { folder: "/x".into(), measured: "today".into(), rates: vec![rate] };
        let drive = Ok(Arc::new(Drive::shared(&rates, 2).unwrap()));
        let moved = |from, to, bytes| Transfer { what: Category::Optimizer, from, to, moves: 1.0, bytes };
        let moves = [moved(MemoryTier::Disk, MemoryTier::Host, 2e6), moved(MemoryTier::Host, MemoryTier::Disk, 1e6)];
        let of = |end: &End, drive: &Result<Arc<Drive>, String>, moves: &[Transfer]| {
            let mut record = Record::new("id", "key", "x", Outcome::measured());
            add(&mut record, end, &Estimate::default());
            ceiling(&mut record, end, drive, moves, "here");
            record.extra["offload"]["drive"].clone()
        };
        for host in ["", "here"] {
            // By hand: 6 MB in 4 ms; the drive gives 3 MB in 1.25 ms.
            let found = of(&end(host), &drive, &moves);
            let near =
                |key: &str, wanted: f64| assert!((found[key].as_f64().unwrap() / wanted - 1.0).abs() < 1e-9, "{found}");
            near("gb_s", 1.5);
            near("ceiling_gb_s", 2.4);
            near("share", 0.625);
            assert!(found["ceiling_from"].as_str().unwrap().contains("/x") && found["no_ceiling"].is_null(), "{found}");
        }
        let mut idle = end("");
        idle.ranks.iter_mut().for_each(|rank| rank.disk = Some(DiskReport::default()));
        for (end, drive, moves, why) in [
            (&end("elsewhere"), &drive, &moves[..], "another host"),
            (&end(""), &Err("not measured".into()), &moves[..], "not measured"),
            (&end(""), &drive, &[][..], "moves nothing"),
            (&idle, &drive, &moves[..], "not busy"),
        ] {
            let found = of(end, drive, moves);
            assert!(found["no_ceiling"].as_str().unwrap().contains(why) && found["share"].is_null(), "{found}");
        }
    }
}
