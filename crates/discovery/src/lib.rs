//! Discovery of clusters on the local network: sends the query, answers it, and has the keys.
//!
//! [`ask`] sends one query over all interfaces and methods and collects the answers of a whole
//! window. [`Responder`] answers queries on a thread of its own. [`BeaconIdentity`] signs answers,
//! [`keys`] checks signatures. The messages and their verification are in [`hoist_cluster::beacon`].
//!
//! Discovery finds addresses; it establishes no trust without a pin. Joining and founding do not
//! belong here.

mod ask;
mod identity;
mod interface;
pub mod keys;
mod network;
mod problem;
mod responder;
mod socket;

pub use ask::{AskError, AskOptions, Outcome, ReceivedAnswer, ask, new_query};
pub use identity::{BeaconIdentity, IdentityError, Statement};
pub use interface::Selection;
pub use network::Network;
pub use problem::Problem;
pub use responder::{AnswerLimits, Counters, Responder, ResponderOptions};
