//! nccl-tests' JSON, file version 3: its keys in its order, numbers as numbers, booleans as the strings that it writes.
//! What nccl-tests does not have stands under `zbench`, at the top and in each result.

use super::{Iterations, Row, Run, Section, Side};
use serde_json::{Map, Value, json};

/// Version of the form, as nccl-tests counts.
pub const VERSION: u32 = 3;

/// The share of `NCCL_TESTS_MIN_BW` that the average has to reach.
pub const ACCEPTED: f64 = 0.9;

/// One object for a whole run. Results of several collectives follow each other and carry the name of theirs in
/// `experiment_name`.
pub fn document(run: &Run) -> Value {
    let s = &run.settings;
    let devices: Vec<Value> = run
        .devices
        .iter()
        .map(|d| {
            json!({
                "rank": d.rank, "group": d.group, "pid": d.pid, "hostname": d.hostname, "device": d.device,
                "device_hex": d.device_hex, "device_info": d.device_info,
            })
        })
        .collect();
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

/// nccl-tests nests the devices in its configuration; they stand there and at the top.
fn config(run: &Run, devices: &[Value]) -> Value {
    let s = &run.settings;
    let mut config = Map::new();
    let mut put = |key: &str, value: Value| drop(config.insert(key.into(), value));
    put("nthreads", s.nthreads.into());
    put("ngpus", s.ngpus.into());
    put("minimum_bytes", s.minimum_bytes.into());
    put("maximum_bytes", s.maximum_bytes.into());
    if s.step_factor > 1 {
        put("step_factor", s.step_factor.into());
    } else {
        put("step_bytes", s.step_bytes.into());
    }
    put("warmup_iters", s.warmup_iters.into());
    put("iterations", s.iterations.into());
    put("aggregated_iterations", s.aggregated_iterations.into());
    put("validation", s.validation.into());
    put("graph", 0.into());
    put("blocking_collectives", word(s.blocking > 0).into());
    put("per_iter_timing", word(s.per_iteration).into());
    put("per_iter_skip", s.per_iteration_skip.into());
    put("parallel_init", word(false).into());
    put("devices", devices.into());
    Value::Object(config)
}

fn result(run: &Run, section: &Section, row: &Row) -> Value {
    let mut result = Map::new();
    let mut put = |key: &str, value: Value| drop(result.insert(key.into(), value));
    put("size", row.size.into());
    put("count", row.count.into());
    put("type", row.dtype.clone().into());
    put("redop", row.redop.clone().into());
    put("root", row.root.into());
    for (name, side) in [("out_of_place", &row.out_of_place), ("in_place", &row.in_place)] {
        put(name, side.as_ref().map_or(Value::Null, |side| half(side, run.settings.cpu_time)));
        if let Some(all) = side.as_ref().and_then(|side| side.iterations.as_ref()) {
            put(&format!("{name}_per_iter"), iterations(all));
        }
    }
    put("actual_iterations", row.iterations.into());
    put("experiment_name", section.collective.clone().into());
    put(
        "zbench",
        json!({
            "collective": section.collective,
            "algorithm": row.algorithm,
            "wire_bytes_per_rank": row.wire_bytes_rank,
            "wire_bytes_per_link": row.wire_bytes_link,
            "wire_source": if row.wire_bytes_rank.is_nan() { "planned" } else { "measured" },
            "first_wrong": row.sides().find_map(|side| side.first_wrong.as_ref()),
        }),
    );
    Value::Object(result)
}

fn half(side: &Side, cpu: bool) -> Value {
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
    if all.per_rank_us.len() > 1
        && let Value::Object(map) = &mut value
    {
        map.insert("per_process_max_times_us".into(), json!(all.per_rank_us));
    }
    value
}

fn word(yes: bool) -> String {
    if yes { "true" } else { "false" }.into()
}
