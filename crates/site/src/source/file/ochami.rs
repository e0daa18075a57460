//! The file that `ochami discover static` reads: `bmcs` and `nodes`, and the older form in which a
//! node carries its BMC's addresses itself.

use std::collections::HashMap;

use hoist_model::node::{Bmc, Groups};
use hoist_model::{Interface, InterfaceKind, Name, NodeSpec, Xname, XnameKind};
use serde::Deserialize;

use crate::source::value::{Reader, interface};
use crate::source::{
    Field, FieldSet, ImportedNode, ImportedSet, Warning, WarningKind, declare_named, settle,
};

#[derive(Debug, Deserialize)]
pub(super) struct File {
    #[serde(default)]
    bmcs: Option<Vec<BmcRecord>>,
    nodes: Vec<NodeRecord>,
}

#[derive(Debug, Clone, Default, Deserialize)]
struct BmcRecord {
    #[serde(default)]
    name: String,
    #[serde(default)]
    xname: String,
    #[serde(default)]
    mac: String,
    #[serde(default)]
    ip: String,
    #[serde(default)]
    fqdn: String,
}

#[derive(Debug, Deserialize)]
struct NodeRecord {
    #[serde(default)]
    name: String,
    #[serde(default)]
    nid: Option<i64>,
    #[serde(default)]
    xname: String,
    #[serde(default)]
    groups: Option<Vec<String>>,
    /// The older form.
    #[serde(default)]
    group: String,
    #[serde(default)]
    bmc: String,
    #[serde(default)]
    bmc_mac: String,
    #[serde(default)]
    bmc_ip: String,
    #[serde(default)]
    bmc_fqdn: String,
    #[serde(default)]
    interfaces: Option<Vec<InterfaceRecord>>,
}

#[derive(Debug, Deserialize)]
struct InterfaceRecord {
    #[serde(default)]
    mac_addr: String,
    #[serde(default)]
    ip_addrs: Option<Vec<AddressRecord>>,
}

#[derive(Debug, Deserialize)]
struct AddressRecord {
    #[serde(default, alias = "network")]
    name: String,
    #[serde(default)]
    ip_addr: String,
}

const FIELDS: [Field; 6] =
    [Field::Name, Field::Xname, Field::Nid, Field::Groups, Field::Interfaces, Field::Bmc];

pub(super) fn read(file: File) -> ImportedSet {
    let mut imported =
        ImportedSet { fields: FIELDS.into_iter().collect::<FieldSet>(), ..ImportedSet::default() };
    let warnings = &mut imported.warnings;
    let bmcs = Bmcs::new(file.bmcs.unwrap_or_default(), &file.nodes);
    let mut nodes = Vec::with_capacity(file.nodes.len());
    for (i, record) in file.nodes.iter().enumerate() {
        let subject = match (record.xname.trim(), record.name.trim()) {
            ("", "") => format!("nodes[{i}]"),
            ("", name) => name.to_owned(),
            (xname, _) => xname.to_owned(),
        };
        match node(&subject, record, &bmcs, warnings) {
            Some(node) => nodes.push(node),
            None => {
                imported.held.insert(subject);
            }
        }
    }
    nodes.sort_by_key(|node| (node.spec.xname.is_none(), node.spec.xname));
    imported.nodes = settle(nodes, warnings);
    declare_named(&mut imported);
    imported
}

