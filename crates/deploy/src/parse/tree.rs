//! YAML as a tree of which every part knows its place. JSON is YAML, so it is read here too.

use std::collections::HashMap;

use granit_parser::{Event, Parser, ScalarStyle, Tag};
use serde_json::{Map, Number, Value};

use crate::diagnostic::{Code, SourceDiagnostic};
use crate::spec::Place;

/// Deepest nesting; task files need ten levels.
pub(super) const MAX_DEPTH: usize = 64;
/// Most scalars, lists and maps of one file, with those that aliases stand for.
pub(super) const MAX_PARTS: usize = 1_000_000;

#[derive(Debug, Clone)]
pub(super) struct Tree {
    pub(super) data: Data,
    pub(super) place: Place,
}

#[derive(Debug, Clone)]
pub(super) enum Data {
    Scalar {
        text: String,
        /// Without quotes: it may be a number, true, or nothing.
        is_plain: bool,
    },
    List(Vec<Tree>),
    Map(Vec<(Tree, Tree)>),
}

impl Tree {
    /// The name of the data type, for messages.
    pub(super) fn kind(&self) -> &'static str {
        match &self.data {
            Data::Scalar { .. } if self.is_null() => "nothing",
            Data::Scalar { .. } => "a text",
            Data::List(_) => "a list",
            Data::Map(_) => "a map",
        }
    }

    pub(super) fn is_null(&self) -> bool {
        match &self.data {
            Data::Scalar { text, is_plain: true } => {
                ["", "~", "null", "Null", "NULL"].contains(&text.as_str())
            }
            _ => false,
        }
    }

    pub(super) fn text(&self) -> Option<&str> {
        match &self.data {
            Data::Scalar { text, .. } if !self.is_null() => Some(text),
            _ => None,
        }
    }

    pub(super) fn bool(&self) -> Option<bool> {
        match &self.data {
            Data::Scalar { text, is_plain: true } => text.parse().ok(),
            _ => None,
        }
    }

    pub(super) fn number(&self) -> Option<u32> {
        match &self.data {
            Data::Scalar { text, is_plain: true } if text.bytes().all(|b| b.is_ascii_digit()) => {
                text.parse().ok()
            }
            _ => None,
        }
    }

    /// As free-form data.
    pub(super) fn value(&self) -> Value {
        match &self.data {
            Data::Scalar { .. } if self.is_null() => Value::Null,
            Data::Scalar { text, is_plain: true } => plain(text),
            Data::Scalar { text, .. } => Value::String(text.clone()),
            Data::List(list) => list.iter().map(Self::value).collect(),
            Data::Map(map) => {
                let pairs = map.iter();
                let pairs = pairs
                    .map(|(key, value)| (key.text().unwrap_or_default().to_owned(), value.value()));
                Value::Object(pairs.collect::<Map<_, _>>())
            }
        }
    }

    fn parts(&self) -> usize {
        1 + match &self.data {
            Data::Scalar { .. } => 0,
            Data::List(list) => list.iter().map(Self::parts).sum(),
            Data::Map(map) => map.iter().map(|(key, value)| key.parts() + value.parts()).sum(),
        }
    }

    fn depth(&self) -> usize {
        1 + match &self.data {
            Data::Scalar { .. } => 0,
            Data::List(list) => list.iter().map(Self::depth).max().unwrap_or(0),
            Data::Map(map) => map.iter().map(|(_, value)| value.depth()).max().unwrap_or(0),
        }
    }
}

/// By the core schema of YAML 1.2: `no` is a text.
fn plain(text: &str) -> Value {
    match text {
        "true" | "True" | "TRUE" => return Value::Bool(true),
        "false" | "False" | "FALSE" => return Value::Bool(false),
        _ => {}
    }
    let is_number = text.starts_with(|c: char| c.is_ascii_digit() || "-+.".contains(c));
    if is_number && let Ok(number) = text.parse::<i64>() {
        return number.into();
    }
    let number = text.parse::<f64>().ok().filter(|_| is_number).and_then(Number::from_f64);
    number.map_or_else(|| Value::String(text.to_owned()), Value::Number)
}

/// A list or map that is not closed yet.
struct OpenContainer {
    tree: Tree,
    anchor: usize,
    /// The key that waits for its value.
    key: Option<Tree>,
}

