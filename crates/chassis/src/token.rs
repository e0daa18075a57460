//! Tokens that hoist itself issues: the admin token in a file, and managed ones in the store.
//!
//! Only hashes are kept. Checks read one snapshot in memory and never wait for the store: when it
//! is away, the last known tokens go on working and expired ones still expire.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use fs_err as fs;
use hoist_api::admin::{NewToken, Scope, Token, TokenRequest};
use hoist_api::{Code, Problem};
use hoist_diagnostic::Diagnostic;
use hoist_store::follow::{Follower, follow};
use hoist_store::{
    Batch, Change, Compare, Key, Op, Prefix, Record, Revision, Store, StoreError, Txn,
};
use jiff::Timestamp;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::audit::{AuditError, AuditLog, Draft};
use crate::clock::Clock;
use crate::failure::Failure;
use crate::principal::{Caller, Grant, Principal};
use crate::scan::{ScanStep, walk};
use crate::secret;

/// Prefix of every token, so that secret scanners can find leaked ones.
const PREFIX: &str = "hoist_";

/// The id of the token in `admin.token`; managed ids are longer.
const ADMIN_ID: &str = "admin";

/// 5 bits each: 60 bits tell tokens apart, 200 keep them secret.
const ID_CHARS: usize = 12;
const SECRET_CHARS: usize = 40;

/// Longest name of a token, in bytes, and most scopes of one.
const MAX_NAME: usize = 128;
const MAX_SCOPES: usize = 64;

/// All tokens of the site.
pub struct Tokens {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    audit: AuditLog,
    admin_hash: [u8; 32],
    table: ArcSwap<HashMap<String, Arc<KnownToken>>>,
    /// Held only while a new table is made.
    update: Mutex<()>,
    changes: watch::Sender<()>,
}

