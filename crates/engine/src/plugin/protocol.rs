//! The protocol between hoist and a plug-in: one request in, lines of JSON out, the last of which
//! is the result. [`Talk`] parses the output as it arrives; processes, clocks and pipes do not
//! belong here.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::lines::{Line, Lines};
use super::redact;
use crate::action::{Output, Stream};
use crate::execute::output::Redactions;

/// The supported version of the protocol.
pub const PROTO: u32 = 1;

/// Longest line on standard output: a result with its receipt.
pub const MAX_LINE: usize = 256 * 1024;

/// Most lines on standard output: ten per second for some hours.
pub const MAX_LINES: usize = 100_000;

/// Most bytes on standard output, and on standard error.
pub const MAX_BYTES: usize = 16 * 1024 * 1024;

/// Bytes of a line on standard error that are kept; the rest is dropped.
pub const MAX_ERROR_LINE: usize = 8 * 1024;

/// Characters of a line that a message quotes.
const EXCERPT: usize = 200;

/// The request: one of the methods of [`Action`](crate::action::Action) and
/// [`Planner`](crate::action::Planner).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    Describe,
    Contribute,
    Validate,
    Plan,
    Run,
    Verify,
    Undo,
    /// Only for drivers.
    Parse,
}

impl Verb {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Describe => "describe",
            Self::Contribute => "contribute",
            Self::Validate => "validate",
            Self::Plan => "plan",
            Self::Run => "run",
            Self::Verify => "verify",
            Self::Undo => "undo",
            Self::Parse => "parse",
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(tag = "t", rename_all = "snake_case")]
enum Message {
    Progress {
        done: u64,
        #[serde(default)]
        total: Option<u64>,
    },
    Log {
        #[serde(default)]
        level: Option<String>,
        msg: String,
    },
    Result(Answer),
}

/// The result message.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct Answer {
    pub(super) ok: bool,
    #[serde(default)]
    pub(super) error: Option<String>,
    /// The fields of the verb.
    #[serde(flatten)]
    pub(super) rest: Map<String, Value>,
}

/// Why the output of a plug-in violates the protocol.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolError {
    #[error(
        "line {line} of the output is not a message of the protocol ({why}): `{excerpt}`; print one JSON object a line with `t` `progress`, `log` or `result`, and everything else to standard error"
    )]
    NoMessage { line: usize, why: String, excerpt: String },
    #[error(
        "line {line} of the output comes after the result; print the result once, as the last line"
    )]
    AfterResult { line: usize },
    #[error(
        "line {line} of the output is longer than {MAX_LINE} bytes; store large data in files and name them in the receipt"
    )]
    LongLine { line: usize },
    #[error("the output has more than {MAX_LINES} lines; report progress less often")]
    Lines,
    #[error("{stream} has more than {MAX_BYTES} bytes; print less")]
    Flood { stream: &'static str },
}

/// The output so far.
pub(super) struct Talk<'a> {
    out: Lines,
    err: Lines,
    lines: usize,
    out_bytes: usize,
    err_bytes: usize,
    answer: Option<Answer>,
    /// The last line on standard error that is not empty.
    last_words: String,
    redactions: Redactions,
    output: Option<&'a mut dyn Output>,
}

impl<'a> Talk<'a> {
    pub(super) fn new(redactions: Redactions, output: Option<&'a mut dyn Output>) -> Self {
        Self {
            out: Lines::new(MAX_LINE),
            err: Lines::new(MAX_ERROR_LINE),
            lines: 0,
            out_bytes: 0,
            err_bytes: 0,
            answer: None,
            last_words: String::new(),
            redactions,
            output,
        }
    }

    pub(super) fn has_answer(&self) -> bool {
        self.answer.is_some()
    }

    /// The answer, and the last line on standard error.
    pub(super) fn into_parts(self) -> (Option<Answer>, String) {
        (self.answer, self.last_words)
    }

    /// Takes standard output. An empty chunk is its end.
    pub(super) fn on_out(&mut self, chunk: &[u8]) -> Result<(), ProtocolError> {
        self.out_bytes += chunk.len();
        if self.out_bytes > MAX_BYTES {
            return Err(ProtocolError::Flood { stream: "standard output" });
        }
        let lines = self.out.push(chunk);
        let last = if chunk.is_empty() { self.out.finish() } else { None };
        lines.into_iter().chain(last).try_for_each(|line| self.on_line(&line))
    }

