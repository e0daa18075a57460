//! `/cloud-init/…` with the API of `OpenCHAMI`'s service, for sites that migrate. Its admin writes
//! become metadata layers whose names begin with `ochami-`; values that a layer cannot hold are
//! refused, never dropped.
//!
//! Does not belong here: rendering, which is the same for every client (`seed`, `hoist-metadata`).

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hoist_api::Code;
use hoist_api::admin::{Context, Verb};
use hoist_metadata::{Document, Mode, Secrets, With};
use hoist_model::document::cloud_config;
use hoist_model::metadata_layer::{Part, PartOf, PartType};
use hoist_model::selector::Level;
use hoist_model::{
    GroupName, Kind, MetadataLayer, MetadataLayerSpec, Name, Node, Secret, Selector,
};
use hoist_site::registry::{Terms, WriteError};
use hoist_site::{Roster, plan::Draft};
use http::{HeaderMap, StatusCode, header};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::render::{TOKEN, without};
use super::seed::{Requester, TEXT, with_address};
use super::{Metadata, OPEN};
use crate::authorisation::ScopedCommit;
use crate::boot::phone_home::{MAX_REPORT, read};
use crate::inventory::write_failure;
use crate::node_lookup::no_such_node;
use hoist_chassis::auth::AuditContext;
use hoist_chassis::extract::{Json, Path};
use hoist_chassis::failure::Failure;
use hoist_chassis::peer::Peer;
use hoist_chassis::principal::Principal;
use hoist_chassis::route::{AccessClass, Route};
use hoist_chassis::secret;

const READ: AccessClass = AccessClass::Admin { context: Context::Metadata, verb: Verb::Read };
const WRITE: AccessClass = AccessClass::Admin { context: Context::Metadata, verb: Verb::Write };

const DEFAULTS: &str = "ochami-cluster-defaults";
const GROUP: &str = "ochami-group-";
const NODE: &str = "ochami-node-";

/// Digits of a nid, where the cluster's defaults do not say how many.
const NID_LENGTH: usize = 4;
/// A nid has no more.
const MAX_NID_LENGTH: usize = 10;

/// Keys of meta-data under which the defaults keep what host names are made of.
const SHORT_NAME: &str = "short-name";
const LENGTH: &str = "nid-length";

/// Keys of meta-data that cluster defaults and instances may set, as layers have them.
const SAID: [&str; 6] = [
    "cloud-provider",
    "region",
    "availability-zone",
    "cluster-name",
    "cloud-init-base-url",
    "instance-type",
];

/// First lines that name the type of a text, except cloud-config.
const KINDS: [(&str, PartType); 5] = [
    ("## template: jinja", PartType::Jinja),
    ("#!", PartType::Script),
    ("#include", PartType::Include),
    ("#cloud-boothook", PartType::Boothook),
    ("#part-handler", PartType::Handler),
];

#[derive(Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
struct ClusterDefaults {
    #[serde(rename = "cloud_provider", alias = "cloud-provider")]
    cloud_provider: String,
    region: String,
    availability_zone: String,
    cluster_name: String,
    public_keys: Vec<String>,
    base_url: String,
    /// What host names begin with; else the first two letters of the cluster's name.
    short_name: String,
    /// Digits of the nid in them; 0 means 4.
    nid_length: usize,
}

#[derive(Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
struct OchamiGroup {
    name: String,
    description: String,
    meta_data: Map<String, Value>,
    file: File,
}

#[derive(Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct File {
    /// `null` where there is no file.
    content: Option<String>,
    filename: String,
    /// `plain` or `base64`.
    encoding: String,
}

#[derive(Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
struct InstanceInfo {
    id: String,
    /// Clients send it always; it is hoist's own, so it has to be empty.
    instance_id: String,
    local_hostname: String,
    hostname: String,
    cluster_name: String,
    region: String,
    availability_zone: String,
    cloud_provider: String,
    instance_type: String,
    cloud_init_base_url: String,
    public_keys: Vec<String>,
}

