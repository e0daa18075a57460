//! `hoist cluster place`.

use clap::builder::PossibleValuesParser;
use clap::{ArgGroup, Args};
use hoist_api::cluster::RoleWishes;
use hoist_cluster::role::Role;
use hoist_model::Exit;

use super::Shell;
use super::lookup::{self, label};
use crate::edit;
use crate::failure::Failure;
use crate::printer::Output;

/// Say which role a member must have, and which it must not have
///
/// Replaces the earlier wishes for the member. The planner respects it from the next plan on,
/// which is made at once; `hoist cluster plan` shows moves that wait for consent.
#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("wishes").args(["pin", "forbid", "anywhere"]).required(true).multiple(true),
    after_help = "Examples:\n  hoist cluster place n3 --pin data\n  \
        hoist cluster place n4 --forbid data,core --dry-run\n  hoist cluster place n3 --anywhere"
)]
pub(super) struct PlaceArgs {
    /// Name or id of the member
    #[arg(value_name = "NODE")]
    node: String,

    /// The role that it gets as soon as the cluster uses it
    #[arg(long, value_name = "ROLE", value_parser = roles())]
    pin: Option<String>,

    /// Roles that it does not get; may be given several times
    #[arg(long, value_name = "ROLE", value_parser = shared_roles(), value_delimiter = ',')]
    forbid: Vec<String>,

    /// Any role: ends earlier pins and forbidden roles
    #[arg(long, conflicts_with_all = ["pin", "forbid"])]
    anywhere: bool,

    /// Show the change without making it
    #[arg(long)]
    dry_run: bool,
}

impl PlaceArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        if let Some(pin) = self.pin.as_ref().filter(|pin| self.forbid.contains(pin)) {
            return Err(Failure::usage(format!("role {pin} is pinned and forbidden"))
                .with_hint("give it with `--pin` or with `--forbid`"));
        }
        let client = shell.client()?;
        let member = lookup::find(&client, &self.node).await?;
        let wishes = RoleWishes { pin: self.pin, forbid: self.forbid.into_iter().collect() };
        let text = described(&wishes);
        if self.dry_run {
            let what = format!("place {}: {text}", label(&member));
            return edit::would(&mut shell.printer, &what);
        }
        let member = client.set_role_wishes(&member.id, &wishes).await?;
        let printer = &mut shell.printer;
        match printer.output() {
            Output::Json | Output::Yaml => printer.value(&member)?,
            Output::Name => printer.line(member.node.as_str())?,
            Output::Table | Output::Wide => {
                let role = member.role.as_deref().unwrap_or("none");
                printer.note(&format!("{}: {text}; its role is {role}", label(&member)));
            }
        }
        Ok(Exit::Done)
    }
}

/// The roles that the planner assigns. Roles of any name come from the site.
fn roles() -> PossibleValuesParser {
    let shared = Role::SHARED.map(Role::as_str);
    PossibleValuesParser::new(std::iter::once(Role::Monolith.as_str()).chain(shared))
}

/// A cluster of one has no role but `monolith`, so that one cannot be forbidden.
fn shared_roles() -> PossibleValuesParser {
    PossibleValuesParser::new(Role::SHARED.map(Role::as_str))
}

fn described(wishes: &RoleWishes) -> String {
    let pin = wishes.pin.iter().map(|role| format!("pinned to {role}"));
    let forbid = wishes.forbid.iter().map(|role| format!("not {role}"));
    let texts: Vec<_> = pin.chain(forbid).collect();
    if texts.is_empty() { "any role".to_owned() } else { texts.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wishes_are_one_line() {
        let mut wishes = RoleWishes::default();
        assert_eq!(described(&wishes), "any role");
        wishes.forbid = ["edge", "core"].map(str::to_owned).into();
        wishes.pin = Some("data".into());
        assert_eq!(described(&wishes), "pinned to data, not core, not edge");
    }
}
