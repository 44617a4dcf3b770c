//! Both ends of the model: the embedding, and the head with the loss.

use super::{Context, Unit};
use crate::framework::Fusion;
use crate::job::Kind;

impl Context<'_> {
    /// The embedding: a lookup.
    pub fn embedding(&self) -> Unit {
        let elements = self.tokens(false) * self.model.hidden as f64;
        let bytes = self.bytes();
        let mut unit = Unit::default();
        unit.forward.kernel(self.roof.pass(2.0 * elements * bytes));
        unit.backward.kernel(self.roof.pass(elements * (bytes + 8.0)));
        unit.dense = self.model.embedding_parameters() as f64 / self.tensor();
        unit.trained = if self.frozen() { 0.0 } else { unit.dense };
        self.share_words(&mut unit, elements);
        unit
    }

    /// The last norm, the head and the loss.
    pub fn head(&self) -> Unit {
        let decoder = matches!(self.model.kind, Kind::EncoderDecoder { .. });
        let tokens = self.tokens(decoder);
        let vocab = (self.model.vocab as f64 / self.tensor()).ceil();
        // Libraries pad the vocabulary or pay for rows that are not aligned; nearly all pad.
        let padded = (vocab / 8.0).ceil() * 8.0;
        let form = self.job.precision.compute;
        let (forward, backward) = self.product(tokens, padded, self.model.hidden as f64, 1.0, form);
        let mut unit = Unit { forward, backward, ..Unit::default() };
        // The loss is made with its gradients: they are no later part of backward.
        unit.backward.weights = 0.0;
        // Bytes per logit: cast to f32, softmax and its gradient, and back.
        let (there, back) = match self.drive.fusion {
            Fusion::Eager => (14.0, 14.0),
            Fusion::Fused => (8.0, 8.0),
            Fusion::Compiled => (6.0, 4.0),
        };
        unit.forward.kernel(self.roof.pass(tokens * padded * there));
        unit.backward.kernel(self.roof.pass(tokens * padded * back));
        unit.dense = self.model.head_parameters() as f64 / self.tensor();
        unit.trained = if self.frozen() { 0.0 } else { unit.dense };
        self.share_words(&mut unit, tokens * self.model.hidden as f64);
        unit
    }

    /// What ranks that share the vocabulary exchange: the sum of their look-ups, or of their gradients of the head's input. Its time is no
    /// part of the unit.
    fn share_words(&self, unit: &mut Unit, elements: f64) {
        if self.job.degrees.tensor > 1 {
            unit.collectives.tensor = 1.0;
            unit.collectives.tensor_bytes = elements * self.bytes();
        }
    }
}
