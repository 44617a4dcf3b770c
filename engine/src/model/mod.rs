//! The model as units and as layers: which tensors there are, in which unit, and which layer reads them.

mod builder;
mod forms;
mod graph;
pub mod layers;
mod part;
pub mod rope;
mod stored;
mod unit;

pub use crate::action::stream::{ByStream, Stream};
pub use crate::model::layers::{FlatKind, FlatRange, Grads, Weights};
pub use graph::{Layer, LayerKind};
pub use part::Part;
pub use stored::{Rows, Stored, StoredRun};
pub use unit::{Flat, Init, Tensor, Unit, is_adapter, stream_of};

pub(crate) use crate::formats::hf::fused_in;

use crate::config::{AttentionKind, Base, Cell, Degrees, Lora, Model, PricedModel};
use crate::model::layers::{Block, Embedding, Head, LinearSpec};
use builder::Builder;
use std::ops::Range;
use std::sync::Arc;
use zbench_kernels::{DType, GRANULE_BYTES};

/// Units and layers of a model, or of a stage of it. Of a whole model unit 0 is the embedding, then come the blocks, the last one
/// is the head. Where both ends of a pipeline have the embedding's table, that is unit 0, and what else the embedding has is unit 1.
#[derive(Clone, Debug, PartialEq)]
pub struct Layout {
    /// What is gathered, reduced and updated as a whole.
    pub units: Vec<Arc<Unit>>,
    /// By unit: its number in the whole model.
    pub numbers: Vec<usize>,
    /// By unit: trainable tensors of the whole model's units before it.
    pub first_tensors: Vec<usize>,
    /// The unit that the other end of a pipeline has, too: the table of tied embeddings. None of a whole model and between the ends.
    pub tied: Option<usize>,
    /// In the order of forward.
    pub layers: Vec<Layer>,
    /// The layers of each chunk of a stage: those that follow each other in the model. Of a whole model there is one.
    pub chunks: Vec<Range<usize>>,
    /// By layer: the first one that it is the same as, in everything that a plan counts.
    pub same_as: Vec<usize>,
    /// Elements of all whole tensors, by [`FlatKind`], without those of a copy. Every plan of a layout states them.
    elements: [u64; FlatKind::COUNT],
}

/// Everything of a cell that its layout depends on: cells with the same have the same layout.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayoutKey<'a> {
    pub model: &'a Model,
    pub lora: &'a Lora,
    pub attention: AttentionKind,
    /// Elements to which shard boundaries are aligned.
    pub granule: usize,
    /// Ranks that flats are padded for.
    pub ranks: usize,
    /// How many ranks share what of the layers.
    pub cut: Degrees,
    /// Blocks of the decoder, where the model's own are an encoder's.
    pub decoder_layers: Option<usize>,
}

impl<'a> LayoutKey<'a> {
    pub fn of(cell: &'a Cell, ranks: usize) -> LayoutKey<'a> {
        let (model, lora, attention) = (&cell.model, &cell.lora, cell.memory.attention);
        let decoder_layers = cell.priced.as_ref().and_then(|priced| match &priced.model {
            Some(PricedModel::EncoderDecoder { num_decoder_layers, .. }) => Some(*num_decoder_layers),
            _ => None,
        });
        LayoutKey { model, lora, attention, granule: granule(cell), ranks, cut: cell.parallel.degrees, decoder_layers }
    }
}

/// Tensors within which the parts of a fused one lie: three matrices, three biases.
const PARTS: usize = 6;

impl Layout {
    /// The layout of a cell's model; flats are padded for `ranks`.
    pub fn new(cell: &Cell, ranks: usize) -> Layout {
        Layout::on(LayoutKey::of(cell, ranks))
    }

