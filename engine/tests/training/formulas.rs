//! What a step takes, by closed formulas that are written out here from the model's sizes, and nothing else: no layout, no plan, no
//! helper of the engine. A plan's estimate and a run go through the same code, so that they agree says little; these formulas say
//! that both are right. Each is held against both: the estimate, and what arenas, communicators and kernels of a real run counted.

mod activations;
mod flops;
mod states;
mod traffic;

use crate::training::accounting::measure;
use crate::training::support::*;
use zbench_collectives::Traffic;
use zbench_engine::config::*;
use zbench_kernels::{DType, Ledger};

/// Bytes to which every buffer is rounded up, one line of the cache: docs/memory-accounting.md.
const GRANULE: usize = 64;

/// Bytes that a buffer counts for.
fn bytes(dtype: DType, elements: usize) -> u64 {
    (dtype.size() * elements).next_multiple_of(GRANULE) as u64
}

/// The model's sizes, in the letters of Korthikanti et al. (2022) where they have one.
#[derive(Clone, Copy)]
struct Sizes {
    /// Hidden size.
    h: usize,
    /// Width of the MLP.
    f: usize,
    /// Query heads.
    a: usize,
    /// Elements of all query heads, of all key heads.
    q: usize,
    kv: usize,
    /// Vocabulary.
    v: usize,
    /// Blocks.
    layers: usize,
    /// Tokens of a sequence, sequences of a micro-batch.
    s: usize,
    b: usize,
}

impl Sizes {
    fn of(cell: &Cell) -> Sizes {
        let (m, t) = (&cell.model, &cell.train);
        Sizes {
            h: m.hidden_size,
            f: m.intermediate_size,
            a: m.num_attention_heads,
            q: m.num_attention_heads * m.head_dim,
            kv: m.num_key_value_heads * m.head_dim,
            v: m.vocab_size,
            layers: m.num_hidden_layers,
            s: t.seq_len,
            b: t.micro_batch,
        }
    }

    /// Tokens of a micro-batch.
    fn n(&self) -> usize {
        self.s * self.b
    }
}

/// Elements of a unit: of what trains, and of what is frozen.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Unit {
    trains: usize,
    frozen: usize,
}

/// The embedding, each block, the head: elements of their tensors, added up by hand.
fn units(cell: &Cell) -> Vec<Unit> {
    let (sizes, form) = (Sizes::of(cell), cell.model.form);
    let Sizes { h, f, q, kv, v, layers, .. } = sizes;
    let one = |is_there: bool, elements: usize| if is_there { elements } else { 0 };
    let norm = |width: usize| width + one(form.norm_bias, width);
    let gates = match form.mlp {
        Mlp::Swiglu | Mlp::GegluTanh => 2,
        Mlp::Gelu | Mlp::GeluTanh => 1,
    };
    let norms = if form.order == Order::Parallel { 1 } else { 2 };
    let embedding = v * h
        + one(form.positions == Positions::Learned, cell.model.max_position_embeddings * h)
        + one(form.embedding_norm, norm(h));
    let attention = h * (q + 2 * kv) + q * h + one(form.qkv_bias, q + 2 * kv) + one(form.output_bias, h);
    let heads = one(form.qk_norm, 2 * norm(cell.model.head_dim));
    let mlp = match &cell.model.experts {
        Some(experts) => h * experts.num_experts * (1 + 3 * experts.moe_intermediate_size),
        None => (gates + 1) * h * f + one(form.mlp_bias, gates * f + h),
    };
    let block = norms * norm(h) + attention + heads + mlp;
    let head = norm(h) + one(!cell.model.tie_word_embeddings, v * h);
    // LoRA (Hu et al., 2021): A is rank x in, B is out x rank; everything else is frozen.
    let adapter = |target: &Linear| {
        let (input, out) = match target {
            Linear::QProj => (h, q),
            Linear::KProj | Linear::VProj => (h, kv),
            Linear::OProj => (q, h),
            Linear::GateProj | Linear::UpProj => (h, f),
            Linear::DownProj => (f, h),
        };
        cell.lora.rank * (input + out)
    };
    let whole = |elements: usize| match cell.lora.rank {
        0 => Unit { trains: elements, frozen: 0 },
        _ => Unit { trains: 0, frozen: elements },
    };
    let block = match cell.lora.rank {
        0 => whole(block),
        _ => Unit { trains: cell.lora.targets.iter().map(adapter).sum(), frozen: block },
    };
    let mut units = vec![whole(embedding)];
    units.extend(vec![block; layers]);
    units.push(whole(head));
    units
}

