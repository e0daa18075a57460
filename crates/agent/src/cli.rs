//! The command line of the agent: subcommands, options and their help texts. No behaviour.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use hoist_device::observe::SOURCES_TIMEOUT;
use hoist_member::command_line::{BootstrapOptions, IdentityCommand, StateArgs};
use uuid::Uuid;

/// As the controller has it.
pub(crate) const PLUGINS: &str = "/usr/lib/hoist/plugins";

#[derive(Debug, Parser)]
#[command(
    name = "hoist-agent",
    version,
    about = "Provisions the disks of this machine, and is its member of a cluster",
    long_about = "hoist-agent makes the disks of this machine what a document says, and joins the \
        machine to a cluster.\n\nNothing is written until everything was checked and planned \
        against the real disks, and only disks that the document names are ever written to.",
    after_help = "Examples:\n  hoist-agent facts -o json\n  hoist-agent plan -f node.yaml\n  \
        hoist-agent apply -f node.yaml --plan 3f9c…\n\nExit codes: 0 done or nothing to do, \
        1 error, 2 wrong usage or invalid document, 3 refused by a rule, 4 an operator is needed, 5 \
        outcome unknown, 9 no cluster found, 10 more than one found, 11 a lock is held, 20 there \
        are changes to make.",
    arg_required_else_help = true,
    subcommand_required = true,
    max_term_width = 100
)]
pub(crate) struct Cli {
    /// How to print: for people, or json
    #[arg(short, long, global = true, value_enum, default_value_t, value_name = "FORMAT")]
    pub(crate) output: Output,

    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// For people
    #[default]
    Text,
    Json,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show the hardware of this machine
    #[command(after_help = "Examples:\n  hoist-agent facts\n  \
        hoist-agent facts -o json | jq '.disks[].serial'")]
    Facts,
    /// Check a document, whatever machine it is for
    ///
    /// Ends with 0 if it is and with 2 if it is not. With `-o json` it is printed as hoist reads it,
    /// also if it is an input of another program.
    #[command(after_help = "Examples:\n  hoist-agent validate -f node.yaml\n  \
        hoist-agent validate -f provision.json --driver nailgun --node n1 -o json")]
    Validate(DocumentArgs),
    /// Show the plan without changing anything
    ///
    /// Exits with 0 if there is nothing to do, with 20 if there is, with 3 if a rule forbids the
    /// plan and with 2 if the document is invalid.
    #[command(after_help = "Examples:\n  hoist-agent plan -f node.yaml\n  \
        hoist-agent plan -f node.yaml --only images -o json\n  \
        hoist-agent plan -f provision.json --driver nailgun --node n1 --wipe any\n  \
        hoist-agent plan -f node.yaml --facts facts.json")]
    Plan(PlanArgs),
    /// Apply the document to this machine
    ///
    /// Steps that an earlier attempt finished are not repeated. An interrupted attempt is resumed.
    #[command(after_help = "Examples:\n  hoist-agent apply -f node.yaml\n  \
        hoist-agent apply -f node.yaml --plan 3f9c…\n  \
        hoist-agent apply -f node.yaml --only disks --dry-run\n  \
        hoist-agent apply -f node.yaml --secrets secrets\n  \
        hoist-agent apply -f node.yaml --only report,reboot")]
    Apply(ApplyArgs),
    /// Verify that the machine matches the document
    ///
    /// Exits with 0 if it does and with 1 if it does not.
    #[command(after_help = "Examples:\n  hoist-agent verify -f node.yaml")]
    Verify(DocumentArgs),
    /// Restore the disks to their state before the document was applied
    ///
    /// Restores the partition tables and the metadata beside them, as long as the data they refer
    /// to was not overwritten; otherwise nothing is changed and the exit code is 3.
    #[command(after_help = "Examples:\n  hoist-agent undo -f node.yaml --dry-run\n  \
        hoist-agent undo -f node.yaml")]
    Undo(UndoArgs),
    /// Fetch the job from a controller, carry it out and report the outcome
    ///
    /// The image made by `hoist agent image` runs this command. Controller, node and token are read
    /// from the kernel command line, or from a file of the same form:
    /// `hoist.server=https://HOST:PORT hoist.node=ID hoist.token=TOKEN`.
    #[command(
        after_help = "Examples:\n  hoist-agent provision --command-line arguments --ca ca.pem --stay\n  \
        hoist-agent provision --command-line arguments --ca ca.pem --dry-run\n\nWithout --stay the \
        machine is restarted when the controller says so."
    )]
    Provision(ProvisionArgs),
    /// Join this machine to a cluster
    ///
    /// Uses flags first, then the state of earlier runs, then the configuration, then the network.
    /// An interrupted join is continued by the next run. A join that fails never founds a cluster.
    #[command(
        after_help = "Examples:\n  hoist-agent bootstrap --join-cluster 10.0.1.10 --token-file \
        token\n  hoist-agent bootstrap --config cluster.yaml --token-file - < token\n  \
        hoist-agent bootstrap --join-cluster 10.0.1.10 --ca-pin sha256:… --dry-run"
    )]
    Bootstrap(BootstrapArgs),
    /// Work as a member of the cluster until a signal comes
    ///
    /// Reports to a controller, runs the steps of deployments for this node, and renews the
    /// certificate. Without a controller it keeps its role and tries again.
    #[command(after_help = "Examples:\n  hoist-agent daemon\n  \
        hoist-agent daemon --state-dir /srv/hoist-agent")]
    Daemon(DaemonArgs),
    /// Show or remove the identity of this node in its cluster
    #[command(subcommand)]
    Identity(IdentityCommand),
}

