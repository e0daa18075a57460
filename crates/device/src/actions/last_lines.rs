//! The last lines that a program prints: they explain its failure. A tool often prints the cause
//! first and ends with a line that says only that it failed.

use std::collections::VecDeque;

use hoist_engine::action::{Output, Stream};
use hoist_engine::program::ProgramExit;

/// Most lines of an explanation, and most bytes of them together.
const MOST_LINES: usize = 20;
const MOST_BYTES: usize = 2048;

/// Passes on the output of a program and keeps its end.
pub(super) struct LastLines<'a> {
    output: &'a mut dyn Output,
    lines: VecDeque<String>,
    bytes: usize,
}

impl<'a> LastLines<'a> {
    pub(super) fn of(output: &'a mut dyn Output) -> Self {
        Self { output, lines: VecDeque::new(), bytes: 0 }
    }

    /// Why the program did not succeed, with its last lines; `None` if it did.
    pub(super) fn explain(&self, ran: &ProgramExit) -> Option<String> {
        let failure = ran.failure()?;
        if self.lines.len() < 2 {
            return Some(failure);
        }
        let last = format!(": {}", ran.last_line);
        let what = failure.strip_suffix(&last).unwrap_or(&failure);
        let lines: Vec<&str> = self.lines.iter().map(String::as_str).collect();
        Some(format!("{what}: {}", lines.join("; ")))
    }

    fn keep(&mut self, line: &str) {
        if line.is_empty() {
            return;
        }
        let line: String = line.chars().take(MOST_BYTES / 4).collect();
        self.bytes += line.len();
        self.lines.push_back(line);
        while self.lines.len() > MOST_LINES || self.bytes > MOST_BYTES {
            self.bytes -= self.lines.pop_front().map_or(0, |line| line.len());
        }
    }
}

impl Output for LastLines<'_> {
    fn line(&mut self, stream: Stream, bytes: &[u8]) {
        let quoted = self.output.quoted(bytes, false);
        let text = String::from_utf8_lossy(&quoted);
        // A progress display returns to the start of its line.
        self.keep(text.rsplit(['\r', '\u{8}']).next().unwrap_or_default().trim());
        self.output.line(stream, bytes);
    }

    fn part(&mut self, stream: Stream, bytes: &[u8]) {
        self.output.part(stream, bytes);
    }

    fn progress(&mut self, done: u64, total: Option<u64>) {
        self.output.progress(done, total);
    }

    fn quoted(&self, line: &[u8], is_cut: bool) -> Vec<u8> {
        self.output.quoted(line, is_cut)
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use hoist_engine::action::Cancel;
    use hoist_engine::execute::process;
    use proptest::prelude::*;

    use super::*;
    use crate::actions::stack::Silence;

    fn explained(script: &str) -> Option<String> {
        let mut silence = Silence;
        let mut lines = LastLines::of(&mut silence);
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        let ran = process::run(&mut command, b"", None, &Cancel::default(), &mut lines);
        lines.explain(&ran.expect("a shell"))
    }

    #[test]
    fn failure_of_a_tool_is_explained_by_its_last_lines() {
        let script = "printf 'scan 1%%\\rscan 100%%\\n' >&2; echo 'sda1: has a file system' >&2; \
                      echo >&2; echo 'use -f to force' >&2; exit 3";
        let told = "exit code 3: scan 100%; sda1: has a file system; use -f to force";
        assert_eq!(explained(script).as_deref(), Some(told));
        assert_eq!(explained("echo once >&2; exit 1").as_deref(), Some("exit code 1: once"));
        assert_eq!(explained("exit 1").as_deref(), Some("exit code 1"));
        assert_eq!(explained("echo one; echo two"), None);
        let many = explained("seq 1 100; exit 1").expect("it failed");
        assert!(many.starts_with("exit code 1: 81; 82") && many.ends_with("; 100"), "{many}");
    }

    proptest! {
        #[test]
        fn last_lines_are_bounded(lines in prop::collection::vec(".{0,700}", 0..60)) {
            let mut silence = Silence;
            let mut kept = LastLines::of(&mut silence);
            for line in &lines {
                kept.line(Stream::Err, line.as_bytes());
            }
            prop_assert!(kept.lines.len() <= MOST_LINES && kept.bytes <= MOST_BYTES);
            prop_assert_eq!(kept.bytes, kept.lines.iter().map(String::len).sum::<usize>());
        }
    }
}