    pub fn on(basis: LayoutKey<'_>) -> Layout {
        if let Some(decoder) = basis.decoder_layers {
            return Layout::over_encoder(basis, decoder);
        }
        let builder = Builder::new(basis);
        let (mut units, embedding) = builder.embedding();
        let (head_unit, head) = builder.head(&embedding);
        let layer = Layer::on(Stream::Decoder, 0, LayerKind::Embedding(embedding));
        let mut layers = vec![Layer { second: (units.len() > 1).then_some(1), ..layer }];
        for index in 0..basis.model.num_hidden_layers {
            let (unit, of_experts, block) = builder.block_and_experts(index);
            let layer = Layer::on(Stream::Decoder, units.len(), LayerKind::Block(Arc::new(block)));
            layers.push(Layer { second: of_experts.as_ref().map(|_| units.len() + 1), ..layer });
            units.push(unit);
            units.extend(of_experts);
        }
        let layer = Layer::on(Stream::Decoder, units.len(), LayerKind::Head(head));
        layers.push(Layer { shares: head.tied.then_some(0), ..layer });
        units.push(head_unit);
        units.iter_mut().for_each(|unit| unit.pad(basis.ranks, basis.granule));
        let units = units.into_iter().map(Arc::new).collect();
        let same_as = same_as(&layers);
        Layout::of(units, layers, same_as)
    }

    /// Of an encoder and a decoder that share the table of the embedding. The model's blocks are the encoder's.
    fn over_encoder(basis: LayoutKey<'_>, decoder: usize) -> Layout {
        let (builder, encoder) = (Builder::new(basis), basis.model.num_hidden_layers);
        let (mut units, embedding) = builder.embedding();
        let mut layers = vec![Layer::on(Stream::Encoder, 0, LayerKind::Embedding(embedding))];
        for index in 0..encoder {
            let (unit, block) = builder.block_of_encoder(index);
            layers.push(Layer::on(Stream::Encoder, units.len(), LayerKind::Block(Arc::new(block))));
            units.push(unit);
        }
        let (unit, norm) = builder.encoder_norm();
        layers.push(Layer::on(Stream::Encoder, units.len(), LayerKind::Norm(norm)));
        units.push(unit);
        layers.push(Layer::on(Stream::Decoder, 0, LayerKind::Embedding(embedding)));
        for index in encoder..encoder + decoder {
            let (unit, block) = builder.block_over_encoder(index);
            let layer = Layer::on(Stream::Decoder, units.len(), LayerKind::Block(Arc::new(block)));
            layers.push(Layer { memory: Some(Stream::Encoder), ..layer });
            units.push(unit);
        }
        let (unit, head) = builder.head(&embedding);
        let layer = Layer::on(Stream::Decoder, units.len(), LayerKind::Head(head));
        layers.push(Layer { shares: head.tied.then_some(0), ..layer });
        units.push(unit);
        units.iter_mut().for_each(|unit| unit.pad(basis.ranks, basis.granule));
        let same_as = same_as(&layers);
        Layout::of(units.into_iter().map(Arc::new).collect(), layers, same_as)
    }

    /// The layout without these layers, each of which has a unit of its own.
    pub fn without(&self, layers: Range<usize>) -> Layout {
        fn left<T: Clone>(all: &[T], out: &Range<usize>) -> Vec<T> {
            [&all[..out.start], &all[out.end..]].concat()
        }
        let units = left(&self.units, &layers);
        let mut kept = left(&self.layers, &layers);
        kept[layers.start..].iter_mut().for_each(|layer| layer.unit -= layers.len());
        Layout { tied: self.tied, ..Layout::of(units, kept, left(&self.same_as, &layers)) }
    }

    /// The stage of this whole model that has these chunks of its layers, with all units that they read.
    pub fn stage(&self, chunks: &[Range<usize>]) -> Layout {
        let of_stage = || chunks.iter().cloned().flatten().map(|layer| &self.layers[layer]);
        let mut numbers: Vec<usize> = of_stage().flat_map(Layer::units).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let own = |unit: usize| numbers.partition_point(|number| *number < unit);
        let layers = of_stage().map(|layer| {
            let Layer { unit, shares, second, .. } = *layer;
            Layer { unit: own(unit), shares: shares.map(own), second: second.map(own), ..layer.clone() }
        });
        let layers: Vec<Layer> = layers.collect();
        let units = numbers.iter().map(|number| self.units[*number].clone()).collect();
        let first_tensors = numbers.iter().map(|number| self.first_tensors[*number]).collect();
        let table = self.layers.last().and_then(|head| head.shares);
        let tied = table.filter(|table| numbers.contains(table)).map(own);
        let mut end = 0;
        let behind_the_last = |chunk: &Range<usize>| {
            let start = end;
            end += chunk.len();
            start..end
        };
        let (chunks, same_as) = (chunks.iter().map(behind_the_last).collect(), same_as(&layers));
        let mut stage = Layout { tied, chunks, ..Layout::of(units, layers, same_as) };
        if let Some(copy) = stage.copy() {
            let of_copy = |kind| elements(&stage.units[copy..=copy], kind);
            let of_copy = FlatKind::ALL.map(of_copy);
            stage.elements.iter_mut().zip(of_copy).for_each(|(all, copy)| *all -= copy);
        }
        Layout { numbers, first_tensors, ..stage }
    }

