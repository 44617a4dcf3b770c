//! Adapters over a base in few bits: bitsandbytes' numbers, PyTorch's runs, the same bits under every strategy, and the
//! bytes that the formulas say.

use crate::accounting::{assert_as_planned, assert_stated, measure, policies, small};
use crate::families::{Oracle, shared_out, single};
use crate::identity::{assert_same, odd, strategies};
use crate::support::*;
use zbench_engine::config::*;
use zbench_engine::model::Part;
use zbench_kernels::*;

const BASES: [Base; 3] = [Base::Nf4, Base::Nf4Single, Base::Int8];

fn adapters(base: Base) -> Lora {
    Lora { rank: 3, alpha: 6.0, dropout: 0.1, targets: Linear::ALL.to_vec(), base: Some(base), ..Lora::default() }
}

// What bitsandbytes makes of given tensors: tests/fixtures/nf4/make.py.

struct Vectors(Tensors);

impl Vectors {
    fn open() -> Vectors {
        Vectors(single(&fixture("../nf4/vectors.safetensors")))
    }

    fn get(&self, name: &str) -> &[f32] {
        &self.0.iter().find(|(own, _)| own == name).unwrap_or_else(|| panic!("no {name}")).1
    }

    fn codes(&self, name: &str) -> Vec<u8> {
        self.get(name).iter().map(|x| *x as u8).collect()
    }
}

/// Each with its columns.
const TENSORS: [(&str, usize); 9] = [
    ("ragged", 129),
    ("whole", 256),
    ("outliers", 96),
    ("zeros", 64),
    ("halves", 64),
    ("bf16", 50),
    ("short", 37),
    ("one", 1),
    ("extremes", 64),
];

fn pack(kernels: &dyn Kernels, matrix: &Packed, x: &[f32]) -> (Vec<i8>, Vec<f32>) {
    let (mut codes, mut scales) = (vec![0i8; matrix.codes_len(x.len())], vec![0f32; matrix.blocks()]);
    kernels.pack(matrix, View::of(x), ViewMut::of(&mut codes), ViewMut::of(&mut scales)).unwrap();
    (codes, scales)
}

/// What a record of these stands for.
fn unpack(kernels: &dyn Kernels, matrix: Packed, codes: &[u8], scales: &[i8], second: &[f32]) -> Vec<f32> {
    let fields = matrix.fields();
    let arena = Arena::host(None).unwrap();
    let mut record = arena.alloc(Category::Parameters, DType::I8, fields.bytes).unwrap();
    let mut view = record.view_mut();
    let bytes = view.as_slice_mut::<i8>().unwrap();
    bytes[fields.codes].iter_mut().zip(codes.chunks(2)).for_each(|(byte, two)| {
        *byte = (two[0] << 4 | two.get(1).copied().unwrap_or(0)) as i8;
    });
    bytes[fields.scales].copy_from_slice(scales);
    let second: Vec<i8> = second.iter().flat_map(|x| x.to_ne_bytes()).map(|byte| byte as i8).collect();
    bytes[fields.second].copy_from_slice(&second);
    let mut values = vec![0f32; matrix.len()];
    kernels.unpack(&Unpack { matrix, dtype: DType::F32 }, record.view(), ViewMut::of(&mut values)).unwrap();
    values
}

fn same_bits(ours: &[f32], theirs: &[f32], what: &str) {
    assert_eq!(ours.len(), theirs.len(), "{what}");
    for (i, (a, b)) in ours.iter().zip(theirs).enumerate() {
        // Zeros of either sign: a negative entry times a scale of zero.
        assert!(a.to_bits() == b.to_bits() || (*a == 0.0 && *b == 0.0), "{what}: element {i} is {a:e}, theirs {b:e}");
    }
}

#[test]
fn tables_are_the_published_ones() {
    let vectors = Vectors::open();
    same_bits(&NF4, vectors.get("nf4"), "nf4");
    same_bits(&DYNAMIC, vectors.get("dynamic"), "dynamic");
    // QLoRA, appendix E, as printed.
    let printed = "-1.0 -0.6961928009986877 -0.5250730514526367 -0.39491748809814453 -0.28444138169288635 \
                   -0.18477343022823334 -0.09105003625154495 0.0 0.07958029955625534 0.16093020141124725 \
                   0.24611230194568634 0.33791524171829224 0.44070982933044434 0.5626170039176941 0.7229568362236023 1.0";
    let printed: Vec<f32> = printed.split_whitespace().map(|x| x.parse().unwrap()).collect();
    same_bits(&NF4, &printed, "QLoRA's table");
}

