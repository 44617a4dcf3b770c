//! A line between the processes of a launch, open for as long as they work together: rank 0 says something to all, the
//! others say something to rank 0, and whoever goes away is missed. It beats: an exchange at a time, empty when nobody has
//! anything to say.

use crate::LaunchError;
use serde::{Serialize, de::DeserializeOwned};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::Duration;
use zbench_collectives::{MAX_BLOB_BYTES, Rendezvous, RendezvousError};
use zbench_kernels::threads::spawn;

/// Between two beats while nobody has anything to say.
const BEAT: Duration = Duration::from_millis(200);

/// One process's end of the line.
pub struct ControlChannel {
    rank: usize,
    hosts: Vec<String>,
    secret: String,
    /// Dropped first when the line is closed.
    to: Option<Sender<Vec<u8>>>,
    from: Receiver<Received>,
    beats: Option<JoinHandle<()>>,
}

enum Received {
    Text(usize, Vec<u8>),
    Lost(RendezvousError),
}

/// Why nothing was heard.
#[derive(Debug)]
pub enum Silence {
    /// Nobody has said anything.
    Yet,
    /// Somebody has gone, or speaks another language: who, where that is known, and how it was noticed.
    Lost(Option<usize>, String),
}

impl ControlChannel {
    /// Opens the line over ranks that have met.
    ///
    /// # Errors
    /// The system starts no more threads.
    pub fn open(met: Rendezvous) -> Result<ControlChannel, LaunchError> {
        let (rank, hosts, secret) = (met.rank(), met.hosts().to_vec(), met.secret("line"));
        let (to, outbox) = channel();
        let (inbox, from) = channel();
        let beats = spawn::start("line", move || beat(met, &outbox, &inbox));
        let beats = beats.map_err(LaunchError::system("the line between the processes cannot be opened"))?;
        Ok(ControlChannel { rank, hosts, secret, to: Some(to), from, beats: Some(beats) })
    }

    /// A secret that all on the line have without saying it, another for each number: the token of a cell's own meeting.
    pub fn secret(&self, number: u64) -> String {
        let secret = format!("{}\n{number}", self.secret);
        blake3::Hash::from_bytes(blake3::derive_key("zbench launch: token of a cell", secret.as_bytes())).to_hex()[..32]
            .into()
    }

    /// This process's rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The host of each rank.
    pub fn hosts(&self) -> &[String] {
        &self.hosts
    }

    /// Says something, on rank 0 to all others, on the others to rank 0. Who is gone does not hear it.
    pub fn say(&self, message: &impl Serialize) {
        if let (Some(to), Ok(mut text)) = (&self.to, serde_json::to_vec(message)) {
            text.push(b'\n');
            let _ = to.send(text);
        }
    }

    /// The next that somebody has said, and who.
    ///
    /// # Errors
    /// Nothing came within `wait`, or nothing will come any more.
    pub fn hear<T: DeserializeOwned>(&self, wait: Duration) -> Result<(usize, T), Silence> {
        match self.from.recv_timeout(wait) {
            Ok(Received::Text(rank, text)) => {
                let unclear = |error| Silence::Lost(Some(rank), format!("rank {rank} does not speak clearly: {error}"));
                serde_json::from_slice(&text).map(|message| (rank, message)).map_err(unclear)
            }
            Ok(Received::Lost(error)) => {
                let rank = if let RendezvousError::Lost { rank, .. } = error { Some(rank) } else { None };
                Err(Silence::Lost(rank, error.to_string()))
            }
            Err(RecvTimeoutError::Timeout) => Err(Silence::Yet),
            Err(RecvTimeoutError::Disconnected) => Err(Silence::Lost(None, "the line was closed".into())),
        }
    }
}

impl Drop for ControlChannel {
    fn drop(&mut self) {
        self.to = None;
        if let (0, Some(beats)) = (self.rank, self.beats.take()) {
            // What rank 0 has said goes out before the line is closed. The others end when it does.
            let _ = beats.join();
        }
    }
}

