//! What a stage holds at each moment that can be its peak, and what lives on the host and on disk.

use super::blocks::{Kept, Which, block, for_weights, stays};
use super::parameters::{Counts, Split};
use super::stages::Part;
use super::{Category, Habits, Moment, Stage, Term};
use crate::job::{Attention, Job, Kind, Loss, Order, Peft, Place, Recompute};

/// Ranks over which experts' state is split where the rest is split over `ranks`.
fn expert_ranks(job: &Job, ranks: usize) -> f64 {
    let degrees = &job.degrees;
    let spread = (degrees.tensor.max(1) as f64) / (degrees.expert.max(1) * degrees.expert_tensor.max(1)) as f64;
    if ranks <= 1 { 1.0 } else { (ranks as f64 * spread).max(1.0) }
}

fn term(category: Category, name: &'static str, formula: &'static str, bytes: f64) -> Term {
    Term { category, name, formula, bytes }
}

struct States {
    terms: Vec<Term>,
    /// Bytes on the device between steps.
    sum: f64,
    /// Of them gradients.
    gradients: f64,
}

/// What a rank holds of weights, gradients and optimizer state.
fn states(job: &Job, counts: &Counts, part: &Part) -> States {
    let own = counts.stage(job, part);
    let precision = &job.precision;
    let over =
        |bytes: f64, ranks: usize| bytes * (own.common / ranks.max(1) as f64 + own.experts / expert_ranks(job, ranks));
    let here = |place: Place| if place == Place::Device { 1.0 } else { 0.0 };
    let mut terms = Vec::with_capacity(16);
    match job.peft {
        Peft::None => {
            let weights = over(precision.weights.bytes(), job.sharding.parameters) * here(job.offload.parameters);
            terms.push(term(Category::Parameters, "weights", "bytes x parameters / ranks that split them", weights));
            let gradients = over(precision.gradients, job.sharding.gradients);
            // Offloaded optimizers take gradients away as they are made.
            let gradients = gradients * here(job.offload.optimizer);
            terms.push(term(Category::Gradients, "gradients", "bytes x parameters / ranks that split them", gradients));
            let optimizer = here(job.offload.optimizer);
            let master = over(precision.master, job.sharding.optimizer) * optimizer;
            let moments = over(precision.moments, job.sharding.optimizer) * optimizer;
            terms.push(term(Category::Optimizer, "master copy", "bytes x parameters / ranks that split them", master));
            terms.push(term(Category::Optimizer, "moments", "bytes x parameters / ranks that split them", moments));
        }
        Peft::Adapters { base, weight_bytes, .. } => {
            // Embedding, head and norms stay as they are where blocks are quantised.
            let blocks = own.all()
                - if part.first() { counts.embedding } else { 0.0 }
                - if part.last() { counts.head } else { 0.0 };
            let ends = own.all() - blocks;
            let outside = base.bytes().max(if base == job.precision.weights { 0.0 } else { 2.0 });
            let split = job.sharding.parameters.max(1) as f64;
            let dense = ((blocks - own.experts) * base.bytes() + ends * outside) / split;
            let experts = own.experts * job.frozen_expert_bytes() / expert_ranks(job, job.sharding.parameters);
            let weights = (dense + experts) * here(job.offload.parameters);
            terms.push(term(Category::Parameters, "frozen base", "bytes of its type x parameters / ranks", weights));
            let adapters = adapters(job, counts, part) / split;
            terms.push(term(
                Category::Parameters,
                "adapters",
                "bytes x their parameters / ranks",
                adapters * weight_bytes,
            ));
            let gradients = adapters * weight_bytes;
            terms.push(term(Category::Gradients, "gradients of adapters", "bytes x their parameters", gradients));
            let moments = 2.0 * weight_bytes * adapters;
            terms.push(term(Category::Optimizer, "moments of adapters", "2 x bytes x their parameters", moments));
        }
    }
    if job.sharding.parked > 1 && job.sharding.parameters > job.sharding.parked {
        let parked = own.all() * precision.compute.bytes() / job.sharding.parked as f64;
        terms.push(term(Category::Parameters, "second copy (hpZ)", "compute bytes x parameters / its group", parked));
    }
    let sum = terms.iter().map(|t| t.bytes).sum();
    let gradients = terms.iter().filter(|t| t.category == Category::Gradients).map(|t| t.bytes).sum();
    States { terms, sum, gradients }
}

/// Parameters of a stage's adapters.
fn adapters(job: &Job, counts: &Counts, part: &Part) -> f64 {
    let layers = job.model.layers as f64;
    counts.adapters * if layers > 0.0 { part.blocks() / layers.max(part.blocks()) } else { 1.0 }
}

