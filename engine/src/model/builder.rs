//! From a cell's model to its units and layers.

mod adapters;

use super::stored::{FusedRows, qkv_module};
use super::{FlatKind, FlatRange, Init, LayoutKey, Rows, Stored, Unit};
use crate::config::{self, Base, Linear, Mlp, Model, Order, Positions};
use crate::formats::hf::{Family, TensorNames, family_of};
use crate::mesh::Axis;
use crate::model::layers::{Block, Cross, Dims, Embedding, Experts, Head, LinearSpec, Norm, TensorSplit};
use zbench_kernels::{Activation, Packed, Packing};

/// Appends tensors in the order of the model.
pub(super) struct Builder<'a> {
    cell: LayoutKey<'a>,
    family: &'static Family,
    names: &'static TensorNames,
}

/// A linear layer of the whole model.
struct Projection {
    which: Linear,
    out: usize,
    input: usize,
    bias: bool,
    std: f64,
}

impl<'a> Builder<'a> {
    pub fn new(cell: LayoutKey<'a>) -> Builder<'a> {
        let family = family_of(cell.model);
        Builder { cell, family, names: (family.tensors)(&cell.model.form) }
    }

    /// The part of everything that an adapter run does not train.
    fn base(&self) -> FlatKind {
        if self.cell.lora.on() { FlatKind::Frozen } else { FlatKind::Trainable }
    }

    /// How the blocks' matrices are kept, where they do not train and that is in few bits.
    fn packing(&self) -> Option<Packing> {
        self.cell.lora.base.filter(|_| self.base() == FlatKind::Frozen).and_then(Base::packing)
    }

    /// Of `size` rows or columns, how many each tensor rank has: the last ones may be padding.
    fn share(&self, size: usize) -> usize {
        size.div_ceil(self.cell.cut.tensor)
    }

    /// A norm over the residual stream: under sequence parallelism each tensor rank finds the gradient of its own tokens.
    fn norm(&self, unit: &mut Unit, name: &str, cols: usize) -> Norm {
        self.norm_where(unit, name, cols, self.cell.cut.sequence > 1)
    }

    /// A norm, of whose weights each tensor rank may find a part of the gradient.
    fn norm_where(&self, unit: &mut Unit, name: &str, cols: usize, is_partial: bool) -> Norm {
        let (part, form) = (self.base(), self.cell.model.form);
        let name_of = |end: &str| format!("{name}.{end}");
        let appended = |unit: &mut Unit| {
            if is_partial {
                unit.partial_last(Axis::Tensor)
            }
        };
        let weight = unit.push(part, name_of("weight"), &[cols], Init::Constant(1.0));
        appended(unit);
        if form.norm_less_one {
            let rows = Rows { start: 0, run: cols, stride: cols };
            let stored = Stored { name: name_of("weight"), shape: vec![cols], rows, transposed: false, less: 1.0 };
            unit.store_last(Some(stored));
        }
        let bias = form.norm_bias.then(|| {
            let place = unit.push(part, name_of("bias"), &[cols], Init::Constant(0.0));
            appended(unit);
            place
        });
        Norm { kind: form.norm, weight, bias, cols, eps: self.cell.model.rms_norm_eps }
    }

    /// The embedding's units. There is a second one, of positions and norm, where both ends of a pipeline have the table.
    pub fn embedding(&self) -> (Vec<Unit>, Embedding) {
        let (model, names) = (self.cell.model, self.names);
        let (vocab, hidden) = (model.vocab_size, model.hidden_size);
        let (mut unit, mut second) = (Unit::new("embed_tokens"), Unit::new("embed_tokens.second"));
        let (part, init) = (self.base(), Init::Normal(model.initializer_range));
        let (vocab_size, cut, local_vocab) = (vocab, self.of_vocabulary(), self.share(vocab));
        let table = unit.push(part, format!("{}.weight", names.embedding), &[local_vocab, hidden], init);
        unit.cut_last(cut, vocab_size);
        let is_on_both_ends = model.tie_word_embeddings && self.cell.cut.pipeline > 1;
        let others = if is_on_both_ends { &mut second } else { &mut unit };
        let positions = (model.form.positions == Positions::Learned).then(|| {
            let shape = [model.max_position_embeddings, hidden];
            others.push(part, format!("{}.weight", names.positions), &shape, init)
        });
        let norm = model.form.embedding_norm.then(|| self.norm_where(others, names.embedding_norm, hidden, false));
        let scale = model.form.embedding_scale.then(|| (hidden as f64).sqrt());
        let padding = model.pad_token_id.and_then(|token| u32::try_from(token).ok());
        let units = [unit, second].into_iter().filter(|unit| !unit.tensors.is_empty()).collect();
        (units, Embedding { table, local_vocab, vocab_size, cut, padding, hidden, positions, norm, scale })
    }

    /// How tensor ranks share the vocabulary.
    fn of_vocabulary(&self) -> TensorSplit {
        if self.cell.cut.tensor == 1 { TensorSplit::Replicated } else { TensorSplit::ColumnParallel(Axis::Tensor) }
    }

    /// A block of the decoder of a model that has an encoder.
    pub fn block_over_encoder(&self, index: usize) -> (Unit, Block) {
        let (mut unit, mut block) = self.block(index);
        let (model, names) = (self.cell.model, self.names);
        let prefix = format!("{}.{index}.cross", names.blocks);
        let Dims { hidden, heads, kv_heads, head_dim, .. } = block.dims;
        let norm = self.norm(&mut unit, &format!("{prefix}.{}", names.attention_norm), hidden);
        let (queries, keys, std) = (heads * head_dim, kv_heads * head_dim, model.initializer_range);
        let mut linear = |which, out, input| {
            self.linear(&mut unit, &prefix, Projection { which, out, input, bias: model.form.qkv_bias, std })
        };
        let q = linear(Linear::QProj, queries, hidden);
        let k = linear(Linear::KProj, keys, hidden);
        let v = linear(Linear::VProj, keys, hidden);
        let o = linear(Linear::OProj, hidden, queries);
        block.cross = Some(Box::new(Cross { norm, q, k, v, o }));
        (unit, block)
    }

    /// A block of an encoder.
    pub fn block_of_encoder(&self, index: usize) -> (Unit, Block) {
        let (unit, mut block) = self.block(index);
        block.dims.causal = false;
        (unit, block)
    }

    /// The norm at the end of an encoder.
    pub fn encoder_norm(&self) -> (Unit, Norm) {
        let mut unit = Unit::new("encoder_norm");
        let norm = self.norm(&mut unit, "encoder.norm", self.cell.model.hidden_size);
        (unit, norm)
    }

    /// A block, with its experts in its own unit.
    pub fn block(&self, index: usize) -> (Unit, Block) {
        let (unit, _, block) = self.block_and_experts(index);
        (unit, block)
    }

    /// A block; its experts are a unit of their own where ranks share them.
    pub fn block_and_experts(&self, index: usize) -> (Unit, Option<Unit>, Block) {
        let (model, names): (&Model, _) = (self.cell.model, self.names);
        let form = model.form;
        let mut unit = Unit::new(format!("layers.{index}"));
        let is_shared = self.cell.cut.expert > 1 && model.experts_of(index).is_some();
        let mut of_experts = is_shared.then(|| Unit::of_experts(format!("layers.{index}.experts")));
        let (hidden, std) = (model.hidden_size, model.initializer_range);
        let sparse = model.experts_of(index);
        let wide = sparse.map_or(model.intermediate_size, |experts| experts.moe_intermediate_size);
        let tensor = self.cell.cut.tensor;
        let (heads, kv_heads) = (model.num_attention_heads, model.num_key_value_heads);
        let (queries, keys) = (heads * model.head_dim, kv_heads * model.head_dim);
        let prefix = format!("{}.{index}", names.blocks);
        let narrow = match self.family.narrow_outputs {
            true => std / (2.0 * model.num_hidden_layers as f64).sqrt(),
            false => std,
        };
        let attention_norm = self.norm(&mut unit, &format!("{prefix}.{}", names.attention_norm), hidden);
        let linear = |unit: &mut Unit, which, out, input, bias, std| {
            self.linear(unit, &prefix, Projection { which, out, input, bias, std })
        };
        let q = linear(&mut unit, Linear::QProj, queries, hidden, form.qkv_bias, std);
        let k = linear(&mut unit, Linear::KProj, keys, hidden, form.qkv_bias, std);
        let v = linear(&mut unit, Linear::VProj, keys, hidden, form.qkv_bias, std);
        let qkv_adapter = self.qkv_adapter(&mut unit, &prefix, [queries, keys, keys], hidden);
        let o = linear(&mut unit, Linear::OProj, hidden, queries, form.output_bias, narrow);
        let gated = matches!(form.mlp, Mlp::Swiglu | Mlp::GegluTanh);
        let (gate, up, down, experts) = match sparse {
            Some(experts) => self.experts((&mut unit, of_experts.as_mut()), &prefix, experts),
            None => {
                let gate = gated.then(|| linear(&mut unit, Linear::GateProj, wide, hidden, form.mlp_bias, std));
                let up = linear(&mut unit, Linear::UpProj, wide, hidden, form.mlp_bias, std);
                (gate, up, linear(&mut unit, Linear::DownProj, hidden, wide, form.mlp_bias, narrow), None)
            }
        };
        let mlp_norm = (form.order != Order::Parallel)
            .then(|| self.norm(&mut unit, &format!("{prefix}.{}", names.mlp_norm), hidden));
        // Each rank has heads of its own.
        let mut head_norm = |name: &str| {
            let norm = || self.norm_where(&mut unit, &format!("{prefix}.{name}"), model.head_dim, tensor > 1);
            form.qk_norm.then(norm)
        };
        let (q_norm, k_norm) = (head_norm(names.q_norm), head_norm(names.k_norm));
        let dims = Dims {
            hidden,
            intermediate: self.share(wide),
            heads: self.share(heads),
            kv_heads: self.share(kv_heads),
            head_dim: model.head_dim,
            attention: self.cell.attention,
            window: model.window(index),
            positions: form.positions,
            act: match form.mlp {
                Mlp::Swiglu => Activation::Silu,
                Mlp::Gelu => Activation::Gelu,
                Mlp::GegluTanh | Mlp::GeluTanh => Activation::GeluTanh,
            },
            parallel: form.order != Order::Sequential,
            causal: true,
        };
        let block = Block {
            index,
            dims,
            attention_norm,
            q,
            k,
            v,
            qkv_adapter,
            q_norm,
            k_norm,
            o,
            cross: None,
            mlp_norm,
            experts,
            gate,
            up,
            down,
        };
        (unit, of_experts, block)
    }

    /// A router, and the stacks of gate, up and down projections. Experts follow each other, so that a run of them is one
    /// view. Ranks share them in this order.
    fn experts(
        &self,
        (unit, of_experts): (&mut Unit, Option<&mut Unit>),
        prefix: &str,
        spec: &config::Experts,
    ) -> (Option<LinearSpec>, LinearSpec, LinearSpec, Option<Experts>) {
        let (names, model, part) = (self.names, self.cell.model, self.base());
        let (hidden, wide, count) = (model.hidden_size, spec.moe_intermediate_size, spec.num_experts);
        let init = Init::Normal(model.initializer_range);
        let plain = |weight, [out, input]: [usize; 2], cut, name| LinearSpec {
            weight,
            packed: None,
            bias: None,
            out,
            input,
            cut,
            adapter: None,
            factors: None,
            magnitude: None,
            name,
        };
        let weight = unit.push(part, format!("{prefix}.{}.weight", names.router), &[count, hidden], init);
        if self.cell.cut.tensor > 1 {
            // Each rank has a part of every expert, and so a part of what the experts give.
            unit.partial_last(Axis::Tensor);
        }
        let router = plain(weight, [count, hidden], TensorSplit::Replicated, "router");
        let ranks = self.cell.cut.expert;
        let unit = of_experts.unwrap_or(unit);
        let mut stack = |which: &str, linear, whole: [usize; 2], name| {
            let (cut, [out, input]) = self.cut(linear, whole);
            let mut weight: Option<FlatRange> = None;
            // Of the rank that has the first ones.
            for number in 0..count / ranks {
                let tensor = format!("{prefix}.{}.{number}.{which}.weight", names.experts);
                let one = unit.push(part, tensor, &[out, input], init);
                unit.cut_last(cut, of_cut(cut, whole));
                weight = Some(weight.map_or(one, |first| FlatRange { len: first.len + one.len, ..first }));
            }
            plain(weight.expect("a block with experts has one at least"), [out, input], cut, name)
        };
        let gate = stack(names.expert_gate, Linear::GateProj, [wide, hidden], "expert gate_proj");
        let up = stack(names.expert_up, Linear::UpProj, [wide, hidden], "expert up_proj");
        let down = stack(names.expert_down, Linear::DownProj, [hidden, wide], "expert down_proj");
        let (top, normalised) = (spec.num_experts_per_tok, spec.norm_topk_prob);
        (
            Some(gate),
            up,
            down,
            Some(Experts { router, count, ranks, top, normalised, rounded: self.family.rounded_weights }),
        )
    }

    fn linear(&self, unit: &mut Unit, prefix: &str, projection: Projection) -> LinearSpec {
        let Projection { which, out, input, bias, std } = projection;
        let (part, whole) = (self.base(), [out, input]);
        let (cut, [out, input]) = self.cut(which, whole);
        let (module, fused) = self.module(which);
        let stored = format!("{prefix}.{module}");
        // A part of a fused tensor has a name of its own here.
        let name = if fused.is_some() { format!("{stored}.{}", which.name()) } else { stored.clone() };
        let (title, init) = (format!("{name}.weight"), Init::Normal(std));
        let packed = self.packing().map(|packing| Packed { packing, rows: out, cols: input });
        let weight = match packed {
            Some(packed) => unit.push_packed(packed, title, init),
            None => unit.push(part, title, &[out, input], init),
        };
        let matrix = Stored::matrix(format!("{stored}.weight"), whole, fused, self.family.transposed);
        unit.store_last(matrix);
        unit.cut_last(cut, of_cut(cut, whole));
        let bias = bias.then(|| {
            let place = unit.push(part, format!("{name}.bias"), &[out], Init::Constant(0.0));
            unit.store_last(fused.map(|rows| Stored::part(format!("{stored}.bias"), rows, &[])));
            // Beside a product whose columns ranks share it is added to the sum over them.
            if let TensorSplit::ColumnParallel(_) = cut {
                unit.cut_last(cut, whole[0]);
            }
            place
        });
        let (adapter, magnitude) = self.adapter(unit, &stored, which, fused, weight, whole);
        let factors = self.factors(unit, &stored, which, fused, whole);
        LinearSpec { weight, packed, bias, out, input, cut, adapter, factors, magnitude, name: which.name() }
    }

    /// What a rank has of a projection's matrix `[out, input]`, and the shape of that: what makes heads or the MLP's width is cut by
    /// rows, what reads them by columns, so that nothing is exchanged in between (Shoeybi et al. (2019), "Megatron-LM", section 3).
    fn cut(&self, which: Linear, [out, input]: [usize; 2]) -> (TensorSplit, [usize; 2]) {
        match which.is_row_parallel() {
            _ if self.cell.cut.tensor == 1 => (TensorSplit::Replicated, [out, input]),
            true => (TensorSplit::RowParallel(Axis::Tensor), [out, self.share(input)]),
            false => (TensorSplit::ColumnParallel(Axis::Tensor), [self.share(out), input]),
        }
    }

    /// The module of a projection, and its rows there if the family fuses it with others.
    fn module(&self, which: Linear) -> (&'static str, Option<FusedRows>) {
        let names = self.names;
        let part = |index| qkv_module(&names.qkv, self.cell.model, index);
        match which {
            Linear::QProj => part(0),
            Linear::KProj => part(1),
            Linear::VProj => part(2),
            Linear::OProj => (names.o, None),
            Linear::GateProj => (names.gate, None),
            Linear::UpProj => (names.up, None),
            Linear::DownProj => (names.down, None),
        }
    }

    pub fn head(&self, embedding: &Embedding) -> (Unit, Head) {
        let (model, names) = (self.cell.model, self.names);
        let mut unit = Unit::new("head");
        let (vocab, hidden) = (model.vocab_size, model.hidden_size);
        let init = Init::Normal(model.initializer_range);
        let tied = model.tie_word_embeddings;
        let norm = self.norm(&mut unit, names.norm, hidden);
        let part = self.base();
        let (vocab_size, cut, local_vocab) = (vocab, self.of_vocabulary(), self.share(vocab));
        let matrix = if tied {
            embedding.table
        } else {
            let place = unit.push(part, format!("{}.weight", names.head), &[local_vocab, hidden], init);
            unit.cut_last(cut, vocab_size);
            place
        };
        (unit, Head { norm, matrix, tied, local_vocab, vocab_size, cut, hidden })
    }
}

/// Rows or columns of a whole matrix, whichever the cut divides.
fn of_cut(cut: TensorSplit, [out, input]: [usize; 2]) -> usize {
    if let TensorSplit::RowParallel(_) = cut { input } else { out }
}
