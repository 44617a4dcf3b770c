#![allow(unsafe_code, reason = "system calls that map memory")]

use crate::memory::device::Device;
use crate::memory::view::Home;
use std::num::NonZero;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

/// Why an arena could not be made, or a peer's not be reached.
#[derive(Debug, thiserror::Error)]
pub enum ArenaError {
    #[error("could not reserve {bytes} bytes of address space for a rank: {source}; {cause}")]
    Reserve {
        bytes: u64,
        source: std::io::Error,
        /// What this process has reserved, what it may, and what to do.
        cause: String,
    },
    #[error(
        "could not make {bytes} bytes of shared memory for a rank's arena (memfd_create): {source}; a limit on open files (ulimit -n) or file sizes (ulimit -f) may be set"
    )]
    Share { bytes: u64, source: std::io::Error },
    #[error(
        "could not reserve {bytes} bytes of a device's memory for a rank's arena: {reason}; ask for less (memory.capacity), or see who else uses the device"
    )]
    Device { bytes: u64, reason: String },
    #[error(
        "could not pin {bytes} bytes of host memory for what a rank offloads: {reason}; offload less (memory.offload_*), or raise the \
         limit on pinned memory (ulimit -l)"
    )]
    Pinned { bytes: u64, reason: String },
    #[error(
        "could not map {bytes} bytes of a peer's memory: {source}; its file descriptor must be open for reading and writing"
    )]
    Open { bytes: u64, source: std::io::Error },
    /// A peer's memory is smaller than announced: touching what lies behind its end would kill the process.
    #[error("a peer's memory has {given} bytes, {wanted} were announced; both sides must run the same version")]
    Short { wanted: u64, given: u64 },
    /// A peer's memory could become smaller at any time: touching what then lies behind its end would kill the process.
    #[error("a peer's memory of {bytes} bytes is not sealed against shrinking; both sides must run the same version")]
    Unsealed { bytes: u64 },
}

/// Reserved address space, or a device's memory. It is returned to the system when the last arena, buffer or guard that uses it is gone.
pub struct Region {
    base: NonNull<u8>,
    bytes: u64,
    /// The file behind memory that other processes can map.
    file: Option<OwnedFd>,
    /// Whose memory it is, if not the host's.
    device: Option<Arc<dyn Device>>,
    /// Who reaches it. Memory of the host that has a device is pinned for its copies.
    home: Home,
}

/// Where the places of a file begin, and how many bytes there may be: addresses that no process can have on x86-64 or
/// aarch64, so that a mistake ends in a fault and not in another's memory.
const NOWHERE: usize = 1 << 60;

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let whose = self.device.as_ref().map_or("host".into(), |device| device.name());
        write!(f, "Region({:?}, {} bytes, {whose})", self.base, self.bytes)
    }
}

