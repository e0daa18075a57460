//! Walking everything below a prefix, page by page, from one snapshot.

use hoist_store::{Cursor, Key, Prefix, Record, Revision, Store, StoreError};

/// Records per page: a round trip each, and the most that is held at once.
const PAGE: usize = 1000;

/// Whether [`walk`] continues after a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScanStep {
    Go,
    Enough,
}

/// Calls `visit` for each record below `top` after the key `after`, in key order, and returns the
/// revision of the snapshot.
pub async fn walk(
    store: &dyn Store,
    top: &Key,
    after: Option<Key>,
    mut visit: impl FnMut(Record) -> ScanStep + Send,
) -> Result<Revision, StoreError> {
    let prefix = Prefix::Under(top.clone());
    let mut cursor = match after {
        None => None,
        // A listing starts at the top; a cursor needs the snapshot it belongs to.
        Some(after) => {
            let snapshot = store.list(&prefix, None, 1).await?.revision;
            Some(Cursor { after, snapshot })
        }
    };
    loop {
        let page = store.list(&prefix, cursor, PAGE).await?;
        for record in page.records {
            if visit(record) == ScanStep::Enough {
                return Ok(page.revision);
            }
        }
        match page.next {
            None => return Ok(page.revision),
            next => cursor = next,
        }
    }
}
