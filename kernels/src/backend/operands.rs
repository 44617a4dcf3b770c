//! The operands of every operation, in one table: their names, element types, lengths, and whether they are read or written. All
//! devices check a call against it ([`check`]) before they compute.

use crate::memory::view::Extent;
use crate::op::*;
use crate::{DType, KernelError, ReduceOp, Result, View, ViewMut};

/// What an operation does with an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
    /// It is read and written.
    Update,
}

/// The element types that an operand may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Elements {
    Floats(DType),
    /// Numbers of any type in which the device computes.
    AnyFloats,
    /// Indices, codes or scales of this type, whatever the device computes in.
    Exactly(DType),
}

impl Elements {
    /// The type, where it is one.
    pub(crate) fn dtype(self) -> Option<DType> {
        match self {
            Elements::Floats(dtype) | Elements::Exactly(dtype) => Some(dtype),
            Elements::AnyFloats => None,
        }
    }
}

/// One operand. Elements are row-major and contiguous; of a longer buffer the front is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operand {
    pub name: &'static str,
    /// Reads stand before writes in a list of operands.
    pub access: Access,
    pub elements: Elements,
    pub len: usize,
    /// The buffer must have `len` elements and no more.
    pub is_exact: bool,
    /// The caller may leave it out.
    pub is_optional: bool,
}

/// Most operands that an operation has, but for the sources of a reduction.
const MOST: usize = 10;

/// The operands of an operation: those that are read, then those that are written.
#[derive(Clone, Copy, Debug)]
pub struct Operands {
    all: [Operand; MOST],
    reads: usize,
    count: usize,
}

impl Operands {
    const EMPTY: Operands = {
        let (elements, access) = (Elements::AnyFloats, Access::Read);
        let none = Operand { name: "", access, elements, len: 0, is_exact: false, is_optional: false };
        Operands { all: [none; MOST], reads: 0, count: 0 }
    };

    fn with(&mut self, access: Access, name: &'static str, elements: Elements, len: usize) -> &mut Operands {
        self.all[self.count] = Operand { name, access, elements, len, is_exact: false, is_optional: false };
        self.count += 1;
        self.reads += usize::from(access == Access::Read);
        self
    }

    fn read(&mut self, name: &'static str, dtype: DType, len: usize) -> &mut Operands {
        self.with(Access::Read, name, Elements::Floats(dtype), len)
    }

    fn read_exactly(&mut self, name: &'static str, dtype: DType, len: usize) -> &mut Operands {
        self.with(Access::Read, name, Elements::Exactly(dtype), len)
    }

    fn read_if(&mut self, there: bool, name: &'static str, dtype: DType, len: usize) -> &mut Operands {
        if there { self.read(name, dtype, len) } else { self }
    }

    fn optional(&mut self) -> &mut Operands {
        self.all[self.count - 1].is_optional = true;
        self
    }

    fn write(&mut self, name: &'static str, dtype: DType, len: usize) -> &mut Operands {
        self.with(Access::Write, name, Elements::Floats(dtype), len)
    }

    fn write_exactly(&mut self, name: &'static str, dtype: DType, len: usize) -> &mut Operands {
        self.with(Access::Write, name, Elements::Exactly(dtype), len)
    }

    fn update(&mut self, name: &'static str, dtype: DType, len: usize) -> &mut Operands {
        self.with(Access::Update, name, Elements::Floats(dtype), len)
    }

    fn update_any(&mut self, name: &'static str, len: usize) -> &mut Operands {
        self.with(Access::Update, name, Elements::AnyFloats, len)
    }

    /// A result that is added to what is there, or overwrites it.
    fn result(&mut self, adds: bool, name: &'static str, dtype: DType, len: usize) -> &mut Operands {
        if adds { self.update(name, dtype, len) } else { self.write(name, dtype, len) }
    }

    /// The operand that was added last is as long as the operation says.
    fn last_exact(&mut self) -> &mut Operands {
        self.all[self.count - 1].is_exact = true;
        self
    }

    /// Buffers are as long as the operation says.
    fn exact(&mut self) -> &mut Operands {
        self.all[..self.count].iter_mut().for_each(|operand| operand.is_exact = true);
        self
    }

