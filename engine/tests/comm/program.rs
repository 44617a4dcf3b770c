//! Random programs of started and blocking calls over several groups that overlap. All ranks run the same list in the same order;
//! each decides by itself, from a seed of its own, whether it starts a call or waits in it, and which started call it waits for next.

use std::fmt::Debug;
use zbench_collectives::{CommError, Communicator, OwnedCall, Ticket};
use zbench_kernels::{Arena, Buffer, Category, Element};

/// Longest parts, in elements: small calls travel beside their posts, large ones do not.
const LENGTHS: [usize; 5] = [0, 1, 37, 1500, 20_000];
/// Most ranks of a program.
pub const MOST_RANKS: usize = 6;
/// Groups of a rank, the world included.
const MOST_GROUPS: usize = 4;

/// A buffer that holds `values`.
pub fn filled<T: Element>(arena: &Arena, values: &[T]) -> Buffer {
    let mut buffer = arena.alloc(Category::Communication, T::DTYPE, values.len()).unwrap();
    buffer.view_mut().as_slice_mut::<T>().unwrap().copy_from_slice(values);
    buffer
}

/// Marsaglia's xorshift, with a start that spreads neighbouring seeds.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Random {
        Random((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % bound
    }
}

#[derive(Clone, Copy, Debug)]
enum Call {
    AllReduce,
    ReduceScatter,
    AllGather,
    /// From a member to another, by place; nothing where both are the same.
    Pass(usize, usize),
    Barrier,
}

/// One line of a program: a call of a group.
#[derive(Clone, Copy, Debug)]
struct Line {
    group: usize,
    call: Call,
    len: usize,
}

#[derive(Debug)]
pub struct Program {
    seed: u64,
    pub ranks: usize,
    /// By group other than the world: the color of each rank.
    colors: Vec<Vec<usize>>,
    lines: Vec<Line>,
}

impl Program {
    pub fn new(seed: u64) -> Program {
        let mut random = Random::new(seed);
        let ranks = 1 + random.below(MOST_RANKS);
        let groups = random.below(MOST_GROUPS);
        let colors = (0..groups).map(|_| (0..ranks).map(|_| random.below(2)).collect()).collect();
        let mut line = || {
            let call = match random.below(8) {
                0 | 1 => Call::AllReduce,
                2 => Call::ReduceScatter,
                3 => Call::AllGather,
                4 => Call::Barrier,
                _ => Call::Pass(random.below(MOST_RANKS), random.below(MOST_RANKS)),
            };
            Line { group: random.below(groups + 1), call, len: LENGTHS[random.below(LENGTHS.len())] }
        };
        let lines = (0..30).map(|_| line()).collect();
        Program { seed, ranks, colors, lines }
    }

    /// The ranks of one's group, as the world counts them.
    fn members(&self, group: usize, rank: usize) -> Vec<usize> {
        let together = |other: &usize| group == 0 || self.colors[group - 1][*other] == self.colors[group - 1][rank];
        (0..self.ranks).filter(together).collect()
    }
}

/// Element `i` of what a rank of the world gives in line `at`: small whole numbers, so that every order of sums gives the same.
fn element(at: usize, rank: usize, i: usize) -> f32 {
    ((at * 31 + rank * 7 + i * 3) % 101) as f32 - 50.0
}

fn give(at: usize, rank: usize, len: usize) -> Vec<f32> {
    (0..len).map(|i| element(at, rank, i)).collect()
}

/// What a call has to leave with a member, by its place; `None` where nothing is left.
fn wanted(line: Line, at: usize, members: &[usize], place: usize) -> Option<Vec<f32>> {
    let len = line.len;
    let sum = |i: usize| members.iter().map(|rank| element(at, *rank, i)).sum();
    match line.call {
        Call::AllReduce => Some((0..len).map(sum).collect()),
        Call::ReduceScatter => Some((place * len..(place + 1) * len).map(sum).collect()),
        Call::AllGather => Some(members.iter().flat_map(|rank| give(at, *rank, len)).collect()),
        Call::Pass(from, to) if place == to % members.len() => Some(give(at, members[from % members.len()], len)),
        Call::Pass(..) | Call::Barrier => None,
    }
}

struct Started<'a> {
    comm: &'a dyn Communicator,
    ticket: Ticket,
    wanted: Option<Vec<f32>>,
    of: &'a dyn Debug,
}

impl Started<'_> {
    fn finish(self) {
        let done = self.comm.wait(self.ticket).unwrap_or_else(|error| panic!("{error} in {:?}", self.of));
        let got = done.recv.as_ref().map(|recv| recv.view().as_slice::<f32>().unwrap());
        assert!(got == self.wanted.as_deref(), "{:?}", self.of);
    }
}

/// Runs a program as one of its ranks.
pub fn execute(world: &dyn Communicator, arena: &Arena, program: &Program) {
    let rank = world.rank();
    let split = |colors: &Vec<usize>| world.split(colors[rank], 0, "random").unwrap();
    let groups: Vec<_> = program.colors.iter().map(split).collect();
    let mut choice = Random::new(program.seed ^ ((rank as u64 + 1) << 40));
    let mut open: Vec<Started<'_>> = Vec::new();
    let places: Vec<String> = (0..program.lines.len())
        .map(|at| {
            format!(
                "line {at} ({:?}) on rank {rank} of {} with seed {}",
                program.lines[at], program.ranks, program.seed
            )
        })
        .collect();
    for (at, line) in program.lines.iter().enumerate() {
        let comm: &dyn Communicator = if line.group == 0 { world } else { &*groups[line.group - 1] };
        let members = program.members(line.group, rank);
        let (place, size, len) = (comm.rank(), comm.size(), line.len);
        let wanted = wanted(*line, at, &members, place);
        let in_line = |error: CommError| format!("{error} in {}", places[at]);
        let request = match line.call {
            Call::AllReduce => OwnedCall::all_reduce(filled(arena, &give(at, rank, len))),
            Call::ReduceScatter => OwnedCall::reduce_scatter(
                filled(arena, &give(at, rank, len * size)),
                filled(arena, &vec![0f32; len]),
                false,
            ),
            Call::AllGather => {
                OwnedCall::all_gather(filled(arena, &give(at, rank, len)), filled(arena, &vec![0f32; len * size]))
            }
            Call::Pass(from, to) => match (from % size, to % size) {
                (from, to) if from == to => continue,
                (from, to) if from == place => OwnedCall::send(filled(arena, &give(at, rank, len)), to),
                (from, to) if to == place => OwnedCall::recv(filled(arena, &vec![0f32; len]), from),
                _ => continue,
            },
            Call::Barrier => {
                comm.barrier().map_err(in_line).unwrap();
                continue;
            }
        };
        if choice.below(2) == 0 {
            let ticket = comm.start(request).map_err(in_line).unwrap();
            open.push(Started { comm, ticket, wanted, of: &places[at] });
        } else {
            let mut request = request;
            comm.call(request.as_call()).map_err(in_line).unwrap();
            let got = request.recv.as_ref().map(|recv| recv.view().as_slice::<f32>().unwrap());
            assert!(got == wanted.as_deref(), "{}", places[at]);
        }
        while !open.is_empty() && choice.below(3) == 0 {
            open.swap_remove(choice.below(open.len())).finish();
        }
    }
    while !open.is_empty() {
        open.swap_remove(choice.below(open.len())).finish();
    }
    assert_eq!(arena.ledger().live_total(), 0, "seed {}", program.seed);
}
