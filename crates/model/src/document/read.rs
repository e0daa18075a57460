//! Text to documents. Each document is read twice: once for its kind, once into that kind's types,
//! so that positions and unknown fields are those of the text, not of a copy.

use std::str::FromStr;

use hoist_diagnostic::Diagnostic;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::{Map, Value};

use super::plain::{self, AmbiguousScalar};
use super::{API, Document, Kind};
use crate::suggestion::nearest;

/// Largest file or body taken apart as a whole. Larger sets travel as JSON lines, one at a time.
const MAX_BYTES: usize = 64 * 1024 * 1024;
/// Most documents in one text.
const MAX_DOCUMENTS: usize = 100_000;
/// Deepest nesting; our own documents need six levels, free-form data rarely more.
const MAX_DEPTH: usize = 64;

/// All documents of a text, or everything wrong with it. JSON (one object, a list, or one object
/// per line) is recognised by how it begins; everything else is YAML.
pub fn read(source: &str, text: &[u8]) -> Result<Vec<Document>, Vec<Diagnostic>> {
    let whole = |message, hint| Err(vec![of_whole(source, message, hint)]);
    if text.len() > MAX_BYTES {
        let message = format!("{} bytes are more than the limit of {MAX_BYTES}", text.len());
        return whole(message, "split it, or send it as JSON lines");
    }
    let text = utf8(source, text)?;
    let whole_text = Text::new(source, text);
    let pieces = if is_json(text) {
        json_pieces(text).map_err(|error| whole_text.locate(0, vec![error]))?
    } else {
        yaml_pieces(text)
    };
    if pieces.len() > MAX_DOCUMENTS {
        let message = format!("more than {MAX_DOCUMENTS} documents");
        return whole(message, "split it, or send it as JSON lines");
    }
    let mut documents = Vec::with_capacity(pieces.len());
    let mut errors = Vec::new();
    for piece in pieces {
        match one(&piece) {
            Ok(document) => documents.push(document),
            Err(found) => errors.extend(whole_text.locate(piece.start, found)),
        }
    }
    if errors.is_empty() { Ok(documents) } else { Err(errors) }
}

/// One value of another format, read as documents are: the same YAML and JSON, the same bounds, and
/// diagnostics with their positions. How long the text may be is the caller's to say.
pub fn read_one<T: DeserializeOwned>(source: &str, text: &[u8]) -> Result<T, Vec<Diagnostic>> {
    let text = utf8(source, text)?;
    let json = is_json(text);
    let pieces = if json { vec![Piece { text, start: 0, json }] } else { yaml_pieces(text) };
    let [piece] = pieces.as_slice() else {
        let message = format!("contains {} documents", pieces.len());
        return Err(vec![of_whole(source, message, "write exactly one")]);
    };
    piece.parse().map_err(|found| Text::new(source, text).locate(piece.start, found))
}

/// The message of a parser without its list of known fields, and a suggestion in place of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Suggestion {
    pub message: String,
    pub hint: Option<String>,
    /// The known field that the hint suggests.
    pub field: Option<String>,
}

/// Replaces the list of known fields by a suggestion. Both parsers report "unknown field `x`,
/// expected …" followed by the known fields, quoted or not. Other messages are unchanged.
pub fn suggested(message: &str) -> Suggestion {
    let unknown = message.strip_prefix("unknown field `").and_then(|rest| rest.split_once('`'));
    let Some((typed, rest)) = unknown else {
        return Suggestion { message: message.to_owned(), hint: None, field: None };
    };
    let (_, list) = rest.split_once("expected ").unwrap_or_default();
    let list = list.strip_prefix("one of ").unwrap_or(list);
    let words = list.split([',', ' ', '`']).filter(|word| !word.is_empty() && *word != "or");
    let known: Vec<&str> = words.collect();
    let field = nearest(typed, known.iter().copied()).map(str::to_owned);
    let hint = match &field {
        Some(close) => Some(format!("did you mean `{close}`?")),
        None if known.is_empty() => None,
        None => Some(format!("use one of {}", known.join(", "))),
    };
    Suggestion { message: format!("unknown field `{typed}`"), hint, field }
}

