//! Every layer's backward against finite differences, in f64 with the reference kernels.
//!
//! The scalar is `sum(r * output)` for a fixed random `r` (the loss itself for the head). Central differences with step
//! 1e-5 have a truncation error near 1e-10 and a rounding error near 1e-11 here; 1e-6 of the gradient's norm leaves room for
//! both and for nothing else.

use crate::training::support::*;
use zbench_engine::compute::context::ComputeContext;
use zbench_engine::config::*;
use zbench_engine::model::layers;
use zbench_engine::model::layers::{Batch, HeadGrads, HeadWeights, LayerContext, Saved};
use zbench_engine::model::rope;
use zbench_engine::model::{FlatKind, Grads, Layout, Weights};
use zbench_kernels::*;
use zbench_kernels_testing::Reference;
use zbench_test_tiers as tiers;

const STEP: f64 = 1e-5;
const TOLERANCE: f64 = 1e-6;

/// Numbers that look random and repeat: splitmix64, in (-1, 1).
fn noise(seed: u64, len: usize) -> Vec<f64> {
    let draw = |i: u64| {
        let mut z = (seed << 32 ^ i).wrapping_add(0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z >> 11) as f64 / (1u64 << 53) as f64) * 2.0 - 1.0
    };
    (0..len as u64).map(draw).collect()
}

struct Lab {
    cell: Cell,
    layout: Layout,
    arena: Arena,
    cos: Vec<f64>,
    sin: Vec<f64>,
}

impl Lab {
    fn new(change: impl FnOnce(&mut Cell)) -> Lab {
        let mut cell = synthetic();
        cell.precision = Precision::all(DType::F64);
        let model = &mut cell.model;
        (model.hidden_size, model.intermediate_size, model.num_hidden_layers, model.vocab_size) = (12, 10, 1, 11);
        (model.num_attention_heads, model.num_key_value_heads, model.head_dim) = (4, 2, 6);
        (cell.train.seq_len, cell.train.micro_batch) = (5, 2);
        change(&mut cell);
        let layout = Layout::new(&cell, 1);
        let (cos, sin) = rope::angles(&cell.model, cell.train.seq_len).map(|a| (a.cos(), a.sin())).unzip();
        Lab { cell, layout, arena: Arena::host(None).unwrap(), cos, sin }
    }

    /// The first block.
    fn block(&self) -> &zbench_engine::model::layers::Block {
        self.layout.blocks().next().unwrap()
    }

    fn exec(&self) -> LayerContext<'_> {
        LayerContext {
            comms: None,
            sequence: false,
            tensor_chunks: 1,
            waits: None,
            memory: None,
            device: ComputeContext { kernels: &Reference, arena: &self.arena, recorder: None },
            batch: Batch {
                rows: self.cell.train.micro_batch,
                seq: self.cell.train.seq_len,
                first_sample: 3,
                first_token: 3 * self.cell.train.seq_len as u64,
                seed: 9,
                documents: false,
            },
            compute: DType::F64,
            gradients: DType::F64,
            evaluates: false,
            cos: View::of(&self.cos),
            sin: View::of(&self.sin),
            documents: None,
        }
    }

    fn tokens(&self) -> usize {
        self.cell.train.micro_batch * self.cell.train.seq_len
    }

    fn buffer(&self, values: &[f64]) -> Buffer {
        let mut buffer = self.arena.alloc(Category::Activations, DType::F64, values.len()).unwrap();
        buffer.view_mut().as_slice_mut::<f64>().unwrap().copy_from_slice(values);
        buffer
    }

    /// Random weights of a unit: trainable, frozen.
    fn weights(&self, unit: usize) -> [Vec<f64>; 2] {
        [FlatKind::Trainable, FlatKind::Frozen]
            .map(|part| noise(77 + part as u64, self.layout.units[unit].flat(part).padded))
    }
}

fn weights(flats: &[Vec<f64>; 2]) -> Weights<'_> {
    Weights {
        trainable: View::of(&flats[0]),
        frozen: View::of(&flats[1]),
        quantised: View::of::<i8>(&[]),
        prepacked: None,
        second: None,
    }
}

