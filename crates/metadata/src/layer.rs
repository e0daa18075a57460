//! A layer ready to be rendered: its templates are compiled, its secrets found.

use std::sync::Arc;

use hoist_model::metadata_layer::{PartOf, PartType, keys_on};
use hoist_model::{MetadataLayer, MetadataLayerSpec, Secret};
use hoist_template::Templates;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::merge::Origin;
use crate::secret::{Secrets, shown};

/// Instructions one text may take.
const FUEL: u64 = 10_000;
/// Most texts of a layer that are templates.
pub const MAX_TEMPLATES: usize = 128;
/// Longest text that a template makes.
pub const MAX_TEXT: usize = 256 * 1024;
/// Most that all templates of a layer are long, before anything is made of them: as much as a layer
/// may have.
pub const MAX_SOURCE: usize = hoist_model::metadata_layer::MAX_LAYER;
/// Most that a layer says to one node, before it is written down.
const MAX_SPOKEN: usize = crate::render::MAX_SAID;

/// Most bytes and templates of a layer that is rendered while other machines wait for the thread:
/// some 100 µs.
const MAX_QUICK_BYTES: usize = 8 * 1024;
const MAX_QUICK_TEMPLATES: usize = 16;

/// How templates begin. Comments (`{#`) alone make none: shells write `${#name}`.
const MARKERS: [&str; 2] = ["{{", "{%"];

/// Whether a text contains the template syntax of clients.
pub(crate) fn has_client_syntax(text: &str) -> bool {
    text.contains("{{") || text.contains("{%") || text.contains("{#")
}

#[derive(Debug)]
pub struct Layer {
    pub source: Arc<MetadataLayer>,
    pub origin: Origin,
    hostname: Option<Piece>,
    public_keys: Vec<Piece>,
    meta_data: Vec<(String, Piece)>,
    user_data: Vec<(String, Piece)>,
    vendor_data: Vec<(String, Piece)>,
    parts: Vec<(PartOf, PartType, Piece)>,
    /// Paths of the replaced values, each starting at a field of the layer.
    replace: Vec<Vec<String>>,
    templates: Templates,
    /// An error that applies to every node.
    broken: Option<LayerFailure>,
    is_quick: bool,
}

/// Why a layer says nothing about a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerFailure {
    pub layer: hoist_model::Name,
    /// Where in the layer, such as `user_data.runcmd[0]`.
    pub at: String,
    pub reason: String,
    /// Whether a template uses a value that the node does not have.
    pub is_undefined: bool,
}

/// The content of a layer for one node.
#[derive(Debug, Default)]
pub(crate) struct Said {
    pub(crate) hostname: Option<String>,
    pub(crate) public_keys: Vec<String>,
    pub(crate) meta_data: Map<String, Value>,
    pub(crate) user_data: Map<String, Value>,
    pub(crate) vendor_data: Map<String, Value>,
    pub(crate) parts: Vec<(PartOf, PartType, String)>,
}

#[derive(Debug)]
enum Piece {
    Plain(Value),
    /// By its place in the layer, which is also its name.
    Template(String),
    Secret(String, Secret),
    List(Vec<Piece>),
    Map(Vec<(String, Piece)>),
}

