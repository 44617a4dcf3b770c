//! What travels: frames of a fixed header and a payload whose length the receiver knows beforehand.
//!
//! The header says which call the payload belongs to and what the sender believes that call to be ([`Signature`]); nothing in
//! it makes the receiver allocate.

use crate::call::Shape;
use crate::cause::SPLIT;
use crate::rendezvous::hello::u32_at;
use crate::{CollectiveKind, Kind, ReduceOp};
use zbench_kernels::DType;

pub(super) const HEADER_BYTES: usize = 64;
/// Bytes of one frame at most. Small enough that a chunk is still in the cache when it is summed and sent on.
pub(super) const CHUNK_BYTES: usize = 256 << 10;
const MAGIC: u32 = 0x7a62_4652;

/// The numbers that travel for a call (`None`: for a split): its code, and which side of a pair wrote the header. All of send,
/// recv and sendrecv have one code.
const CODES: [(Option<CollectiveKind>, [u8; 2]); 13] = [
    (Some(CollectiveKind::AllReduce), [0, 0]),
    (Some(CollectiveKind::ReduceScatter), [1, 0]),
    (Some(CollectiveKind::AllGather), [2, 0]),
    (Some(CollectiveKind::Broadcast), [3, 0]),
    (Some(CollectiveKind::Reduce), [4, 0]),
    (Some(CollectiveKind::Gather), [5, 0]),
    (Some(CollectiveKind::Scatter), [6, 0]),
    (Some(CollectiveKind::AllToAll), [7, 0]),
    (Some(CollectiveKind::Send), [8, 1]),
    (Some(CollectiveKind::Recv), [8, 2]),
    (Some(CollectiveKind::SendRecv), [8, 3]),
    (Some(CollectiveKind::Barrier), [9, 0]),
    (None, [10, 0]),
];
const OPS: [ReduceOp; 5] = [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max, ReduceOp::Avg];
const DTYPES: [DType; 7] = [DType::F64, DType::F32, DType::Bf16, DType::F16, DType::U32, DType::I32, DType::I8];

/// All that the ranks of a call have to agree about.
#[derive(Clone, Copy, Debug)]
pub(super) struct Signature {
    pub group: u32,
    pub sequence: u64,
    /// `None` for a split.
    pub kind: Option<CollectiveKind>,
    pub op: ReduceOp,
    pub accumulate: bool,
    pub root: u32,
    pub send: Shape,
    pub recv: Shape,
    /// The rank does nothing else until the call is complete. Not part of what ranks have to agree about.
    pub blocking: bool,
}

impl PartialEq for Signature {
    /// The two sides of a pair have different kinds of one code.
    fn eq(&self, other: &Signature) -> bool {
        let all = |s: &Signature| (s.group, s.sequence, s.codes()[0], s.op, s.accumulate, s.root, s.send, s.recv);
        all(self) == all(other)
    }
}

impl Signature {
    pub(super) fn bare(group: u32, sequence: u64, kind: Option<CollectiveKind>) -> Signature {
        let none = (DType::I8, 0);
        let (op, accumulate, root, blocking) = (ReduceOp::Sum, false, 0, true);
        Signature { group, sequence, kind, op, accumulate, root, send: none, recv: none, blocking }
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
        let both = |shape| (shape, shape);
        let (send, recv) = match kind {
            Kind::ReduceScatter { .. } => send.map_or((one, part(one)), |send| (send, one)),
            Kind::AllGather => (part(one), one),
            Kind::Reduce { .. } => both(send.unwrap_or(one)),
            Kind::Gather { .. } => both(send.unwrap_or_else(|| part(one))),
            Kind::Scatter { .. } => both(recv.unwrap_or_else(|| part(send.unwrap_or(none)))),
            Kind::Barrier => both(none),
            _ => both(one),
        };
        let (op, accumulate, root) = kind.operands();
        let (kind, root) = (Some(kind.collective()), root as u32);
        Signature { group, sequence, kind, op, accumulate, root, send, recv, blocking: true }
    }

    /// One side of a pair, with a buffer of one shape; `sequence` counts what goes from one rank to the other.
    pub(super) fn pair(group: u32, sequence: u64, kind: CollectiveKind, shape: Shape) -> Signature {
        Signature { send: shape, recv: shape, ..Signature::bare(group, sequence, Some(kind)) }
    }

