//! Memory, streams, kernels and marks.

use crate::gpu::fakes::{Fakes, beside};
use std::ffi::c_void;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use zbench_kernels::cuda::gpu::{Gpu, Options};
use zbench_kernels::cuda::host::{Host, Order};
use zbench_kernels::memory::device::{Arguments, Device, Launch, Stream};
use zbench_kernels::numerics::philox;
use zbench_kernels::{Arena, Category, Cuda, DType, KernelError, Kernels, View, ViewMut};

fn random(bytes: usize, seed: u64) -> Vec<u8> {
    (0..bytes.div_ceil(16) as u64)
        .flat_map(|i| philox::philox4x32([i as u32, seed as u32, 0, 0], [1, 2]))
        .flat_map(u32::to_le_bytes)
        .take(bytes)
        .collect()
}

#[test]
fn facts_are_the_drivers() {
    let fakes = Fakes::all();
    let gpu = fakes.open(Options { reserve_bytes: 3 << 30, ..Options::default() });
    let facts = gpu.props();
    assert_eq!((facts.name.as_str(), facts.capability, facts.multiprocessors), ("Fake H100", (9, 0), 132));
    assert_eq!((facts.shared_bytes, facts.memory_bytes), (232_448, 76 << 30), "79 GiB are free, 3 are left");
    assert_eq!((gpu.name().as_str(), gpu.target().name()), ("cuda sm_90a", "sm_90a"));
    let info = gpu.memory_info().unwrap();
    assert_eq!((info.total_bytes, info.used_bytes()), (80 << 30, 1 << 30));
    let at = gpu.allocate(1000).unwrap();
    assert!(at.is_multiple_of(256));
    assert_eq!(gpu.memory_info().unwrap().used_bytes(), (1 << 30) + 1000);
    let error = gpu.allocate(90 << 30).unwrap_err();
    assert!(error.out_of_memory && error.reason.starts_with("96636764160 bytes: "), "{error}");
    // SAFETY: made above.
    unsafe { gpu.free(at, 1000) };
    fakes.set("used", 79 << 30);
    assert_eq!(fakes.open(Options { reserve_bytes: 3 << 30, ..Options::default() }).props().memory_bytes, 0);
}

#[test]
fn everything_is_given_back() {
    let fakes = Fakes::all();
    let gpu = fakes.gpu();
    gpu.load(&["fill"]).unwrap();
    let (queue, pinned) = (gpu.new_stream().unwrap(), gpu.pinned(100).unwrap());
    let mark = queue.record_event().unwrap();
    assert!(fakes.live() > 5);
    drop((gpu, queue, pinned));
    assert!(fakes.live() > 0, "a mark holds the device");
    drop(mark);
    assert_eq!(fakes.live(), 0);
}

#[test]
fn bytes_come_back_as_they_went() {
    let fakes = Fakes::all();
    let gpu = fakes.gpu();
    let queue = gpu.new_stream().unwrap();
    const SLOT: usize = 4 << 20;
    let at = gpu.allocate(3 * SLOT).unwrap();
    for (i, bytes) in
        [0, 1, 255, 256, 1000, SLOT - 1, SLOT, SLOT + 1, 2 * SLOT, 2 * SLOT + 77, 3 * SLOT].into_iter().enumerate()
    {
        let data = random(bytes, i as u64);
        let mut given = data.clone();
        // SAFETY: `at` has as many bytes.
        unsafe { queue.upload(&given, at).unwrap() };
        given.fill(0xee); // It may change as soon as the call returns, though nothing was copied yet.
        let mut back = vec![0; bytes];
        // SAFETY: as above.
        unsafe { queue.download(at, &mut back).unwrap() };
        assert!(back == data, "{bytes} bytes");
    }
    // SAFETY: made above.
    unsafe { gpu.free(at, 3 * SLOT) };
}