    pub fn reads(&self) -> &[Operand] {
        &self.all[..self.reads]
    }

    pub fn writes(&self) -> &[Operand] {
        &self.all[self.reads..self.count]
    }

    /// Looks at each operand with what is given for it, until an error. Every call of a dry run comes here, so it is two plain loops,
    /// not a chain of iterators.
    fn try_each(
        &self,
        reads: &[View<'_>],
        writes: &[ViewMut<'_>],
        look: impl Fn(&Operand, &Extent) -> Result<()>,
    ) -> Result<()> {
        for (operand, view) in self.reads().iter().zip(reads) {
            look(operand, view)?;
        }
        for (operand, view) in self.writes().iter().zip(writes) {
            look(operand, view)?;
        }
        Ok(())
    }
}

impl Op {
    /// The table. Of a reduction `source` stands for all of its sources.
    pub fn operands(&self) -> Operands {
        let mut all = Operands::EMPTY;
        let list = &mut all;
        match *self {
            Op::Gemm(g) => {
                let list = list.read("a", g.a, spread(g.stored_a())).read("b", g.b, elements(&[g.k, g.n]));
                list.result(g.accumulate, "c", g.c, spread(g.stored_c()))
            }
            // What B is packed into is the device's own: Kernels::prepacked_len says how long it is.
            Op::Prepack(g) => list.read("b", g.b, elements(&[g.k, g.n])).write_exactly("to", DType::F32, 0),
            Op::GemmPrepacked(g) => {
                let list = list.read("a", g.a, elements(&[g.m, g.k])).read_exactly("b", DType::F32, 0);
                list.result(g.accumulate, "c", g.c, elements(&[g.m, g.n]))
            }
            Op::RmsNorm(n) => {
                let all = elements(&[n.rows, n.cols]);
                let list = list.read("x", n.dtype, all).read("w", n.dtype, n.cols);
                list.write("y", n.dtype, all).write("rstd", n.dtype.accumulator(), n.rows)
            }
            Op::RmsNormBackward(n) => {
                let all = elements(&[n.rows, n.cols]);
                let list = list.read("x", n.dtype, all).read("w", n.dtype, n.cols);
                let list = list.read("rstd", n.dtype.accumulator(), n.rows).read("dy", n.dtype, all);
                let list = list.update("dx", n.dtype, all);
                match n.gradient {
                    Some(dtype) => list.update("dw", dtype, n.cols),
                    None => list,
                }
            }
            Op::LayerNorm(n) => {
                let all = elements(&[n.rows, n.cols]);
                let list = list.read("x", n.dtype, all).read("w", n.dtype, n.cols);
                let list = list.read_if(n.bias, "b", n.dtype, n.cols).write("y", n.dtype, all);
                list.write("statistics", n.dtype.accumulator(), elements(&[2, n.rows]))
            }
            Op::LayerNormBackward(n) => {
                let all = elements(&[n.rows, n.cols]);
                let list = list.read("x", n.dtype, all).read("w", n.dtype, n.cols);
                let list = list.read("statistics", n.dtype.accumulator(), elements(&[2, n.rows]));
                let list = list.read("dy", n.dtype, all).update("dx", n.dtype, all);
                match n.gradient {
                    Some(dtype) if n.bias => list.update("dw", dtype, n.cols).update("db", dtype, n.cols),
                    Some(dtype) => list.update("dw", dtype, n.cols),
                    None => list,
                }
            }
            Op::BiasAdd(a) => {
                let list = list.read("table", a.dtype, elements(&[a.period.min(a.rows), a.cols]));
                list.update("x", a.dtype, elements(&[a.rows, a.cols]))
            }
            Op::BiasAddBackward(a) => {
                let list = list.read("dy", a.dtype, elements(&[a.rows, a.cols]));
                list.update_any("dtable", elements(&[a.period.min(a.rows), a.cols]))
            }
            Op::ScaleColumns(m) => list.read("w", m.dtype, m.cols).update("x", m.dtype, elements(&[m.rows, m.cols])),
            Op::ScaleColumnsBackward(m) => {
                let all = elements(&[m.rows, m.cols]);
                list.read("x", m.dtype, all).read("dy", m.dtype, all).update_any("dw", m.cols)
            }
            Op::RowInvNorm(n) => {
                let list = list.read("x", n.dtype, elements(&[n.rows, n.cols]));
                list.write("s", n.dtype.accumulator(), n.rows)
            }
            Op::Rope(r) => {
                let (table, tables) = (elements(&[r.seq.min(r.rows), r.head_dim / 2]), r.dtype.accumulator());
                let list = list.read("cos", tables, table).read("sin", tables, table);
                list.update("x", r.dtype, elements(&[r.rows, r.heads, r.head_dim]))
            }
            Op::Attention(a) => {
                let list = list.queries_keys_values(&a).documents(&a);
                list.write("out", a.dtype, a.queries()).write("lse", a.dtype.accumulator(), a.rows())
            }
            Op::AttentionBackward(a) => {
                let list = list.queries_keys_values(&a).read("out", a.dtype, a.queries());
                let list = list.read("lse", a.dtype.accumulator(), a.rows()).read("dout", a.dtype, a.queries());
                list.documents(&a).gradients(&a)
            }
            Op::NaiveAttention(a) => {
                let list = list.queries_keys_values(&a).documents(&a).write("out", a.dtype, a.queries());
                list.write("probs", a.dtype, elements(&[a.rows(), a.kv_seq]))
            }
            // What a token does not see has the probability 0, so no documents are needed.
            Op::NaiveAttentionBackward(a) => {
                let list = list.queries_keys_values(&a).read("probs", a.dtype, elements(&[a.rows(), a.kv_seq]));
                list.read("dout", a.dtype, a.queries()).gradients(&a)
            }
            Op::GatedActivation(s) => {
                list.read("gate", s.dtype, s.len).read("up", s.dtype, s.len).write("act", s.dtype, s.len)
            }
            Op::GatedActivationBackward(s) => {
                let list = list.read("gate", s.dtype, s.len).read("up", s.dtype, s.len).read("dact", s.dtype, s.len);
                list.write("dgate", s.dtype, s.len).write("dup", s.dtype, s.len)
            }
            Op::PointwiseActivation(a) => list.read("x", a.dtype, a.len).write("y", a.dtype, a.len),
            Op::PointwiseActivationBackward(a) => {
                list.read("x", a.dtype, a.len).read("dy", a.dtype, a.len).write("dx", a.dtype, a.len)
            }
            Op::Embedding(e) => {
                let list = list.read_exactly("ids", DType::U32, e.rows);
                let list = list.read("table", e.dtype, elements(&[e.vocab.len, e.cols]));
                list.write("out", e.dtype, elements(&[e.rows, e.cols]))
            }
            Op::EmbeddingBackward(e) => {
                let list = list.read_exactly("ids", DType::U32, e.rows);
                let list = list.read("dy", e.dtype, elements(&[e.rows, e.cols]));
                list.update_any("dtable", elements(&[e.vocab.len, e.cols]))
            }
            Op::CrossEntropy(c) => {
                let list = list.read_exactly("targets", DType::U32, c.rows);
                list.update("logits", c.dtype, elements(&[c.rows, c.row_pitch()])).write("losses", c.dtype, c.rows)
            }
            Op::VocabParallelStats(l) => {
                let list = list.read_exactly("targets", DType::U32, l.rows);
                let list = list.read("logits", l.dtype, elements(&[l.rows, l.row_pitch()]));
                list.write("statistics", l.dtype.accumulator(), elements(&[l.rows, VocabParallelStats::NUMBERS]))
            }
            Op::VocabParallelCrossEntropy(VocabParallelCrossEntropy { part: l, ranks, .. }) => {
                let list = list.read_exactly("targets", DType::U32, l.rows);
                let numbers = elements(&[ranks, l.rows, VocabParallelStats::NUMBERS]);
                let list = list.read("statistics", l.dtype.accumulator(), numbers);
                let list = list.update("logits", l.dtype, elements(&[l.rows, l.row_pitch()]));
                list.write("losses", l.dtype, l.rows)
            }
            Op::AdamW(a) => {
                let list = list.read("g", a.gradients, a.len).update("p", a.parameters, a.len);
                let list = list.update("m", a.moments, a.len).update("v", a.moments, a.len);
                match a.copy {
                    Some(dtype) => list.write("copy", dtype, a.len),
                    None => list,
                }
            }
            Op::Dropout(d) => list.read("x", d.dtype, d.len).write("y", d.dtype, d.len),
            Op::Normal(n) => list.write("dst", n.dtype, n.len),
            Op::Fill(m, _) => list.write("dst", m.to, m.len).exact(),
            Op::Scale(m, _) => list.update("dst", m.to, m.len).exact(),
            Op::Cast(m) => list.read("src", m.from, m.len).write("dst", m.to, m.len).exact(),
            Op::Accumulate(m, _) => list.read("src", m.from, m.len).update("dst", m.to, m.len).exact(),
            Op::Add(m) => list.read("a", m.to, m.len).read("b", m.to, m.len).write("dst", m.to, m.len).exact(),
            Op::Sum(m) | Op::SumSquares(m) => list.read("x", m.from, m.len).exact(),
            Op::Reduce(r) => {
                let list = list.with(Access::Read, "source", Elements::AnyFloats, r.len);
                let access = if r.accumulate { Access::Update } else { Access::Write };
                list.with(access, "dst", Elements::Exactly(r.to), r.len).exact()
            }
            Op::Quantize(q) => {
                let list = list.read("src", q.dtype, q.len).last_exact();
                let list = list.write_exactly("values", DType::I8, q.by.values_len(q.len));
                list.write_exactly("scales", DType::F32, q.by.scales_len(q.len))
            }
            Op::Dequantize(q) => {
                let list = list.read_exactly("values", DType::I8, q.by.values_len(q.len));
                let list = list.read_exactly("scales", DType::F32, q.by.scales_len(q.len));
                list.result(q.accumulate, "dst", q.dtype, q.len).last_exact()
            }
            Op::Pack(p) => {
                let list = list.read("src", p.dtype, p.len).last_exact();
                let list = list.write_exactly("codes", DType::I8, p.matrix.codes_len(p.len));
                list.write_exactly("scales", DType::F32, p.len.div_ceil(p.matrix.block().max(1)))
            }
            Op::Unpack(u) => {
                let bytes = if is_addressable(&u) { u.matrix.fields().bytes } else { usize::MAX };
                let list = list.read_exactly("record", DType::I8, bytes);
                list.write("dst", u.dtype, elements(&[u.matrix.rows, u.matrix.cols]))
            }
            Op::Route(r) => {
                let list = list.read("logits", r.dtype, elements(&[r.rows, r.experts]));
                let list = list.write("weights", r.dtype.accumulator(), r.slots());
                list.write_exactly("indices", DType::U32, r.indices_len())
            }
            Op::RouteBackward(r) => {
                let all = elements(&[r.rows, r.experts]);
                let list = list.read("logits", r.dtype, all).read_exactly("indices", DType::U32, r.indices_len());
                list.read("dweights", r.dtype.accumulator(), r.slots()).write("dlogits", r.dtype, all)
            }
            Op::Dispatch(s) => {
                let list = list.read_exactly("indices", DType::U32, s.indices_len());
                let list = list.read("x", s.dtype, elements(&[s.rows, s.cols]));
                list.write("y", s.dtype, elements(&[s.rows, s.top, s.cols]))
            }
            Op::Combine(Combine { slots: s, weighted, accumulate }) => {
                let list = list.read_exactly("indices", DType::U32, s.indices_len());
                let list = list.read("x", s.dtype, elements(&[s.rows, s.top, s.cols]));
                let list = list.read_if(weighted, "weights", s.dtype.accumulator(), s.slots());
                list.result(accumulate, "y", s.dtype, elements(&[s.rows, s.cols]))
            }
            Op::RouterWeightBackward(s) => {
                let all = elements(&[s.rows, s.top, s.cols]);
                let list = list.read_exactly("indices", DType::U32, s.indices_len());
                let list = list.read("weights", s.dtype.accumulator(), s.slots()).update("x", s.dtype, all);
                list.update("dx", s.dtype, all).write("dweights", s.dtype.accumulator(), s.slots())
            }
            Op::GroupedGemm(g) => {
                let [a, b, c] = g.sizes();
                let list = list.read_exactly("offsets", DType::U32, g.groups.saturating_add(1));
                list.read("a", g.a, a).read("b", g.b, b).result(g.accumulate, "c", g.c, c)
            }
        };
        all
    }
}

impl Operands {
    fn queries_keys_values(&mut self, a: &Attention) -> &mut Operands {
        self.read("q", a.dtype, a.queries()).read("k", a.dtype, a.keys()).read("v", a.dtype, a.keys())
    }

    /// `starts [batch, seq]`, where sequences hold several documents, packed one after the other, that must not see each other:
    /// for every token the place in its sequence at which its document starts, 0 for the first document and never less than for
    /// the token before. Only causal attention reads them.
    fn documents(&mut self, a: &Attention) -> &mut Operands {
        if !a.causal {
            return self;
        }
        self.read_exactly("starts", DType::U32, elements(&[a.batch, a.seq])).optional()
    }

    fn gradients(&mut self, a: &Attention) -> &mut Operands {
        let list = self.write("dq", a.dtype, a.queries());
        list.write("dk", a.dtype, a.keys()).write("dv", a.dtype, a.keys())
    }
}

/// Whether the matrix fits memory, so that sizes can be computed from its own.
fn is_addressable(op: &Unpack) -> bool {
    op.matrix.rows.checked_mul(op.matrix.cols).is_some_and(|len| len <= isize::MAX as usize / 8)
}

/// A device, as the checks of its calls see it.
#[derive(Clone, Copy)]
pub struct DeviceTypes {
    pub name: &'static str,
    /// Whether it computes in a type.
    pub computes: fn(DType) -> bool,
}

/// An error unless the device computes in the operation's types, the operation can be, and the operands are those of the table.
pub fn check(device: DeviceTypes, op: &Op, reads: &[View<'_>], writes: &[ViewMut<'_>]) -> Result<()> {
    if reads.iter().any(|view| view.is_in_file()) || writes.iter().any(|view| view.is_in_file()) {
        return Err(KernelError::InFile);
    }
    let list = op.operands();
    if let Op::Reduce(reduce) = op {
        return check_reduce(reduce, reads, writes);
    }
    let (name, unsupported) =
        (op.name(), |dtype| KernelError::Unsupported { device: device.name, op: op.name(), dtype });
    let computed = |operand: &Operand, view: &Extent| match operand.elements {
        Elements::Floats(dtype) => Some(dtype),
        Elements::AnyFloats => Some(view.dtype()),
        Elements::Exactly(_) => None,
    };
    list.try_each(reads, writes, |operand, view| match computed(operand, view) {
        Some(dtype) if !(device.computes)(dtype) => Err(unsupported(dtype)),
        _ => Ok(()),
    })?;
    if let Some(dtype) = op.quantised().filter(|dtype| !matches!(dtype, DType::F32 | DType::Bf16 | DType::F16)) {
        return Err(unsupported(dtype));
    }
    // No operand has the type of these gradients: they take the front of the logits.
    if let Op::CrossEntropy(CrossEntropy { gradient, .. })
    | Op::VocabParallelCrossEntropy(VocabParallelCrossEntropy { gradient, .. }) = op
        && !(device.computes)(*gradient)
    {
        return Err(unsupported(*gradient));
    }
    check_shape(op)?;
    let needed = list.reads().iter().filter(|operand| !operand.is_optional).count();
    if !(needed..=list.reads().len()).contains(&reads.len()) || writes.len() != list.writes().len() {
        let names = |operands: &[Operand]| operands.iter().map(|o| o.name).collect::<Vec<_>>().join(", ");
        let (inputs, outputs) = (names(list.reads()), names(list.writes()));
        let (ins, outs) = (reads.len(), writes.len());
        let reason =
            format!("it reads ({inputs}) and writes ({outputs}), but {ins} inputs and {outs} outputs are given");
        return Err(KernelError::Invalid { op: name, reason });
    }
    list.try_each(reads, writes, |operand, view| check_operand(name, operand, view))
}

/// An error unless the scratch holds what the device needs for the operation.
pub fn check_scratch(op: &Op, scratch: &ViewMut<'_>, wanted: usize) -> Result<()> {
    let given = scratch.len();
    if given < wanted {
        return Err(KernelError::Shape { op: op.name(), operand: "workspace", wanted, given });
    }
    if wanted > 0 && scratch.dtype() != DType::F32 {
        return Err(KernelError::DType { wanted: DType::F32, given: scratch.dtype() });
    }
    Ok(())
}

/// The error of a device that has no kernel for an operation.
pub fn not_run(device: DeviceTypes, op: &Op) -> KernelError {
    let first = op.operands().all[0].elements;
    let dtype = first.dtype().unwrap_or(DType::F32);
    KernelError::Unsupported { device: device.name, op: op.name(), dtype }
}

fn check_operand(op: &'static str, operand: &Operand, view: &Extent) -> Result<()> {
    if let Some(wanted) = operand.elements.dtype().filter(|wanted| *wanted != view.dtype()) {
        return Err(KernelError::DType { wanted, given: view.dtype() });
    }
    let (wanted, given) = (operand.len, view.len());
    let fits = if operand.is_exact { given == wanted } else { given >= wanted };
    if fits { Ok(()) } else { Err(KernelError::Shape { op, operand: operand.name, wanted, given }) }
}

fn check_reduce(op: &Reduce, sources: &[View<'_>], dst: &[ViewMut<'_>]) -> Result<()> {
    let invalid = |reason| Err(KernelError::Invalid { op: "reduce", reason });
    let [dst] = dst else { return invalid(format!("it has one result, {} are given", dst.len())) };
    if sources.is_empty() {
        return invalid("there is nothing to reduce: no sources".into());
    }
    let wanted = dst.dtype();
    if (op.len, op.sources, op.from, op.to) != (dst.len(), sources.len(), sources[0].dtype(), wanted) {
        let (given, len) = (sources.len(), dst.len());
        return invalid(format!("{op:?} does not go with {given} sources and a result of {len} elements of {wanted}"));
    }
    for source in sources {
        let given = source.dtype();
        if given != wanted && !(given.is_float() && wanted.is_float()) {
            return Err(KernelError::DType { wanted, given });
        }
        if source.len() != dst.len() {
            let (wanted, given) = (dst.len(), source.len());
            return Err(KernelError::Shape { op: "reduce", operand: "source", wanted, given });
        }
    }
    if op.accumulate && !(wanted.is_float() && matches!(op.op, ReduceOp::Sum | ReduceOp::Avg)) {
        return invalid(format!("{} of {wanted} cannot be accumulated; sum and avg of floats can", op.op));
    }
    Ok(())
}

/// An error for shapes and numbers that no operands can belong to.
fn check_shape(op: &Op) -> Result<()> {
    let invalid = |reason: String| Err(KernelError::Invalid { op: op.name(), reason });
    match op {
        Op::BiasAdd(a) | Op::BiasAddBackward(a) if a.period == 0 && a.rows > 0 => {
            invalid(format!("{} rows read a table of 0", a.rows))
        }
        Op::Rope(r) if !r.head_dim.is_multiple_of(2) => {
            invalid(format!("head_dim is {}, but elements are rotated in pairs: it must be even", r.head_dim))
        }
        Op::Rope(r) if r.seq == 0 && r.rows > 0 => invalid(format!("{} tokens in sequences of length 0", r.rows)),
        Op::Attention(a) | Op::AttentionBackward(a) | Op::NaiveAttention(a) | Op::NaiveAttentionBackward(a) => {
            let Attention { seq, kv_seq, heads, kv_heads, .. } = *a;
            if heads > 0 && (kv_heads == 0 || !heads.is_multiple_of(kv_heads)) {
                return invalid(format!("{heads} query heads cannot share {kv_heads} key heads evenly"));
            }
            if a.window == Some(0) {
                return invalid("a window of 0 keys leaves a query nothing to see; 1 is its own".into());
            }
            if a.causal && seq != kv_seq {
                return invalid(format!("causal attention has as many keys as queries, not {kv_seq} and {seq}"));
            }
            if (seq == 0) != (kv_seq == 0) {
                return invalid(format!("a sequence of {seq} queries cannot attend to {kv_seq} keys"));
            }
            if !a.causal && (a.window.is_some() || a.alibi.is_some()) {
                let name = if a.alibi.is_some() { "ALiBi" } else { "a window" };
                return invalid(format!("{name} needs causal attention"));
            }
            if let Some(AlibiHeads { first, heads: all }) = a.alibi
                && first.checked_add(heads).is_none_or(|end| end > all)
            {
                return invalid(format!(
                    "ALiBi has slopes for the {all} heads of the whole model, and {heads} heads from {first} on are not among them"
                ));
            }
            Ok(())
        }
        Op::Prepack(g) | Op::GemmPrepacked(g) if !g.is_dense() => {
            invalid("a product with a prepacked matrix takes rows that follow each other".into())
        }
        Op::Gemm(g) if g.stored_a()[2] < g.stored_a()[1] || g.stored_c()[2] < g.stored_c()[1] => {
            invalid("rows overlap: a pitch is smaller than the row".into())
        }
        Op::CrossEntropy(c) => check_loss(op.name(), c.vocab, c.row_pitch(), c.dtype, c.gradient),
        Op::VocabParallelStats(l) => check_loss(op.name(), l.vocab.len, l.row_pitch(), l.dtype, l.dtype),
        Op::VocabParallelCrossEntropy(VocabParallelCrossEntropy { ranks: 0, .. }) => {
            invalid("the statistics of 0 ranks make no loss; 1 rank at least has the vocabulary".into())
        }
        Op::VocabParallelCrossEntropy(l) => {
            check_loss(op.name(), l.part.vocab.len, l.part.row_pitch(), l.part.dtype, l.gradient)
        }
        Op::AdamW(a) if a.step == 0 => invalid("step counts from 1 for the first update, 0 given".into()),
        Op::AdamW(a) if a.rounding != Rounding::Nearest && !matches!(a.parameters, DType::Bf16 | DType::F16) => {
            invalid(format!("stochastic rounding to {} rounds nothing; it takes bf16 or f16", a.parameters))
        }
        Op::Dropout(d) if !(0.0..1.0).contains(&d.p) => {
            invalid(format!("p is {}, but a chance of a zero lies in [0, 1)", d.p))
        }
        Op::Quantize(q) | Op::Dequantize(q) if q.by.block == 0 => {
            invalid("a block has 0 elements, 1 at least is needed".into())
        }
        Op::Pack(p) if p.matrix.cols == 0 && p.len > 0 => {
            invalid("a matrix with rows of 0 elements has none to pack".into())
        }
        Op::Unpack(u) if !is_addressable(u) => invalid("the matrix is larger than memory".into()),
        Op::Route(Route { rows, top, experts, .. }) | Op::RouteBackward(Route { rows, top, experts, .. }) => {
            check_routing(op.name(), *rows, *top, *experts)
        }
        Op::Dispatch(s) | Op::RouterWeightBackward(s) | Op::Combine(Combine { slots: s, .. }) => {
            check_routing(op.name(), s.rows, s.top, s.experts)
        }
        _ => Ok(()),
    }
}

/// Rows of logits do not overlap, and their gradient fits where they lie.
fn check_loss(op: &'static str, columns: usize, pitch: usize, logits: DType, gradient: DType) -> Result<()> {
    let invalid = |reason| Err(KernelError::Invalid { op, reason });
    if pitch < columns {
        return invalid(format!("a pitch of {pitch} is smaller than a row of {columns} logits"));
    }
    if gradient.size() > logits.size() || !gradient.is_float() {
        return invalid(format!("a gradient of {gradient} has no room where logits of {logits} lie"));
    }
    Ok(())
}

/// Choices are counted in 32 bits, and a token does not go to one expert twice.
fn check_routing(op: &'static str, rows: usize, top: usize, experts: usize) -> Result<()> {
    let invalid = |reason| Err(KernelError::Invalid { op, reason });
    if top > experts {
        return invalid(format!("a token cannot go to {top} of {experts} experts"));
    }
    let slots = elements(&[rows, top]);
    if slots > u32::MAX as usize || experts >= u32::MAX as usize {
        return invalid(format!("{slots} choices among {experts} experts are more than 32 bits count"));
    }
    Ok(())
}
