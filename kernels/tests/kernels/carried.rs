//! A device whose operands lie on the host: they are carried there, and come back. So tests that know nothing of devices run on a
//! GPU, and what they test is the GPU's own kernels rather than what is done for it on the host.

use crate::harness::*;
use std::sync::{Arc, LazyLock};
use zbench_kernels::cuda::host::Order;
use zbench_kernels::*;
use zbench_kernels_testing::{ByName, Late};

/// Everything that computes in f32: the cores in all ways, and the CUDA kernels, on the host and on a GPU where one is asked for.
pub fn all() -> impl Iterator<Item = &'static dyn Kernels> {
    let cores = CPUS.iter().chain(PLAINER.iter()).map(|cpu| cpu as &dyn Kernels);
    cores.chain(CUDAS.iter().map(|cuda| cuda as &dyn Kernels)).chain(on_gpu())
}

/// The GPU's kernels for operands that lie anywhere; none where nobody asks for it.
pub fn on_gpu() -> impl Iterator<Item = &'static dyn Kernels> {
    static CARRIED: LazyLock<Option<Carried>> =
        LazyLock::new(|| gpu().map(|gpu| Carried::new(Cuda::new(Arc::new(gpu.clone())).unwrap())));
    CARRIED.iter().map(|carried| carried as &dyn Kernels)
}

/// Kernels, and room for their operands.
pub struct Carried {
    cuda: Cuda,
    arena: Arena,
}

impl Carried {
    pub fn new(cuda: Cuda) -> Carried {
        // A part of the device: other tests use it too.
        let arena = cuda.arena(None, 16).unwrap_or_else(|error| panic!("{error}"));
        Carried { cuda, arena }
    }

    fn carry(&self, operand: View<'_>) -> Result<There> {
        let (len, size) = (operand.len(), operand.dtype().size());
        // It begins as far from a multiple of 16 bytes as at home.
        let skip = operand.ptr().as_ptr() as usize % 16 / size;
        let buffer = self.arena.alloc(Category::Workspace, operand.dtype(), skip + len + 1);
        let mut buffer = buffer.unwrap_or_else(|error| panic!("{error}"));
        self.cuda.upload(operand, buffer.slice_mut(skip..skip + len))?;
        Ok(There { buffer, skip, len })
    }
}

/// An operand on the device.
struct There {
    buffer: Buffer,
    skip: usize,
    len: usize,
}

impl There {
    fn view(&self) -> View<'_> {
        self.buffer.slice(self.skip..self.skip + self.len)
    }

    fn view_mut(&mut self) -> ViewMut<'_> {
        self.buffer.slice_mut(self.skip..self.skip + self.len)
    }
}

impl Kernels for Carried {
    fn name(&self) -> String {
        format!("{}, operands carried", self.cuda.name())
    }

    fn threads(&self) -> usize {
        self.cuda.threads()
    }

    fn workspace(&self, op: &Op) -> usize {
        self.cuda.workspace(op)
    }

    fn prepacked_len(&self, op: &Gemm) -> Option<usize> {
        self.cuda.prepacked_len(op)
    }

    fn run(&self, op: &Op, reads: &[View<'_>], writes: &mut [ViewMut<'_>], scratch: ViewMut<'_>) -> Result<()> {
        let inputs = reads.iter().map(|view| self.carry(*view)).collect::<Result<Vec<_>>>()?;
        let mut outputs = writes.iter().map(|view| self.carry(view.as_view())).collect::<Result<Vec<_>>>()?;
        let views: Vec<View> = inputs.iter().map(There::view).collect();
        let mut scratch = self.carry(scratch.as_view())?;
        let mut outs: Vec<ViewMut> = outputs.iter_mut().map(There::view_mut).collect();
        self.cuda.run(op, &views, &mut outs, scratch.view_mut())?;
        for (output, home) in outputs.iter().zip(writes) {
            self.cuda.download(output.view(), home.reborrow())?;
        }
        self.cuda.synchronize()
    }

