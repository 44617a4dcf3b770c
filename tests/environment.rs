//! Environment and sampling over machines that tests make: files below a folder, and a clock that is a number.

use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;
use zbench_host::environment::root::{cpu_list, line_of};
use zbench_host::environment::{Process, Root, capture, container, cpu, devices, variables};
use zbench_host::sampling::sampled::Sampled;
use zbench_host::sampling::{Watch, usable_cpus};
use zbench_reports::environment::{Aspect, known_aspect};

/// A machine, made of files.
struct Machine(tempfile::TempDir);

impl Machine {
    fn new(files: &[(&str, &str)]) -> Machine {
        let machine = Machine(tempfile::tempdir().unwrap());
        files.iter().for_each(|(path, text)| machine.set(path, text));
        machine
    }

    fn set(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn root(&self) -> Root {
        Root::at(self.0.path())
    }
}

const CPUINFO: &str = "processor\t: 0\nmodel name\t: Intel(R) Xeon(R) 8480\nmicrocode\t: 0x2b0\ncpu MHz\t\t: 2000.5\nflags\t\t: fpu avx512f hypervisor\n\
    processor\t: 1\nmodel name\t: Intel(R) Xeon(R) 8480\ncpu MHz\t\t: 3500.0\nflags\t\t: fpu avx512f hypervisor\n";

/// A server with everything that is looked at.
fn server() -> Machine {
    let machine = Machine::new(&[
        ("proc/cpuinfo", CPUINFO),
        ("proc/meminfo", "MemTotal:       1000 kB\nMemAvailable:    500 kB\nSwapTotal:  64 kB\n"),
        ("proc/sys/kernel/hostname", "node7\n"),
        ("proc/sys/kernel/osrelease", "6.1.0-18-amd64\n"),
        ("etc/os-release", "ID=debian\nPRETTY_NAME=\"Debian 12\"\n"),
        ("proc/self/cgroup", "0::/job/step\n"),
        ("sys/fs/cgroup/cgroup.controllers", "cpu memory\n"),
        ("sys/fs/cgroup/job/cpu.max", "150000 100000\n"),
        ("sys/fs/cgroup/job/step/cpu.max", "max 100000\n"),
        ("sys/fs/cgroup/job/memory.max", "512000\n"),
        ("proc/1/cgroup", "0::/kubepods/pod1\n"),
        ("sys/class/dmi/id/sys_vendor", "QEMU\n"),
        ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"),
        ("sys/devices/system/cpu/online", "0-1\n"),
        ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n"),
        ("sys/devices/system/cpu/cpu0/cpufreq/scaling_max_freq", "3800000\n"),
        ("sys/devices/system/cpu/intel_pstate/no_turbo", "1\n"),
        ("sys/devices/system/cpu/vulnerabilities/meltdown", "Not affected\n"),
        ("sys/devices/system/cpu/vulnerabilities/spectre_v2", "Mitigation: Enhanced IBRS; PBRSB: SW\n"),
        ("sys/devices/system/node/node0/cpulist", "0-1\n"),
        ("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.133.20  Mon\nGCC\n"),
        ("proc/driver/nvidia/gpus/0000:01:00.0/information", "Model: \t\t NVIDIA H200\nGPU UUID: GPU-1\n"),
        ("usr/lib/x86_64-linux-gnu/libnccl.so", ""),
        ("usr/lib/x86_64-linux-gnu/libnccl.so.2.28.9", ""),
        ("opt/cuda/libcublasLt.so.12.8.4.1", ""),
        ("sys/class/net/lo/type", "772\n"),
        ("sys/class/net/eth0/type", "1\n"),
        ("sys/class/net/eth0/speed", "25000\n"),
        ("sys/class/net/eth0/address", "52:54:00:12:34:56\n"),
        ("sys/class/net/eth0/device/vendor", "0x15b3\n"),
        ("sys/class/infiniband/mlx5_0/ports/1/rate", "400 Gb/sec (4X NDR)\n"),
    ]);
    for cpu in 0..2 {
        machine.set(&format!("sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id"), "0\n");
        machine.set(&format!("sys/devices/system/cpu/cpu{cpu}/topology/core_id"), "0\n");
    }
    for (index, level, kind, size) in
        [(0, 1, "Data", "48K"), (1, 1, "Instruction", "32K"), (2, 2, "Unified", "2048K"), (3, 3, "Unified", "105M")]
    {
        let folder = format!("sys/devices/system/cpu/cpu0/cache/index{index}");
        machine.set(&format!("{folder}/level"), &format!("{level}\n"));
        machine.set(&format!("{folder}/type"), kind);
        machine.set(&format!("{folder}/size"), size);
        machine.set(&format!("{folder}/shared_cpu_list"), "0-1\n");
    }
    machine
}

fn process() -> Process {
    let variables = [
        ("NCCL_DEBUG", "INFO"),
        ("NCCL_SOCKET_IFNAME", "eth0"),
        ("NCCL_API_KEY", "abc"),
        ("UCX_NET", "10.1.2.3"),
        ("UCX_TLS_HOST", "node9"),
        ("ZBENCH_CUDA_LIBS", "/opt/cuda"),
        ("ZBENCH_PARENT", "17"),
        ("HOME", "/home/alice"),
        ("MALLOC_CONF", "http://alice:secret@proxy/x"),
        ("OMP_PLACES", "node7"),
    ];
    Process {
        cores: 2,
        simd: vec!["avx512"],
        variables: variables.map(|(name, value)| (name.to_string(), value.to_string())).to_vec(),
        binary: Some("0123456789abcdef".into()),
        build: Default::default(),
    }
}

#[test]
fn a_server_is_read_in_full() {
    let environment = capture(&server().root(), &process());
    let hash = zbench_reports::redact::host_hash;
    for (path, expected) in [
        ("/cpu", json!("Intel(R) Xeon(R) 8480")),
        ("/topology", json!({"sockets": 1, "cores": 1, "threads": 2})),
        ("/caches", json!({"l1d": 49152, "l1i": 32768, "l2": 2097152, "l3": 110100480, "l3_shared_by_threads": 2})),
        ("/numa", json!({"nodes": 1, "node0_cpus": "0-1"})),
        ("/memory_bytes", json!(512000)),
        ("/limits", json!({"cpu_quota_cores": 1.5, "memory_bytes": 512000})),
        ("/virtualisation", json!("qemu")),
        ("/container", json!("kubernetes")),
        ("/gpus", json!(["NVIDIA H200"])),
        ("/driver", json!({"nvidia": "570.133.20"})),
        ("/libraries", json!({"cublaslt": "12.8.4.1", "nccl": "2.28.9"})),
        ("/nics", json!(["1 x ethernet 25000 Mb/s", "1 x rdma port 400 Gb/sec (4X NDR)"])),
        ("/os", json!("Debian 12")),
        ("/kernel", json!("6.1.0-18-amd64")),
        ("/microcode", json!("0x2b0")),
        ("/mitigations", json!({"spectre_v2": "Mitigation: Enhanced IBRS"})),
        ("/transparent_huge_pages", json!("madvise")),
        ("/host", json!(hash("node7"))),
        ("/binary", json!("0123456789abcdef")),
        ("/state", json!({"governor": "performance", "most_mhz": 3800, "turbo": false, "swap_total_bytes": 65536})),
    ] {
        assert_eq!(Value::Object(environment.clone()).pointer(path), Some(&expected), "{path}");
    }
    let variables = environment["variables"].as_object().unwrap();
    let expected = json!({
        "MALLOC_CONF": "<redacted>",
        "NCCL_API_KEY": "<redacted>",
        "NCCL_DEBUG": "INFO",
        "NCCL_SOCKET_IFNAME": "eth0",
        "OMP_PLACES": hash("node7"),
        "UCX_NET": hash("10.1.2.3"),
        "UCX_TLS_HOST": hash("node9"),
        "ZBENCH_CUDA_LIBS": "/opt/cuda",
    });
    assert_eq!(Value::Object(variables.clone()), expected);
    let text = Value::Object(environment).to_string();
    for private in ["node7", "node9", "52:54:00", "10.1.2.3", "alice", "GPU-1"] {
        assert!(!text.contains(private), "{private} in {text}");
    }
}

#[test]
fn every_captured_name_is_hardware_software_or_state() {
    let mut environment = capture(&server().root(), &process());
    // Those that the runner adds.
    environment.extend(json!({"load_average": 1.0, "kernels": "cpu"}).as_object().cloned().unwrap());
    for name in environment.keys() {
        assert!(known_aspect(name).is_some(), "{name} is not classified");
    }
    let of = |aspect| environment.keys().filter(|name| known_aspect(name) == Some(aspect)).count();
    assert!(of(Aspect::Hardware) >= 10 && of(Aspect::Software) >= 10 && of(Aspect::State) >= 2);
    assert_eq!(known_aspect("governor_of_tomorrow"), None);
}

#[test]
fn an_empty_machine_states_nothing_and_guesses_nothing() {
    let empty = Machine::new(&[]);
    let environment = capture(&empty.root(), &Process { cores: 1, ..Process::default() });
    let host = zbench_reports::redact::host_hash("localhost");
    assert_eq!(environment["host"], json!(host));
    // What was built in, as with `--features png`, is of the program.
    let own = ["architecture", "cores", "host", "zbench", "commit", "rustc", "profile", "features"];
    let others: Vec<&String> = environment.keys().filter(|name| !own.contains(&name.as_str())).collect();
    assert!(others.is_empty(), "{others:?}");
}

#[test]
fn version_1_of_control_groups() {
    let machine = Machine::new(&[
        ("proc/self/cgroup", "4:memory:/pod\n3:cpu,cpuacct:/\n0::/\n"),
        ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "50000\n"),
        ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n"),
        ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ("sys/fs/cgroup/memory/pod/memory.limit_in_bytes", "4096\n"),
    ]);
    assert_eq!(container::cpu_quota(&machine.root()), Some(0.5));
    assert_eq!(container::memory_limit(&machine.root()), Some(4096));
    machine.set("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
    machine.set("sys/fs/cgroup/memory/pod/memory.limit_in_bytes", "9223372036854771712\n");
    assert_eq!(container::limits(&machine.root()), Map::new());
    machine.set("proc/self/cgroup", "0::/../../etc\n1:cpu:/../x\n");
    assert_eq!(container::folders(&machine.root(), "cpu"), Vec::<String>::new());
}

#[test]
fn lists_and_lines() {
    assert_eq!(cpu_list("0-2,5"), Some(vec![0, 1, 2, 5]));
    for wrong in ["", "a", "3-1", "0-99999999", "1,,2", "-1"] {
        assert_eq!(cpu_list(wrong), None, "{wrong}");
    }
    assert_eq!(line_of("pswpin 3\npswpinned 4\n", "pswpin"), Some("3"));
    assert_eq!(cpu::size_of_cache("18446744073709551615M"), None);
    assert!(!variables::is_recorded("AWS_SECRET_ACCESS_KEY") && variables::is_recorded("RUST_LOG"));
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(48))]

    /// Whatever stands in any file, cut off anywhere: no panic, in the capture or while sampling.
    #[test]
    fn hostile_files_are_read_without_panic(
        victim in proptest::prelude::any::<proptest::sample::Index>(),
        junk in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..60),
        cut in proptest::prelude::any::<proptest::sample::Index>(),
    ) {
        let machine = server();
        sampled_files(&machine, 100);
        let mut files = Vec::new();
        walk(machine.0.path(), &mut files);
        let path = &files[victim.index(files.len())];
        let mut bytes = std::fs::read(path).unwrap();
        bytes.truncate(cut.index(bytes.len() + 1));
        bytes.extend(&junk);
        std::fs::write(path, bytes).unwrap();
        let environment = capture(&machine.root(), &process());
        proptest::prop_assert!(environment.contains_key("cores"));
        let mut watch = Watch::begin(machine.root(), vec![0, 1], Duration::ZERO);
        watch.step(false);
        watch.step(true);
        let sampled = watch.end(Duration::from_secs(1));
        proptest::prop_assert!(sampled.seconds == 1.0);
        sampled.flags();
    }
}

