//! Times of operations in a machine profile: the tables `[operations]` and `[operations.ranks-N.threads-M]`, beside the
//! ceilings. docs/predicted-time.md describes every field.

use super::{ProfileError, merge};
use crate::kind::number;
use std::fmt::{self, Write};
use std::path::Path;
use toml::{Table, Value};
use zbench_engine::planner::clock::Overheads;
use zbench_engine::planner::curves::{Curves, Point};

/// How many ranks compute at once, and with how many threads each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct RankLayout {
    /// Ranks of the machine.
    pub ranks: usize,
    /// Threads of a rank.
    pub threads: usize,
    /// There are more threads than cores.
    pub crowded: bool,
}

impl fmt::Display for RankLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let many = |count: usize| if count == 1 { "" } else { "s" };
        write!(f, "{} rank{} of {} thread{}", self.ranks, many(self.ranks), self.threads, many(self.threads))
    }
}

/// What was measured with so many ranks of so many threads at once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Operations {
    /// With which.
    pub layout: RankLayout,
    /// The operations.
    pub curves: Curves,
    /// What is beside them.
    pub overheads: Overheads,
    /// Highest less lowest round over their median: the median of all points.
    pub spread: f64,
}

/// Writes times into a profile, in the place of earlier ones of the same ranks and threads. Other keys, their order and
/// comments stay.
///
/// # Errors
/// As [`ProfileError`] says; the file is then as it was.
pub fn save(path: &Path, operations: &[Operations], measured: &str, cores: usize) -> Result<(), ProfileError> {
    let headings: Vec<String> = operations.iter().map(|of| heading(of.layout)).collect();
    let is_ours = |heading: &str| heading == "[operations]" || headings.iter().any(|own| own == heading);
    merge(path, "zbench calibrate", "cpu", "operations", &is_ours, &text(operations, measured, cores))
}

fn heading(RankLayout { ranks, threads, .. }: RankLayout) -> String {
    format!("[operations.ranks-{ranks}.threads-{threads}]")
}

fn text(operations: &[Operations], measured: &str, cores: usize) -> String {
    let quoted = |text: &str| Value::from(text).to_string();
    let mut text = format!(
        "[operations]\nmeasured = {}\nzbench = {}\ncores = {cores}\n",
        quoted(measured),
        quoted(env!("CARGO_PKG_VERSION"))
    );
    for of in operations {
        let (heading, crowded) = (heading(of.layout), of.layout.crowded);
        let us = |seconds: f64| seconds * 1e6;
        let Overheads { operation, load, step, call, all_reduce, tensor } = of.overheads;
        let _ = write!(
            text,
            "\n{heading}\ncrowded = {crowded}\nspread = {:.4}\noperation_us = {:.4}\n\
             load_us = {:.4}\nstep_us = {:.4}\ncall_us = {:.4}\nall_reduce_us = {:.4}\ntensor_us = {:.4}\ncurves = [\n",
            of.spread,
            us(operation),
            us(load),
            us(step),
            us(call),
            us(all_reduce),
            us(tensor)
        );
        for (class, points) in of.curves.classes() {
            let _ = write!(text, "    {{ of = {}, points = [", quoted(class));
            for (index, point) in points.iter().enumerate() {
                let comma = if index == 0 { "" } else { ", " };
                let sizes: String = point.sizes.iter().map(|size| format!("{size:.0}, ")).collect();
                let _ = write!(text, "{comma}[{sizes}{:?}]", rounded(us(point.seconds)));
            }
            text.push_str("] },\n");
        }
        text.push_str("]\n");
    }
    text
}

/// Rounds to four digits: clocks are not more precise.
fn rounded(us: f64) -> f64 {
    format!("{us:.3e}").parse().unwrap_or(us)
}

/// The times that a profile's `operations` holds.
///
/// # Errors
/// What is not as [`save`] writes it, in words.
pub fn of_value(value: &Value) -> Result<Vec<Operations>, String> {
    let wrong = |place: &str| format!("{place} is not as zbench calibrate writes it");
    let table = value.as_table().ok_or_else(|| wrong("operations"))?;
    let mut all = Vec::new();
    for (ranks_name, value) in table {
        let Some(ranks) = ranks_name.strip_prefix("ranks-") else { continue };
        let place = format!("operations.{ranks_name}");
        let ranks = ranks.parse().map_err(|_| wrong(&place))?;
        for (threads_name, value) in value.as_table().ok_or_else(|| wrong(&place))? {
            let place = format!("{place}.{threads_name}");
            let threads = threads_name.strip_prefix("threads-").and_then(|threads| threads.parse().ok());
            let threads = threads.ok_or_else(|| wrong(&place))?;
            let crowded = value.get("crowded").and_then(Value::as_bool).ok_or_else(|| wrong(&place))?;
            all.push(one(value, RankLayout { ranks, threads, crowded }).ok_or_else(|| wrong(&place))?);
        }
    }
    all.sort_by_key(|of| of.layout);
    Ok(all)
}

fn one(value: &Value, layout: RankLayout) -> Option<Operations> {
    let positive = |key: &str| value.get(key).and_then(number).filter(|number| *number >= 0.0);
    let seconds = |key: &str| Some(positive(key)? * 1e-6);
    let overheads = Overheads {
        operation: seconds("operation_us")?,
        load: seconds("load_us")?,
        step: seconds("step_us")?,
        call: seconds("call_us")?,
        all_reduce: seconds("all_reduce_us")?,
        // Profiles of earlier versions have it not.
        tensor: seconds("tensor_us").or_else(|| seconds("all_reduce_us"))?,
    };
    let mut curves = Curves::default();
    for entry in value.get("curves")?.as_array()? {
        let class = entry.get("of")?.as_str()?;
        for point in entry.get("points")?.as_array()? {
            let numbers: Vec<f64> = point.as_array()?.iter().map(number).collect::<Option<_>>()?;
            let (us, sizes) = numbers.split_last().filter(|(_, sizes)| !sizes.is_empty())?;
            curves.add(class, Point { sizes: sizes.to_vec(), seconds: us * 1e-6 });
        }
    }
    Some(Operations { layout, curves, overheads, spread: positive("spread")? })
}

/// The times in a profile's text; empty if it has none.
///
/// # Errors
/// What is not as [`save`] writes it, in words.
pub fn of_text(text: &str) -> Result<Vec<Operations>, String> {
    let table: Table = text.parse().map_err(|error: toml::de::Error| error.message().to_string())?;
    table.get("operations").map_or(Ok(Vec::new()), of_value)
}

#[cfg(test)]
mod tests;
