//! All type errors of a document. The strict reader stops at its first error; here every entry of
//! every section is read by itself.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

use hoist_diagnostic::Diagnostic;
use hoist_model::document::{Suggestion, read_one, suggested};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use serde_path_to_error::{Path, Segment, deserialize};
use uuid::Uuid;

use super::super::{
    Boot, ConfigDrive, Disk, Erase, File, Flow, Id, Image, NodeSection, Policy, Report,
    StorageNode, is_third_party, secret, unknown_section,
};
use super::unreadable;
use crate::diagnostic::ProvisionDiagnostic;

/// Most errors that are reported.
const MAX_ERRORS: usize = 64;

/// Fields for references to secrets. A value written there may be the secret itself.
const SECRETS: [&str; 3] = ["key", "secret", "token"];

/// Adds the errors behind the first one, which has its place in the text.
pub(super) fn all(source: &str, text: &[u8], first: Vec<Diagnostic>) -> Vec<ProvisionDiagnostic> {
    behind(source, text, first, |errors, document| {
        if let Value::Object(document) = document {
            errors.document(document);
        }
    })
}

/// The same for an input of another format.
pub(super) fn all_of<T: DeserializeOwned>(
    source: &str,
    text: &[u8],
    first: Vec<Diagnostic>,
) -> Vec<ProvisionDiagnostic> {
    behind(source, text, first, |errors, input| errors.entry::<T>("", input))
}

/// Every type error in the sections of a document.
pub(super) fn in_sections(sections: &Value) -> Vec<ProvisionDiagnostic> {
    let mut errors = TypeErrors::default();
    errors.sections(sections);
    errors.found.into_iter().map(unreadable).collect()
}

fn behind(
    source: &str,
    text: &[u8],
    first: Vec<Diagnostic>,
    look: impl FnOnce(&mut TypeErrors, &Value),
) -> Vec<ProvisionDiagnostic> {
    let mut errors = TypeErrors::default();
    if let Ok(input) = read_one(source, text) {
        look(&mut errors, &input);
    }
    let mut found: Vec<_> = first.into_iter().map(unreadable).collect();
    for located in &mut found {
        let message = &mut located.diagnostic.message;
        // The line is more use than the path, so the path goes into the message.
        if let Some(at) = errors.same(message).map(|same| errors.found.remove(same).at) {
            *message = format!("{at}: {message}");
        }
    }
    found.extend(errors.found.into_iter().map(unreadable));
    found.truncate(MAX_ERRORS);
    found
}

#[derive(Default)]
struct TypeErrors {
    found: Vec<Diagnostic>,
}

impl TypeErrors {
    /// The error that the strict reader ended with. It may have its own words for it; then it is
    /// the first one. An entry that is there twice is no error here.
    fn same(&self, message: &str) -> Option<usize> {
        let is_twice = ["twice", "duplicate"].iter().any(|word| message.contains(word));
        let same = self.found.iter().position(|found| found.message == message);
        same.or_else(|| (!is_twice && !self.found.is_empty()).then_some(0))
    }

    fn add(&mut self, at: impl Display, message: &str) {
        if self.found.len() < MAX_ERRORS {
            let Suggestion { message, hint, .. } = suggested(message);
            self.found.push(Diagnostic { at: at.to_string(), message, hint });
        }
    }

    fn document(&mut self, document: &Map<String, Value>) {
        for (key, value) in document {
            match key.as_str() {
                "api" => self.entry::<String>(key, value),
                "txn" => self.entry::<Uuid>(key, value),
                "sections" => self.sections(value),
                other => {
                    let message = format!(
                        "unknown field `{other}`, expected one of `api`, `txn`, `sections`"
                    );
                    self.add("document", &message);
                }
            }
        }
        for key in ["api", "txn", "sections"] {
            if !document.contains_key(key) {
                self.add("document", &format!("missing field `{key}`"));
            }
        }
    }

    fn sections(&mut self, sections: &Value) {
        let Value::Object(sections) = sections else {
            return self.add("sections", "these are no sections by name");
        };
        for (name, value) in sections {
            match name.as_str() {
                "node" => self.entry::<Option<NodeSection>>(name, value),
                "disks" => self.by_id::<Disk>(name, value),
                "storage" => self.list::<StorageNode>(name, value),
                "images" => self.by_id::<Image>(name, value),
                "config_drive" => self.entry::<Option<ConfigDrive>>(name, value),
                "boot" => self.entry::<Option<Boot>>(name, value),
                "network" => self.entry::<Option<Map<String, Value>>>(name, value),
                "flow" => self.entry::<Option<Flow>>(name, value),
                "policy" => self.entry::<Policy>(name, value),
                "report" => self.entry::<Option<Report>>(name, value),
                "files" => self.list::<File>(name, value),
                "erase" => self.entry::<Option<Erase>>(name, value),
                other if is_third_party(other) => {}
                other => {
                    let error: serde_json::Error = unknown_section(other);
                    self.add(other, &error.to_string());
                }
            }
        }
    }

    fn by_id<T: DeserializeOwned>(&mut self, section: &str, value: &Value) {
        let Value::Object(entries) = value else {
            return self.add(section, "these are no entries by id");
        };
        for (id, value) in entries {
            if let Err(error) = id.parse::<Id>() {
                self.add(section, &error.to_string());
            }
            self.entry::<T>(&format!("{section}.{id}"), value);
        }
    }

