//! The messages by which a machine finds the clusters of its local network.
//!
//! A machine sends a [`Query`], controllers send back a [`SignedAnswer`]. An answer is signed by the
//! beacon key of its sender, and the root key of the cluster signed that beacon key. A machine that
//! has the pin of the cluster recognises forged answers; without a pin an answer proves nothing.
//! [`collect`] groups the answers by cluster, [`RateLimit`] bounds the answers that a controller
//! sends.
//!
//! Sockets, keys and the decision to join or found do not belong here.

mod answer;
mod collection;
mod query;
mod rate_limit;
mod verification;
mod wire;

pub use answer::{
    Answer, ControllerAddress, Delegation, EncodeError, FoundingState, MAX_CONTROLLERS,
    SignedAnswer,
};
pub use collection::{CheckedAnswer, Claim, DiscoveredCluster, Method, Path, collect};
pub use query::{Nonce, Query};
pub use rate_limit::RateLimit;
pub use verification::{InvalidReason, NotAnAnswer, Signature, Verification};
pub use wire::{DecodeError, FieldError};

/// The version of both messages.
pub const VERSION: u8 = 1;

/// The size of every query. Queries are padded, so that a forged source address gains an attacker
/// little: an answer has at most twice the size.
pub const QUERY_BYTES: usize = 512;

/// The largest answer. It fits into one packet on every network.
pub const MAX_ANSWER_BYTES: usize = 2 * QUERY_BYTES;
