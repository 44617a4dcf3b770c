//! nccl-tests' table, column for column, so that parsers of its output can read ours. All additions are lines that begin with
//! `#`.

use super::{Iterations, Row, Run, Section, Side};
use crate::units;
use std::fmt::Write;

/// The lines before the first row of a collective.
pub fn header(run: &Run, collective: &str) -> String {
    preamble(run, collective) + &columns(run)
}

/// The lines on ranks and settings.
pub fn preamble(run: &Run, collective: &str) -> String {
    let s = &run.settings;
    let mut text = String::new();
    let mut line = |words: String| {
        let _ = writeln!(text, "{words}");
    };
    let group = if s.group_ranks == s.ranks { String::new() } else { format!(" in groups of {}", s.group_ranks) };
    line(format!(
        "# zbench {}: backend {}, {}{group} on {} ({}), algorithm {}",
        run.version,
        s.backend,
        units::plural(s.ranks, "rank", "ranks"),
        units::plural(s.hosts, "host", "hosts"),
        s.formed,
        s.algorithm
    ));
    if let Some(link) = &s.link {
        line(format!("# EMULATED links: {link}"));
    }
    line(format!("# Timing: {}", s.timing));
    line(format!("# Buffers: {}", s.buffers));
    line("# Bandwidth: GB/s are 10^9 bytes per second, one way. algbw = size / time; busbw = algbw x nccl-tests' factor, ring convention".into());
    line(format!("# Collective test starting: {collective}"));
    let (step, by) = if s.step_factor > 1 { (s.step_factor, "factor") } else { (s.step_bytes, "bytes") };
    line(format!(
        "# nThread {} nGpus {} minBytes {} maxBytes {} step: {step}({by}) warmup iters: {} iters: {} agg iters: {} validation: {} graph: 0 unalign: {}",
        s.nthreads,
        s.ngpus,
        s.minimum_bytes,
        s.maximum_bytes,
        s.warmup_iters,
        s.iterations,
        s.aggregated_iterations,
        s.validation,
        s.unalign
    ));
    match s.blocking {
        1 => line("# Blocking Enabled: wait and barrier after each inner iteration (-m)".into()),
        2 => line("# Blocking Enabled: wait after each inner iteration (-m), no barrier".into()),
        3 => line("# Blocking Enabled: wait and barrier after each outer iteration (-n); time excludes barrier".into()),
        _ => {}
    }
    if s.per_iteration {
        let skipped = match s.per_iteration_skip {
            0 => String::new(),
            count => format!("; summary skips first {count} iterations"),
        };
        line(format!("# Per-Iteration Report: i_* are of the slowest rank of each iteration{skipped}"));
    }
    line("#".into());
    line("# Using devices".into());
    for d in &run.devices {
        line(format!(
            "#  Rank {:2} Group {:2} Pid {:6} on {:>10} device {:2} [{}] {}",
            d.rank, d.group, d.pid, d.hostname, d.device, d.device_hex, d.device_info
        ));
    }
    if let Some(asked) = s.reduced_from {
        line("#".into());
        line(format!("# Reducing maxBytes to {} due to memory limitation ({asked} asked for)", s.maximum_bytes));
    }
    text
}

fn columns(run: &Run) -> String {
    let s = &run.settings;
    let time = if s.cpu_time { "cputime" } else { "time" };
    let (stamp, stamp_format, pad) = if s.timestamps { ("timestamp", "%Y-%m-%d %H:%M:%S", 19) } else { ("", "", 0) };
    let front = |words: [&str; 5]| {
        format!("# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}", words[0], words[1], words[2], words[3], words[4])
    };
    let side = |four: [&str; 4], more: [&str; 4]| {
        let mut side = format!("  {:>7}  {:>6}  {:>6}  {:>6}", four[0], four[1], four[2], four[3]);
        if s.per_iteration {
            let _ = write!(side, "  {:>7}  {:>7}  {:>7}  {:>7}", more[0], more[1], more[2], more[3]);
        }
        side
    };
    let names = side([time, "algbw", "busbw", "#wrong"], ["i_min", "i_max", "i_p99", "i_cv%"]);
    let units = side(["(us)", "(GB/s)", "(GB/s)", ""], ["(us)", "(us)", "(us)", "(%)"]);
    let above = if s.per_iteration {
        "              out-of-place (+ per-iteration)                                in-place (+ per-iteration)"
    } else {
        "           out-of-place                       in-place          "
    };
    format!(
        "#\n{}{above}\n{}{names}{names} {stamp:>pad$}\n{}{units}{units} {stamp_format:>pad$}\n",
        front([""; 5]),
        front(["size", "count", "type", "redop", "root"]),
        front(["(B)", "(elements)", "", "", ""])
    )
}

