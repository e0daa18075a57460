//! Keeping the roster in step with the store: the first load, the watch, and what happens when
//! either fails.

use std::collections::VecDeque;
use std::time::Duration;

use futures_util::StreamExt;
use hoist_store::{Batch, Change, Record, Revision, Store, StoreError};
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
/// Pause between attempts to reach the store: first, longest.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));
/// How often a quiet store is asked whether it is still there.
const PROBE_EVERY: Duration = Duration::from_secs(2);

/// Reads the whole site from one snapshot of the store. The next page is read while the ones before
/// it are decoded: each takes about half of the time that a controller needs to start.
pub(super) async fn load(store: &dyn Store) -> Result<(Roster, Position), LoadError> {
    let incarnation = schema::open(store).await?;
    let mut read = Read::default();
    let mut position = Position { loaded: true, ..Position::default() };
    let mut decoding = VecDeque::new();
    let mut from = None;
    loop {
        let page = store.list(&site(), from, PAGE).await?;
        position.seen = page.revision;
        from = page.next;
        decoding.push_back(tokio::task::spawn_blocking(move || Read::decode(page.records)));
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
    let Read { resources, site } = read;
    position.site = site.map(|(_, at)| at);
    let SiteRevision { revision, horizon } = site.map_or(NO_REVISION, |(current, _)| current);
    let roster = Roster::build(incarnation, revision, horizon, resources.into_iter());
    Ok((roster, position))
}

/// What pages of the site's listing hold.
#[derive(Debug, Default)]
struct Read {
    resources: Vec<Resource>,
    /// The site's revision, and where it was written.
    site: Option<(SiteRevision, Revision)>,
}

impl Read {
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
    /// Follows the store until told to stop. Never gives up and never makes the roster smaller
    /// because of a failure.
    pub async fn follow(self, stop: CancellationToken) {
        let mut pause = RETRY.0;
        loop {
            let failed = tokio::select! {
                () = stop.cancelled() => return,
                failed = self.follow_once() => failed,
            };
            match failed {
                LoadError::Store(StoreError::Compacted { .. }) => {
                    tracing::warn!("the store's history is gone; reading the site anew");
                    self.0.position.lock().await.loaded = false;
                    pause = RETRY.0;
                }
                error => {
                    let lost = crate::chain(&error);
                    self.0.contact.lost(lost);
                    pause = (pause * 2).min(RETRY.1);
                }
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Loads if need be, then watches until something fails.
    async fn follow_once(&self) -> LoadError {
        let seen = match self.ensure_loaded().await {
            Ok(seen) => seen,
            Err(error) => return error,
        };
        let mut batches = match self.0.store.watch(&site(), seen).await {
            Ok(batches) => batches,
            Err(error) => return error.into(),
        };
        let mut probe = tokio::time::interval(PROBE_EVERY);
        loop {
            tokio::select! {
                batch = batches.next() => {
                    let taken = match batch {
                        Some(Ok(batch)) => self.take_in(batch).await,
                        Some(Err(error)) => Err(error.into()),
                        None => Err(ended().into()),
                    };
                    if let Err(error) = taken {
                        return error;
                    }
                }
                _ = probe.tick() => match self.0.store.health().await {
                    Ok(_) => self.0.contact.heard(),
                    Err(error) => return error.into(),
                }
            }
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
        self.0.past.forget();
        self.publish(roster);
        Ok(())
    }

    async fn take_in(&self, batch: Batch) -> Result<(), LoadError> {
        let mut position = self.0.position.lock().await;
        self.take_in_at(&mut position, batch)
    }

    /// What we wrote ourselves comes back here too and is passed over.
    fn take_in_at(&self, position: &mut Position, batch: Batch) -> Result<(), LoadError> {
        self.0.contact.heard();
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

    /// After a lost race: takes in what the others wrote, so that the next attempt starts from it.
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
                LoadError::Record(_) | LoadError::Schema(_) => WriteError::NotLoaded,
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

fn ended() -> StoreError {
    StoreError::Unavailable { detail: "the watch ended".to_owned() }
}