/// The driver does nothing before somebody waits for it.
#[test]
fn copies_of_pinned_memory_go_through_queues_of_their_own() {
    const BYTES: usize = 5_000_000;
    let fakes = Fakes::all();
    let data: Vec<i8> = random(BYTES, 5).into_iter().map(|byte| byte as i8).collect();
    {
        let cuda = Cuda::new(Arc::new(fakes.gpu())).unwrap();
        let (device, host) = (cuda.arena(Some(32 << 20), 1).unwrap(), cuda.host_arena(16 << 20).unwrap());
        let streams = cuda.copy_streams().unwrap().unwrap();
        let alloc = |arena: &Arena| arena.alloc(Category::Communication, DType::I8, BYTES).unwrap();
        let (mut there, mut copy) = (alloc(&device), alloc(&device));
        let (mut here, mut back) = (alloc(&host), alloc(&host));
        assert!(here.is_pinned() && !there.is_pinned());
        assert!((here.ptr().as_ptr() as usize).is_multiple_of(64));
        here.view_mut().as_slice_mut::<i8>().unwrap().copy_from_slice(&data);
        let came = streams.upload(&cuda, &mut here, 0..BYTES, there.view_mut()).unwrap();
        assert!(!came.query().unwrap(), "nobody has waited");
        // The host waits before it writes again.
        here.view_mut().as_slice_mut::<i8>().unwrap().fill(0);
        assert!(came.query().unwrap());
        cuda.wait_event(&*came).unwrap();
        cuda.copy(there.view(), copy.view_mut()).unwrap();
        let gone = streams.download(&cuda, copy.view(), &mut back, 0..BYTES).unwrap();
        assert!(!gone.query().unwrap());
        assert!(back.view().as_slice::<i8>().unwrap() == data);
        // What lies on both sides is copied by the staged way, too.
        cuda.copy(copy.view(), here.view_mut()).unwrap();
        assert!(here.view().as_slice::<i8>().unwrap() == data);
        // No kernel of the GPU takes what lies on the host, though it would reach it.
        let mut factor = host.alloc(Category::Communication, DType::F32, 4).unwrap();
        assert_eq!(cuda.scale(2.0, factor.view_mut()), Err(KernelError::NotOnHost));
        fakes.fail("cuMemHostAlloc", 2);
        let error = cuda.host_arena(1 << 20).unwrap_err().to_string();
        assert!(error.contains("could not pin 1048576 bytes") && error.contains("memory.offload_"), "{error}");
        fakes.fail("cuMemHostAlloc", 0);
    }
    assert_eq!(fakes.live(), 0);
}

#[test]
fn short_uploads_do_not_wait_for_one_another() {
    let fakes = Fakes::all();
    let gpu = fakes.gpu();
    let queue = gpu.stream().unwrap();
    const COUNT: usize = 3000;
    let at = gpu.allocate(COUNT * 1000).unwrap();
    let data = random(COUNT * 1000, 7);
    for i in 0..COUNT {
        let mut piece = data[i * 1000..][..1000].to_vec();
        // SAFETY: inside `at`.
        unsafe { queue.upload(&piece, at + 1000 * i as u64).unwrap() };
        piece.fill(0);
    }
    // 3 MB of 1 KiB pieces fit into one slot: nothing was waited for. Each is a copy and an event.
    assert_eq!(fakes.pending(queue.raw()), 2 * COUNT as i64);
    let mut back = vec![0; data.len()];
    // SAFETY: as many bytes as were made.
    unsafe { queue.download(at, &mut back).unwrap() };
    assert!(back == data);
    // More than both slots hold, with downloads in between.
    for round in 0..3 {
        for i in (0..COUNT).rev() {
            let piece = random(1000, (round * COUNT + i) as u64);
            // SAFETY: inside `at`.
            unsafe { queue.upload(&piece, at + 1000 * i as u64).unwrap() };
        }
        for i in [0, COUNT / 2, COUNT - 1] {
            let mut piece = vec![0; 1000];
            // SAFETY: inside `at`.
            unsafe { queue.download(at + 1000 * i as u64, &mut piece).unwrap() };
            assert!(piece == random(1000, (round * COUNT + i) as u64));
        }
    }
    // SAFETY: made above.
    unsafe { gpu.free(at, data.len()) };
}