/// Why a bearer token was refused. Never says whether the id exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// Not one of ours by its form: it may be a JWT.
    #[error("not a hoist token")]
    Foreign,
    #[error("wrong token")]
    Wrong,
    #[error("the token has expired")]
    Expired,
    #[error("the token was revoked")]
    Revoked,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdminTokenError {
    #[error("cannot use the admin token file")]
    File(#[source] io::Error),
    #[error("`{path}` holds no admin token; remove it, and the next start makes a new one")]
    Damaged { path: PathBuf },
}

/// `token/<id>`.
#[derive(Clone, Serialize, Deserialize)]
struct TokenRecord {
    schema: u32,
    id: String,
    name: String,
    /// SHA-256 of the secret, hexadecimal.
    hash: String,
    scopes: Vec<Scope>,
    created: Timestamp,
    expires: Option<Timestamp>,
    revoked: Option<Timestamp>,
}

/// A stored token, ready to be compared.
struct KnownToken {
    stored: TokenRecord,
    hash: [u8; 32],
    principal: Principal,
    revision: Revision,
}

impl Tokens {
    pub fn new(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        audit: AuditLog,
        admin_hash: [u8; 32],
    ) -> Self {
        Self {
            store,
            clock,
            audit,
            admin_hash,
            table: ArcSwap::default(),
            update: Mutex::default(),
            changes: watch::Sender::new(()),
        }
    }

    /// The principal that holds the token `presented`. Reads memory only.
    pub fn check(&self, presented: &str) -> Result<Principal, TokenError> {
        let rest = presented.strip_prefix(PREFIX).ok_or(TokenError::Foreign)?;
        let (id, secret) = rest.split_once('_').ok_or(TokenError::Foreign)?;
        let hash = secret::sha256(secret.as_bytes());
        if id == ADMIN_ID {
            let same = bool::from(hash.ct_eq(&self.admin_hash));
            return if same { Ok(Principal::admin()) } else { Err(TokenError::Wrong) };
        }
        let table = self.table.load();
        let known = table.get(id).ok_or(TokenError::Wrong)?;
        if !bool::from(hash.ct_eq(&known.hash)) {
            return Err(TokenError::Wrong);
        }
        if known.stored.revoked.is_some() {
            return Err(TokenError::Revoked);
        }
        if known.stored.expires.is_some_and(|expires| expires <= self.clock.now()) {
            return Err(TokenError::Expired);
        }
        Ok(known.principal.clone())
    }

    /// Notified whenever tokens may have changed.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// The caller must hold `update`.
    fn replace(&self, table: HashMap<String, Arc<KnownToken>>) {
        self.table.store(Arc::new(table));
        self.changes.send_replace(());
    }

    /// All managed tokens, oldest first.
    pub fn list(&self) -> Vec<Token> {
        let table = self.table.load();
        let mut known: Vec<_> = table.values().collect();
        known.sort_by(|a, b| {
            (a.stored.created, &a.stored.id).cmp(&(b.stored.created, &b.stored.id))
        });
        known.into_iter().map(|known| known.stored.shown()).collect()
    }

    /// Makes a token; `maker` cannot give away more than it holds.
    pub async fn create(
        &self,
        request: &TokenRequest,
        maker: &Principal,
        draft: Draft,
    ) -> Result<NewToken, Failure> {
        let now = self.clock.now();
        let expires = check_request(request, maker, now)?;
        let secret = secret::random_text(SECRET_CHARS);
        let stored = TokenRecord {
            schema: 1,
            id: secret::random_text(ID_CHARS),
            name: request.name.clone(),
            hash: secret::hex(&secret::sha256(secret.as_bytes())),
            scopes: request.scopes.clone(),
            created: now,
            expires,
            revoked: None,
        };
        let key = key_of(&stored.id);
        let txn = Txn {
            compares: vec![Compare::Absent(key.clone())],
            ops: vec![Op::Put(key, stored.to_json())],
        };
        let draft = Draft { object: format!("token/{}", stored.id), ..draft };
        let revision = self.audit.commit(txn, &draft).await?;
        let shown =
            NewToken { token: stored.shown(), secret: format!("{PREFIX}{}_{secret}", stored.id) };
        self.learn([(stored, revision)]);
        Ok(shown)
    }

    /// Makes the token useless, here at once and elsewhere with the next watch. Revoking twice is
    /// fine.
    pub async fn revoke(&self, id: &str, draft: Draft) -> Result<Token, Failure> {
        let missing = || Failure::new(Code::NotFound, format!("token `{id}` not found"));
        if id.len() != ID_CHARS || !id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            return Err(missing());
        }
        let record = self.store.get(&key_of(id)).await?.ok_or_else(missing)?;
        let mut stored: TokenRecord = serde_json::from_slice(&record.value).map_err(|error| {
            tracing::error!(token = id, %error, "stored token cannot be read");
            Failure::new(Code::Internal, "the stored token cannot be read")
        })?;
        if stored.revoked.is_none() {
            stored.revoked = Some(self.clock.now());
            let txn = Txn {
                compares: vec![Compare::At(record.key.clone(), record.revision)],
                ops: vec![Op::Put(record.key.clone(), stored.to_json())],
            };
            let draft = Draft { object: format!("token/{id}"), ..draft };
            let revision = self.audit.commit(txn, &draft).await?;
            self.learn([(stored.clone(), revision)]);
        }
        Ok(stored.shown())
    }

    /// Reads all tokens and returns the revision to watch from.
    pub async fn load(&self) -> Result<Revision, StoreError> {
        let mut table = HashMap::new();
        let revision = walk(self.store.as_ref(), &top(), None, |record| {
            if let Some(known) = KnownToken::read(&record) {
                table.insert(known.stored.id.clone(), Arc::new(known));
            }
            ScanStep::Go
        })
        .await?;
        let _update = self.update.lock();
        // A record that this process wrote after the snapshot is newer than the snapshot.
        for (id, known) in self.table.load().iter() {
            if known.revision > revision {
                table.insert(id.clone(), Arc::clone(known));
            }
        }
        self.replace(table);
        Ok(revision)
    }

    /// Keeps the table in step with the store until `stopping`.
    pub(crate) async fn follow(self: Arc<Self>, stopping: CancellationToken) {
        let top = Prefix::Under(top());
        stopping.run_until_cancelled(follow(self.store.as_ref(), &top, self.as_ref())).await;
    }

    fn take_in(&self, batch: Batch) {
        let _update = self.update.lock();
        let mut table = HashMap::clone(&self.table.load());
        for change in batch.changes {
            match change {
                Change::Put(record) => {
                    let Some(known) = KnownToken::read(&record) else { continue };
                    let id = known.stored.id.clone();
                    if table.get(&id).is_none_or(|held| held.revision <= known.revision) {
                        table.insert(id, Arc::new(known));
                    }
                }
                Change::Delete(key) => {
                    let id = key.as_str().rsplit('/').next().unwrap_or_default();
                    if table.get(id).is_some_and(|held| held.revision <= batch.revision) {
                        table.remove(id);
                    }
                }
            }
        }
        self.replace(table);
    }

    fn learn(&self, written: impl IntoIterator<Item = (TokenRecord, Revision)>) {
        let _update = self.update.lock();
        let mut table = HashMap::clone(&self.table.load());
        for (stored, revision) in written {
            if let Some(known) = KnownToken::new(stored, revision) {
                table.insert(known.stored.id.clone(), Arc::new(known));
            }
        }
        self.replace(table);
    }
}

