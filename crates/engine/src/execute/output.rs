//! The output of steps: bounded, without secrets, in one file per attempt that prints anything.
//!
//! A file grows while the step runs, so that it can be watched. It is compressed when the step has
//! ended, if it is large enough. A problem with these files never fails a step.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fs_err::os::unix::fs::OpenOptionsExt as _;
use fs_err::{File, OpenOptions};
use parking_lot::Mutex;

use crate::action::{Failure, Output, Secrets, Stream};
use crate::plan::{Step, StepId};

/// Bytes kept from the beginning of an attempt's output,
pub const KEPT_HEAD: usize = 7 * 1024 * 1024;
/// and from its end.
pub const KEPT_TAIL: usize = 1024 * 1024;

/// Smaller files are not compressed: a file takes a block anyway.
const WORTH_COMPRESSING: u64 = 4096;
/// Size of one write while a step prints much.
const BUFFER: usize = 16 * 1024;
/// Output that follows the last write after this time is written at once, so that watchers see it.
const SEEN_WITHIN: Duration = Duration::from_millis(20);

/// Replacement for a secret.
const HIDDEN: &[u8] = b"[hidden]";

/// Shorter lines of a secret are not redacted on their own: `}` is a line of many keys.
const SHORTEST_LINE: usize = 8;

/// The outputs of one run.
#[derive(Debug, Clone, Default)]
pub struct Outputs {
    dir: Option<PathBuf>,
    first_error: Arc<Mutex<Option<String>>>,
}

impl Outputs {
    /// Discards all output.
    pub fn none() -> Self {
        Self::default()
    }

    /// Writes to this directory, which is created with the first file.
    pub fn in_dir(dir: impl Into<PathBuf>) -> Self {
        Self { dir: Some(dir.into()), ..Self::default() }
    }

    /// The first error while writing output, if there was one.
    pub fn first_error(&self) -> Option<String> {
        self.first_error.lock().clone()
    }

    /// The output of an attempt so far; `None` if there is none.
    pub fn read(&self, step: StepId, attempt: u32) -> io::Result<Option<Vec<u8>>> {
        let Some(dir) = &self.dir else { return Ok(None) };
        let plain = plain_path(dir, step, attempt);
        let compressed = zst_path(dir, step, attempt);
        let mut all = Vec::new();
        let packed = if_there(File::open(compressed))?;
        let open = if_there(File::open(plain))?;
        let is_there = packed.is_some() || open.is_some();
        // Precondition, step and postcondition each have a limit of their own.
        let most = 3 * (KEPT_HEAD + KEPT_TAIL + BUFFER) as u64;
        if let Some(packed) = packed {
            zstd::Decoder::new(packed)?.take(most).read_to_end(&mut all)?;
        }
        if let Some(open) = open {
            open.take(most).read_to_end(&mut all)?;
        }
        Ok(is_there.then_some(all))
    }

    /// Stores compressed output of an attempt on another machine.
    pub(crate) fn adopt(&self, step: StepId, attempt: u32, compressed: &[u8]) {
        let Some(dir) = &self.dir else { return };
        let kept = open_append(dir, &zst_path(dir, step, attempt))
            .and_then(|mut file| file.write_all(compressed));
        if let Err(error) = kept {
            self.note_error(&error);
        }
    }

    pub(crate) fn sink(&self, step: StepId, attempt: u32, redactions: &Arc<Redactions>) -> Sink {
        Sink {
            outputs: self.clone(),
            step,
            attempt,
            redactions: Arc::clone(redactions),
            file: None,
            buffer: Vec::new(),
            last_write: None,
            held: Default::default(),
            head: 0,
            tail: VecDeque::new(),
            left_out: 0,
            is_lost: false,
        }
    }

    fn note_error(&self, error: &io::Error) {
        let mut first_error = self.first_error.lock();
        first_error.get_or_insert_with(|| format!("cannot store the output of steps: {error}"));
    }
}

fn plain_path(dir: &Path, step: StepId, attempt: u32) -> PathBuf {
    dir.join(format!("{}.{attempt}", step.0))
}

fn zst_path(dir: &Path, step: StepId, attempt: u32) -> PathBuf {
    dir.join(format!("{}.{attempt}.zst", step.0))
}

fn if_there<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        found => found.map(Some),
    }
}

