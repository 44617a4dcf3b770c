use super::*;
use crate::collective::seconds;
use crate::machine::Machine;
use crate::profile;

const ALL: [Collective; 6] = [
    Collective::AllReduce,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::Broadcast,
    Collective::AllToAll,
    Collective::Send,
];

/// What rounding may do to times and factors that are equal or in order by the formulas.
const ROUNDING: f64 = 1e-9;

fn pods(nodes: usize, rails: bool, oversubscription: f64, routing: Routing) -> Topology {
    Topology::Pods(Pods { nodes, rails, oversubscription, routing })
}

fn on(topology: &Topology) -> Machine {
    Machine { topology: topology.clone(), ..profile::machine("dgx-h100").expect("dgx-h100") }
}

/// Groups of one to 4,096 nodes, with one to eight ranks on each, near each other and far apart.
fn groups() -> Vec<Group> {
    let mut list = vec![Group::new(2, 2), Group::new(8, 8), Group::ALONE];
    for per_node in [1, 2, 8] {
        for nodes in [2, 3, 4, 7, 16, 48, 64, 1000, 4096] {
            for apart in [1, 2, 5, 32, 1024] {
                list.push(Group { ranks: nodes * per_node, per_node, apart });
            }
        }
    }
    list
}

fn routings() -> Vec<Routing> {
    let hash = |paths, flows| Routing::Hash { paths, flows };
    vec![Routing::Share(1.0), Routing::Share(0.6), hash(1, 1), hash(2, 1), hash(8, 1), hash(8, 4), hash(256, 16)]
}

#[test]
fn a_network_without_congestion_is_the_flat_one_to_the_bit() {
    let flat = on(&Topology::default());
    for nodes in [1, 4, 32, 1000] {
        for rails in [false, true] {
            let machine = on(&pods(nodes, rails, 1.0, Routing::Share(1.0)));
            for group in groups() {
                for what in ALL {
                    let (is, was) = (seconds(what, 1e8, group, &machine), seconds(what, 1e8, group, &flat));
                    assert_eq!(is.to_bits(), was.to_bits(), "{nodes} {rails} {what:?} {group:?}");
                }
            }
        }
    }
}

#[test]
fn more_oversubscription_is_never_faster() {
    for routing in routings() {
        for (nodes, rails) in [(1, false), (4, false), (32, false), (32, true)] {
            for group in groups() {
                for what in ALL {
                    let mut last = 0.0;
                    for ratio in [1.0, 1.2, 2.0, 3.0, 7.0, 64.0, 1000.0] {
                        let took = seconds(what, 1e8, group, &on(&pods(nodes, rails, ratio, routing)));
                        assert!(took >= last * (1.0 - ROUNDING), "{routing:?} {nodes} {ratio} {what:?} {group:?}");
                        last = took;
                    }
                }
            }
        }
    }
}

#[test]
fn what_stays_in_a_node_or_in_a_pod_is_as_fast_as_ever() {
    let flat = on(&Topology::default());
    for routing in routings() {
        for rails in [false, true] {
            let machine = on(&pods(32, rails, 7.0, routing));
            let inside = |group: &Group| group.nodes() == 1 || group.nodes() * group.apart <= 32;
            for group in groups().into_iter().filter(inside) {
                for what in ALL {
                    let (is, was) = (seconds(what, 1e8, group, &machine), seconds(what, 1e8, group, &flat));
                    assert_eq!(is.to_bits(), was.to_bits(), "{routing:?} {rails} {what:?} {group:?}");
                }
            }
        }
    }
    for topology in [pods(1, false, 9.0, Routing::Share(0.5)), Topology::Torus(vec![4, 4])] {
        for what in ALL {
            let group = Group::new(8, 8);
            assert_eq!(seconds(what, 1e8, group, &on(&topology)), seconds(what, 1e8, group, &flat));
            assert_eq!(topology.factors(what, group, false), []);
        }
    }
}

#[test]
fn an_all_to_all_suffers_at_least_as_much_as_a_ring() {
    let mut all = vec![Topology::Torus(vec![8]), Topology::Torus(vec![4, 4, 4]), Topology::Torus(vec![16, 3, 2])];
    for routing in routings() {
        for nodes in [1, 4, 32] {
            for ratio in [1.0, 2.0, 7.0] {
                all.extend([pods(nodes, false, ratio, routing), pods(nodes, true, ratio, routing)]);
            }
        }
    }
    for topology in all {
        for group in groups() {
            let ring = topology.slowdown(Collective::AllGather, group, false);
            for relayed in [false, true] {
                let pairs = topology.slowdown(Collective::AllToAll, group, relayed);
                assert!(ring >= 1.0 && pairs >= ring * (1.0 - ROUNDING), "{topology:?} {group:?}: {pairs} {ring}");
            }
        }
    }
}

