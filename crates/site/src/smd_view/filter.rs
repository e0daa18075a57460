//! SMD's query parameters. Names it does not know are ignored, as SMD does it; values are checked.
//!
//! Does not belong here: the objects of SMD (`smd_view`) and its routes.

use std::collections::HashSet;
use std::hash::Hash;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;

use compact_str::CompactString;
use hoist_model::node::Power;
use hoist_model::selector::Vocabulary;
use hoist_model::{GroupName, Mac, Name, Nid, Node, Xname, XnameKind};
use jiff::Timestamp;

use super::{
    Component, EthernetInterface, RedfishEndpoint, bmc_component, component, partition_of, words,
};
use crate::Roster;
use crate::source::smd::key;

/// Longest value repeated in a message.
const MAX_QUOTE: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    #[error("`{value}` is no value of `{name}`; {wanted}")]
    Value { name: String, value: String, wanted: String },
    #[error("`{name}` may be given once only; ask for one group or partition at a time")]
    Twice { name: &'static str },
    #[error("`!` does not negate `{name}`; give the values that are wanted")]
    Negated { name: String },
}

/// Which nodes: of components, memberships and component endpoints.
#[derive(Debug, Clone, Default)]
pub struct NodeFilter {
    ids: Choice<CompactString>,
    nids: Choice<u32>,
    nid_starts: Vec<u32>,
    nid_ends: Vec<u32>,
    types: Choice<&'static str>,
    states: Choice<&'static str>,
    flags: Choice<&'static str>,
    enabled: Choice<bool>,
    roles: Choice<String>,
    sub_roles: Choice<String>,
    arches: Choice<&'static str>,
    locked: Choice<bool>,
    reservation_disabled: Choice<bool>,
    /// Attributes that no node has: software status, subtype and class.
    absent: [Choice<String>; 3],
    group: Option<GroupChoice<GroupName>>,
    partition: Option<GroupChoice<Name>>,
    columns: Columns,
}

/// Filters of nodes and of sets in which `!` means nothing.
const NOT_NEGATED: [&str; 8] =
    ["nid_start", "nid_end", "group", "partition", "stateonly", "flagonly", "roleonly", "nidonly"];

/// Which members of a component are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Columns {
    #[default]
    All,
    StateAndFlag,
    Flag,
    Roles,
    Nid,
}

/// Values that are wanted, and values that are not.
#[derive(Debug, Clone)]
struct Choice<T> {
    wanted: HashSet<T>,
    unwanted: HashSet<T>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum GroupChoice<T> {
    /// In none at all.
    None,
    In(T),
}

impl<T> Default for Choice<T> {
    fn default() -> Self {
        Self { wanted: HashSet::new(), unwanted: HashSet::new() }
    }
}

impl<T: Hash + Eq> Choice<T> {
    fn add(&mut self, negated: bool, value: T) {
        if negated {
            self.unwanted.insert(value)
        } else {
            self.wanted.insert(value)
        };
    }

    fn allows(&self, value: Option<&T>) -> bool {
        let wanted = self.wanted.is_empty() || value.is_some_and(|v| self.wanted.contains(v));
        wanted && value.is_none_or(|v| !self.unwanted.contains(v))
    }

    fn is_empty(&self) -> bool {
        self.wanted.is_empty() && self.unwanted.is_empty()
    }
}

impl NodeFilter {
    /// The roster knows which roles there are besides SMD's own.
    pub fn parse<N, V>(
        roster: &Roster,
        query: impl IntoIterator<Item = (N, V)>,
    ) -> Result<Self, FilterError>
    where
        N: AsRef<str>,
        V: AsRef<str>,
    {
        let mut filter = Self::default();
        for (name, value) in query {
            filter.add(roster, &name.as_ref().to_ascii_lowercase(), value.as_ref())?;
        }
        Ok(filter)
    }