    fn list<T: DeserializeOwned>(&mut self, section: &str, value: &Value) {
        let Value::Array(entries) = value else {
            return self.add(section, "this is no list");
        };
        for (number, value) in entries.iter().enumerate() {
            let node = value.as_object().and_then(|node| node.values().next());
            let id = node.and_then(|node| node["id"].as_str());
            let name = id.map_or_else(|| number.to_string(), str::to_owned);
            self.entry::<T>(&format!("{section}.{name}"), value);
        }
    }

    /// Reads an entry as often as it has errors, each time without the values that had one.
    fn entry<T: DeserializeOwned>(&mut self, at: &str, value: &Value) {
        let mut value = value.clone();
        let mut removed: Vec<String> = Vec::new();
        let mut elements = RemovedElements::default();
        // A value that was read as a number or a flag, and may be meant as text.
        let mut unquoted: Option<(String, String)> = None;
        while self.found.len() < MAX_ERRORS {
            let Err(error) = deserialize::<_, T>(&value) else { return };
            let path = error.path().to_string();
            let mut message = error.inner().to_string();
            if let Some((_, before)) = unquoted.take().filter(|(place, _)| *place == path) {
                message = before;
            } else if let Some(scalar) = found_at(&mut value, error.path().iter())
                && (scalar.is_number() || scalar.is_boolean())
            {
                *scalar = Value::String(scalar.to_string());
                unquoted = Some((path, message));
                continue;
            }
            if is_consequence(&message, &removed) {
                return;
            }
            let last = path.rsplit('.').next().unwrap_or_default();
            if SECRETS.contains(&last) {
                message = secret::NoReference.to_string();
            }
            let path = elements.original(error.path());
            let is_nested = !at.is_empty() && !path.is_empty();
            let place = if is_nested { format!("{at}.{path}") } else { format!("{at}{path}") };
            self.add(place, &message);
            match remove(&mut value, error.path(), &message) {
                Some(Removed::Field(name)) => removed.push(name),
                Some(Removed::Element) => elements.add(error.path()),
                None => return,
            }
            // A misspelt field is missing under its right name, too.
            removed.extend(suggested(&message).field);
        }
    }
}

/// Whether a field is missing only because its value had an error.
fn is_consequence(message: &str, removed: &[String]) -> bool {
    let missing = message.strip_prefix("missing field `").and_then(|rest| rest.split_once('`'));
    missing.is_some_and(|(field, _)| removed.iter().any(|key| key == field))
}

/// The value at a path.
fn found_at<'v, 'p>(
    value: &'v mut Value,
    mut path: impl Iterator<Item = &'p Segment>,
) -> Option<&'v mut Value> {
    path.try_fold(value, |value, segment| match segment {
        Segment::Seq { index } => value.get_mut(*index),
        Segment::Map { key } => value.get_mut(key),
        Segment::Enum { variant } => value.get_mut(variant),
        Segment::Unknown => None,
    })
}

/// What was removed because of an error.
enum Removed {
    Field(String),
    Element,
}

/// Removes the value with an error, if its name or its place in a list is known.
fn remove(value: &mut Value, path: &Path, message: &str) -> Option<Removed> {
    let unknown = message.strip_prefix("unknown field `").and_then(|rest| rest.split_once('`'));
    if let Some((field, _)) = unknown
        && let Some(Value::Object(map)) = found_at(value, path.iter())
        && map.shift_remove(field).is_some()
    {
        return Some(Removed::Field(field.to_owned()));
    }
    let count = path.iter().len();
    let last = path.iter().next_back()?;
    match (found_at(value, path.iter().take(count - 1))?, last) {
        (Value::Object(map), last) => {
            let name = last.to_string();
            map.shift_remove(&name).map(|_| Removed::Field(name))
        }
        (Value::Array(list), Segment::Seq { index }) if *index < list.len() => {
            list.remove(*index);
            Some(Removed::Element)
        }
        _ => None,
    }
}

/// Elements that were removed from lists: those behind them have lower numbers since.
#[derive(Default)]
struct RemovedElements(BTreeMap<String, BTreeSet<usize>>);

impl RemovedElements {
    /// The path in the document as it was written; empty for the whole of it.
    fn original(&self, path: &Path) -> String {
        let mut original = String::new();
        for segment in path {
            let text = match segment {
                Segment::Seq { index } => format!("[{}]", self.number(&original, *index)),
                other if original.is_empty() => other.to_string(),
                other => format!(".{other}"),
            };
            original.push_str(&text);
        }
        original
    }

    fn number(&self, list: &str, index: usize) -> usize {
        let removed = self.0.get(list).into_iter().flatten();
        removed.fold(index, |number, removed| number + usize::from(*removed <= number))
    }

    /// Notes that the element at a path was removed.
    fn add(&mut self, path: &Path) {
        let original = self.original(path);
        let element = original.strip_suffix(']').and_then(|rest| rest.rsplit_once('['));
        if let Some((list, number)) = element
            && let Ok(number) = number.parse()
        {
            self.0.entry(list.to_owned()).or_default().insert(number);
        }
    }
}
