//! `/latest/…`: the documents as EC2 has them, for programs that know nothing else. Who asks is known
//! by its address.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use hoist_api::Code;
use hoist_metadata::Document;
use hoist_metadata::provider::Given;
use http::{HeaderMap, Uri, header};
use serde_json::{Map, Value};

use super::seed::{TEXT, with_address};
use super::{Metadata, OPEN};
use crate::failure::Failure;
use crate::peer::Peer;
use crate::route::Route;

const META_DATA: &str = "/latest/meta-data";

/// Largest meta-data that is taken apart for every key. Only another service's can be larger.
const MAX_META_DATA: usize = 64 * 1024;

/// Names of EC2, and where meta-data has them.
const KEYS: [(&str, &[&str]); 7] = [
    ("hostname", &["hostname"]),
    ("instance-id", &["instance-id"]),
    ("instance-type", &["instance-type"]),
    ("local-hostname", &["local-hostname"]),
    ("local-ipv4", &["hoist", "ip"]),
    ("mac", &["hoist", "mac"]),
    ("region", &["region"]),
];

pub(super) fn routes() -> Vec<Route<Metadata>> {
    let all = vec![
        Route::get("/latest", OPEN, top).summary("EC2: what there is"),
        Route::get("/latest/user-data", OPEN, user_data).summary("EC2: user-data"),
        Route::get(META_DATA, OPEN, meta_data).summary("EC2: the keys of meta-data"),
        Route::get("/latest/meta-data/{key}", OPEN, meta_data)
            .summary("EC2: one key of meta-data; `public-keys` is a list"),
        Route::get("/latest/meta-data/public-keys/{index}", OPEN, meta_data)
            .summary("EC2: the forms of a public key"),
        Route::get("/latest/meta-data/public-keys/{index}/openssh-key", OPEN, meta_data)
            .summary("EC2: a public key"),
    ];
    all.into_iter().map(|route| route.lenient().gives_media(200, "text/plain")).collect()
}

async fn top() -> Response {
    text("meta-data/\nuser-data".to_owned())
}

async fn user_data(State(metadata): State<Metadata>, peer: Peer, headers: HeaderMap) -> Response {
    let roster = metadata.boot.registry.roster();
    let from = metadata.client(&peer, &headers);
    let asking = with_address(&roster, from);
    metadata.answer(&roster, asking, Document::UserData.as_str(), from, &headers).await
}

async fn meta_data(
    State(metadata): State<Metadata>,
    peer: Peer,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Response> {
    let roster = metadata.boot.registry.roster();
    let from = metadata.client(&peer, &headers);
    let given = metadata.given(&roster, &with_address(&roster, from), from).await?;
    let (Given::Here(served) | Given::Stale { served, .. }) = given else {
        let detail = "another service has this node's documents";
        return Err(Failure::new(Code::NotFound, detail).into_response());
    };
    let whole = served.get(Document::MetaData);
    let read = std::str::from_utf8(whole).ok().filter(|text| text.len() <= MAX_META_DATA);
    let read = read.and_then(|text| serde_saphyr::from_str::<Map<String, Value>>(text).ok());
    let path = uri.path().strip_prefix(META_DATA).unwrap_or_default();
    let found = look(&read.unwrap_or_default(), path.trim_matches('/'));
    let found = found.ok_or_else(|| Failure::new(Code::NotFound, "there is no such key"));
    found.map(text).map_err(IntoResponse::into_response)
}

fn text(body: String) -> Response {
    ([(header::CONTENT_TYPE, TEXT)], body).into_response()
}

/// What stands under a path below meta-data: a list of names, or a value.
fn look(meta: &Map<String, Value>, path: &str) -> Option<String> {
    let keys: Vec<_> = match meta.get("public-keys") {
        Some(Value::Array(keys)) => keys.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    match path.split('/').collect::<Vec<_>>().as_slice() {
        [""] => {
            let names = KEYS.iter().filter(|(_, place)| value(meta, place).is_some());
            let mut names: Vec<_> = names.map(|(name, _)| *name).collect();
            names.extend((!keys.is_empty()).then_some("public-keys/"));
            Some(names.join("\n"))
        }
        ["public-keys"] if !keys.is_empty() => {
            let list = (0..keys.len()).map(|index| format!("{index}=key-{index}"));
            Some(list.collect::<Vec<_>>().join("\n"))
        }
        ["public-keys", index, rest @ ..] => {
            let key = keys.get(index.parse::<usize>().ok()?)?;
            match rest {
                [] => Some("openssh-key".to_owned()),
                ["openssh-key"] => Some((*key).to_owned()),
                _ => None,
            }
        }
        [name] => {
            let (_, place) = KEYS.iter().find(|(known, _)| known == name)?;
            value(meta, place).map(str::to_owned)
        }
        _ => None,
    }
}

fn value<'m>(meta: &'m Map<String, Value>, place: &[&str]) -> Option<&'m str> {
    let (first, rest) = place.split_first()?;
    let inner = |value: Option<&'m Value>, key: &&str| value.and_then(|value| value.get(*key));
    rest.iter().fold(meta.get(*first), inner).and_then(Value::as_str)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn meta_data_is_a_tree_of_names() {
        let Value::Object(meta) = json!({
            "instance-id": "i-g0", "hostname": "n1", "hoist": {"ip": "10.0.0.1"},
            "public-keys": ["ssh-ed25519 A a", "ssh-ed25519 B b"],
        }) else {
            unreachable!()
        };
        for (path, expected) in [
            ("", Some("hostname\ninstance-id\nlocal-ipv4\npublic-keys/")),
            ("instance-id", Some("i-g0")),
            ("local-ipv4", Some("10.0.0.1")),
            ("mac", None),
            ("hoist", None),
            ("public-keys", Some("0=key-0\n1=key-1")),
            ("public-keys/1", Some("openssh-key")),
            ("public-keys/1/openssh-key", Some("ssh-ed25519 B b")),
            ("public-keys/2", None),
            ("public-keys/-1", None),
            ("public-keys/1/x", None),
            ("instance-id/x", None),
        ] {
            assert_eq!(look(&meta, path).as_deref(), expected, "{path}");
        }
        assert_eq!(look(&Map::new(), "").as_deref(), Some(""));
        assert_eq!(look(&Map::new(), "public-keys"), None);
    }
}