    /// Takes standard error. An empty chunk is its end.
    pub(super) fn on_err(&mut self, chunk: &[u8]) -> Result<(), ProtocolError> {
        self.err_bytes += chunk.len();
        if self.err_bytes > MAX_BYTES {
            return Err(ProtocolError::Flood { stream: "standard error" });
        }
        let lines = self.err.push(chunk);
        let last = if chunk.is_empty() { self.err.finish() } else { None };
        for line in lines.into_iter().chain(last) {
            let bytes = redact::line(&self.redactions, &line.bytes, line.is_cut);
            let words = excerpt(&bytes);
            if !words.is_empty() {
                self.last_words = words;
            }
            if let Some(output) = &mut self.output {
                output.line(Stream::Err, &bytes);
            }
        }
        Ok(())
    }

    fn on_line(&mut self, line: &Line) -> Result<(), ProtocolError> {
        self.lines += 1;
        let at = self.lines;
        if at > MAX_LINES {
            return Err(ProtocolError::Lines);
        }
        if line.is_cut {
            return Err(ProtocolError::LongLine { line: at });
        }
        if self.answer.is_some() {
            return Err(ProtocolError::AfterResult { line: at });
        }
        let message =
            serde_json::from_slice(&line.bytes).map_err(|error| ProtocolError::NoMessage {
                line: at,
                why: self.redactions.text(&error.to_string()),
                excerpt: excerpt(&redact::line(&self.redactions, &line.bytes, false)),
            })?;
        match message {
            Message::Progress { done, total } => {
                if let Some(output) = &mut self.output {
                    output.progress(done, total);
                }
            }
            Message::Log { level, msg } => {
                let level = level.map(|level| level + ": ").unwrap_or_default();
                let text = self.redactions.text(&(level + &msg));
                if let Some(output) = &mut self.output {
                    text.lines().for_each(|line| output.line(Stream::Out, line.as_bytes()));
                }
            }
            Message::Result(answer) => {
                let rest = redact::fields(&self.redactions, answer.rest);
                let error = answer.error.map(|error| self.redactions.text(&error));
                self.answer = Some(Answer { ok: answer.ok, error, rest });
            }
        }
        Ok(())
    }
}

/// The beginning of a line, without control characters.
fn excerpt(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut shown: String =
        text.trim().chars().take(EXCERPT).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.trim().chars().nth(EXCERPT).is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The result of an output that arrives in chunks of this size.
    fn hear(bytes: &[u8], size: usize) -> Result<Option<Answer>, ProtocolError> {
        let mut talk = Talk::new(Redactions::default(), None);
        for chunk in bytes.chunks(size) {
            talk.on_err(chunk).expect("anything may be said there");
            talk.on_out(chunk)?;
        }
        talk.on_err(&[]).expect("anything may be said there");
        talk.on_out(&[])?;
        Ok(talk.into_parts().0)
    }

    /// Lines, many of which are messages.
    fn output() -> impl Strategy<Value = Vec<u8>> {
        let line = prop_oneof![
            4 => Just(br#"{"t":"progress","done":1}"#.to_vec()),
            4 => Just(br#"{"t":"log","level":"info","msg":"x","more":[1]}"#.to_vec()),
            2 => Just(br#"{"t":"result","ok":true,"receipt":{"a":1}}"#.to_vec()),
            1 => any::<Vec<u8>>(),
        ];
        proptest::collection::vec(line, 0..5).prop_map(|lines| lines.join(&b'\n'))
    }

    proptest! {
        #[test]
        fn parsing_does_not_depend_on_chunking(bytes in output(), size in 1..50_usize) {
            prop_assert_eq!(hear(&bytes, size), hear(&bytes, bytes.len().max(1)));
        }

        #[test]
        fn answer_is_the_last_line_or_missing(bytes in output()) {
            if let Ok(Some(answer)) = hear(&bytes, 7) {
                prop_assert!(answer.ok);
                let last = bytes.split(|byte| *byte == b'\n').rfind(|line| !line.is_empty());
                let is_result = last.is_some_and(|line| line.starts_with(br#"{"t":"result""#));
                prop_assert!(is_result);
            }
        }
    }

    #[test]
    fn lines_are_counted_to_the_limit() {
        let line = b"{\"t\":\"progress\",\"done\":1}\n";
        let lines = |count: usize| line.repeat(count);
        assert_eq!(hear(&lines(MAX_LINES), 64 * 1024), Ok(None));
        assert_eq!(hear(&lines(MAX_LINES + 1), 64 * 1024), Err(ProtocolError::Lines));
    }
}
