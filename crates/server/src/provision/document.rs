//! Builds the provisioning document of one node from its profile, with the values that only the
//! controller knows: ids, artifacts, config drive, earlier installations.
//!
//! Does not belong here: rules of the document (`hoist-provision`), and its transport (`agent`).

use std::collections::BTreeMap;

use bytes::Bytes;
use hoist_api::provision::{NodeDiagnostic, ProvisionOptions, RootDisk};
use hoist_model::boot_config::ARTIFACT_SCHEME;
use hoist_model::{Node, ProvisionProfileSpec, Secret};
use hoist_provision::diagnostic::{Code, ProvisionDiagnostic};
use hoist_provision::document::{self, API};
use hoist_site::Roster;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::erasure::SIGNATURES;
use crate::metadata::secret_layers_of;
use crate::profile_secrets::secret_of;

/// For which node, in which run.
pub(super) struct Case<'a> {
    pub(super) roster: &'a Roster,
    pub(super) node: &'a Node,
    pub(super) how: &'a ProvisionOptions,
    pub(super) txn: Uuid,
    /// Where artifacts are fetched, without a slash at the end.
    pub(super) base: &'a str,
    /// Digests of artifacts at the time of an earlier installation, in place of the current ones.
    pub(super) were: Option<&'a BTreeMap<String, String>>,
    /// The config drive by path; `None` if the profile does not use it.
    pub(super) drive: Option<&'a BTreeMap<String, Bytes>>,
    pub(super) past: Past,
}

/// Values from a node's earlier runs.
#[derive(Debug, Clone, Default)]
pub(super) struct Past {
    /// Of the node, when the run began with it.
    pub(super) generation: Option<u64>,
    /// The disks that its root is on.
    pub(super) root: Vec<RootDisk>,
}

/// Whether the controller fills the config drive.
pub(super) fn wants_drive(spec: &ProvisionProfileSpec, how: &ProvisionOptions) -> bool {
    let section = spec.document.get("config_drive").filter(|_| !how.retire);
    section.is_some_and(|section| section.get("files").is_none_or(is_empty))
}

fn is_empty(value: &Value) -> bool {
    value.as_object().is_some_and(Map::is_empty)
}

/// The whole document.
pub(super) fn make(spec: &ProvisionProfileSpec, case: &Case<'_>) -> Value {
    let mut sections =
        if case.how.retire { erasing(&spec.document) } else { spec.document.clone() };
    sections.insert("node".to_owned(), node_section(case));
    if case.how.allow_root_change && !case.how.retire {
        let policy = sections.entry("policy").or_insert_with(|| json!({}));
        if let Some(policy) = policy.as_object_mut() {
            policy.insert("allow_root_change".to_owned(), true.into());
        }
    }
    allow_wiping(&mut sections, &case.how.wipe);
    if !case.how.only.is_empty() {
        let flow = sections.entry("flow").or_insert_with(|| json!({}));
        flow["actions"] = json!(case.how.only);
    }
    if let (Some(drive), Some(section)) = (case.drive, sections.get_mut("config_drive")) {
        let text = |bytes: &Bytes| json!({"text": String::from_utf8_lossy(bytes)});
        let files = drive.iter().map(|(path, bytes)| (path.clone(), text(bytes)));
        section["files"] = Value::Object(files.collect());
    }
    let mut sections = Value::Object(sections);
    let shelf = Shelf { roster: case.roster, were: case.were };
    describe_unpacked(shelf, &mut sections);
    fetch(shelf, case.base, &mut sections);
    json!({"api": API, "txn": case.txn, "sections": sections})
}

fn node_section(case: &Case<'_>) -> Value {
    let Node { id, name, .. } = case.node;
    let mut section = json!({"id": id.to_string(), "name": name});
    if let Some(generation) = case.past.generation {
        section["generation"] = json!(generation);
    }
    // A node that is erased has no root afterwards, so its last root does not matter.
    match case.past.root.as_slice() {
        _ if case.how.retire => {}
        [] => {}
        [disk] => section["last_root"] = json!(disk),
        disks => section["last_root"] = json!(disks),
    }
    section
}