// SAFETY: a Region is an address and a length; what lies there is guarded by the buffers that borrow it.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Memory of this process alone.
    ///
    /// # Errors
    /// There is no address space left.
    pub fn reserve(bytes: u64) -> Result<Region, ArenaError> {
        Region::map(bytes, None).map_err(|source| ArenaError::Reserve { bytes, source, cause: cause(bytes) })
    }

    /// Memory that other processes can map by its [`fd`](Region::fd).
    pub fn shared(bytes: u64) -> Result<Region, ArenaError> {
        let file = memory_file(bytes).map_err(|source| ArenaError::Share { bytes, source })?;
        Region::map(bytes, Some(file)).map_err(|source| ArenaError::Reserve { bytes, source, cause: cause(bytes) })
    }

    /// Maps the first `bytes` of a peer's shared memory for reading and writing. Who writes what, and when, is up to the
    /// two sides: nothing here orders their accesses.
    pub fn open(file: OwnedFd, bytes: u64) -> Result<Region, ArenaError> {
        if !is_sealed(&file) {
            return Err(ArenaError::Unsealed { bytes });
        }
        let file = std::fs::File::from(file);
        let given = file.metadata().map_err(|source| ArenaError::Open { bytes, source })?.len();
        if given < bytes {
            return Err(ArenaError::Short { wanted: bytes, given });
        }
        Region::map(bytes, Some(file.into())).map_err(|source| match source.kind() {
            std::io::ErrorKind::OutOfMemory => ArenaError::Reserve { bytes, source, cause: cause(bytes) },
            _ => ArenaError::Open { bytes, source },
        })
    }

    pub(crate) fn on(device: Arc<dyn Device>, bytes: u64) -> Result<Region, ArenaError> {
        let failed = |reason: String| ArenaError::Device { bytes, reason };
        let length = usize::try_from(bytes).map_err(|e| failed(e.to_string()))?;
        let address = device.allocate(length).map_err(|error| failed(error.to_string()))?;
        let base = NonNull::new(address as *mut u8).ok_or_else(|| failed("it lies at address 0".into()))?;
        Ok(Region { base, bytes, file: None, device: Some(device), home: Home::Device })
    }

    /// Host memory that the device copies from and to while the host goes on.
    pub(crate) fn pinned(device: Arc<dyn Device>, bytes: u64) -> Result<Region, ArenaError> {
        let failed = |reason: String| ArenaError::Pinned { bytes, reason };
        let length = usize::try_from(bytes).map_err(|e| failed(e.to_string()))?;
        let address = device.allocate_pinned(length).map_err(|error| failed(error.to_string()))?;
        let base = NonNull::new(address as *mut u8).ok_or_else(|| failed("it lies at address 0".into()))?;
        Ok(Region { base, bytes, file: None, device: Some(device), home: Home::Host })
    }

    /// No memory: places in a file.
    pub(crate) fn places() -> Region {
        let base = NonNull::without_provenance(const { NonZero::new(NOWHERE).unwrap() });
        Region { base, bytes: NOWHERE as u64, file: None, device: None, home: Home::File }
    }

    pub(crate) fn home(&self) -> Home {
        self.home
    }

    /// Whether the host can read and write it.
    pub fn is_on_host(&self) -> bool {
        self.home == Home::Host
    }

    /// Whether it is host memory that a device copies from and to while the host goes on.
    pub fn is_pinned(&self) -> bool {
        self.is_on_host() && self.device.is_some()
    }

    /// Whether the host may write it at any time: its own, or that of a device that has nothing left to do when a call returns.
    pub(crate) fn is_writable(&self) -> bool {
        self.is_on_host() || self.device.as_ref().is_some_and(|device| device.reaches_host())
    }

    fn map(bytes: u64, file: Option<OwnedFd>) -> std::io::Result<Region> {
        let length = usize::try_from(bytes).map_err(|_| std::io::Error::from_raw_os_error(libc::ENOMEM))?;
        let kind = if file.is_some() { libc::MAP_SHARED } else { libc::MAP_PRIVATE | libc::MAP_ANONYMOUS };
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, kind | libc::MAP_NORESERVE);
        let fd = file.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        let place = place(length)?;
        let fixed = if place.is_null() { 0 } else { libc::MAP_FIXED };
        // SAFETY: the system chooses the address, or it is that of address space which `place` has reserved for this.
        let base = unsafe { libc::mmap(place, length, access, flags | fixed, fd, 0) };
        if base == libc::MAP_FAILED {
            let error = std::io::Error::last_os_error();
            if !place.is_null() {
                // SAFETY: what `place` reserved; nobody has it.
                unsafe { libc::munmap(place, length) };
            }
            return Err(error);
        }
        // SAFETY: the range was just mapped. Huge pages are a wish; where refused (shared memory often is: see
        // /sys/kernel/mm/transparent_hugepage/shmem_enabled), nothing is lost but speed.
        unsafe { libc::madvise(base, length, libc::MADV_HUGEPAGE) };
        let base = NonNull::new(base.cast()).ok_or_else(|| std::io::Error::from_raw_os_error(libc::ENOMEM))?;
        Ok(Region { base, bytes, file, device: None, home: Home::Host })
    }

    /// Where the first byte lies in this process.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The file by which other processes can map this memory, to be handed to [`Region::open`] there; `None` where the
    /// memory is this process's alone.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if let Some(device) = &self.device {
            let (address, bytes) = (self.base.as_ptr() as u64, self.bytes as usize);
            // SAFETY: made with as many bytes, and nothing borrows it any more.
            unsafe { if self.is_on_host() { device.free_pinned(address, bytes) } else { device.free(address, bytes) } };
            return;
        }
        if self.home == Home::File {
            return;
        }
        // SAFETY: base and bytes are those of the mapping made in `map`, and nothing borrows it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes as usize) };
    }
}

