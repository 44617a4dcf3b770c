//! The calling side: finds the one that accepts, and tells it who we are.

use super::hello::{ANSWER_BYTES, Answer, GREETING_BYTES, Hello, Token, known};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// How long one connection attempt may take: longer than a lost packet is repeated, shorter than any run's timeout.
const CONNECT_TIME: Duration = Duration::from_secs(2);
/// How long who accepts may take to speak. Something else that listens there may never do.
const ANSWER_TIME: Duration = Duration::from_secs(2);

/// Why a call did not end in a connection.
#[derive(Debug)]
pub(crate) enum Missed {
    /// Nobody listens there (yet).
    Refused(String),
    /// Nothing answers at this address.
    Silent(String),
    /// Somebody else is there.
    Stranger(String),
    /// One of us says that we may not come in.
    Denied(String),
    /// One of us says that the world has this size.
    Size(u32),
}

/// Calls `address` once.
pub(crate) fn call(address: SocketAddr, hello: Hello, token: &Token, deadline: Instant) -> Result<TcpStream, Missed> {
    let left = || deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    let mut stream = TcpStream::connect_timeout(&address, left().min(CONNECT_TIME)).map_err(|error| {
        let text = error.to_string();
        if error.kind() == ErrorKind::TimedOut { Missed::Silent(text) } else { Missed::Refused(text) }
    })?;
    // A port of the range that the system gives to outgoing connections can be connected to itself.
    if stream.local_addr().is_ok_and(|own| own == address) {
        return Err(Missed::Refused("nobody listens there".into()));
    }
    let until = Instant::now() + left().min(ANSWER_TIME);
    let mut greeting = [0; GREETING_BYTES];
    read_until(&mut stream, &mut greeting, until)
        .map_err(|error| Missed::Stranger(format!("something accepts and says nothing of zbench ({error})")))?;
    known(&greeting).map_err(Missed::Stranger)?;
    let lost = |error: io::Error| Missed::Refused(format!("it closed the connection ({error})"));
    stream.set_nodelay(true).map_err(lost)?;
    stream.write_all(&hello.encode(token)).map_err(lost)?;
    let mut bytes = [0; ANSWER_BYTES];
    read_until(&mut stream, &mut bytes, Instant::now() + left()).map_err(lost)?;
    match Answer::decode(&bytes, token).map_err(Missed::Stranger)? {
        Answer::Welcome => {
            stream.set_read_timeout(None).map_err(lost)?;
            Ok(stream)
        }
        Answer::Stranger(reason) => Err(Missed::Stranger(format!("it refused this rank: {reason}"))),
        Answer::Refused(reason) => Err(Missed::Denied(reason)),
        Answer::Size(size) => Err(Missed::Size(size)),
    }
}

/// As `read_exact`, with a time at which all of it must have come, however slowly the bytes trickle in.
pub(crate) fn read_until(stream: &mut TcpStream, mut bytes: &mut [u8], deadline: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::new(ErrorKind::TimedOut, "nothing came in time"));
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(bytes) {
            Ok(0) => return Err(io::Error::new(ErrorKind::UnexpectedEof, "the connection was closed")),
            Ok(count) => bytes = &mut bytes[count..],
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
