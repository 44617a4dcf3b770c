//! NVIDIA's libraries, found at run time: where each is looked for, and its functions by name.
//!
//! cudarc gives the types and the signatures, made from NVIDIA's headers; its own loader is not used: it panics where a library
//! or a function is missing, and takes what the system finds first even where the user named another folder. Here a table of
//! function pointers is filled once from the library that was found, and the compiler holds every entry against cudarc's.

#![allow(unsafe_code, reason = "functions looked up by name are called")]

use libloading::os::unix::{Library as Handle, RTLD_LOCAL, RTLD_NOW};
use std::ffi::{CStr, OsString, c_char};
use std::fmt;
use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A library that a GPU's machine uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Library {
    /// The driver: everything needs it.
    Driver,
    /// The compiler of kernels: needed once for each version of them, since what it makes is kept.
    Nvrtc,
    /// Matrix products: without it they are done by kernels of our own.
    CublasLt,
    /// Clocks, temperature and power.
    Nvml,
    /// Ranges for profilers.
    Nvtx,
    /// Collectives between GPUs. The engine looks for it in places of its own.
    Nccl,
}

impl Library {
    /// File names, the best first. The driver's and NVML's have one for all versions.
    pub fn names(self) -> &'static [&'static str] {
        match self {
            Library::Driver => &["libcuda.so.1", "libcuda.so"],
            Library::Nvrtc => &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"],
            Library::CublasLt => &["libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"],
            Library::Nvml => &["libnvidia-ml.so.1", "libnvidia-ml.so"],
            // The last is that of toolkits before 12.
            Library::Nvtx => &["libnvtx3interop.so.1", "libnvtx3interop.so", "libnvToolsExt.so.1"],
            Library::Nccl => &["libnccl.so.2", "libnccl.so"],
        }
    }

    /// The major version of CUDA that a file is of, by its name; nothing where the name does not say.
    fn major_of(path: &Path) -> Option<i32> {
        path.file_name()?.to_str()?.rsplit_once(".so.")?.1.split('.').next()?.parse().ok()
    }

    /// What to do where it is missing.
    fn help(self) -> &'static str {
        match self {
            Library::Driver => {
                "It belongs to NVIDIA's driver: install that, or give the container its GPU (docker run --gpus all)"
            }
            Library::Nvrtc => {
                "Install it (`pip install nvidia-cuda-nvrtc`, or a CUDA toolkit) and set ZBENCH_CUDA_LIBS to the folder of the \
                 Python packages, or CUDA_HOME to the toolkit"
            }
            Library::CublasLt => {
                "Install it (`pip install nvidia-cublas`, or a CUDA toolkit) and set ZBENCH_CUDA_LIBS to the folder of the \
                 Python packages, or CUDA_HOME to the toolkit"
            }
            Library::Nvml => {
                "It comes with NVIDIA's driver; a container needs the driver's capability `utility` for it"
            }
            Library::Nvtx => {
                "Install it (`pip install nvidia-nvtx`) and set ZBENCH_CUDA_LIBS to the folder of the Python packages"
            }
            Library::Nccl => {
                "Install it (`pip install nvidia-nccl-cu13`, or a system package that has libnccl.so.2) and set ZBENCH_NCCL_LIB \
                 to the file, or ZBENCH_CUDA_LIBS to the folder of the Python packages"
            }
        }
    }
}

impl fmt::Display for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Library::Driver => "the CUDA driver",
            Library::Nvrtc => "NVRTC",
            Library::CublasLt => "cuBLASLt",
            Library::Nvml => "NVML",
            Library::Nvtx => "NVTX",
            Library::Nccl => "NCCL",
        })
    }
}

/// One place that was looked at, and what the system said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// A folder, a file, or a name for the system to find.
    pub place: PathBuf,
    /// Why the library did not come of it.
    pub reason: String,
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place.display(), self.reason)
    }
}