/// Tensors of a stage's blocks for one micro-batch.
struct Tensors {
    /// That stay until backward, per micro-batch.
    kept: f64,
    /// A whole block's, the largest.
    block: f64,
    /// Those that a block's backward makes again.
    again: f64,
    /// Those that wait for the gradients of weights, per micro-batch.
    waiting: f64,
}

fn tensors(job: &Job, habits: &Habits, part: &Part) -> Tensors {
    let mut all = Tensors { kept: 0.0, block: 0.0, again: 0.0, waiting: 0.0 };
    let ahead = if part.last() { job.model.ahead as f64 } else { 0.0 };
    let mut sparse = part.sparse;
    let mut dense = part.dense;
    if job.model.experts.is_some() {
        sparse += ahead;
    } else {
        dense += ahead;
    }
    for (count, which) in [(dense, Which::Dense), (sparse, Which::Sparse), (part.cross, Which::Cross)] {
        if count <= 0.0 {
            continue;
        }
        let whole: Kept = block(job, habits, which);
        let stay = stays(job, &whole, which);
        all.kept += count * stay;
        all.waiting += count * if job.degrees.schedule == Order::ZeroBubble { for_weights(job, which) } else { 0.0 };
        all.block = all.block.max(whole.all());
        let group = if let Recompute::Full { every, .. } = job.recompute { every.max(1) as f64 } else { 1.0 };
        let again = whole.all() * group - if group > 1.0 { 0.0 } else { stay.min(whole.all()) };
        let again = if matches!(job.recompute, Recompute::SomeBlocks { .. }) { whole.all() } else { again };
        all.again = all.again.max(if job.recompute == Recompute::None { 0.0 } else { again });
    }
    all
}

/// Tokens of a micro-batch on one context rank where the head is.
fn head_tokens(job: &Job) -> f64 {
    let seq = match job.model.kind {
        Kind::EncoderDecoder { decoder_seq, .. } => decoder_seq,
        _ => job.batch.seq,
    };
    job.batch.micro as f64 * seq as f64 / job.degrees.context.max(1) as f64
}

