//! From a profile's tables to [`Machine`]. Every figure is a plain value, or `{ value = …, source = "…" }`; without a
//! source of its own it has that of the table it stands in.

use super::{MACHINES, ProfileError};
use crate::job::Number;
use crate::machine::{Device, Link, Machine, Rate};
use crate::topology::Topology;
use crate::units;
use std::collections::BTreeMap;
use toml::{Table, Value};

mod topology;

/// A table of a profile, what it is called, and the sources of the figures that were read of all tables so far.
pub(super) struct Reader<'a> {
    profile: &'a str,
    place: String,
    table: &'a Table,
    sources: &'a mut BTreeMap<String, String>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(profile: &'a str, table: &'a Table, sources: &'a mut BTreeMap<String, String>) -> Reader<'a> {
        Reader { profile, place: String::new(), table, sources }
    }

    fn path(&self, key: &str) -> String {
        if self.place.is_empty() { key.into() } else { format!("{}.{key}", self.place) }
    }

    fn value_error(&self, key: &str, found: &Value, wanted: &str) -> ProfileError {
        MACHINES.value(self.profile, &self.path(key), found, wanted)
    }

    fn missing(&self, key: &str, wanted: &str) -> ProfileError {
        MACHINES.missing(self.profile, &self.path(key), wanted)
    }

    /// Refuses keys that are none of these.
    pub(super) fn only(&self, known: &[&str]) -> Result<(), ProfileError> {
        let Some(key) = self.table.keys().find(|key| !known.contains(&key.as_str())) else { return Ok(()) };
        Err(MACHINES.key(self.profile, self.path(key), known))
    }

    /// A table within; nothing where there is none.
    fn table(&mut self, key: &str) -> Result<Option<Reader<'_>>, ProfileError> {
        let Some(value) = self.table.get(key) else { return Ok(None) };
        let table = value.as_table().ok_or_else(|| self.value_error(key, value, "a table"))?;
        let place = self.path(key);
        Ok(Some(Reader { profile: self.profile, place, table, sources: &mut *self.sources }))
    }

    pub(super) fn text(&self, key: &str, wanted: &str) -> Result<Option<String>, ProfileError> {
        match self.table.get(key) {
            None => Ok(None),
            Some(Value::String(text)) if !text.trim().is_empty() => Ok(Some(text.clone())),
            Some(other) => Err(self.value_error(key, other, wanted)),
        }
    }

    /// A figure in the units of `read`; its source is kept.
    pub(super) fn figure(
        &mut self,
        key: &str,
        read: fn(&str) -> Option<f64>,
        wanted: &str,
    ) -> Result<Option<f64>, ProfileError> {
        let Some(bare) = self.bare(key, wanted)? else { return Ok(None) };
        let value = match bare {
            Value::String(text) => read(text),
            Value::Integer(whole) => read(&whole.to_string()),
            Value::Float(real) => read(&real.to_string()),
            _ => None,
        };
        let value = value.filter(|value| value.is_finite() && *value >= 0.0);
        value.map(Some).ok_or_else(|| self.value_error(key, bare, wanted))
    }

    /// A figure as it is written; its source is kept.
    fn bare(&mut self, key: &str, wanted: &str) -> Result<Option<&'a Value>, ProfileError> {
        let Some(written) = self.table.get(key) else { return Ok(None) };
        let mut source = self.table.get("source").and_then(Value::as_str);
        let mut bare = written;
        if let Value::Table(table) = written {
            let figure = Reader { profile: self.profile, place: self.path(key), table, sources: &mut *self.sources };
            figure.only(&["value", "source"])?;
            bare = table.get("value").ok_or_else(|| figure.missing("value", wanted))?;
            source = table.get("source").and_then(Value::as_str).or(source);
        }
        if let Some(source) = source {
            self.sources.insert(self.path(key), source.into());
        }
        Ok(Some(bare))
    }

    fn need(&mut self, key: &str, read: fn(&str) -> Option<f64>, wanted: &str) -> Result<f64, ProfileError> {
        match self.figure(key, read, wanted)? {
            Some(value) if value > 0.0 => Ok(value),
            Some(value) => Err(self.value_error(key, &Value::Float(value), wanted)),
            None => Err(self.missing(key, wanted)),
        }
    }

    fn share(&mut self, key: &str) -> Result<f64, ProfileError> {
        let wanted = "the share of the rating that is reached, above 0 and at most 1, as 0.8";
        let share = self.need(key, plain, wanted)?;
        if share > 1.0 { Err(self.value_error(key, &Value::Float(share), wanted)) } else { Ok(share) }
    }

    fn count(&mut self, key: &str, wanted: &str) -> Result<usize, ProfileError> {
        let value = self.need(key, plain, wanted)?;
        if value.fract() != 0.0 || value > 1e6 {
            return Err(self.value_error(key, &Value::Float(value), wanted));
        }
        Ok(value as usize)
    }

    fn link(mut self) -> Result<Link, ProfileError> {
        self.only(&["kind", "bandwidth", "reached", "latency", "in_switch", "source"])?;
        let wanted = "the link's kind, as \"nvlink4\" or \"pcie4\"";
        Ok(Link {
            kind: self.text("kind", wanted)?.ok_or_else(|| self.missing("kind", wanted))?,
            bandwidth: self.need("bandwidth", units::rate, "bytes per second of a device one way, as \"300GB/s\"")?,
            reached: self.share("reached")?,
            latency: self.need("latency", units::seconds, "seconds of a hop, as \"3us\"")?,
            in_switch: self.in_switch()?,
        })
    }

    fn in_switch(&mut self) -> Result<f64, ProfileError> {
        let wanted = "the share of the rating that all-reduce in the switch reaches, as 0.61, or 0 where the switch does not add";
        let share = self.figure("in_switch", plain, wanted)?.unwrap_or(0.0);
        if (0.0..=1.0).contains(&share) {
            return Ok(share);
        }
        Err(self.value_error("in_switch", &Value::Float(share), wanted))
    }

    fn network(mut self, devices: usize) -> Result<(Link, Topology), ProfileError> {
        let keys = ["kind", "nics", "rate", "reached", "latency", "source"];
        self.only(&[&keys[..], &topology::KEYS].concat())?;
        let wanted = "the network's kind, as \"infiniband\" or \"efa\"";
        let nics = self.count("nics", "the network cards of a node, a whole number")?;
        let rate = self.need("rate", units::rate, "the rate of one card one way, as \"400Gb/s\"")?;
        let link = Link {
            kind: self.text("kind", wanted)?.ok_or_else(|| self.missing("kind", wanted))?,
            bandwidth: nics as f64 * rate / devices as f64,
            reached: self.share("reached")?,
            latency: self.need("latency", units::seconds, "seconds of a hop, as \"5us\"")?,
            in_switch: 0.0,
        };
        Ok((link, self.topology(nics)?))
    }
}

