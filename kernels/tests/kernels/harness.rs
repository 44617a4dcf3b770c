//! Tensors of any type, and the comparison of one call on all devices.

use proptest::test_runner::Config;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::{Arc, LazyLock};
use zbench_kernels::cpu::peak;
use zbench_kernels::cuda::gpu::{Gpu, Options, Pinned, Probe, Search};
use zbench_kernels::cuda::host::{Host, Order};
use zbench_kernels::numerics::philox;
use zbench_kernels::{Cpu, Cuda, DType, Element, Kernels, Op, Result, View, ViewMut};
use zbench_kernels_testing::Reference;
use zbench_test_tiers::{Tier, tier};

/// Types that the cores compute in.
pub const FLOATS: [DType; 3] = [DType::F32, DType::Bf16, DType::F16];

/// Devices with 1, 2 and 3 threads, shared by all tests.
pub static CPUS: LazyLock<[Cpu; 3]> = LazyLock::new(|| [1, 2, 3].map(Cpu::new));

/// Devices with every plainer set of instructions that this machine has.
pub static PLAINER: LazyLock<Vec<Cpu>> =
    LazyLock::new(|| peak::describe().iter().filter_map(|name| Cpu::with_instructions(2, name)).collect());

/// The CUDA kernels on the processor: threads of a block in their order, and from the last to the first.
/// ZBENCH_HOST_CUDA_FLAGS adds flags for the compiler, as for AddressSanitizer.
pub static CUDAS: LazyLock<[Cuda; 2]> =
    LazyLock::new(|| [Order::Forward, Order::Backward].map(|order| Cuda::new(Arc::new(host(order))).unwrap()));

/// A machine of a test's own: its faults and launches are nobody else's.
pub fn host(order: Order) -> Host {
    let flags = std::env::var("ZBENCH_HOST_CUDA_FLAGS").unwrap_or_default();
    let flags: Vec<_> = flags.split_whitespace().map(Into::into).collect();
    // Beside the test's own program: tests inside the crate have no folder of Cargo's. All test programs of the workspace share it,
    // so that C++ is compiled once; what is compiled with other flags lies apart.
    let own = std::env::current_exe().unwrap();
    let folder = if flags.is_empty() { "cache/kernels" } else { "cache-with-flags" };
    let cache = own.parent().unwrap_or(Path::new(".")).join(folder);
    Host::new(&cache, "c++", &flags, order).unwrap_or_else(|error| panic!("{error}"))
}

/// Random cases of a property in the full tier; a share of them in the others, or what PROPTEST_CASES sets, as under a sanitizer.
pub fn cases(most: u32) -> Config {
    let asked = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    let of_tier = match tier() {
        Tier::Fast => most.div_ceil(8),
        Tier::Ci => most.div_ceil(3),
        Tier::Full => most,
    };
    Config::with_cases(asked.map_or(of_tier, |asked: u32| asked.min(most)))
}

/// The orders of a block's threads that a comparison runs: both, or in the fast tier one of them, by the name of the case.
fn cudas(case: &str) -> &'static [Cuda] {
    let one = case.bytes().map(usize::from).sum::<usize>() % 2;
    if tier() == Tier::Fast { &CUDAS[one..=one] } else { &CUDAS[..] }
}

/// How far a result may be from the reference on the same inputs in f64: relative to the value, and to the root mean
/// square of the tensor (sums of large terms may cancel).
///
/// A result is rounded once, half a unit in the last place: 2^-24, 2^-8 and 2^-11 of the value. f32 arithmetic loses
/// some units more in sums of up to a few thousand terms. A narrow type may also round what is used further (naive
/// attention's stored probabilities), so it gets twice its rounding on both counts.
fn tolerance(dtype: DType) -> (f64, f64) {
    match dtype {
        DType::F64 => (1e-12, 1e-12),
        DType::F32 => (1e-5, 1e-5),
        DType::Bf16 => (2f64.powi(-7), 2f64.powi(-7)),
        DType::F16 => (2f64.powi(-10), 2f64.powi(-10)),
        DType::U32 | DType::I32 | DType::I8 => (0.0, 0.0),
    }
}

