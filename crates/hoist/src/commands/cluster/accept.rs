//! `hoist cluster pending`, `accept` and `reject`.

use clap::Args;
use hoist_api::client::Client;
use hoist_api::cluster::{AcceptRequest, PendingJoin, ReasonRequest};
use hoist_model::{Exit, Name};
use jiff::Timestamp;

use super::Shell;
use super::lookup::{label, short};
use super::nodes::{ago, hardware};
use crate::edit;
use crate::failure::Failure;
use crate::printer::Output;
use crate::table::Table;

/// Fewer digits are more likely a typing error than a choice.
const MIN_DIGITS: usize = 4;

/// List the machines that wait to be accepted
///
/// The machine itself shows the same fingerprint. Compare both before you accept it.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist cluster pending\n  hoist cluster pending -o json")]
pub(super) struct PendingArgs {}

impl PendingArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let pending = shell.client()?.pending_joins().await?.items;
        let printer = &mut shell.printer;
        match printer.output() {
            Output::Json | Output::Yaml => printer.value(&pending)?,
            Output::Name => pending.iter().try_for_each(|one| printer.line(&one.id))?,
            Output::Table | Output::Wide if pending.is_empty() => {
                printer.note("no machine waits");
            }
            Output::Table | Output::Wide => printer.table(&table(&pending, Timestamp::now()))?,
        }
        Ok(Exit::Done)
    }
}

/// Accept a machine that waits, after its fingerprint was compared
///
/// Asks on a terminal whether the fingerprint is the one on the screen of the machine.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist cluster accept 3f9c2a77\n  \
    hoist cluster accept 3f9c2a77 --node nid000009 -y\n  \
    hoist cluster accept 3f9c2a77 --dry-run")]
pub(super) struct AcceptArgs {
    /// The id, its start, or the host name, as `hoist cluster pending` shows it
    #[arg(value_name = "ID")]
    id: String,

    /// The inventory node that the machine is; the node with its host name if left out
    #[arg(long, value_name = "NAME")]
    node: Option<Name>,

    /// Do not ask about the fingerprint
    #[arg(short, long)]
    yes: bool,

    /// Show the change without making it
    #[arg(long)]
    dry_run: bool,
}

impl AcceptArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let client = shell.client()?;
        let pending = find(&client, &self.id).await?;
        let node = self.node.as_ref().map_or(pending.hostname.as_str(), Name::as_str);
        let what = format!("{} from {} as node {node}", short(&pending.id), pending.from);
        if self.dry_run {
            let what = format!("accept {what}, fingerprint {}", pending.fingerprint);
            return edit::would(&mut shell.printer, &what);
        }
        if shell.printer.interactive() && !self.yes {
            let fingerprint = &pending.fingerprint;
            let question =
                format!("The machine must show fingerprint {fingerprint}. Accept {what}?");
            if !shell.printer.ask(&question)? {
                return Err(Failure::Declined);
            }
        }
        let request = AcceptRequest { node: self.node };
        let member = client.accept_join(&pending.id, &request).await?;
        let printer = &mut shell.printer;
        match printer.output() {
            Output::Json | Output::Yaml => printer.value(&member)?,
            Output::Name => printer.line(member.node.as_str())?,
            Output::Table | Output::Wide => printer.note(&format!(
                "{} is accepted; it becomes a member when it confirms",
                label(&member)
            )),
        }
        Ok(Exit::Done)
    }
}

/// Reject a machine that waits
///
/// The machine may ask again. `hoist cluster expel` refuses an id for ever.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist cluster reject 3f9c2a77 --reason 'not ours'")]
pub(super) struct RejectArgs {
    /// The id, its start, or the host name, as `hoist cluster pending` shows it
    #[arg(value_name = "ID")]
    id: String,

    /// For the audit log
    #[arg(long)]
    reason: Option<String>,

    /// Show the change without making it
    #[arg(long)]
    dry_run: bool,
}

impl RejectArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let client = shell.client()?;
        let pending = find(&client, &self.id).await?;
        let what = format!("{} ({})", pending.hostname, short(&pending.id));
        if self.dry_run {
            return edit::would(&mut shell.printer, &format!("reject {what}"));
        }
        client.reject_join(&pending.id, &ReasonRequest { reason: self.reason }).await?;
        shell.printer.note(&format!("{what} is rejected"));
        Ok(Exit::Done)
    }
}

pub(super) async fn find(client: &Client, text: &str) -> Result<PendingJoin, Failure> {
    let pending = client.pending_joins().await?.items;
    choose(&pending, text).cloned()
}

fn choose<'a>(pending: &'a [PendingJoin], text: &str) -> Result<&'a PendingJoin, Failure> {
    let text = text.to_ascii_lowercase();
    let fits = |one: &&PendingJoin| {
        one.hostname == text || text.len() >= MIN_DIGITS && one.id.starts_with(&text)
    };
    let found: Vec<_> = pending.iter().filter(fits).collect();
    match found.as_slice() {
        [] => Err(Failure::missing(format!("request `{text}`"))
            .with_hint("`hoist cluster pending` shows the machines that wait")),
        [one] => Ok(one),
        several => {
            let ids: Vec<_> = several.iter().map(|one| short(&one.id)).collect();
            let message = format!("`{text}` means several machines: {}", ids.join(", "));
            Err(Failure::ambiguous(message).with_hint("give more of the id"))
        }
    }
}

fn table(pending: &[PendingJoin], now: Timestamp) -> Table {
    let mut table = Table::new(&["ID", "HOST NAME", "FROM", "WAITS", "FINGERPRINT"])
        .wide(&["PREFERRED", "RESOURCES"]);
    for one in pending {
        table.row(vec![
            short(&one.id).to_owned(),
            one.hostname.clone(),
            one.from.to_string(),
            ago(one.since, now),
            one.fingerprint.clone(),
            one.preferred.clone().unwrap_or_default(),
            hardware(&one.resources),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pending(id: &str, hostname: &str) -> PendingJoin {
        let value = json!({
            "id": id, "hostname": hostname, "fingerprint": "3f9c-2a77", "from": "10.0.0.9",
            "since": "2026-01-01T00:00:00Z", "resources": {},
        });
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn request_is_found_by_host_name_and_by_start_of_id() {
        let waiting = [pending("aaaa1", "n1"), pending("aaaa2", "n2"), pending("bbbb1", "n2")];
        assert_eq!(choose(&waiting, "n1").unwrap().id, "aaaa1");
        assert_eq!(choose(&waiting, "AAAA2").unwrap().id, "aaaa2");
        for text in ["n2", "aaaa"] {
            assert_eq!(choose(&waiting, text).unwrap_err().exit(), Exit::Ambiguous);
        }
        assert_eq!(choose(&waiting, "aaa").unwrap_err().exit(), Exit::Failed);
    }

    #[test]
    fn request_is_one_line() {
        let now = "2026-01-01T00:00:07Z".parse().unwrap();
        assert_eq!(
            table(&[pending("3f9c2a7700b1d4e8", "n1")], now).render(false),
            "ID            HOST NAME  FROM      WAITS  FINGERPRINT\n\
             3f9c2a7700b1  n1         10.0.0.9  7s     3f9c-2a77\n"
        );
    }
}
