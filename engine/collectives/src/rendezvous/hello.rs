//! The first words on every connection between ranks, of fixed length, so that a stranger can neither make us allocate
//! nor be taken for one of us.
//!
//! Both sides prove that they know the run's token, and neither says it:
//!
//! 1. who accepts sends a greeting, which has no secrets, and a nonce;
//! 2. the caller sends a [`Hello`] with a nonce of its own and a code (BLAKE3, keyed with the token) over the hello, both
//!    nonces and the place it has called;
//! 3. who accepts sends an [`Answer`] with a code over the caller's code and the answer. One to a stranger has no code.
//!
//! The codes of the two sides differ in their first words, so neither can be sent back. The nonces are fresh, so neither
//! can be used again. The place is in the caller's code, so neither is of use at another port.

use blake3::{Hash, Hasher};
use std::io::Read;
use std::net::SocketAddr;

/// Longest token and longest text of an answer, in bytes.
pub(crate) const TOKEN_BYTES: usize = 256;
const NONCE_BYTES: usize = 32;
const CODE_BYTES: usize = blake3::OUT_LEN;
/// What a program of any version reads first, and the nonce behind it.
pub(crate) const GREETING_BYTES: usize = 12;
pub(crate) const CHALLENGE_BYTES: usize = GREETING_BYTES + NONCE_BYTES;
/// Longest name of a host, in bytes.
const NAME_BYTES: usize = 64;
const PROCESS_AT: usize = GREETING_BYTES + 1 + 1 + 2 + 4 + 4;
const NAME_AT: usize = PROCESS_AT + 4;
const ABOUT_BYTES: usize = NAME_AT + NAME_BYTES;
pub(crate) const HELLO_BYTES: usize = ABOUT_BYTES + NONCE_BYTES + CODE_BYTES;
const SAID_BYTES: usize = 4 + 1 + 1 + 2 + 4 + TOKEN_BYTES;
pub(crate) const ANSWER_BYTES: usize = SAID_BYTES + CODE_BYTES;

const MAGIC: [u8; 8] = *b"zbench\r\n";
const ANSWER: [u8; 4] = *b"zbAn";
/// Changes with what is said on a connection. Data travels as it lies in memory, so the order of bytes counts too.
const VERSION: u32 = 3 | if cfg!(target_endian = "big") { 0x8000_0000 } else { 0 };

/// A number that is used once.
pub(crate) type Nonce = [u8; NONCE_BYTES];

