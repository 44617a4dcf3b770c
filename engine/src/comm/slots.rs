//! The book in which ranks meet: who posted what under which number, and how far each has come. Plain data under one
//! lock; `protocol.rs` does the waiting.
//!
//! A call goes through stages. Stage 1: posted. Each piece of work (reading peers' memory) raises a rank's stage by one,
//! and may begin when all members have reached the stage before it. At the last stage nobody reads any more, and every
//! rank may go.

use super::sync::{Arc, Condvar};
use super::{CommError, Result};
use std::collections::{BTreeMap, VecDeque};

/// The stage of a rank that has posted and done no work yet.
pub(crate) const POSTED: u8 = 1;
/// The stage of a rank that has seen the end of the call.
const LEFT: u8 = u8::MAX;

/// What a rank puts into the book: what it calls, and where its memory lies.
pub(crate) trait Post: Clone {
    /// The collective's name.
    fn operation(&self) -> &'static str;
    /// Whether two ranks called the same.
    fn agrees(&self, other: &Self) -> bool;
    /// The call in words, for the error when two do not agree.
    fn describe(&self) -> String;
}

/// One rank of one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seat {
    pub group: u64,
    pub rank: usize,
}

/// Who takes part in a call; each line numbers its calls from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Line {
    /// All ranks of the group.
    All,
    /// A sender and its receiver.
    Pair { from: usize, to: usize },
}

impl Line {
    fn members(self, size: usize) -> usize {
        if self == Line::All { size } else { 2 }
    }

    /// Where a rank stands among the members.
    fn place(self, rank: usize) -> usize {
        match self {
            Line::All => rank,
            Line::Pair { from, .. } => usize::from(rank != from),
        }
    }

    /// The rank at a place.
    fn member(self, place: usize) -> usize {
        match self {
            Line::All => place,
            Line::Pair { from, to } => [from, to][place],
        }
    }
}

/// A call under way, as one rank sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub line: Line,
    pub sequence: u64,
    /// The stage this rank has reached.
    pub stage: u8,
    /// The stage at which the call is complete.
    pub last: u8,
}

/// What a rank may do next, by index into its calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// All members are at this call's stage: do its next work. The rank counts as reading until it says it is done.
    Work(usize),
    /// The call is complete.
    Done(usize),
}

struct Slot<P> {
    posts: Vec<Option<P>>,
    stages: Vec<u8>,
    /// Ranks that read memory posted here at this moment.
    reading: usize,
    /// Groups made by this split, by color.
    formed: Vec<(usize, u64)>,
}

struct Track<P> {
    /// Number of the first slot.
    first: u64,
    slots: VecDeque<Slot<P>>,
    /// Used slots, kept so that calls make no garbage.
    spare: Vec<Slot<P>>,
    /// The next number of each member.
    next: Vec<u64>,
}

pub(crate) struct Group<P> {
    name: String,
    /// The rank in the first group of each rank of this one.
    roots: Vec<usize>,
    gone: Vec<bool>,
    tracks: BTreeMap<Line, Track<P>>,
    pub(super) bell: Arc<Condvar>,
}

/// All groups that share one fate, and what ended them.
pub(crate) struct Book<P> {
    pub(super) cause: Option<CommError>,
    root: String,
    next_group: u64,
    pub(super) groups: BTreeMap<u64, Group<P>>,
}

impl<P: Post> Book<P> {
    pub(super) fn new(name: &str, size: usize) -> Book<P> {
        let mut book = Book { cause: None, root: name.to_owned(), next_group: 0, groups: BTreeMap::new() };
        book.add_group(name, (0..size).collect());
        book
    }

    pub(super) fn add_group(&mut self, name: &str, roots: Vec<usize>) -> u64 {
        let id = self.next_group;
        self.next_group += 1;
        let gone = vec![false; roots.len()];
        let group =
            Group { name: name.to_owned(), roots, gone, tracks: BTreeMap::new(), bell: Arc::new(Condvar::new()) };
        self.groups.insert(id, group);
        id
    }