fn walk(folder: &Path, files: &mut Vec<std::path::PathBuf>) {
    let mut entries: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() { walk(&path, files) } else { files.push(path) }
    }
}

#[test]
fn folders_where_files_should_be_and_files_where_folders_should_be() {
    let machine =
        Machine::new(&[("sys/class/net", "no folder"), ("sys/devices/system/cpu", "none"), ("proc/cpuinfo/x", "")]);
    let environment = capture(&machine.root(), &process());
    assert!(!environment.contains_key("cpu") && !environment.contains_key("nics"));
    assert_eq!(devices::find_library(&machine.root(), &["/none".into()], "libnccl.so"), None);
}

/// Counters of a machine that works: ticks of two cores and what else grows.
fn sampled_files(machine: &Machine, ticks: u64) {
    let core = |n: u64| format!("cpu{n} {ticks} 0 0 1000 0 0 0 0 0 0\n");
    machine.set("proc/stat", &format!("cpu  {} 0 0 2000 0 0 0 0 0 0\n{}{}", 2 * ticks, core(0), core(1)));
    machine.set("proc/self/stat", &format!("7 (z bench) S 1 7 7 0 -1 4 0 0 3 4 {} 0 {ticks} 0 20 0\n", ticks / 2));
    machine.set("proc/vmstat", "pgmajfault 5\npswpin 10\npswpout 20\n");
    machine.set("proc/pressure/memory", "some avg10=0.00 avg60=0.00 avg300=0.00 total=1000\nfull avg10=0.00 total=0\n");
    machine.set("sys/fs/cgroup/job/step/cpu.stat", "usage_usec 1\nnr_periods 10\nnr_throttled 1\nthrottled_usec 500\n");
    machine.set("sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count", "7\n");
    machine.set("sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_total_time_ms", "70\n");
    machine.set("sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq", "3000000\n");
    machine.set("sys/class/hwmon/hwmon0/name", "coretemp\n");
    machine.set("sys/class/hwmon/hwmon0/temp1_input", "41000\n");
    for (zone, name) in [("0", "package-0"), ("0:0", "core"), ("0:1", "dram"), ("1", "psys")] {
        machine.set(&format!("sys/class/powercap/intel-rapl:{zone}/name"), name);
        machine.set(&format!("sys/class/powercap/intel-rapl:{zone}/energy_uj"), "900\n");
        machine.set(&format!("sys/class/powercap/intel-rapl:{zone}/max_energy_range_uj"), "999\n");
    }
}

