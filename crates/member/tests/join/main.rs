//! A node against a controller that is a plain TLS server: join, crash, undo, work as a member.

mod bootstrap;
mod controller;
mod crashes;
mod daemon;
mod failures;
mod machine;
