//! Two "hosts" on one machine: network namespaces joined by a cable (veth) that the kernel shapes, and ranks in both. As
//! root with iproute2; elsewhere each test says on stderr why it did not run, and under `ZBENCH_REQUIRE_NETNS` it fails.

use crate::support::{self, TINY, is_full_tier};
use serde_json::Value;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// What the cable carries each way, bytes per second: 400 Mbit/s.
const RATE: f64 = 50e6;
/// What it adds to a packet each way, where the kernel has netem.
const DELAY: Duration = Duration::from_millis(2);
/// A fresh namespace has all ports free.
const PORT: &str = "29511";

/// Two network namespaces and the cable between them; removed when dropped.
struct Hosts {
    names: [String; 2],
    /// Whether packets are delayed, too.
    delays: bool,
}

impl Hosts {
    /// The hosts, or why there are none.
    fn new() -> Result<Hosts, String> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        if !rustix::process::geteuid().is_root() {
            return Err("network namespaces need root".into());
        }
        let id = format!("{:x}{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let names = [format!("zb{id}a"), format!("zb{id}b")];
        // From here on, what was made is removed, whatever fails.
        let mut hosts = Hosts { names, delays: true };
        let [a, b] = hosts.names.clone();
        ip(&["netns", "add", &a])?;
        ip(&["netns", "add", &b])?;
        ip(&["-n", &a, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", &b])?;
        for (name, address) in [(&a, "10.213.0.1/24"), (&b, "10.213.0.2/24")] {
            ip(&["-n", name, "link", "set", "lo", "up"])?;
            ip(&["-n", name, "address", "add", address, "dev", "eth0"])?;
            ip(&["-n", name, "link", "set", "eth0", "up"])?;
            hosts.delays &= shape(name)?;
        }
        Ok(hosts)
    }

    /// A process on one of the hosts, as torchrun would start it.
    fn rank(
        &self,
        host: usize,
        rank: usize,
        local: usize,
        size: usize,
        notebook: &Path,
        arguments: &[&str],
    ) -> Running {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[host], env!("CARGO_BIN_EXE_zbench"), "--notebook"]);
        command.arg(notebook).args(arguments);
        let local_size = size / 2;
        for (name, value) in
            [("RANK", rank), ("WORLD_SIZE", size), ("LOCAL_RANK", local), ("LOCAL_WORLD_SIZE", local_size)]
        {
            command.env(name, value.to_string());
        }
        command.env("MASTER_ADDR", "10.213.0.1").env("MASTER_PORT", PORT).env("NO_COLOR", "1");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Running { rank, child: Some(command.spawn().expect("ip starts")) }
    }

    /// All ranks, half of them on each host, until they end; what each printed on stdout.
    fn run(&self, size: usize, notebook: &Path, arguments: &[&str]) -> Vec<String> {
        let per_host = size / 2;
        let start = |rank: usize| self.rank(rank / per_host, rank, rank % per_host, size, notebook, arguments);
        let ranks: Vec<Running> = (0..size).map(start).collect();
        let deadline = Instant::now() + Duration::from_secs(240);
        ranks.into_iter().map(|rank| rank.ended(deadline)).collect()
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            // One that was never made is not there to be removed.
            let _ = ip(&["netns", "delete", name]);
        }
    }
}

/// Shapes what leaves a host: rate and delay, or, without netem in the kernel, the rate alone. Whether there is a delay.
fn shape(name: &str) -> Result<bool, String> {
    let on = ["netns", "exec", name, "tc", "qdisc", "replace", "dev", "eth0", "root"];
    let delay = format!("{}ms", DELAY.as_millis());
    let netem = [&on[..], &["netem", "delay", &delay, "rate", "400mbit", "limit", "10000"]].concat();
    if ip(&netem).is_ok() {
        return Ok(true);
    }
    let bucket = [&on[..], &["tbf", "rate", "400mbit", "burst", "64kb", "latency", "100ms"]].concat();
    ip(&bucket).map(|()| false)
}

