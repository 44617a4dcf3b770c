//! Settings with `suite = "io"` become cells.

use super::{CopyCell, DeviceLink, DiskCell, DiskLink, Hardware, bytes};
use crate::bench::{BenchSpec, Specs};
use std::path::PathBuf;
use toml::Value;
use zbench_config::units;
use zbench_config::{Context, Refusal, Values};
use zbench_kernels::PAGE_BYTES;

/// Keys beside those of [io] that say something of this suite.
const COMMON: [&str; 4] = ["name", "question", "suite", "hardware.device"];

/// The cells of one combination: the file, the copies, or both.
///
/// # Errors
/// A key without effect, sizes that no disk transfers, a file too small for what is under way at a time.
pub fn specs(values: &Values, context: &Context) -> Result<Specs, Refusal> {
    let is_known = |key: &&&str| COMMON.contains(*key) || key.starts_with("io.");
    if let Some(key) = values.settings.keys().find(|key| !is_known(key)) {
        return Err(values.refuse(key, &["suite"], "has no effect where suite is \"io\"; leave it out"));
    }
    let link = values.text("io.link");
    let size = quantity(values, "io.size");
    if size == 0 || !size.is_multiple_of(PAGE_BYTES) {
        let below = (size / PAGE_BYTES).max(1) * PAGE_BYTES;
        let message = format!("is {size} bytes, and disks transfer multiples of {PAGE_BYTES}; write {below}");
        return Err(values.refuse("io.size", &[], message));
    }
    let seconds = values.real("io.seconds");
    let mut specs: Vec<Box<dyn BenchSpec>> = Vec::new();
    if link != "device" {
        specs.push(Box::new(disk(values, context, size, seconds)?));
    }
    if link != "disk" {
        let device = match values.text("hardware.device").as_str() {
            "cuda" => "cuda",
            _ => "cpu",
        };
        specs.push(Box::new(CopyCell {
            suite: "io".into(),
            io: DeviceLink { link: "device".into(), size, seconds },
            hardware: Hardware { device: device.into() },
        }));
    }
    Ok((specs, None))
}

fn disk(values: &Values, context: &Context, size: u64, seconds: f64) -> Result<DiskCell, Refusal> {
    let dir = match values.given_text("io.dir") {
        Some(dir) => {
            let dir = context.folder.join(dir);
            std::path::absolute(&dir).unwrap_or(dir)
        }
        None => PathBuf::new(),
    };
    let io = DiskLink {
        link: "disk".into(),
        pattern: values.text("io.pattern"),
        size,
        depth: values.count("io.depth"),
        engine: values.text("io.engine"),
        direct: values.given("io.direct").and_then(Value::as_bool),
        file: quantity(values, "io.file"),
        seconds,
        fio: values.is("io.fio"),
        dir,
    };
    if io.slots() < io.at_a_time() {
        let least = size.saturating_mul(io.at_a_time() as u64);
        let message = format!(
            "is {}, and {} tensors of {} are under way at a time for io.depth = {}; write {} or more",
            bytes(io.file),
            io.at_a_time(),
            bytes(size),
            io.depth,
            bytes(least)
        );
        return Err(values.refuse("io.file", &["io.size", "io.depth"], message));
    }
    Ok(DiskCell { suite: "io".into(), io })
}

/// A size that is stated, or its default, in bytes.
fn quantity(values: &Values, key: &str) -> u64 {
    match values.value(key) {
        Value::Integer(number) => u64::try_from(number).unwrap_or_default(),
        Value::Float(number) => number as u64,
        Value::String(text) => units::bytes(&text).unwrap_or_default(),
        _ => 0,
    }
}