/// What a quiet machine looks like after ten seconds.
fn quiet(change: impl Fn(&Machine)) -> Sampled {
    let machine = server();
    sampled_files(&machine, 100);
    let mut watch = Watch::begin(machine.root(), vec![0, 1], Duration::from_secs(5));
    change(&machine);
    watch.sample();
    watch.end(Duration::from_secs(15))
}

fn flags(sampled: &Sampled) -> Vec<&'static str> {
    sampled.flags().into_iter().map(|(flag, _)| flag).collect()
}

#[test]
fn a_quiet_machine_raises_no_flag_and_states_its_numbers() {
    let sampled = quiet(|_| ());
    assert_eq!(flags(&sampled), Vec::<&str>::new());
    assert_eq!((sampled.seconds, sampled.samples), (10.0, 3));
    assert_eq!(sampled.clock_mhz, Some([3000.0; 3]));
    assert_eq!(sampled.temperature_c, Some([41.0; 3]));
    assert_eq!((sampled.throttle_events, sampled.major_faults, sampled.swap_in_bytes), (Some(0), Some(0), Some(0)));
    assert_eq!(sampled.energy_joules, Some(0.0));
    let json = serde_json::to_value(&sampled).unwrap();
    assert!(json.get("power_w").is_none() && json.get("why_no_energy").is_none(), "{json}");
}

