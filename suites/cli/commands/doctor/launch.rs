//! One screen about a launch: its ranks, their hosts, cores and threads, where they met, and what is wrong. Rank 0 prints it.

use super::{Finding, listed, summary};
use crate::Global;
use crate::commands::{print_screen, room};
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::time::Duration;
use zbench_config::Hosts;
use zbench_engine::config::STALL;
use zbench_host::environment::Root;
use zbench_host::environment::root::{cpu_list, line_of};
use zbench_host::machine;
use zbench_launch::{LaunchError, Options, World, meet};
use zbench_reports::document::{Column, Document, Entry, Table};
use zbench_reports::screen::{Screen, fitting};
use zbench_reports::units::plural;

/// Time that ranks wait for each other: some look longer for what they have.
const WAIT: Duration = Duration::from_secs(30);
/// Rows of the table at most.
const MOST_ROWS: usize = 24;

/// The host, cores and faults of a rank.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Seat {
    rank: usize,
    host: String,
    /// Cores that it may use, as `0-3,8`.
    cores: String,
    /// Cores of its host that are online.
    online: usize,
    faults: Vec<Finding>,
}

impl Seat {
    fn own(world: &World, faults: Vec<Finding>) -> Seat {
        let root = Root::system();
        let text = root.text("proc/self/status").unwrap_or_default();
        let online = root.text("sys/devices/system/cpu/online").as_deref().and_then(cpu_list);
        Seat {
            rank: world.rank,
            host: machine::host_name(),
            cores: line_of(&text, "Cpus_allowed_list").unwrap_or_default().to_string(),
            online: online.map_or_else(machine::cores, |cores| cores.len()),
            faults,
        }
    }
}

/// Meets the other ranks and prints what all have; a rank that does not meet them prints what it has itself.
pub(super) fn doctor(global: &Global, world: &World, faults: Vec<Finding>) -> Result<u8> {
    let mut own = Seat::own(world, faults);
    let options = Options { timeout: WAIT, stall: STALL, quiet: true, stop: None };
    let stated = serde_json::to_vec(&own)?;
    let met = meet(world, &options).and_then(|mut met| {
        let hosts = Hosts::meet(&mut met, &machine::core_numbers(), machine::quota())?;
        Ok((hosts, met.exchange(&stated)?))
    });
    let (hosts, seats) = match met {
        Ok((hosts, stated)) => {
            let read = |text: &Vec<u8>| serde_json::from_slice::<Seat>(text);
            let seats: Result<Vec<Seat>, _> = stated.iter().map(read).collect();
            (Some(hosts), seats.context("a rank runs another version of zbench")?)
        }
        Err(error) => {
            own.faults.push(did_not_meet(&error));
            (None, vec![own])
        }
    };
    let has_met = hosts.is_some();
    let faults = faults_of(&seats, hosts.as_ref());
    let (verdict, code) = summary(faults.iter());
    if has_met && world.rank > 0 {
        return Ok(code);
    }
    let answer = match &world.host {
        Some(host) if has_met => {
            let hosts = seats.iter().map(|seat| &seat.host).collect::<BTreeSet<_>>().len();
            let (name, notes) =
                (world.source.name(), world.notes.iter().map(|note| format!("; {note}")).collect::<String>());
            let hosts = plural(hosts, "host", "hosts");
            format!(
                "{} ranks on {hosts}, launched by {name}, met at {host}:{}{notes}. {verdict}",
                world.size, world.port
            )
        }
        _ => format!("{}. {verdict}", world.describe()),
    };
    let mut document = Document::new("What this launch has");
    document.screen = Some(fitting(room(global), MOST_ROWS, 1, |rows| {
        let mut screen = Screen::default();
        screen.said("ANSWER", answer.as_str(), 4);
        listed(&mut screen, faults.iter());
        screen.table(table(&seats, rows));
        screen.said("THREADS", hosts.as_ref().map(Hosts::words).unwrap_or_default(), 2);
        screen.said("TOKEN", token(world), 2);
        screen.said("MORE", "zbench doctor --full shows everything that was looked for, once for each rank.", 1);
        screen
    }));
    print_screen(global, &document).map(|()| code)
}

fn did_not_meet(error: &LaunchError) -> Finding {
    let advice = "see that every rank runs this command and can reach that address";
    Finding::judged("meeting of the ranks", Some(error.to_string()), false, advice).needed(true)
}

fn token(world: &World) -> &'static str {
    match world.secret {
        true => "secret: ZBENCH_TOKEN or ZBENCH_TOKEN_FILE gave it.",
        false => "public: it follows from the launcher's variables of the job, which others on these hosts can read.",
    }
}