pub(super) fn routes() -> Vec<Route<Metadata>> {
    vec![
        Route::post("/cloud-init/phone-home/{id}", OPEN, phone_home)
            .summary("OpenCHAMI: report that a node is up; its address identifies it")
            .reason(
                "Nothing. A report counts for the node whose address sends it and ends no \
                 installation",
            )
            .takes::<hoist_model::PhoneHome>()
            .body_limit(MAX_REPORT)
            .lenient()
            .gives_nothing(200),
        Route::get("/cloud-init/version", OPEN, version)
            .summary("OpenCHAMI: version of the service")
            .reason("The version of hoist")
            .gives::<Value>(200),
        Route::get("/cloud-init/admin/cluster-defaults", READ, get_defaults)
            .summary("OpenCHAMI: defaults of all nodes")
            .gives::<ClusterDefaults>(200),
        Route::post("/cloud-init/admin/cluster-defaults", WRITE, post_defaults)
            .summary("OpenCHAMI: change the defaults of all nodes; empty fields stay as they are")
            .takes::<ClusterDefaults>()
            .gives_nothing(201),
        Route::get("/cloud-init/admin/groups", READ, list_groups)
            .summary("OpenCHAMI: cloud-init data of all groups, by name")
            .gives::<Map<String, Value>>(200),
        Route::post("/cloud-init/admin/groups", WRITE, post_group)
            .summary("OpenCHAMI: create the cloud-init data of a group; 409 if it exists")
            .takes::<OchamiGroup>()
            .gives_nothing(201),
        Route::get("/cloud-init/admin/groups/{name}", READ, get_group)
            .summary("OpenCHAMI: cloud-init data of a group")
            .gives::<OchamiGroup>(200),
        Route::put("/cloud-init/admin/groups/{name}", WRITE, put_group)
            .summary("OpenCHAMI: set the cloud-init data of a group")
            .takes::<OchamiGroup>()
            .gives_nothing(201),
        Route::delete("/cloud-init/admin/groups/{name}", WRITE, delete_group)
            .summary("OpenCHAMI: remove the cloud-init data of a group")
            .gives_nothing(200),
        Route::put("/cloud-init/admin/instance-info/{id}", WRITE, put_instance)
            .summary("OpenCHAMI: set the cloud-init data of a node")
            .takes::<InstanceInfo>()
            .gives_nothing(201),
        Route::get("/cloud-init/admin/impersonation/{id}/{doc}", READ, impersonate)
            .summary("OpenCHAMI: a document as a node receives it")
            .gives_media(200, "text/plain"),
    ]
}

/// Told as an event, and nothing more: an address alone does not end an installation.
async fn phone_home(
    State(metadata): State<Metadata>,
    peer: Peer,
    request: axum::extract::Request,
) -> Result<Response, Response> {
    let from = metadata.client(&peer, request.headers());
    let roster = metadata.boot.registry.roster();
    let asking = with_address(&roster, from);
    let admitted =
        metadata.admit(&asking, from, request.headers()).map_err(IntoResponse::into_response)?;
    let report = read(request).await.map_err(IntoResponse::into_response)?;
    if let Some(node) = admitted {
        metadata.boot.may_report(node.id).map_err(IntoResponse::into_response)?;
        metadata.tell(node, &report, from, "address");
    }
    Ok(StatusCode::OK.into_response())
}

/// Clients ask for it to see whether the service runs.
async fn version() -> Json<Value> {
    let version = env!("CARGO_PKG_VERSION");
    Json(json!({ "process_name": "hoist", "build_info": format!("Version: {version}") }))
}

async fn get_defaults(State(metadata): State<Metadata>) -> Json<ClusterDefaults> {
    let roster = metadata.boot.registry.roster();
    let spec = roster.metadata_layer(DEFAULTS).map(|layer| layer.spec.clone()).unwrap_or_default();
    let said = |key: &str| spec.meta_data.get(key).and_then(Value::as_str).unwrap_or_default();
    Json(ClusterDefaults {
        cloud_provider: said("cloud-provider").to_owned(),
        region: said("region").to_owned(),
        availability_zone: said("availability-zone").to_owned(),
        cluster_name: said("cluster-name").to_owned(),
        base_url: said("cloud-init-base-url").to_owned(),
        short_name: said(SHORT_NAME).to_owned(),
        nid_length: nid_length(&spec),
        public_keys: spec.public_keys,
    })
}