fn utf8<'a>(source: &str, text: &'a [u8]) -> Result<&'a str, Vec<Diagnostic>> {
    std::str::from_utf8(text).map_err(|error| {
        let message = format!("byte {} is not UTF-8", error.valid_up_to());
        vec![of_whole(source, message, "save the file as UTF-8")]
    })
}

fn of_whole(source: &str, message: String, hint: &str) -> Diagnostic {
    Diagnostic::new(source, message).hint(hint)
}

/// One document from one JSON text, which is this line of JSON lines; lines are counted from 1.
pub fn from_json(source: &str, line: usize, text: &str) -> Result<Document, Vec<Diagnostic>> {
    let whole = Text { source, whole: text, lines_before: line.saturating_sub(1) };
    one(&Piece { text, start: 0, json: true }).map_err(|found| whole.locate(0, found))
}

/// A cloud-config by itself, read as in a layer; a text without anything in it is empty.
pub fn cloud_config(source: &str, text: &str) -> Result<Map<String, Value>, Vec<Diagnostic>> {
    let piece = Piece { text, start: 0, json: false };
    let read = piece.parse::<Option<Map<String, Value>>>().and_then(|map| {
        piece.check_plain()?;
        Ok(map.unwrap_or_default())
    });
    read.map_err(|found| Text::new(source, text).locate(0, found))
}

/// A brace alone may also begin YAML's flow style, whose keys need no quotes.
fn is_json(text: &str) -> bool {
    let text = text.trim_start();
    let inside = text.strip_prefix('[').unwrap_or(text).trim_start();
    match inside.strip_prefix('{') {
        Some(object) => object.trim_start().starts_with(['"', '}']),
        None => text.starts_with('[') && inside.starts_with(['"', ']', '[']),
    }
}

/// The text of one document, and where it starts in the whole.
struct Piece<'a> {
    text: &'a str,
    start: usize,
    json: bool,
}

/// `---` at the start of a line always ends a YAML document, whatever the document is in the
/// middle of; so splitting there needs no parser.
fn yaml_pieces(text: &str) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    let mut start = 0;
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        let marker = line.strip_prefix("---");
        if marker.is_some_and(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace)) {
            pieces.push(Piece { text: &text[start..at], start, json: false });
            // Text after the marker on its line belongs to the next document.
            start = at + 3;
        }
        at += line.len();
    }
    pieces.push(Piece { text: &text[start..], start, json: false });
    let says_something = |line: &str| {
        let line = line.trim();
        !line.is_empty() && !line.starts_with('#') && line != "..."
    };
    pieces.retain(|piece| piece.text.lines().any(says_something));
    pieces
}

fn json_pieces(text: &str) -> Result<Vec<Piece<'_>>, PieceDiagnostic> {
    let stream =
        serde_json::Deserializer::from_str(text).into_iter::<&serde_json::value::RawValue>();
    let mut pieces = Vec::new();
    for value in stream {
        let value = value.map_err(|error| PieceDiagnostic::json(&error))?.get();
        if value.starts_with('[') {
            let list: Vec<&serde_json::value::RawValue> =
                serde_json::from_str(value).map_err(|error| PieceDiagnostic::json(&error))?;
            pieces.extend(list.into_iter().map(|item| json_piece(text, item.get())));
        } else {
            pieces.push(json_piece(text, value));
        }
    }
    Ok(pieces)
}

