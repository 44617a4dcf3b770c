//! A folder that stands for `/`: the machine's own root, or a folder that a test made.

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

/// More than any file here has; /proc/cpuinfo of 512 cores is about a megabyte.
const MAX_BYTES: u64 = 4 << 20;
/// Further entries of a folder are not read.
const MAX_ENTRIES: usize = 4096;

/// Reads files below a root. Whatever cannot be read is absent.
#[derive(Clone, Debug)]
pub struct Root(PathBuf);

impl Root {
    /// The machine's own root.
    pub fn system() -> Root {
        Root::at("/")
    }

    /// Another folder.
    pub fn at(path: impl Into<PathBuf>) -> Root {
        Root(path.into())
    }

    /// A path below the root; a path that begins with `/` is below it too.
    pub fn path(&self, path: &str) -> PathBuf {
        self.0.join(path.trim_start_matches('/'))
    }

    /// Whether there is such a file or folder.
    pub fn has(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// A file's text without white space around it, with bytes that are not UTF-8 replaced. Nothing for an empty file.
    pub fn text(&self, path: &str) -> Option<String> {
        self.text_or_why(path).ok()
    }

    /// As [`Root::text`], or why the file cannot be read.
    pub fn text_or_why(&self, path: &str) -> Result<String, std::io::ErrorKind> {
        let file = File::open(self.path(path)).map_err(|error| error.kind())?;
        let mut bytes = Vec::new();
        file.take(MAX_BYTES).read_to_end(&mut bytes).map_err(|error| error.kind())?;
        let text = String::from_utf8_lossy(&bytes).trim().to_string();
        if text.is_empty() { Err(std::io::ErrorKind::UnexpectedEof) } else { Ok(text) }
    }

    /// The number in a file.
    pub fn number(&self, path: &str) -> Option<i64> {
        self.text(path)?.parse().ok()
    }

    /// The number in a file, where it counts something.
    pub fn count(&self, path: &str) -> Option<u64> {
        self.text(path)?.parse().ok()
    }

    /// Sorted names in a folder; names that are not UTF-8 are left out.
    pub fn names(&self, path: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(path)).into_iter().flatten().take(MAX_ENTRIES).flatten();
        let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// The numbers of names that are `prefix` and a number, sorted.
    pub fn numbered(&self, path: &str, prefix: &str) -> Vec<u32> {
        let number = |name: &String| name.strip_prefix(prefix)?.parse().ok();
        let mut numbers: Vec<u32> = self.names(path).iter().filter_map(number).collect();
        numbers.sort_unstable();
        numbers
    }
}

/// The value of a line `name: value`, `name value` or `name=value`.
pub fn line_of<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let rest = line.trim_start().strip_prefix(name)?;
        let is_whole = rest.starts_with([' ', '\t', ':', '=']);
        is_whole.then(|| rest.trim_start_matches([' ', '\t', ':', '=']).trim_end())
    })
}

/// The value of a line as `MemTotal: 1024 kB`, in bytes.
pub fn kib_line(text: &str, name: &str) -> Option<u64> {
    line_of(text, name)?.strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The numbers of a list as `0-3,8,10-11`.
pub fn cpu_list(text: &str) -> Option<Vec<u32>> {
    const MAX_CPUS: u32 = 1 << 16;
    let mut cpus = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        if first > last || last >= MAX_CPUS {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}
