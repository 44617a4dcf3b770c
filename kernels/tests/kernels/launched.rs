//! Every kernel that is not Hopper's own is started on the host by what a GPU starts it with, and in a way that a GPU takes.

use crate::harness::*;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use zbench_kernels::cuda::host::{Host, Order};
use zbench_kernels::cuda::sources::{SOURCES, Source};
use zbench_kernels::memory::device::{Address, Arguments, Device, DeviceProps, Event, Launch, Result, Stream};
use zbench_kernels::*;
use zbench_kernels_testing::ByName;

/// The host, with a list of what was started on it.
#[derive(Clone)]
struct Noting(Host, Arc<Mutex<Vec<Launch>>>);

impl Device for Noting {
    fn props(&self) -> &DeviceProps {
        self.0.props()
    }

    fn name(&self) -> String {
        self.0.name()
    }

    fn allocate(&self, bytes: usize) -> Result<Address> {
        self.0.allocate(bytes)
    }

    unsafe fn free(&self, address: Address, bytes: usize) {
        // SAFETY: the caller's promise, here and below.
        unsafe { self.0.free(address, bytes) }
    }

    fn new_stream(&self) -> Result<Box<dyn Stream>> {
        Ok(Box::new(self.clone()))
    }

    fn reaches_host(&self) -> bool {
        true
    }

    fn load(&self, kernels: &[&'static str]) -> Result<()> {
        self.0.load(kernels)
    }
}

impl Stream for Noting {
    unsafe fn launch(&self, launch: &Launch, arguments: Arguments<'_>) -> Result<()> {
        self.1.lock().unwrap().push(*launch);
        // SAFETY: the caller's promise.
        unsafe { self.0.launch(launch, arguments) }
    }

    unsafe fn copy(&self, from: Address, to: Address, bytes: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.0.copy(from, to, bytes) }
    }

    unsafe fn upload(&self, from: &[u8], to: Address) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.0.upload(from, to) }
    }

    unsafe fn download(&self, from: Address, to: &mut [u8]) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.0.download(from, to) }
    }

    unsafe fn memset(&self, to: Address, value: u8, bytes: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.0.memset(to, value, bytes) }
    }

    unsafe fn blas_gemm(
        &self,
        op: &Gemm,
        a: Address,
        b: Address,
        c: Address,
        w: Address,
        bytes: usize,
    ) -> Result<bool> {
        // SAFETY: the caller's promise.
        unsafe { self.0.blas_gemm(op, a, b, c, w, bytes) }
    }

    fn synchronize(&self) -> Result<()> {
        self.0.synchronize()
    }

    fn record_event(&self) -> Result<Box<dyn Event>> {
        Stream::record_event(&self.0)
    }

    fn wait_event(&self, mark: &dyn Event) -> Result<()> {
        Stream::wait_event(&self.0, mark)
    }
}

fn normal(dtype: DType, len: usize) -> Tensor {
    Tensor::normal(dtype, len, len as u64)
}

fn zeros(dtype: DType, len: usize) -> Tensor {
    Tensor::filled(dtype, len, 0.0)
}

fn elementwise(cuda: &Cuda) -> zbench_kernels::Result<()> {
    let (dtype, len) = (DType::Bf16, 300);
    let [x, y] = [0; 2].map(|_| normal(dtype, len));
    let [mut a, mut b] = [0; 2].map(|_| normal(dtype, len));
    cuda.fill(a.view_mut(), 1.0)?;
    cuda.cast(x.view(), zeros(DType::F32, len).view_mut())?;
    cuda.add(x.view(), y.view(), a.view_mut())?;
    cuda.accumulate(2.0, x.view(), a.view_mut())?;
    cuda.scale(0.5, a.view_mut())?;
    let op = PointwiseActivation { len, act: Activation::Silu, dtype };
    cuda.activate(&op, x.view(), a.view_mut())?;
    cuda.activate_backward(&op, x.view(), y.view(), a.view_mut())?;
    let op = GatedActivation { len, act: Activation::Silu, dtype };
    cuda.swiglu(&op, x.view(), y.view(), a.view_mut())?;
    cuda.swiglu_backward(&op, x.view(), y.view(), x.view(), a.view_mut(), b.view_mut())?;
    cuda.dropout(&Dropout { len, p: 0.5, seed: 1, first: 0, dtype }, x.view(), a.view_mut())?;
    let op = AdamW {
        len,
        lr: 0.1,
        beta1: 0.9,
        beta2: 0.99,
        eps: 1e-8,
        weight_decay: 0.1,
        step: 1,
        grad_scale: 1.0,
        clip: 1.0,
        parameters: dtype,
        gradients: dtype,
        moments: dtype,
        rounding: Rounding::Nearest,
        copy: None,
    };
    let (mut m, mut v) = (zeros(dtype, len), zeros(dtype, len));
    cuda.adamw(&op, a.view_mut(), m.view_mut(), v.view_mut(), x.view(), None)
}

