//! Kinds of adapters, and what follows from their settings.

use super::Lora;
use serde::{Deserialize, Serialize};

impl Lora {
    /// Whether there are adapters, and so a frozen base.
    pub fn on(&self) -> bool {
        self.method == Method::Ia3 || self.rank > 0
    }

    /// The factor on a low-rank adapter's output.
    pub fn scale(&self) -> f64 {
        let rank = self.rank as f64;
        self.alpha / if self.use_rslora { rank.sqrt() } else { rank }
    }
}

/// What kind of adapters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Method {
    /// Low-rank products beside a layer.
    #[default]
    Lora,
    /// Factors on what a layer gives or reads.
    Ia3,
}