#[derive(Debug, Args)]
pub(crate) struct BootstrapArgs {
    #[command(flatten)]
    pub(crate) options: BootstrapOptions,
    /// File with the join token, or `-` for standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct DaemonArgs {
    #[command(flatten)]
    pub(crate) state: StateArgs,
    /// Directory of plug-ins for the steps of deployments
    #[arg(long, value_name = "DIR", default_value = PLUGINS)]
    pub(crate) plugins: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct DocumentArgs {
    /// The document, or `-` for standard input
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Only these actions, of `disks`, `images`, `config_drive`, `files`, `boot`, `erase`, `report`
    /// and `reboot`
    #[arg(long, value_name = "ACTION", value_delimiter = ',')]
    pub(crate) only: Vec<String>,
    /// Driver that reads the document: `hoist`, `bareon-ironic`, `nailgun`, `curtin`, or the file
    /// `hoist-driver-NAME` of the plug-in directory; by default the built-in driver that recognizes
    /// it
    #[arg(long, value_name = "NAME")]
    pub(crate) driver: Option<String>,
    /// Directory of plug-ins: `hoist-action-NAME` and `hoist-driver-NAME`
    #[arg(long, value_name = "DIR", default_value = PLUGINS)]
    pub(crate) plugins: PathBuf,
    /// Directory of the secrets that the document refers to: `secret://NAME` is the file NAME
    #[arg(long, value_name = "DIR")]
    pub(crate) secrets: Option<PathBuf>,
    /// Trusted authorities of servers, as PEM; by default those of this system
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) foreign: Foreign,
}

/// Values that foreign documents lack. Native documents have them and ignore these options.
#[derive(Debug, Args)]
pub(crate) struct Foreign {
    /// Id of this node, for a foreign document
    #[arg(long, value_name = "ID")]
    pub(crate) node: Option<String>,
    /// Id of this installation, for a foreign document; by default derived from its content
    #[arg(long, value_name = "UUID")]
    pub(crate) txn: Option<Uuid>,
    /// Accept disks named only by their kernel names, for a foreign document
    #[arg(long)]
    pub(crate) allow_kernel_names: bool,
    /// Kinds of content that may be destroyed on the disks named by a foreign document, or `any`
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    pub(crate) wipe: Vec<String>,
    /// Section `boot` for a foreign document, which names no boot files: the value of that section,
    /// in a file of its own
    #[arg(long, value_name = "FILE")]
    pub(crate) boot: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    pub(crate) document: DocumentArgs,
    /// Plan for the machine with these facts instead of this one, to see the plan only
    ///
    /// The file is what `hoist-agent facts -o json` or `hoist provision facts NODE -o json` prints,
    /// at most 4 MiB; `-` is standard input. This machine and the servers of images are not asked.
    #[arg(long, value_name = "FILE")]
    pub(crate) facts: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct ApplyArgs {
    #[command(flatten)]
    pub(crate) document: DocumentArgs,
    /// Hash of the reviewed plan; if the plan would differ now, nothing is changed
    #[arg(long, value_name = "HASH")]
    pub(crate) plan: Option<String>,
    /// Longest wait for the sources of images and boot files, before anything is written
    #[arg(long, value_name = "SECONDS", default_value_t = SOURCES_TIMEOUT.as_secs())]
    pub(crate) source_timeout: u64,
    /// Show the plan without changing anything
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ProvisionArgs {
    /// File with the kernel arguments
    #[arg(long, value_name = "FILE", default_value = "/proc/cmdline")]
    pub(crate) command_line: PathBuf,
    /// The authority of the controllers, as PEM
    #[arg(long, value_name = "FILE", default_value = "/etc/hoist/ca.pem")]
    pub(crate) ca: PathBuf,
    /// Load drivers and set up the network first, as in an image
    #[arg(long)]
    pub(crate) bring_up: bool,
    /// Carry out one job and exit; the machine stays on
    #[arg(long)]
    pub(crate) stay: bool,
    /// Fetch the job and show its plan without changing anything
    ///
    /// The controller learns that the job was fetched, and nothing else.
    #[arg(long, conflicts_with = "stay")]
    pub(crate) dry_run: bool,
}

#[derive(Debug, Args)]
pub(crate) struct UndoArgs {
    #[command(flatten)]
    pub(crate) document: DocumentArgs,
    /// List the disks that can be restored without changing anything
    #[arg(long)]
    pub(crate) dry_run: bool,
}