    fn add(&mut self, roster: &Roster, name: &str, given: &str) -> Result<(), FilterError> {
        let (negated, value) = match given.strip_prefix('!') {
            Some(value) => (true, value),
            None => (false, given),
        };
        if negated && NOT_NEGATED.contains(&name) {
            return Err(negation(name));
        }
        let word = |list: &[&'static str]| {
            words::find(list, value).ok_or_else(|| bad(name, given, &one_of(list)))
        };
        let role = |list: &[&'static str]| {
            let known = words::find(list, value).is_some() || roster.is_role(value);
            let lower = value.to_ascii_lowercase();
            known.then_some(lower).ok_or_else(|| bad(name, given, &one_of(list)))
        };
        match name {
            "id" => self.ids.add(negated, key(value)),
            "nid" => self.nids.add(negated, number(name, value)?),
            "nid_start" => self.nid_starts.push(number(name, value)?),
            "nid_end" => self.nid_ends.push(number(name, value)?),
            "type" => self.types.add(negated, word(&words::TYPES)?),
            "state" => self.states.add(negated, word(&words::STATES)?),
            "flag" => self.flags.add(negated, word(&words::FLAGS)?),
            "enabled" => self.enabled.add(negated, truth(name, value)?),
            "role" => self.roles.add(negated, role(&words::ROLES)?),
            "subrole" => self.sub_roles.add(negated, role(&words::SUB_ROLES)?),
            "arch" => self.arches.add(negated, word(&words::ARCHES)?),
            "locked" => self.locked.add(negated, truth(name, value)?),
            "reservation_disabled" => {
                self.reservation_disabled.add(negated, truth(name, value)?);
            }
            "softwarestatus" => self.absent[0].add(negated, value.to_owned()),
            "subtype" => self.absent[1].add(negated, value.to_owned()),
            "class" => self.absent[2].add(negated, word(&words::CLASSES)?.to_owned()),
            "group" => set_once(&mut self.group, "group", given)?,
            "partition" => set_once(&mut self.partition, "partition", given)?,
            "stateonly" => self.show(Columns::StateAndFlag, truth(name, value)?),
            "flagonly" => self.show(Columns::Flag, truth(name, value)?),
            "roleonly" => self.show(Columns::Roles, truth(name, value)?),
            "nidonly" => self.show(Columns::Nid, truth(name, value)?),
            _ => {}
        }
        Ok(())
    }

    fn show(&mut self, columns: Columns, wanted: bool) {
        if wanted {
            self.columns = columns;
        }
    }