/// Bytes, as a figure.
pub(super) fn bytes(text: &str) -> Option<f64> {
    units::bytes(text).map(|bytes| bytes as f64)
}

/// A number without a unit.
pub(super) fn plain(text: &str) -> Option<f64> {
    text.trim().replace('_', "").parse().ok()
}

/// No such link: there is one device, or nothing is said of a network. Who needs it has to refuse.
fn none() -> Link {
    Link { kind: "none".into(), bandwidth: 0.0, reached: 1.0, latency: 0.0, in_switch: 0.0 }
}

/// The machine of a whole profile (bases are in it already).
pub(super) fn machine(reader: &mut Reader<'_>, memory: Option<u64>) -> Result<Machine, ProfileError> {
    let memory =
        memory.ok_or_else(|| reader.missing("memory", "what a program can have of the device, as \"79.15GiB\""))?;
    let wanted = "the device's name, as the vendor writes it";
    let product = reader.text("product", wanted)?.ok_or_else(|| reader.missing("product", wanted))?;
    let units = reader.count("units", "independent units (SMs, CUs, cores), a whole number")?;
    let launch =
        reader.need("launch", units::seconds, "seconds from one kernel's start to the next one's, as \"4us\"")?;
    let compute = compute(reader)?;
    let (bandwidth, bandwidth_reached) = hbm(reader, memory)?;
    let device = Device { name: product, memory, compute, bandwidth, bandwidth_reached, units, launch };
    let name = reader.profile.to_string();
    let mut machine = Machine {
        name,
        device,
        node_devices: 1,
        intra: none(),
        inter: none(),
        topology: Topology::default(),
        host: none(),
        host_memory: 0,
        host_bandwidth: 0.0,
        disk_read: 0.0,
        disk_write: 0.0,
    };
    node(reader, &mut machine)?;
    if machine.disk_read == 0.0 && machine.disk_write == 0.0 {
        drives(reader, &mut machine)?;
    }
    if let Some(network) = reader.table("network")? {
        (machine.inter, machine.topology) = network.network(machine.node_devices)?;
    }
    Ok(machine)
}

