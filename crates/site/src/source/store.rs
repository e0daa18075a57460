//! Nodes from the store of another hoist site.
//!
//! The other store is never written. It is read as a whole when its site revision has changed.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hoist_model::Name;
use hoist_store::url::{self, Address};
use hoist_store::{Record, Store, StoreError};
use parking_lot::Mutex;
use secrecy::{ExposeSecret, SecretString};

use super::{FetchOutcome, FieldSet, ImportedNode, ImportedSet, InventorySource, SourceError};
use crate::Roster;
use crate::record::revision_key;
use crate::registry::{self, LoadError};
use crate::roster::Incarnation;
use crate::schema::{self, SchemaError};

/// Deadline for loading the whole roster.
const DEADLINE: Duration = Duration::from_mins(2);

/// The source behind `store+etcd://` and `store+postgres://`.
#[derive(Debug)]
pub struct StoreSource {
    name: Name,
    /// The name of the store in errors.
    what: String,
    store: Arc<dyn Store>,
    deadline: Duration,
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
        Self { name, what: what.into(), store, deadline: DEADLINE, last }
    }

    #[must_use]
    pub fn with_deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    async fn look(&self) -> Result<(Version, FetchOutcome), LoadError> {
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
            return Ok((version, FetchOutcome::Unchanged));
        }
        // It may be newer than its version; then it is read once more.
        let roster = registry::read_site(store).await?;
        Ok((version, FetchOutcome::Complete(imported(&roster))))
    }

    fn failure(&self, error: LoadError) -> SourceError {
        let what = self.what.clone();
        match error {
            LoadError::Store(
                error @ (StoreError::Unavailable { .. } | StoreError::InUse { .. }),
            ) => SourceError::Unreachable { what, source: error.into() },
            error => SourceError::Malformed { what, detail: hoist_diagnostic::chain(&error) },
        }
    }

    fn last(&self) -> parking_lot::MutexGuard<'_, Option<Version>> {
        self.last.lock()
    }
}

#[async_trait]
impl InventorySource for StoreSource {
    fn name(&self) -> &Name {
        &self.name
    }

    async fn fetch(&self) -> Result<FetchOutcome, SourceError> {
        let after = self.deadline;
        let looked = tokio::time::timeout(after, self.look()).await;
        let looked =
            looked.map_err(|_| SourceError::TimedOut { what: self.what.clone(), after })?;
        let (version, fetched) = looked.map_err(|error| self.failure(error))?;
        if matches!(&fetched, FetchOutcome::Complete(imported) if imported.nodes.is_empty()) {
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
fn imported(roster: &Roster) -> ImportedSet {
    let nodes = roster.nodes().map(|node| ImportedNode {
        external_id: node.id.to_string(),
        name: Some(node.name.clone()),
        spec: node.spec.clone(),
        state: None,
    });
    let groups = roster.groups().map(|group| (group.key(), group.spec.clone()));
    let partitions = roster.partitions().map(|p| (p.name.clone(), p.spec.clone()));
    let networks = roster.networks().map(|n| (n.name.clone(), n.spec.clone()));
    ImportedSet {
        nodes: nodes.collect(),
        groups: groups.collect(),
        partitions: partitions.collect(),
        networks: networks.collect(),
        fields: FieldSet::all(),
        ..ImportedSet::default()
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
