//! `hoist deploy watch`: follows a run.
//!
//! On a terminal, a status bar stands below the event lines; elsewhere there are only the event
//! lines. While the controller is unreachable, the command waits and then continues after the last
//! event.

use std::time::{Duration, Instant};

use clap::Args;
use hoist_api::client::{Client, ClientError};
use hoist_api::deploy::{CheckKind, FailedCheck, RunDetail, RunEvent, RunEvents};
use hoist_diagnostic::chain;
use hoist_model::Exit;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::Value;

use super::bar::Bar;
use super::{counts, exit, interrupt, plain, show, word};
use crate::commands::Shell;
use crate::failure::Failure;
use crate::printer::{Output, Tone};

/// How long one question waits for something to happen.
const WAIT: &str = "20s";
/// The same while there is no bar to see why nothing happens.
const WAIT_QUIET: &str = "3s";
const PAUSE_FIRST: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// The bar is brought up to date at most this often: each time costs the controller a look.
const REFRESH: Duration = Duration::from_millis(500);
const WAIT_STALE: &str = "500ms";

/// Show a run until it comes to its end
///
/// `-o json` prints one event per line, each with its number; `--after` goes on behind one of them.
/// Ctrl-C leaves the run going.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist deploy watch last\n  \
    hoist deploy watch last --after 120 -o json")]
pub(super) struct WatchArgs {
    #[arg(value_name = "RUN", value_parser = super::named, default_value = "last")]
    run: String,
    /// Number of the last event seen
    #[arg(long, value_name = "N", default_value_t = 0)]
    after: u64,
}

impl WatchArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let client = shell.client()?;
        let id = client.run(&self.run).await?.summary.id;
        follow(shell, &client, &id, self.after).await
    }
}

/// Prints the events after a position until the run rests; the exit code is its outcome.
pub(super) async fn follow(
    shell: &mut Shell,
    client: &Client,
    run: &str,
    after: u64,
) -> Result<Exit, Failure> {
    let people = matches!(shell.printer.output(), Output::Table | Output::Wide);
    let bar = Bar::new(people);
    if people {
        shell.printer.line(format!("run {run}"))?;
        shell.printer.flush()?;
    }
    interrupt::leave_at_the_second();
    let ended = tokio::select! {
        ended = until_rest(shell, client, run, after, &bar) => ended,
        _ = tokio::signal::ctrl_c() => {
            bar.end();
            shell.printer.note(&format!(
                "the run goes on; `hoist deploy stop {run}` stops it, `hoist deploy watch {run}` shows it"
            ));
            return Ok(Exit::Unknown);
        }
    };
    bar.end();
    let detail = ended?;
    if people {
        rest(shell, &detail)?;
    }
    Ok(exit(&detail.summary))
}

