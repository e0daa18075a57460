//! Client addresses: how many connections each has, and tables of them that stay small.
//!
//! Each address counts by itself, also an IPv6 one: all nodes of a site may be in one /64. Where
//! there is no room for more addresses, they count by network.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Locks among which addresses are spread, so that connections do not queue at one.
const SHARDS: usize = 64;

/// Shared entries of a [`Table`] for the networks that it has no room for.
const SHARED: usize = 1024;

/// Least time between two searches of a full table for entries that are over.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// A /24, or a /64.
fn network_of(client: IpAddr) -> IpAddr {
    match client {
        IpAddr::V6(ip) => IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() & (!0 << 64))),
        IpAddr::V4(ip) => IpAddr::V4(Ipv4Addr::from_bits(ip.to_bits() & (!0 << 8))),
    }
}

/// Open connections of each client of a listener.
#[derive(Debug)]
pub struct Clients {
    /// Connections of one client.
    limit: usize,
    hasher: RandomState,
    shards: Vec<Mutex<HashMap<IpAddr, usize>>>,
}

/// One connection, counted until it is dropped.
#[derive(Debug)]
pub struct CountedConnection {
    clients: Arc<Clients>,
    client: IpAddr,
}

impl Clients {
    pub fn new(limit: usize) -> Arc<Self> {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Arc::new(Self { limit, hasher: RandomState::new(), shards })
    }

    /// Counts one more connection, unless the client has too many.
    pub fn enter(self: &Arc<Self>, ip: IpAddr) -> Option<CountedConnection> {
        let client = ip.to_canonical();
        {
            let mut shard = self.shard(client).lock();
            let count = shard.entry(client).or_default();
            if *count >= self.limit {
                return None;
            }
            *count += 1;
        }
        Some(CountedConnection { clients: Arc::clone(self), client })
    }

    fn shard(&self, client: IpAddr) -> &Mutex<HashMap<IpAddr, usize>> {
        let hash = self.hasher.hash_one(client);
        &self.shards[usize::try_from(hash % SHARDS as u64).unwrap_or_default()]
    }
}

impl Drop for CountedConnection {
    fn drop(&mut self) {
        let shard = self.clients.shard(self.client);
        let mut shard = shard.lock();
        if let Some(count) = shard.get_mut(&self.client) {
            *count -= 1;
            if *count == 0 {
                shard.remove(&self.client);
            }
        }
    }
}

/// An entry for each client, for at most so many; beyond them, clients share the entry of their
/// network with others. No client is without an entry.
#[derive(Debug)]
pub struct Table<E> {
    clients: HashMap<IpAddr, E>,
    capacity: usize,
    shared: Vec<Option<E>>,
    hasher: RandomState,
    swept: Option<Instant>,
}

impl<E> Table<E> {
    pub fn new(capacity: usize) -> Self {
        Self {
            clients: HashMap::new(),
            capacity,
            shared: Vec::new(),
            hasher: RandomState::new(),
            swept: None,
        }
    }

    /// The entry of a client. A full table forgets entries that are over first.
    pub fn entry(
        &mut self,
        ip: IpAddr,
        now: Instant,
        is_over: impl Fn(&E) -> bool,
        fresh: impl FnOnce() -> E,
    ) -> &mut E {
        let client = ip.to_canonical();
        let is_new = !self.clients.contains_key(&client);
        if is_new && self.clients.len() >= self.capacity {
            self.sweep(now, is_over);
            if self.clients.len() >= self.capacity {
                return self.shared_entry(client).get_or_insert_with(fresh);
            }
        }
        self.clients.entry(client).or_insert_with(fresh)
    }

    /// Looking at all entries takes a while; an attacker must not make every request do it.
    fn sweep(&mut self, now: Instant, is_over: impl Fn(&E) -> bool) {
        let recently = |at: Instant| now.saturating_duration_since(at) < SWEEP_EVERY;
        if self.swept.is_none_or(|at| !recently(at)) {
            self.swept = Some(now);
            self.clients.retain(|_, entry| !is_over(entry));
        }
    }

    fn shared_entry(&mut self, client: IpAddr) -> &mut Option<E> {
        if self.shared.is_empty() {
            self.shared.resize_with(SHARED, || None);
        }
        // The hash is seeded, so a client cannot choose its neighbours.
        let hash = self.hasher.hash_one(network_of(client));
        &mut self.shared[usize::try_from(hash % SHARED as u64).unwrap_or_default()]
    }

    /// The number of addresses with their own entry.
    pub fn len(&self) -> usize {
        self.clients.len()
    }

    pub fn is_empty(&self) -> bool {
        self.clients.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_has_a_bounded_number_of_connections() {
        let clients = Clients::new(2);
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let held = [clients.enter(ip("10.0.0.1")), clients.enter(ip("::ffff:10.0.0.1"))];
        assert!(held.iter().all(Option::is_some));
        assert!(clients.enter(ip("10.0.0.1")).is_none());
        assert!(clients.enter(ip("10.0.0.2")).is_some(), "others have their own");
        let [first, second] = held;
        drop(first);
        assert!(clients.enter(ip("10.0.0.1")).is_some());
        let counted: usize = clients.shards.iter().map(|shard| shard.lock().len()).sum();
        drop(second);
        assert_eq!(counted, 1, "only clients with connections are remembered");
    }

    #[tokio::test(start_paused = true)]
    async fn full_table_shares_entries_and_forgets_old_ones_first() {
        let mut table = Table::<(Instant, u32)>::new(2);
        let mut count = |ip: [u8; 4]| {
            let now = Instant::now();
            let is_over = |(start, _): &(Instant, u32)| now - *start >= Duration::from_mins(1);
            let (_, count) = table.entry(ip.into(), now, is_over, || (now, 0));
            *count += 1;
            *count
        };
        assert_eq!([count([10, 0, 0, 1]), count([10, 0, 0, 2])], [1, 1]);
        // Neighbours share, however many there are.
        assert_eq!([count([10, 0, 9, 1]), count([10, 0, 9, 2]), count([10, 0, 9, 3])], [1, 2, 3]);
        assert_eq!(count([10, 0, 0, 1]), 2, "those in the table keep their own");
        tokio::time::advance(Duration::from_mins(1)).await;
        assert_eq!(count([10, 0, 9, 1]), 1, "there is room again");
    }
}
