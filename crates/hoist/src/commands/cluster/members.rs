//! `hoist cluster drain`, `leave`, `expel` and `replace`.

use clap::Args;
use hoist_api::client::Client;
use hoist_api::cluster::{ClusterMember, MemberState, PendingJoin, ReasonRequest, ReplaceRequest};
use hoist_model::Exit;

use super::Shell;
use super::accept;
use super::lookup::{self, label, short, state_word};
use crate::edit;
use crate::failure::Failure;
use crate::printer::Output;

/// The arguments of a command about one member.
#[derive(Debug, Args)]
struct Target {
    /// Name or id of the member
    #[arg(value_name = "NODE")]
    node: String,

    /// For the audit log
    #[arg(long)]
    reason: Option<String>,

    /// Show the change without making it
    #[arg(long)]
    dry_run: bool,
}

/// Plan the cluster without a member that stays for now
///
/// The member keeps working until others have its role. `hoist cluster leave` ends its membership.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist cluster drain n2 --dry-run\n  \
    hoist cluster drain n2 --reason 'new disks'")]
pub(super) struct DrainArgs {
    #[command(flatten)]
    target: Target,
}

/// End the membership of a node, which may join again
///
/// A node with role monolith, core or data must be drained first, because it may hold data.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist cluster leave n2\n  hoist cluster leave n2 --dry-run")]
pub(super) struct LeaveArgs {
    #[command(flatten)]
    target: Target,
}

/// Refuse a member for ever: for stolen and compromised machines
///
/// Its certificate ends at once, and its key can never join again. Asks on a terminal; elsewhere it
/// needs `-y`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist cluster expel n2 --reason stolen\n  \
    hoist cluster expel 3f9c2a77 -y")]
pub(super) struct ExpelArgs {
    #[command(flatten)]
    target: Target,

    /// Do not ask before
    #[arg(short, long)]
    yes: bool,
}

/// Give the place and role of a member to another installation
///
/// For a machine that was installed again without its key, and for new hardware. The old member's
/// certificate ends.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist cluster replace n2 3f9c2a77\n  \
    hoist cluster replace n2 n9 --dry-run")]
pub(super) struct ReplaceArgs {
    /// Name or id of the member that goes
    #[arg(value_name = "OLD")]
    old: String,

    /// Id, or its start, of the machine that comes: one that waits, was refused over its name, or
    /// is a member
    #[arg(value_name = "NEW")]
    new: String,

    /// Show the change without making it
    #[arg(long)]
    dry_run: bool,
}

/// The subject of a command: a member, or a machine that waits.
struct Subject {
    id: String,
    label: String,
    /// None for a machine that waits.
    state: Option<MemberState>,
    role: Option<String>,
}

impl From<ClusterMember> for Subject {
    fn from(member: ClusterMember) -> Self {
        let label = label(&member);
        Self { label, id: member.id, state: Some(member.state), role: member.role }
    }
}

impl From<PendingJoin> for Subject {
    fn from(pending: PendingJoin) -> Self {
        let label = format!("{} ({})", pending.hostname, short(&pending.id));
        Self { label, id: pending.id, state: None, role: None }
    }
}

impl DrainArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let client = shell.client()?;
        let member = lookup::find(&client, &self.target.node).await?;
        self.target.steer(shell, &client, member.into(), "drain", MemberState::Draining).await
    }
}

impl LeaveArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let client = shell.client()?;
        let member = lookup::find(&client, &self.target.node).await?;
        self.target.steer(shell, &client, member.into(), "leave", MemberState::Left).await
    }
}

impl ExpelArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let client = shell.client()?;
        let subject = match lookup::find(&client, &self.target.node).await {
            Ok(member) => Subject::from(member),
            Err(missing @ Failure::Missing { .. }) => {
                // A machine that waits can be refused for ever too.
                match accept::find(&client, &self.target.node).await {
                    Ok(pending) => Subject::from(pending),
                    Err(Failure::Missing { .. }) => return Err(missing),
                    Err(failure) => return Err(failure),
                }
            }
            Err(failure) => return Err(failure),
        };
        let is_change = subject.state != Some(MemberState::Expelled) && !self.target.dry_run;
        if is_change && !self.yes {
            let label = &subject.label;
            if !shell.printer.interactive() {
                let message = format!("the expulsion of {label} is not confirmed");
                return Err(Failure::refused(message).with_hint(
                    "hoist has no terminal to ask on; repeat with `-y`, or with `--dry-run`",
                ));
            }
            if !shell.printer.ask(&format!("Expel {label}? Its key can never join again."))? {
                return Err(Failure::Declined);
            }
        }
        self.target.steer(shell, &client, subject, "expel", MemberState::Expelled).await
    }
}

impl Target {
    /// Brings a machine into a state, unless it is in it.
    async fn steer(
        self,
        shell: &mut Shell,
        client: &Client,
        subject: Subject,
        verb: &str,
        state: MemberState,
    ) -> Result<Exit, Failure> {
        let Subject { id, label, state: current, role } = subject;
        if current == Some(state) {
            shell.printer.note(&format!("{label} is in state {} already", state_word(state)));
            return Ok(Exit::Done);
        }
        if self.dry_run {
            let role = role.map(|role| format!(", role {role}")).unwrap_or_default();
            return edit::would(&mut shell.printer, &format!("{verb} {label}{role}"));
        }
        let request = ReasonRequest { reason: self.reason };
        let member = client.steer_member(&id, verb, &request).await?;
        report(shell, &member)?;
        Ok(Exit::Done)
    }
}

impl ReplaceArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let client = shell.client()?;
        let old = lookup::find(&client, &self.old).await?;
        if self.dry_run {
            let what = format!("replace {} by {}", label(&old), self.new);
            return edit::would(&mut shell.printer, &what);
        }
        // The controller looks the new one up: it also knows machines that it has refused.
        let request = ReplaceRequest { old: old.id, new: self.new };
        let member = client.replace_member(&request).await?;
        report(shell, &member)?;
        Ok(Exit::Done)
    }
}

fn report(shell: &mut Shell, member: &ClusterMember) -> Result<(), Failure> {
    let printer = &mut shell.printer;
    match printer.output() {
        Output::Json | Output::Yaml => printer.value(member)?,
        Output::Name => printer.line(member.node.as_str())?,
        Output::Table | Output::Wide => {
            let role = member.role.as_ref().map(|role| format!(", role {role}"));
            printer.note(&format!(
                "{}: {}{}",
                label(member),
                state_word(member.state),
                role.unwrap_or_default()
            ));
        }
    }
    Ok(())
}
