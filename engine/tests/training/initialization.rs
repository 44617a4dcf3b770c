//! Fresh weights depend on the seed and on a tensor's name, and on nothing beside the tensor: a cell with adapters, or with
//! a base in few bits, starts from the base that the full cell beside it starts from.

use crate::training::identity::odd;
use crate::training::quantised::expected;
use crate::training::support::*;
use std::collections::HashMap;
use zbench_engine::checkpoint::weights::write_safetensors;
use zbench_engine::config::*;
use zbench_engine::model::Layout;
use zbench_kernels::DType;
use zbench_kernels::numerics::philox;
use zbench_test_tiers as tiers;

/// What DoRA may differ by: it divides by the norms of rows that it has multiplied by, each rounded to f32.
const DORA: f64 = 1e-6;

fn first_loss(cell: &Cell) -> f64 {
    let mut cell = cell.clone();
    cell.train.steps = 1;
    run(&cell).steps[0].loss
}

/// Families with separate and with fused projections, tied and untied heads, experts, every adapter's targets apart.
fn families() -> Vec<(&'static str, Cell)> {
    let of = |family: &str, form: &str| {
        let form = *forms().iter().find(|(name, ..)| *name == form).unwrap();
        let mut cell = formed(odd(), form);
        cell.model.family = family.into();
        cell
    };
    let mut tied = odd();
    tied.model.tie_word_embeddings = true;
    let mut cells = vec![
        ("llama", odd()),
        ("llama with a tied head", tied),
        ("qwen3", of("qwen3", "qwen3")),
        ("gpt2", of("gpt2", "gpt2")),
        ("falcon", of("falcon", "falcon")),
        ("new falcon", of("falcon", "new falcon")),
        ("bloom", of("bloom", "bloom")),
        ("mpt", of("mpt", "falcon")),
    ];
    cells.extend(expert_cells(odd()));
    cells
}

/// The linear layers that a family has and that adapters may be on.
fn targets(cell: &Cell) -> Vec<Linear> {
    use Linear::*;
    let gated = matches!(cell.model.form.mlp, Mlp::Swiglu | Mlp::GegluTanh);
    let attention = [QProj, KProj, VProj, OProj];
    match (&cell.model.experts, gated) {
        (Some(_), _) => attention.to_vec(),
        (None, true) => Linear::ALL.to_vec(),
        (None, false) => attention.into_iter().chain([UpProj, DownProj]).collect(),
    }
}

fn low_rank(targets: &[Linear]) -> Lora {
    Lora { rank: 2, alpha: 3.0, targets: targets.to_vec(), ..Lora::default() }
}

/// B is zero, and IA3's factors are one: neither changes a bit of the first loss. DoRA multiplies by what it divides by.
#[test]
fn adapters_start_with_the_loss_of_the_full_cell() {
    for (name, full) in tiers::some("training::initialization::adapters_start_with_the_loss", families(), [6, 11]) {
        for precision in [Precision::F32, Precision::mixed(DType::Bf16)] {
            let full = Cell { precision, ..full.clone() };
            let wanted = first_loss(&full);
            let all = targets(&full);
            let ia3 = |targets: &[Linear], feedforward: &[Linear]| Lora {
                method: Method::Ia3,
                targets: targets.to_vec(),
                feedforward: feedforward.to_vec(),
                ..Lora::default()
            };
            // These add to the residual stream. With factors on their outputs the output is rounded to the compute type before
            // it is added, where the full cell rounds the sum alone: the same bits in f32, other ones in bf16.
            let adds = |linear: &Linear| matches!(linear, Linear::OProj | Linear::DownProj);
            let f32 = full.precision.compute == DType::F32;
            let outputs: Vec<Linear> = all.iter().copied().filter(|linear| f32 || !adds(linear)).collect();
            let qkv = [Linear::QProj, Linear::KProj, Linear::VProj];
            let loras = [
                ("LoRA on queries, keys and values", low_rank(&qkv)),
                ("LoRA on the output projection", low_rank(&[Linear::OProj])),
                ("LoRA on all linear layers", low_rank(&all)),
                ("IA3 on outputs", ia3(&outputs, &[])),
                ("IA3 on inputs", ia3(&all, &all)),
            ];
            for (what, lora) in loras {
                let loss = first_loss(&Cell { lora, ..full.clone() });
                let compute = full.precision.compute;
                assert_eq!(loss.to_bits(), wanted.to_bits(), "{name}, {compute:?}, {what}: {loss} for {wanted}");
            }
        }
        // DoRA is for layers with a tensor of their own; its base is frozen in f32.
        let dora = Lora { use_dora: true, ..low_rank(&[Linear::OProj]) };
        let (loss, wanted) = (first_loss(&Cell { lora: dora, ..full.clone() }), first_loss(&full));
        assert!((loss - wanted).abs() <= DORA * wanted, "{name}, DoRA: {loss} for {wanted}");
    }
}

