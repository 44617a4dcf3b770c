//! A device whose operands lie on the host: they are carried there, and come back. So tests that know nothing of devices run on a
//! GPU, and what they test is the GPU's own kernels rather than what is done for it on the host.

use crate::harness::*;
use std::sync::{Arc, LazyLock};
use zbench_kernels::cuda::host::Order;
use zbench_kernels::*;

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

    fn carry<O: Operand>(&self, operand: O) -> Result<O::There> {
        operand.carry(self)
    }
}

/// An operand that is on the host.
trait Operand {
    type There: There;
    fn carry(self, to: &Carried) -> Result<Self::There>;
}

/// The same on the device.
trait There {
    type Lent<'a>
    where
        Self: 'a;
    fn lend(&mut self) -> Self::Lent<'_>;
    fn back(self, from: &Carried) -> Result<()>;
}

struct Input {
    buffer: Buffer,
    skip: usize,
    len: usize,
}

struct Output<'a>(Input, ViewMut<'a>);

impl Operand for View<'_> {
    type There = Input;

    fn carry(self, to: &Carried) -> Result<Input> {
        let (len, size) = (self.len(), self.dtype().size());
        // It begins as far from a multiple of 16 bytes as at home.
        let skip = self.ptr().as_ptr() as usize % 16 / size;
        let buffer = to.arena.alloc(Category::Workspace, self.dtype(), skip + len + 1);
        let mut buffer = buffer.unwrap_or_else(|error| panic!("{error}"));
        to.cuda.upload(self, buffer.slice_mut(skip..skip + len))?;
        Ok(Input { buffer, skip, len })
    }
}

impl There for Input {
    type Lent<'a> = View<'a>;

    fn lend(&mut self) -> View<'_> {
        self.buffer.slice(self.skip..self.skip + self.len)
    }

    fn back(self, _: &Carried) -> Result<()> {
        Ok(())
    }
}

impl<'h> Operand for ViewMut<'h> {
    type There = Output<'h>;

    fn carry(self, to: &Carried) -> Result<Output<'h>> {
        Ok(Output(self.as_view().carry(to)?, self))
    }
}

impl There for Output<'_> {
    type Lent<'a>
        = ViewMut<'a>
    where
        Self: 'a;

    fn lend(&mut self) -> ViewMut<'_> {
        let Input { buffer, skip, len } = &mut self.0;
        buffer.slice_mut(*skip..*skip + *len)
    }

    fn back(mut self, from: &Carried) -> Result<()> {
        from.cuda.download(self.0.lend(), self.1)
    }
}

impl<O: Operand> Operand for Option<O> {
    type There = Option<O::There>;

    fn carry(self, to: &Carried) -> Result<Self::There> {
        self.map(|operand| operand.carry(to)).transpose()
    }
}

impl<T: There> There for Option<T> {
    type Lent<'a>
        = Option<T::Lent<'a>>
    where
        Self: 'a;

    fn lend(&mut self) -> Self::Lent<'_> {
        self.as_mut().map(T::lend)
    }

    fn back(self, from: &Carried) -> Result<()> {
        self.map_or(Ok(()), |there| there.back(from))
    }
}

