//! Enrollment: which node's agent may take the secrets of its node, and which key has taken them.
//!
//! Belongs here: the records of enrollment in the store, and the memory of which addresses got the
//! agent's boot script. `boot` notes the addresses, `metadata` hands out documents, `provision`
//! hands out jobs; all three stand above this module.
//!
//! Does not belong here: routes, and the rules of a token (`hoist_metadata::provision`).

mod agents_sent;
mod enrollments;
pub(crate) mod keys;

use hoist_api::provision::ShownKey;
use hoist_metadata::provision::KeyClaim;

pub use agents_sent::{AgentsSent, SentScript};
pub use enrollments::{ClaimResult, Enrollments, Offer};

/// A key that showed a token, as the API presents it.
pub(crate) fn shown_key(claimed: &KeyClaim) -> ShownKey {
    ShownKey { key: claimed.by.to_string(), at: claimed.at, from: claimed.from }
}
