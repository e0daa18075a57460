//! `hoist get`: objects as the documents that `hoist apply` takes.

use clap::Args;
use hoist_api::artifact::ArtifactObject;
use hoist_api::boot::BootConfigObject;
use hoist_api::client::Client;
use hoist_api::inventory::{Group, NetworkObject, PartitionObject};
use hoist_api::metadata::MetadataLayerObject;
use hoist_api::provision::ProvisionProfileObject;
use hoist_model::{ArtifactName, ArtifactSpec, Document, Exit, GroupKey, Kind, Name};

use super::{
    Shell, artifact, boot, export, group, metadata, network, node, partition, provision, schema,
    selector,
};
use crate::failure::Failure;
use crate::node_ref;
use crate::printer::Output;
use crate::table::Table;

/// Show objects of a kind
///
/// Tables for people; with `-o yaml` or `-o json` the documents that `hoist apply` takes, so that
/// they can be edited and applied again. `hoist node show` and similar commands also show the
/// fields of the server.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist get nodes\n  hoist get node login1 -o yaml\n  \
    hoist get nodes -l 'compute & label:rack=7' -o name\n  hoist get group default/gpu -o json")]
pub(crate) struct GetArgs {
    /// Partition, Network, Group, Node, Artifact, `BootConfig`, `MetadataLayer` or
    /// `ProvisionProfile`
    #[arg(value_name = "KIND")]
    kind: String,

    /// Only the one of this name; a group is PARTITION/NAME
    #[arg(value_name = "NAME", conflicts_with = "selector")]
    name: Option<String>,

    /// Only the nodes of this selector
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    selector: Option<String>,
}

impl GetArgs {
    pub(crate) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let kind = schema::kind(&self.kind)?;
        let words: Vec<String> = self.selector.into_iter().collect();
        let selector = selector(&words)?;
        if selector.is_some() && kind != Kind::Node {
            return Err(Failure::usage("a selector applies to nodes only"));
        }
        let client = shell.client()?;
        let (table, documents) = match kind {
            Kind::Node => nodes(&client, self.name, selector).await?,
            Kind::Group => groups(&client, self.name).await?,
            Kind::Network => networks(&client, self.name).await?,
            Kind::Partition => partitions(&client, self.name).await?,
            Kind::Artifact => artifacts(&client, self.name).await?,
            Kind::BootConfig => configs(&client, self.name).await?,
            Kind::MetadataLayer => layers(&client, self.name).await?,
            Kind::ProvisionProfile => profiles(&client, self.name).await?,
        };
        print(shell, &table, &documents)?;
        Ok(Exit::Done)
    }
}

fn print(shell: &mut Shell, table: &Table, documents: &[Document]) -> Result<(), Failure> {
    let printer = &mut shell.printer;
    match printer.output() {
        Output::Table | Output::Wide => printer.table(table),
        Output::Name => documents.iter().try_for_each(|document| {
            printer.line(format!("{}/{}", document.kind(), document.name()))
        }),
        Output::Json => match documents {
            [document] => printer.value(document),
            documents => printer.value(&documents),
        },
        Output::Yaml => documents.iter().try_for_each(|document| {
            printer.line("---")?;
            printer.bytes(document.to_yaml().as_bytes())
        }),
    }
}

type Found = (Table, Vec<Document>);

async fn nodes(
    client: &Client,
    name: Option<String>,
    selector: Option<String>,
) -> Result<Found, Failure> {
    let nodes = match name {
        Some(name) => vec![node_ref::find(client, &name).await?],
        None => client.all_nodes(selector.as_deref()).await?.1,
    };
    let names = nodes.iter().map(|node| Ok(node_ref::name_of(node)?.clone()));
    let names = names.collect::<Result<Vec<_>, Failure>>()?;
    Ok((node::list::table(&nodes), node_documents(client, &names).await?))
}

async fn groups(client: &Client, name: Option<String>) -> Result<Found, Failure> {
    let groups = match name {
        Some(name) => vec![group::find(client, &group::key(&name)?).await?],
        None => client.list::<Group>().await?.items,
    };
    let table = group::table(&groups);
    Ok((table, groups.into_iter().map(group_document).collect::<Result<_, _>>()?))
}

async fn networks(client: &Client, name: Option<String>) -> Result<Found, Failure> {
    let networks = match name {
        Some(name) => vec![network::find(client, &name).await?],
        None => client.list::<NetworkObject>().await?.items,
    };
    let table = network::table(&networks);
    Ok((table, networks.into_iter().map(network_document).collect::<Result<_, _>>()?))
}

