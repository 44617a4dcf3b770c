//! The line on which a cell's ranks wait for their turn. The experiment listens at a name; every rank of a cell, thread or
//! process, connects to it, shows a secret that its process has read from standard input, says what its last turn took and
//! sleeps until it is told how many steps it may run.
//!
//! Lines of text over a Unix socket: the secret, then a rank sends a JSON [`TurnReport`] and the experiment answers with a number
//! of steps; 0, or the end of the connection, ends the run. A rank that waits is asleep in `read`, so it uses no CPU.

use rustix::net::sockopt::socket_peercred;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use zbench_engine::observe::outcome::Step;
use zbench_engine::run::train_loop::Pace;
use zbench_kernels::threads::spawn;

/// How long a connection may take to show the secret.
const SECRET_TIME: Duration = Duration::from_secs(5);

/// Where the ranks of a cell wait for their turns, and what lets them in.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TurnsPlace {
    name: String,
    secret: String,
}

/// Time of a step on a rank, in milliseconds, and the tokens of the global batch.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepTime {
    /// Milliseconds.
    pub ms: f64,
    /// Tokens of all ranks.
    pub tokens: u64,
}

/// What a rank says when it begins to wait.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TurnReport {
    /// Which rank.
    pub rank: usize,
    /// The steps of the turn that has ended; none before the first.
    pub steps: Vec<StepTime>,
}

/// The ranks' end of the line. Without an experiment at the other end a run ends before its next step.
pub struct Token {
    place: TurnsPlace,
    seats: Vec<Mutex<Seat>>,
    lines: Mutex<Lines>,
}

/// Connections of all seats, so that they can be ended while their ranks wait.
#[derive(Default)]
struct Lines {
    open: Vec<UnixStream>,
    abandoned: bool,
}

#[derive(Default)]
struct Seat {
    line: Option<BufReader<UnixStream>>,
    left: u64,
    steps: Vec<StepTime>,
    over: bool,
}

impl Token {
    /// For a cell of so many ranks, whose experiment listens at `place`.
    pub fn new(place: &TurnsPlace, ranks: usize) -> Token {
        let seats = (0..ranks).map(|_| Mutex::default()).collect();
        Token { place: place.clone(), seats, lines: Mutex::default() }
    }
}

impl Pace for Token {
    fn may_begin(&self, rank: usize) -> bool {
        let Some(seat) = self.seats.get(rank) else { return false };
        let mut seat = seat.lock().unwrap_or_else(PoisonError::into_inner);
        if seat.left == 0 && !seat.over {
            seat.left = seat.wait(self, rank).unwrap_or(0);
            seat.over = seat.left == 0;
        }
        seat.left = seat.left.saturating_sub(1);
        !seat.over
    }

    fn ended(&self, rank: usize, step: &Step) {
        let Some(seat) = self.seats.get(rank) else { return };
        let mut seat = seat.lock().unwrap_or_else(PoisonError::into_inner);
        seat.steps.push(StepTime { ms: step.ms, tokens: step.tokens });
    }

    fn abandon(&self) {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.abandoned = true;
        for line in lines.open.drain(..) {
            // A line that has ended already is none to end.
            let _ = line.shutdown(Shutdown::Both);
        }
    }
}

impl Seat {
    /// Says what the turn took, and sleeps until the next.
    fn wait(&mut self, token: &Token, rank: usize) -> std::io::Result<u64> {
        let line = match &mut self.line {
            Some(line) => line,
            none => {
                let TurnsPlace { name, secret } = &token.place;
                let mut stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?)?;
                stream.write_all(secret.as_bytes())?;
                let mut lines = token.lines.lock().unwrap_or_else(PoisonError::into_inner);
                if lines.abandoned {
                    return Ok(0);
                }
                lines.open.push(stream.try_clone()?);
                none.insert(BufReader::new(stream))
            }
        };
        let mut text = serde_json::to_string(&TurnReport { rank, steps: std::mem::take(&mut self.steps) })?;
        text.push('\n');
        line.get_mut().write_all(text.as_bytes())?;
        text.clear();
        line.read_line(&mut text)?;
        Ok(text.trim().parse().unwrap_or(0))
    }
}

/// The experiment's end of the line of one cell.
pub struct TurnServer {
    place: TurnsPlace,
    listener: UnixListener,
}

