//! Folders from which compiled code may be loaded: those that no other user can write to.

#![allow(unsafe_code, reason = "a system call that names the user")]

use std::ffi::OsStr;
use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::io::{Error, ErrorKind, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Write permission of the group and of everybody else.
const OTHERS_WRITE: u32 = 0o022;
/// Names in a folder with this bit can be changed by their owners only, as in /tmp.
const STICKY: u32 = 0o1000;

/// Why compiled code is not loaded from a folder.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("compiled kernels are neither loaded from {} nor kept there: {reason}", .folder.display())]
pub struct NotPrivate {
    /// The folder that was asked for.
    pub folder: PathBuf,
    /// What is wrong with it, or with a folder above it.
    pub reason: String,
}

/// The number of the user of this process.
pub fn user() -> u32 {
    // SAFETY: reads a number of this process, and cannot fail.
    unsafe { libc::geteuid() }
}

/// A folder to which no other user can write, made with mode 0700 where it is absent. Every reader of compiled code asks
/// here first. The path that comes back has no symbolic link in it, so that nobody can lead it elsewhere later.
///
/// # Errors
/// The folder is a symbolic link or belongs to another user; it or a folder above it can be written by others, or it
/// cannot be made.
pub fn private(folder: &Path) -> Result<PathBuf, NotPrivate> {
    let refused = |reason: String| NotPrivate { folder: folder.into(), reason };
    let whole = std::path::absolute(folder).map_err(|error| refused(error.to_string()))?;
    // A link that its owner has made above the folder is one of the user's own ways to it. The folder itself is none.
    if std::fs::symlink_metadata(&whole).is_ok_and(|found| found.is_symlink()) {
        return Err(refused("it is a symbolic link".into()));
    }
    let real = walk(&whole).map_err(refused)?;
    let found = std::fs::symlink_metadata(&real).map_err(|error| refused(error.to_string()))?;
    // A folder above may belong to root, or let others add to it; this one may not.
    only_ours(&found).map_err(refused)?;
    Ok(real)
}

/// An empty private folder for what no cache may keep; whoever asked for it removes it.
///
/// # Errors
/// The folder for temporary files is not to be trusted either, or is full.
pub(super) fn temporary() -> Result<PathBuf, NotPrivate> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    loop {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("zbench-kernels-{}-{number}", std::process::id()));
        match DirBuilder::new().mode(0o700).create(&folder) {
            Ok(()) => return private(&folder),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
            Err(error) => return Err(NotPrivate { folder, reason: error.to_string() }),
        }
    }
}

/// The bytes of a file in a [`private`] folder. A link, a pipe, or a file of another user that the folder has from a time
/// when others could write to it, is not read.
///
/// # Errors
/// The file is absent, or is none of this user's regular files.
pub fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut file: File = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(Error::new(ErrorKind::InvalidInput, "it is not a regular file"));
    }
    only_ours(&found).map_err(|reason| Error::new(ErrorKind::PermissionDenied, reason))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn only_ours(found: &Metadata) -> Result<(), String> {
    if found.uid() != user() {
        return Err(format!("it belongs to user {}, and this process is of user {}", found.uid(), user()));
    }
    if found.mode() & OTHERS_WRITE != 0 {
        return Err(format!("others may write to it (mode {:04o})", found.mode() & 0o7777));
    }
    Ok(())
}

/// Follows a path from the root on, makes what is absent, and checks every folder on the way.
fn walk(whole: &Path) -> Result<PathBuf, String> {
    let mut at = PathBuf::new();
    for part in whole.components() {
        at.push(AsRef::<OsStr>::as_ref(&part));
        let said = |error: Error| format!("{}: {error}", at.display());
        let found = match std::fs::symlink_metadata(&at) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let made = DirBuilder::new().mode(0o700).create(&at);
                // Another process may have made it meanwhile.
                made.or_else(|e| if e.kind() == ErrorKind::AlreadyExists { Ok(()) } else { Err(e) }).map_err(said)?;
                std::fs::symlink_metadata(&at).map_err(said)?
            }
            found => found.map_err(said)?,
        };
        if !is_trusted(found.uid()) {
            return Err(format!("{} belongs to user {}", at.display(), found.uid()));
        }
        if found.is_symlink() {
            let real = std::fs::canonicalize(&at).map_err(said)?;
            // It has no link left, so this goes no deeper.
            at = walk(&real)?;
        } else if !found.is_dir() {
            return Err(format!("{} is not a folder", at.display()));
        } else if found.mode() & OTHERS_WRITE != 0 && found.mode() & STICKY == 0 {
            return Err(format!("others may write to {} (mode {:04o})", at.display(), found.mode() & 0o7777));
        }
    }
    Ok(at)
}