/// A document with only the disks to restore. An agent without undo does not know the action and
/// refuses.
pub(super) fn undoing(spec: &ProvisionProfileSpec, node: &Node, txn: Uuid) -> Value {
    let mut sections = Map::new();
    for section in ["policy", "disks"] {
        if let Some(value) = spec.document.get(section) {
            sections.insert(section.to_owned(), value.clone());
        }
    }
    sections.insert("node".to_owned(), json!({"id": node.id.to_string(), "name": node.name}));
    sections.insert("flow".to_owned(), json!({"actions": ["undo"]}));
    json!({"api": API, "txn": txn, "sections": sections})
}

/// Current digests of the artifacts that a profile names, by name.
pub(super) fn artifacts(roster: &Roster, spec: &ProvisionProfileSpec) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    spec.document.values().for_each(|value| pin(roster, value, &mut found));
    found
}

fn pin(roster: &Roster, value: &Value, found: &mut BTreeMap<String, String>) {
    match value {
        Value::String(text) => {
            found.extend(Shelf { roster, were: None }.find(text));
        }
        Value::Array(list) => list.iter().for_each(|value| pin(roster, value, found)),
        Value::Object(map) => map.values().for_each(|value| pin(roster, value, found)),
        _ => {}
    }
}

/// Only the disks, to be erased.
fn erasing(document: &Map<String, Value>) -> Map<String, Value> {
    let mut sections = Map::new();
    let disks = document.get("disks").cloned().unwrap_or_else(|| json!({}));
    let mut erase = match document.get("erase") {
        Some(Value::Object(erase)) => erase.clone(),
        _ => Map::new(),
    };
    let ids: Vec<_> = disks.as_object().into_iter().flatten().map(|(id, _)| id.clone()).collect();
    erase.insert("disks".to_owned(), json!(ids));
    for section in ["policy"] {
        if let Some(value) = document.get(section) {
            sections.insert(section.to_owned(), value.clone());
        }
    }
    sections.insert("disks".to_owned(), disks);
    sections.insert("erase".to_owned(), Value::Object(erase));
    sections.insert("flow".to_owned(), json!({"actions": ["erase"], "end": "power_off"}));
    sections
}

fn allow_wiping(sections: &mut Map<String, Value>, kinds: &[String]) {
    if kinds.is_empty() {
        return;
    }
    let any = kinds.iter().any(|kind| kind == "any");
    let disks = sections.get_mut("disks").and_then(Value::as_object_mut);
    for disk in disks.into_iter().flat_map(Map::values_mut) {
        let Some(disk) = disk.as_object_mut() else { continue };
        let wipe = disk.entry("wipe").or_insert_with(|| json!([]));
        match wipe {
            _ if any => *wipe = json!("any"),
            Value::Array(allowed) => allowed.extend(kinds.iter().map(|kind| json!(kind))),
            _ => {}
        }
    }
}

/// Adds the size and the digest of the unpacked image to the images whose artifact has them. An
/// image in chunks has them in its manifest.
fn describe_unpacked(shelf: Shelf<'_>, sections: &mut Value) {
    let images = sections.get_mut("images").and_then(Value::as_object_mut);
    for image in images.into_iter().flat_map(Map::values_mut).filter_map(Value::as_object_mut) {
        let is_raw = image.get("format").is_none_or(|format| format == "raw");
        if !is_raw || image.contains_key("manifest") {
            continue;
        }
        let found = contents(shelf, image).into_iter().find_map(|(text, content)| {
            let artifact = shelf.roster.artifact(text.strip_prefix(ARTIFACT_SCHEME)?)?;
            // An earlier installation had another content of this name.
            let is_same = artifact.spec.sha256.to_string() == content;
            let unpacked = artifact.spec.unpacked.clone().filter(|_| is_same)?;
            Some((format!("sha256:{content}"), unpacked))
        });
        let Some((packed, unpacked)) = found else { continue };
        if image.get("digest").is_some_and(|digest| *digest != packed) {
            continue;
        }
        image.entry("size").or_insert_with(|| format!("{} B", unpacked.size).into());
        let digest = || format!("sha256:{}", unpacked.sha256).into();
        image.entry("unpacked_digest").or_insert_with(digest);
    }
}

