//! The weights of a model in a folder, under the names of its family.

use super::{Checkpoint, HEAD, Result, TensorInfo};
use crate::config::Model;
use crate::formats::hf::{family_of, model_from_hf_without_dropout};
use std::path::Path;

/// Elements that are compared at a time.
const PIECE: usize = 1 << 18;

impl Checkpoint {
    /// Opens the folder's weights and compares them with the tensors that the model expects.
    ///
    /// # Errors
    /// Those of [`Checkpoint::open`] and [`Checkpoint::check`].
    pub fn of_model(dir: &Path, model: &Model, expected: &[(String, Vec<usize>)]) -> Result<Checkpoint> {
        let mut checkpoint = Checkpoint::open(dir)?;
        checkpoint.adopt_prefix(&embedding(model));
        checkpoint.adopt_experts(model);
        if model.tie_word_embeddings {
            checkpoint.adopt_head(&embedding(model));
        }
        checkpoint.check(expected)?;
        Ok(checkpoint)
    }

    /// Returns whether the folder's weights have an `lm_head.weight` that differs from the embedding. Transformers 5 does not tie
    /// these two, whatever config.json says.
    ///
    /// # Errors
    /// Those of [`Checkpoint::open`] and [`Checkpoint::read`].
    pub fn has_own_head(dir: &Path, model: &Model) -> Result<bool> {
        let mut checkpoint = Checkpoint::open(dir)?;
        let embedding = embedding(model);
        checkpoint.adopt_prefix(&embedding);
        let (Some(one), Some(other)) = (checkpoint.tensor(HEAD), checkpoint.tensor(&embedding)) else {
            return Ok(false);
        };
        if one.shape != other.shape {
            return Ok(true);
        }
        let (len, mut bytes) = (one.elements(), Vec::new());
        let [mut head, mut rows] = [(); 2].map(|()| vec![0f32; PIECE.min(len)]);
        for start in (0..len).step_by(PIECE) {
            let piece = start..(start + PIECE).min(len);
            let (head, rows) = (&mut head[..piece.len()], &mut rows[..piece.len()]);
            checkpoint.read(HEAD, piece.clone(), head, &mut bytes)?;
            checkpoint.read(&embedding, piece, rows, &mut bytes)?;
            if head != rows {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Adds the first part of all names (`transformer.wte.weight` for `wte.weight`) where the file lacks it: published files of
    /// GPT-2 and BLOOM, and models that were saved without their head.
    fn adopt_prefix(&mut self, embedding: &str) {
        let Some((module, bare)) = embedding.split_once('.') else { return };
        if !self.tensors.contains_key(bare) {
            return;
        }
        let tensors = std::mem::take(&mut self.tensors).into_iter();
        let renamed = |name: String| if name == HEAD { name } else { format!("{module}.{name}") };
        self.tensors = tensors.map(|(name, info)| (renamed(name), info)).collect();
    }

    /// Takes `lm_head.weight` for the embedding of a tied model where the file lacks the latter.
    fn adopt_head(&mut self, embedding: &str) {
        if !self.tensors.contains_key(embedding)
            && let Some(head) = self.tensors.remove(HEAD)
        {
            self.tensors.insert(embedding.into(), head);
        }
    }

    /// Published files hold one tensor per expert and projection, and so does what transformers writes unless it is told to
    /// leave its own names (`save_original_format=False`): then all gates and ups of a block are
    /// `mlp.experts.gate_up_proj [experts, 2 wide, hidden]`, all downs `mlp.experts.down_proj`. An expert's part is a run of
    /// either, so here each is seen under the name that the family has for it, and the router `mlp.gate`, too.
    fn adopt_experts(&mut self, model: &Model) {
        let names = (family_of(model).tensors)(&model.form);
        let stacked =
            [("gate_up_proj", &[names.expert_gate, names.expert_up][..]), ("down_proj", &[names.expert_down])];
        for (end, parts) in stacked.map(|(name, parts)| (format!(".mlp.experts.{name}"), parts)) {
            let stacked: Vec<String> = self.tensors.keys().filter(|name| name.ends_with(&end)).cloned().collect();
            for name in stacked {
                let block = &name[..name.len() - end.len()];
                let Some(info) = self.tensors.get(&name) else { continue };
                let [experts, rows, cols] = info.shape[..] else { continue };
                let count = parts.len();
                if !rows.is_multiple_of(count) {
                    continue;
                }
                let bytes = (rows / count * cols * (info.dtype.bitsize() / 8)) as u64;
                let pieces: Vec<(String, TensorInfo)> = (0..experts * count)
                    .map(|piece| {
                        let (expert, which) = (piece / count, parts[piece % count]);
                        let begin = info.begin + piece as u64 * bytes;
                        let info = TensorInfo { shape: vec![rows / count, cols], begin, ..info.clone() };
                        (format!("{block}.{}.{expert}.{which}.weight", names.experts), info)
                    })
                    .collect();
                self.tensors.remove(&name);
                self.tensors.extend(pieces);
                if let Some(router) = self.tensors.remove(&format!("{block}.mlp.gate.weight")) {
                    self.tensors.insert(format!("{block}.{}.weight", names.router), router);
                }
            }
        }
    }
}

/// Name of the embedding's tensor.
fn embedding(model: &Model) -> String {
    format!("{}.weight", (family_of(model).tensors)(&model.form).embedding)
}

/// Note on a model whose head trains apart from the embedding although the config.json of its weights ties the two.
pub fn note_of_untied_head(model: &Model) -> Option<String> {
    let folder = model.weights.as_ref().filter(|_| !model.tie_word_embeddings)?;
    let file = folder.join("config.json");
    let stated = model_from_hf_without_dropout(&crate::formats::files::text(&file).ok()?, "").ok()?;
    let differs = stated.tie_word_embeddings && Checkpoint::has_own_head(folder, model).is_ok_and(|differs| differs);
    differs.then(|| {
        format!(
            "{} ties the head to the embedding, but {HEAD} differs from the embedding: they train apart, as in transformers 5. Set \
             model.tie_word_embeddings = true to tie them and to ignore {HEAD}",
            file.display()
        )
    })
}
