//! A tree that looks like `/`: the machine's own, or one that a test made.

use std::path::{Path, PathBuf};

/// More than any file that is looked at here has to say; /proc/cpuinfo of 512 cores is about a megabyte.
const MOST_BYTES: u64 = 4 << 20;
/// More entries than this of one folder are not looked at.
const MOST_ENTRIES: usize = 4096;

/// Reads files below a root. Whatever cannot be read is absent.
#[derive(Clone, Debug)]
pub struct Root(PathBuf);

impl Root {
    /// The machine's own.
    pub fn system() -> Root {
        Root(PathBuf::from("/"))
    }

    /// Another tree.
    pub fn at(path: impl Into<PathBuf>) -> Root {
        Root(path.into())
    }

    /// Where a path of the tree is; what begins with `/` begins at the root too.
    pub fn path(&self, path: &str) -> PathBuf {
        self.0.join(path.trim_start_matches('/'))
    }

    /// Whether there is such a file or folder.
    pub fn has(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// A file's text without white space around it; bytes that are no text are replaced. Nothing for an empty one.
    pub fn text(&self, path: &str) -> Option<String> {
        read(&self.path(path)).ok()
    }

    /// The same, and the system's word for why not.
    pub fn text_or_why(&self, path: &str) -> Result<String, std::io::ErrorKind> {
        read(&self.path(path)).map_err(|error| error.kind())
    }

    /// A file that holds one number.
    pub fn number(&self, path: &str) -> Option<i64> {
        self.text(path)?.parse().ok()
    }

    /// The same where it counts something.
    pub fn count(&self, path: &str) -> Option<u64> {
        self.text(path)?.parse().ok()
    }

    /// Names in a folder, in their order; names that are no text are left out.
    pub fn names(&self, path: &str) -> Vec<String> {
        let Ok(folder) = std::fs::read_dir(self.path(path)) else { return Vec::new() };
        let entries = folder.take(MOST_ENTRIES).flatten();
        let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// Names that are `prefix` and a number, in the order of the number.
    pub fn numbered(&self, path: &str, prefix: &str) -> Vec<u32> {
        let number = |name: &String| name.strip_prefix(prefix)?.parse().ok();
        let mut numbers: Vec<u32> = self.names(path).iter().filter_map(number).collect();
        numbers.sort_unstable();
        numbers
    }
}

fn read(path: &Path) -> std::io::Result<String> {
    use std::io::Read;
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(MOST_BYTES).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes).trim().to_string();
    if text.is_empty() { Err(std::io::ErrorKind::UnexpectedEof.into()) } else { Ok(text) }
}

/// The value of a line `name: value` or `name value`, as /proc has them.
pub fn line_of<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let rest = line.trim_start().strip_prefix(name)?;
        let is_whole = rest.starts_with([' ', '\t', ':', '=']);
        is_whole.then(|| rest.trim_start_matches([' ', '\t', ':', '=']).trim_end())
    })
}

/// A line of /proc/self/status or /proc/meminfo, in bytes.
pub fn kib_line(text: &str, name: &str) -> Option<u64> {
    line_of(text, name)?.strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// `0-3,8,10-11` as numbers; nothing where it is no such list.
pub fn cpu_list(text: &str) -> Option<Vec<u32>> {
    const MOST: u32 = 1 << 16;
    let mut cpus = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        if first > last || last >= MOST {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}
