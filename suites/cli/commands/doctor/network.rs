//! Launchers, and the network devices that connect ranks of several hosts.

use super::Finding;
use crate::commands::open;
use std::net::{IpAddr, ToSocketAddrs};
use zbench_host::environment::Root;

/// The launcher that this process detects, and the launchers in PATH.
pub(super) fn launchers(env: &dyn Fn(&str) -> Option<String>) -> Vec<Finding> {
    let decision = match zbench_launch::detect(env) {
        Ok(Some(world)) => Ok(world.describe()),
        Ok(None) => Ok(zbench_launch::inherited(env).unwrap_or_else(|| "none: zbench starts its ranks itself".into())),
        Err(error) => Err(error.to_string()),
    };
    let devices = env("CUDA_VISIBLE_DEVICES").map(|devices| ("CUDA_VISIBLE_DEVICES".to_string(), devices));
    let set = zbench_launch::consulted(env).into_iter().chain(devices);
    let set: Vec<String> = set.map(|(name, value)| format!("{name}={value}")).collect();
    let set = if set.is_empty() { "none".to_string() } else { set.join(" ") };
    let there: Vec<&str> =
        ["srun", "sbatch", "torchrun", "mpirun"].into_iter().filter(|name| open::is_program(name)).collect();
    let there = if there.is_empty() { "none".to_string() } else { there.join(", ") };
    vec![
        Finding::result(
            "launcher of this process",
            decision,
            "unset the variables of the launcher that did not start it",
        )
        .needed(true),
        Finding::judged("launcher's variables", Some(set), true, ""),
        Finding::judged("launchers in PATH", Some(there), true, ""),
    ]
}

/// Network interfaces that are up, with their speed, and RDMA devices, which only NCCL and MPI use.
pub(super) fn devices(root: &Root) -> Vec<Finding> {
    let folder = "sys/class/net";
    let up = |name: &String| {
        let text = |file: &str| root.text(&format!("{folder}/{name}/{file}"));
        // Virtual devices do not know whether they are up.
        let is_up = text("operstate").is_some_and(|state| state == "up" || state == "unknown") && name != "lo";
        let speed = text("speed").and_then(|speed| speed.parse::<i64>().ok()).filter(|speed| *speed > 0);
        let words = speed.map_or(name.clone(), |speed| format!("{name} ({speed} Mb/s)"));
        is_up.then_some(words)
    };
    let names = root.names(folder);
    let interfaces: Vec<String> = names.iter().filter_map(up).collect();
    let rdma = root.names("sys/class/infiniband");
    vec![
        Finding::there(
            "loopback",
            names.iter().any(|name| name == "lo").then(|| "yes".to_string()),
            "ranks as processes meet at 127.0.0.1: ip link set lo up, as root",
        ),
        Finding::there(
            "network interfaces that are up",
            (!interfaces.is_empty()).then(|| interfaces.join(", ")),
            "parallel.backend = \"tcp\" works inside this host only",
        ),
        own_name(&zbench_host::machine::host_name(), |name| {
            let found = (name, 0).to_socket_addrs().into_iter().flatten();
            found.map(|address| address.ip()).collect()
        }),
        Finding::judged("RDMA devices", Some(if rdma.is_empty() { "none".into() } else { rdma.join(", ") }), true, ""),
    ]
}

/// The addresses of this host's own name, by which ranks of other hosts look for rank 0 here.
fn own_name(name: &str, resolve: impl FnOnce(&str) -> Vec<IpAddr>) -> Finding {
    let addresses = resolve(name);
    let words: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
    let words = if words.is_empty() { "no address".into() } else { words.join(", ") };
    Finding::judged(
        "address of this host's name",
        Some(format!("{name}: {words}")),
        addresses.iter().any(|address| !address.is_loopback()),
        "ranks of other hosts do not reach such a name (Debian writes `127.0.1.1 NAME`): give the name the host's address in \
         /etc/hosts or DNS, or set MASTER_ADDR to that address. One host alone needs none",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_other_hosts_do_not_reach_is_told() {
        let row = |addresses: &[[u8; 4]]| {
            own_name("node01", |_| addresses.iter().map(|bytes| IpAddr::from(*bytes)).collect())
        };
        assert!(row(&[[127, 0, 1, 1], [10, 9, 0, 1]]).is_there);
        for (addresses, found) in [(&[[127, 0, 1, 1]][..], "node01: 127.0.1.1"), (&[], "node01: no address")] {
            let row = row(addresses);
            assert!(!row.is_there && row.found == found && row.advice().contains("MASTER_ADDR"), "{row:?}");
        }
    }
}
