//! Reading the output of a test program that runs its tests one after the other.
//!
//! The program prints `test NAME ... ` before each test, in the order of its list. Tests and the
//! programs they start may print anything in between, so only the name that must come next is
//! looked for. Which tests failed is decided by the list that the program prints at its end.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// The output of a program so far.
pub(super) struct Transcript {
    names: Vec<String>,
    text: Vec<u8>,
    /// Where to look for the next name.
    searched: usize,
    starts: Vec<(usize, Instant)>,
}

impl Transcript {
    pub(super) fn new(names: Vec<String>) -> Self {
        Self { names, text: Vec::new(), searched: 0, starts: Vec::new() }
    }

    pub(super) fn read(&mut self, bytes: &[u8], now: Instant) {
        self.text.extend_from_slice(bytes);
        while let Some(name) = self.names.get(self.starts.len()) {
            let expected = format!("test {name} ");
            let Some(at) = find(&self.text[self.searched..], expected.as_bytes()) else { break };
            self.searched += at + expected.len();
            self.starts.push((self.searched, now));
        }
    }

    /// How many tests were begun.
    pub(super) fn begun(&self) -> usize {
        self.starts.len()
    }

    pub(super) fn name(&self, index: usize) -> &str {
        &self.names[index]
    }

    /// How long each begun test took; the last one until `end`.
    pub(super) fn durations(&self, end: Instant) -> Vec<Duration> {
        let begins = self.starts.iter().map(|(_, at)| *at);
        let ends = begins.clone().skip(1).chain([end]);
        begins.zip(ends).map(|(begin, end)| end.saturating_duration_since(begin)).collect()
    }

    pub(super) fn is_ignored(&self, index: usize) -> bool {
        let Some((at, _)) = self.starts.get(index) else { return false };
        self.text[*at..].starts_with(b"... ignored")
    }

    /// Whether the program reported a failure of the test. Its list at the end is more reliable;
    /// this is for programs that died before they printed it.
    pub(super) fn says_failed(&self, index: usize) -> bool {
        let Some((begin, _)) = self.starts.get(index) else { return false };
        let end = self.starts.get(index + 1).map_or(self.text.len(), |(at, _)| *at);
        find(&self.text[*begin..end], b"FAILED").is_some()
    }

    /// The reason that a test gave for not running, as `hoist_testkit::skip` prints it.
    pub(super) fn skip_reason(&self, index: usize) -> Option<String> {
        const MARK: &[u8] = b"\nSKIPPED: ";
        let (begin, _) = self.starts.get(index)?;
        let end = self.starts.get(index + 1).map_or(self.text.len(), |(at, _)| *at);
        let output = &self.text[*begin..end];
        let reason = &output[find(output, MARK)? + MARK.len()..];
        let line = reason.split(|byte| *byte == b'\n').next().unwrap_or(reason);
        Some(String::from_utf8_lossy(line).into_owned())
    }

    /// The names of the last `failures:` list; `None` if the program did not come to its end.
    pub(super) fn failures(&self) -> Option<BTreeSet<String>> {
        let text = self.text();
        let (body, result) = text.rsplit_once("\ntest result: ")?;
        if result.starts_with("ok.") {
            return Some(BTreeSet::new());
        }
        let (_, list) = body.rsplit_once("\nfailures:\n")?;
        Some(list.lines().map(str::trim).filter(|l| !l.is_empty()).map(str::to_owned).collect())
    }

    /// The output of one failed test; the whole output if there is no such section.
    pub(super) fn output_of(&self, name: &str) -> String {
        let text = self.text();
        let Some((_, rest)) = text.split_once(&format!("\n---- {name} stdout ----\n")) else {
            return text;
        };
        let ends = [rest.find("\n---- "), rest.find("\nfailures:\n")];
        let end = ends.into_iter().flatten().min().unwrap_or(rest.len());
        rest[..end].trim_end().to_owned()
    }

    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.text).into_owned()
    }
}

fn find(text: &[u8], wanted: &[u8]) -> Option<usize> {
    text.windows(wanted.len()).position(|window| window == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn durations_are_those_between_two_names() {
        let mut transcript = Transcript::new(names(&["a", "b::c", "d"]));
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        transcript.read(b"\nrunning 3 tests\ntest a ... ", at(0));
        transcript.read(b"noise without an end of line", at(1));
        transcript.read(b"ok\ntest b::c ... ignored, slow\ntest d - should pa", at(3));
        transcript.read(b"nic ... ok\n\ntest result: ok. 2 passed; 0 failed;\n", at(9));
        let seconds: Vec<u64> = transcript.durations(at(9)).iter().map(Duration::as_secs).collect();
        assert_eq!(seconds, [3, 0, 6]);
        assert!(!transcript.is_ignored(0) && transcript.is_ignored(1) && !transcript.is_ignored(2));
        assert_eq!(transcript.failures(), Some(BTreeSet::new()));
    }

    #[test]
    fn skip_reason_belongs_to_its_test() {
        let mut transcript = Transcript::new(names(&["a", "b"]));
        let text = b"\ntest a ... \nSKIPPED: no second address\nok\ntest b ... ok\n";
        transcript.read(text, Instant::now());
        assert_eq!(transcript.skip_reason(0).as_deref(), Some("no second address"));
        assert_eq!(transcript.skip_reason(1), None);
    }

    #[test]
    fn failed_tests_are_those_of_the_last_list() {
        let mut transcript = Transcript::new(names(&["a", "b"]));
        let text = "\nrunning 2 tests\ntest a ... FAILED\ntest b ... FAILED\n\nfailures:\n\n\
            ---- a stdout ----\nfailures:\nnot a list\n\n---- b stdout ----\nboom\n\n\nfailures:\n    a\n    b\n\n\
            test result: FAILED. 0 passed; 2 failed; 0 ignored;\n";
        transcript.read(text.as_bytes(), Instant::now());
        assert_eq!(transcript.failures(), Some(BTreeSet::from(["a".to_owned(), "b".to_owned()])));
        assert_eq!(transcript.output_of("b"), "boom");
    }

    #[test]
    fn program_that_died_has_no_list() {
        let mut transcript = Transcript::new(names(&["a", "b"]));
        transcript.read(b"\nrunning 2 tests\ntest a ... ok\ntest b ... ", Instant::now());
        assert_eq!((transcript.failures(), transcript.begun()), (None, 2));
    }
}
