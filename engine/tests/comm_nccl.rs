//! NCCL as far as this machine goes. Without its library: the errors. With ZBENCH_NCCL_LIB or ZBENCH_CUDA_LIBS: the library's
//! version and ids. With a GPU: the suite of all backends, one rank per GPU.

use crate::conformance::{self, NEAR, Options};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use zbench_collectives::nccl::{Api, Device, NcclError, OLDEST, Ordered, Search, dotted, load_driver, nccl_over};
use zbench_collectives::{Communicator, HostStaged, group};
use zbench_kernels::cuda::gpu::{self, Absent, Gpu, Probe};
use zbench_kernels::{Arena, Cpu, Cuda, Kernels};

/// NCCL rounds partial sums of halves, and reduces neither onto what is there nor into another type.
const OPTIONS: Options = Options { narrow_sums: true, mixed: false, ..NEAR };

fn search() -> Search {
    Search::new(|name| std::env::var_os(name))
}

#[test]
fn a_library_that_is_nowhere_is_an_error_that_lists_what_was_tried() {
    let folder = tempfile::tempdir().unwrap();
    let nowhere = folder.path().join("libnccl.so.2");
    let error = Api::load(&Search { explicit: Some(nowhere.clone()), folders: vec!["/also".into()] }).unwrap_err();
    let NcclError::Absent(Absent::NotFound { tried, .. }) = &error else { panic!("{error}") };
    assert_eq!(tried.iter().map(|attempt| attempt.place.clone()).collect::<Vec<_>>(), std::slice::from_ref(&nowhere));
    let said = error.to_string();
    for words in [&*nowhere.to_string_lossy(), "No such file", "pip install", "ZBENCH_NCCL_LIB", "ZBENCH_CUDA_LIBS"] {
        assert!(said.contains(words), "{words} is missing in: {said}");
    }
}

#[test]
fn a_file_that_is_no_library_is_said_to_be_none() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("libnccl.so.2");
    std::fs::write(&file, "not a library").unwrap();
    let error = Api::load(&Search { explicit: Some(file.clone()), folders: Vec::new() }).unwrap_err();
    let NcclError::Absent(Absent::NotFound { tried, .. }) = &error else { panic!("{error}") };
    assert!(tried[0].place == file && !tried[0].reason.is_empty(), "{error}");
    // Found in a folder that is searched, it is one of several that were tried, in order.
    let folders = vec![folder.path().to_owned()];
    match Api::load(&Search { explicit: None, folders }) {
        Err(NcclError::Absent(Absent::NotFound { tried, .. })) => {
            let names: Vec<_> = tried.iter().map(|attempt| attempt.place.clone()).collect();
            let inside = folder.path().join("nvidia/nccl/lib");
            let wanted = [inside.join("libnccl.so.2"), inside.join("libnccl.so"), file];
            assert_eq!(names[..3], wanted);
            assert_eq!(names[4..], ["libnccl.so.2", "libnccl.so"].map(PathBuf::from));
        }
        Ok(api) => assert!(api.path() == "libnccl.so.2" || api.path() == "libnccl.so", "the system's own: {api:?}"),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_library_without_the_functions_is_named_with_the_first_that_is_missing() {
    let error = Api::load(&Search { explicit: Some("libm.so.6".into()), folders: Vec::new() }).unwrap_err();
    let NcclError::Absent(Absent::MissingSymbol { symbol, path, .. }) = &error else { panic!("{error}") };
    assert_eq!((*symbol, path.to_str()), ("ncclGetVersion", Some("libm.so.6")));
    assert!(error.to_string().contains("libm.so.6 has no function ncclGetVersion"), "{error}");
}

/// The library that the variables name; a reason on the screen where there is none.
fn library() -> Option<Arc<Api>> {
    let search = search();
    match Api::load(&search) {
        Ok(api) => Some(api),
        Err(error) if search == Search::default() => {
            println!("NOT RUN: neither ZBENCH_NCCL_LIB nor ZBENCH_CUDA_LIBS is set, and {error}");
            None
        }
        Err(error) => panic!("{error}"), // What was asked for has to be there.
    }
}

#[test]
fn the_library_tells_its_version_and_makes_ids() {
    let Some(api) = library() else { return };
    println!("{api:?}");
    assert!(api.version() >= OLDEST, "{}", dotted(api.version()));
    let (one, two) = (api.unique_id().unwrap(), api.unique_id().unwrap());
    assert!(one != two && one.0 != [0; 128]);
    assert!(!format!("{one:?}").chars().any(char::is_numeric), "ids are not printed");
}

#[test]
fn the_driver_is_there_or_says_why_not() {
    match load_driver() {
        Ok(driver) => println!("{} GPUs", driver.devices().unwrap().len()),
        Err(error) => {
            println!("no driver: {error}");
            assert!(error.to_string().contains("CUDA"), "{error}");
        }
    }
}

#[test]
fn a_group_of_gpus_conforms() {
    let Some(api) = library() else { return };
    let probe = Probe::new(&gpu::Search::new(|name| std::env::var_os(name)));
    let count = match &probe.devices {
        Ok(devices) => devices.len(),
        Err(absent) => return println!("NOT RUN on a GPU: {absent}"),
    };
    let driver = load_driver().unwrap();
    let sizes = if count == 1 { vec![1] } else { vec![1, count] };
    for size in sizes {
        let kernels = (0..size).map(|_| Arc::new(Cpu::new(1)) as Arc<dyn Kernels>).collect();
        std::thread::scope(|scope| {
            for base in group("carrier", kernels, Duration::from_secs(60)).unwrap() {
                let (api, probe, driver) = (&api, &probe, driver.clone());
                scope.spawn(move || {
                    let device = Device::new(driver, base.rank()).unwrap();
                    let comm = nccl_over(&base, api, &device, Duration::from_secs(60)).unwrap();
                    println!("rank {} of {size}", comm.rank());
                    let gpu = Arc::new(Gpu::open(probe, comm.rank(), gpu::Options::default()).unwrap());
                    let arena = Arena::on(gpu.clone(), None, 64 << 20).unwrap();
                    let kernels: Arc<dyn Kernels> = Arc::new(Cuda::new(gpu).unwrap());
                    let ordered = Ordered::new(comm, kernels.clone());
                    conformance::all(&HostStaged::new(Box::new(ordered), kernels, arena), &OPTIONS);
                });
            }
        });
    }
}
