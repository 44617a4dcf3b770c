//! Adapters over a base in few bits: bitsandbytes' numbers, PyTorch's runs, the same bits under every strategy, and the
//! bytes that the formulas say.

mod bytes;
mod vectors;

use crate::training::accounting::small;
use crate::training::families::{Oracle, shared_out, single};
use crate::training::identity::{assert_same, odd, strategies};
use crate::training::support::*;
use std::collections::BTreeMap;
use vectors::{as_i8, pack, same_bits};
use zbench_engine::config::*;
use zbench_engine::model::FlatKind;
use zbench_kernels::*;
use zbench_kernels_testing::{ByName, Reference};
use zbench_test_tiers as tiers;

const BASES: [Base; 3] = [Base::Nf4, Base::Nf4Single, Base::Int8];

fn adapters(base: Base) -> Lora {
    Lora { rank: 3, alpha: 6.0, dropout: 0.1, targets: Linear::ALL.to_vec(), base: Some(base), ..Lora::default() }
}

/// A base of `bf16-sharded` that bitsandbytes quantised, adapters on all its matrices: tests/fixtures/qlora/make.py.
#[test]
fn adapters_over_a_quantised_base_match_pytorch() {
    for name in ["nf4", "nf4-single", "int8"] {
        let oracle = Oracle::open(&format!("qlora/{name}"));
        let start = base_of(&oracle.cell());
        let theirs = single(&oracle.dir.join("base.safetensors"));
        assert_eq!(start.len(), theirs.len(), "{name}");
        for (tensor, theirs) in &theirs {
            let ours = &start.iter().find(|(own, _)| own == tensor).unwrap().1;
            let off = ours.iter().zip(theirs).filter(|(a, b)| (*a - *b).abs() > 1e-6 * b.abs()).count();
            // A code of a scale on the edge moves 64 elements.
            assert!(off == 0 || (name == "nf4" && off <= 64), "{name}: {tensor}: {off} elements differ");
        }
        oracle.assert_parity(&oracle.cell(), name);
    }
    let two = Strategy::ALL.map(|strategy| (strategy, 2));
    let four = [Strategy::Zero2, Strategy::Zero3, Strategy::Hsdp].map(|strategy| (strategy, 4));
    let ways: Vec<_> = two.into_iter().chain(four).collect();
    for [name, way] in tiers::combinations("training::quantised::a_quantised_base_matches_pytorch", [3, ways.len()]) {
        let (name, (strategy, ranks)) = (["nf4", "nf4-single", "int8"][name], ways[way]);
        let oracle = Oracle::open(&format!("qlora/{name}"));
        let cell = shared_out(oracle.cell(), strategy, ranks);
        oracle.assert_parity(&cell, &format!("{name}: {} on {ranks}", strategy.name()));
    }
}

/// The test above would notice another base: without quantisation the first loss is outside its tolerance.
#[test]
fn the_references_notice_another_base() {
    for name in ["nf4", "nf4-single", "int8"] {
        let oracle = Oracle::open(&format!("qlora/{name}"));
        let mut cell = oracle.cell();
        (cell.lora.base, cell.train.steps) = (None, 1);
        let (plain, wanted) = (run(&cell).steps[0].loss, oracle.numbers("loss")[0]);
        assert!(
            (plain - wanted).abs() > 2.0 * crate::training::families::LOSS * wanted,
            "{name}: {plain} and {wanted}"
        );
    }
}

/// The blocks' matrices at the start of a run, whole.
fn base_of(cell: &Cell) -> Tensors {
    let mut cell = cell.clone();
    (cell.train.steps, cell.train.lr) = (1, 0.0);
    let quantised: Vec<String> = {
        let plan = plan(&cell);
        let units = plan.layout.units.iter();
        units.flat_map(|unit| unit.tensors_of(FlatKind::Quantised).map(|t| t.stored_name().to_string())).collect()
    };
    run(&cell).weights.into_iter().filter(|(name, _)| quantised.contains(name)).collect()
}

