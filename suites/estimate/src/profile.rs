//! Machine profiles: TOML files that say what a device and a node of it can do, each figure with its source. Those under
//! configs/machines are compiled in. docs/machines.md describes every key.

use crate::catalogue::Catalogue;
pub use crate::catalogue::ProfileError;
use crate::machine::Machine;
use std::collections::BTreeMap;
use std::sync::LazyLock;
use toml::{Table, Value};

mod read;
#[cfg(test)]
mod tests;

/// What a profile says.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Its name: the file's, without the ending.
    pub name: String,
    /// What the file says of itself.
    pub about: String,
    /// `cuda` or `cpu`.
    pub device: String,
    /// Bytes of a device that a program can have.
    pub memory: Option<u64>,
    /// The machine; nothing where the profile has no figures of speed (see [`Profile::machine`]).
    pub machine: Option<Machine>,
    /// Where each figure comes from, by its place in the file: `compute.bf16.peak`.
    pub sources: BTreeMap<String, String>,
    /// Fits that `zbench allreduce --save` wrote, as they stand there.
    pub collectives: Table,
    /// Ceilings that `zbench calibrate` wrote, as they stand there.
    pub ceilings: Table,
    /// All of it, bases included.
    table: Table,
}

/// Texts of the profiles that are compiled in.
macro_rules! texts {
    ($($name:literal)*) => {
        &[$(($name, include_str!(concat!("../../../configs/machines/", $name, ".toml")))),*]
    };
}

/// Devices first, nodes after them, clusters last.
const MACHINES: Catalogue = Catalogue {
    of: "machine",
    texts: texts! {
        "a100-40gb" "a100-80gb" "a100-40gb-pcie" "a100-80gb-pcie"
        "h100-sxm" "h100-sxm-96gb" "h100-pcie" "h100-nvl" "h200" "gh200"
        "b200" "b300" "gb200" "gb300" "mi300x" "l40s" "v100-16gb" "v100-32gb"
        "rtx3090" "rtx4090" "titan-rtx" "rtx-a5000" "rtx-6000-ada"
        "h800" "a800" "h20" "mi250x" "mi325x" "mi355x" "rtx5090" "rtx-a6000" "a40" "a10"
        "dgx-a100" "dgx-h100" "aws-p4d" "aws-p5" "aws-p6-b200" "gcp-a2-ultragpu" "gcp-a3"
        "dgx-superpod-h100" "meta-24k-h100" "torus-example"
    },
};

static BUILTIN: LazyLock<Vec<(&'static str, Result<Profile, ProfileError>)>> =
    LazyLock::new(|| MACHINES.texts.iter().map(|(name, text)| (*name, Profile::read(name, text))).collect());

/// Names of the profiles that are compiled in.
pub fn names() -> impl Iterator<Item = &'static str> {
    MACHINES.names()
}

/// A profile that is compiled in, with its sources.
///
/// # Errors
/// There is none of that name: the error lists those there are.
pub fn profile(name: &str) -> Result<&'static Profile, ProfileError> {
    match BUILTIN.iter().find(|(known, _)| *known == name) {
        Some((_, profile)) => profile.as_ref().map_err(ProfileError::clone),
        None => Err(MACHINES.unknown(name)),
    }
}

/// A machine that is compiled in; nothing where there is none of that name ([`machine`] says which there are).
pub fn builtin(name: &str) -> Option<&'static Machine> {
    profile(name).ok()?.machine.as_ref()
}

/// A machine that is compiled in.
///
/// # Errors
/// There is none of that name: the error lists those there are.
pub fn machine(name: &str) -> Result<Machine, ProfileError> {
    profile(name)?.machine().cloned()
}

/// The profile of a device, by the name that its driver has for it.
pub fn of_product(name: &str) -> Option<&'static str> {
    // Drivers differ in the vendor's name before a product, and some add the form of the module.
    let plain = |text: &str| text.trim().trim_start_matches("NVIDIA ").replace('-', " ");
    let name = plain(name);
    let is_it = |text: &str| {
        // A profile without a product of its own is of nodes with another profile's devices.
        let table = text.parse::<Table>().ok()?;
        let rest = name.strip_prefix(&plain(table.get("product")?.as_str()?))?;
        Some(rest.is_empty() || rest.starts_with(" SXM"))
    };
    MACHINES.texts.iter().find(|(_, text)| is_it(text) == Some(true)).map(|(name, _)| *name)
}

/// Keys that stand at the top of a profile.
const KEYS: [&str; 17] = [
    "about",
    "base",
    "product",
    "device",
    "memory",
    "memory_source",
    "units",
    "launch",
    "compute",
    "hbm",
    "node",
    "network",
    "collectives",
    "ceilings",
    "operations",
    "corrections",
    "drives",
];

/// Keys whose values are no figures: they have no source of their own.
const WORDS: [&str; 5] = ["kind", "topology", "device", "product", "about"];

/// Those that say how fast a machine is; with any of them all that are needed have to be there.
const SPEEDS: [&str; 6] = ["units", "launch", "compute", "hbm", "node", "network"];

impl Profile {
    /// Reads a profile's text. Its `base` is one of those that are compiled in.
    ///
    /// # Errors
    /// What is wrong with it, by key.
    pub fn read(name: &str, text: &str) -> Result<Profile, ProfileError> {
        Profile::of_table(name, whole(name, text, 0)?)
    }

