//! Recording and compiling.

use std::fmt::Write;
use std::ops::Range;
use std::rc::Rc;

use super::Pool;
use super::assign::{Lifetime, assign};
use crate::error::{Code, Error, Result};
use crate::gpu::{Binding, Buffer, Dispatch, Gpu};
use crate::kernels::{Kernel, MAX_WORKGROUPS};

/// A handle to an intermediate result `[rows, columns]` of f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value {
    id: usize,
    /// Rows, one per token.
    pub rows: u32,
    /// Elements of a row.
    pub columns: u32,
}

impl Value {
    fn bytes(self) -> u64 {
        u64::from(self.rows) * u64::from(self.columns) * 4
    }
}

/// What an operation binds.
#[derive(Clone, Debug)]
pub enum Operand {
    /// An intermediate result.
    Value(Value),
    /// An intermediate result from element `.1` on, so that shards can write one value.
    Tail(Value, u32),
    /// A part of a buffer that outlives the plan, in bytes.
    Buffer(Rc<Buffer>, Range<u64>),
}

impl Operand {
    /// The whole of a buffer that outlives the plan.
    pub fn whole(buffer: &Rc<Buffer>) -> Self {
        Operand::Buffer(buffer.clone(), 0..buffer.bytes())
    }

    fn value(&self) -> Option<Value> {
        match self {
            Operand::Value(value) | Operand::Tail(value, _) => Some(*value),
            Operand::Buffer(..) => None,
        }
    }

    /// What is bound of its buffer, in bytes.
    fn range(&self) -> Range<u64> {
        match self {
            Operand::Value(value) => 0..value.bytes(),
            Operand::Tail(value, from) => u64::from(*from) * 4..value.bytes(),
            Operand::Buffer(_, range) => range.clone(),
        }
    }
}

impl From<Value> for Operand {
    fn from(value: Value) -> Self {
        Operand::Value(value)
    }
}

struct Op {
    kernel: Box<dyn Kernel>,
    operands: Vec<Operand>,
}

/// Records operations in program order.
pub struct PlanBuilder {
    gpu: Rc<Gpu>,
    rows: u32,
    fused: bool,
    labels: Vec<&'static str>,
    values: Vec<Value>,
    kept: Vec<Value>,
    taps: Option<Vec<Value>>,
    ops: Vec<Op>,
}

impl PlanBuilder {
    /// A plan over `rows` tokens at once. With `fused`, layers record fewer and fatter kernels where they
    /// can; without, their plain twins.
    pub fn new(gpu: &Rc<Gpu>, rows: u32, fused: bool) -> Self {
        Self {
            gpu: gpu.clone(),
            rows,
            fused,
            labels: Vec::new(),
            values: Vec::new(),
            kept: Vec::new(),
            taps: None,
            ops: Vec::new(),
        }
    }

    /// Keeps the values that [`PlanBuilder::tap`] marks, for tests that look inside.
    pub fn with_taps(mut self) -> Self {
        self.taps = Some(Vec::new());
        self
    }

    /// The device that the plan is for.
    pub fn gpu(&self) -> &Rc<Gpu> {
        &self.gpu
    }

    /// Tokens that the plan works on at once.
    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// Whether layers should record the fused kernels of a single token over values of `rows` rows.
    pub fn fuses(&self, rows: u32) -> bool {
        self.fused && rows == 1
    }

    /// The smallest subgroup, where kernels may use subgroups.
    pub fn subgroup_min(&self) -> Option<u32> {
        self.gpu.capabilities().subgroup_min
    }

    /// A new value `[rows, columns]`; some operation must write it.
    pub fn value(&mut self, label: &'static str, rows: u32, columns: u32) -> Value {
        let value = Value { id: self.values.len(), rows, columns };
        self.values.push(value);
        self.labels.push(label);
        value
    }

    /// Records a kernel over `operands`, which are in the order of its bindings.
    pub fn op(&mut self, kernel: impl Kernel + 'static, operands: Vec<Operand>) {
        debug_assert_eq!(kernel.bindings().len(), operands.len(), "{kernel:?}");
        self.ops.push(Op { kernel: Box::new(kernel), operands });
    }

    /// Keeps `value` readable after the plan has run.
    pub fn keep(&mut self, value: Value) {
        self.kept.push(value);
    }

    /// Marks `value` as one that tests look at.
    pub fn tap(&mut self, value: Value) {
        if let Some(taps) = &mut self.taps {
            taps.push(value);
            self.kept.push(value);
        }
    }

    /// When each value lives; kept values live to the end.
    fn lifetimes(&self) -> Vec<Lifetime> {
        let mut lifetimes: Vec<Lifetime> = self
            .values
            .iter()
            .map(|value| Lifetime { bytes: value.bytes(), first: usize::MAX, last: 0 })
            .collect();
        for (index, op) in self.ops.iter().enumerate() {
            for value in op.operands.iter().filter_map(Operand::value) {
                let lifetime = &mut lifetimes[value.id];
                lifetime.first = lifetime.first.min(index);
                lifetime.last = lifetime.last.max(index);
            }
        }
        for value in &self.kept {
            lifetimes[value.id].last = self.ops.len();
        }
        lifetimes
    }

