//! Machines that no node has the MAC of: their list, and how often they may ask.
//!
//! Belongs here: the table in memory, its bounds and its paces. The boot log (`boot_log`) stores
//! its rows; the routes that list and adopt machines are in `discovered`.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use hoist_boot::{BootRequester, What};
use hoist_model::Mac;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use hoist_chassis::addresses::Table;

/// Machines remembered. A new one replaces the tenth that asked least recently.
const MAX_UNKNOWN: usize = 10_000;
/// Watched source addresses; further ones share one allowance per network.
const MAX_SOURCES: usize = 10_000;

/// A machine may send a burst of requests, and then one per interval.
const PER_MAC: Pace = Pace { burst: 10, each: Duration::from_secs(2) };
const PER_SOURCE: Pace = Pace { burst: 100, each: Duration::from_millis(100) };

/// A machine that asked for a boot script and belongs to no node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnknownMachine {
    pub mac: Mac,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arch: Option<String>,
    pub from: IpAddr,
    /// The user agent of its requests: `iPXE/1.21`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    pub first: Timestamp,
    pub last: Timestamp,
    pub count: u64,
    /// Whether it was given something to boot.
    #[serde(default)]
    pub booted: bool,
}

/// One request of an unknown machine and its answer.
#[derive(Debug, Clone, Copy)]
pub(super) struct UnknownRequest<'a> {
    pub(super) who: &'a BootRequester<'a>,
    pub(super) arch: Option<&'a str>,
    pub(super) from: IpAddr,
    pub(super) agent: Option<&'a str>,
    pub(super) what: &'a What,
    pub(super) at: Timestamp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Allowance {
    Within,
    TooOften,
}

#[derive(Debug)]
pub(super) struct UnknownMachines {
    known: HashMap<Mac, TrackedMachine>,
    sources: Table<Meter>,
    /// Machines whose rows must be removed from the store.
    gone: Vec<Mac>,
}

/// Changes of the table that the store lacks.
#[derive(Debug, Default)]
pub(super) struct MachineChanges {
    pub(super) gone: Vec<Mac>,
    pub(super) changed: Vec<UnknownMachine>,
}

#[derive(Debug)]
struct TrackedMachine {
    machine: UnknownMachine,
    meter: Meter,
    /// Whether the store lacks its last request.
    changed: bool,
}

#[derive(Debug, Clone, Copy)]
struct Pace {
    burst: u32,
    each: Duration,
}

/// A leaky bucket, as the moment at which it is empty.
#[derive(Debug, Clone, Copy)]
struct Meter(Instant);

impl Meter {
    fn take(&mut self, pace: Pace, now: Instant) -> bool {
        let level = self.0.max(now) + pace.each;
        if level > now + pace.each * pace.burst {
            return false;
        }
        self.0 = level;
        true
    }
}

impl Default for UnknownMachines {
    fn default() -> Self {
        Self { known: HashMap::new(), sources: Table::new(MAX_SOURCES), gone: Vec::new() }
    }
}

impl UnknownMachines {
    /// Records a request. Only MACs are remembered: other names are too easy to invent. A machine
    /// that gets boot parameters is not limited.
    pub(super) fn note(&mut self, request: &UnknownRequest<'_>) -> Allowance {
        let UnknownRequest { who, arch, from, agent, what, at } = *request;
        let moment = Instant::now();
        let limited = !matches!(what, What::Boot { .. });
        if limited && !self.is_within_pace(from, moment) {
            return Allowance::TooOften;
        }
        let BootRequester::Mac(mac, _) = who else { return Allowance::Within };
        if self.known.len() >= MAX_UNKNOWN && !self.known.contains_key(mac) {
            self.make_room();
        }
        let tracked = self.known.entry(*mac).or_insert_with(|| TrackedMachine {
            machine: UnknownMachine {
                mac: *mac,
                arch: None,
                from,
                agent: None,
                first: at,
                last: at,
                count: 0,
                booted: false,
            },
            meter: Meter(moment),
            changed: true,
        });
        if limited && !tracked.meter.take(PER_MAC, moment) {
            return Allowance::TooOften;
        }
        let machine = &mut tracked.machine;
        machine.last = at;
        machine.count += 1;
        machine.from = from;
        machine.booted |= matches!(what, What::Boot { .. } | What::Discovery);
        if let Some(arch) = arch {
            machine.arch = Some(arch.to_owned());
        }
        if let Some(agent) = agent {
            machine.agent = Some(shown_agent(agent));
        }
        tracked.changed = true;
        Allowance::Within
    }