#[test]
fn each_cause_raises_its_own_flag_above_its_threshold_only() {
    type Change = (&'static str, &'static str, String);
    let stat = |stolen: u64| format!("cpu0 100 0 0 1000 0 0 0 {stolen} 0 0\ncpu1 100 0 0 1000 0 0 0 0 0 0\n");
    let quota = |us: u64| format!("nr_periods 110\nnr_throttled 3\nthrottled_usec {us}\n");
    let pressure = |us: u64| format!("some avg10=0.00 total={us}\n");
    let own = |faults: u64| format!("7 (z bench) S 1 7 7 0 -1 4 0 0 3 {} 50 0 100 0 20 0\n", 4 + faults);
    let swap = |pages: u64| format!("pswpin {}\npswpout 20\n", 10 + pages);
    let heat = "sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_total_time_ms";
    // Ten seconds of two cores: 2000 ticks.
    let cases: Vec<(Option<&str>, Change)> = vec![
        (None, ("stolen", "proc/stat", stat(100))),
        (Some("stolen"), ("stolen", "proc/stat", stat(102))),
        (None, ("quota", "sys/fs/cgroup/job/step/cpu.stat", quota(500 + 100_000))),
        (Some("cpu_quota"), ("quota", "sys/fs/cgroup/job/step/cpu.stat", quota(500 + 100_500))),
        (None, ("pressure", "proc/pressure/memory", pressure(1000 + 1_000_000))),
        (Some("memory_pressure"), ("pressure", "proc/pressure/memory", pressure(1000 + 1_001_000))),
        (None, ("faults", "proc/self/stat", own(1999))),
        (Some("paged"), ("faults", "proc/self/stat", own(2000))),
        (None, ("swap", "proc/vmstat", swap(2560))),
        (Some("swapped"), ("swap", "proc/vmstat", swap(2561))),
        // The mean of two cores.
        (None, ("heat", heat, "270".into())),
        (Some("throttled"), ("heat", heat, "272".into())),
    ];
    for (expected, (what, path, text)) in cases {
        let sampled = quiet(|machine| machine.set(path, &text));
        assert_eq!(flags(&sampled), expected.into_iter().collect::<Vec<_>>(), "{what}: {text}");
        assert!(sampled.flags().iter().all(|(_, words)| words.ends_with('.')));
    }
}

