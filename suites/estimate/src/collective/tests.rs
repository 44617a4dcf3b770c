use super::*;
use crate::profile;

const ALL: [Collective; 6] = [
    Collective::AllReduce,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::Broadcast,
    Collective::AllToAll,
    Collective::Send,
];

#[test]
fn bytes_on_the_wire_are_those_of_the_books() {
    assert_eq!(Collective::AllReduce.wire(800.0, 8), 1400.0);
    assert_eq!(Collective::AllGather.wire(800.0, 8), 700.0);
    assert_eq!(Collective::ReduceScatter.wire(800.0, 4), 600.0);
    assert_eq!(Collective::Broadcast.wire(800.0, 4), 800.0);
    assert!(ALL.iter().all(|what| what.wire(800.0, 1) == 0.0));
}

#[test]
fn a_rank_alone_and_an_empty_message_take_no_time() {
    let machine = profile::machine("a100-80gb").expect("a100");
    for what in ALL {
        assert_eq!(seconds(what, 1e6, Group::ALONE, &machine), 0.0);
        assert_eq!(seconds(what, 0.0, Group::new(8, 8), &machine), 0.0);
    }
}

#[test]
fn more_bytes_never_take_less_time_and_no_wire_is_beaten() {
    for name in ["a100-80gb", "h100-sxm", "mi300x", "v100-32gb", "rtx4090"] {
        let machine = profile::machine(name).expect(name);
        for group in [Group::new(2, 2), Group::new(8, 8), Group::new(64, 8)] {
            for what in ALL {
                let mut last = 0.0;
                for power in 0..34 {
                    let bytes = f64::powi(2.0, power);
                    let took = seconds(what, bytes, group, &machine);
                    assert!(took >= last, "{name} {what:?} {bytes}");
                    last = took;
                }
                let fastest = machine.intra.bandwidth.max(machine.inter.bandwidth);
                let sent = if what == Collective::AllReduce { 1.0 } else { what.bus_factor(group.ranks) };
                let share = if group.ranks > 8 { 8.0 } else { 1.0 };
                assert!(last >= f64::powi(2.0, 33) * sent / share / fastest * 0.9, "{name} {what:?} {last}");
            }
        }
    }
}

/// With m nodes and n ranks the hierarchical all-reduce puts busbw x (m - 1) / (n - 1) on each rank's share of the cards.
#[test]
fn between_nodes_the_cards_are_the_limit() {
    let machine = profile::machine("h100-sxm").expect("h100");
    let group = Group::new(1024, 8);
    let bytes = 64e9;
    let bus = bytes / seconds(Collective::AllReduce, bytes, group, &machine) * Collective::AllReduce.bus_factor(1024);
    let on_the_card = bus * 127.0 / 1023.0;
    let card = machine.inter.bandwidth * machine.inter.reached;
    assert!((on_the_card / card - 1.0).abs() < 0.03, "{on_the_card} of {card}");
}

#[test]
fn a_switch_that_adds_beats_the_ring_from_five_devices_on() {
    let mut machine = profile::machine("h200").expect("h200");
    let time = |machine: &Machine, ranks| seconds(Collective::AllReduce, 8e9, Group::new(ranks, ranks), machine);
    let with = (time(&machine, 4), time(&machine, 8));
    machine.intra.in_switch = 0.0;
    let without = (time(&machine, 4), time(&machine, 8));
    assert_eq!(with.0, without.0);
    assert!(with.1 < 0.85 * without.1);
}

#[test]
fn two_devices_of_a_full_mesh_have_one_link() {
    let machine = profile::machine("mi300x").expect("mi300x");
    let time = |ranks| seconds(Collective::AllReduce, 4e9, Group::new(ranks, ranks), &machine);
    // One link of seven, but half the bytes per rank.
    let ratio = time(2) / time(8);
    assert!((3.5..4.5).contains(&ratio), "{ratio}");
}

#[test]
fn strided_groups_know_their_nodes() {
    assert_eq!(Group::strided(8, 1, 8).nodes(), 1);
    assert_eq!(Group::strided(64, 1, 8).nodes(), 8);
    assert_eq!(Group::strided(16, 8, 8), Group::new(16, 1));
    assert_eq!(Group::strided(16, 4, 8).nodes(), 8);
    assert_eq!(Group::strided(0, 0, 0).ranks, 1);
}

/// Between nodes a tree has fewer hops and a ring reaches more of the cards' rate.
#[test]
fn short_messages_take_the_tree_and_long_ones_the_ring() {
    let machine = profile::machine("aws-p6-b200").expect("aws-p6-b200");
    let group = Group::new(32, 8);
    let times = |bytes| {
        (
            seconds(Collective::AllReduce, bytes, group, &machine),
            ring_seconds(Collective::AllReduce, bytes, group, &machine),
        )
    };
    let (short, short_ring) = times(1e6);
    assert!(short < 0.7 * short_ring);
    let (long, long_ring) = times(4e9);
    assert_eq!(long, long_ring);
    // One node has no tree, and a ring does not ask the switch.
    let mut machine = machine;
    let inside = Group::new(8, 8);
    let by_ring = ring_seconds(Collective::AllReduce, 1e9, inside, &machine);
    assert!(seconds(Collective::AllReduce, 1e9, inside, &machine) < 0.9 * by_ring);
    machine.intra.in_switch = 0.0;
    assert_eq!(by_ring, ring_seconds(Collective::AllReduce, 1e9, inside, &machine));
    for bytes in [1e3, 1e6, 1e9] {
        assert_eq!(
            seconds(Collective::AllReduce, bytes, inside, &machine),
            ring_seconds(Collective::AllReduce, bytes, inside, &machine)
        );
    }
}
