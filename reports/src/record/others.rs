//! Other programs that used the cores while something was measured.

use super::null_is_nan;
use crate::units;
use serde::{Deserialize, Serialize};

/// Others may use this share of the cores; turns under more are discarded, and a machine is not calibrated.
pub const MOST_OTHERS: f64 = 0.05;
/// Programs that a sentence names.
const NAMED: usize = 3;
/// Share of a core below which a program is not named.
const LEAST_NAMED: f64 = 0.05;

/// A program that is no part of a measurement, and its use of the cores meanwhile.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OtherProgram {
    /// Its name; Linux cuts it after 15 bytes.
    pub name: String,
    /// Number of its process; of several, that of the busiest.
    #[serde(default)]
    pub process: u32,
    /// How many processes of this name there were.
    #[serde(default)]
    pub processes: usize,
    /// Cores that all of them used, on average.
    #[serde(default, deserialize_with = "null_is_nan")]
    pub cores: f64,
}

/// Cores of all named programs together.
pub fn cores(programs: &[OtherProgram]) -> f64 {
    programs.iter().map(|program| program.cores).filter(|cores| cores.is_finite()).sum()
}

/// Names the busiest that used at least [`LEAST_NAMED`] of a core: `python3 (process 7, 98.0 % of a core) and cc1 (process 30 and 3 more,
/// 120.0 % of a core)`. `programs` begins with the busiest.
pub fn names(programs: &[OtherProgram]) -> String {
    let name = |OtherProgram { name, process, processes, cores }: &OtherProgram| {
        let which = match processes {
            0 | 1 => format!("process {process}"),
            count => format!("process {process} and {} more", count - 1),
        };
        format!("{name} ({which}, {} of a core)", units::percent(*cores))
    };
    let named: Vec<String> =
        programs.iter().filter(|program| program.cores >= LEAST_NAMED).take(NAMED).map(name).collect();
    if named.is_empty() { "processes that have ended since".into() } else { units::list(&named) }
}

/// Says what share of the cores others used, and which ones: `other processes used 60.0 % of the cores (limit 5.0 %), among them …`.
/// Where most of it went to other guests of the machine, which have no names here, it says that.
pub fn sentence(others: f64, stolen: f64, programs: &[OtherProgram]) -> String {
    let limit = units::percent(MOST_OTHERS);
    match others > MOST_OTHERS || stolen <= MOST_OTHERS {
        true => format!(
            "other processes used {} of the cores (limit {limit}), among them {}",
            units::percent(others),
            names(programs)
        ),
        false => format!("the hypervisor gave {} of the cores to other guests (limit {limit})", units::percent(stolen)),
    }
}
