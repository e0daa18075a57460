//! A node against a controller that is a plain TLS server: join, crash, undo, work as a member.

#![expect(clippy::unwrap_used, reason = "a panic of the machinery fails the test, as it should")]

mod bootstrap;
mod controller;
mod crashes;
mod daemon;
mod discovery;
mod failures;
mod machine;
