//! One data connection: frames go out and come in by turns, as far as the sockets take and give.

// Frames are read from and written to buffers of the call under way.
#![allow(unsafe_code)]

use super::frame::{HEADER_BYTES, Header, Signature, checksum};
use std::collections::VecDeque;
use std::io::{ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::TcpStream;

/// Most that one system call moves, so that no lane keeps the others waiting.
const TURN_BYTES: usize = 512 << 10;

/// A frame to send or to receive. The memory is the caller's of the collective, or staging, and stays until the piece is
/// done or [`Lane::clear`] has forgotten it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub at: *mut u8,
    pub len: usize,
    /// Number of the frame from this rank to that one in this call.
    pub index: u32,
    /// Which counter goes down when it is done.
    pub tag: u32,
    /// Bytes that went before it from this rank to that one in this call.
    pub offset: u64,
}

// SAFETY: an address with a promise (see above); it is used by the thread whose call made the piece.
unsafe impl Send for Piece {}

pub(super) struct Lane {
    pub stream: TcpStream,
    pub out: VecDeque<Piece>,
    pub incoming: VecDeque<Piece>,
    /// Bytes of the front piece, header included, that are through.
    sent: usize,
    got: usize,
    out_header: [u8; HEADER_BYTES],
    in_header: [u8; HEADER_BYTES],
    expected_sum: u64,
}

#[derive(Debug)]
pub(super) enum Turn {
    /// The socket has no room, or no bytes.
    Blocked,
    Moved,
    /// The front piece is done; it has been taken off.
    Done(Piece),
}

/// Why a lane is of no more use.
#[derive(Debug)]
pub(super) enum Broken {
    Closed(String),
    Mismatch(Signature),
    Garbage(String),
    /// A payload differs from what its sender summed up.
    Corrupt(Piece),
}

impl Lane {
    pub(super) fn new(stream: TcpStream) -> Lane {
        let header = [0; HEADER_BYTES];
        Lane {
            stream,
            out: VecDeque::new(),
            incoming: VecDeque::new(),
            sent: 0,
            got: 0,
            out_header: header,
            in_header: header,
            expected_sum: 0,
        }
    }

    /// Forgets all pieces: their memory may go.
    pub(super) fn clear(&mut self) {
        self.out.clear();
        self.incoming.clear();
        (self.sent, self.got) = (0, 0);
    }

    /// Which call the next frame belongs to, if one has come that nobody has begun to take.
    pub(super) fn peek(&self) -> Option<Signature> {
        let mut bytes = [0; HEADER_BYTES];
        match self.stream.peek(&mut bytes) {
            Ok(HEADER_BYTES) if self.incoming.is_empty() && self.got == 0 => Some(Header::decode(&bytes)?.signature),
            _ => None,
        }
    }

    /// Sends what the socket takes at once of the front piece.
    pub(super) fn flush(&mut self, signature: &Signature, sums: bool) -> Result<Turn, Broken> {
        let Some(piece) = self.out.front().copied() else { return Ok(Turn::Blocked) };
        // SAFETY: the piece's memory is alive, and nobody writes it before the piece is done (`Piece`, `Exchange`).
        let payload = unsafe { std::slice::from_raw_parts(piece.at.cast_const(), piece.len) };
        if self.sent == 0 {
            let checksum = if sums { checksum(payload) } else { 0 };
            let header = Header { signature: *signature, index: piece.index, bytes: piece.len as u64, checksum };
            self.out_header = header.encode();
        }
        let written = match self.sent.checked_sub(HEADER_BYTES) {
            None => {
                let first = &payload[..piece.len.min(TURN_BYTES)];
                self.stream.write_vectored(&[IoSlice::new(&self.out_header[self.sent..]), IoSlice::new(first)])
            }
            Some(done) => self.stream.write(&payload[done..piece.len.min(done + TURN_BYTES)]),
        };
        match written {
            Ok(count) => self.sent += count,
            Err(error) => return blocked(error),
        }
        if self.sent < HEADER_BYTES + piece.len {
            return Ok(Turn::Moved);
        }
        self.sent = 0;
        self.out.pop_front();
        Ok(Turn::Done(piece))
    }

    /// Receives what has come for the front piece.
    pub(super) fn fill(&mut self, signature: &Signature, sums: bool) -> Result<Turn, Broken> {
        let Some(piece) = self.incoming.front().copied() else { return Ok(Turn::Blocked) };
        // SAFETY: the piece's memory is alive, and nobody else uses it before the piece is done (`Piece`, `Exchange`).
        let payload = unsafe { std::slice::from_raw_parts_mut(piece.at, piece.len) };
        let before = self.got;
        let read = match self.got.checked_sub(HEADER_BYTES) {
            None => {
                let first = &mut payload[..piece.len.min(TURN_BYTES)];
                let header = &mut self.in_header[self.got..];
                self.stream.read_vectored(&mut [IoSliceMut::new(header), IoSliceMut::new(first)])
            }
            Some(done) => self.stream.read(&mut payload[done..piece.len.min(done + TURN_BYTES)]),
        };
        match read {
            Ok(0) => return Err(Broken::Closed("the connection ended".into())),
            Ok(count) => self.got += count,
            Err(error) => return blocked(error),
        }
        if before < HEADER_BYTES && self.got >= HEADER_BYTES {
            self.check(&piece, signature)?;
        }
        if self.got < HEADER_BYTES + piece.len {
            return Ok(Turn::Moved);
        }
        if sums && checksum(payload) != self.expected_sum {
            return Err(Broken::Corrupt(piece));
        }
        self.got = 0;
        self.incoming.pop_front();
        Ok(Turn::Done(piece))
    }

    /// Whether the header that has come is the one that this call expects.
    fn check(&mut self, piece: &Piece, signature: &Signature) -> Result<(), Broken> {
        let no_frame = || {
            let begin: Vec<String> = self.in_header[..16].iter().map(|byte| format!("{byte:02x}")).collect();
            Broken::Garbage(format!("bytes that are no frame ({})", begin.join(" ")))
        };
        let header = Header::decode(&self.in_header).ok_or_else(no_frame)?;
        if header.signature != *signature {
            return Err(Broken::Mismatch(header.signature));
        }
        if (header.index, header.bytes) != (piece.index, piece.len as u64) {
            let (index, bytes, wanted, len) = (header.index, header.bytes, piece.index, piece.len);
            let text = format!("frame {index} of {bytes} bytes where frame {wanted} of {len} bytes was expected");
            return Err(Broken::Garbage(text));
        }
        self.expected_sum = header.checksum;
        Ok(())
    }
}

fn blocked(error: std::io::Error) -> Result<Turn, Broken> {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::Interrupted => Ok(Turn::Blocked),
        _ => Err(Broken::Closed(error.to_string())),
    }
}
