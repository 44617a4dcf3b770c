//! Temporary folders: of trials, where the user wants them, and among the system's.

use std::fs::{File, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The names of such folders begin with this.
pub const PREFIX: &str = ".zbench-scratch-";
const LOCK: &str = "in-use";
/// A younger folder without a lock may belong to a process that is just creating it.
const YOUNG: Duration = Duration::from_secs(60);
/// How long a process that was killed may still finish a file that it had begun in the folder.
const LINGER: Duration = Duration::from_secs(1);

/// A folder for temporary files of this user's alone, whose name nobody can know beforehand: others may write where it lies. It goes
/// with the value.
///
/// # Errors
/// It cannot be made.
pub fn private_folder(prefix: &str) -> std::io::Result<tempfile::TempDir> {
    tempfile::Builder::new().prefix(prefix).permissions(Permissions::from_mode(0o700)).tempdir()
}

/// A temporary folder, which is removed when dropped.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
    /// Parent folders that were created for it, the deepest first.
    created: Vec<PathBuf>,
    _lock: File,
}

impl Scratch {
    /// Creates a temporary folder in `folder`, which is created if absent, and removes what killed processes left there. An error
    /// ends with `advice`.
    pub fn new(folder: &Path, advice: &str) -> Result<Scratch, String> {
        let refused =
            |error: std::io::Error| format!("nothing can be written in {}: {error}; {advice}", folder.display());
        let is_absent = |parent: &&Path| !parent.as_os_str().is_empty() && !parent.exists();
        let created = folder.ancestors().take_while(is_absent).map(Path::to_path_buf).collect();
        std::fs::create_dir_all(folder).map_err(refused)?;
        remove_abandoned(folder);
        for number in 0u32.. {
            let path = folder.join(format!("{PREFIX}{}-{number}", std::process::id()));
            match std::fs::create_dir(&path) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(refused(error)),
            }
            let lock = File::create(path.join(LOCK)).inspect_err(|_| drop(std::fs::remove_dir(&path)));
            let lock = lock.map_err(refused)?;
            // A file system without locks has none for other processes either.
            let _ = lock.try_lock();
            return Ok(Scratch { path, created, _lock: lock });
        }
        Err(refused(ErrorKind::AlreadyExists.into()))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let begin = Instant::now();
        let result = loop {
            match std::fs::remove_dir_all(&self.path) {
                Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty && begin.elapsed() < LINGER => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                result => break result,
            }
        };
        if let Err(error) = result {
            zbench_host::say!("warning: {} cannot be removed: {error}; it can be deleted", self.path.display());
        }
        // Only while they are empty: another process may use them by now.
        let _ = self.created.iter().try_for_each(std::fs::remove_dir);
    }
}

/// Removes temporary folders whose process has ended: no process holds their lock.
fn remove_abandoned(folder: &Path) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let is_ours = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        let age = entry.metadata().and_then(|data| data.modified()).ok().and_then(|time| time.elapsed().ok());
        if !is_ours || age.is_none_or(|age| age < YOUNG) {
            continue;
        }
        let lock = entry.path().join(LOCK);
        let is_free = lock.is_file() && File::open(lock).is_ok_and(|lock| lock.try_lock().is_ok());
        if is_free && let Err(error) = std::fs::remove_dir_all(entry.path()) {
            zbench_host::say!("warning: {} cannot be removed: {error}; it can be deleted", entry.path().display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_made_is_removed() {
        let here = tempfile::tempdir().unwrap();
        let deep = here.path().join("a/b");
        let (one, two) = (Scratch::new(&deep, "advice").unwrap(), Scratch::new(&deep, "advice").unwrap());
        assert_ne!(one.path(), two.path());
        std::fs::create_dir_all(one.path().join("x/y")).unwrap();
        std::fs::write(one.path().join("x/y/file"), "1").unwrap();
        drop(one);
        assert!(two.path().is_dir());
        drop(two);
        // The first had made both folders, and the second was still in them.
        assert!(deep.is_dir() && std::fs::read_dir(&deep).unwrap().next().is_none());
        std::fs::write(deep.join("mine"), "2").unwrap();
        drop(Scratch::new(&deep, "advice").unwrap());
        assert_eq!(std::fs::read(deep.join("mine")).unwrap(), b"2");
        let other = here.path().join("c/d");
        drop(Scratch::new(&other, "advice").unwrap());
        assert!(!here.path().join("c").exists());
    }

    #[test]
    fn a_process_that_still_writes_does_not_keep_the_folder() {
        let here = tempfile::tempdir().unwrap();
        let scratch = Scratch::new(here.path(), "advice").unwrap();
        let path = scratch.path().to_path_buf();
        let create =
            move |end: Instant| (0..).find(|i| File::create(path.join(i.to_string())).is_err() || Instant::now() > end);
        let writers = [(); 2].map(|()| {
            let create = create.clone();
            std::thread::spawn(move || create(Instant::now() + LINGER / 10))
        });
        while !scratch.path().join("0").exists() {
            std::thread::yield_now();
        }
        drop(scratch);
        for writer in writers {
            writer.join().unwrap();
        }
        assert_eq!(std::fs::read_dir(here.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_a_killed_program_left_is_removed_and_what_one_uses_is_not() {
        let here = tempfile::tempdir().unwrap();
        let leave = |name: &str| {
            let path = here.path().join(format!("{PREFIX}{name}"));
            std::fs::create_dir(&path).unwrap();
            let lock = File::create(path.join(LOCK)).unwrap();
            let old = std::time::SystemTime::now() - 2 * YOUNG;
            File::open(&path).unwrap().set_modified(old).unwrap();
            (path, lock)
        };
        let ((left, lock), (used, its)) = (leave("1-0"), leave("2-0"));
        drop(lock);
        its.lock().unwrap();
        let (young, _lock) = leave("3-0");
        File::open(&young).unwrap().set_modified(std::time::SystemTime::now()).unwrap();
        drop(Scratch::new(here.path(), "advice").unwrap());
        assert!(!left.exists() && used.exists() && young.exists());
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named_with_advice() {
        let here = tempfile::tempdir().unwrap();
        let file = here.path().join("file");
        std::fs::write(&file, "").unwrap();
        let error = Scratch::new(&file.join("in it"), "advice").unwrap_err();
        assert!(error.contains("file/in it") && error.ends_with("advice"), "{error}");
    }
}
