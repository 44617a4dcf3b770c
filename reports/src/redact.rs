//! What must not leave a machine inside a record: secrets, and the names and addresses of hosts.
//!
//! Everything here errs on the side of leaving out too much: a value that only looks like a secret is lost, and nobody
//! is hurt; the other way round somebody may be.

use std::net::IpAddr;

/// Stands where something was taken out.
pub const REDACTED: &str = "<redacted>";

/// Parts of names of variables whose values are secret.
const SECRET: [&str; 8] = ["KEY", "TOKEN", "SECRET", "PASS", "CRED", "AUTH", "COOKIE", "PRIVATE"];
/// Whole words of a flag's or setting's name; `data.tokenizer` is none.
const SECRET_WORDS: [&str; 13] = [
    "KEY",
    "APIKEY",
    "TOKEN",
    "SECRET",
    "PASS",
    "PASSWORD",
    "PASSWD",
    "PASSPHRASE",
    "CRED",
    "CREDS",
    "CREDENTIAL",
    "CREDENTIALS",
    "AUTH",
];
/// How well-known services begin their tokens.
const TOKENS: [&str; 11] =
    ["ghp_", "gho_", "ghs_", "github_pat_", "glpat-", "hf_", "sk-", "xoxb-", "xoxp-", "AKIA", "eyJhbGciOi"];

/// A host's name as records state it: 8 hex digits that say whether two are the same, and no more.
pub fn host_hash(name: &str) -> String {
    blake3::hash(name.as_bytes()).to_hex()[..8].to_string()
}

/// Whether a variable of this name holds a secret.
pub fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    SECRET.iter().any(|part| name.contains(part))
}

/// Whether a value is a secret by its looks: an address with a password in it, or a token of a well-known service.
pub fn is_secret_value(value: &str) -> bool {
    without_secrets(value) != value
}

/// A text without passwords in addresses, tokens of well-known services, and values given to secret names
/// (`--token=…`, `--password …`, `API_KEY=…`).
pub fn without_secrets(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut value_follows = false;
    for piece in text.split_inclusive(char::is_whitespace) {
        let word = piece.trim_end_matches(char::is_whitespace);
        let space = &piece[word.len()..];
        if word.is_empty() {
            out.push_str(piece);
            continue;
        }
        match word.split_once('=') {
            _ if value_follows => out.push_str(REDACTED),
            Some((name, value)) if is_secret_word(name) && !value.is_empty() => {
                out.push_str(name);
                out.push('=');
                out.push_str(REDACTED);
            }
            _ => out.push_str(&without_tokens(&without_credentials(word))),
        }
        value_follows = word.starts_with('-') && !word.contains('=') && is_secret_word(word);
        out.push_str(space);
    }
    out
}

fn is_secret_word(name: &str) -> bool {
    name.split(|c: char| !c.is_ascii_alphanumeric())
        .any(|part| SECRET_WORDS.contains(&part.to_ascii_uppercase().as_str()))
}

/// `scheme://user:password@host` without what stands before the `@`.
fn without_credentials(word: &str) -> String {
    let mut out = String::new();
    let mut rest = word;
    while let Some(start) = rest.find("://") {
        let (before, after) = rest.split_at(start + 3);
        out.push_str(before);
        let authority = after.find(['/', '?', '#', '"', '\'', ',']).unwrap_or(after.len());
        match after[..authority].rfind('@') {
            Some(at) => {
                out.push_str(REDACTED);
                rest = &after[at..];
            }
            None => rest = after,
        }
    }
    out.push_str(rest);
    out
}

fn without_tokens(word: &str) -> String {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    map_words(word, is_part, |token| {
        // Eight characters after the beginning: `sk-1` is no token.
        let is_token = TOKENS.iter().any(|begin| token.starts_with(begin) && token.len() >= begin.len() + 8);
        is_token.then(|| REDACTED.to_string())
    })
}

/// A text in which the given names of hosts, and every address, stand as their hashes. Loopback addresses are nobody's
/// and stay.
pub fn without_hosts(text: &str, names: &[String]) -> String {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "._:-%".contains(c);
    map_words(text, is_part, |token| {
        let core = token.trim_end_matches(['.', ':']);
        let tail = &token[core.len()..];
        if let Some(hash) = hashed(core, names) {
            return Some(format!("{hash}{tail}"));
        }
        let (host, port) = core.rsplit_once(':')?;
        let hash = port.bytes().all(|b| b.is_ascii_digit()).then(|| hashed(host, names))??;
        Some(format!("{hash}:{port}{tail}"))
    })
}

/// The hash of a host's name or address; nothing where the word is neither.
fn hashed(word: &str, names: &[String]) -> Option<String> {
    let label = word.split('.').next().unwrap_or(word);
    if names.iter().any(|name| !name.is_empty() && (name == word || name == label)) {
        return Some(host_hash(word));
    }
    (is_address(word) || is_hardware_address(word)).then(|| host_hash(word))
}

fn is_address(word: &str) -> bool {
    let word = word.split('%').next().unwrap_or(word);
    word.parse::<IpAddr>().is_ok_and(|address| !address.is_loopback() && !address.is_unspecified())
}

/// `52:54:00:12:34:56`.
fn is_hardware_address(word: &str) -> bool {
    let mut parts = 0;
    word.split([':', '-']).all(|part| {
        parts += 1;
        part.len() == 2 && part.bytes().all(|b| b.is_ascii_hexdigit())
    }) && parts == 6
}

/// Replaces words made of some characters where `change` has something else for them.
fn map_words(text: &str, is_part: impl Fn(char) -> bool, change: impl Fn(&str) -> Option<String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        if end == 0 {
            let next = rest.find(&is_part).unwrap_or(rest.len());
            out.push_str(&rest[..next]);
            rest = &rest[next..];
            continue;
        }
        let word = &rest[..end];
        out.push_str(change(word).as_deref().unwrap_or(word));
        rest = &rest[end..];
    }
    out
}

/// The value of a variable as records state it: secrets left out, hosts and addresses hashed. `own` is this host's name.
pub fn variable(name: &str, value: &str, own: &str) -> String {
    const ABOUT_HOSTS: [&str; 6] = ["HOST", "ADDR", "NODELIST", "NODENAME", "_URI", "ENDPOINT"];
    if is_secret_name(name) || is_secret_value(value) {
        return REDACTED.to_string();
    }
    let upper = name.to_ascii_uppercase();
    if !value.is_empty() && ABOUT_HOSTS.iter().any(|part| upper.contains(part)) {
        return host_hash(value);
    }
    let is_part = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
    let names = map_words(value, is_part, |word| is_full_name(word).then(|| host_hash(word)));
    without_hosts(&names, &[own.to_string()])
}

/// `node7.cluster.example`: three labels or more that each begin with a letter; files and versions are none.
fn is_full_name(word: &str) -> bool {
    let labels: Vec<&str> = word.split('.').collect();
    let is_label = |label: &&str| label.bytes().next().is_some_and(|b| b.is_ascii_alphabetic());
    let last = labels.last().copied().unwrap_or_default();
    labels.len() >= 3
        && !word.contains('/')
        && labels.iter().all(is_label)
        && last.len() >= 2
        && last != "so"
        && last.bytes().all(|b| b.is_ascii_alphabetic())
}
