//! Which jobs there are published speeds of: a job that is like none of them has no error that anybody has measured.

use zbench_estimate::band::{Band, SPEED, SPEED_ELSEWHERE};
use zbench_estimate::job::{Job, Kind, Number, Peft, Place};
use zbench_estimate::machine::Machine;

/// Devices that speeds were published of, as the vendor names them.
const DEVICES: &[&str] = &[
    "AMD Instinct MI300X",
    "NVIDIA A100-SXM4-40GB",
    "NVIDIA A100-SXM4-80GB",
    "NVIDIA B200",
    "NVIDIA B300",
    "NVIDIA GB200",
    "NVIDIA GB300",
    "NVIDIA GeForce RTX 3090",
    "NVIDIA GeForce RTX 4090",
    "NVIDIA H100 80GB HBM3",
    "NVIDIA H100 96GB HBM2e",
    "NVIDIA H200",
    "NVIDIA RTX 6000 Ada Generation",
    "NVIDIA RTX A5000",
    "Tesla V100-SXM2-16GB",
    "Tesla V100-SXM2-32GB",
];

/// Programs, and what speeds of theirs were published with.
const COMPARED: &[(&str, &[&str])] = &[
    ("deepspeed", &["split weights", "state on the host"]),
    ("fsdp1", &["a base in few bits", "adapters", "products in fp8", "split weights", "state on the host"]),
    ("fsdp2", &["context ranks", "products in fp8", "split weights", "stages", "tensor ranks"]),
    (
        "megatron-core",
        &[
            "a split optimizer",
            "adapters",
            "an encoder and a decoder",
            "context ranks",
            "expert ranks",
            "experts",
            "products in fp8",
            "split weights",
            "stages",
            "state on the host",
            "tensor ranks",
        ],
    ),
    ("megatron-deepspeed", &["a split optimizer", "split weights", "stages", "state on the host", "tensor ranks"]),
    ("megatron-lm", &["a split optimizer", "stages", "tensor ranks"]),
    ("torch", &["a split optimizer"]),
];

/// Devices of data centres from Volta to Hopper: published speeds of most families are of these.
const USUAL: [&str; 7] = ["V100", "A100", "A800", "H100", "H800", "H200", "GH200"];

/// Whether a machine's devices are among them.
pub fn is_usual(machine: &Machine) -> bool {
    machine.device.name.split([' ', '-']).any(|word| USUAL.contains(&word))
}

/// How far predicted speeds on a machine are off.
pub fn speed_band(machine: &Machine) -> Band {
    if is_usual(machine) { SPEED } else { SPEED_ELSEWHERE }
}

/// What of a job no published speed has, in a sentence; empty where each part of it was compared with one.
pub fn not_compared(job: &Job, machine: &Machine) -> String {
    let program = program(job);
    let compared = COMPARED.iter().find(|(known, _)| *known == program).map_or(&[][..], |(_, with)| with);
    let missing: Vec<&str> = features(job).into_iter().filter(|feature| !compared.contains(feature)).collect();
    let mut lacks = Vec::new();
    if compared.is_empty() {
        lacks.push(format!("of {program}"));
    } else if !missing.is_empty() {
        let (last, others) = missing.split_last().unwrap_or((&"", &[]));
        let others = if others.is_empty() { String::new() } else { format!("{} and ", others.join(", ")) };
        lacks.push(format!("of {program} with {others}{last}"));
    }
    if !DEVICES.contains(&machine.device.name.as_str()) {
        lacks.push(format!("on {}", machine.device.name));
    }
    if lacks.is_empty() {
        String::new()
    } else {
        format!("no published speed is {}, so its error is unknown", lacks.join(", and none is "))
    }
}

/// The program of a job, whether compiled or not.
fn program(job: &Job) -> &str {
    job.framework.name.strip_suffix("-compiled").unwrap_or(&job.framework.name)
}

/// What decides how a job is priced.
fn features(job: &Job) -> Vec<&'static str> {
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
        (job.peft != Peft::None, "adapters"),
        (in_few_bits, "a base in few bits"),
        (away.contains(&Place::Host), "state on the host"),
        (away.contains(&Place::Disk), "state on disk"),
        (matches!(job.model.kind, Kind::EncoderDecoder { .. }), "an encoder and a decoder"),
    ];
    all.into_iter().filter(|(has, _)| *has).map(|(_, name)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::published::read;
    use crate::published::score::Kind as Of;
    use std::collections::{BTreeMap, BTreeSet};
    use std::path::Path;
    use zbench_engine::planner::Planner;

    /// Both tables as the published results have them.
    #[test]
    fn the_tables_are_those_of_the_published_speeds() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/published");
        let (mut devices, mut programs) = (BTreeSet::new(), BTreeMap::<String, BTreeSet<&str>>::new());
        for row in read(&folder).unwrap() {
            let outcome = row.outcome(&Planner::default());
            if outcome.kind != Of::Speed || !outcome.row.scored {
                continue;
            }
            let (job, machine) = row.job_and_machine().expect("a scored speed has a job");
            devices.insert(machine.device.name.clone());
            programs.entry(program(&job).to_string()).or_default().extend(features(&job));
        }
        let stated: BTreeMap<String, BTreeSet<&str>> =
            COMPARED.iter().map(|(program, with)| (program.to_string(), with.iter().copied().collect())).collect();
        let lines: Vec<String> =
            programs.iter().map(|(program, with)| format!("    (\"{program}\", &{with:?}),")).collect();
        assert_eq!(stated, programs, "\n{}", lines.join("\n"));
        assert_eq!(DEVICES.iter().map(ToString::to_string).collect::<BTreeSet<_>>(), devices, "\n{devices:?}");
    }
}
