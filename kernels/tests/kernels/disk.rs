//! Files that hold a rank's state: what is written comes back, whoever transfers it, and what cannot be is an error.

use std::path::Path;
use std::process::Command;
use tempfile::TempDir;
use zbench_kernels::disk::{self, DiskError, Engine, File, Options, PIECE_BYTES, Transfer};
use zbench_kernels::numerics::philox;
use zbench_kernels::{Arena, Buffer, Category, DType, PAGE_BYTES};
use zbench_test_tiers as tiers;

/// A folder on the disk that the build is on: the system's own for temporary files may be in memory.
fn folder() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn random(seed: u64, below: u64) -> u64 {
    let bits = philox::normals(9, seed).map(f32::to_bits);
    (u64::from(bits[0]) << 32 | u64::from(bits[1])) % below
}

/// A buffer of random words, whole pages of them.
fn words(arena: &Arena, len: usize, seed: u64) -> Buffer {
    let mut buffer = arena.alloc_pages(Category::Optimizer, DType::U32, len).unwrap();
    let draws = (0..len.div_ceil(4) as u64).flat_map(|block| philox::normals(seed, block));
    let to = buffer.view_mut().into_slice_mut::<u32>().unwrap();
    to.iter_mut().zip(draws).for_each(|(to, draw)| *to = draw.to_bits());
    buffer
}

fn empty(arena: &Arena, like: &Buffer) -> Buffer {
    arena.alloc_pages(Category::Optimizer, like.dtype(), like.len()).unwrap()
}

fn bytes(buffer: &Buffer) -> &[u8] {
    buffer.view().as_bytes().unwrap()
}

fn options(engine: Engine, direct: Option<bool>, depth: usize) -> Options {
    Options { engine: Some(engine), direct, depth }
}

/// Every way that this machine has. Where io_uring is not to be had that is said, and the threads are tested.
fn ways(folder: &Path) -> Vec<Options> {
    let all = [Engine::IoUring, Engine::Threads]
        .into_iter()
        .flat_map(|engine| [false, true].map(|direct| options(engine, Some(direct), 4)));
    let (has, lacks): (Vec<_>, Vec<_>) = all.partition(|options| File::create(folder, options).is_ok());
    for options in &lacks {
        eprintln!("NOT TESTED: {options:?}: {}", File::create(folder, options).unwrap_err());
    }
    assert!(has.iter().any(|options| options.engine == Some(Engine::Threads)), "threads transfer everywhere");
    let required = std::env::var_os("ZBENCH_REQUIRE_IO_URING").is_some();
    assert!(!required || has.iter().any(|options| options.engine == Some(Engine::IoUring)), "io_uring is refused");
    has
}

#[test]
fn what_is_written_comes_back_whoever_transfers_it() {
    let folder = folder();
    for options in ways(folder.path()) {
        let (memory, places) = (Arena::host(None).unwrap(), Arena::file(None));
        let file = File::create(folder.path(), &options).unwrap();
        assert_eq!((Some(file.engine()), Some(file.is_direct())), (options.engine, options.direct));
        assert!(file.why().is_empty() && file.depth() == 4);
        // Sizes from one word to several pieces, none of them whole pages, and 0; all writes under way at a time.
        let sizes: Vec<usize> = (0..12).map(|i| random(i, 5 << (2 * i)) as usize % 900_000).chain([0]).collect();
        let kept: Vec<(Buffer, Vec<u8>)> = (0..)
            .zip(&sizes)
            .map(|(seed, len)| {
                let buffer = words(&memory, *len, seed);
                let copy = bytes(&buffer).to_vec();
                (buffer, copy)
            })
            .collect();
        let at: Vec<Buffer> = kept.iter().map(|(buffer, _)| empty(&places, buffer)).collect();
        file.reserve(places.high_water()).unwrap();
        let (buffers, copies): (Vec<Buffer>, Vec<Vec<u8>>) = kept.into_iter().unzip();
        let writes: Vec<Transfer> =
            at.iter().zip(buffers).map(|(place, buffer)| file.start_write(place.offset(), buffer).unwrap()).collect();
        let mut buffers: Vec<Buffer> = writes.into_iter().map(|write| write.wait().unwrap()).collect();
        assert!(buffers.iter().zip(&copies).all(|(buffer, copy)| bytes(buffer) == copy));
        let total: u64 = at.iter().map(Buffer::footprint).sum();
        assert_eq!((file.traffic().written_bytes, file.traffic().read_bytes), (total, 0));
        // Into other memory, in another order, over and over.
        for round in 0..3 {
            for buffer in &mut buffers {
                buffer.view_mut().into_bytes_mut().unwrap().fill(0xa5);
            }
            buffers.reverse();
            let order = |i: usize| if round % 2 == 0 { at.len() - 1 - i } else { i };
            buffers = at.iter().map(|place| empty(&memory, place)).collect();
            let mut reads: Vec<(usize, Transfer)> = Vec::new();
            for i in 0..at.len() {
                let at_place = order(i);
                let buffer = std::mem::replace(&mut buffers[at_place], empty(&memory, &at[copies.len() - 1]));
                reads.push((at_place, file.start_read(at[at_place].offset(), buffer).unwrap()));
            }
            for (place, read) in reads {
                let buffer = read.wait().unwrap();
                assert_eq!(bytes(&buffer), copies[place], "{options:?}: {} words", sizes[place]);
                buffers[place] = buffer;
            }
        }
        let traffic = file.traffic();
        assert_eq!(traffic.read_bytes, 3 * total);
        assert!(traffic.busy > std::time::Duration::ZERO);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "the file has no name");
    }
}