/// The line of a row.
pub fn row(run: &Run, row: &Row) -> String {
    let s = &run.settings;
    let mut text = format!("{:>12}  {:>12}  {:>8}  {:>6}  {:>6}", row.size, row.count, row.dtype, row.redop, row.root);
    for side in [&row.out_of_place, &row.in_place] {
        text.push_str(&side_columns(side.as_ref(), s.cpu_time));
        if s.per_iteration {
            text.push_str(&spread(side.as_ref().and_then(|side| side.iterations.as_ref())));
        }
    }
    if s.timestamps {
        let _ = write!(text, "{:>21}", row.timestamp);
    }
    text.push('\n');
    text
}

fn side_columns(side: Option<&Side>, cpu: bool) -> String {
    let na = || "N/A".to_string();
    let [time, algbw, busbw, wrong] = match side {
        None => [na(), na(), na(), na()],
        Some(side) => [
            fitting(side.cpu_us.filter(|_| cpu).unwrap_or(side.time_us), 7),
            fitting(side.algbw, 6),
            fitting(side.busbw, 6),
            side.wrong.map_or_else(na, |count| significant(count as f64)),
        ],
    };
    format!("  {time:>7}  {algbw:>6}  {busbw:>6}  {wrong:>6}")
}

fn spread(iterations: Option<&Iterations>) -> String {
    let four = match iterations {
        None => ["N/A"; 4].map(str::to_string),
        Some(all) => [all.min_us, all.max_us, all.p99_us, all.cv_percent].map(|value| fitting(value, 7)),
    };
    four.iter().map(|value| format!("  {value:>7}")).collect()
}

/// The lines after the last row of a collective.
pub fn footer(run: &Run, section: &Section) -> String {
    let mut text = String::new();
    let wrong = section.out_of_bounds();
    let _ = writeln!(text, "# {:<20} : {wrong} {}", "Out of bounds values", if wrong > 0 { "FAILED" } else { "OK" });
    let average = section.average_busbw().unwrap_or(0.0);
    let verdict = match run.settings.minimum_bandwidth {
        None => "",
        Some(expected) if average < expected * super::v3::ACCEPTED => "FAILED",
        Some(_) => "OK",
    };
    let _ = writeln!(text, "# {:<20} : {} {verdict}", "Avg bus bandwidth", significant(average));
    let _ = writeln!(text, "#\n# Collective test concluded: {}", section.collective);
    text
}

/// The bytes, or `planned` where they were not counted.
fn wire(bytes: f64) -> String {
    if bytes.is_nan() { "planned".into() } else { format!("{bytes:.0}") }
}

