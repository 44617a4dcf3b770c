//! The accepting side: lets in who knows the token, and keeps everybody else from holding up the others.

use super::hello::{Answer, HELLO_BYTES, Hello, Nonce, Proof, Token, begins, challenge, excerpt, nonce, rebuff};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// How long a connection may take to say who it is.
const HELLO_TIME: Duration = Duration::from_secs(5);
/// Connections that have not said who they are; beyond these the oldest is closed once it has had its chance, and what else
/// comes waits in the system's own row.
const MAX_PENDING: usize = 256;
/// The chance: a rank's answer to the challenge takes one way there and back, and a loaded host.
const CHANCE: Duration = Duration::from_millis(250);
/// Connections taken at a time, so that whoever makes many does not keep us from reading the others.
const AT_ONCE: usize = 64;
/// Refusals that are written down; more are only counted.
const MAX_NOTES: usize = 100;

/// Listens, and reads the hellos of all callers side by side without waiting for any.
pub(crate) struct Acceptor {
    listeners: Vec<TcpListener>,
    pending: Vec<Pending>,
    token: Token,
    /// What callers know this place as.
    at: String,
    /// Of which every challenge is made, and how many there were.
    challenges: (Token, u64),
    /// Who was refused, up to [`MAX_NOTES`], and how many more.
    notes: Vec<String>,
    more: usize,
}

struct Pending {
    stream: TcpStream,
    from: SocketAddr,
    since: Instant,
    nonce: Nonce,
    got: usize,
    bytes: [u8; HELLO_BYTES],
}

/// A caller that knows the token.
pub(crate) struct PendingConn {
    pub stream: TcpStream,
    pub from: SocketAddr,
    pub hello: Hello,
    /// Its process and host.
    pub who: String,
    pub proof: Proof,
}

impl Acceptor {
    /// Listens at all of the addresses, which callers know as `at`.
    pub(crate) fn new(listeners: Vec<TcpListener>, token: Token, at: String) -> io::Result<Acceptor> {
        listeners.iter().try_for_each(|listener| listener.set_nonblocking(true))?;
        let challenges = (token.derive("zbench challenges", &nonce()?), 0);
        Ok(Acceptor { listeners, pending: Vec::new(), token, at, challenges, notes: Vec::new(), more: 0 })
    }

    /// Who was refused so far; of very many, the first.
    pub(crate) fn refusals(&self) -> &[String] {
        &self.notes
    }

    pub(crate) fn into_refusals(mut self) -> Vec<String> {
        self.notes.extend((self.more > 0).then(|| format!("and {} more", self.more)));
        self.notes
    }

    fn note(&mut self, from: SocketAddr, reason: &str) {
        if self.notes.len() < MAX_NOTES {
            self.notes.push(format!("{from}: {reason}"));
        } else {
            self.more += 1;
        }
    }

    /// Takes new connections and what has come on those that are open; does not wait.
    pub(crate) fn arrivals(&mut self) -> Vec<PendingConn> {
        self.accept();
        let mut arrivals = Vec::new();
        for mut caller in std::mem::take(&mut self.pending) {
            match caller.read() {
                Ok(false) if caller.since.elapsed() < HELLO_TIME => self.pending.push(caller),
                Ok(false) => {
                    let reason = format!("said only {} bytes in {} s", caller.got, HELLO_TIME.as_secs());
                    self.note(caller.from, &reason);
                }
                Ok(true) => match Hello::decode(&caller.bytes, &self.token, &self.at, &caller.nonce) {
                    Ok((hello, proof)) => {
                        let who = Hello::who(&caller.bytes);
                        arrivals.push(PendingConn { stream: caller.stream, from: caller.from, hello, who, proof });
                    }
                    Err(reason) => {
                        let said = excerpt(&caller.bytes);
                        self.note(caller.from, &format!("{reason}; it began with \"{said}\""));
                        // Answers fit into any socket's buffer, so that this never waits.
                        let _ = caller.stream.write_all(&rebuff(&reason));
                    }
                },
                Err(error) => {
                    let said = excerpt(&caller.bytes[..caller.got]);
                    self.note(caller.from, &format!("{error} after {} bytes \"{said}\"", caller.got));
                }
            }
        }
        arrivals
    }

    /// Closes a connection with the reason.
    pub(crate) fn refuse(&mut self, mut conn: PendingConn, reason: Answer) {
        let text = match &reason {
            Answer::Refused(text) => text.clone(),
            Answer::Size(size) => format!("its world has {} ranks, this one {size}", conn.hello.size),
            Answer::Welcome => "welcome".into(),
        };
        self.note(conn.from, &format!("rank {} ({}): {text}", conn.hello.rank, conn.who));
        let _ = conn.stream.write_all(&reason.encode(&self.token, &conn.proof));
    }

    /// Accepts a caller. Its stream blocks from now on.
    pub(crate) fn welcome(&mut self, mut conn: PendingConn) -> io::Result<(TcpStream, Proof)> {
        conn.stream.set_nonblocking(false)?;
        conn.stream.write_all(&Answer::Welcome.encode(&self.token, &conn.proof))?;
        Ok((conn.stream, conn.proof))
    }

    fn accept(&mut self) {
        for listener in 0..self.listeners.len() {
            for _ in 0..AT_ONCE {
                if self.pending.len() == MAX_PENDING {
                    if self.pending[0].since.elapsed() < CHANCE {
                        return;
                    }
                    let oldest = self.pending.remove(0);
                    self.note(oldest.from, "made room for newer connections before it said who it is");
                }
                let (mut stream, from) = match self.listeners[listener].accept() {
                    Ok(accepted) => accepted,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    // About one connection that is gone again, or about too many open files, which may pass.
                    Err(_) => continue,
                };
                let (seed, count) = &mut self.challenges;
                *count += 1;
                let nonce = *seed.code(&[&count.to_le_bytes()]).as_bytes();
                let ready = stream.set_nonblocking(true).and_then(|()| stream.set_nodelay(true));
                if ready.and_then(|()| stream.write_all(&challenge(&nonce))).is_ok() {
                    let (since, bytes) = (Instant::now(), [0; HELLO_BYTES]);
                    self.pending.push(Pending { stream, from, since, nonce, got: 0, bytes });
                }
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
