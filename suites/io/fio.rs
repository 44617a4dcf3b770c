//! What fio measures of the same pattern, where it is installed.

use super::DiskLink;
use crate::bench::{BenchError, Limits};
use serde_json::Value;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use zbench_kernels::disk::PIECE_BYTES;
use zbench_reports::bench::io::{Measured, NOT_ASKED, Pass};

/// How often the time limit and Ctrl-C are checked.
const TICK: Duration = Duration::from_millis(20);

/// Finds fio, or why nothing of it stands beside the figures.
pub fn find(cell: &DiskLink, measured: &mut Measured) {
    if !cell.fio {
        measured.no_fio = NOT_ASKED.into();
        return;
    }
    let mut command = Command::new("fio");
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    match command.spawn().map(Ending) {
        Ok(mut child) => match answered(&mut child.0) {
            Some(version) => {
                measured.fio = version;
                measured.fio_engine = engine(&measured.engine, measured.direct).into();
            }
            None => measured.no_fio = format!("`fio --version` did not answer within {} s", ANSWERS.as_secs()),
        },
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => measured.no_fio = NOT_INSTALLED.into(),
        Err(error) => measured.no_fio = format!("fio cannot be started: {error}"),
    }
}

/// How long fio may take to say its version.
const ANSWERS: Duration = Duration::from_secs(5);

/// What a process that ends well has printed, if it ends soon.
fn answered(child: &mut Child) -> Option<String> {
    let begin = Instant::now();
    while begin.elapsed() < ANSWERS {
        match child.try_wait() {
            Ok(None) => std::thread::sleep(TICK),
            Ok(Some(status)) if status.success() => {
                return Some(std::io::read_to_string(child.stdout.take()?).ok()?.trim().to_string());
            }
            _ => return None,
        }
    }
    None
}

/// Adds fio's figure to a pass. After the first failure there are none.
///
/// # Errors
/// The measurement has to end now.
pub fn beside(
    cell: &DiskLink,
    measured: &mut Measured,
    pass: &mut Pass,
    folder: &Path,
    limits: &Limits<'_>,
) -> Result<(), BenchError> {
    if !measured.no_fio.is_empty() {
        return Ok(());
    }
    let engine = &measured.fio_engine;
    let words = words(cell, engine, measured.direct, &pass.pattern, &pass.direction, folder);
    match run(&words, folder, limits)?.and_then(|text| rate(&text, &pass.direction)) {
        Ok(bytes_per_second) => pass.fio_gb_s = Some(bytes_per_second / 1e9),
        Err(reason) => measured.no_fio = format!("fio with {engine}: {reason}"),
    }
    Ok(())
}

/// Why nothing stands beside figures on most machines.
const NOT_INSTALLED: &str = "fio is not installed";

/// fio's engine that does what ours does. Through the page cache its libaio waits for each request, so it has threads there, too.
fn engine(ours: &str, direct: bool) -> &'static str {
    match (ours, direct) {
        ("io_uring", _) => "io_uring",
        (_, true) => "libaio",
        (_, false) => "psync",
    }
}

/// The words of the command line.
fn words(cell: &DiskLink, engine: &str, direct: bool, pattern: &str, direction: &str, folder: &Path) -> Vec<String> {
    let random = if pattern == "random" { "rand" } else { "" };
    // fio takes a colon as the end of a name.
    let file = folder.join("fio").display().to_string().replace(':', "\\:");
    // Whole tensors, as ours.
    let file_bytes = cell.slots() as u64 * cell.size;
    let part = (cell.slots() / cell.depth).max(1) as u64 * cell.size;
    let mut words = vec![
        "--name=zbench".to_string(),
        format!("--filename={file}"),
        format!("--bs={}", cell.size.min(PIECE_BYTES)),
        format!("--rw={random}{direction}"),
        format!("--ioengine={engine}"),
        format!("--direct={}", u8::from(direct)),
        format!("--runtime={}ms", (cell.seconds * 1e3).ceil().max(1.0)),
        format!("--output={}", folder.join("fio.json").display()),
    ];
    let fixed = ["--time_based=1", "--thread=1", "--group_reporting=1", "--output-format=json", "--end_fsync=1"];
    // Blocks that exist, as ours, a page cache that is as it was, and buffers that can lie on huge pages: see `run`.
    let alike = ["--overwrite=1", "--invalidate=0", "--iomem_align=2m"];
    words.extend(fixed.into_iter().chain(alike).map(str::to_string));
    match engine {
        // Each waits for its own requests, in its own part of the file.
        "psync" => words.extend([
            format!("--numjobs={}", cell.depth),
            format!("--offset_increment={part}"),
            format!("--size={part}"),
        ]),
        _ => words.extend([format!("--iodepth={}", cell.depth), format!("--size={file_bytes}")]),
    }
    words
}