/// What nccl-tests does not report: bytes on the wire, the algorithm of each size, percentiles. Every line is a comment.
pub fn details(section: &Section) -> String {
    let mut text = String::new();
    if section.rows.is_empty() {
        return text;
    }
    let has_iterations = section.rows.iter().flat_map(Row::sides).any(|side| side.iterations.is_some());
    let _ = writeln!(text, "#\n# On the wire, a call: bytes of the rank with most, mean of an ordered pair of ranks");
    let mut head = format!(
        "# {:>10}  {:>8}  {:>6}  {:>12}  {:>12}  {:>10}",
        "size", "type", "redop", "wire/rank", "wire/link", "algorithm"
    );
    if has_iterations {
        for side in ["out", "in"] {
            for name in ["p50", "p95", "p99", "cv%"] {
                let _ = write!(head, "  {:>8}", format!("{side} {name}"));
            }
        }
    }
    let _ = writeln!(text, "{head}");
    for row in &section.rows {
        let _ = write!(
            text,
            "# {:>10}  {:>8}  {:>6}  {:>12}  {:>12}  {:>10}",
            row.size,
            row.dtype,
            row.redop,
            wire(row.wire_bytes_rank),
            wire(row.wire_bytes_link),
            row.algorithm
        );
        if has_iterations {
            for side in [&row.out_of_place, &row.in_place] {
                let all = side.as_ref().and_then(|side| side.iterations.as_ref());
                let four = all.map(|all| [all.p50_us, all.p95_us, all.p99_us, all.cv_percent]);
                for place in 0..4 {
                    let value = four.map_or_else(|| "N/A".to_string(), |four| fitting(four[place], 8));
                    let _ = write!(text, "  {value:>8}");
                }
            }
        }
        text.push('\n');
    }
    text
}

/// The fits of a collective. Every line is a comment.
pub fn fits(section: &Section) -> String {
    let mut text = String::new();
    for fit in &section.fits {
        let _ = writeln!(text, "#\n# Fit of {} {}: time = latency + size / bandwidth", section.collective, fit.of);
        for s in &fit.segments {
            let rate = match s.bandwidth_gb_s {
                Some(rate) => format!("{} GB/s (busbw {})", units::number(rate), units::number(rate * fit.factor)),
                None => "time does not grow with size".into(),
            };
            let _ = writeln!(
                text,
                "#   {:>10} to {:>10}: latency {} us, {rate}; error median {}, worst {}, {}",
                units::memory(s.from_bytes as f64),
                units::memory(s.to_bytes as f64),
                units::number(s.latency_us),
                units::percent(s.median_error),
                units::percent(s.worst_error),
                units::plural(s.points, "size", "sizes")
            );
        }
    }
    text
}

/// A number for a field of this width: with two decimals if they fit, else one, else none, else an exponent.
pub fn fitting(value: f64, width: usize) -> String {
    let fits = |decimals: usize| Some(format!("{value:.decimals$}")).filter(|text| text.len() <= width);
    fits(2).or_else(|| fits(1)).or_else(|| fits(0)).unwrap_or_else(|| exponent(value, usize::from(width >= 7)))
}

/// C's `%e` with so many decimals.
fn exponent(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$e}");
    match text.split_once('e') {
        Some((digits, power)) => {
            let (sign, power) = power.strip_prefix('-').map_or(('+', power), |rest| ('-', rest));
            format!("{digits}e{sign}{power:0>2}")
        }
        None => text,
    }
}

/// C's `%g`: six significant digits without zeros at the end; an exponent below 10^-4 and from 10^6 on.
pub fn significant(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return if value == 0.0 { "0".into() } else { format!("{value}").to_lowercase() };
    }
    let rounded = exponent(value, 5);
    let power: i32 = rounded.split_once('e').and_then(|(_, power)| power.parse().ok()).unwrap_or(0);
    let trimmed = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_string(),
        false => text.to_string(),
    };
    if (-4..6).contains(&power) {
        trimmed(&format!("{value:.*}", (5 - power) as usize))
    } else {
        let (digits, power) = rounded.split_once('e').unwrap_or((&rounded, "+00"));
        format!("{}e{power}", trimmed(digits))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_c_writes_them() {
        let fitted = [1.0, 1234.5678, 12345.678, 1234567.8, 12345678.0, 0.004].map(|value| fitting(value, 7));
        assert_eq!(fitted, ["1.00", "1234.57", "12345.7", "1234568", "1.2e+07", "0.00"]);
        assert_eq!([99.999, 9999.99, 1e7].map(|value| fitting(value, 6)), ["100.00", "10000", "1e+07"]);
        let general = [0.0, 1.0, 123456.0, 1234567.0, 0.000123456789, 0.00001, 229.5333, 1e-9].map(significant);
        assert_eq!(general, ["0", "1", "123456", "1.23457e+06", "0.000123457", "1e-05", "229.533", "1e-09"]);
    }
}