async fn until_rest(
    shell: &mut Shell,
    client: &Client,
    run: &str,
    mut after: u64,
    bar: &Bar,
) -> Result<RunDetail, Failure> {
    let mut pause = PAUSE_FIRST;
    let mut shown: Option<Instant> = None;
    let mut is_stale: bool = bar.is_shown();
    // Whether the reason for the silence was printed since the last event.
    let mut is_told = bar.is_shown() || !for_people(shell);
    loop {
        // A stale bar is redrawn soon.
        let wait = match (is_stale, is_told) {
            (true, _) => WAIT_STALE,
            (_, false) => WAIT_QUIET,
            _ => WAIT,
        };
        let asked: Result<RunEvents, ClientError> = client.run_events(run, after, wait).await;
        let found = match asked {
            Ok(found) => found,
            Err(error @ (ClientError::Connect { .. } | ClientError::Lost { .. })) => {
                if pause == PAUSE_FIRST {
                    let text = format!("{}; waiting for the controller", chain(&error));
                    bar.above(|| shell.printer.warn(&text));
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        pause = PAUSE_FIRST;
        if let Some(last) = found.items.last() {
            (after, is_stale) = (last.seq, bar.is_shown());
            is_told = bar.is_shown() || !for_people(shell);
            bar.above(|| {
                found.items.iter().try_for_each(|event| print(shell, event))?;
                shell.printer.flush()
            })?;
        }
        if found.rests && after >= found.last {
            return Ok(client.run(run).await?);
        }
        if found.items.is_empty() && !is_told {
            is_told = true;
            if let Some(why) = standstill(&client.run(run).await?) {
                shell.printer.line(why)?;
                shell.printer.flush()?;
            }
        }
        if is_stale && shown.is_none_or(|at| at.elapsed() >= REFRESH) {
            bar.show(&client.run(run).await?);
            (shown, is_stale) = (Some(Instant::now()), false);
        }
    }
}

fn for_people(shell: &Shell) -> bool {
    matches!(shell.printer.output(), Output::Table | Output::Wide)
}

/// Why nothing runs, if nothing does.
fn standstill(detail: &RunDetail) -> Option<String> {
    let first = detail.held.first().filter(|_| detail.running.is_empty())?;
    let why = first.held_by.as_deref().unwrap_or("its turn");
    let more = match detail.held.len() {
        1 => String::new(),
        count => format!(", and {} more", count - 1),
    };
    Some(plain(&format!("nothing runs: {} is held back by {why}{more}", first.name)))
}

fn print(shell: &mut Shell, event: &RunEvent) -> Result<(), Failure> {
    let printer = &mut shell.printer;
    if !matches!(printer.output(), Output::Table | Output::Wide) {
        return printer.json_line(event);
    }
    let Some((tone, text)) = line(event) else { return Ok(()) };
    let at = i64::try_from(event.at).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    let time = at.unwrap_or_default().to_zoned(TimeZone::UTC).strftime("%H:%M:%S").to_string();
    printer.toned(tone, &format!("{time}  {}", plain(&text)))
}

/// One event in words; nothing for those that say nothing new.
fn line(event: &RunEvent) -> Option<(Tone, String)> {
    let text = |key: &str| event.more.get(key).and_then(Value::as_str).unwrap_or_default();
    let flag = |key: &str| event.more.get(key).and_then(Value::as_bool).unwrap_or_default();
    let attempt = event.more.get("attempt").and_then(Value::as_u64).unwrap_or_default();
    let name = text("name");
    let again = if attempt > 1 { format!(" (attempt {attempt})") } else { String::new() };
    let (tone, text) = match event.record.as_str() {
        "plan" => return None,
        "intent" => (Tone::Faint, format!("started      {name}{again}")),
        "given" => (Tone::Faint, format!("handed out   {name}{again}")),
        "ran" => match text("end") {
            "done" if flag("changed") => (Tone::Added, format!("done         {name}")),
            "done" => (Tone::Plain, format!("unchanged    {name}")),
            "interrupted" => (Tone::Changed, format!("interrupted  {name}")),
            "not_begun" if text("reason").is_empty() => {
                (Tone::Changed, format!("interrupted  {name}"))
            }
            _ => (Tone::Removed, format!("failed       {name}{again}: {}", text("reason"))),
        },
        "refused" => {
            let check = failed_check(event, "check", CheckKind::Precondition)?;
            (Tone::Removed, format!("refused      {name}: {check}"))
        }
        "verified" => match failed_check(event, "failed", CheckKind::Postcondition) {
            None => (Tone::Added, format!("checked      {name}")),
            Some(check) => (Tone::Removed, format!("failed       {name}{again}: {check}")),
        },
        "lost" => (Tone::Changed, format!("lost         {name}{again}: outcome unknown")),
        "carried" => (Tone::Plain, format!("kept         {name}: done in an older run")),
        "undone" => {
            let count = event.more.get("undone").and_then(Value::as_array).map_or(0, Vec::len);
            (Tone::Changed, format!("undone       {count} by run {}", text("run")))
        }
        "marked" => {
            let end = if flag("good") { "ok" } else { "failed" };
            (Tone::Changed, format!("marked {end}    {name} by {}", text("by")))
        }
        "stop" if flag("now") => (Tone::Changed, format!("stop --now   by {}", text("by"))),
        "stop" => (Tone::Changed, format!("stop         by {}", text("by"))),
        "resume" => (Tone::Changed, format!("resume       by {}", text("by"))),
        "pause" => {
            let word = if flag("paused") { "pause" } else { "unpause" };
            (Tone::Changed, format!("{word:12} {} by {}", text("node"), text("by")))
        }
        "hold" | "release" => {
            (Tone::Changed, format!("{:12} {name} by {}", event.record, text("by")))
        }
        "finished" => (Tone::Strong, format!("ended        {}", text("outcome"))),
        other => {
            let more = [name, text("node"), text("reason"), text("by")];
            let more: Vec<&str> = more.into_iter().filter(|part| !part.is_empty()).collect();
            (Tone::Changed, format!("{:12} {}", other.replace('_', " "), more.join(", ")))
        }
    };
    Some((tone, text))
}

/// The check of an event that did not hold.
fn failed_check(event: &RunEvent, field: &str, kind: CheckKind) -> Option<FailedCheck> {
    let check = event.more.get(field)?;
    let text = |key: &str| check[key].as_str().unwrap_or_default().to_owned();
    let exit_code = check["exit_code"].as_i64().and_then(|code| i32::try_from(code).ok());
    Some(FailedCheck { kind, title: text("title"), output: text("output"), exit_code })
}

/// Prints the summary of a resting run.
fn rest(shell: &mut Shell, detail: &RunDetail) -> Result<(), Failure> {
    let run = &detail.summary;
    let printer = &mut shell.printer;
    show::failures(printer, &detail.failures)?;
    show::undone(printer, detail)?;
    let parse = |at: &str| at.parse::<Timestamp>().ok();
    let took = run.ended.as_deref().and_then(parse).zip(parse(&run.created));
    let took = took.map(|(ended, created)| ended.duration_since(created).as_millis());
    let took = took.and_then(|ms| u64::try_from(ms).ok()).map(show::duration);
    let took = took.map(|took| format!(" after {took}")).unwrap_or_default();
    let tone = match exit(run) {
        Exit::Done => Tone::Added,
        Exit::Failed => Tone::Removed,
        _ => Tone::Changed,
    };
    let how = run.broken.as_deref().map_or_else(|| counts(run), plain);
    printer.toned(tone, &format!("{}{took}: {how}", word(run)))?;
    printer.flush()?;
    match exit(run) {
        Exit::Done => {}
        Exit::Waiting if detail.paused_by.is_some() => {
            let by = plain(detail.paused_by.as_deref().unwrap_or_default());
            printer.note(&format!(
                "nothing runs: paused by {by}; `hoist deploy unpause {}` lets it go on",
                run.id
            ));
        }
        Exit::Waiting => printer.note(&format!(
            "a person has to decide: `hoist deploy mark {} ok|failed INSTANCE`, or unpause it",
            run.id
        )),
        _ => {
            printer
                .note(&format!("`hoist deploy resume {}` runs the unfinished instances", run.id));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn told(event: Value) -> String {
        let event: RunEvent = serde_json::from_value(event).expect("an event");
        line(&event).expect("it is shown").1
    }

    #[test]
    fn failed_check_is_told_with_title_exit_code_and_output() {
        let check = json!({"title": "no one is logged in", "exit_code": 1});
        let event = json!({"seq": 3, "record": "refused", "at": 0, "name": "web@n1",
            "attempt": 1, "check": check});
        assert_eq!(
            told(event),
            "refused      web@n1: precondition \"no one is logged in\" failed (exit code 1); \
             nothing was changed"
        );
        let check = json!({"title": "port 80 answers", "output": "connection refused"});
        let event = json!({"seq": 4, "record": "verified", "at": 0, "name": "web@n1",
            "attempt": 2, "failed": check});
        assert_eq!(
            told(event),
            "failed       web@n1 (attempt 2): postcondition \"port 80 answers\" failed: \
             connection refused"
        );
        let event =
            json!({"seq": 5, "record": "verified", "at": 0, "name": "web@n1", "attempt": 2});
        assert_eq!(told(event), "checked      web@n1");
    }
}
