//! Libraries that only imitate NVIDIA's: their sources, and the files that they are compiled to.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

/// The libraries: what they are called, and their sources.
pub const SOURCES: [(&str, &str); 6] = [
    ("libcuda.so.1", include_str!("driver.cpp")),
    ("libnvrtc.so.13", include_str!("nvrtc.cpp")),
    ("libcublasLt.so.13", include_str!("cublaslt.cpp")),
    ("libnvidia-ml.so.1", include_str!("nvml.cpp")),
    ("libnvtx3interop.so.1", include_str!("nvtx.cpp")),
    ("libnccl.so.2", include_str!("nccl.cpp")),
];

/// Their files, compiled once.
pub static COMPILED: LazyLock<[PathBuf; 6]> = LazyLock::new(|| {
    let threads = SOURCES.map(|(name, text)| std::thread::spawn(move || compile(name, text)));
    threads.map(|thread| thread.join().unwrap())
});

/// A driver of a time before CUDA 12.
#[allow(dead_code)] // not every program of tests takes it
pub static OLD_DRIVER: LazyLock<PathBuf> =
    LazyLock::new(|| compile(SOURCES[0].0, &format!("#define OLD_DRIVER\n{}", SOURCES[0].1)));

/// A folder beside this program, which ci/gpu-check takes to machines that have none of Cargo's.
pub fn beside(name: &str) -> PathBuf {
    let program = std::env::current_exe().unwrap();
    program.parent().unwrap_or(Path::new(".")).join(name)
}

fn compile(name: &str, text: &str) -> PathBuf {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    let folder = beside("fakes");
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join(format!("{name}-{:016x}", hasher.finish()));
    if !path.exists() {
        let aside = path.with_extension(std::process::id().to_string());
        std::fs::write(aside.with_extension("cpp"), text).unwrap();
        let mut command = Command::new("c++");
        // Without names that are one for all copies.
        command.args([
            "-std=c++17",
            "-O1",
            "-g",
            "-shared",
            "-fPIC",
            "-fno-gnu-unique",
            "-Wall",
            "-Werror",
            "-pthread",
        ]);
        let output = command.arg(aside.with_extension("cpp")).arg("-o").arg(&aside).output().unwrap();
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        std::fs::rename(&aside, &path).unwrap();
    }
    path
}
