//! What is under way, in one line, now and then: where standard error is a file (a CI's log, nohup, SLURM's output), and nothing
//! else has been said for a while. It knows no clock: who asks tells the time since the beginning.

use super::trainer;
use std::time::Duration;

/// Time between two lines.
pub const BETWEEN: Duration = Duration::from_secs(30);

/// What is known of the trials so far.
#[derive(Debug, Default)]
pub struct Life {
    under_way: Option<UnderWay>,
    /// When the first trial began, and how many had been done before it.
    first: Option<(Duration, usize)>,
    done: usize,
    all: usize,
    /// When a line was said.
    spoke: Duration,
}

#[derive(Debug)]
struct UnderWay {
    label: String,
    steps: u64,
    /// The first step that it does: a run that goes on from a checkpoint does not begin at 1.
    from: Option<u64>,
    /// The newest one, and its loss.
    newest: Option<(u64, f64)>,
    /// Of a trial that has no steps: which part is measured now, how many have been, and of how many.
    part: Option<(String, usize, usize)>,
}

impl Life {
    /// A trial begins: the `done`-th of `all`.
    pub fn begin(&mut self, now: Duration, label: String, steps: u64, done: usize, all: usize) {
        self.first.get_or_insert((now, done));
        (self.done, self.all) = (done, all);
        self.under_way = Some(UnderWay { label, steps, from: None, newest: None, part: None });
    }

    /// A step of it has ended.
    pub fn step(&mut self, step: u64, loss: f64) {
        if let Some(under_way) = &mut self.under_way {
            under_way.from.get_or_insert(step);
            under_way.newest = Some((step, loss));
        }
    }

    /// A part of it begins, after `done` of `all`.
    pub fn part(&mut self, what: &str, done: usize, all: usize) {
        if let Some(under_way) = &mut self.under_way {
            under_way.part = Some((what.into(), done, all));
        }
    }

    /// It has ended.
    pub fn end(&mut self) {
        self.done += 1;
        self.under_way = None;
    }

    /// A line was said, this one or another.
    pub fn spoke(&mut self, now: Duration) {
        self.spoke = now;
    }

    /// A line, where nothing was said for [`BETWEEN`] and something is under way.
    pub fn tick(&mut self, now: Duration) -> Option<String> {
        if self.under_way.is_none() || now.saturating_sub(self.spoke) < BETWEEN {
            return None;
        }
        self.spoke = now;
        let place = (self.done + 1).min(self.all);
        Some(format!("[{}] {place}/{}  {}", clock(now), self.all, self.words(now)))
    }

    /// How far the trial under way is, how long all of them may take yet, and which it is: last, since a terminal cuts the end off.
    pub fn words(&self, now: Duration) -> String {
        let Some(under_way) = &self.under_way else { return String::new() };
        let mut words = match (under_way.newest, &under_way.part) {
            (_, Some((what, done, all))) => format!("part {}/{all}: {what}", (done + 1).min(*all)),
            (Some((step, loss)), None) => format!("step {step}/{}  loss {loss:.4}", under_way.steps),
            (None, None) if under_way.steps == 0 => "under way".into(),
            (None, None) => "before its first step".into(),
        };
        if let Some(left) = self.left(now) {
            words += &format!("  eta {}", trainer::clock(left));
        }
        format!("{words}  {}", under_way.label)
    }

    /// Seconds to the end of all trials, if those that are left take as long as those that were done here.
    fn left(&self, now: Duration) -> Option<f64> {
        let (began, before) = self.first?;
        let share = self.under_way.as_ref().map_or(0.0, UnderWay::share);
        let done = (self.done - before.min(self.done)) as f64 + share;
        let left = self.all as f64 - self.done as f64 - share;
        (done > 0.0).then(|| now.saturating_sub(began).as_secs_f64() * left.max(0.0) / done)
    }
}

impl UnderWay {
    /// How much of it is done.
    fn share(&self) -> f64 {
        if let Some((_, done, all)) = &self.part {
            return if *all == 0 { 0.0 } else { (*done as f64 / *all as f64).min(1.0) };
        }
        let (Some(from), Some((step, _))) = (self.from, self.newest) else { return 0.0 };
        let (done, all) = ((step + 1).saturating_sub(from), (self.steps + 1).saturating_sub(from));
        if all == 0 { 0.0 } else { (done as f64 / all as f64).min(1.0) }
    }
}

fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_line_comes_when_nothing_was_said_for_a_while() {
        let mut life = Life::default();
        assert_eq!(life.tick(at(100)), None, "nothing is under way");
        life.spoke(at(100));
        life.begin(at(100), "ddp trial 1".into(), 40, 4, 12);
        assert_eq!(life.tick(at(129)), None);
        assert_eq!(life.tick(at(130)).as_deref(), Some("[00:02:10] 5/12  before its first step  ddp trial 1"));
        assert_eq!(life.tick(at(131)), None, "one was just said");
        life.step(10, 3.25);
        assert_eq!(life.tick(at(159)), None);
        // No step before the tenth was seen: this run began there.
        let said = life.tick(at(160)).unwrap();
        assert!(
            said.starts_with("[00:02:40] 5/12  step 10/40  loss 3.2500  eta ") && said.ends_with("  ddp trial 1"),
            "{said}"
        );
        life.spoke(at(185));
        assert_eq!(life.tick(at(200)), None, "a cell's own line counts");
        life.end();
        assert_eq!(life.tick(at(1000)), None);
    }

    #[test]
    fn what_is_left_is_worked_out_from_what_was_done_here() {
        let mut life = Life::default();
        life.begin(at(10), "a".into(), 4, 6, 10);
        assert_eq!(life.left(at(20)), None, "nothing is done yet");
        life.step(1, 1.0);
        life.step(2, 1.0);
        // Half a trial in 10 seconds, three and a half are left; the six of before took no time of this run.
        assert_eq!(life.left(at(20)), Some(70.0));
        life.end();
        life.begin(at(30), "b".into(), 4, 7, 10);
        assert_eq!(life.left(at(30)), Some(60.0));
        // A run that goes on at step 3 of 4 has two steps in all.
        life.step(3, 1.0);
        assert_eq!(life.left(at(40)), Some(30.0 * 2.5 / 1.5));
        assert!(life.words(at(40)).starts_with("step 3/4  loss 1.0000  eta 50s"), "{}", life.words(at(40)));
    }

    #[test]
    fn a_trial_without_steps_says_its_parts() {
        let mut life = Life::default();
        life.begin(at(0), "zero3:2, sharded".into(), 0, 0, 2);
        assert_eq!(life.words(at(1)), "under way  zero3:2, sharded");
        life.part("a save", 1, 4);
        // A quarter of a trial in 10 seconds: seven more of two trials.
        assert_eq!(life.tick(at(30)).as_deref(), Some("[00:00:30] 1/2  part 2/4: a save  eta 3m30s  zero3:2, sharded"));
        life.part("a load", 9, 0);
        assert_eq!(life.words(at(31)), "part 0/0: a load  zero3:2, sharded");
    }

    #[test]
    fn odd_numbers_do_no_harm() {
        let mut life = Life::default();
        life.begin(at(5), "a".into(), 0, 3, 2);
        life.step(7, f64::NAN);
        life.step(u64::MAX - 1, 0.0);
        assert!(life.left(at(1)).is_none_or(f64::is_finite));
        life.end();
        life.end();
        assert!(!life.words(at(9)).contains('\r') && life.tick(at(999)).is_none());
    }
}
