//! The ways to split a cell's work over its ranks: which there are, and what each is as a cell and as settings.

use super::{SearchError, Wanted};
use crate::forecast;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use zbench_config::{Resolved, software};
use zbench_engine::config::{
    Cell, Checkpointing, Degrees, DeviceKind, MemoryTier, PipelineSchedule, Placement, Priced, PricedModel, Strategy,
};
use zbench_estimate::framework::Framework;
use zbench_reports::OrderedMap;

/// Sequences of a micro-batch that are tried at most: more than this keeps no device busier.
const MOST_MICRO: usize = 32;
/// Ranks of a sequence that are tried at most.
const MOST_CONTEXT: usize = 16;
/// Chunks of a stage that are tried at most.
pub const MOST_CHUNKS: usize = 8;
/// Groups of blocks of which the first one's input is kept.
const GROUPS: [usize; 2] = [2, 4];
/// Shard groups of hybrid strategies that are tried, in nodes.
const SHARD_NODES: [usize; 3] = [1, 2, 4];

/// One way: everything that a search varies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Way {
    /// Ranks that share what.
    pub degrees: Degrees,
    /// Which axis lies within a node.
    pub placement: Placement,
    /// Which state is split over the data axes.
    pub strategy: Strategy,
    /// Ranks of a shard group.
    shard: usize,
    /// Sequences of a micro-batch.
    micro: usize,
    /// Micro-batches of a step.
    accumulation: usize,
    /// Which of [`Space::policies`].
    policy: usize,
    /// Where optimizer state, weights and kept activations live.
    tiers: [MemoryTier; 3],
}

impl Way {
    /// How much of it lives elsewhere than on the device.
    pub fn offloads(&self) -> usize {
        self.tiers.iter().filter(|home| **home != MemoryTier::Device).count()
    }

    /// Axes that it divides the model over.
    pub fn axes(&self) -> usize {
        let Degrees { tensor, pipeline, context, expert, .. } = self.degrees;
        [tensor, pipeline, context, expert].into_iter().filter(|ranks| *ranks > 1).count()
    }

    /// Whether another way differs in nothing but where stages lie.
    pub fn is_but_for_placement(&self, other: &Way) -> bool {
        Way { placement: self.placement, ..*other } == *self
    }

    /// Whether another way splits the work over the ranks alike, and differs in batches, chunks or recomputation alone.
    pub fn splits_like(&self, other: &Way) -> bool {
        let split = |way: &Way| {
            let Degrees { tensor, pipeline, context, expert, .. } = way.degrees;
            (way.strategy, [tensor, pipeline, context, expert], way.tiers.map(|home| home != MemoryTier::Device))
        };
        split(self) == split(other)
    }
}

/// All ways around a cell.
pub struct Space {
    /// The cell, with the software that all ways are priced as.
    base: Cell,
    /// That software.
    framework: Arc<Framework>,
    /// What backward recomputes, as it is tried.
    policies: Vec<Checkpointing>,
    /// Ranks of a node.
    per_node: usize,
    /// MemoryTiers of state and activations that are tried beside the device.
    tiers: Vec<MemoryTier>,
    /// Sequences of a step, all ranks together.
    pub global_batch: usize,
    /// Numbers of data-parallel ranks that do not divide them.
    misfits: BTreeSet<usize>,
    /// The ways.
    pub ways: Vec<Way>,
    /// Number of combinations that cannot be, by reason.
    pub impossible: BTreeMap<&'static str, u64>,
}

