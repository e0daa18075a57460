//! Metadata layers: contributions of a site, a partition, a group or a node to the documents that
//! cloud-init reads. The layers of a node are merged; each applies to one set of nodes.
//!
//! Does not belong here: merging and rendering (`hoist-metadata`).

use hoist_diagnostic::Diagnostic;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::selector::Level;
use crate::{Name, Selector};

/// Largest layer, as JSON: it has to fit into one record of every store.
pub const MAX_LAYER: usize = 256 * 1024;
/// Most levels of maps and lists inside a layer.
pub const MAX_LAYER_DEPTH: usize = 32;
/// Most values inside a layer: a few aliases in YAML can stand for millions.
pub const MAX_LAYER_VALUES: usize = 10_000;
/// Longest key: readers of YAML take no longer one than 1,024 characters, however it is written.
pub const MAX_KEY: usize = 256;
const MAX_PARTS: usize = 32;
const MAX_PUBLIC_KEYS: usize = 256;
const MAX_PUBLIC_KEY: usize = 16 * 1024;
const MAX_REPLACE: usize = 64;
/// Longest way to a key that is replaced.
const MAX_WAY: usize = 4096;
const MAX_HOSTNAME: usize = 1024;
const MAX_REFERENCE: usize = 512;
const MAX_AGE: usize = 64 * 1024;

/// How the names of variables begin that a layer may name: not everything in the server's
/// environment is for nodes.
pub const SECRET_VARIABLES: &str = "HOIST_SECRET_";

/// Keys of meta-data that hoist sets.
const RESERVED: [(&str, &str); 7] = [
    ("instance-id", "it is made of the node's id and generation"),
    ("hostname", "write `hostname` beside `meta_data`"),
    ("local-hostname", "write `hostname` beside `meta_data`"),
    ("public-keys", "write `public_keys` beside `meta_data`"),
    ("hoist", "the facts about the node are there"),
    ("instance_data", "`openchami: true` makes it"),
    ("network-interfaces", "write `network_config: true` beside `meta_data`"),
];

/// The metadata of the nodes of a selector.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MetadataLayerSpec {
    /// `*`, `partition:NAME`, `group:NAME`, `PARTITION/GROUP` or `node:NAME`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<Selector>,
    /// Of layers for the same set the higher one comes later, and wins.
    #[serde(default, skip_serializing_if = "is_default")]
    pub priority: i32,
    /// The node's host name; by default its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// For cloud-init's default user.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub public_keys: Vec<String>,
    /// Further keys of meta-data.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub meta_data: Map<String, Value>,
    /// A cloud-config, as the owner of a node writes it.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub user_data: Map<String, Value>,
    /// A cloud-config, as the site writes it; user-data goes over it.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub vendor_data: Map<String, Value>,
    /// Parts other than cloud-config: scripts, boothooks, includes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<Part>,
    /// Whether the inventory's addresses are given as network-config.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_config: Option<bool>,
    /// Keys of this layer that take the place of what layers before it say, such as
    /// `user_data.ntp.servers`. A key with a dot in it stands in quotes:
    /// `user_data.apt.sources."my.list"`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replace: Vec<String>,
    /// Templates in this layer are for the client, and pass as they are.
    #[serde(default, skip_serializing_if = "is_default")]
    pub client_templates: bool,
    /// Whether meta-data also has the tree `instance_data.v1` that `OpenCHAMI` gives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub openchami: Option<bool>,
}

/// One part of a document that is not a cloud-config.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Part {
    pub document: PartOf,
    pub r#type: PartType,
    /// A text, or a reference to a secret.
    pub content: Value,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PartOf {
    UserData,
    VendorData,
}

