//! `hoist boot state`, `hoist boot set` and `hoist boot once`.

use clap::{Args, ValueEnum};
use hoist_api::boot::{ModeWord, NodeBootState, StateRequest, StatesChanged};
use hoist_model::{Exit, Name};

use super::Shell;
use super::explain::decided;
use crate::commands::{SelectorArgs, selector};
use crate::edit::WriteArgs;
use crate::failure::Failure;
use crate::printer::{Output, Printer};
use crate::table::Table;

/// Show the boot states of nodes
///
/// Without a selector, the nodes with a boot state; with one, all of its nodes.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist boot state\n  hoist boot state compute\n  \
    hoist boot state '*' -o json")]
pub(super) struct StateArgs {
    #[command(flatten)]
    selector: SelectorArgs,
}

impl StateArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let selector = self.selector.text()?;
        let states = shell.client()?.boot_states(selector.as_deref()).await?;
        let printer = &mut shell.printer;
        match printer.output() {
            Output::Table | Output::Wide => printer.table(&table(&states))?,
            Output::Name => {
                states.iter().try_for_each(|state| printer.line(state.node.as_str()))?;
            }
            Output::Json | Output::Yaml => printer.value(&states)?,
        }
        Ok(Exit::Done)
    }
}

fn table(states: &[NodeBootState]) -> Table {
    let mut table = Table::new(&["NODE", "DOES", "CONFIG", "DECIDED"]);
    for state in states {
        table.row(vec![
            state.node.to_string(),
            state.doing.to_string(),
            state.choice.clone().unwrap_or_default(),
            state.state.as_ref().map(decided).unwrap_or_default(),
        ]);
    }
    table
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ModeArg {
    /// Boots its configuration, every time.
    Live,
    /// Boots what installs it, and goes to `disk` when it reports that it is done.
    Install,
    /// Boots its disk.
    Disk,
    /// Waits.
    Hold,
    /// Does as its configuration says.
    Auto,
}

impl From<ModeArg> for ModeWord {
    fn from(mode: ModeArg) -> Self {
        match mode {
            ModeArg::Live => Self::Live,
            ModeArg::Install => Self::Install,
            ModeArg::Disk => Self::Disk,
            ModeArg::Hold => Self::Hold,
            ModeArg::Auto => Self::None,
        }
    }
}

/// Decide what nodes do when they boot
///
/// A node that is installed is installed again only with `--reinstall`; one that is protected is
/// not installed at all. All nodes change in one transaction.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist boot set node:n1 hold --reason 'new DIMM'\n  \
    hoist boot set compute live --affects 512\n  hoist boot set node:n1 install --reinstall\n  \
    hoist boot set label:rack=7 --profile debug --dry-run\n  hoist boot set node:n1 auto --profile -")]
pub(super) struct SetArgs {
    /// Which nodes; with `-l`, only the mode is given
    #[arg(value_name = "SELECTOR", required_unless_present = "chosen")]
    selector: Option<String>,

    #[arg(value_name = "MODE", value_enum)]
    mode: Option<ModeArg>,

    /// Which nodes, as every command has it
    #[arg(short = 'l', long = "selector", value_name = "SELECTOR")]
    chosen: Option<String>,

    /// Put the nodes on a profile: configurations for it are open to them; `-` for none
    #[arg(long, value_name = "NAME", allow_hyphen_values = true)]
    profile: Option<String>,

    /// Reason, shown with the boot state
    #[arg(long)]
    reason: Option<String>,

    /// Install nodes that are installed already; their disks may be wiped
    #[arg(long)]
    reinstall: bool,

    #[command(flatten)]
    write: WriteArgs,
}

impl SetArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let (words, mode) = match (self.chosen, self.selector, self.mode) {
            (None, selector, mode) => (selector, mode),
            (Some(chosen), None, None) => (Some(chosen), None),
            // The first word is the mode then.
            (Some(chosen), Some(mode), None) => {
                let mode = ModeArg::from_str(&mode, false).map_err(|_| {
                    Failure::usage(format!("`{mode}` is not a mode"))
                        .with_hint("modes are live, install, disk, hold and auto")
                })?;
                (Some(chosen), Some(mode))
            }
            (Some(_), _, Some(_)) => {
                return Err(Failure::usage("the nodes are named twice")
                    .with_hint("give the selector as a word or with `-l`"));
            }
        };
        if mode.is_none() && self.profile.is_none() {
            return Err(Failure::usage("neither a mode nor a profile is given")
                .with_hint("modes are live, install, disk, hold and auto"));
        }
        let words: Vec<String> = words.into_iter().collect();
        let selector = selector(&words)?.unwrap_or_default();
        let request = StateRequest {
            mode: mode.map(ModeWord::from),
            profile: self.profile.as_deref().map(name_or_none).transpose()?,
            once: None,
            reason: self.reason,
            reinstall: self.reinstall,
        };
        change(shell, &selector, &request, &self.write).await
    }
}

