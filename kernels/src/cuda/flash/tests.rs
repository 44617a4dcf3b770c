//! Parts of a sequence: what a rank that has some of its queries, and meets some of its keys, gets adds up to the whole.

use super::*;
use crate::cuda::host::{Host, Order};
use crate::numerics::philox;
use crate::{Cpu, Kernels, ReduceOp, View, ViewMut, no_scratch};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

/// Elements at a multiple of 16 bytes.
struct Data {
    words: Vec<u128>,
    dtype: DType,
    len: usize,
}

impl Data {
    fn of(dtype: DType, values: &[f64]) -> Data {
        let words = vec![0; (values.len() * dtype.size()).div_ceil(16).max(1)];
        let mut data = Data { words, dtype, len: values.len() };
        convert(View::of(values), data.view_mut());
        data
    }

    fn normal(dtype: DType, len: usize, seed: u64) -> Data {
        let draws = (0..len.div_ceil(4) as u64).flat_map(|block| philox::normals(seed, block));
        Data::of(dtype, &draws.take(len).map(f64::from).collect::<Vec<_>>())
    }

    fn empty(dtype: DType, len: usize) -> Data {
        Data::of(dtype, &vec![f64::NAN; len])
    }

    fn view(&self) -> View<'_> {
        // SAFETY: the words hold `len` elements of `dtype`.
        unsafe { View::from_raw(NonNull::from(&self.words[..]).cast(), self.dtype, self.len) }
    }

    fn view_mut(&mut self) -> ViewMut<'_> {
        // SAFETY: as above, and lent for writing.
        unsafe { ViewMut::from_raw(NonNull::from(&mut self.words[..]).cast(), self.dtype, self.len) }
    }

    fn values(&self) -> Vec<f64> {
        let mut values = vec![0.0; self.len];
        convert(self.view(), ViewMut::of(&mut values));
        values
    }
}

/// A sum of one term: the cores reduce every type, f64 too, and round once.
fn convert(from: View<'_>, to: ViewMut<'_>) {
    Cpu::new(1).reduce(ReduceOp::Sum, &[from], false, to).unwrap();
}

