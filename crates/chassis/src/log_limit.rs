//! Bounds on the log lines that a caller can cause: a client that repeats a request must not fill
//! the log. Counters tell how often a thing happened; the log tells that it happens.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Lets one line through per period and counts those it leaves out.
#[derive(Debug)]
pub struct LogLimit {
    period: Duration,
    last: Mutex<Option<Instant>>,
    left_out: AtomicU64,
}

impl LogLimit {
    pub const fn new(period: Duration) -> Self {
        Self { period, last: Mutex::new(None), left_out: AtomicU64::new(0) }
    }

    /// A limit of one line per second.
    pub const fn per_second() -> Self {
        Self::new(Duration::from_secs(1))
    }

    /// `Some` when a line may be written now: how many were left out since the last one.
    pub fn permit(&self) -> Option<u64> {
        self.permit_at(Instant::now())
    }

    fn permit_at(&self, now: Instant) -> Option<u64> {
        let mut last = self.last.lock();
        if last.is_some_and(|last| now.saturating_duration_since(last) < self.period) {
            self.left_out.fetch_add(1, Ordering::Relaxed);
            metrics::counter!("hoist_log_lines_left_out_total").increment(1);
            return None;
        }
        *last = Some(now);
        Some(self.left_out.swap(0, Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_per_period_tells_how_many_were_left_out() {
        let limit = LogLimit::per_second();
        let start = Instant::now();
        assert_eq!(limit.permit_at(start), Some(0));
        for _ in 0..1000 {
            assert_eq!(limit.permit_at(start + Duration::from_millis(999)), None);
        }
        assert_eq!(limit.permit_at(start + Duration::from_secs(1)), Some(1000));
        assert_eq!(limit.permit_at(start + Duration::from_secs(3)), Some(0));
    }
}