fn values(buffer: &Buffer) -> Vec<f64> {
    buffer.view().as_slice::<f64>().unwrap().to_vec()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

/// Compares `gradient` with central differences of `f` at every element of `at`.
fn check(what: &str, at: &[f64], gradient: &[f64], used: usize, mut f: impl FnMut(&[f64]) -> f64) {
    let mut point = at.to_vec();
    let mut numeric = vec![0.0; used];
    for i in 0..used {
        point[i] = at[i] + STEP;
        let up = f(&point);
        point[i] = at[i] - STEP;
        numeric[i] = (up - f(&point)) / (2.0 * STEP);
        point[i] = at[i];
    }
    let size = dot(&numeric, &numeric).sqrt();
    let difference = numeric.iter().zip(gradient).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt();
    assert!(size > 1e-3, "{what}: the gradient is zero, nothing is tested");
    assert!(difference <= TOLERANCE * size, "{what}: off by {:e} of the norm", difference / size);
}

fn block_output(lab: &Lab, flats: &[Vec<f64>; 2], x: &[f64], r: &[f64]) -> f64 {
    let (output, _) =
        lab.block().forward(&lab.exec(), &weights(flats), lab.buffer(x), true, &SavedTensor::ALL).unwrap();
    dot(&values(&output), r)
}

/// A decoder's block that looks at an encoder's output of another length.
#[test]
fn cross_attention() {
    let lab = Lab::new(|cell| {
        let model = PricedModel::EncoderDecoder { num_decoder_layers: 1, decoder_seq_len: 3, gated: true };
        cell.priced = Some(Box::new(Priced { model: Some(model), ..Priced::default() }));
    });
    let layer = lab.layout.layers.iter().find(|layer| layer.memory.is_some()).unwrap();
    let (block, unit) = (layer.block().unwrap(), &lab.layout.units[layer.unit]);
    let (flats, hidden, of_encoder) = (lab.weights(layer.unit), lab.cell.model.hidden_size, lab.exec().batch);
    let batch = Batch { seq: 3, ..of_encoder };
    let [x, r] = [1, 2].map(|seed| noise(seed, batch.tokens() * hidden));
    let memory = noise(3, of_encoder.tokens() * hidden);
    let half = lab.cell.model.head_dim / 2;
    fn over<'a>(ex: LayerContext<'a>, batch: Batch, half: usize, values: &'a [f64]) -> LayerContext<'a> {
        let memory = Some(layers::Memory { values: View::of(values), batch: ex.batch });
        LayerContext { batch, cos: ex.cos.slice(0..3 * half), sin: ex.sin.slice(0..3 * half), memory, ..ex }
    }
    let output = |flats: &[Vec<f64>; 2], x: &[f64], memory: &[f64]| {
        let ex = over(lab.exec(), batch, half, memory);
        let (output, _) = block.forward(&ex, &weights(flats), lab.buffer(x), true, &[]).unwrap();
        dot(&values(&output), &r)
    };
    let mut reference: Option<[Vec<f64>; 3]> = None;
    for keep in [&SavedTensor::ALL[..], &[], &[SavedTensor::Attention], &[SavedTensor::Residual, SavedTensor::Qkv]] {
        let ex = over(lab.exec(), batch, half, &memory);
        let (_, mut saved): (_, Saved) = block.forward(&ex, &weights(&flats), lab.buffer(&x), true, keep).unwrap();
        block.recompute(&ex, &weights(&flats), &mut saved, false).unwrap();
        let mut grads = vec![0.0; unit.trainable().padded];
        let mut view = Grads::of(ViewMut::of(&mut grads));
        let mut dmemory = Some(lab.buffer(&vec![0.5; memory.len()]));
        let dx = block.backward(&ex, &weights(&flats), &mut view, saved, lab.buffer(&r), &mut dmemory).unwrap();
        let dmemory = values(&dmemory.unwrap()).into_iter().map(|value| value - 0.5).collect();
        let found = [values(&dx), grads, dmemory];
        assert!(reference.as_ref().is_none_or(|first| *first == found), "what is kept changes the gradient");
        reference = Some(found);
    }
    let [dx, grads, dmemory] = reference.unwrap();
    check("cross: input", &x, &dx, x.len(), |x| output(&flats, x, &memory));
    check("cross: memory", &memory, &dmemory, memory.len(), |memory| output(&flats, &x, memory));
    check("cross: weights", &flats[0], &grads, unit.trainable().len, |w| {
        output(&[w.to_vec(), flats[1].clone()], &x, &memory)
    });
}

fn check_block(what: &str, change: impl FnOnce(&mut Cell)) {
    let lab = Lab::new(change);
    let (block, unit) = (lab.block(), &lab.layout.units[1]);
    let flats = lab.weights(1);
    let len = lab.tokens() * lab.cell.model.hidden_size;
    let (x, r) = (noise(1, len), noise(2, len));
    let ex = lab.exec();
    let mut reference: Option<(Vec<f64>, Vec<f64>)> = None;
    for keep in [&SavedTensor::ALL[..], &[], &[SavedTensor::Residual, SavedTensor::Qkv]] {
        let (_, mut saved): (_, Saved) = block.forward(&ex, &weights(&flats), lab.buffer(&x), true, keep).unwrap();
        block.recompute(&ex, &weights(&flats), &mut saved, false).unwrap();
        let mut grads = vec![0.0; unit.trainable().padded];
        let mut view = Grads::of(ViewMut::of(&mut grads));
        let dx = block.backward(&ex, &weights(&flats), &mut view, saved, lab.buffer(&r), &mut None).unwrap();
        let dx = values(&dx);
        match &reference {
            Some(first) => assert_eq!(first, &(dx, grads), "{what}: what is kept changes the gradient"),
            None => reference = Some((dx, grads)),
        }
    }
    let (dx, grads) = reference.unwrap();
    check(&format!("{what}: input"), &x, &dx, x.len(), |x| block_output(&lab, &flats, x, &r));
    check(&format!("{what}: weights"), &flats[0], &grads, unit.trainable().len, |w| {
        block_output(&lab, &[w.to_vec(), flats[1].clone()], &x, &r)
    });
}

#[test]
fn block_with_flash_attention() {
    check_block("flash", |_| {});
}

#[test]
fn block_with_naive_attention_and_one_key_head() {
    check_block("naive", |cell| {
        cell.memory.attention = AttentionKind::Naive;
        cell.model.num_key_value_heads = 1;
    });
}

#[test]
fn block_with_adapters() {
    for dropout in [0.0, 0.3] {
        check_block(&format!("adapters, dropout {dropout}"), |cell| {
            cell.lora = Lora { rank: 2, alpha: 3.0, dropout, targets: Linear::ALL.to_vec(), ..Lora::default() };
        });
    }
}

#[test]
fn block_with_some_adapters_and_scaled_positions() {
    check_block("some adapters", |cell| {
        let targets = vec![Linear::VProj, Linear::GateProj];
        cell.lora = Lora { rank: 1, alpha: 2.0, dropout: 0.0, targets, ..Lora::default() };
        cell.model.rope_scaling = Some(RopeScaling::Linear { factor: 2.0 });
    });
}

#[test]
fn blocks_of_every_form() {
    let forms = forms();
    for [form, naive] in tiers::combinations("training::layers::blocks_of_every_form", [forms.len(), 2]) {
        let (form, attention) = (forms[form], [AttentionKind::Flash, AttentionKind::Naive][naive]);
        check_block(&format!("{}, {attention:?}", form.0), |cell| {
            *cell = formed(cell.clone(), form);
            cell.memory.attention = attention;
        });
    }
}

#[test]
fn blocks_of_every_form_with_adapters() {
    for form in forms() {
        check_block(form.0, |cell| {
            *cell = formed(cell.clone(), form);
            cell.lora = Lora { rank: 2, alpha: 3.0, dropout: 0.0, targets: Linear::ALL.to_vec(), ..Lora::default() };
        });
    }
}

#[test]
fn blocks_with_experts() {
    let experts = |num_experts, num_experts_per_tok, norm_topk_prob| Experts {
        num_experts,
        num_experts_per_tok,
        moe_intermediate_size: 7,
        norm_topk_prob,
        decoder_sparse_step: 1,
        mlp_only_layers: Vec::new(),
    };
    let kinds = [(4, 2, true), (3, 1, false), (9, 3, false), (3, 3, true), (20, 1, false), (1, 1, true)];
    let all = (0..kinds.len()).flat_map(|kind| [(kind, kind % 2), (kind, 1 - kind % 2)]);
    for (kind, adapters) in tiers::some("training::layers::blocks_with_experts", all, [3, 6]) {
        let ((count, top, normalised), adapters) = (kinds[kind], 2 * adapters);
        check_block(&format!("{top} of {count} experts, normalised {normalised}, adapters {adapters}"), |cell| {
            cell.model.family = "qwen3_moe".into();
            cell.model.experts = Some(experts(count, top, normalised));
            let targets = vec![Linear::KProj, Linear::OProj];
            cell.lora = Lora { rank: adapters, alpha: 3.0, dropout: 0.0, targets, ..Lora::default() };
        });
    }
}

#[test]
fn head_and_its_loss() {
    for (tied, norm) in
        [(false, NormKind::Rms), (true, NormKind::Rms), (false, NormKind::Layer), (true, NormKind::Layer)]
    {
        let lab = Lab::new(|cell| {
            cell.model.tie_word_embeddings = tied;
            cell.model.form = Form { norm, norm_bias: norm == NormKind::Layer, ..Form::default() };
        });
        let (head, units) = (lab.layout.head().unwrap(), &lab.layout.units);
        let own = lab.weights(2);
        let table = lab.weights(0);
        let x = noise(3, lab.tokens() * lab.cell.model.hidden_size);
        let mut targets: Vec<u32> = (0..lab.tokens() as u32).map(|t| (t * 7 + 3) % 11).collect();
        targets[2] = u32::MAX; // ignored
        let ex = lab.exec();
        let scale = 0.25;
        let run = |x: &[f64], own: &[Vec<f64>; 2], table: &[Vec<f64>; 2]| {
            let (mut g, mut t) = (vec![0.0; units[2].trainable().padded], vec![0.0; units[0].trainable().padded]);
            let (mut gv, mut tv) = (Grads::of(ViewMut::of(&mut g)), Grads::of(ViewMut::of(&mut t)));
            let matrix = if tied { weights(table) } else { weights(own) };
            let (own_weights, matrix) = (weights(own), matrix);
            let head_weights = HeadWeights { own: &own_weights, of_matrix: &matrix };
            let grads = HeadGrads { own: &mut gv, tied: tied.then_some(&mut tv) };
            let wanted = View::of(&targets);
            let (x, mut sums) = (lab.buffer(x), Vec::new());
            let dx = head.loss(&ex, head_weights, grads, x, (wanted, scale), &mut sums).unwrap();
            let mut known = vec![0.0; sums.len()];
            ex.kernels.read_scalars(&sums, &mut known).unwrap();
            let sum: f64 = known.iter().sum();
            (sum * scale, values(&dx), g, t)
        };
        let (_, dx, g, t) = run(&x, &own, &table);
        check("head: input", &x, &dx, x.len(), |x| run(x, &own, &table).0);
        check("head: own weights", &own[0], &g, units[2].trainable().len, |w| {
            run(&x, &[w.to_vec(), own[1].clone()], &table).0
        });
        if tied {
            check("head: tied table", &table[0], &t, units[0].trainable().len, |w| {
                run(&x, &own, &[w.to_vec(), table[1].clone()]).0
            });
        }
    }
}

#[test]
fn embeddings_of_every_form() {
    for form in forms().into_iter().chain([("llama", Form::default(), None)]) {
        let lab = Lab::new(|cell| {
            *cell = formed(cell.clone(), form);
            // Positions beyond the sequence stay as they are.
            cell.model.max_position_embeddings = 7;
        });
        let layer = lab.layout.embedding().unwrap();
        let flats = lab.weights(0);
        let ids: Vec<u32> = (0..lab.tokens() as u32).map(|t| (t * t) % 11).collect();
        let r = noise(4, lab.tokens() * lab.cell.model.hidden_size);
        let ex = lab.exec();
        let mut grads = vec![0.0; lab.layout.units[0].trainable().padded];
        let mut view = Grads::of(ViewMut::of(&mut grads));
        layer.backward(&ex, &weights(&flats), &mut view, View::of(&ids), lab.buffer(&r)).unwrap();
        check(form.0, &flats[0], &grads, lab.layout.units[0].trainable().len, |w| {
            let flats = [w.to_vec(), Vec::new()];
            dot(&values(&layer.forward(&ex, &weights(&flats), View::of(&ids)).unwrap()), &r)
        });
    }
}

#[test]
fn blocks_with_adapters_of_every_kind() {
    for (what, adapt) in adapters() {
        check_block(what, adapt);
    }
}

/// Where A or B moves, m is moved with the norm of the rows, so that their quotient stays: that holds the norms still, as
/// backward does.
#[test]
fn a_block_with_magnitudes() {
    let (what, adapt) = dora();
    let lab = Lab::new(adapt);
    let (block, unit, ex) = (lab.block(), &lab.layout.units[1], lab.exec());
    let flats = lab.weights(1);
    let len = lab.tokens() * lab.cell.model.hidden_size;
    let (x, r) = (noise(1, len), noise(2, len));
    let all = [Some(&block.q), Some(&block.k), Some(&block.v), Some(&block.o), block.gate.as_ref()];
    let layers: Vec<_> = all.into_iter().flatten().chain([&block.up, &block.down]).collect();
    assert!(layers.len() == 7 && layers.iter().all(|layer| layer.magnitude.is_some()));
    let norms = |w: &[f64]| -> Vec<Vec<f64>> {
        let of = |layer: &&zbench_engine::model::layers::LinearSpec| {
            let adapter = layer.adapter.unwrap();
            let (a, b) = (&w[adapter.a.range()], &w[adapter.b[0].0.range()]);
            let frozen = &flats[1][layer.weight.range()];
            let merged = |row: usize, col: usize| {
                let product: f64 =
                    (0..adapter.rank).map(|k| b[row * adapter.rank + k] * a[k * layer.input + col]).sum();
                frozen[row * layer.input + col] + f64::from(adapter.scale) * product
            };
            let norm = |row| (0..layer.input).map(|col| merged(row, col).powi(2)).sum::<f64>().sqrt();
            (0..layer.out).map(norm).collect()
        };
        layers.iter().map(of).collect()
    };
    let at_start = norms(&flats[0]);
    let mut grads = vec![0.0; unit.trainable().padded];
    let mut view = Grads::of(ViewMut::of(&mut grads));
    let (_, saved) = block.forward(&ex, &weights(&flats), lab.buffer(&x), true, &SavedTensor::ALL).unwrap();
    let dx = block.backward(&ex, &weights(&flats), &mut view, saved, lab.buffer(&r), &mut None).unwrap();
    check(what, &x, &values(&dx), x.len(), |x| block_output(&lab, &flats, x, &r));
    check(what, &flats[0], &grads, unit.trainable().len, |w| {
        let mut held = w.to_vec();
        for ((layer, before), now) in layers.iter().zip(&at_start).zip(norms(w)) {
            let m = &mut held[layer.magnitude.unwrap().m.range()];
            m.iter_mut().zip(before.iter().zip(now)).for_each(|(m, (before, now))| *m *= now / before);
        }
        block_output(&lab, &[held, flats[1].clone()], &x, &r)
    });
}
