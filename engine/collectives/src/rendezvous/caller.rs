//! The calling side: finds the one that accepts, and proves who we are.

use super::hello::{
    ANSWER_BYTES, Answer, CHALLENGE_BYTES, GREETING_BYTES, Hello, Proof, Token, UNPROVEN, begins, challenged, known,
    nonce,
};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// How long one connection attempt may take: longer than a lost packet is repeated, shorter than any run's timeout.
const CONNECT_TIME: Duration = Duration::from_secs(2);
/// How long who accepts may take to speak. Something else that listens there may never do.
const GREETING_TIME: Duration = Duration::from_secs(2);
/// How long it may take to answer our hello: rank 0 does at once, and a process that holds us here must not hold us for the
/// whole timeout. A rank that is cut off so calls again.
const ANSWER_TIME: Duration = Duration::from_secs(5);

/// Why a call did not end in a connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Missed {
    /// Nobody listens there (yet).
    #[error("{0}")]
    Refused(String),
    /// Nothing answers at this address.
    #[error("{0}")]
    Silent(String),
    /// Somebody else is there.
    #[error("{0}")]
    Stranger(String),
    /// Somebody is there who speaks as we do, in another version or without knowing the token.
    #[error("{0}")]
    Impostor(String),
    /// One of us says that we may not come in.
    #[error("{0}")]
    Denied(String),
    /// One of us says that the world has this size.
    #[error("it belongs to a world of {0} ranks")]
    Size(u32),
}

/// Calls `address` once, which both sides know as `at`.
pub(crate) fn call(
    address: SocketAddr,
    hello: Hello,
    token: &Token,
    at: &str,
    deadline: Instant,
) -> Result<(TcpStream, Proof), Missed> {
    let left = || deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    let mut stream = TcpStream::connect_timeout(&address, left().min(CONNECT_TIME)).map_err(|error| {
        let text = error.to_string();
        if error.kind() == ErrorKind::TimedOut { Missed::Silent(text) } else { Missed::Refused(text) }
    })?;
    // A port of the range that the system gives to outgoing connections can be connected to itself.
    if stream.local_addr().is_ok_and(|own| own == address) {
        return Err(Missed::Refused("nobody listens there".into()));
    }
    let until = Instant::now() + left().min(GREETING_TIME);
    let mut greeting = [0; CHALLENGE_BYTES];
    let (version, challenge) = greeting.split_at_mut(GREETING_BYTES);
    let mute = |error: io::Error| Missed::Stranger(format!("something accepts and says nothing of zbench ({error})"));
    read_until(&mut stream, version, until).map_err(mute)?;
    let stranger = if begins(version) { Missed::Impostor } else { Missed::Stranger };
    known(version).map_err(stranger)?;
    read_until(&mut stream, challenge, until).map_err(mute)?;
    let acceptor = challenged(&greeting).map_err(Missed::Stranger)?;
    let lost = |error: io::Error| Missed::Refused(format!("it closed the connection ({error})"));
    let own = nonce().map_err(|error| Missed::Refused(format!("/dev/urandom cannot be read ({error})")))?;
    let (words, proof) = hello.encode(token, at, &acceptor, &own);
    stream.set_nodelay(true).map_err(lost)?;
    stream.write_all(&words).map_err(lost)?;
    let mut bytes = [0; ANSWER_BYTES];
    let until = Instant::now() + left().min(ANSWER_TIME);
    read_until(&mut stream, &mut bytes, until).map_err(|error| match error.kind() {
        ErrorKind::TimedOut => Missed::Impostor(format!("{UNPROVEN}; it gave no answer ({error})")),
        _ => lost(error),
    })?;
    match Answer::decode(&bytes, token, &proof).map_err(Missed::Impostor)? {
        Answer::Welcome => {
            stream.set_read_timeout(None).map_err(lost)?;
            Ok((stream, proof))
        }
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