impl Layer {
    pub fn new(source: &Arc<MetadataLayer>) -> Self {
        let spec = &source.spec;
        let mut maker = Maker {
            templates: Templates::new(FUEL),
            count: 0,
            source: 0,
            repeats: false,
            client: spec.client_templates,
            wrong: None,
        };
        let text = |text: &String| Value::String(text.clone());
        let hostname = spec.hostname.as_ref().map(|name| maker.piece("hostname", &text(name)));
        let public_keys = spec.public_keys.iter().enumerate();
        let public_keys = public_keys
            .map(|(i, key)| maker.piece(&format!("public_keys[{i}]"), &text(key)))
            .collect();
        let mut map = |at: &str, map: &Map<String, Value>| maker.entries(at, map);
        let meta_data = map("meta_data", &spec.meta_data);
        let user_data = map("user_data", &spec.user_data);
        let vendor_data = map("vendor_data", &spec.vendor_data);
        let parts = spec.parts.iter().enumerate();
        let parts = parts
            .map(|(i, part)| {
                let content = maker.piece(&format!("parts[{i}].content"), &part.content);
                (part.document, part.r#type, content)
            })
            .collect();
        let is_quick = !maker.repeats
            && maker.count <= MAX_QUICK_TEMPLATES
            && content_size(spec) <= MAX_QUICK_BYTES;
        let broken = maker.wrong.map(|(at, reason)| LayerFailure {
            layer: source.name.clone(),
            at,
            reason,
            is_undefined: false,
        });
        Self {
            source: Arc::clone(source),
            origin: Origin::from(format!("layer:{}", source.name)),
            hostname,
            public_keys,
            meta_data,
            user_data,
            vendor_data,
            parts,
            replace: spec.replace.iter().filter_map(|way| keys_on(way)).collect(),
            templates: maker.templates,
            broken,
            is_quick,
        }
    }

    /// Whether rendering takes little time, whatever the node: the layer is small and repeats
    /// nothing.
    pub(crate) fn is_quick(&self) -> bool {
        self.is_quick
    }

    /// The error that applies to every node, if there is one.
    pub(crate) fn broken(&self) -> Option<&LayerFailure> {
        self.broken.as_ref()
    }

    /// Paths of the replaced values inside a field.
    pub(crate) fn replaced(&self, field: &str) -> Vec<&[String]> {
        let inside = |way: &'_ Vec<String>| way.first().is_some_and(|first| first == field);
        self.replace.iter().filter(|way| inside(way)).map(|way| &way[1..]).collect()
    }

    /// Whether the content depends on the node.
    pub(crate) fn is_template(&self) -> bool {
        self.broken.is_some() || !self.templates.is_empty()
    }

    /// The content for a node, or the reason why it cannot be rendered.
    pub(crate) fn say(
        &self,
        view: &impl Serialize,
        secrets: Secrets<'_>,
    ) -> Result<Said, LayerFailure> {
        if let Some(broken) = &self.broken {
            return Err(broken.clone());
        }
        let mut speaker = Speaker { layer: self, view, secrets, size: 0 };
        let mut said = Said::default();
        if let Some(hostname) = &self.hostname {
            said.hostname = speaker.text(hostname)?;
        }
        for key in &self.public_keys {
            said.public_keys.extend(speaker.text(key)?);
        }
        said.meta_data = speaker.keys(&self.meta_data)?;
        said.user_data = speaker.keys(&self.user_data)?;
        said.vendor_data = speaker.keys(&self.vendor_data)?;
        for (of, kind, content) in &self.parts {
            said.parts.extend(speaker.text(content)?.map(|text| (*of, *kind, text)));
        }
        Ok(said)
    }

    pub(crate) fn failed(&self, at: impl Into<String>, reason: impl Into<String>) -> LayerFailure {
        LayerFailure {
            layer: self.source.name.clone(),
            at: at.into(),
            reason: reason.into(),
            is_undefined: false,
        }
    }
}

/// Makes the pieces of a layer.
struct Maker {
    templates: Templates,
    count: usize,
    /// Bytes of all templates so far.
    source: usize,
    /// Some template may have a loop.
    repeats: bool,
    client: bool,
    wrong: Option<(String, String)>,
}

impl Maker {
    fn entries(&mut self, at: &str, map: &Map<String, Value>) -> Vec<(String, Piece)> {
        let piece = |(key, value): (&String, &Value)| {
            (key.clone(), self.piece(&format!("{at}.{key}"), value))
        };
        map.iter().map(piece).collect()
    }

    fn piece(&mut self, at: &str, value: &Value) -> Piece {
        if let Some(secret) = Secret::in_value(value) {
            return match secret {
                Ok(secret) => Piece::Secret(at.to_owned(), secret),
                Err(error) => self.wrong(at, error.to_string()),
            };
        }
        match value {
            Value::String(text) if self.is_template(text) => self.template(at, text),
            Value::Object(map) => {
                let entries = self.entries(at, map);
                if entries.iter().all(|(_, piece)| piece.is_plain()) {
                    return Piece::Plain(value.clone());
                }
                Piece::Map(entries)
            }
            Value::Array(list) => {
                let items = list.iter().enumerate();
                let items: Vec<_> =
                    items.map(|(i, value)| self.piece(&format!("{at}[{i}]"), value)).collect();
                if items.iter().all(Piece::is_plain) {
                    return Piece::Plain(value.clone());
                }
                Piece::List(items)
            }
            plain => Piece::Plain(plain.clone()),
        }
    }

    fn is_template(&self, text: &str) -> bool {
        !self.client && MARKERS.iter().any(|marker| text.contains(marker))
    }