fn ip(arguments: &[&str]) -> Result<(), String> {
    let ran = Command::new("ip").args(arguments).stdin(Stdio::null()).output();
    let output = ran.map_err(|error| format!("ip (iproute2) does not start: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    output.status.success().then_some(()).ok_or_else(|| format!("ip {}: {}", arguments.join(" "), said.trim()))
}

/// A rank's process, ended when dropped.
struct Running {
    rank: usize,
    child: Option<Child>,
}

impl Running {
    fn ended(mut self, deadline: Instant) -> String {
        let child = self.child.as_mut().expect("taken once");
        // What it prints is less than a pipe holds.
        while child.try_wait().expect("a child of this process").is_none() {
            assert!(Instant::now() < deadline, "rank {} did not end", self.rank);
            std::thread::sleep(Duration::from_millis(20));
        }
        let output = self.child.take().expect("taken once").wait_with_output().expect("a child of this process");
        let (out, err) = (support::stdout(&output), support::stderr(&output));
        assert!(output.status.success(), "rank {}: {}\n{out}\n{err}", self.rank, output.status);
        out
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The hosts, or a line on stderr that no test harness swallows.
fn hosts(test: &str) -> Option<Hosts> {
    match Hosts::new() {
        Ok(hosts) => Some(hosts),
        Err(reason) => {
            assert!(std::env::var_os("ZBENCH_REQUIRE_NETNS").is_none(), "{test} cannot run: {reason}");
            let _ = writeln!(std::io::stderr(), "SKIPPED netns::{test}: {reason}");
            None
        }
    }
}

fn results(stdout: &str) -> Vec<Value> {
    let document: Value = serde_json::from_str(stdout.trim()).unwrap_or_else(|error| panic!("{error}: {stdout}"));
    document["results"].as_array().cloned().unwrap_or_else(|| panic!("{document}"))
}

fn number(value: &Value) -> f64 {
    value.as_f64().or_else(|| value.as_str()?.parse().ok()).unwrap_or_else(|| panic!("{value} is no number"))
}

#[test]
fn allreduce_over_a_real_link_is_no_faster_than_the_link() {
    if !is_full_tier() {
        return;
    }
    let Some(hosts) = hosts("allreduce_over_a_real_link_is_no_faster_than_the_link") else { return };
    let folder = tempfile::tempdir().unwrap();
    let arguments = |sizes: &str| -> Vec<String> {
        let words =
            format!("--format json allreduce --backend tcp --buffers hot -b {sizes} -e {sizes} -n 5 -w 1 -T 60s");
        words.split(' ').map(str::to_string).collect()
    };
    let run = |hosts: &Hosts, sizes: &str| {
        let arguments = arguments(sizes);
        let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let said = hosts.run(2, folder.path(), &words);
        assert!(said[1].trim().is_empty(), "only rank 0 prints: {}", said[1]);
        let rows = results(&said[0]);
        assert_eq!(rows.len(), 1, "{rows:?}");
        rows[0].clone()
    };
    let row = run(&hosts, "4M");
    for side in ["in_place", "out_of_place"] {
        assert_eq!(number(&row[side]["nwrong"]), 0.0, "{row}");
        // All-reduce of 2 ranks sends the buffer once each way; a bucket lets 64 kB of 4 MB pass at once.
        let busbw = number(&row[side]["bus_bw"]) * 1e9;
        assert!(busbw > 0.0 && busbw <= 1.03 * RATE, "{side}: {busbw} B/s over a link of {RATE} B/s");
    }
    if hosts.delays {
        let small = run(&hosts, "8");
        let us = number(&small["in_place"]["time"]);
        assert!(us >= DELAY.as_secs_f64() * 1e6, "8 bytes there and back in {us} us, one way takes {DELAY:?}");
    }
}

/// The hybrid cell, by threads of one process and by processes on two hosts.
const HYBRID: [&str; 6] =
    ["--set", "parallel.strategy=hsdp", "--set", "memory.checkpointing=none", "--set", "parallel.ranks=4"];

fn losses(stdout: &str) -> Vec<(u64, u64)> {
    let lines = stdout.lines().filter(|line| line.starts_with('{'));
    let record: Value =
        lines.map(|line| serde_json::from_str(line).unwrap()).next().unwrap_or_else(|| panic!("{stdout}"));
    assert_eq!(record["outcome"]["status"], "measured", "{record}");
    let steps = record["steps"].as_array().unwrap_or_else(|| panic!("{record}"));
    assert_eq!(steps.len(), 3, "{record}");
    let bits = |value: &Value| number(value).to_bits();
    steps.iter().map(|step| (bits(&step["loss"]), bits(&step["grad_norm"]))).collect()
}

#[test]
fn a_hybrid_cell_on_two_hosts_trains_to_the_losses_of_one() {
    let Some(hosts) = hosts("a_hybrid_cell_on_two_hosts_trains_to_the_losses_of_one") else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = support::write(folder.path(), TINY);
    let file = file.to_str().unwrap();
    let run = [&["--format", "json", "run", file], &HYBRID[..]].concat();
    let local = support::run(&folder.path().join("local"), &run);
    assert!(local.status.success(), "{}", support::stderr(&local));
    // No backend is named: shared memory does not reach the other host.
    let said = hosts.run(4, &folder.path().join("tcp"), &run);
    let record: Value = serde_json::from_str(said[0].lines().find(|line| line.starts_with('{')).unwrap()).unwrap();
    assert_eq!(record["cell"]["parallel"]["backend"], "tcp", "{record}");
    assert_eq!(losses(&said[0]), losses(&support::stdout(&local)), "tcp sums in the order of threads");
    assert!(said[1..].iter().all(|said| said.trim().is_empty()), "only rank 0 prints: {said:?}");
}

#[test]
fn an_emulated_link_works_between_processes() {
    // The namespaces are on one machine, so its ranks can share the state of a link.
    let Some(hosts) = hosts("an_emulated_link_works_between_processes") else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = support::write(folder.path(), TINY);
    let file = file.to_str().unwrap();
    let link =
        ["--set", "parallel.backend=tcp", "--set", "parallel.ranks_per_node=2", "--set", "link.node.bandwidth=20MB/s"];
    let run = [&["--format", "json", "run", file], &HYBRID[..], &link[..]].concat();
    let said = hosts.run(4, &folder.path().join("tcp"), &run);
    let record: Value = serde_json::from_str(said[0].lines().find(|line| line.starts_with('{')).unwrap()).unwrap();
    assert_eq!(record["outcome"]["status"], "measured", "{record}");
    let flags = record["validity"].as_array().unwrap();
    assert!(flags.iter().any(|flag| flag == "emulated_link"), "{flags:?}");
    let rows = record["communication"].as_array().unwrap();
    let crossing = |axis: &str| {
        rows.iter().filter(|row| row["axis"] == axis).filter_map(|row| row["crossing_bytes"].as_f64()).sum::<f64>()
    };
    assert!(crossing("outer") > 0.0 && crossing("inner") == 0.0, "{rows:?}");
}

/// Debian's installer gives a host the address 127.0.1.1 in its own /etc/hosts: rank 0 listened there alone.
#[test]
fn rank_0_is_found_although_its_own_name_is_a_loopback_address() {
    let Some(hosts) = hosts("rank_0_is_found_although_its_own_name_is_a_loopback_address") else { return };
    let folder = tempfile::tempdir().unwrap();
    let start = |rank: usize| {
        let names = ["127.0.1.1 node1\n10.213.0.2 node2", "10.213.0.1 node1\n127.0.1.1 node2"][rank];
        let file = folder.path().join(format!("hosts{rank}"));
        std::fs::write(&file, format!("127.0.0.1 localhost\n{names}\n")).unwrap();
        let mut command = Command::new("ip");
        // Mounts of `ip netns exec` are its own.
        let script = "mount --bind \"$0\" /etc/hosts && exec \"$@\"";
        command.args(["netns", "exec", &hosts.names[rank], "sh", "-c", script]).arg(&file);
        command.args([env!("CARGO_BIN_EXE_zbench"), "--notebook"]).arg(folder.path().join(format!("nb{rank}")));
        command.args(["allreduce", "--buffers", "hot", "-b", "1K", "-e", "1K", "-n", "1", "-T", "20s"]);
        for (name, value) in [("PROCID", rank), ("NODEID", rank), ("LOCALID", 0), ("NTASKS", 2), ("STEP_NUM_TASKS", 2)]
        {
            command.env(format!("SLURM_{name}"), value.to_string());
        }
        command.env("SLURM_JOB_ID", "4711").env("SLURM_STEP_ID", "1").env("SLURM_STEP_TASKS_PER_NODE", "1(x2)");
        command.env("SLURM_STEP_NODELIST", "node[1-2]").env("NO_COLOR", "1");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("ip starts")
    };
    let outputs = [0, 1].map(start).map(|child| child.wait_with_output().unwrap());
    let said = outputs.each_ref().map(support::stderr);
    assert!(outputs.iter().all(|output| output.status.success()), "{said:?}");
    assert!(said[0].contains("on this host that is 127.0.1.1 (/etc/hosts), its loopback"), "{}", said[0]);
}
