//! What a run gives back, and what a plan predicts of it: plain data, the same names on both sides.

pub use crate::action::span::{BySpan, Span};
use crate::config::MemoryTier;
use crate::data::{Counts, Found};
pub use crate::memory::moves::Transfer;
use crate::memory::tiers::ByTier;
pub use crate::observe::pass_times::{PassKind, PassTime};
use crate::observe::trace::StepTrace;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
pub use zbench_collectives::Traffic;
use zbench_collectives::link::LinkUse;
use zbench_kernels::{Category, Ledger, OutOfMemory};

/// One training step, as all ranks agree on it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// 1 for the first, untimed ones included.
    pub step: u64,
    /// Whether it counts for timings.
    pub timed: bool,
    /// Mean cross-entropy over the tokens of the global batch, before the update.
    pub loss: f64,
    /// Global L2 norm of the mean gradient before clipping, the loss scale taken out; not finite in a skipped step.
    #[serde(with = "maybe_infinite")]
    pub grad_norm: f64,
    /// Learning rate of this step; of a skipped step that which its update would have had.
    pub lr: f64,
    /// Wall time of the slowest rank.
    pub ms: f64,
    /// Tokens of the global batch; padding is not among them.
    pub tokens: u64,
    /// What its sequences hold, where they are of documents.
    pub counts: Option<Counts>,
    /// The loss scale of the step, where there is one.
    pub loss_scale: Option<f64>,
    /// The scaled gradients overflowed: nothing was updated.
    pub skipped: bool,
}

/// A number that JSON may not have: absent in place of what is not finite.
mod maybe_infinite {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(number: &f64, to: S) -> Result<S::Ok, S::Error> {
        Some(*number).filter(|number| number.is_finite()).serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
        Ok(Option::deserialize(from)?.unwrap_or(f64::INFINITY))
    }
}

/// What a rank that came to its end has to report: its numbers, and what computed.
pub type Report = (RankReport, String);

/// What a run tells of while it trains; rank 0 speaks, and of traces and memory each rank.
#[derive(Clone, Debug, PartialEq)]
pub enum Happening {
    /// A step has ended.
    Step(Step),
    /// The loss on data that is not trained on.
    Evaluated(Evaluated),
    /// It goes on from a checkpoint.
    Resumed(Resumed),
    /// A checkpoint is complete.
    Saved(Saved),
    /// The arena of a rank has held so many bytes at its most: more than when that rank said this last.
    Peak(u64),
    /// What a rank did in a step, where that is traced.
    Traced(Box<StepTrace>),
}

/// What a run has done so far, as its checkpoints keep it: the run that goes on from one tells of it again.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct History {
    /// Every step.
    pub steps: Vec<Step>,
    /// Every evaluation.
    pub evaluations: Vec<Evaluated>,
}

impl History {
    /// Leaves away what was done after this step.
    pub fn end_at(&mut self, step: u64) {
        self.steps.retain(|done| done.step <= step);
        self.evaluations.retain(|done| done.step <= step);
    }
}

/// An evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evaluated {
    /// Steps done before it.
    pub step: u64,
    /// Mean cross-entropy over all its tokens that have a loss.
    pub loss: f64,
    /// So many of them, over all ranks.
    pub tokens: u64,
    /// Wall time of rank 0.
    pub ms: f64,
}

/// What a run went on from.
#[derive(Clone, Debug, PartialEq)]
pub struct Resumed {
    /// Steps done before it.
    pub step: u64,
    /// The checkpoint.
    pub dir: PathBuf,
    /// Bytes that rank 0 read.
    pub bytes: u64,
    /// Wall time of rank 0.
    pub ms: f64,
    /// What was done before it; empty where the checkpoint does not say.
    pub history: History,
    /// Settings that were others until then, as `train.lr was 0.001`; how it is split and saved is none of them.
    pub changed: Vec<String>,
}

/// A checkpoint that is complete.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Saved {
    /// Steps done before it.
    pub step: u64,
    /// Its folder.
    pub dir: PathBuf,
    /// Bytes of all ranks.
    pub bytes: u64,
    /// From the wish to the rename.
    pub ms: f64,
    /// The part of it in which rank 0 could not train.
    pub stall_ms: f64,
    /// Host memory that rank 0 took for copies.
    pub copied_bytes: u64,
}

/// What filling the first weights took on one rank: bytes of host memory by the loader's own account, which is exact.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Loaded {
    /// Written into shards and master weights: this rank's share, which stays.
    pub kept_bytes: u64,
    /// The most that was held at a time, with what of the share was filled by then.
    pub peak_bytes: u64,
    /// Read from files.
    pub read_bytes: u64,
    /// Received from rank 0.
    pub received_bytes: u64,
    /// Wall time.
    pub ms: f64,
}

