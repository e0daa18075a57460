//! The screen on the machine's console, redrawn whenever its content changes.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use hoist_device::images::Progress;

/// Shortest interval of redraws for progress alone.
const REDRAW: Duration = Duration::from_millis(500);

const WIDTH: usize = 78;
const BAR: usize = 40;

/// Number of finished steps that are shown.
const STEPS_SHOWN: usize = 6;

#[derive(Debug, Clone, Default)]
pub(crate) struct View {
    pub(crate) node: String,
    pub(crate) server: String,
    pub(crate) stage: String,
    pub(crate) progress: Option<Progress>,
    pub(crate) done: Vec<String>,
    /// Why the last job was not carried out, until there is another one.
    pub(crate) failed: Option<String>,
    pub(crate) error: Option<String>,
    pub(crate) next: Option<String>,
}

impl View {
    /// One line of text each.
    fn lines(&self) -> Vec<String> {
        let version = env!("CARGO_PKG_VERSION");
        let mut lines = vec![
            format!("hoist-agent {version}   node {}   {}", self.node, self.server),
            "-".repeat(WIDTH),
        ];
        let skipped = self.done.len().saturating_sub(STEPS_SHOWN);
        if skipped > 0 {
            lines.push(format!("  done     {skipped} more"));
        }
        lines.extend(self.done[skipped..].iter().map(|step| format!("  done     {step}")));
        lines.push(format!("  now      {}", self.stage));
        if let Some(progress) = &self.progress {
            lines.push(format!("           {}", bar(progress)));
        }
        for (head, text) in [("  failed   ", &self.failed), ("  error    ", &self.error)] {
            let wrapped = wrap(text.as_deref().unwrap_or_default(), WIDTH - 11);
            let heads = [head].into_iter().chain(std::iter::repeat("           "));
            lines.extend(heads.zip(wrapped).map(|(head, line)| format!("{head}{line}")));
        }
        if let Some(next) = &self.next {
            lines.push(format!("  next     {next}"));
        }
        lines
    }
}

fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

fn bar(Progress { done, total, rate }: &Progress) -> String {
    let rate = format!("{}/s", mib(*rate));
    let Some(total) = total.filter(|total| *total > 0) else {
        return format!("{}  {rate}", mib(*done));
    };
    let done = (*done).min(total);
    let share = |of: u64| u64::try_from(u128::from(done) * u128::from(of) / u128::from(total));
    let full = share(BAR as u64).ok().and_then(|full| usize::try_from(full).ok()).unwrap_or(BAR);
    let rest = ".".repeat(BAR - full.min(BAR));
    let full = "#".repeat(full);
    let percent = share(100).unwrap_or(100);
    format!("[{full}{rest}] {percent:>3} %  {} of {}  {rate}", mib(done), mib(total))
}

/// Wraps text at spaces to lines of `width` characters.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Control characters in foreign text would move the cursor.
fn harmless(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// The console screen and its content.
#[derive(Debug)]
pub(crate) struct Screen {
    pub(crate) view: View,
    is_terminal: bool,
    drawn: Option<Instant>,
}

impl Screen {
    pub(crate) fn new(view: View) -> Self {
        Self { view, is_terminal: io::stdout().is_terminal(), drawn: None }
    }

    /// Shows the next stage of the work.
    pub(crate) fn stage(&mut self, stage: &str) {
        stage.clone_into(&mut self.view.stage);
        self.view.progress = None;
        self.draw();
    }

    pub(crate) fn progress(&mut self, progress: Progress) {
        self.view.progress = Some(progress);
        let is_end = progress.total == Some(progress.done);
        if is_end || self.drawn.is_none_or(|drawn| drawn.elapsed() >= REDRAW) {
            self.draw();
        }
    }

    pub(crate) fn error(&mut self, error: &str) {
        self.view.error = Some(error.to_owned());
        self.draw();
    }

    pub(crate) fn draw(&mut self) {
        self.drawn = Some(Instant::now());
        let lines = self.view.lines();
        let lines = lines.iter().map(|line| harmless(line));
        let text = if self.is_terminal {
            // From the upper left corner, each line to its end, then everything below.
            let lines: Vec<String> = lines.collect();
            format!("\x1b[H{}\x1b[K\r\n\x1b[J", lines.join("\x1b[K\r\n"))
        } else {
            // A log needs lines, not a redrawn screen.
            let line = |what: &str, text: &Option<String>| {
                let text = text.as_ref().map(|text| format!("  {what}: {}\n", harmless(text)));
                text.unwrap_or_default()
            };
            let error = line("failed", &self.view.failed) + &line("error", &self.view.error);
            let bar = self.view.progress.as_ref().map(|p| format!("  {}\n", bar(p)));
            let stage = harmless(&self.view.stage);
            format!("{stage}\n{}{error}", bar.unwrap_or_default())
        };
        // A console that cannot be written must not stop the work.
        let mut out = io::stdout().lock();
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn screen_shows_node_step_progress_and_error() {
        let view = View {
            node: "n1".to_owned(),
            server: "https://10.0.2.2:8443".to_owned(),
            stage: "write root".to_owned(),
            progress: Some(Progress { done: 8 << 20, total: Some(32 << 20), rate: 7 << 20 }),
            done: (1..=8).map(|number| format!("step {number}")).collect(),
            failed: Some("root-fs cannot be mounted".to_owned()),
            error: Some("the controller does not answer: connection refused ".repeat(3)),
            next: Some("asking again in 4 s".to_owned()),
        };
        let text = view.lines().join("\n");
        assert!(text.contains("node n1   https://10.0.2.2:8443"), "{text}");
        assert!(text.contains("done     2 more\n  done     step 3"), "{text}");
        let bar = "[##########..............................]  25 %  8 MiB of 32 MiB  7 MiB/s";
        assert!(text.contains(bar), "{text}");
        let both = "  failed   root-fs cannot be mounted\n  error    the controller does not";
        assert!(text.contains(both), "{text}");
        assert!(text.contains("  next     asking again in 4 s"), "{text}");
        assert!(view.lines().iter().all(|line| line.chars().count() <= 90), "{text}");
    }

    #[test]
    fn progress_bar_needs_a_total_and_ends_at_it() {
        let some = Progress { done: 1 << 20, total: None, rate: 0 };
        assert_eq!(bar(&some), "1 MiB  0 MiB/s");
        let more = Progress { done: 9, total: Some(3), rate: 0 };
        assert!(bar(&more).contains("100 %"), "{}", bar(&more));
        let nothing = Progress { done: 0, total: Some(0), rate: 0 };
        assert!(!bar(&nothing).contains('%'));
    }

    #[test]
    fn control_characters_are_removed() {
        assert_eq!(harmless("a\x1b[2Jb\n"), "a [2Jb ");
    }
}