fn compute(reader: &mut Reader<'_>) -> Result<BTreeMap<Number, Rate>, ProfileError> {
    let wanted = "dense rates by number, as bf16 = { peak = 312e12, reached = 0.87, source = \"…\" }";
    let missing = reader.missing("compute", wanted);
    let Some(mut tables) = reader.table("compute")? else { return Err(missing) };
    let numbers = [Number::Bf16, Number::F16, Number::Fp8, Number::Tf32, Number::F32, Number::Int8];
    tables.only(&numbers.map(Number::name))?;
    let mut rates = BTreeMap::new();
    for number in numbers {
        let Some(mut of) = tables.table(number.name())? else { continue };
        of.only(&["peak", "reached", "source"])?;
        let peak = of.need("peak", units::flops, "FLOP/s without sparsity, as 312e12 or \"312TFLOP/s\"")?;
        rates.insert(number, Rate { peak, reached: of.share("reached")? });
    }
    if rates.is_empty() { Err(missing) } else { Ok(rates) }
}

fn hbm(reader: &mut Reader<'_>, memory: u64) -> Result<(f64, f64), ProfileError> {
    let missing =
        reader.missing("hbm", "the device's memory, as { size = \"80GiB\", bandwidth = \"2TB/s\", reached = 0.9 }");
    let Some(mut hbm) = reader.table("hbm")? else { return Err(missing) };
    hbm.only(&["size", "bandwidth", "reached", "source"])?;
    let wanted = "the rated size, at least as large as memory, as \"80GiB\"";
    if let Some(size) = hbm.figure("size", bytes, wanted)?
        && size < memory as f64
    {
        return Err(hbm.value_error("size", &Value::Float(size), wanted));
    }
    let bandwidth = hbm.need("bandwidth", units::rate, "bytes per second, as \"2TB/s\"")?;
    Ok((bandwidth, hbm.share("reached")?))
}

/// The node's drive as `zbench io` has measured it last, by its largest transfers.
fn drives(reader: &mut Reader<'_>, machine: &mut Machine) -> Result<(), ProfileError> {
    let Some(drives) = reader.table.get("drives") else { return Ok(()) };
    let rates = || {
        let newest = drives.get("measured")?.as_array()?.first()?;
        let largest = newest.get("rates")?.as_array()?.last()?;
        let rate = |key: &str| largest.get(key)?.as_float().filter(|rate| rate.is_finite() && *rate > 0.0);
        Some((rate("read")?, rate("write")?, newest.get("folder")?.as_str()?))
    };
    let wanted = "as zbench calibrate --from-notebook writes it";
    let (read, write, folder) = rates().ok_or_else(|| reader.value_error("drives", drives, wanted))?;
    (machine.disk_read, machine.disk_write) = (read, write);
    for key in ["node.disk_read", "node.disk_write"] {
        reader.sources.insert(key.into(), format!("measured by zbench io in {folder}"));
    }
    Ok(())
}

fn node(reader: &mut Reader<'_>, machine: &mut Machine) -> Result<(), ProfileError> {
    let Some(mut node) = reader.table("node")? else { return Ok(()) };
    node.only(&["devices", "host_memory", "host_bandwidth", "disk_read", "disk_write", "link", "host_link", "source"])?;
    machine.node_devices = node.count("devices", "devices of a node, a whole number")?;
    let size = node.figure("host_memory", bytes, "bytes of a node's memory, as \"2TiB\"")?;
    machine.host_memory = size.unwrap_or(0.0) as u64;
    let mut rate = |key: &str| node.figure(key, units::rate, "bytes per second of a node, as \"20GB/s\"");
    machine.host_bandwidth = rate("host_bandwidth")?.unwrap_or(0.0);
    machine.disk_read = rate("disk_read")?.unwrap_or(0.0);
    machine.disk_write = rate("disk_write")?.unwrap_or(0.0);
    if let Some(link) = node.table("host_link")? {
        machine.host = link.link()?;
    }
    match node.table("link")? {
        Some(link) => machine.intra = link.link()?,
        None if machine.node_devices > 1 => {
            return Err(node
                .missing("link", "what joins the devices of a node, a table with kind, bandwidth, reached, latency"));
        }
        None => {}
    }
    Ok(())
}
