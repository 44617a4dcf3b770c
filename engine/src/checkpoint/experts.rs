//! Experts of a block that a file keeps in two tensors, as transformers 5 has them in memory.

use super::{Checkpoint, TensorInfo};

impl Checkpoint {
    /// Published files hold one tensor per expert and projection, and so does what transformers writes unless it is told to
    /// leave its own names (`save_original_format=False`): then all gates and ups of a block are
    /// `mlp.experts.gate_up_proj [experts, 2 wide, hidden]`, all downs `mlp.experts.down_proj`. An expert's part is a run of
    /// either, so here each is seen under the name that `expected` has for it.
    pub fn adopt_experts(&mut self, expected: &[(String, Vec<usize>)]) {
        const STACKED: [(&str, usize); 2] = [(".mlp.experts.gate_up_proj", 2), (".mlp.experts.down_proj", 1)];
        let expects = |name: &str| expected.iter().any(|(known, _)| known == name);
        for (end, parts) in STACKED {
            let stacked: Vec<String> = self.tensors.keys().filter(|name| name.ends_with(end)).cloned().collect();
            for name in stacked {
                let block = &name[..name.len() - end.len()];
                let mixtral = expects(&format!("{block}.block_sparse_moe.gate.weight"));
                let Some(info) = self.tensors.get(&name) else { continue };
                let [experts, rows, cols] = info.shape[..] else { continue };
                if !rows.is_multiple_of(parts) {
                    continue;
                }
                let (module, names) = match (mixtral, parts) {
                    (true, 2) => ("block_sparse_moe", &["w1", "w3"][..]),
                    (true, _) => ("block_sparse_moe", &["w2"][..]),
                    (false, 2) => ("mlp", &["gate_proj", "up_proj"][..]),
                    (false, _) => ("mlp", &["down_proj"][..]),
                };
                let bytes = (rows / parts * cols * (info.dtype.bitsize() / 8)) as u64;
                let pieces: Vec<(String, TensorInfo)> = (0..experts * parts)
                    .map(|piece| {
                        let (expert, which) = (piece / parts, names[piece % parts]);
                        let begin = info.begin + piece as u64 * bytes;
                        let info = TensorInfo { shape: vec![rows / parts, cols], begin, ..info.clone() };
                        (format!("{block}.{module}.experts.{expert}.{which}.weight"), info)
                    })
                    .collect();
                self.tensors.remove(&name);
                self.tensors.extend(pieces);
                if !mixtral {
                    continue;
                }
                if let Some(router) = self.tensors.remove(&format!("{block}.mlp.gate.weight")) {
                    self.tensors.insert(format!("{block}.block_sparse_moe.gate.weight"), router);
                }
            }
        }
    }
}