#[async_trait]
impl Follower for Tokens {
    type Error = StoreError;

    async fn load(&self) -> Result<Revision, StoreError> {
        Self::load(self).await
    }

    async fn apply(&self, batch: Batch) -> Result<(), StoreError> {
        self.take_in(batch);
        Ok(())
    }

    /// The roster reports that the store is unreachable, once for the whole controller.
    async fn failed(&self, error: StoreError) {
        tracing::debug!(error = %hoist_diagnostic::chain(&error), "tokens not refreshed");
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens").field("count", &self.table.load().len()).finish_non_exhaustive()
    }
}

/// The hash of the admin token in `<data_dir>/admin.token`, which is made when it is not there.
pub fn ensure_admin_token(data_dir: &Path) -> Result<[u8; 32], AdminTokenError> {
    let path = data_dir.join("admin.token");
    let text = match fs::read_to_string(&path) {
        Ok(text) => zeroize::Zeroizing::new(text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let token = format!("{PREFIX}{ADMIN_ID}_{}\n", secret::random_text(SECRET_CHARS));
            secret::write_atomic(&path, token.as_bytes(), 0o600).map_err(AdminTokenError::File)?;
            zeroize::Zeroizing::new(token)
        }
        Err(error) => return Err(AdminTokenError::File(error)),
    };
    if secret::tighten(&path).map_err(AdminTokenError::File)? {
        tracing::warn!(path = %path.display(), "admin token was readable by others until now");
    }
    text.trim()
        .strip_prefix(PREFIX)
        .and_then(|rest| rest.strip_prefix(ADMIN_ID)?.strip_prefix('_'))
        .filter(|secret| secret.len() >= SECRET_CHARS)
        .map(|secret| secret::sha256(secret.as_bytes()))
        .ok_or(AdminTokenError::Damaged { path })
}

impl From<AuditError> for Failure {
    fn from(error: AuditError) -> Self {
        match error {
            AuditError::Store(error) => error.into(),
            AuditError::Damaged { .. } => {
                tracing::error!(error = %hoist_diagnostic::chain(&error), "audit log is damaged");
                Self::new(Code::Internal, "the audit log is damaged; nothing was written")
                    .with_remedy("run `hoist audit list --verify`")
            }
        }
    }
}

