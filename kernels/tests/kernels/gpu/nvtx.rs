//! Ranges that a profiler shows.

use crate::gpu::fakes::Fakes;
use std::sync::Arc;
use zbench_kernels::{Cuda, Kernels};

const LIBRARY: &str = "libnvtx3interop.so.1";

#[test]
fn ranges_of_a_thread_follow_each_other() {
    let fakes = Fakes::all();
    let cuda = Arc::new(Cuda::new(Arc::new(fakes.gpu())).unwrap());
    let said = || fakes.text(LIBRARY, "fake_said");
    cuda.profiler_range(Some("forward"));
    cuda.profiler_range(Some("backward"));
    assert_eq!(said(), "(forward)(backward");
    // Another thread has ranges of its own, and ends none of this one's.
    let other = cuda.clone();
    std::thread::spawn(move || {
        other.profiler_range(None);
        other.profiler_range(Some("x"));
        other.profiler_range(None);
        other.profiler_range(None);
    })
    .join()
    .unwrap();
    assert_eq!(said(), "(forward)(backward(x)");
    cuda.profiler_range(None);
    assert_eq!(said(), "(forward)(backward(x))");
    // Long names are cut off, between bytes of ASCII here.
    let long = "n".repeat(200);
    cuda.profiler_range(Some(&long));
    cuda.profiler_range(None);
    assert!(said().ends_with(&format!("({})", "n".repeat(63))));
}

#[test]
fn without_the_library_nothing_is_shown_and_all_else_works() {
    let fakes = Fakes::without(&[LIBRARY]);
    let probe = fakes.probe();
    // The system may have the real one, which is harmless where no profiler listens.
    match &probe.nvtx {
        Err(absent) => assert!(absent.to_string().contains("pip install nvidia-nvtx"), "{absent}"),
        Ok(ranges) => println!("this machine has {}", ranges.path().display()),
    }
    let cuda = Cuda::new(Arc::new(fakes.gpu())).unwrap();
    cuda.profiler_range(Some("forward"));
    cuda.synchronize().unwrap();
}
