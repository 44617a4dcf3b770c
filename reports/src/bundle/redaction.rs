//! What is taken out of records before they leave the machine.

use serde_json::Value;

use crate::record::Record;
use crate::redact;

/// What is taken out. Known patterns of secrets always are.
#[derive(Debug, Clone, Default)]
pub struct Redaction {
    /// Names of hosts stay.
    keep_hosts: bool,
    /// Names that are known to be of hosts.
    hosts: Vec<String>,
}

impl Redaction {
    /// Known patterns of secrets are removed, and hosts hashed; `own` is this host's name.
    pub fn of_hosts(own: &str) -> Redaction {
        Redaction { keep_hosts: false, hosts: vec![own.to_string()] }
    }

    /// Known patterns of secrets are removed.
    pub fn of_secrets() -> Redaction {
        Redaction { keep_hosts: true, hosts: Vec::new() }
    }

    /// The same, with the hosts that records name beside their ranks.
    pub fn knowing(&self, records: &[Record]) -> Redaction {
        let mut known = self.clone();
        let ranks = records.iter().flat_map(|record| &record.ranks);
        for host in ranks.map(|rank| &rank.host).filter(|host| !is_hash(host)) {
            if !known.hosts.contains(host) {
                known.hosts.push(host.clone());
            }
        }
        known
    }

    /// What was done, in words for people.
    pub fn words(&self) -> &'static str {
        match self.keep_hosts {
            true => "known patterns of secrets removed, names of hosts kept",
            false => "known patterns of secrets removed, names of hosts hashed",
        }
    }

    /// What a manifest says.
    pub fn names(&self) -> Vec<String> {
        let names = if self.keep_hosts { &["secrets"][..] } else { &["secrets", "hosts"] };
        names.iter().map(|name| (*name).to_string()).collect()
    }

    /// A record's JSON. The configuration keeps its words, which would not be one without them, and so does the
    /// environment, in which a version may look like an address: hosts there were hashed when it was read.
    pub fn record(&self, mut record: Value) -> Value {
        const WITH_HOSTS: [&str; 5] = ["ranks", "notes", "outcome", "command", "unstated"];
        let Some(map) = record.as_object_mut() else { return record };
        for (key, value) in map.iter_mut() {
            let hosts = WITH_HOSTS.contains(&key.as_str()) || ["section", "settings", "pairs"].contains(&key.as_str());
            each_text(key, value, &|text| self.text(text, hosts));
        }
        record
    }

    /// A remark's JSON.
    pub fn remark(&self, mut remark: Value) -> Value {
        let Some(map) = remark.as_object_mut() else { return remark };
        for (key, value) in map.iter_mut() {
            each_text(key, value, &|text| self.text(text, key == "text"));
        }
        remark
    }

    fn text(&self, text: &str, hosts: bool) -> String {
        let text = redact::without_secrets(text);
        if hosts && !self.keep_hosts { redact::without_hosts(&text, &self.hosts) } else { text }
    }
}

/// Whether a name is a hash already.
fn is_hash(host: &str) -> bool {
    host.is_empty() || host.len() == 8 && host.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Changes every text in the value of a field, those of secret fields wholly, and the names of fields.
fn each_text(name: &str, value: &mut Value, change: &impl Fn(&str) -> String) {
    match value {
        Value::String(text) if redact::is_secret_field(name, text) => *text = redact::REDACTED.into(),
        Value::String(text) => *text = change(text),
        Value::Array(list) => list.iter_mut().for_each(|value| each_text(name, value, change)),
        Value::Object(map) => {
            let changed = |(name, mut value): (String, Value)| {
                each_text(&name, &mut value, change);
                (redact::without_secrets(&name), value)
            };
            *map = std::mem::take(map).into_iter().map(changed).collect();
        }
        _ => {}
    }
}