/// Worked out by hand: Llama 3's pods of 384 nodes, oversubscribed 7 to 1.
#[test]
fn uplinks_carry_what_leaves_a_pod() {
    let meta = profile::machine("meta-24k-h100").expect("meta").topology;
    let of = |what, ranks, per_node, apart| meta.slowdown(what, Group { ranks, per_node, apart }, false);
    // Two whole pods: a ring leaves each once for 384 nodes.
    assert_eq!(of(Collective::AllReduce, 768 * 8, 8, 1), 1.0);
    // Every 128th node: three of the group in a pod, 7 / 3.
    assert!((of(Collective::AllReduce, 24, 1, 128) / (7.0 / 3.0) - 1.0).abs() < ROUNDING);
    // One in a pod: all of it crosses.
    assert_eq!(of(Collective::Send, 8, 1, 384), 7.0);
    // All pairs of two pods: 384 of the 767 other nodes are in the other pod.
    let pairs = of(Collective::AllToAll, 768, 1, 1);
    assert!((pairs / (7.0 * 384.0 / 767.0) - 1.0).abs() < ROUNDING, "{pairs}");
    let [busy, collisions] = meta.factors(Collective::Send, Group { ranks: 8, per_node: 1, apart: 384 }, false)[..]
    else {
        panic!("two factors")
    };
    assert_eq!(busy, Factor { name: "oversubscription", times: 7.0 });
    assert_eq!(collisions, Factor { name: "ecmp", times: 1.0 });
}

#[test]
fn a_stated_share_of_ecmp_divides_the_rate_of_what_crosses() {
    let topology = pods(4, false, 1.0, Routing::Share(0.5));
    for what in ALL {
        assert_eq!(topology.slowdown(what, Group::new(64, 8), false), 2.0, "{what:?}");
        assert_eq!(topology.slowdown(what, Group::new(32, 8), false), 1.0, "{what:?}");
    }
}

/// By hand: of a node's traffic to 31 others of its pod an eighth stays on the sender's rail; the rest changes rails over the
/// spine, or inside the node, where NVLink makes that almost free.
#[test]
fn an_all_to_all_changes_rails_inside_nodes_where_that_is_faster() {
    let topology = pods(32, true, 2.0, Routing::Share(1.0));
    let group = Group::new(256, 8);
    assert_eq!(topology.slowdown(Collective::AllToAll, group, false), 2.0 * (1.0 - 1.0 / 8.0));
    assert_eq!(topology.slowdown(Collective::AllToAll, group, true), 1.0);
    assert!(topology.relays(Collective::AllToAll, group) && !topology.relays(Collective::AllGather, group));
    let (nvlink, mut slow) = (on(&topology), on(&topology));
    let flat = seconds(Collective::AllToAll, 1e9, group, &on(&Topology::default()));
    assert_eq!(seconds(Collective::AllToAll, 1e9, group, &nvlink), flat);
    // Where the devices of a node are joined no faster than the nodes, the spine is the better way.
    slow.intra.bandwidth = slow.inter.bandwidth / 4.0;
    let tree = Machine { topology: pods(1, false, 1.75, Routing::Share(1.0)), ..slow.clone() };
    let took = |machine| seconds(Collective::AllToAll, 1e9, group, machine);
    assert!(took(&slow) <= took(&tree) * (1.0 + ROUNDING));
}

/// Of all ways in which n flows can be hashed to p paths, the mean of the fullest: what the Poisson approximation stands for.
fn enumerated(flows: u32, paths: u32) -> f64 {
    let ways = paths.pow(flows);
    let fullest = |way: u32| {
        let mut load = vec![0u32; paths as usize];
        let mut rest = way;
        for _ in 0..flows {
            load[(rest % paths) as usize] += 1;
            rest /= paths;
        }
        load.into_iter().max().unwrap_or(0)
    };
    (0..ways).map(|way| f64::from(fullest(way))).sum::<f64>() / f64::from(ways)
}

