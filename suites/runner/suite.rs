//! What the runner knows of a suite: its cells, and that it measures one into a record.

use crate::execution::Stopped;
use crate::header::Header;
use crate::parity::Reference;
use crate::protocol::LifecycleEvent;
use zbench_engine::observe::trace::StepTrace;
use zbench_predict::planned::{Decision, Planned};
use zbench_reports::record::{Record, Step};
use zbench_reports::{Index, Notebook};

/// A cell of any suite, as the runner sees it.
pub trait SuiteCell {
    /// Hash of everything that its results depend on.
    fn key(&self) -> &str;
    /// For a reader: what sets it apart.
    fn label(&self) -> &str;
    /// As plain data: what a record says of it.
    fn plain(&self) -> serde_json::Value;
    /// Whether it runs; if not, what its record says instead.
    fn decision(&self) -> &Decision;
    /// Whether one record is enough, however many trials are asked for.
    fn runs_once(&self) -> bool {
        *self.decision() != Decision::Run
    }
    /// Whether the losses of other cells are compared with its own, so that it is measured before them.
    fn comes_first(&self) -> bool {
        false
    }
}

/// One trial of a cell, and what is known of others.
pub struct Trial<'a, C> {
    /// The cell.
    pub cell: &'a C,
    /// Its number, from 1.
    pub number: u32,
    /// All cells of the command.
    pub cells: &'a [C],
    /// Records that count, oldest first.
    pub known: &'a [Record],
    /// Measured records whose losses others are compared with.
    pub references: &'a [Reference],
    /// The notebook that holds the references.
    pub notebook: &'a Notebook,
    /// What all records of the run have in common.
    pub header: &'a Header,
}

/// A suite of measurements: training, kernels, collectives, checkpoints.
pub trait Suite {
    /// What it measures.
    type Cell: SuiteCell;

    /// Into every record of a cell, whether it runs or not.
    fn describe(&self, _cell: &Self::Cell, _record: &mut Record) {}

    /// Into the record of a cell that does not run, once its outcome stands.
    fn skipped(&self, _record: &mut Record) {}

    /// Measures a cell and fills its record. True: nothing can run after it.
    ///
    /// # Errors
    /// It was stopped because the user asked, and has no record; where it stopped, if a part of it was done.
    fn measure(
        &mut self,
        trial: &Trial<'_, Self::Cell>,
        record: &mut Record,
        observe: &mut dyn Observe<Self::Cell>,
    ) -> Result<bool, Option<Stopped>>;

    /// Whether the user wants to stop, asked while nothing is measured.
    fn is_stopped(&self) -> bool;

    /// For each cell the one whose losses its own are compared with, if there is one.
    fn references_of(&self, cells: &[Self::Cell]) -> Vec<Option<usize>> {
        vec![None; cells.len()]
    }

    /// Those of the notebook's records whose losses others may be compared with.
    fn references(&self, _index: &Index) -> Vec<Reference> {
        Vec::new()
    }
}

/// Someone who wants to know how far it is.
pub trait Observe<C = Planned> {
    /// Records of these cells do not count, for this reason.
    fn set_aside(&mut self, _count: usize, _reason: &str) {}
    /// Other processes on the notebook have what is left; it is looked again in a moment.
    fn wait(&mut self) {}
    /// A trial begins: the `done`-th of `all`.
    fn begin(&mut self, _cell: &C, _trial: u32, _done: usize, _all: usize) {}
    /// A step of it has ended.
    fn step(&mut self, _step: &Step) {}
    /// Something has happened between steps.
    fn lifecycle(&mut self, _event: &LifecycleEvent) {}
    /// What a rank did in a step of it.
    fn traced(&mut self, _traced: &StepTrace) {}
    /// Cells take turns: how far the experiment is, in words and as a share.
    fn turns(&mut self, _words: &str, _share: f64) {}
    /// Something that the user should know at once.
    fn warn(&mut self, _words: &str) {}
    /// The user wants to stop; it goes on to the end of its step, for a checkpoint.
    fn stopping(&mut self) {}
    /// Its record is on disk.
    fn end(&mut self, _record: &Record) {}
}
