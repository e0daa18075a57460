//! The cloud-init documents that BSS serves: the content of records, completed from the inventory.
//! Functions of the roster and the node.

use hoist_model::{BssKey, BssRecord, Node};
use hoist_site::Roster;
use serde_json::{Map, Value, json};

use crate::{bss, digest};

/// A document and its origins.
#[derive(Debug, Clone, PartialEq)]
pub struct Document {
    pub value: Value,
    /// The key and the revision of the record, if there was one.
    pub record: Option<(BssKey, u64)>,
}

/// The answer of `/meta-data`. Without a node it is the document of `Default`; `machine` then tells
/// one asking machine from another.
pub fn meta_data(roster: &Roster, node: Option<&Node>, machine: &str) -> Document {
    let record = record_of(roster, node);
    let own = part(record, |cloud| cloud.meta_data.as_ref());
    let mut value = beneath(roster, node, own, |cloud| cloud.meta_data.as_ref());
    if let Some(node) = node {
        fill(&mut value, "local-hostname", Some(&bss::host_name(node)));
        fill(&mut value, "shasta-type", node.spec.role.as_deref());
        fill(&mut value, "shasta-role", node.spec.subrole.as_deref());
    }
    value.insert("instance-id".to_owned(), instance_id(roster, node, machine).into());
    let global = roster.bss(&BssKey::tag(BssKey::GLOBAL)).map(AsRef::as_ref);
    let global = part(global, |cloud| cloud.meta_data.as_ref());
    value.insert("Global".to_owned(), Value::Object(global));
    Document { value: Value::Object(value), record: record.map(origin) }
}

/// What `/user-data` answers, before it becomes YAML.
pub fn user_data(roster: &Roster, node: Option<&Node>) -> Document {
    let record = record_of(roster, node);
    let own = part(record, |cloud| cloud.user_data.as_ref());
    let mut value = beneath(roster, node, own, |cloud| cloud.user_data.as_ref());
    if let Some(node) = node {
        fill(&mut value, "local-hostname", Some(&bss::host_name(node)));
    }
    Document { value: Value::Object(value), record: record.map(origin) }
}

/// The part of a document that `a.b.c` names.
pub fn lookup<'v>(document: &'v Value, key: &str) -> Option<&'v Value> {
    key.split('.').try_fold(document, |value, member| value.as_object()?.get(member))
}

/// The same for every request of one installation of a node: cloud-init takes a new one for a new
/// machine. BSS makes one up each time.
fn instance_id(roster: &Roster, node: Option<&Node>, machine: &str) -> String {
    let (name, what) = match node {
        Some(node) => (bss::host_name(node), format!("{} {}", node.id, node.generation)),
        None => ("default".to_owned(), format!("{} {machine}", roster.incarnation().as_str())),
    };
    let hash = digest::hex(&digest::sha256(what.as_bytes()));
    format!("{name}-{}", &hash[..12])
}

fn record_of<'r>(roster: &'r Roster, node: Option<&Node>) -> Option<&'r BssRecord> {
    let record = match node {
        Some(node) => {
            bss::own_record(roster, node, None).or_else(|| bss::tagged_cloud_init(roster, node))
        }
        None => roster.bss(&BssKey::tag(BssKey::DEFAULT)),
    };
    record.map(AsRef::as_ref)
}

fn origin(record: &BssRecord) -> (BssKey, u64) {
    (record.key.clone(), record.revision)
}

type Part = fn(&hoist_model::CloudInit) -> Option<&Value>;

fn part(record: Option<&BssRecord>, part: Part) -> Map<String, Value> {
    let value = record.and_then(|record| part(record.cloud_init.as_deref()?));
    value.and_then(Value::as_object).cloned().unwrap_or_default()
}

/// Merges `own` over the record of the node's subrole.
fn beneath(
    roster: &Roster,
    node: Option<&Node>,
    own: Map<String, Value>,
    of: Part,
) -> Map<String, Value> {
    let subrole = node.and_then(|node| node.spec.subrole.as_deref());
    let record = subrole.and_then(|subrole| roster.bss(&BssKey::tag(subrole)));
    let mut below = part(record.map(AsRef::as_ref), of);
    overlay(&mut below, own);
    below
}

/// Objects member by member, everything else whole.
fn overlay(below: &mut Map<String, Value>, above: Map<String, Value>) {
    for (name, value) in above {
        match (below.get_mut(&name), value) {
            (Some(Value::Object(below)), Value::Object(above)) => overlay(below, above),
            (_, value) => {
                below.insert(name, value);
            }
        }
    }
}

fn fill(value: &mut Map<String, Value>, name: &str, known: Option<&str>) {
    if let Some(known) = known.filter(|known| !known.is_empty()) {
        value.entry(name).or_insert_with(|| json!(known));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_merged_and_everything_else_is_replaced() {
        let object = |value: Value| value.as_object().unwrap().clone();
        let mut below = object(json!({"a": {"b": 1, "c": [1, 2]}, "d": 1, "e": {"f": 1}}));
        overlay(&mut below, object(json!({"a": {"c": [3], "x": null}, "d": {"g": 2}, "e": 4})));
        let expected = json!({"a": {"b": 1, "c": [3], "x": null}, "d": {"g": 2}, "e": 4});
        assert_eq!(Value::Object(below), expected);
    }

    #[test]
    fn a_part_is_named_by_its_members() {
        let value = json!({"a": {"b": {"c": [1]}}, "n": null});
        assert_eq!(lookup(&value, "a.b.c"), Some(&json!([1])));
        assert_eq!(lookup(&value, "n"), Some(&Value::Null));
        for key in ["", "a.", "a.x", "a.b.c.0", ".", "a..b"] {
            assert_eq!(lookup(&value, key), None, "{key}");
        }
    }
}
