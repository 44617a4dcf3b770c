//! Compiled kernels on disk, so that only the first start waits for the compiler.
//!
//! A file is named after all that went into it, and carries a checksum: what is cut short or damaged is compiled again.

use super::nvrtc::{CompileError, Compiled, Nvrtc, Target, headers, options};
use crate::cuda::folder;
use crate::cuda::sources::Source;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// What a file begins with; the number changes with its form.
const MAGIC: &[u8; 8] = b"zbcubin1";
/// Behind it: a checksum of all the rest, and the length of the log.
const HEAD: usize = 8 + 32 + 8;

/// What came of asking for a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Obtained {
    /// The code, and the compiler's words.
    pub compiled: Compiled,
    /// Whether it was on disk.
    pub cached: bool,
    /// Why it could not be kept, if so. The kernels run all the same; the next start compiles again.
    pub not_kept: Option<String>,
}

/// A source compiled for an architecture: from `folder`, if there is one and it holds it, else made and kept there. Where
/// others can write to `folder`, it is neither read nor written.
///
/// # Errors
/// The compiler refuses the source.
pub fn obtain(
    nvrtc: &Nvrtc,
    folder: Option<&Path>,
    source: &Source,
    target: &Target,
) -> Result<Obtained, CompileError> {
    let path = match folder.map(folder::private).transpose() {
        Ok(folder) => folder.map(|folder| file(&folder, nvrtc.version(), source, target)),
        Err(why) => {
            let compiled = nvrtc.compile(source, target)?;
            return Ok(Obtained { compiled, cached: false, not_kept: Some(why.to_string()) });
        }
    };
    if let Some(compiled) = path.as_deref().and_then(read) {
        return Ok(Obtained { compiled, cached: true, not_kept: None });
    }
    let compiled = nvrtc.compile(source, target)?;
    let kept = path.map_or(Ok(()), |path| write(&path, &compiled).map_err(|e| format!("{}: {e}", path.display())));
    Ok(Obtained { compiled, cached: false, not_kept: kept.err() })
}

/// Where a source's code lies: the name holds a hash of the text, its headers, the options and the compiler's version.
fn file(folder: &Path, version: i32, source: &Source, target: &Target) -> PathBuf {
    let mut hash = blake3::Hasher::new();
    // Lengths keep one part's end from being taken for the next one's beginning.
    let mut add = |part: &str| {
        hash.update(&(part.len() as u64).to_le_bytes()).update(part.as_bytes());
    };
    add(source.text);
    headers().for_each(|(name, text)| [name, text].into_iter().for_each(&mut add));
    options(target).iter().for_each(|option| add(option));
    add(&version.to_string());
    let hash = hash.finalize().to_hex();
    folder.join(format!("{}-{}-{}.cubin", source.name, target.name(), &hash[..32]))
}

/// What a file holds, if it is whole.
fn read(path: &Path) -> Option<Compiled> {
    let bytes = folder::read(path).ok()?;
    let (head, body) = bytes.split_at_checked(HEAD)?;
    let log_bytes = u64::from_le_bytes(head[40..].try_into().ok()?);
    if &head[..8] != MAGIC || head[8..40] != checksum(log_bytes, body) {
        return None;
    }
    let (log, cubin) = body.split_at_checked(usize::try_from(log_bytes).ok()?)?;
    Some(Compiled { cubin: cubin.to_vec(), log: String::from_utf8(log.to_vec()).ok()? })
}

/// Writes a file beside its place and moves it there: others that start at the same time see all of it or nothing.
fn write(path: &Path, compiled: &Compiled) -> std::io::Result<()> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let body = [compiled.log.as_bytes(), &compiled.cubin].concat();
    let log_bytes = compiled.log.len() as u64;
    let whole = [&MAGIC[..], &checksum(log_bytes, &body), &log_bytes.to_le_bytes(), &body].concat();
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let aside = path.with_extension(format!("{}-{number}.part", std::process::id()));
    let written = std::fs::write(&aside, whole).and_then(|()| std::fs::rename(&aside, path));
    if written.is_err() {
        // What is left of it is of no use; that it stays harms nobody.
        let _ = std::fs::remove_file(&aside);
    }
    written
}

fn checksum(log_bytes: u64, body: &[u8]) -> [u8; 32] {
    *blake3::Hasher::new().update(&log_bytes.to_le_bytes()).update(body).finalize().as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("zbench-cubins-{name}-{}", std::process::id()))
    }

    #[test]
    fn what_is_damaged_is_not_read() {
        let folder = folder("damaged");
        let path = folder.join("x.cubin");
        let compiled = Compiled { cubin: (0..200).collect(), log: "Used 26 registers".into() };
        assert_eq!(read(&path), None, "there is none yet");
        write(&path, &compiled).unwrap();
        assert_eq!(read(&path), Some(compiled.clone()));
        let whole = std::fs::read(&path).unwrap();
        for end in 0..whole.len() {
            std::fs::write(&path, &whole[..end]).unwrap();
            assert_eq!(read(&path), None, "cut after {end} bytes");
        }
        for at in 0..whole.len() {
            let mut flipped = whole.clone();
            flipped[at] ^= 1 << (at % 8);
            std::fs::write(&path, flipped).unwrap();
            assert_eq!(read(&path), None, "byte {at} is another");
        }
        std::fs::write(&path, [&whole[..], b"x"].concat()).unwrap();
        assert_eq!(read(&path), None, "longer than it was");
        write(&path, &compiled).unwrap();
        assert_eq!(read(&path), Some(compiled), "written over what is damaged");
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1, "nothing is left beside it");
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_place_is_that_of_all_that_went_in() {
        let source = Source { name: "x", text: "text", hopper: false };
        let [ampere, ada] = [(8, 0), (8, 9)].map(|capability| Target::of(capability).unwrap());
        let place = |version, text, target| file(Path::new("/c"), version, &Source { text, ..source }, target);
        let one = place(13000, "text", &ampere);
        assert_eq!(one, place(13000, "text", &ampere));
        assert!(one.to_str().unwrap().starts_with("/c/x-sm_80-"));
        let others = [place(13010, "text", &ampere), place(13000, "texts", &ampere), place(13000, "text", &ada)];
        assert!(!others.contains(&one));
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_told() {
        let path = Path::new("/proc/self/none/x.cubin");
        assert!(write(path, &Compiled { cubin: vec![1], log: String::new() }).is_err());
    }
}