/// What a rank says to whoever measures its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadPhase {
    /// Its memory is allocated, no weight is read.
    LoadingBegins,
    /// All of its weights are in place, and what it held beside them is freed.
    LoadingEnds,
    /// A step has ended, on every rank.
    StepEnds {
        /// Whether it counts.
        timed: bool,
    },
}

/// Who is told of it.
pub type Probe<'a> = Option<&'a (dyn Fn(LoadPhase) + Sync)>;

/// What one rank reports.
#[derive(Clone, Debug)]
pub struct RankReport {
    /// Which rank.
    pub rank: usize,
    /// What its arenas were asked for.
    pub ledgers: ByTier<Ledger>,
    /// Bytes of the device's arena ever touched: the peak, and fragmentation.
    pub reserved_bytes: u64,
    /// Wall time of each timed step.
    pub step_ms: Vec<f64>,
    /// The part of it from the first forward to the last backward.
    pub pipeline_ms: Vec<f64>,
    /// When the passes of a stage were, in nanoseconds since 1970: means over the timed steps, so that ranks are told apart alone
    /// by their differences. Empty without a pipeline.
    pub passes: Vec<PassTime>,
    /// Mean time per timed step.
    pub spans_ms: BySpan<f64>,
    /// Collectives per step (mean over the timed steps).
    pub traffic: Vec<Traffic>,
    /// Moves between tiers per step (mean over the timed steps).
    pub moves: Vec<Transfer>,
    /// How its file was read and written, where state lives on a disk.
    pub disk: Option<DiskReport>,
    /// How its moves fared on an emulated link between device and host, where there is one, in all timed steps.
    pub host_link: Option<LinkUse>,
    /// What its source found in documents, where it has some.
    pub documents: Option<Found>,
    /// It was stopped before its last step, because that was wanted.
    pub stopped: bool,
    /// What loading took, where weights were loaded.
    pub loaded: Option<Loaded>,
}

/// How long a pipeline takes in a step, without what comes before and behind it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PipelineTime {
    /// From a rank's first forward to its last backward, of the rank that takes longest.
    pub ms: f64,
    /// The share of this time, over all ranks, in which ranks do nothing for a micro-batch: see [`Span::is_work`].
    pub bubble: f64,
}

impl PipelineTime {
    /// Of ranks' times from the first forward to the last backward, and in work on micro-batches; nothing where no rank
    /// took any.
    pub fn of(ranks: impl IntoIterator<Item = [f64; 2]>) -> Option<PipelineTime> {
        let (mut count, mut longest, mut busy) = (0usize, 0.0f64, 0.0);
        for [ms, busy_ms] in ranks {
            (count, longest, busy) = (count + 1, longest.max(ms), busy + busy_ms);
        }
        let bubble = 1.0 - busy / (count as f64 * longest);
        (longest > 0.0).then_some(PipelineTime { ms: longest, bubble })
    }
}

impl RankReport {
    /// Mean time per timed step from the first forward to the last backward, and in work on micro-batches: see
    /// [`PipelineTime::of`].
    pub fn pipeline(&self) -> [f64; 2] {
        let ms = self.pipeline_ms.iter().sum::<f64>() / self.pipeline_ms.len().max(1) as f64;
        [ms, self.spans_ms.iter().filter(|(span, _)| span.is_work()).map(|(_, ms)| ms).sum()]
    }

    /// What the device's arena was asked for.
    pub fn memory(&self) -> &Ledger {
        &self.ledgers[MemoryTier::Device]
    }
}

/// How a rank's file on a disk was read and written.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DiskReport {
    /// What carried transfers out: `io_uring` or `threads`.
    pub engine: String,
    /// Whether around the page cache (O_DIRECT).
    pub direct: bool,
    /// Why not in the better way, one reason each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub why: Vec<String>,
    /// Bytes per step, in whole pages (mean over the timed steps).
    pub read_bytes: f64,
    /// The same of what was written.
    pub written_bytes: f64,
    /// Time per step in which a transfer was under way.
    pub busy_ms: f64,
}

/// A finished run.
#[derive(Clone, Debug)]
pub struct Run {
    /// Every step.
    pub steps: Vec<Step>,
    /// Every rank.
    pub ranks: Vec<RankReport>,
    /// What computed, e.g. `cpu avx512`.
    pub kernels: String,
}

/// Why a run ended early. Steps done before it are in `steps`.
#[derive(Clone, Debug)]
pub struct Failure {
    /// What happened.
    pub cause: Cause,
    /// The steps that were finished.
    pub steps: Vec<Step>,
    /// The arenas, where ranks still could report.
    pub ledgers: Vec<ByTier<Ledger>>,
}

