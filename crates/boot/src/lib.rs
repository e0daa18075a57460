//! Booting: selection of a node's boot configuration, the iPXE script, boot state, artifacts, and
//! the BSS v1 view of them.
//!
//! Selection and rendering are functions of a roster and a request; they never wait or touch a
//! disk. HTTP, tokens and command lines of programs do not belong here.

pub mod agent;
pub mod answer;
pub mod bss;
pub mod cloud_init;
pub mod command_line;
pub mod diff;
mod digest;
pub mod explain;
mod memo;
pub mod outcome;
pub mod parameters;
pub mod presign;
pub mod request;
pub mod rule;
pub mod script;
pub mod select;
mod skeleton;
pub mod template;

pub use answer::{Answer, Booter, RequestOrigin, ServedScript, Settings, What};
pub use request::{BadQuery, BootRequest, BootRequester};
pub use select::{BootContext, Choice, Exclusion, Recurrence, Source, Table};