impl Space {
    /// The ways around a cell: its model, ranks and sequence length stay, and its global batch unless another is given.
    pub fn of(resolved: &Resolved, wanted: &Wanted) -> Result<Space, SearchError> {
        let base = resolved.cell.clone();
        let ranks = base.parallel.ranks;
        let on_device = base.hardware.device == DeviceKind::Cuda;
        let machine = resolved.profile.as_ref().and_then(|profile| profile.machine.as_ref());
        let has_disk = machine.is_some_and(|machine| machine.disk_read > 0.0 && machine.disk_write > 0.0);
        let mut tiers = if on_device { vec![MemoryTier::Host] } else { Vec::new() };
        tiers.extend(has_disk.then_some(MemoryTier::Disk));
        let replicas = ranks / base.parallel.degrees.ranks_per_replica().max(1);
        let stated = base.train.micro_batch.saturating_mul(base.train.accumulation).saturating_mul(replicas);
        let mut space = Space {
            global_batch: wanted.global_batch.unwrap_or(stated),
            misfits: BTreeSet::new(),
            policies: policies(&base),
            per_node: forecast::ranks_per_node(resolved).min(ranks),
            tiers,
            ways: Vec::new(),
            impossible: BTreeMap::new(),
            base,
            framework: resolved.framework.clone(),
        };
        space.fill();
        space.add_own();
        wanted.keep.iter().try_for_each(|(key, value)| space.keep(key, value))?;
        Ok(space)
    }

    /// Adds the cell as it is, if no way is like it, so that a search never denies that it fits.
    fn add_own(&mut self) {
        let Cell { parallel, train, memory, priced, .. } = &self.base;
        let data = parallel.ranks / parallel.degrees.ranks_per_replica().max(1);
        let own = Way {
            degrees: parallel.degrees,
            placement: priced.as_ref().map_or_else(Placement::default, |priced| priced.placement),
            strategy: parallel.strategy,
            shard: parallel.shard,
            micro: train.micro_batch,
            accumulation: train.accumulation,
            policy: self.policies.iter().position(|policy| *policy == memory.checkpointing).unwrap_or(0),
            tiers: [memory.offload_optimizer, memory.offload_parameters, memory.offload_activations],
        };
        // zero3 and fsdp are one; ways have no second copy of weights, as zero++ has.
        let own = Way { strategy: if own.strategy == Strategy::Zero3 { Strategy::Fsdp } else { own.strategy }, ..own };
        let is_way = priced.as_ref().is_none_or(|priced| priced.parked <= 1);
        if is_way && own.micro * own.accumulation * data == self.global_batch && !self.ways.contains(&own) {
            self.ways.push(own);
        }
    }

    /// Leaves those ways that have a value of a key: one of several that `|` divides, or that of another key behind `=`.
    fn keep(&mut self, key: &str, value: &str) -> Result<(), SearchError> {
        let error = |why: String| SearchError::Keep { key: key.into(), value: value.into(), why };
        let Some(first) = self.ways.first().map(|way| self.settings(way)) else { return Ok(()) };
        if first.get(key).is_none() {
            let keys: Vec<&str> = first.names().filter(|key| *key != "hardware.software").collect();
            return Err(error(format!("a search does not vary this key; it varies {}", keys.join(", "))));
        }
        let ways = std::mem::take(&mut self.ways);
        let count = ways.len();
        let mut others = BTreeSet::new();
        for way in ways {
            let settings = self.settings(&way);
            let is_wanted = |of_way: &String| match value.strip_prefix('=') {
                Some(other) => settings.get(other) == Some(of_way),
                None => value.split('|').any(|one| one == of_way),
            };
            match settings.get(key) {
                Some(of_way) if is_wanted(of_way) => self.ways.push(way),
                of_way => others.extend(of_way.filter(|_| others.len() < 32).cloned()),
            }
        }
        if self.ways.is_empty() {
            let others: Vec<String> = others.into_iter().collect();
            return Err(error(format!("no way has it; ways have {}", others.join(", "))));
        }
        *self.impossible.entry("another value of a key that is kept").or_default() += (count - self.ways.len()) as u64;
        Ok(())
    }

    fn refuse(&mut self, reason: &'static str) {
        *self.impossible.entry(reason).or_default() += 1;
    }

    /// Why there is no way: of all splits, none divides the sequences of a step.
    pub fn none(&self) -> SearchError {
        let (batch, ranks) = (self.global_batch, self.base.parallel.ranks);
        let below = self.misfits.iter().map(|data| batch / data * data).filter(|near| *near > 0).max();
        let above = self.misfits.iter().map(|data| batch.div_ceil(*data) * data).min();
        let near: Vec<String> = below.into_iter().chain(above).map(|near| near.to_string()).collect();
        SearchError::Batch { global_batch: batch, ranks, nearest: near.join(" and ") }
    }

