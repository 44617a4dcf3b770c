//! Bands: 80 % prediction intervals from published results, for a job of a family that is not among them.
//!
//! The numbers are in published/bands.toml, which [`crate::published::calibrate`] derives from tests/published and a test there derives
//! again; docs/estimator.md has the formula. Rows that formulas state (model state, a block's activations) are not in it: they
//! are exact.

use crate::likeness::{self, Compared, Traits};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::LazyLock;
use zbench_estimate::machine::Machine;

/// Share of the results of a new family that a band is made to hold.
pub const SHARE: f64 = 0.8;

/// Kind of a prediction or a published result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Memory of a rank.
    Memory,
    /// Speed of training.
    Speed,
    /// Speed of a collective.
    Collectives,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 3] = [Kind::Memory, Kind::Speed, Kind::Collectives];

    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Memory => "memory",
            Kind::Speed => "speed",
            Kind::Collectives => "collectives",
        }
    }
}

/// Group of predictions whose errors have a scale of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Group {
    /// Measured peaks of memory on a device.
    Memory,
    /// Speeds on devices of data centres from Volta to Hopper: tokens per second, FLOP/s, one over the time of a step.
    Speed,
    /// Speeds on other devices.
    SpeedElsewhere,
    /// Bandwidths of collectives.
    Collectives,
}

impl Group {
    /// All of them.
    pub const ALL: [Group; 4] = [Group::Memory, Group::Speed, Group::SpeedElsewhere, Group::Collectives];

    /// Group of the speeds on a machine.
    pub fn of_speeds(machine: &Machine) -> Group {
        if likeness::is_usual(machine) { Group::Speed } else { Group::SpeedElsewhere }
    }

    /// Kind of the group's predictions.
    pub const fn kind(self) -> Kind {
        match self {
            Group::Memory => Kind::Memory,
            Group::Speed | Group::SpeedElsewhere => Kind::Speed,
            Group::Collectives => Kind::Collectives,
        }
    }

    /// The name in sentences.
    pub const fn name(self) -> &'static str {
        match self {
            Group::Memory => "peaks of memory",
            Group::Speed => "speeds",
            Group::SpeedElsewhere => "speeds on newer and other devices",
            Group::Collectives => "bandwidths of collectives",
        }
    }
}

/// Scale of a group's errors, and the results behind it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// [`SHARE`] quantile of |ln(published / predicted)|, each family counted once.
    pub spread: f64,
    /// Number of results.
    pub rows: usize,
    /// Number of families of these results.
    pub families: usize,
    /// Mean share of a family's results in the bands that all other families give.
    pub left_out: f64,
}

/// Bands of all groups.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bands {
    /// Multiple of a group's scale at which the band of a job like published results ends.
    pub like: f64,
    /// Multiple for a job that no published result is like.
    pub unlike: f64,
    /// Largest ratio of predicted to published speed of adapter runs.
    pub adapters: f64,
    /// Scales by [`Group::name`].
    pub groups: BTreeMap<String, Spread>,
    /// Programs, parts and devices of the results by [`Kind::name`].
    pub compared: BTreeMap<String, Compared>,
}

/// Bands from tests/published.
pub static PUBLISHED: LazyLock<Bands> =
    LazyLock::new(|| toml::from_str(include_str!("published/bands.toml")).unwrap_or_default());

impl Bands {
    /// Band of a group, for a job that its results are like or not.
    pub fn band(&self, group: Group, is_like: bool) -> Band {
        let spread = self.groups.get(group.name()).copied().unwrap_or_default();
        let reach = spread.spread * if is_like { self.like } else { self.unlike };
        Band { of: group.name(), low: (-reach).exp(), high: reach.exp(), is_like, spread }
    }

    /// Band of a prediction, and its program, parts or device that no published result has, as the end of a sentence; empty if none is missing.
    pub fn of(&self, group: Group, traits: &Traits) -> (Band, String) {
        let lacks = self.compared.get(group.kind().name()).map(|compared| compared.lacks(traits)).unwrap_or_default();
        (self.band(group, lacks.is_empty()), lacks)
    }
}

/// A band, as factors of a prediction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Band {
    /// Name of the group.
    pub of: &'static str,
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
    /// True if published results are like the job.
    pub is_like: bool,
    /// Scale of the group and its results.
    pub spread: Spread,
}

impl Band {
    /// The ends around a prediction.
    pub fn around(&self, prediction: f64) -> [f64; 2] {
        [prediction * self.low, prediction * self.high]
    }

    /// The ends around a time, where the band is of speeds.
    pub fn around_time(&self, prediction: f64) -> [f64; 2] {
        [prediction / self.high, prediction / self.low]
    }

    /// Origin and coverage of the band, in one sentence.
    pub fn source(&self) -> String {
        let Spread { rows, families, left_out, .. } = self.spread;
        format!(
            "{:.0} % band of {}: from {rows} published results of {families} families, each family counted once; {:.0} % of the results \
             of a family lie in the band that all others give{}",
            100.0 * SHARE,
            self.of,
            100.0 * left_out,
            if self.is_like { "" } else { "; wider here, as no published result is like this" }
        )
    }
}