/// Why a library cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Absent {
    #[error("{library} was not found. Tried:{}\n{}", list(tried), library.help())]
    NotFound { library: Library, tried: Vec<Attempt> },
    #[error(
        "{} has no function {symbol}, so it is not {}{library} that zbench can use: {reason}",
        path.display(),
        if *library == Library::Nccl { "an " } else { "" }
    )]
    MissingSymbol { library: Library, symbol: &'static str, path: PathBuf, reason: String },
    #[error("{library} does not work: {reason}")]
    Failed { library: Library, reason: String },
}

fn list(tried: &[Attempt]) -> String {
    tried.iter().map(|attempt| format!("\n  {attempt}")).collect()
}

/// Where to look. This crate reads no environment: the command line passes its variables to [`Search::new`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Search {
    /// Folders to look into before the system's: each as it is, as a toolkit or an environment of Python's (`lib64`, `lib`),
    /// and as pip lays its packages out below it (`nvidia/*/lib`).
    pub folders: Vec<PathBuf>,
}

/// Where drivers and toolkits lie that the system's loader is not told of.
const USUAL: [&str; 3] = ["/usr/local/cuda/lib64", "/usr/local/nvidia/lib64", "/usr/lib/wsl/lib"];

impl Search {
    /// What the variables ZBENCH_CUDA_LIBS (folders, separated by colons), CUDA_HOME and VIRTUAL_ENV say.
    pub fn new(variable: impl Fn(&str) -> Option<OsString>) -> Search {
        let given = |name: &str| variable(name).filter(|value| !value.is_empty());
        let listed = given("ZBENCH_CUDA_LIBS").map_or(Vec::new(), |list| std::env::split_paths(&list).collect());
        let others = ["CUDA_HOME", "VIRTUAL_ENV"].into_iter().filter_map(given).map(PathBuf::from);
        let folders = listed.into_iter().chain(others).filter(|folder| !folder.as_os_str().is_empty());
        Search { folders: folders.collect() }
    }

    /// The folders below `root` that may hold libraries, in their order.
    pub fn inside(root: &Path) -> Vec<PathBuf> {
        let packages = |root: PathBuf| entries(&root.join("nvidia"), "").into_iter().map(|package| package.join("lib"));
        let pythons = entries(&root.join("lib"), "python3").into_iter();
        let mut folders: Vec<PathBuf> = packages(root.to_owned()).collect();
        folders.extend([root.to_owned(), root.join("lib64"), root.join("lib")]);
        folders.extend(pythons.flat_map(|python| packages(python.join("site-packages"))));
        folders.retain(|folder| folder.is_dir());
        folders
    }

    /// As [`Search::open`], of a library of the toolkit for a driver of this version of CUDA: one of a newer major version makes what
    /// such a driver does not load. `version_of` tells the version of a library that was found, where its name does not.
    pub(super) fn open_for(
        &self,
        library: Library,
        driver: Option<i32>,
        version_of: impl Fn(&Found) -> Option<i32>,
    ) -> Result<Found, Absent> {
        let Some(driver) = driver else { return self.open(library) };
        let major = driver / 1000;
        let newer =
            |found: &Found| Library::major_of(&found.path).or_else(|| version_of(found)).filter(|of| *of > major);
        // A name that states its version first: the others may be links to anything.
        let of = |name: &&&str| Library::major_of(Path::new(name));
        let names = library.names().iter();
        let stated: Vec<&str> = names.clone().filter(|name| of(name).is_some_and(|of| of <= major)).copied().collect();
        let unstated: Vec<&str> = names.filter(|name| of(name).is_none()).copied().collect();
        let found = self.open_named(library, &stated).or_else(|_| self.open_named(library, &unstated));
        let found = found.or_else(|_| self.open(library))?;
        let Some(of) = newer(&found) else { return Ok(found) };
        let path = &found.path;
        let reason = format!(
            "{} is of CUDA {of}, and the driver is of CUDA {}, which does not load what it makes; install that of CUDA {major} (`pip \
             install {}-cu{major}`), or a newer driver",
            path.display(),
            super::dotted(driver),
            if library == Library::Nvrtc { "nvidia-cuda-nvrtc" } else { "nvidia-cublas" }
        );
        Err(Absent::Failed { library, reason })
    }