    /// The unit that is the first stage's, and that the last stage has a copy of. What counts tensors once leaves it out.
    pub fn copy(&self) -> Option<usize> {
        self.tied.filter(|_| self.embedding().is_none())
    }

    fn of(units: Vec<Arc<Unit>>, layers: Vec<Layer>, same_as: Vec<usize>) -> Layout {
        let elements = FlatKind::ALL.map(|kind| elements(&units, kind));
        let before = |sum: &mut usize, unit: &Arc<Unit>| {
            let tensors = unit.tensors_of(FlatKind::Trainable).count();
            Some(std::mem::replace(sum, *sum + tensors))
        };
        let first_tensors = units.iter().scan(0, before).collect();
        let (numbers, chunks) = ((0..units.len()).collect(), std::iter::once(0..layers.len()).collect());
        Layout { units, numbers, first_tensors, tied: None, layers, chunks, same_as, elements }
    }

    /// Whether a layer is the first of a chunk, which takes its input from another stage or from tokens.
    pub fn begins_chunk(&self, layer: usize) -> bool {
        self.chunks.iter().any(|chunk| chunk.start == layer)
    }

    pub fn blocks(&self) -> impl Iterator<Item = &Arc<Block>> {
        self.layers.iter().filter_map(|layer| match &layer.kind {
            LayerKind::Block(block) => Some(block),
            _ => None,
        })
    }

    /// Multiply-adds of a layer's matrix products with one token of sequences of `seq` tokens, attention's causal half among them.
    pub fn products_of(&self, layer: &Layer, seq: usize) -> u64 {
        let product = |matrix: &LinearSpec| (matrix.out * matrix.input) as u64;
        match &layer.kind {
            LayerKind::Embedding(_) | LayerKind::Norm(_) => 0,
            LayerKind::Head(head) => (head.local_vocab * head.hidden) as u64,
            LayerKind::Block(block) => {
                let Block { q, k, v, o, gate, up, down, dims, .. } = &**block;
                let attention: u64 = [q, k, v, o].map(product).iter().sum();
                let mlp: u64 = gate.iter().chain([up, down]).map(product).sum();
                // A token goes to some of the experts, each of which has these matrices.
                let times = block.experts.as_ref().map_or(1, |experts| experts.top as u64);
                attention + times * mlp + (seq * dims.heads * dims.head_dim) as u64
            }
        }
    }

    /// The head, where the layers end with it.
    pub fn head(&self) -> Option<&Head> {
        match &self.layers.last()?.kind {
            LayerKind::Head(head) => Some(head),
            _ => None,
        }
    }

    /// The embedding, where the layers begin with it.
    pub fn embedding(&self) -> Option<&Embedding> {
        match &self.layers.first()?.kind {
            LayerKind::Embedding(embedding) => Some(embedding),
            _ => None,
        }
    }

    pub fn parameters(&self, part: FlatKind) -> u64 {
        self.elements[part as usize]
    }

    /// Elements of all tensors that do not train.
    pub fn frozen_parameters(&self) -> u64 {
        self.parameters(FlatKind::Frozen) + self.parameters(FlatKind::Quantised)
    }

    /// Of these, how many a token does not pass through: all experts but those it goes to.
    pub fn inactive_params(&self, part: FlatKind) -> u64 {
        let of = |layer: &Layer| -> u64 {
            let Some((block, experts)) = layer.block().and_then(|block| Some((block, block.experts.as_ref()?))) else {
                return 0;
            };
            let unit = &self.units[layer.second.unwrap_or(layer.unit)];
            let stacks = block.gate.iter().chain([&block.up, &block.down]).filter(|stack| stack.weight.part == part);
            // Each stack begins with its first expert.
            let first = |stack: &LinearSpec| {
                let tensor = unit.tensors_of(part).find(|tensor| tensor.place.start == stack.weight.start);
                tensor.map_or(0, Tensor::whole_elements)
            };
            let each: usize = stacks.map(first).sum();
            ((experts.count - experts.top) * each / experts.ranks) as u64
        };
        self.layers.iter().map(of).sum()
    }

