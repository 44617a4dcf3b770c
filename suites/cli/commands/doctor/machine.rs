//! The processor, its memory, and what decides whether two measurements here can be compared.

use super::Finding;
use zbench_host::environment::root::kib_line;
use zbench_host::environment::{Root, container, cpu};
use zbench_host::{machine, sampling};
use zbench_predict::planned::gib;

/// Cores, instructions and memory.
pub(super) fn findings() -> Vec<Finding> {
    let finding = Finding::there;
    let yes = |there: bool| there.then(|| "yes".to_string());
    let memory = |name| machine::memory_bytes(name).map(gib);
    let simd = zbench_kernels::cpu::peak::describe();
    let huge = machine::transparent_huge_pages();
    vec![
        finding("processor", machine::cpu_model(), "/proc/cpuinfo cannot be read; records will not name the processor"),
        finding("cores this process may use", Some(machine::cores().to_string()), ""),
        finding("vector instructions", Some(simd.join(", ")), ""),
        finding(
            "AVX-512",
            yes(simd.contains(&"avx512")),
            "f32 runs on AVX2 or portable code; a server processor of 2017 or later has it",
        ),
        finding(
            "AMX bf16",
            yes(simd.contains(&"amx-bf16")),
            "Xeon of the 4th generation or later has it, and Linux 5.16 or later grants it",
        ),
        finding("products of bf16 run by", simd.last().map(|name| (*name).into()), ""),
        finding("memory", memory("MemTotal"), "/proc/meminfo cannot be read"),
        finding("memory available", memory("MemAvailable"), "/proc/meminfo cannot be read"),
        Finding::judged(
            "transparent huge pages",
            huge.clone(),
            huge.as_deref().is_some_and(|word| word != "never"),
            "large arenas are faster with them: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled, as root",
        ),
    ]
}

/// What decides whether two measurements here can be compared, and what of it can be seen.
pub(super) fn steadiness(root: &Root) -> Vec<Finding> {
    let row = Finding::judged;
    let state = cpu::clocks(root);
    let governor = state.get("governor").and_then(|word| word.as_str()).map(str::to_string);
    let turbo = cpu::turbo(root);
    let quota = container::cpu_quota(root);
    let container = container::container(root);
    let virtualisation = container::virtualisation(root);
    let swap = root.text("proc/meminfo").and_then(|text| kib_line(&text, "SwapTotal"));
    let [clock, throttling, temperature, energy] = sampling::readable_sensors(root).map(|(_, found)| found);
    let with = |found: Option<String>, none: &str| Some(found.unwrap_or_else(|| none.into()));
    let pressure = root.text("proc/pressure/memory").map(|_| "readable".to_string());
    vec![
        row(
            "frequency governor",
            governor.clone(),
            governor.as_deref().is_none_or(|word| word == "performance"),
            "clocks follow the load: cpupower frequency-set -g performance, as root, for steadier times",
        ),
        row(
            "turbo",
            turbo.map(|on| if on { "on" } else { "off" }.to_string()),
            turbo != Some(true),
            "clocks depend on heat and neighbours: echo 1 > /sys/devices/system/cpu/intel_pstate/no_turbo, or 0 > \
             /sys/devices/system/cpu/cpufreq/boost, as root, for steadier times",
        ),
        row("clock", clock.clone(), clock.is_some(), "records will not state clocks"),
        row(
            "throttling counters",
            throttling.clone(),
            throttling.is_some(),
            "heat cannot be told from other causes here (usual in virtual machines): no trial is flagged `throttled`",
        ),
        row(
            "temperature",
            temperature.clone(),
            temperature.is_some(),
            "load coretemp or k10temp; virtual machines have none",
        ),
        row(
            "energy counters",
            energy.clone(),
            energy.is_some(),
            "joules_per_token is not stated: chmod o+r /sys/class/powercap/intel-rapl*/energy_uj, as root; virtual machines \
             have none",
        ),
        row("memory pressure", pressure.clone(), pressure.is_some(), "boot with psi=1 to have it in records"),
        row(
            "swap",
            swap.map(|bytes| if bytes == 0 { "none".into() } else { gib(bytes) }),
            swap.is_none_or(|bytes| bytes == 0),
            "trials that swap are flagged; swapoff -a, as root, makes lack of memory an outcome instead",
        ),
        row(
            "processor quota",
            with(quota.map(|cores| format!("{cores} cores")), "none"),
            quota.is_none(),
            "the control group stops all threads when it is used up: give as many whole cores as threads (cpuset) instead",
        ),
        row("container", with(container, "none seen"), true, ""),
        row(
            "hypervisor",
            with(virtualisation.clone(), "none seen"),
            virtualisation.is_none(),
            "neighbours may take the cores: trials that lose over 5 % of them are flagged `stolen`",
        ),
    ]
}
