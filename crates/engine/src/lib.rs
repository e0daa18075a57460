//! Doing small things in the right order, durably: plans are graphs of steps, a run is one
//! execution of a plan, and its journal says at every moment what was meant and what came of it.
//!
//! What is decided is a function of the plan, the records of the journal and what happens
//! ([`run::Run`]); it is the same code live, in simulation and in a model. Nothing here knows of
//! nodes, disks, tasks or etcd: whoever uses the engine brings its own actions. Clocks, threads and
//! files stay in the shell around it.

pub mod action;
pub mod carry;
pub mod contribute;
pub mod drive;
pub mod execute;
pub mod journal;
pub mod plan;
pub mod plugin;
pub mod pull;
pub mod record;
pub mod run;
pub mod simulate;
pub mod ssh;
pub mod undo;

pub use plan::{Plan, PlanError, StepId};
pub use record::Record;
pub use run::{Effect, Event, Run};
