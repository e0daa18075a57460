//! A bound on the answers that a controller sends, per source and in total.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

/// Counts answers in windows of fixed length. Two windows can meet, so that the bound for any time
/// of that length is twice the limit.
#[derive(Debug, Clone)]
pub struct RateLimit {
    per_source: u32,
    total: u32,
    window: Duration,
    /// The end of the current window.
    ends: Duration,
    /// Answers of the current window. It has at most `total` entries.
    sources: HashMap<IpAddr, u32>,
    sent: u32,
}

impl RateLimit {
    pub fn new(per_source: u32, total: u32, window: Duration) -> Self {
        Self { per_source, total, window, ends: window, sources: HashMap::new(), sent: 0 }
    }

    /// Whether an answer to this source may be sent now, and counts it if so. `now` is the time
    /// since any fixed moment, from a clock that does not go backwards.
    pub fn admit(&mut self, source: IpAddr, now: Duration) -> bool {
        if now >= self.ends {
            self.ends = now + self.window;
            self.sources.clear();
            self.sent = 0;
        }
        let known = self.sources.get(&source).copied().unwrap_or_default();
        if self.sent >= self.total || known >= self.per_source {
            return false;
        }
        self.sources.insert(source, known + 1);
        self.sent += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn source(number: u8) -> IpAddr {
        [10, 0, 0, number].into()
    }

    #[test]
    fn one_source_does_not_use_up_the_limit_of_others() {
        let mut limit = RateLimit::new(2, 10, SECOND);
        let admitted = (0..10).filter(|_| limit.admit(source(1), Duration::ZERO)).count();
        assert_eq!(admitted, 2);
        assert!(limit.admit(source(2), Duration::ZERO));
        assert!(limit.admit(source(1), SECOND), "a new window has begun");
    }

    #[test]
    fn many_sources_share_the_total() {
        let mut limit = RateLimit::new(2, 5, SECOND);
        let admitted = (0..200).filter(|n| limit.admit(source(*n), Duration::ZERO)).count();
        assert_eq!((admitted, limit.sources.len()), (5, 5));
    }

    proptest! {
        #[test]
        fn bounds_hold_in_every_second(arrivals in vec((0..4_u8, 0..300_u64), 0..200)) {
            let mut limit = RateLimit::new(3, 7, SECOND);
            let mut now = Duration::ZERO;
            let mut sent: Vec<(u8, Duration)> = Vec::new();
            for (number, pause) in arrivals {
                now += Duration::from_millis(pause);
                if limit.admit(source(number), now) {
                    sent.push((number, now));
                }
                let recent = || sent.iter().filter(|(_, at)| now < *at + SECOND);
                prop_assert!(recent().count() <= 2 * 7);
                prop_assert!(recent().filter(|(from, _)| *from == number).count() <= 2 * 3);
            }
        }
    }
}