/// A real GPU, where ZBENCH_TEST_GPU=1 asks for it, and its kernels twice: what they compute has to come out alike.
static GPU: LazyLock<Option<(Gpu, [Cuda; 2])>> = LazyLock::new(|| {
    std::env::var_os("ZBENCH_TEST_GPU").filter(|value| value == "1")?;
    let probe = Probe::new(&Search::new(|name| std::env::var_os(name)));
    let folder = std::env::current_exe().unwrap();
    let folder = folder.parent().unwrap_or(Path::new("."));
    let options = Options { cache: Some(folder.join("cubins")), ..Options::default() };
    let gpu = Gpu::open(&probe, 0, options).unwrap_or_else(|error| panic!("ZBENCH_TEST_GPU is set: {error}\n{probe}"));
    let kernels = [0, 1].map(|_| Cuda::new(Arc::new(gpu.clone())).unwrap_or_else(|error| panic!("{error}")));
    Some((gpu, kernels))
});

/// The real GPU; none where nobody asks for it.
pub fn gpu() -> Option<&'static Gpu> {
    GPU.as_ref().map(|(gpu, _)| gpu)
}

/// Its kernels; none where nobody asks for it.
pub fn gpus() -> &'static [Cuda] {
    GPU.as_ref().map_or(&[], |(_, kernels)| kernels)
}

thread_local! {
    /// Whether tensors of this thread show themselves as memory of a device.
    static ON_DEVICE: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Runs `work` with tensors that show themselves as memory of a device, if they are to.
fn on_device<T>(are: bool, work: impl FnOnce() -> T) -> T {
    ON_DEVICE.set(are);
    let result = work();
    ON_DEVICE.set(false);
    result
}

/// The same with the device that kernels run on: what a GPU reaches of the host's memory counts as its own.
pub fn on_device_of<T>(cuda: &Cuda, work: impl FnOnce() -> T) -> T {
    on_device(gpus().iter().any(|gpu| std::ptr::eq(gpu, cuda)), work)
}

/// Memory of a tensor: where there is a GPU, such as it reaches too.
#[derive(Debug)]
enum Words {
    Own(Vec<u64>),
    Reached(Pinned),
}

impl Words {
    fn zeros(count: usize) -> Words {
        match &*GPU {
            None => Words::Own(vec![0; count]),
            Some((gpu, _)) => Words::Reached(gpu.pinned(count * 8).unwrap_or_else(|error| panic!("{error}"))),
        }
    }
}

impl std::ops::Deref for Words {
    type Target = [u64];

    fn deref(&self) -> &[u64] {
        match self {
            Words::Own(words) => words,
            Words::Reached(memory) => bytemuck::cast_slice(memory.bytes()),
        }
    }
}

impl std::ops::DerefMut for Words {
    fn deref_mut(&mut self) -> &mut [u64] {
        match self {
            Words::Own(words) => words,
            Words::Reached(memory) => bytemuck::cast_slice_mut(memory.bytes_mut()),
        }
    }
}

impl Clone for Words {
    fn clone(&self) -> Words {
        let mut words = Words::zeros(self.len());
        words.copy_from_slice(self);
        words
    }
}

impl PartialEq for Words {
    fn eq(&self, other: &Words) -> bool {
        **self == **other
    }
}

/// Owned elements of any type.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Whole words, so that every type is aligned.
    words: Words,
    pub len: usize,
    pub dtype: DType,
}

impl Tensor {
    pub fn of(dtype: DType, values: &[f64]) -> Tensor {
        let words = Words::zeros((values.len() * dtype.size()).div_ceil(8));
        let mut tensor = Tensor { words, len: values.len(), dtype };
        Reference.cast(View::of(values), tensor.host_view_mut()).unwrap();
        tensor
    }

    pub fn ids(values: &[u32]) -> Tensor {
        Tensor::exactly(values)
    }

    /// These elements to the bit.
    pub fn exactly<T: Element>(values: &[T]) -> Tensor {
        let mut words = Words::zeros(std::mem::size_of_val(values).div_ceil(8));
        bytemuck::cast_slice_mut::<u64, T>(&mut words)[..values.len()].copy_from_slice(values);
        Tensor { words, len: values.len(), dtype: T::DTYPE }
    }

    /// Standard normal deviates.
    pub fn normal(dtype: DType, len: usize, seed: u64) -> Tensor {
        let draws = (0..len.div_ceil(4) as u64).flat_map(|block| philox::normals(seed, block));
        Tensor::of(dtype, &draws.take(len).map(f64::from).collect::<Vec<_>>())
    }

    pub fn filled(dtype: DType, len: usize, value: f64) -> Tensor {
        Tensor::of(dtype, &vec![value; len])
    }

    /// The scratch that `op` asks for, which holds nothing of use.
    pub fn workspace(kernels: &dyn Kernels, op: &Op) -> Tensor {
        Tensor::filled(DType::F32, kernels.workspace(op), f64::NAN)
    }

