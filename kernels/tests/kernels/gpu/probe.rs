//! What is found, and what is said of what is not.

use crate::gpu::fakes::Fakes;
use zbench_kernels::cuda::gpu::{Absent, Driver, Gpu, Library, Nvrtc, Options, Probe, Search};

#[test]
fn everything_is_told() {
    let fakes = Fakes::all();
    fakes.set("devices", 2);
    fakes.tell("libnvrtc.so.13", "fake_minor", 2);
    let probe = fakes.probe();
    let devices = probe.devices.as_ref().unwrap();
    assert_eq!(devices.len(), 2);
    assert_eq!((devices[0].name.as_str(), devices[0].capability, devices[1].ordinal), ("Fake H100", (9, 0), 1));
    assert_eq!(devices[0].uuid, "GPU-0a1a2a3a-4a5a-6a7a-8a9a-aabacadaeafa");
    let said = probe.to_string();
    let folder = fakes.folder.display();
    let expected = format!(
        "the CUDA driver: CUDA 13.0, {folder}/libcuda.so.1\n\
         NVRTC: 13.2, {folder}/libnvrtc.so.13\n\
         cuBLASLt: 13.1.0, {folder}/libcublasLt.so.13\n\
         GPU 0: Fake H100, capability 9.0, 80.0 GiB, GPU-0a1a2a3a-4a5a-6a7a-8a9a-aabacadaeafa, 0000:0A:00.0\n\
         GPU 1: Another, capability 9.0, 80.0 GiB, GPU-0b1b2b3b-4b5b-6b7b-8b9b-abbbcbdbebfb, 0000:0B:00.0\n"
    );
    assert_eq!(said, expected);
}

/// What this machine itself has. Tests that take a library away can only do so where the system has none.
fn system() -> Probe {
    Probe::new(&Search::default())
}

#[test]
fn each_library_may_be_missing_alone() {
    let system = system();
    let absent = |library: &'static str, is_on_system: bool| {
        println!("{library}: the system's own {}", if is_on_system { "stands in for it" } else { "is missing too" });
        (Fakes::without(&[library]).probe(), is_on_system)
    };
    let (probe, stands_in) = absent("libnvrtc.so.13", system.nvrtc.is_ok());
    assert!(probe.driver.is_ok() && probe.cublaslt.is_ok() && probe.devices.is_ok());
    if !stands_in {
        assert!(matches!(probe.nvrtc, Err(Absent::NotFound { library: Library::Nvrtc, .. })));
        let error = Gpu::open(&probe, 0, Options::default()).unwrap_err();
        assert!(error.to_string().contains("pip install nvidia-cuda-nvrtc"), "{error}");
    }
    let (probe, stands_in) = absent("libcublasLt.so.13", system.cublaslt.is_ok());
    assert!(probe.driver.is_ok() && probe.nvrtc.is_ok() && probe.devices.is_ok());
    if !stands_in {
        assert!(matches!(probe.cublaslt, Err(Absent::NotFound { library: Library::CublasLt, .. })));
        Gpu::open(&probe, 0, Options::default()).unwrap();
    }
    let (probe, stands_in) = absent("libcuda.so.1", system.driver.is_ok());
    assert!(probe.nvrtc.is_ok() && probe.cublaslt.is_ok());
    if !stands_in {
        assert_eq!(probe.devices.clone().unwrap_err(), probe.driver.clone().unwrap_err());
        assert!(Gpu::open(&probe, 0, Options::default()).unwrap_err().to_string().contains("--gpus all"));
        assert_eq!(probe.to_string().matches("the CUDA driver was not found").count(), 1, "{probe}");
    }
    let probe = Fakes::without(&["libcuda.so.1", "libnvrtc.so.13", "libcublasLt.so.13"]).probe();
    assert_eq!(probe.nvrtc.is_ok(), system.nvrtc.is_ok());
    assert!(!probe.to_string().is_empty());
}

#[test]
fn a_driver_that_does_not_start_is_told_in_its_words() {
    let fakes = Fakes::all();
    for (code, words) in [(100, "CUDA_ERROR_NO_DEVICE (100)"), (803, "restart the machine"), (12345, "(12345)")] {
        fakes.fail("cuInit", code);
        let probe = fakes.probe();
        assert!(probe.driver.is_ok(), "it is there");
        let Err(Absent::Failed { library: Library::Driver, reason }) = &probe.devices else { panic!("{probe}") };
        assert!(reason.starts_with("cuInit: ") && reason.contains(words), "{reason}");
        assert!(probe.to_string().contains(words), "{probe}");
        assert!(Gpu::open(&probe, 0, Options::default()).is_err());
    }
    fakes.fail("cuInit", 0);
    fakes.set("devices", 0);
    assert!(fakes.probe().devices.unwrap_err().to_string().contains("CUDA_VISIBLE_DEVICES"));
    fakes.set("devices", 1);
    fakes.fail("cuDriverGetVersion", 999);
    let probe = fakes.probe();
    assert_eq!(probe.driver.unwrap_err(), probe.devices.unwrap_err(), "devices are not asked for without a driver");
}

