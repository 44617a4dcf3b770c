//! The model as units and as layers: which tensors there are, in which unit, and which layer reads them.

mod unit;

pub use unit::{Flat, Grads, Init, Part, Place, Tensor, Unit, Weights};

use crate::config::{Cell, Linear, Lora, Model};
use crate::layers::{AdapterSpec, Block, Dims, Embedding, Head, LinearSpec};
use zbench_kernels::{DType, GRANULE_BYTES};

/// Units and layers of a model. Unit 0 is the embedding, then the blocks, the last one the head.
#[derive(Clone, Debug, PartialEq)]
pub struct Layout {
    /// What is gathered, reduced and updated as a whole.
    pub units: Vec<Unit>,
    /// The first layer.
    pub embedding: Embedding,
    /// The blocks; block `i` reads unit `i + 1`.
    pub blocks: Vec<Block>,
    /// The last norm, the output matrix and the loss.
    pub head: Head,
}

impl Layout {
    /// The layout of a cell's model; flats are padded for `ranks`.
    pub fn new(cell: &Cell, ranks: usize) -> Layout {
        let mut builder = Builder { cell, stream: 0 };
        let embedding = builder.embedding();
        let blocks: Vec<_> = (0..cell.model.num_hidden_layers).map(|i| builder.block(i)).collect();
        let (head_unit, head) = builder.head(&embedding.1);
        let mut units = vec![embedding.0];
        let (block_units, blocks): (Vec<_>, Vec<_>) = blocks.into_iter().unzip();
        units.extend(block_units);
        units.push(head_unit);
        let multiple = ranks * granule(cell);
        units.iter_mut().for_each(|unit| unit.pad(multiple));
        Layout { units, embedding: embedding.1, blocks, head }
    }

    /// The number of the head's unit.
    pub fn head_unit(&self) -> usize {
        self.units.len() - 1
    }

    /// Unpadded elements of all flats of a kind.
    pub fn parameters(&self, part: Part) -> u64 {
        self.units.iter().map(|u| u.flat(part).len as u64).sum()
    }

    /// The tensors a checkpoint must hold, by name and shape.
    pub fn checkpoint_tensors(&self) -> Vec<(String, Vec<usize>)> {
        let tensors = self.units.iter().flat_map(|u| &u.tensors).filter(|t| t.in_checkpoint);
        tensors.map(|t| (t.name.clone(), t.shape.clone())).collect()
    }
}

/// Elements to which shard boundaries are aligned: 64 bytes of the narrowest type in use, and at least 16, the multiple at
/// which an all-reduce is cut.
fn granule(cell: &Cell) -> usize {
    let p = &cell.precision;
    let types = [p.parameters, p.compute, p.gradients, p.reduce, p.optimizer];
    let narrowest = types.into_iter().chain(p.master).chain(cell.lora.base).map(DType::size).min().unwrap_or(4);
    GRANULE_BYTES as usize / narrowest.min(4)
}

struct Builder<'a> {
    cell: &'a Cell,
    stream: u64,
}

impl Builder<'_> {
    /// The part of everything that an adapter run does not train.
    fn base(&self) -> Part {
        if self.cell.lora.rank > 0 { Part::Frozen } else { Part::Trainable }
    }

    fn push(&mut self, unit: &mut Unit, part: Part, name: String, shape: &[usize], init: Init) -> Place {
        self.stream += 1;
        unit.push(part, name, shape, init, self.stream)
    }

    fn embedding(&mut self) -> (Unit, Embedding) {
        let model = &self.cell.model;
        let mut unit = Unit::new("embed_tokens");
        let shape = [model.vocab_size, model.hidden_size];
        let init = Init::Normal(model.initializer_range);
        let table = self.push(&mut unit, self.base(), "model.embed_tokens.weight".into(), &shape, init);
        (unit, Embedding { table, vocab: shape[0], hidden: shape[1] })
    }

    fn block(&mut self, index: usize) -> (Unit, Block) {
        let model: &Model = &self.cell.model;
        let mut unit = Unit::new(format!("layers.{index}"));
        let (hidden, wide) = (model.hidden_size, model.intermediate_size);
        let queries = model.num_attention_heads * model.head_dim;
        let keys = model.num_key_value_heads * model.head_dim;
        let prefix = format!("model.layers.{index}");
        let norm = |b: &mut Self, unit: &mut Unit, name: &str| {
            let part = b.base();
            b.push(unit, part, format!("{prefix}.{name}.weight"), &[hidden], Init::Constant(1.0))
        };
        let attention_norm = norm(self, &mut unit, "input_layernorm");
        let mut linear = |which: Linear, module: &str, out: usize, input: usize| {
            let name = format!("{prefix}.{module}.{}", which.name());
            self.linear(&mut unit, which, name, out, input)
        };
        let q = linear(Linear::QProj, "self_attn", queries, hidden);
        let k = linear(Linear::KProj, "self_attn", keys, hidden);
        let v = linear(Linear::VProj, "self_attn", keys, hidden);
        let o = linear(Linear::OProj, "self_attn", hidden, queries);
        let gate = linear(Linear::GateProj, "mlp", wide, hidden);
        let up = linear(Linear::UpProj, "mlp", wide, hidden);
        let down = linear(Linear::DownProj, "mlp", hidden, wide);
        let mlp_norm = norm(self, &mut unit, "post_attention_layernorm");
        let dims = Dims {
            hidden,
            intermediate: wide,
            heads: model.num_attention_heads,
            kv_heads: model.num_key_value_heads,
            head_dim: model.head_dim,
            eps: model.rms_norm_eps,
            attention: self.cell.memory.attention,
        };
        (unit, Block { index, dims, attention_norm, q, k, v, o, mlp_norm, gate, up, down })
    }

    fn linear(&mut self, unit: &mut Unit, which: Linear, name: String, out: usize, input: usize) -> LinearSpec {
        let init = Init::Normal(self.cell.model.initializer_range);
        let weight = self.push(unit, self.base(), format!("{name}.weight"), &[out, input], init);
        let Lora { rank, alpha, dropout, ref targets, .. } = self.cell.lora;
        let adapter = (rank > 0 && targets.contains(&which)).then(|| {
            // PEFT: A is drawn with Kaiming's uniform bound for sqrt(5), whose deviation is sqrt(1/(3 input)); B is zero.
            let spread = Init::Normal((1.0 / (3.0 * input as f64)).sqrt());
            let a = self.push(unit, Part::Trainable, format!("{name}.lora_A.weight"), &[rank, input], spread);
            let b =
                self.push(unit, Part::Trainable, format!("{name}.lora_B.weight"), &[out, rank], Init::Constant(0.0));
            AdapterSpec { a, b, rank, scale: (alpha / rank as f64) as f32, dropout, stream: self.stream }
        });
        LinearSpec { weight, out, input, adapter, name: which.name() }
    }

    fn head(&mut self, embedding: &Embedding) -> (Unit, Head) {
        let model = &self.cell.model;
        let mut unit = Unit::new("head");
        let (vocab, hidden, eps) = (model.vocab_size, model.hidden_size, model.rms_norm_eps);
        let init = Init::Normal(model.initializer_range);
        let tied = model.tie_word_embeddings;
        let norm = self.push(&mut unit, self.base(), "model.norm.weight".into(), &[hidden], Init::Constant(1.0));
        let matrix = match tied {
            true => embedding.table,
            false => self.push(&mut unit, self.base(), "lm_head.weight".into(), &[vocab, hidden], init),
        };
        (unit, Head { norm, matrix, tied, vocab, hidden, eps })
    }
}
