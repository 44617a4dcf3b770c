//! Energy by the processors' own counters (RAPL), and the energy of the timed steps by any counter.

use crate::environment::root::Root;

/// Readings of a GPU's energy counter, millijoules: when the last untimed step and when the last timed step had ended.
#[derive(Clone, Copy, Debug, Default)]
pub struct TimedEnergy([Option<u64>; 2]);

impl TimedEnergy {
    /// A step has ended, and the counter stood at this value.
    pub fn step(&mut self, timed: bool, millijoules: Option<u64>) {
        self.0[usize::from(timed)] = millijoules;
    }

    /// Energy of the timed steps.
    pub fn joules(&self) -> Option<f64> {
        let [untimed, timed] = self.0;
        Some(timed?.saturating_sub(untimed?) as f64 / 1e3)
    }
}

/// Joules from counters of microjoules that begin again at 0 when they overflow.
#[derive(Clone, Debug, Default)]
pub(super) struct Energy {
    pub zones: Vec<Zone>,
    pub joules: f64,
    /// Why there is no energy, if there is none.
    pub why_not: Option<String>,
}

/// One counter.
#[derive(Clone, Debug)]
pub(super) struct Zone {
    file: String,
    last: u64,
    /// The counter's largest value, where it is stated.
    range: Option<u64>,
}

impl Energy {
    /// Packages and their memory; not cores, which are part of packages, nor the platform, of which packages are part.
    pub fn begin(root: &Root) -> Energy {
        const FOLDER: &str = "sys/class/powercap";
        let mut energy = Energy::default();
        let mut refused = None;
        for name in root.names(FOLDER).into_iter().filter(|name| name.starts_with("intel-rapl:")) {
            let kind = root.text(&format!("{FOLDER}/{name}/name")).unwrap_or_default();
            if !kind.starts_with("package") && kind != "dram" {
                continue;
            }
            let file = format!("{FOLDER}/{name}/energy_uj");
            match root.text_or_why(&file).map(|text| text.parse()) {
                Ok(Ok(last)) => {
                    let range = root.count(&format!("{FOLDER}/{name}/max_energy_range_uj"));
                    energy.zones.push(Zone { file, last, range });
                }
                Ok(Err(_)) => refused = Some("holds no number".to_string()),
                Err(kind) => refused = Some(format!("cannot be read ({kind})")),
            }
        }
        energy.why_not = match refused {
            Some(why) => Some(format!("{FOLDER}/intel-rapl*/energy_uj {why}; let this user read it")),
            None if energy.zones.is_empty() => {
                Some(format!("this machine shows no energy counter (no intel-rapl in /{FOLDER})"))
            }
            None => None,
        };
        energy
    }

    /// Adds what was used since the last call. A counter that went backwards has overflowed in between; it cannot have done so
    /// twice, as that takes minutes.
    pub fn advance(&mut self, root: &Root) {
        for zone in &mut self.zones {
            let grown = root.count(&zone.file).and_then(|now| {
                let grown = match now.checked_sub(zone.last) {
                    Some(grown) => grown,
                    None => zone.range?.checked_sub(zone.last)?.checked_add(now)?.checked_add(1)?,
                };
                zone.last = now;
                Some(grown)
            });
            match grown {
                Some(microjoules) => self.joules += microjoules as f64 / 1e6,
                None => self.why_not = Some(format!("/{} was lost while the cell ran", zone.file)),
            }
        }
    }
}
