//! Files that are found in folders: read only where they are regular files, and named only inside their folder.

use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result};
use std::path::{Component, Path};

/// No configuration, index or profile is longer.
pub const MOST_BYTES: u64 = 256 << 20;

/// Refuses what is not a regular file: opening a pipe would wait for its writer, and a device has no end.
///
/// # Errors
/// It is not there, or is something else.
pub fn regular(path: &Path) -> Result<()> {
    match std::fs::metadata(path)?.is_file() {
        true => Ok(()),
        false => Err(Error::new(ErrorKind::InvalidInput, "it is not a regular file")),
    }
}

/// The bytes of a regular file of at most [`MOST_BYTES`].
///
/// # Errors
/// The system's, or it is something else or longer.
pub fn read(path: &Path) -> Result<Vec<u8>> {
    regular(path)?;
    bounded(path)
}

/// The same as text.
///
/// # Errors
/// As [`read`], or it is not UTF-8.
pub fn text(path: &Path) -> Result<String> {
    as_text(read(path)?)
}

/// The text of a file that the user names: a pipe will do, as `/dev/stdin` and `<(…)` are, and is waited for.
///
/// # Errors
/// The system's, or it is longer than [`MOST_BYTES`] or not UTF-8.
pub fn named_text(path: &Path) -> Result<String> {
    as_text(bounded(path)?)
}

/// The bytes of a file that the user names, as [`named_text`].
///
/// # Errors
/// The system's, or it is longer than [`MOST_BYTES`].
pub fn bounded(path: &Path) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > MOST_BYTES {
        true => Err(Error::new(ErrorKind::FileTooLarge, format!("it has more than {} MiB", MOST_BYTES >> 20))),
        false => Ok(bytes),
    }
}

fn as_text(bytes: Vec<u8>) -> Result<String> {
    String::from_utf8(bytes).map_err(|_| Error::new(ErrorKind::InvalidData, "it is not UTF-8 text"))
}

/// Whether a name is that of a file in the folder that names it: no path, not `..`, not empty, without NUL.
pub fn is_plain_name(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    let is_one = matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None));
    is_one && !name.contains(['/', '\0'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_in_the_folder_are_plain() {
        for name in ["model.safetensors", "a b", "...", "..a", "-", "a\\b"] {
            assert!(is_plain_name(name), "{name}");
        }
        for name in ["", ".", "..", "/", "/etc/passwd", "a/b", "a/", "./a", "../a", "a/..", "a\0", "\0"] {
            assert!(!is_plain_name(name), "{name:?}");
        }
    }

    #[test]
    fn folders_and_devices_are_not_read() {
        for path in ["/", "/dev/zero", "/dev/null"] {
            assert_eq!(read(Path::new(path)).unwrap_err().kind(), ErrorKind::InvalidInput, "{path}");
        }
        assert_eq!(read(Path::new("/nothing")).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(bounded(Path::new("/dev/zero")).unwrap_err().kind(), ErrorKind::FileTooLarge);
        assert_eq!(named_text(Path::new("/dev/null")).unwrap(), "");
    }
}