/// Whatever ranks hold of a record, it is the one that the reference kernels make of the whole tensor: drawn, read,
/// turned and fused ones; several blocks of the second level.
#[test]
fn what_ranks_hold_is_what_the_reference_packs() {
    let mut drawn = small();
    (drawn.model.hidden_size, drawn.model.intermediate_size, drawn.model.num_hidden_layers) = (136, 250, 1);
    (drawn.model.num_attention_heads, drawn.model.head_dim) = (4, 34);
    let read = |name: &str| Oracle::open(name).cell();
    let cells = [
        ("drawn", drawn),
        ("llama", read("bf16-sharded")),
        ("gpt2", read("gpt2-exact")),
        ("falcon", read("falcon-new")),
    ];
    let ways = [(Strategy::Ddp, 1), (Strategy::Zero3, 2), (Strategy::Zero3, 7), (Strategy::Hsdp, 4)];
    let test = "training::quantised::what_ranks_hold_is_what_the_reference_packs";
    for [cell, base] in tiers::combinations(&format!("{test} (bases)"), [cells.len(), BASES.len()]) {
        let ((what, mut cell), base) = (cells[cell].clone(), BASES[base]);
        (cell.lora, cell.train.steps, cell.train.lr, cell.train.micro_batch) = (adapters(base), 1, 0.0, 1);
        cell.lora.targets = vec![Linear::OProj, Linear::DownProj];
        let plain = Cell { lora: Lora { base: None, ..cell.lora.clone() }, ..cell.clone() };
        let floats = run(&plain).weights;
        let plan = plan(&on(cell.clone(), Strategy::Ddp, 1, 1));
        let expected = expected(&plan.layout, &floats);
        assert!(!expected.is_empty());
        for (strategy, ranks) in tiers::some(test, ways, [2, 4]) {
            let cell = on(cell.clone(), strategy, ranks, if strategy.is_hybrid() { 2 } else { 1 });
            let ours = base_of(&cell);
            assert_eq!(ours.len(), expected.len(), "{what}");
            for (name, expected) in &expected {
                let ours = &ours.iter().find(|(own, _)| own == name).unwrap().1;
                same_bits(ours, expected, &format!("{what} {base:?}: {name}, {} on {ranks}", strategy.name()));
            }
        }
    }
}

/// What each stored tensor of `floats` comes back as, its parts packed one by one.
pub fn expected(layout: &zbench_engine::model::Layout, floats: &Tensors) -> Tensors {
    let mut expected: Tensors = Vec::new();
    for tensor in layout.units.iter().flat_map(|unit| unit.tensors_of(FlatKind::Quantised)) {
        let (name, matrix) = (tensor.stored_name(), tensor.packed.unwrap());
        let stored = &floats.iter().find(|(own, _)| own == name).unwrap().1;
        let mut ours = vec![0f32; matrix.len()];
        let place = |i: usize, run: &zbench_engine::model::StoredRun| (run.ours + i * run.step, run.stored + i);
        let runs = tensor.runs(0..matrix.len());
        let pairs: Vec<_> = runs.iter().flat_map(|run| (0..run.len).map(move |i| place(i, run))).collect();
        pairs.iter().for_each(|(here, there)| ours[*here] = stored[*there]);
        let (codes, scales) = pack(&Reference, &matrix, &ours);
        let record = record(&matrix, &codes, &scales);
        Reference.unpack(&Unpack { matrix, dtype: DType::F32 }, record.view(), ViewMut::of(&mut ours)).unwrap();
        if !expected.iter().any(|(known, _)| known == name) {
            expected.push((name.into(), stored.clone()));
        }
        let back = &mut expected.iter_mut().find(|(known, _)| known == name).unwrap().1;
        pairs.iter().for_each(|(here, there)| back[*there] = ours[*here]);
    }
    expected
}

fn record(matrix: &Packed, codes: &[i8], scales: &[f32]) -> Buffer {
    let fields = matrix.fields();
    let mut record = Arena::host(None).unwrap().alloc(Category::Parameters, DType::I8, fields.bytes).unwrap();
    let mut view = record.view_mut();
    let bytes = view.as_slice_mut::<i8>().unwrap();
    let floats = |x: &[f32]| -> Vec<i8> { x.iter().flat_map(|x| x.to_ne_bytes()).map(|byte| byte as i8).collect() };
    bytes[fields.codes].copy_from_slice(codes);
    if matrix.packing == Packing::Nf4Double {
        let double = DoubleScales::of(scales);
        bytes[fields.scales].copy_from_slice(&as_i8(&double.codes));
        bytes[fields.second].copy_from_slice(&floats(&[&double.second[..], &[double.offset]].concat()));
    } else {
        bytes[fields.scales].copy_from_slice(&floats(scales));
    }
    record
}