/// `-` is none.
fn name_or_none(text: &str) -> Result<Option<Name>, Failure> {
    if text == "-" {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|error| Failure::usage(format!("{error}")))
}

/// Boot a configuration one time
///
/// The node gets this configuration at its next request, whatever other configurations select it;
/// then it returns to its usual one. A retry after a failure still belongs to the same boot.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist boot once n1 rescue\n  hoist boot once n1 --clear\n  \
    hoist boot once n1 memtest --reason 'ticket 42' --dry-run")]
pub(super) struct OnceArgs {
    /// Name, id, xname, MAC or nid
    #[arg(value_name = "NODE")]
    node: String,

    /// The boot configuration
    #[arg(value_name = "CONFIG", required_unless_present = "clear", conflicts_with = "clear")]
    config: Option<Name>,

    /// Take it back
    #[arg(long)]
    clear: bool,

    /// Reason, shown with the boot state
    #[arg(long)]
    reason: Option<String>,

    /// Let it be one that installs, on a node that is installed already
    #[arg(long)]
    reinstall: bool,

    /// Show the change without making it; exits with 20 if there is something to change
    #[arg(long)]
    dry_run: bool,
}

impl OnceArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let request = StateRequest {
            once: Some(self.config),
            reason: self.reason,
            reinstall: self.reinstall,
            ..StateRequest::default()
        };
        let client = shell.client()?;
        let changed = client.set_boot_state(&self.node, &request, self.dry_run).await?;
        report(&mut shell.printer, &changed)
    }
}

/// Looks first, so that a large change is refused with its number, and asked about on a terminal.
async fn change(
    shell: &mut Shell,
    selector: &str,
    request: &StateRequest,
    write: &WriteArgs,
) -> Result<Exit, Failure> {
    let client = shell.client()?;
    let plan = client.set_boot_states(selector, request, true, None).await?;
    if write.dry_run {
        return report(&mut shell.printer, &plan);
    }
    if plan.needs_affects && write.affects != Some(plan.affected) {
        let count = plan.affected;
        return Err(Failure::refused(format!("this affects {count} nodes"))
            .with_hint(format!("confirm with `--affects {count}`")));
    }
    let ask = plan.affected > 0 && shell.printer.interactive() && !write.yes;
    if ask && write.affects.is_none() && !shell.printer.ask(&format!("{}. Go on?", told(&plan)))? {
        return Err(Failure::Declined);
    }
    let changed = client.set_boot_states(selector, request, false, write.affects).await?;
    report(&mut shell.printer, &changed)
}

fn report(printer: &mut Printer, changed: &StatesChanged) -> Result<Exit, Failure> {
    match printer.output() {
        Output::Json | Output::Yaml => printer.value(changed)?,
        Output::Name => changed.changed.iter().try_for_each(|node| printer.line(node.as_str()))?,
        Output::Table | Output::Wide => {}
    }
    printer.flush()?;
    printer.note(&told(changed));
    let would = changed.dry_run && !changed.changed.is_empty();
    Ok(if would { Exit::WouldChange } else { Exit::Done })
}

fn told(changed: &StatesChanged) -> String {
    let verb = if changed.dry_run { "to change" } else { "changed" };
    let count = changed.changed.len();
    let affected = changed.affected;
    format!("{count} of {} nodes {verb}; {affected} boot differently", changed.named)
}
