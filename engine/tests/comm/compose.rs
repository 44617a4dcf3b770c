//! Composed collectives beside the flat ones: the same bits where the order of sums is the same, errors below bounds that
//! follow from the blocks' scales, and the bytes that they are for.

use crate::comm::harness::{Backend, SIZES, run, values};
use crate::comm::tree::Sample;
use half::bf16;
use std::sync::Arc;
use zbench_collectives::compose::{Algorithm, BLOCK, Composed};
use zbench_collectives::link;
use zbench_collectives::link::LinkSpec;
use zbench_collectives::{Call, Communicator, Kind, OwnedCall, ReduceOp};
use zbench_kernels::{Arena, Cpu, Quantize, View, ViewMut};
use zbench_test_tiers as tiers;

const SUM: Kind = Kind::AllReduce { op: ReduceOp::Sum };

fn arena() -> Arena {
    Arena::host(Some(64 << 20)).unwrap()
}

/// All ways to cut a number of ranks into nodes.
fn nodes(size: usize) -> impl Iterator<Item = usize> {
    (1..=size).filter(move |per_node| size.is_multiple_of(*per_node))
}

fn with_composed<T>(
    comm: &dyn Communicator,
    algorithm: Algorithm,
    per_node: usize,
    work: impl FnOnce(&Composed) -> T,
) -> T {
    let (same_ranks, arena) = (comm.split(0, comm.rank(), "composed").unwrap(), arena());
    let composed = Composed::new(same_ranks, algorithm, per_node, Arc::new(Cpu::new(1)), arena.clone()).unwrap();
    let done = work(&composed);
    assert_eq!(arena.ledger().live_total(), 0, "scratch is given back");
    done
}

/// All-reduce, all-gather and reduce-scatter in two levels and flat; `parts` of every length.
fn beside_flat<T: Sample>(comm: &dyn Communicator, composed: &Composed, ranks_per_node: usize) {
    let (rank, size) = (comm.rank(), comm.size());
    let two_powers = size.is_power_of_two() && ranks_per_node.is_power_of_two();
    for part in [0, 1, 7, 300] {
        let what = format!("{} x {part} over {size} by {ranks_per_node}", T::DTYPE);
        // A length that does not divide has a tail.
        let mine: Vec<T> = values(rank, part * size + 3);
        let (mut flat, mut ours) = (mine.clone(), mine.clone());
        comm.all_reduce(ViewMut::of(&mut flat)).unwrap();
        composed.all_reduce(ViewMut::of(&mut ours)).unwrap();
        same(&flat, &ours, two_powers, &format!("all_reduce of {what}"));

        let mine: Vec<T> = values(rank, part);
        let (mut flat, mut ours) = (vec![T::of(0.0); part * size], vec![T::of(1.0); part * size]);
        comm.all_gather(View::of(&mine), ViewMut::of(&mut flat)).unwrap();
        assert_eq!((composed.rank(), composed.size()), (rank, size));
        composed.all_gather(View::of(&mine), ViewMut::of(&mut ours)).unwrap();
        assert_eq!(flat, ours, "all_gather of {what}");

        let mine: Vec<T> = values(rank, part * size);
        for accumulate in [false, true] {
            let (mut flat, mut ours): (Vec<T>, Vec<T>) = (values(99 + rank, part), values(99 + rank, part));
            comm.reduce_scatter(View::of(&mine), ViewMut::of(&mut flat), accumulate).unwrap();
            composed.reduce_scatter(View::of(&mine), ViewMut::of(&mut ours), accumulate).unwrap();
            same(&flat, &ours, two_powers, &format!("reduce_scatter of {what}"));
        }
    }
}

/// The same bits where the tree is the same; else within the rounding of another order: sums of at most 8 numbers below 6144.
fn same<T: Sample>(flat: &[T], ours: &[T], exactly: bool, what: &str) {
    if exactly {
        return assert_eq!(flat, ours, "{what}");
    }
    for (flat, ours) in flat.iter().zip(ours) {
        let apart = (flat.get() - ours.get()).abs();
        assert!(apart <= 8.0 * 6144.0 * 8.0 * f64::from(f32::EPSILON), "{what}: {flat:?} and {ours:?}");
    }
}

