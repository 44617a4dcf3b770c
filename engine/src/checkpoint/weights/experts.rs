//! Experts of a block that a file keeps in two tensors, as transformers 5 has them in memory.

use super::{Checkpoint, TensorInfo};
use crate::config::Model;
use crate::formats::hf::family_of;

impl Checkpoint {
    /// Published files hold one tensor per expert and projection, and so does what transformers writes unless it is told to
    /// leave its own names (`save_original_format=False`): then all gates and ups of a block are
    /// `mlp.experts.gate_up_proj [experts, 2 wide, hidden]`, all downs `mlp.experts.down_proj`. An expert's part is a run of
    /// either, so here each is seen under the name that the family has for it, and the router `mlp.gate`, too.
    pub(super) fn adopt_experts(&mut self, model: &Model) {
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