/// `artifact:NAME` becomes a URL, with the digest that is known of it.
fn fetch(shelf: Shelf<'_>, base: &str, value: &mut Value) {
    match value {
        Value::String(text) => {
            if let Some((name, content)) = shelf.find(text) {
                *text = format!("{base}/artifacts/{content}/{name}");
            }
        }
        Value::Array(list) => list.iter_mut().for_each(|value| fetch(shelf, base, value)),
        Value::Object(map) => {
            if let Some(digest) = digest(shelf, map) {
                map.insert("digest".to_owned(), digest.into());
            }
            map.values_mut().for_each(|value| fetch(shelf, base, value));
        }
        _ => {}
    }
}

/// Where none is written. That of an image in chunks is that of the list of its chunks.
fn digest(shelf: Shelf<'_>, map: &Map<String, Value>) -> Option<String> {
    if map.contains_key("digest") {
        return None;
    }
    map.get("sources")?.as_array()?;
    let content = match map.get("manifest") {
        Some(manifest) => shelf.find(manifest.as_str()?).map(|(_, content)| content),
        None => contents(shelf, map).into_iter().next().map(|(_, content)| content),
    };
    content.map(|content| format!("sha256:{content}"))
}

/// The artifacts among the sources, each with its content.
fn contents<'a>(shelf: Shelf<'_>, map: &'a Map<String, Value>) -> Vec<(&'a str, String)> {
    let sources = map.get("sources").and_then(Value::as_array);
    let texts = sources.into_iter().flatten().filter_map(Value::as_str);
    texts.filter_map(|text| Some((text, shelf.find(text)?.1))).collect()
}

/// Artifacts of which one cannot stand for the other, where no digest says which is meant.
fn differing(shelf: Shelf<'_>, place: &str, value: &Value, found: &mut Vec<ProvisionDiagnostic>) {
    match value {
        Value::Array(list) => list
            .iter()
            .enumerate()
            .for_each(|(i, value)| differing(shelf, &format!("{place}[{i}]"), value, found)),
        Value::Object(map) => {
            let is_vouched = map.contains_key("digest") || map.contains_key("manifest");
            let contents = if is_vouched { Vec::new() } else { contents(shelf, map) };
            let mut pairs = contents.windows(2);
            if let Some([(one, _), (other, _)]) = pairs.find(|pair| pair[0].1 != pair[1].1) {
                let what = format!("`{one}` and `{other}` are not the same content");
                let wrong =
                    ProvisionDiagnostic::new(Code::BadValue, format!("{place}.sources"), what);
                found.push(wrong.hint("name one of them, or write the `digest` that is meant"));
            }
            for (key, value) in map {
                differing(shelf, &format!("{place}.{key}"), value, found);
            }
        }
        _ => {}
    }
}

/// Artifacts as they are, or as they were.
#[derive(Clone, Copy)]
struct Shelf<'a> {
    roster: &'a Roster,
    were: Option<&'a BTreeMap<String, String>>,
}

impl Shelf<'_> {
    /// The name and the content that `artifact:NAME` stands for.
    fn find(self, text: &str) -> Option<(String, String)> {
        let name = text.strip_prefix(ARTIFACT_SCHEME)?;
        let was = self.were.and_then(|were| were.get(name)).cloned();
        let is = || self.roster.artifact(name).map(|artifact| artifact.spec.sha256.to_string());
        Some((name.to_owned(), was.or_else(is)?))
    }
}

