//! `gemm --model MODEL --bound`: the kernels of a training step against their bounds.

use super::signals::stop_flag;
use super::{print_lines, print_screen};
use crate::{Format, Global};
use anyhow::Result;
use serde_json::json;
use std::time::Instant;
use zbench_config::{Context, Document, grid};
use zbench_host::{exit, machine};
use zbench_reports::document::{Column, Document as Text, Entry, Table};
use zbench_reports::units;
use zbench_suites::bench::args::RunFlags;
use zbench_suites::bench::{BenchError, Limits, Stopped};
use zbench_suites::kernels::bound::{KernelTime, StepKernels, cells, measure};

/// Rows of the table on a screen.
const ROWS: usize = 16;

pub fn bound(global: &Global, document: &Document, flags: &RunFlags) -> Result<u8> {
    let context = Context::new(document.folder().to_path_buf(), machine::cores());
    let only = flags.only.as_deref().map(|only| grid::parse_only(only, document)).transpose()?.unwrap_or_default();
    let cells = cells(document, &only, &context)?;
    if cells.is_empty() {
        zbench_host::say!("{}", grid::none_left(document, &only));
        return Ok(exit::NOT_MEASURED);
    }
    let stop = stop_flag()?;
    let (mut steps, mut code) = (Vec::new(), exit::SUCCESS);
    for (label, cell) in cells {
        if !global.quiet {
            zbench_host::say!("{label}: running some steps");
        }
        let limits = Limits { stop: &stop, deadline: Instant::now() + flags.timeout, parts: None };
        match measure(&label, &cell, &limits) {
            Ok(step) => steps.push(step),
            Err(BenchError::Stopped(Stopped::Interrupted)) => {
                code = exit::INTERRUPTED;
                break;
            }
            Err(error) => {
                zbench_host::say!("{label}: {error}");
                code = exit::NOT_MEASURED;
            }
        }
    }
    if global.format == Format::Json {
        print_lines(&steps.iter().map(line).collect::<Vec<_>>())?;
    } else if !steps.is_empty() {
        let mut text = Text::new("Kernels of a step and their bounds");
        steps.iter().for_each(|step| describe(&mut text, step, global.format != Format::Table || global.full));
        print_screen(global, &text)?;
    }
    Ok(code)
}

fn sum(kernels: &[KernelTime], of: impl Fn(&KernelTime) -> f64) -> f64 {
    kernels.iter().map(of).sum()
}

fn describe(text: &mut Text, step: &StepKernels, full: bool) {
    let (ms, bound) = (sum(&step.kernels, |k| k.ms), sum(&step.kernels, |k| k.bound_ms));
    let peaks: Vec<String> =
        step.peaks.iter().map(|(dtype, rate)| format!("{dtype} {} GFLOP/s", units::number(*rate))).collect();
    text.heading(step.label.clone());
    text.paragraph(format!(
        "A step takes {} ms, its kernels {} ms of it. At the peak and the memory's rate they would take {} ms: {} of the bound is reached.",
        units::number(step.step_ms),
        units::number(ms),
        units::number(bound),
        units::percent(bound / ms)
    ));
    text.paragraph(format!(
        "{}; peaks {}; triad {} GB/s. The bound of a kernel is the longer of its arithmetic at the peak and its bytes at the triad; \
         a kernel whose buffers stay in a cache can be faster.",
        units::plural(step.threads, "thread", "threads"),
        peaks.join(", "),
        units::number(step.triad)
    ));
    let columns = vec![
        Column::words("kernel"),
        Column::words("sizes"),
        Column::numbers("calls", "1"),
        Column::numbers("time", "ms"),
        Column::numbers("bound", "ms"),
        Column::words("bound by"),
        Column::numbers("reached", "fraction"),
        Column::numbers("above the bound", "ms"),
    ];
    let mut table = Table::new("kernels of a step", columns);
    let shown = if full { step.kernels.len() } else { ROWS.min(step.kernels.len()) };
    for kernel in &step.kernels[..shown] {
        let sizes: Vec<String> = kernel.sizes.iter().map(u64::to_string).collect();
        table.row(vec![
            Entry::words(&kernel.kernel),
            Entry::words(sizes.join(" x ")),
            Entry::maybe(Some(kernel.calls as f64), units::number),
            Entry::maybe(Some(kernel.ms), units::number),
            Entry::maybe(Some(kernel.bound_ms), units::number),
            Entry::words(if kernel.by_arithmetic { "arithmetic" } else { "memory" }),
            Entry::maybe(Some(kernel.bound_ms / kernel.ms), units::percent),
            Entry::maybe(Some(kernel.ms - kernel.bound_ms), units::number),
        ]);
    }
    text.table(table);
    let rest = &step.kernels[shown..];
    if !rest.is_empty() {
        text.paragraph(format!(
            "{} take {} ms more, with a bound of {} ms; --full shows them.",
            units::plural(rest.len(), "other kernel", "other kernels"),
            units::number(sum(rest, |k| k.ms)),
            units::number(sum(rest, |k| k.bound_ms))
        ));
    }
}

fn line(step: &StepKernels) -> serde_json::Value {
    let kernel = |k: &KernelTime| {
        json!({
            "kernel": k.kernel, "sizes": k.sizes, "calls": k.calls, "ms": k.ms, "bound_ms": k.bound_ms,
            "bound_by": if k.by_arithmetic { "arithmetic" } else { "memory" },
        })
    };
    json!({
        "label": step.label,
        "threads": step.threads,
        "step_ms": step.step_ms,
        "peak_gflops": step.peaks.iter().map(|(dtype, rate)| (dtype.name(), *rate)).collect::<std::collections::BTreeMap<_, _>>(),
        "triad_gb_s": step.triad,
        "kernels": step.kernels.iter().map(kernel).collect::<Vec<_>>(),
    })
}