async fn post_defaults(
    State(metadata): State<Metadata>,
    principal: Principal,
    audit: AuditContext,
    Json(given): Json<ClusterDefaults>,
) -> Result<Response, Failure> {
    let layer = name(DEFAULTS)?;
    let put = |draft: &mut Draft<'_>| {
        let before = draft.roster().metadata_layer(DEFAULTS).map(|layer| layer.spec.clone());
        let spec = with_defaults(before.unwrap_or_default(), &given)?;
        put_layer(draft, &layer, spec)
    };
    metadata.write(&principal, &audit, put).await?;
    Ok(StatusCode::CREATED.into_response())
}

/// Empty members leave the layer unchanged.
fn with_defaults(
    mut spec: MetadataLayerSpec,
    given: &ClusterDefaults,
) -> Result<MetadataLayerSpec, Failure> {
    spec.selector = Some(selector("*")?);
    spec.openchami = Some(true);
    let said = [
        &given.cloud_provider,
        &given.region,
        &given.availability_zone,
        &given.cluster_name,
        &given.base_url,
    ];
    say(&mut spec.meta_data, said);
    if !given.short_name.is_empty() {
        spec.meta_data.insert(SHORT_NAME.to_owned(), given.short_name.as_str().into());
    }
    if given.nid_length != 0 {
        spec.meta_data.insert(LENGTH.to_owned(), given.nid_length.into());
    }
    if !given.public_keys.is_empty() {
        spec.public_keys.clone_from(&given.public_keys);
    }
    spec.hostname = host_names(&spec)?;
    Ok(spec)
}

fn nid_length(spec: &MetadataLayerSpec) -> usize {
    let length = spec.meta_data.get(LENGTH).and_then(Value::as_u64).unwrap_or_default();
    usize::try_from(length).unwrap_or(usize::MAX)
}

/// The host names of all nodes as `OpenCHAMI` makes them: a beginning, and the nid with zeros before
/// it. One without a nid has its own name.
fn host_names(spec: &MetadataLayerSpec) -> Result<Option<String>, Failure> {
    let said = |key: &str| spec.meta_data.get(key).and_then(Value::as_str).unwrap_or_default();
    let beginning = match said(SHORT_NAME) {
        "" => said("cluster-name").chars().take(2).collect(),
        short => short.to_owned(),
    };
    if beginning.is_empty() {
        return Ok(None);
    }
    if !beginning.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '-') {
        let detail = format!("host names cannot begin with `{}`", beginning.escape_debug());
        let remedy = "send a `short-name` of letters, digits and `-`";
        return Err(Failure::new(Code::InvalidBody, detail).with_remedy(remedy));
    }
    let length = match nid_length(spec) {
        0 => NID_LENGTH,
        length if length <= MAX_NID_LENGTH => length,
        _ => {
            let detail = format!("`{LENGTH}` is at most {MAX_NID_LENGTH}");
            return Err(Failure::new(Code::InvalidBody, detail));
        }
    };
    // Templates have no way to write a number with zeros: one for each power of ten above it.
    let zero = |power| format!("{{% if node.nid < 1{} %}}0{{% endif %}}", "0".repeat(power));
    let zeros: String = (1..length).map(zero).collect();
    Ok(Some(format!(
        "{{% if node.nid %}}{beginning}{zeros}{{{{ node.nid }}}}{{% else %}}{{{{ node.name }}}}{{% endif %}}"
    )))
}

/// In the order of [`SAID`]; empty values are skipped.
fn say<'s>(meta_data: &mut Map<String, Value>, said: impl IntoIterator<Item = &'s String>) {
    for (key, value) in SAID.iter().zip(said).filter(|(_, value)| !value.is_empty()) {
        meta_data.insert((*key).to_owned(), value.as_str().into());
    }
}

async fn list_groups(State(metadata): State<Metadata>) -> Json<Map<String, Value>> {
    let roster = metadata.boot.registry.roster();
    let groups = roster.metadata_layers().filter_map(|layer| {
        let name = group_in(&layer.spec).filter(|name| layer_name(name) == layer.name)?;
        let group = group_of(&name, &layer.spec);
        Some((name.as_str().to_owned(), json!(group)))
    });
    Json(groups.collect())
}

async fn get_group(
    State(metadata): State<Metadata>,
    Path(name): Path<String>,
) -> Result<Json<OchamiGroup>, Failure> {
    let roster = metadata.boot.registry.roster();
    let group = name.parse().map_err(|_| nothing_said(&name))?;
    let spec = said_of(&roster, &group).ok_or_else(|| nothing_said(&name))?;
    Ok(Json(group_of(&group, spec)))
}

