//! nccl-tests' JSON, file version 3: its keys in its order, numbers as numbers, booleans as the strings that it writes.
//! Additions are under the key `zbench`, at the top and in each result.

use super::{Iterations, Row, Run, Section, Side};
use serde_json::{Value, json};

/// Version of the file format by nccl-tests' numbers.
pub const VERSION: u32 = 3;

/// The share of `NCCL_TESTS_MIN_BW` that the average must reach.
pub const ACCEPTED: f64 = 0.9;

/// One object for a whole run. `experiment_name` of each result is its collective.
pub fn document(run: &Run) -> Value {
    let s = &run.settings;
    let devices = serde_json::to_value(&run.devices).unwrap_or_default();
    let results: Vec<Value> =
        run.sections.iter().flat_map(|section| section.rows.iter().map(|row| result(run, section, row))).collect();
    let average = run.average_busbw();
    let okay = match (s.minimum_bandwidth, average) {
        (Some(expected), Some(average)) => word(average >= expected * ACCEPTED),
        _ => "unchecked".into(),
    };
    let wrong = run.out_of_bounds();
    json!({
        "version": VERSION,
        "start_time": run.start_time,
        "args": run.args,
        "env": run.env,
        "nccl_version": run.nccl_version,
        "config": config(run, &devices),
        "devices": devices,
        "results": results,
        "out_of_bounds": { "count": wrong, "okay": word(wrong == 0) },
        "average_bus_bandwidth": { "bandwidth": average, "okay": okay },
        "errors": run.errors,
        "end_time": run.end_time,
        "zbench": {
            "version": run.version,
            "settings": s,
            "fits": run.sections.iter().filter(|section| !section.fits.is_empty()).map(|section| {
                json!({ "collective": section.collective, "fits": section.fits })
            }).collect::<Vec<_>>(),
            "pairs": run.pairs,
            "notes": run.sections.iter().flat_map(|section| &section.notes).collect::<Vec<_>>(),
        },
    })
}

/// nccl-tests has the devices in its configuration; zbench has them there and at the top.
fn config(run: &Run, devices: &Value) -> Value {
    let s = &run.settings;
    let (step, by) = if s.step_factor > 1 { ("step_factor", s.step_factor) } else { ("step_bytes", s.step_bytes) };
    json!({
        "nthreads": s.nthreads,
        "ngpus": s.ngpus,
        "minimum_bytes": s.minimum_bytes,
        "maximum_bytes": s.maximum_bytes,
        step: by,
        "warmup_iters": s.warmup_iters,
        "iterations": s.iterations,
        "aggregated_iterations": s.aggregated_iterations,
        "validation": s.validation,
        "graph": 0,
        "blocking_collectives": word(s.blocking > 0),
        "per_iter_timing": word(s.per_iteration),
        "per_iter_skip": s.per_iteration_skip,
        "parallel_init": word(false),
        "devices": devices,
    })
}

fn result(run: &Run, section: &Section, row: &Row) -> Value {
    let mut result =
        json!({ "size": row.size, "count": row.count, "type": row.dtype, "redop": row.redop, "root": row.root });
    for (name, side) in [("out_of_place", &row.out_of_place), ("in_place", &row.in_place)] {
        result[name] = side.as_ref().map_or(Value::Null, |side| side_object(side, run.settings.cpu_time));
        if let Some(all) = side.as_ref().and_then(|side| side.iterations.as_ref()) {
            result[format!("{name}_per_iter")] = iterations(all);
        }
    }
    result["actual_iterations"] = row.iterations.into();
    result["experiment_name"] = section.collective.clone().into();
    result["zbench"] = json!({
        "collective": section.collective,
        "algorithm": row.algorithm,
        "wire_bytes_per_rank": row.wire_bytes_rank,
        "wire_bytes_per_link": row.wire_bytes_link,
        "wire_source": if row.wire_bytes_rank.is_nan() { "planned" } else { "measured" },
        "first_wrong": row.sides().find_map(|side| side.first_wrong.as_ref()),
    });
    result
}

fn side_object(side: &Side, cpu: bool) -> Value {
    let (name, time) = match side.cpu_us.filter(|_| cpu) {
        Some(cpu_us) => ("cpu_time", cpu_us),
        None => ("time", side.time_us),
    };
    json!({ name: time, "alg_bw": side.algbw, "bus_bw": side.busbw, "nwrong": side.wrong })
}

fn iterations(all: &Iterations) -> Value {
    let mut value = json!({
        "skipped_iterations": all.skipped,
        "min_us": all.min_us,
        "max_us": all.max_us,
        "avg_us": all.mean_us,
        "p50_us": all.p50_us,
        "p95_us": all.p95_us,
        "p99_us": all.p99_us,
        "stdev_us": all.stdev_us,
        "cv_pct": all.cv_percent,
        "times_us": all.times_us,
    });
    if all.per_rank_us.len() > 1 {
        value["per_process_max_times_us"] = json!(all.per_rank_us);
    }
    value
}

fn word(yes: bool) -> String {
    if yes { "true" } else { "false" }.into()
}