/// The full cell's first weights are exported, the blocks' matrices go through the reference's quantise and dequantise,
/// and the full cell reads the result as a checkpoint: its first loss is that of the cell with a base in few bits.
#[test]
fn a_quantised_base_starts_with_the_loss_of_the_full_cell_quantised_and_dequantised() {
    for (name, full) in tiers::some("training::initialization::a_quantised_base", families(), [4, 11]) {
        if full.model.experts.is_some() {
            continue; // `lora.base` packs no experts: a plan refuses such a cell.
        }
        let mut still = full.clone();
        (still.train.steps, still.train.lr) = (1, 0.0);
        let floats = run(&still).weights;
        for base in [Base::Nf4, Base::Nf4Single, Base::Int8] {
            let lora = Lora { base: Some(base), ..low_rank(&targets(&full)) };
            let quantised = Cell { lora, ..full.clone() };
            let layout = plan(&quantised).layout;
            let replaced: HashMap<String, Vec<f32>> = expected(&layout, &floats).into_iter().collect();
            assert!(!replaced.is_empty());
            let shapes: HashMap<_, _> = Layout::new(&full, 1).checkpoint_tensors().into_iter().collect();
            let tensors: Vec<_> = floats
                .iter()
                .map(|(name, own)| (name.clone(), shapes[name].clone(), &replaced.get(name).unwrap_or(own)[..]))
                .collect();
            let dir = tempfile::tempdir().unwrap();
            write_safetensors(&dir.path().join("model.safetensors"), &tensors, DType::F32).unwrap();
            let mut read = full.clone();
            read.model.weights = Some(dir.path().into());
            let (loss, wanted) = (first_loss(&quantised), first_loss(&read));
            assert_eq!(loss.to_bits(), wanted.to_bits(), "{name}, {base:?}: {loss} for {wanted}");
            assert_ne!(wanted.to_bits(), first_loss(&full).to_bits(), "{name}, {base:?}: quantising changed nothing");
        }
    }
}

/// BLAKE3 of `model.embed_tokens.weight`, first eight bytes, little endian; from the reference implementation (b3sum).
const EMBEDDING: u64 = 0xe987_cec5_64d7_76e3;

#[test]
fn a_fresh_tensor_is_philox_of_the_seed_and_the_hash_of_its_name() {
    let mut cell = odd();
    (cell.train.steps, cell.train.lr) = (1, 0.0);
    let weights = run(&cell).weights;
    let (_, table) = weights.iter().find(|(name, _)| name == "model.embed_tokens.weight").unwrap();
    let std = cell.model.initializer_range as f32;
    let drawn = (0..).flat_map(|block| philox::normals(cell.train.seed ^ EMBEDDING, block)).map(|x| std * x);
    assert!(table.len() > 1000 && table.iter().copied().eq(drawn.take(table.len())));
}

/// Tensors with the same stream would be equal, or parts of each other.
#[test]
fn no_two_tensors_of_a_model_share_a_stream() {
    let mut cells: Vec<(String, Cell)> = Vec::new();
    for (name, full) in families() {
        for base in [None, Some(Base::Nf4), Some(Base::Int8)] {
            let lora = Lora { base, dropout: 0.1, ..low_rank(&targets(&full)) };
            if base.is_none() || full.model.experts.is_none() {
                cells.push((format!("{name} with adapters, {base:?}"), Cell { lora, ..full.clone() }));
            }
        }
        cells.push((name.into(), full));
    }
    for (name, adapt) in adapters().into_iter().chain([dora()]) {
        let mut cell = odd();
        adapt(&mut cell);
        cells.push((name.into(), cell));
    }
    // As many tensors as the largest models have: 96 blocks of 128 experts.
    let mut large = expert_cells(odd()).swap_remove(0).1;
    large.model.num_hidden_layers = 96;
    large.model.experts.as_mut().unwrap().num_experts = 128;
    cells.push(("many experts".into(), large));
    for (name, cell) in cells {
        let layout = Layout::new(&cell, 1);
        let mut owners: HashMap<u64, String> = HashMap::new();
        let mut own = |stream: u64, tensor: String| {
            let other = owners.insert(stream, tensor.clone());
            assert_eq!(other, None, "{name}: {tensor} has the stream of another tensor");
        };
        layout.units.iter().flat_map(|unit| &unit.tensors).for_each(|t| own(t.stream(), t.name.clone()));
        for block in layout.blocks() {
            let linears = [&block.q, &block.k, &block.v, &block.o, &block.up, &block.down];
            let single = linears.into_iter().chain(&block.gate).filter_map(|linear| linear.adapter.as_ref());
            let streams = single.map(|adapter| adapter.stream).chain(block.qkv_adapter.iter().map(|a| a.stream));
            streams.for_each(|stream| own(stream, format!("a dropout of block {}", block.index)));
        }
    }
}