fn tables_and_losses(cuda: &Cuda) -> zbench_kernels::Result<()> {
    // More tokens than one block sorts, of one id that several blocks share.
    let (rows, cols, vocab, dtype) = (2100, 8, 5, DType::F32);
    let op = Embedding { rows, cols, vocab: VocabPart::whole(vocab), padding: None, dtype };
    let ids = Tensor::ids(&(0..rows as u32).map(|i| i * i % 5).collect::<Vec<_>>());
    let (mut table, mut out) = (normal(dtype, vocab * cols), zeros(dtype, rows * cols));
    cuda.embedding(&op, ids.view(), table.view(), out.view_mut())?;
    cuda.embedding_backward(&op, ids.view(), out.view(), table.view_mut())?;
    let op = CrossEntropy { rows: 3, vocab: 40, scale: 1.0, dtype, gradient: dtype, pitch: 0 };
    let (mut logits, mut losses) = (normal(dtype, 120), zeros(dtype, 3));
    let targets = Tensor::ids(&[1, 39, 0]);
    cuda.cross_entropy(&op, logits.view_mut(), targets.view(), losses.view_mut())?;
    let part = VocabParallelStats { rows: 3, vocab: VocabPart { first: 20, len: 20, vocab_size: 40 }, dtype, pitch: 0 };
    let mut statistics = zeros(dtype, 2 * 3 * VocabParallelStats::NUMBERS);
    cuda.loss_parts(&part, targets.view(), logits.view(), statistics.view_mut())?;
    let op = VocabParallelCrossEntropy { part, ranks: 2, scale: 1.0, gradient: dtype };
    cuda.loss_of_parts(&op, targets.view(), statistics.view(), logits.view_mut(), losses.view_mut())
}

fn products(cuda: &Cuda) -> zbench_kernels::Result<()> {
    for dtype in FLOATS {
        let (m, n, k, trans_a, trans_b) = (16, 24, 8, false, false);
        let op = Gemm {
            m,
            n,
            k,
            trans_a,
            trans_b,
            alpha: 1.0,
            accumulate: false,
            a: dtype,
            b: dtype,
            c: dtype,
            ..Gemm::DENSE
        };
        let mut work = Tensor::workspace(cuda, &Op::Gemm(op));
        let (a, b, mut c) = (normal(dtype, m * k), normal(dtype, k * n), zeros(dtype, m * n));
        cuda.gemm(&op, a.view(), b.view(), c.view_mut(), work.view_mut())?;
    }
    Ok(())
}

fn rows(cuda: &Cuda) -> zbench_kernels::Result<()> {
    let (rows, cols, dtype) = (300, 40, DType::F32);
    let (x, w, dy) = (normal(dtype, rows * cols), normal(dtype, cols), normal(dtype, rows * cols));
    let (mut y, mut dx, mut dw) = (zeros(dtype, rows * cols), zeros(dtype, rows * cols), zeros(dtype, cols));
    let mut rstd = zeros(dtype, rows);
    let op = RmsNorm { rows, cols, eps: 1e-5, dtype, gradient: Some(dtype) };
    cuda.rms_norm(&op, x.view(), w.view(), y.view_mut(), rstd.view_mut())?;
    let (gradient, by) = (dx.view_mut(), Some(dw.view_mut()));
    cuda.rms_norm_backward(&op, x.view(), w.view(), rstd.view(), dy.view(), gradient, by)?;
    cuda.inverse_norms(&RowInvNorm { rows, cols, dtype }, x.view(), rstd.view_mut())?;
    let op = BiasAdd { rows, period: 1, cols, dtype };
    cuda.add_rows(&op, w.view(), y.view_mut())?;
    cuda.add_rows_backward(&op, dy.view(), dw.view_mut())?;
    let op = Rope { rows: 6, seq: 3, heads: 2, head_dim: 8, inverse: false, dtype };
    let (cos, sin) = (normal(dtype, 12), normal(dtype, 12));
    cuda.rope(&op, y.view_mut(), cos.view(), sin.view())
}