macro_rules! carried {
    ($(fn $name:ident($($op:ident: $of:ty)?; $($arg:ident: $ty:ty),* $(; $last:ident: $value:ty)?);)*) => {
        $(fn $name(&self, $($op: $of,)? $($arg: $ty,)* $($last: $value)?) -> Result<()> {
            $(let mut $arg = self.carry($arg)?;)*
            self.cuda.$name($($op,)? $($arg.lend(),)* $($last)?)?;
            $($arg.back(self)?;)*
            self.cuda.synchronize()
        })*
    };
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

    carried! {
        fn gemm(op: &Gemm; a: View<'_>, b: View<'_>, c: ViewMut<'_>, w: ViewMut<'_>);
        fn prepack(op: &Gemm; b: View<'_>, to: ViewMut<'_>);
        fn gemm_prepacked(op: &Gemm; a: View<'_>, b: View<'_>, c: ViewMut<'_>, w: ViewMut<'_>);
        fn rms_norm(op: &RmsNorm; x: View<'_>, w: View<'_>, y: ViewMut<'_>, rstd: ViewMut<'_>);
        fn rms_norm_backward(op: &RmsNorm; x: View<'_>, w: View<'_>, rstd: View<'_>, dy: View<'_>, dx: ViewMut<'_>, dw: Option<ViewMut<'_>>);
        fn layer_norm(op: &LayerNorm; x: View<'_>, w: View<'_>, b: Option<View<'_>>, y: ViewMut<'_>, s: ViewMut<'_>);
        fn layer_norm_backward(op: &LayerNorm; x: View<'_>, w: View<'_>, s: View<'_>, dy: View<'_>, dx: ViewMut<'_>, dw: Option<ViewMut<'_>>, db: Option<ViewMut<'_>>);
        fn add_rows(op: &AddRows; table: View<'_>, x: ViewMut<'_>);
        fn add_rows_backward(op: &AddRows; dy: View<'_>, dtable: ViewMut<'_>);
        fn inverse_norms(op: &InverseNorms; x: View<'_>, s: ViewMut<'_>);
        fn mul_rows(op: &MulRows; w: View<'_>, x: ViewMut<'_>);
        fn mul_rows_backward(op: &MulRows; x: View<'_>, dy: View<'_>, dw: ViewMut<'_>);
        fn activate(op: &Activate; x: View<'_>, y: ViewMut<'_>);
        fn activate_backward(op: &Activate; x: View<'_>, dy: View<'_>, dx: ViewMut<'_>);
        fn rope(op: &Rope; x: ViewMut<'_>, cos: View<'_>, sin: View<'_>);
        fn attention(op: &Attention; q: View<'_>, k: View<'_>, v: View<'_>, out: ViewMut<'_>, lse: ViewMut<'_>, w: ViewMut<'_>);
        fn attention_backward(op: &Attention; q: View<'_>, k: View<'_>, v: View<'_>, out: View<'_>, lse: View<'_>, dout: View<'_>, dq: ViewMut<'_>, dk: ViewMut<'_>, dv: ViewMut<'_>, w: ViewMut<'_>);
        fn naive_attention(op: &Attention; q: View<'_>, k: View<'_>, v: View<'_>, out: ViewMut<'_>, probs: ViewMut<'_>, w: ViewMut<'_>);
        fn naive_attention_backward(op: &Attention; q: View<'_>, k: View<'_>, v: View<'_>, probs: View<'_>, dout: View<'_>, dq: ViewMut<'_>, dk: ViewMut<'_>, dv: ViewMut<'_>, w: ViewMut<'_>);
        fn swiglu(op: &Swiglu; gate: View<'_>, up: View<'_>, act: ViewMut<'_>);
        fn swiglu_backward(op: &Swiglu; gate: View<'_>, up: View<'_>, dact: View<'_>, dgate: ViewMut<'_>, dup: ViewMut<'_>);
        fn embedding(op: &Embedding; ids: View<'_>, table: View<'_>, out: ViewMut<'_>);
        fn embedding_backward(op: &Embedding; ids: View<'_>, dy: View<'_>, dtable: ViewMut<'_>);
        fn cross_entropy(op: &CrossEntropy; logits: ViewMut<'_>, targets: View<'_>, losses: ViewMut<'_>);
        fn adamw(op: &AdamW; p: ViewMut<'_>, m: ViewMut<'_>, v: ViewMut<'_>, g: View<'_>, copy: Option<ViewMut<'_>>);
        fn dropout(op: &Dropout; x: View<'_>, y: ViewMut<'_>);
        fn normal(op: &Normal; dst: ViewMut<'_>);
        fn unpack(op: &Unpack; record: View<'_>, dst: ViewMut<'_>);
        fn pack(op: &Packed; src: View<'_>, codes: ViewMut<'_>, scales: ViewMut<'_>);
        fn quantize(op: &Quantize; src: View<'_>, values: ViewMut<'_>, scales: ViewMut<'_>);
        fn dequantize(op: &Quantize; values: View<'_>, scales: View<'_>, dst: ViewMut<'_>; accumulate: bool);
        fn fill(; dst: ViewMut<'_>; value: f64);
        fn cast(; src: View<'_>, dst: ViewMut<'_>);
        fn add(; a: View<'_>, b: View<'_>, dst: ViewMut<'_>);
        fn accumulate(alpha: f64; src: View<'_>, dst: ViewMut<'_>);
        fn scale(alpha: f64; dst: ViewMut<'_>);
    }

    fn sum(&self, x: View<'_>) -> Result<f64> {
        self.cuda.sum(self.carry(x)?.lend())
    }

    fn sum_squares(&self, x: View<'_>) -> Result<f64> {
        self.cuda.sum_squares(self.carry(x)?.lend())
    }

    fn reduce(&self, op: ReduceOp, sources: &[View<'_>], accumulate: bool, dst: ViewMut<'_>) -> Result<()> {
        let mut there = sources.iter().map(|source| self.carry(*source)).collect::<Result<Vec<_>>>()?;
        let (views, mut dst): (Vec<View>, _) = (there.iter_mut().map(Input::lend).collect(), self.carry(dst)?);
        self.cuda.reduce(op, &views, accumulate, dst.lend())?;
        dst.back(self)
    }
}

impl DocumentKernels for Carried {
    carried! {
        fn attention_in_documents(op: &Attention; s: View<'_>, q: View<'_>, k: View<'_>, v: View<'_>, out: ViewMut<'_>, lse: ViewMut<'_>, w: ViewMut<'_>);
        fn attention_in_documents_backward(op: &Attention; s: View<'_>, q: View<'_>, k: View<'_>, v: View<'_>, out: View<'_>, lse: View<'_>, dout: View<'_>, dq: ViewMut<'_>, dk: ViewMut<'_>, dv: ViewMut<'_>, w: ViewMut<'_>);
        fn naive_attention_in_documents(op: &Attention; s: View<'_>, q: View<'_>, k: View<'_>, v: View<'_>, out: ViewMut<'_>, probs: ViewMut<'_>, w: ViewMut<'_>);
    }
}

impl ExpertKernels for Carried {
    carried! {
        fn route(op: &Route; logits: View<'_>, weights: ViewMut<'_>, indices: ViewMut<'_>);
        fn route_backward(op: &Route; logits: View<'_>, indices: View<'_>, dweights: View<'_>, dlogits: ViewMut<'_>);
        fn dispatch(op: &Slots; indices: View<'_>, x: View<'_>, y: ViewMut<'_>);
        fn combine(op: &Combine; indices: View<'_>, x: View<'_>, weights: Option<View<'_>>, y: ViewMut<'_>);
        fn weigh(op: &Slots; indices: View<'_>, weights: View<'_>, x: ViewMut<'_>, dx: ViewMut<'_>, dweights: ViewMut<'_>);
        fn grouped_gemm(op: &GroupedGemm; offsets: View<'_>, a: View<'_>, b: View<'_>, c: ViewMut<'_>, w: ViewMut<'_>);
    }
}

/// The host in queues that do their work late has memory of its own, as a GPU has.
#[test]
fn carried_operands_give_what_those_at_hand_give() {
    let machine = host(Order::Forward);
    let carried = Carried::new(Cuda::new(Arc::new(machine.late())).unwrap());
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
            let op = AddRows { rows: 3, period: 1, cols: 43, dtype: DType::F32 };
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
    let op = CrossEntropy { rows: 1, vocab: 5, scale: 1.0, dtype: DType::F32, gradient: DType::F32 };
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