fn json_piece<'a>(whole: &'a str, part: &'a str) -> Piece<'a> {
    let start = part.as_ptr() as usize - whole.as_ptr() as usize;
    Piece { text: part, start, json: true }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Envelope<S> {
    #[serde(default)]
    api: Option<String>,
    kind: String,
    name: String,
    #[serde(default = "nothing")]
    spec: Option<S>,
}

fn nothing<S>() -> Option<S> {
    None
}

impl<S> Envelope<S> {
    /// The name, if it is one for this kind of document.
    fn name<N>(&self, subject: &str) -> Result<N, Vec<PieceDiagnostic>>
    where
        N: FromStr<Err: std::fmt::Display>,
    {
        let name = self.name.parse();
        name.map_err(|error: N::Err| vec![PieceDiagnostic::new(error.to_string()).about(subject)])
    }
}

fn one(piece: &Piece<'_>) -> Result<Document, Vec<PieceDiagnostic>> {
    let head: Envelope<IgnoredAny> = piece.parse()?;
    let subject = format!("{} {}", head.kind, head.name);
    let found = |found: PieceDiagnostic| vec![found.about(&subject)];
    if head.api.as_deref() != Some(API) {
        let message = match &head.api {
            Some(api) => format!("unknown API version `{api}`"),
            None => "`api` is missing".to_owned(),
        };
        return Err(found(PieceDiagnostic::new(message).hint(format!("write `api: {API}`"))));
    }
    let kind = Kind::ALL.into_iter().find(|kind| kind.as_str() == head.kind);
    let kind = kind.ok_or_else(|| found(unknown_kind(&head.kind)))?;
    let document = match kind {
        Kind::Partition => Document::Partition(head.name(&subject)?, piece.spec(&subject)?),
        Kind::Network => Document::Network(head.name(&subject)?, piece.spec(&subject)?),
        Kind::Group => Document::Group(head.name(&subject)?, piece.spec(&subject)?),
        Kind::Node => Document::Node(head.name(&subject)?, piece.spec(&subject)?),
        Kind::Artifact => Document::Artifact(head.name(&subject)?, piece.needed_spec(&subject)?),
        Kind::BootConfig => Document::BootConfig(head.name(&subject)?, piece.spec(&subject)?),
        Kind::MetadataLayer => {
            let name = head.name(&subject)?;
            let spec = piece.spec(&subject)?;
            piece.check_plain().map_err(|found| about(found, &subject))?;
            Document::MetadataLayer(name, spec)
        }
        Kind::ProvisionProfile => {
            Document::ProvisionProfile(head.name(&subject)?, piece.spec(&subject)?)
        }
    };
    let found = document.check();
    if found.is_empty() {
        return Ok(document);
    }
    Err(found.into_iter().map(|found| PieceDiagnostic::of(found).about(&subject)).collect())
}

fn about(found: Vec<PieceDiagnostic>, subject: &str) -> Vec<PieceDiagnostic> {
    found.into_iter().map(|found| found.about(subject)).collect()
}

fn unknown_kind(kind: &str) -> PieceDiagnostic {
    let known = Kind::ALL.map(Kind::as_str);
    let found = PieceDiagnostic::new(format!("unknown kind `{kind}`"));
    match nearest(kind, known) {
        Some(close) => found.hint(format!("did you mean `{close}`?")),
        None => found.hint(format!("use one of {}", known.join(", "))),
    }
}

impl Piece<'_> {
    fn spec<S: DeserializeOwned + Default>(
        &self,
        subject: &str,
    ) -> Result<S, Vec<PieceDiagnostic>> {
        Ok(self.spec_if_any(subject)?.unwrap_or_default())
    }

    /// For kinds that say nothing without a spec.
    fn needed_spec<S: DeserializeOwned>(&self, subject: &str) -> Result<S, Vec<PieceDiagnostic>> {
        let missing = || vec![PieceDiagnostic::new("`spec` is missing").about(subject)];
        self.spec_if_any(subject)?.ok_or_else(missing)
    }

    fn spec_if_any<S: DeserializeOwned>(
        &self,
        subject: &str,
    ) -> Result<Option<S>, Vec<PieceDiagnostic>> {
        let envelope: Envelope<S> = self.parse().map_err(|found| about(found, subject))?;
        Ok(envelope.spec)
    }

    /// Cloud-configs are passed on to another reader of YAML, for which they have to be the same.
    fn check_plain(&self) -> Result<(), Vec<PieceDiagnostic>> {
        if self.json {
            return Ok(());
        }
        let found: Vec<_> =
            plain::unclear(self.text).into_iter().map(PieceDiagnostic::unclear).collect();
        if found.is_empty() { Ok(()) } else { Err(found) }
    }

    fn parse<T: DeserializeOwned>(&self) -> Result<T, Vec<PieceDiagnostic>> {
        if self.json {
            serde_json::from_str(self.text).map_err(|error| vec![PieceDiagnostic::json(&error)])
        } else {
            serde_saphyr::from_str_with_options(self.text, yaml_options())
                .map_err(|error| vec![PieceDiagnostic::yaml(&error)])
        }
    }
}

