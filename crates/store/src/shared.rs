//! A shared store is a store.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::{
    Cursor, Health, Key, Lease, Page, Prefix, Record, Revision, Store, StoreError, Txn, Watch,
};

#[async_trait]
impl<S: Store + ?Sized> Store for Arc<S> {
    async fn get(&self, key: &Key) -> Result<Option<Record>, StoreError> {
        self.as_ref().get(key).await
    }

    async fn list(
        &self,
        prefix: &Prefix,
        from: Option<Cursor>,
        limit: usize,
    ) -> Result<Page, StoreError> {
        self.as_ref().list(prefix, from, limit).await
    }

    async fn commit(&self, txn: Txn) -> Result<Revision, StoreError> {
        self.as_ref().commit(txn).await
    }

    async fn watch(&self, prefix: &Prefix, after: Revision) -> Result<Watch, StoreError> {
        self.as_ref().watch(prefix, after).await
    }

    async fn acquire(
        &self,
        name: &str,
        owner: &str,
        ttl: Duration,
    ) -> Result<Option<Lease>, StoreError> {
        self.as_ref().acquire(name, owner, ttl).await
    }

    async fn renew(&self, lease: &Lease) -> Result<(), StoreError> {
        self.as_ref().renew(lease).await
    }

    async fn release(&self, lease: Lease) -> Result<(), StoreError> {
        self.as_ref().release(lease).await
    }

    async fn health(&self) -> Result<Health, StoreError> {
        self.as_ref().health().await
    }
}