/// A stage at its peak.
pub fn stage(job: &Job, counts: &Counts, habits: &Habits, part: &Part) -> Stage {
    let own = counts.stage(job, part);
    let mut states = states(job, counts, part);
    let by_formula = states.sum;
    let c = job.precision.compute.bytes();
    let tensor = job.degrees.tensor.max(1) as f64;
    let sharded = elsewhere_at_home(job);
    let between = if job.degrees.sequence { tensor } else { 1.0 };
    let wide = head_tokens(job) * job.model.hidden as f64 / between * c;
    let made = tensors(job, habits, part);

    // What is held whenever tensors are.
    let mut common = Vec::with_capacity(8);
    let (mut flight, mut waiting) = (part.flight, part.waiting);
    // Behind the gradient of its input a micro-batch waits for those of the weights, which may take more than it held before: all blocks
    // but the last do when that one goes backward.
    if made.waiting > made.kept && job.degrees.schedule == Order::ZeroBubble {
        let behind = 1.0 - 1.0 / part.blocks().max(1.0);
        (flight, waiting) = (flight - behind, waiting + behind);
    }
    common.push(term(
        Category::Activations,
        "tensors kept for gradients of weights",
        "bytes of products' inputs and outputs x blocks x micro-batches that wait",
        made.waiting * waiting,
    ));
    if job.offload.activations == Place::Device {
        let name = "block tensors kept for backward";
        common.push(term(
            Category::Activations,
            name,
            "bytes per block x blocks x micro-batches in flight",
            made.kept * flight,
        ));
    } else {
        let two = 2.0 * made.kept / part.blocks().max(1.0);
        common.push(term(Category::Activations, "block tensors on their way to the host", "two blocks' tensors", two));
    }
    if sharded || (job.precision.weights.bytes() > c && job.peft == Peft::None) {
        gathered(job, counts, habits, part, own.all(), &mut common);
    }
    if habits.piped > 0.0 {
        let piped = habits.piped * wide * flight;
        common.push(term(
            Category::Communication,
            "stage inputs and outputs",
            "tensors x tokens x hidden x micro-batches in flight",
            piped,
        ));
    }
    if habits.copied > 0.0 && job.degrees.data > 1 && job.sharding.gradients <= 1 && job.peft == Peft::None {
        let bytes = habits.copied * job.precision.gradients * own.all();
        states.terms.push(term(Category::Communication, "reduction buckets", "gradient bytes x parameters", bytes));
        states.sum += bytes;
    }
    if habits.buckets > 0.0 {
        let whole = own.all() * job.precision.gradients.max(c);
        common.push(term(
            Category::Communication,
            "buckets",
            "elements of the software's buckets",
            habits.buckets.min(whole),
        ));
    }

    let mut loss = Vec::with_capacity(4);
    if part.last() && job.model.vocab > 0 {
        let logits = match job.loss {
            Loss::Chunked(tokens) => head_tokens(job).min(tokens as f64),
            _ => head_tokens(job),
        } * job.model.vocab as f64
            / tensor;
        loss.push(term(
            Category::Activations,
            "logits and their loss",
            "bytes per logit x tokens x vocabulary / tensor",
            logits * habits.logit,
        ));
        let kept = wide * (1.0 + habits.norm / 2.0);
        loss.push(term(Category::Activations, "last norm", "its input, output and what it keeps", kept));
        if between > 1.0 {
            loss.push(term(
                Category::Activations,
                "gathered input of the head",
                "bytes x tokens x hidden",
                wide * between,
            ));
        }
    }
    let mut backward = Vec::with_capacity(4);
    if made.again > 0.0 {
        backward.push(term(
            Category::Activations,
            "a block made again",
            "what its forward makes less what was kept",
            made.again,
        ));
    }
    backward.push(term(Category::Activations, "gradients inside a block", "of its widest tensors", widest(job, c)));
    if let Peft::Adapters { base, .. } = job.peft
        && base.bytes() < c
    {
        // Gate and up are one matrix of the shape, and two of the programs that quantise.
        let gates = if job.model.gated { 2.0 } else { 1.0 };
        backward.push(term(
            Category::Workspace,
            "a frozen matrix in the compute type",
            "compute bytes x the largest matrix",
            c * counts.matrix / gates,
        ));
    }
    if habits.stages && job.peft == Peft::None {
        common.push(term(
            Category::Gradients,
            "whole gradients of all micro-batches",
            "reduce bytes x parameters",
            job.precision.reduce * own.all(),
        ));
    } else if sharded && job.peft == Peft::None {
        let unit = habits.live.map_or(counts.unit, |_| counts.matrix) * (c + job.precision.reduce);
        backward.push(term(
            Category::Communication,
            "gradients of a unit",
            "compute and reduce bytes x a unit's parameters",
            unit,
        ));
    }
    let update = in_update(job, counts, habits, part, &own);
    let is_held = job.sharding.parameters <= 1;
    if is_held {
        // DeepSpeed 0.19.8 frees them after each group's update under stages 1 and 2, too; published peaks are as if it did not: without
        // them 90 % of rows are within 11.2 % in place of 9.2 %, and 5 of 7 runs that ran out of memory are found.
        states.sum += update.bytes;
        states.terms.push(update);
    }
    let sum = |terms: &[Term]| terms.iter().map(|t| t.bytes).sum::<f64>();
    let busy = sum(&common);
    // Where gradients are given back after the update, they come to be as backward gives tensors back: at its end all of
    // them are there and no tensor is.
    let late = if habits.late_gradients { states.gradients } else { 0.0 };
    let mut moments = vec![(Moment::Loss, busy + sum(&loss) - late), (Moment::Backward, busy + sum(&backward) - late)];
    let in_update = if is_held { 0.0 } else { update.bytes };
    if late > 0.0 || in_update > 0.0 {
        moments.push((Moment::Update, in_update));
    }
    let most = moments.iter().max_by(|a, b| a.1.total_cmp(&b.1)).map_or(Moment::Loss, |m| m.0);
    if late > 0.0 && most != Moment::Update {
        states.terms.retain(|t| t.category != Category::Gradients);
    }
    let workspace = term(Category::Workspace, "libraries", "the software's workspaces", habits.workspace);
    let after_step = states.sum + workspace.bytes;
    states.terms.push(workspace);
    match most {
        Moment::Loss => states.terms.extend(common.into_iter().chain(loss)),
        Moment::Backward => states.terms.extend(common.into_iter().chain(backward)),
        Moment::Update if !is_held => states.terms.push(update),
        Moment::Update => {}
    }
    let mut terms = states.terms;
    terms.retain(|t| t.bytes > 0.0);
    Stage {
        index: part.index,
        blocks: part.blocks().round() as usize,
        parameters: own.all(),
        moment: most,
        terms,
        states: by_formula,
        after_step,
        kept: made.kept,
    }
}

