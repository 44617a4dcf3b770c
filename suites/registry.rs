//! The suites that grids may name beside `train`, and how the documents of these suites become cells.

use crate::bench::{BenchCell, BenchSpec, Specs};
use crate::{checkpoint, collectives, io, kernels};
use serde_json::Value;
use std::collections::BTreeSet;
use zbench_config::{Axis, ConfigError, Context, Document, Problem, Refusal, Settings, Values, grid};
use zbench_host::{devices, machine};
use zbench_predict::planned::{Decision, gib};
use zbench_reports::grid_report::told_apart;
use zbench_reports::record::{Source, Status};

/// A suite, with the functions that make specifications of settings and of the cells of records.
pub struct Entry {
    /// Its name in `suite = "..."`.
    pub name: &'static str,
    resolve: fn(&Values, &Context) -> Result<Specs, Refusal>,
    of_plain: fn(&Value) -> Option<Box<dyn BenchSpec>>,
}

static SUITES: [Entry; 5] = [
    Entry { name: "gemm", resolve: kernels::resolve::gemm, of_plain: kernels::gemm::of_plain },
    Entry { name: "attention", resolve: kernels::resolve::attention, of_plain: kernels::attention::of_plain },
    Entry { name: "checkpoint", resolve: checkpoint::resolve::specs, of_plain: checkpoint::of_plain },
    Entry { name: "io", resolve: io::resolve::specs, of_plain: io::of_plain },
    // `repro` repeats a record of collectives by its command, which holds all flags.
    Entry { name: "collectives", resolve: collectives::cell::specs, of_plain: |_| None },
];

/// The cells of a document.
#[derive(Clone, Default)]
pub struct Expanded {
    /// In the order of the file.
    pub cells: Vec<BenchCell>,
    /// Remarks for the reader.
    pub remarks: Vec<String>,
}

/// The suite of a document, if it is one of these and stands outside the grid.
pub fn suite(document: &Document) -> Option<&'static Entry> {
    let name = document.base.get("suite")?.value.as_str()?;
    SUITES.iter().find(|suite| suite.name == name)
}

/// The specification of a record's cell; `None` if this version does not know it or cannot measure it.
pub fn of_plain(cell: &Value) -> Option<Box<dyn BenchSpec>> {
    let name = cell.get("suite")?.as_str()?;
    let entry = SUITES.iter().find(|suite| suite.name == name)?;
    // Somebody may have edited the record.
    (entry.of_plain)(cell).filter(|spec| spec.needs().is_some())
}

/// Expands a document of one of these suites. `unplaced` names the source of a key that is in no file.
///
/// # Errors
/// As [`grid::expand`]: a problem that does not come from the grid refuses the file.
pub fn expand(
    document: &Document,
    only: &[Axis],
    most: usize,
    context: &Context,
    unplaced: &dyn Fn(&str) -> String,
) -> Result<Expanded, ConfigError> {
    let Some(entry) = suite(document) else { return Ok(Expanded::default()) };
    let source = document.path.display().to_string();
    let (mut expanded, mut seen, mut problems) = (Expanded::default(), BTreeSet::new(), Vec::<Problem>::new());
    for (label, settings) in grid::combinations(document, only, most)? {
        let found = match (entry.resolve)(&Values { settings: &settings }, context) {
            Ok((specs, remark)) => {
                expanded.remarks.extend(remark.filter(|remark| !expanded.remarks.contains(remark)));
                let mut cells: Vec<BenchCell> = specs.into_iter().map(possible).collect();
                // The label is what the grid varies, as --only takes it. Several cells of a combination keep their own labels.
                if let ([cell], false) = (&mut cells[..], label.is_empty()) {
                    cell.label = label;
                }
                cells
            }
            Err(refusal) if refusal.from_grid => vec![refused(&settings, label, &refusal)],
            Err(Refusal { key, message, place, .. }) => {
                let by_set = settings.get(key.as_str()).is_some_and(|setting| setting.place.is_none());
                let source = if by_set { unplaced(&key) } else { source.clone() };
                let problem = Problem { source, place, key, message };
                if !problems.contains(&problem) {
                    problems.push(problem);
                }
                Vec::new()
            }
        };
        expanded
            .cells
            .extend(found.into_iter().filter(|cell| grid::has_key(only, &cell.key) && seen.insert(cell.key.clone())));
    }
    if !problems.is_empty() {
        return Err(ConfigError(problems));
    }
    let count = expanded.cells.len();
    if count > most {
        let message = format!("the grid has {count} cells and --max-cells is {most}; narrow it with --only or --set");
        return Err(ConfigError::about(source, message));
    }
    let keys: Vec<&str> = expanded.cells.iter().map(|cell| cell.key.as_str()).collect();
    let labels = told_apart(expanded.cells.iter().map(|cell| cell.label.clone()).collect(), &keys);
    expanded.cells.iter_mut().zip(labels).for_each(|(cell, label)| cell.label = label);
    Ok(expanded)
}

/// A cell that is skipped if this machine lacks the memory or the GPU for it.
fn possible(spec: Box<dyn BenchSpec>) -> BenchCell {
    let asks = spec.asks_for_gpu();
    let cuda = asks.is_some();
    let absent = asks.and_then(|asks| Some(format!("{asks}: {}", devices::count().err()?)));
    let memory = match cuda {
        true => devices::machine(0).ok().map(|machine| machine.props().memory_bytes),
        false => machine::memory_bytes("MemTotal"),
    };
    let skipped = match (spec.needs(), absent, memory) {
        (Some(_), Some(absent), _) => Some((absent, Source::Host)),
        (None, ..) => Some(("its buffers are more bytes than a machine addresses".to_string(), Source::Plan)),
        (Some(needs), None, Some(memory)) if needs > memory => {
            let whose = if cuda { "the GPU" } else { "this machine" };
            let reason = format!("needs {} of memory, and {whose} has {}", gib(needs), gib(memory));
            Some((reason, Source::Host))
        }
        _ => None,
    };
    let mut cell = BenchCell::new(spec);
    if let Some((reason, source)) = skipped {
        cell.decision = Decision::Record { status: Status::Skipped, reason, source };
    }
    cell
}

/// The skipped cell of a combination that a suite refuses.
fn refused(settings: &Settings, label: String, refusal: &Refusal) -> BenchCell {
    let (key, plain) = (grid::settings_key(settings), zbench_runner::written(settings));
    let decision = Decision::Record { status: Status::Skipped, reason: refusal.to_string(), source: Source::Plan };
    BenchCell { key, label, plain, decision, spec: None }
}
