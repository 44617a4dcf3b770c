use super::*;
use crate::job::Number;
use crate::topology::{Pods, Routing, Topology};

/// ml-engineering's table of accelerators (compute/accelerator) and, for what it does not list, the vendors' data sheets:
/// dense bf16, or f16 where the device has no bf16, in TFLOP/s.
const HIGHEST: [(&str, f64); 33] = [
    ("a100-40gb", 312.0),
    ("a100-80gb", 312.0),
    ("a100-40gb-pcie", 312.0),
    ("a100-80gb-pcie", 312.0),
    ("h100-sxm", 989.4),
    ("h100-sxm-96gb", 989.4),
    ("h100-pcie", 756.0),
    ("h100-nvl", 835.0),
    ("h200", 989.4),
    ("gh200", 989.4),
    ("b200", 2250.0),
    ("b300", 2250.0),
    ("gb200", 2500.0),
    ("gb300", 2500.0),
    ("mi300x", 1307.4),
    ("l40s", 362.0),
    ("v100-16gb", 125.0),
    ("v100-32gb", 125.0),
    ("rtx3090", 71.0),
    ("rtx4090", 165.2),
    ("titan-rtx", 130.5),
    ("rtx-a5000", 111.1),
    ("rtx-6000-ada", 364.25),
    ("h800", 989.4),
    ("a800", 312.0),
    ("h20", 148.0),
    ("mi250x", 191.5),
    ("mi325x", 1307.4),
    ("mi355x", 2500.0),
    ("rtx5090", 209.5),
    ("rtx-a6000", 154.8),
    ("a40", 149.7),
    ("a10", 125.0),
];

#[test]
fn a_device_is_found_by_the_name_that_its_driver_has_for_it() {
    let cases = [
        ("NVIDIA H200", Some("h200")),
        ("NVIDIA H100 80GB HBM3", Some("h100-sxm")),
        ("NVIDIA H100 PCIe", Some("h100-pcie")),
        ("NVIDIA A100-SXM4-80GB", Some("a100-80gb")),
        ("A100-SXM4-40GB", Some("a100-40gb")),
        ("NVIDIA A100-PCIE-40GB", Some("a100-40gb-pcie")),
        ("NVIDIA A800-SXM4-80GB", Some("a800")),
        ("NVIDIA H20", Some("h20")),
        ("NVIDIA B300", Some("b300")),
        ("NVIDIA B300 SXM6 AC", Some("b300")),
        ("NVIDIA GB200", Some("gb200")),
        ("Tesla V100-SXM2-32GB", Some("v100-32gb")),
        ("NVIDIA GeForce RTX 4090", Some("rtx4090")),
        // Other cards, whose names begin likewise.
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA GeForce RTX 4090 D", None),
        ("NVIDIA H200 NVL", None),
        ("NVIDIA H20-3e", None),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", None),
        ("Tesla V100-PCIE-32GB", None),
        ("Quadro K620", None),
        ("", None),
    ];
    for (name, profile) in cases {
        assert_eq!(of_product(name), profile, "{name}");
    }
    for name in names().filter(|name| HIGHEST.iter().any(|(device, _)| device == name)) {
        assert_eq!(of_product(&builtin(name).unwrap().device.name), Some(name), "no two devices have one product");
    }
}

const WHOLE: &str = r#"
product = "card"
device = "cuda"
memory = "10GiB"
units = 100
launch = "4us"
compute = { bf16 = { peak = "100TFLOP/s", reached = 0.8, source = "sheet" } }
hbm = { size = "11GiB", bandwidth = "1TB/s", reached = 0.9, source = "sheet" }
[node]
devices = 4
host_memory = { value = "1.5TiB", source = "invoice" }
[node.link]
kind = "nvlink3"
bandwidth = "300GB/s"
reached = 0.7
latency = "3us"
source = "sheet"
[network]
kind = "infiniband"
nics = 2
rate = "400Gb/s"
reached = 0.9
latency = 5e-6
"#;

fn all() -> Vec<(&'static Profile, &'static Machine)> {
    names().map(|name| profile(name).unwrap()).map(|profile| (profile, profile.machine().unwrap())).collect()
}