#[test]
fn copies_and_sets_run_in_order() {
    let fakes = Fakes::all();
    let gpu = fakes.gpu();
    let queue = gpu.stream().unwrap();
    let at = gpu.allocate(2048).unwrap();
    let data = random(1000, 3);
    let mut back = vec![0; 2000];
    // SAFETY: inside `at`, and what is apart is apart.
    unsafe {
        queue.memset(at, 9, 2000).unwrap();
        queue.upload(&data, at).unwrap();
        queue.copy(at, at + 1000, 999).unwrap();
        queue.memset(at, 0, 10).unwrap();
        queue.copy(at, at, 0).unwrap();
        queue.memset(at, 1, 0).unwrap();
        assert!(fakes.pending(queue.raw()) >= 4, "nothing waits");
        queue.download(at, &mut back).unwrap();
    }
    assert_eq!((&back[..10], &back[10..1000]), (&[0; 10][..], &data[10..]));
    assert_eq!((&back[1000..1999], back[1999]), (&data[..999], 9));
    // Pinned memory is the host's.
    let mut pinned = gpu.pinned(1000).unwrap();
    assert!(pinned.bytes().iter().all(|byte| *byte == 0) && pinned.address().is_multiple_of(4096));
    pinned.bytes_mut().copy_from_slice(&data);
    let mut other = gpu.pinned(1000).unwrap();
    // SAFETY: inside `at`.
    unsafe {
        queue.upload(&pinned.bytes()[100..], at).unwrap();
        queue.download(at, &mut other.bytes_mut()[..900]).unwrap();
    }
    assert_eq!(other.bytes()[..900], data[100..]);
    // SAFETY: made above.
    unsafe { gpu.free(at, 2048) };
}

#[test]
fn kernels_run_through_the_trait() {
    let fakes = Fakes::all();
    let cuda = Cuda::new(Arc::new(fakes.gpu())).unwrap();
    assert_eq!((cuda.name().as_str(), cuda.is_host()), ("cuda sm_90a", false));
    let arena = cuda.arena(Some(1 << 20), 1).unwrap();
    let mut buffer = arena.alloc(Category::Workspace, DType::F32, 1000).unwrap();
    cuda.upload(View::of(&vec![5f32; 1000]), buffer.view_mut()).unwrap();
    cuda.fill(buffer.slice_mut(10..990), 2.5).unwrap();
    let mut got = vec![0f32; 1000];
    cuda.download(buffer.view(), ViewMut::of(&mut got)).unwrap();
    assert!(got.iter().enumerate().all(|(i, x)| *x == if (10..990).contains(&i) { 2.5 } else { 5.0 }));
    cuda.synchronize().unwrap();
    assert_eq!(fakes.log(), ["fill 1,1,1 x 256, 0"]);
    drop((buffer, arena, cuda));
    assert_eq!(fakes.live(), 0);
}

#[test]
fn launches_that_cannot_be_are_refused_by_name() {
    let fakes = Fakes::all();
    let gpu = fakes.gpu();
    let queue = gpu.new_stream().unwrap();
    let at = gpu.allocate(400).unwrap();
    let good = Launch { kernel: "fill", grid: [1, 1, 1], threads: 256, shared: 231_424 };
    let start = |launch: Launch| {
        let (run, length, value) = ([at, 1], 100u64, 1f32);
        let pointers = &mut [
            std::ptr::from_ref(&run).cast_mut().cast::<c_void>(),
            std::ptr::from_ref(&length).cast_mut().cast(),
            std::ptr::from_ref(&value).cast_mut().cast(),
        ];
        // SAFETY: the arguments of `fill`.
        unsafe { queue.launch(&launch, Arguments { pointers, sizes: &[16, 8, 4] }) }
    };
    start(good).unwrap();
    for (launch, words) in [
        (Launch { grid: [0, 1, 1], ..good }, "0 x 1 x 1"),
        (Launch { grid: [1, 70_000, 1], ..good }, "grid"),
        (Launch { threads: 257, ..good }, "whole warps"),
        (Launch { threads: 288, ..good }, "its 256"),
        (Launch { shared: 231_425, ..good }, "1024 of its own"),
        (Launch { kernel: "no_such", ..good }, "there is no such kernel"),
    ] {
        let error = start(launch).unwrap_err();
        assert_eq!(error.call, launch.kernel);
        assert!(error.reason.contains(words), "{error}");
    }
    assert_eq!(fakes.log().len(), 1, "nothing else was started");
    fakes.fail("cuLaunchKernel", 2);
    let error = start(good).unwrap_err();
    assert!(error.out_of_memory && error.call == "cuLaunchKernel fill", "{error}");
    // SAFETY: made above.
    unsafe { gpu.free(at, 400) };
}