    /// The same machine with other figures, by their places in the file: `network.rate`, `hbm.bandwidth`,
    /// `compute.bf16.peak`, `memory`. What has a unit must be written with it, as a number alone is rarely meant in bytes per second.
    ///
    /// # Errors
    /// What is wrong with the changed profile, by key.
    pub fn changed(&self, changes: &[(String, Value)]) -> Result<Profile, ProfileError> {
        let mut over = Table::new();
        for (place, value) in changes {
            if place == "base" {
                let wanted = "a figure that can be changed; name the machine itself in hardware.profile";
                return Err(MACHINES.value(&self.name, place, value, wanted));
            }
            let (mut at, parts) = (&mut over, place.split('.').collect::<Vec<_>>());
            let Some((last, tables)) = parts.split_last() else { continue };
            if let Some(wanted) = unit_of(last).filter(|_| is_plain(value)) {
                return Err(MACHINES.value(&self.name, place, value, wanted));
            }
            for part in tables {
                let next = at.entry((*part).to_string()).or_insert_with(|| Value::Table(Table::new()));
                at = match next {
                    Value::Table(table) => table,
                    other => return Err(MACHINES.value(&self.name, place, other, "a table")),
                };
            }
            let mut figure = Table::new();
            figure.insert("value".into(), value.clone());
            figure.insert("source".into(), Value::String("what if".into()));
            let plain = WORDS.contains(last);
            at.insert((*last).to_string(), if plain { value.clone() } else { Value::Table(figure) });
        }
        let mut table = self.table.clone();
        merge(&mut table, over, &self.name);
        Profile::of_table(&self.name, table)
    }

    fn of_table(name: &str, table: Table) -> Result<Profile, ProfileError> {
        let mut sources = BTreeMap::new();
        let mut reader = read::Reader::new(name, &table, &mut sources);
        reader.only(&KEYS)?;
        let about = reader.text("about", "a sentence")?.unwrap_or_default();
        let wanted = "\"cuda\" or \"cpu\"";
        let device = match reader.text("device", wanted)? {
            Some(device) if device == "cuda" || device == "cpu" => device,
            Some(found) => return Err(MACHINES.value(name, "device", &Value::String(found), wanted)),
            None => return Err(MACHINES.missing(name, "device", wanted)),
        };
        let memory = reader.figure("memory", read::bytes, "a size, as \"79.15GiB\"")?.map(|bytes| bytes as u64);
        let fast = SPEEDS.iter().any(|key| table.contains_key(*key));
        let machine = if fast { Some(read::machine(&mut reader, memory)?) } else { None };
        if let Some(source) = reader.text("memory_source", "a text")? {
            sources.insert("memory".into(), source);
        }
        let saved = |key: &str| match table.get(key) {
            None => Ok(Table::new()),
            Some(Value::Table(table)) => Ok(table.clone()),
            Some(other) => Err(MACHINES.value(name, key, other, "a table, as zbench itself writes it")),
        };
        let (collectives, ceilings) = (saved("collectives")?, saved("ceilings")?);
        // Read where the times of cells on this machine are predicted.
        for key in ["operations", "corrections", "drives"] {
            saved(key)?;
        }
        Ok(Profile { name: name.into(), about, device, memory, machine, sources, collectives, ceilings, table })
    }

    /// The machine.
    ///
    /// # Errors
    /// The profile states a device and its memory at most: enough for what fits, too little for how long it takes.
    pub fn machine(&self) -> Result<&Machine, ProfileError> {
        const WANTED: &str = "the tables compute, hbm and node and the keys product, units and launch (docs/machines.md), or a \
                              base that has them";
        self.machine.as_ref().ok_or_else(|| MACHINES.missing(&self.name, "compute", WANTED))
    }
}

/// The profile's table over that of its base.
fn whole(name: &str, text: &str, depth: usize) -> Result<Table, ProfileError> {
    let own = MACHINES.table(name, text)?;
    let Some((base, text)) = MACHINES.base(name, &own, depth)? else { return Ok(own) };
    let mut table = whole(base, text, depth + 1)?;
    // What was measured on the base's machine was not measured on this one.
    for key in ["collectives", "ceilings", "operations", "corrections", "drives"] {
        table.remove(key);
    }
    if own.contains_key("memory") && !own.contains_key("memory_source") {
        table.remove("memory_source");
    }
    merge(&mut table, own, name);
    Ok(table)
}

/// Puts a table over another. One that names a source (or a bare value) is a whole and replaces; others merge key by
/// key, and what then stands under a source of the base is marked as this profile's own.
fn merge(under: &mut Table, over: Table, name: &str) {
    let sourced = under.contains_key("source");
    for (key, value) in over {
        match (under.get_mut(&key), value) {
            (Some(Value::Table(below)), Value::Table(above))
                if !above.contains_key("source") && !above.contains_key("value") =>
            {
                merge(below, above, name);
            }
            (_, value) if sourced && !value.is_table() && !WORDS.contains(&key.as_str()) => {
                let mut figure = Table::new();
                figure.insert("value".into(), value);
                figure.insert("source".into(), Value::String(format!("stated by the profile {name}")));
                under.insert(key, Value::Table(figure));
            }
            (_, value) => {
                under.insert(key, value);
            }
        }
    }
}

/// What a figure of this name must be where it is written with its unit; nothing where it has none.
fn unit_of(name: &str) -> Option<&'static str> {
    Some(match name {
        "rate" | "bandwidth" | "host_bandwidth" | "disk_read" | "disk_write" => {
            "a rate with its unit, as \"100 Gbit/s\" or \"12.5 GB/s\""
        }
        "latency" | "launch" => "a time with its unit, as \"5 us\"",
        "peak" => "a rate with its unit, as \"312 TFLOP/s\"",
        "memory" | "size" | "host_memory" => "a size with its unit, as \"80 GiB\"",
        _ => return None,
    })
}

/// Whether a value is a number without a unit.
fn is_plain(value: &Value) -> bool {
    match value {
        Value::Integer(_) | Value::Float(_) => true,
        Value::String(text) => text.trim().replace('_', "").parse::<f64>().is_ok(),
        _ => false,
    }
}