#[test]
fn what_is_no_such_library_is_told() {
    let fakes = Fakes::without(&["libcuda.so.1", "libnvrtc.so.13"]);
    // Another library under the name.
    std::fs::copy(fakes.folder.join("libnvidia-ml.so.1"), fakes.folder.join("libcuda.so.1")).unwrap();
    let error = Driver::load(&fakes.search()).unwrap_err();
    assert!(matches!(error, Absent::MissingSymbol { library: Library::Driver, .. }), "{error}");
    assert!(error.to_string().contains("has no function cu"), "{error}");
    assert!(fakes.probe().devices.is_err());
    // A file that is none at all; what the system has is still looked for.
    std::fs::write(fakes.folder.join("libnvrtc.so.12"), "text").unwrap();
    match Nvrtc::load(&fakes.search(), None) {
        Ok(nvrtc) => println!("the system's NVRTC stands in: {nvrtc:?}"),
        Err(error) => {
            assert!(error.to_string().contains("libnvrtc.so.12: ") && error.to_string().contains("file too short"))
        }
    }
}

#[test]
fn a_newer_name_comes_first_and_builtins_before_the_compiler() {
    let fakes = Fakes::all();
    std::fs::write(fakes.folder.join("libnvrtc.so.12"), "not looked at").unwrap();
    assert!(Nvrtc::load(&fakes.search(), None).unwrap().path().ends_with("libnvrtc.so.13"));
    // The builtins beside it are opened first: where they cannot be, the compiler would fail later.
    std::fs::write(fakes.folder.join("libnvrtc-builtins.so.13.0"), "broken").unwrap();
    match Nvrtc::load(&fakes.search(), None) {
        Ok(nvrtc) => assert!(!nvrtc.path().starts_with(&fakes.folder)),
        Err(error) => assert!(error.to_string().contains("libnvrtc-builtins.so.13.0: file too short"), "{error}"),
    }
}

/// What NVRTC 13 compiles, a driver of CUDA 12 does not load.
#[test]
fn the_driver_s_version_chooses_the_libraries() {
    let fakes = Fakes::all();
    for (from, name) in [("libnvrtc.so.13", "libnvrtc.so.12"), ("libcublasLt.so.13", "libcublasLt.so.12")] {
        std::fs::copy(fakes.folder.join(from), fakes.folder.join(name)).unwrap();
    }
    fakes.tell("libnvrtc.so.12", "fake_major", 12);
    let taken = |version| {
        fakes.set("version", version);
        let probe = fakes.probe();
        let name = |path: &std::path::Path| path.file_name().unwrap().to_str().unwrap().to_string();
        (probe.nvrtc.map(|nvrtc| name(nvrtc.path())), probe.cublaslt.map(|library| name(library.path())))
    };
    let names = |nvrtc: &str, cublaslt: &str| (Ok(nvrtc.to_string()), Ok(cublaslt.to_string()));
    assert_eq!(taken(12040), names("libnvrtc.so.12", "libcublasLt.so.12"));
    for version in [13000, 13020, 14000] {
        assert_eq!(taken(version), names("libnvrtc.so.13", "libcublasLt.so.13"), "{version}");
    }
    // A name without a version is judged by what the library says of itself.
    std::fs::rename(fakes.folder.join("libnvrtc.so.12"), fakes.folder.join("libnvrtc.so")).unwrap();
    assert_eq!(taken(12040).0, Ok("libnvrtc.so".into()));
    // With nothing for this driver the words say what to install.
    std::fs::remove_file(fakes.folder.join("libnvrtc.so")).unwrap();
    std::fs::remove_file(fakes.folder.join("libcublasLt.so.12")).unwrap();
    if system().nvrtc.is_ok() || system().cublaslt.is_ok() {
        return println!("the system's own libraries stand in");
    }
    let (nvrtc, cublaslt) = taken(12040);
    for (absent, package) in [(nvrtc, "nvidia-cuda-nvrtc-cu12"), (cublaslt, "nvidia-cublas-cu12")] {
        let said = absent.unwrap_err().to_string();
        assert!(said.contains("is of CUDA 13, and the driver is of CUDA 12.4") && said.contains(package), "{said}");
    }
    assert!(Gpu::open(&fakes.probe(), 0, Options::default()).unwrap_err().to_string().contains("-cu12"));
}

#[test]
fn devices_that_cannot_be_taken_are_refused() {
    let fakes = Fakes::all();
    let refused = |ordinal| Gpu::open(&fakes.probe(), ordinal, Options::default()).unwrap_err().to_string();
    assert!(refused(1).contains("shows 1 device(s)"));
    fakes.set("major", 7);
    fakes.set("minor", 5);
    assert!(refused(0).contains("Fake H100: its compute capability is 7.5"), "{}", refused(0));
    fakes.set("major", 9);
    fakes.fail("cuDevicePrimaryCtxRetain", 2);
    let error = Gpu::open(&fakes.probe(), 0, Options::default()).unwrap_err();
    assert!(error.out_of_memory && error.to_string().contains("CUDA_ERROR_OUT_OF_MEMORY"), "{error}");
    fakes.fail("cuDevicePrimaryCtxRetain", 0);
    // What was taken before the failure is given back.
    fakes.fail("cuMemGetInfo_v2", 700);
    assert!(refused(0).contains("compute-sanitizer"));
    assert_eq!(fakes.live(), 0);
}