    /// The node as a component, if the filter lets it through.
    pub fn component<'n>(
        &self,
        roster: &Roster,
        node: &'n Node,
        power: Power,
    ) -> Option<Component<'n>> {
        let component = component(node, power);
        let passes = self.allows(&component) && self.is_in(roster, node);
        passes.then(|| self.columns.of(component))
    }

    /// The BMC of a node as a component, if the filter lets it through. BMCs are in no group and no
    /// partition.
    pub fn bmc(&self, node: &Node) -> Option<(Xname, Component<'static>)> {
        let (bmc, component) = bmc_component(node)?;
        let outside = self.group.as_ref().is_none_or(|group| *group == GroupChoice::None)
            && self.partition.as_ref().is_none_or(|partition| *partition == GroupChoice::None);
        let passes = outside && self.allows(&component);
        passes.then(|| (bmc, self.columns.of(component)))
    }

    pub fn matches(&self, roster: &Roster, node: &Node, power: Power) -> bool {
        self.allows(&component(node, power)) && self.is_in(roster, node)
    }

    /// The only nodes that can match, where the filter names them; `None` where every node must be
    /// checked.
    pub fn named<'r>(&self, roster: &'r Roster) -> Option<Vec<&'r Arc<Node>>> {
        let nids = &self.nids.wanted;
        if !self.ids.wanted.iter().all(|id| may_be_node(id)) {
            return None;
        }
        let found = if !self.ids.wanted.is_empty() {
            self.ids.wanted.iter().flat_map(|id| with_id(roster, id)).collect()
        } else if !nids.is_empty() {
            nids.iter().filter_map(|nid| roster.by_nid(Nid::new(*nid))).collect()
        } else {
            return None;
        };
        Some(in_order(found))
    }

    fn allows(&self, component: &Component<'_>) -> bool {
        let lower = |text: Option<&str>| text.map(str::to_ascii_lowercase);
        let role = |choice: &Choice<String>, text| {
            choice.is_empty() || choice.allows(lower(text).as_ref())
        };
        self.ids.allows(Some(&component.id))
            && self.nids.allows(component.nid.map(Nid::get).as_ref())
            && self.is_in_range(component.nid)
            && self.types.allows(Some(&component.r#type))
            && self.states.allows(component.state.as_ref())
            && self.flags.allows(component.flag.as_ref())
            && self.enabled.allows(component.enabled.as_ref())
            && role(&self.roles, component.role)
            && role(&self.sub_roles, component.sub_role)
            && self.arches.allows(component.arch.as_ref())
            && self.locked.allows(Some(&component.locked))
            && self.reservation_disabled.allows(Some(&false))
            && self.absent.iter().all(|choice| choice.allows(None))
    }

    /// The n-th start belongs to the n-th end; one without the other has no bound there.
    fn is_in_range(&self, nid: Option<Nid>) -> bool {
        let count = self.nid_starts.len().max(self.nid_ends.len());
        if count == 0 {
            return true;
        }
        let Some(nid) = nid.map(Nid::get) else { return false };
        let range = |n: usize| -> RangeInclusive<u32> {
            let start = self.nid_starts.get(n).copied().unwrap_or(0);
            start..=self.nid_ends.get(n).copied().unwrap_or(u32::MAX)
        };
        (0..count).any(|n| range(n).contains(&nid))
    }

    fn is_in(&self, roster: &Roster, node: &Node) -> bool {
        let partition = match &self.partition {
            None => true,
            Some(GroupChoice::None) => partition_of(node).is_none(),
            Some(GroupChoice::In(name)) => partition_of(node) == Some(name),
        };
        partition
            && match &self.group {
                None => true,
                Some(GroupChoice::None) => roster.groups_of(node).is_empty(),
                Some(GroupChoice::In(name)) => roster.groups_of(node).contains(name),
            }
    }
}

impl Columns {
    fn of(self, component: Component<'_>) -> Component<'_> {
        let bare = |component: &Component<'_>| Component {
            id: component.id.clone(),
            r#type: component.r#type,
            state: None,
            flag: None,
            enabled: None,
            role: None,
            sub_role: None,
            nid: None,
            arch: None,
            locked: false,
        };
        let Component { state, flag, role, sub_role, nid, .. } = component;
        match self {
            Self::All => component,
            Self::StateAndFlag => Component { state, flag, ..bare(&component) },
            Self::Flag => Component { flag, ..bare(&component) },
            Self::Roles => Component { role, sub_role, ..bare(&component) },
            Self::Nid => Component { nid, ..bare(&component) },
        }
    }
}

/// Which interfaces.
#[derive(Debug, Clone, Default)]
pub struct InterfaceFilter {
    macs: Lookup<Mac>,
    ips: Lookup<IpAddr>,
    networks: Lookup<Name>,
    components: Lookup<CompactString>,
    types: Lookup<&'static str>,
    older_than: Option<Timestamp>,
    newer_than: Option<Timestamp>,
}

/// Values of which one has to be there. One that cannot be read is never there, but makes the
/// list count: SMD compares text.
#[derive(Debug, Clone)]
struct Lookup<T>(Option<HashSet<T>>);

impl<T> Default for Lookup<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T: Hash + Eq> Lookup<T> {
    fn add(&mut self, value: Option<T>) {
        self.0.get_or_insert_default().extend(value);
    }

    fn allows<'v>(&self, mut values: impl Iterator<Item = &'v T>) -> bool
    where
        T: 'v,
    {
        self.0.as_ref().is_none_or(|wanted| values.any(|value| wanted.contains(value)))
    }
}

impl InterfaceFilter {
    const NAMES: [&str; 8] = [
        "id",
        "macaddress",
        "ipaddress",
        "network",
        "componentid",
        "type",
        "olderthan",
        "newerthan",
    ];