fn open_append(dir: &Path, path: &Path) -> io::Result<File> {
    let open = || OpenOptions::new().append(true).create(true).mode(0o600).open(path);
    match open() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            fs_err::create_dir_all(dir)?;
            open()
        }
        file => file,
    }
}

/// Values that must not be printed.
#[derive(Debug, Default)]
pub(crate) struct Redactions(Mutex<Vec<Vec<u8>>>);

impl Redactions {
    /// Adds a value. Each long line of the value is redacted on its own as well.
    pub(crate) fn add(&self, value: &str) {
        let mut values = self.0.lock();
        let lines = value.lines().map(str::trim).filter(|line| line.len() >= SHORTEST_LINE);
        for part in std::iter::once(value.trim()).chain(lines) {
            if !part.is_empty() && !values.iter().any(|known| known == part.as_bytes()) {
                values.push(part.as_bytes().to_vec());
            }
        }
        // The longest value must match first.
        values.sort_by_key(|value| std::cmp::Reverse(value.len()));
    }

    pub(crate) fn text(&self, text: &str) -> String {
        let mut bytes = text.as_bytes().to_vec();
        let mut out = Vec::new();
        self.take(&mut bytes, true, &mut out);
        String::from_utf8_lossy(&out).into_owned()
    }

    /// Moves printable bytes from `held` to `out`. Unless `all` is set, a suffix that could be the
    /// beginning of a secret stays in `held`.
    pub(crate) fn take(&self, held: &mut Vec<u8>, all: bool, out: &mut Vec<u8>) {
        let values = self.0.lock();
        if values.is_empty() {
            out.append(held);
            return;
        }
        let mut at = 0;
        while at < held.len() {
            let rest = &held[at..];
            let begins = |value: &&Vec<u8>| value.len() > rest.len() && value.starts_with(rest);
            if !all && values.iter().any(|value| begins(&value)) {
                break;
            } else if let Some(value) = values.iter().find(|value| rest.starts_with(value)) {
                out.extend_from_slice(HIDDEN);
                at += value.len();
            } else {
                out.push(held[at]);
                at += 1;
            }
        }
        held.drain(..at);
    }
}

/// Secrets whose values are redacted from the moment they are requested.
pub(crate) struct RedactedSecrets<'a> {
    pub(crate) secrets: &'a dyn Secrets,
    pub(crate) redactions: &'a Redactions,
}

impl RedactedSecrets<'_> {
    /// Redacts all secrets of the step, because a check may print what the step wrote. A secret
    /// that cannot be read is an error only for the call that uses it.
    pub(crate) fn learn(&self, step: &Step) {
        for reference in step.secret_references() {
            let _ = self.get(reference);
        }
    }
}

impl Secrets for RedactedSecrets<'_> {
    fn get(&self, reference: &str) -> Result<String, Failure> {
        let value = self.secrets.get(reference)?;
        self.redactions.add(&value);
        Ok(value)
    }
}

/// Takes the output of one job.
pub(crate) struct Sink {
    outputs: Outputs,
    step: StepId,
    attempt: u32,
    redactions: Arc<Redactions>,
    file: Option<File>,
    buffer: Vec<u8>,
    last_write: Option<Instant>,
    /// For each stream, a suffix that could be the beginning of a secret.
    held: [Vec<u8>; 3],
    head: usize,
    tail: VecDeque<u8>,
    left_out: u64,
    is_lost: bool,
}

impl Output for Sink {
    fn line(&mut self, stream: Stream, bytes: &[u8]) {
        self.take(stream, bytes, true);
    }

    fn part(&mut self, stream: Stream, bytes: &[u8]) {
        self.take(stream, bytes, false);
    }

    fn progress(&mut self, done: u64, total: Option<u64>) {
        let note = match total {
            Some(total) => format!("{done} of {total}"),
            None => done.to_string(),
        };
        self.line(Stream::Note, note.as_bytes());
    }

    fn quoted(&self, line: &[u8], is_cut: bool) -> Vec<u8> {
        let mut out = Vec::with_capacity(line.len());
        self.redactions.take(&mut line.to_vec(), !is_cut, &mut out);
        out
    }
}

impl Sink {
    pub(crate) fn note(&mut self, text: &str) {
        self.line(Stream::Note, text.as_bytes());
    }