#[test]
fn nf4_codes_scales_and_values_are_those_of_bitsandbytes() {
    let vectors = Vectors::open();
    for (name, cols) in TENSORS {
        let get = |key: &str| vectors.get(&format!("{name}.{key}"));
        let (x, codes) = (get("x"), vectors.codes(&format!("{name}.codes")));
        let matrix = |packing| Packed { packing, rows: x.len() / cols, cols };
        let nf4 = matrix(Packing::Nf4);
        for kernels in [&Cpu::new(1) as &dyn Kernels, &Cpu::new(3), &Reference] {
            let what = format!("{name}, {}", kernels.name());
            let (ours, scales) = pack(kernels, &nf4, x);
            let ours: Vec<u8> = ours.iter().flat_map(|byte| [*byte as u8 >> 4, *byte as u8 & 15]).collect();
            // Theirs has an even number of codes; the one behind an odd end stands for nothing.
            assert_eq!(ours[..x.len()], codes[..x.len()], "{what}: codes");
            same_bits(&scales, get("absmax"), &format!("{what}: scales"));
            let bytes: Vec<i8> = scales.iter().flat_map(|x| x.to_ne_bytes()).map(|byte| byte as i8).collect();
            same_bits(&unpack(kernels, nf4, &codes, &bytes, &[]), get("plain"), &format!("{what}: values"));

            let double = DoubleScales::of(&scales);
            // A mean in f32 depends on the order of its sum: theirs is within a few units in the last place of the exact
            // one, ours is that.
            let (offset, theirs) = (double.offset, get("offset")[0]);
            assert!((offset - theirs).abs() <= 4.0 * f32::EPSILON * theirs.abs(), "{what}: mean {offset} for {theirs}");
            let around = DoubleScales::around(theirs, &scales);
            let scale_codes = vectors.codes(&format!("{name}.scale_codes"));
            assert_eq!(around.codes, scale_codes, "{what}: codes of scales");
            for (ours, theirs) in around.second.iter().zip(get("second")) {
                // Of a block of equal scales they store 1e-38 for 0 where it is a short one.
                assert!(ours == theirs || (*ours == 0.0 && *theirs <= 1e-38), "{what}: {ours:e} for {theirs:e}");
            }
            let (second, bytes) = ([get("second"), &[theirs]].concat(), as_i8(&scale_codes));
            let values = unpack(kernels, matrix(Packing::Nf4Double), &codes, &bytes, &second);
            same_bits(&values, get("double"), &format!("{what}: values of coded scales"));
        }
        // With the exact mean the codes of scales are these too, but where one stood on the edge.
        let (_, scales) = pack(&Cpu::new(1), &nf4, x);
        let (double, codes) = (DoubleScales::of(&scales), vectors.codes(&format!("{name}.scale_codes")));
        let differ = double.codes.iter().zip(&codes).filter(|(a, b)| a != b);
        assert!(differ.count() <= scales.len() / 200, "{name}");
    }
}

fn as_i8(bytes: &[u8]) -> Vec<i8> {
    bytes.iter().map(|byte| *byte as i8).collect()
}

/// Rows of zeros and those too small for 127/largest in f32 have no code there (it is a NaN or an infinity made a whole number).
#[test]
fn int8_codes_are_those_of_bitsandbytes() {
    let vectors = Vectors::open();
    for (name, cols) in TENSORS {
        let get = |key: &str| vectors.get(&format!("{name}.{key}"));
        let x = get("x");
        let matrix = Packed { packing: Packing::Int8, rows: x.len() / cols, cols };
        let (codes, scales) = pack(&Cpu::new(2), &matrix, x);
        let largest = get("int8_absmax");
        same_bits(&scales, largest, name);
        for (row, largest) in largest.iter().enumerate() {
            let row = row * cols..(row + 1) * cols;
            let ours: Vec<f32> = codes[row.clone()].iter().map(|code| f32::from(*code)).collect();
            match (1.0 / largest * 127.0).is_finite() {
                true => assert_eq!(ours, get("int8")[row], "{name}"),
                false => assert!(ours.iter().all(|code| *code == 0.0), "{name}"),
            }
        }
    }
}

// Runs.

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
        for (strategy, _) in strategies(2) {
            oracle.assert_parity(&shared_out(oracle.cell(), strategy, 2), &format!("{name}: {} on 2", strategy.name()));
        }
        for strategy in [Strategy::Zero2, Strategy::Zero3, Strategy::Hsdp] {
            oracle.assert_parity(&shared_out(oracle.cell(), strategy, 4), &format!("{name}: {} on 4", strategy.name()));
        }
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
        assert!((plain - wanted).abs() > 2.0 * crate::families::LOSS * wanted, "{name}: {plain} and {wanted}");
    }
}

