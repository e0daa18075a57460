//! `hoist deploy`, run as processes: offline, against a controller, and against several of them.

mod checks;
mod memory;
mod offline;
mod run;
mod ssh;
mod takeover;