#[test]
fn every_file_is_compiled_in_and_loads() {
    MACHINES.has_every_file_of("machines");
    assert_eq!(all().len(), names().count());
}

#[test]
fn every_figure_of_those_that_are_compiled_in_has_a_source() {
    fn figures(place: &str, value: &Value, list: &mut Vec<String>) {
        let Value::Table(table) = value else { return list.push(place.into()) };
        if table.contains_key("value") {
            return list.push(place.into());
        }
        let words = [&WORDS[..], &["base", "memory_source", "source"]].concat();
        for (key, value) in table.iter().filter(|(key, _)| !words.contains(&key.as_str())) {
            let place = if place.is_empty() { key.clone() } else { format!("{place}.{key}") };
            figures(&place, value, list);
        }
    }
    for (name, text) in MACHINES.texts {
        let table = whole(name, text, 0).unwrap();
        let mut list = Vec::new();
        figures("", &Value::Table(table), &mut list);
        assert!(list.len() > 20, "{name}: {list:?}");
        let sources = &profile(name).unwrap().sources;
        for place in list {
            let source = sources.get(&place).map_or("", String::as_str);
            assert!(source.trim().len() >= 5, "{name}: {place} has source \"{source}\"");
        }
    }
}

#[test]
fn figures_are_possible_and_dense() {
    for (profile, machine) in all() {
        let name = &profile.name;
        let device = &machine.device;
        let shares = device.compute.values().map(|rate| rate.reached).chain([device.bandwidth_reached]);
        let links = [&machine.intra, &machine.inter, &machine.host];
        for share in shares.chain(links.map(|link| link.reached)) {
            assert!(share > 0.0 && share <= 1.0, "{name}: {share}");
        }
        assert!(device.compute.values().all(|rate| rate.peak > 1e12 && rate.peak < 1e16), "{name}");
        // A profile that states no rates of its own has its base's.
        let mut of = name.clone();
        let highest = loop {
            if let Some((_, highest)) = HIGHEST.iter().find(|(known, _)| *known == of) {
                break highest;
            }
            let table = MACHINES.texts.iter().find(|(known, _)| *known == of).unwrap().1.parse::<Table>().unwrap();
            of = table["base"].as_str().unwrap().to_string();
        };
        for number in [Number::Bf16, Number::F16] {
            let Some(rate) = device.compute.get(&number) else { continue };
            assert!((rate.peak / 1e12 - highest).abs() / highest < 1e-3, "{name}: {}", rate.peak);
        }
        assert!(device.compute.contains_key(&Number::F16) && device.compute.contains_key(&Number::F32), "{name}");
        // A rate of 8 bits is twice that of 16 (what is sold as four times has sparsity), that of tf32 half of it.
        let f16 = device.compute[&Number::F16].peak;
        for (number, share) in [(Number::Fp8, 2.0), (Number::Tf32, 0.5)] {
            let Some(rate) = device.compute.get(&number) else { continue };
            assert!((rate.peak / f16 / share - 1.0).abs() < 0.02, "{name}: {} {}", number.name(), rate.peak);
        }
        assert!(machine.node_devices >= 1 && (machine.node_devices == 1 || machine.intra.bandwidth > 0.0), "{name}");
        assert!(machine.intra.bandwidth >= machine.inter.bandwidth || machine.node_devices == 1, "{name}");
        assert!(machine.host.bandwidth > 1e9 && machine.host_memory > 0 && device.units >= 60, "{name}");
        assert!(device.launch > 1e-6 && device.launch < 1e-5, "{name}");
    }
}

#[test]
fn memory_is_below_the_rating_and_near_it() {
    for (name, text) in MACHINES.texts {
        let table = whole(name, text, 0).unwrap();
        let size = &table["hbm"]["size"];
        let rated = read::bytes(size.get("value").unwrap_or(size).as_str().unwrap()).unwrap();
        let usable = profile(name).unwrap().memory.unwrap() as f64;
        assert!(usable < rated && usable > 0.92 * rated, "{name}: {usable} of {rated}");
    }
}

