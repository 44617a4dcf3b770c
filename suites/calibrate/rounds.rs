//! The rounds' values, and what they come to.

use std::collections::BTreeMap;
use zbench_config::profile::ceilings::put;
use zbench_reports::bench::{Ceilings, Rate, Threads};

/// What each round gave, by number of threads and name, in the order of the first round.
#[derive(Clone, Debug, Default)]
pub struct Values {
    names: Vec<String>,
    rounds: BTreeMap<(usize, String), Vec<Result<f64, String>>>,
}

impl Values {
    /// One more round's value, or why there is none.
    pub fn add(&mut self, threads: usize, name: String, value: Result<f64, String>) {
        if !self.names.contains(&name) {
            self.names.push(name.clone());
        }
        let value = value.and_then(|value| match value.is_finite() && value > 0.0 {
            true => Ok(value),
            false => Err(format!("a round gave {value}")),
        });
        self.rounds.entry((threads, name)).or_default().push(value);
    }

    /// The rates of so many threads, in the order of the first round, each with the reason of a round that had none.
    pub fn rates(&self, threads: usize) -> impl Iterator<Item = (&str, Result<Rate, String>)> {
        self.names.iter().filter_map(move |name| {
            let rounds = self.rounds.get(&(threads, name.clone()))?.iter().cloned();
            let rate = rounds.collect::<Result<Vec<f64>, String>>();
            Some((name.as_str(), rate.and_then(|rates| Rate::of(&rates).ok_or_else(|| "there was no round".into()))))
        })
    }
}

/// Medians and limits. A rate that one round could not state is not stated, with that round's reason.
pub fn summarize(values: &Values) -> Ceilings {
    let mut ceilings = Ceilings::default();
    let mut numbers: Vec<usize> = values.rounds.keys().map(|(threads, _)| *threads).collect();
    numbers.dedup();
    for threads in numbers {
        let mut of = Threads { threads: threads as u64, ..Threads::default() };
        for (name, rate) in values.rates(threads) {
            if let Err(why) = &rate {
                let entry = (name.to_string(), why.clone());
                if !ceilings.unstated.contains(&entry) {
                    ceilings.unstated.push(entry);
                }
            }
            put(&mut of, name, rate.ok());
        }
        ceilings.threads.push(of);
    }
    ceilings
}
