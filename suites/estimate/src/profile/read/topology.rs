//! The keys of `[network]` that say what joins the nodes.

use super::{ProfileError, Reader, plain};
use crate::topology::{Pods, Routing, Topology};
use toml::Value;

/// They stand beside those of the network's cards.
pub(super) const KEYS: [&str; 7] = ["topology", "pod_nodes", "oversubscription", "ecmp", "uplinks", "flows", "torus"];

/// Ratios and numbers of flows above this are no network.
const MOST: f64 = 1000.0;

/// Dimensions of the largest tori that were built (K computer, Fugaku).
const MOST_DIMENSIONS: usize = 6;

impl Reader<'_> {
    /// What joins nodes with so many cards.
    pub(super) fn topology(&mut self, nics: usize) -> Result<Topology, ProfileError> {
        let wanted = "\"flat\", \"fat-tree\", \"rail\" or \"torus\"";
        let name = self.text("topology", wanted)?.unwrap_or_else(|| "flat".into());
        let foreign: &[&str] = match name.as_str() {
            "flat" => &["pod_nodes", "torus"],
            "fat-tree" | "rail" => &["torus"],
            "torus" => &["pod_nodes", "oversubscription", "ecmp", "uplinks", "flows"],
            _ => return Err(self.value_error("topology", &Value::String(name), wanted)),
        };
        if let Some((key, value)) = foreign.iter().find_map(|key| Some((key, self.table.get(*key)?))) {
            let wanted = format!("a key of topology = \"{name}\"; take it out, or state the topology that has it");
            return Err(self.value_error(key, value, &wanted));
        }
        if name == "torus" {
            return self.torus(nics);
        }
        Ok(Topology::Pods(Pods {
            // In a flat network no node is nearer than another: each is a pod.
            nodes: if name == "flat" {
                1
            } else {
                self.count("pod_nodes", "the nodes of a leaf switch or pod that has its full rate inside, as 32")?
            },
            rails: name == "rail",
            oversubscription: self
                .ratio("oversubscription", "rate of a pod's downlinks over its uplinks, from 1, as 2")?,
            routing: self.routing()?,
        }))
    }

    /// A number from 1; 1 where nothing is stated.
    fn ratio(&mut self, key: &str, wanted: &str) -> Result<f64, ProfileError> {
        let value = self.figure(key, plain, wanted)?.unwrap_or(1.0);
        if (1.0..=MOST).contains(&value) { Ok(value) } else { Err(self.value_error(key, &Value::Float(value), wanted)) }
    }

    fn routing(&mut self) -> Result<Routing, ProfileError> {
        let (share, hash) = (self.table.get("ecmp"), self.table.get("uplinks"));
        match (share, hash) {
            (Some(share), Some(_)) => {
                Err(self.value_error("ecmp", share, "needed beside uplinks, from which it follows; state one of them"))
            }
            (_, Some(_)) => Ok(Routing::Hash {
                paths: self.count("uplinks", "equal-cost paths that a flow's hash chooses from, a whole number")?,
                flows: self.flows()?,
            }),
            (_, None) if self.table.contains_key("flows") => {
                Err(self.missing("uplinks", "the equal-cost paths that flows are hashed to, as 16"))
            }
            (Some(_), None) => Ok(Routing::Share(self.share("ecmp")?)),
            (None, None) => Ok(Routing::Share(1.0)),
        }
    }

    fn flows(&mut self) -> Result<usize, ProfileError> {
        let wanted = "flows (queue pairs) of a card that are hashed one by one, a whole number from 1";
        let flows = self.ratio("flows", wanted)?;
        if flows.fract() == 0.0 {
            Ok(flows as usize)
        } else {
            Err(self.value_error("flows", &Value::Float(flows), wanted))
        }
    }

    fn torus(&mut self, nics: usize) -> Result<Topology, ProfileError> {
        let wanted =
            "the nodes along each of 1 to 6 dimensions, two nodes at least and a million at most, as [4, 4, 4]";
        let value = self.bare("torus", wanted)?.ok_or_else(|| self.missing("torus", wanted))?;
        let sizes: Option<Vec<usize>> = value.as_array().and_then(|list| {
            list.iter().map(|size| size.as_integer().and_then(|size| usize::try_from(size).ok())).collect()
        });
        let nodes = |sizes: &Vec<usize>| sizes.iter().try_fold(1usize, |all, size| all.checked_mul(*size));
        let sizes = sizes
            .filter(|sizes| (1..=MOST_DIMENSIONS).contains(&sizes.len()))
            .filter(|sizes| nodes(sizes).is_some_and(|nodes| (2..=1_000_000).contains(&nodes)))
            .ok_or_else(|| self.value_error("torus", value, wanted))?;
        let links = 2 * sizes.len();
        if !nics.is_multiple_of(links) {
            let wanted = format!("{links}, the links of a node in {} dimensions, or a multiple of it", sizes.len());
            return Err(self.value_error("nics", &Value::Integer(nics as i64), &wanted));
        }
        Ok(Topology::Torus(sizes))
    }
}
