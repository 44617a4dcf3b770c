//! That AddressSanitizer sees what kernels on the host do wrong, through the fibers and the shared memory that imitate a GPU's:
//! a program of deliberately wrong kernels. The crate's own kernels run under it with ZBENCH_HOST_CUDA_FLAGS: see .ci/run.

use std::path::PathBuf;
use std::process::{Command, Output};
use zbench_kernels::cuda::sources::HEADERS;

/// Each kernel does one thing wrong where it is asked to, by one element. Its first argument names the kernel, a second one
/// asks for the fault.
const PROGRAM: &str = r#"
#include "prelude.h"

extern "C" __global__ void __launch_bounds__(64) global(float *x, u32 over) { x[threadIdx.x + over] = float(threadIdx.x); }
EXPORT(global)
extern "C" __global__ void __launch_bounds__(64) fixed(float *x, u32 over) {
    SHARED(float, aside, 64);
    aside[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = aside[63 - threadIdx.x + over];
}
EXPORT(fixed)
extern "C" __global__ void __launch_bounds__(64) dynamic(float *x, u32 over) {
    float *aside = reinterpret_cast<float *>(dynamic_shared);
    aside[threadIdx.x + over] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = aside[63 - threadIdx.x];
}
EXPORT(dynamic)
extern "C" __global__ void __launch_bounds__(64) own(float *x, u32 over) {
    float mine[8];
    for (u32 i = 0; i < 8; i++) mine[i] = x[threadIdx.x] + float(i);
    __syncthreads();
    x[threadIdx.x] = mine[threadIdx.x % 8 + over * 8];
}
EXPORT(own)
extern "C" __global__ void __launch_bounds__(64) copied(float *x, u32 over) {
    SHARED(float, aside, 64);
    if (threadIdx.x < 16) cp_async(aside + 4 * threadIdx.x, x + 4 * threadIdx.x + 4 * over, true);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    x[threadIdx.x] = aside[63 - threadIdx.x];
}
EXPORT(copied)

int main(int count, char **words) {
    if (count < 2) return 2;
    float *x = static_cast<float *>(malloc(64 * sizeof(float)));
    for (int i = 0; i < 64; i++) x[i] = float(i);
    u32 over = count > 2;
    void *arguments[] = {&x, &over};
    char said[256] = "";
    // Twice, so that fibers and shared memory are used again.
    int failed = 0;
    for (u32 order = 0; order < 2 && !failed; order++) {
        const zb::Launch launch = {{2, 1, 1}, 64, 256, order, said, sizeof said};
        const struct { const char *name; int (*start)(const zb::Launch *, void **); } kernels[] = {
            {"global", zb_global}, {"fixed", zb_fixed}, {"dynamic", zb_dynamic}, {"own", zb_own}, {"copied", zb_copied}};
        for (auto &kernel : kernels)
            if (!strcmp(kernel.name, words[1])) failed |= kernel.start(&launch, arguments);
    }
    printf("%s %s\n", failed ? "failed" : "ended", said);
    free(x);
    return failed;
}
"#;

/// The program; none where there is no compiler, or none with AddressSanitizer.
fn built() -> Option<PathBuf> {
    if let Err(error) = Command::new("c++").arg("--version").output() {
        println!("NOT RUN: c++: {error}");
        return None;
    }
    // Not Cargo's folder: ci/gpu-check takes this program to machines that have neither that nor a compiler.
    let folder = std::env::temp_dir().join(format!("zbench-address-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).unwrap();
    HEADERS.iter().for_each(|(name, text)| write(name, text));
    write("wrong.cu", PROGRAM);
    write("empty.cpp", "int main() {}");
    let compile = |file: &str, to: &str| -> Output {
        let mut command = Command::new("c++");
        command.args(["-std=c++17", "-O1", "-g1", "-fsanitize=address", "-fno-strict-aliasing", "-x", "c++"]);
        command.current_dir(&folder).env_remove("LD_PRELOAD").args([file, "-o", to]).output().unwrap()
    };
    let probe = compile("empty.cpp", "empty");
    if !probe.status.success() {
        println!("NOT RUN: c++ has no AddressSanitizer: {}", String::from_utf8_lossy(&probe.stderr));
        std::fs::remove_dir_all(&folder).unwrap();
        return None;
    }
    let made = compile("wrong.cu", "wrong");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    Some(folder)
}

#[test]
fn the_sanitizer_sees_every_kind_of_overrun_and_nothing_else() {
    let Some(folder) = built() else { return };
    let run = |words: &[&str]| {
        let mut command = Command::new(folder.join("wrong"));
        // Leaks are looked for by tracing the process, which not every container allows.
        command.args(words).env_remove("LD_PRELOAD").env("ASAN_OPTIONS", "detect_leaks=0").output().unwrap()
    };
    for (kernel, kind) in [
        ("global", "heap-buffer-overflow"),
        ("fixed", "heap-buffer-overflow"),
        ("dynamic", "heap-buffer-overflow"),
        ("own", "stack-buffer-overflow"),
        ("copied", "heap-buffer-overflow"),
    ] {
        let right = run(&[kernel]);
        let said = String::from_utf8_lossy(&right.stderr).into_owned() + &String::from_utf8_lossy(&right.stdout);
        assert!(right.status.success() && said.trim() == "ended", "{kernel} does nothing wrong: {said}");
        let wrong = run(&[kernel, "over"]);
        let said = String::from_utf8_lossy(&wrong.stderr);
        assert!(!wrong.status.success(), "{kernel}: nothing was found");
        assert!(said.contains(&format!("AddressSanitizer: {kind}")), "{kernel}: {said}");
        assert!(said.contains("wrong.cu"), "{kernel}: the place is named: {said}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
