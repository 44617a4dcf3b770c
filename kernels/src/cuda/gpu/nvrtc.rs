//! Compiling kernels at run time, to code for one architecture.

#![allow(unsafe_code, reason = "functions of NVRTC")]

use super::library::{Absent, Found, Library, Returned, Search, string, table};
use super::usage::Usage;
use crate::cuda::sources::{HEADERS, Source};
use cudarc::nvrtc::sys::*;
use std::ffi::{CString, c_char, c_int};
use std::path::{Path, PathBuf};

impl Returned for nvrtcResult {
    type As = c_int;
}

table! {
    Table;
    cudarc {
        version = nvrtcVersion(*mut c_int, *mut c_int) -> nvrtcResult;
        create = nvrtcCreateProgram(
            *mut nvrtcProgram, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char
        ) -> nvrtcResult;
        destroy = nvrtcDestroyProgram(*mut nvrtcProgram) -> nvrtcResult;
        compile = nvrtcCompileProgram(nvrtcProgram, c_int, *const *const c_char) -> nvrtcResult;
        cubin_size = nvrtcGetCUBINSize(nvrtcProgram, *mut usize) -> nvrtcResult;
        cubin = nvrtcGetCUBIN(nvrtcProgram, *mut c_char) -> nvrtcResult;
        log_size = nvrtcGetProgramLogSize(nvrtcProgram, *mut usize) -> nvrtcResult;
        log = nvrtcGetProgramLog(nvrtcProgram, *mut c_char) -> nvrtcResult;
    }
    own {
        error_string = "nvrtcGetErrorString"(c_int) -> *const c_char;
    }
}

/// A loaded compiler. Threads may compile at the same time.
#[derive(Debug)]
pub struct Nvrtc {
    table: Table,
    path: PathBuf,
    version: i32,
}

/// An architecture to compile for, as the compiler names it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Target(String);

impl Target {
    /// The one for a device. Code for an architecture runs on later ones of its generation too, but what ends in `a` (Hopper's
    /// and Blackwell's own instructions) runs on that one alone.
    ///
    /// # Errors
    /// The device is older than the kernels allow.
    pub fn of(capability: (u32, u32)) -> Result<Target, TooOld> {
        Ok(Target(match capability {
            (..8, _) => return Err(TooOld { capability }),
            (8, 9) => "sm_89".into(),
            (9, 0) => "sm_90a".into(),
            (10, 0) => "sm_100a".into(),
            (major, _) => format!("sm_{major}0"),
        }))
    }

    /// As the compiler has it: `sm_90a`.
    pub fn name(&self) -> &str {
        &self.0
    }

    /// Whether a source can be compiled for it.
    pub fn takes(&self, source: &Source) -> bool {
        !source.hopper || self.0 == "sm_90a"
    }
}

/// A device that the kernels do not run on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("its compute capability is {}.{}; the kernels need 8.0 (Ampere) or newer", capability.0, capability.1)]
pub struct TooOld {
    pub capability: (u32, u32),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compiled {
    pub cubin: Vec<u8>,
    /// The compiler's words, among them what each kernel takes.
    pub log: String,
}

impl Compiled {
    /// What each kernel takes, by their names.
    pub fn usage(&self) -> Vec<Usage> {
        Usage::of_log(&self.log)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{source_name} for {target}: {words}{}", if log.is_empty() { String::new() } else { format!("\n{log}") })]
pub struct CompileError {
    pub source_name: String,
    pub target: String,
    /// Which call failed, and why.
    pub words: String,
    pub log: String,
}

/// How sources are compiled.
///
/// Without `--use_fast_math`: it flushes what is subnormal to zero and takes quotients and roots from approximations, so that a
/// kernel would no longer agree with the cores and the reference. Where a kernel can live with that it says so by name
/// (`exp2_fast`). Products and sums may be joined into one rounding, as the compiler likes; `__fmul_rn` and `__fadd_rn` are
/// for where they must not. The last two make the log say what each kernel takes, and warn of registers that do not
/// suffice; each option of ptxas has to be an option of its own.
pub fn options(target: &Target) -> Vec<String> {
    let architecture = format!("--gpu-architecture={}", target.name());
    let others = ["--std=c++17", "--generate-line-info", "--ptxas-options=-v", "--ptxas-options=-warn-spills"];
    std::iter::once(architecture).chain(others.map(String::from)).collect()
}

/// The headers that the compiler is given: not what only a processor sees.
pub(super) fn headers() -> impl Iterator<Item = (&'static str, &'static str)> {
    HEADERS.iter().copied().filter(|(name, _)| *name != "host.h")
}

/// A program, destroyed when it goes.
struct Program<'a>(nvrtcProgram, &'a Nvrtc);

impl Drop for Program<'_> {
    fn drop(&mut self) {
        // SAFETY: made by `create`, and destroyed once.
        unsafe { (self.1.table.destroy)(&mut self.0) };
    }
}

impl Nvrtc {
    /// Finds the library and all of its functions: one whose code is loaded by a driver of this version of CUDA, where one is
    /// given.
    ///
    /// # Errors
    /// [`Absent`] says what was tried, or what is missing, or that all there is is too new for the driver.
    pub fn load(search: &Search, driver: Option<i32>) -> Result<Nvrtc, Absent> {
        let major = |found: &Found| Nvrtc::of(found).ok().map(|nvrtc| nvrtc.version / 1000);
        Nvrtc::of(&search.open_for(Library::Nvrtc, driver, major)?)
    }

