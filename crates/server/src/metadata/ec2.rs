//! `/latest/…`: the documents as EC2 has them, for programs that know nothing else. Who asks is known
//! by its address.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use hoist_api::Code;
use hoist_metadata::provider::{ProviderAnswer, ServedDocuments};
use hoist_metadata::{Document, Facts};
use http::{HeaderMap, Uri, header};

use super::seed::{TEXT, with_address};
use super::{Metadata, OPEN};
use hoist_chassis::failure::Failure;
use hoist_chassis::peer::Peer;
use hoist_chassis::route::Route;

const META_DATA: &str = "/latest/meta-data";

pub(super) fn routes() -> Vec<Route<Metadata>> {
    let all = vec![
        Route::get("/latest", OPEN, top).summary("EC2: the top-level paths"),
        Route::get("/latest/user-data", OPEN, user_data).summary("EC2: user-data"),
        Route::get(META_DATA, OPEN, meta_data).summary("EC2: the keys of meta-data"),
        Route::get("/latest/meta-data/{key}", OPEN, meta_data)
            .summary("EC2: one key of meta-data; `public-keys` is a list"),
        Route::get("/latest/meta-data/public-keys/{index}", OPEN, meta_data)
            .summary("EC2: the forms of a public key"),
        Route::get("/latest/meta-data/public-keys/{index}/openssh-key", OPEN, meta_data)
            .summary("EC2: a public key"),
    ];
    let reason = "The documents of the node whose address asks, without secrets, as EC2 shows them";
    all.into_iter()
        .map(|route| route.reason(reason).lenient().gives_media(200, "text/plain"))
        .collect()
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
    let asking = with_address(&roster, from);
    let given = metadata.given(&roster, &asking, from, &headers).await?;
    let (ProviderAnswer::Here(served) | ProviderAnswer::Stale { served, .. }) = given else {
        let detail = "another service has this node's documents";
        return Err(Failure::new(Code::NotFound, detail).into_response());
    };
    metadata.read(&served).await.map_err(IntoResponse::into_response)?;
    let facts = served.facts().map_err(|error| {
        let detail = format!("the node's meta-data cannot be taken apart: {error}");
        Failure::new(Code::NotFound, detail).into_response()
    })?;
    let path = uri.path().strip_prefix(META_DATA).unwrap_or_default();
    let key = path.trim_matches('/');
    let found = look(facts, key)
        .ok_or_else(|| Failure::new(Code::NotFound, format!("key `{key}` not found")));
    found.map(text).map_err(IntoResponse::into_response)
}

impl Metadata {
    /// Parses meta-data once for all callers, on a separate thread.
    async fn read(&self, served: &Arc<ServedDocuments>) -> Result<(), Failure> {
        if served.known_facts().is_some() {
            return Ok(());
        }
        let permit = self.readings.take().await?;
        let served = Arc::clone(served);
        let work = tokio::task::spawn_blocking(move || {
            let _ = served.facts();
            drop(permit);
        });
        work.await.map_err(|_| Failure::new(Code::Internal, "the answer could not be made"))
    }
}

fn text(body: String) -> Response {
    ([(header::CONTENT_TYPE, TEXT)], body).into_response()
}

/// What stands under a path below meta-data: a list of names, or a value.
fn look(facts: &Facts, path: &str) -> Option<String> {
    let keys = &facts.public_keys;
    match path.split('/').collect::<Vec<_>>().as_slice() {
        [""] => {
            let mut names: Vec<_> = facts.values.keys().copied().collect();
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
                ["openssh-key"] => Some(key.clone()),
                _ => None,
            }
        }
        [name] => facts.values.get(name).cloned(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meta_data_is_a_tree_of_names() {
        let values = [("instance-id", "i-g0"), ("hostname", "n1"), ("local-ipv4", "10.0.0.1")];
        let facts = Facts {
            values: values.map(|(name, value)| (name, value.to_owned())).into(),
            public_keys: vec!["ssh-ed25519 A a".to_owned(), "ssh-ed25519 B b".to_owned()],
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
            assert_eq!(look(&facts, path).as_deref(), expected, "{path}");
        }
        assert_eq!(look(&Facts::default(), "").as_deref(), Some(""));
        assert_eq!(look(&Facts::default(), "public-keys"), None);
    }
}
