//! What travels: frames of a fixed header and a payload whose length the receiver knows beforehand.
//!
//! The header says which call the payload belongs to and what the sender believes that call to be ([`Signature`]); nothing in
//! it makes the receiver allocate.

use crate::comm::{Kind, ReduceOp, call::Shape};
use zbench_kernels::DType;

pub(super) const HEADER_BYTES: usize = 64;
const MAGIC: u32 = 0x7a62_4652;

/// The collective of a call, and what is no call of the trait's: `split`. The numbers travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    AllReduce,
    ReduceScatter,
    AllGather,
    Broadcast,
    Reduce,
    Gather,
    Scatter,
    AllToAll,
    /// All of send, recv and sendrecv: what goes from one rank to another.
    Pair,
    Barrier,
    Split,
}

/// Which side of a pair wrote the header, for errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    All,
    Send,
    Recv,
    SendRecv,
}

const CODES: [(Code, &str); 11] = [
    (Code::AllReduce, "all_reduce"),
    (Code::ReduceScatter, "reduce_scatter"),
    (Code::AllGather, "all_gather"),
    (Code::Broadcast, "broadcast"),
    (Code::Reduce, "reduce"),
    (Code::Gather, "gather"),
    (Code::Scatter, "scatter"),
    (Code::AllToAll, "all_to_all"),
    (Code::Pair, "pair"),
    (Code::Barrier, "barrier"),
    (Code::Split, "split"),
];
const ROLES: [(Role, &str); 4] =
    [(Role::All, ""), (Role::Send, "send"), (Role::Recv, "recv"), (Role::SendRecv, "sendrecv")];
const OPS: [ReduceOp; 5] = [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max, ReduceOp::Avg];
const DTYPES: [DType; 7] = [DType::F64, DType::F32, DType::Bf16, DType::F16, DType::U32, DType::I32, DType::I8];

/// All that the ranks of a call have to agree about.
#[derive(Clone, Copy, Debug)]
pub(super) struct Signature {
    pub group: u32,
    pub sequence: u64,
    pub code: Code,
    pub role: Role,
    pub op: ReduceOp,
    pub accumulate: bool,
    pub root: u32,
    pub send: Shape,
    pub recv: Shape,
}

impl PartialEq for Signature {
    /// The role is the one thing in which the two sides of a pair differ.
    fn eq(&self, other: &Signature) -> bool {
        let all = |s: &Signature| (s.group, s.sequence, s.code, s.op, s.accumulate, s.root, s.send, s.recv);
        all(self) == all(other)
    }
}

impl Signature {
    /// A call without buffers.
    pub(super) fn bare(group: u32, sequence: u64, code: Code) -> Signature {
        let none = (DType::I8, 0);
        let (role, op) = (Role::All, ReduceOp::Sum);
        Signature { group, sequence, code, role, op, accumulate: false, root: 0, send: none, recv: none }
    }

    /// A collective among `size` ranks, seen by one whose buffers have these shapes: the same on all ranks, in place or not.
    pub(super) fn of(
        kind: Kind,
        size: usize,
        group: u32,
        sequence: u64,
        send: Option<Shape>,
        recv: Option<Shape>,
    ) -> Signature {
        let none = (DType::I8, 0);
        let part = |shape: Shape| (shape.0, shape.1 / size);
        let one = recv.or(send).unwrap_or(none);
        let (code, root, send, recv) = match kind {
            Kind::AllReduce { .. } => (Code::AllReduce, 0, one, one),
            Kind::ReduceScatter { .. } => {
                let (send, recv) = if send.is_some() { (send.unwrap_or(none), one) } else { (one, part(one)) };
                (Code::ReduceScatter, 0, send, recv)
            }
            Kind::AllGather => (Code::AllGather, 0, part(one), one),
            Kind::Broadcast { root } => (Code::Broadcast, root, one, one),
            Kind::Reduce { root, .. } => (Code::Reduce, root, send.unwrap_or(one), send.unwrap_or(one)),
            Kind::Gather { root } => {
                let part = send.unwrap_or_else(|| part(one));
                (Code::Gather, root, part, part)
            }
            Kind::Scatter { root } => {
                let part = recv.unwrap_or_else(|| part(send.unwrap_or(none)));
                (Code::Scatter, root, part, part)
            }
            Kind::AllToAll => (Code::AllToAll, 0, one, one),
            Kind::Barrier => (Code::Barrier, 0, none, none),
            Kind::Send { .. } | Kind::Recv { .. } | Kind::SendRecv { .. } => (Code::Pair, 0, one, one),
        };
        let op = kind.op().unwrap_or(ReduceOp::Sum);
        let accumulate = matches!(kind, Kind::ReduceScatter { accumulate: true, .. });
        Signature { group, sequence, code, role: Role::All, op, accumulate, root: root as u32, send, recv }
    }