/// What ended a run.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Cause {
    /// A rank's arena is full.
    #[error("rank {rank}: {error}")]
    OutOfMemory {
        /// The first rank that was refused.
        rank: usize,
        /// What it asked for.
        error: OutOfMemory,
    },
    /// Loss or gradient norm is not a finite number, or gradients overflow at the smallest loss scale.
    #[error("step {step}: {}", diverged(what, *value))]
    Diverged {
        /// The step.
        step: u64,
        /// `loss`, `grad_norm` or `loss_scale`.
        what: &'static str,
        /// Its value.
        value: f64,
    },
    /// The loss has long been far above its smallest.
    #[error("{0}")]
    Worse(Worse),
    /// Anything else: a refused kernel, an unreadable file, a panic, a rank that did not arrive.
    #[error("rank {rank}: {reason}")]
    Failed {
        /// The first rank that failed.
        rank: usize,
        /// Why.
        reason: String,
    },
}

/// A loss that has long been far above its smallest.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error(
    "step {step}: for {steps} steps the loss has been at least {factor} times its smallest: it is {loss:.4}, and was {smallest:.4} \
     in step {at}; lower train.lr, set train.clip_norm or train.lr_warmup_steps, or raise train.divergence_factor"
)]
pub struct Worse {
    /// The last step.
    pub step: u64,
    /// Its loss.
    pub loss: f64,
    /// The smallest loss before.
    pub smallest: f64,
    /// The step that had it.
    pub at: u64,
    /// What the run is held to: so many times the smallest …
    pub factor: f64,
    /// … for so many steps.
    pub steps: u64,
}

fn diverged(what: &str, value: f64) -> String {
    match what {
        "loss_scale" => format!(
            "gradients overflow at the smallest loss scale, {value}; lower train.lr or precision.min_loss_scale, or \
             compute in bf16"
        ),
        _ => format!("{what} is {value}; lower train.lr, or set train.clip_norm"),
    }
}

/// What a plan says a run of it will take.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Estimate {
    /// Live and peak bytes of the largest rank, by tier and category.
    pub ledgers: ByTier<Ledger>,
    /// The same of a rank of each stage of the pipeline; of one stage where there is none.
    pub stages: Vec<ByTier<Ledger>>,
    /// Collectives per step of the largest rank.
    pub traffic: Vec<Traffic>,
    /// Moves between tiers per step of the largest rank.
    pub moves: Vec<Transfer>,
    /// Floating-point operations of one step over all ranks.
    pub flops: Flops,
    /// Trainable and all parameters of the model, unpadded.
    pub trainable_parameters: u64,
    /// All parameters of the model, unpadded.
    pub parameters: u64,
    /// Those that a token passes through: all, but of experts only the ones it goes to.
    pub active_parameters: u64,
    /// Bytes that those which do not train are kept in, whole and unpadded.
    pub base_bytes: u64,
}

impl Estimate {
    /// Live and peak bytes on the device.
    pub fn memory(&self) -> &Ledger {
        &self.ledgers[MemoryTier::Device]
    }

    /// Peak bytes on the device of weights, gradients and the optimizer's state, which are there as long as the run.
    pub fn state_bytes(&self) -> u64 {
        [Category::Parameters, Category::Gradients, Category::Optimizer]
            .map(|category| self.peak(category))
            .iter()
            .sum()
    }

    /// Bytes of host memory that a rank takes on a processor, whose device has the same memory as the host.
    pub fn ram_bytes(&self) -> u64 {
        ram_bytes(&self.ledgers)
    }

    /// The same of so many ranks, which are spread evenly over the stages.
    pub fn ram_bytes_of(&self, ranks: usize) -> u64 {
        let of_each_stage = self.stages.iter().fold(0, |sum: u64, stage| sum.saturating_add(ram_bytes(stage)));
        let bytes = u128::from(of_each_stage) * ranks as u128 / self.stages.len().max(1) as u128;
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    /// The stage with the largest peak on the device, from 0, and the number of stages; nothing without a pipeline.
    pub fn largest_stage(&self) -> Option<[u64; 2]> {
        let peak = |stage: &ByTier<Ledger>| stage[MemoryTier::Device].total_peak();
        let (largest, _) = self.stages.iter().enumerate().rev().max_by_key(|(_, stage)| peak(stage))?;
        (self.stages.len() > 1).then_some([largest as u64, self.stages.len() as u64])
    }

    /// Predicted peak on the device by category.
    pub fn peak(&self, category: Category) -> u64 {
        self.memory().peak(category)
    }
}

fn ram_bytes(ledgers: &ByTier<Ledger>) -> u64 {
    ledgers[MemoryTier::Device].total_peak().saturating_add(ledgers[MemoryTier::Host].total_peak())
}

/// Floating-point operations of one step over all ranks, by convention (conventions in docs/flops.md).
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Flops {
    /// Exact matrix products with the causal half of attention, no recomputation (Megatron's convention): `mfu`.
    pub model: f64,
    /// PaLM's 6N + 12LHQT: `mfu_palm`.
    pub palm: f64,
    /// `model` and what the checkpointing policy and flash attention's backward really repeat: `hfu`.
    pub hardware: f64,
    /// `model` term by term.
    pub ledger: Vec<(String, f64)>,
    /// Tokens of the step.
    pub tokens: u64,
}