    /// Blocks of the model, of an encoder and a decoder together.
    fn blocks(&self) -> usize {
        let decoder = match self.base.priced.as_ref().and_then(|priced| priced.model.as_ref()) {
            Some(PricedModel::Custom(custom)) => custom.decoder_layers,
            Some(PricedModel::EncoderDecoder { num_decoder_layers, .. }) => *num_decoder_layers,
            _ => 0,
        };
        self.base.model.num_hidden_layers + decoder
    }

    /// Degrees of all axes.
    fn fill(&mut self) {
        let (ranks, model, global) = (self.base.parallel.ranks, self.base.model.clone(), self.global_batch);
        // The engine runs these axes on CPUs and not yet the others.
        let priced = self.base.hardware.device == DeviceKind::Cuda;
        let experts = if model.sparse_blocks() > 0 { model.experts.as_ref().map_or(1, |e| e.num_experts) } else { 1 };
        for tensor in divisors(ranks, self.per_node) {
            if !model.num_attention_heads.is_multiple_of(tensor) || !model.num_key_value_heads.is_multiple_of(tensor) {
                self.refuse("tensor does not divide the heads");
                continue;
            }
            for pipeline in divisors(ranks / tensor, self.blocks().max(1)) {
                if !self.blocks().is_multiple_of(pipeline) {
                    self.refuse("pipeline does not divide the blocks");
                    continue;
                }
                for context in divisors(ranks / tensor / pipeline, if priced { MOST_CONTEXT } else { 1 }) {
                    if !self.base.train.seq_len.is_multiple_of(2 * context) && context > 1 {
                        self.refuse("context does not halve and divide the sequence");
                        continue;
                    }
                    let data = ranks / tensor / pipeline / context;
                    if !global.is_multiple_of(data) {
                        self.misfits.insert(data);
                        self.refuse("the global batch is not a multiple of the data-parallel ranks");
                        continue;
                    }
                    for expert in divisors(experts, if priced { data * context } else { 1 }) {
                        if !(data * context).is_multiple_of(expert) {
                            self.refuse("expert does not divide the ranks of a stage");
                            continue;
                        }
                        self.inner_degrees(Degrees { tensor, pipeline, context, expert, ..Degrees::default() }, data);
                    }
                }
            }
        }
    }

    /// What can be varied inside of degrees: how tensor ranks share tokens and experts, the schedule, and where stages lie.
    fn inner_degrees(&mut self, degrees: Degrees, data: usize) {
        let Degrees { tensor, pipeline, expert, .. } = degrees;
        let crosses = pipeline > 1 && self.base.parallel.ranks > self.per_node;
        let mut placements = vec![Placement::DataInside];
        placements.extend((crosses && self.framework.stages_inside).then_some(Placement::PipelineInside));
        let mut schedules = vec![PipelineSchedule::OneFOneB];
        let is_here = self.base.hardware.device == DeviceKind::Cpu;
        schedules.extend((pipeline > 1 && (is_here || self.framework.zero_bubble)).then_some(PipelineSchedule::ZbH1));
        let both = |other: usize| if other > 1 { vec![other, 1] } else { vec![1] };
        for sequence in both(tensor) {
            for expert_tensor in if expert > 1 { both(tensor) } else { vec![1] } {
                for schedule in &schedules {
                    for placement in &placements {
                        let degrees = Degrees { sequence, expert_tensor, pipeline_schedule: *schedule, ..degrees };
                        self.strategies(degrees, *placement, data);
                    }
                }
            }
        }
    }

