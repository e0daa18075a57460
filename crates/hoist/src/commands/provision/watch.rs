//! `hoist provision status --watch`: a run until it is over.
//!
//! On a terminal the same lines are redrawn, elsewhere each change prints a line. If the controller
//! is unreachable, the command waits and continues where it was.

use std::collections::HashMap;
use std::time::Duration;

use hoist_api::client::{Client, ClientError};
use hoist_api::provision::{NodeRunState, ProvisionRun, ProvisionRunState, RunNode};
use hoist_diagnostic::chain;
use hoist_model::Exit;
use rustix::termios::tcgetwinsize;

use super::Shell;
use super::status::{doing, erasures, exit, find, headline, keys, line, problems, show, state};
use crate::failure::Failure;
use crate::printer::{Output, Printer, is_dumb};

/// Poll interval, and that of a large run.
const LOOK_EVERY: Duration = Duration::from_millis(500);
const LOOK_AT_MANY_EVERY: Duration = Duration::from_secs(2);
const MANY: usize = 200;
/// Between questions to a controller that does not answer.
const PAUSE: Duration = Duration::from_secs(1);
/// Where a terminal does not say how large it is.
const USUAL: (usize, usize) = (80, 24);

pub(super) async fn watch(shell: &mut Shell, client: &Client, name: &str) -> Result<Exit, Failure> {
    let people = matches!(shell.printer.output(), Output::Table | Output::Wide);
    let is_live = people && shell.printer.interactive() && !is_dumb();
    let mut drawn = 0;
    let mut before = None;
    let mut is_away = false;
    loop {
        let run = match find(client, name).await {
            Err(Failure::Client(
                error @ (ClientError::Connect { .. } | ClientError::Lost { .. }),
            )) if before.is_some() => {
                if !is_away {
                    shell.printer.warn(&format!("{}; waiting for the controller", chain(&error)));
                    (is_away, drawn) = (true, 0);
                }
                tokio::time::sleep(PAUSE).await;
                continue;
            }
            found => found?,
        };
        is_away = false;
        let is_over = run.state != ProvisionRunState::Running;
        if is_live {
            // Moves up to the first line and redraws everything below.
            let up = if drawn > 0 { format!("\x1b[{drawn}A\x1b[J") } else { String::new() };
            let (columns, rows) = size();
            let lines = if is_over { Vec::new() } else { lines(&run, columns, rows) };
            drawn = lines.len();
            shell.printer.text(&up)?;
            lines.iter().try_for_each(|line| shell.printer.line(line))?;
            if is_over {
                show(&mut shell.printer, &run)?;
            }
        } else if people {
            changes(&mut shell.printer, before.as_ref(), &run)?;
        } else if before.as_ref() != Some(&run) {
            shell.printer.value(&run)?;
        }
        shell.printer.flush()?;
        if is_over {
            return Ok(exit(&run));
        }
        let pause = if run.nodes.len() > MANY { LOOK_AT_MANY_EVERY } else { LOOK_EVERY };
        before = Some(run);
        tokio::time::sleep(pause).await;
    }
}

fn size() -> (usize, usize) {
    let size = tcgetwinsize(std::io::stdout()).ok().map(|size| (size.ws_col, size.ws_row));
    let size = size.filter(|(columns, rows)| *columns > 0 && *rows > 0);
    size.map_or(USUAL, |(columns, rows)| (columns.into(), rows.into()))
}

/// Each line is shorter than the terminal, and all of them fit on it: lines that have scrolled away
/// cannot be redrawn. Failures come first, then running nodes.
fn lines(run: &ProvisionRun, columns: usize, rows: usize) -> Vec<String> {
    let mut all = vec![headline(run)];
    // The terminal scrolls if its last line is used too, and one line counts the omitted nodes.
    let room = rows.saturating_sub(3).max(1);
    let mut nodes: Vec<&RunNode> = run.nodes.iter().collect();
    if nodes.len() > room {
        nodes.sort_by_key(|node| urgency(node));
    }
    let width = nodes.iter().take(room).map(|node| node.node.len()).max().unwrap_or(0);
    for node in nodes.iter().take(room) {
        let told = match problems(node).into_iter().next() {
            Some(problem) if node.state == NodeRunState::Failed => problem,
            _ => doing(node),
        };
        all.push(format!("{:width$}  {:9}  {told}", &*node.node, state(node)));
    }
    if nodes.len() > room {
        all.push(format!("… {} more", nodes.len() - room));
    }
    all.iter().map(|line| cut(line, columns)).collect()
}

fn urgency(node: &RunNode) -> u8 {
    match node.state {
        NodeRunState::Failed => 0,
        _ if node.note.is_some() && node.state.is_active() => 1,
        NodeRunState::Working => 2,
        NodeRunState::Booting | NodeRunState::Starting => 3,
        NodeRunState::Pending => 4,
        NodeRunState::Aborted => 5,
        NodeRunState::Waiting => 6,
        NodeRunState::Done | NodeRunState::Undone => 7,
    }
}

/// One line that does not wrap.
fn cut(line: &str, columns: usize) -> String {
    let most = columns.saturating_sub(1);
    if line.chars().count() <= most {
        return line.to_owned();
    }
    line.chars().take(most.saturating_sub(1)).chain(['…']).take(most).collect()
}

fn changes(
    printer: &mut Printer,
    before: Option<&ProvisionRun>,
    run: &ProvisionRun,
) -> Result<(), Failure> {
    let before = before.into_iter().flat_map(|run| &run.nodes);
    let before: HashMap<_, &RunNode> = before.map(|node| (node.id, node)).collect();
    for node in &run.nodes {
        let was = before.get(&node.id);
        if was.is_none_or(|was| line(was) != line(node)) {
            printer.line(line(node))?;
        }
        if was.is_none_or(|was| was.problems != node.problems) {
            problems(node).iter().try_for_each(|problem| printer.line(problem))?;
        }
        if was.is_none_or(|was| keys(was) != keys(node)) {
            keys(node).iter().try_for_each(|key| printer.line(key))?;
        }
        if was.is_none_or(|was| was.erased != node.erased) {
            erasures(node).try_for_each(|erasure| printer.line(erasure))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(name: &str, state: &str) -> serde_json::Value {
        json!({
            "node": name, "id": "01ARZ3NDEKTSV4RRFFQ69G5FAV", "run": "r", "profile": "p",
            "state": state, "since": "2026-01-02T03:04:05Z", "attempt": 1,
            "note": if state == "booting" { Some("x".repeat(200)) } else { None },
        })
    }

    #[test]
    fn a_large_run_fits_on_the_terminal_and_what_went_wrong_is_seen() {
        let mut nodes: Vec<_> = (0..500).map(|n| node(&format!("n{n}"), "done")).collect();
        nodes.push(node("late", "booting"));
        nodes.push(node("bad", "failed"));
        let run: ProvisionRun = serde_json::from_value(json!({
            "run": "r", "state": "running", "selector": "*", "by": "me",
            "started": "2026-01-02T03:04:05Z", "nodes": nodes, "counts": {
                "waiting": 0, "active": 1, "done": 500, "failed": 1, "aborted": 0,
            },
        }))
        .unwrap();
        let shown = lines(&run, 60, 10);
        assert_eq!(shown.len(), 9);
        assert!(shown.iter().all(|line| line.chars().count() < 60), "{shown:?}");
        assert!(shown[1].starts_with("bad ") && shown[2].starts_with("late "), "{shown:?}");
        assert_eq!(shown[8], "… 495 more");
    }
}
