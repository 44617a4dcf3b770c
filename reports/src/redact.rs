//! What must not leave a machine inside a record: secrets, and the names and addresses of hosts.
//!
//! Secrets are known by their looks: what follows none of the known patterns stays. Everything here errs on the side of
//! leaving out too much: a value that only looks like a secret is lost, and nobody is hurt; the other way round somebody
//! may be. Numbers of tokens, names of tokenizers and the like are no secrets.

mod secrets;

pub use self::secrets::{is_secret_field, without_secrets};
use std::net::IpAddr;

/// Stands where something was taken out.
pub const REDACTED: &str = "<redacted>";

/// Parts of names of variables whose values are secret.
const SECRET: [&str; 8] = ["KEY", "TOKEN", "SECRET", "PASS", "CRED", "AUTH", "COOKIE", "PRIVATE"];

/// A host's name as records state it: 8 hex digits that say whether two are the same, and no more.
pub fn host_hash(name: &str) -> String {
    blake3::hash(name.as_bytes()).to_hex()[..8].to_string()
}

/// Whether a variable of this name holds a secret.
pub fn is_secret_name(name: &str) -> bool {
    // TOKENIZERS_PARALLELISM is a switch.
    let name = name.to_ascii_uppercase().replace("TOKENIZER", "");
    SECRET.iter().any(|part| name.contains(part))
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
    let is_byte = |part: &str| part.len() == 2 && part.bytes().all(|b| b.is_ascii_hexdigit());
    word.split([':', '-']).count() == 6 && word.split([':', '-']).all(is_byte)
}

/// Replaces words, which consist of characters that `is_part` accepts, where `change` has something else for them.
fn map_words(text: &str, is_part: impl Fn(char) -> bool, change: impl Fn(&str) -> Option<String>) -> String {
    let changed = |piece: &str| {
        let word = piece.trim_end_matches(|c| !is_part(c));
        change(word).map_or_else(|| piece.to_string(), |changed| changed + &piece[word.len()..])
    };
    text.split_inclusive(|c| !is_part(c)).map(changed).collect()
}

/// The value of a variable as records state it: secrets left out, hosts and addresses hashed. `own` is this host's name.
pub fn variable(name: &str, value: &str, own: &str) -> String {
    const ABOUT_HOSTS: [&str; 6] = ["HOST", "ADDR", "NODELIST", "NODENAME", "_URI", "ENDPOINT"];
    if is_secret_name(name) || without_secrets(value) != value {
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
