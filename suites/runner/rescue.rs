//! A record that was measured and cannot be added to its notebook: it is kept elsewhere, and `zbench import` takes it.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use zbench_reports::bundle::{self, Redaction};
use zbench_reports::record::Record;

/// Writes the record into a bundle of its own in `folder`; where that fails too, the bundle's text comes back.
pub fn keep(record: &Record, folder: &Path) -> Result<PathBuf, String> {
    let now = jiff::Timestamp::now().to_string();
    let bytes =
        bundle::write(std::slice::from_ref(record), &[], &Redaction::of_secrets(), env!("CARGO_PKG_VERSION"), &now)
            .map_err(|error| error.to_string())?;
    let path = folder.join(format!("zbench-rescued-{}.jsonl", record.id));
    let lost = || String::from_utf8_lossy(&bytes).into_owned();
    // What has this name already is somebody else's, and stays.
    let mut file = OpenOptions::new().write(true).create_new(true).open(&path).map_err(|_| lost())?;
    if file.write_all(&bytes).and_then(|()| file.sync_all()).is_err() {
        // Half a file would only be found and believed in.
        let _ = std::fs::remove_file(&path);
        return Err(lost());
    }
    Ok(path)
}

/// Keeps it in the folder for temporary files, or on standard error, and says so.
pub fn keep_and_say(record: &Record) {
    match keep(record, &std::env::temp_dir()) {
        Ok(path) => {
            let path = path.display();
            zbench_host::say!("the record {} is kept in {path}; zbench import --bundle {path} adds it", record.id);
        }
        Err(text) => zbench_host::say!(
            "the record {} could not be kept in a file either; it stands here: put the next two lines into one, and add it \
             with zbench import --bundle FILE\n{}",
            record.id,
            text.trim_end()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbench_reports::record::Outcome;

    #[test]
    fn what_has_the_name_already_stays() {
        let folder = tempfile::tempdir().unwrap();
        let record = Record::new("abc", "key", "name", Outcome::measured());
        let path = folder.path().join("zbench-rescued-abc.jsonl");
        std::fs::write(&path, "somebody else's").unwrap();
        let text = keep(&record, folder.path()).unwrap_err();
        assert!(text.contains("zbench_bundle"), "the record is handed back: {text}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "somebody else's");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(keep(&record, folder.path()).unwrap(), path);
        assert!(std::fs::read_to_string(&path).unwrap().contains("zbench_bundle"));
    }
}