#[test]
fn in_two_levels_sums_have_the_flat_bits_for_powers_of_two() {
    for size in SIZES {
        for ranks_per_node in nodes(size) {
            run(Backend::Local, size, |comm| {
                with_composed(comm, Algorithm::Hierarchical, ranks_per_node, |composed| {
                    beside_flat::<f32>(comm, composed, ranks_per_node);
                    beside_flat::<f64>(comm, composed, ranks_per_node);
                });
            });
        }
    }
}

#[test]
fn in_two_levels_one_part_of_a_node_crosses() {
    let (size, per_node, len) = (8, 4, 4096);
    run(Backend::Local, size, |comm| {
        with_composed(comm, Algorithm::Hierarchical, per_node, |composed| {
            let mut before = composed.wire_bytes();
            let mut crossed = || {
                let now = composed.wire_bytes();
                (now - std::mem::replace(&mut before, now)) as usize
            };
            let mut buffer = values::<f32>(comm.rank(), len);
            composed.all_reduce(ViewMut::of(&mut buffer)).unwrap();
            // In the node a reduce-scatter and an all-gather; across nodes two ranks all-reduce a quarter of the buffer: each
            // reads and writes half of that quarter.
            assert_eq!(crossed(), 2 * 4 * len * (per_node - 1) / per_node + 4 * len / per_node);
            let (mut part, nodes) = (vec![0f32; len / size], size / per_node);
            let inside = nodes * (per_node - 1) * 4 * (len / size);
            composed.reduce_scatter(View::of(&buffer), ViewMut::of(&mut part), false).unwrap();
            assert_eq!(crossed(), inside + 4 * len / size);
            composed.all_gather(View::of(&part), ViewMut::of(&mut buffer)).unwrap();
            assert_eq!(crossed(), inside + 4 * len / size);
        });
    });
}

/// The links between nodes alone carry a quarter of the buffer for each rank: which level works on all of it shows here.
#[test]
fn in_two_levels_links_carry_one_part_of_a_node() {
    let (size, per_node, len) = (8, 4, 4096);
    run(Backend::Local, size, |comm| {
        let (same_ranks, arena) = (comm.split(0, comm.rank(), "composed").unwrap(), arena());
        let link = LinkSpec { bandwidth: 1e12, latency: 0.0, ranks_per_node: per_node };
        let linked = link::wrap(same_ranks, Some(&link)).unwrap();
        let kernels = Arc::new(Cpu::new(1));
        let composed = Composed::new(linked, Algorithm::Hierarchical, per_node, kernels, arena).unwrap();
        let before = composed.link_use().unwrap().crossing_bytes;
        composed.all_reduce(ViewMut::of(&mut values::<f32>(comm.rank(), len))).unwrap();
        let crossed = composed.link_use().unwrap().crossing_bytes - before;
        assert_eq!(crossed as usize, 4 * len / per_node);
    });
}

const QUANTISED: [Algorithm; 2] = [Algorithm::Q8, Algorithm::Q4];

/// Half a block's scale, which is its largest magnitude divided by the format's limit, for each element; a thousandth more for
/// the roundings of f32 on the way (below 127 * 4 units in the last place, 6e-5 of a scale).
fn half_scale(quantize: &Quantize, part: &[f64]) -> Vec<f64> {
    let of_block = |block: &[f64]| {
        let largest = block.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
        vec![0.501 * largest / f64::from(quantize.format.limit()); block.len()]
    };
    part.chunks(quantize.block).flat_map(of_block).collect()
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|x| f64::from(*x)).collect()
}

