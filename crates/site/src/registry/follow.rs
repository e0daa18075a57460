//! Keeping the roster in step with the store: the first load, the watch, and their failures.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::StreamExt;
use hoist_store::follow::{Follower, ended, follow};
use hoist_store::{Batch, Change, Health, Record, Revision, Store, StoreError};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::{LoadError, Position, Registry, WriteError};
use crate::record::{RecordError, Resource, ResourceKey, SiteRevision, revision_key, site};
use crate::roster::{Delta, Roster};
use crate::schema;

/// Records read at once; a page of nodes is a few megabytes.
const PAGE: usize = 5_000;
/// Pages that may wait for being decoded: bounds the text in memory while the store is faster.
const DECODERS: usize = 2;
/// Before the first write.
const NO_REVISION: SiteRevision = SiteRevision { revision: 0, horizon: 0 };
/// How long a writer waits to learn what another controller wrote before it reads everything anew.
const CATCH_UP: Duration = Duration::from_secs(2);

/// Reads the whole site from one snapshot of the store. The next page is read while the ones before
/// it are decoded: each takes about half of the time that a controller needs to start.
pub(super) async fn load(store: &dyn Store) -> Result<(Roster, Position), LoadError> {
    let incarnation = schema::open(store).await?;
    let mut read = SiteRecords::default();
    let mut position = Position { loaded: true, ..Position::default() };
    let mut decoding = VecDeque::new();
    let mut from = None;
    loop {
        let page = store.list(&site(), from, PAGE).await?;
        position.seen = page.revision;
        from = page.next;
        decoding.push_back(tokio::task::spawn_blocking(move || SiteRecords::decode(page.records)));
        let waiting = if from.is_some() { DECODERS } else { 0 };
        while decoding.len() > waiting
            && let Some(oldest) = decoding.pop_front()
        {
            read.add(oldest.await.expect("decoding does not panic")?);
        }
        if from.is_none() {
            break;
        }
    }
    let SiteRecords { resources, site } = read;
    position.site = site.map(|(_, at)| at);
    let SiteRevision { revision, horizon } = site.map_or(NO_REVISION, |(current, _)| current);
    let roster = Roster::build(incarnation, revision, horizon, resources.into_iter());
    Ok((roster, position))
}

/// What pages of the site's listing hold.
#[derive(Debug, Default)]
struct SiteRecords {
    resources: Vec<Resource>,
    /// The site's revision, and where it was written.
    site: Option<(SiteRevision, Revision)>,
}

impl SiteRecords {
    fn decode(records: Vec<Record>) -> Result<Self, RecordError> {
        let mut read = Self { resources: Vec::with_capacity(records.len()), site: None };
        for record in records {
            match Resource::from_record(&record)? {
                Some(resource) => read.resources.push(resource),
                None => read.site = Some((read_revision(&record.value), record.revision)),
            }
        }
        Ok(read)
    }

    fn add(&mut self, page: Self) {
        self.resources.extend(page.resources);
        self.site = page.site.or(self.site);
    }
}

fn read_revision(value: &[u8]) -> SiteRevision {
    serde_json::from_slice(value).unwrap_or(NO_REVISION)
}

impl Registry {
    /// Follows the store until `stop`. A failure never ends it and never makes the roster smaller.
    pub async fn follow(self, stop: CancellationToken) {
        let prefix = site();
        tokio::select! {
            () = stop.cancelled() => {}
            never = follow(self.0.store.as_ref(), &prefix, &self) => match never {},
        }
    }

    async fn ensure_loaded(&self) -> Result<Revision, LoadError> {
        let mut position = self.0.position.lock().await;
        if !position.loaded {
            self.reload(&mut position).await?;
        }
        Ok(position.seen)
    }

    async fn reload(&self, position: &mut Position) -> Result<(), LoadError> {
        let (roster, loaded) = load(self.0.store.as_ref()).await?;
        *position = loaded;
        self.0.contact.loaded();
        self.0.history.forget();
        self.publish(roster);
        Ok(())
    }

