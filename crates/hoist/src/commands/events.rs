//! `hoist events`.

use std::time::Duration;

use clap::Args;
use hoist_api::client::{Client, ClientError};
use hoist_api::event::{Event, RESET};
use hoist_diagnostic::chain;
use hoist_model::Exit;

use super::Shell;
use crate::failure::Failure;
use crate::printer::Output;

/// Without `--follow`: when nothing came for so long, everything that happened has come.
const QUIET: Duration = Duration::from_millis(1500);
/// Events of the past that are shown without any option.
const LAST: u16 = 50;
const PAUSE_FIRST: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// Print the latest events, those since a given one, or events as they happen
///
/// `-o json` prints one event per line. A followed stream continues by itself where it was after
/// the server was unreachable; an event `reset` says that events were missed.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  hoist events\n  hoist events --last 200 --kind node\n  hoist events --follow\n  hoist events --follow --kind node,token\n  \
    hoist events --since 0192d1-a.41 -o json"
)]
pub(crate) struct EventsArgs {
    /// Wait for more
    #[arg(short, long)]
    follow: bool,

    /// So many of the latest events; 50, or none with `--follow`, by default
    #[arg(long, value_name = "N", conflicts_with = "since", value_parser = clap::value_parser!(u16).range(1..=1000))]
    last: Option<u16>,

    /// Only events after the one with this id
    #[arg(long, value_name = "ID")]
    since: Option<String>,

    /// Only kinds that begin with one of these words
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    kind: Vec<String>,
}

impl EventsArgs {
    pub(crate) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let client = shell.client()?;
        let kinds = (!self.kind.is_empty()).then(|| self.kind.join(","));
        let last = self.last.or((!self.follow).then_some(LAST)).map(|count| format!("-{count}"));
        let mut since = self.since.or(last);
        let mut pause = PAUSE_FIRST;
        let mut connected = false;
        loop {
            let before = since.clone();
            match read(shell, &client, &mut since, kinds.as_deref(), self.follow).await {
                Ok(()) if !self.follow => return Ok(Exit::Done),
                Ok(()) => connected = true,
                // The first try must work: an address that never answers is a mistake.
                Err(Failure::Client(
                    error @ (ClientError::Connect { .. } | ClientError::Lost { .. }),
                )) if self.follow && (connected || since.is_some()) => {
                    if pause == PAUSE_FIRST {
                        shell.printer.warn(&format!("{}; trying again", chain(&error)));
                    }
                    connected = true;
                }
                Err(failure) => return Err(failure),
            }
            if since != before {
                pause = PAUSE_FIRST;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }
}

/// Prints events until the stream ends or, without following, falls silent.
async fn read(
    shell: &mut Shell,
    client: &Client,
    since: &mut Option<String>,
    kinds: Option<&str>,
    follow: bool,
) -> Result<(), Failure> {
    let mut events = client.events(since.as_deref(), kinds).await?;
    loop {
        let event = if follow {
            events.next().await?
        } else {
            match tokio::time::timeout(QUIET, events.next()).await {
                Ok(event) => event?,
                Err(_) => return Ok(()),
            }
        };
        let Some(event) = event else { return Ok(()) };
        print(shell, &event)?;
        *since = Some(event.id);
    }
}

fn print(shell: &mut Shell, event: &Event) -> Result<(), Failure> {
    let printer = &mut shell.printer;
    match printer.output() {
        Output::Json | Output::Yaml => printer.json_line(event)?,
        Output::Name => printer.line(&event.id)?,
        Output::Table | Output::Wide => {
            if event.kind == RESET {
                printer.warn("events were missed; read again what you depend on");
            }
            let data = if event.data.is_null() { String::new() } else { event.data.to_string() };
            let line = format!("{}  {:20}  {}  {data}", event.at, event.kind, event.subject);
            printer.line(line.trim_end())?;
        }
    }
    printer.flush()
}
