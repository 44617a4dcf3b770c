//! Configurations of other programs: DeepSpeed's JSON, accelerate's YAML, torchtitan's TOML and Hugging Face's config.json become a zbench
//! configuration, and a cell becomes one of theirs. Mapping returns values; what is printed is for `commands`.
//!
//! [`read`] tells the formats apart and gives a [`Draft`]: a row for each key of the file with its [`Verdict`], and the
//! settings that came of them. [`toml`] writes the settings down and reads them back; [`export`] goes the other way.

pub mod accelerate;
pub mod deepspeed;
pub mod draft;
pub mod export;
pub mod huggingface;
pub mod json;
pub mod keys;
pub mod model;
pub mod node;
pub mod table;
pub mod toml;
pub mod torchtitan;
pub mod yaml;

pub use draft::{Draft, Options};

use node::Node;
use std::io::Read;
use std::path::Path;
use zbench_config::{ConfigError, Place, Problem};

/// What became of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It became settings.
    Used,
    /// It says what is so anyway.
    Default,
    /// It changes nothing that is measured or predicted.
    Ignored,
    /// It changes training there, and there is nothing like it here.
    NoEquivalent,
}

impl Verdict {
    /// As tables have it.
    pub const fn name(self) -> &'static str {
        match self {
            Verdict::Used => "used",
            Verdict::Default => "default",
            Verdict::Ignored => "ignored",
            Verdict::NoEquivalent => "no equivalent",
        }
    }
}

/// One key of the one side, and what became of it on the other.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The key, with those that it stands under in front.
    pub key: String,
    /// Its value.
    pub value: serde_json::Value,
    /// What became of it.
    pub verdict: Verdict,
    /// The keys and values of the other side.
    pub becomes: Vec<(String, String)>,
    /// Why, in a sentence.
    pub reason: String,
    /// Where it stands, in a file that has places.
    pub place: Option<Place>,
}

/// The formats that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// DeepSpeed's JSON.
    DeepSpeed,
    /// accelerate's YAML, or its JSON.
    Accelerate,
    /// A model's config.json.
    HuggingFace,
    /// torchtitan's TOML.
    Torchtitan,
}

impl Format {
    /// As people call it.
    pub const fn name(self) -> &'static str {
        match self {
            Format::DeepSpeed => "DeepSpeed configuration",
            Format::Accelerate => "accelerate configuration",
            Format::HuggingFace => "Hugging Face config.json",
            Format::Torchtitan => "torchtitan configuration",
        }
    }
}

/// A configuration is some kilobytes.
const MOST_BYTES: u64 = 4 << 20;

/// What was looked for in a file that is nothing of it.
const WANTED: &str = "it has neither a key of DeepSpeed (zero_optimization, train_batch_size, fp16, bf16, optimizer, …), nor \
                      distributed_type or fsdp_config of accelerate, nor [parallelism] of torchtitan, nor model_type of a Hugging Face config.json; name one of those files";

/// Reads a file of any format that is known.
///
/// # Errors
/// It cannot be read, is nothing that is known, or has keys that are unknown, deprecated, of a wrong type, or that contradict
/// each other: all of them, each with its place.
pub fn read(path: &Path, options: &Options) -> Result<Draft, ConfigError> {
    let source = path.display().to_string();
    let bytes = file(path).map_err(|message| ConfigError::about(&source, message))?;
    parse(&source, &bytes, options)
}

/// The bytes of a file, which must be one and not too long.
///
/// # Errors
/// What it is instead, in words.
pub fn file(path: &Path) -> Result<Vec<u8>, String> {
    const INSTEAD: &str = "name a DeepSpeed JSON, an accelerate YAML, a torchtitan TOML or a config.json";
    let about = std::fs::metadata(path).map_err(|error| format!("cannot be read: {error}; {INSTEAD}"))?;
    if about.is_dir() {
        return Err(format!("cannot be read: it is a folder; {INSTEAD}"));
    }
    if about.len() > MOST_BYTES {
        return Err(format!("has {} bytes, and a configuration has some thousands; {INSTEAD}", about.len()));
    }
    let mut bytes = Vec::new();
    let opened = std::fs::File::open(path).and_then(|file| file.take(MOST_BYTES + 1).read_to_end(&mut bytes));
    opened.map_err(|error| format!("cannot be read: {error}; {INSTEAD}"))?;
    // A device has no length until it is read.
    match bytes.len() as u64 > MOST_BYTES {
        true => Err(format!("has more than {MOST_BYTES} bytes, and a configuration has some thousands; {INSTEAD}")),
        false => Ok(bytes),
    }
}

