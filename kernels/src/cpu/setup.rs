//! How the threads of a device work: how many, with which instructions, on which cores.

use crate::Cpu;
use crate::cpu::peak;
use crate::threads::pool::Pool;

/// Every name of a set of instructions that some CPU has and we have code for, the plainest first. Those that this CPU
/// has are [`peak::describe`]'s.
pub const INSTRUCTIONS: [&str; 5] = ["portable", "avx2", "avx512", "avx512-bf16", "amx-bf16"];

/// How the threads of a [`Cpu`] work.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Setup {
    /// Threads that share an operation, the caller included; 0 counts as 1.
    pub threads: usize,
    /// A name of [`INSTRUCTIONS`]; absent = the best that this CPU has.
    pub instructions: Option<String>,
    /// A core for each thread, the caller's first; absent = wherever the system puts them. The caller goes there by
    /// [`Kernels::pin_thread`](crate::Kernels::pin_thread).
    pub cores: Option<Vec<usize>>,
    /// Threads beside these that compute on the same cores. Where there are more threads than cores, waiting threads
    /// soon sleep.
    pub beside: usize,
}

/// Why kernels cannot be set up so.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    #[error("there are no instructions of the name \"{0}\"; known are {list}", list = INSTRUCTIONS.join(", "))]
    Unknown(String),
    /// A name of something that this CPU lacks, or that no kernel is written for.
    #[error(
        "this CPU lacks the instructions \"{wanted}\", or no kernel here uses them; it has {has}",
        has = .has.join(", ")
    )]
    Lacks { wanted: String, has: Vec<&'static str> },
    #[error("{threads} threads are to keep to {cores} cores; each needs one of its own")]
    Cores { threads: usize, cores: usize },
    #[error("a thread cannot be kept on core {core}: {source}; set hardware.pin = \"none\"")]
    Pin { core: usize, source: std::io::Error },
}

impl Cpu {
    /// Kernels on threads that work as stated. There may be fewer threads, as with [`Cpu::new`].
    ///
    /// # Errors
    /// This CPU or system cannot.
    pub fn with(setup: &Setup) -> Result<Cpu, SetupError> {
        let threads = setup.threads.max(1);
        if let Some(cores) = setup.cores.as_ref().filter(|cores| cores.len() != threads) {
            return Err(SetupError::Cores { threads, cores: cores.len() });
        }
        let cpu = match &setup.instructions {
            None => Cpu::new(1),
            Some(name) if !INSTRUCTIONS.contains(&name.as_str()) => return Err(SetupError::Unknown(name.clone())),
            Some(name) => Cpu::with_instructions(1, name)
                .ok_or_else(|| SetupError::Lacks { wanted: name.clone(), has: peak::describe() })?,
        };
        let pool = Pool::with(threads, setup.beside, setup.cores.as_deref())
            .map_err(|(core, source)| SetupError::Pin { core, source })?;
        Ok(cpu.with_pool(pool))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kernels;
    use crate::threads::affinity;

    #[test]
    fn every_path_of_this_cpu_has_a_known_name() {
        for name in peak::describe() {
            assert!(INSTRUCTIONS.contains(&name), "{name} is missing in INSTRUCTIONS");
        }
    }

    #[test]
    fn what_is_asked_for_is_what_works() {
        for name in peak::describe().into_iter().filter(|name| Cpu::with_instructions(1, name).is_some()) {
            let setup = Setup { threads: 2, instructions: Some(name.into()), ..Setup::default() };
            let cpu = Cpu::with(&setup).unwrap();
            assert_eq!((cpu.name(), cpu.threads()), (Cpu::with_instructions(1, name).unwrap().name(), 2));
        }
        let best = Cpu::with(&Setup::default()).unwrap();
        assert_eq!((best.name(), best.threads()), (Cpu::new(1).name(), 1));
    }

    #[test]
    fn what_cannot_be_is_an_error_with_what_could() {
        let with = |name: &str| Cpu::with(&Setup { instructions: Some(name.into()), ..Setup::default() }).unwrap_err();
        let error = with("abacus").to_string();
        assert!(error.contains("abacus") && INSTRUCTIONS.iter().all(|name| error.contains(name)), "{error}");
        if let Some(missing) = INSTRUCTIONS.into_iter().find(|name| Cpu::with_instructions(1, name).is_none()) {
            let error = with(missing).to_string();
            assert!(error.contains(missing) && error.contains("portable"), "{error}");
        }
        let cores = Setup { threads: 2, cores: Some(vec![0]), ..Setup::default() };
        assert!(matches!(Cpu::with(&cores).unwrap_err(), SetupError::Cores { threads: 2, cores: 1 }));
        let nowhere = Setup { threads: 2, cores: Some(vec![0, usize::MAX]), ..Setup::default() };
        assert!(matches!(Cpu::with(&nowhere).unwrap_err(), SetupError::Pin { core: usize::MAX, .. }));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn pinned_threads_stay_on_their_cores_and_the_caller_comes_back() {
        std::thread::spawn(|| {
            let all = affinity::available();
            // The same core twice where there is only one.
            let cores = vec![all[all.len() - 1], all[0]];
            let cpu = Cpu::with(&Setup { threads: 2, cores: Some(cores.clone()), ..Setup::default() }).unwrap();
            let seen = cpu.cores_of_threads();
            assert_eq!((&seen[0], &seen[1]), (&all, &vec![cores[1]]));
            let settled = cpu.pin_thread();
            assert_eq!(cpu.cores_of_threads(), [vec![cores[0]], vec![cores[1]]]);
            drop(settled);
            assert_eq!(affinity::available(), all);
        })
        .join()
        .unwrap();
    }
}