pub(crate) fn nonce() -> std::io::Result<Nonce> {
    let mut bytes = [0; NONCE_BYTES];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// What a run's ranks share, so that they know each other: a key, from which the token cannot be found.
#[derive(Clone)]
pub(crate) struct Token {
    key: [u8; blake3::KEY_LEN],
}

impl Token {
    /// `None` when it is longer than [`TOKEN_BYTES`].
    pub(crate) fn new(token: &str) -> Option<Token> {
        let key = || blake3::derive_key("zbench rendezvous version 2: ranks that know one token", token.as_bytes());
        (token.len() <= TOKEN_BYTES).then(|| Token { key: key() })
    }

    /// Another, for one use of it alone.
    pub(crate) fn derive(&self, purpose: &str, of: &[u8]) -> Token {
        Token { key: *self.code(&[purpose.as_bytes(), b"\0", of]).as_bytes() }
    }

    /// In hexadecimal, where a secret must be text.
    pub(crate) fn to_hex(&self) -> String {
        Hash::from_bytes(self.key).to_hex().as_str().to_owned()
    }

    /// The authentication code of all parts. Comparing two of them takes the same time wherever they differ.
    pub(crate) fn code(&self, parts: &[&[u8]]) -> Hash {
        let mut code = Hasher::new_keyed(&self.key);
        for part in parts {
            code.update(part);
        }
        code.finalize()
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token")
    }
}

/// The caller's code, which both sides know once it is checked. It belongs to one connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Proof(Hash);

impl Proof {
    fn of(about: &[u8], token: &Token, at: &str, door: &Nonce, caller: &Nonce) -> Proof {
        Proof(token.code(&[b"zbench caller\0", about, door, caller, at.as_bytes()]))
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Meeting,
    Data,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub purpose: Purpose,
    /// Which of the connections between two ranks.
    pub lane: u8,
    pub rank: u32,
    pub size: u32,
}

/// What who accepts says first.
pub(crate) fn challenge(nonce: &Nonce) -> [u8; CHALLENGE_BYTES] {
    let mut bytes = [0; CHALLENGE_BYTES];
    bytes[..GREETING_BYTES].copy_from_slice(&greeting());
    bytes[GREETING_BYTES..].copy_from_slice(nonce);
    bytes
}

fn greeting() -> [u8; GREETING_BYTES] {
    let mut bytes = [0; GREETING_BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..].copy_from_slice(&VERSION.to_le_bytes());
    bytes
}

/// The nonce of a challenge, if it is one of a zbench that we understand; else what it is.
pub(crate) fn challenged(bytes: &[u8; CHALLENGE_BYTES]) -> Result<Nonce, String> {
    known(bytes)?;
    Ok(array(&bytes[GREETING_BYTES..]))
}

/// Whether these are the words of a zbench that we understand; else what they are. An older version says no more than this.
pub(crate) fn known(bytes: &[u8]) -> Result<(), String> {
    let version = bytes.get(..GREETING_BYTES).filter(|greeting| greeting[..8] == MAGIC).map(|bytes| u32_at(bytes, 8));
    match version {
        None => Err("it does not speak zbench's protocol".into()),
        Some(VERSION) => Ok(()),
        Some(version) => Err(format!(
            "it speaks version {version:#x} of zbench's protocol, this is version {VERSION:#x}; run the same zbench on \
             all hosts"
        )),
    }
}

/// Whether the bytes may be the beginning of a hello.
pub(crate) fn begins(bytes: &[u8]) -> bool {
    bytes.iter().zip(&MAGIC).all(|(byte, magic)| byte == magic)
}

impl Hello {
    /// What a caller says to who has sent `door`, at the place `at`.
    pub(crate) fn encode(&self, token: &Token, at: &str, door: &Nonce, own: &Nonce) -> ([u8; HELLO_BYTES], Proof) {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..GREETING_BYTES].copy_from_slice(&greeting());
        bytes[12] = u8::from(self.purpose == Purpose::Data);
        bytes[13] = self.lane;
        bytes[16..20].copy_from_slice(&self.rank.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.size.to_le_bytes());
        bytes[PROCESS_AT..NAME_AT].copy_from_slice(&std::process::id().to_le_bytes());
        bytes[NAME_AT..].iter_mut().zip(host_name().bytes().take(NAME_BYTES)).for_each(|(to, byte)| *to = byte);
        let proof = Proof::of(&bytes[..ABOUT_BYTES], token, at, door, own);
        bytes[ABOUT_BYTES..][..NONCE_BYTES].copy_from_slice(own);
        bytes[ABOUT_BYTES + NONCE_BYTES..].copy_from_slice(proof.as_bytes());
        (bytes, proof)
    }

    /// Who calls, if it knows the token; else why it is none of us.
    pub(crate) fn decode(
        bytes: &[u8; HELLO_BYTES],
        token: &Token,
        at: &str,
        own: &Nonce,
    ) -> Result<(Hello, Proof), String> {
        known(bytes)?;
        let (about, rest) = bytes.split_at(ABOUT_BYTES);
        let proof = Proof::of(about, token, at, own, &array(rest));
        if proof.0 != Hash::from_bytes(array(&rest[NONCE_BYTES..])) {
            return Err("wrong token, or words meant for another connection".into());
        }
        let purpose = if bytes[12] == 0 { Purpose::Meeting } else { Purpose::Data };
        Ok((Hello { purpose, lane: bytes[13], rank: u32_at(bytes, 16), size: u32_at(bytes, 20) }, proof))
    }

    /// Process and host of the caller, as it states them.
    pub(crate) fn who(bytes: &[u8; HELLO_BYTES]) -> String {
        let name = printable(&bytes[NAME_AT..ABOUT_BYTES]);
        process_on(u32_at(bytes, PROCESS_AT), name.trim())
    }
}

/// A process in messages.
pub(crate) fn process_on(pid: u32, host: &str) -> String {
    format!("process {pid} on {host}")
}

/// The name of this host.
pub(crate) fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if name.trim().is_empty() { "an unnamed host".into() } else { name.trim().into() }
}

