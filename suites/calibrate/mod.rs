//! The ceilings of this machine: what its cores compute on registers, what its memory and a disk move, for several numbers
//! of threads. Everything is measured in rounds, each of which goes over all of it, so that a change of the machine shows
//! as spread between rounds and not as a difference between numbers of threads. Whether the machine was quiet enough is
//! decided in [`judge`]; what is kept goes into a machine profile ([`profile`]).

pub mod args;
pub mod device;
pub mod disk;
pub mod judge;
pub mod operations;
pub mod probes;
pub mod quiet;
mod replay;
mod rounds;

pub use rounds::{Values, summarize};

use crate::bench::{Limits, Stopped};
use disk::Disk;
use zbench_kernels::DType;
use zbench_kernels::cpu::peak;
use zbench_reports::bench::Ceilings;

/// Types whose matrix rate is asked for; there is no loop for all of them on every processor.
const TYPES: [DType; 4] = [DType::F32, DType::Bf16, DType::F16, DType::F64];

/// What to measure.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    /// Numbers of threads.
    pub threads: Vec<usize>,
    /// Rounds over everything.
    pub rounds: usize,
    /// Seconds of each matrix rate and each pass over the disk.
    pub seconds: f64,
    /// Bytes of each of three arrays.
    pub memory_bytes: usize,
}

/// Measures; tells how many measurements of all are done.
///
/// # Errors
/// It was stopped.
pub fn measure(
    wanted: &Wanted,
    disk: &Result<Disk, String>,
    limits: &Limits<'_>,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Ceilings, Stopped> {
    let mut values = Values::default();
    let all = wanted.rounds * wanted.threads.len() * (TYPES.len() + 3);
    let mut done = 0;
    let mut step = |done: &mut usize| {
        *done += 1;
        progress(*done, all);
        limits.check()
    };
    for _ in 0..wanted.rounds {
        for &threads in &wanted.threads {
            for dtype in TYPES {
                let rate = peak::measure(threads, dtype, wanted.seconds);
                let rate = rate.ok_or_else(|| format!("there is no loop for {dtype} on this processor"));
                values.add(threads, format!("matrix.{dtype}"), rate);
                step(&mut done)?;
            }
            let rates = peak::memory(threads, wanted.memory_bytes);
            let named = |of: fn(&peak::MemoryRates) -> f64| {
                let why = || format!("three arrays of {} bytes could not be had", wanted.memory_bytes);
                rates.as_ref().map(of).ok_or_else(why)
            };
            values.add(threads, "memory.read".into(), named(|rates| rates.read));
            values.add(threads, "memory.write".into(), named(|rates| rates.write));
            values.add(threads, "memory.copy".into(), named(|rates| rates.copy));
            values.add(threads, "memory.triad".into(), named(|rates| rates.triad));
            step(&mut done)?;
            let of_disk = |of: fn(&Disk, usize, f64) -> Result<f64, String>| match disk {
                Ok(disk) => of(disk, threads, wanted.seconds),
                Err(why) => Err(why.clone()),
            };
            values.add(threads, "disk.write".into(), of_disk(Disk::write));
            step(&mut done)?;
            values.add(threads, "disk.read".into(), of_disk(Disk::read));
            step(&mut done)?;
        }
    }
    Ok(summarize(&values))
}