/// Whether a folder above may belong to this user: it is our own, or the system's. In a user namespace, as Apptainer
/// makes them, root has the number of whoever owns `/`, unless that is the number of all users that the namespace does not know.
fn is_trusted(owner: u32) -> bool {
    let unknown = std::fs::read_to_string("/proc/sys/fs/overflowuid").ok().and_then(|uid| uid.trim().parse().ok());
    let is_root = |owner| std::fs::metadata("/").is_ok_and(|root| root.uid() == owner);
    owner == user() || owner == 0 || owner != unknown.unwrap_or(65534) && is_root(owner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};

    /// Any user that is not this process's.
    const NOBODY: u32 = 65534;

    /// An empty folder of the test's own.
    fn scratch(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("zbench-folder-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        DirBuilder::new().mode(0o700).create(&folder).unwrap();
        folder
    }

    fn set_mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().mode() & 0o7777
    }

    fn why(path: &Path) -> String {
        private(path).unwrap_err().reason
    }

    #[test]
    fn a_folder_of_ones_own_is_made_and_taken() {
        let own = scratch("own");
        let folder = own.join("zbench/kernels");
        assert_eq!(private(&folder).unwrap(), folder);
        assert_eq!((mode(&own.join("zbench")), mode(&folder)), (0o700, 0o700));
        assert_eq!(private(&folder).unwrap(), folder, "again");
        set_mode(&folder, 0o755);
        assert_eq!(private(&folder).unwrap(), folder, "others may read it");
        // What the user's own links lead to is taken by its own name.
        symlink(own.join("zbench"), own.join("link")).unwrap();
        assert_eq!(private(&own.join("link/kernels")).unwrap(), folder);
        assert_eq!(private(&own.join("zbench/../zbench/kernels")).unwrap().canonicalize().unwrap(), folder);
        std::fs::remove_dir_all(&own).unwrap();
    }

    #[test]
    fn a_folder_that_others_write_to_is_refused() {
        let own = scratch("others");
        let folder = own.join("zbench/kernels");
        private(&folder).unwrap();
        for bits in [0o777, 0o1777, 0o770, 0o702] {
            set_mode(&folder, bits);
            assert!(why(&folder).contains("others may write to"), "{bits:o}: {}", why(&folder));
        }
        set_mode(&folder, 0o700);
        // Whoever may write above it may put another folder in its place.
        set_mode(&own.join("zbench"), 0o775);
        assert!(
            why(&folder).contains("others may write to") && why(&folder).contains("(mode 0775)"),
            "{}",
            why(&folder)
        );
        set_mode(&own.join("zbench"), 0o1777);
        assert_eq!(private(&folder).unwrap(), folder, "as in /tmp, others cannot take its name");
        std::fs::remove_dir_all(&own).unwrap();
    }

    #[test]
    fn a_folder_of_another_user_is_refused() {
        // Only root can give a folder away; to everybody else `/` is another user's.
        if user() != 0 {
            assert!(why(Path::new("/")).contains("belongs to user"), "{}", why(Path::new("/")));
            return;
        }
        let own = scratch("nobody");
        let folder = own.join("zbench/kernels");
        private(&folder).unwrap();
        for path in [&folder, &own.join("zbench")] {
            chown(path, Some(NOBODY), None).unwrap();
            assert!(why(&folder).contains("belongs to user 65534"), "{}", why(&folder));
            chown(path, Some(0), None).unwrap();
        }
        // A planted link, above the folder.
        let link = own.join("planted");
        symlink(own.join("zbench"), &link).unwrap();
        lchown(&link, Some(NOBODY), None).unwrap();
        assert!(why(&link.join("kernels")).contains("planted belongs to user 65534"));
        std::fs::remove_dir_all(&own).unwrap();
    }

    #[test]
    fn a_link_or_a_file_is_no_folder() {
        let own = scratch("links");
        let folder = own.join("real");
        private(&folder).unwrap();
        symlink(&folder, own.join("link")).unwrap();
        assert_eq!(why(&own.join("link")), "it is a symbolic link");
        std::fs::write(own.join("file"), "").unwrap();
        assert!(why(&own.join("file")).ends_with("is not a folder"));
        assert!(why(&own.join("file/kernels")).ends_with("is not a folder"));
        symlink("nowhere", own.join("broken")).unwrap();
        assert!(!why(&own.join("broken/kernels")).is_empty());
        assert!(!own.join("nowhere").exists(), "nothing is made at the end of a link");
        std::fs::remove_dir_all(&own).unwrap();
    }

    #[test]
    fn only_ones_own_files_are_read() {
        let own = scratch("files");
        let file = own.join("x.so");
        std::fs::write(&file, "code").unwrap();
        set_mode(&file, 0o644);
        assert_eq!(read(&file).unwrap(), b"code");
        set_mode(&file, 0o666);
        assert_eq!(read(&file).unwrap_err().kind(), ErrorKind::PermissionDenied);
        symlink(&file, own.join("link.so")).unwrap();
        assert!(read(&own.join("link.so")).is_err());
        let fifo = std::ffi::CString::new(own.join("pipe.so").as_os_str().as_encoded_bytes()).unwrap();
        // SAFETY: a string that ends in a zero.
        assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o600) }, 0);
        assert_eq!(read(&own.join("pipe.so")).unwrap_err().kind(), ErrorKind::InvalidInput, "and nobody waits for it");
        if user() == 0 {
            set_mode(&file, 0o644);
            chown(&file, Some(NOBODY), None).unwrap();
            assert_eq!(read(&file).unwrap_err().kind(), ErrorKind::PermissionDenied);
        }
        std::fs::remove_dir_all(&own).unwrap();
    }
}
