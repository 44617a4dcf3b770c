//! The file itself: made without a name, with or without the page cache, with its room reserved.

use super::DiskError;
use super::error::create_help;
use crate::PAGE_BYTES;
use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

/// What the names of files begin with, where the file system makes none without a name.
const PREFIX: &str = ".zbench-offload-";

/// A page that a disk transfers.
#[repr(C, align(4096))]
struct Page([u8; PAGE_BYTES as usize]);

/// A file in the folder that goes away with its last descriptor, even where the process is killed.
pub fn nameless(folder: &Path) -> Result<File> {
    const UNSUPPORTED: [i32; 4] = [libc::EOPNOTSUPP, libc::EISDIR, libc::EINVAL, libc::ENOENT];
    let path = CString::new(folder.as_os_str().as_bytes())?;
    let flags = libc::O_TMPFILE | libc::O_RDWR | libc::O_CLOEXEC;
    // SAFETY: the path is a string that ends in a zero; the call makes a new descriptor and touches nothing else.
    let fd = unsafe { libc::open(path.as_ptr(), flags, 0o600) };
    if fd >= 0 {
        // SAFETY: the descriptor is new, and nobody else's.
        return Ok(unsafe { OwnedFd::from_raw_fd(fd) }.into());
    }
    let error = Error::last_os_error();
    if !error.raw_os_error().is_some_and(|number| UNSUPPORTED.contains(&number)) {
        return Err(error);
    }
    unlinked(folder)
}

/// The same by a name that is taken away at once.
fn unlinked(folder: &Path) -> Result<File> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    // What a killed process left between the two calls. Whoever is between them now loses nothing: the name is to go.
    for entry in std::fs::read_dir(folder)?.flatten() {
        if entry.file_name().as_bytes().starts_with(PREFIX.as_bytes()) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
    loop {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!("{PREFIX}{}-{number}", std::process::id()));
        match OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path) {
            Ok(file) => match std::fs::remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
                _ => return Ok(file),
            },
            // Ranks of other hosts may share the folder and the process number.
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
}

/// From now on transfers go around the page cache, or why they cannot.
pub fn go_direct(file: &File) -> std::result::Result<(), String> {
    let fd = file.as_raw_fd();
    if let Some(unit) = direct_unit(file) {
        if unit == 0 {
            return Err("the file system says that it has none".into());
        }
        if !PAGE_BYTES.is_multiple_of(unit) {
            return Err(format!("the disk wants transfers of multiples of {unit} bytes, these are of {PAGE_BYTES}"));
        }
    }
    // SAFETY: calls on a descriptor of ours.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    let set = |flags: libc::c_int| {
        // SAFETY: as above.
        let result = unsafe { libc::fcntl(fd, libc::F_SETFL, flags) };
        if result < 0 { Err(Error::last_os_error()) } else { Ok(()) }
    };
    set(flags | libc::O_DIRECT).map_err(|error| format!("the file system refuses it ({error})"))?;
    // Some take the flag and refuse transfers.
    let tried = try_page(file);
    if let Err(error) = &tried
        && error.kind() != std::io::ErrorKind::StorageFull
    {
        set(flags).map_err(|error| format!("the flag cannot be taken back ({error})"))?;
        return Err(format!("the file system takes the flag and refuses transfers ({error})"));
    }
    Ok(())
}

/// A page goes to the file and back.
fn try_page(file: &File) -> Result<()> {
    let mut page = Box::new(Page([0; PAGE_BYTES as usize]));
    file.write_all_at(&page.0, 0)?;
    file.read_exact_at(&mut page.0, 0)
}

/// What direct transfers have to be multiples of, in memory and in the file; 0 where there are none, `None` where the system does
/// not say (Linux before 6.1, and some file systems).
fn direct_unit(file: &File) -> Option<u64> {
    // SAFETY: a struct of numbers, for which zeros are valid.
    let mut stat: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: a descriptor of ours, an empty string that ends in a zero, and a struct that is written.
    let result = unsafe {
        libc::statx(file.as_raw_fd(), c"".as_ptr(), libc::AT_EMPTY_PATH, libc::STATX_DIOALIGN, &raw mut stat)
    };
    if result != 0 || stat.stx_mask & libc::STATX_DIOALIGN == 0 {
        return None;
    }
    let (memory, offset) = (u64::from(stat.stx_dio_mem_align), u64::from(stat.stx_dio_offset_align));
    Some(if memory == 0 { 0 } else { memory.max(offset) })
}