    fn of(found: &Found) -> Result<Nvrtc, Absent> {
        let table = Table::resolve(found)?;
        let mut nvrtc = Nvrtc { table, path: found.path.clone(), version: 0 };
        let (mut major, mut minor) = (0, 0);
        // SAFETY: live outputs.
        let code = unsafe { (nvrtc.table.version)(&mut major, &mut minor) };
        nvrtc.check("nvrtcVersion", code).map_err(|reason| Absent::Failed { library: Library::Nvrtc, reason })?;
        nvrtc.version = major * 1000 + minor * 10;
        Ok(nvrtc)
    }

    /// 13000 is 13.0.
    pub fn version(&self) -> i32 {
        self.version
    }

    /// The file, or the name under which the system found it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn check(&self, call: &str, code: c_int) -> Result<(), String> {
        if code == nvrtcResult::NVRTC_SUCCESS as c_int {
            return Ok(());
        }
        // SAFETY: the library's own string, or null.
        let text = unsafe { string((self.table.error_string)(code)) };
        Err(format!("{call}: {} (code {code})", text.as_deref().unwrap_or("NVRTC has no words for it")))
    }

    /// Compiles a source. No GPU is needed for it.
    ///
    /// # Errors
    /// The compiler refuses the source or the architecture: its words.
    pub fn compile(&self, source: &Source, target: &Target) -> Result<Compiled, CompileError> {
        let failed = |words: String, log: String| CompileError {
            source_name: format!("{}.cu", source.name),
            target: target.name().into(),
            words,
            log,
        };
        if !target.takes(source) {
            return Err(failed("it uses instructions that only sm_90a has".into(), String::new()));
        }
        let c = |text: &str| CString::new(text).map_err(|error| failed(error.to_string(), String::new()));
        let (text, name) = (c(source.text)?, c(&format!("{}.cu", source.name))?);
        let included = headers().map(|(name, text)| Ok((c(name)?, c(text)?))).collect::<Result<Vec<_>, _>>()?;
        let options = options(target).iter().map(|option| c(option)).collect::<Result<Vec<_>, _>>()?;
        let names: Vec<*const c_char> = included.iter().map(|(name, _)| name.as_ptr()).collect();
        let texts: Vec<*const c_char> = included.iter().map(|(_, text)| text.as_ptr()).collect();
        let flags: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();

        let mut handle = std::ptr::null_mut();
        // SAFETY: strings that end in zeros and outlive the program, as many as is said, and a live output.
        let code = unsafe {
            let count = names.len() as c_int;
            (self.table.create)(&mut handle, text.as_ptr(), name.as_ptr(), count, texts.as_ptr(), names.as_ptr())
        };
        self.check("nvrtcCreateProgram", code).map_err(|words| failed(words, String::new()))?;
        let program = Program(handle, self);
        // SAFETY: a live program, and as many strings as is said.
        let code = unsafe { (self.table.compile)(program.0, flags.len() as c_int, flags.as_ptr()) };
        let log = self.bytes(&program, "nvrtcGetProgramLog", self.table.log_size, self.table.log);
        let log = log.map(|bytes| String::from_utf8_lossy(&bytes).trim_end_matches('\0').trim_end().to_owned());
        if let Err(words) = self.check("nvrtcCompileProgram", code) {
            return Err(failed(words, log.unwrap_or_default()));
        }
        let log = log.map_err(|words| failed(words, String::new()))?;
        match self.bytes(&program, "nvrtcGetCUBIN", self.table.cubin_size, self.table.cubin) {
            Ok(cubin) if cubin.is_empty() => Err(failed("the compiler made no code".into(), log)),
            Ok(cubin) => Ok(Compiled { cubin, log }),
            Err(words) => Err(failed(words, log)),
        }
    }

    /// What a program holds, by a function for its size and one for itself.
    fn bytes(
        &self,
        program: &Program,
        call: &str,
        size: unsafe extern "C" fn(nvrtcProgram, *mut usize) -> c_int,
        get: unsafe extern "C" fn(nvrtcProgram, *mut c_char) -> c_int,
    ) -> Result<Vec<u8>, String> {
        let mut count = 0;
        // SAFETY: a live program and a live output.
        self.check(call, unsafe { size(program.0, &mut count) })?;
        let mut bytes = vec![0u8; count];
        // SAFETY: an output of as many bytes as the library asked for.
        self.check(call, unsafe { get(program.0, bytes.as_mut_ptr().cast()) })?;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_device_has_its_architecture() {
        let of = |major, minor| Target::of((major, minor)).map(|target| target.0);
        let known = [(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0), (12, 1)];
        let expected = ["sm_80", "sm_80", "sm_89", "sm_90a", "sm_100a", "sm_100", "sm_120", "sm_120"];
        assert_eq!(known.map(|(major, minor)| of(major, minor).unwrap()), expected);
        assert!(of(7, 5).unwrap_err().to_string().contains("7.5"));
    }

    #[test]
    fn options_stand_each_for_themselves() {
        let options = options(&Target::of((9, 0)).unwrap());
        assert_eq!(options[0], "--gpu-architecture=sm_90a");
        assert!(options.contains(&"--std=c++17".into()) && options.contains(&"--generate-line-info".into()));
        assert!(!options.iter().any(|option| option.contains("fast_math") || option.contains(',')), "{options:?}");
    }

    #[test]
    fn only_hopper_takes_hoppers_sources() {
        let [plain, hopper] = [false, true].map(|hopper| Source { name: "x", text: "", hopper });
        for (capability, takes) in [((8, 0), false), ((9, 0), true), ((10, 0), false), ((12, 0), false)] {
            let target = Target::of(capability).unwrap();
            assert!(target.takes(&plain));
            assert_eq!(target.takes(&hopper), takes, "{target:?}");
        }
    }

    #[test]
    fn the_device_is_given_no_code_of_the_host() {
        let names: Vec<&str> = headers().map(|(name, _)| name).collect();
        assert!(names.contains(&"prelude.h") && !names.contains(&"host.h"));
    }
}