async fn post_group(
    State(metadata): State<Metadata>,
    principal: Principal,
    audit: AuditContext,
    Json(group): Json<OchamiGroup>,
) -> Result<Response, Failure> {
    metadata.put_group(&principal, &audit, group, true).await
}

async fn put_group(
    State(metadata): State<Metadata>,
    principal: Principal,
    audit: AuditContext,
    Path(name): Path<String>,
    Json(mut group): Json<OchamiGroup>,
) -> Result<Response, Failure> {
    if group.name.is_empty() {
        group.name.clone_from(&name);
    }
    if group.name != name {
        let detail = format!("the body is about `{}`, the path about `{name}`", group.name);
        return Err(Failure::new(Code::InvalidBody, detail));
    }
    metadata.put_group(&principal, &audit, group, false).await
}

async fn delete_group(
    State(metadata): State<Metadata>,
    principal: Principal,
    audit: AuditContext,
    Path(name): Path<String>,
) -> Result<Response, Failure> {
    let group = name.parse().map_err(|_| nothing_said(&name))?;
    let layer = layer_name(&group);
    let remove = |draft: &mut Draft<'_>| {
        said_of(draft.roster(), &group).ok_or_else(|| nothing_said(&name))?;
        draft.remove(Kind::MetadataLayer, layer.as_str());
        Ok(())
    };
    metadata.write(&principal, &audit, remove).await?;
    Ok(StatusCode::OK.into_response())
}

async fn put_instance(
    State(metadata): State<Metadata>,
    principal: Principal,
    audit: AuditContext,
    Path(id): Path<String>,
    Json(given): Json<InstanceInfo>,
) -> Result<Response, Failure> {
    let roster = metadata.boot.registry.roster();
    let node = find(&roster, &id)?;
    if !given.id.is_empty() && given.id != id {
        let detail = format!("the body is about `{}`, the path about `{id}`", given.id);
        return Err(Failure::new(Code::InvalidBody, detail));
    }
    if !given.instance_id.is_empty() {
        let detail = "instance-id: it is made of the node's id and generation";
        return Err(Failure::new(Code::InvalidBody, detail).with_remedy("leave it empty"));
    }
    let mut hostnames = vec![given.local_hostname, given.hostname];
    hostnames.retain(|name| !name.is_empty());
    hostnames.dedup();
    if hostnames.len() > 1 {
        let detail = "`hostname` and `local-hostname` are one name";
        return Err(Failure::new(Code::InvalidBody, detail).with_remedy("send one of them"));
    }
    let mut spec = MetadataLayerSpec {
        selector: Some(selector(&format!("node:{}", node.name))?),
        hostname: hostnames.pop(),
        public_keys: given.public_keys,
        ..MetadataLayerSpec::default()
    };
    let said = [
        &given.cloud_provider,
        &given.region,
        &given.availability_zone,
        &given.cluster_name,
        &given.cloud_init_base_url,
        &given.instance_type,
    ];
    say(&mut spec.meta_data, said);
    let layer = name(&format!("{NODE}{}", node.name))?;
    metadata.write(&principal, &audit, |draft| put_layer(draft, &layer, spec.clone())).await?;
    Ok(StatusCode::CREATED.into_response())
}

async fn impersonate(
    State(metadata): State<Metadata>,
    Path((id, doc)): Path<(String, String)>,
    peer: Peer,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let roster = metadata.boot.registry.roster();
    let node = Arc::clone(roster.by_id(find(&roster, &id)?.id).ok_or_else(|| no_such_node(&id))?);
    let own = *metadata.provider.mode_of(&roster, &node) == Mode::Builtin;
    let Some(document) = Document::from_word(&doc).filter(|_| own) else {
        let from = peer.addr.ip().to_canonical();
        return Ok(metadata.answer(&roster, Requester::Node(&node), &doc, from, &headers).await);
    };
    let key = metadata.key.clone();
    let shown = metadata.aside(move |renderer, roster| {
        let with = With { token: TOKEN, secrets: Secrets::LeaveOut, trace: false };
        let compiled = renderer.compiled(roster);
        let rendered = renderer.render(&compiled, &node, with);
        let token = key.seed(node.id, node.generation);
        let instead = renderer.last_good(&compiled, &node, &rendered.failed);
        let instead = instead.map(|documents| without(&documents, token.as_str()));
        instead.unwrap_or(rendered.documents).get(document).clone()
    });
    Ok(([(header::CONTENT_TYPE, TEXT)], shown.await?).into_response())
}