/// The size of the pages that large regions begin on, so that all of them can lie on huge pages: those of x86-64, and of
/// aarch64 with pages of 4 KiB.
const HUGE: usize = 2 << 20;

/// Reserves `length` bytes of address space that begin on a huge page; null where they are too few to care. Only since
/// Linux 6.7 does the system choose such an address by itself, and memory of a file can lie on huge pages nowhere else.
fn place(length: usize) -> std::io::Result<*mut libc::c_void> {
    if length < HUGE {
        return Ok(std::ptr::null_mut());
    }
    let room = length.checked_add(HUGE).ok_or_else(|| std::io::Error::from_raw_os_error(libc::ENOMEM))?;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a mapping at an address of the system's choosing, which nobody may touch yet.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), room, libc::PROT_NONE, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error());
    }
    let before = start.align_offset(HUGE);
    // SAFETY: sysconf reads a number.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    let end = (before + length).next_multiple_of(page);
    // SAFETY: both ends lie inside the room reserved above, begin on a page, and nobody has them.
    unsafe {
        let place = start.byte_add(before);
        if before > 0 {
            libc::munmap(start, before);
        }
        if end < room {
            libc::munmap(start.byte_add(end), room - end);
        }
        Ok(place)
    }
}

/// What a process can address on x86-64 and aarch64: 47 bits.
const ADDRESSES: u64 = 1 << 47;

/// Why there is no more address space: what this process has of it, and what it may have.
fn cause(bytes: u64) -> String {
    words_of(bytes, reserved(), limit())
}

/// Bytes of address space that `ulimit -v` leaves to this process; `None` without such a limit. Batch systems set one, as SGE's h_vmem.
pub fn address_space_left() -> Option<u64> {
    limit().map(|limit| limit.saturating_sub(reserved()))
}

/// Bytes of address space that this process may have, where `ulimit -v` says so.
fn limit() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: getrlimit writes the two numbers of the struct that it is given.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_AS, &mut limit) } == 0;
    (known && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// Bytes of address space that this process has; 0 where that is not known.
fn reserved() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = pages.split_whitespace().next().and_then(|pages| pages.parse().ok()).unwrap_or(0);
    // SAFETY: sysconf reads a number.
    let page = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    pages.saturating_mul(page)
}

/// The same in words, from what is reserved and the limit of `ulimit -v`, if there is one.
fn words_of(bytes: u64, reserved: u64, limit: Option<u64>) -> String {
    let gib = |bytes: u64| format!("{:.1} GiB", bytes as f64 / (1u64 << 30) as f64);
    let has = format!("this process has {} of address space", gib(reserved));
    match limit {
        Some(limit) if reserved.saturating_add(bytes) > limit => {
            format!("{has}, and `ulimit -v` allows it {}; raise that limit (ulimit -v unlimited)", gib(limit))
        }
        // What is left lies in pieces: half is enough to know what is short.
        _ if reserved.saturating_add(bytes) > ADDRESSES / 2 => format!(
            "{has} of the {} that there are, and every rank in it takes as much again; start fewer ranks in one process, or ranks \
             as processes",
            gib(ADDRESSES)
        ),
        _ => format!(
            "{has}, which neither `ulimit -v` nor the processor limits; see vm.overcommit_memory (2 counts what is reserved as \
             memory) and vm.max_map_count"
        ),
    }
}

/// A file of `bytes` zeros that lies in memory alone. Nobody can shorten it: touching a mapping behind the end of its file
/// kills a process. Nobody can make it longer either, nor forbid the peers to write by another seal.
fn memory_file(bytes: u64) -> std::io::Result<OwnedFd> {
    let check = |result: libc::c_int| if result < 0 { Err(std::io::Error::last_os_error()) } else { Ok(result) };
    let length = libc::off_t::try_from(bytes).map_err(|_| std::io::Error::from_raw_os_error(libc::EFBIG))?;
    // SAFETY: the name is a string that ends in a zero; the call makes a new descriptor and touches nothing else.
    let fd =
        check(unsafe { libc::memfd_create(c"zbench-arena".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) })?;
    // SAFETY: the descriptor is new, and nobody else's.
    let file = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: a call on a descriptor of ours.
    check(unsafe { libc::ftruncate(fd, length) })?;
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: as above.
    check(unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, seals) })?;
    Ok(file)
}

