//! Kernels that can do one thing, the sum that collectives need, written as the contract says it and nothing else; and the
//! element types with the same sum as an oracle.

use half::{bf16, f16};
use zbench_kernels::{DType, Element, Gemm, KernelError, Kernels, Op, Reduce, ReduceOp, Result, Sum, View, ViewMut};

/// An element type that the oracle can handle in f64 without loss.
pub trait Sample: Element + PartialEq + std::fmt::Debug + Send + Sync {
    fn of(value: f64) -> Self;
    fn get(self) -> f64;
}

macro_rules! samples {
    ($($t:ty: $of:expr, $get:expr;)*) => {
        $(impl Sample for $t {
            fn of(value: f64) -> Self { $of(value) }
            fn get(self) -> f64 { $get(self) }
        })*
    };
}
samples! {
    f64: |v| v, |v| v;
    f32: |v| v as f32, f64::from;
    bf16: bf16::from_f64, bf16::to_f64;
    f16: f16::from_f64, f16::to_f64;
    u32: |v| v as u32, f64::from;
}

/// One element's sum over ranks: pairs, pairs of pairs, the odd one carried up; every addition rounded to f32 (f64 for
/// sums of f64).
pub fn tree_sum(terms: &mut [f64], double: bool) -> f64 {
    let add = |a: f64, b: f64| if double { a + b } else { f64::from(a as f32 + b as f32) };
    let mut live = terms.len();
    while live > 1 {
        for pair in 0..live / 2 {
            terms[pair] = add(terms[2 * pair], terms[2 * pair + 1]);
        }
        if live % 2 == 1 {
            terms[live / 2] = terms[live - 1];
        }
        live = live.div_ceil(2);
    }
    terms[0]
}

/// Rounds a sum kept in f32 (or f64) once into T.
pub fn rounded<T: Sample>(sum: f64) -> T {
    T::of(sum)
}

fn read(view: &View<'_>) -> Result<Vec<f64>> {
    fn all<T: Sample>(view: &View<'_>) -> Result<Vec<f64>> {
        Ok(view.as_slice::<T>()?.iter().map(|x| x.get()).collect())
    }
    match view.dtype() {
        DType::F64 => all::<f64>(view),
        DType::F32 => all::<f32>(view),
        DType::Bf16 => all::<bf16>(view),
        DType::F16 => all::<f16>(view),
        DType::U32 | DType::I32 | DType::I8 => refuse(),
    }
}

fn write(values: &[f64], dst: &mut ViewMut<'_>) -> Result<()> {
    fn all<T: Sample>(values: &[f64], dst: &mut ViewMut<'_>) -> Result<()> {
        dst.as_slice_mut::<T>()?.iter_mut().zip(values).for_each(|(to, from)| *to = T::of(*from));
        Ok(())
    }
    match dst.dtype() {
        DType::F64 => all::<f64>(values, dst),
        DType::F32 => all::<f32>(values, dst),
        DType::Bf16 => all::<bf16>(values, dst),
        DType::F16 => all::<f16>(values, dst),
        DType::U32 | DType::I32 | DType::I8 => refuse(),
    }
}

fn refuse<T>() -> Result<T> {
    Err(KernelError::Unsupported { device: "tree", op: "anything but a sum of floats", dtype: DType::U32 })
}

/// What the kernels do when they are asked for a sum.
#[derive(Clone, Copy, Default)]
pub enum Mood {
    #[default]
    Well,
    /// They return an error.
    Refuses,
    /// They panic.
    Panics,
}

/// Kernels that can only sum.
#[derive(Default)]
pub struct Tree(pub Mood);

impl Kernels for Tree {
    fn name(&self) -> String {
        "tree".into()
    }
    fn threads(&self) -> usize {
        1
    }
    fn workspace(&self, _: &Op) -> usize {
        0
    }

    fn prepacked_len(&self, _: &Gemm) -> Option<usize> {
        None
    }

    fn run(&self, op: &Op, sources: &[View<'_>], writes: &mut [ViewMut<'_>], _: ViewMut<'_>) -> Result<()> {
        let (Op::Reduce(Reduce { op, accumulate, .. }), [dst]) = (*op, writes) else { return refuse() };
        assert_eq!(op, ReduceOp::Sum, "these kernels can only sum");
        match self.0 {
            Mood::Well => {}
            Mood::Refuses => return refuse(),
            Mood::Panics => panic!("a kernel that panics"),
        }
        let double = sources[0].dtype() == DType::F64 || dst.dtype() == DType::F64;
        let sources = sources.iter().map(read).collect::<Result<Vec<_>>>()?;
        assert!(sources.iter().all(|s| s.len() == dst.len()), "lengths differ");
        let old = read(&dst.as_view())?;
        let mut terms = vec![0.0; sources.len()];
        let mut sum = |i: usize| {
            terms.iter_mut().zip(&sources).for_each(|(term, source)| *term = source[i]);
            let total = tree_sum(&mut terms, double);
            if accumulate { tree_sum(&mut [old[i], total], double) } else { total }
        };
        let sums: Vec<f64> = (0..dst.len()).map(&mut sum).collect();
        write(&sums, dst)
    }

    fn sum_async(&self, _: &Op, _: View<'_>) -> Result<Sum> {
        refuse().map(|()| Sum::Known(0.0))
    }
}