/// Runs fio; what it has written, or why there is nothing.
fn run(words: &[String], folder: &Path, limits: &Limits<'_>) -> Result<Result<String, String>, BenchError> {
    let mut command = Command::new("fio");
    // Its buffers lie on huge pages as ours do: of small pages a request of 1 MiB has more parts than many disks take at a time.
    command.env("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1");
    // A group of its own, so that Ctrl-C reaches this process alone, which then ends it.
    command.args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).process_group(0);
    let mut child = match command.spawn() {
        Ok(child) => Ending(child),
        Err(error) => return Ok(Err(format!("cannot be started: {error}"))),
    };
    let status = loop {
        limits.check()?;
        match child.0.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) => std::thread::sleep(TICK),
            Err(error) => return Ok(Err(format!("was lost: {error}"))),
        }
    };
    if !status.success() {
        let said = child.0.stderr.take().map(std::io::read_to_string).and_then(Result::ok).unwrap_or_default();
        let last = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default().trim().to_string();
        return Ok(Err(format!("{status}, {last}")));
    }
    Ok(std::fs::read_to_string(folder.join("fio.json")).map_err(|error| format!("left no result: {error}")))
}

/// A process that is ended where nobody waits for it any more.
struct Ending(Child);

impl Drop for Ending {
    fn drop(&mut self) {
        // It fails where the process has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Bytes per second of a direction in fio's JSON, before which there may be remarks.
fn rate(text: &str, direction: &str) -> Result<f64, String> {
    let json = text.find('{').map(|start| &text[start..]).unwrap_or_default();
    let value: Value = serde_json::from_str(json).map_err(|error| format!("its result is no JSON ({error})"))?;
    let job = &value["jobs"][0];
    if let Some(error) = job["error"].as_i64().filter(|error| *error != 0) {
        return Err(std::io::Error::from_raw_os_error(i32::try_from(error).unwrap_or(0)).to_string());
    }
    let rate = job[direction]["bw_bytes"].as_f64().filter(|rate| *rate > 0.0);
    rate.ok_or_else(|| format!("its result has no rate (jobs[0].{direction}.bw_bytes)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(size: u64, depth: usize) -> DiskLink {
        DiskLink {
            link: "disk".into(),
            pattern: "both".into(),
            size,
            depth,
            engine: "auto".into(),
            direct: None,
            file: 100 << 20,
            seconds: 0.25,
            fio: true,
            dir: "".into(),
        }
    }

    #[test]
    fn its_command_says_what_ours_does() {
        let words = |cell: &DiskLink, ours, direct, pattern, direction| {
            super::words(cell, engine(ours, direct), direct, pattern, direction, Path::new("/a:b")).join(" ")
        };
        let large = words(&cell(16 << 20, 8), "io_uring", true, "sequential", "write");
        for word in
            ["--bs=1048576", "--rw=write", "--iodepth=8", "--direct=1", "--ioengine=io_uring", "--size=100663296"]
        {
            assert!(large.contains(word), "{large}");
        }
        assert!(large.contains("--filename=/a\\:b/fio") && large.contains("--runtime=250ms"), "{large}");
        let small = words(&cell(65536, 4), "threads", true, "random", "read");
        for word in ["--bs=65536", "--rw=randread", "--iodepth=4", "--direct=1", "--ioengine=libaio"] {
            assert!(small.contains(word), "{small}");
        }
        let cached = words(&cell(1 << 20, 3), "threads", false, "sequential", "read");
        for word in ["--ioengine=psync", "--numjobs=3", "--direct=0", "--size=34603008", "--offset_increment=34603008"]
        {
            assert!(cached.contains(word), "{cached}");
        }
    }

    #[test]
    fn its_result_has_a_rate_or_a_reason() {
        let text =
            "a remark\n{\"jobs\": [{\"error\": 0, \"read\": {\"bw_bytes\": 0}, \"write\": {\"bw_bytes\": 2500}}]}";
        assert_eq!(rate(text, "write"), Ok(2500.0));
        assert!(rate(text, "read").unwrap_err().contains("jobs[0].read.bw_bytes"));
        assert!(rate("{\"jobs\": [{\"error\": 28}]}", "read").unwrap_err().contains("No space"));
        for text in ["", "no JSON", "{}"] {
            assert!(rate(text, "read").is_err());
        }
    }
}
