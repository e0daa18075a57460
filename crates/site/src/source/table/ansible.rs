//! Ansible inventories, as INI and as YAML.
//!
//! Hosts become nodes, groups become groups of the node's partition (also those it is in through
//! `children`; not `all` and `ungrouped`). Of a host's name the first label counts. These variables
//! are understood, set on the host or on a group, the ones in front before the others:
//!
//! | variable | meaning |
//! | --- | --- |
//! | `hoist_mac`, `mac`, `mac_address`, `macaddress` | MACs, separated by `;` or <code>&#124;</code>, or a list |
//! | `hoist_ip`, `ip`, `ansible_host` | addresses, one for each MAC or all on one; a host name in `ansible_host` is ignored |
//! | `hoist_xname`, `xname` | the xname |
//! | `hoist_nid`, `nid` | the nid |
//! | `hoist_partition` | the partition |
//! | `hoist_role`, `hoist_subrole` | role and subrole |
//! | `hoist_arch`, `ansible_architecture` | the architecture |
//! | `hoist_bmc`, `bmc` | xname, host name or address of the BMC |
//! | `hoist_label_KEY` | the label KEY |
//!
//! All others are ignored: they often hold passwords. Ranges (`node[01:16]`, `rack-[a:d]`) are
//! expanded.

mod ini;
mod yml;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use hoist_model::node::Bmc;
use hoist_model::{LabelKey, Name, Nid, NodeSpec, Role};
use serde_json::Value;

use super::{Diagnostics, MAX_NODES, TableError, groups, list, pair, settle_strictly};
use crate::source::value::Reader;
use crate::source::{Field, FieldSet, ImportedNode, ImportedSet, yaml};

const FIELDS: [Field; 11] = [
    Field::Name,
    Field::Xname,
    Field::Nid,
    Field::Partition,
    Field::Groups,
    Field::Interfaces,
    Field::Arch,
    Field::Role,
    Field::Subrole,
    Field::Bmc,
    Field::Labels,
];

type Vars = BTreeMap<String, Value>;

/// What both forms are read into.
#[derive(Debug, Default)]
struct Inventory {
    hosts: BTreeMap<String, Host>,
    groups: BTreeMap<String, Group>,
}

#[derive(Debug, Default)]
struct Host {
    line: u64,
    vars: Vars,
}

#[derive(Debug, Default)]
struct Group {
    hosts: BTreeSet<String>,
    children: BTreeSet<String>,
    vars: Vars,
}

/// `what` names the file in errors. The first line with content decides between INI and YAML.
pub fn read(what: &str, text: &[u8]) -> Result<ImportedSet, TableError> {
    let mut diagnostics = Diagnostics::new(what);
    let text = match yaml::utf8(text) {
        Ok(text) => text,
        Err(message) => return diagnostics.fail(0, message),
    };
    let inventory = if is_yaml(text) {
        yml::read(text, &mut diagnostics)
    } else {
        ini::read(text, &mut diagnostics)
    };
    if !diagnostics.is_empty() {
        return Err(diagnostics.into_error());
    }
    inventory.import(diagnostics)
}

fn is_yaml(text: &str) -> bool {
    let first = text.lines().map(str::trim_end).find(|line| {
        let line = line.trim_start();
        !line.is_empty() && !line.starts_with(['#', ';'])
    });
    first.is_some_and(|line| {
        let before_comment = line.split(" #").next().unwrap_or(line).trim_end();
        line.starts_with("---") || line.starts_with('{') || before_comment.ends_with(':')
    })
}

