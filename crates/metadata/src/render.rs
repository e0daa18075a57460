//! The four documents of a node, as a function of the roster.
//!
//! Does not belong here: caching (`renderer`), merging of layers (`merge`), secrets in values
//! (`secret`).

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use hoist_model::metadata_layer::{PartOf, PartType};
use hoist_model::{GroupKey, GroupName, MetadataLayerSpec, Name, Nid, Node};
use hoist_site::Roster;
use hoist_template::NodeValues;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::layer::{Layer, LayerFailure, Said, has_client_syntax};
use crate::layers::Layers;
use crate::merge::{MergedLayers, Origin, TraceEntry};
use crate::mime::PartForm;
use crate::secret::Secrets;
use crate::{Document, Documents, mime, network, yaml};

/// Most that all layers of a node may come to in its documents, as they are written: indentation and
/// quotes can make many times as much of a text.
pub const MAX_SAID: usize = 1024 * 1024;

/// Limit of the keys in a trace of origins.
pub const MAX_TRACE: usize = 4 * 1024 * 1024;

/// How deep `OpenCHAMI`'s tree has what layers say in meta-data.
const OPENCHAMI_INDENT: usize = 14;

/// Overhead of a part in a message.
const PART: usize = 512;

/// Longest description of a group in a document.
const MAX_DESCRIPTION: usize = 1024;

/// Longest host name that a machine can have.
const MAX_HOSTNAME: usize = 253;

/// Inputs of a rendering besides the site.
#[derive(Debug, Clone, Copy)]
pub struct With<'a> {
    /// The node's seed token, for URLs in templates.
    pub token: &'a str,
    pub secrets: Secrets<'a>,
    /// Whether to tell where every key comes from.
    pub trace: bool,
}

/// The documents of a node with the origins of their values.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RenderedDocuments {
    pub documents: Documents,
    /// What meta-data says, for those who write it in another form.
    pub meta_data: Map<String, Value>,
    /// The same of network-config.
    pub network_config: Option<Map<String, Value>>,
    pub trace: Vec<(Document, TraceEntry)>,
    /// The layers of the node, including failed ones.
    pub layers: Vec<Name>,
    /// Layers that are left out, and why.
    pub failed: Vec<LayerFailure>,
    /// Content that is served but probably without the intended effect.
    pub warnings: Vec<String>,
}

/// The values visible to a template.
#[derive(Debug, Serialize)]
struct View<'a> {
    node: NodeValues<'a>,
    instance_id: String,
    generation: u64,
    token: &'a str,
}

impl<'a> View<'a> {
    fn of(roster: &Roster, node: &'a Node, token: &'a str) -> Self {
        Self {
            node: NodeValues::of(roster, node, None),
            instance_id: instance_id(node),
            generation: node.generation,
            token,
        }
    }
}

/// Renders one layer alone for a node and returns its failure.
pub(crate) fn validate(
    roster: &Roster,
    layer: &Layer,
    node: &Node,
    with: With<'_>,
) -> Option<LayerFailure> {
    let said = layer.say(&View::of(roster, node, with.token), with.secrets);
    said.and_then(|said| check_hostname(layer, &said)).err()
}

pub fn render(roster: &Roster, layers: &Layers, node: &Node, with: With<'_>) -> RenderedDocuments {
    let view = View::of(roster, node, with.token);
    let speaking = layers.of_node(roster, node);
    let names = speaking.iter().map(|layer| layer.source.name.clone()).collect();
    let (spoken, failed) = hear(&speaking, &view, with.secrets);
    let mut work = Work::new(roster, node, spoken, with.trace);
    work.lay();
    let meta_data = work.meta_data(&view);
    let user_data = work.config(PartOf::UserData);
    let vendor_data = work.config(PartOf::VendorData);
    let network_config = work.network_config();
    let warnings = work.warnings();
    let network_text = network_config.as_ref().map(|map| yaml::document(map, |_| false));
    let documents = Documents {
        meta_data: yaml::document(&meta_data, |_| false).into(),
        user_data,
        vendor_data,
        network_config: network_text.unwrap_or_default().into(),
    };
    RenderedDocuments {
        documents,
        meta_data,
        network_config,
        trace: work.trace,
        layers: names,
        failed,
        warnings,
    }
}

/// Stable over restarts, controllers and stores; changes only when the node is created again.
pub fn instance_id(node: &Node) -> String {
    format!("{}-g{}", node.id, node.generation)
}