#[test]
fn nodes_agree_with_their_device() {
    for (node, base) in [
        ("dgx-a100", "a100-80gb"),
        ("dgx-h100", "h100-sxm"),
        ("aws-p4d", "a100-40gb"),
        ("aws-p5", "h100-sxm"),
        ("aws-p6-b200", "b200"),
        ("gcp-a2-ultragpu", "a100-80gb"),
        ("gcp-a3", "h100-sxm"),
    ] {
        let (node, base) = (machine(node).unwrap(), machine(base).unwrap());
        assert_eq!((&node.device, &node.intra, &node.host), (&base.device, &base.intra, &base.host));
        assert!(node.disk_read > 0.0 && node.disk_write > 0.0 && node.host_memory > 1 << 40);
    }
    let rate =
        |name: &str| machine(name).unwrap().inter.bandwidth * 8.0 * machine(name).unwrap().node_devices as f64 / 1e9;
    for (name, gbits) in [
        ("dgx-a100", 1600.0),
        ("dgx-h100", 3200.0),
        ("aws-p4d", 400.0),
        ("aws-p5", 3200.0),
        ("aws-p6-b200", 3200.0),
        ("gcp-a2-ultragpu", 100.0),
        ("gcp-a3", 800.0),
    ] {
        assert!((rate(name) - gbits).abs() < 1e-6, "{name}: {}", rate(name));
    }
}

#[test]
fn an_unknown_machine_is_an_error_that_lists_what_there_is() {
    let error = machine("h100-smx").unwrap_err();
    assert!(matches!(&error, ProfileError::Unknown { nearest, .. } if nearest == "h100-sxm"));
    let text = error.to_string();
    assert!(names().all(|name| text.contains(name)), "{text}");
    for (asked, expected) in
        [("h1000", "h100-sxm"), ("h100", "h100-sxm"), ("H200", "h200"), ("a100-80", "a100-80gb"), ("xyz", "")]
    {
        let Err(ProfileError::Unknown { nearest, .. }) = machine(asked) else { panic!("{asked} is no machine") };
        assert_eq!(nearest, expected, "{asked}");
    }
    for name in ["", "Gaudi2", "A100", "../a100-80gb", "h100"] {
        assert!(machine(name).is_err() && builtin(name).is_none(), "{name}");
    }
    assert!(machine("tpu-v5p").unwrap_err().to_string().starts_with("there is no machine \"tpu-v5p\"; there are a100"));
}

#[test]
fn a_whole_profile_is_read() {
    let profile = Profile::read("mine", WHOLE).unwrap();
    let machine = profile.machine().unwrap();
    assert_eq!((machine.name.as_str(), machine.node_devices, machine.device.units), ("mine", 4, 100));
    assert_eq!(machine.device.memory, 10 << 30);
    assert_eq!(machine.device.compute[&Number::Bf16].peak, 1e14);
    assert_eq!((machine.device.bandwidth, machine.intra.bandwidth), (1e12, 3e11));
    // Two cards of 50 GB/s for four devices.
    assert_eq!((machine.inter.bandwidth, machine.inter.latency), (25e9, 5e-6));
    assert_eq!((machine.host_memory, machine.disk_read), (3 << 39, 0.0));
    assert_eq!(profile.sources["compute.bf16.peak"], "sheet");
    assert_eq!(profile.sources["node.host_memory"], "invoice");
    assert!(!profile.sources.contains_key("units"));
}