    /// Ends all groups; the first cause stays.
    pub(super) fn end(&mut self, seat: Seat, reason: &str) {
        let root_rank = self.groups.get(&seat.group).map_or(seat.rank, |g| g.roots[seat.rank]);
        let group = self.root.clone();
        let cause = || CommError::Aborted { group, rank: root_rank, reason: reason.to_owned() };
        self.cause.get_or_insert_with(cause);
    }

    /// Puts a post under the rank's next number; true when it was the last to come.
    pub(super) fn post(&mut self, seat: Seat, line: Line, post: P) -> Result<(u64, bool)> {
        if let Some(cause) = &self.cause {
            return Err(cause.clone());
        }
        let Some(group) = self.groups.get_mut(&seat.group) else {
            return Err(CommError::Invalid { operation: post.operation(), reason: "the group has ended".into() });
        };
        let members = line.members(group.roots.len());
        let place = line.place(seat.rank);
        let track = group.tracks.entry(line).or_insert_with(|| Track::new(members));
        let sequence = track.next[place];
        track.next[place] += 1;
        let index = (sequence - track.first) as usize;
        while track.slots.len() <= index {
            let slot = track.spare.pop().unwrap_or_else(|| Slot::new(members));
            track.slots.push_back(slot);
        }
        let slot = &mut track.slots[index];
        slot.posts[place] = Some(post);
        slot.stages[place] = POSTED;
        Ok((sequence, slot.reached(POSTED)))
    }

    /// What the rank may do now; nothing when it has to wait. Posts that do not agree are told before any other end, so
    /// that every rank hears of them.
    pub(super) fn step(&mut self, seat: Seat, calls: &[Call], posts: &mut Vec<P>) -> Result<Option<Step>> {
        let ended = self.cause.is_some();
        for (index, call) in calls.iter().enumerate() {
            let Some(slot) = self.slot(seat.group, call) else { continue };
            if !slot.reached(call.stage) {
                continue;
            }
            if call.stage == POSTED {
                self.check_agreement(seat, call)?;
            }
            if call.stage == call.last {
                self.leave(seat, call);
                return Ok(Some(Step::Done(index)));
            }
            if let (false, Some(slot)) = (ended, self.slot(seat.group, call)) {
                slot.reading += 1;
                posts.clear();
                posts.extend(slot.posts.iter().flatten().cloned());
                return Ok(Some(Step::Work(index)));
            }
        }
        for call in calls {
            self.check_presence(seat, call);
        }
        self.cause.clone().map_or(Ok(None), Err)
    }

    fn check_agreement(&mut self, seat: Seat, call: &Call) -> Result<()> {
        let Some(group) = self.groups.get(&seat.group) else { return Ok(()) };
        let Some(slot) = group.slot(call) else { return Ok(()) };
        let Some(ours) = &slot.posts[call.line.place(seat.rank)] else { return Ok(()) };
        let differs = |post: &Option<P>| post.as_ref().is_some_and(|theirs| !ours.agrees(theirs));
        let Some(place) = slot.posts.iter().position(differs) else { return Ok(()) };
        let error = CommError::Mismatch {
            group: group.name.clone(),
            sequence: call.sequence,
            rank: call.line.member(place),
            theirs: slot.posts[place].as_ref().map(P::describe).unwrap_or_default(),
            ours: ours.describe(),
        };
        self.end(seat, &error.to_string());
        Err(error)
    }

    /// A rank that left and will never come ends the wait for it.
    fn check_presence(&mut self, seat: Seat, call: &Call) {
        let Some(group) = self.groups.get(&seat.group) else { return };
        let Some(slot) = group.slot(call) else { return };
        let absent = |place: &usize| slot.stages[*place] < call.stage && group.gone[call.line.member(*place)];
        let Some(place) = (0..slot.stages.len()).find(absent) else { return };
        let rank = call.line.member(place);
        let operation = slot.posts[call.line.place(seat.rank)].as_ref().map_or("a collective", P::operation);
        let reason =
            format!("it left while others waited for it in {operation} number {} of {}", call.sequence, group.name);
        self.end(Seat { group: seat.group, rank }, &reason);
    }