impl TurnServer {
    /// Listens at a name of its own.
    ///
    /// # Errors
    /// The system gives no socket or no random number.
    pub fn open() -> std::io::Result<TurnServer> {
        let random = || zbench_launch::fresh_token().map_err(|error| std::io::Error::other(error.to_string()));
        let place = TurnsPlace { name: format!("zbench-turns-{}", random()?), secret: random()? };
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&place.name)?)?;
        Ok(TurnServer { place, listener })
    }

    /// What the ranks have to be told.
    pub fn place(&self) -> &TurnsPlace {
        &self.place
    }

    /// Accepts the ranks on a thread, as they come, until all have come or the time is over. `on_event` gets each rank's line, what
    /// the rank reports, and the end of its connection.
    ///
    /// # Errors
    /// The system starts no more threads.
    pub fn listen(
        self,
        ranks: usize,
        patience: Duration,
        on_event: impl Fn(RankEvent) + Clone + Send + 'static,
    ) -> std::io::Result<()> {
        spawn::start("turns", move || {
            let TurnServer { listener, place } = self;
            let until = Instant::now() + patience;
            let own = rustix::process::geteuid();
            let seats = Arc::new(AtomicUsize::new(0));
            // Polled while the ranks start; once they are seated, nobody is awake here.
            if listener.set_nonblocking(true).is_err() {
                return;
            }
            while seats.load(Ordering::Relaxed) < ranks && Instant::now() < until {
                let Ok((stream, _)) = listener.accept() else {
                    std::thread::sleep(Duration::from_millis(2));
                    continue;
                };
                // Names of such sockets are public on a host: others cost no thread, and whoever knows the secret is a rank.
                if socket_peercred(&stream).is_ok_and(|peer| peer.uid == own) {
                    let (secret, seats) = (place.secret.clone(), seats.clone());
                    // Without a thread the rank has no seat, and its connection is closed.
                    let _ = take_in(stream, secret, seats, on_event.clone());
                }
            }
        })
        .map(drop)
    }
}

/// What the experiment hears from a rank.
#[derive(Debug)]
pub enum RankEvent {
    /// The rank waits; the line to answer it comes with its first words.
    Waits(TurnReport, Option<UnixStream>),
    /// Its connection has ended.
    Left(usize),
}

/// Reads a rank's words on a thread, once it has shown the secret and so taken a seat.
fn take_in(
    mut stream: UnixStream,
    secret: String,
    seats: Arc<AtomicUsize>,
    on_event: impl Fn(RankEvent) + Send + 'static,
) -> std::io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(SECRET_TIME))?;
    let mut line = Some(stream.try_clone()?);
    spawn::start("turns of a rank", move || {
        let mut shown = vec![0; secret.len()];
        let is_whole = stream.read_exact(&mut shown).and_then(|()| stream.set_read_timeout(None)).is_ok();
        // Comparing hashes takes the same time wherever the words differ.
        if !is_whole || blake3::hash(&shown) != blake3::hash(secret.as_bytes()) {
            return;
        }
        seats.fetch_add(1, Ordering::Relaxed);
        let mut rank = None;
        for text in BufReader::new(stream).lines().map_while(Result::ok) {
            let Ok(report) = serde_json::from_str::<TurnReport>(&text) else { break };
            rank = Some(report.rank);
            on_event(RankEvent::Waits(report, line.take()));
        }
        rank.into_iter().for_each(|rank| on_event(RankEvent::Left(rank)));
    })
    .map(drop)
}

/// Lets a rank run so many steps; with 0 it ends.
///
/// # Errors
/// The rank is gone.
pub fn answer(line: &mut UnixStream, steps: u64) -> std::io::Result<()> {
    line.write_all(format!("{steps}\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// A rank that fails before its first step never comes to the line, so the experiment lets nobody begin.
    #[test]
    fn no_rank_waits_for_a_turn_once_one_has_failed() {
        let server = TurnServer::open().unwrap();
        let token = Token::new(server.place(), 2);
        let (tell, hear) = mpsc::channel();
        let on_event = move |event| {
            let _ = tell.send(event);
        };
        server.listen(2, Duration::from_secs(30), on_event).unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| token.may_begin(0));
            let Ok(RankEvent::Waits(_, line)) = hear.recv() else { panic!("rank 0 waits first") };
            token.abandon();
            assert!(!waiting.join().unwrap() && !token.may_begin(1));
            drop(line);
        });
    }

    /// A process of the same user that found the name: one is silent, one speaks as a rank does, one guesses.
    #[test]
    fn who_does_not_show_the_secret_takes_no_seat() {
        let server = TurnServer::open().unwrap();
        let token = Token::new(server.place(), 1);
        let address = SocketAddr::from_abstract_name(&server.place().name).unwrap();
        let report = "{\"rank\":0,\"steps\":[]}\n".repeat(3);
        let strangers = ["", &report, &"0".repeat(80)].map(|words| {
            let mut stranger = UnixStream::connect_addr(&address).unwrap();
            stranger.write_all(words.as_bytes()).unwrap();
            stranger
        });
        let (tell, hear) = mpsc::channel();
        let on_event = move |event| {
            let _ = tell.send(event);
        };
        server.listen(1, Duration::from_secs(30), on_event).unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| token.may_begin(0));
            let heard = hear.recv_timeout(Duration::from_secs(10));
            let Ok(RankEvent::Waits(_, Some(mut line))) = heard else { panic!("the rank has no seat") };
            let _ = answer(&mut line, 1);
            drop(line);
            // Were that a stranger, the rank would wait for ever.
            while !waiting.is_finished() {
                if let Ok(RankEvent::Waits(_, Some(mut line))) = hear.recv_timeout(Duration::from_millis(1)) {
                    let _ = answer(&mut line, 0);
                }
            }
            assert!(waiting.join().unwrap(), "a stranger was told to begin");
        });
        drop(strangers);
    }
}