/// Kernels, rows of their tiles, and threads of a block: forward, gradients of keys, gradients of queries.
type Kinds = [(&'static str, usize, u32); 3];

struct Whole {
    cuda: Cuda,
    kinds: Kinds,
    op: Attention,
    starts: Vec<u32>,
    /// q, k, v, dout.
    given: [Data; 4],
    out: Data,
    lse: Data,
}

/// What a part gives: the output and its log-sum-exp, and the gradients of its queries, keys and values.
struct Part {
    out: Vec<f64>,
    lse: Vec<f64>,
    grads: [Vec<f64>; 3],
}

impl Whole {
    fn part(&self, rows: Range<usize>, keys: Range<usize>) -> Part {
        let Attention { heads, kv_heads, head_dim, dtype, seq, .. } = self.op;
        let [q, dout, whole_out] = [&self.given[0], &self.given[3], &self.out]
            .map(|data| data.view().slice(rows.start * heads * head_dim..rows.end * heads * head_dim));
        let [k, v] = [&self.given[1], &self.given[2]]
            .map(|data| data.view().slice(keys.start * kv_heads * head_dim..keys.end * kv_heads * head_dim));
        let (count, lines) = (rows.len() * heads * head_dim, rows.len() * heads);
        let all: Vec<f64> = self.lse.values();
        let own: Vec<f64> = (0..heads).flat_map(|h| &all[h * seq..][rows.clone()]).copied().collect();
        let (whole_lse, mut delta) = (Data::of(DType::F32, &own), Data::empty(DType::F32, lines));
        let (mut out, mut lse) = (Data::empty(dtype, count), Data::empty(DType::F32, lines));
        let mut grads = [count, k.len(), k.len()].map(|len| Data::empty(dtype, len));
        let forward = Attend {
            out: DeviceSlice::of(&out.view_mut()),
            lse: DeviceSlice::of(&lse.view_mut()).address(),
            starts: self.starts[rows.start..].as_ptr() as Address,
            rows: rows.len() as u32,
            keys: keys.len() as u32,
            q_offset: rows.start as i32,
            k_offset: keys.start as i32,
            ..Attend::new(&self.op, [q, k, v].map(|view| DeviceSlice::of(&view)))
        };
        let backward = Attend {
            out: DeviceSlice::of(&whole_out),
            dout: DeviceSlice::of(&dout),
            gradients: grads.each_mut().map(|gradient| DeviceSlice::of(&gradient.view_mut())),
            lse: DeviceSlice::of(&whole_lse.view()).address(),
            delta: DeviceSlice::of(&delta.view_mut()).address(),
            ..forward
        };
        let [by_rows, by_keys, by_rows_again] = self.kinds;
        let start = |(name, tile, threads): (&'static str, usize, u32), attend: Attend, rows: usize, heads: usize| {
            let (grid, outputs) = ([rows.div_ceil(tile) * heads, 1, 1], 1u32);
            let shared = if tile == TILE { 512 * head_dim * 2 + 1536 } else { 0 };
            // SAFETY: the kernels' parameters; one has none that the others lack.
            unsafe { self.cuda.launch(name, grid, threads, shared, arguments![attend, outputs]) }.unwrap();
        };
        start(by_rows, forward, rows.len(), heads);
        start(("attention_delta", 1, 256), backward, 1, 1);
        start(by_keys, backward, keys.len(), kv_heads);
        start(by_rows_again, backward, rows.len(), heads);
        Part { out: out.values(), lse: lse.values(), grads: grads.map(|data| data.values()) }
    }
}

fn assert_alike(case: &str, got: &[f64], want: &[f64], within: f64) {
    assert_eq!(got.len(), want.len(), "{case}");
    let rms = (want.iter().map(|x| x * x).sum::<f64>() / want.len() as f64).sqrt();
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert!((got - want).abs() <= within * (rms + want.abs()), "{case}: element {i} is {got}, not {want}");
    }
}

fn check(kinds: Kinds, dtype: DType, within: f64) {
    let cache = std::env::current_exe().unwrap().with_file_name("cache/kernels");
    let cuda = Cuda::new(Arc::new(Host::new(&cache, "c++", &[], Order::Forward).unwrap())).unwrap();
    let (seq, heads, kv_heads, head_dim) = (150, 2, 1, 64);
    let op = Attention {
        batch: 1,
        seq,
        kv_seq: seq,
        causal: true,
        heads,
        kv_heads,
        head_dim,
        scale: 0.125,
        window: Some(90),
        alibi: Some(AlibiHeads::whole(heads)),
        dtype,
    };
    let (len, kv_len) = (seq * heads * head_dim, seq * kv_heads * head_dim);
    let given = [(len, 1), (kv_len, 2), (kv_len, 3), (len, 4)].map(|(len, seed)| Data::normal(dtype, len, seed));
    let starts: Vec<u32> = (0..seq as u32).map(|row| if row < 60 { 0 } else { 60 }).collect();
    let (mut out, mut lse) = (Data::empty(dtype, len), Data::empty(DType::F32, seq * heads));
    let (documents, [q, k, v, dout]) = (View::of(&starts), given.each_ref().map(Data::view));
    let mut work = Data::empty(DType::F32, lines(&op));
    let forward = &mut [out.view_mut(), lse.view_mut()];
    cuda.run(&Op::Attention(op), &[q, k, v, documents], forward, no_scratch()).unwrap();
    let mut grads = [len, kv_len, kv_len].map(|len| Data::empty(dtype, len));
    let [dq, dk, dv] = &mut grads;
    let (dq, dk, dv, work) = (dq.view_mut(), dk.view_mut(), dv.view_mut(), work.view_mut());
    let reads = [q, k, v, out.view(), lse.view(), dout, documents];
    cuda.run(&Op::AttentionBackward(op), &reads, &mut [dq, dk, dv], work).unwrap();

    let whole = Whole { cuda, kinds, op, starts, given, out, lse };
    let (all_out, all_lse) = (whole.out.values(), whole.lse.values());
    let [mut dq, mut dk, mut dv] = [len, kv_len, kv_len].map(|len| vec![0.0; len]);
    for rows in [0..96, 96..seq] {
        let parts = [0..70, 70..seq].map(|keys| (keys.clone(), whole.part(rows.clone(), keys)));
        for (keys, part) in &parts {
            let add = |to: &mut [f64], from: usize, part: &[f64]| {
                to[from..].iter_mut().zip(part).for_each(|(to, part)| *to += part);
            };
            add(&mut dq, rows.start * heads * head_dim, &part.grads[0]);
            add(&mut dk, keys.start * head_dim, &part.grads[1]);
            add(&mut dv, keys.start * head_dim, &part.grads[2]);
        }
        let (mut out, mut want) = (Vec::new(), Vec::new());
        for (row, head) in rows.clone().flat_map(|row| (0..heads).map(move |head| (row, head))) {
            let line = head * rows.len() + row - rows.start;
            let lse: f64 = parts.iter().map(|(_, part)| part.lse[line].exp()).sum::<f64>().ln();
            assert!((lse - all_lse[head * seq + row]).abs() < 1e-5, "row {row}: {lse}");
            let at = ((row - rows.start) * heads + head) * head_dim;
            let share = |i: usize| parts.iter().map(|(_, part)| (part.lse[line] - lse).exp() * part.out[at + i]).sum();
            out.extend((0..head_dim).map(share).map(|x: f64| x));
            want.extend_from_slice(&all_out[(row * heads + head) * head_dim..][..head_dim]);
        }
        assert_alike("out", &out, &want, within);
    }
    for (name, got, want) in [("dq", &dq, &grads[0]), ("dk", &dk, &grads[1]), ("dv", &dv, &grads[2])] {
        assert_alike(name, got, &want.values(), within);
    }
}

#[test]
fn parts_of_a_sequence_add_up_on_tensor_cores() {
    let kinds = [("flash_bf16_64", TILE, 128), ("flash_dkv_bf16_64", TILE, 128), ("flash_dq_bf16_64", TILE, 128)];
    // Of up to three numbers each is rounded once.
    check(kinds, DType::Bf16, 3.0 * 2f64.powi(-8));
}

#[test]
fn parts_of_a_sequence_add_up_in_f32() {
    let kinds = [("plain_attention", PLAIN_TILE, 256), ("plain_dkv", PLAIN_TILE, 256), ("plain_dq", PLAIN_TILE, 256)];
    check(kinds, DType::F32, 1e-5);
}
