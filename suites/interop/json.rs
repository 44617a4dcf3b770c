//! JSON (RFC 8259) with the place of every key and value, which serde_json does not keep, and of Hjson, by which DeepSpeed reads
//! its files, what cannot be misread: comments, commas that are missing at the end of a line or stand before a bracket, keys
//! without quotes, single quotes. Stricter where files of people go wrong in silence: a key twice, NaN and Infinity, texts
//! without quotes, numbers without end and nesting without end are errors.

use super::node::{Key, Node, Value};
use std::collections::HashMap;
use zbench_config::Place;

/// What a text begins with behind blanks and comments.
pub fn first(text: &str) -> Option<char> {
    let mut rest = text.trim_start();
    while rest.starts_with('#') || rest.starts_with("//") || rest.starts_with("/*") {
        let end = if rest.starts_with("/*") { rest.find("*/").map(|end| end + 2) } else { rest.find('\n') };
        rest = rest[end.unwrap_or(rest.len())..].trim_start();
    }
    rest.chars().next()
}

/// Deeper than any configuration; far from the end of the stack.
const MOST_DEPTH: usize = 64;

/// What is wrong, and where.
#[derive(Debug, PartialEq)]
pub struct Wrong {
    /// Where.
    pub place: Place,
    /// The key, when it is about one.
    pub key: String,
    /// What is wrong and what would be right.
    pub message: String,
}

/// Reads a text; beside it the first place where it is Hjson and no JSON, which programs other than DeepSpeed refuse.
///
/// # Errors
/// It is neither, or holds what these files cannot mean.
pub fn parse(text: &str) -> Result<(Node, Option<Wrong>), Wrong> {
    let mut reader = Reader { text, at: 0, line: 1, column: 1, departure: None };
    reader.space();
    let node = reader.node(0)?;
    reader.space();
    match reader.peek() {
        None => Ok((node, reader.departure)),
        Some(_) => Err(reader.wrong("the file goes on after its closing bracket; write one value")),
    }
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    line: usize,
    /// Counted in characters from 1, and kept as the reader goes: a minified file is one long line.
    column: usize,
    /// Where it left JSON for Hjson.
    departure: Option<Wrong>,
}

