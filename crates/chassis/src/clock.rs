//! Time as a value passed in, so that expiry and renewal can be tested without waiting.

use std::fmt;

use jiff::Timestamp;

/// Tells the time of day. Durations and deadlines use tokio's clock instead.
pub trait Clock: Send + Sync + fmt::Debug {
    fn now(&self) -> Timestamp;
}

/// The machine's own clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}
