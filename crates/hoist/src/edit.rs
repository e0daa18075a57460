//! Changing the site: show the change, then make exactly that.
//!
//! The server computes a change without making it; it is shown, and then made only if the site is
//! still at the same revision. This guarantees that no change is made that was not shown.

use clap::Args;
use hoist_api::Code;
use hoist_api::client::{ApplyQuery, Client, ClientError};
use hoist_api::inventory::{ApplyResult, ItemChange, RenewRequest};
use hoist_model::{Exit, Kind};

use crate::changes;
use crate::commands::Shell;
use crate::failure::Failure;
use crate::input::Documents;
use crate::printer::{Output, Printer};

/// How often a change is computed again because the site changed meanwhile.
const TRIES: usize = 5;

/// The options of every command that changes declarations.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Changes")]
pub(crate) struct WriteArgs {
    /// Show the change without making it; exits with 20 if there is something to change
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Agree to a large change by naming how many existing nodes it affects
    #[arg(long, value_name = "N")]
    pub(crate) affects: Option<usize>,

    /// Do not ask before nodes are removed or come out differently
    #[arg(short, long)]
    pub(crate) yes: bool,
}

/// How documents are applied.
#[derive(Debug, Clone, Default)]
pub(crate) struct Terms {
    pub(crate) write: WriteArgs,
    pub(crate) set: Option<String>,
    pub(crate) prune: bool,
    /// This object, as kind and name, must be new.
    pub(crate) only_new: Option<(Kind, String)>,
    /// The version of the site that the documents were made from.
    pub(crate) base: Option<String>,
}

/// Applies documents: shows the change, asks where that is due, and makes it.
pub(crate) async fn apply(
    shell: &mut Shell,
    client: &Client,
    documents: &Documents,
    terms: &Terms,
) -> Result<Exit, Failure> {
    let query = ApplyQuery {
        dry_run: true,
        affects: None,
        set: terms.set.clone(),
        prune: terms.prune,
        at: terms.base.clone(),
    };
    let mut shown: Option<ApplyResult> = None;
    for _ in 0..TRIES {
        let (plan, tag) =
            client.apply(&query, documents.body("working out")?).await.map_err(moved)?;
        if let Some((kind, name)) = &terms.only_new {
            check_new(&plan, *kind, name)?;
        }
        if shown.as_ref().is_some_and(|shown| shown.items != plan.items) {
            return Err(Failure::Moved);
        }
        if shown.is_none()
            && let Some(exit) = judge(&mut shell.printer, &plan, terms)?
        {
            return Ok(exit);
        }
        let at = match (&terms.base, tag) {
            (Some(base), _) => Some(base.clone()),
            (None, Some(tag)) => Some(tag),
            (None, None) => site_version(client).await?.map(|site| site.at(plan.revision)),
        };
        let real = ApplyQuery { dry_run: false, affects: terms.write.affects, at, ..query.clone() };
        match client.apply(&real, documents.body("applying")?).await.map_err(moved) {
            Ok((applied, _)) => {
                report(&mut shell.printer, &applied)?;
                return Ok(Exit::Done);
            }
            Err(Failure::Moved) if terms.base.is_none() => shown = Some(plan),
            Err(failure) => return Err(failure),
        }
    }
    Err(Failure::Moved)
}

/// Removes objects by `Kind/name`.
pub(crate) async fn delete(
    shell: &mut Shell,
    client: &Client,
    targets: Vec<String>,
    write: &WriteArgs,
) -> Result<Exit, Failure> {
    let plan = client.delete(targets.clone(), true, None).await?;
    let terms = Terms { write: write.clone(), ..Terms::default() };
    if let Some(exit) = judge(&mut shell.printer, &plan, &terms)? {
        return Ok(exit);
    }
    let removed = client.delete(targets, false, write.affects).await?;
    report(&mut shell.printer, &removed)?;
    Ok(Exit::Done)
}

/// Makes nodes the next generation of themselves.
pub(crate) async fn renew(
    shell: &mut Shell,
    client: &Client,
    nodes: &RenewRequest,
    write: &WriteArgs,
) -> Result<Exit, Failure> {
    let plan = client.renew(nodes, true, None).await?;
    let terms = Terms { write: write.clone(), ..Terms::default() };
    if let Some(exit) = judge(&mut shell.printer, &plan, &terms)? {
        return Ok(exit);
    }
    let renewed = client.renew(nodes, false, write.affects).await?;
    report(&mut shell.printer, &renewed)?;
    Ok(Exit::Done)
}

/// Reads, changes and writes; repeated while concurrent writes interfere.
pub(crate) async fn modify<F>(
    shell: &mut Shell,
    client: &Client,
    write: &WriteArgs,
    mut make: F,
) -> Result<Exit, Failure>
where
    F: AsyncFnMut() -> Result<Documents, Failure>,
{
    for _ in 0..TRIES {
        let base = site_version(client).await?.map(|site| site.at(site.revision));
        let documents = make().await?;
        let terms = Terms { write: write.clone(), base, ..Terms::default() };
        match apply(shell, client, &documents, &terms).await {
            Err(Failure::Moved) => {}
            ended => return ended,
        }
    }
    Err(Failure::Moved)
}

/// Prints the action of a dry run that the server has accepted.
pub(crate) fn would(printer: &mut Printer, what: &str) -> Result<Exit, Failure> {
    printer.line(format!("would {what}"))?;
    Ok(Exit::WouldChange)
}

struct SiteVersion {
    incarnation: String,
    revision: u64,
}

