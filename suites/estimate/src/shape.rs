//! What a model's shape says: its matrices, parameters and units.

use crate::job::{Experts, Kind, Shape, Targets};

/// A weight matrix of a block (or of the head), whole: `inputs` by `outputs`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Matrix {
    /// What it does.
    pub role: Role,
    /// Elements it reads of a token.
    pub inputs: usize,
    /// Elements it writes of a token.
    pub outputs: usize,
    /// How many of them there are (experts).
    pub copies: usize,
    /// How many of them a token goes through.
    pub active: f64,
}

/// What a matrix does, and so how tensor parallelism splits it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Queries, keys and values in one product: split by outputs.
    Qkv,
    /// Attention's output: split by inputs.
    Output,
    /// Up (and gate) of the MLP: split by outputs.
    Up,
    /// Down of the MLP: split by inputs.
    Down,
    /// Whole on every rank: routers and the bottlenecks of latent attention.
    Whole,
    /// Up (and gate) of an expert: split as experts are.
    ExpertUp,
    /// Down of an expert.
    ExpertDown,
    /// The language head: split by outputs.
    Head,
}

impl Matrix {
    const fn dense(role: Role, inputs: usize, outputs: usize) -> Matrix {
        Matrix { role, inputs, outputs, copies: 1, active: 1.0 }
    }

    /// Elements of all copies.
    pub fn parameters(&self) -> u64 {
        (self.inputs as u64).saturating_mul(self.outputs as u64).saturating_mul(self.copies as u64)
    }

    /// Multiply-adds of a token, times two.
    pub fn flops_per_token(&self) -> f64 {
        2.0 * self.inputs as f64 * self.outputs as f64 * self.active
    }
}

/// `relative_attention_num_buckets` of T5, mT5 and UL2.
const RELATIVE_BUCKETS: u64 = 32;

/// A kind of block and how many there are of it.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockKind {
    /// How many.
    pub count: usize,
    /// Its matrices.
    pub matrices: Vec<Matrix>,
    /// Parameters beside them: norms and biases.
    pub others: u64,
    /// Whether it has experts.
    pub sparse: bool,
    /// Whether it belongs to the decoder of an encoder-decoder.
    pub cross: bool,
}

impl BlockKind {
    /// Parameters of one block.
    pub fn parameters(&self) -> u64 {
        self.matrices.iter().map(Matrix::parameters).sum::<u64>() + self.others
    }
}

impl Shape {
    /// Elements of all queries of a token.
    pub fn query_width(&self) -> usize {
        match self.latent {
            Some(latent) => self.heads * (latent.qk_dim + latent.rope_dim),
            None => self.heads * self.head_dim,
        }
    }

    /// Elements of all keys (or values) of a token.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Elements of what attention hands to its output projection.
    pub fn value_width(&self) -> usize {
        self.latent.map_or(self.heads * self.head_dim, |latent| self.heads * latent.v_dim)
    }

    /// Adapters beside a matrix, and the elements of its output that they write to. Queries, keys and values (gate and up) are
    /// targets of their own, though they are one product.
    pub fn adapted(&self, targets: Targets, matrix: &Matrix) -> (f64, f64) {
        let one = |on: bool| if on { (1.0, matrix.outputs as f64) } else { (0.0, 0.0) };
        let some = |parts: &[(bool, usize)]| {
            let on = parts.iter().filter(|(on, _)| *on);
            on.fold((0.0, 0.0), |(count, width), (_, outputs)| (count + 1.0, width + *outputs as f64))
        };
        match matrix.role {
            Role::Qkv if self.latent.is_some() => {
                let reads = self.latent.map_or(0, |latent| if latent.q_rank > 0 { latent.q_rank } else { self.hidden });
                let is_query = (matrix.inputs, matrix.outputs) == (reads, self.query_width());
                one(if is_query { targets.query } else { targets.key || targets.value })
            }
            Role::Qkv if targets.fused => one(targets.read_attention_input()),
            Role::Up | Role::ExpertUp if targets.fused => one(targets.read_mlp_input()),
            Role::Qkv => some(&[
                (targets.query, self.query_width()),
                (targets.key, self.kv_width()),
                (targets.value, self.kv_width()),
            ]),
            Role::Up | Role::ExpertUp if self.gated => {
                some(&[(targets.gate, matrix.outputs / 2), (targets.up, matrix.outputs / 2)])
            }
            Role::Up | Role::ExpertUp => one(targets.up),
            Role::Output => one(targets.output),
            Role::Down | Role::ExpertDown => one(targets.down),
            // No target names a router, a bottleneck or the head.
            Role::Whole | Role::Head => one(false),
        }
    }

    /// Rows of the up projection: gate and up are one product where there are both.
    fn up_width(&self, ffn: usize) -> usize {
        if self.gated { 2 * ffn } else { ffn }
    }

    fn attention_matrices(&self) -> Vec<Matrix> {
        let hidden = self.hidden;
        let Some(latent) = self.latent else {
            let qkv = self.query_width() + 2 * self.kv_width();
            return vec![
                Matrix::dense(Role::Qkv, hidden, qkv),
                Matrix::dense(Role::Output, self.query_width(), hidden),
            ];
        };
        let mut list = Vec::new();
        if latent.q_rank > 0 {
            list.push(Matrix::dense(Role::Whole, hidden, latent.q_rank));
            list.push(Matrix::dense(Role::Qkv, latent.q_rank, self.query_width()));
        } else {
            list.push(Matrix::dense(Role::Qkv, hidden, self.query_width()));
        }
        list.push(Matrix::dense(Role::Whole, hidden, latent.kv_rank + latent.rope_dim));
        list.push(Matrix::dense(Role::Qkv, latent.kv_rank, self.heads * (latent.qk_dim + latent.v_dim)));
        list.push(Matrix::dense(Role::Output, self.value_width(), hidden));
        list
    }

