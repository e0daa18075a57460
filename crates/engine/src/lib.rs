//! The engine runs plans durably. A plan is a graph of steps, a run is one execution of a plan, and
//! the journal of the run records every intent before its effect and every result.
//!
//! The crate has two halves. The core decides and never touches a clock, a thread, a file or a
//! process: a decision is a function of the plan, the records of the journal and the event
//! ([`run::Run`]), so the same code runs live, in simulation and in the model tests. The shell
//! carries the decisions out. The core must not import the shell; `cargo xtask tidy` checks it.
//!
//! | Core | Concept |
//! | --- | --- |
//! | [`plan`] | steps, their order, limits and windows |
//! | [`record`] | the records of a journal |
//! | [`journal`] | the binary frames of records |
//! | [`run`] | the state of a run and its decisions |
//! | [`action`], [`program`] | the interfaces that actions implement and use |
//! | [`contribute`] | merging the needs of planners into one document |
//! | [`carry`] | steps that a new run takes over from an older one |
//! | [`undo`] | the plan that undoes a run |
//! | [`simulate`] | a run against a simulated world |
//!
//! | Shell | Concept |
//! | --- | --- |
//! | [`drive`] | the loop around a run: journal first, then effects |
//! | [`file_journal`] | a journal in a file |
//! | [`execute`] | steps on this machine |
//! | [`pull`] | steps on machines that fetch their work |
//! | [`ssh`] | steps on machines with only a POSIX shell |
//! | [`plugin`] | actions that are programs of their own |
//!
//! Nodes, disks, task files and etcd do not belong here: the user of the engine brings its own
//! actions.

// Core.
pub mod action;
pub mod carry;
pub mod contribute;
pub mod journal;
pub mod plan;
pub mod program;
pub mod record;
pub mod run;
pub mod simulate;
pub mod undo;

// Shell.
pub mod drive;
pub mod execute;
pub mod file_journal;
pub mod plugin;
pub mod pull;
pub mod ssh;

pub use plan::{Plan, PlanError, StepId};
pub use record::Record;
pub use run::{Effect, Event, Run};
