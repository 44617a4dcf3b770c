//! The connection between rank 0 and another rank after the challenge: messages whose place in the row and content neither
//! side takes on trust.

use super::caller::read_until;
use super::hello::{Proof, Token};
use std::io::{self, ErrorKind, Write};
use std::net::TcpStream;
use std::time::Instant;

/// Kind and length of a message, before it; its code is behind it.
const HEAD_BYTES: usize = 5;

#[derive(Debug)]
pub(super) struct Wire {
    pub stream: TcpStream,
    /// The keys of the two directions, and how many messages have gone each way.
    sends: (Token, u64),
    hears: (Token, u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Caller,
    Acceptor,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// What a rank gives, or what all have given.
    Blob = 0,
    /// Why the meeting has ended.
    Dismissal = 1,
}

impl Wire {
    pub(super) fn new(stream: TcpStream, end: End, token: &Token, proof: &Proof) -> Wire {
        let key = |purpose: &str| token.derive(purpose, proof.as_bytes());
        let (caller, door) = ((key("zbench from caller"), 0), (key("zbench from door"), 0));
        let (sends, hears) = if end == End::Caller { (caller, door) } else { (door, caller) };
        Wire { stream, sends, hears }
    }

    pub(super) fn write(&mut self, kind: Kind, blob: &[u8]) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(HEAD_BYTES + blob.len() + blake3::OUT_LEN);
        bytes.push(kind as u8);
        bytes.extend_from_slice(&(blob.len() as u32).to_le_bytes());
        bytes.extend_from_slice(blob);
        let code = code(&mut self.sends, &bytes);
        bytes.extend_from_slice(code.as_bytes());
        self.stream.write_all(&bytes)
    }

    pub(super) fn read(&mut self, most: usize, deadline: Instant) -> io::Result<(Kind, Vec<u8>)> {
        let invalid = |reason: String| io::Error::new(ErrorKind::InvalidData, reason);
        let mut bytes = vec![0; HEAD_BYTES];
        read_until(&mut self.stream, &mut bytes, deadline)?;
        let len = u32::from_le_bytes([bytes[1], bytes[2], bytes[3], bytes[4]]) as usize;
        if len > most {
            return Err(invalid(format!("it announced {len} bytes, and {most} are the most")));
        }
        bytes.resize(HEAD_BYTES + len, 0);
        read_until(&mut self.stream, &mut bytes[HEAD_BYTES..], deadline)?;
        let mut theirs = [0; blake3::OUT_LEN];
        read_until(&mut self.stream, &mut theirs, deadline)?;
        if code(&mut self.hears, &bytes) != blake3::Hash::from_bytes(theirs) {
            return Err(invalid("a message was changed on its way, or is none of this launch".into()));
        }
        let kind = match bytes[0] {
            0 => Kind::Blob,
            1 => Kind::Dismissal,
            kind => return Err(invalid(format!("there are no messages of kind {kind}"))),
        };
        bytes.drain(..HEAD_BYTES);
        Ok((kind, bytes))
    }
}

fn code((key, count): &mut (Token, u64), bytes: &[u8]) -> blake3::Hash {
    *count += 1;
    key.code(&[&count.to_le_bytes(), bytes])
}