    /// Opens the first that opens; else says what was tried.
    pub(super) fn open(&self, library: Library) -> Result<Found, Absent> {
        self.open_named(library, library.names())
    }

    fn open_named(&self, library: Library, names: &[&str]) -> Result<Found, Absent> {
        let mut tried = Vec::new();
        let usual = USUAL.iter().map(Path::new).filter(|folder| folder.is_dir());
        let given = self.folders.iter().find_map(|root| open_below(library, names, root, &mut tried));
        let found = given
            .or_else(|| names.iter().find_map(|name| open_or_note(library, PathBuf::from(name), &mut tried)))
            .or_else(|| usual.into_iter().find_map(|root| open_below(library, names, root, &mut tried)));
        found.ok_or(Absent::NotFound { library, tried })
    }
}

/// What `parent` holds whose name begins so, by name.
fn entries(parent: &Path, prefix: &str) -> Vec<PathBuf> {
    let all = std::fs::read_dir(parent).into_iter().flatten().flatten();
    let named = all.filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix));
    let mut found: Vec<PathBuf> = named.map(|entry| entry.path()).collect();
    found.sort();
    found
}

/// Opens a library, or notes why it cannot be opened.
fn open_or_note(library: Library, path: PathBuf, tried: &mut Vec<Attempt>) -> Option<Found> {
    Found::open(library, path).map_err(|(place, reason)| tried.push(Attempt { place, reason })).ok()
}

fn open_below(library: Library, names: &[&str], root: &Path, tried: &mut Vec<Attempt>) -> Option<Found> {
    let before = tried.len();
    let folders = Search::inside(root);
    for folder in &folders {
        for path in names.iter().map(|name| folder.join(name)).filter(|path| path.exists()) {
            // The loader takes a path for a name where it has no slash.
            let path = std::path::absolute(&path).unwrap_or(path);
            match companions(library, folder) {
                Ok(()) => {
                    if let found @ Some(_) = open_or_note(library, path, tried) {
                        return found;
                    }
                }
                Err(reason) => tried.push(Attempt { place: path, reason }),
            }
        }
    }
    if tried.len() == before {
        let reason = match std::fs::read_dir(root) {
            Err(error) => error.to_string(),
            Ok(_) => {
                let (names, below) = (names.join(", "), folders.len().saturating_sub(1));
                format!("none of {names} in it, nor in its {below} folders of libraries")
            }
        };
        tried.push(Attempt { place: root.to_owned(), reason });
    }
    None
}

/// NVRTC asks the system for its builtins by their name alone; those beside it have to be there before.
fn companions(library: Library, folder: &Path) -> Result<(), String> {
    if library != Library::Nvrtc {
        return Ok(());
    }
    entries(folder, "libnvrtc-builtins.so.").iter().try_for_each(|path| open(path).map(drop))
}