impl SiteVersion {
    fn at(&self, revision: u64) -> String {
        format!("{}.{revision}", self.incarnation)
    }
}

/// A token that is limited to some nodes may not see it; then changes are not guarded by it.
async fn site_version(client: &Client) -> Result<Option<SiteVersion>, Failure> {
    match client.status().await {
        Ok(status) => {
            Ok(Some(SiteVersion { incarnation: status.incarnation, revision: status.revision }))
        }
        Err(error) if error.code() == Some(&Code::Forbidden) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn moved(error: ClientError) -> Failure {
    if error.code() == Some(&Code::PreconditionFailed) { Failure::Moved } else { error.into() }
}

fn check_new(plan: &ApplyResult, kind: Kind, name: &str) -> Result<(), Failure> {
    let is_new = plan.items.iter().any(|item| {
        item.change == ItemChange::Created && item.kind == kind.as_str() && item.name == name
    });
    if is_new {
        return Ok(());
    }
    let kind = kind.as_str().to_ascii_lowercase();
    Err(Failure::refused(format!("{kind} `{name}` exists already"))
        .with_hint("`hoist apply` and `set` change what exists"))
}

/// Shows a plan and says how to go on: with an exit code the command has ended.
fn judge(
    printer: &mut Printer,
    plan: &ApplyResult,
    terms: &Terms,
) -> Result<Option<Exit>, Failure> {
    let write = &terms.write;
    let empty = changes::is_empty(plan);
    for warning in &plan.warnings {
        printer.warn(warning);
    }
    // Programs get one answer: that of the change itself, unless there is none.
    let people = matches!(printer.output(), Output::Table | Output::Wide);
    if people || write.dry_run {
        changes::print(printer, plan)?;
    }
    if write.dry_run {
        printer.flush()?;
        printer.note(&changes::summary(plan));
        if let Err(Failure::Refused { hint: Some(hint), .. }) = check_affects(plan, write.affects) {
            printer.note(&hint);
        }
        return Ok(Some(if empty { Exit::Done } else { Exit::WouldChange }));
    }
    if empty && terms.set.is_none() {
        if !people {
            changes::print(printer, plan)?;
        }
        printer.flush()?;
        printer.note(&changes::summary(plan));
        return Ok(Some(Exit::Done));
    }
    check_affects(plan, write.affects)?;
    let weighty = plan.removed > 0 || plan.affected > 0;
    if weighty && printer.interactive() && !write.yes && write.affects.is_none() {
        let question = format!("{}. Go on?", changes::summary(plan));
        if !printer.ask(&question)? {
            return Err(Failure::Declined);
        }
    }
    Ok(None)
}

fn check_affects(plan: &ApplyResult, affects: Option<usize>) -> Result<(), Failure> {
    if !plan.needs_affects || affects == Some(plan.affected) {
        return Ok(());
    }
    let said = affects.map(|count| format!(", not {count}")).unwrap_or_default();
    let message = format!("this affects {} existing nodes{said}", plan.affected);
    Err(Failure::refused(message).with_hint(format!("confirm with `--affects {}`", plan.affected)))
}

fn report(printer: &mut Printer, applied: &ApplyResult) -> Result<(), Failure> {
    if !matches!(printer.output(), Output::Table | Output::Wide) {
        changes::print(printer, applied)?;
    }
    printer.flush()?;
    printer.note(&changes::summary(applied));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::changes::tests::applied;
    use crate::printer::tests::printer;
    use hoist_api::inventory::AppliedItem;

    fn plan(change: ItemChange) -> ApplyResult {
        let item =
            AppliedItem { kind: "Node".into(), name: "n1".into(), change, fields: Vec::new() };
        applied(vec![item])
    }

    #[test]
    fn a_dry_run_with_changes_ends_with_its_own_code() {
        let dry = WriteArgs { dry_run: true, ..WriteArgs::default() };
        let terms = Terms { write: dry, ..Terms::default() };
        let (mut printer, out, err) = printer(Output::Table);
        let exit = judge(&mut printer, &plan(ItemChange::Created), &terms).unwrap();
        assert_eq!(exit, Some(Exit::WouldChange));
        assert_eq!(out.text(), "+ Node n1\n");
        assert!(err.text().starts_with("1 to create"), "{}", err.text());
        let exit = judge(&mut printer, &applied(vec![]), &terms).unwrap();
        assert_eq!(exit, Some(Exit::Done));
    }

    #[test]
    fn a_large_change_wants_its_exact_count() {
        let mut plan = plan(ItemChange::Changed);
        plan.needs_affects = true;
        plan.affected = 60;
        let judged = |affects| {
            let write = WriteArgs { affects, ..WriteArgs::default() };
            let (mut printer, ..) = printer(Output::Table);
            judge(&mut printer, &plan, &Terms { write, ..Terms::default() })
        };
        assert_eq!(judged(Some(60)).unwrap(), None);
        for wrong in [None, Some(59)] {
            let failure = judged(wrong).unwrap_err();
            assert_eq!(failure.exit(), Exit::Refused);
            let hint = failure.render().hint;
            assert_eq!(hint.as_deref(), Some("confirm with `--affects 60`"));
        }
    }

    #[test]
    fn adding_what_exists_is_refused() {
        assert!(check_new(&plan(ItemChange::Changed), Kind::Node, "n1").is_err());
        let fresh = plan(ItemChange::Created);
        assert!(check_new(&fresh, Kind::Node, "n1").is_ok());
        assert!(check_new(&fresh, Kind::Node, "n2").is_err());
        assert!(check_new(&fresh, Kind::Group, "n1").is_err());
    }
}
