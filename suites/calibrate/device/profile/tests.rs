use super::*;
use zbench_estimate::job::Number;
use zbench_reports::bench::{DeviceRate, Rate};

const GPU: &str = "NVIDIA H100 80GB HBM3";

/// Invented numbers.
fn ceilings(rates: &[(&str, f64)]) -> DeviceCeilings {
    let of = |(name, value): &(&str, f64)| DeviceRate {
        name: (*name).into(),
        rate: Rate::of(&[*value; 3]),
        data_sheet: None,
    };
    DeviceCeilings { device: GPU.into(), side: 8192, rates: rates.iter().map(of).collect(), ..Default::default() }
}

fn invented() -> DeviceCeilings {
    ceilings(&[
        ("matrix.f32", 0.8 * 67e12),
        ("matrix.bf16", 0.7 * 989.4e12),
        ("matrix.f16", 0.6 * 989.4e12),
        ("memory.copy", 0.5 * 3.35e12),
        ("memory.read", 9e12),
        ("link.upload", 0.4 * 63e9),
        ("link.download", 0.3 * 63e9),
        ("time.launch", 7.125e-6),
        ("time.call", 3e-6),
        ("time.wait", 20e-6),
    ])
}

fn saved(path: &Path, ceilings: &DeviceCeilings) -> (Machine, Profile, Vec<String>) {
    let target = Target::open(path, Some("h100-sxm"), GPU).unwrap().unwrap();
    let reasons = target.save(ceilings, "measured \"today\"").unwrap();
    let profile = read(path, &std::fs::read_to_string(path).unwrap()).unwrap();
    (profile.machine().unwrap().clone(), profile, reasons)
}

/// The built-in machine with the invented figures.
fn expected(name: &str) -> Machine {
    let mut machine = machines::machine("h100-sxm").unwrap();
    machine.name = name.into();
    for (number, reached) in [(Number::F32, 0.8), (Number::Bf16, 0.7), (Number::F16, 0.6)] {
        machine.device.compute.get_mut(&number).unwrap().reached = reached;
    }
    machine.device.bandwidth_reached = 0.5;
    machine.device.launch = 7.125e-6;
    (machine.host.reached, machine.host.latency) = (0.3, 20e-6);
    machine
}

/// Equal but for the last bits of a number of microseconds.
fn assert_alike(found: &Machine, wanted: &Machine) {
    let seconds = |of: &Machine| [of.device.launch, of.host.latency];
    for (x, y) in seconds(found).into_iter().zip(seconds(wanted)) {
        assert!((x - y).abs() <= 1e-12 * y, "{x:e} {y:e}");
    }
    let mut found = found.clone();
    (found.device.launch, found.host.latency) = (wanted.device.launch, wanted.host.latency);
    assert_eq!(&found, wanted);
}

#[test]
fn a_new_profile_is_the_built_in_one_with_what_was_measured() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("machines/mine.toml");
    let (machine, profile, reasons) = saved(&path, &invented());
    assert_eq!((reasons, &profile.device[..]), (Vec::new(), "cuda"));
    assert_alike(&machine, &expected("mine"));
    // Every figure that was measured says so, and no other does.
    let measured: Vec<&str> = profile
        .sources
        .iter()
        .filter(|(_, source)| source.contains("measured \"today\""))
        .map(|(at, _)| &at[..])
        .collect();
    let places = [
        "compute.bf16.reached",
        "compute.f16.reached",
        "compute.f32.reached",
        "hbm.reached",
        "launch",
        "node.host_link.latency",
        "node.host_link.reached",
    ];
    assert_eq!(measured, places);
    assert!(profile.sources["compute.bf16.reached"].contains("693 TFLOP/s"), "{:?}", profile.sources);
    // Saved again, figures are replaced.
    let first = std::fs::read_to_string(&path).unwrap();
    saved(&path, &ceilings(&[("matrix.bf16", 0.65 * 989.4e12)]));
    let (again, _, _) = saved(&path, &invented());
    assert_alike(&again, &expected("mine"));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), first);
}

#[test]
fn what_stands_in_a_file_stays() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mine.toml");
    let whole =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../configs/machines/h100-sxm.toml")).unwrap();
    let mine = "# mine\ndevice = \"cuda\" # yes\nmemory = \"70GiB\"\n\n# fits\n[collectives.nccl.ranks-8.all_reduce]\nfits = []\n";
    for (text, keeps) in [
        (
            mine.to_string(),
            vec!["# mine\ndevice = \"cuda\" # yes\nmemory = \"70GiB\"\n", "\n\n# fits\n[collectives.nccl"],
        ),
        (format!("base = \"h100-sxm\"\n{mine}"), vec![mine.split_once("\n\n").unwrap().0, "# fits\n[collectives"]),
        (
            whole.clone(),
            vec!["# FLOP/s without sparsity.\n[compute]", "fp8 = { peak = \"1979TFLOP/s\", reached = { value = 0.709"],
        ),
    ] {
        std::fs::write(&path, &text).unwrap();
        let (machine, profile, reasons) = saved(&path, &invented());
        let mut wanted = expected("mine");
        wanted.device.memory = profile.memory.unwrap();
        assert_alike(&machine, &wanted);
        assert!(reasons.is_empty(), "{reasons:?}");
        let after = std::fs::read_to_string(&path).unwrap();
        for kept in keeps {
            assert!(after.contains(kept), "no {kept:?} in {after}");
        }
    }
}

#[test]
fn figures_without_a_place_or_a_measurement_are_left_and_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mine.toml");
    let builtin = machines::machine("h100-sxm").unwrap();
    let (machine, _, reasons) =
        saved(&path, &ceilings(&[("matrix.bf16", 1.05 * 989.4e12), ("memory.copy", 2.0 * 3.35e12)]));
    assert_eq!(machine.device.compute[&Number::Bf16].reached, 1.0);
    assert_eq!(machine.device.bandwidth_reached, builtin.device.bandwidth_reached);
    assert_eq!((machine.device.launch, &machine.host), (builtin.device.launch, &builtin.host));
    let told = |of: &str, why: &str| reasons.iter().any(|reason| reason.starts_with(of) && reason.contains(why));
    assert!(told("hbm.reached", "another device's") && told("launch", "not measured"), "{reasons:?}");
    assert_eq!(reasons.len(), 6, "{reasons:?}");
}

#[test]
fn without_a_data_sheet_there_is_nothing_to_write() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mine.toml");
    assert_eq!(Target::open(&path, None, "Quadro K620").unwrap(), None);
    std::fs::write(&path, "device = \"cuda\"\n").unwrap();
    assert_eq!(Target::open(&path, None, "Quadro K620").unwrap(), None);
    // Unless somebody wrote one.
    let text = "device = \"cuda\"\nbase = \"v100-16gb\"\nproduct = \"Quadro K620\"\n";
    std::fs::write(&path, text).unwrap();
    let target = Target::open(&path, None, "Quadro K620").unwrap().unwrap();
    assert_eq!(target.machine.device.name, "Quadro K620");
}

#[test]
fn profiles_of_other_machines_are_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mine.toml");
    for (text, told) in [
        ("device = ", "TOML"),
        ("device = \"cpu\"\n", "device = \"cpu\""),
        ("base = \"a100-80gb\"\n", "this GPU is NVIDIA H100"),
        ("device = \"cuda\"\nspeed = 3\n", "unknown key speed"),
    ] {
        std::fs::write(&path, text).unwrap();
        let error = Target::open(&path, Some("h100-sxm"), GPU).unwrap_err().to_string();
        assert!(error.contains(told) && error.contains("mine.toml"), "{error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
    }
}
