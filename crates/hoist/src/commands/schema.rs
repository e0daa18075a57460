//! `hoist schema`.

use clap::Args;
use hoist_model::{Exit, Kind, nearest};

use super::Shell;
use crate::failure::Failure;

/// Print the JSON Schema of a kind of document
///
/// Editors check and complete documents with it. Without a kind, all kinds are listed.
/// `provision-document` is the input of `hoist-agent plan -f`, `cluster-what-if` that of
/// `hoist cluster plan --what-if`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist schema\n  hoist schema node > node.schema.json\n  \
    hoist schema group -o yaml\n  hoist schema provision-document\n  hoist schema cluster-what-if")]
pub(crate) struct SchemaArgs {
    /// Partition, Network, Group, Node, Artifact, `BootConfig`, `MetadataLayer`, `ProvisionProfile`,
    /// `provision-document` or `cluster-what-if`
    #[arg(value_name = "KIND")]
    kind: Option<String>,
}

/// Documents that are no resources of a site.
const PROVISION: &str = "provision-document";
const WHAT_IF: &str = "cluster-what-if";

impl SchemaArgs {
    pub(crate) fn run(&self, shell: &mut Shell) -> Result<Exit, Failure> {
        match &self.kind {
            Some(word) if word == PROVISION => {
                shell.printer.value(&hoist_provision::document::Document::schema())?;
            }
            Some(word) if word == WHAT_IF => {
                shell.printer.value(&hoist_cluster::what_if::WhatIf::schema())?;
            }
            Some(word) => shell.printer.value(&kind(word)?.schema())?,
            None => {
                let kinds = Kind::ALL.iter().map(|kind| kind.as_str());
                kinds.chain([PROVISION, WHAT_IF]).try_for_each(|kind| shell.printer.line(kind))?;
            }
        }
        Ok(Exit::Done)
    }
}

/// A kind as people spell it.
pub(crate) fn kind(word: &str) -> Result<Kind, Failure> {
    Kind::from_word(word).ok_or_else(|| {
        let known = Kind::ALL.map(|kind| kind.as_str().to_ascii_lowercase());
        let hint = match nearest(&word.to_ascii_lowercase(), known.iter().map(String::as_str)) {
            Some(meant) => format!("did you mean `{meant}`?"),
            None => format!("use one of {}", known.join(", ")),
        };
        Failure::usage(format!("unknown kind `{word}`")).with_hint(hint)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_may_be_spelled_as_people_do() {
        for word in ["Node", "node", "nodes"] {
            assert_eq!(kind(word).unwrap(), Kind::Node);
        }
        let hint = kind("netwrok").unwrap_err().render().hint;
        assert_eq!(hint.as_deref(), Some("did you mean `network`?"));
    }
}
