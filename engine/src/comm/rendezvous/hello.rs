//! The first words on every connection between ranks, of fixed length, so that a stranger can neither make us allocate
//! nor be taken for one of us.
//!
//! Who accepts speaks first (a greeting without secrets), so that a caller shows its token only to something that says it is
//! zbench. The caller answers with a [`Hello`], and gets an [`Answer`]; a welcome repeats the token.

use std::net::SocketAddr;

/// Longest token, in bytes.
pub(crate) const TOKEN_BYTES: usize = 256;
pub(crate) const GREETING_BYTES: usize = 12;
pub(crate) const HELLO_BYTES: usize = 12 + 1 + 1 + 2 + 4 + 4 + 2 + TOKEN_BYTES;
pub(crate) const ANSWER_BYTES: usize = 4 + 1 + 1 + 2 + 4 + TOKEN_BYTES;

const MAGIC: [u8; 8] = *b"zbench\r\n";
const ANSWER: [u8; 4] = *b"zbAn";
/// Changes with what is said on a connection. Data travels as it lies in memory, so the order of bytes counts too.
const VERSION: u32 = 1 | if cfg!(target_endian = "big") { 0x8000_0000 } else { 0 };

/// What a run's ranks share, so that they know each other. At most [`TOKEN_BYTES`] long.
#[derive(Clone)]
pub(crate) struct Token {
    len: u16,
    bytes: [u8; TOKEN_BYTES],
}

impl Token {
    /// `None` when it is too long.
    pub(crate) fn new(token: &str) -> Option<Token> {
        let mut bytes = [0; TOKEN_BYTES];
        bytes.get_mut(..token.len())?.copy_from_slice(token.as_bytes());
        Some(Token { len: token.len() as u16, bytes })
    }

    /// Takes the same time wherever the two differ, so that a stranger cannot find the token byte by byte.
    fn is(&self, other: &Token) -> bool {
        let differences = self
            .bytes
            .iter()
            .zip(&other.bytes)
            .fold(self.len ^ other.len, |sum, (a, b)| std::hint::black_box(sum | u16::from(a ^ b)));
        differences == 0
    }
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Meeting,
    Data,
}

/// Who calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub purpose: Purpose,
    /// Which of the connections between two ranks.
    pub lane: u8,
    pub rank: u32,
    pub size: u32,
}

pub(crate) fn greeting() -> [u8; GREETING_BYTES] {
    let mut bytes = [0; GREETING_BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..].copy_from_slice(&VERSION.to_le_bytes());
    bytes
}

/// Whether these are the words of a zbench that we understand; else what they are.
pub(crate) fn known(bytes: &[u8]) -> Result<(), String> {
    if bytes[..8] != MAGIC {
        return Err("it does not speak zbench's protocol".into());
    }
    let version = u32_at(bytes, 8);
    if version != VERSION {
        return Err(format!("it speaks version {version:#x} of zbench's protocol, this is version {VERSION:#x}"));
    }
    Ok(())
}

/// Whether the bytes may be the beginning of a hello.
pub(crate) fn begins(bytes: &[u8]) -> bool {
    bytes.iter().zip(&MAGIC).all(|(byte, magic)| byte == magic)
}

impl Hello {
    pub(crate) fn encode(&self, token: &Token) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..12].copy_from_slice(&greeting());
        bytes[12] = u8::from(self.purpose == Purpose::Data);
        bytes[13] = self.lane;
        bytes[16..20].copy_from_slice(&self.rank.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.size.to_le_bytes());
        bytes[24..26].copy_from_slice(&token.len.to_le_bytes());
        bytes[26..].copy_from_slice(&token.bytes);
        bytes
    }

    /// Who calls, if it knows the token; else why it is none of us.
    pub(crate) fn decode(bytes: &[u8; HELLO_BYTES], token: &Token) -> Result<Hello, String> {
        known(bytes)?;
        let mut theirs = Token { len: u16::from_le_bytes([bytes[24], bytes[25]]), bytes: [0; TOKEN_BYTES] };
        theirs.bytes.copy_from_slice(&bytes[26..]);
        if !token.is(&theirs) {
            return Err("wrong token".into());
        }
        let purpose = if bytes[12] == 0 { Purpose::Meeting } else { Purpose::Data };
        Ok(Hello { purpose, lane: bytes[13], rank: u32_at(bytes, 16), size: u32_at(bytes, 20) })
    }
}