/// What a caller is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Welcome,
    /// It is one of us and cannot come in.
    Refused(String),
    Size(u32),
}

/// The answer to a stranger: a reason, and no code, as nothing is said with the token to who does not know it.
pub(crate) fn rebuff(reason: &str) -> [u8; ANSWER_BYTES] {
    said(REBUFF, 0, reason)
}

const REBUFF: u8 = 1;

fn said(kind: u8, size: u32, text: &str) -> [u8; ANSWER_BYTES] {
    let mut bytes = [0; ANSWER_BYTES];
    bytes[..4].copy_from_slice(&ANSWER);
    let text = &text.as_bytes()[..text.len().min(TOKEN_BYTES)];
    bytes[4] = kind;
    bytes[6..8].copy_from_slice(&(text.len() as u16).to_le_bytes());
    bytes[8..12].copy_from_slice(&size.to_le_bytes());
    bytes[12..12 + text.len()].copy_from_slice(text);
    bytes
}

impl Answer {
    /// As an answer to a caller that has proved itself.
    pub(crate) fn encode(&self, token: &Token, proof: &Proof) -> [u8; ANSWER_BYTES] {
        let mut bytes = match self {
            Answer::Welcome => said(0, 0, ""),
            Answer::Refused(reason) => said(2, 0, reason),
            Answer::Size(size) => said(3, *size, ""),
        };
        let code = Answer::code(&bytes, token, proof);
        bytes[SAID_BYTES..].copy_from_slice(code.as_bytes());
        bytes
    }

    fn code(bytes: &[u8; ANSWER_BYTES], token: &Token, proof: &Proof) -> Hash {
        token.code(&[b"zbench answer\0", proof.as_bytes(), &bytes[..SAID_BYTES]])
    }

    /// `Err` where it is no answer of ours: who gives it has not proved that it knows the token.
    pub(crate) fn decode(bytes: &[u8; ANSWER_BYTES], token: &Token, proof: &Proof) -> Result<Answer, String> {
        let len = usize::from(u16::from_le_bytes([bytes[6], bytes[7]]));
        if bytes[..4] != ANSWER || len > TOKEN_BYTES {
            return Err(UNPROVEN.into());
        }
        let reason = || printable(&bytes[12..12 + len]);
        if Answer::code(bytes, token, proof) != Hash::from_bytes(array(&bytes[SAID_BYTES..])) {
            let says = if bytes[4] == REBUFF { format!("; it says: {}", reason()) } else { String::new() };
            return Err(format!("{UNPROVEN}{says}"));
        }
        match bytes[4] {
            0 => Ok(Answer::Welcome),
            2 => Ok(Answer::Refused(reason())),
            3 => Ok(Answer::Size(u32_at(bytes, 8))),
            _ => Err(UNPROVEN.into()),
        }
    }
}

/// What is said of a process that speaks the protocol and fails the challenge.
pub(crate) const UNPROVEN: &str = "something there speaks zbench's protocol and does not prove that it knows this launch's \
                                   token: a rank of another launch, or a process that pretends to be one of this launch";