    pub fn parse<N, V>(query: impl IntoIterator<Item = (N, V)>) -> Result<Self, FilterError>
    where
        N: AsRef<str>,
        V: AsRef<str>,
    {
        let mut filter = Self::default();
        for (name, value) in query {
            filter.add(name.as_ref(), value.as_ref())?;
        }
        Ok(filter)
    }

    fn add(&mut self, name: &str, value: &str) -> Result<(), FilterError> {
        let name = name.to_ascii_lowercase();
        let name = name.as_str();
        if value.starts_with('!') && Self::NAMES.contains(&name) {
            return Err(negation(name));
        }
        match name {
            "id" | "macaddress" => self.macs.add(value.parse().ok()),
            "ipaddress" => self.ips.add(value.trim().parse().ok()),
            "network" => {
                self.networks.add(value.trim().replace(['_', '.', ' '], "-").parse().ok());
            }
            "componentid" => self.components.add(Some(key(value))),
            "type" => {
                let found = words::find(&words::TYPES, value);
                self.types.add(Some(found.ok_or_else(|| bad(name, value, "see service/values"))?));
            }
            "olderthan" => self.older_than = Some(time(name, value)?),
            "newerthan" => self.newer_than = Some(time(name, value)?),
            _ => {}
        }
        Ok(())
    }

