//! Predicts the memory of published rows and prints how far off it is. Arguments: `--explain ID` prints a row's sum; files
//! of CSV otherwise (of memory, or of throughput with memory beside it).

use zbench_estimate::memory::memory;
use zbench_estimate::published::{job::express, memory as rows, row, score};

fn main() {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let explain = arguments.iter().position(|a| a == "--explain").map(|place| {
        arguments.remove(place);
        arguments.remove(place)
    });
    let list = arguments.iter().position(|a| a == "--list").map(|place| {
        arguments.remove(place);
        arguments.remove(place)
    });
    for path in arguments {
        let text = std::fs::read_to_string(&path).expect("a readable file");
        let all = row::read(&text).expect("CSV");
        let throughput = path.contains("throughput");
        let outcome = |row: &row::Row| if throughput { rows::beside_throughput(row) } else { Some(rows::predict(row)) };
        if let Some(id) = &explain {
            for row in all.iter().filter(|row| row.id().contains(id.as_str())) {
                print(row, outcome(row));
            }
            continue;
        }
        let outcomes: Vec<score::Outcome> = all.iter().filter_map(outcome).collect();
        if let Some(family) = &list {
            for outcome in outcomes.iter().filter(|o| o.family.contains(family.as_str())) {
                println!(
                    "{:<28} {:<10.10} {:>12.4} {:>12.4} {:+.1}% {:?} {}",
                    outcome.id,
                    outcome.quantity,
                    outcome.published.unwrap_or(0.0),
                    outcome.predicted.unwrap_or(0.0),
                    100.0 * outcome.error().unwrap_or(0.0),
                    outcome.fits,
                    outcome.reason
                );
            }
            continue;
        }
        println!("{path}\n{}", score::report(&outcomes, 40));
        for outcome in outcomes.iter().filter(|o| o.fits.is_some_and(|(was, is)| was != is)) {
            println!("  fits wrong: {} {:?} {:?}", outcome.id, outcome.fits, outcome.predicted);
        }
        let stated =
            outcomes.iter().filter(|o| o.published.is_none() || o.bound.contains("OOM") || o.quantity == "fits");
        let (right, all) = {
            let fits = score::Fits::of(stated);
            (fits.right(), fits.runs())
        };
        println!("of those that state OOM or fits: {right} of {all} right");
    }
}

fn print(row: &row::Row, outcome: Option<score::Outcome>) {
    println!("{} {}", row.id(), row.text("model"));
    if let Some(o) = outcome {
        println!("  published {:?} predicted {:?} {} {}", o.published, o.predicted, o.unit, o.reason);
    }
    let Ok(expressed) = express(row) else { return };
    let gib = 1024f64.powi(3);
    let of = memory(&expressed.job);
    println!("  assumed {:?} host {:.3} GiB", expressed.assumed, of.host / gib);
    for stage in &of.stages {
        println!(
            "  stage {} blocks {} parameters {:.4e} {:?} peak {:.3} after {:.3} GiB",
            stage.index,
            stage.blocks,
            stage.parameters,
            stage.moment,
            stage.peak() / gib,
            stage.after_step / gib
        );
        for term in &stage.terms {
            println!(
                "    {:>10.3} MiB {:?} {} ({})",
                term.bytes / gib * 1024.0,
                term.category,
                term.name,
                term.formula
            );
        }
    }
}