#[test]
fn a_transfer_says_when_it_is_done_and_waits_for_nobody_else() {
    let folder = folder();
    for options in ways(folder.path()) {
        let memory = Arena::host(None).unwrap();
        let file = File::create(folder.path(), &options).unwrap();
        let large = words(&memory, 16 << 20, 1);
        let small = file.start_write(0, words(&memory, 1000, 2)).unwrap();
        let large = file.start_write(PAGE_BYTES, large).unwrap();
        while !small.is_done() {
            std::thread::yield_now();
        }
        small.wait().unwrap();
        let large = large.wait().unwrap();
        let read = file.start_read(PAGE_BYTES, empty(&memory, &large)).unwrap();
        // The file may go first: the transfer is done then.
        drop(file);
        assert!(read.is_done());
        assert_eq!(bytes(&read.wait().unwrap()), bytes(&large));
    }
}

#[test]
fn memory_of_dropped_transfers_is_free_only_when_the_system_is_done_with_it() {
    let folder = folder();
    let rounds = tiers::cases("disk::memory_of_dropped_transfers (rounds)", [6, 20, 20]) as u8;
    for options in ways(folder.path()) {
        let memory = Arena::host(None).unwrap();
        let file = File::create(folder.path(), &options).unwrap();
        let written = file.start_write(0, words(&memory, 4 << 20, 1)).unwrap().wait().unwrap();
        for round in 0..rounds {
            // Reads that nobody waits for, on panic, too. What takes their memory next is not written over.
            let reads = [0, 1].map(|_| file.start_read(0, empty(&memory, &written)).unwrap());
            let end = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
                let _reads = reads;
                if round % 2 == 0 {
                    std::panic::resume_unwind(Box::new("as a rank that fails"));
                }
            }));
            assert_eq!(end.is_err(), round % 2 == 0);
            let mut next = empty(&memory, &written);
            next.view_mut().into_bytes_mut().unwrap().fill(round);
            std::thread::sleep(std::time::Duration::from_millis(2));
            assert!(bytes(&next).iter().all(|byte| *byte == round), "{options:?} wrote into memory that was free");
        }
        assert_eq!(memory.ledger().live_total(), written.footprint());
    }
}

#[test]
fn ranks_may_share_a_file_among_threads() {
    let folder = folder();
    for options in ways(folder.path()) {
        let file = File::create(folder.path(), &options).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let file = &file;
                scope.spawn(move || {
                    let memory = Arena::host(None).unwrap();
                    for round in 0..10 {
                        let buffer = words(&memory, 3000 + random(thread * 10 + round, 400_000) as usize, thread);
                        let copy = bytes(&buffer).to_vec();
                        let offset = thread * 4 * PIECE_BYTES;
                        let buffer = file.start_write(offset, buffer).unwrap().wait().unwrap();
                        let read = file.start_read(offset, empty(&memory, &buffer)).unwrap().wait().unwrap();
                        assert_eq!(bytes(&read), copy);
                    }
                });
            }
        });
    }
}