    fn take(&mut self, stream: Stream, bytes: &[u8], ends_line: bool) {
        if self.outputs.dir.is_none() {
            return;
        }
        let mut out = Vec::with_capacity(bytes.len() + 1);
        let held = &mut self.held[stream as usize];
        if stream == Stream::Note && held.is_empty() {
            out.extend_from_slice(b"hoist: ");
        }
        held.extend_from_slice(bytes);
        self.redactions.take(held, ends_line, &mut out);
        if ends_line {
            out.push(b'\n');
        }
        self.keep(&out);
    }

    fn keep(&mut self, bytes: &[u8]) {
        let (head, rest) = bytes.split_at(bytes.len().min(KEPT_HEAD - self.head));
        self.head += head.len();
        self.buffer.extend_from_slice(head);
        if !rest.is_empty() {
            self.tail.extend(&rest[rest.len().saturating_sub(KEPT_TAIL)..]);
            let too_many = self.tail.len().saturating_sub(KEPT_TAIL);
            self.tail.drain(..too_many);
            let unseen = rest.len().saturating_sub(KEPT_TAIL);
            self.left_out += (too_many + unseen) as u64;
        }
        let is_quiet = self.last_write.is_none_or(|last| last.elapsed() >= SEEN_WITHIN);
        if self.buffer.len() >= BUFFER || is_quiet {
            self.write();
        }
    }

    fn write(&mut self) {
        let buffer = std::mem::take(&mut self.buffer);
        if buffer.is_empty() || self.is_lost {
            return;
        }
        if let Err(error) = self.try_write(&buffer) {
            // Space may become free again, but an output with a gap would mislead.
            self.is_lost = true;
            self.outputs.note_error(&error);
        }
        self.last_write = Some(Instant::now());
        self.buffer = buffer;
        self.buffer.clear();
    }

    fn try_write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(dir) = &self.outputs.dir else { return Ok(()) };
        if self.file.is_none() {
            self.file = Some(open_append(dir, &plain_path(dir, self.step, self.attempt))?);
        }
        self.file.as_mut().expect("just opened").write_all(bytes)
    }

    /// Another process continues the file.
    pub(crate) fn leave(mut self) {
        self.write();
    }

    /// Completes the file.
    pub(crate) fn finish(mut self) {
        for stream in [Stream::Out, Stream::Err, Stream::Note] {
            if !self.held[stream as usize].is_empty() {
                self.line(stream, b"");
            }
        }
        self.write();
        if self.left_out > 0 {
            let note = format!("\nhoist: {} bytes were left out here\n", self.left_out);
            self.buffer = note.into_bytes();
            self.write();
        }
        self.buffer = std::mem::take(&mut self.tail).into();
        self.write();
        if let (Some(dir), Some(file)) = (&self.outputs.dir, self.file.take())
            && let Err(error) = compress(dir, self.step, self.attempt, &file)
        {
            self.outputs.note_error(&error);
        }
    }
}