#[test]
fn a_quantised_gather_is_off_by_half_a_scale_at_most() {
    let all = QUANTISED.into_iter().flat_map(|algorithm| SIZES.map(|size| (algorithm, size)));
    for (algorithm, size) in tiers::some("comm::compose::a_quantised_gather", all, [5, 12]) {
        let quantize = algorithm.quantize().unwrap();
        let gathered = run(Backend::Local, size, |comm| {
            let all = [1, BLOCK - 1, BLOCK, 1000].map(|part| {
                let mut recv = vec![0f32; part * size];
                let mine = values::<f32>(comm.rank(), part);
                with_composed(comm, algorithm, 1, |composed| {
                    let wire = composed.wire_bytes();
                    composed.all_gather(View::of(&mine), ViewMut::of(&mut recv)).unwrap();
                    let sent = quantize.values_len(part) + 4 * quantize.scales_len(part);
                    let crossed = composed.wire_bytes() - wire;
                    assert_eq!(crossed, ((size - 1) * sent) as u64, "integers and scales travel");
                });
                for rank in 0..size {
                    let exact = wide(&values::<f32>(rank, part));
                    let bounds = half_scale(&quantize, &exact);
                    for (i, (exact, bound)) in exact.iter().zip(bounds).enumerate() {
                        let got = f64::from(recv[rank * part + i]);
                        assert!((got - exact).abs() <= bound, "{algorithm:?}: {got} for {exact}, bound {bound}");
                    }
                }
                recv
            });
            all.concat()
        });
        assert!(gathered.iter().all(|of_rank| *of_rank == gathered[0]), "all ranks have the same weights");
    }
}

/// The bound of a quantised sum, by element: half a scale of every rank's block, where nodes have more than one rank; and half a
/// scale of every node's block of sums, as far off as these may be, where there are several nodes.
fn sum_bound(quantize: &Quantize, ranks: &[Vec<f64>], per_node: usize) -> Vec<f64> {
    let len = ranks[0].len();
    let mut bound = vec![0.0; len];
    let add = |to: &mut [f64], terms: &[f64]| to.iter_mut().zip(terms).for_each(|(to, term)| *to += term);
    for node in ranks.chunks(per_node) {
        let (mut sum, mut off) = (vec![0.0; len], vec![0.0; len]);
        for rank in node {
            add(&mut sum, rank);
            if per_node > 1 {
                add(&mut off, &half_scale(quantize, rank));
            }
        }
        if ranks.len() > per_node {
            let most: Vec<f64> = sum.iter().zip(&off).map(|(sum, off)| sum.abs() + off).collect();
            add(&mut off, &half_scale(quantize, &most));
        }
        add(&mut bound, &off);
    }
    bound
}

#[test]
fn a_quantised_sum_is_within_the_bound_of_its_blocks() {
    for size in SIZES {
        let all = QUANTISED.into_iter().flat_map(|by| nodes(size).map(move |nodes| (by, nodes)));
        for (algorithm, per_node) in tiers::some("comm::compose::a_quantised_sum", all, [2, 8]) {
            let quantize = algorithm.quantize().unwrap();
            for part in [1, BLOCK, 333] {
                run(Backend::Local, size, |comm| {
                    let mine = values::<f32>(comm.rank(), part * size);
                    let mut got = vec![0f32; part];
                    with_composed(comm, algorithm, per_node, |composed| {
                        composed.reduce_scatter(View::of(&mine), ViewMut::of(&mut got), false).unwrap();
                    });
                    let own = comm.rank() * part..(comm.rank() + 1) * part;
                    let ranks: Vec<Vec<f64>> =
                        (0..size).map(|rank| wide(&values::<f32>(rank, part * size)[own.clone()])).collect();
                    let bounds = sum_bound(&quantize, &ranks, per_node);
                    for (i, (got, bound)) in got.iter().zip(bounds).enumerate() {
                        let exact: f64 = ranks.iter().map(|rank| rank[i]).sum();
                        // Beside the blocks' error, the rounding of a sum of at most 8 numbers in f32.
                        let bound = bound + 8.0 * 6144.0 * 8.0 * f64::from(f32::EPSILON);
                        let off = (f64::from(*got) - exact).abs();
                        assert!(
                            off <= bound,
                            "{algorithm:?} over {size} by {per_node}: {got} for {exact}, bound {bound}"
                        );
                    }
                });
            }
        }
    }
}