impl Reader<'_> {
    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn place(&self) -> Place {
        Place { line: self.line, column: self.column }
    }

    fn wrong(&self, message: impl Into<String>) -> Wrong {
        Wrong { place: self.place(), key: String::new(), message: message.into() }
    }

    /// Hjson from here on.
    fn depart(&mut self, message: &str) {
        if self.departure.is_none() {
            self.departure = Some(self.wrong(message));
        }
    }

    /// What stands here, for a message.
    fn here(&self) -> String {
        match self.peek() {
            None => "the end of the file".into(),
            Some(c) => format!("`{}`", c.escape_debug()),
        }
    }

    fn step(&mut self, c: char) {
        self.at += c.len_utf8();
        (self.line, self.column) = if c == '\n' { (self.line + 1, 1) } else { (self.line, self.column + 1) };
    }

    /// Over a word or a number, which have no line's end.
    fn skip(&mut self, word: &str) {
        self.at += word.len();
        self.column += word.chars().count();
    }

    /// Over blanks and comments.
    fn space(&mut self) {
        loop {
            while let Some(c @ (' ' | '\t' | '\r' | '\n')) = self.peek() {
                self.step(c);
            }
            let rest = self.rest();
            let comment = if rest.starts_with('#') || rest.starts_with("//") {
                rest.find('\n').unwrap_or(rest.len())
            } else if rest.starts_with("/*") {
                // One without an end reaches to that of the file, and what is missing behind it is told.
                rest.find("*/").map_or(rest.len(), |end| end + 2)
            } else {
                return;
            };
            let comment = rest[..comment].to_string();
            self.depart("JSON has no comments; take it out");
            comment.chars().for_each(|c| self.step(c));
        }
    }

    fn take(&mut self, wanted: char) -> bool {
        let found = self.peek() == Some(wanted);
        if found {
            self.step(wanted);
        }
        found
    }

    fn node(&mut self, depth: usize) -> Result<Node, Wrong> {
        if depth > MOST_DEPTH {
            return Err(self.wrong(format!("nested deeper than {MOST_DEPTH}; no configuration is")));
        }
        let place = self.place();
        let value = match self.peek() {
            Some('{') => self.object(depth)?,
            Some('[') => self.list(depth)?,
            Some('"' | '\'') => Value::Text(self.string()?),
            Some('-' | '0'..='9') => self.number()?,
            _ => self.word()?,
        };
        Ok(Node { value, place })
    }

    fn word(&mut self) -> Result<Value, Wrong> {
        let word: String = self.rest().chars().take_while(|c| c.is_alphanumeric() || *c == '_').take(40).collect();
        let value = match word.as_str() {
            "true" => Value::Bool(true),
            "false" => Value::Bool(false),
            "null" => Value::Null,
            "True" | "False" | "None" => {
                let right = if word == "None" { "null".to_string() } else { word.to_lowercase() };
                return Err(self.wrong(format!("{word} is Python's; write {right}")));
            }
            "NaN" | "Infinity" | "inf" | "nan" => {
                return Err(self.wrong(format!("{word} is no number of a configuration; write a finite one")));
            }
            "" => return Err(self.wrong(format!("{} where a value belongs; write one", self.here()))),
            _ => return Err(self.wrong(format!("`{word}` is no JSON; write a text in double quotes, or a number"))),
        };
        self.skip(&word);
        Ok(value)
    }

    fn number(&mut self) -> Result<Value, Wrong> {
        let place = self.place();
        let wrong = |message: String| Wrong { place, key: String::new(), message };
        let text: String =
            self.rest().chars().take_while(|c| c.is_ascii_alphanumeric() || "+-._".contains(*c)).collect();
        let digits = text.strip_prefix('-').unwrap_or(&text);
        let leading_zero = digits.len() > 1 && digits.starts_with('0') && digits.as_bytes()[1].is_ascii_digit();
        let shown: String = text.chars().take(40).collect();
        if digits == "Infinity" {
            return Err(wrong(format!("{shown} is no number of a configuration; write a finite one")));
        }
        // What Rust reads and JSON does not: a leading zero, `1.`, `.5`.
        let odd = leading_zero || digits.ends_with('.') || digits.contains(".e") || digits.contains(".E");
        let number = text.parse::<f64>().ok().filter(|_| !odd && digits.starts_with(|c: char| c.is_ascii_digit()));
        let Some(number) = number else {
            return Err(wrong(format!("`{shown}` is no number; write one as 1e9 or 0.5")));
        };
        if !number.is_finite() {
            return Err(wrong(format!("{shown} is too large; write a finite number")));
        }
        self.skip(&text);
        Ok(text.parse::<i64>().map_or(Value::Float(number), Value::Int))
    }

    fn list(&mut self, depth: usize) -> Result<Value, Wrong> {
        let mut items = Vec::new();
        self.take('[');
        self.space();
        if self.take(']') {
            return Ok(Value::List(items));
        }
        loop {
            items.push(self.node(depth + 1)?);
            if self.ends(']')? {
                return Ok(Value::List(items));
            }
        }
    }

    fn object(&mut self, depth: usize) -> Result<Value, Wrong> {
        let mut entries: Vec<(Key, Node)> = Vec::new();
        let mut lines: HashMap<String, usize> = HashMap::new();
        self.take('{');
        self.space();
        if self.take('}') {
            return Ok(Value::Table(entries));
        }
        loop {
            let place = self.place();
            let name = self.key()?;
            self.space();
            if !self.take(':') {
                return Err(self.wrong(format!("{} where a colon belongs behind \"{name}\"", self.here())));
            }
            self.space();
            let value = self.node(depth + 1).map_err(|wrong| under(&name, wrong))?;
            if let Some(first) = lines.insert(name.clone(), place.line) {
                let message = format!("is given twice, first in line {first}; keep one of them");
                return Err(Wrong { place, key: name, message });
            }
            entries.push((Key { name, place }, value));
            if self.ends('}')? {
                return Ok(Value::Table(entries));
            }
        }
    }

    /// A key in quotes or, in Hjson, without.
    fn key(&mut self) -> Result<String, Wrong> {
        if let Some('"' | '\'') = self.peek() {
            return self.string();
        }
        let is_end = |c: char| c.is_whitespace() || c.is_control() || ",:[]{}\"'#/".contains(c);
        let name: String = self.rest().chars().take_while(|c| !is_end(*c)).collect();
        if name.is_empty() {
            return Err(self.wrong(format!("{} where a key in double quotes belongs", self.here())));
        }
        self.depart("JSON has its keys in double quotes; write them");
        self.skip(&name);
        Ok(name)
    }

    /// Behind a value: whether the list or table ends here, or goes on behind a comma or, in Hjson, behind the end of the line.
    fn ends(&mut self, close: char) -> Result<bool, Wrong> {
        let line = self.line;
        self.space();
        if self.take(close) {
            return Ok(true);
        }
        if !self.take(',') {
            let is_open = self.line == line || matches!(self.peek(), None | Some(':' | ']' | '}'));
            let message = format!("{} where a comma or `{close}` belongs", self.here());
            if is_open {
                return Err(self.wrong(message));
            }
            self.depart(&message);
            return Ok(false);
        }
        self.space();
        if self.peek() == Some(close) {
            self.depart(&format!("a comma in front of `{close}`; take it out"));
        }
        Ok(self.take(close))
    }

    fn string(&mut self) -> Result<String, Wrong> {
        let from = self.at;
        let quote = self.peek().unwrap_or('"');
        if quote == '\'' {
            self.depart("JSON has its texts in double quotes; write \"…\"");
            if self.rest().starts_with("'''") {
                return Err(self.wrong("a text of several lines, which no key wants; write \"…\""));
            }
        }
        self.take(quote);
        loop {
            match self.peek() {
                None => {
                    return Err(self.wrong(format!("the file ends inside a text; close it with {}", named(quote))));
                }
                Some(c) if c == quote => break,
                Some('\n') => return Err(self.wrong("a text goes over the end of its line; close it, or write \\n")),
                Some('\\') => {
                    self.step('\\');
                    if let Some(escaped) = self.peek() {
                        self.step(escaped);
                    }
                }
                Some(c) => self.step(c),
            }
        }
        let inner = &self.text[from + 1..self.at];
        // Escapes are serde_json's work, which knows double quotes.
        let text = match quote {
            '\'' => format!("\"{}\"", requoted(inner)),
            _ => format!("\"{inner}\""),
        };
        self.take(quote);
        serde_json::from_str(&text).map_err(|_| {
            self.wrong(
                "a text with an escape that JSON does not have, or a control character; write \\\\ for a backslash",
            )
        })
    }
}

/// What stood in single quotes for double ones.
fn requoted(inner: &str) -> String {
    let mut text = String::new();
    let mut chars = inner.chars();
    while let Some(c) = chars.next() {
        match (c, if c == '\\' { chars.next() } else { None }) {
            ('\\', Some('\'')) => text.push('\''),
            ('\\', Some(escaped)) => text.extend(['\\', escaped]),
            ('"', _) => text.push_str("\\\""),
            _ => text.push(c),
        }
    }
    text
}

fn named(quote: char) -> &'static str {
    if quote == '"' { "a double quote" } else { "a single quote" }
}

/// The error of a value with its key in front.
fn under(name: &str, wrong: Wrong) -> Wrong {
    let key = if wrong.key.is_empty() { name.to_string() } else { format!("{name}.{}", wrong.key) };
    Wrong { key, ..wrong }
}