    /// As kernels are given it.
    pub fn view(&self) -> View<'_> {
        self.view_as(if ON_DEVICE.get() { View::on_device } else { View::from_raw })
    }

    /// As kernels are given it.
    pub fn view_mut(&mut self) -> ViewMut<'_> {
        self.view_mut_as(if ON_DEVICE.get() { ViewMut::on_device } else { ViewMut::from_raw })
    }

    /// For the host, which reads and fills a tensor also while kernels of a device are called.
    fn host_view(&self) -> View<'_> {
        self.view_as(View::from_raw)
    }

    fn host_view_mut(&mut self) -> ViewMut<'_> {
        self.view_mut_as(ViewMut::from_raw)
    }

    fn view_as<'a>(&'a self, of: unsafe fn(NonNull<u8>, DType, usize) -> View<'a>) -> View<'a> {
        let bytes: &[u8] = bytemuck::cast_slice(&self.words);
        // SAFETY: the words hold `len` elements of `dtype`.
        unsafe { of(NonNull::from(bytes).cast(), self.dtype, self.len) }
    }

    fn view_mut_as<'a>(&'a mut self, of: unsafe fn(NonNull<u8>, DType, usize) -> ViewMut<'a>) -> ViewMut<'a> {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut self.words);
        // SAFETY: as above, and lent for writing.
        unsafe { of(NonNull::from(bytes).cast(), self.dtype, self.len) }
    }

    pub fn values(&self) -> Vec<f64> {
        if self.dtype == DType::U32 {
            return self.host_view().as_slice::<u32>().unwrap().iter().map(|x| f64::from(*x)).collect();
        }
        let mut values = vec![0.0; self.len];
        Reference.cast(self.host_view(), ViewMut::of(&mut values)).unwrap();
        values
    }

    /// The same values in f64; ids stay ids.
    pub fn exact(&self) -> Tensor {
        if !self.dtype.is_float() { self.clone() } else { Tensor::of(DType::F64, &self.values()) }
    }

    /// Every element's bits.
    pub fn bits(&self) -> Vec<u64> {
        let bytes: &[u8] = &bytemuck::cast_slice(&self.words)[..self.len * self.dtype.size()];
        let join = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        bytes.chunks(self.dtype.size()).map(join).collect()
    }
}

/// Elements behind what a kernel may write, and what they hold.
pub const GUARD: usize = 7;
pub const SENTINEL: f64 = 77.0;

/// A tensor whose last elements must stay as they are.
pub fn guarded(mut tensor: Tensor) -> Tensor {
    let values: Vec<f64> = tensor.values().into_iter().chain([SENTINEL; GUARD]).collect();
    tensor = Tensor::of(tensor.dtype, &values);
    tensor
}

/// An output, guarded, that a kernel must overwrite.
pub fn output(dtype: DType, len: usize) -> Tensor {
    guarded(Tensor::filled(dtype, len, f64::NAN))
}

/// Half a unit in the last place of 1: how much a value may lose when it is rounded to a type.
fn rounding(dtype: DType) -> f64 {
    match dtype {
        DType::F32 => 2f64.powi(-24),
        DType::Bf16 => 2f64.powi(-8),
        DType::F16 => 2f64.powi(-11),
        DType::F64 | DType::U32 | DType::I32 | DType::I8 => 0.0,
    }
}

/// Whether `got` is as close to `want` as its type allows.
pub fn assert_close(case: &str, got: &Tensor, want: &[f64]) {
    assert_sum_close(case, got, want, &[]);
}

/// The same of sums whose terms a kernel may round to the type before it adds them. `sizes` holds for each sum that of its
/// terms without their signs, or nothing: terms that cancel each other leave behind what each lost in its own rounding.
pub fn assert_sum_close(case: &str, got: &Tensor, want: &[f64], sizes: &[f64]) {
    let got_values = got.values();
    assert_eq!(got_values.len(), want.len(), "{case}");
    let dtype = got.dtype;
    let (relative, of_rms) = tolerance(dtype);
    let rms = (want.iter().map(|x| x * x).sum::<f64>() / want.len().max(1) as f64).sqrt();
    for (i, (got, want)) in got_values.iter().zip(want).enumerate() {
        let of_terms = rounding(dtype) * sizes.get(i).copied().unwrap_or(0.0);
        // Below 2^-14 numbers of f16 are 2^-24 apart, so rounding alone moves a value by half of that.
        let of_small = if dtype == DType::F16 { 2f64.powi(-25) } else { 0.0 };
        let bound = relative * want.abs() + of_rms * rms + of_terms + of_small;
        assert!((got - want).abs() <= bound, "{case}: element {i} is {got}, not {want} (within {bound:e})");
    }
}