struct Builder {
    file: u32,
    open: Vec<OpenContainer>,
    anchors: HashMap<usize, Tree>,
    parts: usize,
    documents: Vec<Tree>,
}

/// The documents of a text, or what keeps it from being YAML.
pub(super) fn documents(file: u32, text: &str) -> Result<Vec<Tree>, SourceDiagnostic> {
    let mut builder = Builder {
        file,
        open: Vec::new(),
        anchors: HashMap::new(),
        parts: 0,
        documents: Vec::new(),
    };
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| {
            let mark = error.marker();
            let place = place(file, mark.line(), mark.col());
            let text = error.to_string();
            let message = text.split(" at byte ").next().unwrap_or(&text);
            SourceDiagnostic::new(Code::NotYaml, place, format!("this is not YAML: {message}"))
        })?;
        builder.take(event, place(file, span.start.line(), span.start.col()))?;
    }
    Ok(builder.documents)
}

fn place(file: u32, line: usize, column: usize) -> Place {
    let number = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    Place { file, line: number(line), column: number(column + 1) }
}

impl Builder {
    fn take(&mut self, event: Event<'_>, place: Place) -> Result<(), SourceDiagnostic> {
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let is_text = tag.as_deref().is_some_and(is_text);
                let is_plain = style == ScalarStyle::Plain && !is_text;
                let data = Data::Scalar { text: text.into_owned(), is_plain };
                self.count(1, place)?;
                self.put(Tree { data, place }, anchor)
            }
            Event::SequenceStart(_, anchor, _) => self.begin(Data::List(Vec::new()), anchor, place),
            Event::MappingStart(_, anchor, _) => self.begin(Data::Map(Vec::new()), anchor, place),
            Event::SequenceEnd | Event::MappingEnd => match self.open.pop() {
                Some(OpenContainer { tree, anchor, .. }) => self.put(tree, anchor),
                None => Ok(()),
            },
            Event::Alias(anchor) => {
                let Some(tree) = self.anchors.get(&anchor).cloned() else {
                    let message = "this alias stands for something that contains it";
                    return Err(SourceDiagnostic::new(Code::NotYaml, place, message));
                };
                self.count(tree.parts(), place)?;
                if self.open.len() + tree.depth() > MAX_DEPTH {
                    return Err(self.too_deep(place));
                }
                self.put(tree, 0)
            }
            _ => Ok(()),
        }
    }

    fn begin(&mut self, data: Data, anchor: usize, place: Place) -> Result<(), SourceDiagnostic> {
        self.count(1, place)?;
        if self.open.len() >= MAX_DEPTH {
            return Err(self.too_deep(place));
        }
        self.open.push(OpenContainer { tree: Tree { data, place }, anchor, key: None });
        Ok(())
    }

    fn too_deep(&self, place: Place) -> SourceDiagnostic {
        let message = format!("it is nested deeper than {MAX_DEPTH} levels");
        SourceDiagnostic::new(Code::TooLarge, Place { file: self.file, ..place }, message)
    }

    fn count(&mut self, parts: usize, place: Place) -> Result<(), SourceDiagnostic> {
        self.parts += parts;
        if self.parts <= MAX_PARTS {
            return Ok(());
        }
        let message = format!("there are more than {MAX_PARTS} values in it");
        let diagnostic = SourceDiagnostic::new(Code::TooLarge, place, message);
        Err(diagnostic.hint("split it, or write aliases out less"))
    }

    fn put(&mut self, tree: Tree, anchor: usize) -> Result<(), SourceDiagnostic> {
        if anchor > 0 {
            self.anchors.insert(anchor, tree.clone());
        }
        let Some(open) = self.open.last_mut() else {
            self.documents.push(tree);
            return Ok(());
        };
        match (&mut open.tree.data, open.key.take()) {
            (Data::List(list), _) => list.push(tree),
            (Data::Map(map), Some(key)) => map.push((key, tree)),
            (Data::Map(_), None) if matches!(tree.data, Data::Scalar { .. }) => {
                open.key = Some(tree);
            }
            (Data::Map(_), None) => {
                let message = format!("a key is a text, not {}", tree.kind());
                return Err(SourceDiagnostic::new(Code::NotYaml, tree.place, message));
            }
            (Data::Scalar { .. }, _) => {}
        }
        Ok(())
    }
}

fn is_text(tag: &Tag) -> bool {
    tag.is_yaml_core_schema_tag("str")
}