/// Calls through the wrapper; what came, and what crossed the wire.
fn composed(comm: Box<dyn Communicator>, algorithm: Algorithm, per_node: usize) -> (Vec<Vec<f32>>, Vec<u64>) {
    let (rank, size, part) = (comm.rank(), comm.size(), 8 * BLOCK);
    let comm = Composed::new(comm, algorithm, per_node, Arc::new(Cpu::new(1)), arena()).unwrap();
    assert_eq!(comm.algorithm(SUM, 4096), algorithm.name());
    assert_ne!(comm.algorithm(Kind::Barrier, 0), algorithm.name());
    let whole = values::<f32>(rank, part * size);
    let own = rank * part..(rank + 1) * part;
    let (mut results, mut wires) = (Vec::new(), Vec::new());
    let mut note = |call: Call<'_>| {
        let before = comm.wire_bytes();
        comm.call(call).unwrap();
        wires.push(comm.wire_bytes() - before);
    };
    let scatter = Kind::ReduceScatter { op: ReduceOp::Sum, accumulate: false };
    let mut reduced = vec![0f32; part * size];
    note(Call::new(SUM, View::of(&whole), ViewMut::of(&mut reduced)));
    let mut in_place = whole.clone();
    note(Call::in_place(SUM, ViewMut::of(&mut in_place)));
    assert_eq!(reduced, in_place);
    results.push(reduced);
    let mut gathered = vec![0f32; part * size];
    note(Call::new(Kind::AllGather, View::of(&whole[own.clone()]), ViewMut::of(&mut gathered)));
    let mut in_place = vec![0f32; part * size];
    in_place[own.clone()].copy_from_slice(&whole[own.clone()]);
    note(Call::in_place(Kind::AllGather, ViewMut::of(&mut in_place)));
    assert_eq!(gathered, in_place);
    results.push(gathered);
    let mut scattered = vec![0f32; part];
    note(Call::new(scatter, View::of(&whole), ViewMut::of(&mut scattered)));
    let mut in_place = whole.clone();
    note(Call::in_place(scatter, ViewMut::of(&mut in_place)));
    assert_eq!(scattered, in_place[own.clone()]);
    let untouched = |x: &[f32]| [&x[..own.start], &x[own.end..]].concat();
    assert_eq!(untouched(&in_place), untouched(&whole), "the other parts stay");
    results.push(scattered);
    // A started one, and one that is not composed.
    let arena = arena();
    let mut send = arena.alloc(zbench_kernels::Category::Communication, zbench_kernels::DType::F32, part).unwrap();
    send.view_mut().as_slice_mut::<f32>().unwrap().copy_from_slice(&whole[own.clone()]);
    let recv = arena.alloc(zbench_kernels::Category::Communication, zbench_kernels::DType::F32, part * size).unwrap();
    let ticket = comm.start(OwnedCall::all_gather(send, recv)).unwrap();
    let recv = comm.wait(ticket).unwrap().recv.unwrap();
    assert_eq!(recv.view().as_slice::<f32>().unwrap(), results[1]);
    let mut given = vec![rank as u32; size];
    let all: Vec<u32> = (0..size as u32).collect();
    comm.all_to_all(View::of(&given.clone()), ViewMut::of(&mut given)).unwrap();
    assert_eq!(given, all);
    (results, wires)
}