/// Everything that is wrong with a document, as far as that can be told without the machine.
pub(super) fn check(
    spec: &ProvisionProfileSpec,
    case: &Case<'_>,
    document: &Value,
) -> Vec<ProvisionDiagnostic> {
    let mut found = read(document);
    if case.how.retire {
        found.extend(leaves_data(document));
        return found;
    }
    let shelf = Shelf { roster: case.roster, were: case.were };
    for (name, section) in &spec.document {
        differing(shelf, &format!("document.{name}"), section, &mut found);
    }
    found
}

/// A retired machine must not leave with readable data.
fn leaves_data(document: &Value) -> Option<ProvisionDiagnostic> {
    let method = document["sections"]["erase"]["method"].as_str();
    let method = method.filter(|method| *method == SIGNATURES)?;
    let what = format!("a node is not retired by `{method}`: what is on its disks stays readable");
    let found = ProvisionDiagnostic::new(Code::BadValue, "document.erase.method", what);
    Some(found.hint("write `strongest` or another method, or leave `method` out"))
}

fn read(document: &Value) -> Vec<ProvisionDiagnostic> {
    let mut unreadable = document::type_errors(&document["sections"]);
    if !unreadable.is_empty() {
        for found in &mut unreadable {
            found.diagnostic.at = format!("document.{}", found.diagnostic.at);
        }
        return unreadable;
    }
    let text = serde_json::to_vec(document).expect("a plain value");
    document::read("document", &text).err().unwrap_or_default()
}

/// The wire form of a diagnostic.
pub(super) fn reported(found: &ProvisionDiagnostic) -> NodeDiagnostic {
    let ProvisionDiagnostic { code, class, diagnostic, evidence } = found;
    NodeDiagnostic {
        evidence: evidence.clone(),
        ..NodeDiagnostic::new(code.as_str(), class.as_str(), diagnostic.clone())
    }
}

/// The secrets of a node's job: names in its profile, and layers on its config drive.
pub(super) fn secret_names(
    roster: &Roster,
    node: &Node,
    spec: &ProvisionProfileSpec,
    how: &ProvisionOptions,
) -> Vec<String> {
    let txn = Uuid::nil();
    let base = "";
    let were = None;
    let drive = None;
    let past = Past::default();
    let case = Case { roster, node, how, txn, base, were, drive, past };
    let mut names: Vec<String> = secrets(spec, &make(spec, &case)).into_keys().collect();
    if wants_drive(spec, how) {
        let layers = secret_layers_of(roster, node).into_iter();
        names.extend(layers.map(|layer| format!("of layer {}", layer.name)));
    }
    names
}

/// The secrets that a document refers to, with their sources. Only the profile may name secrets:
/// the parts that a run or node adds were not authorised to.
pub(super) fn secrets(spec: &ProvisionProfileSpec, document: &Value) -> BTreeMap<String, Secret> {
    let mut named = BTreeMap::new();
    let mut found = BTreeMap::new();
    spec.document.values().for_each(|value| collect(spec, value, &mut named));
    collect(spec, document, &mut found);
    found.retain(|name, _| named.contains_key(name));
    found
}