    /// All machines, latest first.
    pub(super) fn list(&self) -> Vec<UnknownMachine> {
        let mut all: Vec<_> = self.known.values().map(|tracked| tracked.machine.clone()).collect();
        all.sort_by_key(|machine| Reverse(machine.last));
        all
    }

    /// The machine has become a node, or an operator removed it from the list.
    pub(super) fn forget(&mut self, mac: Mac) {
        if self.known.remove(&mac).is_some() {
            self.gone.push(mac);
        }
    }

    /// Another controller has forgotten the machine.
    pub(super) fn remove(&mut self, mac: Mac) {
        self.known.remove(&mac);
    }

    /// A row of another controller. It counts if it is newer than the own one.
    pub(super) fn take_in(&mut self, machine: UnknownMachine) {
        let mac = machine.mac;
        let is_newer = self.known.get(&mac).is_none_or(|own| own.machine.last < machine.last);
        if is_newer && self.known.len() < MAX_UNKNOWN {
            let meter = Meter(Instant::now());
            self.known.insert(mac, TrackedMachine { machine, meter, changed: false });
        }
    }

    /// The caller must store the changes, or return them with [`Self::restore_change`].
    pub(super) fn take_changes(&mut self) -> MachineChanges {
        let gone = std::mem::take(&mut self.gone);
        let mut changed = Vec::new();
        for tracked in self.known.values_mut().filter(|tracked| tracked.changed) {
            tracked.changed = false;
            changed.push(tracked.machine.clone());
        }
        MachineChanges { gone, changed }
    }

    /// The change of this machine could not be stored; it is part of the next changes again.
    pub(super) fn restore_change(&mut self, mac: Mac) {
        match self.known.get_mut(&mac) {
            Some(tracked) => tracked.changed = true,
            None => self.gone.push(mac),
        }
    }

    fn is_within_pace(&mut self, from: IpAddr, moment: Instant) -> bool {
        let is_over = |meter: &Meter| meter.0 <= moment;
        let meter = self.sources.entry(from, moment, is_over, || Meter(moment));
        meter.take(PER_SOURCE, moment)
    }

    /// Forgets the tenth of the machines that asked least recently.
    fn make_room(&mut self) {
        let mut by_age: Vec<_> =
            self.known.values().map(|t| (t.machine.last, t.machine.mac)).collect();
        by_age.sort_unstable();
        for (_, mac) in by_age.into_iter().take(MAX_UNKNOWN / 10) {
            self.forget(mac);
        }
    }
}

/// A user agent as it is remembered: callers may send anything.
pub(super) fn shown_agent(agent: &str) -> String {
    agent.chars().filter(|c| !c.is_control()).take(64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn sources_beyond_those_watched_are_limited_by_network() {
        let mut machines = UnknownMachines::default();
        let now = Instant::now();
        for n in 0..u32::try_from(MAX_SOURCES).unwrap() {
            assert!(machines.is_within_pace(IpAddr::from((0x0a00_0000 + n).to_be_bytes()), now));
        }
        let mut admitted = 0;
        for host in 0..=255 {
            for _ in 0..PER_SOURCE.burst {
                admitted += u32::from(machines.is_within_pace([203, 0, 113, host].into(), now));
            }
        }
        assert_eq!(admitted, PER_SOURCE.burst, "a network beyond them counts as one address");
        assert!(machines.sources.len() <= MAX_SOURCES);
        assert!(
            machines.is_within_pace([10, 0, 0, 1].into(), now),
            "other addresses keep their allowance"
        );
        // Those that have not asked for a while make room.
        tokio::time::advance(Duration::from_mins(1)).await;
        assert!(machines.is_within_pace([203, 0, 113, 1].into(), Instant::now()));
        assert_eq!(machines.sources.len(), 1);
    }
}
