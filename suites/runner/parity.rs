//! Loss parity: a cell's losses beside those of a ddp cell that trains the same model on the same sequences under the same
//! numeric policy.

use serde::Serialize;
use serde_json::Value;
use std::collections::HashMap;
use std::sync::Arc;
use zbench_config::grid::{canonical, of_plain};
use zbench_engine::config::numerics::Numerics;
use zbench_engine::config::{
    BatchDivision, Cell, Data, Degrees, Evaluation, Hardware, Link, Lora, Model, Pace, Precision, PricedModel, Saving,
    Strategy, Train, Watch,
};
use zbench_engine::observe::parity::{Point, compare as compare_points};
use zbench_predict::planned::Planned;
use zbench_reports::label::STRATEGY;
use zbench_reports::record::{Parity, Record, Step, Verdict};
use zbench_reports::{Index, IndexEntry};

/// What cells must share for their losses to be comparable. Samples are numbered over the global batch, so the division of
/// the batch among ranks and micro-batches is no part of it, and neither is the division of state and work. They change the
/// order of sums only.
#[derive(Serialize)]
struct Class<'a> {
    model: &'a Model,
    priced_model: Option<&'a PricedModel>,
    data: &'a Data,
    /// Without the division of the batch.
    train: Train,
    /// The global batch.
    sequences: u64,
    numerics: Numerics,
    lora: &'a Lora,
    /// Without the number of threads.
    hardware: Hardware,
    link: Option<Link>,
    pace: Option<Pace>,
    checkpoint: Option<&'a Saving>,
    watch: Option<Watch>,
}

impl Class<'_> {
    fn of(cell: &Cell) -> Class<'_> {
        // Every field is named: a new one does not compile until someone decides whether it belongs here.
        let Cell {
            model,
            data,
            read_ahead: _,
            train,
            parallel: _,
            precision: _, // part of the numeric policy
            memory: _,
            lora,
            hardware,
            link,
            pace,
            checkpoint,
            watch,
            priced,
        } = cell;
        let division = cell.batch_division();
        Class {
            model,
            priced_model: priced.as_ref().and_then(|priced| priced.model.as_ref()),
            data,
            train: Train { micro_batch: 1, accumulation: 1, ..train.clone() },
            sequences: division.sequences(),
            numerics: Numerics::of(cell),
            lora,
            hardware: Hardware { threads_per_rank: 1, ..hardware.clone() },
            // A link between device and host changes no number, and the reference may have nothing offloaded.
            link: link.map(|link| Link { host: None, ..link }).filter(|link| link.node.is_some()),
            // It changes no number, but what is compared with a reference is its speed, too.
            pace: *pace,
            checkpoint: checkpoint.as_deref(),
            watch: watch.map(|watch| over_all_ranks(watch, division)),
        }
    }
}

/// The class of a cell, as text.
pub fn class(cell: &Cell) -> String {
    canonical(&serde_json::to_value(Class::of(cell)).unwrap_or_default())
}

/// The same with evaluations of the number of sequences that all ranks look at, as one rank with micro-batches of one.
fn over_all_ranks(watch: Watch, division: BatchDivision) -> Watch {
    let sequences = |batches: usize| batches.saturating_mul(division.data_ranks).saturating_mul(division.micro_batch);
    let evaluation = watch.evaluation.map(|of| Evaluation { batches: sequences(of.batches), ..of });
    Watch { evaluation, ..watch }
}

/// Whether losses are compared with this cell's: every rank of it has whole layers and state, and data of its own or that of the other
/// stages.
pub fn is_reference(cell: &Cell) -> bool {
    let Degrees { tensor, context, expert, expert_tensor, .. } = cell.parallel.degrees;
    cell.parallel.strategy == Strategy::Ddp && [tensor, context, expert, expert_tensor] == [1; 4]
}

/// What decides which of several references a cell is compared with.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Standing {
    division: BatchDivision,
    has_stages: bool,
}

impl Standing {
    fn of(cell: &Cell) -> Standing {
        Standing { division: cell.batch_division(), has_stages: cell.parallel.degrees.pipeline > 1 }
    }
}

/// Of references of one class, one without stages if there is any, since stages are what it may have to judge; of those the first that
/// divides the batch as a cell does: with it the cell may agree to the bit. Else the first.
fn preferred<T>(division: BatchDivision, references: impl Iterator<Item = (Standing, T)>) -> Option<T> {
    let order = |of: &Standing| (of.has_stages, of.division != division);
    references.min_by_key(|(of, _)| order(of)).map(|(_, reference)| reference)
}