    /// What `role` does with a buffer of one shape; `sequence` counts what goes from one rank to the other.
    pub(super) fn pair(group: u32, sequence: u64, role: Role, shape: Shape) -> Signature {
        Signature { role, send: shape, recv: shape, ..Signature::bare(group, sequence, Code::Pair) }
    }

    pub(super) fn name(&self) -> &'static str {
        match self.code {
            Code::Pair => ROLES[self.role as usize].1,
            code => CODES[code as usize].1,
        }
    }

    /// The call as errors name it, without its number.
    pub(super) fn describe(&self) -> String {
        let name = self.name();
        let shape = |shape: Shape| format!("{} {}", shape.1, shape.0);
        let (send, recv, root) = (shape(self.send), shape(self.recv), self.root);
        let op = if self.op == ReduceOp::Sum { String::new() } else { format!(" ({})", self.op) };
        match self.code {
            Code::AllReduce => format!("{name}{op} of {send}"),
            Code::ReduceScatter if self.accumulate => format!("{name}{op} of {send} onto {recv}"),
            Code::ReduceScatter | Code::AllGather | Code::AllToAll => format!("{name}{op} of {send} to {recv}"),
            Code::Broadcast | Code::Scatter => format!("{name} of {send} from rank {root}"),
            Code::Reduce | Code::Gather => format!("{name}{op} of {send} to rank {root}"),
            Code::Pair => format!("{name} of {send}"),
            Code::Barrier | Code::Split => name.to_owned(),
        }
    }

    /// As `describe`, with what makes it another call than `ours` if the description does not show it.
    pub(super) fn describe_beside(&self, ours: &Signature) -> String {
        let text = self.describe();
        if self.group != ours.group {
            format!("{text} in another group (number {})", self.group)
        } else if self.sequence != ours.sequence {
            format!("{text} as number {}", self.sequence)
        } else {
            text
        }
    }

    pub(super) fn encode(&self, to: &mut [u8; 40]) {
        to[0..4].copy_from_slice(&self.group.to_le_bytes());
        to[4..8].copy_from_slice(&self.root.to_le_bytes());
        to[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        to[16..24].copy_from_slice(&(self.send.1 as u64).to_le_bytes());
        to[24..32].copy_from_slice(&(self.recv.1 as u64).to_le_bytes());
        let dtype = |wanted| DTYPES.iter().position(|dtype| *dtype == wanted).unwrap_or(DTYPES.len()) as u8;
        let op = OPS.iter().position(|op| *op == self.op).unwrap_or(OPS.len()) as u8;
        let small =
            [self.code as u8, op, u8::from(self.accumulate), dtype(self.send.0), dtype(self.recv.0), self.role as u8];
        to[32..38].copy_from_slice(&small);
        to[38..40].fill(0);
    }

    /// `None` where the bytes are no signature.
    pub(super) fn decode(from: &[u8; 40]) -> Option<Signature> {
        let word = |at: usize| u64_at(from, at);
        let dtype = |at: usize| DTYPES.get(usize::from(from[at])).copied();
        Some(Signature {
            group: u32_at(from, 0),
            root: u32_at(from, 4),
            sequence: word(8),
            code: CODES.get(usize::from(from[32]))?.0,
            op: *OPS.get(usize::from(from[33]))?,
            accumulate: from[34] != 0,
            send: (dtype(35)?, usize::try_from(word(16)).ok()?),
            recv: (dtype(36)?, usize::try_from(word(24)).ok()?),
            role: ROLES.get(usize::from(from[37]))?.0,
        })
    }
}