    async fn take_in(&self, batch: Batch) -> Result<(), LoadError> {
        let mut position = self.0.position.lock().await;
        self.take_in_at(&mut position, batch)
    }

    /// Batches of our own writes come back here and are skipped.
    fn take_in_at(&self, position: &mut Position, batch: Batch) -> Result<(), LoadError> {
        if batch.revision <= position.seen {
            return Ok(());
        }
        let roster = self.roster();
        let mut next = Position { seen: batch.revision, ..*position };
        let mut delta =
            Delta { revision: roster.revision(), horizon: roster.horizon(), ..Delta::default() };
        for change in batch.changes {
            match change {
                Change::Put(record) if record.key == revision_key() => {
                    let current = read_revision(&record.value);
                    delta.revision = current.revision;
                    delta.horizon = current.horizon;
                    next.site = Some(record.revision);
                }
                Change::Put(record) => delta.puts.extend(Resource::from_record(&record)?),
                Change::Delete(key) => delta.deletes.extend(ResourceKey::from_key(&key)),
            }
        }
        // Only now: a position ahead of the roster would let a write pass that never saw this batch.
        *position = next;
        self.advance(&roster, delta);
        Ok(())
    }

    /// After a lost race: applies the writes of other controllers, so that the next attempt starts
    /// from them.
    pub(super) async fn catch_up(&self, position: &mut Position) -> Result<(), WriteError> {
        let store = self.0.store.as_ref();
        let record = store.get(&revision_key()).await?;
        let current = record.as_ref().map_or(0, |record| read_revision(&record.value).revision);
        let followed = timeout(CATCH_UP, async {
            let mut batches = store.watch(&site(), position.seen).await?;
            while self.roster().revision() < current {
                match batches.next().await {
                    Some(Ok(batch)) => self.take_in_at(position, batch)?,
                    Some(Err(error)) => return Err(error.into()),
                    None => return Err(ended().into()),
                }
            }
            Ok::<(), LoadError>(())
        });
        if !matches!(followed.await, Ok(Ok(()))) {
            self.reload(position).await.map_err(|error| match error {
                LoadError::Store(error) => WriteError::Store(error),
                error => WriteError::NotLoaded { reason: error.public_reason() },
            })?;
        }
        position.site = record.map(|record| record.revision).or(position.site);
        Ok(())
    }

    /// Folds the overlay into the base whenever it has grown, off the readers' and writers' way.
    pub async fn fold(self, stop: CancellationToken) {
        let mut changes = self.changes();
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                changed = changes.changed() => if changed.is_err() { return },
            }
            let roster = self.roster();
            if !roster.wants_folding() {
                continue;
            }
            let before = std::sync::Arc::clone(&roster);
            let Ok(folded) = tokio::task::spawn_blocking(move || roster.folded()).await else {
                continue;
            };
            let position = self.0.position.lock().await;
            if let Some(rebased) = self.roster().rebased(&before, &folded) {
                self.0.roster.store(std::sync::Arc::new(rebased));
            }
            drop(position);
        }
    }
}

#[async_trait]
impl Follower for Registry {
    type Error = LoadError;
    const PROBE_EVERY: Option<Duration> = Some(Duration::from_secs(2));

    async fn load(&self) -> Result<Revision, LoadError> {
        self.ensure_loaded().await
    }

    async fn apply(&self, batch: Batch) -> Result<(), LoadError> {
        self.take_in(batch).await
    }

    fn heard(&self, at: Option<Instant>, health: &Health) {
        if let Some(at) = at {
            self.0.contact.heard(at);
        }
        self.0.contact.set_full(health.full);
    }

    async fn failed(&self, error: LoadError) {
        if let LoadError::Store(StoreError::Compacted { .. }) = error {
            tracing::warn!("the store has compacted its history; reading the whole site again");
            self.0.position.lock().await.loaded = false;
        } else {
            self.note_failure(&error);
        }
    }
}