    /// The tensors a checkpoint must hold, by name and shape.
    pub fn checkpoint_tensors(&self) -> Vec<(String, Vec<usize>)> {
        self.stored(true)
    }

    /// The tensors a folder of adapters must hold, by PEFT's names and shapes.
    pub fn adapter_tensors(&self) -> Vec<(String, Vec<usize>)> {
        self.stored(false).into_iter().map(|(name, shape)| (crate::formats::peft::tensor_name(&name), shape)).collect()
    }

    fn stored(&self, in_checkpoint: bool) -> Vec<(String, Vec<usize>)> {
        let tensors = self.units.iter().flat_map(|unit| &unit.tensors);
        stored_tensors(tensors.filter(|tensor| tensor.in_checkpoint == in_checkpoint))
    }
}

/// Names and shapes of what a checkpoint has of these tensors: the parts of a fused tensor are that one.
pub(crate) fn stored_tensors<'t>(tensors: impl Iterator<Item = &'t Tensor>) -> Vec<(String, Vec<usize>)> {
    let mut list: Vec<(String, Vec<usize>)> = Vec::new();
    for (name, shape) in tensors.map(|tensor| (tensor.stored_name(), tensor.stored_shape())) {
        // The parts of a fused tensor follow each other, but for their biases in between.
        if !list.iter().rev().take(PARTS).any(|(known, _)| known == name) {
            list.push((name.into(), shape.into()));
        }
    }
    list
}

/// Elements of the units' whole tensors of a kind.
fn elements(units: &[Arc<Unit>], kind: FlatKind) -> u64 {
    units.iter().flat_map(|unit| unit.tensors_of(kind)).map(|tensor| tensor.whole_elements() as u64).sum()
}

/// By layer the first that differs from it in nothing but its number and its streams of random numbers. A model has few
/// kinds of blocks; its other layers are like none.
fn same_as(layers: &[Layer]) -> Vec<usize> {
    let mut kinds: Vec<(Block, usize)> = Vec::new();
    let mut of = |(index, layer): (usize, &Layer)| {
        let LayerKind::Block(block) = &layer.kind else { return index };
        let kind = block.kind();
        match kinds.iter().find(|(known, _)| *known == kind) {
            Some((_, first)) => *first,
            None => {
                kinds.push((kind, index));
                index
            }
        }
    };
    layers.iter().enumerate().map(&mut of).collect()
}

/// Elements of a cell's tensors of a kind, as [`Layout::parameters`] has them, without laying every block out.
pub fn parameters(cell: &Cell, part: FlatKind) -> u64 {
    let builder = Builder::new(LayoutKey { cut: Degrees::default(), ..LayoutKey::of(cell, 1) });
    let of = |unit: &Unit| unit.tensors_of(part).map(|tensor| tensor.elements() as u64).sum::<u64>();
    let (embeddings, first) = builder.embedding();
    let (sparse, dense): (Vec<usize>, Vec<usize>) =
        (0..cell.model.num_hidden_layers).partition(|index| cell.model.experts_of(*index).is_some());
    let blocks = [sparse, dense].into_iter().filter_map(|kind| Some((*kind.first()?, kind.len() as u64)));
    let blocks: u64 = blocks.map(|(index, count)| count * of(&builder.block(index).0)).sum();
    embeddings.iter().map(of).sum::<u64>() + blocks + of(&builder.head(&first).0)
}

/// Elements to which shard boundaries are aligned: 64 bytes of the narrowest type in use, and at least 16, the multiple at
/// which an all-reduce is cut.
fn granule(cell: &Cell) -> usize {
    let p = &cell.precision;
    let types = [p.parameters, p.compute, p.gradients, p.reduce, p.optimizer];
    let narrowest = types
        .into_iter()
        .chain(p.master)
        .chain(cell.lora.base.and_then(Base::float))
        .map(DType::size)
        .min()
        .unwrap_or(4);
    GRANULE_BYTES as usize / narrowest.min(4)
}