/// Runs `call` on the reference in f64, then on the reference and the cores in the tensors' own types: all must agree,
/// and the cores with one another to the bit. `outs` names the tensors that are written, guards included. `call` is
/// given a function from a type to the type that stands for it in this run.
pub fn compare<const N: usize>(
    case: &str,
    tensors: [Tensor; N],
    outs: &[usize],
    call: impl Fn(&dyn Kernels, &dyn Fn(DType) -> DType, &mut [Tensor; N]) -> Result<()>,
) {
    compare_sums(case, tensors, outs, &[], call);
}

/// The same where outputs are sums of terms that may be rounded: `sizes` as [`assert_sum_close`] wants them, for each of `outs`.
pub fn compare_sums<const N: usize>(
    case: &str,
    tensors: [Tensor; N],
    outs: &[usize],
    sizes: &[Vec<f64>],
    call: impl Fn(&dyn Kernels, &dyn Fn(DType) -> DType, &mut [Tensor; N]) -> Result<()>,
) {
    let close = |case: &str, i: usize, got: &Tensor, want: &[f64]| {
        let sizes = outs.iter().position(|out| *out == i).and_then(|at| sizes.get(at));
        assert_sum_close(case, got, want, sizes.map_or(&[], Vec::as_slice));
    };
    let mut exact = tensors.each_ref().map(Tensor::exact);
    call(&Reference, &|_| DType::F64, &mut exact).unwrap();
    let mut own = tensors.clone();
    call(&Reference, &|dtype| dtype, &mut own).unwrap();
    let mut first: Option<[Tensor; N]> = None;
    for cpu in CPUS.iter() {
        let case = format!("{case}, {} threads", cpu.threads());
        let mut got = tensors.clone();
        call(cpu, &|dtype| dtype, &mut got).unwrap();
        for i in 0..N {
            if outs.contains(&i) {
                close(&format!("{case}, tensor {i}"), i, &got[i], &exact[i].values());
                close(&format!("{case}, reference, tensor {i}"), i, &own[i], &exact[i].values());
                let guard = got[i].len - GUARD;
                assert!(got[i].values()[guard..].iter().all(|x| *x == SENTINEL), "{case}: wrote past tensor {i}");
            } else {
                assert_eq!(got[i].bits(), tensors[i].bits(), "{case}: tensor {i} is no output");
            }
            if let Some(first) = &first {
                assert_eq!(first[i].bits(), got[i].bits(), "{case}: tensor {i} depends on the threads");
            }
        }
        first.get_or_insert(got);
    }
    let mut first: Option<[Tensor; N]> = None;
    let orders = cudas(case);
    for (at, cuda) in orders.iter().chain(gpus()).enumerate() {
        let case = format!("{case}, {}", cuda.name());
        // A GPU may join a product and a sum into one rounding: it is held against itself.
        first = first.filter(|_| at != orders.len());
        let mut got = tensors.clone();
        // What a GPU reaches of the host's memory counts as its own: nothing is done for it on the host.
        let asked = on_device(at >= orders.len(), || call(cuda, &|dtype| dtype, &mut got));
        asked.unwrap_or_else(|error| panic!("{case}: {error}"));
        cuda.synchronize().unwrap_or_else(|error| panic!("{case}: {error}"));
        for i in 0..N {
            if outs.contains(&i) {
                close(&format!("{case}, tensor {i}"), i, &got[i], &exact[i].values());
                let guard = got[i].len - GUARD;
                assert!(got[i].values()[guard..].iter().all(|x| *x == SENTINEL), "{case}: wrote past tensor {i}");
            } else {
                assert_eq!(got[i].bits(), tensors[i].bits(), "{case}: tensor {i} is no output");
            }
            if let Some(first) = &first {
                assert_eq!(first[i].bits(), got[i].bits(), "{case}: tensor {i} depends on the order of threads");
            }
        }
        first.get_or_insert(got);
    }
    for cpu in PLAINER.iter() {
        let mut got = tensors.clone();
        call(cpu, &|dtype| dtype, &mut got).unwrap();
        for &i in outs {
            close(&format!("{case}, {}, tensor {i}", cpu.name()), i, &got[i], &exact[i].values());
        }
    }
}
