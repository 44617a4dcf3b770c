//! Flags as a configuration: the same keys, checks and resolution as a file's.

use super::args::{AttentionArgs, Common, GemmArgs};
use std::path::Path;
use toml::Value;
use zbench_config::kind::hint;
use zbench_config::{Axis, ConfigError, Document, Problem, Setting, keys};
use zbench_engine::formats::hf;

/// What `zbench gemm` measures where nothing is said.
const CUBES: [&str; 4] = ["256x256x256", "512x512x512", "1024x1024x1024", "2048x2048x2048"];
/// Types where nothing is said: what every machine trains in, and what trains fastest.
const TYPES: [&str; 2] = ["f32", "bf16"];
/// Sequences where nothing is said.
const LENGTHS: [&str; 3] = ["512", "1024", "2048"];

/// Flags and the keys that they stand for, where the names differ.
const NAMES: [(&str, &str); 9] = [
    ("file-size", "io.file"),
    ("model", "model.preset"),
    ("model", "model.path"),
    ("threads", "hardware.threads_per_rank"),
    ("iters", "bench.iterations"),
    ("kv-heads", "attention.kv_heads"),
    ("head-dim", "attention.head_dim"),
    ("micro-batch", "train.micro_batch"),
    ("seq-len", "train.seq_len"),
];

/// The flag that a key without a place in a file came from, or `--set`.
pub fn flag_of(key: &str, set: &[String]) -> String {
    let is_set = set.iter().any(|set| set.split('=').next().is_some_and(|name| name.trim() == key));
    let last = key.rsplit('.').next().unwrap_or(key);
    let named = NAMES.iter().find(|(_, of)| *of == key).map_or(last, |(flag, _)| flag);
    let sections =
        ["gemm.", "attention.", "bench.", "model.p", "train.", "hardware.", "checkpoint.", "parallel.", "io."];
    match is_set || !sections.iter().any(|s| key.starts_with(s)) {
        true => "--set".into(),
        false => format!("--{}", named.replace('_', "-")),
    }
}

/// A document that grows flag by flag.
pub(crate) struct Flags {
    document: Document,
    problems: Vec<Problem>,
}

impl Flags {
    pub(crate) fn new(suite: &str) -> Flags {
        let document = Document { path: suite.into(), has_product: true, ..Document::default() };
        let mut flags = Flags { document, problems: Vec::new() };
        flags.put("suite", "suite", &[suite]);
        flags
    }

    /// The values of a flag: none leaves the key out, several are an axis.
    pub(crate) fn put(&mut self, flag: &str, key: &str, values: &[impl AsRef<str>]) {
        let Some(key) = keys::find(key) else { return };
        let mut settings = Vec::new();
        for text in values {
            let text = text.as_ref().trim();
            let value = match key.kind {
                zbench_config::kind::Kind::Shape => Value::from(text),
                _ => zbench_config::bare(text),
            };
            match key.kind.check(&value) {
                Ok(()) => settings.push(Setting { value, place: None, from_grid: false }),
                Err(message) => self.problems.push(Problem {
                    source: format!("--{flag}"),
                    place: None,
                    key: String::new(),
                    message,
                }),
            }
        }
        match settings.len() {
            0 => {}
            1 => self.document.base.extend(settings.pop().map(|setting| (key.name, setting))),
            _ => self.document.axes.push(Axis { key: key.name, values: settings }),
        }
    }

    fn common(&mut self, common: &Common) {
        self.put("device", "hardware.device", &common.device);
        self.put("threads", "hardware.threads_per_rank", &common.threads);
        self.put("seconds", "bench.seconds", common.seconds.as_slice());
        self.put("iters", "bench.iterations", common.iters.as_slice());
        self.put("warmup", "bench.warmup", common.warmup.as_slice());
    }

