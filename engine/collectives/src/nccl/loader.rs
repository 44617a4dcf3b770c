//! Where NCCL is looked for, and in which order.

use std::ffi::OsString;
use std::path::PathBuf;
use zbench_kernels::cuda::gpu::{self, Absent, Attempt, Found, Library};

/// Where to look. The engine reads no environment: the command line passes its variables to [`Search::new`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Search {
    /// This file and no other.
    pub explicit: Option<PathBuf>,
    /// Folders to look into before the system's, themselves and their `nvidia/nccl/lib`, as pip lays its packages out.
    pub folders: Vec<PathBuf>,
}

impl Search {
    /// What the variables ZBENCH_NCCL_LIB (one file) and ZBENCH_CUDA_LIBS (folders, separated by colons) say.
    pub fn new(variable: impl Fn(&str) -> Option<OsString>) -> Search {
        let given = |name: &str| variable(name).filter(|value| !value.is_empty());
        let folders = given("ZBENCH_CUDA_LIBS").map_or(Vec::new(), |list| std::env::split_paths(&list).collect());
        Search { explicit: given("ZBENCH_NCCL_LIB").map(PathBuf::from), folders }
    }

    fn places(&self, names: &[&str]) -> Vec<PathBuf> {
        if let Some(file) = &self.explicit {
            return vec![file.clone()];
        }
        let folders = self.folders.iter().filter(|folder| !folder.as_os_str().is_empty());
        let below = |folder: &PathBuf| {
            let packaged = folder.join("nvidia/nccl/lib");
            // An environment of Python's has the packages further down.
            let further = gpu::Search::inside(folder).into_iter();
            let further = further.filter(|path| path.ends_with("nvidia/nccl/lib") && *path != packaged);
            [packaged.clone(), folder.clone()].into_iter().chain(further.collect::<Vec<_>>())
        };
        let folders: Vec<PathBuf> = folders.flat_map(below).collect();
        let inside = folders.iter().flat_map(|folder| names.iter().map(|name| folder.join(name)));
        inside.chain(names.iter().map(PathBuf::from)).collect()
    }

    /// Opens the first library that opens; else says what was tried.
    pub(super) fn open(&self, library: Library) -> Result<Found, Absent> {
        let mut tried = Vec::new();
        for place in self.places(library.names()) {
            match Found::open(library, place) {
                Ok(found) => return Ok(found),
                Err((place, reason)) => tried.push(Attempt { place, reason }),
            }
        }
        Err(Absent::NotFound { library, tried })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_become_places_in_order() {
        let none = Search::new(|_| None);
        assert_eq!(none.places(&["a.so.2", "a.so"]), [PathBuf::from("a.so.2"), PathBuf::from("a.so")]);
        let folders = Search::new(|name| (name == "ZBENCH_CUDA_LIBS").then(|| "/x::/y".into()));
        let expected = ["/x/nvidia/nccl/lib/a", "/x/a", "/y/nvidia/nccl/lib/a", "/y/a", "a"].map(PathBuf::from);
        assert_eq!(folders.places(&["a"]), expected);
        let explicit = Search::new(|name| Some(if name == "ZBENCH_NCCL_LIB" { "/z/b.so" } else { "/x" }.into()));
        assert_eq!(explicit.places(&["a"]), [PathBuf::from("/z/b.so")], "a file that is asked for is the only one");
        assert_eq!(Search::new(|_| Some("".into())), Search::default(), "an empty variable is none");
        // An environment of Python's.
        let environment = tempfile::tempdir().unwrap();
        let packages = environment.path().join("lib/python3.11/site-packages/nvidia/nccl/lib");
        std::fs::create_dir_all(&packages).unwrap();
        let search = Search { explicit: None, folders: vec![environment.path().to_owned()] };
        assert_eq!(search.places(&["a"])[2..], [packages.join("a"), PathBuf::from("a")]);
    }
}
