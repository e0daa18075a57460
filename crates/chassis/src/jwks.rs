//! Bearer tokens of another issuer: JWTs, verified with keys from a JWKS file or URL.
//!
//! Requests use only the keys in memory. A task fetches keys periodically, and soon after a token
//! names an unknown key. A failed fetch keeps the known keys.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use hoist_api::admin::{Context, Scope, Verb};
use jiff::Timestamp;
use jsonwebtoken::jwk::{
    AlgorithmParameters, EllipticCurve, Jwk, JwkSet, KeyOperations, PublicKeyUse,
};
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header};
use rustls_pki_types::CertificateDer;
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::principal::{Caller, Grant, Principal};

/// Largest key set we read. Real ones are a few kilobytes.
const MAX_SET_BYTES: usize = 256 * 1024;

/// Longest time one fetch may take.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);

/// The tolerated difference between the clocks of the issuer and this machine.
const LEEWAY_SECONDS: u64 = 30;

/// The source of the keys and the tokens that are accepted.
#[derive(Debug, Clone)]
pub struct JwksConfig {
    pub source: JwksSource,
    /// Checked when set, and then required in the token.
    pub issuer: Option<String>,
    /// The same. Without it a token for any other service of the issuer would be good here, so JWTs
    /// then count for BSS's boot parameters only, whose clients are used to that.
    pub audience: Option<String>,
    /// Tokens must name an issuer and an audience; BSS does not check which.
    pub named: bool,
    /// Interval between scheduled fetches of the keys.
    pub refresh: Duration,
    /// At most one fetch in this time, however many unknown keys are presented.
    pub refresh_floor: Duration,
}

#[derive(Debug, Clone)]
pub enum JwksSource {
    File(PathBuf),
    /// `roots` are trusted besides nothing else for an `https` URL; empty means the system's.
    Url {
        url: String,
        roots: Vec<CertificateDer<'static>>,
    },
}

impl JwksConfig {
    pub fn new(source: JwksSource) -> Self {
        Self {
            source,
            issuer: None,
            audience: None,
            named: false,
            refresh: Duration::from_mins(10),
            refresh_floor: Duration::from_secs(10),
        }
    }
}

