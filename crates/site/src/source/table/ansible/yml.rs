//! The YAML form: groups with `hosts`, `children` and `vars`, nested.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::super::{Diagnostics, MAX_NODES};
use super::{Inventory, Vars, expand};
use crate::source::yaml;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Node {
    #[serde(default)]
    hosts: Option<BTreeMap<String, Option<Vars>>>,
    #[serde(default)]
    children: Option<BTreeMap<String, Option<Node>>>,
    #[serde(default)]
    vars: Option<Vars>,
}

pub(super) fn read(text: &str, diagnostics: &mut Diagnostics) -> Inventory {
    let mut inventory = Inventory::default();
    match yaml::parse::<BTreeMap<String, Option<Node>>>(text.as_bytes()) {
        Ok(top) => {
            for (name, group) in top {
                add(&name, group.unwrap_or_default(), &mut inventory, diagnostics);
            }
        }
        Err(message) => diagnostics.add(0, message),
    }
    inventory
}

/// As deep as the parser lets it be.
fn add(name: &str, node: Node, inventory: &mut Inventory, diagnostics: &mut Diagnostics) {
    if diagnostics.is_full() {
        return;
    }
    let group = inventory.groups.entry(name.to_owned()).or_default();
    group.vars.extend(node.vars.unwrap_or_default());
    for (pattern, vars) in node.hosts.unwrap_or_default() {
        let left = MAX_NODES.saturating_sub(inventory.hosts.len());
        let names = match expand(&pattern, left) {
            Ok(names) => names,
            Err(message) => {
                diagnostics.add(0, message);
                continue;
            }
        };
        let vars = vars.unwrap_or_default();
        for host in names {
            let known = inventory.hosts.entry(host.clone()).or_default();
            known.vars.extend(vars.iter().map(|(key, value)| (key.clone(), value.clone())));
            inventory.groups.entry(name.to_owned()).or_default().hosts.insert(host);
        }
    }
    for (child, node) in node.children.unwrap_or_default() {
        inventory.groups.entry(name.to_owned()).or_default().children.insert(child.clone());
        add(&child, node.unwrap_or_default(), inventory, diagnostics);
    }
}