/// Takes the disk's room for the first `bytes` of the file, or says that there is too little.
pub fn reserve(file: &File, folder: &Path, bytes: u64) -> std::result::Result<(), DiskError> {
    within_limit(folder, bytes)?;
    let length = libc::off_t::try_from(bytes).unwrap_or(libc::off_t::MAX);
    let failed = |source| DiskError::Create { folder: folder.into(), help: create_help(&source), source };
    let full = |is_quota| match free_bytes(file) {
        Ok(free) => DiskError::Full { folder: folder.into(), needed: bytes, free, is_quota },
        Err(error) => failed(error),
    };
    if bytes == 0 {
        return Ok(());
    }
    loop {
        // SAFETY: a call on a descriptor of ours.
        if unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, length) } == 0 {
            return Ok(());
        }
        let error = Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINTR) => {}
            Some(libc::ENOSPC) => return Err(full(false)),
            Some(libc::EDQUOT) => return Err(full(true)),
            Some(libc::EFBIG) => {
                let help =
                    "the file system or a limit (ulimit -f) has no larger ones; take fewer bytes, or another folder";
                return Err(DiskError::Limit { folder: folder.into(), needed: bytes, limit: None, help });
            }
            // The file system reserves nothing. What is free now is no promise, but too little is an answer.
            Some(libc::EOPNOTSUPP | libc::ENOSYS) => {
                let has = file.metadata().map_err(failed)?.len();
                let free = free_bytes(file).map_err(failed)?;
                return match bytes.saturating_sub(has) > free {
                    true => Err(full(false)),
                    false => file.set_len(bytes.max(has)).map_err(failed),
                };
            }
            _ => return Err(failed(error)),
        }
    }
}

/// An error where a file of so many bytes is longer than this process may make one: the kernel would end the process by a signal.
pub fn within_limit(folder: &Path, bytes: u64) -> std::result::Result<(), DiskError> {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: getrlimit writes the two numbers of the struct that it is given.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) } == 0;
    if known && limit.rlim_cur != libc::RLIM_INFINITY && bytes > limit.rlim_cur {
        let help = "raise the limit on file sizes (ulimit -f unlimited)";
        return Err(DiskError::Limit { folder: folder.into(), needed: bytes, limit: Some(limit.rlim_cur), help });
    }
    Ok(())
}

/// Bytes that this user may still write to the file system.
fn free_bytes(file: &File) -> Result<u64> {
    // SAFETY: a struct of numbers, for which zeros are valid.
    let mut stat: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: a descriptor of ours and a struct that is written.
    match unsafe { libc::fstatvfs(file.as_raw_fd(), &raw mut stat) } {
        0 => Ok((stat.f_bavail as u64).saturating_mul(stat.f_frsize as u64)),
        _ => Err(Error::last_os_error()),
    }
}

/// Whether what is written to a folder stays in memory: it is on tmpfs or ramfs.
///
/// # Errors
/// There is no such folder, or it cannot be reached.
pub fn is_memory(folder: &Path) -> Result<bool> {
    const RAMFS: u64 = 0x8584_58f6;
    let path = CString::new(folder.as_os_str().as_bytes())?;
    // SAFETY: a struct of numbers, for which zeros are valid.
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path is a string that ends in a zero, and the struct is written.
    match unsafe { libc::statfs(path.as_ptr(), &raw mut stat) } {
        // The field is signed on some systems; its low 32 bits are the number.
        0 => Ok([libc::TMPFS_MAGIC as u64, RAMFS].contains(&(stat.f_type as u64 & 0xffff_ffff))),
        _ => Err(Error::last_os_error()),
    }
}
