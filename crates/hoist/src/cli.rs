//! The command line: the commands and their common options. No behaviour.

use std::path::PathBuf;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, Parser, Subcommand};

use crate::commands::{
    agent, apply, artifact, audit, bench, boot, bootstrap, cluster, completions, delete, deploy,
    diff, events, export, get, group, identity, image, man, metadata, network, node, partition,
    plugin, provision, refresh, schema, status, token,
};
use crate::printer::Output;
use crate::{backup, db, serve};

#[derive(Debug, Parser)]
#[command(
    name = "hoist",
    version,
    about = "From bare metal to a running cluster",
    long_about = "hoist takes machines from bare metal to a running cluster.\n\n\
        `hoist serve` is the controller; every other command asks one. On the controller's own \
        machine the commands find the server and its token by themselves.",
    after_help = "Selectors name sets of nodes everywhere: `compute & !label:rack=7`, `nid:1-64`, \
        `first(role:login)`.\nExit codes: 0 done, 1 error, 2 wrong usage or input, 3 refused by a \
        rule, 5 outcome unknown, 7 degraded, 10 ambiguous, 20 dry run found changes.",
    propagate_version = true,
    arg_required_else_help = true,
    subcommand_required = true,
    max_term_width = 100
)]
pub(crate) struct Cli {
    /// Output format
    #[arg(
        short,
        long,
        global = true,
        value_enum,
        default_value_t,
        value_name = "FORMAT",
        hide_possible_values = true,
        help = "How to print: table, wide, json, yaml or name"
    )]
    pub(crate) output: Output,

    #[command(flatten)]
    pub(crate) connection: Connection,

    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Where the server is and who we are. A token never stands on the command line: others can read
/// it there.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Connection")]
pub(crate) struct Connection {
    /// Address of the server, such as `https://controller:27443`; found locally if left out
    #[arg(long, global = true, env = "HOIST_SERVER", value_name = "URL")]
    pub(crate) server: Option<String>,

    /// Where `hoist serve` keeps its state; names the local server and its token
    #[arg(long, global = true, env = "HOIST_DATA_DIR", value_name = "DIR", value_parser = path())]
    pub(crate) data_dir: Option<PathBuf>,

    /// File with the token to show (or `HOIST_TOKEN`, the token itself)
    #[arg(long, global = true, env = "HOIST_TOKEN_FILE", value_name = "FILE", value_parser = path())]
    pub(crate) token_file: Option<PathBuf>,

    /// The site's certificate authority in PEM; nothing else is trusted
    #[arg(long, global = true, env = "HOIST_CA", value_name = "FILE", value_parser = path())]
    pub(crate) ca: Option<PathBuf>,

    /// Send the token over plain HTTP to another machine, readable for everyone on the network path
    #[arg(long, global = true)]
    pub(crate) insecure_plain: bool,
}

/// A path that may be empty, as a variable may be that was not filled in.
fn path() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

impl Connection {
    /// Empty values count as absent.
    #[must_use]
    pub(crate) fn without_empty(self) -> Self {
        let given = |path: Option<PathBuf>| path.filter(|path| !path.as_os_str().is_empty());
        Self {
            server: self.server.filter(|server| !server.is_empty()),
            data_dir: given(self.data_dir),
            token_file: given(self.token_file),
            ca: given(self.ca),
            insecure_plain: self.insecure_plain,
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Serve(serve::ServeArgs),
    Apply(apply::ApplyArgs),
    Diff(diff::DiffArgs),
    Export(export::ExportArgs),
    Get(get::GetArgs),
    Delete(delete::DeleteArgs),
    Schema(schema::SchemaArgs),
    Node(node::NodeArgs),
    Boot(boot::BootArgs),
    Metadata(metadata::MetadataArgs),
    Provision(provision::ProvisionArgs),
    Agent(agent::AgentArgs),
    Bootstrap(bootstrap::BootstrapArgs),
    Cluster(cluster::ClusterArgs),
    Identity(identity::IdentityArgs),
    Deploy(deploy::DeployArgs),
    Group(group::GroupArgs),
    Network(network::NetworkArgs),
    Partition(partition::PartitionArgs),
    Artifact(artifact::ArtifactArgs),
    Image(image::ImageArgs),
    Plugin(plugin::PluginArgs),
    Token(token::TokenArgs),
    Audit(audit::AuditArgs),
    Db(db::DbArgs),
    Backup(backup::BackupArgs),
    Status(status::StatusArgs),
    Refresh(refresh::RefreshArgs),
    Events(events::EventsArgs),
    Bench(bench::BenchArgs),
    Completions(completions::CompletionsArgs),
    Man(man::ManArgs),
    /// Print the version
    Version,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definitions_fit_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_says_what_it_does_and_gives_examples() {
        fn walk(command: &clap::Command, path: &str, missing: &mut Vec<String>) {
            for sub in command.get_subcommands() {
                let path = format!("{path} {}", sub.get_name());
                if sub.get_about().is_none() {
                    missing.push(format!("{path}: about"));
                }
                let examples =
                    sub.get_after_help().is_some_and(|help| help.to_string().contains("Examples:"));
                let is_leaf = sub.get_subcommands().next().is_none();
                if is_leaf && !examples && sub.get_name() != "version" {
                    missing.push(format!("{path}: examples"));
                }
                walk(sub, &path, missing);
            }
        }
        let mut missing = Vec::new();
        walk(&Cli::command(), "hoist", &mut missing);
        assert!(missing.is_empty(), "{missing:#?}");
    }

    #[test]
    fn every_command_that_selects_nodes_takes_l() {
        fn walk(command: &clap::Command, path: &str, missing: &mut Vec<String>) {
            for sub in command.get_subcommands() {
                let path = format!("{path} {}", sub.get_name());
                let is_selector = |arg: &&clap::Arg| {
                    let names = arg.get_value_names().unwrap_or_default();
                    names.iter().any(|name| name.as_str() == "SELECTOR")
                };
                let selects = sub.get_arguments().any(|arg| is_selector(&arg));
                let takes_l = sub.get_arguments().any(|arg| arg.get_short() == Some('l'));
                // A group's selector is a field of the group.
                if selects && !takes_l && !path.starts_with("hoist group ") {
                    missing.push(path.clone());
                }
                walk(sub, &path, missing);
            }
        }
        let mut missing = Vec::new();
        walk(&Cli::command(), "hoist", &mut missing);
        assert!(missing.is_empty(), "{missing:#?}");
        for words in [
            "export -l compute",
            "boot state -l compute",
            "boot set -l compute live",
            "provision start -l compute",
            "node list -l compute",
            "deploy plan site.yaml -l compute",
            "deploy undo last --selector compute",
        ] {
            let words = std::iter::once("hoist").chain(words.split(' '));
            assert!(Cli::try_parse_from(words.clone()).is_ok(), "{words:?}");
        }
    }

    #[test]
    fn empty_value_counts_as_absent() {
        let words = ["hoist", "--data-dir", "", "--token-file", "", "--server", "", "version"];
        let connection = Cli::try_parse_from(words).unwrap().connection.without_empty();
        assert!(connection.data_dir.is_none() && connection.token_file.is_none());
        assert!(connection.server.is_none());
    }

    #[test]
    fn a_token_cannot_be_typed() {
        fn walk(command: &clap::Command) {
            for argument in command.get_arguments() {
                assert_ne!(argument.get_long(), Some("token"), "{}", command.get_name());
            }
            command.get_subcommands().for_each(walk);
        }
        walk(&Cli::command());
    }
}