    fn mlp_matrices(&self) -> Vec<Matrix> {
        vec![
            Matrix::dense(Role::Up, self.hidden, self.up_width(self.ffn)),
            Matrix::dense(Role::Down, self.ffn, self.hidden),
        ]
    }

    fn expert_matrices(&self, experts: &Experts) -> Vec<Matrix> {
        let expert =
            |role, inputs, outputs| Matrix { role, inputs, outputs, copies: experts.count, active: experts.top as f64 };
        let mut list = vec![
            Matrix::dense(Role::Whole, self.hidden, experts.count),
            expert(Role::ExpertUp, self.hidden, self.up_width(experts.ffn)),
            expert(Role::ExpertDown, experts.ffn, self.hidden),
        ];
        if experts.shared_ffn > 0 {
            list.push(Matrix::dense(Role::Up, self.hidden, self.up_width(experts.shared_ffn)));
            list.push(Matrix::dense(Role::Down, experts.shared_ffn, self.hidden));
        }
        list
    }

    /// Elements of a norm.
    pub fn norm(&self) -> u64 {
        self.hidden as u64 * if self.norm_bias { 2 } else { 1 }
    }

    fn block(&self, count: usize, sparse: bool, cross: bool) -> BlockKind {
        let mut matrices = self.attention_matrices();
        if cross {
            matrices.extend(self.attention_matrices());
        }
        match (&self.experts, sparse) {
            (Some(experts), true) => matrices.extend(self.expert_matrices(experts)),
            _ => matrices.extend(self.mlp_matrices()),
        }
        let biases: u64 = if self.bias {
            matrices.iter().map(|m| if m.role == Role::Whole { 0 } else { (m.outputs * m.copies) as u64 }).sum()
        } else {
            0
        };
        let others = self.norm() * if cross { 3 } else { 2 } + biases;
        BlockKind { count, matrices, others, sparse, cross }
    }

    /// The kinds of block, in the order in which they stand.
    pub fn blocks(&self) -> Vec<BlockKind> {
        let mut list = Vec::new();
        match self.kind {
            Kind::Count { .. } => {}
            Kind::EncoderDecoder { decoder_layers, .. } => {
                list.push(self.block(self.layers, false, false));
                list.push(self.block(decoder_layers, false, true));
            }
            Kind::Decoder => {
                let sparse = self.experts.as_ref().map_or(0, |e| self.layers - e.dense_layers.min(self.layers));
                if sparse < self.layers {
                    list.push(self.block(self.layers - sparse, false, false));
                }
                if sparse > 0 {
                    list.push(self.block(sparse, true, false));
                }
            }
        }
        list
    }

    /// Parameters of the embedding and of positions.
    pub fn embedding_parameters(&self) -> u64 {
        self.vocab as u64 * self.hidden as u64 + self.position_parameters()
    }

    /// Learned positions. An encoder-decoder without them has a table of relative ones in each stack, as T5.
    pub(crate) fn position_parameters(&self) -> u64 {
        let is_relative = matches!(self.kind, Kind::EncoderDecoder { .. }) && self.positions == 0;
        if is_relative { 2 * RELATIVE_BUCKETS * self.heads as u64 } else { self.positions as u64 * self.hidden as u64 }
    }

    /// Parameters of the head's own matrix (none where it is tied) and the last norm.
    pub fn head_parameters(&self) -> u64 {
        let head = if self.tied { 0 } else { self.vocab as u64 * self.hidden as u64 };
        let stacks = if matches!(self.kind, Kind::EncoderDecoder { .. }) { 2 } else { 1 };
        head + stacks * self.norm()
    }

    /// All parameters.
    pub fn parameters(&self) -> u64 {
        if let Kind::Count { .. } = self.kind {
            return self.stated_parameters;
        }
        let blocks: u64 = self.blocks().iter().map(|b| b.count as u64 * b.parameters()).sum();
        blocks + self.embedding_parameters() + self.head_parameters()
    }

    /// Parameters that a token goes through.
    pub fn active_parameters(&self) -> u64 {
        let idle = |m: &Matrix| (m.copies as f64 - m.active) * m.inputs as f64 * m.outputs as f64;
        let idle: f64 = self.blocks().iter().map(|b| b.count as f64 * b.matrices.iter().map(idle).sum::<f64>()).sum();
        self.parameters() - idle as u64
    }

    /// Parameters of the largest module that has no modules in it, as DeepSpeed's estimators take it: the embedding, or a
    /// matrix (gate and up are two).
    pub fn largest_module(&self) -> u64 {
        if let Kind::Count { largest_layer } = self.kind {
            return largest_layer;
        }
        let (hidden, ffn) = (self.hidden as u64, self.ffn as u64);
        let expert = self.experts.as_ref().map_or(0, |experts| experts.ffn as u64);
        let wide = [self.vocab as u64, ffn, expert, self.query_width() as u64].into_iter().max().unwrap_or(0);
        hidden.saturating_mul(wide)
    }
}
