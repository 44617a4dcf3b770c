//! What was measured of a GPU in a machine profile: one that stands on the GPU's built-in profile, or a file that is there
//! already. The figures that were measured take the places of those that were assumed, each with its source; everything else
//! stays. docs/machines.md has the form.

use super::{TYPES, edit};
use std::path::{Path, PathBuf};
use toml::Value;
use zbench_config::profile::ProfileError;
use zbench_estimate::machine::Machine;
use zbench_estimate::profile::{self as machines, Profile};
use zbench_reports::bench::DeviceCeilings;

/// A share of a data sheet may be above 1 by so much, and is then written as 1: cards of consumers run at higher clocks than
/// their data sheets have. What is further above is another card.
const MOST_SHARE: f64 = 1.15;

/// A profile into which figures go.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    path: PathBuf,
    text: String,
    /// The machine with the data sheet's figures, of which shares are written.
    pub machine: Machine,
}

impl Target {
    /// The profile in this file, or a new one on the built-in profile of the GPU; nothing where there is neither, and so no
    /// data sheet of which a share could be written.
    ///
    /// # Errors
    /// The file is there and cannot be read, is no profile, or is of another machine.
    pub fn open(path: &Path, builtin: Option<&'static str>, gpu: &str) -> Result<Option<Target>, ProfileError> {
        let left = |reason: String| ProfileError::Toml { path: path.into(), reason };
        let builtin = builtin.map(machines::machine).transpose().map_err(|error| left(error.to_string()))?;
        let found = match zbench_engine::formats::files::text(path) {
            Ok(text) => Some(text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(source) => return Err(ProfileError::File { path: path.into(), what: "read", source }),
        };
        let target = |text, machine| Some(Target { path: path.into(), text, machine });
        let Some(text) = found else {
            return Ok(builtin.and_then(|machine| {
                let about = Value::from(format!("{gpu}, measured by zbench calibrate")).to_string();
                let text = format!("about = {about}\nbase = \"{}\"\ndevice = \"cuda\"\n", machine.name);
                target(text, machine)
            }));
        };
        let profile = read(path, &text).map_err(left)?;
        if profile.device != "cuda" {
            return Err(left(format!("it is of device = \"{}\"; name another file with --save", profile.device)));
        }
        match (profile.machine, builtin) {
            (Some(own), Some(builtin)) if own.device.name != builtin.device.name => {
                let (own, builtin) = (own.device.name, builtin.device.name);
                Err(left(format!("it is of {own}, and this GPU is {builtin}; name another file with --save")))
            }
            (Some(own), _) => Ok(target(text, own)),
            // It says no more than what was saved there of collectives.
            (None, Some(builtin)) => {
                let base = Value::from(builtin.name.as_str()).to_string();
                Ok(target(edit::set(&text, &["base"], &base).map_err(left)?, builtin))
            }
            (None, None) => Ok(None),
        }
    }

    /// Writes what was measured. Returns why figures were left as they were.
    ///
    /// # Errors
    /// As [`ProfileError`] says; the file is then as it was.
    pub fn save(&self, ceilings: &DeviceCeilings, source: &str) -> Result<Vec<String>, ProfileError> {
        let left = |reason: String| ProfileError::Toml { path: self.path.clone(), reason };
        let (mut text, mut reasons) = (self.text.clone(), Vec::new());
        for (place, figure) in self.figures(ceilings) {
            let place: Vec<&str> = place.split('.').collect();
            match figure {
                Ok((value, words)) => {
                    let source = Value::from(format!("{source}: {words}")).to_string();
                    let figure = format!("{{ value = {value}, source = {source} }}");
                    text = edit::set(&text, &place, &figure).map_err(left)?;
                }
                Err(reason) => reasons.push(format!("{} stays as it was: {reason}", place.join("."))),
            }
        }
        // Whoever plans with it must be able to read it.
        let profile = read(&self.path, &text).map_err(left)?;
        profile.machine().map_err(|error| left(error.to_string()))?;
        let file = |error| ProfileError::File { path: self.path.clone(), what: "written", source: error };
        if let Some(folder) = self.path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder).map_err(file)?;
        }
        // Whole or not at all.
        let beside = self.path.with_extension("toml.new");
        std::fs::write(&beside, &text).and_then(|()| std::fs::rename(&beside, &self.path)).map_err(file)?;
        Ok(reasons)
    }

    /// The places of a profile that were measured: a value as TOML with what it is, or why there is none.
    fn figures(&self, ceilings: &DeviceCeilings) -> Vec<(String, Figure)> {
        let mut figures = Vec::new();
        let median = |name: &str| {
            let rate = ceilings.rates.iter().find(|of| of.name == name).and_then(|of| Some((of, of.rate.as_ref()?)));
            rate.map(|(of, rate)| (rate.median, of.in_words(rate.median), rate.rounds))
                .ok_or_else(|| format!("{name} was not measured"))
        };
        let device = &self.machine.device;
        for (dtype, number) in TYPES {
            // A type that the data sheet does not have has no share of it.
            let Some(rated) = device.compute.get(&number) else { continue };
            let side = ceilings.side;
            let figure = median(&format!("matrix.{dtype}")).and_then(|(rate, words, rounds)| {
                share(rate, rated.peak, format!("{words}, median of {rounds} rounds, products of {side} x {side}"))
            });
            figures.push((format!("compute.{}.reached", number.name()), figure));
        }
        let copy = median("memory.copy").and_then(|(rate, words, rounds)| {
            share(rate, device.bandwidth, format!("{words} read and written by copies, median of {rounds} rounds"))
        });
        figures.push(("hbm.reached".into(), copy));
        let time = |name: &str, what: &str| {
            let words = |rounds: u64| format!("{what}, median of {rounds} rounds");
            median(name).map(|(seconds, _, rounds)| (format!("\"{:?}us\"", rounded(seconds * 1e6)), words(rounds)))
        };
        figures.push(("launch".into(), time("time.launch", "from one small kernel to the next in a full queue")));
        // No host link in the profile: nothing to have a share of.
        if self.machine.host.bandwidth > 0.0 {
            let both = median("link.upload").and_then(|up| Ok((up, median("link.download")?)));
            let slower = both.and_then(|(up, down)| {
                let words = format!("upload {}, download {}, the slower, median of {} rounds", up.1, down.1, up.2);
                share(up.0.min(down.0), self.machine.host.bandwidth, words)
            });
            figures.push(("node.host_link.reached".into(), slower));
            let wait = time("time.wait", "one number to the host, which waits for it");
            figures.push(("node.host_link.latency".into(), wait));
        }
        figures
    }
}

/// A value as TOML and what it is; or why there is none.
type Figure = Result<(String, String), String>;

fn share(measured: f64, rated: f64, words: String) -> Figure {
    let share = measured / rated;
    match share {
        share if share > MOST_SHARE => {
            Err(format!("{words} is {share:.2} of the profile's figure, which is another device's then"))
        }
        share if share > 1.0 => Ok(("1.0".into(), format!("{words}, {share:.3} of the data sheet, written as 1"))),
        share => Ok((format!("{:?}", rounded(share)), words)),
    }
}

/// To four digits.
fn rounded(value: f64) -> f64 {
    format!("{value:.3e}").parse().unwrap_or(value)
}

fn read(path: &Path, text: &str) -> Result<Profile, String> {
    let name = path.file_stem().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    Profile::read(&name, text).map_err(|error| error.to_string())
}

#[cfg(test)]
#[path = "profile/tests.rs"]
mod tests;