#[test]
fn what_cannot_be_transferred_is_refused() {
    let folder = folder();
    let file = File::create(folder.path(), &Options::default()).unwrap();
    let memory = Arena::host(None).unwrap();
    let pages = || memory.alloc_pages(Category::Optimizer, DType::F32, 1024).unwrap();
    let offset = file.start_write(64, pages()).unwrap_err();
    assert!(matches!(offset, DiskError::Unaligned { value: 64, .. }), "{offset}");
    assert!(offset.to_string().contains("64") && offset.to_string().contains("4096"));
    let size = memory.alloc(Category::Optimizer, DType::F32, 16).unwrap();
    assert!(matches!(file.start_read(0, size).unwrap_err(), DiskError::Unaligned { .. }));
    let nowhere = Arena::file(None).alloc_pages(Category::Optimizer, DType::F32, 1024).unwrap();
    assert!(matches!(file.start_write(0, nowhere).unwrap_err(), DiskError::NotOnHost));
    // Behind the file's end there is nothing to read.
    for options in ways(folder.path()) {
        let file = File::create(folder.path(), &options).unwrap();
        let end = file.start_read(1 << 30, pages()).unwrap().wait().unwrap_err();
        let DiskError::Transfer { is_write: false, offset: 0x4000_0000, bytes: 4096, source, .. } = &end else {
            panic!("{end}");
        };
        assert_eq!(source.kind(), std::io::ErrorKind::UnexpectedEof);
        // The file is as good as before.
        file.start_write(0, pages()).unwrap().wait().unwrap();
    }
    assert_eq!(memory.ledger().live_total(), 0, "buffers of what failed are given back");
}

#[test]
fn a_folder_without_room_or_rights_says_what_to_do() {
    let folder = folder();
    let missing = File::create(&folder.path().join("none"), &Options::default()).unwrap_err().to_string();
    assert!(missing.contains("none") && missing.contains("make the folder first"), "{missing}");
    let plain = folder.path().join("plain");
    std::fs::write(&plain, "").unwrap();
    let plain = File::create(&plain, &Options::default()).unwrap_err().to_string();
    assert!(plain.contains("name a folder"), "{plain}");
    // Root may write everywhere else.
    let refused = File::create(Path::new("/proc/self"), &Options::default()).unwrap_err();
    assert!(matches!(refused, DiskError::Create { .. }), "{refused}");
    let file = File::create(folder.path(), &Options::default()).unwrap();
    let full = file.reserve(1 << 50).unwrap_err();
    match &full {
        DiskError::Full { needed, free, .. } => assert!(*needed == 1 << 50 && *free < *needed),
        DiskError::Limit { needed, .. } => assert_eq!(*needed, 1 << 50),
        other => panic!("{other}"),
    }
    assert!(full.to_string().contains(&(1u64 << 50).to_string()), "{full}");
    file.reserve(1 << 20).unwrap();
    assert!(disk::is_memory(&folder.path().join("none")).is_err());
    if Path::new("/dev/shm").exists() {
        assert!(disk::is_memory(Path::new("/dev/shm")).unwrap());
    }
}

/// Runs the test of this name again as a process of its own, under a command of `sh` that may prepare what it needs.
fn again(test: &str, command: &str, folder: &Path) -> Option<std::process::Output> {
    let program = std::env::current_exe().unwrap();
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", command])
        .arg(program)
        .args([folder.to_str().unwrap(), test])
        .env("ZBENCH_TEST_FOLDER", folder)
        .output()
        .expect("unshare is part of util-linux");
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(77) || said.contains("unshare failed") || said.contains("unshare: ") {
        assert!(std::env::var_os("ZBENCH_REQUIRE_MOUNTS").is_none(), "nothing may be mounted here: {said}");
        eprintln!("NOT TESTED: nothing may be mounted here: {said}");
        return None;
    }
    Some(output)
}