/// Opens a library for good: NVIDIA's have threads of their own, and are never closed.
fn open(path: &Path) -> Result<ManuallyDrop<Handle>, String> {
    whole(path)?;
    // SAFETY: opening a library runs its initializers; these are the names of NVIDIA's, or what the user asked for.
    let handle = unsafe { Handle::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
    handle.map(ManuallyDrop::new).map_err(|error| words(&error))
}

/// Whether a file has all that its header says: the system's loader maps what is not there, and the process dies of it.
///
/// # Errors
/// It was cut off. What is no file, or no library, is left to the loader.
fn whole(path: &Path) -> Result<(), String> {
    // Opening a pipe would wait for its writer.
    if !path.is_file() {
        return Ok(());
    }
    let Ok(file) = File::open(path) else { return Ok(()) };
    let Ok(length) = file.metadata().map(|about| about.len()) else { return Ok(()) };
    match stated_end(&file, length).filter(|end| *end > length) {
        None => Ok(()),
        Some(end) => Err(format!(
            "the file has {length} bytes of the {end} that its header states: it was cut off; copy or install it again"
        )),
    }
}

/// Where the last segment of a 64-bit little-endian ELF file ends, or its table of them; nothing for another file.
fn stated_end(file: &File, length: u64) -> Option<u64> {
    let mut head = [0u8; 64];
    file.read_exact_at(&mut head, 0).ok()?;
    if head[..6] != *b"\x7fELF\x02\x01" {
        return None;
    }
    let long = |bytes: &[u8], at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    let short = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
    let (table, size, count) = (long(&head, 0x20)?, usize::from(short(0x36)), usize::from(short(0x38)));
    let after = table.saturating_add((size * count) as u64);
    if after > length {
        return Some(after);
    }
    let mut segments = vec![0u8; size * count];
    file.read_exact_at(&mut segments, table).ok()?;
    let end = |segment: &[u8]| Some(long(segment, 0x08)?.saturating_add(long(segment, 0x20)?));
    segments.chunks(size.max(1)).filter_map(end).chain([after]).max()
}

/// The loader's own words: the error's source has them.
fn words(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

pub struct Found {
    library: Library,
    handle: ManuallyDrop<Handle>,
    /// The file, or the name under which the system found it.
    pub path: PathBuf,
}

impl Found {
    /// A library in a file, or under a name for the system to find.
    ///
    /// # Errors
    /// The loader's own words.
    pub fn open(library: Library, path: PathBuf) -> Result<Found, (PathBuf, String)> {
        match open(&path) {
            Ok(handle) => Ok(Found { library, handle, path }),
            Err(reason) => Err((path, reason)),
        }
    }

    /// # Safety
    /// `T` has to be the function's type.
    pub(super) unsafe fn symbol<T: Copy>(&self, symbol: &'static str) -> Result<T, Absent> {
        // SAFETY: the caller's promise. The pointer outlives the symbol, since the library is never closed.
        let found = unsafe { self.handle.get::<T>(symbol) };
        found.map(|symbol| *symbol).map_err(|error| {
            let reason = words(&error);
            Absent::MissingSymbol { library: self.library, symbol, path: self.path.clone(), reason }
        })
    }
}

/// Codes come as numbers: what a newer library returns need not be among those that cudarc knows.
pub trait Returned {
    type As;
}

impl Returned for usize {
    type As = usize;
}

impl Returned for *const c_char {
    type As = *const c_char;
}

/// A table of functions. In `cudarc`, `field = twin(arguments) -> result` is of the type of its twin there, and of its name, if
/// not `as "name"`; in `own` stand those that cudarc has not, or has with a code as an argument; in `lately` those that older
/// libraries lack.
macro_rules! table {
    (
        $table:ident;
        cudarc { $($field:ident = $twin:ident $(as $name:literal)? ($($argument:ty),*) -> $result:ty;)* }
        own { $($own:ident = $symbol:literal ($($given:ty),*) -> $back:ty;)* }
        $(lately { $($late:ident = $late_twin:ident ($($late_argument:ty),*) -> $late_result:ty;)* })?
    ) => {
        /// The functions, by names of our own.
        pub struct $table {
            $(pub $field: unsafe extern "C" fn($($argument),*) -> <$result as $crate::cuda::gpu::library::Returned>::As,)*
            $(pub $own: unsafe extern "C" fn($($given),*) -> $back,)*
            $($(
                pub $late: Option<
                    unsafe extern "C" fn(
                        $($late_argument),*
                    ) -> <$late_result as $crate::cuda::gpu::library::Returned>::As,
                >,
            )*)?
        }

        $(const _: unsafe fn($($argument),*) -> $result = $twin;)*
        $($(const _: unsafe fn($($late_argument),*) -> $late_result = $late_twin;)*)?

        impl std::fmt::Debug for $table {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(stringify!($table))
            }
        }

        impl $table {
            /// # Errors
            /// One is missing.
            pub fn resolve(found: &$crate::cuda::gpu::library::Found) -> Result<$table, $crate::cuda::gpu::library::Absent> {
                // SAFETY: the types are cudarc's, as the constants above show, or those of the vendor's header; codes are
                // numbers of 32 bits.
                Ok(unsafe {
                    $table {
                        $($field: found.symbol($crate::cuda::gpu::library::table!(@name $twin $($name)?))?,)*
                        $($own: found.symbol($symbol)?,)*
                        $($($late: found.symbol(stringify!($late_twin)).ok(),)*)?
                    }
                })
            }
        }
    };
    (@name $twin:ident $name:literal) => { $name };
    (@name $twin:ident) => { stringify!($twin) };
}
pub(super) use table;

/// A library's string.
///
/// # Safety
/// Null, or a string that ends in a zero and is not changed meanwhile.
pub unsafe fn string(text: *const c_char) -> Option<String> {
    // SAFETY: the caller's promise.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_was_cut_off_is_not_opened() {
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let folder = std::env::temp_dir().join(format!("zbench-cut-off-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("libcut.so");
        for length in [0, 3, 63, own.len()] {
            std::fs::write(&path, &own[..length]).unwrap();
            assert_eq!(whole(&path), Ok(()), "{length} bytes are for the loader to judge");
        }
        // What lies behind the segments, as tables for debuggers, the loader does not map.
        std::fs::write(&path, &own).unwrap();
        let end = stated_end(&File::open(&path).unwrap(), own.len() as u64).unwrap() as usize;
        for length in [64, 100, 5000, end - 1] {
            std::fs::write(&path, &own[..length]).unwrap();
            let reason = whole(&path).unwrap_err();
            assert!(reason.contains("cut off") && reason.contains(&length.to_string()), "{reason}");
            assert_eq!(open(&path).err(), Some(reason));
        }
        assert_eq!((whole(Path::new("libc.so.6")), whole(&folder)), (Ok(()), Ok(())));
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn variables_become_folders_in_order() {
        assert_eq!(Search::new(|_| None), Search::default());
        assert_eq!(Search::new(|_| Some("".into())), Search::default(), "an empty variable is none");
        let search = Search::new(|name| {
            let value = match name {
                "ZBENCH_CUDA_LIBS" => "/x::/y",
                "CUDA_HOME" => "/cuda",
                "VIRTUAL_ENV" => "/venv",
                _ => return None,
            };
            Some(value.into())
        });
        assert_eq!(search.folders, ["/x", "/y", "/cuda", "/venv"].map(PathBuf::from));
    }

    #[test]
    fn a_folder_is_searched_as_pip_and_toolkits_lay_it_out() {
        let root = std::env::temp_dir().join(format!("zbench-search-{}", std::process::id()));
        let site = "lib/python3.11/site-packages/nvidia/cublas/lib";
        for folder in ["nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib", "nvidia/headers", "lib64", site] {
            std::fs::create_dir_all(root.join(folder)).unwrap();
        }
        let found = Search::inside(&root);
        let expected = ["nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib", "", "lib64", "lib", site];
        assert_eq!(found, expected.map(|folder| root.join(folder)), "none that is not there");

        // A file that is no library is told of with the loader's words, and the search goes on to the system.
        std::fs::write(root.join("lib64/libcublasLt.so.13"), "no library").unwrap();
        let error = Search { folders: vec![root.clone()] }.open(Library::CublasLt).err().unwrap();
        let Absent::NotFound { tried, .. } = &error else { panic!("{error}") };
        assert_eq!(tried[0].place, root.join("lib64/libcublasLt.so.13"));
        assert!(tried.iter().any(|attempt| attempt.place == Path::new("libcublasLt.so.13")), "{error}");
        assert!(error.to_string().contains("file too short") && error.to_string().contains("pip install"), "{error}");
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn what_is_missing_says_all_places() {
        let folders = ["/no/such/folder", "/proc/self"].map(PathBuf::from).to_vec();
        let error = Search { folders }.open(Library::CublasLt).err().unwrap();
        let Absent::NotFound { tried, .. } = &error else { panic!("{error}") };
        assert!(tried[0].reason.contains("No such file"), "{error}");
        assert!(tried[1].reason.starts_with("none of libcublasLt.so.13"), "{error}");
        assert!(tried.len() >= 5, "the system's names too: {error}");
    }
}