    fn dump(&self, slots: &[usize], sizes: &[u64]) -> String {
        let mut text = String::new();
        let shown = |operand: &Operand| match operand {
            Operand::Value(value) => format!("{}@{}", self.labels[value.id], slots[value.id]),
            Operand::Tail(value, from) => format!("{}@{}+{from}", self.labels[value.id], slots[value.id]),
            Operand::Buffer(_, range) => format!("[{} B]", range.end - range.start),
        };
        for op in &self.ops {
            let (mut reads, mut writes) = (Vec::new(), Vec::new());
            for (binding, operand) in op.kernel.bindings().iter().zip(&op.operands) {
                if *binding == Binding::Write { &mut writes } else { &mut reads }.push(shown(operand));
            }
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{:?} ({}) -> {}", op.kernel, reads.join(", "), writes.join(", "));
        }
        let total: u64 = sizes.iter().sum();
        let _ = writeln!(text, "{} dispatches, {} buffers, {total} bytes", self.ops.len(), sizes.len());
        text
    }

    /// The sizes of the buffers that the plan needs, largest first.
    ///
    /// Fails with [`Code::OutOfMemory`] where the device cannot bind or dispatch what the plan needs.
    pub(super) fn demand(&self) -> Result<Vec<u64>> {
        for op in &self.ops {
            for operand in &op.operands {
                self.check_binding(op.kernel.as_ref(), operand.range())?;
            }
            check_workgroups(op.kernel.as_ref(), op.kernel.workgroups())?;
        }
        Ok(assign(&self.lifetimes()).1)
    }

    /// Assigns buffers and makes pipelines and bind groups.
    ///
    /// Fails with [`Code::OutOfMemory`] where the device cannot bind or dispatch what the plan needs.
    pub fn compile(self) -> Result<Plan> {
        self.compile_in(&Pool::default())
    }

    /// As [`PlanBuilder::compile`], with buffers of `pool`, as far as it has them.
    pub fn compile_in(self, pool: &Pool) -> Result<Plan> {
        self.demand()?;
        let (slots, sizes) = assign(&self.lifetimes());
        let buffers = pool.buffers(&self.gpu, &sizes)?;
        let mut dispatches = Vec::with_capacity(self.ops.len());
        for op in &self.ops {
            let bound: Vec<_> = op
                .operands
                .iter()
                .map(|operand| {
                    let buffer = match operand {
                        Operand::Value(value) | Operand::Tail(value, _) => &buffers[slots[value.id]],
                        Operand::Buffer(buffer, _) => buffer,
                    };
                    (&**buffer, operand.range())
                })
                .collect();
            let pipeline = self.gpu.pipeline(op.kernel.name(), &op.kernel.source(), &op.kernel.bindings());
            dispatches.push(self.gpu.dispatch(pipeline, &bound, op.kernel.workgroups()));
        }
        let dump = self.dump(&slots, &sizes);
        let outer = self.ops.into_iter().flat_map(|op| op.operands).filter_map(|operand| match operand {
            Operand::Buffer(buffer, _) => Some(buffer),
            _ => None,
        });
        Ok(Plan {
            rows: self.rows,
            dispatches,
            _outer: outer.collect(),
            slots,
            buffers,
            taps: self.taps.unwrap_or_default(),
            dump,
        })
    }

    fn check_binding(&self, kernel: &dyn Kernel, range: Range<u64>) -> Result<()> {
        let bytes = range.end - range.start;
        let limit = self.gpu.capabilities().max_binding_bytes;
        if bytes <= limit {
            return Ok(());
        }
        Err(Error::new(Code::OutOfMemory, format!("plan the kernel {}", kernel.name()))
            .expected(format!("bindings of at most {limit} bytes, the limit of this device"))
            .got(format!("{bytes} bytes"))
            .remedy("Choose a smaller context or a smaller model."))
    }
}

fn check_workgroups(kernel: &dyn Kernel, workgroups: [u32; 3]) -> Result<()> {
    if workgroups.iter().all(|&count| count <= MAX_WORKGROUPS) {
        return Ok(());
    }
    Err(Error::new(Code::OutOfMemory, format!("plan the kernel {}", kernel.name()))
        .expected(format!("at most {MAX_WORKGROUPS} workgroups in a dimension"))
        .got(format!("{workgroups:?}"))
        .remedy("Choose a smaller model."))
}

/// Operations with everything bound, replayed for every step.
#[derive(Debug)]
pub struct Plan {
    rows: u32,
    dispatches: Vec<Dispatch>,
    /// Buffers of others that the dispatches bind: they must not go before the plan does.
    _outer: Vec<Rc<Buffer>>,
    slots: Vec<usize>,
    buffers: Vec<Rc<Buffer>>,
    taps: Vec<Value>,
    dump: String,
}

impl Plan {
    /// Tokens that the plan works on at once.
    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// The dispatches in order.
    pub fn dispatches(&self) -> &[Dispatch] {
        &self.dispatches
    }

    /// The buffer of a value that was kept.
    pub fn buffer(&self, value: Value) -> &Rc<Buffer> {
        &self.buffers[self.slots[value.id]]
    }

    /// The values that were tapped, in order.
    pub fn taps(&self) -> &[Value] {
        &self.taps
    }

    /// One line per operation: kernel, reads, writes with the buffer that each value lives in.
    pub fn dump(&self) -> &str {
        &self.dump
    }
}