#[test]
fn a_base_is_overridden_key_by_key_and_sources_stay_true() {
    let text = "base = \"h100-sxm\"\nhbm.bandwidth = \"3TB/s\"\n[node]\ndevices = 4\n[network]\nkind = \"efa\"\nnics = 1\n\
                rate = \"100Gb/s\"\nreached = 0.8\nlatency = \"20us\"\nsource = \"mine\"\n";
    let profile = Profile::read("half", text).unwrap();
    let (machine, base) = (profile.machine().unwrap(), machine("h100-sxm").unwrap());
    assert_eq!((machine.device.bandwidth, machine.node_devices), (3e12, 4));
    assert_eq!(machine.device.compute, base.device.compute);
    assert_eq!(machine.inter.bandwidth, 12.5e9 / 4.0);
    assert_eq!(profile.sources["hbm.bandwidth"], "stated by the profile half");
    assert_eq!((profile.sources["network.rate"].as_str(), &machine.name[..]), ("mine", "half"));
    assert!(profile.sources["hbm.size"].contains("H100"));
    let error = Profile::read("x", "base = \"h1000\"").unwrap_err();
    assert!(matches!(error, ProfileError::Base { .. }) && error.to_string().contains("h100-sxm"));
}

#[test]
fn what_other_commands_write_into_a_profile_is_kept() {
    let text = "about = \"measured\"\ndevice = \"cpu\"\n[collectives.local.ranks-2.all_reduce]\nfits = []\n\
                [ceilings]\nmeasured = \"today\"\n[ceilings.threads-2]\nmatrix = { f32 = { median = 1e11 } }\n";
    let profile = Profile::read("here", text).unwrap();
    assert!(profile.collectives.contains_key("local") && profile.ceilings.contains_key("threads-2"));
    assert_eq!((profile.memory, &profile.machine), (None, &None));
    let error = profile.machine().unwrap_err().to_string();
    assert!(error.contains("here") && error.contains("docs/machines.md"), "{error}");
    // The first form of the file is a profile still.
    let old = Profile::read("old", "about = \"x\"\ndevice = \"cuda\"\nmemory = \"79.15GiB\"\n").unwrap();
    assert_eq!(old.memory, Some((79.15 * (1u64 << 30) as f64).round() as u64));
}

#[test]
fn what_is_wrong_is_said_by_key() {
    let of = |from: &str, to: &str| {
        assert!(WHOLE.contains(from), "{from}");
        Profile::read("mine", &WHOLE.replacen(from, to, 1)).unwrap_err()
    };
    let cases = [
        ("units = 100", "unts = 100", "unts (did you mean units?)"),
        ("reached = 0.8", "reached = 1.2", "compute.bf16.reached = 1.2"),
        ("reached = 0.8", "reached = 0", "compute.bf16.reached"),
        ("reached = 0.8, ", "", "does not say compute.bf16.reached"),
        ("bf16 =", "bf61 =", "compute.bf61 (did you mean bf16?)"),
        ("\"100TFLOP/s\"", "\"100 parsecs\"", "compute.bf16.peak = \"100 parsecs\""),
        ("\"100TFLOP/s\"", "nan", "compute.bf16.peak"),
        ("devices = 4", "devices = 4.5", "node.devices"),
        ("devices = 4", "devices = true", "node.devices = true"),
        ("devices = 4", "devices = { valeu = 4 }", "node.devices.valeu"),
        ("nics = 2", "nics = -2", "network.nics = -2"),
        ("rate = \"400Gb/s\"", "rate = \"400Gb\"", "network.rate"),
        ("[node.link]", "[node.lnk]", "node.lnk (did you mean link?)"),
        ("size = \"11GiB\"", "size = \"9GiB\"", "hbm.size"),
        ("memory = \"10GiB\"", "", "does not say memory"),
        ("device = \"cuda\"", "device = \"tpu\"", "device = \"tpu\""),
        ("product = \"card\"", "product = 3", "product = 3"),
        ("kind = \"nvlink3\"", "", "does not say node.link.kind"),
        ("units = 100", "units = 100\nunits = 100", "no TOML"),
        ("hbm = {", "compute2 = {", "unknown key compute2"),
    ];
    for (from, to, wanted) in cases {
        let error = of(from, to).to_string();
        assert!(error.contains(wanted) && error.contains("mine"), "{to}: {error}");
    }
}

