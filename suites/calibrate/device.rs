//! The ceilings of a GPU, by its own clock: products, its memory, copies from and to the host, the time of a small kernel. All
//! in rounds, as those of the processor. It has never run on a GPU: what is tested is that it measures something of each on
//! the kernels that a processor emulates, and what becomes of invented numbers.

pub mod edit;
pub mod profile;

use super::rounds::Values;
use crate::bench::{Limits, Stopped};
use std::sync::Arc;
use std::time::Instant;
use zbench_estimate::job::Number;
use zbench_estimate::machine;
use zbench_host::devices::{product_flops, seconds_of};
use zbench_kernels::memory::device::Device;
use zbench_kernels::{Arena, Buffer, Category, Cuda, DType, KernelError, Kernels, Normal, Op, ViewMut, no_scratch};
use zbench_reports::bench::{DeviceCeilings, DeviceRate};

/// Types of the products, with the names that profiles have for their rates.
pub const TYPES: [(DType, Number); 3] =
    [(DType::F32, Number::F32), (DType::Bf16, Number::Bf16), (DType::F16, Number::F16)];
/// Bytes of what is copied from and to the host at most: beyond this a copy of 4 MiB pieces gets no faster.
const MOST_OF_LINK: usize = 256 << 20;
/// Passes of each measurement in a round, of which the fastest counts; one before them finds kernels and memory.
const PASSES: usize = 5;
/// Kernels in a queue: about half of what a driver takes before it holds the host back.
const LAUNCHES: usize = 500;
/// Copies of a whole buffer that the device has to do first, some milliseconds: meanwhile the host asks for the kernels, and
/// what is timed is how fast a device comes from one to the next, not how fast a host asks.
const AHEAD: usize = 16;
/// Numbers that are fetched one after the other.
const FETCHES: usize = 100;

/// What to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Which GPU.
    pub gpu: usize,
    /// Rounds over everything.
    pub rounds: usize,
    /// Rows and columns of products.
    pub side: usize,
    /// Bytes of each of two buffers.
    pub memory_bytes: usize,
}

/// Measures; tells how many measurements of all are done. `rated` is the machine of the GPU's data sheet.
///
/// # Errors
/// It was stopped.
pub fn measure(
    device: &Arc<dyn Device>,
    wanted: &Wanted,
    rated: Option<&machine::Machine>,
    limits: &Limits<'_>,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<DeviceCeilings, Stopped> {
    let mut values = Values::default();
    let mut done = 0;
    let mut step = || {
        done += 1;
        progress(done, wanted.rounds * (TYPES.len() + OTHERS.len()));
        limits.check()
    };
    let mut buffers = Buffers::new(device, wanted.memory_bytes);
    for _ in 0..wanted.rounds {
        for (dtype, _) in TYPES {
            values.add(0, format!("matrix.{dtype}"), product_flops(device.clone(), dtype, wanted.side));
            step()?;
        }
        for (name, one) in OTHERS {
            let value = match &mut buffers {
                Ok(buffers) => one(buffers).map_err(|error| error.to_string()),
                Err(reason) => Err(reason.clone()),
            };
            values.add(0, name.into(), value);
            step()?;
        }
    }
    Ok(summarize(&values, wanted, &device.props().name, rated))
}

fn summarize(values: &Values, wanted: &Wanted, device: &str, rated: Option<&machine::Machine>) -> DeviceCeilings {
    let mut ceilings = DeviceCeilings {
        device: device.into(),
        gpu: wanted.gpu as u64,
        profile: rated.map(|machine| machine.name.clone()),
        side: wanted.side as u64,
        ..DeviceCeilings::default()
    };
    for (name, rate) in values.rates(0) {
        if let Err(why) = &rate {
            ceilings.unstated.push((name.into(), why.clone()));
        }
        let data_sheet = rated.and_then(|machine| data_sheet(machine, name));
        ceilings.rates.push(DeviceRate { name: name.into(), rate: rate.ok(), data_sheet });
    }
    ceilings
}

/// What a machine's data sheet says of a rate; times are in none.
fn data_sheet(machine: &machine::Machine, name: &str) -> Option<f64> {
    let rated = match name.split_once('.')? {
        ("matrix", dtype) => {
            let (_, number) = TYPES.into_iter().find(|(_, number)| number.name() == dtype)?;
            machine.device.compute.get(&number)?.peak
        }
        ("memory", _) => machine.device.bandwidth,
        ("link", _) => machine.host.bandwidth,
        _ => return None,
    };
    (rated > 0.0).then_some(rated)
}

/// What is measured beside products.
type One = fn(&mut Buffers) -> Result<f64, KernelError>;
const OTHERS: [(&str, One); 8] = [
    ("memory.copy", |of| of.copy()),
    ("memory.write", |of| of.write()),
    ("memory.read", |of| of.read()),
    ("link.upload", |of| of.upload()),
    ("link.download", |of| of.download()),
    ("time.launch", |of| of.launch(false)),
    ("time.call", |of| of.launch(true)),
    ("time.wait", |of| of.wait()),
];

/// Two buffers of random numbers on the device, and two of the host.
struct Buffers {
    kernels: Cuda,
    from: Buffer,
    to: Buffer,
    small: Buffer,
    host: Vec<f32>,
    back: Vec<f32>,
}