fn node(
    subject: &str,
    record: &NodeRecord,
    bmcs: &Bmcs,
    warnings: &mut Vec<Warning>,
) -> Option<ImportedNode> {
    let mut reader = Reader { subject, warnings };
    let xname = reader.node_xname(&record.xname);
    let name = reader.parse::<Name>(&record.name);
    let labels = record.groups.iter().flatten().map(String::as_str).chain([record.group.as_str()]);
    let groups = reader.groups(labels).into_iter().collect::<Groups>();
    let nid = record.nid.and_then(|nid| reader.nid(nid));
    let mut interfaces: Vec<_> = record
        .interfaces
        .iter()
        .flatten()
        .filter_map(|record| read_interface(record, &mut reader))
        .collect();
    let (bmc, alone) = bmcs.of(record, xname.as_ref());
    if let Some(mac) = reader.mac(&bmc.mac).filter(|_| alone) {
        let mut found = interface(mac);
        found.name = "bmc".parse().expect("it is a valid name");
        found.kind = InterfaceKind::Bmc;
        found.addresses.extend(reader.address(&bmc.ip));
        interfaces.push(found);
    }
    let external_id = match (xname, &name) {
        (Some(xname), _) => xname.to_string(),
        (None, Some(name)) => name.to_string(),
        (None, None) => {
            reader.warn(WarningKind::Held, "it has neither a valid xname nor a name");
            return None;
        }
    };
    let bmc = bmc.reference().map(|r#ref| Bmc { r#ref, protocol: None });
    let mut spec =
        NodeSpec { xname, nid, groups, interfaces, bmc: bmc.map(Box::new), ..NodeSpec::default() };
    spec.shrink();
    Some(ImportedNode { external_id, name, spec, state: None })
}

fn read_interface(record: &InterfaceRecord, reader: &mut Reader<'_>) -> Option<Interface> {
    let mut found = interface(reader.mac(&record.mac_addr)?);
    for address in record.ip_addrs.iter().flatten() {
        found.addresses.extend(reader.address(&address.ip_addr));
        if found.network.is_none() {
            found.network = reader.network(&address.name);
        }
    }
    Some(found)
}

/// The BMCs by name and by xname, and how many nodes each has.
struct Bmcs {
    records: Vec<BmcRecord>,
    by_word: HashMap<String, usize>,
    nodes: Vec<usize>,
}

impl Bmcs {
    fn new(records: Vec<BmcRecord>, nodes: &[NodeRecord]) -> Self {
        let mut by_word = HashMap::new();
        for (i, record) in records.iter().enumerate() {
            for word in [word(&record.name), word(&record.xname)] {
                if !word.is_empty() {
                    by_word.entry(word).or_insert(i);
                }
            }
        }
        let mut bmcs = Self { nodes: vec![0; records.len()], records, by_word };
        for node in nodes {
            if let Some(found) = bmcs.find(node, node.xname.parse().ok().as_ref()) {
                bmcs.nodes[found] += 1;
            }
        }
        bmcs
    }

    fn find(&self, node: &NodeRecord, xname: Option<&Xname>) -> Option<usize> {
        let named = word(&node.bmc);
        if !named.is_empty() {
            return self.by_word.get(&named).copied();
        }
        let parent = xname.filter(|x| x.kind() == XnameKind::Node).and_then(Xname::parent)?;
        self.by_word.get(&parent.to_string()).copied()
    }

    /// A node's BMC, and whether the node has it for itself.
    fn of(&self, node: &NodeRecord, xname: Option<&Xname>) -> (BmcRecord, bool) {
        if let Some(found) = self.find(node, xname) {
            return (self.records[found].clone(), self.nodes[found] == 1);
        }
        let parent = xname.filter(|x| x.kind() == XnameKind::Node).and_then(Xname::parent);
        let record = BmcRecord {
            name: node.bmc.trim().to_owned(),
            xname: parent.map(|xname| xname.to_string()).unwrap_or_default(),
            mac: node.bmc_mac.clone(),
            ip: node.bmc_ip.clone(),
            fqdn: node.bmc_fqdn.clone(),
        };
        (record, true)
    }
}

impl BmcRecord {
    fn reference(&self) -> Option<String> {
        [&self.xname, &self.fqdn, &self.ip, &self.name]
            .into_iter()
            .map(|text| text.trim())
            .find(|text| !text.is_empty())
            .map(str::to_owned)
    }
}

/// An xname in its one spelling, anything else in lower case.
fn word(text: &str) -> String {
    match text.parse::<Xname>() {
        Ok(xname) => xname.to_string(),
        Err(_) => text.trim().to_lowercase(),
    }
}
