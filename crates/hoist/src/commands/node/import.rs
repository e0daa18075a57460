//! `hoist node import`: files are read here and applied as documents; SMD is read by the controller.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use hoist_api::client::Client;
use hoist_api::inventory::{Group, ImportRequest, NetworkObject, PartitionObject};
use hoist_diagnostic::chain;
use hoist_model::{Document, Exit, GroupSpec, Name, NetworkSpec, NodeSpec, PartitionSpec};
use hoist_site::source::table;
use hoist_site::source::{self, FieldSet, ImportedSet, SourceError};

use super::Shell;
use crate::commands::{get, group, refresh};
use crate::edit::{self, WriteArgs};
use crate::failure::Failure;
use crate::input::{self, Documents};

/// Import nodes from another inventory
///
/// Nodes of a file are declared as if people had written them: shown first, then applied in one
/// transaction. Of existing nodes, only the fields that the file has are changed. Nodes from SMD
/// belong to SMD from then on.
#[derive(Debug, Args)]
pub(super) struct ImportArgs {
    #[command(subcommand)]
    from: From,
}

#[derive(Debug, Subcommand)]
enum From {
    /// From hoist documents
    #[command(after_help = "Examples:\n  hoist node import hoist nodes.yaml --dry-run")]
    Hoist(FileArgs),
    /// From ochami's static discovery file
    #[command(after_help = "Examples:\n  hoist node import ochami nodes.yaml --dry-run")]
    Ochami(FileArgs),
    /// From a table with a header line
    #[command(after_help = "Examples:\n  hoist node import csv machines.csv --dry-run\n  \
        hoist node import csv - < machines.csv")]
    Csv(FileArgs),
    /// From an Ansible inventory, INI or YAML
    #[command(after_help = "Examples:\n  hoist node import ansible hosts.ini")]
    Ansible(FileArgs),
    /// From SMD, one cycle run by the controller; `hoist serve --inventory smd+https://…` repeats it
    ///
    /// Exit code 7: more nodes are missing in SMD than one import may remove, and none was removed.
    #[command(after_help = "Examples:\n  hoist node import smd --url http://smd:27779\n  \
        hoist node import smd --url https://smd --smd-token-file /etc/hoist/smd.token")]
    Smd(SmdArgs),
}

#[derive(Debug, Args)]
struct FileArgs {
    /// The file; `-` for standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,

    #[command(flatten)]
    write: WriteArgs,
}

#[derive(Debug, Args)]
struct SmdArgs {
    /// URL of SMD, as seen by the controller; the default path is `/hsm/v2`
    #[arg(long, value_name = "URL")]
    url: String,

    /// One cycle; there is no other way to run it from here
    #[arg(long, hide = true)]
    once: bool,

    /// File on the controller with the token for SMD
    #[arg(long, value_name = "FILE")]
    smd_token_file: Option<PathBuf>,

    /// Name of the source in the nodes' provenance; `smd` by default
    #[arg(long, value_name = "NAME")]
    source: Option<Name>,

    /// Take over nodes that are declared already, when xname or MAC is the same
    #[arg(long)]
    adopt: bool,

    /// Remove nodes that SMD no longer has however many they are
    #[arg(long)]
    force: bool,
}

impl ImportArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let (args, reader): (_, Reader) = match self.from {
            From::Hoist(args) | From::Ochami(args) => (args, read_file),
            From::Csv(args) => (args, read_csv),
            From::Ansible(args) => (args, read_ansible),
            From::Smd(args) => return smd(shell, args).await,
        };
        let imported = read(&args.file, reader)?;
        for warning in &imported.warnings {
            shell.printer.warn(&warning.to_string());
        }
        let client = shell.client()?;
        edit::modify(shell, &client, &args.write, async || onto_site(&client, &imported).await)
            .await
    }
}

type Reader = fn(&str, &[u8]) -> Result<ImportedSet, Failure>;

fn read(path: &Path, reader: Reader) -> Result<ImportedSet, Failure> {
    let text = input::read_whole(path)?;
    let stdin = path.as_os_str() == "-";
    let what = if stdin { "standard input".to_owned() } else { path.display().to_string() };
    reader(&what, &text)
}

fn read_file(what: &str, text: &[u8]) -> Result<ImportedSet, Failure> {
    source::file::read(what, text).map_err(|error| match error {
        SourceError::Documents { errors, .. } => Failure::Documents(errors),
        // An invalid file is a usage error.
        other => Failure::usage(chain(&other)),
    })
}

fn read_csv(what: &str, text: &[u8]) -> Result<ImportedSet, Failure> {
    table::read_csv(what, text).map_err(|error| Failure::Documents(error.diagnostics))
}

fn read_ansible(what: &str, text: &[u8]) -> Result<ImportedSet, Failure> {
    table::read_ansible(what, text).map_err(|error| Failure::Documents(error.diagnostics))
}

/// The existing objects that an import must leave alone.
#[derive(Debug, Default)]
struct Site {
    /// Partitions, networks and groups, as documents are named.
    names: BTreeSet<String>,
    nodes: BTreeMap<Name, NodeSpec>,
}

async fn onto_site(client: &Client, imported: &ImportedSet) -> Result<Documents, Failure> {
    let mut site = Site::default();
    for name in client.list::<PartitionObject>().await?.items.into_iter().filter_map(|p| p.name) {
        site.names.insert(format!("Partition/{name}"));
    }
    for name in client.list::<NetworkObject>().await?.items.into_iter().filter_map(|n| n.name) {
        site.names.insert(format!("Network/{name}"));
    }
    for known in client.list::<Group>().await?.items {
        site.names.insert(format!("Group/{}", group::key_of(&known)?));
    }
    let names: Vec<Name> = imported.nodes.iter().map(name_of).collect::<Result<_, _>>()?;
    for document in get::node_documents(client, &names).await? {
        if let Document::Node(name, spec) = document {
            site.nodes.insert(name, *spec);
        }
    }
    Documents::of(&documents(imported, &site)?)
}

