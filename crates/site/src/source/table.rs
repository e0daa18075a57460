//! Lists of machines as people keep them: CSV and Ansible inventories. Pure parsers, for
//! `hoist node import`.
//!
//! These are written by hand and read once, so a mistake is an error with its line, and a file
//! with errors yields nothing.

mod ansible;
mod csv;

use std::collections::HashMap;

use hoist_diagnostic::Diagnostic;
use hoist_model::Interface;
use hoist_model::node::Groups;
use ipnet::IpNet;

pub use ansible::read as read_ansible;
pub use csv::read as read_csv;

use super::value::{Reader, interface};
use super::{ImportedNode, ImportedSet, Warning, WarningKind, declare_named, settle};

/// Most machines in one file.
const MAX_NODES: usize = 1_000_000;
/// Most errors reported at once.
const MAX_DIAGNOSTICS: usize = 100;

/// Everything wrong with a file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", lines(.diagnostics))]
pub struct TableError {
    /// Each at `file:line`, or at `file` if the whole file is meant. Never empty.
    pub diagnostics: Vec<Diagnostic>,
}

fn lines(diagnostics: &[Diagnostic]) -> String {
    diagnostics.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// Collects the problems of a file, so that a person corrects it once.
#[derive(Debug)]
struct Diagnostics {
    file: String,
    /// By line, from 1; 0 means the whole file.
    found: Vec<(u64, String)>,
}

impl Diagnostics {
    fn new(file: &str) -> Self {
        Self { file: file.to_owned(), found: Vec::new() }
    }

    fn add(&mut self, line: u64, message: impl Into<String>) {
        if self.found.len() < MAX_DIAGNOSTICS {
            self.found.push((line, message.into()));
        }
    }

    fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// A warning of the shared readers is an error in a hand-written file.
    fn add_warnings(&mut self, line: u64, warnings: Vec<Warning>) {
        for warning in warnings {
            self.add(line, warning.message);
        }
    }

    fn is_full(&self) -> bool {
        self.found.len() >= MAX_DIAGNOSTICS
    }

    fn fail<T>(mut self, line: u64, message: impl Into<String>) -> Result<T, TableError> {
        self.add(line, message);
        Err(self.into_error())
    }

    fn into_error(mut self) -> TableError {
        self.found.sort();
        let file = self.file;
        let located = |(line, message): (u64, String)| match line {
            0 => Diagnostic::new(file.clone(), message),
            line => Diagnostic::new(format!("{file}:{line}"), message),
        };
        TableError { diagnostics: self.found.into_iter().map(located).collect() }
    }

    fn finish(self, mut imported: ImportedSet) -> Result<ImportedSet, TableError> {
        declare_named(&mut imported);
        if self.found.is_empty() { Ok(imported) } else { Err(self.into_error()) }
    }
}

/// Two machines with one address are a mistake in the file; `lines` tells where each stands.
fn settle_strictly(
    nodes: Vec<ImportedNode>,
    lines: &HashMap<String, u64>,
    diagnostics: &mut Diagnostics,
) -> Vec<ImportedNode> {
    let mut clashes = Vec::new();
    let nodes = settle(nodes, &mut clashes);
    for clash in clashes {
        let line = lines.get(&clash.subject).copied().unwrap_or(0);
        diagnostics.add(line, clash.to_string());
    }
    for node in &nodes {
        let line = lines.get(&node.external_id).copied().unwrap_or(0);
        for found in node.spec.check() {
            diagnostics.add(line, format!("{}: {found}", node.external_id));
        }
    }
    nodes
}

/// MACs and addresses that belong together by their position; one MAC may have all addresses.
fn pair(macs: &[&str], ips: &[&str], reader: &mut Reader<'_>) -> Vec<Interface> {
    let mut interfaces: Vec<Interface> =
        macs.iter().filter_map(|text| strict_mac(text, reader)).map(interface).collect();
    let addresses: Vec<IpNet> = ips.iter().filter_map(|text| reader.address(text)).collect();
    if addresses.is_empty() || interfaces.len() != macs.len() {
        return interfaces;
    }
    match interfaces.as_mut_slice() {
        [] => reader.warn(WarningKind::Value, "an address needs the MAC of its interface"),
        [only] => only.addresses = addresses,
        several if several.len() == ips.len() => {
            for (interface, address) in several.iter_mut().zip(addresses) {
                interface.addresses.push(address);
            }
        }
        several => {
            let message = format!(
                "which of {} addresses belongs to which of {} interfaces? Give one address for \
                 each MAC",
                ips.len(),
                several.len()
            );
            reader.warn(WarningKind::Value, message);
        }
    }
    interfaces
}

/// Unlike in SMD, a placeholder in a hand-written file is a mistake.
fn strict_mac(text: &str, reader: &mut Reader<'_>) -> Option<hoist_model::Mac> {
    let mac: hoist_model::Mac = reader.parse(text)?;
    if !mac.is_unicast() {
        reader.warn(WarningKind::Value, format!("{mac} cannot belong to one interface"));
        return None;
    }
    Some(mac)
}

/// `a;b|c` as a list. Empty parts are nothing.
fn list(text: &str) -> Vec<&str> {
    text.split([';', '|']).map(str::trim).filter(|part| !part.is_empty()).collect()
}

fn groups<'t>(names: impl IntoIterator<Item = &'t str>, reader: &mut Reader<'_>) -> Groups {
    reader.groups(names).into_iter().collect()
}

#[cfg(test)]
mod tests;