    pub(crate) fn finish(mut self, set: &[String]) -> Result<Document, ConfigError> {
        if !self.problems.is_empty() {
            return Err(ConfigError(self.problems));
        }
        // --set is read where a file's is.
        let over = Document::parse(Path::new("--set"), "", set)?;
        for (key, setting) in over.base {
            self.document.axes.retain(|axis| axis.key != key);
            self.document.base.insert(key, setting);
        }
        Ok(self.document)
    }
}

/// What was given, else the default.
pub(crate) fn or<'a>(given: &'a [String], default: &'a [&'a str]) -> Vec<&'a str> {
    if given.is_empty() { default.to_vec() } else { given.iter().map(String::as_str).collect() }
}

/// `zbench gemm` without a file.
///
/// # Errors
/// A value that no key takes, with its flag.
pub fn gemm(arguments: &GemmArgs) -> Result<Document, ConfigError> {
    let mut flags = Flags::new("gemm");
    match &arguments.model {
        Some(model) => flags.put("model", model_key(model)?, &[model_value(model)]),
        None => flags.put("shape", "gemm.shape", &or(&arguments.shape, &CUBES)),
    }
    flags.put("seq-len", "train.seq_len", arguments.seq_len.as_slice());
    flags.put("micro-batch", "train.micro_batch", arguments.micro_batch.as_slice());
    flags.put("layout", "gemm.layout", &arguments.layout);
    // What --set says of a model's types is not contradicted by a default.
    let precision = arguments.common.run.set.iter().any(|set| set.trim_start().starts_with("precision."));
    match (&arguments.dtype[..], precision) {
        ([], true) => {}
        (given, _) => flags.put("dtype", "gemm.dtype", &or(given, &TYPES)),
    }
    flags.put("output", "gemm.output", arguments.output.as_slice());
    if arguments.accumulate {
        flags.put("accumulate", "gemm.accumulate", &["true"]);
    }
    flags.put("buffers", "gemm.buffers", arguments.buffers.as_slice());
    flags.common(&arguments.common);
    flags.finish(&arguments.common.run.set)
}

/// `zbench attention` without a file.
///
/// # Errors
/// As [`gemm`].
pub fn attention(arguments: &AttentionArgs) -> Result<Document, ConfigError> {
    let mut flags = Flags::new("attention");
    flags.put("batch", "attention.batch", &arguments.batch);
    flags.put("heads", "attention.heads", &arguments.heads);
    flags.put("kv-heads", "attention.kv_heads", &arguments.kv_heads);
    flags.put("head-dim", "attention.head_dim", &arguments.head_dim);
    flags.put("window", "attention.window", &arguments.window);
    flags.put("dtype", "attention.dtype", &or(&arguments.dtype, &TYPES));
    flags.put("seq-len", "attention.seq_len", &or(&arguments.seq_len, &LENGTHS));
    flags.put("pass", "attention.pass", arguments.pass.as_slice());
    flags.put("kernel", "attention.kernel", arguments.kernel.as_slice());
    flags.common(&arguments.common);
    flags.finish(&arguments.common.run.set)
}

/// Whether `--model` is a preset or a folder.
pub(crate) fn model_key(model: &str) -> Result<&'static str, ConfigError> {
    if hf::preset_names().any(|name| name == model) {
        return Ok("model.preset");
    }
    if Path::new(model).join("config.json").is_file() || is_config(model) {
        return Ok("model.path");
    }
    let names: Vec<&str> = hf::preset_names().collect();
    let message = format!(
        "\"{model}\" is no folder with config.json and no preset{}; there are {}",
        hint(model, &names),
        names.join(", ")
    );
    Err(ConfigError::about("--model", message))
}

fn is_config(model: &str) -> bool {
    Path::new(model).file_name().is_some_and(|name| name == "config.json") && Path::new(model).is_file()
}

/// The folder, where the file itself was named.
pub(crate) fn model_value(model: &str) -> String {
    match Path::new(model).parent().filter(|_| is_config(model)) {
        Some(folder) if folder.as_os_str().is_empty() => ".".into(),
        Some(folder) => folder.display().to_string(),
        None => model.into(),
    }
}
