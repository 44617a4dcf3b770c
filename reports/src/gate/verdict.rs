//! The verdicts of a gate, from the best to the worst, and the exit code that follows from them.

use serde::{Deserialize, Serialize};

/// The verdict on a metric, a cell or the whole gate; the worst last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Within its band.
    Pass,
    /// Better than its band.
    Improvement,
    /// The time budget ended before the data decided.
    Inconclusive,
    /// Too few samples, or no value at all. Never a pass.
    #[default]
    NotMeasured,
    /// Worse than its band.
    Regression,
    /// A trial failed, timed out or diverged, and did so again.
    Failed,
}

impl Verdict {
    /// All of them, the best first.
    pub const ALL: [Self; 6] =
        [Self::Pass, Self::Improvement, Self::Inconclusive, Self::NotMeasured, Self::Regression, Self::Failed];

    /// The name in JSON and rules.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Improvement => "improvement",
            Self::Inconclusive => "inconclusive",
            Self::NotMeasured => "not_measured",
            Self::Regression => "regression",
            Self::Failed => "failed",
        }
    }

    /// Whether it says that something changed.
    pub fn is_change(self) -> bool {
        matches!(self, Self::Regression | Self::Improvement)
    }

    /// The words in a sentence.
    pub fn words(self) -> &'static str {
        match self {
            Self::NotMeasured => "not measured",
            other => other.name(),
        }
    }

    /// The verdict of that name, among those that `fail_on` may list.
    pub fn policy(name: &str) -> Option<Self> {
        POLICY.into_iter().find(|verdict| verdict.name() == name)
    }
}

/// The verdicts that `fail_on` may list: the others always or never fail.
pub const POLICY: [Verdict; 4] =
    [Verdict::Regression, Verdict::Improvement, Verdict::Inconclusive, Verdict::NotMeasured];

/// The worst of several; nothing was measured where there is none.
pub fn worst(verdicts: impl IntoIterator<Item = Verdict>) -> Verdict {
    verdicts.into_iter().max().unwrap_or(Verdict::NotMeasured)
}

/// Exit codes, as docs/contract.md has them.
pub mod exit {
    /// Passed, improved, or worse in a way that the policy lets pass.
    pub const SUCCESS: u8 = 0;
    /// Regression, or improvement with `fail_on`.
    pub const REGRESSION: u8 = 2;
    /// Not decided.
    pub const INCONCLUSIVE: u8 = 3;
    /// Nothing was measured, though asked.
    pub const NOT_MEASURED: u8 = 4;
    /// A cell failed.
    pub const FAILED: u8 = 5;
}

/// The exit code of these verdicts: that of the worst which the policy does not let pass; an improvement that fails
/// counts as a regression. A gate of which nothing was measured never passes.
pub fn exit_code(verdicts: &[Verdict], fail_on: &[Verdict]) -> u8 {
    let has = |verdict: Verdict| verdicts.contains(&verdict);
    let fails = |verdict: Verdict| has(verdict) && fail_on.contains(&verdict);
    if has(Verdict::Failed) {
        exit::FAILED
    } else if fails(Verdict::Regression) || fails(Verdict::Improvement) {
        exit::REGRESSION
    } else if fails(Verdict::NotMeasured) || verdicts.iter().all(|verdict| *verdict == Verdict::NotMeasured) {
        exit::NOT_MEASURED
    } else if fails(Verdict::Inconclusive) {
        exit::INCONCLUSIVE
    } else {
        exit::SUCCESS
    }
}
