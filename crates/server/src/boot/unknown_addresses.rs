//! Addresses of no enabled node that asked for metadata.
//!
//! Belongs here: the table in memory and its bound, and how often one address may be logged. A
//! client of metadata has no MAC to be remembered by, so it is known by its address, on the
//! controller that it asked. Machines that asked for a boot script are in `unknown_machines`.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::unknown_machines::shown_agent;

/// Addresses remembered. A new one replaces the tenth that asked least recently.
const MAX_ADDRESSES: usize = 10_000;

/// One line of the log per address and period.
const TOLD_EVERY: Duration = Duration::from_mins(1);

/// An address that asked for metadata and belongs to no enabled node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UnknownAddress {
    pub(crate) from: IpAddr,
    /// The user agent of its requests: `Cloud-Init/25.1.4`.
    pub(crate) agent: Option<String>,
    pub(crate) first: Timestamp,
    pub(crate) last: Timestamp,
    pub(crate) count: u64,
}

#[derive(Debug)]
struct TrackedAddress {
    address: UnknownAddress,
    told: Instant,
}

#[derive(Debug, Default)]
pub(super) struct UnknownAddresses(HashMap<IpAddr, TrackedAddress>);

impl UnknownAddresses {
    /// Records a request. The answer is whether it is time to log the address.
    pub(super) fn note(&mut self, from: IpAddr, agent: Option<&str>, at: Timestamp) -> bool {
        let from = from.to_canonical();
        let now = Instant::now();
        if let Some(tracked) = self.0.get_mut(&from) {
            tracked.address.last = at;
            tracked.address.count += 1;
            if let Some(agent) = agent {
                tracked.address.agent = Some(shown_agent(agent));
            }
            let is_due = now.duration_since(tracked.told) >= TOLD_EVERY;
            if is_due {
                tracked.told = now;
            }
            return is_due;
        }
        if self.0.len() >= MAX_ADDRESSES {
            self.make_room();
        }
        let agent = agent.map(shown_agent);
        let address = UnknownAddress { from, agent, first: at, last: at, count: 1 };
        self.0.insert(from, TrackedAddress { address, told: now });
        true
    }

    /// All addresses, latest first.
    pub(super) fn list(&self) -> Vec<UnknownAddress> {
        let mut all: Vec<_> = self.0.values().map(|tracked| tracked.address.clone()).collect();
        all.sort_by_key(|address| (Reverse(address.last), address.from));
        all
    }

    pub(super) fn forget(&mut self, from: IpAddr) -> bool {
        self.0.remove(&from.to_canonical()).is_some()
    }

    /// Forgets the tenth of the addresses that asked least recently.
    fn make_room(&mut self) {
        let mut by_age: Vec<_> = self.0.iter().map(|(ip, t)| (t.address.last, *ip)).collect();
        by_age.sort_unstable();
        for (_, ip) in by_age.into_iter().take(MAX_ADDRESSES / 10) {
            self.0.remove(&ip);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_address_is_logged_once_a_minute_and_counted_always() {
        let mut addresses = UnknownAddresses::default();
        let from: IpAddr = [192, 0, 2, 9].into();
        let at = Timestamp::UNIX_EPOCH;
        let told = (0..100_000).filter(|_| addresses.note(from, Some("curl/8"), at)).count();
        assert_eq!(told, 1);
        assert!(
            addresses.note([192, 0, 2, 10].into(), None, at),
            "another address is another line"
        );
        tokio::time::advance(TOLD_EVERY).await;
        assert!(addresses.note(from, None, at));
        let listed = addresses.list().into_iter().find(|one| one.from == from).unwrap();
        assert_eq!((listed.count, listed.agent.as_deref()), (100_001, Some("curl/8")));
    }

    #[tokio::test(start_paused = true)]
    async fn the_table_has_a_bound() {
        let mut addresses = UnknownAddresses::default();
        for n in 0..=u32::try_from(MAX_ADDRESSES).unwrap() {
            let at = Timestamp::from_second(i64::from(n)).unwrap();
            addresses.note(IpAddr::from((0x0a00_0000 + n).to_be_bytes()), None, at);
        }
        let listed = addresses.list();
        assert_eq!(listed.len(), MAX_ADDRESSES - MAX_ADDRESSES / 10 + 1);
        assert_eq!(listed[0].from, IpAddr::from((0x0a00_0000 + 10_000_u32).to_be_bytes()));
    }
}