impl Buffers {
    fn new(device: &Arc<dyn Device>, bytes: usize) -> Result<Buffers, String> {
        let kernels = Cuda::new(device.clone()).map_err(|error| error.to_string())?;
        let len = bytes / size_of::<f32>();
        let arena = Arena::on(device.clone(), None, 2 * bytes as u64 + 4096).map_err(|error| error.to_string())?;
        let alloc = |len| arena.alloc(Category::Workspace, DType::F32, len).map_err(|error| error.to_string());
        let (mut from, mut to, mut small) = (alloc(len)?, alloc(len)?, alloc(1)?);
        for (seed, buffer) in [&mut from, &mut to, &mut small].into_iter().enumerate() {
            let normal = Normal { len: buffer.len(), std: 1.0, seed: seed as u64 + 1, first: 0, dtype: DType::F32 };
            let drawn = kernels.run(&Op::Normal(normal), &[], &mut [buffer.view_mut()], no_scratch());
            drawn.map_err(|error| error.to_string())?;
        }
        let of_link = len.min(MOST_OF_LINK / size_of::<f32>());
        let (mut host, mut back) = (vec![0.0; of_link], vec![0.0; of_link]);
        // Pages that are there, and numbers that are random.
        for host in [&mut host, &mut back] {
            kernels.download(from.slice(0..of_link), ViewMut::of(host)).map_err(|error| error.to_string())?;
        }
        Ok(Buffers { kernels, from, to, small, host, back })
    }

    fn copy(&mut self) -> Result<f64, KernelError> {
        let Buffers { kernels, from, to, .. } = self;
        let seconds = fastest(kernels, &mut || kernels.copy(from.view(), to.view_mut()))?;
        Ok(2.0 * bytes(from.len()) / seconds)
    }

    fn write(&mut self) -> Result<f64, KernelError> {
        let Buffers { kernels, to, .. } = self;
        let seconds = fastest(kernels, &mut || kernels.fill(to.view_mut(), 1.5))?;
        Ok(bytes(to.len()) / seconds)
    }

    fn read(&mut self) -> Result<f64, KernelError> {
        let Buffers { kernels, from, .. } = self;
        // The sum is not fetched: that would be a wait.
        let mut sums = Vec::with_capacity(PASSES + 1);
        let seconds = fastest(kernels, &mut || {
            sums.push(kernels.sum_async(&Op::sum(from.len(), from.dtype()), from.view())?);
            Ok(())
        })?;
        kernels.read_scalars(&sums, &mut vec![0.0; sums.len()])?;
        Ok(bytes(from.len()) / seconds)
    }

    fn upload(&mut self) -> Result<f64, KernelError> {
        let Buffers { kernels, to, host, .. } = self;
        let len = host.len();
        let host = zbench_kernels::View::of(host);
        let seconds = fastest(kernels, &mut || kernels.upload(host.slice(0..len), to.slice_mut(0..len)))?;
        Ok(bytes(len) / seconds)
    }

    fn download(&mut self) -> Result<f64, KernelError> {
        let Buffers { kernels, from, back, .. } = self;
        let len = back.len();
        let seconds = fastest(kernels, &mut || kernels.download(from.slice(0..len), ViewMut::of(back)))?;
        Ok(bytes(len) / seconds)
    }

    /// Seconds of one of many small kernels: as the device comes from one to the next, or as the host asks for them.
    fn launch(&mut self, by_host: bool) -> Result<f64, KernelError> {
        let Buffers { kernels, from, to, small, .. } = self;
        let mut best = f64::INFINITY;
        for pass in 0..=PASSES {
            for _ in 0..AHEAD {
                kernels.copy(from.view(), to.view_mut())?;
            }
            let mut asked = 0.0;
            let by_device = seconds_of(kernels, &mut || {
                let begin = Instant::now();
                for _ in 0..LAUNCHES {
                    kernels.fill(small.view_mut(), 1.5)?;
                }
                asked = begin.elapsed().as_secs_f64();
                Ok(())
            })?;
            if pass > 0 {
                best = best.min(if by_host { asked } else { by_device });
            }
        }
        Ok(best / LAUNCHES as f64)
    }

    /// Seconds until one number is on the host, which waits for it.
    fn wait(&mut self) -> Result<f64, KernelError> {
        let Buffers { kernels, small, .. } = self;
        let mut number = [0.0f32];
        let seconds = fastest(kernels, &mut || {
            (0..FETCHES).try_for_each(|_| kernels.download(small.view(), ViewMut::of(&mut number)))
        })?;
        Ok(seconds / FETCHES as f64)
    }
}

fn bytes(len: usize) -> f64 {
    (len * size_of::<f32>()) as f64
}

/// Seconds of the fastest pass.
fn fastest(kernels: &Cuda, work: &mut dyn FnMut() -> Result<(), KernelError>) -> Result<f64, KernelError> {
    let mut best = f64::INFINITY;
    for pass in 0..=PASSES {
        let seconds = seconds_of(kernels, work)?;
        if pass > 0 {
            best = best.min(seconds);
        }
    }
    Ok(best)
}