    /// Strategies of one set of degrees, with their shard groups.
    fn strategies(&mut self, degrees: Degrees, placement: Placement, data: usize) {
        let (ranks, per_node, shared) = (self.base.parallel.ranks, self.per_node, data * degrees.context);
        let mut strategies = vec![(Strategy::Ddp, ranks)];
        if shared == 1 && degrees.pipeline == 1 {
            // Nothing is shared: they differ from ddp in what they can offload.
            strategies.extend([Strategy::Zero2, Strategy::Fsdp].map(|one| (one, ranks)));
        }
        if shared > 1 {
            strategies.push((Strategy::Zero1, ranks));
            // A pipeline would gather weights and scatter gradients for every micro-batch, unless it keeps them whole.
            if degrees.pipeline > 1 && self.framework.memory.gathered.stages {
                strategies.push((Strategy::Fsdp, ranks));
            }
            if degrees.pipeline == 1 {
                strategies.extend([Strategy::Zero2, Strategy::Fsdp, Strategy::FsdpGradOp].map(|one| (one, ranks)));
                // The ranks of a sequence are in one group, so groups keep to a node where sequences do.
                let is_in_node = per_node.is_multiple_of(degrees.context);
                if shared > per_node && shared.is_multiple_of(per_node) && per_node > 1 && is_in_node {
                    let groups = SHARD_NODES.map(|nodes| degrees.shard_in_node(nodes * per_node, data));
                    let mut groups: Vec<usize> = groups.into_iter().filter(|shard| *shard < data).collect();
                    groups.dedup();
                    strategies.extend(groups.into_iter().map(|shard| (Strategy::Hsdp, shard)));
                }
            }
        }
        // Nor is one recommended that the software has not.
        strategies.retain(|(strategy, _)| software::no_such_pair(&self.framework, *strategy).is_none());
        for (strategy, shard) in strategies {
            let way = Way {
                degrees,
                placement,
                strategy,
                shard,
                micro: 1,
                accumulation: 1,
                policy: 0,
                tiers: [MemoryTier::Device; 3],
            };
            self.batches(way, self.global_batch / data);
        }
    }

    /// Micro-batches and chunks of a way of which a data-parallel rank has so many sequences.
    fn batches(&mut self, way: Way, sequences: usize) {
        let pipeline = way.degrees.pipeline;
        let blocks = self.blocks() / pipeline;
        let is_plain = way.degrees.pipeline_schedule == PipelineSchedule::OneFOneB;
        for micro in divisors(sequences, MOST_MICRO) {
            let accumulation = sequences / micro;
            let interleaves = pipeline > 1 && is_plain && accumulation.is_multiple_of(pipeline);
            for virtual_stages in divisors(blocks, if interleaves { MOST_CHUNKS } else { 1 }) {
                let cuts = self.base.parallel.pipeline_split.len();
                if cuts > 0 && cuts != pipeline * virtual_stages {
                    self.refuse("parallel.pipeline_split cuts the model into another number of parts");
                    continue;
                }
                let degrees = Degrees { virtual_stages, ..way.degrees };
                self.memory(Way { degrees, micro, accumulation, ..way }, blocks / virtual_stages);
            }
        }
    }

    /// What is recomputed and what lives elsewhere, of a way with so many neighbouring blocks on a rank.
    fn memory(&mut self, way: Way, blocks: usize) {
        for policy in 0..self.policies.len() {
            if matches!(self.policies[policy], Checkpointing::Every(group) if !blocks.is_multiple_of(group)) {
                continue;
            }
            let is_shared = self.base.parallel.ranks > way.degrees.tensor * way.degrees.pipeline;
            if way.strategy == Strategy::Ddp || is_shared {
                self.ways.push(Way { policy, ..way });
            }
            for home in self.tiers.clone() {
                let tiers = self.offloads(&way, home, policy);
                self.ways.extend(tiers.into_iter().map(|tiers| Way { policy, tiers, ..way }));
            }
        }
    }

    /// MemoryTiers of optimizer state, weights and kept activations that are tried, of which one is `home`.
    fn offloads(&self, way: &Way, home: MemoryTier, policy: usize) -> Vec<[MemoryTier; 3]> {
        const HERE: MemoryTier = MemoryTier::Device;
        let mut list = Vec::new();
        let gathers = way.strategy == Strategy::Fsdp;
        // Whole gradients would go to the host after every micro-batch.
        if !self.base.lora.on() && (gathers || way.strategy == Strategy::Zero2) {
            list.push([home, HERE, HERE]);
        }
        if gathers {
            list.push([home, home, HERE]);
        }
        // What forward keeps travels twice a step: little of it where each block keeps its input alone.
        if home == MemoryTier::Host && self.policies[policy] == Checkpointing::Full {
            list.push([HERE, HERE, home]);
            if gathers {
                list.push([home, home, home]);
            }
        }
        list
    }