/// Copies in f32 of the own share's gradients, which an update frees again: of what is trained, where the master copy is wider.
fn in_update(job: &Job, counts: &Counts, habits: &Habits, part: &Part, own: &Split) -> Term {
    let is_made = job.offload.optimizer == Place::Device && job.precision.master >= 4.0;
    let trained = match job.peft {
        Peft::None => own.all(),
        Peft::Adapters { .. } => adapters(job, counts, part),
    };
    let share = trained / job.sharding.optimizer.max(1) as f64;
    let bytes = if is_made { habits.update * share.min(habits.update_group) } else { 0.0 };
    term(Category::Gradients, "own share's gradients in f32", "bytes x parameters / ranks", bytes)
}

/// Whether weights are not whole on the device between uses: split, or offloaded.
fn elsewhere_at_home(job: &Job) -> bool {
    job.sharding.parameters > 1 || job.offload.parameters != Place::Device
}

/// The gradient of a block's widest tensors, one of which and its input live at once.
fn widest(job: &Job, c: f64) -> f64 {
    let tokens =
        head_tokens(job).max(job.batch.micro as f64 * job.batch.seq as f64 / job.degrees.context.max(1) as f64);
    let tensor = job.degrees.tensor.max(1) as f64;
    let ffn = job.model.ffn as f64 * if job.model.gated { 2.0 } else { 1.0 };
    let scores = match job.attention {
        Attention::Naive => job.model.heads as f64 * job.batch.seq as f64,
        Attention::Flash(_) => 0.0,
    };
    c * tokens * (ffn.max(scores) / tensor + job.model.hidden as f64)
}

/// Weights where they are read, beside those at home.
fn gathered(job: &Job, counts: &Counts, habits: &Habits, part: &Part, all: f64, terms: &mut Vec<Term>) {
    let c = match job.peft {
        Peft::Adapters { base, .. } => {
            let block = counts.sparse;
            let experts = block.experts / block.all().max(1.0);
            base.bytes() * (1.0 - experts) + job.frozen_expert_bytes() * experts
        }
        Peft::None => job.precision.compute.bytes(),
    };
    if !elsewhere_at_home(job) {
        terms.push(term(Category::Parameters, "weights in the compute type", "compute bytes x parameters", c * all));
        return;
    }
    let kept = !job.sharding.reshard_after_forward && job.sharding.parameters > 1;
    if kept || habits.stages {
        terms.push(term(Category::Communication, "gathered weights", "compute bytes x parameters", c * all));
        return;
    }
    let units = counts.unit * habits.units;
    let units = c * habits.live.map_or(units, |live| all.min(counts.matrix.max(live)));
    terms.push(term(
        Category::Communication,
        "gathered units",
        "compute bytes x a unit's parameters x units at once",
        units,
    ));
    let mut ends = 0.0;
    if part.first() {
        ends += counts.embedding;
    }
    if part.last() {
        ends += counts.head;
    }
    if habits.root && ends > 0.0 {
        terms.push(term(
            Category::Communication,
            "gathered ends",
            "compute bytes x embedding and head",
            ends * job.precision.compute.bytes(),
        ));
    }
}

/// Bytes on the host and on disk, per rank.
pub fn elsewhere(job: &Job, counts: &Counts, _habits: &Habits) -> (f64, f64) {
    let model_ranks = job.degrees.pipeline.max(1) as f64;
    let own = counts.model / model_ranks;
    let over = |bytes: f64, ranks: usize| bytes * own / ranks.max(1) as f64;
    let precision = &job.precision;
    let (mut host, mut disk) = (0.0, 0.0);
    let mut put = |place: Place, bytes: f64| match place {
        Place::Device => {}
        Place::Host => host += bytes,
        Place::Disk => disk += bytes,
    };
    match job.peft {
        Peft::None => {
            let optimizer = over(precision.master + precision.moments, job.sharding.optimizer);
            put(job.offload.optimizer, optimizer + over(precision.gradients, job.sharding.gradients));
            put(job.offload.parameters, over(precision.weights.bytes(), job.sharding.parameters));
        }
        Peft::Adapters { base, weight_bytes, .. } => {
            // Gradients and both moments of what trains; the base has neither.
            let adapters = counts.adapters / model_ranks / job.sharding.parameters.max(1) as f64;
            put(job.offload.optimizer, 3.0 * weight_bytes * adapters);
            put(job.offload.parameters, over(base.bytes(), job.sharding.parameters) + weight_bytes * adapters);
        }
    }
    if job.offload.activations != Place::Device {
        let habits = super::habits(job);
        let part = super::stages::kinds(job)[0];
        put(job.offload.activations, tensors(job, &habits, &part).kept * part.flight);
    }
    (host, disk)
}
