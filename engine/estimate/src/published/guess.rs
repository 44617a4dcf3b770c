//! What is predicted of a row, and the machine that it ran on.

use super::job::{Expressed, Refused};
use crate::machine::Machine;
use crate::profile;

/// A prediction beside what the row states.
#[derive(Clone, Debug, PartialEq)]
pub struct Guess {
    /// Which of the row's columns.
    pub quantity: &'static str,
    /// What the row states; none where the row says only that it was out of memory, or gives a bound alone.
    pub stated: Option<f64>,
    /// What the estimator says, in the same unit.
    pub predicted: f64,
    /// Whether the stated value is a bound or a mean over more than the run: predicted, not scored.
    pub one_sided: bool,
}

impl Guess {
    /// The prediction, unless it is no number.
    pub(super) fn checked(self) -> Result<Guess, Refused> {
        if self.predicted.is_finite() && self.predicted >= 0.0 {
            Ok(self)
        } else {
            Err(Refused(
                "the prediction is no number: the row's own numbers are too large, or contradict each other".into(),
            ))
        }
    }

    /// |predicted / stated - 1|, where it can be scored.
    pub fn error(&self) -> Option<f64> {
        let stated = self.stated.filter(|stated| *stated > 0.0 && !self.one_sided)?;
        Some((self.predicted / stated - 1.0).abs())
    }
}

/// Names of profiles that rows' words lead to where the profile is named otherwise.
fn profile_name(name: &str) -> &str {
    match name {
        "a100-pcie-40gb" => "a100-40gb-pcie",
        "a100-pcie-80gb" => "a100-80gb-pcie",
        name => name,
    }
}

/// A profile with the nodes and links that a row states.
pub fn machine(name: &str, node: usize, inter_gbps: Option<f64>, link: &str) -> Result<Machine, Refused> {
    let mut machine = profile::machine(profile_name(name)).map_err(|error| Refused(error.to_string()))?;
    // A rack that NVLink joins stays one, however its trays are counted as nodes.
    if node > 0 && machine.node_devices <= 16 {
        let devices = machine.node_devices.max(1) as f64;
        machine.inter.bandwidth *= devices / node as f64;
        machine.host_bandwidth = machine.host_bandwidth.max(0.0);
        machine.node_devices = node;
    }
    let link = link.to_lowercase();
    if let Some(gbps) = inter_gbps.filter(|gbps| *gbps > 0.0) {
        machine.inter.bandwidth = gbps / 8.0 * 1e9 / machine.node_devices.max(1) as f64;
    }
    if link.contains("efa") {
        machine.inter.kind = "efa".into();
        machine.inter.latency = machine.inter.latency.max(EFA_HOP);
        machine.inter.reached = machine.inter.reached.min(EFA_REACHED);
    }
    if link.contains("omni") {
        machine.inter.kind = "omni-path".into();
        machine.inter.reached = machine.inter.reached.min(OMNI_PATH_REACHED);
    }
    Ok(machine)
}

/// A hop over AWS's fabric: small all-reduces take 320 us over 4 nodes of V100 (a ring) and 380 over 4 of B200.
const EFA_HOP: f64 = 60e-6;

/// Share of AWS's fabric that large messages reach: 340 of 400 Gb/s.
const EFA_REACHED: f64 = 0.85;

/// Omni-Path is driven by the processors, not by the cards: less of it is reached beside compute.
/// Set by hand on BigScience's ZeRO-3 rows, both halves seen.
const OMNI_PATH_REACHED: f64 = 0.5;

/// The machine of a row that was expressed.
pub fn machine_of(expressed: &Expressed, gpu: &str, link: &str) -> Result<Machine, Refused> {
    let name = expressed.machine.ok_or_else(|| Refused("the row names no device".into()))?;
    let mut machine = machine(name, expressed.node, expressed.inter_gbps, link)?;
    if gpu.contains("power limited") || gpu.contains("power-limited") {
        for rate in machine.device.compute.values_mut() {
            rate.reached *= POWER_LIMITED;
        }
    }
    Ok(machine)
}

/// What a device keeps of its rate where its power is limited and nobody says how far: at 70 to 75 % of the power, with
/// power as the clock to the power of 2.5.
const POWER_LIMITED: f64 = 0.88;
