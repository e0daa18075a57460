//! Artifacts over real sockets and a real disk: brought, served, cared for, and shared.

mod care;
mod content;
mod serve;
mod siblings;
mod upload;
