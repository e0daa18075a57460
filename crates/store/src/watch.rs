//! A watch as its reader holds it: the batches, and how current they are.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use futures_util::Stream;
use parking_lot::Mutex;

use crate::{Batch, StoreError};

/// Batches in revision order, without gaps, until the stream ends with an error or is dropped.
pub struct Watch {
    batches: Pin<Box<dyn Stream<Item = Result<Batch, StoreError>> + Send>>,
    progress: Option<WatchProgress>,
}

/// When a watch was last known to have delivered everything that the store held. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct WatchProgress(Arc<Mutex<Option<Instant>>>);

impl Watch {
    /// A watch that sees every commit as soon as it is made.
    pub(crate) fn immediate(
        batches: impl Stream<Item = Result<Batch, StoreError>> + Send + 'static,
    ) -> Self {
        Self { batches: Box::pin(batches), progress: None }
    }

    /// A watch that hears of commits from elsewhere, and may hear late.
    pub(crate) fn remote(
        batches: impl Stream<Item = Result<Batch, StoreError>> + Send + 'static,
        progress: WatchProgress,
    ) -> Self {
        Self { batches: Box::pin(batches), progress: Some(progress) }
    }

    /// `None` for a watch that cannot lag behind.
    pub fn progress(&self) -> Option<WatchProgress> {
        self.progress.clone()
    }
}

impl Stream for Watch {
    type Item = Result<Batch, StoreError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.batches.as_mut().poll_next(cx)
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("progress", &self.progress).finish_non_exhaustive()
    }
}

impl WatchProgress {
    pub(crate) fn mark(&self) {
        *self.0.lock() = Some(Instant::now());
    }

    /// `None` before the watch has caught up for the first time.
    pub fn last(&self) -> Option<Instant> {
        *self.0.lock()
    }
}
