//! The file BSS can be given instead of an SMD: `{"Components": […], "IPAddresses": {…}}`. It is
//! SMD's data half joined, so it goes through the same join.

use std::collections::{BTreeMap, HashMap};

use compact_str::{CompactString, ToCompactString};
use hoist_model::Name;
use serde::Deserialize;

use crate::source::smd::wire::{Address, Component, EthernetInterface, NidValue};
use crate::source::smd::{FIELDS, JoinOptions, join, key};
use crate::source::{Field, FieldSet, ImportedSet, Warning, WarningKind, settle};

/// BSS reads the keys without looking at their case, and its own example writes `Id`.
#[derive(Debug, Deserialize)]
pub(super) struct File {
    #[serde(rename = "Components")]
    components: Vec<Record>,
    /// By IP: the interface that has it, or just the xname of the node.
    #[serde(rename = "IPAddresses", default)]
    addresses: Option<BTreeMap<String, Owner>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Record {
    #[serde(rename = "ID", alias = "Id", alias = "id")]
    id: CompactString,
    #[serde(default)]
    r#type: CompactString,
    #[serde(default)]
    state: CompactString,
    #[serde(default)]
    enabled: Option<bool>,
    #[serde(default)]
    role: CompactString,
    #[serde(default)]
    sub_role: CompactString,
    #[serde(default, rename = "NID", alias = "Nid", alias = "nid")]
    nid: Option<NidValue>,
    #[serde(default)]
    arch: CompactString,
    #[serde(default, rename = "FQDN", alias = "Fqdn", alias = "fqdn")]
    fqdn: String,
    #[serde(default, rename = "MAC", alias = "Mac", alias = "mac")]
    macs: Option<Vec<CompactString>>,
    #[serde(default)]
    endpoint_enabled: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Owner {
    Xname(CompactString),
    Interface {
        #[serde(rename = "ComponentID", default)]
        component_id: CompactString,
        #[serde(rename = "MACAddress", default)]
        mac: CompactString,
    },
}

pub(super) fn read(file: File) -> ImportedSet {
    let mut warnings = Vec::new();
    let mut interfaces = Vec::new();
    let mut components = Vec::with_capacity(file.components.len());
    let mut names: HashMap<String, Name> = HashMap::new();
    // Where the interfaces of a component start and how many there are.
    let mut places: HashMap<CompactString, (usize, usize)> = HashMap::new();
    for record in file.components {
        let macs = record.macs.unwrap_or_default();
        places.insert(key(&record.id), (interfaces.len(), macs.len()));
        interfaces.extend(macs.into_iter().map(|mac| EthernetInterface {
            mac,
            component_id: record.id.clone(),
            addresses: Vec::new(),
        }));
        let label = record.fqdn.split('.').next().unwrap_or_default();
        // Where the domain only repeats the xname, the site's template names the node better.
        if let Ok(name) = label.parse::<Name>()
            && !label.eq_ignore_ascii_case(&record.id)
        {
            names.insert(key(&record.id).into(), name);
        }
        let enabled = record.enabled.unwrap_or(true) && record.endpoint_enabled.unwrap_or(true);
        components.push(Component {
            id: record.id,
            r#type: record.r#type,
            state: record.state,
            enabled: Some(enabled),
            role: record.role,
            sub_role: record.sub_role,
            nid: record.nid,
            arch: record.arch,
        });
    }
    for (ip, owner) in file.addresses.unwrap_or_default() {
        place_address(&ip, &owner, &places, &mut interfaces, &mut warnings);
    }
    let mut imported =
        join(components, interfaces, Vec::new(), Vec::new(), &JoinOptions::default());
    imported.fields = FIELDS
        .into_iter()
        .filter(|field| !matches!(field, Field::Partition | Field::Groups))
        .chain([Field::Name])
        .collect::<FieldSet>();
    for node in &mut imported.nodes {
        node.name = names.remove(&node.external_id);
    }
    warnings.append(&mut imported.warnings);
    imported.nodes = settle(imported.nodes, &mut warnings);
    imported.warnings = warnings;
    imported
}

fn place_address(
    ip: &str,
    owner: &Owner,
    places: &HashMap<CompactString, (usize, usize)>,
    interfaces: &mut [EthernetInterface],
    warnings: &mut Vec<Warning>,
) {
    let (id, mac) = match owner {
        Owner::Xname(id) => (id, ""),
        Owner::Interface { component_id, mac } => (component_id, mac.as_str()),
    };
    let mut warn = |message: String| warnings.push(Warning::new(WarningKind::Value, ip, message));
    let Some((start, count)) = places.get(&key(id)).copied() else {
        return warn(format!("it belongs to `{id}`, which is not in the file"));
    };
    let own = &mut interfaces[start..start + count];
    let same = |nic: &EthernetInterface| {
        nic.mac.parse::<hoist_model::Mac>().ok() == mac.parse::<hoist_model::Mac>().ok()
    };
    let found = match own.iter().position(|nic| !mac.is_empty() && same(nic)) {
        Some(found) => Some(found),
        None if count == 0 => None,
        None => {
            if count > 1 {
                warn(format!(
                    "which of the {count} interfaces of `{id}` has it is not said; the first is taken"
                ));
            }
            Some(0)
        }
    };
    match found {
        Some(found) => own[found]
            .addresses
            .push(Address { ip: ip.to_compact_string(), network: CompactString::default() }),
        None => warn(format!("it belongs to `{id}`, which has no interface")),
    }
}