/// `NAME.yaml`: the vendor-data of a group's layer, for its members.
pub(super) fn of_group(roster: &Roster, asking: &Requester<'_>, doc: &str) -> Option<String> {
    let (name, Requester::Node(node)) = (doc.strip_suffix(".yaml")?, asking) else { return None };
    let groups = roster.groups_of(node);
    let group = groups.iter().find(|group| group.as_str() == name)?;
    Some(said_of(roster, group).map(as_written).unwrap_or_default())
}

/// By xname, else by name, as BSS has it.
fn find<'r>(roster: &'r Roster, id: &str) -> Result<&'r Node, Failure> {
    let by_xname = id.parse().ok().and_then(|xname| roster.by_xname(xname));
    let node = by_xname.or_else(|| roster.by_name(id));
    node.map(AsRef::as_ref).ok_or_else(|| no_such_node(format!("`{id}`")))
}

/// The group that a layer speaks of, and nothing else.
fn group_in(spec: &MetadataLayerSpec) -> Option<GroupName> {
    match spec.selector.as_ref()?.level()? {
        Level::Group { partition: None, name } => name.parse().ok(),
        _ => None,
    }
}

/// The name of a group's layer; groups may have names that layers cannot have.
fn layer_name(group: &GroupName) -> Name {
    let plain = format!("{GROUP}{group}");
    plain.parse().unwrap_or_else(|_| {
        let hash = secret::hex(&secret::sha256(group.as_bytes())[..16]);
        format!("{GROUP}{hash}").parse().expect("letters, digits and dashes")
    })
}

/// The layer of a group, unless a layer of that name has another selector.
fn said_of<'r>(roster: &'r Roster, group: &GroupName) -> Option<&'r MetadataLayerSpec> {
    let layer = roster.metadata_layer(layer_name(group).as_str())?;
    (group_in(&layer.spec).as_ref() == Some(group)).then_some(&layer.spec)
}

fn nothing_said(name: &str) -> Failure {
    Failure::new(Code::NotFound, format!("nothing is said about a group `{name}`"))
        .with_remedy("`hoist metadata list` shows all layers")
}

fn name(text: &str) -> Result<Name, Failure> {
    text.parse::<Name>().map_err(|error| {
        Failure::new(Code::InvalidBody, error.to_string())
            .with_remedy("write a MetadataLayer with a name of your own")
    })
}

fn selector(text: &str) -> Result<Selector, Failure> {
    text.parse::<Selector>()
        .map_err(|error| Failure::new(Code::InvalidBody, format!("`{text}`: {error}")))
}

fn unsayable(reason: &str) -> Failure {
    Failure::new(Code::InvalidBody, format!("file.content: {reason}"))
        .with_remedy("write a MetadataLayer instead")
}

fn group_of(name: &GroupName, spec: &MetadataLayerSpec) -> OchamiGroup {
    let mut meta_data = spec.meta_data.clone();
    let description = meta_data.remove("Description");
    OchamiGroup {
        name: name.as_str().to_owned(),
        description: description.as_ref().and_then(Value::as_str).unwrap_or_default().to_owned(),
        meta_data,
        file: File {
            content: Some(content(spec)),
            filename: String::new(),
            encoding: "plain".to_owned(),
        },
    }
}

/// The vendor-data that members get unrendered: without keys that hold a secret or a template.
fn as_written(spec: &MetadataLayerSpec) -> String {
    let mut shown = spec.clone();
    shown.vendor_data.retain(|_, value| is_plain(value));
    shown.parts.retain(|part| part.document == PartOf::VendorData && spec.client_templates);
    content(&shown)
}

fn is_plain(value: &Value) -> bool {
    match value {
        Value::String(text) => !is_template(text),
        Value::Array(list) => list.iter().all(is_plain),
        Value::Object(map) => {
            let plain = |(key, value): (&String, &Value)| !is_template(key) && is_plain(value);
            Secret::in_value(value).is_none() && map.iter().all(plain)
        }
        _ => true,
    }
}