#[test]
fn throttling_is_told_by_count_where_no_time_is_stated() {
    let machine = server();
    let count = "sys/devices/system/cpu/cpu1/thermal_throttle/package_throttle_count";
    machine.set(count, "3");
    let watch = Watch::begin(machine.root(), vec![0, 1], Duration::ZERO);
    machine.set(count, "4");
    assert_eq!(flags(&watch.end(Duration::from_secs(1))), ["throttled"]);
}

#[test]
fn others_are_contention_only_where_the_machine_has_more_cores_than_the_cell() {
    // 500 of 1000 ticks of core 0 in ten seconds, none of them ours.
    let busy = |cpus: &[u32]| {
        let machine = server();
        sampled_files(&machine, 100);
        let watch = Watch::begin(machine.root(), cpus.to_vec(), Duration::ZERO);
        machine.set("proc/stat", "cpu0 600 0 0 1000 0 0 0 0 0 0\ncpu1 100 0 0 1000 0 0 0 0 0 0\n");
        watch.end(Duration::from_secs(10))
    };
    assert_eq!(busy(&[0, 1]).others_share, Some(0.25));
    assert_eq!(flags(&busy(&[0, 1])), Vec::<&str>::new(), "busy_machine is for this");
    assert_eq!(busy(&[0]).others_share, Some(0.5));
    assert_eq!(flags(&busy(&[0])), ["contended"]);
}

#[test]
fn ranks_that_a_launcher_has_started_are_no_other_processes() {
    let machine = server();
    sampled_files(&machine, 100);
    let mut watch = Watch::begin(machine.root(), vec![0], Duration::ZERO);
    machine.set("proc/stat", "cpu0 600 0 0 1000 0 0 0 0 0 0\ncpu1 100 0 0 1000 0 0 0 0 0 0\n");
    // Of 500 ticks 450 are of another rank of this cell.
    watch.add_peers(4.5);
    let sampled = watch.end(Duration::from_secs(10));
    assert_eq!((flags(&sampled), sampled.peers_seconds), (Vec::new(), Some(4.5)));
    assert!(sampled.others_share.is_some_and(|share| (share - 0.05).abs() < 1e-9), "{:?}", sampled.others_share);
}

