//! Waiting for a silent source: the subject and the start of the wait.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::source::shown;

/// Time without data before the first notice, and between two of them.
const FIRST: Duration = Duration::from_secs(3);
const EVERY: Duration = Duration::from_secs(5);

/// A source that sends nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitNotice {
    /// The URL without its query.
    pub url: String,
    /// Time without data.
    pub since: Duration,
    /// The failure of the last attempt.
    pub reason: Option<String>,
}

impl fmt::Display for WaitNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "waiting for `{}` for {} s", self.url, self.since.as_secs())?;
        match &self.reason {
            Some(reason) => write!(f, ": {reason}"),
            None => Ok(()),
        }
    }
}

/// The receiver of notices. By default they are dropped.
#[derive(Clone, Default)]
pub struct Notices(Option<Arc<Receiver>>);

type Receiver = dyn Fn(&WaitNotice) + Send + Sync;

impl Notices {
    pub fn to(receiver: impl Fn(&WaitNotice) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(receiver)))
    }

    pub(super) fn send(&self, notice: &WaitNotice) {
        if let Some(receiver) = &self.0 {
            receiver(notice);
        }
    }
}

impl fmt::Debug for Notices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notices").finish_non_exhaustive()
    }
}

/// The wait of one download.
#[derive(Debug)]
pub(super) struct Wait {
    pub(super) url: String,
    pub(super) reason: Option<String>,
    since: Option<Instant>,
    next: Duration,
}

impl Wait {
    pub(super) fn of(url: &str) -> Self {
        Self { url: shown(url), reason: None, since: None, next: FIRST }
    }

    /// The download needs data from now on.
    pub(super) fn begin(&mut self) {
        self.since = Some(Instant::now());
    }

    /// Data arrived, or the download ended.
    pub(super) fn end(&mut self) {
        (self.since, self.reason, self.next) = (None, None, FIRST);
    }

    /// The notice that is due now.
    pub(super) fn due(&mut self) -> Option<WaitNotice> {
        let since = self.since?.elapsed();
        if since < self.next {
            return None;
        }
        self.next = since + EVERY;
        Some(WaitNotice { url: self.url.clone(), since, reason: self.reason.clone() })
    }
}
