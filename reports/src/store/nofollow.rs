//! Files inside a notebook, reached without following a link: a notebook may come from somebody else, and a link in it would have this
//! user create, truncate or remove files elsewhere. The notebook's own path may have links.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags};

/// Opens a file in the notebook's own folder.
///
/// # Errors
/// It is a link, or cannot be opened.
pub fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let opened = options.custom_flags(OFlags::NOFOLLOW.bits() as i32).open(path);
    opened.map_err(|error| named(path, error))
}

/// Opens a file in a folder of the notebook, for writing and as `flags` say, and makes it where they say so.
///
/// # Errors
/// Either is a link, or cannot be opened.
pub fn open_in(folder: &Path, path: &Path, flags: OFlags) -> io::Result<File> {
    let (held, name) = held(folder, path)?;
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(held, name, flags, Mode::from_raw_mode(0o666));
    opened.map(File::from).map_err(|error| named(path, error.into()))
}

/// Removes a file in a folder of the notebook.
///
/// # Errors
/// The folder is a link, or the file cannot be removed.
pub fn remove_in(folder: &Path, path: &Path) -> io::Result<()> {
    let (held, name) = held(folder, path)?;
    Ok(rustix::fs::unlinkat(held, name, AtFlags::empty())?)
}

/// Refuses a link; what is absent is none.
///
/// # Errors
/// It is a link.
pub fn refuse_link(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_symlink()) {
        true => Err(link(path)),
        false => Ok(()),
    }
}

/// The folder, opened, and the file's name in it: whatever takes the folder's name meanwhile is not followed.
fn held<'p>(folder: &Path, path: &'p Path) -> io::Result<(OwnedFd, &'p OsStr)> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let held = rustix::fs::open(folder, flags, Mode::empty()).map_err(|error| named(folder, error.into()))?;
    Ok((held, path.file_name().ok_or(ErrorKind::InvalidInput)?))
}

fn named(path: &Path, error: io::Error) -> io::Error {
    if refuse_link(path).is_err() { link(path) } else { error }
}

fn link(path: &Path) -> io::Error {
    let message = format!("{} is a link, and files of a notebook are not reached by links; remove it", path.display());
    io::Error::new(ErrorKind::InvalidInput, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_are_refused_by_name_and_their_targets_stay() {
        let here = tempfile::tempdir().unwrap();
        let at = |name: &str| here.path().join(name);
        fs::create_dir(at("target")).unwrap();
        fs::write(at("target/file"), "precious").unwrap();
        fs::create_dir(at("folder")).unwrap();
        symlink(at("target"), at("linked")).unwrap();
        symlink(at("target/file"), at("folder/file")).unwrap();
        symlink(at("target/file"), at("file")).unwrap();
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC;
        let options = || OpenOptions::new().write(true).create(true).truncate(true).clone();
        for (error, name) in [
            (open(&at("file"), &mut options()).unwrap_err(), "file"),
            (open_in(&at("folder"), &at("folder/file"), flags).unwrap_err(), "folder/file"),
            (open_in(&at("linked"), &at("linked/file"), flags).unwrap_err(), "linked"),
            (remove_in(&at("linked"), &at("linked/file")).unwrap_err(), "linked"),
        ] {
            assert!(error.to_string().starts_with(&format!("{} is a link", at(name).display())), "{error}");
        }
        assert_eq!(fs::read(at("target/file")).unwrap(), b"precious");
        remove_in(&at("folder"), &at("folder/file")).unwrap();
        open_in(&at("folder"), &at("folder/file"), flags).unwrap();
        assert!(fs::symlink_metadata(at("folder/file")).unwrap().is_file() && at("target/file").is_file());
    }

    #[test]
    fn turns_behind_a_link_are_not_taken_in() {
        let here = tempfile::tempdir().unwrap();
        let (notebook, target) = (here.path().join("notebook"), here.path().join("target"));
        fs::create_dir(&target).unwrap();
        fs::write(target.join("one.jsonl"), "{}\n").unwrap();
        let opened = crate::store::Notebook::open(&notebook).unwrap();
        symlink(&target, notebook.join("turns")).unwrap();
        let recovered = opened.recover().unwrap();
        assert!(recovered.warnings[0].contains("turns is a link"), "{:?}", recovered.warnings);
        assert!(opened.unfinished("two", &[]).is_err());
        let left: Vec<_> = fs::read_dir(&target).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["one.jsonl"]);
    }
}