/// The name of a collective that another rank speaks of, as this program writes it.
pub(super) fn known_name(name: &str) -> &'static str {
    let names = CODES.iter().map(|(_, name)| *name).chain(ROLES.iter().map(|(_, name)| *name));
    names.into_iter().find(|known| *known == name).unwrap_or("a collective")
}

/// What stands before a payload.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub signature: Signature,
    /// Number of the frame among those that go from one rank to the other in this call.
    pub index: u32,
    pub bytes: u64,
    /// Of the payload; 0 where sums are not checked.
    pub checksum: u64,
}

impl Header {
    pub(super) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.index.to_le_bytes());
        if let Some(signature) = bytes[8..].first_chunk_mut() {
            self.signature.encode(signature);
        }
        bytes[48..56].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[56..64].copy_from_slice(&self.checksum.to_le_bytes());
        bytes
    }

    /// `None` where the bytes are no header.
    pub(super) fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<Header> {
        if u32_at(bytes, 0) != MAGIC {
            return None;
        }
        let signature = Signature::decode(bytes[8..].first_chunk()?)?;
        Some(Header { signature, index: u32_at(bytes, 4), bytes: u64_at(bytes, 48), checksum: u64_at(bytes, 56) })
    }
}

/// A sum over all bytes in which every changed bit shows: four chains of multiply and rotate, for speed.
pub(super) fn checksum(bytes: &[u8]) -> u64 {
    const K: u64 = 0x9e37_79b9_7f4a_7c15;
    let step = |sum: u64, word: u64| (sum ^ word).wrapping_mul(K).rotate_left(29);
    let mut sums = [1u64, 2, 3, bytes.len() as u64];
    let (blocks, rest) = bytes.as_chunks::<32>();
    for block in blocks {
        for (lane, sum) in sums.iter_mut().enumerate() {
            *sum = step(*sum, u64_at(block, 8 * lane));
        }
    }
    for (at, byte) in rest.iter().enumerate() {
        sums[at % 4] = step(sums[at % 4], u64::from(*byte) + 1);
    }
    sums.into_iter().fold(K, step)
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_as_they_are_written() {
        for (index, (code, name)) in CODES.iter().enumerate() {
            assert_eq!(*code as usize, index, "{name}");
            for (at, (role, _)) in ROLES.iter().enumerate() {
                assert_eq!(*role as usize, at);
                let signature = Signature {
                    group: 7,
                    sequence: u64::MAX - 3,
                    code: *code,
                    role: *role,
                    op: OPS[(index + at) % OPS.len()],
                    accumulate: index % 2 == 0,
                    root: 11,
                    send: (DTYPES[index % DTYPES.len()], 1 << 40),
                    recv: (DTYPES[at], 3),
                };
                let header = Header { signature, index: 9, bytes: 1 << 33, checksum: 0x0123_4567_89ab_cdef };
                let again = Header::decode(&header.encode()).unwrap();
                assert_eq!((again.signature, again.signature.role), (signature, *role));
                assert_eq!((again.index, again.bytes, again.checksum), (header.index, header.bytes, header.checksum));
            }
        }
        assert!(Header::decode(&[0xff; HEADER_BYTES]).is_none());
        let mut bytes =
            Header { signature: Signature::bare(0, 0, Code::Barrier), index: 0, bytes: 0, checksum: 0 }.encode();
        bytes[40] = 200;
        assert!(Header::decode(&bytes).is_none(), "an unknown collective");
    }

    #[test]
    fn every_flipped_bit_and_every_cut_changes_the_checksum() {
        let mut bytes: Vec<u8> = (0..131u32).map(|i| (i * i * 7 + 13) as u8).collect();
        let sum = checksum(&bytes);
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(checksum(&bytes), sum, "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        let sums: std::collections::HashSet<u64> = (0..=bytes.len()).map(|len| checksum(&bytes[..len])).collect();
        assert_eq!(sums.len(), bytes.len() + 1);
        assert_ne!(checksum(&[0; 64]), checksum(&[0; 32]));
        bytes.swap(3, 70);
        assert_ne!(checksum(&bytes), sum, "two bytes exchanged");
    }
}
