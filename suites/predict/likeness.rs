//! Likeness of jobs and published results: a job that no result is like has an error that nobody has measured.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use zbench_estimate::job::{Job, Kind, Number, Peft, Place};
use zbench_estimate::machine::Machine;
use zbench_reports::units;

/// The part of a job that trains adapters.
pub const ADAPTERS: &str = "adapters";

/// Devices of data centres from Volta to Hopper: published speeds of most families are of these.
const USUAL: [&str; 7] = ["V100", "A100", "A800", "H100", "H800", "H200", "GH200"];

/// Whether a machine's devices are among them.
pub fn is_usual(machine: &Machine) -> bool {
    machine.device.name.split([' ', '-']).any(|word| USUAL.contains(&word))
}

/// Program, parts and device: what a job and a published result are compared by.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Traits {
    /// The program, whether it compiles or not, or the collective.
    pub program: String,
    /// Parts of the job that decide its price, as `experts`.
    pub parts: Vec<&'static str>,
    /// The device, as the vendor names it, or a collective's machine; empty where none is stated.
    pub device: String,
}

impl Traits {
    /// Traits of a job.
    pub fn of_job(job: &Job, machine: Option<&Machine>) -> Traits {
        let device = machine.map(|machine| machine.device.name.clone()).unwrap_or_default();
        Traits { program: program(job).into(), parts: parts(job), device }
    }

    /// Traits of a collective over so many nodes; links belong to a machine, not to a device.
    pub fn of_collective(name: &str, nodes: u64, machine: &str) -> Traits {
        let parts = if nodes > 1 { vec!["several nodes"] } else { Vec::new() };
        Traits { program: name.into(), parts, device: machine.into() }
    }
}

/// Devices of the published results of a kind, and their programs with the parts of each.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Compared {
    devices: BTreeSet<String>,
    programs: BTreeMap<String, BTreeSet<String>>,
}

impl Compared {
    /// Adds the traits of a result.
    pub fn add(&mut self, traits: &Traits) {
        self.devices.insert(traits.device.clone());
        let parts = self.programs.entry(traits.program.clone()).or_default();
        parts.extend(traits.parts.iter().map(ToString::to_string));
    }

    /// Traits that no result has, as the end of the sentence "no published speed is"; empty if none is missing.
    pub fn lacks(&self, traits: &Traits) -> String {
        let Traits { program, parts, device } = traits;
        let mut lacks = Vec::new();
        match self.programs.get(program) {
            None => lacks.push(format!("of {program}")),
            Some(compared) => {
                let is_missing = |part: &&&str| !compared.contains(**part);
                let missing: Vec<String> = parts.iter().filter(is_missing).map(ToString::to_string).collect();
                if !missing.is_empty() {
                    lacks.push(format!("of {program} with {}", units::list(&missing)));
                }
            }
        }
        if !device.is_empty() && !self.devices.contains(device) {
            lacks.push(format!("on {device}"));
        }
        lacks.join(", and none is ")
    }
}

/// The program of a job, whether compiled or not.
fn program(job: &Job) -> &str {
    job.framework.name.strip_suffix("-compiled").unwrap_or(&job.framework.name)
}

/// What decides how a job is priced.
fn parts(job: &Job) -> Vec<&'static str> {
    let (d, s) = (&job.degrees, &job.sharding);
    let away = [job.offload.optimizer, job.offload.parameters, job.offload.activations];
    let in_few_bits = matches!(job.peft, Peft::Adapters { base, .. } if base.bytes() < 2.0);
    let all = [
        (s.parameters > 1, "split weights"),
        (s.parameters <= 1 && s.optimizer > 1, "a split optimizer"),
        (d.tensor > 1, "tensor ranks"),
        (d.pipeline > 1, "stages"),
        (d.context > 1, "context ranks"),
        (job.model.experts.is_some(), "experts"),
        (d.expert > 1, "expert ranks"),
        (matches!(job.precision.products, Number::Fp8), "products in fp8"),
        (job.peft != Peft::None, ADAPTERS),
        (in_few_bits, "a base in few bits"),
        (away.contains(&Place::Host), "state on the host"),
        (away.contains(&Place::Disk), "state on disk"),
        (matches!(job.model.kind, Kind::EncoderDecoder { .. }), "an encoder and a decoder"),
    ];
    all.into_iter().filter(|(has, _)| *has).map(|(_, name)| name).collect()
}