/// Compresses the file. If the attempt has compressed output already, a zstd frame is appended;
/// readers decode all frames as one text.
fn compress(dir: &Path, step: StepId, attempt: u32, file: &File) -> io::Result<()> {
    if file.metadata()?.len() < WORTH_COMPRESSING {
        return Ok(());
    }
    let plain = plain_path(dir, step, attempt);
    let zst = zst_path(dir, step, attempt);
    let mut packed = zstd::Encoder::new(Vec::new(), 3)?;
    io::copy(&mut File::open(&plain)?, &mut packed)?;
    let packed = packed.finish()?;
    let mut file = open_append(dir, &zst)?;
    let before = file.metadata()?.len();
    if let Err(error) = file.write_all(&packed) {
        file.set_len(before)?;
        return Err(error);
    }
    fs_err::remove_file(plain)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sink(outputs: &Outputs, secrets: &[&str]) -> Sink {
        let redactions = Arc::new(Redactions::default());
        for secret in secrets {
            redactions.add(secret);
        }
        outputs.sink(StepId(3), 1, &redactions)
    }

    fn outputs() -> (tempfile::TempDir, Outputs) {
        let dir = tempfile::tempdir().unwrap();
        let outputs = Outputs::in_dir(dir.path().join("output"));
        (dir, outputs)
    }

    #[test]
    fn attempt_without_output_has_no_file() {
        let (dir, outputs) = outputs();
        sink(&outputs, &[]).finish();
        assert_eq!(outputs.read(StepId(3), 1).unwrap(), None);
        assert_eq!(fs_err::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn output_can_be_read_at_once_and_after_the_end() {
        let (_dir, outputs) = outputs();
        let mut one = sink(&outputs, &[]);
        one.line(Stream::Out, b"begins \xff");
        assert_eq!(outputs.read(StepId(3), 1).unwrap().unwrap(), b"begins \xff\n");
        one.line(Stream::Err, b"warns");
        one.note("took long");
        one.finish();
        let mut two = sink(&outputs, &[]);
        two.line(Stream::Out, b"looked at");
        two.finish();
        let all = outputs.read(StepId(3), 1).unwrap().unwrap();
        assert_eq!(all, b"begins \xff\nwarns\nhoist: took long\nlooked at\n");
    }

    #[test]
    fn large_output_keeps_head_and_tail() {
        let (dir, outputs) = outputs();
        let mut sink = sink(&outputs, &[]);
        let line = [b'x'; 1023];
        sink.line(Stream::Out, b"first");
        for _ in 0..(KEPT_HEAD + KEPT_TAIL) / 1024 + 100 {
            sink.line(Stream::Out, &line);
        }
        sink.line(Stream::Out, b"last");
        sink.finish();
        let all = outputs.read(StepId(3), 1).unwrap().unwrap();
        assert!(all.starts_with(b"first\nxxx") && all.ends_with(b"xxx\nlast\n"));
        let note = format!("hoist: {} bytes were left out here", 100 * 1024 + 6 + 5);
        assert!(String::from_utf8(all.clone()).unwrap().contains(&note), "{note}");
        assert!(all.len() < KEPT_HEAD + KEPT_TAIL + 100);
        let packed = fs_err::metadata(dir.path().join("output/3.1.zst")).unwrap().len();
        assert!(packed < 100_000, "compressed: {packed}");
        assert!(!dir.path().join("output/3.1").exists());
    }

    #[test]
    fn output_error_does_not_fail_the_step() {
        let outputs = Outputs::in_dir("/dev/full/output");
        let mut sink = sink(&outputs, &[]);
        sink.line(Stream::Out, b"something");
        sink.finish();
        assert!(outputs.first_error().unwrap().starts_with("cannot store the output of steps"));
    }

    #[test]
    fn full_disk_is_noted_and_the_step_continues() {
        let (dir, outputs) = outputs();
        fs_err::create_dir_all(dir.path().join("output")).unwrap();
        // Writing there fails as on a full disk.
        std::os::unix::fs::symlink("/dev/full", dir.path().join("output/3.1")).unwrap();
        let mut sink = sink(&outputs, &[]);
        for _ in 0..10 {
            sink.line(Stream::Out, &[b'x'; BUFFER]);
        }
        sink.finish();
        let first_error = outputs.first_error().unwrap();
        assert!(first_error.contains("No space left"), "{first_error}");
    }

    proptest! {
        #[test]
        fn secret_is_never_printed_however_it_is_cut(
            secret in "[ab]{1,6}", other in "[abc]{8,9}(\n[cd]{8,9})?",
            text in "[abcd]{0,60}", cuts in proptest::collection::vec(0..60_usize, 0..6),
        ) {
            let (_dir, outputs) = outputs();
            let mut sink = sink(&outputs, &[&secret, &other]);
            let mut cuts: Vec<usize> = cuts.into_iter().filter(|cut| *cut < text.len()).collect();
            cuts.sort_unstable();
            let mut from = 0;
            for cut in cuts {
                sink.part(Stream::Out, &text.as_bytes()[from..cut]);
                from = cut;
            }
            sink.line(Stream::Out, &text.as_bytes()[from..]);
            sink.finish();
            let shown = String::from_utf8(outputs.read(StepId(3), 1).unwrap().unwrap()).unwrap();
            let bare = shown.replace("[hidden]", "|");
            prop_assert!(!bare.contains(&secret), "{shown}");
            prop_assert!(other.lines().all(|line| !bare.contains(line)), "{shown}");
            if !text.contains(&secret) && other.lines().all(|line| !text.contains(line)) {
                prop_assert_eq!(shown.trim_end(), text);
            }
        }
    }
}