/// Reads the bytes of a file; `source` names it in errors.
///
/// # Errors
/// As [`read`].
pub fn parse(source: &str, bytes: &[u8], options: &Options) -> Result<Draft, ConfigError> {
    let about = |message: &str| ConfigError::about(source, message);
    let text = utf8(bytes).map_err(|message| about(&message))?;
    let (root, departure) = match tree(source, text) {
        Ok(read) => read,
        // Such a file may be neither JSON nor YAML.
        Err(error) => {
            return Err(of_another(&quoted_keys(text))
                .or_else(|| of_template(text))
                .map_or(error, |words| about(&words)));
        }
    };
    let Some(entries) = root.table() else {
        return Err(about(&format!("holds {} and no keys: {WANTED}", root.what())));
    };
    let names: Vec<&str> = entries.iter().map(|(key, _)| key.name.as_str()).collect();
    let format = recognise(&names);
    if let Some(words) = of_another(&names).filter(|_| !matches!(format, Some(Format::HuggingFace))) {
        return Err(about(&words));
    }
    if let (Some(Format::Accelerate | Format::HuggingFace), Some(wrong)) = (format, departure) {
        return Err(not_json(source, wrong));
    }
    match format {
        Some(Format::DeepSpeed) => deepspeed::import(source, &root, options),
        Some(Format::Accelerate) => accelerate::import(source, &root, options),
        Some(Format::HuggingFace) => huggingface::import(source, &root, options),
        Some(Format::Torchtitan) => torchtitan::import(source, &root, options),
        None => Err(about(&format!("is no configuration that zbench reads: {WANTED}"))),
    }
}

/// The text of a file.
///
/// # Errors
/// What it is instead, in words.
fn utf8(bytes: &[u8]) -> Result<&str, String> {
    if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
        return Err("is UTF-16; save it as UTF-8".into());
    }
    let bytes = bytes.strip_prefix(&[0xef, 0xbb, 0xbf]).unwrap_or(bytes);
    let text = std::str::from_utf8(bytes).map_err(|error| {
        format!("is not UTF-8 text (byte {}); name a text file, or save it as UTF-8", error.valid_up_to())
    })?;
    if let Some(at) = text.find('\0') {
        return Err(format!("is binary (a zero at byte {at}); name a text file"));
    }
    if text.trim().is_empty() {
        return Err(format!("is empty: {WANTED}"));
    }
    Ok(text)
}

/// What another program's file is, known by keys at its top, and what to do instead.
fn of_another(names: &[&str]) -> Option<String> {
    let has = |key: &str| names.contains(&key);
    let neox = ["pipe_parallel_size", "pipe-parallel-size"];
    let (program, instead) = if neox.into_iter().any(has) {
        ("GPT-NeoX's own file", "state parallel.pipeline, parallel.tensor and its zero_optimization in a zbench file")
    } else if has("base_model") && !has("distributed_type") {
        let instead = "put its fsdp_config and fsdp_version into an accelerate file with distributed_type: FSDP, or name the \
                       DeepSpeed JSON that its key deepspeed names";
        ("axolotl's own file", instead)
    } else {
        return None;
    };
    Some(format!("is {program}, which zbench does not read; {instead}"))
}

/// That a text is a template, of which a program makes files.
fn of_template(text: &str) -> Option<String> {
    let place = |open: &str, close: &str, at: usize| {
        let rest: String = text[at..].chars().take(80).take_while(|c| *c != '\n').collect();
        let end = rest[open.len()..].find(close)? + open.len() + close.len();
        Some(rest[..end].to_string())
    };
    let marks = [("${", "}"), ("{{", "}}")];
    let places = |(open, close): (&'static str, &'static str)| {
        text.match_indices(open).filter_map(move |(at, _)| place(open, close, at))
    };
    let all: Vec<String> = marks.into_iter().flat_map(places).collect();
    let first = all.first()?;
    let count = if all.len() == 1 { "a placeholder".to_string() } else { format!("{} placeholders", all.len()) };
    Some(format!("is a template with {count}, as {first}; fill them in, and name what comes of it"))
}

