//! The records of the cluster in a copy of the store that replaces the store.

use hoist_cluster::membership::{Change, Counters, Membership};
use hoist_store::Key;

use super::keys;

/// The value of a record after a restore; `None` for a record that must not come back.
///
/// Guarantees that no serial and no place is given a second time: the copy does not know the last
/// ones. A join token that was used or revoked since must not come to life again.
pub(crate) fn restored(key: &Key, value: Vec<u8>) -> Option<Vec<u8>> {
    match keys::parts(key) {
        Some((keys::TOKEN, Some(_))) => None,
        Some((keys::COUNTERS, None)) => Some(raised(&value).unwrap_or(value)),
        _ => Some(value),
    }
}

fn raised(value: &[u8]) -> Option<Vec<u8>> {
    let counters: Counters = serde_json::from_slice(value).ok()?;
    let membership = Membership { counters, ..Membership::default() };
    let changes = membership.restore().changes;
    changes.iter().find_map(|change| match change {
        Change::Counters(counters) => serde_json::to_vec(counters).ok(),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restored_counters_skip_numbers_and_tokens_are_gone() {
        let key = |text: &str| text.parse::<Key>().unwrap();
        let before = serde_json::to_vec(&Counters::default()).unwrap();
        let after = restored(&keys::counters(), before).unwrap();
        let after: Counters = serde_json::from_slice(&after).unwrap();
        assert!(after.next_serial > 1000 && after.next_join_order > 1000, "{after:?}");
        assert_eq!(restored(&key("cluster/token/0123456789abcdef"), b"{}".to_vec()), None);
        assert_eq!(restored(&key("node/a"), b"x".to_vec()), Some(b"x".to_vec()));
    }
}