#[test]
fn a_quantised_base_gives_the_same_bits_under_every_strategy_and_policy() {
    let policies = [Checkpointing::None, Checkpointing::Full, Checkpointing::Every(2)];
    let test = "training::quantised::a_quantised_base_gives_the_same_bits";
    let start_of = |base| {
        let mut start = odd();
        (start.lora, start.train.clip_norm) = (adapters(base), 1e-4);
        start
    };
    for ranks in tiers::some(&format!("{test} (ranks)"), [2, 3, 4, 1], [1, 2]) {
        let (strategies, mut references) = (strategies(ranks), BTreeMap::new());
        for [base, strategy, policy] in tiers::combinations(test, [BASES.len(), strategies.len(), policies.len()]) {
            let ((strategy, shard), start) = (strategies[strategy], start_of(BASES[base]));
            let reference = references.entry(base).or_insert_with(|| run(&on(start.clone(), Strategy::Ddp, ranks, 1)));
            let mut cell = on(start, strategy, ranks, shard);
            (cell.memory.checkpointing, cell.parallel.prefetch) = (policies[policy].clone(), ranks % 3);
            assert_same(reference, &cell, &format!("{:?}: {} on {ranks} by {shard}", BASES[base], strategy.name()));
        }
    }
    for base in BASES {
        let start = start_of(base);
        let mut still = on(start.clone(), Strategy::Ddp, 1, 1);
        still.train.lr = 0.0;
        let (before, after) = (run(&still).weights, run(&on(start, Strategy::Ddp, 1, 1)).weights);
        for ((name, before), (_, after)) in before.iter().zip(&after) {
            assert_eq!(name.contains("lora_"), before != after, "{base:?}: {name}");
        }
    }
}

#[test]
fn a_quantised_base_repeats_itself_in_bf16() {
    let losses = |cell: &Cell| run(cell).steps.iter().map(|step| step.loss).collect::<Vec<_>>();
    let (strategies, mut references) = (strategies(4), BTreeMap::new());
    let sizes = [BASES.len(), strategies.len()];
    for [base, strategy] in tiers::combinations("training::quantised::repeats_itself_in_bf16", sizes) {
        let ((strategy, shard), mut start) = (strategies[strategy], odd());
        (start.lora, start.precision) = (adapters(BASES[base]), Precision::mixed(DType::Bf16));
        let reference = references.entry(base).or_insert_with(|| losses(&on(start.clone(), Strategy::Ddp, 4, 1)));
        assert!(reference.iter().all(|loss| loss.is_finite()));
        assert_eq!(losses(&on(start, strategy, 4, shard)), *reference, "{:?}: {}", BASES[base], strategy.name());
    }
}

/// A checkpoint with a weight that is not finite diverges; it does not train on as if nothing were.
#[test]
fn a_weight_that_is_not_finite_ends_the_run() {
    let oracle = Oracle::open("bf16-sharded");
    for base in BASES {
        let mut cell = oracle.cell();
        cell.lora = adapters(base);
        let dir = tempfile::tempdir().unwrap();
        let mut tensors: Vec<_> = Vec::new();
        let mut start = oracle.cell();
        (start.train.steps, start.train.lr) = (1, 0.0);
        for (name, mut values) in run(&start).weights {
            if name.ends_with("layers.1.mlp.down_proj.weight") {
                values[77] = f32::INFINITY;
            }
            let unit = plan(&start);
            let shape =
                unit.layout.units.iter().flat_map(|u| &u.tensors).find(|t| t.name == name).unwrap().shape.clone();
            tensors.push((name, shape, values));
        }
        let views: Vec<_> =
            tensors.iter().map(|(name, shape, values)| (name.clone(), shape.clone(), &values[..])).collect();
        let file = dir.path().join("model.safetensors");
        zbench_engine::checkpoint::weights::write_safetensors(&file, &views, DType::F32).unwrap();
        cell.model.weights = Some(dir.path().into());
        let failure = try_run(&cell).err().expect("the run diverges");
        assert!(matches!(failure.cause, zbench_engine::observe::outcome::Cause::Diverged { .. }), "{}", failure.cause);
    }
}