impl Inventory {
    fn import(self, mut diagnostics: Diagnostics) -> Result<ImportedSet, TableError> {
        if self.hosts.is_empty() {
            return diagnostics.fail(0, "the inventory has no hosts");
        }
        let Some(depths) = self.depths() else {
            return diagnostics.fail(0, "groups are children of each other in a circle");
        };
        let parents = self.parents();
        let mut nodes = Vec::with_capacity(self.hosts.len());
        let mut lines = HashMap::new();
        // Groups of equal members share their ancestors; one walk for each group, not each host.
        let mut above: HashMap<&str, BTreeSet<&str>> = HashMap::new();
        let mut direct: HashMap<&str, Vec<&str>> = HashMap::new();
        for (name, group) in &self.groups {
            above.insert(name, ancestors(name, &parents));
            for host in &group.hosts {
                direct.entry(host).or_default().push(name);
            }
        }
        for (name, host) in &self.hosts {
            let mut member: BTreeSet<&str> = BTreeSet::from(["all"]);
            for group in direct.get(name.as_str()).into_iter().flatten() {
                member.insert(group);
                member.extend(&above[group]);
            }
            let mut order: Vec<&str> = member.iter().copied().collect();
            order.sort_by_key(|group| (depths.get(group).copied().unwrap_or(0), *group));
            let layers = order.iter().filter_map(|group| self.groups.get(*group));
            let mut vars: BTreeMap<&str, &Value> = BTreeMap::new();
            for layer in layers.map(|group| &group.vars).chain([&host.vars]) {
                vars.extend(layer.iter().map(|(key, value)| (key.as_str(), value)));
            }
            let mut warnings = Vec::new();
            let names = member.into_iter().filter(|g| !matches!(*g, "all" | "ungrouped"));
            let mut reader = Reader { subject: name, warnings: &mut warnings };
            let node = node(name, names, &vars, &mut reader);
            lines.insert(name.clone(), host.line);
            for warning in warnings {
                diagnostics.add(host.line, warning.to_string());
            }
            if diagnostics.is_full() {
                break;
            }
            nodes.push(node);
        }
        let nodes = settle_strictly(nodes, &lines, &mut diagnostics);
        let fields: FieldSet = FIELDS.into_iter().collect();
        diagnostics.finish(ImportedSet { nodes, fields, ..ImportedSet::default() })
    }

    fn parents(&self) -> HashMap<&str, Vec<&str>> {
        let mut parents: HashMap<&str, Vec<&str>> = HashMap::new();
        for (name, group) in &self.groups {
            for child in &group.children {
                parents.entry(child).or_default().push(name);
            }
        }
        parents
    }

    /// The longest way from the top to each group, for the order of variables. `None` for a circle.
    fn depths(&self) -> Option<HashMap<&str, usize>> {
        let mut waiting: HashMap<&str, usize> = HashMap::new();
        for child in self.groups.values().flat_map(|group| &group.children) {
            *waiting.entry(child).or_default() += 1;
        }
        // `all` is above every group, even when the file does not mention it.
        let start = |name: &&str| usize::from(*name != "all");
        let mut ready: Vec<&str> =
            self.groups.keys().map(String::as_str).filter(|n| !waiting.contains_key(n)).collect();
        let mut depths: HashMap<&str, usize> =
            ready.iter().map(|name| (*name, start(name))).collect();
        let mut done = 0;
        while let Some(name) = ready.pop() {
            done += 1;
            let below = depths[name] + 1;
            let Some(group) = self.groups.get(name) else { continue };
            for child in &group.children {
                let depth = depths.entry(child).or_default();
                *depth = below.max(*depth);
                let left = waiting.get_mut(child.as_str())?;
                *left -= 1;
                if *left == 0 {
                    ready.push(child);
                }
            }
        }
        let known: BTreeSet<&str> = self
            .groups
            .iter()
            .flat_map(|(name, g)| g.children.iter().map(String::as_str).chain([name.as_str()]))
            .collect();
        (done == known.len()).then_some(depths)
    }
}

fn ancestors<'a>(name: &'a str, parents: &HashMap<&'a str, Vec<&'a str>>) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let mut open = vec![name];
    while let Some(name) = open.pop() {
        for parent in parents.get(name).into_iter().flatten() {
            if found.insert(*parent) {
                open.push(parent);
            }
        }
    }
    found
}

