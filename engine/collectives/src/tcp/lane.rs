//! One data connection: frames go out and come in by turns, as far as the sockets take and give.

#![allow(unsafe_code, reason = "frames are read from and written to buffers of the calls under way")]

use super::frame::{CHUNK_BYTES, HEADER_BYTES, Header, Signature, checksum};
use std::collections::VecDeque;
use std::io::{ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

/// Most that one system call moves, so that no lane keeps the others waiting.
const TURN_BYTES: usize = 512 << 10;
/// What is read where the next frame is not known yet: a header, and all of a small payload.
const AHEAD_BYTES: usize = HEADER_BYTES + (8 << 10);

/// A connection. It is shared, so that it can be watched without the lock of the mesh; `&TcpStream` reads and writes.
pub(super) type Socket = Arc<TcpStream>;

/// A frame to send or to receive. The memory is that of the call's buffers, or staging, and stays until the piece is
/// done or [`Lane::forget`] has forgotten it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub at: *mut u8,
    pub len: usize,
    /// The call by its number on this rank.
    pub call: u64,
    /// The other rank's place in the call's group.
    pub member: usize,
    /// Number of the frame from this rank to that one in this call.
    pub index: u32,
    /// Which counter goes down when it is done.
    pub tag: u32,
    /// Bytes that went before it from this rank to that one in this call.
    pub offset: u64,
}

// SAFETY: an address with a promise (see above); it is used by who holds the lock of the mesh.
unsafe impl Send for Piece {}

impl Piece {
    /// Puts in what has come before its place was known. False where that is not as long.
    pub(super) fn put(&self, payload: &[u8]) -> bool {
        if payload.len() != self.len {
            return false;
        }
        // SAFETY: the piece's memory is alive, and nobody else uses it before the piece is done (`Piece`, `Exchange`).
        unsafe { std::slice::from_raw_parts_mut(self.at, self.len) }.copy_from_slice(payload);
        true
    }
}

/// A frame that came before its place was known.
#[derive(Debug)]
pub(super) struct Early {
    pub header: Header,
    pub payload: Vec<u8>,
}

/// Where the frame goes whose header has come.
pub(super) enum Route {
    Place(Piece),
    /// Into memory of its own, until its call takes it.
    Keep,
    /// Nowhere yet: it stays in the socket.
    Hold,
}

pub(super) struct Lane {
    pub stream: Socket,
    /// First frames of calls. They never wait for the receiver, and go before the others, so that small calls overtake
    /// large ones; among themselves they keep their order, on which the search for calls in different order relies.
    first: VecDeque<Piece>,
    rest: VecDeque<Piece>,
    sending: Option<Piece>,
    /// Bytes of `sending`, header included, that are through.
    sent: usize,
    out_header: [u8; HEADER_BYTES],
    pub incoming: VecDeque<Piece>,
    /// What has been read and not been looked at: `ahead[start..end]`.
    ahead: Vec<u8>,
    start: usize,
    end: usize,
    /// The piece that the last read took for the next frame, and how much of a payload went there.
    guess: Option<(Piece, usize)>,
    /// The header of the frame that comes.
    head: Option<Header>,
    /// Where its payload goes; `Hold` while that is not known.
    route: Route,
    /// The payload of a frame that is kept.
    kept: Vec<u8>,
    /// Bytes of the payload that have come.
    got: usize,
    /// There may be something to read though nobody waits for it.
    pub readable: bool,
    /// Of no more use: the connection has ended, or what came cannot be told apart any more.
    pub dead: bool,
}

#[derive(Debug)]
pub(super) enum Turn {
    /// The socket has no room, or no bytes.
    Blocked,
    Moved,
    Done(Piece),
    /// A frame without a place is complete.
    Kept(Early),
}

/// Why a lane is of no more use.
#[derive(Debug)]
pub(super) enum Broken {
    Closed(String),
    /// The call here, and what the frame takes it to be.
    Mismatch(u64, Signature),
    Garbage(String),
    /// A payload differs from what its sender summed up.
    Corrupt(Piece),
}

impl Lane {
    pub(super) fn new(stream: TcpStream) -> Lane {
        Lane {
            stream: Arc::new(stream),
            first: VecDeque::new(),
            rest: VecDeque::new(),
            sending: None,
            sent: 0,
            out_header: [0; HEADER_BYTES],
            incoming: VecDeque::new(),
            ahead: vec![0; AHEAD_BYTES],
            start: 0,
            end: 0,
            guess: None,
            head: None,
            route: Route::Hold,
            kept: Vec::new(),
            got: 0,
            readable: false,
            dead: false,
        }
    }