/// Tolerance: 8 %, for so few flows; the approximation's error falls with their number.
#[test]
fn the_fullest_path_is_that_of_balls_in_bins() {
    assert_eq!(enumerated(2, 2), 1.5);
    for (flows, paths) in [(2, 2), (4, 4), (6, 6), (7, 7), (8, 4), (12, 3), (18, 2)] {
        let (is, exact) = (fullest(f64::from(flows) / f64::from(paths), f64::from(paths)), enumerated(flows, paths));
        assert!((is / exact - 1.0).abs() < 0.08, "{flows} flows, {paths} paths: {is} for {exact}");
    }
    // One path takes all flows, whatever their number.
    for mean in [1e-6, 0.5, 1.0, 20.0, 1000.0, 1e6] {
        assert!((fullest(mean, 1.0) / mean - 1.0).abs() < 1e-6, "{mean}: {}", fullest(mean, 1.0));
    }
    // More flows of the same traffic even it out, and more paths give the fullest one more chances.
    let share = |flows: f64, paths| fullest(flows, paths) / flows;
    assert!(share(1.0, 16.0) > 2.9 && share(16.0, 16.0) < 1.6 && share(16.0, 256.0) > share(16.0, 16.0));
}

/// A torus of one dimension is a ring: 2 S (m - 1)/m over both of a node's links, m - 1 hops there and m - 1 back.
#[test]
fn one_dimension_is_a_ring() {
    let mut machine = on(&Topology::Torus(vec![16]));
    machine.node_devices = 1;
    let (bytes, m) = (1e9, 16.0);
    let (rate, hop) = (machine.inter.bandwidth * machine.inter.reached, machine.inter.latency);
    let transfer = 2.0 * bytes * (m - 1.0) / m / rate;
    // A kernel starts in 8 us, and filling takes 2.5 times that at most.
    let ring = 3.5 * 8e-6 + 2.0 * (m - 1.0) * hop + transfer;
    let took = seconds(Collective::AllReduce, bytes, Group::new(16, 1), &machine);
    assert!((took / ring - 1.0).abs() < ROUNDING, "{took} for {ring}");
}

/// Factors worked out by hand; `links` of a node together have the rate that a flat network gives to everything.
#[test]
fn links_of_a_torus_are_shared_as_by_hand() {
    let cube = Topology::Torus(vec![4, 4, 4]);
    let of = |what, ranks, apart| cube.slowdown(what, Group { ranks, per_node: 1, apart }, false);
    let ring = |ranks, apart| of(Collective::AllGather, ranks, apart);
    // The whole cube uses six of six links, a closed ring of one dimension two, a part of it one.
    assert_eq!((ring(64, 1), ring(16, 1), ring(4, 1), ring(3, 1), ring(2, 1)), (1.0, 1.5, 3.0, 6.0, 6.0));
    // Every fourth node is a ring in the second dimension; every second one shares its line with another group.
    assert_eq!((ring(4, 4), ring(4, 16), ring(2, 2)), (3.0, 3.0, 12.0));
    // A neighbour is behind one link; the one after next behind two that both are shared.
    assert_eq!((of(Collective::Send, 4, 1), of(Collective::Send, 4, 4), of(Collective::Send, 2, 2)), (6.0, 6.0, 12.0));
    // All pairs of a ring of four: a node's bytes go 1 link on average (0, 1, 1, 2), over 2 of 6 links: 6 x 1/2 x 4/3.
    assert_eq!(of(Collective::AllToAll, 4, 1), 4.0);
    // All pairs of the cube: each dimension carries as much as that ring; 6 x 1/2 x 64/63.
    assert!((of(Collective::AllToAll, 64, 1) / (3.0 * 64.0 / 63.0) - 1.0).abs() < ROUNDING);
    // More nodes than the torus has: its last dimension goes on.
    assert_eq!(ring(128, 1), 6.0 / (2.0 + 2.0 + 1.0));
}

#[test]
fn no_group_and_no_torus_is_faster_than_its_links_or_ends_the_program() {
    for sizes in [vec![2], vec![1, 2], vec![5, 1, 3], vec![1000, 1000], vec![2; 6], vec![64, 2, 3]] {
        let topology = Topology::Torus(sizes.clone());
        for group in groups().into_iter().chain([Group { ranks: usize::MAX, per_node: 1, apart: usize::MAX }]) {
            for what in ALL {
                let factor = topology.slowdown(what, group, false);
                assert!(factor >= 1.0 - ROUNDING && factor.is_finite(), "{sizes:?} {group:?} {what:?}: {factor}");
                let took = seconds(what, 1e8, group, &on(&topology));
                assert!(took.is_finite() && took >= 0.0, "{sizes:?} {group:?} {what:?}: {took}");
            }
        }
    }
}

#[test]
fn the_factors_are_what_the_time_grows_by() {
    for topology in [pods(4, false, 7.0, Routing::Hash { paths: 16, flows: 1 }), Topology::Torus(vec![4, 4])] {
        for group in groups() {
            for what in ALL {
                let product: f64 = topology.factors(what, group, false).iter().map(|factor| factor.times).product();
                assert_eq!(product.to_bits(), topology.slowdown(what, group, false).to_bits());
            }
        }
    }
}