#[test]
fn a_drive_that_was_measured_stands_for_one_that_a_node_does_not_state() {
    let drives = |read: &str| {
        format!(
            "[drives]\nmeasured = [{{ folder = \"/x\", newest = \"today\", rates = [{{ bytes = 4096, read = 1e9, write = 2e9 }}, \
             {{ bytes = 8192, read = {read}, write = 4e9 }}] }}]\n"
        )
    };
    let of = |whole: &str, read: &str| Profile::read("x", &format!("{whole}\n{}", drives(read)));
    let profile = of(WHOLE, "3e9").unwrap();
    let machine = profile.machine().unwrap();
    assert_eq!((machine.disk_read, machine.disk_write), (3e9, 4e9));
    assert!(profile.sources["node.disk_read"].contains("zbench io in /x"), "{:?}", profile.sources);
    let stated = WHOLE.replace("devices = 4", "devices = 4\ndisk_read = \"5GB/s\"");
    let profile = of(&stated, "3e9").unwrap();
    assert_eq!((profile.machine().unwrap().disk_read, profile.machine().unwrap().disk_write), (5e9, 0.0));
    assert!(of(WHOLE, "-3e9").unwrap_err().to_string().contains("--from-notebook"));
}

#[test]
fn a_topology_is_read_with_the_source_of_each_figure() {
    let of = |keys: &str| Profile::read("mine", &format!("{WHOLE}{keys}")).unwrap().machine().unwrap().topology.clone();
    assert_eq!(of(""), Topology::default());
    assert_eq!(of("topology = \"flat\"\n"), Topology::default());
    let pods =
        |nodes, rails, oversubscription, routing| Topology::Pods(Pods { nodes, rails, oversubscription, routing });
    assert_eq!(of("oversubscription = 2\n"), pods(1, false, 2.0, Routing::Share(1.0)));
    assert_eq!(of("topology = \"fat-tree\"\npod_nodes = 4\n"), pods(4, false, 1.0, Routing::Share(1.0)));
    let rail = of("topology = \"rail\"\npod_nodes = 32\noversubscription = 1.5\necmp = 0.7\n");
    assert_eq!(rail, pods(32, true, 1.5, Routing::Share(0.7)));
    let hash = of("topology = \"fat-tree\"\npod_nodes = 4\nuplinks = 16\nflows = 4\n");
    assert_eq!(hash, pods(4, false, 1.0, Routing::Hash { paths: 16, flows: 4 }));
    assert_eq!(of("uplinks = 16\n"), pods(1, false, 1.0, Routing::Hash { paths: 16, flows: 1 }));
    assert_eq!(of("topology = \"torus\"\ntorus = [8]\n"), Topology::Torus(vec![8]));
    let meta = profile("meta-24k-h100").unwrap();
    assert_eq!(meta.machine().unwrap().topology, pods(384, false, 7.0, Routing::Share(1.0)));
    assert!(meta.sources["network.oversubscription"].contains("1:7"));
    assert!(profile("torus-example").unwrap().sources["network.torus"].contains("example"));
}

#[test]
fn a_topology_can_be_changed_key_by_key() {
    let mine = Profile::read("mine", WHOLE).unwrap();
    let change = |profile: &Profile, list: &[(&str, &str)]| {
        let list: Vec<(String, Value)> = list
            .iter()
            .map(|(key, value)| ((*key).to_string(), format!("x = {value}").parse::<Table>().unwrap()["x"].clone()))
            .collect();
        profile.changed(&list).map(|profile| profile.machine().unwrap().topology.clone())
    };
    let flat = change(&mine, &[("network.oversubscription", "2")]).unwrap();
    assert!(matches!(flat, Topology::Pods(pods) if pods.oversubscription == 2.0 && pods.nodes == 1));
    let tree = [("network.topology", "\"fat-tree\""), ("network.pod_nodes", "16"), ("network.ecmp", "0.5")];
    let tree = change(&mine, &tree).unwrap();
    assert!(matches!(tree, Topology::Pods(pods) if pods.nodes == 16 && pods.routing == Routing::Share(0.5)));
    let superpod = profile("dgx-superpod-h100").unwrap();
    let Topology::Pods(pods) = change(superpod, &[("network.oversubscription", "2")]).unwrap() else { panic!("pods") };
    assert_eq!((pods.nodes, pods.rails, pods.oversubscription), (32, true, 2.0));
    let torus = change(profile("torus-example").unwrap(), &[("network.torus", "[8, 8, 8]")]).unwrap();
    assert_eq!(torus, Topology::Torus(vec![8, 8, 8]));
}