/// The cell of a command with whose losses this one's are compared.
pub fn reference_of(cell: &Cell, cells: &[Planned]) -> Option<usize> {
    let own = class(cell);
    let known = cells.iter().enumerate().filter_map(|(index, planned)| Some((index, planned.cell()?)));
    let of_class = known.filter(|(_, other)| is_reference(other) && class(other) == own);
    preferred(cell.batch_division(), of_class.map(|(index, other)| (Standing::of(other), index)))
}

/// The same for each cell at once.
pub fn references_of(cells: &[Planned]) -> Vec<Option<usize>> {
    let classes: Vec<Option<String>> = cells.iter().map(|planned| planned.cell().map(class)).collect();
    let known = || {
        let all = cells.iter().zip(&classes).enumerate();
        all.filter_map(|(index, (planned, class))| Some((index, planned.cell()?, class.as_deref()?)))
    };
    // The first of each standing, by class.
    let mut references: HashMap<&str, Vec<(Standing, usize)>> = HashMap::new();
    for (index, cell, class) in known().filter(|(_, cell, _)| is_reference(cell)) {
        let (standing, of_class) = (Standing::of(cell), references.entry(class).or_default());
        if of_class.iter().all(|(of, _)| *of != standing) {
            of_class.push((standing, index));
        }
    }
    let mut found = vec![None; cells.len()];
    for (index, cell, class) in known() {
        let of_class = references.get(class).into_iter().flatten().copied();
        found[index] = preferred(cell.batch_division(), of_class);
    }
    found
}

/// A measured record of a notebook whose losses others may be compared with.
pub struct Reference {
    /// Hash of the class.
    class: blake3::Hash,
    standing: Standing,
    record: IndexEntry,
}

/// The measured reference records of a notebook, in its order: the newest stands last. A record whose cell this version
/// cannot read is none.
pub fn references(index: &Index) -> Vec<Reference> {
    // Many records have the same cell.
    let mut of_cells: HashMap<*const Value, Option<(blake3::Hash, Standing)>> = HashMap::new();
    let of = |record: &IndexEntry| {
        let known = of_cells.entry(Arc::as_ptr(&record.cell)).or_insert_with(|| {
            // Most cells are of another strategy, and need not be read to know that.
            record.setting(STRATEGY).filter(|strategy| *strategy == "ddp")?;
            let cell = of_plain(&record.cell).ok().filter(is_reference)?;
            Some((blake3::hash(class(&cell).as_bytes()), Standing::of(&cell)))
        });
        known.map(|(class, standing)| Reference { class, standing, record: record.clone() })
    };
    index.records.iter().filter(|record| record.is_measured()).filter_map(of).collect()
}

/// The record of the notebook with whose losses this cell's are compared: the newest that fits.
pub fn reference_in_notebook<'a>(
    cell: &Cell,
    references: &'a [Reference],
    fits: impl Fn(&IndexEntry) -> bool,
) -> Option<&'a IndexEntry> {
    let own = blake3::hash(class(cell).as_bytes());
    let of_class = references.iter().rev().filter(|other| other.class == own && fits(&other.record));
    preferred(cell.batch_division(), of_class.map(|other| (other.standing, &other.record)))
}

/// Compares a record with its reference's, when there is one.
pub fn compare(record: &Record, reference: Option<&Record>, precision: &Precision) -> Parity {
    let Some(reference) = reference else { return Parity::default() };
    let mut parity = Parity { reference: Some(reference.id.clone()), ..Parity::default() };
    if reference.key == record.key {
        return Parity { verdict: Verdict::Reference, ..parity };
    }
    let Some(compared) = compare_points(precision, &points(&record.steps), &points(&reference.steps)) else {
        parity
            .extra
            .insert("reason".into(), "the losses cannot be compared: other steps, or a loss that is not finite".into());
        return Parity { verdict: Verdict::Failed, ..parity };
    };
    let [tolerance, norm_tolerance] = compared.allowed;
    parity.max_loss_difference = Some(compared.loss);
    parity.extra.insert("tolerance".into(), tolerance.into());
    parity.extra.insert("grad_norm_tolerance".into(), norm_tolerance.into());
    parity.extra.insert("max_grad_norm_difference".into(), compared.norm.into());
    parity.verdict = match compared.outside {
        Some(outside) => {
            parity.extra.insert("reason".into(), outside.into());
            Verdict::Failed
        }
        None if is_identical(&record.steps, &reference.steps) => Verdict::Identical,
        None => Verdict::WithinTolerance,
    };
    parity
}

fn points(steps: &[Step]) -> Vec<Point> {
    let point = |step: &Step| Point {
        step: step.step,
        loss: step.loss,
        norm: step.grad_norm,
        lr: step.lr,
        skipped: step.is_skipped(),
    };
    steps.iter().map(point).collect()
}

/// Whether all losses and gradient norms are equal to the bit.
fn is_identical(a: &[Step], b: &[Step]) -> bool {
    difference(a, b, |step| step.loss) == Some(0.0) && difference(a, b, norm) == Some(0.0)
}

