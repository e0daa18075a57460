//! What a machine boots: selection of its boot configuration, the iPXE script, boot state,
//! artifacts, and the BSS v1 view of all that.
//!
//! Selection and rendering are functions of a roster and a request; they never wait or touch a
//! disk. HTTP, tokens and command lines do not belong here.

pub mod agent;
pub mod answer;
pub mod asked;
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
pub mod rule;
pub mod script;
pub mod select;
mod skeleton;
pub mod template;

pub use answer::{Answer, Booter, Place, Served, Settings, What};
pub use asked::{Asked, BadQuery, Who};
pub use select::{Barred, Choice, Source, Standing, Table, Turn};