/// The documents of an import. A file that only mentions a group, network or partition does not
/// describe it, so existing ones stay as they are.
fn documents(imported: &ImportedSet, site: &Site) -> Result<Vec<Document>, Failure> {
    let mut found = Vec::new();
    let mut add = |document: Document, says_something: bool| {
        let known = site.names.contains(&format!("{}/{}", document.kind(), document.name()));
        if says_something || !known {
            found.push(document);
        }
    };
    for (name, spec) in &imported.partitions {
        let says = *spec != PartitionSpec::default();
        add(Document::Partition(name.clone(), spec.clone()), says);
    }
    for (name, spec) in &imported.networks {
        let says = *spec != NetworkSpec::default();
        add(Document::Network(name.clone(), spec.clone()), says);
    }
    for (key, spec) in &imported.groups {
        let says = *spec != GroupSpec::default();
        add(Document::Group(key.clone(), spec.clone()), says);
    }
    for node in &imported.nodes {
        let name = name_of(node)?;
        let spec = match site.nodes.get(&name) {
            Some(known) => overlaid(known, &node.spec, imported.fields)?,
            None => node.spec.clone(),
        };
        found.push(Document::node(name, spec));
    }
    Ok(found)
}

/// Its own name, else one made from its nid as the server does.
fn name_of(node: &source::ImportedNode) -> Result<Name, Failure> {
    let made = || node.spec.nid.and_then(|nid| format!("nid{:06}", nid.get()).parse().ok());
    node.name.clone().or_else(made).ok_or_else(|| {
        Failure::usage(format!("`{}` has neither a name nor a nid", node.external_id))
            .with_hint("give every node of the file a name")
    })
}

/// A node with those fields changed that the source knows about.
fn overlaid(known: &NodeSpec, said: &NodeSpec, fields: FieldSet) -> Result<NodeSpec, Failure> {
    let object = |spec| match serde_json::to_value(spec) {
        Ok(serde_json::Value::Object(object)) => Ok(object),
        Ok(_) => Err(Failure::Broken("a node is not an object".into())),
        Err(error) => Err(Failure::Json(error)),
    };
    let mut result = object(known)?;
    let mut said = object(said)?;
    for field in fields.iter() {
        match said.remove(field.as_str()) {
            Some(value) => result.insert(field.as_str().to_owned(), value),
            None => result.remove(field.as_str()),
        };
    }
    serde_json::from_value(result.into()).map_err(Failure::Json)
}

async fn smd(shell: &mut Shell, args: SmdArgs) -> Result<Exit, Failure> {
    let request = ImportRequest {
        url: format!("smd+{}", args.url),
        source: args.source,
        token_file: args.smd_token_file,
        adopt: args.adopt,
        force: args.force,
    };
    let report = shell.client()?.import(&request).await?;
    refresh::print(shell, &report, "run this command with `--force`")?;
    Ok(refresh::exit(&report))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(documents: &[Document]) -> Vec<String> {
        documents.iter().map(|d| format!("{}/{}", d.kind(), d.name())).collect()
    }

    #[test]
    fn file_content_becomes_documents() {
        let text =
            b"api: hoist/v1\nkind: Node\nname: n1\n---\napi: hoist/v1\nkind: Network\nname: boot\n";
        let found = documents(&read_file("f", text).unwrap(), &Site::default()).unwrap();
        assert_eq!(names(&found), ["Network/boot", "Node/n1"]);
    }

    #[test]
    fn fields_beyond_a_table_stay_unchanged() {
        let text = b"name,mac,role,groups\nn1,52:54:00:00:00:01,compute,gpu\n";
        let imported = read_csv("m.csv", text).unwrap();
        let fresh = documents(&imported, &Site::default()).unwrap();
        assert_eq!(names(&fresh), ["Partition/default", "Group/default/gpu", "Node/n1"]);

        let known: NodeSpec =
            serde_json::from_value(serde_json::json!({"role": "login", "data": {"a": 1}})).unwrap();
        let site = Site {
            names: ["Partition/default".to_owned(), "Group/default/gpu".to_owned()].into(),
            nodes: [("n1".parse().unwrap(), known)].into(),
        };
        let found = documents(&imported, &site).unwrap();
        assert_eq!(names(&found), ["Node/n1"]);
        let Document::Node(_, spec) = &found[0] else { panic!("a node") };
        assert_eq!(spec.role.as_deref(), Some("compute"));
        assert!(spec.data.is_some(), "a table has no column for it");
    }

    #[test]
    fn table_import_reports_every_problem_with_its_line() {
        let failure = read_csv("m.csv", b"name,mac\nn1,kettle\nn2,52:54:00:00:00:01\n-,x\n");
        let Failure::Documents(found) = failure.unwrap_err() else { panic!("problems of lines") };
        assert!(found.len() >= 2, "{found:?}");
        assert_eq!(found[0].at, "m.csv:2");
        let failure = read_file("f", b"api: hoist/v1\nkind: Node\nname: n1\nspec: {rol: x}\n");
        assert!(matches!(failure, Err(Failure::Documents(_))));
        assert_eq!(read_file("f", b"").unwrap_err().exit(), Exit::Usage);
    }
}