/// What is wrong on any rank, each fault once with the ranks that have it; and cores that too many ranks share.
fn faults_of(seats: &[Seat], hosts: Option<&Hosts>) -> Vec<Finding> {
    let mut all: Vec<(&Finding, Vec<&Seat>)> = Vec::new();
    for (seat, fault) in seats.iter().flat_map(|seat| seat.faults.iter().map(move |fault| (seat, fault))) {
        match all.iter_mut().find(|(known, _)| *known == fault) {
            Some((_, of)) => of.push(seat),
            None => all.push((fault, vec![seat])),
        }
    }
    let of_ranks = |(fault, of): (&Finding, Vec<&Seat>)| match of.len() == seats.len() {
        true => fault.clone(),
        false => Finding { what: format!("{}: {}", place(&of), fault.what), ..fault.clone() },
    };
    let mut faults: Vec<Finding> = all.into_iter().map(of_ranks).collect();
    for (hosts, seat) in seats.iter().filter_map(|seat| Some((hosts?, seat))) {
        let (sharers, cores) = (hosts.sharers(seat.rank), cpu_list(&seat.cores).map_or(0, |cores| cores.len()));
        if sharers.first() == Some(&seat.rank) && sharers.len() > cores && cores > 0 {
            let shared = format!("{} ranks share {}", sharers.len(), plural(cores, "core", "cores"));
            let sharing: Vec<&Seat> = sharers.iter().filter_map(|rank| seats.get(*rank)).collect();
            let advice =
                "let each use cores of its own (srun --cpus-per-task=N, mpirun --bind-to core), or start fewer ranks";
            faults.push(Finding::judged(&place(&sharing), Some(shared), false, advice));
        }
    }
    faults
}

/// A row for each run of ranks that have the same, `most` at most.
fn table(seats: &[Seat], most: usize) -> Table {
    let mut table = Table::new("ranks", ["ranks", "host", "cores", "of"].map(Column::words).into());
    let alike = |one: &Seat, other: &Seat| (&one.host, &one.cores) == (&other.host, &other.cores);
    let runs: Vec<&[Seat]> = seats.chunk_by(alike).collect();
    let numbers = |run: &[Seat]| run.iter().map(|seat| seat.rank).collect::<Vec<_>>();
    for run in runs.iter().take(most) {
        let [first, ..] = run else { continue };
        let row = [spans(&numbers(run)), first.host.clone(), first.cores.clone(), first.online.to_string()];
        table.row(row.map(Entry::words).into());
    }
    if runs.len() > most {
        let rest = spans(&numbers(&runs[most..].concat()));
        table.row([rest, "…".into(), String::new(), String::new()].map(Entry::words).into());
    }
    table
}

/// `ranks 0-1 on n1`.
fn place(seats: &[&Seat]) -> String {
    let ranks: Vec<usize> = seats.iter().map(|seat| seat.rank).collect();
    let hosts: BTreeSet<&str> = seats.iter().map(|seat| seat.host.as_str()).collect();
    let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
    format!("{noun} {} on {}", spans(&ranks), hosts.into_iter().collect::<Vec<_>>().join(", "))
}

/// `0-3,8` of 0, 1, 2, 3, 8.
fn spans(numbers: &[usize]) -> String {
    let runs = numbers.chunk_by(|one, next| one + 1 == *next);
    let words = runs.map(|run| match run {
        [first, .., last] => format!("{first}-{last}"),
        _ => run.iter().map(ToString::to_string).collect(),
    });
    words.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbench_config::RankCores;

    fn seat(rank: usize, host: &str, cores: &str, faults: &[Finding]) -> Seat {
        Seat { rank, host: host.into(), cores: cores.into(), online: 4, faults: faults.to_vec() }
    }

    #[test]
    fn a_fault_is_named_once_with_its_ranks() {
        let fault = Finding::judged("open files", Some("64".into()), false, "raise it");
        let everywhere = Finding::judged("token", Some("public".into()), false, "give one");
        let both = [fault.clone(), everywhere.clone()];
        let seats = [
            seat(0, "a", "0-1", &both[1..]),
            seat(1, "b", "0", &both),
            seat(2, "b", "0", &both),
            seat(3, "b", "0", &both),
        ];
        let cores = |seat: &Seat| cpu_list(&seat.cores).unwrap().into_iter().map(|core| core as usize).collect();
        let place = |seat: &Seat| RankCores { host: seat.host.clone(), cores: cores(seat), quota: None };
        let hosts = Hosts::new(false, seats.iter().map(place).collect());
        let whats: Vec<String> = faults_of(&seats, Some(&hosts))
            .into_iter()
            .map(|fault| format!("{}: {}", fault.what, fault.found))
            .collect();
        assert_eq!(whats, ["token: public", "ranks 1-3 on b: open files: 64", "ranks 1-3 on b: 3 ranks share 1 core"]);
        assert_eq!([9, 1].map(|most| table(&seats, most).rows.len()), [2, 2], "and a row for what is left out");
        assert_eq!(spans(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
    }
}