/// The gradient norm; nothing for a step that was skipped because it had none.
pub fn norm(step: &Step) -> f64 {
    if step.is_skipped() { 0.0 } else { step.grad_norm }
}

/// Largest relative difference over the steps; absent when the runs are not of the same steps or a value is not finite.
pub fn difference(a: &[Step], b: &[Step], value: impl Fn(&Step) -> f64) -> Option<f64> {
    if a.is_empty() || a.len() != b.len() {
        return None;
    }
    a.iter().zip(b).try_fold(0.0f64, |most, (a, b)| {
        let (x, y) = (value(a), value(b));
        let relative = if x == y { 0.0 } else { (x - y).abs() / y.abs().max(f64::MIN_POSITIVE) };
        (a.step == b.step && x.is_finite() && y.is_finite()).then(|| most.max(relative))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::{Path, PathBuf};
    use zbench_config::document::Document;
    use zbench_config::files::Files;
    use zbench_config::grid::expand;
    use zbench_config::resolve::Context;
    use zbench_engine::config::{
        AttentionKind, Base, Checkpointing, Degrees, MemoryTier, PipelineSchedule, Priced, TokenType, Wire,
    };
    use zbench_engine::planner::Planner;
    use zbench_kernels::DType;
    use zbench_predict::planned::plan;

    /// One global batch of 8 sequences, divided in three ways; ddp divides it in two of them.
    const GRID: &str = r#"
name = "twins"
[model]
family = "llama"
hidden_size = 32
intermediate_size = 64
num_hidden_layers = 2
num_attention_heads = 2
vocab_size = 64
max_position_embeddings = 64
[train]
seq_len = 16
micro_batch = 2
global_batch = 8
steps = 2
untimed_steps = 1
[hardware]
threads_per_rank = 1
[grid]
"parallel.ranks" = [1, 2, 4]
"parallel.strategy" = ["ddp", "zero3"]
[[grid.exclude]]
"parallel.ranks" = 4
"parallel.strategy" = "ddp"
[[grid.include]]
"parallel.ranks" = 4
"parallel.tensor" = 2
"#;

    fn planned() -> Vec<Planned> {
        let document = Document::parse(Path::new("test.toml"), GRID, &[]).unwrap();
        let context = Context::new(PathBuf::new(), 2);
        let cells = expand(&document, &[], 100, &context, &mut Files::default()).unwrap();
        cells.into_iter().map(|cell| plan(&Planner::default(), cell, None)).collect()
    }

    /// A ddp cell of one rank with 8 sequences in one micro-batch, changed.
    fn changed(change: impl FnOnce(&mut Cell)) -> Cell {
        let mut cell = planned()[0].cell().unwrap().clone();
        (cell.train.micro_batch, cell.train.accumulation) = (8, 1);
        change(&mut cell);
        cell
    }

    fn divided(cell: &mut Cell, [ranks, micro_batch, accumulation]: [usize; 3]) {
        cell.parallel.ranks = ranks;
        (cell.train.micro_batch, cell.train.accumulation) = (micro_batch, accumulation);
    }

    fn evaluated(cell: &mut Cell, batches: usize, share: f64) {
        cell.watch = Some(Watch { evaluation: Some(Evaluation { every: 1, batches, share }), divergence: None });
    }

    fn with_parallelism(division: [usize; 3], degrees: Degrees) -> Cell {
        changed(|cell| {
            divided(cell, division);
            cell.parallel.degrees = degrees;
        })
    }

    fn priced(priced: Priced) -> Cell {
        changed(|cell| cell.priced = Some(Box::new(priced)))
    }

    #[test]
    fn cells_that_train_the_same_are_one_class() {
        let none = Degrees::default;
        let same = [
            ("2 ranks", changed(|cell| divided(cell, [2, 4, 1]))),
            ("4 ranks, accumulation", changed(|cell| divided(cell, [4, 1, 2]))),
            ("accumulation", changed(|cell| divided(cell, [1, 1, 8]))),
            ("zero3", changed(|cell| cell.parallel.strategy = Strategy::Zero3)),
            ("recomputation", changed(|cell| cell.memory.checkpointing = Checkpointing::Full)),
            ("attention", changed(|cell| cell.memory.attention = AttentionKind::Naive)),
            ("threads", changed(|cell| cell.hardware.threads_per_rank = 2)),
            ("reading ahead", changed(|cell| cell.read_ahead = 0)),
            ("tensor", with_parallelism([4, 4, 1], Degrees { tensor: 2, sequence: 2, ..none() })),
            ("pipeline, context", with_parallelism([12, 2, 2], Degrees { pipeline: 3, context: 2, ..none() })),
            ("experts", with_parallelism([4, 2, 1], Degrees { expert: 4, ..none() })),
            ("offload", changed(|cell| cell.memory.offload_optimizer = MemoryTier::Host)),
        ];
        let base = changed(|_| {});
        for (what, other) in same {
            assert_eq!(class(&other), class(&base), "{what}");
            assert_eq!(Numerics::of(&other), Numerics::of(&base), "{what}");
        }
    }

    #[test]
    fn what_changes_the_training_is_another_class() {
        let quantised = Some(Wire::Int8);
        let tokens = Data::Tokens { path: "other.bin".into(), dtype: TokenType::U16, shuffle: false };
        let cells = [
            ("nothing", changed(|_| {})),
            ("global batch", changed(|cell| cell.train.micro_batch = 4)),
            ("ranks at one micro-batch", changed(|cell| cell.parallel.ranks = 2)),
            ("seed", changed(|cell| cell.train.seed += 1)),
            ("steps", changed(|cell| cell.train.steps += 1)),
            ("learning rate", changed(|cell| cell.train.lr *= 2.0)),
            ("sequence", changed(|cell| cell.train.seq_len = 8)),
            ("model", changed(|cell| cell.model.num_hidden_layers = 3)),
            ("data", changed(|cell| cell.data = tokens)),
            ("precision", changed(|cell| cell.precision = Precision::mixed(DType::Bf16))),
            ("type of reductions", changed(|cell| cell.precision.reduce = DType::Bf16)),
            ("frozen weights", changed(|cell| cell.lora.base = Some(Base::Nf4))),
            ("gathers", priced(Priced { gather_wire: quantised, ..Priced::default() })),
            ("reductions", priced(Priced { reduce_wire: quantised, ..Priced::default() })),
            ("evaluation", changed(|cell| evaluated(cell, 1, 0.1))),
            ("evaluation of other sequences", changed(|cell| evaluated(cell, 2, 0.1))),
            ("other data held out", changed(|cell| evaluated(cell, 1, 0.2))),
        ];
        for (index, (what, cell)) in cells.iter().enumerate() {
            for (before, other) in &cells[..index] {
                assert_ne!(class(cell), class(other), "{what} and {before}");
            }
        }
        // Two ranks look at the same 8 sequences in two micro-batches of 2.
        let shared = changed(|cell| {
            divided(cell, [2, 2, 2]);
            evaluated(cell, 2, 0.1);
        });
        assert_eq!(class(&shared), class(&changed(|cell| evaluated(cell, 1, 0.1))));
    }

    /// What reads records reads those of stages, too.
    #[test]
    fn plain_data_of_stages_is_read_back() {
        for schedule in [PipelineSchedule::OneFOneB, PipelineSchedule::ZbH1] {
            let degrees = Degrees { pipeline: 2, pipeline_schedule: schedule, ..Degrees::default() };
            let mut cell = with_parallelism([4, 2, 2], degrees);
            (cell.model.tie_word_embeddings, cell.parallel.pipeline_split) = (false, vec![0, 1]);
            assert_eq!(of_plain(&zbench_config::grid::plain(&cell)).unwrap(), cell);
        }
    }

    #[test]
    fn a_reference_without_stages_comes_first() {
        let division = changed(|_| {}).batch_division();
        let other = BatchDivision { data_ranks: 7, ..division };
        let of = |division, has_stages| Standing { division, has_stages };
        let chosen = |list: &[Standing]| preferred(division, list.iter().copied().zip(0..));
        assert_eq!(chosen(&[of(division, true), of(other, false), of(division, false)]), Some(2));
        assert_eq!(chosen(&[of(division, true), of(other, false)]), Some(1));
        assert_eq!(chosen(&[of(other, true), of(division, true)]), Some(1));
        assert_eq!(chosen(&[]), None);
    }

    #[test]
    fn the_reference_divides_the_batch_as_the_cell_does_if_there_is_one() {
        let cells = planned();
        let described = |planned: &Planned| {
            let cell = planned.cell().unwrap();
            (cell.parallel.ranks, cell.parallel.strategy, cell.batch_division().data_ranks)
        };
        let (ddp, zero3) = (Strategy::Ddp, Strategy::Zero3);
        let wanted = [
            ((1, ddp, 1), Some(0)),
            ((1, zero3, 1), Some(0)),
            ((2, ddp, 2), Some(2)),
            ((2, zero3, 2), Some(2)),
            ((4, zero3, 4), Some(0)),
            ((4, ddp, 2), Some(2)),
        ];
        let references = references_of(&cells);
        let found: Vec<_> = cells.iter().map(described).zip(references.iter().copied()).collect();
        assert_eq!(found, wanted);
        let one_by_one: Vec<_> = cells.iter().map(|planned| reference_of(planned.cell().unwrap(), &cells)).collect();
        assert_eq!(one_by_one, references);
    }
}
