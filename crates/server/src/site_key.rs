//! The site's key, which the tokens of nodes are made with: `<data-dir>/ca/site.key`. Backups carry
//! it with the rest of `ca/`.
//!
//! All controllers of a store need the same one, or they refuse each other's tokens. So the store
//! keeps its fingerprint: the first controller writes it, the others compare.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fs_err as fs;
use hoist_site::SiteKey;
use hoist_site::site_key::KEY_BYTES;
use hoist_store::{Compare, Key, Op, Store, StoreError, Txn};
use tokio_util::sync::CancellationToken;
use zeroize::Zeroizing;

use hoist_chassis::health::{CheckResult, Readiness};
use hoist_chassis::secret;

/// Interval for comparing the fingerprint; shorter until it was read once.
const LOOK_EVERY: Duration = Duration::from_mins(1);
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// The remedy, for every message.
pub(crate) const REMEDY: &str = "copy `ca/site.key` from another controller's data directory \
     (`hoist db join` does that for a new one), or, if none has it any more, run `hoist db adopt-key` \
     here";

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    #[error("cannot use the site's key")]
    File(#[from] io::Error),
    /// Never replaced silently: nodes hold tokens that were made with it.
    #[error("`{path}` does not have {KEY_BYTES} bytes; restore it from a backup, or remove it")]
    Damaged { path: PathBuf },
    #[error("`{path}` is not the key that the other controllers of this store have; {REMEDY}")]
    Differs { path: PathBuf },
    #[error("the store does not say which key its controllers have")]
    Store(#[from] StoreError),
}

/// How this key stands to the one of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyComparison {
    /// It is the one, from now on if there was none.
    Same,
    Differs,
}

/// Compares the key with the one of the store, and writes nothing; `None` where it has none.
pub async fn look(store: &dyn Store, key: &SiteKey) -> Result<Option<KeyComparison>, StoreError> {
    let Some(record) = store.get(&place()).await? else { return Ok(None) };
    let same = record.value.as_slice() == key.fingerprint().as_bytes();
    Ok(Some(if same { KeyComparison::Same } else { KeyComparison::Differs }))
}