/// The blocks' matrices at the start of a run, whole.
fn base_of(cell: &Cell) -> Tensors {
    let mut cell = cell.clone();
    (cell.train.steps, cell.train.lr) = (1, 0.0);
    let quantised: Vec<String> = {
        let plan = plan(&cell);
        let units = plan.layout.units.iter();
        units.flat_map(|unit| unit.tensors_of(Part::Quantised).map(|t| t.stored_name().to_string())).collect()
    };
    run(&cell).weights.into_iter().filter(|(name, _)| quantised.contains(name)).collect()
}

/// Whatever ranks hold of a record, it is the one that the reference kernels make of the whole tensor: drawn, read, turned
/// and fused ones; several blocks of the second level.
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
    for ((what, mut cell), base) in cells.into_iter().flat_map(|cell| BASES.map(|base| (cell.clone(), base))) {
        (cell.lora, cell.train.steps, cell.train.lr, cell.train.micro_batch) = (adapters(base), 1, 0.0, 1);
        cell.lora.targets = vec![Linear::OProj, Linear::DownProj];
        let plain = Cell { lora: Lora { base: None, ..cell.lora.clone() }, ..cell.clone() };
        let floats = run(&plain).weights;
        let plan = plan(&on(cell.clone(), Strategy::Ddp, 1, 1));
        let expected = expected(&plan.layout, &floats);
        assert!(!expected.is_empty());
        for (strategy, ranks) in [(Strategy::Ddp, 1), (Strategy::Zero3, 2), (Strategy::Zero3, 7), (Strategy::Hsdp, 4)] {
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
fn expected(layout: &zbench_engine::model::Layout, floats: &Tensors) -> Tensors {
    let mut expected: Tensors = Vec::new();
    for tensor in layout.units.iter().flat_map(|unit| unit.tensors_of(Part::Quantised)) {
        let (name, matrix) = (tensor.stored_name(), tensor.packed.unwrap());
        let stored = &floats.iter().find(|(own, _)| own == name).unwrap().1;
        let mut ours = vec![0f32; matrix.len()];
        let place = |i: usize, run: &zbench_engine::model::Run| (run.ours + i * run.step, run.stored + i);
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
    for base in BASES {
        let mut start = odd();
        (start.lora, start.train.clip_norm) = (adapters(base), 1e-4);
        for ranks in [1, 2, 3, 4] {
            let reference = run(&on(start.clone(), Strategy::Ddp, ranks, 1));
            for (strategy, shard) in strategies(ranks) {
                for policy in [Checkpointing::None, Checkpointing::Full, Checkpointing::Every(2)] {
                    let mut cell = on(start.clone(), strategy, ranks, shard);
                    cell.memory.checkpointing = policy;
                    cell.parallel.prefetch = ranks % 3;
                    assert_same(&reference, &cell, &format!("{base:?}: {} on {ranks} by {shard}", strategy.name()));
                }
            }
        }
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
    for base in BASES {
        let mut start = odd();
        (start.lora, start.precision) = (adapters(base), Precision::mixed(DType::Bf16));
        let losses = |cell: &Cell| run(cell).steps.iter().map(|step| step.loss).collect::<Vec<_>>();
        let reference = losses(&on(start.clone(), Strategy::Ddp, 4, 1));
        assert!(reference.iter().all(|loss| loss.is_finite()));
        for (strategy, shard) in strategies(4) {
            let cell = on(start.clone(), strategy, 4, shard);
            assert_eq!(losses(&cell), reference, "{base:?}: {}", strategy.name());
        }
    }
}

// Bytes.

#[test]
fn plans_hold_for_every_quantised_base() {
    for (base, strategy) in BASES.into_iter().flat_map(|base| Strategy::ALL.map(|strategy| (base, strategy))) {
        for (ranks, precision, policy) in [
            (1, Precision::F32, Checkpointing::None),
            (2, Precision::mixed(DType::Bf16), Checkpointing::Full),
            (4, Precision::F32, Checkpointing::Every(2)),
            (
                4,
                Precision { parameters: DType::F32, master: None, ..Precision::mixed(DType::Bf16) },
                Checkpointing::Selective,
            ),
        ] {
            let mut cell = on(small(), strategy, ranks, 2.min(ranks));
            (cell.lora, cell.precision, cell.memory.checkpointing) = (adapters(base), precision, policy);
            cell.train.accumulation = 2;
            assert_as_planned(&cell, &format!("{base:?}: {} on {ranks}, {precision:?}", strategy.name()));
        }
    }
}

#[test]
fn stated_operations_over_a_quantised_base_are_the_ones_issued() {
    for base in BASES {
        for (strategy, ranks) in [(Strategy::Ddp, 1), (Strategy::Zero3, 2), (Strategy::HsdpFullOptimizer, 4)] {
            for policy in policies() {
                let mut cell = on(small(), strategy, ranks, 2.min(ranks));
                (cell.lora, cell.memory.checkpointing) = (adapters(base), policy.clone());
                assert_stated(&cell, &format!("{base:?}: {} {policy:?}", strategy.name()));
            }
        }
    }
}

/// Bytes of a matrix of `rows` by `cols`, from docs/qlora.md: each term at a multiple of 64.
fn bytes_of(base: Base, rows: usize, cols: usize) -> usize {
    let up = |bytes: usize| bytes.div_ceil(64) * 64;
    let (n, blocks) = (rows * cols, (rows * cols).div_ceil(64));
    match base {
        Base::Nf4 => up(n.div_ceil(2)) + up(blocks) + up(4 * blocks.div_ceil(256) + 4),
        Base::Nf4Single => up(n.div_ceil(2)) + up(4 * blocks),
        _ => up(n) + up(4 * rows),
    }
}

/// To the byte on the arena, whatever the strategy and the number of ranks.
#[test]
fn the_base_takes_the_bytes_that_the_formula_says() {
    for base in BASES {
        for (strategy, ranks) in Strategy::ALL.into_iter().flat_map(|s| [1usize, 2, 4].map(|ranks| (s, ranks))) {
            let mut cell = on(small(), strategy, ranks, 2.min(ranks));
            cell.lora = adapters(base);
            let model = &cell.model;
            let (hidden, wide) = (model.hidden_size, model.intermediate_size);
            let keys = model.num_key_value_heads * model.head_dim;
            let matrices = [
                (hidden, hidden),
                (keys, hidden),
                (keys, hidden),
                (hidden, hidden),
                (wide, hidden),
                (wide, hidden),
                (hidden, wide),
            ];
            let block: usize = matrices.iter().map(|(rows, cols)| bytes_of(base, *rows, *cols)).sum();
            let padded = block.div_ceil(64 * ranks) * 64 * ranks * model.num_hidden_layers;
            let plan = plan(&cell);
            let floats: usize = plan.layout.units.iter().map(|u| 4 * (u.trainable.padded + u.frozen.padded)).sum();
            let whole = matches!(strategy, Strategy::Ddp | Strategy::Zero1 | Strategy::Zero2);
            let split = if whole {
                1
            } else if strategy.is_hybrid() {
                2.min(ranks)
            } else {
                ranks
            };
            for report in measure(&cell, &plan) {
                let measured = report.ledger.peak(Category::Parameters);
                assert_eq!(measured, ((floats + padded) / split) as u64, "{base:?}: {} on {ranks}", strategy.name());
            }
            let counted = plan.layout.parameters(Part::Quantised) as usize;
            assert_eq!(counted, matrices.iter().map(|(r, c)| r * c).sum::<usize>() * model.num_hidden_layers);
        }
    }
}

/// QLoRA, section 3: double quantisation takes 8/64 + 32/(64 * 256) = 0.127 bits a parameter for scales, in place of 0.5.
#[test]
fn bits_per_parameter_are_those_of_the_paper() {
    let preset: zbench_engine::hf::PartialModel =
        toml::from_str(zbench_engine::hf::preset("llama2-70b").unwrap()).unwrap();
    let model = preset.resolve("llama2-70b").unwrap();
    for (base, bits) in
        [(Base::Nf4, 4.0 + 8.0 / 64.0 + 32.0 / (64.0 * 256.0)), (Base::Nf4Single, 4.5), (Base::Int8, 8.0)]
    {
        let mut cell = synthetic();
        (cell.model, cell.lora) = (model.clone(), adapters(base));
        let layout = zbench_engine::model::Layout::new(&cell, 8);
        let bytes: usize = layout.units.iter().map(|unit| unit.quantised.len).sum();
        let got = 8.0 * bytes as f64 / layout.parameters(Part::Quantised) as f64;
        // int8: a scale of 32 bits for each row of 8192 at least.
        assert!(got >= bits && got <= bits + 32.0 / 8192.0 + 1e-4, "{base:?}: {got} bits for {bits}");
        assert_eq!(layout.parameters(Part::Quantised), 80 * (2 * 8192 * 8192 + 2 * 1024 * 8192 + 3 * 8192 * 28672));
    }
}

#[test]
fn unpacking_is_no_flop_of_the_model() {
    for base in BASES {
        let mut cell = small();
        cell.lora = Lora { base: None, ..adapters(base) };
        let plain = plan(&cell).estimate.flops;
        cell.lora = adapters(base);
        let flops = plan(&cell).estimate.flops;
        assert_eq!((plain.model, plain.palm, plain.hardware), (flops.model, flops.palm, flops.hardware));
        assert_eq!(plain.ledger, flops.ledger);
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
        zbench_engine::checkpoint::write_safetensors(&file, &views, DType::F32).unwrap();
        cell.model.weights = Some(dir.path().into());
        let failure = try_run(&cell).err().expect("the run diverges");
        assert!(matches!(failure.cause, zbench_engine::outcome::Cause::Diverged { .. }), "{}", failure.cause);
    }
}
