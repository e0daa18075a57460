//! Text to documents. Each document is read twice: once for its kind, once into that kind's types,
//! so that positions and unknown fields are those of the text, not of a copy.

use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::{Map, Value};

use super::plain::{self, Unclear};
use super::{API, Document, DocumentName, Kind, Spec};
use crate::suggestion::nearest;

/// Largest file or body taken apart as a whole. Larger sets travel as JSON lines, one at a time.
const MAX_BYTES: usize = 64 * 1024 * 1024;
/// Most documents in one text.
const MAX_DOCUMENTS: usize = 100_000;
/// Deepest nesting; our own documents need six levels, free-form data rarely more.
const MAX_DEPTH: usize = 64;

/// The faults with their documents. A text with faults yields no documents at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DocumentError {
    /// File name, or whatever the text is called.
    pub source: String,
    /// From 1; 0 when unknown.
    pub line: usize,
    pub column: usize,
    /// `Node login1`, once that much is known.
    pub subject: Option<String>,
    pub message: String,
    pub hint: Option<String>,
}

impl std::error::Error for DocumentError {}

impl std::fmt::Display for DocumentError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.source)?;
        if self.line > 0 {
            write!(f, ":{}:{}", self.line, self.column)?;
        }
        if let Some(subject) = &self.subject {
            write!(f, ": {subject}")?;
        }
        write!(f, ": {}", self.message)?;
        if let Some(hint) = &self.hint {
            write!(f, "; {hint}")?;
        }
        Ok(())
    }
}

/// All documents of a text, or everything wrong with it. JSON (one object, a list, or one object
/// per line) is recognised by how it begins; everything else is YAML.
pub fn read(source: &str, text: &[u8]) -> Result<Vec<Document>, Vec<DocumentError>> {
    let whole = |message, hint| Err(vec![of_whole(source, message, hint)]);
    if text.len() > MAX_BYTES {
        let message = format!("{} bytes are more than the limit of {MAX_BYTES}", text.len());
        return whole(message, "split it, or send it as JSON lines");
    }
    let text = utf8(source, text)?;
    let pieces = if is_json(text) {
        json_pieces(text).map_err(|error| vec![error.located(source, text, 0)])?
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
            Err(found) => {
                errors.extend(found.into_iter().map(|e| e.located(source, text, piece.start)));
            }
        }
    }
    if errors.is_empty() { Ok(documents) } else { Err(errors) }
}

/// One value of another format, read as documents are: the same YAML and JSON, the same bounds, and
/// faults with their places. How long the text may be is the caller's to say.
pub fn read_one<T: DeserializeOwned>(source: &str, text: &[u8]) -> Result<T, Vec<DocumentError>> {
    let text = utf8(source, text)?;
    let json = is_json(text);
    let pieces = if json { vec![Piece { text, start: 0, json }] } else { yaml_pieces(text) };
    let [piece] = pieces.as_slice() else {
        let message = format!("contains {} documents", pieces.len());
        return Err(vec![of_whole(source, message, "write exactly one")]);
    };
    let found = piece.parse();
    found.map_err(|found| found.into_iter().map(|e| e.located(source, text, piece.start)).collect())
}

fn utf8<'a>(source: &str, text: &'a [u8]) -> Result<&'a str, Vec<DocumentError>> {
    std::str::from_utf8(text).map_err(|error| {
        let message = format!("byte {} is not UTF-8", error.valid_up_to());
        vec![of_whole(source, message, "save the file as UTF-8")]
    })
}

fn of_whole(source: &str, message: String, hint: &str) -> DocumentError {
    let source = source.to_owned();
    let hint = Some(hint.to_owned());
    DocumentError { source, line: 0, column: 0, subject: None, message, hint }
}

/// One document from one JSON text: a line of JSON lines.
pub fn from_json(source: &str, text: &str) -> Result<Document, Vec<DocumentError>> {
    one(&Piece { text, start: 0, json: true })
        .map_err(|errors| errors.into_iter().map(|e| e.located(source, text, 0)).collect())
}