/// What cloud-init takes a part for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PartType {
    #[serde(rename = "text/x-shellscript")]
    Script,
    #[serde(rename = "text/x-shellscript-per-boot")]
    ScriptPerBoot,
    #[serde(rename = "text/x-shellscript-per-instance")]
    ScriptPerInstance,
    #[serde(rename = "text/x-shellscript-per-once")]
    ScriptOnce,
    #[serde(rename = "text/cloud-boothook")]
    Boothook,
    #[serde(rename = "text/x-include-url")]
    Include,
    #[serde(rename = "text/jinja2")]
    Jinja,
    #[serde(rename = "text/part-handler")]
    Handler,
    /// A whole MIME message with parts of its own, as `cloud-init devel make-mime` makes it.
    #[serde(rename = "multipart/mixed")]
    Message,
    /// Any of the others (also a cloud-config), compressed with gzip and then encoded with base64.
    #[serde(rename = "application/gzip")]
    Gzip,
}

impl PartType {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Script => "text/x-shellscript",
            Self::ScriptPerBoot => "text/x-shellscript-per-boot",
            Self::ScriptPerInstance => "text/x-shellscript-per-instance",
            Self::ScriptOnce => "text/x-shellscript-per-once",
            Self::Boothook => "text/cloud-boothook",
            Self::Include => "text/x-include-url",
            Self::Jinja => "text/jinja2",
            Self::Handler => "text/part-handler",
            Self::Message => "multipart/mixed",
            Self::Gzip => "application/gzip",
        }
    }
}

impl PartType {
    /// Whether a text can be a part of this type at all.
    fn check(self, at: &str, text: &str) -> Option<Diagnostic> {
        match self {
            Self::Message if !text.is_ascii() => Some(
                Diagnostic::new(at, "a MIME message has ASCII characters only")
                    .hint("encode its parts with base64, as `cloud-init devel make-mime` does"),
            ),
            Self::Message if !has_multipart_header(text) => Some(
                Diagnostic::new(at, "this is not a MIME message of several parts")
                    .hint("it begins with headers, `Content-Type: multipart/…` among them"),
            ),
            Self::Gzip if !is_gzip(text) => Some(
                Diagnostic::new(at, "this is not gzip in base64")
                    .hint("write what `gzip -c FILE | base64` gives"),
            ),
            _ => None,
        }
    }
}

fn has_multipart_header(text: &str) -> bool {
    let headers = text.lines().take_while(|line| !line.trim().is_empty());
    let mut lower = headers.map(str::to_ascii_lowercase);
    lower.any(|line| {
        line.strip_prefix("content-type:").is_some_and(|kind| kind.trim().starts_with("multipart/"))
    })
}

/// The first bytes of every gzip file (`1f 8b 08`) are `H4sI` in base64.
fn is_gzip(text: &str) -> bool {
    let letter = |c: char| c.is_ascii_alphanumeric() || "+/=".contains(c);
    let mut length = 0;
    let plain = text.chars().filter(|c| !c.is_ascii_whitespace()).all(|c| {
        length += 1;
        letter(c)
    });
    text.trim_start().starts_with("H4sI") && plain && length % 4 == 0
}

/// A layer as the site keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MetadataLayer {
    pub name: Name,
    pub spec: MetadataLayerSpec,
    pub revision: u64,
}

/// A reference to a secret; a layer never contains the secret itself. Written as `{secret: {file:
/// NAME}}` in place of a value.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Secret {
    /// A file below the server's directory for secrets.
    File(String),
    /// A variable in the server's environment.
    Env(String),
    /// The value itself, encrypted with age for the server.
    Age(String),
}

/// Why a value is not a reference to a secret. Each message is the remedy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseSecretError {
    #[error("use one of `{{file: NAME}}`, `{{env: NAME}}` and `{{age: TEXT}}`")]
    Kind,
    #[error("a file is named from the directory for secrets: `db/password`")]
    File,
    #[error("a variable is called `{SECRET_VARIABLES}…`")]
    Variable,
    #[error("write what `age --armor` gives")]
    Age,
    #[error("longer than {MAX_AGE} bytes")]
    TooLong,
}

impl Secret {
    /// The value as a reference, if it is one; an error if it is an invalid reference.
    pub fn in_value(value: &Value) -> Option<Result<Self, ParseSecretError>> {
        let Value::Object(map) = value else { return None };
        let inner = map.get("secret").filter(|inner| map.len() == 1 && inner.is_object())?;
        let secret = Self::deserialize(inner).map_err(|_| ParseSecretError::Kind);
        Some(secret.and_then(|secret| secret.check().map(|()| secret)))
    }