fn check_request(
    request: &TokenRequest,
    maker: &Principal,
    now: Timestamp,
) -> Result<Option<Timestamp>, Failure> {
    let mut problem = Problem::new(Code::InvalidBody, "the token cannot be made");
    if request.name.trim().is_empty() || request.name.len() > MAX_NAME {
        let message = format!("a name is 1 to {MAX_NAME} bytes");
        problem.errors.push(Diagnostic::new("$.name", message));
    }
    if request.scopes.is_empty() || request.scopes.len() > MAX_SCOPES {
        let message = format!("a token has 1 to {MAX_SCOPES} scopes");
        problem.errors.push(
            Diagnostic::new("$.scopes", message)
                .hint(r#"{"verbs": ["read"], "contexts": ["inventory"]}"#),
        );
    }
    let expires = match request.expires.as_deref().map(str::parse::<Timestamp>) {
        None => None,
        Some(Ok(expires)) if expires > now => Some(expires),
        Some(Ok(_)) => {
            problem.errors.push(Diagnostic::new("$.expires", "this is in the past"));
            None
        }
        Some(Err(_)) => {
            let diagnostic = Diagnostic::new("$.expires", "not a time with an offset")
                .hint("write `2027-01-31T00:00:00Z`");
            problem.errors.push(diagnostic);
            None
        }
    };
    for (index, scope) in request.scopes.iter().enumerate() {
        match Grant::try_from(scope) {
            Err(error) => {
                problem
                    .errors
                    .push(Diagnostic::new(format!("$.scopes[{index}]"), error.to_string()));
            }
            Ok(grant) if !maker.may_delegate(&grant) => {
                return Err(Failure::new(
                    Code::Forbidden,
                    format!("scope {index} allows more than your own token does"),
                )
                .with_remedy("use the admin token, or a smaller scope"));
            }
            Ok(_) => {}
        }
    }
    if problem.errors.is_empty() { Ok(expires) } else { Err(problem.into()) }
}

impl TokenRecord {
    fn shown(&self) -> Token {
        Token {
            id: self.id.clone(),
            name: self.name.clone(),
            scopes: self.scopes.clone(),
            created: self.created.to_string(),
            expires: self.expires.map(|at| at.to_string()),
            revoked: self.revoked.map(|at| at.to_string()),
        }
    }

    fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("plain structs always serialize")
    }
}

impl KnownToken {
    /// An unreadable token is no token: it must not keep the others from working.
    fn read(record: &Record) -> Option<Self> {
        match serde_json::from_slice(&record.value) {
            Ok(stored) => Self::new(stored, record.revision),
            Err(error) => {
                tracing::error!(key = %record.key, %error, "stored token cannot be read");
                None
            }
        }
    }

    fn new(stored: TokenRecord, revision: Revision) -> Option<Self> {
        let mut hash = [0_u8; 32];
        if stored.hash.len() != 64 {
            return None;
        }
        for (index, byte) in hash.iter_mut().enumerate() {
            *byte = u8::from_str_radix(stored.hash.get(index * 2..index * 2 + 2)?, 16).ok()?;
        }
        // A scope this build cannot parse grants nothing; the others still count.
        let grants: Vec<Grant> =
            stored.scopes.iter().filter_map(|scope| Grant::try_from(scope).ok()).collect();
        let who = Caller::Token { id: stored.id.clone(), name: stored.name.clone() };
        let principal = Principal::new(who, grants).until(stored.expires);
        Some(Self { stored, hash, principal, revision })
    }
}

fn top() -> Key {
    "token".parse().expect("a literal key")
}

fn key_of(id: &str) -> Key {
    top().child(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_admin_token_is_made_once_and_kept_private() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("admin.token");
        let hash = ensure_admin_token(dir.path()).unwrap();
        fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(ensure_admin_token(dir.path()).unwrap(), hash);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::write(&path, "").unwrap();
        assert!(matches!(ensure_admin_token(dir.path()), Err(AdminTokenError::Damaged { .. })));
    }
}