fn attention(cuda: &Cuda) -> zbench_kernels::Result<()> {
    let dims = [64, 96, 128].map(|dim| (DType::Bf16, dim));
    for (dtype, head_dim) in dims.into_iter().chain(dims.map(|(_, dim)| (DType::F16, dim))).chain([(DType::F32, 16)]) {
        let (batch, seq, heads, kv_heads) = (1, 20, 2, 1);
        let op = Attention {
            batch,
            seq,
            kv_seq: seq,
            causal: true,
            heads,
            kv_heads,
            head_dim,
            scale: 0.1,
            window: None,
            alibi: None,
            dtype,
        };
        let (len, kv_len) = (seq * heads * head_dim, seq * kv_heads * head_dim);
        let [q, dout] = [0; 2].map(|_| normal(dtype, len));
        let [k, v] = [0; 2].map(|_| normal(dtype, kv_len));
        let ([mut out, mut dq], [mut dk, mut dv]) =
            ([0; 2].map(|_| zeros(dtype, len)), [0; 2].map(|_| zeros(dtype, kv_len)));
        let (mut lse, mut probs) = (zeros(DType::F32, heads * seq), zeros(dtype, heads * seq * seq));
        let kinds = [Op::Attention, Op::AttentionBackward, Op::NaiveAttention, Op::NaiveAttentionBackward];
        let [mut a, mut b, mut c, mut d] = kinds.map(|kind| Tensor::workspace(cuda, &kind(op)));
        let starts = Tensor::ids(&[[0; 9].as_slice(), &[9; 11]].concat());
        let (q, k, v) = (q.view(), k.view(), v.view());
        cuda.attention(&op, q, k, v, out.view_mut(), lse.view_mut(), a.view_mut())?;
        cuda.attention_in_documents(&op, starts.view(), q, k, v, out.view_mut(), lse.view_mut(), a.view_mut())?;
        let (x, y, z) = (dq.view_mut(), dk.view_mut(), dv.view_mut());
        cuda.attention_backward(&op, q, k, v, out.view(), lse.view(), dout.view(), x, y, z, b.view_mut())?;
        cuda.naive_attention(&op, q, k, v, out.view_mut(), probs.view_mut(), c.view_mut())?;
        let (x, y, z) = (dq.view_mut(), dk.view_mut(), dv.view_mut());
        cuda.naive_attention_backward(&op, q, k, v, probs.view(), dout.view(), x, y, z, d.view_mut())?;
    }
    Ok(())
}

fn reductions(cuda: &Cuda) -> zbench_kernels::Result<()> {
    let sources = [DType::F32, DType::F64].map(|dtype| normal(dtype, 100));
    for dtype in [DType::F32, DType::F64] {
        cuda.reduce(ReduceOp::Sum, &[sources[0].view()], false, zeros(dtype, 100).view_mut())?;
    }
    let (ids, mut to) = (Tensor::ids(&[3; 100]), Tensor::ids(&[0; 100]));
    cuda.reduce(ReduceOp::Max, &[ids.view(), ids.view()], false, to.view_mut())?;
    let later = cuda.sum_async(&Op::sum(sources[0].view().len(), sources[0].dtype), sources[0].view())?;
    let mut told = [0.0];
    cuda.read_scalars(&[later], &mut told)?;
    assert_eq!(told, [cuda.sum(sources[0].view())?]);
    Ok(())
}

fn few_bits(cuda: &Cuda) -> zbench_kernels::Result<()> {
    let x = normal(DType::F32, 3 * 43);
    for (format, block) in [(QuantFormat::Int8, 16), (QuantFormat::Int4, 33)] {
        let op = Quantize { format, block };
        let (mut values, mut scales) = (vec![0i8; op.values_len(x.len)], vec![0f32; op.scales_len(x.len)]);
        cuda.quantize(&op, x.view(), ViewMut::of(&mut values), ViewMut::of(&mut scales))?;
        let mut back = zeros(DType::F32, x.len);
        cuda.dequantize(&op, View::of(&values), View::of(&scales), back.view_mut(), false)?;
    }
    for packing in [Packing::Nf4, Packing::Int8] {
        let matrix = Packed { packing, rows: 3, cols: 43 };
        let (mut codes, mut scales) = (vec![0i8; matrix.codes_len(x.len)], vec![0f32; matrix.blocks()]);
        cuda.pack(&matrix, x.view(), ViewMut::of(&mut codes), ViewMut::of(&mut scales))?;
        let record = Tensor::exactly(&vec![1i8; matrix.fields().bytes]);
        cuda.unpack(&Unpack { matrix, dtype: DType::F32 }, record.view(), zeros(DType::F32, x.len).view_mut())?;
    }
    Ok(())
}

