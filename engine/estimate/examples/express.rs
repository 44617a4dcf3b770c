//! Prints how the published rows are expressed as jobs, and which are not and why. Arguments: files of CSV.

use std::collections::BTreeMap;
use zbench_estimate::published::{job::express, row};

fn main() {
    for path in std::env::args().skip(1) {
        let text = std::fs::read_to_string(&path).expect("a readable file");
        let rows = row::read(&text).expect("CSV");
        let mut refused: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for row in &rows {
            match express(row) {
                Ok(expressed) => {
                    let job = &expressed.job;
                    let parameters = job.model.parameters() as f64;
                    let stated = job.model.stated_parameters as f64;
                    let off = if stated > 0.0 { parameters / stated - 1.0 } else { 0.0 };
                    let mark = if off.abs() > 0.02 { "PARAMETERS" } else { "" };
                    println!(
                        "{} {mark} {:.0} of {:.0} {:?} {} x{} node {} {:?}",
                        row.id(),
                        parameters,
                        stated,
                        expressed.machine,
                        row.text("model"),
                        expressed.devices,
                        expressed.node,
                        expressed.assumed
                    );
                    println!("    {:?} {:?} {:?} {:?}", job.degrees, job.batch, job.sharding, job.recompute);
                    println!(
                        "    {:?} {:?} {:?} {:?} {:?}",
                        job.attention, job.precision, job.offload, job.peft, job.stack
                    );
                }
                Err(why) => refused.entry(why.to_string()).or_default().push(row.id().to_string()),
            }
        }
        let count: usize = refused.values().map(Vec::len).sum();
        println!("{path}: {} rows, {count} refused", rows.len());
        for (why, ids) in refused {
            println!("  {why}: {}", ids.join(" "));
        }
    }
}