    /// The error for a call that has waited too long; nothing when nobody is missing any more.
    pub(super) fn stalled(&self, seat: Seat, call: &Call, seconds: u64) -> Option<CommError> {
        let group = self.groups.get(&seat.group)?;
        let slot = group.slot(call)?;
        let late = (0..slot.stages.len()).filter(|place| slot.stages[*place] < call.stage);
        let missing: Vec<usize> = late.map(|place| call.line.member(place)).collect();
        let operation = slot.posts[call.line.place(seat.rank)].as_ref()?.operation();
        let stall = CommError::Stalled {
            group: group.name.clone(),
            operation,
            sequence: call.sequence,
            missing: missing.clone(),
            seconds,
        };
        (!missing.is_empty()).then_some(stall)
    }

    /// The end of a piece of work: raises the rank's stage, or leaves it when the work failed. True when somebody may wait
    /// for this.
    pub(super) fn worked(&mut self, seat: Seat, call: &Call, done: bool) -> bool {
        let ended = self.cause.is_some();
        let Some(slot) = self.slot(seat.group, call) else { return false };
        slot.reading -= 1;
        if done {
            slot.stages[call.line.place(seat.rank)] = call.stage + 1;
        }
        slot.reached(call.stage + 1) || (ended && slot.reading == 0)
    }

    /// Whether somebody reads memory posted for this call.
    pub(super) fn being_read(&mut self, seat: Seat, line: Line, sequence: u64) -> bool {
        let call = Call { line, sequence, stage: 0, last: 0 };
        self.slot(seat.group, &call).is_some_and(|slot| slot.reading > 0)
    }

    /// The group that the ranks of one color make; the first to ask makes it.
    pub(super) fn form(&mut self, seat: Seat, call: &Call, color: usize, name: &str, ranks: &[usize]) -> Option<u64> {
        let group = self.groups.get(&seat.group)?;
        let formed = group.slot(call)?.formed.iter().find(|(c, _)| *c == color);
        if let Some((_, id)) = formed {
            return Some(*id);
        }
        let roots = ranks.iter().map(|rank| group.roots[*rank]).collect();
        let id = self.add_group(name, roots);
        self.slot(seat.group, call)?.formed.push((color, id));
        Some(id)
    }

    /// A rank takes part no more. The group is forgotten with its last rank.
    pub(super) fn depart(&mut self, seat: Seat) {
        let Some(group) = self.groups.get_mut(&seat.group) else { return };
        group.gone[seat.rank] = true;
        if group.gone.iter().all(|gone| *gone) {
            self.groups.remove(&seat.group);
        }
    }

    fn leave(&mut self, seat: Seat, call: &Call) {
        let Some(group) = self.groups.get_mut(&seat.group) else { return };
        let Some(track) = group.tracks.get_mut(&call.line) else { return };
        let Some(slot) = track.slots.get_mut((call.sequence - track.first) as usize) else { return };
        slot.stages[call.line.place(seat.rank)] = LEFT;
        while track.slots.front().is_some_and(|slot| slot.reached(LEFT)) {
            track.first += 1;
            let used = track.slots.pop_front().map(Slot::cleared);
            track.spare.extend(used);
        }
    }

    fn slot(&mut self, group: u64, call: &Call) -> Option<&mut Slot<P>> {
        let track = self.groups.get_mut(&group)?.tracks.get_mut(&call.line)?;
        track.slots.get_mut(call.sequence.checked_sub(track.first)? as usize)
    }
}

impl<P> Group<P> {
    fn slot(&self, call: &Call) -> Option<&Slot<P>> {
        let track = self.tracks.get(&call.line)?;
        track.slots.get(call.sequence.checked_sub(track.first)? as usize)
    }
}

impl<P> Track<P> {
    fn new(members: usize) -> Track<P> {
        Track { first: 0, slots: VecDeque::new(), spare: Vec::new(), next: vec![0; members] }
    }
}

impl<P> Slot<P> {
    fn new(members: usize) -> Slot<P> {
        let posts = (0..members).map(|_| None).collect();
        Slot { posts, stages: vec![0; members], reading: 0, formed: Vec::new() }
    }

    fn cleared(mut self) -> Slot<P> {
        self.posts.fill_with(|| None);
        self.stages.fill(0);
        self.formed.clear();
        self
    }

    fn reached(&self, stage: u8) -> bool {
        self.stages.iter().all(|s| *s >= stage)
    }
}
