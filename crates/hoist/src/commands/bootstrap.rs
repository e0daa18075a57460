//! `hoist bootstrap`: the command of `hoist-agent`, and founding through the controller.

use std::path::Path;
use std::sync::Arc;

use clap::Args;
use hoist_api::cluster::{Assignment, ClusterStatus, FoundRequest, JoinTokenRequest};
use hoist_cluster::config::{self, ClusterConfig};
use hoist_cluster::join_token::JoinToken;
use hoist_member::bootstrap::{
    self, BootstrapHost, BootstrapReport, FoundError, FoundedCluster, Founder,
};
use hoist_member::command_line::{BootstrapOptions, OptionsError, read_token};
use hoist_member::console::Terminal;
use hoist_member::facts::FactSource;
use hoist_member::interrupt::Interrupt;
use hoist_member::local_network::LocalNetwork;
use hoist_member::service::ServiceHost;
use hoist_member::state::StateDir;
use hoist_model::{Exit, Name};
use tokio::runtime::Runtime;

use super::Shell;
use crate::cli::Connection;
use crate::connect;
use crate::failure::Failure;
use crate::printer::Output;

/// The token is used at once; its time covers a slow first start.
const TOKEN_SECONDS: u64 = 600;

/// Found a cluster with this machine, or join this machine to one
///
/// Uses flags first, then the state of earlier runs, then the configuration, then the network. An
/// interrupted join is continued by the next run. A join that fails never founds a cluster.
///
/// `--single-node` founds through a running controller, the local one unless `--server` names
/// another; `--token-file` is then the token of an administrator. Otherwise `--token-file` is the
/// join token, or `-` for standard input.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist bootstrap --single-node\n  \
    hoist bootstrap --join-cluster 10.0.1.10 --token-file token\n  \
    hoist bootstrap --config cluster.yaml --token-file - < token\n  \
    hoist bootstrap --join-cluster 10.0.1.10 --ca-pin sha256:… --dry-run")]
pub(crate) struct BootstrapArgs {
    #[command(flatten)]
    options: BootstrapOptions,
}

impl BootstrapArgs {
    pub(crate) fn run(&self, shell: &mut Shell) -> Result<Exit, Failure> {
        let mut connection = shell.connection.clone();
        let token = self.take_join_token(&mut connection)?;
        let mut request = self.options.request(None, &Terminal).map_err(invalid)?;
        request.flags.token = token;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(Failure::Runtime)?;
        let founder = LocalController { connection, runtime };
        let host = BootstrapHost {
            state: StateDir::new(&self.options.state_dir),
            console: Arc::new(Terminal),
            interrupt: Interrupt::on_signals().map_err(Failure::Runtime)?,
            facts: FactSource::default(),
            service: ServiceHost::default(),
            discovery: &LocalNetwork::default(),
            founder: Some(&founder),
        };
        let report = bootstrap::run(&request, &host).map_err(|error| {
            let hint = error.remedy();
            Failure::member(&error, error.exit(), hint)
        })?;
        print(shell, &report)?;
        Ok(report.exit())
    }

    /// The join token, if the file has one. The file of an administrator's token stays with the
    /// connection: `--token-file` and its variable mean both.
    fn take_join_token(&self, connection: &mut Connection) -> Result<Option<JoinToken>, Failure> {
        if self.options.single_node {
            return Ok(None);
        }
        let Some(path) = connection.token_file.clone() else { return Ok(None) };
        if path == Path::new("-") && self.options.config.as_deref() == Some(Path::new("-")) {
            return Err(invalid(OptionsError::TwoInputs));
        }
        match read_token(&path) {
            Ok(token) => {
                connection.token_file = None;
                Ok(Some(token))
            }
            Err(OptionsError::Token { .. }) if !self.is_told_to_join() => Ok(None),
            Err(error) => Err(invalid(error)),
        }
    }

    fn is_told_to_join(&self) -> bool {
        let options = &self.options;
        options.join_cluster.is_some() || options.auto_discover || options.config.is_some()
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
pub(super) fn invalid(error: OptionsError) -> Failure {
    Failure::usage(hoist_diagnostic::chain(&error))
}

fn print(shell: &mut Shell, report: &BootstrapReport) -> Result<(), Failure> {
    match shell.printer.output() {
        Output::Json | Output::Yaml => shell.printer.value(report),
        Output::Name => match &report.node {
            Some(node) => shell.printer.line(node.as_str()),
            None => Ok(()),
        },
        Output::Table | Output::Wide => shell.printer.line(report.to_string()),
    }
}

/// The controller that founds: the local one, or that of `--server`.
struct LocalController {
    connection: Connection,
    runtime: Runtime,
}

impl Founder for LocalController {
    fn describe(&self) -> String {
        connect::tls_authority(&self.connection)
            .unwrap_or_else(|_| "a controller that does not run yet".to_owned())
    }

    fn found(
        &self,
        name: &Name,
        config: Option<&ClusterConfig>,
    ) -> Result<FoundedCluster, FoundError> {
        self.try_found(name, config).map_err(|failure| {
            let hint = failure.hint().map(|hint| format!("; {hint}")).unwrap_or_default();
            let message = format!("{}{hint}", hoist_diagnostic::chain(&failure));
            FoundError::Refused { message, exit: failure.exit() }
        })
    }
}

impl LocalController {
    fn try_found(
        &self,
        name: &Name,
        config: Option<&ClusterConfig>,
    ) -> Result<FoundedCluster, Failure> {
        let client = connect::client(&self.connection)?;
        let authority = connect::tls_authority(&self.connection)?;
        let address = authority.parse().map_err(|_| {
            Failure::usage(format!("`{authority}` is not an address that a node can join at"))
        })?;
        let roles = config.map(|config| config.roles).unwrap_or_default();
        let request = FoundRequest {
            name: name.clone(),
            assignment: match roles.assignment {
                config::Assignment::Automatic => Assignment::Automatic,
                config::Assignment::Declared => Assignment::Declared,
            },
            rebalance_on_join: roles.rebalance_on_join,
        };
        let token = self.runtime.block_on(async {
            match client.cluster().await? {
                // An earlier run founded it, and ended before this node had joined.
                Some(known) if is_empty(&known) => {}
                Some(known) => return Err(has_members(&known)),
                None => _ = client.found_cluster(&request).await?,
            }
            let request = JoinTokenRequest {
                ttl_seconds: Some(TOKEN_SECONDS),
                uses: Some(1),
                ..JoinTokenRequest::default()
            };
            Ok(client.create_join_token(&request).await?)
        })?;
        let token: JoinToken = token
            .token
            .parse()
            .map_err(|_| Failure::Broken("the join token cannot be read".to_owned()))?;
        Ok(FoundedCluster { address, token })
    }
}

fn is_empty(cluster: &ClusterStatus) -> bool {
    cluster.counts.members == 0
}

fn has_members(cluster: &ClusterStatus) -> Failure {
    let message = format!(
        "this site has the cluster `{}` already, with {} members",
        cluster.name, cluster.counts.members
    );
    Failure::refused(message)
        .with_hint("create a token with `hoist cluster token create` and pass `--join-cluster`")
}