async fn partitions(client: &Client, name: Option<String>) -> Result<Found, Failure> {
    let partitions = match name {
        Some(name) => vec![partition::find(client, &name).await?],
        None => client.list::<PartitionObject>().await?.items,
    };
    let table = partition::table(&partitions);
    Ok((table, partitions.into_iter().map(partition_document).collect::<Result<_, _>>()?))
}

async fn artifacts(client: &Client, name: Option<String>) -> Result<Found, Failure> {
    let mut artifacts = client.artifacts().await?.items;
    if let Some(name) = name {
        artifacts.retain(|artifact| artifact.name.as_str() == name);
        if artifacts.is_empty() {
            return Err(Failure::missing(format!("artifact `{name}`"))
                .with_hint("`hoist artifact list` shows all of them"));
        }
    }
    let table = artifact::table(&artifacts);
    Ok((table, artifacts.into_iter().map(artifact_document).collect()))
}

async fn configs(client: &Client, name: Option<String>) -> Result<Found, Failure> {
    let configs = match name {
        Some(name) => vec![boot::find(client, &name).await?],
        None => client.boot_configs().await?.items,
    };
    let table = boot::table(&configs);
    let document = |config: BootConfigObject| {
        Document::BootConfig(config.name.clone(), Box::new(config.into_spec()))
    };
    Ok((table, configs.into_iter().map(document).collect()))
}

async fn layers(client: &Client, name: Option<String>) -> Result<Found, Failure> {
    let layers = match name {
        Some(name) => vec![metadata::find(client, &name).await?],
        None => client.metadata_layers().await?.items,
    };
    let table = metadata::table(&layers);
    let document =
        |layer: MetadataLayerObject| Document::MetadataLayer(layer.name, Box::new(layer.spec));
    Ok((table, layers.into_iter().map(document).collect()))
}

async fn profiles(client: &Client, name: Option<String>) -> Result<Found, Failure> {
    let profiles = match name {
        Some(name) => vec![provision::find_profile(client, &name).await?],
        None => client.provision_profiles().await?.items,
    };
    let table = provision::profile_table(&profiles);
    let document = |profile: ProvisionProfileObject| {
        Document::ProvisionProfile(profile.name, Box::new(profile.spec))
    };
    Ok((table, profiles.into_iter().map(document).collect()))
}

/// Names in one selector; the longest ones still fit its limit of 8 KiB.
const NAMES_AT_ONCE: usize = 64;

/// Exactly the declared fields of these nodes: the object of the server also contains derived
/// fields, such as the boot interface.
pub(crate) async fn node_documents(
    client: &Client,
    names: &[Name],
) -> Result<Vec<Document>, Failure> {
    let mut documents = Vec::with_capacity(names.len());
    for some in names.chunks(NAMES_AT_ONCE) {
        let selector: Vec<_> = some.iter().map(|name| format!("node:{name}")).collect();
        let mut lines = client.export(Some(&selector.join(","))).await?;
        while let Some(line) = lines.next().await? {
            documents.extend(export::document(&line)?);
        }
    }
    Ok(documents)
}

pub(crate) fn group_document(group: Group) -> Result<Document, Failure> {
    let key = group::key_of(&group)?;
    Ok(Document::Group(key, group.into_spec()))
}

pub(crate) fn network_document(network: NetworkObject) -> Result<Document, Failure> {
    let name = named(network.name.as_ref())?;
    Ok(Document::Network(name, network.into()))
}

pub(crate) fn partition_document(partition: PartitionObject) -> Result<Document, Failure> {
    let name = named(partition.name.as_ref())?;
    Ok(Document::Partition(name, partition.into()))
}

fn artifact_document(artifact: ArtifactObject) -> Document {
    let ArtifactObject { name, sha256, size, arch, description, provides, unpacked, .. } = artifact;
    let spec = ArtifactSpec { sha256, size, arch, description, provides, unpacked };
    Document::Artifact(name, spec)
}

fn named(name: Option<&Name>) -> Result<Name, Failure> {
    name.cloned().ok_or_else(|| Failure::Broken("an object has no name".into()))
}

/// The name of an object inside a document of this kind.
pub(crate) fn target(kind: Kind, name: &str) -> Result<String, Failure> {
    let wrong = |error: &dyn std::error::Error| Failure::usage(error.to_string());
    let name = match kind {
        Kind::Group => name.parse::<GroupKey>().map_err(|error| wrong(&error))?.to_string(),
        Kind::Artifact => name.parse::<ArtifactName>().map_err(|error| wrong(&error))?.to_string(),
        Kind::Node
        | Kind::Network
        | Kind::Partition
        | Kind::BootConfig
        | Kind::MetadataLayer
        | Kind::ProvisionProfile => {
            name.parse::<Name>().map_err(|error| wrong(&error))?.to_string()
        }
    };
    Ok(format!("{kind}/{name}"))
}