#[test]
fn a_short_cell_is_not_judged() {
    let machine = server();
    sampled_files(&machine, 100);
    let watch = Watch::begin(machine.root(), vec![0], Duration::ZERO);
    machine.set("proc/stat", "cpu0 600 0 0 1000 0 0 0 600 0 0\ncpu1 1 0 0 0 0 0 0 0 0\n");
    assert_eq!(flags(&watch.end(Duration::from_millis(499))), Vec::<&str>::new());
}

#[test]
fn energy_goes_on_when_its_counter_is_full_and_counts_packages_and_memory_once() {
    let machine = server();
    sampled_files(&machine, 100);
    let set = |zone: &str, value: u64| {
        machine.set(&format!("sys/class/powercap/intel-rapl:{zone}/energy_uj"), &value.to_string())
    };
    let mut watch = Watch::begin(machine.root(), vec![0, 1], Duration::ZERO);
    ["0:0", "1"].iter().for_each(|zone| set(zone, 950));
    set("0", 990);
    watch.step(false);
    // 90 so far. The package's counter goes from 990 over 999 to 10: 20 more; memory adds 5.
    set("0", 10);
    set("0:1", 905);
    watch.step(true);
    set("0", 400);
    let sampled = watch.end(Duration::from_secs(2));
    assert_eq!(sampled.timed_joules.map(|joules| (joules * 1e6).round()), Some(25.0));
    assert_eq!(sampled.energy_joules.map(|joules| (joules * 1e6).round()), Some(90.0 + 25.0 + 390.0));
    assert_eq!(sampled.why_no_energy, None);
}

#[test]
fn an_energy_counter_that_is_absent_or_lost_is_a_reason() {
    let without = Machine::new(&[]);
    let sampled = Watch::begin(without.root(), vec![0], Duration::ZERO).end(Duration::from_secs(1));
    assert!(sampled.why_no_energy.unwrap().contains("no energy counter"));
    let machine = server();
    sampled_files(&machine, 100);
    let watch = Watch::begin(machine.root(), vec![0], Duration::ZERO);
    std::fs::remove_file(machine.0.path().join("sys/class/powercap/intel-rapl:0/energy_uj")).unwrap();
    let sampled = watch.end(Duration::from_secs(1));
    assert_eq!(sampled.energy_joules, None);
    assert!(sampled.why_no_energy.unwrap().contains("was lost"));
}

#[test]
fn usable_cores_are_those_allowed_and_there() {
    let machine = Machine::new(&[
        ("proc/self/status", "Name:\tx\nCpus_allowed_list:\t0-3\n"),
        ("proc/stat", "cpu  1\ncpu0 1\ncpu2 1\n"),
    ]);
    assert_eq!(usable_cpus(&machine.root()), [0, 2]);
    assert_eq!(usable_cpus(&Machine::new(&[]).root()), Vec::<u32>::new());
}

/// This very machine, whatever it is: names are known, a short watch has numbers that can be.
#[test]
fn the_real_machine_can_be_read() {
    let environment = zbench_host::environment::of_this_process();
    assert!(environment["cores"].as_u64().unwrap() >= 1);
    assert!(environment.keys().all(|name| known_aspect(name).is_some()));
    let binary = environment["binary"].as_str().unwrap();
    assert_eq!(Some(binary.to_string()), zbench_host::environment::binary_hash(&std::env::current_exe().unwrap()));
    let sampled = zbench_host::sampling::Sampler::start(0).finish();
    let shares = [sampled.stolen_share, sampled.memory_stall_share];
    assert!(shares.iter().flatten().all(|share| (0.0..=100.0).contains(share)), "{sampled:?}");
    assert!(sampled.samples >= 2 && sampled.cost_ms >= 0.0);
    let _: BTreeMap<&str, ()> = sampled.flags().into_iter().map(|(flag, _)| (flag, ())).collect();
}