    /// Queues a frame that may go at once.
    pub(super) fn push(&mut self, piece: Piece) {
        if piece.index == 0 { self.first.push_back(piece) } else { self.rest.push_back(piece) }
    }

    /// Forgets all pieces of a call: their memory may go. A lane that is in the middle of one is dead, for what follows on it
    /// would not be understood.
    pub(super) fn forget(&mut self, call: u64) {
        let others = |piece: &Piece| piece.call != call;
        self.first.retain(others);
        self.rest.retain(others);
        self.incoming.retain(others);
        if self.sending.is_some_and(|piece| piece.call == call) {
            (self.sending, self.dead) = (None, true);
        }
        if matches!(self.route, Route::Place(piece) if piece.call == call) {
            (self.route, self.dead) = (Route::Hold, true);
        }
    }

    pub(super) fn has_out(&self) -> bool {
        !self.dead && (self.sending.is_some() || !self.first.is_empty() || !self.rest.is_empty())
    }

    /// Whether it is worth while to look for bytes without having been told of any.
    pub(super) fn expects(&self) -> bool {
        let midway = self.head.is_some() || self.end > self.start;
        !self.dead && (midway || self.readable || !self.incoming.is_empty())
    }

    /// Whether the frame at its head has no place yet, and stays in the socket.
    pub(super) fn is_held(&self) -> bool {
        self.head.is_some() && matches!(self.route, Route::Hold)
    }

    /// The pieces that are to move here.
    pub(super) fn pieces(&self) -> impl Iterator<Item = &Piece> {
        let place = match &self.route {
            Route::Place(piece) => Some(piece),
            _ => None,
        };
        self.sending.iter().chain(place).chain(&self.first).chain(&self.rest).chain(&self.incoming)
    }

    /// Sends what the socket takes at once of one piece.
    pub(super) fn flush(&mut self, signature: impl Fn(u64) -> Option<Signature>, sums: bool) -> Result<Turn, Broken> {
        let next = self.sending.or_else(|| self.first.pop_front()).or_else(|| self.rest.pop_front());
        let Some(piece) = next else { return Ok(Turn::Blocked) };
        // SAFETY: the piece's memory is alive, and nobody writes it before the piece is done (`Piece`, `Exchange`).
        let payload = unsafe { std::slice::from_raw_parts(piece.at.cast_const(), piece.len) };
        if self.sending.is_none() {
            // A call that is closed has no pieces (`forget`).
            let Some(signature) = signature(piece.call) else { return Ok(Turn::Moved) };
            let checksum = if sums { checksum(payload) } else { 0 };
            let header = Header { signature, index: piece.index, bytes: piece.len as u64, checksum };
            self.out_header = header.encode();
            (self.sending, self.sent) = (Some(piece), 0);
        }
        let written = match self.sent.checked_sub(HEADER_BYTES) {
            None => {
                let first = &payload[..piece.len.min(TURN_BYTES)];
                (&*self.stream).write_vectored(&[IoSlice::new(&self.out_header[self.sent..]), IoSlice::new(first)])
            }
            Some(done) => (&*self.stream).write(&payload[done..piece.len.min(done + TURN_BYTES)]),
        };
        match written {
            Ok(count) => self.sent += count,
            Err(error) => return blocked(error),
        }
        if self.sent < HEADER_BYTES + piece.len {
            return Ok(Turn::Moved);
        }
        self.sending = None;
        Ok(Turn::Done(piece))
    }