/// The keys in memory.
pub struct Jwks {
    config: JwksConfig,
    keys: ArcSwap<HashMap<String, Arc<VerifyingKey>>>,
    wanted: Notify,
    changes: watch::Sender<()>,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JwtError {
    #[error("the token is not a JWT")]
    Malformed,
    /// The keys are fetched again behind; the next try may succeed.
    #[error("the token's key is not known (yet)")]
    UnknownKey,
    #[error("the token's algorithm is not allowed")]
    Algorithm,
    /// RFC 7515, 4.1.11: an extension that is not understood makes the token invalid.
    #[error("the token's header has `crit`; no extension is supported")]
    Critical,
    #[error("the token has expired")]
    Expired,
    #[error("the token has another issuer or audience than this site expects")]
    Claims,
    #[error("the token's signature is wrong")]
    Signature,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FetchError {
    #[error("cannot read the key set")]
    File(#[source] std::io::Error),
    #[error("cannot fetch the key set")]
    Http(#[source] reqwest::Error),
    #[error("the key set is larger than {MAX_SET_BYTES} bytes")]
    TooLarge,
    #[error("the key set is not a JWKS")]
    Parse(#[source] serde_json::Error),
    #[error("the key set has no usable key")]
    Empty,
    #[error("TLS cannot be set up")]
    Tls(#[source] rustls::Error),
    #[error("this machine has no certificate authorities; set `auth.jwks_ca`")]
    NoAuthority,
}

struct VerifyingKey {
    key: DecodingKey,
    /// Only these, whatever the token's header says.
    algorithms: Vec<Algorithm>,
}

#[derive(Deserialize)]
struct Claims {
    /// Required, and so always there.
    #[serde(default, deserialize_with = "seconds")]
    exp: i64,
    #[serde(default)]
    sub: String,
    #[serde(default)]
    hoist_scopes: Vec<Value>,
    #[serde(default)]
    scope: Option<Value>,
}

impl Jwks {
    pub fn new(config: JwksConfig) -> Self {
        let changes = watch::Sender::new(());
        Self { config, keys: ArcSwap::default(), wanted: Notify::new(), changes }
    }

    /// The principal of a token. Reads memory only.
    pub fn check(&self, token: &str) -> Result<Principal, JwtError> {
        let header = decode_header(token).map_err(|_| JwtError::Malformed)?;
        if header.crit.is_some() {
            return Err(JwtError::Critical);
        }
        let keys = self.keys.load();
        let key = match &header.kid {
            Some(kid) => keys.get(kid),
            // Without a name there must be no choice.
            None if keys.len() == 1 => keys.values().next(),
            None => None,
        };
        let Some(key) = key else {
            self.wanted.notify_one();
            return Err(JwtError::UnknownKey);
        };
        if !key.algorithms.contains(&header.alg) {
            return Err(JwtError::Algorithm);
        }
        let mut validation = Validation::new(header.alg);
        validation.leeway = LEEWAY_SECONDS;
        validation.validate_nbf = true;
        validation.validate_aud = self.config.audience.is_some();
        let mut required = vec!["exp", "sub"];
        if let Some(issuer) = &self.config.issuer {
            validation.set_issuer(&[issuer]);
        }
        if let Some(audience) = &self.config.audience {
            validation.set_audience(&[audience]);
        }
        required.extend((self.config.named || self.config.issuer.is_some()).then_some("iss"));
        required.extend((self.config.named || self.config.audience.is_some()).then_some("aud"));
        validation.set_required_spec_claims(&required);
        let claims =
            decode::<Claims>(token, &key.key, &validation).map_err(|error| reason(&error))?.claims;
        let grants = grants_of(&claims);
        let leeway = i64::try_from(LEEWAY_SECONDS).unwrap_or_default();
        let expires = Timestamp::from_second(claims.exp.saturating_add(leeway)).ok();
        Ok(Principal::new(Caller::Jwt { subject: claims.sub }, grants).until(expires))
    }

    /// Notified after every fetch of the keys.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Whether tokens are compared with the audience of this site.
    pub(crate) fn has_audience(&self) -> bool {
        self.config.audience.is_some()
    }

    /// Tells the operator which tokens are good that perhaps should not be.
    pub(crate) fn warn_of_gaps(&self) {
        if self.config.audience.is_none() {
            tracing::warn!(
                "JWTs: `auth.audience` is not set: a token for any service is good for boot \
                 parameters, and none for anything else; set `auth.audience`"
            );
        }
        if self.config.issuer.is_none() {
            tracing::warn!(
                "JWTs: `auth.issuer` is not set: a token of any issuer is good that a key of \
                 `auth.jwks` signed; set `auth.issuer`"
            );
        }
    }

    /// Fetches the keys once.
    pub async fn refresh(&self) -> Result<usize, FetchError> {
        let bytes = match &self.config.source {
            JwksSource::File(path) => fs_err::tokio::read(path).await.map_err(FetchError::File)?,
            JwksSource::Url { url, roots } => fetch(url, roots).await?,
        };
        if bytes.len() > MAX_SET_BYTES {
            return Err(FetchError::TooLarge);
        }
        let set: JwkSet = serde_json::from_slice(&bytes).map_err(FetchError::Parse)?;
        let keys: HashMap<_, _> = set.keys.iter().filter_map(usable).collect();
        if keys.is_empty() {
            return Err(FetchError::Empty);
        }
        let count = keys.len();
        self.keys.store(Arc::new(keys));
        self.changes.send_replace(());
        Ok(count)
    }

    /// Keeps the keys fresh until `stopping`.
    pub(crate) async fn follow(self: Arc<Self>, stopping: CancellationToken) {
        loop {
            tokio::select! {
                () = stopping.cancelled() => return,
                outcome = self.refresh() => match outcome {
                    Ok(keys) => tracing::debug!(keys, "JWT keys refreshed"),
                    Err(error) => {
                        metrics::counter!("hoist_jwks_failures_total").increment(1);
                        tracing::warn!(error = %hoist_diagnostic::chain(&error), "JWT keys not refreshed");
                    }
                },
            }
            tokio::select! {
                () = stopping.cancelled() => return,
                () = tokio::time::sleep(self.config.refresh_floor) => {}
            }
            let rest = self.config.refresh.saturating_sub(self.config.refresh_floor);
            tokio::select! {
                () = stopping.cancelled() => return,
                () = self.wanted.notified() => {}
                () = tokio::time::sleep(rest) => {}
            }
        }
    }
}

impl fmt::Debug for Jwks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Jwks")
            .field("config", &self.config)
            .field("keys", &self.keys.load().len())
            .finish_non_exhaustive()
    }
}

async fn fetch(url: &str, roots: &[CertificateDer<'static>]) -> Result<Vec<u8>, FetchError> {
    let mut authorities = roots.to_vec();
    if authorities.is_empty() && !url.starts_with("http:") {
        authorities = crate::ca::machine_authorities();
        if authorities.is_empty() {
            return Err(FetchError::NoAuthority);
        }
    }
    let builder = reqwest::Client::builder()
        .timeout(FETCH_TIMEOUT)
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .tls_backend_preconfigured(crate::ca::client_tls(authorities).map_err(FetchError::Tls)?);
    let client = builder.build().map_err(FetchError::Http)?;
    let response = client.get(url).send().await.map_err(FetchError::Http)?;
    let mut response = response.error_for_status().map_err(FetchError::Http)?;
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(FetchError::Http)? {
        if bytes.len() + chunk.len() > MAX_SET_BYTES {
            return Err(FetchError::TooLarge);
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

/// A key for signatures of an allowed kind. Shared secrets are never accepted: a verifier of such a
/// token could also make one.
fn usable(jwk: &Jwk) -> Option<(String, Arc<VerifyingKey>)> {
    if !matches!(jwk.common.public_key_use, None | Some(PublicKeyUse::Signature)) {
        return None;
    }
    let operations = jwk.common.key_operations.as_ref();
    if operations.is_some_and(|operations| !operations.contains(&KeyOperations::Verify)) {
        return None;
    }
    let algorithms = match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => vec![
            Algorithm::RS256,
            Algorithm::RS384,
            Algorithm::RS512,
            Algorithm::PS256,
            Algorithm::PS384,
            Algorithm::PS512,
        ],
        AlgorithmParameters::EllipticCurve(parameters) => match parameters.curve {
            EllipticCurve::P256 => vec![Algorithm::ES256],
            EllipticCurve::P384 => vec![Algorithm::ES384],
            _ => return None,
        },
        AlgorithmParameters::OctetKeyPair(_) => vec![Algorithm::EdDSA],
        _ => return None,
    };
    let algorithms = match jwk.common.key_algorithm {
        None => algorithms,
        Some(named) => {
            let named = named.to_string().parse().ok()?;
            algorithms.into_iter().filter(|algorithm| *algorithm == named).collect()
        }
    };
    let key = DecodingKey::from_jwk(jwk).ok()?;
    let kid = jwk.common.key_id.clone().unwrap_or_default();
    Some((kid, Arc::new(VerifyingKey { key, algorithms })))
}

/// Some issuers write fractions.
#[expect(clippy::cast_possible_truncation, reason = "seconds, and a fraction is rounded down")]
fn seconds<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    f64::deserialize(deserializer).map(|seconds| seconds as i64)
}

/// `hoist_scopes` (scopes as objects) and `scope` (words as `hoist token create --scope` takes them:
/// `read:inventory read,write:boot:partition:p1`). An unknown word
/// grants nothing: issuers put many other words there.
fn grants_of(claims: &Claims) -> Vec<Grant> {
    let objects = claims
        .hoist_scopes
        .iter()
        .filter_map(|value| serde_json::from_value::<Scope>(value.clone()).ok());
    let words: Vec<String> = match &claims.scope {
        Some(Value::String(text)) => text.split_whitespace().map(str::to_owned).collect(),
        Some(Value::Array(list)) => {
            list.iter().filter_map(Value::as_str).map(str::to_owned).collect()
        }
        _ => Vec::new(),
    };
    let words = words.iter().filter_map(|word| parse_word(word));
    objects.chain(words).filter_map(|scope| Grant::try_from(&scope).ok()).collect()
}

fn parse_word(word: &str) -> Option<Scope> {
    let mut parts = word.splitn(3, ':');
    let verbs = listed::<Verb>(parts.next()?)?;
    let contexts = listed::<Context>(parts.next()?)?;
    Some(Scope { verbs, contexts, selector: parts.next().map(str::to_owned) })
}

fn listed<T: serde::de::DeserializeOwned>(words: &str) -> Option<Vec<T>> {
    let value = |word: &str| serde_json::from_value(Value::String(word.to_owned())).ok();
    words.split(',').map(value).collect()
}

fn reason(error: &jsonwebtoken::errors::Error) -> JwtError {
    use jsonwebtoken::errors::ErrorKind;
    match error.kind() {
        ErrorKind::ExpiredSignature => JwtError::Expired,
        ErrorKind::InvalidSignature => JwtError::Signature,
        ErrorKind::InvalidIssuer
        | ErrorKind::InvalidAudience
        | ErrorKind::MissingRequiredClaim(_)
        | ErrorKind::ImmatureSignature
        | ErrorKind::InvalidSubject => JwtError::Claims,
        ErrorKind::InvalidAlgorithm => JwtError::Algorithm,
        _ => JwtError::Malformed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scope_words_are_those_of_token_commands() {
        let claims = Claims {
            exp: 0,
            sub: "ci".into(),
            hoist_scopes: vec![
                serde_json::json!({"verbs": ["write"], "contexts": ["boot"], "selector": "partition:a"}),
            ],
            scope: Some(Value::String("openid read:inventory read:kettle read,write:etcd boot:read read:provision:partition:p1".into())),
        };
        let principal =
            Principal::new(Caller::Jwt { subject: claims.sub.clone() }, grants_of(&claims));
        assert!(principal.allows(Verb::Read, Context::Inventory));
        assert!(!principal.allows(Verb::Write, Context::Inventory));
        assert!(principal.allows(Verb::Write, Context::Etcd));
        assert!(principal.allows(Verb::Write, Context::Boot));
        assert!(!principal.allows(Verb::Read, Context::Boot), "the verb is first");
        let limited = principal.reach(Verb::Read, Context::Provision);
        assert!(matches!(limited, crate::principal::Reach::Some(_)), "{limited:?}");
        assert!(!principal.allows(Verb::Read, Context::Admin));
    }

    #[test]
    fn a_shared_secret_is_no_key() {
        let set: JwkSet = serde_json::from_str(
            r#"{"keys": [{"kty": "oct", "kid": "a", "k": "c2VjcmV0", "alg": "HS256"}]}"#,
        )
        .unwrap();
        assert!(usable(&set.keys[0]).is_none());
    }

    #[test]
    fn key_for_another_operation_verifies_no_token() {
        let key = r#""kty": "OKP", "crv": "Ed25519", "kid": "a",
            "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo""#;
        for (member, expected) in [
            (r#""use": "sig""#, true),
            (r#""use": "enc""#, false),
            (r#""key_ops": ["verify"]"#, true),
            (r#""key_ops": ["encrypt"]"#, false),
        ] {
            let jwk: Jwk = serde_json::from_str(&format!("{{{key}, {member}}}")).unwrap();
            assert_eq!(usable(&jwk).is_some(), expected, "{member}");
        }
    }
}
