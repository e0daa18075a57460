//! The store that tests stand on: the embedded one, made to fail on request.

use std::sync::Arc;

use hoist_store::embedded::{EmbeddedStore, Retention};
use hoist_testkit::failing_store::FailingStore;

pub(crate) type TestStore = FailingStore<EmbeddedStore>;

/// Empty, and gone with its last handle: the open file outlives its name.
pub(crate) fn test_store() -> Arc<TestStore> {
    let dir = tempfile::tempdir().expect("a directory");
    let store = EmbeddedStore::open(dir.path(), Retention::default()).expect("an empty store");
    Arc::new(FailingStore::new(store))
}
