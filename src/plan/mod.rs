//! Floor 3. Recording of operations, buffer assignment, the compiled plan and its replay.
//!
//! A model's forward records operations on [`Value`]s in program order. [`PlanBuilder::compile`] gives each
//! value a buffer from its first writing to its last reading, makes pipelines and bind groups once, and
//! leaves a [`Plan`] that is replayed for every step. [`Plan::dump`] shows it to people.

mod assign;
mod builder;
mod pool;

pub use builder::{Operand, Plan, PlanBuilder, Value};
pub use pool::Pool;