/// Quoted keys, at whatever depth, of a text that is neither JSON nor YAML. Comments have none.
fn quoted_keys(text: &str) -> Vec<&str> {
    let lines = text.lines().filter(|line| !line.trim_start().starts_with(['#', '/']));
    let keys = lines.flat_map(|line| line.split(',')).filter_map(|part| {
        let (key, _) = part.split_once(':')?;
        let key = key.trim().trim_start_matches('{').trim_start();
        key.strip_prefix('"')?.strip_suffix('"')
    });
    keys.collect()
}

/// Whether a file has sections that only torchtitan's files have.
fn is_torchtitan(has: &dyn Fn(&str) -> bool) -> bool {
    has("parallelism") || has("training") && (has("job") || has("model"))
}

/// JSON where it begins like it, else YAML. The second is where JSON is Hjson.
fn tree(source: &str, text: &str) -> Result<(Node, Option<json::ParseError>), ConfigError> {
    let first = json::first(text);
    let toml = || ::toml::from_str::<::toml::Table>(text).ok().filter(|table| !table.is_empty());
    let read = if matches!(first, Some('{' | '"')) || (first == Some('[') && toml().is_none()) {
        json::parse(text)
    } else if let Some(table) = toml() {
        if let Some(root) = torchtitan::tree(text).filter(|_| is_torchtitan(&|key| table.contains_key(key))) {
            return Ok((root, None));
        }
        let message =
            "is TOML, which `zbench plan` and `zbench run` read as it is; `import` is for files of other programs";
        return Err(ConfigError::about(source, message));
    } else {
        yaml::parse(text).map(|node| (node, None))
    };
    read.map_err(|wrong| if first == Some('{') { not_json(source, wrong) } else { problem(source, wrong) })
}

/// A text of which JSON alone is read.
fn json_tree(source: &str, text: &str) -> Result<Node, ConfigError> {
    match tree(source, text)? {
        (_, Some(wrong)) => Err(not_json(source, wrong)),
        (root, None) => Ok(root),
    }
}

fn not_json(source: &str, wrong: json::ParseError) -> ConfigError {
    let message = if wrong.key.is_empty() { format!("not JSON: {}", wrong.message) } else { wrong.message };
    problem(source, json::ParseError { message, ..wrong })
}

fn problem(source: &str, wrong: json::ParseError) -> ConfigError {
    let json::ParseError { place, key, message } = wrong;
    ConfigError(vec![Problem { source: source.into(), place: Some(place), key, message }])
}

/// One line of text without anything that would end a comment.
fn one_line(text: &str) -> String {
    text.replace(|c: char| c.is_control(), " ")
}

/// By keys, not by the name of the file. Where no key is one, the nearest spelling decides, so that the error is about the key.
fn recognise(names: &[&str]) -> Option<Format> {
    // No configuration has more keys at its top, and spellings are dear.
    let names = &names[..names.len().min(1000)];
    let has = |wanted: &[&str]| names.iter().any(|name| wanted.contains(name));
    if has(&["distributed_type", "fsdp_config", "compute_environment", "deepspeed_config"]) {
        return Some(Format::Accelerate);
    }
    let is_old_gpt2 = ["n_embd", "n_layer", "n_head"].iter().all(|key| has(&[key]));
    if has(&["model_type", "architectures"]) || is_old_gpt2 {
        return Some(Format::HuggingFace);
    }
    if is_torchtitan(&|key| has(&[key])) {
        return Some(Format::Torchtitan);
    }
    let deepspeed = || keys::DEEPSPEED.iter().map(|spec| spec.key).filter(|key| !key.contains('.'));
    let is_near = |name: &&str, key: &str| (5..64).contains(&name.len()) && strsim::osa_distance(name, key) <= 2;
    let any = |is: &dyn Fn(&&str, &str) -> bool| names.iter().any(|name| deepspeed().any(|key| is(name, key)));
    if any(&|name, key| *name == key) || any(&is_near) {
        return Some(Format::DeepSpeed);
    }
    let of_accelerate = ["distributed_type", "fsdp_config", "mixed_precision", "num_processes"];
    let accelerate = names.iter().any(|name| of_accelerate.iter().any(|key| is_near(name, key)));
    accelerate.then_some(Format::Accelerate)
}