/// The content of the layers, without those that fail.
fn hear<'l>(
    speaking: &[&'l Arc<Layer>],
    view: &impl Serialize,
    secrets: Secrets<'_>,
) -> (Vec<(&'l Layer, Said)>, Vec<LayerFailure>) {
    let mut spoken: Vec<(&Layer, Said)> = Vec::new();
    let mut failed = Vec::new();
    let scale = Scale::of(speaking);
    let mut size = 0;
    for layer in speaking {
        let said = layer.say(view, secrets).and_then(|said| {
            check_hostname(layer, &said)?;
            let weight = scale.weigh(layer, &said);
            if size + weight > MAX_SAID {
                let reason = format!("with it the documents are larger than {MAX_SAID} bytes");
                return Err(layer.failed("", reason));
            }
            Ok((said, weight))
        });
        match said {
            Ok((said, weight)) => {
                size += weight;
                spoken.push((layer, said));
            }
            Err(why) => failed.push(why),
        }
    }
    for of in [PartOf::UserData, PartOf::VendorData] {
        without_foreign_syntax(of, &mut spoken, &mut failed);
    }
    (spoken, failed)
}

/// How much layers come to in documents. Merged they are no longer than one after the other.
#[derive(Debug, Clone, Copy)]
struct Scale {
    /// Meta-data may have a second tree.
    openchami: bool,
    /// Documents may be messages, with everything in them encoded.
    parts: bool,
}

impl Scale {
    fn of(speaking: &[&Arc<Layer>]) -> Self {
        let any = |fits: fn(&MetadataLayerSpec) -> bool| {
            speaking.iter().any(|layer| fits(&layer.source.spec))
        };
        Self {
            openchami: any(|spec| spec.openchami == Some(true)),
            parts: any(|spec| !spec.parts.is_empty()),
        }
    }

    /// Bytes that a layer adds, at most.
    fn weigh(self, layer: &Layer, said: &Said) -> usize {
        let verbatim = verbatim(layer.source.spec.client_templates);
        let meta = meta_of(said);
        let mut weight = yaml::length(&meta, |_| false, 0);
        if self.openchami {
            // Among those of its group, and as one of the keys that are there twice.
            weight += 2 * yaml::length(&meta, |_| false, OPENCHAMI_INDENT);
        }
        for of in [PartOf::UserData, PartOf::VendorData] {
            weight += self.encoded(yaml::length(map_of(said, of), verbatim, 0));
            if contributes(said, of) {
                // In the comment, and in the header of a message.
                weight += 2 * self.encoded(credit(layer).len() + 2);
            }
        }
        let parts = said.parts.iter().map(|(_, _, text)| PART + self.encoded(text.len()));
        weight + parts.sum::<usize>()
    }

    /// Base64 makes four letters of three, in lines.
    fn encoded(self, length: usize) -> usize {
        if self.parts { length + length / 2 } else { length }
    }
}

/// The meta-data of a layer.
fn meta_of(said: &Said) -> Map<String, Value> {
    let mut meta = said.meta_data.clone();
    if let Some(hostname) = &said.hostname {
        meta.insert("hostname".to_owned(), hostname.as_str().into());
        meta.insert("local-hostname".to_owned(), hostname.as_str().into());
    }
    if !said.public_keys.is_empty() {
        meta.insert("public-keys".to_owned(), json!(said.public_keys));
    }
    meta
}

fn contributes(said: &Said, of: PartOf) -> bool {
    !map_of(said, of).is_empty() || said.parts.iter().any(|part| part.0 == of)
}

/// A layer as documents name it.
fn credit(layer: &Layer) -> String {
    let selector = layer.source.spec.selector.as_ref();
    let selector = selector.map(ToString::to_string).unwrap_or_default();
    format!("{} ({selector})", layer.source.name)
}

/// Which texts stand in a document letter by letter: those for the client's templates.
fn verbatim(client: bool) -> fn(&str) -> bool {
    if client { has_client_syntax } else { |_| false }
}

fn check_hostname(layer: &Layer, said: &Said) -> Result<(), LayerFailure> {
    let Some(name) = &said.hostname else { return Ok(()) };
    let label = |label: &str| {
        let part = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
        (1..=63).contains(&label.len())
            && label.bytes().all(part)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    if name.len() <= MAX_HOSTNAME && name.split('.').all(label) {
        return Ok(());
    }
    Err(layer.failed("hostname", format!("`{}` is not a host name", name.escape_debug())))
}

/// One document goes through the client's templates as a whole: a layer whose texts are not meant
/// for them must not look as if they were.
fn without_foreign_syntax(
    of: PartOf,
    spoken: &mut Vec<(&Layer, Said)>,
    failed: &mut Vec<LayerFailure>,
) {
    let is_client = |layer: &Layer, said: &Said| {
        layer.source.spec.client_templates && !map_of(said, of).is_empty()
    };
    let client = spoken.iter().find(|(layer, said)| is_client(layer, said));
    let Some(client) = client.map(|(layer, _)| layer.source.name.clone()) else { return };
    spoken.retain(|(layer, said)| {
        if layer.source.spec.client_templates {
            return true;
        }
        let at = field(of);
        let Some(place) = syntax_in(map_of(said, of), at) else { return true };
        let reason = format!(
            "it has `{{{{`, `{{%` or `{{#` in it, and would go through the client's templates \
             with layer `{client}`; write it in a layer with `client_templates: true`, between \
             `{{% raw %}}` and `{{% endraw %}}`"
        );
        failed.push(layer.failed(place, reason));
        false
    });
}

fn syntax_in(map: &Map<String, Value>, at: &str) -> Option<String> {
    map.iter().find_map(|(key, value)| {
        let at = format!("{at}.{key}");
        if has_client_syntax(key) { Some(at) } else { syntax_in_value(value, at) }
    })
}

fn syntax_in_value(value: &Value, at: String) -> Option<String> {
    match value {
        Value::String(text) => has_client_syntax(text).then_some(at),
        Value::Object(map) => syntax_in(map, &at),
        Value::Array(list) => list
            .iter()
            .enumerate()
            .find_map(|(i, value)| syntax_in_value(value, format!("{at}[{i}]"))),
        _ => None,
    }
}

fn map_of(said: &Said, of: PartOf) -> &Map<String, Value> {
    match of {
        PartOf::UserData => &said.user_data,
        PartOf::VendorData => &said.vendor_data,
    }
}

/// The field of a layer.
fn field(of: PartOf) -> &'static str {
    match of {
        PartOf::UserData => "user_data",
        PartOf::VendorData => "vendor_data",
    }
}

struct Work<'r> {
    roster: &'r Roster,
    node: &'r Node,
    spoken: Vec<(&'r Layer, Said)>,
    meta: MergedLayers,
    user: MergedLayers,
    vendor: MergedLayers,
    tracing: bool,
    trace: Vec<(Document, TraceEntry)>,
}

impl<'r> Work<'r> {
    fn new(
        roster: &'r Roster,
        node: &'r Node,
        spoken: Vec<(&'r Layer, Said)>,
        tracing: bool,
    ) -> Self {
        Self {
            roster,
            node,
            spoken,
            tracing,
            meta: MergedLayers::default(),
            user: MergedLayers::default(),
            vendor: MergedLayers::default(),
            trace: Vec::new(),
        }
    }

    fn lay(&mut self) {
        self.lay_facts();
        if self.wants(|spec| spec.network_config) {
            for (network, server) in network::time_servers(self.roster, self.node) {
                let servers = json!({ "ntp": { "servers": [server] } });
                let origin = Origin::from(format!("network:{}", network.name));
                self.vendor.lay(servers.as_object().expect("a map"), &origin, &[]);
            }
        }
        for (layer, said) in &self.spoken {
            let keys = ["public-keys".to_owned()];
            let mut replace = layer.replaced("meta_data");
            if !layer.replaced("public_keys").is_empty() {
                replace.push(&keys);
            }
            self.meta.lay(&meta_of(said), &layer.origin, &replace);
            self.user.lay(&said.user_data, &layer.origin, &layer.replaced("user_data"));
            self.vendor.lay(&said.vendor_data, &layer.origin, &layer.replaced("vendor_data"));
        }
        self.meta.without_repeats("public-keys");
    }

    /// The last layer that says something about it decides.
    fn wants(&self, field: impl Fn(&MetadataLayerSpec) -> Option<bool>) -> bool {
        let said = self.spoken.iter().rev().find_map(|(layer, _)| field(&layer.source.spec));
        said.unwrap_or(false)
    }

    /// What holds without any layer.
    fn lay_facts(&mut self) {
        let node = self.node;
        let spec = &self.node.spec;
        let mut facts = Map::new();
        let mut fact = |key: &str, value: Value| drop(facts.insert(key.to_owned(), value));
        fact("id", node.id.to_string().into());
        fact("name", node.name.as_str().into());
        fact("generation", node.generation.into());
        fact("partition", spec.partition.as_str().into());
        let groups = self.roster.groups_of(node);
        fact("groups", groups.iter().map(GroupName::as_str).collect::<Vec<_>>().into());
        fact("arch", spec.arch.as_str().into());
        let optional = [
            ("xname", spec.xname.map(|xname| xname.to_string().into())),
            ("nid", spec.nid.map(|nid| Nid::get(nid).into())),
            ("role", spec.role.as_deref().map(Value::from)),
            ("subrole", spec.subrole.as_deref().map(Value::from)),
        ];
        for (key, value) in optional {
            if let Some(value) = value {
                fact(key, value);
            }
        }
        if let Some(boot) = self.roster.boot(node) {
            fact("mac", boot.mac.to_string().into());
            if let Some(ip) = boot.ip {
                fact("ip", ip.to_string().into());
            }
        }
        let labels = spec.labels.iter().map(|(key, value)| (key.to_string(), Value::from(value)));
        fact("labels", Value::Object(labels.collect()));
        let mut meta = Map::new();
        meta.insert("instance-id".to_owned(), instance_id(node).into());
        meta.insert("hostname".to_owned(), node.name.as_str().into());
        meta.insert("local-hostname".to_owned(), node.name.as_str().into());
        meta.insert("hoist".to_owned(), Value::Object(facts));
        self.meta.lay(&meta, &Origin::from("hoist"), &[]);
    }

    fn meta_data(&mut self, view: &View<'_>) -> Map<String, Value> {
        if self.wants(|spec| spec.openchami) {
            let tree = self.openchami(view);
            self.meta.lay(&tree, &Origin::from("hoist"), &[]);
        }
        self.note(Document::MetaData);
        self.meta.to_map()
    }

    /// The tree that `OpenCHAMI`'s cloud-init gives, from the keys that it is configured with.
    fn openchami(&self, view: &View<'_>) -> Map<String, Value> {
        let meta = self.meta.to_map();
        let said = |key: &str| meta.get(key).cloned().unwrap_or_else(|| "".into());
        let keys = meta.get("public-keys").cloned().unwrap_or_else(|| json!([]));
        let ip = self.roster.boot(self.node).and_then(|boot| boot.ip);
        let ipv4 = ip.filter(IpAddr::is_ipv4).map(|ip| ip.to_string());
        let tree = json!({ "instance_data": { "v1": {
            "instance_id": view.instance_id,
            "instance_type": said("instance-type"),
            "region": said("region"),
            "availability_zone": said("availability-zone"),
            "local_ipv4": ipv4,
            "cloud_provider": said("cloud-provider"),
            "public_keys": keys,
            "vendor_data": {
                "version": "1.0",
                "cloud_init_base_url": said("cloud-init-base-url"),
                "cluster_name": said("cluster-name"),
                "groups": self.openchami_groups(),
            },
        } } });
        match tree {
            Value::Object(tree) => tree,
            _ => Map::new(),
        }
    }

    /// Every group with its description and what its layers say in meta-data.
    fn openchami_groups(&self) -> Map<String, Value> {
        let partition = &self.node.spec.partition;
        let groups = self.roster.groups_of(self.node).into_iter().map(|name| {
            let key = GroupKey { partition: partition.clone(), name: name.clone() };
            let group = self.roster.group(&key);
            let description = group.map_or("", |group| group.spec.description.as_str());
            let description: String = description.chars().take(MAX_DESCRIPTION).collect();
            let mut about = Map::new();
            about.insert("Description".to_owned(), description.into());
            for (layer, said) in &self.spoken {
                use hoist_model::selector::Level;
                let level = layer.source.spec.level();
                if let Some(Level::Group { name: of, .. }) = level
                    && name.eq_ignore_ascii_case(of)
                {
                    about.extend(said.meta_data.clone());
                }
            }
            (name.to_string(), Value::Object(about))
        });
        groups.collect()
    }

    /// User-data or vendor-data: one cloud-config, and a message of several parts where there is
    /// more than that. Nothing at all rather than an empty cloud-config, of which clients complain.
    fn config(&mut self, of: PartOf) -> Bytes {
        let (document, merged) = match of {
            PartOf::UserData => (Document::UserData, &self.user),
            PartOf::VendorData => (Document::VendorData, &self.vendor),
        };
        let map = merged.to_map();
        self.note(document);
        let parts: Vec<_> = self
            .spoken
            .iter()
            .flat_map(|(layer, said)| said.parts.iter().map(move |part| (*layer, part)))
            .filter(|(_, part)| part.0 == of)
            .enumerate()
            .collect();
        let client = self.spoken.iter().any(|(layer, said)| {
            layer.source.spec.client_templates && !map_of(said, of).is_empty()
        });
        let layers = self.contributors(of);
        let config = (!map.is_empty()).then(|| cloud_config(&map, &layers, client));
        if parts.is_empty() {
            return config.unwrap_or_default().into();
        }
        let traced = parts.iter().map(|(i, (layer, (_, kind, _)))| TraceEntry {
            key: format!("parts[{i}] {}", kind.as_str()),
            from: Arc::clone(&layer.origin),
            over: Vec::new(),
        });
        if self.tracing {
            self.trace.extend(traced.map(|traced| (document, traced)));
        }
        let kind = if client { "text/jinja2" } else { "text/cloud-config" };
        let first = config.as_ref().map(|text| mime::Part {
            form: PartForm::Text,
            kind,
            name: "cloud-config".to_owned(),
            text,
        });
        let others = parts.iter().map(|(i, (layer, (_, kind, text)))| mime::Part {
            form: form(*kind),
            kind: kind.as_str(),
            name: format!("{}-{i}", layer.source.name),
            text,
        });
        let all: Vec<_> = first.into_iter().chain(others).collect();
        mime::message(&all, &layers).into()
    }

    /// Who has a part in a document, in order.
    fn contributors(&self, of: PartOf) -> String {
        let names = self.spoken.iter().filter(|(_, said)| contributes(said, of));
        names.map(|(layer, _)| credit(layer)).collect::<Vec<_>>().join(", ")
    }

    fn network_config(&mut self) -> Option<Map<String, Value>> {
        if !self.wants(|spec| spec.network_config) {
            return None;
        }
        let config = network::config(self.roster, self.node)?;
        for key in ["ethernets", "vlans"].into_iter().filter(|_| self.tracing) {
            for name in config.get(key).and_then(Value::as_object).into_iter().flat_map(Map::keys) {
                let key = format!("{key}.{name}");
                let traced = TraceEntry { key, from: Origin::from("hoist"), over: Vec::new() };
                self.trace.push((Document::NetworkConfig, traced));
            }
        }
        Some(config)
    }

    /// Declarations of layers that the client ignores.
    fn warnings(&self) -> Vec<String> {
        let mut warnings = self.hidden_keys();
        if self.wants(|spec| spec.network_config) {
            warnings.extend(network::warnings(self.roster, self.node));
        }
        warnings
    }

    /// A client takes a top-level key from user-data alone if both documents have it; not even lists
    /// are joined.
    fn hidden_keys(&self) -> Vec<String> {
        let vendor: BTreeMap<_, _> = self.vendor.top_level().collect();
        let both =
            self.user.top_level().filter_map(|(key, over)| Some((key, over, vendor.get(key)?)));
        both.map(|(key, over, hidden)| {
            format!(
                "`{key}` of user-data ({}) hides `{key}` of vendor-data ({}): clients do not join \
                 them; write it in one of the two documents",
                over.join(", "),
                hidden.join(", "),
            )
        })
        .collect()
    }

    fn note(&mut self, document: Document) {
        if !self.tracing {
            return;
        }
        let merged = match document {
            Document::MetaData => &self.meta,
            Document::UserData => &self.user,
            Document::VendorData => &self.vendor,
            Document::NetworkConfig => return,
        };
        self.trace.extend(merged.trace(MAX_TRACE).into_iter().map(|traced| (document, traced)));
    }
}

fn form(kind: PartType) -> PartForm {
    match kind {
        PartType::Message => PartForm::Message,
        PartType::Gzip => PartForm::Encoded,
        PartType::Script
        | PartType::ScriptPerBoot
        | PartType::ScriptPerInstance
        | PartType::ScriptOnce
        | PartType::Boothook
        | PartType::Include
        | PartType::Jinja
        | PartType::Handler => PartForm::Text,
    }
}

fn cloud_config(map: &Map<String, Value>, layers: &str, client: bool) -> String {
    let first = if client { "## template: jinja\n" } else { "" };
    let comment = if layers.is_empty() { String::new() } else { format!("# layers: {layers}\n") };
    format!("{first}#cloud-config\n{comment}{}", yaml::document(map, verbatim(client)))
}