fn experts(cuda: &Cuda) -> zbench_kernels::Result<()> {
    let (rows, experts, top, cols, dtype) = (7, 5, 2, 16, DType::F32);
    let op = Route { rows, experts, top, normalised: true, rounded: false, dtype };
    let logits = normal(dtype, rows * experts);
    let (mut weights, mut indices) = (zeros(dtype, op.slots()), Tensor::ids(&vec![0; op.indices_len()]));
    cuda.route(&op, logits.view(), weights.view_mut(), indices.view_mut())?;
    let (mut dweights, mut dlogits) = (normal(dtype, op.slots()), zeros(dtype, rows * experts));
    cuda.route_backward(&op, logits.view(), indices.view(), dweights.view(), dlogits.view_mut())?;
    let slots = Slots { rows, top, experts, cols, dtype };
    let (mut x, mut y) = (normal(dtype, rows * cols), zeros(dtype, op.slots() * cols));
    let mut dy = normal(dtype, op.slots() * cols);
    cuda.dispatch(&slots, indices.view(), x.view(), y.view_mut())?;
    let back = Combine { slots, weighted: true, accumulate: false };
    cuda.combine(&back, indices.view(), y.view(), Some(weights.view()), x.view_mut())?;
    cuda.weigh(&slots, indices.view(), weights.view(), y.view_mut(), dy.view_mut(), dweights.view_mut())
}

/// Threads that a block of each kernel may have, as its source has it.
fn bounds() -> BTreeMap<String, u32> {
    let heads = SOURCES.iter().flat_map(|source| source.text.split("__launch_bounds__(").skip(1));
    let bound = |head: &str| {
        let (numbers, rest) = head.split_once(')').unwrap();
        let most = numbers.split(',').next().unwrap().trim().parse().unwrap_or_else(|_| panic!("{numbers} of {rest}"));
        (rest.split('(').next().unwrap().trim().to_owned(), most)
    };
    heads.map(bound).collect()
}

/// Bytes of shared memory that each kernel has of its own, as the compiler noted them.
fn own_shared() -> BTreeMap<String, u32> {
    let noted = include_str!("../../cuda/usage.csv").lines().map(|line| line.split(',').collect::<Vec<_>>());
    noted.filter(|line| line[0] == "sm_90a").map(|line| (line[1].to_owned(), line[3].parse().unwrap())).collect()
}

#[test]
fn every_kernel_but_hoppers_is_started_on_the_host_as_a_gpu_takes_it() {
    let noting = Noting(host(Order::Forward), Arc::default());
    let cuda = Cuda::new(Arc::new(noting.clone())).unwrap();
    for work in [elementwise, tables_and_losses, products, rows, attention, reductions, few_bits, experts] {
        work(&cuda).unwrap();
    }
    cuda.synchronize().unwrap();
    let launches = noting.1.lock().unwrap().clone();
    let of = |hopper: bool| -> Vec<&str> {
        let mut names: Vec<_> =
            SOURCES.iter().filter(|source| source.hopper == hopper).flat_map(Source::kernels).collect();
        names.sort_unstable();
        names
    };
    let mut launched: Vec<&str> = launches.iter().map(|launch| launch.kernel).collect();
    launched.sort_unstable();
    launched.dedup();
    let (plain, hopper) = (of(false), of(true));
    println!("{} kernels in all sources, {} launched on the host", plain.len() + hopper.len(), launched.len());
    println!("{} of Hopper's own, which nothing imitates: {hopper:?}", hopper.len());
    let missing: Vec<_> = plain.iter().filter(|name| !launched.contains(name)).collect();
    assert!(launched == plain, "never started: {missing:?}");

    // The host takes what a GPU refuses: more threads than a kernel was compiled for, or more shared memory than there is.
    let (bounds, own) = (bounds(), own_shared());
    for launch in &launches {
        let most = bounds[launch.kernel];
        assert!(
            launch.threads.is_multiple_of(32) && (32..=most).contains(&launch.threads),
            "{launch:?}, {most} at most"
        );
        let shared = own.get(launch.kernel).copied().unwrap_or_else(|| panic!("{} is not noted", launch.kernel));
        assert!(launch.shared + shared <= 227 << 10, "{launch:?}, and {shared} bytes of its own");
    }
}