/// Beats until the line is closed and everything said is out, or somebody is lost.
fn beat(mut met: Rendezvous, outbox: &Receiver<Vec<u8>>, inbox: &Sender<Received>) {
    let (leads, own, size) = (met.rank() == 0, met.rank(), met.size());
    let mut waiting: Vec<u8> = Vec::new();
    let mut halves = vec![Vec::new(); size];
    let mut open = true;
    loop {
        if leads && open && waiting.is_empty() {
            // Rank 0 sets the pace; the others wait in the exchange.
            match outbox.recv_timeout(BEAT) {
                Ok(text) => waiting.extend(text),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => open = false,
            }
        }
        loop {
            match outbox.try_recv() {
                Ok(text) => waiting.extend(text),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    open = false;
                    break;
                }
            }
        }
        if !open && waiting.is_empty() {
            return;
        }
        let part: Vec<u8> = waiting.drain(..waiting.len().min(MAX_BLOB_BYTES)).collect();
        let heard = match met.exchange(&part) {
            Ok(heard) => heard,
            Err(error) => {
                let _ = inbox.send(Received::Lost(error));
                return;
            }
        };
        for (rank, text) in heard.into_iter().enumerate() {
            if rank == own || !leads && rank != 0 {
                continue;
            }
            let half: &mut Vec<u8> = &mut halves[rank];
            half.extend(text);
            while let Some(end) = half.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = half.drain(..=end).collect();
                // Nobody listens any more when the line is about to be closed.
                let _ = inbox.send(Received::Text(rank, line));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbench_collectives::Meeting;

    fn lines(size: usize) -> Vec<ControlChannel> {
        let port = crate::free_port().unwrap();
        let join = |rank| {
            std::thread::spawn(move || {
                let timeout = Duration::from_secs(20);
                let (host, token) = ("127.0.0.1".into(), "line".into());
                let meeting = Meeting { rank, size, host, port, token, timeout, ..Meeting::default() };
                ControlChannel::open(Rendezvous::join(&meeting).unwrap()).unwrap()
            })
        };
        let joining: Vec<_> = (0..size).map(join).collect();
        joining.into_iter().map(|thread| thread.join().unwrap()).collect()
    }

    fn hear(line: &ControlChannel) -> Result<(usize, String), String> {
        match line.hear(Duration::from_secs(20)) {
            Ok(heard) => Ok(heard),
            Err(Silence::Yet) => panic!("nothing came"),
            Err(Silence::Lost(_, reason)) => Err(reason),
        }
    }

    #[test]
    fn rank_0_speaks_to_all_and_hears_all() {
        let mut lines = lines(3);
        assert_eq!((lines[0].secret(1), lines[0].secret(1).len()), (lines[2].secret(1), 32));
        assert_ne!(lines[0].secret(1), lines[0].secret(2));
        // Longer than what an exchange takes.
        let long = "é".repeat(MAX_BLOB_BYTES);
        lines[0].say(&long);
        lines[0].say(&"short");
        for line in &lines[1..] {
            assert_eq!(hear(line), Ok((0, long.clone())));
            assert_eq!(hear(line), Ok((0, "short".into())));
        }
        lines[2].say(&long);
        assert_eq!(hear(&lines[0]), Ok((2, long)));
        lines[1].say(&"one");
        assert_eq!(hear(&lines[0]), Ok((1, "one".into())));
        assert!(matches!(lines[1].hear::<String>(Duration::from_millis(1)), Err(Silence::Yet)), "not for it");
        // The last words of rank 0 arrive although it goes at once.
        lines[0].say(&"good bye");
        drop(lines.remove(0));
        for line in &lines {
            assert_eq!(hear(line), Ok((0, "good bye".into())));
            assert!(hear(line).is_err());
        }
    }

    #[test]
    fn who_goes_away_is_named() {
        let mut lines = lines(3);
        drop(lines.remove(2));
        let reason = hear(&lines[0]).unwrap_err();
        assert!(reason.contains("rank 2"), "{reason}");
        let reason = hear(&lines[1]).unwrap_err();
        assert!(reason.contains("rank 2"), "{reason}");
    }
}