#[test]
fn through_the_wrapper_as_through_the_functions() {
    let (size, per_node) = (4, 2);
    let through = |algorithm: Algorithm| {
        let moods = [crate::comm::tree::Mood::Well; 4];
        let results = crate::comm::harness::attempt(Backend::Local, &moods, crate::comm::harness::PATIENCE, |comm| {
            composed(comm, algorithm, per_node)
        });
        results.into_iter().map(|result| result.unwrap()).collect::<Vec<_>>()
    };
    let exact = through(Algorithm::Hierarchical);
    let part = 8 * BLOCK;
    for (rank, (results, _)) in exact.iter().enumerate() {
        let gathered: Vec<f32> =
            (0..size).flat_map(|r| values::<f32>(r, part * size)[r * part..(r + 1) * part].to_vec()).collect();
        assert_eq!(results[1], gathered);
        assert_eq!(results[2], results[0][rank * part..(rank + 1) * part]);
    }
    for (algorithm, share) in [(Algorithm::Q8, 0.26), (Algorithm::Q4, 0.14)] {
        let ours = through(algorithm);
        let quantize = algorithm.quantize().unwrap();
        for (rank, ((results, wires), (exact, exact_wires))) in ours.iter().zip(&exact).enumerate() {
            let ranks: Vec<Vec<f64>> = (0..size).map(|r| wide(&values::<f32>(r, part * size))).collect();
            let bounds = sum_bound(&quantize, &ranks, per_node);
            let rounding = 8.0 * 6144.0 * 8.0 * f64::from(f32::EPSILON);
            // All-reduce: the sums' own error, and half a scale of the sums as they are gathered.
            let most: Vec<f64> = wide(&exact[0]).iter().zip(&bounds).map(|(x, bound)| x.abs() + bound).collect();
            let gather = half_scale(&quantize, &most);
            for (i, (got, exact)) in results[0].iter().zip(&exact[0]).enumerate() {
                let off = f64::from((got - exact).abs());
                assert!(off <= bounds[i] + gather[i] + rounding, "all_reduce: {got} for {exact}");
            }
            for (i, (got, exact)) in results[2].iter().zip(&exact[2]).enumerate() {
                let off = f64::from((got - exact).abs());
                assert!(off <= bounds[rank * part + i] + rounding, "reduce_scatter: {got} for {exact}");
            }
            assert!(results[0] != exact[0] && results[1] != exact[1], "something was quantised");
            for (kind, (wire, exact)) in wires.iter().zip(exact_wires).enumerate() {
                // Flat all-gathers and all-to-alls in two levels move what the exact ones in two levels do.
                assert!(
                    *wire as f64 <= share * *exact as f64,
                    "{}: call {kind} moves {wire} of {exact}",
                    algorithm.name()
                );
            }
        }
        assert!(ours.iter().all(|(results, _)| results[0] == ours[0].0[0]), "all ranks have the same sums");
    }
}

#[test]
fn short_types_averages_and_what_cannot_be_quantised() {
    run(Backend::Local, 4, |comm| {
        let mine: Vec<bf16> = values(comm.rank(), 4 * 1000);
        let mut sum = vec![bf16::ZERO; 1000];
        let scatter = |op| Kind::ReduceScatter { op, accumulate: false };
        with_composed(comm, Algorithm::Q8, 2, |composed| {
            let quantize = Algorithm::Q8.quantize().unwrap();
            composed.call(Call::new(scatter(ReduceOp::Avg), View::of(&mine), ViewMut::of(&mut sum))).unwrap();
            let own = comm.rank() * 1000..(comm.rank() + 1) * 1000;
            let ranks: Vec<Vec<f64>> =
                (0..4).map(|r| values::<bf16>(r, 4000)[own.clone()].iter().map(|x| x.to_f64()).collect()).collect();
            let bounds = sum_bound(&quantize, &ranks, 2);
            for (i, got) in sum.iter().enumerate() {
                let exact = ranks.iter().map(|rank| rank[i]).sum::<f64>() / 4.0;
                // Rounded once to bf16, 8 bits.
                let bound = bounds[i] / 4.0 + (exact.abs() + bounds[i]) / 256.0;
                assert!((got.to_f64() - exact).abs() <= bound, "{got} for {exact}, bound {bound}");
            }
            let (whole, mut part) = (vec![1i32; 4], vec![1i32]);
            let refused = composed.call(Call::new(scatter(ReduceOp::Sum), View::of(&whole), ViewMut::of(&mut part)));
            assert!(refused.unwrap_err().to_string().contains("sum of i32 does not travel quantised"));
        });
        with_composed(comm, Algorithm::Hierarchical, 2, |composed| {
            let mut whole = vec![1i32; 4];
            let average = Kind::AllReduce { op: ReduceOp::Avg };
            let refused = composed.call(Call::in_place(average, ViewMut::of(&mut whole))).unwrap_err().to_string();
            assert!(refused.contains("average of i32"), "{refused}");
        });
        let same_ranks = comm.split(0, comm.rank(), "composed").unwrap();
        let refused = Composed::new(same_ranks, Algorithm::Q8, 3, Arc::new(Cpu::new(1)), arena()).err().unwrap();
        assert!(refused.to_string().contains("4 ranks are no whole nodes of 3"));
    });
}

#[test]
fn names_are_found_again() {
    for algorithm in Algorithm::ALL {
        assert_eq!(Algorithm::find(algorithm.name()), Some(algorithm));
    }
    assert_eq!(Algorithm::find("ring"), None);
}