/// What a caller is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Welcome,
    /// It is none of us: our rank 0 may be at another port.
    Stranger(String),
    /// It is one of us and cannot come in.
    Refused(String),
    /// The world has another size.
    Size(u32),
}

impl Answer {
    pub(crate) fn encode(&self, token: &Token) -> [u8; ANSWER_BYTES] {
        let mut bytes = [0; ANSWER_BYTES];
        bytes[..4].copy_from_slice(&ANSWER);
        let (code, size, text) = match self {
            Answer::Welcome => (0, 0, &token.bytes[..usize::from(token.len)]),
            Answer::Stranger(reason) => (1, 0, reason.as_bytes()),
            Answer::Refused(reason) => (2, 0, reason.as_bytes()),
            Answer::Size(size) => (3, *size, &[][..]),
        };
        let len = text.len().min(TOKEN_BYTES);
        bytes[4] = code;
        bytes[6..8].copy_from_slice(&(len as u16).to_le_bytes());
        bytes[8..12].copy_from_slice(&size.to_le_bytes());
        bytes[12..12 + len].copy_from_slice(&text[..len]);
        bytes
    }

    /// `Err` where it is no answer of ours.
    pub(crate) fn decode(bytes: &[u8; ANSWER_BYTES], token: &Token) -> Result<Answer, String> {
        let len = usize::from(u16::from_le_bytes([bytes[6], bytes[7]]));
        if bytes[..4] != ANSWER || len > TOKEN_BYTES {
            return Err("it does not speak zbench's protocol".into());
        }
        let reason = || printable(&bytes[12..12 + len]);
        match bytes[4] {
            0 => {
                let mut theirs = Token { len: len as u16, bytes: [0; TOKEN_BYTES] };
                theirs.bytes.copy_from_slice(&bytes[12..]);
                if token.is(&theirs) { Ok(Answer::Welcome) } else { Err("it does not know the token".into()) }
            }
            1 => Ok(Answer::Stranger(reason())),
            2 => Ok(Answer::Refused(reason())),
            3 => Ok(Answer::Size(u32_at(bytes, 8))),
            _ => Err("it does not speak zbench's protocol".into()),
        }
    }
}

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

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood_and_nothing_else() {
        let (token, other) = (Token::new("secret").unwrap(), Token::new("secre").unwrap());
        let hello = Hello { purpose: Purpose::Data, lane: 3, rank: 7, size: 9 };
        let bytes = hello.encode(&token);
        assert_eq!(Hello::decode(&bytes, &token), Ok(hello));
        assert_eq!(Hello::decode(&bytes, &other), Err("wrong token".into()));
        for at in 0..12 {
            let mut wrong = bytes;
            wrong[at] ^= 0x10;
            assert!(Hello::decode(&wrong, &token).is_err(), "byte {at}");
        }
        for at in 24..HELLO_BYTES {
            let mut wrong = bytes;
            wrong[at] ^= 0x10;
            assert_eq!(Hello::decode(&wrong, &token), Err("wrong token".into()), "byte {at}");
        }
        for answer in [Answer::Welcome, Answer::Stranger("a".into()), Answer::Refused("b".into()), Answer::Size(5)] {
            assert_eq!(Answer::decode(&answer.encode(&token), &token), Ok(answer));
        }
        assert!(Answer::decode(&Answer::Welcome.encode(&other), &token).is_err());
        assert!(Answer::decode(&[0xff; ANSWER_BYTES], &token).is_err());
        assert!(Token::new(&"x".repeat(TOKEN_BYTES + 1)).is_none() && Token::new(&"x".repeat(TOKEN_BYTES)).is_some());
    }
}
