//! The accepting side: lets in who knows the token, and keeps everybody else from holding up the others.

use super::hello::{Answer, HELLO_BYTES, Hello, Token, begins, excerpt, greeting};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// How long a connection may take to say who it is.
const HELLO_TIME: Duration = Duration::from_secs(5);
/// Connections that have not said who they are; beyond these the oldest is closed.
const MAX_PENDING: usize = 256;
/// Refusals that are written down; more are only counted.
const MAX_NOTES: usize = 100;

/// Listens, and reads the hellos of all callers side by side without waiting for any.
pub(crate) struct Door {
    listeners: Vec<TcpListener>,
    pending: Vec<Pending>,
    token: Token,
    refusals: Refusals,
}

struct Pending {
    stream: TcpStream,
    from: SocketAddr,
    since: Instant,
    got: usize,
    bytes: [u8; HELLO_BYTES],
}

/// A caller that knows the token.
pub(crate) struct Visitor {
    pub stream: TcpStream,
    pub from: SocketAddr,
    pub hello: Hello,
}

/// Who was refused and why.
#[derive(Default)]
pub(crate) struct Refusals {
    notes: Vec<String>,
    more: usize,
}

impl Refusals {
    pub(crate) fn note(&mut self, from: SocketAddr, reason: &str) {
        if self.notes.len() < MAX_NOTES {
            self.notes.push(format!("{from}: {reason}"));
        } else {
            self.more += 1;
        }
    }

    pub(crate) fn into_notes(mut self) -> Vec<String> {
        if self.more > 0 {
            self.notes.push(format!("and {} more", self.more));
        }
        self.notes
    }
}

impl Door {
    /// Listens at all of the addresses.
    pub(crate) fn new(listeners: Vec<TcpListener>, token: Token) -> io::Result<Door> {
        listeners.iter().try_for_each(|listener| listener.set_nonblocking(true))?;
        Ok(Door { listeners, pending: Vec::new(), token, refusals: Refusals::default() })
    }

    pub(crate) fn into_refusals(self) -> Vec<String> {
        self.refusals.into_notes()
    }

    /// Takes new connections and what has come on those that are open; does not wait.
    pub(crate) fn visitors(&mut self) -> Vec<Visitor> {
        self.accept();
        let mut visitors = Vec::new();
        for mut caller in std::mem::take(&mut self.pending) {
            match caller.read() {
                Ok(false) if caller.since.elapsed() < HELLO_TIME => self.pending.push(caller),
                Ok(false) => {
                    let reason = format!("said only {} bytes in {} s", caller.got, HELLO_TIME.as_secs());
                    self.refusals.note(caller.from, &reason);
                }
                Ok(true) => match Hello::decode(&caller.bytes, &self.token) {
                    Ok(hello) => visitors.push(Visitor { stream: caller.stream, from: caller.from, hello }),
                    Err(reason) => {
                        let said = excerpt(&caller.bytes);
                        self.refusals.note(caller.from, &format!("{reason}; it began with \"{said}\""));
                        let _ = answer(&mut caller.stream, &Answer::Stranger(reason), &self.token);
                    }
                },
                Err(error) => {
                    let said = excerpt(&caller.bytes[..caller.got]);
                    self.refusals.note(caller.from, &format!("{error} after {} bytes \"{said}\"", caller.got));
                }
            }
        }
        visitors
    }

    /// Closes a visitor's connection with the reason.
    pub(crate) fn refuse(&mut self, mut visitor: Visitor, reason: Answer) {
        let text = match &reason {
            Answer::Refused(text) | Answer::Stranger(text) => text.clone(),
            Answer::Size(size) => format!("its world has {} ranks, this one {size}", visitor.hello.size),
            Answer::Welcome => "welcome".into(),
        };
        self.refusals.note(visitor.from, &format!("rank {}: {text}", visitor.hello.rank));
        let _ = answer(&mut visitor.stream, &reason, &self.token);
    }

    /// Lets a visitor in. The stream blocks from now on.
    pub(crate) fn welcome(&mut self, mut visitor: Visitor) -> io::Result<TcpStream> {
        visitor.stream.set_nonblocking(false)?;
        answer(&mut visitor.stream, &Answer::Welcome, &self.token)?;
        Ok(visitor.stream)
    }

    fn accept(&mut self) {
        for listener in &self.listeners {
            // Errors here are about one connection that is gone again, or about too many open files, which may pass.
            while let Ok((mut stream, from)) = listener.accept() {
                let ready = stream.set_nonblocking(true).and_then(|()| stream.set_nodelay(true));
                if ready.and_then(|()| stream.write_all(&greeting())).is_err() {
                    continue;
                }
                if self.pending.len() == MAX_PENDING {
                    let oldest = self.pending.remove(0);
                    self.refusals.note(oldest.from, "made room for newer connections before it said who it is");
                }
                self.pending.push(Pending { stream, from, since: Instant::now(), got: 0, bytes: [0; HELLO_BYTES] });
            }
        }
    }
}

impl Pending {
    /// Whether the hello is whole.
    fn read(&mut self) -> io::Result<bool> {
        while self.got < HELLO_BYTES {
            match self.stream.read(&mut self.bytes[self.got..]) {
                Ok(0) => return Err(io::Error::new(ErrorKind::UnexpectedEof, "it closed the connection")),
                Ok(count) => {
                    self.got += count;
                    if !begins(&self.bytes[..self.got]) {
                        return Err(io::Error::new(ErrorKind::InvalidData, "it does not speak zbench's protocol"));
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

/// Answers fit into any socket's buffer, so that this never waits.
fn answer(stream: &mut TcpStream, answer: &Answer, token: &Token) -> io::Result<()> {
    stream.write_all(&answer.encode(token))
}
