//! A machine: devices, the links between them, and what of their ratings is reached. Profiles (configs/machines/*.toml)
//! are read into this.

use crate::job::Number;
use crate::topology::Topology;
use std::collections::BTreeMap;

/// Nodes of one kind of device and the network between them.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// The profile's name.
    pub name: String,
    /// The device.
    pub device: Device,
    /// Devices of a node.
    pub node_devices: usize,
    /// Between the devices of a node; rates are per device, one way.
    pub intra: Link,
    /// Between nodes; rates are per device, one way: a node's NICs over the devices that use them.
    pub inter: Link,
    /// What joins nodes.
    pub topology: Topology,
    /// Between a device and its host's memory; rates are per device, one way.
    pub host: Link,
    /// Bytes of the host's memory per node; 0 = not known.
    pub host_memory: u64,
    /// Bytes per second of the host's memory per node (for the update of offloaded state); 0 = not known.
    pub host_bandwidth: f64,
    /// Bytes per second that a node's NVMe reads and writes; 0 = none, or not known.
    pub disk_read: f64,
    /// See `disk_read`.
    pub disk_write: f64,
}

impl Machine {
    /// The machine where each node has so many of a job's ranks. Where they are fewer than its devices they share all of its network
    /// cards, each as far as its link to the host carries.
    pub fn with_ranks_of_node(&self, ranks: usize) -> Machine {
        let mut machine = Machine { node_devices: ranks, ..self.clone() };
        let cards = self.inter.bandwidth * self.node_devices as f64;
        let to_host = if self.host.bandwidth > 0.0 { self.host.bandwidth } else { f64::INFINITY };
        let share = (cards / ranks.min(self.node_devices).max(1) as f64).min(to_host);
        machine.inter.bandwidth = share.max(self.inter.bandwidth);
        machine
    }
}

/// A device.
#[derive(Clone, Debug, PartialEq)]
pub struct Device {
    /// The vendor's name.
    pub name: String,
    /// Bytes that a program can have.
    pub memory: u64,
    /// Dense matrix rates by number.
    pub compute: BTreeMap<Number, Rate>,
    /// Bytes per second of the device's memory, rated.
    pub bandwidth: f64,
    /// Share of `bandwidth` that large copies reach.
    pub bandwidth_reached: f64,
    /// Independent units (SMs, CUs, cores), which products are dealt to.
    pub units: usize,
    /// Seconds from one kernel's start to the next one's at least.
    pub launch: f64,
}

/// A rate of multiply-adds, in FLOP/s.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// Rated, dense.
    pub peak: f64,
    /// Share of it that the best large product reaches.
    pub reached: f64,
}

/// A link.
#[derive(Clone, Debug, PartialEq)]
pub struct Link {
    /// Its kind: `nvlink3`, `pcie4`, `infiniband`, `ethernet`, …
    pub kind: String,
    /// Bytes per second one way, rated.
    pub bandwidth: f64,
    /// Share of it that large messages reach.
    pub reached: f64,
    /// Seconds that a hop adds.
    pub latency: f64,
    /// Share of `bandwidth` that all-reduce reaches as algorithm bandwidth where the switch adds (NVLS, SHARP); 0: it does not.
    pub in_switch: f64,
}