/// A unit's tensors lie in one flat, which is padded so that every rank's part begins on a line of the cache whatever type the part
/// is kept in: to ranks times 64 bytes of the narrowest type in use (docs/sharding.md, limits).
fn padded(cell: &Cell, elements: usize) -> usize {
    let p = &cell.precision;
    let types = [p.parameters, p.compute, p.gradients, p.reduce, p.optimizer, DType::F32];
    let base = if cell.lora.base == Some(Base::Bf16) { Some(DType::Bf16) } else { None };
    let narrowest = types.into_iter().chain(p.master).chain(base).map(DType::size).min().unwrap();
    elements.next_multiple_of(cell.parallel.ranks * GRANULE / narrowest)
}

/// Units with the padding of both flats.
fn padded_units(cell: &Cell) -> Vec<Unit> {
    let pad = |unit: Unit| Unit { trains: padded(cell, unit.trains), frozen: padded(cell, unit.frozen) };
    units(cell).into_iter().map(pad).collect()
}

/// Into how many parts a strategy cuts parameters, gradients and optimizer states: Rajbhandari et al. (2020), figure 1 (P_os, P_os+g,
/// P_os+g+p); Zhao et al. (2023), section 3.2, for FSDP and its hybrid.
fn parts(cell: &Cell) -> [usize; 3] {
    let (n, group) = (cell.parallel.ranks, cell.parallel.shard);
    match cell.parallel.strategy {
        Strategy::Ddp => [1, 1, 1],
        Strategy::Zero1 => [1, 1, n],
        Strategy::Zero2 => [1, n, n],
        Strategy::Zero3 | Strategy::Fsdp | Strategy::FsdpGradOp => [n, n, n],
        Strategy::Hsdp => [group, group, group],
        Strategy::HsdpFullOptimizer => [group, group, n],
    }
}

/// The account of a plan and those of every rank of a run, each with its name.
fn accounts(cell: &Cell) -> Vec<(String, Ledger, Vec<Traffic>)> {
    let plan = plan(cell);
    let estimate = (
        "the plan".to_string(),
        plan.stage_plan_of(0).estimate.memory().clone(),
        plan.stage_plan_of(0).estimate.traffic.clone(),
    );
    let ranks = measure(cell, &plan).into_iter();
    let ranks = ranks.map(|report| (format!("rank {}", report.rank), report.memory().clone(), report.traffic));
    std::iter::once(estimate).chain(ranks).collect()
}

/// All f32; mixed with a master copy; the same with narrow gradients; f32 weights that are read in bf16; all bf16.
fn precisions() -> [(&'static str, Precision); 6] {
    let (bf16, mixed) = (DType::Bf16, Precision::mixed(DType::Bf16));
    [
        ("f32", Precision::F32),
        ("mixed", mixed),
        ("mixed with narrow gradients", Precision { gradients: bf16, reduce: bf16, ..mixed }),
        ("mixed with a narrow wire", Precision { reduce: bf16, ..mixed }),
        ("f32 read in bf16", Precision { parameters: DType::F32, master: None, ..mixed }),
        ("bf16", Precision::all(bf16)),
    ]
}

/// Adapters on two layers over a base in bf16.
fn adapted(cell: &mut Cell) {
    let targets = vec![Linear::QProj, Linear::DownProj];
    cell.lora = Lora { rank: 2, alpha: 4.0, targets, base: Some(Base::Bf16), ..Lora::default() };
}
