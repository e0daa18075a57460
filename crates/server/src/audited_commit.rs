//! Commits of the site that carry their audit entry in the same transaction.
//!
//! Not here: who may write (`authorisation`), and the log itself (`hoist_chassis::audit`).

use async_trait::async_trait;
use hoist_chassis::audit::{AuditError, AuditLog, Draft};
use hoist_site::registry::{About, Commit};
use hoist_store::{Revision, StoreError, Txn};

/// Commits each change of the site together with an entry made from one draft.
#[derive(Debug, Clone)]
pub(crate) struct AuditedCommit {
    log: AuditLog,
    draft: Draft,
}

impl AuditedCommit {
    pub(crate) fn new(log: &AuditLog, draft: Draft) -> Self {
        Self { log: log.clone(), draft }
    }
}

#[async_trait]
impl Commit for AuditedCommit {
    async fn commit(&self, txn: Txn, about: &About) -> Result<Revision, StoreError> {
        let draft = Draft {
            object: about.summary.clone(),
            before: Some(about.before),
            after: Some(about.after),
            ..self.draft.clone()
        };
        self.log.commit(txn, &draft).await.map_err(|error| match error {
            AuditError::Store(error) => error,
            AuditError::Damaged { .. } => StoreError::Damaged { detail: error.to_string() },
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use hoist_chassis::clock::SystemClock;
    use hoist_store::{Compare, Key, Op, Store};
    use hoist_testkit::stores::test_store;

    use super::*;

    #[tokio::test]
    async fn the_site_commits_with_an_entry_or_not_at_all() {
        let store = test_store();
        let log = AuditLog::new(Arc::clone(&store) as Arc<dyn Store>, Arc::new(SystemClock));
        let who = Draft { who: "token/a".to_owned(), ..Draft::default() };
        let committer = AuditedCommit::new(&log, who);
        let about = About { before: 6, after: 7, summary: "1 created: node/n1".to_owned() };
        let key: Key = "node/n1".parse().unwrap();
        // The larger transaction is not copied by the log.
        for (count, expected) in [(1, 1), (1001, 2)] {
            let ops = vec![Op::Put(key.clone(), b"{}".to_vec()); count];
            committer.commit(Txn { compares: vec![], ops }, &about).await.unwrap();
            assert_eq!(log.head().await.unwrap(), expected);
        }
        let entry = log.list(0, 1).await.unwrap().remove(0);
        assert_eq!((entry.who.as_str(), entry.before, entry.after), ("token/a", Some(6), Some(7)));
        let stale = Txn { compares: vec![Compare::Absent(key.clone())], ops: vec![] };
        let conflict = committer.commit(stale, &about).await.unwrap_err();
        assert!(matches!(conflict, StoreError::Conflict { key: at } if at == key));
        assert_eq!(log.head().await.unwrap(), 2);
        assert!(store.get(&key).await.unwrap().is_some());
    }
}
