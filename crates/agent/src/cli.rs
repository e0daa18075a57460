//! What can be typed.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use uuid::Uuid;

/// As the controller has it.
pub(crate) const PLUGINS: &str = "/usr/lib/hoist/plugins";

#[derive(Debug, Parser)]
#[command(
    name = "hoist-agent",
    version,
    about = "Makes the disks of this machine what a document says",
    long_about = "hoist-agent makes the disks of this machine what a document says.\n\nNothing is \
        written until everything was checked and planned against the real disks, and only disks \
        that the document names are ever written to.",
    after_help = "Examples:\n  hoist-agent facts -o json\n  hoist-agent plan -f node.yaml\n  \
        hoist-agent apply -f node.yaml --plan 3f9c…\n\nExit codes: 0 done or nothing to do, \
        1 error, 2 wrong usage or invalid document, 3 refused by a rule, 20 there are changes to \
        make.",
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
    /// Show what this machine has
    #[command(after_help = "Examples:\n  hoist-agent facts\n  \
        hoist-agent facts -o json | jq '.disks[].serial'")]
    Facts,
    /// See whether a document is without fault, whatever machine it is for
    ///
    /// Ends with 0 if it is and with 2 if it is not. With `-o json` it is printed as hoist reads it,
    /// also if it is an input of another program.
    #[command(after_help = "Examples:\n  hoist-agent validate -f node.yaml\n  \
        hoist-agent validate -f provision.json --driver nailgun --node n1 -o json")]
    Validate(Wanted),
    /// Show what would be done, and do nothing
    ///
    /// Ends with 0 if there is nothing to do, with 20 if there is, with 3 if a rule forbids it and
    /// with 2 if the document is wrong.
    #[command(after_help = "Examples:\n  hoist-agent plan -f node.yaml\n  \
        hoist-agent plan -f node.yaml --only images -o json\n  \
        hoist-agent plan -f provision.json --driver nailgun --node n1 --wipe any")]
    Plan(Wanted),
    /// Do it
    ///
    /// What an earlier attempt has done is not done again. If it was cut off, it goes on from there.
    #[command(after_help = "Examples:\n  hoist-agent apply -f node.yaml\n  \
        hoist-agent apply -f node.yaml --plan 3f9c…\n  \
        hoist-agent apply -f node.yaml --only disks --dry-run\n  \
        hoist-agent apply -f node.yaml --secrets secrets\n  \
        hoist-agent apply -f node.yaml --only report,reboot")]
    Apply(ApplyArgs),
    /// See whether everything is as the document says
    ///
    /// Ends with 0 if it is and with 1 if it is not.
    #[command(after_help = "Examples:\n  hoist-agent verify -f node.yaml")]
    Verify(Wanted),
    /// Put back what the disks were before the document was applied
    ///
    /// Their tables and what is beside them, as long as what these speak of was not overwritten;
    /// otherwise nothing is done, and it ends with 3.
    #[command(after_help = "Examples:\n  hoist-agent undo -f node.yaml --dry-run\n  \
        hoist-agent undo -f node.yaml")]
    Undo(UndoArgs),
    /// Ask a controller what to do, do it, and say what came of it
    ///
    /// What the image runs that `hoist agent image` makes. Whom to ask, as which node and with which
    /// token, is read from the kernel command line, or from a file that is written like it:
    /// `hoist.server=https://HOST:PORT hoist.node=ID hoist.token=TOKEN`.
    #[command(
        after_help = "Examples:\n  hoist-agent provision --command-line orders --ca ca.pem --stay\n  \
        hoist-agent provision --command-line orders --ca ca.pem --dry-run\n\nWithout --stay the \
        machine is restarted when the controller says so."
    )]
    Provision(ProvisionArgs),
}

#[derive(Debug, Args)]
pub(crate) struct Wanted {
    /// The document, or `-` for standard input
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Only these actions, of `disks`, `images`, `config_drive`, `files`, `boot`, `erase`, `report`
    /// and `reboot`
    #[arg(long, value_name = "ACTION", value_delimiter = ',')]
    pub(crate) only: Vec<String>,
    /// Who reads the document: `hoist`, `bareon-ironic`, `nailgun`, `curtin`, or the file
    /// `hoist-driver-NAME` of the plug-in directory; otherwise whoever of hoist's own knows it
    #[arg(long, value_name = "NAME")]
    pub(crate) driver: Option<String>,
    /// Where plug-ins are: `hoist-action-NAME` and `hoist-driver-NAME`
    #[arg(long, value_name = "DIR", default_value = PLUGINS)]
    pub(crate) plugins: PathBuf,
    /// Where secrets are that the document refers to: `secret://NAME` is the file NAME there
    #[arg(long, value_name = "DIR")]
    pub(crate) secrets: Option<PathBuf>,
    /// Who may vouch for servers, as PEM; otherwise those of this system
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) foreign: Foreign,
}

/// What inputs of others do not say themselves. Hoist's own documents do, and pass it over.
#[derive(Debug, Args)]
pub(crate) struct Foreign {
    /// Which node this is, for an input of another program
    #[arg(long, value_name = "ID")]
    pub(crate) node: Option<String>,
    /// Which installation this is, for an input of another program; otherwise the input decides
    #[arg(long, value_name = "UUID")]
    pub(crate) txn: Option<Uuid>,
    /// Take disks by their kernel names alone, for an input of another program
    #[arg(long)]
    pub(crate) allow_kernel_names: bool,
    /// What may be destroyed on the disks that an input of another program names: kinds, or `any`
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    pub(crate) wipe: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ApplyArgs {
    #[command(flatten)]
    pub(crate) wanted: Wanted,
    /// The plan that was looked at; if it would be another one now, nothing is done
    #[arg(long, value_name = "HASH")]
    pub(crate) plan: Option<String>,
    /// Show what would be done, and do nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ProvisionArgs {
    /// Where the orders are
    #[arg(long, value_name = "FILE", default_value = "/proc/cmdline")]
    pub(crate) command_line: PathBuf,
    /// The authority of the controllers, as PEM
    #[arg(long, value_name = "FILE", default_value = "/etc/hoist/ca.pem")]
    pub(crate) ca: PathBuf,
    /// Load drivers and set up the network before, as in an image
    #[arg(long)]
    pub(crate) bring_up: bool,
    /// Carry out one order and end; the machine stays on
    #[arg(long)]
    pub(crate) stay: bool,
    /// Take the order, show what would be done, and do nothing
    ///
    /// The controller learns that the order was taken, and nothing else.
    #[arg(long, conflicts_with = "stay")]
    pub(crate) dry_run: bool,
}

#[derive(Debug, Args)]
pub(crate) struct UndoArgs {
    #[command(flatten)]
    pub(crate) wanted: Wanted,
    /// Say what could be put back, and do nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}
