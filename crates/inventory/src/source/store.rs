//! Nodes from another site's store: what one hoist has declared, read by another.
//!
//! Nothing is written there. A site that changed its revision is read whole; any other is not
//! looked at.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use hoist_model::Name;
use hoist_store::url::{self, Address};
use hoist_store::{Record, Store, StoreError};
use secrecy::{ExposeSecret, SecretString};

use super::{Fetched, FieldSet, Imported, ImportedNode, InventorySource, SourceError};
use crate::Roster;
use crate::record::revision_key;
use crate::registry::{self, LoadError};
use crate::roster::Incarnation;
use crate::schema::{self, SchemaError};

/// Longest time for the whole picture.
const PATIENCE: Duration = Duration::from_mins(2);

/// The source behind `store+etcd://` and `store+postgres://`.
#[derive(Debug)]
pub struct StoreSource {
    name: Name,
    /// What to call it in errors.
    what: String,
    store: Arc<dyn Store>,
    patience: Duration,
    /// Of the last site that was answered as complete.
    last: Mutex<Option<Version>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Version {
    incarnation: Incarnation,
    /// The record of the site's revision, as it stands there.
    revision: Vec<u8>,
}

impl StoreSource {
    pub fn new(name: Name, what: impl Into<String>, store: Arc<dyn Store>) -> Self {
        let last = Mutex::new(None);
        Self { name, what: what.into(), store, patience: PATIENCE, last }
    }

    #[must_use]
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    async fn look(&self) -> Result<(Version, Fetched), LoadError> {
        let store = self.store.as_ref();
        let schema = schema::read(store).await?;
        // One without a schema is new, or not ours. Opening it would make it ours.
        let Some(schema) = schema else { return Err(LoadError::Schema(SchemaError::Foreign)) };
        if hoist_store::copy::is_unfinished(store).await? {
            return Err(LoadError::Schema(SchemaError::Unfinished));
        }
        let revision = store.get(&revision_key()).await?;
        let revision = revision.map_or_else(Vec::new, |record: Record| record.value);
        let version = Version { incarnation: schema.incarnation, revision };
        if self.last().as_ref() == Some(&version) {
            return Ok((version, Fetched::Unchanged));
        }
        // It may be newer than its version; then it is read once more.
        let roster = registry::read_site(store).await?;
        Ok((version, Fetched::Complete(imported(&roster))))
    }

    fn failure(&self, error: LoadError) -> SourceError {
        let what = self.what.clone();
        match error {
            LoadError::Store(
                error @ (StoreError::Unavailable { .. } | StoreError::InUse { .. }),
            ) => SourceError::Unreachable { what, source: error.into() },
            error => SourceError::Malformed { what, detail: crate::chain(&error) },
        }
    }

    fn last(&self) -> std::sync::MutexGuard<'_, Option<Version>> {
        self.last.lock().expect("nobody panics while holding it")
    }
}

#[async_trait]
impl InventorySource for StoreSource {
    fn name(&self) -> &Name {
        &self.name
    }

    async fn fetch(&self) -> Result<Fetched, SourceError> {
        let after = self.patience;
        let looked = tokio::time::timeout(after, self.look()).await;
        let looked =
            looked.map_err(|_| SourceError::TimedOut { what: self.what.clone(), after })?;
        let (version, fetched) = looked.map_err(|error| self.failure(error))?;
        if matches!(&fetched, Fetched::Complete(imported) if imported.nodes.is_empty()) {
            return Err(SourceError::Empty { what: format!("the set of nodes in {}", self.what) });
        }
        *self.last() = Some(version);
        Ok(fetched)
    }

    fn forget(&self) {
        *self.last() = None;
    }
}

/// A node is found again by its id, whatever it is renamed to.
fn imported(roster: &Roster) -> Imported {
    let nodes = roster.nodes().map(|node| ImportedNode {
        external_id: node.id.to_string(),
        name: Some(node.name.clone()),
        spec: node.spec.clone(),
        state: None,
    });
    let groups = roster.groups().map(|group| (group.key(), group.spec.clone()));
    let partitions = roster.partitions().map(|p| (p.name.clone(), p.spec.clone()));
    let networks = roster.networks().map(|n| (n.name.clone(), n.spec.clone()));
    Imported {
        nodes: nodes.collect(),
        groups: groups.collect(),
        partitions: partitions.collect(),
        networks: networks.collect(),
        fields: FieldSet::all(),
        ..Imported::default()
    }
}

/// The address of a store that several processes can open. It may hold a password, so it is never
/// printed whole.
#[derive(Clone)]
pub struct SharedStore(SecretString);

impl SharedStore {
    /// Connects to nothing yet.
    pub async fn open(&self) -> Result<Arc<dyn Store>, StoreError> {
        // The directory is for an embedded store, which this is not.
        url::open(self.0.expose_secret(), Path::new("/nonexistent")).await
    }
}

impl FromStr for SharedStore {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.parse::<Address>()? {
            Address::Embedded => Err(StoreError::Refused {
                detail: "an embedded store belongs to its one process; \
                         import from its `/hsm/v2`, or from `hoist export`"
                    .to_owned(),
            }),
            Address::Etcd(_) | Address::Postgres(_) => Ok(Self(text.into())),
        }
    }
}

impl fmt::Display for SharedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.expose_secret().parse::<Address>() {
            Ok(address) => address.fmt(f),
            Err(_) => f.write_str("?"),
        }
    }
}

impl fmt::Debug for SharedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl PartialEq for SharedStore {
    fn eq(&self, other: &Self) -> bool {
        self.0.expose_secret() == other.0.expose_secret()
    }
}

impl Eq for SharedStore {}