#[test]
fn a_full_file_system_is_an_error_and_the_file_goes_on() {
    let Some(full) = std::env::var_os("ZBENCH_TEST_FOLDER") else {
        let folder = folder();
        let command = "mount -t tmpfs -o size=8m none \"$1\" || exit 77; exec \"$0\" --exact \"$2\" --nocapture";
        let test = "disk::a_full_file_system_is_an_error_and_the_file_goes_on";
        if let Some(output) = again(test, command, folder.path()) {
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{said}");
            assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{said}");
        }
        return;
    };
    let folder = Path::new(&full);
    assert!(disk::is_memory(folder).unwrap());
    for options in ways(folder) {
        let file = File::create(folder, &options).unwrap();
        let memory = Arena::host(None).unwrap();
        let refused = file.reserve(16 << 20).unwrap_err();
        assert!(
            matches!(refused, DiskError::Full { needed: 0x100_0000, free, is_quota: false, .. } if free <= 8 << 20),
            "{refused}"
        );
        let (large, small) = (words(&memory, 3 << 20, 1), words(&memory, 5000, 2));
        let transfers = [file.start_write(1 << 20, large).unwrap(), file.start_write(0, small).unwrap()];
        let [large, small] = transfers.map(Transfer::wait);
        let error = large.unwrap_err();
        let DiskError::Transfer { is_write: true, source, .. } = &error else { panic!("{error}") };
        assert_eq!(source.raw_os_error(), Some(libc::ENOSPC));
        let words = error.to_string();
        assert!(words.contains(&*folder.to_string_lossy()) && words.contains("free room"), "{words}");
        // What had its place is whole; what comes next finds the disk full or goes through.
        if let Ok(small) = small {
            let read = file.start_read(0, empty(&memory, &small)).unwrap().wait().unwrap();
            assert_eq!(bytes(&read), bytes(&small));
        }
    }
}