#[test]
fn a_fault_comes_out_and_stays() {
    let fakes = Fakes::all();
    let cuda = Cuda::new(Arc::new(fakes.gpu())).unwrap();
    let queue = cuda.stream();
    let mark = queue.record_event().unwrap();
    let nowhere = 0x1000u64;
    let dangling = std::ptr::NonNull::new(nowhere as *mut u8).unwrap();
    // SAFETY: nothing reads it but the fake, which notices.
    let view = unsafe { ViewMut::on_device(dangling, DType::F32, 100) };
    cuda.fill(view, 1.0).unwrap(); // A kernel's fault shows later.
    let error = cuda.synchronize().unwrap_err().to_string();
    assert!(error.contains("CUDA_ERROR_ILLEGAL_ADDRESS (700)") && error.contains("compute-sanitizer"), "{error}");
    assert!(queue.synchronize().is_err() && queue.record_event().is_err() && mark.wait().is_err());
    assert!(mark.query().is_err() && cuda.device().allocate(1).is_err());
    drop(mark);
    drop(cuda); // Nothing here panics.
}

#[test]
fn sources_are_compiled_at_the_same_time_and_once() {
    let fakes = Fakes::all();
    let folder: PathBuf = fakes.folder.join("cache");
    let options = Options { cache: Some(folder.clone()), ..Options::default() };
    let all: Vec<&'static str> =
        zbench_kernels::cuda::sources::SOURCES.iter().flat_map(|source| source.kernels()).collect();
    let count = zbench_kernels::cuda::sources::SOURCES.len() as i32;
    let compiles = || fakes.number("libnvrtc.so.13", "fake_compiles");
    let gpu = fakes.open(options.clone());
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| gpu.load(&all).unwrap());
        }
    });
    assert_eq!(compiles(), count, "threads that load the same do not do it twice");
    let most = fakes.number("libnvrtc.so.13", "fake_most_at_once");
    println!("{count} sources, {most} at once");
    assert!(most > 1 || count == 1);
    let built = gpu.built();
    assert_eq!(built.len() as i32, count);
    assert!(built.iter().all(|built| !built.cached && built.not_kept.is_none() && !built.usage.is_empty()));
    assert_eq!(built.iter().flat_map(|built| &built.usage).count(), all.len());

    let again = fakes.open(options.clone());
    again.load(&["fill"]).unwrap();
    assert!(again.built()[0].cached && compiles() == count);
    // What is cut short on disk is compiled again, and the device never sees it.
    for file in std::fs::read_dir(&folder).unwrap() {
        let file = file.unwrap().path();
        let whole = std::fs::read(&file).unwrap();
        std::fs::write(&file, &whole[..whole.len() - 1]).unwrap();
    }
    let third = fakes.open(options);
    third.load(&["fill"]).unwrap();
    assert!(!third.built()[0].cached && compiles() == count + 1);

    let error = fakes.gpu().load(&["fill", "nothing"]).unwrap_err();
    assert_eq!((error.call.as_str(), compiles()), ("nothing", count + 1));
    // Code for another architecture is refused with a word on versions.
    fakes.set("major", 8);
    let gpu = fakes.gpu();
    let plain = zbench_kernels::cuda::sources::SOURCES.iter().filter(|source| !source.hopper);
    gpu.load(&plain.flat_map(|source| source.kernels()).collect::<Vec<_>>()).unwrap();
    let gpu = fakes.gpu();
    fakes.set("major", 9);
    let error = gpu.load(&["fill"]).unwrap_err();
    assert_eq!(error.call, "loading elementwise.cu for sm_80");
    assert!(error.reason.contains("older than the compiler"), "{error}");
}