/// A cloud-config by itself, read as in a layer; a text without anything in it is empty.
pub fn cloud_config(source: &str, text: &str) -> Result<Map<String, Value>, Vec<DocumentError>> {
    let piece = Piece { text, start: 0, json: false };
    let read = piece.parse::<Option<Map<String, Value>>>().and_then(|map| {
        piece.check_plain()?;
        Ok(map.unwrap_or_default())
    });
    read.map_err(|errors| errors.into_iter().map(|e| e.located(source, text, 0)).collect())
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

fn json_pieces(text: &str) -> Result<Vec<Piece<'_>>, DocumentFault> {
    let stream =
        serde_json::Deserializer::from_str(text).into_iter::<&serde_json::value::RawValue>();
    let mut pieces = Vec::new();
    for value in stream {
        let value = value.map_err(|error| DocumentFault::json(&error))?.get();
        if value.starts_with('[') {
            let list: Vec<&serde_json::value::RawValue> =
                serde_json::from_str(value).map_err(|error| DocumentFault::json(&error))?;
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

fn one(piece: &Piece<'_>) -> Result<Document, Vec<DocumentFault>> {
    let head: Envelope<IgnoredAny> = piece.parse()?;
    let subject = format!("{} {}", head.kind, head.name);
    let found = |found: DocumentFault| vec![found.about(&subject)];
    if head.api.as_deref() != Some(API) {
        let message = match &head.api {
            Some(api) => format!("this is `{api}`, which I do not know"),
            None => "`api` is missing".to_owned(),
        };
        return Err(found(DocumentFault::new(message).hint(format!("write `api: {API}`"))));
    }
    let kind = Kind::ALL.into_iter().find(|kind| kind.as_str() == head.kind);
    let kind = kind.ok_or_else(|| found(unknown_kind(&head.kind)))?;
    let name = match kind {
        Kind::Group => head.name.parse().map(DocumentName::Group),
        Kind::Artifact => head.name.parse().map(DocumentName::Artifact),
        _ => head.name.parse().map(DocumentName::Plain),
    };
    let name = name.map_err(|error| found(DocumentFault::new(error.to_string())))?;
    let spec = match kind {
        Kind::Partition => Spec::Partition(piece.spec(&subject)?),
        Kind::Network => Spec::Network(piece.spec(&subject)?),
        Kind::Group => Spec::Group(piece.spec(&subject)?),
        Kind::Node => Spec::Node(piece.spec(&subject)?),
        Kind::Artifact => Spec::Artifact(piece.needed_spec(&subject)?),
        Kind::BootConfig => Spec::BootConfig(piece.spec(&subject)?),
        Kind::MetadataLayer => {
            let spec = piece.spec(&subject)?;
            piece.check_plain().map_err(|found| about(found, &subject))?;
            Spec::MetadataLayer(spec)
        }
        Kind::ProvisionProfile => Spec::ProvisionProfile(piece.spec(&subject)?),
    };
    let document = Document { name, spec };
    let faults = document.check();
    if faults.is_empty() {
        return Ok(document);
    }
    let of_fault = |fault: hoist_diagnostic::Diagnostic| {
        let at = if fault.at.is_empty() { String::new() } else { format!("{}: ", fault.at) };
        let found = DocumentFault::new(format!("{at}{}", fault.message)).about(&subject);
        DocumentFault { hint: fault.hint, ..found }
    };
    Err(faults.into_iter().map(of_fault).collect())
}

fn about(found: Vec<DocumentFault>, subject: &str) -> Vec<DocumentFault> {
    found.into_iter().map(|found| found.about(subject)).collect()
}

fn unknown_kind(kind: &str) -> DocumentFault {
    let known = Kind::ALL.map(Kind::as_str);
    let found = DocumentFault::new(format!("unknown kind `{kind}`"));
    match nearest(kind, known) {
        Some(close) => found.hint(format!("did you mean `{close}`?")),
        None => found.hint(format!("use one of {}", known.join(", "))),
    }
}

impl Piece<'_> {
    fn spec<S: DeserializeOwned + Default>(&self, subject: &str) -> Result<S, Vec<DocumentFault>> {
        Ok(self.spec_if_any(subject)?.unwrap_or_default())
    }

    /// For kinds that say nothing without a spec.
    fn needed_spec<S: DeserializeOwned>(&self, subject: &str) -> Result<S, Vec<DocumentFault>> {
        let missing = || vec![DocumentFault::new("`spec` is missing").about(subject)];
        self.spec_if_any(subject)?.ok_or_else(missing)
    }

    fn spec_if_any<S: DeserializeOwned>(
        &self,
        subject: &str,
    ) -> Result<Option<S>, Vec<DocumentFault>> {
        let envelope: Envelope<S> = self.parse().map_err(|found| about(found, subject))?;
        Ok(envelope.spec)
    }

    /// Cloud-configs are passed on to another reader of YAML, for which they have to be the same.
    fn check_plain(&self) -> Result<(), Vec<DocumentFault>> {
        if self.json {
            return Ok(());
        }
        let found: Vec<_> =
            plain::unclear(self.text).into_iter().map(DocumentFault::unclear).collect();
        if found.is_empty() { Ok(()) } else { Err(found) }
    }

    fn parse<T: DeserializeOwned>(&self) -> Result<T, Vec<DocumentFault>> {
        if self.json {
            serde_json::from_str(self.text).map_err(|error| vec![DocumentFault::json(&error)])
        } else {
            serde_saphyr::from_str_with_options(self.text, yaml_options())
                .map_err(|error| vec![DocumentFault::yaml(&error)])
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

/// A fault inside of one document, before its place in the whole text is known.
struct DocumentFault {
    /// From 1, relative to the document; 0 when unknown.
    line: usize,
    column: usize,
    subject: Option<String>,
    message: String,
    hint: Option<String>,
}

impl DocumentFault {
    fn new(message: impl Into<String>) -> Self {
        Self { line: 0, column: 0, subject: None, message: message.into(), hint: None }
    }

    fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
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
        let place = error.location();
        let number = |n| usize::try_from(n).unwrap_or(0);
        let text = error.without_snippet().to_string();
        let message = without_place(&text);
        let found = Self {
            line: place.map_or(0, |place| number(place.line())),
            column: place.map_or(0, |place| number(place.column())),
            ..Self::new(message)
        };
        found.suggest()
    }

    fn unclear(unclear: Unclear) -> Self {
        let Unclear { line, column, message, hint } = unclear;
        Self { line, column, ..Self::new(message).hint(hint) }
    }

    /// For an unknown field: the one that was probably meant. Both parsers say "unknown field `x`,
    /// expected …" with the known ones listed behind, quoted or not.
    fn suggest(mut self) -> Self {
        let Some((typed, rest)) =
            self.message.strip_prefix("unknown field `").and_then(|rest| rest.split_once('`'))
        else {
            return self;
        };
        let (_, list) = rest.split_once("expected ").unwrap_or_default();
        let list = list.strip_prefix("one of ").unwrap_or(list);
        let words = list.split([',', ' ', '`']).filter(|word| !word.is_empty() && *word != "or");
        let known: Vec<&str> = words.collect();
        self.hint = nearest(typed, known.iter().copied())
            .map(|close| format!("did you mean `{close}`?"))
            .or_else(|| (!known.is_empty()).then(|| format!("use one of {}", known.join(", "))));
        self.message = format!("unknown field `{typed}`");
        self
    }

    fn located(self, source: &str, whole: &str, start: usize) -> DocumentError {
        // Without a place of its own a fault belongs to where the document's text begins.
        let blank = whole[start..].len() - whole[start..].trim_start().len();
        let start = if self.line == 0 { start + blank } else { start };
        let before = &whole[..start];
        let lines_before = before.matches('\n').count();
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        let (line, column) = match (self.line, self.column) {
            (0, _) => (lines_before + 1, 1),
            // On its first line a document may start in the middle, as in a JSON list.
            (1, column) => (lines_before + 1, before[line_start..].chars().count() + column),
            (line, column) => (lines_before + line, column),
        };
        let Self { subject, message, hint, .. } = self;
        DocumentError { source: source.to_owned(), line, column, subject, message, hint }
    }
}

/// serde-saphyr puts the place into its message; we say it once, in front.
fn without_place(text: &str) -> &str {
    let end = text.find(" at line ").unwrap_or(text.len());
    let text = &text[..end];
    let start = text.strip_prefix("error: ").unwrap_or(text);
    start.lines().next().unwrap_or(start)
}
