//! The lines of a file of documents, and what each holds. A line is read as a whole, so its length is limited; the file is
//! not, since only one line is in memory at a time.

use super::DataError;
use super::error::open_file;
use crate::config::{DocumentFile, DocumentForm, Template};
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};

pub const MOST_LINE_BYTES: usize = 64 << 20;

/// A part of a document that is tokenized by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub text: String,
    /// Whether its tokens have a loss where answers alone have one.
    pub answer: bool,
}

pub(super) struct Lines<'a> {
    file: &'a DocumentFile,
    template: Template,
    key: &'static str,
    reader: BufReader<File>,
    line: u64,
    buffer: Vec<u8>,
}

impl<'a> Lines<'a> {
    pub fn open(file: &'a DocumentFile, template: Template, key: &'static str) -> Result<Lines<'a>, DataError> {
        let reader = BufReader::with_capacity(64 << 10, open_file(&file.path, key)?);
        Ok(Lines { file, template, key, reader, line: 0, buffer: Vec::new() })
    }

    /// The next document's parts; whether the token behind it is a part of an answer.
    pub fn next(&mut self) -> Result<Option<(Vec<Segment>, bool)>, DataError> {
        loop {
            self.buffer.clear();
            self.line += 1;
            let mut limited = (&mut self.reader).take(MOST_LINE_BYTES as u64 + 1);
            let read = limited.read_until(b'\n', &mut self.buffer);
            let path = &self.file.path;
            read.map_err(|source| DataError::io("read", path, self.key, source))?;
            if self.buffer.is_empty() {
                return Ok(None);
            }
            let wrong = |reason: String| DataError::Line { path: path.clone(), line: self.line, reason };
            if self.buffer.len() > MOST_LINE_BYTES {
                let most = MOST_LINE_BYTES >> 20;
                return Err(wrong(format!(
                    "is longer than {most} MiB; split the document, or give one JSON object per line"
                )));
            }
            let text = std::str::from_utf8(&self.buffer).map_err(|error| {
                wrong(format!("is not UTF-8: byte {} of the line starts no character", error.valid_up_to()))
            })?;
            let text = if self.line == 1 { text.trim_start_matches('\u{feff}') } else { text };
            if text.trim().is_empty() {
                continue;
            }
            let value: Value = serde_json::from_str(text).map_err(|error| {
                let said = error
                    .to_string()
                    .replace("at line 1 column", "at column")
                    .replace("at line 2 column 0", "at its end");
                wrong(format!("is not JSON: {said}; every line must be one JSON object"))
            })?;
            return document(&value, self.file, self.template).map(Some).map_err(wrong);
        }
    }
}

/// The parts of a line's document. `Err` is what is wrong with it.
fn document(value: &Value, file: &DocumentFile, template: Template) -> Result<(Vec<Segment>, bool), String> {
    let Value::Object(object) = value else {
        return Err(format!("is {}; every line must be a JSON object", kind(value)));
    };
    let there = || {
        let keys: Vec<String> = object.keys().take(8).map(|key| format!("{key:?}")).collect();
        if keys.is_empty() { "the object is empty".into() } else { format!("it has {}", keys.join(", ")) }
    };
    let text = |key: &str, missing: &dyn Fn() -> String| match object.get(key) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(other) => Err(format!("has {} for {key:?}; it must be a text", kind(other))),
        None => Err(missing()),
    };
    match file.form {
        DocumentForm::Jsonl => {
            let missing = || {
                format!(
                    "has no {:?}: {}; name the key of the text (data.field, or field in the file's table of data.files)",
                    file.field,
                    there()
                )
            };
            Ok((vec![Segment { text: text(&file.field, &missing)?, answer: true }], true))
        }
        DocumentForm::Chat => match object.get("messages") {
            Some(Value::Array(messages)) if messages.is_empty() => Err("has an empty list of messages".into()),
            Some(Value::Array(messages)) => conversation(messages, template).map(|segments| (segments, false)),
            Some(other) => Err(format!("has {} for \"messages\"; it must be a list", kind(other))),
            None => {
                let missing = |key: &str| {
                    format!(
                        "has no {key:?}: {}; a conversation is {{\"messages\": [{{\"role\", \"content\"}}, …]}} or {{\"prompt\", \"completion\"}}",
                        there()
                    )
                };
                let prompt = text("prompt", &|| missing("messages"))?;
                let completion = text("completion", &|| missing("completion"))?;
                Ok((vec![Segment { text: prompt, answer: false }, Segment { text: completion, answer: true }], true))
            }
        },
    }
}

/// A conversation in a template. What is before an answer is one part, the answer with its end mark another.
fn conversation(messages: &[Value], template: Template) -> Result<Vec<Segment>, String> {
    let mut segments: Vec<Segment> = Vec::new();
    let mut add = |text: &str, answer: bool| match segments.last_mut() {
        Some(last) if last.answer == answer => last.text.push_str(text),
        _ => segments.push(Segment { text: text.into(), answer }),
    };
    for (number, message) in messages.iter().enumerate() {
        let field = |key: &str| match message.get(key) {
            Some(Value::String(text)) => Ok(text.as_str()),
            Some(other) => Err(format!("has {} for {key:?} of message {number}; it must be a text", kind(other))),
            None if message.is_object() => Err(format!("has no {key:?} in message {number}")),
            None => Err(format!(
                "has {} for message {number}; it must be an object with \"role\" and \"content\"",
                kind(message)
            )),
        };
        let (role, content) = (field("role")?, field("content")?);
        if role.is_empty() || role.chars().any(|c| c.is_control() || c == '<' || c == '>') {
            return Err(format!(
                "has {role:?} for the role of message {number}; it must be a word, such as user or assistant"
            ));
        }
        let answer = role == "assistant";
        match template {
            Template::ChatMl => {
                add(&format!("<|im_start|>{role}\n"), false);
                add(&format!("{content}<|im_end|>"), answer);
                add("\n", false);
            }
            Template::Plain => {
                add(&format!("{role}:"), false);
                add(&format!(" {content}\n"), answer);
            }
        }
    }
    Ok(segments)
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