    fn template(&mut self, at: &str, text: &str) -> Piece {
        self.count += 1;
        if self.count > MAX_TEMPLATES {
            return self.wrong(at, format!("more than {MAX_TEMPLATES} templates"));
        }
        self.source += text.len();
        self.repeats |= text.contains("{%") && text.contains("for");
        if self.source > MAX_SOURCE {
            return self.wrong(at, format!("the templates are longer than {MAX_SOURCE} bytes"));
        }
        match self.templates.add(at.to_owned(), text.to_owned()) {
            Ok(()) => Piece::Template(at.to_owned()),
            Err(error) => self.wrong(at, error.to_string()),
        }
    }

    fn wrong(&mut self, at: &str, reason: impl Into<String>) -> Piece {
        self.wrong.get_or_insert_with(|| (at.to_owned(), reason.into()));
        Piece::Plain(Value::Null)
    }
}

impl Piece {
    fn is_plain(&self) -> bool {
        matches!(self, Self::Plain(_))
    }
}

struct Speaker<'l, V> {
    layer: &'l Layer,
    view: &'l V,
    secrets: Secrets<'l>,
    size: usize,
}

impl<V: Serialize> Speaker<'_, V> {
    /// The keys of a document, without those that hold a secret the client must not get: a command
    /// or a file without its secret would be another command or file.
    fn keys(&mut self, entries: &[(String, Piece)]) -> Result<Map<String, Value>, LayerFailure> {
        let mut map = Map::new();
        for (key, piece) in entries {
            if let Some(value) = self.value(piece)? {
                self.charge(key.len())?;
                map.insert(key.clone(), value);
            }
        }
        Ok(map)
    }

    /// `None` for a secret that the client must not get, and for every value that contains one.
    fn value(&mut self, piece: &Piece) -> Result<Option<Value>, LayerFailure> {
        Ok(Some(match piece {
            Piece::Plain(value) => {
                self.charge(size_of(value))?;
                value.clone()
            }
            Piece::Map(entries) => {
                let mut map = Map::new();
                for (key, piece) in entries {
                    let Some(value) = self.value(piece)? else { return Ok(None) };
                    self.charge(key.len())?;
                    map.insert(key.clone(), value);
                }
                Value::Object(map)
            }
            Piece::List(items) => {
                let mut list = Vec::with_capacity(items.len());
                for item in items {
                    let Some(value) = self.value(item)? else { return Ok(None) };
                    list.push(value);
                }
                Value::Array(list)
            }
            Piece::Template(at) => {
                let rendered = self.layer.templates.render(at, self.view, MAX_TEXT);
                let text = rendered.map_err(|error| LayerFailure {
                    is_undefined: error.is_undefined,
                    ..self.layer.failed(at, error.to_string())
                })?;
                self.charge(text.len())?;
                Value::String(text)
            }
            Piece::Secret(at, secret) => {
                let shown = shown(self.secrets, secret);
                let failed = |error| self.layer.failed(at, hoist_diagnostic::chain(&error));
                let Some(text) = shown.map_err(failed)? else {
                    return Ok(None);
                };
                if self.goes_to_client(at) && has_client_syntax(&text) {
                    return Err(self.layer.failed(at, "the secret contains template syntax"));
                }
                self.charge(text.len())?;
                Value::String(text)
            }
        }))
    }

    /// Whether it goes through the client's templates.
    fn goes_to_client(&self, at: &str) -> bool {
        let is_config = at.starts_with("user_data.") || at.starts_with("vendor_data.");
        self.layer.source.spec.client_templates && is_config
    }

    /// Content beyond the limit must not even be assembled.
    fn charge(&mut self, bytes: usize) -> Result<(), LayerFailure> {
        self.size += bytes;
        if self.size <= MAX_SPOKEN {
            return Ok(());
        }
        Err(self.layer.failed("", format!("the layer renders to more than {MAX_SPOKEN} bytes")))
    }

    fn text(&mut self, piece: &Piece) -> Result<Option<String>, LayerFailure> {
        Ok(self.value(piece)?.and_then(|value| match value {
            Value::String(text) => Some(text),
            _ => None,
        }))
    }
}

fn content_size(spec: &MetadataLayerSpec) -> usize {
    let maps = [&spec.meta_data, &spec.user_data, &spec.vendor_data];
    let maps = maps.into_iter().flatten().map(|(key, value)| key.len() + size_of(value));
    let keys = spec.public_keys.iter().map(String::len);
    let parts = spec.parts.iter().map(|part| size_of(&part.content));
    maps.chain(keys).chain(parts).sum()
}

/// About as much as it is in a document.
pub(crate) fn size_of(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(list) => list.iter().map(size_of).sum(),
        Value::Object(map) => map.iter().map(|(key, value)| key.len() + size_of(value)).sum(),
        _ => 8,
    }
}
