//! The arguments of `bootstrap` and `identity`, the same in `hoist` and `hoist-agent`.
//!
//! A token is read from a file or from standard input, never from the command line: others can
//! read it there.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use hoist_cluster::address::Address;
use hoist_cluster::config::{self, ClusterConfig, LoadedConfig};
use hoist_cluster::detection::Flags;
use hoist_cluster::id::Pin;
use hoist_cluster::join_token::{JoinToken, ParseTokenError};
use hoist_diagnostic::Diagnostic;
use hoist_model::Name;
use zeroize::Zeroizing;

use crate::bootstrap::BootstrapRequest;
use crate::console::Console;
use crate::state::DEFAULT_DIR;

/// More than any token has.
const MAX_TOKEN_FILE: u64 = 4096;

/// The arguments of `bootstrap`, without the file of the token.
#[derive(Debug, Clone, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub struct BootstrapOptions {
    /// Found a cluster with this machine as its only member
    #[arg(long)]
    pub single_node: bool,
    /// Join the cluster of the controller at this address: `10.0.1.10` or `controller:27443`
    #[arg(long, value_name = "ADDRESS")]
    pub join_cluster: Option<Address>,
    /// Join the cluster that answers in the network; never found one
    #[arg(long)]
    pub auto_discover: bool,
    /// The role that this node would like to have
    #[arg(long, value_name = "ROLE")]
    pub preferred_role: Option<Name>,
    /// Pin of the cluster's root, as `hoist cluster status` shows it: `sha256:…`
    #[arg(long, value_name = "PIN")]
    pub ca_pin: Option<Pin>,
    /// File `cluster.yaml` with the cluster to join and how to look for it
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Directory of the state of this node
    #[arg(long, value_name = "DIR", default_value = DEFAULT_DIR)]
    pub state_dir: PathBuf,
    /// Install and start the service of the agent, where systemd runs
    #[arg(long)]
    pub install_service: bool,
    /// Longest wait for an operator to accept this node
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    pub wait: u64,
    /// Show the decision and the checks without changing anything
    #[arg(long)]
    pub dry_run: bool,
    /// Found a cluster without asking if none is found
    #[arg(long)]
    pub yes: bool,
}

#[derive(Debug, Clone, Subcommand)]
pub enum IdentityCommand {
    /// Show the id, the cluster and the role of this node
    #[command(after_help = "Examples:\n  hoist identity show\n  \
        hoist-agent identity show -o json")]
    Show(StateArgs),
    /// Remove key, certificate and membership: the next join is that of a new node
    ///
    /// An unfinished join is withdrawn first. A member should leave its cluster before.
    #[command(after_help = "Examples:\n  hoist identity reset\n  \
        hoist-agent identity reset --yes")]
    Reset(ResetArgs),
}

#[derive(Debug, Clone, Args)]
pub struct StateArgs {
    /// Directory of the state of this node
    #[arg(long, value_name = "DIR", default_value = DEFAULT_DIR)]
    pub state_dir: PathBuf,
}

#[derive(Debug, Clone, Args)]
pub struct ResetArgs {
    #[command(flatten)]
    pub state: StateArgs,
    /// Do it although the controller still has this node
    #[arg(long)]
    pub yes: bool,
}

/// Invalid input of the command.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OptionsError {
    #[error("cannot read `{path}`; name an existing file")]
    Read { path: PathBuf, source: io::Error },
    #[error("`{path}` contains no join token: {source}")]
    Token { path: PathBuf, source: ParseTokenError },
    #[error("`{path}` is not valid: {}", listed(.problems))]
    Config { path: PathBuf, problems: Vec<Diagnostic> },
    #[error("token and configuration cannot both be standard input")]
    TwoInputs,
}

fn listed(problems: &[Diagnostic]) -> String {
    let texts: Vec<String> = problems.iter().map(ToString::to_string).collect();
    texts.join("; ")
}

impl BootstrapOptions {
    /// Reads the files that the options name. Warnings about the configuration go to the console.
    pub fn request(
        &self,
        token_file: Option<&Path>,
        console: &dyn Console,
    ) -> Result<BootstrapRequest, OptionsError> {
        let is_input = |path: Option<&Path>| path == Some(Path::new("-"));
        if is_input(token_file) && is_input(self.config.as_deref()) {
            return Err(OptionsError::TwoInputs);
        }
        let config = self.config.as_deref().map(|path| read_config(path, console)).transpose()?;
        let flags = Flags {
            single_node: self.single_node,
            join: self.join_cluster.clone(),
            auto_discover: self.auto_discover,
            token: token_file.map(read_token).transpose()?,
            pin: self.ca_pin,
            yes: self.yes,
        };
        Ok(BootstrapRequest {
            flags,
            config,
            preferred: self.preferred_role.as_ref().map(Name::to_string),
            install_service: self.install_service,
            dry_run: self.dry_run,
            wait: Duration::from_secs(self.wait),
        })
    }
}

/// The join token in a file, or on standard input.
pub fn read_token(path: &Path) -> Result<JoinToken, OptionsError> {
    let text = read(path, MAX_TOKEN_FILE)?;
    let text = Zeroizing::new(String::from_utf8_lossy(&text).into_owned());
    text.parse().map_err(|source| OptionsError::Token { path: path.to_owned(), source })
}

fn read_config(path: &Path, console: &dyn Console) -> Result<ClusterConfig, OptionsError> {
    let text = read(path, config::MAX_BYTES as u64 + 1)?;
    let source = path.display().to_string();
    let LoadedConfig { config, warnings } = config::read(&source, &text)
        .map_err(|problems| OptionsError::Config { path: path.to_owned(), problems })?;
    for warning in warnings {
        console.warn(&warning.to_string());
    }
    Ok(config)
}

fn read(path: &Path, limit: u64) -> Result<Zeroizing<Vec<u8>>, OptionsError> {
    let mut text = Zeroizing::new(Vec::new());
    let read = if path == Path::new("-") {
        io::stdin().lock().take(limit).read_to_end(&mut text)
    } else {
        fs_err::File::open(path).and_then(|file| file.take(limit).read_to_end(&mut text))
    };
    read.map_err(|source| OptionsError::Read { path: path.to_owned(), source })?;
    Ok(text)
}