#[test]
fn a_limit_on_file_sizes_ends_no_process() {
    let Some(folder) = std::env::var_os("ZBENCH_TEST_LIMIT") else {
        let folder = folder();
        let output = Command::new("sh")
            .args(["-c", "ulimit -f 1024; exec \"$0\" --exact disk::a_limit_on_file_sizes_ends_no_process"])
            .arg(std::env::current_exe().unwrap())
            .env("ZBENCH_TEST_LIMIT", folder.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
        return;
    };
    // Shells count in blocks of 512 or of 1024 bytes.
    for options in ways(Path::new(&folder)) {
        let file = File::create(Path::new(&folder), &options).unwrap();
        let memory = Arena::host(None).unwrap();
        for error in
            [file.reserve(8 << 20).unwrap_err(), file.start_write(1 << 20, words(&memory, 1 << 20, 1)).unwrap_err()]
        {
            assert!(matches!(error, DiskError::Limit { limit: Some(0x8_0000 | 0x10_0000), .. }), "{error}");
            assert!(error.to_string().contains("ulimit -f"), "{error}");
        }
        file.start_write(0, words(&memory, 5000, 1)).unwrap().wait().unwrap();
    }
}

/// Runs `work` on a thread for which the kernel refuses a system call with this error: where an argument, masked, has a value.
/// The threads that it starts are refused it, too.
fn refused<T: Send>(call: libc::c_long, when: (u32, u32, u32), errno: i32, work: impl FnOnce() -> T + Send) -> T {
    let (argument, mask, value) = when;
    let step = |code: u32, k: u32, jt: u8, jf: u8| libc::sock_filter { code: code as u16, jt, jf, k };
    const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    const IS: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
    let mut filter = [
        step(LOAD, 0, 0, 0),
        step(IS, call as u32, 0, 4),
        step(LOAD, 16 + 8 * argument, 0, 0),
        step(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, mask, 0, 0),
        step(IS, value, 0, 1),
        step(RETURN, libc::SECCOMP_RET_ERRNO | errno as u32, 0, 0),
        step(RETURN, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    std::thread::scope(|scope| {
        scope
            .spawn(move || {
                let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
                // SAFETY: the filter is read during the call, and holds for this thread alone.
                unsafe {
                    assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
                    let mode = libc::SECCOMP_MODE_FILTER;
                    assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program), 0);
                }
                work()
            })
            .join()
            .unwrap()
    })
}

const ALWAYS: (u32, u32, u32) = (0, 0, 0);

fn round_trip(file: &File) {
    let memory = Arena::host(None).unwrap();
    let buffer = file.start_write(4096, words(&memory, 800_000, 5)).unwrap().wait().unwrap();
    let read = file.start_read(4096, empty(&memory, &buffer)).unwrap().wait().unwrap();
    assert_eq!(bytes(&read), bytes(&buffer));
}

#[test]
fn where_the_system_refuses_the_better_way_the_other_is_taken_and_says_why() {
    let folder = folder();
    for (errno, word) in [(libc::EPERM, "seccomp"), (libc::ENOSYS, "this kernel or container has none")] {
        refused(libc::SYS_io_uring_setup, ALWAYS, errno, || {
            let file = File::create(folder.path(), &Options::default()).unwrap();
            assert_eq!(file.engine(), Engine::Threads);
            assert!(
                file.why().iter().any(|why| why.starts_with("no io_uring: ") && why.contains(word)),
                "{:?}",
                file.why()
            );
            round_trip(&file);
            let error = File::create(folder.path(), &options(Engine::IoUring, None, 1)).unwrap_err();
            assert!(matches!(error, DiskError::Engine { engine: Engine::IoUring, .. }), "{error}");
            assert!(error.to_string().contains(word), "{error}");
        });
    }
    let set_flags = (1, u32::MAX, libc::F_SETFL as u32);
    refused(libc::SYS_fcntl, set_flags, libc::EINVAL, || {
        let file = File::create(folder.path(), &Options::default()).unwrap();
        assert!(!file.is_direct() && file.why().iter().any(|why| why.starts_with("no O_DIRECT: ")), "{:?}", file.why());
        round_trip(&file);
        let error = File::create(folder.path(), &Options { direct: Some(true), ..Options::default() }).unwrap_err();
        assert!(matches!(error, DiskError::Direct { .. }), "{error}");
    });
    // A file system that takes the flag and then refuses transfers: only that of the trial is made by this call.
    if let Ok(file) = File::create(folder.path(), &options(Engine::Threads, Some(true), 1)) {
        drop(file);
        refused(libc::SYS_pwrite64, (2, u32::MAX, 4096), libc::EINVAL, || {
            let file = File::create(folder.path(), &options(Engine::Threads, None, 1)).unwrap();
            assert!(!file.is_direct() && file.why()[0].contains("refuses transfers"), "{:?}", file.why());
        });
    }
}

#[test]
fn a_disk_that_fails_is_an_error_with_the_place() {
    let folder = folder();
    refused(libc::SYS_pwrite64, ALWAYS, libc::EIO, || {
        let file = File::create(folder.path(), &options(Engine::Threads, Some(false), 3)).unwrap();
        let memory = Arena::host(None).unwrap();
        let error = file.start_write(8192, words(&memory, 2000, 1)).unwrap().wait().unwrap_err();
        let DiskError::Transfer { is_write: true, offset: 8192, bytes: 8192, source, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!(source.raw_os_error(), Some(libc::EIO));
        assert!(error.to_string().contains("dmesg"), "{error}");
        assert_eq!(memory.ledger().live_total(), 0);
    });
    // As a file system without fallocate, whose free bytes are compared.
    refused(libc::SYS_fallocate, ALWAYS, libc::EOPNOTSUPP, || {
        let file = File::create(folder.path(), &Options::default()).unwrap();
        file.reserve(1 << 20).unwrap();
        let error = file.reserve(1 << 60).unwrap_err();
        assert!(matches!(error, DiskError::Full { .. } | DiskError::Limit { .. }), "{error}");
        round_trip(&file);
    });
}

#[test]
fn a_file_system_that_makes_no_nameless_files_keeps_none_either() {
    let folder = folder();
    const TMPFILE: u32 = 0o20_000_000;
    let left = folder.path().join(".zbench-offload-1-0");
    std::fs::write(&left, "of a process that was killed").unwrap();
    refused(libc::SYS_openat, (2, TMPFILE, TMPFILE), libc::EOPNOTSUPP, || {
        let file = File::create(folder.path(), &Options::default()).unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        round_trip(&file);
    });
}
