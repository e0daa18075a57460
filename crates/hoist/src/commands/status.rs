//! `hoist status`.

use clap::Args;
use hoist_api::event::{Health, HealthStatus};
use hoist_api::inventory::Status;
use hoist_model::Exit;
use serde::Serialize;

use super::{Shell, refresh};
use crate::failure::Failure;
use crate::printer::{Output, Printer, Tone};
use crate::when::age;

/// Show how the server is doing and how old its roster is
///
/// Ends with 0 when all is well, with 7 when it serves but something is away.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist status\n  hoist status -o json\n  \
    hoist status || echo look at it")]
pub(crate) struct StatusArgs {}

#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    status: Status,
    health: Health,
    /// Messages about degraded parts.
    degraded: Vec<String>,
}

impl StatusArgs {
    pub(crate) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let client = shell.client()?;
        let status = client.status().await?;
        let health = client.ready().await?;
        let degraded = problems(&status, &health);
        let exit = if degraded.is_empty() { Exit::Done } else { Exit::Degraded };
        let report = Report { status, health, degraded };
        match shell.printer.output() {
            Output::Json | Output::Yaml => shell.printer.value(&report)?,
            Output::Name => shell.printer.line(word(exit))?,
            Output::Table | Output::Wide => {
                print(&mut shell.printer, client.base().as_str(), &report)?;
            }
        }
        Ok(exit)
    }
}

fn word(exit: Exit) -> &'static str {
    if exit == Exit::Done { "ok" } else { "degraded" }
}

/// The degraded parts.
fn problems(status: &Status, health: &Health) -> Vec<String> {
    let mut problems = Vec::new();
    let store = &status.store;
    if !store.connected {
        let error = store.error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
        let since = age(store.silent_seconds);
        problems
            .push(format!("the store cannot be used for {since}{error}; writes are not possible"));
    }
    if store.full {
        problems.push("the store has no space left; writes fail until there is some".to_owned());
    }
    let roster = &status.roster;
    if roster.loaded_from == "nothing" {
        problems.push("no roster: neither the store nor a last-good copy was read".to_owned());
    } else if roster.stale {
        let age = age(roster.age_seconds);
        problems.push(format!("the roster is {age} old, from the {}", roster.loaded_from));
    }
    if let Some(source) = &status.source {
        if let Some(error) = &source.error {
            problems.push(format!("cannot import nodes from {}: {error}", source.url));
        }
        if let Some(alarm) = source.last_report.as_ref().and_then(refresh::own_alarm) {
            problems.push(format!("the last import raised an alarm: {alarm}"));
        }
    }
    for check in health.checks.iter().filter(|check| check.status != HealthStatus::Ok) {
        // Already reported above.
        let said = (check.name == "store" && (store.full || !store.connected))
            || (check.name == "roster" && roster.stale);
        if !said {
            let detail = if check.detail.is_empty() { "degraded" } else { &check.detail };
            problems.push(format!("{}: {detail}", check.name));
        }
    }
    if problems.is_empty() && health.status != HealthStatus::Ok {
        problems.push("the server is not ready".to_owned());
    }
    problems
}

fn print(printer: &mut Printer, url: &str, report: &Report) -> Result<(), Failure> {
    let Report { status, degraded, .. } = report;
    let size = status.store.size_bytes.map(|bytes| format!(", {} KiB", bytes / 1024));
    let store = if status.store.connected { "connected" } else { "away" };
    let mut lines = vec![
        ("server", format!("{url} {}, up {}", status.version, age(status.uptime_seconds))),
        ("store", format!("{} {store}{}", status.store.backend, size.unwrap_or_default())),
        (
            "roster",
            format!(
                "revision {}, from the {}, {} old",
                status.revision,
                status.roster.loaded_from,
                age(status.roster.age_seconds)
            ),
        ),
        (
            "holds",
            format!(
                "{} nodes, {} groups, {} partitions, {} networks",
                status.nodes, status.groups, status.partitions, status.networks
            ),
        ),
    ];
    if let Some(source) = &status.source {
        let last = source.last_success.map_or("never".to_owned(), |at| at.to_string());
        lines.push(("source", format!("{}, last complete {last}", source.url)));
    }
    let (state, tone) =
        if degraded.is_empty() { ("ok", Tone::Added) } else { ("degraded", Tone::Removed) };
    printer.toned(tone, state)?;
    for (name, text) in lines {
        printer.line(format!("  {name:7} {text}"))?;
    }
    degraded.iter().try_for_each(|problem| printer.toned(Tone::Changed, &format!("! {problem}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hoist_api::event::HealthCheck;
    use hoist_api::inventory::{RosterStatus, StoreStatus};

    fn status() -> Status {
        Status {
            version: "0.1.0".into(),
            incarnation: "i".into(),
            revision: 7,
            nodes: 3,
            groups: 1,
            partitions: 1,
            networks: 2,
            store: StoreStatus {
                backend: "etcd".into(),
                connected: true,
                full: false,
                error: None,
                silent_seconds: 0,
                detail: String::new(),
                size_bytes: Some(4096),
            },
            roster: RosterStatus {
                loaded_from: "store".into(),
                age_seconds: 1,
                stale: false,
                snapshot_written: None,
            },
            source: None,
            uptime_seconds: 7300,
        }
    }

    fn healthy() -> Health {
        Health { status: HealthStatus::Ok, checks: Vec::new() }
    }

    #[test]
    fn status_of_a_healthy_site_is_short() {
        let (mut printer, out, _) = crate::printer::tests::printer(Output::Table);
        assert!(problems(&status(), &healthy()).is_empty());
        let report = Report { status: status(), health: healthy(), degraded: Vec::new() };
        print(&mut printer, "http://127.0.0.1:27778/", &report).unwrap();
        assert_eq!(
            out.text(),
            "ok\n  server  http://127.0.0.1:27778/ 0.1.0, up 2h\n  \
             store   etcd connected, 4 KiB\n  roster  revision 7, from the store, 1s old\n  \
             holds   3 nodes, 1 groups, 1 partitions, 2 networks\n"
        );
    }

    #[test]
    fn absent_parts_are_printed_once() {
        let mut status = status();
        status.store.connected = false;
        status.store.error = Some("connection refused".into());
        status.store.silent_seconds = 300;
        let checks = [("store", "away"), ("disk", "almost full")].map(|(name, detail)| {
            HealthCheck { name: name.into(), status: HealthStatus::Degraded, detail: detail.into() }
        });
        let health = Health { status: HealthStatus::Degraded, checks: checks.into() };
        assert_eq!(
            problems(&status, &health),
            [
                "the store cannot be used for 5m: connection refused; writes are not possible",
                "disk: almost full",
            ]
        );
        let mut status = super::tests::status();
        status.store.full = true;
        let problems_of_full = problems(&status, &healthy());
        assert_eq!(problems_of_full.len(), 1);
        assert!(problems_of_full[0].contains("no space left"), "{problems_of_full:?}");
        let unready = Health { status: HealthStatus::Down, checks: Vec::new() };
        assert_eq!(problems(&super::tests::status(), &unready).len(), 1);
    }
}
