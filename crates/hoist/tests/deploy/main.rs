//! `hoist deploy`, run as processes: offline, against a controller, and against several of them.

mod checks;
mod offline;
mod run;
mod takeover;