    /// Receives what has come of one frame; `route` says where it goes.
    pub(super) fn fill(
        &mut self,
        route: impl FnOnce(&Header, &mut VecDeque<Piece>) -> Result<Route, Broken>,
        sums: bool,
    ) -> Result<Turn, Broken> {
        let turn = if self.head.is_none() { self.header()? } else { Turn::Moved };
        let Some(header) = self.head else { return Ok(turn) };
        if let Route::Hold = self.route {
            let routed = route(&header, &mut self.incoming);
            self.got = self.guessed(if let Ok(Route::Place(piece)) = &routed { Some(*piece) } else { None });
            self.route = routed?;
            match self.route {
                Route::Hold => return Ok(Turn::Blocked),
                Route::Keep => self.kept = vec![0; (header.bytes as usize).min(CHUNK_BYTES)],
                Route::Place(_) => {}
            }
        }
        let payload: &mut [u8] = match &self.route {
            // SAFETY: the piece's memory is alive, and nobody else uses it before the piece is done (`Piece`, `Exchange`).
            Route::Place(piece) => unsafe { std::slice::from_raw_parts_mut(piece.at, piece.len) },
            Route::Keep | Route::Hold => &mut self.kept,
        };
        let here = (self.end - self.start).min(payload.len() - self.got);
        payload[self.got..self.got + here].copy_from_slice(&self.ahead[self.start..self.start + here]);
        self.start += here;
        self.got += here;
        if self.got < payload.len() {
            let until = payload.len().min(self.got + TURN_BYTES);
            match (&*self.stream).read(&mut payload[self.got..until]) {
                Ok(0) => return Err(Broken::Closed("the connection ended".into())),
                Ok(count) => self.got += count,
                Err(error) => {
                    self.readable = false;
                    let turn = blocked(error)?;
                    return Ok(if here > 0 { Turn::Moved } else { turn });
                }
            }
        }
        if self.got < payload.len() {
            return Ok(Turn::Moved);
        }
        let wrong = sums && checksum(payload) != header.checksum;
        self.head = None;
        match std::mem::replace(&mut self.route, Route::Hold) {
            Route::Place(piece) if wrong => Err(Broken::Corrupt(piece)),
            Route::Place(piece) => Ok(Turn::Done(piece)),
            // Its sum is checked when it is put into its place, of which the error speaks.
            Route::Keep | Route::Hold => Ok(Turn::Kept(Early { header, payload: std::mem::take(&mut self.kept) })),
        }
    }

    /// How much of a frame's payload is in its place already. What was read into another place is taken from there.
    fn guessed(&mut self, place: Option<Piece>) -> usize {
        let Some((piece, bytes)) = self.guess.take() else { return 0 };
        if place.is_some_and(|place| (place.call, place.at, place.len) == (piece.call, piece.at, piece.len)) {
            return bytes;
        }
        if self.ahead.len() < self.end + bytes {
            self.ahead.resize(self.end + bytes, 0);
        }
        // SAFETY: as where it was read; the bytes were written there then, and `ahead` is memory of its own.
        let read = unsafe { std::slice::from_raw_parts(piece.at.cast_const(), bytes) };
        self.ahead[self.end..self.end + bytes].copy_from_slice(read);
        self.end += bytes;
        0
    }

    /// Reads the header of the next frame, and what comes with it. `head` has it when all of it has come.
    fn header(&mut self) -> Result<Turn, Broken> {
        if self.end - self.start < HEADER_BYTES {
            self.ahead.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            // A large payload most likely belongs to the first piece that is waited for, and is read there at once.
            let next = self.incoming.front().copied().filter(|piece| piece.len > AHEAD_BYTES && self.end == 0);
            let read = match next {
                None => (&*self.stream).read(&mut self.ahead[self.end..]),
                Some(piece) => {
                    let most = piece.len.min(TURN_BYTES);
                    // SAFETY: the piece's memory is alive, and nobody else uses it before the piece is done (`Piece`, `Exchange`).
                    let payload = unsafe { std::slice::from_raw_parts_mut(piece.at, most) };
                    let header = &mut self.ahead[..HEADER_BYTES];
                    (&*self.stream).read_vectored(&mut [IoSliceMut::new(header), IoSliceMut::new(payload)])
                }
            };
            match read {
                Ok(0) => return Err(Broken::Closed("the connection ended".into())),
                Ok(count) if next.is_some() => {
                    self.end = count.min(HEADER_BYTES);
                    self.guess = next.map(|piece| (piece, count - self.end)).filter(|(_, bytes)| *bytes > 0);
                }
                Ok(count) => self.end += count,
                Err(error) => {
                    self.readable = false;
                    return blocked(error);
                }
            }
        }
        let Some(bytes) = self.ahead[self.start..self.end].first_chunk::<HEADER_BYTES>() else {
            return Ok(Turn::Moved);
        };
        let Some(header) = Header::decode(bytes) else {
            let begin: Vec<String> = bytes[..16].iter().map(|byte| format!("{byte:02x}")).collect();
            return Err(Broken::Garbage(format!("bytes that are no frame ({})", begin.join(" "))));
        };
        self.start += HEADER_BYTES;
        self.head = Some(header);
        Ok(Turn::Moved)
    }
}

fn blocked(error: std::io::Error) -> Result<Turn, Broken> {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::Interrupted => Ok(Turn::Blocked),
        _ => Err(Broken::Closed(error.to_string())),
    }
}