    fn sum_async(&self, op: &Op, x: View<'_>) -> Result<Sum> {
        let (x, mut value) = (self.carry(x)?, [0.0]);
        let sum = self.cuda.sum_async(op, x.view())?;
        self.cuda.read_scalars(&[sum], &mut value)?;
        Ok(Sum::Known(value[0]))
    }
}

/// The host in queues that do their work late has memory of its own, as a GPU has.
#[test]
fn carried_operands_give_what_those_at_hand_give() {
    let machine = host(Order::Forward);
    let carried = Carried::new(Cuda::new(Arc::new(Late(machine.clone()))).unwrap());
    let before = machine.launches();
    let ran = |kernel: &str| machine.launches().get(kernel) > before.get(kernel);
    let len = 3 * 43;
    let (x, narrow) = (Tensor::normal(DType::F32, len + 1, 5), Tensor::normal(DType::Bf16, len, 7));
    for from in 0..2 {
        let x = x.view().slice(from..from + len);
        let alike = |call: &dyn Fn(&dyn Kernels, ViewMut<'_>)| {
            let both = [&carried as &dyn Kernels, &CUDAS[0]].map(|kernels| {
                let mut to = Tensor::normal(DType::F32, len + 9, 6);
                call(kernels, to.view_mut().into_slice(from..from + len));
                to.bits()
            });
            assert_eq!(both[0], both[1]);
        };
        alike(&|kernels, to| kernels.cast(narrow.view(), to).unwrap());
        alike(&|kernels, mut to| kernels.fill(to.reborrow(), 2.5).unwrap());
        alike(&|kernels, to| kernels.accumulate(0.3, x, to).unwrap());
        alike(&|kernels, to| kernels.reduce(ReduceOp::Sum, &[x, x, x], true, to).unwrap());
        alike(&|kernels, mut to| {
            let op = Quantize { format: QuantFormat::Int4, block: 33 };
            let (mut values, mut scales) = (vec![0i8; op.values_len(len)], vec![0f32; op.scales_len(len)]);
            kernels.quantize(&op, x, ViewMut::of(&mut values), ViewMut::of(&mut scales)).unwrap();
            kernels.dequantize(&op, View::of(&values), View::of(&scales), to.reborrow(), true).unwrap();
        });
        alike(&|kernels, to| {
            let op = BiasAdd { rows: 3, period: 1, cols: 43, dtype: DType::F32 };
            kernels.add_rows(&op, x.slice(0..43), to).unwrap();
        });
        assert_eq!(carried.sum(x).unwrap().to_bits(), CUDAS[0].sum(x).unwrap().to_bits());
        assert_eq!(carried.sum_squares(x).unwrap().to_bits(), CUDAS[0].sum_squares(x).unwrap().to_bits());
    }
    // They were the device's own.
    for kernel in
        ["cast", "fill", "accumulate", "reduce_floats", "quantize_values", "dequantize", "broadcast_rows", "sum"]
    {
        assert!(ran(kernel), "{kernel} was done elsewhere");
    }
    let (ids, mut losses) = (Tensor::ids(&[7]), Tensor::filled(DType::F32, 1, 0.0));
    let op = CrossEntropy { rows: 1, vocab: 5, scale: 1.0, dtype: DType::F32, gradient: DType::F32, pitch: 0 };
    let mut logits = Tensor::normal(DType::F32, 5, 1);
    let refused = carried.cross_entropy(&op, logits.view_mut(), ids.view(), losses.view_mut());
    assert!(refused.unwrap_err().to_string().contains("target 7"), "a fault comes out of the call itself");
}

/// With ZBENCH_TEST_GPU=1 and no GPU this fails where the GPU is opened.
#[test]
fn a_gpu_that_is_asked_for_is_among_all() {
    let asked = std::env::var_os("ZBENCH_TEST_GPU").is_some_and(|value| value == "1");
    assert_eq!(all().any(|kernels| kernels.name().starts_with("cuda sm_")), asked);
    assert_eq!(!gpus().is_empty(), asked);
}