/// Text from outside, without what could move a terminal's cursor.
pub(crate) fn printable(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// The start of what a stranger said, for the log.
pub(crate) fn excerpt(bytes: &[u8]) -> String {
    bytes.iter().take(16).map(|byte| char::from(*byte).escape_default().to_string()).collect()
}

/// How an address is written in errors.
pub(crate) fn place(host: &str, address: SocketAddr) -> String {
    if host == address.ip().to_string() { address.to_string() } else { format!("{host} ({address})") }
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// The first bytes, of which there are enough.
fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut first = [0; N];
    first.copy_from_slice(&bytes[..N]);
    first
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOOR: Nonce = [3; NONCE_BYTES];
    const CALLER: Nonce = [4; NONCE_BYTES];

    #[test]
    fn what_is_said_is_understood_and_nothing_else() {
        let (token, other) = (Token::new("secret").unwrap(), Token::new("secre").unwrap());
        let hello = Hello { purpose: Purpose::Data, lane: 3, rank: 7, size: 9 };
        let (bytes, proof) = hello.encode(&token, "port 1", &DOOR, &CALLER);
        let read = |bytes: &[u8; HELLO_BYTES], token: &Token, at: &str, nonce: &Nonce| {
            Hello::decode(bytes, token, at, nonce).map(|(hello, _)| hello)
        };
        assert_eq!(read(&bytes, &token, "port 1", &DOOR), Ok(hello));
        let wrong = Err("wrong token, or words meant for another connection".to_owned());
        assert_eq!(read(&bytes, &other, "port 1", &DOOR), wrong, "another token");
        assert_eq!(read(&bytes, &token, "port 2", &DOOR), wrong, "another port");
        assert_eq!(read(&bytes, &token, "port 1", &CALLER), wrong, "another challenge");
        for at in 0..HELLO_BYTES {
            let mut changed = bytes;
            changed[at] ^= 0x10;
            let error = read(&changed, &token, "port 1", &DOOR).unwrap_err();
            assert!(at < GREETING_BYTES || Err(error) == wrong, "byte {at}");
        }
        assert!(!bytes.windows(6).any(|bytes| bytes == b"secret"));
        assert_eq!(Hello::who(&bytes), process_on(std::process::id(), &host_name()));

        for answer in [Answer::Welcome, Answer::Refused("b".into()), Answer::Size(5)] {
            let bytes = answer.encode(&token, &proof);
            assert_eq!(Answer::decode(&bytes, &token, &proof), Ok(answer));
            assert!(Answer::decode(&bytes, &other, &proof).is_err(), "another token");
            let (_, later) = hello.encode(&token, "port 1", &CALLER, &CALLER);
            assert!(Answer::decode(&bytes, &token, &later).is_err(), "another connection");
            for at in 0..ANSWER_BYTES {
                let mut changed = bytes;
                changed[at] ^= 0x10;
                assert!(Answer::decode(&changed, &token, &proof).is_err(), "byte {at}");
            }
        }
        // Nobody can use what a stranger is told, nor the caller's own code, as an answer.
        let told = Answer::decode(&rebuff("go away"), &token, &proof).unwrap_err();
        assert!(told.starts_with(UNPROVEN) && told.ends_with("it says: go away"), "{told}");
        let mut reflected = said(0, 0, "");
        reflected[SAID_BYTES..].copy_from_slice(proof.as_bytes());
        assert!(Answer::decode(&reflected, &token, &proof).is_err());
        assert!(Answer::decode(&[0xff; ANSWER_BYTES], &token, &proof).is_err());
        assert!(Token::new(&"x".repeat(TOKEN_BYTES + 1)).is_none() && Token::new(&"x".repeat(TOKEN_BYTES)).is_some());
        assert_ne!(nonce().unwrap(), nonce().unwrap());
    }

    #[test]
    fn another_version_is_named() {
        let mut bytes = challenge(&DOOR);
        assert_eq!(challenged(&bytes), Ok(DOOR));
        bytes[8] = 1;
        let error = challenged(&bytes).unwrap_err();
        assert!(error.contains("version 0x1") && error.contains("this is version 0x3"), "{error}");
        assert!(known(b"220 hello").unwrap_err().contains("does not speak"));
    }
}