fn is_template(text: &str) -> bool {
    ["{{", "{%", "{#"].iter().any(|mark| text.contains(mark))
}

/// A layer's vendor-data as one text; never a bare `#cloud-config`.
fn content(spec: &MetadataLayerSpec) -> String {
    let text = spec.parts.first().and_then(|part| part.content.as_str());
    if let Some(text) = text {
        return text.to_owned();
    }
    if spec.vendor_data.is_empty() {
        return String::new();
    }
    let yaml = serde_saphyr::to_string(&spec.vendor_data).unwrap_or_default();
    format!("#cloud-config\n{yaml}")
}

/// The layer for the file of a group.
fn layer_of(group: &OchamiGroup) -> Result<MetadataLayerSpec, Failure> {
    let mut spec = MetadataLayerSpec {
        selector: Some(selector(&format!("group:{}", group.name))?),
        meta_data: group.meta_data.clone(),
        ..MetadataLayerSpec::default()
    };
    if !group.description.is_empty() {
        spec.meta_data.insert("Description".to_owned(), group.description.as_str().into());
    }
    let content = group.file.content.clone().unwrap_or_default();
    let decoded = || {
        let bytes = STANDARD.decode(content.trim());
        bytes.ok().and_then(|bytes| String::from_utf8(bytes).ok())
    };
    let text = match group.file.encoding.as_str() {
        // ochami sends base64 whatever the encoding says. Plain texts begin with `#`, which base64
        // lacks.
        "" | "plain" if !content.starts_with('#') => decoded().unwrap_or(content),
        "" | "plain" => content,
        "base64" => decoded().ok_or_else(|| unsayable("it is not text in base64"))?,
        _ => return Err(unsayable("its encoding is neither `plain` nor `base64`")),
    };
    if text.trim().is_empty() {
        return Ok(spec);
    }
    if let Some((_, kind)) = KINDS.iter().find(|(start, _)| text.starts_with(start)) {
        let content = text.into();
        spec.parts = vec![Part { document: PartOf::VendorData, r#type: *kind, content }];
        spec.client_templates = true;
        return Ok(spec);
    }
    let Some(yaml) = text.strip_prefix("#cloud-config") else {
        return Err(unsayable("its first line has no known type"));
    };
    if is_template(yaml) {
        return Err(unsayable(
            "it has template expressions, but its first line is not `## template: jinja`",
        ));
    }
    spec.vendor_data = cloud_config("file.content", &text).map_err(|errors| {
        let detail = errors.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        Failure::new(Code::InvalidBody, detail).with_remedy("or write a MetadataLayer instead")
    })?;
    Ok(spec)
}

impl Metadata {
    /// `new`: only where nothing is said about it yet.
    async fn put_group(
        &self,
        principal: &Principal,
        audit: &AuditContext,
        given: OchamiGroup,
        new: bool,
    ) -> Result<Response, Failure> {
        let group = given.name.parse::<GroupName>();
        let group = group.map_err(|error| Failure::new(Code::InvalidBody, error.to_string()))?;
        let layer = layer_name(&group);
        let spec = layer_of(&given)?;
        let put = |draft: &mut Draft<'_>| {
            let is_taken = draft.roster().metadata_layer(layer.as_str()).is_some();
            let is_said = said_of(draft.roster(), &group).is_some();
            if new && is_said {
                let detail = format!("something is said about `{group}` already");
                return Err(Failure::new(Code::Conflict, detail).with_remedy("PUT changes it"));
            }
            if is_taken && !is_said {
                let detail = format!("the layer `{layer}` speaks of others than `{group}`");
                let remedy = "give that layer another name";
                return Err(Failure::new(Code::Conflict, detail).with_remedy(remedy));
            }
            put_layer(draft, &layer, spec.clone())
        };
        self.write(principal, audit, put).await?;
        let location = format!("/cloud-init/admin/groups/{group}");
        Ok((StatusCode::CREATED, [(header::LOCATION, location)]).into_response())
    }

    /// Drafts the change on the current site, and again after a conflicting write.
    async fn write(
        &self,
        principal: &Principal,
        audit: &AuditContext,
        mut draft: impl FnMut(&mut Draft<'_>) -> Result<(), Failure> + Send,
    ) -> Result<(), Failure> {
        let draft = |site: &mut Draft<'_>| {
            draft(site).map_err(|failure| WriteError::Draft(Box::new(failure)))
        };
        let commit = ScopedCommit::new(&self.boot.chassis.audit, principal.clone(), audit);
        match self.boot.registry.write(Terms::default(), &commit, draft).await {
            Ok(_) => Ok(()),
            Err(WriteError::Draft(reason)) => Err(match reason.downcast::<Failure>() {
                Ok(failure) => *failure,
                Err(reason) => write_failure(WriteError::Draft(reason)),
            }),
            Err(error) => Err(write_failure(error)),
        }
    }
}

fn put_layer(draft: &mut Draft<'_>, name: &Name, spec: MetadataLayerSpec) -> Result<(), Failure> {
    if let Some(diagnostic) = spec.check().into_iter().next() {
        let hint = diagnostic.hint.map(|hint| format!("; {hint}")).unwrap_or_default();
        let detail = format!("{}: {}{hint}", diagnostic.at, diagnostic.message);
        return Err(Failure::new(Code::InvalidBody, detail));
    }
    draft.put::<MetadataLayer>(name.clone(), spec);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(content: &str, encoding: &str) -> OchamiGroup {
        let content = Some(content.to_owned());
        let file = File { content, encoding: encoding.to_owned(), ..File::default() };
        OchamiGroup { name: "compute".to_owned(), file, ..OchamiGroup::default() }
    }

    #[test]
    fn cloud_config_file_round_trips_through_a_layer() {
        let plain = "#cloud-config\nruncmd:\n- echo hi\n";
        let spec = layer_of(&group(plain, "plain")).unwrap();
        assert_eq!(spec.vendor_data["runcmd"], json!(["echo hi"]));
        assert!(content(&spec).starts_with("#cloud-config\n"), "{}", content(&spec));
        for encoding in ["base64", "plain"] {
            let spec = layer_of(&group(&STANDARD.encode(plain), encoding)).unwrap();
            assert_eq!(spec.vendor_data["runcmd"], json!(["echo hi"]));
        }
        let jinja = "## template: jinja\n#cloud-config\nfqdn: {{ ds.meta_data.x }}\n";
        for text in [jinja, "#!/bin/sh\necho {{ x }}\n"] {
            let spec = layer_of(&group(text, "")).unwrap();
            assert!(spec.client_templates && spec.check().is_empty(), "{:?}", spec.check());
            assert_eq!(content(&spec), text);
        }
        for nothing in ["", "#cloud-config", "#cloud-config\n"] {
            let spec = layer_of(&group(nothing, "")).unwrap();
            assert_eq!(content(&spec), "", "a bare one is called degraded by clients");
        }
    }

    #[test]
    fn a_file_with_two_meanings_is_refused_with_its_place() {
        let refused = layer_of(&group("#cloud-config\nssh_pwauth: no\n", "")).unwrap_err();
        let detail = refused.problem().detail.clone();
        assert!(detail.contains("file.content:2:13: `no` without quotes"), "{detail}");
        assert!(detail.contains("put it in quotes, or write `false`"), "{detail}");
        let quoted = "#cloud-config\nx: \"no\"\nmode: '0644'\n";
        let spec = layer_of(&group(quoted, "")).unwrap();
        assert_eq!(json!(spec.vendor_data), json!({ "x": "no", "mode": "0644" }));
        assert_eq!(layer_of(&group(&content(&spec), "")).unwrap(), spec);
    }

    #[test]
    fn unrepresentable_settings_are_refused() {
        for (text, encoding) in [
            ("packages: [a]", ""),
            ("#cloud-config\nfqdn: {{ x }}\n", ""),
            ("#cloud-config\n- a\n", ""),
            ("#cloud-config\na: [", ""),
            ("#cloud-config\nwrite_files: [{path: /etc/x, permissions: 0644}]\n", ""),
            ("#cloud-config\nusers: [{name: a, lock_passwd: no}]\n", ""),
            ("#template: jinja\n#cloud-config\n", ""),
            ("%%%", "base64"),
            ("#cloud-config", "gzip"),
        ] {
            let refused = layer_of(&group(text, encoding)).unwrap_err();
            assert_eq!(refused.problem().status, 400, "{text}");
        }
    }
}