/// Whether nobody can shorten a file. Only memory files have seals.
fn is_sealed(file: &OwnedFd) -> bool {
    // SAFETY: a call on an open descriptor.
    let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
    seals >= 0 && seals & libc::F_SEAL_SHRINK != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Arena, Category, DType};

    /// A second descriptor of a region's file, as a peer would get it.
    fn copy(region: &Region) -> OwnedFd {
        let path = format!("/proc/self/fd/{}", region.fd().unwrap().as_raw_fd());
        std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap().into()
    }

    fn bytes_at(region: &Region, offset: usize) -> [u8; 4] {
        // SAFETY: tests ask for bytes inside the region, which nobody writes at that moment.
        unsafe { region.base().add(offset).cast().read() }
    }

    fn write_at(region: &Region, offset: usize, bytes: [u8; 4]) {
        // SAFETY: as above, and nobody else uses them.
        unsafe { region.base().add(offset).cast().write(bytes) };
    }

    #[test]
    fn a_write_on_one_mapping_is_seen_on_the_others() {
        let arena = Arena::shared(Some(1 << 20)).unwrap();
        let mut buffer = arena.alloc(Category::Communication, DType::F32, 1000).unwrap();
        let region = arena.region();
        let offset = buffer.view().ptr().as_ptr() as usize - region.base().as_ptr() as usize;
        let peers = [(); 2].map(|()| Region::open(copy(&region), region.bytes()).unwrap());
        assert!(peers.iter().all(|peer| peer.base() != region.base() && peer.bytes() == region.bytes()));
        let values: Vec<f32> = crate::numerics::philox::normals(3, 0).to_vec();
        buffer.view_mut().as_slice_mut::<f32>().unwrap()[500..504].copy_from_slice(&values);
        for (i, value) in values.iter().enumerate() {
            let at = offset + (500 + i) * 4;
            assert!(peers.iter().all(|peer| bytes_at(peer, at) == value.to_ne_bytes()), "{value}");
        }
        write_at(&peers[1], offset + 999 * 4, 2.5f32.to_ne_bytes());
        assert_eq!(buffer.view().as_slice::<f32>().unwrap()[999], 2.5);
        assert_eq!(bytes_at(&peers[0], offset + 999 * 4), 2.5f32.to_ne_bytes());
        // The peers keep the memory after its maker is gone.
        drop((buffer, arena, region));
        assert_eq!(bytes_at(&peers[0], offset + 999 * 4), 2.5f32.to_ne_bytes());
    }

    #[test]
    fn large_regions_begin_on_a_huge_page_and_leave_nothing_behind() {
        let mapped = || std::fs::read_to_string("/proc/self/statm").unwrap().split(' ').next().unwrap().to_string();
        let _ = mapped();
        for bytes in [HUGE as u64, 3 * HUGE as u64 + 5, (1 << 30) + 4096] {
            for make in [Region::reserve, Region::shared] {
                let region = make(bytes).unwrap();
                assert_eq!(region.base().as_ptr() as usize % HUGE, 0);
                write_at(&region, bytes as usize - 4, *b"last");
                assert_eq!(bytes_at(&region, bytes as usize - 4), *b"last");
                let peer = region.fd().map(|_| Region::open(copy(&region), bytes).unwrap());
                assert!(peer.is_none_or(|peer| (peer.base().as_ptr() as usize).is_multiple_of(HUGE)));
            }
        }
        // Other tests map memory at the same time: a leak of address space would show as thousands of regions.
        let pages = |text: String| text.parse::<u64>().unwrap();
        let before = pages(mapped());
        (0..200).for_each(|_| drop(Region::reserve(1 << 30).unwrap()));
        assert!(pages(mapped()).saturating_sub(before) < 100 << 18, "100 of 200 GiB are still mapped");
    }

    #[test]
    fn another_process_sees_the_same_bytes() {
        let region = Region::shared(1 << 20).unwrap();
        write_at(&region, 4096, *b"ping");
        // SAFETY: the child reads and writes the region and ends at once: no lock, no heap.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let seen = bytes_at(&region, 4096) == *b"ping";
            write_at(&region, 77_777, *b"pong");
            // SAFETY: ends this process without running anything of its parent's.
            unsafe { libc::_exit(i32::from(!seen)) };
        }
        assert!(child > 0, "{}", std::io::Error::last_os_error());
        let mut status = -1;
        // SAFETY: waits for the child made above.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the child saw what its parent wrote");
        assert_eq!(bytes_at(&region, 77_777), *b"pong");
    }

    #[test]
    fn a_peers_memory_that_is_not_there_is_an_error() {
        let region = Region::shared(8192).unwrap();
        let error = Region::open(copy(&region), 8193).unwrap_err();
        assert!(matches!(error, ArenaError::Short { wanted: 8193, given: 8192 }), "{error}");
        assert!(error.to_string().contains("8192") && error.to_string().contains("8193"));
        assert!(matches!(Region::open(copy(&region), 0).unwrap_err(), ArenaError::Open { bytes: 0, .. }));
        // A descriptor that may only be read.
        let path = format!("/proc/self/fd/{}", region.fd().unwrap().as_raw_fd());
        let read_only = std::fs::File::open(path).unwrap().into();
        assert!(matches!(Region::open(read_only, 8192).unwrap_err(), ArenaError::Open { .. }));
        // What is announced stays: nobody can cut the file off under a mapping, or stop a peer from writing.
        let file = std::fs::File::from(copy(&region));
        for bytes in [0, 4096, 8191, 8193] {
            assert!(file.set_len(bytes).is_err(), "the file was given {bytes} bytes");
        }
        file.set_len(8192).unwrap();
        // SAFETY: a call on a descriptor of ours.
        let refused = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_FUTURE_WRITE) };
        assert_eq!((refused, std::io::Error::last_os_error().raw_os_error()), (-1, Some(libc::EPERM)));
        // A file that can be cut off is not mapped: a memory file without seals, and one on a disk.
        // SAFETY: the name is a string that ends in a zero, and the descriptor is new.
        let unsealed =
            unsafe { OwnedFd::from_raw_fd(libc::memfd_create(c"unsealed".as_ptr(), libc::MFD_ALLOW_SEALING)) };
        let path = std::env::temp_dir().join(format!("zbench-unsealed-{}", std::process::id()));
        let on_disk = std::fs::OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap().into();
        std::fs::remove_file(path).unwrap();
        for file in [unsealed, on_disk] {
            let file = std::fs::File::from(file);
            file.set_len(8192).unwrap();
            assert!(matches!(Region::open(file.into(), 8192).unwrap_err(), ArenaError::Unsealed { bytes: 8192 }));
        }
        assert!(matches!(Region::shared(u64::MAX), Err(ArenaError::Share { .. })));
        assert!(Region::reserve(4096).unwrap().fd().is_none());
    }

    #[test]
    fn the_cause_of_missing_address_space_is_what_is_short() {
        let (gib, tib) = (1u64 << 30, 1u64 << 40);
        let by_limit = words_of(4 * gib, 3 * gib, Some(6 * gib));
        assert!(by_limit.contains("has 3.0 GiB") && by_limit.contains("`ulimit -v` allows it 6.0 GiB"), "{by_limit}");
        let by_addresses = words_of(12 * gib, 128 * tib - gib, None);
        assert!(
            by_addresses.contains("131072.0 GiB that there are") && by_addresses.contains("fewer ranks"),
            "{by_addresses}"
        );
        assert!(!by_addresses.contains("ulimit"), "{by_addresses}");
        // A limit that is far away is not blamed.
        assert_eq!(words_of(12 * gib, 128 * tib - gib, Some(1 << 60)), by_addresses);
        assert!(words_of(gib, gib, None).contains("vm.overcommit_memory"));
        // What the system really refuses: more than any processor addresses.
        let refused = Region::reserve(1 << 62).unwrap_err().to_string();
        assert!(refused.contains("that there are, and every rank"), "{refused}");
    }
}
