//! What profiles of machines and of frameworks have in common: those that are compiled in, their bases, and what may be wrong
//! with one.

use crate::spelling::{did_you_mean, nearest};
use toml::{Table, Value};

/// Why a profile is none.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ProfileError {
    /// There is none of that name.
    #[error("there is no {of} \"{name}\"{}; there are {known}", did_you_mean(nearest))]
    Unknown {
        /// `machine` or `framework`.
        of: &'static str,
        /// The name asked for.
        name: String,
        /// The name nearest to it, if one is near.
        nearest: String,
        /// All names.
        known: String,
    },
    /// It is no TOML.
    #[error("the {of} profile {profile} is no TOML: {reason}")]
    Toml {
        /// `machine` or `framework`.
        of: &'static str,
        /// The profile.
        profile: String,
        /// What the reader says.
        reason: String,
    },
    /// A key that profiles do not have.
    #[error("the {of} profile {profile} has an unknown key {key}{}; there may be {known}", did_you_mean(nearest))]
    Key {
        /// `machine` or `framework`.
        of: &'static str,
        /// The profile.
        profile: String,
        /// The key, with the tables it stands in.
        key: String,
        /// The key nearest to it, if one is near.
        nearest: String,
        /// All keys of that table.
        known: String,
    },
    /// A value that is not what belongs there.
    #[error("the {of} profile {profile}: {key} = {found} is not {wanted}")]
    Value {
        /// `machine` or `framework`.
        of: &'static str,
        /// The profile.
        profile: String,
        /// The key, with the tables it stands in.
        key: String,
        /// What stands there.
        found: String,
        /// What should.
        wanted: String,
    },
    /// A key without which nothing can be priced.
    #[error("the {of} profile {profile} does not say {key}; write {wanted}")]
    Missing {
        /// `machine` or `framework`.
        of: &'static str,
        /// The profile.
        profile: String,
        /// The key, with the tables it stands in.
        key: String,
        /// What belongs there.
        wanted: String,
    },
    /// A base that is none.
    #[error("the {of} profile {profile} has base = \"{base}\": {reason}")]
    Base {
        /// `machine` or `framework`.
        of: &'static str,
        /// The profile.
        profile: String,
        /// The base.
        base: String,
        /// Why not.
        reason: String,
    },
}

/// Bases of bases end somewhere.
const DEEPEST: usize = 4;

/// The profiles of one kind that are compiled in.
pub(crate) struct Catalogue {
    /// `machine` or `framework`.
    pub of: &'static str,
    /// Names and texts.
    pub texts: &'static [(&'static str, &'static str)],
}

impl Catalogue {
    pub fn names(&self) -> impl Iterator<Item = &'static str> + use<> {
        self.texts.iter().map(|(name, _)| *name)
    }

    fn known(&self) -> String {
        self.names().collect::<Vec<_>>().join(", ")
    }

    pub fn unknown(&self, name: &str) -> ProfileError {
        let nearest = nearest(name, self.names()).unwrap_or_default().into();
        ProfileError::Unknown { of: self.of, name: name.into(), nearest, known: self.known() }
    }

    /// A profile's text as a table.
    pub fn table(&self, profile: &str, text: &str) -> Result<Table, ProfileError> {
        text.parse().map_err(|error: toml::de::Error| ProfileError::Toml {
            of: self.of,
            profile: profile.into(),
            reason: error.to_string(),
        })
    }

    /// Name and text of the base that a profile names, which stands on `depth` others; nothing where it names none.
    pub fn base(
        &self,
        profile: &str,
        table: &Table,
        depth: usize,
    ) -> Result<Option<(&'static str, &'static str)>, ProfileError> {
        let base = match table.get("base") {
            None => return Ok(None),
            Some(Value::String(base)) => base,
            Some(other) => return Err(self.value(profile, "base", other, &format!("the name of a {}", self.of))),
        };
        let error =
            |reason: String| ProfileError::Base { of: self.of, profile: profile.into(), base: base.clone(), reason };
        if depth == DEEPEST {
            let reason = format!("bases stand on bases more than {DEEPEST} times; name the last {} itself", self.of);
            return Err(error(reason));
        }
        let found = self.texts.iter().find(|(known, _)| known == base).copied();
        found.map(Some).ok_or_else(|| error(format!("there is no such {}; there are {}", self.of, self.known())))
    }

    /// The error of a key that is none of the known ones; `path` is the key with the tables it stands in.
    pub fn key(&self, profile: &str, path: String, known: &[&str]) -> ProfileError {
        let key = path.rsplit('.').next().unwrap_or_default();
        let nearest = nearest(key, known.iter().copied()).unwrap_or_default().into();
        ProfileError::Key { of: self.of, profile: profile.into(), key: path, nearest, known: known.join(", ") }
    }

    pub fn value(&self, profile: &str, key: &str, found: &Value, wanted: &str) -> ProfileError {
        let (profile, key) = (profile.into(), key.into());
        ProfileError::Value { of: self.of, profile, key, found: found.to_string(), wanted: wanted.into() }
    }

    pub fn missing(&self, profile: &str, key: &str, wanted: &str) -> ProfileError {
        ProfileError::Missing { of: self.of, profile: profile.into(), key: key.into(), wanted: wanted.into() }
    }
}

#[cfg(test)]
impl Catalogue {
    /// Asserts that the profiles are the files of a folder of configs.
    pub fn has_every_file_of(&self, folder: &str) {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs").join(folder);
        let stem = |entry: std::io::Result<std::fs::DirEntry>| {
            Some(entry.unwrap().path().file_stem()?.to_str().unwrap().to_string())
        };
        let mut files: Vec<String> = std::fs::read_dir(folder).unwrap().filter_map(stem).collect();
        files.sort();
        let mut known: Vec<&str> = self.names().collect();
        known.sort_unstable();
        assert_eq!(known, files);
    }
}