/// YAML as we read it everywhere: `no` is text, not false; a bound for everything.
fn yaml_options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        strict_booleans: true,
        budget: serde_saphyr::budget! {
            max_depth: MAX_DEPTH,
            max_documents: 1,
        },
    }
}

/// A diagnostic of one document, before its position in the whole text is known.
struct PieceDiagnostic {
    /// From 1, relative to the document; 0 when unknown.
    line: usize,
    column: usize,
    /// `Node login1`, once that much is known.
    subject: Option<String>,
    /// Its `at` is a path in the document.
    diagnostic: Diagnostic,
}

impl PieceDiagnostic {
    fn new(message: impl Into<String>) -> Self {
        Self::of(Diagnostic::new("", message))
    }

    fn of(diagnostic: Diagnostic) -> Self {
        Self { line: 0, column: 0, subject: None, diagnostic }
    }

    fn hint(mut self, hint: impl Into<String>) -> Self {
        self.diagnostic = self.diagnostic.hint(hint);
        self
    }

    fn about(mut self, subject: &str) -> Self {
        self.subject = Some(subject.to_owned());
        self
    }

    fn json(error: &serde_json::Error) -> Self {
        // The position is reported separately from the message.
        let text = error.to_string();
        let message = text.split(" at line ").next().unwrap_or(&text);
        let found = Self { line: error.line(), column: error.column(), ..Self::new(message) };
        found.suggest()
    }

    fn yaml(error: &serde_saphyr::Error) -> Self {
        let position = error.location();
        let number = |n| usize::try_from(n).unwrap_or(0);
        let text = error.without_snippet().to_string();
        let message = without_position(&text);
        let found = Self {
            line: position.map_or(0, |position| number(position.line())),
            column: position.map_or(0, |position| number(position.column())),
            ..Self::new(message)
        };
        found.suggest()
    }

    fn unclear(unclear: AmbiguousScalar) -> Self {
        let AmbiguousScalar { line, column, message, hint } = unclear;
        Self { line, column, ..Self::new(message).hint(hint) }
    }

    /// For an unknown field: the known field that was probably meant.
    fn suggest(mut self) -> Self {
        let Suggestion { message, hint, .. } = suggested(&self.diagnostic.message);
        if message != self.diagnostic.message {
            self.diagnostic = Diagnostic { at: String::new(), message, hint };
        }
        self
    }

    /// `start` is where its document starts in the text.
    fn located(self, text: &Text<'_>, start: usize) -> Diagnostic {
        // Without a position of its own it belongs to where the document's text begins.
        let blank = text.whole[start..].len() - text.whole[start..].trim_start().len();
        let start = if self.line == 0 { start + blank } else { start };
        let before = &text.whole[..start];
        let lines_before = text.lines_before + before.matches('\n').count();
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        let (line, column) = match (self.line, self.column) {
            (0, _) => (lines_before + 1, 1),
            // On its first line a document may start in the middle, as in a JSON list.
            (1, column) => (lines_before + 1, before[line_start..].chars().count() + column),
            (line, column) => (lines_before + line, column),
        };
        let position = format!("{}:{line}:{column}", text.source);
        let of_document = match &self.subject {
            Some(subject) => self.diagnostic.within(subject),
            None => self.diagnostic,
        };
        of_document.within(&position)
    }
}

/// A text and its name, in which diagnostics get their lines and columns.
#[derive(Clone, Copy)]
struct Text<'a> {
    /// A file name, or another name that a person knows.
    source: &'a str,
    whole: &'a str,
    /// Lines of the source before this text.
    lines_before: usize,
}

impl<'a> Text<'a> {
    fn new(source: &'a str, whole: &'a str) -> Self {
        Self { source, whole, lines_before: 0 }
    }

    fn locate(&self, start: usize, found: Vec<PieceDiagnostic>) -> Vec<Diagnostic> {
        found.into_iter().map(|found| found.located(self, start)).collect()
    }
}

/// serde-saphyr puts the position into its message; `at` has it already.
fn without_position(text: &str) -> &str {
    let end = text.find(" at line ").unwrap_or(text.len());
    let text = &text[..end];
    let start = text.strip_prefix("error: ").unwrap_or(text);
    start.lines().next().unwrap_or(start)
}