#[test]
fn marks_order_queues_and_tell_times() {
    let fakes = Fakes::all();
    let gpu = fakes.gpu();
    let [first, second] = [0, 1].map(|_| gpu.new_stream().unwrap());
    let at = gpu.allocate(2000).unwrap();
    let data = random(1000, 1);
    let begin = first.record_event().unwrap();
    // SAFETY: inside `at`.
    unsafe { first.upload(&data, at).unwrap() };
    let end = first.record_event().unwrap();
    assert!(end.elapsed(&*begin).is_err(), "neither has come");
    // Nothing of the first queue was done yet; the second waits for it on the device.
    second.wait_event(&*end).unwrap();
    let mut back = vec![0; 1000];
    // SAFETY: inside `at`.
    unsafe {
        second.copy(at, at + 1000, 1000).unwrap();
        second.download(at + 1000, &mut back).unwrap();
    }
    assert!(back == data);
    assert!(end.query().unwrap() && begin.query().unwrap());
    assert_eq!(end.elapsed(&*begin).unwrap(), Duration::from_micros(250));
    assert_eq!(begin.elapsed(&*end).unwrap(), Duration::ZERO, "not before the beginning");

    // SAFETY: inside `at`.
    unsafe { first.memset(at, 1, 1000).unwrap() };
    let last = first.record_event().unwrap();
    assert!(!last.query().unwrap());
    last.wait().unwrap();
    assert!(last.query().unwrap());
    // An event that was used again tells its new time, and whoever waits for the old one does not notice.
    drop((begin, end));
    for _ in 0..100 {
        let [before, after] = [0, 1].map(|_| {
            // SAFETY: inside `at`.
            unsafe { first.memset(at, 1, 1000).unwrap() };
            first.record_event().unwrap()
        });
        second.wait_event(&*after).unwrap();
        after.wait().unwrap();
        assert_eq!(after.elapsed(&*before).unwrap(), Duration::from_micros(250));
    }
    // Marks of other machines are told apart.
    let other = fakes.gpu();
    let foreign = other.new_stream().unwrap().record_event().unwrap();
    assert!(first.wait_event(&*foreign).unwrap_err().reason.contains("another device's"));
    assert!(last.elapsed(&*foreign).is_err() && foreign.elapsed(&*last).is_err());
    let cache = beside("cache/kernels");
    let host = Host::new(&cache, "c++", &[], Order::Forward).unwrap().record_event().unwrap();
    assert!(first.wait_event(&*host).is_err() && last.elapsed(&*host).is_err());
    // SAFETY: made above.
    unsafe { gpu.free(at, 2000) };
}

#[test]
fn any_thread_may_use_a_device() {
    let fakes = Fakes::all();
    let gpu: Gpu = fakes.gpu();
    let shared = gpu.new_stream().unwrap();
    std::thread::scope(|scope| {
        for i in 0..4u64 {
            let (gpu, shared) = (gpu.clone(), &*shared);
            scope.spawn(move || {
                // A context is a thread's: each call makes the device its own.
                let own = gpu.new_stream().unwrap();
                for queue in [shared, &*own] {
                    for round in 0..20 {
                        let at = gpu.allocate(5000).unwrap();
                        let (data, mut back) = (random(5000, i * 100 + round), vec![0; 5000]);
                        // SAFETY: `at` has as many bytes.
                        unsafe {
                            queue.upload(&data, at).unwrap();
                            queue.record_event().unwrap().wait().unwrap();
                            queue.download(at, &mut back).unwrap();
                            gpu.free(at, 5000);
                        }
                        assert!(back == data);
                    }
                }
            });
        }
    });
    drop((shared, gpu));
    assert_eq!(fakes.live(), 0);
}