    /// A way as a cell.
    pub fn cell(&self, way: &Way) -> Cell {
        let mut cell = self.base.clone();
        (cell.parallel.strategy, cell.parallel.degrees, cell.parallel.shard) = (way.strategy, way.degrees, way.shard);
        (cell.train.micro_batch, cell.train.accumulation) = (way.micro, way.accumulation);
        cell.memory.checkpointing = self.policies[way.policy].clone();
        [cell.memory.offload_optimizer, cell.memory.offload_parameters, cell.memory.offload_activations] = way.tiers;
        let mut priced = cell.priced.take().map(|priced| *priced).unwrap_or_default();
        priced.placement = way.placement;
        if priced.parked > 1 {
            // zero++ is a strategy with its own traffic, and ways have others.
            priced = Priced { parked: 1, gather_wire: None, reduce_wire: None, ..priced };
        }
        cell.priced = (priced != Priced::default()).then(|| Box::new(priced));
        cell
    }

    /// A way as `--set` takes it.
    pub fn settings(&self, way: &Way) -> OrderedMap<String> {
        let place = |home: MemoryTier| match home {
            MemoryTier::Device => "none",
            MemoryTier::Host => "host",
            MemoryTier::Disk => "disk",
        };
        let degrees = &way.degrees;
        let mut settings = OrderedMap::new();
        if let Some(software) = &self.base.hardware.software {
            settings.insert("hardware.software", software.clone());
        }
        let strategy = match way.strategy {
            Strategy::Fsdp => software::full_shard(&self.framework),
            other => other,
        };
        settings.insert("parallel.strategy", strategy.name().to_string());
        if way.strategy.is_hybrid() {
            settings.insert("parallel.shard", way.shard.to_string());
        }
        for (key, count) in [
            ("parallel.tensor", degrees.tensor),
            ("parallel.sequence", degrees.sequence),
            ("parallel.pipeline", degrees.pipeline),
            ("parallel.virtual_stages", degrees.virtual_stages),
            ("parallel.context", degrees.context),
            ("parallel.expert", degrees.expert),
            ("parallel.expert_tensor", degrees.expert_tensor),
            ("train.micro_batch", way.micro),
            ("train.accumulation", way.accumulation),
        ] {
            settings.insert(key, count.to_string());
        }
        settings.insert("parallel.pipeline_schedule", degrees.pipeline_schedule.name().to_string());
        settings.insert("parallel.placement", way.placement.name().to_string());
        settings.insert("memory.checkpointing", written(&self.policies[way.policy]));
        let keys = ["memory.offload_optimizer", "memory.offload_parameters", "memory.offload_activations"];
        for (key, home) in keys.into_iter().zip(way.tiers) {
            settings.insert(key, place(home).to_string());
        }
        settings
    }
}

/// What backward recomputes, as it is tried: the three plain policies, groups of blocks, and the cell's own where it is another.
fn policies(cell: &Cell) -> Vec<Checkpointing> {
    if cell.priced.as_ref().is_some_and(|priced| priced.recompute.is_some()) {
        // memory.recompute stands in its place.
        return vec![cell.memory.checkpointing.clone()];
    }
    let mut list = vec![Checkpointing::None, Checkpointing::Selective, Checkpointing::Full];
    if cell.hardware.device == DeviceKind::Cuda {
        list.extend(GROUPS.map(Checkpointing::Every));
    }
    if !list.contains(&cell.memory.checkpointing) {
        list.push(cell.memory.checkpointing.clone());
    }
    list
}

/// A policy as a configuration has it.
fn written(policy: &Checkpointing) -> String {
    match policy {
        Checkpointing::Every(group) => format!("{{ every = {group} }}"),
        other => match serde_json::to_value(other) {
            Ok(serde_json::Value::String(word)) => word,
            // A list of tensors is written alike.
            Ok(list) => list.get("keep").unwrap_or(&list).to_string(),
            Err(_) => "none".into(),
        },
    }
}

/// Divisors of a number, ascending, up to a limit.
pub fn divisors(of: usize, most: usize) -> Vec<usize> {
    (1..=of.min(most)).filter(|d| of.is_multiple_of(*d)).collect()
}