/// Compares the key with the one of the store's other controllers; the first one sets it.
async fn compare(store: &dyn Store, key: &SiteKey) -> Result<KeyComparison, StoreError> {
    loop {
        if let Some(standing) = look(store, key).await? {
            return Ok(standing);
        }
        let txn = Txn {
            compares: vec![Compare::Absent(place())],
            ops: vec![Op::Put(place(), key.fingerprint().into_bytes())],
        };
        match store.commit(txn).await {
            Ok(_) => return Ok(KeyComparison::Same),
            // Another controller started at the same moment.
            Err(StoreError::Conflict { .. }) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Lets the key be the one of the store, whichever it had: tokens that were made with another one
/// are good for nothing any more.
pub async fn adopt(store: &dyn Store, key: &SiteKey) -> Result<(), StoreError> {
    let ops = vec![Op::Put(place(), key.fingerprint().into_bytes())];
    store.commit(Txn { compares: Vec::new(), ops }).await.map(drop)
}

/// Compares the key before anything is served. With an embedded store there are no other
/// controllers: a replaced key becomes the site's key, with a warning.
pub(crate) async fn settle(
    store: &dyn Store,
    key: &SiteKey,
    data_dir: &Path,
    alone: bool,
) -> Result<(), KeyError> {
    match compare(store, key).await? {
        KeyComparison::Same => Ok(()),
        KeyComparison::Differs if alone => {
            tracing::warn!("`ca/site.key` is another one than before; earlier tokens are refused");
            Ok(adopt(store, key).await?)
        }
        KeyComparison::Differs => {
            Err(KeyError::Differs { path: data_dir.join("ca").join("site.key") })
        }
    }
}

/// Compares the key after a start without the store and after changes by other controllers.
/// Documents for this controller's own tokens are served meanwhile.
pub(crate) async fn watch(
    store: Arc<dyn Store>,
    key: SiteKey,
    differs: Arc<AtomicBool>,
    stop: CancellationToken,
) {
    let gauge = metrics::gauge!("hoist_site_key_differs");
    loop {
        let wait = match compare(store.as_ref(), &key).await {
            Ok(standing) => {
                let now = standing == KeyComparison::Differs;
                if now != differs.swap(now, Ordering::Relaxed) && now {
                    tracing::error!(
                        "other controllers have another `ca/site.key`, and refuse the tokens that \
                         are made here; {REMEDY}"
                    );
                }
                gauge.set(f64::from(u8::from(now)));
                LOOK_EVERY
            }
            // The readiness check of the store is what tells people that it is away.
            Err(error) => {
                tracing::debug!(error = %hoist_diagnostic::chain(&error), "the site's key is not compared");
                LOOK_AGAIN
            }
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(wait) => {}
        }
    }
}

pub(crate) fn check(readiness: &Readiness, differs: Arc<AtomicBool>) {
    readiness.add("site key", move || {
        let differs = differs.load(Ordering::Relaxed);
        async move {
            if differs {
                CheckResult::degraded(
                    "not the one of the other controllers; they refuse its tokens",
                )
            } else {
                CheckResult::ok("")
            }
        }
    });
}

fn place() -> Key {
    "meta/site-key".parse().expect("a valid key")
}

/// Writes the key of the site into a data directory that has none.
pub fn receive(data_dir: &Path, key: &[u8; KEY_BYTES]) -> Result<(), KeyError> {
    let dir = data_dir.join("ca");
    secret::ensure_private_dir(&dir)?;
    let path = dir.join("site.key");
    match fs::read(&path).map(Zeroizing::new) {
        Ok(bytes) if bytes.as_slice() == key.as_slice() => Ok(()),
        Ok(_) => Err(KeyError::Differs { path }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Ok(secret::write_atomic(&path, key, 0o600)?)
        }
        Err(error) => Err(error.into()),
    }
}

/// Reads the key, and makes one if there is none.
pub fn open(data_dir: &Path) -> Result<SiteKey, KeyError> {
    let dir = data_dir.join("ca");
    secret::ensure_private_dir(&dir)?;
    let path = dir.join("site.key");
    let bytes = match fs::read(&path) {
        Ok(bytes) => {
            if secret::tighten(&path)? {
                tracing::warn!(path = %path.display(), "others could read the site's key");
            }
            Zeroizing::new(bytes)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let mut made = Zeroizing::new(vec![0; KEY_BYTES]);
            aws_lc_rs::rand::fill(&mut made).expect("the operating system gives random bytes");
            secret::write_atomic(&path, &made, 0o600)?;
            made
        }
        Err(error) => return Err(error.into()),
    };
    let bytes: &[u8; KEY_BYTES] =
        bytes.as_slice().try_into().map_err(|_| KeyError::Damaged { path })?;
    Ok(SiteKey::new(bytes))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use hoist_model::NodeId;

    use super::*;

    #[test]
    fn a_key_is_made_once_and_is_private() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ca/site.key");
        let token = |dir: &Path| open(dir).unwrap().seed(NodeId::from_bits(1), 0);
        let first = token(dir.path());
        assert_eq!(token(dir.path()), first);
        assert_eq!(fs::read(&path).unwrap().len(), KEY_BYTES);
        let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(), 0o600);
        fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(token(dir.path()), first);
        assert_eq!(mode(), 0o600);
        assert_ne!(token(tempfile::tempdir().unwrap().path()), first, "every site has its own");
    }

    #[tokio::test]
    async fn the_first_key_of_a_store_is_the_one_until_another_is_adopted() {
        let store: Arc<dyn Store> = hoist_testkit::stores::test_store();
        let [one, other] = [1, 2].map(|byte| SiteKey::new(&[byte; KEY_BYTES]));
        let compared = async |key: &SiteKey| compare(store.as_ref(), key).await.unwrap();
        for _ in 0..2 {
            assert_eq!(look(store.as_ref(), &one).await.unwrap(), None, "looking sets nothing");
        }
        assert_eq!(compared(&one).await, KeyComparison::Same);
        assert_eq!(compared(&one).await, KeyComparison::Same);
        assert_eq!(compared(&other).await, KeyComparison::Differs);
        let dir = Path::new("data");
        let error = settle(store.as_ref(), &other, dir, false).await.unwrap_err().to_string();
        assert!(error.contains("`data/ca/site.key`") && error.contains("copy"), "{error}");
        adopt(store.as_ref(), &other).await.unwrap();
        assert_eq!(compared(&one).await, KeyComparison::Differs);
        settle(store.as_ref(), &one, dir, true).await.unwrap();
        assert_eq!(compared(&one).await, KeyComparison::Same);
    }

    #[test]
    fn a_damaged_key_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        open(dir.path()).unwrap();
        let path = dir.path().join("ca/site.key");
        for wrong in [&[0; KEY_BYTES - 1][..], &[0; KEY_BYTES + 1], b""] {
            fs::write(&path, wrong).unwrap();
            let error = open(dir.path()).unwrap_err().to_string();
            assert!(error.contains("restore it from a backup"), "{error}");
            assert_eq!(fs::read(&path).unwrap(), wrong);
        }
    }
}