    /// What tells the calls under way between two ranks apart, in one direction.
    pub(super) fn key(&self) -> (u32, u64, bool) {
        (self.group, self.sequence, self.is_of_pair())
    }

    pub(super) fn is_of_pair(&self) -> bool {
        self.kind.is_some_and(|kind| !kind.is_collective())
    }

    fn codes(&self) -> [u8; 2] {
        let same = |(kind, _): &&(Option<CollectiveKind>, [u8; 2])| *kind == self.kind;
        CODES.iter().find(same).map_or([u8::MAX; 2], |(_, codes)| *codes)
    }

    pub(super) fn name(&self) -> &'static str {
        self.kind.map_or(SPLIT, CollectiveKind::name)
    }

    /// The call as errors name it, without its number.
    pub(super) fn describe(&self) -> String {
        let operands = (self.op, self.accumulate, self.root as usize);
        self.kind.map_or(SPLIT.to_owned(), |kind| kind.describe(operands, self.send, self.recv))
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

    pub(super) fn encode(&self) -> [u8; 40] {
        let mut to = [0; 40];
        to[0..4].copy_from_slice(&self.group.to_le_bytes());
        to[4..8].copy_from_slice(&self.root.to_le_bytes());
        to[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        to[16..24].copy_from_slice(&(self.send.1 as u64).to_le_bytes());
        to[24..32].copy_from_slice(&(self.recv.1 as u64).to_le_bytes());
        let dtype = |wanted| DTYPES.iter().position(|dtype| *dtype == wanted).unwrap_or(DTYPES.len()) as u8;
        let op = OPS.iter().position(|op| *op == self.op).unwrap_or(OPS.len()) as u8;
        let [code, role] = self.codes();
        let (accumulate, blocking) = (u8::from(self.accumulate), u8::from(self.blocking));
        let small = [code, op, accumulate, dtype(self.send.0), dtype(self.recv.0), role, blocking, 0];
        to[32..40].copy_from_slice(&small);
        to
    }

    /// `None` where the bytes are no signature.
    pub(super) fn decode(from: &[u8; 40]) -> Option<Signature> {
        let word = |at: usize| u64_at(from, at);
        let dtype = |at: usize| DTYPES.get(usize::from(from[at])).copied();
        Some(Signature {
            group: u32_at(from, 0),
            root: u32_at(from, 4),
            sequence: word(8),
            kind: CODES.iter().find(|(_, codes)| *codes == [from[32], from[37]])?.0,
            op: *OPS.get(usize::from(from[33]))?,
            accumulate: from[34] != 0,
            send: (dtype(35)?, usize::try_from(word(16)).ok()?),
            recv: (dtype(36)?, usize::try_from(word(24)).ok()?),
            blocking: from[38] != 0,
        })
    }
}

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
        bytes[8..48].copy_from_slice(&self.signature.encode());
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

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_as_they_are_written() {
        for (index, (kind, codes)) in CODES.iter().enumerate() {
            let signature = Signature {
                group: 7,
                sequence: u64::MAX - 3,
                kind: *kind,
                op: OPS[index % OPS.len()],
                accumulate: index % 2 == 0,
                root: 11,
                send: (DTYPES[index % DTYPES.len()], 1 << 40),
                recv: (DTYPES[index * 2 % DTYPES.len()], 3),
                blocking: index % 3 == 0,
            };
            let header = Header { signature, index: 9, bytes: 1 << 33, checksum: 0x0123_4567_89ab_cdef };
            let bytes = header.encode();
            assert_eq!([bytes[40], bytes[45]], *codes, "{kind:?}");
            let again = Header::decode(&bytes).unwrap();
            assert_eq!((again.signature, again.signature.kind), (signature, *kind));
            assert_eq!(again.signature.blocking, signature.blocking);
            assert_eq!((again.index, again.bytes, again.checksum), (header.index, header.bytes, header.checksum));
        }
        assert!(Header::decode(&[0xff; HEADER_BYTES]).is_none());
        let mut bytes =
            Header { signature: Signature::bare(0, 0, Some(CollectiveKind::Barrier)), index: 0, bytes: 0, checksum: 0 }
                .encode();
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