    /// The only nodes with interfaces that can match, where the filter names them; `None` where
    /// every node must be checked.
    pub fn named<'r>(&self, roster: &'r Roster) -> Option<Vec<&'r Arc<Node>>> {
        let found = if let Some(macs) = &self.macs.0 {
            macs.iter().filter_map(|mac| roster.by_mac(*mac)).collect()
        } else if let Some(ips) = &self.ips.0 {
            ips.iter().flat_map(|ip| roster.by_ip(*ip)).collect()
        } else if let Some(components) = &self.components.0 {
            // Which nodes are behind a BMC can only be told by looking at them.
            if !components.iter().all(|id| may_be_node(id)) {
                return None;
            }
            components.iter().flat_map(|id| with_id(roster, id)).collect()
        } else {
            return None;
        };
        Some(in_order(found))
    }

    pub fn matches(&self, interface: &EthernetInterface<'_>) -> bool {
        let addresses = || interface.addresses.iter();
        self.macs.allows([&interface.mac].into_iter())
            && self.ips.allows(addresses().map(|address| &address.ip))
            && self.networks.allows(addresses().filter_map(|address| address.network_name))
            && self.components.allows([&interface.component_id].into_iter())
            && self.types.allows([&interface.r#type].into_iter())
            && self.older_than.is_none_or(|time| interface.last_update < time)
            && self.newer_than.is_none_or(|time| interface.last_update > time)
    }
}

/// Which BMCs.
#[derive(Debug, Clone, Default)]
pub struct EndpointFilter {
    ids: Choice<CompactString>,
    types: Choice<&'static str>,
    fqdns: Choice<CompactString>,
    macs: Choice<String>,
    ips: Choice<String>,
    /// Attributes that no BMC has: a UUID, and the state of its discovery.
    absent: [Choice<String>; 2],
}

impl EndpointFilter {
    pub fn parse<N, V>(query: impl IntoIterator<Item = (N, V)>) -> Result<Self, FilterError>
    where
        N: AsRef<str>,
        V: AsRef<str>,
    {
        let mut filter = Self::default();
        for (name, value) in query {
            filter.add(name.as_ref(), value.as_ref())?;
        }
        Ok(filter)
    }

    fn add(&mut self, name: &str, given: &str) -> Result<(), FilterError> {
        let (negated, value) = match given.strip_prefix('!') {
            Some(value) => (true, value),
            None => (false, given),
        };
        let text = || value.trim().to_ascii_lowercase();
        match name.to_ascii_lowercase().as_str() {
            "id" => self.ids.add(negated, key(value)),
            "type" => {
                let found = words::find(&words::TYPES, value);
                let found = found.ok_or_else(|| bad(name, given, "see service/values"))?;
                self.types.add(negated, found);
            }
            "fqdn" => self.fqdns.add(negated, text().into()),
            "macaddr" => {
                let mac = value.parse::<Mac>().map_or_else(|_| text(), |mac| mac.to_string());
                self.macs.add(negated, mac);
            }
            "ipaddress" => self.ips.add(negated, text()),
            "uuid" => self.absent[0].add(negated, text()),
            "lastdiscoverystatus" => self.absent[1].add(negated, text()),
            _ => {}
        }
        Ok(())
    }

    pub fn matches(&self, endpoint: &RedfishEndpoint) -> bool {
        let mac = endpoint.mac;
        let ip = endpoint.ip;
        self.ids.allows(Some(&endpoint.id))
            && self.types.allows(Some(&endpoint.r#type))
            && self.fqdns.allows(Some(&endpoint.fqdn))
            && self.macs.allows(mac.map(|mac| mac.to_string()).as_ref())
            && self.ips.allows(ip.map(|ip| ip.to_string()).as_ref())
            && self.absent.iter().all(|choice| choice.allows(None))
    }
}

/// Nodes that are shown with this id: its xname, or its name where it has none.
fn with_id<'r>(roster: &'r Roster, id: &str) -> impl Iterator<Item = &'r Arc<Node>> + use<'r> {
    let by_xname = id.parse().ok().and_then(|xname| roster.by_xname(xname));
    let by_name = roster.by_name(id).filter(|node| node.spec.xname.is_none());
    by_xname.into_iter().chain(by_name)
}

fn in_order(mut nodes: Vec<&Arc<Node>>) -> Vec<&Arc<Node>> {
    nodes.sort_by_key(|node| node.id);
    nodes.dedup_by_key(|node| node.id);
    nodes
}

/// Which nodes are behind the id of a BMC can only be told by looking at them.
fn may_be_node(id: &str) -> bool {
    id.parse::<Xname>().map_or(!id.is_empty(), |xname| is_node(xname.kind()))
}

fn is_node(kind: XnameKind) -> bool {
    matches!(kind, XnameKind::Node | XnameKind::VirtualNode)
}

fn set_once<T: std::str::FromStr<Err: std::fmt::Display>>(
    wanted: &mut Option<GroupChoice<T>>,
    name: &'static str,
    value: &str,
) -> Result<(), FilterError> {
    let parsed = if value.eq_ignore_ascii_case("null") {
        GroupChoice::None
    } else {
        GroupChoice::In(
            value.parse().map_err(|error: T::Err| bad(name, value, &error.to_string()))?,
        )
    };
    if wanted.replace(parsed).is_some() {
        return Err(FilterError::Twice { name });
    }
    Ok(())
}

fn bad(name: &str, value: &str, wanted: &str) -> FilterError {
    FilterError::Value {
        name: name.to_owned(),
        value: value.chars().take(MAX_QUOTE).collect(),
        wanted: wanted.to_owned(),
    }
}

/// The answer to a `!` where it means nothing.
pub fn negation(name: &str) -> FilterError {
    FilterError::Negated { name: name.to_owned() }
}

fn one_of(list: &[&str]) -> String {
    /// Longer lists are a page of their own.
    const SHORT: usize = 10;
    match list {
        list if list.len() <= SHORT => format!("it is one of {}", list.join(", ")),
        _ => "see service/values".to_owned(),
    }
}

fn number(name: &str, value: &str) -> Result<u32, FilterError> {
    value.trim().parse().map_err(|_| bad(name, value, "it is a number"))
}

fn truth(name: &str, value: &str) -> Result<bool, FilterError> {
    match value.trim().to_ascii_lowercase().as_str() {
        "true" | "1" | "t" => Ok(true),
        "false" | "0" | "f" => Ok(false),
        _ => Err(bad(name, value, "it is true or false")),
    }
}

fn time(name: &str, value: &str) -> Result<Timestamp, FilterError> {
    value.trim().parse().map_err(|_| bad(name, value, "it is a time such as 2026-01-31T12:00:00Z"))
}