    pub(crate) fn check(&self) -> Result<(), ParseSecretError> {
        match self {
            Self::File(path) => {
                let plain = |part: &str| {
                    !part.is_empty() && part != "." && part != ".." && !part.contains('\\')
                };
                let confined = path.split('/').all(plain) && !path.contains(char::is_control);
                if !confined || path.len() > MAX_REFERENCE {
                    return Err(ParseSecretError::File);
                }
            }
            Self::Env(name) => {
                let part = |c: char| c.is_ascii_alphanumeric() || c == '_';
                let ours = name.starts_with(SECRET_VARIABLES) && name.chars().all(part);
                if !ours || name.len() > MAX_REFERENCE {
                    return Err(ParseSecretError::Variable);
                }
            }
            Self::Age(text) => {
                if !text.trim_start().starts_with("-----BEGIN AGE ENCRYPTED FILE-----") {
                    return Err(ParseSecretError::Age);
                }
                if text.len() > MAX_AGE {
                    return Err(ParseSecretError::TooLong);
                }
            }
        }
        Ok(())
    }
}

impl MetadataLayerSpec {
    /// The target of the layer.
    pub fn level(&self) -> Option<Level<'_>> {
        self.selector.as_ref()?.level()
    }

    pub fn check(&self) -> Vec<Diagnostic> {
        let mut diagnostics = Vec::new();
        diagnostics.extend(self.check_selector());
        if let Some(diagnostic) = self.check_size() {
            // A document that is too large must not be examined further.
            diagnostics.push(diagnostic);
            return diagnostics;
        }
        if let Some(hostname) = &self.hostname
            && (hostname.is_empty() || hostname.len() > MAX_HOSTNAME)
        {
            let message = format!("a host name has 1 to {MAX_HOSTNAME} characters");
            diagnostics.push(Diagnostic::new("hostname", message));
        }
        self.check_public_keys(&mut diagnostics);
        for (key, hint) in RESERVED {
            if self.meta_data.contains_key(key) {
                let diagnostic =
                    Diagnostic::new(format!("meta_data.{key}"), "hoist sets this key itself");
                diagnostics.push(diagnostic.hint(hint));
            }
        }
        for (at, map) in self.maps() {
            check_map(at, map, &mut diagnostics);
        }
        self.check_parts(&mut diagnostics);
        self.check_replace(&mut diagnostics);
        diagnostics
    }

    /// Whether it refers to a secret anywhere.
    pub fn has_secrets(&self) -> bool {
        let in_maps = self.maps().into_iter().any(|(_, map)| map.values().any(has_secret));
        in_maps || self.parts.iter().any(|part| has_secret(&part.content))
    }

    /// Its maps, by the names of their fields.
    pub fn maps(&self) -> [(&'static str, &Map<String, Value>); 3] {
        [
            ("meta_data", &self.meta_data),
            ("user_data", &self.user_data),
            ("vendor_data", &self.vendor_data),
        ]
    }

    fn check_selector(&self) -> Option<Diagnostic> {
        let remedy = "write one of `*`, `partition:NAME`, `group:NAME`, `PARTITION/GROUP` and \
                      `node:NAME`";
        let Some(selector) = &self.selector else {
            return Some(Diagnostic::new("selector", "missing").hint(remedy));
        };
        if selector.level().is_some() {
            return None;
        }
        let message =
            format!("a layer speaks of the site, a partition, a group or a node, not `{selector}`");
        let hint = format!("{remedy}; a group may have a selector of its own");
        Some(Diagnostic::new("selector", message).hint(hint))
    }

    fn check_size(&self) -> Option<Diagnostic> {
        let bounds = Bounds::of(self.maps().map(|(_, map)| map));
        if bounds.depth > MAX_LAYER_DEPTH {
            let message = format!("nested deeper than {MAX_LAYER_DEPTH} levels");
            return Some(Diagnostic::new("", message));
        }
        let too_many = bounds.values > MAX_LAYER_VALUES;
        let too_large = || serde_json::to_vec(self).map_or(usize::MAX, |text| text.len());
        if too_many || too_large() > MAX_LAYER {
            let message = format!("more than {MAX_LAYER_VALUES} values or {MAX_LAYER} bytes");
            return Some(Diagnostic::new("", message).hint("make several layers of it"));
        }
        None
    }

    fn check_public_keys(&self, diagnostics: &mut Vec<Diagnostic>) {
        if self.public_keys.len() > MAX_PUBLIC_KEYS {
            let message = format!("more than {MAX_PUBLIC_KEYS}");
            diagnostics.push(Diagnostic::new("public_keys", message));
        }
        for (i, key) in self.public_keys.iter().enumerate() {
            let at = format!("public_keys[{i}]");
            if key.trim().is_empty() || key.len() > MAX_PUBLIC_KEY {
                diagnostics.push(Diagnostic::new(
                    at,
                    format!("a key has 1 to {MAX_PUBLIC_KEY} characters"),
                ));
            } else if key.contains(char::is_control) {
                let hint = "write one key per entry";
                diagnostics.push(Diagnostic::new(at, "a key is one line").hint(hint));
            } else if key.contains("PRIVATE KEY") {
                let hint = "write the public half, which ends in `.pub`";
                diagnostics.push(Diagnostic::new(at, "this is a private key").hint(hint));
            }
        }
    }

    fn check_parts(&self, diagnostics: &mut Vec<Diagnostic>) {
        if self.parts.len() > MAX_PARTS {
            diagnostics.push(Diagnostic::new("parts", format!("more than {MAX_PARTS}")));
        }
        for (i, part) in self.parts.iter().enumerate() {
            let at = format!("parts[{i}].content");
            match &part.content {
                Value::String(text) if text.trim().is_empty() => {
                    diagnostics.push(Diagnostic::new(at, "empty").hint("leave the part out"));
                }
                Value::String(text) => diagnostics.extend(part.r#type.check(&at, text)),
                value if Secret::in_value(value).is_some() => check_value(&at, value, diagnostics),
                _ => diagnostics
                    .push(Diagnostic::new(at, "must be a text or a reference to a secret")),
            }
        }
    }

    fn check_replace(&self, diagnostics: &mut Vec<Diagnostic>) {
        if self.replace.len() > MAX_REPLACE {
            diagnostics.push(Diagnostic::new("replace", format!("more than {MAX_REPLACE}")));
        }
        for (i, way) in self.replace.iter().enumerate() {
            if let Err(diagnostic) = self.check_way(way) {
                diagnostics.push(Diagnostic { at: format!("replace[{i}]"), ..diagnostic });
            }
        }
    }

    /// A way leads to one key of this layer and cannot be taken for a way to another.
    fn check_way(&self, way: &str) -> Result<(), Diagnostic> {
        let diagnostic = |message: String| Diagnostic::new("", message);
        if way.len() > MAX_WAY {
            return Err(diagnostic(format!("longer than {MAX_WAY} bytes")));
        }
        let steps = steps(way).ok_or_else(|| {
            diagnostic(format!("`{way}` leads to no key"))
                .hint(r#"write keys with dots between them, those with dots in them as `"a.b"`"#)
        })?;
        let nothing = || {
            diagnostic(format!("the layer has no value under `{way}`"))
                .hint("name a key of this layer, such as `user_data.ntp.servers`")
        };
        let (field, inside) = steps.split_first().ok_or_else(nothing)?;
        if inside.is_empty() {
            let keys = field.key == "public_keys" && !self.public_keys.is_empty();
            return if keys { Ok(()) } else { Err(nothing()) };
        }
        let map = self.maps().into_iter().find(|(at, _)| *at == field.key);
        let (at, map) = map.ok_or_else(nothing)?;
        let mut found = Vec::new();
        find(map, inside, &mut vec![at.to_owned()], &mut found);
        let meant = steps.iter().map(|step| step.key.as_str());
        match found.as_slice() {
            [] => Err(nothing()),
            [one] if meant.eq(one.iter().map(String::as_str)) => Ok(()),
            some => {
                let ways: Vec<_> = some.iter().map(|keys| format!("`{}`", written(keys))).collect();
                let message = format!("`{way}` may also be a key with dots in it");
                Err(diagnostic(message).hint(format!("write {}", ways.join(" or "))))
            }
        }
    }
}

/// One key on a way through maps.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Step {
    key: String,
    /// Its dots are its own.
    quoted: bool,
}

/// The keys of a path: `user_data.apt.sources."my.list"` has four. `None` for an invalid path.
pub fn keys_on(way: &str) -> Option<Vec<String>> {
    Some(steps(way)?.into_iter().map(|step| step.key).collect())
}

/// Keys as a way, from which they can be read again.
pub fn written<K: AsRef<str>>(keys: &[K]) -> String {
    keys.iter().map(|key| written_key(key.as_ref())).collect::<Vec<_>>().join(".")
}

/// One key as it stands on a way.
pub fn written_key(key: &str) -> String {
    if !key.is_empty() && !key.contains('.') && !key.starts_with('"') {
        return key.to_owned();
    }
    format!("\"{}\"", key.replace('\\', "\\\\").replace('"', "\\\""))
}

fn steps(way: &str) -> Option<Vec<Step>> {
    let mut steps = Vec::new();
    let mut rest = way;
    loop {
        let (step, after) = if let Some(inside) = rest.strip_prefix('"') {
            quoted(inside)?
        } else {
            let (key, after) = rest.split_at(rest.find('.').unwrap_or(rest.len()));
            (Step { key: key.to_owned(), quoted: false }, after)
        };
        if step.key.is_empty() && !step.quoted {
            return None;
        }
        steps.push(step);
        match after.strip_prefix('.') {
            Some(more) => rest = more,
            None => return after.is_empty().then_some(steps),
        }
    }
}

/// A key up to its closing quote, and the rest of the text.
fn quoted(text: &str) -> Option<(Step, &str)> {
    let mut key = String::new();
    let mut letters = text.char_indices();
    loop {
        match letters.next()? {
            (at, '"') => return Some((Step { key, quoted: true }, &text[at + 1..])),
            (_, '\\') => key.push(letters.next().map(|(_, c)| c).filter(|c| r#""\"#.contains(*c))?),
            (_, letter) => key.push(letter),
        }
    }
}

/// Every key that steps may lead to, if dots between them may be dots in keys.
fn find(
    map: &Map<String, Value>,
    steps: &[Step],
    way: &mut Vec<String>,
    found: &mut Vec<Vec<String>>,
) {
    let mut key = String::new();
    for (i, step) in steps.iter().enumerate() {
        if i > 0 {
            if step.quoted || steps[0].quoted || key.len() > MAX_KEY {
                return;
            }
            key.push('.');
        }
        key.push_str(&step.key);
        let Some(value) = map.get(&key) else { continue };
        way.push(key.clone());
        match (&steps[i + 1..], value) {
            ([], _) => found.push(way.clone()),
            (rest, Value::Object(map)) => find(map, rest, way, found),
            _ => {}
        }
        way.pop();
    }
}

fn check_map(at: &str, map: &Map<String, Value>, diagnostics: &mut Vec<Diagnostic>) {
    for (key, value) in map {
        if key.len() > MAX_KEY || key.contains(char::is_control) {
            let message = format!("a key has at most {MAX_KEY} bytes, and no control characters");
            diagnostics.push(Diagnostic::new(at, message));
            continue;
        }
        check_value(&format!("{at}.{key}"), value, diagnostics);
    }
}

/// `{secret: {file: NAME}, other: …}`: meant as a reference, and read as none.
fn is_crowded_secret(value: &Value) -> bool {
    let Value::Object(map) = value else { return false };
    let Some(Value::Object(inner)) = map.get("secret") else { return false };
    map.len() > 1 && ["file", "env", "age"].iter().any(|place| inner.contains_key(*place))
}

/// `{secret: text}`: the author meant a reference, but wrote the secret itself or forgot `file`.
/// With further keys, or with a number, a boolean or a list, it is ordinary data.
fn is_bare_secret(value: &Value) -> bool {
    let Value::Object(map) = value else { return false };
    map.len() == 1 && matches!(map.get("secret"), Some(Value::String(_) | Value::Null))
}

fn has_secret(value: &Value) -> bool {
    if Secret::in_value(value).is_some() {
        return true;
    }
    match value {
        Value::Object(map) => map.values().any(has_secret),
        Value::Array(list) => list.iter().any(has_secret),
        _ => false,
    }
}

/// Secrets that are written as such have to be readable as such.
fn check_value(at: &str, value: &Value, diagnostics: &mut Vec<Diagnostic>) {
    match Secret::in_value(value) {
        Some(Ok(_)) => return,
        Some(Err(error)) => {
            let diagnostic = Diagnostic::new(at, "this is not a reference to a secret");
            diagnostics.push(diagnostic.hint(error.to_string()));
            return;
        }
        None if is_bare_secret(value) => {
            let message = "a layer says where a secret is, not what it is";
            let hint = "write `{secret: {file: NAME}}`, with `env` or `age` as well; for a key of \
                        your own, another word than `secret` alone in its map";
            diagnostics.push(Diagnostic::new(at, message).hint(hint));
            return;
        }
        None if is_crowded_secret(value) => {
            let message = "a reference to a secret has no other keys beside it";
            let hint = "write `{secret: {file: NAME}}` in place of the whole value";
            diagnostics.push(Diagnostic::new(at, message).hint(hint));
            return;
        }
        None => {}
    }
    match value {
        Value::Object(map) => check_map(at, map, diagnostics),
        Value::Array(list) => {
            for (i, value) in list.iter().enumerate() {
                check_value(&format!("{at}[{i}]"), value, diagnostics);
            }
        }
        _ => {}
    }
}

/// How much there is in some maps. Counting ends where it is too much anyway.
#[derive(Default)]
pub(crate) struct Bounds {
    pub(crate) values: usize,
    pub(crate) depth: usize,
}

impl Bounds {
    pub(crate) fn of<'v>(maps: impl IntoIterator<Item = &'v Map<String, Value>>) -> Self {
        let mut bounds = Self::default();
        for map in maps {
            map.values().for_each(|value| bounds.add(value, 1));
        }
        bounds
    }

    fn add(&mut self, value: &Value, depth: usize) {
        self.values += 1;
        self.depth = self.depth.max(depth);
        if self.values > MAX_LAYER_VALUES || self.depth > MAX_LAYER_DEPTH {
            return;
        }
        match value {
            Value::Object(map) => map.values().for_each(|value| self.add(value, depth + 1)),
            Value::Array(list) => list.iter().for_each(|value| self.add(value, depth + 1)),
            _ => {}
        }
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spec(value: Value) -> MetadataLayerSpec {
        serde_json::from_value(value).expect("a spec")
    }

    fn diagnostics(value: Value) -> Vec<String> {
        spec(value).check().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_layer_speaks_of_one_thing() {
        for selector in ["*", "partition:p1", "group:gpu", "p1/gpu", "p1/*", "node:n1"] {
            assert_eq!(diagnostics(json!({ "selector": selector })), [""; 0], "{selector}");
        }
        for selector in
            ["gpu", "node:n*", "group:g*", "*/g*", "!node:n1", "node:a,node:b", "role:compute"]
        {
            let diagnostics = diagnostics(json!({ "selector": selector }));
            assert!(diagnostics[0].contains("; write one of `*`"), "{selector}: {diagnostics:?}");
        }
        assert!(diagnostics(json!({}))[0].contains("missing"));
    }

    #[test]
    fn secrets_are_references_that_stay_in_their_place() {
        let secret = |secret: Value| json!({ "selector": "*", "user_data": { "users": [{ "passwd": { "secret": secret } }] } });
        let age = "-----BEGIN AGE ENCRYPTED FILE-----\nx\n-----END AGE ENCRYPTED FILE-----\n";
        for good in [
            json!({ "file": "db/password" }),
            json!({ "env": "HOIST_SECRET_DB" }),
            json!({ "age": age }),
        ] {
            assert_eq!(diagnostics(secret(good.clone())), [""; 0], "{good}");
        }
        for bad in [
            json!({ "file": "/etc/shadow" }),
            json!({ "file": "../ca/key.pem" }),
            json!({ "file": "a/../../b" }),
            json!({ "file": "" }),
            json!({ "file": "x".repeat(MAX_REFERENCE + 1) }),
            json!({ "env": "PATH" }),
            json!({ "env": "HOIST_SECRET_A=B" }),
            json!({ "age": "hunter2" }),
            json!({ "vault": "x" }),
            json!({}),
            json!({ "file": "a", "env": "HOIST_SECRET_A" }),
        ] {
            let diagnostics = diagnostics(secret(bad.clone()));
            assert_eq!(diagnostics.len(), 1, "{bad}: {diagnostics:?}");
            assert!(diagnostics[0].starts_with("user_data.users[0].passwd: "), "{diagnostics:?}");
            assert!(!diagnostics[0].contains("hunter2"), "{diagnostics:?}");
        }
        for bare in [json!("hunter2"), json!("{{ node.name }}"), json!(""), Value::Null] {
            let diagnostics = diagnostics(secret(bare.clone()));
            assert_eq!(diagnostics.len(), 1, "{bare}: {diagnostics:?}");
            let expected = "user_data.users[0].passwd: a layer says where a secret is";
            assert!(diagnostics[0].starts_with(expected), "{diagnostics:?}");
            assert!(diagnostics[0].contains("{secret: {file: NAME}}"), "{diagnostics:?}");
            assert!(!diagnostics[0].contains("hunter2"), "{diagnostics:?}");
        }
        for place in ["file", "env", "age"] {
            let crowded = json!({ "secret": { place: "x" }, "b": 1 });
            for value in [json!({ "x": crowded }), json!({ "x": [crowded] })] {
                let diagnostics = diagnostics(json!({ "selector": "*", "user_data": value }));
                assert_eq!(diagnostics.len(), 1, "{diagnostics:?}");
                assert!(
                    diagnostics[0].contains("no other keys beside it; write"),
                    "{diagnostics:?}"
                );
            }
        }
        for data in [
            json!({ "secret": "a text", "name": "db" }),
            json!({ "secret": { "path": "x" }, "name": "db" }),
            json!({ "secret": true }),
            json!({ "secret": 7 }),
            json!({ "secret": ["a"] }),
            json!({ "secrets": "a text" }),
            json!("secret"),
        ] {
            let layer = json!({ "selector": "*", "user_data": { "x": data } });
            assert_eq!(diagnostics(layer.clone()), [""; 0], "{layer}");
        }
    }

    #[test]
    fn reserved_and_unknown_keys_are_refused() {
        for (value, expected) in [
            (json!({ "meta_data": { "instance-id": "i" } }), "meta_data.instance-id"),
            (json!({ "meta_data": { "hostname": "h" } }), "write `hostname` beside"),
            (json!({ "replace": ["user_data.ntp"] }), "has no value under `user_data.ntp`"),
            (json!({ "replace": ["public_keys"] }), "has no value"),
            (json!({ "public_keys": ["a\nb"] }), "a key is one line"),
            (json!({ "public_keys": ["-----BEGIN OPENSSH PRIVATE KEY-----"] }), "private"),
            (json!({ "hostname": "" }), "hostname"),
            (
                json!({ "parts": [{ "document": "user-data", "type": "text/x-shellscript", "content": 7 }] }),
                "parts[0].content",
            ),
            (
                json!({ "parts": [{ "document": "user-data", "type": "text/x-shellscript", "content": " " }] }),
                "empty",
            ),
        ] {
            let mut value = value;
            value["selector"] = json!("*");
            let diagnostics = diagnostics(value);
            assert_eq!(diagnostics.len(), 1, "{diagnostics:?}");
            assert!(diagnostics[0].contains(expected), "{diagnostics:?}");
        }
        let replaced = json!({
            "selector": "*", "public_keys": ["k"], "user_data": { "ntp": { "servers": ["a"] } },
            "replace": ["user_data.ntp.servers", "user_data.ntp", "public_keys"],
        });
        assert_eq!(diagnostics(replaced), [""; 0]);
    }

    #[test]
    fn a_way_leads_to_one_key_and_says_so() {
        let faults_of = |way: &str, sources: Value| {
            diagnostics(json!({
                "selector": "*", "user_data": { "apt": { "sources": sources } },
                "replace": [format!("user_data.apt.sources{way}")],
            }))
        };
        let list = || json!({ "my.list": { "source": "x" } });
        for way in [r#"."my.list""#, r#"."my.list".source"#, ""] {
            assert_eq!(faults_of(way, list()), [""; 0], "{way}");
        }
        // Not guessed.
        let told = faults_of(".my.list", list());
        assert!(told[0].starts_with("replace[0]: "), "{told:?}");
        assert!(told[0].ends_with(r#"write `user_data.apt.sources."my.list"`"#), "{told:?}");
        let both = json!({ "my.list": 1, "my": { "list": 2 } });
        let told = faults_of(".my.list", both.clone());
        let hint = r#"`user_data.apt.sources.my.list` or `user_data.apt.sources."my.list"`"#;
        assert!(told[0].ends_with(hint), "{told:?}");
        assert_eq!(faults_of(r#"."my.list""#, both.clone()), [""; 0]);
        assert_eq!(faults_of(r#"."my"."list""#, both), [""; 0]);
        for way in [".", r#".""#, r#"."my.list"x"#, r#"."a\n""#, r#"."my.list"#, ".."] {
            assert!(faults_of(way, list())[0].contains("leads to no key"), "{way}");
        }
        let long = format!(".{}", "x".repeat(MAX_WAY));
        assert!(faults_of(&long, list())[0].contains("longer than"));
        let at_limit = &long[..MAX_WAY - "user_data.apt.sources".len()];
        assert!(faults_of(at_limit, list())[0].contains("has no value"));
    }

    proptest::proptest! {
        #[test]
        fn every_key_can_be_written_and_read_again(
            keys in proptest::collection::vec("[a.\"\\\\ \\[é]{0,5}", 1..4)
        ) {
            proptest::prop_assert_eq!(keys_on(&written(&keys)), Some(keys));
        }
    }

    #[test]
    fn a_layer_is_bounded_in_size_depth_and_number() {
        let layer = |value: Value| json!({ "selector": "*", "user_data": { "x": value } });
        let nested = |levels: usize| (1..levels).fold(json!(1), |inner, _| json!([inner]));
        assert_eq!(diagnostics(layer(nested(MAX_LAYER_DEPTH))), [""; 0]);
        assert!(diagnostics(layer(nested(MAX_LAYER_DEPTH + 1)))[0].contains("deeper"));
        let keyed = |key: String| layer(json!([{ key: 1 }]));
        assert_eq!(diagnostics(keyed("k".repeat(MAX_KEY))), [""; 0]);
        for key in ["k".repeat(MAX_KEY + 1), "a\nb".to_owned()] {
            assert!(diagnostics(keyed(key))[0].starts_with("user_data.x[0]: a key has"));
        }
        let many = |count: usize| layer(Value::Array(vec![json!(1); count - 1]));
        assert_eq!(diagnostics(many(MAX_LAYER_VALUES)), [""; 0]);
        assert!(diagnostics(many(MAX_LAYER_VALUES + 1))[0].contains("values"));
        let rest = serde_json::to_vec(&spec(layer(json!("")))).expect("plain").len();
        assert_eq!(diagnostics(layer(json!("x".repeat(MAX_LAYER - rest)))), [""; 0]);
        assert!(diagnostics(layer(json!("x".repeat(MAX_LAYER - rest + 1))))[0].contains("bytes"));
    }
}
