//! The status lines below the event lines of a run on a terminal: progress, failures, running and
//! waiting instances, and the critical path.

use std::cell::Cell;

use hoist_api::deploy::{FailedInstance, Instance, RunDetail};
use indicatif::{ProgressBar, ProgressStyle};
use rustix::termios::tcgetwinsize;

use super::show::reason_of;
use super::{counted, counts, plain};
use crate::printer::is_dumb;

/// Lines for failures, and for running or ready instances.
const FAILED: usize = 3;
const UNDER_WAY: usize = 6;
/// Characters of the bar itself, where there is room.
const LONGEST: usize = 32;
/// Where a terminal does not say how large it is.
const USUAL: (usize, usize) = (80, 24);

pub(super) struct Bar {
    bar: ProgressBar,
    is_drawn: Cell<bool>,
}

impl Bar {
    /// An empty bar unless the output is a terminal that can redraw lines.
    pub(super) fn new(for_people: bool) -> Self {
        let bar = if for_people && !is_dumb() {
            let style = ProgressStyle::with_template("{msg}").expect("a literal template");
            ProgressBar::no_length().with_style(style)
        } else {
            ProgressBar::hidden()
        };
        Self { bar, is_drawn: Cell::new(false) }
    }

    pub(super) fn is_shown(&self) -> bool {
        !self.bar.is_hidden()
    }

    /// Prints lines that stay. They must be out when `print` is.
    pub(super) fn above<T>(&self, print: impl FnOnce() -> T) -> T {
        // One that was never filled would be drawn empty, and stay.
        if self.is_drawn.get() { self.bar.suspend(print) } else { print() }
    }

    pub(super) fn show(&self, detail: &RunDetail) {
        let size = tcgetwinsize(std::io::stderr()).ok().map(|size| (size.ws_col, size.ws_row));
        let size = size.filter(|(columns, rows)| *columns > 0 && *rows > 0);
        let (columns, rows) = size.map_or(USUAL, |(columns, rows)| (columns.into(), rows.into()));
        self.is_drawn.set(true);
        self.bar.set_message(lines(detail, columns, rows).join("\n"));
        self.bar.tick();
    }

    pub(super) fn end(&self) {
        self.bar.finish_and_clear();
    }
}

/// Each is shorter than a line of the terminal, and all of them fit on it.
fn lines(detail: &RunDetail, columns: usize, rows: usize) -> Vec<String> {
    let run = &detail.summary;
    let open = ["waiting", "ready", "checking", "running", "verifying", "delayed", "unknown"];
    let left: usize = open.iter().filter_map(|state| run.counts.get(*state)).sum();
    let done = run.steps.saturating_sub(left);
    let drawn = drawn(done, run.steps, LONGEST.min(columns / 3));
    let mut all = vec![format!("{drawn} {done}/{} {}", run.steps, counts(run))];

    let mut failed: Vec<String> = detail.failures.iter().take(FAILED).map(failure).collect();
    if detail.failures.len() > FAILED {
        failed.push(format!("  … {} more", detail.failures.len() - FAILED));
    }
    let longest = match &detail.critical[..] {
        [first, .., last] => {
            let steps = counted(detail.critical.len(), "instance");
            Some(format!("  longest way left: {steps}, {first} to {last}"))
        }
        _ => None,
    };
    all.extend(failed);
    // The terminal scrolls if its last line is used too.
    let room = rows.saturating_sub(all.len() + usize::from(longest.is_some()) + 1);
    let running = detail.running.iter().map(|one| format!("  {} {}", one.state, one.name));
    let under_way = running.chain(detail.held.iter().map(held));
    all.extend(under_way.take(room.min(UNDER_WAY)));
    all.extend(longest);
    all.truncate(rows.saturating_sub(1).max(1));
    all.iter().map(|line| cut(line, columns)).collect()
}

fn failure(failed: &FailedInstance) -> String {
    let FailedInstance { instance, blocks, .. } = failed;
    let blocks = match blocks {
        0 => String::new(),
        count => format!(" (blocks {count})"),
    };
    let reason = reason_of(instance);
    format!("  {} {}{blocks}: {reason}", instance.state, instance.name)
}

fn held(instance: &Instance) -> String {
    let why = instance.held_by.as_deref().unwrap_or("its turn");
    format!("  ready {}, held back by {why}", instance.name)
}

fn drawn(done: usize, all: usize, width: usize) -> String {
    let full = (done * width).checked_div(all).unwrap_or(width).min(width);
    format!("{}{}", "█".repeat(full), "░".repeat(width - full))
}

/// One line that does not wrap.
fn cut(line: &str, columns: usize) -> String {
    let line = plain(line.lines().next().unwrap_or_default()).replace('\t', " ");
    let most = columns.saturating_sub(1);
    if line.chars().count() <= most {
        return line;
    }
    line.chars().take(most.saturating_sub(1)).chain(['…']).take(most).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn detail() -> RunDetail {
        let instance = |name: &str, state: &str, more: serde_json::Value| {
            let mut value = json!({
                "step": 1, "name": name, "action": "shell", "state": state, "attempt": 1,
            });
            let fields = value.as_object_mut().expect("an object");
            fields.extend(more.as_object().expect("an object").clone());
            value
        };
        let more = json!({
            "reason": "exit code 3: no space left\non the device", "blocks": 2, "blocked_nodes": 1,
        });
        let failed = instance("db@n1", "failed", more);
        let running: Vec<_> =
            (0..9).map(|n| instance(&format!("web@n{n}"), "running", json!({}))).collect();
        let held = instance("late@n1", "ready", json!({"held_by": "the window `nights`"}));
        serde_json::from_value(json!({
            "id": "01", "title": "t", "by": "me", "created": "", "state": "running", "steps": 20,
            "nodes": 9, "records": 7, "counts": {"ok": 9, "failed": 1, "running": 9, "ready": 1},
            "failures": vec![failed; 5], "running": running, "held": [held],
            "critical": ["web@n0", "x@n0", "late@n1"], "holds": [],
        }))
        .expect("a run")
    }

    #[test]
    fn failures_come_first_and_the_longest_way_last() {
        let shown = lines(&detail(), 80, 24);
        assert_eq!(
            shown[0],
            format!(
                "{}{} 10/20 1 failed, 9 ok, 1 ready, 9 running",
                "█".repeat(13),
                "░".repeat(13)
            )
        );
        assert_eq!(shown[1], "  failed db@n1 (blocks 2): exit code 3: no space left");
        assert_eq!(shown[4], "  … 2 more");
        assert_eq!(shown[5], "  running web@n0");
        assert_eq!(shown.len(), 12);
        assert_eq!(shown[11], "  longest way left: 3 instances, web@n0 to late@n1");
    }

    #[test]
    fn bar_fits_every_terminal_width() {
        for (columns, rows) in [(40, 24), (20, 5), (1, 1), (300, 2)] {
            let shown = lines(&detail(), columns, rows);
            assert!(!shown.is_empty() && shown.len() <= rows.saturating_sub(1).max(1), "{shown:?}");
            let is_short = |line: &String| line.chars().count() < columns;
            assert!(shown.iter().all(is_short), "{columns} columns: {shown:?}");
        }
        let mut few = detail();
        few.failures.clear();
        few.running.truncate(1);
        let shown = lines(&few, 40, 24);
        assert_eq!(shown[2], "  ready late@n1, held back by the wind…");
    }
}