#[test]
fn what_is_wrong_with_a_topology_is_said_by_key() {
    let cases = [
        ("topology = \"mesh\"", "network.topology = \"mesh\" is not \"flat\""),
        ("topology = 3", "network.topology = 3"),
        ("topology = \"fat-tree\"", "does not say network.pod_nodes"),
        ("topology = \"rail\"\npod_nodes = 0", "network.pod_nodes = 0"),
        ("topology = \"rail\"\npod_nodes = 2.5", "network.pod_nodes = 2.5"),
        ("oversubscription = 0.5", "network.oversubscription = 0.5 is not rate of a pod's downlinks"),
        ("oversubscription = -1", "network.oversubscription = -1"),
        ("oversubscription = 1e9", "network.oversubscription"),
        ("oversubscription = nan", "network.oversubscription = nan"),
        ("oversubscription = \"2:1\"", "network.oversubscription = \"2:1\""),
        ("ecmp = 0", "network.ecmp = 0"),
        ("ecmp = 1.1", "network.ecmp = 1.1"),
        ("ecmp = 0.5\nuplinks = 8", "network.ecmp = 0.5 is not needed beside uplinks"),
        ("uplinks = 0", "network.uplinks = 0"),
        ("flows = 4", "does not say network.uplinks"),
        ("uplinks = 8\nflows = 1.5", "network.flows = 1.5"),
        ("uplinks = 8\nflows = 0", "network.flows = 0"),
        ("pod_nodes = 4", "network.pod_nodes = 4 is not a key of topology = \"flat\""),
        ("torus = [4, 4]", "network.torus = [4, 4] is not a key of topology = \"flat\""),
        ("topology = \"torus\"", "does not say network.torus"),
        ("topology = \"torus\"\ntorus = [4]\noversubscription = 2", "network.oversubscription = 2 is not a key of"),
        ("topology = \"torus\"\ntorus = 4", "network.torus = 4"),
        ("topology = \"torus\"\ntorus = []", "network.torus = []"),
        ("topology = \"torus\"\ntorus = [1, 1]", "network.torus = [1, 1]"),
        ("topology = \"torus\"\ntorus = [4, 0]", "network.torus = [4, 0]"),
        ("topology = \"torus\"\ntorus = [4, -4]", "network.torus = [4, -4]"),
        ("topology = \"torus\"\ntorus = [4, 2.5]", "network.torus = [4, 2.5]"),
        ("topology = \"torus\"\ntorus = [9223372036854775807, 4]", "network.torus = [9223372036854775807, 4]"),
        ("topology = \"torus\"\ntorus = [2, 2, 2, 2, 2, 2, 2]", "network.torus"),
        ("topology = \"torus\"\ntorus = [4, 4]", "network.nics = 2 is not 4, the links of a node in 2 dimensions"),
        ("toplogy = \"torus\"", "network.toplogy (did you mean topology?)"),
    ];
    for (keys, wanted) in cases {
        let error = Profile::read("mine", &format!("{WHOLE}{keys}\n")).unwrap_err().to_string();
        assert!(error.contains(wanted), "{keys}: {error}");
    }
}

#[test]
fn the_topology_in_the_documentation_is_a_profile() {
    let page = include_str!("../../../../docs/machines.md");
    let example = page.lines().skip_while(|line| !line.contains("about = \"our rack"));
    let example = example.take_while(|line| line.is_empty() || line.starts_with("    "));
    let text: String = example.map(|line| format!("{}\n", line.trim())).collect();
    let profile = Profile::read("rack", &text).unwrap();
    let Topology::Pods(pods) = &profile.machine().unwrap().topology else { panic!("a fat tree") };
    assert_eq!((pods.nodes, pods.oversubscription), (16, 2.0));
    assert_eq!(pods.routing, Routing::Hash { paths: 64, flows: 4 });
}