fn collect(spec: &ProvisionProfileSpec, value: &Value, found: &mut BTreeMap<String, Secret>) {
    match value {
        Value::String(text) => found.extend(secret_of(spec, text)),
        Value::Array(list) => list.iter().for_each(|value| collect(spec, value, found)),
        Value::Object(map) => map.values().for_each(|value| collect(spec, value, found)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use hoist_model::Artifact;
    use hoist_site::Resource;
    use hoist_site::roster::Incarnation;

    use super::*;

    const DIGEST: &str = "abababababababababababababababababababababababababababababababab";

    fn roster() -> Roster {
        let artifact = |name: &str, digest: &str| {
            let spec = json!({"sha256": digest, "size": 1});
            let spec = serde_json::from_value(spec).unwrap();
            Resource::Artifact(Arc::new(Artifact {
                name: name.parse().unwrap(),
                spec,
                revision: 1,
            }))
        };
        let mut puts = vec![artifact("root", DIGEST), artifact("chunks", &"cd".repeat(32))];
        let packed = json!({"sha256": DIGEST, "size": 1,
            "unpacked": {"size": 4096, "sha256": "ef".repeat(32)}});
        puts.push(Resource::Artifact(Arc::new(Artifact {
            name: "packed".parse().unwrap(),
            spec: serde_json::from_value(packed).unwrap(),
            revision: 1,
        })));
        Roster::empty(Incarnation::new("0")).apply(hoist_site::Delta {
            revision: 1,
            horizon: 0,
            puts,
            deletes: Vec::new(),
        })
    }

    fn spec(document: &Value) -> ProvisionProfileSpec {
        serde_json::from_value(json!({"selector": "*", "document": document})).unwrap()
    }

    fn made(
        document: &Value,
        how: &ProvisionOptions,
        drive: Option<&BTreeMap<String, Bytes>>,
    ) -> Value {
        let roster = roster();
        let node = hoist_template::sample();
        let txn = Uuid::nil();
        let base = "http://c:1";
        let were = None;
        let past = Past::default();
        let case = Case { roster: &roster, node: &node, how, txn, base, were, drive, past };
        make(&spec(document), &case)
    }

    #[test]
    fn earlier_root_is_in_documents_except_of_erasures() {
        let disk = |serial: &str| RootDisk {
            wwn: None,
            eui: None,
            serial: Some(serial.to_owned()),
            model: None,
        };
        let node = |how: &ProvisionOptions, root: Vec<RootDisk>| {
            let roster = roster();
            let node = hoist_template::sample();
            let txn = Uuid::nil();
            let base = "http://c:1";
            let were = None;
            let drive = None;
            let past = Past { generation: Some(3), root };
            let case = Case { roster: &roster, node: &node, how, txn, base, were, drive, past };
            let document = json!({"disks": {"a": {"match": {"serial": "1"}}}});
            let made = make(&spec(&document), &case);
            assert!(read(&made).is_empty(), "{made}");
            made["sections"].clone()
        };
        let how = ProvisionOptions::default();
        let one = node(&how, vec![disk("A")]);
        assert_eq!(one["node"]["last_root"], json!({"serial": "A"}));
        assert_eq!((&one["node"]["generation"], &one["policy"]), (&json!(3), &Value::Null));
        let both = node(&how, vec![disk("A"), disk("B")]);
        assert_eq!(both["node"]["last_root"], json!([{"serial": "A"}, {"serial": "B"}]));
        assert_eq!(node(&how, Vec::new())["node"]["last_root"], Value::Null);
        let allowed = ProvisionOptions { allow_root_change: true, ..ProvisionOptions::default() };
        assert_eq!(node(&allowed, Vec::new())["policy"], json!({"allow_root_change": true}));
        let retire = ProvisionOptions { retire: true, ..allowed };
        let retiring = node(&retire, vec![disk("A")]);
        assert_eq!(
            (&retiring["node"]["last_root"], &retiring["policy"]),
            (&Value::Null, &Value::Null)
        );
    }

    #[test]
    fn artifacts_become_urls_with_the_digest_that_is_known() {
        let document = made(
            &json!({"images": {
                "a": {"sources": ["artifact:root", "https://mirror/root"], "target": "r"},
                "b": {"sources": ["artifact:root"], "manifest": "artifact:chunks"},
                "c": {"sources": ["artifact:root"], "digest": "sha256:mine"},
                "d": {"sources": ["https://elsewhere/x"]},
                "e": {"sources": ["https://mirror/root", "artifact:root"]},
            }}),
            &ProvisionOptions::default(),
            None,
        );
        let images = &document["sections"]["images"];
        assert_eq!(images["a"]["sources"][0], format!("http://c:1/artifacts/{DIGEST}/root"));
        assert_eq!(images["a"]["sources"][1], "https://mirror/root");
        assert_eq!(images["a"]["digest"], format!("sha256:{DIGEST}"));
        assert_eq!(images["b"]["digest"], format!("sha256:{}", "cd".repeat(32)));
        assert_eq!(
            images["b"]["manifest"],
            format!("http://c:1/artifacts/{}/chunks", "cd".repeat(32))
        );
        assert_eq!(images["c"]["digest"], "sha256:mine");
        assert!(images["d"].get("digest").is_none());
        assert_eq!(images["e"]["digest"], format!("sha256:{DIGEST}"), "whoever is asked first");
    }

    #[test]
    fn image_gets_the_unpacked_size_and_digest_of_its_artifact() {
        let document = made(
            &json!({
                "images": {
                    "a": {"sources": ["artifact:packed"], "target": "r"},
                    "b": {"sources": ["artifact:packed"], "size": "1 MiB", "unpacked_digest": "x"},
                    "c": {"sources": ["artifact:packed"], "manifest": "artifact:chunks"},
                    "d": {"sources": ["artifact:packed"], "format": "qcow2"},
                    "e": {"sources": ["artifact:packed"], "digest": "sha256:mine"},
                    "f": {"sources": ["artifact:root"]},
                },
                "boot": {"files": {"kernel": {"sources": ["artifact:packed"]}}},
            }),
            &ProvisionOptions::default(),
            None,
        );
        let sections = &document["sections"];
        let images = &sections["images"];
        let digest = format!("sha256:{}", "ef".repeat(32));
        assert_eq!(images["a"]["size"], "4096 B");
        assert_eq!(images["a"]["unpacked_digest"], digest);
        assert_eq!(
            (&images["b"]["size"], &images["b"]["unpacked_digest"]),
            (&json!("1 MiB"), &json!("x"))
        );
        let others = ["c", "d", "e", "f"].map(|name| &images[name]);
        for other in others.into_iter().chain([&sections["boot"]["files"]["kernel"]]) {
            assert!(
                other.get("size").is_none() && other.get("unpacked_digest").is_none(),
                "{other}"
            );
        }
        let whole = json!({
            "disks": {"os": {"match": {"serial": "1"}}},
            "storage": [{"part": {"id": "r", "on": "os", "size": "rest"}}],
            "images": {"a": {"sources": ["artifact:packed"], "target": "r"}},
        });
        let whole = made(&whole, &ProvisionOptions::default(), None);
        assert!(read(&whole).is_empty(), "{whole}");
        // The earlier installation had another content of this name.
        let roster = roster();
        let node = hoist_template::sample();
        let were = BTreeMap::from([("packed".to_owned(), "01".repeat(32))]);
        let how = ProvisionOptions::default();
        let case = Case {
            roster: &roster,
            node: &node,
            how: &how,
            txn: Uuid::nil(),
            base: "http://c:1",
            were: Some(&were),
            drive: None,
            past: Past::default(),
        };
        let images = json!({"images": {"a": {"sources": ["artifact:packed"], "target": "r"}}});
        let image = &make(&spec(&images), &case)["sections"]["images"]["a"];
        assert_eq!(image["digest"], format!("sha256:{}", "01".repeat(32)));
        assert!(image.get("size").is_none(), "{image}");
    }

    #[test]
    fn run_options_override_the_profile() {
        let disks = json!({"disks": {"a": {"match": {}, "wipe": ["ext"]}, "b": {"match": {}}}});
        let how = ProvisionOptions {
            wipe: vec!["lvm".to_owned()],
            only: vec!["disks".to_owned()],
            ..ProvisionOptions::default()
        };
        let document = made(&disks, &how, None);
        let sections = &document["sections"];
        assert_eq!(sections["disks"]["a"]["wipe"], json!(["ext", "lvm"]));
        assert_eq!(sections["disks"]["b"]["wipe"], json!(["lvm"]));
        assert_eq!(sections["flow"]["actions"], json!(["disks"]));
        let any = ProvisionOptions { wipe: vec!["any".to_owned()], ..ProvisionOptions::default() };
        assert_eq!(made(&disks, &any, None)["sections"]["disks"]["a"]["wipe"], "any");
    }

    #[test]
    fn a_config_drive_is_filled_where_the_profile_leaves_it_empty() {
        let drive = BTreeMap::from([("openstack/latest/user_data".to_owned(), "x".into())]);
        let empty = spec(&json!({"config_drive": {}}));
        assert!(wants_drive(&empty, &ProvisionOptions::default()));
        let document =
            made(&json!({"config_drive": {}}), &ProvisionOptions::default(), Some(&drive));
        let files = &document["sections"]["config_drive"]["files"];
        assert_eq!(files["openstack/latest/user_data"]["text"], "x");
        let own = json!({"config_drive": {"files": {"a": {"text": "b"}}}});
        assert!(!wants_drive(&spec(&own), &ProvisionOptions::default()));
    }

    #[test]
    fn secrets_are_where_the_profile_says_or_files_of_their_names() {
        let sections = json!({"a": ["secret://db", {"b": "secret://disks/data"}], "c": "plain"});
        let mut spec = spec(&sections);
        spec.secrets.insert("db".to_owned(), Secret::Env("HOIST_SECRET_DB".to_owned()));
        // What else comes into a document names no secrets.
        let document = json!({"sections": sections, "flow": ["secret://other"]});
        let found = secrets(&spec, &document);
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!(found["db"], Secret::Env("HOIST_SECRET_DB".to_owned()));
        assert_eq!(found["disks/data"], Secret::File("disks/data".to_owned()));
    }

    #[test]
    fn a_node_that_retires_is_erased_and_nothing_else() {
        let how = ProvisionOptions { retire: true, ..ProvisionOptions::default() };
        let document = made(
            &json!({"disks": {"a": {"match": {"serial": "1"}}}, "images": {}, "boot": {}}),
            &how,
            None,
        );
        let sections = document["sections"].as_object().unwrap();
        let names: Vec<_> = sections.keys().cloned().collect();
        assert_eq!(names, ["disks", "erase", "flow", "node"]);
        assert_eq!(sections["erase"]["disks"], json!(["a"]));
        assert_eq!(sections["flow"]["actions"], json!(["erase"]));
    }

    #[test]
    fn document_errors_carry_their_place() {
        let places = |document: Value| -> Vec<String> {
            let document = made(&document, &ProvisionOptions::default(), None);
            read(&document).into_iter().map(|found| found.diagnostic.at).collect()
        };
        let disks = json!({"os": {"match": {"serial": "1"}}});
        assert!(places(json!({"disks": disks})).is_empty());
        assert_eq!(places(json!({"disks": {"os": {"matsch": {}}}})), ["document.disks.os.matsch"]);
        let storage = json!([{"part": {"id": "r", "on": "os", "size": "rest"}}, {"parrt": {}}]);
        assert_eq!(places(json!({"disks": disks, "storage": storage})), ["document.storage.1"]);
        assert_eq!(places(json!({"disk": {}})), ["document.disk"]);
        // All of them at once.
        let images = json!({"a": {"target": [], "grow": "yes"}, "b": {"target": "r", "sizze": 1}});
        let flow = json!({"actions": "disks"});
        assert_eq!(
            places(json!({"disks": {"os": {"matsch": {}}}, "images": images, "flow": flow})),
            [
                "document.disks.os.matsch",
                "document.images.a.target",
                "document.images.a.grow",
                "document.images.b.sizze",
                "document.flow.actions"
            ]
        );
        let nowhere = json!([{"part": {"id": "r", "on": "nothing", "size": "rest"}}]);
        assert!(!places(json!({"disks": disks, "storage": nowhere})).is_empty());
    }
}