fn node<'g>(
    host: &str,
    names: impl IntoIterator<Item = &'g str>,
    vars: &BTreeMap<&str, &Value>,
    reader: &mut Reader<'_>,
) -> ImportedNode {
    let text = |keys: &[&str]| -> String {
        keys.iter().find_map(|key| vars.get(key).map(|value| flat(value))).unwrap_or_default()
    };
    let by_address = host.parse::<IpAddr>().is_ok();
    let name = if by_address {
        None
    } else {
        reader.parse::<Name>(host.split('.').next().unwrap_or_default())
    };
    let mut ips = text(&["hoist_ip", "ip"]);
    if ips.is_empty() {
        // Ansible may reach the host by a name; that is no address to give it.
        let reached = text(&["ansible_host"]);
        let address = [reached.as_str(), host].into_iter().find(|a| a.parse::<IpAddr>().is_ok());
        address.unwrap_or_default().clone_into(&mut ips);
    }
    let macs = text(&["hoist_mac", "mac", "mac_address", "macaddress"]);
    // Where no MAC is known, the address Ansible uses is of no use to us.
    let explicit = vars.contains_key("hoist_ip");
    let ips = if macs.is_empty() && !explicit { Vec::new() } else { list(&ips) };
    let mut spec = NodeSpec {
        xname: reader.node_xname(&text(&["hoist_xname", "xname"])),
        nid: reader.parse::<Nid>(&text(&["hoist_nid", "nid"])),
        groups: groups(names, reader),
        interfaces: pair(&list(&macs), &ips, reader),
        arch: reader.arch(&text(&["hoist_arch", "ansible_architecture"])),
        role: reader.parse::<Role>(&text(&["hoist_role"])),
        subrole: reader.parse::<Role>(&text(&["hoist_subrole"])),
        ..NodeSpec::default()
    };
    if let Some(partition) = reader.parse::<Name>(&text(&["hoist_partition"])) {
        spec.partition = partition;
    }
    let bmc = text(&["hoist_bmc", "bmc"]);
    if !bmc.is_empty() {
        spec.bmc = Some(Box::new(Bmc { r#ref: bmc, protocol: None }));
    }
    let labels = vars.iter().filter_map(|(key, value)| {
        let key = key.strip_prefix("hoist_label_")?;
        Some((reader.parse::<LabelKey>(key)?, flat(value)))
    });
    spec.labels = labels.collect();
    ImportedNode { external_id: host.to_owned(), name, spec, state: None }
}

/// A value as one text; a list as our lists are written.
fn flat(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.trim().to_owned(),
        Value::Array(items) => items.iter().map(flat).collect::<Vec<_>>().join(";"),
        other => other.to_string(),
    }
}

/// `node[01:03]` -> `node01`, `node02`, `node03`. Several ranges multiply.
fn expand(pattern: &str, left: usize) -> Result<Vec<String>, String> {
    let mut names = vec![String::new()];
    let mut rest = pattern;
    while let Some((before, tail)) = rest.split_once('[') {
        let (range, after) =
            tail.split_once(']').ok_or_else(|| format!("`{pattern}` has no closing bracket"))?;
        let values = values(range)
            .ok_or_else(|| format!("`[{range}]` is no range; write it like [01:16] or [a:f]"))?;
        if names.len().saturating_mul(values.len()) > left {
            return Err(format!("there are more than {MAX_NODES} hosts"));
        }
        names = names
            .iter()
            .flat_map(|name| values.iter().map(move |value| format!("{name}{before}{value}")))
            .collect();
        rest = after;
    }
    for name in &mut names {
        name.push_str(rest);
    }
    Ok(names)
}

fn values(range: &str) -> Option<Vec<String>> {
    let mut parts = range.split(':');
    let start = parts.next()?;
    let end = parts.next()?;
    let step: usize = parts.next().map_or(Some(1), |step| step.parse().ok())?;
    if parts.next().is_some() || step == 0 {
        return None;
    }
    if let (Ok(first), Ok(last)) = (start.parse::<u32>(), end.parse::<u32>()) {
        let plain = start.bytes().chain(end.bytes()).all(|b| b.is_ascii_digit());
        if !plain || first > last || (last - first) as usize / step >= MAX_NODES {
            return None;
        }
        let width = if start.starts_with('0') { start.len().min(10) } else { 0 };
        return Some((first..=last).step_by(step).map(|n| format!("{n:0width$}")).collect());
    }
    let letter = |text: &str| match text.as_bytes() {
        [byte] if byte.is_ascii_alphabetic() => Some(*byte),
        _ => None,
    };
    let first = letter(start)?;
    let last = letter(end)?;
    (first <= last)
        .then(|| (first..=last).step_by(step).map(|b| char::from(b).to_string()).collect())
}
